"""Parse the published files."""

from __future__ import annotations

import csv
import gzip
import importlib
import json
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Arrays", "import_extra", "read_mat", "read_nab", "read_tsv", "read_uci"]

Arrays: TypeAlias = tuple[NDArray[Any], ...]


def read_mat(file: Path, drop: Collection[int] = ()) -> Arrays:
    """Read X, without the columns `drop`, and y from a MATLAB file: version 7 or earlier, or HDF5 (from 7.3)."""
    with file.open("rb") as stream:
        is_hdf5 = b"\x89HDF\r\n\x1a\n" in stream.read(1024)  # MATLAB's own header of 512 bytes precedes it
    if is_hdf5:
        with import_extra("h5py").File(file, "r") as stored:
            X, y = stored["X"][()].T, stored["y"][()]  # HDF5 stores MATLAB's matrices transposed
    else:
        stored = importlib.import_module("scipy.io").loadmat(file)
        X, y = stored["X"], stored["y"]
    return _table(np.delete(X, list(drop), axis=1), y)


def read_uci(file: Path, columns: int, anomalies: Collection[str], normal: Collection[str] | None = None) -> Arrays:
    """Read lines that end with `columns` numbers and a class; a name may precede them.

    Drop rows whose class is neither in `normal` (None: all others) nor in `anomalies`.
    """
    rows = [line.replace(",", " ").split()[-columns - 1 :] for line in file.read_text("ascii").splitlines()]
    kept = [row for row in rows if row and (normal is None or row[-1] in normal or row[-1] in anomalies)]
    return _table([[float(number) for number in row[:-1]] for row in kept], [row[-1] in anomalies for row in kept])


def read_tsv(file: Path) -> Arrays:
    """Read a gzipped table with a header; class 0 of the column `target`, the rarer one, is the anomaly."""
    with gzip.open(file, "rt", encoding="ascii", newline="") as text:
        rows = list(csv.DictReader(text, delimiter="\t"))
    classes = [float(row.pop("target")) for row in rows]
    return _table([[float(number) for number in row.values()] for row in rows], [value == 0 for value in classes])


def read_nab(file: Path, windows_file: Path, name: str) -> Arrays:
    """Read times, values and labels of a series of NAB."""
    with file.open(encoding="ascii", newline="") as text:
        rows = list(csv.DictReader(text))
    time = np.array([_seconds(row["timestamp"]) for row in rows])
    label = np.zeros(time.size, np.int8)
    for start, end in json.loads(windows_file.read_text("ascii"))[f"{name}.csv"]:
        label[(_seconds(start) <= time) & (time <= _seconds(end))] = 1
    value = np.array([float(row["value"]) for row in rows])
    return time.astype(np.int64), value, label


def import_extra(module: str) -> Any:
    """Import a module of the `datasets` extra."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"downloading data sets requires {module}: pip install polyaforest[datasets]") from error


def _table(X: ArrayLike, y: ArrayLike) -> Arrays:
    """Return X and y in the dtypes and layout of the checksums."""
    return np.ascontiguousarray(X, np.float64), np.asarray(y, np.int8).ravel()


def _seconds(stamp: str) -> float:
    """Return seconds since 1970 of a timestamp in UTC."""
    return datetime.fromisoformat(stamp).replace(tzinfo=UTC).timestamp()
