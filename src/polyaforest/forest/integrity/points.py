"""Check that counts and boxes of nodes are those of the rows or points in them, and check the lists of points."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from polyaforest.forest.integrity.layout import POINTS_LAYOUT, CorruptForestError, check_layout
from polyaforest.forest.integrity.nodes import (
    CUBES,
    Nodes,
    check_codes,
    first_bad,
    first_bad_pair,
    is_circling,
    raise_at_first_tree,
)
from polyaforest.kernels.arrays import NONE, Array, Points
from polyaforest.kernels.boxes import are_within, as_codes

# The links of a point.
_BEFORE, _AFTER, _LEAF = range(3)


# ---- the rows of nodes ----------------------------------------------------------------------------------------------


def check_rows(nodes: Nodes, rows: Array) -> None:
    """Check that counts and boxes are those of the rows that the cuts send to each node."""
    held = rows
    if not nodes.boxed:
        held = rows[are_within(rows, nodes.forest.domain, int(nodes.forest.n_categories[0]))]
    n_outside, counted = len(rows) - len(held), nodes.forest.outside
    raise_at_first_tree(
        nodes.forest,
        counted != n_outside,
        lambda t: f"its count outside the domain is {counted[t]}, but {n_outside} rows lie there",
    )
    is_missing = np.full(len(nodes.forest.root), len(held) > 0 and not len(nodes.roots))
    raise_at_first_tree(nodes.forest, is_missing, lambda _: f"the tree is empty, but has learned {len(held)} rows")
    _check_contents(nodes, np.tile(held, (len(nodes.roots), 1)), _leaves_of(nodes, held))


def _leaves_of(nodes: Nodes, rows: Array) -> Array:
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


def _check_contents(nodes: Nodes, rows: Array, leaf: Array) -> None:
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
        wanted[:, nodes.n_numbers :] = CUBES[name].reduceat(as_codes(by_leaf[:, nodes.n_numbers :]), starts, axis=0)
        bad = getattr(nodes, name).take(nodes.leaves, axis=0) != wanted
        nodes.reject(bad, nodes.leaves, lambda _: "its box is not the bounding box of its rows")


# ---- the lists of points --------------------------------------------------------------------------------------------


class PointLists(NamedTuple):
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
            i = first_bad(bad)
            t, slot = divmod(int(self.places[i]), self.n_slots)
            raise CorruptForestError(f"tree {t}, point {slot}: {explain(i)}")


def check_points(nodes: Nodes, points: Points, held: Array | None, lengths: dict[str, int], alike: bool) -> None:
    """Check that each point held is in one list per tree, that of its leaf, and matches counts and boxes."""
    lengths = check_layout(points._asdict(), POINTS_LAYOUT, lengths)
    check_codes("values", points.values, int(nodes.forest.n_categories[0]))
    n_slots = lengths["P"]
    slots = _check_held(np.arange(n_slots) if held is None else held, n_slots)
    if not nodes.boxed:
        raise CorruptForestError("array head: a Mondrian process keeps no points")
    is_held = np.zeros(n_slots + 1, np.bool_)
    is_held[slots] = True
    is_free = ~is_held[:-1]  # no trace of a deleted point may remain
    bad = (points.values != 0).any(axis=1) & is_free
    if bad.any():
        raise CorruptForestError(f"point {first_bad(bad)}: is not held, but its values are not zero")
    bad = (points.links != NONE).any(axis=2) & is_free
    if bad.any():
        t, slot = first_bad_pair(bad)
        raise CorruptForestError(f"tree {t}, point {slot}: is not held, but is linked to a list")
    places = (np.arange(lengths["T"])[:, None] * n_slots + slots).reshape(-1)
    if not alike:
        places = places[(points.links.reshape(-1, 3)[places] != NONE).any(axis=1)]
    lists = PointLists(points.links.reshape(-1, 3), is_held, places)
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
        raise CorruptForestError(f"array held: slot {held[first_bad(bad)]} does not exist; there are {n_slots}")
    slots: Array = held.astype(np.int64)
    n_times = np.bincount(slots, minlength=n_slots)
    if (n_times > 1).any():
        raise CorruptForestError(f"array held: slot {n_times.argmax()} is in use twice")
    return slots


def _check_leaves(nodes: Nodes, lists: PointLists) -> Array:
    """Return the leaf of each point in each tree, checked to be a leaf."""
    j = lists.links[lists.places, _LEAF]
    is_node = (j >= 0) & (j < nodes.capacity)
    leaf = lists.trees * nodes.capacity + np.where(is_node, j, 0)
    is_leaf = np.zeros(len(nodes.left), np.bool_)
    is_leaf[nodes.leaves] = True
    lists.reject(~(is_node & is_leaf[leaf]), lambda i: f"is kept at node {j[i]}, which is not a leaf")
    return leaf


def _check_heads(nodes: Nodes, lists: PointLists, head: Array, leaf: Array) -> None:
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


def _check_neighbours(lists: PointLists) -> None:
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
    lists.reject(is_circling(up)[lists.places], lambda _: "is in a list that forms a cycle")
