"""Read tables of numbers and categories from files, pipes and databases, in chunks of bounded memory.

`open_table` reads CSV, TSV, JSON lines, Parquet, workbooks, SQLite files and results of SQL queries, infers which
columns are numeric, and yields the rows in chunks. It skips and reports rows that cannot be read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyaforest.tables.categories import Categories
from polyaforest.tables.validation import LARGEST, NamedRows
from polyaforest.util.schema import MOST_COPIES

from ._batches import Rejected, RowBatch, TableReader, shortened
from ._cells import categories as categories_of
from ._cells import numbers, texts
from ._columns import ReadPlan, TableColumns, plan_columns
from ._csv import CsvReader
from ._database import SQLITE, open_database, open_sqlite
from ._excel import ExcelReader, is_workbook
from ._jsonl import JsonlReader
from ._parquet import ParquetReader
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

FORMATS = ("csv", "tsv", "jsonl", "parquet")
CHUNK_ROWS = 65_536
_MOST_KEPT = 20  # rejected rows
_SNIFFED_BYTES = 512


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
        Cells as text.
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
    n_rejected : int
        Number of rows skipped so far.
    rejected : list of Rejected
        The first twenty skipped rows.
    """

    def __init__(self, files: _Files, plan: ReadPlan, strict: bool, chunk_rows: int) -> None:
        self.columns = plan.columns
        self.sources = files.sources
        self.interpretations = [*files.first.interpretations, *plan.interpretations]
        self.has_header = files.first.has_header
        self.n_rows = 0
        self.n_rejected = 0
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
            If a later file has other columns, if no row is valid, or, with `strict`, at the first invalid row.
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
            first = self.rejected[0]
            raise BadInput(
                f"None of the {self.n_rejected} rows of {self._files.first.name} is valid. "
                f"Row {first.number}: {first.reason}. Content: {first.text}"
            )

    def close(self) -> None:
        """Close the current file."""
        self._files.close()

    def _counted(self, chunk: TableChunk) -> TableChunk:
        """Count the rows of a chunk."""
        self.n_rows += len(chunk.numbers)
        return chunk

    def _chunk(self, batch: RowBatch) -> TableChunk:
        """Return the valid rows of a batch as numbers; count the others as rejected."""
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
        bad |= (np.abs(rows) > LARGEST).any(axis=1)
        times = self._plan.clock.seconds(frame[columns.time]) if self._plan.clock and columns.time else None
        if times is not None:
            bad |= np.isnan(times)
        keys = texts(frame[columns.key]) if columns.key else None
        ids = texts(frame[columns.id]) if columns.id else None
        weights = None
        if columns.weight:
            weights, unread = numbers(frame[columns.weight], None)
            bad |= unread | ~((weights >= 0) & (weights <= MOST_COPIES))  # NaN is invalid too
        groups = texts(frame[columns.group]) if columns.group else None
        chunk = TableChunk(rows, batch.numbers, times, keys, ids, weights, groups, known)
        if batch.faults or bad.any():
            self._reject(batch, np.flatnonzero(bad))
            chunk = chunk.select(np.flatnonzero(~bad))
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
        cell = batch.frame[self.columns.time or ""][at : at + 1]
        return f"column '{self.columns.time}' is '{shortened(texts(cell)[0])}', not a time"


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
    key: str | None = None,
    id: str | None = None,
    weight: str | None = None,
    group: str | None = None,
    categories: Sequence[str] | None = (),
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
    format : {"csv", "tsv", "jsonl", "parquet"}, optional
        Inferred from names and first bytes by default. The delimiter of CSV is inferred from the first lines.
    columns : sequence of str, optional
        Columns to use, in this order; all numeric columns by default.
    time : str, optional
        Timestamp column: dates, or numbers since 1970. By default a column with a usual name for timestamps that
        contains times, or else the only column of dates.
    key, id : str, optional
        Columns to return as text.
    weight : str, optional
        Column of row weights.
    group : str, optional
        Column to return as text; also a feature if it is in `columns`.
    categories : sequence of str, optional
        Columns to encode as categories; none by default. With None, the text columns among `columns` or, without
        `columns`, text columns with few distinct values.
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
        plan = plan_columns(
            first.sample(), first.name, columns, time, key, id, reading, first.delimiter, weight, categories, group
        )
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
    match format:
        case "sqlite":
            return open_sqlite(opened, reading)
        case "excel":
            return ExcelReader(opened, reading)
        case "parquet":
            return ParquetReader(opened)
        case "jsonl":
            return JsonlReader(opened, block_bytes)
    return CsvReader(opened, reading.delimiter or ("\t" if format == "tsv" else None), block_bytes, reading)


def _sniffed(path: str, opened: OpenedInput) -> str:
    """Infer the format of a file from its first bytes, or else from its name."""
    start = opened.peek(_SNIFFED_BYTES)
    if start.startswith(b"PAR1"):
        return "parquet"
    if start.startswith(SQLITE):
        return "sqlite"
    if is_workbook(start, opened.name):
        return "excel"
    if start.lstrip().startswith(b"{"):
        return "jsonl"
    if start.lstrip().startswith(b"[") and _ends_in(path, "json"):
        raise BadInput(f"{opened.name} is a JSON array. Convert it to one object per line: jq -c '.[]' {path}")
    named = next((format for format in FORMATS if _ends_in(path, format)), "csv")
    return "csv" if named == "parquet" else named


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
