"""Calendar features: time of day and day of week as points on a circle."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from difflib import get_close_matches
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np

from polyaforest.kernels.arrays import Array

AUTO = "auto"  # the time zone of the first dates, or UTC
_DAY = 86_400.0  # seconds
_OFFSET = re.compile(r"[+-]\d\d:?\d\d")
_DAYS_BEFORE_MONDAY = 3  # 1 January 1970 was a Thursday
_EARLIEST, _LATEST = (datetime(year, 1, 2, tzinfo=UTC).timestamp() for year in (1, 9999))


def _time_of_day(seconds: Array) -> Array:
    """Return the time of day as a share of the day."""
    share: Array = np.mod(seconds, _DAY) / _DAY
    return share


def _day_of_week(seconds: Array) -> Array:
    """Return the day of the week as a share of the week, from Monday."""
    share: Array = np.mod(np.floor(seconds / _DAY) + _DAYS_BEFORE_MONDAY, 7) / 7
    return share


_CIRCLES = {"time of day": _time_of_day, "day of week": _day_of_week}


def read_calendar(calendar: object) -> tuple[str, ...]:
    """Return the validated names of calendar features."""
    words = (calendar,) if isinstance(calendar, str) else tuple(calendar)  # type: ignore[arg-type]
    for word in words:
        if word not in _CIRCLES:
            near = get_close_matches(str(word), _CIRCLES, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"use {' or '.join(map(repr, _CIRCLES))}"
            raise ValueError(f"calendar has no feature {word!r}: {hint}")
    if len(set(words)) < len(words):
        raise ValueError(f"calendar contains a feature twice: {words}")
    return words


def read_timezone(name: str) -> tzinfo:
    """Return the time zone with a name, or with an offset from UTC such as "+02:00"."""
    try:
        if _OFFSET.fullmatch(name):
            return datetime.strptime(name, "%z").tzinfo or UTC
        return ZoneInfo("UTC" if name == AUTO else name)
    except (KeyError, ValueError, OSError) as problem:
        raise ValueError(
            f"there is no time zone {name!r}: use 'UTC', 'Europe/Berlin' or '+02:00', for example"
        ) from problem


def timezone_of(times: Any) -> str:
    """Return the time zone of dates, or the UTC offset of the first; "UTC" for times without a zone.

    Examples
    --------
    >>> timezone_of([datetime.fromisoformat("2024-05-01T12:00:00+02:00")]), timezone_of([0.0, 1.0])
    ('+02:00', 'UTC')
    """
    first = times[0] if isinstance(times, Sequence) and len(times) else None
    zone = getattr(getattr(times, "dt", times), "tz", getattr(first, "tzinfo", None))  # pandas: Series or Index
    if zone is None:
        return "UTC"
    name = getattr(zone, "key", None)
    if name:
        return str(name)
    minutes = round((zone.utcoffset(first) or timedelta()).total_seconds() / 60)
    return f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}" if minutes else "UTC"


def calendar_names(words: tuple[str, ...]) -> list[str]:
    """Return the names of the columns of calendar features."""
    return [f"{word} ({side})" for word in words for side in ("sin", "cos")]


def calendar_features(stamps: Array, words: tuple[str, ...], timezone: str) -> Array:
    """Return the sine and cosine of each time, (n, 2 * number of features)."""
    if not words:
        return np.empty((len(stamps), 0))
    local = _local_seconds(stamps, timezone)
    angles = [2 * np.pi * _CIRCLES[word](local) for word in words]
    return np.stack([side(angle) for angle in angles for side in (np.sin, np.cos)], axis=1)


def moved_on(stamps: Array, latest: float) -> Array:
    """Shift times by whole weeks until they follow `latest`, keeping time of day and day of week."""
    week = 7 * _DAY
    return stamps + week * (1 + np.ceil((latest - stamps[0]) / week)) if stamps[0] < latest else stamps


def check_dates(stamps: Array) -> None:
    """Raise ValueError if a time is out of the range of dates."""
    bad = np.flatnonzero(~((stamps >= _EARLIEST) & (stamps < _LATEST)))
    if bad.size:
        raise ValueError(f"the time of row {bad[0]} is {stamps[bad[0]]}, not a date: pass dates, or seconds since 1970")


def _local_seconds(stamps: Array, timezone: str) -> Array:
    """Return local times as seconds since 1970."""
    if timezone in ("UTC", AUTO):
        return stamps
    zone = read_timezone(timezone)
    offsets = [datetime.fromtimestamp(stamp, zone).utcoffset() for stamp in stamps.tolist()]
    return np.add(stamps, [offset.total_seconds() for offset in offsets if offset is not None])
