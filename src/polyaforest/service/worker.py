"""The scoring loop of a stream: as in `watch`, with results written to the history."""

from __future__ import annotations

import time as clock
from collections.abc import Sequence
from itertools import accumulate, takewhile
from math import isnan
from typing import Any, NamedTuple, Protocol

from polyaforest.detectors import SeriesMPF
from polyaforest.explain import Explanation
from polyaforest.forest.grades import severity
from polyaforest.io.records import Record, RecordReader
from polyaforest.io.sources import Position, Source
from polyaforest.judge.describe import Tracked, bits_by_feature, describe_judgement, track
from polyaforest.judge.judge import Judged, Piece
from polyaforest.judge.judgement import Judgement
from polyaforest.judge.loop import Cadence, Loop
from polyaforest.judge.models import Entry, Store
from polyaforest.series import EventTracker
from polyaforest.service import outlook
from polyaforest.service.blocks import FLAGGED, KEPT_OUT, MUTED, NOT_CHECKED, NOT_LEARNED, Band, ScoredRecord
from polyaforest.service.clocks import Clocks, time_of_day
from polyaforest.service.config import StreamConfig
from polyaforest.service.drift_events import drift_changes, open_drift, return_drift, take_drift
from polyaforest.service.events import EventChange, event_id
from polyaforest.service.gates import KnownNormal, MaintenanceWindows, Mode, departure, why_muted, why_outside
from polyaforest.service.inbox import Inbox
from polyaforest.service.mutes import Mutes
from polyaforest.service.numbering import Numbering
from polyaforest.storage.migrations import upgrade_tracker
from polyaforest.tables.rows import StreamRow
from polyaforest.util.numbers import beside_band
from polyaforest.util.text import label

__all__ = ["Outputs", "RecordResult", "ResultBatch", "Worker"]

_SHARE_OF_SAVING = 10  # the pause between two saves is at least this many times the duration of the last


class RecordResult(NamedTuple):
    """The result of scoring a record."""

    judgement: Judgement  # after gates
    muted: str | None  # why its flag does not count
    sample: ScoredRecord
    changes: list[EventChange]
    open_events: set[str]  # of its key after the record

    def line(self) -> dict[str, Any]:
        """Return the verdict for the client that posted the record."""
        facts, grade = describe_judgement(self.judgement), severity(self.judgement.tail_bits)
        facts |= {} if grade is None else {"severity": grade}
        return facts if self.muted is None else {**facts, "muted": self.muted}


class ResultBatch(NamedTuple):
    """The results of a batch, to write to the history."""

    samples: dict[str, list[ScoredRecord]]
    changes: list[EventChange]
    open_events: dict[str, set[str]]  # of each key after its last record
    position: int


class Outputs(Protocol):
    """Where the worker of a stream writes: history, events and the clients that wait."""

    def write_batch(self, batch: ResultBatch, records: Sequence[Record], judged: Judged[RecordResult]) -> None:
        """Write the results of a batch of records; `judged` says which of them are rejected."""
        ...

    def flush(self) -> dict[str, Any]:
        """Write the history to disk; return its state, to save with the models."""
        ...

    def rewind(self, marks: dict[str, Any]) -> None:
        """Rewind the history to the state saved with the models."""
        ...

    def note_save(self, seconds: float) -> None:
        """Measure the time that a save took."""
        ...

    def notify(self, message: str) -> None:
        """Log a message for operators."""
        ...


class Worker(Loop[RecordResult]):
    """Scores the records of a stream and passes on the results.

    Parameters
    ----------
    name : str
        Name of the stream.
    config : StreamConfig
    source, reader, store, where
        As in `Loop`.
    outputs : Outputs
    clocks : Clocks
    mutes : Mutes, optional
        Rules that operators have added.
    """

    rows_option = "`series = false` in its settings"

    def __init__(
        self,
        name: str,
        config: StreamConfig,
        source: Source,
        reader: RecordReader,
        store: Store,
        outputs: Outputs,
        *,
        where: str,
        clocks: Clocks,
        mutes: Mutes | None = None,
    ) -> None:
        self._mutes = mutes
        self._usual_cadence = cadence = Cadence(config.save_records, config.save_every)
        super().__init__(
            source,
            reader,
            store,
            where=where,
            settings=config.settings,
            finds_series=config.finds_series,
            drift=config.monitor,
            cadence=cadence,
            notify=outputs.notify,
        )
        self._name, self.config, self._clocks = name, config, clocks
        self._maintenance = MaintenanceWindows(config.maintenance)
        self._outputs = outputs
        self.known: list[KnownNormal] = []  # events of series labelled as normal
        self.position = 0  # number of records

    def commit(self, *, is_end: bool = False, place: Position = None, purge: bool = False) -> None:
        """Save models and history; then delete the posted records that they include."""
        start = clock.monotonic()
        super().commit(is_end=is_end, place=place, purge=purge)
        if isinstance(self.source, Inbox):
            self.source.trim(self.source.position)
        seconds = clock.monotonic() - start
        self._outputs.note_save(seconds)
        pause = _SHARE_OF_SAVING * seconds
        is_long = pause > self.config.save_every  # with many models; no data is lost by saving less often
        self._cadence = Cadence(2**62, pause) if is_long else self._usual_cadence

    def note_settings(self, settings: dict[str, Any]) -> None:
        """Save these settings with the models from now on."""
        self._settings = settings

    # ---- events that records continue --------------------------------------------------------------------------------

    def take_event(self, key: str, id: str) -> dict[str, Any] | None:
        """Detach an event from its model, so that no record continues it; return its state, None if it was not open."""
        if key not in self.store.keys:
            return None
        entry = self.store[key]
        known = entry.notes.get("events")
        event = None if known is None else EventTracker.of_state(known).open_event
        if known is None or event is None or event_id(self._name, "anomaly", key, event.first) != id:
            return take_drift(entry, id)
        entry.notes["events"] = None
        return dict(known)

    def return_event(self, key: str, state: dict[str, Any]) -> bool:
        """Reattach an event detached by `take_event`; return whether records can still continue it."""
        if "drift" in state:
            return return_drift(self.store[key], state)
        state = upgrade_tracker(state)
        notes, tracker = self.store[key].notes, EventTracker.of_state(state)
        now, event = notes.get("events"), tracker.open_event
        is_other_open = now is not None and now["event"] is not None
        if event is None or is_other_open or notes["rows"] - event.last >= tracker.merge:
            return False
        notes["events"] = state
        return True

    def has_drift(self, key: str, id: str) -> bool:
        """Return whether the model of a key has an open event of a changed distribution with this id."""
        return key in self.store.keys and open_drift(self.store[key]) == id

    # ---- before scoring ----------------------------------------------------------------------------------------------

    def _why_invalid(self, row: StreamRow) -> str | None:
        """Return why a record is dated too far in the future, or None if it is not."""
        return None if row.time is None else self._clocks.why_ahead(row.time, self._received(row))

    def _received(self, row: StreamRow) -> float:
        """Return when a record arrived; an inbox returns the same time after a crash."""
        return self.source.received(int(row.position)) if isinstance(self.source, Inbox) else clock.time()

    def plan(self, entry: Entry, rows: Sequence[StreamRow]) -> Piece:
        """Return how many records to score together: up to a renewal of expected ranges or a change of learning."""
        n = len(rows)
        if self.config.band:
            outlook.renew(entry)
            n_copies = accumulate(row.weight or 1 for row in rows)
            most = outlook.n_until_renewed(entry.detector)
            n = max(1, sum(1 for _ in takewhile(lambda one: one <= most, n_copies)))
        if not self._maintenance and not self.config.gates.valid:
            return Piece(n)
        is_learned = self._is_learned(rows[0])
        alike = next((i for i in range(1, n) if self._is_learned(rows[i]) != is_learned), n)
        return Piece(alike, is_learned)

    def _is_learned(self, row: StreamRow) -> bool:
        return self._maintenance.mode(self._time_of(row)).is_learned and self._why_outside(row) is None

    def _why_outside(self, row: StreamRow) -> str | None:
        return why_outside(self.config.gates, self.reader.names, row.values)

    def _time_of(self, row: StreamRow) -> float:
        """Return the time of a record, or of its arrival if it has none."""
        return self._received(row) if row.time is None else row.time

    # ---- after scoring -----------------------------------------------------------------------------------------------

    def describe(self, entry: Entry, judgements: list[Judgement]) -> Sequence[RecordResult]:
        """Apply gates and maintenance windows to judgements on records of a key, and track events."""
        n_learned = sum(judgement.row.weight for judgement in judgements if judgement.point is not None)
        n_before = (entry.detector.n_seen_ if entry.detector.is_fitted else 0) - n_learned
        bands: list[Band | None] = [None] * len(judgements)
        if self.config.band:
            firsts = list(accumulate((one.row.weight or 1 for one in judgements[:-1]), initial=0))  # of their copies
            of_copies = outlook.bands(entry, len(self.reader.names), n_before, firsts[-1] + 1)
            bands = [of_copies[first] for first in firsts]
        return [self._result(entry, judgement, band) for judgement, band in zip(judgements, bands, strict=True)]

    def _result(self, entry: Entry, judgement: Judgement, band: Band | None) -> RecordResult:
        row = judgement.row
        key, when = row.key or "", self._time_of(row)
        muted = None
        outside = self._why_outside(row) if self.config.gates.valid else None
        mode = self._maintenance.mode(when) if self._maintenance else Mode()
        if judgement.is_anomaly and outside is None:
            muted = self._why_muted(entry, judgement, when) if mode.is_checked else "in maintenance"
        is_flagged = (judgement.is_anomaly and muted is None) or (outside is not None and mode.is_checked)
        final = judgement if judgement.is_anomaly == is_flagged else judgement._replace(is_anomaly=is_flagged)
        tracked = track(entry, final, when, self.config.merge)
        flags = FLAGGED * is_flagged | MUTED * (muted is not None)
        flags |= NOT_LEARNED * (judgement.point is None) | NOT_CHECKED * (not mode.is_checked)
        flags |= KEPT_OUT * (judgement.point is None and row.weight > 0 and self._is_learned(row))
        sample = ScoredRecord(
            0,  # set in `_write`
            tracked.number,
            when,
            judgement.score,
            judgement.p_value,
            judgement.threshold,
            flags,
            Numbering.of_notes(entry.notes).in_history(judgement.point),
            list(row.values),
            band,
            self._texts_of(row) if row.texts else {},
            row.weight,
        )
        drift = drift_changes(self._name, entry, judgement, tracked.number, when)
        changes = [*drift, *self._changes(key, tracked)]
        if is_flagged and tracked.event is not None and tracked.event.last == tracked.number:
            facts = changes[-1].facts
            facts["n_flagged"] = tracked.event.n_flagged
            if tracked.event.peak == when:
                facts |= self._facts(entry, final, band, outside)
        anomaly = None if tracked.event is None else event_id(self._name, "anomaly", key, tracked.event.first)
        open_events = {id for id in (anomaly, open_drift(entry)) if id is not None}
        return RecordResult(final, muted, sample, changes, open_events)

    def _texts_of(self, row: StreamRow) -> dict[int, str]:
        """Return the texts of the categories of a record, by column."""
        return {k: row.texts[row.values[k]] for k in self.reader.layout.coded if row.values[k] in row.texts}

    def _why_muted(self, entry: Entry, judgement: Judgement, when: float) -> str | None:
        gates, row, why = self.config.gates, judgement.row, judgement.explanation
        departed = None if why is None else departure(why, self.reader.names)
        if self._mutes is not None:
            muted = self._mutes.why(row.key or "", None if departed is None else departed.field, self._received(row))
            if muted is not None:
                return muted
        if why is None:
            return None
        key, bits = row.key or "", why.surprise - why.typical
        is_series = isinstance(entry.detector, SeriesMPF)  # other models have learned it
        if is_series and departed is not None and any(known.covers(key, departed, bits) for known in self.known):
            return "known as normal"
        return why_muted(gates, self.config.mute, key, when, departed)

    def _changes(self, key: str, tracked: Tracked) -> list[EventChange]:
        """Return the events that a record ends, begins or continues."""
        changes = []
        for event, is_open in ((tracked.ended, False), (tracked.event, True)):
            if event is not None and (not is_open or event.last == tracked.number):
                id = event_id(self._name, "anomaly", key, event.first)
                facts = {"first": event.first, "last": event.last, "closed_by": None if is_open else "records"}
                changes.append(EventChange(id, key, "anomaly", event.start, event.end, is_open, 0, facts))
        return changes

    def _facts(self, entry: Entry, judgement: Judgement, band: Band | None, outside: str | None) -> dict[str, Any]:
        """Describe the most unusual record of an event."""
        why, names, row = judgement.explanation, self.reader.names, judgement.row
        line, texts = describe_judgement(judgement), self._texts_of(row)
        facts: dict[str, Any] = {
            "peak": self._time_of(row),
            "record": row.id,
            "score": line["score"],
            "p_value": line["p_value"],
            "threshold": judgement.threshold,
            "bits": line.get("bits"),
            "severity": severity(judgement.tail_bits),
            "tail_bits": judgement.tail_bits,
            "summary": outside or line.get("summary", ""),
            "verdict": "Outside its valid range." if why is None else why.verdict,
            "reasons": line.get("reasons", []),
            "region": line.get("region", ""),
            "values": {name: texts.get(k, row.values[k]) for k, name in enumerate(names)},
            "expected": _by_field(names, band),
            "attributions": {},
            "departure": None,
            "similar": [],
        }
        if why is not None:
            departed = departure(why, names)
            facts["attributions"] = bits_by_feature(entry.detector, why)
            facts["departure"] = None if departed is None else departed._asdict()
            features = [dict(zip(why.names, point.tolist(), strict=True)) for _, point in why.similar]
            facts["similar"] = (
                [{"point": name, "values": point} for (name, _), point in zip(why.similar, features, strict=True)]
                if len(why.names) <= 32
                else []
            )
            if not facts["summary"]:
                facts["summary"] = _in_words(why, names, time_of_day(facts["peak"]))
        return facts

    def _write(self, records: Sequence[Record], judged: Judged[RecordResult]) -> None:
        """Pass on the results, each with its number in the stream."""
        batch = ResultBatch({}, [], {}, self.position)
        position = self.position
        for place in sorted(judged.results):
            result = judged.results[place]
            position += 1
            key = result.judgement.row.key or ""
            batch.samples.setdefault(key, []).append(ScoredRecord(position, *result.sample[1:]))
            batch.changes.extend(change._replace(position=position) for change in result.changes)
            batch.open_events[key] = result.open_events
        self.position = position
        self._outputs.write_batch(batch._replace(position=position), records, judged)

    def _marks(self) -> dict[str, Any]:
        return {"history": {**self._outputs.flush(), "position": self.position}}

    def _rewind(self, notes: dict[str, Any]) -> None:
        marks = notes.get("history", {})
        self.position = int(marks.get("position", 0))
        self._outputs.rewind(marks)


def _by_field(names: Sequence[str], band: Band | None) -> dict[str, dict[str, float]] | None:
    """Return the expected range of each field."""
    if band is None:
        return None
    parts = zip(*band, strict=True)
    return {name: dict(zip(Band._fields, part, strict=True)) for name, part in zip(names, parts, strict=True)}


def _in_words(why: Explanation, fields: Sequence[str], when: str) -> str:
    """Say what was read, when, what was expected, and what is unusual about it."""
    own = next((one for one in why.readings if one.name in fields), None)
    if own is None:
        first = next((f"{label(one.name)} is unusually {one.side}" for one in why.attributions), None)
        return first or "no single field stands out"
    if own.is_category:
        return f"{label(own.name)} {label(str(own.value))} at {when}: {own.seen or own.direction}"
    if isnan(own.value):
        return f"{label(own.name)} is missing at {when}"
    value, expected = beside_band(own.value, own.usual[0], own.median, own.usual[1])
    return f"{label(own.name)} {value} at {when}, expected {expected}: {own.direction}"
