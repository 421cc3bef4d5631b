"""Read Parquet files in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

import numpy as np
import polars as pl

from ._batches import RowBatch, TableSample, row_text, sample_of, shortened
from .blocks import OpenedInput, copied
from .errors import BadInput
from .reading import Interpretation

__all__ = ["ParquetReader"]

_T = TypeVar("_T")
_BATCH_CELLS = 1 << 24
_FEWEST_ROWS, _MOST_ROWS = 1 << 12, 1 << 18


class ParquetReader:
    """Read a Parquet file; copy a pipe to a temporary file first, since the metadata are at the end."""

    fixed = True
    has_header = True
    delimiter = None

    def __init__(self, opened: OpenedInput) -> None:
        self.name = opened.name
        self.interpretations: list[Interpretation] = []
        self.is_file = True
        self._opened = opened
        self._copy = None if opened.path else copied(opened, ".parquet")
        try:
            rows = pl.scan_parquet(self._copy.name if self._copy else opened.path)
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
        """Return the first rows."""
        return sample_of(self._batches(self.names, _FEWEST_ROWS), len(self.names))

    def batches(self, wanted: Mapping[str, Any]) -> Iterator[RowBatch]:
        """Yield all rows in batches, with the types of the file."""
        most = max(_BATCH_CELLS // len(wanted), _FEWEST_ROWS)
        return self._batches(list(wanted), min(most, _MOST_ROWS))

    def _batches(self, names: list[str], n_rows: int) -> Iterator[RowBatch]:
        """Yield batches of `n_rows`."""
        for start in range(0, self._n_rows, n_rows):
            part = self._rows.select([_plain(name, self._schema[name]) for name in names]).slice(start, n_rows)
            frame = self._tried(part.collect)
            yield RowBatch(frame, np.arange(start + 1, start + 1 + len(frame)), [], partial(row_text, frame))

    def _tried(self, work: Callable[[], _T]) -> _T:
        """Call `work`; raise BadInput if the file is damaged."""
        try:
            return work()
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
            words = shortened(str(error).partition("\n")[0])
            raise BadInput(f"{self.name} is not a valid Parquet file ({words}). Get a complete copy.") from None


def _plain(name: str, kind: pl.DataType) -> pl.Expr:
    """Select a column, casting categories to text."""
    column = pl.col(name)
    return column.cast(pl.String) if kind in (pl.Categorical, pl.Enum) else column
