"""Cells to numbers, and times to seconds."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

__all__ = ["Clock", "numbers", "texts"]

Floats = NDArray[np.float64]

_MISSING = ["", "na", "nan", "null", "-", "none", "n/a"]  # in lower case
_TRUTH = {"true": 1.0, "false": 0.0}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_USUAL_DATE = re.compile(r"\d{4}([-/])\d\d\1\d\d(?:([T ])\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d)?)?", re.ASCII)
_SCALES = ((1e11, 1.0), (1e14, 1e3), (1e17, 1e6))  # seconds below the first, then milliseconds, then microseconds


class Numbers(NamedTuple):
    """The cells of a column as numbers.

    Attributes
    ----------
    values : float64 array of shape (n,)
        NaN where a value is missing, and where a cell is no number.
    unread : bool array of shape (n,)
        Where a cell is no number.
    """

    values: Floats
    unread: NDArray[np.bool_]


def numbers(cells: pl.Series) -> Numbers:
    """Numbers, truth values and gaps as float64."""
    if cells.dtype != pl.String:
        values = cells.cast(pl.Float64).to_numpy()
        return Numbers(values, np.zeros(len(cells), np.bool_))
    text = cells.str.strip_chars(" \t")
    cast = text.cast(pl.Float64, strict=False)
    values = cast.to_numpy().copy()
    others = (cast.is_null() & text.is_not_null()).arg_true()
    words = text.gather(others).str.to_lowercase()
    for word, value in _TRUTH.items():
        values[others.filter(words == word).to_numpy()] = value
    unread = np.zeros(len(cells), np.bool_)
    unread[others.filter(~words.is_in([*_TRUTH, *_MISSING])).to_numpy()] = True
    return Numbers(values, unread)


def texts(cells: pl.Series) -> list[str]:
    """Cells as they were written."""
    try:
        written: list[str] = cells.cast(pl.String).fill_null("").to_list()
    except pl.exceptions.PolarsError:  # lists, spans of time, bytes
        written = ["" if cell is None else str(cell) for cell in cells]
    return written


def _iso_seconds(cells: pl.Series, pattern: str | None) -> Floats:
    """Seconds since 1970 of dates in the order year, month, day, UTC if no zone is named; NaN where they are none.

    A `pattern` that most are expected to have makes it quick.
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
    """The pattern of a date in one of its usual forms."""
    match = _USUAL_DATE.fullmatch(text)
    if match is None:
        return None
    dash, blank, fraction, zone = match.groups()
    pattern = f"%Y{dash}%m{dash}%d"
    if blank:
        pattern += f"{blank}%H:%M:%S{'%.f' if fraction else ''}"
    return pattern + ("Z" if zone == "Z" else "%#z" if zone else "")


def _of_moments(moments: pl.Series) -> Floats:
    """Seconds since 1970 of datetimes, NaN where there is none."""
    micros = moments.dt.timestamp("us")
    return np.asarray(micros.cast(pl.Float64).to_numpy() / 1e6)


def _iso_second(text: str | None) -> float:
    """Seconds since 1970 of any other form of ISO 8601, NaN if it is none."""
    try:
        moment = datetime.fromisoformat(text or "")
    except ValueError:
        return np.nan
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(microseconds=1) / 1e6


class Clock(NamedTuple):
    """How the cells of a column are read as times.

    Attributes
    ----------
    per_second : float or None
        What a second is in its numbers; None if it holds dates.
    pattern : str or None
        What the dates look like, as far as is known.
    """

    per_second: float | None
    pattern: str | None = None

    @classmethod
    def of_numbers(cls, values: Floats) -> Clock:
        """The clock of numbers since 1970: in seconds, or in what their size tells."""
        size = float(np.median(np.abs(values)))
        return cls(next((scale for limit, scale in _SCALES if size < limit), 1e9))

    @classmethod
    def of_dates(cls, cells: pl.Series) -> Clock:
        """The clock of dates that look like the first."""
        first = cells.drop_nulls().head(1).to_list() if cells.dtype == pl.String else []
        return cls(None, _pattern(first[0]) if first else None)

    def seconds(self, cells: pl.Series) -> Floats:
        """Seconds since 1970, NaN where a cell is no time."""
        if cells.dtype in (pl.Date, pl.Datetime):
            return _of_moments(cells)
        if self.per_second is None:
            return _iso_seconds(cells.cast(pl.String), self.pattern)
        values = numbers(cells).values
        return np.where(np.isinf(values), np.nan, values) / self.per_second
