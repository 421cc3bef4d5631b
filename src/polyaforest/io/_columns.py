"""Which columns of a table are used, told from its first rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ._batches import Sample, shortened
from ._cells import Clock, numbers
from ._errors import BadInput, unknown_column
from ._times import looks_like_time

__all__ = ["Columns", "Plan", "plan_columns"]

_ENOUGH = 0.75  # the share of cells that makes a column one of numbers, or of times
_FEWEST_COUNTED = 10  # rows; fewer numbers that rise in equal steps are no sure sign of a counter
_SOME_DATE = "2000-01-01"
_NEARLY = re.compile(r"\W?\s*\d")  # how numbers with units, decimal commas and the like begin


@dataclass(frozen=True)
class Columns:
    """What became of the columns of a table.

    Attributes
    ----------
    used : list of str
        The columns of numbers, in the order of the rows handed out.
    skipped : dict
        The reason for every other column, in words.
    time, key, id : str or None
        The columns that give times, keys and the names of rows.
    """

    used: list[str]
    skipped: dict[str, str] = field(default_factory=dict)
    time: str | None = None
    key: str | None = None
    id: str | None = None


@dataclass(frozen=True)
class Plan:
    """The columns, and how the times are read."""

    columns: Columns
    clock: Clock | None

    @property
    def wanted(self) -> dict[str, type[pl.DataType]]:
        """The columns to read, and what is expected in them."""
        columns = self.columns
        of_text = [name for name in (columns.key, columns.id) if name]
        of_numbers = dict.fromkeys(columns.used, pl.Float64)
        by_time: dict[str, type[pl.DataType]] = {}
        if columns.time and self.clock:
            by_time[columns.time] = pl.String if self.clock.per_second is None else pl.Float64
        return of_numbers | by_time | dict.fromkeys(of_text, pl.String)


def plan_columns(
    sample: Sample, where: str, columns: Sequence[str] | None, time: str | None, key: str | None, id: str | None
) -> Plan:
    """Decide which columns are numbers, and which gives the times.

    Raises
    ------
    BadInput
        If a column is not there or does not hold what it must, or none is left to use.
    """
    frame = sample.frame
    if not frame.columns:
        raise _no_rows(sample, where)
    for name in [*(columns or ()), *filter(None, (time, key, id))]:
        if name not in frame.columns:
            raise unknown_column(name, frame.columns, where)
    if not len(frame):
        raise _no_rows(sample, where)
    read = {name: _Read(frame[name]) for name in frame.columns}
    for name in columns or ():
        if read[name].n_unread and not read[name].n_read:
            raise BadInput(f"Column '{name}' of {where} holds {read[name].what}, not numbers. Choose other columns.")
    if time is None:
        time = _inferred_time([name for name in read if name not in (key, id, *(columns or ()))], read)
    clock = _clock(time, read, where) if time else None
    roles = {time: "gives the times", key: "is the key", id: "names the rows"}
    reasons = {name: roles.get(name) or _reason(cells, sample) for name, cells in read.items()}
    used = list(columns) if columns else [name for name, reason in reasons.items() if reason is None]
    left = [name for name in reasons if name not in used and name not in roles]
    skipped = {name: reasons[name] or "not asked for" for name in left}
    if not used:
        raise _nothing_to_use(where, skipped)
    return Plan(Columns(used, skipped, time, key, id), clock)


class _Read:
    """A column of the sample, read as numbers and as times."""

    def __init__(self, cells: pl.Series) -> None:
        self.cells = cells
        self.is_moment = cells.dtype in (pl.Date, pl.Datetime)
        self.is_other = not (self.is_moment or cells.dtype == pl.String or _is_numeric(cells.dtype))
        unreadable = self.is_moment or self.is_other
        as_text = pl.Series([""] * len(cells)) if unreadable else cells
        self.values, self.unread = numbers(as_text)
        self.n_read = int(np.count_nonzero(~np.isnan(self.values)))
        self.n_unread = len(cells) if unreadable else int(np.count_nonzero(self.unread))

    @property
    def is_numeric(self) -> bool:
        """Whether enough of the cells that are there are numbers."""
        return self.n_read > 0 and self.n_read >= _ENOUGH * (self.n_read + self.n_unread)

    @cached_property
    def is_times(self) -> bool:
        """Whether enough of the cells that are there are dates."""
        if self.is_moment:
            return True
        if self.is_other or self.is_numeric or not self.n_unread:
            return False
        words = self.cells.filter(pl.Series(self.unread))
        dates = Clock.of_dates(words).seconds(words)
        return bool(np.count_nonzero(~np.isnan(dates)) >= _ENOUGH * (self.n_read + self.n_unread))

    @property
    def example(self) -> str:
        """A cell that looks like a number but is none, for people to see why."""
        words = self.cells.filter(pl.Series(self.unread)).head(1).to_list()
        return f", such as '{shortened(str(words[0]))}'" if words and _NEARLY.match(str(words[0])) else ""

    @property
    def what(self) -> str:
        """What is in a column that is not of numbers."""
        if self.is_other:
            return f"values of type {self.cells.dtype}"
        if not self.n_read and not self.n_unread:
            return "nothing"
        return "times" if self.is_times else "text"


def _is_numeric(dtype: pl.DataType) -> bool:
    """Whether a type is one of numbers or truth values."""
    return dtype.is_numeric() or dtype in (pl.Boolean, pl.Null)


def _no_rows(sample: Sample, where: str) -> BadInput:
    """The error for a table without rows, or without good ones."""
    faults = sample.faults
    if not faults:
        return BadInput(f"{where} has column names but no rows below them.")
    first = faults[0]
    return BadInput(f"{where} has no row that can be read. Row {first.number}: {first.reason}. It reads: {first.text}")


def _nothing_to_use(where: str, skipped: dict[str, str]) -> BadInput:
    """The error for a table without a column of numbers."""
    listed = ", ".join(f"'{name}' ({reason})" for name, reason in list(skipped.items())[:8])
    return BadInput(f"{where} has no column of numbers to use: {listed}. Name columns to use with --columns.")


def _reason(read: _Read, sample: Sample) -> str | None:
    """Why a column is not used, or None if it is."""
    if read.is_other:
        return f"of type {read.cells.dtype}"
    if not read.is_moment and not read.n_read and not read.n_unread:
        return "empty" if sample.is_all else f"empty in the first {len(read.cells)} rows"
    if not read.is_numeric:
        return "times" if read.is_times else f"text{read.example}"
    values = read.values[np.isfinite(read.values)]
    # what has not changed yet may do so in the rows to come, and then it matters most
    if sample.is_all and len(values) and (values == values[0]).all():
        return f"always {values[0]:.6g}"
    return "counts the rows" if _counts_rows(read.values, sample.numbers) else None


def _counts_rows(values: NDArray[np.float64], rows: NDArray[np.int64]) -> bool:
    """Whether whole numbers rise by the same step from row to row."""
    if len(values) < _FEWEST_COUNTED or not np.isfinite(values).all() or (values % 1).any():
        return False
    step = (values[1] - values[0]) / (rows[1] - rows[0])
    return bool(step > 0 and (values == values[0] + step * (rows - rows[0])).all())


def _inferred_time(names: list[str], read: dict[str, _Read]) -> str | None:
    """The column of times: one named so, or the only one that holds dates."""
    named = [name for name in names if looks_like_time(name, _SOME_DATE)]
    for name in named:
        if read[name].is_times or (read[name].is_numeric and _is_rising(read[name])):
            return name
    dates = [name for name in names if read[name].is_times]
    return dates[0] if len(dates) == 1 else None


def _is_rising(read: _Read) -> bool:
    """Whether numbers never fall and do rise."""
    values = read.values[np.isfinite(read.values)]
    return bool((np.diff(values) >= 0).all() and values[-1] > values[0]) if len(values) else False


def _clock(name: str, read: dict[str, _Read], where: str) -> Clock:
    """How a column's times are read; raise if it holds none."""
    column = read[name]
    if column.is_times:
        return Clock.of_dates(column.cells)
    finite = column.values[np.isfinite(column.values)]
    if not column.is_numeric or not len(finite):
        raise BadInput(
            f"Column '{name}' of {where} holds {column.what}, not times. "
            "Times are dates such as 2024-05-31T12:00:00Z, or seconds since 1970."
        )
    return Clock.of_numbers(finite)
