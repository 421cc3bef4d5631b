"""The right to be forgotten: a point that was deleted or expired leaves no trace."""

import copy
import struct
from datetime import timedelta

import numpy as np
import pytest
from forests import made
from readers import READERS
from streams import assert_whole, bytes_of

from polyaforest import Reservoir, StreamingMPF, Tree, Window
from polyaforest.forest import stream

MARK = 123456.789e7
SECRET = np.full((1, 3), MARK)  # beyond all others, on the edge of every box that holds it
HIDDEN = np.array([[0.1 * MARK, 0.3 * MARK, -0.7 * MARK]])  # amidst others
NAME, NUMBER = "Jane Roe, 7 Elm Street", 555_012_345
ROWS = np.random.default_rng(0).normal(size=(40, 3))
WIDE = ROWS * MARK  # among which the hidden one does not stand out
TIMES = np.arange(40.0)


def build(**parameters):
    return made(StreamingMPF, **{"n_estimators": 3, "random_state": 0, "window": 20} | parameters)


def patterns(point, *keys):
    """Return the traces to search for: each value of a point, in both byte orders, and its keys."""
    values = {value for value in point.ravel().tolist() if value}
    numbers = {struct.pack(order + "d", value) for value in values for order in "<>"}
    return numbers | {str(key).encode() for key in keys} | {struct.pack("<q", k) for k in keys if isinstance(k, int)}


def traces(forest, point, *keys):
    """Count the traces in a forest."""
    found = bytes_of(forest)
    return sum(pattern in found for pattern in patterns(point, *keys))


def look_around(forest):
    """Derive all attributes: posterior, threshold, results."""
    for name, arguments in READERS.items():
        getattr(forest, name)(np.concatenate([ROWS, WIDE]), **arguments)
    assert not np.isnan(forest.offset_)
    assert str(forest.explain(ROWS[:1])[0])
    forest.p_value(ROWS)


# ---- the search -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", [SECRET, HIDDEN], ids=["secret", "hidden"])
@pytest.mark.parametrize("key", [NAME, NUMBER])
def test_search_finds_held_point(point, key):
    forest = build().partial_fit(WIDE[:10])
    assert traces(forest, point, key) == 0
    forest.insert(point[0], key=key)
    found = bytes_of(forest)
    for value in point.ravel():
        assert struct.pack("<d", value) in found
    assert str(key).encode() in found


@pytest.mark.parametrize(
    "hide",
    [
        lambda secret: np.array([0.0, secret]),
        lambda secret: np.array([secret, 0.0])[1:],  # in what a view is a view of
        lambda secret: np.array([{"a": [secret]}], dtype=object),
        lambda secret: {"a": (1, [secret])},
        lambda secret: {secret: 1},
        lambda secret: {secret},
        lambda secret: Window(duration=secret),
        np.float64,
        lambda secret: StreamingMPF(tree=Tree(lifetime=secret)),
        lambda secret: f"{secret}",
        lambda secret: struct.pack("<d", secret),
        lambda secret: bytearray(struct.pack("<d", secret)),
    ],
)
def test_search_covers_everything(hide):
    forest = build().partial_fit(ROWS[:5])
    forest._stream.store.anywhere = [hide(MARK)]
    found = bytes_of(forest)
    assert struct.pack("<d", MARK) in found or str(MARK).encode() in found


# ---- deletion -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_depth", [None, 0, 2])
@pytest.mark.parametrize("point", [SECRET, HIDDEN], ids=["secret", "hidden"])
@pytest.mark.parametrize("how", ["by key", "by value"])
@pytest.mark.parametrize("looked_at", [True, False])
def test_deleted_point_leaves_no_trace(how, point, max_depth, looked_at):
    forest = build(max_depth=max_depth).partial_fit(WIDE[:9])
    forest.score_then_learn(point, keys=[NAME])
    forest.partial_fit(WIDE[9:13])
    if looked_at:
        look_around(forest)
    forest.delete(NAME) if how == "by key" else forest.delete_rows(point)
    assert traces(forest, point, NAME) == 0
    assert_whole(forest)
    look_around(forest)
    assert traces(forest, point, NAME) == 0
    assert traces(copy.deepcopy(forest.partial_fit(WIDE[13:])), point, NAME) == 0


@pytest.mark.parametrize("place", [0, 1, 3, 7, 30])
def test_deleted_point_leaves_no_trace_at_any_arrival(place):
    """Include arrivals during warm-up, where the trees must be rebuilt to weigh features without the point."""
    forest = build()
    for i, row in enumerate(ROWS[: place + 1]):
        forest.insert(SECRET[0] if i == place else row, key=NAME if i == place else None)
    forest.delete(NAME).rebuild()
    assert traces(forest, SECRET, NAME) == 0
    assert (forest.forest_.weights > 1e-6).all()  # in no proportion to the secret
    forest.partial_fit(ROWS[:3])
    assert traces(forest, SECRET, NAME) == 0


@pytest.mark.parametrize("domain", [None, "data", [[-2 * MARK] * 3, [2 * MARK] * 3]], ids=["open", "data", "given"])
def test_only_point_leaves_no_trace(domain):
    forest = build(domain=domain).fit(SECRET, keys=[NAME])
    forest.mass(SECRET)
    forest.delete(NAME).rebuild()
    assert forest.n_points_ == 0
    assert traces(forest, SECRET, NAME) == 0


def test_equal_points_leave_no_trace():
    forest = build().partial_fit(ROWS[:9]).partial_fit(np.repeat(SECRET, 3, axis=0), keys=[NAME, NUMBER, "third"])
    forest.delete(NAME).delete_rows(SECRET)
    assert forest.keys_ == [*range(9), "third"]
    assert traces(forest, SECRET) > 0
    forest.delete("third")
    assert traces(forest, SECRET, NAME, NUMBER, "third") == 0


def test_cuts_that_only_separated_the_point_are_removed():
    """The location of such a cut would reveal the point."""
    forest = build(n_estimators=10).partial_fit(ROWS[:15])
    forest.insert(SECRET[0], key=NAME)
    trees = forest.forest_
    assert (trees.cut[trees.feature >= 0] > ROWS.max()).any()
    assert trees.upper.max() == MARK
    forest.delete(NAME)
    trees = forest.forest_
    for t, size in enumerate(trees.size):
        for j in np.flatnonzero(trees.feature[t, :size] >= 0):
            column = ROWS[:15, trees.feature[t, j]]
            assert column.min() <= trees.cut[t, j] < column.max()
        assert not trees.cut[t, size:].any()
    assert_whole(forest)


def test_trees_match_those_without_the_point():
    """Other cuts do not change, to the bit."""
    forest = build(n_estimators=10, max_samples=None).fit(ROWS[:15])
    before = [cuts_of(forest, t) for t in range(10)]
    forest.insert(SECRET[0], key=NAME)
    assert [cuts_of(forest, t) for t in range(10)] != before
    forest.delete(NAME)
    assert [cuts_of(forest, t) for t in range(10)] == before


def cuts_of(forest, t):
    trees = forest.forest_
    inner = np.flatnonzero(trees.feature[t, : trees.size[t]] >= 0)
    return sorted(zip(*(part[t, inner].tolist() for part in (trees.feature, trees.cut, trees.time)), strict=True))


# ---- expiry ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", [SECRET, HIDDEN], ids=["secret", "hidden"])
@pytest.mark.parametrize("size", [1, 6, 40])
@pytest.mark.parametrize(
    "window",
    [
        5,
        Window(5, duration=1e9),
        Window(timedelta(seconds=5)),
        Reservoir(5, half_life=1e-3),
        Reservoir(5, half_life=timedelta(milliseconds=1)),
    ],
    ids=repr,
)
def test_expired_point_leaves_no_trace(window, size, point):
    forest = build(window=window).partial_fit(point, keys=[NAME], times=[0.0])
    assert traces(forest, point, NAME) > 0
    names = [f"row {i}." for i in range(40)]
    for start in range(0, 40, size):
        part = slice(start, start + size)
        forest.partial_fit(WIDE[part], times=TIMES[part] + 1, keys=names[part])
    assert NAME not in forest.keys_
    assert traces(forest, point, NAME) == 0
    assert traces(forest, WIDE[:20], *names[:20]) == 0


def test_rejected_point_leaves_no_trace():
    forest = build(window=Window(duration=5.0)).partial_fit(ROWS[:9], times=TIMES[:9] + 50)
    assert forest.insert(SECRET[0], key=NAME, time=1.0) is None
    assert traces(forest, SECRET, NAME) == 0
    forest = build(window=Reservoir(3)).partial_fit(ROWS)
    while forest.insert(SECRET[0], key=NAME) is not None:
        forest.delete(NAME)
    assert traces(forest, SECRET, NAME) == 0


def test_scored_point_leaves_no_trace():
    forest = build().partial_fit(ROWS[:9])
    forest.score_samples(SECRET)
    forest.predict(SECRET)
    assert traces(forest, SECRET) == 0


def test_failed_calls_leave_no_trace():
    forest = build(window=5).fit(np.concatenate([SECRET, WIDE]), keys=[NAME, *range(40)])
    assert traces(forest, SECRET, NAME) == 0
    for rows in (np.concatenate([SECRET, [[np.inf] * 3]]), np.concatenate([SECRET, SECRET])):
        with pytest.raises(ValueError, match=r"infinity|already in use"):
            forest.partial_fit(rows, keys=[NAME, NAME])
        assert traces(forest, SECRET, NAME) == 0


def test_refit_leaves_no_trace_of_earlier_points():
    forest = build().partial_fit(SECRET, keys=[NAME])
    look_around(forest)
    assert traces(forest.fit(ROWS), SECRET, NAME) == 0


# ---- summaries ------------------------------------------------------------------------------------------------------


def test_summary_keeps_only_edges_of_leaves(monkeypatch):
    monkeypatch.setattr(stream, "WARM_UP", 8)
    forest = build(window=None, max_depth=0).partial_fit(WIDE[:5])
    forest.insert(HIDDEN[0])
    assert traces(forest, HIDDEN) > 0
    forest.partial_fit(WIDE[5:])
    assert traces(forest, HIDDEN) == 0
    forest.partial_fit(HIDDEN)
    look_around(forest)
    assert traces(forest, HIDDEN) == 0
    n = forest.n_points_
    assert forest.delete_rows(HIDDEN).delete_rows(HIDDEN).n_points_ == n - 2
    assert traces(forest, HIDDEN) == 0
