"""Draw the figures of the docs into docs/images/: run it as ``make figures``."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from polyaforest import BatchMPF, StreamingMPF, Tree, plots

IMAGES = Path(__file__).parent / "images"
DPI = 110
DOMAIN = np.array([[-4.0, -4.0], [7.0, 6.0]])  # of the first two figures
PER_DAY = 144  # readings of the stream in the last figure, one every ten minutes
CHANGE, HELD = 7, 3  # the day of the lasting change of that stream, and the days that the window holds


def two_blobs(n_rows: int = 300) -> np.ndarray:
    """Return a round blob and a smaller, denser one."""
    rng = np.random.default_rng(7)
    large = rng.normal([0.0, 0.0], 1.1, size=(2 * n_rows // 3, 2))
    small = rng.normal([4.5, 3.5], 0.5, size=(n_rows // 3, 2))
    return np.vstack([large, small])


def show_plane(axes, title: str) -> None:
    """Give all panels the same frame."""
    axes.set(xlim=DOMAIN[:, 0], ylim=DOMAIN[:, 1], aspect="equal", title=title, xlabel="", ylabel="")
    axes.tick_params(labelsize=8)


def partition_figure() -> plt.Figure:
    """Draw a process and a tree, each as cuts and as a Pólya density."""
    rows = two_blobs()
    common = {"feature_weights": None, "prior_strength": 0.01, "domain": DOMAIN}
    process = BatchMPF(n_estimators=1, tree=Tree(max_depth=8, **common), random_state=11).fit(rows)
    tree = StreamingMPF(n_estimators=1, window=None, tree=Tree(max_depth=5, **common), random_state=11).fit(rows)

    figure, axes = plt.subplots(2, 2, figsize=(9.4, 7.6), layout="constrained")
    for (left, right), forest in zip(axes, (process, tree), strict=True):
        plots.partition(forest, X=rows, ax=left)
        cells = plots.partition(forest, shade=True, colorbar=False, ax=right).cells
        cells.set_clim(-4.0, -0.5)
    show_plane(axes[0, 0], "Mondrian process: cuts the domain")
    show_plane(axes[0, 1], "with Pólya counts (BatchMPF)")
    show_plane(axes[1, 0], "Mondrian tree: cuts the boxes of the data")
    show_plane(axes[1, 1], "with Pólya counts (StreamingMPF)")
    figure.colorbar(cells, ax=axes[:, 1], label="log10 density, one tree", extend="both", shrink=0.8)
    return figure


def lifetimes_figure() -> plt.Figure:
    """Draw the mass of the cell around each point of the plane, at three lifetimes."""
    rows = two_blobs()
    tree = Tree(feature_weights=None)
    forest = StreamingMPF(window=len(rows), max_samples=None, tree=tree, random_state=0).fit(rows)

    figure, axes = plt.subplots(1, 3, figsize=(11.0, 3.7), layout="constrained", sharey=True)
    for view, lifetime in zip(axes, (0.3, 1.0, 3.0), strict=True):
        image = plots.density(forest, "mass", lifetime=lifetime, X=rows, domain=DOMAIN, colorbar=False, ax=view).image
        image.set_clim(-3.5, 0.0)
        lines = {"colors": "white", "linewidths": 0.8, "linestyles": "solid"}
        levels = view.contour(image.get_array(), levels=[-3, -2, -1], extent=image.get_extent(), **lines)
        view.clabel(levels, fmt=lambda level: f"{10.0**level:g}", fontsize=8)
        show_plane(view, f"lifetime {lifetime:g}")
    figure.colorbar(image, ax=axes, label="log10 mass of the cell", extend="min", shrink=0.85)
    return figure


def outside_figure() -> plt.Figure:
    """Draw scores and masses along a ray that leaves the box of the data."""
    rows = np.random.default_rng(3).normal(size=(2000, 2))
    ray = np.linspace(0.0, 20.0, 400)
    points = np.stack([ray, np.zeros_like(ray)], axis=1)
    edge = rows[:, 0].max()

    figure, (left, right) = plt.subplots(1, 2, figsize=(10.0, 3.9), layout="constrained")
    for view in (left, right):
        view.axvspan(0, edge, color="#dddddd", label="box of the data")
        view.set(xlabel="distance from the centre, along the first feature", xlim=(0, 20))
        view.spines[["top", "right"]].set_visible(False)
    for score, colour in (("multiscale", "#d98a00"), ("typicality", "#00366c")):
        scores = StreamingMPF(score_type=score, random_state=0).fit(rows).score_samples(points)
        left.plot(ray, scores, color=colour, linewidth=2, label=score)
    left.set(ylabel="score_samples", title="StreamingMPF, two scores")
    left.legend(frameon=False, loc="upper right", bbox_to_anchor=(1.0, 0.85))
    styles = [
        ("StreamingMPF", StreamingMPF, {"tree": Tree(max_depth=10), "window": None}, "#00366c", "-"),
        ("BatchMPF", BatchMPF, {"tree": Tree(max_depth=10)}, "#d98a00", "-"),
        ('BatchMPF, domain="data"', BatchMPF, {"tree": Tree(max_depth=10, domain="data")}, "black", ":"),
    ]
    for label, detector, parameters, colour, line in styles:
        mass = detector(random_state=0, **parameters).fit(rows).mass(points)
        right.semilogy(ray, np.where(mass > 0, mass, np.nan), color=colour, linestyle=line, linewidth=2, label=label)
    right.annotate('domain="data":\nmass 0 beyond the box', (edge, 1e-4), (edge + 2.0, 1e-4), va="center")
    right.set(ylabel="mean leaf mass", title="mass of the leaves, depth 10")
    right.legend(frameon=False, loc="upper right")
    return figure


def changing_stream() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return two weeks of load and latency, as days and rows, and the indices of planted anomalies."""
    rng = np.random.default_rng(5)
    days = np.arange(14 * PER_DAY) / PER_DAY
    load = 280 + 110 * np.sin(2 * np.pi * (days - 0.4)) + rng.normal(0, 14, days.size)
    latency = 35 + 0.16 * load + rng.gamma(9, 1.5, days.size)
    latency[days >= CHANGE] *= 1.75
    planted = {3.2: (295, 190), 5.6: (185, 165), 11.25: (300, 92), 12.65: (545, 178)}
    places = np.searchsorted(days, list(planted))
    load[places], latency[places] = np.transpose(list(planted.values()))
    return days, np.column_stack([load, latency]), places


def stream_figure() -> plt.Figure:
    """Draw a stream with planted anomalies and a lasting change, and the score of each row on arrival."""
    days, rows, planted = changing_stream()
    scores = StreamingMPF(window=HELD * PER_DAY, random_state=0).score_then_learn(rows)

    figure, axes = plt.subplots(3, 1, figsize=(10.0, 6.4), layout="constrained", sharex=True, height_ratios=[3, 3, 5])
    labels = ("requests/s", "latency, ms", "score_then_learn\n(higher is more normal)")
    for view, values, label in zip(axes, (*rows.T, scores), labels, strict=True):
        view.axvspan(CHANGE, CHANGE + HELD, color="#e4e4e4", linewidth=0)
        view.plot(days, values, ".", markersize=3, markeredgewidth=0, color="#00366c", alpha=0.6)
        view.plot(days[planted], values[planted], "o", markersize=7, markeredgecolor="white", color="#e8491d")
        view.spines[["top", "right"]].set_visible(False)
        view.set_ylabel(label)
    axes[1].text(CHANGE + 0.1, 60, "latency rises for good", va="center")
    axes[1].set_ylim(40, 225)
    axes[2].text(0.75, -15.6, "the first rows:\nlittle is known yet", va="center")
    axes[2].text(CHANGE + HELD / 2, -15.6, "the window (3 days) fills\nwith the new normal", va="center", ha="center")
    line = {"arrowstyle": "-", "color": "#8a8a8a", "shrinkB": 5}
    axes[2].annotate(
        "like the readings of the first week:\nan anomaly by now",
        (days[planted[2]], scores[planted[2]]),
        (12.1, -15.6),
        ha="center",
        va="center",
        arrowprops=line,
    )
    axes[2].set(xlabel="day", xlim=(-0.1, 14.1), xticks=range(15), ylim=(-18, 0.3), yticks=range(-15, 1, 5))
    figure.align_ylabels()
    return figure


def main() -> None:
    """Draw all figures."""
    IMAGES.mkdir(exist_ok=True)
    figures = {
        "partitions": partition_figure,
        "lifetimes": lifetimes_figure,
        "outside": outside_figure,
        "stream": stream_figure,
    }
    for name, draw in figures.items():
        figure = draw()
        figure.savefig(IMAGES / f"{name}.png", dpi=DPI, metadata={"Software": None})
        plt.close(figure)
        print(IMAGES / f"{name}.png")


if __name__ == "__main__":
    main()
