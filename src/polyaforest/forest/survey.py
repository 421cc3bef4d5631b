"""Statistics of a table that a fit needs first, gathered in parts and added.

Results are the same for any partition of the rows and any order of the parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import NamedTuple

import numpy as np

from polyaforest.forest import copies
from polyaforest.forest.draws import Draw
from polyaforest.forest.imputation import TableDonors
from polyaforest.kernels.arrays import ALL_YES, Array
from polyaforest.kernels.boxes import as_codes
from polyaforest.util.parallel import spans

_VALUES_AT_ONCE = 2**17  # values processed at a time, to stay in the cache


@dataclass(frozen=True, eq=False)
class ColumnBounds:
    """The number of rows and their bounds; arrays have a column for each feature.

    Examples
    --------
    >>> rows = np.array([[3.0, np.nan], [1.0, 5.0], [2.0, np.nan]])
    >>> facts = ColumnBounds.of(rows[:1], np.array([0])) + ColumnBounds.of(rows[1:], np.array([1, 2]))
    >>> facts.n, facts.lowest[:, 0].tolist(), facts.n_missing.tolist()
    (3, [1.0, 2.0], [0, 2])
    """

    n: int
    lowest: Array  # float64 (2, D): the two lowest values, infinite if absent; for categories see `answers_of`
    highest: Array  # float64 (2, D): the two highest
    n_missing: Array  # int64 (D,)
    ids: tuple[int, int]  # the lowest and the highest
    n_categories: int = 0  # the last features

    @classmethod
    def of(cls, rows: Array, ids: Array, n_categories: int = 0) -> ColumnBounds:
        """Gather the facts of rows with these ids."""
        n_numbers = rows.shape[1] - n_categories
        lowest, highest = (np.full((2, rows.shape[1]), bound) for bound in (np.inf, -np.inf))
        n_missing = np.zeros(rows.shape[1], np.int64)
        for part in spans(len(rows), max(_VALUES_AT_ONCE // max(rows.shape[1], 1), 1)):
            columns = np.ascontiguousarray(rows[part].T)
            n_missing += np.isnan(columns).sum(axis=1)
            columns = columns[:n_numbers]
            new = np.flatnonzero(np.fmin.reduce(columns, axis=1) < lowest[1, :n_numbers])  # few, after the first
            lowest[:, new] = two_lowest(np.vstack([lowest[:, new], columns[new].T]))
            new = np.flatnonzero(np.fmax.reduce(columns, axis=1) > highest[1, :n_numbers])
            highest[:, new] = -two_lowest(-np.vstack([highest[:, new], columns[new].T]))
        if n_categories:
            answers = answers_of(rows[:, n_numbers:])
            lowest[:, n_numbers:], highest[:, n_numbers:] = answers[:2], answers[2:]
        bounds = (int(ids.min()), int(ids.max())) if len(ids) else (2**63 - 1, -(2**63))
        return cls(len(rows), lowest, highest, n_missing, bounds, n_categories)

    def __add__(self, other: ColumnBounds) -> ColumnBounds:
        """Return the facts of the rows of both."""
        ours, theirs = (self.lowest, self.highest), (other.lowest, other.highest)
        return ColumnBounds(
            self.n + other.n,
            *edges_of_both(ours, theirs, self.n_categories),
            self.n_missing + other.n_missing,
            (min(self.ids[0], other.ids[0]), max(self.ids[1], other.ids[1])),
            self.n_categories,
        )

    @property
    def box(self) -> Array:
        """The smallest and largest value of every column, (2, D)."""
        return np.stack([self.lowest[0], self.highest[0]]) + 0.0  # not -0.0, which equals 0.0 but not bit for bit

    @property
    def has_row_numbers(self) -> bool:
        """Whether ids may be row numbers, from 0."""
        return self.ids[0] >= 0 and self.ids[1] < self.n


Edges = tuple[Array, Array]  # the two lowest and the two highest values of every column, (2, D) each


def edges_of_both(ours: Edges, theirs: Edges, n_categories: int) -> Edges:
    """Combine the edges of two sets of rows."""
    n = ours[0].shape[1] - n_categories
    (low, high), (low_of_others, high_of_others) = ours, theirs
    lowest = two_lowest(np.concatenate([low[:, :n], low_of_others[:, :n]]))
    highest = -two_lowest(-np.concatenate([high[:, :n], high_of_others[:, :n]]))
    answers = _together(*(as_codes(np.concatenate([part[:, n:] for part in edges])) for edges in (ours, theirs)))
    return np.hstack([lowest, answers[:2]]), np.hstack([highest, answers[2:]])


def answers_of(codes: Array) -> Array:
    """Return the counterpart of edges for categories, as bits, float64 (4, F).

    Instead of the two lowest values: the questions that all rows answer with yes, and all but at most one. Instead of
    the two highest: those that at least one row answers with yes, and at least two. Missing values do not count.
    """
    n_rows, n_columns = codes.shape
    answers = np.zeros((4, 1 << n_rows.bit_length(), n_columns), np.int64)  # the rows, padded with missing ones
    answers[:2] = int(ALL_YES)
    answers[0, :n_rows] = np.where(np.isnan(codes), answers[0, :n_rows], as_codes(codes))
    answers[2, :n_rows] = as_codes(codes)
    while answers.shape[1] > 1:
        answers = _together(*np.split(answers, 2, axis=1))
    return answers[:, 0].astype(np.float64)


def _together(ours: Array, theirs: Array) -> Array:
    """Combine two bit summaries."""
    (all_do, all_but_one, any_does, two_do), (all_other, all_but_one_other, any_other, two_other) = ours, theirs
    return np.stack(
        [
            all_do & all_other,
            (all_do & all_but_one_other) | (all_but_one & all_other),
            any_does | any_other,
            two_do | two_other | (any_does & any_other),
        ]
    )


def two_lowest(rows: Array) -> Array:
    """Return the two lowest values of every column, infinite if absent; NaN does not count."""
    low = np.fmin.reduce(rows, axis=0, initial=np.inf)
    is_low = rows == low
    second = np.fmin.reduce(np.where(is_low, np.inf, rows), axis=0, initial=np.inf)
    return np.stack([low, np.where(is_low.sum(axis=0) > 1, low, second)])


def seed_of_draws(seed: np.random.SeedSequence) -> int:
    """Return the seed for draws from a table, given the seed of the trees."""
    return int(seed.generate_state(1, np.uint64)[0])


class Inquiry(NamedTuple):
    """What to gather about a table."""

    seed: int  # of the priorities
    most: int  # rows to draw
    has_gaps: bool  # whether values may be missing
    n_categories: int = 0  # the last features

    @classmethod
    def seeded(cls, seed: np.random.SeedSequence, most: int, has_gaps: bool, n_categories: int = 0) -> Inquiry:
        """Return an inquiry whose draw depends on `seed`, the seed of the trees."""
        return cls(seed_of_draws(seed), most, has_gaps, n_categories)

    def of(self, rows: Array, ids: Array) -> Survey:
        """Survey rows with these ids; there may be no rows."""
        facts = ColumnBounds.of(rows, ids, self.n_categories)
        drawn = Draw.of(rows, ids, seed=self.seed, most=self.most)
        return Survey(facts, drawn, TableDonors.of(rows, ids, self.n_categories) if self.has_gaps else None)

    def of_copies(self, rows: Array, n_copies: Array, starts: Array) -> Survey:
        """Survey `n_copies` of each row; ids of copies of a row are consecutive, from its start on."""
        seen = (self.of(rows[places], ids) for places, ids in copies.parts(n_copies, starts))
        return reduce(add, seen, self.of(rows[:0], np.empty(0, np.int64)))

    def of_table(self, rows: Array) -> Survey:
        """Survey all rows of a table, with row numbers as ids; draw donors only if it has gaps."""
        has_gaps = self.has_gaps and bool(np.isnan(rows).any())
        return self._replace(has_gaps=has_gaps).of(rows, np.arange(len(rows)))


@dataclass(frozen=True, eq=False)
class Survey:
    """The result of an inquiry."""

    facts: ColumnBounds
    drawn: Draw
    donors: TableDonors | None

    def __add__(self, other: Survey) -> Survey:
        """Return the survey of the rows of both."""
        donors = None if self.donors is None or other.donors is None else self.donors + other.donors
        return Survey(self.facts + other.facts, self.drawn + other.drawn, donors)

    def filled(self, rows: Array, ids: Array) -> Array:
        """Fill in the missing values of rows of this table."""
        return rows if self.donors is None else self.donors.fill(rows, ids, self.facts.box)
