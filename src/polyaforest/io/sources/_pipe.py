"""Standard input, named pipes, and files that are read once to their end."""

from __future__ import annotations

import os
import stat

from polyaforest.io.errors import BadInput
from polyaforest.io.records import Record
from polyaforest.io.sources._lines import LineSource, Position, check_position, has_mark, last_line, mark, start_of
from polyaforest.util.system import AS_IT_COMES, wait_for_input

__all__ = ["Pipe"]

_CHUNK = 1 << 18


class Pipe(LineSource):
    """Lines of standard input ("-"), a named pipe, or a file.

    Only a file can be read again from a position. On a pipe, `seek` skips as many lines as were read before, which
    assumes that the writer starts over too.
    """

    def __init__(self, where: str) -> None:
        super().__init__()
        self._name = "standard input" if where == "-" else f"'{where}'"
        self._file: int | None = 0 if where == "-" else _opened(where)
        self._is_ours = where != "-"
        kind = _kind(self._file, self._name)
        self.can_replay = stat.S_ISREG(kind)
        self._skip = 0
        if self.can_replay:
            self._offset = os.lseek(self._file, 0, os.SEEK_CUR)

    def _fill(self, wait: float) -> bool:
        """Read bytes, or the end; return False if neither arrived within `wait` seconds."""
        if self._file is None or (not self.can_replay and not wait_for_input(self._file, wait)):
            return False
        try:
            chunk = os.read(self._file, _CHUNK)
        except BlockingIOError:  # another reader of the same pipe was faster
            return False
        if chunk:
            self._lines.feed(chunk)
            self._skip_lines()
        else:
            self._lines.finish()
            self._skip_lines()
            self._ended = True
        return True

    def _skip_lines(self) -> None:
        """Skip the lines read before a restart."""
        while self._skip and self._lines.ready:
            self._next_line()
            self._skip -= 1

    def read(self, most: int, wait: float) -> list[Record] | None:
        """Return at most `most` lines: [] if none arrived within `wait` seconds, None after the last."""
        return None if self._file is None else super().read(most, wait)

    @property
    def position(self) -> Position:
        """Number of lines returned; for a file also the offset of the next, and the digest of the file."""
        if not self.can_replay:
            return {"line": self._line}
        return {"line": self._line, "offset": self._offset} | self._mark

    @property
    def _mark(self) -> Position:
        """Digest that identifies the file."""
        return mark(b"" if self._file is None else start_of(self._file, self._offset), *self._last)

    def seek(self, position: Position) -> None:
        """Continue after a `position`."""
        check_position(position)
        if self._file is None:
            raise ValueError(f"{self._name} is closed")
        if not self.can_replay:
            self._skip = position["line"] - self._line
            self._skip_lines()
            return
        self._lines.clear()
        self._ended = False
        if "offset" not in position or not has_mark(self._file, position):
            self.notices.append(f"{self._name} is not the file read before: reading it from the beginning")
            position = {"line": 0, "offset": 0, "last": 0}
        self._line, self._offset = position["line"], os.lseek(self._file, position["offset"], os.SEEK_SET)
        self._last = last_line(self._file, position)

    def close(self) -> None:
        """Close the file; standard input stays open."""
        if self._file is not None and self._is_ours:
            os.close(self._file)
        self._file = None


def _opened(path: str) -> int:
    """Open a file, or a named pipe without waiting for a writer."""
    try:
        return os.open(path, AS_IT_COMES)
    except FileNotFoundError:
        raise BadInput(f"'{path}' does not exist; use --follow to wait for it") from None
    except OSError as problem:
        raise BadInput(f"'{path}' cannot be read: {problem.strerror}") from problem


def _kind(file: int, name: str) -> int:
    """Return the mode of an open file."""
    try:
        kind = os.fstat(file).st_mode
    except OSError as problem:
        raise BadInput(f"{name} cannot be read: {problem.strerror}") from problem
    if stat.S_ISDIR(kind):
        raise BadInput(f"{name} is a directory; pass a file in it")
    return kind
