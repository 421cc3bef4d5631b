"""Write results as CSV, TSV, JSON lines or Parquet, in chunks and atomically."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import IO, Any, Self, TypeAlias

import numpy as np
import orjson
import polars as pl

from polyaforest.storage.modelfile import replacing, without_waiting
from polyaforest.util.text import printable

from .errors import BadInput, in_words
from .json_values import to_json

__all__ = ["FORMATS", "Results"]

Columns: TypeAlias = Mapping[str, Sequence[Any] | np.ndarray[Any, Any]]

FORMATS = ("csv", "tsv", "jsonl", "parquet")
_ENDINGS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
}


class Results:
    """An output for results, opened by `with` and written in chunks.

    An existing file is replaced when the block ends, and unchanged if the block raises. Problems with the path raise
    `BadInput` before anything is written.

    Parameters
    ----------
    path : str
        "-" is standard output.
    format : {"csv", "tsv", "jsonl", "parquet"}, optional
        Inferred from the extension of `path` by default; CSV on standard output.
    spreadsheet_safe : bool, default=False
        In CSV and TSV, put an apostrophe before text that a spreadsheet would run as a formula.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "found.csv"
    >>> with Results(str(path)) as results:
    ...     results.write({"row": [1, 2], "score": np.array([0.1, np.nan]), "attributions": [["cpu", "mem"], []]})
    >>> print(path.read_text())
    row,score,attributions
    1,0.1,"cpu, mem"
    2,,
    <BLANKLINE>
    """

    def __init__(self, path: str, format: str | None = None, *, spreadsheet_safe: bool = False) -> None:
        self._path = path
        self._format = _checked_format(path, format)
        self._is_safe = spreadsheet_safe
        if spreadsheet_safe and self._format not in ("csv", "tsv"):
            raise BadInput(f"--spreadsheet-safe applies to CSV and TSV only, and {path} is neither. Omit the option.")
        _check_writable(path)
        self._writer: _CsvWriter | _JsonLinesWriter | _ParquetWriter | None = None
        self._names: list[str] | None = None
        self._open = ExitStack()

    def __enter__(self) -> Self:
        """Open the output."""
        with ExitStack() as opening:
            file = opening.enter_context(_written(self._path))
            if self._format == "parquet":
                self._writer = opening.enter_context(_parquet(file, self._path))
            else:
                self._writer = (
                    _JsonLinesWriter(file) if self._format == "jsonl" else _CsvWriter(file, self._format, self._is_safe)
                )
            self._open = opening.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Move the new file into place; after an error, remove it."""
        self._writer = None
        self._open.__exit__(kind, error, trace)

    def write(self, columns: Columns) -> None:
        """Write rows, given as columns of equal length; every call must pass the same columns.

        None and NaN become an empty cell or null. CSV joins lists with commas.
        """
        if self._writer is None:
            raise ValueError("write results within a `with` block")
        names = list(columns)
        if self._names not in (None, names):
            raise ValueError(f"columns must stay the same: {self._names}; got {names}")
        is_first, self._names = self._names is None, names
        self._writer.write(columns, is_first)


# ---- paths -----------------------------------------------------------------------------------------------------------


def _checked_format(path: str, format: str | None) -> str:
    """Return the format to write; raise BadInput if it is unknown."""
    if format is not None:
        if format not in FORMATS:
            raise BadInput(f"Unknown format '{format}'. Choose one of {in_words(FORMATS)}.")
        return format
    if path == "-":
        return "csv"
    ending = os.path.splitext(path)[1].lower()
    if ending in _ENDINGS:
        return _ENDINGS[ending]
    if _is_device(path):
        return "csv"
    raise BadInput(f"Cannot infer the format of {path}. Use the extension .csv, .tsv, .jsonl or .parquet.")


def _check_writable(path: str) -> None:
    """Raise BadInput if no file can be written to a path."""
    if path == "-" or _is_device(path):
        return
    if os.path.isdir(path):
        raise BadInput(f"{path} is a directory. Pass a file in it.")
    folder = os.path.dirname(os.path.realpath(path))
    if not os.path.isdir(folder):
        raise BadInput(f"{path} cannot be written: {os.path.dirname(path)} does not exist. Create the directory first.")
    if not os.access(folder, os.W_OK):
        raise BadInput(f"{path} cannot be written: no permission to write to its directory. Choose another path.")


def _is_device(path: str) -> bool:
    """Return whether a path is a device or a pipe, which is written in place."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


@contextmanager
def _written(path: str) -> Iterator[IO[bytes]]:
    """Open the file to write to."""
    if path == "-":
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    elif _is_device(path):
        with open(path, "wb", opener=without_waiting) as file:
            yield file
    else:
        with replacing(os.path.realpath(path)) as file:
            yield file


# ---- formats ---------------------------------------------------------------------------------------------------------


class _CsvWriter:
    """Write CSV and TSV; escape control characters on a terminal."""

    def __init__(self, file: IO[bytes], format: str, is_safe: bool) -> None:
        self._file = file
        self._separator = "\t" if format == "tsv" else ","
        self._changes = [change for change, is_made in ((_inert, is_safe), (printable, file.isatty())) if is_made]

    def write(self, columns: Columns, is_first: bool) -> None:
        """Write rows, the first after a header: floats in the shortest exact form, quotes where needed."""
        frame = _frame(columns, flat=True)
        if is_first:
            self._write(pl.DataFrame([pl.Series(f"{k}", [name]) for k, name in enumerate(frame.columns)]))
        self._write(frame)

    def _write(self, frame: pl.DataFrame) -> None:
        """Write cells; the header too is a row of cells."""
        for change in self._changes:
            text = pl.col(pl.String)
            frame = frame.with_columns(text.map_elements(change, return_dtype=pl.String))
        self._file.write(frame.write_csv(include_header=False, separator=self._separator).encode())


# Before a character that starts a formula in a spreadsheet, at the start of a cell or after a possible delimiter.
_FORMULA = re.compile(r"(?:^|(?<=[\t\n\r,;|]))(?=[=+\-@\t\n\r＝＋－＠])")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def _inert(text: str) -> str:
    """Escape text that a spreadsheet would run as a formula; return numbers unchanged."""
    return text if _NUMBER.fullmatch(text) else _FORMULA.sub("'", text)


class _JsonLinesWriter:
    """Write one JSON object per line."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, columns: Columns, is_first: bool) -> None:
        """Write rows; orjson writes NaN as null."""
        names = list(columns)
        plain = (values.tolist() if isinstance(values, np.ndarray) else values for values in columns.values())
        rows = zip(*plain, strict=True)
        options = orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY
        self._file.writelines(to_json(dict(zip(names, row, strict=True)), options) for row in rows)


class _ParquetWriter:
    """Write one Parquet file per chunk, since polars writes a Parquet file in one call."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._paths: list[str] = []

    def write(self, columns: Columns, is_first: bool) -> None:
        """Write rows to a file of their own."""
        self._paths.append(os.path.join(self._folder, f"{len(self._paths)}.parquet"))
        _frame(columns).write_parquet(self._paths[-1])

    def joined(self) -> str:
        """Join the files into one without loading all rows, and return its path."""
        whole = os.path.join(self._folder, "whole.parquet")
        parts = [pl.scan_parquet(path) for path in self._paths] or [pl.LazyFrame()]
        pl.concat(parts, how="vertical_relaxed").sink_parquet(whole)
        return whole


@contextmanager
def _parquet(file: IO[bytes], path: str) -> Iterator[_ParquetWriter]:
    """Yield a writer of chunks, and join them into one Parquet file at the end."""
    beside = None if path == "-" or _is_device(path) else os.path.dirname(os.path.realpath(path))
    with tempfile.TemporaryDirectory(prefix=".polyaforest-", dir=beside) as folder:
        parts = _ParquetWriter(folder)
        yield parts
        with open(parts.joined(), "rb") as whole:
            shutil.copyfileobj(whole, file)


def _frame(columns: Columns, *, flat: bool = False) -> pl.DataFrame:
    """Return a polars frame with null for NaN; with `flat`, convert lists to text."""
    frame = pl.DataFrame([_series(name, values, flat) for name, values in columns.items()])
    return frame.with_columns(pl.col(pl.Float32, pl.Float64).fill_nan(None))


def _series(name: str, values: Sequence[Any] | np.ndarray[Any, Any], flat: bool) -> pl.Series:
    """Return a polars column."""
    if isinstance(values, np.ndarray) or not any(isinstance(value, list | tuple) for value in values):
        return pl.Series(name, values, strict=False)
    if flat:
        return pl.Series(name, [", ".join(map(str, value or ())) or None for value in values], dtype=pl.String)
    return pl.Series(name, values, dtype=pl.List(pl.String))
