"""How well a score ranks anomalies first. Labels are 1 for anomalies, and anomalies should score high."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from sklearn.metrics import average_precision_score, roc_auc_score


def auc(y: ArrayLike, score: ArrayLike) -> float:
    """Return the area under the ROC curve: the chance that an anomaly scores higher than a normal row."""
    return float(roc_auc_score(y, score))


def average_precision(y: ArrayLike, score: ArrayLike) -> float:
    """Return the mean precision over the ranks at which an anomaly is found."""
    return float(average_precision_score(y, score))


def auprg(y: ArrayLike, score: ArrayLike) -> float:
    """Return the area under the precision-recall-gain curve (Flach and Kull, 2015), over recall gains from 0 to 1.

    A perfect ranking has area 1, and a score that is the same for all rows has area 0. A gain sets precision and recall
    against calling every row an anomaly, whose precision is the share π of anomalies, on a harmonic scale:
    (precision − π) / ((1 − π) · precision). Precision gains below 0 count as such, so that an area may be negative.
    """
    found, false = hits(y, score)
    n_anomalies, n_normal = found[-1], false[-1]
    share = n_anomalies / (n_anomalies + n_normal)
    # recall gain is 0 where recall is π; between thresholds both gains are linear in each other where `found` and
    # `false` are, so the curve can be cut there before it is turned into gains
    start = share * n_anomalies
    false = np.append(np.interp(start, found, false), false[found >= start])
    found = np.append(start, found[found >= start])
    odds = n_anomalies / n_normal
    precision_gain = 1 - odds * false / found
    recall_gain = 1 - odds * (n_anomalies - found) / found
    heights = (precision_gain[1:] + precision_gain[:-1]) / 2
    return float(np.diff(recall_gain) @ heights)


def hits(y: ArrayLike, score: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Return how many anomalies and how many normal rows lie above each threshold, from no row to all rows.

    Rows of equal score are above or below together.
    """
    y, score = np.asarray(y), np.asarray(score, dtype=float)
    if y.shape != score.shape or y.ndim != 1:
        raise ValueError(f"there must be one score per label, not {score.shape} scores for {y.shape} labels")
    if not np.isin(y, (0, 1)).all() or len(np.unique(y)) < 2:
        raise ValueError("labels must be 0 and 1, and both must occur")
    if np.isnan(score).any():
        raise ValueError("a score is not a number")
    order = np.argsort(-score, kind="stable")
    last_of_its_score = np.append(score[order][1:] != score[order][:-1], True)
    found = np.cumsum(y[order] == 1)[last_of_its_score]
    seen = 1 + np.flatnonzero(last_of_its_score)
    return np.append(0, found), np.append(0, seen - found)


def vus_pr(y: ArrayLike, score: ArrayLike, buffer: int = 100, n_thresholds: int = 250) -> float:
    """Return the volume under the surface of range-based precision and recall (Paparrizos et al., 2022).

    Labels are extended by half a `window` on both sides of each run of anomalies, where they fall off as a square root;
    the area under the curve of precision and recall is averaged over all windows from 0 to `buffer` steps. Recall
    counts the share of runs touched, too. Thresholds are `n_thresholds` evenly spaced ranks of the scores, and areas
    are sums of steps, as in the authors' implementation.
    """
    y, score = np.asarray(y) != 0, np.asarray(score, dtype=float)
    if y.shape != score.shape or y.ndim != 1:
        raise ValueError(f"there must be one score per label, not {score.shape} scores for {y.shape} labels")
    if not y.any():
        raise ValueError("there must be an anomaly")
    if np.isnan(score).any():
        raise ValueError("a score is not a number")
    thresholds = -np.sort(-score)[np.linspace(0, len(score) - 1, n_thresholds).astype(int)]
    rank = np.searchsorted(-thresholds, -score)  # the first threshold at which a step is flagged
    n_flagged = _running_counts(rank, n_thresholds)
    changes = np.diff(np.concatenate([[False], y, [False]]).astype(np.int8))
    starts, ends = np.flatnonzero(changes == 1), np.flatnonzero(changes == -1) - 1
    areas = [_range_pr(y, rank, n_flagged, starts, ends, window) for window in range(buffer + 1)]
    return float(np.mean(areas))


def _range_pr(
    y: np.ndarray, rank: np.ndarray, n_flagged: np.ndarray, starts: np.ndarray, ends: np.ndarray, window: int
) -> float:
    """Return the area under range-based precision and recall for labels extended by half a window on both sides."""
    reach = window // 2
    steps, weights = _buffers(y, starts, ends, window)
    n_thresholds, n_anomalies = len(n_flagged), np.count_nonzero(y)
    in_buffers = _running_counts(rank[steps], n_thresholds, weights)
    found = _running_counts(rank[y], n_thresholds) + in_buffers
    recall = np.minimum(found / (n_anomalies + in_buffers / 2), 1.0)
    is_first = np.append(True, ends[:-1] + reach < starts[1:] - reach)  # runs whose buffers meet are one
    is_last = np.append(is_first[1:], True)
    bounds = zip(np.maximum(starts[is_first] - reach, 0), ends[is_last] + reach + 1, strict=True)
    earliest = np.array([rank[first:end].min() for first, end in bounds])
    recall *= _running_counts(earliest, n_thresholds) / len(earliest)
    return float(np.diff(recall, prepend=0.0) @ (found / n_flagged))


def _buffers(y: np.ndarray, starts: np.ndarray, ends: np.ndarray, window: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the normal steps within half a window of an anomaly, and the label of each, above 0 and at most 1."""
    distance = np.arange(1, window // 2 + 1)
    near = np.concatenate([(ends[:, None] + distance).ravel(), (starts[:, None] - distance).ravel()])
    labels = np.tile(np.sqrt(1 - distance / max(window, 1)), 2 * len(starts))
    counts = (near >= 0) & (near < len(y))
    counts[counts] = ~y[near[counts]]
    steps, place = np.unique(near[counts], return_inverse=True)
    return steps, np.minimum(np.bincount(place, labels[counts], len(steps)), 1.0)


def _running_counts(rank: np.ndarray, size: int, weights: np.ndarray | None = None) -> np.ndarray:
    """Return how many steps, or what weight of them, is flagged at each threshold."""
    return np.cumsum(np.bincount(rank, weights, size))
