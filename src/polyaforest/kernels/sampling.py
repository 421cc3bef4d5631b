"""Which of the points held a tree takes: those with the lowest tickets in a draw of its own.

Every tree gives every point a ticket, a number that looks random and depends on nothing but the tree's seed and the
number of the point's arrival. The tree holds the points with the lowest tickets, at most so many. Whatever comes and
goes, that is a sample of the points held in which all are equally likely, so a tree stays what it would be if it were
drawn from scratch: when a point with a low ticket comes, the highest in the sample makes way; when one of the sample
leaves, the lowest of the others takes its place.
"""

from typing import NamedTuple

import numpy as np

from polyaforest.core.arrays import EVERY, NONE, Array
from polyaforest.core.jit import jit_borrowing, jit_inline
from polyaforest.kernels.online import delete_point, insert_point, plant, trace

NO_BAR = np.uint64(2**63)  # above any ticket: the bar of a tree that still takes every point
_STRIDE = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFT_1, _SHIFT_2, _SHIFT_3, _ONE = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(1)


class Samples(NamedTuple):
    """What decides which points each tree takes."""

    sizes: Array  # int64 (T,): the most that a tree holds, EVERY if it holds all
    seeds: Array  # uint64 (T,): of the tickets
    bars: Array  # uint64 (T,): the highest ticket in a tree that holds as many as it may, else NO_BAR
    numbers: Array  # int64 (P,): the arrival of the point in each slot
    is_held: Array  # bool (P,): the points held, before any come or go


@jit_inline
def ticket(seed, number):
    """The ticket of an arrival, below 2**63: its place in a SplitMix64 sequence (Steele, Lea and Flood, 2014)."""
    word = seed + np.uint64(number) * _STRIDE
    word = (word ^ (word >> _SHIFT_1)) * _MIX_1
    word = (word ^ (word >> _SHIFT_2)) * _MIX_2
    return (word ^ (word >> _SHIFT_3)) >> _ONE


@jit_borrowing
def fill_tickets(seeds, numbers, out):
    """Write the tickets of all `numbers` in every tree to `out`, uint64 (T, n)."""
    for t in range(seeds.shape[0]):
        for i in range(numbers.shape[0]):
            out[t, i] = ticket(seeds[t], numbers[i])


@jit_inline
def is_sampled(samples, t):
    """Whether tree `t` may hold fewer points than there are."""
    return samples.sizes[t] < EVERY


@jit_inline
def is_drawn(samples, t, slot):
    """Whether the point that comes to `slot` is one for tree `t`."""
    return ticket(samples.seeds[t], samples.numbers[slot]) < samples.bars[t]


@jit_inline
def is_member(tree, slot):
    """Whether the tree holds the point in `slot`."""
    return tree.links[slot, 2] != NONE


@jit_borrowing
def keep_to_size(tree, values, samples, t, limits, walk):
    """Now that tree `t` has taken a point: let the highest ticket go if that is one too many, and set the bar."""
    n = tree.counts[np.uint32(tree.root[0])]
    if n < samples.sizes[t]:
        return
    highest, second, last = np.uint64(0), np.uint64(0), NONE
    for j in range(np.uint32(tree.size[0])):
        slot = tree.head[j]
        while slot != NONE:
            own = ticket(samples.seeds[t], samples.numbers[np.uint32(slot)])
            if own >= highest:
                highest, second, last = own, highest, slot
            elif own > second:
                second = own
            slot = tree.links[np.uint32(slot), 1]
    if n > samples.sizes[t]:
        delete_point(tree, values, np.uint32(last), limits, walk)
        highest = second
    samples.bars[t] = highest


@jit_inline
def has_gap(samples, t):
    """Whether tree `t`, which has just lost a point, may have passed others over that could take its place."""
    return is_sampled(samples, t) and samples.bars[t] < NO_BAR


@jit_borrowing
def take_next(tree, values, is_held, samples, t, limits, walk):
    """Let tree `t` take the point with the lowest ticket of those held that it has passed over, if there is any."""
    lowest, first = NO_BAR, np.uint32(0)
    for slot in range(np.uint32(tree.links.shape[0])):
        if is_held[slot] and not is_member(tree, slot):
            own = ticket(samples.seeds[t], samples.numbers[slot])
            if own < lowest:
                lowest, first = own, slot
    samples.bars[t] = lowest
    if lowest == NO_BAR:
        return
    if tree.size[0] == 0:
        plant(tree, values, first, first, limits.lifetime)
    else:
        insert_point(tree, values, first, first, trace(tree, values, first, walk), limits, walk)
