"""Trees in preorder: the random draws of the partition, node by node.

Parents, counts, boxes and the lists of points are derived from the draws and the points. The input is untrusted: every
index is checked before use, and any error returns `MALFORMED`.
"""

import math

import numpy as np

from polyaforest.kernels.arrays import NONE, QUESTIONS
from polyaforest.kernels.geometry import grow, is_question, set_hull, set_point
from polyaforest.kernels.jit import jit_borrowing, jit_inline
from polyaforest.kernels.online import leaf_of, link, tree_of
from polyaforest.kernels.sampling import NO_CUTOFF, priority

MALFORMED = -1


@jit_borrowing
def write_trees(forest, features, slots, cuts, times, waiting):
    """Write the nodes of all trees one after another, and the cuts and times of inner nodes.

    `features` and `slots`, (N,), have room for all nodes, `cuts` and `times` for all inner nodes, `waiting` for the
    nodes of one tree.
    """
    n, n_cut = np.uint32(0), np.uint32(0)
    for t in range(forest.left.shape[0]):
        if forest.size[t] == 0:
            continue
        waiting[0], n_waiting = forest.root[t], 1
        while n_waiting > 0:
            n_waiting -= 1
            j = np.uint32(waiting[n_waiting])
            features[n], slots[n] = forest.feature[t, j], j
            n += np.uint32(1)
            if forest.feature[t, j] != NONE:
                cuts[n_cut], times[n_cut] = forest.cut[t, j], forest.time[t, j]
                n_cut += np.uint32(1)
                waiting[n_waiting], waiting[n_waiting + 1] = forest.right[t, j], forest.left[t, j]
                n_waiting += 2


@jit_borrowing
def read_trees(forest, features, slots, cuts, times, lifetime, max_depth, waiting, depths):
    """Read trees of known sizes into an empty forest: links, cuts and times; return the number of cuts, or MALFORMED.

    Each slot up to a tree's size must occur once, times must not decrease from the root down and be below `lifetime`,
    and no node may lie below `max_depth`. `depths`, (C,), is a buffer for the nodes of one tree.
    """
    n, n_cut = np.int64(0), np.int64(0)
    for t in range(forest.left.shape[0]):
        size, n_waiting = forest.size[t], 0
        depths[:] = NONE  # of free slots
        for place in range(size):
            j, delta = np.int64(slots[n]), features[n]
            n += 1
            if j < 0 or j >= size or depths[j] != NONE or (place > 0 and n_waiting == 0):
                return MALFORMED
            above = NONE if place == 0 else np.int64(waiting[n_waiting - 1])
            depths[j] = 0 if place == 0 else depths[above] + 1
            n_waiting -= attach(forest, t, j, above)
            if delta == NONE:
                forest.cut[t, j], forest.time[t, j] = np.nan, lifetime
                continue
            began = 0.0 if place == 0 else forest.time[t, above]
            if delta < 0 or delta >= forest.weights.shape[1] or n_cut >= cuts.shape[0] or depths[j] >= max_depth:
                return MALFORMED
            if not (began <= times[n_cut] < lifetime):
                return MALFORMED
            is_category = is_question(delta, forest.weights.shape[1], forest.n_categories[0])
            if is_category and not is_number_of_question(cuts[n_cut]):
                return MALFORMED
            forest.feature[t, j], forest.cut[t, j], forest.time[t, j] = delta, cuts[n_cut], times[n_cut]
            n_cut += 1
            waiting[n_waiting] = j
            n_waiting += 1
        if n_waiting > 0:
            return MALFORMED
    return n_cut


@jit_inline
def is_number_of_question(xi):
    """Return whether `xi` is the number of a question."""
    return 0.0 <= xi < QUESTIONS and xi == math.floor(xi)


@jit_inline
def attach(forest, t, j, above):
    """Attach node `j` to `above`, on the left first; return 1 if `above` is complete, else 0."""
    forest.left[t, j] = forest.right[t, j] = forest.feature[t, j] = NONE
    forest.parent[t, j] = above
    if above == NONE:
        forest.root[t] = j
        return 0
    if forest.left[t, above] == NONE:
        forest.left[t, above] = j
        return 0
    forest.right[t, above] = j
    return 1


@jit_borrowing
def fill_trees(forest, points, slots, numbers, sizes, seeds, cutoffs):
    """Fill trees with their points: lists, counts and boxes; return the number of nodes, or MALFORMED.

    The points are in the first slots of `points`; `numbers` are their arrivals. A tree holds the points with priorities
    up to its cutoff. They must be as many as its sample has, with at least one in each leaf. Cutoffs become exact.
    """
    n, n_held = np.int64(0), numbers.shape[0]
    for t in range(forest.left.shape[0]):
        tree, n_taken, highest = tree_of(forest, points, t), 0, np.uint64(0)
        for place in range(n_held):
            own, slot = priority(seeds[t], numbers[place]), np.uint32(place)
            if cutoffs[t] == NO_CUTOFF or own <= cutoffs[t]:
                j = leaf_of(tree, points.values, slot)
                if tree.counts[j] == 0:
                    set_point(tree.lower, tree.upper, j, points.values, slot)
                else:
                    grow(tree.lower, tree.upper, j, points.values, slot, tree.n_categories)
                tree.counts[j] += 1
                link(tree, j, slot)
                n_taken, highest = n_taken + 1, max(highest, own)
        if n_taken != min(sizes[t], n_held):
            return MALFORMED
        cutoffs[t] = highest if n_taken == sizes[t] else NO_CUTOFF
        for place in range(n + forest.size[t] - 1, n - 1, -1):  # children come after their parents
            j = np.uint32(slots[place])
            if tree.feature[j] != NONE:
                left, right = np.uint32(tree.left[j]), np.uint32(tree.right[j])
                tree.counts[j] = tree.counts[left] + tree.counts[right]
                set_hull(tree.lower, tree.upper, j, left, right, tree.n_categories)
            elif tree.counts[j] == 0:
                return MALFORMED
        n += forest.size[t]
    return n
