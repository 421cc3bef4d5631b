"""PIDForest: its histograms against all histograms there are, its cubes and counts, and what it finds."""

from __future__ import annotations

from itertools import combinations

import numba
import numpy as np
import pytest
from effort import FULL, PROFILE
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from benchmarks.baselines.pidforest import (
    LEAF,
    PIDForest,
    best_cuts,
    best_histogram,
    count_rows,
    distinct,
    draw_cuts,
    grow,
    leaves,
    measure,
    midpoints,
    root_cube,
)

pytestmark = [
    pytest.mark.plain,
    pytest.mark.skipif(
        PROFILE != FULL and not numba.config.DISABLE_JIT,
        reason="slow to compile: every run has it in plain Python",
    ),
]


def squared_error(values: np.ndarray, weights: np.ndarray, borders: tuple[int, ...]) -> float:
    """The weighted squared error of the histogram whose buckets begin at 0 and at `borders`."""
    buckets = zip(np.split(values, borders), np.split(weights, borders), strict=True)
    return sum(float((w * (v - np.average(v, weights=w)) ** 2).sum()) for v, w in buckets)


def least_error(values: np.ndarray, weights: np.ndarray, max_buckets: int) -> float:
    """The least error of any histogram, by trying all."""
    places = range(1, values.size)
    choices = (borders for k in range(min(max_buckets, values.size)) for borders in combinations(places, k))
    return min(squared_error(values, weights, borders) for borders in choices)


def tree_of(rows: np.ndarray, *, max_depth: int = 10, max_buckets: int = 3, seed: int = 0):
    """A tree grown on all of the rows, and its root cube."""
    lower, upper = root_cube(rows)
    uniforms = np.random.default_rng(seed).random(2 * len(rows))
    return grow(rows, lower, upper, uniforms, max_depth, max_buckets), lower, upper


sparsities = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 5)), min_size=1, max_size=8)


@given(sparsities, st.integers(1, 5))
def test_no_histogram_is_better(pairs, max_buckets):
    values, weights = np.array(pairs, float).T.copy()
    borders, explained = best_histogram(values, weights, max_buckets)
    error, least = squared_error(values, weights, tuple(borders)), least_error(values, weights, max_buckets)
    whole = squared_error(values, weights, ())
    assert len(borders) < max_buckets
    assert sorted(set(borders) - {0, values.size}) == list(borders)
    assert error == pytest.approx(least, abs=1e-9)
    assert explained == pytest.approx(1 - least / whole if whole > 1e-9 else 0.0)


@given(sparsities, st.integers(2, 5))
def test_no_bucket_is_wasted(pairs, max_buckets):
    values, weights = np.array(pairs, float).T.copy()
    borders, _ = best_histogram(values, weights, max_buckets)
    if len(borders):
        assert least_error(values, weights, len(borders)) > squared_error(values, weights, tuple(borders)) + 1e-9


def test_a_histogram_worked_by_hand():
    values, weights = np.array([1.0, 1.0, 5.0, 9.0, 9.0]), np.array([1.0, 2.0, 1.0, 2.0, 1.0])
    borders, explained = best_histogram(values, weights, 3)
    assert borders.tolist() == [2, 3]
    assert explained == 1.0
    # with two buckets the 5 joins either side, at a cost of 12 of the 96 there are: 3/4 · (9 − 5)²
    assert best_histogram(values, weights, 2)[1] == pytest.approx(1 - 12 / 96)


def test_weights_decide_where_a_value_belongs():
    values = np.array([0.0, 4.0, 10.0])
    assert best_histogram(values, np.array([1.0, 1.0, 1.0]), 2)[0].tolist() == [2]
    assert best_histogram(values, np.array([9.0, 9.0, 1.0]), 2)[0].tolist() == [1]


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_histograms_are_exact_far_from_zero(offset):
    borders, explained = best_histogram(offset + np.array([0.0, 0.0, 1.0, 1.0, 3.0]), np.ones(5), 3)
    assert borders.tolist() == [2, 4]
    assert explained == pytest.approx(1.0)


def test_even_gaps_explain_nothing():
    even = 0.1 * np.arange(10)
    cuts, explained = best_cuts(even, -0.05, 0.95, 3)
    assert cuts.size == 0
    assert explained == 0.0


def test_cuts_lie_midway_between_the_values_beside_a_border():
    # gaps end at 0.5, 1.5, 2.5, 7, 11.5, 12.5, 13.5: sparse are the values 3 and 11 beside the hole
    cuts, explained = best_cuts(np.array([13.0, 3.0, 1.0, 2.0, 11.0, 12.0]), 0.5, 13.5, 3)
    assert cuts.tolist() == [2.5, 11.5]
    assert explained == pytest.approx(1.0)


def test_sparsity_is_the_gap_per_point():
    # four points share a gap of 4 on either side
    cuts, _ = best_cuts(np.array([1.0, 1.0, 1.0, 1.0, 5.0, 5.0, 5.0, 5.0]), -1.0, 7.0, 3)
    assert cuts.size == 0
    # as wide a gap for a single point is four times as sparse
    cuts, explained = best_cuts(np.array([1.0, 1.0, 1.0, 1.0, 5.0]), -1.0, 7.0, 3)
    assert cuts.tolist() == [3.0]
    assert explained == 1.0


@given(st.lists(st.integers(-5, 5).map(float), min_size=1, max_size=30))
def test_distinct_equals_numpy_unique(values):
    points, counts = distinct(np.array(values))
    expected, expected_counts = np.unique(values, return_counts=True)
    np.testing.assert_array_equal(points, expected)
    np.testing.assert_array_equal(counts, expected_counts)


@given(st.floats(-1e9, 1e9), st.integers(1, 20))
def test_a_midpoint_keeps_neighbours_apart(point, steps):
    above = point
    for _ in range(steps):
        above = np.nextafter(above, np.inf)
    (middle,) = midpoints(np.array([point, above]))
    assert point <= middle < above


def test_the_root_cube_extends_half_a_gap_beyond_the_data():
    rows = np.array([[1.0, 5.0], [1.0, 5.0], [3.0, 4.0], [10.0, 4.0]])
    lower, upper = root_cube(rows)
    np.testing.assert_array_equal(lower, [(3 * 1 - 3) / 2, (3 * 4 - 5) / 2])
    np.testing.assert_array_equal(upper, [(3 * 10 - 3) / 2, (3 * 5 - 4) / 2])


@pytest.mark.parametrize("neighbour", [np.nextafter(1.5, 0.0), np.nextafter(1.5, 2.0)])
def test_the_root_cube_has_room_around_the_smallest_gap(neighbour):
    rows = np.array([[1.5], [neighbour]])  # half of their gap, beyond 1.5, is rounded to 1.5
    lower, upper = root_cube(rows)
    assert lower[0] < rows.min()
    assert upper[0] > rows.max()


def test_a_tree_worked_by_hand():
    rows = np.array([[1.0], [2.0], [3.0], [11.0], [12.0], [13.0]])
    tree, _, _ = tree_of(rows)
    assert tree.cuts[0].tolist() == [2.5, 11.5]
    np.testing.assert_allclose(np.exp(tree.log_volume[:4]), [13.0, 2.0, 9.0, 2.0])
    assert tree.axis[1] == tree.axis[2] == tree.axis[3] == LEAF, "gaps are even everywhere now"
    measure(tree, np.array([[0.9], [5.0], [6.0], [2.5]]))
    np.testing.assert_allclose(np.exp(tree.log_density), [4 / 13, 2 / 2, 2 / 9, 1.0])


@pytest.mark.parametrize("max_buckets", [2, 3, 5])
@pytest.mark.parametrize("max_depth", [0, 1, 4, 10])
def test_children_divide_the_volume_and_rows_of_their_parent(max_depth, max_buckets):
    rows = np.random.default_rng(3).normal(size=(60, 3)).round(1)
    tree, _, _ = tree_of(rows, max_depth=max_depth, max_buckets=max_buckets)
    counts, volumes, depth = count_rows(tree, rows), np.exp(tree.log_volume), np.zeros(tree.axis.size)
    for node in np.flatnonzero(tree.axis != LEAF):
        n_children = 1 + np.isfinite(tree.cuts[node]).sum()
        children = slice(tree.first_child[node], tree.first_child[node] + n_children)
        assert 2 <= n_children <= max_buckets
        assert counts[children].sum() == counts[node]
        assert (counts[children] > 0).all()
        assert volumes[children].sum() == pytest.approx(volumes[node])
        depth[children] = depth[node] + 1
    assert depth.max() <= max_depth
    assert counts[0] == len(rows)


def test_rows_on_a_cut_are_separated_from_those_above():
    above = np.nextafter(1.0, 2.0)
    rows = np.array([[1.0], [above], [3.0], [3.5], [4.0]])
    tree, _, _ = tree_of(rows, max_buckets=2)
    assert 1.0 in tree.cuts, "there is no number between the first two rows"
    assert (count_rows(tree, rows) > 0).all()
    assert np.isfinite(tree.log_volume).all()


def test_the_leaf_of_a_row_is_where_it_was_counted():
    rows = np.random.default_rng(4).normal(size=(80, 2))
    tree, _, _ = tree_of(rows[:40])
    found, counts = leaves(tree, rows), count_rows(tree, rows)
    assert (tree.axis[found] == LEAF).all()
    is_leaf = tree.axis == LEAF
    np.testing.assert_array_equal(np.bincount(found, minlength=tree.axis.size)[is_leaf], counts[is_leaf])


def test_a_node_that_no_row_reaches_becomes_a_leaf():
    rows = np.random.default_rng(5).normal(size=(50, 2))
    tree, _, _ = tree_of(rows)
    counts = count_rows(tree, rows[:1])
    assert (tree.axis[counts == 0] != LEAF).any(), "a node with children is not reached"
    measure(tree, rows[:1])
    assert (tree.axis[counts == 0] == LEAF).all()
    assert (tree.log_density[counts == 0] == 0.0).all()
    np.testing.assert_allclose(tree.log_density[counts == 1], -tree.log_volume[counts == 1])


def test_features_are_drawn_in_proportion_to_what_they_explain():
    evenly, unevenly = np.arange(8.0), np.array([0.0, 1.0, 2.0, 3.0, 10.0, 11.0, 12.0, 13.0])
    rows = np.column_stack([evenly, unevenly, evenly, unevenly[::-1]])
    roots = [tree_of(rows, seed=seed)[0].axis[0] for seed in range(400)]
    shares = np.bincount(roots, minlength=4) / len(roots)
    assert shares[0] == shares[2] == 0.0
    assert shares[1] == pytest.approx(0.5, abs=0.1)  # 4 standard deviations


def test_a_feature_that_explains_nothing_is_not_drawn_even_by_zero():
    rows = np.column_stack([np.arange(4.0), [0.0, 1.0, 2.0, 9.0]])
    axis, cuts = draw_cuts(rows, *root_cube(rows), 0.0, 2)
    assert axis == 1
    assert cuts.tolist() == [1.5]


@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (5, 2), (300, 2)])
def test_constant_data_have_one_score(shape):
    scores = PIDForest(n_trees=3, random_state=0).fit(np.ones(shape)).score_samples(np.ones(shape))
    assert len(set(scores)) == 1
    assert np.isfinite(scores).all()


@pytest.mark.slow
def test_constant_columns_change_nothing():
    rows = np.random.default_rng(0).normal(size=(150, 3))
    padded = np.insert(rows, 1, 7.0, axis=1)
    plain = PIDForest(n_trees=5, random_state=1).fit(rows).score_samples(rows)
    np.testing.assert_array_equal(PIDForest(n_trees=5, random_state=1).fit(padded).score_samples(padded), plain)


def test_duplicates_score_as_dense():
    rng = np.random.default_rng(0)
    rows = np.concatenate([np.tile([[3.0, 3.0]], (150, 1)), rng.uniform(0, 10, size=(150, 2))])
    scores = PIDForest(n_trees=15, random_state=0).fit(rows).score_samples(rows)
    assert np.ptp(scores[:150]) == 0.0
    assert scores[0] > np.quantile(scores[150:], 0.9)


@pytest.mark.parametrize("n_rows", [2, 3, 30, 99])
def test_few_rows_are_enough(n_rows):
    rows = np.random.default_rng(0).normal(size=(n_rows, 4))
    scores = PIDForest(n_trees=4, random_state=0).fit(rows).score_samples(rows)
    assert scores.shape == (n_rows,)
    assert np.isfinite(scores).all()


@pytest.mark.slow
def test_the_seed_determines_the_scores():
    rows = np.random.default_rng(0).normal(size=(200, 3))
    first, again, other = (PIDForest(n_trees=5, random_state=s).fit(rows).score_samples(rows) for s in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_scores_do_not_depend_on_chunks(monkeypatch):
    rows = np.random.default_rng(0).normal(size=(200, 3))
    forest = PIDForest(n_trees=5, random_state=0).fit(rows)
    whole = forest.score_samples(rows)
    monkeypatch.setattr("benchmarks.baselines.pidforest.ROWS_PER_CHUNK", 7)
    np.testing.assert_array_equal(forest.score_samples(rows), whole)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_planted_outliers_score_lowest(seed):
    rng = np.random.default_rng(seed)
    rows = np.concatenate([rng.normal(size=(400, 4)), rng.uniform(-12, 12, size=(10, 4))])
    scores = PIDForest(n_trees=15, random_state=seed).fit(rows).score_samples(rows)
    assert roc_auc_score(np.arange(410) >= 400, -scores) > 0.95
