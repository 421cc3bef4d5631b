"""How a row that lacks values is learned: each missing value is that of a donor, the nearest row that has it.

Near is meant in the features that both rows have: the mean over them of the distance along each, in units of that
feature's spread. No more than `MOST` rows are looked at for any one value. Nothing is drawn at random.
"""

from __future__ import annotations

import numpy as np
from sklearn.base import BaseEstimator

from polyaforest.core.arrays import Array
from polyaforest.core.validation import column_name
from polyaforest.forest.spec import weighting_of_rows

MOST = 256  # rows that are looked at as donors of a value
_AT_ONCE = 1024  # rows that are compared with all donors together


def fill_table(estimator: BaseEstimator, rows: Array) -> Array:
    """`rows`, each missing value taken from a donor among the others; donors are spread evenly over the table.

    A row that has nothing in common with any donor takes its turn: those get the values of different donors.
    """
    is_missing = np.isnan(rows)
    gaps = np.flatnonzero(is_missing.any(axis=0))
    if not gaps.size:
        return rows
    _refuse_empty_columns(estimator, is_missing)
    spread = np.array([weighting_of_rows(column[~np.isnan(column), None]).spread[0] for column in rows.T])
    filled = rows.copy()
    for k in gaps:
        donors = rows[_evenly(np.flatnonzero(~is_missing[:, k]))]
        wanting = np.flatnonzero(is_missing[:, k])
        for start in range(0, len(wanting), _AT_ONCE):
            part = wanting[start : start + _AT_ONCE]
            distances = _distances(rows[part], donors, spread)
            nearest = np.where(np.isinf(distances).all(axis=1), part % len(donors), distances.argmin(axis=1))
            filled[part, k] = donors[nearest, k]
    return filled


def fill_row(row: Array, held: Array) -> Array:
    """One row (1, D), its missing values taken from the nearest of the complete rows `held`, by order of arrival.

    Of rows equally near, and for a row with nothing in it, it is the latest.
    """
    donors = held[: -MOST - 1 : -1]  # the latest first, which is the one that a tie goes to
    distances = _distances(row, donors, weighting_of_rows(donors).spread)
    return np.where(np.isnan(row), donors[distances.argmin()], row)


def _refuse_empty_columns(estimator: BaseEstimator, is_missing: Array) -> None:
    """Raise if no row has a value in some column."""
    empty = np.flatnonzero(is_missing.all(axis=0))
    if empty.size:
        raise ValueError(
            f"column {column_name(estimator, int(empty[0]))} is missing in all {len(is_missing)} rows, so that no row "
            "has a value to learn there: leave the column out, or add rows that have it"
        )


def _evenly(places: Array) -> Array:
    """At most `MOST` of the places, evenly spread over all."""
    if len(places) <= MOST:
        return places
    return places[np.linspace(0, len(places) - 1, MOST).round().astype(np.intp)]


def _distances(rows: Array, donors: Array, spread: Array) -> Array:
    """Mean distance over the features that both have, in units of their spread, (rows, donors); inf if they have none.

    Feature by feature, so that a table of many rows and features needs no more room than the result.
    """
    total, n_shared = np.zeros((len(rows), len(donors))), np.zeros((len(rows), len(donors)))
    for k in range(rows.shape[1]):
        apart = np.abs(rows[:, k, None] / spread[k] - donors[:, k] / spread[k])
        is_shared = ~np.isnan(apart)
        total += np.where(is_shared, apart, 0.0)
        n_shared += is_shared
    return np.divide(total, n_shared, out=np.full_like(total, np.inf), where=n_shared > 0)
