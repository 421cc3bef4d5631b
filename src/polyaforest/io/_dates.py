"""Dates that begin with the day or the month, such as 31.05.2024, 5/31/24 3:30 PM or 31 May 2024."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ._batches import glimpse
from ._conventions import MONTHS

__all__ = ["DateOrder", "infer_order", "looks_like_date", "ordered_seconds"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_PIVOT = 69  # two-digit years from here on are 19xx, as in POSIX
_WORD = "[A-Za-z]{3,9}"
_WEEKDAY = "(?:(?i:mon|tue|wed|thu|fri|sat|sun)[a-z]*,? )?"
_PARTS = ("first", "mark", "second", "year", "hour", "minute", "second_", "fraction", "half", "zone")
_PATTERN = (
    rf"^{_WEEKDAY}([0-9]{{1,2}}|{_WORD})([/.\- ])\s?([0-9]{{1,2}}|{_WORD})(?:[/.\-]|,? )\s?([0-9]{{4}}|[0-9]{{2}})"
    r"(?:(?:,? +|T|:)([0-9]{1,2}):([0-9]{2})(?::([0-9]{2})([.,][0-9]+)?)?(?: ?([AaPp])\.?[Mm]\.?)?)?"
    r" ?(Z|UTC|GMT|[+\-][0-9]{2}:?[0-9]{2})?$"
)


class DateOrder(NamedTuple):
    """The order of day and month.

    Attributes
    ----------
    day_first : bool
    is_guess : bool
        Whether the dates are also valid in the other order.
    is_plain : bool
        Whether all months are names, so that the order is certain.
    """

    day_first: bool
    is_guess: bool = False
    is_plain: bool = False

    @property
    def words(self) -> str:
        """The order as in `Reading.dates`."""
        return "day-first" if self.day_first else "month-first"


class _DateParts(NamedTuple):
    """The parts of dates; `first` and `second` are -1 where they are not numbers."""

    frame: pl.DataFrame
    first: Integers
    second: Integers
    month: Integers  # of a month name, 0 if there is none

    @property
    def has_digits(self) -> NDArray[np.bool_]:
        """Where day and month are both numbers."""
        return (self.first >= 0) & (self.second >= 0)


def _parts(cells: pl.Series) -> _DateParts:
    """Split dates."""
    frame = cells.str.strip_chars(" \t").str.extract_groups(_PATTERN).struct.unnest()
    frame.columns = list(_PARTS)
    # years have two digits only in dates with slashes or dots
    is_short = (frame["year"].str.len_bytes() == 2) & ~frame["mark"].is_in(["/", "."])
    frame = frame.with_columns(pl.when(~is_short).then(pl.col("year")))
    first, second = frame["first"], frame["second"]
    month = _month(first) + _month(second)
    return _DateParts(frame, _integers(first, -1), _integers(second, -1), month)


def _month(words: pl.Series) -> Integers:
    """Return the numbers of month names, 0 for other text."""
    names = words.str.to_lowercase().replace_strict(
        list(MONTHS), list(MONTHS.values()), default=0, return_dtype=pl.Int64
    )
    return np.asarray(names.fill_null(0).to_numpy())


def _integers(texts: pl.Series, missing: int = 0) -> Integers:
    """Parse integers; `missing` for other text."""
    return np.asarray(texts.cast(pl.Int64, strict=False).fill_null(missing).to_numpy())


def infer_order(cells: pl.Series, dates: str | None = None) -> DateOrder | None:
    """Infer the order of day and month in a column; None if it contains no dates.

    A number above 12 is a day. If no date has one, dates begin with the day, or with the month if any has AM or PM.

    Parameters
    ----------
    cells : polars.Series of text
    dates : {"day-first", "month-first"}, optional
        The order, if the user knows it.
    """
    if not glimpse(cells).str.contains(_PATTERN).any():
        return None
    parts = _parts(cells)
    is_date = parts.frame["year"].is_not_null().to_numpy() & (parts.has_digits | (parts.month > 0))
    if not is_date.any():
        return None
    both = is_date & parts.has_digits
    if dates is not None:
        return DateOrder(dates == "day-first", is_plain=not both.any())
    n_days_first, n_months_first = (int((both & (part > 12)).sum()) for part in (parts.first, parts.second))
    if n_days_first or n_months_first or not both.any():
        return DateOrder(n_days_first >= n_months_first, is_plain=not both.any())
    frame = parts.frame.filter(pl.Series(both))
    is_american = bool(frame["half"].is_not_null().any())
    return DateOrder(not is_american, is_guess=not (frame["mark"] == ".").all())


def ordered_seconds(cells: pl.Series, order: DateOrder) -> Floats:
    """Convert dates in a given order to seconds since 1970, UTC unless they have an offset; NaN for other text."""
    parts = _parts(cells)
    frame = parts.frame
    is_named = parts.month > 0
    numbers = np.where(parts.first >= 0, parts.first, parts.second)
    before, after = (parts.first, parts.second) if order.day_first else (parts.second, parts.first)
    day, month = np.where(is_named, numbers, before), np.where(is_named, parts.month, after)
    year = _integers(frame["year"], -1)
    is_short = (frame["year"].str.len_bytes() == 2).fill_null(False).to_numpy()
    year = np.where(is_short, year + np.where(year >= _PIVOT, 1900, 2000), year)
    hour, minute, second = (_integers(frame[name]) for name in ("hour", "minute", "second_"))
    half = frame["half"].str.to_lowercase().fill_null("").to_numpy()
    is_valid = (
        (is_named != parts.has_digits) & (year > 0) & (month >= 1) & (month <= 12) & (day >= 1)
        & (hour < 24) & (minute < 60) & (second < 60) & ((half == "") | ((hour >= 1) & (hour <= 12)))
    )  # fmt: skip
    hour = np.where(half == "", hour, hour % 12 + np.where(half == "p", 12, 0))
    months = (np.where(is_valid, year - 1970, 0) * 12 + np.where(is_valid, month - 1, 0)).astype("M8[M]")
    days = months.astype("M8[D]") + (day - 1).astype("m8[D]")
    is_valid &= days.astype("M8[M]") == months  # there is no 31st of June
    fraction = frame["fraction"].str.replace(",", ".", literal=True).cast(pl.Float64).fill_null(0.0).to_numpy()
    whole = days.astype(np.int64) * 86_400 + hour * 3600 + minute * 60 + second - _offsets(frame["zone"])
    return np.where(is_valid, whole + fraction, np.nan)


def _offsets(zones: pl.Series) -> Integers:
    """Return seconds east of UTC."""
    digits = zones.str.replace(":", "", literal=True)
    size = _integers(digits.str.slice(1, 2)) * 3600 + _integers(digits.str.slice(3, 2)) * 60
    return np.where(zones.str.starts_with("-").fill_null(False).to_numpy(), -size, size)


def looks_like_date(cell: str) -> bool:
    """Return whether a cell is a date that begins with the day or the month.

    Examples
    --------
    >>> looks_like_date("31.05.2024"), looks_like_date("5/31/24 3:30 PM"), looks_like_date("31.06.2024")
    (True, True, False)
    """
    if not re.match(_PATTERN, cell.strip()):
        return False
    cells = pl.Series([cell], dtype=pl.String)
    order = infer_order(cells)
    return order is not None and not np.isnan(ordered_seconds(cells, order)[0])
