"""Where results go: CSV files that grow a row at a time, so that a long run can be stopped and taken up again."""

from __future__ import annotations

import csv
import os
import platform
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


class Results:
    """A CSV file whose first columns, the `keys`, name a measurement; what is there already need not be done again."""

    def __init__(self, name: str, keys: Iterable[str], directory: Path = RESULTS) -> None:
        self.path, self.keys = directory / f"{name}.csv", tuple(keys)
        self._rows = {self._key(row): row for row in read(self.path)} if self.path.exists() else {}

    def __contains__(self, key: tuple[Any, ...]) -> bool:
        return tuple(map(str, key)) in self._rows

    def __iter__(self) -> Iterator[dict[str, str]]:
        return iter(self._rows.values())

    def add(self, row: dict[str, Any]) -> None:
        """Append a measurement to the file, at once."""
        text = {column: _text(value) for column, value in row.items()}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not self.path.exists()
        with self.path.open("a", newline="") as file:
            writer = csv.DictWriter(file, text.keys(), lineterminator="\n")
            if is_new:
                writer.writeheader()
            writer.writerow(text)
        self._rows[self._key(text)] = text

    def forget(self, **wanted: Any) -> None:
        """Drop the rows that have these values, to measure them again."""
        kept = [row for row in self if not all(row[column] == str(value) for column, value in wanted.items())]
        self.path.unlink(missing_ok=True)
        self._rows = {}
        for row in kept:
            self.add(row)

    def _key(self, row: dict[str, str]) -> tuple[str, ...]:
        return tuple(row[column] for column in self.keys)


def read(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file; lines that begin with # are remarks."""
    with path.open(newline="") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def write(name: str, rows: Iterable[dict[str, Any]]) -> None:
    """Write a whole file at once, with a remark on the machine that the rows were measured on."""
    rows = list(rows)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.csv"
    with path.open("w", newline="") as file:
        file.write(f"# {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}\n")
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"-> {path}")


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
