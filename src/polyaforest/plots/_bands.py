"""Posterior means of masses with their credible intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from polyaforest.detectors.forest import ForestDetector
from polyaforest.kernels.arrays import Array
from polyaforest.plots.canvas import BLUE, SKY, canvas, check_forest, matplotlib, read_times, read_vector, write_dates

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import LineCollection, PolyCollection
    from matplotlib.lines import Line2D

_MOST_BARS = 60  # rows drawn as bars; more are drawn as a band
_DEPTH, _OUT_OF_SIGHT = 1e-3, 1e-6  # lower limits of the axis and of the values drawn, relative to the lowest mass


class Bands(NamedTuple):
    """Artists of `credible_bands`."""

    ax: Axes
    masses: Line2D
    intervals: LineCollection | PolyCollection  # one bar per row, or a band


def credible_bands(
    forest: ForestDetector | None = None,
    X: Any = None,
    *,
    level: float = 0.9,
    lifetime: float | None = None,
    masses: Any = None,
    intervals: Any = None,
    times: Any = None,
    sort: bool = False,
    ax: Axes | None = None,
) -> Bands:
    """Draw the mass of each row with its credible interval, on a logarithmic axis.

    Intervals may reach down to 0; the axis ends at a thousandth of the lowest mass.

    Parameters
    ----------
    forest : BatchMPF or StreamingMPF, optional
    X : array-like of shape (n_rows, n_features), optional
        Rows. The forest computes `masses` and `intervals` unless given.
    level : float in (0, 1), default=0.9
        Probability of the intervals.
    lifetime : float, optional
        As in ``forest.mass`` and ``forest.credible_interval``.
    masses : array-like of shape (n_rows,), optional
        As returned by ``forest.mass(X, lifetime)``.
    intervals : array-like of shape (n_rows, 2), optional
        As returned by ``forest.credible_interval(X, level, lifetime)``.
    times : array-like of shape (n_rows,), optional
        Numbers or dates; row numbers by default.
    sort : bool, default=False
        Order rows by mass.
    ax : Axes, optional
        Axes to draw on; a new figure if None.

    Returns
    -------
    drawn : Bands
        ``ax``, ``masses`` and ``intervals``: bars for up to 60 rows, else a band.
    """
    middle, ends = _read(forest, X, level, lifetime, masses, intervals)
    if sort and times is not None:
        raise ValueError("cannot order rows by mass and by time: omit sort or times")
    x = read_times(times, len(middle), "rows")
    if sort:
        order = np.argsort(middle, kind="stable")
        middle, ends = middle[order], ends[order]
    library, ax = matplotlib(), canvas(ax)
    lowest = float(middle[middle > 0].min(initial=1.0))
    low, high = np.maximum(ends, lowest * _OUT_OF_SIGHT).T  # a logarithmic axis has no 0
    is_few = len(middle) <= _MOST_BARS
    style = {"linestyle": "none", "marker": "o", "markersize": 4.5} if is_few else {"linewidth": 1.1}
    line = ax.plot(x, np.maximum(middle, lowest * _OUT_OF_SIGHT), color=BLUE, zorder=3, **style)[0]
    if is_few:
        drawn = ax.vlines(x, low, high, color=SKY, linewidth=2.2, capstyle="round", zorder=2)
    else:
        drawn = ax.fill_between(x, low, high, color=SKY, alpha=0.45, linewidth=0, zorder=2)
    ax.set_yscale("log")
    ax.set_ylim(bottom=max(float(low.min()) / 1.5, lowest * _DEPTH))
    ax.yaxis.set_major_formatter(library.ticker.FuncFormatter(lambda mass, _: f"{100 * mass:g}%"))
    ax.yaxis.set_minor_formatter(library.ticker.NullFormatter())
    if x.dtype.kind == "M":
        write_dates(ax)
    ax.set(xlabel="rows, by mass" if sort else "row" if times is None else "")
    ax.set_ylabel(f"mass, with its {level:.0%} credible interval")
    return Bands(ax, line, drawn)


def _read(
    forest: ForestDetector | None, X: Any, level: float, lifetime: float | None, masses: Any, intervals: Any
) -> tuple[Array, Array]:
    """Return masses, (n,), and intervals, (n, 2), as given or as computed by the forest."""
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, such as 0.9; got {level}")
    if masses is None or intervals is None:
        if forest is None or X is None:
            raise ValueError("pass a forest and rows X, or both masses and intervals")
        check_forest(forest)
        masses = forest.mass(X, lifetime) if masses is None else masses
        intervals = forest.credible_interval(X, level, lifetime) if intervals is None else intervals
    middle = read_vector("masses", masses)
    ends = np.asarray(intervals, dtype=np.float64)
    if ends.shape != (len(middle), 2):
        raise ValueError(f"intervals must have shape ({len(middle)}, 2); got {ends.shape}")
    bad = np.flatnonzero(~((ends[:, 0] <= ends[:, 1]) & (ends[:, 0] >= 0)))
    if bad.size:
        raise ValueError(f"the interval of row {bad[0]} must be two ascending masses; got {ends[bad[0]].tolist()}")
    return middle, ends
