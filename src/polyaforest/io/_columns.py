"""Choose the columns of a table to use, from its first rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ._batches import TableSample, shortened
from ._cells import Clock, category_texts, numbers
from ._conventions import looks_like_time
from ._notation import ENOUGH, MixedNotation, Notation, infer_notations
from .errors import BadInput, unknown_column
from .reading import Interpretation, Reading

__all__ = ["ReadPlan", "TableColumns", "plan_columns"]

_FEWEST_COUNTED = 10  # rows; fewer equally spaced numbers may not be a counter
_SOME_DATE = "2000-01-01"
_ROWS_OF_CATEGORY = 4  # on average; in a column with fewer, text identifies rows
_FEWEST_DISTINCT = 2  # so few distinct texts are categories in any number of rows
_LONGEST_CATEGORY = 60  # characters on average; longer text is free text
_LONGEST_NUMERAL = 15  # digits
_FEW_WORDS = 0.05  # share of cells up to which words among numbers count as invalid cells
_NEARLY = re.compile(r"^\W?\s*\d")  # start of a cell that may be meant as a number


@dataclass(frozen=True)
class TableColumns:
    """The columns of a table and their roles.

    Attributes
    ----------
    used : list of str
        Columns of numbers and categories, in the order of the row values.
    skipped : dict
        The reason for each skipped column.
    time, key, id, weight, group : str or None
        Columns of timestamps, keys, row names, weights and groups; the group column may also be in `used`.
    categories : list of str
        Columns in `used` with codes of categories.
    """

    used: list[str]
    skipped: dict[str, str] = field(default_factory=dict)
    time: str | None = None
    key: str | None = None
    id: str | None = None
    weight: str | None = None
    group: str | None = None
    categories: list[str] = field(default_factory=list)

    @property
    def numeric(self) -> list[str]:
        """Columns in `used` with numbers."""
        return [name for name in self.used if name not in self.categories]


@dataclass(frozen=True)
class ReadPlan:
    """The columns, how to parse their numbers and times, and which of this was inferred."""

    columns: TableColumns
    clock: Clock | None
    notations: dict[str, Notation] = field(default_factory=dict)
    interpretations: list[Interpretation] = field(default_factory=list)

    @property
    def wanted(self) -> dict[str, type[pl.DataType] | None]:
        """Columns to read, with their types; None for numbers in a notation, which keep the type of the file."""
        columns = self.columns
        of_text = [name for name in (columns.key, columns.id, *columns.categories) if name]
        if columns.group and columns.group not in columns.numeric:
            of_text.append(columns.group)
        of_numbers = {name: None if name in self.notations else pl.Float64 for name in columns.numeric}
        by_time: dict[str, type[pl.DataType] | None] = {}
        if columns.time and self.clock:
            by_time[columns.time] = pl.String if self.clock.per_second is None else pl.Float64
        if columns.weight:
            of_numbers[columns.weight] = pl.Float64
        return of_numbers | by_time | dict.fromkeys(of_text, pl.String)


def plan_columns(
    sample: TableSample,
    where: str,
    columns: Sequence[str] | None,
    time: str | None,
    key: str | None,
    id: str | None,
    reading: Reading,
    delimiter: str | None = None,
    weight: str | None = None,
    categories: Sequence[str] | None = (),
    group: str | None = None,
) -> ReadPlan:
    """Infer which columns are numeric, which are categories, and which holds the times.

    `categories` names the columns of categories. With None, these are the text columns among `columns`, or without
    `columns`, text columns with few distinct values.

    Raises
    ------
    BadInput
        If a column is missing or has the wrong content, or no column is usable.
    """
    frame = sample.frame
    if not frame.columns:
        raise _no_rows(sample, where)
    if weight is not None and weight in (*(columns or ()), *(categories or ()), time, key, id):
        raise BadInput(f"Column '{weight}' holds the weights and cannot be used for anything else.")
    for name in [*(columns or ()), *(categories or ()), *filter(None, (time, key, id, weight, group))]:
        if name not in frame.columns:
            raise unknown_column(name, frame.columns, where)
    if not len(frame):
        raise _no_rows(sample, where)
    taken = {time, key, id, weight, group, *(categories or ())}.difference(columns or ())
    read = _read_columns(frame, reading, delimiter, taken)
    of_text = _chosen_categories(read, columns, categories)
    _check_numbers(read, where, [name for name in columns or () if name not in of_text], weight)
    if time is None:
        free = [name for name in read if name not in (key, id, weight, group, *(columns or ()), *(categories or ()))]
        time = _inferred_time(free, read)
    clock = _clock(time, read, where, reading.dates) if time else None
    roles = {time: "time", key: "key", id: "id", weight: "weight", group: "group"}
    finds = categories is None and not columns
    reasons = {
        name: roles.get(name) or (None if name in of_text else _reason(cells, sample, finds=finds))
        for name, cells in read.items()
    }
    used = list(columns) if columns else [name for name, reason in reasons.items() if reason is None]
    used += [name for name in of_text if name not in used]
    left = [name for name in reasons if name not in used and name not in roles]
    skipped = {name: reasons[name] or "not selected" for name in left}
    if not used:
        listed = ", ".join(f"'{name}' ({reason})" for name, reason in list(skipped.items())[:8])
        raise BadInput(f"{where} has no column to use: {listed}. Select columns with --columns or --categories.")
    chosen = [name for name in used if name in of_text or (finds and not read[name].is_number)]
    numeric = [name for name in used if name not in chosen]
    notations = {name: notation for name in numeric if (notation := read[name].notation) is not None}
    interpretations = (
        [Interpretation("as categories", ("--categories", "--numbers-only"), tuple(chosen))] if chosen and finds else []
    )
    interpretations += _interpreted_numbers({name: read[name] for name in notations})
    if time and clock and clock.order and not clock.order.is_plain:
        interpretations.append(_interpreted_dates(time, read[time], clock))
    return ReadPlan(
        TableColumns(used, skipped, time, key, id, weight, group, chosen), clock, notations, interpretations
    )


def _check_numbers(read: dict[str, _SampleColumn], where: str, columns: Sequence[str], weight: str | None) -> None:
    """Raise BadInput if a selected numeric column or the weight column does not contain numbers."""
    for name in columns:
        if read[name].mixed:
            raise BadInput(f"Column '{name}' of {where} contains {_in_two_ways(read[name])}.")
        if read[name].n_unread and not read[name].n_read:
            remedy = f"Select other columns{', or use --categories' * (read[name].what == 'text')}."
            raise BadInput(f"Column '{name}' of {where} contains {read[name].what}, not numbers. {remedy}")
    if weight is not None and not read[weight].is_numeric:
        raise BadInput(f"Column '{weight}' of {where} contains {read[weight].what}, not weights.")


def _chosen_categories(
    read: dict[str, _SampleColumn], columns: Sequence[str] | None, categories: Sequence[str] | None
) -> list[str]:
    """Return the columns of categories that were named in `categories`, or in `columns` if `categories` is None."""
    if categories is not None:
        return list(categories)
    return [name for name in columns or () if _is_wanted_text(read[name])]


def _is_wanted_text(read: _SampleColumn) -> bool:
    """Return whether a selected column contains categories, rather than numbers with some invalid cells."""
    return read.is_text and (read.is_numerals or read.has_words or not read.n_read)


def _read_columns(
    frame: pl.DataFrame, reading: Reading, delimiter: str | None, taken: set[str | None]
) -> dict[str, _SampleColumn]:
    """Parse the columns of the sample, each in its notation; columns with another role (`taken`) are plain."""
    read = {name: _SampleColumn(frame[name]) for name in frame.columns}
    free = {name: cells for name, cells in read.items() if cells.cells.dtype == pl.String and name not in taken}
    notations = infer_notations(
        {name: cells.cells for name, cells in free.items()},
        {name: cells.unread for name, cells in free.items()},
        delimiter,
        reading,
    )
    for name, notation in notations.items():
        if isinstance(notation, MixedNotation):
            read[name].mixed = notation
        else:
            read[name] = _SampleColumn(frame[name], notation)
    return read


def _interpreted_numbers(read: dict[str, _SampleColumn]) -> list[Interpretation]:
    """Describe how numbers were interpreted, grouping columns by notation."""
    alike: dict[Notation, list[str]] = {}
    for name, cells in read.items():
        assert cells.notation is not None
        if cells.n_read:
            alike.setdefault(cells.notation, []).append(name)
    return [Interpretation(read[names[0]].written, like.options, tuple(names)) for like, names in alike.items()]


def _interpreted_dates(name: str, read: _SampleColumn, clock: Clock) -> Interpretation:
    """Describe the order of day and month in dates, with an example."""
    order = clock.order
    assert order is not None
    seconds = clock.seconds(read.cells)
    [at] = np.flatnonzero(~np.isnan(seconds))[:1]
    day = np.datetime64(int(seconds[at]), "s").astype("M8[D]")
    words = f": {shortened(str(read.cells[int(at)]))} as {day} ({order.words}{', ambiguous' * order.is_guess})"
    return Interpretation(words, ("--dates",), (name,))


class _SampleColumn:
    """A column of the sample, parsed as numbers and as times."""

    def __init__(self, cells: pl.Series, notation: Notation | None = None) -> None:
        self.cells = cells
        self.notation = notation
        self.mixed: MixedNotation | None = None
        self.is_moment = cells.dtype in (pl.Date, pl.Datetime)
        self.is_other = not (self.is_moment or cells.dtype == pl.String or _is_numeric(cells.dtype))
        unreadable = self.is_moment or self.is_other
        as_text = pl.Series([""] * len(cells)) if unreadable else cells
        self.values, self.unread = numbers(as_text, notation)
        self.n_read = int(np.count_nonzero(~np.isnan(self.values)))
        self.n_unread = len(cells) if unreadable else int(np.count_nonzero(self.unread))

    @property
    def is_numeric(self) -> bool:
        """Whether at least `ENOUGH` of the non-missing cells are numbers."""
        return self.n_read > 0 and self.n_read >= ENOUGH * (self.n_read + self.n_unread)

    @property
    def is_number(self) -> bool:
        """Whether cells are quantities, not numerals of one length, such as postcodes."""
        return self.is_numeric and not self.is_numerals and not self.has_words

    @cached_property
    def has_words(self) -> bool:
        """Whether many cells are words and few cells are distinct, as in codes of places."""
        n = self.n_read + self.n_unread
        if self.cells.dtype != pl.String or self.n_unread <= _FEW_WORDS * n:
            return False
        words = self.cells.filter(pl.Series(self.unread))
        return bool(self.cells.n_unique() * _ROWS_OF_CATEGORY <= n and not words.str.contains(_NEARLY.pattern).any())

    @cached_property
    def is_numerals(self) -> bool:
        """Whether all cells have the same number of digits, and some have leading zeros."""
        if self.cells.dtype != pl.String or self.notation is not None or not self.is_numeric:
            return False
        text = category_texts(self.cells).drop_nulls()
        is_alike = len(text) and text.str.contains(r"^\d{2,}$").all() and text.str.len_chars().n_unique() == 1
        return bool(is_alike and text.str.starts_with("0").any() and text.str.len_chars()[0] <= _LONGEST_NUMERAL)

    @property
    def is_text(self) -> bool:
        """Whether cells are text that can be categories."""
        if self.is_moment or self.is_other or self.mixed or self.is_number or not (self.n_read or self.n_unread):
            return False
        return not self.is_times

    @property
    def is_plain(self) -> bool:
        """Whether cells are plain numbers without a unit, as numeric timestamps are."""
        return self.is_numeric and self.notation is None

    @cached_property
    def is_times(self) -> bool:
        """Whether at least `ENOUGH` of the non-missing cells are dates."""
        if self.is_moment:
            return True
        if self.is_other or self.is_numeric or not self.n_unread:
            return False
        words = self.cells.filter(pl.Series(self.unread))
        dates = Clock.of_dates(words).seconds(words)
        return bool(np.count_nonzero(~np.isnan(dates)) >= ENOUGH * (self.n_read + self.n_unread))

    @property
    def example(self) -> str:
        """A cell that looks like a number but does not parse, for messages."""
        words = self.cells.filter(pl.Series(self.unread)).head(1).to_list()
        return f", such as '{shortened(str(words[0]))}'" if words and _NEARLY.match(str(words[0])) else ""

    @property
    def written(self) -> str:
        """An example of a number and its value."""
        assert self.notation is not None
        family = self.notation.family
        read = pl.DataFrame({"cell": self.cells, "value": self.values}).filter(~pl.col("value").is_nan()).head(1000)
        [cell, value] = read.sort(pl.col("cell").str.len_chars(), descending=True, maintain_order=True).row(0)
        unit = f" {family.base}" if family and family.base else ""
        return f": {shortened(cell.strip())} as {value:.15g}{unit}{' (ambiguous)' * self.notation.is_guess}"

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


def _no_rows(sample: TableSample, where: str) -> BadInput:
    """Return the error for a table without valid rows."""
    faults = sample.faults
    if not faults:
        return BadInput(f"{where} has a header but no rows.")
    first = faults[0]
    return BadInput(f"{where} has no valid row. Row {first.number}: {first.reason}. Content: {first.text}")


def _reason(read: _SampleColumn, sample: TableSample, *, finds: bool) -> str | None:
    """Return why a column is skipped, or None if it is used; with `finds`, text columns may be used as categories."""
    if (finds and read.is_text) or read.is_other:
        return f"of type {read.cells.dtype}" if read.is_other else _reason_of_text(read, is_all=sample.is_all)
    if not read.is_moment and not read.n_read and not read.n_unread:
        return "empty" if sample.is_all else f"empty in the first {len(read.cells)} rows"
    if not read.is_numeric:
        if read.mixed:
            return _in_two_ways(read)
        return "times" if read.is_times else f"text{read.example}"
    values = read.values[np.isfinite(read.values)]
    # a column that is constant only in the sample may change later, and such a change must be detected
    if sample.is_all and len(values) and (values == values[0]).all():
        return f"constant {values[0]:.6g}"
    return "row counter" if _counts_rows(read.values, sample.numbers) else None


def _reason_of_text(read: _SampleColumn, *, is_all: bool) -> str | None:
    """Return why a text column is not a column of categories, or None if it is."""
    text = category_texts(read.cells.cast(pl.String)).drop_nulls()
    n, n_distinct = len(text), text.n_unique()
    if n_distinct <= 1:  # later rows may have other values
        return (f"constant '{shortened(text[0])}'" if n else "empty") if is_all else None
    if not (read.is_numerals or read.has_words) and 2 * text.str.contains(_NEARLY.pattern).sum() > n:
        return f"text{read.example}"  # may be meant as numbers
    if text.str.len_chars().sum() > n * _LONGEST_CATEGORY:
        return "free text"
    if n_distinct == n:
        return "text, all different"
    is_rare = n_distinct > _FEWEST_DISTINCT and n_distinct * _ROWS_OF_CATEGORY > n
    return f"text, {n_distinct:,} different in {n:,} rows" if is_rare else None


def _in_two_ways(read: _SampleColumn) -> str:
    """Describe a column that mixes two notations."""
    one, other = map(shortened, read.mixed or ())
    return f"numbers written in two ways, such as '{one}' and '{other}'; see --decimal"


def _counts_rows(values: NDArray[np.float64], rows: NDArray[np.int64]) -> bool:
    """Return whether integers increase by the same step from row to row."""
    if len(values) < _FEWEST_COUNTED or not np.isfinite(values).all() or (values % 1).any():
        return False
    step = (values[1] - values[0]) / (rows[1] - rows[0])
    return bool(step > 0 and (values == values[0] + step * (rows - rows[0])).all())


def _inferred_time(names: list[str], read: dict[str, _SampleColumn]) -> str | None:
    """Return the timestamp column: one with a usual name for timestamps, or else the only column of dates."""
    named = [name for name in names if looks_like_time(name, _SOME_DATE)]
    for name in named:
        if read[name].is_times or (read[name].is_plain and _is_rising(read[name])):
            return name
    dates = [name for name in names if read[name].is_times]
    return dates[0] if len(dates) == 1 else None


def _is_rising(read: _SampleColumn) -> bool:
    """Return whether numbers never decrease and are not constant."""
    values = read.values[np.isfinite(read.values)]
    return bool((np.diff(values) >= 0).all() and values[-1] > values[0]) if len(values) else False


def _clock(name: str, read: dict[str, _SampleColumn], where: str, dates: str | None) -> Clock:
    """Return how to parse the timestamp column; raise BadInput if it contains no times."""
    column = read[name]
    if column.is_times:
        return Clock.of_dates(column.cells, dates)
    finite = column.values[np.isfinite(column.values)]
    if not column.is_numeric or not len(finite):
        raise BadInput(
            f"Column '{name}' of {where} contains {column.what}, not times. "
            "Use dates such as 2024-05-31T12:00:00Z or 31.05.2024, or seconds since 1970."
        )
    return Clock.of_numbers(finite)
