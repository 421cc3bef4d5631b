"""Wide tables: time and accuracy as columns grow, with some or all features in each tree, next to isolation forests.

Writes results/wide.csv (CPU seconds to fit and score Gaussian tables on one thread; methods take turns, and the best
round counts) and results/wide-accuracy.csv (AUC, the mean of several seeds). Generated tables are linear mixtures of a
few factors with noise; two rows in a hundred are anomalies: larger than the others, without the correlations, or
shifted in five columns.
"""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import IsolationForest
from sklearn.metrics import roc_auc_score

from benchmarks.registry import Benchmark
from benchmarks.shared.results import write
from polyaforest import BatchMPF, StreamingMPF, Tree, datasets

SIZES = ((50_000, 100), (10_000, 500), (2000, 1500))
TABLES = ("optdigits", "mnist", "musk", "arrhythmia")
GENERATED = {"few 400": (4000, 400, 10), "larger 400": (4000, 400, 10), "unmixed 1000": (2000, 1000, 20)}
Method = Callable[[int], Any]


def extended(seed: int) -> Any:
    """Return isotree's extended isolation forest of the usual size."""
    library = import_module("isotree")
    return library.IsolationForest(ntrees=100, sample_size=256, ndim=2, nthreads=1, random_seed=seed + 1)


METHODS: dict[str, Method] = {
    "StreamingMPF": lambda seed: StreamingMPF(random_state=seed),
    "StreamingMPF, all features": lambda seed: StreamingMPF(tree=Tree(max_features=None), random_state=seed),
    "BatchMPF": lambda seed: BatchMPF(random_state=seed),
    "IsolationForest": lambda seed: IsolationForest(random_state=seed),
    "isotree, extended": extended,
}


def normality(model: Any, X: np.ndarray) -> np.ndarray:
    """Return scores that are higher for normal rows."""
    scores = model.predict(X) if type(model).__module__.startswith("isotree") else -model.score_samples(X)
    return -np.asarray(scores)


def cpu_seconds(task: Callable[[], Any]) -> float:
    """Return the CPU time of one run, which other load on the machine changes little."""
    start = time.process_time()
    task()
    return time.process_time() - start


def available() -> dict[str, Method]:
    """Return the methods whose libraries are installed."""
    found = {}
    for name, make in METHODS.items():
        try:
            make(0)
        except ImportError as error:
            print(f"{name}: left out ({error})", file=sys.stderr)
        else:
            found[name] = make
    return found


def times(methods: dict[str, Method], rounds: int, part: int) -> Iterator[dict[str, Any]]:
    """Time all methods on tables of growing width."""
    for n_rows, n_columns in SIZES:
        X = np.random.default_rng(0).normal(size=(n_rows // part, n_columns))
        best: dict[str, tuple[float, float]] = {}
        for _ in range(rounds):
            for name, make in methods.items():
                model = make(0)
                took = cpu_seconds(partial(model.fit, X)), cpu_seconds(partial(normality, model, X))
                best[name] = min(best.get(name, took), took, key=sum)
        for name, (fit, score) in best.items():
            ratio = (fit + score) / sum(best["IsolationForest"])
            row = {"rows": len(X), "columns": n_columns, "method": name, "fit_s": round(fit, 3)}
            yield {**row, "score_s": round(score, 3), "over_IsolationForest": round(ratio, 2)}


def generated(kind: str, n: int, n_columns: int, n_factors: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a table with planted anomalies, and which rows they are."""
    rng, n_odd = np.random.default_rng(1), n // 50
    mixed = rng.normal(size=(n, n_factors)) @ rng.normal(size=(n_factors, n_columns))
    X = mixed + 0.3 * np.sqrt(n_factors) * rng.normal(size=(n, n_columns))
    if kind == "larger":
        X[:n_odd] *= 1.3
    elif kind == "unmixed":
        X[:n_odd] = rng.permuted(X[:n_odd], axis=0)
    else:
        for row in X[:n_odd]:
            chosen = rng.choice(n_columns, 5, replace=False)
            row[chosen] += 4 * X.std(axis=0)[chosen] * rng.choice([-1, 1], 5)
    return X, np.arange(n) < n_odd


def tables() -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield tables at hand and generated ones, with which rows are anomalies."""
    for name in TABLES:
        try:
            table = datasets.load(name, download=False)
        except FileNotFoundError:
            print(f"{name} is not at hand (set POLYAFOREST_DATA): left out", file=sys.stderr)
        else:
            yield name, table.X, table.y
    for name, shape in GENERATED.items():
        yield name, *generated(name.split()[0], *shape)


def accuracy(methods: dict[str, Method], n_seeds: int) -> Iterator[dict[str, Any]]:
    """Measure the mean AUC of all methods."""
    for name, X, y in tables():
        for method, make in methods.items():
            found = [roc_auc_score(y, -normality(make(seed).fit(X), X)) for seed in range(n_seeds)]
            row = {"data": name, "columns": X.shape[1], "method": method}
            yield {**row, "auc": round(float(np.mean(found)), 3), "std": round(float(np.std(found)), 3)}


def shown(rows: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    """Print rows as they come, and return them."""
    found = []
    for row in rows:
        print(
            "  ".join(f"{value!s:>26}" if key == "method" else f"{value!s:>9}" for key, value in row.items()),
            flush=True,
        )
        found.append(row)
    return found


def measure_all(options: Namespace, directory: Path) -> None:
    """Measure times, then accuracy."""
    methods = available()
    for make in methods.values():  # compile first
        normality(make(0).fit(np.random.default_rng(0).normal(size=(300, 5))), np.zeros((20, 5)))
    rounds, part, n_seeds = (1, 10, 1) if options.quick else (5, 1, 5)
    write("wide", shown(times(methods, rounds, part)), directory)
    write("wide-accuracy", shown(accuracy(methods, n_seeds)), directory)


BENCHMARK = Benchmark(
    measure_all, quick="a tenth of the rows, one round and one seed", peers=("isotree", "scikit-learn")
)
