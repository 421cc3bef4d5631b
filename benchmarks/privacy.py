"""Private releases: accuracy by epsilon, number of trees and depth.

Writes results/privacy.csv, a row per data set, trees, depth, epsilon and seed (of trees and noise), and fills
docs/benchmarks/privacy.md. A run resumes where it was interrupted.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from math import inf
from pathlib import Path
from statistics import mean

import numpy as np
from tqdm import tqdm

from benchmarks.registry import Benchmark, of_rows
from benchmarks.shared.metrics import auc
from benchmarks.shared.pages import PAGES, fill, table
from benchmarks.shared.results import Results, picked, present
from polyaforest import BatchMPF, Tree
from polyaforest.datasets import load

PAGE = "privacy"
KEYS = ("data", "trees", "depth", "epsilon", "seed")
DATA = ("pima", "breastw", "cardio", "thyroid", "annthyroid", "mammography", "shuttle")
TREES, DEPTHS, EPSILONS = (5, 20, 100), (4, 6, 8, 10), (0.1, 1.0, 10.0, inf)
SUGGESTED = (20, 6)  # trees and depth, whose results are shown by table
N_SEEDS = 3
MARGIN = 0.1  # of its range, by which the domain of a column is wider: bounds that one might know beforehand
RATE = 0.05  # of false alarms
MOST = 10_000  # rows to score


def measure(data: str, trees: int, depth: int, seed: int) -> list[dict[str, object]]:
    """Return the AUC, and the share of normal rows flagged, of a forest and of its releases."""
    source = load(data)
    X, is_odd = np.asarray(source.X, float), np.asarray(source.y, bool)
    low, high = X.min(axis=0), X.max(axis=0)
    margin = MARGIN * (high - low)
    domain = np.stack([low - margin, high + margin])
    tree = Tree(domain=domain, max_depth=depth)
    forest = BatchMPF(n_estimators=trees, tree=tree, false_alarm_rate=RATE, random_state=seed).fit(X)
    chosen = np.random.default_rng(seed).permutation(len(X))[:MOST]
    rows, odd = X[chosen], is_odd[chosen]
    results: list[dict[str, object]] = []
    for epsilon in EPSILONS:
        released = forest if epsilon == inf else forest.release(epsilon, X, random_state=seed)
        found = released.detect(rows)
        results.append(
            {
                "data": data,
                "trees": trees,
                "depth": depth,
                "epsilon": epsilon,
                "seed": seed,
                "rows": len(X),
                "auc": auc(odd, -found.scores),
                "flagged": float(found.is_anomaly.mean()),
            }
        )
    return results


def render(rows: Iterable[Mapping[str, str]], pages: Path = PAGES) -> None:
    """Fill the page from the results."""
    found = list(rows)
    data = present(found, "data", DATA)

    def numbers(column: str, **wanted: object) -> list[str]:
        return [
            f"{mean(picked(found, column, epsilon=f'{epsilon:g}', **wanted)):.3f}" for epsilon in reversed(EPSILONS)
        ]

    words = ["true counts", *(f"ε = {epsilon:g}" for epsilon in reversed(EPSILONS[:-1]))]
    sizes = [
        [str(trees), str(depth), *numbers("auc", trees=trees, depth=depth)] for trees, depth in product(TREES, DEPTHS)
    ]
    fill(PAGE, "sizes", table(["trees", "depth", *words], sizes), pages)
    trees, depth = SUGGESTED
    tables = [_line(name, found, numbers("auc", data=name, trees=trees, depth=depth)) for name in data]
    fill(PAGE, "tables", table(["", "rows", *words], tables), pages)
    flags = [_line(name, found, numbers("flagged", data=name, trees=trees, depth=depth)) for name in data]
    fill(PAGE, "flagged", table(["", "rows", *words], flags), pages)


def _line(name: str, found: Sequence[Mapping[str, str]], cells: list[str]) -> list[str]:
    n_rows = next(int(row["rows"]) for row in found if row["data"] == name)
    return [name, f"{n_rows:,}", *cells]


def measure_all(options: Namespace, directory: Path) -> None:
    """Measure what the file lacks."""
    results = Results("privacy", KEYS, directory)
    data, n_seeds = (DATA[:2], 1) if options.quick else (DATA, N_SEEDS)
    for case in tqdm(list(product(data, TREES, DEPTHS, range(n_seeds)))):
        name, trees, depth, seed = case
        if (name, trees, depth, "inf", seed) not in results:  # the last to be measured
            for row in measure(name, trees, depth, seed):
                results.add(row)


BENCHMARK = Benchmark(measure_all, of_rows(render, "privacy"), quick="two tables and one seed")
