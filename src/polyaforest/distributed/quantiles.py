"""Mergeable quantiles: an Apache DataSketches REQ sketch, precise in the lower tail."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from datasketches import req_floats_sketch

from polyaforest.kernels.arrays import Array

_PRECISION = 64  # the sketch's k: a relative error of ranks of about half a per cent
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, eq=False)
class Quantiles:
    """A sketch of numbers. Sketches of parts can be added.

    Sketches drop numbers at random: two runs differ within the error.

    Examples
    --------
    >>> sketch = Quantiles.of(np.arange(0.0, 10.0)) + Quantiles.of(np.array([]))
    >>> 1.99 < sketch.quantile(0.2) < 2
    True
    """

    packed: bytes

    @classmethod
    def of(cls, values: Array) -> Quantiles:
        """Sketch numbers; infinite ones count as the largest number that the sketch can hold."""
        sketch = req_floats_sketch(_PRECISION, False)
        if len(values):
            sketch.update(np.clip(values, -_LARGEST, _LARGEST).astype(np.float32))
        return cls(sketch.serialize())

    def __add__(self, other: Quantiles) -> Quantiles:
        """Merge two sketches."""
        sketch = req_floats_sketch.deserialize(self.packed)
        sketch.merge(req_floats_sketch.deserialize(other.packed))
        return Quantiles(sketch.serialize())

    def quantile(self, share: float) -> float:
        """Return the largest float below the quantile, so that numbers equal to the quantile lie above it."""
        found = np.float32(req_floats_sketch.deserialize(self.packed).get_quantile(share))
        return -np.inf if found <= -_LARGEST else float(np.nextafter(found, np.float32(-np.inf)))
