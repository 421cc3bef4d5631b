"""Comparisons of categories are invariant to names, to the order of rows and to the order of samples."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp

from polyaforest.drift import compare
from polyaforest.drift.evidence import Coded, Grid, SplitPrior, grow_partitions
from polyaforest.tables.categories import encode

pytestmark = pytest.mark.property

QUICK = {"n_estimators": 6, "n_permutations": 3, "max_depth": 5, "max_regions": 0, "categorical_features": ["c"]}
texts = st.lists(st.text(max_size=5), min_size=4, max_size=4, unique=True)


def samples(seed, names=("a", "b", "c", "d")):
    """Two samples of categories of different frequencies, some missing."""
    rng = np.random.default_rng(seed)
    values = np.repeat([*names, None], [21, 13, 8, 5, 3])
    frame = pd.DataFrame({"u": rng.random(50), "c": pd.Series(rng.permutation(values), dtype=object)})
    return frame[:24], frame[24:]


@settings(max_examples=examples(40))
@given(seed=st.integers(0, 99), names=texts)
def test_compare_is_invariant_to_names_of_categories(seed, names):
    plain = compare(*samples(seed), random_state=seed, **QUICK)
    renamed = compare(*samples(seed, names), random_state=seed, **QUICK)
    assert renamed.log_bayes_factor == plain.log_bayes_factor
    assert renamed.p_value == plain.p_value
    assert renamed.feature_bits.tolist() == plain.feature_bits.tolist()


@settings(max_examples=examples(40))
@given(seed=st.integers(0, 99), order=st.permutations(range(24)))
def test_odds_are_invariant_to_the_order_of_rows(seed, order):
    before, after = samples(seed)
    plain = compare(before, after, random_state=seed, **QUICK)
    shuffled = compare(before.iloc[order], after, random_state=seed, **QUICK)
    assert shuffled.log_bayes_factor == pytest.approx(plain.log_bayes_factor, abs=1e-9)
    np.testing.assert_allclose(shuffled.feature_bits, plain.feature_bits, atol=1e-9)


@settings(max_examples=examples(40))
@given(seed=st.integers(0, 99))
def test_odds_are_invariant_to_the_order_of_samples(seed):
    before, after = samples(seed)
    there, back = (compare(*both, random_state=seed, **QUICK) for both in ((before, after), (after, before)))
    assert back.log_bayes_factor == pytest.approx(there.log_bayes_factor, abs=1e-9)


@settings(max_examples=examples(15))
@given(
    seed=st.integers(0, 99), n_a=st.integers(2, 6), categories=st.lists(st.sampled_from("abc"), min_size=8, max_size=8)
)
def test_mean_odds_over_all_permutations_are_at_most_one(seed, n_a, categories):
    """Trees cut categories without the labels, so the bound of the odds holds for every table."""
    from itertools import combinations

    rng = np.random.default_rng(seed)
    rows = np.column_stack([rng.random(8).round(1), encode(categories)[0]])
    grid = Grid.of(rows, rows, Coded((1,), {}, rng))
    trees = grow_partitions(grid, np.arange(8), 4, 4, np.random.SeedSequence(seed), 1)
    prior, factors = SplitPrior(10.0), []
    for chosen in combinations(range(8), n_a):
        labels = np.isin(np.arange(8), chosen).astype(np.uint8)[:, None]
        logs = [
            prior.evidence(tree, tree.counts_of(np.ones((8, 1), np.uint8)), tree.counts_of(labels)).sum()
            for tree in trees
        ]
        factors.append(np.exp(logsumexp(logs)) / len(trees))
    assert np.mean(factors) <= 1 + 1e-9
