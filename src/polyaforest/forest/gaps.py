"""Fill in missing values in a chunk of a stream, for learning and for scoring.

The points held when a row arrives do not depend on the trees, so all rows of a chunk are filled in, one after another,
before the trees process them. A row that is scored by its completions becomes several rows: first its completions,
which are scored, then the filled row, which is learned.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from polyaforest.forest import imputation
from polyaforest.forest.point_store import Schedule
from polyaforest.kernels.arrays import NONE, Array
from polyaforest.kernels.prequential import UNSCORED, StreamChunk
from polyaforest.util.parallel import ordered_sum

_NOTHING = np.empty(0, np.int64)


class ChunkDonors:
    """The points held before each row of a chunk arrives, by order of arrival.

    Parameters
    ----------
    points : Array
        The points held before the chunk, (m, D), by order of arrival ...
    slots : Array
        ... and their slots, (m,).
    schedule : Schedule
        The slots of the rows of the chunk, and the points that leave.
    n_categories : int
        Number of categorical features, which come last.
    """

    def __init__(self, points: Array, slots: Array, schedule: Schedule, n_categories: int) -> None:
        self._first, self._schedule, self._n_categories = len(points), schedule, n_categories
        n = self._first + len(schedule.slots)
        self._columns = np.empty((points.shape[1], n))  # by column, for fast spreads
        self._columns[:, : self._first] = points.T
        self._is_held = np.zeros(n, np.bool_)
        self._is_held[: self._first] = True
        every = np.append(slots, schedule.slots)
        self._place_of = np.zeros(every.max(initial=0) + 1, np.int64)  # of the point in each slot
        taken = np.flatnonzero(every != NONE)
        self._place_of[every[taken]] = taken
        self._n_came = self._n_gone = 0  # rows of the chunk, and leaving points, processed so far

    def add(self, rows: Array, start: int) -> None:
        """Add complete rows of the chunk, from place `start` on, as donors for later rows."""
        place = self._first + start
        self._columns[:, place : place + len(rows)] = rows.T

    def before(self, i: int) -> Array:
        """Return the places of the points held before row `i` arrives; call it with ascending `i`."""
        slots, until, leaving = self._schedule
        first = self._first
        self._is_held[first + self._n_came : first + i] = slots[self._n_came : i] != NONE
        n_gone = int(until[i - 1]) if i else 0
        self._is_held[self._place_of[leaving[self._n_gone : n_gone]]] = False
        self._n_came, self._n_gone = i, n_gone
        return np.flatnonzero(self._is_held[: first + i])

    def fill(self, row: Array, held: Array) -> Array:
        """Return a row with its missing values taken from the nearest of the latest points held."""
        latest = held[: -imputation.MOST - 1 : -1]
        return imputation.fill_row(row, self._columns.take(latest, axis=1), self._n_categories)

    def complete(self, row: Array, held: Array) -> Array:
        """Return the completions of a row, (K, D), by donors spread evenly over the points held."""
        some = held if len(held) <= imputation.MOST else held[imputation.spread_out(len(held), imputation.MOST)]
        return imputation.complete_row(row, self._columns.take(some, axis=1), self._n_categories)


class How(NamedTuple):
    """How rows with missing values are scored."""

    is_scored: bool
    is_marginal: bool  # by marginal walks, in place of completions
    is_young: Array  # bool (D,): columns whose values are ignored


class Asked(NamedTuple):
    """Substitutes by which rows of a chunk are scored, by their place in the chunk."""

    completions: dict[int, Array]  # (K, D): the score is the mean over these rows
    gappy: dict[int, Array]  # (D,): a row that marginal walks score

    def add_marginal(self, i: int, row: Array) -> None:
        """Score row `i` by the values it has."""
        if np.isnan(row).any():
            self.gappy[i] = row
        else:
            self.completions[i] = row[None]


class Prepared(NamedTuple):
    """The rows of a chunk, ready for the trees."""

    chunk: StreamChunk  # completions come before their row
    scored: Array  # float64 (N, D): the values by which the rows of `chunk` are scored
    places: Array | None = None  # int64 (n,): the places of the original rows; None without completions
    completed: Array = _NOTHING  # int64 (g,): which rows of the chunk have completions ...
    n_completions: Array = _NOTHING  # int64 (g,): ... and how many

    @classmethod
    def plain(cls, rows: Array, schedule: Schedule) -> Prepared:
        """Prepare complete rows."""
        return cls(StreamChunk(rows, *schedule), rows)

    @classmethod
    def of(cls, rows: Array, asked: Asked, schedule: Schedule) -> Prepared:
        """Prepare filled rows, some of which are scored by substitutes."""
        completed = np.fromiter(asked.completions, np.int64, len(asked.completions))
        n_completions = np.array([len(each) for each in asked.completions.values()], np.int64)
        counts = np.ones(len(rows), np.int64)
        counts[completed] += n_completions
        places = np.cumsum(counts) - 1
        is_row = np.zeros(counts.sum(), np.bool_)
        is_row[places] = True
        whole, slots, gaps = np.empty((len(is_row), rows.shape[1])), *np.full((2, len(is_row)), NONE, np.int32)
        whole[is_row], slots[is_row] = rows, schedule.slots
        whole[~is_row] = np.concatenate([rows[:0], *asked.completions.values()])
        until = np.repeat(np.append(np.int32(0), schedule.until[:-1]), counts)  # completions delete no point
        until[is_row] = schedule.until
        gappy, scored = np.fromiter(asked.gappy, np.int64, len(asked.gappy)), whole.copy()
        scored[places[gappy]] = np.array([*asked.gappy.values()]).reshape(-1, rows.shape[1])
        gaps[places[completed]], gaps[places[gappy]] = UNSCORED, np.arange(len(gappy))
        chunk = StreamChunk(whole, slots, until, schedule.leaving, scored[places[gappy]], gaps)
        return cls(chunk, scored, places, completed, n_completions)

    @property
    def learned(self) -> Array:
        """The filled rows of the chunk."""
        return self.chunk.rows if self.places is None else self.chunk.rows[self.places]

    def scores(self, of_all: Array) -> Array:
        """Return the scores of the rows of the chunk; for a row with completions, their mean."""
        if self.places is None:
            return of_all
        scores: Array = of_all[self.places]
        for n in np.unique(self.n_completions).tolist():
            own = self.completed[self.n_completions == n]
            each = of_all[self.places[own] + np.arange(-n, 0)[:, None]]  # (K, rows), the nearest donor first
            scores[own] = ordered_sum(each) / n
        return scores


def fill_chunk(rows: Array, scored: Array, donors: ChunkDonors, how: How) -> tuple[Array, Asked]:
    """Return the filled rows of a chunk, and substitutes for those with missing values in `scored`."""
    is_gap = np.asarray(np.isnan(rows).any(axis=1))
    is_scored = np.asarray(np.isnan(scored).any(axis=1) & how.is_scored)
    whole, asked, start = rows.copy(), Asked({}, {}), 0
    for i in np.flatnonzero(is_gap | is_scored).tolist():
        donors.add(whole[start:i], start)
        held, start = donors.before(i), i
        if is_scored[i] and not how.is_marginal:
            asked.completions[i] = donors.complete(scored[i], held)
        elif is_scored[i]:
            asked.add_marginal(i, _without_young(scored[i], held, donors, how.is_young))
        if is_gap[i]:
            whole[i] = donors.fill(rows[i], held)
    return whole, asked


def _without_young(row: Array, held: Array, donors: ChunkDonors, is_young: Array) -> Array:
    """Return a row for marginal walks, with the values of the nearest donor in young columns."""
    return np.where(is_young, donors.complete(row, held)[0], row) if is_young.any() else row
