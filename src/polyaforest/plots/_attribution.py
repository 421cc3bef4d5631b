"""Attribution: bits of surprise per feature, as bars for one row or as a heat map for many rows or steps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from polyaforest.explain import Attribution, Explanation, Explanations
from polyaforest.kernels.arrays import Array
from polyaforest.plots.canvas import (
    GREY,
    HIGH,
    LOW,
    PALE,
    SMALL,
    canvas,
    drawable,
    matplotlib,
    place_of,
    plain,
    read_times,
    write_dates,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh
    from matplotlib.colorbar import Colorbar
    from matplotlib.container import BarContainer
    from matplotlib.text import Text

_LONGEST_NAME = 20  # characters of a name beside its bar; the headline needs the width
_LONGEST_VALUE, _LONGEST_RANGE = 14, 36  # characters of a value, and of the usual or normal values
_LONGEST_HEADLINE = 500  # characters of the description of a region


class Bars(NamedTuple):
    """Artists of `attribution_bars`."""

    ax: Axes
    bars: BarContainer  # largest attribution first, the sum of the features not shown last
    labels: list[Text]


class AttributionMap(NamedTuple):
    """Artists of `attribution_map`."""

    ax: Axes
    mesh: QuadMesh
    colorbar: Colorbar | None


class Bar(NamedTuple):
    """One bar."""

    name: str
    bits: float
    colour: str
    words: str


# ---- one row ---------------------------------------------------------------------------------------------------------


def attribution_bars(explanation: Any, *, top: int = 8, ax: Axes | None = None) -> Bars:
    """Draw the attribution of one row: the bits that each feature adds to the surprise of a typical row, largest first.

    Features that explain the anomaly are coloured by side, too high or too low, and labelled with their normal range.
    Bars to the left are features in which the row is more normal than a typical one.

    Parameters
    ----------
    explanation : Explanation
        One row of ``forest.explain(X)``.
    top : int, default=8
        Number of features to show; the others are summed in one bar.
    ax : Axes, optional
        Axes to draw on; a new figure if None.

    Returns
    -------
    drawn : Bars
        ``ax``, ``bars``, ``labels``.
    """
    if isinstance(explanation, Explanations):
        raise TypeError(
            f"attribution_bars draws one row, got {len(explanation)}: pass explanations[0], or use attribution_map"
        )
    if not isinstance(explanation, Explanation):
        raise TypeError(f"expected an Explanation, such as forest.explain(X)[0]; got {type(explanation).__name__}")
    if top < 1:
        raise ValueError(f"top must be at least 1 feature; got {top}")
    bars = _bars_of(explanation, top)
    bits = np.array([bar.bits for bar in bars])
    longest = 1.3 * max(float(np.abs(bits[np.isfinite(bits)]).max(initial=0.0)), 1.0)
    lengths = np.nan_to_num(bits, posinf=longest, neginf=-longest)  # infinite bars are a little longer than the others
    ax = canvas(ax, 7.4, 1.7 + 0.5 * len(bars))
    places = np.arange(len(bars))
    drawn = ax.barh(places, lengths, height=0.56, color=[bar.colour for bar in bars])
    labels = [
        _write_bits(ax, bar, place, length) for place, (bar, length) in enumerate(zip(bars, lengths, strict=True))
    ]
    ax.axvline(0, color=GREY, linewidth=0.8)
    ax.set_yticks(places, [bar.name for bar in bars], linespacing=1.3)
    plain(*ax.get_yticklabels())
    ax.set_ylim(len(bars) - 0.45, -0.55)
    low, high = min(0.0, lengths.min()), max(0.0, lengths.max())
    width = max(high - low, 1e-9)  # of the bars, without their labels
    ax.set_xlim(low - (0.16 if low < 0 else 0.01) * width, high + 0.42 * width)
    ax.tick_params(axis="y", length=0, labelsize=SMALL)
    ax.spines["left"].set_visible(False)
    ax.set_xlabel("bits of surprise beyond a typical row")
    _write_headline(ax, explanation)
    return Bars(ax, drawn, labels)


def _bars_of(explanation: Explanation, top: int) -> list[Bar]:
    """Return a bar for each of the `top` features, and one for the sum of the others."""
    parts = explanation.parts
    order = np.argsort(-np.abs(parts), kind="stable").tolist()
    if len(order) == top + 1:
        top += 1  # a single other feature is shown by name
    explaining = {one.feature: one for one in explanation.attributions}
    bars = [_bar_of(explanation, k, explaining.get(k)) for k in sorted(order[:top], key=lambda k: -parts[k])]
    rest = order[top:]
    return [*bars, Bar(f"{len(rest)} others", float(parts[rest].sum()), PALE, "")] if rest else bars


def _bar_of(explanation: Explanation, k: int, attribution: Attribution | None) -> Bar:
    """Return the bar of feature `k`, labelled with its value, usual range and normal values."""
    value = drawable(explanation.format_value(k, explanation.values[k]), _LONGEST_VALUE)
    usual = drawable(explanation.format_usual(k), _LONGEST_RANGE)
    name = f"{drawable(explanation.names[k], _LONGEST_NAME)} = {value}\nusual {usual}"
    bits = float(explanation.parts[k])
    if attribution is None:
        return Bar(name, bits, PALE, "")
    words = attribution.direction if explanation.is_anomaly else attribution.side
    if explanation.is_anomaly and attribution.expected is not None:
        words += f"\nnormal: {drawable(explanation.format_expected(attribution), _LONGEST_RANGE)}"
    return Bar(name, bits, LOW if attribution.side == "low" else HIGH, words)


def _write_bits(ax: Axes, bar: Bar, place: int, length: float) -> Text:
    """Write the bits and the label of a bar at its end."""
    is_right = length >= 0
    sign = "+" if bar.bits >= 0.05 else "−" if bar.bits <= -0.05 else ""
    amount = f"{abs(bar.bits):.1f}" if np.isfinite(bar.bits) else "∞"
    return ax.annotate(
        f"{sign}{amount} {bar.words}".rstrip(),
        (length, place),
        (5 if is_right else -5, 0),
        textcoords="offset points",
        ha="left" if is_right else "right",
        va="center",
        fontsize=SMALL,
        linespacing=1.25,
        color=GREY if bar.colour == PALE else bar.colour,
    )


def _write_headline(ax: Axes, explanation: Explanation) -> None:
    """Write the verdict and, below it, its bits and the description of the region."""
    verdict, _, bits = explanation.verdict.partition(" (")
    lines = [*wrap(bits.removesuffix(")"), 88), *wrap(drawable(explanation.region, _LONGEST_HEADLINE), 88)]
    ax.set_title(verdict, loc="left", fontsize=SMALL + 2, pad=12 + 1.35 * SMALL * len(lines))
    words = ax.annotate(
        "\n".join(lines),
        (0.0, 1.0),
        (0, 7),
        xycoords="axes fraction",
        textcoords="offset points",
        fontsize=SMALL,
        color=GREY,
        linespacing=1.25,
        va="bottom",
    )
    plain(words)


# ---- many rows -------------------------------------------------------------------------------------------------------


def attribution_map(
    explanations: Any,
    n_steps: int | None = None,
    times: Any = None,
    *,
    features: Sequence[str | int] | None = None,
    top: int = 16,
    limit: float | None = None,
    colorbar: bool = True,
    ax: Axes | None = None,
) -> AttributionMap:
    """Draw attributions by feature and time as a heat map: bits of surprise for being too high or too low.

    Parameters
    ----------
    explanations : Explanations or Explanation
        ``forest.explain(X)`` with the rows of `X` in time order; or the explanation of one shingle.
    n_steps : int, optional
        For shingles, the number of steps in each. Attributions are drawn at the time of their step, averaged over
        the shingles that contain it.
    times : array-like, optional
        Numbers or dates, one per row; for shingles, one per step that they cover.
    features : sequence of names or numbers, optional
        Features (for shingles, channels) to show, from the top.
    top : int, default=16
        Number of features to show if `features` is None: the largest attributions, in column order.
    limit : float, optional
        Bits at the ends of the colour scale; the largest attribution by default.
    colorbar : bool, default=True
        Whether to draw a colour bar beside `ax`.
    ax : Axes, optional
        Axes to draw on; a new figure if None.

    Returns
    -------
    drawn : AttributionMap
        ``ax``, ``mesh``, ``colorbar``.
    """
    signed, names = _signed_bits(explanations)
    is_one = len(signed) == 1
    if n_steps is not None:
        signed, names = _unfolded(signed, names, n_steps)
    shown = _choose(signed, names, features, top)
    signed, names = signed[:, shown], [names[k] for k in shown]
    x = read_times(times, len(signed), "rows" if n_steps is None else "steps")
    if n_steps is not None and is_one and times is None:
        x = x - (len(signed) - 1)

    library, ax = matplotlib(), canvas(ax, 7.4, 1.3 + 0.34 * max(len(names), 3))
    most = limit or float(np.abs(signed[np.isfinite(signed)]).max(initial=0.0)) or 1.0
    signed = np.clip(signed, -most, most)
    shades = library.colors.LinearSegmentedColormap.from_list("attribution", [LOW, "#ffffff", HIGH], N=33)
    is_date = x.dtype.kind == "M"
    edges = _edges(library.dates.date2num(x) if is_date else x)
    mesh = ax.pcolormesh(edges, np.arange(len(names) + 1) - 0.5, signed.T, cmap=shades, vmin=-most, vmax=most)
    if is_date:
        ax.xaxis_date()
        write_dates(ax)
    elif times is None:
        ax.xaxis.set_major_locator(library.ticker.MaxNLocator(integer=True))
    ax.set_yticks(np.arange(len(names)), [drawable(name) for name in names])
    plain(*ax.get_yticklabels())
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.tick_params(axis="y", length=0)
    ax.spines[:].set_visible(False)
    if times is None:
        ax.set_xlabel("row" if n_steps is None else "step (0: the last)" if is_one else "step")
    bar = _draw_key(ax, mesh, most) if colorbar else None
    return AttributionMap(ax, mesh, bar)


def _signed_bits(explanations: Any) -> tuple[Array, list[str]]:
    """Return bits, (n, D), positive for too high and negative for too low, and the feature names.

    The larger of the two sides counts; a feature more normal than in a typical row gets 0.
    """
    if isinstance(explanations, Explanation):
        explanations = [explanations]
    if len(explanations) == 0 or not all(isinstance(one, Explanation) for one in explanations):
        raise TypeError("explanations must be one or more explanations of rows, such as forest.explain(X)")
    high, low = (np.stack([np.asarray(getattr(one, side)) for one in explanations]) for side in ("high", "low"))
    signed = np.where(high >= low, np.maximum(high, 0.0), -np.maximum(low, 0.0))
    return signed, list(explanations[0].names)


def _unfolded(signed: Array, names: list[str], n_steps: int) -> tuple[Array, list[str]]:
    """Return attributions of shingles by time step and channel, averaged over the shingles that contain a step."""
    n, width = signed.shape
    if n_steps < 1 or width % n_steps:
        raise ValueError(f"n_steps must divide the number of features, {width}; got {n_steps}")
    n_channels = width // n_steps
    steps = signed.reshape(n, n_steps, n_channels)
    total, covered = np.zeros((n + n_steps - 1, n_channels)), np.zeros((n + n_steps - 1, 1))
    for step in range(n_steps):
        total[step : step + n] += steps[:, step]
        covered[step : step + n] += 1
    return total / covered, [_name_of_channel(names[k::n_channels], k) for k in range(n_channels)]


def _name_of_channel(names: list[str], k: int) -> str:
    """Return the common prefix of a channel's columns, such as "cpu" of cpu[t-1] and cpu[t]; else its number."""
    signs = takewhile(lambda signs: len(set(signs)) == 1, zip(*names, strict=False))
    common = "".join(same[0] for same in signs)
    common = common.rstrip("[(_-. t") if len(names) > 1 else common
    return common if len(common) > 1 else f"channel {k}"


def _choose(signed: Array, names: list[str], features: Sequence[str | int] | None, top: int) -> list[int]:
    """Return the features to show: those named, else the largest attributions."""
    if features is not None:
        if isinstance(features, str) or not len(features):
            raise ValueError(f"features must be a list of names or numbers; got {features!r}")
        return [place_of(feature, names) for feature in features]
    if top < 1:
        raise ValueError(f"top must be at least 1 feature; got {top}")
    most = np.abs(signed).max(axis=0)
    return sorted(np.argsort(-most, kind="stable")[:top].tolist())


def _edges(x: Array) -> Array:
    """Return the edges of cells centred on points of a line."""
    if len(x) == 1:
        return np.array([x[0] - 0.5, x[0] + 0.5])
    middles = (x[1:] + x[:-1]) / 2
    return np.concatenate([[2 * x[0] - middles[0]], middles, [2 * x[-1] - middles[-1]]])


def _draw_key(ax: Axes, mesh: QuadMesh, most: float) -> Colorbar:
    """Draw a colour bar with labelled ends."""
    bar = ax.figure.colorbar(mesh, ax=ax, aspect=18, pad=0.02)
    bar.outline.set_visible(False)
    bar.set_ticks([-most, 0, most], labels=[f"{most:.1f} bits\ntoo low", "0", f"{most:.1f} bits\ntoo high"])
    bar.ax.tick_params(length=0, labelsize=SMALL)
    return bar
