"""Blame: how many bits of surprise each feature adds, for one row as bars, for many rows or steps as a map."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from polyaforest.core.arrays import Array
from polyaforest.explain import Blame, Explanation, Explanations
from polyaforest.plots._canvas import (
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

_LONGEST_NAME = 24  # characters of a name beside its bar: the words above need the width
_LONGEST_HEADLINE = 500  # characters of words about a region


class Bars(NamedTuple):
    """What `blame_bars` drew."""

    ax: Axes
    bars: BarContainer  # the most blamed feature first, the sum of those not shown last
    labels: list[Text]


class BlameMap(NamedTuple):
    """What `blame_map` drew."""

    ax: Axes
    mesh: QuadMesh
    colorbar: Colorbar | None


class Bar(NamedTuple):
    """One bar, to be drawn."""

    name: str
    bits: float
    colour: str
    words: str


# ---- one row ---------------------------------------------------------------------------------------------------------


def blame_bars(explanation: Any, *, top: int = 8, ax: Axes | None = None) -> Bars:
    """What makes a row surprising: bits that each feature adds to what a typical row gets, the most blamed first.

    The features to blame are coloured by side, too high or too low, and say which values would have been normal. Bars
    to the left are of features in which the row is more usual than a typical one.

    Parameters
    ----------
    explanation : Explanation
        One row of ``forest.explain(X)``.
    top : int, default=8
        How many features to show; the others are added up in one bar.
    ax : Axes, optional
        Where to draw; a new figure if None.

    Returns
    -------
    drawn : Bars
        ``ax``, ``bars``, ``labels``.
    """
    _check_one(explanation)
    if top < 1:
        raise ValueError(f"top must be at least 1 feature; got {top}")
    bars = _bars_of(explanation, top)
    lengths = _drawable(np.array([bar.bits for bar in bars]))
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
    room = max(high - low, 1e-9)  # of which words take their share
    ax.set_xlim(low - (0.16 if low < 0 else 0.01) * room, high + 0.42 * room)
    ax.tick_params(axis="y", length=0, labelsize=SMALL)
    ax.spines["left"].set_visible(False)
    ax.set_xlabel("bits of surprise, beyond those of a typical row")
    _write_headline(ax, explanation)
    return Bars(ax, drawn, labels)


def _check_one(explanation: Any) -> None:
    """Raise unless this is the explanation of a single row."""
    if isinstance(explanation, Explanations):
        raise TypeError(f"bars are of one row, and here are {len(explanation)}: draw explanations[0], or a blame_map")
    if not isinstance(explanation, Explanation):
        raise TypeError(f"this draws an Explanation, forest.explain(X)[0]; got {type(explanation).__name__}")


def _bars_of(explanation: Explanation, top: int) -> list[Bar]:
    """A bar for each of the `top` features, and one for the others together."""
    parts = explanation.parts
    order = np.argsort(-np.abs(parts), kind="stable").tolist()
    if len(order) == top + 1:
        top += 1  # one other is as well shown by its name
    blamed = {blame.feature: blame for blame in explanation.blamed}
    bars = [_bar_of(explanation, k, blamed.get(k)) for k in sorted(order[:top], key=lambda k: -parts[k])]
    rest = order[top:]
    return [*bars, Bar(f"{len(rest)} others", float(parts[rest].sum()), PALE, "")] if rest else bars


def _bar_of(explanation: Explanation, k: int, blame: Blame | None) -> Bar:
    """The bar of feature `k`, which says what its value is, what it is as a rule, and what would have been normal."""
    value, usual = explanation._number(k, float(explanation.values[k])), explanation.usual[:, k].tolist()
    name = f"{drawable(explanation.names[k], _LONGEST_NAME)} = {value}\nusual {explanation._range(k, usual)}"
    bits = float(explanation.parts[k])
    if blame is None:
        return Bar(name, bits, PALE, "")
    words = f"too {blame.side}" if explanation.is_anomaly else blame.side
    if explanation.is_anomaly and blame.expected is not None:
        words += f"\nnormal: {explanation._expected_in_words(blame)}"
    return Bar(name, bits, HIGH if blame.side == "high" else LOW, words)


def _drawable(bits: Array) -> Array:
    """Lengths of bars: bits, but for those without end, which are drawn a little longer than the longest."""
    finite = np.abs(bits[np.isfinite(bits)])
    longest = 1.3 * max(float(finite.max(initial=0.0)), 1.0)
    return np.nan_to_num(bits, posinf=longest, neginf=-longest)


def _write_bits(ax: Axes, bar: Bar, place: int, length: float) -> Text:
    """The bits of a bar and what is to be said of it, at its end."""
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
    """The verdict, and below it the bits behind it and the region in words."""
    verdict, _, bits = explanation._verdict.partition(" (")
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


def blame_map(
    explanations: Any,
    n_steps: int | None = None,
    times: Any = None,
    *,
    features: Sequence[str | int] | None = None,
    top: int = 16,
    limit: float | None = None,
    colorbar: bool = True,
    ax: Axes | None = None,
) -> BlameMap:
    """Which feature was odd when: bits of surprise by feature and time, for being too high or too low.

    Parameters
    ----------
    explanations : Explanations or Explanation
        ``forest.explain(X)``, the rows of `X` in the order of time; or one row that is a shingle.
    n_steps : int, optional
        If the rows are shingles: of how many steps. Blame is put where it belongs in time; where shingles overlap it is
        the mean over those that hold the step.
    times : array-like, optional
        Numbers or dates, one for each row; of shingles, one for each step that they cover.
    features : sequence of names or numbers, optional
        Which features (of shingles: channels) to show, from the top.
    top : int, default=16
        How many features to show if they are not named: the most blamed, in their own order.
    limit : float, optional
        Bits at which colours end; by default the most there are.
    colorbar : bool, default=True
        Whether to draw one beside `ax`.
    ax : Axes, optional
        Where to draw; a new figure if None.

    Returns
    -------
    drawn : BlameMap
        ``ax``, ``mesh``, ``colorbar``.
    """
    signed, names = _signed_blame(explanations)
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
    shades = library.colors.LinearSegmentedColormap.from_list("blame", [LOW, "#ffffff", HIGH], N=33)
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
    ax.set_xlabel(_name_of_times(times, n_steps, is_one))
    bar = _draw_key(ax, mesh, most) if colorbar else None
    return BlameMap(ax, mesh, bar)


def _signed_blame(explanations: Any) -> tuple[Array, list[str]]:
    """Bits, (n, D), above 0 for being too high and below 0 for being too low, and the names of the features.

    Of the two sides the worse one counts. Where a feature is more usual than that of a typical row, nobody is to blame.
    """
    if isinstance(explanations, Explanation):
        explanations = [explanations]
    if len(explanations) == 0 or not all(isinstance(one, Explanation) for one in explanations):
        raise TypeError("this draws the explanations of some rows, forest.explain(X)")
    high, low = (np.stack([np.asarray(getattr(one, side)) for one in explanations]) for side in ("high", "low"))
    blame = np.where(high >= low, np.maximum(high, 0.0), -np.maximum(low, 0.0))
    return blame, list(explanations[0].names)


def _unfolded(signed: Array, names: list[str], n_steps: int) -> tuple[Array, list[str]]:
    """Blame of shingles by time step and channel: the mean over the shingles that hold a step."""
    n, width = signed.shape
    if n_steps < 1 or width % n_steps:
        raise ValueError(f"rows of {width} features cannot be shingles of {n_steps} steps: it must divide {width}")
    n_channels = width // n_steps
    steps = signed.reshape(n, n_steps, n_channels)
    total, covered = np.zeros((n + n_steps - 1, n_channels)), np.zeros((n + n_steps - 1, 1))
    for step in range(n_steps):
        total[step : step + n] += steps[:, step]
        covered[step : step + n] += 1
    return total / covered, [_name_of_channel(names[k::n_channels], k) for k in range(n_channels)]


def _name_of_channel(names: list[str], k: int) -> str:
    """How the names of a channel's columns begin, as "cpu" in cpu[t-1] and cpu[t]; else its number."""
    signs = takewhile(lambda signs: len(set(signs)) == 1, zip(*names, strict=False))
    common = "".join(same[0] for same in signs)
    common = common.rstrip("[(_-. t") if len(names) > 1 else common
    return common if len(common) > 1 else f"channel {k}"


def _choose(signed: Array, names: list[str], features: Sequence[str | int] | None, top: int) -> list[int]:
    """Which features to show: those named, or the most blamed."""
    if features is not None:
        if isinstance(features, str) or not len(features):
            raise ValueError(f"features must be a list of names or numbers; got {features!r}")
        return [place_of(feature, names) for feature in features]
    if top < 1:
        raise ValueError(f"top must be at least 1 feature; got {top}")
    most = np.abs(signed).max(axis=0)
    return sorted(np.argsort(-most, kind="stable")[:top].tolist())


def _edges(x: Array) -> Array:
    """The edges of cells around points on a line."""
    if len(x) == 1:
        return np.array([x[0] - 0.5, x[0] + 0.5])
    middles = (x[1:] + x[:-1]) / 2
    return np.concatenate([[2 * x[0] - middles[0]], middles, [2 * x[-1] - middles[-1]]])


def _name_of_times(times: Any, n_steps: int | None, is_one: bool) -> str:
    """What the horizontal axis shows, if that is not plain from its labels."""
    if times is not None:
        return ""
    if n_steps is None:
        return "row"
    return "step, 0 being the last" if is_one else "step"


def _draw_key(ax: Axes, mesh: QuadMesh, most: float) -> Colorbar:
    """A colour bar that says which end is which."""
    bar = ax.figure.colorbar(mesh, ax=ax, aspect=18, pad=0.02)
    bar.outline.set_visible(False)
    bar.set_ticks([-most, 0, most], labels=[f"{most:.1f} bits\ntoo low", "0", f"{most:.1f} bits\ntoo high"])
    bar.ax.tick_params(length=0, labelsize=SMALL)
    return bar
