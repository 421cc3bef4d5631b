"""The endless loop: records are read, judged, explained, learned, written and, now and then, saved.

Records are pulled in batches no larger than fits, and the next batch is read when the lines of the last are written: so
nothing piles up, and a slow reader slows the source down. A commit saves the models, the place in the source and the
lengths of the files written, all at one moment. After a crash the files are cut back to that moment and the source goes
on from there: every record is learned once, and its line is in the file once.
"""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite, isnan
from typing import Any, NamedTuple

import numpy as np
import orjson

from polyaforest.core import schema
from polyaforest.core.validation import NamedRows
from polyaforest.explain import Explanation
from polyaforest.io._json import to_json
from polyaforest.io.keys import point_keys
from polyaforest.io.records import Record, RecordReader, Row
from polyaforest.io.sources import Position, Source
from polyaforest.live.judging import FEW, Detector, judge_and_explain
from polyaforest.live.model_store import Entry, Stock, refusing_notes
from polyaforest.live.outputs import Lines
from polyaforest.timeseries import Event, EventTracker, SeriesMPF

__all__ = ["Cadence", "Counts", "Watcher"]

_SUSPICIOUS = 20  # records that are all bad
_PATIENCE = 0.25  # seconds to wait for a record before looking around
_MOST_FAILURES = 3  # records in a row that a model may fail on before it begins anew
_COUNT = schema.whole()
_TEXT_OR_NONE = schema.either(schema.nothing, schema.text)
_MARK = schema.record(
    {
        "path": schema.path,
        "device": _COUNT,
        "inode": schema.either(schema.nothing, _COUNT),
        "born": schema.either(schema.nothing, schema.anything),
        "length": _COUNT,
        "ends": schema.text,
    },
    optional=["device", "born", "ends"],  # which marks of older releases do not have
)
# What is noted at a commit. A store may come from anybody, so it is checked before anything is done by it.
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
    """How often things are done."""

    records: int = 10_000  # after which the models are saved
    seconds: float = 30.0  # as above, if any have come
    batch: int = 4096  # the most records that are read at a time


@dataclass
class Counts:
    """What has happened since the models began."""

    records: int = 0
    bad: int = 0
    anomalies: int = 0


class _Arrival(NamedTuple):
    """A record that can be judged."""

    place: int  # in its batch
    record: Record
    row: Row


class _Bad(NamedTuple):
    """A record that cannot be."""

    place: int
    record: Record
    reason: str


class Watcher:
    """Judges the records of a source by models of a stock.

    Parameters
    ----------
    source : Source
    reader : RecordReader
    stock : Stock
    out, quarantine : Lines
        Where verdicts and bad records go, a line of JSON each.
    where : str
        The name of the source, by which to know it again.
    settings : dict
        What the models were made by, to be noted.
    only_anomalies : bool
        No lines for records that are not flagged.
    merge : int or None
        Write a line for each event instead, flagged records at most so many apart being one.
    cadence : Cadence
    tell : callable
        Takes words for people.
    """

    def __init__(
        self,
        source: Source,
        reader: RecordReader,
        stock: Stock,
        out: Lines,
        quarantine: Lines,
        *,
        where: str = "-",
        settings: dict[str, Any] | None = None,
        only_anomalies: bool = False,
        merge: int | None = None,
        cadence: Cadence | None = None,
        tell: Callable[[str], None] = lambda words: None,
    ) -> None:
        self.source, self.reader, self.stock, self.out, self.quarantine = source, reader, stock, out, quarantine
        self._where, self._settings, self._tell = where, settings or {}, tell
        self._only_anomalies, self._merge = only_anomalies, merge
        self._cadence = cadence or Cadence()
        self.counts = Counts()
        self.begun_after: dict[str, Any] = {}  # the notes of the run before
        self._has_warned = False
        self._failures: dict[str, int] = {}  # by key: records in a row that its model failed on
        self._starved: str | None = None  # the key that memory did not suffice for last
        self._uncommitted = 0  # records since the last commit
        self._committed_at = clock.monotonic()

    # ---- the loop ----------------------------------------------------------------------------------------------------

    def resume(self, *, skip_seen: bool = False) -> bool:
        """Go back to the last commit, if the stock has one: whether the source goes on where it was.

        A source that cannot replay goes on with whatever comes, unless it begins anew: then `skip_seen` passes over the
        records that were counted before.
        """
        notes = self.stock.notes
        if not notes:
            self.commit()  # a first one: what is written from now on can be taken back
            self._tell_of_lines_before()
            return False
        with refusing_notes(self.stock.name):
            _NOTES(notes, "")
            self.counts = Counts(**notes["counts"])
            self.reader = RecordReader.of_state(notes["reader"])
            is_same = notes["where"] == self._where and notes["position"] is not None
            if is_same and (self.source.can_replay or skip_seen):
                self.source.seek(notes["position"])
            if not notes["is_end"]:  # after an end of its own, what has been added is somebody else's
                self.out.rewind(notes["out"])
                self.quarantine.rewind(notes["quarantine"])
        self.begun_after = notes
        self.commit()  # from here on
        return bool(is_same)

    def run(self, is_stopped: Callable[[], bool] = lambda: False, watching: Callable[[], None] = lambda: None) -> None:
        """Until the source ends, or somebody asks to stop; then everything is saved.

        If the lines cannot be written, nothing is saved: what was not delivered comes again next time.
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
            if self._is_due():
                self.commit()
            watching()
        self.commit(is_end=True)

    def commit(self, *, is_end: bool = False, place: Position = None) -> None:
        """Save the models, with the place in the source (where it is now, or the one given) and marks of the files."""
        self.stock.commit(
            {
                "is_end": is_end,  # whether it stops here, and nothing can have been lost
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

    def _tell_of_lines_before(self) -> None:
        """Say that lines are added to a file of which a new model knows nothing: its own may be deleted."""
        mark = self.stock.notes["out"]
        if self.stock.name and mark is not None and mark["length"]:
            self._tell(f"the model is new, and '{mark['path']}' has lines already: those of this run are added to it")

    def close(self) -> None:
        """Let go of the source and of the files."""
        for part in (self.source, self.out, self.quarantine):
            part.close()

    def _is_due(self) -> bool:
        is_time = clock.monotonic() - self._committed_at >= self._cadence.seconds
        return self.stock.is_due or self._uncommitted >= self._cadence.records or bool(self._uncommitted and is_time)

    def _pass_on_notices(self) -> None:
        for part in (self.source, self.out, self.quarantine):
            while part.notices:
                self._tell(part.notices.pop(0))

    # ---- a batch -----------------------------------------------------------------------------------------------------

    def _handle(self, records: list[Record]) -> None:
        """Judge records, learn them, and write the lines, in the order in which they came."""
        streams: dict[str, list[_Arrival]] = {}
        bad: list[_Bad] = []
        for place, record in enumerate(records):
            row = self.reader.parse(record)
            self.counts.records += row is not None  # headers and blank lines are no records
            if isinstance(row, Row):
                streams.setdefault(row.key or "", []).append(_Arrival(place, record, row))
            elif row is not None:
                bad.append(_Bad(place, record, row))
        lines: dict[int, bytes] = {}
        for key, arrivals in streams.items():
            self._judge(key, arrivals, lines, bad)
        self.counts.bad += len(bad)
        self._uncommitted += len(records)
        self._warn_if_all_are_bad(bad)
        self.quarantine.write(_as_lines(_account(fault) for fault in sorted(bad, key=lambda fault: fault.place)))
        self.out.write(b"".join(lines[place] for place in sorted(lines)))

    def _warn_if_all_are_bad(self, bad: list[_Bad]) -> None:
        """Say once that no record can be used: the wrong columns were named, most likely."""
        counts = self.counts
        if bad and not self._has_warned and counts.bad == counts.records >= _SUSPICIOUS:
            self._has_warned = True
            self._tell(f"all of the first {counts.records:,} records are bad; the last one: {bad[-1].reason}")

    def _judge(
        self,
        key: str,
        arrivals: list[_Arrival],
        lines: dict[int, bytes],
        bad: list[_Bad],
    ) -> None:
        """Judge what came for one stream: all at once, or one by one if there is something wrong with any."""
        entry = self.stock[key]
        good: list[_Arrival] = []
        for arrival in arrivals:
            reason = _why_useless(arrival.row, entry, is_first=not good)
            if reason is None:
                good.append(arrival)
            else:
                bad.append(_Bad(arrival.place, arrival.record, reason))
        if len(good) <= FEW or self._refusal(key, good, lines) is not None:
            for arrival in good:
                reason = self._refusal(key, [arrival], lines)
                if reason is not None:
                    bad.append(_Bad(arrival.place, arrival.record, _about_a_record(reason)))

    def _refusal(self, key: str, arrivals: list[_Arrival], lines: dict[int, bytes]) -> str | None:
        """Judge records together; return why the model of the key could not, or None if it has judged all of them.

        Whatever goes wrong costs the record, or at worst what its key has learned since it was last saved. It must not
        stop the other keys, nor come again at every restart.
        """
        entry = self.stock[key]
        before = _progress(entry.detector)
        try:
            self._judge_together(entry, arrivals, lines)
        except OSError:  # no fault of the record: what was not delivered comes again next time
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
        """Return whether memory is short for everybody, and not only for a key whose model asks for too much."""
        before, self._starved = self._starved, key
        return len(self.stock) < 2 or before not in (None, key)

    def _set_back(self, key: str, problem: str, *, of_one: bool) -> str:
        """Put an earlier model in the place of one that failed halfway; return what happened, in words.

        After a few records that fail one after another it is the model that is at fault: the key begins anew.
        """
        failures = self._failures[key] = self._failures.get(key, 0) + of_one
        whose = f"the model of key {key!r}" if key else "the model"
        reason = f"{whose} failed on this record ({problem})"
        if failures < _MOST_FAILURES:
            self.stock.revert(key)
            self._tell(f"{reason}; it goes on from its last saved state")
        else:
            self.stock.forget(key)
            del self._failures[key]
            self._tell(f"{reason}, as on the {_MOST_FAILURES - 1} before; it begins anew")
        return reason

    def _judge_together(self, entry: Entry, arrivals: list[_Arrival], lines: dict[int, bytes]) -> None:
        if not arrivals:
            return
        rows = NamedRows(np.array([arrival.row.values for arrival in arrivals], np.float64), self.reader.names)
        times = None
        if self.reader.time is not None:
            times = np.array([arrival.row.time for arrival in arrivals], np.float64)
        judged, explanations = judge_and_explain(
            entry.detector, rows, times=times, keys=_keys_of(arrivals, entry.detector)
        )
        answers = zip(*(field.tolist() for field in judged[:3]), strict=True)
        written: dict[int, bytes] = {}
        for i, (arrival, (score, p_value, is_anomaly)) in enumerate(zip(arrivals, answers, strict=True)):
            why = explanations.get(i)
            line = _verdict(arrival, score, p_value, is_anomaly, why)
            if self._merge is not None:
                written[arrival.place] = _as_lines(self._events_until(entry, arrival, line, why))
            elif is_anomaly or not self._only_anomalies:
                written[arrival.place] = _as_lines([line])
        lines |= written  # all at once: what fails halfway is judged again
        self.counts.anomalies += int(judged.is_anomaly.sum())

    # ---- events ------------------------------------------------------------------------------------------------------

    def _events_until(
        self, entry: Entry, arrival: _Arrival, line: dict[str, Any], why: Explanation | None
    ) -> list[dict[str, Any]]:
        """The event that ends with a record, if one does. What is open is noted with the model."""
        assert self._merge is not None
        known = entry.notes.get("events")
        tracker = EventTracker(self._merge) if known is None else EventTracker.of_state(known)
        number = entry.notes["rows"] = entry.notes.get("rows", -1) + 1
        is_anomaly, score = line["is_anomaly"], line["score"]
        ended = None
        if is_anomaly or (known is not None and known["event"] is not None):
            time = _written_time(arrival.row.time)
            blame = None if why is None else _blame(entry.detector, why)
            ended = tracker.update(
                number, is_anomaly, -np.inf if score is None else score, time=time, p_value=line["p_value"], blame=blame
            )
            entry.notes["events"] = tracker.state()
        return [] if ended is None else [_event_line(arrival.row.key, ended)]

    def _end_events(self) -> None:
        """Write the events that are open when the source ends."""
        if self._merge is None:
            return
        for key in self.stock.keys:
            try:
                self._end_event(key)
            except (OSError, MemoryError):
                raise
            except Exception as problem:  # which the events of other keys must not wait for
                self._set_back(key, f"{type(problem).__name__}: {problem}", of_one=False)

    def _end_event(self, key: str) -> None:
        entry = self.stock[key]
        known = entry.notes.get("events")
        event = None if known is None else EventTracker.of_state(known).close()
        if event is not None:
            line = _as_lines([_event_line(key or None, event)])
            entry.notes["events"] = None
            self.out.write(line)


# ---- what can be learned ---------------------------------------------------------------------------------------------


def _why_useless(row: Row, entry: Entry, *, is_first: bool) -> str | None:
    """Why a record cannot be learned although it can be read, if so."""
    missing = [isnan(value) for value in row.values]
    if all(missing):
        return "it has none of the values"
    if any(missing) and isinstance(entry.detector, SeriesMPF):
        return None  # a step that is missing, for which there is a rule
    if any(missing) and is_first and not getattr(entry.detector, "n_points_", 0):
        return "a value is missing, and no record has come yet to take it from"
    return None


def _n_seen(detector: Detector) -> int:
    """Return how many rows a model has learned."""
    return detector.n_seen_ if hasattr(detector, "forest_") else 0


def _progress(detector: Detector) -> tuple[int, ...]:
    """Return how much a model has learned: rows, and of a series shingles too, which may be ahead of its rows."""
    if not hasattr(detector, "forest_"):
        return ()
    return (detector.n_seen_, *(_progress(detector.forest_) if isinstance(detector, SeriesMPF) else ()))


def _keys_of(arrivals: list[_Arrival], detector: Detector) -> list[str] | None:
    """Keys for records that have names of their own."""
    names = [arrival.row.id for arrival in arrivals]
    if any(name is None for name in names):
        return None
    return point_keys([str(name) for name in names], detector.holds, n_before=_n_seen(detector))


# ---- what is written -------------------------------------------------------------------------------------------------


def _verdict(
    arrival: _Arrival, score: float, p_value: float, is_anomaly: bool, why: Explanation | None
) -> dict[str, Any]:
    """What is said of a record."""
    row = arrival.row
    names = {"time": _written_time(row.time), "key": row.key, "id": row.id}
    line: dict[str, Any] = {"position": arrival.record.position}
    line |= {name: value for name, value in names.items() if value is not None}
    line |= {"score": _number(score), "p_value": _number(p_value), "is_anomaly": is_anomaly}
    if why is not None:
        line["bits"] = _number(why.surprise - why.typical)
        line["reasons"] = [
            {
                "feature": blame.name,
                "value": _number(blame.value),
                "bits": _number(blame.bits),
                "side": blame.side,
                "usual": blame.usual,
                "expected": blame.expected,
            }
            for blame in why.blamed
        ]
        line["region"] = why.region
    return line


def _event_line(key: str | None, event: Event) -> dict[str, Any]:
    facts = event._asdict()
    facts["score"] = _number(event.score)
    return {"event": facts} if key is None else {"key": key, "event": facts}


def _blame(detector: Detector, why: Explanation) -> dict[str, float]:
    """Bits by channel or feature."""
    if isinstance(detector, SeriesMPF):
        return detector.blame_by_channel(why)
    return dict(zip(why.names, why.parts.tolist(), strict=True))


def _account(bad: _Bad) -> dict[str, Any]:
    """What is said of a bad record."""
    return {"position": bad.record.position, "reason": bad.reason, "record": bad.record.text}


def _about_a_record(problem: str) -> str:
    """What a model says of the one row that it was given, in words for a record."""
    return problem.replace("row 0, ", "").replace("the time of row 0", "its time").removesuffix(". Nothing was learned")


def _written_time(time: float | None) -> str | None:
    """A time as people write it; a number that no calendar has, as a number."""
    if time is None:
        return None
    try:
        return datetime.fromtimestamp(time, UTC).isoformat().replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return str(time)


def _number(value: float) -> float | None:
    return float(value) if isfinite(value) else None


def _as_lines(facts: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(to_json(fact, orjson.OPT_APPEND_NEWLINE) for fact in facts)
