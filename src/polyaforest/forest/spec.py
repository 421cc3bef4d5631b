"""The parameters that the trees of a forest share: limits, seed, domain, feature weights."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from polyaforest.kernels.arrays import UNBOUNDED, Array
from polyaforest.kernels.boxes import APART, as_codes, bounding_box, count_bits

# Typical distance of two different categories: small, because categories are never close to each other, and
# combinations show only in cells that are small enough to hold few of them.
_NEARNESS = 0.25


class Weighting(NamedTuple):
    """Feature weights of a forest; all arrays have shape (D,).

    The deviation is the typical distance along each feature. Lifetimes are in its units: at time 1, two rows at a total
    weighted distance of one typical deviation share a cell with probability 1 / e.
    """

    spread: Array  # random weights are Exp(1) / spread
    deviation: Array  # random weights are scaled so that the weighted deviations sum to 1
    fixed: Array | None = None  # the weights of every tree, instead of random ones

    @property
    def unit(self) -> float:
        """The weighted length that is the unit of lifetimes."""
        total = 1.0 if self.fixed is None else float(self.fixed @ self.deviation)
        return total if 0 < total < np.inf else 1.0


def unmeasured(n_features: int, fixed: Array | None) -> Weighting:
    """Return the weighting before any rows have been measured."""
    return Weighting(np.zeros(n_features), np.zeros(n_features), fixed)


def weighting_of_rows(rows: Array, n_categories: int = 0) -> Weighting:
    """Weigh by the data: the spread is sqrt(range * mean absolute deviation), which is robust to stray values."""
    return weighting_of_sample(rows, bounding_box(rows, n_categories), n_categories)


def weighting_of_sample(sample: Array, box: Array, n_categories: int = 0) -> Weighting:
    """Weigh by a table, given its bounding box and a sample of its rows, which is used for the deviation only.

    A column that varies in the table but not in the sample is assumed to vary in one row of as many as the sample has.
    """
    n = sample.shape[1] - n_categories
    low, high = box[:, :n]
    columns = np.ascontiguousarray(sample.T)
    deviation = _deviation(columns[:n], high - low)
    weighting = Weighting(_usable(np.sqrt(high - low) * np.sqrt(deviation), low, high), deviation)
    if not n_categories:
        return weighting
    differs, spread = np.array([_diversity(column) for column in columns[n:]]).T
    hidden = (differs == 0) & (box[0, n:] < box[1, n:])  # varies in the table but not in the sample
    differs = np.where(hidden, 1 / len(sample), differs)
    return Weighting(np.append(weighting.spread, spread), np.append(deviation, _NEARNESS * differs))


def spread_of(columns: Array, n_categories: int = 0) -> Array:
    """Return the spread of `weighting_of_rows` for rows given by column, (D, n)."""
    columns = np.ascontiguousarray(columns)  # sums depend on the order in memory
    n = len(columns) - n_categories
    low, high = columns[:n].min(axis=1), columns[:n].max(axis=1)
    spread = _usable(np.sqrt(high - low) * np.sqrt(_deviation(columns[:n], high - low)), low, high)
    return np.append(spread, [_diversity(column)[1] for column in columns[n:]]) if n_categories else spread


def _deviation(columns: Array, lengths: Array) -> Array:
    """Return the mean absolute deviation of each contiguous column, (D, n); `lengths` are those of their ranges."""
    deviation: Array = np.abs(columns - columns.mean(axis=1, keepdims=True)).mean(axis=1)
    is_constant = columns.min(axis=1) >= columns.max(axis=1)  # the mean of equal values may differ from them
    return np.where(is_constant, lengths / columns.shape[1], deviation)


def _diversity(codes: Array) -> tuple[float, float]:
    """Return the probability that two values of a category differ, and its spread.

    The spread is about 1 if categories recur often. It grows with the perplexity, up to the square root of the number
    of rows, so that columns of ids do not take cuts from other features.
    """
    n = len(codes)
    shares = np.unique(codes, return_counts=True)[1] / n
    perplexity = float(np.exp(-shares @ np.log(shares)))
    return 1 - float(shares @ shares), float(np.sqrt(1 + perplexity * perplexity / n))


def weighting_of_domain(domain: Array, n_categories: int = 0) -> Weighting:
    """Weigh by the domain alone, so that equal domains give equal partitions for any data."""
    n = domain.shape[1] - n_categories
    low, high = domain[:, :n]
    cube = count_bits(as_codes(domain[0, n:]) ^ as_codes(domain[1, n:])) / APART
    spread = np.append(_usable(high - low, low, high), np.where(cube > 0, cube, 1.0))
    return Weighting(spread, np.append(high - low, cube))


def _usable(spread: Array, low: Array, high: Array) -> Array:
    """Replace the spread of constant columns by their absolute value, or 1 if that is 0, to scale later departures."""
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
    n_categories: int = 0  # of the features, the last ones
    max_features: int | None = None  # the most features that a tree cuts, None for all

    @property
    def most_features(self) -> int:
        """`max_features` for kernels."""
        return UNBOUNDED if self.max_features is None else self.max_features

    @property
    def depth_limit(self) -> int:
        """`max_depth` for kernels: UNBOUNDED for None."""
        return UNBOUNDED if self.max_depth is None else min(self.max_depth, UNBOUNDED)

    def most_nodes(self, n_rows: int | None = None) -> int:
        """Return the largest number of nodes of a tree, by the depth limit and the number of rows."""
        full = (1 << min(self.depth_limit + 1, 30)) - 1
        return full if n_rows is None else min(full, 2 * n_rows - 1)
