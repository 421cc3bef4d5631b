"""What scores rows get that a forest has not learned, told from rows that it has: the scores to compare new ones with.

A row that was learned vouches for itself, so its own score says too little of what a new row would get. Trees that take
samples are easily asked for another: each row is scored by the trees that did not take it. Where a process counts every
row, each is counted out again; and those that hold up a side of its domain are taken to lie beyond it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import numpy as np

from polyaforest.core.arrays import Array

LEAST_ROWS = 1000  # rows to calibrate with, where there are as many
_MOST_ROWS = 10**9  # more than can be held; for a rate of next to nothing
_ROWS_PER_ALARM = 10  # rows to calibrate with for every false alarm that is expected among them


def n_to_calibrate(false_alarm_rate: float | None) -> int:
    """How many rows to calibrate with: enough to tell the share asked for."""
    if false_alarm_rate is None:
        return LEAST_ROWS
    return max(LEAST_ROWS, ceil(min(_ROWS_PER_ALARM / false_alarm_rate, _MOST_ROWS)))


def some_rows(n_rows: int, n_wanted: int) -> Array:
    """So many rows of a table, or all of them, in order; always the same ones."""
    if n_rows <= n_wanted:
        return np.arange(n_rows)
    return np.sort(np.random.default_rng(n_rows).choice(n_rows, n_wanted, replace=False))


def weights_of_strangers(members: Sequence[Array], chosen: Array, n_rows: int) -> Array:
    """How much each tree is to count for the rows `chosen` of `n_rows`, (T, n): nothing where it holds the row.

    Trees with samples of the same size share the weight they would all have together, so that the sizes count as ever.
    A row that all trees hold has no weights.
    """
    sizes = np.array([len(rows) for rows in members])
    is_stranger = np.ones((len(members), len(chosen)), np.bool_)
    place = np.full(n_rows, len(chosen))
    place[chosen] = np.arange(len(chosen))
    for row, rows in zip(is_stranger, members, strict=True):
        held = place[rows]
        row[held[held < len(chosen)]] = False
    weights = np.zeros(is_stranger.shape)
    for size in np.unique(sizes):
        alike = sizes == size
        n_strangers = is_stranger[alike].sum(axis=0)
        weights[alike] = is_stranger[alike] * (alike.sum() / np.maximum(n_strangers, 1))
    total = weights.sum(axis=0)
    return weights / np.where(total > 0, total, 1.0)


def boxes_without(rows: Array, chosen: Array) -> Array:
    """For each of the rows `chosen` the bounding box of all others, (2, n, D)."""
    low, high = np.empty((2, 2, rows.shape[1]))
    for k, column in enumerate(rows.T):
        low[:, k], high[:, k] = np.partition(column, 1)[:2], -np.partition(-column, 1)[:2]
    own = rows[chosen]
    return np.stack([np.where(own > low[0], low[0], low[1]), np.where(own < high[0], high[0], high[1])])


def as_beyond(rows: Array, known: Array, domain: Array) -> Array:
    """`rows` moved as far beyond the `domain`, (2, D), as they lie beyond what is `known` without them, (2, n, D)."""
    below, above = np.minimum(rows - known[0], 0.0), np.maximum(rows - known[1], 0.0)
    return np.where(below < 0, domain[0] + below, np.where(above > 0, domain[1] + above, rows))
