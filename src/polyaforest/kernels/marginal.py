"""Walks of rows with missing values: they follow both sides of the cuts along a missing feature.

Such a row gets the total over all leaves, or all cells, that it may be in. Comparisons with NaN are false, so
`contains`, `contains_live` and `extension` use only the values present.
"""

import math
from typing import NamedTuple

import numpy as np

from polyaforest.kernels.arrays import FADE_LOG_DENSITY, FADE_MASS, LEAST_LOG, NONE, Array
from polyaforest.kernels.branches import hazard_until, log_add, may_go
from polyaforest.kernels.geometry import (
    contains,
    contains_live,
    extension,
    first_category,
    is_question,
    linear_dimension,
    log_share,
)
from polyaforest.kernels.jit import jit, jit_helper, jit_inline
from polyaforest.kernels.polya import side_share
from polyaforest.kernels.traversal import fade


class WalkStack(NamedTuple):
    """The stack of nodes to visit."""

    nodes: Array  # int32
    births: Array  # float64: when the node was born
    logs: Array  # float64: a log-weight, or a log-volume
    firsts: Array  # int32: the first lifetime that the walk has not reached yet


class Found(NamedTuple):
    """Leaves or cells that a row may be in."""

    nodes: Array  # int32
    marks: Array  # int32: for a leaf, whether it lies inside the node's box; for a cell, the number of its lifetime
    logs: Array  # float64: its log-weight


@jit_helper
def new_stack(n_nodes):
    """Allocate the stack of a walk down trees of `n_nodes` nodes."""
    n = n_nodes + 1
    return WalkStack(np.empty(n, np.int32), np.empty(n), np.empty(n), np.empty(n, np.int32))


@jit_helper
def new_found(n):
    """Allocate a list of `n` leaves or cells."""
    return Found(np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n))


# ---- leaves --------------------------------------------------------------------------------------------------------


@jit
def leaf_values(forest, table, X, out):
    """Add the total of the table's values over all leaves that each row may be in to `out`, (T, n) or (1, n).

    For logarithms, add the logarithm of the total. A density is multiplied by the volume of the leaf's slice over the
    missing features: the result is the density of the features present.
    """
    work, found = new_stack(forest.left.shape[1]), new_found(2 * forest.left.shape[1] + 1)
    is_log, sliced = table.fading != FADE_MASS, table.fading == FADE_LOG_DENSITY
    for t in range(forest.left.shape[0]):
        inside, complement, values = table.inside[t], table.complement[t], out[t if out.shape[0] > 1 else 0]
        for i in range(X.shape[0]):
            total = value_outside(forest, table, t, X, i)
            n_found = find_leaves(forest, t, table.world, X, i, sliced, work, found)
            for place in range(n_found):
                j = found.nodes[place]
                value = inside[j] if found.marks[place] else complement[j]
                total = log_add(total, value + found.logs[place]) if is_log else total + value
            values[i] += total


@jit_helper
def value_outside(forest, table, t, X, i):
    """Return the value beyond the known world; unfaded if the values present lie within."""
    lower, upper, weights, n_categories = table.world[0], table.world[1], forest.weights[t], forest.n_categories[0]
    size = linear_dimension(lower[t], upper[t], weights, n_categories)
    reach = extension(lower, upper, t, weights, X, i, n_categories) / (size if size > 0.0 else 1.0)
    value = fade(table.outside[t], table.fading, reach, X.shape[1])
    if table.fading == FADE_LOG_DENSITY:
        is_within = contains(lower, upper, t, X, i, n_categories)
        value += log_slice_outside(lower[t], upper[t], weights, size, X, i, is_within, n_categories)
    return value


@jit_helper
def log_slice_outside(lower, upper, weights, size, X, i, is_within, n_categories):
    """Return the log of the integral of the density beyond the world over the missing features."""
    n_features, log_side, log_all = X.shape[1], 0.0, 0.0
    for k in range(first_category(n_features, n_categories)):
        side = upper[k] - lower[k]
        if math.isnan(X[i, k]) and side > 0.0:
            log_side += math.log(side)
            log_all += math.log(side + 2.0 * size / (n_features * weights[k]) if weights[k] > 0.0 else side)
    if not is_within:
        return log_all
    return log_all + math.log(-math.expm1(log_side - log_all)) if log_side < log_all else -np.inf


@jit_helper
def find_leaves(forest, t, world, X, i, sliced, work, found):
    """List the leaves of tree `t` that row `i` may be in; return how many.

    If a value present lies outside a box, only its complementary leaf counts. Otherwise the row may be inside, and also
    outside if the box is narrower than its region along a missing feature. With `sliced`, the log-weights are the log
    volumes of the leaves' slices over the missing features.
    """
    lower, upper, feature, cut = forest.lower[t], forest.upper[t], forest.feature[t], forest.cut[t]
    n_categories = forest.n_categories[0]
    if not contains(world[0], world[1], t, X, i, n_categories):
        return 0
    volume = log_slice(world[0, t], world[1, t], X, i, n_categories) if sliced else 0.0
    work.nodes[0], work.logs[0] = forest.root[t], volume
    n_waiting, n_found = 1, 0
    while n_waiting > 0:
        n_waiting -= 1
        j, volume = work.nodes[n_waiting], work.logs[n_waiting]
        if not contains_live(lower, upper, j, X, i, n_categories):
            n_found = note(found, n_found, j, 0, volume if sliced else 0.0)
            continue
        log_f = log_missing_share(forest, t, j, world, X, i)
        if log_f < 0.0:
            n_found = note(found, n_found, j, 0, volume + math.log(-math.expm1(log_f)) if sliced else 0.0)
        volume += log_f if sliced else 0.0
        if feature[j] == NONE:
            n_found = note(found, n_found, j, 1, volume)
            continue
        is_sliced = sliced and math.isnan(X[i, feature[j]])
        for side in range(2):
            if may_go(X, i, feature[j], cut[j], side == 0, n_categories):
                work.nodes[n_waiting] = forest.left[t, j] if side == 0 else forest.right[t, j]
                share = math.log(side_share(forest, t, j, world, side == 0)) if is_sliced else 0.0
                work.logs[n_waiting] = volume + share
                n_waiting += 1
    return n_found


@jit_inline
def note(found, n_found, j, mark, log_weight):
    """Append a leaf or cell to a list; return the new length."""
    found.nodes[n_found], found.marks[n_found], found.logs[n_found] = j, mark, log_weight
    return n_found + 1


@jit_helper
def log_slice(lower, upper, X, i, n_categories):
    """Return the log of the volume of a box over the missing live features of row `i`."""
    total = 0.0
    for k in range(first_category(lower.shape[0], n_categories)):
        if math.isnan(X[i, k]) and lower[k] < upper[k]:
            total += math.log(upper[k] - lower[k])
    return total


@jit_helper
def log_missing_share(forest, t, j, world, X, i):
    """Return the log of the share of node `j`'s box in the volume of its region over the missing live features.

    As in `log_live_share`, the region is the parent's box on this side of its cut, or the known world for the root.
    """
    lower, upper, above = forest.lower[t], forest.upper[t], forest.parent[t, j]
    total = 0.0
    for k in range(first_category(lower.shape[1], forest.n_categories[0])):
        if not math.isnan(X[i, k]) or lower[j, k] >= upper[j, k]:
            continue
        low, high = (world[0, t, k], world[1, t, k]) if above == NONE else (lower[above, k], upper[above, k])
        if above != NONE and forest.feature[t, above] == k:
            is_left, xi = forest.left[t, above] == j, forest.cut[t, above]
            low, high = (low, xi) if is_left else (xi, high)
        total += log_share(low, high, lower[j, k], upper[j, k])
    return total


# ---- cells ---------------------------------------------------------------------------------------------------------


@jit_helper
def find_cells(forest, t, X, i, lifetimes, work, found):
    """List the cells of tree `t` that row `i` may be in at each of the ascending `lifetimes`; return how many.

    Each comes with the log-probability that the row is still with it, by the distances along the features that are
    there. Over the cells, mass times probability adds up to a kernel density of those features.
    """
    lower, upper, weights = forest.lower[t], forest.upper[t], forest.weights[t]
    feature, cut, time, n_lifetimes = forest.feature[t], forest.cut[t], forest.time[t], lifetimes.shape[0]
    n_categories, base = forest.n_categories[0], 0.0
    if lower.shape[1] == 0:
        base = extension(forest.domain[:1], forest.domain[1:], 0, weights, X, i, n_categories)
    work.nodes[0], work.births[0], work.logs[0], work.firsts[0] = forest.root[t], 0.0, 0.0, 0
    n_waiting, n_found = 1, 0
    while n_waiting > 0:
        n_waiting -= 1
        j, began, log_weight = work.nodes[n_waiting], work.births[n_waiting], work.logs[n_waiting]
        s, ends, is_leaf = work.firsts[n_waiting], time[j], feature[j] == NONE
        rate = base + extension(lower, upper, j, weights, X, i, n_categories)
        while s < n_lifetimes and (lifetimes[s] < ends or is_leaf):
            n_found = note(found, n_found, j, s, log_weight - hazard_until(lifetimes[s], began, ends, rate))
            s += 1
        if s == n_lifetimes:
            continue
        log_weight -= (ends - began) * rate if rate > 0.0 else 0.0
        for side in range(2):
            if may_go(X, i, feature[j], cut[j], side == 0, n_categories):
                work.nodes[n_waiting] = forest.left[t, j] if side == 0 else forest.right[t, j]
                work.births[n_waiting], work.logs[n_waiting], work.firsts[n_waiting] = ends, log_weight, s
                n_waiting += 1
    return n_found


@jit
def cell_masses(forest, node_masses, X, lifetimes, log_masses):
    """Add the log of the total mass of the cells that each row may be in to `log_masses`, (T, S, n) or (1, S, n).

    `node_masses`, (T, C), are logarithms.
    """
    n_lifetimes = lifetimes.shape[0]
    work, found = new_stack(forest.left.shape[1]), new_found(n_lifetimes * forest.left.shape[1] + 1)
    totals = np.empty(n_lifetimes)
    for t in range(forest.left.shape[0]):
        masses, logs = node_masses[t], log_masses[t if log_masses.shape[0] > 1 else 0]
        for i in range(X.shape[0]):
            n_found = find_cells(forest, t, X, i, lifetimes, work, found)
            totals[:] = -np.inf
            for place in range(n_found):
                s = found.marks[place]
                totals[s] = log_add(totals[s], masses[found.nodes[place]] + found.logs[place])
            for s in range(n_lifetimes):
                logs[s, i] += max(totals[s], LEAST_LOG)


# ---- imputation ------------------------------------------------------------------------------------------------------


class Guess(NamedTuple):
    """Estimates of missing values at each of S lifetimes, accumulated over cells.

    `sums` over `totals` are weighted means of the centres of cells. Both are in units of exp(`tops`), so that they
    cannot underflow. `modes` are the centres of the heaviest cells, whose log-weights are `peaks`.
    """

    tops: Array  # float64 (S, n), -inf at first
    totals: Array  # float64 (S, n, D), zeros at first
    sums: Array  # float64 (S, n, D), zeros at first
    peaks: Array  # float64 (S, n), -inf at first
    modes: Array  # float64 (S, n, D)


@jit
def guess_values(forest, node_masses, X, lifetimes, guess):
    """Add the cells that each row may be in to `guess`, weighted by mass; `node_masses`, (T, C), are logarithms."""
    work, found = new_stack(forest.left.shape[1]), new_found(lifetimes.shape[0] * forest.left.shape[1] + 1)
    bounds = np.empty((2, X.shape[1]))
    for t in range(forest.left.shape[0]):
        masses = node_masses[t]
        for i in range(X.shape[0]):
            n_found = find_cells(forest, t, X, i, lifetimes, work, found)
            for place in range(n_found):
                j = found.nodes[place]
                set_bounds(forest, t, j, X, i, bounds)
                add_cell(forest, masses[j] + found.logs[place], bounds, X, i, found.marks[place], guess)


@jit_helper
def set_bounds(forest, t, j, X, i, bounds):
    """Set the bounds of node `j` along the missing numbers of row `i`: its box, or its region in a process."""
    boxed, n_categories = forest.lower.shape[2] > 0, forest.n_categories[0]
    for k in range(first_category(X.shape[1], n_categories)):
        if math.isnan(X[i, k]):
            bounds[0, k] = forest.lower[t, j, k] if boxed else forest.domain[0, k]
            bounds[1, k] = forest.upper[t, j, k] if boxed else forest.domain[1, k]
    child, above = j, NONE if boxed else forest.parent[t, j]
    while above != NONE:
        delta, xi = forest.feature[t, above], forest.cut[t, above]
        if is_question(delta, X.shape[1], n_categories):
            pass
        elif forest.left[t, above] == child:
            bounds[1, delta] = min(bounds[1, delta], xi)
        else:
            bounds[0, delta] = max(bounds[0, delta], xi)
        child, above = above, forest.parent[t, above]


@jit_helper
def add_cell(forest, log_weight, bounds, X, i, s, guess):
    """Add one cell to the imputed numbers of row `i`.

    Boxes of a tree fit the data. The width of a cell of a process is random, and wide cells locate the data poorly: so
    the weight of such a cell is its mass divided by its width.
    """
    log_weight = max(log_weight, LEAST_LOG)  # all cells beyond reach have equal weight
    if log_weight > guess.tops[s, i]:
        scale = math.exp(guess.tops[s, i] - log_weight)
        guess.tops[s, i] = log_weight
        for k in range(X.shape[1]):
            guess.totals[s, i, k] *= scale
            guess.sums[s, i, k] *= scale
    weight, log_density = math.exp(log_weight - guess.tops[s, i]), log_weight
    boxed, n = forest.lower.shape[2] > 0, first_category(X.shape[1], forest.n_categories[0])
    for k in range(n):
        if math.isnan(X[i, k]):
            width = bounds[1, k] - bounds[0, k]
            factor = 1.0 if boxed or width <= 0.0 else (forest.domain[1, k] - forest.domain[0, k]) / width
            guess.totals[s, i, k] += factor * weight
            guess.sums[s, i, k] += factor * weight * 0.5 * (bounds[0, k] + bounds[1, k])
            log_density += math.log(factor)
    if log_density > guess.peaks[s, i]:
        guess.peaks[s, i] = log_density
        for k in range(n):
            guess.modes[s, i, k] = 0.5 * (bounds[0, k] + bounds[1, k])
