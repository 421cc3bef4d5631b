"""Single features: detection of rows that are anomalous in one feature alone, and its cost.

A row far out in one feature of several, a change in a column that was constant or nearly so, and false alarms on clean
data of several kinds, flagged by `StreamingMPF` with its defaults and by the same score without margins. Writes
results/single-features.csv, a row per task, data, score and seed, and fills docs/benchmarks/single-features.md. A run
resumes where it was interrupted.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from time import perf_counter
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from benchmarks.registry import Benchmark, of_rows
from benchmarks.shared.metrics import auc
from benchmarks.shared.pages import PAGES, fill, table
from benchmarks.shared.results import Results
from polyaforest import StreamingMPF, datasets

Array = np.ndarray
Draw = Callable[[np.random.Generator, int, int], Array]  # of rows and features

PAGE = "single-features"
KEYS = ("task", "data", "score", "seed")
N_SEEDS = 5
SCORES = {"margins": "default", "typicality": "without margins"}
N_FITTED, N_ODD, N_CLEAN = 2000, 300, 5000
WIDTHS, DEVIATIONS = (1, 3, 10, 30), (4, 5, 6)
WAYS = ("table", "stream")  # new rows for a table that was fitted, and for a stream with a window of 1,024
# The values of a column, from a number of rows, and one that it never has
DEPARTURES: dict[str, tuple[Callable[[np.random.Generator, int], Array], float]] = {
    "always 7, then 7.1": (lambda _, n: np.full(n, 7.0), 7.1),
    "always 0, then 0.01": (lambda _, n: np.zeros(n), 0.01),
    "always 1,000,000, then 1,000,001": (lambda _, n: np.full(n, 1e6), 1e6 + 1),
    "code 3, then 4": (lambda _, n: np.full(n, 3.0), 4.0),
    "7 but for one row in 200 with 8, then 9": (lambda rng, n: np.where(rng.random(n) < 0.005, 8.0, 7.0), 9.0),
    "7 but for noise of 0.001, then 7.1": (lambda rng, n: rng.normal(7.0, 0.001, n), 7.1),
}
CLEAN: dict[str, Draw] = {
    "Gaussian": lambda rng, n, d: rng.normal(size=(n, d)),
    "one factor": lambda rng, n, d: rng.normal(size=(n, 1)) + 0.3 * rng.normal(size=(n, d)),
    "Student, 4 degrees": lambda rng, n, d: rng.standard_t(4, size=(n, d)),
    "log-normal": lambda rng, n, d: np.exp(rng.normal(size=(n, d))),
    "counts (Poisson, 0.1)": lambda rng, n, d: rng.poisson(0.1, size=(n, d)).astype(float),
    "rare flags (1 in 200)": lambda rng, n, d: (rng.random((n, d)) < 0.005).astype(float),
    "rare flags (1 in 2,000)": lambda rng, n, d: (rng.random((n, d)) < 0.0005).astype(float),
}
TABLES = (
    *("thyroid", "mammography", "seismic", "satimage-2", "vowels", "annthyroid", "breastw", "cardio", "ecoli", "glass"),
    *(
        "ionosphere",
        "letter",
        "mnist",
        "optdigits",
        "pendigits",
        "pima",
        "satellite",
        "vertebral",
        "wbc",
        "wine",
        "yeast",
    ),
)
QUICK = {"outlier 10 5 table", "departure always 7, then 7.1", "clean Gaussian 10", "table wine"}


class Task(NamedTuple):
    """One measurement to be made."""

    task: str
    data: str
    score: str
    seed: int


# ---- measuring -------------------------------------------------------------------------------------------------------


def detector_of(way: str, score: str, seed: int, rows: Array) -> StreamingMPF:
    """Return a detector that has learned rows, as a table or as a stream."""
    if way == "table":
        return StreamingMPF(score_type=score, random_state=seed).fit(rows)
    stream = StreamingMPF(score_type=score, window=1024, random_state=seed)
    stream.detect_then_learn(rows)
    return stream


def outliers(width: int, deviations: int, way: str, score: str, seed: int) -> float:
    """Return the share flagged of rows that are some standard deviations off in one random feature."""
    rng = np.random.default_rng(seed)
    detector = detector_of(way, score, seed, rng.normal(size=(N_FITTED, width)))
    odd = rng.normal(size=(N_ODD, width))
    odd[np.arange(N_ODD), rng.integers(0, width, N_ODD)] = deviations * rng.choice([-1.0, 1.0], N_ODD)
    return float((detector.predict(odd) == -1).mean())


def departures(name: str, score: str, seed: int) -> float:
    """Return the share of rows flagged for a value that one of six columns never had."""
    rng = np.random.default_rng(seed)
    draw, value = DEPARTURES[name]
    known = np.column_stack([rng.normal(size=(N_FITTED, 5)), draw(rng, N_FITTED)])
    odd = np.column_stack([rng.normal(size=(N_ODD, 5)), np.full(N_ODD, value)])
    return float((StreamingMPF(score_type=score, random_state=seed).fit(known).predict(odd) == -1).mean())


def false_alarms(name: str, width: int, score: str, seed: int) -> float:
    """Return the share of normal, new rows flagged."""
    rng = np.random.default_rng(seed)
    detector = StreamingMPF(score_type=score, random_state=seed).fit(CLEAN[name](rng, N_FITTED, width))
    return float((detector.predict(CLEAN[name](rng, N_CLEAN, width)) == -1).mean())


def tables(name: str, score: str, seed: int) -> dict[str, float]:
    """Return the AUC on one of the paper's tables, and the shares of normal and anomalous rows flagged."""
    data = datasets.load(name)
    detector = StreamingMPF(score_type=score, random_state=seed).fit(data.X)
    scores = detector.score_samples(data.X)
    flagged = scores < detector.offset_
    return {
        "value": auc(data.y, -scores),
        "false": float(flagged[data.y == 0].mean()),
        "found": float(flagged[data.y == 1].mean()),
    }


def seconds(part: str, score: str, seed: int) -> float:
    """Return the seconds that a fit of 100,000 rows, scoring them, or a stream of 20,000 takes; ten features."""
    rows = np.random.default_rng(seed).normal(size=(100_000, 10))
    detector = StreamingMPF(score_type=score, random_state=seed)
    if part == "stream":
        detector.set_params(window=1024).partial_fit(rows[:2000])
    elif part == "score":
        detector.fit(rows)
    started = perf_counter()
    if part == "stream":
        detector.detect_then_learn(rows[2000:22_000])
    else:
        detector.fit(rows) if part == "fit" else detector.score_samples(rows)
    return perf_counter() - started


def measure(task: Task) -> dict[str, float]:
    """Return the figures of a task."""
    if task.task == "outlier":
        width, deviations, way = task.data.split()
        return {"value": outliers(int(width), int(deviations), way, task.score, task.seed)}
    if task.task == "departure":
        return {"value": departures(task.data, task.score, task.seed)}
    if task.task == "clean":
        name, _, width = task.data.rpartition(" ")
        return {"value": false_alarms(name, int(width), task.score, task.seed)}
    if task.task == "seconds":
        return {"value": seconds(task.data, task.score, task.seed)}
    return tables(task.data, task.score, task.seed)


def tasks_of(n_seeds: int) -> list[Task]:
    """Return all there is to measure."""
    data = [("outlier", f"{width} {far} {way}") for width in WIDTHS for far in DEVIATIONS for way in WAYS]
    data += [("departure", name) for name in DEPARTURES]
    data += [("clean", f"{name} {width}") for name in CLEAN for width in (3, 10, 30)]
    data += [("table", name) for name in TABLES]
    data += [("seconds", part) for part in ("fit", "score", "stream")]
    return [Task(task, name, score, seed) for seed in range(n_seeds) for task, name in data for score in SCORES]


def run(results: Results, tasks: Iterable[Task]) -> None:
    """Measure what the file lacks."""
    for task in tqdm([task for task in tasks if task not in results], disable=None):
        found = {"value": np.nan, "false": np.nan, "found": np.nan} | measure(task)
        results.add({**task._asdict(), **found})


# ---- the page --------------------------------------------------------------------------------------------------------


def picked(rows: Iterable[Mapping[str, str]], column: str = "value", **wanted: str) -> float:
    """Return the mean of a column over the rows that match, NaN if there are none."""
    found = [float(row[column]) for row in rows if all(row[key] == value for key, value in wanted.items())]
    return mean(found) if found else float("nan")


def outlier_table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return the shares flagged of rows off in one feature."""
    lines = []
    for way in WAYS:
        for score, name in SCORES.items():
            cells = [
                f"{picked(rows, task='outlier', data=f'{width} {far} {way}', score=score):.2f}"
                for far in DEVIATIONS
                for width in WIDTHS
            ]
            lines.append([f"{way}, {name}", *cells])
    return table(["", *(f"{far} sd, 1 of {width}" for far in DEVIATIONS for width in WIDTHS)], lines)


def pairs_table(
    rows: Sequence[Mapping[str, str]], task: str, names: Mapping[str, str], digits: int, factor: int
) -> str:
    """Return a line for each of some data, with both scores side by side."""
    cells = [
        [name, *(f"{factor * picked(rows, task=task, data=data, score=score):.{digits}f}" for score in SCORES)]
        for data, name in names.items()
    ]
    return table(["", *SCORES.values()], cells)


def tables_table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return the means over the paper's tables."""
    lines = [
        [name, *(f"{picked(rows, column, task='table', score=score):.4f}" for column in ("value", "false", "found"))]
        for score, name in SCORES.items()
    ]
    return table(["", "AUC", "normal rows flagged", "odd rows flagged"], lines)


def render(rows: Sequence[Mapping[str, str]], directory: Path = PAGES) -> None:
    """Fill the tables of the page from the rows of the file."""
    fill(PAGE, "outliers", outlier_table(rows), directory)
    fill(PAGE, "departures", pairs_table(rows, "departure", {name: name for name in DEPARTURES}, 2, 1), directory)
    clean = {f"{name} {width}": f"{name}, {width}" for name in CLEAN for width in (3, 10, 30)}
    fill(PAGE, "clean", pairs_table(rows, "clean", clean, 2, 100), directory)
    fill(PAGE, "tables", tables_table(rows), directory)
    parts = {"fit": "fit 100,000 rows", "score": "score 100,000 rows", "stream": "score and learn 20,000 rows"}
    fill(PAGE, "seconds", pairs_table(rows, "seconds", parts, 3, 1), directory)


def measure_all(options: Namespace, directory: Path) -> None:
    """Measure what the file lacks."""
    tasks = tasks_of(1 if options.quick else N_SEEDS)
    kept = [task for task in tasks if not options.quick or f"{task.task} {task.data}" in QUICK]
    run(Results(PAGE, KEYS, directory), kept)


BENCHMARK = Benchmark(measure_all, of_rows(render, PAGE), quick="a few data sets and one seed")
