"""What both detectors promise of every public method."""

import pickle
from itertools import pairwise

import numpy as np
import pandas as pd
import polars as pl
import pytest
from effort import examples
from forests import made, some_trees, with_trees
from hypothesis import given, settings
from hypothesis import strategies as st
from readers import READERS
from sklearn.base import clone

from polyaforest import BatchMPF, EpsilonPhi, LeafKind, StreamingMPF, Tree
from polyaforest.forest.score_types import epsilon_levels
from polyaforest.kernels.arrays import NONE

ESTIMATORS = [StreamingMPF, BatchMPF]
SCORES = ["typicality", "multiscale", "mass", "log_mass"]
N_TREES = 5
ROWS = np.random.default_rng(0).normal([3.0, -1.0], [1.0, 20.0], size=(80, 2))
NEAR_AND_FAR = np.concatenate([ROWS[:20], ROWS[20:40] * 1.5, ROWS[:8] * 50.0])


@pytest.fixture(params=ESTIMATORS)
def estimator(request):
    return request.param


def build(estimator, **parameters):
    """A forest small enough to be grown without a compiler."""
    shallow = {"max_depth": 5} if estimator is BatchMPF else {}
    return made(estimator, **{"n_estimators": N_TREES, "random_state": 0} | shallow | parameters)


def everything(forest, X):
    """What every method says of `X`, as bytes."""
    answers = [getattr(forest, name)(X, **arguments) for name, arguments in READERS.items()]
    return [np.asarray(answer).tobytes() for answer in [*answers, forest.mass(X, [0.5, 2.0])]]


def depths(forest):
    """Depth of every node, (T, C); -1 in slots not in use."""
    depth = np.full(forest.left.shape, -1)
    for t, size in enumerate(forest.size):
        for j in range(size):
            depth[t, j] = 0 if forest.parent[t, j] == NONE else depth[t, forest.parent[t, j]] + 1
    return depth


# ---- scores and verdicts --------------------------------------------------------------------------------------------


def test_mass_is_mean_of_tree_masses(estimator):
    forest = build(estimator).fit(ROWS)
    masses = forest.tree_masses(NEAR_AND_FAR)
    assert masses.shape == (len(NEAR_AND_FAR), N_TREES)
    assert ((masses > 0) & (masses <= 1)).all()
    np.testing.assert_allclose(forest.mass(NEAR_AND_FAR), masses.mean(axis=1), rtol=1e-14)


def test_score_samples_follows_score_type(estimator):
    scores = {score: build(estimator, score_type=score).fit(ROWS) for score in SCORES}
    X = NEAR_AND_FAR
    np.testing.assert_array_equal(scores["mass"].score_samples(X), scores["mass"].mass(X))
    log_mass = np.log(scores["mass"].tree_masses(X)).mean(axis=1)
    np.testing.assert_allclose(scores["log_mass"].score_samples(X), log_mass, rtol=1e-12)
    forest = scores["multiscale"]
    near = X[:40]  # far away, masses at late times are below the smallest float
    multiscale = np.log(forest.mass(near, forest.lifetimes_)).mean(axis=1)
    np.testing.assert_allclose(forest.score_samples(near), multiscale, rtol=1e-12)


def test_typicality_averages_logarithms_over_trees_and_lifetimes():
    forest = build(StreamingMPF, score_type="typicality").fit(ROWS)
    alone = build(StreamingMPF, score_type="multiscale", n_estimators=1, max_samples=8).fit(ROWS)
    logs = []
    for t in range(N_TREES):  # with one tree, the log of the mean mass is the mean of the log
        alone = with_trees(alone, some_trees(forest.forest_, [t]), forest.lifetimes_)
        logs.append(alone.score_samples(NEAR_AND_FAR))
    np.testing.assert_allclose(forest.score_samples(NEAR_AND_FAR), np.mean(logs, axis=0), rtol=1e-12)


def test_tables_and_streams_use_same_lifetimes():
    for window in ("auto", len(ROWS)):
        forest = build(StreamingMPF, window=window).fit(ROWS)
        np.testing.assert_allclose(forest.lifetimes_[[0, -1]], [0.25, 16])


@pytest.mark.parametrize(("n_rows", "sizes"), [(80, [8, 16, 32, 40, 8]), (20, [8, 10, 10, 10, 8]), (1, [1] * 5)])
def test_trees_sample_several_sizes_up_to_half_of_table(n_rows, sizes):
    forest = build(StreamingMPF).fit(ROWS[:n_rows])
    assert forest.forest_.counts[np.arange(N_TREES), forest.forest_.root].tolist() == sizes
    assert forest.n_points_ == n_rows


@pytest.mark.parametrize("score", SCORES)
def test_decisions_and_predictions_follow_from_scores_and_offset(estimator, score):
    forest = build(estimator, score_type=score, contamination=0.1).fit(ROWS)
    scores = forest.score_samples(NEAR_AND_FAR)
    np.testing.assert_array_equal(forest.decision_function(NEAR_AND_FAR), scores - forest.offset_)
    predicted = forest.predict(NEAR_AND_FAR)
    np.testing.assert_array_equal(predicted, np.where(scores < forest.offset_, -1, 1))
    assert set(predicted) == {-1, 1}
    np.testing.assert_array_equal(
        build(estimator, score_type=score, contamination=0.1).fit_predict(ROWS), forest.predict(ROWS)
    )


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("contamination", [0.05, 0.1, 0.5])
def test_contamination_is_share_of_flagged_fitted_rows(estimator, score, contamination):
    forest = build(estimator, score_type=score, contamination=contamination).fit(ROWS)
    assert (forest.predict(ROWS) == -1).sum() == pytest.approx(contamination * len(ROWS), abs=1)


def test_automatic_threshold_flags_planted_rows_and_few_others(estimator):
    planted = np.array([[30.0, -1.0], [3.0, 900.0], [-40.0, -500.0]])
    forest = build(estimator, domain=[[-50, -1000], [50, 1000]]).fit(np.concatenate([ROWS, planted]))
    assert (forest.predict(planted) == -1).all()
    assert (forest.predict(ROWS) == -1).mean() <= 0.1


def test_log_density_is_log_of_mean_mass_over_volume(estimator):
    forest = build(estimator, **({"max_samples": None} if estimator is StreamingMPF else {})).fit(ROWS)
    known, leaves = forest.posterior_, forest.leaves(ROWS)
    trees = np.arange(N_TREES)
    inside = known.inside - known.inside_volume
    assert (leaves.kind != LeafKind.OUTSIDE).any()
    rows = np.flatnonzero((np.isin(leaves.kind, [LeafKind.OBSERVED_I, LeafKind.OBSERVED_II])).all(axis=1))
    assert rows.size
    density = np.exp(inside[trees, leaves.node[rows]]).mean(axis=1)
    np.testing.assert_allclose(forest.log_density(ROWS[rows]), np.log(density), rtol=1e-10)


# ---- masses at a lifetime -------------------------------------------------------------------------------------------


def test_mass_has_column_for_each_lifetime_in_given_order(estimator):
    forest = build(estimator).fit(ROWS)
    times = [2.0, 0.5, 2.0, 0.0, 8.0]
    masses = forest.mass(NEAR_AND_FAR, lifetime=times)
    assert masses.shape == (len(NEAR_AND_FAR), 5)
    for column, time in zip(masses.T, times, strict=True):
        single = forest.mass(NEAR_AND_FAR, lifetime=time)
        assert single.shape == (len(NEAR_AND_FAR),)
        np.testing.assert_allclose(single, column, rtol=1e-11)
    np.testing.assert_array_equal(forest.mass(NEAR_AND_FAR, np.array(times)), masses)
    assert forest.mass(NEAR_AND_FAR, [2.0]).shape == (len(NEAR_AND_FAR), 1)


def test_mass_at_lifetime_zero_is_that_of_known_world(estimator):
    forest = build(estimator).fit(ROWS)
    outside = np.exp(forest.posterior_.outside)
    np.testing.assert_allclose(forest.mass(ROWS, lifetime=0), 1 - outside.mean(), rtol=1e-12)
    assert outside.max() < 1e-4


def test_mass_of_held_row_decreases_with_lifetime_to_its_leaf(estimator):
    all_rows = {"max_samples": None} if estimator is StreamingMPF else {}
    forest = build(estimator, prior_strength=1e-12, **all_rows).fit(ROWS)
    masses = forest.mass(ROWS, lifetime=[0, 0.1, 0.5, 1, 3, 10, 1e6])
    assert (np.diff(masses, axis=1) <= 1e-12).all()
    assert (masses[:, -1] < masses[:, 0]).all()
    np.testing.assert_allclose(masses[:, -1], forest.mass(ROWS), rtol=1e-6)


def test_mass_at_infinite_lifetime_is_leaf_mass_of_held_rows(estimator):
    all_rows = {"max_samples": None} if estimator is StreamingMPF else {}
    forest = build(estimator, **all_rows).fit(ROWS)
    np.testing.assert_allclose(forest.mass(ROWS, lifetime=np.inf), forest.mass(ROWS), rtol=1e-12)


# ---- (epsilon, phi) --------------------------------------------------------------------------------------------------


@st.composite
def masses_and_phi(draw):
    n_trees = draw(st.integers(1, 120))
    share = st.sampled_from([0.0, 1e-9, 0.1, 0.25, 1.0]) | st.floats(0, 1)
    masses = draw(st.lists(share, min_size=n_trees, max_size=n_trees))
    phi = draw(st.floats(0, 1) | st.integers(0, n_trees).map(lambda k: k / n_trees))
    return np.array([masses]), phi


@settings(max_examples=examples(100))
@given(masses_and_phi())
def test_epsilon_level_is_smallest_epsilon_for_share_phi_of_trees(drawn):
    masses, phi = drawn
    smallest = min(epsilon for epsilon in [0.0, *masses[0]] if np.mean(masses <= epsilon) >= phi)
    level = epsilon_levels(masses.T, phi)
    assert level == [smallest]
    assert EpsilonPhi(smallest, phi).threshold > level
    if smallest > 0:
        assert EpsilonPhi(np.nextafter(smallest, 0), phi).threshold <= level


@pytest.mark.parametrize("n_trees", [10, 100])
def test_share_of_exactly_phi_of_trees_is_enough(n_trees):
    masses = np.linspace(0.001, 0.9, n_trees)[None]
    for k in range(1, n_trees + 1):
        assert epsilon_levels(masses.T, k / n_trees) == masses[0, k - 1], k


@pytest.mark.parametrize("phi", [0.0, 0.3, 0.5, 1.0])
def test_epsilon_phi_counts_trees_with_little_mass(estimator, phi):
    forest = build(estimator, n_estimators=10).fit(ROWS)
    masses = forest.tree_masses(NEAR_AND_FAR)
    for epsilon in (0.0, 0.005, 0.02, 1.0):
        counted = (masses <= epsilon).sum(axis=1) >= phi * 10
        forest.set_params(score_type=EpsilonPhi(epsilon, phi))
        np.testing.assert_array_equal(forest.predict(NEAR_AND_FAR) == -1, counted)


# ---- leaves ----------------------------------------------------------------------------------------------------------


def test_leaves_returns_node_with_mass_of_row(estimator):
    forest = build(estimator).fit(ROWS)
    masses, leaves, known = forest.tree_masses(NEAR_AND_FAR), forest.leaves(NEAR_AND_FAR), forest.posterior_
    assert leaves.node.shape == leaves.kind.shape == masses.shape
    trees = np.arange(N_TREES)
    from_complement = (leaves.kind == LeafKind.COMPLEMENTARY) & (estimator is StreamingMPF)
    expected = np.where(from_complement, known.complement[trees, leaves.node], known.inside[trees, leaves.node])
    is_outside = leaves.kind == LeafKind.OUTSIDE
    np.testing.assert_array_equal(leaves.node == NONE, is_outside)
    np.testing.assert_allclose(masses[~is_outside], np.exp(expected)[~is_outside], rtol=1e-12)
    assert {LeafKind.COMPLEMENTARY, LeafKind.OUTSIDE} < {*np.unique(leaves.kind)}


def test_held_rows_are_in_observed_leaves_and_far_rows_outside():
    forest = build(StreamingMPF, max_samples=None).fit(ROWS)
    held, beyond = forest.leaves(ROWS), forest.leaves(ROWS + 1000)
    assert np.isin(held.kind, [LeafKind.OBSERVED_I, LeafKind.OBSERVED_II]).all()
    assert (held.kind == LeafKind.OBSERVED_I).any()  # a leaf of one row has no volume of its own
    assert (beyond.kind == LeafKind.OUTSIDE).all()
    assert (beyond.node == NONE).all()


def test_leaf_of_full_volume_is_of_second_type():
    forest = build(StreamingMPF, max_samples=None, max_depth=1).fit(ROWS)
    middle = np.median(ROWS, axis=0)[None]
    assert (forest.leaves(middle).kind == LeafKind.OBSERVED_II).all()


def test_empty_corner_is_complementary_leaf():
    diagonal = np.linspace(0, 1, 60)[:, None] * [1.0, 1.0]
    corner = np.array([[0.999, 0.001]])
    tree = build(StreamingMPF, max_samples=None).fit(diagonal)
    assert (tree.leaves(corner).kind == LeafKind.COMPLEMENTARY).all()
    process = build(BatchMPF).fit(diagonal)
    kinds = process.leaves(corner).kind[0]
    counts = process.forest_.counts[np.arange(N_TREES), process.leaves(corner).node[0]]
    np.testing.assert_array_equal(kinds == LeafKind.COMPLEMENTARY, counts == 0)
    assert (counts == 0).any()
    assert (process.leaves(diagonal).kind == LeafKind.OBSERVED_II).all()


# ---- rows outside every box ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("domain", [None, [[-80.0, -80.0], [80.0, 80.0]]])
@pytest.mark.parametrize("score", SCORES)
def test_scores_decrease_strictly_along_rays_away_from_data(estimator, score, domain):
    forest = build(estimator, score_type=score, domain=domain).fit(ROWS)
    angles = np.linspace(0, 2 * np.pi, 9)[:-1]
    distances = np.geomspace(200, 1e12, 15)
    edge_score = forest.score_samples(ROWS).min()
    for direction in np.stack([np.cos(angles), np.sin(angles)], axis=1):
        ray = ROWS.mean(axis=0) + distances[:, None] * direction
        scores, masses = forest.score_samples(ray), forest.mass(ray)
        assert np.isfinite(scores).all()
        assert (np.diff(scores) < 0).all()
        assert scores[0] < edge_score
        assert (np.diff(masses) < 0).all()
        assert (masses > 0).all()
        assert (np.diff(forest.log_density(ray)) < 0).all()
        assert forest.predict(ray[-1:]) == -1


@pytest.mark.parametrize("score", SCORES)
def test_moving_farther_outside_never_increases_score(estimator, score):
    forest = build(estimator, score_type=score).fit(ROWS)
    rng = np.random.default_rng(5)
    low, high = forest.posterior_.world[0].min(axis=0), forest.posterior_.world[1].max(axis=0)
    for _ in range(100):
        row = rng.uniform(low - (high - low), high + (high - low))
        away = np.where(row > high, 1.0, np.where(row < low, -1.0, 0.0)) * rng.exponential(size=2)
        walk = row + np.geomspace(1e-3, 1e6, 12)[:, None] * away * (high - low)
        if away.any():
            assert (np.diff(forest.score_samples(walk)) < 0).all()
            assert (np.diff(forest.mass(walk)) < 0).all()


@pytest.mark.parametrize("score", SCORES)
def test_leaving_box_never_increases_score_above_edge(estimator, score):
    """From the edge outwards in small steps, one tree at a time: no jump upwards."""
    forest = build(estimator, score_type=score, prior_strength=1e-9).fit(ROWS)
    world = forest.posterior_.world[1, :, 0].max()
    steps = world + np.concatenate([[0.0], np.geomspace(1e-6, 1e3, 40)])
    ray = np.stack([steps, np.full_like(steps, np.median(ROWS[:, 1]))], axis=1)
    assert (np.diff(forest.score_samples(ray)) < 0).all()


def test_domain_of_data_has_no_outside(estimator):
    forest = build(estimator, domain="data", score_type="mass").fit(ROWS)
    beyond = ROWS + 1000
    np.testing.assert_array_equal(forest.mass(beyond), 0.0)
    np.testing.assert_array_equal(forest.tree_masses(beyond), 0.0)
    np.testing.assert_array_equal(forest.log_density(beyond), -np.inf)
    assert (forest.predict(beyond) == -1).all()
    assert (forest.leaves(beyond).kind == LeafKind.OUTSIDE).all()


def test_setting_of_paper_scores_by_mean_leaf_mass():
    forest = StreamingMPF(
        n_estimators=N_TREES,
        tree=Tree(feature_weights=None, max_depth=10, domain="data"),
        max_samples=None,
        score_type="mass",
        random_state=0,
    ).fit(ROWS)
    np.testing.assert_array_equal(forest.score_samples(ROWS), forest.mass(ROWS))
    np.testing.assert_array_equal(forest.forest_.weights, 1.0)
    assert (forest.forest_.counts[:, 0] == len(ROWS)).all()
    assert depths(forest.forest_).max() <= 10
    assert np.isneginf(forest.posterior_.outside).all()


# ---- the same result, always -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("n_jobs", [2, 4])
def test_results_do_not_depend_on_number_of_threads(estimator, score, n_jobs):
    one = build(estimator, score_type=score, n_jobs=1).fit(ROWS)
    more = build(estimator, score_type=score, n_jobs=n_jobs).fit(ROWS)
    for name in one.forest_._fields:
        np.testing.assert_array_equal(getattr(one.forest_, name), getattr(more.forest_, name), err_msg=name)
    assert one.offset_ == more.offset_
    assert everything(one, NEAR_AND_FAR) == everything(more, NEAR_AND_FAR)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("size", [1, 7, 64])
def test_results_do_not_depend_on_how_rows_are_split_into_calls(estimator, score, size):
    forest = build(estimator, score_type=score, n_estimators=10).fit(ROWS)
    parts = [NEAR_AND_FAR[start : start + size] for start in range(0, len(NEAR_AND_FAR), size)]
    for method in ("score_samples", "mass", "log_density", "tree_masses"):
        call = getattr(forest, method)
        np.testing.assert_array_equal(np.concatenate([call(part) for part in parts]), call(NEAR_AND_FAR), method)
    at_times = [forest.mass(part, [0.5, 2.0]) for part in parts]
    np.testing.assert_array_equal(np.concatenate(at_times), forest.mass(NEAR_AND_FAR, [0.5, 2.0]))


def test_scores_of_many_rows_keep_order(estimator):
    forest = build(estimator, n_estimators=2, n_jobs=2).fit(ROWS)
    many = np.resize(NEAR_AND_FAR, (2500, 2))
    np.testing.assert_array_equal(forest.score_samples(many), np.resize(forest.score_samples(NEAR_AND_FAR), 2500))
    np.testing.assert_array_equal(forest.leaves(many).kind[-60:], forest.leaves(many[-60:]).kind)


def test_random_state_determines_results(estimator):
    first, same, other = (build(estimator, random_state=seed).fit(ROWS) for seed in (0, 0, 1))
    assert everything(first, NEAR_AND_FAR) == everything(same, NEAR_AND_FAR)
    assert (first.score_samples(ROWS) != other.score_samples(ROWS)).all()
    drawn = [build(estimator, random_state=np.random.RandomState(5)).fit(ROWS) for _ in range(2)]
    assert everything(drawn[0], ROWS) == everything(drawn[1], ROWS)
    unseeded = [build(estimator, random_state=None).fit(ROWS).score_samples(ROWS) for _ in range(2)]
    assert (unseeded[0] != unseeded[1]).any()


def test_trees_differ(estimator):
    forest = build(estimator).fit(ROWS).forest_
    for name in ("cut", "time", "weights", "rng"):
        values = getattr(forest, name)[:, 0] if name != "rng" else forest.rng[:, 0]
        values = values if values.ndim == 1 else values[:, 0]
        assert len(np.unique(values)) == N_TREES, name


def test_refit_replaces_previous_fit(estimator):
    forest = build(estimator).fit(np.ones((50, 3))).fit(ROWS)
    assert everything(forest, ROWS) == everything(build(estimator).fit(ROWS), ROWS)


@pytest.mark.parametrize("score", SCORES)
def test_pickled_forest_gives_same_results(estimator, score):
    forest = build(estimator, score_type=score).fit(ROWS)
    assert everything(pickle.loads(pickle.dumps(forest)), NEAR_AND_FAR) == everything(forest, NEAR_AND_FAR)


def test_clone_has_parameters_but_no_forest(estimator):
    forest = build(estimator, domain=[[-90, -90], [90, 90]], feature_weights=[1, 2], lifetime=3.0).fit(ROWS)
    copy = clone(forest)
    assert not hasattr(copy, "forest_")
    assert everything(copy.fit(ROWS), ROWS) == everything(forest, ROWS)


def test_reading_changes_nothing(estimator):
    forest = build(estimator).fit(ROWS)
    X, before = NEAR_AND_FAR.copy(), pickle.dumps(forest)
    for method, arguments in READERS.items():
        getattr(forest, method)(X, **arguments)
        np.testing.assert_array_equal(X, NEAR_AND_FAR)
        assert pickle.dumps(forest) == before, method


def test_fit_accepts_read_only_rows_and_does_not_change_them(estimator):
    X = ROWS.copy()
    X.flags.writeable = False
    forest = build(estimator).fit(X)
    np.testing.assert_array_equal(X, ROWS)
    assert everything(forest, X) == everything(build(estimator).fit(ROWS), ROWS)


@pytest.mark.parametrize("convert", [np.asfortranarray, np.ndarray.tolist, lambda X: np.repeat(X, 2, axis=0)[::2]])
def test_results_do_not_depend_on_memory_layout(estimator, convert):
    forest = build(estimator).fit(convert(ROWS))
    assert everything(forest, convert(ROWS)) == everything(build(estimator).fit(ROWS), ROWS)


# ---- parameters ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_depth", [0, 1, 3])
def test_no_node_is_deeper_than_max_depth(estimator, max_depth):
    forest = build(estimator, max_depth=max_depth).fit(ROWS).forest_
    assert depths(forest).max() == max_depth


@pytest.mark.parametrize("max_depth", [None, 6])
def test_cuts_precede_lifetime_and_leaves_last_until_it(estimator, max_depth):
    forest = build(estimator, lifetime=1.5, max_depth=max_depth).fit(ROWS).forest_
    used = np.arange(forest.left.shape[1]) < forest.size[:, None]
    is_cut = used & (forest.feature != NONE)
    assert is_cut.any()
    assert (forest.time[is_cut] < 1.5).all()
    assert (forest.time[used & ~is_cut] == 1.5).all()
    whole = build(estimator, max_depth=7).fit(ROWS).forest_
    assert forest.size.sum() < whole.size.sum()


@pytest.mark.parametrize(
    ("max_samples", "expected"), [(1, 1), (50, 50), (10_000, 80), (1.0, 80), (0.25, 20), (1e-9, 1), (None, 80)]
)
def test_max_samples_is_number_or_share_of_rows(max_samples, expected):
    forest = build(StreamingMPF, max_samples=max_samples).fit(ROWS)
    assert (forest.forest_.counts[:, 0] == expected).all()
    assert np.isfinite(forest.score_samples(NEAR_AND_FAR)).all()


def test_feature_of_weight_zero_is_never_cut(estimator):
    weighted = build(estimator, feature_weights=[0.0, 2.0]).fit(ROWS).forest_
    assert set(weighted.feature[weighted.left > 0]) == {1}
    np.testing.assert_array_equal(weighted.weights, np.tile([0.0, 2.0], (N_TREES, 1)))
    plain = build(estimator, feature_weights=None).fit(ROWS).forest_
    assert set(plain.feature[plain.left > 0]) == {0, 1}
    np.testing.assert_array_equal(plain.weights, 1.0)


@pytest.mark.parametrize("score", SCORES)
def test_automatic_weights_make_scores_independent_of_units(estimator, score):
    factors = np.array([2.0**20, 2.0**-9])
    plain, scaled = (build(estimator, score_type=score).fit(X) for X in (ROWS, ROWS * factors))
    np.testing.assert_allclose(
        scaled.score_samples(NEAR_AND_FAR * factors), plain.score_samples(NEAR_AND_FAR), rtol=1e-9
    )


# ---- little data ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(np.array([[1.0, 2.0]]), id="one row"),
        pytest.param(np.array([[0.0, 0.0]]), id="one row of zeros"),
        pytest.param(np.full((30, 2), 7.0), id="all rows equal"),
        pytest.param(np.array([[1.0, 2.0], [1.5, 2.5]]), id="two rows"),
        pytest.param(np.stack([np.full(50, 3.0), np.linspace(0, 1, 50)], axis=1), id="a constant column"),
    ],
)
def test_different_row_scores_lower_with_little_data(estimator, score, rows):
    forest = build(estimator, score_type=score).fit(rows)
    held = forest.score_samples(rows)
    assert np.isfinite(held).all()
    assert (forest.predict(rows) == 1).mean() >= 0.9
    for k in range(2):
        away = rows[-1] + np.geomspace(10, 1e6, 6)[:, None] * np.eye(2)[k]
        scores = forest.score_samples(away)
        assert (scores < held.min()).all()
        assert (np.diff(scores) < 0).all()
        if estimator is BatchMPF or score in ("typicality", "multiscale"):  # few leaves tell far rows badly
            is_enough = len(rows) >= 8  # to show where the bulk ends
            assert forest.predict(away[-1:]) == (-1 if is_enough else 1)
    assert np.isfinite(forest.log_density(rows)).all()
    assert np.isfinite(forest.mass(away, [0.0, 1.0])).all()


def test_constant_column_does_not_prevent_cuts_of_others(estimator):
    rows = np.stack([np.full(50, 3.0), np.linspace(0, 1, 50)], axis=1)
    forest = build(estimator, max_depth=4).fit(rows).forest_
    assert set(forest.feature[forest.left > 0]) == {1}
    assert (forest.size > 5).all()


# ---- frames ----------------------------------------------------------------------------------------------------------


FRAMES = {
    "pandas": lambda X, names: pd.DataFrame(X, columns=names),
    "polars": lambda X, names: pl.DataFrame(X, schema=names),
}


@pytest.fixture(params=FRAMES.values(), ids=FRAMES.keys())
def frame(request):
    return request.param


def test_frames_score_like_their_values_and_keep_names(estimator, frame):
    table = frame(ROWS, ["load", "latency"])
    forest = build(estimator).fit(table)
    assert list(forest.feature_names_in_) == ["load", "latency"]
    assert forest.n_features_in_ == 2
    assert everything(forest, table) == everything(build(estimator).fit(ROWS), ROWS)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["latency", "load"], "must be in the same order"),
        (["load"], r"missing:\n- latency"),
        (["load", "latency", "colour"], r"unseen at fit time:\n- colour"),
        (["load", "speed"], r"unseen at fit time:\n- speed"),
    ],
)
def test_all_methods_reject_frames_with_other_columns(estimator, frame, columns, message):
    forest = build(estimator).fit(frame(ROWS, ["load", "latency"]))
    other = frame(np.resize(ROWS, (5, len(columns))), columns)
    for method, arguments in READERS.items():
        with pytest.raises(ValueError, match=message):
            getattr(forest, method)(other, **arguments)


def test_integer_and_boolean_columns_are_numbers(estimator, frame):
    table = frame(np.column_stack([np.arange(30), np.arange(30) % 2]), ["count", "flag"])
    forest = build(estimator).fit(table)
    np.testing.assert_array_equal(
        forest.score_samples(table), build(estimator).fit(np.asarray(table, float)).score_samples(np.asarray(table))
    )


def test_lifetimes_of_multiscale_score_ascend(estimator):
    lifetimes = build(estimator).fit(ROWS).lifetimes_
    assert all(early < late for early, late in pairwise(lifetimes))


# ---- a fitted forest is what it was fitted as ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "later", [{"n_estimators": 3}, {"lifetime": 0.05}, {"prior_strength": 9.0}, {"max_depth": 1}, {"domain": "data"}]
)
def test_parameters_set_after_fit_apply_at_next_fit(estimator, later):
    forest = build(estimator).fit(ROWS)
    answers = [np.asarray(getattr(forest, name)(NEAR_AND_FAR, **arguments)) for name, arguments in READERS.items()]
    is_flat = "n_estimators" in later
    forest.set_params(**later if is_flat else {"tree": Tree(**later)})
    for (name, arguments), answer in zip(READERS.items(), answers, strict=True):
        np.testing.assert_array_equal(getattr(forest, name)(NEAR_AND_FAR, **arguments), answer)


def test_automatic_weights_follow_range_and_mean_absolute_deviation():
    forest = StreamingMPF(n_estimators=2000, max_samples=2, random_state=0).fit(ROWS)
    deviation = np.abs(ROWS - ROWS.mean(axis=0)).mean(axis=0)
    spread = np.sqrt(np.ptp(ROWS, axis=0) * deviation)
    np.testing.assert_allclose(forest.forest_.weights @ deviation, 1)
    ratio = np.log(forest.forest_.weights[:, 0] / forest.forest_.weights[:, 1])  # two Exp(1) have median ratio 1
    assert np.median(ratio) == pytest.approx(np.log(spread[1] / spread[0]), abs=0.15)


def test_nan_score_is_flagged(estimator, monkeypatch):
    forest = build(estimator).fit(ROWS)
    monkeypatch.setattr(forest, "score_samples", lambda X: np.full(len(X), np.nan))
    assert (forest.predict(ROWS) == -1).all()
