"""Forecasts of `SeriesMPF` next to naive forecasts: error, coverage and width of the band.

The series are those of the benchmark `series`. The evaluation is prequential: the detector learns a stretch, forecasts
the next steps, learns them, and so on. Writes results/forecasts.csv and fills docs/benchmarks/forecasts.md. A run
resumes where it was interrupted.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.registry import Benchmark
from benchmarks.series import Case, load_all, pieces
from benchmarks.shared.pages import PAGES, fill, table
from benchmarks.shared.results import RESULTS, Results, read
from polyaforest import SeriesMPF, StreamingMPF

Array = NDArray[Any]

HORIZONS = (1, 2, 4, 8)
ORIGINS = 40  # of forecasts in a series
MOST_STEPS = 5000  # the last steps of a series: more would take long without new information
WARM_UP = 512  # steps learned before the first forecast
NAIVE = {"last": "last value", "period": "last period", "both": "mean of both"}
OWN = {"mean": "polyaforest, mean", "median": "polyaforest, median"}
METHODS = OWN | NAIVE
LEVEL = 0.9  # of the band
SEED = 0


def forecasts(values: Array) -> Iterator[tuple[int, dict[str, Array], Array, Array]]:
    """Yield where each forecast was made, all forecasts, and the ends of the band; arrays of (horizons, channels)."""
    detector, steps = SeriesMPF(StreamingMPF(random_state=SEED)), max(HORIZONS)
    places = np.array(HORIZONS) - 1
    origins = np.unique(np.linspace(min(WARM_UP, len(values) // 2), len(values) - steps, ORIGINS).astype(int))
    learned = 0
    for origin in origins.tolist():
        detector.partial_fit(values[learned:origin])
        learned = origin
        try:
            found = detector.forecast(steps)
        except ValueError:  # too few readings since a gap, or in all
            continue
        last = np.tile(values[origin - 1], (len(HORIZONS), 1))
        before = last
        if detector.periods_ and origin >= detector.periods_[0]:
            period = detector.periods_[0]
            before = values[[origin + place - period * (place // period + 1) for place in places.tolist()]]
        made = {"mean": found.mean[places], "median": found.median[places], "last": last, "period": before}
        yield origin, made | {"both": (last + before) / 2}, found.low[places], found.high[places]


def measure(case: Case) -> list[dict[str, Any]]:
    """Return the mean errors of a series by horizon, in units of that of the last value, over channels that vary."""
    values = case.values[-MOST_STEPS:]
    channels = [c for c in range(values.shape[1]) if len(np.unique(values[:, c])) > 2]
    errors: dict[str, list[Array]] = {name: [] for name in METHODS}
    inside, widths = [], []
    for origin, made, low, high in forecasts(values):
        actual = values[origin + np.array(HORIZONS) - 1]
        for name, forecast in made.items():
            errors[name].append(np.abs(forecast - actual))
        inside.append((low <= actual) & (actual <= high))
        widths.append(high - low)
    if not inside or not channels:
        return []
    sizes = {name: np.mean(found, axis=0)[:, channels] for name, found in errors.items()}
    is_scaled = sizes["last"] > 0
    rows = []
    for k, horizon in enumerate(HORIZONS):
        own = is_scaled[k]
        if own.any():
            scale = sizes["last"][k, own]
            scaled = {name: float(np.mean(size[k, own] / scale)) for name, size in sizes.items()}
            width = float(np.mean(np.mean(widths, axis=0)[k, channels][own] / scale))
            coverage = float(np.mean(np.mean(inside, axis=0)[k, channels]))
            rows.append({"horizon": horizon, **scaled, "coverage": coverage, "width": width, "n": len(inside)})
    return rows


def run(cases: Sequence[Case], results: Results) -> None:
    """Measure all series that have no results yet."""
    for case in cases:
        if (case.family, case.name, HORIZONS[-1]) in results:
            continue
        for row in measure(case):
            results.add({"family": case.family, "series": case.name, **row})
        print(f"{case.family} {case.name}", flush=True)


# ---- the page --------------------------------------------------------------------------------------------------------

Rows = Sequence[dict[str, str]]


def of_family(rows: Rows, family: str, horizon: int, column: str) -> list[float]:
    """Return the values of a column for the series of a family, at a horizon."""
    return [float(row[column]) for row in rows if row["family"] == family and int(row["horizon"]) == horizon]


def families_of(rows: Rows) -> list[str]:
    """Return the families that have results."""
    return sorted({row["family"] for row in rows})


def over_families(rows: Rows, horizon: int, column: str) -> float:
    """Return the mean over families of the median over series: single series can be off by any factor."""
    values = (of_family(rows, family, horizon, column) for family in families_of(rows))
    return mean(median(own) for own in values if own)


def summary_table(rows: Rows) -> str:
    """Return the errors of all methods by horizon, and how good the band is."""
    lines = [
        [title, *(f"{over_families(rows, horizon, name):.2f}" for horizon in HORIZONS)]
        for name, title in METHODS.items()
    ]
    for column, title in (("coverage", f"in the band of {LEVEL:.0%}"), ("width", "width of the band")):
        lines.append([title, *(f"{over_families(rows, horizon, column):.2f}" for horizon in HORIZONS)])
    return table(["steps ahead", *map(str, HORIZONS)], lines)


def family_table(rows: Rows, horizon: int) -> str:
    """Return the errors and the coverage by family, and in how many series the best naive forecast is ahead."""
    header = ["", "series", *METHODS.values(), f"in the band of {LEVEL:.0%}", "width", "behind the best naive one"]

    def line(family: str) -> list[str]:
        own = [row for row in rows if row["family"] == family and int(row["horizon"]) == horizon]
        n_behind = sum(float(row["median"]) > min(float(row[name]) for name in NAIVE) for row in own)
        columns = (*METHODS, "coverage", "width")
        numbers = [f"{median(float(row[column]) for row in own):.2f}" for column in columns]
        return [family, str(len(own)), *numbers, f"{n_behind} of {len(own)}"]

    return table(header, map(line, families_of([row for row in rows if int(row["horizon"]) == horizon])))


def losses_table(rows: Rows, horizon: int = 1, most: int = 10) -> str:
    """Return the series in which the forecast is farthest behind the best naive one."""

    def excess(row: dict[str, str]) -> float:
        return float(row["median"]) / max(min(float(row[name]) for name in NAIVE), 1e-9)

    own = sorted((row for row in rows if int(row["horizon"]) == horizon), key=excess, reverse=True)[:most]
    columns = (*METHODS, "coverage")
    lines = [[f"{row['family']} {row['series']}", *(f"{float(row[name]):.2f}" for name in columns)] for row in own]
    return table(["series", *METHODS.values(), f"in the band of {LEVEL:.0%}"], lines)


def render(results: Path = RESULTS, pages: Path = PAGES) -> None:
    """Write the tables of the page from the CSV file."""
    rows = read(results / "forecasts.csv")
    fill("forecasts", "summary", summary_table(rows), pages)
    fill("forecasts", "first", family_table(rows, HORIZONS[0]), pages)
    fill("forecasts", "last", family_table(rows, HORIZONS[-1]), pages)
    fill("forecasts", "losses", losses_table(rows), pages)


def measure_all(options: Namespace, directory: Path) -> None:
    """Measure all series that have no results yet."""
    cases = pieces(load_all()) if options.quick else load_all()
    run(cases, Results("forecasts", ("family", "series", "horizon"), directory))


BENCHMARK = Benchmark(measure_all, render, quick="a piece of one series of each family")
