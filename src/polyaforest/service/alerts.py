"""Alerts about events: queued in the outbox of their stream until they are delivered.

An alert is queued when an event begins, worsens or ends, in the transaction that changes the event. The outbox is part
of the history, so a restart loses no alert. Each row is marked as sent right after delivery: only a process killed in
between delivers an alert twice, with the same `id`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import sqlite3
import time as clock
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import orjson

from polyaforest.io.errors import BadInput
from polyaforest.io.json_values import to_json
from polyaforest.service.config import AlertConfig, web_address
from polyaforest.service.database import Database
from polyaforest.service.events import is_severe
from polyaforest.util.text import label, printable

__all__ = ["Destination", "Outbox", "Queued", "test_message"]

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 600.0  # seconds before a retry
_MOST_ATTEMPTS = 200  # about a day
_AT_ONCE = 1000
_KEPT = 30 * 86400.0  # seconds for which sent alerts are kept
_LONGEST = 160  # characters of a summary in a title
_WORDS = {"open": "Anomaly", "worse": "Worse", "closing": "Over"}
_OPENED = {"silence": "Silence", "drift": "Drift", "failure": "Stream failed"}
_SHORTEST_SECRET = 16  # bytes
_SECRET = "whsec_"  # prefix of a base64 secret, as in the Standard Webhooks specification


class Queued(NamedTuple):
    """A queued alert."""

    outbox: Outbox
    id: int
    destination: str
    kind: str
    message: dict[str, Any]
    attempts: int
    at: float  # when it was queued


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
        self._secret = _secret(config)
        if self._is_webhook:
            web_address(self._url)
        elif self._secret is not None:
            raise BadInput("only alerts to http(s) addresses are signed: remove the secret")
        else:
            self._apprise()

    def wants(self, stream: str, event: dict[str, Any]) -> bool:
        """Return whether to send alerts about an event."""
        is_stream = not self.config.streams or stream in self.config.streams
        bits = event.get("bits")
        is_surprising = bits is None or bits >= self.config.min_bits
        return is_stream and is_surprising and is_severe(event, self.config.min_severity)

    def send(self, message: dict[str, Any]) -> str | None:
        """Deliver a message; return the error, without the address, or None on success."""
        if self._is_webhook:
            return _post(self._url, message, self._secret)
        is_sent = self._apprise().notify(title=message["title"], body=message["text"])
        return None if is_sent else "apprise could not deliver the alert"

    def try_to_send(self, message: dict[str, Any]) -> str | None:
        """Deliver a message; return the error, of any kind, or None on success."""
        try:
            return self.send(message)
        except Exception as problem:  # any library may deliver it
            return type(problem).__name__

    def _apprise(self) -> Any:
        from apprise import Apprise  # noqa: PLC0415 - takes long to import

        service = Apprise()
        if not service.add(self._url):
            raise BadInput("apprise does not support this address")
        return service


class Outbox:
    """The queued and sent alerts of a stream."""

    def __init__(self, stream: str, database: Database, destinations: Sequence[Destination], link: str) -> None:
        self.stream, self._database, self._link = stream, database, link
        self.use(destinations)

    def use(self, destinations: Sequence[Destination]) -> None:
        """Send alerts to these destinations from now on."""
        stream = self.stream
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

    def due(self) -> list[Queued]:
        """Return the alerts to send now or soon, oldest first."""
        # an alert due later than the longest pause was scheduled before the clock was set back
        is_due = "state = 'waiting' AND (due <= ?1 OR due > ?1 + ?3) ORDER BY id LIMIT ?2"
        query = f"SELECT id, destination, kind, message, attempts, at FROM outbox WHERE {is_due}"
        with self._database.read() as file:
            rows = file.execute(query, (clock.time(), _AT_ONCE, _LONGEST_PAUSE)).fetchall()
        return [
            Queued(self, id, destination, kind, orjson.loads(message), attempts, at)
            for id, destination, kind, message, attempts, at in rows
        ]

    def destination(self, name: str) -> Destination | None:
        """Return a destination of this stream by its name."""
        return next((one for one in self._destinations if one.config.name == name), None)

    def postpone(self, ids: Sequence[int], until: float) -> None:
        """Send alerts later."""
        due = min(until, clock.time() + _LONGEST_PAUSE)
        with self._database.write() as file:
            file.executemany("UPDATE outbox SET due = ? WHERE id = ?", [(due, id) for id in ids])

    def is_reported(self, event: str, destination: str) -> bool:
        """Return whether an alert about an event was sent to a destination."""
        query = "SELECT 1 FROM outbox WHERE event = ? AND destination = ? AND state = 'sent'"
        with self._database.read() as file:
            return file.execute(query, (event, destination)).fetchone() is not None

    def expire(self, file: sqlite3.Connection) -> None:
        """Delete old alerts about deleted events; until then, they prevent duplicates."""
        is_over = "state != 'waiting' AND at < ? AND event NOT IN (SELECT id FROM events)"
        file.execute(f"DELETE FROM outbox WHERE {is_over}", (clock.time() - _KEPT,))

    def record_outcome(self, queued: Queued, problem: str | None) -> str:
        """Mark an alert as sent, or schedule the next attempt; return "sent", "retried" or "failed"."""
        attempts = queued.attempts + 1
        pause = min(_FIRST_PAUSE * 2.0 ** min(attempts - 1, 20), _LONGEST_PAUSE)
        outcome = "sent" if problem is None else "failed" if attempts >= _MOST_ATTEMPTS else "retried"
        state = "waiting" if outcome == "retried" else outcome
        with self._database.write() as file:
            query = "UPDATE outbox SET state = ?, attempts = ?, due = ?, error = ? WHERE id = ?"
            file.execute(query, (state, attempts, clock.time() + pause, problem, queued.id))
        return outcome

    def _due(self, destination: Destination, event: dict[str, Any], sent: list[Any]) -> tuple[str | None, int]:
        """Return the kind of alert that is due, and its level: how often the event has worsened."""
        config, bits = destination.config, event.get("bits") or 0.0
        kinds = {kind for kind, _, _ in sent}
        if not kinds:  # also for an event that began and ended at once
            return ("open" if destination.wants(self.stream, event) else None), 0
        if not event["is_open"]:
            return ("closing" if config.closing and "closing" not in kinds else None), 0
        if event.get("acknowledged"):
            return None, 0
        first = next(orjson.loads(message) for kind, _, message in sent if kind == "open")
        level = int((bits - (first["event"]["bits"] or 0.0)) // config.worse_by)
        return ("worse" if level > max(level_sent for _, level_sent, _ in sent) else None), level

    def _message(self, event: dict[str, Any], kind: str, level: int) -> dict[str, Any]:
        """Return the message of an alert, as data and as text."""
        whose = f"{self.stream} / {label(event['key'])}" if event["key"] else self.stream
        opened = _OPENED.get(event["kind"], _WORDS["open"])
        title, summary = f"{opened if kind == 'open' else _WORDS[kind]}: {whose}", printable(event.get("summary") or "")
        if summary and kind != "closing":
            title += f": {summary if len(summary) <= _LONGEST else summary[: _LONGEST - 1] + '…'}"
        when = datetime.fromtimestamp(event["start"], UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        lines = [summary, f"Since {when}."]
        if kind == "closing":
            outcome = printable(event.get("outcome") or "")
            lines = [f"Over after {event['end'] - event['start']:.0f} seconds.", outcome, *lines]
        if event.get("severity"):
            lines.append(f"Severity {event['severity']} of 5{_rarity(event)}.")
        link = f"{self._link}/#/event/{quote(self.stream)}/{event['id']}"
        names = ["id", "stream", "key", "kind", "start", "end", "is_open", "bits", "severity", "tail_bits", "p_value"]
        names += ["summary", "acknowledged", "incident", "attributions"]
        return {
            "id": f"{event['id']}-{kind}-{level}",
            "type": kind,
            "title": title,
            "text": "\n".join([*filter(None, lines), link]),
            "link": link,
            "event": {name: event.get(name) for name in names},
        }


def test_message() -> dict[str, Any]:
    """Return a message that tests a destination."""
    text = "This is a test of an alert destination of polyaforest. Nothing is wrong."
    return {"id": f"test-{clock.time():.0f}", "type": "test", "title": "Test alert", "text": text}


def _rarity(event: dict[str, Any]) -> str:
    """Say how rare the worst record of an event is; "" if it is unknown."""
    bits = event.get("tail_bits")
    if bits is None:
        return ""
    each = "less than 1 in a billion" if bits >= 30 else f"1 in {float(f'{2.0**bits:.2g}'):,.0f}"
    return f": {each} normal records is this unusual"


def _post(url: str, message: dict[str, Any], secret: bytes | None) -> str | None:
    """Post a message to a webhook as JSON; return the error, or None on success."""
    import requests  # noqa: PLC0415 - comes with apprise

    body = to_json(message)
    headers = {"Content-Type": "application/json", "Idempotency-Key": message["id"]}
    if secret is not None:
        headers |= _signature(secret, message["id"], int(clock.time()), body)
    try:
        answer = requests.post(url, data=body, headers=headers, timeout=10, allow_redirects=False)
    except requests.RequestException as problem:
        return type(problem).__name__  # its text may contain the address, which may be secret
    return None if answer.ok else f"HTTP status {answer.status_code}"


def _signature(secret: bytes, id: str, moment: int, body: bytes) -> dict[str, str]:
    """Return the headers that prove a message, as in the Standard Webhooks specification."""
    signed = hmac.new(secret, f"{id}.{moment}.".encode() + body, hashlib.sha256).digest()
    value = f"v1,{base64.b64encode(signed).decode()}"
    return {"webhook-id": id, "webhook-timestamp": str(moment), "webhook-signature": value}


def _secret(config: AlertConfig) -> bytes | None:
    """Return the secret that signs messages; None without one."""
    if config.secret_file is not None:
        text = Path(config.secret_file).read_text("utf-8").strip()
    elif config.secret_env is not None:
        text = os.environ.get(config.secret_env, "").strip()
        if not text:
            raise BadInput(f"the environment variable {config.secret_env} is not set")
    else:
        return None
    try:
        secret = (
            base64.b64decode(text.removeprefix(_SECRET), validate=True) if text.startswith(_SECRET) else text.encode()
        )
    except binascii.Error:
        raise BadInput(f"a secret that begins with {_SECRET} continues in base64") from None
    if len(secret) < _SHORTEST_SECRET:
        raise BadInput(f"the secret is too short: use at least {_SHORTEST_SECRET} bytes")
    return secret


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
