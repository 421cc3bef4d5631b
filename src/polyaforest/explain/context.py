"""The reference that explanations compare rows with, and queries of a forest about one row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import nan
from typing import NamedTuple, Protocol

import numpy as np
from scipy.special import betaincinv

from polyaforest.forest import attribute, posterior, score
from polyaforest.forest.pairs import RarePair
from polyaforest.forest.point_store import Key
from polyaforest.kernels.arrays import LEAST_LOG, NONE, Array, Forest, Posterior
from polyaforest.kernels.attribution import HIGH, LOW
from polyaforest.kernels.boxes import answers
from polyaforest.tables.categories import Categories
from polyaforest.util import numbers

MOST_ROWS = 512  # rows to compute quantiles from
_PAIRS = 200  # pairs of a tree and a point that estimate the typical attributions, to about 0.2 bits in total
_GOLDEN = (5**0.5 - 1) / 2  # its multiples are spread evenly modulo 1
_MOST_LEAVES = 4096  # leaves to estimate the distribution of points from
N_QUANTILES = 41
_SHARES = np.linspace(0, 1, N_QUANTILES)  # levels of the quantiles
_LOW, _MIDDLE, _HIGH = 2, N_QUANTILES // 2, N_QUANTILES - 3  # quantiles that enclose nine points in ten; the median
_INTERVAL = np.array([0.05, 0.95])  # quantiles of the posterior of a share
_AGREED = 0.9  # share of a side's bits, over trees, beyond the bound of a region
_STEPS_BEYOND = 9  # values tried between the known ones and the row's own
_STEPS_BETWEEN = 8  # values tried between the last normal and the first anomalous one, in two rounds
_NEIGHBOURS, _SIMILAR = 16, 3  # nearest points to score, and normal points to show
SAME = 2  # the side of a condition on a category: equality
_MOST_TRIED = 32  # categories of a column to try, most common first
_MOST_MASKS = 256  # columns of truth values to keep, of categories counted in other rows
_RARER = 3.0  # a pair of categories is reported if it is so many times rarer than under independence


class Reference(NamedTuple):
    """The distribution of the points."""

    quantiles: Array  # (41, D): quantiles at equally spaced levels; NaN for categories
    n_known: int  # points that quantiles and shares are estimated from
    common: dict[int, Array] = {}  # noqa: RUF012 -- codes of each categorical column, most common first
    is_count: Array | None = None  # bool (D,): whether all values are whole and not negative; None if unknown


def quantiles_of(rows: Array, counts: Array | None = None) -> Array:
    """Return quantiles of each feature, (41, D); `counts` are multiplicities of rows."""
    if counts is None:
        chosen = spread_out(rows)
        quantile = np.nanquantile if np.isnan(chosen).any() else np.quantile  # the latter is faster
        return quantile(chosen, _SHARES, axis=0)
    order = np.argsort(rows, axis=0)
    middles = np.cumsum(counts[order], axis=0) - 0.5 * counts[order]
    columns = zip(middles.T, np.take_along_axis(rows, order, axis=0).T, strict=True)
    return np.stack([np.interp(_SHARES * counts.sum(), middle, column) for middle, column in columns], axis=1)


def spread_out(rows: Array, most: int = MOST_ROWS) -> Array:
    """Return at most `most` rows, evenly spaced."""
    return rows if len(rows) <= most else rows[np.linspace(0, len(rows) - 1, most).astype(int)]


def common_codes(forest: Forest, rows: Array | None) -> dict[int, Array]:
    """Return the codes of each categorical column that occur in rows, most common first."""
    if rows is None:
        return {}
    n_numeric = forest.weights.shape[1] - int(forest.n_categories[0])
    return dict(enumerate(score.known_categories(forest, rows, most=len(rows)), n_numeric))


def derive(forest: Forest, world: Array, points: Array | None, quantiles: Array | None) -> Reference:
    """Derive the reference from `points`, or from the counts of the trees if no points are held."""
    n_known = _most_counted(forest)
    if not n_known:
        return Reference(np.zeros((len(_SHARES), forest.weights.shape[1])), 0)
    if points is not None:
        known = quantiles_of(points) if quantiles is None else quantiles
        return Reference(known, max(len(points), n_known), is_count=numbers.are_counts(points))
    lower, upper, counts = _counted_boxes(forest, world)
    if not (lower < upper).any():
        n_known = max(len(np.unique(lower, axis=0)), n_known)
    return Reference(quantiles_of(_middles(lower, upper), counts) if quantiles is None else quantiles, n_known)


def typical_of_points(forest: Forest, points: Array, derive: Callable[[Array], Posterior], lifetimes: Array) -> Array:
    """Return the mean attributions of points over trees, (2, D).

    Each tree attributes a different subset; the mean is nearly as accurate. `derive` returns the posterior along the
    paths of the rows of each tree.
    """
    n_trees, n_points = len(forest.left), len(points)
    if not n_points:
        return np.zeros((2, forest.weights.shape[1]))
    n_own = min(-(-_PAIRS // n_trees), n_points)
    places = np.tile(np.arange(n_own), n_trees)
    if n_own < n_points:
        places = (np.arange(len(places)) * _GOLDEN % 1 * n_points).astype(int)
    rows = points[places].reshape(n_trees, n_own, -1)
    return attribute.attribute_own_rows(forest, derive(rows), rows, lifetimes)


def typical_of_trees(forest: Forest, known: Posterior, lifetimes: Array) -> Array:
    """Return the mean attributions of the points that the trees have counted, (2, D).

    If all leaves are single points, attribute those points; otherwise average over the leaves.
    """
    if not _most_counted(forest):
        return np.zeros((2, forest.weights.shape[1]))
    lower, upper, _ = _counted_boxes(forest, known.world)
    if (lower < upper).any() or not forest.lower.shape[2]:
        return attribute.attribute_counted(forest, known, lifetimes)
    distinct = np.ascontiguousarray(spread_out(np.unique(_middles(lower, upper), axis=0)))
    sides, _ = attribute.attribute_rows(forest, known, distinct, lifetimes, 1)
    return np.asarray(sides.mean(axis=0))


def _most_counted(forest: Forest) -> int:
    """Return the largest number of points that a tree has counted."""
    if posterior.is_empty(forest):
        return 0
    return int((forest.counts[np.arange(len(forest.root)), forest.root] + forest.outside).max())


def _counted_boxes(forest: Forest, world: Array) -> tuple[Array, Array, Array]:
    """Return lower and upper bounds of the leaves with points, (leaves, D) each, and their counts."""
    trees, nodes = _leaves_with_points(forest)
    return *_boxes_of(forest, world, trees, nodes), forest.counts[trees, nodes]


def _middles(lower: Array, upper: Array) -> Array:
    """Return the middles of boxes."""
    return lower + 0.5 * (upper - lower)


def _leaves_with_points(forest: Forest) -> tuple[Array, Array]:
    """Return trees and nodes of leaves with points, at most `_MOST_LEAVES`."""
    trees, nodes = np.nonzero((forest.left == NONE) & (forest.counts > 0))
    return spread_out(trees, _MOST_LEAVES), spread_out(nodes, _MOST_LEAVES)


def _boxes_of(forest: Forest, world: Array, trees: Array, nodes: Array) -> tuple[Array, Array]:
    """Return lower and upper bounds of the boxes of leaves, or of the cells of a process, (leaves, D) each."""
    if forest.lower.shape[2]:
        return forest.lower[trees, nodes], forest.upper[trees, nodes]
    lower, upper = world[0, trees], world[1, trees]
    leaves, above = np.arange(len(trees)), forest.parent[trees, nodes]
    while (above != NONE).any():
        is_below = above != NONE
        leaves, trees, nodes, above = leaves[is_below], trees[is_below], nodes[is_below], above[is_below]
        delta, xi, is_left = forest.feature[trees, above], forest.cut[trees, above], forest.left[trees, above] == nodes
        low, high = lower[leaves, delta], upper[leaves, delta]
        end, start = np.minimum(high, xi), np.maximum(low, xi)
        asked = np.flatnonzero(delta >= lower.shape[1] - forest.n_categories[0])  # cuts of categories are questions
        if asked.size:
            end[asked], start[asked] = answers(low[asked], high[asked], xi[asked])
        upper[leaves, delta], lower[leaves, delta] = np.where(is_left, end, high), np.where(is_left, low, start)
        nodes, above = above, forest.parent[trees, above]
    return lower, upper


# ---- queries about one row ---------------------------------------------------------------------------------------


class HeldPoints(NamedTuple):
    """The points that a stream holds, and their keys."""

    points: Array
    keys: Sequence[Key]
    is_unknown: Array | bool = False  # bool (D,): columns without a value so far, which contain a placeholder


class RegionCondition(NamedTuple):
    """A feature above a bound or up to it, or a category equal to it."""

    feature: int
    side: int  # LOW, HIGH or SAME
    bound: float


class CategoryCount(NamedTuple):
    """How often a category occurs: in all rows, or in rows with the same category in column `given`."""

    n: int
    n_rows: int
    given: int | None = None


class PairCount(NamedTuple):
    """How often a rare pair of values occurs among the rows with the second one.

    Both are categories, or the first is a number above `low` and at most `high`.
    """

    first: int
    second: int
    low: float
    high: float
    n: int
    n_rows: int


class ExplainingForest(Protocol):
    """A forest that never changes, as explanations need it."""

    forest: Forest

    @property
    def reference(self) -> Reference:
        """The distribution of the points."""

    def posterior(self) -> Posterior:
        """Return log-masses of every node."""

    @property
    def held(self) -> HeldPoints | None:
        """The points and their keys; None if no points are held."""

    @property
    def points(self) -> Array | None:
        """The points without their keys."""

    @property
    def rows(self) -> Array | None:
        """Rows to count categories in; None if no rows are held."""

    def rarest_pair(self, row: Array) -> RarePair | None:
        """Return the pair of values of a row that costs bits because it is rare."""


@dataclass(frozen=True)
class Snapshot:
    """A forest at the time of a score, to answer questions about explained rows.

    Rows and features are in the order of the table.
    """

    source: ExplainingForest
    score: Callable[[Array], Array]
    lifetimes: Array  # as in `attribute.attribute_rows`
    offset: float
    categories: Categories | None = None
    counted: Array | None = None  # rows to count categories in, in the order of the forest; by default those it holds
    masks: dict[tuple[int, float], Array] = field(default_factory=dict)  # which of these rows have a category

    def counting_in(self, rows: Array) -> Snapshot:
        """Return the same snapshot, to count categories in other rows of the table."""
        inner = rows if self.categories is None else rows[:, self.categories.order]
        return replace(self, counted=inner, masks={})

    @property
    def _rows(self) -> Array | None:
        """The rows to count categories in; None if there are none."""
        return self.source.rows if self.counted is None else self.counted

    @property
    def forest(self) -> Forest:
        """The trees."""
        return self.source.forest

    @property
    def reference(self) -> Reference:
        """The distribution of the points."""
        return self.source.reference

    def band(self, k: int) -> tuple[float, float, float]:
        """Return the low end of the usual range of a feature, its median and the high end; NaN for a category.

        The usual range has nine points in ten. For counts, all three are whole numbers.
        """
        if self.is_category(k):
            return nan, nan, nan
        column = self.reference.quantiles[:, self._place(k)]
        low, median, high = float(column[_LOW]), float(column[_MIDDLE]), float(column[_HIGH])
        return numbers.whole_band(low, median, high) if self.is_count(k) else (low, median, high)

    def is_count(self, k: int) -> bool:
        """Return whether all known values of a feature are whole and not negative."""
        is_count = self.reference.is_count
        return is_count is not None and not self.is_category(k) and bool(is_count[self._place(k)])

    def common(self, k: int) -> Array:
        """Return the known codes of a categorical column, most common first."""
        return self.reference.common.get(self._place(k), np.empty(0))

    def _place(self, k: int) -> int:
        """Return the column of a feature in rows of the forest."""
        return k if self.categories is None else int(self.categories.places[k])

    def _inner(self, row: Array) -> Array:
        """Return a row in the order of the forest."""
        return row if self.categories is None else np.ascontiguousarray(row[self.categories.order])

    def is_category(self, k: int) -> bool:
        """Return whether a feature is categorical."""
        return self.categories is not None and k in self.categories.columns

    def conditions(self, row: Array, features: Array, sides: Array) -> list[RegionCondition]:
        """Return the bounds beyond which values become anomalous, for some features on one side each.

        The bound of a tree is the nearest cut or box edge that adds bits. The result is the first bound by which trees
        with nine tenths of the bits have theirs, because trees with few points have early bounds.
        """
        places = np.array([self._place(k) for k in features.tolist()], np.int64)
        inner, known = self._inner(row), self.source.posterior()
        bounds, costs = attribute.find_bounds(self.forest, known, inner, self.lifetimes, places, sides)
        found = []
        for k, side, bound, cost in zip(features, sides, bounds.T, costs.T, strict=True):
            is_known = np.isfinite(bound) & (cost > 0)
            if is_known.any():
                found.append(RegionCondition(int(k), int(side), _agreed(bound[is_known], cost[is_known], int(side))))
        return found

    @staticmethod
    def same(row: Array, k: int) -> RegionCondition:
        """Return the condition that a category equals that of a row."""
        return RegionCondition(k, SAME, float(row[k]))

    def seen(self, row: Array, k: int) -> CategoryCount | None:
        """Return how often the category of a row occurs, or how often together with its rarest partner.

        The latter if the pair is several times rarer than under independence. None if no rows are held to count in.
        """
        points = None if self.categories is None else self._rows
        if points is None or self.categories is None:
            return None
        has, n = self._has(points, row, k), len(points)
        n_all, rarest, pair = int(np.count_nonzero(has)), _RARER, None
        for c in self.categories.columns:
            if c == k or np.isnan(row[c]):
                continue
            has_other = self._has(points, row, c)
            n_other, n_both = int(np.count_nonzero(has_other)), int(np.count_nonzero(has & has_other))
            rarer = (n_all * n_other / max(n, 1) + 0.5) / (n_both + 0.5)
            if rarer > rarest:
                rarest, pair = rarer, CategoryCount(n_both, n_other, c)
        return pair or CategoryCount(n_all, n)

    def rarest_pair(self, row: Array) -> PairCount | None:
        """Return the pair of values of a row that costs bits because it is rare, and how often it occurs.

        Rows with the second value are counted: a category, and of two the one that determines the other column better.
        """
        pair = None if self.categories is None else self.source.rarest_pair(self._inner(row))
        points = self._rows
        if pair is None or points is None or self.categories is None:
            return None
        has = [self._within(points, *side) for side in zip(*pair, strict=True)]
        first, second = 0, 1
        if pair.columns[0] >= self.categories.n_numeric:
            in_other = [_most_common(points[has[0], pair.columns[1]]), _most_common(points[has[1], pair.columns[0]])]
            if in_other[0] * has[1].sum() > in_other[1] * has[0].sum():
                first, second = 1, 0
        features = self.categories.order[list(pair.columns)].tolist()
        both, n_rows = int((has[0] & has[1]).sum()), int(has[second].sum())
        return PairCount(features[first], features[second], pair.low[first], pair.high[first], both, n_rows)

    def _within(self, points: Array, place: int, low: float, high: float) -> Array:
        """Return which points have a category, or a number in a range."""
        column = points[:, place]
        return np.asarray((column > low) & (column <= high) if low < high else column == low)

    def _has(self, points: Array, row: Array, k: int) -> Array:
        """Return which of the rows to count in have the category of a row."""
        known = self.masks.get((k, float(row[k])))
        if known is None:
            known = np.asarray(points[:, self._place(k)] == row[k])
            if self.counted is not None and len(self.masks) < _MOST_MASKS:
                self.masks[k, float(row[k])] = known
        return known

    def share(self, conditions: Sequence[RegionCondition]) -> tuple[float, tuple[float, float]]:
        """Return the share of points that meet all conditions, and its 90 % credible interval with Jeffreys' prior."""
        n, total = self.count_of(conditions)
        low, high = betaincinv(n + 0.5, max(total - n, 0) + 0.5, _INTERVAL)
        return (n + 0.5) / (total + 1), (float(low), float(high))

    def count_of(self, conditions: Sequence[RegionCondition]) -> tuple[float, int]:
        """Return how many points meet all conditions, and how many are known.

        If no points are held, the share is estimated from the counts of all trees together.
        """
        points = self.source.rows if any(side == SAME for _, side, _ in conditions) else self.source.points
        if points is not None:
            meets = np.ones(len(points), np.bool_)
            for k, side, bound in conditions:
                values = points[:, self._place(k)]
                meets &= values == bound if side == SAME else values <= bound if side == LOW else values > bound
            return float(meets.sum()), len(points)
        low, high = np.full(len(self.forest.domain[0]), -np.inf), np.full(len(self.forest.domain[0]), np.inf)
        for k, side, bound in conditions:
            (high if side == LOW else low)[self._place(k)] = bound
        counts = attribute.count_within(self.forest, self.source.posterior().world, low, high)
        totals = self.forest.counts[np.arange(len(self.forest.root)), self.forest.root] + self.forest.outside
        return float(counts.sum() / max(totals.sum(), 1) * self.reference.n_known), self.reference.n_known

    def expected(self, row: Array, features: Sequence[int]) -> list[tuple[float, ...] | None]:
        """Return for each of the `features` the normal values nearest to the row's, given the other features.

        For a number this is a range, for a category the codes of the most normal ones. If no value is normal, each of
        `features` is first set to the known value with the best score.
        """
        ranges = [self._normal_values(row, k, float(row[k])) for k in features]
        if None not in ranges or len(features) < 2:
            return ranges
        best = row.copy()
        for k in features:
            values = self._known_values(k)
            if len(values):
                best[k] = values[np.argmax(self._scores_at(best, k, values))]
        pairs = zip(features, ranges, strict=True)
        return [self._normal_values(best, k, float(row[k])) if found is None else found for k, found in pairs]

    def _known_values(self, k: int) -> Array:
        """Return values of a feature to try."""
        if self.is_category(k):
            return self.common(k)[:_MOST_TRIED]
        return np.unique(self.reference.quantiles[:, self._place(k)])

    def _scores_at(self, row: Array, k: int, values: Array) -> Array:
        """Return the scores of `row` with other values of feature `k`."""
        rows = np.repeat(self._inner(row)[None], len(values), axis=0)
        rows[:, self._place(k)] = values
        return self.score(rows)

    def _normal_values(self, row: Array, k: int, own: float) -> tuple[float, ...] | None:
        """Return the normal values of feature `k` nearest to the row's `own`; None if there are none."""
        return self._normal_categories(row, k) if self.is_category(k) else self._normal_range(row, k, own)

    def _normal_categories(self, row: Array, k: int) -> tuple[float, ...] | None:
        """Return the normal categories of feature `k`, best first; None if there are none."""
        codes = self._known_values(k)
        if not len(codes):
            return ()
        scores = self._scores_at(row, k, codes)
        best = np.argsort(-scores, kind="stable")
        return tuple(codes[best[scores[best] >= self.offset]].tolist()) or None

    def _normal_range(self, row: Array, k: int, own: float) -> tuple[float, float] | None:
        """Return the range of normal values of feature `k` nearest to the row's `own`, on the side of the median.

        It contains values that are closer to the median than `own`, and none beyond `own`. Return None if there is no
        such range.
        """
        known, median = self._known_values(k), self.band(k)[1]
        sign = 1.0 if own > median else -1.0  # of the way from the median to the row's value
        nearest = np.clip(own, known[0], known[-1])
        outward = np.unique(sign * np.concatenate([known, [median], np.linspace(nearest, own, _STEPS_BEYOND)]))
        values = sign * outward[outward <= sign * own]  # ends with `own`
        is_normal = self._scores_at(row, k, values) >= self.offset
        is_closer = np.abs(values - median) < abs(own - median)
        found = np.flatnonzero(is_normal & (is_closer | (values == own)))
        if not found.size:
            return None
        first = last = int(found[-1])
        while first > 0 and is_normal[first - 1]:
            first -= 1
        inner = self._edge(row, k, values[first], values[first - 1]) if first else values[first]
        outer = self._edge(row, k, values[last], values[last + 1]) if last + 1 < len(values) else own
        low, high = sorted((float(inner), float(outer)))
        return self._limited(low, high, k, own)

    def _limited(self, low: float, high: float, k: int, own: float) -> tuple[float, float] | None:
        """Return a normal range without values that the column never has; None unless it is closer to the median."""
        if self.reference.quantiles[0, self._place(k)] >= 0:
            low = max(low, 0.0)
        median, is_own = self.band(k)[1], low <= own <= high
        if self.is_count(k) and low <= high:
            low, high = np.ceil(low), np.floor(high)
            low, high = (min(low, own), max(high, own)) if is_own else (low, high)
        is_closer = low <= high and min(abs(min(max(median, low), high) - median), np.inf) < abs(own - median)
        return (float(low), float(high)) if is_closer else None

    def _edge(self, row: Array, k: int, normal: float, anomalous: float) -> float:
        """Return the last normal value of feature `k` between a normal and an anomalous one."""
        for _ in range(2):
            values = np.linspace(normal, anomalous, _STEPS_BETWEEN + 2)
            is_anomalous = self._scores_at(row, k, values[1:-1]) < self.offset
            steps = int(np.argmax(is_anomalous)) if is_anomalous.any() else _STEPS_BETWEEN
            normal, anomalous = float(values[steps]), float(values[steps + 1])
        return normal

    def similar(self, row: Array) -> list[tuple[Key, Array]]:
        """Return the nearest normal points held, by the mean feature weights of the forest."""
        held = self.source.held
        if held is None:
            return []
        distances = self._apart(held.points, self._inner(row)) @ self.forest.weights.mean(axis=0)
        nearest = np.argsort(distances, kind="stable")[:_NEIGHBOURS]
        near = np.ascontiguousarray(held.points[nearest])
        is_normal = self.score(near) >= self.offset if len(near) else np.zeros(0, bool)
        chosen = nearest[is_normal][:_SIMILAR]
        values = np.where(held.is_unknown, np.nan, held.points[chosen])
        values = values if self.categories is None else self.categories.shown(values)
        return list(zip([held.keys[i] for i in chosen], values, strict=True))

    def _apart(self, points: Array, row: Array) -> Array:
        """Return the distances of points from a row by feature; different categories have distance 1."""
        apart: Array = np.abs(points - row)
        if self.categories is not None:
            apart[:, self.categories.n_numeric :] = apart[:, self.categories.n_numeric :] > 0
        return apart


def _most_common(codes: Array) -> int:
    """Return how often the most common code occurs."""
    return int(np.unique(codes, return_counts=True)[1].max(initial=0))


def _agreed(bounds: Array, weights: Array, side: int) -> float:
    """Return the bound by which nine tenths of the weight have theirs."""
    order = np.argsort(bounds if side == HIGH else -bounds)
    weights = np.minimum(weights[order], -LEAST_LOG)  # finite
    shares = np.cumsum(weights / weights.max())
    return float(bounds[order][np.searchsorted(shares, _AGREED * shares[-1])])
