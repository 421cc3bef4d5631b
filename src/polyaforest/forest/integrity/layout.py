"""Types and shapes of the arrays of a forest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

# The type of each array and its axes. Letters are lengths that arrays share: T trees, C node slots, D features, W
# dimensions of a box, P slots for points.
Layout: TypeAlias = dict[str, tuple[Any, str]]
FOREST_LAYOUT: Layout = {
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


class CorruptForestError(ValueError):
    """The arrays of a forest contradict each other."""


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
