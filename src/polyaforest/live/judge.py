"""Parse records, then score, explain and learn them with the model of their key."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from polyaforest.detectors.sifting import progress, sift, why_unusable, words_of
from polyaforest.drift import DriftMonitor
from polyaforest.drift.monitor import detect_only
from polyaforest.explain import Explanation
from polyaforest.forest.point_store import Key, point_keys
from polyaforest.forest.thresholds import Detections
from polyaforest.io.errors import in_words
from polyaforest.io.records import ParsedRow, Record, RecordReader
from polyaforest.live import Detector, Entry, Store
from polyaforest.live.series import decide, n_until_decision
from polyaforest.live.verdicts import Arrival, Bad, Verdict
from polyaforest.tables.validation import NamedRows

__all__ = ["Judge", "Judged", "Piece", "whole_piece"]

_MAX_FAILURES = 3  # consecutive records that a model may fail on before it starts over

Result = TypeVar("Result")


class Piece(NamedTuple):
    """How many of the next records of a key to score together, and whether to learn them."""

    n: int
    is_learned: bool = True


def whole_piece(entry: Entry, arrivals: Sequence[Arrival]) -> Piece:
    """Score and learn all records together."""
    return Piece(len(arrivals))


@dataclass
class Judged(Generic[Result]):
    """The results for a batch of records."""

    n_records: int = 0  # without headers and blank lines
    n_anomalies: int = 0
    results: dict[int, Result] = field(default_factory=dict)  # by place in the batch
    bad: list[Bad] = field(default_factory=list)


class Judge(Generic[Result]):
    """Score records, each with the model of its key.

    Parameters
    ----------
    reader : RecordReader
    store : ModelStore
    describe : callable
        Takes the entry of a key, some of its records and their verdicts; returns a result for each. It may change the
        notes of the entry, which are saved with the model.
    plan : callable
        Takes the entry of a key and its next records; returns how many of them to score together, as a `Piece`.
    finds_series : bool
        Whether a model of independent records is replaced by one of a time series if the records turn out to be one.
    drift : mapping or None
        Parameters of the drift monitors beside the models; None for no monitors.
    rows_option : str
        The setting with which the user asks for independent records.
    check : callable
        Takes a record and its row; returns why the record is invalid, or None.
    notify : callable
        Takes messages for the user.
    """

    def __init__(
        self,
        reader: RecordReader,
        store: Store,
        describe: Callable[[Entry, list[Arrival], list[Verdict]], Sequence[Result]],
        plan: Callable[[Entry, Sequence[Arrival]], Piece] = whole_piece,
        *,
        finds_series: bool = False,
        drift: Mapping[str, Any] | None = None,
        rows_option: str = "--rows",
        check: Callable[[Record, ParsedRow], str | None] = lambda record, row: None,
        notify: Callable[[str], None] = lambda message: None,
    ) -> None:
        self._check, self._rows_option = check, rows_option
        self.reader, self._store, self._describe, self._plan, self._notify = reader, store, describe, plan, notify
        self._finds_series, self._has_reported_series, self._drift = finds_series, False, drift
        self._failures: dict[str, int] = {}  # consecutive records that the model of each key failed on
        self._out_of_memory: str | None = None  # the key that last ran out of memory

    def __call__(self, records: Sequence[Record]) -> Judged[Result]:
        """Score and learn records; return invalid ones with a reason."""
        judged: Judged[Result] = Judged()
        streams: dict[str, list[Arrival]] = {}
        has_columns = bool(self.reader.names)
        for place, record in enumerate(records):
            row = self.reader.parse(record)
            judged.n_records += row is not None
            if isinstance(row, ParsedRow) and (reason := self._check(record, row)) is not None:
                judged.bad.append(Bad(place, record, reason))
            elif isinstance(row, ParsedRow):
                streams.setdefault(row.key or "", []).append(Arrival(place, record, row))
            elif row is not None:
                judged.bad.append(Bad(place, record, row))
        if not has_columns:
            self._report_empty_fields()
        for key, arrivals in streams.items():
            start = 0
            while start < len(arrivals):
                piece = self._next_piece(self._store[key], arrivals[start:])
                self._judge(key, arrivals[start : start + piece.n], piece.is_learned, judged)
                start += piece.n
        judged.bad.sort(key=lambda one: one.place)
        return judged

    def _report_empty_fields(self) -> None:
        """Report fields that are empty in the first record: they may be numbers."""
        empty = [name for name, reason in self.reader.skipped.items() if reason == "empty"]
        if self.reader.names and empty:
            self._notify(
                f"{in_words(empty)} has no value in the first record, so it is ignored: to use it, list all --columns"
            )

    def _next_piece(self, entry: Entry, arrivals: Sequence[Arrival]) -> Piece:
        """Return the next piece: as planned, but no further than the next check for a time series."""
        piece = self._plan(entry, arrivals)
        return piece._replace(n=min(piece.n, n_until_decision(entry.detector))) if self._finds_series else piece

    def recover(self, key: str, problem: str, *, of_one: bool) -> str:
        """Revert a model that failed halfway to its last saved state; return the reason.

        After several consecutive failures, delete the model: the key starts over.
        """
        failures = self._failures[key] = self._failures.get(key, 0) + of_one
        whose = f"the model of key {key!r}" if key else "the model"
        reason = f"{whose} failed on this record ({problem})"
        if failures < _MAX_FAILURES:
            self._store.revert(key)
            self._notify(f"{reason}; it continues from its last saved state")
        else:
            self._store.delete(key)
            del self._failures[key]
            self._notify(f"{reason}, as on the {_MAX_FAILURES - 1} before; it starts over")
        return reason

    def _judge(self, key: str, arrivals: list[Arrival], is_learned: bool, judged: Judged[Result]) -> None:
        """Score records of one key: all at once, or one by one if the model rejects any."""
        for arrival, reason in sift(
            arrivals,
            lambda arrival: why_unusable(arrival.row.values),
            lambda good: self._why_rejected(key, good, is_learned, judged),
        ):
            judged.bad.append(Bad(arrival.place, arrival.record, reason))

    def _why_rejected(self, key: str, arrivals: list[Arrival], is_learned: bool, judged: Judged[Result]) -> str | None:
        """Score records together; return why the model of the key failed, or None.

        An error loses the record or, at worst, what its key has learned since the last save. It must not stop the other
        keys, nor occur again at every restart.
        """
        entry = self._store[key]
        before = progress(entry.detector)
        try:
            monitor = None if self._drift is None else DriftMonitor.beside(entry.detector, **self._drift)
            verdicts = _detect(entry.detector, self.reader, arrivals, is_learned, monitor)
            results = self._describe(entry, arrivals, verdicts)
            if self._finds_series and self.reader.time is not None:
                entry.detector = self._decide(entry.detector)
        except OSError:  # not the fault of the record: undelivered records are read again next time
            raise
        except Exception as problem:
            if isinstance(problem, MemoryError) and self._is_memory_exhausted(key):
                raise
            reason = words_of(problem)
            if progress(entry.detector) == before:
                return reason
            return self.recover(key, reason, of_one=len(arrivals) == 1)
        # all at once: after a failure halfway the records are scored again
        judged.results |= {arrival.place: result for arrival, result in zip(arrivals, results, strict=True)}
        judged.n_anomalies += sum(verdict.is_anomaly for verdict in verdicts)
        self._failures.pop(key, None)
        self._out_of_memory = None
        return None

    def _decide(self, detector: Detector) -> Detector:
        """Return the detector to continue with, and report the first switch to a time series."""
        decided = decide(detector)
        if decided is not detector and not self._has_reported_series:
            self._has_reported_series = True
            self._notify(
                f"from record {decided.n_seen_ + 1:,} on, scored as a time series: each record together with those "
                f"leading up to it. Override with {self._rows_option}"
            )
        return decided

    def _is_memory_exhausted(self, key: str) -> bool:
        """Return whether memory is short for all keys, not only for one with a large model."""
        before, self._out_of_memory = self._out_of_memory, key
        return len(self._store) < 2 or before not in (None, key)


def _detect(
    detector: Detector,
    reader: RecordReader,
    arrivals: list[Arrival],
    is_learned: bool,
    monitor: DriftMonitor | None = None,
) -> list[Verdict]:
    """Return the verdicts on records of one key, and learn them if `is_learned`."""
    values = np.array([arrival.row.values for arrival in arrivals], np.float64)
    rows = NamedRows(values, reader.names, reader.encoding([arrival.row for arrival in arrivals]))
    times = None
    if reader.time is not None:
        times = np.array([arrival.row.time for arrival in arrivals], np.float64)
    if not is_learned:
        detected = detect_only(detector, rows, times, explain=True)
        return _verdicts(detected, detected.explanations, [None] * len(arrivals))
    n_before, keys = detector.n_seen_ if detector.is_fitted else 0, _keys_of(arrivals, detector)
    points: Sequence[Key] = range(n_before, n_before + len(arrivals)) if keys is None else keys
    if monitor is None:
        detected = detector.detect_then_learn(rows, keys=keys, times=times, explain=True)
        return _verdicts(detected, detected.explanations, points)
    n_followed = monitor.n_seen_
    detected, changes = monitor.detect_then_learn(rows, keys=keys, times=times, explain=True)
    verdicts = _verdicts(detected, detected.explanations, points)
    for change in changes:
        at = change.noticed - n_followed
        verdicts[at] = verdicts[at]._replace(changes=(*verdicts[at].changes, change))
    return verdicts


def _verdicts(detected: Detections, why: Mapping[int, Explanation], points: Sequence[Key | None]) -> list[Verdict]:
    """Return the verdict on each row."""
    numbers = (detected.scores, detected.p_values, detected.is_anomaly, detected.thresholds)
    novelty = detected.novelty.tolist() or [nan] * len(points)
    rows = zip(*(column.tolist() for column in numbers), novelty, points, strict=True)
    return [
        Verdict(score, p_value, is_anomaly, why.get(i), threshold, point, novelty=new)
        for i, (score, p_value, is_anomaly, threshold, new, point) in enumerate(rows)
    ]


def _keys_of(arrivals: list[Arrival], detector: Detector) -> list[str] | None:
    """Return keys for records with ids; None if any has no id."""
    names = [arrival.row.id for arrival in arrivals]
    if any(name is None for name in names):
        return None
    n_before = detector.n_seen_ if detector.is_fitted else 0
    return point_keys([str(name) for name in names], detector.holds, n_before=n_before)
