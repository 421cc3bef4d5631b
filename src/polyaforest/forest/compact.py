"""Compact states of trees that keep their points: only what cannot be derived.

Trees are written in preorder, points by order of arrival. The points of a tree follow from its seed; counts, boxes and
lists follow from the points. So trees always agree with their points after reading, even from an untrusted file, and
need no further check. Node slots keep their numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np

from polyaforest.forest.grow import SPARE_NODES, allocate, memory_limit, memory_needed
from polyaforest.forest.integrity import CorruptForestError, Layout, check_layout, check_sample_sizes, check_unread
from polyaforest.forest.point_store import Key, PointStore
from polyaforest.forest.retention import Policy
from polyaforest.forest.spec import Plan
from polyaforest.kernels import preorder
from polyaforest.kernels.arrays import EVERY, NONE, Array, Forest, Points, new_points
from polyaforest.kernels.sampling import TreeSamples
from polyaforest.storage.modelfile import Arrays
from polyaforest.storage.state import pack_keys, unpack_keys
from polyaforest.tables.validation import LARGEST

_LAYOUT: Layout = {  # T trees, N nodes, I of them cut, D features, H points held, J scores; K bytes
    "size": (np.int32, "T"),
    "feature": (np.int32, "N"),
    "slot": (np.int32, "N"),
    "cut": (np.float64, "I"),
    "time": (np.float64, "I"),
    "weights": (np.float64, "TD"),
    "rng": (np.uint64, "T4"),
    "domain": (np.float64, "2D"),
    "samples": (np.int64, "T"),  # most points of each tree, 0 for every point
    "seeds": (np.uint64, "T"),
    "bars": (np.uint64, "T"),
    "values": (np.float64, "HD"),
    "ages": (np.int64, "H"),  # arrivals since each point, including itself
    "ranks": (np.float64, "H"),  # if they are random
    "times": (np.float64, "H"),  # if there are any
    "shifts": (np.int64, "H"),  # key minus arrival, if keys are numbers other than the arrivals
    "keys": (np.uint8, "K"),  # if some keys are not numbers
    "judges": (np.int64, "J"),  # arrivals since each calibration score
}
_SPARE_POINTS = 64  # free slots for new points, unless fewer points are held
_FARTHEST = 2**62  # bound of keys that are stored as shifts


class Trees(NamedTuple):
    """The parts of a compact state that are needed before its trees are read."""

    weights: Array
    domain: Array

    @classmethod
    def of_state(cls, arrays: Arrays) -> Self:
        """Read and check these arrays of a state."""
        unknown = [name for name in arrays if name.startswith(("forest/", "points/"))]
        if unknown:
            raise CorruptForestError(f"array {unknown[0]}: does not belong to a compact state")
        part = {name: arrays[f"compact/{name}"] for name in cls._fields}
        check_layout(part, _LAYOUT, {})
        return cls(**part)


class StreamContents(NamedTuple):
    """The trees of a stream, and the points in their slots with rank, time and key."""

    forest: Forest
    points: Points
    samples: TreeSamples  # with the arrival of the point in each slot
    ranks: Array  # float64 (P,)
    times: Array  # float64 (P,)
    keys: Sequence[Key]  # of the points held, by order of arrival
    judges: Array  # int64 (J,): arrivals with calibration scores


def shrunk(forest: Forest, points: Points, store: PointStore, samples: TreeSamples, judges: Array) -> Arrays:
    """Return the compact state."""
    held = store.held
    arrivals, n_seen = store.arrivals[held], store.n_seen
    arrays = {
        **_in_preorder(forest),
        "weights": forest.weights,
        "rng": forest.rng,
        "domain": forest.domain,
        "samples": np.where(samples.sizes < EVERY, samples.sizes, 0),
        "seeds": samples.seeds,
        "bars": samples.cutoffs,
        "values": points.values[held],
        "ages": n_seen - arrivals,
        "judges": n_seen - judges,
    }
    if store.policy.is_random:
        arrays["ranks"] = store.ranks[held]
    times = store.times[held]
    if not np.isnan(times).all():
        arrays["times"] = times
    return {f"compact/{name}": part for name, part in (arrays | _pack_keys(store, arrivals)).items()}


def _in_preorder(forest: Forest) -> Arrays:
    """Return the nodes of all trees."""
    n = int(forest.size.sum())
    features, slots = np.empty((2, n), np.int32)
    n_cut = (n - int((forest.size > 0).sum())) // 2  # every other node is a leaf, and one more in each tree
    cuts, times = np.empty((2, n_cut))
    preorder.write_trees(forest, features, slots, cuts, times, np.empty(forest.left.shape[1] + 1, np.int32))
    return {"size": forest.size, "feature": features, "slot": slots, "cut": cuts, "time": times}


def _pack_keys(store: PointStore, arrivals: Array) -> Arrays:
    """Return the keys of points; empty if all are the numbers of their arrivals."""
    keys = store.held_keys
    if keys == arrivals.tolist():
        return {}
    if all(type(key) is int and -_FARTHEST < key < _FARTHEST for key in keys):
        return {"shifts": np.array(keys, np.int64) - arrivals}
    return {"keys": pack_keys(keys)}


def expanded(arrays: Arrays, plan: Plan, policy: Policy, n_seen: int) -> StreamContents:
    """Invert `shrunk`, for trees by a `plan` and points kept by a `policy`."""
    part = {name.removeprefix("compact/"): array for name, array in arrays.items() if name.startswith("compact/")}
    known = check_layout(part, _LAYOUT, {"T": plan.n_trees, "D": plan.domain.shape[1]})
    n_held, arrivals = known["H"], n_seen - part["ages"]
    sizes = np.where(part["samples"] == 0, EVERY, part["samples"])
    check_sample_sizes(sizes)
    n_slots, room = _room(part, plan, policy, sizes, n_held)
    forest = allocate(plan, room, part["weights"], part["rng"], boxed=True)
    points = new_points(plan.n_trees, room, n_slots, known["D"])
    forest.size[:], points.values[:n_held] = part["size"], part["values"]
    check_unread(forest, points.values, LARGEST)
    _plant(forest, points, part, plan, sizes, arrivals)
    numbers = _padded(arrivals, n_slots, NONE)
    samples = TreeSamples(sizes, part["seeds"], part["bars"], numbers, numbers != NONE)
    times = part.get("times", np.full(n_held, np.nan))
    ranks = part["ranks"] if policy.is_random else policy.ranks(arrivals, times, np.empty(0))
    in_slots = (_padded(ranks, n_slots, 0.0), _padded(times, n_slots, 0.0))
    return StreamContents(forest, points, samples, *in_slots, _unpack_keys(part, arrivals), n_seen - part["judges"])


def _room(part: Arrays, plan: Plan, policy: Policy, sizes: Array, n_held: int) -> tuple[int, int]:
    """Return how many slots to allocate for points and for the nodes of a tree, with some spare ones."""
    largest = int(sizes.max())
    n_slots, in_tree = n_held + min(n_held, _SPARE_POINTS), min(largest, n_held)
    most = min(largest, policy.n or EVERY) + 1
    room = plan.most_nodes(min(max(2 * in_tree, 1), most)) + SPARE_NODES
    if _check_sizes(part, n_held) > plan.most_nodes(max(in_tree, 1)):
        raise CorruptForestError(f"array size: a tree has more nodes than possible with {in_tree} points")
    if memory_needed(plan, room, boxed=True) + 12 * plan.n_trees * n_slots > memory_limit():
        raise CorruptForestError(f"array size: {plan.n_trees} trees of up to {room:,} nodes do not fit into memory")
    return n_slots, room


def _check_sizes(part: Arrays, n_held: int) -> int:
    """Return the size of the largest tree; raise unless the sizes add up and either all or no trees are empty."""
    size = part["size"]
    is_whole = ((size > 0) == (n_held > 0)).all() and int(size.sum(dtype=np.int64)) == len(part["feature"])
    if not is_whole or (size < 0).any():
        raise CorruptForestError("array size: the sizes of the trees do not add up")
    return int(size.max())


def _plant(forest: Forest, points: Points, part: Arrays, plan: Plan, sizes: Array, arrivals: Array) -> None:
    """Read the trees and fill them with their points."""
    room = forest.left.shape[1]
    waiting, depths = np.empty(room + 1, np.int32), np.empty(room, np.int32)
    nodes = part["feature"], part["slot"], part["cut"], part["time"]
    n_cut = preorder.read_trees(forest, *nodes, plan.lifetime, plan.depth_limit, waiting, depths)
    if n_cut != len(part["cut"]):
        raise CorruptForestError("array feature: the nodes do not form trees with increasing times")
    if not len(arrivals):
        return
    if preorder.fill_trees(forest, points, part["slot"], arrivals, sizes, part["seeds"], part["bars"]) < 0:
        raise CorruptForestError("array bars: the trees do not hold their samples of points")


def _padded(part: Array, n: int, filler: float) -> Array:
    whole = np.full(n, filler, part.dtype)
    whole[: len(part)] = part
    return whole


def _unpack_keys(part: Arrays, arrivals: Array) -> list[Key]:
    if "keys" in part:
        return unpack_keys(part["keys"])
    return (arrivals + part.get("shifts", np.int64(0))).tolist()  # type: ignore[no-any-return]
