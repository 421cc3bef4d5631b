"""Describe how a context window differs from its forecast."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, tzinfo

import numpy as np

from polyaforest.kernels.arrays import Array
from polyaforest.util.text import label as shown

_MOST_MISSING = 0.4  # a rise or fall of less than this share of the expected one is missing
_BEGUN = 0.25  # a rise or fall starts at the step that passes this share of its height
_STILL = 0.7  # if readings move by more than this share of the expected move, it is not missing
_CLEAR = 2.0  # a rise or fall of the forecast is at least so many times the width of its band
_LEAST_STILL = 4  # unchanged steps to report
_FIRST_DATE, _LAST_DATE = 1e8, 1e11  # seconds since 1970 that are taken for dates


def describe(
    label: str, side: str, channel: str, actual: Array, expected: Sequence[Array], times: Array, zone: tzinfo
) -> str:
    """Describe what is unusual about the last readings of a channel.

    Parameters
    ----------
    label : str
        The feature with the most bits, as named by `Coordinates`, without its channel.
    side : {"low", "high"}
        The side of the feature.
    channel : str
    actual : ndarray of shape (n_steps,)
        The last readings of the channel.
    expected : three ndarrays of shape (n_steps,)
        Mean, low and high of the forecast; NaN without one.
    times : ndarray of shape (n_steps,)
        Times of the readings; NaN if unknown.
    zone : tzinfo
        Time zone for times of day.
    """
    channel, (mean, low, high) = shown(channel), expected
    words = [_of_feature(label, side, channel)]
    n_still = int(np.cumprod(actual[::-1] == actual[-1]).sum()) - 1
    if label.startswith("volatility") and side == "low" and n_still >= _LEAST_STILL:
        return f"{channel} has not changed for {n_still} steps{' or more' if n_still == len(actual) - 1 else ''}"
    if not np.isnan(mean).any():
        missing = _missing_move(actual, mean, low, high, times, zone)
        if missing:
            words = [f"{channel}: {missing}"]
        elif not low[-1] <= actual[-1] <= high[-1]:
            words.append(f"expected {_short(mean[-1])} ({_short(low[-1])} to {_short(high[-1])})")
    return ", ".join(words)


def _of_feature(label: str, side: str, channel: str) -> str:
    """Describe a feature that is low or high."""
    is_high, n = side == "high", label.rpartition(" ")[2]
    if label.startswith("change"):
        within = "from one step to the next" if n == "1" else f"within {n} steps"
        return f"{channel} {'rises' if is_high else 'falls'} unusually {within}"
    if label.startswith("volatility"):
        return f"{channel} is {'more' if is_high else 'less'} volatile than usual over {n} steps"
    if label.startswith("wave"):
        return f"the shape of {channel} over the last 96 steps is unusual"
    if label.startswith("deviation"):
        over = f" over the last {n} steps" if " over " in label else ""
        return f"{channel} {'was' if over else 'is'} {'higher' if is_high else 'lower'} than its rhythm{over}"
    if "phase" in label:
        return f"{channel} is unusual for this phase of its rhythm"
    over = f" over {n} steps" if label.startswith("mean") else ""
    return f"{channel} is unusually {side}{over}"


def _missing_move(actual: Array, expected: Array, low: Array, high: Array, times: Array, zone: tzinfo) -> str:
    """Describe the larger rise or fall of the forecast that is missing; return "" if there is none.

    Readings are too low after a missing rise, and too high after a missing fall.
    """
    for name, sign, (size, start, end) in sorted(
        (("rise", 1, _rise(expected)), ("fall", -1, _rise(-expected))), key=lambda move: -move[2][0]
    ):
        is_clear = size >= _CLEAR * np.median(high - low)
        is_off = actual[end] < low[end] if sign > 0 else actual[end] > high[end]
        came, meanwhile = sign * (actual[end] - actual[start]), actual[start : end + 1]
        moved = max(_rise(meanwhile)[0], _rise(-meanwhile)[0])
        if is_clear and is_off and came <= _MOST_MISSING * size and moved <= _STILL * size:
            still = np.flatnonzero(sign * (expected[: end + 1] - expected[start]) <= _BEGUN * size)
            when = _time(times[int(still[-1]) + 1], zone)
            return f"the usual {name}{f' at {when}' if when else ''} is missing"
    return ""


def _rise(readings: Array) -> tuple[float, int, int]:
    """Return the largest rise between two steps, and the steps."""
    climbed = readings - np.minimum.accumulate(readings)
    end = int(np.argmax(climbed))
    return float(climbed[end]), int(np.argmin(readings[: end + 1])), end


def _time(seconds: float, zone: tzinfo) -> str:
    """Return the time of day of a date; "" for other numbers."""
    if not _FIRST_DATE <= seconds < _LAST_DATE:
        return ""
    return f"{datetime.fromtimestamp(seconds, zone):%H:%M}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if 1e3 <= abs(value) < 1e9 else f"{value:.4g}"
