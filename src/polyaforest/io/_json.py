"""What tables and live records have in common when they are JSON, and JSON that is fit for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from polyaforest.core.text import json_shown

__all__ = ["flattened", "to_json"]

_DEEPEST = 32  # objects within objects that are looked into
_MOST_NAMES = 2**20  # characters of all names together: those of outer objects come again with each field within


def flattened(fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """All fields, those of objects within under names with dots; raise ValueError if the names grow out of bounds.

    Examples
    --------
    >>> dict(flattened({"host": "a", "cpu": {"user": 1, "idle": 2}}))
    {'host': 'a', 'cpu.user': 1, 'cpu.idle': 2}
    """
    n_characters = 0
    for name, value in _walk(fields, "", 0):
        n_characters += len(name)
        if n_characters > _MOST_NAMES:
            raise ValueError(f"the names of its fields take more than {_MOST_NAMES:,} characters")
        yield name, value


def _walk(fields: Mapping[str, Any], before: str, depth: int) -> Iterator[tuple[str, Any]]:
    for name, value in fields.items():
        if isinstance(value, dict) and depth < _DEEPEST:
            yield from _walk(value, f"{before}{name}.", depth + 1)
        else:
            yield before + name, value


def to_json(value: Any, option: int = 0) -> bytes:
    r"""JSON as orjson writes it, but that characters which would act on a terminal are written as ``\u202e``.

    It reads the same. JSON itself spells out only the first 32 characters of Unicode.

    Examples
    --------
    >>> to_json({"a\x7f": 1, "ó": 2}).decode()
    '{"a\\u007f":1,"ó":2}'
    """
    written = orjson.dumps(value, option=option)
    if written.isascii() and b"\x7f" not in written:  # as nearly always
        return written
    return json_shown(written.decode()).encode()
