"""Columns that have no value in the first rows of a stream.

A column is *unknown* until a row with a value in it is learned. Until then all points held have the same value there, a
placeholder, so no tree can cut the column, and values that rows to be scored have there are ignored. The first value
replaces the placeholder, which moves all points alike and changes no tree. From then on the column is *young*, while a
stream warms up: rows are learned with their values, and points from before get values of donors whenever the trees
are grown again, while the scale of the column is learned; but rows are scored as if their values were missing.

A column with a value in the first row is neither: the whole stream is young then.
"""

from __future__ import annotations

from copy import copy

import numpy as np

from polyaforest.core.arrays import NONE, Array


class Columns:
    """Since when the columns of a stream have values.

    Parameters
    ----------
    domain : Array
        The box of the trees, (2, D), empty if it is that of the points held.

    Attributes
    ----------
    since : Array
        The arrival that brought the first value of each column, int64 (D,): 0 for the beginning, and again once the
        column is no longer young; NONE if it is unknown.
    """

    def __init__(self, domain: Array) -> None:
        low, high = domain
        self.since = np.zeros(domain.shape[1], np.int64)
        self.placeholder = np.where(low <= high, np.clip(0.0, low, np.maximum(low, high)), 0.0)

    @property
    def are_known(self) -> bool:
        """Whether no column is unknown or young."""
        return not self.since.any()

    @property
    def is_unknown(self) -> Array:
        """Which columns have had no value, bool (D,)."""
        return np.asarray(self.since == NONE)

    @property
    def is_young(self) -> Array:
        """Which columns had their first value not long ago, bool (D,)."""
        return np.asarray(self.since > 0)

    def begin(self, row: Array) -> None:
        """Begin with a row, (D,), while no point is held."""
        self.since = np.where(np.isnan(row), NONE, 0)

    def new_in(self, row: Array) -> Array:
        """Return which columns have their first value in a row, (D,)."""
        return np.asarray(self.is_unknown & ~np.isnan(row))

    def n_until_new(self, rows: Array) -> int:
        """Return how many rows there are up to one, after the first, with the first value of a column."""
        is_unknown = self.is_unknown & np.isnan(rows[0])
        if not is_unknown.any():
            return len(rows)
        is_new = ~np.isnan(rows[1:, is_unknown]).all(axis=1)
        return int(is_new.argmax()) + 1 if is_new.any() else len(rows)

    def placed(self, rows: Array) -> Array:
        """Return rows as they are compared with points held: with the placeholder in unknown columns."""
        is_unknown = self.is_unknown
        return np.where(is_unknown, self.placeholder, rows) if is_unknown.any() else rows

    def scored(self, rows: Array) -> Array:
        """Return rows as they are scored: `placed`, and without the values of young columns."""
        is_young, rows = self.is_young, self.placed(rows)
        return np.where(is_young, np.nan, rows) if is_young.any() else rows

    def shown(self, rows: Array) -> Array:
        """Return points held without placeholders."""
        is_unknown = self.is_unknown
        return np.where(is_unknown, np.nan, rows) if is_unknown.any() else rows

    @property
    def first_young(self) -> int | None:
        """The earliest arrival that brought the first value of a column that is young, None if none is."""
        young = self.since[self.is_young]
        return int(young.min()) if len(young) else None

    def age(self, until: int) -> None:
        """Let columns be young no longer that had their first value in arrivals up to `until`."""
        self.since = np.where(self.is_young & (self.since <= until), 0, self.since)

    def widened(self, place: int, n_new: int) -> Columns:
        """Return these columns with `n_new` known ones inserted."""
        wider = copy(self)
        wider.since = np.insert(self.since, [place] * n_new, 0)
        wider.placeholder = np.insert(self.placeholder, [place] * n_new, 0.0)
        return wider

    def check(self, n_seen: int, points: Array) -> None:
        """Raise ValueError unless a stream that has seen so many rows, and holds these points, can be like this."""
        if (self.since < NONE).any() or (self.since > n_seen).any():
            raise ValueError("array since: columns have first values in rows that have not come")
        if (points != self.placed(points)).any():
            raise ValueError("array since: points have values in a column that should have none")
