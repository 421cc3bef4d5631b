"""TOML text: the line of each key, which `tomllib` does not report, and a writer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import is_dataclass
from datetime import timedelta
from typing import Any

import tomli_w

from polyaforest.settings.values import non_default
from polyaforest.util.durations import format_duration

__all__ = ["Places", "to_toml"]


class Places:
    """The lines of the keys of a TOML text."""

    _HEADER = re.compile(r"\s*(\[\[?)\s*([^\]]+?)\s*\]\]?\s*(?:#.*)?$")
    _KEY = re.compile(r"""\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*=""")
    _PART = re.compile(r"""[A-Za-z0-9_-]+|"[^"]*"|'[^']*'""")

    def __init__(self, text: str) -> None:
        self._lines: dict[tuple[int | str, ...], int] = {(): 1}
        counts: dict[tuple[str, ...], int] = {}
        table: tuple[int | str, ...] = ()
        for number, line in enumerate(text.split("\n"), 1):
            header, key = self._HEADER.match(line), self._KEY.match(line)
            if header is not None:
                names = self._names(header[2])
                if header[1] == "[[":
                    counts[names] = counts.get(names, -1) + 1
                table = self._numbered(names, counts)
                self._lines.setdefault(table, number)
            elif key is not None:
                self._lines.setdefault((*table, *self._names(key[1])), number)

    def line_of(self, place: list[int | str]) -> int:
        """Return the line of a key, or of the nearest enclosing table."""
        parts = tuple(place)
        while parts not in self._lines:
            parts = parts[:-1]
        return self._lines[parts]

    def _names(self, text: str) -> tuple[str, ...]:
        return tuple(part.strip("\"'") for part in self._PART.findall(text))

    @staticmethod
    def _numbered(names: tuple[str, ...], counts: dict[tuple[str, ...], int]) -> tuple[int | str, ...]:
        """Return the path of a table, with the numbers of tables in arrays."""
        path: list[int | str] = []
        for end, name in enumerate(names, 1):
            path.append(name)
            if names[:end] in counts:
                path.append(counts[names[:end]])
        return tuple(path)


def to_toml(tables: Mapping[str, Any]) -> str:
    """Write tables as TOML.

    Examples
    --------
    >>> from datetime import timedelta
    >>> print(to_toml({"streams": {"web": {"window": timedelta(hours=6), "gates": {"direction": "high"}}}}), end="")
    [streams.web]
    window = "21600s"
    <BLANKLINE>
    [streams.web.gates]
    direction = "high"
    """
    return tomli_w.dumps(_encode(tables))


def _encode(value: Any) -> Any:
    """Convert a value to the types of TOML, without settings that are None."""
    if is_dataclass(value):
        value = non_default(value)
    if isinstance(value, Mapping):
        return {name: _encode(part) for name, part in value.items() if part is not None}
    if isinstance(value, (list, tuple)):
        return [_encode(part) for part in value]
    return format_duration(value) if isinstance(value, timedelta) else value
