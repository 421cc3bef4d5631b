"""Read JSON lines: one object per line."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from itertools import chain
from typing import Any

import numpy as np
import orjson
import polars as pl

from ._batches import BlockReader, Rejected, RowBatch, TableSample, sample_of, shortened
from .blocks import BLOCK_BYTES, OpenedInput, after_last_line
from .errors import BadInput, in_words
from .json_values import flattened, parse_object

__all__ = ["JsonlReader", "are_json_lines"]

_NUMBERS = frozenset({int, float, bool, type(None)})
_TRUTHS = frozenset({bool, type(None)})
_SNIFFED_LINES, _ENOUGH = 20, 0.6


def are_json_lines(start: bytes) -> bool:
    """Return whether a file begins with a JSON object, or most of its first lines are some, as in logs."""
    if start.lstrip().startswith(b"{"):
        return True
    lines = start.split(b"\n")
    whole = [line for line in lines[: len(lines) - 1 or None] if line.strip()][:_SNIFFED_LINES]
    found = sum(not isinstance(_fields(line, False), str) for line in whole if line.lstrip().startswith(b"{"))
    return found > 0 and found >= _ENOUGH * len(whole)


class JsonlReader(BlockReader):
    """Read JSON lines; fields of nested objects get dotted names ("cpu.user")."""

    fixed = False
    has_header = True
    delimiter = None

    def __init__(self, opened: OpenedInput, block_bytes: int = BLOCK_BYTES) -> None:
        super().__init__(opened, after_last_line, block_bytes)
        self.names: list[str] = []

    def sample(self) -> TableSample:
        """Return rows from across the file, with every field that occurs in them."""
        sample = self._with_later_rows(sample_of(self._first_batches(None), 1))
        if not len(sample.frame) and not sample.faults:
            raise BadInput(f"{self.name} is empty. It needs one JSON object per line.")
        self.names = sample.frame.columns
        return sample

    def _parse(self, block: bytes, wanted: Mapping[str, Any] | None, number: int) -> RowBatch:
        batch = _parse_block(block, wanted, number) if wanted else None
        if batch is None:
            lines = [line for line in block.split(b"\n") if line and not line.isspace()]
            batch = _parse_lines(lines, wanted, number)
        return batch


def _parse_block(block: bytes, wanted: Mapping[str, Any], number: int) -> RowBatch | None:
    """Parse a block with polars; None if a value is missing or of another type, where versions of polars differ."""
    # polars cannot parse nested fields, columns of mixed types, lone surrogates
    if any("." in name for name in wanted) or None in wanted.values() or b"\\ud" in block:
        return None
    try:
        frame = pl.read_ndjson(BytesIO(block), schema=dict(wanted))
    except (pl.exceptions.PolarsError, RuntimeError):  # RuntimeError in old versions
        return None
    n_lines = block.count(b"\n") + (not block.endswith(b"\n"))
    if len(frame) != n_lines or any(column.null_count() for column in frame):
        return None
    numbers = np.arange(number, number + n_lines)
    return RowBatch(frame, numbers, [], lambda at: shortened(block.split(b"\n")[at]))


def _parse_lines(lines: list[bytes], wanted: Mapping[str, Any] | None, number: int) -> RowBatch:
    """Parse lines one by one."""
    good: list[dict[str, Any]] = []
    places: list[int] = []
    faults = []
    flatten = wanted is None or any("." in name for name in wanted)
    needed = dict.fromkeys(name for name, kind in (wanted or {}).items() if kind != pl.String).keys()
    for at, line in enumerate(lines):
        fields = _fields(line, flatten)
        if isinstance(fields, dict) and needed and needed.isdisjoint(fields):
            fields = f"has none of the columns {in_words(needed)}"
        if isinstance(fields, str):
            faults.append(Rejected(number + at, fields, shortened(line)))
        else:
            good.append(fields)
            places.append(at)
    names = dict.fromkeys(chain.from_iterable(good)) if wanted is None else wanted
    kinds = wanted or {}
    frame = pl.DataFrame({name: _column([fields.get(name) for fields in good], kinds.get(name)) for name in names})
    return RowBatch(frame, number + np.array(places, np.int64), faults, lambda at: shortened(lines[places[at]]))


def _fields(line: bytes, flatten: bool) -> dict[str, Any] | str:
    """Return the fields of a line, or why it cannot be parsed."""
    try:
        fields = parse_object(line)
        return dict(flattened(fields)) if flatten else fields
    except ValueError as error:
        return str(error)


def _column(values: list[Any], kind: Any = None) -> pl.Series:
    """Return a column of booleans or numbers if all values are and `kind` is not text, else of text."""
    kinds = set(map(type, values))
    if kind in (None, pl.Boolean) and bool in kinds and kinds <= _TRUTHS:
        return pl.Series(values, dtype=pl.Boolean)
    if kind != pl.String and kinds <= _NUMBERS:
        return pl.Series(np.array(values, np.float64))
    return pl.Series([_text(value) for value in values], dtype=pl.String)


def _text(value: Any) -> str | None:
    """Return a value as text."""
    if value is None or type(value) is str:
        return value
    return orjson.dumps(value).decode() if type(value) is not float else repr(value)
