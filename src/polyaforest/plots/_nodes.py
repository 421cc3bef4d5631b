"""Nodes of one tree for drawing: their regions and posterior masses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from polyaforest.detectors.forest import ForestDetector
from polyaforest.kernels.arrays import NONE, Array


class Node(NamedTuple):
    """A node of a tree; parents are listed before their children."""

    number: int
    parent: int  # index in the list, NONE for the root
    is_left: bool
    depth: int
    feature: int  # the feature cut; NONE for a leaf
    cut: float
    time: float
    n_rows: int
    side: Array  # (2, D): its side of the parent's cut; the domain for the root
    part: Array  # (2, D): `side` restricted to the box of its points, in dimensions of positive length
    log_masses: tuple[float, float]  # of `part`, and of the rest of `side`
    log_densities: tuple[float, float]  # of the same two regions


def nodes_of(forest: ForestDetector, tree: int, max_depth: float = np.inf) -> list[Node]:
    """Return the nodes of one tree to some depth in pre-order, left branch first."""
    with forest.reading():
        known, root = forest.posterior_, int(forest.forest_.root[tree])
        nodes: list[Node] = []
        waiting = [(root, NONE, False, 0, known.world[:, tree].copy())]
        while waiting:
            place = waiting.pop()
            node = _read_node(forest, tree, *place)
            nodes.append(node)
            if node.feature == NONE or node.depth == max_depth:
                continue
            children = forest.forest_.right[tree, node.number], forest.forest_.left[tree, node.number]
            for is_left, child in enumerate(children):
                half = node.part.copy()
                half[is_left, node.feature] = node.cut  # upper bound of the left child, lower of the right
                waiting.append((int(child), len(nodes) - 1, bool(is_left), node.depth + 1, half))
    return nodes


def _read_node(forest: ForestDetector, tree: int, j: int, parent: int, is_left: bool, depth: int, side: Array) -> Node:
    """Return node `j` of a tree."""
    arrays, known, place = forest.forest_, forest.posterior_, (tree, j)
    lower, upper = arrays.lower[place], arrays.upper[place]
    # trees of a BatchMPF have no boxes; a box does not restrict dimensions in which it has no length
    part = np.where(lower < upper, np.stack([lower, upper]), side) if lower.size else side
    masses = float(known.inside[place]), float(known.complement[place])
    volumes = float(known.inside_volume[place]), float(known.complement_volume[place])
    densities = masses[0] - volumes[0], masses[1] - volumes[1] if np.isfinite(masses[1]) else -np.inf
    return Node(
        number=j,
        parent=parent,
        is_left=is_left,
        depth=depth,
        feature=int(arrays.feature[place]),
        cut=float(arrays.cut[place]),
        time=float(arrays.time[place]),
        n_rows=int(arrays.counts[place]),
        side=side,
        part=part,
        log_masses=masses,
        log_densities=densities,
    )


def is_met(box: Array, shown: Sequence[int], at: Array) -> bool:
    """Return whether the plane of the features `shown` through the row `at` intersects a box."""
    hidden = [k for k in range(len(at)) if k not in shown]
    return bool(((box[0] <= at) & (at <= box[1]))[hidden].all())


def seen_on_plane(nodes: list[Node], shown: Sequence[int], at: Array) -> list[Node]:
    """Return the nodes whose sides intersect the plane of the features `shown` through the row `at`.

    Branches of a node whose part misses the plane are skipped.
    """
    met: set[int] = set()
    seen = []
    for place, node in enumerate(nodes):
        if node.parent != NONE:
            above = nodes[node.parent]
            on_side = above.feature in shown or (at[above.feature] <= above.cut) == node.is_left
            if node.parent not in met or not on_side:
                continue
        seen.append(node)
        if is_met(node.part, shown, at):
            met.add(place)
    return seen
