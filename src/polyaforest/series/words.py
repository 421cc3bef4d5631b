"""Describe the newest reading of a context window: what was read, what was expected, and what is unusual."""

from __future__ import annotations

from datetime import datetime, tzinfo
from typing import NamedTuple

import numpy as np

from polyaforest.kernels.arrays import Array
from polyaforest.util import numbers
from polyaforest.util.dates import is_date
from polyaforest.util.text import label as shown

_MOST_MISSING = 0.4  # a rise or fall of less than this share of the expected one is missing
_BEGUN = 0.25  # a rise or fall starts at the step that passes this share of its height
_STILL = 0.7  # if readings move by more than this share of the expected move, it is not missing
_CLEAR = 2.0  # a rise or fall of the forecast is at least so many times the width of its band
_LEAST_STILL = 4  # unchanged steps to report
_DAY = 86_400.0  # seconds


class Readings(NamedTuple):
    """The last readings of a channel, oldest first, and what was expected; arrays of shape (n_steps,)."""

    actual: Array
    low: Array  # of the forecast; NaN without one
    median: Array
    high: Array
    times: Array  # NaN if unknown
    band: tuple[float, float, float]  # low, median and high expected of the newest reading, or usual
    is_count: bool


def describe(label: str, side: str, channel: str, readings: Readings, zone: tzinfo) -> str:
    """Describe the newest reading of a channel, what was expected, and what is unusual.

    The reading is too high only if it is above its band, and too low only if it is below.

    Parameters
    ----------
    label : str
        The feature with the most bits, as named by `Coordinates`, without its channel.
    side : {"low", "high"}
        The side of the feature.
    channel : str
    readings : Readings
    zone : tzinfo
        Time zone for times.
    """
    value, expected = numbers.beside_band(float(readings.actual[-1]), *readings.band)
    when = _moment(readings.times, zone)
    word = "usually" if np.isnan(readings.median[-1]) else "expected"
    read = f"{shown(channel)} {value}{f' at {when}' if when else ''}"
    return f"{read}, {word} {expected}: {_unusual(label, side, readings, zone)}"


def _unusual(label: str, side: str, readings: Readings, zone: tzinfo) -> str:
    """Describe what is unusual: the reading, the move that it does not make, or the readings that led up to it."""
    actual, (low, _, high) = readings.actual, readings.band
    n_still = int(np.cumprod(actual[::-1] == actual[-1]).sum()) - 1
    more = " or more" if n_still == len(actual) - 1 else ""
    is_beyond = numbers.is_beyond(float(actual[-1]), low, high)
    if readings.is_count and actual[-1] == 0 and is_beyond:
        return "none at all" + (f" for {n_still + 1} readings{more}" if n_still else "")
    if n_still >= _LEAST_STILL and label.startswith("volatility") and side == "low":
        return f"unchanged for {n_still} steps{more}"
    missing = "" if np.isnan(readings.median).any() else _missing_move(readings, zone)
    if missing or is_beyond:
        return missing or ("too high" if actual[-1] > high else "too low")
    return _of_feature(label, side)


def _of_feature(label: str, side: str) -> str:
    """Describe a feature of the readings that led up to a usual one."""
    is_high, n = side == "high", label.rpartition(" ")[2]
    if label.startswith("change"):
        within = "from one reading to the next" if n == "1" else f"within {n} readings"
        return f"an unusual {'rise' if is_high else 'fall'} {within}"
    if label.startswith("volatility"):
        return f"{'more' if is_high else 'less'} volatile than usual over {n} readings"
    if label.startswith("wave"):
        return "an unusual shape of the last 96 readings"
    if "phase" in label:
        return "unusual for this time of its rhythm"
    if " over " in label:
        return f"{'higher' if is_high else 'lower'} than usual over the last {n} readings"
    return "unusual after the readings before it"


def _missing_move(readings: Readings, zone: tzinfo) -> str:
    """Describe the larger rise or fall of the forecast that is missing; return "" if there is none.

    Readings are too low after a missing rise, and too high after a missing fall.
    """
    actual, low, expected, high, times = readings[:5]
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


def _moment(times: Array, zone: tzinfo) -> str:
    """Return the time of the newest reading: its time of day, or its date if readings are days apart."""
    if np.isnan(times[-1]):
        return ""
    is_daily = len(times) > 1 and times[-1] - times[-2] >= _DAY
    return _time(times[-1], zone, is_daily) or f"{times[-1]:.12g}"


def _time(seconds: float, zone: tzinfo, is_daily: bool = False) -> str:
    """Return the time of day of a date, or its day; "" for other numbers."""
    if not is_date(seconds):
        return ""
    when = datetime.fromtimestamp(seconds, zone)
    return f"{when:%Y-%m-%d}" if is_daily else f"{when:%H:%M:%S}" if when.second else f"{when:%H:%M}"
