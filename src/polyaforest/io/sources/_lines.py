"""The interface of sources, and the base of line sources, which split lines in bounded memory.

A position in a file identifies the file by its first bytes and the last line read, also after a rename.
"""

from __future__ import annotations

import os
import time
from collections import deque
from importlib import import_module
from typing import Any, Protocol

from polyaforest.io import file_identity
from polyaforest.io.errors import BadInput
from polyaforest.io.file_identity import DIGESTED, digest, file_number
from polyaforest.io.records import LONGEST_LINE, Record
from polyaforest.util import schema
from polyaforest.util.system import read_at

__all__ = [
    "LineSource", "Lines", "Position", "Source", "check_position", "has_mark", "import_extra", "last_line", "mark",
    "start_of",
]  # fmt: skip

Position = Any  # any JSON-serialisable value


class Source(Protocol):
    """A stream of records with a position.

    Attributes
    ----------
    can_replay : bool
        Whether records can be read again from a position.
    notices : list of str
        Messages for the user, such as lost records or an unreachable server. The caller removes messages it has shown.
    """

    can_replay: bool
    notices: list[str]

    def read(self, most: int, wait: float) -> list[Record] | None:
        """Return at most `most` records: [] if none arrived within `wait` seconds, None after the last."""
        ...

    @property
    def position(self) -> Position:
        """Position after the last record returned, JSON-serialisable."""
        ...

    def seek(self, position: Position) -> None:
        """Continue after a `position`."""
        ...

    def close(self) -> None:
        """Close files and connections; idempotent."""
        ...


def import_extra(extra: str, *modules: str) -> Any:
    """Import the modules of a client library and return the first; raise BadInput with the extra to install."""
    try:
        library, *_ = map(import_module, modules)
        return library
    except ModuleNotFoundError as problem:
        if problem.name != modules[0]:
            raise
        words = f'reading from {extra.title()} requires an extra: pip install "polyaforest[{extra}]"'
        raise BadInput(words) from problem


# ---- lines -----------------------------------------------------------------------------------------------------------


class Lines:
    """Split chunks of bytes into lines.

    Lines that are too long are truncated to one byte more than allowed, so that the reader can detect them.

    Attributes
    ----------
    ready : deque of (bytes, int)
        Complete lines without their newline, and the size of each in bytes.
    """

    def __init__(self) -> None:
        self.ready: deque[tuple[bytes, int]] = deque()
        self._start = bytearray()  # of the incomplete line
        self._start_size = 0  # its length, including bytes not kept

    def feed(self, chunk: bytes) -> None:
        """Add the next bytes."""
        first, *lines = chunk.split(b"\n")
        self._extend(first)
        if not lines:
            return
        self._close_line(newline=1)
        self._extend(lines.pop())
        if len(chunk) > LONGEST_LINE:
            self.ready.extend((line[: LONGEST_LINE + 1], len(line) + 1) for line in lines)
        else:
            self.ready.extend([(line, len(line) + 1) for line in lines])

    def finish(self) -> bool:
        """Complete a last line without newline; return whether there was one."""
        if self._start_size:
            self._close_line(newline=0)
            return True
        return False

    def clear(self) -> None:
        """Discard everything."""
        self.ready.clear()
        self._start.clear()
        self._start_size = 0

    def _extend(self, piece: bytes) -> None:
        """Extend the incomplete line, up to the limit."""
        self._start += piece[: LONGEST_LINE + 1 - len(self._start)]
        self._start_size += len(piece)

    def _close_line(self, newline: int) -> None:
        """Complete the current line."""
        self.ready.append((bytes(self._start), self._start_size + newline))
        self._start.clear()
        self._start_size = 0


class LineSource:
    """A source whose records are lines; subclasses read bytes in `_fill`."""

    def __init__(self) -> None:
        self.notices: list[str] = []
        self._lines = Lines()
        self._line = 0  # lines returned so far
        self._offset = 0  # start of the next line in bytes
        self._last = (b"", 0)  # the last line returned, and its size
        self._ended = False

    def _fill(self, wait: float) -> bool:
        """Read bytes, or the end; return False if neither arrived within `wait` seconds."""
        raise NotImplementedError

    def read(self, most: int, wait: float) -> list[Record] | None:
        """Return at most `most` lines: [] if none arrived within `wait` seconds, None after the last."""
        ready = self._lines.ready
        deadline = time.monotonic() + wait
        late = False
        while not ready:
            if self._ended:
                return None
            if late or not self._fill(max(0.0, deadline - time.monotonic())):
                return []
            late = time.monotonic() >= deadline
        while len(ready) < most and not self._ended and self._fill(0.0):
            pass  # add all available lines to the batch
        return [self._next_line() for _ in range(min(most, len(ready)))]

    def _next_line(self) -> Record:
        """Return the next line and advance."""
        self._last = line, size = self._lines.ready.popleft()
        self._line += 1
        self._offset += size
        return Record(str(self._line), line)


# ---- positions in files ----------------------------------------------------------------------------------------------

_count = schema.whole()


def check_position(position: Position) -> None:
    """Raise ValueError if a position, which may come from an untrusted store, is invalid."""
    _POSITION(position, "position")


_PLACE: dict[str, schema.Rule] = {
    "line": _count,
    "offset": _count,
    "last": _count,
    "mark": schema.either(schema.text, schema.number),
    "device": file_number,
    "inode": file_number,
    "born": file_identity.born,
    "changed": schema.either(schema.nothing, schema.whole(-(2**63))),  # may be before 1970
    "head": schema.either(schema.nothing, schema.listed(_count, schema.text)),
    "copied": schema.either(schema.nothing, schema.listed(file_number, file_number)),
    "at": schema.path,
}
# A pipe has only a line, and older releases saved less; `before` is not nested further.
_BEFORE = schema.either(
    schema.nothing, schema.record({**_PLACE, "before": schema.nothing}, optional=[*_PLACE, "before"])
)
_POSITION = schema.record({**_PLACE, "before": _BEFORE}, optional=[*_PLACE, "before"])


def mark(start: bytes, line: bytes, size: int) -> dict[str, int | str]:
    """Return the digest of the part of a file that was read: its first bytes and the last line, of `size` bytes."""
    # without the last byte, which may or may not be a newline
    seen = start[:DIGESTED] + line[: min(max(size - 1, 0), DIGESTED)]
    return {"last": size, "mark": digest(seen)}


def has_mark(file: int, position: Position) -> bool:
    """Return whether an open file is the file of a position, or a copy of it."""
    offset = position["offset"]
    if os.fstat(file).st_size < offset:
        return False
    return mark(start_of(file, offset), *last_line(file, position))["mark"] == str(position["mark"])


def start_of(file: int, offset: int) -> bytes:
    """Return the first bytes of an open file that the digest covers, up to an offset."""
    return read_at(file, min(offset, DIGESTED), 0)


def last_line(file: int, position: Position) -> tuple[bytes, int]:
    """Return the line that ends at a position, as far as the digest covers it, and its size."""
    last = min(position["last"], position["offset"])
    return read_at(file, min(last, DIGESTED), position["offset"] - last), last
