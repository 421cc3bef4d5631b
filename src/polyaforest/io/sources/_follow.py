"""A file that grows, followed by its name across log rotation."""

from __future__ import annotations

import os
import re
import stat
import time
from typing import NamedTuple

from polyaforest.io._errors import BadInput
from polyaforest.io.sources._lines import LineSource
from polyaforest.io.sources._marks import MARKED, has_mark, last_line, mark, start_of
from polyaforest.io.sources._source import Position

__all__ = ["FollowedFile"]

_CHUNK = 1 << 18
_PAUSE = 0.05  # seconds between two looks at a file that did not grow
_ROTATED = re.compile(r"[.-](\d[\dT_:.+-]*Z?|old|bak)", re.IGNORECASE)  # what rotation appends to a file's name

_ATTEMPTS = 5
_BEGINNING: Position = {"offset": 0, "last": 0}


class _Seen(NamedTuple):
    """A file as it was found in its directory; they sort from the oldest to the newest."""

    changed: int  # when, in nanoseconds
    order: int  # files of one moment: the higher the number in its name, the older
    path: str
    device: int
    inode: int
    size: int

    @property
    def identity(self) -> tuple[int, int]:
        """What stays the same when a file is renamed."""
        return self.device, self.inode


class FollowedFile(LineSource):
    """The lines of a file as they are written, like ``tail -F`` from the first line.

    Waits for the file to appear. When it is renamed, it is read to its end, with all that is still written to it until
    the new file has something in it, and then the new one from its start. When it is copied and truncated, the rest is
    read from the copy. Copies and renamed files are looked for beside it: the same name with a number or a date, "old"
    or "bak" after a dot or a hyphen. A last line without its newline waits for it, or for the next file.
    """

    can_replay = True

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path
        self._file: int | None = None
        self._identity: tuple[int, int] | None = None
        self._start = b""  # the first bytes of the file, as far as they have been read and count for its mark
        self._read_to = 0  # how far the file has been read, which may be further than lines have been handed out
        self._before: Position = None  # where the file before this one ended
        self._copied: tuple[int, int] | None = None  # the file that is rotated by copying and truncating it
        self._told = ""
        if not self._open_current():
            self._tell(f"waiting for '{path}' to appear")

    # Reading

    def _fill(self, wait: float) -> bool:
        """Take in bytes; False if none came within `wait` seconds."""
        deadline = time.monotonic() + wait
        while not self._step():
            left = deadline - time.monotonic()
            if left <= 0.0:
                return False
            time.sleep(min(left, _PAUSE))
        return True

    def _step(self) -> bool:
        """Take in what is there, or turn to the next file; False if there is nothing to do."""
        if self._lines.ready:
            return False  # lines first, so that the position always is one within the open file
        if self._file is None:
            return self._open_current()
        chunk = os.pread(self._file, _CHUNK, self._read_to)
        if not self._is_as_before():  # asked after reading, so that what was read cannot be of something newer
            self._go_on_in_copy()
            return True
        if not chunk:
            return self._turn_to_next()
        if self._offset < MARKED and (first := self._overtaken()) is not None:
            return self._open(first, self._place, self._start) or self._open(first)
        if len(self._start) == self._read_to:
            self._start = (self._start + chunk)[:MARKED]
        self._read_to += len(chunk)
        self._lines.feed(chunk)
        return True

    def _is_as_before(self) -> bool:
        """Whether the open file has only grown, if anything."""
        assert self._file is not None
        has_size = os.fstat(self._file).st_size >= self._read_to
        return has_size and start_of(self._file, self._read_to) == self._start and has_mark(self._file, self._place)

    def _go_on_in_copy(self) -> None:
        """The file was truncated: what was not read before is in the copy that was made of it, if there is one."""
        if not self._reopen(self._place, self._start):
            self._tell(f"'{self._path}' was truncated: lines written to it just before may be lost", again=True)
            self._before = None
            self._go_to()

    def _turn_to_next(self) -> bool:
        """Go on with the next file once there is something in it; whether anything has changed."""
        assert self._file is not None
        following = self._following(self._identity)
        if following is None:
            return False
        # whoever has written to the next file is done with this one, but may have written to it since it was read
        if os.fstat(self._file).st_size > self._read_to or self._lines.finish():
            return True
        before = self._place
        if not self._open(following):
            return False
        self._before = before
        return True

    def _overtaken(self) -> _Seen | None:
        """The copy that has what the open file had when we turned to it, if it was truncated since.

        As long as little of a file was read, what it holds now may begin with the same bytes.
        """
        if self._before is None:
            return None
        first = self._following((self._before["device"], self._before["inode"]))
        return None if first is None or first.identity == self._identity else first

    # Files

    def _open_current(self) -> bool:
        """Open the file that has the name, if there is one."""
        current = _seen(self._path)
        return current is not None and self._open(current)

    def _reopen(self, place: Position, start: bytes = b"") -> bool:
        """Find the file that was read up to a place, or a copy of it with the same `start`, and read on there."""
        identity = place["device"], place["inode"]
        for _ in range(_ATTEMPTS):  # names may change while we look
            files = sorted(self._files(), key=lambda seen: (seen.identity != identity, -seen.changed))
            for seen in files if place["offset"] or start else files[:1]:
                if (place["offset"] or start or seen.identity == identity) and self._open(seen, place, start):
                    return True
        return False

    def _open(self, seen: _Seen, place: Position = _BEGINNING, start: bytes = b"") -> bool:
        """Read on in another file from a place in it; False if it is not there any more, or not what it was."""
        try:
            file = os.open(seen.path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        except OSError as problem:
            if self._file is None:
                raise BadInput(f"'{seen.path}' cannot be read: {problem.strerror}") from problem
            self._tell(f"'{seen.path}' cannot be read: {problem.strerror}")
            return False
        begins = start_of(file, place["offset"])
        last = last_line(file, place)
        is_it = _identity(os.fstat(file)) == seen.identity and os.pread(file, len(start), 0) == start
        # the very bytes that are kept are compared, since the file may be truncated at any moment
        if not is_it or (place["offset"] and mark(begins, *last)["mark"] != place["mark"]):
            os.close(file)
            return False
        if self._file is not None:
            os.close(self._file)
        if place["offset"] or start:  # a file that was read before
            is_copy = seen.identity != (place["device"], place["inode"])
            self._copied = (place["device"], place["inode"]) if is_copy else self._copied
        self._file, self._identity = file, seen.identity
        self._go_to(place["offset"], begins, last)
        return True

    def _go_to(self, offset: int = 0, begins: bytes = b"", last: tuple[bytes, int] = (b"", 0)) -> None:
        """Read on in the open file from an offset, given what the file begins with and the line before."""
        self._lines.clear()
        self._offset = self._read_to = offset
        self._start, self._last = begins, last

    def _following(self, identity: tuple[int, int] | None) -> _Seen | None:
        """The oldest of the files that came after another and have something in them."""
        files = self._files()
        identities = [seen.identity for seen in files]
        current = files[-1] if files and files[-1].path == self._path else None
        if current is not None and current.identity == identity:
            return None
        if identity in identities:
            files = files[len(files) - identities[::-1].index(identity) :]
        else:  # deleted, or moved away
            files = [] if current is None else [current]
        if current is not None and current.identity == self._copied:
            # a copy that is being made is not to be read: its lines are all in the file still
            files = [seen for seen in files if seen is current or not _is_beginning(seen, current)]
        return next((seen for seen in files if seen.size), None)

    def _files(self) -> list[_Seen]:
        """The file and those that were rotated, oldest first, at a moment when none of them changed its name."""
        before = None
        while True:
            current = _seen(self._path)  # before the others: what is rotated in between is seen twice, not missed
            files = self._rotated() + ([] if current is None else [current])
            names = [(seen.path, seen.identity) for seen in files]
            if names == before:
                return files
            before = names

    def _rotated(self) -> list[_Seen]:
        """The files beside ours that are older ones or copies of it, oldest first."""
        directory, name = os.path.split(self._path)
        try:
            others = [other for other in os.listdir(directory or ".") if other.startswith(name)]
        except OSError:  # it is gone, or may not be listed: then there is only the file itself
            return []
        rotated = [os.path.join(directory, other) for other in others if _ROTATED.fullmatch(other, len(name))]
        return sorted(seen for path in rotated if not os.path.isdir(path) and (seen := _seen(path)) is not None)

    # Positions

    @property
    def position(self) -> Position:
        """How many lines were handed out, the file, where the next line starts in it, and how to know it again.

        Until a line of a file has been handed out, the end of the one before tells more surely where it is.
        """
        return {"line": self._line} | (self._place if self._offset or self._before is None else self._before)

    @property
    def _place(self) -> Position:
        """The open file, where the next line starts in it, and how to know it again."""
        device, inode = self._identity or (None, None)
        known = mark(self._start[: self._offset], *self._last)
        return {"device": device, "inode": inode, "offset": self._offset, "copied": self._copied} | known

    def seek(self, position: Position) -> None:
        """Go on after the line whose `position` this was, in whatever file it is by now."""
        if self._ended:
            raise ValueError(f"'{self._path}' is closed")
        self._line = position["line"]
        self._before = None
        self._copied = tuple(position["copied"]) if position["copied"] else None
        if position["inode"] is None:
            return
        if not self._reopen(position):
            self._tell(f"what was read of '{self._path}' before is not there any more: lines may be lost", again=True)
            if self._file is not None:
                self._go_to()

    def close(self) -> None:
        """Close the file; a second time does nothing."""
        if self._file is not None:
            os.close(self._file)
        self._file, self._ended = None, True
        self._lines.clear()

    def _tell(self, words: str, again: bool = False) -> None:
        """Leave a notice, unless it is the last one once more."""
        if again or words != self._told:
            self.notices.append(words)
        self._told = words


def _seen(path: str) -> _Seen | None:
    """A file as it is now, if it is there."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise BadInput(f"'{path}' cannot be read: {problem.strerror}") from problem
    if stat.S_ISDIR(found.st_mode):
        raise BadInput(f"'{path}' is a directory; give a file in it")
    number = re.search(r"[.-](\d{1,4})$", path)
    return _Seen(found.st_mtime_ns, -int(number[1]) if number else 0, path, *_identity(found), found.st_size)


def _identity(found: os.stat_result) -> tuple[int, int]:
    """What stays the same when a file is renamed."""
    return found.st_dev, found.st_ino


def _is_beginning(seen: _Seen, other: _Seen) -> bool:
    """Whether a file has nothing but what another begins with, to go by its first and its last bytes."""
    if seen.size > other.size:
        return False
    try:
        with open(seen.path, "rb") as one, open(other.path, "rb") as two:
            files = one.fileno(), two.fileno()
            places = 0, max(seen.size - MARKED, 0)
            length = min(seen.size, MARKED)
            return all(os.pread(files[0], length, place) == os.pread(files[1], length, place) for place in places)
    except FileNotFoundError:
        return False
