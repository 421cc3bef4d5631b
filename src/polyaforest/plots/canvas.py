"""Axes, colours, labels and input checks that all plots share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from polyaforest.detectors.forest import ForestDetector
from polyaforest.kernels.arrays import Array
from polyaforest.util.text import label, spelled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Text

# Okabe and Ito's colours
BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILION, PURPLE = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip
HIGH, LOW = VERMILION, BLUE  # too high, too low
GREY, PALE = "#6f6f6f", "#d9d9d9"
SMALL = 9.0  # points: labels within a plot
_LONGEST_NAME = 40  # characters


def matplotlib() -> Any:
    """Import matplotlib and the submodules that plots use."""
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
    """Return `ax` or the Axes of a new figure, without upper and right spines."""
    library = matplotlib()
    if ax is None:
        from matplotlib import pyplot

        _, ax = pyplot.subplots(figsize=(width, height), layout="constrained")
    if not isinstance(ax, library.axes.Axes):
        raise TypeError(f"ax must be Axes, or None for a new figure; got {type(ax).__name__}")
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def split_above(ax: Axes, heights: Sequence[float]) -> list[Axes]:
    """Split `ax` into stacked Axes and return those above it; `heights` are relative, from the top to `ax` itself."""
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
    """Return a name shortened, with characters that the fonts lack escaped rather than drawn as boxes."""
    shown = label(name, most)
    if shown.isascii():
        return shown
    from matplotlib.font_manager import FontProperties, findfont, get_font

    families = FontProperties().get_family()  # matplotlib draws a character with the first font that has it
    fonts = [get_font(findfont(FontProperties(family=[family]))) for family in families]
    chars = (char if any(font.get_char_index(ord(char)) for font in fonts) else spelled(char) for char in shown)
    return label("".join(chars), most)


def in_two_lines(name: str, most: int) -> str:
    """Return a drawable name of at most two lines of `most` characters, broken between its parts if possible."""
    shown = drawable(name, 2 * most)
    if len(shown) <= most:
        return shown
    parts = [at for at in range(len(shown) - most, most + 1) if shown[at - 1] in " _-./"]
    at = min(parts, key=lambda place: abs(2 * place - len(shown)), default=most)
    return f"{shown[:at].rstrip()}\n{shown[at:].lstrip()}"


def plain(*texts: Text) -> None:
    """Disable math and TeX in texts that contain names, which may have dollar signs and backslashes."""
    for text in texts:
        text.set_parse_math(False)
        text.set_usetex(False)


def write_dates(ax: Axes) -> None:
    """Label the horizontal axis with concise dates."""
    # with minticks > 3, the locator finds no ticks for four days
    locator = matplotlib().dates.AutoDateLocator(minticks=3, maxticks=8)
    ax.xaxis.set_major_locator(locator)
    ax.xaxis.set_major_formatter(matplotlib().dates.ConciseDateFormatter(locator))


def check_forest(forest: Any) -> None:
    """Raise unless `forest` is fitted and holds points."""
    if not isinstance(forest, ForestDetector):
        raise TypeError(f"forest must be a fitted BatchMPF or StreamingMPF; got {type(forest).__name__}")
    check_is_fitted(forest)
    if not forest.forest_.size[0]:
        raise ValueError("forest holds no points: nothing to draw")


def check_tree(forest: ForestDetector, tree: int) -> int:
    """Validate the index of a tree; return it, counted from 0."""
    n_trees = len(forest.forest_.root)
    if not -n_trees <= tree < n_trees:
        raise ValueError(f"no tree {tree}: the forest has {n_trees} trees, numbered from 0")
    return int(tree) % n_trees


def check_numeric(forest: ForestDetector) -> None:
    """Raise for a forest with categories: cuts by category have no position on an axis."""
    if forest.encoding_ is not None:
        raise ValueError(
            "this plot needs numeric features, and the forest has categories: use explain and attribution_bars"
        )


def place_of(feature: str | int, names: Sequence[str]) -> int:
    """Return the index of a feature given by name or index."""
    if isinstance(feature, str):
        if feature not in names:
            shown = ", ".join(map(repr, names[:12])) + (", ..." if len(names) > 12 else "")
            raise ValueError(f"unknown feature {feature!r}; features are {shown}")
        return list(names).index(feature)
    if not 0 <= feature < len(names):
        raise ValueError(f"no feature {feature}: there are {len(names)} features, numbered from 0")
    return int(feature)


def read_times(times: Any, n: int, what: str) -> Array:
    """Return `n` positions on the horizontal axis: `times`, numbers or dates, else 0 to n - 1."""
    if times is None:
        return np.arange(n)
    values = np.asarray(times)
    if values.dtype.kind == "O":
        values = np.array([_without_zone(time) for time in values.ravel()], dtype="datetime64[us]").reshape(
            values.shape
        )
    if values.shape != (n,):
        raise ValueError(f"times must contain one time for each of the {n} {what}; got shape {values.shape}")
    if values.dtype.kind not in "iufM":
        raise ValueError(f"times must be numbers or dates; got {values.dtype}")
    missing = np.flatnonzero(np.isnan(values) if values.dtype.kind != "M" else np.isnat(values))
    if missing.size:
        raise ValueError(f"time {missing[0]} is missing: drop it and its row")
    return values


def _without_zone(time: Any) -> Any:
    """Convert an aware datetime to a naive one in UTC; return anything else unchanged."""
    is_zoned = isinstance(time, datetime) and time.tzinfo is not None
    return time.astimezone(UTC).replace(tzinfo=None) if is_zoned else time


def read_vector(name: str, values: Any, n: int | None = None) -> Array:
    """Return one number for each of `n` rows, without NaN."""
    vector = np.asarray(values, dtype=np.float64)
    if vector.ndim != 1 or not vector.size or (n is not None and len(vector) != n):
        wanted = "one number per row" if n is None else f"one number for each of the {n} rows"
        raise ValueError(f"{name} must contain {wanted}; got shape {vector.shape}")
    missing = np.flatnonzero(np.isnan(vector))
    if missing.size:
        raise ValueError(f"{name} is NaN in row {missing[0]}: drop rows with NaN")
    return vector


def read_direction(higher: str) -> int:
    """Return the sign that makes scores higher for normal rows."""
    if higher not in ("normal", "anomalous"):
        raise ValueError(f'higher must be "normal" or "anomalous"; got {higher!r}')
    return 1 if higher == "normal" else -1


def percent(share: float) -> str:
    """Format a share in few characters."""
    return "<0.01%" if 0 < share < 1e-4 else f"{100 * share:.2g}%" if share < 0.995 else f"{100 * share:.0f}%"


def hull(boxes: Iterable[Array]) -> Array:
    """Return the smallest box, (2, D), that contains all `boxes`."""
    corners = np.concatenate([np.reshape(box, (-1, np.shape(box)[-1])) for box in boxes])
    return np.stack([corners.min(axis=0), corners.max(axis=0)])
