"""A stream as it came: its values, its scores, the threshold and what fell below it (as the paper's NAB figures)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from polyaforest.core.arrays import Array
from polyaforest.plots._canvas import (
    BLUE,
    GREY,
    SMALL,
    VERMILION,
    canvas,
    drawable,
    matplotlib,
    plain,
    read_direction,
    read_times,
    read_vector,
    room_above,
    write_dates,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PolyCollection
    from matplotlib.lines import Line2D

_LONGEST_NAME = 24  # characters along the height of a panel
_MOST_CHANNELS = 8
_NOWHERE = 1e300  # a threshold that far away is no line to draw


class Trace(NamedTuple):
    """What `trace` drew."""

    ax: Axes  # of the scores
    panels: list[Axes]  # of the values, from the top, one for each channel
    scores: Line2D
    values: list[Line2D]
    threshold: Line2D | None
    flagged: list[Line2D]  # the rows flagged, on every panel and below
    spans: list[PolyCollection]  # shades over the spans of flagged rows, likewise
    windows: list[PolyCollection]  # shades over the windows given, likewise


class Story(NamedTuple):
    """What there is to draw, checked."""

    scores: Array
    values: Array  # (n_channels, n)
    times: Array
    threshold: Array | None  # a number, or one for each row
    flagged: Array
    names: list[str]
    is_numbered: bool  # whether rows have no times


def trace(
    scores: Any,
    values: Any = None,
    *,
    times: Any = None,
    threshold: Any = None,
    flagged: Any = None,
    windows: Sequence[tuple[Any, Any]] = (),
    names: Sequence[str] | None = None,
    higher: str = "normal",
    ax: Axes | None = None,
) -> Trace:
    """The scores of a stream, its values above them, and what is flagged.

    Parameters
    ----------
    scores : array-like of shape (n_rows,)
        As `score_then_learn` or `score_samples` give them.
    values : array-like of shape (n_rows,) or (n_rows, n_channels), optional
        The rows themselves; each channel gets a panel of its own above the scores.
    times : array-like of shape (n_rows,), optional
        Numbers or dates; else rows are numbered.
    threshold : float or array-like of shape (n_rows,), optional
        Rows on its anomalous side are flagged; an array is a threshold that changes.
    flagged : array-like of bool of shape (n_rows,), optional
        The rows flagged, if not by the threshold.
    windows : sequence of (first, last), optional
        Spans known to be anomalous, in units of `times`.
    names : sequence of str, optional
        What the channels are called; those of a frame's columns, by default.
    higher : {"normal", "anomalous"}, default="normal"
        What rows with higher scores are.
    ax : Axes, optional
        Where to draw; room for the values is taken from its top. A new figure if None.

    Returns
    -------
    drawn : Trace
        ``ax``, ``panels``, ``scores``, ``values``, ``threshold``, ``flagged``, ``spans``, ``windows``.
    """
    story = _read(scores, values, times, threshold, flagged, names, read_direction(higher))
    wanted = _read_windows(windows)
    n_channels = len(story.values)
    ax = canvas(ax, 7.4, 2.4 + 1.2 * max(n_channels, 0.7))
    panels = room_above(ax, [1.0] * n_channels + [1.4 if n_channels < 3 else 1.8]) if n_channels else []
    line = ax.plot(story.times, story.scores, color=GREY, linewidth=0.8)[0]
    drawn = [
        panel.plot(story.times, channel, color=BLUE, linewidth=0.9)[0]
        for panel, channel in zip(panels, story.values, strict=True)
    ]
    for panel, name in zip(panels, story.names, strict=True):
        plain(panel.set_ylabel(drawable(name, _LONGEST_NAME)))
    boundary = _draw_threshold(ax, story)
    known = [(float(ax.convert_xunits(first)), float(ax.convert_xunits(last))) for first, last in wanted]
    everything = [*zip(panels, story.values, strict=True), (ax, story.scores)]
    shades = [_shade(panel, known, GREY, 0.18) for panel, _ in everything] if known else []
    spans, dots = [], []
    if story.flagged.any():
        runs = spans_of(story.flagged, line.get_xdata(orig=False))
        spans = [_shade(panel, runs, VERMILION, 0.16) for panel, _ in everything]
        dots = [_dot(panel, story, series) for panel, series in everything]
    _label(ax, panels, story, known, higher)
    return Trace(ax, panels, line, drawn, boundary, dots, spans, shades)


# ---- what to show ----------------------------------------------------------------------------------------------------


def _read(
    scores: Any, values: Any, times: Any, threshold: Any, flagged: Any, names: Sequence[str] | None, sign: int
) -> Story:
    """All that is given, checked, and which rows are flagged."""
    heights = read_vector("scores", scores)
    n = len(heights)
    channels = _read_channels(values, n)
    limit = None
    if threshold is not None:
        limit = np.asarray(threshold, dtype=np.float64)
        if limit.shape not in ((), (n,)):
            raise ValueError(f"threshold must be a number or one for each of the {n} rows; got shape {limit.shape}")
    return Story(
        heights,
        channels,
        read_times(times, n, "rows"),
        limit,
        _read_flags(flagged, sign * heights, None if limit is None else sign * limit),
        _read_names(names, values, len(channels)),
        times is None,
    )


def _read_channels(values: Any, n: int) -> Array:
    """The channels of a stream, (n_channels, n); none if there are no values."""
    if values is None:
        return np.empty((0, n))
    rows = np.asarray(values, dtype=np.float64)
    if rows.ndim not in (1, 2) or len(rows) != n:
        raise ValueError(f"values must hold a row for each of the {n} scores; got shape {rows.shape}")
    channels = np.atleast_2d(rows.T)
    if len(channels) > _MOST_CHANNELS:
        raise ValueError(f"there are {len(channels)} channels: choose at most {_MOST_CHANNELS} of them to be drawn")
    return channels


def _read_flags(flagged: Any, heights: Array, limit: Array | None) -> Array:
    """Which rows are flagged: those given, else those below the threshold."""
    if flagged is None:
        return np.zeros(len(heights), bool) if limit is None else heights < limit
    flags = np.asarray(flagged)
    if flags.shape != heights.shape or flags.dtype != bool:
        raise ValueError(
            f"flagged must be True or False for each of the {len(heights)} rows; got {flags.dtype} {flags.shape}"
        )
    return flags


def _read_names(names: Sequence[str] | None, values: Any, n_channels: int) -> list[str]:
    """What the channels are called."""
    if names is None:
        columns = getattr(values, "columns", None)
        found = [str(getattr(values, "name", None) or "value")] if n_channels == 1 else None
        return list(map(str, columns)) if columns is not None else found or [f"x{k}" for k in range(n_channels)]
    if isinstance(names, str):
        names = [names]
    if len(names) != n_channels:
        raise ValueError(f"there are {len(names)} names for {n_channels} channels: give one for each")
    return list(names)


def _read_windows(windows: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Windows of known anomalies, checked."""
    for k, window in enumerate(windows):
        if len(window) != 2:
            raise ValueError(f"window {k} must be a first and a last time; got {window!r}")
        if window[1] < window[0]:
            raise ValueError(f"window {k} ends before it begins: {window!r}")
    return [(first, last) for first, last in windows]


def spans_of(flagged: Array, x: Array) -> list[tuple[float, float]]:
    """Runs of flagged rows, from half a step before the first to half a step after the last of each."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flagged, [False]]).astype(int)))
    half = float(np.median(np.diff(x))) / 2 if len(x) > 1 else 0.5
    return [(float(x[first]) - half, float(x[last - 1]) + half) for first, last in edges.reshape(-1, 2)]


# ---- drawing ---------------------------------------------------------------------------------------------------------


def _draw_threshold(ax: Axes, story: Story) -> Line2D | None:
    """The threshold, and its name at its end; none if it lies below everything there can be."""
    if story.threshold is None or (np.abs(story.threshold) >= _NOWHERE).all():
        return None
    heights = np.broadcast_to(story.threshold, story.scores.shape)
    line = ax.plot(story.times, heights, color=VERMILION, linewidth=1.0, linestyle=(0, (5, 3)))[0]
    ax.annotate("threshold", (1.0, heights[-1]), (4, 0), xycoords=ax.get_yaxis_transform(), textcoords="offset points",
                va="center", fontsize=SMALL, color=VERMILION, annotation_clip=False)  # fmt: skip
    return line


def _shade(panel: Axes, spans: Sequence[tuple[float, float]], colour: str, alpha: float) -> PolyCollection:
    """Shades from top to bottom of a panel over some spans; their edges keep narrow ones in sight."""
    shade = matplotlib().collections.PolyCollection(
        [[(first, 0.0), (last, 0.0), (last, 1.0), (first, 1.0)] for first, last in spans],
        transform=panel.get_xaxis_transform(),
        facecolors=colour,
        edgecolors=colour,
        linewidths=0.7,
        alpha=alpha,
        zorder=0,
    )
    panel.add_collection(shade, autolim=False)
    return shade


def _dot(panel: Axes, story: Story, series: Array) -> Line2D:
    """A dot on each row that is flagged."""
    heights = np.where(story.flagged, series, np.nan)
    return panel.plot(story.times, heights, "o", color=VERMILION, markersize=3.2, markeredgewidth=0, zorder=3)[0]


def _label(ax: Axes, panels: list[Axes], story: Story, windows: Sequence[tuple[float, float]], higher: str) -> None:
    """Names of the axes, and of the windows over the first of them."""
    ax.set_ylabel(f"score\n(higher: more {higher})")
    if story.times.dtype.kind == "M":
        write_dates(ax)
    elif story.is_numbered:
        ax.set_xlabel("row")
    if windows:
        first = (panels or [ax])[0]
        first.annotate(
            "known anomaly" if len(windows) == 1 else "known anomalies",
            (sum(windows[0]) / 2, 1.0),
            (0, 3),
            xycoords=first.get_xaxis_transform(),
            textcoords="offset points",
            ha="center",
            fontsize=SMALL,
            color=GREY,
        )
    for panel in (*panels, ax):
        panel.margins(x=0.01)
    if panels:
        ax.figure.align_ylabels([*panels, ax])
