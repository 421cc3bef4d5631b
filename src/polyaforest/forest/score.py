"""Score rows, and impute their missing values, by the masses of their cells and leaves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polyaforest.forest.posterior import (
    fill_gaps,
    is_empty,
    leaf_means,
    leaf_values,
    log_mass_table,
    mass_table,
    rows_with_gaps,
)
from polyaforest.forest.score_types import Score
from polyaforest.kernels import leave_one_out, marginal, traversal
from polyaforest.kernels.arrays import ALL_YES, NONE, Array, Forest, LeafTable, Posterior, Prior
from polyaforest.kernels.boxes import distances
from polyaforest.util.parallel import log_mean_exp, ordered_sum, run, spans

_ROWS_BY_TREE = 256  # rows looked up at a time where the values of every tree are kept
_TINY = 1e-290  # sums of masses below this lose digits to underflow


def row_scores(kind: str, forest: Forest, known: Posterior, X: Array, lifetimes: Array, n_jobs: int | None) -> Array:
    """Return the scores of rows, (n,); `kind` is a value of `Score`."""
    score = Score(kind)
    if not score.uses_cells:
        return leaf_means(forest, _leaf_table(score, known), X, n_jobs)
    if not score.is_additive:
        return log_cell_masses(forest, known, X, lifetimes, n_jobs).mean(axis=1)  # type: ignore[no-any-return]
    return mean_log_cell_masses(forest, known, X, lifetimes, n_jobs)


def _leaf_table(score: Score, known: Posterior) -> LeafTable:
    return log_mass_table(known) if score.is_log else mass_table(known)


def log_cell_masses(forest: Forest, known: Posterior, X: Array, lifetimes: Array, n_jobs: int | None) -> Array:
    """Return the log of the forest-mean mass of each row's cell at each of the ascending `lifetimes`, (n, S)."""
    n_trees, n_lifetimes = len(forest.left), len(lifetimes)
    if is_empty(forest):
        return np.full((len(X), n_lifetimes), known.outside[0])
    masses = np.exp(known.inside)

    def look_up(rows: slice) -> Array:
        total = np.zeros((n_lifetimes, rows.stop - rows.start))
        traversal.cell_masses(forest, masses, X[rows], lifetimes, total, np.empty((n_trees, n_lifetimes, 0)))
        with np.errstate(divide="ignore"):
            log_mean: Array = np.log(total) - np.log(n_trees)
        apart = np.flatnonzero((total < _TINY).any(axis=0) | np.isnan(X[rows]).any(axis=1))
        if apart.size:
            log_mean[:, apart] = log_mean_exp(_log_cells(forest, known, X[rows][apart], lifetimes))
        return log_mean.T

    return np.concatenate(run(look_up, spans(len(X), traversal.BLOCK), n_jobs))


def mean_log_cell_masses(forest: Forest, known: Posterior, X: Array, lifetimes: Array, n_jobs: int | None) -> Array:
    """Return the mean over trees and the ascending `lifetimes` of the log-mass of each row's cell, (n,)."""
    n_trees, n_lifetimes = len(forest.left), len(lifetimes)
    if is_empty(forest):
        return np.full(len(X), known.outside[0])

    def look_up(rows: slice) -> Array:
        return _log_cell_sums(forest, known, X[rows], lifetimes, 1)[0] / (n_trees * n_lifetimes)  # type: ignore[no-any-return]

    return np.concatenate(run(look_up, spans(len(X), traversal.rows_together(X.shape[1])), n_jobs))


def weighted_scores(
    kind: str,
    forest: Forest,
    known: Posterior,
    X: Array,
    lifetimes: Array,
    weights: Array,
    n_jobs: int | None,
) -> Array:
    """Return `row_scores` with trees weighted by `weights`, (T, n), which sum to 1 for every row."""
    score = Score(kind)
    if not score.uses_cells:
        values = leaf_values(forest, _leaf_table(score, known), X, np.transpose, n_jobs).T
        return _weighted_sum(values, weights)

    def look_up(rows: slice) -> Array:
        if score.is_additive:
            sums = _log_cell_sums(forest, known, X[rows], lifetimes, len(forest.left))
            return _weighted_sum(sums, weights[:, rows]) / len(lifetimes)
        logs, share = _log_cells(forest, known, X[rows], lifetimes), weights[:, None, rows]
        top = np.where(share > 0, logs, -np.inf).max(axis=0)
        near = np.exp(np.minimum(logs - top, 0.0))
        return (np.log(_weighted_sum(near, share)) + top).mean(axis=0)  # type: ignore[no-any-return]

    return np.concatenate(run(look_up, spans(len(X), _ROWS_BY_TREE), n_jobs))


def left_out_scores(
    kind: str, forest: Forest, known: Posterior, prior: Prior, X: Array, lifetimes: Array, n_jobs: int | None
) -> Array:
    """Return leave-one-out scores of rows that a forest of processes has counted.

    Rows may lie beyond the domain, as if it had not been extended to hold them: cells at its edge have counted them.
    """
    score = Score(kind)
    if score.uses_cells:
        times = lifetimes
        excess = distances(forest.domain, X, int(forest.n_categories[0]))
    else:
        times = np.array([np.inf])
        excess = np.zeros_like(X)

    def look_up(rows: slice) -> Array:
        logs = np.empty((len(forest.left), len(times), rows.stop - rows.start))
        leave_one_out.left_out_masses(forest, known, prior.strength, prior.is_open, X[rows], times, logs)
        if excess[rows].any():
            duration = np.minimum(times, forest.time.max())[:, None]  # cells end with the forest's own lifetime
            logs -= duration * (forest.weights @ excess[rows].T)[:, None]
        if score.is_additive:
            return logs.mean(axis=(0, 1))  # type: ignore[no-any-return]
        log_means = log_mean_exp(logs)
        return log_means.mean(axis=0) if score.is_log else np.exp(log_means[0])  # type: ignore[no-any-return]

    return np.concatenate(run(look_up, spans(len(X), _ROWS_BY_TREE), n_jobs))


def _weighted_sum(values: Array, weights: Array) -> Array:
    """Sum over the trees, ignoring the values of trees with weight 0."""
    total: Array = (np.where(weights > 0, values, 0.0) * weights).sum(axis=0)
    return total


def _log_cells(forest: Forest, known: Posterior, X: Array, lifetimes: Array) -> Array:
    """Return log-masses of the cells of rows by every tree, (T, S, n); gaps allowed."""
    logs = np.zeros((len(forest.left), len(lifetimes), len(X)))
    traversal.cell_masses(forest, known.inside, X, lifetimes, np.empty((len(lifetimes), 0)), logs)
    fill_gaps(X, logs, lambda gappy, each: marginal.cell_masses(forest, known.inside, gappy, lifetimes, each))
    return logs


def _log_cell_sums(forest: Forest, known: Posterior, X: Array, lifetimes: Array, height: int) -> Array:
    """Return the sums over lifetimes of `_log_cells`, (T, n); with `height` 1, sum over trees too."""
    sums = np.zeros((height, len(X)))
    traversal.log_cell_sums(forest, known.inside, X, lifetimes, sums)

    def walk(gappy: Array, totals: Array) -> None:
        each = np.zeros((height, len(lifetimes), len(gappy)))
        marginal.cell_masses(forest, known.inside, gappy, lifetimes, each)
        totals += each.sum(axis=1)

    fill_gaps(X, sums, walk)
    return sums


def impute(
    forest: Forest,
    known: Posterior,
    X: Array,
    lifetimes: Array,
    how: str,
    n_jobs: int | None,
    categories: Sequence[Array] = (),
) -> Array:
    """Fill in the missing values of `X` by the mean of the cells that a row may be in, or by the cell of largest mass.

    Means over all trees are averaged over the `lifetimes`. A missing category becomes the one of the known `categories`
    of its column for which the row scores highest.
    """
    filled = X.copy()
    gappy = rows_with_gaps(X)

    def fill(span: slice) -> None:
        rows = X[gappy[span]]
        each, wide = (len(lifetimes), len(rows)), (len(lifetimes), *rows.shape)
        guess = marginal.Guess(
            tops=np.full(each, -np.inf),
            totals=np.zeros(wide),
            sums=np.zeros(wide),
            peaks=np.full(each, -np.inf),
            modes=np.zeros(wide),
        )
        marginal.guess_values(forest, known.inside, rows, lifetimes, guess)
        with np.errstate(invalid="ignore"):  # features without gaps have no estimates
            values = guess.modes[-1] if how == "mode" else ordered_sum(guess.sums / guess.totals) / len(lifetimes)
        filled[gappy[span]] = np.where(np.isnan(rows), values, rows)

    run(fill, spans(len(gappy), traversal.BLOCK), n_jobs)
    n_numbers = X.shape[1] - len(categories)
    filled[:, n_numbers:] = X[:, n_numbers:]
    for k, codes in enumerate(categories, n_numbers):
        wanting = np.flatnonzero(np.isnan(X[:, k]))
        if wanting.size:
            rows = np.repeat(filled[wanting], len(codes), axis=0)
            rows[:, k] = np.tile(codes, len(wanting))
            scores = mean_log_cell_masses(forest, known, rows, lifetimes, n_jobs).reshape(len(wanting), len(codes))
            filled[wanting, k] = codes[scores.argmax(axis=1)]
    return filled


def known_categories(forest: Forest, rows: Array | None, most: int = 64) -> list[Array]:
    """Return the codes of each category in `rows`, or else in boxes of the forest, the most frequent first.

    There is at least one for each: if none is known, the lower corner of the known world.
    """
    n_numbers = forest.weights.shape[1] - int(forest.n_categories[0])
    found = []
    for k in range(n_numbers, forest.weights.shape[1]):
        codes, weights = np.empty(0), np.empty(0)
        if rows is not None:
            codes = rows[~np.isnan(rows[:, k]), k]
            weights = np.ones(len(codes))
        elif forest.lower.shape[2]:
            is_alone = (forest.left == NONE) & (forest.counts > 0) & (forest.lower[..., k] == forest.upper[..., k])
            codes, weights = forest.lower[is_alone, k], forest.counts[is_alone]
        codes, places = np.unique(codes, return_inverse=True)
        order = np.argsort(-np.bincount(places, weights), kind="stable")[:most]
        found.append(codes[order] if len(codes) else forest.domain[:1, k] % ALL_YES)
    return found
