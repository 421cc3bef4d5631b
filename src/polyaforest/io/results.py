"""Results written as CSV, TSV, JSON lines or Parquet, a chunk at a time, whole or not at all."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import IO, Any, Protocol, Self, TypeAlias

import numpy as np
import orjson
import polars as pl

from polyaforest.core.text import printable
from polyaforest.persistence.modelfile import replacing, without_waiting

from ._errors import BadInput, in_words
from ._json import to_json

__all__ = ["FORMATS", "Results", "open_results"]

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
    """A place for results, to be opened by `with` and written to chunk by chunk.

    It takes the place of an older file when the block ends well; if it ends with an error, nothing has changed.
    """

    def __init__(self, path: str, format: str | None = None, *, spreadsheet_safe: bool = False) -> None:
        self._path = path
        self._format = _checked_format(path, format)
        self._is_safe = spreadsheet_safe
        if spreadsheet_safe and self._format not in ("csv", "tsv"):
            raise BadInput(
                f"{path} is neither CSV nor TSV, which can be made safe for spreadsheets: omit --spreadsheet-safe."
            )
        _refuse_place(path)
        self._writer: _Writer | None = None
        self._names: list[str] | None = None
        self._open = ExitStack()

    def __enter__(self) -> Self:
        """Open the place."""
        with ExitStack() as opening:
            file = opening.enter_context(_written(self._path))
            if self._format == "parquet":
                self._writer = opening.enter_context(_parquet(file, self._path))
            else:
                self._writer = _JsonLines(file) if self._format == "jsonl" else _Csv(file, self._format, self._is_safe)
            self._open = opening.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Put the new file in its place, or take it away if something went wrong."""
        self._writer = None
        self._open.__exit__(kind, error, trace)

    def write(self, columns: Columns) -> None:
        """Write some rows, given by columns of equal length, which must be the same ones every time.

        None and NaN become an empty cell, or null. Lists, such as blamed features, become text with commas in CSV.
        """
        if self._writer is None:
            raise ValueError("results are written within a `with` block")
        names = list(columns)
        if self._names not in (None, names):
            raise ValueError(f"columns must stay the same: {self._names}; got {names}")
        is_first, self._names = self._names is None, names
        self._writer.write(columns, is_first)


def open_results(path: str, format: str | None = None, *, spreadsheet_safe: bool = False) -> Results:
    """A place for results.

    Parameters
    ----------
    path : str
        "-" is standard output.
    format : {"csv", "tsv", "jsonl", "parquet"}, optional
        Told from the ending of `path` if not given, and CSV on standard output.
    spreadsheet_safe : bool, default=False
        Put an apostrophe before what a spreadsheet would run as a formula, in the text of CSV and TSV; numbers stay.

    Returns
    -------
    Results
        To be used by `with`. Nothing is touched before that, but what would be in the way is found now.

    Raises
    ------
    BadInput
        If the format is not known, or the place cannot be written to.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "found.csv"
    >>> with open_results(str(path)) as results:
    ...     results.write({"row": [1, 2], "score": np.array([0.1, np.nan]), "blame": [["cpu", "mem"], []]})
    >>> print(path.read_text())
    row,score,blame
    1,0.1,"cpu, mem"
    2,,
    <BLANKLINE>
    """
    return Results(path, format, spreadsheet_safe=spreadsheet_safe)


# ---- places ----------------------------------------------------------------------------------------------------------


def _checked_format(path: str, format: str | None) -> str:
    """The format to write; raise if it cannot be told."""
    if format is not None:
        if format not in FORMATS:
            raise BadInput(f"There is no format '{format}'. Choose one of {in_words(FORMATS)}.")
        return format
    if path == "-":
        return "csv"
    ending = os.path.splitext(path)[1].lower()
    if ending in _ENDINGS:
        return _ENDINGS[ending]
    if _is_device(path):
        return "csv"
    raise BadInput(f"{path} does not tell a format. End its name in .csv, .tsv, .jsonl or .parquet.")


def _refuse_place(path: str) -> None:
    """Raise if a file cannot be written there."""
    if path == "-" or _is_device(path):
        return
    if os.path.isdir(path):
        raise BadInput(f"{path} is a directory. Name a file in it.")
    folder = os.path.dirname(os.path.realpath(path))
    if not os.path.isdir(folder):
        raise BadInput(f"{path} cannot be written: there is no directory {os.path.dirname(path)}. Make it first.")
    if not os.access(folder, os.W_OK):
        raise BadInput(f"{path} cannot be written: its directory does not let you. Choose another place.")


def _is_device(path: str) -> bool:
    """Whether a path is a device or a pipe, which cannot be replaced but written to."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


@contextmanager
def _written(path: str) -> Iterator[IO[bytes]]:
    """The file to write to."""
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


class _Writer(Protocol):
    """Writes rows in some format."""

    def write(self, columns: Columns, is_first: bool) -> None:
        """Write some rows; before the first may come a header."""


class _Csv:
    """Lines with a delimiter between cells: exact, but on a terminal, where control characters are spelled out."""

    def __init__(self, file: IO[bytes], format: str, is_safe: bool) -> None:
        self._file = file
        self._separator = "\t" if format == "tsv" else ","
        self._changes = [change for change, is_made in ((_inert, is_safe), (printable, file.isatty())) if is_made]

    def write(self, columns: Columns, is_first: bool) -> None:
        """Write some rows as polars does: floats in as few digits as tell them apart, quotes where they are needed."""
        frame = _frame(columns, flat=True)
        if is_first:
            self._write(pl.DataFrame([pl.Series(f"{k}", [name]) for k, name in enumerate(frame.columns)]))
        self._write(frame)

    def _write(self, frame: pl.DataFrame) -> None:
        """Write cells, without the names of their columns: those are a row of cells, too."""
        for change in self._changes:
            text = pl.col(pl.String)
            frame = frame.with_columns(text.map_elements(change, return_dtype=pl.String))
        self._file.write(frame.write_csv(include_header=False, separator=self._separator).encode())


# What a spreadsheet takes for the start of a formula, at the start of a cell or after what it may take for a separator.
_FORMULA = re.compile(r"(?:^|(?<=[\t\n\r,;|]))(?=[=+\-@\t\n\r＝＋－＠])")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def _inert(text: str) -> str:
    """Text that a spreadsheet shows and does not run; numbers stay numbers."""
    return text if _NUMBER.fullmatch(text) else _FORMULA.sub("'", text)


class _JsonLines:
    """An object of JSON on each line."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, columns: Columns, is_first: bool) -> None:
        """Write some rows; orjson writes NaN as null."""
        names = list(columns)
        plain = (values.tolist() if isinstance(values, np.ndarray) else values for values in columns.values())
        rows = zip(*plain, strict=True)
        options = orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY
        self._file.writelines(to_json(dict(zip(names, row, strict=True)), options) for row in rows)


class _Parts:
    """Parquet files for a chunk each, since a Parquet file is written in one go."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._paths: list[str] = []

    def write(self, columns: Columns, is_first: bool) -> None:
        """Write some rows to a file of their own."""
        self._paths.append(os.path.join(self._folder, f"{len(self._paths)}.parquet"))
        _frame(columns).write_parquet(self._paths[-1])

    def joined(self) -> str:
        """The path of one file with all rows, which are never all in memory."""
        whole = os.path.join(self._folder, "whole.parquet")
        parts = [pl.scan_parquet(path) for path in self._paths] or [pl.LazyFrame()]
        pl.concat(parts, how="vertical_relaxed").sink_parquet(whole)
        return whole


@contextmanager
def _parquet(file: IO[bytes], path: str) -> Iterator[_Parts]:
    """A writer of parts that become one Parquet file at the end."""
    beside = None if path == "-" or _is_device(path) else os.path.dirname(os.path.realpath(path))
    with tempfile.TemporaryDirectory(prefix=".polyaforest-", dir=beside) as folder:
        parts = _Parts(folder)
        yield parts
        with open(parts.joined(), "rb") as whole:
            shutil.copyfileobj(whole, file)


def _frame(columns: Columns, *, flat: bool = False) -> pl.DataFrame:
    """Columns as polars has them, without NaN; `flat` makes lists into text."""
    frame = pl.DataFrame([_series(name, values, flat) for name, values in columns.items()])
    return frame.with_columns(pl.col(pl.Float32, pl.Float64).fill_nan(None))


def _series(name: str, values: Sequence[Any] | np.ndarray[Any, Any], flat: bool) -> pl.Series:
    """A column as polars has it."""
    if isinstance(values, np.ndarray) or not any(isinstance(value, list | tuple) for value in values):
        return pl.Series(name, values, strict=False)
    if flat:
        return pl.Series(name, [", ".join(map(str, value or ())) or None for value in values], dtype=pl.String)
    return pl.Series(name, values, dtype=pl.List(pl.String))
