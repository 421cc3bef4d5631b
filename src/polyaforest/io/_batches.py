"""What every format is read into on its way to numbers: some rows as a frame, and the rows that could not be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import polars as pl
from numpy.typing import NDArray

__all__ = ["Batch", "Reader", "Rejected", "Sample", "sample_of", "shortened"]

_SAMPLE_ROWS = 10_000  # what the kind of a column is told from
_SAMPLE_CELLS = 1_000_000  # or fewer rows, where there are very many columns
_SHORT = 120


class Rejected(NamedTuple):
    """A row that was left out.

    Attributes
    ----------
    number : int
        Which row of the input, from 1, the header not counted.
    reason : str
    text : str
        The row as written, shortened, with what cannot be printed escaped.
    """

    number: int
    reason: str
    text: str


class Batch(NamedTuple):
    """Some rows on their way to numbers.

    Attributes
    ----------
    frame : polars.DataFrame
        Columns of numbers or of text, by name.
    numbers : int64 array of shape (n,)
        Which rows of the file they are, from 1.
    faults : list of Rejected
        The rows in between that could not be taken apart.
    text : callable
        The rows of the frame as written, by their index.
    """

    frame: pl.DataFrame
    numbers: NDArray[np.int64]
    faults: list[Rejected]
    text: Callable[[int], str]

    @property
    def n_rows(self) -> int:
        """How many rows of the file these are, with the faulty ones."""
        return len(self.numbers) + len(self.faults)


class Sample(NamedTuple):
    """The first rows of a file, with all columns; `is_all` if there are no more."""

    frame: pl.DataFrame
    numbers: NDArray[np.int64]
    faults: list[Rejected]
    is_all: bool


def sample_of(batches: Iterable[Batch], n_columns: int) -> Sample:
    """The first rows of some batches, of which no more are taken than that needs."""
    most = max(min(_SAMPLE_ROWS, _SAMPLE_CELLS // max(n_columns, 1)), 100)
    taken: list[Batch] = []
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
    return Sample(frame.head(n_good), numbers[:n_good], faults, n_rows <= most)


class Reader(Protocol):
    """A file of some format."""

    name: str  # for messages
    is_file: bool  # whether it lies on disk, and is no pipe
    names: list[str]  # of its columns
    has_header: bool
    fixed: bool  # whether every row must have every column

    def sample(self) -> Sample:
        """The first rows, which `batches` gives again."""

    def batches(self, wanted: Mapping[str, Any]) -> Iterator[Batch]:
        """All rows; `wanted` says which columns and what is expected in them: polars.Float64 or polars.String."""

    def close(self) -> None:
        """Close the file."""


def shortened(text: str | bytes) -> str:
    """Text of a length and of characters fit for a message."""
    if isinstance(text, bytes):
        text = text[: 4 * _SHORT].decode("utf-8", errors="backslashreplace")
    text = text.rstrip("\r\n")
    kept = text if len(text) <= _SHORT else text[: _SHORT - 3] + "..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in kept)
