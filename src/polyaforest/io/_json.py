"""What tables and live records have in common when they are JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["flattened"]

_DEEPEST = 32  # objects within objects that are looked into


def flattened(fields: Mapping[str, Any], before: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """All fields, those of objects within under names with dots.

    Examples
    --------
    >>> dict(flattened({"host": "a", "cpu": {"user": 1, "idle": 2}}))
    {'host': 'a', 'cpu.user': 1, 'cpu.idle': 2}
    """
    for name, value in fields.items():
        if isinstance(value, dict) and depth < _DEEPEST:
            yield from flattened(value, f"{before}{name}.", depth + 1)
        else:
            yield before + name, value
