"""Where to draw the line when nobody has said where."""

from __future__ import annotations

import numpy as np

from polyaforest._arrays import Array

AUTO_SHARE = 0.01  # share of the rows that is flagged however ordinary they are
AUTO_RATE = 0.001  # share of normal rows that the tail beyond the bulk may claim


def auto_threshold(log_scores: Array) -> float:
    """The log-score below which rows are flagged: the lowest hundredth, or all beyond the tail, whichever are more."""
    if not np.isfinite(log_scores).any():
        return -np.inf
    lowest = float(np.quantile(log_scores, AUTO_SHARE, method="lower"))
    return max(lowest, end_of_tail(log_scores[np.isfinite(log_scores)], AUTO_RATE))


def end_of_tail(log_scores: Array, rate: float) -> float:
    """The log-score below which a share `rate` of normal rows falls, judged by how the bulk thins out.

    If log-scores thin out exponentially below their median, half of the rows below it lie within one step (the median
    less the lower quartile), half of the rest within the next, and a share `rate` lies beyond log2(0.5 / rate) steps.
    Anomalies are few, so they hardly move the median or the quartile.
    """
    quartile, median = np.quantile(log_scores, [0.25, 0.5])
    step = median - quartile
    if step <= 0:  # ties down to the quartile: the mean excess of an exponential tail gives the same step
        step = 2 * np.log(2) * np.maximum(median - log_scores, 0).mean()
    return float(median - np.log2(0.5 / rate) * step)
