"""The rows of a stream: a table that begins it, their order, their values as scored, and changes of features."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polyaforest.forest import draws, grow, imputation, learn
from polyaforest.forest.point_store import Key, Labels
from polyaforest.forest.spec import Plan, Weighting, unmeasured, weighting_of_rows
from polyaforest.forest.stream import Stream
from polyaforest.kernels.arrays import Array, pad_points
from polyaforest.kernels.boxes import empty_box
from polyaforest.kernels.sampling import NO_CUTOFF
from polyaforest.tables.validation import all_or_nothing


def begin_with(stream: Stream, rows: Array, keys: Sequence[Key | None], times: Array, n_jobs: int | None) -> None:
    """Learn a table as if it had arrived row by row; weigh features by all rows, without later rebuilds."""
    plan = stream._weigh(weighting_of_rows(rows, stream.n_categories))
    stream.next_rebuild = 0
    if stream.rules.policy is None:
        stream.store.n_seen = len(rows)
        stream.forest = grow.grow_trees(rows, plan, stream.forest.rng)
        stream._forget_points()
        return
    kept = stream.store.begin_with(keys, times, stream._draw_exponentials(len(rows)))
    _grow_on(stream, rows[kept], plan, n_jobs)


def begin_with_draw(
    stream: Stream,
    drawn: draws.Draw,
    arrivals: Array,
    labels: Labels,
    measured: Weighting,
    n_seen: int,
    n_jobs: int | None,
) -> None:
    """Learn a uniform sample of `n_seen` rows, drawn by priority; the policy must be a uniform reservoir.

    The rows drawn, their `arrivals` and labels are in order of priority. Features are weighed as `measured`.
    """
    plan = stream._weigh(measured)
    stream.next_rebuild = 0
    order = np.argsort(arrivals)
    labels = labels._replace(keys=[labels.keys[i] for i in order.tolist()], times=labels.times[order])
    least = np.array([drawn.cutoff] if drawn.cutoff != NO_CUTOFF else [], np.uint64)
    own = draws.exponentials(drawn.priorities[order])
    stream.store.hold_draw(arrivals[order], labels, own, draws.exponentials(least), n_seen)
    _grow_on(stream, drawn.rows[order], plan, n_jobs)


def _grow_on(stream: Stream, held: Array, plan: Plan, n_jobs: int | None) -> None:
    """Grow the trees on the first points of the store."""
    stream.points = pad_points(stream.points, 0, len(held))
    stream.numbers = stream.store.arrivals.copy()
    stream.points.values[:] = held
    stream._grow_again(plan, n_jobs)


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


def subtract(stream: Stream, rows: Array, n_jobs: int | None) -> int:
    """Subtract rows from a summary, all or none; return the first that cannot be subtracted, or their number."""
    reduced, n = learn.subtract_rows(stream.forest, stream.points, rows, n_jobs)
    if n == len(rows):
        stream.forest = reduced
    return n


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
