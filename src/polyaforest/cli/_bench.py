"""`polyaforest bench`: how fast this machine is, next to other detectors on the same rows."""

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
_CHUNK = 64  # rows after which the clock is looked at


class Speed(NamedTuple):
    """How many rows a detector does in a second, of which task."""

    task: str
    detector: str
    rows_per_second: float


_HELP = """Measure how many rows a second this machine learns, scores, follows and explains.

Every detector has 100 trees, a window of 256 points where it has a window, one thread, and the same made-up rows.
scikit-learn's isolation forest is always there to compare with; river, rrcf and krcf are if they are installed.
What has to be compiled is compiled before the clock starts.
"""


@click.command(help=_HELP)
@click.option("--rows", default=10_000, show_default=True, type=click.IntRange(1000), help="Rows of the table.")
@click.option("--columns", default=10, show_default=True, type=click.IntRange(1), help="Columns of the table.")
@click.option("--seconds", default=1.0, show_default=True, type=click.FloatRange(0, min_open=True),
              help="Time for each measurement.")  # fmt: skip
@click.option("--seed", default=0, show_default=True, help="Seed of the rows and of the detectors.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
def command(rows: int, columns: int, seconds: float, seed: int, as_json: bool) -> None:
    """Run `polyaforest bench`."""
    import numpy as np

    table = np.random.default_rng(seed).normal(size=(rows, columns))
    click.echo(f"Measuring on {rows:,} rows of {columns} columns, {seconds:g} s for each task…", err=True)
    speeds = [*_on_tables(table, seconds, seed), *_on_streams(table, seconds, seed)]
    if as_json:
        import orjson

        from polyaforest.io._json import to_json

        report = {"rows": rows, "columns": columns, "machine": _machine(), "speeds": _with_ratios(speeds)}
        click.echo(to_json(report, orjson.OPT_INDENT_2).decode())
    else:
        click.echo("\n".join(_in_columns(speeds)))
    if missing := [name for name in _STREAMS if name != "polyaforest" and not _is_installed(name)]:
        click.echo(f"Not measured, as not installed: {', '.join(missing)}.", err=True)


# ---- tables ----------------------------------------------------------------------------------------------------------


def _on_tables(table: Rows, seconds: float, seed: int) -> Iterator[Speed]:
    """Learning a table, scoring and explaining its rows."""
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
    """The reasons in words, which are found only when they are asked for."""
    return [str(explanation) for explanation in detector.explain(rows)]


def _rate(task: Callable[[Rows], Any], rows: Rows, seconds: float) -> float:
    """Rows a second, by the fastest of as many runs as fit in the time; the first run compiles and does not count."""
    task(rows)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        task(rows)
        times.append(time.perf_counter() - start)
    return len(rows) / min(times)


# ---- streams ---------------------------------------------------------------------------------------------------------

Step: TypeAlias = "Callable[[Rows], object]"  # scores rows and learns them, one after another


def _on_streams(table: Rows, seconds: float, seed: int) -> Iterator[Speed]:
    """Scoring and learning row after row, which windows in steady motion make the same work for every row."""
    for name, begin in _STREAMS.items():
        if name == "polyaforest" or _is_installed(name):
            step = begin(table[:WINDOW], seed)
            step(table[WINDOW : WINDOW + _CHUNK])  # compiles
            label = {"polyaforest": "StreamingMPF", "river": "river HalfSpaceTrees"}.get(name, name)
            yield Speed("stream", label, _stream_rate(step, table[WINDOW:], seconds))


def _stream_rate(step: Step, rows: Rows, seconds: float) -> float:
    """Rows a second over as much of the table, again and again, as there is time for."""
    done, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds or not done:
        chunk = rows[done % len(rows) :][:_CHUNK]
        step(chunk)
        done += len(chunk)
    return done / spent


def _is_installed(module: str) -> bool:
    """Whether a library can be imported."""
    from importlib.util import find_spec

    return find_spec(module) is not None


def _polyaforest(first: Rows, seed: int) -> Step:
    """A stream of this package."""
    from polyaforest import StreamingMPF

    forest = StreamingMPF(n_estimators=TREES, window=WINDOW, random_state=seed).partial_fit(first)
    return forest.score_then_learn


def _river(first: Rows, seed: int) -> Step:
    """Half-space trees of river, which know the range of the data."""
    from importlib import import_module

    limits = dict.fromkeys(range(first.shape[1]), (-5.0, 5.0))
    trees = import_module("river.anomaly").HalfSpaceTrees(
        n_trees=TREES, height=8, window_size=WINDOW, limits=limits, seed=seed
    )

    def step(rows: Rows) -> None:
        """Score a row, then learn it, as river is used."""
        for row in rows.tolist():
            named = dict(enumerate(row))
            trees.score_one(named)
            trees.learn_one(named)

    step(first)
    return step


def _rrcf(first: Rows, seed: int) -> Step:
    """A random cut forest in Python, whose scores are of points that are in it: it learns first."""
    from importlib import import_module

    trees = [import_module("rrcf").RCTree(first, random_state=seed + i) for i in range(TREES)]
    arrivals = len(first)

    def step(rows: Rows) -> None:
        """Let the oldest point go, take the new one in and score it, in every tree."""
        nonlocal arrivals
        for row in rows:
            for tree in trees:
                tree.forget_point(arrivals - WINDOW)
                tree.insert_point(row, index=arrivals)
                tree.codisp(arrivals)
            arrivals += 1

    return step


def _krcf(first: Rows, seed: int) -> Step:
    """A random cut forest in Rust, made to hold the last points: by default it would learn one row in ten."""
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
        """Score a row, then learn it."""
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
    """Every speed, and how many times as fast as this one StreamingMPF is at the same task."""
    ours = {speed.task: speed.rows_per_second for speed in speeds if speed.detector == "StreamingMPF"}
    return [{**speed._asdict(), "streaming_mpf_is_times": ours[speed.task] / speed.rows_per_second} for speed in speeds]


def _in_columns(speeds: list[Speed]) -> Iterator[str]:
    """The speeds as a table for people."""
    yield f"{'task':<9}{'detector':<26}{'rows/s':>12}   next to it, StreamingMPF is"
    for row in _with_ratios(speeds):
        ratio = row["streaming_mpf_is_times"]
        words = "" if row["detector"] == "StreamingMPF" else _ratio_in_words(ratio)
        yield f"{row['task']:<9}{row['detector']:<26}{row['rows_per_second']:>12,.0f}   {words}".rstrip()


def _ratio_in_words(ratio: float) -> str:
    """How many times as fast or as slow."""
    return f"{ratio:.3g} times as fast" if ratio >= 1 else f"{1 / ratio:.3g} times slower"


def _machine() -> dict[str, Any]:
    """What the figures were measured on."""
    import os
    import platform
    from importlib.metadata import version

    libraries = {name: version(name) for name in ("numpy", "numba", "scikit-learn")}
    return {"platform": platform.platform(), "python": platform.python_version(), "cpus": os.cpu_count(), **libraries}
