"""The live feed: messages to all readers; slow readers are dropped."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from polyaforest.io.json_values import to_json

__all__ = ["Feed", "FeedReader", "TooManyReaders"]

_MOST_WAITING = 256  # messages that a reader may be behind
_MOST_READERS = 1000
_PULSE = 0.25  # seconds between two messages about the records of a stream
_MOST_KEYS = 200  # in one such message
_AT_ONCE = 20  # readers that get a message before other work of the event loop
_QUIET = 15.0  # seconds between comments that keep the connection alive


@dataclass(eq=False)
class FeedReader:
    """A reader of all streams, of one stream or of one key."""

    stream: str | None = None
    key: str | None = None
    address: str = ""  # of the client
    session: str | None = None  # that grants access
    queue: asyncio.Queue[bytes | None] = field(default_factory=lambda: asyncio.Queue(_MOST_WAITING))

    def wants(self, stream: str, key: str | None) -> bool:
        """Return whether a message is for this reader; `key` is None for messages about all keys."""
        is_stream = self.stream in (None, stream)
        return is_stream and (key is None or self.key in (None, key))


class TooManyReaders(Exception):  # noqa: N818 - reads better where it is caught
    """Raised if a reader is not accepted; `is_own_fault` if its own address has too many."""

    def __init__(self, message: str, *, is_own_fault: bool) -> None:
        super().__init__(message)
        self.is_own_fault = is_own_fault


class _Outgoing(NamedTuple):
    """A message to deliver; `is_tail` says whether only readers of one key get it, or only others."""

    message: bytes
    stream: str
    key: str | None
    is_tail: bool | None

    def is_for(self, reader: FeedReader) -> bool:
        """Return whether a reader gets the message."""
        is_right_kind = self.is_tail is None or self.is_tail == (reader.key is not None)
        return is_right_kind and reader.wants(self.stream, self.key)


class Feed:
    """Passes messages from the threads of streams to readers in the event loop.

    Parameters
    ----------
    dropped : callable
        Called for each slow reader that is dropped.
    most_of_address : int
        Largest number of readers per address.
    """

    def __init__(self, dropped: Callable[[], None] = lambda: None, most_of_address: int = _MOST_READERS) -> None:
        self._dropped, self._most_of_address = dropped, most_of_address
        self._readers: set[FeedReader] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False
        self._lock = threading.Lock()
        self._records: dict[tuple[str, str], dict[str, Any]] = {}  # since the last pulse, by stream and key
        self._tails: dict[tuple[str, str], list[dict[str, Any]]] = {}  # all of them, for readers of a key
        self._outgoing: deque[_Outgoing] = deque()  # messages that are not in the queues of readers yet
        self._has_outgoing = asyncio.Event()

    def __len__(self) -> int:
        return len(self._readers)

    # ---- from any thread ---------------------------------------------------------------------------------------------

    def publish(self, kind: str, stream: str, key: str | None, facts: dict[str, Any]) -> None:
        """Send a message."""
        loop = self._loop
        if loop is not None and self._readers and not loop.is_closed():
            loop.call_soon_threadsafe(self._send, _message(kind, facts), stream, key)

    def note(self, stream: str, key: str, record: dict[str, Any], n: int, n_flagged: int) -> None:
        """Count records of a key, given the latest one; readers get a message at the next pulse."""
        if not self._readers:
            return
        with self._lock:
            before = self._records.get((stream, key))
            if before is not None:
                n, n_flagged = n + before["n"], n_flagged + before["n_flagged"]
            if before is not None or len(self._records) < _MOST_KEYS:
                self._records[stream, key] = {**record, "n": n, "n_flagged": n_flagged}

    def wants_tail(self, stream: str, key: str) -> bool:
        """Return whether a reader follows this key alone, and so gets all of its records."""
        return any(reader.stream == stream and reader.key == key for reader in list(self._readers))

    def add_tail(self, stream: str, key: str, records: list[dict[str, Any]]) -> None:
        """Add records for the readers of one key."""
        with self._lock:
            tail = self._tails.setdefault((stream, key), [])
            tail.extend(records)
            del tail[:-1000]

    # ---- in the event loop -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Send messages as they come, and the collected ones periodically."""
        self._loop = asyncio.get_running_loop()
        due = self._loop.time() + _PULSE
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._has_outgoing.wait(), max(0.0, due - self._loop.time()))
            self._has_outgoing.clear()
            if self._loop.time() >= due:
                self._pulse()
                due = self._loop.time() + _PULSE
            await self._deliver()

    def add(self, reader: FeedReader) -> None:
        """Add a reader until `remove`; raise `TooManyReaders` at a limit."""
        if self._is_closed:
            raise TooManyReaders("the service is stopping", is_own_fault=False)
        if len(self._readers) >= _MOST_READERS:
            raise TooManyReaders(f"{_MOST_READERS} feeds are already open: try again later", is_own_fault=False)
        if sum(one.address == reader.address for one in self._readers) >= self._most_of_address:
            limit = f"{self._most_of_address} feeds from your address are already open"
            raise TooManyReaders(f"{limit}: close some, or raise server.feeds_per_address", is_own_fault=True)
        self._readers.add(reader)

    def remove(self, reader: FeedReader) -> None:
        """Remove a reader."""
        self._readers.discard(reader)

    async def listen(self, reader: FeedReader) -> AsyncIterator[bytes]:
        """Yield messages until the reader is dropped."""
        yield b"retry: 2000\n\n"
        while True:
            try:
                message = await asyncio.wait_for(reader.queue.get(), _QUIET)
            except TimeoutError:
                message = b": alive\n\n"
            if message is None:
                return
            yield message

    def end_session(self, session: str) -> None:
        """End the feeds of a session."""
        for reader in [reader for reader in self._readers if reader.session == session]:
            self._drop(reader)

    def end_sessions(self) -> None:
        """End all feeds, from any thread; readers with a valid token or session come back."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._drop_all)

    def close_soon(self) -> None:
        """End all feeds, from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.close)

    def close(self) -> None:
        """End all feeds."""
        self._is_closed = True
        self._drop_all()

    def _drop_all(self) -> None:
        for reader in list(self._readers):
            self._drop(reader)

    def _pulse(self) -> None:
        with self._lock:
            records, self._records = self._records, {}
            tails, self._tails = self._tails, {}
        streams: dict[str, list[dict[str, Any]]] = {}
        for (stream, key), record in records.items():
            streams.setdefault(stream, []).append({"key": key, **record})
        for stream, of_stream in streams.items():
            self._send(_message("records", {"stream": stream, "keys": of_stream}), stream, None, is_tail=False)
        for (stream, key), tail in tails.items():
            self._send(_message("tail", {"stream": stream, "key": key, "records": tail}), stream, key, is_tail=True)

    def _send(self, message: bytes, stream: str, key: str | None, is_tail: bool | None = None) -> None:
        """Add a message to those to deliver."""
        self._outgoing.append(_Outgoing(message, stream, key, is_tail))
        self._has_outgoing.set()

    async def _deliver(self) -> None:
        """Queue messages for their readers, a few readers at a time, so that requests in between do not wait for all.

        Readers that are too far behind are dropped.
        """
        while self._outgoing:
            one = self._outgoing.popleft()
            for number, reader in enumerate(list(self._readers), 1):
                if number % _AT_ONCE == 0:
                    await asyncio.sleep(0)
                if reader not in self._readers or not one.is_for(reader):
                    continue
                try:
                    reader.queue.put_nowait(one.message)
                except asyncio.QueueFull:
                    self._dropped()
                    self._drop(reader)

    def _drop(self, reader: FeedReader) -> None:
        self._readers.discard(reader)
        while not reader.queue.empty():
            reader.queue.get_nowait()
        reader.queue.put_nowait(None)


def _message(kind: str, facts: dict[str, Any]) -> bytes:
    """Format a server-sent event."""
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), to_json(facts))
