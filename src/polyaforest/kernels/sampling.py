"""Samples of the points held: each tree takes the points with the lowest priorities.

The priority of a point in a tree is a pseudo-random number that depends only on the tree's seed and the point's arrival
number. So the points of lowest priority are a uniform sample of the points held, after any insertions and deletions. A
new point of low priority replaces the highest in the sample; the lowest outside it replaces a point that leaves.
"""

from typing import NamedTuple

import numpy as np

from polyaforest.kernels.arrays import EVERY, NONE, Array
from polyaforest.kernels.jit import jit_borrowing, jit_borrowing_helper, jit_inline
from polyaforest.kernels.online import delete_point, insert_point, plant, trace, tree_of

NO_CUTOFF = np.uint64(2**63)  # above any priority: the cutoff of a tree that takes every point
_STRIDE = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFT_1, _SHIFT_2, _SHIFT_3, _ONE = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(1)


class TreeSamples(NamedTuple):
    """The sample of points that each tree holds."""

    sizes: Array  # int64 (T,): the maximum size of each sample, EVERY if unlimited
    seeds: Array  # uint64 (T,): seeds of the priorities
    cutoffs: Array  # uint64 (T,): the highest priority in a full sample, else NO_CUTOFF
    numbers: Array  # int64 (P,): the arrival number of the point in each slot
    is_held: Array  # bool (P,): the points held before the chunk


@jit_inline
def priority(seed, number):
    """Return the priority of an arrival, below 2**63, from a SplitMix64 sequence (Steele, Lea and Flood, 2014)."""
    word = seed + np.uint64(number) * _STRIDE
    word = (word ^ (word >> _SHIFT_1)) * _MIX_1
    word = (word ^ (word >> _SHIFT_2)) * _MIX_2
    return (word ^ (word >> _SHIFT_3)) >> _ONE


@jit_borrowing
def fill_priorities(seeds, numbers, out):
    """Write the priorities of all `numbers` in every tree to `out`, uint64 (T, n)."""
    for t in range(seeds.shape[0]):
        for i in range(numbers.shape[0]):
            out[t, i] = priority(seeds[t], numbers[i])


@jit_inline
def is_sampled(samples, t):
    """Return whether tree `t` may hold fewer points than the stream."""
    return samples.sizes[t] < EVERY


@jit_inline
def is_drawn(samples, t, slot):
    """Return whether tree `t` takes the new point in `slot`."""
    return priority(samples.seeds[t], samples.numbers[slot]) < samples.cutoffs[t]


@jit_inline
def is_member(tree, slot):
    """Return whether the tree holds the point in `slot`."""
    return tree.links[slot, 2] != NONE


@jit_borrowing_helper
def keep_to_size(tree, values, samples, t, limits, walk):
    """Delete the point of highest priority if an insertion made the sample of tree `t` too large; update the cutoff."""
    n = tree.counts[np.uint32(tree.root[0])]
    if n < samples.sizes[t]:
        return
    highest, second, last = np.uint64(0), np.uint64(0), NONE
    for j in range(np.uint32(tree.size[0])):
        slot = tree.head[j]
        while slot != NONE:
            own = priority(samples.seeds[t], samples.numbers[np.uint32(slot)])
            if own >= highest:
                highest, second, last = own, highest, slot
            elif own > second:
                second = own
            slot = tree.links[np.uint32(slot), 1]
    if n > samples.sizes[t]:
        delete_point(tree, values, np.uint32(last), limits, walk)
        highest = second
    samples.cutoffs[t] = highest


@jit_inline
def has_gap(samples, t):
    """Return whether points outside the sample of tree `t` may replace one that was deleted."""
    return is_sampled(samples, t) and samples.cutoffs[t] < NO_CUTOFF


@jit_borrowing_helper
def take_next(tree, values, is_held, samples, t, limits, walk):
    """Insert the point of lowest priority outside the sample of tree `t`, if any."""
    lowest, first = NO_CUTOFF, np.uint32(0)
    for slot in range(np.uint32(tree.links.shape[0])):
        if is_held[slot] and not is_member(tree, slot):
            own = priority(samples.seeds[t], samples.numbers[slot])
            if own < lowest:
                lowest, first = own, slot
    samples.cutoffs[t] = lowest
    if lowest == NO_CUTOFF:
        return
    if tree.size[0] == 0:
        plant(tree, values, first, first, limits.lifetime)
    else:
        insert_point(tree, values, first, first, trace(tree, values, first, walk), limits, walk)


@jit_borrowing
def remove_points(forest, points, first, last, slots, limits, samples, walk):
    """Delete the points in `slots`, no longer marked as held, from the trees from `first` up to `last`."""
    for t in range(first, last):
        tree = tree_of(forest, points, t)
        for place in range(slots.shape[0]):
            slot = np.uint32(slots[place])
            if is_member(tree, slot):
                delete_point(tree, points.values, slot, limits, walk)
                if has_gap(samples, t):
                    take_next(tree, points.values, samples.is_held, samples, t, limits, walk)
