"""Tables of numbers and categories: AUC of each detector, and whether it names the column that was changed.

Two of the paper's tables, whose numbers are categories, and generated ones with planted rows: common values that rarely
occur together, rare categories, and numbers that belong to other rows. Writes results/mixed.csv, a row per table,
method and seed (of the table and of the method), and fills docs/benchmarks/mixed.md. A run resumes where it was
interrupted; `--again` measures methods again.

Rare pairs have their own tables, generated and real: a few rows get a common value that hardly ever occurs with another
one of theirs. Writes results/mixed-pairs.csv, and results/mixed-clean.csv with the alarms on new rows of these tables
before anything is planted.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import mean
from time import process_time
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
    def rows(self) -> Array:
        """Numbers and categories in one array."""
        return np.column_stack([self.numbers.astype(object), self.categories.astype(object)])

    @property
    def places(self) -> Array:
        """The columns of `rows` that are categories."""
        return self.numbers.shape[1] + np.arange(self.categories.shape[1])

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


# ---- tables with rare pairs ------------------------------------------------------------------------------------------

QUICK_PAIRS = ("payments",)
N_OF_PAIRS, N_RARE = 2500, 5  # rows, and those with a rare pair
LEAST_EXPECTED, MOST_HELD = 30.0, 2  # of a rare pair: rows by independence, and rows that have it
SOFT = {"soft": Sketch(2, (5, 6, 8, 4), evenness=2.0)}
REAL = ("cardio", "pendigits", "satellite", "shuttle")  # in five categories of equal counts each
PAIR_DATA = ("payments", "adult-like", *(f"{name}, binned" for name in REAL))
CLEAN_DATA = (*SOFT, *PAIR_DATA)


def payments(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
    """Return amounts, and country, currency and method: two countries pay in their own currency only."""
    country = rng.choice(6, n, p=[0.34, 0.3, 0.12, 0.12, 0.06, 0.06])
    currency = np.array([0, 1, 0, 2, 3, 4])[country]
    others = country > 1
    currency = np.where(others & (rng.random(n) < 0.06), 1, currency)
    currency = np.where(others & (rng.random(n) < 0.03), 0, currency)
    return np.exp(rng.normal(4, 1, (n, 1))), np.column_stack([country, currency, rng.choice(3, n, p=[0.6, 0.25, 0.15])])


def clean(data: str, seed: int, n: int) -> Table:
    """Return a table of pairs, before anything is planted."""
    rng = np.random.default_rng(seed)
    if data == "payments":
        numbers, categories = payments(rng, n)
    elif data in SKETCHES or data in SOFT:
        numbers, categories = drawn({**SKETCHES, **SOFT}[data], rng, n)
    else:
        known = load(data.removesuffix(", binned"))
        normal = known.X[known.y == 0]
        numbers = normal[rng.permutation(len(normal))[:n]]
        bounds = np.quantile(numbers, [0.2, 0.4, 0.6, 0.8], axis=0)
        categories = (numbers[:, None] > bounds).sum(axis=1)
        numbers = np.empty((len(numbers), 0))
    nothing = np.zeros(len(categories), int)
    return Table(numbers, categories.astype(np.int64), nothing, nothing - 1)


def drawn(sketch: Sketch, rng: np.random.Generator, n: int) -> tuple[Array, Array]:
    """Return the numbers and categories of a sketch: every class has its own shares of categories."""
    own = rng.choice(N_CLASSES, n, p=rng.dirichlet(np.full(N_CLASSES, 5.0)))
    numbers = 2.5 * rng.normal(size=(N_CLASSES, sketch.n_numbers))[own] + rng.normal(size=(n, sketch.n_numbers))
    columns = []
    for size in sketch.sizes:
        shares = rng.dirichlet(np.full(size, sketch.evenness), N_CLASSES).cumsum(axis=1)[own]
        columns.append((rng.random((n, 1)) * shares[:, -1:] > shares).sum(axis=1))
    return numbers, np.column_stack(columns)


def with_rare_pairs(data: str, seed: int) -> Table:
    """Return a table in which some rows have a rare pair of common values."""
    table, rng = clean(data, seed, N_OF_PAIRS), np.random.default_rng(seed + 1)
    categories, changed = table.categories.copy(), table.changed.copy()
    known = rare_pairs(categories)
    for number in rng.choice(len(known), N_RARE, replace=len(known) < N_RARE).tolist() if known else []:
        a, value, b, other = known[number]
        i = rng.choice(np.flatnonzero((categories[:, a] == value) & (changed < 0)))
        categories[i, b], changed[i] = other, table.numbers.shape[1] + b
    return Table(table.numbers, categories, (changed >= 0).astype(int), changed)


def rare_pairs(categories: Array) -> list[tuple[int, int, int, int]]:
    """Return the pairs of common values that hardly ever occur together: column and value of either."""
    n, n_columns = categories.shape
    found = []
    for a in range(n_columns):
        for b in range(n_columns):
            if a == b:
                continue
            held = np.zeros((categories[:, a].max() + 1, categories[:, b].max() + 1), int)
            np.add.at(held, (categories[:, a], categories[:, b]), 1)
            expected = np.outer(held.sum(axis=1), held.sum(axis=0)) / n
            places = np.argwhere((expected >= LEAST_EXPECTED) & (held <= MOST_HELD))
            found += [(a, int(u), b, int(v)) for u, v in places]
    return found


# ---- detectors -------------------------------------------------------------------------------------------------------


class Result(NamedTuple):
    """What a detector says: higher scores are more anomalous; `named` is the column with the largest attribution."""

    scores: Array
    named: Array


def by_forest(table: Table, asked: Array, seed: int, *, detector: type, **parameters: Any) -> Result:
    """Return scores and explanations of one of our forests."""
    rows = table.rows
    forest = detector(random_state=seed, categorical_features=table.places, **parameters).fit(rows)
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


PAIR_METHODS: dict[str, Method] = {
    "sMPF": METHODS["sMPF"],
    "sMPF, typicality": partial(by_forest, detector=StreamingMPF, score_type="typicality"),
    "bMPF": METHODS["bMPF"],
    "isotree": METHODS["isotree"],
    "IsolationForest, one-hot": METHODS["IsolationForest, one-hot"],
}
CLEAN_METHODS = {"sMPF": "margins", "sMPF, typicality": "typicality"}  # with pairs, and without
N_NEW = 5000  # rows of a clean table to look for false alarms in


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


def measure_pairs(data: str, method: str, seed: int) -> dict[str, float]:
    """Return the AUC of a method, the share of rare pairs in its first hundredth of the rows, and its time."""
    table = with_rare_pairs(data, seed)
    start = process_time()
    scores = PAIR_METHODS[method](table, np.flatnonzero(table.y)[:1], seed).scores
    seconds = process_time() - start
    first = np.argsort(-scores, kind="stable")[: len(scores) // 100]
    return {"auc": auc(table.y, scores), "first": table.y[first].sum() / table.y.sum(), "seconds": seconds}


def measure_clean(data: str, method: str, seed: int) -> dict[str, float]:
    """Return the share of new rows of a clean table that are flagged."""
    table = clean(data, seed, N_OF_PAIRS + N_NEW)
    n = min(N_OF_PAIRS, len(table.y) // 2)
    forest = StreamingMPF(random_state=seed, score_type=CLEAN_METHODS[method], categorical_features=table.places)
    return {"alarms": float((forest.fit(table.rows[:n]).predict(table.rows[n:]) == -1).mean())}


def run_pairs(directory: Path, sets: Sequence[str], n_seeds: int, again: Any) -> None:
    """Measure what the files of rare pairs lack."""
    for name, measure_one, methods, own in (
        ("mixed-pairs", measure_pairs, PAIR_METHODS, sets),
        ("mixed-clean", measure_clean, CLEAN_METHODS, (*SOFT, *sets)),
    ):
        results = Results(name, KEYS, directory)
        results.forget_methods(again, {*OURS, *CLEAN_METHODS})
        tasks = [(data, method, seed) for seed in range(n_seeds) for data in own for method in methods]
        for data, method, seed in tqdm([task for task in tasks if task not in results], disable=None):
            results.add({"data": data, "method": method, "seed": seed, **measure_one(data, method, seed)})


# ---- the page --------------------------------------------------------------------------------------------------------


def mean_of(rows: Iterable[Mapping[str, str]], value: str, **wanted: str) -> float:
    """Return the mean of a value over the rows that match and have it."""
    return mean(
        float(row[value])
        for row in rows
        if all(row[key] == what for key, what in wanted.items()) and row[value] != "nan"
    )


def table_of(
    rows: Sequence[Mapping[str, str]], value: str, sets: Sequence[str], methods: Iterable[str] | None = None
) -> str:
    """Return means over seeds by table and method, the best of each in bold, and their mean."""
    methods = list(METHODS if methods is None else methods)
    known = [data for data in sets if any(row["data"] == data for row in rows)]
    found = [[mean_of(rows, value, data=data, method=method) for method in methods] for data in known]
    found.append([mean(column) for column in zip(*found, strict=True)])
    lines = []
    for name, values in zip([*known, "mean of the tables"], found, strict=True):
        best = max(round(value, 3) for value in values)
        lines.append([name, *(f"**{v:.3f}**" if round(v, 3) == best else f"{v:.3f}" for v in values)])
    return markdown(["", *methods], lines)


def render(rows: Sequence[Mapping[str, str]], directory: Path = PAGES) -> None:
    """Fill the tables of the page from the rows of the file."""
    fill(PAGE, "auc", table_of(rows, "auc", DATA), directory)
    fill(PAGE, "named", table_of(rows, "named", tuple(SKETCHES)), directory)


def render_pairs(rows: Sequence[Mapping[str, str]], directory: Path = PAGES) -> None:
    """Fill the tables of rare pairs."""
    fill(PAGE, "pairs", table_of(rows, "auc", PAIR_DATA, PAIR_METHODS), directory)
    fill(PAGE, "pairs-first", table_of(rows, "first", PAIR_DATA, PAIR_METHODS), directory)
    render_cost(rows, directory)


def render_cost(rows: Sequence[Mapping[str, str]], directory: Path = PAGES) -> None:
    """Fill the table of processor time: the least of the seeds, and that with pairs as a multiple of that without."""
    lines = []
    for data in PAIR_DATA:
        of_data = [row for row in rows if row["data"] == data]
        found = [
            min((float(row["seconds"]) for row in of_data if row["method"] == method), default=0.0)
            for method in CLEAN_METHODS
        ]
        if all(found):
            lines.append([data, *(f"{seconds:.2f}" for seconds in found), f"{found[0] / found[1]:.2f}"])
    fill(PAGE, "pairs-cost", markdown(["", *CLEAN_METHODS, "ratio"], lines), directory)


def render_clean(rows: Sequence[Mapping[str, str]], directory: Path = PAGES) -> None:
    """Fill the table of false alarms: rows flagged in 1,000."""
    known = [data for data in CLEAN_DATA if any(row["data"] == data for row in rows)]
    found = [[1000 * mean_of(rows, "alarms", data=data, method=method) for method in CLEAN_METHODS] for data in known]
    found.append([mean(column) for column in zip(*found, strict=True)])
    lines = [[name, *(f"{v:.1f}" for v in own)] for name, own in zip([*known, "mean"], found, strict=True)]
    fill(PAGE, "clean", markdown(["", *CLEAN_METHODS], lines), directory)


def render_all(directory: Path, pages: Path) -> None:
    """Fill the page from the files."""
    for name, show in (("mixed", render), ("mixed-pairs", render_pairs), ("mixed-clean", render_clean)):
        of_rows(show, name)(directory, pages)


def measure_all(options: Namespace, directory: Path) -> None:
    """Measure what the file lacks."""
    results = Results("mixed", KEYS, directory)
    results.forget_methods(options.again, OURS)
    n_seeds = 1 if options.quick else N_SEEDS
    run(results, QUICK_DATA if options.quick else DATA, n_seeds)
    run_pairs(directory, QUICK_PAIRS if options.quick else PAIR_DATA, n_seeds, options.again)


BENCHMARK = Benchmark(
    measure_all,
    render_all,
    quick="two tables and one seed",
    options={"--again": again({**METHODS, **PAIR_METHODS})},
    peers=("isotree", "pyod"),
)
