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
    """How many anomalies and how many normal rows lie above each threshold, from none of them to all of them.

    Rows of equal score stand and fall together.
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
