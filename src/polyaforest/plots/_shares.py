"""Shares of regions before and after a change."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from polyaforest.drift import Comparison
from polyaforest.plots.canvas import BLUE, GREY, PALE, SMALL, VERMILION, canvas, drawable, matplotlib, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import LineCollection, PathCollection

_LONGEST_PLACE = 160  # characters of the conditions of a region
_LINE = 38  # characters per line of the conditions


class Shares(NamedTuple):
    """Artists of `shares`."""

    ax: Axes
    before: PathCollection | None  # a dot for each region, from the top; None if there are no regions
    after: PathCollection | None
    intervals: LineCollection | None  # of `before`, then of `after`


def shares(comparison: Any, *, top: int = 8, ax: Axes | None = None) -> Shares:
    """Draw the regions whose share of the rows changed: the shares before and after, with 95 % intervals.

    Parameters
    ----------
    comparison : Comparison
        The result of ``polyaforest.drift.compare``.
    top : int, default=8
        Maximum number of regions to show.
    ax : Axes, optional
        Axes to draw on; a new figure if None.

    Returns
    -------
    drawn : Shares
        ``ax``, ``before``, ``after``, ``intervals``.
    """
    if not isinstance(comparison, Comparison):
        raise TypeError(f"expected the result of polyaforest.drift.compare; got {type(comparison).__name__}")
    if top < 1:
        raise ValueError(f"top must be at least 1 region; got {top}")
    regions = comparison.regions[:top]
    library, ax = matplotlib(), canvas(ax, 7.4, 1.5 + 0.62 * max(len(regions), 1))
    ax.spines["left"].set_visible(False)
    ax.tick_params(axis="y", length=0, labelsize=SMALL)
    ax.set_xlabel("share of the rows")
    ax.xaxis.set_major_formatter(library.ticker.FuncFormatter(lambda share, _: f"{100 * share:g} %"))
    if not regions:
        ax.set_yticks([])
        ax.text(0.5, 0.5, "no region whose share changed", transform=ax.transAxes, ha="center", color=GREY)
        return Shares(ax, None, None, None)
    places = np.arange(len(regions), dtype=float)
    values = np.array([(region.before.value, region.after.value) for region in regions])
    ends = np.array([[one[1:] for one in (region.before, region.after)] for region in regions])
    ax.hlines(places, values.min(axis=1), values.max(axis=1), color=PALE, linewidth=5, zorder=1)
    heights = np.append(places - 0.12, places + 0.12)
    intervals = ax.hlines(
        heights, ends[:, :, 0].T.ravel(), ends[:, :, 1].T.ravel(), color=GREY, linewidth=1.2, zorder=2
    )
    names = [drawable(name) for name in comparison.samples]
    before = ax.scatter(values[:, 0], places - 0.12, color=BLUE, zorder=3, clip_on=False, label=names[0])
    after = ax.scatter(values[:, 1], places + 0.12, color=VERMILION, zorder=3, clip_on=False, label=names[1])
    ax.set_yticks(places, ["\n".join(wrap(drawable(region.place, _LONGEST_PLACE), _LINE)) for region in regions])
    ax.set_ylim(len(regions) - 0.4, -0.6)
    ax.set_xlim(left=0.0)
    legend = ax.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, frameon=False, fontsize=SMALL)
    plain(*ax.get_yticklabels(), *legend.get_texts())
    return Shares(ax, before, after, intervals)
