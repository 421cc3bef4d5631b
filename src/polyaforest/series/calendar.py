"""Calendar features: time of day, day of week, day of month and public holidays, as points on a circle."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from difflib import get_close_matches
from functools import lru_cache
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


def _day_of_month(seconds: Array) -> Array:
    """Return the day of the month as a share of this month, so that last days are alike in all months."""
    days = np.floor(seconds / _DAY).astype("datetime64[D]")
    first = days.astype("datetime64[M]")
    share: Array = (days - first.astype("datetime64[D]")) / ((first + 1).astype("datetime64[D]") - first)
    return share


def _is_holiday(seconds: Array, place: str) -> Array:
    """Return half a turn on public holidays, else none."""
    days, of_day = np.unique(np.floor(seconds / _DAY).astype("datetime64[D]"), return_inverse=True)
    known = _holidays(place)
    with _HOLIDAYS_LOCK:  # it adds years when they are asked for
        found = np.array([day in known for day in days.tolist()])
    share: Array = 0.5 * found[of_day]
    return share


@lru_cache(maxsize=64)
def _holidays(place: str) -> Any:
    """Return the public holidays of a country, such as "DE", or of a part of it, such as "DE-BY"."""
    try:
        import holidays  # noqa: PLC0415 - an extra
    except ImportError:
        raise ValueError('public holidays need a package: pip install "polyaforest[calendar]"') from None
    country, _, part = place.partition("-")
    try:
        return holidays.country_holidays(country, subdiv=part or None)
    except NotImplementedError as problem:
        raise ValueError(f"the public holidays of {place!r} are unknown: {problem}") from None


_CIRCLES = {"time of day": _time_of_day, "day of week": _day_of_week, "day of month": _day_of_month}
_OF_HOLIDAYS = re.compile(r"public holidays ([A-Z]{2}(?:-[A-Z0-9]{1,3})?)")
_HOLIDAYS_LOCK = threading.Lock()


def _share(word: str, seconds: Array) -> Array:
    """Return a calendar feature as a share of a turn."""
    place = _OF_HOLIDAYS.fullmatch(word)
    return _CIRCLES[word](seconds) if place is None else _is_holiday(seconds, place[1])


def is_calendar_feature(word: object) -> bool:
    """Return whether a text names a calendar feature; raise ValueError if its country is unknown."""
    place = _OF_HOLIDAYS.fullmatch(str(word))
    return word in _CIRCLES or (place is not None and _holidays(place[1]) is not None)


def read_calendar(calendar: object) -> tuple[str, ...]:
    """Return the validated names of calendar features."""
    words = (calendar,) if isinstance(calendar, str) else tuple(calendar)  # type: ignore[arg-type]
    for word in words:
        if not is_calendar_feature(word):
            near = get_close_matches(str(word), _CIRCLES, n=1)
            names = [*map(repr, _CIRCLES), "'public holidays DE' (or another country)"]
            hint = f"did you mean {near[0]!r}?" if near else f"use {', '.join(names[:-1])} or {names[-1]}"
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
    angles = [2 * np.pi * _share(word, local) for word in words]
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
