"""Find planted anomalies in the metrics of a simulated web service, explain them, and draw them.

Run with ``make demo``; writes demo.png, or the file named on the command line.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.patheffects import withStroke

from polyaforest import StreamingMPF, Tree, plots

PLANTED = {  # requests per second, latency in milliseconds
    "slow although idle": [(110, 150), (140, 175), (95, 138)],
    "fast although busy": [(455, 60), (490, 48)],
    "overload": [(640, 290), (600, 240)],
    "dead": [(2, 1), (4, 2)],
}


def service_metrics(seed: int = 7) -> tuple[pd.DataFrame, np.ndarray]:
    """Return a week of five-minute readings of load and latency, and the kind of anomaly planted in each row."""
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
    return pd.DataFrame(rows, columns=["requests/s", "latency"]), kinds


def odds(mass: float) -> str:
    """Format a small probability."""
    return f"1 in {1 / mass:,.0f}" if mass < 0.5 else f"{mass:.0%}"


def report(rows: pd.DataFrame, kinds: np.ndarray, forest: StreamingMPF) -> None:
    """Print the most anomalous rows, and explain one of them."""
    score = forest.score_samples(rows)
    flagged = forest.predict(rows) < 0
    mass = forest.mass(rows, lifetime=np.median(forest.lifetimes_))
    planted = np.count_nonzero(kinds != "")
    print(f"{len(rows):,} readings, {planted} of them planted; flag the most unusual {forest.contamination:.1%}\n")
    print("   row   requests/s   latency ms   mass around it      score   verdict   planted as")
    for i in np.argsort(score)[:14]:
        verdict = "ANOMALY" if flagged[i] else "normal"
        load, latency = rows.iloc[i]
        reading = f"{i:6d}   {load:10.0f}   {latency:10.0f}   {odds(mass[i]):>14s}"
        print(f"{reading}   {score[i]:8.2f}   {verdict:7s}   {kinds[i]}")
    typical = odds(np.median(mass))
    print(f"\nA typical reading has {typical} around it; the threshold is a score of {forest.offset_:.2f}.")
    found = np.count_nonzero(flagged & (kinds != ""))
    print(f"Found {found} of {planted} planted anomalies, and {np.count_nonzero(flagged) - found} other readings.")
    example = int(np.flatnonzero(kinds == "slow although idle")[0])
    print(f"\nWhy row {example}?\n\n{forest.explain(rows.iloc[[example]])[0]}\n")


def draw(rows: pd.DataFrame, kinds: np.ndarray, forest: StreamingMPF) -> plt.Figure:
    """Draw one tree, the score of the forest over the plane, and the explanation of one reading."""
    figure, axes = plt.subplots(1, 3, figsize=(17, 5.2), width_ratios=[1, 1.2, 1.25], layout="constrained")
    tree = StreamingMPF(n_estimators=1, window=None, tree=Tree(max_depth=6), random_state=3).fit(rows)
    plots.partition(tree, X=rows, colorbar=False, ax=axes[0])
    axes[0].set_title("One tree: random cuts within the boxes of the data", fontsize=10)
    domain = [[-60, -25], [720, 320]]
    plots.density(forest, "score", X=rows, flag=True, domain=domain, ax=axes[1])
    axes[1].set_title("The forest: scores, and flagged readings", fontsize=10)
    for kind, points in PLANTED.items():
        offset, side = ((-9, 6), "right") if points[0][1] > 200 else ((9, -4), "left")
        label = axes[1].annotate(
            kind, points[0], offset, textcoords="offset points", color="white", fontsize=9, ha=side
        )
        label.set_path_effects([withStroke(linewidth=2.5, foreground="#1b2a49")])
    plots.attribution_bars(forest.explain(rows.iloc[np.flatnonzero(kinds == "slow although idle")[:1]])[0], ax=axes[2])
    return figure


def main() -> None:
    """Fit, report, draw."""
    rows, kinds = service_metrics()
    forest = StreamingMPF(contamination=0.005, random_state=0, n_jobs=2).fit(rows)  # one reading in 200 may be off
    report(rows, kinds, forest)
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "demo.png")
    draw(rows, kinds, forest).savefig(out, dpi=100)
    print(f"Saved the figure to {out}.")


if __name__ == "__main__":
    main()
