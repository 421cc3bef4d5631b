"""What comes next in a series, by what followed similar courses, and how a course differs from that, in words."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np

from polyaforest.core.arrays import Array
from polyaforest.core.text import label as shown

BACK = 32  # steps before a reading from which the course up to it is foreseen
_BAND = (0.05, 0.95)
_FINER = 2.0  # lifetimes of the score are coarse for a forecast
_MOST_MISSING = 0.4  # a rise or fall of less than this share of the expected one is missing
_STILL = 0.7  # where readings move by more than this share of it, something else happened
_CLEAR = 2.0  # bands by which an expected course must move to have a rise or fall
_FIRST_DATE, _LAST_DATE = 1e8, 1e11  # seconds since 1970 that are dates


class Forecast(NamedTuple):
    """The readings expected at each of the steps to come, float64 (n_steps, n_channels) each."""

    mean: Array
    low: Array  # nine readings in ten lie between `low` and `high`
    high: Array


class Recent(NamedTuple):
    """The last steps up to a reading, and what the forest saw before them."""

    state: Array  # float64 (D,): of the course that ended `BACK` steps ago
    before: Array  # float64 (C,): its newest reading
    readings: Array  # float64 (BACK, C)
    deviations: Array  # float64 (BACK, C): from the rhythm, 0 without one
    times: Array  # float64 (BACK,): NaN without times


class Past(NamedTuple):
    """Courses that a forest holds, by order of arrival."""

    states: Array  # float64 (n, D): what the forest sees of each
    readings: Array  # float64 (n, C): the newest reading of each
    numbers: Array  # int64 (n,): their arrivals, one for each step
    times: Array  # float64 (n,): NaN without times
    weights: Array  # float64 (D,): of the features in the forest, on average
    lifetime: float  # the finest of the score


def foresee(past: Past, state: Array, reading: Array, n_steps: int) -> Forecast | None:
    """Return the readings expected after a course; None if no course held has so many after it.

    In a Mondrian partition two courses share a cell at time t with probability exp(-t * distance): by these weights,
    what followed the courses held, as a change from their newest reading, is a sample of what follows this one.
    """
    distance = np.abs(past.states - state) @ past.weights
    parts = []
    for step in range(1, n_steps + 1):
        later = np.searchsorted(past.numbers, past.numbers + step)
        has_later = (later < len(past.numbers)) & (
            past.numbers[np.minimum(later, len(later) - 1)] == past.numbers + step
        )
        if not has_later.any():
            return None
        near = distance[has_later]
        weights = np.exp(-_FINER * past.lifetime * (near - near.min()))
        changes = past.readings[later[has_later]] - past.readings[has_later]
        parts.append([reading + part for part in _summary(changes, weights / weights.sum())])
    return Forecast(*(np.array(part) for part in zip(*parts, strict=True)))


def _summary(samples: Array, weights: Array) -> tuple[Array, Array, Array]:
    """Return the mean and the band of weighted samples, (n, C), by channel."""
    ends = []
    for column in samples.T:
        order = np.argsort(column, kind="stable")
        places = np.searchsorted(np.cumsum(weights[order]), np.multiply(_BAND, 1 - 1e-12))
        ends.append(column[order][np.minimum(places, len(order) - 1)])
    low, high = np.array(ends).T
    return (samples * weights[:, None]).sum(axis=0), low, high


def describe(label: str, side: str, channel: str, actual: Array, expected: Forecast | None, times: Array) -> str:
    """Return what is odd about a course, in words.

    Parameters
    ----------
    label : str
        The feature with the largest part in the surprise, as `Coordinates` call it, without its channel.
    side : {"low", "high"}
        Where it lies.
    channel : str
    actual : ndarray of shape (n_steps,)
        The last readings of the channel.
    expected : Forecast of this channel, optional
    times : ndarray of shape (n_steps,)
        When they were, NaN if that is not known.
    """
    channel = shown(channel)
    words = [_of_feature(label, side, channel)]
    if expected is not None:
        mean, low, high = (part[:, 0] for part in expected)
        missing = _missing_move(actual, mean, high - low, times)
        if missing:
            words = [f"{channel}: {missing}"]
        elif not low[-1] <= actual[-1] <= high[-1]:
            words.append(f"expected {_short(mean[-1])} ({_short(low[-1])} to {_short(high[-1])})")
    return ", ".join(words)


def _of_feature(label: str, side: str, channel: str) -> str:
    """Return what a feature at this side means."""
    is_high, n = side == "high", label.rpartition(" ")[2]
    if label.startswith("change"):
        within = "from one step to the next" if n == "1" else f"within {n} steps"
        return f"{channel} {'rises' if is_high else 'falls'} unusually {within}"
    if label.startswith("roughness"):
        return f"{channel} is {'rougher' if is_high else 'smoother'} than usual over {n} steps"
    if label.startswith("wave"):
        return f"the shape of {channel} over the last 96 steps is unusual"
    if label.startswith("deviation"):
        return f"{channel} is {'higher' if is_high else 'lower'} than its rhythm"
    if "phase" in label:
        return f"{channel} is unusual for this phase of its rhythm"
    over = f" over {n} steps" if label.startswith("mean") else ""
    return f"{channel} is unusually {side}{over}"


def _missing_move(actual: Array, expected: Array, width: Array, times: Array) -> str:
    """Return the rise or fall that was expected and did not come; nothing if there was none."""
    change, start, end = _largest_move(expected)
    if abs(change) < _CLEAR * np.median(width):
        return ""
    real, moved = actual[end] - actual[start], abs(_largest_move(actual)[0])
    if real / change > _MOST_MISSING or moved > _STILL * abs(change):
        return ""
    when = _time(times[start])
    return f"the usual {'rise' if change > 0 else 'fall'}{f' at {when}' if when else ''} is missing"


def _largest_move(course: Array) -> tuple[float, int, int]:
    """Return the largest change between two steps of a course, and the steps."""
    up = course - np.minimum.accumulate(course)
    down = course - np.maximum.accumulate(course)
    end = int(np.argmax(up)) if up.max() >= -down.min() else int(np.argmin(down))
    before = course[: end + 1]
    start = int(np.argmin(before)) if up.max() >= -down.min() else int(np.argmax(before))
    return float(course[end] - course[start]), start, end


def _time(seconds: float) -> str:
    """Return the time of day of a date, nothing for other numbers."""
    if not _FIRST_DATE <= seconds < _LAST_DATE:
        return ""
    return f"{datetime.fromtimestamp(seconds, UTC):%H:%M}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if 1e3 <= abs(value) < 1e9 else f"{value:.4g}"
