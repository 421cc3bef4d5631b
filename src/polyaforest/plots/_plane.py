"""Partition and density in the plane of two features (the paper's figure 1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from polyaforest.detectors.forest import ForestDetector
from polyaforest.kernels.arrays import NONE, Array
from polyaforest.plots._nodes import Node, is_met, nodes_of, seen_on_plane
from polyaforest.plots.canvas import (
    BLACK,
    BLUE,
    GREY,
    SMALL,
    VERMILION,
    canvas,
    check_forest,
    check_numeric,
    check_tree,
    drawable,
    hull,
    matplotlib,
    place_of,
    plain,
)
from polyaforest.tables.validation import NamedRows, feature_names, read_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import LineCollection, PathCollection, PolyCollection
    from matplotlib.colorbar import Colorbar
    from matplotlib.contour import QuadContourSet
    from matplotlib.image import AxesImage

_KINDS = {"density": "density", "mass": "mass of the cell", "score": "score (higher is more normal)"}
_DECADES = 4.0  # range of the colour scale of densities and masses
_STEPS = 16  # colours; more would not be distinguishable and make image files larger


class Partition(NamedTuple):
    """Artists of `partition`."""

    ax: Axes
    cuts: LineCollection
    boxes: PolyCollection
    cells: PolyCollection | None  # densities, if `shade`
    points: PathCollection | None
    colorbar: Colorbar | None


class Density(NamedTuple):
    """Artists of `density`."""

    ax: Axes
    image: AxesImage
    threshold: QuadContourSet | None  # contour at `offset_`, for scores
    points: PathCollection | None
    colorbar: Colorbar | None


class Plane(NamedTuple):
    """Two features, and the row that fixes the values of the others."""

    shown: tuple[int, int]
    at: Array  # (D,): only the values of features not shown matter
    names: list[str]


def partition(
    forest: ForestDetector,
    tree: int = 0,
    *,
    X: Any = None,
    shade: bool = False,
    features: Sequence[str | int] | None = None,
    at: Any = None,
    colorbar: bool = True,
    ax: Axes | None = None,
) -> Partition:
    """Draw how one tree cuts the plane of two features; earlier cuts are thicker.

    A `BatchMPF` cuts its whole domain. A `StreamingMPF` cuts the bounding boxes of its data; they are drawn too.

    Parameters
    ----------
    forest : BatchMPF or StreamingMPF
    tree : int, default=0
        Index of the tree.
    X : array-like of shape (n_rows, n_features), optional
        Rows to draw as dots.
    shade : bool, default=False
        Colour cells by the density of the tree.
    features : two names or numbers, optional
        Features of the horizontal and vertical axis; required if the forest has more than two.
    at : array-like of shape (n_features,), optional
        Row that the plane passes through; required if the forest has more than two features.
    colorbar : bool, default=True
        Whether to draw a colour bar beside `ax`, with `shade`.
    ax : Axes, optional
        Axes to draw on; a new figure if None.

    Returns
    -------
    drawn : Partition
        ``ax``, ``cuts``, ``boxes``, and, if requested, ``cells``, ``points`` and ``colorbar``.
    """
    check_forest(forest)
    plane = _read_plane(forest, features, at)
    rows = None if X is None else read_rows(forest, X, reset=False)[:, plane.shown]
    nodes = nodes_of(forest, check_tree(forest, tree))
    world = nodes[0].side
    if not is_met(world, plane.shown, plane.at):
        raise ValueError(f"at is outside the domain of tree {tree}: choose a row within {world.tolist()}")
    seen = seen_on_plane(nodes, plane.shown, plane.at)
    library, ax = matplotlib(), canvas(ax, 6.0, 5.0)
    cells = _draw_cells(library, ax, seen, plane) if shade else None
    met = [node for node in seen if is_met(node.part, plane.shown, plane.at)]
    boxes, cuts = _draw_lines(library, ax, met, plane, shade)
    points = None if rows is None else _draw_points(ax, rows)
    across_and_up = world[:, plane.shown]
    _frame(ax, plane, _widened(hull([across_and_up] if rows is None else [across_and_up, rows]), 0.02))
    bar = _draw_key(ax, cells, "density, log10", "min") if colorbar and cells is not None else None
    return Partition(ax, cuts, boxes, cells, points, bar)


def density(
    forest: ForestDetector,
    kind: str = "density",
    *,
    lifetime: float | None = None,
    X: Any = None,
    flag: bool = False,
    features: Sequence[str | int] | None = None,
    at: Any = None,
    domain: Any = None,
    resolution: int = 160,
    colorbar: bool = True,
    ax: Axes | None = None,
) -> Density:
    """Draw the density, mass or score of the forest over the plane of two features.

    Parameters
    ----------
    forest : BatchMPF or StreamingMPF
    kind : {"density", "mass", "score"}, default="density"
        The log density; the mass of the cell around each point; or the score, with the threshold below which the
        forest flags rows.
    lifetime : float, optional
        For masses, the time of the partition: early cells are large, late cells small. None: the leaves.
    flag : bool, default=False
        Ring the rows of `X` that the forest flags.
    domain : array-like of shape (2, 2), optional
        Lower and upper bounds of the plot; by default the extent of the trees and `X`, with a margin.
    resolution : int, default=160
        Pixels per side.
    X, features, at, colorbar, ax
        As in `partition`.

    Returns
    -------
    drawn : Density
        ``ax``, ``image``, and, if drawn, ``threshold``, ``points`` and ``colorbar``.
    """
    check_forest(forest)
    if kind not in _KINDS:
        raise ValueError(f"kind must be one of {', '.join(map(repr, _KINDS))}; got {kind!r}")
    if lifetime is not None and kind != "mass":
        raise ValueError(f'lifetime requires kind="mass"; got kind={kind!r}')
    if resolution < 2:
        raise ValueError(f"resolution must be at least 2 pixels; got {resolution}")
    plane = _read_plane(forest, features, at)
    rows = None if X is None else read_rows(forest, X, reset=False)[:, plane.shown]
    with forest.reading():
        box = _extent(forest, plane, rows, domain)
        values = _values(forest, kind, lifetime, _pixels(plane, box, resolution)).reshape(resolution, resolution)
        flagged = forest.predict(X) < 0 if flag and X is not None else None
        offset = forest.offset_ if kind == "score" else np.nan

    low, high = _color_range(values, np.inf if kind == "score" else _DECADES)
    values = np.where(np.isneginf(values), low, values)
    library, ax = matplotlib(), canvas(ax, 6.4, 5.0)
    style = {"origin": "lower", "extent": (box[0, 0], box[1, 0], box[0, 1], box[1, 1])}
    shades = library.colormaps["viridis"].resampled(_STEPS)
    image = ax.imshow(values, aspect="auto", interpolation="nearest", cmap=shades, vmin=low, vmax=high, **style)
    threshold = None
    if low < offset < high:
        threshold = ax.contour(values, [offset], colors="white", linewidths=1.2, linestyles="solid", **style)
        ax.clabel(threshold, fmt=lambda _: "threshold", fontsize=SMALL)
    points = None if rows is None else _draw_points(ax, rows, flagged)
    label = _KINDS[kind] if kind == "score" else f"{_KINDS[kind]}, log10"
    bar = _draw_key(ax, image, label, "neither" if kind == "score" else "min") if colorbar else None
    _frame(ax, plane, box)
    return Density(ax, image, threshold, points, bar)


# ---- input -----------------------------------------------------------------------------------------------------------


def _read_plane(forest: ForestDetector, features: Sequence[str | int] | None, at: Any) -> Plane:
    """Validate `features` and `at`."""
    check_numeric(forest)
    names = feature_names(forest)
    if features is None:
        if len(names) != 2:
            remedy = "pass two features, and a row as at" if len(names) > 2 else "fit it on two columns"
            raise ValueError(f"this plot needs two features, but the forest has {len(names)}: {remedy}")
        features = (0, 1)
    if isinstance(features, str) or len(features) != 2:
        raise ValueError(f"features must be two names or indices; got {features!r}")
    across, up = (place_of(feature, names) for feature in features)
    if across == up:
        raise ValueError(f"features must be distinct; got {names[across]!r} twice")
    if len(names) == 2:
        return Plane((across, up), np.zeros(2), names)
    if at is None:
        raise ValueError(f"the forest has {len(names)} features: pass a row as at, to fix the features not shown")
    row = np.asarray(at, dtype=np.float64).ravel()
    if len(row) != len(names):
        raise ValueError(f"at must be one row of {len(names)} features; got {len(row)} values")
    bad = np.flatnonzero(~np.isfinite(row))
    if bad.size:
        raise ValueError(f"at is {row[bad[0]]} in feature {names[bad[0]]!r}: pass a finite value")
    return Plane((across, up), row, names)


def _extent(forest: ForestDetector, plane: Plane, rows: Array | None, domain: Any) -> Array:
    """Return the lower and upper bounds of the plot, (2, 2)."""
    if domain is not None:
        box = np.asarray(domain, dtype=np.float64)
        if box.shape != (2, 2) or not (box[0] < box[1]).all():
            raise ValueError(f"domain must be two rows, lower and upper bounds of two features; got {domain!r}")
        return box
    world = forest.posterior_.world[:, :, plane.shown]
    return _widened(hull([world] if rows is None else [world, rows]), 0.06)


def _widened(box: Array, share: float) -> Array:
    """Return a box with a margin; sides of length 0 get a positive length."""
    length = box[1] - box[0]
    margin = np.where(length > 0, share * length, 1.0)
    return np.stack([box[0] - margin, box[1] + margin])


def _pixels(plane: Plane, box: Array, resolution: int) -> Array:
    """Return the pixel centres, row by row, as rows of all features."""
    steps = (np.arange(resolution) + 0.5) / resolution
    across, up = (low + (high - low) * steps for low, high in box.T)
    pixels = np.repeat(plane.at[None], resolution**2, axis=0)
    pixels[:, plane.shown[0]], pixels[:, plane.shown[1]] = np.tile(across, resolution), np.repeat(up, resolution)
    return pixels


def _values(forest: ForestDetector, kind: str, lifetime: float | None, pixels: Array) -> Array:
    """Return the value of every pixel: its score, or a base-10 logarithm."""
    rows = pixels if not hasattr(forest, "feature_names_in_") else NamedRows(pixels, forest.feature_names_in_)
    if kind == "score":
        return forest.score_samples(rows)
    if kind == "density":
        logs = forest.log_density(rows)
    else:
        with np.errstate(divide="ignore"):
            logs = np.log(forest.mass(rows, lifetime))
    decades: Array = logs / np.log(10)
    return decades


def _color_range(values: Array, n_decades: float = np.inf) -> tuple[float, float]:
    """Return the lowest and the highest finite value, at most `n_decades` apart."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return 0.0, 0.0
    top = float(finite.max())
    return max(float(finite.min()), top - n_decades), top


# ---- drawing ---------------------------------------------------------------------------------------------------------


def _draw_cells(library: Any, ax: Axes, nodes: list[Node], plane: Plane) -> PolyCollection:
    """Draw the parts of nodes and their surroundings, coloured by density; later patches cover earlier ones."""
    patches, densities = [], []
    for node in nodes:
        inside, around = node.log_densities
        if np.isfinite(around):
            patches.append(_corners(node.side, plane))
            densities.append(around)
        if node.feature == NONE and is_met(node.part, plane.shown, plane.at):
            patches.append(_corners(node.part, plane))
            densities.append(inside)
    values = np.array(densities) / np.log(10)
    low, high = _color_range(values, _DECADES)
    cells = library.collections.PolyCollection(patches, array=values, cmap="viridis", linewidths=0, antialiaseds=False)
    cells.set_clim(low, high)
    ax.add_collection(cells)
    return cells


def _draw_lines(
    library: Any, ax: Axes, nodes: list[Node], plane: Plane, on_shades: bool
) -> tuple[PolyCollection, LineCollection]:
    """Draw the boxes of nodes that are smaller than their side of the cut, and the cuts on top."""
    boxes = library.collections.PolyCollection(
        [_corners(node.part, plane) for node in nodes if node.parent == NONE or node.part is not node.side],
        facecolors="none",
        edgecolors="none" if on_shades else GREY,
        linewidths=0.6,
    )
    cut_nodes = [node for node in nodes if node.feature in plane.shown]
    times = np.array([node.time for node in cut_nodes])
    widths = 0.5 + 1.7 / (1.0 + 1.5 * times / np.median(times)) if times.size else times
    cuts = library.collections.LineCollection(
        [_segment(node, plane) for node in cut_nodes],
        colors="white" if on_shades else BLUE,
        linewidths=widths * (0.6 if on_shades else 1.0),
        alpha=0.4 if on_shades else 1.0,
    )
    for lines in (boxes, cuts):
        ax.add_collection(lines)
    return boxes, cuts


def _corners(box: Array, plane: Plane) -> Array:
    """Return the four corners of a box on the plane."""
    (left, bottom), (right, top) = box[:, plane.shown]
    return np.array([(left, bottom), (right, bottom), (right, top), (left, top)])


def _segment(node: Node, plane: Plane) -> Array:
    """Return the end points of a cut."""
    ends = node.part[:, plane.shown].copy()
    ends[:, plane.shown.index(node.feature)] = node.cut
    return ends


def _draw_points(ax: Axes, rows: Array, flagged: Array | None = None) -> PathCollection:
    """Draw rows as dots, with rings around flagged rows."""
    size = float(np.clip(1800 / len(rows), 3, 10))
    points = ax.scatter(*rows.T, s=size, color=BLACK, alpha=0.6, linewidths=0, zorder=3)
    if flagged is not None and flagged.any():
        for colour, width in (("white", 3.0), (VERMILION, 1.5)):  # visible on bright and dark backgrounds
            ax.scatter(*rows[flagged].T, s=46, facecolors="none", edgecolors=colour, linewidths=width, zorder=4)
    return points


def _draw_key(ax: Axes, colours: Any, label: str, extend: str) -> Colorbar:
    """Draw a colour bar beside `ax`."""
    bar = ax.figure.colorbar(colours, ax=ax, label=label, extend=extend, aspect=30)
    bar.outline.set_visible(False)
    return bar


def _frame(ax: Axes, plane: Plane, box: Array) -> None:
    """Set the limits and labels of the axes."""
    across, up = (plane.names[k] for k in plane.shown)
    (left, bottom), (right, top) = box
    ax.set(xlim=(left, right), ylim=(bottom, top))
    plain(ax.set_xlabel(drawable(across)), ax.set_ylabel(drawable(up)))
