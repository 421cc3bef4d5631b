"""Read bytes from files, gzip and pipes, in blocks that end at record boundaries."""

from __future__ import annotations

import gzip
import os
import stat
import sys
import weakref
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import BinaryIO, Protocol, TypeVar, cast

from ._conventions import UTF8_BOM
from .errors import BadInput

__all__ = ["BLOCK_BYTES", "Opened", "after_last_line", "blocks", "one_ahead", "open_bytes"]

_T = TypeVar("_T")

BLOCK_BYTES = 1 << 23
LONGEST_LINE = 1 << 24
_FIRST_BYTES = 1 << 16  # enough for a header, without reading far into files that are only inspected
_GZIP = b"\x1f\x8b"
_REFUSED = {
    b"\xff\xfe": "is UTF-16. Convert it first: iconv -f UTF-16 -t UTF-8",
    b"\xfe\xff": "is UTF-16. Convert it first: iconv -f UTF-16 -t UTF-8",
    b"PK\x03\x04": "is a zip archive or an Excel workbook. Unpack it, or save the sheet as CSV.",
    b"BZh": "is compressed with bzip2, which is not supported. Decompress it: bunzip2 -c FILE | polyaforest ... -",
    b"\xfd7zXZ": "is compressed with xz, which is not supported. Decompress it: xz -dc FILE | polyaforest ... -",
    b"\x28\xb5\x2f\xfd": "is compressed with zstd, which is not supported. "
    "Decompress it: zstd -dc FILE | polyaforest ... -",
}


class _Source(Protocol):
    """A file, or a decompressor of one."""

    def read(self, n_bytes: int, /) -> bytes:
        """Return the next bytes."""

    def readinto(self, buffer: memoryview, /) -> int:
        """Read the next bytes into a buffer."""


class _Stream:
    """A source of bytes that supports peeking."""

    def __init__(self, source: _Source) -> None:
        self._source = source
        self._held = b""

    def peek(self, n_bytes: int) -> bytes:
        """Return the next bytes without consuming them; fewer only at the end."""
        while len(self._held) < n_bytes and (more := self._source.read(n_bytes - len(self._held))):
            self._held += more
        return self._held[:n_bytes]

    def read(self, n_bytes: int) -> bytes:
        """Return the next bytes; fewer only at the end."""
        held, self._held = self._held[:n_bytes], self._held[n_bytes:]
        return held + self._source.read(n_bytes - len(held)) if len(held) < n_bytes else held

    def readinto(self, buffer: memoryview) -> int:
        """Fill a buffer with the next bytes and return their number; fewer only at the end."""
        held = self.read(min(len(self._held), len(buffer)))
        buffer[: len(held)] = held
        return len(held) + self._source.readinto(buffer[len(held) :])


class Opened:
    """An input open for reading, decompressed if gzipped, without a UTF-8 byte order mark.

    Attributes
    ----------
    name : str
        For messages: the path, or "standard input".
    is_file : bool
        Whether it is a regular file, not a pipe.
    path : str or None
        Where the same bytes can be read again.
    """

    def __init__(self, file: BinaryIO, path: str | None = None) -> None:
        self.name = path or "standard input"
        self.is_file = _is_regular(file)
        self._close = weakref.finalize(self, file.close) if file is not getattr(sys.stdin, "buffer", None) else None
        self._stream = _Stream(cast(_Source, file))
        is_packed = self.peek(2) == _GZIP
        self.path = path if self.is_file and not is_packed else None
        if is_packed:
            self._stream = _Stream(gzip.GzipFile(fileobj=self._stream))  # type: ignore[call-overload]
        start = self.peek(8)
        for mark, words in _REFUSED.items():
            if start.startswith(mark):
                raise BadInput(f"{self.name} {words}")
        if start.startswith(UTF8_BOM):
            self.read(len(UTF8_BOM))

    def peek(self, n_bytes: int) -> bytes:
        """Return the next bytes without consuming them; fewer only at the end."""
        with _named(self.name):
            return self._stream.peek(n_bytes)

    def read(self, n_bytes: int) -> bytes:
        """Return the next bytes; fewer only at the end."""
        with _named(self.name):
            return self._stream.read(n_bytes)

    def readinto(self, buffer: memoryview) -> int:
        """Fill a buffer with the next bytes and return their number; fewer only at the end."""
        with _named(self.name):
            return self._stream.readinto(buffer)

    def close(self) -> None:
        """Close the file; standard input stays open."""
        if self._close:
            self._close()


def open_bytes(path: str) -> Opened:
    """Open a file, or standard input for "-"."""
    if path == "-":
        if sys.stdin is None:  # closed by the shell
            raise BadInput("Standard input is closed. Pass a file, or pipe data in.")
        return Opened(sys.stdin.buffer)
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed with the table
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist. Check the path.") from None
    except IsADirectoryError:
        raise BadInput(f"{path} is a directory. Pass the files in it, such as {path.rstrip('/')}/*.csv") from None
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} cannot be opened: {getattr(error, 'strerror', None) or error}.") from None
    try:
        return Opened(file, path)
    except BaseException:
        file.close()
        raise


def _is_regular(file: BinaryIO) -> bool:
    """Return whether a file is a regular one, not a pipe, terminal or buffer in memory."""
    try:
        return stat.S_ISREG(os.fstat(file.fileno()).st_mode)
    except (OSError, ValueError):
        return False


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Turn errors while reading into `BadInput` that names the input."""
    try:
        yield
    except EOFError:
        raise BadInput(f"{name} is truncated: its gzip data end early. Get a complete copy.") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise BadInput(f"{name} has damaged gzip data ({error}). Get a complete copy.") from None
    except OSError as error:
        raise BadInput(f"{name} cannot be read: {error.strerror or error}.") from None


def blocks(opened: Opened, cut: Callable[[bytearray, int], int], size: int = BLOCK_BYTES) -> Iterator[bytes]:
    """Yield the bytes of an input in blocks of about `size` that end at record boundaries.

    `cut` takes a buffer and its used length, and returns the length of the complete records in it.
    """
    buffer = bytearray(size)  # reused, since allocating every block costs as much as reading it
    n_held = 0
    want = min(size, _FIRST_BYTES)
    while True:
        buffer.extend(bytes(max(n_held + want - len(buffer), 0)))
        n_read = opened.readinto(memoryview(buffer)[n_held : n_held + want])
        if not n_read:
            break
        n_held += n_read
        end = cut(buffer, n_held)
        if end:
            yield bytes(memoryview(buffer)[:end])
            n_held -= end
            buffer[:n_held] = buffer[end : end + n_held]
        elif n_held > LONGEST_LINE:
            raise BadInput(f"{opened.name} has a line of more than {LONGEST_LINE >> 20} MB: it is not a table.")
        want = min(size, 2 * want)
    if n_held:
        yield bytes(buffer[:n_held])


def one_ahead(items: Iterator[_T]) -> Iterator[_T]:
    """Yield the same items, computing the next one in a thread while the last is processed."""
    end = object()
    with ThreadPoolExecutor(1, "read-ahead") as worker:
        coming = worker.submit(next, items, end)
        while (item := coming.result()) is not end:
            coming = worker.submit(next, items, end)
            yield cast(_T, item)


def after_last_line(buffer: bytearray, n_bytes: int) -> int:
    """Return the length of the complete lines in the first `n_bytes`."""
    return buffer.rfind(b"\n", 0, n_bytes) + 1
