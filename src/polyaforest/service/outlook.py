"""What is expected of the next records: for series a forecast, for rows the range of nine points in ten.

It is saved with the model. The forecast of a series is renewed at fixed numbers of readings, so that it does not depend
on how they were batched, nor on when the process was started again: gates compare values with it. The range of rows is
only shown, and renewed between two batches.
"""

from __future__ import annotations

from math import isnan
from typing import Any

import numpy as np

from polyaforest.core import schema
from polyaforest.core.arrays import Array
from polyaforest.estimators import SeriesMPF
from polyaforest.live import Detector, Entry
from polyaforest.service.blocks import Band

__all__ = ["bands", "n_until_renewed", "renew"]

_STEPS = 32  # readings of a series that are foreseen at a time
_ROWS = 256  # rows after which a range is measured anew
_FEWEST = 32  # points that a range is measured on
_ENDS = (0.05, 0.5, 0.95)
_NAME = "outlook"
_RULE = schema.record(
    {"since": schema.whole(), "low": schema.anything, "middle": schema.anything, "high": schema.anything}
)


def n_until_renewed(detector: Detector) -> int | None:
    """Return how many records come before the outlook must be renewed; None if it need not be."""
    if not isinstance(detector, SeriesMPF):
        return None
    return _STEPS - (detector.n_seen_ if detector.is_fitted else 0) % _STEPS


def renew(entry: Entry) -> None:
    """Renew the outlook of a key, if it is time."""
    detector = entry.detector
    if not detector.is_fitted:
        return
    n, saved = detector.n_seen_, entry.notes.get(_NAME)
    since = saved.get("since") if isinstance(saved, dict) else None
    if isinstance(detector, SeriesMPF):
        is_due = n % _STEPS == 0 and since != n
    else:
        is_due = not isinstance(since, int) or n - since >= min(_ROWS, since) or n < since
    if is_due:
        entry.notes[_NAME] = _foreseen(detector, n)


def bands(entry: Entry, n_fields: int, n_before: int, n: int) -> list[Band | None]:
    """Return what was expected of the `n` records that were learned after `n_before` others."""
    outlook: Any = entry.notes.get(_NAME)
    try:
        _RULE(outlook, _NAME)
        parts = [np.array(outlook[name], np.float64).reshape(-1, n_fields) for name in ("low", "middle", "high")]
    except (ValueError, TypeError):  # there is none, or the file was tampered with
        return [None] * n
    steps = [Band(*(part[step].tolist() for part in parts)) for step in range(len(parts[0]))]
    if not isinstance(entry.detector, SeriesMPF):
        return [steps[0]] * n
    first = n_before - outlook["since"]
    return [steps[step] if 0 <= step < len(steps) else None for step in range(first, first + n)]


def _foreseen(detector: Detector, n: int) -> dict[str, Any] | None:
    """Return the outlook as JSON can hold it; None if too little is known."""
    if isinstance(detector, SeriesMPF):
        try:
            ahead = detector.forecast(_STEPS)
        except ValueError:  # too few readings, or a series of shingles
            return None
        low, middle, high = ahead.low, ahead.mean, ahead.high
    else:
        if not detector.keeps_points_ or detector.n_points_ < _FEWEST:
            return None
        low, middle, high = np.quantile(detector.points_, _ENDS, axis=0)[:, None, :]
    return {"since": n, "low": _as_json(low), "middle": _as_json(middle), "high": _as_json(high)}


def _as_json(part: Array) -> list[list[float | None]]:
    """Return numbers as lists, None where nothing is known: of a field that has had no value so far."""
    return [[None if isnan(number) else number for number in step] for step in part.tolist()]
