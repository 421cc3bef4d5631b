"""A stream of the service: its files, and the thread that judges its records.

What the thread is asked to do with the models it does between two batches, so that nothing else ever changes them. If
it fails, it starts again from what was saved, after a pause.
"""

from __future__ import annotations

import logging
import os
import threading
import time as clock
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, TypeVar

from polyaforest.core.text import printable
from polyaforest.estimators import SeriesMPF
from polyaforest.io.errors import BadInput
from polyaforest.io.records import RecordReader
from polyaforest.io.sources import Source, canonical_name, open_source
from polyaforest.io.sources.prometheus import TIME
from polyaforest.live import Detector, Store, new_detector, open_store
from polyaforest.live.judge import Judged
from polyaforest.service.alerts import Destination, Outbox
from polyaforest.service.blocks import FLAGGED, Sample
from polyaforest.service.clocks import Clocks, moment_text
from polyaforest.service.config import StreamConfig
from polyaforest.service.database import Database
from polyaforest.service.events import Change, EventLog
from polyaforest.service.feed import Feed
from polyaforest.service.history import History
from polyaforest.service.inbox import Busy, Inbox
from polyaforest.service.lifecycle import OpenEvents, closing
from polyaforest.service.metrics import Metrics
from polyaforest.service.silence import Silence
from polyaforest.service.worker import Batch, Result, Worker

__all__ = ["Shared", "Stream", "detector_of"]

_LOG = logging.getLogger("polyaforest.service")
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0  # seconds before a stream that failed starts again
_MOST_QUARANTINED = 1000
_SHARE_OF_AGE = 10  # the time between two runs ages the history by this part of its longest age at most
_MOST_OPEN = 1_000_000  # events
_MOST_NAMED = 100  # damaged parts in the log at a time
_HOUSEKEEPING = 60.0  # seconds between two looks at what is too old, at most

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Shared:
    """What the streams of a process have in common."""

    folder: str
    feed: Feed
    metrics: Metrics
    destinations: Sequence[Destination]
    link: str  # to the page
    wake_sender: Callable[[], None]


def detector_of(config: StreamConfig) -> Detector:
    """Return a new detector by the settings of a stream."""
    return new_detector(
        trees=config.trees,
        window=config.window,
        false_alarm_rate=config.false_alarm_rate,
        seed=config.seed,
        is_series=config.series,
        shingle=config.shingle,
        difference=config.difference,
        calendar=tuple(config.seasons),
    )


def _reader(config: StreamConfig) -> RecordReader:
    """Return the parser of the records of a stream."""
    if config.prometheus is not None:
        return RecordReader(columns=list(config.prometheus.queries), time=TIME, key=config.prometheus.by)
    return RecordReader(config.format, columns=config.columns, time=config.time, key=config.by, id=config.id)


class Stream:
    """A stream: judged by a thread of its own from `start` to `stop`."""

    def __init__(self, name: str, config: StreamConfig, shared: Shared) -> None:
        self.name, self.config, self._shared = name, config, shared
        base = os.path.join(shared.folder, name)
        self.store_path = f"{base}.models"
        self.database = Database(f"{base}.history")
        retention = config.retention
        clocks = Clocks(self.database, max_gap=retention.age / _SHARE_OF_AGE, max_ahead=config.max_ahead)
        self.history = History(self.database, retention.records, retention.age, clocks)
        self.events = EventLog(name, self.database, self.history)
        self.outbox = Outbox(name, self.database, shared.destinations, shared.link)
        self.inbox = Inbox(self.database) if config.source == "http" else None
        with self.database.read() as file:
            found = file.execute("SELECT value FROM facts WHERE name = 'era'").fetchone()
        self._era = 0 if found is None else int(found[0])  # how often models started over
        self.template = detector_of(config)  # of the models of all keys
        self.applied = 0  # number of the latest feedback that is part of the models
        self.error: str | None = None  # why it does not run
        self.is_ready = False
        self.fields: list[str] = []
        self.is_timed = config.time is not None  # whether records have times
        self.caught_up_at = 0.0  # when nothing was waiting
        self.model_bytes = 0
        span = self.history.span()
        self._heard: float = 0.0 if span is None else span[1]  # time of the latest record
        self._open = OpenEvents(config.closes_after)
        self._kept_house = clock.monotonic()
        self._silence: Silence | None = None
        self._commands: deque[tuple[Callable[[Worker], Any], Future[Any]]] = deque()
        self.settlers: list[Callable[[Stream, Worker], None]] = []  # called when models are open
        # number of the last damaged part that is in the log
        self._reported = 0 if self.database.repairs else self.history.last_damaged
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"stream {name}", daemon=True)

    # ---- for other threads -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Save everything and stop the thread."""
        self._is_stopped.set()
        if self.inbox is not None:
            self.inbox.wake()
        if self._thread.is_alive():
            self._thread.join()
        self.database.close()

    def call(self, task: Callable[[Worker], Answer]) -> Future[Answer]:
        """Have the thread do something between two batches; what it raises is that of the future."""
        answer: Future[Answer] = Future()
        self._commands.append((task, answer))
        if self.inbox is not None:
            self.inbox.wake()
        return answer

    @property
    def source_name(self) -> str:
        """The name of the source, without passwords."""
        is_known = self.config.source in ("http", "prometheus")
        return self.config.source if is_known else canonical_name(self.config.source)

    @property
    def is_series(self) -> bool | None:
        """Whether records are judged as a time series; None if each key finds out."""
        return None if self.config.finds_series else isinstance(self.template, SeriesMPF)

    @property
    def n_keys(self) -> int:
        """Keys that have come."""
        return len(self.history.keys)

    @property
    def n_records(self) -> int:
        """Records that were judged."""
        return self.history.position

    @property
    def lag(self) -> float:
        """Seconds since the latest record, by its own time; one that was dated in the future counts as it came."""
        return max(0.0, clock.time() - self._heard) if self._heard else 0.0

    # ---- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while not self._is_stopped.is_set():
            began = clock.monotonic()
            try:
                self._judge_until_stopped()
                break
            except Exception as problem:  # it must not end the other streams, and what failed may be mended
                self.error, self.is_ready = printable(f"{type(problem).__name__}: {problem}"), False
                self._shared.metrics.errors.labels(self.name).inc()
                _LOG.error("stream %s failed: %s", self.name, self.error, exc_info=problem)
            pause = _FIRST_PAUSE if clock.monotonic() - began > _LONGEST_PAUSE else min(2 * pause, _LONGEST_PAUSE)
            self._fail_commands()
            self._is_stopped.wait(pause)
        self._fail_commands()
        if self.inbox is not None:
            self.inbox.close()

    def _judge_until_stopped(self) -> None:
        """Open the models and the source, and judge what comes."""
        self._mend()
        config = self.config
        reader = _reader(config)
        max_bytes = config.memory_mb * 2**20
        with open_store(
            self.store_path, lambda: deepcopy(self.template), max_bytes=max_bytes, notify=self._notify
        ) as store:
            self._refuse_other_settings(store)
            source = self._open_source()
            try:
                if not store.notes:
                    self._begin_era()
                worker = Worker(
                    f"{self.name} {self._era}",
                    config,
                    source,
                    reader,
                    store,
                    where=self.source_name,
                    clocks=self.history.clocks,
                    write=self._write,
                    mark=self._mark,
                    rewind=self._rewind,
                    saved=self._note_save,
                    notify=self._notify,
                )
                self._worker = worker
                worker.position = self.history.position
                worker.resume()
                self._begin(worker)
                worker.run(self._is_stopped.is_set, lambda: self._between_batches(worker))
            finally:
                if not isinstance(source, Inbox):
                    source.close()

    def _begin_era(self) -> None:
        """Take note that models start over, with whatever history before them: records are numbered anew."""
        self._era += 1
        with self.database.write() as file:
            file.execute("INSERT OR REPLACE INTO facts VALUES ('era', ?)", (str(self._era),))

    def _open_source(self) -> Source:
        if self.inbox is not None:
            return self.inbox
        if self.config.prometheus is not None:
            return self.config.prometheus.open()
        return open_source(self.config.source, follow=True)

    def _refuse_other_settings(self, store: Store) -> None:
        """Raise if models would go on with other settings than they started with."""
        before = store.notes.get("settings")
        for name, value in self.config.settings.items():
            if before is not None and before.get(name) != value:
                raise BadInput(
                    f"{name} of stream {self.name} was {before.get(name)!r} when its models were started, and is "
                    f"{value!r} now: use the same setting, or move {self.store_path} away to start over"
                )

    def _begin(self, worker: Worker) -> None:
        """Take note of what is known by now."""
        self._begin_events(worker)
        for settle in self.settlers:
            settle(self, worker)
        self._read_fields(worker)
        self.error = None
        self._note_readiness()

    def _begin_events(self, worker: Worker) -> None:
        """Take up the events that were open; close those that nothing else can close."""
        open_events = self.events.find(is_open=True, most=_MOST_OPEN)
        self._open = OpenEvents(self.config.closes_after, open_events)
        self.close_events(worker, [event["id"] for event in open_events if event["label"] == "normal"], "feedback")
        silences = [event for event in open_events if event["kind"] == "silence"]
        if self.config.silence is None:
            self.close_events(worker, [event["id"] for event in silences], "settings")
            return
        normal = [event for event in self.events.find(label="normal", most=_MOST_OPEN) if event["kind"] == "silence"]
        lasting = [*silences, *(event for event in normal if event.get("closed_by") == "feedback")]
        self._silence = Silence(self.name, self.config.silence, self.history.keys, lasting)

    def _note_readiness(self) -> None:
        """Be ready once what came before a restart is judged again: until then events are missing."""
        self.is_ready = self.inbox is None or not self.inbox.is_replaying

    def _read_fields(self, worker: Worker) -> None:
        """Take note of what the reader of records has found out."""
        if self.fields != worker.reader.names:
            self.fields = list(worker.reader.names)
        self.is_timed = worker.reader.time is not None

    def _between_batches(self, worker: Worker) -> None:
        """Do what other threads asked for, look for silence, and keep the history in order."""
        self._mend()
        if not self.is_ready:
            self._note_readiness()
        while self._commands:
            task, answer = self._commands.popleft()
            if not answer.set_running_or_notify_cancel():
                continue
            try:
                answer.set_result(task(worker))
            except Exception as problem:  # it is for whoever asked
                answer.set_exception(problem)
        if self._silence is not None:
            changes = self._silence.check(worker.position)
            if changes:
                self.change_events(changes)
        self.close_events(worker, self._open.of_silent_keys(), "silence")
        pause = min(_HOUSEKEEPING, self.config.retention.age / _SHARE_OF_AGE)
        if clock.monotonic() - self._kept_house > pause:  # also of a stream to which nothing comes
            self._kept_house = clock.monotonic()
            self.history.expire()
            self._expire_events()

    def _mend(self) -> None:
        """Set aside what is damaged, and say so."""
        if self.database.is_damaged:
            self.database.repair()
            self.history.reload()
        repairs, self.database.repairs = self.database.repairs, []
        for repair in repairs:
            self._notify(repair)
        has_damage = self.history.has_damage or self.events.has_damage
        if has_damage:
            self.history.set_aside()
            self.events.set_aside()
        if repairs or has_damage:
            self._report_damage()

    def _report_damage(self) -> None:
        """Name the damaged parts that were not reported yet."""
        found = self.history.damaged(most=_MOST_NAMED)
        new = [part for part in found if part["id"] > self._reported]
        self._reported = max([self._reported, *(part["id"] for part in found)])
        for part in reversed(new):
            records = f"{part['n']} records" if part["what"] == "block" else "an event"
            span = f"{moment_text(part['start'])} to {moment_text(part['end'])}"
            self._notify(
                f"{self.database.path} is damaged: {records} of key {part['key']!r} from {span} cannot be read "
                f"({part['reason']}). It was set aside; all others stay"
            )

    def _fail_commands(self) -> None:
        while self._commands:
            self._commands.popleft()[1].set_exception(Busy(f"the stream {self.name} does not run"))

    # ---- results -----------------------------------------------------------------------------------------------------

    def _write(self, batch: Batch, judged: Judged[Result]) -> None:
        """Take the results of a batch."""
        with self._shared.metrics.batch.labels(self.name).time():
            self._read_fields(self._worker)
            self.history.append(batch.samples, batch.position)
            changes = _folded(batch.changes)
            changes += self._abandoned(batch, {change.id for change in changes})
            if self._silence is not None:
                changes += self._silence.hear(batch.samples, self.fields)
            if changes:
                self.change_events(changes)
            if judged.bad:
                self._quarantine(judged)
            self._announce(batch.samples)
            if self.inbox is not None:
                self._answer(self.inbox, judged)

    def _abandoned(self, batch: Batch, changed: set[str]) -> list[Change]:
        """Return changes that close open events which the models of their keys do not know any more."""
        ids = [id for id in self._open.hear(batch.open_events) if id not in changed]
        return [closing(event, "model") for id in ids if (event := self.events.get(id)) is not None]

    def close_events(self, worker: Worker, ids: Sequence[str], by: str) -> None:
        """Close events that records have not closed: no record continues them, also after a crash in between."""
        events = [event for id in ids if (event := self.events.get(id)) is not None and event["is_open"]]
        taken = [worker.take_event(event["key"], event["id"]) for event in events if event["kind"] == "anomaly"]
        if any(taken):
            worker.commit()
        if events:
            self.change_events([closing(event, by) for event in events])

    def is_silent(self, id: str) -> bool:
        """Return whether the silence of an event lasts."""
        return self._silence is not None and self._silence.is_silent(id)

    def change_events(self, changes: Sequence[Change]) -> None:
        """Write changes of events, and alerts about them, in one transaction; then tell who listens."""
        with self.database.write() as file:
            known = {change.id for change in changes if self.events.is_known(file, change.id)}
            events = self.events.write(changes, file)
            for event in events:
                self.outbox.add(file, event)
        for event in events:
            if event["id"] not in known:
                self._shared.metrics.events.labels(self.name, event["kind"]).inc()
            self.announce_event(event)

    def announce_event(self, event: dict[str, Any]) -> None:
        """Tell those who listen about an event that was written, and send the alerts that are due."""
        self._open.note([event])
        self._shared.wake_sender()
        self._shared.feed.publish("event", self.name, event["key"], event)

    def _announce(self, samples: dict[str, list[Sample]]) -> None:
        feed = self._shared.feed
        for key, of_key in samples.items():
            n_flagged = sum(sample.flags & FLAGGED for sample in of_key)
            self._shared.metrics.count(self.name, key, len(of_key), n_flagged)
            self._heard = max(self._heard, min(of_key[-1].time, clock.time()))
            feed.note(self.name, key, self.describe(of_key[-1]), len(of_key), n_flagged)
            if feed.wants_tail(self.name, key):
                feed.add_tail(self.name, key, [self.describe(sample) for sample in of_key])

    def describe(self, sample: Sample) -> dict[str, Any]:
        """Return a judged record for the feed."""
        band = None if sample.band is None else sample.band._asdict()
        return {
            "time": sample.time,
            "values": sample.values,
            "expected": band,
            "score": sample.score,
            "threshold": sample.threshold,
            "p_value": sample.p_value,
            "is_anomaly": bool(sample.flags & FLAGGED),
        }

    def _quarantine(self, judged: Judged[Result]) -> None:
        self._shared.metrics.quarantined.labels(self.name).inc(len(judged.bad))
        now = clock.time()
        rows = [(bad.record.position, now, bad.reason, bad.record.text) for bad in judged.bad[-_MOST_QUARANTINED:]]
        with self.database.write() as file:
            file.executemany("INSERT OR REPLACE INTO quarantine VALUES (?, ?, ?, ?)", rows)
            query = "DELETE FROM quarantine WHERE rowid <= (SELECT max(rowid) FROM quarantine) - ?"
            file.execute(query, (_MOST_QUARANTINED,))

    @staticmethod
    def _answer(inbox: Inbox, judged: Judged[Result]) -> None:
        """Answer those who posted the records."""
        bad = {one.place: one for one in judged.bad}
        for place in sorted([*judged.results, *bad]):
            if place in bad:
                one = bad[place]
                inbox.answer(int(one.record.position), {"position": one.record.position, "error": one.reason})
            else:
                result = judged.results[place]
                inbox.answer(int(result.arrival.record.position), result)
        inbox.answer_all()

    # ---- saving ------------------------------------------------------------------------------------------------------

    def _note_save(self, seconds: float) -> None:
        """Take note of how long it took to save."""
        self._shared.metrics.save.labels(self.name).observe(seconds)

    def _mark(self) -> dict[str, Any]:
        """Write the history to disk; return what to save of it with the models."""
        self.history.flush()
        self._expire_events()
        self.model_bytes = self._worker.store.bytes_in_memory
        return {"feedback": self.applied}

    def _expire_events(self) -> None:
        """Delete events and alerts that are too old."""
        with self.database.write() as file:
            self.events.expire(file)
            self.outbox.expire(file)

    def _rewind(self, marks: dict[str, Any]) -> None:
        """Take the history back to what was saved with the models."""
        position = int(marks.get("position", 0))
        self.history.rewind(position)
        self.events.rewind(position)
        self.applied = int(marks.get("feedback", 0))

    def _notify(self, message: str) -> None:
        _LOG.warning("stream %s: %s", self.name, printable(message))


def _folded(changes: Sequence[Change]) -> list[Change]:
    """Return one change for each event: the last, with the facts of all."""
    folded: dict[str, Change] = {}
    for change in changes:
        before = folded.get(change.id, change)
        folded[change.id] = change._replace(facts={**before.facts, **change.facts}, position=before.position)
    return list(folded.values())
