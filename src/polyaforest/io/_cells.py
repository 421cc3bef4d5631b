"""Convert cells to numbers, and timestamps to seconds."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from polyaforest.tables.categories import code_of, encode

from ._conventions import MISSING, NO_CATEGORY, TRUTH, month_start, units_per_second
from ._dates import DateOrder, infer_order, ordered_seconds
from ._notation import Notation

__all__ = [
    "Clock",
    "calendar_seconds",
    "categories",
    "category_texts",
    "numbers",
    "seconds_of_day",
    "texts",
    "without",
]

Floats = NDArray[np.float64]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME_OF_DAY = r"^([0-9]{1,2})([:.])([0-9]{2})(?:[:.]([0-9]{2})([.,][0-9]+)?)?(?: ?([AaPp])\.?[Mm]\.?)?$"
_USUAL_DATE = re.compile(r"\d{4}([-/])\d\d\1\d\d(?:([T ])\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d)?)?", re.ASCII)


class Numbers(NamedTuple):
    """The cells of a column as numbers.

    Attributes
    ----------
    values : float64 array of shape (n,)
        NaN where a value is missing or not a number.
    unread : bool array of shape (n,)
        True where a cell is not a number.
    """

    values: Floats
    unread: NDArray[np.bool_]


def numbers(cells: pl.Series, notation: Notation | None = None) -> Numbers:
    """Convert numbers, booleans and missing values to float64, parsing text by a notation (plain by default)."""
    if cells.dtype != pl.String:
        values = cells.cast(pl.Float64).to_numpy()
        return Numbers(values, np.zeros(len(cells), np.bool_))
    text = cells.str.strip_chars(" \t")
    if notation is None:
        cast = text.cast(pl.Float64, strict=False)
        values = cast.to_numpy().copy()
        others = (cast.is_null() & text.is_not_null()).arg_true()
    else:
        values = notation.values(text)
        others = (pl.Series(np.isnan(values)) & text.is_not_null()).arg_true()
    words = text.gather(others).str.to_lowercase()
    for word, value in TRUTH.items() if notation is None else ():
        values[others.filter(words == word).to_numpy()] = value
    known = [*MISSING, "nan", *(TRUTH if notation is None else ())]
    unread = np.zeros(len(cells), np.bool_)
    unread[others.filter(~words.is_in(known)).to_numpy()] = True
    return Numbers(values, unread)


def texts(cells: pl.Series) -> list[str]:
    """Return cells as text."""
    try:
        written: list[str] = cells.cast(pl.String).fill_null("").to_list()
    except pl.exceptions.PolarsError:  # lists, durations, bytes
        written = ["" if cell is None else str(cell) for cell in cells]
    return written


def category_texts(cells: pl.Series) -> pl.Series:
    """Strip the texts of categories; null for missing ones."""
    text = cells.str.strip_chars(" \t")
    return text.set(text.str.to_lowercase().is_in(NO_CATEGORY).fill_null(value=False), None)


def categories(cells: pl.Series) -> tuple[Floats, dict[float, str]]:
    """Return the codes of categories, NaN for missing ones, and the text of each code."""
    if cells.dtype != pl.String:
        return encode(cells.to_list())
    # a file with gaps writes the codes 1 of another as 1.0
    text = category_texts(cells).str.replace(r"^(-?[0-9]+)\.0$", "${1}")
    texts = {code_of(word): word for word in text.drop_nulls().unique().to_list()}
    if not texts:
        return np.full(len(cells), np.nan), {}
    codes = text.replace_strict(list(texts.values()), list(texts), default=None, return_dtype=pl.Float64)
    return codes.to_numpy().copy(), texts


def _iso_seconds(cells: pl.Series, pattern: str | None) -> Floats:
    """Return seconds since 1970 of dates in year-month-day order, UTC unless they have an offset; NaN for other text.

    Fast for dates that match `pattern`.
    """
    seconds = np.full(len(cells), np.nan)
    if pattern:
        seconds = _of_moments(cells.str.to_datetime(pattern, time_unit="us", strict=False))
    others = np.flatnonzero(np.isnan(seconds))
    if len(others):
        rest = cells.gather(others).str.strip_chars(" \t").str.replace_all("/", "-", literal=True)
        seconds[others] = [_iso_second(text) for text in rest]
    return seconds


def _pattern(text: str) -> str | None:
    """Return the format string of a date in one of the usual forms."""
    match = _USUAL_DATE.fullmatch(text)
    if match is None:
        return None
    dash, blank, fraction, zone = match.groups()
    pattern = f"%Y{dash}%m{dash}%d"
    if blank:
        pattern += f"{blank}%H:%M:%S{'%.f' if fraction else ''}"
    return pattern + ("Z" if zone == "Z" else "%#z" if zone else "")


def _of_moments(moments: pl.Series) -> Floats:
    """Return seconds since 1970 of datetimes, NaN for null."""
    micros = moments.dt.timestamp("us")
    return np.asarray(micros.cast(pl.Float64).to_numpy() / 1e6)


def _iso_second(text: str | None) -> float:
    """Return seconds since 1970 of any ISO 8601 date, NaN for other text."""
    try:
        moment = datetime.fromisoformat(text or "")
    except ValueError:
        month = month_start(text or "")
        if month is None:
            return np.nan
        moment = month
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(microseconds=1) / 1e6


def seconds_of_day(cells: pl.Series) -> Floats:
    """Return seconds since midnight of times such as 18:00, 18.00.00 or 6:00 PM; NaN for other cells."""
    if cells.dtype == pl.Time:
        return np.asarray(cells.cast(pl.Int64).cast(pl.Float64).fill_null(np.nan).to_numpy() / 1e9)
    if cells.dtype != pl.String:
        return np.full(len(cells), np.nan)
    parts = cells.str.strip_chars(" \t").str.extract_groups(_TIME_OF_DAY).struct.unnest()
    parts.columns = ["hour", "mark", "minute", "second", "fraction", "half"]
    hour, minute, second = (parts[name].cast(pl.Float64).to_numpy() for name in ("hour", "minute", "second"))
    half = parts["half"].str.to_lowercase().fill_null("").to_numpy()
    is_valid = (hour < 24) & (minute < 60) & ~(second >= 60) & ((half == "") | ((hour >= 1) & (hour <= 12)))
    is_valid &= ~(np.isnan(second) & (parts["mark"] == ".").fill_null(False).to_numpy())  # 18.30 is a number
    hour = np.where(half == "", hour, hour % 12 + np.where(half == "p", 12, 0))
    fraction = parts["fraction"].str.replace(",", ".", literal=True).cast(pl.Float64).fill_null(0.0).to_numpy()
    whole = 3600 * hour + 60 * minute + np.where(np.isnan(second), 0, second) + fraction
    return np.asarray(np.where(is_valid, whole, np.nan))


def calendar_seconds(values: Floats) -> Floats:
    """Return seconds since 1970 of numbers such as 20120301, 201203, 2012 and 20120301180000; NaN for others."""
    is_date = (values >= 1000) & (values < 1e14)
    whole = np.where(is_date, values, 1).astype(np.int64)
    is_date &= whole == values
    size = np.log10(whole).astype(np.int64)
    with_clock = np.isin(size, [11, 13])  # hours and minutes, and seconds
    clock = np.where(with_clock, np.where(size == 13, whole % 1_000_000, whole % 10_000 * 100), 0)
    whole = np.where(with_clock, np.where(size == 13, whole // 1_000_000, whole // 10_000), whole)
    size = np.where(with_clock, 7, size)
    is_date &= np.isin(size, [3, 5, 7])
    whole = whole * np.select([size == 3, size == 5], [10_000, 100], 1) + np.select([size == 3, size == 5], [101, 1], 0)
    year, month, day = whole // 10_000, whole // 100 % 100, whole % 100
    hour, minute, second = clock // 10_000, clock // 100 % 100, clock % 100
    is_date &= (year >= 1000) & (year < 2200) & (month >= 1) & (month <= 12) & (day >= 1)
    is_date &= (hour < 24) & (minute < 60) & (second < 60)
    months = (np.where(is_date, year - 1970, 0) * 12 + np.where(is_date, month - 1, 0)).astype("M8[M]")
    days = months.astype("M8[D]") + (np.where(is_date, day, 1) - 1).astype("m8[D]")
    is_date &= days.astype("M8[M]") == months
    return np.asarray(np.where(is_date, days.astype(np.int64) * 86_400.0 + 3600 * hour + 60 * minute + second, np.nan))


def without(cells: pl.Series, missing: tuple[str, ...]) -> pl.Series:
    """Replace texts that count as missing, given in lower case, by null."""
    if cells.dtype != pl.String or not missing:
        return cells
    return cells.set(cells.str.strip_chars(" \t").str.to_lowercase().is_in(missing).fill_null(value=False), None)


class Clock(NamedTuple):
    """How to read a column of timestamps.

    Attributes
    ----------
    per_second : float or None
        Units per second of numeric timestamps; None for dates.
    pattern : str or None
        Format string of the dates, if known.
    order : DateOrder or None
        Order of day and month in dates that do not begin with the year.
    is_calendar : bool
        Whether timestamps are numbers such as 20120301, 201203 or 2012.
    """

    per_second: float | None
    pattern: str | None = None
    order: DateOrder | None = None
    is_calendar: bool = False

    @classmethod
    def of_numbers(cls, values: Floats) -> Clock:
        """Return the clock of numeric timestamps since 1970, inferring the unit from their size."""
        return cls(units_per_second(float(np.median(np.abs(values)))))

    @classmethod
    def of_dates(cls, cells: pl.Series, dates: str | None = None) -> Clock:
        """Return the clock of dates, using the format of the first; `dates` is the order of day and month, if known."""
        if cells.dtype != pl.String:
            return cls(None)
        first = cells.drop_nulls().head(1).to_list()
        pattern = _pattern(first[0]) if first else None
        return cls(None, pattern, None if pattern else infer_order(cells, dates))

    @property
    def units(self) -> float:
        """Units per second of numeric timestamps."""
        return self.per_second or 1.0

    def seconds(self, cells: pl.Series) -> Floats:
        """Return seconds since 1970, NaN where a cell is not a time."""
        if cells.dtype in (pl.Date, pl.Datetime):
            return _of_moments(cells)
        if self.is_calendar:
            return calendar_seconds(numbers(cells).values)
        if self.per_second is None:
            return self._of_text(cells.cast(pl.String))
        values = numbers(cells).values
        return np.where(np.isinf(values), np.nan, values) / self.per_second

    def _of_text(self, cells: pl.Series) -> Floats:
        """Return seconds since 1970 of dates in text."""
        if self.order is None:
            return _iso_seconds(cells, self.pattern)
        seconds = ordered_seconds(cells, self.order)
        others = np.flatnonzero(np.isnan(seconds))
        seconds[others] = _iso_seconds(cells.gather(others), None)
        return seconds
