"""How sure the posterior is: for the mass of every node, how far its square is on average from the square of its mean.

A node's mass is a product of independent shares, each with a Beta posterior (`kernels.polya`), so the mean of its
square is the product of theirs. What is kept is the *excess* log(E[m²] / E[m]²), a sum with one term for each share: it
is 0 for a mass that is known exactly, and keeps its digits where a difference of moments would cancel.
"""

import math
from typing import NamedTuple

import numpy as np

from polyaforest.core.arrays import NONE, Array
from polyaforest.core.jit import jit, jit_inline
from polyaforest.kernels.geometry import extension, log_live_share
from polyaforest.kernels.polya import cut_share, cut_strength, restriction_strength, side_bounds
from polyaforest.kernels.traversal import climb, descend, find_cells, set_rates


class Doubt(NamedTuple):
    """The excess of every node of a forest, laid out as its `Posterior` is."""

    inside: Array  # float64 (T, C): of the mass of the node's own region, restricted to its box
    complement: Array  # float64 (T, C): of what that restriction left out, 0 where it left out nothing
    outside: Array  # float64 (T,): of what lies beyond the known world


@jit_inline
def log_excess(a, b):
    """log(E[s²] / E[s]²) of a share s ~ Beta(a, b)."""
    return math.log1p(b / (a * (a + b + 1.0)))


@jit
def set_doubts(forest, first, last, gamma, is_open, world, doubt):
    """Fill in `doubt` for the trees from `first` up to `last`."""
    for t in range(first, last):
        set_doubt(forest, t, gamma, is_open, world, doubt)


@jit
def set_doubt(forest, t, gamma, is_open, world, doubt):
    """Fill in row `t` of `doubt`, factor by factor as `polya.set_posterior` multiplies means."""
    root, width = forest.root[t], forest.left.shape[1]
    depth, waiting = np.zeros(width, np.int32), np.empty(width, np.int32)
    within = 0.0
    if is_open:
        beyond, known = 0.5 * gamma + forest.outside[t], 0.5 * gamma + forest.counts[t, root]
        doubt.outside[t], within = log_excess(beyond, known), log_excess(known, beyond)
    box_lower, box_upper = forest.lower[t, root], forest.upper[t, root]
    log_f = log_live_share(world[0, t], world[1, t], NONE, 0.0, True, box_lower, box_upper)
    doubt_restriction(forest, t, root, gamma, log_f, within, doubt)
    waiting[0] = root
    n_waiting = 1
    while n_waiting > 0:
        n_waiting -= 1
        j = waiting[n_waiting]
        if forest.left[t, j] == NONE:
            continue
        for child in (forest.left[t, j], forest.right[t, j]):
            doubt_child(forest, t, j, child, depth[j], gamma, world, doubt)
            depth[child] = depth[j] + 1
            waiting[n_waiting] = child
            n_waiting += 1


@jit
def doubt_child(forest, t, j, child, depth, gamma, world, doubt):
    """The excess of one child of `j`: that of its side of the cut, then of the restriction to its box."""
    xi, delta = forest.cut[t, j], forest.feature[t, j]
    goes_left = forest.left[t, j] == child
    low, high = side_bounds(forest, t, j, world)
    strength, n = cut_strength(gamma, depth, forest.lower.shape[2] > 0), forest.counts[t, child]
    mine = strength * cut_share(low, high, xi, goes_left) + n
    others = strength * cut_share(low, high, xi, not goes_left) + (forest.counts[t, j] - n)
    excess = doubt.inside[t, j] + log_excess(mine, others)
    box_lower, box_upper = forest.lower[t, child], forest.upper[t, child]
    log_f = log_live_share(forest.lower[t, j], forest.upper[t, j], delta, xi, goes_left, box_lower, box_upper)
    doubt_restriction(forest, t, child, restriction_strength(gamma, depth), log_f, excess, doubt)


@jit
def doubt_restriction(forest, t, j, strength, log_f, excess, doubt):
    """Add to the `excess` of a region that of the share which the box of node `j` takes of it, or leaves out."""
    left_out = -math.expm1(log_f)
    doubt.inside[t, j], doubt.complement[t, j] = excess, 0.0
    if left_out > 0.0:
        within, without = strength * math.exp(log_f) + forest.counts[t, j], strength * left_out
        doubt.inside[t, j] += log_excess(within, without)
        doubt.complement[t, j] = excess + log_excess(without, within)


@jit
def cells_of_rows(forest, X, lifetime, nodes, log_weights):
    """Write the cell of each row at a `lifetime`, (1,), and the log-probability that the row is in it, both (T, n)."""
    width = forest.left.shape[1]
    path, rates = np.empty(width, np.uint32), np.empty(width)
    active, reached = np.empty(X.shape[0], np.uint32), np.empty(X.shape[0], np.uint32)
    cell, log_weight = np.empty(1, np.uint32), np.empty(1)
    domain_lower, domain_upper, is_process = forest.domain[:1], forest.domain[1:], forest.lower.shape[2] == 0
    for t in range(forest.left.shape[0]):
        left, right, feature, cut = forest.left[t], forest.right[t], forest.feature[t], forest.cut[t]
        lower, upper, parent, time = forest.lower[t], forest.upper[t], forest.parent[t], forest.time[t]
        weights, root = forest.weights[t], np.uint32(forest.root[t])
        descend(left, right, feature, cut, root, X, active, reached, time, lifetime[0])
        for i in range(np.uint32(X.shape[0])):
            base = extension(domain_lower, domain_upper, 0, weights, X, i) if is_process else 0.0
            length = climb(parent, reached[i], path)
            set_rates(lower, upper, weights, base, X, i, path, length, rates)
            find_cells(time, lifetime, path, length, rates, cell, log_weight)
            nodes[t, i], log_weights[t, i] = cell[0], log_weight[0]
