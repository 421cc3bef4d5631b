"""CSV files of results, which grow a row at a time, so that a run can be interrupted and resumed."""

from __future__ import annotations

import csv
import os
import platform
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"
ADDED: Counter[Path] = Counter()  # measurements that this process has written, by file


class Results:
    """A CSV file whose first columns, the `keys`, identify a measurement, so that none is repeated."""

    def __init__(self, name: str, keys: Iterable[str], directory: Path = RESULTS) -> None:
        self.path, self.keys = directory / f"{name}.csv", tuple(keys)
        self._rows = {self._key(row): row for row in read(self.path)} if self.path.exists() else {}

    def __contains__(self, key: tuple[Any, ...]) -> bool:
        return tuple(map(str, key)) in self._rows

    def __iter__(self) -> Iterator[dict[str, str]]:
        return iter(self._rows.values())

    def add(self, row: dict[str, Any]) -> None:
        """Append a measurement to the file immediately."""
        self._append({column: _text(value) for column, value in row.items()})
        ADDED[self.path] += 1

    def forget(self, **wanted: Any) -> None:
        """Remove the rows that have these values, to measure them again."""
        kept = [row for row in self if not all(row[column] == str(value) for column, value in wanted.items())]
        self.path.unlink(missing_ok=True)
        self._rows = {}
        for row in kept:
            self._append(row)

    def forget_methods(self, names: Sequence[str] | None, ours: Iterable[str], column: str = "method") -> None:
        """Remove the rows of these methods, of ours if the list is empty; None removes nothing."""
        for name in () if names is None else names or ours:
            self.forget(**{column: name})

    def _append(self, text: dict[str, str]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not self.path.exists()
        with self.path.open("a", newline="") as file:
            writer = csv.DictWriter(file, text.keys(), lineterminator="\n")
            if is_new:
                writer.writeheader()
            writer.writerow(text)
        self._rows[self._key(text)] = text

    def _key(self, row: dict[str, str]) -> tuple[str, ...]:
        return tuple(row[column] for column in self.keys)


def read(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file, without remarks, which begin with #."""
    with path.open(newline="") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def picked(rows: Iterable[Mapping[str, str]], column: str, **wanted: Any) -> list[float]:
    """Return a column of the rows that have these values."""
    return [float(row[column]) for row in rows if all(row[key] == str(value) for key, value in wanted.items())]


def present(rows: Iterable[Mapping[str, str]], column: str, order: Iterable[Any]) -> list[Any]:
    """Return those values of `order` that a column of the rows contains."""
    found = {row[column] for row in rows}
    return [value for value in order if str(value) in found]


def write(name: str, rows: Iterable[dict[str, Any]], directory: Path = RESULTS) -> None:
    """Write a whole file at once, with a remark on the machine that measured it."""
    rows = list(rows)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}.csv"
    with path.open("w", newline="") as file:
        file.write(f"# {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}\n")
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    ADDED[path] += len(rows)
    print(f"-> {path}")


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
