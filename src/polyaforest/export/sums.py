"""Scores as sums over the nodes that a row comes by, for formats without loops over lifetimes.

The score of cells is a sum over lifetimes of the log-mass of a cell, minus distances times durations on the path to it.
A node is the cell of some of the lifetimes, and its duration does not depend on the nodes below. So each node has a
value to add, and a cost of a unit of distance from its box. The value of a path of other scores is that of its leaf.
"""

from __future__ import annotations

import numpy as np

from polyaforest.export.document import Document
from polyaforest.kernels.arrays import Array


def node_values(tree: Document, lifetimes: Array | None) -> tuple[Array, Array]:
    """Return what each node adds to the log-mass of a row, and its duration, summed over the lifetimes, if any."""
    log_mass, time, is_leaf = tree["log_mass"], tree["time"], tree["left"] < 0
    if lifetimes is None:
        return np.where(is_leaf, log_mass, 0.0), np.zeros(len(time))
    born = np.zeros(len(time))
    for side in ("left", "right"):
        born[tree[side][~is_leaf]] = time[~is_leaf]
    times = lifetimes[:, None]
    n_cells = ((born <= times) & (times < np.where(is_leaf, np.inf, time))).sum(axis=0)
    lived = np.maximum(np.minimum(times, time) - born, 0.0).sum(axis=0)
    return np.where(n_cells > 0, n_cells * log_mass, 0.0), lived


def duration(tree: Document, lifetimes: Array) -> float:
    """Return the duration of every path of a process, summed over the lifetimes: all leaves end at the same time."""
    return float(np.minimum(lifetimes, tree["time"].max()).sum())
