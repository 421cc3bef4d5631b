"""Tests of whether two samples have the same distribution, each a function of both samples and a seed: a p-value.

Statistics without a known distribution are compared with those of permuted labels, as many times as ours.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.spatial.distance import cdist, pdist
from scipy.stats import binom, ks_2samp
from sklearn.ensemble import RandomForestClassifier

Array = np.ndarray
N_PERMUTATIONS = 99
_CENTRES = 100  # of the kernels of LSDD
_RIDGE = 1e-3


def ks_bonferroni(A: Array, B: Array, seed: int) -> float:
    """Run Kolmogorov and Smirnov's test on every feature, with Bonferroni's correction."""
    smallest = min(ks_2samp(A[:, k], B[:, k]).pvalue for k in range(A.shape[1]))
    return float(min(1.0, A.shape[1] * smallest))


def energy(A: Array, B: Array, seed: int) -> float:
    """Test by energy distance (Székely and Rizzo, 2004)."""
    distances = cdist(*[_standardised(A, B)] * 2)
    return _permuted(lambda labels: -_between(distances, labels), A, B, seed)


def mmd(A: Array, B: Array, seed: int) -> float:
    """Test by maximum mean discrepancy (Gretton et al., 2012); the width of the kernel is the median distance."""
    distances = cdist(*[_standardised(A, B)] * 2, "sqeuclidean")
    kernel = np.exp(-distances / np.median(distances[distances > 0]))
    return _permuted(lambda labels: _between(kernel, labels), A, B, seed)


def _between(matrix: Array, labels: Array) -> Array:
    """Return mean(A, A) + mean(B, B) - 2 mean(A, B) of a matrix for each column of signs that share it out."""
    weights = np.where(labels > 0, 1 / (labels > 0).sum(axis=0), -1 / (labels < 0).sum(axis=0))
    return np.einsum("ip,ip->p", weights, matrix @ weights)


def lsdd(A: Array, B: Array, seed: int) -> float:
    """Test by least-squares density difference (Sugiyama et al., 2012): the squared distance of two densities.

    Their difference is fitted by Gaussian kernels; the matrix of their products is in closed form. As in monitors built
    on it, the width is the median distance and the ridge is fixed.
    """
    rows = _standardised(A, B)
    rng = np.random.default_rng(seed)
    centres = rows[rng.choice(len(rows), min(_CENTRES, len(rows)), replace=False)]
    width = np.median(pdist(centres, "sqeuclidean"))
    kernel = np.exp(-cdist(rows, centres, "sqeuclidean") / width)
    products = np.exp(-cdist(centres, centres, "sqeuclidean") / (2 * width))  # but for a factor that all share
    inverse = np.linalg.inv(products + _RIDGE * np.eye(len(centres)))

    def statistic(labels: Array) -> Array:
        weights = np.where(labels > 0, 1 / (labels > 0).sum(axis=0), -1 / (labels < 0).sum(axis=0))
        means = kernel.T @ weights
        theta = inverse @ means
        return 2 * np.einsum("cp,cp->p", theta, means) - np.einsum("cp,cp->p", theta, products @ theta)

    return _permuted(statistic, A, B, seed)


def classifier(A: Array, B: Array, seed: int) -> float:
    """Test by classifier (Lopez-Paz and Oquab, 2017): accuracy of a random forest on the half it did not see."""
    rows, labels = np.concatenate([A, B]), np.repeat([1, 0], [len(A), len(B)])
    order = np.random.default_rng(seed).permutation(len(rows))
    half = len(rows) // 2
    model = RandomForestClassifier(100, min_samples_leaf=5, random_state=seed).fit(
        rows[order[:half]], labels[order[:half]]
    )
    hits = int((model.predict(rows[order[half:]]) == labels[order[half:]]).sum())
    return float(binom.sf(hits - 1, len(rows) - half, 0.5))


def never(A: Array, B: Array, seed: int) -> float:
    """Report no change."""
    return 1.0


def always(A: Array, B: Array, seed: int) -> float:
    """Report a change."""
    return 0.0


def _standardised(A: Array, B: Array) -> Array:
    rows = np.concatenate([A, B])
    spread = rows.std(axis=0)
    return (rows - rows.mean(axis=0)) / np.where(spread > 0, spread, 1.0)


def _permuted(statistic: Callable[[Array], Array], A: Array, B: Array, seed: int) -> float:
    """Return the p-value of a statistic, a function of signs, (n, P): 1 for A and -1 for B."""
    own = np.repeat([1.0, -1.0], [len(A), len(B)])
    rng = np.random.default_rng(seed)
    signs = np.stack([own, *(rng.permutation(own) for _ in range(N_PERMUTATIONS))], axis=1)
    found = statistic(signs)
    return float((found >= found[0] - 1e-12 * abs(found[0])).mean())
