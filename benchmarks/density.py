"""Density estimation: squared error and divergence from known densities as the sample grows, and pictures.

Writes results/density.csv, a row per density, estimator, sample size and seed; fills docs/benchmarks/density.md and
draws density-1d.png, density-2d.png and density-errors.png. A run resumes where it was interrupted; `--again` measures
estimators again.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import PowerNorm
from scipy.stats import multivariate_normal
from sklearn.neighbors import KernelDensity
from tqdm import tqdm

from benchmarks.registry import Benchmark, again, of_rows
from benchmarks.shared.pages import PAGES, fill, table
from benchmarks.shared.results import Results, picked, present
from polyaforest import BatchMPF, StreamingMPF, Tree

Array = np.ndarray
Estimator = Callable[[Array, Array, int], Array]  # of rows, places and a seed: the density at the places

PAGE = "density"
KEYS = ("density", "estimator", "n", "seed")
SIZES = (100, 300, 1_000, 5_000, 20_000)
N_SEEDS = 5
PICTURED = 5_000  # the size of the paper's samples
REACH = 5.2  # standard deviations to each side of a mean: beyond them lies 2e-7 of a normal density
STEPS = {1: 4_000, 2: 100}  # cells of the grid along an axis, by the number of axes
FLOOR = 1e-10  # an estimate below it counts as this much: one of 0 would diverge without bound
PIXELS = 250  # of a panel of the plane, to a side
DPI = 90


# ---- densities -------------------------------------------------------------------------------------------------------


class Mixture(NamedTuple):
    """A mixture of normal densities."""

    weights: Array  # (K,)
    means: Array  # (K, D)
    covariances: Array  # (K, D, D)

    def density(self, places: Array) -> Array:
        """Return the density at every place."""
        parts = zip(self.weights, self.means, self.covariances, strict=True)
        return sum(weight * multivariate_normal(*normal).pdf(places) for weight, *normal in parts)

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Draw rows."""
        sizes = rng.multinomial(n, self.weights)
        parts = zip(self.means, self.covariances, sizes, strict=True)
        return rng.permutation(np.vstack([rng.multivariate_normal(*part) for part in parts]))

    @property
    def box(self) -> Array:
        """Lower and upper corner, (2, D), of a box with all but a millionth of the mass."""
        deviations = np.sqrt(np.diagonal(self.covariances, axis1=1, axis2=2))
        return np.stack([(self.means - REACH * deviations).min(axis=0), (self.means + REACH * deviations).max(axis=0)])


def mixture(*parts: tuple[float, Any, Any]) -> Mixture:
    """Return a mixture of parts that are a weight, a mean and a covariance each."""
    return Mixture(*(np.array(column, dtype=float) for column in zip(*parts, strict=True)))


# The paper's four. It does not print the covariances of the last, which are ours.
DENSITIES = {
    "normal": mixture((1.0, [0], [[1]])),
    "mixture": mixture((0.3, [0], [[1]]), (0.7, [5], [[1]])),
    "bivariate normal": mixture((1.0, [0, 0], np.eye(2))),
    "bivariate mixture": mixture((0.3, [0, 0], [[1.0, 0.6], [0.6, 1.0]]), (0.7, [5, 5], [[1.0, -0.5], [-0.5, 0.6]])),
}


# ---- by what ---------------------------------------------------------------------------------------------------------


def forest(X: Array, places: Array, seed: int, *, detector: type, **parameters: Any) -> Array:
    """Return the density of one of our forests."""
    return np.exp(detector(random_state=seed, **parameters).fit(X).log_density(places))


def kernel_view(X: Array, places: Array, seed: int) -> Array:
    """Divide the mass of Mondrian cells at a fixed lifetime by the volume of the corresponding Laplace kernel.

    Features are weighted by one over the kernel's width, so that the lifetime is 1. The width is Silverman's for the
    normal kernel, turned into the Laplace kernel's by what makes their asymptotic errors equal: its roughness is 1/4
    and its variance 2, where the normal kernel has 1/(2√π) and 1.
    """
    n_features = X.shape[1]
    ratio = (np.sqrt(np.pi) / 2) ** n_features / 4
    weights = 1 / (silverman(X) * ratio ** (1 / (n_features + 4)))
    tree = Tree(feature_weights=weights, lifetime=1.0)
    grown = StreamingMPF(window=len(X), max_samples=None, tree=tree, random_state=seed).fit(X)
    return grown.mass(places, lifetime=1.0) * np.prod(weights / 2)


def kernel_density(X: Array, places: Array, seed: int) -> Array:
    """Return scikit-learn's kernel density with the normal kernel, its width along each feature by Silverman's rule."""
    width = silverman(X)
    return np.exp(KernelDensity(rtol=1e-4).fit(X / width).score_samples(places / width)) / np.prod(width)


def silverman(X: Array) -> Array:
    """Return the width of a normal kernel along each feature by Silverman's rule, with his robust measure of spread."""
    n_rows, n_features = X.shape
    spread = np.minimum(X.std(axis=0), interquartile(X) / 1.349)
    return spread * (n_rows * (n_features + 2) / 4) ** (-1 / (n_features + 4))


def interquartile(X: Array) -> Array:
    """Return the distance between the quartiles of each feature."""
    return np.subtract(*np.quantile(X, [0.75, 0.25], axis=0))


def histogram(X: Array, places: Array, seed: int) -> Array:
    """Return a histogram from the least to the largest value with bins by `bin_edges`, and 0 beyond."""
    edges = bin_edges(X)
    heights = np.pad(np.histogramdd(X, edges, density=True)[0], 1)
    bins = [np.searchsorted(axis, values, side="right") for axis, values in zip(edges, places.T, strict=True)]
    return heights[tuple(bins)]


def bin_edges(X: Array) -> list[Array]:
    """Return bin edges along each feature: Freedman and Diaconis's rule, with the rate for this number of features."""
    n_rows, n_features = X.shape
    width = 2 * interquartile(X) * n_rows ** (-1 / (n_features + 2))
    low, high = X.min(axis=0), X.max(axis=0)
    n_bins = np.ceil((high - low) / width).astype(int)
    return [np.linspace(*ends) for ends in zip(low, high, n_bins + 1, strict=True)]


DEEP = {"window": None, "tree": Tree(max_depth=15, prior_strength=0.1, feature_weights=None)}
FINE = {"tree": Tree(max_depth=12, prior_strength=0.1, feature_weights=None)}
OURS: dict[str, Estimator] = {
    "sMPF": partial(forest, detector=StreamingMPF),
    "sMPF for densities": partial(forest, detector=StreamingMPF, **DEEP),
    "sMPF as a kernel": kernel_view,
    "bMPF": partial(forest, detector=BatchMPF),
    "bMPF for densities": partial(forest, detector=BatchMPF, **FINE),
}
ESTIMATORS: dict[str, Estimator] = {**OURS, "KDE": kernel_density, "histogram": histogram}


# ---- how near --------------------------------------------------------------------------------------------------------


class Grid(NamedTuple):
    """The middles of equal cells that fill a box."""

    places: Array  # (cells, D)
    volume: float  # of a cell

    def integral(self, values: Array) -> float:
        """Return the integral of a function with these values at the places."""
        return float(values.sum() * self.volume)


def grid(box: Array, n_steps: int) -> Grid:
    """Return a grid with some number of cells along each axis, the last axis fastest."""
    sides = (box[1] - box[0]) / n_steps
    axes = [low + side * (np.arange(n_steps) + 0.5) for low, side in zip(box[0], sides, strict=True)]
    return Grid(np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes)), float(np.prod(sides)))


def squared_error(truth: Array, estimate: Array, over: Grid) -> float:
    """Return the integrated squared error."""
    return over.integral((truth - estimate) ** 2)


def divergence(truth: Array, estimate: Array, over: Grid) -> float:
    """Return KL(truth ‖ estimate) in nats, with estimates below `FLOOR` raised to it.

    It is the form for measures, ∫ p log(p/q) − p + q: the same where both integrate to 1, and never negative, so that
    an estimate gains nothing by integrating to more.
    """
    raised = np.maximum(estimate, FLOOR)
    is_held = truth > 0
    ratio = np.zeros_like(truth)
    ratio[is_held] = np.log(truth[is_held] / raised[is_held])
    return over.integral(truth * ratio - truth + raised)


def measure(density: Mixture, estimator: Estimator, n: int, seed: int) -> dict[str, float]:
    """Return errors of one estimate, its integral over the box, and the true mass where it is about 0."""
    over = grid(density.box, STEPS[density.means.shape[1]])
    truth, estimate = density.density(over.places), estimator(sampled(density, n, seed), over.places, seed)
    return {
        "ise": squared_error(truth, estimate, over),
        "kl": divergence(truth, estimate, over),
        "integral": over.integral(estimate),
        "missed": over.integral(truth[estimate < FLOOR]),
    }


def sampled(density: Mixture, n: int, seed: int) -> Array:
    """Return the sample of a size and a seed, the same for all estimators."""
    return density.sample(n, np.random.default_rng([seed, n]))


def run(results: Results, densities: Iterable[str], sizes: Iterable[int], n_seeds: int) -> None:
    """Measure what the file lacks."""
    tasks = [(d, e, n, s) for n in sizes for s in range(n_seeds) for d in densities for e in ESTIMATORS]
    for task in tqdm([task for task in tasks if task not in results], disable=None):
        name, estimator, n, seed = task
        errors = measure(DENSITIES[name], ESTIMATORS[estimator], n, seed)
        results.add({**dict(zip(KEYS, task, strict=True)), **errors})


# ---- the page --------------------------------------------------------------------------------------------------------


def errors_table(rows: Sequence[Mapping[str, str]], column: str) -> str:
    """Return mean and standard deviation of an error over seeds; the least mean by density and size is bold."""
    sizes, lines = present(rows, "n", SIZES), []
    for density in present(rows, "density", DENSITIES):
        cells = {}
        for n in sizes:
            found = {e: picked(rows, column, density=density, estimator=e, n=n) for e in ESTIMATORS}
            least = min(mean(values) for values in found.values())
            cells |= {(e, n): cell(values, is_bold=mean(values) == least) for e, values in found.items()}
        lines += [[density, e, *(cells[e, n] for n in sizes)] for e in ESTIMATORS]
    return table(["density", "estimator", *(f"n = {n:,}" for n in sizes)], lines)


def cell(values: Sequence[float], *, is_bold: bool) -> str:
    """Return mean and standard deviation, with two significant digits of the mean."""
    middle = mean(values)
    places = max(0, 1 - int(np.floor(np.log10(abs(middle))))) if middle else 2
    text = f"**{middle:.{places}f}**" if is_bold else f"{middle:.{places}f}"
    return f"{text} ± {stdev(values):.{places}f}" if len(values) > 1 else text


def missed_table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return the true mass where an estimate is about 0, averaged over seeds."""
    sizes = present(rows, "n", SIZES)
    names = [e for e in ESTIMATORS if any(value > 1e-6 for value in picked(rows, "missed", estimator=e))]

    def share(density: str, estimator: str, n: int) -> str:
        missed = mean(picked(rows, "missed", density=density, estimator=estimator, n=n))
        return f"{missed:.1g}" if missed > 1e-6 else "0"

    densities = present(rows, "density", DENSITIES)
    lines = [[d, e, *(share(d, e, n) for n in sizes)] for d in densities for e in names]
    return table(["density", "estimator", *(f"n = {n:,}" for n in sizes)], lines)


def render(rows: Sequence[Mapping[str, str]], directory: Path = PAGES) -> None:
    """Fill the tables of the page from the rows of the file."""
    fill(PAGE, "divergence", errors_table(rows, "kl"), directory)
    fill(PAGE, "squared-error", errors_table(rows, "ise"), directory)
    fill(PAGE, "missed", missed_table(rows), directory)


# ---- pictures --------------------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """How an estimator is drawn; the colours are Okabe and Ito's, safe for colour-blind readers."""

    color: str
    marker: str
    linestyle: str = "-"


FAINT = {"sMPF": "#7fc4ee", "bMPF": "#f2b48a"}  # in pictures of curves, where another one of their kind lies over them


LINES = {
    "sMPF": Line("#0072B2", "o", ":"),
    "sMPF for densities": Line("#0072B2", "o"),
    "sMPF as a kernel": Line("#56B4E9", "^"),
    "bMPF": Line("#D55E00", "s", ":"),
    "bMPF for densities": Line("#D55E00", "s"),
    "KDE": Line("black", "D"),
    "histogram": Line("#7F7F7F", "v"),
}
GROUPS = (("sMPF", "sMPF for densities"), ("bMPF", "bMPF for densities"), ("sMPF as a kernel", "KDE", "histogram"))
PANELS = (
    ("truth", "sMPF", "sMPF for densities", "sMPF as a kernel"),
    ("histogram", "bMPF", "bMPF for densities", "KDE"),
)


def draw_curves(n: int) -> plt.Figure:
    """Return the two densities of one variable, and what the estimators make of one sample."""
    figure, axes = plt.subplots(2, 3, figsize=(11.5, 5.6), layout="constrained", sharex="row", sharey="row")
    for row, name in zip(axes, ("normal", "mixture"), strict=True):
        density = DENSITIES[name]
        over = grid(density.box, 1_000)
        truth, sample, x = density.density(over.places), sampled(density, n, 0), over.places[:, 0]
        for view, group in zip(row, GROUPS, strict=True):
            view.fill_between(x, truth, color="#d9d9d9", linewidth=0, label="truth")
            for estimator in group:
                estimate = ESTIMATORS[estimator](sample, over.places, 0)
                width = 0.7 if estimator in FAINT else 1.1
                view.plot(
                    x, estimate, color=FAINT.get(estimator, LINES[estimator].color), label=estimator, linewidth=width
                )
            view.set(ylim=(0, 1.4 * truth.max()), xlim=density.box[:, 0])
            view.spines[["top", "right"]].set_visible(False)
            view.legend(frameon=False, fontsize=8, loc="upper left")
        row[0].set_ylabel(name)
    figure.suptitle(f"Densities of one variable, n = {n:,}")
    return figure


def draw_planes(n: int) -> plt.Figure:
    """Draw the two densities in the plane, and the estimates from one sample, on one scale of colours each."""
    figure, axes = plt.subplots(4, 4, figsize=(11.0, 11.4), layout="constrained")
    shades = mpl.colormaps["cividis"].resampled(40)  # steps compress far better than a smooth scale
    for views, name in zip((axes[:2], axes[2:]), ("bivariate normal", "bivariate mixture"), strict=True):
        density = DENSITIES[name]
        over = grid(density.box, PIXELS)
        truth, sample = density.density(over.places), sampled(density, n, 0)
        levels = truth.max() * np.array([0.01, 0.1, 0.5])
        for view, panel in zip(views.flat, np.ravel(PANELS), strict=True):
            values = truth if panel == "truth" else ESTIMATORS[panel](sample, over.places, 0)
            low, high = density.box
            extent = [low[0], high[0], low[1], high[1]]
            scale = PowerNorm(0.5, vmin=0, vmax=1.2 * truth.max())
            view.imshow(values.reshape(PIXELS, PIXELS).T, origin="lower", extent=extent, cmap=shades, norm=scale)
            view.contour(
                truth.reshape(PIXELS, PIXELS).T, levels, extent=extent, colors="white", linewidths=0.7, alpha=0.8
            )
            view.set(title=panel, xticks=[], yticks=[])
        for row in views[:, 0]:
            row.set_ylabel(name)
    return figure


def draw_errors(rows: Sequence[Mapping[str, str]]) -> plt.Figure:
    """Draw both errors against the sample size, averaged over seeds."""
    densities, sizes = present(rows, "density", DENSITIES), present(rows, "n", SIZES)
    shape = {"layout": "constrained", "sharex": True, "squeeze": False, "figsize": (3.0 * len(densities) + 0.6, 6.6)}
    figure, axes = plt.subplots(2, len(densities), **shape)
    for row, (column, label) in zip(axes, (("kl", "KL divergence, nats"), ("ise", "squared error")), strict=True):
        for view, density in zip(row, densities, strict=True):
            for estimator, line in LINES.items():
                found = [mean(picked(rows, column, density=density, estimator=estimator, n=n)) for n in sizes]
                view.loglog(sizes, found, label=estimator, markersize=4.5, linewidth=1.6, **line._asdict())
            view.grid(color="#e5e5e5", linewidth=0.6)
            view.spines[["top", "right"]].set_visible(False)
        row[0].set_ylabel(label)
    for view, density in zip(axes[0], densities, strict=True):
        view.set_title(density)
    for view in axes[1]:
        view.set_xlabel("n")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return figure


def draw(rows: Sequence[Mapping[str, str]], directory: Path, n: int) -> None:
    """Draw all pictures, estimates from samples of n."""
    directory.mkdir(parents=True, exist_ok=True)
    figures = {"1d": draw_curves(n), "2d": draw_planes(n), "errors": draw_errors(rows)}
    for name, figure in figures.items():
        figure.savefig(directory / f"density-{name}.png", dpi=DPI, metadata={"Software": None})
        plt.close(figure)


def draw_all(rows: Sequence[Mapping[str, str]], pages: Path) -> None:
    """Draw the pictures of the page."""
    draw(rows, pages / "images", min(PICTURED, max(int(row["n"]) for row in rows)))


def measure_all(options: Namespace, directory: Path) -> None:
    """Measure what the file lacks."""
    results = Results("density", KEYS, directory)
    results.forget_methods(options.again, OURS, "estimator")
    run(results, DENSITIES, SIZES[:2] if options.quick else SIZES, 2 if options.quick else N_SEEDS)


BENCHMARK = Benchmark(
    measure_all,
    of_rows(render, "density"),
    of_rows(draw_all, "density"),
    quick="small samples and two seeds",
    options={"--again": again(ESTIMATORS)},
)
