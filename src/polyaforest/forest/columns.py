"""Columns without a value in the first rows of a stream.

A column is *unknown* until a row with a value in it is learned. Until then all points have the same placeholder there,
so no tree cuts the column, and its values in rows to score are ignored. The first value replaces the placeholder, which
moves all points alike and changes no tree. Then the column is *young* for as long as a stream warms up: rows are
learned with their values, earlier points get values of donors whenever the trees are rebuilt, and rows are scored as if
these values were missing.

A column with a value in the first row is neither unknown nor young: the stream as a whole warms up.
"""

from __future__ import annotations

from copy import copy

import numpy as np

from polyaforest.kernels.arrays import NONE, Array


class LateColumns:
    """The arrivals since which the columns of a stream have values.

    Parameters
    ----------
    domain : Array
        The domain of the trees, (2, D); empty if it is the bounding box of the points.

    Attributes
    ----------
    since : Array
        The arrival with the first value of each column, int64 (D,): 0 if it is the first row or the column is no longer
        young; NONE if the column is unknown.
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
        """Which columns had their first value recently, bool (D,)."""
        return np.asarray(self.since > 0)

    def begin(self, row: Array) -> None:
        """Start with a row, (D,), while no point is held."""
        self.since = np.where(np.isnan(row), NONE, 0)

    def new_in(self, row: Array) -> Array:
        """Return which columns have their first value in a row, (D,)."""
        return np.asarray(self.is_unknown & ~np.isnan(row))

    def n_until_new(self, rows: Array) -> int:
        """Return the number of rows before the next one, after the first, with the first value of a column."""
        is_unknown = self.is_unknown & np.isnan(rows[0])
        if not is_unknown.any():
            return len(rows)
        is_new = ~np.isnan(rows[1:, is_unknown]).all(axis=1)
        return int(is_new.argmax()) + 1 if is_new.any() else len(rows)

    def placed(self, rows: Array) -> Array:
        """Return rows with the placeholder in unknown columns, to compare them with points held."""
        is_unknown = self.is_unknown
        return np.where(is_unknown, self.placeholder, rows) if is_unknown.any() else rows

    def scored(self, rows: Array) -> Array:
        """Return rows to be scored: `placed`, and without the values of young columns."""
        is_young, rows = self.is_young, self.placed(rows)
        return np.where(is_young, np.nan, rows) if is_young.any() else rows

    def shown(self, rows: Array) -> Array:
        """Return points held without placeholders."""
        is_unknown = self.is_unknown
        return np.where(is_unknown, np.nan, rows) if is_unknown.any() else rows

    @property
    def first_young(self) -> int | None:
        """The earliest arrival with the first value of a young column; None without young columns."""
        young = self.since[self.is_young]
        return int(young.min()) if len(young) else None

    def age(self, until: int) -> None:
        """End the youth of columns whose first value came up to arrival `until`."""
        self.since = np.where(self.is_young & (self.since <= until), 0, self.since)

    def copy(self) -> LateColumns:
        """Return a copy that changes apart."""
        twin = copy(self)
        twin.since = self.since.copy()
        return twin

    def widened(self, place: int, n_new: int) -> LateColumns:
        """Return a copy with `n_new` known columns inserted."""
        wider = copy(self)
        wider.since = np.insert(self.since, [place] * n_new, 0)
        wider.placeholder = np.insert(self.placeholder, [place] * n_new, 0.0)
        return wider

    def check(self, n_seen: int, points: Array) -> None:
        """Raise ValueError if inconsistent with a stream that has seen `n_seen` rows and holds these points."""
        if (self.since < NONE).any() or (self.since > n_seen).any():
            raise ValueError("array since: the first value of a column is in a row that has not arrived")
        if (points != self.placed(points)).any():
            raise ValueError("array since: points have values in an unknown column")
