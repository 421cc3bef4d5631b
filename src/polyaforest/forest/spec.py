"""The parameters that the trees of a forest share: limits, seed, domain, feature weights."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from polyaforest.core.arrays import UNBOUNDED, Array


class Weighting(NamedTuple):
    """Feature weights of a forest; all arrays have shape (D,).

    The deviation says what a typical distance is along each feature. Lifetimes are given in its terms: at time 1, two
    rows apart by a weighted distance of one typical deviation in all share a cell with probability 1 / e.
    """

    spread: Array  # random weights are Exp(1) / spread
    deviation: Array  # random weights are scaled so that the weighted deviations sum to 1
    fixed: Array | None = None  # the weights of every tree, instead of random ones

    @property
    def unit(self) -> float:
        """The weighted length that lifetimes are measured against."""
        total = 1.0 if self.fixed is None else float(self.fixed @ self.deviation)
        return total if 0 < total < np.inf else 1.0


def bounding_box(rows: Array) -> Array:
    """Return the smallest and largest value of every column, (2, D)."""
    return np.stack([rows.min(axis=0), rows.max(axis=0)])


def empty_box(n_features: int) -> Array:
    """Return the empty box, (2, D), the neutral element of hulls."""
    return np.repeat([[np.inf], [-np.inf]], n_features, axis=1)


def unmeasured(n_features: int, fixed: Array | None) -> Weighting:
    """Return the weighting before any rows have been measured."""
    return Weighting(np.zeros(n_features), np.zeros(n_features), fixed)


def weighting_of_rows(rows: Array) -> Weighting:
    """Weigh by the data: the spread is sqrt(range * mean absolute deviation), which a stray value moves little."""
    low, high = bounding_box(rows)
    deviation = np.array([np.abs(column - column.mean()).mean() for column in rows.T])
    deviation[high <= low] = 0.0  # the mean of equal values need not be their value
    return Weighting(_usable(np.sqrt(high - low) * np.sqrt(deviation), low, high), deviation)


def weighting_of_domain(domain: Array) -> Weighting:
    """Weigh by the domain alone, so that equal domains give equal partitions whatever the data."""
    low, high = domain
    return Weighting(_usable(high - low, low, high), high - low)


def _usable(spread: Array, low: Array, high: Array) -> Array:
    """Replace the spread of constant columns by their own size, or by 1 for zero, to measure later departures."""
    size = np.maximum(np.abs(low), np.abs(high))
    return np.where(high > low, spread, np.where(size > 0, size, 1.0))


class Plan(NamedTuple):
    """How to draw a forest."""

    n_trees: int
    lifetime: float
    max_depth: int | None
    weighting: Weighting
    domain: Array  # float64 (2, D), see `Forest`
    seed: np.random.SeedSequence
    n_jobs: int | None

    @property
    def depth_limit(self) -> int:
        """`max_depth` as kernels take it."""
        return UNBOUNDED if self.max_depth is None else min(self.max_depth, UNBOUNDED)

    def most_nodes(self, n_rows: int | None = None) -> int:
        """Return the most nodes of a tree: those of a full tree to the depth limit, or two for every row but one."""
        full = (1 << min(self.depth_limit + 1, 30)) - 1
        return full if n_rows is None else min(full, 2 * n_rows - 1)
