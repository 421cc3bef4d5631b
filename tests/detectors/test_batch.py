"""Counts of a `BatchMPF` add and subtract exactly."""

import pickle

import numpy as np
import pandas as pd
import pytest
from effort import examples
from forests import made
from hypothesis import given, settings
from hypothesis import strategies as st

from polyaforest import BatchMPF, LeafKind, StreamingMPF, Tree
from polyaforest.kernels.arrays import NONE

ROWS = np.random.default_rng(0).normal(size=(90, 2))
DOMAIN = [[-5.0, -5.0], [5.0, 5.0]]
PARAMETERS = {"n_estimators": 3, "max_depth": 5, "domain": DOMAIN, "random_state": 0}


def forest(**parameters):
    return made(BatchMPF, **PARAMETERS | parameters)


def assert_same(one, other):
    """Same arrays, same answers, bit for bit."""
    for name in one.forest_._fields:
        np.testing.assert_array_equal(getattr(one.forest_, name), getattr(other.forest_, name), err_msg=name)
    for name in one.posterior_._fields:
        np.testing.assert_array_equal(getattr(one.posterior_, name), getattr(other.posterior_, name), err_msg=name)
    for X in (ROWS, ROWS * 10):
        np.testing.assert_array_equal(one.tree_masses(X), other.tree_masses(X))
        np.testing.assert_array_equal(one.score_samples(X), other.score_samples(X))
    assert one.n_points_ == other.n_points_


@pytest.mark.parametrize("score", ["multiscale", "mass", "log_mass"])
@pytest.mark.parametrize("split", [1, 40, 89])
def test_fit_then_partial_fit_equals_one_fit(split, score):
    grown = forest(score_type=score).fit(ROWS[:split]).partial_fit(ROWS[split:])
    assert_same(grown, forest(score_type=score).fit(ROWS))


def test_first_partial_fit_equals_fit_and_accepts_single_rows():
    grown = forest()
    for row in ROWS[:20]:
        grown.partial_fit(row[None])
    assert_same(grown, forest().fit(ROWS[:20]))
    assert grown.offset_ == forest().fit(ROWS[:1]).offset_


@pytest.mark.parametrize("domain", [DOMAIN, None, "data"])
def test_delete_rows_undoes_partial_fit(domain):
    grown = forest(domain=domain).fit(ROWS)
    before = pickle.loads(pickle.dumps(grown))
    inner = ROWS[np.abs(ROWS).max(axis=1) < 1] * 0.9
    grown.partial_fit(inner)
    assert grown.n_points_ == len(ROWS) + len(inner)
    assert (grown.mass(inner) != before.mass(inner)).any()
    assert_same(grown.delete_rows(inner), before)


def test_rows_can_be_deleted_in_any_order():
    left = forest().fit(ROWS).delete_rows(ROWS[60:][::-1]).delete_rows(ROWS[:30])
    assert_same(left, forest().fit(ROWS[30:60]))


def test_emptied_forest_equals_prior():
    empty = forest().fit(ROWS).delete_rows(ROWS)
    assert empty.n_points_ == 0
    assert not empty.forest_.counts.any()
    known = empty.posterior_
    np.testing.assert_allclose(np.exp(known.outside), 0.5)
    used = np.arange(known.inside.shape[1]) < empty.forest_.size[:, None]
    density = (known.inside - known.inside_volume)[used]
    np.testing.assert_allclose(density, np.log(0.5 / 100))  # uniform over the domain


@pytest.mark.parametrize(
    "unknown", [[[4.9, -4.9]], [[100.0, 0.0]], np.concatenate([ROWS, ROWS[:1]]), [[0.0, 0.0], [4.9, -4.9]]]
)
def test_deleting_uncounted_rows_raises_and_changes_nothing(unknown):
    grown = forest().fit(ROWS)
    before = pickle.dumps(grown)
    with pytest.raises(ValueError, match=r"never counted|not counted that often"):
        grown.delete_rows(unknown)
    assert pickle.dumps(grown) == before


@settings(max_examples=examples(15))
@given(st.lists(st.integers(0, 3), min_size=len(ROWS), max_size=len(ROWS)), st.permutations(range(4)))
def test_merging_parts_in_any_order_equals_one_fit(places, order):
    rows = np.concatenate([ROWS[:-2], [[50.0, 0.0], [0.0, -7.0]]])  # two of them beyond the domain
    parts = [rows[np.array(places) == place] for place in order]
    fitted = [forest().fit(part) for part in parts if len(part)]
    whole = forest().fit(rows)
    added, merged = fitted[0], pickle.loads(pickle.dumps(fitted[0]))
    for part in fitted[1:]:
        before = pickle.dumps(added)
        longer = added + part
        assert pickle.dumps(added) == before
        added = longer
        assert merged.merge(part) is merged
    assert_same(added, whole)
    assert_same(merged, whole)


@pytest.mark.parametrize("is_saved", [False, True])
@pytest.mark.parametrize("contamination", ["auto", 0.02])
def test_merged_forest_is_calibrated_by_rows_of_all_parts(contamination, is_saved, tmp_path):
    rng = np.random.default_rng(1)
    rows = np.concatenate([rng.normal(0.5, 0.1, size=(100, 2)), rng.normal(size=(11_900, 2))])  # parts that differ
    settings = {"n_estimators": 20, "max_depth": 8, "contamination": contamination}
    parts = [forest(**settings).fit(part) for part in (rows[:100], rows[100:2100], rows[2100:])]
    if is_saved:
        for i, part in enumerate(parts):
            part.save(tmp_path / f"{i}.mpf")
        parts = [BatchMPF.load(tmp_path / f"{i}.mpf") for i in range(3)]
    merged, whole = parts[0] + parts[1] + parts[2], forest(**settings).fit(rows)
    assert_same(merged, whole)
    flagged, expected = ((one.predict(rows) == -1).sum() for one in (merged, whole))
    assert 0.7 * expected <= flagged <= 1.4 * expected
    assert np.abs(merged.p_value(rows) - whole.p_value(rows)).max() < 0.06
    np.testing.assert_allclose(merged._model.quantiles[5:-5], whole._model.quantiles[5:-5], atol=0.3)
    for level in (0.05, 0.2):
        assert (merged.p_value(rng.normal(size=(4000, 2))) <= level).mean() < 1.4 * level


def test_merged_forest_keeps_threshold_without_rows_of_all_parts():
    one, other = forest().fit(ROWS[:50]), forest().fit(ROWS[50:])
    other.delete_rows(ROWS[50:51])
    before = one.offset_
    assert one.merge(other).offset_ == before
    with pytest.raises(ValueError, match="no calibration scores"):
        one.p_value(ROWS)


def test_merge_does_not_change_other_forest():
    one, other = forest().fit(ROWS[:50]), forest().fit(ROWS[50:])
    before = pickle.dumps(other)
    one.merge(other)
    one.partial_fit(ROWS)
    assert pickle.dumps(other) == before


@pytest.mark.parametrize(
    ("difference", "message"),
    [
        ({"random_state": 1}, "random_state"),
        ({"domain": [[-5.0, -5.0], [5.0, 6.0]]}, "different domains"),
        ({"domain": "data"}, "rows beyond"),
        ({"n_estimators": 6}, "n_estimators"),
        ({"max_depth": 4}, "max_depth"),
        ({"prior_strength": 0.5}, "prior_strength"),
        ({"lifetime": 2.0}, "lifetime"),
        ({"score_type": "mass"}, "score"),
        ({"feature_weights": [1.0, 2.0]}, "feature_weights"),
    ],
)
def test_merge_rejects_different_forests(difference, message):
    one, other = forest().fit(ROWS), forest(**difference).fit(ROWS)
    before = pickle.dumps(one)
    for merge in (one.merge, one.__add__):
        with pytest.raises(ValueError, match=message):
            merge(other)
    assert pickle.dumps(one) == before


def test_merge_rejects_different_columns():
    names = [["a", "b"], ["b", "a"]]
    one, other = (forest().fit(pd.DataFrame(ROWS, columns=columns)) for columns in names)
    with pytest.raises(ValueError, match="different columns"):
        one.merge(other)
    with pytest.raises(ValueError, match="different columns"):
        one.merge(forest().fit(ROWS))
    wider = forest(domain=[[-5.0] * 3, [5.0] * 3]).fit(np.ones((4, 3)))
    with pytest.raises(ValueError, match="different columns"):
        forest().fit(ROWS).merge(wider)


@pytest.mark.parametrize("other", [3, None, StreamingMPF(n_estimators=2)])
def test_merge_rejects_other_types(other):
    grown = forest().fit(ROWS)
    with pytest.raises(TypeError, match="BatchMPF"):
        grown.merge(other)
    with pytest.raises(TypeError, match="unsupported operand"):
        grown + other


def test_rows_beyond_the_domain_count_as_outside():
    grown = forest().fit(ROWS)
    beyond = np.array([[6.0, 0.0], [0.0, -1e9], [5.0, 5.0]])  # the last is on the edge, so within
    mass_before = grown.mass([[7.0, 7.0]])
    grown.partial_fit(beyond)
    np.testing.assert_array_equal(grown.forest_.outside, 2)
    np.testing.assert_array_equal(grown.forest_.counts[:, 0], len(ROWS) + 1)
    assert grown.n_points_ == len(ROWS) + 3
    share = (0.5 * 0.001 + 2) / (0.001 + len(ROWS) + 3)
    np.testing.assert_allclose(np.exp(grown.posterior_.outside), share)
    assert grown.mass([[7.0, 7.0]]) > mass_before
    assert_same(grown.delete_rows(beyond), forest().fit(ROWS))


def test_domain_remains_box_of_first_rows():
    grown = forest(domain=None).fit(ROWS)
    box = np.stack([ROWS.min(axis=0), ROWS.max(axis=0)])
    np.testing.assert_array_equal(grown.forest_.domain, box)
    grown.partial_fit(ROWS * 100)
    np.testing.assert_array_equal(grown.forest_.domain, box)
    assert (grown.forest_.outside > 0).all()


def test_closed_domain_rejects_rows_outside_and_changes_nothing():
    grown = forest(domain="data").fit(ROWS)
    before = pickle.dumps(grown)
    with pytest.raises(ValueError, match=r"row 1, column 0 is 99, outside the domain"):
        grown.partial_fit([[0.0, 0.0], [99.0, 0.0]])
    assert pickle.dumps(grown) == before


def test_unlimited_process_is_rejected():
    with pytest.raises(ValueError, match="max_depth and lifetime"):
        forest(max_depth=None).fit(ROWS)


def test_lifetime_alone_limits_process():
    grown = forest(max_depth=None, lifetime=3.0).fit(ROWS)
    is_cut = grown.forest_.left > 0
    assert is_cut.any()
    assert (grown.forest_.time[is_cut] < 3.0).all()
    assert_same(grown.partial_fit(ROWS).delete_rows(ROWS), forest(max_depth=None, lifetime=3.0).fit(ROWS))


def test_counts_of_children_add_up_to_their_parents():
    grown = forest().fit(ROWS).partial_fit(ROWS[:30]).delete_rows(ROWS[10:20]).forest_
    trees, parents = np.nonzero(grown.left > 0)
    below = grown.counts[trees, grown.left[trees, parents]] + grown.counts[trees, grown.right[trees, parents]]
    np.testing.assert_array_equal(below, grown.counts[trees, parents])
    assert (grown.counts[:, 0] == 110).all()


def test_row_on_cut_goes_left_when_counted_and_scored():
    cut_at = forest(n_estimators=1).fit(ROWS).forest_
    row = np.array([[0.0, 0.0]])
    row[0, cut_at.feature[0, 0]] = cut_at.cut[0, 0]
    grown = forest(n_estimators=1).fit(row)
    assert grown.forest_.counts[0, grown.forest_.left[0, 0]] == 1
    leaves = grown.leaves(row)
    assert leaves.kind[0, 0] == LeafKind.OBSERVED_II
    node = leaves.node[0, 0]
    while grown.forest_.parent[0, node] != 0:
        node = grown.forest_.parent[0, node]
        assert node != NONE
    assert node == grown.forest_.left[0, 0]


def test_partial_fit_keeps_prior_of_fit():
    forest, twin = (BatchMPF(n_estimators=4, random_state=0).fit(np.eye(3)) for _ in range(2))
    forest.set_params(tree=Tree(prior_strength=5.0, domain="data")).partial_fit(2 * np.eye(3))
    twin.partial_fit(2 * np.eye(3))
    np.testing.assert_array_equal(forest.mass(3 * np.eye(3)), twin.mass(3 * np.eye(3)))


def test_deleting_uncounted_row_names_it():
    forest = BatchMPF(n_estimators=10, tree=Tree(domain=[[0, 0], [9, 9]]), random_state=0).fit([[1.0, 1.0], [1.0, 1.1]])
    with pytest.raises(ValueError, match="row 1 was never counted"):
        forest.delete_rows([[1.0, 1.0], [8.0, 8.0]])
    with pytest.raises(ValueError, match="not counted that often"):
        forest.delete_rows([[1.0, 1.0]] * 3)
