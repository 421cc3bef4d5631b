"""Thresholds and p-values: which scores are anomalies.

Scores are higher for normal rows; a row is flagged if its score is *below* the threshold. All rules here work on
log-scores, whose tails are close to exponential. Kernels that learn and kernels that only score may differ in the last
digits of a score, so comparisons allow for rounding errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, inf, isfinite, log2
from typing import Any, NamedTuple, Self

import numpy as np

from polyaforest.forest.result_frames import FrameKind, kind_of, to_frame, to_html
from polyaforest.kernels.arrays import Array

AUTO_RATE = 0.001  # share of normal rows expected below the automatic threshold
_LEAST_SCORES = 8  # fewer scores do not show where the bulk ends
LONGEST_RUN = 32.0
_SLACK = 1e-9  # relative; rounding errors of scores are below 1e-13
_MOST_SCORE = 2.0  # above any probability, rounding included


class _Results(NamedTuple):
    """The fields of `Detections`."""

    scores: Array  # higher is more normal
    p_values: Array  # conformal p-values, NaN without calibration scores to compare with
    is_anomaly: Array  # bool: whether the score is below the threshold
    thresholds: Array  # the threshold when the row was scored
    explanations: dict[int, Any] = {}  # noqa: RUF012  an `Explanation` of each flagged row, by position, on request
    novelty: Array = np.empty(0)  # for a series: how far outside all earlier readings, from 0 to 1; empty for rows
    tail_bits: Array = np.empty(0)  # -log2 of the p-value by a model of the tail (`severity`); NaN unless flagged


class Detections(_Results):
    """Results for rows, in their order: a named tuple of arrays of shape (n_rows,). Notebooks show the flagged rows."""

    _frame: FrameKind | None = None  # what `to_frame` returns

    def like(self, rows: Any) -> Self:
        """Return these results, with a `to_frame` that returns a frame of the library of `rows`, with their index."""
        same = type(self)(*self)
        same._frame = kind_of(rows)
        return same

    def to_frame(self) -> Any:
        """Return one row per row: a frame of polars or pandas, as that of the rows, with the index of the latter.

        Its columns are `score`, `p_value`, `threshold`, `is_anomaly`, `severity` (1 to 5, of flagged rows), `novelty`
        for a series, and `reason` if flagged rows are explained. For arrays it is a pandas frame if pandas is
        installed, else one of polars.
        """
        return to_frame(self, self._frame)

    def __repr__(self) -> str:
        return f"<detections of {len(self.scores):,} rows, {int(self.is_anomaly.sum()):,} flagged>"

    def _repr_html_(self) -> str:
        return to_html(self, self._frame)

    def row(self, i: int) -> Detections:
        """Return the results for one row, without its explanation."""
        own = slice(i, i + 1)
        scores, p_values, is_anomaly, thresholds = (part[own] for part in self[:4])
        return Detections(scores, p_values, is_anomaly, thresholds, {}, self.novelty[own], self.tail_bits[own])

    def select(self, places: Array) -> Detections:
        """Return the results for some of the rows; empty arrays stay empty."""
        n = len(self.scores)
        columns = (*self[:4], *self[5:])
        scores, p_values, is_anomaly, thresholds, novelty, bits = (
            part[places] if len(part) == n else part[:0] for part in columns
        )
        kept = {j: self.explanations[i] for j, i in enumerate(places.tolist()) if i in self.explanations}
        return Detections(scores, p_values, is_anomaly, thresholds, kept, novelty, bits)

    @classmethod
    def joined(cls, parts: Sequence[Detections]) -> Detections:
        """Concatenate the results of several calls."""
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return cls(np.empty(0), np.empty(0), np.empty(0, np.bool_), np.empty(0))
        starts = np.cumsum([0, *(len(part.scores) for part in parts)]).tolist()
        explanations = {
            start + i: explanation
            for start, part in zip(starts, parts, strict=False)
            for i, explanation in part.explanations.items()
        }
        columns = list(zip(*parts, strict=True))
        scores, p_values, is_anomaly, thresholds = (np.concatenate(arrays) for arrays in columns[:4])
        novelty, bits = (_joined_if_any(arrays, columns[0]) for arrays in columns[5:])
        return cls(scores, p_values, is_anomaly, thresholds, explanations, novelty, bits)


def _joined_if_any(parts: Sequence[Array], scores: Sequence[Array]) -> Array:
    """Concatenate arrays, NaN for parts without; empty if all are."""
    if not any(map(len, parts)):
        return np.empty(0)
    pairs = zip(parts, scores, strict=True)
    return np.concatenate([part if len(part) else np.full(len(own), np.nan) for part, own in pairs])


NOTHING = Detections.joined([])


@dataclass(frozen=True)
class ThresholdPolicy:
    """Rule that places the threshold of a detector, given the scores of rows that it has not learned.

    Parameters
    ----------
    contamination : float or None
        Share of the rows to flag.
    false_alarm_rate : float or None
        Share of new, normal rows that may be flagged. With neither, the threshold is below the bulk of the scores.
    run_length : float
        Mean number of rows in a false alarm: rows that resemble each other are flagged together. The automatic
        threshold limits the rate of alarms, not of flagged rows.
    """

    contamination: float | None = None
    false_alarm_rate: float | None = None
    run_length: float = 1.0

    @classmethod
    def of(cls, contamination: str | float, false_alarm_rate: float | None) -> Self:
        """Return the policy with these parameters of a detector."""
        return cls(None if contamination == "auto" else float(contamination), false_alarm_rate)

    def threshold(self, ascending: Sequence[float]) -> float:
        """Return the log-score below which rows are flagged, given sorted calibration scores; -inf to flag no row."""
        placed = self._placed(ascending) if len(ascending) else -inf
        return float(placed - _slack(placed)) if placed > -inf else -inf

    def _placed(self, ascending: Sequence[float]) -> float:
        if self.contamination is not None:
            return _interpolated(ascending, self.contamination)
        if self.false_alarm_rate is not None:
            rank = _most_below(self.false_alarm_rate, len(ascending))
            return float(ascending[rank]) if 0 <= rank < len(ascending) else -inf
        return tail_threshold(ascending, AUTO_RATE * self.run_length)


def tail_threshold(ascending: Sequence[float], rate: float = AUTO_RATE) -> float:
    """Return the log-score below which a share `rate` of normal rows falls, extrapolating the tail of the bulk.

    If log-scores decay exponentially below their median, half of the rows below it are within one step (median minus
    lower quartile), half of the rest within the next, and so on. The step is the larger of two estimates, from the
    quartile and from the lowest eighth: scores of counts have few distinct values, so one of the two may be almost 0.
    Anomalies below the lowest eighth hardly change either, so a burst cannot raise its own threshold.

    Examples
    --------
    >>> -8 < tail_threshold([-8.0, *np.linspace(-3, -2, 200)]) < -3
    True
    """
    n = len(ascending)
    if n < _LEAST_SCORES:
        return -inf
    median, step = float(ascending[n // 2]), tail_step(ascending)
    halvings = log2(0.5 / rate)  # from half of the rows to the rate
    return median - halvings * step if step < inf else -inf


def tail_step(ascending: Sequence[float]) -> float:
    """Return by how much lower the score of half of the rows in the tail is, as estimated by `tail_threshold`."""
    n = len(ascending)
    eighth, quartile, median = (float(ascending[n // part]) for part in (8, 4, 2))
    step = max(median - quartile, (median - eighth) / 2)
    if not step > 0:  # ties down to the lowest eighth: the tail is below it
        step = (median - float(ascending[n // 32])) / 4
    return step


def mean_run_length(scores: Array) -> float:
    """Return the mean length of runs of low scores, given the scores of consecutive rows.

    Low scores are the lowest eighth. Rows that resemble each other, as in a series, have low scores together. The
    longest tenth of the runs is left out, so that long anomalies do not count as normal.

    Examples
    --------
    >>> mean_run_length(np.tile(np.arange(16.0), 40))
    2.0
    """
    n_low = len(scores) // 8
    if n_low < 2:
        return 1.0
    low = np.sort(np.argpartition(scores, n_low)[:n_low])
    ends = np.flatnonzero(np.diff(low) > 1)
    runs = np.sort(np.diff(ends, prepend=-1, append=n_low - 1))
    return float(min(runs[: -(-9 * len(runs) // 10)].mean(), LONGEST_RUN))


def _interpolated(ascending: Sequence[float], share: float) -> float:
    """Return a quantile of sorted scores; between -inf and a finite score, the finite score."""
    place = share * (len(ascending) - 1)
    low, high = float(ascending[int(place)]), float(ascending[min(int(place) + 1, len(ascending) - 1)])
    return high if low == -inf else low + (place - int(place)) * (high - low)


def raised(score: float) -> float:
    """Raise a score by more than its rounding error, so that equal scores compare as equal."""
    return score + _slack(score) if isfinite(score) else score


def _slack(scores: Any) -> Any:
    return _SLACK * (1 + abs(scores))


# ---- p-values ------------------------------------------------------------------------------------------------------


def conformal_p_values(scores: Array, calibration: Array) -> Array:
    """Return (1 + number of calibration scores not above the score) / (n + 1).

    If a score and the calibration scores are exchangeable, its p-value is at most alpha with a probability of at most
    alpha, for every alpha. Ties raise the p-value, so this holds for discrete scores too.

    Examples
    --------
    >>> conformal_p_values(np.array([-9.0, 2.0]), calibration=np.array([1.0, 2.0, 3.0, 4.0]))
    array([0.2, 0.6])
    """
    highs = scores + np.where(np.isfinite(scores), _slack(scores), 0.0)  # `raised`, all at once
    ranks = np.searchsorted(np.sort(calibration), highs, side="right")
    return (1 + ranks) / (len(calibration) + 1)


def least_calibration(alpha: float) -> int:
    """Return the size of the smallest calibration set with which a p-value can be `alpha` or less.

    Examples
    --------
    >>> least_calibration(0.05)
    19
    """
    n = ceil(1 / Fraction(float(alpha))) - 1
    return n - 1 if n > 0 and 1 / n <= alpha else n  # compare the rounded p-value: the float 1 / 3 is not above itself


def check_calibration_size(n: int, alpha: float, remedy: str) -> None:
    """Raise ValueError if `n` calibration scores are too few for any p-value to be `alpha` or less."""
    if n < least_calibration(alpha):
        raise ValueError(
            f"a false alarm rate of {alpha:g} needs at least {least_calibration(alpha):,} calibration scores; "
            f"got {n:,}: {remedy}"
        )


def _most_below(alpha: float, n: int) -> int:
    """Return how many of `n` calibration scores may be at or below one with a p-value of at most `alpha`, or -1."""
    rank = int(alpha * (n + 1))  # rounding may be off by one
    while (1 + rank) / (n + 1) > alpha:
        rank -= 1
    return rank


def benjamini_hochberg(p_values: Array, rate: float) -> Array:
    """Return which hypotheses to reject at a false discovery rate.

    Of sorted p-values p_1 <= ... <= p_m, find the largest k with p_k <= rate * k / m and reject the first k. NaN is
    ignored.

    Examples
    --------
    >>> benjamini_hochberg(np.array([0.001, 0.9, 0.04, 0.03]), rate=0.1)
    array([ True, False,  True,  True])
    """
    ascending = np.sort(p_values[~np.isnan(p_values)])
    m = len(ascending)
    small = np.flatnonzero(ascending <= rate * np.arange(1, m + 1) / m)
    if not small.size:
        return np.zeros(len(p_values), np.bool_)
    return np.asarray(p_values <= ascending[small[-1]])


def check_scores(name: str, scores: Array) -> None:
    """Raise ValueError unless scores from a file can be probabilities or their logarithms."""
    if not (scores <= _MOST_SCORE).all():  # NaN fails too
        raise ValueError(f"array {name}: a score must be a probability or the logarithm of one")
