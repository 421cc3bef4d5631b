"""Walks down a forest: find the leaf or cell of each row, and look up its value.

Boxes are nested, so a row in a node's box is in the boxes of all its ancestors. Every walk therefore goes down by the
cuts only, all rows together, and checks boxes on the way up, until the first that holds the row.

Arrays are taken out of the forest once per tree and passed one by one. Taking them out once per row would update a
reference count that all threads share, which costs several times the walk itself.
"""

import math
from typing import NamedTuple

import numpy as np

from polyaforest.kernels import cubes
from polyaforest.kernels.arrays import FADE_LOG_MASS, FADE_MASS, LEAST_LOG, NONE, Array, LeafKind
from polyaforest.kernels.cuts import birth_time
from polyaforest.kernels.geometry import (
    contains,
    contains_live,
    extension,
    extensions,
    first_category,
    goes_left,
    linear_dimension,
)
from polyaforest.kernels.jit import jit, jit_borrowing_helper, jit_helper, jit_inline

_OBSERVED_I = int(LeafKind.OBSERVED_I)
_OBSERVED_II = int(LeafKind.OBSERVED_II)
_COMPLEMENTARY = int(LeafKind.COMPLEMENTARY)
_OUTSIDE = int(LeafKind.OUTSIDE)
BLOCK = 2048  # rows walked together: they and one tree fit the second-level cache
_NUMBERS, _LEAST_ROWS = 2**17, 64  # numbers in such a block if rows are long, and the minimum of rows
_BLOCK_SIZE, _FEWEST = 2**15, 256  # numbers in a block of rows that all trees count, and the minimum of rows
_NODES_PER_ROW = 16  # nodes per row up to which preparing a tree for a joint descent pays


def rows_together(n_features):
    """Return the number of rows to walk together."""
    return min(BLOCK, max(_NUMBERS // n_features, _LEAST_ROWS))


class Descent(NamedTuple):
    """Scratch for walking n rows down one tree of C nodes together."""

    nodes: Array  # uint32 (n,): where each row is
    active: Array  # uint32 (n,): the rows that have not arrived
    children: Array  # uint32 (C, 2): left and right child of each node; the node itself where walks end
    features: Array  # uint32 (C,): the dimension of each cut; arbitrary where walks end


@jit_helper
def new_descent(n, width):
    """Allocate scratch for `n` rows and trees of `width` nodes; unwritten pages take no memory."""
    nodes, active = np.empty(n, np.uint32), np.empty(n, np.uint32)
    return Descent(nodes, active, np.empty((width, 2), np.uint32), np.empty(width, np.uint32))


@jit_helper
def descend(forest, t, X, until, descent):
    """Follow the cuts of tree `t` made up to time `until` for all rows of `X`; write where they end to `descent.nodes`.

    Rows go down together, level by level: their steps are independent, and a row that has arrived stays where it is, so
    there is no branch to predict. After about as many levels as a balanced tree has, only the rows that have not
    arrived continue. For few rows and a large tree, rows go one by one.
    """
    left, right, feature, cut, time = forest.left[t], forest.right[t], forest.feature[t], forest.cut[t], forest.time[t]
    nodes, active, children, features = descent.nodes, descent.active, descent.children, descent.features
    n_categories = forest.n_categories[0]
    n, n_nodes, root = np.uint32(X.shape[0]), np.uint32(forest.size[t]), np.uint32(forest.root[t])
    if n * _NODES_PER_ROW < n_nodes:
        for i in range(n):
            j = root
            while feature[j] != NONE and time[j] <= until:
                j = np.uint32(left[j] if goes_left(X, i, feature[j], cut[j], n_categories) else right[j])
            nodes[i] = j
        return
    for j in range(n_nodes):
        is_cut = feature[j] != NONE and time[j] <= until
        children[j, 0], children[j, 1] = (np.uint32(left[j]), np.uint32(right[j])) if is_cut else (j, j)
        features[j] = feature[j] if is_cut else 0
    for i in range(n):
        nodes[i], active[i] = root, i
    if n_categories > 0:
        descend_mixed(children, features, cut, X, n_categories, nodes)
        return
    n_levels = n_nodes
    while n_levels > 1:
        n_levels >>= np.uint32(1)
        for i in range(n):
            nodes[i] = next_node(children, features, cut, nodes[i], X, i)
    n_active = n
    while n_active > 0:
        n_left = np.uint32(0)
        for a in range(n_active):  # without a branch: rows that have arrived are overwritten in the list
            i = active[a]
            j = nodes[i] = next_node(children, features, cut, nodes[i], X, i)
            active[n_left] = i
            n_left += np.uint32(children[j, 0] != j)
        n_active = n_left


@jit_inline
def next_node(children, features, cut, j, X, i):
    """Return the child of node `j` that row `i` goes to."""
    return children[j, np.uint32(not X[i, features[j]] <= cut[j])]


@jit_borrowing_helper
def descend_mixed(children, features, cut, X, n_categories, nodes):
    """Follow cuts of numbers and categories for all rows of `X`, from their `nodes` on, one row after another."""
    for i in range(np.uint32(X.shape[0])):
        j = nodes[i]
        while children[j, 0] != j:
            is_left = goes_left(X, i, np.int64(features[j]), cut[j], n_categories)
            j = children[j, np.uint32(not is_left)]
        nodes[i] = j


@jit
def count_rows(forest, first, last, X, counts):
    """Count the rows of `X` below every node of the processes from `first` up to `last` into `counts`, (T, C), zeros.

    Return how many lie outside the domain. Each block of rows goes through all trees while it is in the cache.
    """
    lower, upper, n_block = forest.domain[:1], forest.domain[1:], max(_BLOCK_SIZE // X.shape[1], _FEWEST)
    descent, is_inside = new_descent(min(n_block, X.shape[0]), forest.left.shape[1]), np.empty(n_block, np.bool_)
    nodes, outside = descent.nodes, 0
    for start in range(0, X.shape[0], n_block):
        rows = X[start : start + n_block]
        for i in range(np.uint32(rows.shape[0])):
            is_inside[i] = contains(lower, upper, 0, rows, i, forest.n_categories[0])
            outside += not is_inside[i]
        for t in range(first, last):
            descend(forest, t, rows, np.inf, descent)
            reached = counts[t]
            for i in range(np.uint32(rows.shape[0])):
                reached[nodes[i]] += is_inside[i]
    for t in range(first, last):
        for j in range(forest.size[t] - 1, 0, -1):  # children come after their parents
            counts[t, forest.parent[t, j]] += counts[t, j]
    return outside


@jit_inline
def climb(parent, j, path):
    """Write the nodes from `j` up to the root to `path`; return how many there are."""
    length = np.uint32(0)
    while True:
        path[length] = j
        length += np.uint32(1)
        above = parent[j]
        if above == NONE:
            return length
        j = np.uint32(above)


@jit_inline
def first_holder(lower, upper, X, i, path, length, n_categories):
    """Return the place on `path`, from 1 upwards, of the first box that holds row `i`; `length` if there is none."""
    low, high = np.uint32(1), length
    while low < high:
        middle = (low + high) >> np.uint32(1)
        if contains(lower, upper, path[middle], X, i, n_categories):
            high = middle
        else:
            low = middle + np.uint32(1)
    return low


@jit_inline
def find_leaf(lower, upper, X, i, path, holder, n_categories):
    """Return the node at which the walk of row `i` ends, and whether it ends inside that node's box.

    The boxes from place `holder` of the `path` upwards hold the row. Below it, the walk ends in a complementary leaf at
    the first box that excludes the row in a live dimension.
    """
    step = holder
    while step > 0:
        step -= np.uint32(1)
        if not contains_live(lower, upper, path[step], X, i, n_categories):
            return path[step], False
    return path[0], True


@jit
def leaf_values(forest, table, X, out):
    """Add the table's value for the leaf of each row in each tree to `out`, float64 (T, n), or (1, n) for the sums."""
    path, descent = np.empty(forest.left.shape[1], np.uint32), new_descent(X.shape[0], forest.left.shape[1])
    nodes = descent.nodes
    world_lower, world_upper = table.world[0], table.world[1]
    boxed, per_tree, n_categories = forest.lower.shape[2] > 0, out.shape[0] > 1, forest.n_categories[0]
    for t in range(np.uint32(forest.left.shape[0])):
        lower, upper, parent, weights = forest.lower[t], forest.upper[t], forest.parent[t], forest.weights[t]
        inside, complement, values = table.inside[t], table.complement[t], out[t if per_tree else np.uint64(0)]
        size = linear_dimension(world_lower[t], world_upper[t], weights, n_categories)
        descend(forest, t, X, np.inf, descent)
        for i in range(np.uint32(X.shape[0])):
            j = nodes[i]
            if boxed:
                is_held = contains(lower, upper, j, X, i, n_categories)
            else:
                is_held = contains(world_lower, world_upper, t, X, i, n_categories)
            if is_held:
                values[i] += inside[j]
                continue
            length = climb(parent, j, path)
            holder = first_holder(lower, upper, X, i, path, length, n_categories) if boxed else length
            if boxed and (holder < length or contains(world_lower, world_upper, t, X, i, n_categories)):
                j, is_inside = find_leaf(lower, upper, X, i, path, holder, n_categories)
                values[i] += inside[j] if is_inside else complement[j]
            else:
                distance = extension(world_lower, world_upper, t, weights, X, i, n_categories)
                reach = distance / (size if size > 0.0 else 1.0)
                values[i] += fade(table.outside[t], table.fading, reach, X.shape[1])


@jit_helper
def fade(value, fading, reach, n_features):
    """Return `value`, valid at the edge of the known world, faded to a distance of `reach` times its size."""
    reach = min(reach, -LEAST_LOG)
    if fading == FADE_MASS:
        return value / (1.0 + reach)
    if fading == FADE_LOG_MASS:
        return value - math.log1p(reach)
    return value - n_features * reach


@jit
def leaf_kinds(forest, world, X, nodes, kinds):
    """Write the leaf of each row in each tree: its node and `LeafKind`, both (T, n); node NONE when outside."""
    path, descent = np.empty(forest.left.shape[1], np.uint32), new_descent(X.shape[0], forest.left.shape[1])
    reached, n_categories = descent.nodes, forest.n_categories[0]
    for t in range(forest.left.shape[0]):
        lower, upper, parent = forest.lower[t], forest.upper[t], forest.parent[t]
        descend(forest, t, X, np.inf, descent)
        for i in range(X.shape[0]):
            if not contains(world[0], world[1], t, X, i, n_categories):
                nodes[t, i], kinds[t, i] = NONE, _OUTSIDE
                continue
            length = climb(parent, reached[i], path)
            j, is_inside = find_leaf(lower, upper, X, i, path, length, n_categories)
            nodes[t, i] = j
            kinds[t, i] = observed_kind(forest, t, j, world) if is_inside else _COMPLEMENTARY


@jit_helper
def observed_kind(forest, t, j, world):
    """Return the kind of a leaf whose box holds the row: full volume, collapsed, or an empty cell of a process."""
    if forest.counts[t, j] == 0:
        return _COMPLEMENTARY
    n = first_category(forest.lower.shape[2], forest.n_categories[0])
    for k in range(n):
        if world[0, t, k] < world[1, t, k] and not forest.lower[t, j, k] < forest.upper[t, j, k]:
            return _OBSERVED_I
    for k in range(n, forest.lower.shape[2]):
        live = cubes.live_questions(forest.lower[t, j, k], forest.upper[t, j, k])
        if live != cubes.live_questions(world[0, t, k], world[1, t, k]):
            return _OBSERVED_I
    return _OBSERVED_II


# ---- cells of rows at several lifetimes ------------------------------------------------------------------------------


class Chart(NamedTuple):
    """The cells on the path to each node of one tree at S lifetimes, shared by all rows that end there."""

    turn: Array  # int64 (C,): when the node was entered, 0 if it never was
    step: Array  # uint32 (C,): nodes above it
    cells: Array  # uint32 (C, S)
    steps: Array  # uint32 (C, S): nodes above each cell
    elapsed: Array  # float64 (C, S): the age of the cell at the lifetime


class Path(NamedTuple):
    """The path of one row down a tree, root first."""

    nodes: Array  # uint32 (C,)
    rates: Array  # float64 (C,): rate at which the row is cut off from each node: its distance from the box plus a base
    logs: Array  # float64 (C,): log-probability that it has not been cut off when the node is born


@jit_helper
def new_chart(width, n_lifetimes):
    """Allocate a chart for trees of `width` nodes; unwritten pages take no memory."""
    shape = (width, n_lifetimes)
    cells, steps = np.empty(shape, np.uint32), np.empty(shape, np.uint32)
    return Chart(np.zeros(width, np.int64), np.empty(width, np.uint32), cells, steps, np.empty(shape))


@jit_helper
def new_path(width):
    """Allocate a path."""
    return Path(np.empty(width, np.uint32), np.empty(width), np.empty(width))


@jit_borrowing_helper
def enter(chart, turn, parent, time, lifetimes, j, path):
    """Enter node `j` in the chart: its cells at each of the ascending `lifetimes`."""
    step = climb(parent, j, path)
    chart.turn[j], chart.step[j] = turn, step - np.uint32(1)
    s, began, above = 0, 0.0, np.uint32(0)
    while step > 0:
        step -= np.uint32(1)
        ends = time[path[step]]
        while s < lifetimes.shape[0] and (lifetimes[s] < ends or step == 0):
            chart.cells[j, s], chart.steps[j, s] = path[step], above
            chart.elapsed[j, s] = min(lifetimes[s], ends) - began
            s += 1
        began = ends
        above += np.uint32(1)


@jit_inline
def follow(lower, upper, weights, base, parent, time, X, i, j, last, path, n_categories):
    """Set the path of row `i` down to node `j`, step `last`; return the first step set.

    The climb stops at the first box at distance 0: the row is surely with all nodes above. A row at distance e from a
    node's box is still with the node after a time s with probability exp(-s * e): the extension of a Mondrian tree to
    the row (Alg. 5), integrated out.
    """
    step, distance = last, np.inf
    while True:
        if distance > 0.0:
            distance = extension(lower, upper, j, weights, X, i, n_categories)
        path.nodes[step], path.rates[step] = j, base + distance
        if step == 0 or path.rates[step] == 0.0:
            break
        j = np.uint32(parent[j])
        step -= np.uint32(1)
    first, log_weight, began = step, 0.0, birth_time(parent, time, j)
    while step <= last:
        path.logs[step] = log_weight
        ends, rate = time[path.nodes[step]], path.rates[step]
        log_weight -= (ends - began) * rate if rate > 0.0 else 0.0  # the time may be infinite
        began = ends
        step += np.uint32(1)
    return first


@jit_inline
def log_stay(chart, path, j, s, first):
    """Return the log-probability that a row which ends at node `j` is in its cell at lifetime `s`."""
    step = chart.steps[j, s]
    if step < first:
        return 0.0
    elapsed, rate = chart.elapsed[j, s], path.rates[step]
    return path.logs[step] - (elapsed * rate if rate > 0.0 and elapsed > 0.0 else 0.0)  # either may be infinite


@jit
def cell_masses(forest, node_masses, X, lifetimes, total, log_masses):
    """Add the masses of each row's cells at each of the ascending lifetimes, (S,), given those of the nodes, (T, C).

    Either sum over trees into `total`, (S, n); or write logarithms for each tree to `log_masses`, (T, S, n), where
    `node_masses` are logarithms too. Pass the other without rows.
    """
    n_lifetimes, width = lifetimes.shape[0], forest.left.shape[1]
    chart, path, descent = new_chart(width, n_lifetimes), new_path(width), new_descent(X.shape[0], width)
    nodes = descent.nodes
    domain_lower, domain_upper, is_process = forest.domain[:1], forest.domain[1:], forest.lower.shape[2] == 0
    until, summed, n_categories = lifetimes[n_lifetimes - 1], total.shape[1] > 0, forest.n_categories[0]
    for t in range(np.uint32(forest.left.shape[0])):
        lower, upper, parent, time = forest.lower[t], forest.upper[t], forest.parent[t], forest.time[t]
        weights, masses, logs = forest.weights[t], node_masses[t], log_masses[t]
        descend(forest, t, X, until, descent)
        for i in range(np.uint32(X.shape[0])):
            j = nodes[i]
            if chart.turn[j] != np.int64(t) + 1:
                enter(chart, np.int64(t) + 1, parent, time, lifetimes, j, path.nodes)
            # a process has no boxes, so the distance to its domain counts
            base = extension(domain_lower, domain_upper, 0, weights, X, i, n_categories) if is_process else 0.0
            first = follow(lower, upper, weights, base, parent, time, X, i, j, chart.step[j], path, n_categories)
            for s in range(n_lifetimes):
                mass, log_weight = masses[chart.cells[j, s]], log_stay(chart, path, j, s, first)
                if not summed:
                    logs[s, i] += max(mass + log_weight, LEAST_LOG)
                elif log_weight == 0.0:
                    total[s, i] += mass
                else:
                    total[s, i] += mass * math.exp(log_weight)


# ---- cells, summed over the lifetimes --------------------------------------------------------------------------------


@jit_borrowing_helper
def sum_cells(turns, totals, lived, turn, parent, time, lifetimes, logs, j, path):
    """Sum the log-masses of the cells of node `j`, and the durations of its path, over the ascending `lifetimes`."""
    step, n_lifetimes = climb(parent, j, path), lifetimes.shape[0]
    s, began, total = 0, 0.0, 0.0
    while step > 0:
        step -= np.uint32(1)
        node = path[step]
        ends, span = time[node], 0.0
        while s < n_lifetimes and (lifetimes[s] < ends or step == 0):
            span += max(min(lifetimes[s], ends) - began, 0.0)
            total += logs[node]
            s += 1
        lived[node] = span + (n_lifetimes - s) * (ends - began) if s < n_lifetimes else span
        began = ends
    turns[j], totals[j] = turn, total


@jit_inline
def follow_all_up(lower, upper, weights, parent, lived, X, active, nodes, values, n_categories):
    """Call `follow_up`, in a version specialised for numbers if there are no categories."""
    if n_categories == 0:
        follow_up(lower, upper, weights, parent, lived, X, active, nodes, values, 0)
    else:
        follow_up(lower, upper, weights, parent, lived, X, active, nodes, values, n_categories)


@jit_inline
def follow_up(lower, upper, weights, parent, lived, X, active, nodes, values, n_categories):
    """Follow all rows of `X` together from their `nodes` up, until a box holds them; subtract the cost from `values`.

    A row at distance e from a node's box is still with the node after a time s with probability exp(-s * e): the
    extension of a Mondrian tree to the row (Alg. 5), integrated out.
    """
    n_active, boxed = np.uint32(X.shape[0]), lower.shape[0] > 1
    for i in range(n_active):
        active[i] = i
    while n_active > 0:
        n_left = np.uint32(0)
        for a in range(n_active):
            i = active[a]
            j = nodes[i]
            above = parent[j]
            is_root = above == NONE
            k = j if is_root else np.uint32(above)
            boxes = (j, k) if boxed else (np.uint32(0), np.uint32(0))  # a process has one for all nodes: its domain
            # nearly every row needs both
            rate, rate_above = extensions(lower, upper, *boxes, weights, X, i, n_categories)
            values[i] = values[i] - lived[j] * rate - (0.0 if is_root else lived[k]) * rate_above
            above = parent[k]
            nodes[i] = np.uint32(above)
            active[n_left] = i
            n_left += np.uint32((rate_above > 0.0) & (above != NONE))
        n_active = n_left


@jit_helper
def narrowed(lower, upper, weights, X, n_nodes, n_categories):
    """Return boxes, weights and rows without the features that a tree does not cut; unchanged if it cuts most."""
    n, n_boxes = 0, min(n_nodes, lower.shape[0])  # a process has one box
    for k in range(weights.shape[0]):
        n += weights[k] > 0.0
    if n_categories > 0 or 2 * n > weights.shape[0]:
        return lower, upper, weights, X
    cut, part = np.empty(n, np.uint32), np.empty(n)
    low, high, rows = np.empty((lower.shape[0], n)), np.empty((lower.shape[0], n)), np.empty((X.shape[0], n))
    place = 0
    for k in range(weights.shape[0]):
        if weights[k] > 0.0:
            cut[place], part[place] = k, weights[k]
            place += 1
    for j in range(n_boxes):
        for place in range(n):
            low[j, place], high[j, place] = lower[j, cut[place]], upper[j, cut[place]]
    for i in range(X.shape[0]):
        for place in range(n):
            rows[i, place] = X[i, cut[place]]
    return low, high, part, rows


@jit
def log_cell_sums(forest, node_logs, X, lifetimes, out):
    """Add the log-masses of each row's cells, summed over the ascending lifetimes, to `out`, (T, n) or (1, n).

    With (1, n), sum over trees too. The cost of a node to a row does not depend on the nodes below: it is the distance
    times the duration of the node, summed over the lifetimes. So lifetimes need no loop of their own.
    """
    n, width, n_lifetimes = X.shape[0], forest.left.shape[1], lifetimes.shape[0]
    turns, totals, lived = np.zeros(width, np.int64), np.empty(width), np.empty(width)
    path, values, descent = np.empty(width, np.uint32), np.empty(n), new_descent(n, width)
    nodes = descent.nodes
    until, per_tree, boxed = lifetimes[n_lifetimes - 1], out.shape[0] > 1, forest.lower.shape[2] > 0
    n_categories = forest.n_categories[0]
    for t in range(np.uint32(forest.left.shape[0])):
        lower, upper = (forest.lower[t], forest.upper[t]) if boxed else (forest.domain[:1], forest.domain[1:])
        parent, time, weights = forest.parent[t], forest.time[t], forest.weights[t]
        logs, sums = node_logs[t], out[t if per_tree else np.uint64(0)]
        descend(forest, t, X, until, descent)
        lower, upper, weights, seen = narrowed(lower, upper, weights, X, forest.size[t], n_categories)
        for i in range(np.uint32(n)):
            j = nodes[i]
            if turns[j] != np.int64(t) + 1:
                sum_cells(turns, totals, lived, np.int64(t) + 1, parent, time, lifetimes, logs, j, path)
            values[i] = totals[j]
        follow_all_up(lower, upper, weights, parent, lived, seen, descent.active, nodes, values, n_categories)
        for i in range(np.uint32(n)):
            sums[i] += max(values[i], LEAST_LOG)
