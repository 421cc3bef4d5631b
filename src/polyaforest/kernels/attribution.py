"""Attribute the surprise of rows to the low and high side of each feature.

The log-mass of a cell is a sum along the path to it: the log of one posterior mean for each cut and each restriction,
minus the cost of lying outside boxes. Each term is attributed to the features that cause it:

- the cost of lying outside a box is attributed to each feature by its own weighted distance, times the duration;
- the term of a cut goes to its feature: to the low side for rows that go left, to the high side for the others;
- the term of a restriction goes to the features that narrow the box, in proportion to the logarithms of their shares;
  where the restriction removes the part below the box, the remaining rows are on the high side, and vice versa;
- a row outside the boxes of a tree would be cut off from the data by the features that put it outside; below such a cut
  the other features describe only its neighbours. So cuts and restrictions keep a share of their terms equal to the
  probability that the row has not been cut off; the rest is shared by distance;
- the term of a complementary leaf, or of the outside, goes to the features by which the row misses the box, in
  proportion to their weighted distances. For a row beyond the domain of a process, the cuts on its path come first, and
  these features take the rest.

A category has only a high side. The share within the known world is the same for all rows and is not attributed. All
terms come from the posterior, so the parts add up to the terms of the score.
"""

import math
from typing import NamedTuple

import numpy as np

from polyaforest.kernels import cubes
from polyaforest.kernels.arrays import LEAST_LOG, NONE
from polyaforest.kernels.geometry import (
    contains,
    excess,
    extension,
    first_category,
    is_question,
    linear_dimension,
    log_share,
)
from polyaforest.kernels.jit import jit, jit_borrowing_helper, jit_helper, jit_inline
from polyaforest.kernels.simd import (
    LANES,
    count_bits,
    larger,
    load,
    load_row,
    pick,
    smaller,
    spread,
    store,
    sum_of,
    within,
)
from polyaforest.kernels.traversal import climb, descend, find_leaf, first_holder, new_descent

LOW, HIGH = 0, 1  # the sides of a feature
# Whether a row is in a leaf's box, in none below a node's, or in no box at all.
_HELD, _COMPLEMENTARY, _OUTSIDE = range(3)
_FIRST = np.uint32(0)  # of one type with all other nodes, so that kernels are compiled once
MOST = -LEAST_LOG  # upper bound of a single distance, so that sums stay finite
_SURE = math.log(1e4)  # a row that stays with the data with probability below 1 in 10,000 counts as cut off


class PosteriorTree(NamedTuple):
    """Arrays of one tree and of its posterior."""

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
    n_categories: int


class AttributionWorkspace(NamedTuple):
    """Buffers, and values cached per node of one tree."""

    path: np.ndarray  # uint32 (C,)
    away: np.ndarray  # (D,): the cost of a row's distances
    logs: np.ndarray  # (D,)
    duration: np.ndarray  # (C,): how long a row is with the node, averaged over the lifetimes
    lived: np.ndarray  # (C,): how long a row is with the node until the last lifetime
    cost: np.ndarray  # (C,): the cost of cuts and restrictions for a row that ends at the node
    sums: np.ndarray  # (C, 2, D), or one for all nodes: the same by feature and side
    timed: np.ndarray  # int32 (C,): the turn in which times and costs were set
    summed: np.ndarray  # int32 (C,): the turn in which the sums were set


@jit_inline
def log_whole(tree, j):
    """Return the log-mass of the region that node `j` was restricted in: its box and its complement."""
    inside, complement = tree.inside[j], tree.complement[j]
    return inside + math.log1p(math.exp(complement - inside)) if complement > -np.inf else inside


@jit_inline
def share_from(lifetimes, began):
    """Return the share of `lifetimes` at or after `began`; 1 without lifetimes, where only leaves count."""
    n = 0
    for s in range(lifetimes.shape[0]):
        n += lifetimes[s] >= began
    return n / lifetimes.shape[0] if lifetimes.shape[0] else 1.0


@jit_inline
def mean_duration(lifetimes, began, ends):
    """Return the mean over `lifetimes` of the time spent with a node that lives from `began` until it `ends`."""
    total = 0.0
    for s in range(lifetimes.shape[0]):
        total += max(min(lifetimes[s], ends) - began, 0.0)
    return total / lifetimes.shape[0] if lifetimes.shape[0] else 0.0


@jit_inline
def region_side(tree, j, k):
    """Return the side along dimension `k` of the region that node `j` was restricted in."""
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


@jit_borrowing_helper
def add_restriction(tree, j, amount, logs, parts):
    """Distribute `amount` over the features that narrow the box of node `j`; `logs` is a buffer of length D."""
    total, n_numbers = 0.0, first_category(tree.lower.shape[1], tree.n_categories)
    for k in range(n_numbers):
        logs[k] = 0.0
        if tree.lower[j, k] < tree.upper[j, k]:
            low, high = region_side(tree, j, k)
            logs[k] = log_share(low, high, tree.lower[j, k], tree.upper[j, k])
            total += logs[k]
    for k in range(n_numbers):
        if logs[k] < 0.0:
            low, high = region_side(tree, j, k)
            below, above = tree.lower[j, k] - low, high - tree.upper[j, k]
            part = amount * (logs[k] / total)
            high_part = part * (below / (below + above))
            parts[HIGH, k] += high_part
            parts[LOW, k] += part - high_part


@jit_inline
def add_cut(tree, j, share, parts):
    """Attribute a share of the cut above node `j`; the root has none."""
    above = tree.parent[j]
    if above != NONE:
        delta = tree.feature[above]
        is_low = tree.left[above] == j and not is_question(delta, tree.weights.shape[0], tree.n_categories)
        parts[LOW if is_low else HIGH, delta] += share * (tree.inside[above] - log_whole(tree, j))


@jit_inline
def add_node(tree, j, lifetimes, logs, parts):
    """Attribute the cut above node `j` and the restriction to its box."""
    above = tree.parent[j]
    share = share_from(lifetimes, 0.0 if above == NONE else tree.time[above])
    add_cut(tree, j, share, parts)
    lost = log_whole(tree, j) - tree.inside[j]
    if lost > 0.0:
        add_restriction(tree, j, share * lost, logs, parts)


@jit_borrowing_helper
def set_times(tree, end, lifetimes, turn, work):
    """Set times and costs of the nodes on the path down to `end` that are not yet set in this turn."""
    length = np.uint32(0)
    j = np.int32(end)
    while j != NONE and work.timed[j] != turn:
        work.path[length] = j
        length += np.uint32(1)
        j = tree.parent[j]
    while length > 0:
        length -= np.uint32(1)
        j, above = work.path[length], tree.parent[work.path[length]]
        began = 0.0 if above == NONE else tree.time[above]
        work.duration[j] = mean_duration(lifetimes, began, tree.time[j])
        work.lived[j] = max(min(lifetimes[lifetimes.shape[0] - 1], tree.time[j]) - began, 0.0)
        if above == NONE:
            work.cost[j] = log_whole(tree, j) - tree.inside[j]
        else:
            work.cost[j] = work.cost[above] + share_from(lifetimes, began) * (tree.inside[above] - tree.inside[j])
        work.timed[j] = turn


@jit_inline
def place_of_sums(tree, start, length, lifetimes, turn, work):
    """Sum the attributions of the nodes from place `start` of the path; return the index of the sums.

    With sums for all nodes, reuse those of this turn.
    """
    is_kept = work.sums.shape[0] > 1
    step = start
    while step < length and not (is_kept and work.summed[work.path[step]] == turn):
        step += np.uint32(1)
    if not is_kept:
        work.sums[0] = 0.0
    while step > start:
        step -= np.uint32(1)
        j, above = work.path[step], tree.parent[work.path[step]]
        if is_kept:
            for k in range(work.logs.shape[0]):
                work.sums[j, LOW, k] = 0.0 if above == NONE else work.sums[above, LOW, k]
                work.sums[j, HIGH, k] = 0.0 if above == NONE else work.sums[above, HIGH, k]
            work.summed[j] = turn
        add_node(tree, j, lifetimes, work.logs, work.sums[j if is_kept else _FIRST])
    return work.path[start] if is_kept else _FIRST


@jit_inline
def add_path(tree, start, length, share, lifetimes, turn, work, parts, i):
    """Add a share of the attributions of the nodes from the root down to place `start` to the parts of row `i`."""
    if start == length:
        return
    j = place_of_sums(tree, start, length, lifetimes, turn, work)
    for side in range(2):
        for k in range(parts.shape[2]):
            parts[i, side, k] += share * work.sums[j, side, k]


@jit_inline
def add_box(lower, upper, j, weights, X, i, duration, away, n_categories):
    """Add the cost to row `i` of lying outside box `j` for a `duration` to `away`; return the distance from the box."""
    total, nothing, most = spread(0.0), spread(0.0), spread(MOST)
    n = first_category(lower.shape[1], n_categories)
    for k in range(0, n, LANES):
        live = within(n - k)
        x, weight = load_row(X, i, k, live, 0.0), load(weights, k, live, 0.0)
        low, high = load_row(lower, j, k, live, 0.0), load_row(upper, j, k, live, 0.0)
        distance = smaller(weight * larger(larger(low - x, x - high), nothing), most)
        store(away, k, live, smaller(load(away, k, live, 0.0) + spread(duration) * distance, most))
        total += distance
    whole = sum_of(total)
    for k in range(n, lower.shape[1]):
        apart = min(weights[k] * cubes.distance(lower[j, k], upper[j, k], X[i, k]), MOST)
        away[k] = min(away[k] + duration * apart, MOST)
        whole += apart
    return whole


@jit_inline
def set_away(tree, X, i, j, work):
    """Set `away` to the cost, by feature, of the distances of row `i` from the boxes down to node `j`.

    Return the accumulated hazard that the row has been cut off by then. Boxes are nested: the climb ends at the first
    box at distance 0, and a row lies on the same side of all boxes along each feature.
    """
    for k in range(work.away.shape[0]):
        work.away[k] = 0.0
    rate = 0.0
    while True:
        box = tree.lower, tree.upper, j
        distance = add_box(*box, tree.weights, X, i, work.duration[j], work.away, tree.n_categories)
        rate += work.lived[j] * distance
        above = tree.parent[j]
        if distance == 0.0 or above == NONE:
            return rate
        j = np.uint32(above)


@jit_inline
def add_away(lower, j, away, factor, X, i, low_parts, high_parts, n_categories):
    """Add the cost of the distances of row `i`, times a factor, to the sides on which the row lies."""
    nothing, n = spread(0.0), first_category(lower.shape[1], n_categories)
    for k in range(n, lower.shape[1]):
        high_parts[k] += factor * away[k]
    for k in range(0, n, LANES):
        live = within(n - k)
        is_low = load_row(X, i, k, live, 0.0) <= load_row(lower, j, k, live, 0.0)
        cost = load(away, k, live, 0.0) * spread(factor)
        store(low_parts, k, live, load(low_parts, k, live, 0.0) + pick(is_low, cost, nothing))
        store(high_parts, k, live, load(high_parts, k, live, 0.0) + pick(is_low, nothing, cost))


@jit_inline
def sum_all(values):
    """Return the sum of a vector."""
    total = spread(0.0)
    for k in range(0, values.shape[0], LANES):
        total += load(values, k, within(values.shape[0] - k), 0.0)
    return sum_of(total)


@jit_inline
def add_distances(lower, upper, j, weights, X, i, duration, parts, n_categories):
    """Add the cost to row `i` of lying outside box `j` for a `duration`."""
    if duration > 0.0:
        n = first_category(lower.shape[1], n_categories)
        for k in range(n, lower.shape[1]):
            apart = cubes.distance(lower[j, k], upper[j, k], X[i, k])
            parts[HIGH, k] += min(duration * weights[k] * apart, MOST)
        for k in range(n):
            value, rate = X[i, k], duration * weights[k]
            parts[LOW, k] += min(rate * max(lower[j, k] - value, 0.0), MOST)
            parts[HIGH, k] += min(rate * max(value - upper[j, k], 0.0), MOST)


@jit_borrowing_helper
def add_missed(lower, upper, j, weights, live_only, amount, X, i, parts, n_categories):
    """Distribute `amount` over the features by which row `i` misses box `j`, in proportion to weighted distances.

    If all these features have weight 0, they get equal parts.
    """
    total, missed, n = 0.0, 0, first_category(lower.shape[1], n_categories)
    for k in range(lower.shape[1]):
        distance = miss(lower[j, k], upper[j, k], X[i, k], live_only, k < n)
        if distance > 0.0:
            total += min(weights[k] * distance, MOST)
            missed += 1
    for k in range(lower.shape[1]):
        distance = miss(lower[j, k], upper[j, k], X[i, k], live_only, k < n)
        if distance > 0.0:
            share = min(weights[k] * distance, MOST) / total if total > 0.0 else 1.0 / missed
            if share > 0.0:  # 0 times an infinite amount is NaN
                parts[LOW if k < n and X[i, k] < lower[j, k] else HIGH, k] += share * amount


@jit_inline
def miss(low, high, value, live_only, is_number):
    """Return how far a value lies outside a side of a box; with `live_only`, 0 for collapsed sides."""
    if not is_number:
        return 0.0 if live_only else cubes.distance(low, high, value)
    return 0.0 if live_only and not low < high else excess(low, high, value)


@jit
def attribute_rows(forest, known, X, lifetimes, with_table, turns, parts):
    """Add the cost of each side of each feature for each row, in nats, summed over trees, to `parts`, (n, 2, D).

    `X` holds the rows of each tree, (T, n, D), or of all trees, (1, n, D). Costs are averaged over the cells at the
    ascending `lifetimes`; without lifetimes, leaves count. `with_table` caches sums along paths, which does not change
    the result. `turns`, int32 (2, C), must be 0.
    """
    width, n_features = forest.left.shape[1], X.shape[2]
    descent = new_descent(X.shape[1], width)
    nodes = descent.nodes
    work = AttributionWorkspace(
        np.empty(width, np.uint32),
        np.empty(n_features),
        np.empty(n_features),
        np.empty(width),
        np.empty(width),
        np.empty(width),
        np.empty((width if with_table else 1, 2, n_features)),
        turns[0],
        turns[1],
    )
    until = lifetimes[-1] if lifetimes.shape[0] else np.inf
    for t in range(forest.left.shape[0]):
        tree, rows = tree_of(forest, known, t), X[t if X.shape[0] > 1 else 0]
        descend(forest, t, rows, until, descent)
        if not lifetimes.shape[0]:
            attribute_leaves(tree, known.outside[t], rows, nodes, lifetimes, t + 1, work, parts)
        elif forest.lower.shape[2]:
            attribute_cells(tree, rows, nodes, lifetimes, t + 1, work, parts)
        else:
            attribute_process_cells(tree, forest.domain, rows, nodes, lifetimes, t + 1, work, parts)


@jit_helper
def tree_of(forest, known, t):
    """Return the arrays of tree `t` and its posterior."""
    return PosteriorTree(
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
        forest.n_categories[0],
    )


@jit_borrowing_helper
def attribute_cells(tree, X, nodes, lifetimes, turn, work, parts):
    """Add the parts of the cells of rows that descended one tree to `nodes`."""
    for i in range(X.shape[0]):
        j = nodes[i]
        if work.timed[j] != turn:
            set_times(tree, j, lifetimes, turn, work)
        rate = set_away(tree, X, i, j, work)
        total, chance = sum_all(work.away) if rate > 0.0 else 0.0, 1.0
        if total > 0.0:
            chance = math.exp(-rate) if rate < _SURE else 0.0
            cut_off = -math.expm1(-rate) if rate < _SURE else 1.0
            factor = 1.0 + cut_off / total * work.cost[j]
            sides = parts[i, LOW], parts[i, HIGH]
            add_away(tree.lower, j, work.away, factor, X, i, *sides, tree.n_categories)
        if chance > 0.0:
            length = climb(tree.parent, j, work.path)
            add_path(tree, _FIRST, length, chance, lifetimes, turn, work, parts, i)


@jit_borrowing_helper
def attribute_process_cells(tree, domain, X, nodes, lifetimes, turn, work, parts):
    """Add the parts of the cells of a process, whose regions reach as far as the domain."""
    for i in range(X.shape[0]):
        length = climb(tree.parent, nodes[i], work.path)
        add_path(tree, _FIRST, length, 1.0, lifetimes, turn, work, parts, i)
        duration = mean_duration(lifetimes, 0.0, tree.time[nodes[i]])
        box = domain[:1], domain[1:], _FIRST
        add_distances(*box, tree.weights, X, i, duration, parts[i], tree.n_categories)


@jit_borrowing_helper
def find_end(tree, X, i, path, length):
    """Return how the walk of row `i` ends, the place on its path of the last node that holds it, and the box it misses.

    Places count upwards; `length` means no node. A row beyond the domain of a process has the path of the nearest point
    within the domain.
    """
    if not contains(tree.world_lower, tree.world_upper, _FIRST, X, i, tree.n_categories):
        return _OUTSIDE, length if tree.lower.shape[1] else _FIRST, _FIRST
    if tree.lower.shape[1] == 0 or contains(tree.lower, tree.upper, path[0], X, i, tree.n_categories):
        return _HELD, _FIRST, _FIRST
    holder = first_holder(tree.lower, tree.upper, X, i, path, length, tree.n_categories)
    j, is_inside = find_leaf(tree.lower, tree.upper, X, i, path, holder, tree.n_categories)
    if is_inside:
        return _HELD, _FIRST, _FIRST
    place = _FIRST
    while path[place] != j:
        place += np.uint32(1)
    return _COMPLEMENTARY, place + np.uint32(1), j


@jit_borrowing_helper
def outside_cost(tree, root, log_outside, X, i):
    """Return the cost to row `i` of lying outside the known world."""
    size = linear_dimension(tree.world_lower[0], tree.world_upper[0], tree.weights, tree.n_categories)
    distance = extension(tree.world_lower, tree.world_upper, _FIRST, tree.weights, X, i, tree.n_categories)
    return log_whole(tree, root) - log_outside + math.log1p(distance / (size if size > 0.0 else 1.0))


@jit_borrowing_helper
def add_end(tree, log_outside, X, i, path, length, end, missed, parts):
    """Add the cost to row `i` of lying in the complementary leaf of a node, or outside the known world.

    Return the share of their terms that the nodes of its path keep: less than 1 where the nearest point of the domain
    is rarer than everything beyond.
    """
    if end == _COMPLEMENTARY:
        amount = log_whole(tree, missed) - tree.complement[missed]
        add_missed(tree.lower, tree.upper, missed, tree.weights, True, amount, X, i, parts, tree.n_categories)
        return 1.0
    root, share = path[length - np.uint32(1)], 1.0
    amount = outside_cost(tree, root, log_outside, X, i)
    if tree.lower.shape[1] == 0:
        cost = tree.inside[root] - tree.inside[path[0]]
        share = max(amount, 0.0) / cost if cost > amount else 1.0
        amount -= share * cost
    world = tree.world_lower, tree.world_upper, _FIRST
    add_missed(*world, tree.weights, False, amount, X, i, parts, tree.n_categories)
    return share


@jit_borrowing_helper
def attribute_leaves(tree, log_outside, X, nodes, lifetimes, turn, work, parts):
    """Add the parts of the leaves of rows that descended one tree to `nodes`, including complementary and outside."""
    for i in range(X.shape[0]):
        length, share = climb(tree.parent, nodes[i], work.path), 1.0
        end, start, missed = find_end(tree, X, i, work.path, length)
        if end != _HELD:
            share = add_end(tree, log_outside, X, i, work.path, length, end, missed, parts[i])
        if end == _COMPLEMENTARY:
            add_cut(tree, missed, 1.0, parts[i])
        add_path(tree, start, length, share, lifetimes, turn, work, parts, i)


@jit
def attribute_counted(forest, known, lifetimes, parts):
    """Add the mean attribution of the counted points, in nats, summed over trees, to `parts`, (2, D).

    Every node above a point contributes to its attribution, so a node counts as often as it has points.
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


# ---- bounds ----------------------------------------------------------------------------------------------------------


@jit
def find_bounds(forest, known, X, lifetimes, features, sides, bounds, costs):
    """Find the bounds beyond which the only row of `X` incurs cost, in each tree, for some features on one side each.

    A bound is a cut with a cost, or an edge of a box that the row lies beyond. Write the bound nearest to the row to
    `bounds`, (T, m), which must hold infinities, and the total cost to `costs`. Categories have no bounds.
    """
    path, cost = np.empty(forest.left.shape[1], np.uint32), np.empty((2, X.shape[1]))
    descent = new_descent(1, forest.left.shape[1])
    nodes = descent.nodes
    until = lifetimes[-1] if lifetimes.shape[0] else np.inf
    for t in range(forest.left.shape[0]):
        tree = tree_of(forest, known, t)
        descend(forest, t, X, until, descent)
        length = climb(tree.parent, nodes[0], path)
        start = _FIRST
        if not lifetimes.shape[0]:
            end, start, missed = find_end(tree, X, 0, path, length)
            if end != _HELD:
                cost[:] = 0.0
                add_end(tree, known.outside[t], X, 0, path, length, end, missed, cost)
                lower, upper = (tree.world_lower, tree.world_upper) if end == _OUTSIDE else (tree.lower, tree.upper)
                note_edges(lower, upper, missed, features, sides, cost, bounds[t], costs[t], tree.n_categories)
            if end == _COMPLEMENTARY:
                cost[:] = 0.0
                add_cut(tree, missed, 1.0, cost)
                note_cut(tree, missed, features, sides, cost, bounds[t], costs[t])
        for step in range(start, length):
            j, above = path[step], tree.parent[path[step]]
            began = 0.0 if above == NONE else tree.time[above]
            duration = mean_duration(lifetimes, began, tree.time[j])
            box, lower, upper = j, tree.lower, tree.upper
            if tree.lower.shape[1] == 0:
                box, lower, upper = _FIRST, tree.world_lower, tree.world_upper
            cost[:] = 0.0
            add_distances(lower, upper, box, tree.weights, X, 0, duration, cost, tree.n_categories)
            note_edges(lower, upper, box, features, sides, cost, bounds[t], costs[t], tree.n_categories)
            cost[:] = 0.0
            add_cut(tree, j, share_from(lifetimes, began), cost)
            note_cut(tree, j, features, sides, cost, bounds[t], costs[t])


@jit_borrowing_helper
def note_edges(lower, upper, j, features, sides, cost, bounds, costs, n_categories):
    """Record the edges of box `j` with the cost of lying beyond them."""
    for p in range(features.shape[0]):
        k = features[p]
        if cost[sides[p], k] > 0.0:
            edge = lower[j, k] if sides[p] == LOW else upper[j, k]
            note(
                p,
                -np.inf if is_question(k, lower.shape[1], n_categories) else edge,
                sides[p],
                cost[sides[p], k],
                bounds,
                costs,
            )


@jit_borrowing_helper
def note_cut(tree, j, features, sides, cost, bounds, costs):
    """Record the cut above node `j` with its cost."""
    above = tree.parent[j]
    if above == NONE:
        return
    delta = tree.feature[above]
    xi = -np.inf if is_question(delta, tree.weights.shape[0], tree.n_categories) else tree.cut[above]
    for p in range(features.shape[0]):
        if features[p] == delta and cost[sides[p], delta] > 0.0:
            note(p, xi, sides[p], cost[sides[p], delta], bounds, costs)


@jit_inline
def note(p, bound, side, cost, bounds, costs):
    """Keep the nearest bound: the lowest for a low row, the highest for a high one."""
    bounds[p] = min(bounds[p], bound) if side == LOW else max(bounds[p], bound)
    costs[p] += cost


# ---- points in a region --------------------------------------------------------------------------------------------


@jit
def count_within(forest, world, low, high, counts):
    """Count the points of each tree above `low` and up to `high` in all features, (D,); write to `counts`, (T,).

    For a category, `high` is the required code, or infinite to accept all. A leaf that lies partly within counts by the
    share of its box, as if its points were spread evenly.
    """
    width, n_features = forest.left.shape[1], low.shape[0]
    waiting, sides = np.empty(width + 1, np.uint32), np.empty((width + 1, 2, n_features))
    n_categories = forest.n_categories[0]
    for t in range(forest.left.shape[0]):
        waiting[0], n_waiting = forest.root[t], 1
        for k in range(n_features):
            sides[0, LOW, k], sides[0, HIGH, k] = world[0, t, k], world[1, t, k]
        while n_waiting > 0:
            n_waiting -= 1
            j, here = waiting[n_waiting], sides[n_waiting]
            for k in range(forest.lower.shape[2]):
                here[LOW, k], here[HIGH, k] = forest.lower[t, j, k], forest.upper[t, j, k]
            share = share_within(here, low, high, n_categories)
            if not 0.0 < share < 1.0 or forest.left[t, j] == NONE:
                counts[t] += share * forest.counts[t, j]
                continue
            for k in range(n_features):
                sides[n_waiting + 1, LOW, k], sides[n_waiting + 1, HIGH, k] = here[LOW, k], here[HIGH, k]
            delta, xi = forest.feature[t, j], forest.cut[t, j]
            below, above = xi, xi
            if is_question(delta, n_features, n_categories):
                below, above = cubes.low_side(here[HIGH, delta], xi), cubes.high_side(here[LOW, delta], xi)
            sides[n_waiting, HIGH, delta], sides[n_waiting + 1, LOW, delta] = below, above
            waiting[n_waiting], waiting[n_waiting + 1] = forest.left[t, j], forest.right[t, j]
            n_waiting += 2


@jit_borrowing_helper
def share_within(box, low, high, n_categories):
    """Return the share of a box, (2, D), that lies above `low` and up to `high`; 0 or 1 for a point."""
    share, n = 1.0, first_category(low.shape[0], n_categories)
    for k in range(n, low.shape[0]):
        if high[k] < np.inf:
            if cubes.new_questions(box[LOW, k], box[HIGH, k], high[k]) != 0:
                return 0.0
            share *= 0.5 ** count_bits(cubes.live_questions(box[LOW, k], box[HIGH, k]))
    for k in range(n):
        lower, upper = box[LOW, k], box[HIGH, k]
        if upper <= low[k] or lower > high[k]:
            return 0.0
        if lower <= low[k] or upper > high[k]:
            share *= (min(upper, high[k]) - max(lower, low[k])) / (upper - lower)
    return share
