"""Toy data in the plane: AUC of forests on five data sets, and a picture of their decision boundaries.

Writes results/toy.csv, a row per data set, method and seed (of the data and of the method); fills
docs/benchmarks/toy.md and draws toy.png. A run resumes where it was interrupted; `--again` measures methods again.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patheffects import withStroke
from PIL import Image
from scipy.stats import rankdata
from sklearn.ensemble import IsolationForest
from sklearn.metrics import roc_curve
from tqdm import tqdm

from benchmarks.baselines.pidforest import PIDForest
from benchmarks.baselines.rrcf_batch import rrcf_scores
from benchmarks.registry import Benchmark, again, of_rows
from benchmarks.shared import methods
from benchmarks.shared.metrics import auc, auprg
from benchmarks.shared.pages import PAGES, fill, table
from benchmarks.shared.results import Results, picked, present
from polyaforest import BatchMPF, StreamingMPF
from polyaforest.datasets import TOYS, Dataset, make_toy

Array = np.ndarray
PlaneScores = Callable[[Array, Array, int], Array]  # of rows, places and a seed: scores of the places

PAGE = "toy"
KEYS = ("data", "method", "seed")
N_SEEDS = 5
SIDE = 7.0  # pictures reach so far to each side of 0
DPI = 90
MEASURES = {"auc": auc, "auprg": auprg}

# The paper's table, one data set of each kind: AUC and AUPRG by method. Its own two are next to ours in its setting.
PRINTED_METHODS = ("sMPF paper", "bMPF paper", "rrcf", "iForest", "PIDForest")
PRINTED = {
    "auc": {
        "single blob": (0.963, 0.966, 0.972, 0.964, 0.963),
        "two blobs tight": (0.994, 0.994, 0.991, 0.994, 0.993),
        "two blobs spread": (0.948, 0.956, 0.934, 0.953, 0.960),
        "moons": (0.904, 0.901, 0.906, 0.840, 0.914),
        "moon and blob": (0.977, 0.964, 0.950, 0.955, 0.972),
    },
    "auprg": {
        "single blob": (0.994, 0.993, 0.991, 0.993, 0.993),
        "two blobs tight": (0.999, 0.998, 0.998, 0.999, 0.999),
        "two blobs spread": (0.986, 0.989, 0.982, 0.984, 0.990),
        "moons": (0.971, 0.978, 0.976, 0.947, 0.979),
        "moon and blob": (0.996, 0.997, 0.979, 0.990, 0.994),
    },
}


# ---- measuring -------------------------------------------------------------------------------------------------------


def row_scores(name: str, X: Array, seed: int) -> Array:
    """Return scores of rows, higher for anomalies; rrcf is slow, and has 100 trees instead of 500."""
    return rrcf_scores(X, n_trees=100, seed=seed) if name == "rrcf" else methods.METHODS[name](X, seed)


def run(results: Results, names: Iterable[str], n_seeds: int) -> None:
    """Measure what the file lacks."""
    tasks = [(data, name, seed) for seed in range(n_seeds) for data in TOYS for name in names]
    for task in tqdm([task for task in tasks if task not in results], disable=None):
        data, name, seed = task
        toy = make_toy(data, seed)
        scores = row_scores(name, toy.X, seed)
        measured = {measure: area(toy.y, scores) for measure, area in MEASURES.items()}
        results.add({**dict(zip(KEYS, task, strict=True)), **measured})


# ---- the page --------------------------------------------------------------------------------------------------------


def areas_table(rows: Sequence[Mapping[str, str]], measure: str) -> str:
    """Return mean and standard deviation over seeds, the best mean in bold, with the paper's figures below."""
    names = [name for name in METHODS if any(row["method"] == name for row in rows)]
    lines = []
    for data in TOYS:
        found = {name: picked(rows, measure, data=data, method=name) for name in names}
        best = max(round(mean(values), 3) for values in found.values())
        printed = dict(zip(PRINTED_METHODS, PRINTED[measure][data], strict=True))
        lines.append([data, *(cell(values, best) for values in found.values())])
        lines.append(["*printed*", *(f"*{printed[name]:.3f}*" if name in printed else "" for name in names)])
    means = [mean(picked(rows, measure, method=name)) for name in names]
    return table(["", *names], [*lines, ["mean of the sets", *(f"{value:.3f}" for value in means)]])


def cell(values: Sequence[float], best: float) -> str:
    """Return mean and standard deviation, bold if it is the best."""
    middle = f"{mean(values):.3f}"
    text = f"**{middle}**" if round(mean(values), 3) == best else middle
    return f"{text} ± {stdev(values):.3f}" if len(values) > 1 else text


def render(rows: Sequence[Mapping[str, str]], directory: Path = PAGES) -> None:
    """Fill the tables of the page from the rows of the file."""
    for measure in MEASURES:
        fill(PAGE, measure, areas_table(rows, measure), directory)


# ---- the picture -----------------------------------------------------------------------------------------------------


class Pictured(NamedTuple):
    """How a method scores the plane, and how finely it is asked."""

    scores: PlaneScores
    n_steps: int = 140


def forest_scores(X: Array, places: Array, seed: int, *, detector: type, **parameters: Any) -> Array:
    """Return scores of a forest at places, higher for anomalies."""
    return -detector(random_state=seed, **parameters).fit(X).score_samples(places)


def codisplacements(X: Array, places: Array, seed: int, n_trees: int = 20, tree_size: int = 256) -> Array:
    """Return the mean codisplacement of each place: it is put into each tree, looked at and taken out again."""
    rng = np.random.RandomState(seed)  # the only kind of generator that the library takes
    total = np.zeros(len(places))
    for _ in range(n_trees):
        rows = X[rng.permutation(len(X))[:tree_size]]
        tree = import_module("rrcf").RCTree(rows, random_state=rng)
        for i, place in enumerate(places):
            tree.insert_point(place, index="guest")
            total[i] += tree.codisp("guest")
            tree.forget_point("guest")
    return total / n_trees


METHODS: dict[str, Pictured] = {
    "sMPF": Pictured(partial(forest_scores, detector=StreamingMPF)),
    "sMPF paper": Pictured(partial(forest_scores, detector=StreamingMPF, window=None, **methods.PAPER)),
    "bMPF": Pictured(partial(forest_scores, detector=BatchMPF)),
    "bMPF paper": Pictured(partial(forest_scores, detector=BatchMPF, **methods.PAPER)),
    "rrcf": Pictured(codisplacements, 36),
    "iForest": Pictured(partial(forest_scores, detector=IsolationForest)),
    "PIDForest": Pictured(partial(forest_scores, detector=PIDForest)),
}

OURS = tuple(name for name in METHODS if name in methods.OURS)
NOT_DRAWN = "bMPF paper"  # there is no room for all

# Normal ground is white: a dark scale would hide the marks, which are Okabe and Ito's colours.
GROUND = LinearSegmentedColormap.from_list("ground", ["#ffffff", "#e9edf1", "#c3ccd6", "#93a1b1"])
MARKS: dict[str, dict[str, Any]] = {
    "true negative": {"marker": "^", "s": 9, "color": "#0072B2", "linewidths": 0, "alpha": 0.75},
    "true positive": {"marker": "o", "s": 15, "color": "#D55E00", "linewidths": 0.4, "edgecolors": "white"},
    "false positive": {"marker": "+", "s": 26, "color": "#7b2d8b", "linewidths": 1.3},
    "false negative": {"marker": "x", "s": 22, "color": "black", "linewidths": 1.3},
}


def best_threshold(y: Array, scores: Array) -> float:
    """Return the threshold that flags most anomalies and fewest normal rows (Youden's index)."""
    false_rate, true_rate, thresholds = roc_curve(y, scores)
    return float(thresholds[np.argmax(true_rate - false_rate)])


def verdicts(y: Array, scores: Array, threshold: float) -> dict[str, Array]:
    """Return the rows of each kind of verdict."""
    is_flagged, is_anomaly = scores >= threshold, np.asarray(y) == 1
    return {
        "true negative": ~is_flagged & ~is_anomaly,
        "true positive": is_flagged & is_anomaly,
        "false positive": is_flagged & ~is_anomaly,
        "false negative": ~is_flagged & is_anomaly,
    }


def plane(n_steps: int) -> tuple[Array, Array]:
    """Return a line of steps from side to side, and the places of the square that they span, row by row."""
    steps = np.linspace(-SIDE, SIDE, n_steps)
    return steps, np.stack(np.meshgrid(steps, steps), axis=-1).reshape(-1, 2)


def draw_panel(view: plt.Axes, toy: Dataset, name: str, seed: int) -> None:
    """Draw the plane by the rank of its score, the best threshold, and the rows by whether they are found."""
    scores = row_scores(name, toy.X, seed)
    threshold = best_threshold(toy.y, scores)
    steps, places = plane(METHODS[name].n_steps)
    ground = METHODS[name].scores(toy.X, places, seed)
    ranks = rankdata(np.append(ground, threshold)) / (len(ground) + 1)  # the threshold takes its place among them
    surface = ranks[:-1].reshape(len(steps), len(steps))
    view.contourf(steps, steps, surface, levels=np.linspace(0, 1, 13), cmap=GROUND)
    view.contour(steps, steps, surface, levels=[ranks[-1]], colors="black", linewidths=1.1)
    for kind, is_so in verdicts(toy.y, scores, threshold).items():
        view.scatter(*toy.X[is_so].T, label=kind, **MARKS[kind])
    view.text(
        0.97, 0.03, f"AUC {auc(toy.y, scores):.3f}", ha="right", fontsize=9, transform=view.transAxes
    ).set_path_effects([withStroke(linewidth=3, foreground="white")])
    view.set(xlim=(-SIDE, SIDE), ylim=(-SIDE, SIDE), aspect="equal", xticks=[], yticks=[])


def draw(path: Path, toys: Sequence[str] = TOYS, names: Iterable[str] = METHODS, seed: int = 0) -> None:
    """Return a row of panels per set and a column per method."""
    names = list(names)
    size = (2.45 * len(names) + 0.3, 2.45 * len(toys) + 0.7)
    figure, axes = plt.subplots(len(toys), len(names), figsize=size, layout="constrained", squeeze=False)
    for row, data in zip(axes, toys, strict=True):
        toy = make_toy(data, seed)
        for view, name in zip(row, names, strict=True):
            draw_panel(view, toy, name, seed)
        row[0].set_ylabel(data, fontsize=11)
    for view, name in zip(axes[0], names, strict=True):
        view.set_title(name, fontsize=12)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, markerscale=1.6, fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DPI, metadata={"Software": None})
    plt.close(figure)
    shrink(path)


def shrink(path: Path) -> None:
    """Store a picture with a palette, in which it takes a third of the room."""
    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(160, dither=Image.Dither.NONE)
    small.save(path, optimize=True)


def draw_all(rows: Sequence[Mapping[str, str]], pages: Path) -> None:
    """Draw the picture of the page."""
    draw(pages / "images" / "toy.png", names=[name for name in present(rows, "method", METHODS) if name != NOT_DRAWN])


def measure_all(options: Namespace, directory: Path) -> None:
    """Measure what the file lacks."""
    results = Results("toy", KEYS, directory)
    results.forget_methods(options.again, OURS)
    names = [name for name in METHODS if not (options.quick and name == "rrcf")]
    run(results, names, 1 if options.quick else N_SEEDS)


BENCHMARK = Benchmark(
    measure_all,
    of_rows(render, "toy"),
    of_rows(draw_all, "toy"),
    quick="one seed and no random cut forest, which is slow",
    options={"--again": again(METHODS)},
    peers=("rrcf",),
)
