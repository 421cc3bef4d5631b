"""Sign of scores, common to all adapters."""

from __future__ import annotations

from polyaforest.kernels.arrays import Array


def anomaly_scores(scores: Array) -> Array:
    """Return scores as in river and PyOD, higher for anomalies."""
    return 0.0 - scores  # not -scores, which turns 0.0 into -0.0
