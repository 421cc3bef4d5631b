"""Separate the rows of a stream that a detector rejects, with the reason for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import isnan
from numbers import Integral
from typing import TypeVar

from polyaforest.detectors.series import SeriesMPF
from polyaforest.detectors.streaming import StreamingMPF
from polyaforest.forest.retention import as_policy

__all__ = ["check_follows_streams", "progress", "sift", "why_unusable", "words_of"]

Arrival = TypeVar("Arrival")


def sift(
    arrivals: Sequence[Arrival],
    why_unusable: Callable[[Arrival], str | None],
    judge: Callable[[list[Arrival]], str | None],
) -> Iterator[tuple[Arrival, str]]:
    """Score arrivals together, or one by one if the detector rejects any; yield rejected arrivals with reasons.

    Parameters
    ----------
    arrivals : sequence
    why_unusable : callable
        Takes an arrival; returns the reason why it cannot be scored, or None.
    judge : callable
        Scores and learns arrivals; returns None, or the reason why the detector rejected all of them.
    """
    good: list[Arrival] = []
    for arrival in arrivals:
        reason = why_unusable(arrival)
        if reason is None:
            good.append(arrival)
        else:
            yield arrival, reason
    reason = judge(good) if good else None
    if reason is not None and len(good) == 1:
        about_it = reason.replace("row 0, ", "").replace("the time of row 0", "its time")
        yield good[0], about_it.removesuffix(". Nothing was learned")
    elif reason is not None:
        for arrival in good:
            yield from sift([arrival], why_unusable, judge)


def why_unusable(values: Sequence[float]) -> str | None:
    """Return the reason why a row cannot be learned, or None; missing values are NaN."""
    return "all its values are missing" if all(map(isnan, values)) else None


def progress(detector: StreamingMPF | SeriesMPF) -> tuple[int, ...]:
    """Return how many rows a detector has learned, and for a series also how many shingles."""
    if not detector.is_fitted:
        return ()
    parts = detector.estimators_.values() if isinstance(detector, SeriesMPF) else ()
    return (detector.n_seen_, *(n for part in parts for n in progress(part)))


def words_of(problem: Exception) -> str:
    """Return the message of an error, with its type unless it is a ValueError."""
    return str(problem) if isinstance(problem, ValueError) else f"{type(problem).__name__}: {problem}"


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
