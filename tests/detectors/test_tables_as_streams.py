"""A table equals a stream in one chunk: points held and verdicts do not depend on chunks."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from effort import examples, mostly_slow
from forests import made
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from strategies import policies, seeds, stream_times

from polyaforest import EpsilonPhi, Reservoir, SeriesMPF, StreamingMPF, Window
from polyaforest.forest.point_store import PointStore

pytestmark = pytest.mark.property

N_TREES, N_ROWS = 3, 220
DRAWS = st.sampled_from([0.01, 0.3, 0.5, 1.0, 2.0, 4.0])  # few, so that ranks are often equal


@st.composite
def arrivals(draw, max_size):
    """Draw keys, times and random draws of consecutive rows, some of them late."""
    n = draw(st.integers(0, max_size))
    steps = draw(st.lists(stream_times, min_size=n, max_size=n))
    times, now = [], 0.0
    for step in steps:
        times.append(max(now + step, 0.0))
        now = max(now, times[-1])
    keys = draw(st.lists(st.none() | st.text("abc", min_size=1, max_size=4), min_size=n, max_size=n))
    distinct = [None if key in keys[:i] else key for i, key in enumerate(keys)]
    return distinct, np.array(times), np.array(draw(st.lists(DRAWS, min_size=n, max_size=n)))


def admitted(store, keys, times, draws):
    """Admit rows one by one; return the keys of points that left, in order."""
    left = []
    for i in range(len(keys)):
        store.reserve(len(store) + 1)
        known = dict(store.slot_of)
        schedule = store.admit(keys[i : i + 1], times[i : i + 1], draws[i : i + 1])
        name = {slot: key for key, slot in known.items()}
        if schedule.slots[0] >= 0:
            name[int(schedule.slots[0])] = store.n_seen - 1 if keys[i] is None else keys[i]
        left += [name[slot] for slot in schedule.leaving.tolist()]
        store.release(schedule.leaving.tolist())
    return left


def cutoff(store):
    """Return the rank that a row must exceed, because of the limit in number or in time."""
    return max(store.floor, store.policy.floor(store.clock))


def assert_alike(whole, alone):
    assert whole.held_keys == alone.held_keys
    assert (whole.n_seen, whole.clock, whole.newest_key) == (alone.n_seen, alone.clock, alone.newest_key)
    for name in ("arrivals", "ranks", "times"):
        assert_array_equal(getattr(whole, name)[whole.held], getattr(alone, name)[alone.held])
    assert cutoff(whole) == cutoff(alone)
    whole.check()
    alone.check()


@given(policy=policies, table=arrivals(20), later=arrivals(12), data=st.data())
@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.too_slow])
def test_table_holds_same_points_as_rows_one_by_one(policy, table, later, data):
    whole, alone = PointStore(policy), PointStore(policy)
    kept = whole.begin_with(*table)
    admitted(alone, *table)
    assert_array_equal(kept, alone.arrivals[alone.held])
    assert_alike(whole, alone)

    if len(kept) and data.draw(st.booleans()):
        gone = data.draw(st.sampled_from(whole.held_keys))
        for store in whole, alone:
            slots = [store.slot_of[gone]]
            store.remove(slots)
            store.release(slots)
    keys, times, draws = later
    keys = [None if key is None else f"later {key}" for key in keys]
    times = times + max(whole.clock, 0.0) - 1.0
    assert admitted(whole, keys, times, draws) == admitted(alone, keys, times, draws)
    assert_alike(whole, alone)


def test_table_drops_late_and_excess_rows():
    """Show that the test above detects rows kept by place instead of rank."""
    store = PointStore(Window(2, duration=6.0))
    assert store.begin_with([None] * 4, np.array([5.0, 9.0, 3.0, 8.0]), np.empty(0)).tolist() == [1, 3]
    assert store.floor == 5.0
    store = PointStore(Reservoir(2))
    assert store.begin_with([None] * 3, np.full(3, np.nan), np.array([0.5, 2.0, 0.1])).tolist() == [0, 2]


# ---- verdicts and explanations ---------------------------------------------------------------------------------------


def sudden(seed, n_rows, n_features=2):
    """Draw normal rows and a few extreme ones."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n_rows, n_features))
    rows[rng.random(n_rows) < 0.06] *= 12
    return rows


def cut_up(rng, n_rows):
    """Draw chunk boundaries: chunks of one row, of a few, and of more than are explained one by one."""
    ends = np.cumsum(rng.choice([1, 2, 16, 17, 40, 90], size=n_rows))
    return [0, *ends[ends < n_rows].tolist(), n_rows]


def judged(detector, rows, edges, explain):
    parts = [detector.detect_then_learn(rows[start:stop], explain=explain) for start, stop in pairwise(edges)]
    arrays = [np.concatenate([part[k] for part in parts]) for k in range(4)]
    said = {edges[p] + i: one for p, part in enumerate(parts) for i, one in part.explanations.items()}
    return arrays, said


DETECTORS = {
    "window": lambda seed: StreamingMPF(n_estimators=N_TREES, window=60, random_state=seed),
    "table": lambda seed: StreamingMPF(n_estimators=N_TREES, random_state=seed).fit(sudden(seed + 1, 150)),
    "summary": lambda seed: made(StreamingMPF, n_estimators=N_TREES, window=None, max_depth=5, random_state=seed),
    "share": lambda seed: StreamingMPF(n_estimators=N_TREES, contamination=0.1, window=60, random_state=seed),
    "gaps": lambda seed: StreamingMPF(n_estimators=N_TREES, missing="marginalise", window=60, random_state=seed),
    "paper": lambda seed: made(
        StreamingMPF, n_estimators=N_TREES, score_type=EpsilonPhi(0.02, 0.5), max_depth=5, random_state=seed
    ),
    "series": lambda seed: SeriesMPF(
        StreamingMPF(n_estimators=N_TREES, contamination=0.1, window=60, random_state=seed), shingle=3, rescale=1.5
    ),
}


@pytest.mark.parametrize("name", mostly_slow(DETECTORS, *range(0, len(DETECTORS), 2)))
@given(seed=seeds)
@settings(max_examples=examples(2), suppress_health_check=list(HealthCheck))
def test_verdicts_and_explanations_do_not_depend_on_chunks(name, seed):
    seed %= 10_000
    rng, rows = np.random.default_rng(seed), sudden(seed, 270)
    if name == "gaps":
        rows[1:][rng.random(rows[1:].shape) < 0.05] = np.nan
    (arrays, said), *others = (
        judged(DETECTORS[name](seed), rows, edges, explain)
        for edges, explain in (
            ([0, len(rows)], True),
            (list(range(len(rows) + 1)), True),
            (cut_up(rng, len(rows)), True),
            (cut_up(rng, len(rows)), False),
        )
    )
    assert set(said) == set(np.flatnonzero(arrays[2]).tolist())
    assert said
    for theirs, reasons in others:
        assert_array_equal(theirs[2], arrays[2])
        for one, other in zip(arrays, theirs, strict=True):
            assert_allclose(one, other, rtol=1e-12, atol=1e-12)
        assert reasons.keys() in (said.keys(), set())
        for i, reason in reasons.items():
            assert_allclose(reason.parts, said[i].parts, rtol=1e-9, atol=1e-9)
            assert str(reason) == str(said[i])
            assert reason.is_anomaly
            assert reason.p_value == said[i].p_value


@pytest.mark.parametrize("random_state", [None, 3])
def test_stream_that_starts_with_large_chunk_is_explained_by_its_own_trees(random_state):
    """Without a seed, a refitted copy has other trees."""
    rows = sudden(0, 300)
    detected = StreamingMPF(n_estimators=N_TREES, random_state=random_state).detect_then_learn(rows, explain=True)
    assert detected.explanations
    for i, reason in detected.explanations.items():
        assert_allclose(-math.log(2) * reason.surprise, detected.scores[i], rtol=1e-9)


def test_explanation_accepts_rows_keys_and_times_in_any_form():
    pd = pytest.importorskip("pandas")
    rows, times = sudden(1, N_ROWS), np.arange(float(N_ROWS))
    plain = StreamingMPF(n_estimators=N_TREES, window=Window(50, duration=40.0), random_state=0)
    expected = plain.detect_then_learn(rows, keys=list(map(str, range(N_ROWS))), times=times, explain=True)
    frame = pd.DataFrame(rows, columns=["a", "b"], index=np.linspace(0.0, 1.0, N_ROWS))
    forest = StreamingMPF(n_estimators=N_TREES, window=Window(50, duration=40.0), random_state=0)
    found = forest.detect_then_learn(
        frame, keys=(str(i) for i in range(N_ROWS)), times=pd.Series(times, index=frame.index), explain=True
    )
    assert forest.keys_ == plain.keys_
    assert found.explanations.keys() == expected.explanations.keys() != set()
    for i, reason in found.explanations.items():
        assert_array_equal(reason.parts, expected.explanations[i].parts)
        assert list(reason.names) == ["a", "b"]
    masked = np.ma.array(np.column_stack([rows, rows]), mask=np.zeros((N_ROWS, 4), bool))
    masked.mask[5::7, 3] = True
    lists = masked.filled(np.nan)
    one, other = (
        StreamingMPF(n_estimators=N_TREES, missing="marginalise", random_state=0).detect_then_learn(X, explain=True)
        for X in (masked, lists)
    )
    assert one.explanations.keys() == other.explanations.keys() != set()
    for i, reason in one.explanations.items():
        assert_array_equal(reason.parts, other.explanations[i].parts)


def test_bad_row_in_explained_chunk_leaves_forest_unchanged():
    rows = sudden(2, 60)
    rows[50, 1] = np.inf
    forest = StreamingMPF(n_estimators=N_TREES, random_state=0)
    with pytest.raises(ValueError, match="row 50, column 1"):
        forest.detect_then_learn(rows, explain=True)
    assert not hasattr(forest, "forest_")
    with pytest.raises(ValueError, match="2D array"):
        forest.detect_then_learn(3.0, explain=True)
