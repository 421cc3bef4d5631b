"""A file that grows, followed by its name across log rotation."""

from __future__ import annotations

import os
import re
import stat
import time
from contextlib import suppress
from math import inf
from typing import NamedTuple

from polyaforest.io._born import birth_time
from polyaforest.io._errors import BadInput
from polyaforest.io.sources._lines import LineSource
from polyaforest.io.sources._marks import MARKED, check_position, digest, has_mark, last_line, mark, start_of
from polyaforest.io.sources._source import Position

__all__ = ["FollowedFile"]

_CHUNK = 1 << 18
_PAUSE = 0.05  # seconds between two looks at a file that did not grow
_SUFFIX = r"[.-](\d[\dT_:.+-]*Z?|old|bak)"  # what rotation appends to a file's name
_ROTATED = re.compile(_SUFFIX, re.IGNORECASE)
_COMPRESSED = re.compile(rf"{_SUFFIX}\.(gz|bz2|xz|zst|lz4|lzma|zip|Z)", re.IGNORECASE)

_ATTEMPTS = 5
_BEGINNING: Position = {"offset": 0, "last": 0}
_NOTHING: Position = {"device": None, "inode": None, "offset": 0, "last": 0}  # where there was no file before


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
    or "bak" after a dot or a hyphen. Those that are there at the beginning count as read. A last line without its
    newline waits for it, or for the next file.

    A file is known again by its inode and the time when it was made, by its first bytes, as far as they were seen, and
    by the line read last. As long as little of it was read, the end of the file before it says what came since.
    """

    can_replay = True

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path
        self._file: int | None = None
        self._identity: tuple[int, int] | None = None
        self._born: int | None = None  # when the open file was made
        self._start = b""  # the first bytes of the open file, as far as they were seen and count
        self._read_to = 0  # how far the file has been read, which may be further than lines have been handed out
        self._before: Position = None  # where the file before this one ended, if that is known
        self._copied: tuple[int, int] | None = None  # the file that is rotated by copying and truncating it
        self._told = ""
        self._begin()

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
            return self._open_first()
        chunk = os.pread(self._file, _CHUNK, self._read_to)
        if not self._is_as_before():  # asked after reading, so that what was read cannot be of something newer
            self._go_on_in_copy()
            return True
        if not chunk:
            return self._turn_to_next()
        if self._offset < MARKED and self._turn_back():
            return True
        if self._read_to <= len(self._start) < MARKED:
            self._start = (self._start[: self._read_to] + chunk)[:MARKED]
        self._read_to += len(chunk)
        self._lines.feed(chunk)
        return True

    def _is_as_before(self) -> bool:
        """Whether the open file has only grown, if anything."""
        assert self._file is not None
        has_size = os.fstat(self._file).st_size >= self._read_to
        is_begun_so = os.pread(self._file, len(self._start), 0) == self._start
        return has_size and is_begun_so and has_mark(self._file, {"offset": self._offset} | self._mark)

    def _go_on_in_copy(self) -> None:
        """The file was truncated: what was not read before is in the copy that was made of it, if there is one."""
        if not self._reopen(self._place):
            self._tell_of_loss(f"'{self._path}' was truncated: lines written to it just before may be lost")
            self._before = self._end_of_newest()
            self._go_to()

    def _turn_to_next(self) -> bool:
        """Go on with the next file once there is something in it; whether anything has changed."""
        assert self._file is not None
        following, is_gone = self._following(self._place, is_open=True)
        if following is None:
            return False
        # whoever has written to the next file is done with this one, but may have written to it since it was read
        if os.fstat(self._file).st_size > self._read_to or self._lines.finish():
            return True
        before = self._place if self._offset else self._before
        if not self._open(following):
            return False
        self._before = before
        if is_gone:
            words = "was deleted or moved away after it was read to its end. It goes on with"
            self._tell_of_loss(f"'{self._path}' {words} '{following.path}': lines of files in between may be lost")
        return True

    def _turn_back(self) -> bool:
        """Turn to the copy that has what the open file had before it was truncated, if it was; whether it was.

        As long as little of a file was read, what it holds now may begin with the same bytes.
        """
        if self._before is None:
            return False
        files = self._files()
        mine = next((seen for seen in files if seen.identity == self._identity), None)
        first, _ = self._following(self._before)
        if mine is None or first is None or first.identity == self._identity or _is_beginning(first, mine):
            return False
        return self._open(first, self._place) or (not self._offset and self._open(first))

    # Files

    def _begin(self) -> None:
        """Begin with the first line of the file that has the name: what was rotated before counts as read.

        That is, at the end of the file before, to which whoever writes may not have finished writing.
        """
        newest = self._end_of_newest()
        if newest is not _NOTHING and self._reopen(newest):
            self._tell(f"'{self._path}' is read from its first line; older files, as '{newest['at']}', are not read")
        else:
            self._before = newest
            self._open_first()
        self._await()

    def _await(self) -> None:
        """Say that there is no file yet, if so."""
        if _seen(self._path) is None:
            self._tell(f"waiting for '{self._path}' to appear")

    def _open_first(self) -> bool:
        """Open the file that came first after the one before, or else the one that has the name, empty as it is."""
        first, _ = self._following(self._before)
        first = _seen(self._path) if first is None else first
        return first is not None and self._open(first)

    def _end_of_newest(self) -> Position:
        """Where the newest of the rotated files ends; a copy that is being made of the file itself is not one."""
        files = self._files()
        current = _current(files, self._path)
        for seen in reversed(files):
            if seen.size and seen is not current and not (current is not None and _is_beginning(seen, current)):
                with suppress(FileNotFoundError), open(seen.path, "rb") as file:
                    return _end(seen, file.fileno())
        return _NOTHING

    def _reopen(self, place: Position) -> bool:
        """Find the file that was read up to a place, or a copy of it, and read on there."""
        identity = place["device"], place["inode"]
        is_known = place["offset"] or place.get("head", (0, ""))[0]  # by what it holds
        for _ in range(_ATTEMPTS):  # names may change while we look
            files = sorted(self._files(), key=lambda seen: (seen.identity != identity, -seen.changed))
            for seen in files:
                if (is_known or seen.identity == identity) and self._open(seen, place):
                    return True
        return False

    def _open(self, seen: _Seen, place: Position = _BEGINNING) -> bool:
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
        begins, last = start_of(file, MARKED), last_line(file, place)
        # the very bytes that are kept are compared, since the file may be truncated at any moment
        if _identity(os.fstat(file)) != seen.identity or not _is_of(place, file, begins, last):
            os.close(file)
            return False
        if self._file is not None:
            os.close(self._file)
        if "inode" in place and seen.identity != (place["device"], place["inode"]):  # a copy of what was read before
            self._copied = place["device"], place["inode"]
        self._file, self._identity, self._born = file, seen.identity, birth_time(file)
        self._go_to(place["offset"], last)
        # of a file that was read before only what was seen then: it may have been truncated since
        self._start = begins[: max(place["offset"], place.get("head", (0, ""))[0])] if "inode" in place else begins
        return True

    def _go_to(self, offset: int = 0, last: tuple[bytes, int] = (b"", 0)) -> None:
        """Read on in the open file from an offset, given the line before."""
        self._lines.clear()
        self._offset = self._read_to = offset
        self._start, self._last = b"", last

    def _following(self, place: Position, *, is_open: bool = False) -> tuple[_Seen | None, bool]:
        """The oldest of the files that came after another and have something in them; and whether that one is gone."""
        files = self._files()
        current = _current(files, self._path)
        at = _find(files, place, is_open=is_open)
        if at is not None:
            files = files[at + 1 :]
        else:  # deleted, or moved away: what came later was changed later
            files = [seen for seen in files if seen is current or seen.changed >= place.get("changed", inf)]
        if current is not None and current.identity == self._copied:
            # a copy that is being made is not to be read: its lines are all in the file still
            files = [seen for seen in files if seen is current or not _is_beginning(seen, current)]
        return next((seen for seen in files if seen.size), None), at is None

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
        """The files beside ours that are older ones or copies of it, and can be read, oldest first."""
        readable = [path for path in self._beside(_ROTATED) if os.path.isfile(path) and os.access(path, os.R_OK)]
        return sorted(seen for path in readable if (seen := _seen(path)) is not None)

    def _beside(self, pattern: re.Pattern[str]) -> list[str]:
        """What is beside our file and has its name with something appended."""
        directory, name = os.path.split(self._path)
        try:
            others = sorted(other for other in os.listdir(directory or ".") if other.startswith(name))
        except OSError:  # it is gone, or may not be listed: then there is only the file itself
            return []
        return [os.path.join(directory, other) for other in others if pattern.fullmatch(other, len(name))]

    # Positions

    @property
    def position(self) -> Position:
        """How many lines were handed out, the file, where the next line starts in it, and how to know it again.

        As long as little of a file was handed out, the end of the one before is part of it.
        """
        return {"line": self._line} | self._place | {"before": self._before if self._offset < MARKED else None}

    @property
    def _place(self) -> Position:
        """The open file, where the next line starts in it, and how to know it again."""
        if self._file is None:
            return _NOTHING | {"copied": self._copied} | self._mark
        device, inode = _identity(found := os.fstat(self._file))
        return {
            "device": device,
            "inode": inode,
            "born": self._born,
            "changed": found.st_mtime_ns,
            "offset": self._offset,
            "head": [len(self._start), digest(self._start)],
            "copied": self._copied,
        } | self._mark

    @property
    def _mark(self) -> Position:
        return mark(self._start[: self._offset], *self._last)

    def seek(self, position: Position) -> None:
        """Go on after the line whose `position` this was, in whatever file it is by now."""
        check_position(position)
        if self._ended:
            raise ValueError(f"'{self._path}' is closed")
        self.notices.clear()  # about a beginning that is none
        self._line = position["line"]
        self._copied = tuple(position["copied"]) if position["copied"] else None
        before = position.get("before", None if position["inode"] else _NOTHING)
        is_unread = not position["offset"] and before is not None
        if is_unread and position["inode"] is not None:  # as long as this file has the name, others can only be copies
            self._copied = position["device"], position["inode"]
        place = before if is_unread else position
        self._before = None if is_unread else before
        is_found = place["inode"] is not None and self._reopen(place)
        if not is_found:
            self._begin_after(place)
        is_lost = not is_found and place["inode"] is not None
        if is_lost or (is_unread and not self._is_somewhere(position)):
            self._tell_of_loss(f"what was read of '{self._path}' before is not there any more: lines may be lost")
        self._await()

    def _begin_after(self, place: Position) -> None:
        """Begin with the first file that came after one that is gone, or never was."""
        if self._file is not None:
            os.close(self._file)
        self._file, self._before = None, place
        self._go_to()
        self._open_first()

    def _is_somewhere(self, place: Position) -> bool:
        """Whether a file of which nothing was read is still there, as far as one can tell."""
        size, _ = place.get("head", (0, ""))
        if place["inode"] is None:
            return True
        return any(
            _has(seen, place) for seen in self._files() if size or seen.identity == (place["device"], place["inode"])
        )

    def close(self) -> None:
        """Close the file; a second time does nothing."""
        if self._file is not None:
            os.close(self._file)
        self._file, self._ended = None, True
        self._lines.clear()

    def _tell(self, words: str) -> None:
        """Leave a notice, unless it is the last one once more."""
        if words != self._told:
            self.notices.append(words)
        self._told = words

    def _tell_of_loss(self, words: str) -> None:
        """Leave a notice of every loss, with the files that may hold what was lost."""
        compressed = self._beside(_COMPRESSED)
        self._told = f"{words}; '{compressed[0]}' and the like are compressed and not read" if compressed else words
        self.notices.append(self._told)


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


def _current(files: list[_Seen], path: str) -> _Seen | None:
    """That one of the files, oldest first, that has the name itself."""
    return files[-1] if files and files[-1].path == path else None


def _end(seen: _Seen, file: int) -> Position:
    """The place at the end of a file that is open."""
    n = min(seen.size, MARKED)
    known = mark(start_of(file, seen.size), os.pread(file, n, seen.size - n), n)
    places = {"device": seen.device, "inode": seen.inode, "changed": seen.changed, "offset": seen.size}
    return places | {"at": seen.path} | known


def _find(files: list[_Seen], place: Position, *, is_open: bool) -> int | None:
    """Where among the files the one of a place is: -1 if there never was one, None if it is gone.

    A file that is open has its inode to itself; otherwise another file may have been given it.
    """
    if place["inode"] is None:
        return -1
    identity = place["device"], place["inode"]
    found = (i for i in reversed(range(len(files))) if files[i].identity == identity)
    return next((i for i in found if is_open or _has(files[i], place)), None)


def _has(seen: _Seen, place: Position) -> bool:
    """Whether a file is the one of a place, or a copy of it."""
    try:
        with open(seen.path, "rb") as file:
            number = file.fileno()
            return _is_of(place, number, start_of(number, MARKED), last_line(number, place))
    except OSError:  # gone meanwhile, or not to be read
        return False


def _is_of(place: Position, file: int, begins: bytes, last: tuple[bytes, int]) -> bool:
    """Whether an open file is the one of a place or a copy of it, given how it begins and the line before the place."""
    found, born = os.fstat(file), birth_time(file)
    has_inode = _identity(found) == (place.get("device"), place.get("inode"))
    if has_inode and born is not None and place.get("born") not in (None, born):
        return False  # a later file that was given the same inode
    size, known = place.get("head", (0, digest(b"")))
    if found.st_size < place["offset"] or digest(begins[:size]) != known:
        return False
    return not place["offset"] or mark(begins[: place["offset"]], *last)["mark"] == place["mark"]


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
    except OSError:  # gone meanwhile, or not to be read
        return False
