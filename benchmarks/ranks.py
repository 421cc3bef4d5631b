"""Statistical comparison of the results of `accuracy`: mean ranks, analysis of variance, critical differences.

Fills docs/benchmarks/paper-tables.md and draws critical-difference.png and critical-difference-forests.png from
results/accuracy.csv. Nothing is measured.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from scipy.stats import friedmanchisquare, studentized_range

from benchmarks.accuracy import MOST, PAGE, frame, ordered, per_set, titled
from benchmarks.registry import Benchmark, of_rows
from benchmarks.shared import paper
from benchmarks.shared.pages import PAGES, fill, table
from polyaforest.datasets import ALTERNATIVES

TOURNAMENTS = (
    ("bMPF", "iForest", "PIDForest"),
    ("bMPF paper", "iForest", "PIDForest"),
    ("sMPF", "rrcf"),
    ("sMPF paper", "rrcf"),
    ("sMPF", "krcf"),
)
ANALYSED = ("sMPF", "bMPF", "rrcf", "iForest", "PIDForest")
FORESTS = ("bMPF", "sMPF", "iForest", "PIDForest", "rrcf", "krcf")
LEVEL = 0.05


class Standing(NamedTuple):
    """How methods fared against each other."""

    ranks: pd.Series  # mean rank of each method, 1 is best
    wins: pd.Series  # first places that are not shared
    n_trials: int


class Comparison(NamedTuple):
    """Comparison of methods over data sets: whether any differ, and which."""

    ranks: pd.Series  # mean rank of each method, best first
    p_alike: float  # Friedman's test of all being alike
    difference: float  # ranks that differ by less do not differ significantly
    n_sets: int


def standing(auc: pd.DataFrame) -> Standing:
    """Rank the methods in every trial that has them all, ties sharing the average of their ranks."""
    ranks = auc.dropna().rank(axis=1, ascending=False, method="average")
    return Standing(ranks.mean(), ranks.eq(1).sum(), len(ranks))


def complete(auc: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Return the data sets for which every method has every seed, and the names of those left out."""
    n_seeds = auc.index.get_level_values("seed").nunique()
    is_whole = auc.dropna().groupby("data").size().eq(n_seeds)
    names = is_whole.index[is_whole]
    kept = auc[auc.index.get_level_values("data").isin(names)]
    return kept, [name for name in auc.index.unique("data") if name not in names]


def long(auc: pd.DataFrame) -> pd.DataFrame:
    """Return a row per measurement."""
    melted = auc.reset_index().melt(["data", "seed"], var_name="algorithm", value_name="auc")
    return melted.rename(columns={"data": "dataset", "seed": "trial"})


def analysis_of_variance(auc: pd.DataFrame) -> pd.DataFrame:
    """Return ddof1, ddof2, F and p by source: algorithm and data set within, the trial as subject."""
    pingouin = import_module("pingouin")
    result = pingouin.rm_anova(data=long(auc), dv="auc", within=["algorithm", "dataset"], subject="trial")
    return _plain(result).set_index("Source")[["ddof1", "ddof2", "F", "p_unc"]]


def post_hoc(auc: pd.DataFrame) -> pd.DataFrame:
    """Return paired t-tests between the algorithms' means: T, p, Bayes factor and Hedges' g by pair."""
    pingouin = import_module("pingouin")
    averaged = long(auc).groupby(["trial", "algorithm"], as_index=False)["auc"].mean()
    result = pingouin.pairwise_tests(data=averaged, dv="auc", within="algorithm", subject="trial")
    return _plain(result).set_index(["A", "B"])[["T", "p_unc", "BF10", "hedges"]].astype(float)


def _plain(result: pd.DataFrame) -> pd.DataFrame:
    """Return column names as in later versions of pingouin."""
    return result.rename(columns=lambda name: name.replace("-", "_"))


def critical_difference(n_methods: int, n_sets: int, level: float = LEVEL) -> float:
    """Return Nemenyi's difference: mean ranks that differ by less are not significantly different."""
    q = studentized_range.ppf(1 - level, n_methods, np.inf) / np.sqrt(2)
    return float(q * np.sqrt(n_methods * (n_methods + 1) / (6 * n_sets)))


def compare(mean: pd.DataFrame) -> Comparison:
    """Run Friedman's test and compute Nemenyi's critical difference; a row per data set and a column per method."""
    ranks = mean.rank(axis=1, ascending=False).mean().sort_values()
    p_alike = float(friedmanchisquare(*(mean[method] for method in mean)).pvalue)
    return Comparison(ranks, p_alike, critical_difference(mean.shape[1], len(mean)), len(mean))


def alike(ranks: pd.Series, difference: float) -> list[tuple[int, int]]:
    """Return first and last of every maximal run of methods, in order of rank, that do not differ significantly."""
    values = ranks.to_numpy()
    last = [int(np.searchsorted(values, value + difference, side="right")) - 1 for value in values]
    return [(i, j) for i, j in enumerate(last) if j > i and (i == 0 or last[i - 1] < j)]


def draw(comparison: Comparison, path: Path) -> None:
    """Draw a critical-difference diagram: methods by mean rank, bars over those that do not differ."""
    ranks, bars = comparison.ranks, alike(comparison.ranks, comparison.difference)
    half = (len(ranks) + 1) // 2
    low, high = np.floor(ranks.min()), np.ceil(ranks.max())
    figure, axes = plt.subplots(figsize=(9, 0.7 + 0.14 * len(bars) + 0.24 * half))
    axes.set(xlim=(low - 0.35 * (high - low), high + 0.35 * (high - low)), ylim=(-1.5 - 0.6 * len(bars) - half, 2))
    axes.axis("off")
    axes.hlines(0, low, high, color="black", lw=1)
    for tick in np.arange(low, high + 1):
        axes.vlines(tick, 0, 0.3, color="black", lw=1)
        axes.text(tick, 0.4, f"{tick:g}", ha="center", va="bottom", fontsize=8)
    axes.plot([low, low + comparison.difference], [1.6, 1.6], color="tab:red", lw=2, solid_capstyle="butt")
    axes.text(
        low + comparison.difference, 1.6, f"  critical difference {comparison.difference:.2f}", va="center", fontsize=8
    )
    for level, (first, last) in enumerate(bars):
        height = -0.5 - 0.6 * level
        axes.plot(ranks.iloc[[first, last]], [height, height], color="black", lw=3, solid_capstyle="round")
    for place, (method, rank) in enumerate(ranks.items()):
        is_left = place < half
        height = -1 - 0.6 * len(bars) - (place if is_left else len(ranks) - 1 - place)
        end = low - 0.05 * (high - low) if is_left else high + 0.05 * (high - low)
        axes.plot([rank, rank, end], [0, height, height], color="gray", lw=0.8)
        text = f"{titled(str(method))}  {rank:.2f} " if is_left else f" {rank:.2f}  {titled(str(method))}"
        axes.text(end, height, text, ha="right" if is_left else "left", va="center", fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, bbox_inches="tight", metadata={"Software": None})
    plt.close(figure)


def rank_tables(auc: pd.DataFrame) -> str:
    """Return mean ranks and wins of every comparison, on the paper's twelve data sets and on all."""
    parts = []
    for methods in TOURNAMENTS:
        if not set(methods) <= set(auc):
            continue
        whole = auc[list(methods)]
        held = {"all": standing(whole), "the paper's twelve": standing(_of(whole, paper.TWELVE))}
        rows = [row for scope, result in held.items() for row in _rank_rows(scope, result)]
        parts.append(table(["data sets", "", *map(titled, methods)], [*rows, *_printed_rows(methods)]))
    return "\n\n".join(parts)


def _rank_rows(scope: str, result: Standing) -> list[list[str]]:
    """Return two rows: mean ranks, the best in bold, and wins."""
    best = result.ranks.round(2).min()
    ranks = [f"**{rank:.2f}**" if round(rank, 2) == best else f"{rank:.2f}" for rank in result.ranks]
    return [
        [f"{scope}, {result.n_trials} trials", "mean rank", *ranks],
        ["", "wins", *map(str, result.wins)],
    ]


def _printed_rows(methods: Sequence[str]) -> list[list[str]]:
    """Return the same as the paper prints it, where it does."""
    names = [method.removesuffix(" paper") for method in methods]
    if not set(names) <= set(paper.MEAN_RANKS):
        return []
    return [
        ["*printed*", "*mean rank*", *(f"*{paper.MEAN_RANKS[name]:.2f}*" for name in names)],
        ["", "*wins*", *(f"*{paper.WINS[name]}*" for name in names)],
    ]


def variance_tables(auc: pd.DataFrame) -> tuple[str, str]:
    """Return analysis of variance and post-hoc tests on the paper's twelve data sets, next to its own, and on all."""
    methods = [method for method in ANALYSED if method in auc]
    scopes = {"the paper's twelve": paper.TWELVE, "all": tuple(auc.index.unique("data"))}
    kept, left_out = {}, {}
    for scope, names in scopes.items():
        kept[scope], left_out[scope] = complete(_of(auc[methods], names))
    kept = {scope: part for scope, part in kept.items() if part.index.unique("data").size > 1}
    remarks = [
        f"{scope.capitalize()}: {kept[scope].index.unique('data').size} sets" + _without(left_out[scope])
        for scope in kept
    ]
    variance = {scope: analysis_of_variance(part) for scope, part in kept.items()}
    pairs = {scope: post_hoc(part) for scope, part in kept.items()}
    return "\n".join([_variance(variance), "", *remarks]), _pairs(pairs, methods)


def _variance(results: Mapping[str, pd.DataFrame]) -> str:
    rows = [
        [scope, source.replace("*", "×"), int(row.ddof1), int(row.ddof2), f"{row.F:.1f}", _p(row.p_unc)]
        for scope, result in results.items()
        for source, row in result.iterrows()
    ]
    printed = [
        ["*printed*", f"*{source.replace('*', '×')}*", f"*{ddof1}*", f"*{ddof2}*", f"*{F:.1f}*", f"*{_p(p)}*"]
        for source, (ddof1, ddof2, F, p) in paper.ANOVA.items()
    ]
    return table(["data sets", "source", "ddof1", "ddof2", "F", "p"], [*rows, *printed])


def _pairs(results: Mapping[str, pd.DataFrame], methods: Iterable[str]) -> str:
    """Return a row per pair of methods: T, p and Hedges' g for every scope and as printed."""
    header = ["A", "B"]
    for scope in (*results, "*printed*"):
        header += [f"{scope}: T", "p", "Hedges' g"]
    rows = []
    for pair in combinations(methods, 2):
        row: list[Any] = list(pair)
        for result in results.values():
            T, p, _, g = _either_way(result, pair)
            row += [f"{T:.1f}", f"**{_p(p)}**" if p < 0.01 else _p(p), f"{g:.2f}"]
        T, p, _, g = paper.POST_HOC[pair]
        rows.append([*row, f"*{T:.1f}*", f"*{_p(p)}*", f"*{g:.2f}*"])
    return table(header, rows) + "\n\nA positive T means that A is better; p < 0.01 is bold."


def _either_way(result: pd.DataFrame, pair: tuple[str, str]) -> tuple[float, float, float, float]:
    """Return the test of a pair, whichever of the two it was written for: the signs turn round with the names."""
    if pair in result.index:
        T, p, factor, g = result.loc[pair]
        return T, p, factor, g
    T, p, factor, g = result.loc[pair[::-1]]
    return -T, p, factor, -g


def _p(p: float) -> str:
    return "< 0.001" if p < 0.0005 else f"{p:.3f}"


def _of(auc: pd.DataFrame, names: Iterable[str]) -> pd.DataFrame:
    return auc[auc.index.get_level_values("data").isin(list(names))]


def _without(names: Sequence[str]) -> str:
    return f", without {', '.join(names)} (not every seed of every method)." if names else "."


def difference_block(auc: pd.DataFrame, images: Path) -> str:
    """Return Friedman's test and the diagram: of the forests, and of all methods that finished most data sets."""
    mean = per_set(auc)
    mean = mean[[method for method in mean if mean[method].notna().mean() >= MOST]]
    forests = [method for method in FORESTS if method in mean]
    return "\n\n".join(
        [
            _difference(mean[forests], images / "critical-difference-forests.png"),
            _difference(mean, images / "critical-difference.png"),
        ]
    )


def _difference(mean: pd.DataFrame, path: Path) -> str:
    """Draw one diagram, and return its description."""
    common = mean.dropna()
    result = compare(common)
    draw(result, path)
    missing = [name for name in ordered(mean) if name not in common.index]
    return (
        f"{len(result.ranks)} methods on {result.n_sets} data sets"
        + (f" (without {', '.join(missing)}, which not all finished)" if missing else "")
        + f": Friedman's test of equality has p = {result.p_alike:.1g}; the critical difference is "
        f"{result.difference:.2f} ranks.\n\n![Mean ranks and critical difference](images/{path.name})"
    )


def render(rows: Sequence[Mapping[str, str]], directory: Path = PAGES) -> None:
    """Fill the page and draw the diagram from the rows of the file."""
    auc = frame(rows)
    auc = auc[~auc.index.get_level_values("data").isin(ALTERNATIVES)]
    variance, pairs = variance_tables(auc)
    blocks = {
        "ranks": rank_tables(auc),
        "anova": variance,
        "post-hoc": pairs,
        "critical-difference": difference_block(auc, directory / "images"),
    }
    for block, text in blocks.items():
        fill(PAGE, block, text, directory)


def measure_all(options: Namespace, directory: Path) -> None:
    """Measure nothing, but check that there are results to compare."""
    if not (directory / "accuracy.csv").exists():
        raise FileNotFoundError("no results/accuracy.csv: run `python -m benchmarks run accuracy` first")


BENCHMARK = Benchmark(measure_all, of_rows(render, "accuracy"), peers=("pingouin",))
