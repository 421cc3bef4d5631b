"""Read a sheet of a workbook (.xlsx, .xlsm, .xlsb, .xls or .ods), with every cell as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import polars as pl

from ._batches import LATER_ROWS, RowBatch, TableSample, later_starts, row_text, sample_of, shortened
from ._headers import is_data, names_of
from .blocks import OpenedInput
from .errors import BadInput, in_words
from .reading import Interpretation, Reading

__all__ = ["ExcelReader", "is_workbook"]

_ZIP, _OLE = b"PK\x03\x04", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_PARTS = (b"[Content_Types].xml", b"_rels/", b"xl/", b"docProps/", b"opendocument.spreadsheet")
_BATCH_ROWS = 1 << 14


def is_workbook(start: bytes, name: str) -> bool:
    """Return whether a file with these first bytes is a workbook; raise BadInput for another kind of archive."""
    if start.startswith(_ZIP) and not any(part in start for part in _PARTS):
        raise BadInput(f"{name} is a zip archive. Unpack it first.")
    return start.startswith((_ZIP, _OLE))


class ExcelReader:
    """Read a sheet without its blank rows and columns."""

    fixed = True
    is_file = True
    delimiter = None

    def __init__(self, opened: OpenedInput, reading: Reading) -> None:
        self.name = opened.name
        self.interpretations: list[Interpretation] = []
        self._opened = opened
        frame = self._sheet(reading)
        frame = frame.filter(pl.any_horizontal(pl.all().is_not_null())) if frame.width else frame
        frame = frame.select(column for column in frame if column.null_count() < len(column))
        if not len(frame):
            raise BadInput(f"{self.name} has an empty sheet. Choose another sheet with --sheet.")
        first, below = ([cell or "" for cell in frame.row(at)] for at in (0, min(1, len(frame) - 1)))
        self.has_header = (
            not is_data(first, below if len(frame) > 1 else []) if reading.header is None else reading.header
        )
        if not self.has_header and reading.header is None:
            self.interpretations.append(Interpretation("first row as data (no header)", ("--header",)))
        self.names = names_of(first, self.has_header, self.name)
        frame.columns = self.names
        self._rows = frame.slice(int(self.has_header))

    def close(self) -> None:
        """Close the file."""
        self._opened.close()

    def sample(self) -> TableSample:
        """Return rows from across the sheet."""
        sample = sample_of(self.batches(dict.fromkeys(self.names)), len(self.names))
        starts = [] if sample.is_all else later_starts(len(sample.numbers), len(self._rows))
        return sample.extended(self._rows.slice(start, LATER_ROWS) for start in starts)

    def batches(self, wanted: Mapping[str, Any]) -> Iterator[RowBatch]:
        """Yield all rows in batches."""
        for start in range(0, len(self._rows), _BATCH_ROWS):
            frame = self._rows.select(list(wanted)).slice(start, _BATCH_ROWS)
            yield RowBatch(frame, np.arange(start + 1, start + 1 + len(frame)), [], partial(row_text, frame))

    def _sheet(self, reading: Reading) -> pl.DataFrame:
        """Return all cells of the sheet."""
        try:
            fastexcel = import_module("fastexcel")
        except ImportError:
            raise BadInput(
                f"{self.name} is an Excel workbook. Install the excel extra: pip install 'polyaforest[excel]', "
                "or save the sheet as CSV."
            ) from None
        try:
            book = fastexcel.read_excel(b"".join(iter(partial(self._opened.read, 1 << 20), b"")))
            sheet = self._chosen(book.sheet_names, reading.sheet)
            frame: pl.DataFrame = book.load_sheet(sheet, header_row=None, dtypes="string").to_polars()
        except fastexcel.FastExcelError as error:
            words = shortened(str(error).partition("\n")[0])
            raise BadInput(f"{self.name} is not a valid workbook ({words}). Get a complete copy.") from None
        return frame

    def _chosen(self, names: list[str], sheet: str | None) -> str:
        """Return the name of the sheet to read: the first one by default."""
        if sheet is None and names:
            if len(names) > 1:
                self.interpretations.append(
                    Interpretation(f"sheet '{names[0]}' (first of {len(names)}) as the table", ("--sheet",))
                )
            return names[0]
        if sheet in names:
            return sheet
        if sheet and sheet.isdecimal() and 1 <= int(sheet) <= len(names):
            return names[int(sheet) - 1]
        raise BadInput(f"{self.name} has no sheet '{sheet}'. Its sheets are {in_words(names)}.")
