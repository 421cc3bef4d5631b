"""Expected ranges of the next records: a forecast for series, the central 90 % of the latest points for rows.

They are saved with the model and only shown. Both are renewed after fixed numbers of learned records, so that they do
not depend on batches or restarts. The range of rows follows the trend of the latest points, and so a slow rhythm.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from typing import Any

import numpy as np

from polyaforest.detectors import SeriesMPF, StreamingMPF
from polyaforest.judge.models import Detector, Entry
from polyaforest.kernels.arrays import Array
from polyaforest.service.blocks import Band
from polyaforest.util import schema

__all__ = ["bands", "n_until_renewed", "renew"]

_STEPS = 32  # readings per forecast
_ROWS = 16  # rows per range
_RECENT = 128  # points of a range; a few anomalies among them hardly change it
_FEWEST = 32  # points needed for a range
_MOST = 512  # rows to score at a time: their ranges need the points from before
_ENDS = (0.05, 0.5, 0.95)
_NAME = "outlook"
_RULE = schema.record(
    {"since": schema.whole(), "low": schema.anything, "middle": schema.anything, "high": schema.anything}
)


def n_until_renewed(detector: Detector) -> int:
    """Return the number of records until the forecast is renewed; for rows, the most to score at a time."""
    if isinstance(detector, SeriesMPF):
        return _STEPS - (detector.n_seen_ if detector.is_fitted else 0) % _STEPS
    n = detector.n_points_ if detector.is_fitted and detector.keeps_points_ else 0
    return min(_MOST, max(n // 2, _FEWEST))


def renew(entry: Entry) -> None:
    """Renew the forecast of a series if it is due."""
    detector = entry.detector
    if not isinstance(detector, SeriesMPF) or not detector.is_fitted:
        return
    n, saved = detector.n_seen_, entry.notes.get(_NAME)
    since = saved.get("since") if isinstance(saved, dict) else None
    if n % _STEPS == 0 and since != n:
        entry.notes[_NAME] = _forecast(detector, n)


def bands(entry: Entry, n_fields: int, n_before: int, n: int) -> list[Band | None]:
    """Return the expected ranges of the `n` records that were scored after `n_before` others were learned."""
    if not isinstance(entry.detector, SeriesMPF):
        return _bands_of_rows(entry, n_fields, n_before, n)
    since, steps = _saved(entry, n_fields)
    first = n_before - since
    return [steps[step] if 0 <= step < len(steps) else None for step in range(first, first + n)]


def _bands_of_rows(entry: Entry, n_fields: int, n_before: int, n: int) -> list[Band | None]:
    """Return the range of each row, made of the points before the last renewal; save the last one."""
    found: list[Band | None] = []
    points: Array | None = None
    n_learned = entry.detector.n_seen_ if entry.detector.is_fitted else 0
    since, steps = _saved(entry, n_fields)
    for number in range(n_before, n_before + n):
        due = number - number % _ROWS
        if due != since or not steps:
            if points is None:
                points = _numbers(entry.detector)
            since, now = due, _recent_range(points, n_learned - due)
            steps = [] if now is None else [now]
            facts = None if now is None else dict(zip(("low", "middle", "high"), map(_as_row, now), strict=True))
            entry.notes[_NAME] = None if facts is None else {"since": since, **facts}
        found.append(steps[0] if steps else None)
    return found


def _saved(entry: Entry, n_fields: int) -> tuple[int, list[Band]]:
    """Return the saved ranges, and the number of records that had been learned before; none if missing or invalid."""
    outlook: Any = entry.notes.get(_NAME)
    try:
        _RULE(outlook, _NAME)
        parts = [np.array(outlook[name], np.float64).reshape(-1, n_fields) for name in ("low", "middle", "high")]
        return outlook["since"], [Band(*(part[step].tolist() for part in parts)) for step in range(len(parts[0]))]
    except (ValueError, TypeError):
        return 0, []


def _recent_range(points: Array, n_later: int) -> Band | None:
    """Return the central 90 % of the latest points, without the last `n_later`; None if there are too few."""
    recent = points[: len(points) - n_later][-_RECENT:] if n_later <= len(points) else points[:0]
    if len(recent) < _FEWEST:
        return None
    n, half = len(recent), len(recent) // 2
    older, newer = _quantiles(recent[:half], (0.5,))[0], _quantiles(recent[half:], (0.5,))[0]
    slope = (newer - older) / (n - half)  # robust: medians of the halves
    steps = np.arange(n)[:, None] - (n - 1 + _ROWS / 2)  # from the middle of the rows that the range is for
    slope = np.where(np.isnan(slope), 0.0, slope)  # no number in one half
    low, middle, high = _quantiles(recent - slope * steps, _ENDS)
    observed_least, observed_most = _quantiles(recent, (0.0, 1.0))
    room = (high - low) / 2  # a jump is not a trend: do not go far beyond what was observed
    ends = [np.clip(end, observed_least - room, observed_most + room) for end in (low, middle, high)]
    return Band(*(end.tolist() for end in ends))


def _quantiles(table: Array, levels: Sequence[float]) -> list[Array]:
    """Return quantiles of the columns of a table, ignoring NaN; NaN for columns without a number."""
    ascending = np.sort(table, axis=0)  # NaN last
    counts = np.count_nonzero(~np.isnan(table), axis=0)
    columns = np.arange(table.shape[1])
    return [ascending[np.rint(level * np.maximum(counts - 1, 0)).astype(np.intp), columns] for level in levels]


def _forecast(detector: SeriesMPF, n: int) -> dict[str, Any] | None:
    """Return a forecast as JSON values; None if there are too few readings."""
    try:
        ahead = detector.forecast(_STEPS)
    except ValueError:  # too few readings, or a series of shingles
        return None
    return {"since": n, "low": _as_json(ahead.low), "middle": _as_json(ahead.median), "high": _as_json(ahead.high)}


def _numbers(detector: Detector) -> Array:
    """Return the points of a detector, with NaN for categories, which have no range."""
    if not isinstance(detector, StreamingMPF) or not detector.is_fitted or not detector.keeps_points_:
        return np.empty((0, 0))
    points: Array = detector.points_
    if detector.encoding_ is None:
        return points
    return np.where(detector.encoding_.mask, np.nan, points).astype(np.float64)


def _as_row(part: list[float]) -> list[list[float | None]]:
    return _as_json(np.array([part]))


def _as_json(part: Array) -> list[list[float | None]]:
    """Convert to lists, with None for a field that has had no value so far."""
    return [[None if isnan(number) else number for number in step] for step in part.tolist()]
