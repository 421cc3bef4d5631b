"""Decide at fixed counts whether the records of a key are a time series, from those its model holds."""

from __future__ import annotations

from polyaforest.detectors import SeriesMPF, StreamingMPF
from polyaforest.judge.models import Detector
from polyaforest.series.recent import LEAST_READINGS
from polyaforest.series.rhythm import is_series

__all__ = ["decide", "n_until_decision"]

_FIRST = LEAST_READINGS  # records before the first check; then it is repeated at every power of two


def n_until_decision(detector: Detector) -> int:
    """Return how many records a model learns until the next check."""
    n_seen = detector.n_seen_ if detector.is_fitted else 0
    return max(_FIRST, 1 << n_seen.bit_length()) - n_seen


def decide(detector: Detector) -> Detector:
    """Return the detector to continue with: for a time series if a check is due and finds one."""
    if not isinstance(detector, StreamingMPF) or detector.encoding_ is not None:  # a series has numbers only
        return detector
    is_due = detector.n_seen_ >= _FIRST and detector.n_seen_.bit_count() == 1
    if is_due and detector.n_points_ >= _FIRST and is_series(detector.times_, detector.points_):
        return SeriesMPF.from_stream(detector)
    return detector
