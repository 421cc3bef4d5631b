"""Calibration scores: scores of rows that a forest has not learned, for thresholds and p-values.

A learned row raises its own score. So a stream scores the points it holds with trees that have not learned them, or
leaves them out of the trees; a Mondrian process subtracts them from its counts; and new rows are scored before they
are learned.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Iterable
from itertools import pairwise
from math import ceil, inf, isnan, nan
from typing import Self

import numpy as np

from polyaforest.forest.severity import bits_of, tail_bits
from polyaforest.forest.spec import spread_of
from polyaforest.forest.thresholds import Detections, ThresholdPolicy, check_scores, conformal_p_values, raised
from polyaforest.kernels.arrays import ALL_YES, QUESTIONS, Array, is_ascending
from polyaforest.kernels.boxes import as_codes, count_bits

LEAST_ROWS = 1000  # fewest calibration scores to keep, if there are as many
_LEAST_TO_FLAG = 100  # rows that a new stream scores before it flags any
_MOST_ROWS = 10**9  # more than fit into memory; for a rate close to 0
_ROWS_PER_ALARM = 10  # calibration scores for every false alarm expected among them


def n_to_calibrate(false_alarm_rate: float | None) -> int:
    """Return how many calibration scores to keep: enough to estimate the rate."""
    if false_alarm_rate is None:
        return LEAST_ROWS
    return max(LEAST_ROWS, ceil(min(_ROWS_PER_ALARM / false_alarm_rate, _MOST_ROWS)))


def some_rows(n_rows: int, n_wanted: int) -> Array:
    """Sample the positions of `n_wanted` rows of a table, or of all, ascending and deterministic."""
    if n_rows <= n_wanted:
        return np.arange(n_rows)
    return np.sort(np.random.default_rng(n_rows).choice(n_rows, n_wanted, replace=False))


def out_of_bag_weights(is_member: Array, sizes: Array) -> Array:
    """Return the weight of each tree for each point, (T, n): 0 where the tree has learned the point.

    Trees with samples of the same size keep their total weight, shared by those that have not learned the point. All
    weights of a point that every tree has learned are 0.
    """
    weights = np.zeros(is_member.shape)
    for size in np.unique(sizes):
        alike = sizes == size
        is_out = ~is_member[alike]
        weights[alike] = is_out * (alike.sum() / np.maximum(is_out.sum(axis=0), 1))
    total = weights.sum(axis=0)
    return weights / np.where(total > 0, total, 1.0)


def boxes_without(own: Array, lowest: Array, highest: Array, n_categories: int = 0) -> Array:
    """Return for each of the rows `own` the bounding box of all other rows of its table, (2, n, D).

    `lowest` and `highest` are the two lowest and highest values of every column, (2, D) each, and the answers of
    categories (`survey.answers_of`). An infinite second value means that a column has only one.
    """
    if n_categories:
        n = own.shape[1] - n_categories
        cubes = _cubes_without(*(as_codes(part[:, n:]) for part in (own, lowest, highest)))
        return np.concatenate([boxes_without(own[:, :n], lowest[:, :n], highest[:, :n]), cubes], axis=2)
    second_lowest, second_highest = np.where(np.isfinite([lowest[1], highest[1]]), [lowest[1], highest[1]], lowest[0])
    return np.stack(
        [
            np.where(own > lowest[0], lowest[0], second_lowest),
            np.where(own < highest[0], highest[0], second_highest),
        ]
    )


def _cubes_without(own: Array, yes: Array, no: Array) -> Array:
    """Return for each row the cube of the categories of all other rows, (2, n, F)."""
    (all_do, all_but_one), (any_does, two_do) = yes, no
    low, high = all_do | (all_but_one & ~own), any_does & ~(own & ~two_do)
    is_alone = (all_but_one == int(ALL_YES)) & (two_do == 0)
    return np.where(is_alone, own, np.stack([low, high])).astype(np.float64)


def as_beyond(rows: Array, known: Array, domain: Array, n_categories: int = 0, *, is_rescaled: bool = False) -> Array:
    """Move `rows` as far beyond the `domain`, (2, D), as they lie beyond the boxes `known`, (2, n, D).

    With `is_rescaled`, distances are in lengths of these boxes, because features are weighed by the length of the
    domain: without the row, it would be that of the box.

    Categories move along questions that have the same answer in the whole domain, as far as there are any.
    """
    if n_categories:
        n = rows.shape[1] - n_categories
        numbers = as_beyond(rows[:, :n], known[..., :n], domain[:, :n], is_rescaled=is_rescaled)
        codes, (low, high), bounds = (as_codes(part[..., n:]) for part in (rows, known, domain))
        n_beyond, constant = count_bits((low & ~codes) | (codes & ~high)), ~(bounds[0] ^ bounds[1])
        for question in range(QUESTIONS):
            moves = (constant >> question & 1) & (n_beyond > 0)
            codes, n_beyond = codes ^ (moves << question), n_beyond - moves
        return np.hstack([numbers, codes])
    below, above = np.minimum(rows - known[0], 0.0), np.maximum(rows - known[1], 0.0)
    if is_rescaled:
        lengths = known[1] - known[0]
        scale = (domain[1] - domain[0]) / np.where(lengths > 0, lengths, np.inf)
        scale = np.where(lengths > 0, scale, 1.0)
        below, above = below * scale, above * scale
    return np.where(below < 0, domain[0] + below, np.where(above > 0, domain[1] + above, rows))


def beyond_others(rows: Array, points: Array, n_categories: int = 0) -> Array:
    """Return some of the `points` as trees would place them whose feature weights had been measured without them.

    Weights are inverse to the spread of the points, which a value beyond all others enlarges. So its distance from the
    next one is multiplied by the ratio of the spreads with and without it. Other values hardly change the spread.
    """
    moved = rows.copy()
    for k in range(points.shape[1] - n_categories):
        column = points[:, k]
        for end in (column.min(), column.max()):
            others = column[column != end]
            if not len(others) or len(others) != len(column) - 1:
                continue
            nearest = others[np.abs(others - end).argmin()]
            scale = spread_of(column[None])[0] / spread_of(others[None])[0]
            is_end = rows[:, k] == end
            moved[is_end, k] = nearest + scale * (end - nearest)
    return moved


class RunningCalibration:
    """The log-scores of the last `n` arrivals, a reference for the scores of new rows.

    Each score belongs to an arrival, a number that increases. Scoring one by one or in chunks gives the same result.

    Parameters
    ----------
    n : int
        Maximum number of scores.

    Attributes
    ----------
    is_seeded : bool
        Whether it began with the scores of points left out of a grown forest. An unseeded stream flags none of its
        first hundred rows, and drops their scores after the two hundredth: a forest of few points gave them.

    Examples
    --------
    >>> calibration = RunningCalibration(3)
    >>> calibration.judge_then_learn(np.array([5.0, 4.0, 6.0, 1.0]), np.arange(4), ThresholdPolicy()).p_values
    array([1.  , 0.5 , 1.  , 0.25])
    >>> calibration.scores
    array([4., 6., 1.])
    """

    def __init__(self, n: int) -> None:
        if n < 1:
            raise ValueError(f"n must be at least 1; got {n}")
        self.n = n
        self.is_seeded = False
        self._by_arrival: OrderedDict[int, float] = OrderedDict()
        self._ascending: list[float] = []

    @classmethod
    def of_state(cls, n: int, arrivals: Array, scores: Array, *, is_seeded: bool) -> Self:
        """Restore a calibration from its `arrivals` and `scores`."""
        calibration = cls(n)
        if len(scores) > n:
            raise ValueError(f"{len(scores)} calibration scores exceed the maximum of {n}")
        check_scores("judging", scores)
        if arrivals.shape != scores.shape or not is_ascending(arrivals):
            raise ValueError("calibration scores must have increasing arrivals, one each")
        calibration.is_seeded = is_seeded
        calibration._take(arrivals.tolist(), scores.tolist())
        return calibration

    def __len__(self) -> int:
        return len(self._ascending)

    @property
    def arrivals(self) -> Array:
        """Arrivals of the scores, ascending, int64 (n_held,)."""
        return np.fromiter(self._by_arrival.keys(), np.int64, len(self))

    @property
    def scores(self) -> Array:
        """Scores in order of arrival, float64 (n_held,)."""
        return np.fromiter(self._by_arrival.values(), np.float64, len(self))

    @property
    def ascending(self) -> Array:
        """Scores, sorted, float64 (n_held,)."""
        return np.array(self._ascending, np.float64)

    def seed(self, scores: Array, arrivals: Array) -> None:
        """Begin with the scores of the points that the forest holds, each left out of the forest."""
        self._take(*self._read(scores[-self.n :], arrivals[-self.n :]))
        self.is_seeded = True

    def threshold(self, policy: ThresholdPolicy) -> float:
        """Return the current threshold, as a log-score; -inf if there are too few scores."""
        if not self.is_seeded and len(self) < _LEAST_TO_FLAG and policy.false_alarm_rate is None:
            return -inf
        return policy.threshold(self._ascending)

    def judge(self, scores: Array, policy: ThresholdPolicy) -> Detections:
        """Compare scores with the calibration, without adding them."""
        thresholds, is_anomaly = np.full(len(scores), self.threshold(policy)), scores < self.threshold(policy)
        p_values, bits = conformal_p_values(scores, self.ascending), tail_bits(scores, is_anomaly, self._ascending)
        return Detections(scores, p_values, is_anomaly, thresholds, tail_bits=bits)

    def judge_then_learn(self, scores: Array, arrivals: Array, policy: ThresholdPolicy) -> Detections:
        """Compare each score with the calibration, then add it and drop the oldest.

        Examples
        --------
        >>> calibration = RunningCalibration(1000)
        >>> scores = np.append(np.linspace(-3, -2, 200), [-8.0, -2.5])
        >>> np.flatnonzero(calibration.judge_then_learn(scores, np.arange(202), ThresholdPolicy()).is_anomaly)
        array([200])
        """
        numbers, values = self._read(scores, arrivals)
        p_values, thresholds, bits = [], [], []
        for number, score in zip(numbers, values, strict=True):
            p_value, threshold, bits_of_score = self._judge_and_add(score, number, policy)
            p_values.append(p_value)
            thresholds.append(threshold)
            bits.append(bits_of_score)
        given, placed = np.array(values, np.float64), np.array(thresholds, np.float64)
        is_anomaly, tail = given < placed, np.array(bits, np.float64)
        return Detections(given, np.array(p_values, np.float64), is_anomaly, placed, tail_bits=tail)

    def judge_one(self, score: float, arrival: int, policy: ThresholdPolicy) -> tuple[float, float, float]:
        """Do what `judge_then_learn` does for one score; return its p-value, the threshold and its tail bits."""
        if isnan(score):
            raise ValueError("score 0 is not a number")
        return self._judge_and_add(score, arrival, policy)

    def _judge_and_add(self, score: float, number: int, policy: ThresholdPolicy) -> tuple[float, float, float]:
        by_arrival, ascending = self._by_arrival, self._ascending
        p_value = (1 + bisect_right(ascending, raised(score))) / (len(ascending) + 1)
        threshold = self.threshold(policy)
        bits = bits_of(score, ascending) if score < threshold else nan
        if len(ascending) == self.n:
            del ascending[bisect_left(ascending, by_arrival.popitem(last=False)[1])]
        insort(ascending, score)
        by_arrival[number] = score
        if number == 2 * _LEAST_TO_FLAG - 1 and not self.is_seeded:
            self.forget(range(_LEAST_TO_FLAG))
        return p_value, threshold, bits

    def resize(self, n: int) -> None:
        """Set the maximum number of scores, and drop the oldest beyond it."""
        self.forget(list(self._by_arrival)[: max(len(self) - n, 0)])
        self.n = n

    def forget(self, arrivals: Iterable[int]) -> None:
        """Remove the scores of these arrivals, if still held."""
        for number in arrivals:
            score = self._by_arrival.pop(int(number), None)
            if score is not None:
                del self._ascending[bisect_left(self._ascending, score)]

    def _take(self, numbers: list[int], values: list[float]) -> None:
        self._by_arrival.update(zip(numbers, values, strict=True))
        self._ascending = sorted(self._by_arrival.values())

    def _read(self, scores: Array, arrivals: Array) -> tuple[list[int], list[float]]:
        """Validate new scores and their arrivals."""
        if arrivals.ndim != 1 or arrivals.shape != scores.shape:
            raise ValueError(f"{scores.size} scores for {arrivals.size} arrivals: pass one score for each arrival")
        numbers, values, newest = arrivals.tolist(), scores.tolist(), next(reversed(self._by_arrival), -inf)
        for place, value in enumerate(values):
            if value != value:  # noqa: PLR0124 -- NaN
                raise ValueError(f"score {place} is not a number")
        if any(later <= earlier for earlier, later in pairwise([newest, *numbers])):
            raise ValueError("arrivals must increase, within a call and between calls")
        return numbers, values
