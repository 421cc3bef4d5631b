"""Streams by key: one detector per key, whose state between two batches is bytes.

What an engine does with a batch of rows of a key comes to the same as one process that sees all rows of the key in
order: the results do not depend on how rows were cut into batches, and a task that is repeated repeats them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from enum import StrEnum
from math import isnan, nan
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import numpy as np

from polyaforest.core.categories import Categories, code_of
from polyaforest.core.validation import NamedRows
from polyaforest.estimators import SeriesMPF, StreamingMPF, loads
from polyaforest.estimators.sifting import progress, sift, why_unusable, words_of

__all__ = ["Arrival", "KeyedJudge", "Result", "State", "Status", "default_detector"]

Detector: TypeAlias = StreamingMPF | SeriesMPF


class Status(StrEnum):
    """What became of a row, or of a key."""

    JUDGED = "judged"
    BAD = "bad"  # it cannot be judged, and was not learned
    LATE = "late"  # it comes after rows of its key with the same or a higher order, and was not learned
    SILENT = "silent"  # no row of the key has come for so long
    FORGOTTEN = "forgotten"  # nor for so long that its detector was dropped


class Arrival(NamedTuple):
    """A row of a key."""

    order: int | None
    values: tuple[float, ...]  # NaN where one is missing; of categories, their codes
    time: float | None = None  # NaN where it is missing; None if rows have no times
    texts: Mapping[float, str] = MappingProxyType({})  # of its categories, by code


class Result(NamedTuple):
    """What is said of a row, or of a key that has none."""

    order: int | None
    status: Status
    score: float | None = None
    p_value: float | None = None
    is_anomaly: bool | None = None
    reasons: str | None = None  # JSON, of a flagged row
    error: str | None = None


class State(NamedTuple):
    """What is known of a key between two batches."""

    model: bytes | None  # None before any row was learned
    latest: int | None  # the highest order judged so far


def default_detector() -> StreamingMPF:
    """Return the detector that every key has unless told otherwise, as of ``polyaforest watch --rows``."""
    return StreamingMPF(window=1024, random_state=0)


class KeyedJudge:
    """Judges rows of a key by its detector, and teaches them to it.

    Parameters
    ----------
    columns : sequence of str
        The names of the values.
    template : StreamingMPF or SeriesMPF
        What every key starts with a copy of.
    has_times : bool
        Whether rows have times.
    explain : bool, default=True
        Whether to explain flagged rows.
    categories : sequence of str, default=()
        Those of the columns that are categories.
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
        self._template = template.to_bytes() if template.is_fitted else template  # the smaller, as it goes to all tasks

    def restored(self, state: State) -> Detector:
        """Return the detector of a key in this state."""
        model = self._template if state.model is None else state.model
        return loads(model) if isinstance(model, bytes) else deepcopy(model)

    def arrival(
        self, order: int | None, numbers: Iterable[float | None], texts: Iterable[str | None], time: float | None
    ) -> Arrival:
        """Return a row, given its numbers and its categories, each in the order of their columns."""
        values = [nan if number is None else number for number in numbers]
        known: dict[float, str] = {}
        for k, text in zip(self._coded, texts, strict=True):
            values.insert(k, nan if text is None else code_of(text))
            if text is not None:
                known[values[k]] = text
        return Arrival(order, tuple(values), time if self.has_times else None, known)

    def rows(self, arrivals: Sequence[Arrival]) -> NamedRows:
        """Return rows as detectors take them."""
        values = np.array([arrival.values for arrival in arrivals], np.float64)
        if not self._coded:
            return NamedRows(values, self.columns)
        texts = {code: text for arrival in arrivals for code, text in arrival.texts.items()}
        return NamedRows(values, self.columns, Categories(self._coded, len(self.columns), texts))

    def judge(self, state: State, arrivals: Iterable[Arrival]) -> tuple[State, list[Result]]:
        """Judge the rows of a batch by order; return the state after them, and a result for each."""
        batch = _Batch(self, state)
        results = list(batch.run(arrivals))
        return batch.state, results


class _Batch:
    """One batch of a key."""

    def __init__(self, judge: KeyedJudge, state: State) -> None:
        self._judge, self._before = judge, state
        self._detector, self._latest = judge.restored(state), state.latest
        self._results: dict[int, Result] = {}  # by order
        self._is_first = True  # whether the detector is as the state says

    def run(self, arrivals: Iterable[Arrival]) -> Iterator[Result]:
        """Judge rows; yield results."""
        timely: list[Arrival] = []
        for arrival in sorted(arrivals, key=lambda one: (one.order is not None, one.order or 0)):
            if arrival.order is None:
                yield Result(None, Status.BAD, error="its order is missing")
            elif self._latest is not None and arrival.order <= self._latest:
                yield Result(arrival.order, Status.LATE, error=f"it is not after {self._latest}, which came before")
            elif arrival.time is not None and isnan(arrival.time):
                yield Result(arrival.order, Status.BAD, error="its time is missing")
            else:
                timely.append(arrival)
                self._latest = arrival.order
        for arrival, reason in sift(timely, lambda arrival: why_unusable(arrival.values), self._refusal):
            self._results[arrival.order] = Result(arrival.order, Status.BAD, error=reason)  # type: ignore[index]
        for arrival in timely:
            yield self._results[arrival.order]  # type: ignore[index]

    @property
    def state(self) -> State:
        """The state after the rows."""
        return State(self._detector.to_bytes() if self._detector.is_fitted else None, self._latest)

    def _refusal(self, arrivals: list[Arrival]) -> str | None:
        """Judge and learn rows together; return why that failed, in which case the detector is as it was before."""
        backup = None if self._is_first else deepcopy(self._detector)
        before = progress(self._detector)
        try:
            self._judge_together(arrivals)
        except (OSError, MemoryError):  # not the rows' fault: the engine tries again
            raise
        except Exception as problem:
            if progress(self._detector) != before:
                self._detector = self._judge.restored(self._before) if backup is None else backup
            self._is_first = backup is None
            return words_of(problem)
        self._is_first = False
        return None

    def _judge_together(self, arrivals: list[Arrival]) -> None:
        rows = self._judge.rows(arrivals)
        times = np.array([arrival.time for arrival in arrivals], np.float64) if self._judge.has_times else None
        is_first, explain = self._is_first, self._judge.explain
        detected = self._detector.detect_then_learn(rows, times=times, explain=explain and not is_first)
        if explain and is_first and detected.is_anomaly.any():  # rarely so, and the state before is at hand
            self._detector = self._judge.restored(self._before)
            detected = self._detector.detect_then_learn(rows, times=times, explain=True)
        facts = zip(detected.scores.tolist(), detected.p_values.tolist(), detected.is_anomaly.tolist(), strict=True)
        for i, (arrival, (score, p_value, is_anomaly)) in enumerate(zip(arrivals, facts, strict=True)):
            why = detected.explanations.get(i)
            self._results[arrival.order] = Result(  # type: ignore[index]
                arrival.order,
                Status.JUDGED,
                None if isnan(score) else score,
                None if isnan(p_value) else p_value,
                is_anomaly,
                None if why is None else why.to_json(),
            )
