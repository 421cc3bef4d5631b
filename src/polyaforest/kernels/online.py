"""Insert and delete points: extend a Mondrian tree (Alg. 5), and restrict it by projectivity.

After any sequence of both, a tree has the law of one sampled from scratch on the points it holds, truncated at the same
depth and lifetime. The paper's deletion (Alg. 6) rescales times, which breaks this law; here times do not change.
"""

from typing import NamedTuple

import numpy as np

from polyaforest.kernels import cubes
from polyaforest.kernels.arrays import NONE, UNBOUNDED, Array
from polyaforest.kernels.cuts import birth_time, draw_cut
from polyaforest.kernels.geometry import (
    contains,
    copy_box,
    excess,
    first_category,
    goes_left,
    grow,
    is_spanned_by,
    measure,
    set_hull,
    set_point,
)
from polyaforest.kernels.jit import jit_borrowing, jit_borrowing_helper, jit_inline
from polyaforest.kernels.rng import exponential, uniform

_LINE = 8  # numbers per cache line
_LEAF = np.uint32(2**32 - 1)  # the feature of a leaf, NONE, as an unsigned number


class GrowingTree(NamedTuple):
    """One tree: its slices of the arrays of a `Forest` and of its `Points`, under the same names."""

    left: Array
    right: Array
    parent: Array
    feature: Array
    cut: Array
    time: Array
    counts: Array
    lower: Array
    upper: Array
    root: Array  # int32 (1,)
    size: Array  # int32 (1,)
    weights: Array
    rng: Array
    head: Array
    links: Array
    n_categories: int


class Walk(NamedTuple):
    """The path of a point down a tree, one entry per node, root first; and buffers to visit a subtree."""

    path: Array  # uint32 (C + 1,): the nodes
    rates: Array  # float64 (C + 1,): the rate at which the point is cut off from each: its distance from the box
    hazards: Array  # float64 (C + 1,): the rates integrated over time until each node is born
    waiting: Array  # int32 (C + 1, 2): nodes of a subtree still to be visited, and their depths
    freed: Array  # int32 (C + 1,): slots that are no longer needed
    volumes: Array  # float64 (C + 1,): the volume of each box, 0 if a dimension is collapsed; halved by each question
    births: Array  # float64 (C + 1,): the time at which each node is born; it ends when the next is born
    counts: Array  # float64 (C + 1,): the points below each
    sides: Array  # float64 (C + 1,): the length of the side that each cut divides ...
    parts: Array  # float64 (C + 1,): ... and of the part that the point falls in
    means: Array  # float64 (C + 1,): the share of its mass that each box passes to the next
    masses: Array  # float64 (C + 1,): the mass of each box is `masses` ...
    scales: Array  # float64 (C + 1,): ... times exp(`scales`)
    is_held: Array  # bool (P,): the points currently held, where trees hold samples of them


class Limits(NamedTuple):
    """Where cutting stops."""

    lifetime: float
    max_depth: int


@jit_inline
def tree_of(forest, points, t):
    """Return tree `t` of a forest."""
    return GrowingTree(
        forest.left[t],
        forest.right[t],
        forest.parent[t],
        forest.feature[t],
        forest.cut[t],
        forest.time[t],
        forest.counts[t],
        forest.lower[t],
        forest.upper[t],
        forest.root[t : t + 1],
        forest.size[t : t + 1],
        forest.weights[t],
        forest.rng[t],
        points.head[t],
        points.links[t],
        forest.n_categories[0],
    )


@jit_inline
def fetch(tree, walk):
    """Load a tree into the CPU cache: sequential reads are many times faster than one node at a time."""
    n_nodes, total = np.uint32(tree.size[0]), 0.0
    for box_side in (tree.lower, tree.upper):
        for j in range(n_nodes):
            for k in range(0, tree.lower.shape[1], _LINE):
                total += box_side[j, k]
    for j in range(0, n_nodes, _LINE):
        total += tree.cut[j] + tree.time[j] + tree.counts[j]
        total += tree.left[j] + tree.right[j] + tree.parent[j] + tree.feature[j]
    for j in range(0, tree.head.shape[0], _LINE):
        total += tree.head[j]
    for slot in range(0, tree.links.shape[0], _LINE // 2):
        total += tree.links[slot, 0]
    walk.scales[0] = total  # otherwise the compiler removes the reads


# ---- the points of a leaf: a doubly linked list, if points are kept --------------------------------------------------


@jit_inline
def keeps_points(tree):
    return tree.head.shape[0] > 0


@jit_inline
def link(tree, j, slot):
    """Put the point in `slot` at the head of the list of leaf `j`."""
    first = tree.head[j]
    tree.links[slot, 0], tree.links[slot, 1], tree.links[slot, 2] = NONE, first, j
    if first != NONE:
        tree.links[np.uint32(first), 0] = slot
    tree.head[j] = slot


@jit_inline
def unlink(tree, j, slot):
    """Remove the point in `slot` from the list of leaf `j`."""
    before, after = tree.links[slot, 0], tree.links[slot, 1]
    if before == NONE:
        tree.head[j] = after
    else:
        tree.links[np.uint32(before), 1] = after
    if after != NONE:
        tree.links[np.uint32(after), 0] = before
    tree.links[slot, 0] = tree.links[slot, 1] = tree.links[slot, 2] = NONE


@jit_inline
def scan_list(tree, j, values):
    """Make box `j` the bounding box of the points in its list."""
    slot = tree.head[j]
    set_point(tree.lower, tree.upper, j, values, np.uint32(slot))
    slot = tree.links[np.uint32(slot), 1]
    while slot != NONE:
        grow(tree.lower, tree.upper, j, values, np.uint32(slot), tree.n_categories)
        slot = tree.links[np.uint32(slot), 1]


@jit_inline
def move_points(tree, child, j):
    """Move all points from the list of leaf `child` to that of leaf `j`."""
    slot = tree.head[child]
    tree.head[child] = NONE
    while slot != NONE:
        after = tree.links[np.uint32(slot), 1]
        link(tree, j, np.uint32(slot))
        slot = after


# ---- node slots ----------------------------------------------------------------------------------------------------


@jit_inline
def make_leaf(tree, j, parent, count, lifetime):
    """Make slot `j` a leaf of `count` points below `parent`, with an empty list."""
    tree.left[j], tree.right[j], tree.parent[j] = NONE, NONE, parent
    tree.feature[j], tree.cut[j], tree.time[j] = NONE, np.nan, lifetime
    tree.counts[j] = count
    if keeps_points(tree):
        tree.head[j] = NONE


@jit_inline
def put_in_place(tree, old, new):
    """Replace node `old` by node `new` below its parent."""
    above = tree.parent[old]
    tree.parent[new] = above
    if above == NONE:
        tree.root[0] = new
    else:
        left, right = tree.left[np.uint32(above)], tree.right[np.uint32(above)]
        tree.left[np.uint32(above)] = new if left == old else left
        tree.right[np.uint32(above)] = right if left == old else new


@jit_inline
def release(tree, j):
    """Free slot `j`: move the last slot in use there, then clear the last."""
    last = np.uint32(tree.size[0] - 1)
    if j != last:
        put_in_place(tree, last, j)
        tree.left[j], tree.right[j], tree.feature[j] = tree.left[last], tree.right[last], tree.feature[last]
        tree.cut[j], tree.time[j], tree.counts[j] = tree.cut[last], tree.time[last], tree.counts[last]
        copy_box(tree.lower, tree.upper, j, last)
        if tree.feature[j] != NONE:
            tree.parent[np.uint32(tree.left[j])] = tree.parent[np.uint32(tree.right[j])] = j
        elif keeps_points(tree):
            slot = tree.head[j] = tree.head[last]
            while slot != NONE:
                tree.links[np.uint32(slot), 2] = j
                slot = tree.links[np.uint32(slot), 1]
    wipe(tree, last)
    tree.size[0] = last


@jit_inline
def wipe(tree, j):
    """Clear slot `j`."""
    tree.left[j] = tree.right[j] = tree.parent[j] = tree.feature[j] = 0
    tree.cut[j] = tree.time[j] = 0.0
    tree.counts[j] = 0
    for k in range(tree.lower.shape[1]):
        tree.lower[j, k] = tree.upper[j, k] = 0.0
    if keeps_points(tree):
        tree.head[j] = NONE


# ---- insertion -----------------------------------------------------------------------------------------------------


@jit_inline
def trace(tree, X, i, walk):
    """Call `trace_path`, in a version specialised for numbers if there are no categories."""
    if tree.n_categories == 0:
        return trace_path(tree, X, i, walk, 0)
    return trace_path(tree, X, i, walk, tree.n_categories)


@jit_inline
def trace_path(tree, X, i, walk, n_categories):
    """Walk row `i` down to its leaf by the cuts, recording the hazard of a new cut; return the length of its path.

    While a node lives, a point at distance e from its box is cut off from it at rate e. Boxes that hold the row are
    measured too: an unpredictable branch would cost more.
    """
    step, j = np.uint32(0), np.uint32(tree.root[0])
    n_numbers = np.uint32(first_category(X.shape[1], n_categories))
    hazard, began = 0.0, 0.0
    while True:
        rate, volume = measure(tree.lower, tree.upper, j, tree.weights, X, i, n_categories)
        walk.path[step], walk.rates[step], walk.hazards[step], walk.volumes[step] = j, rate, hazard, volume
        walk.births[step], walk.counts[step] = began, tree.counts[j]
        delta, ends = np.uint32(tree.feature[j]), tree.time[j]
        hazard += (ends - began) * rate if rate > 0.0 else 0.0  # the time may be infinite
        began = ends
        if delta < n_numbers:
            low, high, xi = tree.lower[j, delta], tree.upper[j, delta], tree.cut[j]
            is_left = X[i, delta] <= xi
            walk.sides[step], walk.parts[step] = high - low, xi - low if is_left else high - xi
        elif delta == _LEAF:
            break
        else:
            is_left = cubes.says_no(X[i, delta], tree.cut[j])
            walk.sides[step], walk.parts[step] = 2.0, 1.0
        j = choose(is_left, np.uint32(tree.left[j]), np.uint32(tree.right[j]))
        step += np.uint32(1)
    step += np.uint32(1)
    walk.hazards[step], walk.births[step] = hazard, began
    if n_categories > 0:
        halve_volumes(tree, step, walk)
    return step


@jit_borrowing_helper
def halve_volumes(tree, length, walk):
    """Halve the volumes of the boxes below each question on a path."""
    left_over, n_numbers = 1.0, first_category(tree.lower.shape[1], tree.n_categories)
    for step in range(length):
        walk.volumes[step] *= left_over
        left_over *= 0.5 if tree.feature[walk.path[step]] >= n_numbers else 1.0


@jit_inline
def choose(condition, one, other):
    """Return `one` if the condition holds, else `other`, without a branch."""
    return other ^ ((one ^ other) & -np.uint32(condition))


@jit_inline
def insert_point(tree, X, i, slot, length, limits, walk):
    """Extend the tree by row `i`, the point in `slot`, along the path that `trace` found (Alg. 5).

    Alg. 5 draws an exponential time at every node. As they are memoryless, one unit exponential for the whole path is
    equivalent: the row is cut off when the hazard exceeds it.
    """
    budget = exponential(tree.rng)
    place = np.uint32(0)
    while place < length and not walk.hazards[place + np.uint32(1)] > budget:
        place += np.uint32(1)
    time = limits.lifetime
    if place < length and place < limits.max_depth:
        began = 0.0 if place == 0 else tree.time[walk.path[place - np.uint32(1)]]
        time = began + (budget - walk.hazards[place]) / walk.rates[place]
        time = min(time, tree.time[walk.path[place]])
    is_cut_off = time < limits.lifetime
    step = place if is_cut_off else length
    j = walk.path[place if is_cut_off else length - np.uint32(1)]
    is_held = False
    while step > 0:  # boxes are nested: once one holds the row, all above do
        step -= np.uint32(1)
        tree.counts[walk.path[step]] += 1
        if not is_held:
            j_above = walk.path[step]
            is_held = walk.rates[step] == 0.0 and contains(tree.lower, tree.upper, j_above, X, i, tree.n_categories)
            if not is_held:
                grow(tree.lower, tree.upper, j_above, X, i, tree.n_categories)
    if is_cut_off:
        j = cut_off(tree, j, X, i, walk.rates[place], time, limits.lifetime)
    if keeps_points(tree):
        link(tree, j, slot)
    if is_cut_off and limits.max_depth < UNBOUNDED:
        drop_below(tree, walk.path[place], place + np.uint32(1), limits, walk)


@jit_inline
def plant(tree, X, i, slot, lifetime):
    """Make an empty tree a single leaf that holds row `i`, the point in `slot`."""
    root = np.uint32(0)
    make_leaf(tree, root, NONE, 1, lifetime)
    set_point(tree.lower, tree.upper, root, X, i)
    tree.root[0], tree.size[0] = 0, 1
    if keeps_points(tree):
        link(tree, root, slot)


@jit_inline
def cut_off(tree, j, X, i, rate, time, lifetime):
    """Insert a parent above node `j` whose cut at `time` separates it from row `i`; return the new leaf of the row."""
    delta, xi, is_left = cut_gap(tree, j, X, i, rate)
    above, leaf = np.uint32(tree.size[0]), np.uint32(tree.size[0] + 1)
    tree.size[0] += 2
    make_leaf(tree, above, NONE, tree.counts[j] + 1, time)
    make_leaf(tree, leaf, above, 1, lifetime)
    put_in_place(tree, j, above)
    tree.parent[j] = above
    tree.left[above], tree.right[above] = (leaf, j) if is_left else (j, leaf)
    tree.feature[above], tree.cut[above] = delta, xi
    set_point(tree.lower, tree.upper, leaf, X, i)
    set_hull(tree.lower, tree.upper, above, j, leaf, tree.n_categories)
    return leaf


@jit_inline
def cut_gap(tree, j, X, i, rate):
    """Draw a cut between box `j` and row `i` outside it; return its dimension, location, and if the row is left of it.

    Draw the dimension in proportion to the weighted distance, the location uniformly from the gap; for a category, from
    the questions whose answer by the row is new.
    """
    remaining, delta = uniform(tree.rng) * rate, np.uint32(0)
    n_numbers = np.uint32(first_category(tree.lower.shape[1], tree.n_categories))
    for k in range(np.uint32(tree.lower.shape[1])):
        low, high = tree.lower[j, k], tree.upper[j, k]
        apart = excess(low, high, X[i, k]) if k < n_numbers else cubes.distance(low, high, X[i, k])
        part = tree.weights[k] * apart
        delta = k if part > 0.0 else delta
        if remaining < part:
            break
        remaining -= part
    if delta >= n_numbers:
        questions = cubes.new_questions(tree.lower[j, delta], tree.upper[j, delta], X[i, delta])
        xi = cubes.choose_question(questions, remaining / tree.weights[delta])
        return delta, xi, cubes.says_no(X[i, delta], xi)
    share, x, low, high = uniform(tree.rng), X[i, delta], tree.lower[j, delta], tree.upper[j, delta]
    if x < low:
        xi = x + share * (low - x)
        return delta, xi if xi < low else x, True
    xi = high + share * (x - high)
    return delta, xi if xi < x else high, False


@jit_borrowing_helper
def drop_below(tree, j, depth, limits, walk):
    """Drop nodes below the depth limit from the subtree of `j`, which has moved down to `depth`.

    They are leaves, two for each node now at the limit, which becomes a leaf with their points.
    """
    walk.waiting[0, 0], walk.waiting[0, 1] = j, depth
    n_waiting, n_freed = 1, 0
    while n_waiting > 0:
        n_waiting -= 1
        j, depth = walk.waiting[n_waiting, 0], walk.waiting[n_waiting, 1]
        if tree.feature[j] == NONE:
            continue
        for child in (tree.left[j], tree.right[j]):
            if depth < limits.max_depth:
                walk.waiting[n_waiting, 0], walk.waiting[n_waiting, 1] = child, depth + 1
                n_waiting += 1
            else:
                walk.freed[n_freed] = child
                tree.counts[child] = -1
                n_freed += 1
        if depth == limits.max_depth:
            left, right = tree.left[j], tree.right[j]
            make_leaf(tree, j, tree.parent[j], tree.counts[j], limits.lifetime)
            if keeps_points(tree):
                move_points(tree, left, j)
                move_points(tree, right, j)
    for place in range(n_freed):
        drop_last_if_freed(tree)
        if walk.freed[place] < tree.size[0]:
            release(tree, np.uint32(walk.freed[place]))
    drop_last_if_freed(tree)


@jit_inline
def drop_last_if_freed(tree):
    """Wipe slots marked as freed (negative count) at the end of those in use, so that they are not moved."""
    while tree.counts[tree.size[0] - 1] < 0:
        tree.size[0] -= 1
        wipe(tree, np.uint32(tree.size[0]))


# ---- deletion ------------------------------------------------------------------------------------------------------


@jit_inline
def delete_point(tree, values, slot, limits, walk):
    """Restrict the tree to all points but the one in `slot` of `values`."""
    j = np.uint32(tree.links[slot, 2])
    unlink(tree, j, slot)
    tree.counts[j] -= 1
    if tree.counts[j] > 0:
        if is_spanned_by(tree.lower, tree.upper, j, values, slot, tree.n_categories):
            scan_list(tree, j, values)
        count_out(tree, tree.parent[j], values, slot)
        return
    if tree.parent[j] == NONE:
        wipe(tree, j)
        tree.root[0] = tree.size[0] = 0
        return
    above = np.uint32(tree.parent[j])
    sibling = np.uint32(tree.left[above] if tree.right[above] == j else tree.right[above])
    put_in_place(tree, above, sibling)
    depth = count_out(tree, tree.parent[sibling], values, slot)
    if limits.max_depth < UNBOUNDED:
        reveal(tree, sibling, tree.time[above], depth, values, limits, walk)
    for freed in (max(above, j), min(above, j)):
        release(tree, freed)


@jit_inline
def count_out(tree, j, values, slot):
    """Subtract the point in `slot` from node `j` and all above it, shrinking their boxes; return their number."""
    depth, may_shrink = 0, True
    while j != NONE:
        node = np.uint32(j)
        tree.counts[node] -= 1
        if may_shrink:
            may_shrink = is_spanned_by(tree.lower, tree.upper, node, values, slot, tree.n_categories)
            if may_shrink:
                left, right = np.uint32(tree.left[node]), np.uint32(tree.right[node])
                set_hull(tree.lower, tree.upper, node, left, right, tree.n_categories)
        depth += 1
        j = tree.parent[node]
    return depth


@jit_borrowing_helper
def reveal(tree, top, began, depth, values, limits, walk):
    """Draw the cuts that rise above the depth limit as the subtree of `top` moves up to `depth`.

    They are the cuts of leaves now just above the limit, which were at the limit before. All that is known of such a
    cut is that it follows the cut of the leaf's former parent. For `top` itself that parent is gone: it was cut at
    `began`.
    """
    walk.waiting[0, 0], walk.waiting[0, 1] = top, depth
    n_waiting = 1
    while n_waiting > 0:
        n_waiting -= 1
        j, depth = walk.waiting[n_waiting, 0], walk.waiting[n_waiting, 1]
        if tree.feature[j] != NONE:
            walk.waiting[n_waiting, 0], walk.waiting[n_waiting, 1] = tree.right[j], depth + 1
            walk.waiting[n_waiting + 1, 0], walk.waiting[n_waiting + 1, 1] = tree.left[j], depth + 1
            n_waiting += 2
        elif depth == limits.max_depth - 1:
            born = began if j == top else birth_time(tree.parent, tree.time, j)
            cut_leaf(tree, j, born, values, limits.lifetime)


@jit_inline
def cut_leaf(tree, j, born, values, lifetime):
    """Cut leaf `j`, born at time `born`, if its first cut falls within the lifetime."""
    lower, upper, n_categories = tree.lower[j], tree.upper[j], tree.n_categories
    time, delta, xi = draw_cut(tree.rng, tree.weights, born, lower, upper, lifetime, n_categories)
    if delta == NONE:
        return
    left, right = np.uint32(tree.size[0]), np.uint32(tree.size[0] + 1)
    tree.size[0] += 2
    make_leaf(tree, left, j, 0, lifetime)
    make_leaf(tree, right, j, 0, lifetime)
    tree.left[j], tree.right[j], tree.feature[j], tree.cut[j], tree.time[j] = left, right, delta, xi, time
    slot = tree.head[j]
    tree.head[j] = NONE
    while slot != NONE:
        after = tree.links[np.uint32(slot), 1]
        child = left if goes_left(values, np.uint32(slot), delta, xi, n_categories) else right
        link(tree, child, np.uint32(slot))
        tree.counts[child] += 1
        slot = after
    scan_list(tree, left, values)
    scan_list(tree, right, values)


# ---- many points at once -------------------------------------------------------------------------------------------


@jit_borrowing
def link_points(forest, points, first, last, members):
    """Put the points of each tree from `first` up to `last` into the lists of their leaves.

    `members`, int32 (T, n): the slots of each tree's points, NONE after the last.
    """
    for t in range(first, last):
        tree = tree_of(forest, points, t)
        for place in range(members.shape[1]):
            if members[t, place] != NONE:
                slot = np.uint32(members[t, place])
                link(tree, leaf_of(tree, points.values, slot), slot)


@jit_borrowing
def subtract_rows(forest, points, first, last, X):
    """Subtract rows from trees that keep no points; return the first row for which this fails, or the number of rows.

    Without the points a box cannot shrink. So a row must not touch a live side of its leaf's box, and the leaf must
    hold another point. Then no box above changes either.
    """
    n = X.shape[0]
    for t in range(first, last):
        tree = tree_of(forest, points, t)
        for i in range(np.uint32(X.shape[0])):
            j = leaf_of(tree, X, i)
            if tree.counts[j] < 2 or not is_spared(tree, j, X, i):
                n = min(n, np.int64(i))
                break
            above = np.int32(j)
            while above != NONE:
                tree.counts[np.uint32(above)] -= 1
                above = tree.parent[np.uint32(above)]
    return n


@jit_inline
def is_spared(tree, j, X, i):
    """Return whether box `j` is the same without row `i`, whatever other points it holds."""
    spared, n = True, first_category(tree.lower.shape[1], tree.n_categories)
    for k in range(n):
        value, low, high = X[i, k], tree.lower[j, k], tree.upper[j, k]
        spared &= (low < value < high) if low < high else value == low
    for k in range(n, tree.lower.shape[1]):
        spared &= tree.lower[j, k] == X[i, k] == tree.upper[j, k]
    return spared


@jit_inline
def leaf_of(tree, X, i):
    """Return the leaf that the cuts send row `i` to."""
    j = np.uint32(tree.root[0])
    while tree.feature[j] != NONE:
        is_left = goes_left(X, i, tree.feature[j], tree.cut[j], tree.n_categories)
        j = np.uint32(tree.left[j] if is_left else tree.right[j])
    return j
