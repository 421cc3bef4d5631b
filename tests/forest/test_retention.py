"""Points that a stream holds: retention policies, times, and holdings."""

import copy
import pickle
from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pandas as pd
import polars as pl
import pytest
from effort import examples
from forests import made
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from streams import assert_whole, bits

from polyaforest import Reservoir, StreamingMPF, Window
from polyaforest.forest.point_store import PointStore
from polyaforest.kernels.arrays import NONE

ROWS = np.random.default_rng(0).normal(size=(40, 2))
POLICIES = [
    Window(3),
    Window(timedelta(seconds=3)),
    Window(duration=2.5),
    Window(2, duration=3.0),
    Reservoir(3),
    Reservoir(3, half_life=2),
    Reservoir(3, half_life=timedelta(seconds=2)),
]


def build(window, **parameters):
    return made(StreamingMPF, **{"n_estimators": 1, "random_state": 0} | parameters, window=window)


def learn(window, times, **parameters):
    """Return a forest that has learned one row for each time."""
    return build(window, **parameters).partial_fit(ROWS[: len(times)], times=times)


# ---- policies -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_policy_compares_by_value(policy):
    same = eval(repr(policy), {"Window": Window, "Reservoir": Reservoir, "datetime": __import__("datetime")})
    for twin in (same, copy.copy(policy), copy.deepcopy(policy), pickle.loads(pickle.dumps(policy))):
        assert twin == policy
        assert hash(twin) == hash(policy)
        assert repr(twin) == repr(policy)
    assert [other == policy for other in POLICIES].count(True) == 1
    assert policy != policy.n
    with pytest.raises(AttributeError):
        policy.n = 4


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_clone_copies_policy(policy):
    forest = build(policy)
    assert clone(forest).window == policy
    assert repr(policy) in repr(forest)


def test_accepts_durations_in_several_types():
    hour = timedelta(hours=1)
    assert Window(hour) == Window(duration=hour) == Window(duration=3600) == Window(duration=Fraction(3600))
    assert Window(hour) == Window(pd.Timedelta(hours=1)) == Window(duration=np.float32(3600))
    assert Window(5, hour) == Window(5, duration=3600.0) == Window(np.int64(5), duration=hour)
    assert Window(duration=timedelta(milliseconds=1)).duration == 0.001
    assert Reservoir(5, half_life=10) == Reservoir(np.int32(5), half_life=10.0)
    assert Reservoir(5, half_life=10) != Reservoir(5, half_life=timedelta(seconds=10))


@pytest.mark.parametrize("unit", ["ns", "s", "h", "D"])
def test_accepts_numpy_durations_in_any_unit(unit):
    length = np.timedelta64(3, unit)
    seconds = float(length / np.timedelta64(1, "s"))
    assert Window(length) == Window(duration=length) == Window(duration=seconds)
    assert Reservoir(5, half_life=length).half_life == seconds
    assert Reservoir(5, half_life=length).needs_times


@pytest.mark.parametrize("n", [0, -1, True, False, 2.0, 2.5, np.nan, "5", np.float64(3), np.True_, [5]])
@pytest.mark.parametrize("policy", [Window, Reservoir])
def test_rejects_invalid_number_of_points(policy, n):
    with pytest.raises(ValueError, match=f"{policy.__name__} requires a positive integer number of points; got"):
        policy(n)


@pytest.mark.parametrize(
    "length", [0, 0.0, -1, -0.5, np.nan, np.inf, True, "1 h", timedelta(0), timedelta(hours=-1), [1.0]]
)
def test_rejects_invalid_duration(length):
    with pytest.raises(ValueError, match="duration must be a positive number or timedelta; got"):
        Window(duration=length)
    with pytest.raises(ValueError, match="duration must be a positive number or timedelta; got"):
        Window(5, length)
    with pytest.raises(ValueError, match="half_life must be a positive number or timedelta; got"):
        Reservoir(5, half_life=length)


def test_rejects_missing_and_conflicting_arguments():
    with pytest.raises(TypeError, match="two durations"):
        Window(timedelta(hours=1), duration=60.0)
    with pytest.raises(TypeError, match="requires a number of points, a duration, or both"):
        Window()
    with pytest.raises(TypeError):
        Reservoir()


def test_float_as_number_of_points_names_duration_argument():
    with pytest.raises(ValueError, match="pass a duration as duration="):
        Window(3600.0)


@pytest.mark.parametrize("n", [4, np.int64(4), np.uint8(4)])
def test_integer_is_a_window(n):
    plain, spelt_out = build(n).partial_fit(ROWS), build(Window(4)).partial_fit(ROWS)
    assert plain.keys_ == [36, 37, 38, 39]
    assert bits(plain) == bits(spelt_out)
    assert plain.get_params()["window"] is n


def test_duration_is_a_window():
    times, hour = 1800.0 * np.arange(8), timedelta(hours=1)
    plain, spelt_out = learn(hour, times), learn(Window(hour), times)
    assert plain.keys_ == [6, 7]
    assert bits(plain) == bits(spelt_out)
    assert clone(plain).window == hour


@pytest.mark.parametrize("window", [0, -3, 2.5, "all", [5], True, np.nan], ids=repr)
def test_learning_rejects_invalid_window_and_leaves_forest_unfitted(window):
    for begin in ("fit", "partial_fit", "score_then_learn"):
        forest = build(window)
        with pytest.raises(ValueError, match=r"(?i)window"):
            getattr(forest, begin)(ROWS)
        assert not [name for name in vars(forest) if name.endswith("_")]
    with pytest.raises(ValueError, match=r"(?i)window"):
        build(window).insert(ROWS[0])


# ---- windows in time ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_one_call", [True, False])
@pytest.mark.parametrize(
    ("window", "times", "keys"),
    [
        pytest.param(
            Window(duration=10), [0, 5, 9.999, 10, 14.999, 15], [2, 3, 4, 5], id="leaves when that far behind"
        ),
        pytest.param(Window(duration=10), [0, 1, 2, 1000], [3], id="a gap empties it"),
        pytest.param(Window(duration=10), [0, 8, 3, 10, 12.9, 13], [1, 3, 4, 5], id="late, leaves in its turn"),
        pytest.param(Window(duration=10), [0, 20, 10, 10.1], [1, 3], id="too late"),
        pytest.param(Window(duration=10), [5, 5, 5, 5], [0, 1, 2, 3], id="all at once"),
        pytest.param(Window(duration=10), [5, 5, 5, 15], [3], id="leave together"),
        pytest.param(Window(duration=1e-3), [0, 1e-4, 2e-3], [2], id="short"),
        pytest.param(Window(duration=10), [-100, -95, -89], [1, 2], id="before the epoch"),
        pytest.param(Window(3, duration=10), [0, 1, 2, 3, 4], [2, 3, 4], id="both: too many"),
        pytest.param(Window(3, duration=10), [0, 1, 2, 11, 12], [3, 4], id="both: too old"),
        pytest.param(Window(3, duration=10), [0, 6, 7, 3, 8], [1, 2, 4], id="both: the earliest leaves"),
        pytest.param(Window(3, duration=10), [5, 6, 7, 3], [0, 1, 2], id="both: earlier than all"),
        pytest.param(Window(3, duration=10), [5, 5, 5, 5, 5], [2, 3, 4], id="both: the first of equals leaves"),
        pytest.param(Window(2, duration=100), [0, 0, 1], [1, 2], id="both: only one of two equals leaves"),
        pytest.param(Window(3, duration=10), [5, 5, 5, 6], [1, 2, 3], id="both: only one of three equals leaves"),
    ],
)
def test_time_window_follows_times_of_points(window, times, keys, in_one_call):
    if in_one_call:
        forest = learn(window, times)
    else:
        forest = build(window)
        for row, time in zip(ROWS, times, strict=False):
            forest.insert(row, time=time)
    assert forest.keys_ == keys
    np.testing.assert_array_equal(forest.points_, ROWS[keys])
    assert forest.n_seen_ == len(times)
    assert_whole(forest)


def test_late_point_is_scored_but_not_learned():
    forest = build(Window(duration=10)).fit(ROWS[:3], times=[0.0, 20.0, 21.0])
    keys, expected = forest.keys_, forest.score_samples(ROWS[3:4])
    before = bits(forest)
    assert forest.score_then_learn(ROWS[3:4], times=[11.0]) == expected
    assert forest.insert(ROWS[4], key="late", time=2.0) is None
    assert forest.keys_ == keys == [1, 2]
    assert forest.n_seen_ == 5
    assert bits(forest)[:3] == before[:3]
    assert forest.insert(ROWS[5], key="late", time=12.0) == "late"


def test_clock_advances_only_with_learned_points():
    forest = learn(Window(duration=10), [0.0, 1.0])
    forest.score_samples(ROWS)
    assert forest.keys_ == [0, 1]
    forest.insert(ROWS[2], time=1.0)
    assert forest.keys_ == [0, 1, 2]


def test_fit_keeps_same_points_as_stream():
    times = np.array([0, 8, 3, 3, 12.0, 2, 12, 14])
    for window in (Window(duration=10), Window(3, duration=10), Window(3)):
        assert build(window).fit(ROWS[:8], times=times).keys_ == learn(window, times).keys_


START = datetime(2026, 3, 29, 0, 59, 50)
SECONDS = np.array([0.0, 2.5, 9.0, 10.0, 11.25, 19.0, 30.5])
MOMENTS = [START + timedelta(seconds=float(s)) for s in SECONDS]
AWARE = [moment.replace(tzinfo=UTC) for moment in MOMENTS]
TIMES = {
    "numbers": SECONDS,
    "seconds since 1970": [moment.timestamp() for moment in AWARE],
    "integers and floats": [0, 2.5, 9, 10, 11.25, 19, 30.5],
    "naive": MOMENTS,
    "UTC": AWARE,
    "another zone": [moment.astimezone(timezone(timedelta(hours=-7))) for moment in AWARE],
    "several zones": [m.astimezone(timezone(timedelta(hours=h))) for h, m in enumerate(AWARE)],
    "naive beside aware": [*MOMENTS[:3], *AWARE[3:]],
    "an array of objects": np.array(AWARE, dtype=object),
    "datetime64[ms]": np.array(MOMENTS, "datetime64[ms]"),
    "datetime64[ns]": np.array(MOMENTS, "datetime64[ns]"),
    "a list of datetime64": list(np.array(MOMENTS, "datetime64[us]")),
    "a list of Timestamps": [pd.Timestamp(moment) for moment in MOMENTS],
    "Timestamps with a zone": [pd.Timestamp(moment).tz_convert("Europe/Berlin") for moment in AWARE],
    "a pandas index": pd.DatetimeIndex(MOMENTS),
    "a pandas index with a zone": pd.DatetimeIndex(AWARE).tz_convert("Europe/Berlin"),  # clocks go forward meanwhile
    "a pandas series": pd.Series(MOMENTS, index=range(5, 12)),
    "a pandas series with a zone": pd.Series(AWARE).dt.tz_convert("Europe/Berlin"),
    "a polars series": pl.Series(MOMENTS),
    "a polars series with a zone": pl.Series(AWARE).dt.convert_time_zone("Europe/Berlin"),
    "a tuple": tuple(MOMENTS),
}


@pytest.mark.parametrize("times", TIMES.values(), ids=TIMES.keys())
def test_accepts_times_in_several_types(times):
    window = Window(timedelta(seconds=10))
    expected = [[0], [0, 1], [0, 1, 2], [1, 2, 3], [1, 2, 3, 4], [3, 4, 5], [6]]
    forest = build(window)
    for i, time in enumerate(times):
        assert forest.insert(ROWS[i], time=time) == i
        assert forest.keys_ == expected[i], i
    for n in (4, 7):
        assert build(window).partial_fit(ROWS[:n], times=times[:n]).keys_ == expected[n - 1]
        assert build(window).fit(ROWS[:n], times=times[:n]).keys_ == expected[n - 1]


def test_accepts_dates_as_times():
    days = np.array(["2026-01-01", "2026-01-02", "2026-01-03"], "datetime64[D]")
    assert learn(Window(timedelta(days=2)), days).keys_ == [1, 2]


BAD_TIMES = {
    "none": (None, "spans a duration: pass times"),
    "too few": ([1.0], "one time for each of the 3 rows"),
    "too many": ([1.0] * 4, "one time for each of the 3 rows"),
    "a single one": (1.0, "one time for each of the 3 rows"),
    "a column": ([[1.0], [2.0], [3.0]], "one time for each of the 3 rows"),
    "NaN": ([1.0, np.nan, 3.0], "the time of row 1 is nan"),
    "None": ([1.0, 2.0, None], "the time of row 2 is nan"),
    "infinity": ([np.inf, 2.0, 3.0], "the time of row 0 is inf"),
    "NaT": (np.array(["2026-01-01", "NaT", "2026-01-01"], "datetime64[s]"), "the time of row 1 is nan"),
    "NaT of pandas": ([pd.Timestamp("2026-01-01"), pd.NaT, pd.Timestamp("2026-01-01")], "time"),
    "text": (["noon", "one", "two"], "times must be numbers or dates"),
    "lengths of time": ([timedelta(0), timedelta(1), timedelta(2)], "times must be"),
    "lengths of time of NumPy": (np.array([0, 1, 2], "timedelta64[ns]"), "times"),
}


@pytest.mark.parametrize(("times", "message"), BAD_TIMES.values(), ids=BAD_TIMES.keys())
@pytest.mark.parametrize(
    "window", [Window(duration=10.0), Reservoir(2, half_life=timedelta(seconds=5))], ids=["window", "reservoir"]
)
def test_rejects_invalid_times_and_changes_nothing(window, times, message):
    unfitted, forest = build(window), learn(window, [0.0, 1.0])
    before = pickle.dumps(forest)
    for method in ("partial_fit", "score_then_learn", "fit"):
        with pytest.raises(ValueError, match=message):
            getattr(forest, method)(ROWS[5:8], times=times)
        assert pickle.dumps(forest) == before, method
        with pytest.raises(ValueError, match=message):
            getattr(unfitted, method)(ROWS[5:8], times=times)
        assert not [name for name in vars(unfitted) if name.endswith("_")]


@pytest.mark.parametrize("time", [None, np.nan, pd.NaT, np.datetime64("NaT")])
def test_rejects_point_without_required_time(time):
    forest = learn(Window(duration=10), [0.0])
    before = pickle.dumps(forest)
    with pytest.raises(ValueError, match="time"):
        forest.insert(ROWS[1], time=time)
    assert pickle.dumps(forest) == before


def test_unneeded_times_are_checked_and_ignored():
    without, with_times = build(3).partial_fit(ROWS[:9]), learn(3, np.arange(9.0)[::-1])
    assert bits(without) == bits(with_times)
    with_times.partial_fit(ROWS[9:10])
    assert with_times.keys_ == [7, 8, 9]
    with pytest.raises(ValueError, match="one time for each"):
        with_times.partial_fit(ROWS[10:12], times=[1.0])


# ---- reservoirs -----------------------------------------------------------------------------------------------------


def test_insert_reports_points_rejected_by_reservoir():
    forest = build(Reservoir(3))
    kept = [forest.insert(row) for row in ROWS]
    assert kept[:3] == [0, 1, 2]
    assert None in kept
    assert set(forest.keys_) <= {key for key in kept if key is not None}
    assert (forest.n_points_, forest.n_seen_) == (3, len(ROWS))
    assert forest.keys_ == sorted(forest.keys_)
    np.testing.assert_array_equal(forest.points_, ROWS[forest.keys_])
    assert_whole(forest)


def test_key_of_rejected_point_is_reusable():
    forest = build(Reservoir(1))
    while forest.insert(ROWS[0], key="again") is not None:
        forest.delete("again")
        forest.insert(ROWS[1])
    assert "again" not in forest.keys_
    forest.insert(ROWS[2], key="again")


def test_reservoir_depends_on_seed_only():
    one, same, other = (build(Reservoir(5), random_state=seed).partial_fit(ROWS) for seed in (1, 1, 2))
    assert one.keys_ == same.keys_ != other.keys_


def held_by(policy, n, seed, remove=None, after=None):
    """Return the arrivals that `policy` holds of a stream of `n`; delete arrival `remove`, if held, at time `after`."""
    holdings = PointStore(policy)
    holdings.reserve(policy.n + 1)
    for i, draw in enumerate(np.random.default_rng(seed).exponential(size=n)):
        holdings.release(holdings.admit([None], np.array([float(i)]), np.array([draw])).leaving.tolist())
        if i == after and remove in holdings.slot_of:
            slots = [holdings.slot_of[remove]]
            holdings.remove(slots)
            holdings.release(slots)
    return holdings.held_keys


N_RUNS = 2000  # shares of them stray by more than 5 / sqrt(4 * N_RUNS) = 0.056 with a chance of one in a million
STRAY = 0.056


def test_reservoir_is_uniform():
    counts = np.zeros(8)
    for seed in range(N_RUNS):
        counts[held_by(Reservoir(3), 8, seed)] += 1
    np.testing.assert_allclose(counts / N_RUNS, 3 / 8, atol=STRAY)


def test_deletion_does_not_favour_later_points():
    counts = np.zeros(8)
    for seed in range(N_RUNS):
        counts[held_by(Reservoir(3), 8, seed, remove=0, after=4)] += 1
    assert counts[0] == 0
    shares = counts[1:] / N_RUNS
    np.testing.assert_allclose(shares, shares.mean(), atol=STRAY)


@pytest.mark.parametrize("half_life", [2, 2.0, timedelta(seconds=2)])
def test_half_life_halves_probability(half_life):
    counts = np.zeros(8)
    for seed in range(N_RUNS):
        counts[held_by(Reservoir(1, half_life=half_life), 8, seed)] += 1
    weights = 2.0 ** (np.arange(8) / 2)
    np.testing.assert_allclose(counts / N_RUNS, weights / weights.sum(), atol=STRAY)


def test_time_half_life_follows_times_of_points():
    forest = build(Reservoir(2, half_life=timedelta(milliseconds=1)))
    forest.partial_fit(ROWS[:6], times=[50.0, 10.0, 40.0, 20.0, 60.0, 30.0])
    assert forest.keys_ == [0, 4]


# ---- holdings --------------------------------------------------------------------------------------------------------


class ReferenceHoldings:
    """What the docstrings say in the plainest words: every point has a rank, and those of highest rank are held.

    No more than `n`, and none that ranks no higher than one that has left for another, or has had its time. Of equal
    ranks the later arrival is the higher.
    """

    def __init__(self, policy):
        self.policy, self.held, self.n_seen, self.clock, self.floor = policy, {}, 0, -np.inf, (-np.inf, 0)

    def come(self, key, time, draw):
        """Add a point; return its key if it is held, and the keys of points that leave."""
        arrivals, self.n_seen = np.array([self.n_seen]), self.n_seen + 1
        rank = float(self.policy.ranks(arrivals, np.array([time]), np.array([draw]))[0])
        key, before = int(arrivals[0]) if key is None else key, set(self.held)
        self.held[key] = (rank, int(arrivals[0]))
        if isinstance(self.policy, Window) and self.policy.duration is not None:
            self.clock = max(self.clock, time)
            self.floor = max(self.floor, (self.clock - self.policy.duration, np.inf))
        self.held = {name: place for name, place in self.held.items() if place > self.floor}
        if self.policy.n is not None and len(self.held) > self.policy.n:
            lowest = min(self.held, key=self.held.get)
            self.floor = self.held.pop(lowest)
        return (key if key in self.held else None), before - set(self.held)


draws_of_rows = st.integers(0, 2**32 - 1).map(np.random.default_rng)
steps = st.lists(
    st.one_of(
        st.lists(st.tuples(st.integers(0, 9).map(float), st.booleans()), min_size=1, max_size=6),
        st.sets(st.integers(0, 20), min_size=1, max_size=4),
    ),
    max_size=12,
)


@settings(max_examples=examples(150))
@given(policy=st.sampled_from(POLICIES), steps=steps, rng=draws_of_rows)
def test_holdings_match_reference_implementation(policy, steps, rng):
    holdings, reference = PointStore(policy), ReferenceHoldings(policy)
    where, in_use = {}, set()
    for step in steps:
        if isinstance(step, set):  # delete some of those held
            gone = [key for place, key in enumerate(holdings.held_keys) if place in step]
            slots = [where.pop(key) for key in gone]
            holdings.remove(slots)
            for key in gone:
                del reference.held[key]
            in_use -= set(slots)
            holdings.release(slots)
        else:
            holdings.reserve(len(holdings) + len(step))
            keys = [f"key {reference.n_seen + i}" if named else None for i, (_, named) in enumerate(step)]
            times, draws = np.array([time for time, _ in step]), rng.exponential(size=len(step))
            schedule = holdings.admit(keys, times, draws)
            n_left = 0
            for i, key in enumerate(keys):
                kept, leaving = reference.come(key, times[i], draws[i])
                if kept is not None:
                    where[kept] = int(schedule.slots[i])
                    assert where[kept] not in in_use  # a slot is reused only once its deletion is complete
                    in_use.add(where[kept])
                assert (schedule.slots[i] == NONE) == (kept is None)
                assert set(schedule.leaving[n_left : schedule.until[i]].tolist()) == {where.pop(k) for k in leaving}
                n_left = schedule.until[i]
            assert n_left == len(schedule.leaving)
            in_use -= set(schedule.leaving.tolist())
            holdings.release(schedule.leaving.tolist())
        assert_same(holdings, reference, where)


def assert_same(holdings, reference, where):
    """Check that the holdings equal those of the reference implementation."""
    by_arrival = sorted(reference.held, key=lambda key: reference.held[key][1])
    assert holdings.held_keys == by_arrival
    assert holdings.held.tolist() == [where[key] for key in by_arrival]
    assert (len(holdings), holdings.n_seen) == (len(reference.held), reference.n_seen)
    free = np.setdiff1d(np.arange(holdings.capacity), holdings.held)
    assert (holdings.arrivals[free] == NONE).all()
    assert not holdings.ranks[free].any()
    assert not holdings.times[free].any()
    assert all(holdings.keys[slot] is None for slot in free)


@settings(max_examples=examples(60))
@given(
    policy=st.sampled_from(POLICIES),
    times=st.lists(st.integers(0, 12).map(float), min_size=1, max_size=20),
    rng=draws_of_rows,
    data=st.data(),
)
def test_holdings_do_not_depend_on_chunk_size(policy, times, rng, data):
    draws, n = rng.exponential(size=len(times)), len(times)
    bounds = sorted({0, n, *data.draw(st.lists(st.integers(0, n), max_size=3))})
    whole, parts = PointStore(policy), PointStore(policy)
    for holdings, cuts in ((whole, [0, n]), (parts, bounds)):
        for start, stop in pairwise(cuts):
            holdings.reserve(len(holdings) + stop - start)
            chunk = slice(start, stop)
            holdings.release(holdings.admit([None] * (stop - start), np.array(times)[chunk], draws[chunk]).leaving)
    assert whole.held_keys == parts.held_keys
    assert (whole.clock, whole.floor, whole.n_seen) == (parts.clock, parts.floor, parts.n_seen)


def test_rejects_duplicate_keys_given_or_generated():
    holdings = PointStore(Window(5))
    holdings.reserve(5)
    holdings.admit(["a", None, 7], np.zeros(3), np.empty(0))
    holdings.check_keys(["b", None, 1000])
    for keys in (["a"], ["b", "b"], [1], [7], ["b", 5, None]):
        with pytest.raises(ValueError, match="is already in use"):
            holdings.check_keys(keys)
    assert holdings.held_keys == ["a", 1, 7]
