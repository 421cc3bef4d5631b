"""Closing of events that records do not close.

Flagged records of a key open an event and keep it open; enough unflagged records close it. A changed distribution opens
an event until the change ends. Open events are saved with the model of their key. This module closes an event if the
model no longer knows it (the model started over or returned to an earlier state), or if its key has been silent for too
long. An event that an operator has reopened is held: only an operator closes it.
"""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from polyaforest.service.events import EventChange

__all__ = ["OpenEvents", "closing", "is_of_model"]

_CHECKS = 10  # for silent keys, per `close_after`
_LONGEST_PAUSE = 10.0  # seconds between two checks


class OpenEvents:
    """The open events of a stream, other than silence, and when their keys last sent a record.

    Parameters
    ----------
    close_after : float
        Seconds without records of its key after which an event is closed.
    events : iterable of dict
        The open events; `close_after` starts now for their keys.
    steady : callable
        A monotonic clock.
    """

    def __init__(
        self,
        close_after: float,
        events: Iterable[Mapping[str, Any]] = (),
        *,
        steady: Callable[[], float] = clock.monotonic,
    ) -> None:
        self._close_after, self._steady = close_after, steady
        self._by_key: dict[str, set[str]] = {}
        self._heard: dict[str, float] = {}
        self._checked = steady()
        self.note(events)

    def note(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Track events after they were written."""
        for event in events:
            if not is_of_model(event):
                continue
            key, id = event["key"], event["id"]
            if event["is_open"] and not event.get("held"):
                self._by_key.setdefault(key, set()).add(id)
                self._heard.setdefault(key, self._steady())
            elif id in self._by_key.get(key, ()):
                self._by_key[key].discard(id)
                if not self._by_key[key]:
                    del self._by_key[key], self._heard[key]

    def hear(self, continued: Mapping[str, Collection[str]]) -> list[str]:
        """Take the open events of each key with new records; return tracked events that the models no longer know."""
        abandoned = []
        for key in self._by_key.keys() & continued.keys():
            self._heard[key] = self._steady()
            abandoned += sorted(self._by_key[key].difference(continued[key]))
        return abandoned

    def of_silent_keys(self) -> list[str]:
        """Return the open events of keys that have been silent for too long; checks only now and then."""
        now = self._steady()
        if now - self._checked < min(self._close_after / _CHECKS, _LONGEST_PAUSE):
            return []
        self._checked = now
        silent = sorted(key for key, heard in self._heard.items() if now - heard > self._close_after)
        return [id for key in silent for id in sorted(self._by_key[key])]


def is_of_model(event: Mapping[str, Any]) -> bool:
    """Return whether the model of a key keeps an event open: not silence, nor a failure of the stream."""
    return event["kind"] not in ("silence", "failure")


def closing(event: Mapping[str, Any], by: str) -> EventChange:
    """Return the change that closes an event.

    `by` is "records", "feedback", "silence", "settings", "model", "recovery" or "operator".
    """
    facts = {"closed_by": by}
    return EventChange(event["id"], event["key"], event["kind"], event["start"], event["end"], False, 0, facts)
