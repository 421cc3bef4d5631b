"""Alerts about events: queued in an outbox, sent by a thread, retried until they are delivered.

The service sends an alert when an event begins, worsens or ends. The outbox is part of the history, so a restart loses
no alert. Each row is marked as sent right after delivery: only a process killed in between delivers an alert twice,
with the same `id`.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time as clock
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson

from polyaforest.io.errors import BadInput
from polyaforest.io.json_values import to_json
from polyaforest.service.config import AlertConfig, web_address
from polyaforest.service.database import Damaged, Database
from polyaforest.util.text import label, printable

__all__ = ["Destination", "Outbox", "Sender"]

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 600.0  # seconds before a retry
_MOST_ATTEMPTS = 200  # about a day
_AT_ONCE = 50
_KEPT = 30 * 86400.0  # seconds for which sent alerts are kept
_LOG = logging.getLogger("polyaforest.service")
_WORDS = {"open": "Anomaly", "worse": "Worse", "closing": "Over"}


class Destination:
    """A destination of alerts.

    Parameters
    ----------
    config : AlertConfig
    """

    def __init__(self, config: AlertConfig) -> None:
        self.config = config
        self._url = _address(config)
        self._is_webhook = self._url.startswith(("http://", "https://"))
        if self._is_webhook:
            web_address(self._url)
        else:
            self._apprise()

    def wants(self, stream: str, event: dict[str, Any]) -> bool:
        """Return whether to send alerts about an event."""
        is_stream = not self.config.streams or stream in self.config.streams
        bits = event.get("bits")
        return is_stream and (bits is None or bits >= self.config.min_bits)

    def send(self, message: dict[str, Any]) -> str | None:
        """Deliver a message; return the error, without the address, or None on success."""
        if self._is_webhook:
            return _post(self._url, message)
        is_sent = self._apprise().notify(title=message["title"], body=message["text"])
        return None if is_sent else "apprise could not deliver the alert"

    def _apprise(self) -> Any:
        from apprise import Apprise  # noqa: PLC0415 - takes long to import

        service = Apprise()
        if not service.add(self._url):
            raise BadInput("apprise does not support this address")
        return service


class Outbox:
    """The queued and sent alerts of a stream."""

    def __init__(self, stream: str, database: Database, destinations: Sequence[Destination], link: str) -> None:
        self._stream, self._database, self._link = stream, database, link
        self.use(destinations)

    def use(self, destinations: Sequence[Destination]) -> None:
        """Send alerts to these destinations from now on."""
        stream = self._stream
        self._destinations = [one for one in destinations if not one.config.streams or stream in one.config.streams]

    def add(self, file: sqlite3.Connection, event: dict[str, Any]) -> bool:
        """Queue the alerts that are due for an event; return whether there are any.

        Runs in the transaction that changes the event.
        """
        is_any = False
        for destination in self._destinations:
            name = destination.config.name
            query = "SELECT kind, level, message FROM outbox WHERE event = ? AND destination = ?"
            while True:
                kind, level = self._due(destination, event, file.execute(query, (event["id"], name)).fetchall())
                if kind is None:
                    break
                row = (event["id"], name, kind, level, to_json(self._message(event, kind, level)))
                columns = "(event, destination, kind, level, message, state, attempts, due, at)"
                now = clock.time()
                file.execute(
                    f"INSERT INTO outbox {columns} VALUES (?, ?, ?, ?, ?, 'waiting', 0, ?, ?)", (*row, now, now)
                )
                is_any = True
        return is_any

    def about(self, event: str) -> list[dict[str, Any]]:
        """Return the alerts about an event."""
        names = ("id", "destination", "kind", "level", "message", "state", "attempts", "at", "error")
        query = f"SELECT {', '.join(names)} FROM outbox WHERE event = ? ORDER BY id"
        with self._database.read() as file:
            rows = file.execute(query, (event,)).fetchall()
        return [{**dict(zip(names, row, strict=True)), "message": orjson.loads(row[4])} for row in rows]

    def n_waiting(self) -> int:
        """Return the number of queued alerts."""
        with self._database.read() as file:
            return int(file.execute("SELECT count(*) FROM outbox WHERE state = 'waiting'").fetchone()[0])

    def send_due(self) -> dict[str, int]:
        """Send the alerts that are due; return how many were sent, will be retried, or failed for good."""
        outcome = {"sent": 0, "retried": 0, "failed": 0}
        by_name = {one.config.name: one for one in self._destinations}
        # an alert due later than the longest pause was scheduled before the clock was set back
        is_due = "state = 'waiting' AND (due <= ?1 OR due > ?1 + ?3) ORDER BY id LIMIT ?2"
        query = f"SELECT id, destination, message, attempts FROM outbox WHERE {is_due}"
        with self._database.read() as file:
            due = file.execute(query, (clock.time(), _AT_ONCE, _LONGEST_PAUSE)).fetchall()
        for number, name, message, attempts in due:
            destination = by_name.get(name)
            problem = "no alert with this name is configured" if destination is None else None
            if destination is not None:
                try:
                    problem = destination.send(orjson.loads(message))
                except Exception as failure:  # any library may deliver it: retry
                    problem = type(failure).__name__
            outcome[self._record_outcome(number, attempts + 1, problem)] += 1
        return outcome

    def expire(self, file: sqlite3.Connection) -> None:
        """Delete old alerts about deleted events; until then, they prevent duplicates."""
        is_over = "state != 'waiting' AND at < ? AND event NOT IN (SELECT id FROM events)"
        file.execute(f"DELETE FROM outbox WHERE {is_over}", (clock.time() - _KEPT,))

    def _record_outcome(self, number: int, attempts: int, problem: str | None) -> str:
        pause = min(_FIRST_PAUSE * 2.0 ** min(attempts - 1, 20), _LONGEST_PAUSE)
        outcome = "sent" if problem is None else "failed" if attempts >= _MOST_ATTEMPTS else "retried"
        state = "waiting" if outcome == "retried" else outcome
        with self._database.write() as file:
            query = "UPDATE outbox SET state = ?, attempts = ?, due = ?, error = ? WHERE id = ?"
            file.execute(query, (state, attempts, clock.time() + pause, problem, number))
        return outcome

    def _due(self, destination: Destination, event: dict[str, Any], sent: list[Any]) -> tuple[str | None, int]:
        """Return the kind of alert that is due, and its level: how often the event has worsened."""
        config, bits = destination.config, event.get("bits") or 0.0
        kinds = {kind for kind, _, _ in sent}
        if not kinds:  # also for an event that began and ended at once
            return ("open" if destination.wants(self._stream, event) else None), 0
        if not event["is_open"]:
            return ("closing" if config.closing and "closing" not in kinds else None), 0
        first = next(orjson.loads(message) for kind, _, message in sent if kind == "open")
        level = int((bits - (first["event"]["bits"] or 0.0)) // config.worse_by)
        return ("worse" if level > max(level_sent for _, level_sent, _ in sent) else None), level

    def _message(self, event: dict[str, Any], kind: str, level: int) -> dict[str, Any]:
        """Return the message of an alert, as data and as text."""
        whose = f"{self._stream} / {label(event['key'])}" if event["key"] else self._stream
        title = f"{'Silence' if event['kind'] == 'silence' and kind == 'open' else _WORDS[kind]}: {whose}"
        when = datetime.fromtimestamp(event["start"], UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        lines = [printable(event.get("summary") or ""), f"Since {when}."]
        if kind == "closing":
            lines = [f"Over after {event['end'] - event['start']:.0f} seconds.", *lines]
        if event.get("bits"):
            lines.append(f"{event['bits']:.1f} bits of surprise, p = {event.get('p_value') or 0:.2g}.")
        link = f"{self._link}/#/event/{quote(self._stream)}/{event['id']}"
        names = ("id", "stream", "key", "kind", "start", "end", "is_open", "bits", "p_value", "summary", "attributions")
        return {
            "id": f"{event['id']}-{kind}-{level}",
            "type": kind,
            "title": title,
            "text": "\n".join([*filter(None, lines), link]),
            "link": link,
            "event": {name: event.get(name) for name in names},
        }


class Sender:
    """The thread that sends the queued alerts of all streams."""

    def __init__(self, outboxes: Callable[[], Sequence[Outbox]], count: Callable[[str, int], None]) -> None:
        self._outboxes, self._count = outboxes, count
        self._is_stopped, self._is_due = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="alerts", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Send the alerts that are due now."""
        self._is_due.set()

    def stop(self) -> None:
        """Stop the thread after the current alert."""
        self._is_stopped.set()
        self._is_due.set()
        self._thread.join(timeout=15)

    def _run(self) -> None:
        while not self._is_stopped.is_set():
            for outbox in self._outboxes():
                try:
                    for outcome, n in outbox.send_due().items():
                        if n:
                            self._count(outcome, n)
                except (sqlite3.Error, Damaged) as problem:
                    _LOG.error("cannot send alerts: %s", problem)
            self._is_due.wait(1.0)
            self._is_due.clear()


def _post(url: str, message: dict[str, Any]) -> str | None:
    """Post a message to a webhook as JSON; return the error, or None on success."""
    import requests  # noqa: PLC0415 - comes with apprise

    try:
        headers = {"Content-Type": "application/json", "Idempotency-Key": message["id"]}
        answer = requests.post(url, data=to_json(message), headers=headers, timeout=10, allow_redirects=False)
    except requests.RequestException as problem:
        return type(problem).__name__  # its text may contain the address, which may be secret
    return None if answer.ok else f"HTTP status {answer.status_code}"


def _address(config: AlertConfig) -> str:
    """Return the address of a destination, which may be secret."""
    if config.url is not None:
        return config.url
    if config.url_file is not None:
        return Path(config.url_file).read_text("utf-8").strip()
    assert config.url_env is not None
    if not os.environ.get(config.url_env):
        raise BadInput(f"the environment variable {config.url_env} is not set")
    return os.environ[config.url_env].strip()
