"""Severity: how rare a flagged row is, by a model of the tail of the scores.

Beyond the calibration scores a p-value cannot be counted, only extrapolated. Half of all normal rows have a log-score
below the median, a quarter below the next quantile, and so on down to a sixteenth: each halving takes a step. The model
takes the longest of these steps and lets each further step be a fifth longer than the one before, because the scores of
real metrics decay more slowly than exponentially. The halvings down to a score are its tail bits: -log2 of the share of
normal rows that score as low. Calibration scores without visible steps, such as ties, do not support the model; then
tail bits are those of the conformal p-value.

A grade from 1 to 5 is a function of the tail bits alone, so that it means the same in every stream: 2 from one normal
row in 1,000 on, 3 from 10,000, 4 from 100,000, and 5 from a million. How sure a finding is depends on the number of
rows as well: of a million normal rows, one has 20 bits.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from math import inf, isnan, log, log2, nan

import numpy as np

from polyaforest.forest.thresholds import raised
from polyaforest.kernels.arrays import Array

_PARTS = (2, 4, 8, 16)  # the quantiles between which steps are measured; more than 1 in 16 anomalies distort them
_LONGER = 1.2  # ratio of a step beyond the last quantile to the one before
_LEAST_STEP = 0.1 * log(2)  # shorter steps are ties, not a tail
_LEAST_SCORES = 32  # with fewer, a sixteenth is less than two scores
_CERTAIN, _LIKELY = 0.01, 0.5  # largest number of normal rows expected to score as low, among all rows scored
CERTAINTIES = ("certain", "likely", "borderline")


def certainty(bits: float, n_rows: int) -> str:
    """Return how sure it is that a row is more than the rarest of `n_rows` normal rows.

    "certain" if at most 0.01 normal rows are expected to score as low, "likely" if at most 0.5, else "borderline".

    Examples
    --------
    >>> certainty(20.0, 1_000), certainty(20.0, 100_000), certainty(20.0, 1_000_000)
    ('certain', 'likely', 'borderline')
    """
    expected = n_rows * 2.0**-bits  # NaN stays NaN
    return CERTAINTIES[0 if expected <= _CERTAIN else 1 if expected <= _LIKELY else 2]


def tail_bits(scores: Array, is_anomaly: Array, ascending: Sequence[float] | Array) -> Array:
    """Return the tail bits of flagged log-scores, given sorted calibration scores; NaN for rows that are not flagged.

    Examples
    --------
    >>> calibration = np.sort(np.log(np.arange(1, 1001) / 1000))
    >>> tail_bits(np.log([1e-2, 1e-6, 0.5]), np.array([True, True, False]), calibration).round(1)
    array([ 6. , 11.1,  nan])
    """
    bits = np.full(len(scores), np.nan)
    flagged = np.flatnonzero(is_anomaly)
    bits[flagged] = [bits_of(score, ascending) for score in np.asarray(scores)[flagged].tolist()]
    return bits


def bits_of(score: float, ascending: Sequence[float] | Array) -> float:
    """Return the tail bits of one log-score; NaN without calibration scores."""
    n = len(ascending)
    if not n or isnan(score):
        return nan
    counted = -log2((1 + bisect_right(ascending, raised(score))) / (n + 1))
    if n < _LEAST_SCORES:
        return counted
    end, step = _tail_of(ascending)
    if not step or score >= end:
        return counted
    return log2(_PARTS[-1]) + log(1 + (_LONGER - 1) * (end - score) / step) / log(_LONGER)


def score_at(bits: float, ascending: Sequence[float] | Array) -> float:
    """Return the log-score that has `bits` of the tail, given sorted calibration scores; inf without a visible tail.

    Examples
    --------
    >>> calibration = np.sort(np.log(np.arange(1, 1001) / 1000))
    >>> round(bits_of(score_at(12.0, calibration), calibration), 6)
    12.0
    """
    end, step = _tail_of(ascending)
    if not step:
        return inf
    return end - step * float(_LONGER ** (bits - log2(_PARTS[-1])) - 1) / (_LONGER - 1)


def _tail_of(ascending: Sequence[float] | Array) -> tuple[float, float]:
    """Return the last quantile and the length of the first step beyond it; 0 if the model is not supported."""
    levels = [float(ascending[len(ascending) // part]) for part in _PARTS]
    step = max(high - low for high, low in pairwise(levels))
    return levels[-1], _LONGER * step if _LEAST_STEP <= step < inf else 0.0
