"""What all pictures share: where to draw, in which colours, and what to say when something is missing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from polyaforest.core.arrays import Array
from polyaforest.core.text import label, spelled
from polyaforest.estimators._base import PolyaForest

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Text

# Okabe and Ito's colours
BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILION, PURPLE = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip
HIGH, LOW = VERMILION, BLUE  # too high, too low
GREY, PALE = "#6f6f6f", "#d9d9d9"
SMALL = 9.0  # points: labels within a picture
_LONGEST_NAME = 40  # characters


def matplotlib() -> Any:
    """The drawing library and those parts of it that pictures use, imported on first use."""
    try:
        import matplotlib as library
        import matplotlib.axes
        import matplotlib.collections
        import matplotlib.colors
        import matplotlib.dates
        import matplotlib.ticker
    except ModuleNotFoundError as problem:
        if problem.name != "matplotlib":
            raise
        raise ModuleNotFoundError(
            'polyaforest.plots needs matplotlib: pip install "polyaforest[plots]"', name="matplotlib"
        ) from problem
    return library


def canvas(ax: Axes | None, width: float = 7.0, height: float = 4.4) -> Axes:
    """The Axes to draw on, without its upper and right edge: `ax`, or those of a new figure."""
    library = matplotlib()
    if ax is None:
        from matplotlib import pyplot

        _, ax = pyplot.subplots(figsize=(width, height), layout="constrained")
    if not isinstance(ax, library.axes.Axes):
        raise TypeError(f"ax must be the Axes to draw on, or None for a new figure; got {type(ax).__name__}")
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def room_above(ax: Axes, heights: Sequence[float]) -> list[Axes]:
    """New Axes stacked above `ax` in the room that it had; `heights` are theirs, from the top, and that of `ax`."""
    spec, figure = ax.get_subplotspec(), ax.figure
    if spec is None:
        whole = ax.get_position()
        gap = 0.04 * whole.height
        unit = (whole.height - gap * (len(heights) - 1)) / sum(heights)
        tops = [whole.y1 - unit * sum(heights[:k]) - gap * k for k in range(len(heights))]
        boxes = [
            (whole.x0, top - unit * height, whole.width, unit * height)
            for top, height in zip(tops, heights, strict=True)
        ]
        panels = [figure.add_axes(box, sharex=ax) for box in boxes[:-1]]
        ax.set_position(boxes[-1])
    else:
        rows = spec.subgridspec(len(heights), 1, height_ratios=heights, hspace=0.12)
        panels = [figure.add_subplot(rows[k], sharex=ax) for k in range(len(heights) - 1)]
        ax.set_subplotspec(rows[len(heights) - 1])
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(labelbottom=False)
    return panels


def drawable(name: str, most: int = _LONGEST_NAME) -> str:
    """A name as a picture can show it: short, and what the fonts have no shape for is spelled out, not a box."""
    shown = label(name, most)
    if shown.isascii():
        return shown
    fonts = _fonts()
    chars = (char if any(font.get_char_index(ord(char)) for font in fonts) else spelled(char) for char in shown)
    return label("".join(chars), most)


def _fonts() -> list[Any]:
    """The fonts that words are drawn in: a character is taken from the first one that has it."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    return [get_font(findfont(FontProperties(family=[family]))) for family in FontProperties().get_family()]


def plain(*texts: Text) -> None:
    """Have texts that hold names drawn letter by letter: dollar signs in a name are no formula, nor backslashes TeX."""
    for text in texts:
        text.set_parse_math(False)
        text.set_usetex(False)


def write_dates(ax: Axes) -> None:
    """Label the horizontal axis with dates, as briefly as they can be told apart."""
    locator = matplotlib().dates.AutoDateLocator(maxticks=8)
    ax.xaxis.set_major_locator(locator)
    ax.xaxis.set_major_formatter(matplotlib().dates.ConciseDateFormatter(locator))


def check_forest(forest: Any) -> None:
    """Raise unless this is a forest that has been fitted and holds something."""
    if not isinstance(forest, PolyaForest):
        raise TypeError(f"this draws a fitted BatchMPF or StreamingMPF; got {type(forest).__name__}")
    check_is_fitted(forest)
    if not forest.forest_.size[0]:
        raise ValueError("this forest holds no points, so there is nothing to draw")


def check_tree(forest: PolyaForest, tree: int) -> int:
    """The number of a tree, checked."""
    n_trees = len(forest.forest_.root)
    if not -n_trees <= tree < n_trees:
        raise ValueError(f"there is no tree {tree}: this forest has {n_trees}, numbered from 0")
    return int(tree) % n_trees


def names_of(forest: PolyaForest) -> list[str]:
    """The names of a forest's features: those of the columns it was fitted on, or x0, x1, ..."""
    names = getattr(forest, "feature_names_in_", None)
    return [f"x{k}" for k in range(forest.n_features_in_)] if names is None else [str(name) for name in names]


def place_of(feature: str | int, names: Sequence[str]) -> int:
    """The place of a feature that is named, or numbered from 0."""
    if isinstance(feature, str):
        if feature not in names:
            shown = ", ".join(map(repr, names[:12])) + (", ..." if len(names) > 12 else "")
            raise ValueError(f"there is no feature {feature!r}; there are {shown}")
        return list(names).index(feature)
    if not 0 <= feature < len(names):
        raise ValueError(f"there is no feature {feature}: there are {len(names)}, numbered from 0")
    return int(feature)


def read_times(times: Any, n: int, what: str) -> Array:
    """Where along the horizontal axis each of `n` things stands: their `times`, numbers or dates, or their numbers."""
    if times is None:
        return np.arange(n)
    values = np.asarray(times)
    if values.dtype.kind == "O":
        values = np.array([_without_zone(time) for time in values.ravel()], dtype="datetime64[us]").reshape(
            values.shape
        )
    if values.shape != (n,):
        raise ValueError(f"times must hold one time for each of the {n} {what}; got shape {values.shape}")
    if values.dtype.kind not in "iufM":
        raise ValueError(f"times must be numbers or dates; got {values.dtype}")
    missing = np.flatnonzero(np.isnan(values) if values.dtype.kind != "M" else np.isnat(values))
    if missing.size:
        raise ValueError(f"time {missing[0]} is missing: leave it out, and what happened then")
    return values


def _without_zone(time: Any) -> Any:
    """A date in UTC if it names its time zone, else as it is."""
    is_zoned = isinstance(time, datetime) and time.tzinfo is not None
    return time.astimezone(UTC).replace(tzinfo=None) if is_zoned else time


def read_vector(name: str, values: Any, n: int | None = None) -> Array:
    """One number for each of `n` rows, none of them NaN."""
    vector = np.asarray(values, dtype=np.float64)
    if vector.ndim != 1 or not vector.size or (n is not None and len(vector) != n):
        wanted = "one number a row" if n is None else f"one number for each of the {n} rows"
        raise ValueError(f"{name} must hold {wanted}; got shape {vector.shape}")
    missing = np.flatnonzero(np.isnan(vector))
    if missing.size:
        raise ValueError(f"{name} holds no number in row {missing[0]}: leave such rows out")
    return vector


def read_direction(higher: str) -> int:
    """The sign that makes scores higher for normal rows."""
    if higher not in ("normal", "anomalous"):
        raise ValueError(f'higher must be "normal" or "anomalous", what rows with higher scores are; got {higher!r}')
    return 1 if higher == "normal" else -1


def percent(share: float) -> str:
    """A share in few characters."""
    return "<0.01%" if 0 < share < 1e-4 else f"{100 * share:.2g}%" if share < 0.995 else f"{100 * share:.0f}%"


def hull(boxes: Iterable[Array]) -> Array:
    """The smallest box, (2, D), that holds all of `boxes`."""
    corners = np.concatenate([np.reshape(box, (-1, np.shape(box)[-1])) for box in boxes])
    return np.stack([corners.min(axis=0), corners.max(axis=0)])
