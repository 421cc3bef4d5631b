"""The detectors that the benchmarks compare: by name, a function of (X, seed) that returns higher scores for anomalies.

Settings are each library's defaults or, where a library has no method but parameters for it, those its documentation
gives for the method. Our detectors get raw rows; the others, and ours in the paper's setting, get features
scaled into [0, 1] where there are 50 or more, as the paper did. Libraries are imported on first use, so that a method
can be run where another's library is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
from sklearn.ensemble import IsolationForest
from sklearn.neighbors import LocalOutlierFactor
from sklearn.preprocessing import minmax_scale, scale
from sklearn.svm import OneClassSVM

from polyaforest import BatchMPF, StreamingMPF, Tree

Array = np.ndarray
Method = Callable[[Array, int], Array]

MANY_FEATURES = 50  # from here on the paper scales features into [0, 1]
SVM_ROWS = 10_000  # sample to fit a one-class SVM, whose cost is quadratic, if a set has more than twice as many

# What isotree's documentation has in common for the methods that cut along hyperplanes of two features
OBLIQUE: dict[str, Any] = {"ndim": 2, "sample_size": 256, "missing_action": "fail"}
EIF: dict[str, Any] = {**OBLIQUE, "max_depth": 8, "ntrees": 100, "coefs": "uniform", "standardize_data": False}
SCIFOREST: dict[str, Any] = {
    **OBLIQUE,
    "max_depth": 8,
    "ntrees": 100,
    "coefs": "normal",
    "ntry": 10,
    "prob_pick_avg_gain": 1,
    "penalize_range": True,
}
FCF: dict[str, Any] = {
    **OBLIQUE,
    "max_depth": None,
    "ntrees": 200,
    "coefs": "normal",
    "ntry": 1,
    "prob_pick_pooled_gain": 1,
}
# The paper's own forests: 100 trees, here as by default. It does not say which prior strength it used: of 0.0001 to 1,
# small ones fit its figures best, and below 0.001 nothing changes.
PAPER: dict[str, Any] = {
    "tree": Tree(max_depth=10, feature_weights=None, domain="data", prior_strength=0.001),
    "score_type": "mass",
}


def batch_forest(X: Array, seed: int, **parameters: Any) -> Array:
    """Return scores of our batch forest."""
    return -BatchMPF(random_state=seed, **parameters).fit(X).score_samples(X)


def streaming_forest(X: Array, seed: int, **parameters: Any) -> Array:
    """Return scores of our streaming forest, fitted on the whole table."""
    return -StreamingMPF(random_state=seed, **parameters).fit(X).score_samples(X)


def isolation_forest(X: Array, seed: int) -> Array:
    """Return scores of scikit-learn's isolation forest."""
    return -IsolationForest(random_state=seed).fit(X).score_samples(X)


def pid_forest(X: Array, seed: int) -> Array:
    """Return scores of our implementation of the PIDForest."""
    forest = import_module("benchmarks.baselines.pidforest").PIDForest(random_state=seed)
    return -forest.fit(X).score_samples(X)


def random_cut_forest(X: Array, seed: int, *, function: str) -> Array:
    """Return codisplacements of a random cut forest by the `rrcf` or `krcf` library."""
    return getattr(import_module("benchmarks.baselines.rrcf_batch"), function)(X, seed=seed)


def one_class_svm(X: Array, seed: int) -> Array:
    """Return scores of scikit-learn's one-class SVM, fitted on a sample of large tables."""
    fitted = X
    if len(X) > 2 * SVM_ROWS:
        fitted = X[np.random.default_rng(seed).choice(len(X), SVM_ROWS, replace=False)]
    return -OneClassSVM().fit(fitted).score_samples(X)


def local_outlier_factor(X: Array, seed: int) -> Array:
    """Return local outlier factors by scikit-learn."""
    return -LocalOutlierFactor().fit(X).negative_outlier_factor_


def from_pyod(X: Array, seed: int, *, module: str, is_random: bool = False) -> Array:
    """Return scores of a PyOD detector with its defaults; its class has the module's name in capitals."""
    detector = getattr(import_module(f"pyod.models.{module}"), module.upper())
    parameters = {"random_state": seed} if is_random else {}
    return detector(**parameters).fit(X).decision_scores_


def principal_components(X: Array, seed: int) -> Array:
    """Return scores of PyOD's PCA, without constant features, whose variance it would divide by."""
    return from_pyod(X[:, np.ptp(X, axis=0) > 0], seed, module="pca")


def from_isotree(X: Array, seed: int, **parameters: Any) -> Array:
    """Return scores of an isotree model, on one thread."""
    forest = import_module("isotree").IsolationForest(random_seed=seed, nthreads=1, **parameters)
    return forest.fit(X).predict(X)


def extended_isolation_forest(X: Array, seed: int) -> Array:
    """Return scores of the extended isolation forest, which needs standardised features."""
    return from_isotree(scale(X), seed, **EIF)


def narrowed(method: Method) -> Method:
    """Return the method, with features scaled into [0, 1] where there are many."""

    def scaled(X: Array, seed: int) -> Array:
        return method(minmax_scale(X) if X.shape[1] >= MANY_FEATURES else X, seed)

    return scaled


OURS: dict[str, Method] = {
    "bMPF": batch_forest,
    "sMPF": streaming_forest,
    "bMPF paper": narrowed(partial(batch_forest, **PAPER)),
    "sMPF paper": narrowed(partial(streaming_forest, window=None, **PAPER)),
}
FORESTS: dict[str, Method] = {
    "iForest": narrowed(isolation_forest),
    "PIDForest": narrowed(pid_forest),
    "rrcf": narrowed(partial(random_cut_forest, function="rrcf_scores")),
    "krcf": narrowed(partial(random_cut_forest, function="krcf_scores")),
}
CLASSICAL: dict[str, Method] = {
    "SVM": narrowed(one_class_svm),
    "LOF": narrowed(local_outlier_factor),
    "kNN": narrowed(partial(from_pyod, module="knn")),
    "PCA": narrowed(principal_components),
}
PEERS: dict[str, Method] = {
    "isotree": narrowed(from_isotree),
    "EIF": narrowed(extended_isolation_forest),
    "SCiForest": narrowed(partial(from_isotree, **SCIFOREST)),
    "FCF": narrowed(partial(from_isotree, **FCF)),
    "ECOD": narrowed(partial(from_pyod, module="ecod")),
    "COPOD": narrowed(partial(from_pyod, module="copod")),
    "HBOS": narrowed(partial(from_pyod, module="hbos")),
    "INNE": narrowed(partial(from_pyod, module="inne", is_random=True)),
    "LODA": narrowed(partial(from_pyod, module="loda", is_random=True)),
}
METHODS: dict[str, Method] = {**OURS, **FORESTS, **CLASSICAL, **PEERS}

# These answer the same whatever the seed: they are measured once. (The SVM's rows are drawn only from large sets.)
DETERMINISTIC = frozenset({"SVM", "LOF", "kNN", "PCA", "ECOD", "COPOD", "HBOS"})
# These compile on first use, or load what was compiled: a run on a few rows beforehand keeps that out of the time.
COMPILED = frozenset({*OURS, "PIDForest", "ECOD", "COPOD", "HBOS", "INNE"})


def warm_up(names: list[str]) -> None:
    """Import and compile what these methods need."""
    X = np.random.default_rng(0).normal(size=(300, 3))
    for name in COMPILED.intersection(names):
        METHODS[name](X, 0)
