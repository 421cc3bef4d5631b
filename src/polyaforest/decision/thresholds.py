"""Where to draw the line: when nobody has said where, and so that it means a rate of false alarms.

Scores are higher for normal rows; a row is flagged if its score is *below* the line.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import ceil, inf, log2
from typing import NamedTuple, Self

import numpy as np

from polyaforest.core.arrays import Array

AUTO_SHARE = 0.01  # share of the rows that is flagged however ordinary they are
AUTO_RATE = 0.001  # share of normal rows that the tail beyond the bulk may claim
_MOST_SCORE = 2.0  # above any probability, rounding included
_LEAST_TO_JUDGE = 100  # scores that a stream must have given before it flags any


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


def line_below_bulk(log_scores: Array, rate: float) -> float:
    """The log-score below which a share `rate` of the ordinary rows of a table falls, however many others do.

    As `end_of_tail`, and once more by the lowest eighth: where values come in few sizes, as counts do, scores do too,
    and the step from median to quartile may be next to nothing. The lower of both lines holds.
    """
    eighth, median = np.quantile(log_scores, [0.125, 0.5])
    return min(end_of_tail(log_scores, rate), float(median - np.log2(0.5 / rate) * (median - eighth) / 2))


def line_below(ascending: Sequence[float], rate: float) -> float:
    """The log-score below which a share `rate` of the next ones should fall, by those of a stream of late.

    As `end_of_tail`, and once more from the lowest eighth and the lowest of 32: what halves twice between them goes on
    halving beyond. The lower of both lines holds. So heavy tails are followed, and a burst of anomalies, up to one
    score in 32, does not move the line. There is none, minus infinity, before a hundred scores have come.

    Examples
    --------
    >>> line_below([-8.0, *np.linspace(-3, -2, 200)], rate=0.001) > -8
    True
    """
    n = len(ascending)
    if n < _LEAST_TO_JUDGE:
        return -inf
    least, eighth, quartile, median = (float(ascending[n // part]) for part in (32, 8, 4, 2))
    if least == -inf:
        return -inf
    by_tail = least - log2(1 / 32 / rate) * (eighth - least) / 2
    by_bulk = median - log2(0.5 / rate) * (median - quartile)
    return min(by_tail, by_bulk) if median > quartile else by_tail


# ---- p-values ------------------------------------------------------------------------------------------------------


def conformal_p_values(scores: Array, calibration: Array) -> Array:
    """How surprising scores are next to those of a calibration set: (1 + number of them not above it) / (n + 1).

    If a score and those of the calibration set could have come in any order, its p-value is at most alpha with a
    probability of at most alpha, for every alpha. Ties count against surprise, which keeps that true with them.

    Examples
    --------
    >>> conformal_p_values(np.array([-9.0, 2.0]), calibration=np.array([1.0, 2.0, 3.0, 4.0]))
    array([0.2, 0.6])
    """
    ranks = np.searchsorted(np.sort(calibration), scores, side="right")
    return (1 + ranks) / (len(calibration) + 1)


def least_calibration(alpha: float) -> int:
    """The size that a calibration set needs for any p-value to be `alpha` or less.

    Examples
    --------
    >>> least_calibration(0.05)
    19
    """
    n = ceil(1 / Fraction(float(alpha))) - 1
    return n - 1 if n > 0 and 1 / n <= alpha else n  # by the p-value as it is rounded: 1 / 3 is not above itself


def conformal_threshold(
    calibration: Array, alpha: float, remedy: str = "give more rows or allow a higher rate"
) -> float:
    """The line below which are exactly the scores with a p-value of at most `alpha`."""
    n = len(calibration)
    if n < least_calibration(alpha):
        raise ValueError(
            f"a false alarm rate of {alpha:g} needs at least {least_calibration(alpha):,} scores to calibrate with; "
            f"there are {n:,}: {remedy}"
        )
    rank = _most_below(alpha, n)
    return float(np.partition(calibration, rank)[rank])


def _most_below(alpha: float, n: int) -> int:
    """How many of `n` calibration scores may be at or below one with a p-value of at most `alpha`; -1 if none has."""
    rank = int(alpha * (n + 1))  # rounding may be off by one
    while (1 + rank) / (n + 1) > alpha:
        rank -= 1
    return rank


def benjamini_hochberg(p_values: Array, rate: float) -> Array:
    """Which of many to flag so that, on average, at most a share `rate` of those flagged are false discoveries.

    Sorted p-values p_1 <= ... <= p_m: the largest k with p_k <= rate * k / m, and all up to it.

    Examples
    --------
    >>> benjamini_hochberg(np.array([0.001, 0.9, 0.04, 0.03]), rate=0.1)
    array([ True, False,  True,  True])
    """
    m = len(p_values)
    ascending = np.sort(p_values)
    small = np.flatnonzero(ascending <= rate * np.arange(1, m + 1) / m)
    if not small.size:
        return np.zeros(m, np.bool_)
    return np.asarray(p_values <= ascending[small[-1]])


def check_scores(name: str, scores: Array) -> None:
    """Raise unless scores from a file can be those of rows, or a line between them: probabilities or logs of them."""
    if not (scores <= _MOST_SCORE).all():  # which NaN is not
        raise ValueError(f"array {name}: a score must be a probability or the logarithm of one")


class Judgements(NamedTuple):
    """What a stream says of rows as they come; arrays of shape (n_rows,)."""

    scores: Array  # higher is more normal
    p_values: Array  # the share of those before that were as strange
    is_anomaly: Array  # bool: whether the score is below the line
    lines: Array  # the line that held when the row came, as a score


class RunningCalibration:
    """The scores of the last `n` arrivals, against which those that come are judged.

    Each score belongs to an arrival, a number that only rises. The result is the same score by score or in chunks.

    Parameters
    ----------
    n : int
        How many scores are held at most.

    Examples
    --------
    >>> calibration = RunningCalibration(3)
    >>> calibration.p_values_then_learn(np.array([5.0, 4.0, 6.0, 1.0]), arrivals=np.arange(4))
    array([1.  , 0.5 , 1.  , 0.25])
    >>> calibration.scores
    array([4., 6., 1.])
    """

    def __init__(self, n: int) -> None:
        if n < 1:
            raise ValueError(f"a running calibration holds at least one score, not {n}")
        self.n = n
        self._by_arrival: OrderedDict[int, float] = OrderedDict()
        self._ascending: list[float] = []

    @classmethod
    def of_state(cls, n: int, arrivals: Array, scores: Array) -> Self:
        """The calibration that holds these scores; its own `arrivals` and `scores` make it again."""
        calibration = cls(n)
        if len(scores) > n:
            raise ValueError(f"there are {len(scores)} scores to calibrate with, more than {n}")
        check_scores("judging", scores)
        numbers, values = calibration._read(scores, arrivals)
        calibration._by_arrival.update(zip(numbers, values, strict=True))
        calibration._ascending = sorted(values)
        return calibration

    def __len__(self) -> int:
        return len(self._ascending)

    @property
    def arrivals(self) -> Array:
        """The arrivals whose scores are held, ascending, int64 (n_held,)."""
        return np.fromiter(self._by_arrival.keys(), np.int64, len(self))

    @property
    def scores(self) -> Array:
        """The scores held, by order of arrival, float64 (n_held,)."""
        return np.fromiter(self._by_arrival.values(), np.float64, len(self))

    @property
    def ascending(self) -> Array:
        """The scores held, the least normal first, float64 (n_held,)."""
        return np.array(self._ascending, np.float64)

    def p_values(self, scores: Array) -> Array:
        """The p-values of scores that do not join."""
        return conformal_p_values(scores, self.ascending)

    def judge(self, scores: Array, rate: float | None = None) -> Judgements:
        """As `judge_then_learn`, of scores that do not join."""
        lines = np.full(len(scores), self._line(rate))
        return Judgements(scores, self.p_values(scores), scores < lines, lines)

    def p_values_then_learn(self, scores: Array, arrivals: Array) -> Array:
        """One after another: the p-value of a score by those held, then it joins them and the oldest one leaves."""
        return self.judge_then_learn(scores, arrivals).p_values

    def judge_then_learn(self, scores: Array, arrivals: Array, rate: float | None = None) -> Judgements:
        """As `p_values_then_learn`, with verdicts: p-values of at most `rate`, or without one log-scores `line_below`.

        Examples
        --------
        >>> calibration = RunningCalibration(1000)
        >>> scores = np.append(np.linspace(-3, -2, 200), [-8.0, -2.5])
        >>> np.flatnonzero(calibration.judge_then_learn(scores, np.arange(202)).is_anomaly)
        array([200])
        """
        numbers, values = self._read(scores, arrivals)
        by_arrival, ascending = self._by_arrival, self._ascending
        p_values, lines = [], []
        for number, score in zip(numbers, values, strict=True):
            p_values.append((1 + bisect_right(ascending, score)) / (len(ascending) + 1))
            lines.append(self._line(rate))
            if len(ascending) == self.n:
                del ascending[bisect_left(ascending, by_arrival.popitem(last=False)[1])]
            insort(ascending, score)
            by_arrival[number] = score
            if number == 2 * _LEAST_TO_JUDGE - 1:  # the first rows had little to be judged by, and would be no measure
                self.forget(range(_LEAST_TO_JUDGE))
        given, line = np.array(values, np.float64), np.array(lines, np.float64)
        return Judgements(given, np.array(p_values, np.float64), given < line, line)

    def _line(self, rate: float | None) -> float:
        """The line below which are the scores to flag, by those held."""
        if rate is None:
            return line_below(self._ascending, AUTO_RATE)
        rank = _most_below(rate, len(self))
        return self._ascending[rank] if 0 <= rank < len(self) else -inf

    def forget(self, arrivals: Iterable[int]) -> None:
        """Take the scores of these arrivals out, of those that are still held."""
        for number in arrivals:
            score = self._by_arrival.pop(int(number), None)
            if score is not None:
                del self._ascending[bisect_left(self._ascending, score)]

    def _read(self, scores: Array, arrivals: Array) -> tuple[list[int], list[float]]:
        """Scores to come and their arrivals, checked."""
        numbers, values = np.asarray(arrivals, np.int64), np.asarray(scores, np.float64)
        if numbers.ndim != 1 or numbers.shape != values.shape:
            raise ValueError(f"there are {np.size(values)} scores for {np.size(numbers)} arrivals: give one for each")
        if np.isnan(values).any():
            raise ValueError(f"score {int(np.isnan(values).argmax())} is not a number")
        newest = next(reversed(self._by_arrival), None)
        if (np.diff(numbers) <= 0).any() or (newest is not None and numbers.size and numbers[0] <= newest):
            raise ValueError("arrivals must rise, from score to score and from call to call")
        return numbers.tolist(), values.tolist()
