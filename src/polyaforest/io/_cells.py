"""Convert cells to numbers, and timestamps to seconds."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ._conventions import MISSING, TRUTH, units_per_second

__all__ = ["Clock", "numbers", "texts"]

Floats = NDArray[np.float64]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_USUAL_DATE = re.compile(r"\d{4}([-/])\d\d\1\d\d(?:([T ])\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d)?)?", re.ASCII)


class Numbers(NamedTuple):
    """The cells of a column as numbers.

    Attributes
    ----------
    values : float64 array of shape (n,)
        NaN where a value is missing or not a number.
    unread : bool array of shape (n,)
        Where a cell is not a number.
    """

    values: Floats
    unread: NDArray[np.bool_]


def numbers(cells: pl.Series) -> Numbers:
    """Convert numbers, booleans and missing values to float64."""
    if cells.dtype != pl.String:
        values = cells.cast(pl.Float64).to_numpy()
        return Numbers(values, np.zeros(len(cells), np.bool_))
    text = cells.str.strip_chars(" \t")
    cast = text.cast(pl.Float64, strict=False)
    values = cast.to_numpy().copy()
    others = (cast.is_null() & text.is_not_null()).arg_true()
    words = text.gather(others).str.to_lowercase()
    for word, value in TRUTH.items():
        values[others.filter(words == word).to_numpy()] = value
    unread = np.zeros(len(cells), np.bool_)
    unread[others.filter(~words.is_in([*TRUTH, *MISSING, "nan"])).to_numpy()] = True
    return Numbers(values, unread)


def texts(cells: pl.Series) -> list[str]:
    """Return cells as text."""
    try:
        written: list[str] = cells.cast(pl.String).fill_null("").to_list()
    except pl.exceptions.PolarsError:  # lists, durations, bytes
        written = ["" if cell is None else str(cell) for cell in cells]
    return written


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
        return np.nan
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(microseconds=1) / 1e6


class Clock(NamedTuple):
    """How to read a column of timestamps.

    Attributes
    ----------
    per_second : float or None
        Units per second of numeric timestamps; None for dates.
    pattern : str or None
        Format string of the dates, if known.
    """

    per_second: float | None
    pattern: str | None = None

    @classmethod
    def of_numbers(cls, values: Floats) -> Clock:
        """Return the clock of numbers since 1970, with the unit inferred from their size."""
        return cls(units_per_second(float(np.median(np.abs(values)))))

    @classmethod
    def of_dates(cls, cells: pl.Series) -> Clock:
        """Return the clock of dates, with the format of the first."""
        first = cells.drop_nulls().head(1).to_list() if cells.dtype == pl.String else []
        return cls(None, _pattern(first[0]) if first else None)

    def seconds(self, cells: pl.Series) -> Floats:
        """Return seconds since 1970, NaN where a cell is not a time."""
        if cells.dtype in (pl.Date, pl.Datetime):
            return _of_moments(cells)
        if self.per_second is None:
            return _iso_seconds(cells.cast(pl.String), self.pattern)
        values = numbers(cells).values
        return np.where(np.isinf(values), np.nan, values) / self.per_second
