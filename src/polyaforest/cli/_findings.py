"""What `detect` found so far: counts, the worst findings, and what is to be written of each row."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappush, heappushpop
from itertools import count as numbered
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from polyaforest.cli._judging import Judged, Rule, places_by_key
from polyaforest.cli._report import Finding, Summary, reason, stamp
from polyaforest.core.arrays import Array
from polyaforest.timeseries import Event, EventTracker

if TYPE_CHECKING:
    from polyaforest.explain import Explanation
    from polyaforest.io.tables import Columns

_NEAR = 5  # rows by which flagged ones may be apart to be one event; or a shingle, all of which an odd reading is in
Explain = Callable[[Iterable[int]], "dict[int, Explanation]"]


class Row(NamedTuple):
    """A flagged row, as long as the event that it belongs to may still grow."""

    number: int
    time: float | None
    id: str | None
    missing: tuple[str, ...]
    explanation: Explanation | None


class Findings:
    """The findings of a run, as many as are to be shown; rows of known order that are near each other are one finding.

    Parameters
    ----------
    columns : Columns
        Of the table.
    rule : Rule
        By which rows are flagged.
    top : int
        How many findings are kept, the worst.
    """

    def __init__(self, columns: Columns, rule: Rule, *, top: int = 10) -> None:
        self.columns, self.rule, self.top = columns, rule, top
        self.in_events = rule.is_stream or columns.time is not None
        self.n_rows = self.n_flagged = self.n_findings = 0
        self._keys: set[str] = set()
        self._worst: list[tuple[float, int, Finding]] = []  # a heap, the least odd of them first
        self._order = numbered()  # ties go to what came first, and findings need not be compared
        self._trackers: dict[str, EventTracker] = {}
        self._n_before: dict[str, int] = {}  # rows of a key that have come
        self._open: dict[str, dict[int, Row]] = {}  # rows of the event that is still open, by number

    @property
    def n_keys(self) -> int:
        """Keys that have come, 0 if there are none."""
        return len(self._keys) if self.columns.key else 0

    def add(self, judged: Judged) -> Judged:
        """Take rows in, and hand them on."""
        self.n_rows += len(judged.scores)
        self.n_flagged += int(judged.is_anomaly.sum())
        for key, places in places_by_key(judged.chunk.keys, len(judged.scores)).items():
            self._keys.add(key)
            self._add_key(key, self._in_order(judged, places), judged)
        return judged

    def close(self) -> None:
        """Note the events that were still open at the end."""
        for key, tracker in self._trackers.items():
            self._note(key, tracker.close())

    def findings(self) -> list[Finding]:
        """The worst findings, the worst first."""
        return [finding for *_, finding in sorted(self._worst, key=lambda entry: entry[:2], reverse=True)]

    def explain(self, explain: Explain, numbers: Array) -> None:
        """Have the worst findings explained, for rows that came without; `numbers` are those of all rows."""
        places = np.searchsorted(numbers, [finding.number for *_, finding in self._worst]).tolist()
        reasons = explain(places)
        self._worst = [
            (badness, order, finding._replace(explanation=reasons[place]))
            for (badness, order, finding), place in zip(self._worst, places, strict=True)
        ]

    def summary(self) -> Summary:
        """How much was found."""
        return Summary(
            n_rows=self.n_rows,
            n_flagged=self.n_flagged,
            n_findings=self.n_findings,
            in_events=self.in_events,
            expected=self.rule.expected,
            is_share=self.rule.false_alarm_rate is not None and not self.rule.is_stream,
            key=self.columns.key,
            n_keys=self.n_keys,
        )

    def written(self, judged: Judged) -> dict[str, Any]:
        """What is to be written of rows, by the names of the columns."""
        chunk, columns = judged.chunk, self.columns
        own: dict[str, Any] = {
            "score": judged.scores,
            "p_value": judged.p_values,
            "is_anomaly": judged.is_anomaly,
            **self._reasons(judged),
        }
        theirs: dict[str, Any] = {}
        if columns.time and chunk.times is not None:
            theirs[columns.time] = [stamp(time) for time in chunk.times.tolist()]
        labels = {columns.key: chunk.keys, columns.id: chunk.ids}
        theirs |= {name: texts for name, texts in labels.items() if name and texts is not None}
        theirs |= {name: chunk.rows[:, k] for k, name in enumerate(columns.used)}
        return {"row": chunk.numbers, **{apart(name, own): value for name, value in theirs.items()}, **own}

    def _reasons(self, judged: Judged) -> dict[str, list[Any]]:
        """The features to blame for rows, and the reasons in words; nothing for rows that are not explained."""
        blamed: list[list[str]] = [[] for _ in judged.scores]
        reasons: list[str | None] = [None] * len(judged.scores)
        for i, explanation in judged.explanations.items():
            blamed[i] = [blame.name for blame in explanation.blamed]
            reasons[i] = reason(explanation, self._missing(judged.chunk.rows[i]))
        return {"blamed": blamed, "reason": reasons}

    def _in_order(self, judged: Judged, places: Array) -> Array:
        """The rows of a key by time, where the whole table is known; a stream is in order as it comes."""
        times = judged.chunk.times
        if self.rule.is_stream or times is None:
            return places
        return np.asarray(places[np.argsort(times[places], kind="stable")])

    def _add_key(self, key: str, places: Array, judged: Judged) -> None:
        """Take the rows of a key in, which are in order."""
        n_before = self._n_before.get(key, 0)
        self._n_before[key] = n_before + len(places)
        tracker = self._trackers.setdefault(key, EventTracker(max(_NEAR, self.rule.shingle or 0)))
        for at in np.flatnonzero(judged.is_anomaly[places]).tolist():
            place = int(places[at])
            row, score, p_value = self._row(judged, place), float(judged.scores[place]), float(judged.p_values[place])
            if not self.in_events:
                self._note(key, tracker.close())
            self._note(key, tracker.update(n_before + at, True, score, time=row.number, p_value=p_value))
            self._open.setdefault(key, {})[row.number] = row

    def _row(self, judged: Judged, place: int) -> Row:
        """What is to be remembered of a flagged row."""
        chunk = judged.chunk
        return Row(
            int(chunk.numbers[place]),
            None if chunk.times is None else float(chunk.times[place]),
            None if chunk.ids is None else chunk.ids[place],
            self._missing(chunk.rows[place]),
            judged.explanations.get(place),
        )

    def _missing(self, row: Array) -> tuple[str, ...]:
        """The columns of which a row has no value."""
        return tuple(self.columns.used[k] for k in np.flatnonzero(np.isnan(row)).tolist())

    def _note(self, key: str, event: Event | None) -> None:
        """Keep an event that is over, if it is among the worst."""
        if event is None:
            return
        rows = self._open.pop(key)
        worst, first, last = (rows[number] for number in (event.peak, event.start, event.end))
        finding = Finding(
            number=worst.number,
            score=event.score,
            p_value=event.p_value,
            time=worst.time,
            key=key if self.columns.key else None,
            id=worst.id,
            first=min(rows),
            last=max(rows),
            start=first.time,
            end=last.time,
            n_flagged=event.n_flagged,
            explanation=worst.explanation,
            missing=worst.missing,
        )
        self.n_findings += 1
        entry = (-event.score, -next(self._order), finding)
        if len(self._worst) < self.top:
            heappush(self._worst, entry)
        elif self.top:
            heappushpop(self._worst, entry)


def apart(name: str, own: Iterable[str]) -> str:
    """Return the name of a column of the input, changed if a column of the results has it."""
    return f"{name}_" if name in own or name == "row" else name
