"""Where the lines of an endless stream go, so that what was written after the last commit can be taken back."""

from __future__ import annotations

import errno
import os
import select
from typing import IO, Any, Protocol

from polyaforest._files import without_waiting

__all__ = ["FileLines", "Lines", "PipeLines", "refuse_place"]


class Lines(Protocol):
    """Something that takes lines of text."""

    def write(self, lines: bytes) -> None:
        """Pass lines on, to the last byte."""
        ...

    def mark(self) -> dict[str, Any] | None:
        """How far it has come, once that is safe on disk; None if nothing can be taken back."""
        ...

    def rewind(self, mark: dict[str, Any] | None) -> None:
        """Take back what was written after a mark, if that can be done."""
        ...

    def close(self) -> None:
        """Let go of the file."""
        ...


class PipeLines:
    """Lines for whoever reads standard output: what was read cannot be taken back."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = getattr(file, "raw", file)  # so that what is written is told, and nothing waits in between

    def write(self, lines: bytes) -> None:
        """Pass lines on at once; a slow reader is waited for."""
        if not lines:
            return
        try:
            rest = memoryview(lines)
            while rest:
                n = self._file.write(rest)
                if n is None:  # a pipe that does not block, and is full
                    select.select([], [self._file], [])
                else:
                    rest = rest[n:]
        except OSError as problem:
            problem.filename = "standard output"
            raise

    def mark(self) -> None:
        """There is none."""

    def rewind(self, mark: dict[str, Any] | None) -> None:
        """There is nothing that could be."""

    def close(self) -> None:
        """It belongs to others."""


class FileLines:
    """Lines added to a file, which is made when there is something to write.

    A file that was renamed meanwhile, as log rotation does, is left, and a new one is begun in its place.
    """

    def __init__(self, path: str) -> None:
        self._path = os.path.abspath(path)
        self._file: IO[bytes] | None = None
        refuse_place(self._path)

    def write(self, lines: bytes) -> None:
        """Add lines to the end of the file."""
        if not lines:
            return
        try:
            file, rest = self._open(), memoryview(lines)
            while rest:
                rest = rest[file.write(rest) :]
        except OSError as problem:
            problem.filename = self._path
            raise

    def mark(self) -> dict[str, Any]:
        """Which file it is, and how long."""
        if self._file is not None:
            _sync(self._file)
        found = self._found() if self._file is None else os.fstat(self._file.fileno())
        inode, length = (None, 0) if found is None else (found.st_ino, found.st_size)
        return {"path": self._path, "inode": inode, "length": length}

    def rewind(self, mark: dict[str, Any] | None) -> None:
        """Cut off what was added after the mark; a shorter file, or another one, is left as it is."""
        found = self._found()
        if mark is None or found is None or mark["path"] != self._path or mark["inode"] not in (None, found.st_ino):
            return
        if found.st_size > mark["length"]:
            os.truncate(self._path, mark["length"])

    def close(self) -> None:
        """Close the file, if it was opened."""
        if self._file is not None:
            self._file.close()

    def _open(self) -> IO[bytes]:
        """The file that is at the path now."""
        found = self._found()
        is_gone = found is None or self._file is None or os.fstat(self._file.fileno()).st_ino != found.st_ino
        if self._file is None or is_gone:
            self.close()
            self._file = open(self._path, "ab", buffering=0, opener=without_waiting)  # noqa: SIM115 - open for as long as the stream is
        return self._file

    def _found(self) -> os.stat_result | None:
        try:
            return os.stat(self._path)
        except FileNotFoundError:
            return None


def _sync(file: IO[bytes]) -> None:
    """Have what was written on disk; a device or a pipe has nothing to sync."""
    try:
        os.fsync(file.fileno())
    except OSError as problem:
        if problem.errno != errno.EINVAL:
            raise


def refuse_place(path: str) -> None:
    """Raise if a file could not be made at a path: at once, and not when there is something to write."""
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise FileNotFoundError(errno.ENOENT, "there is no such directory to write to", folder)
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, "it is a directory, not a file to write to", path)
