"""Expected ranges of the next records: a forecast for series, the central 90 % of the points for rows.

They are saved with the model. Gates compare values with the forecast of a series, so it is renewed after fixed numbers
of readings and does not depend on batches or restarts. The range of rows is only shown, and renewed between batches.
"""

from __future__ import annotations

from math import isnan
from typing import Any

import numpy as np

from polyaforest.detectors import SeriesMPF
from polyaforest.judge.models import Detector, Entry
from polyaforest.kernels.arrays import Array
from polyaforest.service.blocks import Band
from polyaforest.util import schema

__all__ = ["bands", "n_until_renewed", "renew"]

_STEPS = 32  # readings per forecast
_ROWS = 256  # rows after which the range is renewed
_FEWEST = 32  # points needed for a range
_ENDS = (0.05, 0.5, 0.95)
_NAME = "outlook"
_RULE = schema.record(
    {"since": schema.whole(), "low": schema.anything, "middle": schema.anything, "high": schema.anything}
)


def n_until_renewed(detector: Detector) -> int | None:
    """Return the number of records until the forecast is renewed; None for rows."""
    if not isinstance(detector, SeriesMPF):
        return None
    return _STEPS - (detector.n_seen_ if detector.is_fitted else 0) % _STEPS


def renew(entry: Entry) -> None:
    """Renew the expected ranges of a key if they are due."""
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
        entry.notes[_NAME] = _expected_ranges(detector, n)


def bands(entry: Entry, n_fields: int, n_before: int, n: int) -> list[Band | None]:
    """Return the expected ranges of the `n` records that were learned after `n_before` others."""
    outlook: Any = entry.notes.get(_NAME)
    try:
        _RULE(outlook, _NAME)
        parts = [np.array(outlook[name], np.float64).reshape(-1, n_fields) for name in ("low", "middle", "high")]
    except (ValueError, TypeError):  # missing or invalid
        return [None] * n
    steps = [Band(*(part[step].tolist() for part in parts)) for step in range(len(parts[0]))]
    if not isinstance(entry.detector, SeriesMPF):
        return [steps[0]] * n
    first = n_before - outlook["since"]
    return [steps[step] if 0 <= step < len(steps) else None for step in range(first, first + n)]


def _expected_ranges(detector: Detector, n: int) -> dict[str, Any] | None:
    """Return the expected ranges as JSON values; None if there are too few points."""
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
    """Convert to lists, with None for a field that has had no value so far."""
    return [[None if isnan(number) else number for number in step] for step in part.tolist()]
