"""Find planted anomalies in the metrics of a made-up web service, say how improbable they are, and draw them.

Run with ``make demo``; writes demo.png, or the file named on the command line.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke

from polyaforest import StreamingMPF

PLANTED = {  # requests per second, latency in milliseconds
    "slow although idle": [(110, 150), (140, 175), (95, 138)],
    "fast although busy": [(455, 60), (490, 48)],
    "overload": [(640, 290), (600, 240)],
    "dead": [(2, 1), (4, 2)],
}


def service_metrics(seed: int = 7) -> tuple[np.ndarray, np.ndarray]:
    """A week of five-minute readings of load and latency with a daily rhythm, and what was planted where."""
    rng = np.random.default_rng(seed)
    hours = np.arange(0, 7 * 24, 1 / 12)
    load = 280 + 150 * np.sin(2 * np.pi * (hours - 9) / 24) + rng.normal(0, 14, hours.size)
    latency = 35 + 0.16 * load + 12 * (load / 450) ** 6 + rng.gamma(9, 1.5, hours.size)
    planted = np.array([point for points in PLANTED.values() for point in points], float)
    places = np.sort(rng.choice(hours.size, len(planted), replace=False))
    rows = np.column_stack([load, latency])
    rows[places] = planted
    kinds = np.full(hours.size, "", dtype=object)
    kinds[places] = [kind for kind, points in PLANTED.items() for _ in points]
    return rows, kinds


def odds(mass: float) -> str:
    """A small probability in words."""
    return f"1 in {1 / mass:,.0f}" if mass < 0.5 else f"{mass:.0%}"


def report(rows: np.ndarray, kinds: np.ndarray, forest: StreamingMPF) -> None:
    """Print the rows that stand out, most anomalous first."""
    score = forest.score_samples(rows)
    flagged = forest.predict(rows) < 0
    mass = forest.mass(rows, lifetime=np.median(forest.lifetimes_))
    planted = np.count_nonzero(kinds != "")
    print(f"{len(rows):,} readings, {planted} of them planted; asked to flag the oddest {forest.contamination:.1%}\n")
    print("   row   requests/s   latency ms   mass around it      score   verdict   planted as")
    for i in np.argsort(score)[:14]:
        verdict = "ANOMALY" if flagged[i] else "normal"
        reading = f"{i:6d}   {rows[i, 0]:10.0f}   {rows[i, 1]:10.0f}   {odds(mass[i]):>14s}"
        print(f"{reading}   {score[i]:8.2f}   {verdict:7s}   {kinds[i]}")
    print(f"\nA typical reading has {odds(np.median(mass))} around it; the line is at a score of {forest.offset_:.2f}.")
    found = np.count_nonzero(flagged & (kinds != ""))
    print(f"Found {found} of {planted} planted anomalies, and {np.count_nonzero(flagged) - found} other readings.")


def draw_partition(ax: Axes, tree: StreamingMPF, plane: tuple[np.ndarray, np.ndarray], rows: np.ndarray) -> None:
    """One tree: its cuts, and the density it gives to every part of the plane."""
    density = tree.log_density(np.column_stack([axis.ravel() for axis in plane])).reshape(plane[0].shape)
    floor = np.quantile(density, 0.25)
    ax.pcolormesh(*plane, np.maximum(density, floor), cmap="cividis", shading="nearest", rasterized=True)
    nodes = tree.forest_
    for j in np.flatnonzero(nodes.feature[0, : nodes.size[0]] >= 0):
        low, high, xi = nodes.lower[0, j], nodes.upper[0, j], nodes.cut[0, j]
        ends = ([xi, xi], [low[1], high[1]]) if nodes.feature[0, j] == 0 else ([low[0], high[0]], [xi, xi])
        ax.plot(*ends, color="white", lw=0.8)
    ax.plot(*rows.T, ".", ms=1.5, color="white", alpha=0.4)
    ax.set_title("One tree: cuts at random inside the boxes of the data, and the density it learns", fontsize=10)


def draw_flagged(
    ax: Axes, forest: StreamingMPF, plane: tuple[np.ndarray, np.ndarray], rows: np.ndarray, kinds: np.ndarray
) -> None:
    """The forest's score over the plane, its threshold, and the flagged readings."""
    score = forest.score_samples(np.column_stack([axis.ravel() for axis in plane])).reshape(plane[0].shape)
    flagged = forest.predict(rows) < 0
    shades = ax.contourf(*plane, score, levels=np.linspace(score.min(), score.max(), 25), cmap="cividis")
    ax.contour(*plane, score, levels=[forest.offset_], colors="white", linewidths=1.4, linestyles="solid")
    ax.plot(*rows[~flagged].T, ".", ms=1.5, color="white", alpha=0.5)
    ax.scatter(*rows[flagged].T, s=70, facecolors="none", edgecolors="#e8491d", linewidths=1.6, label="flagged")
    ax.scatter(*rows[kinds != ""].T, s=14, color="#e8491d", label="planted")
    for kind, points in PLANTED.items():
        offset, side = ((-9, -3), "right") if points[0][0] > 400 else ((9, -3), "left")
        label = ax.annotate(kind, points[0], offset, textcoords="offset points", color="white", fontsize=9, ha=side)
        label.set_path_effects([withStroke(linewidth=2.5, foreground="#1b2a49")])
    ax.figure.colorbar(shades, ax=ax, label="score: mean log mass over trees and scales", format="%.0f")
    ax.legend(loc="lower right", fontsize=8, framealpha=0.9)
    ax.set_title("The forest: score, threshold (white) and what it flags", fontsize=10)


def main() -> None:
    """Fit, report, draw."""
    rows, kinds = service_metrics()
    forest = StreamingMPF(contamination=0.005, random_state=0, n_jobs=2).fit(rows)  # one reading in 200 may be off
    report(rows, kinds, forest)
    tree = StreamingMPF(n_estimators=1, max_samples=None, max_depth=6, random_state=3).fit(rows)
    plane = tuple(np.meshgrid(np.linspace(-60, 720, 320), np.linspace(-25, 320, 240)))
    figure, axes = plt.subplots(1, 2, figsize=(13, 5.2), sharex=True, sharey=True, layout="constrained")
    draw_partition(axes[0], tree, plane, rows)
    draw_flagged(axes[1], forest, plane, rows, kinds)
    for ax in axes:
        ax.set_xlabel("requests per second")
    axes[0].set_ylabel("latency, ms")
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "demo.png")
    figure.savefig(out, dpi=110)
    print(f"The picture is in {out}.")


if __name__ == "__main__":
    main()
