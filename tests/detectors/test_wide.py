"""Trees of wide tables cut some of the features, chosen when a tree is born; all laws hold along these."""

import numpy as np
import pytest
from laws import ALARM, cells
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import chisquare, norm
from streams import assert_whole

from polyaforest import BatchMPF, StreamingMPF, Tree
from polyaforest.detectors import loads
from polyaforest.forest import score
from polyaforest.kernels.cuts import draw_weights
from polyaforest.kernels.rng import seed_states
from polyaforest.model.parameters import WIDE

pytestmark = pytest.mark.statistical

N_FEATURES = WIDE + 64
MOST = 64 + N_FEATURES // 16
ROWS = np.random.default_rng(0).normal(size=(400, N_FEATURES))


def build(n_estimators=8, **parameters):
    return StreamingMPF(n_estimators=n_estimators, random_state=0, **parameters)


def n_cut(forest):
    return (forest.forest_.weights > 0).sum(axis=1)


@pytest.mark.plain
def test_weights_are_drawn_for_a_uniform_choice_of_features():
    n, most, n_trees = 12, 4, 500
    spread, deviation, chosen = np.full(n, 2.0), np.append(np.ones(n - 2), [0.0, 0.0]), np.empty((n_trees, n))
    for weights, state in zip(chosen, seed_states(np.random.SeedSequence(1), n_trees), strict=True):
        draw_weights(state, spread, deviation, most, weights)
    is_chosen = chosen > 0
    assert (is_chosen[:, :-2].sum(axis=1) == most).all()
    assert_allclose((chosen * deviation).sum(axis=1), 1.0)
    assert chisquare(is_chosen[:, :-2].sum(axis=0)).pvalue > ALARM
    n_constant = is_chosen[:, -2:].sum()
    share = most / (n - 2)
    assert abs(n_constant - 2 * n_trees * share) < norm.isf(ALARM / 2) * np.sqrt(2 * n_trees * share * (1 - share))


@pytest.mark.parametrize("n_features", [3, WIDE])
def test_narrow_tables_keep_their_results(n_features):
    rows = ROWS[:100, :n_features].copy()
    default, all_cut = build().fit(rows), build(tree=Tree(max_features=None)).fit(rows)
    assert_array_equal(default.forest_.weights, all_cut.forest_.weights)
    assert_array_equal(default.score_samples(rows), all_cut.score_samples(rows))
    assert (n_cut(default) == n_features).all()


def test_trees_of_a_wide_table_cut_some_features():
    assert (n_cut(build().fit(ROWS)) == MOST).all()
    assert (n_cut(build().partial_fit(ROWS)) == MOST).all()
    assert (n_cut(build(tree=Tree(max_features=None)).fit(ROWS)) == N_FEATURES).all()
    assert (n_cut(build(tree=Tree(max_features=5)).fit(ROWS[:, :9].copy())) == 5).all()
    assert (n_cut(BatchMPF(n_estimators=3, random_state=0).fit(ROWS)) == N_FEATURES).all()
    assert (n_cut(BatchMPF(n_estimators=3, tree=Tree(max_features=5), random_state=0).fit(ROWS)) == 5).all()


def test_points_share_cells_by_their_distance_along_the_features_cut():
    rows = ROWS[:60, :6].copy()
    forest = build(n_estimators=3000, window=12, max_samples=None, tree=Tree(max_features=2)).partial_fit(rows[:30])
    forest.rebuild().partial_fit(rows[30:]).delete([50, 55])
    held, trees = forest.points_, forest.forest_
    assert (n_cut(forest) == 2).all()
    for time in (0.3, 1.0):
        nodes = cells(trees, held, time)
        for a, b in ((0, 1), (2, 7), (4, 9)):
            chance = np.exp(-time * trees.weights @ np.abs(held[a] - held[b]))
            n_shared, spread = (nodes[:, a] == nodes[:, b]).sum(), np.sqrt((chance * (1 - chance)).sum())
            assert abs(n_shared - chance.sum()) < norm.isf(ALARM / 12) * spread


def test_scores_of_a_table_equal_those_of_a_stream():
    forest = build().partial_fit(ROWS[:300])
    for row in ROWS[300:320]:
        before = forest.score_samples(row[None])
        assert_allclose(forest.score_then_learn(row[None]), before, rtol=1e-10)
    forest.delete([290, 300])
    assert_whole(forest)


@pytest.mark.parametrize("kind", [StreamingMPF, BatchMPF])
def test_scores_skip_the_features_that_are_not_cut(kind):
    forest = kind(n_estimators=8, score_type="typicality", tree=Tree(max_features=7), random_state=0).fit(ROWS[:200])
    known = forest.posterior_
    each = score._log_cells(forest.forest_, known, ROWS[:50], forest.lifetimes_)
    assert_allclose(forest.score_samples(ROWS[:50]), each.mean(axis=(0, 1)), rtol=1e-10)
    many = forest.score_samples(np.tile(ROWS[:50], (20, 1)))
    assert_array_equal(many, np.tile(forest.score_samples(ROWS[:50]), 20))


def test_attributions_add_up_over_all_features():
    forest = build().fit(ROWS)
    explained = forest.explain(ROWS[:5])
    assert explained.low.shape == (5, N_FEATURES)
    assert_allclose(explained.surprise, -forest.score_samples(ROWS[:5]) / np.log(2))


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("tree", [None, Tree(max_features=9)])
def test_choice_is_saved(tree, compact, tmp_path):
    forest = build(tree=tree).partial_fit(ROWS[:300])
    if compact:
        loaded = loads(forest.to_bytes())
    else:
        forest.save(tmp_path / "model.mpf")
        loaded = StreamingMPF.load(tmp_path / "model.mpf")
    assert loaded.get_params()["tree__max_features" if tree else "tree"] == (9 if tree else None)
    for each in (forest, loaded):
        each.partial_fit(ROWS[300:320]).rebuild()
    assert_array_equal(loaded.forest_.weights, forest.forest_.weights)
    assert (n_cut(loaded) == (9 if tree else MOST)).all()


def test_files_without_a_choice_cut_all_features():
    forest = build(tree=Tree(max_features=None)).partial_fit(ROWS[:300])
    assert (n_cut(loads(forest.to_bytes()).rebuild()) == N_FEATURES).all()


@pytest.mark.parametrize("most", [0, 2.5, "many"])
def test_rejects_invalid_number_of_features(most):
    with pytest.raises(ValueError, match="'max_features' parameter of Tree must be"):
        build(tree=Tree(max_features=most)).fit(ROWS)
