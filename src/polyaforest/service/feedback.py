"""Feedback on events: the model unlearns an incident exactly, or learns that records are normal; both can be undone.

The thread of the stream applies feedback between two batches, in three steps. It stores the feedback with a copy of the
model; it changes the model and saves it with the number of the feedback; it marks the feedback as applied, labels the
event and extends the audit log. If the process is killed after the second step, the next start completes the third; if
before, the feedback, which was not acknowledged, is void. Undo follows the same steps.
"""

from __future__ import annotations

import sqlite3
import time as clock
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import orjson

from polyaforest.detectors import SeriesMPF, StreamingMPF
from polyaforest.forest.point_store import Key, copied_keys, keys_named
from polyaforest.io.json_values import to_json
from polyaforest.judge.changes import apply_settings
from polyaforest.judge.models import Detector, Entry, load_stream
from polyaforest.service.audit import log
from polyaforest.service.blocks import FLAGGED, KEPT_OUT, NOT_LEARNED, Block
from polyaforest.service.gates import KnownNormal
from polyaforest.service.numbering import Numbering
from polyaforest.service.relearn import replay
from polyaforest.service.stream import ServedStream
from polyaforest.service.worker import Worker

__all__ = ["Conflict", "complete_pending", "feedback_on", "forget", "give", "known_normals", "reapply_feedback", "undo"]

_MOST_COPIES = 64  # of a record that was normal
_KEPT = 20  # copies of models, to undo feedback


class Conflict(Exception):  # noqa: N818 - reads better where it is caught
    """Raised if feedback cannot be given or undone."""


def give(stream: ServedStream, worker: Worker, id: str, verdict: str, *, who: str, note: str = "") -> None:
    """Label an event as "incident" or "normal", and update its model."""
    event = stream.events.get(id)
    if event is None:
        raise KeyError(id)
    if event["label"] is not None:
        raise Conflict(f"this event is already labelled as {event['label']}: undo that first")
    entry = worker.store[event["key"]]
    is_about_points = event["kind"] == "anomaly" and entry.detector.is_fitted
    block = stream.history.records(event["key"], first=event["first"], last=event["last"]) if is_about_points else None
    before = entry.detector.to_bytes({}) if block is not None else None
    taken = worker.take_event(event["key"], id) if verdict == "normal" else None
    facts: dict[str, Any] = {"note": note, "key": event["key"], "n_seen": _n_seen(entry.detector), "event": taken}
    with stream.database.write() as file:
        columns = "(event, verdict, at, state, position, facts, before)"
        row = (id, verdict, clock.time(), worker.position, to_json(facts), before)
        made = file.execute(f"INSERT INTO feedback {columns} VALUES (?, ?, ?, 'pending', ?, ?, ?)", row)
        number, n_applied = int(made.lastrowid or 0), stream.applied
    try:
        if block is not None:
            facts |= _apply(entry, worker, block, verdict, _latest(stream, event["key"], block))
        with stream.database.write() as file:
            file.execute("UPDATE feedback SET facts = ? WHERE id = ?", (to_json(facts), number))
        stream.applied = number
        worker.commit()
    except BaseException:
        stream.applied = n_applied
        if before is not None:
            entry.detector = _loaded(before, worker)
        if taken is not None:
            worker.return_event(event["key"], taken)
        with stream.database.write() as file:
            file.execute("UPDATE feedback SET state = 'void', before = NULL WHERE id = ?", (number,))
        raise
    _complete(stream, number, who)
    worker.known = known_normals(stream)


def complete_pending(stream: ServedStream, worker: Worker) -> None:
    """Complete feedback that the saved models include; void the rest."""
    for number in _in_state(stream, "undoing"):
        if number == stream.undone:
            _complete_undo(stream, number, None)
        else:
            _keep_applied(stream, number)
    for number in _in_state(stream, "pending"):
        if number <= stream.applied:
            _complete(stream, number, "unknown, completed after a restart")
        else:
            with stream.database.write() as file:
                file.execute("UPDATE feedback SET state = 'void', before = NULL WHERE id = ?", (number,))
    worker.known = known_normals(stream)


def reapply_feedback(stream: ServedStream, worker: Worker) -> Callable[[str, Entry], None]:
    """Return a function that applies the feedback on a key to its relearned model.

    Feedback given so far can no longer be undone.
    """
    given: dict[str, list[tuple[str, str]]] = {}
    with stream.database.write() as file:
        file.execute("UPDATE feedback SET before = NULL")
        query = "SELECT event, verdict, facts FROM feedback WHERE state = 'applied' ORDER BY id"
        for id, verdict, facts in file.execute(query):
            given.setdefault(orjson.loads(facts)["key"], []).append((id, verdict))

    def apply(key: str, entry: Entry) -> None:
        for id, verdict in given.get(key, ()):
            event = stream.events.get(id)
            if event is not None and event["kind"] == "anomaly":
                block = stream.history.records(key, first=event["first"], last=event["last"])
                if block is not None:
                    _apply(entry, worker, block, verdict, _latest(stream, key, block))

    return apply


def undo(stream: ServedStream, worker: Worker, id: str, *, who: str) -> None:
    """Undo the latest feedback on an event; the model is then as if it had not been given."""
    event = stream.events.get(id)
    if event is None:
        raise KeyError(id)
    found = _applied(stream, "event = ?", (id,))
    if not found:
        raise Conflict("this event has no feedback to undo")
    number, _, position, facts, before = found[-1]
    if before is not None:
        model, later = _restored(stream, worker, event["key"], number, position, facts, before)
    elif facts.get("n_deleted") or facts.get("n_taught"):
        raise Conflict("too late to undo: the former model is no longer stored")
    else:
        model, later = worker.store[event["key"]].detector, {}
    _save_without(stream, worker, event, number, model, {**facts, "undone_by": who})
    _complete_undo(stream, number, later)
    worker.known = known_normals(stream)


def feedback_on(stream: ServedStream, id: str) -> list[dict[str, Any]]:
    """Return the feedback on an event."""
    query = "SELECT id, verdict, at, state, facts, before IS NOT NULL FROM feedback WHERE event = ? ORDER BY id"
    with stream.database.read() as file:
        rows = file.execute(query, (id,)).fetchall()
    names = ("id", "verdict", "at", "state", "facts", "can_undo")
    shown = [dict(zip(names, row, strict=True)) for row in rows if row[3] in ("applied", "undone")]
    for one in shown:
        facts = one["facts"] = orjson.loads(one["facts"])
        for name in ("event", "opens_again", "undone_by"):  # only undo needs them
            facts.pop(name, None)
        is_free = not (facts.get("n_deleted") or facts.get("n_taught"))
        one["can_undo"] = one["state"] == "applied" and (bool(one["can_undo"]) or is_free)
    return shown


def known_normals(stream: ServedStream) -> list[KnownNormal]:
    """Return the events labelled as normal; a series compares new flags with them instead of learning them."""
    known = []
    for event in stream.events.find(label="normal", most=1000):
        departed = event.get("departure")
        if departed is not None and event.get("bits") is not None:
            known.append(KnownNormal(event["key"], departed["field"], departed["side"], event["bits"]))
    return known


def forget(stream: ServedStream, worker: Worker, name: str, key: str | None, *, who: str) -> dict[str, Any]:
    """Delete all records with an id from models, history, events and quarantine."""
    keys = [key] if key is not None else worker.store.keys
    n_deleted, changed = 0, []
    for one in keys:
        if one not in worker.store.keys:
            continue
        detector = worker.store[one].detector
        held = [point for point in detector.keys_ if isinstance(point, str)] if detector.is_fitted else []
        points = keys_named(name, held)
        if points:
            detector.delete(points)
        n_history = stream.history.forget_named(one, name)
        if points or n_history:
            n_deleted += max(len(points), n_history)
            changed.append(one)
    with stream.database.write() as file:
        for one in changed:
            stream.events.forget(file, one, name)
            kept = file.execute("SELECT id, facts FROM feedback WHERE before IS NOT NULL").fetchall()
            numbers = [(number,) for number, facts in kept if orjson.loads(facts)["key"] == one]
            file.executemany("UPDATE feedback SET before = NULL WHERE id = ?", numbers)
        file.execute("DELETE FROM quarantine WHERE instr(record, ?)", (name,))
        file.executemany("DELETE FROM damaged WHERE key = ?", [(one,) for one in keys])  # they may contain the records
        log(file, who, "forget", {"n_deleted": n_deleted, "n_keys": len(changed)})  # without the id, which is deleted
    stream.restart_relearning()  # the new models may contain the records
    worker.commit(purge=True)
    stream.database.purge()
    return {"deleted": n_deleted, "keys": changed}


# ---- steps -----------------------------------------------------------------------------------------------------------


def _apply(entry: Entry, worker: Worker, block: Block, verdict: str, latest: float) -> dict[str, Any]:
    """Delete the records of an event from a model, or learn them as normal; return what was done."""
    if verdict == "incident":
        numbering = Numbering.of_notes(entry.notes)
        known = zip(map(numbering.in_model, block.point_keys()), block.weights.tolist(), strict=True)
        held = [copies for first, n in known if (copies := _held_copies(entry.detector, first, n))]
        points = [point for copies in held for point in copies]
        if points:
            entry.detector.delete(points)
        return {"n_deleted": len(held), "points": points}
    if isinstance(entry.detector, SeriesMPF):  # it cannot learn a context window twice: see `known_normals`
        return {"n_taught": 0}
    return {"n_taught": _teach(entry.detector, worker, block.where((block.flags & FLAGGED) > 0), latest)}


def _held_copies(detector: Detector, first: Key | None, n: int) -> list[Key]:
    """Return the keys of the copies of a record that a model holds."""
    copies: Iterable[Key | None] = (
        range(first, first + n) if isinstance(first, int) else copied_keys([first], np.array([n]))
    )
    return [point for point in copies if point is not None and detector.holds(point)]


def _latest(stream: ServedStream, key: str, block: Block) -> float:
    """Return the time of the newest record of a key."""
    newest = stream.history.records(key, most=1)
    return float(block.times.max() if newest is None else newest.times[-1])


def _teach(detector: StreamingMPF, worker: Worker, block: Block, latest: float) -> int:
    """Learn flagged records again until they are no longer flagged; return the number of rows learned."""
    n_taught = 0
    names = worker.reader.names
    for _ in range(_MOST_COPIES):
        is_odd = detector.detect(block.named_rows(names, worker.reader.categories)).is_anomaly
        if not is_odd.any():
            break
        rows = block.where(is_odd)
        times = None if worker.reader.time is None else np.full(len(rows), latest)
        detector.detect_then_learn(rows.named_rows(names, worker.reader.categories), times=times)
        n_taught += len(rows)
    return n_taught


def _restored(
    stream: ServedStream, worker: Worker, key: str, number: int, position: int, facts: dict[str, Any], before: bytes
) -> tuple[Detector, dict[int, bytes]]:
    """Return a model without some feedback, and the models before each later feedback."""
    n_taught, model = facts.get("n_taught", 0), _loaded(before, worker)
    later = [row for row in _applied(stream, "id > ?", (number,)) if row[3]["key"] == key]
    if any(about.get("n_taught") for _, _, _, about, _ in later):
        raise Conflict("later feedback changed the same model: undo that first")
    since = stream.history.since(key, position)
    n_since = 0 if since is None else int(since.weights[(since.flags & NOT_LEARNED) == 0].sum())
    if _n_seen(worker.store[key].detector) != _n_seen(model) + n_taught + n_since:
        raise Conflict("too late to undo: later records are no longer in the history")
    befores = {}
    for later_number, _, at, about, _ in later:
        if since is not None:
            model = _learn(model, worker, since.where(since.positions <= at))
            since = since.where(since.positions > at)
        befores[later_number] = model.to_bytes({})
        model.delete([point for point in about.get("points", ()) if model.holds(point)])
    model = model if since is None else _learn(model, worker, since)
    if _n_seen(model) != _n_seen(worker.store[key].detector) - n_taught:
        raise Conflict("too late to undo: without this feedback, the drift monitor would keep out other records")
    return model, befores


def _save_without(
    stream: ServedStream, worker: Worker, event: dict[str, Any], number: int, model: Detector, facts: dict[str, Any]
) -> None:
    """Mark feedback as being undone, then save the model without it."""
    entry, n_undone = worker.store[event["key"]], stream.undone
    present, opens_again = entry.detector, False
    try:
        opens_again = not event["is_open"] and _opens_again(stream, worker, event, facts)
        with stream.database.write() as file:
            written = to_json({**facts, "opens_again": opens_again})
            file.execute("UPDATE feedback SET state = 'undoing', facts = ? WHERE id = ?", (written, number))
        entry.detector, stream.undone = model, number
        entry.notes.pop("outlook", None)
        worker.commit()
    except BaseException:
        entry.detector, stream.undone = present, n_undone
        if opens_again:
            worker.take_event(event["key"], event["id"])
        _keep_applied(stream, number)
        raise


def _complete_undo(stream: ServedStream, number: int, later: dict[int, bytes] | None) -> None:
    """Mark feedback as undone, in one transaction, after its model was saved without it.

    Stored copies of the model still include this feedback; `later` has their replacements. After a restart there are
    none, and later feedback can no longer be undone.
    """
    with stream.database.write() as file:
        query = "SELECT event, verdict, position, facts FROM feedback WHERE id = ?"
        id, verdict, position, found = file.execute(query, (number,)).fetchone()
        facts = orjson.loads(found)
        same_key = [row[0] for row in _applied(stream, "id > ?", (number,)) if row[3]["key"] == facts["key"]]
        befores = [((later or {}).get(one), one) for one in same_key]
        file.executemany("UPDATE feedback SET before = ? WHERE id = ?", befores)
        file.execute("UPDATE feedback SET state = 'undone', before = NULL WHERE id = ?", (number,))
        if facts.get("n_taught"):
            stream.history.shift_points(facts["key"], position, -facts["n_taught"])
        event = _unlabelled(stream, file, id, facts["opens_again"]) if stream.events.is_known(file, id) else None
        log(file, facts["undone_by"], "undo", {"event": id, "feedback": number, "verdict": verdict})
    if facts.get("n_taught"):
        stream.restart_relearning()  # points are renumbered
    if event is not None:
        stream.announce_event(event)


def _keep_applied(stream: ServedStream, number: int) -> None:
    """Mark feedback as applied again, after undo has failed."""
    with stream.database.write() as file:
        file.execute("UPDATE feedback SET state = 'applied' WHERE id = ?", (number,))


def _loaded(block: bytes, worker: Worker) -> Detector:
    """Load a stored copy of a model and its drift monitor, with the current settings."""
    return apply_settings(load_stream(block), worker.config)


def _learn(model: Detector, worker: Worker, block: Block) -> Detector:
    """Learn records of the history again, in order; return the resulting model."""
    skipped = NOT_LEARNED if model.companion is None else NOT_LEARNED | KEPT_OUT
    followed = block.where((block.flags & skipped) != NOT_LEARNED)
    for after, _ in replay(model, followed, worker.reader, finds_series=worker.config.finds_series):
        model = after
    return model


def _applied(
    stream: ServedStream, where: str, values: Sequence[Any]
) -> list[tuple[int, str, int, dict[str, Any], bytes | None]]:
    """Return applied feedback, in order."""
    query = f"SELECT id, verdict, position, facts, before FROM feedback WHERE state = 'applied' AND {where} ORDER BY id"
    with stream.database.read() as file:
        rows = file.execute(query, tuple(values)).fetchall()
    return [(number, verdict, at, orjson.loads(facts), before) for number, verdict, at, facts, before in rows]


def _in_state(stream: ServedStream, state: str) -> list[int]:
    """Return the numbers of feedback in a state, in order."""
    with stream.database.read() as file:
        return [row[0] for row in file.execute("SELECT id FROM feedback WHERE state = ? ORDER BY id", (state,))]


def _complete(stream: ServedStream, number: int, who: str) -> None:
    """Mark feedback as applied, label its event and extend the audit log, in one transaction."""
    with stream.database.write() as file:
        query = "SELECT event, verdict, facts FROM feedback WHERE id = ?"
        id, verdict, facts = file.execute(query, (number,)).fetchone()
        file.execute("UPDATE feedback SET state = 'applied' WHERE id = ?", (number,))
        old = "SELECT id FROM feedback WHERE before IS NOT NULL ORDER BY id DESC LIMIT -1 OFFSET ?"
        file.execute(f"UPDATE feedback SET before = NULL WHERE id IN ({old})", (_KEPT,))
        known = orjson.loads(facts)
        about = {"event": id, "feedback": number, "note": known.get("note", "")}
        about |= {name: known[name] for name in ("n_deleted", "n_taught") if name in known}
        event = _labelled(stream, file, id, verdict) if stream.events.is_known(file, id) else None
        log(file, who, verdict, about)
    if event is not None:
        stream.announce_event(event)


def _labelled(stream: ServedStream, file: sqlite3.Connection, id: str, verdict: str) -> dict[str, Any]:
    """Label an event; close it if it is normal."""
    event = stream.events.update(file, id, label=verdict)
    if verdict == "normal" and event["is_open"]:
        event = stream.events.update(file, id, is_open=False, closed_by="feedback")
        stream.queue_alerts(file, event)
    return event


def _unlabelled(stream: ServedStream, file: sqlite3.Connection, id: str, opens_again: bool) -> dict[str, Any]:
    """Remove the label of an event, and reopen it if it would be open without the feedback."""
    return stream.events.update(file, id, label=None, **({"is_open": True, "closed_by": None} if opens_again else {}))


def _opens_again(stream: ServedStream, worker: Worker, event: dict[str, Any], facts: dict[str, Any]) -> bool:
    """Return whether an event would still be open without its label; records can then continue it."""
    if event.get("closed_by") != "feedback":
        return False
    if event["kind"] == "silence":
        return stream.is_silent(event["id"])
    taken = facts.get("event")
    return taken is not None and worker.return_event(event["key"], taken)


def _n_seen(detector: Detector) -> int:
    return detector.n_seen_ if detector.is_fitted else 0
