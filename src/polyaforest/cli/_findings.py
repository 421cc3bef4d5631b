"""Collect the findings of a run: counts, the worst events, and the output columns of each row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from heapq import heappush, heappushpop
from itertools import count as numbered
from math import isnan
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from polyaforest.cli._reports import AFTER_GAP, LEARNED_ONLY, TOO_EARLY, TOO_SMALL, Finding, RunSummary, reason
from polyaforest.forest.grades import severity
from polyaforest.forest.severity import CERTAINTIES, certainty
from polyaforest.judge.table import Detected, DetectorSettings, places_by_partition
from polyaforest.kernels.arrays import Array
from polyaforest.series import Event, EventTracker
from polyaforest.util.dates import stamp

if TYPE_CHECKING:
    from polyaforest.explain import Explanation
    from polyaforest.io.tables import TableColumns

_NEAR = 5  # largest distance of flagged rows in one event, unless an anomaly affects more of the rows after it
Explain = Callable[[Iterable[int]], "dict[int, Explanation]"]


class FlaggedRow(NamedTuple):
    """A flagged row of an event that is still open."""

    number: int
    time: float | None
    id: str | None
    missing: tuple[str, ...]
    explanation: Explanation | None
    bits: float  # of the tail


class Findings:
    """Collect the findings of a run; flagged rows close in time form one finding.

    Parameters
    ----------
    columns : TableColumns
    settings : DetectorSettings
    top : int
        Number of worst findings to keep.
    min_severity : int
        Least severity of findings to keep.
    """

    def __init__(
        self, columns: TableColumns, settings: DetectorSettings, *, top: int = 10, min_severity: int = 1
    ) -> None:
        self.columns, self.settings, self.top, self.min_severity = columns, settings, top, min_severity
        self.in_events = settings.is_stream or columns.time is not None
        self.n_rows = self.n_flagged = self.n_hidden = 0
        self.too_small: dict[str, int] = {}  # number of rows by partition that is too small to score
        self._unscored: Counter[str] = Counter()  # rows without a verdict, by reason
        self._bits: list[float] = []  # tail bits of each finding kept
        self._partitions: set[str] = set()
        self._worst: list[tuple[tuple[float, float], int, Finding]] = []  # a heap with the least severe first
        self._order = numbered()  # breaks ties: the first wins
        self._trackers: dict[str, EventTracker] = {}
        self._n_before: dict[str, int] = {}  # rows of each partition so far
        self._scored: set[str] = set()  # partitions with a score so far
        self._open: dict[str, dict[int, FlaggedRow]] = {}  # rows of open events, by number

    @property
    def n_partitions(self) -> int:
        """Number of partitions so far, 0 without a partition column."""
        return len(self._partitions) if self.columns.key else 0

    @property
    def n_findings(self) -> int:
        """Number of findings of at least the least severity."""
        return len(self._bits)

    def add(self, found: Detected) -> Detected:
        """Add rows, and return them."""
        self.n_rows += len(found.scores)
        self.n_flagged += int(found.is_anomaly.sum())
        for name, places in places_by_partition(found.chunk.keys, len(found.scores)).items():
            self._partitions.add(name)
            self._add_partition(name, places, found)
        return found

    def close(self) -> None:
        """Close the events that are still open."""
        for name, tracker in self._trackers.items():
            self._keep(name, tracker.close())

    def findings(self) -> list[Finding]:
        """Return the kept findings, the worst first."""
        return [finding for *_, finding in sorted(self._worst, key=lambda entry: entry[:2], reverse=True)]

    def explain(self, explain: Explain, numbers: Array) -> None:
        """Explain the kept findings; `numbers` are the numbers of all rows."""
        places = np.searchsorted(numbers, [finding.number for *_, finding in self._worst]).tolist()
        reasons = explain(places)
        self._worst = [
            (badness, order, finding._replace(explanation=reasons[place]))
            for (badness, order, finding), place in zip(self._worst, places, strict=True)
        ]

    def summary(self) -> RunSummary:
        """Return the counts."""
        n_unscored = sum(self._unscored.values())
        sure = Counter(certainty(bits, self.n_rows - n_unscored) for bits in self._bits if not isnan(bits))
        return RunSummary(
            n_rows=self.n_rows - n_unscored,
            n_flagged=self.n_flagged,
            n_findings=self.n_findings,
            in_events=self.in_events,
            expected=self.settings.expected_rate,
            by=self.columns.key,
            n_partitions=self.n_partitions,
            counts_alarms=bool(self.settings.is_series) and self.settings.false_alarm_rate is None,
            unscored=dict(self._unscored),
            certainties={name: sure[name] for name in CERTAINTIES} if sure else {},
            n_hidden=self.n_hidden,
            min_severity=self.min_severity,
        )

    def to_columns(self, found: Detected) -> dict[str, Any]:
        """Return the output columns of rows, by name."""
        labels = {self.columns.key: found.chunk.keys}
        chunk = found.chunk
        values: dict[str | None, Any] = {
            name: _texts(chunk.rows[:, k], chunk.texts) if name in self.columns.categories else chunk.rows[:, k]
            for k, name in enumerate(self.columns.used)
        }
        return result_columns(found, self.columns, labels, values, self._reasons(found))

    def _reasons(self, found: Detected) -> dict[str, list[Any]]:
        """Return attributed features and reasons as text; empty for rows without an explanation."""
        attributions: list[list[str]] = [[] for _ in found.scores]
        reasons: list[str | None] = [None] * len(found.scores)
        for i, explanation in found.explanations.items():
            attributions[i] = [attribution.name for attribution in explanation.readings]
            reasons[i] = reason(explanation, self._missing(found.chunk.rows[i]))
        return {"attributions": attributions, "reason": reasons}

    def _add_partition(self, name: str, places: Array, found: Detected) -> None:
        """Add the rows of a partition, in order of time or, in a stream, of arrival."""
        if found.chunk.times is not None and not self.settings.is_stream:
            places = places[np.argsort(found.chunk.times[places], kind="stable")]
        n_before = self._n_before.get(name, 0)
        self._n_before[name] = n_before + len(places)
        self._count_unscored(name, found.scores[places], found.thresholds[places])
        tracker = self._trackers.setdefault(name, EventTracker(max(_NEAR, self.settings.reach)))
        for at in np.flatnonzero(found.is_anomaly[places]).tolist():
            place = int(places[at])
            row, score, p_value = self._row(found, place), float(found.scores[place]), float(found.p_values[place])
            if not self.in_events:
                self._keep(name, tracker.close())
            self._keep(name, tracker.update(n_before + at, True, score, time=row.number, p_value=p_value))
            self._open.setdefault(name, {})[row.number] = row

    def _count_unscored(self, name: str, scores: Array, thresholds: Array) -> None:
        """Count rows without a verdict: without a score, or scored before anything could be flagged."""
        is_missing = np.isnan(scores)
        self._unscored[LEARNED_ONLY] += int((~is_missing & (thresholds == -np.inf)).sum())
        if name in self.too_small:
            self._unscored[TOO_SMALL] += len(scores)
        else:
            has_begun = name in self._scored
            n_first = 0 if has_begun else int(np.cumprod(is_missing).sum())
            self._unscored[TOO_EARLY] += n_first
            self._unscored[AFTER_GAP] += int(is_missing.sum()) - n_first
            if n_first < len(scores):
                self._scored.add(name)
        self._unscored = +self._unscored  # without zeros

    def _row(self, found: Detected, place: int) -> FlaggedRow:
        chunk = found.chunk
        return FlaggedRow(
            int(chunk.numbers[place]),
            None if chunk.times is None else float(chunk.times[place]),
            None if chunk.ids is None else chunk.ids[place],
            self._missing(chunk.rows[place]),
            found.explanations.get(place),
            float(found.tail_bits[place]),
        )

    def _missing(self, row: Array) -> tuple[str, ...]:
        """Return the columns that are missing in a row."""
        return tuple(self.columns.used[k] for k in np.flatnonzero(np.isnan(row)).tolist())

    def _keep(self, name: str, event: Event | None) -> None:
        """Keep an event that has ended, if it is among the worst."""
        if event is None:
            return
        rows = self._open.pop(name)
        worst, first, last = (rows[number] for number in (event.peak, event.start, event.end))
        finding = Finding(
            number=worst.number,
            score=event.score,
            p_value=event.p_value,
            time=worst.time,
            partition=name if self.columns.key else None,
            id=worst.id,
            first=min(rows),
            last=max(rows),
            start=first.time,
            end=last.time,
            n_flagged=event.n_flagged,
            explanation=worst.explanation,
            missing=worst.missing,
            bits=worst.bits,
        )
        if (finding.severity or self.min_severity) < self.min_severity:
            self.n_hidden += 1
            return
        self._bits.append(worst.bits)
        rank = (0.0 if isnan(worst.bits) else worst.bits, -event.score)
        entry = (rank, -next(self._order), finding)
        if len(self._worst) < self.top:
            heappush(self._worst, entry)
        elif self.top:
            heappushpop(self._worst, entry)


def _texts(codes: Array, texts: dict[float, str]) -> list[str | None]:
    """Return the texts of categories, None for missing ones."""
    return [texts.get(code) for code in codes.tolist()]


def result_columns(
    found: Detected,
    columns: TableColumns,
    labels: dict[str | None, list[str] | None] | None = None,
    values: Mapping[str | None, Any] | None = None,
    reasons: dict[str, list[Any]] | None = None,
) -> dict[str, Any]:
    """Return output columns: number, time, labels and values of each row, then its score, p-value, flag and severity.

    An input column with the name of a result column is renamed.
    """
    chunk = found.chunk
    own = {
        "score": found.scores,
        "p_value": found.p_values,
        "is_anomaly": found.is_anomaly,
        "severity": [severity(bits) for bits in found.tail_bits.tolist()],
        **(reasons or {}),
    }
    stamps = None if chunk.times is None else [stamp(time) for time in chunk.times.tolist()]
    given: dict[str | None, Any] = {columns.time: stamps, **(labels or {}), columns.id: chunk.ids, **(values or {})}
    theirs = {name: column for name, column in given.items() if name and column is not None}
    renamed = {f"{name}_" if name in own or name == "row" else name: column for name, column in theirs.items()}
    return {"row": chunk.numbers, **renamed, **own}
