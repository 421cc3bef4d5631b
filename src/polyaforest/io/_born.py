"""When a file was made: what tells it from a later one that was given the same inode."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable
from functools import cache

__all__ = ["birth_time"]

_EMPTY_PATH = 0x1000  # ask about the descriptor itself
_BIRTH = 0x800  # the bit of stx_mask that asks for stx_btime, and says that it is known
_SIZE, _BIRTH_AT = 256, 80  # of struct statx, and where stx_btime is in it; the same on every architecture


def birth_time(file: int) -> int | None:
    """When an open file was made, in nanoseconds; None where the system does not say."""
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
    """The system call of Linux that Python does not offer yet."""
    return getattr(ctypes.CDLL(None), "statx", None)
