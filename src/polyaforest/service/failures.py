"""Events about a stream itself: it fails, or falls behind the records that arrive."""

from __future__ import annotations

import time as clock
from typing import Any

from polyaforest.service.events import EventChange, event_id

__all__ = ["Failures"]

_REPORTED = 2  # failures in a row: most are over at the first retry


class Failures:
    """Decides when events about a stream begin and end; each start of the stream makes a new one.

    Parameters
    ----------
    stream : str
    """

    def __init__(self, stream: str) -> None:
        self._stream, self._n_failed = stream, 0
        self._behind: EventChange | None = None  # the open event

    def failed(self, why: str) -> list[EventChange]:
        """Return the event that begins now that the stream has failed again; its next start closes it."""
        self._n_failed += 1
        if self._n_failed != _REPORTED:
            return []
        return [self._begun("stream", f"this stream is not running: {why}")]

    def waits(self, seconds: float, most: float) -> list[EventChange]:
        """Return the events that begin or end, given how long the oldest record has waited to be scored."""
        if self._behind is None and seconds > most:
            self._behind = self._begun("lag", f"posted records wait {seconds:.0f} seconds to be scored")
            return [self._behind]
        if self._behind is not None and seconds < most / 2:
            begun, self._behind = self._behind, None
            facts = {"closed_by": "recovery"}
            return [begun._replace(end=max(begun.start, clock.time()), is_open=False, facts=facts)]
        return []

    def _begun(self, what: str, summary: str) -> EventChange:
        now = clock.time()
        facts: dict[str, Any] = {"what": what, "field": None, "summary": summary, "peak": now}
        facts |= {"bits": None, "reasons": []}
        id = event_id(self._stream, f"failure {what}", "", int(now * 1000))
        return EventChange(id, "", "failure", now, now, True, 0, facts)
