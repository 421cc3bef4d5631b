"""Pairs: common values of two columns that rarely occur together, such as a currency and a country.

Each tree holds few points, so a rare pair of common values adds little to the surprise of a row. So points are also
counted by pairs of columns: two categories, or a category and a number in eight bins of equal counts. Independence
expects ``n_a * n_b / n`` points in a cell of such a table. A cell is *avoided* if it holds so few that independence
gives them, or fewer, a probability of at most 2**-12 divided by the number of pairs of columns, the price of looking at
many of them. Its rarity is log2 of its expected over its held count.

Where columns depend on each other, many normal rows have an avoided pair. So each point is left out of the counts in
turn, to find the share of points with a pair at least as rare. The cost grows by one step whenever this share halves,
from 0 at one point in 16 up to four steps. If no points have one, but up to two with the very same pair, it is ten
steps. A step is the bits by which the share of points halves in the tail of the scores of the trees, so ten of them
suffice to be flagged.

A row costs the bits of its most avoided pair; half of them are attributed to either column. All counts are of points
held, so they are exact after any insertions and deletions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
from scipy.special import pdtr

from polyaforest.kernels.arrays import Array, is_ascending
from polyaforest.kernels.boxes import is_code
from polyaforest.tables.validation import LARGEST
from polyaforest.util.parallel import spans

LEAST_POINTS = 256  # needed to know what is ordinary
MOST_POINTS = 8192  # counted at most
_MOST_PAIRS = 512  # of columns; those of two categories come first
_MOST_CODES = 32  # categories of a column, the most common
_LEAST_COPIES = 8  # of a category: independence expects too few pairs of a rarer one to say anything
_BINS = 8  # of a number
_EVIDENCE = 12.0  # least bits against independence; log2 of the number of pairs is added
_PSEUDO_COUNT = 2.0  # so that the rarity of cells of few points hardly depends on one of them
_ORDINARY = 4.0  # halvings of the share of rows that cost nothing
_MOST_COMMON = 4.0  # most steps that a pair costs if other points have a pair as rare
_OUTSTANDING = 10.0  # steps that it costs if hardly any have
_COPIES = 2  # points with the same pair, which may be as anomalous, that do not count
_PART = 2048  # one point in so many may have a pair as rare as an outstanding one
_MOST_STEP = 1e6
_VALUES_AT_ONCE = 2**20


class Bins(NamedTuple):
    """A partition of some columns, to count points by: the most common categories, and intervals of numbers."""

    columns: Array  # int64 (B,), ascending
    values: Array  # float64: by column, the inner bounds of the bins of a number, or codes, ascending
    sizes: Array  # int64 (B,): values of each column
    n_numbers: int  # columns before the categories

    @classmethod
    def of(cls, points: Array, n_categories: int) -> Self:
        """Partition the columns that have at least two common values."""
        n_numbers, columns, parts = points.shape[1] - n_categories, [], []
        for k, column in enumerate(np.ascontiguousarray(points.T)):
            values = _bounds(column) if k < n_numbers else _common(column)
            if len(values) >= 1 + (k >= n_numbers):
                columns.append(k)
                parts.append(values)
        sizes = np.array([len(part) for part in parts], np.int64)
        return cls(np.array(columns, np.int64), np.concatenate([*parts, np.empty(0)]), sizes, n_numbers)

    @classmethod
    def of_state(cls, columns: Array, values: Array, sizes: Array, n_numbers: int, n_features: int) -> Self:
        """Return the bins of a file; raise ValueError if invalid."""
        is_number = columns < n_numbers
        is_known = is_ascending(columns) and (columns >= 0).all() and (columns < n_features).all()
        is_limited = ((sizes >= 1) & (sizes < np.where(is_number, _BINS, _MOST_CODES + 1))).all()
        if not is_known or not is_limited or sizes.sum() != len(values):
            raise ValueError("arrays of pairs: invalid columns or sizes")
        parts = np.split(values, np.cumsum(sizes)[:-1]) if len(sizes) else []
        for k, part in zip(columns.tolist(), parts, strict=True):
            if not is_ascending(part) or not (np.abs(part) <= LARGEST if k < n_numbers else is_code(part)).all():
                raise ValueError("arrays of pairs: invalid values of bins")
        return cls(columns, values, sizes, n_numbers)

    def find(self, rows: Array) -> Array:
        """Return the bin of each row in each column, int64 (n, B): `size + 1` for a value in none."""
        bins, end = np.empty((len(rows), len(self.columns)), np.int64), 0
        for b, (k, size) in enumerate(zip(self.columns.tolist(), self.sizes.tolist(), strict=True)):
            column, values = rows[:, k], self.values[end : end + size]
            end += size
            place = np.searchsorted(values, column)
            if k < self.n_numbers:
                is_known = ~np.isnan(column)
            else:
                place = np.minimum(place, size - 1)
                is_known = values[place] == column
            bins[:, b] = np.where(is_known, place, size + 1)
        return bins

    @property
    def pairs(self) -> Array:
        """The pairs of these columns, at least one of which is a category: int64 (2, P)."""
        right, left = np.tril_indices(len(self.columns), -1)
        is_number = self.columns < self.n_numbers
        order = np.argsort(is_number[left], kind="stable")  # the left column is the number, if there is one
        order = order[~is_number[right[order]]][:_MOST_PAIRS]
        return np.asarray(np.stack([left[order], right[order]]))


def _bounds(column: Array) -> Array:
    """Return the inner bounds of bins of about equal counts; a bin includes its upper bound."""
    bounds = np.unique(np.quantile(column, np.arange(1, _BINS) / _BINS, method="inverted_cdf"))
    return np.array(bounds[bounds < column.max()])


def _common(column: Array) -> Array:
    """Return the most common codes, ascending."""
    codes, counts = np.unique(column, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:_MOST_CODES]
    return np.sort(codes[order[counts[order] >= _LEAST_COPIES]])


class RarePair(NamedTuple):
    """The most avoided pair of a row: two columns, and for each the value, or the bin of a number."""

    columns: tuple[int, int]
    low: tuple[float, float]  # a number is above `low`, and at most `high`
    high: tuple[float, float]


@dataclass(frozen=True, eq=False)
class Pairs:
    """The cost of pairs of values of two columns; cells of all pairs of columns follow each other."""

    bins: Bins
    cells: Array  # int64 (C,), ascending: the cells that cost something
    steps: Array  # float64 (C,): the cost to a new row
    own_steps: Array  # float64 (C,): the cost to a point that was counted, without it
    bits_per_step: float = 1.0  # the bits by which the share of rows halves in the tail of the scores

    @classmethod
    def of(cls, points: Array, n_categories: int) -> Self | None:
        """Measure the pairs of points; return None if they are too few."""
        if len(points) < LEAST_POINTS or not n_categories:
            return None
        bins = Bins.of(points, n_categories)
        layout = PairTables.of(bins)
        if not layout.n_pairs:
            return None
        found = bins.find(points)
        by_column = [np.bincount(column, minlength=size + 2) for column, size in zip(found.T, bins.sizes, strict=True)]
        n_left, n_right = layout.margins(by_column)
        counts = np.zeros(layout.n_cells, np.int64)
        parts = spans(len(points), max(_VALUES_AT_ONCE // layout.n_pairs, 1))
        for part in parts:
            counts += np.bincount(layout.cells_of(found[part]).ravel(), minlength=layout.n_cells)
        n, least = len(points), _EVIDENCE + np.log2(layout.n_pairs)
        rarity = avoidance(counts, n_left, n_right, n, least)
        own = avoidance(counts - 1, n_left - 1, n_right - 1, n - 1, least)
        ascending = np.sort(np.concatenate([own[layout.cells_of(found[part])].max(axis=1) for part in parts]))
        cells = np.flatnonzero((rarity > 0) | (own > 0))
        same = counts[cells]
        steps = steps_of(rarity[cells], ascending, same)
        own_steps = steps_of(own[cells], ascending, np.maximum(same - 1, 0), 1)
        costly = (steps > 0) | (own_steps > 0)
        return cls(bins, cells[costly], steps[costly], own_steps[costly])

    @classmethod
    def of_state(cls, bins: Bins, cells: Array, steps: Array, own_steps: Array, bits_per_step: Array) -> Self:
        """Return the pairs of a file; raise ValueError if invalid."""
        costs = np.concatenate([steps, own_steps])
        is_cell = (cells >= 0) & (cells < PairTables.of(bins).n_cells)
        if not is_cell.all() or not is_ascending(cells) or not ((costs >= 0) & (costs <= _OUTSTANDING)).all():
            raise ValueError("arrays of pairs: invalid cells")
        if not 0 < bits_per_step <= _MOST_STEP:
            raise ValueError("arrays of pairs: invalid bits_per_step")
        return cls(bins, cells, steps, own_steps, float(bits_per_step))

    def scaled(self, bits_per_step: float) -> Self:
        """Return the same pairs for scores whose tail halves with every `bits_per_step`."""
        return replace(self, bits_per_step=min(bits_per_step, _MOST_STEP)) if bits_per_step > 0 else self

    def left_out(self) -> Self:
        """Return the pairs for points that were counted, each without itself."""
        return replace(self, steps=self.own_steps)

    def costs(self, rows: Array) -> Array | None:
        """Return the cost of the most avoided pair of each row, (n,), in bits; None if all are 0."""
        if not len(self.cells):
            return None
        costs = self._worst(rows)[1]
        return costs if costs.any() else None

    def attributions(self, rows: Array) -> Array:
        """Return the cost of each side of a feature, (n, 2, D), in bits: half of a pair's cost for either column."""
        bits = np.zeros((len(rows), 2, rows.shape[1]))
        if len(self.cells):
            worst, costs = self._worst(rows)
            for i in np.flatnonzero(costs).tolist():
                for b, column in zip(worst[i].tolist(), self.bins.columns[worst[i]].tolist(), strict=True):
                    is_low = column < self.bins.n_numbers and self._is_low(b, rows[i, column])
                    bits[i, int(not is_low), column] = costs[i] / 2
        return bits

    def rarest(self, row: Array) -> RarePair | None:
        """Return the most avoided pair of a row, (D,); None if other points have a pair as rare."""
        if not len(self.cells):
            return None
        worst, costs = self._worst(row[None])
        if costs[0] < _MOST_COMMON * self.bits_per_step:
            return None
        columns = self.bins.columns[worst[0]].tolist()
        ends = [self._ends(b, float(row[k])) for b, k in zip(worst[0].tolist(), columns, strict=True)]
        return RarePair((columns[0], columns[1]), (ends[0][0], ends[1][0]), (ends[0][1], ends[1][1]))

    def _worst(self, rows: Array) -> tuple[Array, Array]:
        """Return the columns of the most avoided pair of each row, as places in `bins`, (n, 2), and its cost, (n,)."""
        (layout, table), costs, worst = self._tables, [], []
        for part in spans(len(rows), max(_VALUES_AT_ONCE // layout.n_pairs, 1)):
            each = table[layout.cells_of(self.bins.find(rows[part]))]
            places = each.argmax(axis=1)
            worst.append(layout.pairs[:, places].T)
            costs.append(each[np.arange(len(each)), places])
        return np.concatenate(worst), np.concatenate(costs)

    @cached_property
    def _tables(self) -> tuple[PairTables, Array]:
        """The tables with cells that cost something, and the costs of all cells."""
        return PairTables.of(self.bins).where(self.cells, self.steps * self.bits_per_step)

    def _values_of(self, b: int) -> Array:
        end = int(self.bins.sizes[: b + 1].sum())
        return self.bins.values[end - int(self.bins.sizes[b]) : end]

    def _is_low(self, b: int, value: float) -> bool:
        bounds = self._values_of(b)
        return bool(2 * np.searchsorted(bounds, value) < len(bounds))

    def _ends(self, b: int, value: float) -> tuple[float, float]:
        """Return the ends of the bin of a value; a category is both."""
        if self.bins.columns[b] >= self.bins.n_numbers:
            return value, value
        bounds = np.concatenate([[-np.inf], self._values_of(b), [np.inf]])
        place = int(np.searchsorted(bounds[1:-1], value))
        return float(bounds[place]), float(bounds[place + 1])


class PairTables(NamedTuple):
    """The cells of pairs of columns, one table after another, row by row."""

    pairs: Array  # int64 (2, P): left and right columns, as places in the bins
    widths: Array  # int64 (P,): bins of the right column, and two for other values
    starts: Array  # int64 (P,): the first cell of each table
    n_cells: int
    sizes: Array  # int64 (B,): of the bins

    @classmethod
    def of(cls, bins: Bins) -> Self:
        """Lay out the tables of all pairs of columns."""
        pairs = bins.pairs
        heights, widths = bins.sizes[pairs] + 2
        ends = np.cumsum(heights * widths)
        return cls(pairs, widths, ends - heights * widths, int(ends[-1]) if len(ends) else 0, bins.sizes)

    @property
    def n_pairs(self) -> int:
        """The number of pairs of columns."""
        return int(self.pairs.shape[1])

    def cells_of(self, found: Array) -> Array:
        """Return the cell of each row in each table, (n, P), given the bins of its columns."""
        left, right = self.pairs
        return np.asarray(self.starts + found[:, left] * self.widths + found[:, right])

    def margins(self, by_column: list[Array]) -> tuple[Array, Array]:
        """Return for each cell the points in its row and in its column, (C,) each; 0 for other values."""
        known = [np.where(np.arange(len(counts)) < len(counts) - 1, counts, 0) for counts in by_column]
        pairs = self.pairs.T.tolist()
        left = [np.repeat(known[a], len(known[b])) for a, b in pairs]
        right = [np.tile(known[b], len(known[a])) for a, b in pairs]
        return np.concatenate(left), np.concatenate(right)

    def where(self, cells: Array, values: Array) -> tuple[PairTables, Array]:
        """Return the tables that contain some cells, and all their values: 0 elsewhere."""
        table, tables = np.zeros(self.n_cells), np.unique(np.searchsorted(self.starts, cells, side="right") - 1)
        table[cells] = values
        return self._replace(pairs=self.pairs[:, tables], widths=self.widths[tables], starts=self.starts[tables]), table


def avoidance(counts: Array, n_left: Array, n_right: Array, n: int, least: float) -> Array:
    """Return the rarity of cells, log2 of expected over held count; 0 without `least` bits against independence."""
    expected = n_left * n_right / n
    rarity = np.zeros(len(counts))
    some = np.flatnonzero((expected > least * np.log(2)) & (counts < expected) & (counts >= 0))
    some = some[pdtr(counts[some], expected[some]) <= 2.0**-least]
    rarity[some] = np.log2((expected[some] + _PSEUDO_COUNT) / (counts[some] + _PSEUDO_COUNT))
    return rarity


def steps_of(rarity: Array, rarest: Array, same: Array, n_own: int = 0) -> Array:
    """Return the cost of cells, in steps, given their rarity and the ascending rarities of all points.

    `same` points have the same pair, beside `n_own` points that are not compared with themselves.
    """
    n = len(rarest) - n_own
    n_rarer = len(rarest) - np.searchsorted(rarest, rarity) - n_own - np.minimum(same, _COPIES)
    n_rarer = np.maximum(n_rarer, 0)
    halvings = np.log2((n + 1) / (1 + n_rarer))
    most_rarer = max((n + 1) // _PART - 1, 0)
    steps = np.where(n_rarer <= most_rarer, _OUTSTANDING, np.clip(halvings - _ORDINARY, 0.0, _MOST_COMMON))
    return np.where(rarity > 0, steps, 0.0)
