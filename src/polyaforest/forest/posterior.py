"""Derive the posterior of a forest, and look up leaf values, masses and credible intervals of rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from polyaforest.forest.credible import Masses, interval
from polyaforest.kernels import marginal, moments, polya, traversal
from polyaforest.kernels.arrays import (
    FADE_LOG_DENSITY,
    FADE_LOG_MASS,
    FADE_MASS,
    NONE,
    Array,
    Forest,
    LeafKind,
    LeafTable,
    Posterior,
    Prior,
)
from polyaforest.kernels.boxes import hull
from polyaforest.util.parallel import ordered_sum, run, spans, tree_spans

_ROWS_OF_A_MIXTURE = 256  # rows whose quantiles are searched together


def is_empty(forest: Forest) -> bool:
    """Return whether the trees have no nodes, because all points were deleted."""
    return not forest.size[0]


def new_posterior(forest: Forest) -> Posterior:
    """Allocate the posterior of `forest` and set its known world."""
    n_trees, capacity = forest.left.shape
    nodes = [np.zeros((n_trees, capacity)) for _ in range(4)]
    world = np.repeat(forest.domain[:, None], n_trees, axis=1)
    if forest.lower.shape[2]:
        trees = np.arange(n_trees)
        roots = np.stack([forest.lower[trees, forest.root], forest.upper[trees, forest.root]])
        world = hull(world, roots, int(forest.n_categories[0]))
    return Posterior(nodes[0], nodes[1], np.zeros(n_trees), nodes[2], nodes[3], np.zeros(n_trees), world)


def posterior(forest: Forest, prior: Prior, *, n_jobs: int | None) -> Posterior:
    """Derive the posterior masses and volumes of every node."""
    whole = new_posterior(forest)
    if is_empty(forest):  # inside and outside are equally likely, and the density is 0
        whole.outside[:], whole.outside_volume[:] = np.log(0.5) if prior.is_open else -np.inf, np.inf
        return whole

    def derive(span: slice) -> None:
        waiting = np.empty((forest.left.shape[1], 2), np.int32)
        polya.set_posteriors(forest, span.start, span.stop, prior.strength, prior.is_open, waiting, whole)

    run(derive, tree_spans(len(forest.left), n_jobs), n_jobs)
    return whole


def underived(forest: Forest) -> Posterior:
    """Return a posterior for `derive_along` to fill in."""
    known = new_posterior(forest)
    known.inside.fill(np.nan)
    return known


def derive_along(forest: Forest, prior: Prior, rows: Array, lifetimes: Array, known: Posterior) -> None:
    """Derive the posterior on the paths of rows to their cells or leaves; rows are (T, n, D), or (1, n, D) for all."""
    until = lifetimes[-1] if len(lifetimes) else np.inf
    polya.set_paths(forest, rows, until, prior.strength, prior.is_open, known)


def mass_table(known: Posterior) -> LeafTable:
    """Return leaf masses; beyond the known world, the mass of everything at least as far away."""
    inside, complement, outside = np.exp(known.inside), np.exp(known.complement), np.exp(known.outside)
    return LeafTable(inside, complement, outside, known.world, FADE_MASS)


def log_mass_table(known: Posterior) -> LeafTable:
    """Return the logarithms of `mass_table`."""
    return LeafTable(known.inside, known.complement, known.outside, known.world, FADE_LOG_MASS)


def log_density_table(known: Posterior) -> LeafTable:
    """Return leaf log-densities over the live dimensions of the known world."""
    complement = np.full_like(known.complement, -np.inf)
    np.subtract(known.complement, known.complement_volume, out=complement, where=np.isfinite(known.complement))
    inside, outside = known.inside - known.inside_volume, known.outside - known.outside_volume
    return LeafTable(inside, complement, outside, known.world, FADE_LOG_DENSITY)


def leaf_values(
    forest: Forest, table: LeafTable, X: Array, reduce: Callable[[Array], Array], n_jobs: int | None
) -> Array:
    """Apply `reduce` to the table's values, (T, rows), for each chunk of rows; concatenate the results."""
    return _look_up_leaves(forest, table, X, len(forest.left), reduce, n_jobs)


def leaf_means(forest: Forest, table: LeafTable, X: Array, n_jobs: int | None) -> Array:
    """Return the mean over trees of the table's values for the leaf of each row, summed in the order of the trees."""
    return _look_up_leaves(forest, table, X, 1, lambda total: total[0] / len(forest.left), n_jobs)


def _look_up_leaves(
    forest: Forest, table: LeafTable, X: Array, height: int, reduce: Callable[[Array], Array], n_jobs: int | None
) -> Array:
    def look_up(rows: slice) -> Array:
        values = np.zeros((height, rows.stop - rows.start))
        if is_empty(forest):
            values += table.outside[:, None] if height > 1 else ordered_sum(table.outside)
        else:
            traversal.leaf_values(forest, table, X[rows], values)
            fill_gaps(X[rows], values, lambda gappy, totals: marginal.leaf_values(forest, table, gappy, totals))
        return reduce(values)

    return np.concatenate(run(look_up, spans(len(X), traversal.BLOCK), n_jobs))


def leaf_kinds(forest: Forest, known: Posterior, X: Array, n_jobs: int | None) -> tuple[Array, Array]:
    """Return node (NONE when outside) and `LeafKind` of the leaf of each row in each tree, both (n, T)."""
    nodes, kinds = np.empty((len(forest.left), len(X)), np.int32), np.empty((len(forest.left), len(X)), np.int8)

    if is_empty(forest):
        nodes[:], kinds[:] = NONE, LeafKind.OUTSIDE
        return nodes.T, kinds.T

    def look_up(rows: slice) -> None:
        traversal.leaf_kinds(forest, known.world, X[rows], nodes[:, rows], kinds[:, rows])

    run(look_up, spans(len(X), traversal.BLOCK), n_jobs)
    return nodes.T, kinds.T


def rows_with_gaps(X: Array) -> Array:
    """Return which rows have missing values."""
    return np.flatnonzero(np.isnan(X).any(axis=1))


def fill_gaps(X: Array, values: Array, walk: Callable[[Array, Array], None]) -> None:
    """Replace the entries of `values`, (..., n), of rows with missing values by the totals of a marginal walk."""
    gappy = rows_with_gaps(X)
    if gappy.size:
        totals = np.zeros((*values.shape[:-1], gappy.size))
        walk(X[gappy], totals)
        values[..., gappy] = totals


def second_moments(forest: Forest, prior: Prior, known: Posterior, n_jobs: int | None) -> moments.SecondMoments:
    """Derive the second moment of the mass of every node."""
    nodes = np.zeros_like(known.inside), np.zeros_like(known.inside)
    whole = moments.SecondMoments(*nodes, np.zeros_like(known.outside))
    if is_empty(forest):  # the share is Beta(gamma / 2, gamma / 2)
        whole.outside[:] = moments.log_excess(0.5 * prior.strength, 0.5 * prior.strength) if prior.is_open else 0.0
        return whole

    def derive(span: slice) -> None:
        moments.set_second_moments(forest, span.start, span.stop, prior.strength, prior.is_open, known.world, whole)

    run(derive, tree_spans(len(forest.left), n_jobs), n_jobs)
    return whole


def row_masses(
    forest: Forest,
    known: Posterior,
    second: moments.SecondMoments,
    X: Array,
    lifetime: float | None,
    n_jobs: int | None,
) -> Masses:
    """Return the mass of each row's leaf, or of its cell at a lifetime, by every tree, and its second moment."""

    def look_up(rows: slice) -> Masses:
        nodes, is_complement, log_weights = _places(forest, known, X[rows], lifetime)
        trees, is_outside = np.arange(len(nodes))[:, None], nodes == NONE

        def values(of: Posterior | moments.SecondMoments) -> Array:
            within = np.where(is_complement, of.complement[trees, nodes], of.inside[trees, nodes])
            return np.where(is_outside, of.outside[:, None], within)

        parts = values(known), values(second), log_weights
        return Masses(*(np.ascontiguousarray(part.T) for part in parts))

    return Masses(*map(np.concatenate, zip(*run(look_up, spans(len(X), traversal.BLOCK), n_jobs), strict=True)))


def _places(forest: Forest, known: Posterior, X: Array, lifetime: float | None) -> tuple[Array, Array, Array]:
    """Return the node whose mass counts for each row in each tree, whether its complement counts, and a log-weight.

    All are (T, n). The node is NONE for rows beyond the known world.
    """
    n_trees, n_nodes = forest.left.shape
    nodes, log_weights = np.full((n_trees, len(X)), NONE), np.zeros((n_trees, len(X)))
    if is_empty(forest):
        return nodes, np.zeros_like(nodes, np.bool_), log_weights
    if lifetime is not None:
        moments.cells_of_rows(forest, X, np.array([lifetime]), nodes, log_weights)
        return nodes, np.zeros_like(nodes, np.bool_), log_weights
    # one walk for both: numbers from 1 on are places, numbers up to 0 log-weights beyond the known world
    numbers = np.tile(np.arange(1.0, n_nodes + 1), (n_trees, 1))
    table = LeafTable(numbers, numbers + n_nodes, np.zeros(n_trees), known.world, FADE_LOG_MASS)
    traversal.leaf_values(forest, table, X, log_weights)
    is_inside = log_weights > 0
    nodes[is_inside] = log_weights[is_inside] - 1
    is_complement = nodes >= n_nodes
    nodes[is_complement] -= n_nodes
    log_weights[is_inside] = 0.0
    return nodes, is_complement, log_weights


def intervals(masses: Masses, level: float, n_jobs: int | None) -> Array:
    """Return the credible interval of each row's mass, (n, 2)."""

    def find(rows: slice) -> Array:
        return interval(Masses(*(part[rows] for part in masses)), level)

    return np.concatenate(run(find, spans(len(masses.log_mean), _ROWS_OF_A_MIXTURE), n_jobs))
