"""The features of two samples on common axes: the ranks of their values among all rows, and a place for gaps.

On ranks the scale of a feature does not matter, nor does any other monotone change of it; stray values are no farther
away than others. Many different values share few levels, so that cuts fall between values that exist.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from polyaforest.core.arrays import Array

MISSING = 0  # the level of a gap, below those of all values
_MOST_LEVELS = 2048  # of a feature
_GAP = 0.5  # from a gap to the lowest value, in units of the distance from the lowest value to the highest


@dataclass(frozen=True, eq=False)
class Axis:
    """The levels of one feature: `MISSING`, and then one for the values up to each of the edges.

    Attributes
    ----------
    edges : float64 array
        The highest value of each level, ascending; what is above the last belongs to it too.
    positions : float64 array
        Where each level lies on the axis, from 0 to 1 + _GAP; the first is that of gaps.
    has_gaps : bool
        Whether any value is missing.
    """

    edges: Array
    positions: Array
    has_gaps: bool

    @classmethod
    def of(cls, values: Array) -> Axis:
        """Lay out the axis of a feature from its values, NaN where one is missing."""
        present = values[~np.isnan(values)]
        distinct, counts = np.unique(present, return_counts=True)
        if len(distinct) > _MOST_LEVELS:
            ranks = np.linspace(0, len(present) - 1, _MOST_LEVELS + 1)[1:].round().astype(np.int64)
            distinct = np.unique(np.sort(present)[ranks])
            counts = np.bincount(np.searchsorted(distinct, present), minlength=len(distinct))
        below = np.cumsum(counts) - counts
        middle = (below + counts / 2) / max(len(present), 1)
        return cls(distinct, np.append(0.0, _GAP + middle), len(present) < len(values))

    def levels(self, values: Array) -> Array:
        """Return the level of each value, int32."""
        if not len(self.edges):
            return np.full(len(values), MISSING, np.int32)
        above = np.minimum(np.searchsorted(self.edges, values), len(self.edges) - 1) + 1
        return np.where(np.isnan(values), MISSING, above).astype(np.int32)

    def last_below(self, cut: float) -> int:
        """Return the highest level that a cut at this position leaves to its left."""
        return int(np.searchsorted(self.positions, cut, side="right")) - 1

    @property
    def lowest(self) -> int:
        """The lowest level there is."""
        return MISSING if self.has_gaps else MISSING + 1

    @property
    def highest(self) -> int:
        """The highest level there is."""
        return len(self.edges)


class Grid(NamedTuple):
    """Rows on common axes."""

    axes: list[Axis]
    levels: Array  # int32 (n, D)

    @classmethod
    def of(cls, rows: Array, sample: Array) -> Grid:
        """Place rows on the axes that a sample of them lays out."""
        axes = [Axis.of(sample[:, k]) for k in range(rows.shape[1])]
        levels = np.empty(rows.shape, np.int32)
        for k, axis in enumerate(axes):
            levels[:, k] = axis.levels(rows[:, k])
        return cls(axes, levels)

    def positions(self, rows: slice | Array) -> Array:
        """Return where some of the rows lie, float64 (n, D), as trees are grown on them."""
        chosen = self.levels[rows]
        places = np.empty(chosen.shape)
        for k, axis in enumerate(self.axes):
            places[:, k] = axis.positions[chosen[:, k]]
        return places
