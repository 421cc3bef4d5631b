"""Changes of a stream over time: values, evidence of windows with alarm thresholds, the run-length posterior."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from polyaforest.drift import RunLengths, Trace
from polyaforest.kernels.arrays import Array
from polyaforest.plots.canvas import (
    BLUE,
    GREY,
    SMALL,
    VERMILION,
    canvas,
    drawable,
    matplotlib,
    plain,
    read_times,
    split_above,
    write_dates,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh
    from matplotlib.lines import Line2D

_HEIGHT = 0.3  # of a panel of values, relative to that of the evidence
_MOST_CHANNELS = 4
_FLOOR = 1e-4  # probability below which the posterior is white


class Drift(NamedTuple):
    """Artists of `drift`."""

    ax: Axes  # of the evidence
    panels: list[Axes]  # of the values, from the top, one per channel; then of the run lengths, if any
    evidence: list[Line2D]  # of each window, the shortest first
    thresholds: list[Line2D]
    changes: list[Line2D]  # where each change began, on every panel and on `ax`
    posterior: QuadMesh | None


def drift(
    trace: Any,
    values: Any = None,
    *,
    windows: Sequence[int] | None = None,
    run_lengths: Sequence[tuple[int, RunLengths]] = (),
    times: Any = None,
    names: Sequence[str] | None = None,
    ax: Axes | None = None,
) -> Drift:
    """Draw the evidence of a change in each window with its alarm threshold, and when changes began.

    Parameters
    ----------
    trace : Trace
        The result of ``DriftMonitor.follow``.
    values : array-like of shape (n_rows,) or (n_rows, n_channels), optional
        The rows; each of the first four channels gets a panel above.
    windows : sequence of int, optional
        The lengths of the windows, ``DriftMonitor.windows_``, for the legend.
    run_lengths : sequence of (row, RunLengths), optional
        Results of ``DriftMonitor.run_lengths()`` after some of the rows, for a panel below the values. Dark cells are
        probable numbers of points since the change.
    times : array-like of shape (n_rows,), optional
        Numbers or dates; row numbers by default.
    names : sequence of str, optional
        Of the channels.
    ax : Axes, optional
        Axes to draw on; a new figure if None.

    Returns
    -------
    drawn : Drift
        ``ax``, ``panels``, ``evidence``, ``thresholds``, ``changes``, ``posterior``.
    """
    if not isinstance(trace, Trace):
        raise TypeError(f"expected the result of DriftMonitor.follow; got {type(trace).__name__}")
    n, n_windows = trace.evidence.shape
    when = np.arange(n) if times is None else read_times(times, n, "rows")
    channels = _read_channels(values, n)
    lengths = [""] * n_windows if windows is None else [f"last {length:,} points" for length in windows]
    if len(lengths) != n_windows:
        raise ValueError(f"windows has {len(lengths)} lengths, but the trace has {n_windows} windows")
    heights = [_HEIGHT] * len(channels) + [2 * _HEIGHT] * bool(run_lengths)
    ax = canvas(ax, 7.4, 2.6 + 1.1 * len(channels) + 1.6 * bool(run_lengths))
    panels = split_above(ax, [*heights, 1.0]) if heights else []
    for k, channel in enumerate(channels):
        panels[k].plot(when, channel, color=GREY, linewidth=0.6)
        if names is not None:
            plain(panels[k].set_ylabel(drawable(str(names[k])), fontsize=SMALL))
    posterior = _draw_posterior(panels[-1], when, run_lengths) if run_lengths else None
    shades = matplotlib().colormaps["viridis"](np.linspace(0.0, 0.85, max(n_windows, 1)))
    evidence, thresholds = [], []
    for k in range(n_windows):
        evidence += ax.plot(when, trace.evidence[:, k], color=shades[k], linewidth=1.0, label=lengths[k] or None)
        thresholds += ax.plot(when, trace.thresholds[:, k], color=shades[k], linewidth=0.8, linestyle=":")
    ax.set_ylabel("evidence of a change (nats)")
    ax.set_yscale("symlog", linthresh=5.0)
    starts = [change.start - trace.first for change in trace.changes if change.state == "begun"]
    begun = [when[start] for start in sorted(set(starts)) if 0 <= start < n]
    marks = [panel.axvline(moment, color=VERMILION, linewidth=0.9) for moment in begun for panel in (*panels, ax)]
    if windows is not None:
        ax.legend(loc="upper left", frameon=False, fontsize=SMALL)
    if times is not None:
        write_dates(ax)
    else:
        ax.set_xlabel("row")
    return Drift(ax, panels, evidence, thresholds, marks, posterior)


def _read_channels(values: Any, n: int) -> Array:
    """Return the channels to draw, (n_channels, n)."""
    if values is None:
        return np.empty((0, n))
    rows = np.asarray(values, np.float64)
    rows = rows[:, None] if rows.ndim == 1 else rows
    if rows.ndim != 2 or len(rows) != n:
        raise ValueError(f"values must have one row for each of the {n} rows of the trace; got shape {rows.shape}")
    return rows.T[:_MOST_CHANNELS]


def _draw_posterior(panel: Axes, when: Array, known: Sequence[tuple[int, RunLengths]]) -> QuadMesh:
    """Draw the probabilities of run lengths, one column per row given."""
    library = matplotlib()
    places, runs = zip(*known, strict=True)
    longest = max(len(one.probabilities) for one in runs)
    edges = np.unique(np.geomspace(1, longest + 1, 60).round().astype(int))
    image = np.full((len(edges) - 1, len(runs)), np.nan)
    for column, one in enumerate(runs):
        total = np.append(0.0, np.cumsum(one.probabilities))
        ends = np.minimum(edges - 1, len(one.probabilities))
        image[:, column] = np.diff(total[ends])
    norm = library.colors.LogNorm(_FLOOR, 1.0, clip=True)
    mesh = panel.pcolormesh(
        when[list(places)], edges[:-1], image, cmap="Blues", norm=norm, shading="nearest", rasterized=True
    )
    panel.set_yscale("log")
    panel.set_ylabel("points since\nthe change", fontsize=SMALL, color=BLUE)
    return mesh
