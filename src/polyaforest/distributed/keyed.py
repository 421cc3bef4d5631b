"""Keyed streams: one detector per key, kept as bytes between two batches.

The results equal those of one process that sees all rows of a key in order: they do not depend on how rows are cut into
batches, and a retried task returns the same results.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from enum import StrEnum
from math import isnan, nan
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import numpy as np

from polyaforest.detectors import SeriesMPF, StreamingMPF, loads
from polyaforest.detectors.sifting import progress, sift, why_unusable, words_of
from polyaforest.tables.categories import Categories, code_of
from polyaforest.tables.validation import NamedRows

__all__ = ["KeyedJudge", "KeyedResult", "KeyedRow", "State", "Status", "default_detector"]

Detector: TypeAlias = StreamingMPF | SeriesMPF


class Status(StrEnum):
    """Outcome for a row, or for a key without rows."""

    JUDGED = "judged"  # scored and learned
    BAD = "bad"  # invalid; not scored, not learned
    LATE = "late"  # follows a row of its key with the same or a higher order; not scored, not learned
    SILENT = "silent"  # no row of the key for the duration `silence`
    FORGOTTEN = "forgotten"  # no row of the key for the duration `forget_after`; its detector was dropped


class KeyedRow(NamedTuple):
    """A row of a key."""

    order: int | None
    values: tuple[float, ...]  # NaN if missing; codes of categories
    time: float | None = None  # NaN if missing; None if rows have no times
    texts: Mapping[float, str] = MappingProxyType({})  # categories by their codes


class KeyedResult(NamedTuple):
    """The result of a row, or of a key without rows."""

    order: int | None
    status: Status
    score: float | None = None
    p_value: float | None = None
    is_anomaly: bool | None = None
    reasons: str | None = None  # JSON, for flagged rows
    error: str | None = None


class State(NamedTuple):
    """The state of a key between two batches."""

    model: bytes | None  # None before the first row is learned
    latest: int | None  # the highest order so far


def default_detector() -> StreamingMPF:
    """Return the default detector of a key, the same as that of ``polyaforest watch --rows``."""
    return StreamingMPF(window=1024, random_state=0)


class KeyedJudge:
    """Score the rows of a key with its detector, which then learns them.

    Parameters
    ----------
    columns : sequence of str
        Names of the values.
    template : StreamingMPF or SeriesMPF
        Detector of which each new key gets a copy.
    has_times : bool
        Whether rows have times.
    explain : bool, default=True
        Whether to explain flagged rows.
    categories : sequence of str, default=()
        Columns that are categorical.
    """

    def __init__(
        self,
        columns: Sequence[str],
        template: Detector,
        *,
        has_times: bool = False,
        explain: bool = True,
        categories: Sequence[str] = (),
    ) -> None:
        self.columns, self.has_times, self.explain = list(columns), has_times, explain
        self._coded = tuple(k for k, name in enumerate(self.columns) if name in categories)
        self._template = template.to_bytes() if template.is_fitted else template  # the smaller: it is sent to all tasks

    def restored(self, state: State) -> Detector:
        """Return the detector of a key in this state."""
        model = self._template if state.model is None else state.model
        return loads(model) if isinstance(model, bytes) else deepcopy(model)

    def arrival(
        self, order: int | None, numbers: Iterable[float | None], texts: Iterable[str | None], time: float | None
    ) -> KeyedRow:
        """Return a row, given its numbers and its categories, each in column order."""
        values = [nan if number is None else number for number in numbers]
        known: dict[float, str] = {}
        for k, text in zip(self._coded, texts, strict=True):
            values.insert(k, nan if text is None else code_of(text))
            if text is not None:
                known[values[k]] = text
        return KeyedRow(order, tuple(values), time if self.has_times else None, known)

    def rows(self, arrivals: Sequence[KeyedRow]) -> NamedRows:
        """Return rows in the form that detectors accept."""
        values = np.array([arrival.values for arrival in arrivals], np.float64)
        if not self._coded:
            return NamedRows(values, self.columns)
        texts = {code: text for arrival in arrivals for code, text in arrival.texts.items()}
        return NamedRows(values, self.columns, Categories(self._coded, len(self.columns), texts))

    def judge(self, state: State, arrivals: Iterable[KeyedRow]) -> tuple[State, list[KeyedResult]]:
        """Score and learn the rows of a batch in order; return the new state and one result per row."""
        batch = _Batch(self, state)
        results = list(batch.run(arrivals))
        return batch.state, results


class _Batch:
    """One batch of a key."""

    def __init__(self, judge: KeyedJudge, state: State) -> None:
        self._judge, self._before = judge, state
        self._detector, self._latest = judge.restored(state), state.latest
        self._results: dict[int, KeyedResult] = {}  # by order
        self._is_first = True  # whether the detector still equals the saved state

    def run(self, arrivals: Iterable[KeyedRow]) -> Iterator[KeyedResult]:
        """Score and learn rows; yield results."""
        timely: list[KeyedRow] = []
        for arrival in sorted(arrivals, key=lambda one: (one.order is not None, one.order or 0)):
            if arrival.order is None:
                yield KeyedResult(None, Status.BAD, error="order is missing")
            elif self._latest is not None and arrival.order <= self._latest:
                yield KeyedResult(arrival.order, Status.LATE, error=f"a row of order {self._latest} came earlier")
            elif arrival.time is not None and isnan(arrival.time):
                yield KeyedResult(arrival.order, Status.BAD, error="time is missing")
            else:
                timely.append(arrival)
                self._latest = arrival.order
        for arrival, reason in sift(timely, lambda arrival: why_unusable(arrival.values), self._refusal):
            self._results[arrival.order] = KeyedResult(arrival.order, Status.BAD, error=reason)  # type: ignore[index]
        for arrival in timely:
            yield self._results[arrival.order]  # type: ignore[index]

    @property
    def state(self) -> State:
        """The state after the rows."""
        return State(self._detector.to_bytes() if self._detector.is_fitted else None, self._latest)

    def _refusal(self, arrivals: list[KeyedRow]) -> str | None:
        """Score and learn rows together; if that fails, restore the detector and return the reason."""
        backup = None if self._is_first else deepcopy(self._detector)
        before = progress(self._detector)
        try:
            self._judge_together(arrivals)
        except (OSError, MemoryError):  # not caused by the rows: the engine retries
            raise
        except Exception as problem:
            if progress(self._detector) != before:
                self._detector = self._judge.restored(self._before) if backup is None else backup
            self._is_first = backup is None
            return words_of(problem)
        self._is_first = False
        return None

    def _judge_together(self, arrivals: list[KeyedRow]) -> None:
        rows = self._judge.rows(arrivals)
        times = np.array([arrival.time for arrival in arrivals], np.float64) if self._judge.has_times else None
        is_first, explain = self._is_first, self._judge.explain
        detected = self._detector.detect_then_learn(rows, times=times, explain=explain and not is_first)
        if explain and is_first and detected.is_anomaly.any():  # rare: cheaper to score again than always to explain
            self._detector = self._judge.restored(self._before)
            detected = self._detector.detect_then_learn(rows, times=times, explain=True)
        facts = zip(detected.scores.tolist(), detected.p_values.tolist(), detected.is_anomaly.tolist(), strict=True)
        for i, (arrival, (score, p_value, is_anomaly)) in enumerate(zip(arrivals, facts, strict=True)):
            why = detected.explanations.get(i)
            self._results[arrival.order] = KeyedResult(  # type: ignore[index]
                arrival.order,
                Status.JUDGED,
                None if isnan(score) else score,
                None if isnan(p_value) else p_value,
                is_anomaly,
                None if why is None else why.to_json(),
            )
