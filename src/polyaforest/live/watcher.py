"""The endless loop: read records, judge, explain and learn them, write the results, and commit now and then.

Records are pulled in batches of bounded size, and the next batch is read when the results of the last are written: so
nothing queues up, and a slow reader slows the source down. A commit saves the models, the position in the source and
the lengths of the output files as of one moment. After a crash the files are cut back to that moment and the source
resumes from there: every record is learned once, and its line is in the file once.
"""

from __future__ import annotations

import time as clock
from collections.abc import Callable
from dataclasses import dataclass
from math import isnan
from typing import Any

import numpy as np

from polyaforest.core import schema
from polyaforest.core.validation import NamedRows
from polyaforest.estimators import SeriesMPF
from polyaforest.forest.point_store import point_keys
from polyaforest.io import file_identity
from polyaforest.io.records import Record, RecordReader, Row
from polyaforest.io.sources import Position, Source
from polyaforest.live import Detector, Entry, Store
from polyaforest.live.outputs import Lines
from polyaforest.live.verdicts import (
    Arrival,
    Bad,
    Verdict,
    as_lines,
    close_event,
    describe_bad,
    describe_verdict,
    track_event,
)
from polyaforest.persistence.model_store import refusing_notes

__all__ = ["Cadence", "Counts", "Watcher"]

_SUSPICIOUS = 20  # first records that are all bad
_PATIENCE = 0.25  # seconds to wait for a record before the loop checks for other work
_MAX_FAILURES = 3  # consecutive records that a model fails on before it starts over
_COUNT = schema.whole()
_TEXT_OR_NONE = schema.either(schema.nothing, schema.text)
_MARK = schema.record(
    {
        "path": schema.path,
        "device": file_identity.file_number,
        "inode": file_identity.file_number,
        "born": file_identity.born,
        "length": _COUNT,
        "ends": schema.text,
    },
    optional=["device", "born", "ends"],  # which marks of older releases do not have
)
# The notes of a commit. A store may come from an untrusted source, so they are checked before they are used.
_NOTES = schema.record(
    {
        "is_end": schema.flag,
        "where": schema.path,
        "position": schema.anything,  # by the source
        "settings": schema.mapping,
        "reader": schema.record(
            {
                "format": schema.one_of("auto", "jsonl", "csv"),
                "names": schema.many(schema.text),
                "time": _TEXT_OR_NONE,
                "key": _TEXT_OR_NONE,
                "id": _TEXT_OR_NONE,
                "skipped": schema.mapping,
                "named": schema.flag,
                "settled": schema.flag,
                "header": schema.many(schema.text),
                "delimiter": schema.one_of(",", "\t", ";", "|"),
            }
        ),
        "out": schema.either(schema.nothing, _MARK),
        "quarantine": schema.either(schema.nothing, _MARK),
        "counts": schema.record({"records": _COUNT, "bad": _COUNT, "anomalies": _COUNT}),
    }
)


@dataclass(frozen=True)
class Cadence:
    """How often to commit, and how much to read at a time."""

    records: int = 10_000  # between two commits
    seconds: float = 30.0  # between two commits, if any records have come
    batch: int = 4096  # the most records that are read at a time


@dataclass
class Counts:
    """Totals since the models started."""

    records: int = 0
    bad: int = 0
    anomalies: int = 0


class Watcher:
    """Judges the records of a source, each by the model of its key.

    Parameters
    ----------
    source : Source
    reader : RecordReader
    store : ModelStore
    out, quarantine : Lines
        Where verdicts and bad records go, a line of JSON each.
    where : str
        The name of the source, by which it is recognised when the store is used again.
    settings : dict
        The settings of the models, saved with them.
    only_anomalies : bool
        Whether to write lines for flagged records only.
    merge : int or None
        Write a line per event instead of lines per record; flagged records at most so far apart form one event.
    cadence : Cadence
    notify : callable
        Takes messages for the user.
    """

    def __init__(
        self,
        source: Source,
        reader: RecordReader,
        store: Store,
        out: Lines,
        quarantine: Lines,
        *,
        where: str = "-",
        settings: dict[str, Any] | None = None,
        only_anomalies: bool = False,
        merge: int | None = None,
        cadence: Cadence | None = None,
        notify: Callable[[str], None] = lambda message: None,
    ) -> None:
        self.source, self.reader, self.store, self.out, self.quarantine = source, reader, store, out, quarantine
        self._where, self._settings, self._notify = where, settings or {}, notify
        self._only_anomalies, self._merge = only_anomalies, merge
        self._cadence = cadence or Cadence()
        self.counts = Counts()
        self.resumed_from: dict[str, Any] = {}  # the notes of the run before
        self._has_warned = False
        self._failures: dict[str, int] = {}  # by key: consecutive records that its model failed on
        self._starved: str | None = None  # the key that last ran out of memory
        self._uncommitted = 0  # records since the last commit
        self._committed_at = clock.monotonic()

    # ---- the loop ----------------------------------------------------------------------------------------------------

    def resume(self, *, skip_seen: bool = False) -> bool:
        """Return to the last commit, if the store has one; return whether the source resumes where it was.

        A source that cannot replay continues with what comes next. If it starts over instead, `skip_seen` skips the
        records that were counted before.
        """
        notes = self.store.notes
        if not notes:
            self.commit()  # what is written from now on can be taken back
            mark = self.store.notes["out"]
            if self.store.name and mark is not None and mark["length"]:  # the model may have been deleted by mistake
                words = "is not empty: the lines of this run are added to it"
                self._notify(f"the model is new, but '{mark['path']}' {words}")
            return False
        with refusing_notes(self.store.name):
            _NOTES(notes, "")
            self.counts = Counts(**notes["counts"])
            self.reader = RecordReader.of_state(notes["reader"])
            is_same = notes["where"] == self._where and notes["position"] is not None
            if is_same and (self.source.can_replay or skip_seen):
                self.source.seek(notes["position"])
            if not notes["is_end"]:  # after a regular end, lines that were added are not ours
                self.out.rewind(notes["out"])
                self.quarantine.rewind(notes["quarantine"])
        self.resumed_from = notes
        self.commit()
        return bool(is_same)

    def run(self, is_stopped: Callable[[], bool] = lambda: False, watching: Callable[[], None] = lambda: None) -> None:
        """Run until the source ends or `is_stopped` returns True; then save everything.

        If the lines cannot be written, nothing is saved: what was not delivered is read again next time.
        """
        while not is_stopped():
            place = self.source.position
            records = self.source.read(self._cadence.batch, _PATIENCE)
            self._pass_on_notices()
            if self.out.has_moved or self.quarantine.has_moved:
                self.commit(place=place)  # the lines of these records go to a new file, from the start of it
            if records is None:
                self._end_events()
                break
            if records:
                self._handle(records)
            is_time = clock.monotonic() - self._committed_at >= self._cadence.seconds
            due = 1 if is_time else self._cadence.records
            if self.store.is_due or self._uncommitted >= due:
                self.commit()
            watching()
        self.commit(is_end=True)

    def commit(self, *, is_end: bool = False, place: Position = None) -> None:
        """Save the models, the position in the source (the current one by default) and marks of the output files."""
        self.store.commit(
            {
                "is_end": is_end,  # whether it stops here, so that nothing can have been lost
                "where": self._where,
                "position": self.source.position if place is None else place,
                "settings": self._settings,
                "reader": self.reader.state(),
                "out": self.out.mark(),
                "quarantine": self.quarantine.mark(),
                "counts": vars(self.counts).copy(),
            }
        )
        self._uncommitted, self._committed_at = 0, clock.monotonic()
        self._pass_on_notices()

    def close(self) -> None:
        """Close the source and the output files."""
        for part in (self.source, self.out, self.quarantine):
            part.close()

    def _pass_on_notices(self) -> None:
        for part in (self.source, self.out, self.quarantine):
            while part.notices:
                self._notify(part.notices.pop(0))

    # ---- a batch -----------------------------------------------------------------------------------------------------

    def _handle(self, records: list[Record]) -> None:
        """Judge and learn records, and write the results in their order."""
        streams: dict[str, list[Arrival]] = {}
        bad: list[Bad] = []
        for place, record in enumerate(records):
            row = self.reader.parse(record)
            self.counts.records += row is not None  # headers and blank lines are no records
            if isinstance(row, Row):
                streams.setdefault(row.key or "", []).append(Arrival(place, record, row))
            elif row is not None:
                bad.append(Bad(place, record, row))
        lines: dict[int, bytes] = {}
        for key, arrivals in streams.items():
            self._judge(key, arrivals, lines, bad)
        self.counts.bad += len(bad)
        self._uncommitted += len(records)
        counts = self.counts
        if bad and not self._has_warned and counts.bad == counts.records >= _SUSPICIOUS:  # wrong columns, most likely
            self._has_warned = True
            self._notify(f"all of the first {counts.records:,} records are bad; the last one: {bad[-1].reason}")
        self.quarantine.write(as_lines(map(describe_bad, sorted(bad, key=lambda one: one.place))))
        self.out.write(b"".join(lines[place] for place in sorted(lines)))

    def _judge(self, key: str, arrivals: list[Arrival], lines: dict[int, bytes], bad: list[Bad]) -> None:
        """Judge the records of one key: all at once, or one by one if the model refuses any."""
        entry = self.store[key]
        good: list[Arrival] = []
        for arrival in arrivals:
            reason = _why_unusable(arrival.row, entry.detector, is_first=not good)
            if reason is None:
                good.append(arrival)
            else:
                bad.append(Bad(arrival.place, arrival.record, reason))
        reason = self._refusal(key, good, lines) if good else None
        if reason is not None and len(good) == 1:
            about_it = reason.replace("row 0, ", "").replace("the time of row 0", "its time")
            bad.append(Bad(good[0].place, good[0].record, about_it.removesuffix(". Nothing was learned")))
        elif reason is not None:
            for arrival in good:
                self._judge(key, [arrival], lines, bad)

    def _refusal(self, key: str, arrivals: list[Arrival], lines: dict[int, bytes]) -> str | None:
        """Judge records together; return why the model of the key could not, or None if all were judged.

        An error costs the record, or at worst what its key has learned since the last save. It must not stop the other
        keys, nor occur again at every restart.
        """
        entry = self.store[key]
        before = _progress(entry.detector)
        try:
            self._judge_together(entry, arrivals, lines)
        except OSError:  # not the record's fault: what was not delivered is read again next time
            raise
        except Exception as problem:
            if isinstance(problem, MemoryError) and self._is_starving(key):
                raise
            reason = str(problem) if isinstance(problem, ValueError) else f"{type(problem).__name__}: {problem}"
            if _progress(entry.detector) == before:
                return reason
            return self._set_back(key, reason, of_one=len(arrivals) == 1)
        self._failures.pop(key, None)
        self._starved = None
        return None

    def _is_starving(self, key: str) -> bool:
        """Return whether memory is short for all keys, and not only for one whose model needs too much."""
        before, self._starved = self._starved, key
        return len(self.store) < 2 or before not in (None, key)

    def _set_back(self, key: str, problem: str, *, of_one: bool) -> str:
        """Replace a model that failed halfway by its last saved state; return what happened.

        After several consecutive failures the model itself is at fault: the key starts over.
        """
        failures = self._failures[key] = self._failures.get(key, 0) + of_one
        whose = f"the model of key {key!r}" if key else "the model"
        reason = f"{whose} failed on this record ({problem})"
        if failures < _MAX_FAILURES:
            self.store.revert(key)
            self._notify(f"{reason}; it continues from its last saved state")
        else:
            self.store.delete(key)
            del self._failures[key]
            self._notify(f"{reason}, as on the {_MAX_FAILURES - 1} before; it starts over")
        return reason

    def _judge_together(self, entry: Entry, arrivals: list[Arrival], lines: dict[int, bytes]) -> None:
        rows = NamedRows(np.array([arrival.row.values for arrival in arrivals], np.float64), self.reader.names)
        times = None
        if self.reader.time is not None:
            times = np.array([arrival.row.time for arrival in arrivals], np.float64)
        keys = _keys_of(arrivals, entry.detector)
        detected = entry.detector.detect_then_learn(rows, keys=keys, times=times, explain=True)
        results = zip(detected.scores.tolist(), detected.p_values.tolist(), detected.is_anomaly.tolist(), strict=True)
        written: dict[int, bytes] = {}
        for i, (arrival, result) in enumerate(zip(arrivals, results, strict=True)):
            verdict = Verdict(*result, detected.explanations.get(i))
            if self._merge is not None:
                written[arrival.place] = as_lines(track_event(entry, arrival, verdict, self._merge))
            elif verdict.is_anomaly or not self._only_anomalies:
                written[arrival.place] = as_lines([describe_verdict(arrival, verdict)])
        lines |= written  # all at once: after a failure halfway they are judged again
        self.counts.anomalies += int(detected.is_anomaly.sum())

    def _end_events(self) -> None:
        """Write the events that are open when the source ends."""
        for key in self.store.keys if self._merge is not None else ():
            try:
                self.out.write(as_lines(close_event(key, self.store[key])))
            except (OSError, MemoryError):
                raise
            except Exception as problem:  # the events of other keys are written all the same
                self._set_back(key, f"{type(problem).__name__}: {problem}", of_one=False)


def _why_unusable(row: Row, detector: Detector, *, is_first: bool) -> str | None:
    """Return why a record that was read cannot be learned, or None if it can."""
    missing = [isnan(value) for value in row.values]
    if all(missing):
        return "it has none of the values"
    is_series = isinstance(detector, SeriesMPF)  # which has rules for missing steps
    if any(missing) and is_first and not is_series and not (detector.is_fitted and detector.n_points_):
        return "a value is missing, and there is no earlier record to take it from"
    return None


def _progress(detector: Detector) -> tuple[int, ...]:
    """Return how much a model has learned: rows, and for a series shingles, which may be ahead of its rows."""
    if not detector.is_fitted:
        return ()
    parts = detector.estimators_.values() if isinstance(detector, SeriesMPF) else ()
    return (detector.n_seen_, *(n for part in parts for n in _progress(part)))


def _keys_of(arrivals: list[Arrival], detector: Detector) -> list[str] | None:
    """Return keys for records that have names."""
    names = [arrival.row.id for arrival in arrivals]
    if any(name is None for name in names):
        return None
    n_before = detector.n_seen_ if detector.is_fitted else 0
    return point_keys([str(name) for name in names], detector.holds, n_before=n_before)
