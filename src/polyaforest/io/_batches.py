"""Batches of rows, common to all file formats: a frame, and the rows that failed to parse."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any, NamedTuple, Protocol

import numpy as np
import polars as pl
from numpy.typing import NDArray

from .blocks import OpenedInput, blocks
from .reading import Interpretation

__all__ = [
    "LATER_ROWS",
    "MORE_BLOCKS",
    "NOT_UTF8",
    "BlockReader",
    "Rejected",
    "RowBatch",
    "TableReader",
    "TableSample",
    "glimpse",
    "later_starts",
    "row_text",
    "sample_of",
    "shortened",
]

_SAMPLE_ROWS = 10_000  # used to infer the types of columns
_SAMPLE_CELLS = 1_000_000  # fewer rows if there are very many columns
_LATER_PARTS, _PART_BYTES = 8, 1 << 17  # of a file, evenly spaced after the first rows, to infer types from too
LATER_ROWS = 1_000  # of each part, if rows can be addressed
MORE_BLOCKS = 8  # of a pipe or a compressed file, if columns are empty in the first rows
_GLIMPSED = 100  # cells
_SHORT = 120
NOT_UTF8 = "not UTF-8"  # why a row is rejected


class Rejected(NamedTuple):
    """A row that was skipped.

    Attributes
    ----------
    number : int
        Row number in the input, from 1, not counting the header.
    reason : str
    text : str
        The text of the row, shortened, with unprintable characters escaped.
    """

    number: int
    reason: str
    text: str


class RowBatch(NamedTuple):
    """Some rows of a file.

    Attributes
    ----------
    frame : polars.DataFrame
        Columns of numbers or of text, by name.
    numbers : int64 array of shape (n,)
        Row numbers in the file, from 1.
    faults : list of Rejected
        Rows in between that failed to parse.
    text : callable
        Returns the text of a row of the frame, by index.
    """

    frame: pl.DataFrame
    numbers: NDArray[np.int64]
    faults: list[Rejected]
    text: Callable[[int], str]

    @property
    def n_rows(self) -> int:
        """Number of rows, including faulty ones."""
        return len(self.numbers) + len(self.faults)


class TableSample(NamedTuple):
    """Rows of a file, with all columns: the first ones, then, if the file is longer, rows from across it.

    Attributes
    ----------
    frame : polars.DataFrame
    numbers : int64 array of shape (n_first,)
        Row numbers of the first rows.
    faults : list of Rejected
        Among the first rows.
    is_all : bool
        Whether these are all rows.
    """

    frame: pl.DataFrame
    numbers: NDArray[np.int64]
    faults: list[Rejected]
    is_all: bool

    def extended(self, frames: Iterable[pl.DataFrame]) -> TableSample:
        """Return the sample with rows from later parts of the file."""
        return self._replace(frame=pl.concat([self.frame, *frames], how="diagonal_relaxed"))

    @property
    def has_empty_columns(self) -> bool:
        """Whether a column has no value."""
        return any(_is_empty(column) for column in self.frame)


def sample_of(batches: Iterable[RowBatch], n_columns: int) -> TableSample:
    """Return the first rows of some batches, reading no more batches than needed."""
    most = max(min(_SAMPLE_ROWS, _SAMPLE_CELLS // max(n_columns, 1)), 100)
    taken: list[RowBatch] = []
    n_rows = 0
    for batch in batches:
        taken.append(batch)
        n_rows += batch.n_rows
        if n_rows > most:
            break
    frame = pl.concat([batch.frame for batch in taken] or [pl.DataFrame()], how="diagonal_relaxed")
    numbers = np.concatenate([np.empty(0, np.int64), *(batch.numbers for batch in taken)])
    faults = [fault for batch in taken for fault in batch.faults if fault.number <= most]
    n_good = int(np.searchsorted(numbers, most, side="right"))
    return TableSample(frame.head(n_good), numbers[:n_good], faults, n_rows <= most)


def _is_empty(cells: pl.Series) -> bool:
    """Return whether all cells are missing."""
    if cells.null_count() == len(cells):
        return True
    return cells.dtype == pl.String and bool((cells.str.strip_chars(" \t").fill_null("") == "").all())


def later_starts(n_first: int, n: int, parts: int = _LATER_PARTS) -> list[int]:
    """Return evenly spaced positions from `n_first` to `n`, where the parts of a sample begin."""
    return [int(start) for start in np.linspace(n_first, n, parts, endpoint=False)]


class TableReader(Protocol):
    """Read one file."""

    name: str  # for messages
    is_file: bool  # whether it is a regular file, not a pipe
    names: list[str]  # of its columns
    has_header: bool
    fixed: bool  # whether every row must have every column
    interpretations: list[Interpretation]  # about the file as a whole

    @property
    def delimiter(self) -> str | None:
        """Delimiter of CSV."""

    def sample(self) -> TableSample:
        """Return rows from across the file, which `batches` yields again."""

    def batches(self, wanted: Mapping[str, Any]) -> Iterator[RowBatch]:
        """Yield all rows; `wanted` maps columns to polars.Float64, polars.String, or None to keep the file's type."""

    def close(self) -> None:
        """Close the file."""


class BlockReader:
    """Base of readers that parse a file block by block, and keep the blocks of the sample to parse them again."""

    def __init__(self, opened: OpenedInput, cut: Callable[[bytearray, int], int], block_bytes: int) -> None:
        self.name = opened.name
        self.is_file = opened.is_file
        self.interpretations: list[Interpretation] = []
        self._opened = opened
        self._blocks = blocks(opened, cut, block_bytes)
        self._held: list[bytes] = []

    def close(self) -> None:
        """Close the file."""
        self._opened.close()

    def batches(self, wanted: Mapping[str, Any]) -> Iterator[RowBatch]:
        """Yield all rows, block by block."""
        held, self._held = self._held, []
        return self._parsed(chain(held, self._blocks), wanted)

    def _first_batches(self, wanted: Mapping[str, Any] | None) -> Iterator[RowBatch]:
        """Yield rows from the first one; `batches` yields them again."""
        return self._parsed(self._kept_blocks(), wanted)

    def _with_later_rows(self, sample: TableSample) -> TableSample:
        """Return a sample of the first rows with rows from across the file.

        In a pipe or a compressed file only the next blocks are read, and only if a column is empty so far.
        """
        if sample.is_all:
            return sample
        if self._opened.path is not None:
            return sample.extended(self._parse(part, None, 1).frame for part in self._later_parts())
        if not sample.has_empty_columns:
            return sample
        return sample.extended(self._parse(block, None, 1).frame for block in islice(self._next_blocks(), MORE_BLOCKS))

    def _later_parts(self) -> Iterator[bytes]:
        """Yield whole lines from evenly spaced parts of the file behind the blocks read so far."""
        assert self._opened.path is not None
        with open(self._opened.path, "rb") as file:
            n_bytes = os.fstat(file.fileno()).st_size
            for start in later_starts(min(sum(map(len, self._held)), n_bytes), n_bytes):
                file.seek(start)
                file.readline(_PART_BYTES)
                part = file.read(_PART_BYTES)
                if end := part.rfind(b"\n") + 1:
                    yield part[:end]

    def _kept_blocks(self) -> Iterator[bytes]:
        yield from self._held
        yield from self._next_blocks()

    def _next_blocks(self) -> Iterator[bytes]:
        for block in self._blocks:
            self._held.append(block)
            yield block

    def _parsed(self, blocks: Iterable[bytes], wanted: Mapping[str, Any] | None) -> Iterator[RowBatch]:
        number = 1
        for block in blocks:
            batch = self._parse(block, wanted, number)
            number += batch.n_rows
            yield batch

    def _parse(self, block: bytes, wanted: Mapping[str, Any] | None, number: int) -> RowBatch:
        """Parse the wanted columns (None: all) of a block whose first row has this number."""
        raise NotImplementedError


def row_text(frame: pl.DataFrame, at: int) -> str:
    """Format a row for a message."""
    return shortened(", ".join(f"{name}={value}" for name, value in frame.row(at, named=True).items()))


def glimpse(cells: pl.Series) -> pl.Series:
    """Return about a hundred evenly spaced cells, to rule out quickly that cells are of some kind."""
    return cells.gather_every(max(len(cells) // _GLIMPSED, 1))


def shortened(text: str | bytes) -> str:
    """Return text shortened and escaped for a message."""
    if isinstance(text, bytes):
        text = text[: 4 * _SHORT].decode("utf-8", errors="backslashreplace")
    text = text.rstrip("\r\n")
    kept = text if len(text) <= _SHORT else text[: _SHORT - 3] + "..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in kept)
