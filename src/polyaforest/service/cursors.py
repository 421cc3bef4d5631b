"""Cursors: where a listing continues, as text that callers pass back unchanged."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from typing import Any

import orjson
from fastapi import HTTPException

__all__ = ["LONGEST", "cursor_of", "place_of"]

LONGEST = 8192  # characters; keys may have 4,096


def cursor_of(*place: Any) -> str:
    """Return the cursor of a place."""
    return urlsafe_b64encode(orjson.dumps(place)).decode().rstrip("=")


def place_of(cursor: str | None, *kinds: Callable[[Any], Any]) -> list[Any] | None:
    """Return the place of a cursor, one value of each kind; None without a cursor."""
    if cursor is None:
        return None
    try:
        text = urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4))
        place = orjson.loads(text)
        if not isinstance(place, list) or len(place) != len(kinds):
            raise ValueError(cursor)
        if any(not isinstance(value, (int, float, str)) for value in place):
            raise ValueError(cursor)
        return [kind(value) for kind, value in zip(kinds, place, strict=True)]
    except (ValueError, OverflowError):
        raise HTTPException(422, "the cursor is invalid: pass on `next` of an earlier answer unchanged") from None
