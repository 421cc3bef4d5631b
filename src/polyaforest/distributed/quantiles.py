"""Quantiles of more numbers than one machine sees: an Apache DataSketches REQ sketch, precise in the lower tail."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from datasketches import req_floats_sketch

from polyaforest.core.arrays import Array

_PRECISION = 64  # the sketch's k: ranks are known to about half a per cent of themselves
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, eq=False)
class Quantiles:
    """A sketch of numbers; those of parts add up.

    How a sketch forgets is random: two runs differ within its error.

    Examples
    --------
    >>> sketch = Quantiles.of(np.arange(0.0, 10.0)) + Quantiles.of(np.array([]))
    >>> 1.99 < sketch.quantile(0.2) < 2
    True
    """

    packed: bytes

    @classmethod
    def of(cls, values: Array) -> Quantiles:
        """Sketch numbers; infinite ones count as the largest that the sketch can hold."""
        sketch = req_floats_sketch(_PRECISION, False)
        if len(values):
            sketch.update(np.clip(values, -_LARGEST, _LARGEST).astype(np.float32))
        return cls(sketch.serialize())

    def __add__(self, other: Quantiles) -> Quantiles:
        """Return the sketch of the numbers of both."""
        sketch = req_floats_sketch.deserialize(self.packed)
        sketch.merge(req_floats_sketch.deserialize(other.packed))
        return Quantiles(sketch.serialize())

    def quantile(self, share: float) -> float:
        """Return a number just below which a share of all numbers lies, so that ones equal to it do not."""
        found = np.float32(req_floats_sketch.deserialize(self.packed).get_quantile(share))
        return -np.inf if found <= -_LARGEST else float(np.nextafter(found, np.float32(-np.inf)))
