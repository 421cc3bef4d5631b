"""Read Parquet and Arrow files in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

import numpy as np
import polars as pl

from ._batches import LATER_ROWS, RowBatch, TableSample, later_starts, row_text, sample_of, shortened
from .blocks import OpenedInput, copied
from .errors import BadInput
from .reading import Interpretation

__all__ = ["ARROW_FILE", "ARROW_STREAM", "ArrowReader", "ParquetReader"]

ARROW_FILE, ARROW_STREAM = b"ARROW1\0\0", b"\xff\xff\xff\xff"  # first bytes

_T = TypeVar("_T")
_BATCH_CELLS = 1 << 24
_FEWEST_ROWS, _MOST_ROWS = 1 << 12, 1 << 18


class ParquetReader:
    """Read a Parquet file; copy a pipe to a temporary file first, since the metadata are at the end."""

    fixed = True
    has_header = True
    delimiter = None
    kind = "Parquet"

    @staticmethod
    def _scan(path: str) -> pl.LazyFrame:
        return pl.scan_parquet(path)

    def __init__(self, opened: OpenedInput) -> None:
        self.name = opened.name
        self.interpretations: list[Interpretation] = []
        self.is_file = True
        self._opened = opened
        self._copy = None if opened.path else copied(opened, ".parquet")
        try:
            rows = self._tried(partial(self._scan, self._copy.name if self._copy else str(opened.path)))
            self._schema = self._tried(rows.collect_schema)
            self._n_rows = int(self._tried(rows.select(pl.len()).collect).item())
        except BaseException:
            self.close()
            raise
        self._rows = rows
        self.names = self._schema.names()

    def close(self) -> None:
        """Close the file, and remove its copy if any."""
        self._opened.close()
        if self._copy:
            self._copy.close()

    def sample(self) -> TableSample:
        """Return rows from across the file."""
        sample = sample_of(self._batches(self.names, _FEWEST_ROWS), len(self.names))
        starts = [] if sample.is_all else later_starts(len(sample.numbers), self._n_rows)
        return sample.extended(self._part(self.names, start, LATER_ROWS) for start in starts)

    def batches(self, wanted: Mapping[str, Any]) -> Iterator[RowBatch]:
        """Yield all rows in batches, with the types of the file."""
        most = max(_BATCH_CELLS // len(wanted), _FEWEST_ROWS)
        return self._batches(list(wanted), min(most, _MOST_ROWS))

    def _batches(self, names: list[str], n_rows: int) -> Iterator[RowBatch]:
        """Yield batches of `n_rows`."""
        for start in range(0, self._n_rows, n_rows):
            frame = self._part(names, start, n_rows)
            yield RowBatch(frame, np.arange(start + 1, start + 1 + len(frame)), [], partial(row_text, frame))

    def _part(self, names: list[str], start: int, n_rows: int) -> pl.DataFrame:
        """Return some rows."""
        part = self._rows.select([_plain(name, self._schema[name]) for name in names]).slice(start, n_rows)
        return self._tried(part.collect)

    def _tried(self, work: Callable[[], _T]) -> _T:
        """Call `work`; raise BadInput if the file is damaged."""
        try:
            return work()
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
            words = shortened(str(error).partition("\n")[0])
            raise BadInput(f"{self.name} is not a valid {self.kind} file ({words}). Get a complete copy.") from None


class ArrowReader(ParquetReader):
    """Read an Arrow file, as Feather also is since its second version, or a stream, which is held in memory."""

    kind = "Arrow"

    @staticmethod
    def _scan(path: str) -> pl.LazyFrame:
        with open(path, "rb") as file:
            is_stream = file.read(len(ARROW_STREAM)) == ARROW_STREAM
        return pl.read_ipc_stream(path).lazy() if is_stream else pl.scan_ipc(path)


def _plain(name: str, kind: pl.DataType) -> pl.Expr:
    """Select a column, casting categories to text."""
    column = pl.col(name)
    return column.cast(pl.String) if kind in (pl.Categorical, pl.Enum) else column
