"""The features of two samples on common axes: the ranks of their values among all rows, and a place for gaps.

On ranks the scale of a feature does not matter, nor does any other monotone change of it; stray values are no farther
away than others. Many different values share few levels, so that cuts fall between values that exist.

Categories have no order: each is a corner of a cube of yes/no questions, and a cut asks one of them. The corners are
drawn for the occasion, by how common a category is, so that it does not matter what categories are called.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from polyaforest.core.arrays import QUESTIONS, Array
from polyaforest.core.boxes import answer
from polyaforest.core.categories import Texts

MISSING = 0  # the level of a gap, below those of all values
_MOST_LEVELS = 2048  # of a feature
_GAP = 0.5  # from a gap to the lowest value, in units of the distance from the lowest value to the highest


class Levels:
    """What features have in common: levels, of which the first, `MISSING`, is that of gaps."""

    positions: Array  # of each level
    has_gaps: bool  # whether any value is missing

    @property
    def lowest(self) -> int:
        """The lowest level there is."""
        return MISSING if self.has_gaps else MISSING + 1

    @property
    def highest(self) -> int:
        """The highest level there is."""
        return len(self.positions) - 1

    @property
    def n_levels(self) -> int:
        """The number of levels, that of gaps included."""
        return len(self.positions)


@dataclass(frozen=True, eq=False)
class Axis(Levels):
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


class Coded(NamedTuple):
    """Which columns of rows hold codes of categories."""

    columns: tuple[int, ...]
    texts: Texts
    rng: np.random.Generator  # which draws their corners


@dataclass(frozen=True, eq=False)
class Corners(Levels):
    """The levels of one feature of categories: `MISSING`, and then one for each category, the most common first.

    Attributes
    ----------
    codes : float64 array of shape (K,)
        The codes of the categories, ascending.
    ranks : int32 array of shape (K,)
        Their levels.
    texts : list of str or None
        The text of each level, from the first category on; None where it is not known.
    positions : float64 array of shape (K + 1,)
        The corner of each level, as a code.
    has_gaps : bool
        Whether any value is missing.
    """

    codes: Array
    ranks: Array
    texts: list[str | None]
    positions: Array
    has_gaps: bool

    @classmethod
    def of(cls, values: Array, texts: Texts, rng: np.random.Generator) -> Corners:
        """Draw a corner for each category of a feature, given by codes, NaN where one is missing."""
        present = values[~np.isnan(values)]
        codes, counts = np.unique(present, return_counts=True)
        order = np.argsort(-counts, kind="stable")
        ranks = np.empty(len(codes), np.int32)
        ranks[order] = MISSING + 1 + np.arange(len(codes))
        corners = rng.integers(2**QUESTIONS, size=len(codes) + 1).astype(np.float64)
        known = [texts.get(code) for code in codes[order].tolist()]
        return cls(codes, ranks, known, corners, len(present) < len(values))

    def levels(self, values: Array) -> Array:
        """Return the level of each code, int32; all must be known."""
        if not len(self.codes):
            return np.full(len(values), MISSING, np.int32)
        places = np.searchsorted(self.codes, np.nan_to_num(values))
        return np.where(np.isnan(values), MISSING, self.ranks[np.minimum(places, len(self.ranks) - 1)])

    def says_yes(self, question: float) -> Array:
        """Return which levels answer a question with yes, bool (K + 1,)."""
        return answer(self.positions, question)


class Grid(NamedTuple):
    """Rows on common axes."""

    axes: list[Axis | Corners]
    levels: Array  # int32 (n, D)

    @classmethod
    def of(cls, rows: Array, sample: Array, coded: Coded | None = None) -> Grid:
        """Place rows on the axes that a sample of them lays out; categories are those of all rows."""
        axes: list[Axis | Corners] = []
        for k in range(rows.shape[1]):
            if coded is not None and k in coded.columns:
                axes.append(Corners.of(rows[:, k], coded.texts, coded.rng))
            else:
                axes.append(Axis.of(sample[:, k]))
        levels = np.empty(rows.shape, np.int32)
        for k, axis in enumerate(axes):
            levels[:, k] = axis.levels(rows[:, k])
        return cls(axes, levels)

    @property
    def order(self) -> Array:
        """The features in the order of trees, (D,): numbers, and then categories."""
        return np.argsort([isinstance(axis, Corners) for axis in self.axes], kind="stable")

    @property
    def n_categories(self) -> int:
        """The number of features that are categories."""
        return sum(isinstance(axis, Corners) for axis in self.axes)

    def positions(self, rows: slice | Array) -> Array:
        """Return where some of the rows lie, float64 (n, D), as trees are grown on them: categories come last."""
        chosen = self.levels[rows]
        places = np.empty(chosen.shape)
        for at, k in enumerate(self.order.tolist()):
            places[:, at] = self.axes[k].positions[chosen[:, k]]
        return places
