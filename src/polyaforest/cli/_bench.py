"""`polyaforest bench`: measure speed, and compare it with other detectors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import click

if TYPE_CHECKING:
    import numpy as np

    Rows: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

TREES, WINDOW = 100, 256  # of every detector that has trees and a window
_CHUNK = 64  # rows between readings of the clock


class Speed(NamedTuple):
    """Rows per second of a detector at a task."""

    task: str
    detector: str
    rows_per_second: float


_HELP = """Measure how many rows per second this machine fits, scores, streams and explains.

Compares with scikit-learn's isolation forest, and with river, rrcf and krcf if they are installed. All detectors have
100 trees, one thread, the same random rows and, if they have a window, 256 points. Compilation is not timed.
"""


@click.command(help=_HELP)
@click.option(
    "--rows", metavar="N", default=10_000, show_default=True, type=click.IntRange(1000), help="Number of rows."
)
@click.option(
    "--columns", metavar="N", default=10, show_default=True, type=click.IntRange(1), help="Number of columns."
)
@click.option("--seconds", metavar="SECONDS", default=1.0, show_default=True, type=click.FloatRange(0, min_open=True),
              help="Seconds per measurement.")  # fmt: skip
@click.option("--seed", metavar="N", default=0, show_default=True, help="Random seed.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def command(rows: int, columns: int, seconds: float, seed: int, as_json: bool) -> None:
    """Run `polyaforest bench`."""
    import numpy as np

    table = np.random.default_rng(seed).normal(size=(rows, columns))
    click.echo(f"Measuring on {rows:,} rows of {columns} columns, {seconds:g} s per task…", err=True)
    speeds = [*_on_tables(table, seconds, seed), *_on_streams(table, seconds, seed)]
    if as_json:
        import orjson

        from polyaforest.io.json_values import to_json

        report = {"rows": rows, "columns": columns, "machine": _machine(), "speeds": _with_ratios(speeds)}
        click.echo(to_json(report, orjson.OPT_INDENT_2).decode())
    else:
        click.echo("\n".join(_as_table(speeds)))
    if missing := [name for name in _STREAMS if name != "polyaforest" and not _is_installed(name)]:
        click.echo(f"Not measured, because not installed: {', '.join(missing)}.", err=True)


# ---- tables ----------------------------------------------------------------------------------------------------------


def _on_tables(table: Rows, seconds: float, seed: int) -> Iterator[Speed]:
    """Measure fitting a table, and scoring and explaining its rows."""
    from sklearn.ensemble import IsolationForest

    from polyaforest import BatchMPF, StreamingMPF

    detectors = {
        "StreamingMPF": StreamingMPF(n_estimators=TREES, random_state=seed),
        "BatchMPF": BatchMPF(n_estimators=TREES, random_state=seed),
        "sklearn IsolationForest": IsolationForest(n_estimators=TREES, random_state=seed),
    }
    for name, detector in detectors.items():
        yield Speed("fit", name, _rate(detector.fit, table, seconds))
    for name, detector in detectors.items():
        yield Speed("score", name, _rate(detector.score_samples, table, seconds))
    few = table[:100]
    for name, detector in detectors.items():
        if hasattr(detector, "explain"):
            yield Speed("explain", name, _rate(partial(_explained, detector), few, seconds))


def _explained(detector: Any, rows: Rows) -> list[str]:
    """Return explanations as text, since they are lazy."""
    return [str(explanation) for explanation in detector.explain(rows)]


def _rate(task: Callable[[Rows], Any], rows: Rows, seconds: float) -> float:
    """Return rows per second of the fastest run, after a first run that compiles."""
    task(rows)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        task(rows)
        times.append(time.perf_counter() - start)
    return len(rows) / min(times)


# ---- streams ---------------------------------------------------------------------------------------------------------

Step: TypeAlias = "Callable[[Rows], object]"  # scores and learns rows, one after another


def _on_streams(table: Rows, seconds: float, seed: int) -> Iterator[Speed]:
    """Measure scoring and learning row by row, with full windows."""
    for name, start in _STREAMS.items():
        if name == "polyaforest" or _is_installed(name):
            step = start(table[:WINDOW], seed)
            step(table[WINDOW : WINDOW + _CHUNK])  # compiles
            label = {"polyaforest": "StreamingMPF", "river": "river HalfSpaceTrees"}.get(name, name)
            yield Speed("stream", label, _stream_rate(step, table[WINDOW:], seconds))


def _stream_rate(step: Step, rows: Rows, seconds: float) -> float:
    """Return rows per second, cycling through the table until time is up."""
    done, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds or not done:
        chunk = rows[done % len(rows) :][:_CHUNK]
        step(chunk)
        done += len(chunk)
    return done / spent


def _is_installed(module: str) -> bool:
    """Return whether a library can be imported."""
    from importlib.util import find_spec

    return find_spec(module) is not None


def _polyaforest(first: Rows, seed: int) -> Step:
    """Start a `StreamingMPF`."""
    from polyaforest import StreamingMPF

    forest = StreamingMPF(n_estimators=TREES, window=WINDOW, random_state=seed).partial_fit(first)
    return forest.score_then_learn


def _river(first: Rows, seed: int) -> Step:
    """Start river's half-space trees, given the range of the data."""
    from importlib import import_module

    limits = dict.fromkeys(range(first.shape[1]), (-5.0, 5.0))
    trees = import_module("river.anomaly").HalfSpaceTrees(
        n_trees=TREES, height=8, window_size=WINDOW, limits=limits, seed=seed
    )

    def step(rows: Rows) -> None:
        """Score each row, then learn it."""
        for row in rows.tolist():
            named = dict(enumerate(row))
            trees.score_one(named)
            trees.learn_one(named)

    step(first)
    return step


def _rrcf(first: Rows, seed: int) -> Step:
    """Start a random cut forest in Python, which scores points after learning them."""
    from importlib import import_module

    trees = [import_module("rrcf").RCTree(first, random_state=seed + i) for i in range(TREES)]
    arrivals = len(first)

    def step(rows: Rows) -> None:
        """Replace the oldest point by the new one and score it, in every tree."""
        nonlocal arrivals
        for row in rows:
            for tree in trees:
                tree.forget_point(arrivals - WINDOW)
                tree.insert_point(row, index=arrivals)
                tree.codisp(arrivals)
            arrivals += 1

    return step


def _krcf(first: Rows, seed: int) -> Step:
    """Start a random cut forest in Rust; without `lambda` it would learn only one row in ten."""
    from importlib import import_module

    forest = import_module("krcf").RandomCutForest(
        {
            "dimensions": first.shape[1],
            "shingle_size": 1,
            "internal_shingling": False,
            "num_trees": TREES,
            "sample_size": WINDOW,
            "random_seed": seed,
            "parallel_execution_enabled": False,
            "lambda": 100.0,
            "initial_accept_fraction": 1.0,
        }
    )

    def step(rows: Rows) -> None:
        """Score each row, then learn it."""
        for row in rows.tolist():
            forest.score(row)
            forest.update(row)

    step(first)
    return step


_STREAMS: dict[str, Callable[[Rows, int], Step]] = {
    "polyaforest": _polyaforest,
    "river": _river,
    "rrcf": _rrcf,
    "krcf": _krcf,
}


# ---- the report ------------------------------------------------------------------------------------------------------


def _with_ratios(speeds: list[Speed]) -> list[dict[str, Any]]:
    """Return the speeds, with the speed of StreamingMPF relative to each."""
    ours = {speed.task: speed.rows_per_second for speed in speeds if speed.detector == "StreamingMPF"}
    return [{**speed._asdict(), "streaming_mpf_is_times": ours[speed.task] / speed.rows_per_second} for speed in speeds]


def _as_table(speeds: list[Speed]) -> Iterator[str]:
    """Yield the speeds as lines of a table."""
    yield f"{'task':<9}{'detector':<26}{'rows/s':>12}   StreamingMPF is"
    for row in _with_ratios(speeds):
        ratio = row["streaming_mpf_is_times"]
        words = f"{ratio:.3g}x as fast" if ratio >= 1 else f"{1 / ratio:.3g}x slower"
        words = "" if row["detector"] == "StreamingMPF" else words
        yield f"{row['task']:<9}{row['detector']:<26}{row['rows_per_second']:>12,.0f}   {words}".rstrip()


def _machine() -> dict[str, Any]:
    """Return the platform and versions of libraries."""
    import os
    import platform
    from importlib.metadata import version

    libraries = {name: version(name) for name in ("numpy", "numba", "scikit-learn")}
    return {"platform": platform.platform(), "python": platform.python_version(), "cpus": os.cpu_count(), **libraries}
