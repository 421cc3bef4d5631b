"""Lines of JSON, one object each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from io import BytesIO
from itertools import chain
from typing import Any

import numpy as np
import orjson
import polars as pl

from ._batches import Batch, Rejected, Sample, sample_of, shortened
from ._blocks import BLOCK_BYTES, Opened, after_last_line, blocks
from ._errors import BadInput, in_words
from ._json import flattened

__all__ = ["JsonlReader"]

_NUMBERS = frozenset({int, float, bool, type(None)})
_LONGEST_WHOLE = 20  # characters of a number of 64 bits


class JsonlReader:
    """A file with an object of JSON on each line; the fields of objects within have names with dots ("cpu.user")."""

    fixed = False
    has_header = True

    def __init__(self, opened: Opened, block_bytes: int = BLOCK_BYTES) -> None:
        self.name = opened.name
        self.is_file = opened.is_file
        self.names: list[str] = []
        self._opened = opened
        self._blocks = blocks(opened, after_last_line, block_bytes)
        self._held: list[bytes] = []

    def close(self) -> None:
        """Close the file."""
        self._opened.close()

    def sample(self) -> Sample:
        """The first rows, with every field that occurs in them."""
        sample = sample_of(self._batches(self._blocks_ahead(), None), 1)
        if not len(sample.frame) and not sample.faults:
            raise BadInput(f"{self.name} is empty. It needs an object of JSON on each line.")
        self.names = sample.frame.columns
        return sample

    def batches(self, wanted: Mapping[str, Any]) -> Iterator[Batch]:
        """All rows, block by block."""
        held, self._held = self._held, []
        return self._batches(chain(held, self._blocks), wanted)

    def _blocks_ahead(self) -> Iterator[bytes]:
        """The blocks from the first one, which are kept to be read again."""
        for block in self._blocks:
            self._held.append(block)
            yield block

    def _batches(self, blocks: Iterable[bytes], wanted: Mapping[str, Any] | None) -> Iterator[Batch]:
        """The wanted fields of all rows of some blocks; all fields for None."""
        number = 1
        for block in blocks:
            batch = _quickly(block, wanted, number) if wanted else None
            if batch is None:
                lines = [line for line in block.split(b"\n") if line and not line.isspace()]
                batch = _carefully(lines, wanted, number)
            number += batch.n_rows
            yield batch


def _quickly(block: bytes, wanted: Mapping[str, Any], number: int) -> Batch | None:
    """A block through polars, or None if a value is missing or of another kind, in which its versions differ."""
    if any("." in name for name in wanted) or b"\\ud" in block:  # fields of objects within, halves of characters
        return None
    try:
        frame = pl.read_ndjson(BytesIO(block), schema=dict(wanted))
    except (pl.exceptions.PolarsError, RuntimeError):  # the latter in old versions
        return None
    n_lines = block.count(b"\n") + (not block.endswith(b"\n"))
    if len(frame) != n_lines or any(column.null_count() for column in frame):
        return None
    numbers = np.arange(number, number + n_lines)
    return Batch(frame, numbers, [], lambda at: shortened(block.split(b"\n")[at]))


def _carefully(lines: list[bytes], wanted: Mapping[str, Any] | None, number: int) -> Batch:
    """The rows of some lines, taken apart one by one."""
    good: list[dict[str, Any]] = []
    places: list[int] = []
    faults = []
    flatten = wanted is None or any("." in name for name in wanted)
    needed = dict.fromkeys(name for name, kind in (wanted or {}).items() if kind == pl.Float64).keys()
    for at, line in enumerate(lines):
        fields = _fields(line, flatten)
        if isinstance(fields, dict) and needed and needed.isdisjoint(fields):
            fields = f"it has none of the columns {in_words(needed)}"
        if isinstance(fields, str):
            faults.append(Rejected(number + at, fields, shortened(line)))
        else:
            good.append(fields)
            places.append(at)
    names = dict.fromkeys(chain.from_iterable(good)) if wanted is None else wanted
    kinds = wanted or {}
    frame = pl.DataFrame({name: _column([fields.get(name) for fields in good], kinds.get(name)) for name in names})
    return Batch(frame, number + np.array(places, np.int64), faults, lambda at: shortened(lines[places[at]]))


def _fields(line: bytes, flatten: bool) -> dict[str, Any] | str:
    """The fields of a line, or what is wrong with it."""
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        fields = _lenient(line)
        if fields is None:
            return f"it is not JSON ({error})"
    if type(fields) is not dict:
        return "it is JSON, but not an object"
    return dict(flattened(fields)) if flatten else fields


def _lenient(line: bytes) -> Any:
    """JSON with NaN, Infinity or numbers beyond all bounds in it, as some programs write it; None if it is not so."""
    try:
        fields = json.loads(line.decode("utf-8"), parse_int=_whole)
        orjson.dumps(fields)  # refuses halves of characters, which no file can hold
    except (ValueError, TypeError, RecursionError):
        return None
    return fields


def _whole(text: str) -> float:
    """A whole number, as a float where it is beyond 64 bits."""
    number = int(text) if len(text) <= _LONGEST_WHOLE else 1 << 64
    return number if -(1 << 63) <= number < 1 << 64 else float(text)


def _column(values: list[Any], kind: Any = None) -> pl.Series:
    """A column of numbers where all values are, unless text is wanted, or else of text."""
    if kind != pl.String and _NUMBERS.issuperset(map(type, values)):
        return pl.Series(np.array(values, np.float64))
    return pl.Series([_text(value) for value in values], dtype=pl.String)


def _text(value: Any) -> str | None:
    """A value as it would be written in a cell."""
    if value is None or type(value) is str:
        return value
    return orjson.dumps(value).decode() if type(value) is not float else repr(value)
