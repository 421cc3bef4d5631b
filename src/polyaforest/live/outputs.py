"""Where the lines of an endless stream go, so that what was written after the last commit can be taken back."""

from __future__ import annotations

import os
from typing import IO, Any, Protocol

__all__ = ["FileLines", "Lines", "PipeLines"]


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
        self._file = file

    def write(self, lines: bytes) -> None:
        """Pass lines on at once; a slow reader is waited for."""
        if lines:
            self._file.write(lines)
            self._file.flush()

    def mark(self) -> None:
        """There is none."""

    def rewind(self, mark: dict[str, Any] | None) -> None:
        """There is nothing that could be."""

    def close(self) -> None:
        """It belongs to others."""


class FileLines:
    """Lines added to a file, which is made when there is something to write."""

    def __init__(self, path: str) -> None:
        self._path = os.path.abspath(path)
        self._file: IO[bytes] | None = None
        folder = os.path.dirname(self._path)
        if not os.path.isdir(folder):
            raise FileNotFoundError(2, "there is no such directory to write to", folder)
        if os.path.isdir(self._path):
            raise IsADirectoryError(21, "it is a directory, not a file to write to", self._path)

    def write(self, lines: bytes) -> None:
        """Add lines to the end of the file."""
        if not lines:
            return
        if self._file is None:
            self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115 - open for as long as the stream is
        rest = memoryview(lines)
        while rest:
            rest = rest[self._file.write(rest) :]

    def mark(self) -> dict[str, Any]:
        """The file, and how long it is."""
        if self._file is not None:
            os.fsync(self._file.fileno())
        return {"path": self._path, "length": self._length()}

    def rewind(self, mark: dict[str, Any] | None) -> None:
        """Cut off what was added after the mark; a shorter file, or another one, is left as it is."""
        if mark is not None and mark["path"] == self._path and self._length() > mark["length"]:
            os.truncate(self._path, mark["length"])

    def close(self) -> None:
        """Close the file, if it was opened."""
        if self._file is not None:
            self._file.close()

    def _length(self) -> int:
        try:
            return os.path.getsize(self._path)
        except FileNotFoundError:
            return 0
