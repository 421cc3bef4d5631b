"""Helpers of stream tests."""

import gc
import pickle
import struct
from numbers import Integral
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType

import numpy as np

from polyaforest.forest.integrity import check_forest
from polyaforest.forest.stream_checks import check_stream

NODE_PARTS = ("left", "right", "parent", "feature", "cut", "time", "counts", "lower", "upper")
TREE_PARTS = ("root", "size", "weights", "rng")


def bits(forest):
    """Return the complete state of a stream, whatever the capacity of its arrays."""
    trees = forest.forest_
    nodes = [getattr(trees, name)[t, :size].tobytes() for t, size in enumerate(trees.size) for name in NODE_PARTS]
    whole = [getattr(trees, name).tobytes() for name in TREE_PARTS]
    return nodes, whole, forest.lifetimes_.tobytes(), forest.n_seen_, forest.n_points_, *held(forest)


def held(forest):
    """Return the keys and points that a forest stores."""
    return (forest.keys_, forest.points_.tobytes()) if hasattr(forest, "points_") else ()


def assert_whole(forest):
    """Assert that the trees hold exactly the points of the forest."""
    assert forest.n_points_ == len(forest.points_) == len(forest.keys_)
    check_stream(forest._stream)
    if forest.n_points_ and not forest._stream.is_sampled:
        check_forest(forest.forest_, forest.points_)


def bytes_of(estimator):
    """Return all bytes reachable from an estimator: arrays and their bases, texts and numbers.

    Numbers are there in both byte orders, as pickle turns them around.
    """
    return b"\0".join([*_reach(estimator), pickle.dumps(estimator)])


def _reach(start):
    waiting, met = [start], set()
    while waiting:
        part = waiting.pop()
        if id(part) in met or isinstance(
            part, type | ModuleType | FunctionType | BuiltinFunctionType | MethodType | None.__class__
        ):
            continue
        met.add(id(part))
        if isinstance(part, np.ndarray):
            yield part.tobytes()
            waiting += [part.base] if part.dtype != object else [part.base, *part.ravel().tolist()]
        elif isinstance(part, str):
            yield part.encode("utf-8", "surrogatepass")
        elif isinstance(part, bytes | bytearray | memoryview):
            yield bytes(part)
        elif isinstance(part, float | np.floating):
            yield from (struct.pack(order + "d", part) for order in "<>")
        elif isinstance(part, Integral):
            yield str(int(part)).encode()
        else:  # a container or an object: its references according to the garbage collector
            waiting += gc.get_referents(part)
