"""A stream of the service: its files, and the thread that scores its records.

Only this thread changes the models; it runs tasks of other threads between two batches. If it fails, it restarts from
the last save after a pause. To apply changed settings, it saves everything and restarts at once; requests wait
meanwhile.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time as clock
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from polyaforest.detectors import SeriesMPF
from polyaforest.io.errors import BadInput
from polyaforest.io.records import Record
from polyaforest.io.sources import Source, open_source
from polyaforest.judge.changes import apply_settings
from polyaforest.judge.judge import Judged
from polyaforest.judge.models import Entry, new_detector, open_store
from polyaforest.service.alerts import Destination, Outbox
from polyaforest.service.audit import log
from polyaforest.service.blocks import FLAGGED, ScoredRecord
from polyaforest.service.changes import StreamPlan, new_reader, plan_stream
from polyaforest.service.clocks import Clocks
from polyaforest.service.config import StreamConfig
from polyaforest.service.damage import DamageReports, quarantine
from polyaforest.service.database import Damaged, Database
from polyaforest.service.events import EventChange, EventLog
from polyaforest.service.failures import Failures
from polyaforest.service.feed import Feed
from polyaforest.service.history import RecordHistory
from polyaforest.service.inbox import Busy, Inbox
from polyaforest.service.incidents import IncidentBook
from polyaforest.service.lifecycle import OpenEvents, closing, is_of_model
from polyaforest.service.metrics import Metrics
from polyaforest.service.mutes import Mutes
from polyaforest.service.relearn import Relearning
from polyaforest.service.silence import Silence
from polyaforest.service.tasks import Answer, Tasks
from polyaforest.service.worker import RecordResult, ResultBatch, Worker
from polyaforest.util.text import printable

__all__ = ["ServedStream", "StreamContext"]

_LOG = logging.getLogger("polyaforest.service")
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0  # seconds before a failed stream restarts
_RELEARN_SECONDS = 0.2  # between two batches
_SHARE_OF_AGE = 10  # time between two runs ages the history by at most a tenth of its longest age
_MOST_OPEN = 1_000_000  # events
_HOUSEKEEPING = 60.0  # most seconds between two deletions of expired data


@dataclass(frozen=True)
class StreamContext:
    """Resources that the streams of a process share."""

    folder: str
    feed: Feed
    metrics: Metrics
    destinations: Sequence[Destination]
    link: str  # to the page
    wake_sender: Callable[[], None]
    book: IncidentBook


@dataclass(frozen=True)
class _SettingsRequest:
    """A request to change the settings of a stream."""

    config: StreamConfig
    who: str  # requested it
    answer: Future[None]


class ServedStream:
    """A stream with its own thread, from `start` to `stop`."""

    def __init__(self, name: str, config: StreamConfig, shared: StreamContext) -> None:
        self.name, self.config, self._shared = name, config, shared
        base = os.path.join(shared.folder, name)
        self.store_path = f"{base}.models"
        self.database = Database(f"{base}.history")
        retention = config.retention
        clocks = Clocks(self.database, max_gap=retention.age / _SHARE_OF_AGE, max_ahead=config.max_ahead)
        self.history = RecordHistory(self.database, retention.records, retention.age, clocks)
        self.events = EventLog(name, self.database, self.history)
        self.outbox = Outbox(name, self.database, shared.destinations, shared.link)
        self.mutes = Mutes(self.database)
        self._failures = Failures(name)
        self.inbox = Inbox(self.database) if config.has_inbox else None
        with self.database.read() as file:
            found = file.execute("SELECT value FROM facts WHERE name = 'era'").fetchone()
        self._era = 0 if found is None else int(found[0])  # number of times the models started over
        self.template = new_detector(config)  # copied for the model of each key
        self.applied = 0  # number of the latest feedback that the models include
        self.undone = 0  # number of the feedback undone last
        self.error: str | None = None  # why it is not running
        self.is_ready = False
        self.fields: list[str] = []
        self.reader = new_reader(config)  # of the records in the history
        self.is_timed = config.time is not None  # whether records have times
        self.model_bytes = 0
        span = self.history.span()
        self._heard: float = 0.0 if span is None else span[1]  # time of the latest record
        self._open = OpenEvents(config.closes_after)
        self._kept_house = clock.monotonic()
        self._silence: Silence | None = None
        self._tasks = Tasks(name)
        self.on_open: list[Callable[[ServedStream, Worker], None]] = []  # called once models are open
        self.on_scored: list[Callable[[str, Mapping[str, Sequence[ScoredRecord]]], None]] = []  # with the stream's name
        self.reapply_feedback: Callable[[ServedStream, Worker], Callable[[str, Entry], None]] = _no_feedback
        self.relearning: Relearning | None = None
        self.relearned: list[str] = []  # settings that cause relearning
        self.notice: str | None = None  # outcome of changed settings
        self._requested: _SettingsRequest | None = None  # settings to change to
        self._request: _SettingsRequest | None = None  # settings being applied
        self._former: StreamConfig | None = None  # settings to restore if that fails
        self._unlearnable: dict[str, Any] | None = None  # settings with which relearning failed
        self._is_starting_again = False
        self._damage = DamageReports(self.database, self.history)
        self._is_stopped, self._is_woken = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"stream {name}", daemon=True)

    # ---- for other threads -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Save everything and stop the thread."""
        self._is_stopped.set()
        self._is_woken.set()
        if self.inbox is not None:
            self.inbox.wake()
        if self._thread.is_alive():
            self._thread.join()
        self.database.close()

    def call(self, task: Callable[[Worker], Answer]) -> Future[Answer]:
        """Run a task on the thread between two batches; its exceptions propagate through the future."""
        answer = self._tasks.add(task)
        if self.inbox is not None:
            self.inbox.wake()
        return answer

    def change(self, config: StreamConfig, who: str) -> Future[None]:
        """Apply other settings from the next batch on; keep the current ones if that fails."""
        request = _SettingsRequest(config, who, Future())
        self._requested = request
        self._is_woken.set()
        if self.inbox is not None:
            if not config.has_inbox:
                self.inbox.close()
            self.inbox.wake()
        return request.answer

    def restart_relearning(self) -> None:
        """Start relearning over, because the history has changed."""
        if self.relearning is not None:
            self.relearning.restart()

    @property
    def source_name(self) -> str:
        """The name of the source, without passwords."""
        return self.config.source_name

    @property
    def is_series(self) -> bool | None:
        """Whether records are scored as a time series; None if models detect it for each key."""
        return None if self.config.finds_series else isinstance(self.template, SeriesMPF)

    @property
    def n_keys(self) -> int:
        """Number of keys."""
        return len(self.history.keys)

    @property
    def n_records(self) -> int:
        """Number of scored records."""
        return self.history.position

    @property
    def lag(self) -> float:
        """Seconds since the time of the latest record; a time in the future counts as the time of arrival."""
        return max(0.0, clock.time() - self._heard) if self._heard else 0.0

    # ---- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while not self._is_stopped.is_set():
            began = clock.monotonic()
            try:
                self._judge_until_stopped()
                if not self._is_starting_again:
                    self._is_woken.wait()  # the source has ended, or settings have changed
                continue
            except Exception as problem:  # other streams must continue, and the cause may be temporary
                if self._return_to_former_settings(problem):
                    continue
                self.error, self.is_ready = printable(f"{type(problem).__name__}: {problem}"), False
                self._shared.metrics.errors.labels(self.name).inc()
                _LOG.error("stream %s failed: %s", self.name, self.error, exc_info=problem)
                self._report_failure()
            pause = _FIRST_PAUSE if clock.monotonic() - began > _LONGEST_PAUSE else min(2 * pause, _LONGEST_PAUSE)
            self._tasks.reject()
            self._is_woken.wait(pause)
        self._tasks.reject()
        if self._requested is not None:
            self._requested.answer.set_exception(Busy(f"the stream {self.name} is stopping"))
        if self.inbox is not None:
            self.inbox.close()

    def _report_failure(self) -> None:
        """Open an event about the failure, so that alerts are sent."""
        try:
            changes = self._failures.failed(self.error or "")
            if changes:
                self.change_events(changes)
        except (sqlite3.Error, Damaged, OSError) as problem:  # the failure itself is in the log
            _LOG.error("stream %s: its failure could not be recorded: %s", self.name, problem)

    def _judge_until_stopped(self) -> None:
        """Open the models and the source, and score records until stopped."""
        self._mend()
        self._take_request()
        self._is_starting_again = False
        config = self.config
        with open_store(
            self.store_path,
            lambda: deepcopy(self.template),
            change=lambda model: apply_settings(model, config),
            max_bytes=config.memory_mb * 2**20,
            notify=self.notify,
        ) as store:
            plan = plan_stream(self.name, self.config, store.notes)
            if plan.refused:
                raise BadInput("; ".join(plan.problems()))
            if plan.reader is not None:
                store.notes["reader"] = plan.reader
            self.template = new_detector(plan.running)
            source = self.inbox or _open_source(self.config)
            try:
                if not store.notes:
                    self._begin_era()
                worker = Worker(
                    f"{self.name} {self._era}",
                    plan.running,
                    source,
                    new_reader(self.config),
                    store,
                    self,
                    where=self.source_name,
                    clocks=self.history.clocks,
                    mutes=self.mutes,
                )
                self._worker = worker
                worker.position = self.history.position
                self._log_change(plan)
                worker.resume()
                self._begin_relearning(plan, worker)
                self._begin(worker)
                worker.run(self._is_over, lambda: self._between_batches(worker))
            finally:
                self._end_relearning()
                if not isinstance(source, Inbox):
                    source.close()

    def _begin_era(self) -> None:
        """Record that models start over: the numbering of records restarts."""
        self._era += 1
        with self.database.write() as file:
            file.execute("INSERT OR REPLACE INTO facts VALUES ('era', ?)", (str(self._era),))

    def _is_over(self) -> bool:
        """Return whether to pause scoring: the thread stops, or changed settings wait."""
        if self._is_stopped.is_set() or self._is_starting_again:
            return True
        if self._requested is None:
            return False
        return self.inbox is None or self._requested.config.has_inbox or not self.inbox.has_unread

    def _begin(self, worker: Worker) -> None:
        """Update events, fields and readiness after the models were opened."""
        self._begin_events(worker)
        recovered = [
            event["id"] for event in self.events.find(is_open=True, most=_MOST_OPEN) if event["kind"] == "failure"
        ]
        self.close_events(worker, recovered, "recovery")
        self._failures = Failures(self.name)
        for callback in self.on_open:
            callback(self, worker)
        self._read_fields(worker)
        self.error = None
        self._note_readiness()
        if self._request is not None:
            self._request.answer.set_result(None)
            self._request = self._former = None

    def _begin_events(self, worker: Worker) -> None:
        """Resume open events; close those that no record or feedback can close."""
        open_events = self.events.find(is_open=True, most=_MOST_OPEN)
        for event in open_events:
            self._shared.book.join(event)
        open_events = [event for event in open_events if not event.get("held")]
        self._open = OpenEvents(self.config.closes_after, open_events)
        self.close_events(worker, [event["id"] for event in open_events if event["label"] == "normal"], "feedback")
        drifts = [event for event in open_events if event["kind"] == "drift"]
        unknown = [event["id"] for event in drifts if not worker.has_drift(event["key"], event["id"])]
        self.close_events(worker, unknown, "settings" if self.config.drift is None else "model")
        silences = [event for event in open_events if event["kind"] == "silence"]
        if self.config.silence is None:
            self._silence = None
            self.close_events(worker, [event["id"] for event in silences], "settings")
            return
        normal = [event for event in self.events.find(label="normal", most=_MOST_OPEN) if event["kind"] == "silence"]
        lasting = [*silences, *(event for event in normal if event.get("closed_by") == "feedback")]
        self._silence = Silence(self.name, self.config.silence, self.history.keys, lasting)

    def _note_readiness(self) -> None:
        """Become ready once the replay after a restart is complete; until then, events are missing."""
        self.is_ready = self.inbox is None or not self.inbox.is_replaying

    def _read_fields(self, worker: Worker) -> None:
        """Copy the fields that the record reader has detected."""
        if self.fields != worker.reader.names:
            self.fields = list(worker.reader.names)
        self.is_timed, self.reader = worker.reader.time is not None, worker.reader

    def _between_batches(self, worker: Worker) -> None:
        """Run tasks of other threads, relearn, check for silence, and delete expired data."""
        self._mend()
        if not self.is_ready:
            self._note_readiness()
        self._tasks.run(worker)
        if self.relearning is not None:
            self._relearn(self.relearning, worker)
        if self._silence is not None:
            changes = self._silence.check(worker.position)
            if changes:
                self.change_events(changes)
        self.close_events(worker, self._open.of_silent_keys(), "silence")
        waits = 0.0 if self.inbox is None else self.inbox.longest_wait
        lag = self._failures.waits(waits, self.config.max_wait)
        if lag:
            self.change_events(lag)
        pause = min(_HOUSEKEEPING, self.config.retention.age / _SHARE_OF_AGE)
        if clock.monotonic() - self._kept_house > pause:  # also in a stream without new records
            self._kept_house = clock.monotonic()
            self.history.expire()
            self._expire_events()

    def _mend(self) -> None:
        """Repair the file, set damaged parts aside and report them."""
        if self.database.is_damaged:
            self.database.repair()
            self.history.reload()
        repairs, self.database.repairs = self.database.repairs, []
        for repair in repairs:
            self.notify(repair)
        has_damage = self.history.has_damage or self.events.has_damage
        if has_damage:
            self.history.set_aside()
            self.events.set_aside()
        if repairs or has_damage:
            for report in self._damage.new():
                self.notify(report)

    # ---- changed settings --------------------------------------------------------------------------------------------

    def _take_request(self) -> None:
        """Apply the requested settings, if any."""
        self._is_woken.clear()
        if self._is_stopped.is_set():
            self._is_woken.set()
        request, self._requested = self._requested, None
        if request is not None:
            self._request, self._former = request, self.config
            self._use(request.config)

    def _use(self, config: StreamConfig) -> None:
        self.config = config
        self.history.keep(config.retention.records, config.retention.age)
        self.history.clocks.max_ahead = config.max_ahead
        if not config.has_inbox:
            self.inbox = None
        elif self.inbox is None or self.inbox.is_closed:
            self.inbox = Inbox(self.database)

    def _return_to_former_settings(self, problem: Exception) -> bool:
        """Restore the former settings if changed ones caused a failure; return whether they did."""
        request, former = self._request, self._former
        if request is None or former is None:
            return False
        self._request = self._former = None
        self._use(former)
        self.notify(f"the changed settings were not applied: {problem}")
        request.answer.set_exception(problem)
        return True

    def _log_change(self, plan: StreamPlan) -> None:
        """Write changed settings to the audit log before they are saved with the models."""
        if not (plan.applied or plan.relearned):
            return
        who = "start" if self._request is None else self._request.who
        with self.database.write() as file:
            log(file, who, "settings", {"applied": plan.applied, "relearned": plan.relearned})
        self.notice = "; ".join(plan.words())
        self.notify(self.notice)

    def _begin_relearning(self, plan: StreamPlan, worker: Worker) -> None:
        """Start relearning if changed settings require it."""
        if not plan.relearned or self.config.settings == self._unlearnable:
            return
        template = new_detector(self.config)
        self.relearned = list(plan.relearned)
        self.relearning = Relearning(
            self.config, lambda: deepcopy(template), self.history, self.database, worker.reader
        )

    def _end_relearning(self) -> None:
        if self.relearning is not None:
            self.relearning.close()
        self.relearning = None

    def _relearn(self, relearning: Relearning, worker: Worker) -> None:
        """Relearn for a while; once complete, replace the current models."""
        try:
            is_complete = relearning.advance(_RELEARN_SECONDS)
        except Exception as problem:  # the current models stay in use
            self._unlearnable = self.config.settings
            self._end_relearning()
            self.notice = printable(f"could not relearn its models, the current ones stay in use: {problem}")
            _LOG.error("stream %s %s", self.name, self.notice, exc_info=problem)
            return
        if is_complete:
            self._unlearnable = self.config.settings  # until it succeeds, so that a failure is not repeated for ever
            self._adopt(relearning, worker)
            self._unlearnable = None
        elif self.inbox is not None:
            self.inbox.wake()  # do not wait for records

    def _adopt(self, relearning: Relearning, worker: Worker) -> None:
        """Save the new models and settings in one transaction; then restart with them."""
        worker.commit()  # a failure below returns to this point
        relearning.install(worker.store, self.reapply_feedback(self, worker))
        with self.database.write() as file:
            log(file, "the service", "relearned", {"settings": self.relearned, "n_records": relearning.n_learned})
        worker.note_settings(self.config.settings)
        worker.commit()
        self.notice = f"relearned its models from {relearning.n_learned:,} records of its history"
        self.notify(self.notice)
        self._is_starting_again = True

    # ---- results -----------------------------------------------------------------------------------------------------

    def write_batch(self, batch: ResultBatch, records: Sequence[Record], judged: Judged[RecordResult]) -> None:
        """Store and announce the results of a batch, and answer its clients."""
        with self._shared.metrics.batch.labels(self.name).time():
            self._read_fields(self._worker)
            self.history.append(batch.samples, batch.position)
            changes = _merged(batch.changes)
            changes += self._abandoned(batch, {change.id for change in changes})
            if self._silence is not None:
                changes += self._silence.hear(batch.samples, self.fields)
            if changes:
                self.change_events(changes)
            if judged.rejected:
                self._shared.metrics.quarantined.labels(self.name).inc(len(judged.rejected))
                quarantine(self.database, records, judged.rejected)
            self._announce(batch.samples)
            if self.inbox is not None:
                _answer(self.inbox, records, judged)

    def _abandoned(self, batch: ResultBatch, changed: set[str]) -> list[EventChange]:
        """Return changes that close open events which the models no longer know."""
        ids = [id for id in self._open.hear(batch.open_events) if id not in changed]
        return [closing(event, "model") for id in ids if (event := self.events.get(id)) is not None]

    def close_events(self, worker: Worker, ids: Sequence[str], by: str) -> None:
        """Close events; no later record continues them, even after a crash."""
        events = [event for id in ids if (event := self.events.get(id)) is not None and event["is_open"]]
        taken = [worker.take_event(event["key"], event["id"]) for event in events if is_of_model(event)]
        if any(taken):
            worker.commit()
        if events:
            self.change_events([closing(event, by) for event in events])

    def is_silent(self, id: str) -> bool:
        """Return whether the silence of an event continues."""
        return self._silence is not None and self._silence.is_silent(id)

    def change_events(self, changes: Sequence[EventChange]) -> None:
        """Write changes of events and their alerts in one transaction; then notify readers of the feed."""
        with self.database.write() as file:
            known = {change.id for change in changes if self.events.is_known(file, change.id)}
            events = [self._in_incident(file, event) for event in self.events.write(changes, file)]
            for event in events:
                self.queue_alerts(file, event)
        for event in events:
            if event["id"] not in known:
                self._shared.metrics.events.labels(self.name, event["kind"]).inc()
            self.announce_event(event)

    def _in_incident(self, file: sqlite3.Connection, event: dict[str, Any]) -> dict[str, Any]:
        """Return an event with its incident, which a new event joins or begins."""
        if event.get("incident"):
            return event
        return self.events.update(file, event["id"], incident=self._shared.book.join(event))

    def queue_alerts(self, file: sqlite3.Connection, event: dict[str, Any]) -> None:
        """Queue the alerts that are due for an event, in the transaction that changes it."""
        self._shared.book.join(event)  # before alerts can be sent
        is_muted = event["kind"] in ("silence", "drift") and self.mutes.why(event["key"], None, clock.time())
        if not is_muted or not event["is_open"]:
            self.outbox.add(file, event)

    def announce_event(self, event: dict[str, Any]) -> None:
        """Notify readers of the feed about a changed event, and send due alerts."""
        self._open.note([event])
        self._shared.book.join(event)
        self._shared.wake_sender()
        self._shared.feed.publish("event", self.name, event["key"], event)

    def _announce(self, samples: dict[str, list[ScoredRecord]]) -> None:
        feed = self._shared.feed
        for callback in self.on_scored:
            callback(self.name, samples)
        for key, of_key in samples.items():
            n_flagged = sum(sample.flags & FLAGGED for sample in of_key)
            self._shared.metrics.count(self.name, key, len(of_key), n_flagged)
            self._heard = max(self._heard, min(of_key[-1].time, clock.time()))
            feed.note(self.name, key, _described(of_key[-1]), len(of_key), n_flagged)
            if feed.wants_tail(self.name, key):
                feed.add_tail(self.name, key, [_described(sample) for sample in of_key])

    # ---- saving ------------------------------------------------------------------------------------------------------

    def flush(self) -> dict[str, Any]:
        """Write the history to disk; return its state, to save with the models."""
        self.history.flush()
        self._expire_events()
        self.model_bytes = self._worker.store.bytes_in_memory
        return {"feedback": self.applied, "undone": self.undone}

    def _expire_events(self) -> None:
        """Delete expired events and alerts."""
        with self.database.write() as file:
            self.events.expire(file)
            self.outbox.expire(file)
            self.mutes.expire(file, clock.time() - self.config.retention.age)

    def note_save(self, seconds: float) -> None:
        """Measure the time that a save took."""
        self._shared.metrics.save.labels(self.name).observe(seconds)

    def rewind(self, marks: dict[str, Any]) -> None:
        """Rewind the history to the state saved with the models."""
        position = int(marks.get("position", 0))
        self.history.rewind(position)
        self.events.rewind(position)
        self.applied = int(marks.get("feedback", 0))
        self.undone = int(marks.get("undone", 0))

    def notify(self, message: str) -> None:
        """Log a message for operators."""
        _LOG.warning("stream %s: %s", self.name, printable(message))


def _no_feedback(stream: ServedStream, worker: Worker) -> Callable[[str, Entry], None]:
    """Return a function that does nothing."""
    return lambda key, entry: None


def _open_source(config: StreamConfig) -> Source:
    """Open the source of a stream that has no inbox."""
    return open_source(config.source, follow=True) if config.prometheus is None else config.prometheus.open()


def _described(sample: ScoredRecord) -> dict[str, Any]:
    """Return a scored record for the feed."""
    band = None if sample.band is None else sample.band._asdict()
    return {
        "time": sample.time,
        "values": [sample.texts.get(k, value) for k, value in enumerate(sample.values)],
        "expected": band,
        "score": sample.score,
        "threshold": sample.threshold,
        "p_value": sample.p_value,
        "is_anomaly": bool(sample.flags & FLAGGED),
    }


def _answer(inbox: Inbox, records: Sequence[Record], judged: Judged[RecordResult]) -> None:
    """Answer the clients that posted the records."""
    for place in sorted([*judged.results, *judged.rejected]):
        position = records[place].position
        reason = judged.rejected.get(place)
        result = judged.results[place] if reason is None else {"position": position, "error": reason}
        inbox.answer(int(position), result)
    inbox.answer_all()


def _merged(changes: Sequence[EventChange]) -> list[EventChange]:
    """Merge the changes of each event: the last change, with the facts of all."""
    merged: dict[str, EventChange] = {}
    for change in changes:
        before = merged.get(change.id, change)
        merged[change.id] = change._replace(facts={**before.facts, **change.facts}, position=before.position)
    return list(merged.values())
