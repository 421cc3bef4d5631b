"""Impute rows that are to be learned: each missing value comes from a donor, the nearest row that has it.

Distance is the mean over the features that both rows have, each in units of its spread. At most `MOST` donors are
compared for a value. Nothing is random.
"""

from __future__ import annotations

import numpy as np
from sklearn.base import BaseEstimator

from polyaforest.core.arrays import Array
from polyaforest.core.validation import column_name
from polyaforest.forest.spec import weighting_of_rows

MOST = 256  # donors compared for a value
_AT_ONCE = 1024  # rows that are compared with all donors together


def fill_table(estimator: BaseEstimator, rows: Array) -> Array:
    """Return `rows` with each missing value taken from a donor; donors are spread evenly over the table.

    Rows that share no feature with any donor take the values of different donors in turn.
    """
    is_missing = np.isnan(rows)
    gaps = np.flatnonzero(is_missing.any(axis=0))
    if not gaps.size:
        return rows
    empty = np.flatnonzero(is_missing.all(axis=0))
    if empty.size:
        raise ValueError(
            f"column {column_name(estimator, int(empty[0]))} is missing in all {len(is_missing)} rows: omit the "
            "column, or add rows that have it"
        )
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
    """Fill one row, (1, D), from the nearest of the complete rows `held`, which are in order of arrival.

    Ties, and rows without any value, take the latest.
    """
    donors = held[: -MOST - 1 : -1]  # the latest first, which wins ties
    distances = _distances(row, donors, weighting_of_rows(donors).spread)
    return np.where(np.isnan(row), donors[distances.argmin()], row)


def _evenly(places: Array) -> Array:
    """Return at most `MOST` of the places, evenly spread over all."""
    if len(places) <= MOST:
        return places
    return places[np.linspace(0, len(places) - 1, MOST).round().astype(np.intp)]


def _distances(rows: Array, donors: Array, spread: Array) -> Array:
    """Return mean distances over shared features, in units of their spread, (rows, donors); inf if none are shared.

    Feature by feature, so that memory does not exceed the result.
    """
    total, n_shared = np.zeros((len(rows), len(donors))), np.zeros((len(rows), len(donors)))
    for k in range(rows.shape[1]):
        apart = np.abs(rows[:, k, None] / spread[k] - donors[:, k] / spread[k])
        is_shared = ~np.isnan(apart)
        total += np.where(is_shared, apart, 0.0)
        n_shared += is_shared
    return np.divide(total, n_shared, out=np.full_like(total, np.inf), where=n_shared > 0)
