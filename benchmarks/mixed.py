"""Tables of numbers and categories: AUC of each detector, and whether it names the column that was changed.

Two of the paper's tables, whose numbers are categories, and generated ones with planted rows: common values that rarely
occur together, rare categories, and numbers that belong to other rows. Writes results/mixed.csv, a row per table,
method and seed (of the table and of the method), and fills docs/benchmarks/mixed.md. A run resumes where it was
interrupted; `--again` measures methods again.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.ensemble import IsolationForest
from sklearn.preprocessing import OneHotEncoder
from tqdm import tqdm

from benchmarks.registry import Benchmark, again, of_rows
from benchmarks.shared.metrics import auc
from benchmarks.shared.pages import PAGES, fill
from benchmarks.shared.pages import table as markdown
from benchmarks.shared.results import Results
from polyaforest import BatchMPF, StreamingMPF
from polyaforest.datasets import load

Array = np.ndarray

PAGE = "mixed"
KEYS = ("data", "method", "seed")
N_SEEDS = 3
N_ROWS, N_PLANTED, N_CLASSES = 1500, 30, 6
N_SWAPS = 20  # values that a column is swapped for, to measure its effect
OURS = ("sMPF", "bMPF", "sMPF, one-hot")


class Table(NamedTuple):
    """A table with anomalies, and the changed columns of planted ones."""

    numbers: Array  # float64 (n, Dn)
    categories: Array  # int64 (n, F)
    y: Array  # 1 for an anomaly
    changed: Array  # int64 (n,): numbers count first; -1 where none was, or none is known

    @property
    def frame(self) -> pd.DataFrame:
        """The table as users have it."""
        numbers = {f"number {k}": column for k, column in enumerate(self.numbers.T)}
        texts = {
            f"category {k}": pd.Categorical([f"c{v}" for v in column]) for k, column in enumerate(self.categories.T)
        }
        return pd.DataFrame({**numbers, **texts})


# ---- tables ----------------------------------------------------------------------------------------------------------


class Sketch(NamedTuple):
    """What a generated table is like: rows belong to classes that decide, more or less, about every column."""

    n_numbers: int
    sizes: tuple[int, ...]  # of the categories; 0 for a unique id in every row
    heavy_tails: bool = False
    evenness: float = 0.3  # of the categories in a class: the lower, the fewer does it have
    dominant: tuple[int, ...] = ()  # columns in which nine of ten rows have the same category, whatever their class


SKETCHES = {
    "kdd-like": Sketch(4, (3, 30, 10, 2), heavy_tails=True),
    "adult-like": Sketch(3, (8, 16, 7, 14, 6, 2, 40), dominant=(6,)),
    "bank-like": Sketch(4, (12, 3, 4, 3, 12, 4), evenness=0.5),
    "bank-like with ids": Sketch(4, (12, 3, 4, 3, 12, 4, 0), evenness=0.5),
    "many categories": Sketch(1, (60, 60, 200, 60)),
}


def generated(sketch: Sketch, seed: int) -> Table:
    """Return a table by a sketch, with planted rows."""
    rng = np.random.default_rng(seed)
    own = rng.choice(N_CLASSES, N_ROWS, p=rng.dirichlet(np.full(N_CLASSES, 5.0)))
    centres = 2.5 * rng.normal(size=(N_CLASSES, sketch.n_numbers))
    numbers = centres[own] + rng.normal(size=(N_ROWS, sketch.n_numbers))
    columns = []
    for f, size in enumerate(sketch.sizes):
        shares = rng.dirichlet(np.full(max(size, 1), sketch.evenness), N_CLASSES)
        column = np.array([rng.choice(max(size, 1), p=shares[z]) for z in own]) if size else np.arange(N_ROWS)
        if f in sketch.dominant:
            column = np.where(rng.random(N_ROWS) < 0.9, 0, column)
        columns.append(column)
    categories = np.column_stack(columns).astype(np.int64)
    planted, changed = rng.choice(N_ROWS, N_PLANTED, replace=False), np.full(N_ROWS, -1)
    for i in planted:
        changed[i] = plant(numbers, categories, sketch, own, i, rng)
    for column in categories.T:
        column[:] = rng.permutation(column.max() + 1)[column]  # codes in arbitrary order
    if sketch.heavy_tails:
        numbers = np.exp(numbers)
    return Table(numbers, categories, (changed >= 0).astype(int), changed)


def plant(numbers: Array, categories: Array, sketch: Sketch, own: Array, i: int, rng: np.random.Generator) -> int:
    """Change one value of row `i` so that it hardly ever occurs with the others; return its column.

    It is that of a row of another class which no row of its own has: two times in three a category, or one that no
    row has.
    """
    kind = rng.integers(3)
    others = rng.permutation(np.flatnonzero(own != own[i]))
    usable = [f for f, size in enumerate(sketch.sizes) if size > 2]
    if kind == 0 and sketch.n_numbers:
        k = int(rng.integers(sketch.n_numbers))
        mine = numbers[own == own[i], k]
        far = [numbers[r, k] for r in others if abs(numbers[r, k] - mine.mean()) > 3.5 * mine.std()]
        if far:
            numbers[i, k] = far[0]
            return k
    f = int(rng.choice(usable))
    foreign = [v for v in categories[others, f] if not (categories[own == own[i], f] == v).any()]
    categories[i, f] = foreign[0] if foreign and kind < 2 else categories[:, f].max() + 1
    return sketch.n_numbers + f


def of_paper(name: str) -> Table:
    """Return a table of the paper as categories."""
    data = load(name)
    codes = np.asarray(data.X, np.int64)
    return Table(np.empty((len(codes), 0)), codes, np.asarray(data.y, int), np.full(len(codes), -1))


def made(data: str, seed: int) -> Table:
    """Return a table by its name."""
    return generated(SKETCHES[data], seed) if data in SKETCHES else of_paper(data)


DATA = ("breastw", "lympho", *SKETCHES)
QUICK_DATA = ("lympho", "kdd-like")


# ---- detectors -------------------------------------------------------------------------------------------------------


class Result(NamedTuple):
    """What a detector says: higher scores are more anomalous; `named` is the column with the largest attribution."""

    scores: Array
    named: Array


def by_forest(table: Table, asked: Array, seed: int, *, detector: type) -> Result:
    """Return scores and explanations of one of our forests."""
    n_numbers, n_categories = table.numbers.shape[1], table.categories.shape[1]
    rows = np.column_stack([table.numbers.astype(object), table.categories.astype(object)])
    forest = detector(random_state=seed, categorical_features=n_numbers + np.arange(n_categories)).fit(rows)
    return Result(-forest.score_samples(rows), forest.explain(rows[asked]).parts.argmax(axis=1))


def one_hot(table: Table) -> tuple[Callable[[Table], Array], Array]:
    """Return an encoder of tables, and this one encoded."""
    encoder = OneHotEncoder(sparse_output=False, handle_unknown="ignore", max_categories=200).fit(table.categories)

    def encode(some: Table) -> Array:
        return np.hstack([some.numbers, encoder.transform(some.categories)])

    return encode, encode(table)


def most_effective(score: Callable[[Table], Array], table: Table, asked: Array, seed: int) -> Array:
    """Return the column of each row asked about by which its score falls most, swapped for values of other rows."""
    rng, n = np.random.default_rng(seed), len(table.y)
    rows, n_numbers = np.repeat(asked, N_SWAPS), table.numbers.shape[1]
    falls = []
    for k in range(n_numbers + table.categories.shape[1]):
        numbers, categories = table.numbers[rows].copy(), table.categories[rows].copy()
        column, source = (
            (numbers[:, k], table.numbers[:, k])
            if k < n_numbers
            else (
                categories[:, k - n_numbers],
                table.categories[:, k - n_numbers],
            )
        )
        column[:] = source[rng.integers(n, size=len(rows))]
        swapped = Table(numbers, categories, table.y[rows], table.changed[rows])
        falls.append(-score(swapped).reshape(len(asked), N_SWAPS).mean(axis=1))
    return np.argmax(falls, axis=0)


def by_one_hot(table: Table, asked: Array, seed: int, *, ours: bool) -> Result:
    """Return scores of a forest of numbers on one-hot columns."""
    encode, X = one_hot(table)
    forest = (StreamingMPF if ours else IsolationForest)(random_state=seed).fit(X)

    def score(some: Table) -> Array:
        return -forest.score_samples(encode(some))

    return Result(score(table), most_effective(score, table, asked, seed))


def by_isotree(table: Table, asked: Array, seed: int, **parameters: Any) -> Result:
    """Return scores of isotree, which supports categories."""
    known = table.frame
    forest = import_module("isotree").IsolationForest(random_seed=seed, nthreads=1, **parameters).fit(known)

    def score(some: Table) -> Array:
        frame = some.frame
        for name in known.select_dtypes("category"):
            frame[name] = frame[name].cat.set_categories(known[name].cat.categories)
        return np.asarray(forest.predict(frame))

    return Result(score(table), most_effective(score, table, asked, seed))


def by_pyod(table: Table, asked: Array, seed: int, *, name: str) -> Result:
    """Return scores of a detector of PyOD on the codes of the categories."""
    detector = getattr(import_module(f"pyod.models.{name.lower()}"), name)()
    detector.fit(np.hstack([table.numbers, table.categories]))

    def score(some: Table) -> Array:
        return np.asarray(detector.decision_function(np.hstack([some.numbers, some.categories])))

    return Result(score(table), most_effective(score, table, asked, seed))


Method = Callable[[Table, Array, int], Result]
METHODS: dict[str, Method] = {
    "sMPF": partial(by_forest, detector=StreamingMPF),
    "bMPF": partial(by_forest, detector=BatchMPF),
    "sMPF, one-hot": partial(by_one_hot, ours=True),
    "isotree": by_isotree,
    "isotree, cuts by two": partial(by_isotree, ndim=2),
    "IsolationForest, one-hot": partial(by_one_hot, ours=False),
    "HBOS, codes": partial(by_pyod, name="HBOS"),
    "ECOD, codes": partial(by_pyod, name="ECOD"),
}


# ---- measuring -------------------------------------------------------------------------------------------------------


def measure(data: str, method: str, seed: int) -> dict[str, float]:
    """Return the AUC of a method, and the share of planted rows whose changed column it names first."""
    table = made(data, seed)
    asked = np.flatnonzero(table.changed >= 0)
    scores, columns = METHODS[method](table, asked if len(asked) else np.arange(1), seed)
    named = float((columns == table.changed[asked]).mean()) if len(asked) else float("nan")
    return {"auc": auc(table.y, scores), "named": named}


def run(results: Results, sets: Iterable[str], n_seeds: int) -> None:
    """Measure what the file lacks."""
    tasks = [(data, method, seed) for seed in range(n_seeds) for data in sets for method in METHODS]
    for data, method, seed in tqdm([task for task in tasks if task not in results], disable=None):
        results.add({"data": data, "method": method, "seed": seed, **measure(data, method, seed)})


# ---- the page --------------------------------------------------------------------------------------------------------


def mean_of(rows: Iterable[Mapping[str, str]], value: str, **wanted: str) -> float:
    """Return the mean of a value over the rows that match and have it."""
    return mean(
        float(row[value])
        for row in rows
        if all(row[key] == what for key, what in wanted.items()) and row[value] != "nan"
    )


def table_of(rows: Sequence[Mapping[str, str]], value: str, sets: Sequence[str]) -> str:
    """Return means over seeds by table and method, the best of each in bold, and their mean."""
    known = [data for data in sets if any(row["data"] == data for row in rows)]
    found = [[mean_of(rows, value, data=data, method=method) for method in METHODS] for data in known]
    found.append([mean(column) for column in zip(*found, strict=True)])
    lines = []
    for name, values in zip([*known, "mean of the tables"], found, strict=True):
        best = max(round(value, 3) for value in values)
        lines.append([name, *(f"**{v:.3f}**" if round(v, 3) == best else f"{v:.3f}" for v in values)])
    return markdown(["", *METHODS], lines)


def render(rows: Sequence[Mapping[str, str]], directory: Path = PAGES) -> None:
    """Fill the tables of the page from the rows of the file."""
    fill(PAGE, "auc", table_of(rows, "auc", DATA), directory)
    fill(PAGE, "named", table_of(rows, "named", tuple(SKETCHES)), directory)


def measure_all(options: Namespace, directory: Path) -> None:
    """Measure what the file lacks."""
    results = Results("mixed", KEYS, directory)
    results.forget_methods(options.again, OURS)
    run(results, QUICK_DATA if options.quick else DATA, 1 if options.quick else N_SEEDS)


BENCHMARK = Benchmark(
    measure_all,
    of_rows(render, "mixed"),
    quick="two tables and one seed",
    options={"--again": again(METHODS)},
    peers=("isotree", "pyod"),
)
