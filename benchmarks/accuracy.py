"""Accuracy on the paper's data sets: AUC, average precision and processor time of each method.

Writes results/accuracy.csv, a row per data set, method and seed, and fills docs/benchmarks/paper-tables.md. A run
resumes where it was interrupted. Each measurement runs in its own process with a time limit; if it exceeds the limit or
fails, the row gives the reason. Small data sets run first, and every data set runs with one seed before the next seed.
"""

from __future__ import annotations

import itertools
import multiprocessing
import resource
import signal
import sys
import time
import warnings
from argparse import Namespace
from collections.abc import Container, Iterable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.metrics import average_precision_score, roc_auc_score
from threadpoolctl import threadpool_limits
from tqdm import tqdm

from benchmarks.registry import Benchmark, of_rows, only
from benchmarks.shared import paper
from benchmarks.shared.methods import DETERMINISTIC, FORESTS, METHODS, OURS, Method, warm_up
from benchmarks.shared.pages import PAGES, fill, table
from benchmarks.shared.results import Results
from polyaforest.datasets import ALTERNATIVES, SERIES, TABLES, load, load_series, shingled

PAGE = "paper-tables"
KEYS = ("data", "method", "seed")
N_SEEDS = 5
LIMIT = 300
PATIENCE = 10  # limit of wall-clock time as a multiple of that of processor time, for a busy machine
TOO_LONG = "took longer than"
QUICK_METHODS = ("bMPF", "sMPF", "iForest", "PIDForest")
QUICK_DATA = ("wine", "lympho", "glass", "vertebral", "ecoli", "wbc", "ionosphere", "breastw", "pima")
QUICK_SEEDS = 2

BATCH = ("bMPF", "bMPF paper", "iForest", "PIDForest")
STREAMING = ("sMPF", "sMPF paper", "rrcf", "krcf")
# The column of the paper's table next to a method
PRINTED = {"bMPF paper": "bMPF", "iForest": "iForest", "PIDForest": "PIDForest", "sMPF paper": "sMPF", "rrcf": "rrcf"}
MOST = 0.8  # a method that finished fewer of the data sets is not compared with the others

Sets = Mapping[str, tuple[np.ndarray, np.ndarray]]


class Task(NamedTuple):
    """One measurement to be made."""

    data: str
    method: str
    seed: int


def measure(method: Method, X: np.ndarray, y: np.ndarray, seed: int) -> dict[str, Any]:
    """Return AUC, average precision and processor seconds of a method on one data set."""
    start = time.process_time()
    scores = method(X, seed)
    seconds = time.process_time() - start
    return {
        "auc": float(roc_auc_score(y, scores)),
        "ap": float(average_precision_score(y, scores)),
        "seconds": seconds,
        "reason": "",
    }


def measure_apart(method: Method, X: np.ndarray, y: np.ndarray, seed: int, limit: int) -> dict[str, Any]:
    """Measure in a separate process, limited to `limit` processor seconds and `PATIENCE` times that in all."""
    fork = multiprocessing.get_context("fork")  # the child has the data and the compiled code already
    receiver, sender = fork.Pipe(duplex=False)
    child = fork.Process(target=_report, args=(sender, method, X, y, seed, limit))
    with warnings.catch_warnings():
        # Python 3.12 warns that locks held by other threads stay locked in the child: ours only computes and reports
        warnings.simplefilter("ignore", DeprecationWarning)
        child.start()
    sender.close()
    try:
        is_done = receiver.poll(PATIENCE * limit)
        outcome = receiver.recv() if is_done else failure(f"{TOO_LONG} {PATIENCE * limit} s in all")
    except EOFError:
        child.join()
        is_slow = child.exitcode == -signal.SIGXCPU
        outcome = failure(f"{TOO_LONG} {limit} s" if is_slow else f"its process ended with code {child.exitcode}")
    finally:
        child.kill()
        child.join()
        receiver.close()
    return outcome


def _report(sender: Connection, method: Method, X: np.ndarray, y: np.ndarray, seed: int, limit: int) -> None:
    """Send what was measured, or why it could not be."""
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # libraries warn of duplicates, constant features, their own future
            sender.send(measure(method, X, y, seed))
    except Exception as error:
        sender.send(failure(f"{type(error).__name__}: {error}"))


def failure(reason: str) -> dict[str, Any]:
    """Return the columns of a failed measurement."""
    return {"auc": "", "ap": "", "seconds": "", "reason": " ".join(reason.split())[:200]}


def plan(sets: Sets, methods: Iterable[str], seeds: int) -> list[Task]:
    """Return all measurements, by seed, small data sets first; deterministic methods have one seed."""
    sizes = {name: X.size for name, (X, _) in sets.items()}
    tasks = [
        Task(data, method, seed)
        for data in sets
        for method in methods
        for seed in range(1 if method in DETERMINISTIC else seeds)
    ]
    return sorted(tasks, key=lambda task: (task.seed, sizes[task.data]))


def run(sets: Sets, methods: Mapping[str, Method], seeds: int, limit: int, results: Results) -> None:
    """Make the measurements that `results` does not have yet."""
    tasks = [task for task in plan(sets, methods, seeds) if task not in results]
    slow = {(row["data"], row["method"]) for row in results if row["reason"].startswith(TOO_LONG)}
    progress = tqdm(tasks, file=sys.stderr, mininterval=5)
    for task in progress:
        progress.set_postfix_str(f"{task.data}, {task.method}, seed {task.seed}", refresh=False)
        if (task.data, task.method) in slow:
            outcome = failure("another seed took too long")
        else:
            outcome = measure_apart(methods[task.method], *sets[task.data], task.seed, limit)
        if outcome["reason"].startswith(TOO_LONG):
            slow.add((task.data, task.method))
        results.add({**task._asdict(), **outcome})


def load_sets(names: Iterable[str]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return raw tables, and series as windows of ten values labelled by the first."""
    loaded = (shingled(load_series(name), 10) if name in SERIES else load(name) for name in names)
    return {data.name: (np.ascontiguousarray(data.X, dtype=np.float64), data.y) for data in loaded}


def frame(rows: Iterable[Mapping[str, str]], measure: str = "auc") -> pd.DataFrame:
    """Return a measure with a row for each data set and seed and a column for each method; NaN where there is none."""
    long = pd.DataFrame(rows)
    long[measure] = pd.to_numeric(long[measure])
    wide = long.astype({"seed": int}).pivot(index=["data", "seed"], columns="method", values=measure)
    once = [method for method in wide if method in DETERMINISTIC]
    wide[once] = wide[once].groupby("data").transform("first")
    return wide[[method for method in METHODS if method in wide]]


def render(rows: Sequence[Mapping[str, str]], directory: Path = PAGES) -> None:
    """Fill the page from the rows of the file."""
    auc, ap = frame(rows, "auc"), frame(rows, "ap")
    blocks = {
        "auc-batch": comparison(auc, BATCH),
        "auc-streaming": comparison(auc, STREAMING),
        "alternatives": alternatives(auc),
        "below-print": below_print(auc),
        "average-precision": means(ap, [*OURS, *FORESTS]),
        "classical": classical(auc),
        "peers": peers(auc, ap),
        "unfinished": unfinished(rows),
        "remarks": "\n".join(f"[^{name}]: {text}" for name, text in paper.REMARKS.items()),
    }
    for block, text in blocks.items():
        fill(PAGE, block, text, directory)


def comparison(auc: pd.DataFrame, methods: Sequence[str]) -> str:
    """Return mean ± standard deviation over the seeds next to the paper's figures, with means and wins below."""
    methods = [method for method in methods if method in auc]
    auc = auc[methods]
    mean, sd = per_set(auc), auc.groupby("data").std()
    compared = [name for name in mean.dropna().index if None not in paper.AUC.get(name, (None,))]
    columns = {"data set": [*map(marked, ordered(mean)), f"mean of {len(compared)} sets", "sets won"]}
    for method in methods:
        cells = [in_bold(mean, name, method, sd.loc[name, method]) for name in ordered(mean)]
        columns[titled(method)] = [*cells, _mean(mean.loc[compared, method]), is_best(mean.dropna())[method].sum()]
        if method in PRINTED:
            printed = {name: pairs[paper.METHODS.index(PRINTED[method])] for name, pairs in paper.AUC.items()}
            cells = [_italic(printed.get(name)) for name in ordered(mean)]
            average = _mean(pd.Series([printed[name][0] for name in compared]))
            columns[f"*{PRINTED[method]}, printed*"] = [*cells, f"*{average}*", ""]
    return table(list(columns), zip(*columns.values(), strict=True))


def below_print(auc: pd.DataFrame) -> str:
    """Return where our forests are more than two standard deviations below the paper's figures.

    The spread is the larger of the paper's and ours, and at least what its three decimals leave open.
    """
    mean, sd = per_set(auc), auc.groupby("data").std().fillna(0.0)
    lines = []
    for ours, name in itertools.product(("bMPF", "sMPF"), ordered(mean)):
        printed = paper.AUC.get(name, (None,) * len(paper.METHODS))[paper.METHODS.index(ours)]
        methods = [method for method in (ours, f"{ours} paper") if printed and method in mean]
        least = {method: printed[0] - 2 * max(printed[1], sd.loc[name, method], 0.0005) for method in methods}
        cells = [f"{mean.loc[name, m]:.3f}{' below' if mean.loc[name, m] < least[m] else ''}" for m in methods]
        if any("below" in cell for cell in cells):
            lines.append([ours, marked(name), _italic(printed), *cells])
    return table(["", "data set", "*printed*", "by default", "in the paper's setting"], lines)


def alternatives(auc: pd.DataFrame) -> str:
    """Return the results on other versions of two of the paper's data sets."""
    methods = [method for method in (*OURS, "iForest", "PIDForest", "rrcf") if method in auc]
    mean = per_set(auc[methods], ALTERNATIVES)
    rows = [[f"`{name}`", *(in_bold(mean, name, method) for method in methods)] for name in mean.index]
    return table(["data set", *map(titled, methods)], rows)


def means(values: pd.DataFrame, methods: Iterable[str]) -> str:
    """Return means over the seeds, the best of each data set in bold."""
    methods = [method for method in methods if method in values]
    mean = per_set(values[methods])
    rows = [[marked(name), *(in_bold(mean, name, method) for method in methods)] for name in ordered(mean)]
    last = [f"mean of {len(mean.dropna())} sets", *(_mean(mean.dropna()[method]) for method in methods)]
    return table(["data set", *map(titled, methods)], [*rows, last])


def classical(auc: pd.DataFrame) -> str:
    """Compare methods that are not forests with the paper's figures for them, and find the headings that fit best."""
    mean = per_set(auc[[method for method in paper.CLASSICAL_METHODS if method in auc]])
    mean = mean.reindex(index=list(paper.CLASSICAL), columns=list(paper.CLASSICAL_METHODS))
    header, rows = ["data set"], [[marked(name)] for name in paper.CLASSICAL]
    for column, method in enumerate(paper.CLASSICAL_METHODS):
        header += [method, f"*{method}, printed*"]
        for row, (name, printed) in zip(rows, paper.CLASSICAL.items(), strict=True):
            row += [in_bold(mean, name, method), f"*{printed[column]:.3f}*"]
    as_printed = _misfit(mean, paper.CLASSICAL_METHODS)
    best = min(itertools.permutations(paper.CLASSICAL_METHODS), key=lambda headings: _misfit(mean, headings))
    remark = (
        f"Printed and measured figures differ by {as_printed:.3f} on average. "
        f"With the printed headings read as {', '.join(best)} it would be {_misfit(mean, best):.3f}."
    )
    return f"{table(header, rows)}\n\n{remark}"


def _misfit(mean: pd.DataFrame, headings: Sequence[str]) -> float:
    """Return the mean absolute difference from the paper's classical table if its columns have these headings."""
    printed = pd.DataFrame.from_dict(paper.CLASSICAL, orient="index", columns=list(headings))
    return float((mean - printed).abs().stack().mean())


def peers(auc: pd.DataFrame, ap: pd.DataFrame) -> str:
    """Return a table of all methods over the data sets that all of them finished."""
    mean = per_set(auc)
    methods = [method for method in mean if mean[method].notna().mean() >= MOST]
    common = mean[methods].dropna()
    precision = per_set(ap)[methods].loc[common.index]
    ranks = common.rank(axis=1, ascending=False).mean()
    rows = [
        [
            titled(method),
            _mean(common[method]),
            _mean(precision[method]),
            f"{ranks[method]:.2f}",
            is_best(common)[method].sum(),
            mean[method].notna().sum(),
        ]
        for method in common.mean().sort_values(ascending=False).index
    ]
    header = ["method", "mean AUC", "mean average precision", "mean rank by AUC", "sets won", "sets finished"]
    missing = [name for name in ordered(mean) if name not in common.index]
    remark = f"Over {len(common)} of {len(mean)} sets" + (f", without {', '.join(missing)}." if missing else ".")
    return f"{remark}\n\n{table(header, rows)}"


def unfinished(rows: Iterable[Mapping[str, str]]) -> str:
    """Return what took too long or failed, and why."""
    reasons = {(row["method"], row["data"]): row["reason"] for row in rows if row["reason"] and row["seed"] == "0"}
    if not reasons:
        return "Every method finished on every data set."
    return table(["method", "data set", "reason"], [[*names, reason] for names, reason in sorted(reasons.items())])


def per_set(values: pd.DataFrame, names: Container[str] | None = None) -> pd.DataFrame:
    """Return means over the seeds: of these data sets, or of all but the alternative versions."""
    mean = values.groupby("data").mean()
    return mean[[(name in names) if names else (name not in ALTERNATIVES) for name in mean.index]]


def ordered(mean: pd.DataFrame) -> list[str]:
    """Return names of data sets in the paper's order, then the others."""
    return [name for name in paper.AUC if name in mean.index] + [name for name in mean.index if name not in paper.AUC]


def is_best(mean: pd.DataFrame) -> pd.DataFrame:
    """Return whether a method is the best of its row, to the three printed decimals."""
    rounded = mean.round(3)
    return rounded.eq(rounded.max(axis=1), axis=0)


def marked(name: str) -> str:
    """Return the name of a data set, with a mark where there is a remark on it."""
    return f"{name}[^{name}]" if name in paper.REMARKS else name


def titled(method: str) -> str:
    """Return the name of a method as a heading."""
    return method.replace(" paper", ", paper's setting")


def in_bold(mean: pd.DataFrame, name: str, method: str, sd: float = np.nan) -> str:
    """Return a mean (± a standard deviation), bold where it is the best of its row; a dash where there is none."""
    value = mean.loc[name, method]
    if np.isnan(value):
        return "–"
    text = f"{value:.3f}" if np.isnan(sd) else f"{value:.3f} ± {sd:.3f}"
    return f"**{text}**" if is_best(mean.loc[[name]]).loc[name, method] else text


def _italic(pair: paper.Pair | None) -> str:
    return f"*{pair[0]:.3f} ± {pair[1]:.3f}*" if pair else "–"


def _mean(values: pd.Series) -> str:
    return f"{values.mean():.3f}" if len(values) else "–"


def measure_all(options: Namespace, directory: Path) -> None:
    """Measure what the file lacks of these methods on these data sets."""
    if options.quick:
        options.methods, options.seeds, options.data = QUICK_METHODS, QUICK_SEEDS, QUICK_DATA
    results = Results("accuracy", KEYS, directory)
    for method in options.methods if options.again else ():
        results.forget(method=method)
    warm_up(options.methods)
    methods = {name: METHODS[name] for name in options.methods}
    with threadpool_limits(1):
        run(load_sets(options.data), methods, options.seeds, options.limit, results)


BENCHMARK = Benchmark(
    measure_all,
    of_rows(render, "accuracy"),
    quick="small tables, few methods, two seeds",
    options={
        "--methods": only(METHODS),
        "--data": {"nargs": "+", "default": [*TABLES, *SERIES], "metavar": "NAME"},
        "--seeds": {"type": int, "default": N_SEEDS, "help": "how many"},
        "--limit": {"type": int, "default": LIMIT, "help": "processor seconds for one measurement"},
        "--again": {"action": "store_true", "help": "measure these methods again"},
    },
    peers=("isotree", "krcf", "pyod", "rrcf"),
)
