"""How a file is known again: by its first bytes and by the line that was read last, wherever it has been moved to."""

from __future__ import annotations

import os
from hashlib import blake2b

from polyaforest.core import schema
from polyaforest.io.sources._source import Position

__all__ = ["MARKED", "check_position", "digest", "has_mark", "last_line", "mark", "start_of"]

MARKED = 1024  # so many bytes at most of each

_count = schema.whole()
_number_of_file = schema.either(schema.nothing, schema.whole(0, 2**64 - 1))  # inodes may use all bits


def check_position(position: Position) -> None:
    """Raise ValueError unless a position can be one in a file: it may have been noted by anybody."""
    _POSITION(position, "position")


_PLACE: dict[str, schema.Rule] = {
    "line": _count,
    "offset": _count,
    "last": _count,
    "mark": schema.either(schema.text, schema.number),
    "device": _number_of_file,
    "inode": _number_of_file,
    "born": schema.either(schema.nothing, schema.number, schema.text),
    "changed": schema.either(schema.nothing, schema.whole(-(2**63))),  # a file may be from before 1970
    "head": schema.either(schema.nothing, schema.listed(_count, schema.text)),
    "copied": schema.either(schema.nothing, schema.listed(_number_of_file, _number_of_file)),
    "at": schema.path,
}
# A pipe has a line alone, and older releases noted less; the file before had none before it.
_BEFORE = schema.either(
    schema.nothing, schema.record({**_PLACE, "before": schema.nothing}, optional=[*_PLACE, "before"])
)
_POSITION = schema.record({**_PLACE, "before": _BEFORE}, optional=[*_PLACE, "before"])


def mark(start: bytes, line: bytes, size: int) -> dict[str, int | str]:
    """What tells a file read so far: `start` are its first bytes, `line` the last that was read, of `size` bytes."""
    # the last byte is left out, since it may or may not be a newline
    seen = start[:MARKED] + line[: min(max(size - 1, 0), MARKED)]
    return {"last": size, "mark": digest(seen)}


def digest(seen: bytes) -> str:
    """Few characters that tell bytes from others."""
    return blake2b(seen, digest_size=8).hexdigest()


def has_mark(file: int, position: Position) -> bool:
    """Whether an open file is the one that was read up to a position, or a copy of it."""
    offset = position["offset"]
    if os.fstat(file).st_size < offset:
        return False
    return mark(start_of(file, offset), *last_line(file, position))["mark"] == str(position["mark"])


def start_of(file: int, offset: int) -> bytes:
    """The first bytes of an open file, as many as count and as lie before an offset."""
    return os.pread(file, min(offset, MARKED), 0)


def last_line(file: int, position: Position) -> tuple[bytes, int]:
    """The line that ends at a position, as much of it as counts, and its size."""
    last = min(position["last"], position["offset"])
    return os.pread(file, min(last, MARKED), position["offset"] - last), last
