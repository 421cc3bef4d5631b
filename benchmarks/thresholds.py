"""Threshold rules: which rows they flag, compared on the same scores of StreamingMPF.

Writes results/thresholds.csv, a row per task, data set, rule and seed, and fills docs/benchmarks/thresholds.md. A run
resumes where it was interrupted.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import inf, log2
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from benchmarks.registry import Benchmark, of_rows
from benchmarks.shared.pages import PAGES, fill, table
from benchmarks.shared.results import Results
from polyaforest import StreamingMPF, datasets
from polyaforest.forest.thresholds import ThresholdPolicy

Array = np.ndarray
Rule = Callable[[Array], float]  # from ascending log-scores to the one below which rows are flagged
Rows = tuple[Array, Array]  # rows, and which of them are anomalies

PAGE = "thresholds"
KEYS = ("task", "data", "rule", "seed")
N_SEEDS = 5
RATE = 0.001  # share of normal rows that a rule about the tail lets fall below its threshold
SIZES, WIDTHS = (50, 100, 300, 1000, 10_000, 50_000), (1, 3, 10)
SHARES = (0.01, 0.05, 0.1, 0.2, 0.3)  # anomalies in a flooded table
BURSTS = (0.0, 0.02, 0.05, 0.1)  # anomalies in a row, as shares of the last thousand
N_ROWS, N_STREAM, N_RECENT, START, BURST_AT = 5000, 6000, 1000, 1000, 3000
QUICK_TABLES, QUICK_STREAM = ("wine", "glass", "ecoli"), 3200


# ---- rules -----------------------------------------------------------------------------------------------------------


def quartile_rule(ascending: Array) -> float:
    """Place `RATE` log2(0.5 / RATE) steps below the median; a step is the median minus the lower quartile."""
    finite = ascending[np.isfinite(ascending)]
    if not finite.size:
        return -inf
    quartile, median = np.quantile(finite, [0.25, 0.5])
    step = median - quartile
    if step <= 0:  # ties down to the quartile: the mean excess of an exponential tail gives the same step
        step = 2 * np.log(2) * np.maximum(median - finite, 0).mean()
    return float(median - log2(0.5 / RATE) * step)


def hundredth_rule(ascending: Array) -> float:
    """Return the lowest hundredth, or all below `quartile_rule`, whichever are more: what `predict` once did."""
    return max(float(np.quantile(ascending, 0.01, method="lower")), quartile_rule(ascending))


def stream_rule(ascending: Array) -> float:
    """Return the lower of two: by median and quartile, and by the lowest eighth and 32nd: what streams once did."""
    n = len(ascending)
    if n < 100:
        return -inf
    least, eighth, quartile, median = (float(ascending[n // part]) for part in (32, 8, 4, 2))
    if least == -inf:
        return -inf
    by_tail = least - log2(1 / 32 / RATE) * (eighth - least) / 2
    by_bulk = median - log2(0.5 / RATE) * (median - quartile)
    return min(by_tail, by_bulk) if median > quartile else by_tail


RULES: dict[str, Rule] = {
    "hundredth": hundredth_rule,
    "quartile": quartile_rule,
    "tail": ThresholdPolicy().threshold,
    "old stream": stream_rule,
    "conformal 0.001": ThresholdPolicy(false_alarm_rate=0.001).threshold,
    "conformal 0.01": ThresholdPolicy(false_alarm_rate=0.01).threshold,
}
DETECTOR = "detector"  # what StreamingMPF itself flags: the tail rule, on scores of rows that it has not learned
COLUMNS = (*RULES, DETECTOR)


# ---- data ------------------------------------------------------------------------------------------------------------


def clean(rows: Array) -> Rows:
    """Return rows without anomalies."""
    return rows, np.zeros(len(rows), bool)


def gauss(rng: np.random.Generator, n: int, n_features: int) -> Rows:
    """Draw standard normal rows."""
    return clean(rng.normal(size=(n, n_features)))


SHAPES: dict[str, Callable[[np.random.Generator, int], Array]] = {
    "Student's t, 3 degrees": lambda rng, n: rng.standard_t(3, size=(n, 3)),
    "lognormal": lambda rng, n: rng.lognormal(size=(n, 3)),
    "counts": lambda rng, n: rng.poisson(2, size=(n, 3)).astype(float),
    "uniform": lambda rng, n: rng.uniform(size=(n, 3)),
    "mostly zeros": lambda rng, n: np.where(rng.random((n, 3)) < 0.7, 0, rng.normal(size=(n, 3))),
}


def shape(rng: np.random.Generator, name: str) -> Rows:
    """Draw rows of a distribution that is not normal."""
    return clean(SHAPES[name](rng, N_ROWS))


def flood(rng: np.random.Generator, kind: str, share: float) -> Rows:
    """Draw normal rows, a share of them replaced by a small cluster elsewhere or by rows scattered all over."""
    n = int(N_ROWS * share)
    X, y = rng.normal(size=(N_ROWS, 3)), np.arange(N_ROWS) < n
    X[:n] = rng.normal([5, 5, -5], 0.2, size=(n, 3)) if kind == "clustered" else rng.uniform(-10, 10, size=(n, 3))
    return X, y


def real(rng: np.random.Generator, name: str) -> Rows:
    """Return a table of the paper."""
    data = datasets.load(name)
    return data.X, data.y.astype(bool)


def autoregressive(rng: np.random.Generator, n: int) -> Array:
    """Draw three series in which each value keeps nine tenths of the previous one."""
    noise = rng.normal(size=(n, 3))
    for i in range(1, n):
        noise[i] += 0.9 * noise[i - 1]
    return noise


STREAMS: dict[str, Callable[[np.random.Generator, int], Array]] = {
    "normal": lambda rng, n: rng.normal(size=(n, 3)),
    "Student's t, 3 degrees": SHAPES["Student's t, 3 degrees"],
    "lognormal": SHAPES["lognormal"],
    "autoregressive": autoregressive,
    "counts": SHAPES["counts"],
}


def stream(rng: np.random.Generator, kind: str, burst: float, n: int = N_STREAM) -> Rows:
    """Return a stream in which some rows after another are moved by twenty standard deviations."""
    X = STREAMS[kind](rng, n)
    y = (np.arange(n) >= BURST_AT) & (np.arange(n) < BURST_AT + round(burst * N_RECENT))
    X[y] += 20 * X.std(axis=0)
    return X, y


# ---- measuring -------------------------------------------------------------------------------------------------------


class Task(NamedTuple):
    """Data for all rules."""

    task: str
    data: str
    make: Callable[[np.random.Generator], Rows]
    seed: int


def verdicts_on_table(X: Array, seed: int) -> Iterator[tuple[str, Array]]:
    """Yield what each rule flags of the rows of a table."""
    forest = StreamingMPF(random_state=seed).fit(X)
    scores = forest.score_samples(X)
    ascending = np.sort(scores)
    for name, rule in RULES.items():
        yield name, scores < rule(ascending)
    yield DETECTOR, scores < forest.offset_


def verdicts_on_stream(X: Array, seed: int) -> Iterator[tuple[str, Array]]:
    """Yield what each rule flags of the rows of a stream, by the scores of the last thousand before each."""
    detected = StreamingMPF(window=256, random_state=seed).detect_then_learn(X)
    scores, flagged = detected.scores, {name: np.zeros(len(X), bool) for name in RULES}
    for i in range(START, len(X)):
        ascending = np.sort(scores[i - N_RECENT : i])
        for name, rule in RULES.items():
            flagged[name][i] = scores[i] < rule(ascending)
    yield from flagged.items()
    yield DETECTOR, detected.is_anomaly


def tasks_of(n_seeds: int, *, is_quick: bool = False) -> Iterator[Task]:
    """Yield all there is to measure."""
    sizes, n_stream = (SIZES[:4], QUICK_STREAM) if is_quick else (SIZES, N_STREAM)
    for seed in range(n_seeds):
        for name in QUICK_TABLES if is_quick else sorted(datasets.TABLES):
            yield Task("table", name, partial(real, name=name), seed)
        for n in sizes:
            for n_features in WIDTHS:
                yield Task("clean", f"{n} x {n_features}", partial(gauss, n=n, n_features=n_features), seed)
        for name in SHAPES:
            yield Task("shape", name, partial(shape, name=name), seed)
        for kind in ("clustered", "scattered"):
            for share in SHARES:
                yield Task("flood", f"{share:.0%} {kind}", partial(flood, kind=kind, share=share), seed)
        for name in STREAMS:
            for burst in BURSTS:
                make = partial(stream, kind=name, burst=burst, n=n_stream)
                yield Task("stream", f"{name}, {burst:.0%}", make, seed)


def figures(flagged: Array, y: Array) -> dict[str, float]:
    """Return the shares of all and of normal rows that are flagged, precision, recall and F1; NaN if undefined."""
    n_hit, n_flagged, n_odd = int((flagged & y).sum()), int(flagged.sum()), int(y.sum())
    return {
        "flagged": n_flagged / len(y),
        "false": float(flagged[~y].mean()),
        "precision": n_hit / n_flagged if n_flagged else np.nan,
        "recall": n_hit / n_odd if n_odd else np.nan,
        "f1": 2 * n_hit / (n_flagged + n_odd) if n_odd else np.nan,
    }


def run(results: Results, tasks: Iterable[Task]) -> None:
    """Measure what the file lacks."""
    missing = [task for task in tasks if (task.task, task.data, DETECTOR, task.seed) not in results]
    for task in tqdm(missing, disable=None):
        X, y = task.make(np.random.default_rng([task.seed, len(task.data), sum(map(ord, task.data))]))
        is_stream = task.task == "stream"
        start = START if is_stream else 0
        for rule, flagged in (verdicts_on_stream if is_stream else verdicts_on_table)(X, task.seed):
            row = {"task": task.task, "data": task.data, "rule": rule, "seed": task.seed}
            results.add({**row, **figures(flagged[start:], y[start:])})


# ---- the page --------------------------------------------------------------------------------------------------------


def averaged(rows: Iterable[Mapping[str, str]], column: str, **wanted: str) -> float:
    """Return the mean of a column over the rows that match and have a value, NaN if none has."""
    found = [float(row[column]) for row in rows if all(row[key] == value for key, value in wanted.items())]
    known = [value for value in found if value == value]  # noqa: PLR0124 -- NaN is not equal to itself
    return mean(known) if known else np.nan


def names_of(rows: Iterable[Mapping[str, str]], task: str) -> list[str]:
    """Return the data of a task, in the order of the file."""
    return list(dict.fromkeys(row["data"] for row in rows if row["task"] == task))


def percent(share: float) -> str:
    """Return a share in per cent."""
    return f"{100 * share:.2f}"


def figure(value: float) -> str:
    """Return a figure, or a dash where it is undefined."""
    return "–" if np.isnan(value) else f"{value:.2f}"


def tables_summary(rows: Sequence[Mapping[str, str]]) -> str:
    """Return means over the paper's tables by rule."""
    lines = [
        [
            rule,
            f"{averaged(rows, 'f1', task='table', rule=rule):.3f}",
            figure(averaged(rows, "precision", task="table", rule=rule)),
            figure(averaged(rows, "recall", task="table", rule=rule)),
            percent(averaged(rows, "flagged", task="table", rule=rule)),
        ]
        for rule in COLUMNS
    ]
    return table(["rule", "F1", "precision", "recall", "% flagged"], lines)


def table_of(rows: Sequence[Mapping[str, str]], task: str, cell: Callable[..., str]) -> str:
    """Return means over the seeds by data and rule."""
    return table(
        ["", *COLUMNS],
        [[name, *(cell(rows, task=task, data=name, rule=rule) for rule in COLUMNS)] for name in names_of(rows, task)],
    )


def false_cell(rows: Sequence[Mapping[str, str]], **wanted: str) -> str:
    """Return normal rows that are flagged, in per cent."""
    return percent(averaged(rows, "false", **wanted))


def f1_cell(rows: Sequence[Mapping[str, str]], **wanted: str) -> str:
    """Return F1."""
    return figure(averaged(rows, "f1", **wanted))


def flood_cell(rows: Sequence[Mapping[str, str]], **wanted: str) -> str:
    """Return recall and precision."""
    return " / ".join(figure(averaged(rows, column, **wanted)) for column in ("recall", "precision"))


def stream_cell(rows: Sequence[Mapping[str, str]], **wanted: str) -> str:
    """Return normal rows that are flagged, in per cent, and the share of the burst that is found."""
    return f"{false_cell(rows, **wanted)} / {figure(averaged(rows, 'recall', **wanted))}"


BLOCKS: dict[str, tuple[str, Callable[..., str]]] = {
    "tables": ("table", f1_cell),
    "clean": ("clean", false_cell),
    "shapes": ("shape", false_cell),
    "floods": ("flood", flood_cell),
    "streams": ("stream", stream_cell),
}


def render(rows: Sequence[Mapping[str, str]], directory: Path = PAGES) -> None:
    """Fill the tables of the page from the rows of the file."""
    fill(PAGE, "summary", tables_summary(rows), directory)
    for block, (task, cell) in BLOCKS.items():
        fill(PAGE, block, table_of(rows, task, cell), directory)


def measure_all(options: Namespace, directory: Path) -> None:
    """Measure what the file lacks."""
    run(Results("thresholds", KEYS, directory), tasks_of(1, is_quick=True) if options.quick else tasks_of(N_SEEDS))


BENCHMARK = Benchmark(
    measure_all, of_rows(render, "thresholds"), quick="three small tables, short streams and one seed"
)
