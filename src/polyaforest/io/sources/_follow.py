"""A file that grows, followed by its name across log rotation."""

from __future__ import annotations

import os
import re
import stat
import time
from contextlib import suppress
from math import inf
from typing import NamedTuple

from polyaforest.io.errors import BadInput
from polyaforest.io.file_identity import DIGESTED, digest, identity, is_reused, read_birth_time
from polyaforest.io.sources._lines import LineSource, Position, check_position, has_mark, last_line, mark, start_of
from polyaforest.util.system import read_at

__all__ = ["FollowedFile"]

_CHUNK = 1 << 18
_PAUSE = 0.05  # seconds between checks of a file that does not grow
_SUFFIX = r"[.-](\d[\dT_:.+-]*Z?|old|bak)"  # appended by rotation to a file's name
_ROTATED = re.compile(_SUFFIX, re.IGNORECASE)
_COMPRESSED = re.compile(rf"{_SUFFIX}\.(gz|bz2|xz|zst|lz4|lzma|zip|Z)", re.IGNORECASE)

_ATTEMPTS = 5
_BEGINNING: Position = {"offset": 0, "last": 0}
_NOTHING: Position = {"device": None, "inode": None, "offset": 0, "last": 0}  # no file before


class _ListedFile(NamedTuple):
    """A file as listed in its directory; sorts from oldest to newest."""

    changed: int  # in nanoseconds
    order: int  # for equal times: a higher number in the name is older
    path: str
    device: int
    inode: int
    size: int

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode."""
        return self.device, self.inode


class FollowedFile(LineSource):
    """Lines of a file as they are appended, like ``tail -F`` from the first line.

    Waits for the file to appear. After a rename, reads the old file to its end, including lines that are appended
    before the new file has content, and then the new file from its start. After a copy and truncation, reads the rest
    from the copy. Searches copies and renamed files in the same directory: the same name followed by a dot or a hyphen
    and a number, a date, "old" or "bak". Skips rotated files that exist at the start. Returns a last line without
    newline once the newline or the next file arrives.

    A file is recognised by its inode and creation time, by its first bytes, as far as they were read, and by the last
    line read. While little of it has been read, the end of the previous file determines which lines are new.
    """

    can_replay = True

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path
        self._file: int | None = None
        self._identity: tuple[int, int] | None = None
        self._born: int | None = None  # creation time of the open file
        self._start = b""  # first bytes of the open file, as far as read and digested
        self._read_to = 0  # may be beyond the lines returned
        self._before: Position = None  # end of the previous file, if known
        self._copied: tuple[int, int] | None = None  # the file that is rotated by copy and truncate
        self._last_notice = ""
        self._begin()

    # Reading

    def _fill(self, wait: float) -> bool:
        """Read bytes; return False if none arrived within `wait` seconds."""
        deadline = time.monotonic() + wait
        while not self._step():
            left = deadline - time.monotonic()
            if left <= 0.0:
                return False
            time.sleep(min(left, _PAUSE))
        return True

    def _step(self) -> bool:
        """Read available bytes, or switch to the next file; return False if there is nothing to do."""
        if self._lines.ready:
            return False  # lines first, so that the position is always within the open file
        if self._file is None:
            return self._open_first()
        chunk = read_at(self._file, _CHUNK, self._read_to)
        if not self._is_unchanged():  # checked after reading, so that the bytes cannot be newer
            self._continue_in_copy()
            return True
        if not chunk:
            return self._switch_to_next()
        if self._offset < DIGESTED and self._switch_to_copy():
            return True
        if self._read_to <= len(self._start) < DIGESTED:
            self._start = (self._start[: self._read_to] + chunk)[:DIGESTED]
        self._read_to += len(chunk)
        self._lines.feed(chunk)
        return True

    def _is_unchanged(self) -> bool:
        """Return whether the open file has at most grown."""
        assert self._file is not None
        has_size = os.fstat(self._file).st_size >= self._read_to
        is_begun_so = read_at(self._file, len(self._start), 0) == self._start
        return has_size and is_begun_so and has_mark(self._file, {"offset": self._offset} | self._mark)

    def _continue_in_copy(self) -> None:
        """After a truncation, continue in the copy of the file, if there is one."""
        if not self._reopen(self._place):
            self._report_loss(f"'{self._path}' was truncated: lines appended just before may be lost")
            self._before = self._end_of_newest()
            self._go_to()

    def _switch_to_next(self) -> bool:
        """Switch to the next file once it has content; return False if there is nothing to do."""
        assert self._file is not None
        following, is_gone = self._following(self._place, is_open=True)
        if following is None:
            return False
        # the writer has finished this file, but may have appended to it since the last read
        if os.fstat(self._file).st_size > self._read_to or self._lines.finish():
            return True
        before = self._place if self._offset else self._before
        if not self._open(following):
            return False
        self._before = before
        if is_gone:
            words = "was deleted or moved away after it was read to its end. Continuing with"
            self._report_loss(f"'{self._path}' {words} '{following.path}': lines of files in between may be lost")
        return True

    def _switch_to_copy(self) -> bool:
        """Switch to the copy of the open file if it was truncated; return whether it was.

        While little of a file has been read, its new content may begin with the same bytes.
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
        """Begin with the first line of the current file, skipping rotated files.

        Start at the end of the newest rotated file, which may still grow.
        """
        newest = self._end_of_newest()
        if newest is not _NOTHING and self._reopen(newest):
            self._report(f"reading '{self._path}' from its first line, but not rotated files such as '{newest['at']}'")
        else:
            self._before = newest
            self._open_first()
        self._await()

    def _await(self) -> None:
        """Report that the file does not exist yet, if so."""
        if _seen(self._path) is None:
            self._report(f"waiting for '{self._path}' to appear")

    def _open_first(self) -> bool:
        """Open the first file after the previous one, or else the current file, even if empty."""
        first, _ = self._following(self._before)
        first = _seen(self._path) if first is None else first
        return first is not None and self._open(first)

    def _end_of_newest(self) -> Position:
        """Return the end of the newest rotated file; a copy in progress of the current file does not count."""
        files = self._files()
        current = _current(files, self._path)
        for seen in reversed(files):
            if seen.size and seen is not current and not (current is not None and _is_beginning(seen, current)):
                with suppress(FileNotFoundError), open(seen.path, "rb") as file:
                    n, number = min(seen.size, DIGESTED), file.fileno()
                    known = mark(start_of(number, seen.size), read_at(number, n, seen.size - n), n)
                    end = {"device": seen.device, "inode": seen.inode, "changed": seen.changed, "offset": seen.size}
                    return end | {"at": seen.path} | known
        return _NOTHING

    def _reopen(self, place: Position) -> bool:
        """Find the file of a position, or a copy of it, and continue there."""
        wanted = place["device"], place["inode"]
        is_known = place["offset"] or place.get("head", (0, ""))[0]  # by content
        for _ in range(_ATTEMPTS):  # names may change meanwhile
            files = sorted(self._files(), key=lambda seen: (seen.identity != wanted, -seen.changed))
            for seen in files:
                if (is_known or seen.identity == wanted) and self._open(seen, place):
                    return True
        return False

    def _open(self, seen: _ListedFile, place: Position = _BEGINNING) -> bool:
        """Continue in another file at a position; return False if it is gone or has changed."""
        try:
            file = os.open(seen.path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        except OSError as problem:
            if self._file is None:
                raise BadInput(f"'{seen.path}' cannot be read: {problem.strerror}") from problem
            self._report(f"'{seen.path}' cannot be read: {problem.strerror}")
            return False
        begins, last = start_of(file, DIGESTED), last_line(file, place)
        # compare the bytes just read, since the file may be truncated at any moment
        if identity(os.fstat(file)) != seen.identity or not _is_of(place, file, begins, last):
            os.close(file)
            return False
        if self._file is not None:
            os.close(self._file)
        if "inode" in place and seen.identity != (place["device"], place["inode"]):  # a copy of the file read before
            self._copied = place["device"], place["inode"]
        self._file, self._identity, self._born = file, seen.identity, read_birth_time(file)
        self._go_to(place["offset"], last)
        # of a file read before, keep only the bytes read then: it may have been truncated since
        self._start = begins[: max(place["offset"], place.get("head", (0, ""))[0])] if "inode" in place else begins
        return True

    def _go_to(self, offset: int = 0, last: tuple[bytes, int] = (b"", 0)) -> None:
        """Continue in the open file at an offset, given the line before it."""
        self._lines.clear()
        self._offset = self._read_to = offset
        self._start, self._last = b"", last

    def _following(self, place: Position, *, is_open: bool = False) -> tuple[_ListedFile | None, bool]:
        """Return the oldest non-empty file after the file of a position, and whether the latter is gone."""
        files = self._files()
        current = _current(files, self._path)
        at = _find(files, place, is_open=is_open)
        if at is not None:
            files = files[at + 1 :]
        else:  # deleted or moved away: later files have later modification times
            files = [seen for seen in files if seen is current or seen.changed >= place.get("changed", inf)]
        if current is not None and current.identity == self._copied:
            # a copy in progress is skipped: its lines are still in the current file
            files = [seen for seen in files if seen is current or not _is_beginning(seen, current)]
        return next((seen for seen in files if seen.size), None), at is None

    def _files(self) -> list[_ListedFile]:
        """Return the current and the rotated files, oldest first, in a consistent snapshot of names."""
        before = None
        while True:
            current = _seen(self._path)  # before the others: a file rotated in between is seen twice, not missed
            readable = [path for path in self._beside(_ROTATED) if os.path.isfile(path) and os.access(path, os.R_OK)]
            rotated = sorted(seen for path in readable if (seen := _seen(path)) is not None)
            files = rotated + ([] if current is None else [current])
            names = [(seen.path, seen.identity) for seen in files]
            if names == before:
                return files
            before = names

    def _beside(self, pattern: re.Pattern[str]) -> list[str]:
        """Return files in the same directory whose names extend ours by a pattern."""
        directory, name = os.path.split(self._path)
        try:
            others = sorted(other for other in os.listdir(directory or ".") if other.startswith(name))
        except OSError:  # gone, or not listable: then there is only the file itself
            return []
        return [os.path.join(directory, other) for other in others if pattern.fullmatch(other, len(name))]

    # Positions

    @property
    def position(self) -> Position:
        """Number of lines returned, the file, the offset of its next line, and its digests.

        While little of a file has been returned, this includes the end of the previous one.
        """
        return {"line": self._line} | self._place | {"before": self._before if self._offset < DIGESTED else None}

    @property
    def _place(self) -> Position:
        """The open file, the offset of its next line, and its digests."""
        if self._file is None:
            return _NOTHING | {"copied": self._copied} | self._mark
        device, inode = identity(found := os.fstat(self._file))
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
        """Continue after a `position`, in whichever file it is now."""
        check_position(position)
        if self._ended:
            raise ValueError(f"'{self._path}' is closed")
        self.notices.clear()  # they describe a start from the beginning
        self._line = position["line"]
        self._copied = tuple(position["copied"]) if position["copied"] else None
        before = position.get("before", None if position["inode"] else _NOTHING)
        is_unread = not position["offset"] and before is not None
        if is_unread and position["inode"] is not None:  # while this file has the name, others can only be copies
            self._copied = position["device"], position["inode"]
        place = before if is_unread else position
        self._before = None if is_unread else before
        is_found = place["inode"] is not None and self._reopen(place)
        if not is_found:  # begin with the first file after one that is gone or never existed
            if self._file is not None:
                os.close(self._file)
            self._file, self._before = None, place
            self._go_to()
            self._open_first()
        is_lost = not is_found and place["inode"] is not None
        if is_lost or (is_unread and not self._is_somewhere(position)):
            self._report_loss(f"the last file read as '{self._path}' is gone: lines may be lost")
        self._await()

    def _is_somewhere(self, place: Position) -> bool:
        """Return whether an unread file still exists, as far as can be determined."""
        size, _ = place.get("head", (0, ""))
        if place["inode"] is None:
            return True
        return any(
            _has(seen, place) for seen in self._files() if size or seen.identity == (place["device"], place["inode"])
        )

    def close(self) -> None:
        """Close the file; idempotent."""
        if self._file is not None:
            os.close(self._file)
        self._file, self._ended = None, True
        self._lines.clear()

    def _report(self, words: str) -> None:
        """Add a notice, unless it repeats the last one."""
        if words != self._last_notice:
            self.notices.append(words)
        self._last_notice = words

    def _report_loss(self, words: str) -> None:
        """Add a notice of lost lines, naming compressed files that may contain them."""
        compressed = self._beside(_COMPRESSED)
        self._last_notice = f"{words}; compressed files such as '{compressed[0]}' are not read" if compressed else words
        self.notices.append(self._last_notice)


def _seen(path: str) -> _ListedFile | None:
    """Return the current state of a file, if it exists."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise BadInput(f"'{path}' cannot be read: {problem.strerror}") from problem
    if stat.S_ISDIR(found.st_mode):
        raise BadInput(f"'{path}' is a directory; pass a file in it")
    number = re.search(r"[.-](\d{1,4})$", path)
    return _ListedFile(found.st_mtime_ns, -int(number[1]) if number else 0, path, *identity(found), found.st_size)


def _current(files: list[_ListedFile], path: str) -> _ListedFile | None:
    """Return the file at `path`, given files sorted oldest first."""
    return files[-1] if files and files[-1].path == path else None


def _find(files: list[_ListedFile], place: Position, *, is_open: bool) -> int | None:
    """Return the index of the file of a position: -1 if the position has no file, None if the file is gone.

    The inode of an open file is unique; that of a closed one may have been reused.
    """
    if place["inode"] is None:
        return -1
    wanted = place["device"], place["inode"]
    found = (i for i in reversed(range(len(files))) if files[i].identity == wanted)
    return next((i for i in found if is_open or _has(files[i], place)), None)


def _has(seen: _ListedFile, place: Position) -> bool:
    """Return whether a file is the file of a position, or a copy of it."""
    try:
        with open(seen.path, "rb") as file:
            number = file.fileno()
            return _is_of(place, number, start_of(number, DIGESTED), last_line(number, place))
    except OSError:  # gone meanwhile, or not readable
        return False


def _is_of(place: Position, file: int, begins: bytes, last: tuple[bytes, int]) -> bool:
    """Return whether an open file is the file of a position or a copy, given its first bytes and the line before."""
    found = os.fstat(file)
    has_inode = identity(found) == (place.get("device"), place.get("inode"))
    if has_inode and is_reused(read_birth_time(file), place):
        return False
    size, known = place.get("head", (0, digest(b"")))
    if found.st_size < place["offset"] or digest(begins[:size]) != known:
        return False
    return not place["offset"] or mark(begins[: place["offset"]], *last)["mark"] == place["mark"]


def _is_beginning(seen: _ListedFile, other: _ListedFile) -> bool:
    """Return whether a file is a prefix of another, comparing its first and last bytes."""
    if seen.size > other.size:
        return False
    try:
        with open(seen.path, "rb") as one, open(other.path, "rb") as two:
            files = one.fileno(), two.fileno()
            places = 0, max(seen.size - DIGESTED, 0)
            length = min(seen.size, DIGESTED)
            return all(read_at(files[0], length, place) == read_at(files[1], length, place) for place in places)
    except OSError:  # gone meanwhile, or not readable
        return False
