"""Local DIFFI: equal to a walk by hand through every tree, and sensible where the answer is plain."""

from __future__ import annotations

import numpy as np
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.ensemble import IsolationForest

from benchmarks.baselines.diffi import cuts_per_feature, local_diffi


def walked(forest: IsolationForest, row: np.ndarray) -> np.ndarray:
    """The definition, step by step: down every tree, then a share for each cut that was met."""
    longest = np.ceil(np.log2(forest.max_samples_))
    added, n_cuts = np.zeros(row.size), np.zeros(row.size)
    for tree, features in zip(forest.estimators_, forest.estimators_features_, strict=True):
        nodes, met, node = tree.tree_, [], 0
        while nodes.children_left[node] != nodes.children_right[node]:
            feature = features[nodes.feature[node]]
            met.append(feature)
            goes_left = np.float32(row[feature]) <= nodes.threshold[node]
            node = nodes.children_left[node] if goes_left else nodes.children_right[node]
        for feature in met:
            added[feature] += 1 / len(met) - 1 / longest
            n_cuts[feature] += 1
    return np.divide(added, n_cuts, out=np.zeros(row.size), where=n_cuts > 0)


@settings(max_examples=examples(15))
@given(st.integers(0, 2**32 - 1), st.integers(2, 60), st.integers(1, 5), st.sampled_from([0.5, 1.0]))
def test_importances_equal_those_of_a_walk(seed, n_rows, n_features, max_features):
    X = np.random.default_rng(seed).normal(size=(n_rows, n_features)).round(1)
    forest = IsolationForest(n_estimators=7, max_features=max_features, random_state=seed % 1000).fit(X)
    expected = np.array([walked(forest, row) for row in X[:10]])
    np.testing.assert_allclose(local_diffi(forest, X[:10]), expected, atol=1e-12)


def test_cuts_are_counted_down_to_the_leaf():
    X = np.array([[0.0, 0.0], [0.0, 1.0], [0.0, 2.0], [0.0, 3.0]])
    (tree,) = IsolationForest(n_estimators=1, random_state=0).fit(X).estimators_
    cuts = cuts_per_feature(tree, X.astype(np.float32))
    assert (cuts[:, 0] == 0).all(), "a constant feature is never cut"
    assert (cuts[:, 1] >= 1).all()


def test_equal_rows_have_no_importances():
    X = np.ones((20, 3))
    np.testing.assert_array_equal(local_diffi(IsolationForest(random_state=0).fit(X), X), np.zeros(X.shape))


@pytest.mark.parametrize("feature", [0, 3])
def test_a_single_anomalous_value_has_the_largest_importance(feature):
    X = np.random.default_rng(1).normal(size=(500, 5))
    row = np.zeros((1, 5))
    row[0, feature] = 9.0
    assert local_diffi(IsolationForest(random_state=0).fit(X), row).argmax() == feature
