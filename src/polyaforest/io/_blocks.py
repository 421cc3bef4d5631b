"""Bytes from files, gzip and pipes, and how they are cut into blocks that end where a record ends."""

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

from ._errors import BadInput

__all__ = ["BLOCK_BYTES", "Opened", "after_last_line", "blocks", "one_ahead", "open_bytes"]

_T = TypeVar("_T")

BLOCK_BYTES = 1 << 23
LONGEST_LINE = 1 << 24
_FIRST_BYTES = 1 << 16  # enough to tell a header, without reading far into files that are only looked at
_UTF8_MARK = b"\xef\xbb\xbf"
_GZIP = b"\x1f\x8b"
_REFUSED = {
    b"\xff\xfe": "is UTF-16 text. Convert it first: iconv -f UTF-16 -t UTF-8",
    b"\xfe\xff": "is UTF-16 text. Convert it first: iconv -f UTF-16 -t UTF-8",
    b"PK\x03\x04": "is a zip archive or an Excel workbook. Unpack it, or save the sheet as CSV.",
    b"BZh": "is compressed with bzip2, which is not read here. Unpack it first: bunzip2 -c FILE | polyaforest ... -",
    b"\xfd7zXZ": "is compressed with xz, which is not read here. Unpack it first: xz -dc FILE | polyaforest ... -",
    b"\x28\xb5\x2f\xfd": "is compressed with zstd, which is not read here. "
    "Unpack it first: zstd -dc FILE | polyaforest ... -",
}


class _Source(Protocol):
    """Where bytes come from: a file, or what unpacks one."""

    def read(self, n_bytes: int, /) -> bytes:
        """The next bytes."""

    def readinto(self, room: memoryview, /) -> int:
        """The next bytes, into some memory."""


class _Stream:
    """A source of bytes that can be looked at before they are taken."""

    def __init__(self, source: _Source) -> None:
        self._source = source
        self._held = b""

    def peek(self, n_bytes: int) -> bytes:
        """The next bytes, which stay to be read; fewer only at the end."""
        while len(self._held) < n_bytes and (more := self._source.read(n_bytes - len(self._held))):
            self._held += more
        return self._held[:n_bytes]

    def read(self, n_bytes: int) -> bytes:
        """The next bytes; fewer only at the end."""
        held, self._held = self._held[:n_bytes], self._held[n_bytes:]
        return held + self._source.read(n_bytes - len(held)) if len(held) < n_bytes else held

    def readinto(self, room: memoryview) -> int:
        """Fill some memory with the next bytes and say how many these are; fewer only at the end."""
        held = self.read(min(len(self._held), len(room)))
        room[: len(held)] = held
        return len(held) + self._source.readinto(room[len(held) :])


class Opened:
    """An input open for reading, unpacked where it was gzipped, without the mark of UTF-8.

    Attributes
    ----------
    name : str
        For messages: the path, or "standard input".
    is_file : bool
        Whether it lies on disk, and is no pipe.
    path : str or None
        Where the very same bytes can be read again.
    """

    def __init__(self, file: BinaryIO, path: str | None = None) -> None:
        self.name = path or "standard input"
        self.is_file = _lies_on_disk(file)
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
        if start.startswith(_UTF8_MARK):
            self.read(len(_UTF8_MARK))

    def peek(self, n_bytes: int) -> bytes:
        """The next bytes, which stay to be read; fewer only at the end."""
        with _named(self.name):
            return self._stream.peek(n_bytes)

    def read(self, n_bytes: int) -> bytes:
        """The next bytes; fewer only at the end."""
        with _named(self.name):
            return self._stream.read(n_bytes)

    def readinto(self, room: memoryview) -> int:
        """Fill some memory with the next bytes and say how many these are; fewer only at the end."""
        with _named(self.name):
            return self._stream.readinto(room)

    def close(self) -> None:
        """Close the file; standard input stays open, being not ours."""
        if self._close:
            self._close()


def open_bytes(path: str) -> Opened:
    """Open a file, or standard input for "-"."""
    if path == "-":
        return Opened(_standard_input())
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed by whoever opened the table
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist. Check the path.") from None
    except IsADirectoryError:
        raise BadInput(f"{path} is a directory. Name the files in it, such as {path.rstrip('/')}/*.csv") from None
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} cannot be opened: {getattr(error, 'strerror', None) or error}.") from None
    try:
        return Opened(file, path)
    except BaseException:
        file.close()
        raise


def _standard_input() -> BinaryIO:
    """Standard input as bytes."""
    if sys.stdin is None:  # as it is where the shell has closed it
        raise BadInput("Standard input is closed. Name a file, or pipe something in.")
    return sys.stdin.buffer


def _lies_on_disk(file: BinaryIO) -> bool:
    """Whether a file is a regular one, and no pipe, terminal or memory."""
    try:
        return stat.S_ISREG(os.fstat(file.fileno()).st_mode)
    except (OSError, ValueError):
        return False


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Turn what goes wrong while bytes are read into one error that names the input."""
    try:
        yield
    except EOFError:
        raise BadInput(f"{name} is cut short: its gzip data ends before its end. Get a whole copy of it.") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise BadInput(f"{name} is damaged gzip data ({error}). Get a whole copy of it.") from None
    except OSError as error:
        raise BadInput(f"{name} cannot be read: {error.strerror or error}.") from None


def blocks(opened: Opened, cut: Callable[[bytearray, int], int], size: int = BLOCK_BYTES) -> Iterator[bytes]:
    """The bytes of an input, in blocks of about `size` that `cut` ends.

    It is given bytes and how many of them count, and says how many of these are whole records.
    """
    buffer = bytearray(size)  # filled again and again: fresh memory for every block costs as much as reading it
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
            raise BadInput(f"{opened.name} has a line of more than {LONGEST_LINE >> 20} MB: it is no table of rows.")
        want = min(size, 2 * want)
    if n_held:
        yield bytes(buffer[:n_held])


def one_ahead(found: Iterator[_T]) -> Iterator[_T]:
    """The same things, of which the next is being made while the last is worked on."""
    end = object()
    with ThreadPoolExecutor(1, "read-ahead") as maker:
        coming = maker.submit(next, found, end)
        while (thing := coming.result()) is not end:
            coming = maker.submit(next, found, end)
            yield cast(_T, thing)


def after_last_line(buffer: bytearray, n_bytes: int) -> int:
    """How many of so many bytes are whole lines."""
    return buffer.rfind(b"\n", 0, n_bytes) + 1
