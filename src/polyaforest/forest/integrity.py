"""Check every invariant of a forest's arrays, recomputed from scratch in plain NumPy, for all trees at once.

The arrays may come from an untrusted file. So every index is checked before use, and links are not followed step by
step: they may form a cycle or one long chain. Most invariants concern a node and its children, and hold for whole trees
once they hold at every node. Where a whole path matters, links are followed 1, 2, 4, ... steps at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np

from polyaforest.kernels.arrays import ALL_YES, EVERY, NONE, QUESTIONS, Array, Forest, Points
from polyaforest.kernels.boxes import are_within, as_codes, is_code
from polyaforest.util.schema import MOST_COUNTED

# The type of each array and its axes. Letters are lengths that arrays share: T trees, C node slots, D features, W
# dimensions of a box, P slots for points.
Layout: TypeAlias = dict[str, tuple[Any, str]]
_FOREST_LAYOUT: Layout = {
    "left": (np.int32, "TC"),
    "right": (np.int32, "TC"),
    "parent": (np.int32, "TC"),
    "feature": (np.int32, "TC"),
    "cut": (np.float64, "TC"),
    "time": (np.float64, "TC"),
    "counts": (np.int64, "TC"),
    "lower": (np.float64, "TCW"),
    "upper": (np.float64, "TCW"),
    "root": (np.int32, "T"),
    "size": (np.int32, "T"),
    "outside": (np.int64, "T"),
    "weights": (np.float64, "TD"),
    "rng": (np.uint64, "T4"),
    "domain": (np.float64, "2D"),
    "n_categories": (np.int64, "1"),
}
POINTS_LAYOUT: Layout = {
    "values": (np.float64, "PD"),
    "head": (np.int32, "TC"),
    "links": (np.int32, "TP3"),
}
_HEAVIEST = 1e130  # larger than any valid feature weight; distances with it do not overflow

_CUBES = {"lower": np.bitwise_and, "upper": np.bitwise_or}  # hulls of categories

# The links of a point.
_BEFORE, _AFTER, _LEAF = range(3)


class CorruptForestError(ValueError):
    """The arrays of a forest contradict each other."""


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
    lengths = check_layout(forest._asdict(), _FOREST_LAYOUT, {})
    _check_lengths(lengths)
    _check_categories(forest)
    _check_domain(forest)
    _check_sizes(forest)
    _check_draws(forest)
    _check_children(forest)
    nodes = _number(forest)
    _check_links(nodes)
    _check_unused(nodes)
    _check_cuts(nodes)
    _check_times(nodes, lifetime)
    _check_counts(nodes)
    _check_totals(nodes, alike)
    if nodes.boxed:
        _check_boxes(nodes)
    else:
        _check_regions(nodes)
    if max_depth is not None:
        _check_depths(nodes, max_depth)
    if rows is not None:
        _check_rows(nodes, rows)
    if points is not None:
        _check_points(nodes, points, held, lengths, alike)
    _check_extent(forest, points, largest)


def check_unread(forest: Forest, values: Array, largest: float) -> None:
    """Check domain, draws and points before the trees of a compact state are read."""
    check_layout(forest._asdict(), _FOREST_LAYOUT, {})
    _check_categories(forest)
    _check_domain(forest)
    _check_draws(forest)
    _check_codes("values", values, int(forest.n_categories[0]))
    for name, part in {"domain": forest.domain[np.isfinite(forest.domain)], "values": values}.items():
        _check_bounded(name, part, largest)


class _Nodes(NamedTuple):
    """The N node slots of all trees in one row: slot j of tree t is number t * C + j."""

    forest: Forest  # the original
    left: Array  # int64 (N,): the number of the left child; valid for internal nodes only
    right: Array  # int64 (N,): the number of the right child
    up: Array  # int64 (N + 1,): the number of the parent, N if there is none
    feature: Array
    cut: Array
    time: Array
    counts: Array
    lower: Array  # float64 (N, D), or (N, 0)
    upper: Array
    roots: Array  # int64 (T,), or none if the trees are empty
    used: Array  # int64: the slots in use, in order
    inner: Array  # int64: those with children
    leaves: Array  # int64: those without

    @property
    def capacity(self) -> int:
        """Slots of one tree."""
        return int(self.forest.left.shape[1])

    @property
    def boxed(self) -> bool:
        """Whether nodes have boxes: Mondrian trees, not Mondrian processes."""
        return bool(self.forest.lower.shape[2] > 0)

    @property
    def n_features(self) -> int:
        """Features of every point."""
        return int(self.forest.weights.shape[1])

    @property
    def n_numbers(self) -> int:
        """Features that are numbers, the first ones; the others are categories."""
        return self.n_features - int(self.forest.n_categories[0])

    @property
    def is_question(self) -> Array:
        """Which of the `inner` nodes are cut along a category."""
        return self.feature[self.inner] >= self.n_numbers

    @property
    def children(self) -> tuple[Array, Array]:
        """The left and the right children of `inner`."""
        return self.left[self.inner], self.right[self.inner]

    def size_text(self, i: int) -> str:
        """Return a message about the size of the tree of the i-th node in use."""
        return f"the tree's size is {self.forest.size[self.used[i] // self.capacity]}"

    def reject(self, bad: Array, where: Array, explain: Callable[[int], str]) -> None:
        """Raise if any node of `where` is `bad`, naming the first; `explain(i)` returns the message for the i-th."""
        if bad.any():
            i = _first(bad)
            _raise_at_node(*divmod(int(where[i]), self.capacity), explain(i))


def check_sample_sizes(sizes: Array) -> None:
    """Raise if the sample size of a tree is out of range."""
    if ((sizes < 1) | (sizes > EVERY)).any():
        raise CorruptForestError("array sizes: sample sizes of trees must be positive")


def _raise_at_node(t: int, j: int, what: str) -> NoReturn:
    raise CorruptForestError(f"tree {t}, node {j}: {what}")


def _raise_at_first_tree(forest: Forest, bad: Array, explain: Callable[[int], str]) -> None:
    """Raise if any tree is `bad`, naming the root of the first."""
    if bad.any():
        t = _first(bad)
        _raise_at_node(t, int(forest.root[t]), explain(t))


def _first(bad: Array) -> int:
    """Return the first entry along the first axis in which anything is bad."""
    return int(bad.reshape(len(bad), -1).any(axis=1).argmax())


def _first_pair(bad: Array) -> tuple[int, int]:
    """Return row and column of the first bad entry."""
    t, j = divmod(int(bad.argmax()), bad.shape[1])
    return t, j


def _leaps(up: Array) -> Iterator[Array]:
    """Yield the links of `up` followed 1, 2, 4, 8, ... times, until all lead to the end or must be in a cycle.

    The end is the last entry, which links to itself.
    """
    end = len(up) - 1
    for _ in range(end.bit_length() + 1):
        yield up
        if (up == end).all():
            return
        up = up[up]


def _is_circling(up: Array) -> Array:
    """Return which links of `up` (see `_leaps`) lead into a cycle."""
    ends = up
    for leap in _leaps(up):
        ends = leap
    return ends < len(up) - 1


# ---- shapes, and everything but nodes -------------------------------------------------------------------------------


def check_layout(arrays: Mapping[str, Any], layout: Layout, lengths: dict[str, int]) -> dict[str, int]:
    """Check types and shapes of all `arrays`; return the lengths of all axes, including the given `lengths`."""
    known = dict(lengths)
    for name, array in arrays.items():
        if name not in layout:
            raise CorruptForestError(f"array {name}: is not part of this format version")
        dtype, axes = layout[name]
        if not isinstance(array, np.ndarray) or array.dtype != dtype:
            kind = getattr(array, "dtype", type(array).__name__)
            raise CorruptForestError(f"array {name}: is of type {kind}, not {np.dtype(dtype)}")
        if array.ndim != len(axes):
            raise CorruptForestError(f"array {name}: has {array.ndim} dimensions, not {len(axes)}")
        wanted = tuple(
            int(axis) if axis.isdigit() else known.setdefault(axis, length)
            for axis, length in zip(axes, array.shape, strict=True)
        )
        if array.shape != wanted:
            raise CorruptForestError(f"array {name}: has shape {array.shape}, but the other arrays require {wanted}")
    return known


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
            _check_codes(name, part, n_categories)


def _check_codes(name: str, part: Array, n_categories: int) -> None:
    if not is_code(part[..., part.shape[-1] - n_categories :]).all():
        raise CorruptForestError(f"array {name}: codes of categories must be integers below 2**{QUESTIONS}")


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
        k = _first(bad)
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
    _raise_at_first_tree(forest, bad, lambda t: f"the tree's size is {size[t]}, but it has slots for {capacity} nodes")
    if size.any() or not forest.lower.shape[2]:
        _raise_at_first_tree(forest, size == 0, lambda _: "the tree's size is 0, but it cannot be empty")
    bad = (root < 0) | (root >= size.clip(1))
    _raise_at_first_tree(forest, bad, lambda t: f"is the root, but does not exist (the tree's size is {size[t]})")


def _check_draws(forest: Forest) -> None:
    """Check weights, and that no generator state is all zeros: it would draw only zeros."""
    weights = forest.weights
    bad = ~((weights == 0) | ((weights >= 1 / _HEAVIEST) & (weights <= _HEAVIEST)))

    def explain(t: int) -> str:
        k = _first(bad[t])
        return f"the weight of feature {k} is {weights[t, k]}: it must be 0 or from {1 / _HEAVIEST:g} to {_HEAVIEST:g}"

    _raise_at_first_tree(forest, bad, explain)
    is_zero: Array = (forest.rng == 0).all(axis=1)
    _raise_at_first_tree(forest, is_zero, lambda _: "the state of its generator is all zeros")


# ---- links between nodes --------------------------------------------------------------------------------------------


def _check_children(forest: Forest) -> None:
    """Check that each node has either two existing children or none."""
    left, right, size = forest.left, forest.right, forest.size
    is_used = np.arange(left.shape[1]) < size[:, None]
    bad = is_used & ((left == NONE) != (right == NONE))
    if bad.any():
        t, j = _first_pair(bad)
        _raise_at_node(t, j, f"has only one child (left {left[t, j]}, right {right[t, j]})")
    for child in (left, right):
        bad = is_used & ((child < NONE) | (child >= size[:, None]))
        if bad.any():
            t, j = _first_pair(bad)
            _raise_at_node(t, j, f"links to node {child[t, j]}, which does not exist (the tree's size is {size[t]})")


def _number(forest: Forest) -> _Nodes:
    """Return the slots of all trees in one row."""
    n_trees, capacity = forest.left.shape
    n, width = n_trees * capacity, forest.lower.shape[2]
    starts = np.arange(n_trees)[:, None] * capacity
    used = np.flatnonzero(np.arange(capacity) < forest.size[:, None])
    is_leaf = forest.left.reshape(n)[used] == NONE
    inner, leaves = used[~is_leaf], used[is_leaf]
    left, right = (forest.left + starts).reshape(n), (forest.right + starts).reshape(n)
    up = np.full(n + 1, n)
    up[left[inner]] = up[right[inner]] = inner
    return _Nodes(
        forest,
        left,
        right,
        up,
        feature=forest.feature.reshape(n),
        cut=forest.cut.reshape(n),
        time=forest.time.reshape(n),
        counts=forest.counts.reshape(n),
        lower=forest.lower.reshape(n, width),
        upper=forest.upper.reshape(n, width),
        roots=(forest.root + starts[:, 0])[forest.size > 0],
        used=used,
        inner=inner,
        leaves=leaves,
    )


def _check_links(nodes: _Nodes) -> None:
    """Check that every slot in use is reached from its root exactly once.

    Exactly one link leads to each node, counting that of a tree to its root, and all paths up end at a root: nodes with
    one link each may still form a separate cycle.
    """
    linked = np.concatenate([nodes.roots, nodes.left[nodes.inner], nodes.right[nodes.inner]])
    n_links = np.bincount(linked, minlength=len(nodes.left))[nodes.used]
    nodes.reject(n_links > 1, nodes.used, lambda _: "is linked to more than once")
    nodes.reject(n_links < 1, nodes.used, lambda i: f"no node links to it, but {nodes.size_text(i)}")
    above, given = nodes.up[nodes.used], nodes.forest.parent.reshape(-1)[nodes.used]
    wanted = np.where(above < len(nodes.left), above % nodes.capacity, NONE)
    nodes.reject(given != wanted, nodes.used, lambda i: f"its parent is {wanted[i]}, but its parent link is {given[i]}")
    nodes.reject(
        _is_circling(nodes.up)[nodes.used],
        nodes.used,
        lambda i: f"is in a cycle and is not reached from the root, but {nodes.size_text(i)}",
    )


def _check_unused(nodes: _Nodes) -> None:
    """Check that unused slots hold zeros: no trace of a deleted point may remain."""
    n = len(nodes.left)
    unused = np.delete(np.arange(n), nodes.used)

    def check(name: str) -> None:
        slots = getattr(nodes.forest, name)
        content = slots.reshape(n, *slots.shape[2:])[unused]
        nodes.reject(content != 0, unused, lambda _: f"is not in use, but its {name} is not zero")

    for name, (_, axes) in _FOREST_LAYOUT.items():
        if axes.startswith("TC"):
            check(name)


def _check_depths(nodes: _Nodes, max_depth: int) -> None:
    n_above = np.ones(len(nodes.up), np.int64)  # a node and the ancestors covered so far
    n_above[-1] = 0
    for up in _leaps(nodes.up):
        n_above += n_above[up]
    depth = n_above[nodes.used] - 1
    nodes.reject(depth > max_depth, nodes.used, lambda i: f"lies at depth {depth[i]}, below max_depth={max_depth}")


# ---- a node and its children ----------------------------------------------------------------------------------------


def _check_cuts(nodes: _Nodes) -> None:
    feature, cut = nodes.feature[nodes.leaves], nodes.cut[nodes.leaves]
    nodes.reject(feature != NONE, nodes.leaves, lambda i: f"is a leaf, but has feature {feature[i]}")
    nodes.reject(~np.isnan(cut), nodes.leaves, lambda i: f"is a leaf, but has a cut at {cut[i]}")
    delta, xi = nodes.feature[nodes.inner], nodes.cut[nodes.inner]
    is_feature = (delta >= 0) & (delta < nodes.n_features)
    nodes.reject(~is_feature, nodes.inner, lambda i: f"is cut along feature {delta[i]}, which does not exist")
    nodes.reject(~np.isfinite(xi), nodes.inner, lambda i: f"is cut at {xi[i]}")
    bad = nodes.is_question & ~(is_code(xi) & (xi < QUESTIONS))
    nodes.reject(bad, nodes.inner, lambda i: f"is cut by question {xi[i]} of feature {delta[i]}, which does not exist")


def _check_times(nodes: _Nodes, lifetime: float | None) -> None:
    """Check that cut times increase downwards and precede the lifetime, at which all leaves end."""
    time, ends = nodes.time[nodes.used], nodes.time[nodes.leaves]
    # Where weights and sides are huge, times underflow to 0; but the lifetime is positive.
    nodes.reject(~(time >= 0), nodes.used, lambda i: f"its time {time[i]} is negative or NaN")
    nodes.reject(~(ends > 0), nodes.leaves, lambda i: f"its time {ends[i]} is not positive")
    born = np.append(nodes.time, 0.0)[nodes.up[nodes.used]]
    nodes.reject(time < born, nodes.used, lambda i: f"its time {time[i]} is before its parent's {born[i]}")
    last = ends[:1] if lifetime is None else np.array([lifetime])  # empty trees have no leaves
    nodes.reject(ends != last, nodes.leaves, lambda i: f"its time {ends[i]} is not the lifetime {last[0]}")
    cut = nodes.time[nodes.inner]
    nodes.reject(~(cut < last), nodes.inner, lambda i: f"is cut at time {cut[i]}, not before the lifetime {last[0]}")


def _check_counts(nodes: _Nodes) -> None:
    n, least = nodes.counts[nodes.used], 1 if nodes.boxed else 0
    nodes.reject(n < least, nodes.used, lambda i: f"its count {n[i]} is less than {least}")
    nodes.reject(n > MOST_COUNTED, nodes.used, lambda i: f"its count {n[i]} is more than {MOST_COUNTED}")
    n_all, n_left, n_right = (nodes.counts[j] for j in (nodes.inner, *nodes.children))
    nodes.reject(
        n_all != n_left + n_right,  # an overflowing sum is negative and is caught too
        nodes.inner,
        lambda i: f"its count {n_all[i]} is not the sum {n_left[i]} + {n_right[i]} of its children's",
    )


def _check_totals(nodes: _Nodes, alike: bool) -> None:
    """Check that all trees have the same number of points outside and, if `alike`, inside."""
    inside, outside = nodes.counts[nodes.roots], nodes.forest.outside
    bad = (outside != 0) if nodes.boxed else (outside < 0) | (outside > MOST_COUNTED - inside)
    _raise_at_first_tree(nodes.forest, bad, lambda t: f"its count outside the domain is {outside[t]}")
    bad = outside != outside[0]
    _raise_at_first_tree(
        nodes.forest, bad, lambda t: f"its count outside the domain is {outside[t]}, but that of tree 0 is {outside[0]}"
    )
    bad = (inside != inside[:1]) & alike
    _raise_at_first_tree(nodes.forest, bad, lambda t: f"its count is {inside[t]}, but that of tree 0 is {inside[0]}")


# ---- the boxes of Mondrian trees ------------------------------------------------------------------------------------


def _check_boxes(nodes: _Nodes) -> None:
    """Check that boxes are valid, that cuts separate the children's boxes, and that boxes are the hulls of these."""
    every = np.arange(len(nodes.left))  # unused slots hold zeros, so all can be checked
    is_finite = np.isfinite(nodes.lower) & np.isfinite(nodes.upper)
    nodes.reject(~is_finite, every, lambda _: "its box is not finite")
    nodes.reject(nodes.lower > nodes.upper, every, lambda _: "its box has a lower side above the upper")
    left, right = nodes.children
    delta, xi = nodes.feature[nodes.inner], nodes.cut[nodes.inner]
    lowest, highest = nodes.lower[right, delta], nodes.upper[left, delta]
    bit = np.int64(1) << np.where(nodes.is_question, xi, 0).astype(np.int64)
    asked = (as_codes(np.where(nodes.is_question, highest, 0)) & bit == 0) & (
        as_codes(np.where(nodes.is_question, lowest, 0)) & bit != 0
    )
    nodes.reject(
        ~np.where(nodes.is_question, asked, (highest <= xi) & (xi < lowest)),
        nodes.inner,
        lambda i: f"its cut {xi[i]} along feature {delta[i]} does not separate the boxes of its children",
    )
    above = nodes.inner % nodes.capacity
    for name, hull, is_beyond in (("lower", np.minimum, np.less), ("upper", np.maximum, np.greater)):
        corner = getattr(nodes, name)
        whole, of_left, of_right = (corner.take(place, axis=0) for place in (nodes.inner, left, right))
        for child, part in ((left, of_left), (right, of_right)):
            bad = is_beyond(part, whole)
            nodes.reject(bad, child, lambda i: f"its box is not inside that of its parent {above[i]}")
        together = hull(of_left, of_right)
        together[:, nodes.n_numbers :] = _CUBES[name](
            *(as_codes(part[:, nodes.n_numbers :]) for part in (of_left, of_right))
        )
        nodes.reject(whole != together, nodes.inner, lambda _: "its box is not the hull of its children's")


# ---- the regions of Mondrian processes ------------------------------------------------------------------------------


def _check_regions(nodes: _Nodes) -> None:
    """Check that every cut falls strictly inside the region of its node."""
    delta, xi = nodes.feature[nodes.inner], nodes.cut[nodes.inner]
    low, high = nodes.forest.domain[:, delta]
    bit = np.int64(1) << np.where(nodes.is_question, xi, 0).astype(np.int64)
    is_live = (
        as_codes(np.where(nodes.is_question, low, 0)) ^ as_codes(np.where(nodes.is_question, high, 0))
    ) & bit != 0
    nodes.reject(
        ~np.where(nodes.is_question, is_live, (low < xi) & (xi < high)),
        nodes.inner,
        lambda i: f"its cut {xi[i]} along feature {delta[i]} is not strictly inside its region in the domain",
    )
    highest, lowest = _cuts_below(nodes)
    nodes.reject(
        ~((highest < xi) & (xi < lowest)),
        nodes.inner,
        lambda i: f"a cut below it along feature {delta[i]} is not strictly inside its region, which ends at {xi[i]}",
    )
    _check_questions(nodes)


def _check_questions(nodes: _Nodes) -> None:
    """Check that no question occurs twice on a path."""
    first, stop = _preorder(nodes)
    asked = nodes.inner[nodes.is_question]
    key = nodes.feature[asked] * np.int64(QUESTIONS) + nodes.cut[asked].astype(np.int64)
    order = np.lexsort((first[asked], key))
    asked, key = asked[order], key[order]
    is_again = (key[1:] == key[:-1]) & (first[asked[1:]] < stop[asked[:-1]])
    nodes.reject(is_again, asked[1:], lambda _: "its cut repeats a question of a node above it")


def _cuts_below(nodes: _Nodes) -> tuple[Array, Array]:
    """Return for each cut the highest cut along the same feature on its left, and the lowest on its right.

    In preorder the nodes below one are contiguous, also among the nodes of a single feature. Questions have no such
    cuts.
    """
    first, stop = _preorder(nodes)
    left, right = nodes.children
    line = nodes.feature[nodes.inner].astype(np.int64) * len(nodes.left)
    places = line + first[nodes.inner]
    order = np.argsort(places)
    places, cuts = places[order], nodes.cut[nodes.inner][order]
    line = np.where(nodes.is_question, -1, line)  # before all places
    bounds = (first[left], first[right], stop[nodes.inner])
    begins, turns, ends = (np.searchsorted(places, np.where(line < 0, -1, line + bound)) for bound in bounds)
    return _range_max(cuts, begins, turns), -_range_max(-cuts, turns, ends)


def _preorder(nodes: _Nodes) -> tuple[Array, Array]:
    """Return the place of each node in preorder, left before right, and the end of its descendants."""
    left, right = nodes.children
    n_below = np.ones(len(nodes.up), np.int64)  # a node and the descendants that reach it by the leaps so far
    for up in _leaps(nodes.up):
        n_below += np.bincount(up, n_below, len(up)).astype(np.int64)
    place = np.zeros(len(nodes.up), np.int64)  # relative to the ancestor that the leaps so far lead to
    place[nodes.roots] = nodes.roots - nodes.roots % nodes.capacity
    place[left], place[right] = 1, 1 + n_below[left]
    for up in _leaps(nodes.up):
        place += place[up]
    return place, place + n_below


def _range_max(values: Array, start: Array, stop: Array) -> Array:
    """Return the largest of ``values[a:b]`` for all pairs of `start` and `stop`; -inf for empty ranges."""
    length, largest = stop - start, np.full(len(start), -np.inf)
    width, peaks = 1, values  # peaks[i] is the largest of values[i : i + width]
    while (length >= width).any():
        asked = np.flatnonzero((length >= width) & (length < 2 * width))  # two overlapping parts cover the range
        largest[asked] = np.maximum(peaks[start[asked]], peaks[stop[asked] - width])
        peaks = np.maximum(peaks[:-width], peaks[width:])
        width *= 2
    return largest


# ---- the rows of nodes ----------------------------------------------------------------------------------------------


def _check_rows(nodes: _Nodes, rows: Array) -> None:
    """Check that counts and boxes are those of the rows that the cuts send to each node."""
    held = rows
    if not nodes.boxed:
        held = rows[are_within(rows, nodes.forest.domain, int(nodes.forest.n_categories[0]))]
    n_outside, counted = len(rows) - len(held), nodes.forest.outside
    _raise_at_first_tree(
        nodes.forest,
        counted != n_outside,
        lambda t: f"its count outside the domain is {counted[t]}, but {n_outside} rows lie there",
    )
    is_missing = np.full(len(nodes.forest.root), len(held) > 0 and not len(nodes.roots))
    _raise_at_first_tree(nodes.forest, is_missing, lambda _: f"the tree is empty, but has learned {len(held)} rows")
    _check_contents(nodes, np.tile(held, (len(nodes.roots), 1)), _leaves_of(nodes, held))


def _leaves_of(nodes: _Nodes, rows: Array) -> Array:
    """Return the leaf of each row by the cuts, tree by tree."""
    at = np.repeat(nodes.roots, len(rows))
    moving = np.arange(len(at))
    while len(moving):
        moving = moving[nodes.feature[at[moving]] != NONE]
        j = at[moving]
        value, xi, is_number = (
            rows[moving % len(rows), nodes.feature[j]],
            nodes.cut[j],
            nodes.feature[j] < nodes.n_numbers,
        )
        answer = as_codes(np.where(is_number, 0, value)) >> np.where(is_number, 0, xi).astype(np.int64) & 1
        goes_left = np.where(is_number, value <= xi, answer == 0)
        at[moving] = np.where(goes_left, nodes.left[j], nodes.right[j])
    return at


def _check_contents(nodes: _Nodes, rows: Array, leaf: Array) -> None:
    """Check that counts and boxes of leaves are those of their rows; those of other nodes follow from their children.

    `leaf`, int64, is the leaf of each of the `rows`, tree by tree. With boxes, this proves that each row is in the leaf
    to which the cuts send it: the boxes on its path hold it, and no box reaches across a cut above it.
    """
    n = np.bincount(leaf, minlength=len(nodes.left))[nodes.leaves]
    counts = nodes.counts[nodes.leaves]
    nodes.reject(n != counts, nodes.leaves, lambda i: f"{n[i]} rows fall in it, but its count is {counts[i]}")
    if not nodes.boxed or not len(leaf):
        return
    by_leaf = rows.take(np.argsort(leaf), axis=0)
    starts = np.cumsum(n) - n  # no leaf is empty, or its count would be less than 1
    for name, hull in (("lower", np.minimum), ("upper", np.maximum)):
        wanted = hull.reduceat(by_leaf, starts, axis=0)
        wanted[:, nodes.n_numbers :] = _CUBES[name].reduceat(as_codes(by_leaf[:, nodes.n_numbers :]), starts, axis=0)
        bad = getattr(nodes, name).take(nodes.leaves, axis=0) != wanted
        nodes.reject(bad, nodes.leaves, lambda _: "its box is not the bounding box of its rows")


# ---- the lists of points --------------------------------------------------------------------------------------------


class _Lists(NamedTuple):
    """The points of all trees in one row: slot s in tree t is number t * P + s."""

    links: Array  # int32 (T * P, 3)
    is_held: Array  # bool (P + 1,): whether a slot is in use; the last entry stands for invalid slots
    places: Array  # int64: the numbers of the points that the trees hold, tree by tree

    @property
    def n_slots(self) -> int:
        """Slots, in use or not."""
        return len(self.is_held) - 1

    @property
    def trees(self) -> Array:
        """The tree of each of `places`."""
        return self.places // self.n_slots

    @property
    def slots(self) -> Array:
        """The slot of each of `places`."""
        return self.places % self.n_slots

    def knows(self, slots: Array) -> Array:
        """Return which of `slots`, which may be any numbers, are in use."""
        is_slot = (slots >= 0) & (slots < self.n_slots)
        known: Array = self.is_held[np.where(is_slot, slots, self.n_slots)]
        return known

    def reject(self, bad: Array, explain: Callable[[int], str]) -> None:
        """Raise if any of `places` is `bad`, naming the first; `explain(i)` returns the message for the i-th."""
        if bad.any():
            i = _first(bad)
            t, slot = divmod(int(self.places[i]), self.n_slots)
            raise CorruptForestError(f"tree {t}, point {slot}: {explain(i)}")


def _check_points(nodes: _Nodes, points: Points, held: Array | None, lengths: dict[str, int], alike: bool) -> None:
    """Check that each point held is in one list per tree, that of its leaf, and matches counts and boxes."""
    lengths = check_layout(points._asdict(), POINTS_LAYOUT, lengths)
    _check_codes("values", points.values, int(nodes.forest.n_categories[0]))
    n_slots = lengths["P"]
    slots = _check_held(np.arange(n_slots) if held is None else held, n_slots)
    if not nodes.boxed:
        raise CorruptForestError("array head: a Mondrian process keeps no points")
    is_held = np.zeros(n_slots + 1, np.bool_)
    is_held[slots] = True
    is_free = ~is_held[:-1]  # no trace of a deleted point may remain
    bad = (points.values != 0).any(axis=1) & is_free
    if bad.any():
        raise CorruptForestError(f"point {_first(bad)}: is not held, but its values are not zero")
    bad = (points.links != NONE).any(axis=2) & is_free
    if bad.any():
        t, slot = _first_pair(bad)
        raise CorruptForestError(f"tree {t}, point {slot}: is not held, but is linked to a list")
    places = (np.arange(lengths["T"])[:, None] * n_slots + slots).reshape(-1)
    if not alike:
        places = places[(points.links.reshape(-1, 3)[places] != NONE).any(axis=1)]
    lists = _Lists(points.links.reshape(-1, 3), is_held, places)
    leaf = _check_leaves(nodes, lists)
    _check_heads(nodes, lists, points.head.reshape(-1), leaf)
    _check_neighbours(lists)
    _check_contents(nodes, points.values[lists.slots], leaf)


def _check_held(held: Array, n_slots: int) -> Array:
    """Return the slots in use, checked to exist and to be distinct."""
    if not isinstance(held, np.ndarray) or held.ndim != 1 or held.dtype.kind not in "iu":
        raise CorruptForestError("array held: must be a 1-D array of slots")
    bad = (held < 0) | (held >= n_slots)
    if bad.any():
        raise CorruptForestError(f"array held: slot {held[_first(bad)]} does not exist; there are {n_slots}")
    slots: Array = held.astype(np.int64)
    n_times = np.bincount(slots, minlength=n_slots)
    if (n_times > 1).any():
        raise CorruptForestError(f"array held: slot {n_times.argmax()} is in use twice")
    return slots


def _check_leaves(nodes: _Nodes, lists: _Lists) -> Array:
    """Return the leaf of each point in each tree, checked to be a leaf."""
    j = lists.links[lists.places, _LEAF]
    is_node = (j >= 0) & (j < nodes.capacity)
    leaf = lists.trees * nodes.capacity + np.where(is_node, j, 0)
    is_leaf = np.zeros(len(nodes.left), np.bool_)
    is_leaf[nodes.leaves] = True
    lists.reject(~(is_node & is_leaf[leaf]), lambda i: f"is kept at node {j[i]}, which is not a leaf")
    return leaf


def _check_heads(nodes: _Nodes, lists: _Lists, head: Array, leaf: Array) -> None:
    """Check that the list of each leaf starts with its only point without a predecessor."""
    others = np.delete(np.arange(len(head)), nodes.leaves)
    nodes.reject(
        head[others] != NONE, others, lambda i: f"is not a leaf, but has a list that starts with {head[others[i]]}"
    )
    first, (trees, j) = head[nodes.leaves], np.divmod(nodes.leaves, nodes.capacity)
    bad = ~lists.knows(first)
    nodes.reject(bad, nodes.leaves, lambda i: f"its list starts with {first[i]}, which is not held")
    before, _, of_leaf = lists.links[trees * lists.n_slots + first].T
    bad = (before != NONE) | (of_leaf != j)
    nodes.reject(bad, nodes.leaves, lambda i: f"its list starts with {first[i]}, which is not the first of its points")
    bad = (lists.links[lists.places, _BEFORE] == NONE) & (head[leaf] != lists.slots)
    lists.reject(bad, lambda i: f"has no point before it, but the list of its leaf starts with {head[leaf[i]]}")


def _check_neighbours(lists: _Lists) -> None:
    """Check that neighbours in a list are held and link back, and that lists have no cycles."""
    before, after, leaf = lists.links[lists.places].T
    for word, other in (("before", before), ("after", after)):
        bad = (other != NONE) & ~lists.knows(other)
        lists.reject(bad, lambda i: f"the point {word} it is {other[i]}, which is not held")  # noqa: B023 - called now
    for word, other, opposite in (("before", before, _AFTER), ("after", after, _BEFORE)):
        back = lists.links[lists.trees * lists.n_slots + np.maximum(other, 0)]
        bad = (other != NONE) & ((back[:, opposite] != lists.slots) | (back[:, _LEAF] != leaf))
        words = "which does not link back from the same list"
        lists.reject(bad, lambda i: f"the point {word} it is {other[i]}, {words}")  # noqa: B023 - called now
    end = len(lists.links)
    up = np.full(end + 1, end)
    up[lists.places] = np.where(before == NONE, end, lists.trees * lists.n_slots + before)
    lists.reject(_is_circling(up)[lists.places], lambda _: "is in a list that forms a cycle")
