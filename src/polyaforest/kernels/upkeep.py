"""What a stream needs now and then, besides its loop: points put in their leaves, points taken out on request."""

import numpy as np

from polyaforest.core.arrays import NONE
from polyaforest.core.jit import jit_borrowing, jit_inline
from polyaforest.kernels.online import delete_point, link, tree_of
from polyaforest.kernels.sampling import has_gap, is_member, take_next


@jit_inline
def leaf_of(tree, X, i):
    """The leaf that the cuts send row `i` to."""
    j = np.uint32(tree.root[0])
    while tree.feature[j] != NONE:
        j = np.uint32(tree.left[j] if X[i, np.uint32(tree.feature[j])] <= tree.cut[j] else tree.right[j])
    return j


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
def remove_points(forest, points, first, last, slots, limits, samples, walk):
    """Delete the points in `slots`, which no longer count as held, from the trees from `first` up to `last`."""
    for t in range(first, last):
        tree = tree_of(forest, points, t)
        for place in range(slots.shape[0]):
            slot = np.uint32(slots[place])
            if is_member(tree, slot):
                delete_point(tree, points.values, slot, limits, walk)
                if has_gap(samples, t):
                    take_next(tree, points.values, samples.is_held, samples, t, limits, walk)


@jit_borrowing
def subtract_rows(forest, points, first, last, X):
    """Count rows out of trees that keep no points; return the first row that cannot be, or the number of rows.

    Without the points a box cannot shrink. So the row must not hold up a side of its leaf's box: it lies strictly
    inside where the box has a length, and where it has none the other points below are there too. Then no box above
    changes either.
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
    """Whether box `j` stays as it is without row `i`, whatever other points it holds."""
    spared = True
    for k in range(tree.lower.shape[1]):
        value, low, high = X[i, k], tree.lower[j, k], tree.upper[j, k]
        spared &= (low < value < high) if low < high else value == low
    return spared
