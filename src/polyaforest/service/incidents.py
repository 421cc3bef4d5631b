"""Incidents: alike events that overlap in time, such as the same symptom on several keys.

An event joins an incident when it begins, and stays in it: lists and alerts agree, and a long event does not absorb
unrelated ones. Events are alike if the same fields depart on the same side, if they are silences of one stream, or if
they have the same key in different streams.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from math import inf, sqrt
from typing import Any

__all__ = ["IncidentBook", "cause_of", "find_incidents", "likeness"]

_WITHIN = 60.0  # seconds after the end of an event in which an alike one still joins
_OPEN_WITHIN = 900.0  # seconds after the last flagged record of an open event
_LEAST_LIKENESS = 0.5
_MOST = 5000  # events to remember
_FACTS = (
    "id", "stream", "key", "kind", "start", "end", "is_open", "attributions", "departure", "severity", "bits",
    "incident", "summary",
)  # fmt: skip

Event = Mapping[str, Any]


def find_incidents(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the incidents that concern several keys, latest first.

    Events of earlier releases, which have not joined an incident, are joined by the same rule.

    Examples
    --------
    >>> def event(id, key, start, end, **bits):
    ...     event = {"id": id, "stream": "s", "key": key, "kind": "anomaly", "start": start, "end": end}
    ...     return {**event, "is_open": False, "bits": 9.0, "attributions": bits}
    >>> cpu, disk = event("a", "web-1", 100, 110, cpu=9), event("c", "web-3", 100, 110, disk=9)
    >>> found = find_incidents([event("b", "web-2", 105, 120, cpu=8, disk=1), cpu, disk])
    >>> [(one["first"]["key"], one["n_events"]) for one in found]
    [('web-1', 2)]
    """
    book, groups = IncidentBook(), dict[str, list[dict[str, Any]]]()
    for event in sorted(events, key=lambda one: (one["start"], one["id"])):
        incident = book.join(event)
        groups.setdefault(incident["id"], []).append(event)
    several = [group for group in groups.values() if len({(event["stream"], event["key"]) for event in group}) > 1]
    return [_incident(id, group) for id, group in reversed(groups.items()) if group in several]


def _incident(id: str, group: list[dict[str, Any]]) -> dict[str, Any]:
    first = group[0]
    return {
        "id": id,
        "start": first["start"],
        "end": max(event["end"] for event in group),
        "is_open": any(event["is_open"] for event in group),
        "bits": max((event["bits"] for event in group if event.get("bits") is not None), default=None),
        "severity": max((event["severity"] for event in group if event.get("severity")), default=None),
        "n_events": len(group),
        "streams": sorted({event["stream"] for event in group}),
        "first": {name: first[name] for name in ("stream", "key", "start")} | {"event": first["id"]},
        "events": group,
    }


class IncidentBook:
    """The latest events of all streams, and the incident of each; safe in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: dict[tuple[str, str], dict[str, Any]] = {}  # by stream and id

    def join(self, event: Event) -> dict[str, str]:
        """Return the incident of an event, as the id and the stream of its first event; remember the event."""
        with self._lock:
            known = event.get("incident")
            incident = dict(known) if known else self._of_alike(event) or {"id": event["id"], "stream": event["stream"]}
            place = (event["stream"], event["id"])
            self._events.pop(place, None)
            self._events[place] = {name: event.get(name) for name in _FACTS} | {"incident": incident}
            for old in list(self._events)[: max(0, len(self._events) - _MOST)]:
                del self._events[old]
        return incident

    def members(self, incident: str) -> list[dict[str, Any]]:
        """Return the remembered events of an incident, earliest first."""
        with self._lock:
            found = [event for event in self._events.values() if event["incident"]["id"] == incident]
        return sorted(found, key=lambda event: (event["start"], event["stream"], event["key"]))

    def _of_alike(self, event: Event) -> dict[str, str] | None:
        """Return the incident of the earliest event that overlaps and is alike, or None."""
        alike = [one for one in self._events.values() if _overlap(one, event) and _are_alike(one, event)]
        return dict(min(alike, key=lambda one: one["start"])["incident"]) if alike else None


def _overlap(one: Event, other: Event) -> bool:
    return bool(one["start"] <= _until(other) and other["start"] <= _until(one))


def _until(event: Event) -> float:
    """Return the time until which an alike event joins."""
    if not event["is_open"]:
        return float(event["end"]) + _WITHIN
    return float(event["end"]) + _OPEN_WITHIN if event["kind"] == "anomaly" else inf


def _are_alike(one: Event, other: Event) -> bool:
    is_key_same = bool(one["key"]) and one["key"] == other["key"]
    if one["stream"] != other["stream"] and is_key_same:
        return True
    if one["kind"] != other["kind"]:
        return False
    if one["kind"] != "anomaly":
        return bool(one["stream"] == other["stream"])
    (field, side), (other_field, other_side) = cause_of(one), cause_of(other)
    is_opposite = field == other_field and None not in (side, other_side) and side != other_side
    return not is_opposite and likeness(one, other) > _LEAST_LIKENESS


def cause_of(event: Event) -> tuple[str | None, str | None]:
    """Return the field that is the main cause of an event and its side, such as "high"; None if unknown."""
    departure = event.get("departure")
    if departure:
        return departure["field"], departure["side"]
    bits = {name: amount for name, amount in (event.get("attributions") or {}).items() if amount is not None}
    return (max(bits, key=lambda name: bits[name]) if bits else event.get("field")), None


def likeness(one: Event, other: Event) -> float:
    """Return the cosine similarity of the attributions of two events, from 0 to 1."""
    shares = [
        {name: max(bits or 0.0, 0.0) for name, bits in (event.get("attributions") or {}).items()}
        for event in (one, other)
    ]
    lengths = [sqrt(sum(bits * bits for bits in share.values())) for share in shares]
    product = sum(bits * shares[1].get(name, 0.0) for name, bits in shares[0].items())
    return product / (lengths[0] * lengths[1]) if all(lengths) else 0.0
