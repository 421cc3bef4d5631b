"""Where the lines of an endless stream go, so that what was written after the last commit can be taken back."""

from __future__ import annotations

import errno
import os
import select
import stat
from collections.abc import Iterator
from hashlib import blake2b
from typing import IO, Any, Protocol

from polyaforest.io._born import birth_time
from polyaforest.persistence.modelfile import without_waiting

__all__ = ["FileLines", "Lines", "PipeLines", "refuse_place"]

_MARKED = 1024  # so many bytes of each end of a file tell it from others


class Lines(Protocol):
    """Something that takes lines of text.

    Attributes
    ----------
    notices : list of str
        What a person should know, such as a file that was deleted. Whoever shows them takes them out.
    """

    notices: list[str]

    @property
    def has_moved(self) -> bool:
        """Whether lines should go elsewhere from now on, which the next mark sees to."""
        ...

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

    has_moved = False

    def __init__(self, file: IO[bytes]) -> None:
        self.notices: list[str] = []
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
    """Lines added to a file.

    The file is opened, or made, at a mark, and all lines until the next mark go to it, whatever becomes of its name. So
    a mark tells of every line whether it is before or after, and in which file. When the file was renamed, as log
    rotation does, or deleted, `has_moved` says so, and the next mark is of a new file in its place.
    """

    def __init__(self, path: str) -> None:
        self._path = os.path.abspath(path)
        self._file: IO[bytes] | None = None
        self._length = 0  # of the file, if nobody has cut it
        self._is_made = False  # by us, and not found
        self.notices: list[str] = []
        refuse_place(self._path)

    def write(self, lines: bytes) -> None:
        """Add lines to the end of the file."""
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
        """Whether the file was renamed, deleted, replaced or cut since the last mark."""
        if self._file is None or not _is_regular(self._file):
            return False
        held, found = os.fstat(self._file.fileno()), self._found()
        return found is None or not os.path.samestat(held, found) or held.st_size < self._length

    def mark(self) -> dict[str, Any] | None:
        """Which file it is and how long, once that is on disk; None for a device or a pipe."""
        found = self._found()
        if found is not None and not stat.S_ISREG(found.st_mode):
            return None
        if self.has_moved:
            self._leave()
        file = self._file or self._open()
        _sync(file)
        held = os.fstat(file.fileno())
        self._length = held.st_size
        return {
            "path": self._path,
            "device": held.st_dev,
            "inode": held.st_ino,
            "born": birth_time(file.fileno()),
            "length": held.st_size,
            "ends": _ends(file, held.st_size),
        }

    def rewind(self, mark: dict[str, Any] | None) -> None:
        """Cut off what was added after the mark, under whatever name the file has now; no other file is touched.

        The mark may be a stranger's, who would like another file to be cut: only one of this path, or beside it, is.
        """
        if mark is None:
            return
        if mark["path"] != self._path:
            words = f"lines go to '{self._path}' now, and those since the last save may be in '{mark['path']}', too"
            self.notices.append(words)
            return
        self._drop()
        name = next((place for place in _places(mark) if _cut(place, mark)), None)
        if name is None:
            self._tell_of_another(mark)
        elif name != mark["path"]:
            self.notices.append(f"'{mark['path']}' is now '{name}': lines after the last save were taken back there")

    def close(self) -> None:
        """Close the file, if it was opened; one that was made for nothing is removed."""
        if self._file is not None and self._is_made and not self.has_moved and not os.path.getsize(self._path):
            os.remove(os.path.realpath(self._path))
        self._drop()

    def _open(self) -> IO[bytes]:
        """Open the file that is at the path now, or make it."""
        found = self._found()
        mode = "a+b" if found is None or stat.S_ISREG(found.st_mode) else "ab"  # a pipe opened both ways has no end
        self._file = open(self._path, mode, buffering=0, opener=without_waiting)  # noqa: SIM115 - for the whole stream
        self._length, self._is_made = os.fstat(self._file.fileno()).st_size, found is None
        return self._file

    def _leave(self) -> None:
        """Let go of a file that is not at the path any more, or is not what it was; a renamed one has all its lines."""
        assert self._file is not None
        held = os.fstat(self._file.fileno())
        if not held.st_nlink:
            self.notices.append(f"'{self._path}' was deleted, with the lines in it: a new file is begun")
        elif held.st_size < self._length:
            self.notices.append(f"'{self._path}' was truncated by somebody else: lines are added to what is left")
        _sync(self._file)
        self._drop()

    def _drop(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None

    def _tell_of_another(self, mark: dict[str, Any]) -> None:
        """Say that the file of a mark is not there any more, if that makes a difference."""
        found = self._found()
        if found is not None and found.st_size:
            words = "is not the file of the last save, or was changed: it is kept, and lines are added to it. Those"
            self.notices.append(f"'{self._path}' {words} since that save may be in it twice")
        elif mark["length"]:
            words = "is gone, with the lines in it: a new file is begun with the first line after the last save"
            self.notices.append(f"'{mark['path']}' {words}")

    def _found(self) -> os.stat_result | None:
        try:
            return os.stat(self._path)
        except FileNotFoundError:
            return None


def _places(mark: dict[str, Any]) -> Iterator[str]:
    """Where the file of a mark may be now: at its path, or beside it under another name."""
    yield mark["path"]
    folder, name = os.path.split(mark["path"])
    if "device" in mark and "ends" in mark and os.path.isdir(folder):  # older marks do not say enough to tell files by
        with os.scandir(folder) as entries:
            rotated = [entry for entry in entries if entry.name.startswith(name) and entry.inode() == mark["inode"]]
        yield from sorted(entry.path for entry in rotated)


def _cut(path: str, mark: dict[str, Any]) -> bool:
    """Cut a file to the length of a mark if it is the file of that mark; whether it is."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return False
        with open(path, "r+b", buffering=0) as file:
            is_it = _is_marked(file, mark)
            if is_it:
                file.truncate(mark["length"])
            return is_it
    except FileNotFoundError:
        return False


def _is_marked(file: IO[bytes], mark: dict[str, Any]) -> bool:
    """Whether an open file is that of a mark, with all that it had then. Marks of older releases say less."""
    found, born = os.fstat(file.fileno()), birth_time(file.fileno())
    if found.st_ino != mark["inode"] or found.st_size < mark["length"]:
        return False
    is_same_disk = mark.get("device", found.st_dev) == found.st_dev
    if not mark["length"]:  # there is nothing in it to know it by
        return is_same_disk and born is not None and mark.get("born") == born
    is_same_birth = born is None or mark.get("born") in (None, born)
    return is_same_disk and is_same_birth and mark.get("ends") in (None, _ends(file, mark["length"]))


def _ends(file: IO[bytes], length: int) -> str:
    """What tells the contents of a file up to a length: its first and its last bytes."""
    n = min(length, _MARKED)
    parts = os.pread(file.fileno(), n, 0), os.pread(file.fileno(), n, length - n)
    return blake2b(b"".join(parts), digest_size=8).hexdigest()


def _is_regular(file: IO[bytes]) -> bool:
    return stat.S_ISREG(os.fstat(file.fileno()).st_mode)


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
