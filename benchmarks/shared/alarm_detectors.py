"""The detectors that the benchmark `alarms` compares: functions of values (n, channels) that return `Verdicts`.

All but one are causal: a reading is scored before it is learned. A detector with verdicts of its own returns them; the
others return scores only, and the benchmark picks their limits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.shared.series_detectors import SEED, krcf, rcf3
from polyaforest import SeriesMPF, StreamingMPF
from polyaforest.series.rhythm import find_periods

Array = NDArray[Any]

PEERS = ("krcf", "rcf3")
PAST = 500  # readings that a new one is compared with
FIRST = 7  # of them at least
TO_DEVIATION = 1.4826  # from the median absolute deviation to the standard deviation of a normal distribution
FIRST_PERIOD, PERIOD_PAST = 128, 4096  # readings before the first search for a period, and that a search looks at
BLOCK = 2048  # windows of the past to compare at once


class Verdicts(NamedTuple):
    """What a detector says of each reading."""

    scores: Array  # higher is more anomalous; NaN where there is none
    flags: Array | None = None  # its own verdicts, if it has any


Detector = Callable[[Array], Verdicts]


def series_mpf(values: Array) -> Verdicts:
    """Run `SeriesMPF()` as `polyaforest watch` does."""
    found = SeriesMPF(StreamingMPF(random_state=SEED)).detect_then_learn(values)
    return Verdicts(-found.scores, found.is_anomaly)


def context_windows(values: Array) -> Verdicts:
    """Run `SeriesMPF(short_memory=False)` as a stream."""
    found = SeriesMPF(StreamingMPF(random_state=SEED), short_memory=False).detect_then_learn(values)
    return Verdicts(-found.scores, found.is_anomaly)


def both_sides(values: Array) -> Verdicts:
    """Run `SeriesMPF()` on the whole file, as `polyaforest detect` does, so that readings are judged by both sides."""
    series = SeriesMPF(StreamingMPF(random_state=SEED)).fit(values)
    found = series.detect(values, standalone=True)
    return Verdicts(-found.scores, found.is_anomaly)


def scores_of(detector: Callable[[Array], Array]) -> Detector:
    """Return a detector without verdicts, which gets the reading before in the place of a missing one."""
    return lambda values: Verdicts(detector(carried_forward(values)))


def carried_forward(values: Array) -> Array:
    """Return values with the last reading of the channel in the place of NaN; the first reading before there is one."""
    is_known = ~np.isnan(values)
    latest = np.maximum.accumulate(np.where(is_known, np.arange(len(values))[:, None], -1))
    place = np.where(latest < 0, is_known.argmax(axis=0), latest)
    return np.nan_to_num(np.take_along_axis(values, place, axis=0), posinf=np.inf, neginf=-np.inf)


def highest(score: Callable[[Array], Array]) -> Detector:
    """Return a detector that scores each channel that varies, and takes the highest score."""

    def detector(values: Array) -> Verdicts:
        channels = [channel for channel in values.T if np.nanmax(channel) > np.nanmin(channel)]
        parts = [score(np.ascontiguousarray(channel)) for channel in channels]
        return Verdicts(np.fmax.reduce(parts) if parts else np.zeros(len(values)))

    return detector


def robust_z(channel: Array) -> Array:
    """Return |x - median| / (1.4826 MAD), both of the last 500 readings before, from the eighth reading on.

    Where the MAD is 0, the mean absolute deviation takes its place; where that is 0 too, any other value is infinitely
    far away.
    """
    is_known, scores = ~np.isnan(channel), np.full(len(channel), np.nan)
    known = channel[is_known]
    found = np.full(len(known), np.nan)
    for end in range(FIRST, min(PAST, len(known))):
        found[end] = _deviations(known[None, :end], known[end : end + 1])[0]
    for end in range(PAST, len(known), BLOCK):
        stop = min(end + BLOCK, len(known))
        windows = np.lib.stride_tricks.sliding_window_view(known[end - PAST : stop - 1], PAST)
        found[end:stop] = _deviations(windows, known[end:stop])
    scores[is_known] = found
    return scores


def _deviations(past: Array, now: Array) -> Array:
    """Return how far each reading is from the median of its own past, in units of the deviations there."""
    centre = np.median(past, axis=1)
    away = np.abs(past - centre[:, None])
    spread = TO_DEVIATION * np.median(away, axis=1)
    spread = np.where(spread > 0, spread, away.mean(axis=1))
    distance = np.abs(now - centre)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(distance > 0, distance / spread, 0.0)


def seasonal_naive(channel: Array) -> Array:
    """Return the robust z of the difference from the reading one period before.

    The period is looked for in the readings so far, after 128, 256, 512, ... of them; without one, it is one reading.
    """
    filled = carried_forward(channel[:, None])[:, 0]
    differences = np.full(len(channel), np.nan)
    start, end, period = 1, FIRST_PERIOD, 1
    while start < len(channel):
        now = np.arange(start, min(end, len(channel)))
        differences[now] = channel[now] - filled[now - period]
        periods = find_periods(filled[max(end - PERIOD_PAST, 0) : end, None]) if end < len(channel) else ()
        start, end, period = end, 2 * end, periods[0] if periods else 1
    return robust_z(differences)


OURS, FILE, CONTEXTS = "polyaforest", "polyaforest, file", "polyaforest, context windows"
OWN_ALARMS = (OURS, FILE, CONTEXTS)
DETECTORS: dict[str, Detector] = {
    OURS: series_mpf,
    FILE: both_sides,
    CONTEXTS: context_windows,
    "krcf": scores_of(krcf),
    "rcf3": scores_of(rcf3),
    "rolling robust z": highest(robust_z),
    "seasonal naive + MAD": highest(seasonal_naive),
}
