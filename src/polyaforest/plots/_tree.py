"""Diagram of one tree, each cut at its time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from polyaforest.detectors.forest import ForestDetector
from polyaforest.kernels.arrays import NONE
from polyaforest.plots._nodes import Node, nodes_of
from polyaforest.plots.canvas import (
    BLUE,
    GREY,
    SMALL,
    canvas,
    check_forest,
    check_numeric,
    check_tree,
    drawable,
    matplotlib,
    percent,
    plain,
)
from polyaforest.tables.validation import feature_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import LineCollection, PathCollection
    from matplotlib.text import Text

_LONGEST_NAME = 14  # characters


class Diagram(NamedTuple):
    """Artists of `tree`."""

    ax: Axes
    branches: LineCollection
    cuts: list[Text]  # one per cut, from the root down
    ends: PathCollection  # ends of branches, from left to right
    labels: list[Text]  # their masses and row counts


class Branches(NamedTuple):
    """Layout of a tree to some depth."""

    nodes: list[Node]
    is_end: list[bool]  # a leaf, or at the maximum depth
    x: list[float]


def tree(
    forest: ForestDetector, tree: int = 0, *, max_depth: int = 4, precision: int = 3, ax: Axes | None = None
) -> Diagram:
    """Draw one tree as a diagram: rows that satisfy a cut go left, the others right.

    The height of a cut is its time, on a logarithmic axis; the width of a branch shows its mass. The ends of branches
    are labelled with mass and number of rows. Filled dots are leaves; at hollow ones the tree continues.

    Parameters
    ----------
    forest : BatchMPF or StreamingMPF
    tree : int, default=0
        Index of the tree.
    max_depth : int, default=4
        Maximum depth to draw.
    precision : int, default=3
        Significant digits of the cuts.
    ax : Axes, optional
        Axes to draw on; a new figure of sufficient width if None.

    Returns
    -------
    drawn : Diagram
        ``ax``, ``branches``, ``cuts``, ``ends``, ``labels``.
    """
    check_forest(forest)
    check_numeric(forest)
    if max_depth < 0:
        raise ValueError(f"max_depth must not be negative; got {max_depth}")
    layout = _lay_out(nodes_of(forest, check_tree(forest, tree), max_depth), max_depth)
    names = [drawable(name, _LONGEST_NAME) for name in feature_names(forest)]
    column = 0.2 + 0.07 * max(6, *(len(name) for name in names))  # inches, enough for the label of a cut
    library, ax = matplotlib(), canvas(ax, max(5.0, 0.8 + column * sum(layout.is_end)), 2.4 + 0.75 * min(max_depth, 6))
    first, last = _span_of_times(layout)
    bottom = last * (last / first) ** 0.3  # leaves space for the label of the last cut
    branches = _draw_branches(library, ax, layout, first, bottom)
    cuts = _write_cuts(ax, layout, names, precision)
    ends, labels = _draw_ends(ax, layout, bottom)
    _draw_axis(library, ax, layout, first, bottom)
    return Diagram(ax, branches, cuts, ends, labels)


def share_of(node: Node) -> float:
    """Return the mass of a node's whole side, inside and outside its part."""
    return float(np.exp(node.log_masses).sum())


def _lay_out(nodes: list[Node], max_depth: int) -> Branches:
    """Give each node its own column, from left to right, so that labels of cuts do not overlap branches.

    Ends and cuts alternate in that order, and the columns of ends are 1 apart.
    """
    is_end = [node.feature == NONE or node.depth == max_depth for node in nodes]
    n_ends_from = np.cumsum(is_end[::-1])[::-1]  # ends from each node onwards
    n_ends_below = np.zeros(len(nodes), int)
    for place in range(len(nodes) - 1, -1, -1):
        n_ends_below[place] += is_end[place]
        if nodes[place].parent != NONE:
            n_ends_below[nodes[place].parent] += n_ends_below[place]
    first_end = n_ends_from[0] - n_ends_from  # ends listed before a node are to its left
    # the left branch of a cut follows it
    x = [
        float(first_end[k]) if is_end[k] else float(first_end[k] + n_ends_below[k + 1]) - 0.5 for k in range(len(nodes))
    ]
    return Branches(nodes, is_end, x)


def _span_of_times(layout: Branches) -> tuple[float, float]:
    """Return the times of the upper end of the plot and of the last cut in it."""
    times = [node.time for node, is_end in zip(layout.nodes, layout.is_end, strict=True) if not is_end]
    if not times:
        return 0.5, 1.0
    first, last = min(times), max(times)
    reach = max(last / first, 2.0)
    return first / reach**0.1, max(last, first * 2.0)


def _draw_branches(library: Any, ax: Axes, layout: Branches, first: float, bottom: float) -> LineCollection:
    """Draw each node from its parent's cut to its own, with connections to its children."""
    segments, widths = [], []
    for node, is_end, x in zip(*layout, strict=True):
        born = first if node.parent == NONE else layout.nodes[node.parent].time
        beside = x if node.parent == NONE else layout.x[node.parent]
        segments.append([(beside, born), (x, born), (x, bottom if is_end else node.time)])
        widths.append(0.6 + 5.0 * share_of(node) ** 0.5)
    branches = library.collections.LineCollection(
        segments, linewidths=widths, colors="#8fb8d4", capstyle="butt", joinstyle="miter", zorder=1
    )
    ax.add_collection(branches)
    return branches


def _write_cuts(ax: Axes, layout: Branches, names: list[str], precision: int) -> list[Text]:
    """Write the condition of each cut below it."""
    paper = {"boxstyle": "square,pad=0.05", "facecolor": ax.get_facecolor(), "edgecolor": "none"}
    style = {"ha": "center", "va": "top", "fontsize": SMALL, "linespacing": 1.1, "bbox": paper, "zorder": 3}
    words = [
        ax.annotate(
            f"{names[node.feature]}\n≤ {_rounded(node.cut, precision)}",
            (x, node.time),
            (0, -5),
            textcoords="offset points",
            **style,
        )
        for node, is_end, x in zip(*layout, strict=True)
        if not is_end
    ]
    plain(*words)
    return words


def _rounded(value: float, precision: int) -> str:
    """Format a number to `precision` digits, in full from 1,000 to 10 million."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e7 else f"{value:.{precision}g}"


def _draw_ends(ax: Axes, layout: Branches, bottom: float) -> tuple[PathCollection, list[Text]]:
    """Draw a dot at the end of each branch, sized by mass, labelled with mass and number of rows."""
    ends = [(node, x) for node, is_end, x in zip(*layout, strict=True) if is_end]
    shares = np.array([share_of(node) for node, _ in ends])
    fills = [BLUE if node.feature == NONE else ax.get_facecolor() for node, _ in ends]
    dots = ax.scatter(
        [x for _, x in ends],
        [bottom] * len(ends),
        s=14 + 240 * shares,
        c=fills,
        edgecolors=BLUE,
        zorder=4,
        clip_on=False,
    )
    style = {"ha": "center", "va": "top", "fontsize": SMALL, "linespacing": 1.15, "color": GREY}
    labels = [
        ax.annotate(
            f"{percent(share)}\n{node.n_rows:,}",
            (x, bottom),
            (0, -13),
            textcoords="offset points",
            annotation_clip=False,
            **style,
        )
        for (node, x), share in zip(ends, shares, strict=True)
    ]
    return dots, labels


def _draw_axis(library: Any, ax: Axes, layout: Branches, first: float, bottom: float) -> None:
    """Set up the axes: time downwards, no horizontal scale."""
    n_ends = sum(layout.is_end)
    ax.set_yscale("log")
    ax.set(xlim=(-0.7, n_ends - 0.3), ylim=(bottom, first), xticks=[], ylabel="time of the cut")
    ax.spines["bottom"].set_visible(False)
    is_long = bottom / first > 10
    ticks = library.ticker.LogLocator(subs=(1.0, 2.0, 5.0)) if is_long else library.ticker.MaxNLocator(6)
    ax.yaxis.set_major_locator(ticks)
    ax.yaxis.set_minor_locator(library.ticker.NullLocator())
    ax.yaxis.set_major_formatter(library.ticker.FuncFormatter(lambda time, _: f"{time:g}"))
    ax.set_xlabel("share of the mass, and rows", labelpad=38, color=GREY, fontsize=SMALL)
