"""A forest on a stream scores, learns, keeps and deletes points."""

import copy
import pickle
from itertools import pairwise

import numpy as np
import pandas as pd
import polars as pl
import pytest
from forests import TREE, made, without_derived
from readers import READERS
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from streams import NODE_PARTS, assert_whole, bits

from polyaforest import LeafKind, Reservoir, StreamingMPF, Tree, Window
from polyaforest.forest import grow, stream
from polyaforest.forest.integrity import check_forest
from polyaforest.util import parallel

ROWS = np.random.default_rng(0).normal([3.0, -1.0], [1.0, 20.0], size=(80, 2))
FAR = np.array([[1e4, 1e5]])
TIMES = np.random.default_rng(1).permutation(40).repeat(2) + np.arange(80.0)
SCORES = ["typicality", "multiscale", "mass", "log_mass"]
WINDOWS = {
    "points": (12, {}),
    "time": (Window(duration=15.0), {"times": TIMES}),
    "both": (Window(9, duration=30.0), {"times": TIMES + np.arange(80) / 128}),
    "reservoir": (Reservoir(12), {}),
    "fading": (Reservoir(12, half_life=10), {}),
}
STREAM_CALLS = {
    "partial_fit": lambda forest: forest.partial_fit(ROWS),
    "score_then_learn": lambda forest: forest.score_then_learn(ROWS),
    "insert": lambda forest: forest.insert(ROWS[0]),
    "delete": lambda forest: forest.delete(0),
    "delete_rows": lambda forest: forest.delete_rows(ROWS[:1]),
    "rebuild": lambda forest: forest.rebuild(),
}


def build(**parameters):
    return made(StreamingMPF, **{"n_estimators": 3, "random_state": 0, "window": 20} | parameters)


def chunks(size, n=80):
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


@pytest.fixture
def short_warm_up(monkeypatch):
    """Fix weights after 8 arrivals, to save time without a compiler."""
    monkeypatch.setattr(stream, "WARM_UP", 8)


# ---- learning -------------------------------------------------------------------------------------------------------


def test_points_without_keys_are_numbered_by_arrival():
    forest = build(window=5)
    assert [forest.insert(row) for row in ROWS[:9]] == [*range(9)]
    assert (forest.n_seen_, forest.n_points_) == (9, 5)
    assert forest.keys_ == [4, 5, 6, 7, 8]
    np.testing.assert_array_equal(forest.points_, ROWS[4:9])
    assert_whole(forest)


def test_points_have_given_keys_or_numbers():
    forest = build(window=5)
    assert forest.insert(ROWS[0], key="first") == "first"
    assert forest.insert(ROWS[1]) == 1
    forest.partial_fit(ROWS[2:5], keys=["a", None, np.int64(-7)])
    assert forest.keys_ == ["first", 1, "a", 3, -7]
    assert [type(key) for key in forest.keys_] == [str, int, str, int, int]
    forest.score_then_learn(ROWS[5:7], keys=np.array(["x", "y"]))
    assert forest.keys_ == ["a", 3, -7, "x", "y"]
    forest.partial_fit(ROWS[7:9], keys=pd.Series([100, 101], index=[5, 3]))
    assert forest.keys_ == [-7, "x", "y", 100, 101]
    assert build(window=3).fit(ROWS[:4], keys=["a", "b", None, "d"]).keys_ == ["b", 2, "d"]


@pytest.mark.parametrize("name", WINDOWS)
def test_learning_does_not_depend_on_chunks_or_scoring(name):
    window, given = WINDOWS[name]
    whole = build(window=window).partial_fit(ROWS, **given)
    for size in (1, 7, 33):
        parts = build(window=window)
        for part in chunks(size):
            parts.partial_fit(ROWS[part], **{what: values[part] for what, values in given.items()})
        assert bits(parts) == bits(whole), size
    scored, by_row = build(window=window), build(window=window)
    scored.score_then_learn(ROWS, **given)
    for row, time in zip(ROWS, given.get("times", [None] * 80), strict=True):
        by_row.insert(row, time=time)
    assert bits(scored) == bits(by_row) == bits(whole)


@pytest.mark.parametrize("max_depth", [None, 0, 3])
@pytest.mark.parametrize("name", WINDOWS)
def test_trees_agree_with_points_held(name, max_depth):
    window, given = WINDOWS[name]
    forest = build(window=window, max_depth=max_depth)
    for part in chunks(11):
        forest.partial_fit(ROWS[part], **{what: values[part] for what, values in given.items()})
        assert_whole(forest)
    np.testing.assert_array_equal(forest.points_, ROWS[forest.keys_])


@pytest.mark.parametrize("domain", [None, "data", [[-9.0, -200.0], [90.0, 200.0]]])
@pytest.mark.parametrize("score", SCORES)
def test_score_then_learn_matches_score_samples(score, domain):
    forest, in_chunks = (build(window=12, score_type=score, domain=domain) for _ in range(2))
    forest.insert(ROWS[0])
    in_chunks.insert(ROWS[0])
    scores = in_chunks.score_then_learn(ROWS[1:30])
    for i, row in enumerate(ROWS[1:30]):
        before = forest.score_samples(row[None])
        mass = forest.mass(row[None])
        assert forest.score_then_learn(row[None]) == scores[i], i
        np.testing.assert_allclose(before, scores[i], rtol=1e-12)
        if score == "mass":
            np.testing.assert_allclose(before, mass, rtol=1e-10)
    assert bits(forest) == bits(in_chunks)


@pytest.mark.parametrize("score", SCORES)
def test_results_do_not_depend_on_the_number_of_threads(score, monkeypatch):
    monkeypatch.setattr(parallel, "_LEAST_WORK", 0)
    forests = [build(n_estimators=12, window=15, score_type=score, n_jobs=n_jobs) for n_jobs in (1, 2, 4)]
    scores = [forest.score_then_learn(ROWS[:50]) for forest in forests]
    for forest in forests:
        forest.delete([40, 45]).partial_fit(ROWS[50:55]).rebuild().partial_fit(ROWS[55:60])
    for other, forest in zip(scores[1:], forests[1:], strict=True):
        np.testing.assert_array_equal(scores[0], other)
        assert bits(forests[0]) == bits(forest)
        np.testing.assert_array_equal(forests[0].score_samples(ROWS), forest.score_samples(ROWS))


def test_reading_does_not_change_the_forest():
    forest, unread = (build(max_depth=4).partial_fit(ROWS[:30]) for _ in range(2))
    for name, arguments in READERS.items():
        getattr(forest, name)(ROWS, **arguments)
    assert forest.offset_ < 0
    assert bits(forest) == bits(unread)
    assert bits(forest.partial_fit(ROWS[30:50])) == bits(unread.partial_fit(ROWS[30:50]))


def test_scores_follow_the_stream():
    forest = build(n_estimators=10, window=30).partial_fit(ROWS[:40])
    there = ROWS[40:] + np.array([50.0, 0.0])
    assert forest.score_samples(there).max() < forest.score_samples(ROWS[:40]).min()
    forest.partial_fit(there)
    assert forest.score_samples(there[10:]).min() > forest.score_samples(ROWS[:40]).max()


def test_derived_attributes_follow_changes_of_the_forest():
    forest = build(window=20)
    for part in chunks(10, 40):
        forest.partial_fit(ROWS[part])
        fresh = pickle.loads(pickle.dumps(forest))
        without_derived(fresh)
        assert forest.offset_ == fresh.offset_
        for name, arguments in READERS.items():
            mine, other = (np.asarray(getattr(f, name)(ROWS, **arguments)) for f in (forest, fresh))
            np.testing.assert_array_equal(mine, other, err_msg=name)


def test_partial_fit_ignores_y_and_returns_the_forest():
    forest = build()
    assert forest.partial_fit(ROWS[:5], np.zeros(5)) is forest
    assert forest.delete(0) is forest
    assert forest.delete_rows(ROWS[1:2]) is forest
    assert forest.rebuild() is forest
    assert forest.fit(ROWS[:5], np.zeros(5)) is forest


def test_rows_of_the_caller_are_copied():
    rows = ROWS[:10].copy()
    forest = build().partial_fit(rows)
    rows[:] = 0.0
    np.testing.assert_array_equal(forest.points_, ROWS[:10])
    forest.points_[:] = 0.0
    np.testing.assert_array_equal(forest.points_, ROWS[:10])
    forest.keys_.clear()
    assert forest.keys_ == [*range(10)]


# ---- start ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WINDOWS)
def test_fit_restarts_and_the_stream_continues(name):
    window, given = WINDOWS[name]
    first, rest = ({what: values[part] for what, values in given.items()} for part in (slice(50), slice(50, 80)))
    forest = build(window=window).fit(ROWS[:50], **first)
    assert forest.n_seen_ == 50
    assert_whole(forest)
    again = build(window=window).partial_fit(ROWS[:33, ::-1], **{what: v[:33] for what, v in given.items()})
    again.fit(ROWS[:50], **first)
    assert bits(again) == bits(forest)
    for one in (forest, again):
        one.partial_fit(ROWS[50:], **rest)
        assert_whole(one)
    assert bits(again) == bits(forest)
    assert forest.n_seen_ == 80
    if name != "reservoir":  # of a table it is drawn by the numbers of the rows, of a stream one after another
        assert forest.keys_ == build(window=window).partial_fit(ROWS, **given).keys_


def members(forest):
    """Return which of the points held each tree holds, bool (T, n)."""
    return forest._stream.points.links[:, forest._stream.store.held, 2] >= 0


@pytest.mark.parametrize(
    ("max_samples", "window", "sizes"),
    [
        (None, 20, [20] * 6),
        ("auto", 20, [8, 10, 10, 10, 8, 10]),
        ("auto", 200, [8, 16, 32, 64, 8, 16]),
        ("auto", Window(duration=1e9), [8, 16, 32, 64, 8, 16]),
        (5, 20, [5] * 6),
        (50, 20, [20] * 6),
        (0.25, 20, [5] * 6),
        (0.001, 20, [1] * 6),
    ],
)
@pytest.mark.parametrize("begins", ["fit", "partial_fit"])
def test_every_tree_holds_a_sample_of_the_points(max_samples, window, sizes, begins):
    forest = build(n_estimators=6, max_samples=max_samples, window=window)
    getattr(forest, begins)(ROWS, times=np.arange(80.0))
    np.testing.assert_array_equal(members(forest).sum(axis=1), sizes)
    np.testing.assert_array_equal(forest.forest_.counts[range(6), forest.forest_.root], sizes)
    assert forest.n_points_ == len(forest.points_)
    assert_whole(forest)


def test_samples_stay_full_through_insertions_and_deletions():
    forest = build(n_estimators=4, max_samples=3, window=10)
    for i, row in enumerate(ROWS):
        forest.insert(row)
        assert (members(forest).sum(axis=1) == min(i + 1, 3)).all()
    for n_left in range(9, -1, -1):
        forest.delete(forest.keys_[n_left // 2])
        assert (members(forest).sum(axis=1) == min(n_left, 3)).all()
        assert_whole(forest)


def test_trees_keep_their_different_samples_when_rebuilt():
    forest = build(n_estimators=5, max_samples=4, window=40).partial_fit(ROWS)
    before = members(forest)
    assert len(np.unique(before, axis=0)) == 5
    np.testing.assert_array_equal(members(forest.rebuild()), before)


def test_point_in_no_sample_changes_no_tree():
    forest = build(n_estimators=1, max_samples=2, window=40).fit(ROWS[:30])
    stranger = next(key for key, (is_held,) in zip(forest.keys_, members(forest).T, strict=True) if not is_held)
    before = forest.score_samples(ROWS)
    np.testing.assert_array_equal(forest.delete(stranger).score_samples(ROWS), before)


def test_rejects_share_of_a_time_window():
    with pytest.raises(ValueError, match=r"max_samples=0.5 is a share .* does not limit their number"):
        build(max_samples=0.5, window=Window(duration=5.0)).partial_fit(ROWS, times=np.arange(80.0))


@pytest.mark.parametrize("change", [{"window": None, "max_depth": 4}, {"domain": "data"}])
def test_trees_hold_all_points_if_they_cannot_sample(change):
    forest = build(max_samples=4, **change).fit(ROWS)
    assert (forest.forest_.counts[range(3), forest.forest_.root] == forest.n_points_).all()


def test_clustered_anomalies_stay_anomalous_with_small_samples():
    odd = np.random.default_rng(3).normal([9.0, 150.0], 0.1, size=(10, 2))
    rows = np.concatenate([ROWS[:60], odd])
    gaps = {}
    for max_samples in (4, None):
        forest = build(n_estimators=50, max_samples=max_samples, window=70).fit(rows)
        scores = forest.score_samples(np.concatenate([ROWS[60:], odd]))
        gaps[max_samples] = (np.median(scores[:20]) - np.median(scores[20:])) / scores[:20].std()
    assert gaps[4] > 1.5 * gaps[None]


def test_features_are_weighed_by_all_rows_of_a_fit():
    forest = build(window=4).fit(ROWS)
    deviation = np.abs(ROWS - ROWS.mean(axis=0)).mean(axis=0)
    np.testing.assert_allclose(forest.forest_.weights @ deviation, 1.0)
    before = forest.forest_.weights.copy()
    forest.partial_fit(ROWS * 1e3)
    np.testing.assert_array_equal(forest.forest_.weights, before)


def test_features_are_weighed_after_1_2_4_arrivals_until_warm(short_warm_up):
    forest, changed = build(window=50), []
    weights = None
    for i, row in enumerate(ROWS[:30], 1):
        forest.insert(row)
        if weights is None or (weights != forest.forest_.weights).any():
            changed.append(i)
        weights = forest.forest_.weights.copy()
    assert changed == [1, 2, 4, 8]


def test_given_weights_do_not_change(short_warm_up):
    forest = build(feature_weights=[0.25, 4.0])
    for row in ROWS[:20]:
        forest.insert(row)
        np.testing.assert_array_equal(forest.forest_.weights, [[0.25, 4.0]] * 3)


def test_stream_holds_256_points_by_default():
    forest = build(n_estimators=1, window="auto")
    forest.partial_fit(np.tile(ROWS, (4, 1))[:300])
    assert (forest.n_points_, forest.n_seen_) == (256, 300)
    assert forest.keys_ == [*range(44, 300)]


@pytest.mark.parametrize("call", STREAM_CALLS)
def test_fitted_forest_continues_as_a_stream(call):
    forest = build(window="auto").fit(ROWS[:60])
    assert forest.keys_ == [*range(60)]
    STREAM_CALLS[call](forest)
    assert_whole(forest)


def test_table_is_held_as_uniform_sample_of_2048_rows(monkeypatch):
    monkeypatch.setattr("polyaforest.model.parameters.LEAST_HELD", 20)
    forest = build(window="auto").fit(ROWS, keys=[f"row {i}" for i in range(80)])
    assert (forest.n_points_, forest.n_seen_) == (20, 80)
    held = [int(key.split()[1]) for key in forest.keys_]
    np.testing.assert_array_equal(forest.points_, ROWS[held])
    forest.partial_fit(ROWS + 1.0)
    assert (forest.n_points_, forest.n_seen_) == (20, 160)
    assert 0 < sum(isinstance(key, str) for key in forest.keys_) < 20
    assert_whole(forest)


def test_fit_starts_from_scratch():
    forest = build(window="auto").partial_fit(ROWS[:10])
    assert forest.keys_ == [*range(10)]
    forest.fit(ROWS)
    fresh = build(window="auto").fit(ROWS)
    np.testing.assert_array_equal(forest.score_samples(ROWS), fresh.score_samples(ROWS))
    assert forest.keys_ == fresh.keys_


@pytest.mark.parametrize("call", ["delete", "delete_rows", "rebuild"])
def test_unfitted_forest_rejects_changes(call):
    with pytest.raises(NotFittedError):
        STREAM_CALLS[call](build())


def test_unfitted_forest_rejects_reading():
    for name in ("n_points_", "n_seen_", "points_", "keys_", "offset_", "posterior_"):
        assert not hasattr(build(), name), name
    for name, arguments in READERS.items():
        with pytest.raises(NotFittedError):
            getattr(build(), name)(ROWS, **arguments)


# ---- summaries ------------------------------------------------------------------------------------------------------


def test_rejects_unbounded_stream():
    for begin in ("fit", "partial_fit", "score_then_learn"):
        forest = build(window=None)
        with pytest.raises(ValueError, match=r"needs trees of limited depth: set max_depth .* or set a window"):
            getattr(forest, begin)(ROWS)
        assert not [name for name in vars(forest) if name.endswith("_")]
    with pytest.raises(ValueError, match="needs trees of limited depth"):
        build(window=None).insert(ROWS[0])


@pytest.mark.parametrize("begin", ["fit", "partial_fit"])
@pytest.mark.parametrize("max_depth", [0, 1, 4])
def test_summary_counts_all_rows_in_bounded_nodes(begin, max_depth, short_warm_up):
    forest = getattr(build(window=None, max_depth=max_depth), begin)(ROWS[:20])
    rows, shapes = [ROWS[:20]], set()
    for k in range(12):
        more = ROWS[k : k + 40] * (1 + k / 3)
        forest.partial_fit(more)
        rows.append(more)
        assert forest.forest_.size.max() <= 2 ** (max_depth + 1) - 1
        shapes.add(forest.forest_.lower.shape[:2] if k > 5 else None)
    assert forest.n_points_ == forest.n_seen_ == 20 + 12 * 40
    assert len(shapes) == 2  # one, and None
    assert forest.forest_.left.shape[1] <= 2 ** (max_depth + 1) - 1 + grow.SPARE_NODES
    check_forest(forest.forest_, np.concatenate(rows))


def test_summary_keeps_points_only_while_warming_up(short_warm_up):
    forest = build(window=None, max_depth=3)
    assert [forest.insert(row) for row in ROWS[:7]] == [*range(7)]
    assert forest.keys_ == [*range(7)]
    np.testing.assert_array_equal(forest.points_, ROWS[:7])
    forest.delete(2).delete_rows(ROWS[3:4])
    assert_whole(forest)
    assert [forest.insert(row) for row in ROWS[7:10]] == [None] * 3
    assert (forest.n_points_, forest.n_seen_) == (8, 10)
    check_forest(forest.forest_, np.delete(ROWS[:10], [2, 3], axis=0))
    for name in ("points_", "keys_"):
        assert not hasattr(forest, name)
        with pytest.raises(AttributeError, match="holds no points"):
            getattr(forest, name)
    kept = forest._stream
    assert [part.size for part in kept.points] == [0, 0, 0]
    assert (len(kept.store), kept.store.capacity, kept.store.keys) == (0, 0, [])


def test_summary_has_no_keys_and_cannot_rebuild():
    forest = build(window=None, max_depth=3).fit(ROWS)
    before = pickle.dumps(forest)
    with pytest.raises(ValueError, match="use delete_rows"):
        forest.delete(0)
    with pytest.raises(ValueError, match="holds no points to rebuild from"):
        forest.rebuild()
    for learn in (forest.partial_fit, forest.score_then_learn, forest.fit):
        with pytest.raises(ValueError, match="takes no keys"):
            learn(ROWS[:2], keys=["a", "b"])
    with pytest.raises(ValueError, match="takes no keys"):
        forest.insert(ROWS[0], key="a")
    assert pickle.dumps(forest) == before
    assert forest.insert(ROWS[0]) is None


def spared(forest, rows):
    """Return which rows lie strictly inside the boxes of their leaves, in all trees."""
    leaves, trees = forest.leaves(rows).node, np.arange(forest.n_estimators)
    lower, upper = forest.forest_.lower[trees, leaves], forest.forest_.upper[trees, leaves]
    return ((lower < rows[:, None]) & (rows[:, None] < upper)).all(axis=(1, 2))


@pytest.mark.parametrize("max_depth", [0, 1, 2])
def test_summary_deletes_rows_inside_its_leaves(max_depth):
    forest = build(window=None, max_depth=max_depth).fit(ROWS)
    inner = np.flatnonzero(spared(forest, ROWS))
    assert 0 < len(inner) < len(ROWS)
    forest.delete_rows(ROWS[inner[:1]]).delete_rows(ROWS[inner[1:3]])
    rest = np.delete(ROWS, inner[:3], axis=0)
    assert (forest.n_points_, forest.n_seen_) == (len(rest), len(ROWS))
    check_forest(forest.forest_, rest)
    np.testing.assert_array_equal(forest.mass(ROWS), copy.deepcopy(forest).mass(ROWS))
    forest.partial_fit(ROWS[:10])
    check_forest(forest.forest_, np.concatenate([rest, ROWS[:10]]))


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_summary_rejects_deletion_of_rows_on_edges(n_jobs):
    forest = build(window=None, max_depth=1, n_jobs=n_jobs).fit(ROWS)
    is_spared = spared(forest, ROWS)
    inner, edge = np.flatnonzero(is_spared), np.flatnonzero(~is_spared)
    before, masses = pickle.dumps(forest), forest.mass(ROWS)
    for i in edge:
        with pytest.raises(ValueError, match=r"row 0 lies on the edge .* Nothing was deleted"):
            forest.delete_rows(ROWS[i : i + 1])
    with pytest.raises(ValueError, match="row 2 lies on the edge"):
        forest.delete_rows(ROWS[[inner[0], inner[1], edge[0], inner[2]]])
    with pytest.raises(ValueError, match="row 0 lies on the edge"):
        forest.delete_rows(FAR)
    np.testing.assert_array_equal(forest.mass(ROWS), masses)
    without_derived(forest)
    assert bits(forest) == bits(pickle.loads(before))


def test_summary_deletes_all_but_the_last_of_equal_rows():
    rows = np.concatenate([ROWS[:10], FAR, FAR, FAR])
    forest = build(window=None, max_depth=20).fit(rows)
    forest.delete_rows(FAR).delete_rows(FAR)
    check_forest(forest.forest_, rows[:-2])
    before = bits(forest)
    with pytest.raises(ValueError, match="lies on the edge"):
        forest.delete_rows(FAR)
    assert bits(forest) == before


# ---- deletion -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_depth", [None, 1, 3])
def test_any_point_can_be_deleted_by_key_or_by_value(max_depth):
    """Include the first, the last, points alone in a subtree, and two that span the box in every dimension."""
    rows = np.concatenate([ROWS[:12], FAR, -FAR, ROWS[:2]])
    base = build(max_depth=max_depth).partial_fit(rows)
    for i in range(len(rows)):
        by_key, by_value = copy.deepcopy(base).delete(i), copy.deepcopy(base)
        assert by_key.keys_ == [k for k in range(len(rows)) if k != i]
        assert_whole(by_key)
        by_value.delete_rows(rows[i : i + 1])
        assert_whole(by_value)
        if i < 14:  # the oldest of equal points goes first
            assert bits(by_value) == bits(by_key)


def test_points_can_be_deleted_one_after_another_down_to_none():
    order = np.random.default_rng(3).permutation(20)
    for max_depth in (None, 2):
        forest = build(max_depth=max_depth).partial_fit(ROWS[:20])
        for n, key in enumerate(order.tolist(), 1):
            forest.delete(key)
            assert forest.n_points_ == 20 - n
            assert_whole(forest)
        assert forest.keys_ == []
        assert forest.points_.shape == (0, 2)


def test_many_points_can_be_deleted_at_once():
    one, other = build().partial_fit(ROWS[:20]), build().partial_fit(ROWS[:20])
    for keys in ([3, 5, 7], np.array([11, 0]), {19}, (key for key in [1]), (), np.int64(2)):
        one.delete(keys)
    for key in (3, 5, 7, 11, 0, 19, 1, 2):
        other.delete(key)
    assert bits(one) == bits(other)


def test_equal_points_leave_one_at_a_time_the_oldest_first():
    forest = build().partial_fit(np.concatenate([FAR, ROWS[:3], FAR, FAR]))
    for left in ([1, 2, 3, 4, 5], [1, 2, 3, 5], [1, 2, 3]):
        forest.delete_rows(FAR)
        assert forest.keys_ == left
        assert_whole(forest)
    before = bits(forest)
    with pytest.raises(ValueError, match=r"row 0 is not held.*Nothing was deleted"):
        forest.delete_rows(FAR)
    assert bits(forest) == before


def test_deletion_compares_values_not_bytes():
    forest = build().partial_fit([[0.0, 1.0], [5.0, -0.0], [7.0, 7.0]])
    forest.delete_rows([[-0.0, 1.0]]).delete_rows(np.array([[5, 0]], np.int32))
    assert forest.keys_ == [2]


def test_deletion_of_absent_rows_changes_nothing():
    forest = build().partial_fit(ROWS[:10])
    before = pickle.dumps(forest)
    for rows, where in (
        (np.concatenate([ROWS[:2], FAR]), 2),
        (ROWS[[1, 4, 1]], 2),
        (ROWS[:1] + 1e-12, 0),
        (ROWS[50:51], 0),
    ):
        with pytest.raises(ValueError, match=f"row {where} is not held"):
            forest.delete_rows(rows)
        assert pickle.dumps(forest) == before


@pytest.mark.parametrize("keys", [99, "absent", -1, [0, 99], [99, 0], ["0"], [0, 1, 2, "x"]])
def test_deletion_of_absent_keys_changes_nothing(keys):
    forest = build(window=10).partial_fit(ROWS[:10])
    before = pickle.dumps(forest)
    with pytest.raises(KeyError, match=r"no point with key .* is held. Nothing was deleted"):
        forest.delete(keys)
    assert pickle.dumps(forest) == before


def test_key_is_released_with_its_point():
    forest = build(window=3).partial_fit(ROWS[:4], keys=["a", "b", "c", "d"]).delete("c")
    for key in ("a", "c"):
        with pytest.raises(KeyError, match=f"'{key}'"):
            forest.delete(key)
    forest.partial_fit(ROWS[4:6], keys=["c", "a"])
    assert forest.keys_ == ["d", "c", "a"]


def test_deletion_rejects_duplicate_keys():
    forest = build().partial_fit(ROWS[:10])
    before = pickle.dumps(forest)
    with pytest.raises(ValueError, match="more than once"):
        forest.delete([1, 2, 1])
    assert pickle.dumps(forest) == before


@pytest.mark.parametrize("key", [True, False, 1.0, np.float64(2), b"1", np.True_], ids=repr)
def test_keys_are_integers_or_strings(key):
    forest = build().partial_fit(ROWS[:10])
    before = pickle.dumps(forest)
    for attempt in (
        lambda: forest.partial_fit(ROWS[10:12], keys=["a", key]),
        lambda: forest.insert(ROWS[10], key=key),
        lambda: forest.delete([0, key]),
        lambda: forest.delete(key),
    ):
        with pytest.raises(ValueError, match="a key must be an integer or a string"):
            attempt()
        assert pickle.dumps(forest) == before


def test_deletion_rejects_none_as_key():
    forest = build().partial_fit(ROWS[:10])
    for keys in (None, [0, None]):
        with pytest.raises(ValueError, match="a key must be an integer or a string; got None"):
            forest.delete(keys)
    assert forest.n_points_ == 10


BAD_KEYS = {
    "too few": (["a"], "1 keys for 2 rows"),
    "too many": (["a", "b", "c"], "3 keys for 2 rows"),
    "a text": ("ab", "not the single text 'ab'"),
    "a number": (5, "keys must hold one key"),
    "twice": (["new", "new"], "key 'new' is already in use"),
}
HELD_KEYS = {
    "held": (["new", "held"], "key 'held' is already in use"),
    "a number held": (["new", 3], "key 3 is already in use"),
    "the number of a row that comes with it": ([11, None], "key 11 is already in use"),
}


@pytest.mark.parametrize(("keys", "message"), [*BAD_KEYS.values(), *HELD_KEYS.values()], ids=[*BAD_KEYS, *HELD_KEYS])
def test_learning_rejects_invalid_keys_and_changes_nothing(keys, message):
    forest = build().partial_fit(ROWS[:10], keys=[*range(9), "held"])
    before = pickle.dumps(forest)
    for learn in (forest.partial_fit, forest.score_then_learn):
        with pytest.raises(ValueError, match=message):
            learn(ROWS[10:12], keys=keys)
        assert pickle.dumps(forest) == before


@pytest.mark.parametrize(("keys", "message"), BAD_KEYS.values(), ids=BAD_KEYS)
def test_fit_rejects_invalid_keys_and_changes_nothing(keys, message):
    forest = build().partial_fit(ROWS[:10], keys=[*range(9), "held"])
    before = pickle.dumps(forest)
    with pytest.raises(ValueError, match=message):
        forest.fit(ROWS[10:12], keys=keys)
    assert pickle.dumps(forest) == before
    assert forest.fit(ROWS[10:12], keys=["new", "held"]).keys_ == ["new", "held"]


@pytest.mark.parametrize("learn", ["partial_fit", "score_then_learn", "insert"])
def test_integer_key_blocks_arrival_of_the_same_number(learn):
    """Arrivals without a key are numbered; a number must not refer to two points."""
    forest = build().partial_fit(ROWS[:2], keys=[3, "a"])
    forest.insert(ROWS[2])
    before = pickle.dumps(forest)
    with pytest.raises(ValueError, match="key 3 is already in use"):
        forest.insert(ROWS[3]) if learn == "insert" else getattr(forest, learn)(ROWS[3:6])
    assert pickle.dumps(forest) == before
    forest.delete(3).partial_fit(ROWS[3:6])
    assert forest.keys_ == ["a", 2, 3, 4, 5]
    assert_whole(forest)


def test_deletion_makes_room_in_a_window():
    forest = build(window=4).partial_fit(ROWS[:6]).delete([2, 4])
    assert forest.keys_ == [3, 5]
    forest.partial_fit(ROWS[6:8])
    assert forest.keys_ == [3, 5, 6, 7]
    forest.insert(ROWS[8])
    assert forest.keys_ == [5, 6, 7, 8]
    assert_whole(forest)


# ---- empty forests --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("domain", [None, [[-9.0, -200.0], [90.0, 200.0]]])
def test_empty_forest_gives_mass_one_half(score, domain):
    forest = build(score_type=score, domain=domain).partial_fit(ROWS[:9])
    forest.mass(ROWS)
    forest.delete(forest.keys_)
    nothing = 0.5 if score == "mass" else np.log(0.5)
    for X in (ROWS, FAR, ROWS[:1]):
        np.testing.assert_allclose(forest.score_samples(X), nothing, rtol=1e-15)
        np.testing.assert_array_equal(forest.mass(X), 0.5)
        np.testing.assert_allclose(forest.mass(X, [0.0, 2.0, np.inf]), 0.5, rtol=1e-15)
        np.testing.assert_array_equal(forest.tree_masses(X), np.full((len(X), 3), 0.5))
        np.testing.assert_array_equal(forest.log_density(X), -np.inf)
        assert (forest.leaves(X).kind == LeafKind.OUTSIDE).all()
        assert (forest.leaves(X).node == -1).all()
        assert (forest.predict(X) == 1).all()
        assert not np.isnan(forest.decision_function(X)).any()
        np.testing.assert_array_equal(forest.epsilon_level(X, 0.5), 0.5)
    assert forest.score_then_learn(ROWS[:1]) == pytest.approx(nothing, rel=1e-15)


def test_empty_closed_forest_gives_mass_zero():
    forest = build(domain="data").partial_fit(ROWS[:9])
    forest.delete(forest.keys_)
    np.testing.assert_array_equal(forest.score_samples(ROWS), -np.inf)
    np.testing.assert_array_equal(forest.mass(ROWS), 0.0)
    np.testing.assert_array_equal(forest.log_density(ROWS), -np.inf)
    assert not np.isnan(forest.decision_function(ROWS)).any()
    assert (forest.predict(ROWS) == 1).all()  # there is nothing to compare with
    np.testing.assert_array_equal(build(domain="data").score_then_learn(ROWS[:2])[0], -np.inf)


@pytest.mark.parametrize("max_depth", [None, 2])
@pytest.mark.parametrize("name", WINDOWS)
def test_empty_forest_learns_again(name, max_depth):
    window, given = WINDOWS[name]
    for begin in ("fit", "partial_fit"):
        forest = build(window=window, max_depth=max_depth)
        getattr(forest, begin)(ROWS[:9], **{what: values[:9] for what, values in given.items()})
        forest.delete(forest.keys_)
        forest.rebuild()
        assert forest.n_points_ == 0
        forest.partial_fit(ROWS[9:40], **{what: values[9:40] for what, values in given.items()})
        assert_whole(forest)
        assert np.isfinite(forest.score_samples(ROWS)).all()
        assert forest.n_seen_ == 40


def test_empty_forest_can_be_rebuilt(short_warm_up):
    forest = build()
    for row in ROWS[:20]:
        forest.delete(forest.insert(row))
    assert (forest.n_points_, forest.n_seen_) == (0, 20)
    assert forest.partial_fit(ROWS[20:30]).keys_ == [*range(20, 30)]
    assert_whole(forest)


# ---- edge cases -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("max_depth", [None, 0, 1])
def test_smallest_windows_work(n, max_depth):
    forest = build(window=n, max_depth=max_depth)
    for i, row in enumerate(ROWS[:20]):
        assert np.isfinite(forest.score_then_learn(row[None])).all()
        assert forest.keys_ == [*range(max(i + 1 - n, 0), i + 1)]
        assert_whole(forest)
    assert (forest.score_samples(forest.points_) > forest.score_samples(FAR)).all()
    assert forest.predict(FAR) == [1]  # one or two points do not show where the bulk ends
    fitted = build(window=n).fit(ROWS)
    np.testing.assert_array_equal(fitted.points_, ROWS[-n:])


@pytest.mark.parametrize("value", [0.0, 3.0, -1e100])
def test_equal_points_work(value):
    forest = build(window=6)
    rows = np.full((10, 2), value)
    assert np.isfinite(forest.score_then_learn(rows)).all()
    assert (forest.forest_.size == 1).all()
    assert_whole(forest.delete([5, 7]))
    forest.partial_fit(ROWS[:3])
    assert_whole(forest)
    assert np.isfinite(forest.score_samples(np.concatenate([rows, ROWS]))).all()


def test_constant_column_may_start_to_vary():
    rows = np.column_stack([ROWS[:, 0], np.full(80, 7.0)])
    forest = build(window=20).partial_fit(rows[:40])
    assert (forest.forest_.feature != 1).all()
    odd = rows[40:41] + np.array([0.0, 1.0])
    assert forest.score_samples(odd) < forest.score_samples(rows[40:41])
    forest.partial_fit(odd).partial_fit(rows[41:50])
    assert_whole(forest)
    forest.delete_rows(odd)
    assert_whole(forest)
    assert (forest.forest_.lower[:, :, 1].max(), forest.forest_.upper[:, :, 1].max()) == (7.0, 7.0)


@pytest.mark.parametrize("max_depth", [None, 2])
def test_single_feature_works(max_depth):
    forest = build(window=10, max_depth=max_depth)
    for part in chunks(7):
        assert np.isfinite(forest.score_then_learn(ROWS[part, :1])).all()
        assert_whole(forest)
    assert forest.insert([3.0]) == 80
    assert forest.insert(4.0) == 81
    forest.delete([80, 81]).delete(forest.keys_[:3])
    assert_whole(forest)


def test_many_features_work():
    rows = np.random.default_rng(2).normal(size=(30, 200))
    forest = build(window=8)
    forest.score_then_learn(rows)
    assert_whole(forest.delete([25, 29]))


# ---- domain ---------------------------------------------------------------------------------------------------------

DOMAIN = np.array([[-9.0, -200.0], [90.0, 200.0]])


def test_known_world_is_the_given_domain():
    forest = build(domain=DOMAIN, window=5).partial_fit(ROWS)
    np.testing.assert_array_equal(forest.forest_.domain, DOMAIN)
    np.testing.assert_array_equal(forest.posterior_.world, np.repeat(DOMAIN[:, None], 3, axis=1))
    assert (forest.leaves([[89.0, 199.0]]).kind == LeafKind.COMPLEMENTARY).all()
    assert (forest.leaves(FAR).kind == LeafKind.OUTSIDE).all()


@pytest.mark.parametrize("fitted", [False, True])
@pytest.mark.parametrize("learn", ["partial_fit", "score_then_learn", "fit"])
def test_rows_outside_domain_are_scored_but_not_learned(learn, fitted):
    forest = build(domain=DOMAIN)
    if fitted:
        forest.partial_fit(ROWS[:5])
    before = pickle.dumps(forest)
    with pytest.raises(ValueError, match=r"row 2, column 0 is 10000, outside the domain \[-9, 90\]"):
        getattr(forest, learn)(np.concatenate([ROWS[:2], FAR]))
    with pytest.raises(ValueError, match="row 0, column 0 is 10000, outside the domain"):
        forest.insert(FAR[0])
    assert pickle.dumps(forest) == before
    forest.partial_fit(ROWS[5:9])
    assert np.isfinite(forest.score_samples(FAR)).all()


def test_domain_of_data_follows_points_held():
    forest = build(domain="data", window=10, score_type="mass")
    for part in chunks(10):
        forest.partial_fit(ROWS[part])
        for bounds, edge in zip(forest.posterior_.world, (ROWS[part].min(axis=0), ROWS[part].max(axis=0)), strict=True):
            np.testing.assert_array_equal(bounds, [edge] * 3)
        np.testing.assert_array_equal(forest.mass(ROWS[part].max(axis=0)[None] + 1), 0.0)
        np.testing.assert_array_equal(forest.score_samples(FAR), 0.0)
        np.testing.assert_allclose(np.exp(forest.posterior_.outside), 0.0)


# ---- frames ---------------------------------------------------------------------------------------------------------

NAMES = ["load", "latency"]


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_feature_names_are_kept_from_first_call(frame):
    rows = frame({name: ROWS[:, k] for k, name in enumerate(NAMES)})
    plain, named = build().partial_fit(ROWS[:30]), build().partial_fit(rows[:30])
    assert named.feature_names_in_.tolist() == NAMES
    np.testing.assert_array_equal(named.score_then_learn(rows[30:50]), plain.score_then_learn(ROWS[30:50]))
    named.delete_rows(rows[45:47])
    plain.delete_rows(ROWS[45:47])
    assert bits(named) == bits(plain)
    before = pickle.dumps(named)
    for wrong in (rows[NAMES[::-1]], rows.rename({"load": "x"} if frame is pl.DataFrame else str.upper, **axis(frame))):
        for method in ("partial_fit", "score_then_learn", "delete_rows", "score_samples"):
            with pytest.raises(ValueError, match="feature names"):
                getattr(named, method)(wrong[50:55])
            assert pickle.dumps(named) == before
    with pytest.warns(UserWarning, match="feature names"):
        named.partial_fit(ROWS[50:51])


def axis(frame):
    return {} if frame is pl.DataFrame else {"axis": "columns"}


def test_insert_accepts_row_of_frame():
    frame = pd.DataFrame(ROWS, columns=NAMES)
    forest, plain = build(), build().partial_fit(ROWS[:10])
    for i in range(10):
        assert forest.insert(frame.iloc[i]) == i
    assert forest.feature_names_in_.tolist() == NAMES
    assert bits(forest) == bits(plain)
    with pytest.raises(ValueError, match="feature names"):
        forest.insert(frame.iloc[10][::-1])


def test_insert_rejects_several_rows():
    assert build().insert(ROWS[0].tolist()) == 0
    assert build().insert(ROWS[:1]) == 0
    forest = build()
    with pytest.raises(ValueError, match="a single point"):
        forest.insert(ROWS[:2])
    assert not hasattr(forest, "forest_")
    forest.insert(ROWS[0])
    before = pickle.dumps(forest)
    for wrong in (ROWS[:2], ROWS[0, :1], [1.0, 2.0, 3.0], [], 1.0, [1.0, np.inf], [1.0, "high"], None):
        with pytest.raises((ValueError, TypeError)):
            forest.insert(wrong)
        assert pickle.dumps(forest) == before


# ---- bad rows -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e101])
@pytest.mark.parametrize("fitted", [False, True])
def test_bad_value_rejects_whole_chunk(fitted, value):
    forest = build(missing="error")
    if fitted:
        forest.partial_fit(ROWS[:30])
    before, rows = pickle.dumps(forest), ROWS[30:60].copy()
    rows[17, 1] = value
    for method in ("partial_fit", "score_then_learn", "fit"):
        with pytest.raises(ValueError, match="row 17, column 1"):
            getattr(forest, method)(rows)
        assert pickle.dumps(forest) == before
    if fitted:
        for method in ("delete_rows", "score_samples"):
            with pytest.raises(ValueError, match="row 17, column 1"):
                getattr(forest, method)(rows)
            assert pickle.dumps(forest) == before


@pytest.mark.parametrize("X", [ROWS[:, :1], np.ones((3, 3)), ROWS[0], [["a", "b"]], None], ids=range(5))
def test_rejects_rows_of_wrong_shape(X):
    forest = build().partial_fit(ROWS[:30])
    before = pickle.dumps(forest)
    for method in ("partial_fit", "score_then_learn", "delete_rows"):
        with pytest.raises((ValueError, TypeError)):
            getattr(forest, method)(X)
        assert pickle.dumps(forest) == before


def test_empty_chunk_changes_nothing():
    forest = build()
    with pytest.raises(ValueError, match=r"0 sample\(s\)"):
        forest.partial_fit(ROWS[:0])
    assert not hasattr(forest, "forest_")
    forest.partial_fit(ROWS[:30])
    before = bits(forest)
    assert forest.score_then_learn(ROWS[:0]).shape == (0,)
    assert forest.score_then_learn(ROWS[:0], keys=[], times=[]).shape == (0,)
    assert bits(forest.partial_fit(ROWS[:0]).delete([])) == before
    with pytest.raises(ValueError, match="1 keys for 0 rows"):
        forest.partial_fit(ROWS[:0], keys=["a"])


@pytest.mark.parametrize("rows", [ROWS.tolist(), np.asfortranarray(ROWS), ROWS.astype(object), np.repeat(ROWS, 2, 1)])
def test_accepts_rows_in_any_container(rows):
    rows = rows[:, ::2] if isinstance(rows, np.ndarray) and rows.shape[1] == 4 else rows
    assert bits(build().partial_fit(rows[:9]).partial_fit(rows[9:])) == bits(build().partial_fit(ROWS))
    locked = ROWS.copy()
    locked.setflags(write=False)
    assert bits(build().partial_fit(locked[:9]).partial_fit(locked[9:])) == bits(build().partial_fit(ROWS))


# ---- parameters -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"n_estimators": 7},
        {"max_samples": 5},
        {"window": 4},
        {"window": "auto"},
        {"window": None},
        {"window": Window(duration=1.0)},
        {"window": Reservoir(3)},
        {"max_depth": 1},
        {"prior_strength": 0.5},
        {"lifetime": 0.01},
        {"feature_weights": [5.0, 0.0]},
        {"score_type": "mass"},
        {"score_type": "log_mass"},
        {"domain": [[-1.0, -1.0], [1.0, 1.0]]},
        {"domain": "data"},
        {"random_state": 1},
        {"n_jobs": 2},
    ],
    ids=str,
)
def test_parameters_set_on_live_stream_apply_after_fit(change):
    forest, unchanged = (build().partial_fit(ROWS[:30]) for _ in range(2))
    own = {name: value for name, value in change.items() if name in TREE}
    forest.set_params(**{"tree": Tree(**own)} if own else change)
    np.testing.assert_array_equal(forest.score_then_learn(ROWS[30:50]), unchanged.score_then_learn(ROWS[30:50]))
    assert bits(forest.delete(45).rebuild()) == bits(unchanged.delete(45).rebuild())
    np.testing.assert_array_equal(forest.mass(ROWS, 0.5), unchanged.mass(ROWS, 0.5))
    assert forest.offset_ == unchanged.offset_
    np.testing.assert_array_equal(forest.decision_function(FAR), unchanged.decision_function(FAR))


def test_contamination_set_on_live_stream_applies_after_next_change():
    forest, unchanged = (build(window=40, contamination=0.1).partial_fit(ROWS[:50]) for _ in range(2))
    assert forest.set_params(contamination=0.5).partial_fit(ROWS[50:51]).offset_ > unchanged.offset_
    assert forest.offset_ == build(window=40, contamination=0.5).partial_fit(ROWS[:51]).offset_


@pytest.mark.parametrize("domain", [None, "data", [[-1e9, -1e9], [1e9, 1e9]]])
def test_stream_keeps_its_initial_domain(domain):
    forest = build(domain=DOMAIN).partial_fit(ROWS[:30]).set_params(tree=Tree(domain=domain))
    before = bits(forest)
    with pytest.raises(ValueError, match="outside the domain"):
        forest.partial_fit(FAR)
    assert bits(forest) == before


def test_fit_applies_parameters_set_on_live_stream():
    forest = build().partial_fit(ROWS[:30]).set_params(window=4, n_estimators=2, tree=Tree(max_depth=1)).fit(ROWS)
    assert bits(forest) == bits(build(window=4, n_estimators=2, max_depth=1).fit(ROWS))


def test_parameters_are_checked_when_a_stream_starts():
    for change in ({"n_estimators": 0}, {"score_type": "density"}, {"contamination": 0.9}, {"n_jobs": 0}):
        for call in ("partial_fit", "score_then_learn", "insert"):
            forest = build(**change)
            with pytest.raises(ValueError, match=next(iter(change))):
                STREAM_CALLS[call](forest)
            assert not [name for name in vars(forest) if name.endswith("_")]


# ---- verdicts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("contamination", [0.1, 0.5])
def test_contamination_is_the_flagged_share_of_points_held(score, contamination):
    forest = build(n_estimators=5, window=40, max_depth=6, score_type=score, contamination=contamination)
    for part in chunks(40):
        forest.partial_fit(ROWS[part] * (1 + part.start))
        assert (forest.predict(forest.points_) == -1).mean() == pytest.approx(contamination, abs=0.03)
        np.testing.assert_array_equal(forest.decision_function(ROWS), forest.score_samples(ROWS) - forest.offset_)


@pytest.mark.parametrize("score", SCORES)
def test_threshold_follows_the_points_held(score):
    forest = build(n_estimators=10, window=30, score_type=score).partial_fit(ROWS[:40])
    there = ROWS[40:] + np.array([500.0, 0.0])
    assert (forest.predict(there) == -1).all() or score in ("mass", "log_mass")  # which tell far rows badly
    before = forest.offset_
    forest.partial_fit(there)
    assert forest.offset_ != before
    assert (forest.predict(there[10:]) == 1).mean() > 0.8
    assert (forest.predict(ROWS[:40]) == -1).all() or score in ("mass", "log_mass")
    forest.delete(forest.keys_[:5])
    assert forest.offset_ == pickle.loads(pickle.dumps(build_like(forest))).offset_


def build_like(forest):
    """Return the same forest without derived attributes."""
    return without_derived(copy.deepcopy(forest))


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("contamination", ["auto", 0.1])
def test_threshold_of_summary_uses_last_points_kept(score, contamination, short_warm_up):
    forest, asked, by_row = (
        build(window=None, max_depth=6, score_type=score, contamination=contamination) for _ in range(3)
    )
    forest.partial_fit(ROWS)
    for part in pairwise([0, 3, 6, 7, 8, 9, 40, 80]):
        asked.partial_fit(ROWS[slice(*part)]).predict(ROWS)
    for row in ROWS:
        by_row.insert(row)
    assert np.isfinite(forest.offset_)
    assert forest.offset_ == asked.offset_ == by_row.offset_
    assert forest.predict(FAR) == [-1] or score in ("mass", "log_mass")
    assert (forest.predict(ROWS) == 1).any()


@pytest.mark.parametrize("score", SCORES)
def test_threshold_of_fitted_summary_uses_held_out_rows(score):
    forest = build(window=None, max_depth=6, score_type=score, contamination=0.25).fit(ROWS)
    assert (forest.predict(ROWS) == -1).mean() == pytest.approx(0.25, abs=0.15)
    before = forest.offset_
    assert forest.partial_fit(ROWS * 3).offset_ == before
    assert forest.predict(FAR) == [-1]


# ---- rebuilding -----------------------------------------------------------------------------------------------------


def test_rebuild_weighs_features_by_points_held():
    forest = build(window=20).fit(ROWS[:20]).partial_fit(ROWS[20:40] * [1e3, 1.0])
    deviation = np.abs(forest.points_ - forest.points_.mean(axis=0)).mean(axis=0)
    assert (forest.forest_.weights @ deviation > 10).all()
    keys, points, before = forest.keys_, forest.points_, forest.mass(ROWS)
    forest.rebuild()
    np.testing.assert_allclose(forest.forest_.weights @ deviation, 1.0)
    assert forest.keys_ == keys
    np.testing.assert_array_equal(forest.points_, points)
    assert (forest.mass(ROWS) != before).any()
    assert_whole(forest)
    forest.partial_fit(ROWS[40:50]).delete(45)
    assert_whole(forest)


def test_rebuild_draws_new_trees_reproducibly():
    one, other = (build().partial_fit(ROWS[:30]) for _ in range(2))
    once, twice = bits(one.rebuild()), bits(one.rebuild())
    assert once != twice
    assert bits(other.rebuild().rebuild()) == twice


# ---- copies ---------------------------------------------------------------------------------------------------------

COPIES = {
    "pickle": lambda forest: pickle.loads(pickle.dumps(forest)),
    "oldest pickle": lambda forest: pickle.loads(pickle.dumps(forest, protocol=0)),
    "deepcopy": copy.deepcopy,
}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("name", [*WINDOWS, "summary"])
def test_copy_continues_bit_for_bit_and_independently(name, how, short_warm_up):
    window, given = WINDOWS.get(name, (None, {}))
    for begun in (3, 30):  # while weights are being learned, and after
        part, rest = ({what: v[cut] for what, v in given.items()} for cut in (slice(begun), slice(begun, 70)))
        original = build(window=window, max_depth=4).partial_fit(ROWS[:begun], **part)
        expected = bits(original)
        twin = COPIES[how](original)
        assert bits(twin) == expected
        scores = twin.score_then_learn(ROWS[begun:70], **rest)
        assert bits(original) == expected  # untouched by what the other learned
        np.testing.assert_array_equal(original.score_then_learn(ROWS[begun:70], **rest), scores)
        if name != "summary":
            for forest in (original, twin):
                forest.delete(forest.keys_[1::3]).rebuild()
        assert bits(original) == bits(twin)
        assert original.offset_ == twin.offset_
        np.testing.assert_array_equal(original.log_density(ROWS), twin.log_density(ROWS))


def test_copy_of_empty_stream_works():
    forest = build().partial_fit(ROWS[:5])
    twin = COPIES["pickle"](forest.delete(forest.keys_))
    assert bits(twin.partial_fit(ROWS[5:20])) == bits(forest.partial_fit(ROWS[5:20]))


def test_clone_has_only_the_parameters():
    window = Window(9, duration=30.0)
    forest = build(window=window).partial_fit(ROWS, times=TIMES)
    twin = clone(forest)
    assert not hasattr(twin, "forest_")
    assert twin.get_params() == forest.get_params()
    assert bits(twin.partial_fit(ROWS, times=TIMES)) == bits(forest)


# ---- memory ---------------------------------------------------------------------------------------------------------


def room(forest):
    """Return the sizes of everything that a stream keeps."""
    stream = forest._stream
    holdings = stream.store
    arrays = {**stream.forest._asdict(), **stream.points._asdict(), **vars(holdings)}
    sizes = {name: getattr(part, "shape", None) for name, part in arrays.items() if isinstance(part, np.ndarray)}
    return sizes | {"keys": len(holdings.keys), "slots": len(holdings.slot_of), "queue": len(holdings._queue)}


@pytest.mark.parametrize("size", [1, 13])
@pytest.mark.parametrize("max_depth", [None, 3])
@pytest.mark.parametrize("window", [10, Window(10, duration=1e9), Window(duration=10.0), Reservoir(10)], ids=repr)
def test_memory_is_bounded_for_long_streams(window, max_depth, size):
    forest = build(window=window, max_depth=max_depth, n_estimators=2)
    rooms = []
    for k in range(4):
        for part in chunks(size):
            forest.partial_fit(ROWS[part], times=80 * k + np.arange(part.start, part.stop, dtype=float))
        rooms.append(room(forest))
    assert rooms[1] == rooms[2] == rooms[3]
    assert len(forest._stream.points.values) <= 2 * (10 + size)
    assert forest._stream.forest.left.shape[1] <= 2 * (2 * (10 + size) - 1) + grow.SPARE_NODES
    assert rooms[-1]["queue"] == rooms[-1]["slots"] == forest.n_points_ == 10


def test_unused_slots_are_empty():
    forest = build(window=10).partial_fit(ROWS).delete([75, 77, 79])
    stream = forest._stream
    free = np.setdiff1d(np.arange(len(stream.points.values)), stream.store.held)
    assert not stream.points.values[free].any()
    for t, size in enumerate(forest.forest_.size):
        for name in NODE_PARTS:
            assert not getattr(forest.forest_, name)[t, size:].any(), name
