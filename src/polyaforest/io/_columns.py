"""Choose the columns of a table to use, from its first rows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ._batches import NOT_UTF8, Rejected, TableSample, shortened
from ._cells import Clock, category_texts, seconds_of_day, without
from ._conventions import is_moment_since_1970, looks_like_time
from ._names import is_hour_name, is_usual_time_name
from ._notation import MixedNotation, Notation, infer_notations, looks_written
from ._sample_column import MOST_LEVELS, NEARLY, ROWS_OF_CATEGORY, SampleColumn
from ._sentinels import find_sentinels, parse_missing
from .errors import BadInput, unknown_column
from .reading import Interpretation, Reading

__all__ = ["ReadPlan", "Roles", "TableColumns", "check_share", "plan_columns"]

_FEWEST_COUNTED = 10  # rows; fewer equally spaced numbers may not be a counter
_SOME_DATE = "2000-01-01"
_FEWEST_DISTINCT = 2  # so few distinct texts are categories in any number of rows
_LONGEST_CATEGORY = 60  # characters on average; longer text is free text
_UNNAMED = re.compile(r"column_\d+|Unnamed: \d+")
_ADDRESS = r"^(?:[0-9]{1,3}(?:\.[0-9]{1,3}){3}|[0-9A-Fa-f]*(?::[0-9A-Fa-f.]*){2,})$"
_FEWEST_REFUSED, MOST_REFUSED = 20, 0.25  # rows; share of invalid rows from which a file is not a table


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
        Columns of timestamps, keys, row names, weights and groups; the group column may also be in `used`. With several
        columns of keys, `key` is their names with commas between them.
    categories : list of str
        Columns in `used` with codes of categories.
    time_of_day : str or None
        Column of times of day, if `time` holds only dates.
    keys : tuple of str
        The columns of keys.
    """

    used: list[str]
    skipped: dict[str, str] = field(default_factory=dict)
    time: str | None = None
    key: str | None = None
    id: str | None = None
    weight: str | None = None
    group: str | None = None
    categories: list[str] = field(default_factory=list)
    time_of_day: str | None = None
    keys: tuple[str, ...] = ()

    @property
    def times(self) -> str | None:
        """The columns of timestamps as in the option --time: the date and the time of day, with a comma between."""
        return ",".join(filter(None, (self.time, self.time_of_day))) or None

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
    sentinels: dict[str, tuple[float, ...]] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    flags: frozenset[str] = frozenset()
    drops_blank_rows: bool = False

    @property
    def wanted(self) -> dict[str, type[pl.DataType] | None]:
        """Columns to read, with their types; None for numbers in a notation, which keep the type of the file."""
        columns = self.columns
        of_text = [name for name in (*columns.keys, columns.id, *columns.categories) if name]
        if columns.group and columns.group not in columns.numeric:
            of_text.append(columns.group)
        of_numbers = {name: None if name in self.notations else pl.Float64 for name in columns.numeric}
        by_time: dict[str, type[pl.DataType] | None] = {}
        if columns.time and self.clock:
            by_time[columns.time] = pl.String if self.clock.per_second is None else pl.Float64
        if columns.weight:
            of_numbers[columns.weight] = pl.Float64
        if columns.time_of_day:
            by_time[columns.time_of_day] = None
        # a column of booleans keeps the type of the file
        texts = {name: pl.Boolean if name in self.flags else pl.String for name in of_text}
        return of_numbers | by_time | texts


@dataclass(frozen=True)
class Roles:
    """The columns that the caller chose; None where they are inferred.

    Attributes
    ----------
    columns : sequence of str or None
        Columns to use.
    categories : sequence of str or None
        Columns of categories. With None, these are the text columns among `columns`, or without `columns`, text columns
        with few distinct values.
    time, id, weight, group : str or None
    keys : tuple of str
    ignored : tuple of str
        Columns to leave out.
    sentinels : dict or None
        Numbers that mean "no value" by column, for columns whose sentinels are known.
    """

    columns: Sequence[str] | None = None
    categories: Sequence[str] | None = ()
    time: str | None = None
    keys: tuple[str, ...] = ()
    id: str | None = None
    weight: str | None = None
    group: str | None = None
    ignored: tuple[str, ...] = ()
    sentinels: Mapping[str, Sequence[float]] | None = None

    @property
    def others(self) -> tuple[str, ...]:
        """The columns of keys, ids, weights and groups."""
        return tuple(name for name in (*self.keys, self.id, self.weight, self.group) if name)

    def check(self, names: list[str], where: str, times: Sequence[str]) -> None:
        """Raise BadInput if a column is missing or chosen twice."""
        chosen = [*(self.columns or ()), *(self.categories or ())]
        if self.weight is not None and self.weight in (*chosen, *times, *self.keys, self.id):
            raise BadInput(f"Column '{self.weight}' holds the weights and cannot be used for anything else.")
        for name in [*chosen, *times, *self.others, *self.ignored]:
            if name not in names:
                raise unknown_column(name, names, where)
        for name in [*chosen, *times, *self.others]:
            if name in self.ignored:
                raise BadInput(f"Column '{name}' is both chosen and ignored.")


def plan_columns(
    sample: TableSample, where: str, roles: Roles, reading: Reading, delimiter: str | None = None
) -> ReadPlan:
    """Infer which columns are numeric, which are categories, and which hold the times.

    Raises
    ------
    BadInput
        If a column is missing or has the wrong content, no column is usable, or the file is not a table.
    """
    check_share(len(sample.faults), len(sample.faults) + len(sample.numbers), sample.faults, where)
    if not sample.frame.columns:
        raise _no_rows(sample, where)
    chosen_times = _split_names(roles.time, sample.frame.columns)
    roles.check(sample.frame.columns, where, chosen_times)
    if not len(sample.frame):
        raise _no_rows(sample, where)
    columns, categories, weight = roles.columns, roles.categories, roles.weight
    missing = parse_missing(reading.missing or ())
    frame = sample.frame.select(without(cells, missing.texts) for cells in sample.frame)
    taken = {*chosen_times, *roles.others, *(categories or ()), *roles.ignored}.difference(columns or ())
    read = _read_columns(frame, reading, delimiter, taken)
    of_text = _chosen_categories(read, columns, categories)
    _check_numbers(read, where, [name for name in columns or () if name not in of_text], weight)
    used_up = {*roles.others, *roles.ignored, *(columns or ()), *(categories or ())}
    time, time_of_day = _times([name for name in read if name not in used_up], chosen_times, read, sample)
    clock = _clock(time, read, where, reading.dates) if time else None
    if time_of_day is not None:
        _check_times_of_day(read[time_of_day], where)
    others = dict.fromkeys([*filter(None, (time, time_of_day)), *roles.others], "another role")
    others |= dict.fromkeys(roles.ignored, "ignored")
    finds = categories is None and not columns
    names_rows = not all(_UNNAMED.fullmatch(name) for name in read)
    reasons = {
        name: others.get(name)
        or (None if name in of_text else _reason(cells, sample, finds=finds, has_names=names_rows))
        for name, cells in read.items()
    }
    used = list(columns) if columns else [name for name, reason in reasons.items() if reason is None]
    used += [name for name in of_text if name not in used]
    left = [name for name in reasons if name not in used and others.get(name) in (None, "ignored")]
    skipped = {name: reasons[name] or "not selected" for name in left}
    if not used:
        listed = ", ".join(f"'{name}' ({reason})" for name, reason in list(skipped.items())[:8])
        of_words = all(column.is_text and not column.n_read for column in read.values())
        remedy = " Of logs, those of web servers and of JSON objects can be read." if of_words else ""
        raise BadInput(
            f"{where} has no column to use: {listed}. Select columns with --columns or --categories.{remedy}"
        )
    # a series of zeros and ones stays one of numbers
    are_rows = finds and time is None
    chosen = [
        name
        for name in used
        if name in of_text or (finds and not read[name].is_number) or (are_rows and read[name].is_bit)
    ]
    numeric = [name for name in used if name not in chosen]
    notations = {name: notation for name in numeric if (notation := read[name].notation) is not None}
    sentinels = _sentinels({name: read[name] for name in numeric}, roles, reading)
    interpretations = (
        [Interpretation("as categories", ("--categories", "--numbers-only"), tuple(chosen))] if chosen and finds else []
    )
    interpretations += _interpreted_numbers({name: read[name] for name in notations}, sentinels)
    interpretations += _interpreted_times(time, time_of_day, read, clock)
    if reading.missing is None:
        interpretations += _interpreted_sentinels(sentinels)
    plan = TableColumns(
        used,
        skipped,
        time,
        ", ".join(roles.keys) or None,
        roles.id,
        weight,
        roles.group,
        chosen,
        time_of_day,
        roles.keys,
    )
    flags = frozenset(name for name in chosen if frame[name].dtype == pl.Boolean)
    return ReadPlan(plan, clock, notations, interpretations, sentinels, missing.texts, flags, columns is None)


def check_share(n_bad: int, n: int, first: Sequence[Rejected], where: str) -> None:
    """Raise BadInput if so many rows are invalid that a file is not a table."""
    if n_bad < _FEWEST_REFUSED or n_bad <= MOST_REFUSED * n or n_bad == n:
        return
    bad = first[0]
    raise BadInput(
        f"{where} does not read as a table: {n_bad:,} of its first {n:,} rows are invalid. Row {bad.number}: "
        f"{bad.reason}. Content: {bad.text}. "
        f"{_remedy(bad, 'Choose another --format or --delimiter, or leave out columns with --ignore.')}"
    )


def _remedy(bad: Rejected, other: str = "") -> str:
    """Return what to do about an invalid row."""
    return "Convert the file first, for example: iconv -f LATIN1 -t UTF-8 FILE" if bad.reason == NOT_UTF8 else other


def _split_names(names: str | None, known: Sequence[str]) -> list[str]:
    """Split names at commas, unless they are one name."""
    if names is None or names in known:
        return [] if names is None else [names]
    return [name.strip() for name in names.split(",")][:2]


def _times(
    free: list[str], chosen: Sequence[str], read: dict[str, SampleColumn], sample: TableSample
) -> tuple[str | None, str | None]:
    """Return the columns of timestamps and of times of day."""
    if chosen:
        return chosen[0], chosen[1] if len(chosen) > 1 else None
    time = _inferred_time(free, read, sample)
    if time is None or not read[time].is_times or not read[time].has_only_days:
        return time, None
    names = list(read)
    is_next = {names[at + 1]: names[at] == time for at in range(len(names) - 1)}
    days_repeat = read[time].cells.n_unique() < len(read[time].cells)
    for name in free:
        if read[name].is_time_of_day and (is_hour_name(name) or (days_repeat and is_next.get(name, False))):
            return time, name
    return time, None


def _check_times_of_day(read: SampleColumn, where: str) -> None:
    """Raise BadInput if a column does not contain times of day."""
    if not read.is_time_of_day:
        raise BadInput(f"Column '{read.cells.name}' of {where} contains {read.what}, not times of day such as 18:00.")


def _sentinels(read: dict[str, SampleColumn], roles: Roles, reading: Reading) -> dict[str, tuple[float, ...]]:
    """Return the numbers that mean "no value" by column."""
    if reading.missing is not None:
        numbers = parse_missing(reading.missing).numbers
        return dict.fromkeys(read, numbers) if numbers else {}
    if roles.sentinels is not None:
        return {name: tuple(values) for name, values in roles.sentinels.items() if name in read}
    return find_sentinels({name: column.values for name, column in read.items()})


def _interpreted_sentinels(sentinels: dict[str, tuple[float, ...]]) -> list[Interpretation]:
    """Describe which numbers count as missing, grouping columns by number."""
    alike: dict[tuple[float, ...], list[str]] = {}
    for name, values in sentinels.items():
        alike.setdefault(tuple(values), []).append(name)
    return [
        Interpretation(
            f": {' and '.join(f'{value:.10g}' for value in values)} as missing", ("--missing-values",), tuple(names)
        )
        for values, names in alike.items()
        if values
    ]


def _check_numbers(read: dict[str, SampleColumn], where: str, columns: Sequence[str], weight: str | None) -> None:
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
    read: dict[str, SampleColumn], columns: Sequence[str] | None, categories: Sequence[str] | None
) -> list[str]:
    """Return the columns of categories that were named in `categories`, or in `columns` if `categories` is None."""
    if categories is not None:
        return list(categories)
    return [name for name in columns or () if _is_wanted_text(read[name])]


def _is_wanted_text(read: SampleColumn) -> bool:
    """Return whether a selected column contains categories, rather than numbers with some invalid cells."""
    return read.is_text and (read.is_numerals or read.has_words or read.is_flag or not read.n_read)


def _read_columns(
    frame: pl.DataFrame, reading: Reading, delimiter: str | None, taken: set[str]
) -> dict[str, SampleColumn]:
    """Parse the columns of the sample, each in its notation; columns with another role (`taken`) are plain."""
    read = {name: SampleColumn(frame[name]) for name in frame.columns}
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
            read[name] = SampleColumn(frame[name], notation)
    return read


def _interpreted_numbers(
    read: dict[str, SampleColumn], sentinels: dict[str, tuple[float, ...]]
) -> list[Interpretation]:
    """Describe how numbers were interpreted, grouping columns by notation."""
    alike: dict[Notation, list[str]] = {}
    for name, cells in read.items():
        assert cells.notation is not None
        if cells.n_read:
            alike.setdefault(cells.notation, []).append(name)
    return [
        Interpretation(read[names[0]].written(sentinels.get(names[0], ())), like.options, tuple(names))
        for like, names in alike.items()
    ]


def _interpreted_times(
    time: str | None, time_of_day: str | None, read: dict[str, SampleColumn], clock: Clock | None
) -> list[Interpretation]:
    """Describe the order of day and month in dates, and a time of day that is joined, with an example."""
    if time is None or clock is None:
        return []
    order = clock.order if clock.order and not clock.order.is_plain else None
    if order is None and time_of_day is None:
        return []
    seconds, cell = clock.seconds(read[time].cells), read[time].cells
    text = ""
    if time_of_day is not None:
        seconds = seconds + seconds_of_day(read[time_of_day].cells)
        text = " and "
    places = np.flatnonzero(~np.isnan(seconds))[:1]
    if not len(places):
        return []
    at = int(places[0])
    moment = np.datetime64(int(seconds[at]), "s")
    example = shortened(str(cell[at]))
    shown = str(moment.astype("M8[D]"))
    if time_of_day is not None:
        example += text + shortened(str(read[time_of_day].cells[at]))
        shown = str(moment).replace("T", " ")
    ambiguous = "" if order is None else f" ({order.words}{', ambiguous' * order.is_guess})"
    options = ("--dates",) * (order is not None) + ("--time",) * (time_of_day is not None)
    columns = tuple(filter(None, (time, time_of_day)))
    return [Interpretation(f": {example} as {shown}{ambiguous}", options, columns)]


def _no_rows(sample: TableSample, where: str) -> BadInput:
    """Return the error for a table without valid rows."""
    faults = sample.faults
    if not faults:
        return BadInput(f"{where} has a header but no rows.")
    first = faults[0]
    words = f"{where} has no valid row. Row {first.number}: {first.reason}. Content: {first.text}"
    return BadInput(f"{words}. {_remedy(first)}" if _remedy(first) else words)


def _reason(read: SampleColumn, sample: TableSample, *, finds: bool, has_names: bool) -> str | None:
    """Return why a column is skipped, or None if it is used; with `finds`, text columns may be used as categories."""
    is_unnamed = has_names and _UNNAMED.fullmatch(read.cells.name) is not None
    if read.is_time_of_day or read.is_other:
        return f"of type {read.cells.dtype}" if read.is_other else "times of day"
    if read.is_calendar:
        return "times"
    if read.is_numeric and (is_unnamed or read.is_id) and read.n_read >= _FEWEST_COUNTED:
        if read.is_row_name:
            return "row counter" if _counts_rows(read, sample) else "identifier"
        if read.is_id and not (finds and read.is_code):
            return _reason_of_id(read)
    if finds and read.is_text:
        return _reason_of_text(read, is_all=sample.is_all, is_unnamed=is_unnamed)
    return _reason_of_numbers(read, sample) if read.is_numeric else _reason_of_words(read, sample)


def _reason_of_words(read: SampleColumn, sample: TableSample) -> str:
    """Return why a column is skipped that holds no numbers."""
    if not read.is_moment and not read.n_read and not read.n_unread:
        return "empty" if sample.is_all else f"empty in {len(read.cells):,} rows from across the file"
    if read.mixed:
        return _in_two_ways(read)
    return "times" if read.is_times else f"text{read.example}"


def _reason_of_numbers(read: SampleColumn, sample: TableSample) -> str | None:
    """Return why a column of numbers is skipped, or None if it is used."""
    values = read.values[np.isfinite(read.values)]
    # a column that is constant only in the sample may change later, and such a change must be detected
    if sample.is_all and len(values) and (values == values[0]).all():
        return f"constant {values[0]:.6g}"
    return "row counter" if _counts_rows(read, sample) else None


def _reason_of_id(read: SampleColumn) -> str | None:
    """Return why a column of numeric identifiers is skipped."""
    n = read.n_distinct
    return f"identifier, {n:,} different in {read.n_read:,} rows" if n > _FEWEST_DISTINCT else None


def _reason_of_text(read: SampleColumn, *, is_all: bool, is_unnamed: bool) -> str | None:
    """Return why a text column is not a column of categories, or None if it is."""
    text = category_texts(read.cells.cast(pl.String)).drop_nulls()
    n, n_distinct = len(text), text.n_unique()
    if is_unnamed and 2 * n < len(read.cells):
        return "unnamed, hardly filled"
    if n_distinct <= 1:  # later rows may have other values
        return (f"constant '{shortened(text[0])}'" if n else "empty") if is_all else None
    if not (read.is_numerals or read.has_words or read.is_code) and _is_meant_as_number(text):
        return f"text{read.example}"
    if text.str.len_chars().sum() > n * _LONGEST_CATEGORY:
        return "free text"
    if n_distinct == n:
        return "text, all different"
    is_rare = n_distinct > _FEWEST_DISTINCT and n_distinct * ROWS_OF_CATEGORY > n
    return f"text, {n_distinct:,} different in {n:,} rows" if is_rare else None


def _is_meant_as_number(text: pl.Series) -> bool:
    """Return whether most cells begin like numbers; addresses, and few ranges such as 18-25 or <1H, are categories."""
    text = text.filter(~text.str.contains(_ADDRESS))
    if not len(text):
        return False
    if 2 * text.str.contains(NEARLY.pattern).sum() <= len(text):
        return False
    distinct = text.unique()
    if len(distinct) > MOST_LEVELS or len(distinct) * ROWS_OF_CATEGORY > len(text):
        return bool(2 * distinct.str.contains(NEARLY.pattern).sum() > len(distinct))
    return 2 * sum(map(looks_written, distinct.to_list())) > len(distinct)


def _in_two_ways(read: SampleColumn) -> str:
    """Describe a column that mixes two notations."""
    one, other = map(shortened, read.mixed or ())
    return f"numbers written in two ways, such as '{one}' and '{other}'; see --decimal"


def _counts_rows(read: SampleColumn, sample: TableSample) -> bool:
    """Return whether integers increase by the same step from row to row, in the first rows."""
    rows = sample.numbers
    values = read.values[: len(rows)]
    if len(values) < _FEWEST_COUNTED or not np.isfinite(values).all() or (values % 1).any():
        return False
    step = (values[1] - values[0]) / (rows[1] - rows[0])
    return bool(step > 0 and (values == values[0] + step * (rows - rows[0])).all())


def _inferred_time(names: list[str], read: dict[str, SampleColumn], sample: TableSample) -> str | None:
    """Return the timestamp column: one with a usual name for timestamps, or else the only column of dates or epochs."""
    named = [name for name in names if looks_like_time(name, _SOME_DATE)]
    for name in named:
        if read[name].is_times or _counts_time(name, read[name]):
            return name
    dates = [name for name in names if read[name].is_times]
    found = dates or [name for name in names if _counts_minutes(read[name], sample)]
    return found[0] if len(found) == 1 else None


def _counts_minutes(read: SampleColumn, sample: TableSample) -> bool:
    """Return whether numbers rise from row to row as epochs do: in whole minutes since 1970, or in finer units."""
    if not read.is_plain or not _counts_rows(read, sample) or not _are_since_1970(read.values):
        return False
    units = Clock.of_numbers(read.values).units
    return bool(units > 1 or (read.values[1] - read.values[0]) % 60 == 0)


def _are_since_1970(values: NDArray[np.float64]) -> bool:
    """Return whether numbers are times between 1990 and 2100."""
    seconds = values / Clock.of_numbers(values).units
    return is_moment_since_1970(float(seconds.min())) and is_moment_since_1970(float(seconds.max()))


def _counts_time(name: str, read: SampleColumn) -> bool:
    """Return whether numbers are timestamps: all since 1990, or rising under one of the most usual names."""
    values = read.values[np.isfinite(read.values)]
    if not read.is_plain or not len(values) or values.min() == values.max():
        return False
    return _are_since_1970(values) or (is_usual_time_name(name) and bool((np.diff(values) >= 0).all()))


def _clock(name: str, read: dict[str, SampleColumn], where: str, dates: str | None) -> Clock:
    """Return how to parse the timestamp column; raise BadInput if it contains no times."""
    column = read[name]
    if column.is_calendar:
        return Clock(None, is_calendar=True)
    if column.is_times:
        return Clock.of_dates(column.cells, dates)
    finite = column.values[np.isfinite(column.values)]
    if not column.is_numeric or not len(finite):
        raise BadInput(
            f"Column '{name}' of {where} contains {column.what}, not times. "
            "Use dates such as 2024-05-31T12:00:00Z or 31.05.2024, or seconds since 1970."
        )
    return Clock.of_numbers(finite)
