"""One row in, one judgement out: score rows of a stream with the model of their key, and learn them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import nan
from typing import NamedTuple

from polyaforest.detectors import Detections
from polyaforest.drift import Change, DriftMonitor
from polyaforest.drift.monitor import detect_only
from polyaforest.explain import Explanation
from polyaforest.forest.point_store import Key, point_keys
from polyaforest.judge.models import Detector
from polyaforest.tables.rows import RowLayout, StreamRow

__all__ = ["Judgement", "score"]


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
    tail_bits: float = nan  # of a flagged row: how rare it is, as in `Detections`


def score(
    detector: Detector,
    rows: Sequence[StreamRow],
    layout: RowLayout,
    *,
    learn: bool = True,
    explain: bool = True,
    monitor: DriftMonitor | None = None,
) -> list[Judgement]:
    """Score rows of one key together and, if `learn`, learn them, with the drift monitor of the model if it has one.

    The point of a row is that of its first copy. Rows to learn have positive weights.
    """
    named, times = layout.named(rows), layout.times(rows)
    if not learn:
        detected = detect_only(detector, named, times, explain=explain)
        return _judgements(rows, detected, [None] * len(rows))
    n_before, keys = detector.n_seen_ if detector.is_fitted else 0, _keys_of(rows, detector)
    firsts = accumulate((row.weight for row in rows[:-1]), initial=n_before)  # of the copies of each row
    points: Sequence[Key] = list(firsts) if keys is None else keys
    if monitor is None:
        weights = layout.weights(rows)
        weighted = {} if weights is None else {"sample_weight": weights}  # a series has none
        detected = detector.detect_then_learn(named, keys=keys, times=times, explain=explain, **weighted)
        return _judgements(rows, detected, points)
    n_followed, is_learned = monitor.n_seen_, monitor.on_drift != "keep" or monitor.change_ is None
    detected, changes = monitor.detect_then_learn(named, keys=keys, times=times, explain=explain)
    noticed: dict[int, list[Change]] = {}
    for change in changes:
        noticed.setdefault(change.noticed - n_followed, []).append(change)
    learned: list[Key | None] = []
    unused = iter(points)  # numbers of points have no gaps
    for i in range(len(rows)):
        learned.append((next(unused) if keys is None else keys[i]) if is_learned else None)
        if i in noticed:
            is_learned = monitor.on_drift != "keep" or noticed[i][-1].state != "begun"
    judgements = _judgements(rows, detected, learned)
    for at, found in noticed.items():
        judgements[at] = judgements[at]._replace(changes=tuple(found))
    return judgements


def _judgements(rows: Sequence[StreamRow], detected: Detections, points: Sequence[Key | None]) -> list[Judgement]:
    """Return the judgement on each row."""
    numbers = (detected.scores, detected.p_values, detected.is_anomaly, detected.thresholds)
    others = (part.tolist() or [nan] * len(points) for part in (detected.novelty, detected.tail_bits))
    facts = zip(rows, *(column.tolist() for column in numbers), points, *others, strict=True)
    return [
        Judgement(row, score, p_value, is_anomaly, detected.explanations.get(i), threshold, point, (), novelty, bits)
        for i, (row, score, p_value, is_anomaly, threshold, point, novelty, bits) in enumerate(facts)
    ]


def _keys_of(rows: Sequence[StreamRow], detector: Detector) -> list[str] | None:
    """Return keys for rows with ids; None if any has no id."""
    names = [row.id for row in rows]
    if any(name is None for name in names):
        return None
    n_before = detector.n_seen_ if detector.is_fitted else 0
    heavy = {row.id for row in rows if row.weight > 1}  # older copies may outlive the first, which has the name
    return point_keys(
        [str(name) for name in names], lambda name: name in heavy or detector.holds(name), n_before=n_before
    )
