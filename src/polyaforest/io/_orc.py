"""Read ORC files stripe by stripe, with pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import polars as pl

from ._batches import LATER_ROWS, RowBatch, TableSample, later_starts, row_text, sample_of, shortened
from .blocks import OpenedInput, copied
from .errors import BadInput
from .reading import Interpretation

__all__ = ["OrcReader", "is_orc"]


def is_orc(start: bytes) -> bool:
    """Return whether a file begins as ORC files do, not as text that happens to begin with these letters."""
    return start.startswith(b"ORC") and any(byte < 9 or byte > 127 for byte in start[3:256])


class OrcReader:
    """Read an ORC file; copy a pipe to a temporary file first."""

    fixed = True
    has_header = True
    is_file = True
    delimiter = None

    def __init__(self, opened: OpenedInput) -> None:
        self.name = opened.name
        self.interpretations: list[Interpretation] = []
        try:
            orc = import_module("pyarrow.orc")
        except ImportError:
            raise BadInput(f"{self.name} is an ORC file. Install pyarrow to read it: pip install pyarrow") from None
        self._opened = opened
        self._copy = None if opened.path else copied(opened, ".orc")
        try:
            self._file = orc.ORCFile(self._copy.name if self._copy else opened.path)
        except (OSError, ValueError) as error:
            self.close()
            words = shortened(str(error).partition("\n")[0])
            raise BadInput(f"{self.name} is not a valid ORC file ({words}). Get a complete copy.") from None
        self.names = list(self._file.schema.names)

    def close(self) -> None:
        """Close the file, and remove its copy if any."""
        self._opened.close()
        if self._copy:
            self._copy.close()

    def sample(self) -> TableSample:
        """Return rows from across the file."""
        sample = sample_of(self.batches(dict.fromkeys(self.names)), len(self.names))
        n_stripes = self._file.nstripes
        later = [] if sample.is_all else later_starts(0, n_stripes, min(n_stripes, 4))[1:]
        return sample.extended(self._stripe(at, self.names).head(LATER_ROWS) for at in later)

    def batches(self, wanted: Mapping[str, Any]) -> Iterator[RowBatch]:
        """Yield all rows, stripe by stripe."""
        number = 1
        for at in range(self._file.nstripes):
            frame = self._stripe(at, list(wanted))
            yield RowBatch(frame, np.arange(number, number + len(frame)), [], partial(row_text, frame))
            number += len(frame)

    def _stripe(self, at: int, names: list[str]) -> pl.DataFrame:
        """Return the rows of a stripe."""
        pa = import_module("pyarrow")
        frame = pl.from_arrow(pa.Table.from_batches([self._file.read_stripe(at, columns=names)]))
        assert isinstance(frame, pl.DataFrame)
        return frame.select(names).with_columns(pl.col(pl.Categorical).cast(pl.String))
