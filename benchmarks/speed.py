"""Fitting and scoring tables: time and peak memory next to IsolationForest and isotree, and growth of the cost.

Writes results/speed.csv and results/scaling.csv. Times are the best of several rounds in which all methods take turns,
so that other load on the machine slows all of them equally.
"""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import IsolationForest

from benchmarks.registry import Benchmark
from benchmarks.shared.pages import ROOT
from benchmarks.shared.results import write
from benchmarks.shared.timing import seconds
from polyaforest import BatchMPF, StreamingMPF, Tree, datasets

PAPER: dict[str, Any] = {
    "tree": Tree(feature_weights=None, max_depth=10),
    "score_type": "mass",
    "random_state": 0,
    "n_jobs": 2,
}
Method = Callable[[], Any]


def isotree(**settings: Any) -> Any:
    """Return isotree's forest; the library is imported on first use."""
    return import_module("isotree").IsolationForest(**settings)


METHODS: dict[str, Method] = {
    "IsolationForest": lambda: IsolationForest(random_state=0),
    "isotree 100 x 256": lambda: isotree(ntrees=100, sample_size=256, nthreads=2, random_seed=1),
    "sMPF all rows, depth 10": lambda: StreamingMPF(window=None, **PAPER),
    "sMPF 256 rows, depth 10": lambda: StreamingMPF(max_samples=256, **PAPER),
    "sMPF default": lambda: StreamingMPF(random_state=0, n_jobs=2),
    "bMPF all rows, depth 10": lambda: BatchMPF(**PAPER),
    "bMPF default": lambda: BatchMPF(random_state=0, n_jobs=2),
}
SLOW_METHODS: dict[str, Method] = {"isotree default": lambda: isotree(nthreads=2, random_seed=1)}


def data_sets(quick: bool) -> dict[str, np.ndarray]:
    """Return the three sizes of the target: many rows, the middle, many columns."""
    rng = np.random.default_rng(0)
    sets = {"gauss 100000 x 10": rng.normal(size=(100_000, 10)), "gauss 10000 x 100": rng.normal(size=(10_000, 100))}
    try:
        http = datasets.load("http", download=False).X
        sets = {f"http {len(http)} x 3": http, **sets}
    except FileNotFoundError:
        print("http is not at hand (set POLYAFOREST_DATA): left out", file=sys.stderr)
    return {name: rows[:: 10 if quick else 1].copy() for name, rows in sets.items()}


def score(model: Any, X: np.ndarray) -> Any:
    """Return the scores of `X`, which isotree calls predictions."""
    return (model.predict if type(model).__module__.startswith("isotree") else model.score_samples)(X)


def fit_and_score(make: Method, X: np.ndarray) -> tuple[float, float]:
    """Return seconds to fit and seconds to score."""
    model = make()
    return seconds(lambda: model.fit(X)), seconds(lambda: score(model, X))


def compare(name: str, X: np.ndarray, rounds: int) -> list[dict[str, Any]]:
    """Time all methods on one data set, taking turns."""
    best: dict[str, tuple[float, float]] = {}
    for turn in range(rounds):
        for method, make in {**METHODS, **(SLOW_METHODS if turn == 0 else {})}.items():
            times = fit_and_score(make, X)
            best[method] = min(best.get(method, times), times, key=sum)
    total = {method: sum(times) for method, times in best.items()}
    rows = []
    for method, (fit, scoring) in best.items():
        row = {
            "data": name,
            "method": method,
            "fit_s": round(fit, 3),
            "score_s": round(scoring, 3),
            "vs_IsolationForest": round(total[method] / total["IsolationForest"], 2),
            "vs_isotree_100x256": round(total[method] / total["isotree 100 x 256"], 2),
            "vs_isotree_default": round(total[method] / total["isotree default"], 2),
            "peak_mb": peak_memory(method, name) if "MPF" in method else "",
            "allowed_mb": round(3 * X.nbytes / 1e6 + 200) if "MPF" in method else "",
        }
        rows.append(row)
        print("  ".join(f"{value!s:>24}" if key == "method" else f"{value!s:>8}" for key, value in row.items()))
    return rows


def peak_memory(method: str, name: str) -> int:
    """Return megabytes that fitting and scoring add to the peak of a new process that has data and code loaded."""
    code = "import sys; from benchmarks.speed import measure_memory; measure_memory(*sys.argv[1:])"
    command = [sys.executable, "-c", code, method, name]
    return int(json.loads(subprocess.run(command, capture_output=True, check=True, text=True, cwd=ROOT).stdout))


def measure_memory(method: str, name: str) -> None:
    """Print what `peak_memory` returns; runs in a new process."""
    X = data_sets(quick=False)[name]
    fit_and_score(METHODS[method], X[:300].copy())
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # reset the high-water mark
    fit_and_score(METHODS[method], X)
    print(json.dumps(round(memory("VmHWM") - before)))


def memory(entry: str) -> float:
    """Return an entry of this process's status, in megabytes (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(entry)) / 1000


def scaling(quick: bool) -> list[dict[str, Any]]:
    """Time sMPF and bMPF, all rows in every tree, as rows, trees and depth double."""
    n = 20_000 if quick else 100_000
    X = np.random.default_rng(1).normal(size=(n, 10))
    base = {"rows": n // 4, "trees": 50, "depth": 8}
    rows = []
    for dimension, values in {"rows": [n // 4, n // 2, n], "trees": [25, 50, 100], "depth": [4, 8, 16]}.items():
        for value in values:
            size = {**base, dimension: value}
            tree = Tree(feature_weights=None, max_depth=size["depth"])
            setting = {**PAPER, "n_estimators": size["trees"], "tree": tree}
            part = X[: size["rows"]].copy()
            for name, make in {
                "sMPF": lambda setting=setting: StreamingMPF(window=None, **setting),
                "bMPF": lambda setting=setting: BatchMPF(**setting),
            }.items():
                fit, scoring = min((fit_and_score(make, part) for _ in range(3)), key=sum)
                cost = {"fit_s": round(fit, 3), "score_s": round(scoring, 3)}
                rows.append({"varied": dimension, "method": name, **size, **cost})
                print("  ".join(f"{v!s:>8}" for v in rows[-1].values()))
    return rows


def measure_all(options: Namespace, directory: Path) -> None:
    """Compare all methods, then measure how cost grows."""
    for make in METHODS.values():  # compile first: start-up has its own benchmark
        fit_and_score(make, np.random.default_rng(0).normal(size=(600, 3)))
    rows = []
    for name, X in data_sets(options.quick).items():
        rows += compare(name, X, rounds=1 if options.quick else 3)
    write("speed", rows, directory)
    write("scaling", scaling(options.quick), directory)


BENCHMARK = Benchmark(measure_all, quick="a tenth of the rows, one round", peers=("isotree",))
