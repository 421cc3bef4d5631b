"""Where two samples differ: few boxes of one to three conditions whose share of the rows changed.

Boxes are found on one half of the rows and measured on the other, so that the choice among many does not flatter them.
The candidates are the cells of all trees; the best are stripped of the conditions that they can do without, their
bounds are moved to where they tell the samples apart best, conditions that tell more are added, and bounds are rounded
as far as that costs little.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import betaincinv, xlogy

from polyaforest.core.arrays import NONE, Array
from polyaforest.drift._axes import MISSING, Axis, Grid
from polyaforest.drift._comparison import Condition, Region, Share, holds
from polyaforest.drift._effects import LEVEL, Mean, Split, mean_of
from polyaforest.drift._evidence import Partition

_FEW = 8  # values of a feature up to which a range of one is told as that value
_MOST_CONDITIONS = 3
_CANDIDATES = 48  # cells that are looked at closely, in each round
_PROMISING = 12  # of them to which conditions are added
_MOST_FOUND_ON = 40_000  # rows that regions are found on
_ROUNDING = 2.0  # what rounding a bound may cost of the gain of a region
_WIDE = (0.02, 0.005)  # of all rows: how far rounding may move a bound
_ALIKE = 1.0  # gains that differ by less are about the same


class _Box(NamedTuple):
    """A box of levels, both ends included: a range for each feature that has a condition."""

    ranges: dict[int, tuple[int, int]]
    gain: float


def find_regions(
    partitions: Sequence[Partition], grid: Grid, rows: Array, split: Split, names: Sequence[str], most: int
) -> list[Region]:
    """Return the regions whose share changed, the clearest first; none of their intervals of change holds 0."""
    chosen = np.flatnonzero(split.folds == 0)
    chosen = chosen[:: -(-len(chosen) // _MOST_FOUND_ON)]  # as many of both samples as they have in all
    is_measured = np.ones(len(rows), np.bool_)
    is_measured[chosen] = False
    search = _Search(partitions, grid, rows, split.labels, chosen, names)
    found: list[tuple[Condition, ...]] = []
    while len(found) < most and (conditions := search.next()) is not None:
        found.append(conditions)
    regions = [_measure(conditions, rows, split, is_measured, len(found)) for conditions in found]
    return [region for region in regions if region is not None]


class _Search:
    """The rows that regions are found on; those in regions already found are left out."""

    def __init__(
        self,
        partitions: Sequence[Partition],
        grid: Grid,
        rows: Array,
        labels: Array,
        chosen: Array,
        names: Sequence[str],
    ) -> None:
        self.trees = [one._replace(leaves=one.leaves[chosen]) for one in partitions]
        self.axes, self.levels = grid.axes, grid.levels[chosen]
        self.rows, self.labels, self.names = rows[chosen], labels[chosen], names
        # what noise gains by the choice of a feature, a side and a bound
        self.price = math.log(2 * len(grid.axes)) + 2.0

    def next(self) -> tuple[Condition, ...] | None:
        """Return the best region among the rows that are left, and leave its rows out from now on."""
        simple = {}
        for box in self._candidates():
            better = self._moved(self._stripped(self._moved(box)))
            simple[str(better.ranges)] = better
        promising = sorted(simple.values(), key=self._worth, reverse=True)[:_PROMISING]
        best = max(map(self._extended, promising), key=self._worth, default=None)
        if best is None or self._worth(best) <= 0:
            return None
        conditions = self._rounded(self._smaller(best))
        is_out = ~holds(conditions, self.rows)
        self.trees = [one._replace(leaves=one.leaves[is_out]) for one in self.trees]
        self.levels, self.rows, self.labels = self.levels[is_out], self.rows[is_out], self.labels[is_out]
        return conditions

    def _worth(self, box: _Box) -> float:
        return box.gain - self.price * len(_sides(box.ranges, self.axes))

    def _smaller(self, box: _Box) -> _Box:
        """Return a box of a single bound, or what lies beyond the bound if fewer rows do: either tells as much."""
        sides = _sides(box.ranges, self.axes)
        if len(sides) != 1 or 2 * self._inside(box.ranges).sum() <= len(self.levels):
            return box
        ((k, low, high),) = sides
        axis = self.axes[k]
        return box._replace(ranges={k: (high + 1, axis.highest) if low == axis.lowest else (axis.lowest, low - 1)})

    def _candidates(self) -> list[_Box]:
        """Return the cells that tell the samples apart best, one of each kind."""
        marks = np.stack([self.labels == 1, self.labels == 0], axis=1).astype(np.uint8)
        gains = []
        for tree in self.trees:
            counts = tree.counts_of(marks)
            gains.append(gain(counts[:, 0], counts[:, 1], self._totals()))
        places = np.repeat(np.arange(len(gains)), [len(own) for own in gains])
        nodes = np.concatenate([np.arange(len(own)) for own in gains])
        order = np.argsort(-np.concatenate(gains), kind="stable")[: 4 * _CANDIDATES]
        boxes: dict[tuple[int, ...], list[_Box]] = {}
        for at in order.tolist():
            ranges = _ranges(self.trees[places[at]], int(nodes[at]), self.axes)
            if ranges:
                boxes.setdefault(tuple(sorted(ranges)), []).append(_Box(ranges, float(gains[places[at]][nodes[at]])))
        best = [box for alike in boxes.values() for box in alike[:4]]
        return sorted(best, key=lambda box: -box.gain)[:_CANDIDATES]

    def _stripped(self, box: _Box) -> _Box:
        """Drop conditions, the one that costs least first, while there are too many or they are not worth their price.

        A row fails a box without one condition if it fails any other.
        """
        sides = _sides(box.ranges, self.axes)
        if not sides:
            return _Box({}, 0.0)
        fails = np.stack([~_within(self.levels[:, k], low, high) for k, low, high in sides], axis=1)
        while len(sides) > 1:
            n_failed = fails.sum(axis=1)
            gains = [self._gain(np.equal(n_failed, fails[:, c])) for c in range(len(sides))]
            best, is_too_many = int(np.argmax(gains)), len({k for k, _, _ in sides}) > _MOST_CONDITIONS
            if not is_too_many and gains[best] < self._gain(n_failed == 0) - self.price:
                break
            sides.pop(best)
            fails = np.delete(fails, best, axis=1)
        ranges = _joined(sides, self.axes)
        return _Box(ranges, self._gain(np.equal(fails.sum(axis=1), 0)))

    def _extended(self, box: _Box) -> _Box:
        """Add the condition on another feature that gains most, as long as one is worth its price."""
        while len(box.ranges) < _MOST_CONDITIONS:
            is_in = self._inside(box.ranges)
            sides = [self._best_side(k, is_in) for k in range(len(self.axes)) if k not in box.ranges]
            k, ends, most = max(sides, key=lambda side: side[2], default=(0, (0, 0), -math.inf))
            grown = self._stripped(self._moved(self._moved(_Box({**box.ranges, k: ends}, most))))
            if self._worth(grown) <= self._worth(box):
                break
            box = grown
        return box

    def _best_side(self, k: int, is_in: Array) -> tuple[int, tuple[int, int], float]:
        """Return the single bound on a feature that tells the samples apart best among rows, with its gain."""
        below, totals = self._counts_below(k, is_in), self._totals()
        low, high = self.axes[k].lowest, self.axes[k].highest
        up_to = [counts[low + 1 : high + 1] for counts in below]  # each level but the highest
        at_most = gain(up_to[0], up_to[1], totals)
        at_least = gain(below[0][-1] - up_to[0], below[1][-1] - up_to[1], totals)  # from the next one on
        if not len(at_most):
            return k, (low, high), -math.inf
        best, other = int(np.argmax(at_most)), int(np.argmax(at_least))
        if at_most[best] >= at_least[other]:
            return k, (low, low + best), float(at_most[best])
        return k, (low + other + 1, high), float(at_least[other])

    def _moved(self, box: _Box) -> _Box:
        """Move each bound in turn to where the samples are told apart best."""
        ranges = dict(box.ranges)
        for k in list(ranges):
            others = {j: ends for j, ends in ranges.items() if j != k}
            ranges[k] = self._best_range(k, ranges[k], self._inside(others))
        return _Box(ranges, self._gain(self._inside(ranges)))

    def _inside(self, ranges: dict[int, tuple[int, int]]) -> Array:
        """Return which rows lie in a box."""
        is_in: Array = np.ones(len(self.levels), np.bool_)
        for k, ends in ranges.items():
            is_in = is_in & _within(self.levels[:, k], *ends)
        return is_in

    def _best_range(self, k: int, ends: tuple[int, int], is_in: Array) -> tuple[int, int]:
        """Return the range of levels of a feature that tells the samples apart best, one bound after the other.

        Of bounds that do so about equally well it has the tightest.
        """
        axis, below, totals = self.axes[k], self._counts_below(k, is_in), self._totals()
        low, high = ends
        if high < axis.highest:
            of_a, of_b = (counts[low + 1 :] - counts[low] for counts in below)  # up to each level from `low` on
            high = low + int(_about_best(gain(of_a, of_b, totals))[0])
        if low > axis.lowest:
            of_a, of_b = (counts[high + 1] - counts[: high + 1] for counts in below)
            low = max(int(_about_best(gain(of_a, of_b, totals))[-1]), axis.lowest)
        if axis.has_gaps and (
            low == MISSING or high == axis.highest
        ):  # whether the value is missing may be all there is to it
            plain = (MISSING, MISSING) if low == MISSING else (MISSING + 1, axis.highest)
            ranges = np.array([plain, (low, high)])
            of_a, of_b = (counts[ranges[:, 1] + 1] - counts[ranges[:, 0]] for counts in below)
            gains = gain(of_a, of_b, totals)
            return plain if gains[0] >= gains[1] - _ROUNDING else (low, high)
        return low, high

    def _counts_below(self, k: int, is_in: Array) -> list[Array]:
        """Return for both samples how many of some rows lie below each level of a feature, and below the end."""
        level, labels, n_levels = self.levels[is_in, k], self.labels[is_in], self.axes[k].highest + 1
        return [np.append(0, np.cumsum(np.bincount(level[labels == own], minlength=n_levels))) for own in (1, 0)]

    def _totals(self) -> tuple[int, int]:
        """Return the rows of A and B."""
        n_a = int(self.labels.sum())
        return n_a, len(self.labels) - n_a

    def _gain(self, is_in: Array) -> float:
        """Return how well a set of rows tells the samples apart."""
        n_a = int(self.labels[is_in].sum())
        return float(gain(n_a, int(is_in.sum()) - n_a, self._totals()))

    def _rounded(self, box: _Box) -> tuple[Condition, ...]:
        """Return a box as conditions on values, with bounds in as few digits as will do."""
        conditions = [_condition(k, self.names[k], self.axes[k], *ends) for k, ends in sorted(box.ranges.items())]
        for at, one in enumerate(conditions):
            if one.is_one_value:
                continue
            others = holds((*conditions[:at], *conditions[at + 1 :]), self.rows)
            conditions[at] = self._rounded_bound(self._rounded_bound(one, others, "low"), others, "high")
        return tuple(conditions)

    def _rounded_bound(self, one: Condition, others: Array, side: str) -> Condition:
        """Return a condition with one bound rounded, unless that loses too much of the gain of the whole region."""
        bound, column = float(getattr(one, side)), self.rows[:, one.feature]
        if not math.isfinite(bound):
            return one
        before = self._gain(others & one.holds(column))
        for window in _windows(column, bound):
            short = shortest(bound, *window)
            tried = one._replace(low=short) if side == "low" else one._replace(high=short)
            if self._gain(others & tried.holds(column)) >= before - _ROUNDING:
                return tried
        return one


def _about_best(gains: Array) -> Array:
    """Return the places of the largest gain, and of those that are about as large."""
    return np.flatnonzero(gains >= gains.max() - _ALIKE)


def gain(n_a: Any, n_b: Any, totals: Sequence[int]) -> Array:
    """Return the log-likelihood ratio of a set that holds so many rows of A and B: two shares against one."""
    (total_a, total_b), n, total = totals, n_a + n_b, sum(totals)
    own = xlogy(n_a, n_a) + xlogy(n_b, n_b) + xlogy(total_a - n_a, total_a - n_a) + xlogy(total_b - n_b, total_b - n_b)
    both = xlogy(n, n) + xlogy(total - n, total - n)
    sizes = xlogy(total_a, total_a) + xlogy(total_b, total_b) - xlogy(total, total)
    value: Array = np.maximum(own - both - sizes, 0.0)
    return value


# ---- boxes -----------------------------------------------------------------------------------------------------------


def _ranges(tree: Partition, node: int, axes: Sequence[Axis]) -> dict[int, tuple[int, int]]:
    """Return the ranges of levels that the cuts above a node leave to it."""
    ranges: dict[int, tuple[int, int]] = {}
    while tree.parent[node] != NONE:
        above = int(tree.parent[node])
        k = int(tree.feature[above])
        low, high = ranges.get(k, (axes[k].lowest, axes[k].highest))
        last = axes[k].last_below(float(tree.cut[above]))
        ranges[k] = (low, min(high, last)) if tree.left[above] == node else (max(low, last + 1), high)
        node = above
    return ranges


def _sides(ranges: dict[int, tuple[int, int]], axes: Sequence[Axis]) -> list[tuple[int, int, int]]:
    """Return the bounds of a box one by one: a feature and the range that the bound alone leaves."""
    sides = []
    for k, (low, high) in ranges.items():
        if low > axes[k].lowest:
            sides.append((k, low, axes[k].highest))
        if high < axes[k].highest:
            sides.append((k, axes[k].lowest, high))
    return sides


def _joined(sides: Sequence[tuple[int, int, int]], axes: Sequence[Axis]) -> dict[int, tuple[int, int]]:
    """Return the box that has these bounds."""
    ranges: dict[int, tuple[int, int]] = {}
    for k, low, high in sides:
        before = ranges.get(k, (axes[k].lowest, axes[k].highest))
        ranges[k] = (max(before[0], low), min(before[1], high))
    return ranges


def _within(levels: Array, low: int, high: int) -> Array:
    is_in: Array = (levels >= low) & (levels <= high)
    return is_in


def _condition(k: int, name: str, axis: Axis, low: int, high: int) -> Condition:
    """Return a range of levels as a condition on values."""
    least = -np.inf if low <= MISSING + 1 else float(axis.edges[low - 2])
    most = np.inf if high >= axis.highest else float(axis.edges[high - 1]) if high > MISSING else -np.inf
    if 1 < len(axis.edges) <= _FEW and max(low, MISSING + 1) == high:
        most = float(axis.edges[high - 1])
        least = math.nextafter(most, -math.inf)
    return Condition(k, name, least, most, values=high > MISSING, missing=axis.has_gaps and low == MISSING)


# ---- bounds in few digits --------------------------------------------------------------------------------------------


def _windows(column: Array, bound: float) -> list[tuple[float, float]]:
    """Return ranges within which a bound may be moved, the widest first; within the last it makes no difference."""
    present = np.sort(column[~np.isnan(column)])
    place, last = int(np.searchsorted(present, bound, side="right")), len(present) - 1
    windows = []
    for share in _WIDE:
        reach = int(share * len(column))
        windows.append((float(present[max(place - 1 - reach, 0)]), float(present[min(place + reach, last)])))
    return [*windows, (bound, float(present[place]) if place <= last else math.inf)]


def shortest(value: float, low: float, high: float) -> float:
    """Return the number of fewest digits from `low` up to, but not including, `high`: the nearest to `value`.

    Examples
    --------
    >>> shortest(3.14159, 3.1, 3.2), shortest(3.14159, 3.0, 3.5), shortest(0.0312, 0.03, 0.04)
    (3.1, 3.0, 0.03)
    """
    for digits in range(1, 18):
        rounded = float(f"{value:.{digits - 1}e}")
        if low <= rounded < high:
            return rounded
    return value


# ---- measuring -------------------------------------------------------------------------------------------------------


def _measure(
    conditions: tuple[Condition, ...], rows: Array, split: Split, among: Array, n_regions: int
) -> Region | None:
    """Measure the shares of a region on rows it was not found on; None if they may be the same."""
    is_in = holds(conditions, rows).astype(np.float64)
    of_a, of_b = (mean_of(is_in, split, label, smooth=True, among=among) for label in (1, 0))
    level = 1 - (1 - LEVEL) / (1 + n_regions)  # one more, for the bound of the distance that may choose among them
    change = _change(of_a, of_b, level)
    if change.low <= 0 <= change.high:
        return None
    return Region(conditions, _share(of_a, LEVEL), _share(of_b, LEVEL), change)


def _share(mean: Mean, level: float) -> Share:
    """Return a share with its equal-tailed interval, by Jeffreys' prior; blocks count for fewer rows."""
    n = mean.n / mean.design
    a, b = mean.value * n + 0.5, (1 - mean.value) * n + 0.5
    low = float(betaincinv(a, b, (1 - level) / 2)) if mean.value > 0 else 0.0
    high = float(betaincinv(a, b, (1 + level) / 2)) if mean.value < 1 else 1.0
    return Share(mean.value, low, high)


def _change(before: Mean, after: Mean, level: float) -> Share:
    """Return the difference of two shares with its interval, by Newcombe's rule from those of the shares."""
    old, new = _share(before, level), _share(after, level)
    value = new.value - old.value
    low = value - np.hypot(new.value - new.low, old.high - old.value)
    high = value + np.hypot(new.high - new.value, old.value - old.low)
    return Share(value, float(low), float(high))
