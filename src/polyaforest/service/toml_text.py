"""TOML text: the line of each key, which `tomllib` does not report, and a writer."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from typing import Any

from pydantic import BaseModel

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


def to_toml(tables: Mapping[str, Any], place: tuple[str, ...] = ()) -> str:
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
    tables = {
        name: part.model_dump(exclude_defaults=True) if isinstance(part, BaseModel) else part
        for name, part in tables.items()
        if part is not None
    }
    plain = {name: part for name, part in tables.items() if not _is_table(part)}
    lines = [f"{_bare(name)} = {_value(part)}" for name, part in plain.items()]
    header = [f"[{'.'.join(map(_bare, place))}]"] if place and (lines or not tables) else []
    texts = ["\n".join([*header, *lines]) + "\n"] if header or lines else []
    for name, part in tables.items():
        inner = (*place, name)
        if isinstance(part, Mapping):
            texts.append(to_toml(part, inner))
        elif _is_table(part):
            title = f"[[{'.'.join(map(_bare, inner))}]]"
            for one in part:
                texts.append("\n".join([title, *(f"{_bare(key)} = {_value(v)}" for key, v in one.items())]) + "\n")
    return "\n".join(text for text in texts if text)


def _is_table(part: Any) -> bool:
    return isinstance(part, Mapping) or (isinstance(part, list) and bool(part) and isinstance(part[0], Mapping))


def _bare(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


def _value(value: Any) -> str:
    """Format a value as TOML."""
    if isinstance(value, timedelta):
        return f'"{value.total_seconds():g}s"'
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    return json.dumps(value)
