"""The gateway of a stream whose metrics are pushed: from samples to records in its inbox.

An acknowledged sample is on disk: in a record in the inbox, or in the state of the gatherer, which the history stores.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time as clock
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from polyaforest.service.gather import Gathered, Gatherer
from polyaforest.service.inbox import Busy
from polyaforest.service.samples import MetricSample
from polyaforest.service.stream import ServedStream
from polyaforest.util.text import printable

__all__ = ["Gateway", "Gateways"]

_LOG = logging.getLogger("polyaforest.service")
_STATE, _TOTALS = "metrics", "metric totals"  # in the table of facts
_MOST_READY = 100_000  # records that the inbox has not taken
_MOST_AT_ONCE = 10_000  # records in a request to the inbox
_TOTALS_SECONDS = 30.0  # between two times that the totals of counters are stored
_CHECK_SECONDS = 0.25
_MOST_NAMES = 100  # of metrics without a field, in a description


class Gateway:
    """Gathers the samples of a stream into records, and puts these into its inbox.

    Parameters
    ----------
    stream : ServedStream
        Its models are open: `latest` includes all records of the inbox.
    """

    def __init__(self, stream: ServedStream) -> None:
        rule = stream.config.metrics
        assert rule is not None
        self._stream, self.rule = stream, rule
        self.gatherer = Gatherer(rule, self._why_ahead, stream.history.latest_times())
        self._lock = asyncio.Lock()
        self._stored_totals = clock.monotonic()
        self._stored = b""
        with stream.database.read() as file:
            query = "SELECT name, value FROM facts WHERE name IN (?, ?)"
            stored = dict(file.execute(query, (_STATE, _TOTALS)).fetchall())
        self.gatherer.restore(stored.get(_STATE), stored.get(_TOTALS))

    def _why_ahead(self, time: float) -> str | None:
        return self._stream.history.clocks.why_ahead(time, clock.time())

    async def take(self, samples: Sequence[MetricSample]) -> Gathered:
        """Take the samples of a request; return once they are on disk. Raise `Busy` if the stream is too slow."""
        async with self._lock:
            if len(self.gatherer.ready) > _MOST_READY:
                raise Busy(f"too many records of {self._stream.name} are waiting: try again later")
            gathered = await asyncio.to_thread(self.gatherer.add, samples)
            await self._put()
            return gathered

    async def check(self) -> None:
        """Pass on the records whose time of waiting is over."""
        async with self._lock:
            self.gatherer.check()
            await self._put()

    async def _put(self) -> None:
        """Put complete records into the inbox, and store the state."""
        inbox = self._stream.inbox
        while self.gatherer.ready and inbox is not None:
            lines = self.gatherer.ready[:_MOST_AT_ONCE]
            try:
                await asyncio.wrap_future(inbox.put(list(lines), waits=False))
            except Busy:
                break  # they stay ready, and are stored
            del self.gatherer.ready[: len(lines)]
        await asyncio.to_thread(self.save)

    def save(self, *, is_end: bool = False) -> None:
        """Store the state, and now and then the totals of counters."""
        state, now = self.gatherer.state(), clock.monotonic()
        is_due = is_end or now - self._stored_totals > _TOTALS_SECONDS
        if state == self._stored and not is_due:
            return
        with self._stream.database.write() as file:
            query = "INSERT OR REPLACE INTO facts VALUES (?, ?)"
            file.execute(query, (_STATE, state))
            if is_due:
                file.execute(query, (_TOTALS, self.gatherer.totals()))
                self._stored_totals = now
        self._stored = state

    def about(self) -> dict[str, Any]:
        """Describe what has arrived since the start."""
        gatherer = self.gatherer
        names = [{"name": name, "samples": n} for name, n in gatherer.unmapped.most_common(_MOST_NAMES)]
        return {
            "used": gatherer.n_used,
            "late": gatherer.n_late,
            "rejected": gatherer.n_rejected,
            "without_field": names,
        }


class Gateways:
    """The gateways of a service, made when their streams run."""

    def __init__(self) -> None:
        self._gateways: dict[str, Gateway] = {}

    def of(self, stream: ServedStream) -> Gateway:
        """Return the gateway of a stream; raise `Busy` if the stream is not running."""
        if not stream.is_ready:
            raise Busy(f"the stream {stream.name} is not running: {stream.error or 'it is starting'}")
        known = self._gateways.get(stream.name)
        if known is None or known.rule != stream.config.metrics:
            if known is not None:
                known.save(is_end=True)
            known = self._gateways[stream.name] = Gateway(stream)
        return known

    def about(self, stream: ServedStream) -> dict[str, Any] | None:
        """Describe what has arrived for a stream; None if nothing has."""
        known = self._gateways.get(stream.name)
        return None if known is None else known.about()

    async def run(self, streams: Callable[[], Iterable[ServedStream]]) -> None:
        """Pass on overdue records until cancelled."""
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            for stream in streams():
                if stream.config.metrics is None or not stream.is_ready:
                    continue
                try:
                    await self.of(stream).check()
                except Exception as problem:  # other streams must continue, and the cause may be temporary
                    _LOG.error("stream %s: its metrics wait: %s", stream.name, printable(str(problem)))

    def save(self) -> None:
        """Store the state of all."""
        for gateway in self._gateways.values():
            with suppress(sqlite3.ProgrammingError):  # its stream was removed, and its file is closed
                gateway.save(is_end=True)
