"""Records that come by HTTP, as a source that can be read again.

A request is written to the database before it is acknowledged, several at a time in one transaction, and deleted once
the models that have learned it are saved. So after a crash what was acknowledged is judged again, in the same order.
"""

from __future__ import annotations

import hashlib
import threading
import time as clock
from bisect import bisect_left
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from polyaforest.core import schema
from polyaforest.io.records import Record
from polyaforest.io.sources import Position
from polyaforest.service.database import Database

__all__ = ["Accepted", "Busy", "Inbox", "NameReused"]

_MOST_WAITING = 64 * 2**20  # bytes of requests that nobody has read yet
_REMEMBERED = 100_000  # requests with a name that are known again
_AT_ONCE = 256  # requests in one transaction
_BYTES_AT_ONCE = 8 * 2**20  # and their bytes, about


class Busy(Exception):  # noqa: N818 - reads better where it is caught
    """Raised if more has come than can be judged."""


class NameReused(Exception):  # noqa: N818 - reads better where it is caught
    """Raised if a request has the name of an earlier one, but other records."""


@dataclass
class Accepted:
    """What became of a request: positions of its records, and results by record once they are judged."""

    first: int
    n: int
    is_repeated: bool = False  # whether one of its name had been accepted before; then there are no results
    is_same: bool = True  # whether that one had the same records
    results: list[Any] = field(default_factory=list)


@dataclass
class _Request:
    lines: list[bytes]
    name: str | None
    waits: bool  # for results
    answer: Future[Accepted]
    size: int
    accepted: Accepted | None = None
    received: float = 0.0

    @property
    def digest(self) -> bytes | None:
        """The digest of the records of a request that has a name."""
        return None if self.name is None else hashlib.sha256(b"\n".join(self.lines)).digest()

    @property
    def last(self) -> int:
        assert self.accepted is not None
        return self.accepted.first + self.accepted.n - 1


class Inbox:
    """The HTTP requests of a stream; a `Source`.

    Parameters
    ----------
    database : Database
    """

    can_replay = True

    def __init__(self, database: Database) -> None:
        self.notices: list[str] = []
        self._database = database
        self._arrived = threading.Condition()
        self._waiting: deque[_Request] = deque()  # that are not on disk
        self._n_waiting = 0  # bytes of them
        self._lines: deque[tuple[int, bytes]] = deque()  # that are on disk and not read
        self._open: deque[_Request] = deque()  # whose records are not all judged
        self._is_closed = False
        self._is_woken = False
        with database.read() as file:
            found = file.execute("SELECT max(first + n) FROM inbox").fetchone()
            kept = file.execute("SELECT value FROM facts WHERE name = 'inbox'").fetchone()
        self._next: int = max(found[0] or 1, int(kept[0]) if kept else 1)  # number of the next record
        self._read = self._next - 1  # number of the last record read
        self._replay_to = 0  # records up to this number come from the database

    # ---- for those who post ------------------------------------------------------------------------------------------

    def put(self, lines: list[bytes], *, name: str | None = None, waits: bool = True) -> Future[Accepted]:
        """Add records; the result is there once they are on disk, and if `waits`, judged.

        Parameters
        ----------
        lines : list of bytes
        name : str, optional
            A name that the caller gives the request: a second one of the same name is not taken, and an error if its
            records are others.
        waits : bool
        """
        size = sum(map(len, lines)) + 64 * len(lines)
        request = _Request(lines, name, waits, Future(), size)
        with self._arrived:
            if self._is_closed:
                raise Busy("the stream is stopping")
            if self._n_waiting + size > _MOST_WAITING and self._n_waiting:
                raise Busy("more records are waiting than can be judged: try again later")
            self._waiting.append(request)
            self._n_waiting += size
            self._arrived.notify()
        return request.answer

    def wake(self) -> None:
        """Let a `read` that waits return."""
        with self._arrived:
            self._is_woken = True
            self._arrived.notify()

    @property
    def n_waiting(self) -> int:
        """Bytes of requests that are not on disk."""
        return self._n_waiting

    @property
    def is_replaying(self) -> bool:
        """Whether records that came before the last start are still being judged again."""
        return self._read < self._replay_to

    @property
    def is_closed(self) -> bool:
        """Whether nothing is accepted any more."""
        return self._is_closed

    @property
    def has_unread(self) -> bool:
        """Whether records were accepted that are not read yet."""
        return bool(self._lines) or self.is_replaying

    # ---- the source --------------------------------------------------------------------------------------------------

    def read(self, most: int, wait: float) -> list[Record] | None:
        """Return at most `most` records, which are on disk: [] if none arrived within `wait` seconds."""
        if not self._lines and self._read < self._replay_to:
            self._load()
        if not self._lines:
            self._accept(wait)
        taken = [self._lines.popleft() for _ in range(min(most, len(self._lines)))]
        if taken:
            self._read = taken[-1][0]
        return [Record(str(number), line) for number, line in taken]

    def received(self, number: int) -> float:
        """Return when the record of a number came."""
        place = bisect_left(self._open, number, key=lambda request: request.last)
        return self._open[place].received if place < len(self._open) else clock.time()

    def answer(self, number: int, result: Any) -> None:
        """Take the result for the record of a number; they are given in order."""
        while self._open and self._open[0].last < number:
            self._finish(self._open.popleft())
        if self._open and self._open[0].waits:
            accepted = self._open[0].accepted
            assert accepted is not None
            accepted.results.append(result)

    def answer_all(self) -> None:
        """Complete the requests whose records were all read and answered."""
        while self._open and self._open[0].last <= self._read:
            self._finish(self._open.popleft())

    @property
    def position(self) -> Position:
        """The number of the last record read."""
        return self._read

    def seek(self, position: Position) -> None:
        """Continue after a `position`: with what was accepted before and not saved."""
        schema.whole()(position, "position")
        if position == self._read:  # everything read is part of the models: those who wait are answered as usual
            return
        if position >= self._next:  # the history was lost, or a part of it that was damaged
            self.notices.append(f"the models know record {position}, the history only {self._next - 1}: it continues")
            self._next = position + 1
        self._read, self._replay_to = position, self._next - 1
        self._lines.clear()
        while self._open:  # of a run that failed: they are judged again, for nobody
            request = self._open.popleft()
            if not request.answer.done():
                request.answer.set_exception(Busy("judging was interrupted; the records are kept and judged later"))

    def trim(self, position: int) -> None:
        """Delete the records up to a position, which are part of saved models; names of requests are kept."""
        with self._database.write() as file:
            file.execute("UPDATE inbox SET body = NULL WHERE first + n <= ? AND body IS NOT NULL", (position + 1,))
            unnamed = "DELETE FROM inbox WHERE body IS NULL AND (request IS NULL OR first < ?)"
            file.execute(unnamed, (self._next - _REMEMBERED,))
            file.execute("INSERT OR REPLACE INTO facts VALUES ('inbox', ?)", (str(self._next),))

    def close(self) -> None:
        """Refuse what comes from now on."""
        with self._arrived:
            self._is_closed = True
            requests, self._waiting = [*self._open, *self._waiting], deque()
            self._arrived.notify()
        for request in requests:
            if not request.answer.done():
                request.answer.set_exception(Busy("the stream is stopping"))

    def _accept(self, wait: float) -> None:
        """Write the requests that wait to the database."""
        with self._arrived:
            if not self._waiting and not self._is_closed and not self._is_woken:
                self._arrived.wait(wait)
            self._is_woken = False
            requests: list[_Request] = []
            size = 0
            while self._waiting and len(requests) < _AT_ONCE and size < _BYTES_AT_ONCE:
                requests.append(self._waiting.popleft())
                size += requests[-1].size
            self._n_waiting -= size
        if not requests:
            return
        try:
            with self._database.write() as file:
                for request in requests:
                    request.received = clock.time()
                    request.accepted = self._known(file, request) or self._enter(file, request)
        except BaseException as problem:
            for request in requests:
                request.answer.set_exception(problem)
            raise
        for request in requests:
            accepted = request.accepted
            assert accepted is not None
            if accepted.is_repeated:
                self._answer_repeated(request, accepted)
                continue
            self._lines.extend(zip(range(accepted.first, accepted.first + accepted.n), request.lines, strict=True))
            request.lines = []
            self._open.append(request)
            if not request.waits:
                request.answer.set_result(accepted)

    def _enter(self, file: Any, request: _Request) -> Accepted:
        body = b"\n".join(request.lines)
        row = (self._next, len(request.lines), request.received, request.name, body, request.digest)
        file.execute("INSERT INTO inbox (first, n, received, request, body, digest) VALUES (?, ?, ?, ?, ?, ?)", row)
        accepted = Accepted(self._next, len(request.lines))
        self._next += len(request.lines)
        return accepted

    @staticmethod
    def _known(file: Any, request: _Request) -> Accepted | None:
        """Return what became of an earlier request of the same name."""
        if request.name is None:
            return None
        found = file.execute("SELECT first, n, digest FROM inbox WHERE request = ?", (request.name,)).fetchone()
        if found is None:
            return None
        first, n, digest = found
        is_same = digest in (None, request.digest)  # earlier versions did not keep digests
        return Accepted(first, n, is_repeated=True, is_same=is_same)

    @staticmethod
    def _answer_repeated(request: _Request, accepted: Accepted) -> None:
        if accepted.is_same:
            request.answer.set_result(accepted)
        else:
            request.answer.set_exception(NameReused(f"{request.name!r} is the name of an earlier request"))

    def _load(self) -> None:
        """Read again what is on disk and was not saved in models."""
        query = "SELECT first, n, received, body FROM inbox WHERE first + n > ? AND body IS NOT NULL ORDER BY first"
        size = 0
        with self._database.read() as file:
            for first, n, received, body in file.execute(query, (self._read + 1,)):
                lines = body.split(b"\n")
                size += len(body)
                request = _Request([], None, False, Future(), 0, Accepted(first, n), received)
                self._open.append(request)
                self._lines.extend((first + i, line) for i, line in enumerate(lines) if first + i > self._read)
                if size > _BYTES_AT_ONCE:
                    break
        if not self._lines:  # nothing is left to be read again
            self._read = self._replay_to

    def _finish(self, request: _Request) -> None:
        if not request.answer.done():
            assert request.accepted is not None
            request.answer.set_result(request.accepted)
