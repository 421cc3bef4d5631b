"""Silence: a stream, key or field that has sent no values for too long.

Durations are measured on a monotonic clock, so that a correction of the system clock causes no silence.
"""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isnan
from typing import Any, NamedTuple

from polyaforest.service.blocks import ScoredRecord
from polyaforest.service.events import EventChange, event_id

__all__ = ["Silence"]

_CHECKS = 10  # per allowed duration
_MOST_KEYS = 1000  # to report at a time


class _Quiet(NamedTuple):
    """A silent key or field, and when its silence began, in seconds since 1970."""

    key: str
    field: str | None
    since: float
    id: str


class Silence:
    """Tracks when each key and field last had a value.

    Parameters
    ----------
    stream : str
    longest : float
        Longest allowed time without a value, in seconds.
    keys : iterable of str
        Keys from before this process started; `longest` starts now for them.
    lasting : sequence of dict
        Silence events that were open when the last process ended.
    steady : callable
        A monotonic clock.
    """

    def __init__(
        self,
        stream: str,
        longest: float,
        keys: Iterable[str],
        lasting: Sequence[Mapping[str, Any]],
        *,
        steady: Callable[[], float] = clock.monotonic,
    ) -> None:
        self._stream, self._longest, self._steady = stream, longest, steady
        now = steady()
        self._seen: dict[tuple[str, str | None], float] = {(key, None): now for key in keys}
        self._stream_seen: float | None = now if self._seen else None
        self._silent: dict[tuple[str, str | None] | None, _Quiet] = {}
        for event in lasting:
            key, name = event["key"], event.get("field")
            place = None if event.get("what") == "stream" else (key, name)
            self._silent[place] = _Quiet(key, name, event["start"], event["id"])
        self._checked = now

    def hear(self, samples: Mapping[str, Sequence[ScoredRecord]], fields: Sequence[str]) -> list[EventChange]:
        """Register records; return the silence events that they end."""
        if not samples:
            return []
        now, changes = self._steady(), self._ended(None)
        self._stream_seen = now
        for key, of_key in samples.items():
            self._seen[key, None] = now
            changes += self._ended((key, None))
            newest = of_key[-1].values
            for name, value in zip(fields, newest, strict=False):
                if not isnan(value):
                    self._seen[key, name] = now
                    changes += self._ended((key, name))
        return changes

    def check(self, position: int) -> list[EventChange]:
        """Return the silence events that begin now."""
        now = self._steady()
        if now - self._checked < self._longest / _CHECKS or self._stream_seen is None:
            return []
        self._checked = now
        if now - self._stream_seen > self._longest:
            return self._begun(None, self._stream_seen, position)
        changes: list[EventChange] = []
        for place, seen in list(self._seen.items()):
            key, name = place
            is_key_silent = name is not None and now - self._seen[key, None] > self._longest
            if now - seen > self._longest and not is_key_silent:
                changes += self._begun(place, seen, position)
            if len(changes) >= _MOST_KEYS:
                break
        return changes

    def is_silent(self, id: str) -> bool:
        """Return whether the silence of an event continues."""
        return any(quiet.id == id for quiet in self._silent.values())

    def _begun(self, place: tuple[str, str | None] | None, seen: float, position: int) -> list[EventChange]:
        if place in self._silent:
            return []
        since = clock.time() - (self._steady() - seen)
        key, name = ("", None) if place is None else place
        what = "stream" if place is None else "key" if name is None else "field"
        id = event_id(self._stream, f"silence {what} {name}", key, int(since * 1000))
        self._silent[place] = _Quiet(key, name, since, id)
        whose = {"stream": "this stream", "key": f"the key {key!r}", "field": f"the field {name!r}"}[what]
        span = "a second" if self._longest == 1 else f"{self._longest:g} seconds"
        words = f"no values from {whose} for more than {span}"
        facts: dict[str, Any] = {
            "what": what,
            "field": name,
            "summary": words,
            "peak": since,
            "bits": None,
            "reasons": [],
        }
        return [EventChange(id, key, "silence", since, _after(since), True, position, facts)]

    def _ended(self, place: tuple[str, str | None] | None) -> list[EventChange]:
        quiet = self._silent.pop(place, None)
        if quiet is None:
            return []
        return [
            EventChange(
                quiet.id, quiet.key, "silence", quiet.since, _after(quiet.since), False, 0, {"closed_by": "records"}
            )
        ]


def _after(since: float) -> float:
    """Return the current time, at least `since`: the clock may have been set back."""
    return max(since, clock.time())
