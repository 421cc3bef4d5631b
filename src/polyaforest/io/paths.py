"""Expand arguments to inputs: files, patterns, directories and databases."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from glob import glob

from .errors import BadInput, in_words

__all__ = ["expand_paths", "is_database", "shown_path"]

_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)://")
_SQLITE = "sqlite:///"  # a file, opened as such so that a missing one is not created
_PACKED = (".gz", ".zst", ".bz2", ".xz")
_KINDS = {
    ".parquet": "Parquet", ".pq": "Parquet", ".csv": "CSV", ".tsv": "TSV", ".jsonl": "JSON lines",
    ".ndjson": "JSON lines", ".json": "JSON", ".arrow": "Arrow", ".feather": "Arrow", ".orc": "ORC", ".xlsx": "Excel",
}  # fmt: skip


def is_database(path: str) -> bool:
    """Return whether an argument is the address of a database, such as ``postgresql://host/name``."""
    return _ADDRESS.match(path) is not None and not os.path.exists(path)


def shown_path(path: str) -> str:
    """Return the name of an input for messages, without the user and password of a database.

    Examples
    --------
    >>> shown_path("data/load.csv"), shown_path("-"), shown_path("postgresql://me:secret@host/sales?sslmode=require")
    ('load.csv', 'standard input', 'postgresql database')
    """
    if is_database(path):
        scheme = path.partition("://")[0]
        return f"{scheme.partition('+')[0]} database"
    return "standard input" if path == "-" else os.path.basename(path)


def expand_paths(paths: Iterable[str]) -> list[str]:
    """Expand arguments to inputs, in order.

    A pattern such as ``data/*.csv`` or ``data/**/*.parquet`` expands to the files that match it; a directory to the
    tables in it and its subdirectories, all of one format. Names that begin with a dot or an underscore are skipped:
    programs give such names to metadata beside tables.

    Raises
    ------
    BadInput
        If no file matches, or a directory has no tables, or tables of several formats.
    """
    return [found for path in paths for found in _expanded(path)]


def _expanded(path: str) -> list[str]:
    path = path.removeprefix(_SQLITE)
    if path == "-" or is_database(path):
        return [path]
    if os.path.isdir(path):
        return _tables_in(path)
    if not os.path.lexists(path) and any(mark in path for mark in "*?["):
        matching = sorted(found for found in glob(path, recursive=True) if os.path.isfile(found))
        if not matching:
            raise BadInput(f"No file matches {path}. Check the pattern.")
        return matching
    return [path]


def _tables_in(directory: str) -> list[str]:
    """Return the tables in a directory and its subdirectories."""
    found: dict[str, list[str]] = {}
    for folder, folders, names in os.walk(directory):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "_")))
        for name in sorted(names):
            kind, path = _kind(name), os.path.join(folder, name)
            if kind and not name.startswith((".", "_")) and os.path.isfile(path):  # opening a pipe would block
                found.setdefault(kind, []).append(path)
    if not found:
        raise BadInput(f"{directory} contains no tables ({', '.join(dict.fromkeys(_KINDS.values()))}).")
    if len(found) > 1:
        raise BadInput(
            f"{directory} contains tables of several formats: {in_words(found)}. "
            f"Pass a pattern, such as '{os.path.join(directory, '*.csv')}'."
        )
    return next(iter(found.values()))


def _kind(name: str) -> str | None:
    """Return the format of a file by its name."""
    stem = name.lower()
    for packed in _PACKED:
        stem = stem.removesuffix(packed)
    return _KINDS.get(os.path.splitext(stem)[1])
