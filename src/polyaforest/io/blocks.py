"""Read bytes from files, compressed or not, and pipes, in blocks that end at record boundaries."""

from __future__ import annotations

import gzip
import os
import stat
import sys
import tempfile
import weakref
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from typing import IO, Any, BinaryIO, NamedTuple, Protocol, TypeVar, cast

from ._conventions import UTF8_BOM
from .errors import BadInput

__all__ = ["BLOCK_BYTES", "OpenedInput", "after_last_line", "blocks", "copied", "one_ahead", "open_bytes"]

_T = TypeVar("_T")

BLOCK_BYTES = 1 << 23
LONGEST_LINE = 1 << 24
_FIRST_BYTES = 1 << 16  # enough for a header, without reading far into files that are only inspected
_UTF16 = "is UTF-16. Convert it first: iconv -f UTF-16 -t UTF-8"
_REFUSED = {b"\xff\xfe": _UTF16, b"\xfe\xff": _UTF16}


class _ByteSource(Protocol):
    """A file, or a decompressor of one."""

    def read(self, n_bytes: int, /) -> bytes:
        """Return the next bytes."""

    def readinto(self, buffer: memoryview, /) -> int:
        """Read the next bytes into a buffer."""


class _PeekableBytes:
    """A source of bytes that supports peeking."""

    def __init__(self, source: _ByteSource) -> None:
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


class _Compression(NamedTuple):
    """A compressed format: its name, a function that decompresses a stream, and its errors for damaged data."""

    name: str
    decompress: Callable[[Any], Any]
    errors: tuple[type[Exception], ...] = ()


def _zstd(name: str) -> _Compression:
    """Return zstd; raise BadInput if no library for it is installed."""
    for module in ("compression.zstd", "backports.zstd"):  # the former from Python 3.14 on
        try:
            zstd = import_module(module)
        except ImportError:
            continue
        return _Compression("zstd", zstd.ZstdFile, (zstd.ZstdError,))
    raise BadInput(
        f"{name} is compressed with zstd. Install the zstd extra: pip install 'polyaforest[zstd]', "
        "or decompress the file: zstd -dc FILE | polyaforest ... -"
    )


def _compression(start: bytes, name: str) -> _Compression | None:
    """Return the compression of a file with these first bytes."""
    if start.startswith(b"\x1f\x8b"):
        return _Compression("gzip", lambda file: gzip.GzipFile(fileobj=file), (gzip.BadGzipFile, zlib.error))
    if start.startswith(b"BZh"):
        return _Compression("bzip2", import_module("bz2").BZ2File)  # it raises an OSError for damaged data
    if start.startswith(b"\xfd7zXZ"):
        lzma = import_module("lzma")  # not every Python is built with it
        return _Compression("xz", lzma.LZMAFile, (lzma.LZMAError,))
    return _zstd(name) if start.startswith(b"\x28\xb5\x2f\xfd") else None


class OpenedInput:
    """An input open for reading, decompressed, without a UTF-8 byte order mark.

    Attributes
    ----------
    name : str
        For messages: the path, or "standard input".
    is_file : bool
        Whether it is a regular file, not a pipe.
    path : str or None
        Where the same bytes can be read again; None for pipes and compressed files.
    """

    def __init__(self, file: BinaryIO, path: str | None = None) -> None:
        self.name = path or "standard input"
        self.is_file = _is_regular(file)
        self._close = weakref.finalize(self, file.close) if file is not getattr(sys.stdin, "buffer", None) else None
        self._stream = _PeekableBytes(cast(_ByteSource, file))
        self._compression: _Compression | None = None
        compression = _compression(self.peek(8), self.name)
        self.path = path if self.is_file and not compression else None
        if compression:
            self._stream, self._compression = _PeekableBytes(compression.decompress(self._stream)), compression
        start = self.peek(8)
        for mark, words in _REFUSED.items():
            if start.startswith(mark):
                raise BadInput(f"{self.name} {words}")
        if start.startswith(UTF8_BOM):
            self.read(len(UTF8_BOM))

    def peek(self, n_bytes: int) -> bytes:
        """Return the next bytes without consuming them; fewer only at the end."""
        with self._named():
            return self._stream.peek(n_bytes)

    def read(self, n_bytes: int) -> bytes:
        """Return the next bytes; fewer only at the end."""
        with self._named():
            return self._stream.read(n_bytes)

    def readinto(self, buffer: memoryview) -> int:
        """Fill a buffer with the next bytes and return their number; fewer only at the end."""
        with self._named():
            return self._stream.readinto(buffer)

    def close(self) -> None:
        """Close the file; standard input stays open."""
        if self._close:
            self._close()

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Raise errors while reading as `BadInput` that names the input."""
        compression = self._compression or _Compression("", lambda file: file)
        try:
            yield
        except EOFError:
            raise BadInput(
                f"{self.name} is truncated: its {compression.name} data end early. Get a complete copy."
            ) from None
        except compression.errors as error:
            raise BadInput(f"{self.name} has damaged {compression.name} data ({error}). Get a complete copy.") from None
        except OSError as error:
            raise BadInput(f"{self.name} cannot be read: {error.strerror or error}.") from None


def copied(opened: OpenedInput, suffix: str) -> IO[bytes]:
    """Copy an input that does not support random access, such as a pipe, to a temporary file."""
    copy = tempfile.NamedTemporaryFile(suffix=suffix)  # noqa: SIM115 - closed by the caller
    try:
        while block := opened.read(1 << 20):
            copy.write(block)
        copy.flush()
    except BaseException:
        copy.close()
        raise
    return copy


def open_bytes(path: str) -> OpenedInput:
    """Open a file, or standard input for "-"."""
    if path == "-":
        if sys.stdin is None:  # closed by the shell
            raise BadInput("Standard input is closed. Pass a file, or pipe data in.")
        return OpenedInput(sys.stdin.buffer)
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed with the table
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist. Check the path.") from None
    except IsADirectoryError:
        raise BadInput(f"{path} is a directory. Pass the files in it.") from None
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} cannot be opened: {getattr(error, 'strerror', None) or error}.") from None
    try:
        return OpenedInput(file, path)
    except BaseException:
        file.close()
        raise


def _is_regular(file: BinaryIO) -> bool:
    """Return whether a file is a regular file, not a pipe, terminal or buffer in memory."""
    try:
        return stat.S_ISREG(os.fstat(file.fileno()).st_mode)
    except (OSError, ValueError):
        return False


def blocks(opened: OpenedInput, cut: Callable[[bytearray, int], int], size: int = BLOCK_BYTES) -> Iterator[bytes]:
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
            raise BadInput(f"{opened.name} is not a table: it has a line of more than {LONGEST_LINE >> 20} MB.")
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
