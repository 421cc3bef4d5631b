"""Sample the cuts of a Mondrian process (the partition of bMPF): they depend on the domain, not on the data."""

import numpy as np

from polyaforest.kernels import cubes
from polyaforest.kernels.arrays import NONE
from polyaforest.kernels.cuts import birth_time, draw_cut, make_children, make_leaf
from polyaforest.kernels.geometry import is_question
from polyaforest.kernels.jit import jit, jit_helper


@jit
def sample_process(forest, t, regions, lifetime, max_depth):
    """Sample a Mondrian process over the domain as tree `t`; return False if slots or `regions` run out.

    `regions`, float64 (levels, 2, D), holds the regions of the current node and its ancestors, by depth.
    """
    capacity = forest.left.shape[1]
    waiting = np.empty((capacity, 2), np.int32)  # node, depth
    make_leaf(forest, t, 0, NONE, 0, lifetime)
    waiting[0, 0], waiting[0, 1] = 0, 0
    size, n_waiting = 1, 1
    while n_waiting > 0:
        n_waiting -= 1
        j, depth = waiting[n_waiting, 0], waiting[n_waiting, 1]
        if depth == max_depth:
            continue
        if depth >= regions.shape[0] or size + 2 > capacity:
            return False
        enter_region(forest, t, j, depth, regions)
        if not cut_region(forest, t, j, regions[depth], lifetime):
            continue
        left, right = make_children(forest, t, j, size, 0, 0, lifetime)
        size += 2
        waiting[n_waiting, 0], waiting[n_waiting, 1] = right, depth + 1
        waiting[n_waiting + 1, 0], waiting[n_waiting + 1, 1] = left, depth + 1
        n_waiting += 2
    forest.root[t], forest.size[t] = 0, size
    return True


@jit_helper
def enter_region(forest, t, j, depth, regions):
    """Write the region of node `j` to ``regions[depth]``; that of its parent is in the row above."""
    parent = forest.parent[t, j]
    above = forest.domain if parent == NONE else regions[depth - 1]
    for end in range(2):  # a loop takes seconds less to compile than the assignment of a slice
        for k in range(above.shape[1]):
            regions[depth, end, k] = above[end, k]
    if parent == NONE:
        return
    delta, xi, region = forest.feature[t, parent], forest.cut[t, parent], regions[depth]
    side = 1 if forest.left[t, parent] == j else 0
    if not is_question(delta, region.shape[1], forest.n_categories[0]):
        region[side, delta] = xi
    elif side == 1:
        region[1, delta] = cubes.low_side(region[1, delta], xi)
    else:
        region[0, delta] = cubes.high_side(region[0, delta], xi)


@jit_helper
def cut_region(forest, t, j, region, lifetime):
    """Draw the cut of node `j` from its region; return False if it stays a leaf."""
    began = birth_time(forest.parent[t], forest.time[t], j)
    n_categories = forest.n_categories[0]
    time, delta, xi = draw_cut(forest.rng[t], forest.weights[t], began, region[0], region[1], lifetime, n_categories)
    if delta == NONE:
        return False
    if not is_question(delta, region.shape[1], n_categories) and not region[0, delta] < xi:
        return False  # no float lies between the sides of this region
    forest.time[t, j], forest.feature[t, j], forest.cut[t, j] = time, delta, xi
    return True
