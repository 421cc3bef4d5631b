"""Points in time as people and programs write them: ISO 8601, or a number that counts from 1970."""

from __future__ import annotations

import math
from datetime import UTC, datetime

__all__ = ["looks_like_time", "seconds"]

_NAMES = frozenset({
    "@timestamp", "_time", "created_at", "date", "date_time", "datetime", "event_time", "eventtime",
    "t", "time", "time_stamp", "timestamp", "ts",
})  # fmt: skip
_YEARS_MEANT = (631_152_000.0, 4_102_444_800.0)  # 1990 to 2100: what a number must say to be taken for a time unasked
_UNITS = ((1e11, 1), (1e14, 10**3), (1e17, 10**6), (math.inf, 10**9))  # below so much it is seconds, milliseconds, …


def seconds(moment: object) -> float:
    """Seconds since 1970 of a moment in ISO 8601 (UTC unless it says otherwise), or of a number, as text or not.

    A number counts seconds, milliseconds, microseconds or nanoseconds; its size tells which.

    Examples
    --------
    >>> seconds("1970-01-02T00:00:00Z"), seconds("1970-01-02 01:00:00.5+01:00"), seconds("1970-01-02")
    (86400.0, 86400.5, 86400.0)
    >>> seconds(1700000000) == seconds(1700000000000) == seconds("1700000000000000000")
    True

    Raises
    ------
    ValueError
        If it is neither.
    """
    kind = type(moment)
    if kind is str:
        return _of_text(moment)  # type: ignore[arg-type]
    if kind is float or kind is int:
        return _of_number(moment)  # type: ignore[arg-type]
    raise ValueError(f"a {kind.__name__} is not a time")


def looks_like_time(name: str, moment: object) -> bool:
    """Whether a field is the time, to go by its name and by what is in it.

    Examples
    --------
    >>> looks_like_time("Timestamp", "2024-05-01T12:00:00Z"), looks_like_time("ts", 1714564800000)
    (True, True)
    >>> looks_like_time("time", 0.25), looks_like_time("price", 1714564800000)  # a duration; not a name of times
    (False, False)
    """
    if name.strip().lower() not in _NAMES:
        return False
    try:
        when = seconds(moment)
    except ValueError:
        return False
    return _YEARS_MEANT[0] <= when < _YEARS_MEANT[1] or not _is_number(moment)


def _of_text(text: str) -> float:
    """Seconds of a moment in text."""
    text = text.strip()
    if text.isdecimal() and len(text) < 20:
        return _of_number(int(text))
    if _is_number(text):
        return _of_number(float(text))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text[:40]!r} is not a time in ISO 8601 or since 1970") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _of_number(number: float) -> float:
    """Seconds of a number that counts in a unit unknown."""
    size = abs(number)
    if not size < 1e300:
        raise ValueError(f"{number} is not a time")
    return number / next(per_second for limit, per_second in _UNITS if size < limit)  # exact where both are whole


def _is_number(moment: object) -> bool:
    """Whether a moment is a number, as text or not."""
    try:
        float(moment)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return False
    return True
