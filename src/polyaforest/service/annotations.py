"""Annotations: moments or spans that operators and programs mark on the charts, such as deployments.

They are part of the history of each stream that they concern; an annotation of several streams has one id.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from secrets import token_hex
from typing import Any, NamedTuple

__all__ = ["Annotation", "add_annotation", "annotations_of", "delete_annotation", "new_annotation"]

_COLUMNS = "id, start, end, key, text, kind, who, at"
_MOST = 100_000  # per stream; the oldest are deleted


class Annotation(NamedTuple):
    """An annotation of a stream; `key` is None for all keys."""

    id: str
    start: float
    end: float
    key: str | None
    text: str
    kind: str  # such as "deployment"
    who: str
    at: float  # when it was made


def new_annotation(facts: dict[str, Any]) -> Annotation:
    """Return an annotation with a new id."""
    return Annotation(id=token_hex(8), **facts)


def add_annotation(file: sqlite3.Connection, annotation: Annotation) -> None:
    """Add an annotation in a transaction."""
    file.execute(f"INSERT INTO annotations ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", annotation)
    query = "DELETE FROM annotations WHERE rowid NOT IN (SELECT rowid FROM annotations ORDER BY at DESC LIMIT ?)"
    if file.execute("SELECT count(*) FROM annotations").fetchone()[0] > _MOST:
        file.execute(query, (_MOST,))


def delete_annotation(file: sqlite3.Connection, id: str) -> bool:
    """Delete an annotation in a transaction; return whether it existed."""
    return file.execute("DELETE FROM annotations WHERE id = ?", (id,)).rowcount > 0


def annotations_of(
    file: sqlite3.Connection, start: float, end: float, *, key: str | None = None, most: int = 1000
) -> Iterable[Annotation]:
    """Return the annotations that overlap a span of time, latest first; with a key, those of all keys and of this."""
    where = "start <= ? AND end >= ? AND (? IS NULL OR key IS NULL OR key = ?)"
    query = f"SELECT {_COLUMNS} FROM annotations WHERE {where} ORDER BY start DESC LIMIT ?"
    return [Annotation(*row) for row in file.execute(query, (end, start, key, key, most))]
