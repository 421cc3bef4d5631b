"""Incidents: groups of events on several keys that overlap in time, with the key that was first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["find_incidents"]


def find_incidents(events: Iterable[dict[str, Any]], within: float = 60.0) -> list[dict[str, Any]]:
    """Group events that overlap in time on several keys, latest first.

    Parameters
    ----------
    events : iterable of dict
    within : float
        Seconds after the end of an event in which another event still joins the group.

    Examples
    --------
    >>> def event(id, key, start, end):
    ...     return {"id": id, "stream": "s", "key": key, "start": start, "end": end, "is_open": False, "bits": 9.0}
    >>> found = find_incidents([event("b", "web-2", 105, 120), event("a", "web-1", 100, 110), event("c", "x", 900, 9)])
    >>> [(one["first"]["key"], one["n_events"]) for one in found]
    [('web-1', 2)]
    """
    groups: list[list[dict[str, Any]]] = []
    until = float("-inf")
    for event in sorted(events, key=lambda one: (one["start"], one["id"])):
        if event["start"] > until + within:
            groups.append([])
            until = float("-inf")
        groups[-1].append(event)
        until = max(until, event["end"])
    several = [group for group in groups if len({(event["stream"], event["key"]) for event in group}) > 1]
    return [_incident(group) for group in reversed(several)]


def _incident(group: list[dict[str, Any]]) -> dict[str, Any]:
    first = group[0]
    return {
        "id": first["id"],
        "start": first["start"],
        "end": max(event["end"] for event in group),
        "is_open": any(event["is_open"] for event in group),
        "bits": max((event["bits"] for event in group if event.get("bits") is not None), default=None),
        "n_events": len(group),
        "streams": sorted({event["stream"] for event in group}),
        "first": {name: first[name] for name in ("stream", "key", "start")} | {"event": first["id"]},
        "events": group,
    }
