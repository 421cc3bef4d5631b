"""The live feed: messages for everyone who listens, of which slow readers are dropped."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from polyaforest.io._json import to_json

__all__ = ["Feed", "Reader"]

_MOST_WAITING = 256  # messages that a reader may be behind
_MOST_READERS = 1000
_PULSE = 0.25  # seconds between two messages about the records of a stream
_MOST_KEYS = 200  # in one such message
_QUIET = 15.0  # seconds after which a comment keeps the connection alive


@dataclass(eq=False)
class Reader:
    """One who listens: to all streams, or to one, or to one key of it."""

    stream: str | None = None
    key: str | None = None
    queue: asyncio.Queue[bytes | None] = field(default_factory=lambda: asyncio.Queue(_MOST_WAITING))

    def wants(self, stream: str, key: str | None) -> bool:
        """Return whether a message is for this reader; `key` is None for one about all keys."""
        is_stream = self.stream in (None, stream)
        return is_stream and (key is None or self.key in (None, key))


class Feed:
    """Hands messages from the threads of streams to readers in the event loop.

    Parameters
    ----------
    dropped : callable
        Called for each reader that is dropped for being slow.
    """

    def __init__(self, dropped: Callable[[], None] = lambda: None) -> None:
        self._dropped = dropped
        self._readers: set[Reader] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False
        self._lock = threading.Lock()
        self._records: dict[tuple[str, str], dict[str, Any]] = {}  # since the last pulse, by stream and key
        self._tails: dict[tuple[str, str], list[dict[str, Any]]] = {}  # all of them, for readers of a key

    def __len__(self) -> int:
        return len(self._readers)

    @property
    def is_full(self) -> bool:
        """Whether no more readers are taken."""
        return self._is_closed or len(self._readers) >= _MOST_READERS

    # ---- from any thread ---------------------------------------------------------------------------------------------

    def publish(self, kind: str, stream: str, key: str | None, facts: dict[str, Any]) -> None:
        """Send a message."""
        loop = self._loop
        if loop is not None and self._readers and not loop.is_closed():
            loop.call_soon_threadsafe(self._send, _message(kind, facts), stream, key)

    def note(self, stream: str, key: str, record: dict[str, Any], n: int, n_flagged: int) -> None:
        """Remember that records of a key came, the latest of which is given; readers hear of it at the next pulse."""
        if not self._readers:
            return
        with self._lock:
            before = self._records.get((stream, key))
            if before is not None:
                n, n_flagged = n + before["n"], n_flagged + before["n_flagged"]
            if before is not None or len(self._records) < _MOST_KEYS:
                self._records[stream, key] = {**record, "n": n, "n_flagged": n_flagged}

    def wants_tail(self, stream: str, key: str) -> bool:
        """Return whether anyone listens to one key alone, who gets all of its records."""
        return any(reader.stream == stream and reader.key == key for reader in list(self._readers))

    def add_tail(self, stream: str, key: str, records: list[dict[str, Any]]) -> None:
        """Add records for those who listen to one key alone."""
        with self._lock:
            tail = self._tails.setdefault((stream, key), [])
            tail.extend(records)
            del tail[:-1000]

    # ---- in the event loop -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Send what was noted, again and again."""
        self._loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_PULSE)
            self._pulse()

    async def listen(self, reader: Reader) -> AsyncIterator[bytes]:
        """Yield messages until the reader is dropped."""
        self._readers.add(reader)
        try:
            yield b"retry: 2000\n\n"
            while True:
                try:
                    message = await asyncio.wait_for(reader.queue.get(), _QUIET)
                except TimeoutError:
                    message = b": alive\n\n"
                if message is None:
                    return
                yield message
        finally:
            self._readers.discard(reader)

    def close_soon(self) -> None:
        """End the feeds of all readers, from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.close)

    def close(self) -> None:
        """End the feeds of all readers."""
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
        """Hand a message to those whom it is for; those who are too far behind are dropped."""
        for reader in list(self._readers):
            if not reader.wants(stream, key) or (is_tail is not None and is_tail != (reader.key is not None)):
                continue
            try:
                reader.queue.put_nowait(message)
            except asyncio.QueueFull:
                self._dropped()
                self._drop(reader)

    def _drop(self, reader: Reader) -> None:
        self._readers.discard(reader)
        while not reader.queue.empty():
            reader.queue.get_nowait()
        reader.queue.put_nowait(None)


def _message(kind: str, facts: dict[str, Any]) -> bytes:
    """Return a message as server-sent events have it."""
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), to_json(facts))
