"""Evidence that recent points do not follow the distribution of a reference, from counts in shared trees.

Every cut of a tree sends a share of its points to the left. The last r points come from another distribution than the
reference if some of these shares have changed: each has with probability `sparsity`, whatever the others have. With A
the reference, B the recent points, both as counts on the two sides of a cut, and m the marginal likelihood under
Jeffreys' prior Beta(1/2, 1/2), the Bayes factor of a change at one cut is m(A) m(B) / m(A + B), and that of a tree is
the product over its cuts of (1 - sparsity) + sparsity * (Bayes factor of the cut).

The evidence of a forest is a mean over its trees: of the fourth roots of their Bayes factors. The mean of the factors
themselves is all but that of the best tree, and finds what one tree sees well; the mean of their logarithms finds what
all trees see a little of. Both are found by one in between; and it is never more than the mean of the factors, which is
the Bayes factor of a model that does not know which tree to trust.

The logarithm of a tree's factor is a sum over nodes, kept as sums over subtrees: a point that comes or goes changes the
sums along its own path only, and the sum at the root depends on the counts alone, to the last bit, not on the order of
what came and went.
"""

import math
from typing import NamedTuple

from polyaforest.core.arrays import NONE, Array
from polyaforest.core.jit import jit, jit_inline
from polyaforest.kernels.geometry import goes_left

_SOFTNESS = 0.25  # the power of Bayes factors that is averaged over trees
_LARGEST = 700.0  # of a logarithm whose exponential is finite


class Cuts(NamedTuple):
    """The cuts of the trees that counts are taken in: T trees, C nodes each."""

    left: Array  # int32 (T, C), NONE at a leaf
    right: Array  # int32 (T, C)
    parent: Array  # int32 (T, C), NONE at the root
    feature: Array  # int32 (T, C), NONE at a leaf
    cut: Array  # float64 (T, C)
    root: Array  # int32 (T,)
    size: Array  # int32 (T,): nodes in use; children come after their parents
    n_categories: Array  # int64 (1,): how many of the features, the last ones, are categories


class Tally(NamedTuple):
    """Counts of the reference and of K recent windows, and the evidence that they make."""

    reference: Array  # int32 (T, C)
    recent: Array  # int32 (K, T, C)
    sums: Array  # float64 (K, T, C): log evidence of the subtree
    sides: Array  # float64 (K, n): log Gamma(1/2 + count / dispersion), by count
    totals: Array  # float64 (K, n): log Gamma(1 + count / dispersion), by count
    sparsity: float  # the probability that a share has changed, if the distribution has


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
def count_leaves(cuts, leaves, counts):
    """Add rows, by their leaves, (n, T), to the counts of all nodes above them, (T, C)."""
    for t in range(leaves.shape[1]):
        parent, own = cuts.parent[t], counts[t]
        for i in range(leaves.shape[0]):
            j = leaves[i, t]
            while j != NONE:
                own[j] += 1
                j = parent[j]


@jit_inline
def _log_marginal(sides, totals, n_left, n_right):
    """Return the log marginal likelihood of counts on two sides, up to a constant."""
    return sides[n_left] + sides[n_right] - totals[n_left + n_right]


@jit_inline
def _log_factor(tally, k, reference, recent, below, above):
    """Return the log Bayes factor of a cut between two children; exactly 0 without recent points, to the last bit."""
    sides, totals = tally.sides[k], tally.totals[k]
    if recent[below] + recent[above] == 0:
        return 0.0
    old = _log_marginal(sides, totals, reference[below], reference[above])
    new = _log_marginal(sides, totals, recent[below], recent[above])
    both = _log_marginal(sides, totals, reference[below] + recent[below], reference[above] + recent[above])
    return old + new - both - _log_marginal(sides, totals, 0, 0)


@jit_inline
def _log_mixture(sparsity, log_factor):
    """Return log(1 - sparsity + sparsity * exp(log_factor))."""
    if log_factor > _LARGEST:
        return math.log(sparsity) + log_factor
    return math.log1p(sparsity * math.expm1(log_factor))


@jit_inline
def _move(cuts, tally, k, t, leaf, step):
    """Count a point into a window (step 1) or out of it (step -1), and mend the sums along its path."""
    left, right, parent = cuts.left[t], cuts.right[t], cuts.parent[t]
    reference, recent, sums = tally.reference[t], tally.recent[k, t], tally.sums[k, t]
    recent[leaf] += step
    j = parent[leaf]
    while j != NONE:
        recent[j] += step
        below, above = left[j], right[j]
        factor = _log_factor(tally, k, reference, recent, below, above)
        sums[j] = _log_mixture(tally.sparsity, factor) + sums[below] + sums[above]
        j = parent[j]


@jit_inline
def _mean_over_trees(cuts, tally, k):
    """Return the logarithm of the mean over trees of a power of their Bayes factors, taken back to the first power."""
    n_trees = cuts.root.shape[0]
    largest = -math.inf
    for t in range(n_trees):
        largest = max(largest, tally.sums[k, t, cuts.root[t]])
    total = 0.0
    for t in range(n_trees):
        total += math.exp(_SOFTNESS * (tally.sums[k, t, cuts.root[t]] - largest))
    return largest + math.log(total / n_trees) / _SOFTNESS


@jit
def read_evidence(cuts, tally, evidence):
    """Write the evidence of the first windows, as many as `evidence` has room for."""
    for k in range(evidence.shape[0]):
        evidence[k] = _mean_over_trees(cuts, tally, k)


@jit
def move_point(cuts, tally, k, leaves, step):
    """Count one point, by its leaves, (T,), into or out of window k."""
    for t in range(leaves.shape[0]):
        _move(cuts, tally, k, t, leaves[t], step)


@jit
def slide(cuts, tally, leaves, first, start, stop, lengths, bars, evidence):
    """Move the windows over points, by their leaves, (n, T): those from `start` up to `stop` come one after another.

    Points before `first` are not there. Evidence of every window after each point is written to
    `evidence`, (stop - start, K). Stop early after the first point at which the evidence of a full window exceeds its
    bar; return the number of points taken.
    """
    n_windows, n_trees = lengths.shape[0], leaves.shape[1]
    for i in range(start, stop):
        is_any = False
        for k in range(n_windows):
            oldest = i - lengths[k]
            for t in range(n_trees):
                _move(cuts, tally, k, t, leaves[i, t], 1)
                if oldest >= first:
                    _move(cuts, tally, k, t, leaves[oldest, t], -1)
            evidence[i - start, k] = _mean_over_trees(cuts, tally, k)
            is_full = oldest >= first - 1
            is_any |= is_full and evidence[i - start, k] > bars[k]
        if is_any:
            return i - start + 1
    return stop - start


@jit
def run_evidence(cuts, tally, k, leaves, evidence):
    """Write the evidence that the last r of some points, by their leaves, (n, T), differ, for r = 1 .. n.

    Window k must be empty, and is empty again afterwards; its tables of the dispersion are used.
    """
    n, n_trees = leaves.shape
    for r in range(n):
        for t in range(n_trees):
            _move(cuts, tally, k, t, leaves[n - 1 - r, t], 1)
        evidence[r] = _mean_over_trees(cuts, tally, k)
    for t in range(n_trees):
        tally.recent[k, t] = 0
        tally.sums[k, t] = 0.0


@jit
def set_sums(cuts, tally, k):
    """Derive the sums of window k from its counts."""
    for t in range(cuts.left.shape[0]):
        left, right = cuts.left[t], cuts.right[t]
        reference, recent, sums = tally.reference[t], tally.recent[k, t], tally.sums[k, t]
        for j in range(cuts.size[t] - 1, -1, -1):
            sums[j] = 0.0
            if left[j] != NONE:
                below, above = left[j], right[j]
                factor = _log_factor(tally, k, reference, recent, below, above)
                sums[j] = _log_mixture(tally.sparsity, factor) + sums[below] + sums[above]


@jit
def log_contrasts(cuts, tally, k, out):
    """Write the log ratio of the density of window k to that of the reference in every node to `out`, (T, C).

    At each cut the log ratio of the two posterior means counts by the probability that the share has changed there, so
    that cuts that show no change add nothing but a little noise.
    """
    for t in range(cuts.left.shape[0]):
        left, right = cuts.left[t], cuts.right[t]
        reference, recent = tally.reference[t], tally.recent[k, t]
        out[t, cuts.root[t]] = 0.0
        for j in range(cuts.size[t]):
            if left[j] == NONE:
                continue
            below, above = left[j], right[j]
            factor = _log_factor(tally, k, reference, recent, below, above)
            is_changed = math.exp(min(math.log(tally.sparsity) + factor - _log_mixture(tally.sparsity, factor), 0.0))
            for child in (below, above):
                old = (reference[child] + 0.5) / (reference[j] + 1.0)
                new = (recent[child] + 0.5) / (recent[j] + 1.0)
                out[t, child] = out[t, j] + is_changed * math.log(new / old)
