"""Missing values: accuracy that each detector retains, and error of the values that each method fills in.

Values are hidden at random, in the rows to score or in the rows to fit as well. Writes results/missing.csv, a row per
task, data set, setting, share hidden, method and seed (of the mask and of the method), and fills
docs/benchmarks/missing.md. A run resumes where it was interrupted; `--again` measures methods again.
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
from sklearn.impute import KNNImputer, SimpleImputer
from sklearn.preprocessing import StandardScaler
from tqdm import tqdm

from benchmarks.registry import Benchmark, again, of_rows
from benchmarks.shared.metrics import auc
from benchmarks.shared.pages import PAGES, fill, table
from benchmarks.shared.results import Results, picked
from polyaforest import BatchMPF, StreamingMPF
from polyaforest.datasets import load

Array = np.ndarray
Method = Callable[[Array, Array, int], Array]  # of rows to fit, rows with gaps and a seed: scores, or rows filled in

PAGE = "missing"
KEYS = ("task", "data", "setting", "rate", "method", "seed")
N_SEEDS = 3
RATES = (10, 30)  # per cent of the values
SETTINGS = ("scored", "both")  # whether values are hidden in the rows to score alone, or in the fitted rows too
# For detectors also: nothing hidden, the same columns missing in all rows to score, and rows that were not fitted
CONTROLS = (("none", 0), ("columns", 30), ("new", 30))
DETECTED = ("wine", "glass", "vertebral", "ecoli", "wbc", "ionosphere", "breastw", "pima", "cardio", "thyroid")
FILLED = ("wine", "glass", "pima", "ionosphere", "cardio", "vertebral", "ecoli", "wbc")
QUICK_DATA = ("wine", "glass")
OURS = ("sMPF", "bMPF", "sMPF, marginalised", "sMPF, filled by impute", "sMPF, filled by column means")

# What isotree's documentation says may be better for imputing: cuts by gain, the best of ten, in trees of all rows
GUIDED: dict[str, Any] = {
    "ndim": 2,
    "sample_size": None,
    "max_depth": None,
    "ntrees": 200,
    "missing_action": "impute",
    "coefs": "normal",
    "ntry": 10,
    "prob_pick_pooled_gain": 1,
}


class Task(NamedTuple):
    """One measurement to be made."""

    task: str
    data: str
    setting: str
    rate: int
    method: str
    seed: int


# ---- detectors -------------------------------------------------------------------------------------------------------


def by_forest(X: Array, gappy: Array, seed: int, *, detector: type, **parameters: Any) -> Array:
    """Return the scores of one of our forests."""
    return -detector(random_state=seed, **parameters).fit(X).score_samples(gappy)


def by_filling_forest(X: Array, gappy: Array, seed: int) -> Array:
    """Return the scores of our streaming forest for rows that it has imputed."""
    forest = StreamingMPF(random_state=seed).fit(X)
    return -forest.score_samples(forest.impute(gappy))


def by_filling(X: Array, gappy: Array, seed: int) -> Array:
    """Return the scores of our streaming forest for rows filled with column means."""
    filler = SimpleImputer().fit(X)
    return -StreamingMPF(random_state=seed).fit(filler.transform(X)).score_samples(filler.transform(gappy))


def by_isotree(X: Array, gappy: Array, seed: int, **parameters: Any) -> Array:
    """Return the scores of an isotree model, on one thread; it may modify its input."""
    forest = import_module("isotree").IsolationForest(random_seed=seed, nthreads=1, **parameters)
    return forest.fit(X.copy()).predict(gappy.copy())


DETECTORS: dict[str, Method] = {
    "sMPF": partial(by_forest, detector=StreamingMPF),
    "bMPF": partial(by_forest, detector=BatchMPF),
    "sMPF, marginalised": partial(by_forest, detector=StreamingMPF, missing="marginalise"),
    "sMPF, filled by impute": by_filling_forest,
    "sMPF, filled by column means": by_filling,
    "isotree, impute": partial(by_isotree, missing_action="impute"),
    "isotree, divide": partial(by_isotree, ndim=1, missing_action="divide"),
}


# ---- imputers --------------------------------------------------------------------------------------------------------


def impute_by_forest(X: Array, gappy: Array, seed: int, *, detector: type) -> Array:
    """Impute rows by one of our forests."""
    return detector(random_state=seed).fit(X).impute(gappy)


def impute_by_isotree(X: Array, gappy: Array, seed: int, **parameters: Any) -> Array:
    """Impute rows by an isotree model."""
    forest = import_module("isotree").IsolationForest(random_seed=seed, nthreads=1, build_imputer=True, **parameters)
    return forest.fit(X.copy()).transform(gappy.copy())


def impute_by_neighbours(X: Array, gappy: Array, seed: int) -> Array:
    """Impute rows by the mean of five neighbours, by distance in standardised features."""
    scaler = StandardScaler().fit(X)
    filled = KNNImputer().fit(scaler.transform(X)).transform(scaler.transform(gappy))
    return scaler.inverse_transform(filled)


def impute_by_means(X: Array, gappy: Array, seed: int) -> Array:
    """Impute rows by column means."""
    return SimpleImputer().fit(X).transform(gappy)


IMPUTERS: dict[str, Method] = {
    "sMPF": partial(impute_by_forest, detector=StreamingMPF),
    "bMPF": partial(impute_by_forest, detector=BatchMPF),
    "isotree": impute_by_isotree,
    "isotree, guided": partial(impute_by_isotree, **GUIDED),
    "5 neighbours": impute_by_neighbours,
    "column mean": impute_by_means,
}
TASKS = {"detect": (DETECTED, DETECTORS), "impute": (FILLED, IMPUTERS)}


# ---- measuring -------------------------------------------------------------------------------------------------------


def mask(X: Array, rate: int, rng: np.random.Generator) -> Array:
    """Return a copy of rows with a share of their values hidden at random; every column keeps at least one."""
    hidden = rng.random(X.shape) < rate / 100
    hidden[0, hidden.all(axis=0)] = False
    return np.where(hidden, np.nan, X)


def hide_columns(X: Array, rate: int, rng: np.random.Generator) -> Array:
    """Return a copy of rows that all lack the same share of columns, at least one."""
    gappy = X.copy()
    gappy[:, rng.permutation(X.shape[1])[: max(round(rate / 100 * X.shape[1]), 1)]] = np.nan
    return gappy


def detection(X: Array, y: Array, setting: str, rate: int, method: Method, seed: int) -> float:
    """Return the AUC on a table with gaps, fitted on itself or on the same rows without gaps.

    In the setting "new" one half of the rows is fitted, without gaps, and the other is scored.
    """
    rng = np.random.default_rng(seed)
    gappy = hide_columns(X, rate, rng) if setting == "columns" else mask(X, rate, rng)
    if setting == "new":
        order = rng.permutation(len(X))
        return auc(y[order[1::2]], method(X[order[::2]], gappy[order[1::2]], seed))
    return auc(y, method(gappy if setting == "both" else X, gappy, seed))


def imputation(X: Array, setting: str, rate: int, method: Method, seed: int) -> float:
    """Return the root mean squared error of imputed values, in standard deviations of their columns.

    One half of the rows is fitted, the other has gaps to fill; columns that are constant do not count.
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(X))
    fitted, asked = X[order[::2]], X[order[1::2]]
    gappy = mask(asked, rate, rng)
    filled = method(mask(fitted, rate, rng) if setting == "both" else fitted, gappy, seed)
    deviation = X.std(axis=0)
    counts = np.isnan(gappy) & (deviation > 0)
    return float(np.sqrt(np.mean(((filled - asked) / np.where(deviation > 0, deviation, 1.0))[counts] ** 2)))


def measure(task: Task) -> float:
    """Return the AUC of a detector, or the error of an imputer."""
    data, method = load(task.data), TASKS[task.task][1][task.method]
    if task.task == "detect":
        return detection(data.X, data.y, task.setting, task.rate, method, task.seed)
    return imputation(data.X, task.setting, task.rate, method, task.seed)


def tasks_of(n_seeds: int, names: Iterable[str] | None = None) -> list[Task]:
    """Return all measurements."""
    tasks = []
    for task, (sets, methods) in TASKS.items():
        chosen = [data for data in sets if names is None or data in names]
        hidden = [(setting, rate) for setting in SETTINGS for rate in RATES]
        more = list(CONTROLS) if task == "detect" else []
        tasks += [
            Task(task, data, setting, rate, method, seed)
            for seed in range(n_seeds)
            for data in chosen
            for setting, rate in more + hidden
            for method in methods
        ]
    return tasks


def run(results: Results, tasks: Iterable[Task]) -> None:
    """Measure what the file lacks."""
    for task in tqdm([task for task in tasks if task not in results], disable=None):
        results.add({**task._asdict(), "value": measure(task)})


# ---- the page --------------------------------------------------------------------------------------------------------


def summary_table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return mean AUC over data sets and seeds by what was hidden, the best of each column in bold."""
    columns = [CONTROLS[0], *((setting, rate) for setting in SETTINGS for rate in RATES), *CONTROLS[1:]]
    heads = {
        "none": "nothing hidden",
        "scored": "% of values to score",
        "both": "% of all values",
        "columns": "% of columns to score",
        "new": "% of values of new rows",
    }
    header = ["", *(f"{rate} {heads[setting]}" if rate else heads[setting] for setting, rate in columns)]
    found = {
        method: [
            mean(picked(rows, "value", task="detect", setting=setting, rate=rate, method=method))
            for setting, rate in columns
        ]
        for method in DETECTORS
    }
    best = [max(round(values[c], 3) for values in found.values()) for c in range(len(columns))]
    return table(header, [[method, *map(emphasised, values, best)] for method, values in found.items()])


def sets_table(
    rows: Sequence[Mapping[str, str]], task: str, setting: str, rate: int, best: Callable[..., float]
) -> str:
    """Return means over seeds by data set and method, the best of each in bold, and their mean."""
    sets, methods = TASKS[task]
    lines = []
    for data in [data for data in sets if picked(rows, "value", task=task, data=data)]:
        values = [
            mean(picked(rows, "value", task=task, data=data, setting=setting, rate=rate, method=m)) for m in methods
        ]
        top = best(round(value, 3) for value in values)
        lines.append([data, *(emphasised(value, top) for value in values)])
    means = [mean(picked(rows, "value", task=task, setting=setting, rate=rate, method=method)) for method in methods]
    top = best(round(value, 3) for value in means)
    return table(["", *methods], [*lines, ["mean of the sets", *(emphasised(value, top) for value in means)]])


def emphasised(value: float, best: float) -> str:
    """Return a figure, bold where it is the best."""
    return f"**{value:.3f}**" if round(value, 3) == best else f"{value:.3f}"


def render(rows: Sequence[Mapping[str, str]], directory: Path = PAGES) -> None:
    """Fill the tables of the page from the rows of the file."""
    fill(PAGE, "summary", summary_table(rows), directory)
    for setting in SETTINGS:
        fill(PAGE, f"detect-{setting}", sets_table(rows, "detect", setting, 30, max), directory)
        for rate in RATES:
            fill(PAGE, f"impute-{setting}-{rate}", sets_table(rows, "impute", setting, rate, min), directory)


def measure_all(options: Namespace, directory: Path) -> None:
    """Measure what the file lacks."""
    results = Results("missing", KEYS, directory)
    results.forget_methods(options.again, OURS)
    run(results, tasks_of(1, QUICK_DATA) if options.quick else tasks_of(N_SEEDS))


BENCHMARK = Benchmark(
    measure_all,
    of_rows(render, "missing"),
    quick="two small sets and one seed",
    options={"--again": again(DETECTORS | IMPUTERS)},
    peers=("isotree",),
)
