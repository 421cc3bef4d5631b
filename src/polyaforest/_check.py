"""Is a forest whole? Every invariant of its arrays, recomputed from scratch in plain Python and NumPy."""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

import numpy as np

from polyaforest._arrays import NONE, Array, Forest


class CorruptForestError(ValueError):
    """The arrays of a forest contradict each other."""


def check_forest(forest: Forest, rows: Array | None = None) -> None:
    """Raise `CorruptForestError`, naming tree and node, unless the arrays of `forest` agree with each other.

    Parameters
    ----------
    forest : Forest
    rows : ndarray of shape (n, D), optional
        What the forest has learned, where every tree holds all of it: counts and boxes must then be exactly those of
        the rows that the cuts send to each node.
    """
    for t in range(len(forest.root)):
        tree = _view(forest, t)
        nodes = _check_links(tree)
        _check_weights(tree)
        _check_cuts(tree, nodes)
        _check_times(tree, nodes)
        _check_counts(tree, nodes)
        if tree.boxed:
            _check_boxes(tree, nodes)
        else:
            _check_regions(tree)
        if rows is not None:
            _check_rows(tree, rows)


class _Tree(NamedTuple):
    """One tree of a forest: the rows of its arrays, under the same names."""

    t: int
    left: Array
    right: Array
    parent: Array
    feature: Array
    cut: Array
    time: Array
    counts: Array
    lower: Array
    upper: Array
    root: int
    size: int
    outside: int
    weights: Array
    domain: Array

    @property
    def boxed(self) -> bool:
        """Whether nodes have boxes: a Mondrian tree, not a Mondrian process."""
        return bool(self.lower.shape[1] > 0)

    def is_leaf(self, j: int) -> bool:
        return bool(self.left[j] == NONE)

    def children(self, j: int) -> tuple[int, int]:
        return int(self.left[j]), int(self.right[j])

    def fail(self, j: int, what: str) -> NoReturn:
        raise CorruptForestError(f"tree {self.t}, node {j}: {what}")


def _view(forest: Forest, t: int) -> _Tree:
    rows: dict[str, Any] = {name: getattr(forest, name)[t] for name in _Tree._fields if name not in ("t", "domain")}
    for name in ("root", "size", "outside"):
        rows[name] = int(rows[name])
    return _Tree(t=t, domain=forest.domain, **rows)


def _check_links(tree: _Tree) -> list[int]:
    """The nodes from the root down, parents first, each reached once and as many as the tree says it has."""
    nodes: list[int] = []
    reached: set[int] = set()
    waiting = [(NONE, tree.root)]
    while waiting:
        above, j = waiting.pop()
        if not 0 <= j < len(tree.left):
            tree.fail(above, f"links to node {j}, which does not exist")
        if j in reached:
            tree.fail(j, "is reached from the root more than once")
        if tree.parent[j] != above:
            tree.fail(j, f"its parent is {above}, but its parent link is {tree.parent[j]}")
        reached.add(j)
        nodes.append(j)
        left, right = tree.children(j)
        if (left == NONE) != (right == NONE):
            tree.fail(j, f"has one child only (left {left}, right {right})")
        if left != NONE:
            waiting += [(j, right), (j, left)]
    if len(nodes) != tree.size:
        tree.fail(tree.root, f"{len(nodes)} nodes are reached from the root, but the tree's size is {tree.size}")
    return nodes


def _check_weights(tree: _Tree) -> None:
    bad = np.flatnonzero(~(np.isfinite(tree.weights) & (tree.weights >= 0)))
    if bad.size:
        k = int(bad[0])
        tree.fail(tree.root, f"the weight of feature {k} is {tree.weights[k]}, not finite and non-negative")


def _check_cuts(tree: _Tree, nodes: list[int]) -> None:
    for j in nodes:
        feature = tree.feature[j]
        if tree.is_leaf(j):
            if feature != NONE:
                tree.fail(j, f"is a leaf, but has feature {feature}")
            continue
        if not 0 <= feature < len(tree.weights):
            tree.fail(j, f"is cut along feature {feature}, which does not exist")
        if not np.isfinite(tree.cut[j]):
            tree.fail(j, f"is cut at {tree.cut[j]}")


def _check_times(tree: _Tree, nodes: list[int]) -> None:
    lifetime = next(tree.time[j] for j in nodes if tree.is_leaf(j))
    for j in nodes:
        time, parent = tree.time[j], tree.parent[j]
        if not time > 0:
            tree.fail(j, f"its time {time} is not positive")
        if parent != NONE and not time >= tree.time[parent]:
            tree.fail(j, f"its time {time} is before its parent's {tree.time[parent]}")
        if tree.is_leaf(j) and time != lifetime:
            tree.fail(j, f"its time {time} is not the lifetime {lifetime} of the other leaves")
        if not tree.is_leaf(j) and not time < lifetime:
            tree.fail(j, f"is cut at time {time}, not before the lifetime {lifetime}")


def _check_counts(tree: _Tree, nodes: list[int]) -> None:
    least = 1 if tree.boxed else 0
    for j in nodes:
        n = tree.counts[j]
        if n < least:
            tree.fail(j, f"its count {n} is less than {least}")
        if not tree.is_leaf(j):
            n_left, n_right = (tree.counts[child] for child in tree.children(j))
            if n != n_left + n_right:
                tree.fail(j, f"its count {n} is not the sum {n_left} + {n_right} of its children's")
    if tree.outside < 0 or (tree.boxed and tree.outside != 0):
        tree.fail(tree.root, f"{tree.outside} points are counted outside")


def _check_boxes(tree: _Tree, nodes: list[int]) -> None:
    for j in nodes:
        lower, upper = tree.lower[j], tree.upper[j]
        if not (np.isfinite(lower).all() and np.isfinite(upper).all()):
            tree.fail(j, "its box is not finite")
        if not (lower <= upper).all():
            tree.fail(j, "its box has a lower side above the upper")
        if not tree.is_leaf(j):
            _check_child_boxes(tree, j)


def _check_child_boxes(tree: _Tree, j: int) -> None:
    left, right = tree.children(j)
    lower, upper, cut, delta = tree.lower, tree.upper, tree.cut[j], tree.feature[j]
    for child in (left, right):
        if not ((lower[j] <= lower[child]) & (upper[child] <= upper[j])).all():
            tree.fail(child, f"its box is not inside that of its parent {j}")
    if not upper[left, delta] <= cut < lower[right, delta]:
        tree.fail(j, f"its cut {cut} along feature {delta} does not part the boxes of its children")
    low, high = np.minimum(lower[left], lower[right]), np.maximum(upper[left], upper[right])
    if not (np.array_equal(lower[j], low) and np.array_equal(upper[j], high)):
        tree.fail(j, "its box is not the hull of its children's")


def _check_regions(tree: _Tree) -> None:
    """Every cut of a process falls strictly inside the part of the domain that the cuts above leave to its node."""
    waiting = [(tree.root, tree.domain)]
    while waiting:
        j, region = waiting.pop()
        if tree.is_leaf(j):
            continue
        cut, delta = tree.cut[j], tree.feature[j]
        low, high = region[:, delta]
        if not low < cut < high:
            tree.fail(j, f"its cut {cut} along feature {delta} is not strictly inside its region [{low}, {high}]")
        for child, side in zip(tree.children(j), (1, 0), strict=True):
            part = region.copy()
            part[side, delta] = cut
            waiting.append((child, part))


def _check_rows(tree: _Tree, rows: Array) -> None:
    """Counts and boxes are those of the rows that the cuts send to each node."""
    held = rows
    if not tree.boxed:
        held = rows[((rows >= tree.domain[0]) & (rows <= tree.domain[1])).all(axis=1)]
        if tree.outside != len(rows) - len(held):
            tree.fail(tree.root, f"{len(rows) - len(held)} rows lie outside, but {tree.outside} are counted there")
    waiting = [(tree.root, held)]
    while waiting:
        j, below = waiting.pop()
        if tree.counts[j] != len(below):
            tree.fail(j, f"{len(below)} rows fall in it, but its count is {tree.counts[j]}")
        if tree.boxed and not (
            np.array_equal(tree.lower[j], below.min(axis=0)) and np.array_equal(tree.upper[j], below.max(axis=0))
        ):
            tree.fail(j, "its box is not the bounding box of its rows")
        if not tree.is_leaf(j):
            goes_left = below[:, tree.feature[j]] <= tree.cut[j]
            left, right = tree.children(j)
            waiting += [(left, below[goes_left]), (right, below[~goes_left])]
