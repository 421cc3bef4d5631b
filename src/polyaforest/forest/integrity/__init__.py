"""Check every invariant of a forest's arrays, recomputed from scratch in plain NumPy, for all trees at once.

The arrays may come from an untrusted file. So every index is checked before use, and links are not followed step by
step: they may form a cycle or one long chain. Most invariants concern a node and its children, and hold for whole trees
once they hold at every node. Where a whole path matters, links are followed 1, 2, 4, ... steps at a time.
"""

from __future__ import annotations

import numpy as np

from polyaforest.forest.integrity import nodes as of_nodes
from polyaforest.forest.integrity import points as of_points
from polyaforest.forest.integrity.layout import FOREST_LAYOUT, POINTS_LAYOUT, CorruptForestError, Layout, check_layout
from polyaforest.forest.integrity.nodes import check_codes, first_bad, raise_at_first_tree
from polyaforest.kernels.arrays import ALL_YES, EVERY, Array, Forest, Points
from polyaforest.kernels.boxes import as_codes

__all__ = [
    "POINTS_LAYOUT",
    "CorruptForestError",
    "Layout",
    "check_forest",
    "check_layout",
    "check_sample_sizes",
    "check_unread",
]

_HEAVIEST = 1e130  # larger than any valid feature weight; distances with it do not overflow


def check_forest(
    forest: Forest,
    rows: Array | None = None,
    *,
    points: Points | None = None,
    held: Array | None = None,
    lifetime: float | None = None,
    max_depth: int | None = None,
    alike: bool = True,
    largest: float = np.inf,
) -> None:
    """Raise `CorruptForestError`, naming tree and node, unless the arrays of `forest` agree with each other.

    Parameters
    ----------
    forest : Forest
    rows : ndarray of shape (n, D), optional
        All rows that every tree has learned: counts and boxes must be exactly those of the rows that the cuts send to
        each node.
    points : Points, optional
        The points of a forest that keeps them, and their lists. In each tree, every point must be in exactly one list,
        that of the leaf to which the cuts send it, and counts and boxes must be exactly those of the points. Trees that
        are not `alike` may each hold only some of the points.
    held : ndarray of int of shape (n,), optional
        The slots of `points` in use, by default all; other slots must be empty.
    lifetime : float, optional
        The time at which all leaves must end.
    max_depth : int, optional
        The largest depth of a node.
    alike : bool, default=True
        Whether all trees must have the same number of points; False for trees grown on separate samples.
    largest : float, optional
        The largest absolute value of bounds and points.
    """
    lengths = check_layout(forest._asdict(), FOREST_LAYOUT, {})
    _check_lengths(lengths)
    _check_categories(forest)
    _check_domain(forest)
    _check_sizes(forest)
    _check_draws(forest)
    of_nodes.check_children(forest)
    nodes = of_nodes.number(forest)
    of_nodes.check_links(nodes)
    of_nodes.check_unused(nodes)
    of_nodes.check_cuts(nodes)
    of_nodes.check_times(nodes, lifetime)
    of_nodes.check_counts(nodes)
    of_nodes.check_totals(nodes, alike)
    if nodes.boxed:
        of_nodes.check_boxes(nodes)
    else:
        of_nodes.check_regions(nodes)
    if max_depth is not None:
        of_nodes.check_depths(nodes, max_depth)
    if rows is not None:
        of_points.check_rows(nodes, rows)
    if points is not None:
        of_points.check_points(nodes, points, held, lengths, alike)
    _check_extent(forest, points, largest)


def check_unread(forest: Forest, values: Array, largest: float) -> None:
    """Check domain, draws and points before the trees of a compact state are read."""
    check_layout(forest._asdict(), FOREST_LAYOUT, {})
    _check_categories(forest)
    _check_domain(forest)
    _check_draws(forest)
    check_codes("values", values, int(forest.n_categories[0]))
    for name, part in {"domain": forest.domain[np.isfinite(forest.domain)], "values": values}.items():
        _check_bounded(name, part, largest)


def check_sample_sizes(sizes: Array) -> None:
    """Raise if the sample size of a tree is out of range."""
    if ((sizes < 1) | (sizes > EVERY)).any():
        raise CorruptForestError("array sizes: sample sizes of trees must be positive")


def _check_lengths(lengths: dict[str, int]) -> None:
    for axis, name, what in (("T", "left", "trees"), ("C", "left", "nodes"), ("D", "weights", "features")):
        if not lengths[axis]:
            raise CorruptForestError(f"array {name}: there are no {what}")
    if lengths["W"] not in (0, lengths["D"]):
        raise CorruptForestError(f"array lower: boxes have {lengths['W']} dimensions, not {lengths['D']}")


def _check_categories(forest: Forest) -> None:
    """Check the number of categories, and that their bounds are codes."""
    n_categories, n_features = int(forest.n_categories[0]), forest.weights.shape[1]
    if not 0 <= n_categories <= n_features:
        raise CorruptForestError(f"array n_categories: must be from 0 to {n_features}; got {n_categories}")
    for name in ("domain", "lower", "upper"):
        part = getattr(forest, name)
        if part.shape[-1]:  # a process has no boxes
            check_codes(name, part, n_categories)


def _check_domain(forest: Forest) -> None:
    """Check that the domain is a finite box. For trees it may be empty, in all features or in those added last."""
    low, high = forest.domain
    n, has_boxes = len(low) - int(forest.n_categories[0]), forest.lower.shape[2] > 0
    is_empty = (low == np.inf) & (high == -np.inf) & has_boxes
    is_empty[n:] = (low[n:] == ALL_YES) & (high[n:] == 0) & has_boxes
    is_empty[:n] &= is_empty[:n][::-1].cumprod(dtype=np.bool_)[::-1]
    bad = ~((low > -np.inf) & (low <= high) & (high < np.inf)) & ~is_empty
    bad[n:] |= (as_codes(low[n:]) & ~as_codes(high[n:]) != 0) & ~is_empty[n:]
    if bad.any():
        k = first_bad(bad)
        raise CorruptForestError(f"array domain: the bounds of feature {k} are {low[k]} and {high[k]}")


def _check_extent(forest: Forest, points: Points | None, largest: float) -> None:
    """Check that no value is so large that lengths overflow; infinite bounds belong to an empty domain."""
    parts = {"lower": forest.lower, "upper": forest.upper, "domain": forest.domain[np.isfinite(forest.domain)]}
    if points is not None:
        parts["values"] = points.values
    for name, part in parts.items():
        _check_bounded(name, part, largest)


def _check_bounded(name: str, part: Array, largest: float) -> None:
    if not (np.abs(part) <= largest).all():  # catches NaN
        raise CorruptForestError(f"array {name}: has values beyond {largest:g}, or NaN")


def _check_sizes(forest: Forest) -> None:
    """Check that the slots in use exist and hold the root. Either all or no trees are empty."""
    size, root, capacity = forest.size, forest.root, forest.left.shape[1]
    bad = (size < 0) | (size > capacity)
    raise_at_first_tree(forest, bad, lambda t: f"the tree's size is {size[t]}, but it has slots for {capacity} nodes")
    if size.any() or not forest.lower.shape[2]:
        raise_at_first_tree(forest, size == 0, lambda _: "the tree's size is 0, but it cannot be empty")
    bad = (root < 0) | (root >= size.clip(1))
    raise_at_first_tree(forest, bad, lambda t: f"is the root, but does not exist (the tree's size is {size[t]})")


def _check_draws(forest: Forest) -> None:
    """Check weights, and that no generator state is all zeros: it would draw only zeros."""
    weights = forest.weights
    bad = ~((weights == 0) | ((weights >= 1 / _HEAVIEST) & (weights <= _HEAVIEST)))

    def explain(t: int) -> str:
        k = first_bad(bad[t])
        return f"the weight of feature {k} is {weights[t, k]}: it must be 0 or from {1 / _HEAVIEST:g} to {_HEAVIEST:g}"

    raise_at_first_tree(forest, bad, explain)
    is_zero: Array = (forest.rng == 0).all(axis=1)
    raise_at_first_tree(forest, is_zero, lambda _: "the state of its generator is all zeros")
