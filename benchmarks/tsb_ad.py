"""TSB-AD: the published VUS-PR of 32 detectors beside ours, live and with the whole file.

Live, each reading is scored before it is learned; in a file, the detector learns all readings before it scores them, as
most of the published detectors do. Writes results/tsb-ad.csv and fills docs/benchmarks/tsb-ad.md. A run resumes where
it was interrupted.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.registry import Benchmark, again, of_rows, only
from benchmarks.series import filled
from benchmarks.shared.metrics import vus_pr
from benchmarks.shared.pages import PAGES, fill, table
from benchmarks.shared.results import RESULTS, Results, read
from benchmarks.shared.series_detectors import SEED
from polyaforest import SeriesMPF, StreamingMPF
from polyaforest.datasets import data_directory

Array = NDArray[Any]
Rows = Sequence[dict[str, str]]

ABOUT = ("file", "family", "source", "n", "window")  # columns of the published table that are no detectors
QUICK = 2  # series in a quick run: the shortest


# ---- modes -----------------------------------------------------------------------------------------------------------


def live(values: Array) -> Array:
    """Score each reading, then learn it."""
    return -SeriesMPF(StreamingMPF(random_state=SEED)).score_then_learn(values)


def whole_file(values: Array) -> Array:
    """Learn all readings, then score each by those on both sides."""
    return -SeriesMPF(StreamingMPF(random_state=SEED)).fit(values).score_samples(values, standalone=True)


def contexts_live(values: Array) -> Array:
    """Score each reading by its context window alone, then learn it."""
    return -SeriesMPF(StreamingMPF(random_state=SEED), short_memory=False).score_then_learn(values)


def contexts_in_file(values: Array) -> Array:
    """Learn all readings, then score each by its context window alone."""
    series = SeriesMPF(StreamingMPF(random_state=SEED), short_memory=False).fit(values)
    return -series.score_samples(values, standalone=True)


MODES: dict[str, Callable[[Array], Array]] = {
    "polyaforest, live": live,
    "polyaforest, file": whole_file,
    "polyaforest, context windows, live": contexts_live,
    "polyaforest, context windows, file": contexts_in_file,
}


# ---- series ----------------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """A series with its labels and the published results."""

    name: str
    family: str
    values: Array  # (n, 1)
    y: Array
    window: int  # of the metric
    published: dict[str, float]  # VUS-PR by detector


def load_all() -> list[Case]:
    """Return all series of the published table."""
    directory = data_directory()
    if directory is None or not (directory / "tsb-ad").is_dir():
        raise FileNotFoundError("no series found: set POLYAFOREST_DATA to a directory with tsb-ad/series.npz")
    with np.load(directory / "tsb-ad" / "series.npz") as arrays:
        return [case_of(row, arrays) for row in read(directory / "tsb-ad" / "published.csv")]


def case_of(row: dict[str, str], arrays: Any) -> Case:
    """Return the series of a row of the published table."""
    number = row["file"].partition("_")[0]
    values, y = arrays[f"{number}/v"].astype(float).reshape(-1, 1), arrays[f"{number}/y"] != 0
    published = {name: float(value) for name, value in row.items() if name not in ABOUT}
    return Case(number, row["family"], values, y, int(row["window"]), published)


def measure(cases: Sequence[Case], results: Results, modes: Sequence[str]) -> None:
    """Add the results of all series that have none yet: the published ones, and those of our modes."""
    for case in cases:
        place = {"series": case.name, "family": case.family}
        for name, value in case.published.items():
            if (name, case.name) not in results:
                results.add({"detector": name, **place, "vus_pr": value, "seconds": ""})
        for name in modes:
            if (name, case.name) not in results:
                begun = time.perf_counter()
                scores = MODES[name](case.values)
                seconds = time.perf_counter() - begun
                value = vus_pr(case.y, filled(scores), buffer=case.window)
                results.add({"detector": name, **place, "vus_pr": value, "seconds": seconds})
                print(f"{name}, {case.name}: {value:.3f}, {seconds:.1f} s", flush=True)


# ---- the page --------------------------------------------------------------------------------------------------------


def results_table(rows: Rows) -> str:
    """Return the mean VUS-PR of each detector over all series and by family, best first."""
    families = sorted({row["family"] for row in rows})
    values: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        values.setdefault(row["detector"], {}).setdefault(row["family"], []).append(float(row["vus_pr"]))
    sizes = {name: sum(map(len, own.values())) for name, own in values.items()}
    means = {name: mean(v for own in values[name].values() for v in own) for name in values}

    def line(name: str) -> list[str]:
        by_family = [f"{mean(values[name][family]):.3f}" for family in families]
        return [f"**{name}**" if name in MODES else name, f"{means[name]:.3f}", *by_family]

    whole = [name for name in values if sizes[name] == max(sizes.values())]  # an interrupted run has fewer series
    counts = [f"{family} ({len(next(iter(values.values()))[family])})" for family in families]
    return table(["", "mean", *counts], map(line, sorted(whole, key=lambda name: -means[name])))


def render(rows: Rows, pages: Path = PAGES) -> None:
    """Fill the table of the page."""
    fill("tsb-ad", "results", results_table(rows), pages)


def measure_all(options: Namespace, directory: Path = RESULTS) -> None:
    """Run our modes on all series that they have no results of."""
    results = Results("tsb-ad", ("detector", "series"), directory)
    results.forget_methods(options.again, MODES, "detector")
    cases = load_all()
    if options.quick:
        cases = sorted(cases, key=lambda case: len(case.values))[:QUICK]
    measure(cases, results, options.mode)


BENCHMARK = Benchmark(
    measure_all,
    of_rows(render, "tsb-ad"),
    quick="the two shortest series",
    options={"--mode": only(MODES), "--again": again(MODES)},
)
