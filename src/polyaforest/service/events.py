"""Events: nearby flagged records of a key, stored in the history with their explanations."""

from __future__ import annotations

import sqlite3
import time as clock
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from typing import Any, NamedTuple

import orjson

from polyaforest.forest.point_store import keys_named
from polyaforest.io.json_values import to_json
from polyaforest.service.database import Database
from polyaforest.service.history import RecordHistory
from polyaforest.service.incidents import likeness
from polyaforest.storage.migrations import upgrade_event

__all__ = ["EventChange", "EventLog", "event_id", "is_severe"]

_LEAST_LIKENESS = 0.5


class EventChange(NamedTuple):
    """A change of an event."""

    id: str
    key: str
    kind: str  # "anomaly", "silence", "drift" or "failure"
    start: float
    end: float
    is_open: bool
    position: int  # of its first record in the stream
    facts: dict[str, Any]  # merged into the event


def event_id(stream: str, kind: str, key: str, number: int) -> str:
    """Return the id of the event that begins with a record of a key; it is the same if the record is scored again."""
    text = "\0".join((stream, kind, key, str(number))).encode("utf-8", "surrogatepass")
    return blake2b(text, digest_size=8).hexdigest()


def is_severe(event: Mapping[str, Any], least: int) -> bool:
    """Return whether an event has at least this severity, or none at all, as silence."""
    grade = event.get("severity")
    return grade is None or grade >= least


class EventLog:
    """The events of a stream."""

    def __init__(self, stream: str, database: Database, history: RecordHistory) -> None:
        self._stream, self._database, self._history = stream, database, history
        self._damage: set[str] = set()  # ids of events that cannot be read
        with database.write() as file:  # give events of an earlier release the age they had then
            query = "UPDATE events SET changed = ? - max(0, ? - end) WHERE changed IS NULL"
            file.execute(query, (history.clocks.age, history.newest()))

    # ---- writing -----------------------------------------------------------------------------------------------------

    def write(self, changes: Sequence[EventChange], file: sqlite3.Connection) -> list[dict[str, Any]]:
        """Write changes in a transaction; return the changed events."""
        events: dict[str, dict[str, Any]] = {}
        for change in changes:
            before = events.get(change.id) or self._found(file, change.id)
            event = {
                "id": change.id,
                "stream": self._stream,
                "key": change.key,
                "kind": change.kind,
                "label": None,
                **(before or {}),
                "start": change.start,
                "end": change.end,
                "is_open": change.is_open,
                **change.facts,
            }
            self._save(file, event, change.position if before is None else None)
            events[change.id] = event
        return list(events.values())

    def is_known(self, file: sqlite3.Connection, id: str) -> bool:
        """Return whether an event with this id exists."""
        return file.execute("SELECT 1 FROM events WHERE id = ?", (id,)).fetchone() is not None

    def update(self, file: sqlite3.Connection, id: str, **facts: Any) -> dict[str, Any]:
        """Update facts of an event, such as its label ("incident" or "normal"); return the event."""
        event = self._found(file, id)
        if event is None:
            raise KeyError(id)
        event |= facts
        self._save(file, event, None)
        return event

    def forget(self, file: sqlite3.Connection, key: str, name: str) -> None:
        """Delete the data of records with a given id from the events of a key."""
        number = self._history.id_of(key, file)
        for one in self._read(file.execute("SELECT id, body FROM events WHERE key = ?", (number,)).fetchall()):
            event = dict(one)
            others = [like for like in event.get("similar", ()) if not keys_named(name, [like["point"]])]
            is_about = event.get("record") == name
            if is_about:
                event |= dict.fromkeys(("record", "values", "expected", "departure", "region"))
                event |= {"reasons": [], "attributions": {}, "similar": [], "summary": "deleted on request"}
                file.execute("DELETE FROM outbox WHERE event = ? AND state != 'waiting'", (event["id"],))
            elif len(others) == len(event.get("similar", ())):
                continue
            else:
                event["similar"] = others
            self._save(file, event, None)

    def rewind(self, position: int) -> None:
        """Delete events that began after a position of the stream; a replay finds them again."""
        with self._database.write() as file:
            file.execute("DELETE FROM events WHERE position > ?", (position,))

    def expire(self, file: sqlite3.Connection) -> None:
        """Delete closed events past the retention age."""
        file.execute("DELETE FROM events WHERE changed < ? AND NOT is_open", (self._history.oldest,))

    @property
    def has_damage(self) -> bool:
        """Whether unreadable events were found that are not set aside yet."""
        return bool(self._damage)

    def set_aside(self) -> None:
        """Move unreadable events to the table of damaged parts."""
        with self._database.write() as file:
            found, self._damage = sorted(self._damage), set()
            for id in found:
                name = "coalesce((SELECT key FROM keys WHERE id = events.key), '')"
                facts = f"?, 'event', {name}, 1, start, end, ?, body, changed"
                columns = "at, what, key, n, start, end, reason, body, stored"
                values = (clock.time(), f"event {id}: it is not JSON", id)
                file.execute(f"INSERT INTO damaged ({columns}) SELECT {facts} FROM events WHERE id = ?", values)
                file.execute("DELETE FROM events WHERE id = ?", (id,))

    def _read(self, rows: Sequence[tuple[str, bytes]]) -> list[dict[str, Any]]:
        """Parse events from their ids and bodies; skip and remember unreadable ones."""
        events = []
        for id, body in rows:
            try:
                event = orjson.loads(body)
            except (orjson.JSONDecodeError, TypeError):
                event = None
            if isinstance(event, dict) and event.get("id") == id:
                events.append(upgrade_event(event))
            else:
                self._damage.add(id)
        return events

    def _found(self, file: sqlite3.Connection, id: str) -> dict[str, Any] | None:
        found = self._read(file.execute("SELECT id, body FROM events WHERE id = ?", (id,)).fetchall())
        return found[0] if found else None

    def _save(self, file: sqlite3.Connection, event: dict[str, Any], position: int | None) -> None:
        key = self._history.id_of(event["key"], file)
        columns = {
            "start": event["start"],
            "end": event["end"],
            "is_open": int(event["is_open"]),
            "bits": event.get("bits"),
            "label": event["label"],
            "body": to_json(event),
            "changed": self._history.clocks.age,
        }
        if position is None:
            changes = ", ".join(f"{name} = :{name}" for name in columns)
            file.execute(f"UPDATE events SET {changes} WHERE id = :id", {**columns, "id": event["id"]})
        else:
            columns |= {"id": event["id"], "key": key, "kind": event["kind"], "position": position}
            names = f"({', '.join(columns)}) VALUES ({', '.join(f':{name}' for name in columns)})"
            file.execute(f"INSERT OR REPLACE INTO events {names}", columns)

    # ---- reading -----------------------------------------------------------------------------------------------------

    def find(
        self,
        *,
        key: str | None = None,
        start: float = float("-inf"),
        end: float = float("inf"),
        is_open: bool | None = None,
        label: str | None = None,
        min_severity: int = 1,
        after: tuple[float, str] | None = None,
        search: str = "",
        most: int = 100,
    ) -> list[dict[str, Any]]:
        """Return the events that overlap a span of time, latest first.

        Events without a severity, such as silence, are returned at any `min_severity`. `after` is the start and the id
        of the last event before. `search` is part of the key or of the summary, in upper or lower case.
        """
        conditions, values = ["end >= ?", "start <= ?"], [start, end]
        chosen: list[tuple[str, Any]] = [("is_open", is_open), ("label", label)]
        for name, value in chosen:
            if value is not None:
                conditions.append(f"{name} = ?")
                values.append(value)
        if key is not None:
            conditions.append("key = (SELECT id FROM keys WHERE key = ?)")
            values.append(key)  # type: ignore[arg-type]
        if after is not None:
            conditions.append("(start < ? OR (start = ? AND id > ?))")
            values += [after[0], after[0], after[1]]  # type: ignore[list-item]
        query = f"SELECT id, body FROM events WHERE {' AND '.join(conditions)} ORDER BY start DESC, id LIMIT ?"
        with self._database.read() as file:
            if min_severity == 1 and not search:
                return self._read(file.execute(query, (*values, most)).fetchall())
            found = (event for row in file.execute(query, (*values, -1)) for event in self._read([row]))
            wanted = (event for event in found if is_severe(event, min_severity) and _contains(event, search))
            return list(islice(wanted, most))

    def similar(self, event: dict[str, Any], most: int = 5) -> list[dict[str, Any]]:
        """Return other events of the stream with similar attributions, most similar first."""
        others = [one for one in self.find(most=500) if one["id"] != event["id"] and one["kind"] == event["kind"]]
        ranked = sorted(((likeness(event, one), one) for one in others), key=lambda pair: -pair[0])
        return [one for likeness, one in ranked[:most] if likeness > _LEAST_LIKENESS]

    def get(self, id: str) -> dict[str, Any] | None:
        """Return the event with this id, or None."""
        with self._database.read() as file:
            return self._found(file, id)

    def n_open(self) -> int:
        """Return the number of open events."""
        with self._database.read() as file:
            return int(file.execute("SELECT count(*) FROM events WHERE is_open").fetchone()[0])


def _contains(event: Mapping[str, Any], search: str) -> bool:
    """Return whether the key or the summary of an event contains a text, in upper or lower case."""
    return any(search.casefold() in text.casefold() for text in (event["key"], event.get("summary") or ""))
