"""Delivery of queued alerts: one message per incident, limited in rate, by one thread for all streams.

The first message about an incident waits a little, so that it can name all keys that are affected at the same time.
Later ones say that it has grown, worsened or ended, at most one per interval, except that its end is reported at once.
If a destination has received its most messages per hour, the incidents that wait are reported together.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time as clock
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from polyaforest.service.alerts import Destination, Outbox, Queued
from polyaforest.service.database import Damaged
from polyaforest.service.incidents import IncidentBook
from polyaforest.util.text import label

__all__ = ["Delivery", "Sender"]

_LOG = logging.getLogger("polyaforest.service")
_HOUR = 3600.0
_MOST_NAMED = 10  # keys in a title or text
_MOST_REMEMBERED = 10_000  # incidents to remember


class Delivery:
    """Groups the queued alerts of all streams by incident, and sends them.

    Parameters
    ----------
    outboxes : callable
        Returns the outboxes of all streams.
    book : IncidentBook
    """

    def __init__(self, outboxes: Callable[[], Sequence[Outbox]], book: IncidentBook) -> None:
        self._outboxes, self._book = outboxes, book
        self._reported: dict[tuple[str, str], float] = {}  # when a destination last heard of an incident
        self._sent: dict[str, deque[float]] = {}  # when each destination got its messages of the last hour

    def send_due(self) -> dict[str, int]:
        """Send the alerts that are due; return how many were sent, will be retried, or failed for good."""
        outcome = {"sent": 0, "retried": 0, "failed": 0}
        by_destination: dict[str, dict[str, list[Queued]]] = {}
        for outbox in self._outboxes():
            for queued in outbox.due():
                destination = outbox.destination(queued.destination)
                incident = (queued.message["event"].get("incident") or queued.message["event"])["id"]
                if destination is not None and not destination.config.group:
                    incident = queued.message["id"]
                by_destination.setdefault(queued.destination, {}).setdefault(incident, []).append(queued)
        for name, groups in by_destination.items():
            self._send_to(name, groups, outcome)
        return outcome

    def _send_to(self, name: str, groups: dict[str, list[Queued]], outcome: dict[str, int]) -> None:
        """Send what is due to a destination: one message per incident, or one for all if there were too many."""
        ready = {}
        for incident, group in groups.items():
            destination = group[0].outbox.destination(name)
            if destination is None:
                self._record(group, "no alert with this name is configured", outcome)
            elif all(queued.kind == "closing" for queued in group) and self._is_open(incident, destination):
                self._record(group, None, outcome)  # the end of the incident will be reported
            elif (wait := self._wait(destination, incident, group)) > 0:
                _postpone(group, clock.time() + wait)
            else:
                ready[incident] = group
        if not ready:
            return
        destination = next(iter(ready.values()))[0].outbox.destination(name)
        assert destination is not None
        n_free = self._n_free(destination)
        if n_free >= len(ready):
            for incident, group in ready.items():
                message = self._message(incident, group, name) if destination.config.group else group[0].message
                self._deliver(destination, [incident], group, message, outcome)
        elif n_free:
            everything = [queued for group in ready.values() for queued in group]
            self._deliver(destination, list(ready), everything, _digest(ready), outcome)
        else:
            _postpone([one for group in ready.values() for one in group], self._sent[name][0] + _HOUR)

    def _wait(self, destination: Destination, incident: str, group: list[Queued]) -> float:
        """Return the seconds to wait before the next message about an incident."""
        if any(queued.attempts for queued in group):
            return 0.0  # a retry
        if not destination.config.group:
            return 0.0
        now, last = clock.time(), self._reported.get((destination.config.name, incident))
        if last is None:
            return min(queued.at for queued in group) + destination.config.group_wait - now
        if not self._is_open(incident, destination):
            return 0.0
        return last + destination.config.group_interval - now

    def _is_open(self, incident: str, destination: Destination) -> bool:
        """Return whether an event of an incident is open that a destination hears of."""
        members = self._book.members(incident)
        return any(event["is_open"] and destination.wants(event["stream"], event) for event in members)

    def _is_reported(self, name: str, incident: str, group: list[Queued]) -> bool:
        """Return whether a destination has heard of an incident, also before a restart."""
        if (name, incident) in self._reported:
            return True
        streams = {(queued.message["event"].get("incident") or {}).get("stream") for queued in group}
        return any(outbox.is_reported(incident, name) for outbox in self._outboxes() if outbox.stream in streams)

    def _n_free(self, destination: Destination) -> int:
        """Return how many messages a destination may get now."""
        sent = self._sent.setdefault(destination.config.name, deque())
        while sent and sent[0] <= clock.time() - _HOUR:
            sent.popleft()
        return max(0, destination.config.most_per_hour - len(sent))

    def _message(self, incident: str, group: list[Queued], name: str) -> dict[str, Any]:
        """Return the message about an incident: that of its worst event, with all keys."""
        is_reported = self._is_reported(name, incident, group)
        latest = {queued.message["event"]["id"]: queued for queued in group}.values()
        worst = max(latest, key=lambda queued: queued.message["event"].get("bits") or 0.0)
        message = worst.message
        if not is_reported and worst.kind != "open":  # it began, worsened and perhaps ended meanwhile
            message = next((one.message for one in group if one.kind == "open"), message)
        members = self._book.members(incident) or [message["event"]]
        keys = list(dict.fromkeys((event["stream"], event["key"]) for event in members))
        facts = {
            "id": incident,
            "n_events": len(members),
            "is_open": any(event["is_open"] for event in members),
            "keys": [{"stream": stream, "key": key} for stream, key in keys],
        }
        message = {**message, "incident": facts}
        if message["type"] != "closing" and not facts["is_open"] and not is_reported:
            message["text"] = f"{message['text']}\nIt has ended meanwhile."
        if len(keys) == 1:
            return message
        kind = message["type"] if message["type"] == "closing" or not is_reported else "worse"
        title = message["title"] if not is_reported else f"Worse: {message['title'].partition(': ')[2]}"
        words = f"{len(keys)} keys are affected: {_names(keys)}. {_name(keys[0])} was first."
        if kind == "closing":
            title, words = f"Over: {len(keys)} keys, {_names(keys)}", words.replace("are affected", "were affected")
        else:
            title = f"{title} (and {len(keys) - 1} more {'key' if len(keys) == 2 else 'keys'})"
        summary, _, rest = message["text"].partition("\n")
        return {**message, "type": kind, "title": title, "text": f"{summary}\n{words}\n{rest}"}

    def _deliver(
        self,
        destination: Destination,
        incidents: list[str],
        group: list[Queued],
        message: dict[str, Any],
        outcome: dict[str, int],
    ) -> None:
        problem = destination.try_to_send(message)
        if problem is None:
            now, name = clock.time(), destination.config.name
            self._sent[name].append(now)
            self._reported |= {(name, incident): now for incident in incidents}
            for old in list(self._reported)[: max(0, len(self._reported) - _MOST_REMEMBERED)]:
                del self._reported[old]
        self._record(group, problem, outcome)

    @staticmethod
    def _record(group: list[Queued], problem: str | None, outcome: dict[str, int]) -> None:
        for queued in group:
            outcome[queued.outbox.record_outcome(queued, problem)] += 1


def _postpone(group: list[Queued], until: float) -> None:
    for outbox in {queued.outbox for queued in group}:
        outbox.postpone([queued.id for queued in group if queued.outbox is outbox], until)


def _digest(ready: dict[str, list[Queued]]) -> dict[str, Any]:
    """Return one message about several incidents."""
    last = [group[-1].message for group in ready.values()]
    lines = [message["title"] for message in last[:_MOST_NAMED]]
    if len(last) > _MOST_NAMED:
        lines.append(f"and {len(last) - _MOST_NAMED} more")
    events = [queued.message["event"] for group in ready.values() for queued in group]
    return {
        "id": f"{last[0]['id']}-digest-{len(last)}",
        "type": "digest",
        "title": f"{len(last)} incidents: the limit of messages per hour is reached",
        "text": "\n".join([*lines, last[0]["link"].partition("#")[0]]),
        "link": last[0]["link"].partition("#")[0],
        "event": last[0]["event"],
        "events": events,
    }


def _names(keys: Sequence[tuple[str, str]]) -> str:
    names = ", ".join(_name(key) for key in keys[:_MOST_NAMED])
    return names if len(keys) <= _MOST_NAMED else f"{names} and {len(keys) - _MOST_NAMED} more"


def _name(key: tuple[str, str]) -> str:
    stream, of_stream = key
    return f"{stream} / {label(of_stream)}" if of_stream else stream


class Sender:
    """The thread that sends the queued alerts of all streams."""

    def __init__(self, delivery: Delivery, count: Callable[[str, int], None]) -> None:
        self._delivery, self._count = delivery, count
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
            try:
                for outcome, n in self._delivery.send_due().items():
                    if n:
                        self._count(outcome, n)
            except (sqlite3.Error, Damaged) as problem:
                _LOG.error("cannot send alerts: %s", problem)
            self._is_due.wait(1.0)
            self._is_due.clear()
