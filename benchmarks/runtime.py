"""Time to fit and score the paper's data sets, in seconds and relative to scikit-learn's isolation forest.

Writes results/runtime.csv, a row per data set and method, and fills docs/benchmarks/paper-tables.md. All methods take
turns in one process, on one thread, with compiled code loaded beforehand; the best round counts.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits
from tqdm import tqdm

from benchmarks.accuracy import PAGE, load_sets, marked, titled
from benchmarks.registry import Benchmark, of_rows
from benchmarks.shared import paper
from benchmarks.shared.methods import METHODS, Array, Method
from benchmarks.shared.pages import PAGES, fill, table
from benchmarks.shared.results import Results
from benchmarks.shared.timing import seconds
from polyaforest.datasets import SERIES, TABLES

KEYS = ("data", "method")
REFERENCE = "iForest"
TIMED = (REFERENCE, "sMPF", "sMPF paper", "PIDForest", "krcf", "rrcf")
PRINTED = {"sMPF paper": "sMPF", "PIDForest": "PIDForest"}  # the paper's column next to a method
ROUNDS = 3
LONG = 2.0  # what takes more seconds is not timed again


def best_of(methods: Mapping[str, Method], X: Array, rounds: int = ROUNDS) -> dict[str, float]:
    """Return the least seconds of each method over some rounds, in each of which all take their turn."""
    best = dict.fromkeys(methods, 0.0)
    for turn in range(rounds):
        for name, method in methods.items():
            if best[name] <= LONG:
                taken = seconds(lambda method=method, seed=turn: method(X, seed))
                best[name] = min(best[name], taken) if turn else taken
    return best


def run(sets: Mapping[str, tuple[Array, Array]], methods: Mapping[str, Method], results: Results) -> None:
    """Time the methods on these data sets, small ones first."""
    best_of(methods, np.random.default_rng(0).normal(size=(300, 3)), 1)  # libraries and compiled code are loaded here
    for name, (X, _) in tqdm(sorted(sets.items(), key=lambda item: item[1][0].size), file=sys.stderr):
        for method, best in best_of(methods, X).items():
            results.add({"data": name, "method": method, "rows": len(X), "features": X.shape[1], "seconds": best})


def render(rows: Iterable[Mapping[str, str]], directory: Path = PAGES) -> None:
    """Fill the page from the rows of the file."""
    times = {(row["data"], row["method"]): float(row["seconds"]) for row in rows}
    names = [name for name in (*paper.AUC, "mulcross") if (name, REFERENCE) in times]
    columns = {"data set": [*map(marked, names), "geometric mean of the ratios"]}
    for method in TIMED:
        ratios = [times[name, method] / times[name, REFERENCE] for name in names]
        cells = [f"{times[name, method]:.2f} ({ratio:.2g})" for name, ratio in zip(names, ratios, strict=True)]
        columns[titled(method)] = [*cells, f"({np.exp(np.mean(np.log(ratios))):.2g})"]
        if method in PRINTED:
            columns[f"*{PRINTED[method]}, printed*"] = [*(_printed(name, PRINTED[method]) for name in names), ""]
    fill(PAGE, "runtime", table(list(columns), zip(*columns.values(), strict=True)), directory)


def _printed(name: str, method: str) -> str:
    """Return the paper's seconds."""
    pair = paper.SECONDS.get(name, (None, None))[paper.SECONDS_METHODS.index(method)]
    return f"*{pair[0]:.1f}*" if pair else "–"


def measure_all(options: Namespace, directory: Path) -> None:
    """Time the data sets that the file lacks."""
    results = Results("runtime", KEYS, directory)
    if options.again:
        results.forget()
    missing = [name for name in options.data if any((name, method) not in results for method in TIMED)]
    with threadpool_limits(1):
        run(load_sets(missing), {method: METHODS[method] for method in TIMED}, results)


BENCHMARK = Benchmark(
    measure_all,
    of_rows(render, "runtime"),
    options={
        "--data": {"nargs": "+", "default": [*TABLES, *SERIES], "metavar": "NAME"},
        "--again": {"action": "store_true", "help": "measure everything again"},
    },
    peers=("krcf", "rrcf"),
)
