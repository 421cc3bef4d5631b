"""Choose the columns of a table to use, from its first rows."""

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
from ._conventions import looks_like_time
from .errors import BadInput, unknown_column

__all__ = ["Columns", "Plan", "plan_columns"]

_ENOUGH = 0.75  # share of cells that makes a column numeric, or one of times
_FEWEST_COUNTED = 10  # rows; fewer equally spaced numbers may not be a counter
_SOME_DATE = "2000-01-01"
_NEARLY = re.compile(r"\W?\s*\d")  # start of numbers with units, decimal commas and the like


@dataclass(frozen=True)
class Columns:
    """The columns of a table and their roles.

    Attributes
    ----------
    used : list of str
        The numeric columns, in the order of the rows returned.
    skipped : dict
        Why each other column is skipped.
    time, key, id : str or None
        The columns of timestamps, keys and row names.
    """

    used: list[str]
    skipped: dict[str, str] = field(default_factory=dict)
    time: str | None = None
    key: str | None = None
    id: str | None = None


@dataclass(frozen=True)
class Plan:
    """The columns, and how to read times."""

    columns: Columns
    clock: Clock | None

    @property
    def wanted(self) -> dict[str, type[pl.DataType]]:
        """Columns to read, with their types."""
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
    """Infer which columns are numeric, and which holds the times.

    Raises
    ------
    BadInput
        If a column is missing or has the wrong content, or no numeric column is left.
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
            raise BadInput(f"Column '{name}' of {where} contains {read[name].what}, not numbers. Choose other columns.")
    if time is None:
        time = _inferred_time([name for name in read if name not in (key, id, *(columns or ()))], read)
    clock = _clock(time, read, where) if time else None
    roles = {time: "time", key: "key", id: "id"}
    reasons = {name: roles.get(name) or _reason(cells, sample) for name, cells in read.items()}
    used = list(columns) if columns else [name for name, reason in reasons.items() if reason is None]
    left = [name for name in reasons if name not in used and name not in roles]
    skipped = {name: reasons[name] or "not selected" for name in left}
    if not used:
        listed = ", ".join(f"'{name}' ({reason})" for name, reason in list(skipped.items())[:8])
        raise BadInput(f"{where} has no numeric column to use: {listed}. Select columns with --columns.")
    return Plan(Columns(used, skipped, time, key, id), clock)


class _Read:
    """A column of the sample, parsed as numbers and as times."""

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
        """Whether enough of the non-missing cells are numbers."""
        return self.n_read > 0 and self.n_read >= _ENOUGH * (self.n_read + self.n_unread)

    @cached_property
    def is_times(self) -> bool:
        """Whether enough of the non-missing cells are dates."""
        if self.is_moment:
            return True
        if self.is_other or self.is_numeric or not self.n_unread:
            return False
        words = self.cells.filter(pl.Series(self.unread))
        dates = Clock.of_dates(words).seconds(words)
        return bool(np.count_nonzero(~np.isnan(dates)) >= _ENOUGH * (self.n_read + self.n_unread))

    @property
    def example(self) -> str:
        """A cell that looks like a number but is not, for messages."""
        words = self.cells.filter(pl.Series(self.unread)).head(1).to_list()
        return f", such as '{shortened(str(words[0]))}'" if words and _NEARLY.match(str(words[0])) else ""

    @property
    def what(self) -> str:
        """Content of a column that is not numeric."""
        if self.is_other:
            return f"values of type {self.cells.dtype}"
        if not self.n_read and not self.n_unread:
            return "nothing"
        return "times" if self.is_times else "text"


def _is_numeric(dtype: pl.DataType) -> bool:
    """Return whether a type is numeric or boolean."""
    return dtype.is_numeric() or dtype in (pl.Boolean, pl.Null)


def _no_rows(sample: Sample, where: str) -> BadInput:
    """Return the error for a table without rows, or without valid ones."""
    faults = sample.faults
    if not faults:
        return BadInput(f"{where} has a header but no rows.")
    first = faults[0]
    return BadInput(f"{where} has no valid row. Row {first.number}: {first.reason}. Content: {first.text}")


def _reason(read: _Read, sample: Sample) -> str | None:
    """Return why a column is not used, or None if it is."""
    if read.is_other:
        return f"of type {read.cells.dtype}"
    if not read.is_moment and not read.n_read and not read.n_unread:
        return "empty" if sample.is_all else f"empty in the first {len(read.cells)} rows"
    if not read.is_numeric:
        return "times" if read.is_times else f"text{read.example}"
    values = read.values[np.isfinite(read.values)]
    # a column that is constant only in the sample may change later, which matters most
    if sample.is_all and len(values) and (values == values[0]).all():
        return f"constant {values[0]:.6g}"
    return "row counter" if _counts_rows(read.values, sample.numbers) else None


def _counts_rows(values: NDArray[np.float64], rows: NDArray[np.int64]) -> bool:
    """Return whether integers increase by the same step from row to row."""
    if len(values) < _FEWEST_COUNTED or not np.isfinite(values).all() or (values % 1).any():
        return False
    step = (values[1] - values[0]) / (rows[1] - rows[0])
    return bool(step > 0 and (values == values[0] + step * (rows - rows[0])).all())


def _inferred_time(names: list[str], read: dict[str, _Read]) -> str | None:
    """Return the column of times: one with such a name, or the only column of dates."""
    named = [name for name in names if looks_like_time(name, _SOME_DATE)]
    for name in named:
        if read[name].is_times or (read[name].is_numeric and _is_rising(read[name])):
            return name
    dates = [name for name in names if read[name].is_times]
    return dates[0] if len(dates) == 1 else None


def _is_rising(read: _Read) -> bool:
    """Return whether numbers never decrease and are not constant."""
    values = read.values[np.isfinite(read.values)]
    return bool((np.diff(values) >= 0).all() and values[-1] > values[0]) if len(values) else False


def _clock(name: str, read: dict[str, _Read], where: str) -> Clock:
    """Return how to read a column of times; raise if it has none."""
    column = read[name]
    if column.is_times:
        return Clock.of_dates(column.cells)
    finite = column.values[np.isfinite(column.values)]
    if not column.is_numeric or not len(finite):
        raise BadInput(
            f"Column '{name}' of {where} contains {column.what}, not times. "
            "Use dates such as 2024-05-31T12:00:00Z, or seconds since 1970."
        )
    return Clock.of_numbers(finite)
