"""Random cut forests on a whole table: which rows each tree holds, how duplicates count, and what is found."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from benchmarks.baselines.rrcf_batch import TookTooLong, codisplacements, disjoint_trees, krcf_scores, rrcf_scores


@pytest.fixture
def rrcf():
    return pytest.importorskip("rrcf")


@pytest.fixture
def krcf():
    return pytest.importorskip("krcf")


@pytest.fixture
def rng() -> np.random.RandomState:
    return np.random.RandomState(0)


def with_outliers(seed: int, n_rows: int = 300, n_features: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Gaussian rows, of which the last ten are far out, and their labels."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n_rows, n_features))
    rows[-10:] += 8.0 * rng.choice([-1.0, 1.0], size=(10, n_features))
    return rows, np.arange(n_rows) >= n_rows - 10


@given(st.integers(1, 40), st.integers(1, 30), st.integers(1, 40))
def test_rounds_are_disjoint_and_full(n_rows, n_trees, tree_size):
    tree_size = min(tree_size, n_rows)
    trees = list(disjoint_trees(n_rows, n_trees, tree_size, np.random.RandomState(0)))
    per_round = n_rows // tree_size
    assert len(trees) % per_round == 0
    assert n_trees <= len(trees) < n_trees + per_round
    assert all(len(tree) == tree_size for tree in trees)
    for start in range(0, len(trees), per_round):
        held = np.concatenate(trees[start : start + per_round])
        assert len(set(held)) == len(held) > n_rows - tree_size


def test_orders_differ_between_rounds(rng):
    first, second = disjoint_trees(20, 2, 20, rng)
    assert first.tolist() != second.tolist()


def test_codisplacements_worked_by_hand(rrcf, rng):
    # the only cut there can be parts three equal rows from one: removing a side displaces the other
    np.testing.assert_allclose(codisplacements(np.array([[0.0], [9.0], [0.0], [0.0]]), rng), [1 / 3, 3, 1 / 3, 1 / 3])


def test_duplicates_share_a_score(rrcf, rng):
    rows = np.concatenate([np.tile([[1.0, 2.0]], (20, 1)), np.random.default_rng(0).normal(size=(20, 2))])
    scores = codisplacements(rows, rng)
    assert len(set(scores[:20])) == 1
    assert scores[0] < scores[20:].min()


@pytest.mark.parametrize("rows", [np.ones((5, 2)), np.array([[1.0], [1.0 + 1e-12]]), np.zeros((1, 3))])
def test_equal_rows_displace_nothing(rows, rng):
    np.testing.assert_array_equal(codisplacements(rows, rng), 0.0)


def test_a_score_is_the_mean_over_the_trees_that_hold_a_row(rrcf):
    # in a tree of two rows codisplacement is 1 where they differ and 0 where they are equal
    scores = rrcf_scores(np.array([[0.0], [0.0], [0.0], [1.0]]), n_trees=60, tree_size=2)
    assert scores[3] == 1.0
    assert scores[:3].sum() == pytest.approx(1.0), "one of the equal rows meets the other in each round"
    assert (scores[:3] > 0).all()
    # here a row is left out of each round, which does not count for it
    assert rrcf_scores(np.array([[0.0], [0.0], [0.0], [0.0], [1.0]]), n_trees=60, tree_size=2)[4] == 1.0


def test_rows_that_no_tree_holds_are_scored_as_well(rrcf):
    X, is_outlier = with_outliers(0, n_rows=299)
    scores = rrcf_scores(X, n_trees=2, tree_size=100, seed=0)  # one round, which leaves out 99 rows
    assert (scores > 0).all()
    assert roc_auc_score(is_outlier, scores) > 0.95


@pytest.mark.parametrize("n_rows", [1, 2, 20])
def test_a_small_table_makes_a_small_tree(rrcf, n_rows):
    scores = rrcf_scores(np.random.default_rng(0).normal(size=(n_rows, 2)), n_trees=3)
    assert scores.shape == (n_rows,)
    assert np.isfinite(scores).all()


def test_a_missed_deadline_raises(rrcf):
    with pytest.raises(TookTooLong, match=r"0 of 500 trees after 0\.0 seconds"):
        rrcf_scores(with_outliers(0)[0], deadline=0.0)
    with pytest.raises(TimeoutError):
        rrcf_scores(with_outliers(0)[0], deadline=0.0)


def test_a_far_deadline_changes_nothing(rrcf):
    X, _ = with_outliers(1)
    np.testing.assert_array_equal(rrcf_scores(X, n_trees=3, deadline=3600.0), rrcf_scores(X, n_trees=3))


def test_the_seed_determines_the_scores_of_rrcf(rrcf):
    X, _ = with_outliers(2)
    first, again, other = (rrcf_scores(X, n_trees=3, tree_size=64, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_the_seed_determines_the_scores_of_krcf(krcf):
    X, _ = with_outliers(2)
    first, again, other = (krcf_scores(X, n_trees=3, tree_size=64, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_rrcf_finds_planted_outliers(rrcf):
    X, is_outlier = with_outliers(3)
    assert roc_auc_score(is_outlier, rrcf_scores(X, n_trees=20, tree_size=128)) > 0.95


@pytest.mark.parametrize("n_rows", [30, 300, 3000])
def test_krcf_finds_planted_outliers(krcf, n_rows):
    X, is_outlier = with_outliers(3, n_rows)
    X = X if n_rows > 30 else X[::-1]  # outliers first: their place in the table does not matter
    is_outlier = is_outlier if n_rows > 30 else is_outlier[::-1]
    scores = krcf_scores(X)
    assert len(np.unique(scores)) > 10
    assert roc_auc_score(is_outlier, scores) > 0.9
