"""What operators do with events: acknowledge, close and reopen them, each with a note in the audit log."""

from __future__ import annotations

import time as clock
from typing import Any

from polyaforest.service.audit import log
from polyaforest.service.feedback import Conflict
from polyaforest.service.stream import ServedStream
from polyaforest.service.worker import Worker

__all__ = ["acknowledge", "close", "reopen", "withdraw_acknowledgement"]


def acknowledge(stream: ServedStream, id: str, *, who: str, note: str) -> dict[str, Any]:
    """Mark an open event as being worked on; it sends no alerts until it ends."""
    event = _event(stream, id)
    if not event["is_open"]:
        raise Conflict("this event is closed: reopen it first")
    facts = {"by": who, "at": clock.time(), "note": note}
    return _update(stream, id, who, "acknowledge", note, acknowledged=facts)


def withdraw_acknowledgement(stream: ServedStream, id: str, *, who: str) -> dict[str, Any]:
    """Remove the mark of `acknowledge`."""
    if not _event(stream, id).get("acknowledged"):
        raise Conflict("this event is not acknowledged")
    return _update(stream, id, who, "withdraw acknowledgement", "", acknowledged=None)


def close(stream: ServedStream, worker: Worker, id: str, *, who: str, note: str) -> dict[str, Any]:
    """Close an event; later flagged records begin another one."""
    if not _event(stream, id)["is_open"]:
        raise Conflict("this event is closed already")
    stream.close_events(worker, [id], "operator")
    return _update(stream, id, who, "close", note, held=None)


def reopen(stream: ServedStream, id: str, *, who: str, note: str) -> dict[str, Any]:
    """Open a closed event again, until an operator closes it."""
    event = _event(stream, id)
    if event["is_open"]:
        raise Conflict("this event is open")
    if event["label"] == "normal":
        raise Conflict("this event is labelled as normal: undo the feedback first")
    return _update(stream, id, who, "reopen", note, is_open=True, held=True, closed_by=None, acknowledged=None)


def _event(stream: ServedStream, id: str) -> dict[str, Any]:
    event = stream.events.get(id)
    if event is None:
        raise KeyError(id)
    return event


def _update(stream: ServedStream, id: str, who: str, action: str, note: str, **facts: Any) -> dict[str, Any]:
    with stream.database.write() as file:
        event = stream.events.update(file, id, **facts)
        log(file, who, action, {"event": id, "note": note})
    stream.announce_event(event)
    return event
