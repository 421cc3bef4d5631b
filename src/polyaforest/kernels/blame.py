"""Blame: how much of a row's surprise each feature has to answer for, on either side.

The log-mass of a cell is a sum along the path to it: of posterior means, one for every cut and every restriction, and
of what it costs to be outside a box. Every term was made by features, and goes to them:

- a cut's to its feature: to the low side for rows that go left, to the high side for those that go right;
- a restriction's to the features that narrowed the box, in proportion to the logarithms of how much they did; where
  the region was cut away below the box, its rows are on the high side, and the other way round;
- the distance from a box, times the weight, times how long it was endured, to each feature by its own distance;
- a complementary leaf's, and the outside's, to the features by which the row misses the box, in proportion to their
  weighted distances.

What is left, the share within the known world, is the same for all rows. All of it is read from the posterior, so the
parts cannot but add up to what scores are made of.
"""

import math
from typing import NamedTuple

import numpy as np

from polyaforest._arrays import LEAST_LOG, NONE
from polyaforest._jit import jit, jit_borrowing, jit_inline
from polyaforest.kernels.forest import climb, descend, find_leaf, first_holder
from polyaforest.kernels.geometry import contains, excess, extension, linear_dimension, log_share

LOW, HIGH = 0, 1  # the sides of a feature
_HELD, _COMPLEMENTARY, _OUTSIDE = (
    0,
    1,
    2,
)  # whether a row is in a leaf's box, in none below a node's, or in no box at all
_FIRST = np.uint32(0)  # of one type with all other nodes, so that kernels are compiled once
MOST = -LEAST_LOG  # what a single distance counts for at most, so that sums stay finite


class Tree(NamedTuple):
    """What is read of one tree and its posterior."""

    left: np.ndarray
    parent: np.ndarray
    feature: np.ndarray
    cut: np.ndarray
    time: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    weights: np.ndarray
    inside: np.ndarray
    complement: np.ndarray
    world_lower: np.ndarray  # (1, D)
    world_upper: np.ndarray


@jit_inline
def log_whole(tree, j):
    """Log-mass of the region that node `j` was restricted in: its box, and what was left out."""
    inside, complement = tree.inside[j], tree.complement[j]
    return inside + math.log1p(math.exp(complement - inside)) if complement > -np.inf else inside


@jit_inline
def share_from(lifetimes, began):
    """The share of `lifetimes` at which a node born at time `began` is there; all of it when only leaves count."""
    n = 0
    for s in range(lifetimes.shape[0]):
        n += lifetimes[s] >= began
    return n / lifetimes.shape[0] if lifetimes.shape[0] else 1.0


@jit_inline
def time_endured(lifetimes, began, ends):
    """Mean over `lifetimes` of the time spent with a node that lives from `began` until it `ends`."""
    total = 0.0
    for s in range(lifetimes.shape[0]):
        total += max(min(lifetimes[s], ends) - began, 0.0)
    return total / lifetimes.shape[0] if lifetimes.shape[0] else 0.0


@jit_inline
def region_side(tree, j, k):
    """The side along dimension `k` of the region that node `j` was restricted in."""
    above = tree.parent[j]
    if above == NONE:
        return tree.world_lower[0, k], tree.world_upper[0, k]
    low, high = tree.lower[above, k], tree.upper[above, k]
    if tree.feature[above] == k:
        if tree.left[above] == j:
            high = tree.cut[above]
        else:
            low = tree.cut[above]
    return low, high


@jit_borrowing
def add_restriction(tree, j, amount, logs, parts):
    """Share `amount` out among the features that narrowed the box of node `j`; `logs` is room for one number each."""
    total = 0.0
    for k in range(tree.lower.shape[1]):
        logs[k] = 0.0
        if tree.lower[j, k] < tree.upper[j, k]:
            low, high = region_side(tree, j, k)
            logs[k] = log_share(low, high, tree.lower[j, k], tree.upper[j, k])
            total += logs[k]
    for k in range(tree.lower.shape[1]):
        if logs[k] < 0.0:
            low, high = region_side(tree, j, k)
            below, above = tree.lower[j, k] - low, high - tree.upper[j, k]
            part = amount * (logs[k] / total)
            high_part = part * (below / (below + above))
            parts[HIGH, k] += high_part
            parts[LOW, k] += part - high_part


@jit_borrowing
def add_cut(tree, j, share, parts):
    """Give the cut that made node `j`, and not the root, its part."""
    above = tree.parent[j]
    if above != NONE:
        side = LOW if tree.left[above] == j else HIGH
        parts[side, tree.feature[above]] += share * (tree.inside[above] - log_whole(tree, j))


@jit_borrowing
def add_node(tree, j, lifetimes, logs, parts):
    """Give the cut that made node `j`, and the restriction to its box, their parts."""
    above = tree.parent[j]
    share = share_from(lifetimes, 0.0 if above == NONE else tree.time[above])
    add_cut(tree, j, share, parts)
    lost = log_whole(tree, j) - tree.inside[j]
    if lost > 0.0:
        add_restriction(tree, j, share * lost, logs, parts)


@jit_inline
def set_path(tree, path, start, length, lifetimes, logs, parts):
    """Add up in `parts`, (2, D), what the nodes from place `start` of a path give, from the root down."""
    for k in range(parts.shape[1]):
        parts[LOW, k] = parts[HIGH, k] = 0.0
    step = length
    while step > start:
        step -= np.uint32(1)
        add_node(tree, path[step], lifetimes, logs, parts)


@jit_inline
def set_table(tree, right, root, lifetimes, logs, waiting, table):
    """`set_path` for the paths to all nodes at once, (C, 2, D), in the same order of sums."""
    waiting[0] = root
    n_waiting = 1
    while n_waiting > 0:
        n_waiting -= 1
        j = np.uint32(waiting[n_waiting])
        above = tree.parent[j]
        for k in range(table.shape[2]):
            table[j, LOW, k] = 0.0 if above == NONE else table[above, LOW, k]
            table[j, HIGH, k] = 0.0 if above == NONE else table[above, HIGH, k]
        add_node(tree, j, lifetimes, logs, table[j])
        if tree.left[j] != NONE:
            waiting[n_waiting], waiting[n_waiting + 1] = tree.left[j], right[j]
            n_waiting += 2


@jit_inline
def add_distances(lower, upper, j, weights, X, i, endured, parts):
    """Add what it costs row `i` to be outside box `j` for so long."""
    if endured > 0.0:
        for k in range(lower.shape[1]):
            value, rate = X[i, k], endured * weights[k]
            parts[LOW, k] += min(rate * max(lower[j, k] - value, 0.0), MOST)
            parts[HIGH, k] += min(rate * max(value - upper[j, k], 0.0), MOST)


@jit_borrowing
def add_missed(lower, upper, j, weights, live_only, amount, X, i, parts):
    """Share `amount` out among the features by which row `i` misses box `j`, in proportion to weighted distances.

    If no such feature has a weight, all of them have the same part.
    """
    total, missed = 0.0, 0
    for k in range(lower.shape[1]):
        distance = excess(lower[j, k], upper[j, k], X[i, k])
        if distance > 0.0 and (not live_only or lower[j, k] < upper[j, k]):
            total += min(weights[k] * distance, MOST)
            missed += 1
    for k in range(lower.shape[1]):
        distance = excess(lower[j, k], upper[j, k], X[i, k])
        if distance > 0.0 and (not live_only or lower[j, k] < upper[j, k]):
            share = min(weights[k] * distance, MOST) / total if total > 0.0 else 1.0 / missed
            if share > 0.0:  # or an infinite amount would make it NaN
                parts[LOW if X[i, k] < lower[j, k] else HIGH, k] += share * amount


@jit
def blame_rows(forest, known, X, lifetimes, with_table, parts, by_tree):
    """Add up over all trees what each feature's sides cost each row, in nats, to `parts`, (n, 2, D).

    What each tree charges for both sides together is written to `by_tree`, (T, n, D), unless it has no rows.

    The cells at the ascending `lifetimes` count, on average; or the leaves, if there are no lifetimes. With a table
    the sums along all paths are made once per tree, without it for every row; the result is the same.
    """
    width, n_features = forest.left.shape[1], X.shape[1]
    path, waiting = np.empty(width, np.uint32), np.empty(width + 1, np.int32)
    active, nodes = np.empty(X.shape[0], np.uint32), np.empty(X.shape[0], np.uint32)
    logs, table = np.empty(n_features), np.empty((width if with_table else 1, 2, n_features))
    charged = np.empty(parts.shape)
    until = lifetimes[-1] if lifetimes.shape[0] else np.inf
    for t in range(forest.left.shape[0]):
        tree, root = tree_of(forest, known, t), np.uint32(forest.root[t])
        if with_table:
            set_table(tree, forest.right[t], root, lifetimes, logs, waiting, table)
        descend(tree.left, forest.right[t], tree.feature, tree.cut, root, X, active, nodes, tree.time, until)
        charged[:] = 0.0
        if lifetimes.shape[0]:
            blame_cells(tree, forest.domain, X, nodes, lifetimes, path, logs, table, charged)
        else:
            blame_leaves(tree, known.outside[t], X, nodes, lifetimes, path, logs, table, charged)
        for i in range(X.shape[0]):
            for k in range(n_features):
                parts[i, LOW, k] += charged[i, LOW, k]
                parts[i, HIGH, k] += charged[i, HIGH, k]
        if by_tree.shape[0] > 0:
            for i in range(X.shape[0]):
                for k in range(n_features):
                    by_tree[t, i, k] = charged[i, LOW, k] + charged[i, HIGH, k]


@jit
def agree(by_tree, n, agreed):
    """Write to `agreed`, (n_rows, D), the mean of the `n` lowest charges of all trees, (T, n_rows, D)."""
    charges = np.empty(by_tree.shape[0])
    for i in range(by_tree.shape[1]):
        for k in range(by_tree.shape[2]):
            for t in range(by_tree.shape[0]):
                charges[t] = by_tree[t, i, k]
            lowest_first(charges, n)
            total = 0.0
            for t in range(n):
                total += charges[t]
            agreed[i, k] = total / n


@jit_borrowing
def lowest_first(values, n):
    """Bring the `n` lowest of some values to the front (Hoare's selection)."""
    first, last = 0, values.shape[0] - 1
    while first < last:
        pivot = values[(first + last) // 2]
        low, high = first, last
        while low <= high:
            while values[low] < pivot:
                low += 1
            while pivot < values[high]:
                high -= 1
            if low <= high:
                values[low], values[high] = values[high], values[low]
                low += 1
                high -= 1
        if n - 1 <= high:
            last = high
        elif n - 1 >= low:
            first = low
        else:
            return


@jit
def tree_of(forest, known, t):
    """Tree `t` and its posterior, its arrays taken out once."""
    return Tree(
        forest.left[t],
        forest.parent[t],
        forest.feature[t],
        forest.cut[t],
        forest.time[t],
        forest.lower[t],
        forest.upper[t],
        forest.weights[t],
        known.inside[t],
        known.complement[t],
        known.world[0][t : t + 1],
        known.world[1][t : t + 1],
    )


@jit_inline
def add_path(tree, path, start, length, lifetimes, logs, table, parts, i):
    """Add to the parts of row `i` what the nodes of its path give, from the root down to place `start`."""
    if start == length:
        return
    j = path[start] if table.shape[0] > 1 else np.uint32(0)
    if table.shape[0] == 1:
        set_path(tree, path, start, length, lifetimes, logs, table[0])
    for side in range(2):
        for k in range(parts.shape[2]):
            parts[i, side, k] += table[j, side, k]


@jit
def blame_cells(tree, domain, X, nodes, lifetimes, path, logs, table, parts):
    """Blame for the cells of rows that have come down one tree to `nodes`."""
    is_process = tree.lower.shape[1] == 0
    for i in range(X.shape[0]):
        length = climb(tree.parent, nodes[i], path)
        add_path(tree, path, _FIRST, length, lifetimes, logs, table, parts, i)
        if is_process:  # its regions reach as far as the domain
            endured = time_endured(lifetimes, 0.0, tree.time[nodes[i]])
            add_distances(domain[:1], domain[1:], _FIRST, tree.weights, X, i, endured, parts[i])
            continue
        step = np.uint32(0)
        while step < length and not contains(tree.lower, tree.upper, path[step], X, i):
            j = path[step]
            began = tree.time[tree.parent[j]] if step + 1 < length else 0.0
            endured = time_endured(lifetimes, began, tree.time[j])
            add_distances(tree.lower, tree.upper, j, tree.weights, X, i, endured, parts[i])
            step += np.uint32(1)


@jit_borrowing
def find_end(tree, X, i, path, length):
    """How the walk of row `i` ends; the place on its path of the last node that holds it; and the box that it misses.

    Places count upwards, and the one beyond the path stands for none.
    """
    if not contains(tree.world_lower, tree.world_upper, _FIRST, X, i):
        return _OUTSIDE, length, _FIRST
    if tree.lower.shape[1] == 0 or contains(tree.lower, tree.upper, path[0], X, i):
        return _HELD, _FIRST, _FIRST
    holder = first_holder(tree.lower, tree.upper, X, i, path, length)
    j, is_inside = find_leaf(tree.lower, tree.upper, X, i, path, holder)
    if is_inside:
        return _HELD, _FIRST, _FIRST
    place = _FIRST
    while path[place] != j:
        place += np.uint32(1)
    return _COMPLEMENTARY, place + np.uint32(1), j


@jit_borrowing
def outside_cost(tree, root, log_outside, X, i):
    """What it costs row `i` to be outside the known world rather than within it."""
    size = linear_dimension(tree.world_lower[0], tree.world_upper[0], tree.weights)
    distance = extension(tree.world_lower, tree.world_upper, _FIRST, tree.weights, X, i)
    return log_whole(tree, root) - log_outside + math.log1p(distance / (size if size > 0.0 else 1.0))


@jit_borrowing
def add_end(tree, log_outside, X, i, root, end, missed, parts):
    """Add what it costs row `i` to be in the complementary leaf of a node rather than in its box, or outside."""
    if end == _OUTSIDE:
        amount = outside_cost(tree, root, log_outside, X, i)
        add_missed(tree.world_lower, tree.world_upper, _FIRST, tree.weights, False, amount, X, i, parts)
    else:
        amount = log_whole(tree, missed) - tree.complement[missed]
        add_missed(tree.lower, tree.upper, missed, tree.weights, True, amount, X, i, parts)


@jit
def blame_leaves(tree, log_outside, X, nodes, lifetimes, path, logs, table, parts):
    """Blame for the leaves of rows that have come down one tree to `nodes`, complementary and outside ones too."""
    for i in range(X.shape[0]):
        length = climb(tree.parent, nodes[i], path)
        end, start, missed = find_end(tree, X, i, path, length)
        if end != _HELD:
            add_end(tree, log_outside, X, i, path[length - np.uint32(1)], end, missed, parts[i])
        if end == _COMPLEMENTARY:
            add_cut(tree, missed, 1.0, parts[i])
        add_path(tree, path, start, length, lifetimes, logs, table, parts, i)


@jit
def blame_counted(forest, known, lifetimes, parts):
    """Add up over all trees what the points that they have counted are charged on average, in nats, to `parts`, (2, D).

    A point is charged by every node it lies below, so a node is charged for as often as it has counted points.
    """
    waiting = np.empty(forest.left.shape[1] + 1, np.int32)
    logs, own = np.empty(parts.shape[1]), np.empty(parts.shape)
    for t in range(forest.left.shape[0]):
        tree, root = tree_of(forest, known, t), forest.root[t]
        waiting[0], n_waiting = root, 1
        while n_waiting > 0:
            n_waiting -= 1
            j = np.uint32(waiting[n_waiting])
            if forest.counts[t, j] == 0:
                continue
            own[:] = 0.0
            add_node(tree, j, lifetimes, logs, own)
            parts += own * (forest.counts[t, j] / forest.counts[t, root])
            if tree.left[j] != NONE:
                waiting[n_waiting], waiting[n_waiting + 1] = tree.left[j], forest.right[t, j]
                n_waiting += 2


# ---- where the blame comes from ------------------------------------------------------------------------------------


@jit
def find_bounds(forest, known, X, lifetimes, features, sides, bounds, costs):
    """Where the blame for the only row of `X` begins, tree by tree, for each of some features on one side.

    Every cut that costs the row something, and every edge of a box that it lies beyond, is a bound. The nearest to the
    row is written to `bounds`, (T, m), which hold an infinity before, and what all of them cost to `costs`.
    """
    path, cost = np.empty(forest.left.shape[1], np.uint32), np.empty((2, X.shape[1]))
    active, nodes = np.empty(1, np.uint32), np.empty(1, np.uint32)
    until = lifetimes[-1] if lifetimes.shape[0] else np.inf
    for t in range(forest.left.shape[0]):
        tree, root = tree_of(forest, known, t), np.uint32(forest.root[t])
        descend(tree.left, forest.right[t], tree.feature, tree.cut, root, X, active, nodes, tree.time, until)
        length = climb(tree.parent, nodes[0], path)
        start = _FIRST
        if not lifetimes.shape[0]:
            end, start, missed = find_end(tree, X, 0, path, length)
            if end != _HELD:
                cost[:] = 0.0
                add_end(tree, known.outside[t], X, 0, root, end, missed, cost)
                lower, upper = (tree.world_lower, tree.world_upper) if end == _OUTSIDE else (tree.lower, tree.upper)
                note_edges(lower, upper, missed, features, sides, cost, bounds[t], costs[t])
            if end == _COMPLEMENTARY:
                cost[:] = 0.0
                add_cut(tree, missed, 1.0, cost)
                note_cut(tree, missed, features, sides, cost, bounds[t], costs[t])
        for step in range(start, length):
            j, above = path[step], tree.parent[path[step]]
            began = 0.0 if above == NONE else tree.time[above]
            endured = time_endured(lifetimes, began, tree.time[j])
            box, lower, upper = j, tree.lower, tree.upper
            if tree.lower.shape[1] == 0:
                box, lower, upper = _FIRST, tree.world_lower, tree.world_upper
            cost[:] = 0.0
            add_distances(lower, upper, box, tree.weights, X, 0, endured, cost)
            note_edges(lower, upper, box, features, sides, cost, bounds[t], costs[t])
            cost[:] = 0.0
            add_cut(tree, j, share_from(lifetimes, began), cost)
            note_cut(tree, j, features, sides, cost, bounds[t], costs[t])


@jit_borrowing
def note_edges(lower, upper, j, features, sides, cost, bounds, costs):
    """Note the edges of box `j` for what it costs to be beyond them."""
    for p in range(features.shape[0]):
        k = features[p]
        if cost[sides[p], k] > 0.0:
            note(p, lower[j, k] if sides[p] == LOW else upper[j, k], sides[p], cost[sides[p], k], bounds, costs)


@jit_borrowing
def note_cut(tree, j, features, sides, cost, bounds, costs):
    """Note the cut that made node `j` for what it costs."""
    above = tree.parent[j]
    if above == NONE:
        return
    delta = tree.feature[above]
    for p in range(features.shape[0]):
        if features[p] == delta and cost[sides[p], delta] > 0.0:
            note(p, tree.cut[above], sides[p], cost[sides[p], delta], bounds, costs)


@jit_inline
def note(p, bound, side, cost, bounds, costs):
    """Keep a bound if it is the nearest so far: the lowest for a row that is low, the highest for one that is high."""
    bounds[p] = min(bounds[p], bound) if side == LOW else max(bounds[p], bound)
    costs[p] += cost


# ---- how many live there -------------------------------------------------------------------------------------------


@jit
def count_within(forest, world, low, high, counts):
    """How many points of each tree lie above `low` and up to `high` in all features, (D,), written to `counts`, (T,).

    Leaves that lie there in part count by the share of their box that does, as if their points were spread evenly.
    """
    width, n_features = forest.left.shape[1], low.shape[0]
    waiting, sides = np.empty(width + 1, np.uint32), np.empty((width + 1, 2, n_features))
    for t in range(forest.left.shape[0]):
        waiting[0], n_waiting = forest.root[t], 1
        for k in range(n_features):
            sides[0, LOW, k], sides[0, HIGH, k] = world[0, t, k], world[1, t, k]
        while n_waiting > 0:
            n_waiting -= 1
            j, here = waiting[n_waiting], sides[n_waiting]
            for k in range(forest.lower.shape[2]):
                here[LOW, k], here[HIGH, k] = forest.lower[t, j, k], forest.upper[t, j, k]
            share = share_within(here, low, high)
            if not 0.0 < share < 1.0 or forest.left[t, j] == NONE:
                counts[t] += share * forest.counts[t, j]
                continue
            for k in range(n_features):
                sides[n_waiting + 1, LOW, k], sides[n_waiting + 1, HIGH, k] = here[LOW, k], here[HIGH, k]
            delta, xi = forest.feature[t, j], forest.cut[t, j]
            sides[n_waiting, HIGH, delta] = sides[n_waiting + 1, LOW, delta] = xi
            waiting[n_waiting], waiting[n_waiting + 1] = forest.left[t, j], forest.right[t, j]
            n_waiting += 2


@jit_borrowing
def share_within(box, low, high):
    """The share of a box, (2, D), that lies above `low` and up to `high`; a point is in or out."""
    share = 1.0
    for k in range(low.shape[0]):
        lower, upper = box[LOW, k], box[HIGH, k]
        if upper <= low[k] or lower > high[k]:
            return 0.0
        if lower <= low[k] or upper > high[k]:
            share *= (min(upper, high[k]) - max(lower, low[k])) / (upper - lower)
    return share
