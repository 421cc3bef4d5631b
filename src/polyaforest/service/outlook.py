"""Expected ranges of the next records: a forecast for series, the central 90 % of the latest points for rows.

They are saved with the model and only shown. Both are renewed after fixed numbers of learned records, so that they do
not depend on batches or restarts. The range of rows follows the trend of the latest points, and so a slow rhythm, from
row to row. A series that has no context windows, as one with a calendar, has the range of rows.
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
    if isinstance(detector, SeriesMPF) and _has_forecast(detector):
        return _STEPS - (detector.n_seen_ if detector.is_fitted else 0) % _STEPS
    points = detector.estimator_ if isinstance(detector, SeriesMPF) and detector.is_fitted else detector
    n = points.n_points_ if points.is_fitted and getattr(points, "keeps_points_", False) else 0
    return min(_MOST, max(n // 2, _FEWEST))


def renew(entry: Entry) -> None:
    """Renew the forecast of a series if it is due."""
    detector = entry.detector
    if not isinstance(detector, SeriesMPF) or not _has_forecast(detector) or not detector.is_fitted:
        return
    n, saved = detector.n_seen_, entry.notes.get(_NAME)
    since = saved.get("since") if isinstance(saved, dict) else None
    if n % _STEPS == 0 and since != n:
        entry.notes[_NAME] = _forecast(detector, n)


def bands(entry: Entry, n_fields: int, n_before: int, n: int) -> list[Band | None]:
    """Return the expected ranges of the `n` records that were scored after `n_before` others were learned."""
    if not isinstance(entry.detector, SeriesMPF) or not _has_forecast(entry.detector):
        return _bands_of_rows(entry, n_fields, n_before, n)
    since, steps = _saved(entry, n_fields)
    first = n_before - since
    return [steps[step] if 0 <= step < len(steps) else None for step in range(first, first + n)]


def _bands_of_rows(entry: Entry, n_fields: int, n_before: int, n: int) -> list[Band | None]:
    """Return the range of each row, made of the points before the last renewal; save the last one."""
    n_learned = entry.detector.n_seen_ if entry.detector.is_fitted else 0
    if n_learned < _FEWEST:
        return [None] * n
    found: list[Band | None] = []
    points: Array | None = None
    since, ends = _saved(entry, n_fields)
    while len(found) < n:
        number = n_before + len(found)
        due = number - number % _ROWS
        if due != since or not ends:
            if points is None:
                points = _numbers(entry.detector, n_fields)
            since, ends = due, _recent_range(points, n_learned - due)
            parts = (_as_json(np.array(part)) for part in zip(*ends, strict=True))
            facts = dict(zip(("low", "middle", "high"), parts, strict=False))
            entry.notes[_NAME] = {"since": since, **facts} if ends else None
        found += _between(ends, number - due, min(_ROWS, number - due + n - len(found)))
    return found


def _between(ends: list[Band], start: int, stop: int) -> Sequence[Band | None]:
    """Return the ranges of some rows since a renewal, given those at its first row and at the next renewal."""
    if not ends:
        return [None] * (stop - start)
    shares = np.arange(start, stop)[:, None] / _ROWS
    first, last = np.array(ends[0]), np.array(ends[-1])  # earlier versions saved one for all rows
    parts = [(low + shares * (high - low)).tolist() for low, high in zip(first, last, strict=True)]
    return [Band(*row) for row in zip(*parts, strict=True)]


def _saved(entry: Entry, n_fields: int) -> tuple[int, list[Band]]:
    """Return the saved ranges, and the number of records that had been learned before; none if missing or invalid."""
    outlook: Any = entry.notes.get(_NAME)
    try:
        _RULE(outlook, _NAME)
        parts = [np.array(outlook[name], np.float64).reshape(-1, n_fields) for name in ("low", "middle", "high")]
        return outlook["since"], [Band(*(part[step].tolist() for part in parts)) for step in range(len(parts[0]))]
    except (ValueError, TypeError):
        return 0, []


def _recent_range(points: Array, n_later: int) -> list[Band]:
    """Return the central 90 % of the latest points, without the last `n_later`, at both ends of the next rows.

    Returns [] if there are too few.
    """
    recent = points[: len(points) - n_later][-_RECENT:] if n_later <= len(points) else points[:0]
    if len(recent) < _FEWEST:
        return []
    n, slope = len(recent), _trend(recent)
    low, middle, high = _quantiles(recent - slope * (np.arange(n)[:, None] - n), _ENDS)
    return [Band(*((level + slope * ahead).tolist() for level in (low, middle, high))) for ahead in (0, _ROWS)]


def _trend(recent: Array) -> Array:
    """Return the change of each column from row to row, 0 unless it goes one way.

    It is the smallest change between the medians of successive quarters: neither a jump nor a rhythm within these rows
    is a trend.
    """
    quarter = len(recent) // 4
    medians = [_quantiles(recent[len(recent) - k * quarter :][:quarter], (0.5,))[0] for k in (4, 3, 2, 1)]
    changes = np.diff(medians, axis=0) / quarter
    is_one_way = (changes > 0).all(axis=0) | (changes < 0).all(axis=0)  # not where a quarter has no number
    smallest = changes[np.abs(np.nan_to_num(changes)).argmin(axis=0), np.arange(recent.shape[1])]
    return np.where(is_one_way, smallest, 0.0)


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


def _has_forecast(detector: SeriesMPF) -> bool:
    """Return whether a series has context windows, or else shingles of several or of changed readings."""
    return detector.shingle != 1 or bool(detector.difference)


def _numbers(detector: Detector, n_fields: int) -> Array:
    """Return the points of a detector, with NaN for categories, which have no range."""
    if isinstance(detector, SeriesMPF) and detector.is_fitted:
        return _numbers(detector.estimator_, n_fields)[:, :n_fields]  # without calendar features
    if not isinstance(detector, StreamingMPF) or not detector.is_fitted or not detector.keeps_points_:
        return np.empty((0, 0))
    points: Array = detector.points_
    if detector.encoding_ is None:
        return points
    return np.where(detector.encoding_.mask, np.nan, points).astype(np.float64)


def _as_json(part: Array) -> list[list[float | None]]:
    """Convert to lists, with None for a field that has had no value so far."""
    return [[None if isnan(number) else number for number in step] for step in part.tolist()]
