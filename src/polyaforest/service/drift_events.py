"""Events of changed distributions.

The drift monitor of a key reports when a change begins, is known better, and ends. The open event is saved in the notes
of the model; it counts only while the monitor has an ongoing change, so that it closes if the monitor starts over.
"""

from __future__ import annotations

from typing import Any

from polyaforest.drift import Change, DriftMonitor
from polyaforest.judge.describe import describe_change
from polyaforest.judge.judgement import Judgement
from polyaforest.judge.models import Entry
from polyaforest.service.events import EventChange, event_id
from polyaforest.util import schema

__all__ = ["drift_changes", "open_drift", "return_drift", "take_drift"]

_NAME = "drift"
_RULE = schema.record({"id": schema.text, "start": schema.number})


def drift_changes(stream: str, entry: Entry, judgement: Judgement, number: int, when: float) -> list[EventChange]:
    """Return the events that the changes noticed with a record open, update or close."""
    key, events = judgement.row.key or "", []
    for change in judgement.changes:
        event = _saved(entry)
        if change.state == "begun":
            start = min(when if change.start_time is None else change.start_time, when)
            id = event_id(stream, "drift", key, number) if event is None else event["id"]
            event = entry.notes[_NAME] = {"id": id, "start": start}
            events.append(EventChange(id, key, "drift", start, when, True, 0, _facts(change, when)))
        elif event is not None:  # else it was closed before the change ended
            entry.notes[_NAME] = None
            facts = {"closed_by": "records", "outcome": str(change)}
            events.append(EventChange(event["id"], key, "drift", event["start"], when, False, 0, facts))
    return events


def _facts(change: Change, when: float) -> dict[str, Any]:
    return {
        "peak": when,
        "bits": None,
        "reasons": [],
        "summary": change.summary,
        "closed_by": None,
        "outcome": None,
        "drift": describe_change(change),
    }


def open_drift(entry: Entry) -> str | None:
    """Return the id of the open event of a model, or None."""
    event = _saved(entry)
    return event["id"] if event is not None and _is_ongoing(entry) else None


def take_drift(entry: Entry, id: str) -> dict[str, Any] | None:
    """Detach an event from its model, so that no record closes it; return its state, None if it was not open."""
    event = _saved(entry)
    if event is None or event["id"] != id:
        return None
    entry.notes[_NAME] = None
    return {_NAME: event}


def return_drift(entry: Entry, state: dict[str, Any]) -> bool:
    """Reattach an event detached by `take_drift`; return whether its change continues."""
    if _saved(entry) is not None or not _is_ongoing(entry):
        return False
    entry.notes[_NAME] = state[_NAME]
    return True


def _saved(entry: Entry) -> dict[str, Any] | None:
    event: Any = entry.notes.get(_NAME)
    if event is None:  # nearly always
        return None
    try:
        _RULE(event, _NAME)
    except (ValueError, TypeError):
        return None
    return dict(event)


def _is_ongoing(entry: Entry) -> bool:
    monitor = entry.detector.companion
    return isinstance(monitor, DriftMonitor) and monitor.change_ is not None
