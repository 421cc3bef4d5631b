"""Second moments of the posterior mass of every node.

A node's mass is a product of independent shares, each with a Beta posterior (`kernels.polya`), so its second moment is
the product of theirs. The kernels store the *excess* log(E[m²] / E[m]²), a sum with one term per share: it is 0 for a
mass known exactly, and does not suffer the cancellation of a difference of moments.
"""

import math
from typing import NamedTuple

import numpy as np

from polyaforest.kernels.arrays import NONE, Array
from polyaforest.kernels.geometry import extension, log_live_share
from polyaforest.kernels.jit import jit, jit_borrowing, jit_helper
from polyaforest.kernels.polya import cut_strength, restriction_strength, side_share
from polyaforest.kernels.traversal import descend, enter, follow, log_stay, new_chart, new_descent, new_path


class SecondMoments(NamedTuple):
    """The excess of every node of a forest, with the layout of `Posterior`."""

    inside: Array  # float64 (T, C): of the node's own region, restricted to its box
    complement: Array  # float64 (T, C): of the part that the restriction leaves out, 0 where it leaves out nothing
    outside: Array  # float64 (T,): of the outside of the known world


@jit_borrowing
def log_excess(a, b):
    """Return log(E[s²] / E[s]²) of a share s ~ Beta(a, b)."""
    return math.log1p(b / (a * (a + b + 1.0)))


@jit
def set_second_moments(forest, first, last, gamma, is_open, world, second):
    """Fill in `second` for the trees from `first` up to `last`."""
    for t in range(first, last):
        set_tree_moments(forest, t, gamma, is_open, world, second)


@jit_helper
def set_tree_moments(forest, t, gamma, is_open, world, second):
    """Fill in row `t` of `second`, factor by factor as `polya.set_posteriors` multiplies means."""
    root, width = forest.root[t], forest.left.shape[1]
    depth, waiting = np.zeros(width, np.int32), np.empty(width, np.int32)
    within = 0.0
    if is_open:
        beyond, known = 0.5 * gamma + forest.outside[t], 0.5 * gamma + forest.counts[t, root]
        second.outside[t], within = log_excess(beyond, known), log_excess(known, beyond)
    box_lower, box_upper = forest.lower[t, root], forest.upper[t, root]
    n_categories = forest.n_categories[0]
    log_f = log_live_share(world[0, t], world[1, t], NONE, 0.0, True, box_lower, box_upper, n_categories)
    set_restriction_moments(forest, t, root, gamma, log_f, within, second)
    waiting[0] = root
    n_waiting = 1
    while n_waiting > 0:
        n_waiting -= 1
        j = waiting[n_waiting]
        if forest.left[t, j] == NONE:
            continue
        for child in (forest.left[t, j], forest.right[t, j]):
            set_child_moments(forest, t, j, child, depth[j], gamma, world, second)
            depth[child] = depth[j] + 1
            waiting[n_waiting] = child
            n_waiting += 1


@jit_helper
def set_child_moments(forest, t, j, child, depth, gamma, world, second):
    """Set the excess of one child of `j`: that of its side of the cut, then of the restriction to its box."""
    xi, delta = forest.cut[t, j], forest.feature[t, j]
    is_left = forest.left[t, j] == child
    strength, n = cut_strength(gamma, depth, forest.lower.shape[2] > 0), forest.counts[t, child]
    mine = strength * side_share(forest, t, j, world, is_left) + n
    others = strength * side_share(forest, t, j, world, not is_left) + (forest.counts[t, j] - n)
    excess = second.inside[t, j] + log_excess(mine, others)
    whole, part = (forest.lower[t, j], forest.upper[t, j]), (forest.lower[t, child], forest.upper[t, child])
    log_f = log_live_share(*whole, delta, xi, is_left, *part, forest.n_categories[0])
    set_restriction_moments(forest, t, child, restriction_strength(gamma, depth), log_f, excess, second)


@jit_helper
def set_restriction_moments(forest, t, j, strength, log_f, excess, second):
    """Add the excess of the share of a region that the box of node `j` takes, or leaves out, to that of the region."""
    left_out = -math.expm1(log_f)
    second.inside[t, j], second.complement[t, j] = excess, 0.0
    if left_out > 0.0:
        within, without = strength * math.exp(log_f) + forest.counts[t, j], strength * left_out
        second.inside[t, j] += log_excess(within, without)
        second.complement[t, j] = excess + log_excess(without, within)


@jit
def cells_of_rows(forest, X, lifetime, nodes, log_weights):
    """Write the cell of each row at a `lifetime`, (1,), and the log-probability that the row is in it, both (T, n)."""
    width = forest.left.shape[1]
    chart, path, descent = new_chart(width, 1), new_path(width), new_descent(X.shape[0], width)
    reached, n_categories = descent.nodes, forest.n_categories[0]
    domain_lower, domain_upper, is_process = forest.domain[:1], forest.domain[1:], forest.lower.shape[2] == 0
    for t in range(forest.left.shape[0]):
        lower, upper, parent, time = forest.lower[t], forest.upper[t], forest.parent[t], forest.time[t]
        weights = forest.weights[t]
        descend(forest, t, X, lifetime[0], descent)
        for i in range(np.uint32(X.shape[0])):
            j = reached[i]
            if chart.turn[j] != t + 1:
                enter(chart, t + 1, parent, time, lifetime, j, path.nodes)
            base = extension(domain_lower, domain_upper, 0, weights, X, i, n_categories) if is_process else 0.0
            first = follow(lower, upper, weights, base, parent, time, X, i, j, chart.step[j], path, n_categories)
            nodes[t, i], log_weights[t, i] = chart.cells[j, 0], log_stay(chart, path, j, 0, first)
