"""Times in seconds since 1970 as text."""

from __future__ import annotations

from datetime import UTC, datetime
from math import isfinite

__all__ = ["is_date", "moment", "stamp"]

_FIRST_DATE = 31_536_000.0  # 1971: smaller numbers are not taken for dates, except those before 1969
_YEAR_1, _LAST_DATE = -62_135_596_800.0, 253_402_300_800.0  # the years 1 and 10000


def moment(seconds: float) -> str:
    """Format a time for people, to the second if needed; a number that is not a date stays a number."""
    if not isfinite(seconds):
        return ""
    if not is_date(seconds):
        return f"{seconds:.12g}"
    when = datetime.fromtimestamp(seconds, UTC)
    if when.microsecond:
        return f"{when:%Y-%m-%d %H:%M:%S.%f}".rstrip("0")
    return f"{when:%Y-%m-%d %H:%M:%S}" if when.second else f"{when:%Y-%m-%d %H:%M}"


def stamp(seconds: float) -> str:
    """Format a time in ISO 8601; a number that is not a date stays a number."""
    if not is_date(seconds):
        return f"{seconds:.17g}"
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def is_date(seconds: float) -> bool:
    """Return whether a time is a plausible date rather than a count."""
    return abs(seconds) >= _FIRST_DATE and _YEAR_1 <= seconds < _LAST_DATE
