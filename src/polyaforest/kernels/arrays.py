"""The arrays of a forest, trees stacked along the first axis.

T trees, C node slots per tree, D features. Only what the random partition drew and what the data counted is stored.
Every probability is derived (`Posterior`), because a new point changes boxes and depths, and a stored Beta parameter
would go stale.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]

NONE = -1  # no such node: the child of a leaf, the parent of a root
EVERY = 2**62  # the size of a sample that takes every point
UNBOUNDED = 2**31 - 1  # the depth limit of trees that have none

# A category is a corner of a cube of yes/no questions. Its code is an integer with one bit per answer.
QUESTIONS = 52  # bits that a float represents exactly
ALL_YES = float(2**QUESTIONS - 1)  # yes to all; as the lower end with 0 as the upper end, the empty cube

# How a value decreases with the reach r, the distance from the known world divided by the size of that world.
FADE_MASS = 0  # value / (1 + r): probability that the first cut of the world extended to the row does not isolate it
FADE_LOG_MASS = 1  # the logarithm of the same
FADE_LOG_DENSITY = 2  # value - D * r

# What the prequential loop sums over the trees for each row.
SCORE_NOTHING = 0
SCORE_CELLS = 1  # the masses of its cells at several lifetimes
SCORE_MASS = 2  # the mass of its leaf
SCORE_LOG_MASS = 3  # the logarithm of the mass of its leaf
SCORE_LOG_CELLS = 4  # the mean of the logarithms of the masses of its cells
LEAST_LOG = -1e300  # lower bound of logarithms, so that their sums stay finite


class LeafKind(IntEnum):
    """Which kind of leaf a row falls in (the paper's terms, section 3.1)."""

    OBSERVED_I = 1  # holds data whose box has collapsed in at least one dimension
    OBSERVED_II = 2  # holds data in a box of positive volume; or a cell of a Mondrian process that holds data
    COMPLEMENTARY = 3  # inside the known world, in a region without data
    OUTSIDE = 4  # beyond the known world


class Forest(NamedTuple):
    """A stack of trees.

    A Mondrian *tree* (sMPF) keeps the bounding box of the points below each node. A Mondrian *process* (bMPF) does not
    look at the data, so its boxes have width zero: the regions follow from the cuts and the domain.

    The last features may be categories. Their values are codes, and boxes are cubes: the lower end is the bitwise AND
    of the codes of all points, the upper end the bitwise OR. A cut is the number of a question; no goes left.
    """

    left: Array  # int32 (T, C): child holding x[feature] <= cut, NONE at a leaf
    right: Array  # int32 (T, C): the other child
    parent: Array  # int32 (T, C): NONE at the root
    feature: Array  # int32 (T, C): dimension delta of the cut, NONE at a leaf
    cut: Array  # float64 (T, C): location xi of the cut
    time: Array  # float64 (T, C): time tau of the cut, the lifetime at a leaf
    counts: Array  # int64 (T, C): points below the node
    lower: Array  # float64 (T, C, D), or (T, C, 0) for a process: lower corner of the points' bounding box
    upper: Array  # float64 (T, C, D), or (T, C, 0): upper corner
    root: Array  # int32 (T,)
    size: Array  # int32 (T,): node slots in use
    outside: Array  # int64 (T,): points counted beyond the domain (processes only)
    weights: Array  # float64 (T, D): weight of each feature's length in the cut measure, fixed when a tree is born
    rng: Array  # uint64 (T, 4): generator state
    domain: Array  # float64 (2, D): the known world; empty if the bounding box of the data serves instead
    n_categories: Array = np.zeros(1, np.int64)  # (1,): the number of categorical features, which come last


class Points(NamedTuple):
    """The points that the trees of a stream hold, stored once, and the list of points of each leaf of each tree.

    There are P slots for points; unused slots hold zeros. A forest that keeps no points has no slots and no lists
    (P = 0, and C = 0 for `head`).
    """

    values: Array  # float64 (P, D)
    head: Array  # int32 (T, C): the first point of a leaf's list, NONE at other nodes
    links: Array  # int32 (T, P, 3): the previous and next point in the leaf's list, NONE at the ends; the leaf


class Prior(NamedTuple):
    """The prior of the cuts."""

    strength: float  # gamma: pseudo-points behind the prior of the first cut
    is_open: bool  # whether anything can lie beyond the known world


class Posterior(NamedTuple):
    """Posterior log-masses and log-volumes of every node, derived by `kernels.polya`."""

    inside: Array  # float64 (T, C): mass of the node's own region, restricted to its box
    complement: Array  # float64 (T, C): mass that the restriction leaves out, -inf where it leaves out nothing
    outside: Array  # float64 (T,): mass beyond the known world
    inside_volume: Array  # float64 (T, C)
    complement_volume: Array  # float64 (T, C)
    outside_volume: Array  # float64 (T,): normaliser of the density beyond the known world
    world: Array  # float64 (2, T, D): the known world, the hull of the domain and the root's box


class LeafTable(NamedTuple):
    """One number per leaf for a walk to look up: a mass, a log-mass or a log-density."""

    inside: Array  # float64 (T, C)
    complement: Array  # float64 (T, C)
    outside: Array  # float64 (T,): the value just beyond the known world
    world: Array  # float64 (2, T, D)
    fading: int  # how it decreases from there: FADE_MASS, FADE_LOG_MASS or FADE_LOG_DENSITY


_NODE_FIELDS = {
    "left": np.int32,
    "right": np.int32,
    "parent": np.int32,
    "feature": np.int32,
    "cut": np.float64,
    "time": np.float64,
    "counts": np.int64,
}
_SLOTS = (*_NODE_FIELDS, "lower", "upper")


def is_ascending(values: Array, *, strictly: bool = True) -> bool:
    """Return whether the values increase strictly, or at least never decrease; NaN does neither.

    Compare instead of taking differences, which could overflow for the values of a damaged file.
    """
    before, after = values[:-1], values[1:]
    return bool(((after > before) if strictly else (after >= before)).all())


def new_forest(
    capacity: int, weights: Array, rng: Array, domain: Array, *, boxed: bool, n_categories: int = 0
) -> Forest:
    """Allocate one tree per row of `rng`, with `capacity` node slots each."""
    n_trees, n_features = weights.shape
    nodes = {name: np.zeros((n_trees, capacity), dtype) for name, dtype in _NODE_FIELDS.items()}
    width = n_features if boxed else 0
    return Forest(
        **nodes,
        lower=np.zeros((n_trees, capacity, width)),
        upper=np.zeros((n_trees, capacity, width)),
        root=np.zeros(n_trees, np.int32),
        size=np.zeros(n_trees, np.int32),
        outside=np.zeros(n_trees, np.int64),
        weights=weights,
        rng=rng,
        domain=domain,
        n_categories=np.array([n_categories]),
    )


def node_bytes(n_features: int, *, boxed: bool) -> int:
    """Return the memory of one node slot."""
    topology = sum(np.dtype(dtype).itemsize for dtype in _NODE_FIELDS.values())
    return topology + (2 * 8 * n_features if boxed else 0)


def trim(tree: Forest) -> Forest:
    """Copy a one-tree forest, keeping only the slots in use."""
    used = int(tree.size[0])
    return Forest(*(part[:, :used].copy() if name in _SLOTS else part.copy() for name, part in tree._asdict().items()))


def stack(trees: Sequence[Forest], capacity: int = 0) -> Forest:
    """Stack `trees` (same features, same domain) into one forest, slots padded with zeros to the largest or more."""
    capacity = max(capacity, *(tree.left.shape[1] for tree in trees))

    def stacked(name: str) -> Array:
        parts = [getattr(tree, name) for tree in trees]
        if name not in _SLOTS:
            return np.concatenate(parts)
        whole = np.zeros((len(trees), capacity, *parts[0].shape[2:]), parts[0].dtype)
        for slot, part in zip(whole, parts, strict=True):
            slot[: part.shape[1]] = part[0]
        return whole

    shared = {name: getattr(trees[0], name) for name in ("domain", "n_categories")}
    return Forest(**{name: stacked(name) for name in Forest._fields if name not in shared}, **shared)


def pad(forest: Forest, capacity: int) -> Forest:
    """Return `forest` with at least `capacity` node slots per tree; the same object if it has them already."""
    more = capacity - forest.left.shape[1]
    if more <= 0:
        return forest
    return forest._replace(**{name: _padded(getattr(forest, name), more, 0) for name in _SLOTS})


def new_points(n_trees: int, n_nodes: int, n_slots: int, n_features: int) -> Points:
    """Allocate the points of a forest, with empty leaves."""
    return Points(
        values=np.zeros((n_slots, n_features)),
        head=np.full((n_trees, n_nodes), NONE, np.int32),
        links=np.full((n_trees, n_slots, 3), NONE, np.int32),
    )


def pad_points(points: Points, n_nodes: int, n_slots: int) -> Points:
    """Return `points` with at least `n_nodes` node slots and `n_slots` point slots."""
    more_slots, more_nodes = n_slots - len(points.values), n_nodes - points.head.shape[1]
    values, head, links = points
    if more_slots > 0:
        values = np.concatenate([values, np.zeros((more_slots, values.shape[1]))])
        links = _padded(links, more_slots, NONE)
    return Points(values, _padded(head, more_nodes, NONE) if more_nodes > 0 else head, links)


def _padded(part: Array, more: int, filler: int) -> Array:
    """Append `more` entries along the second axis of an array; unwritten zeros take no memory."""
    shape = part.shape[0], part.shape[1] + more, *part.shape[2:]
    padded = np.full(shape, filler, part.dtype) if filler else np.zeros(shape, part.dtype)
    padded[:, : part.shape[1]] = part
    return padded
