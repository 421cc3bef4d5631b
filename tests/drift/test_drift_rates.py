"""The time between false alarms is at least half of the time requested, on streams without change.

The tests count the alarms of many streams while each is normal. They fail if the number exceeds the 1 - 1e-4 quantile
of a Poisson law of twice the requested rate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from effort import mostly_slow
from scipy.signal import lfilter
from scipy.stats import expon, poisson

from polyaforest.drift import DriftMonitor
from polyaforest.drift.windows import STEPS, TRIALS, SharedTrees, Windows, exceedance_level

pytestmark = pytest.mark.statistical

_CHANCE = 1e-4
_REFERENCE = 512


def independent(n: int, rng: np.random.Generator) -> np.ndarray:
    return rng.standard_t(3, size=(n, 3))


def ties(n: int, rng: np.random.Generator) -> np.ndarray:
    return np.column_stack([rng.integers(0, 3, n), rng.poisson(0.3, n), rng.random(n) < 0.02]).astype(np.float64)


def autocorrelated(n: int, rng: np.random.Generator) -> np.ndarray:
    return lfilter([1.0], [1.0, -0.7], rng.normal(size=(n + 100, 2)), axis=0)[100:]


def persistent(n: int, rng: np.random.Generator) -> np.ndarray:
    return lfilter([1.0], [1.0, -0.9], rng.normal(size=(n + 100, 2)), axis=0)[100:]


def seasonal(n: int, rng: np.random.Generator) -> np.ndarray:
    phase = 2 * np.pi * np.arange(n) / 48
    return np.column_stack([np.sin(phase) + 0.3 * rng.normal(size=n), rng.normal(size=n) * (1.5 + np.cos(phase))])


def categories(n: int, rng: np.random.Generator) -> pd.DataFrame:
    """A number, and categories: common and rare, some missing, and a column with new ones all the time."""
    shares = 1 / np.arange(1, 31)
    common = np.char.add("c", rng.choice(30, n, p=shares / shares.sum()).astype(str)).astype(object)
    common[rng.random(n) < 0.03] = None
    fresh = np.where(rng.random(n) < 0.1, np.char.add("id", np.arange(n).astype(str)), rng.choice(["a", "b"], n))
    return pd.DataFrame({"u": rng.normal(size=n), "c": pd.Categorical(common), "d": pd.Categorical(fresh)})


STREAMS = [independent, ties, autocorrelated, persistent, seasonal, categories]


def alarms(make: Callable[[int, np.random.Generator], Any], every: int, n: int, seed: int) -> tuple[int, int]:
    """Return the number of alarms on a stream without change, and the points for which it was normal."""
    rows = make(_REFERENCE + n, np.random.default_rng(seed))
    watching = DriftMonitor(reference=_REFERENCE, false_alarms_every=every, n_estimators=16, random_state=seed)
    watching.update(rows[:_REFERENCE])
    status = watching.follow(rows[_REFERENCE:]).status
    is_normal = np.isin(status, ["normal", "outlier"])
    return int((is_normal[:-1] & ~is_normal[1:]).sum()), int(is_normal.sum())


def check_few_alarms(make: Callable[..., Any], every: int, n: int, seeds: range) -> None:
    counted = [alarms(make, every, n, seed) for seed in seeds]
    n_alarms, n_points = np.sum(counted, axis=0)
    most = poisson.isf(_CHANCE, 2 * n_points / every)
    assert n_alarms <= most, f"{n_alarms} alarms in {n_points} points, one in {n_points / n_alarms:.0f} of {every}"


@pytest.mark.parametrize("make", STREAMS, ids=lambda make: make.__name__)
def test_false_alarms_keep_the_requested_rate(make: Callable[..., Any]) -> None:
    check_few_alarms(make, 500, 3000, range(1))


@pytest.mark.slow
@pytest.mark.parametrize("every", [500, 5000])
@pytest.mark.parametrize("make", STREAMS, ids=lambda make: make.__name__)
def test_false_alarms_of_long_streams_keep_the_requested_rate(make: Callable[..., Any], every: int) -> None:
    check_few_alarms(make, every, 10_000, range(20))


def share_with_alarm(seed: int, every: float, n_streams: int) -> float:
    """Return the share of short streams without change with an alarm, beside a new reference.

    Reference and stream are drawn from the points of the reference, with replacement.
    """
    rng = np.random.default_rng([7, seed])
    watching = DriftMonitor(reference=128, false_alarms_every=every, n_estimators=8, random_state=seed)
    watching.fit(rng.normal(size=(128, 2)))
    trees, lengths = watching._follower.trees, watching._follower.windows.lengths
    windows, n_alarms = Windows(trees, lengths.tolist(), [1.0] * len(lengths)), 0
    for _ in range(n_streams):
        windows.compare_with(trees.leaves[rng.integers(128, size=128)])
        stream = trees.leaves[rng.integers(128, size=128 + STEPS)]
        windows.fill(stream[:128])
        n_alarms += bool((windows.slide(stream, 0, 128)[1] > watching.thresholds_).any())
    return n_alarms / n_streams


@pytest.mark.parametrize("n_references", mostly_slow([6, 60]))
def test_alarm_thresholds_are_exceeded_at_the_requested_rate(n_references: int) -> None:
    """The rate is 0.9 of the one requested, with a standard deviation of 0.24 by reference; allow four deviations."""
    every = 256
    shares = [share_with_alarm(seed, every, 100) for seed in range(n_references)]
    rate = np.mean(shares) * every / STEPS
    assert abs(rate - 0.9) < 4 * 0.24 / n_references**0.5


@pytest.mark.parametrize("every", [100, 500, 5000, 50_000])
def test_exceedance_level_is_exceeded_at_the_requested_rate(every: int) -> None:
    """Exponential maxima exceed it at 0.7 to 1 times the rate requested; a thousand draws estimate it to 3 percent."""
    law = expon()
    drawn = law.rvs(size=(1000, TRIALS), random_state=np.random.default_rng(every))
    rate = np.mean([law.sf(exceedance_level(maxima, every)[0]) for maxima in drawn]) * every / STEPS
    assert 0.6 < rate < 1.1


@pytest.mark.parametrize("size", [1, 1000])
def test_an_alarm_is_raised_at_the_first_point_beyond_a_threshold(size: int) -> None:
    rows = np.random.default_rng(3).normal(size=(700, 2))
    rows[500:, 0] += 0.7
    watching = DriftMonitor(reference=128, false_alarms_every=500, n_estimators=8, random_state=0).fit(rows[:128])
    thresholds, lengths = watching.thresholds_, watching._follower.windows.lengths
    traces = [watching.follow(rows[start : start + size]) for start in range(128, 700, size)]
    evidence, status = (np.concatenate([getattr(trace, name) for trace in traces]) for name in ("evidence", "status"))
    is_full = lengths <= np.arange(1, len(evidence) + 1)[:, None]
    first_beyond = ((evidence > thresholds) & is_full).any(axis=1).argmax()
    assert first_beyond == (~np.isin(status, ["normal", "outlier"])).argmax() > 256


def test_evidence_without_dispersion_raises_too_many_alarms() -> None:
    """The tests above can fail: without dispersion, seasons raise one alarm after another."""
    rows = seasonal(3000, np.random.default_rng(0))
    trees = SharedTrees(rows[:_REFERENCE], np.arange(_REFERENCE), np.random.SeedSequence(0), 16)
    mixed = np.random.default_rng(1).permutation(rows[_REFERENCE:])
    heights = []
    for stream in (mixed, rows[_REFERENCE:]):
        windows = Windows(trees, [24], [1.0])
        heights.append(windows.slide(trees.find(stream), 0, 0)[1][24:, 0])
    assert (heights[1] > heights[0].max()).mean() > 0.1


def shift(rows: np.ndarray) -> None:
    rows[:, 0] += 1.0


def spread(rows: np.ndarray) -> None:
    rows[:, 0] *= 1.7


def correlate(rows: np.ndarray) -> None:
    rows[:, 1] = 0.8 * rows[:, 0] + 0.6 * rows[:, 1]


def slide(rows: np.ndarray) -> None:
    rows[:, 0] += np.minimum(np.arange(len(rows)) / 250, 2.0)


def n_in_time(change: Callable[[np.ndarray], None], n_features: int, within: int, n_streams: int) -> int:
    """Return in how many streams a change is noticed within so many points, and not before its start."""
    n_noticed = 0
    for seed in range(n_streams):
        rows = np.random.default_rng([5, seed]).normal(size=(1024 + 100 + within, n_features))
        change(rows[1124:])
        watching = DriftMonitor(false_alarms_every=2000, random_state=seed).fit(rows[:1024])
        changes = watching.update(rows[1024:])
        n_noticed += bool(changes) and changes[0].noticed >= 1124
    return n_noticed


@pytest.mark.slow
def test_a_shift_by_a_standard_deviation_is_noticed_soon() -> None:
    assert n_in_time(shift, 1, 60, 4) >= 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "n_features", "within"),
    [(shift, 1, 45), (shift, 5, 60), (spread, 5, 140), (correlate, 5, 350), (slide, 5, 260)],
    ids=lambda given: getattr(given, "__name__", str(given)),
)
def test_changes_are_noticed_soon(change: Callable[[np.ndarray], None], n_features: int, within: int) -> None:
    assert n_in_time(change, n_features, within, 12) >= 8


def words_of_corner(seed: int) -> list[str]:
    """Return the regions reported for a change of 2 % of the mass, in a corner that held 0.1 % of it."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(5000, 3))
    is_moved = rng.random(len(rows)) < 0.02
    is_moved[:2000] = False
    rows[is_moved, :2] = [2.6, 2.6] + 0.2 * rng.normal(size=(is_moved.sum(), 2))
    changes = DriftMonitor(false_alarms_every=20_000, random_state=0).update(rows)
    return [words for change in changes for words in change.regions]


def is_of_corner(words: str) -> bool:
    return "risen" in words and ("x0 >" in words or "x1 >" in words)


def test_monitor_locates_a_small_corner() -> None:
    assert any(map(is_of_corner, words_of_corner(0)))


@pytest.mark.slow
def test_monitor_locates_most_small_corners() -> None:
    reported = [words_of_corner(seed) for seed in range(6)]
    assert sum(map(bool, reported)) >= 5
    assert sum(any(map(is_of_corner, words)) for words in reported) >= 4
