"""One row in, one judgement out: score rows of a stream with the model of their key, and learn them."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from typing import NamedTuple

import numpy as np

from polyaforest.detectors import Detections
from polyaforest.drift import Change, DriftMonitor
from polyaforest.drift.monitor import detect_only
from polyaforest.explain import Explanation
from polyaforest.forest.point_store import Key, point_keys
from polyaforest.judge.models import Detector
from polyaforest.kernels.arrays import Array
from polyaforest.tables.categories import Categories, Texts
from polyaforest.tables.validation import NamedRows

__all__ = ["Judgement", "RowLayout", "StreamRow", "score"]


class StreamRow(NamedTuple):
    """A record as numbers, NaN for missing fields; categories are codes."""

    values: Sequence[float]
    time: float | None = None  # in seconds since 1970; None if records have no times
    key: str | None = None  # of its stream
    id: str | None = None
    texts: Texts = {}  # noqa: RUF012 -- categories by their codes; never written to
    place: int = 0  # in its batch or, on a cluster, in its stream
    position: str = ""  # in the source


class RowLayout(NamedTuple):
    """The columns of rows."""

    names: Sequence[str]
    coded: tuple[int, ...] = ()  # columns of categories
    has_times: bool = False

    def named(self, rows: Sequence[StreamRow]) -> NamedRows:
        """Return rows in the form that detectors accept."""
        values = np.array([row.values for row in rows], np.float64)
        if not self.coded:
            return NamedRows(values, list(self.names))
        texts = {code: text for row in rows for code, text in row.texts.items()}
        return NamedRows(values, list(self.names), Categories(self.coded, len(self.names), texts))

    def times(self, rows: Sequence[StreamRow]) -> Array | None:
        """Return the times of rows, None if they have no times."""
        return np.array([row.time for row in rows], np.float64) if self.has_times else None


class Judgement(NamedTuple):
    """The results for one row."""

    row: StreamRow
    score: float
    p_value: float
    is_anomaly: bool
    explanation: Explanation | None  # of a flagged row
    threshold: float = nan  # of the score
    point: Key | None = None  # its key in the model; None if it was not learned
    changes: tuple[Change, ...] = ()  # of the distribution, noticed with this row
    novelty: float = nan  # of a reading of a series


def score(
    detector: Detector,
    rows: Sequence[StreamRow],
    layout: RowLayout,
    *,
    learn: bool = True,
    explain: bool = True,
    monitor: DriftMonitor | None = None,
) -> list[Judgement]:
    """Score rows of one key together and, if `learn`, learn them, with the drift monitor of the model if it has one."""
    named, times = layout.named(rows), layout.times(rows)
    if not learn:
        detected = detect_only(detector, named, times, explain=explain)
        return _judgements(rows, detected, [None] * len(rows))
    n_before, keys = detector.n_seen_ if detector.is_fitted else 0, _keys_of(rows, detector)
    points: Sequence[Key] = range(n_before, n_before + len(rows)) if keys is None else keys
    if monitor is None:
        detected = detector.detect_then_learn(named, keys=keys, times=times, explain=explain)
        return _judgements(rows, detected, points)
    n_followed = monitor.n_seen_
    detected, changes = monitor.detect_then_learn(named, keys=keys, times=times, explain=explain)
    judgements = _judgements(rows, detected, points)
    for change in changes:
        at = change.noticed - n_followed
        judgements[at] = judgements[at]._replace(changes=(*judgements[at].changes, change))
    return judgements


def _judgements(rows: Sequence[StreamRow], detected: Detections, points: Sequence[Key | None]) -> list[Judgement]:
    """Return the judgement on each row."""
    numbers = (detected.scores, detected.p_values, detected.is_anomaly, detected.thresholds)
    novelty = detected.novelty.tolist() or [nan] * len(points)
    facts = zip(rows, *(column.tolist() for column in numbers), novelty, points, strict=True)
    return [
        Judgement(row, score, p_value, is_anomaly, detected.explanations.get(i), threshold, point, novelty=new)
        for i, (row, score, p_value, is_anomaly, threshold, new, point) in enumerate(facts)
    ]


def _keys_of(rows: Sequence[StreamRow], detector: Detector) -> list[str] | None:
    """Return keys for rows with ids; None if any has no id."""
    names = [row.id for row in rows]
    if any(name is None for name in names):
        return None
    n_before = detector.n_seen_ if detector.is_fitted else 0
    return point_keys([str(name) for name in names], detector.holds, n_before=n_before)
