"""Keyed streams: one detector per key, kept as bytes between two batches.

The results equal those of one process that sees all rows of a key in order: they do not depend on how rows are cut into
batches, and a retried task returns the same results.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from enum import StrEnum
from math import isnan, nan
from typing import NamedTuple

from polyaforest.detectors import StreamingMPF, loads
from polyaforest.judge.judge import Judge
from polyaforest.judge.judgement import Judgement, score
from polyaforest.judge.models import Detector, Entry
from polyaforest.tables.categories import code_of
from polyaforest.tables.rows import RowLayout, StreamRow

__all__ = ["KeyedJudge", "KeyedResult", "State", "Status", "default_detector"]


class Status(StrEnum):
    """Outcome for a row, or for a key without rows."""

    JUDGED = "judged"  # scored and learned
    BAD = "bad"  # invalid; not scored, not learned
    LATE = "late"  # follows a row of its key with the same or a higher order; not scored, not learned
    SILENT = "silent"  # no row of the key for the duration `silence`
    FORGOTTEN = "forgotten"  # no row of the key for the duration `forget_after`; its detector was dropped


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
        coded = tuple(k for k, name in enumerate(columns) if name in categories)
        self.layout, self.explain = RowLayout(list(columns), coded, has_times), explain
        self._template = template.to_bytes() if template.is_fitted else template  # the smaller: it is sent to all tasks

    def restored(self, state: State) -> Detector:
        """Return the detector of a key in this state."""
        model = self._template if state.model is None else state.model
        return loads(model) if isinstance(model, bytes) else deepcopy(model)

    def row(
        self, order: int | None, numbers: Iterable[float | None], texts: Iterable[str | None], time: float | None
    ) -> StreamRow | None:
        """Return a row, given its numbers and its categories, each in column order; None if its order is missing."""
        if order is None:
            return None
        values = [nan if number is None else number for number in numbers]
        known: dict[float, str] = {}
        for k, text in zip(self.layout.coded, texts, strict=True):
            values.insert(k, nan if text is None else code_of(text))
            if text is not None:
                known[values[k]] = text
        return StreamRow(values, time if self.layout.has_times else None, texts=known, place=order)

    def judge(self, state: State, rows: Iterable[StreamRow | None]) -> tuple[State, list[KeyedResult]]:
        """Score and learn the rows of a batch in order; return the new state and one result per row.

        The place of a row is its order in the stream; None is a row whose order is missing.
        """
        model = _KeyModel(self, state)
        batch = _Batch(self, model)
        latest, results = state.latest, list[KeyedResult]()
        timely: list[StreamRow] = []
        for row in sorted(rows, key=lambda row: (row is not None, row.place if row is not None else 0)):
            if row is None:
                results.append(KeyedResult(None, Status.BAD, error="order is missing"))
            elif latest is not None and row.place <= latest:
                results.append(KeyedResult(row.place, Status.LATE, error=f"a row of order {latest} came earlier"))
            elif row.time is not None and isnan(row.time):
                results.append(KeyedResult(row.place, Status.BAD, error="time is missing"))
            else:
                timely.append(row)
                latest = row.place
        judged = batch.judge(timely, self.layout)
        bad = {place: KeyedResult(place, Status.BAD, error=reason) for place, reason in judged.rejected.items()}
        results += [result for _, result in sorted((judged.results | bad).items())]
        detector = model[""].detector
        return State(detector.to_bytes() if detector.is_fitted else None, latest), results


class _KeyModel:
    """The detector of a key during a batch; a failure restores it as of the row before."""

    def __init__(self, judge: KeyedJudge, state: State) -> None:
        self._judge, self._state = judge, state
        self._entry = Entry(judge.restored(state))
        self.is_saved = True  # whether the detector still equals the saved state
        self._backup: Detector | None = None

    def __len__(self) -> int:
        return 1

    def __getitem__(self, key: str) -> Entry:
        return self._entry

    def keep(self) -> None:
        """Keep a copy to restore, unless the saved state is one."""
        self._backup = None if self.is_saved else deepcopy(self._entry.detector)

    def revert(self, key: str) -> None:
        """Restore the detector."""
        self.is_saved = self._backup is None
        self._entry.detector = self._judge.restored(self._state) if self._backup is None else self._backup

    def delete(self, key: str) -> None:
        """Restore the detector."""
        self.revert(key)


class _Batch(Judge[KeyedResult]):
    """One batch of a key."""

    def __init__(self, judge: KeyedJudge, model: _KeyModel) -> None:
        super().__init__(model)
        self._model, self._explain = model, judge.explain

    def score(self, entry: Entry, rows: Sequence[StreamRow], layout: RowLayout, *, learn: bool) -> list[Judgement]:
        """Score rows together; explain those of the saved state only if any is flagged, since that is rare."""
        self._model.keep()
        is_first = self._model.is_saved
        judgements = score(entry.detector, rows, layout, learn=learn, explain=self._explain and not is_first)
        if self._explain and is_first and any(judgement.is_anomaly for judgement in judgements):
            self._model.revert("")
            judgements = score(entry.detector, rows, layout, learn=learn)
        self._model.is_saved = False
        return judgements

    def recover(self, key: str, problem: str, *, of_one: bool) -> str:
        """Restore the detector: a failure loses only its row."""
        self._model.revert(key)
        return problem

    def describe(self, entry: Entry, judgements: list[Judgement]) -> list[KeyedResult]:
        """Return the results of scored rows."""
        return [_result(judgement) for judgement in judgements]


def _result(judgement: Judgement) -> KeyedResult:
    """Return the result of a scored row."""
    score, p_value = (None if isnan(number) else number for number in (judgement.score, judgement.p_value))
    reasons = None if judgement.explanation is None else judgement.explanation.to_json()
    return KeyedResult(judgement.row.place, Status.JUDGED, score, p_value, judgement.is_anomaly, reasons)
