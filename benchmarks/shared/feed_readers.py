"""Readers of the live feed of a service, in a process of their own: they must not delay those who post.

Run as `python -m benchmarks.shared.feed_readers URL N`. At the end of its input it prints the number of messages of
each reader. One more reader opens the feed and never reads.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import PIPE, Popen

import orjson

__all__ = ["reading"]

_REQUEST = b"GET /api/v1/feed HTTP/1.1\r\nHost: localhost\r\n\r\n"


class _Reader(asyncio.Protocol):
    """Counts messages, of which each has one line of data."""

    def __init__(self) -> None:
        self.n, self._last = 0, b""

    def data_received(self, data: bytes) -> None:
        self.n += (self._last + data).count(b"\ndata: ")
        self._last = data[-6:]  # too short for a whole mark


class _Idle(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()


async def _read(host: str, port: int, n: int) -> list[int]:
    loop, transports, readers = asyncio.get_running_loop(), [], []
    for kind in [_Idle, *[_Reader] * n]:
        transport, reader = await loop.create_connection(kind, host, port)
        assert isinstance(transport, asyncio.Transport)
        transport.write(_REQUEST)
        transports.append(transport)  # the loop does not keep one that is not read
        readers.append(reader)
    await asyncio.to_thread(sys.stdin.read)
    return [reader.n for reader in readers if isinstance(reader, _Reader)]


@contextmanager
def reading(url: str, n: int, counts: list[int]) -> Iterator[None]:
    """Let `n` readers read a feed; extend `counts` by the number of messages of each at the end."""
    command = [sys.executable, "-m", "benchmarks.shared.feed_readers", url, str(n)]
    with Popen(command, stdin=PIPE, stdout=PIPE) as process:
        try:
            yield
        finally:
            found, _ = process.communicate()
            counts.extend(orjson.loads(found or b"[]"))


if __name__ == "__main__":
    host, _, port = sys.argv[1].removeprefix("http://").partition(":")
    sys.stdout.write(orjson.dumps(asyncio.run(_read(host, int(port), int(sys.argv[2])))).decode())
