"""What a detector does about a change of its stream."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np

from polyaforest.core.arrays import Array
from polyaforest.core.validation import NamedRows
from polyaforest.decision.thresholds import Detections
from polyaforest.estimators import SeriesMPF, StreamingMPF
from polyaforest.forest.point_store import Key

Detector: TypeAlias = StreamingMPF | SeriesMPF

RELEARNS = "the model has started to relearn"
KEEPS = "the model keeps to what it learned before"


def relearn(detector: Detector, new: Iterable[Key]) -> None:
    """Let a detector hold nothing but its points among the `new` ones, and weigh features by these."""
    known = set(new)
    old = [key for key in detector.keys_ if key not in known]
    if old:
        detector.delete(old)
    if isinstance(detector, StreamingMPF) and detector.n_points_:
        detector.rebuild()  # a series does so by itself when what it was weighed by is deleted


def unlearn(detector: Detector, new: Iterable[Key]) -> None:
    """Delete the new points from a detector."""
    held = set(detector.keys_)
    unwanted = [key for key in new if key in held]
    if unwanted:
        detector.delete(unwanted)


def detect_only(detector: Detector, rows: Array | NamedRows, times: Array | None, *, explain: bool) -> Detections:
    """Return the results for rows that are not learned."""
    if not detector.is_fitted or not detector.n_points_:
        nothing = np.full(len(rows), np.nan)
        return Detections(nothing, nothing, np.zeros(len(rows), np.bool_), nothing)
    detected = detector.detect(rows, times=times) if isinstance(detector, SeriesMPF) else detector.detect(rows)
    flagged = np.flatnonzero(detected.is_anomaly).tolist()
    if not explain or not flagged:
        return detected
    if isinstance(detector, SeriesMPF):
        why = detector.explain(rows, times=times, rows=flagged)
    else:
        why = detector.explain(rows[np.array(flagged)])
    return detected._replace(explanations=dict(zip(flagged, why, strict=True)))
