"""Where two samples differ: a few boxes of one to three conditions whose share of the rows changed.

Boxes are found on one half of the rows and measured on the other, which avoids selection bias. The candidates are the
cells of all trees. The search refits the bounds of the best, drops conditions that add little, adds conditions that
gain more than noise would, and rounds the bounds. Categories are chosen one by one by their own gain: cuts of trees
separate them at random, and only indicate that the feature matters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from scipy.special import betaincinv, xlogy

from polyaforest.drift.comparison import Condition, Region, Share
from polyaforest.drift.evidence import LEVEL, MISSING, Axis, Corners, Grid, Levels, Mean, Split, TreePartition, mean_of
from polyaforest.kernels.arrays import NONE, Array

_FEW_VALUES = 8  # of a feature with so few values, a range of one is reported as that value
_MAX_CONDITIONS = 3
_N_CANDIDATES = 48  # cells that are refined, in each round
_N_PROMISING = 12  # of them to which conditions are added
_MAX_SEARCH_ROWS = 40_000  # rows that regions are found on
_ROUNDING_LOSS = 2.0  # gain that a region may lose by rounding a bound
_ROUNDING_REACH = (0.02, 0.005)  # share of all rows that rounding may move a bound across
_EQUAL_GAIN = 1.0  # gains that differ by less count as equal
_EXTRA_CATEGORY = 1.0  # penalty of each category after the first, beyond the choice among all
_MAX_NAMED = 64  # categories in a condition


class _Choice(NamedTuple):
    """Levels of a feature of categories: those named, or all others."""

    named: tuple[int, ...]
    others: bool = False


_Range: TypeAlias = tuple[int, int] | _Choice  # levels of a numeric feature, both ends included, or of categories
_Side: TypeAlias = tuple[int, _Range]  # a feature, and the range that a single condition leaves


class _Box(NamedTuple):
    """A box of levels: a range for each feature that has a condition."""

    ranges: dict[int, _Range]
    gain: float


def find_regions(
    partitions: Sequence[TreePartition], grid: Grid, rows: Array, split: Split, names: Sequence[str], most: int
) -> list[Region]:
    """Return the regions whose share changed, the clearest first; no interval of a change contains 0."""
    chosen = np.flatnonzero(split.folds == 0)
    chosen = chosen[:: -(-len(chosen) // _MAX_SEARCH_ROWS)]  # keeps the proportions of the samples
    is_measured = np.ones(len(rows), np.bool_)
    is_measured[chosen] = False
    search = _Search(partitions, grid, rows, split.labels, chosen, names)
    found: list[tuple[Condition, ...]] = []
    while len(found) < most and (conditions := search.next()) is not None:
        found.append(conditions)
    regions = [_measure(conditions, rows, split, is_measured, len(found)) for conditions in found]
    return [region for region in regions if region is not None]


class _Search:
    """Search for regions among rows; rows of the regions already found are left out."""

    def __init__(
        self,
        partitions: Sequence[TreePartition],
        grid: Grid,
        rows: Array,
        labels: Array,
        chosen: Array,
        names: Sequence[str],
    ) -> None:
        self.trees = [one._replace(leaves=one.leaves[chosen]) for one in partitions]
        self.axes, self.levels = grid.axes, grid.levels[chosen]
        self.rows, self.labels, self.names = rows[chosen], labels[chosen], names
        # the expected gain of noise by choosing a feature and a side, and by choosing a bound too
        self.choice = math.log(2 * len(grid.axes))
        self.penalty = self.choice + 2.0

    def next(self) -> tuple[Condition, ...] | None:
        """Return the best region among the remaining rows, and leave its rows out from then on."""
        simple = {}
        for box in self._candidates():
            better = self._refitted(self._simplified(self._refitted(box)))
            simple[str(better.ranges)] = better
        promising = sorted(simple.values(), key=self._net_gain, reverse=True)[:_N_PROMISING]
        best = max(map(self._extended, promising), key=self._net_gain, default=None)
        if best is None or self._net_gain(best) <= 0:
            return None
        conditions = self._rounded(self._smaller(best))
        is_out = ~holds(conditions, self.rows)
        self.trees = [one._replace(leaves=one.leaves[is_out]) for one in self.trees]
        self.levels, self.rows, self.labels = self.levels[is_out], self.rows[is_out], self.labels[is_out]
        return conditions

    def _net_gain(self, box: _Box) -> float:
        return box.gain - sum(map(self._penalty_of, _sides(box.ranges, self.axes)))

    def _penalty_of(self, side: _Side) -> float:
        """Return the expected gain of noise by the choice of a condition; each category named is a choice among all.

        Excluding categories costs more, because it says less.
        """
        k, part = side
        if not isinstance(part, _Choice):
            return self.penalty
        return self.choice + self.penalty * part.others + float(_penalties_of_names(len(part.named), self.axes[k]))

    def _smaller(self, box: _Box) -> _Box:
        """Return the complement of a box with a single bound if it holds fewer rows: the gain is the same."""
        sides = _sides(box.ranges, self.axes)
        if len(sides) != 1 or 2 * self._inside(box.ranges).sum() <= len(self.levels):
            return box
        ((k, part),) = sides
        axis = self.axes[k]
        if isinstance(part, _Choice):  # naming a category is clearer than excluding it
            return box
        low, high = part
        return box._replace(ranges={k: (high + 1, axis.highest) if low == axis.lowest else (axis.lowest, low - 1)})

    def _candidates(self) -> list[_Box]:
        """Return the cells with the highest gains, at most four on the same features."""
        marks = np.stack([self.labels == 1, self.labels == 0], axis=1).astype(np.uint8)
        gains = []
        for tree in self.trees:
            counts = tree.counts_of(marks)
            gains.append(gain(counts[:, 0], counts[:, 1], self._totals()))
        places = np.repeat(np.arange(len(gains)), [len(own) for own in gains])
        nodes = np.concatenate([np.arange(len(own)) for own in gains])
        order = np.argsort(-np.concatenate(gains), kind="stable")[: 4 * _N_CANDIDATES]
        boxes: dict[tuple[int, ...], list[_Box]] = {}
        for at in order.tolist():
            ranges = _ranges(self.trees[places[at]], int(nodes[at]), self.axes)
            if ranges:
                boxes.setdefault(tuple(sorted(ranges)), []).append(_Box(ranges, float(gains[places[at]][nodes[at]])))
        best = [box for alike in boxes.values() for box in alike[:4]]
        return sorted(best, key=lambda box: -box.gain)[:_N_CANDIDATES]

    def _simplified(self, box: _Box) -> _Box:
        """Drop conditions, the least useful first, while there are too many or one gains less than its penalty."""
        sides = _sides(box.ranges, self.axes)
        if not sides:
            return _Box({}, 0.0)
        fails = np.stack([~self._within(side) for side in sides], axis=1)
        while len(sides) > 1:
            n_failed = fails.sum(axis=1)
            penalties = np.array([self._penalty_of(side) for side in sides])
            gains = penalties + [self._gain(np.equal(n_failed, fails[:, c])) for c in range(len(sides))]
            best, is_too_many = int(np.argmax(gains)), len({k for k, _ in sides}) > _MAX_CONDITIONS
            if not is_too_many and gains[best] < self._gain(n_failed == 0):
                break
            sides.pop(best)
            fails = np.delete(fails, best, axis=1)
        ranges = _joined(sides, self.axes)
        return _Box(ranges, self._gain(np.equal(fails.sum(axis=1), 0)))

    def _extended(self, box: _Box) -> _Box:
        """Add the condition on another feature that gains most, while one gains more than its penalty."""
        while len(box.ranges) < _MAX_CONDITIONS:
            is_in = self._inside(box.ranges)
            sides = [self._best_side(k, is_in) for k in range(len(self.axes)) if k not in box.ranges]
            k, part, most = max(sides, key=lambda side: side[2], default=(0, (0, 0), -math.inf))
            grown = self._simplified(self._refitted(self._refitted(_Box({**box.ranges, k: part}, most))))
            if self._net_gain(grown) <= self._net_gain(box):
                break
            box = grown
        return box

    def _best_side(self, k: int, is_in: Array) -> tuple[int, _Range, float]:
        """Return the single condition on a feature with the highest gain among rows, and its gain."""
        axis = self.axes[k]
        if isinstance(axis, Corners):
            return k, *self._best_choice(k, axis, is_in)
        below, totals = self._counts_below(k, axis, is_in), self._totals()
        low, high = axis.lowest, axis.highest
        up_to = [counts[low + 1 : high + 1] for counts in below]  # each level but the highest
        at_most = gain(up_to[0], up_to[1], totals)
        at_least = gain(below[0][-1] - up_to[0], below[1][-1] - up_to[1], totals)  # from the next one on
        if not len(at_most):
            return k, (low, high), -math.inf
        best, other = int(np.argmax(at_most)), int(np.argmax(at_least))
        if at_most[best] >= at_least[other]:
            return k, (low, low + best), float(at_most[best])
        return k, (low + other + 1, high), float(at_least[other])

    def _refitted(self, box: _Box) -> _Box:
        """Move each bound in turn to where the gain is highest."""
        ranges = dict(box.ranges)
        for k, part in box.ranges.items():
            is_in, axis = self._inside({j: other for j, other in ranges.items() if j != k}), self.axes[k]
            if isinstance(axis, Corners):
                ranges[k] = self._best_choice(k, axis, is_in)[0]
            elif not isinstance(part, _Choice):
                ranges[k] = self._best_range(k, axis, part, is_in)
        return _Box(ranges, self._gain(self._inside(ranges)))

    def _inside(self, ranges: dict[int, _Range]) -> Array:
        """Return which rows fall in a box."""
        is_in: Array = np.ones(len(self.levels), np.bool_)
        for side in ranges.items():
            is_in = is_in & self._within(side)
        return is_in

    def _within(self, side: _Side) -> Array:
        """Return which rows fulfil a condition."""
        k, part = side
        levels = self.levels[:, k]
        if isinstance(part, _Choice):
            is_chosen = np.full(self.axes[k].n_levels, part.others)
            is_chosen[list(part.named)] = not part.others
            return np.asarray(is_chosen[levels])
        return np.asarray((levels >= part[0]) & (levels <= part[1]))

    def _best_choice(self, k: int, axis: Corners, is_in: Array) -> tuple[_Choice, float]:
        """Return the categories with the highest gain among rows, and their gain beyond the penalty of their names.

        Candidates are categories whose share rose, those whose share fell, the clearest first, and the complement of
        either. Only a single category may cover more than half of all rows. A category of unknown text cannot be named.
        """
        level, labels, totals = self.levels[is_in, k], self.labels[is_in], self._totals()
        of_a, of_b = (np.bincount(level[labels == own], minlength=axis.n_levels) for own in (1, 0))
        can_be_named = np.array([axis.has_gaps, *(text is not None for text in axis.texts)])
        is_risen, own_gains = of_b * totals[0] > of_a * totals[1], gain(of_a, of_b, totals)
        best, most = _Choice(()), -math.inf
        for is_wanted in (is_risen, ~is_risen):
            named = np.flatnonzero(can_be_named & is_wanted & (of_a + of_b > 0))
            named = named[np.argsort(-own_gains[named], kind="stable")][:_MAX_NAMED]
            if not len(named):
                continue
            penalties = _penalties_of_names(np.arange(1, len(named) + 1), axis)
            sums = [np.cumsum(counts[named]) for counts in (of_a, of_b)]
            rests = [counts.sum() - part for counts, part in zip((of_a, of_b), sums, strict=True)]
            for others, (n_a, n_b) in ((False, sums), (True, rests)):
                is_vague = (2 * (n_a + n_b) > len(self.labels)) & (others | (np.arange(len(named)) > 0))
                net_gains = np.where(is_vague, -math.inf, gain(n_a, n_b, totals) - penalties - self.penalty * others)
                at = int(np.argmax(net_gains))
                if net_gains[at] > most:
                    best, most = _Choice(tuple(named[: at + 1].tolist()), others), float(net_gains[at])
        return best, most

    def _best_range(self, k: int, axis: Levels, ends: tuple[int, int], is_in: Array) -> tuple[int, int]:
        """Return the range of levels of a feature with the highest gain, one bound after the other.

        Of bounds with about equal gains, return the tightest.
        """
        below, totals = self._counts_below(k, axis, is_in), self._totals()
        low, high = ends
        if high < axis.highest:
            of_a, of_b = (counts[low + 1 :] - counts[low] for counts in below)  # up to each level from `low` on
            high = low + int(_about_best(gain(of_a, of_b, totals))[0])
        if low > axis.lowest:
            of_a, of_b = (counts[high + 1] - counts[: high + 1] for counts in below)
            low = max(int(_about_best(gain(of_a, of_b, totals))[-1]), axis.lowest)
        if axis.has_gaps and (low == MISSING or high == axis.highest):  # the difference may only be missingness
            plain = (MISSING, MISSING) if low == MISSING else (MISSING + 1, axis.highest)
            ranges = np.array([plain, (low, high)])
            of_a, of_b = (counts[ranges[:, 1] + 1] - counts[ranges[:, 0]] for counts in below)
            gains = gain(of_a, of_b, totals)
            return plain if gains[0] >= gains[1] - _ROUNDING_LOSS else (low, high)
        return low, high

    def _counts_below(self, k: int, axis: Levels, is_in: Array) -> list[Array]:
        """Return, for both samples, the numbers of rows below each level of a feature, and their total."""
        level, labels, n_levels = self.levels[is_in, k], self.labels[is_in], axis.n_levels
        return [np.append(0, np.cumsum(np.bincount(level[labels == own], minlength=n_levels))) for own in (1, 0)]

    def _totals(self) -> tuple[int, int]:
        """Return the numbers of rows of A and B."""
        n_a = int(self.labels.sum())
        return n_a, len(self.labels) - n_a

    def _gain(self, is_in: Array) -> float:
        """Return the gain of a set of rows."""
        n_a = int(self.labels[is_in].sum())
        return float(gain(n_a, int(is_in.sum()) - n_a, self._totals()))

    def _rounded(self, box: _Box) -> tuple[Condition, ...]:
        """Return a box as conditions on values, with rounded bounds."""
        conditions = [_condition(k, self.names[k], self.axes[k], part) for k, part in sorted(box.ranges.items())]
        for at, one in enumerate(conditions):
            if one.categories is not None or one.is_one_value:
                continue
            others = holds((*conditions[:at], *conditions[at + 1 :]), self.rows)
            conditions[at] = self._rounded_bound(self._rounded_bound(one, others, "low"), others, "high")
        return tuple(conditions)

    def _rounded_bound(self, one: Condition, others: Array, side: str) -> Condition:
        """Return a condition with one bound rounded, unless the region would lose too much of its gain."""
        bound, column = float(getattr(one, side)), self.rows[:, one.feature]
        if not math.isfinite(bound):
            return one
        before = self._gain(others & one.holds_coded(column))
        for interval in _rounding_intervals(column, bound):
            short = shortest(bound, *interval)
            tried = one._replace(low=short) if side == "low" else one._replace(high=short)
            if self._gain(others & tried.holds_coded(column)) >= before - _ROUNDING_LOSS:
                return tried
        return one


def _penalties_of_names(n: Any, axis: Levels) -> Array:
    """Return the expected gain of noise by the choice of `n` categories."""
    return np.asarray(n * math.log(axis.n_levels) + (n - 1) * _EXTRA_CATEGORY)


def _about_best(gains: Array) -> Array:
    """Return the places of the largest gain, and of those about equal to it."""
    return np.flatnonzero(gains >= gains.max() - _EQUAL_GAIN)


def gain(n_a: Any, n_b: Any, totals: Sequence[int]) -> Array:
    """Return the log-likelihood ratio, two shares against one, of a set with `n_a` rows of A and `n_b` of B."""
    (total_a, total_b), n, total = totals, n_a + n_b, sum(totals)
    own = xlogy(n_a, n_a) + xlogy(n_b, n_b) + xlogy(total_a - n_a, total_a - n_a) + xlogy(total_b - n_b, total_b - n_b)
    both = xlogy(n, n) + xlogy(total - n, total - n)
    sizes = xlogy(total_a, total_a) + xlogy(total_b, total_b) - xlogy(total, total)
    value: Array = np.maximum(own - both - sizes, 0.0)
    return value


def holds(conditions: Sequence[Condition], rows: Array) -> Array:
    """Return which rows fulfil all conditions, given categories by their codes."""
    is_in: Array = np.ones(len(rows), np.bool_)
    for one in conditions:
        is_in = is_in & one.holds_coded(rows[:, one.feature])
    return is_in


# ---- boxes -----------------------------------------------------------------------------------------------------------


def _ranges(tree: TreePartition, node: int, axes: Sequence[Axis | Corners]) -> dict[int, _Range]:
    """Return the ranges of levels of a node, by the cuts above it."""
    ranges: dict[int, tuple[int, int]] = {}
    chosen: dict[int, Array] = {}
    while tree.parent[node] != NONE:
        above = int(tree.parent[node])
        k, cut, is_left = int(tree.feature[above]), float(tree.cut[above]), tree.left[above] == node
        axis = axes[k]
        if isinstance(axis, Corners):
            chosen[k] = chosen.get(k, True) & (axis.answers_yes(cut) != is_left)
        else:
            low, high = ranges.get(k, (axis.lowest, axis.highest))
            last = axis.last_below(cut)
            ranges[k] = (low, min(high, last)) if is_left else (max(low, last + 1), high)
        node = above
    return {**ranges, **{k: _Choice(tuple(np.flatnonzero(levels).tolist())) for k, levels in chosen.items()}}


def _sides(ranges: dict[int, _Range], axes: Sequence[Axis | Corners]) -> list[_Side]:
    """Return the conditions of a box, each as a feature and a range."""
    sides: list[_Side] = []
    for k, part in ranges.items():
        if isinstance(part, _Choice):
            sides.append((k, part))
            continue
        axis, (low, high) = axes[k], part
        if low > axis.lowest:
            sides.append((k, (low, axis.highest)))
        if high < axis.highest:
            sides.append((k, (axis.lowest, high)))
    return sides


def _joined(sides: Sequence[_Side], axes: Sequence[Axis | Corners]) -> dict[int, _Range]:
    """Return the box with these conditions."""
    ranges: dict[int, _Range] = {}
    for k, part in sides:
        before = ranges.get(k, (axes[k].lowest, axes[k].highest))
        if isinstance(part, _Choice) or isinstance(before, _Choice):
            ranges[k] = part
        else:
            ranges[k] = (max(before[0], part[0]), min(before[1], part[1]))
    return ranges


def _condition(k: int, name: str, axis: Axis | Corners, part: _Range) -> Condition:
    """Return a range of levels as a condition on values."""
    if isinstance(axis, Corners):
        assert isinstance(part, _Choice)
        return _condition_on_categories(k, name, axis, part)
    assert not isinstance(part, _Choice)
    low, high = part
    least = -np.inf if low <= MISSING + 1 else float(axis.edges[low - 2])
    most = np.inf if high >= axis.highest else float(axis.edges[high - 1]) if high > MISSING else -np.inf
    if 1 < len(axis.edges) <= _FEW_VALUES and max(low, MISSING + 1) == high:
        most = float(axis.edges[high - 1])
        least = math.nextafter(most, -math.inf)
    return Condition(k, name, least, most, values=high > MISSING, missing=axis.has_gaps and low == MISSING)


def _condition_on_categories(k: int, name: str, axis: Corners, choice: _Choice) -> Condition:
    """Return a choice of categories as a condition on their texts."""
    texts = [axis.texts[level - 1] for level in choice.named if level != MISSING]
    named = tuple(text for text in texts if text is not None)
    is_missing_in = axis.has_gaps and (MISSING in choice.named) != choice.others
    return Condition(
        k, name, -np.inf, np.inf, bool(named) or choice.others, is_missing_in, categories=named, others=choice.others
    )


# ---- rounding --------------------------------------------------------------------------------------------------------


def _rounding_intervals(column: Array, bound: float) -> list[tuple[float, float]]:
    """Return intervals that a bound may move within, the widest first; within the last, no row changes sides."""
    present = np.sort(column[~np.isnan(column)])
    place, last = int(np.searchsorted(present, bound, side="right")), len(present) - 1
    intervals = []
    for share in _ROUNDING_REACH:
        reach = int(share * len(column))
        intervals.append((float(present[max(place - 1 - reach, 0)]), float(present[min(place + reach, last)])))
    return [*intervals, (bound, float(present[place]) if place <= last else math.inf)]


def shortest(value: float, low: float, high: float) -> float:
    """Return `value` rounded to the fewest digits with which it stays within ``[low, high)``.

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
    """Measure the shares of a region on held-out rows; return None if they may be equal."""
    is_in = holds(conditions, rows).astype(np.float64)
    of_a, of_b = (mean_of(is_in, split, label, smooth=True, among=among) for label in (1, 0))
    level = 1 - (1 - LEVEL) / (1 + n_regions)  # one more, because `total_variation` chooses among them
    change = _change(of_a, of_b, level)
    if change.low <= 0 <= change.high:
        return None
    return Region(conditions, _share(of_a, LEVEL), _share(of_b, LEVEL), change)


def _share(mean: Mean, level: float) -> Share:
    """Return a share with its equal-tailed interval, by Jeffreys' prior on the effective number of rows."""
    n = mean.n / mean.design
    a, b = mean.value * n + 0.5, (1 - mean.value) * n + 0.5
    low = float(betaincinv(a, b, (1 - level) / 2)) if mean.value > 0 else 0.0
    high = float(betaincinv(a, b, (1 + level) / 2)) if mean.value < 1 else 1.0
    return Share(mean.value, low, high)


def _change(before: Mean, after: Mean, level: float) -> Share:
    """Return the difference of two shares with its interval, by Newcombe's method."""
    old, new = _share(before, level), _share(after, level)
    value = new.value - old.value
    low = value - np.hypot(new.value - new.low, old.high - old.value)
    high = value + np.hypot(new.high - new.value, old.value - old.low)
    return Share(value, float(low), float(high))
