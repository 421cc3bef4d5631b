"""Evidence that recent points do not follow the distribution of a reference, from counts in shared trees.

Every cut of a tree sends a share of its points to the left. The last r points come from another distribution than the
reference if some of these shares have changed: each changes independently with its own probability, `chance`. With A
the reference and B the recent points, both as counts on the two sides of a cut, and m(. | .) the predictive probability
of counts, the Bayes factor of a change at one cut is m(B | prior) / m(B | A), and that of a tree is the product over
its cuts of (1 - chance) + chance * (Bayes factor of the cut). The posterior of an unchanged share combines A with
Jeffreys' prior Beta(1/2, 1/2). The prior of a changed share is Jeffreys' too (`stiffness` 0: any share is possible), or
a Beta around the share of A (small changes).

The evidence of a forest is a power mean of the Bayes factors of its trees, with exponent 1/2. The arithmetic mean is
dominated by the best tree and finds changes that one tree shows clearly; the mean of the logarithms finds changes that
all trees show weakly. The power mean finds both, and never exceeds the arithmetic mean, which is the Bayes factor of a
model that picks one tree at random.

The logarithm of a tree's factor is a sum over nodes, stored as sums over subtrees: a point that enters or leaves
changes only the sums on its own path, and the sum at the root depends, to the last bit, only on the counts and not on
the order of updates. Counts, divided by a dispersion, and pseudo-counts are in units of 1 / UNIT, so that one table
holds the logarithms of all Gamma functions.
"""

import math
from typing import NamedTuple

import numpy as np

from polyaforest.kernels.arrays import NONE, Array
from polyaforest.kernels.geometry import goes_left
from polyaforest.kernels.jit import jit, jit_inline

UNIT = 8  # units per count or pseudo-count: entries of the table of logarithms per point
_HALF = UNIT // 2  # Jeffreys' pseudo-count
_SOFTNESS = 0.5  # the power of Bayes factors that is averaged over trees
_LARGEST = 700.0  # largest logarithm whose exponential is finite


class Cuts(NamedTuple):
    """The cuts of T trees of C nodes each."""

    left: Array  # int32 (T, C), NONE at a leaf
    right: Array  # int32 (T, C)
    parent: Array  # int32 (T, C), NONE at the root
    feature: Array  # int32 (T, C), NONE at a leaf
    cut: Array  # float64 (T, C)
    root: Array  # int32 (T,)
    size: Array  # int32 (T,): nodes in use; children come after their parents
    n_categories: Array  # int64 (1,): the number of categorical features, which come last


class Tally(NamedTuple):
    """Counts of the reference and of K recent windows, and their evidence."""

    reference: Array  # int32 (T, C)
    prior: Array  # int32 (T, C): pseudo-counts of the two sides of a changed cut, in units
    chance: Array  # float64 (T, C): the prior probability that the share of a cut has changed
    recent: Array  # int32 (K, T, C)
    sums: Array  # float64 (K, T, C): log evidence of the subtree
    units: Array  # int32 (K, n): the units of each count
    log_gammas: Array  # float64: log Gamma(i / UNIT)


@jit
def find_leaves(cuts, X, leaves):
    """Write the leaf of every row in every tree to `leaves`, (n, T)."""
    n_categories = cuts.n_categories[0]
    for t in range(cuts.left.shape[0]):
        left, right, feature, cut = cuts.left[t], cuts.right[t], cuts.feature[t], cuts.cut[t]
        for i in range(X.shape[0]):
            j = cuts.root[t]
            while feature[j] != NONE:
                j = left[j] if goes_left(X, i, feature[j], cut[j], n_categories) else right[j]
            leaves[i, t] = j


@jit
def depths(cuts):
    """Return the depth of every node, int64 (T, C)."""
    depth = np.zeros(cuts.left.shape, np.int64)
    for t in range(cuts.left.shape[0]):
        for j in range(cuts.size[t]):
            if cuts.parent[t, j] != NONE:
                depth[t, j] = depth[t, cuts.parent[t, j]] + 1
    return depth


@jit
def count_leaves(cuts, leaves, counts):
    """Add rows, by their leaves, (n, T), to the counts of all nodes above them, (T, C)."""
    for t in range(leaves.shape[1]):
        parent, own = cuts.parent[t], counts[t]
        for i in range(leaves.shape[0]):
            j = leaves[i, t]
            while j != NONE:
                own[j] += 1
                j = parent[j]


@jit
def set_prior(cuts, reference, stiffness, prior):
    """Write the pseudo-counts of the sides of all cuts to `prior`, given the stiffness of each tree, (T,)."""
    for t in range(cuts.left.shape[0]):
        left, right, own = cuts.left[t], cuts.right[t], prior[t]
        for j in range(cuts.size[t]):
            if left[j] == NONE:
                continue
            below, above = left[j], right[j]
            if stiffness[t] == 0:
                own[below], own[above] = _HALF, _HALF
                continue
            n = reference[t, below] + reference[t, above] + 1.0
            total = UNIT / (1.0 / n + 1.0 / stiffness[t])  # a changed share is less certain than an unchanged one
            own[below] = max(round(total * (reference[t, below] + 0.5) / n), 1)
            own[above] = max(round(total * (reference[t, above] + 0.5) / n), 1)


@jit_inline
def _log_beta(log_gammas, below, above):
    """Return the logarithm of the Beta function of two numbers of units."""
    return log_gammas[below] + log_gammas[above] - log_gammas[below + above]


@jit_inline
def _log_factor(reference, prior, recent, units, log_gammas, below, above):
    """Return the log Bayes factor of a cut between two children; exactly 0 without recent points."""
    if recent[below] + recent[above] == 0:
        return 0.0
    old_below, old_above = units[reference[below]] + _HALF, units[reference[above]] + _HALF
    new_below, new_above = units[recent[below]], units[recent[above]]
    changed = _log_beta(log_gammas, prior[below] + new_below, prior[above] + new_above)
    changed -= _log_beta(log_gammas, prior[below], prior[above])
    same = _log_beta(log_gammas, old_below + new_below, old_above + new_above)
    return changed - same + _log_beta(log_gammas, old_below, old_above)


@jit_inline
def _log_mixture(chance, log_factor):
    """Return log(1 - chance + chance * exp(log_factor))."""
    if log_factor > _LARGEST:
        return math.log(chance) + log_factor
    return log_factor if chance == 1.0 else math.log1p(chance * math.expm1(log_factor))


@jit_inline
def _exchange(left, right, parent, reference, prior, chance, recent, sums, units, log_gammas, came, gone):
    """Add one point to a window and remove another, given by their leaves in a tree, either of which may be NONE.

    Recompute the sums above both leaves, shared ancestors only once.
    """
    if came == gone:
        return
    a, b = came, gone
    while a != NONE:
        recent[a] += 1
        a = parent[a]
    while b != NONE:
        recent[b] -= 1
        b = parent[b]
    a = NONE if came == NONE else parent[came]
    b = NONE if gone == NONE else parent[gone]
    while a != NONE or b != NONE:
        j = max(a, b)  # children come after their parents
        below, above = left[j], right[j]
        factor = _log_factor(reference, prior, recent, units, log_gammas, below, above)
        sums[j] = _log_mixture(chance[j], factor) + sums[below] + sums[above]
        a = parent[j] if a == j else a
        b = parent[j] if b == j else b


@jit_inline
def _slide_tree(cuts, tally, k, t, leaves, first, start, length, out):
    """Slide window k over the points from `start` on, in one tree; write its log Bayes factors to `out`, (n, T)."""
    left, right, parent, root = cuts.left[t], cuts.right[t], cuts.parent[t], cuts.root[t]
    reference, prior, chance = tally.reference[t], tally.prior[t], tally.chance[t]
    recent, sums, units, log_gammas = tally.recent[k, t], tally.sums[k, t], tally.units[k], tally.log_gammas
    for i in range(start, start + out.shape[0]):
        came, gone = leaves[i, t], NONE
        if i - length >= first:
            gone = leaves[i - length, t]
        _exchange(left, right, parent, reference, prior, chance, recent, sums, units, log_gammas, came, gone)
        out[i - start, t] = sums[root]


@jit_inline
def _mean_over_trees(logs, i):
    """Return the logarithm of the power mean of the Bayes factors whose logarithms are row `i` of `logs`."""
    n_trees = logs.shape[1]
    largest = -math.inf
    for t in range(n_trees):
        largest = max(largest, logs[i, t])
    total = 0.0
    for t in range(n_trees):
        total += math.exp(_SOFTNESS * (logs[i, t] - largest))
    return largest + math.log(total / n_trees) / _SOFTNESS


@jit
def read_evidence(cuts, tally, evidence):
    """Write the evidence of the first windows, one per element of `evidence`."""
    n_trees = cuts.root.shape[0]
    logs = np.empty((1, n_trees))
    for k in range(evidence.shape[0]):
        for t in range(n_trees):
            logs[0, t] = tally.sums[k, t, cuts.root[t]]
        evidence[k] = _mean_over_trees(logs, 0)


@jit
def move_point(cuts, tally, k, leaves, step):
    """Add one point, given by its leaves, (T,), to window k (step 1) or remove it (step -1)."""
    for t in range(leaves.shape[0]):
        came = leaves[t] if step > 0 else NONE
        gone = NONE if step > 0 else leaves[t]
        _exchange(
            cuts.left[t], cuts.right[t], cuts.parent[t], tally.reference[t], tally.prior[t], tally.chance[t],
            tally.recent[k, t], tally.sums[k, t], tally.units[k], tally.log_gammas, came, gone,
        )  # fmt: skip


@jit
def slide(cuts, tally, leaves, first, start, lengths, evidence):
    """Slide the windows over points from `start` on, given by their leaves, (n, T); ignore points before `first`.

    Write the evidence of every window after each point to `evidence`, (n, K), whose length is the number of points.
    """
    logs = np.empty((evidence.shape[0], leaves.shape[1]))
    for k in range(lengths.shape[0]):
        for t in range(leaves.shape[1]):
            _slide_tree(cuts, tally, k, t, leaves, first, start, lengths[k], logs)
        for i in range(evidence.shape[0]):
            evidence[i, k] = _mean_over_trees(logs, i)


@jit
def run_evidence(cuts, tally, k, leaves, evidence):
    """Write the evidence that the last r points, given by their leaves, (n, T), differ, for r = 1 .. n.

    Use the dispersion of window k, which must be empty and is empty afterwards.
    """
    n, n_trees = leaves.shape
    logs, backwards = np.empty((n, n_trees)), leaves[::-1].copy()
    for t in range(n_trees):
        _slide_tree(cuts, tally, k, t, backwards, 0, 0, n + 1, logs)
        tally.recent[k, t] = 0
        tally.sums[k, t] = 0.0
    for r in range(n):
        evidence[r] = _mean_over_trees(logs, r)


@jit
def set_sums(cuts, tally, k):
    """Derive the sums of window k from its counts."""
    units, log_gammas = tally.units[k], tally.log_gammas
    for t in range(cuts.left.shape[0]):
        left, right, chance = cuts.left[t], cuts.right[t], tally.chance[t]
        reference, prior, recent, sums = tally.reference[t], tally.prior[t], tally.recent[k, t], tally.sums[k, t]
        for j in range(cuts.size[t] - 1, -1, -1):
            sums[j] = 0.0
            if left[j] != NONE:
                below, above = left[j], right[j]
                factor = _log_factor(reference, prior, recent, units, log_gammas, below, above)
                sums[j] = _log_mixture(chance[j], factor) + sums[below] + sums[above]


@jit
def log_contrasts(cuts, tally, k, out):
    """Write the log ratio of the density of window k to that of the reference in every node to `out`, (T, C).

    At each cut the log ratio of the two posterior means is weighted by the probability that the share has changed, so
    that unchanged cuts add little noise.
    """
    units, log_gammas = tally.units[k], tally.log_gammas
    for t in range(cuts.left.shape[0]):
        left, right, chances = cuts.left[t], cuts.right[t], tally.chance[t]
        reference, prior, recent = tally.reference[t], tally.prior[t], tally.recent[k, t]
        out[t, cuts.root[t]] = 0.0
        for j in range(cuts.size[t]):
            if left[j] == NONE:
                continue
            below, above = left[j], right[j]
            factor = _log_factor(reference, prior, recent, units, log_gammas, below, above)
            chance = chances[j]
            is_changed = math.exp(min(math.log(chance) + factor - _log_mixture(chance, factor), 0.0))
            for child in (below, above):
                old = (reference[child] + 0.5) / (reference[j] + 1.0)
                new = (recent[child] + 0.5) / (recent[j] + 1.0)
                out[t, child] = out[t, j] + is_changed * math.log(new / old)
