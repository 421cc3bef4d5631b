"""Recognise a file that was renamed, replaced or truncated since it was recorded.

A record of a file holds its device, inode, creation time (inodes are reused) and digests of its contents.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable, Mapping
from functools import cache
from hashlib import blake2b
from typing import Any

from polyaforest.util import schema

__all__ = ["DIGESTED", "born", "digest", "file_number", "identity", "is_reused", "read_birth_time"]

DIGESTED = 1024  # bytes at each end of a file that its digest covers

# Rules for saved records; older releases wrote creation times in other types.
file_number = schema.either(schema.nothing, schema.whole(0, 2**64 - 1))  # devices and inodes may use all 64 bits
born = schema.either(schema.nothing, schema.number, schema.text)

_EMPTY_PATH = 0x1000  # query the descriptor itself
_BIRTH = 0x800  # the bit of stx_mask that requests stx_btime, set in the answer if it is known
_SIZE, _BIRTH_AT = 256, 80  # of struct statx, and the offset of stx_btime; the same on every architecture


def identity(found: os.stat_result) -> tuple[int, int]:
    """Return the device and the inode, which stay the same when a file is renamed."""
    return found.st_dev, found.st_ino


def digest(content: bytes) -> str:
    """Return a short digest of some bytes of a file."""
    return blake2b(content, digest_size=8).hexdigest()


def is_reused(birth_time: int | None, recorded: Mapping[str, Any]) -> bool:
    """Return whether a file has the inode of the recorded file, but another creation time."""
    return birth_time is not None and recorded.get("born") not in (None, birth_time)


def read_birth_time(file: int) -> int | None:
    """Return the creation time of an open file in nanoseconds; None if the system does not provide it."""
    known = getattr(os.fstat(file), "st_birthtime", None)
    if known is not None:
        return int(known * 1e9)
    statx, answer = _statx(), ctypes.create_string_buffer(_SIZE)
    if statx is None or statx(file, b"", _EMPTY_PATH, _BIRTH, answer) != 0:
        return None
    (mask,) = struct.unpack_from("=I", answer)
    seconds, nanoseconds = struct.unpack_from("=qI", answer, _BIRTH_AT)
    return int(seconds * 10**9 + nanoseconds) if mask & _BIRTH else None


@cache
def _statx() -> Callable[..., int] | None:
    """Return the Linux system call, which the standard library does not offer yet."""
    return getattr(ctypes.CDLL(None), "statx", None)
