"""Uniform samples of the rows of a table, drawn in parts: the rows of lowest priority.

The priority of a row is a pseudo-random number that depends only on a seed and the row's id, by default its number in
the table. So samples of parts combine into the sample of the whole, whatever the parts and their order. The rows of a
sample are in order of priority.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from polyaforest.kernels.arrays import NONE, Array
from polyaforest.kernels.sampling import NO_CUTOFF, fill_priorities


def priorities(seeds: Array, ids: Array) -> Array:
    """Return the priorities of rows for every seed, uint64 (seeds, n)."""
    drawn = np.empty((len(seeds), len(ids)), np.uint64)
    fill_priorities(seeds, ids, drawn)
    return drawn


def exponentials(drawn: Array) -> Array:
    """Convert priorities to draws from Exp(1), in the same order."""
    return -np.log1p(-(drawn + 0.5) / float(NO_CUTOFF))


def are_lowest(seeds: Array, ids: Array, sizes: Array) -> Array:
    """Return for every seed which rows have the lowest priorities, as many as its size, bool (seeds, n)."""
    is_lowest = np.ones((len(sizes), len(ids)), np.bool_)
    for size in np.unique(sizes[sizes < len(ids)]):
        alike = sizes == size
        drawn = priorities(seeds[alike], ids)
        is_lowest[alike] = drawn <= np.partition(drawn, size - 1, axis=1)[:, size - 1 : size]
    return is_lowest


def cutoffs(seeds: Array, ids: Array, sizes: Array) -> Array:
    """Return for every seed the highest of the lowest priorities; NO_CUTOFF if there are fewer than its size."""
    if (sizes > len(ids)).all():
        return np.full(len(seeds), NO_CUTOFF)
    drawn, is_lowest = priorities(seeds, ids), are_lowest(seeds, ids, sizes)
    highest = np.where(is_lowest, drawn, np.uint64(0)).max(axis=1, initial=0)
    return np.where(is_lowest.sum(axis=1) == sizes, highest, NO_CUTOFF)


def places_of(is_drawn: Array) -> Array:
    """Return the places of the true values in each row, in order, (T, most); NONE after the last."""
    order = np.argsort(~is_drawn, axis=1, kind="stable")[:, : int(is_drawn.sum(axis=1).max())]
    return np.where(np.take_along_axis(is_drawn, order, axis=1), order, NONE)


@dataclass(frozen=True, eq=False)
class Draw:
    """The `most` rows of lowest priority among those seen, in order of priority.

    Examples
    --------
    >>> rows, ids = np.arange(6.0)[:, None], np.arange(6)
    >>> whole = Draw.of(rows, ids, seed=0, most=3)
    >>> parts = [Draw.of(rows[part], ids[part], seed=0, most=3) for part in ([5, 1], [], [2, 0, 3, 4])]
    >>> (parts[2] + parts[0] + parts[1]).ids.tolist() == whole.ids.tolist()
    True
    """

    most: int
    priorities: Array  # uint64 (n,), ascending
    ids: Array  # int64 (n,)
    rows: Array  # float64 (n, D)
    cutoff: int = int(NO_CUTOFF)  # the lowest priority that was not drawn

    @classmethod
    def of(cls, rows: Array, ids: Array, *, seed: int, most: int) -> Draw:
        """Draw from rows that have these ids."""
        own = priorities(np.array([seed], np.uint64), np.require(ids, np.int64, ["C", "W"]))[0]
        return _lowest(most, own, ids, rows, int(NO_CUTOFF))

    def __add__(self, other: Draw) -> Draw:
        """Return the draw from the rows of both."""
        if self.most != other.most:
            raise ValueError(f"draws of {self.most} and {other.most} rows cannot be added")
        own, ids = np.append(self.priorities, other.priorities), np.append(self.ids, other.ids)
        return _lowest(self.most, own, ids, np.concatenate([self.rows, other.rows]), min(self.cutoff, other.cutoff))

    def __len__(self) -> int:
        return len(self.ids)

    def first(self, most: int) -> Draw:
        """Return the draw of fewer rows."""
        cutoff = int(self.priorities[most]) if len(self) > most else self.cutoff
        return Draw(most, self.priorities[:most], self.ids[:most], self.rows[:most], cutoff)

    def with_rows(self, rows: Array) -> Draw:
        """Return the draw with other values for its rows."""
        return replace(self, rows=rows)

    def check_unique_ids(self) -> None:
        """Raise if two of the rows have the same id."""
        ids, counts = np.unique(self.ids, return_counts=True)
        if len(ids) < len(self):
            raise ValueError(f"id {ids[counts.argmax()]} occurs more than once: every row needs a unique id")


def _lowest(most: int, own: Array, ids: Array, rows: Array, cutoff: int) -> Draw:
    """Return the draw from rows with these priorities; `cutoff` is the lowest priority not drawn before."""
    chosen = np.arange(len(own))
    if len(own) > most:
        chosen = np.flatnonzero(own <= np.partition(own, most)[most])  # one more than are drawn: the cutoff
    chosen = chosen[np.lexsort((ids[chosen], own[chosen]))]
    if len(chosen) > most:
        cutoff = min(cutoff, int(own[chosen[most]]))
    chosen = chosen[:most]
    return Draw(most, own[chosen], np.asarray(ids[chosen], np.int64), np.ascontiguousarray(rows[chosen]), cutoff)
