"""The live feed: messages to all readers; slow readers are dropped."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from polyaforest.io.json_values import to_json

__all__ = ["Feed", "FeedReader", "TooManyReaders"]

_MOST_WAITING = 256  # messages that a reader may be behind
_MOST_READERS = 1000
_PULSE = 0.25  # seconds between two messages about the records of a stream
_MOST_KEYS = 200  # in one such message
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
        """Send the collected messages periodically."""
        self._loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_PULSE)
            self._pulse()

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

    def close_soon(self) -> None:
        """End all feeds, from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.close)

    def close(self) -> None:
        """End all feeds."""
        self._is_closed = True
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
        """Queue a message for its readers; drop readers that are too far behind."""
        for reader in list(self._readers):
            if not reader.wants(stream, key) or (is_tail is not None and is_tail != (reader.key is not None)):
                continue
            try:
                reader.queue.put_nowait(message)
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
