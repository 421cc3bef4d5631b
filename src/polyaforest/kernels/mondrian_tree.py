"""Sample the cuts of a Mondrian tree (the partition of sMPF: Alg. 1, and the cuts of Alg. 3).

Data is read by column: a cut reads one feature, and the larger child shares most sides of its box with its parent, so
few columns are scanned again. Whole rows are read only where rows are long and many sides differ.
"""

from typing import NamedTuple

import numpy as np

from polyaforest.kernels import cubes
from polyaforest.kernels.arrays import NONE, Array
from polyaforest.kernels.cuts import birth_time, draw_cut, draw_weights, make_children, make_leaf
from polyaforest.kernels.geometry import first_category, is_question
from polyaforest.kernels.jit import jit, jit_borrowing_helper, jit_inline

_LONG_ROW = 32  # features from which reading whole rows beats gathering from many columns


class SamplingWorkspace(NamedTuple):
    """Buffers to sample one tree; a thread reuses them from tree to tree."""

    rows: Array  # float64 (n, D): the tree's data
    columns: Array  # float64 (D, n): the same, feature by feature
    order: Array  # int32 (n,): row numbers, permuted so that the rows of each node are contiguous
    spare: Array  # int32 (n,): buffer for a stable partition
    start: Array  # int32 (C,): first place in `order` of a node's rows
    stop: Array  # int32 (C,): one past the last
    depth: Array  # int32 (C,)
    stack: Array  # int32 (C,): nodes still to be cut


@jit
def sample_tree(forest, t, work, lifetime, max_depth):
    """Sample tree `t` over the rows of `work` (SampleMondrianTree); return False if slots run out."""
    n, capacity = work.order.shape[0], forest.left.shape[1]
    lower, upper, n_categories = forest.lower[t], forest.upper[t], forest.n_categories[0]
    for r in range(n):
        work.order[r] = r
    make_leaf(forest, t, 0, NONE, n, lifetime)
    work.start[0], work.stop[0], work.depth[0] = 0, n, 0
    scan_box(work.rows, work.columns, work.order, lower, upper, 0, n_categories)
    work.stack[0] = 0
    size, waiting = 1, 1
    while waiting > 0:
        waiting -= 1
        j = work.stack[waiting]
        if work.depth[j] == max_depth or not sample_block(forest, t, j, lifetime, n_categories):
            continue
        if size + 2 > capacity:
            return False
        start, stop = work.start[j], work.stop[j]
        middle = partition(work, start, stop, forest.feature[t, j], forest.cut[t, j], n_categories)
        left, right = make_children(forest, t, j, size, middle - start, stop - middle, lifetime)
        size += 2
        work.start[left], work.stop[left], work.depth[left] = start, middle, work.depth[j] + 1
        work.start[right], work.stop[right], work.depth[right] = middle, stop, work.depth[j] + 1
        restrict(work, lower, upper, j, left, right, n_categories)
        work.stack[waiting], work.stack[waiting + 1] = right, left
        waiting += 2
    forest.root[t], forest.size[t] = 0, size
    return True


@jit
def sample_trees(forest, X, members, spread, deviation, most_used, lifetime, max_depth):
    """Sample all trees of an empty forest, each over its `members` among the rows of `X`.

    For small trees, where one call per tree would dominate. `members`, (T, n), hold NONE after the last of a tree.
    Unless `spread` is empty, draw weights for at most `most_used` features first. The forest must have slots for the
    largest possible tree.
    """
    most, capacity, n_features = members.shape[1], forest.left.shape[1], X.shape[1]
    order, spare = np.empty(most, np.int32), np.empty(most, np.int32)
    start, stop = np.empty(capacity, np.int32), np.empty(capacity, np.int32)
    depth, stack = np.empty(capacity, np.int32), np.empty(capacity, np.int32)
    for t in range(forest.left.shape[0]):
        if spread.shape[0] > 0:
            draw_weights(forest.rng[t], spread, deviation, most_used, forest.weights[t])
        n = 0
        while n < most and members[t, n] != NONE:
            n += 1
        rows, columns = np.empty((n, n_features)), np.empty((n_features, n))
        for r in range(n):
            for d in range(n_features):
                rows[r, d] = columns[d, r] = X[members[t, r], d]
        work = SamplingWorkspace(rows, columns, order[:n], spare[:n], start, stop, depth, stack)
        sample_tree(forest, t, work, lifetime, max_depth)


@jit_borrowing_helper
def sample_block(forest, t, j, lifetime, n_categories):
    """Draw time, dimension and location of the cut of `j` (SampleMondrianBlock); return False if it stays a leaf."""
    began = birth_time(forest.parent[t], forest.time[t], j)
    rng, weights, lower, upper = forest.rng[t], forest.weights[t], forest.lower[t, j], forest.upper[t, j]
    if n_categories == 0:  # a version specialised for numbers
        time, delta, xi = draw_cut(rng, weights, began, lower, upper, lifetime, 0)
    else:
        time, delta, xi = draw_cut(rng, weights, began, lower, upper, lifetime, n_categories)
    if delta == NONE:
        return False
    forest.time[t, j], forest.feature[t, j], forest.cut[t, j] = time, delta, xi
    return True


@jit_borrowing_helper
def partition(work, start, stop, delta, xi, n_categories):
    """Move the rows left of a cut to the front, keeping order; return the start of the others."""
    column, order, spare = work.columns[delta], work.order, work.spare
    n_left, n_right = np.uint32(start), np.uint32(0)
    if is_question(delta, work.columns.shape[0], n_categories):
        return partition_by_question(column, order, spare, start, stop, xi)
    for r in range(np.uint32(start), np.uint32(stop)):  # without a branch, which would be mispredicted often
        row = order[r]
        goes_left = np.uint32(column[np.uint32(row)] <= xi)
        order[n_left] = row
        spare[n_right] = row
        n_left += goes_left
        n_right += np.uint32(1) - goes_left
    for r in range(n_right):
        order[n_left + r] = spare[r]
    return np.int64(n_left)


@jit_borrowing_helper
def partition_by_question(column, order, spare, start, stop, question):
    """Partition rows by a category, as `partition` does by a number."""
    n_left, n_right = np.uint32(start), np.uint32(0)
    for r in range(np.uint32(start), np.uint32(stop)):
        row = order[r]
        if cubes.says_no(column[np.uint32(row)], question):
            order[n_left] = row
            n_left += np.uint32(1)
        else:
            spare[n_right] = row
            n_right += np.uint32(1)
    for r in range(n_right):
        order[n_left + r] = spare[r]
    return np.int64(n_left)


@jit_borrowing_helper
def restrict(work, lower, upper, j, left, right, n_categories):
    """Set the boxes of the children of `j`: scan the smaller, and the larger only where it can differ from `j`."""
    small, large = left, right
    if work.stop[left] - work.start[left] > work.stop[right] - work.start[right]:
        small, large = right, left
    order = work.order[work.start[small] : work.stop[small]]
    scan_box(work.rows, work.columns, order, lower, upper, small, n_categories)
    order = work.order[work.start[large] : work.stop[large]]
    n_features, n_touched = first_category(lower.shape[1], n_categories), 0
    for d in range(n_features):
        n_touched += touches(lower, upper, j, small, d)
    if n_features >= _LONG_ROW and 8 * n_touched > n_features:
        scan_box(work.rows, work.columns, order, lower, upper, large, n_categories)
        return
    columns = work.columns
    if n_categories > 0:
        scan_cubes(columns, order, lower, upper, large, n_features)
    for d in range(n_features):
        if touches(lower, upper, j, small, d):
            scan_side(columns, order, lower, upper, large, d)
        else:
            lower[large, d], upper[large, d] = lower[j, d], upper[j, d]


@jit_inline
def touches(lower, upper, j, child, d):
    """Return whether `child` reaches a side of `j` in dimension `d`, so that its sibling may not."""
    return (lower[child, d] == lower[j, d]) | (upper[child, d] == upper[j, d])


@jit_borrowing_helper
def scan_box(rows, columns, order, lower, upper, j, n_categories):
    """Make box `j` the bounding box of the rows in `order`."""
    n_features = first_category(lower.shape[1], n_categories)
    if n_categories > 0:
        scan_cubes(columns, order, lower, upper, j, n_features)
    if n_features < _LONG_ROW:
        for d in range(n_features):
            scan_side(columns, order, lower, upper, j, d)
        return
    for d in range(n_features):
        lower[j, d] = upper[j, d] = rows[order[0], d]
    for r in range(1, order.shape[0]):
        row = np.uint32(order[r])
        for d in range(n_features):
            value = rows[row, d]
            lower[j, d] = value if value < lower[j, d] else lower[j, d]
            upper[j, d] = value if value > upper[j, d] else upper[j, d]


@jit_inline
def scan_side(columns, order, lower, upper, j, d):
    """Set the side of box `j` in dimension `d` to the range of the rows in `order`."""
    low = high = columns[d, np.uint32(order[0])]
    for r in range(np.uint32(1), np.uint32(order.shape[0])):
        value = columns[d, np.uint32(order[r])]
        low = value if value < low else low
        high = value if value > high else high
    lower[j, d], upper[j, d] = low, high


@jit_borrowing_helper
def scan_cubes(columns, order, lower, upper, j, first):
    """Set the cubes of box `j`, from dimension `first` on, to the smallest that hold the rows in `order`."""
    for d in range(first, lower.shape[1]):
        low = high = np.int64(columns[d, np.uint32(order[0])])
        for r in range(np.uint32(1), np.uint32(order.shape[0])):
            code = np.int64(columns[d, np.uint32(order[r])])
            low &= code
            high |= code
        lower[j, d], upper[j, d] = low, high
