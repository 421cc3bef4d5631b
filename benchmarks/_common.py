"""What the benchmarks share: data, timing, and where results go."""

from __future__ import annotations

import csv
import os
import platform
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results"


def data_directory() -> Path | None:
    """Where the public data sets lie: POLYAFOREST_DATA, or shared/data beside the checkout."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    for place in (os.environ.get("POLYAFOREST_DATA"), beside):
        if place and Path(place).is_dir():
            return Path(place)
    return None


def load(name: str) -> np.ndarray | None:
    """The rows of a public data set, or None where it is not at hand."""
    directory = data_directory()
    if directory is None or not (directory / f"{name}.npz").exists():
        return None
    with np.load(directory / f"{name}.npz") as stored:
        return np.ascontiguousarray(stored["X"], dtype=np.float64)


def seconds(task: Callable[[], Any]) -> float:
    """Wall-clock time of one run."""
    start = time.perf_counter()
    task()
    return time.perf_counter() - start


def write(name: str, rows: Iterable[dict[str, Any]]) -> None:
    """Write rows to ``results/name.csv`` with the machine they were measured on."""
    rows = list(rows)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.csv"
    with path.open("w", newline="") as file:
        file.write(f"# {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}\n")
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    print(f"-> {path}")
