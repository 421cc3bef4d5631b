"""Check that a detector can follow keyed streams."""

from __future__ import annotations

from numbers import Integral

from polyaforest.detectors.series import SeriesMPF
from polyaforest.detectors.streaming import StreamingMPF
from polyaforest.forest.retention import as_policy

__all__ = ["check_follows_streams"]


def check_follows_streams(detector: StreamingMPF | SeriesMPF, *, has_times: bool) -> None:
    """Raise if a detector cannot follow keyed streams with repeatable results."""
    if not isinstance(detector, StreamingMPF | SeriesMPF):
        raise TypeError(f"the detector must be a StreamingMPF or SeriesMPF; got {type(detector).__name__}")
    detector._validate_params()
    forest = detector if isinstance(detector, StreamingMPF) else detector.estimator
    if isinstance(detector, StreamingMPF) and detector.is_fitted and detector.is_frozen_:
        raise ValueError(
            "this model was fitted on a table by an earlier version and cannot follow a stream: fit it again"
        )
    if not detector.is_fitted and not isinstance(getattr(forest, "random_state", None), Integral):
        remedy = "StreamingMPF(random_state=0)"
        remedy = remedy if isinstance(detector, StreamingMPF) else f"SeriesMPF({remedy})"
        raise ValueError(f"repeated tasks must return the same results: set random_state, as in {remedy}")
    policy = getattr(forest, "window", None)
    needs_times = not isinstance(policy, str | Integral | None) and as_policy(policy).needs_times
    if needs_times and not has_times:
        raise ValueError("the window of this detector is a duration: name the timestamp column")
