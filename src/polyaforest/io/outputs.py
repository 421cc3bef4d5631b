"""Outputs of an endless stream, which can be rewound to the last commit."""

from __future__ import annotations

import errno
import os
import select
import stat
from collections.abc import Iterator
from typing import IO, Any, TypeAlias

from polyaforest.io.file_identity import DIGESTED, digest, is_reused, read_birth_time
from polyaforest.storage.modelfile import check_location, without_waiting
from polyaforest.util.system import read_at

__all__ = ["FileLines", "Lines", "PipeLines"]


class PipeLines:
    """Write lines to standard output, which cannot be rewound; otherwise like `FileLines`."""

    has_moved = False

    def __init__(self, file: IO[bytes]) -> None:
        self.notices: list[str] = []
        self._file = getattr(file, "raw", file)  # unbuffered, and it returns how much was written

    def write(self, lines: bytes) -> None:
        """Write lines unbuffered, waiting for a slow reader."""
        if not lines:
            return
        try:
            rest = memoryview(lines)
            while rest:
                n = self._file.write(rest)
                if n is None:  # a non-blocking pipe that is full
                    select.select([], [self._file], [])
                else:
                    rest = rest[n:]
        except OSError as problem:
            problem.filename = "standard output"
            raise

    def mark(self) -> None:
        """Return None."""

    def rewind(self, mark: dict[str, Any] | None) -> None:
        """Do nothing: a pipe cannot be rewound."""

    def close(self) -> None:
        """Do nothing: standard output stays open."""


class FileLines:
    """Append lines to a file.

    A mark opens or creates the file, and all lines until the next mark go to it, even if it is renamed. So each line is
    before or after a mark, in a known file. When the file was renamed, as by log rotation, or deleted, `has_moved` is
    True, and the next mark opens a new file in its place. `notices` collects messages for the user; the caller removes
    those it has shown.
    """

    def __init__(self, path: str) -> None:
        self._path = os.path.abspath(path)
        self._file: IO[bytes] | None = None
        self._length = 0  # of the file, unless it was truncated
        self._is_created = False  # whether it did not exist before
        self.notices: list[str] = []
        check_location(self._path)

    def write(self, lines: bytes) -> None:
        """Append lines to the file."""
        if not lines:
            return
        try:
            file, rest = self._file or self._open(), memoryview(lines)
            while rest:
                n = file.write(rest)
                self._length += n
                rest = rest[n:]
        except OSError as problem:
            problem.filename = self._path
            raise

    @property
    def has_moved(self) -> bool:
        """Whether the file was renamed, deleted, replaced or truncated since the last mark."""
        if self._file is None:
            return False
        held, found = os.fstat(self._file.fileno()), self._found()
        if not stat.S_ISREG(held.st_mode):
            return False
        return found is None or not os.path.samestat(held, found) or held.st_size < self._length

    def mark(self) -> dict[str, Any] | None:
        """Sync the file, and return its identity and length; None for a device or a pipe."""
        found = self._found()
        if found is not None and not stat.S_ISREG(found.st_mode):
            return None
        if self.has_moved:
            self._close_moved()
        file = self._file or self._open()
        _sync(file)
        held = os.fstat(file.fileno())
        self._length = held.st_size
        return {
            "path": self._path,
            "device": held.st_dev,
            "inode": held.st_ino,
            "born": read_birth_time(file.fileno()),
            "length": held.st_size,
            "ends": _ends(file, held.st_size),
        }

    def rewind(self, mark: dict[str, Any] | None) -> None:
        """Truncate the file to the mark, even if it was renamed.

        A forged mark must not truncate another file: only a file at this path, or beside it, is touched.
        """
        if mark is None:
            return
        if mark["path"] != self._path:
            words = f"output now goes to '{self._path}'; lines since the last save may also be in '{mark['path']}'"
            self.notices.append(words)
            return
        self._close()
        name = next((place for place in _places(mark) if _truncate(place, mark)), None)
        if name is None:
            self._report_missing(mark)
        elif name != mark["path"]:
            self.notices.append(f"'{mark['path']}' is now '{name}': lines since the last save were removed there")

    def close(self) -> None:
        """Close the file; remove it if it is new and empty."""
        if self._file is not None and self._is_created and not self.has_moved and not os.path.getsize(self._path):
            os.remove(os.path.realpath(self._path))
        self._close()

    def _open(self) -> IO[bytes]:
        """Open the file at the path, or create it."""
        found = self._found()
        is_file = found is None or stat.S_ISREG(found.st_mode)
        mode = "a+b" if is_file else "ab"  # a pipe opened also for reading would never end
        self._file = open(self._path, mode, buffering=0, opener=without_waiting)  # noqa: SIM115 - for the whole stream
        self._length, self._is_created = os.fstat(self._file.fileno()).st_size, found is None
        return self._file

    def _close_moved(self) -> None:
        """Close a file that was moved or truncated, and report lost lines."""
        assert self._file is not None
        held = os.fstat(self._file.fileno())
        if not held.st_nlink:
            self.notices.append(f"'{self._path}' was deleted with its lines: starting a new file")
        elif held.st_size < self._length:
            self.notices.append(f"'{self._path}' was truncated by another process: appending to the rest")
        _sync(self._file)
        self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None

    def _report_missing(self, mark: dict[str, Any]) -> None:
        """Report that the marked file is gone, if lines may be lost or duplicated."""
        found = self._found()
        if found is not None and found.st_size:
            words = (
                "is not the file of the last save, or was changed: appending to it. Lines since then may be duplicated"
            )
            self.notices.append(f"'{self._path}' {words}")
        elif mark["length"]:
            words = "is gone with its lines: a new file starts with the first line after the last save"
            self.notices.append(f"'{mark['path']}' {words}")

    def _found(self) -> os.stat_result | None:
        try:
            return os.stat(self._path)
        except FileNotFoundError:
            return None


Lines: TypeAlias = FileLines | PipeLines


def _places(mark: dict[str, Any]) -> Iterator[str]:
    """Yield possible paths of the marked file: its own, then others beside it."""
    yield mark["path"]
    folder, name = os.path.split(mark["path"])
    if "device" in mark and "ends" in mark and os.path.isdir(folder):  # older marks do not identify the file
        with os.scandir(folder) as entries:
            rotated = [entry for entry in entries if entry.name.startswith(name) and entry.inode() == mark["inode"]]
        yield from sorted(entry.path for entry in rotated)


def _truncate(path: str, mark: dict[str, Any]) -> bool:
    """Truncate a file to the length of a mark if it is the marked file; return whether it is."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return False
        with open(path, "r+b", buffering=0) as file:
            is_same = _is_marked(file, mark)
            if is_same:
                file.truncate(mark["length"])
            return is_same
    except FileNotFoundError:
        return False


def _is_marked(file: IO[bytes], mark: dict[str, Any]) -> bool:
    """Return whether an open file is the marked one and still has all its lines. Older marks hold fewer facts."""
    found, born = os.fstat(file.fileno()), read_birth_time(file.fileno())
    if found.st_ino != mark["inode"] or found.st_size < mark["length"]:
        return False
    is_same_disk = mark.get("device", found.st_dev) == found.st_dev
    if not mark["length"]:  # no content to recognise it by
        return is_same_disk and born is not None and mark.get("born") == born
    return is_same_disk and not is_reused(born, mark) and mark.get("ends") in (None, _ends(file, mark["length"]))


def _ends(file: IO[bytes], length: int) -> str:
    """Return a digest of the first and last bytes of a file, up to a length."""
    n = min(length, DIGESTED)
    parts = read_at(file.fileno(), n, 0), read_at(file.fileno(), n, length - n)
    return digest(b"".join(parts))


def _sync(file: IO[bytes]) -> None:
    """Sync a file to disk; ignore devices and pipes."""
    try:
        os.fsync(file.fileno())
    except OSError as problem:
        if problem.errno != errno.EINVAL:
            raise
