"""Alarms on time series: events found, delay of the first alarm, and alarms per event.

`SeriesMPF()` uses its own threshold; every other detector gets the threshold at which it raises equally many alarms in
a series. Flagged steps that are close together are one alarm, at the first of them. Scores are those of the benchmark
`series`, from its cache if it has them. Writes results/series-alarms.csv and fills a table of
docs/benchmarks/series.md. A run resumes where it was interrupted.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.registry import Benchmark
from benchmarks.series import MERGED, OWN_ALARMS, Bench, Case, alarms, bench_of, filled, marked
from benchmarks.shared.pages import PAGES, fill, table
from benchmarks.shared.results import RESULTS, Results, read
from benchmarks.shared.series_detectors import DETECTORS, PEERS

Array = NDArray[Any]

FINER = 1.1  # factor between the numbers of flagged steps that are tried
SLOW = ("matrix profile", "left matrix profile", "Sub-KNN", "rcf3", "polyaforest, raw shingle of 10")


def stretches(y: Array) -> list[tuple[int, int]]:
    """Return the first and last step of each labelled stretch."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], y != 0, [0]]).astype(int)))
    return [(int(first), int(end) - 1) for first, end in edges.reshape(-1, 2)]


def first_steps(flagged: Array) -> Array:
    """Return the first of the flagged steps that are near each other."""
    return flagged[np.diff(flagged, prepend=-MERGED - 1) > MERGED]


def as_many_alarms(scores: Array, n: int) -> Array:
    """Return the steps of `n` alarms, or as many as possible, by lowering a threshold."""
    ranked, n_flagged, found = np.argsort(-filled(scores), kind="stable"), 1.0, np.empty(0, np.int64)
    while len(found) < n and n_flagged <= len(ranked):
        found = first_steps(np.sort(ranked[: int(n_flagged)]))
        n_flagged = max(n_flagged * FINER, n_flagged + 1)
    return found[:n]


def alarm_counts(steps: Array, y: Array) -> dict[str, Any]:
    """Return how many labelled stretches have an alarm, how late the first is, and how many alarms there are."""
    events = stretches(y)
    inside = [steps[(first <= steps) & (steps <= last)] for first, last in events]
    delays = [int(own[0]) - first for own, (first, _) in zip(inside, events, strict=True) if len(own)]
    return {
        "events": len(events),
        "found": len(delays),
        "delay": float(median(delays)) if delays else "",
        "alarms": len(steps),
        "inside": sum(map(len, inside)),
    }


def measure(bench: Bench, results: Results, names: Iterable[str]) -> None:
    """Count the alarms on all series that have no results yet."""
    for case in bench.cases:
        wanted = [name for name in (OWN_ALARMS, *names) if (name, case.family, case.name) not in results]
        if not wanted or not case.y.any():
            continue
        own = own_alarms(bench, case)
        for name in wanted:
            steps = own
            if name != OWN_ALARMS:
                steps = as_many_alarms(bench.run(name, case).scores[case.start :], len(own))
            place = {"detector": name, "family": case.family, "series": case.name, "half": case.half}
            results.add({**place, **alarm_counts(steps, case.y[case.start :])})
        print(f"{case.family} {case.name}", flush=True)


def own_alarms(bench: Bench, case: Case) -> Array:
    """Return the steps at which `SeriesMPF()` raises an alarm, from the first that counts; from the cache, if there."""
    file = bench.file(OWN_ALARMS, case)
    if file.exists():
        with np.load(file) as stored:
            return np.asarray(stored["steps"])
    steps = np.flatnonzero(alarms(case.values)[case.start :])
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(file, steps=steps)
    return steps


# ---- the page --------------------------------------------------------------------------------------------------------

Rows = Sequence[dict[str, str]]


def alarms_table(rows: Rows) -> str:
    """Return the share of events found by family, delays and alarms of each detector."""
    families = sorted({row["family"] for row in rows})

    def share(name: str, family: str) -> float:
        own = [row for row in rows if row["detector"] == name and row["family"] == family]
        return sum(int(row["found"]) for row in own) / sum(int(row["events"]) for row in own)

    def line(name: str) -> list[str]:
        own = [row for row in rows if row["detector"] == name]
        delays = [float(row["delay"]) for row in own if row["delay"]]
        n_found, n_alarms, n_inside = (sum(int(row[column]) for row in own) for column in ("found", "alarms", "inside"))
        found = [f"{share(name, family):.0%}" for family in families]
        each = f"{n_inside / n_found:.1f}" if n_found else ""
        title = name if name == OWN_ALARMS else marked(name)
        return [
            title,
            *found,
            f"{median(delays):.0f}" if delays else "",
            each,
            f"{n_alarms - n_inside:,}",
            f"{n_alarms:,}",
        ]

    names = [name for name in (OWN_ALARMS, *DETECTORS) if any(row["detector"] == name for row in rows)]
    names.sort(key=lambda name: (name != OWN_ALARMS, -mean(share(name, family) for family in families)))
    found = [f"events of {family} found" for family in families]
    header = ["", *found, "steps to the first alarm", "alarms in an event found", "alarms elsewhere", "alarms"]
    return table(header, map(line, names))


def render(results: Path = RESULTS, pages: Path = PAGES) -> None:
    """Write the table of the page from the CSV file."""
    fill("series", "alarms", alarms_table(read(results / "series-alarms.csv")), pages)


def measure_all(options: Namespace, directory: Path) -> None:
    """Count the alarms on all series that have no results yet."""
    bench = bench_of(options, directory)
    bench.cases = [case for case in bench.cases if not options.family or case.family in options.family]
    results = Results("series-alarms", ("detector", "family", "series"), directory)
    if options.again:
        results.forget()
        for case in bench.cases:
            bench.file(OWN_ALARMS, case).unlink(missing_ok=True)
    skipped = ("polyaforest", *(SLOW if options.skip_slow or options.quick else ()))
    measure(bench, results, [name for name in DETECTORS if name not in skipped])


BENCHMARK = Benchmark(
    measure_all,
    render,
    quick="a piece of one series of each family, without slow detectors",
    options={
        "--skip-slow": {"action": "store_true", "help": f"without {', '.join(SLOW)}, which take hours"},
        "--family": {"nargs": "+", "help": "only series of these families"},
        "--again": {"action": "store_true", "help": "remove all results, and run SeriesMPF again"},
    },
    peers=PEERS,
)
