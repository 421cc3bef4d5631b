"""The inbox: records posted by HTTP, as a source that can be replayed.

Requests are written to the database before they are acknowledged, several per transaction, and deleted once the models
that learned them are saved. So after a crash, acknowledged records are scored again in the same order.
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

from polyaforest.io.records import Record
from polyaforest.io.sources import Position
from polyaforest.service.database import Database
from polyaforest.util import schema

__all__ = ["Accepted", "Busy", "Inbox", "NameReused"]

_MOST_WAITING = 64 * 2**20  # bytes of unread requests
_REMEMBERED = 100_000  # records within which names of requests are remembered
_AT_ONCE = 256  # requests in one transaction
_BYTES_AT_ONCE = 8 * 2**20  # bytes in one transaction, about


class Busy(Exception):  # noqa: N818 - reads better where it is caught
    """Raised if more records are waiting than the stream can process, or if it is stopping."""


class NameReused(Exception):  # noqa: N818 - reads better where it is caught
    """Raised if a request reuses the name of an earlier one with different records."""


@dataclass
class Accepted:
    """An accepted request: the positions of its records, and their results once they are scored."""

    first: int
    n: int
    is_repeated: bool = False  # whether its name was accepted before; then there are no results
    is_same: bool = True  # whether the earlier request had the same records
    results: list[Any] = field(default_factory=list)


@dataclass
class _PostRequest:
    lines: list[bytes]
    name: str | None
    waits: bool  # for results
    answer: Future[Accepted]
    size: int
    accepted: Accepted | None = None
    received: float = 0.0
    arrived: float = field(default_factory=clock.monotonic)

    @property
    def digest(self) -> bytes | None:
        """Digest of the records of a named request."""
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
        self._waiting: deque[_PostRequest] = deque()  # not on disk yet
        self._n_waiting = 0  # bytes in `_waiting`
        self._lines: deque[tuple[int, bytes]] = deque()  # on disk, not read yet
        self._open: deque[_PostRequest] = deque()  # not completely scored
        self._is_closed = False
        self._is_woken = False
        with database.read() as file:
            found = file.execute("SELECT max(first + n) FROM inbox").fetchone()
            kept = file.execute("SELECT value FROM facts WHERE name = 'inbox'").fetchone()
        self._next: int = max(found[0] or 1, int(kept[0]) if kept else 1)  # number of the next record
        self._read = self._next - 1  # number of the last record read
        self._replay_to = 0  # records up to this number come from the database

    # ---- for clients -------------------------------------------------------------------------------------------------

    def put(self, lines: list[bytes], *, name: str | None = None, waits: bool = True) -> Future[Accepted]:
        """Add records; the future completes once they are on disk and, if `waits`, scored.

        Parameters
        ----------
        lines : list of bytes
        name : str, optional
            Name of the request, chosen by the caller. A second request with this name is ignored, or an error if its
            records differ.
        waits : bool
        """
        size = sum(map(len, lines)) + 64 * len(lines)
        request = _PostRequest(lines, name, waits, Future(), size)
        with self._arrived:
            if self._is_closed:
                raise Busy("the stream is stopping")
            if self._n_waiting + size > _MOST_WAITING and self._n_waiting:
                raise Busy("too many records are waiting: try again later")
            self._waiting.append(request)
            self._n_waiting += size
            self._arrived.notify()
        return request.answer

    def wake(self) -> None:
        """Make a waiting `read` return."""
        with self._arrived:
            self._is_woken = True
            self._arrived.notify()

    @property
    def n_waiting(self) -> int:
        """Bytes of requests that are not on disk yet."""
        return self._n_waiting

    @property
    def is_replaying(self) -> bool:
        """Whether records from before the last start are still being replayed."""
        return self._read < self._replay_to

    @property
    def is_closed(self) -> bool:
        """Whether the inbox is closed to new records."""
        return self._is_closed

    @property
    def has_unread(self) -> bool:
        """Whether accepted records are not read yet."""
        return bool(self._lines) or self.is_replaying

    @property
    def longest_wait(self) -> float:
        """Seconds for which the oldest record has waited to be read, 0 if none waits; by a monotonic clock."""
        with self._arrived:
            waiting = self._waiting[0].arrived if self._waiting else None
        if self._lines:
            place = bisect_left(self._open, self._lines[0][0], key=lambda request: request.last)
            waiting = self._open[place].arrived if place < len(self._open) else waiting
        return 0.0 if waiting is None else clock.monotonic() - waiting

    # ---- the source --------------------------------------------------------------------------------------------------

    def read(self, most: int, wait: float) -> list[Record] | None:
        """Return at most `most` records, all on disk; [] if none arrived within `wait` seconds."""
        if not self._lines and self._read < self._replay_to:
            self._load()
        if not self._lines:
            self._accept(wait)
        taken = [self._lines.popleft() for _ in range(min(most, len(self._lines)))]
        if taken:
            self._read = taken[-1][0]
        return [Record(str(number), line) for number, line in taken]

    def received(self, number: int) -> float:
        """Return when a record arrived."""
        place = bisect_left(self._open, number, key=lambda request: request.last)
        return self._open[place].received if place < len(self._open) else clock.time()

    def answer(self, number: int, result: Any) -> None:
        """Add the result of a record; call in the order of the records."""
        while self._open and self._open[0].last < number:
            self._finish(self._open.popleft())
        if self._open and self._open[0].waits:
            accepted = self._open[0].accepted
            assert accepted is not None
            accepted.results.append(result)

    def answer_all(self) -> None:
        """Complete the requests whose records are all processed."""
        while self._open and self._open[0].last <= self._read:
            self._finish(self._open.popleft())

    @property
    def position(self) -> Position:
        """The number of the last record read."""
        return self._read

    def seek(self, position: Position) -> None:
        """Continue after a `position`, with the accepted records that were not saved."""
        schema.whole()(position, "position")
        if position == self._read:  # all records read are saved: waiting clients are answered as usual
            return
        if position >= self._next:  # the history was lost or damaged
            self.notices.append(f"the models know {position} records, the history only {self._next - 1}: continuing")
            self._next = position + 1
        self._read, self._replay_to = position, self._next - 1
        self._lines.clear()
        while self._open:  # of a run that failed: their records are scored again without an answer
            request = self._open.popleft()
            if not request.answer.done():
                request.answer.set_exception(Busy("scoring was interrupted: the records are stored and scored later"))

    def trim(self, position: int) -> None:
        """Delete the records up to a position, which saved models include; keep the names of requests."""
        with self._database.write() as file:
            file.execute("UPDATE inbox SET body = NULL WHERE first + n <= ? AND body IS NOT NULL", (position + 1,))
            unnamed = "DELETE FROM inbox WHERE body IS NULL AND (request IS NULL OR first < ?)"
            file.execute(unnamed, (self._next - _REMEMBERED,))
            file.execute("INSERT OR REPLACE INTO facts VALUES ('inbox', ?)", (str(self._next),))

    def close(self) -> None:
        """Reject new requests."""
        with self._arrived:
            self._is_closed = True
            requests, self._waiting = [*self._open, *self._waiting], deque()
            self._arrived.notify()
        for request in requests:
            if not request.answer.done():
                request.answer.set_exception(Busy("the stream is stopping"))

    def _accept(self, wait: float) -> None:
        """Write waiting requests to the database."""
        with self._arrived:
            if not self._waiting and not self._is_closed and not self._is_woken:
                self._arrived.wait(wait)
            self._is_woken = False
            requests: list[_PostRequest] = []
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

    def _enter(self, file: Any, request: _PostRequest) -> Accepted:
        body = b"\n".join(request.lines)
        row = (self._next, len(request.lines), request.received, request.name, body, request.digest)
        file.execute("INSERT INTO inbox (first, n, received, request, body, digest) VALUES (?, ?, ?, ?, ?, ?)", row)
        accepted = Accepted(self._next, len(request.lines))
        self._next += len(request.lines)
        return accepted

    @staticmethod
    def _known(file: Any, request: _PostRequest) -> Accepted | None:
        """Return the earlier request with the same name, or None."""
        if request.name is None:
            return None
        found = file.execute("SELECT first, n, digest FROM inbox WHERE request = ?", (request.name,)).fetchone()
        if found is None:
            return None
        first, n, digest = found
        is_same = digest in (None, request.digest)  # earlier versions stored no digests
        return Accepted(first, n, is_repeated=True, is_same=is_same)

    @staticmethod
    def _answer_repeated(request: _PostRequest, accepted: Accepted) -> None:
        if accepted.is_same:
            request.answer.set_result(accepted)
        else:
            request.answer.set_exception(NameReused(f"an earlier request has the name {request.name!r}"))

    def _load(self) -> None:
        """Load the stored records that saved models do not include."""
        query = "SELECT first, n, received, body FROM inbox WHERE first + n > ? AND body IS NOT NULL ORDER BY first"
        size = 0
        with self._database.read() as file:
            for first, n, received, body in file.execute(query, (self._read + 1,)):
                lines = body.split(b"\n")
                size += len(body)
                request = _PostRequest([], None, False, Future(), 0, Accepted(first, n), received)
                self._open.append(request)
                self._lines.extend((first + i, line) for i, line in enumerate(lines) if first + i > self._read)
                if size > _BYTES_AT_ONCE:
                    break
        if not self._lines:  # the replay is complete
            self._read = self._replay_to

    def _finish(self, request: _PostRequest) -> None:
        if not request.answer.done():
            assert request.accepted is not None
            request.answer.set_result(request.accepted)
