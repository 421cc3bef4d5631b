"""Judge the rows of a stream: score, explain and learn them, each with the model of its key."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan
from typing import Any, Generic, NamedTuple, TypeVar

from polyaforest.detectors import SeriesMPF
from polyaforest.drift import DriftMonitor
from polyaforest.judge.judgement import Judgement, score
from polyaforest.judge.models import Detector, Entry, Models
from polyaforest.judge.series import decide, n_until_decision
from polyaforest.tables.rows import RowLayout, StreamRow

__all__ = ["Judge", "Judged", "Piece", "Result", "progress"]

_MAX_FAILURES = 3  # consecutive rows that a model may fail on before it starts over

Result = TypeVar("Result")


class Piece(NamedTuple):
    """How many of the next rows of a key to score together, and whether to learn them."""

    n: int
    is_learned: bool = True


@dataclass
class Judged(Generic[Result]):
    """The results for a batch of rows, by place in the batch."""

    results: dict[int, Result] = field(default_factory=dict)
    rejected: dict[int, str] = field(default_factory=dict)  # reasons
    n_anomalies: int = 0


class Judge(ABC, Generic[Result]):
    """Score rows, each with the model of its key; subclasses say what to do with the judgements.

    Parameters
    ----------
    store : Models
    finds_series : bool
        Whether a model of independent rows is replaced by one of a time series if the rows turn out to be one.
    drift : mapping or None
        Parameters of the drift monitors beside the models; None for no monitors.
    notify : callable
        Takes messages for the user.
    """

    rows_option = "--rows"  # the setting with which the user asks for independent rows

    def __init__(
        self,
        store: Models,
        *,
        finds_series: bool = False,
        drift: Mapping[str, Any] | None = None,
        notify: Callable[[str], None] = lambda message: None,
    ) -> None:
        self._models, self._notify = store, notify
        self._finds_series, self._has_reported_series, self._drift = finds_series, False, drift
        self._failures: dict[str, int] = {}  # consecutive rows that the model of each key failed on
        self._out_of_memory: str | None = None  # the key that last ran out of memory

    # ---- for subclasses ----------------------------------------------------------------------------------------------

    @abstractmethod
    def describe(self, entry: Entry, judgements: list[Judgement]) -> Sequence[Result]:
        """Return a result for each judgement on rows of a key.

        It may change the notes of the entry, which are saved with the model.
        """

    def plan(self, entry: Entry, rows: Sequence[StreamRow]) -> Piece:
        """Return how many of the next rows of a key to score together."""
        return Piece(len(rows))

    def score(self, entry: Entry, rows: Sequence[StreamRow], layout: RowLayout, *, learn: bool) -> list[Judgement]:
        """Score rows of a key together."""
        monitor = None if self._drift is None else DriftMonitor.beside(entry.detector, **self._drift)
        return score(entry.detector, rows, layout, learn=learn, monitor=monitor)

    def recover(self, key: str, problem: str, *, of_one: bool) -> str:
        """Revert a model that failed halfway to its last saved state; return the reason.

        After several consecutive failures, delete the model: the key starts over.
        """
        failures = self._failures[key] = self._failures.get(key, 0) + of_one
        whose = f"the model of key {key!r}" if key else "the model"
        reason = f"{whose} failed on this record ({problem})"
        if failures < _MAX_FAILURES:
            self._models.revert(key)
            self._notify(f"{reason}; it continues from its last saved state")
        else:
            self._models.delete(key)
            del self._failures[key]
            self._notify(f"{reason}, as on the {_MAX_FAILURES - 1} before; it starts over")
        return reason

    # ---- judging -----------------------------------------------------------------------------------------------------

    def judge(self, rows: Sequence[StreamRow], layout: RowLayout) -> Judged[Result]:
        """Score and learn rows; reject unusable ones with a reason."""
        judged: Judged[Result] = Judged()
        streams: dict[str, list[StreamRow]] = {}
        for row in rows:
            streams.setdefault(row.key or "", []).append(row)
        for key, of_key in streams.items():
            start = 0
            while start < len(of_key):
                piece = self._next_piece(self._models[key], of_key[start:])
                self._judge_piece(key, of_key[start : start + piece.n], layout, piece.is_learned, judged)
                start += piece.n
        return judged

    def _next_piece(self, entry: Entry, rows: Sequence[StreamRow]) -> Piece:
        """Return the next piece: as planned, but no further than the next check for a time series.

        Records of weight 0 are scored without being learned.
        """
        piece = self.plan(entry, rows)
        counts = rows[0].weight > 0
        n = next((i for i, row in enumerate(rows[: piece.n]) if (row.weight > 0) is not counts), piece.n)
        piece = Piece(n, piece.is_learned and counts)
        return piece._replace(n=min(piece.n, n_until_decision(entry.detector))) if self._finds_series else piece

    def _judge_piece(
        self, key: str, rows: Sequence[StreamRow], layout: RowLayout, learn: bool, judged: Judged[Result]
    ) -> None:
        """Score rows of one key: all at once, or one by one if the model rejects any."""
        usable = []
        for row in rows:
            if all(map(isnan, row.values)):
                judged.rejected[row.place] = "all its values are missing"
            else:
                usable.append(row)
        reason = self._why_rejected(key, usable, layout, learn, judged) if usable else None
        if reason is not None and len(usable) == 1:
            about_it = reason.replace("row 0, ", "").replace("the time of row 0", "its time")
            judged.rejected[usable[0].place] = about_it.removesuffix(". Nothing was learned")
        elif reason is not None:
            for row in usable:
                self._judge_piece(key, [row], layout, learn, judged)

    def _why_rejected(
        self, key: str, rows: Sequence[StreamRow], layout: RowLayout, learn: bool, judged: Judged[Result]
    ) -> str | None:
        """Score rows together; return why the model of the key failed, or None.

        An error loses the row or, at worst, what its key has learned since the last save. It must not stop the other
        keys, nor occur again at every restart.
        """
        entry = self._models[key]
        before = progress(entry.detector)
        try:
            judgements = self.score(entry, rows, layout, learn=learn)
            results = self.describe(entry, judgements)
            if self._finds_series and layout.has_times:
                entry.detector = self._decide(entry.detector)
        except OSError:  # not the fault of the row: undelivered rows are read again next time
            raise
        except Exception as problem:
            if isinstance(problem, MemoryError) and self._is_memory_exhausted(key):
                raise
            reason = str(problem) if isinstance(problem, ValueError) else f"{type(problem).__name__}: {problem}"
            if progress(entry.detector) == before:
                return reason
            return self.recover(key, reason, of_one=len(rows) == 1)
        # all at once: after a failure halfway the rows are scored again
        judged.results |= {row.place: result for row, result in zip(rows, results, strict=True)}
        judged.n_anomalies += sum(judgement.is_anomaly for judgement in judgements)
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
                f"leading up to it. Override with {self.rows_option}"
            )
        return decided

    def _is_memory_exhausted(self, key: str) -> bool:
        """Return whether memory is short for all keys, not only for one with a large model."""
        before, self._out_of_memory = self._out_of_memory, key
        return len(self._models) < 2 or before not in (None, key)


def progress(detector: Detector) -> tuple[int, ...]:
    """Return how many rows a detector has learned, and for a series also how many shingles."""
    if not detector.is_fitted:
        return ()
    parts = detector.estimators_.values() if isinstance(detector, SeriesMPF) else ()
    return (detector.n_seen_, *(n for part in parts for n in progress(part)))
