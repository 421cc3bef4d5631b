"""Tables of numbers from files and pipes, in chunks of bounded memory.

`open_table` reads CSV and its relatives, JSON lines and Parquet, tells which columns hold numbers, and hands out the
rows in chunks. A row that cannot be read is left out, counted and named, and never stops the rest.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import chain, compress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyaforest.core.validation import LARGEST

from ._batches import Batch, Reader, Rejected, shortened
from ._blocks import BLOCK_BYTES, Opened, one_ahead, open_bytes
from ._cells import numbers, texts
from ._columns import Columns, Plan, plan_columns
from ._csv import CsvReader
from ._errors import BadInput, in_words
from ._jsonl import JsonlReader
from ._parquet import ParquetReader

__all__ = ["FORMATS", "BadInput", "Chunk", "Columns", "Rejected", "Table", "open_table", "read_all"]

Floats = NDArray[np.float64]

FORMATS = ("csv", "tsv", "jsonl", "parquet")
CHUNK_ROWS = 65_536
_MOST_KEPT = 20  # rejected rows
_SNIFFED_BYTES = 512


class Chunk(NamedTuple):
    """Some rows of a table.

    Attributes
    ----------
    rows : float64 array of shape (n, D)
        NaN where a value is missing.
    numbers : int64 array of shape (n,)
        Which rows of the input they are, from 1, the header not counted; several files count as one.
    times : float64 array of shape (n,) or None
        Seconds since 1970, UTC.
    keys, ids : list of str, or None
        The cells as written.
    """

    rows: Floats
    numbers: NDArray[np.int64]
    times: Floats | None
    keys: list[str] | None
    ids: list[str] | None


class Table:
    """A table that is read once, from its start to its end; made by `open_table`.

    Its file is closed at its end, by `close`, and with the table itself.

    Attributes
    ----------
    columns : Columns
    has_header : bool
        False if the first line is a row already, so that the columns are named column_1, column_2 and so on.
    n_rows : int
        How many rows have been handed out so far.
    n_rejected : int
        How many rows have been left out so far.
    rejected : list of Rejected
        The first twenty of these.
    has_missing : bool
        Whether a value was missing in the rows handed out so far.
    """

    def __init__(self, files: _Files, plan: Plan, strict: bool, chunk_rows: int) -> None:
        self.columns = plan.columns
        self.has_header = files.first.has_header
        self.n_rows = 0
        self.n_rejected = 0
        self.rejected: list[Rejected] = []
        self.has_missing = False
        self._files = files
        self._plan = plan
        self._strict = strict
        self._chunk_rows = chunk_rows

    def chunks(self) -> Iterator[Chunk]:
        """The rows, `chunk_rows` at a time and fewer at the end.

        Raises
        ------
        BadInput
            If a later file has other columns, if no row could be read, or at the first bad row where rows must be
            good (`strict=True`).
        """
        waiting: list[Chunk] = []
        for batch in self._files.batches(self._plan):
            waiting.append(self._chunk(batch))
            if sum(len(chunk.numbers) for chunk in waiting) >= self._chunk_rows:
                whole = _joined(waiting)
                last = len(whole.numbers) // self._chunk_rows * self._chunk_rows
                for start in range(0, last, self._chunk_rows):
                    yield self._counted(_part(whole, start, start + self._chunk_rows))
                waiting = [_part(whole, last, len(whole.numbers))]
        if sum(len(chunk.numbers) for chunk in waiting):
            yield self._counted(_joined(waiting))
        if not self.n_rows:
            raise self._no_good_row()

    def close(self) -> None:
        """Close the file that is being read."""
        self._files.close()

    def _counted(self, chunk: Chunk) -> Chunk:
        """A chunk on its way out."""
        self.n_rows += len(chunk.numbers)
        self.has_missing = self.has_missing or not _all_finite(chunk.rows)
        return chunk

    def _chunk(self, batch: Batch) -> Chunk:
        """The good rows of a batch as numbers; the others are counted as rejected."""
        frame, columns = batch.frame, self.columns
        rows = np.empty((len(frame), len(columns.used)))
        bad = np.zeros(len(frame), np.bool_)
        for at, name in enumerate(columns.used):
            rows[:, at], unread = numbers(frame[name])
            bad |= unread
        bad |= (np.abs(rows) > LARGEST).any(axis=1)
        times = self._plan.clock.seconds(frame[columns.time]) if self._plan.clock and columns.time else None
        if times is not None:
            bad |= np.isnan(times)
        keys = texts(frame[columns.key]) if columns.key else None
        ids = texts(frame[columns.id]) if columns.id else None
        chunk = Chunk(rows, batch.numbers, times, keys, ids)
        if batch.faults or bad.any():
            self._reject(batch, np.flatnonzero(bad))
            chunk = _chosen(chunk, ~bad)
        return chunk

    def _reject(self, batch: Batch, bad: NDArray[np.intp]) -> None:
        """Count rows as left out and keep the first of them; raise at the first where rows must be good."""
        room = 1 if self._strict else _MOST_KEPT - len(self.rejected)
        cells = [
            Rejected(int(batch.numbers[at]), self._reason(batch, int(at)), batch.text(int(at))) for at in bad[:room]
        ]
        first = sorted([*batch.faults[:room], *cells])[:room]
        if self._strict:
            raise BadInput(f"Row {first[0].number} cannot be read: {first[0].reason}. It reads: {first[0].text}")
        self.rejected += first
        self.n_rejected += len(batch.faults) + len(bad)

    def _reason(self, batch: Batch, at: int) -> str:
        """What is wrong with a row that was taken apart."""
        for name in self.columns.used:
            cell = batch.frame[name][at : at + 1]
            values, unread = numbers(cell)
            if unread[0]:
                return f"column '{name}' holds '{shortened(str(cell[0]))}', which is not a number"
            if np.abs(values[0]) > LARGEST:
                return f"column '{name}' is {'not finite' if np.isinf(values[0]) else f'beyond {LARGEST:g}'}"
        cell = batch.frame[self.columns.time or ""][at : at + 1]
        return f"column '{self.columns.time}' holds '{shortened(texts(cell)[0])}', which is not a time"

    def _no_good_row(self) -> BadInput:
        """The error for a table that turned out to have no good row."""
        first = self.rejected[0]
        return BadInput(
            f"None of the {self.n_rejected} rows of {self._files.first.name} can be used. "
            f"Row {first.number}: {first.reason}. It reads: {first.text}"
        )


class _Files:
    """The files of a table, one after another."""

    def __init__(self, paths: Sequence[str], format: str | None, block_bytes: int) -> None:
        self._paths = list(paths)
        self._format = format
        self._block_bytes = block_bytes
        self.first = self._open(self._paths[0])
        self._reading = self.first
        self._columns = set(self.first.names)

    def _open(self, path: str) -> Reader:
        """The reader of a file."""
        return _open_reader(path, self._format, self._block_bytes)

    def close(self) -> None:
        """Close the file that is being read."""
        self._reading.close()

    def compare(self) -> None:
        """Raise now if a later file has other columns, rather than after the work on the first."""
        for path in self._paths[1:]:
            if os.path.isfile(path):  # what comes through a pipe can be read only once
                with closing(self._open(path)) as reader:
                    self._refuse_other_columns(reader)

    def _refuse_other_columns(self, reader: Reader) -> None:
        """Raise if a file does not have the columns of the first."""
        if not (self.first.fixed and reader.fixed):
            return
        for name in sorted(self._columns ^ set(reader.names)):
            without, with_it = (reader, self.first) if name in self._columns else (self.first, reader)
            raise BadInput(
                f"{without.name} has no column '{name}', which {with_it.name} has. "
                "Files read together must have the same columns."
            )

    def batches(self, plan: Plan) -> Iterator[Batch]:
        """The rows of all files, numbered through."""
        n_rows = 0
        for at, path in enumerate(self._paths):
            if at:
                self._reading = self._open(path)
                self._refuse_other_columns(self._reading)
            with closing(self._reading):
                n_before = n_rows
                batches = self._reading.batches(plan.wanted)
                # a pipe is not read ahead, for that might keep us waiting when we want to leave
                for batch in one_ahead(batches) if self._reading.is_file else batches:
                    n_rows += batch.n_rows
                    yield self._numbered_through(batch, n_before)

    def _numbered_through(self, batch: Batch, n_before: int) -> Batch:
        """A batch whose rows are numbered as those of one table, and whose faults name their file."""
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
    strict: bool = False,
    chunk_rows: int = CHUNK_ROWS,
) -> Table:
    """Open files, one after another, as one table of numbers.

    Parameters
    ----------
    paths : sequence of str
        Files with the same columns; "-" is standard input. Text may be gzipped.
    format : {"csv", "tsv", "jsonl", "parquet"}, optional
        Told from the names and the first bytes if not given. The delimiter of a CSV file is told from its first line.
    columns : sequence of str, optional
        The columns to use, in that order, instead of all that hold numbers.
    time : str, optional
        The column of times: dates in the order year, month, day, or numbers since 1970. If not given, a column of
        times named so, or the only one of dates.
    key, id : str, optional
        Columns to hand out as text.
    strict : bool
        Whether a bad row is an error rather than left out.
    chunk_rows : int
        How many rows to hand out at a time.

    Returns
    -------
    Table

    Raises
    ------
    BadInput
        If a file cannot be read, or has no header, no rows, no column of numbers, or not the columns asked for.

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
    (2, "column 'mem' holds 'oops', which is not a number")
    """
    if format is not None and format not in FORMATS:
        raise BadInput(f"There is no format '{format}'. Choose one of {in_words(FORMATS)}.")
    if not paths:
        raise BadInput("There is no file to read. Name one, or - for standard input.")
    files = _Files(paths, format, BLOCK_BYTES)
    try:
        plan = plan_columns(files.first.sample(), files.first.name, columns, time, key, id)
        files.compare()
    except BaseException:
        files.close()
        raise
    return Table(files, plan, strict, chunk_rows)


def read_all(table: Table) -> Chunk:
    """All rows of a table at once, for work that needs them together."""
    return _joined(list(table.chunks()))


def _open_reader(path: str, format: str | None, block_bytes: int) -> Reader:
    """The reader for a file's format, which its name or its first bytes tell."""
    opened = open_bytes(path)
    try:
        match format or _sniffed(path, opened):
            case "parquet":
                return ParquetReader(opened)
            case "jsonl":
                return JsonlReader(opened, block_bytes)
            case "tsv":
                return CsvReader(opened, "\t", block_bytes)
        return CsvReader(opened, None, block_bytes)
    except BaseException:
        opened.close()
        raise


def _sniffed(path: str, opened: Opened) -> str:
    """The format of a file by its first bytes, and for text without braces by its name."""
    start = opened.peek(_SNIFFED_BYTES)
    if start.startswith(b"PAR1"):
        return "parquet"
    if start.lstrip().startswith(b"{"):
        return "jsonl"
    if start.lstrip().startswith(b"[") and _ends_in(path, "json"):
        raise BadInput(f"{opened.name} is one array of JSON. Write its objects on a line each: jq -c '.[]' {path}")
    named = next((format for format in FORMATS if _ends_in(path, format)), "csv")
    return "csv" if named == "parquet" else named


def _ends_in(path: str, extension: str) -> bool:
    """Whether a file is named so, gzipped or not."""
    return path.lower().removesuffix(".gz").endswith("." + extension)


def _all_finite(rows: Floats) -> bool:
    """Whether no value is missing or infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        total = rows.sum()  # one quick pass, which only values that are not finite or are enormous spoil
    return bool(np.isfinite(total) or np.isfinite(rows).all())


def _joined(chunks: Sequence[Chunk]) -> Chunk:
    """Chunks of one table as one."""
    if len(chunks) == 1:
        return chunks[0]
    rows, numbers, times, keys, ids = zip(*chunks, strict=True)
    return Chunk(
        np.concatenate(rows),
        np.concatenate(numbers),
        None if times[0] is None else np.concatenate(times),
        None if keys[0] is None else list(chain.from_iterable(keys)),
        None if ids[0] is None else list(chain.from_iterable(ids)),
    )


def _part(chunk: Chunk, start: int, stop: int) -> Chunk:
    """The rows of a chunk from `start` to `stop`."""
    return Chunk(
        chunk.rows[start:stop],
        chunk.numbers[start:stop],
        None if chunk.times is None else chunk.times[start:stop],
        None if chunk.keys is None else chunk.keys[start:stop],
        None if chunk.ids is None else chunk.ids[start:stop],
    )


def _chosen(chunk: Chunk, good: NDArray[np.bool_]) -> Chunk:
    """The good rows of a chunk."""
    return Chunk(
        chunk.rows[good],
        chunk.numbers[good],
        None if chunk.times is None else chunk.times[good],
        None if chunk.keys is None else list(compress(chunk.keys, good)),
        None if chunk.ids is None else list(compress(chunk.ids, good)),
    )
