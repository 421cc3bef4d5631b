"""Check the nodes of all trees: links, cuts, times, counts, boxes of trees and regions of processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, NoReturn

import numpy as np

from polyaforest.forest.integrity.layout import FOREST_LAYOUT, CorruptForestError
from polyaforest.kernels.arrays import NONE, QUESTIONS, Array, Forest
from polyaforest.kernels.boxes import as_codes, is_code
from polyaforest.util.schema import MOST_COUNTED

CUBES = {"lower": np.bitwise_and, "upper": np.bitwise_or}  # hulls of categories


class Nodes(NamedTuple):
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
            i = first_bad(bad)
            _raise_at_node(*divmod(int(where[i]), self.capacity), explain(i))


def _raise_at_node(t: int, j: int, what: str) -> NoReturn:
    raise CorruptForestError(f"tree {t}, node {j}: {what}")


def raise_at_first_tree(forest: Forest, bad: Array, explain: Callable[[int], str]) -> None:
    """Raise if any tree is `bad`, naming the root of the first."""
    if bad.any():
        t = first_bad(bad)
        _raise_at_node(t, int(forest.root[t]), explain(t))


def first_bad(bad: Array) -> int:
    """Return the first entry along the first axis in which anything is bad."""
    return int(bad.reshape(len(bad), -1).any(axis=1).argmax())


def first_bad_pair(bad: Array) -> tuple[int, int]:
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


def is_circling(up: Array) -> Array:
    """Return which links of `up` (see `_leaps`) lead into a cycle."""
    ends = up
    for leap in _leaps(up):
        ends = leap
    return ends < len(up) - 1


def check_codes(name: str, part: Array, n_categories: int) -> None:
    if not is_code(part[..., part.shape[-1] - n_categories :]).all():
        raise CorruptForestError(f"array {name}: codes of categories must be integers below 2**{QUESTIONS}")


# ---- links between nodes --------------------------------------------------------------------------------------------


def check_children(forest: Forest) -> None:
    """Check that each node has either two existing children or none."""
    left, right, size = forest.left, forest.right, forest.size
    is_used = np.arange(left.shape[1]) < size[:, None]
    bad = is_used & ((left == NONE) != (right == NONE))
    if bad.any():
        t, j = first_bad_pair(bad)
        _raise_at_node(t, j, f"has only one child (left {left[t, j]}, right {right[t, j]})")
    for child in (left, right):
        bad = is_used & ((child < NONE) | (child >= size[:, None]))
        if bad.any():
            t, j = first_bad_pair(bad)
            _raise_at_node(t, j, f"links to node {child[t, j]}, which does not exist (the tree's size is {size[t]})")


def number(forest: Forest) -> Nodes:
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
    return Nodes(
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


def check_links(nodes: Nodes) -> None:
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
        is_circling(nodes.up)[nodes.used],
        nodes.used,
        lambda i: f"is in a cycle and is not reached from the root, but {nodes.size_text(i)}",
    )


def check_unused(nodes: Nodes) -> None:
    """Check that unused slots hold zeros: no trace of a deleted point may remain."""
    n = len(nodes.left)
    unused = np.delete(np.arange(n), nodes.used)

    def check(name: str) -> None:
        slots = getattr(nodes.forest, name)
        content = slots.reshape(n, *slots.shape[2:])[unused]
        nodes.reject(content != 0, unused, lambda _: f"is not in use, but its {name} is not zero")

    for name, (_, axes) in FOREST_LAYOUT.items():
        if axes.startswith("TC"):
            check(name)


def check_depths(nodes: Nodes, max_depth: int) -> None:
    n_above = np.ones(len(nodes.up), np.int64)  # a node and the ancestors covered so far
    n_above[-1] = 0
    for up in _leaps(nodes.up):
        n_above += n_above[up]
    depth = n_above[nodes.used] - 1
    nodes.reject(depth > max_depth, nodes.used, lambda i: f"lies at depth {depth[i]}, below max_depth={max_depth}")


# ---- a node and its children ----------------------------------------------------------------------------------------


def check_cuts(nodes: Nodes) -> None:
    feature, cut = nodes.feature[nodes.leaves], nodes.cut[nodes.leaves]
    nodes.reject(feature != NONE, nodes.leaves, lambda i: f"is a leaf, but has feature {feature[i]}")
    nodes.reject(~np.isnan(cut), nodes.leaves, lambda i: f"is a leaf, but has a cut at {cut[i]}")
    delta, xi = nodes.feature[nodes.inner], nodes.cut[nodes.inner]
    is_feature = (delta >= 0) & (delta < nodes.n_features)
    nodes.reject(~is_feature, nodes.inner, lambda i: f"is cut along feature {delta[i]}, which does not exist")
    nodes.reject(~np.isfinite(xi), nodes.inner, lambda i: f"is cut at {xi[i]}")
    bad = nodes.is_question & ~(is_code(xi) & (xi < QUESTIONS))
    nodes.reject(bad, nodes.inner, lambda i: f"is cut by question {xi[i]} of feature {delta[i]}, which does not exist")


def check_times(nodes: Nodes, lifetime: float | None) -> None:
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


def check_counts(nodes: Nodes) -> None:
    n, least = nodes.counts[nodes.used], 1 if nodes.boxed else 0
    nodes.reject(n < least, nodes.used, lambda i: f"its count {n[i]} is less than {least}")
    nodes.reject(n > MOST_COUNTED, nodes.used, lambda i: f"its count {n[i]} is more than {MOST_COUNTED}")
    n_all, n_left, n_right = (nodes.counts[j] for j in (nodes.inner, *nodes.children))
    nodes.reject(
        n_all != n_left + n_right,  # an overflowing sum is negative and is caught too
        nodes.inner,
        lambda i: f"its count {n_all[i]} is not the sum {n_left[i]} + {n_right[i]} of its children's",
    )


def check_totals(nodes: Nodes, alike: bool) -> None:
    """Check that all trees have the same number of points outside and, if `alike`, inside."""
    inside, outside = nodes.counts[nodes.roots], nodes.forest.outside
    bad = (outside != 0) if nodes.boxed else (outside < 0) | (outside > MOST_COUNTED - inside)
    raise_at_first_tree(nodes.forest, bad, lambda t: f"its count outside the domain is {outside[t]}")
    bad = outside != outside[0]
    raise_at_first_tree(
        nodes.forest, bad, lambda t: f"its count outside the domain is {outside[t]}, but that of tree 0 is {outside[0]}"
    )
    bad = (inside != inside[:1]) & alike
    raise_at_first_tree(nodes.forest, bad, lambda t: f"its count is {inside[t]}, but that of tree 0 is {inside[0]}")


# ---- the boxes of Mondrian trees ------------------------------------------------------------------------------------


def check_boxes(nodes: Nodes) -> None:
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
        together[:, nodes.n_numbers :] = CUBES[name](
            *(as_codes(part[:, nodes.n_numbers :]) for part in (of_left, of_right))
        )
        nodes.reject(whole != together, nodes.inner, lambda _: "its box is not the hull of its children's")


# ---- the regions of Mondrian processes ------------------------------------------------------------------------------


def check_regions(nodes: Nodes) -> None:
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


def _check_questions(nodes: Nodes) -> None:
    """Check that no question occurs twice on a path."""
    first, stop = _preorder(nodes)
    asked = nodes.inner[nodes.is_question]
    key = nodes.feature[asked] * np.int64(QUESTIONS) + nodes.cut[asked].astype(np.int64)
    order = np.lexsort((first[asked], key))
    asked, key = asked[order], key[order]
    is_again = (key[1:] == key[:-1]) & (first[asked[1:]] < stop[asked[:-1]])
    nodes.reject(is_again, asked[1:], lambda _: "its cut repeats a question of a node above it")


def _cuts_below(nodes: Nodes) -> tuple[Array, Array]:
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


def _preorder(nodes: Nodes) -> tuple[Array, Array]:
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
