"""Two-sample tests: power and false alarms of each test, and whether `compare` locates the change.

Writes results/drift-tables.csv, a row per change, test and trial, and results/drift-sizes.csv, a row per number of
rows; fills docs/benchmarks/drift-tables.md. A run resumes where it was interrupted.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from time import perf_counter

import numpy as np
from tqdm import tqdm

from benchmarks.baselines import two_samples
from benchmarks.registry import Benchmark, of_rows
from benchmarks.shared.pages import PAGES, fill, table
from benchmarks.shared.results import Results, picked
from polyaforest.drift import Comparison, compare

Array = np.ndarray
PAGE = "drift-tables"
KEYS = ("change", "method", "trial")
ALPHA = 0.05
N_TRIALS = 40
N_ROWS, N_FEATURES = 500, 10
SIZES = (1_000, 10_000, 100_000, 1_000_000)
TINY = 0.02  # standard deviations by which one of three features moves, in the table of sizes
OURS = "compare"
METHODS: dict[str, Callable[[Array, Array, int], float]] = {
    "KS": two_samples.ks_bonferroni,
    "MMD": two_samples.mmd,
    "energy": two_samples.energy,
    "LSDD": two_samples.lsdd,
    "classifier": two_samples.classifier,
    "never": two_samples.never,
    "always": two_samples.always,
}

# ---- changes ---------------------------------------------------------------------------------------------------------


def nothing(rows: Array, rng: np.random.Generator) -> Array:
    """Change nothing."""
    return rows


def mean_of_all(rows: Array, rng: np.random.Generator) -> Array:
    """Move all features a little."""
    return rows + 0.1


def mean_of_one(rows: Array, rng: np.random.Generator) -> Array:
    """Move one feature."""
    return rows + np.eye(rows.shape[1])[0] * 0.3


def variance(rows: Array, rng: np.random.Generator) -> Array:
    """Spread all features."""
    return rows * 1.12


def variance_of_one(rows: Array, rng: np.random.Generator) -> Array:
    """Spread one feature."""
    return rows * np.where(np.arange(rows.shape[1]) == 0, 1.5, 1.0)


def correlation(rows: Array, rng: np.random.Generator) -> Array:
    """Let two features depend on each other."""
    moved = rows.copy()
    moved[:, 1] = 0.6 * rows[:, 0] + 0.8 * rows[:, 1]
    return moved


def corner(rows: Array, rng: np.random.Generator) -> Array:
    """Move two rows in a hundred to a corner of two features."""
    moved = rows.copy()
    is_moved = np.arange(len(rows)) < 0.02 * len(rows)
    moved[np.ix_(is_moved, CORNER)] = 2.5 + 0.3 * rng.standard_normal((is_moved.sum(), 2))
    return moved


CORNER = (1, 3)
CORNERED = "a corner with 2 % of the rows"
LONG = 8  # times as many rows for a corner, of which there are few
CHANGES: dict[str, tuple[Callable[[Array, np.random.Generator], Array], int, int]] = {  # with rows and features
    "none": (nothing, N_ROWS, N_FEATURES),
    "none, 50 features": (nothing, 100, 50),
    "none, ties": (nothing, N_ROWS, 3),
    "mean of 1 feature of 1": (mean_of_one, 200, 1),
    "mean of 10 features": (mean_of_all, N_ROWS, N_FEATURES),
    "mean of 1 feature of 10": (mean_of_one, N_ROWS, N_FEATURES),
    "mean of 1 feature of 50": (mean_of_one, N_ROWS, 50),
    "variance of 10 features": (variance, N_ROWS, N_FEATURES),
    "variance of 1 feature of 10": (variance_of_one, N_ROWS, N_FEATURES),
    "correlation of 2 features of 10": (correlation, N_ROWS, N_FEATURES),
    CORNERED: (corner, LONG * N_ROWS, 5),
}


def draw(name: str, trial: int) -> tuple[Array, Array]:
    """Return the two samples of a trial."""
    change, n, d = CHANGES[name]
    rng = np.random.default_rng([7000 + list(CHANGES).index(name), trial])
    A, B = rng.standard_normal((2, n, d))
    B = change(B, rng)
    return (np.round(A), np.round(B)) if name.endswith("ties") else (A, B)


# ---- measuring -------------------------------------------------------------------------------------------------------


def run(results: Results, names: Iterable[str], n_trials: int) -> None:
    """Measure what the file lacks."""
    tasks = [(change, name, trial) for trial in range(n_trials) for change in CHANGES for name in names]
    for task in tqdm([task for task in tasks if task not in results], disable=None):
        change, name, trial = task
        A, B = draw(change, trial)
        began, located = perf_counter(), ""
        if name == OURS:
            most = 5 if change == CORNERED else 0  # regions, which take time
            options = {"n_permutations": two_samples.N_PERMUTATIONS, "max_regions": most, "alpha": ALPHA}
            found = compare(A, B, random_state=trial, **options)
            p_value, located = found.p_value, is_located(found)
        else:
            p_value = METHODS[name](A, B, trial)
        seconds = perf_counter() - began
        results.add({**dict(zip(KEYS, task, strict=True)), "p_value": p_value, "seconds": seconds, "located": located})


def is_located(found: Comparison) -> int:
    """Return how many of the two features of the corner the first region names; 0 if it names another one too."""
    named = {one.feature for one in found.regions[0].conditions} if found.regions else set()
    return len(named) if named <= set(CORNER) else 0


def run_sizes(results: Results, sizes: Sequence[int]) -> None:
    """Compare samples that differ by next to nothing, of more and more rows."""
    for n in sizes:
        if (n,) in results:
            continue
        rng = np.random.default_rng(n)
        A, B = rng.standard_normal((2, n, 3))
        B[:, 0] += TINY
        began = perf_counter()
        found = compare(A, B, random_state=0)
        low, high = found.total_variation[1:]
        facts = {"p_value": found.p_value, "log_bayes_factor": found.log_bayes_factor, "low": low, "high": high}
        results.add({"rows": n, **facts, "changed": int(found.is_changed), "seconds": perf_counter() - began})


# ---- the page --------------------------------------------------------------------------------------------------------


def rates_table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return how often each test finds a change, the best of the real tests in bold where there is a change."""
    names = [name for name in (OURS, *METHODS) if any(row["method"] == name for row in rows)]
    lines = []
    for change, (_, n, d) in CHANGES.items():
        rates = {name: mean(p <= ALPHA for p in picked(rows, "p_value", change=change, method=name)) for name in names}
        best = max(rate for name, rate in rates.items() if name not in ("never", "always"))
        is_null = change.startswith("none")
        is_best = {name: rate == best and not is_null and name != "always" for name, rate in rates.items()}
        cells = [f"**{rate:.2f}**" if is_best[name] else f"{rate:.2f}" for name, rate in rates.items()]
        lines.append([change, f"2 × {n:,} × {d}", *cells])
    n_trials = len(picked(rows, "p_value", change="none", method=OURS))
    times = [f"{median(picked(rows, 'seconds', method=name)):.2g}" for name in names]
    rates_of = f"change ({n_trials} trials)"
    return table([rates_of, "rows × features", *names], [*lines, ["seconds, median", "", *times]])


def corner_line(rows: Sequence[Mapping[str, str]]) -> str:
    """Return how often the corner is located."""
    found = picked(rows, "located", method=OURS, change=CORNERED)
    both, one = found.count(2), found.count(1)
    return (
        f"In {len(found)} trials the first region names the two features of the corner and no other {both} times, and "
        f"one of them alone {one} times."
    )


def sizes_table(rows: Iterable[Mapping[str, str]]) -> str:
    """Return the verdicts on a negligible difference."""
    lines = []
    for row in rows:
        low, high = (100 * float(row[end]) for end in ("low", "high"))
        verdict = "changed" if row["changed"] == "1" else "not changed"
        evidence = f"{float(row['log_bayes_factor']) / np.log(10):+.1f}"
        cells = [f"2 × {int(row['rows']):,}", row["p_value"], evidence, f"{low:.2f}–{high:.2f} %", verdict]
        lines.append([*cells, f"{float(row['seconds']):.0f}"])
    return table(["rows", "p", "log10 odds of two", "moved, at least", "verdict", "seconds"], lines)


def render(rows: Sequence[Mapping[str, str]], sizes: Sequence[Mapping[str, str]], directory: Path = PAGES) -> None:
    """Fill the tables of the page."""
    fill(PAGE, "rates", rates_table(rows), directory)
    fill(PAGE, "corner", corner_line(rows), directory)
    fill(PAGE, "sizes", sizes_table(sizes), directory)


def measure_all(options: Namespace, directory: Path) -> None:
    """Measure what the files lack."""
    run(Results("drift-tables", KEYS, directory), (OURS, *METHODS), 2 if options.quick else N_TRIALS)
    run_sizes(Results("drift-sizes", ("rows",), directory), SIZES[:1] if options.quick else SIZES)


BENCHMARK = Benchmark(measure_all, of_rows(render, "drift-tables", "drift-sizes"), quick="two trials and few rows")
