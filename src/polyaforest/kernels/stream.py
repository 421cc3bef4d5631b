"""The prequential loop: every row is scored by the trees as they stand, then learned, and what has had its time leaves.

Each tree runs through all rows of a chunk before the next tree begins, so that its arrays stay in the cache.
"""

import math
from typing import NamedTuple

import numpy as np

from polyaforest._arrays import NONE, SCORE_CELLS, SCORE_LOG_MASS, SCORE_NOTHING, Array
from polyaforest._jit import jit_borrowing, jit_inline
from polyaforest.kernels.geometry import contains_live, volume
from polyaforest.kernels.online import delete_point, insert_point, plant, trace, tree_of
from polyaforest.kernels.polya import (
    box_share,
    cut_share,
    cut_strength,
    posterior_mean,
    restriction_strength,
    within_mean,
    world_reach,
    world_share,
)

BLOCK = 5  # trees whose masses are added up together, whatever the number of threads
_FAINT = 1e-150  # a product of means below this goes on as a logarithm


class Chunk(NamedTuple):
    """Rows of a stream, and what happens to the points held as each of them comes."""

    rows: Array  # float64 (n, D)
    slots: Array  # int32 (n,): where a row is kept, NONE if it is not learned
    until: Array  # int32 (n,): how many of `leaving` have gone once the row is learned
    leaving: Array  # int32 (m,): slots of points that leave, in this order


class Scoring(NamedTuple):
    """What to score rows by."""

    kind: int  # SCORE_NOTHING, SCORE_CELLS, SCORE_MASS or SCORE_LOG_MASS
    lifetimes: Array  # float64 (S,): ascending; the times of SCORE_CELLS
    gamma: float
    is_open: bool
    domain: Array  # float64 (2, D)


class Totals(NamedTuple):
    """Masses added up over blocks of trees: the sum is `sums` times exp(`tops`), which cannot underflow.

    Logarithms of masses are added up in `sums` alone.
    """

    sums: Array  # float64 (blocks, S, n), zeros at first
    tops: Array  # float64 (blocks, S, n), -inf at first


@jit_borrowing
def run_chunk(forest, points, first, last, chunk, limits, scoring, totals, walk):
    """Let the trees from `first` up to `last` score and learn the rows of `chunk` one after another."""
    rows, values = chunk.rows, points.values
    for t in range(first, last):
        tree = tree_of(forest, points, t)
        sums, tops = totals.sums[t // BLOCK], totals.tops[t // BLOCK]
        n_left = 0
        for i in range(np.uint32(rows.shape[0])):
            slot = chunk.slots[i]
            length = np.uint32(0)
            if tree.size[0] > 0:
                length = trace(tree, rows, i, walk)
            if scoring.kind == SCORE_CELLS and length > 0:
                score_cells(tree, length, scoring, walk, sums, tops, i)
            elif scoring.kind != SCORE_NOTHING:
                score_leaf(tree, rows, length, scoring, walk, sums, tops, i)
            if slot != NONE:
                if length == 0:
                    plant(tree, rows, i, np.uint32(slot), limits.lifetime)
                else:
                    insert_point(tree, rows, i, np.uint32(slot), length, limits, walk)
            while n_left < chunk.until[i]:
                delete_point(tree, values, np.uint32(chunk.leaving[n_left]), limits, walk)
                n_left += 1


@jit_inline
def score_cells(tree, length, scoring, walk, sums, tops, i):
    """Add the masses of a traced row's cells at the lifetimes to the totals."""
    lifetimes, gamma = scoring.lifetimes, scoring.gamma
    n_lifetimes, s = np.uint32(lifetimes.shape[0]), np.uint32(0)
    lower, upper = tree.lower, tree.upper
    j = walk.path[0]
    n = tree.counts[j]
    mass, scale = within_mean(gamma, scoring.is_open, n), 0.0
    if not scoring.domain[0, 0] > scoring.domain[1, 0]:
        mass *= posterior_mean(gamma, world_share(lower, upper, j, scoring.domain), n, n)
    box = volume(lower, upper, j)
    step, began = np.uint32(0), 0.0
    while True:
        ends, rate, hazard = tree.time[j], walk.rates[step], walk.hazards[step]
        is_last = step + np.uint32(1) == length
        while s < n_lifetimes and (lifetimes[s] < ends or is_last):
            elapsed = min(lifetimes[s], ends) - began
            if rate > 0.0 and elapsed > 0.0:
                add(sums, tops, s, i, mass, scale - (hazard + elapsed * rate))
            else:
                add(sums, tops, s, i, mass, scale - hazard)
            s += np.uint32(1)
        if s == n_lifetimes:
            return
        child = walk.path[step + np.uint32(1)]
        delta, xi, depth = np.uint32(tree.feature[j]), tree.cut[j], np.float64(step)
        goes_left = tree.left[j] == child
        share = cut_share(lower[j, delta], upper[j, delta], xi, goes_left)
        child_box = volume(lower, upper, child)
        f = box_share(lower, upper, j, delta, xi, goes_left, child, share, box, child_box)
        n_child = tree.counts[child]
        mass *= posterior_mean(cut_strength(gamma, depth, True), share, n_child, n) * posterior_mean(
            restriction_strength(gamma, depth), f, n_child, n_child
        )
        if mass < _FAINT:
            scale += math.log(mass)
            mass = 1.0
        j, n, box, began = child, n_child, child_box, ends
        step += np.uint32(1)


@jit_borrowing
def score_leaf(tree, X, length, scoring, walk, sums, tops, i):
    """Add the mass of a traced row's leaf, or its logarithm, to the totals."""
    if length == 0:
        mass, log_weight = empty_mass(scoring), 0.0
    else:
        mass, log_weight = leaf_mass(tree, X, length, scoring, walk, i)
    if scoring.kind == SCORE_LOG_MASS:
        sums[0, i] += log_weight + (math.log(mass) if mass > 0.0 else -np.inf)
        return
    for s in range(sums.shape[0]):
        add(sums, tops, s, i, mass, log_weight)


@jit_inline
def empty_mass(scoring):
    """What a tree that has seen nothing says of anything: beyond the known world is as likely as within it."""
    return posterior_mean(scoring.gamma, 0.5, 0, 0) if scoring.is_open else 0.0


@jit_inline
def leaf_mass(tree, X, length, scoring, walk, i):
    """The mass of a traced row's leaf: a number, and the logarithm of another to multiply it by."""
    lower, upper, gamma, j = tree.lower, tree.upper, scoring.gamma, walk.path[0]
    n = tree.counts[j]
    mass, scale = within_mean(gamma, scoring.is_open, n), 0.0
    reach = world_reach(lower, upper, j, scoring.domain, tree.weights, X, i)
    if reach >= 0.0:
        return (1.0 - mass) / (1.0 + reach), 0.0
    f, strength = world_share(lower, upper, j, scoring.domain), gamma
    box, step = volume(lower, upper, j), np.uint32(0)
    while True:
        if not contains_live(lower, upper, j, X, i):
            return mass * posterior_mean(strength, 1.0 - f, 0, n), scale
        mass *= posterior_mean(strength, f, n, n)
        step += np.uint32(1)
        if step == length:
            return mass, scale
        child, depth = walk.path[step], step - 1.0
        delta, xi, goes_left = np.uint32(tree.feature[j]), tree.cut[j], tree.left[j] == child
        share = cut_share(lower[j, delta], upper[j, delta], xi, goes_left)
        child_box = volume(lower, upper, child)
        f = box_share(lower, upper, j, delta, xi, goes_left, child, share, box, child_box)
        mass *= posterior_mean(cut_strength(gamma, depth, True), share, tree.counts[child], n)
        strength = restriction_strength(gamma, depth)
        if mass < _FAINT:
            scale += math.log(mass)
            mass = 1.0
        j, n, box = child, tree.counts[child], child_box


@jit_inline
def add(sums, tops, s, i, mass, log_weight):
    """Add `mass` times exp(`log_weight`) to a total."""
    top = tops[s, i]
    if log_weight <= top:
        sums[s, i] += mass if log_weight == top else mass * math.exp(log_weight - top)
    else:
        sums[s, i] = sums[s, i] * math.exp(top - log_weight) + mass
        tops[s, i] = log_weight
