"""Evidence on given trees that two labelled samples of rows, A and B, have different distributions.

The trees are grown without the labels. Given the rows of a node and how many of them go left, the number of rows of A
that go left is hypergeometric if the labels are a random permutation. If the samples differ there, the share of one of
them that goes left is a draw from a Beta around the share of all rows, and the number is Beta-binomial. Both are
probabilities of the same number, so their ratio averages at most 1 over all permutations of the labels, and so does the
product of the ratios of all nodes, since each node passes its labels to its children.
"""

import math

import numpy as np

from polyaforest.kernels.arrays import NONE
from polyaforest.kernels.jit import jit, jit_borrowing, jit_inline
from polyaforest.kernels.polya import cut_strength
from polyaforest.kernels.traversal import BLOCK, descend, new_descent

_LARGE = 50.0  # logarithm of a number so large that adding 1 makes no difference
_ROWS_PER_COLUMN = 8  # rows per column up to which a table of logarithms pays


@jit
def find_leaves(forest, t, X, leaves):
    """Write the leaf of each row in tree `t` to `leaves`, int32 (n,)."""
    descent = new_descent(min(BLOCK, X.shape[0]), forest.left.shape[1])
    for start in range(0, X.shape[0], BLOCK):
        rows = X[start : start + BLOCK]
        descend(forest, t, rows, np.inf, descent)
        for i in range(np.uint32(rows.shape[0])):
            leaves[start + i] = descent.nodes[i]


@jit_borrowing
def count_marked(parent, leaves, marks, counts):
    """Count the marked rows below every node of one tree: columns of `marks`, uint8 (n, P), into int32 (C, P)."""
    counts[:] = 0
    n_columns = np.uint32(marks.shape[1])
    for i in range(np.uint32(leaves.shape[0])):
        leaf = np.uint32(leaves[i])
        for p in range(n_columns):
            counts[leaf, p] += np.int32(marks[i, p])
    for j in range(counts.shape[0] - 1, 0, -1):  # children come after their parents
        above = np.uint32(parent[j])
        for p in range(n_columns):
            counts[above, p] += counts[j, p]


@jit
def node_evidence(left, depth, fineness, counts, marked, gamma, sparsity, log_factorials, out):
    """Write the contribution of each node of one tree to the log Bayes factor (two distributions against one) to `out`.

    `out` is float64 (C, P). `marked`, int32 (C, P), counts the rows of A, `counts`, int32 (C, 1), all rows. If the
    samples differ, they differ at the root; a node below differs with probability `sparsity` to the power of its depth.
    The finer the cut, the smaller the expected difference.
    """
    n_columns = out.shape[1]
    most = min(np.int64(counts[0, 0]), _ROWS_PER_COLUMN * n_columns) + 1
    of_left, of_right, of_both = np.empty(most), np.empty(most), np.empty(most)
    for j in range(left.shape[0]):
        k, n = left[j], counts[j, 0]
        n_left = counts[k, 0] if k != NONE else 0
        if not 0 < n_left < n:
            out[j] = 0.0
            continue
        rho, strength = sparsity ** depth[j], cut_strength(gamma, fineness[j], True)
        on_left = strength * n_left / n
        has_tables = n < most
        if has_tables:
            fill_rising(on_left, of_left[: n_left + 1])
            fill_rising(strength - on_left, of_right[: n - n_left + 1])
            fill_rising(strength, of_both[: n + 1])
        whole = log_choose(log_factorials, n, n_left)
        for p in range(n_columns):
            m, m_left = marked[j, p], marked[k, p]
            rest, rest_left = n - m, n_left - m_left
            if m == 0 or rest == 0:  # only one sample: nothing to compare
                out[j, p] = 0.0
                continue
            if has_tables:
                of_a = of_left[m_left] + of_right[m - m_left] - of_both[m]
                of_b = of_left[rest_left] + of_right[rest - rest_left] - of_both[rest]
            else:
                of_a = log_beta_ratio(m, m_left, on_left, strength)
                of_b = log_beta_ratio(rest, rest_left, on_left, strength)
            # the hypergeometric is C(m, m_left) C(rest, rest_left) / C(n, n_left): Beta-binomials have one factor each
            of_a -= log_choose(log_factorials, rest, rest_left)
            of_b -= log_choose(log_factorials, m, m_left)
            out[j, p] = log_differs(whole + log_mean(of_a, of_b), rho)


@jit_inline
def fill_rising(start, out):
    """Write the logarithms of the rising factorials start (start + 1) ... (start + k - 1) to `out`, from k = 0."""
    out[0] = 0.0
    for k in range(1, out.shape[0]):
        out[k] = out[k - 1] + math.log(start + (k - 1))


@jit_inline
def log_beta_ratio(n, k, a, strength):
    """Return the log-probability of one order of `k` successes in `n` trials with a Beta-distributed chance."""
    b = strength - a
    before = math.lgamma(a) + math.lgamma(b) - math.lgamma(strength)
    return math.lgamma(k + a) + math.lgamma(n - k + b) - math.lgamma(n + strength) - before


@jit_inline
def log_mean(a, b):
    """Return the log of the mean of two numbers, given their logs: either sample may be the one that differs."""
    return max(a, b) + math.log1p(math.exp(-abs(a - b))) - math.log(2.0)


@jit_inline
def log_differs(ratio, rho):
    """Return the log Bayes factor of a node that differs with probability `rho`, given that for a sure difference."""
    if rho == 1.0:
        return ratio
    return ratio + math.log(rho) if ratio > _LARGE else math.log1p(rho * math.expm1(ratio))


@jit_inline
def log_choose(log_factorials, n, k):
    """Return the logarithm of a binomial coefficient."""
    return log_factorials[n] - log_factorials[k] - log_factorials[n - k]
