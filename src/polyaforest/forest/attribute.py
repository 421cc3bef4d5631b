"""Attribute the surprise of rows to features and directions, in bits."""

from __future__ import annotations

import numpy as np

from polyaforest.forest.posterior import is_empty
from polyaforest.kernels import attribution
from polyaforest.kernels.arrays import Array, Forest, Posterior
from polyaforest.util.parallel import ordered_sum, run, spans

_ROWS_AT_ONCE = 512  # rows that one thread attributes at a time
_LARGEST_TABLE = 2**27  # bytes that each thread may take for speed


def attribute_rows(
    forest: Forest, known: Posterior, X: Array, lifetimes: Array, n_jobs: int | None
) -> tuple[Array, float]:
    """Return the cost of the low and high side of each feature for each row, (n, 2, D), and the base cost, in bits.

    Costs are means over the trees, and over the cells at the ascending `lifetimes`; over leaves without lifetimes.
    """
    n_trees, bits = len(forest.left), _bits_per_nat(forest)
    if is_empty(forest):
        return np.zeros((len(X), 2, X.shape[1])), float(-known.outside[0] * bits * n_trees)
    with_table = uses_table(forest, len(X))

    def look_up(rows: slice) -> Array:
        return _attributions(forest, known, X[None, rows], lifetimes, with_table) * bits

    trees = np.arange(n_trees)
    within = np.logaddexp(known.inside[trees, forest.root], known.complement[trees, forest.root])
    sides = np.concatenate(run(look_up, spans(len(X), _ROWS_AT_ONCE), n_jobs))
    return sides, float(-ordered_sum(within) * bits)


def attribute_own_rows(forest: Forest, known: Posterior, X: Array, lifetimes: Array) -> Array:
    """Return the mean cost, (2, D), of the low and high side of each feature for rows of each tree, (T, n, D)."""
    sides = _attributions(forest, known, X, lifetimes, uses_table(forest, X.shape[1])) * _bits_per_nat(forest)
    return np.asarray(sides.mean(axis=0))


def _attributions(forest: Forest, known: Posterior, X: Array, lifetimes: Array, with_table: bool) -> Array:
    """Return the sum over trees of the cost of rows, (n, 2, D), in nats."""
    turns, sides = np.zeros((2, forest.left.shape[1]), np.int32), np.zeros((X.shape[1], 2, X.shape[2]))
    attribution.attribute_rows(forest, known, X, lifetimes, with_table, turns, sides)
    return sides


def _bits_per_nat(forest: Forest) -> float:
    """Return the factor from a sum over trees, in nats, to a mean over trees, in bits."""
    return float(1 / (len(forest.left) * np.log(2)))


def uses_table(forest: Forest, n_rows: int) -> bool:
    """Return whether to cache sums along paths, which takes memory but does not change results."""
    n_nodes, n_features = forest.left.shape[1], forest.lower.shape[2]
    return bool(n_features > 0 and n_nodes < 4 * n_rows and n_nodes * 2 * n_features * 8 < _LARGEST_TABLE)


def attribute_counted(forest: Forest, known: Posterior, lifetimes: Array) -> Array:
    """Return the mean cost of the counted points, (2, D), in bits."""
    parts = np.zeros((2, forest.weights.shape[1]))
    if not is_empty(forest):
        attribution.attribute_counted(forest, known, lifetimes, parts)
    return parts * _bits_per_nat(forest)


def find_bounds(
    forest: Forest, known: Posterior, row: Array, lifetimes: Array, features: Array, sides: Array
) -> tuple[Array, Array]:
    """Return the bounds beyond which a row incurs cost in each tree, for some features on one side each, and the costs.

    Both are (T, m). A bound is infinite where a tree attributes nothing to that side.
    """
    shape = (len(forest.left), len(features))
    bounds, costs = np.where(sides == attribution.LOW, np.inf, -np.inf) + np.zeros(shape), np.zeros(shape)
    if not is_empty(forest):
        attribution.find_bounds(forest, known, row[None], lifetimes, features, sides, bounds, costs)
    return bounds, costs


def count_within(forest: Forest, world: Array, low: Array, high: Array) -> Array:
    """Count the points of each tree above `low` and up to `high` in all features, (T,)."""
    counts = np.zeros(len(forest.left))
    if not is_empty(forest):
        attribution.count_within(forest, world, low, high, counts)
    return counts
