"""Streams over time: values, forecasts, scores, threshold and flagged rows (as in the paper's NAB figures)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from polyaforest.kernels.arrays import Array
from polyaforest.plots.canvas import (
    BLUE,
    GREY,
    SKY,
    SMALL,
    VERMILION,
    canvas,
    drawable,
    in_two_lines,
    matplotlib,
    place_of,
    plain,
    read_direction,
    read_times,
    read_vector,
    split_above,
    write_dates,
)
from polyaforest.util.dates import is_date

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import LineCollection, PolyCollection
    from matplotlib.lines import Line2D

    from polyaforest.explain import Explanation
    from polyaforest.series import Forecast

_LONGEST_LINE = 10  # characters of half a name, limited by the height of a panel
_MOST_CHANNELS = 8
_LONGEST_WORDS = 90  # characters, limited by the width of a figure
_BITS_HEIGHT = 0.3  # share of a panel that the mark of the most unusual step takes
_NOWHERE = 1e300  # a threshold beyond this flags nothing, and is not drawn


class TracePlot(NamedTuple):
    """Artists of `trace`."""

    ax: Axes  # of the scores
    panels: list[Axes]  # of the values, from the top, one per channel
    scores: Line2D
    values: list[Line2D]
    threshold: Line2D | None
    flagged: list[Line2D]  # flagged rows, on every panel and on `ax`
    spans: list[PolyCollection]  # shading of runs of flagged rows, on every panel and on `ax`
    windows: list[PolyCollection]  # shading of `windows`, on every panel and on `ax`
    bands: list[PolyCollection]  # forecast intervals, on every panel


class ContextPlot(NamedTuple):
    """Artists of `context_window`."""

    ax: Axes  # of the last channel
    panels: list[Axes]  # from the top, one per channel, without `ax`
    values: list[Line2D]
    expected: list[Line2D]
    bands: list[PolyCollection]
    bits: list[LineCollection]  # bits of each step, as marks on the horizontal axis


class _Input(NamedTuple):
    """Validated input."""

    scores: Array
    values: Array  # (n_channels, n)
    times: Array
    threshold: Array | None  # a scalar, or one value per row
    flagged: Array
    names: list[str]
    is_numbered: bool  # whether row numbers stand in for times


def trace(
    scores: Any,
    values: Any = None,
    *,
    times: Any = None,
    threshold: Any = None,
    flagged: Any = None,
    windows: Sequence[tuple[Any, Any]] = (),
    expected: Forecast | None = None,
    names: Sequence[str] | None = None,
    higher: str = "normal",
    ax: Axes | None = None,
) -> TracePlot:
    """Draw the scores of a stream, its values above them, and the flagged rows.

    Parameters
    ----------
    scores : array-like of shape (n_rows,)
        As returned by `score_samples`.
    values : array-like of shape (n_rows,) or (n_rows, n_channels), optional
        The rows; each channel gets its own panel above the scores.
    times : array-like of shape (n_rows,), optional
        Numbers or dates; row numbers by default.
    threshold : float or array-like of shape (n_rows,), optional
        Rows on its anomalous side are flagged; an array for a threshold that varies.
    flagged : array-like of bool of shape (n_rows,), optional
        Flagged rows; overrides the threshold.
    windows : sequence of (first, last), optional
        Known anomalies, in units of `times`.
    expected : Forecast, optional
        Forecast of each row, as returned by `SeriesMPF.expect`, drawn as a line and a band behind the values.
    names : sequence of str, optional
        Names of the channels; column names of a frame by default.
    higher : {"normal", "anomalous"}, default="normal"
        Which rows have higher scores.
    ax : Axes, optional
        Axes to draw on; panels are taken from its top. A new figure if None.

    Returns
    -------
    drawn : TracePlot
        ``ax``, ``panels``, ``scores``, ``values``, ``threshold``, ``flagged``, ``spans``, ``windows``, ``bands``.
    """
    given = _read(scores, values, times, threshold, flagged, names, read_direction(higher))
    for k, window in enumerate(windows):
        if len(window) != 2:
            raise ValueError(f"window {k} must be a pair (first, last); got {window!r}")
        if window[1] < window[0]:
            raise ValueError(f"window {k} ends before it begins: {window!r}")
    n_channels = len(given.values)
    if expected is not None and expected.mean.shape != given.values.T.shape:
        raise ValueError(
            f"expected must have the shape of values, {given.values.shape[1]} rows and {n_channels} channels; got "
            f"{expected.mean.shape}"
        )
    tall = 1.0 if expected is None else 1.6  # a band needs space
    ax = canvas(ax, 7.4, 2.4 + 1.2 * max(n_channels * tall, 0.7))
    panels = split_above(ax, [tall] * n_channels + [1.4 if n_channels < 3 else 1.8]) if n_channels else []
    line = ax.plot(given.times, given.scores, color=GREY, linewidth=0.8)[0]
    drawn = [
        panel.plot(given.times, channel, color=BLUE, linewidth=0.9)[0]
        for panel, channel in zip(panels, given.values, strict=True)
    ]
    bands = []
    if expected is not None:
        bands = [
            draw_band(panel, given.times, expected.median[:, c], expected.low[:, c], expected.high[:, c])[1]
            for c, panel in enumerate(panels)
        ]
    for panel, name in zip(panels, given.names, strict=True):
        plain(panel.set_ylabel(in_two_lines(name, _LONGEST_LINE), fontsize=SMALL))
    boundary = _draw_threshold(ax, given)
    known = [(float(ax.convert_xunits(first)), float(ax.convert_xunits(last))) for first, last in windows]
    everything = [*zip(panels, given.values, strict=True), (ax, given.scores)]
    shades = [_shade(panel, known, GREY, 0.18) for panel, _ in everything] if known else []
    spans, dots = [], []
    if given.flagged.any():
        runs = spans_of(given.flagged, line.get_xdata(orig=False))
        spans = [_shade(panel, runs, VERMILION, 0.16) for panel, _ in everything]
        style = {"color": VERMILION, "markersize": 3.2, "markeredgewidth": 0, "zorder": 3}
        dots = [
            panel.plot(given.times, np.where(given.flagged, series, np.nan), "o", **style)[0]
            for panel, series in everything
        ]
    _label(ax, panels, given, known, higher)
    return TracePlot(ax, panels, line, drawn, boundary, dots, spans, shades, bands)


def context_window(
    explanation: Explanation, *, channels: Sequence[str | int] | None = None, ax: Axes | None = None
) -> ContextPlot:
    """Draw the context window of an explanation, with the forecast of its last steps.

    Marks at the bottom show the bits of each step; the most unusual step has the tallest mark.

    Parameters
    ----------
    explanation : Explanation
        From `explain` or `detect_then_learn` of a `SeriesMPF` without a `shingle`.
    channels : sequence of str or int, optional
        Channels to draw, by name or number; all by default.
    ax : Axes, optional
        Axes to draw on; with several channels, panels are taken from its top. A new figure if None.

    Returns
    -------
    drawn : ContextPlot
        ``ax``, ``panels``, ``values``, ``expected``, ``bands``, ``bits``.
    """
    seen = getattr(explanation, "context", None)
    if seen is None:
        raise ValueError("this explanation has no context window: pass one from a SeriesMPF without a shingle")
    chosen = [place_of(one, seen.channels) for one in (range(len(seen.channels)) if channels is None else channels)]
    if not 1 <= len(chosen) <= _MOST_CHANNELS:
        raise ValueError(f"choose 1 to {_MOST_CHANNELS} channels to draw; got {len(chosen)}")
    ax = canvas(ax, 7.4, 1.2 + 1.8 * len(chosen))
    panels = split_above(ax, [1.0] * len(chosen)) if len(chosen) > 1 else []
    times, most = _moments(seen.times), max(float(seen.bits.max()), 1e-12)
    drawn = ContextPlot(ax, panels, [], [], [], [])
    for c, panel in zip(chosen, (*panels, ax), strict=True):
        line, band = draw_band(panel, times, seen.median[:, c], seen.low[:, c], seen.high[:, c])
        values = panel.plot(times, seen.readings[:, c], color=BLUE, linewidth=1.1, zorder=2.5)[0]
        marks = _mark_bits(panel, values.get_xdata(orig=False), seen.bits[:, c] / most)
        plain(panel.set_ylabel(in_two_lines(seen.channels[c], _LONGEST_LINE), fontsize=SMALL))
        panel.margins(x=0.01, y=0.12)
        for artists, artist in zip(drawn[2:], (values, line, band, marks), strict=True):
            artists.append(artist)
    if times.dtype.kind == "M":
        write_dates(ax)
    else:
        ax.set_xlabel("steps before the reading explained" if np.isnan(seen.times).any() else "time")
    if explanation.summary:
        first = (*panels, ax)[0]
        plain(first.set_title(drawable(explanation.summary, _LONGEST_WORDS), loc="left", fontsize=10))
    if panels:
        ax.figure.align_ylabels([*panels, ax])
    return drawn


# ---- input -----------------------------------------------------------------------------------------------------------


def _read(
    scores: Any, values: Any, times: Any, threshold: Any, flagged: Any, names: Sequence[str] | None, sign: int
) -> _Input:
    """Validate the input and decide which rows are flagged."""
    heights = read_vector("scores", scores)
    n = len(heights)
    channels = _read_channels(values, n)
    limit = None
    if threshold is not None:
        limit = np.asarray(threshold, dtype=np.float64)
        if limit.shape not in ((), (n,)):
            raise ValueError(f"threshold must be a number or one for each of the {n} rows; got shape {limit.shape}")
    return _Input(
        heights,
        channels,
        read_times(times, n, "rows"),
        limit,
        _read_flags(flagged, sign * heights, None if limit is None else sign * limit),
        _read_names(names, values, len(channels)),
        times is None,
    )


def _read_channels(values: Any, n: int) -> Array:
    """Return the channels of a stream, (n_channels, n); n_channels is 0 without values."""
    if values is None:
        return np.empty((0, n))
    rows = np.asarray(values, dtype=np.float64)
    if rows.ndim not in (1, 2) or len(rows) != n:
        raise ValueError(f"values must have one row for each of the {n} scores; got shape {rows.shape}")
    channels = np.atleast_2d(rows.T)
    if len(channels) > _MOST_CHANNELS:
        raise ValueError(f"too many channels to draw: choose at most {_MOST_CHANNELS}; got {len(channels)}")
    return channels


def _read_flags(flagged: Any, heights: Array, limit: Array | None) -> Array:
    """Return which rows are flagged: `flagged` if given, else the rows below the threshold."""
    if flagged is None:
        return np.zeros(len(heights), bool) if limit is None else heights < limit
    flags = np.asarray(flagged)
    if flags.shape != heights.shape or flags.dtype != bool:
        raise ValueError(
            f"flagged must be True or False for each of the {len(heights)} rows; got {flags.dtype} {flags.shape}"
        )
    return flags


def _read_names(names: Sequence[str] | None, values: Any, n_channels: int) -> list[str]:
    """Return the names of the channels."""
    if names is None:
        columns = getattr(values, "columns", None)
        found = [str(getattr(values, "name", None) or "value")] if n_channels == 1 else None
        return list(map(str, columns)) if columns is not None else found or [f"x{k}" for k in range(n_channels)]
    if isinstance(names, str):
        names = [names]
    if len(names) != n_channels:
        raise ValueError(f"names must contain one name for each of the {n_channels} channels; got {len(names)}")
    return list(names)


def spans_of(flagged: Array, x: Array) -> list[tuple[float, float]]:
    """Return runs of flagged rows, each extended by half a step on both sides."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flagged, [False]]).astype(int)))
    half = float(np.median(np.diff(x))) / 2 if len(x) > 1 else 0.5
    return [(float(x[first]) - half, float(x[last - 1]) + half) for first, last in edges.reshape(-1, 2)]


def _moments(times: Array) -> Array:
    """Return times as dates if they look like dates, else unchanged; if unknown, steps counted back from 0."""
    if np.isnan(times).any():
        return np.arange(1 - len(times), 1)
    return (times * 1e6).astype("datetime64[us]") if is_date(times.min()) and is_date(times.max()) else times


# ---- drawing ---------------------------------------------------------------------------------------------------------


def _mark_bits(panel: Axes, x: Array, shares: Array) -> LineCollection:
    """Draw a mark for each step from the bottom of a panel; its height is the share of the largest bits."""
    ends = _BITS_HEIGHT * np.clip(shares, 0.0, None)
    marks = matplotlib().collections.LineCollection(
        [[(at, 0.0), (at, end)] for at, end in zip(x, ends, strict=True)],
        transform=panel.get_xaxis_transform(),
        colors=VERMILION,
        linewidths=1.6,
        zorder=1,
    )
    panel.add_collection(marks, autolim=False)
    return marks


def draw_band(panel: Axes, times: Array, middle: Array, low: Array, high: Array) -> tuple[Line2D, PolyCollection]:
    """Draw a forecast, behind everything else."""
    band = panel.fill_between(times, low, high, color=SKY, alpha=0.38, linewidth=0, zorder=1)
    line = panel.plot(times, middle, color=SKY, linewidth=0.9, zorder=1.5)[0]
    return line, band


def _draw_threshold(ax: Axes, given: _Input) -> Line2D | None:
    """Draw the threshold with its label, unless it flags nothing."""
    if given.threshold is None or (np.abs(given.threshold) >= _NOWHERE).all():
        return None
    heights = np.broadcast_to(given.threshold, given.scores.shape)
    line = ax.plot(given.times, heights, color=VERMILION, linewidth=1.0, linestyle=(0, (5, 3)))[0]
    ax.annotate("threshold", (1.0, heights[-1]), (4, 0), xycoords=ax.get_yaxis_transform(), textcoords="offset points",
                va="center", fontsize=SMALL, color=VERMILION, annotation_clip=False)  # fmt: skip
    return line


def _shade(panel: Axes, spans: Sequence[tuple[float, float]], colour: str, alpha: float) -> PolyCollection:
    """Shade spans over the full height of a panel; edges keep narrow spans visible."""
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


def _label(ax: Axes, panels: list[Axes], given: _Input, windows: Sequence[tuple[float, float]], higher: str) -> None:
    """Label the axes, and the windows above the first panel."""
    ax.set_ylabel(f"score\n(higher: more {higher})")
    if given.times.dtype.kind == "M":
        write_dates(ax)
    elif given.is_numbered:
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
