"""Checks that the parts of a stream are consistent, as after a file was read."""

from __future__ import annotations

import numpy as np

from polyaforest.forest import grow
from polyaforest.forest.integrity import POINTS_LAYOUT, check_forest, check_layout, check_sample_sizes
from polyaforest.forest.stream import Stream
from polyaforest.kernels.arrays import is_ascending
from polyaforest.tables.validation import LARGEST


def check_stream(stream: Stream, *, is_derived: bool = False) -> None:
    """Raise ValueError if trees, points, store or rules are inconsistent.

    With `is_derived`, skip checks of trees that were derived from the points.
    """
    if stream.is_frozen:
        check_forest(stream.forest, alike=False, largest=LARGEST)
        return
    if not is_derived:
        _check_trees(stream)
    stream.store.check()
    _check_rules(stream)
    _check_progress(stream)
    _check_capacity(stream)
    if not is_derived:
        check_samples(stream)


def check_samples(stream: Stream) -> None:
    """Raise ValueError unless every tree holds the points of lowest priority."""
    if stream.is_sampled and not np.array_equal(stream.is_member(stream.store.held), stream.is_drawn):
        raise ValueError("the trees do not hold their samples of points")


def _check_trees(stream: Stream) -> None:
    points, held = (stream.points, stream.store.held) if stream.keeps_points else (None, None)
    check_forest(
        stream.forest,
        points=points,
        held=held,
        lifetime=stream.rules.plan.lifetime,
        max_depth=stream.rules.plan.max_depth,
        alike=not stream.is_sampled,
        largest=LARGEST,
    )


def _check_rules(stream: Stream) -> None:
    rules = stream.rules
    if rules.policy is None and rules.plan.max_depth is None:
        raise ValueError("the stream keeps no points and has no max_depth, so its trees are unbounded")
    check_sample_sizes(rules.sizes)
    if rules.policy is None and stream.is_sampled:
        raise ValueError("array sizes: the trees of a summary must take every point")
    if not rules.plan.lifetime > 0:
        raise ValueError(f"the lifetime must be positive; got {rules.plan.lifetime}")
    if not stream.rng.any():
        raise ValueError("the state of the generator is all zeros")
    if not ((rules.grid > 1e-6) & (rules.grid < 1e6)).all() or not is_ascending(rules.grid):
        raise ValueError("array grid: times must increase strictly, between 1e-6 and 1e6")


def _check_progress(stream: Stream) -> None:
    """Raise ValueError if the counts of rows are inconsistent."""
    n_seen, due, arrivals = stream.store.n_seen, stream.next_rebuild, stream.calibration.arrivals
    is_due = due & (due - 1) == 0 and due // 2 <= n_seen - stream.origin < due  # after 1, 2, 4, ... arrivals
    if (due or stream.origin) and not is_due:
        raise ValueError(f"the next rebuild of the trees is due after {due} rows, but {n_seen} have arrived")
    if stream.n_points > n_seen:
        raise ValueError(f"the trees have counted {stream.n_points} points, but only {n_seen} rows have arrived")
    stream.columns.check(n_seen, stream.rows if stream.keeps_points else np.empty((0, stream.n_features)))
    if len(arrivals) and not 0 <= arrivals[0] <= arrivals[-1] < n_seen:
        raise ValueError("there are calibration scores of rows that have not arrived")


def _check_capacity(stream: Stream) -> None:
    """Raise ValueError if the arrays of points and nodes do not have the right sizes."""
    plan, capacity = stream.rules.plan, stream.store.capacity
    n_nodes, n_slots = (stream.forest.left.shape[1], capacity) if stream.keeps_points else (0, 0)
    lengths = {"T": plan.n_trees, "C": n_nodes, "P": n_slots, "D": stream.n_features}
    check_layout(stream.points._asdict(), POINTS_LAYOUT, lengths)
    if capacity != n_slots:
        raise ValueError(f"the stream keeps no points, but has slots for {capacity}")
    most_counted = int(stream.forest.counts[np.arange(plan.n_trees), stream.forest.root].max())
    if stream.keeps_points and n_nodes < plan.most_nodes(max(most_counted, 1)) + grow.SPARE_NODES:
        raise ValueError(f"the trees have {n_nodes} node slots, too few for {most_counted} points")
