"""Differentially private counts of a forest of Mondrian processes.

The partition does not depend on the rows. A row adds one to a single leaf of each tree, so it is protected by noise in
the leaves whose budgets sum to epsilon over the trees (Dwork and Roth, 2014, theorem 3.16). The noise has the discrete
Laplace distribution and is drawn exactly, since the digits of a float can reveal the count (Mironov, 2012). The rest is
post-processing: counts are adjusted to add up to the total with the least change, in proportion to their variance (Hay
et al., 2010), and rounded to non-negative integers.

Noise at all levels of the trees, with the best linear estimates, ranks rows less well, since little budget is left for
each level.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from polyaforest.kernels.arrays import NONE, Array, Forest, Posterior

_UNIT = 2**24  # budgets are multiples of one over this, so that noise can be drawn exactly
_OF_TOTALS = Fraction(1, 20)  # share of epsilon for the numbers of rows within and beyond the domain
_OF_SCORES = Fraction(1, 5)  # share of epsilon for the distribution of scores, if wanted
_SPLITS = 7  # log2 of the number of bins of the distribution
_TOP = np.uint64(2**64 - 1)

Words = Callable[[int], Array]  # returns n random words, uint64


class Budget(NamedTuple):
    """The parts of epsilon, in units of 1 / `_UNIT`."""

    totals: int  # for the numbers of rows within and beyond the domain: a row counts in one of them
    scores: int  # for each bin of the distribution of scores: a row has one score
    leaf: int  # for each leaf: a row counts in one leaf of each tree

    @classmethod
    def of(cls, epsilon: float, n_trees: int, *, has_scores: bool) -> Budget:
        """Split epsilon among the totals, the scores and the trees, rounding down."""
        whole = int(Fraction(epsilon) * _UNIT)
        totals, scores = int(whole * _OF_TOTALS), int(whole * _OF_SCORES) if has_scores else 0
        leaf = (whole - totals - scores) // n_trees
        if totals < 1 or leaf < 1:
            raise ValueError(f"epsilon={epsilon:g} is too small for {n_trees} trees: pass a larger epsilon")
        return cls(totals, scores, leaf)


class _Levels(NamedTuple):
    """The nodes of all trees by depth, as places in flattened arrays of the forest."""

    nodes: list[Array]  # int64 (n,) of each depth
    left: Array  # int64 (T * C,): the left child, NONE at a leaf
    right: Array

    @classmethod
    def of(cls, forest: Forest) -> _Levels:
        n_trees, n_slots = forest.left.shape
        first = np.arange(n_trees)[:, None] * n_slots
        left, right = (np.where(side == NONE, NONE, side + first).ravel() for side in (forest.left, forest.right))
        nodes = [np.asarray(forest.root + first[:, 0], np.int64)]
        while True:
            inner = nodes[-1][left[nodes[-1]] != NONE]
            if not len(inner):
                return cls(nodes, left, right)
            nodes.append(np.concatenate([left[inner], right[inner]]))

    @classmethod
    def of_bins(cls) -> _Levels:
        """Return a complete tree, whose leaves are bins in order."""
        n_nodes = 2 ** (_SPLITS + 1) - 1
        left = np.where(np.arange(n_nodes) < n_nodes // 2, 2 * np.arange(n_nodes) + 1, NONE)
        nodes = [np.arange(2**depth - 1, 2 ** (depth + 1) - 1) for depth in range(_SPLITS + 1)]
        return cls(nodes, left, np.where(left == NONE, NONE, left + 1))

    @property
    def leaves(self) -> Array:
        """All leaves."""
        return np.concatenate([nodes[self.left[nodes] == NONE] for nodes in self.nodes])

    def families(self, depth: int) -> tuple[Array, Array, Array]:
        """Return the inner nodes at a depth, and their children."""
        nodes = self.nodes[depth]
        inner = nodes[self.left[nodes] != NONE]
        return inner, self.left[inner], self.right[inner]


def private_counts(forest: Forest, budget: Budget, words: Words) -> tuple[Array, Array]:
    """Return private counts (T, C) and numbers of rows outside (T,).

    They are non-negative integers; children add up to their parents, and all trees to the same total. Tables are
    neighbours if one has one row more than the other: the number of rows is protected too.
    """
    n_trees, levels = len(forest.left), _Levels.of(forest)
    leaves = levels.leaves
    totals = np.array([forest.counts[0, forest.root[0]], forest.outside[0]])
    totals = np.maximum(totals + discrete_laplace(np.full(2, budget.totals), words), 0)
    noisy = forest.counts.ravel()[leaves] + discrete_laplace(np.full(len(leaves), budget.leaf), words)
    counts = _whole(levels, _consistent(levels, leaves, noisy, totals[0]))
    return counts.reshape(forest.counts.shape), np.full(n_trees, totals[1], np.int64)


def lowest_log_mass(forest: Forest, known: Posterior) -> float:
    """Return a negative lower bound of the mean log-mass of leaves, and so of any log-score within the domain."""
    is_leaf = (forest.left == NONE) & (np.arange(forest.left.shape[1]) < forest.size[:, None])
    return min(float(np.where(is_leaf, known.inside, 0.0).min(axis=1).mean()), -1.0)


def private_scores(scores: Array, lowest: float, total: int, budget: Budget, words: Words) -> Array:
    """Return a private `total` of log-scores, ascending, distributed approximately as `scores`.

    They lie between `lowest` and 0, evenly within bins whose counts are private.
    """
    levels, n_bins = _Levels.of_bins(), 2**_SPLITS
    places = np.clip(scores / lowest * n_bins, 0, n_bins - 1).astype(np.int64)  # from the highest to the lowest
    noisy = np.bincount(places, minlength=n_bins) + discrete_laplace(np.full(n_bins, budget.scores), words)
    counts = _whole(levels, _consistent(levels, levels.leaves, noisy, total))[levels.leaves]
    within = np.concatenate([(np.arange(n) + 0.5) / n for n in counts if n] or [np.empty(0)])
    found: Array = (np.repeat(np.arange(n_bins), counts) + within) * (lowest / n_bins)
    return found[::-1]


def _consistent(levels: _Levels, leaves: Array, noisy: Array, total: float) -> Array:
    """Return real-valued counts of all nodes: children add up to their parents, and trees to the total."""
    found, n_leaves = np.zeros(len(levels.left)), np.zeros(len(levels.left))
    found[leaves], n_leaves[leaves] = noisy, 1.0
    for depth in range(len(levels.nodes) - 2, -1, -1):
        inner, left, right = levels.families(depth)
        found[inner], n_leaves[inner] = found[left] + found[right], n_leaves[left] + n_leaves[right]
    found[levels.nodes[0]] = total
    for depth in range(len(levels.nodes) - 1):
        inner, left, right = levels.families(depth)
        apart, of_left = found[inner] - found[left] - found[right], n_leaves[left] / n_leaves[inner]
        found[left] += of_left * apart
        found[right] += (1 - of_left) * apart
    return found


def _whole(levels: _Levels, found: Array) -> Array:
    """Round counts to non-negative integers from the root down, as close as possible to both children of a node."""
    counts = np.zeros(len(found), np.int64)
    counts[levels.nodes[0]] = np.rint(found[levels.nodes[0]])
    for depth in range(len(levels.nodes) - 1):
        inner, left, right = levels.families(depth)
        apart = counts[inner] - found[left] - found[right]
        counts[left] = np.clip(np.rint(found[left] + apart / 2), 0, counts[inner])
        counts[right] = counts[inner] - counts[left]
    return counts


# ---- noise -----------------------------------------------------------------------------------------------------------


def system_words(n: int) -> Array:
    """Return unpredictable random words from the operating system."""
    return np.frombuffer(os.urandom(8 * n), np.uint64)


def discrete_laplace(budgets: Array, words: Words) -> Array:
    """Draw integers, int64 (n,), with probabilities in proportion to exp(-budget * |x|), for budgets in units.

    The draws are exact, by the algorithm of Canonne, Kamath and Steinke (2020), which compares only random integers.
    """
    drawn, waiting = np.zeros(len(budgets), np.int64), np.arange(len(budgets))
    while len(waiting):
        rest = _below(np.full(len(waiting), _UNIT), words)
        is_taken = _survives(rest, words)
        turns, going = np.zeros(len(waiting), np.int64), np.flatnonzero(is_taken)
        while len(going):
            going = going[_survives(np.full(len(going), _UNIT), words)]
            turns[going] += 1
        sizes = (rest + _UNIT * turns) // budgets[waiting]
        is_negative = _below(np.full(len(waiting), 2), words) == 1
        is_taken &= ~(is_negative & (sizes == 0))  # or zero would come twice as often
        drawn[waiting[is_taken]] = np.where(is_negative, -sizes, sizes)[is_taken]
        waiting = waiting[~is_taken]
    return drawn


def _survives(units: Array, words: Words) -> Array:
    """Return True with a probability of exp(-x), for each x from 0 to 1 in units (von Neumann's method)."""
    n_tries, going = np.ones(len(units), np.int64), np.arange(len(units))
    while len(going):
        going = going[_below(_UNIT * n_tries[going], words) < units[going]]
        n_tries[going] += 1
    return np.asarray(n_tries % 2 == 1)


def _below(bounds: Array, words: Words) -> Array:
    """Draw integers uniformly below bounds."""
    rounds = bounds.astype(np.uint64)
    most = _TOP - (_TOP % rounds + np.uint64(1)) % rounds  # larger words would bias the draw
    drawn = words(len(rounds)).copy()
    while (is_over := drawn > most).any():
        drawn[is_over] = words(int(is_over.sum()))
    return np.asarray(drawn % rounds, np.int64)
