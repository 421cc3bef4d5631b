"""Bytes cut into lines in bounded memory, and what sources that read lines share."""

from __future__ import annotations

import time
from collections import deque

from polyaforest.io.records import LONGEST_LINE, Record

__all__ = ["LineSource", "Lines"]


class Lines:
    """Cuts bytes into lines as they come, however they are torn.

    Of a line that is too long only the start is kept, one byte more than is allowed, so that its reader can tell.

    Attributes
    ----------
    ready : deque of (bytes, int)
        Whole lines without their newline, and how many bytes each took up.
    """

    def __init__(self) -> None:
        self.ready: deque[tuple[bytes, int]] = deque()
        self._start = bytearray()  # of the line that is not whole yet
        self._start_size = 0  # its bytes, with those that were not kept

    def feed(self, chunk: bytes) -> None:
        """Take in the bytes that come next."""
        first, *lines = chunk.split(b"\n")
        self._extend(first)
        if not lines:
            return
        self._close_line(newline=1)
        self._extend(lines.pop())
        if len(chunk) > LONGEST_LINE:
            self.ready.extend((line[: LONGEST_LINE + 1], len(line) + 1) for line in lines)
        else:
            self.ready.extend([(line, len(line) + 1) for line in lines])

    def finish(self) -> bool:
        """Take what has no newline yet for a whole line; whether there was anything."""
        if self._start_size:
            self._close_line(newline=0)
            return True
        return False

    def clear(self) -> None:
        """Forget everything."""
        self.ready.clear()
        self._start.clear()
        self._start_size = 0

    def _extend(self, piece: bytes) -> None:
        """Add to the line that is not whole yet, as far as it is kept."""
        self._start += piece[: LONGEST_LINE + 1 - len(self._start)]
        self._start_size += len(piece)

    def _close_line(self, newline: int) -> None:
        """The line that was begun is whole."""
        self.ready.append((bytes(self._start), self._start_size + newline))
        self._start.clear()
        self._start_size = 0


class LineSource:
    """A source whose records are lines: reads, hands out and counts; how bytes come is for `_fill` to say."""

    def __init__(self) -> None:
        self.notices: list[str] = []
        self._lines = Lines()
        self._line = 0  # how many lines have been handed out
        self._offset = 0  # where the next line starts, in bytes
        self._last = (b"", 0)  # the line handed out last, and its size
        self._ended = False

    def _fill(self, wait: float) -> bool:
        """Take in bytes, or the end; False if neither came within `wait` seconds."""
        raise NotImplementedError

    def read(self, most: int, wait: float) -> list[Record] | None:
        """At most `most` lines: [] if none came within `wait` seconds, None after the last."""
        ready = self._lines.ready
        deadline = time.monotonic() + wait
        late = False
        while not ready:
            if self._ended:
                return None
            if late or not self._fill(max(0.0, deadline - time.monotonic())):
                return []
            late = time.monotonic() >= deadline
        while len(ready) < most and not self._ended and self._fill(0.0):
            pass  # what is there already goes into the same batch
        return [self._hand_out() for _ in range(min(most, len(ready)))]

    def _hand_out(self) -> Record:
        """The next line, and one step forward."""
        self._last = line, size = self._lines.ready.popleft()
        self._line += 1
        self._offset += size
        return Record(str(self._line), line)
