"""Parse JSON objects of tables and live records, and write JSON that is safe to print on a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from polyaforest.util.text import json_shown

__all__ = ["flattened", "parse_object", "to_json"]

_DEEPEST = 32  # levels of nested objects to flatten
_MOST_NAMES = 2**20  # characters in all names together: each field repeats the names of its outer objects
_LONGEST_INTEGER = 20  # characters of a 64-bit integer


def parse_object(text: bytes) -> dict[str, Any]:
    """Parse a JSON object that may contain NaN, Infinity or integers beyond 64 bits, as some programs write them.

    Raises
    ------
    ValueError
        If the text is not JSON, or not an object.
    """
    try:
        fields = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        try:
            fields = json.loads(text.decode(), parse_int=_integer)
            orjson.dumps(fields)  # rejects lone surrogates, which cannot be written as UTF-8
        except (ValueError, TypeError, RecursionError):
            raise ValueError(f"invalid JSON: {error}") from None
    if type(fields) is not dict:
        raise ValueError("not a JSON object")
    return fields


def _integer(text: str) -> float:
    """Return an integer, as a float if it does not fit into 64 bits."""
    number = int(text) if len(text) <= _LONGEST_INTEGER else 1 << 64
    return number if -(1 << 63) <= number < 1 << 64 else float(text)


def flattened(fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield all fields, nested ones under dotted names; raise ValueError if the names are too long in total.

    Examples
    --------
    >>> dict(flattened({"host": "a", "cpu": {"user": 1, "idle": 2}}))
    {'host': 'a', 'cpu.user': 1, 'cpu.idle': 2}
    """
    n_characters = 0
    for name, value in _walk(fields, "", 0):
        n_characters += len(name)
        if n_characters > _MOST_NAMES:
            raise ValueError(f"field names exceed {_MOST_NAMES:,} characters in total")
        yield name, value


def _walk(fields: Mapping[str, Any], before: str, depth: int) -> Iterator[tuple[str, Any]]:
    for name, value in fields.items():
        if isinstance(value, dict) and depth < _DEEPEST:
            yield from _walk(value, f"{before}{name}.", depth + 1)
        else:
            yield before + name, value


def to_json(value: Any, option: int = 0) -> bytes:
    r"""Serialise with orjson, and escape characters that act on a terminal, such as ``\u202e``.

    The result parses to the same value. JSON itself escapes only the first 32 characters of Unicode.

    Examples
    --------
    >>> to_json({"a\x7f": 1, "ó": 2}).decode()
    '{"a\\u007f":1,"ó":2}'
    """
    written = orjson.dumps(value, option=option)
    if written.isascii() and b"\x7f" not in written:  # nearly always
        return written
    return json_shown(written.decode()).encode()
