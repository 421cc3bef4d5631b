"""Read JSON documents: an array of objects, an object that holds one, or an object of columns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from io import BytesIO
from typing import Any, cast

import orjson

from ._batches import shortened
from ._jsonl import JsonlReader
from .blocks import BLOCK_BYTES, OpenedInput
from .errors import BadInput, in_words
from .reading import Interpretation

__all__ = ["JsonReader", "is_json_document"]

_DEEPEST = 4  # levels of objects in which an array of rows is sought


def is_json_document(start: bytes, has_name: bool) -> bool:
    """Return whether a file with these first bytes is one JSON document rather than an object per line.

    Parameters
    ----------
    start : bytes
    has_name : bool
        Whether the name of the file ends in .json.
    """
    text = start.lstrip()
    if text.startswith(b"["):
        return has_name or text[1:].lstrip()[:1] in (b"{", b"[")
    first = text.split(b"\n", 1)[0].strip()
    return text.startswith(b"{") and (first == b"{" or (has_name and (b"\n" not in text or not _is_object(first))))


def _is_object(line: bytes) -> bool:
    """Return whether a line is a JSON object."""
    try:
        return isinstance(orjson.loads(line), dict)
    except orjson.JSONDecodeError:
        return False


class JsonReader(JsonlReader):
    """Read a JSON document, which is held in memory, as the lines of its objects."""

    def __init__(self, opened: OpenedInput, block_bytes: int = BLOCK_BYTES) -> None:
        document = _parsed(b"".join(iter(partial(opened.read, 1 << 20), b"")), opened.name)
        objects, interpretations = _objects_in(document, opened.name)
        lines = OpenedInput(cast(Any, BytesIO(b"\n".join(map(_line, objects)))))
        super().__init__(lines, block_bytes)
        self.name, self.is_file = opened.name, opened.is_file
        self.interpretations += interpretations
        self._document = opened

    def close(self) -> None:
        """Close the file."""
        super().close()
        self._document.close()


def _parsed(text: bytes, name: str) -> Any:
    """Return a JSON document."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        try:
            return json.loads(text)  # NaN, and integers beyond 64 bits
        except (ValueError, RecursionError):
            raise BadInput(f"{name} is not valid JSON: {shortened(str(error))}. Get a complete copy.") from None


def _line(fields: Any) -> bytes:
    """Return a row as a line; lone surrogates and huge integers need the slower writer."""
    try:
        return orjson.dumps(fields)
    except TypeError:
        return json.dumps(fields).encode()


def _objects_in(document: Any, name: str) -> tuple[list[Any], list[Interpretation]]:
    """Return the rows of a document: its array of objects, or the only one that it holds, or its columns of values."""
    if isinstance(document, list):
        return _checked(document, name), []
    if not isinstance(document, dict):
        raise BadInput(f"{name} holds {shortened(str(document))}. It needs a JSON array of objects.")
    arrays, of_objects = _arrays_in(document)
    if len(of_objects) == 1:
        [key] = of_objects
        return arrays[key], [Interpretation(f"array '{shortened(key)}' as the table", ("--format",))]
    if of_objects:
        raise BadInput(
            f"{name} holds several arrays of objects: {in_words(of_objects)}. Select one first: jq '.{of_objects[0]}'"
        )
    if (rows := _split_rows(document)) is not None:
        return rows, [Interpretation("arrays 'columns' and 'data' as the table", ("--format",))]
    columns = document if _are_columns(document) else {}
    if columns:
        return list(_rows_of(columns)), [Interpretation("values by column as the table", ("--format",))]
    if arrays or any(isinstance(value, dict) for value in document.values()):
        raise BadInput(f"{name} holds no array of objects. Convert it to one, or to one object per line.")
    return [document], []


def _arrays_in(document: dict[str, Any]) -> tuple[dict[str, list[Any]], list[str]]:
    """Return the arrays of an object, and which are of objects; if none is, those of the objects that it holds."""
    level = document
    for _ in range(_DEEPEST):
        arrays = {key: value for key, value in level.items() if isinstance(value, list)}
        of_objects = [key for key, value in arrays.items() if value and all(isinstance(row, dict) for row in value)]
        if of_objects:
            return arrays, of_objects
        inner = {key: value for key, value in level.items() if isinstance(value, dict)}
        level = {f"{key}.{name}": value for key, part in inner.items() for name, value in part.items()}
    return {key: value for key, value in document.items() if isinstance(value, list)}, []


def _checked(rows: list[Any], name: str) -> list[Any]:
    """Return the objects of an array; raise BadInput if it has none."""
    if not rows:
        raise BadInput(f"{name} is an empty JSON array. It needs objects.")
    if not isinstance(rows[0], list):
        return rows
    widest = max(len(row) for row in rows if isinstance(row, list))
    names = [f"column_{k}" for k in range(1, widest + 1)]
    if len(rows) > 1 and len(rows[0]) == widest and _is_header(rows[0], rows[1]):
        names, rows = rows[0], rows[1:]
    return [dict(zip(names, row, strict=False)) if isinstance(row, list) else row for row in rows] if widest else []


def _is_header(first: list[Any], second: Any) -> bool:
    """Return whether the first of several arrays has names: different texts, above something that is not text."""
    is_names = all(isinstance(cell, str) for cell in first) and len(set(first)) == len(first)
    return is_names and isinstance(second, list) and not all(isinstance(cell, str) for cell in second)


def _split_rows(document: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Return the rows of an object with arrays of names and of rows, as pandas writes it; None for others."""
    names, rows = document.get("columns"), document.get("data")
    if not (isinstance(names, list) and isinstance(rows, list) and names and rows):
        return None
    if not all(isinstance(row, list) and len(row) == len(names) for row in rows):
        return None
    return [dict(zip(map(str, names), row, strict=True)) for row in rows]


def _are_columns(document: dict[str, Any]) -> bool:
    """Return whether all values are arrays of one length, or objects with the same keys, as pandas writes them."""
    parts = list(document.values())
    if not parts:
        return False
    if all(isinstance(part, list) for part in parts):
        return len({len(part) for part in parts}) == 1 and len(parts[0]) > 1
    return all(isinstance(part, dict) for part in parts) and len({tuple(part) for part in parts}) == 1


def _rows_of(columns: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the rows of columns."""
    values = [list(part.values()) if isinstance(part, dict) else part for part in columns.values()]
    for row in zip(*values, strict=True):
        yield dict(zip(columns, row, strict=True))
