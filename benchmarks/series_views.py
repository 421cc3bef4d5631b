"""Contribution of each view of a series: accuracy of `SeriesMPF()` without one view, or with one alone.

Scores by view are recorded while the detector runs, and then combined. Writes results/series-views.csv and fills a
table of docs/benchmarks/series.md. A run resumes where it was interrupted.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.registry import Benchmark
from benchmarks.series import HALVES, Case, evaluate, load_all, mean_of_families, pieces
from benchmarks.shared.pages import PAGES, fill, table
from benchmarks.shared.results import RESULTS, Results, read
from polyaforest import SeriesMPF, StreamingMPF
from polyaforest.series.views import Views

Array = NDArray[Any]

VIEWS = ("change", "shape", "season", "rhythm")
SEED = 0


@contextmanager
def recorded() -> Iterator[list[Array]]:
    """Record the scores by each view whenever they are combined."""
    original, parts = Views.mean, []

    def mean(views: Any, scores: Any) -> Any:
        parts.append(np.array(scores))
        return original(views, scores)

    Views.mean = mean  # type: ignore[method-assign]
    try:
        yield parts
    finally:
        Views.mean = original  # type: ignore[method-assign]


def surprises(values: Array) -> Array:
    """Return the surprise of each step by each view, (4, n), NaN where there is none; scored, then learned."""
    with recorded() as parts:
        scores = SeriesMPF(StreamingMPF(random_state=SEED)).score_then_learn(values)
    by_view = np.full((len(VIEWS), len(scores)), np.nan)
    by_view[:, ~np.isnan(scores)] = -np.concatenate(parts, axis=1)
    return by_view


def combinations() -> dict[str, list[int]]:
    """Return the views of each combination."""
    every = list(range(len(VIEWS)))
    without = {f"without {name}": [v for v in every if v != k] for k, name in enumerate(VIEWS)}
    return {"all four": every, **without, **{f"{name} alone": [k] for k, name in enumerate(VIEWS)}}


def measure(cases: list[Case], results: Results) -> None:
    """Measure all combinations on all series that have none yet."""
    for case in cases:
        wanted = [name for name in combinations() if (name, case.family, case.name) not in results]
        if not wanted or not case.y.any():
            continue
        by_view = surprises(case.values)
        for name in wanted:
            found = evaluate(by_view[combinations()[name]].mean(axis=0)[case.start :], case.y[case.start :])
            place = {"detector": name, "family": case.family, "series": case.name, "half": case.half}
            results.add({**place, **found})
        print(f"{case.family} {case.name}", flush=True)


def views_table(rows: list[dict[str, str]]) -> str:
    """Return the mean over families of each combination, for both halves."""
    columns = [(half, measure) for half in reversed(HALVES) for measure in ("vus_pr", "auc_pr")]
    header = ["", *(f"{measure.replace('_', '-').upper()}, {half}" for half, measure in columns)]
    lines = [
        [name, *(f"{mean_of_families(rows, name, half, measure):.3f}" for half, measure in columns)]
        for name in combinations()
    ]
    return table(header, lines)


def render(results: Path = RESULTS, pages: Path = PAGES) -> None:
    """Write the table of the page from the CSV file."""
    fill("series", "views", views_table(read(results / "series-views.csv")), pages)


def measure_all(options: Namespace, directory: Path) -> None:
    """Measure all series that have no results yet."""
    cases = pieces(load_all()) if options.quick else load_all()
    measure(cases, Results("series-views", ("detector", "family", "series"), directory))


BENCHMARK = Benchmark(measure_all, render, quick="a piece of one series of each family")
