"""Read tables of numbers and categories from files, pipes and databases, in chunks of bounded memory.

`open_table` reads CSV, TSV, JSON, Parquet, Arrow, ORC, workbooks, logs of web servers, SQLite files and results of SQL
queries, infers which columns are numeric, and yields the rows in chunks. It skips and reports rows that cannot be read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from polyaforest.tables.categories import Categories
from polyaforest.tables.validation import LARGEST, NamedRows
from polyaforest.util.schema import MOST_COPIES

from ._batches import Rejected, RowBatch, TableReader, shortened
from ._cells import categories as categories_of
from ._cells import numbers, seconds_of_day, texts, without
from ._columns import ReadPlan, Roles, TableColumns, check_share, plan_columns
from ._csv import CsvReader
from ._database import SQLITE, open_database, open_sqlite
from ._excel import ExcelReader, is_workbook
from ._json import JsonReader, is_json_document
from ._jsonl import JsonlReader, are_json_lines
from ._orc import OrcReader, is_orc
from ._parquet import ARROW_FILE, ARROW_STREAM, ArrowReader, ParquetReader
from ._weblog import WebLogReader, is_web_log
from .blocks import BLOCK_BYTES, OpenedInput, one_ahead, open_bytes
from .errors import BadInput, in_words
from .paths import expand_paths, is_database, shown_path
from .reading import Interpretation, Reading

__all__ = [
    "FORMATS",
    "BadInput",
    "Interpretation",
    "Reading",
    "Rejected",
    "Table",
    "TableChunk",
    "TableColumns",
    "gather",
    "open_table",
]

Floats = NDArray[np.float64]

FORMATS = ("csv", "tsv", "jsonl", "json", "parquet", "arrow", "orc", "log")
_ENDINGS = {"tsv": "tsv", "jsonl": "jsonl", "ndjson": "jsonl"}  # the others are recognised by their content
_MARKS = {b"PAR1": "parquet", SQLITE: "sqlite", ARROW_FILE: "arrow", ARROW_STREAM: "arrow"}
CHUNK_ROWS = 65_536
_MOST_KEPT = 20  # rejected rows
_SNIFFED_BYTES = 1 << 16


class TableChunk(NamedTuple):
    """Some rows of a table.

    Attributes
    ----------
    rows : float64 array of shape (n, D)
        NaN where a value is missing; codes in columns of categories.
    numbers : int64 array of shape (n,)
        Row numbers in the input, from 1, not counting headers; numbering continues across files.
    times : float64 array of shape (n,) or None
        Seconds since 1970, UTC.
    keys, ids : list of str, or None
        Cells as text; those of several columns of keys with commas between them.
    weights : float64 array of shape (n,) or None
        Weight of each row.
    groups : list of str, or None
        Cells as text.
    texts : dict
        The text of each code.
    """

    rows: Floats
    numbers: NDArray[np.int64]
    times: Floats | None
    keys: list[str] | None
    ids: list[str] | None
    weights: Floats | None = None
    groups: list[str] | None = None
    texts: dict[float, str] = {}  # noqa: RUF012 -- never written to

    def select(self, places: NDArray[np.intp] | slice) -> TableChunk:
        """Return some of the rows."""

        def chosen(field: Any) -> Any:
            if isinstance(field, list) and not isinstance(places, slice):
                return [field[i] for i in places.tolist()]
            return field if field is None or isinstance(field, dict) else field[places]

        return TableChunk(*map(chosen, self))

    def named(self, columns: TableColumns, places: NDArray[np.intp] | slice | None = None) -> NamedRows:
        """Return the rows, or some of them, with the names of their columns."""
        rows = self.rows if places is None else self.rows[places]
        at = tuple(k for k, name in enumerate(columns.used) if name in columns.categories)
        categories = Categories(at, len(columns.used), self.texts) if at else None
        return NamedRows(rows, columns.used, categories)

    def pieces(self, n: int) -> Iterator[TableChunk]:
        """Yield the rows, `n` at a time, fewer at the end."""
        for start in range(0, len(self.numbers), n):
            yield self.select(slice(start, start + n))


class Table:
    """A table that can be read once, from start to end; created by `open_table`.

    Its file closes at the end of the table, with `close`, or when the table is garbage collected.

    Attributes
    ----------
    columns : TableColumns
    sources : list of str
        Names of the inputs, without passwords.
    interpretations : list of Interpretation
        What was inferred about how the files are written, with the options that override it.
    has_header : bool
        False if the first line is data; columns are then named column_1, column_2 and so on.
    n_rows : int
        Number of rows read so far.
    n_blank : int
        Number of rows without any value so far, which are left out.
    n_rejected : int
        Number of rows skipped so far.
    sentinels : dict
        The numbers that count as missing, by column.
    rejected : list of Rejected
        The first twenty skipped rows.
    """

    def __init__(self, files: _Files, plan: ReadPlan, strict: bool, chunk_rows: int) -> None:
        self.columns = plan.columns
        self.sources = files.sources
        self.interpretations = [*files.first.interpretations, *plan.interpretations]
        self.has_header = files.first.has_header
        self.n_rows = 0
        self.n_blank = 0
        self.n_rejected = 0
        self.sentinels = plan.sentinels
        self.rejected: list[Rejected] = []
        self._files = files
        self._plan = plan
        self._strict = strict
        self._chunk_rows = chunk_rows

    def chunks(self) -> Iterator[TableChunk]:
        """Yield the rows in chunks of `chunk_rows`, fewer at the end.

        Raises
        ------
        BadInput
            If a later file has other columns, if hardly any row is valid, or, with `strict`, at the first invalid row.
        """
        waiting: list[TableChunk] = []
        for batch in self._files.batches(self._plan):
            waiting.append(self._chunk(batch))
            if sum(len(chunk.numbers) for chunk in waiting) >= self._chunk_rows:
                whole = gather(waiting) if len(waiting) > 1 else waiting[0]
                last = len(whole.numbers) // self._chunk_rows * self._chunk_rows
                yield from map(self._counted, whole.select(slice(last)).pieces(self._chunk_rows))
                waiting = [whole.select(slice(last, None))]
        if sum(len(chunk.numbers) for chunk in waiting):
            yield self._counted(gather(waiting) if len(waiting) > 1 else waiting[0])
        if not self.n_rows:
            if not self.rejected:
                raise BadInput(f"None of the {self.n_blank} rows of {self._files.first.name} has a value.")
            first = self.rejected[0]
            raise BadInput(
                f"None of the {self.n_rejected} rows of {self._files.first.name} is valid. "
                f"Row {first.number}: {first.reason}. Content: {first.text}"
            )
        check_share(self.n_rejected, self.n_rejected + self.n_rows, self.rejected, self._files.first.name)

    def close(self) -> None:
        """Close the current file."""
        self._files.close()

    def _counted(self, chunk: TableChunk) -> TableChunk:
        """Count the rows of a chunk."""
        self.n_rows += len(chunk.numbers)
        return chunk

    def _chunk(self, batch: RowBatch) -> TableChunk:
        """Return the valid rows of a batch as numbers; count the others as rejected or blank."""
        batch = batch._replace(frame=batch.frame.select(without(cells, self._plan.missing) for cells in batch.frame))
        frame, columns = batch.frame, self.columns
        rows = np.empty((len(frame), len(columns.used)))
        bad = np.zeros(len(frame), np.bool_)
        known: dict[float, str] = {}
        for at, name in enumerate(columns.used):
            if name in columns.categories:
                rows[:, at], own = categories_of(frame[name])
                known |= own
                continue
            rows[:, at], unread = numbers(frame[name], self._plan.notations.get(name))
            bad |= unread
            if name in self._plan.sentinels:
                rows[np.isin(rows[:, at], self._plan.sentinels[name]), at] = np.nan
        bad |= (np.abs(rows) > LARGEST).any(axis=1)
        times = self._plan.clock.seconds(frame[columns.time]) if self._plan.clock and columns.time else None
        if times is not None and columns.time_of_day:
            times = times + seconds_of_day(frame[columns.time_of_day])
        if times is not None:
            bad |= np.isnan(times)
        keys = _joined([texts(frame[name]) for name in columns.keys]) if columns.keys else None
        ids = texts(frame[columns.id]) if columns.id else None
        weights = None
        if columns.weight:
            weights, unread = numbers(frame[columns.weight], None)
            bad |= unread | ~((weights >= 0) & (weights <= MOST_COPIES))  # NaN is invalid too
        groups = texts(frame[columns.group]) if columns.group else None
        chunk = TableChunk(rows, batch.numbers, times, keys, ids, weights, groups, known)
        blank = _blank(frame)
        if not self._plan.drops_blank_rows:
            blank &= bad
        if batch.faults or bad.any() or blank.any():
            self.n_blank += int(blank.sum())
            self._reject(batch, np.flatnonzero(bad & ~blank))
            chunk = chunk.select(np.flatnonzero(~(bad | blank)))
        return chunk

    def _reject(self, batch: RowBatch, bad: NDArray[np.intp]) -> None:
        """Count rejected rows and keep the first few; with `strict`, raise BadInput for the first."""
        limit = 1 if self._strict else _MOST_KEPT - len(self.rejected)
        cells = [
            Rejected(int(batch.numbers[at]), self._reason(batch, int(at)), batch.text(int(at))) for at in bad[:limit]
        ]
        first = sorted([*batch.faults[:limit], *cells])[:limit]
        if self._strict:
            raise BadInput(f"Row {first[0].number} cannot be read: {first[0].reason}. Content: {first[0].text}")
        self.rejected += first
        self.n_rejected += len(batch.faults) + len(bad)

    def _reason(self, batch: RowBatch, at: int) -> str:
        """Return why a parsed row is rejected."""
        for name in self.columns.numeric:
            cell = batch.frame[name][at : at + 1]
            notation = self._plan.notations.get(name)
            values, unread = numbers(cell, notation)
            if unread[0]:
                return (
                    f"column '{name}' is '{shortened(str(cell[0]))}', not a number{notation.words if notation else ''}"
                )
            if np.abs(values[0]) > LARGEST:
                return f"column '{name}' is {'not finite' if np.isinf(values[0]) else f'beyond {LARGEST:g}'}"
        if self.columns.weight:
            cell = batch.frame[self.columns.weight][at : at + 1]
            values, unread = numbers(cell, None)
            if unread[0] or not 0 <= values[0] <= MOST_COPIES:
                return f"column '{self.columns.weight}' is '{shortened(texts(cell)[0])}', not a weight"
        name = self.columns.time or ""
        if self.columns.time_of_day:
            assert self._plan.clock is not None
            if not np.isnan(self._plan.clock.seconds(batch.frame[name][at : at + 1])[0]):
                name = self.columns.time_of_day
        return f"column '{name}' is '{shortened(texts(batch.frame[name][at : at + 1])[0])}', not a time"


def _blank(frame: pl.DataFrame) -> NDArray[np.bool_]:
    """Return which rows have no value in any of several columns."""
    if frame.width < 2:
        return np.zeros(len(frame), np.bool_)
    blank = np.ones(len(frame), np.bool_)
    for cells in sorted(frame, key=lambda cells: cells.dtype == pl.String):  # texts take longer
        empty = cells.is_null() | (cells.str.strip_chars(" \t") == "") if cells.dtype == pl.String else cells.is_null()
        blank &= empty.fill_null(value=True).to_numpy()
        if not blank.any():
            break
    return blank


def _joined(columns: list[list[str]]) -> list[str]:
    """Return the cells of columns with commas between them."""
    return columns[0] if len(columns) == 1 else [", ".join(cells) for cells in zip(*columns, strict=True)]


class _Files:
    """The files of a table, read one after another."""

    def __init__(self, paths: Sequence[str], format: str | None, reading: Reading, block_bytes: int) -> None:
        self._paths = expand_paths(paths)
        self.sources = [shown_path(path) for path in self._paths]
        self._format = format
        self._reading_as = reading
        self._block_bytes = block_bytes
        self.first = self._open(self._paths[0])
        self._reading = self.first
        self._columns = set(self.first.names)

    def _open(self, path: str) -> TableReader:
        """Return the reader of a file."""
        return _open_reader(path, self._format, self._reading_as, self._block_bytes)

    def close(self) -> None:
        """Close the current file."""
        self._reading.close()

    def compare(self) -> None:
        """Raise BadInput early if a later file has other columns."""
        for path in self._paths[1:]:
            if os.path.isfile(path):  # a pipe can be read only once
                with closing(self._open(path)) as reader:
                    self._check_same_columns(reader)

    def _check_same_columns(self, reader: TableReader) -> None:
        """Raise BadInput if a file has other columns than the first."""
        if not (self.first.fixed and reader.fixed):
            return
        for name in sorted(self._columns ^ set(reader.names)):
            without, with_it = (reader, self.first) if name in self._columns else (self.first, reader)
            raise BadInput(
                f"{without.name} has no column '{name}', which {with_it.name} has. "
                "Files read together must have the same columns."
            )

    def batches(self, plan: ReadPlan) -> Iterator[RowBatch]:
        """Yield the rows of all files, numbered consecutively."""
        n_rows = 0
        for at, path in enumerate(self._paths):
            if at:
                self._reading = self._open(path)
                self._check_same_columns(self._reading)
            with closing(self._reading):
                n_before = n_rows
                batches = self._reading.batches(plan.wanted)
                # a pipe is not read ahead, since a blocked read would delay the exit
                for batch in one_ahead(batches) if self._reading.is_file else batches:
                    n_rows += batch.n_rows
                    yield self._renumbered(batch, n_before)

    def _renumbered(self, batch: RowBatch, n_before: int) -> RowBatch:
        """Return a batch numbered consecutively over all files, whose faults name their file."""
        if len(self._paths) == 1:
            return batch
        faults = [
            Rejected(number + n_before, f"{reason} (in {self._reading.name})", text)
            for number, reason, text in batch.faults
        ]
        return batch._replace(numbers=batch.numbers + n_before, faults=faults)


def open_table(
    paths: Sequence[str],
    *,
    format: str | None = None,
    columns: Sequence[str] | None = None,
    time: str | None = None,
    key: str | Sequence[str] | None = None,
    id: str | None = None,
    weight: str | None = None,
    group: str | None = None,
    categories: Sequence[str] | None = (),
    ignore: Sequence[str] = (),
    sentinels: Mapping[str, Sequence[float]] | None = None,
    strict: bool = False,
    reading: Reading | None = None,
    chunk_rows: int = CHUNK_ROWS,
) -> Table:
    """Open one or more files as one table of numbers and categories.

    Parameters
    ----------
    paths : sequence of str
        Files with the same columns, in any order, compressed or not; patterns and directories expand to the files they
        match or contain; "-" is standard input. Or addresses of databases, such as postgresql://host/name.
    format : {"csv", "tsv", "jsonl", "json", "parquet", "arrow", "orc", "log"}, optional
        Inferred from names and first bytes by default. The delimiter of CSV is inferred from the first lines.
    columns : sequence of str, optional
        Columns to use, in this order; all numeric columns by default.
    time : str, optional
        Timestamp column: dates, or numbers since 1970. By default a column with a usual name for timestamps that
        contains times, or else the only column of dates. Or a column of dates and one of times of day, with a comma
        between them.
    key : str or sequence of str, optional
        Columns to return as text, joined by commas.
    id : str, optional
        Column to return as text.
    weight : str, optional
        Column of row weights.
    group : str, optional
        Column to return as text; also a feature if it is in `columns`.
    categories : sequence of str, optional
        Columns to encode as categories; none by default. With None, the text columns among `columns` or, without
        `columns`, text columns with few distinct values.
    ignore : sequence of str
        Columns to leave out.
    sentinels : dict, optional
        Numbers that mean "no value" by column, if they are known; inferred by default.
    strict : bool
        Whether to raise on an invalid row instead of skipping it.
    reading : Reading, optional
        How the files are written; inferred by default.
    chunk_rows : int
        Rows per chunk.

    Returns
    -------
    Table

    Raises
    ------
    BadInput
        If a file cannot be read, or lacks a header, rows, a numeric column, or a requested column.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "load.csv"
    >>> lines = ["host,cpu,mem", "a,0.5,10", "b,0.7,oops", "c,0.9,30", "d,,40", "e,0.1,20"]
    >>> _ = path.write_text(chr(10).join(lines))
    >>> table = open_table([str(path)], id="host")
    >>> table.columns.used
    ['cpu', 'mem']
    >>> [chunk] = table.chunks()
    >>> chunk.rows.tolist(), chunk.ids
    ([[0.5, 10.0], [0.9, 30.0], [nan, 40.0], [0.1, 20.0]], ['a', 'c', 'd', 'e'])
    >>> table.rejected[0].number, table.rejected[0].reason
    (2, "column 'mem' is 'oops', not a number")
    """
    if format is not None and format not in FORMATS:
        raise BadInput(f"Unknown format '{format}'. Choose one of {in_words(FORMATS)}.")
    if not paths:
        raise BadInput("No input file. Pass one, or - for standard input.")
    reading = reading or Reading()
    files = _Files(paths, format, reading, BLOCK_BYTES)
    first = files.first
    try:
        keys = (key,) if isinstance(key, str) else tuple(key or ())
        roles = Roles(columns, categories, time, keys, id, weight, group, tuple(ignore), sentinels)
        plan = plan_columns(first.sample(), first.name, roles, reading, first.delimiter)
        files.compare()
    except BaseException:
        files.close()
        raise
    return Table(files, plan, strict, chunk_rows)


def _open_reader(path: str, format: str | None, reading: Reading, block_bytes: int) -> TableReader:
    """Return a reader for the format of a file, inferred from its name or first bytes by default."""
    if is_database(path):
        return open_database(path, reading)
    opened = open_bytes(path)
    try:
        return _reader(opened, format or _sniffed(path, opened), reading, block_bytes)
    except BaseException:
        opened.close()
        raise


def _reader(opened: OpenedInput, format: str, reading: Reading, block_bytes: int) -> TableReader:
    """Return the reader of a format."""
    if reading.query is not None and format != "sqlite":
        raise BadInput(f"{opened.name} is not a database. Use --query with SQLite files and database addresses only.")
    if reading.sheet is not None and format != "excel":
        raise BadInput(f"{opened.name} is not a workbook. Use --sheet with Excel files only.")
    if format in ("csv", "tsv"):
        return CsvReader(opened, reading.delimiter or ("\t" if format == "tsv" else None), block_bytes, reading)
    readers: dict[str, Callable[[], TableReader]] = {
        "sqlite": lambda: open_sqlite(opened, reading),
        "excel": lambda: ExcelReader(opened, reading),
        "parquet": lambda: ParquetReader(opened),
        "arrow": lambda: ArrowReader(opened),
        "orc": lambda: OrcReader(opened),
        "jsonl": lambda: JsonlReader(opened, block_bytes),
        "json": lambda: JsonReader(opened, block_bytes),
        "log": lambda: WebLogReader(opened, block_bytes),
    }
    return readers[format]()


def _sniffed(path: str, opened: OpenedInput) -> str:
    """Infer the format of a file from its first bytes, or else from its name."""
    start = opened.peek(_SNIFFED_BYTES)
    if start.startswith(b"FEA1"):
        raise BadInput(f"{opened.name} is in the first version of Feather. Write it again with a newer library.")
    found = [format for mark, format in _MARKS.items() if start.startswith(mark)]
    tests: dict[str, Callable[[], bool]] = {
        "excel": lambda: is_workbook(start[:512], opened.name),
        "orc": lambda: is_orc(start),
        "json": lambda: is_json_document(start, _ends_in(path, "json")),
        "jsonl": lambda: are_json_lines(start),
        "log": lambda: is_web_log(start),
    }
    of_name = (format for ending, format in _ENDINGS.items() if _ends_in(path, ending))
    return next(chain(found, (format for format, test in tests.items() if test()), of_name), "csv")


def _ends_in(path: str, extension: str) -> bool:
    """Return whether a file has an extension, compressed or not."""
    return re.sub(r"\.(gz|zst|bz2|xz)$", "", path.lower()).endswith("." + extension)


def gather(chunks: Iterable[TableChunk]) -> TableChunk:
    """Concatenate chunks, growing the result in place: keeping all chunks as well would take twice the memory."""
    whole: list[Any] = []
    for chunk in chunks:
        whole = list(map(_extended, whole, chunk)) if whole else list(map(_copied, chunk))
    return TableChunk(*whole)


def _copied(part: Any) -> Any:
    return None if part is None else part.copy()


def _extended(whole: Any, part: Any) -> Any:
    if isinstance(whole, list):
        whole.extend(part)
    elif isinstance(whole, dict):
        whole.update(part)
    elif whole is not None:
        n = len(whole)
        whole.resize((n + len(part), *whole.shape[1:]), refcheck=False)  # there is no other reference yet
        whole[n:] = part
    return whole
