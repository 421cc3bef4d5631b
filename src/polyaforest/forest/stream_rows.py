"""The rows of a stream: their order, the values by which they are scored, and changes of their features."""

from __future__ import annotations

import numpy as np

from polyaforest.forest import imputation
from polyaforest.forest.spec import unmeasured
from polyaforest.forest.stream import Stream
from polyaforest.kernels.arrays import Array
from polyaforest.kernels.boxes import empty_box
from polyaforest.tables.validation import all_or_nothing


def ring(stream: Stream) -> Array:
    """Return the points held, ordered so that a new point of a full window takes the place of the oldest."""
    held = stream.store.held
    return np.asarray(stream.points.values[held[np.argsort(stream.numbers[held] % max(len(held), 1), kind="stable")]])


def widen(stream: Stream, values: Array, n_jobs: int | None) -> None:
    """Append numeric features with the given values for all points held, and rebuild the trees."""
    plan, n_new, n = stream.rules.plan, len(values), stream.n_features - stream.n_categories
    wider = np.insert(stream.points.values, [n] * n_new, 0.0, axis=1)
    wider[stream.store.held, n : n + n_new] = values
    domain, fixed = np.insert(plan.domain, [n] * n_new, empty_box(n_new), axis=1), plan.weighting.fixed
    weighting = unmeasured(stream.n_features + n_new, None if fixed is None else np.insert(fixed, [n] * n_new, 1.0))
    stream.check_consistent()
    with all_or_nothing(stream):
        stream.points = stream.points._replace(values=wider)
        stream.rules = stream.rules._replace(plan=plan._replace(domain=domain, weighting=weighting))
        stream.columns = stream.columns.widened(n, n_new)
        stream.rebuild(n_jobs)


def amend(stream: Stream, first: int, values: Array, n_jobs: int | None) -> None:
    """Replace features of the points held, from the `first` on, by `values`, and rebuild the trees."""
    amended = stream.points.values.copy()
    amended[stream.store.held, first : first + values.shape[1]] = values
    stream.check_consistent()
    with all_or_nothing(stream):
        stream.points = stream.points._replace(values=amended)
        stream.rebuild(n_jobs)


def as_scored(stream: Stream, rows: Array, *, is_marginal: bool) -> Array:
    """Return rows without the values of unknown and young columns, to be scored.

    Marginal scores rise with fewer values, so for these the values of young columns come from a donor.
    """
    if not stream.n_points:  # there are no points to compare with
        return np.where(np.isnan(rows), stream.columns.placeholder, rows)
    scored, is_young = stream.columns.scored(rows), stream.columns.is_young
    if not is_marginal or not is_young.any():
        return scored
    donors = stream.points.values[stream.some_held(imputation.MOST)]
    return np.where(is_young, imputation.completions(scored, donors, stream.n_categories)[:, 0], scored)
