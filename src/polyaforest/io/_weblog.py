"""Read the logs of web servers, in the common and the combined log format."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from ._batches import BlockReader, Rejected, RowBatch, TableSample, sample_of, shortened
from .blocks import BLOCK_BYTES, OpenedInput, after_last_line
from .errors import BadInput
from .reading import Interpretation

__all__ = ["WebLogReader", "is_web_log"]

_LINE = (
    r'^(?:(\S+:\d+) )?(\S+) (\S+) (.+?) \[([^\]]+)\] "((?:[^"\\]|\\.)*)" (\d{3}|-) (\d+|-)'
    r'(?: "((?:[^"\\]|\\.)*)" "((?:[^"\\]|\\.)*)")?(?:\s.*)?$'
)
_REQUEST = r"^([A-Z]+) ([^ ?]+)\S*(?: (HTTP/[0-9.]+))?$"
_GROUPS = ("server", "host", "ident", "user", "time", "request", "status", "bytes", "referer", "agent")
_NAMES = ("host", "user", "time", "method", "path", "protocol", "status", "bytes")
_COMBINED = ("referer", "agent")
_SNIFFED_LINES, _ENOUGH = 5, 0.6


def is_web_log(start: bytes) -> bool:
    """Return whether most of the first lines of a file are requests of a web server."""
    lines = start.decode("utf-8", "replace").split("\n")
    whole = [line for line in lines[: len(lines) - 1 or None] if line.strip()][:_SNIFFED_LINES]
    found = sum(re.match(_LINE, line) is not None for line in whole)
    return found > 0 and found >= _ENOUGH * len(whole)


class WebLogReader(BlockReader):
    """Read a log: one request per line, its path without the query."""

    fixed = True
    has_header = True
    delimiter = None

    def __init__(self, opened: OpenedInput, block_bytes: int = BLOCK_BYTES) -> None:
        super().__init__(opened, after_last_line, block_bytes)
        first = opened.peek(1 << 16).decode("utf-8", "replace").split("\n")
        matches = list(filter(None, (re.match(_LINE, line) for line in first)))
        if not matches:
            raise BadInput(f"{self.name} is not a log in the common log format. Line 1: {shortened(first[0])}")
        is_combined = matches[0][10] is not None
        self.names = [*(("server",) if matches[0][1] else ()), *_NAMES, *(_COMBINED if is_combined else ())]
        kind = "combined" if is_combined else "common"
        self.interpretations.append(
            Interpretation(f"lines as requests to a web server ({kind} log format)", ("--format",))
        )

    def sample(self) -> TableSample:
        """Return rows from across the file."""
        return self._with_later_rows(sample_of(self._first_batches(None), len(self.names)))

    def _parse(self, block: bytes, wanted: Mapping[str, Any] | None, number: int) -> RowBatch:
        lines = [line for line in block.decode("utf-8", "replace").split("\n") if line.strip()]
        text = pl.Series(lines, dtype=pl.String).str.strip_chars_end("\r")
        parts = text.str.extract_groups(_LINE).struct.unnest()
        parts.columns = list(_GROUPS)
        request = parts["request"].str.extract_groups(_REQUEST).struct.unnest()
        request.columns = ["method", "path", "protocol"]
        frame = pl.concat([parts, request], how="horizontal")
        frame = frame.with_columns(
            pl.when(pl.col(name) != "-").then(pl.col(name)) for name in frame.columns if name != "time"
        )
        is_read = parts["time"].is_not_null().to_numpy()
        faults = [
            Rejected(number + at, "not a request in the common log format", shortened(lines[at]))
            for at in np.flatnonzero(~is_read).tolist()
        ]
        places = np.flatnonzero(is_read)
        kept = frame.filter(pl.Series(is_read)).select(list(wanted or self.names))
        return RowBatch(kept, number + places, faults, lambda at: shortened(lines[places[at]]))
