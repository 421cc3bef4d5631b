"""Impute rows: take each missing value from a donor, a similar row that has the value.

A row to be learned takes the values of its nearest donor. A row to be scored is completed by several donors; its score
is the mean over its completions. The distance of two rows is the mean over the features that both have, each in units
of its spread; different categories are at distance 1. At most `MOST` donors are compared for a value; in a table, those
of lowest priority. Results do not depend on a seed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.base import BaseEstimator

from polyaforest.forest.draws import Draw
from polyaforest.forest.spec import spread_of, weighting_of_rows, weighting_of_sample
from polyaforest.kernels.arrays import Array
from polyaforest.tables.validation import column_name
from polyaforest.util.parallel import ordered_sum

MOST = 256  # donors compared for a value
N_COMPLETIONS = 8  # completions of a row to be scored, if there are as many donors
_AT_ONCE = 1024  # rows compared with all donors at a time
_SEED = 0  # of the priorities of donors


@dataclass(frozen=True, eq=False)
class TableDonors:
    """The rows of a table from which missing values are taken; donors of parts of a table can be added."""

    of_all: Draw  # for columns without missing values
    of_column: dict[int, Draw]  # for other columns: rows that have a value there
    n_categories: int = 0  # the last features

    @classmethod
    def of(cls, rows: Array, ids: Array, n_categories: int = 0) -> TableDonors:
        """Draw donors from rows that have these ids."""
        is_missing = np.isnan(rows)
        of_column = {}
        for k in np.flatnonzero(is_missing.any(axis=0)).tolist():
            has_value = ~is_missing[:, k]
            of_column[k] = Draw.of(rows[has_value], ids[has_value], seed=_SEED, most=MOST)
        return cls(Draw.of(rows, ids, seed=_SEED, most=MOST), of_column, n_categories)

    def __add__(self, other: TableDonors) -> TableDonors:
        """Return the donors of the rows of both."""
        gaps = sorted({*self.of_column, *other.of_column})
        of_column = {k: self._having(k) + other._having(k) for k in gaps}
        return TableDonors(self.of_all + other.of_all, of_column, self.n_categories)

    def _having(self, k: int) -> Draw:
        """Return donors that have a value in column `k`."""
        return self.of_column.get(k, self.of_all)

    def fill(self, rows: Array, ids: Array, box: Array) -> Array:
        """Fill in the missing values of rows of the table with this bounding box.

        Rows that share no feature with any donor take values of donors chosen by their ids.
        """
        is_missing = np.isnan(rows)
        gaps = np.flatnonzero(is_missing.any(axis=0)).tolist()
        if not gaps:
            return rows
        spread, filled = self._spread(box), rows.copy()
        for k in gaps:
            donors, wanting = self._having(k).rows, np.flatnonzero(is_missing[:, k])
            for start in range(0, len(wanting), _AT_ONCE):
                part = wanting[start : start + _AT_ONCE]
                distances = _distances(rows[part], donors, spread, self.n_categories)
                nearest = np.where(np.isinf(distances).all(axis=1), ids[part] % len(donors), distances.argmin(axis=1))
                filled[part, k] = donors[nearest, k]
        return filled

    def _spread(self, box: Array) -> Array:
        """Return the spread of every column, measured on its donors."""
        n_numbers, spreads = box.shape[1] - self.n_categories, []
        for k in range(box.shape[1]):
            own = self._having(k).rows[:, k : k + 1]
            spreads.append(weighting_of_sample(own, box[:, k : k + 1], int(k >= n_numbers)).spread[0])
        return np.array(spreads)


def check_columns_have_values(estimator: BaseEstimator, n_missing: Array, n_rows: int) -> None:
    """Raise if a column has no value in any of the rows."""
    empty = np.flatnonzero(n_missing == n_rows)
    if empty.size:
        raise ValueError(
            f"column {column_name(estimator, int(empty[0]))} is missing in all {n_rows} rows: omit the column, or add "
            "rows with values in it"
        )


def fill_table(estimator: BaseEstimator, rows: Array) -> Array:
    """Fill in the missing values of a table."""
    is_missing, ids = np.isnan(rows), np.arange(len(rows))
    if not is_missing.any():
        return rows
    check_columns_have_values(estimator, is_missing.sum(axis=0), len(rows))
    n_categories: int = getattr(estimator, "_n_categories", 0)
    box = np.stack([np.nanmin(rows, axis=0), np.nanmax(rows, axis=0)])  # enough to tell which categories vary
    return TableDonors.of(rows, ids, n_categories).fill(rows, ids, box)


def fill_row(row: Array, columns: Array, n_categories: int = 0) -> Array:
    """Fill a row, (D,), from the nearest of complete donors, given by column, (D, n); ties go to the first.

    A row without any value takes those of the first donor.
    """
    nearest = int(_distances_of_row(row, columns, n_categories).argmin())
    return np.where(np.isnan(row), columns[:, nearest], row)


def complete_row(row: Array, columns: Array, n_categories: int = 0) -> Array:
    """Return the `completions` of a row, (D,), by donors given by column, (D, n): an array (K, D)."""
    n_donors = columns.shape[1]
    n, distances = min(N_COMPLETIONS, n_donors), _distances_of_row(row, columns, n_categories)
    chosen = spread_out(n_donors, n) if distances[0] == np.inf else np.argsort(distances, kind="stable")[:n]
    return np.where(np.isnan(row), columns.T[chosen], row)


def _distances_of_row(row: Array, columns: Array, n_categories: int) -> Array:
    """Return the `_distances` of a single row to complete donors, (n,), without the overhead for many rows."""
    is_there = ~np.isnan(row)
    if not is_there.any():
        return np.full(columns.shape[1], np.inf)
    spread = spread_of(columns, n_categories)[is_there, None]
    apart = np.abs(row[is_there, None] / spread - columns[is_there] / spread)
    is_coded = np.flatnonzero(is_there) >= len(row) - n_categories
    apart[is_coded] = (apart[is_coded] > 0) / spread[is_coded]
    return ordered_sum(apart) / len(apart)


def fill_from_others(rows: Array, is_lacking: Array, n_categories: int = 0) -> Array:
    """Return rows with the values under a mask, (n, D), replaced by those of the nearest rows that have them.

    At most the latest `MOST` rows with a value are compared. A column that all rows lack is unchanged.
    """
    spread, known, filled = (
        weighting_of_rows(rows, n_categories).spread,
        np.where(is_lacking, np.nan, rows),
        rows.copy(),
    )
    for k in np.flatnonzero(is_lacking.any(axis=0) & ~is_lacking.all(axis=0)).tolist():
        donors, wanting = np.flatnonzero(~is_lacking[:, k])[: -MOST - 1 : -1], np.flatnonzero(is_lacking[:, k])
        for start in range(0, len(wanting), _AT_ONCE):
            part = wanting[start : start + _AT_ONCE]
            nearest = _distances(known[part], known[donors], spread, n_categories).argmin(axis=1)
            filled[part, k] = rows[donors[nearest], k]
    return filled


def completions(rows: Array, donors: Array, n_categories: int = 0) -> Array:
    """Return rows completed by the nearest of the complete rows `donors`, (n, K, D), the nearest donor first.

    Ties go to the first donor. A row without any value is completed by donors spread evenly over their order.
    """
    n = min(N_COMPLETIONS, len(donors))
    distances = _distances(rows, donors, weighting_of_rows(donors, n_categories).spread, n_categories)
    nearest = np.argsort(distances, axis=1, kind="stable")[:, :n]
    chosen = np.where(np.isinf(distances).all(axis=1, keepdims=True), spread_out(len(donors), n), nearest)
    return np.where(np.isnan(rows)[:, None], donors[chosen], rows[:, None])


def spread_out(n_donors: int, n: int) -> Array:
    """Return the places of `n` donors, spread evenly over their order."""
    return np.linspace(0, n_donors - 1, n).astype(int)


def _distances(rows: Array, donors: Array, spread: Array, n_categories: int) -> Array:
    """Return mean distances over shared features, in units of their spread, (rows, donors); inf if none are shared.

    Loop over the features, so that memory does not exceed the result.
    """
    total, n_shared = np.zeros((len(rows), len(donors))), np.zeros((len(rows), len(donors)))
    for k in range(rows.shape[1]):
        apart = np.abs(rows[:, k, None] / spread[k] - donors[:, k] / spread[k])
        is_shared = ~np.isnan(apart)
        if k >= rows.shape[1] - n_categories:
            apart = (apart > 0) / spread[k]
        total += np.where(is_shared, apart, 0.0)
        n_shared += is_shared
    return np.divide(total, n_shared, out=np.full_like(total, np.inf), where=n_shared > 0)
