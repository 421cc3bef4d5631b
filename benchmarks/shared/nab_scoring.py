"""The scoring of the Numenta Anomaly Benchmark, from its definition (Lavin and Ahmad 2015, and what NAB 1.1 runs).

A window is a run of labelled points. The first point flagged in a window earns up to 1, the more the earlier; a window
in which nothing is flagged costs; and so does every point flagged outside, little just behind a window and in full far
from one. The first part of a series is not scored. One threshold serves all series: the one that earns most. The sum
is put on a scale on which flagging nothing is 0 and flagging the first point of each window and nothing else is 100.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

PROBATION_SHARE = 0.15
PROBATION_ROWS = 5000  # of longer series, the share of this many
STEEPNESS = 5.0
FAR = 3.0  # window widths behind a window at which a false alarm costs in full
OUTSIDE = -1  # the window of a point that is in none


class Profile(NamedTuple):
    """What detections and errors are worth."""

    true_positive: float
    false_positive: float
    false_negative: float


PROFILES = {
    "standard": Profile(1.0, 0.11, 1.0),
    "reward low FP rate": Profile(1.0, 0.22, 1.0),
    "reward low FN rate": Profile(1.0, 0.11, 2.0),
}


class Outcome(NamedTuple):
    """What a threshold earns; a point is flagged if its score reaches it."""

    threshold: float
    score: float  # normalised: 0 for flagging nothing, 100 for perfection


def scaled_sigmoid(position: Array | float) -> Array:
    """Return the worth of a detection by its place, in window widths from the right edge: 1 before it, -1 behind."""
    place = np.asarray(position, dtype=float)
    return np.where(place >= FAR, -1.0, 2.0 / (1.0 + np.exp(STEEPNESS * np.minimum(place, FAR))) - 1.0)


def windows_of(label: Array) -> Array:
    """Return first and last point of each run of labelled points, ndarray of shape (n_windows, 2)."""
    steps = np.diff(np.concatenate([[0], np.asarray(label, dtype=int) != 0, [0]]).astype(int))
    return np.column_stack([np.flatnonzero(steps == 1), np.flatnonzero(steps == -1) - 1])


def probation(n_rows: int) -> int:
    """Return how many rows at the beginning of a series are for learning only."""
    return int(PROBATION_SHARE * min(n_rows, PROBATION_ROWS))


class Worth(NamedTuple):
    """What flagging each point of a series would bring, before the profile's weights."""

    value: Array  # in a window 1 at its first point, falling; outside 0 to -1
    window: Array  # number of the window that the point is in, or OUTSIDE


def worth_of(label: Array) -> Worth:
    """Return the worth of every point, those of the probation included."""
    value, window = np.full(len(label), -1.0), np.full(len(label), OUTSIDE)
    for number, (first, last) in enumerate(windows_of(label)):
        width = last - first + 1
        inside = np.arange(first, last + 1)
        value[inside] = scaled_sigmoid((inside - last - 1) / width) / scaled_sigmoid(-1.0)
        window[inside] = number
        behind = np.arange(last + 1, len(label))  # until the next window, which writes over it
        value[behind] = scaled_sigmoid((behind - last) / max(width - 1, 1))
    return Worth(value, window)


class Corpus:
    """The labels of several series, prepared to evaluate scores of all of them together."""

    def __init__(self, labels: Sequence[Array]) -> None:
        self.starts = [probation(len(label)) for label in labels]
        self.lengths = [len(label) for label in labels]
        values, windows, n_windows = [], [], 0
        for label, start in zip(labels, self.starts, strict=True):
            worth = worth_of(label)
            values.append(worth.value[start:])
            seen, numbers = np.unique(worth.window[start:], return_inverse=True)
            is_outside = worth.window[start:] == OUTSIDE
            numbers = (
                numbers - (seen[:1] == OUTSIDE).sum() + n_windows
            )  # windows that lie in the probation do not count
            windows.append(np.where(is_outside, OUTSIDE, numbers))
            n_windows += int((seen != OUTSIDE).sum())
        self.value, self.window, self.n_windows = np.concatenate(values), np.concatenate(windows), n_windows

    def scored(self, scores: Sequence[Array]) -> Array:
        """Return the scores that count, one series after another."""
        if [len(score) for score in scores] != self.lengths:
            raise ValueError("every point of every series needs a score")
        return np.concatenate([score[start:] for score, start in zip(scores, self.starts, strict=True)])

    def best(self, scores: Sequence[Array], profile: Profile) -> Outcome:
        """Return the best of all thresholds, and its score. Higher scores are more anomalous."""
        flat = self.scored(scores)
        order = np.argsort(-flat, kind="stable")
        totals = np.cumsum(self._gains(flat, profile)[order])
        is_last_of_equals = np.append(flat[order][1:] != flat[order][:-1], True)
        thresholds, totals = flat[order][is_last_of_equals], totals[is_last_of_equals]
        best = int(np.argmax(totals))
        if totals[best] <= 0:  # better to flag nothing
            return Outcome(np.inf, 0.0)
        return Outcome(float(thresholds[best]), self._normalised(float(totals[best]), profile))

    def at(self, scores: Sequence[Array], threshold: float, profile: Profile) -> float:
        """Return what a given threshold earns, normalised."""
        return self.of_flags([score >= threshold for score in scores], profile)

    def of_flags(self, flags: Sequence[Array], profile: Profile) -> float:
        """Return what flags earn, normalised."""
        is_flagged = self.scored(flags).astype(bool)
        is_outside = self.window == OUTSIDE
        total = profile.false_positive * float(self.value[is_flagged & is_outside].sum())
        earned = np.full(self.n_windows, -profile.false_negative)
        hit = is_flagged & ~is_outside
        np.maximum.at(earned, self.window[hit], profile.true_positive * self.value[hit])
        return self._normalised(total + float(earned.sum()) + profile.false_negative * self.n_windows, profile)

    def _gains(self, flat: Array, profile: Profile) -> Array:
        """Return what each point adds to the total when all points of higher scores are flagged already."""
        gains = profile.false_positive * self.value
        for number in range(self.n_windows):
            points = np.flatnonzero(self.window == number)
            points = points[np.argsort(-flat[points], kind="stable")]
            earned = np.maximum.accumulate(profile.true_positive * self.value[points])
            gains[points] = np.diff(earned, prepend=-profile.false_negative)
        return gains

    def _normalised(self, gain: float, profile: Profile) -> float:
        """Return the gain over flagging nothing, as a share of the gain of perfection."""
        if not self.n_windows:
            raise ValueError("without a window there is nothing to find, and no perfection to compare with")
        return 100.0 * gain / ((profile.true_positive + profile.false_negative) * self.n_windows)
