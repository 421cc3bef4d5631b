"""Penalties: what scores lose for features beyond their margins and for values that rarely occur together."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Self

import numpy as np

from polyaforest.forest.margins import MOST_POINTS, Margins
from polyaforest.forest.pairs import MOST_POINTS as MOST_IN_PAIRS
from polyaforest.forest.pairs import Pairs
from polyaforest.kernels.arrays import Array

_NO_PLACES = np.empty(0, np.int64)


class Penalties(NamedTuple):
    """The margins of single features, and the rare pairs of values of categorical ones; None if there are none."""

    margins: Margins | None = None
    pairs: Pairs | None = None

    @classmethod
    def of(cls, some_rows: Callable[[int], Array], n_categories: int, bits_per_step: Callable[[], float]) -> Self:
        """Measure on points: `some_rows` returns at most so many, `bits_per_step` the scale of costs of pairs."""
        margins = Margins.of(some_rows(MOST_POINTS), n_categories)
        pairs = Pairs.of(some_rows(MOST_IN_PAIRS), n_categories) if n_categories else None
        if pairs is not None and len(pairs.cells):
            pairs = pairs.scaled(bits_per_step())
        return cls(margins, pairs)

    def with_margins_of(self, points: Array, n_categories: int) -> Self:
        """Return the penalties with margins measured again, which is cheaper than counting pairs."""
        return self._replace(margins=Margins.of(points, n_categories))

    def places_beyond(self, rows: Array) -> Array:
        """Return the places of rows with a feature beyond its margins."""
        return _NO_PLACES if self.margins is None else np.flatnonzero(self.margins.are_beyond(rows).any(axis=1))

    def subtract(self, scores: Array, rows: Array) -> Array:
        """Return the scores of rows less their penalties."""
        for part in self._parts:
            costs = part.costs(rows)
            scores = scores if costs is None else scores - np.log(2) * costs
        return scores

    def attributions(self, rows: Array) -> Array | None:
        """Return the bits that `subtract` subtracts, by side and feature, (n, 2, D); None if there are none."""
        parts = [part.attributions(rows) for part in self._parts]
        return sum(parts[1:], start=parts[0]) if parts else None

    def left_out(self) -> Self:
        """Return the penalties of points held, scored as new rows by trees that have not learned them."""
        return self if self.pairs is None else self._replace(pairs=self.pairs.left_out())

    def without_margins_of(self, features: Array) -> Self:
        """Return the penalties without the margins of some features."""
        if self.margins is None:
            return self
        limit = self.margins.limit.copy()
        limit[:, features] = np.inf
        return self._replace(margins=self.margins._replace(limit=limit))

    @property
    def _parts(self) -> list[Margins | Pairs]:
        return [part for part in self if part is not None]


NO_PENALTIES = Penalties()
