"""Streams next to other streaming detectors: points per second, growth of the cost, memory, missing values.

Every point is scored, then inserted, and the oldest is evicted; timing starts when the windows are full. Trees hold
samples of the window, as in random cut forests, or all of it. Writes results/streaming.csv,
results/streaming-growth.csv, results/streaming-memory.csv (drawn as streaming-memory.png) and
results/streaming-gaps.csv (rows with missing values). All methods take turns and the median round counts, so read the
ratios. Data are Gaussian; one row in a hundred is four times as far out as the others.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import numpy as np
from sklearn.metrics import roc_auc_score

from benchmarks.registry import Benchmark, only
from benchmarks.shared.results import read, write

PARTS = ("memory", "throughput", "growth", "gaps")  # memory first, while the process is fresh
FEATURES = 10
TREES, FEW_TREES = 100, 32
HUNDRED = 100  # rows come by the hundred, because each hundred has one planted anomaly
LIMIT = 4.0  # Half-Space Trees need the range of the data
MOST_ROWS = 20_000
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Size:
    """How much to measure."""

    windows: tuple[int, ...]
    rounds: int
    seconds_a_round: float  # per method; slow methods take longer, a hundred rows are the least
    growth_windows: tuple[int, ...]
    growth_features: tuple[int, ...]
    memory_points: int
    memory_trees: int  # fewer than TREES, for a million points to take minutes
    gap_rows: int
    gap_shares: tuple[float, ...]  # of rows with a missing value
    gap_chunks: tuple[int, ...]  # rows a call


FULL = Size(
    (256, 2048),
    5,
    1.0,
    (64, 256, 1024, 4096, 16384),
    (2, 5, 10, 20, 50, 100),
    1_000_000,
    20,
    20_000,
    (0.0, 0.12, 0.5, 1.0),
    (1, 100, 20_000),
)
QUICK = Size((256,), 3, 0.15, (64, 256), (2, 10), 100_000, 5, 2000, (0.0, 0.12), (100,))


def draw(n_rows: int, n_features: int, seed: int) -> np.ndarray:
    """Draw Gaussian rows, of which the middle one of each hundred is an anomaly."""
    rows = np.random.default_rng(seed).normal(size=(n_rows, n_features))
    rows[HUNDRED // 2 :: HUNDRED] *= 4.0
    return rows


class Detector:
    """A contender: `warm` fills it, `run` scores each row and then learns it. Anomalies score high.

    `run` takes what `prepare` makes of the rows, outside the time that is taken.
    """

    module = ""  # imported when needed: a missing peer is left out
    holds = "the last points"
    rows_a_call = 1

    def __init__(self, window: int, n_features: int = FEATURES) -> None:
        self.library = import_module(self.module)
        self.window, self.n_features = window, n_features
        self.warm_up = window + 512

    def prepare(self, rows: np.ndarray) -> Sequence[Any]:
        """Return the rows as the library likes them best."""
        return rows.tolist()

    def score(self, row: Any) -> float:
        """Return how anomalous a row is."""
        raise NotImplementedError

    def learn(self, row: Any) -> None:
        """Insert a row and evict the oldest."""
        raise NotImplementedError

    def step(self, row: Any) -> float:
        """Score, then learn."""
        score = self.score(row)
        self.learn(row)
        return score

    def warm(self, rows: np.ndarray) -> None:
        """Bring the detector to its steady state."""
        for row in self.prepare(rows):
            self.learn(row)

    def run(self, prepared: Sequence[Any]) -> Sequence[float]:
        """Score and learn the rows; this is timed."""
        return [self.step(row) for row in prepared]


class Ours(Detector):
    """StreamingMPF with its defaults, or with all points of the window in every tree."""

    module = "polyaforest"
    holds = "the last points; each tree a sample of them"

    def __init__(
        self,
        window: int,
        n_features: int = FEATURES,
        *,
        rows_a_call: int = 1000,
        n_jobs: int = 1,
        n_estimators: int = TREES,
        all_points: bool = False,
    ) -> None:
        super().__init__(window, n_features)
        self.rows_a_call = rows_a_call
        if all_points:
            self.holds = Detector.holds
        self.forest = self.library.StreamingMPF(
            n_estimators=n_estimators,
            window=window,
            max_samples=None if all_points else "auto",
            n_jobs=n_jobs,
            random_state=0,
        )

    def prepare(self, rows: np.ndarray) -> Sequence[np.ndarray]:
        return [rows[start : start + self.rows_a_call] for start in range(0, len(rows), self.rows_a_call)]

    def warm(self, rows: np.ndarray) -> None:
        self.forest.partial_fit(rows[:-HUNDRED])
        self.run(self.prepare(rows[-HUNDRED:]))  # compiles

    def run(self, prepared: Sequence[np.ndarray]) -> np.ndarray:
        return -np.concatenate([self.forest.score_then_learn(rows) for rows in prepared])


class RandomCutForest(Detector):
    """What krcf and rcf3 share: trees that each hold a random sample of the stream in which old points fade.

    By default the sample fades so slowly that a tree takes in one point in ten, and leaves the others out. A window
    is the limit of fast fading: every point enters every tree, and the oldest leaves it.
    """

    FASTEST = 100.0  # exponent per point, against a random term that stays within -37 and 4: order of arrival decides
    fading = ""  # what the library calls it

    def __init__(self, window: int, n_features: int = FEATURES, *, sample: bool = False) -> None:
        super().__init__(window, n_features)
        if sample:
            self.holds = "a sample; one point in ten enters a tree"
            self.warm_up = 30 * window  # the share of points that enter is stable after some tens of windows
            forest = self.make({})
        else:  # a tree that does not accept each of its first points takes many windows to fill up
            forest = self.make({self.fading: self.FASTEST, "initial_accept_fraction": 1.0})
        self.score, self.learn = forest.score, forest.update

    def make(self, options: dict[str, float]) -> Any:
        """Return the library's forest, on one thread and without shingles."""
        raise NotImplementedError


class Krcf(RandomCutForest):
    """The Rust port of Amazon's random cut forest."""

    module = "krcf"
    fading = "lambda"

    def make(self, options: dict[str, float]) -> Any:
        shape = {"dimensions": self.n_features, "shingle_size": 1, "internal_shingling": False}
        size = {"num_trees": TREES, "sample_size": self.window, "random_seed": 0}
        return self.library.RandomCutForest({**shape, **size, "parallel_execution_enabled": False, **options})


class Rcf3(RandomCutForest):
    """Another random cut forest in Rust; its `update_and_score` takes as long as the two calls."""

    module = "rcf3"
    fading = "time_decay"

    def make(self, options: dict[str, float]) -> Any:
        shape = {"input_dim": self.n_features, "shingle_size": 1, "internal_shingling": False}
        return self.library.Forest(**shape, num_trees=TREES, capacity=self.window, seed=0, **options)


class OnlineTrees(Detector):
    """Online Isolation Forest (Leveni et al., 2024) in Rust, with its default number of trees."""

    module = "rcf3"
    holds = "counts of the last points"

    def __init__(self, window: int, n_features: int = FEATURES) -> None:
        super().__init__(window, n_features)
        forest = self.library.OnlineIForest(n_features, num_trees=FEW_TREES, window_size=window, seed=0)
        self.score, self.learn = forest.score, forest.update


class Rrcf(Detector):
    """The random cut forest in Python. Only a point that is in a tree has a score there, so it learns first."""

    module = "rrcf"

    def prepare(self, rows: np.ndarray) -> Sequence[np.ndarray]:
        return list(rows)

    def warm(self, rows: np.ndarray) -> None:
        self.trees = [self.library.RCTree(rows[-self.window :], random_state=seed) for seed in range(TREES)]
        self.arrivals = self.window

    def learn(self, row: np.ndarray) -> None:
        for tree in self.trees:
            tree.forget_point(self.arrivals - self.window)
            tree.insert_point(row, index=self.arrivals)
        self.arrivals += 1

    def score(self, row: np.ndarray) -> float:
        return sum(tree.codisp(self.arrivals - 1) for tree in self.trees) / TREES

    def step(self, row: np.ndarray) -> float:
        self.learn(row)
        return self.score(row)


class OursInRiver(Detector):
    """StreamingMPF behind river's interface: `score_one`, then `learn_one`."""

    module = "polyaforest.adapters.river"
    holds = Ours.holds

    def __init__(self, window: int, n_features: int = FEATURES) -> None:
        super().__init__(window, n_features)
        forest = self.library.StreamingMPF(window=window, n_estimators=TREES, seed=0)
        self.score, self.learn = forest.score_one, forest.learn_one

    def prepare(self, rows: np.ndarray) -> Sequence[dict[int, float]]:
        return [dict(enumerate(row)) for row in rows.tolist()]

    def warm(self, rows: np.ndarray) -> None:
        super().warm(rows)
        self.run(self.prepare(rows[-HUNDRED:]))  # compiles


class RiverTrees(Detector):
    """Half-Space Trees of river, of its default height."""

    module = "river.anomaly"
    holds = "counts of the window before"

    def __init__(self, window: int, n_features: int = FEATURES) -> None:
        super().__init__(window, n_features)
        limits = dict.fromkeys(range(n_features), (-LIMIT, LIMIT))
        trees = self.library.HalfSpaceTrees(n_trees=TREES, height=8, window_size=window, limits=limits, seed=0)
        self.score, self.learn = trees.score_one, trees.learn_one

    def prepare(self, rows: np.ndarray) -> Sequence[dict[int, float]]:
        return [dict(enumerate(row)) for row in rows.tolist()]


class PysadTrees(Detector):
    """Half-Space Trees of PySAD, whose walk is one NumPy operation for all trees."""

    module = "pysad.models"
    holds = "counts of the window before"

    def __init__(self, window: int, n_features: int = FEATURES, *, depth: int) -> None:
        super().__init__(window, n_features)
        limits = np.full(n_features, LIMIT)
        trees = self.library.HalfSpaceTrees(-limits, limits, window, TREES, depth, random_state=0)
        self.step, self.learn = trees.fit_score_partial, trees.fit_partial

    def prepare(self, rows: np.ndarray) -> Sequence[np.ndarray]:
        return list(rows)


OURS = "polyaforest, 1,000 rows a call"
OURS_BY_ROW = "polyaforest, one row a call"
ALL_POINTS = "polyaforest, all points, 1,000 rows a call"
ALL_POINTS_BY_ROW = "polyaforest, all points, one row a call"
METHODS: dict[str, Callable[[int], Detector]] = {
    OURS: Ours,
    "polyaforest, 1,000 rows a call, 2 threads": partial(Ours, n_jobs=2),
    OURS_BY_ROW: partial(Ours, rows_a_call=1),
    "polyaforest, 32 trees, one row a call": partial(Ours, rows_a_call=1, n_estimators=FEW_TREES),
    "polyaforest in river, one row a call": OursInRiver,
    ALL_POINTS: partial(Ours, all_points=True),
    "polyaforest, all points, 1,000 rows a call, 2 threads": partial(Ours, n_jobs=2, all_points=True),
    ALL_POINTS_BY_ROW: partial(Ours, rows_a_call=1, all_points=True),
    "krcf": Krcf,
    "krcf, its default sample": partial(Krcf, sample=True),
    "rcf3": Rcf3,
    "rcf3, its default sample": partial(Rcf3, sample=True),
    "rcf3 OnlineIForest, 32 trees": OnlineTrees,
    "rrcf": Rrcf,
    "river HalfSpaceTrees, height 8": RiverTrees,
    "PySAD HalfSpaceTrees, depth 8": partial(PysadTrees, depth=8),
    "PySAD HalfSpaceTrees, its default depth 15": partial(PysadTrees, depth=15),
}


@dataclass
class Result:
    """What the rounds of one detector gave."""

    rates: list[float]  # points per second
    scores: list[Sequence[float]]

    @property
    def rate(self) -> float:
        return median(self.rates)

    @property
    def auc(self) -> float:
        """How surely a planted anomaly scores above another point: 1 is always, 0.5 is chance."""
        scores = np.concatenate(self.scores)
        return float(roc_auc_score(np.arange(len(scores)) % HUNDRED == HUNDRED // 2, scores))


def timed_run(detector: Detector, n_rows: int, seed: int) -> tuple[float, Sequence[float]]:
    """Return points per second over new rows, and their scores."""
    prepared = detector.prepare(draw(n_rows, detector.n_features, seed))
    start = time.perf_counter()
    scores = detector.run(prepared)
    return n_rows / (time.perf_counter() - start), scores


def measure(detectors: dict[Key, Detector], rounds: int, seconds: float) -> dict[Key, Result]:
    """Fill all detectors, then let them take turns, each with as many rows as it can take in `seconds`."""
    n_rows = {}
    for key, detector in detectors.items():
        detector.warm(draw(detector.warm_up, detector.n_features, seed=0))
        pilot, _ = timed_run(detector, HUNDRED, seed=1)
        granule = max(HUNDRED, detector.rows_a_call)
        n_rows[key] = max(granule, round(min(pilot * seconds, MOST_ROWS) / granule) * granule)
    gc.collect()
    gc.freeze()  # or else the million objects of the trees in Python slow every allocation
    results: dict[Key, Result] = {key: Result([], []) for key in detectors}
    for turn in range(rounds):
        for key, detector in detectors.items():
            rate, scores = timed_run(detector, n_rows[key], seed=2 + turn)
            results[key].rates.append(rate)
            results[key].scores.append(scores)
    gc.unfreeze()
    return results


def line_up(window: int, names: Sequence[str]) -> dict[str, Detector]:
    """Return the detectors of these names that can be imported."""
    detectors = {}
    for name in names:
        try:
            detectors[name] = METHODS[name](window)
        except ImportError as error:
            print(f"{name}: left out ({error})", file=sys.stderr)
    if not detectors:
        sys.exit("no method left to measure")
    return detectors


def ratio(ours: Result | None, other: Result) -> float | str:
    """Return how many times as fast ours is; empty if ours was not measured."""
    return round(ours.rate / other.rate, 2) if ours else ""


def throughput(size: Size, names: Sequence[str]) -> list[dict[str, Any]]:
    """Measure points per second of all methods."""
    rows = []
    for window in size.windows:
        detectors = line_up(window, names)
        results = measure(detectors, size.rounds, size.seconds_a_round)
        table = [
            {
                "window": window,
                "method": name,
                "version": version(detectors[name].module.split(".", maxsplit=1)[0]),
                "holds": detectors[name].holds,
                "points_per_second": round(result.rate),
                "slowest": round(min(result.rates)),
                "fastest": round(max(result.rates)),
                "ours_over_this": ratio(results.get(OURS), result),
                "ours_by_row_over_this": ratio(results.get(OURS_BY_ROW), result),
                "all_points_over_this": ratio(results.get(ALL_POINTS), result),
                "all_points_by_row_over_this": ratio(results.get(ALL_POINTS_BY_ROW), result),
                "auc_planted": round(result.auc, 3),
            }
            for name, result in results.items()
        ]
        rows += table
        show(table, "method", "holds")
        doubtful = [name for name, result in results.items() if result.auc < 0.9]
        print("planted anomalies score above the others:", f"NOT with {doubtful}" if doubtful else "with all methods")
    return rows


def growth(size: Size) -> list[dict[str, Any]]:
    """Return what a point costs as the window and the number of features grow."""
    settings = [("window", window, FEATURES) for window in size.growth_windows]
    settings += [("features", 256, n_features) for n_features in size.growth_features]
    detectors = {
        (*setting, all_points): Ours(*setting[1:], all_points=all_points)
        for setting in settings
        for all_points in (False, True)
    }
    rows = []
    for (varied, window, n_features, all_points), result in measure(
        detectors, size.rounds, size.seconds_a_round
    ).items():
        cost = 1e6 / result.rate
        row = {
            "varied": varied,
            "trees_hold": "all points" if all_points else "samples",
            "window": window,
            "features": n_features,
            "us_per_point": round(cost, 1),
            "us_over_log2_window": round(cost / np.log2(window), 2),
            "us_over_features": round(cost / n_features, 2),
        }
        rows.append(row)
    show(rows)
    return rows


# ---- missing values --------------------------------------------------------------------------------------------------


def with_gaps(rows: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Hide one value in a share of the rows, the first among them."""
    rng, gappy = np.random.default_rng(seed), rows.copy()
    chosen = np.flatnonzero(rng.permutation(len(rows)) < round(share * len(rows)))
    gappy[chosen, rng.integers(rows.shape[1], size=len(chosen))] = np.nan
    gappy[: int(share > 0), 0] = np.nan
    return gappy


def gap_seconds(rows: np.ndarray, missing: str, chunk: int) -> float:
    """Return the CPU time of a stream that scores and learns rows, `chunk` per call."""
    forest = import_module("polyaforest").StreamingMPF(n_estimators=TREES, missing=missing, random_state=0)
    start = time.process_time()
    for first in range(0, len(rows), chunk):
        forest.detect_then_learn(rows[first : first + chunk])
    return time.process_time() - start


def gaps(size: Size) -> list[dict[str, Any]]:
    """Measure what rows with missing values cost: all settings take turns, and the fastest round of each counts."""
    rows = np.random.default_rng(0).normal(size=(size.gap_rows, FEATURES // 2))
    tables = {share: with_gaps(rows, share, 1) for share in size.gap_shares}
    settings = [(missing, chunk) for missing in ("impute", "marginalise") for chunk in size.gap_chunks]
    for missing, chunk in settings:
        gap_seconds(tables[size.gap_shares[-1]][:600], missing, min(chunk, 100))  # compiled and loaded
    best: dict[tuple[str, int, float], float] = {}
    for _ in range(size.rounds):
        for missing, chunk in settings:
            n = len(rows) if chunk > 1 else len(rows) // 10
            for share, table in tables.items():
                taken = gap_seconds(table[:n], missing, chunk) / n
                best[missing, chunk, share] = min(taken, best.get((missing, chunk, share), taken))
    found = [
        {
            "missing": missing,
            "rows_a_call": chunk,
            "share_of_rows": share,
            "us_per_row": round(1e6 * taken, 1),
            "over_complete": round(taken / best[missing, chunk, 0.0], 2),
        }
        for (missing, chunk, share), taken in best.items()
    ]
    show(found)
    return found


def resident() -> float:
    """Return megabytes of this process in memory (Linux)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def memory(size: Size, every: int = 20_000) -> Iterator[dict[str, Any]]:
    """Measure resident memory while a long stream runs through a window of 256."""
    detector = Ours(256, n_estimators=size.memory_trees)
    detector.warm(draw(detector.warm_up, FEATURES, seed=0))
    for points in range(every, size.memory_points + 1, every):
        rate, _ = timed_run(detector, every, seed=points)
        yield {
            "points": points,
            "trees": size.memory_trees,
            "resident_mb": round(resident(), 2),
            "points_per_second": round(rate),
        }


def draw_memory(rows: Sequence[dict[str, Any]], file: Path) -> None:
    """Draw memory over points, from zero, so that a leak would show and noise would not."""
    import matplotlib as mpl  # noqa: PLC0415 - only here, and after memory has been measured

    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(figsize=(7.0, 3.2), layout="constrained")
    axes.plot([row["points"] for row in rows], [row["resident_mb"] for row in rows], color="#00366c", linewidth=2)
    axes.set(xlabel="points of the stream", ylabel="resident memory, MB", xlim=(0, rows[-1]["points"]))
    axes.set(title=f"window of 256 points, {FEATURES} features, {rows[0]['trees']:.0f} trees")
    axes.set_ylim(0, 1.2 * max(row["resident_mb"] for row in rows))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, dpi=110, metadata={"Software": None})
    plt.close(figure)


def show(rows: Sequence[dict[str, Any]], *wide: str) -> None:
    """Print rows as a table; the columns of text are `wide` and left-aligned."""
    widths = {key: max(len(str(value)) for value in (key, *(row[key] for row in rows))) for key in rows[0]}
    for row in (dict(zip(rows[0], rows[0], strict=True)), *rows):
        print("  ".join(f"{value!s:{'<' if key in wide else '>'}{widths[key]}}" for key, value in row.items()))


def draw_all(directory: Path, pages: Path) -> None:
    """Draw the picture of memory, if it was measured."""
    path = directory / "streaming-memory.csv"
    if path.exists():
        rows = [{key: float(value) for key, value in row.items()} for row in read(path)]
        draw_memory(rows, pages / "images" / "streaming-memory.png")


def measure_all(options: Namespace, directory: Path) -> None:
    """Measure some parts again."""
    size = QUICK if options.quick else FULL
    names = [name for name in METHODS if any(word in name for word in options.only or [""])]
    if "memory" in options.part:
        rows = list(memory(size))
        show(rows)
        write("streaming-memory", rows, directory)
    if "throughput" in options.part:
        rows = throughput(size, names)
        if not options.only:
            write("streaming", rows, directory)
    if "growth" in options.part:
        write("streaming-growth", growth(size), directory)
    if "gaps" in options.part:
        write("streaming-gaps", gaps(size), directory)


BENCHMARK = Benchmark(
    measure_all,
    draw=draw_all,
    quick="a small version, in less than a minute",
    options={
        "--part": only(PARTS),
        "--only": {"nargs": "+", "help": "throughput of methods whose names contain a word; writes no file"},
    },
    peers=("krcf", "pysad", "rcf3", "river", "rrcf"),
)
