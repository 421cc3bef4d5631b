"""Conventions for numbers, times and headers, common to tables and live records.

Imports nothing heavy, so that `watch` starts fast.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta

from ._names import is_time_name, tokens

__all__ = [
    "MISSING",
    "MONTHS",
    "NO_CATEGORY",
    "TRUTH",
    "UTF8_BOM",
    "column_names",
    "is_moment_since_1970",
    "is_part_of_time",
    "looks_like_time",
    "month_start",
    "seconds",
    "units_per_second",
]

# lower-case words for a missing number, besides "nan"
MISSING = (
    "", "-", "--", ".", "?", "#n/a", "#null!", "#value!", "<na>", "missing", "n.a.", "na", "n/a", "nil", "none", "null",
)  # fmt: skip
NO_CATEGORY = ("", "n/a", "nan", "null")  # the same for categories, where NA may be Namibia
TRUTH = {"true": 1.0, "false": 0.0}  # in lower case
UTF8_BOM = b"\xef\xbb\xbf"

_UNITS = ((1e11, 1), (1e14, 10**3), (1e17, 10**6))  # upper bounds of seconds, milliseconds, microseconds since 1970
_YEARS_MEANT = (631_152_000.0, 4_102_444_800.0)  # 1990 to 2100: numbers in this range may be timestamps
_MONTH = re.compile(
    r"(?:(?P<year>\d{4})(?:[-/.]|-?[Mm])(?P<month>\d{1,2})|(?P<month_before>\d{1,2})[-/.](?P<year_after>\d{4})"
    r"|(?P<year_of>\d{4})[- ]?[Qq](?P<quarter>[1-4])|[Qq](?P<quarter_before>[1-4])[- /]?(?P<of_year>\d{4})"
    r"|(?P<name>[A-Za-z]{3,9})\.?[- /]?(?P<of>\d{4})|(?P<since>\d{4})[- /]?(?P<name_after>[A-Za-z]{3,9}))",
    re.ASCII,
)
_MONTH_NAMES = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
)  # fmt: skip
MONTHS = {name[:n]: number for number, name in enumerate(_MONTH_NAMES, 1) for n in (3, 4, 9)} | {"sept": 9}


def column_names(cells: Iterable[str]) -> list[str]:
    """Return the names in a header, naming empty cells by position."""
    return [cell.strip() or f"column_{position}" for position, cell in enumerate(cells, 1)]


def units_per_second(size: float) -> int:
    """Return how many units of a numeric timestamp make a second, inferred from its absolute value."""
    return next((units for limit, units in _UNITS if size < limit), 10**9)


def seconds(moment: object) -> float:
    """Convert a timestamp to seconds since 1970: ISO 8601 (UTC unless it has an offset), or a number, also as text.

    The unit of a number, from seconds to nanoseconds, is inferred from its size.

    Examples
    --------
    >>> seconds("1970-01-02T00:00:00Z"), seconds("1970-01-02 01:00:00.5+01:00"), seconds("1970-01-02")
    (86400.0, 86400.5, 86400.0)
    >>> seconds(1700000000) == seconds(1700000000000) == seconds("1700000000000000000")
    True

    Raises
    ------
    ValueError
        If the timestamp is neither.
    """
    kind = type(moment)
    if kind is str:
        return _of_text(moment)  # type: ignore[arg-type]
    if kind is float or kind is int:
        return _of_number(moment)  # type: ignore[arg-type]
    raise ValueError(f"a {kind.__name__} is not a time")


def looks_like_time(name: str, moment: object) -> bool:
    """Return whether the name and value of a field are those of a timestamp.

    Examples
    --------
    >>> looks_like_time("Timestamp", "2024-05-01T12:00:00Z"), looks_like_time("ts", 1714564800000)
    (True, True)
    >>> looks_like_time("time", 0.25), looks_like_time("price", 1714564800000)  # a duration; not a name for times
    (False, False)
    """
    if not is_time_name(name):
        return False
    try:
        when = seconds(moment)
    except ValueError:
        return False
    return is_moment_since_1970(when) or not _is_number(moment)


# parts of a time that only rise, or stay the same for weeks: to a stream, each new one is a value never seen
_PARTS: dict[str, Callable[[datetime], int]] = {
    "year": lambda moment: moment.year,
    "quarter": lambda moment: (moment.month + 2) // 3,
    "month": lambda moment: moment.month,
    "week": lambda moment: moment.isocalendar().week,
    "day": lambda moment: moment.day,
}


def is_part_of_time(name: str, value: object, when: float) -> bool:
    """Return whether a field only repeats the year, month or day of a time, given in seconds, in any time zone.

    Examples
    --------
    >>> when = seconds("2013-01-31T23:00:00Z")
    >>> is_part_of_time("year", "2013", when), is_part_of_time("month", 2, when), is_part_of_time("day", 17, when)
    (True, True, False)
    """
    [word] = words if len(words := tokens(name)) == 1 else [""]
    if word not in _PARTS or not _is_number(value) or not is_moment_since_1970(when):
        return False
    moment = datetime.fromtimestamp(when, UTC)
    parts: set[float] = {_PARTS[word](moment + timedelta(days=k)) for k in (-1, 0, 1)}
    return float(value) in parts  # type: ignore[arg-type]


def is_moment_since_1970(when: float) -> bool:
    """Return whether seconds since 1970 are a time between 1990 and 2100."""
    return _YEARS_MEANT[0] <= when < _YEARS_MEANT[1]


def month_start(text: str) -> datetime | None:
    """Return the start of a month such as 1833-01, 01/2000 or Jan 2000, or of a quarter such as 2000-Q1; else None.

    Examples
    --------
    >>> [str(month_start(text))[:10] for text in ("1833-01", "2000/1", "02/2000", "2000M04", "May 2000", "2000-13")]
    ['1833-01-01', '2000-01-01', '2000-02-01', '2000-04-01', '2000-05-01', 'None']
    >>> [str(month_start(text))[:10] for text in ("2000Q3", "2000 Q3", "Q3 2000", "Model 2000")]
    ['2000-07-01', '2000-07-01', '2000-07-01', 'None']
    """
    found = _MONTH.fullmatch(text.strip())
    if found is None:
        return None
    parts = found.groupdict()
    year = next(parts[name] for name in ("year", "year_after", "year_of", "of_year", "of", "since") if parts[name])
    if quarter := parts["quarter"] or parts["quarter_before"]:
        month = 3 * int(quarter) - 2
    elif name := parts["name"] or parts["name_after"]:
        month = MONTHS.get(name.lower(), 0)
    else:
        month = int(parts["month"] or parts["month_before"])
    try:
        return datetime(int(year), month, 1, tzinfo=UTC)
    except ValueError:
        return None


def _of_text(text: str) -> float:
    """Return seconds of a timestamp in text."""
    text = text.strip()
    if text.isdecimal() and len(text) < 20:
        return _of_number(int(text))
    if _is_number(text):
        return _of_number(float(text))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        month = month_start(text)
        if month is None:
            raise ValueError(f"{text[:40]!r} is not a time in ISO 8601 or since 1970") from None
        moment = month
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _of_number(number: float) -> float:
    """Return seconds of a number in an unknown unit."""
    size = abs(number)
    if not size < 1e300:
        raise ValueError(f"{number} is not a time")
    return number / units_per_second(size)  # exact for integers


def _is_number(moment: object) -> bool:
    """Return whether a timestamp is a number, also as text."""
    try:
        float(moment)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return False
    return True
