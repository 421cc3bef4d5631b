"""The life of an event that is an anomaly: what closes it, when its records do not.

Flagged records of a key open an event and keep it open; records that are not flagged close it. The event that records
may still continue is saved with the model of the key. So an open event is closed here if the model of its key does not
know it any more (it started over, or returned to an earlier state), and if its key has been silent for long.
"""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from polyaforest.service.events import Change

__all__ = ["OpenEvents", "closing"]

_CHECKS = 10  # for silent keys, in the time after which they count as silent
_LONGEST_PAUSE = 10.0  # seconds between two checks


class OpenEvents:
    """The open anomalies of a stream, and when their keys last reported.

    Parameters
    ----------
    close_after : float
        Seconds without a record of its key after which an event is closed.
    events : iterable of dict
        Those that are open; their keys have until `close_after` from now.
    steady : callable
        A clock that cannot be set.
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
        """Take note of events as they were written."""
        for event in events:
            if event["kind"] != "anomaly":
                continue
            key, id = event["key"], event["id"]
            if event["is_open"]:
                self._by_key.setdefault(key, set()).add(id)
                self._heard.setdefault(key, self._steady())
            elif id in self._by_key.get(key, ()):
                self._by_key[key].discard(id)
                if not self._by_key[key]:
                    del self._by_key[key], self._heard[key]

    def hear(self, continued: Mapping[str, str | None]) -> list[str]:
        """Take the event that each reporting key continues, if any; return the open events that no record continues."""
        abandoned = []
        for key in self._by_key.keys() & continued.keys():
            self._heard[key] = self._steady()
            abandoned += sorted(self._by_key[key] - {continued[key]})
        return abandoned

    def of_silent_keys(self) -> list[str]:
        """Return the open events of keys that have been silent for too long; it looks now and then only."""
        now = self._steady()
        if now - self._checked < min(self._close_after / _CHECKS, _LONGEST_PAUSE):
            return []
        self._checked = now
        silent = sorted(key for key, heard in self._heard.items() if now - heard > self._close_after)
        return [id for key in silent for id in sorted(self._by_key[key])]


def closing(event: Mapping[str, Any], by: str) -> Change:
    """Return the change that closes an event, by "records", "feedback", "silence", "settings" or "model"."""
    facts = {"closed_by": by}
    return Change(event["id"], event["key"], event["kind"], event["start"], event["end"], False, 0, facts)
