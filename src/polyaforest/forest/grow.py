"""Grow forests within the machine's memory: Mondrian trees over rows, Mondrian processes over a domain."""

from __future__ import annotations

import numpy as np

from polyaforest.forest.spec import Plan
from polyaforest.kernels import cuts, mondrian_process, mondrian_tree
from polyaforest.kernels.arrays import NONE, Array, Forest, new_forest, node_bytes, stack, trim
from polyaforest.kernels.rng import seed_states
from polyaforest.util.parallel import is_worth_threads, run, tree_spans
from polyaforest.util.system import physical_memory

_FIRST_CAPACITY = 4096  # node slots of the first attempt at a tree
SPARE_NODES = 2  # node slots that a tree needs temporarily while it changes


def allocate(plan: Plan, n_nodes: int, weights: Array, states: Array, *, boxed: bool) -> Forest:
    """Allocate trees of `n_nodes` node slots each, one for every generator in `states`."""
    return new_forest(n_nodes, weights, states, plan.domain, boxed=boxed, n_categories=plan.n_categories)


def grow_trees(
    X: Array, plan: Plan, states: Array | None = None, members: Array | None = None, capacity: int = 0
) -> Forest:
    """Grow Mondrian trees over the rows of `X`: over all of them, or over the `members` of each tree.

    `states` are generators to continue; by default, new ones are seeded by the plan. `members` holds the rows of each
    tree, (T, n), with NONE after the last. Trees get `capacity` node slots, or more if they need them.
    """
    states = seed_states(plan.seed, plan.n_trees) if states is None else states
    if members is None:
        everyone = np.arange(len(X), dtype=np.int64)
        columns, rows_of = np.ascontiguousarray(X.T), [everyone] * plan.n_trees
    elif is_worth_threads(members.size):
        columns, rows_of = None, [rows[rows != NONE] for rows in members]
    else:
        return _grow_small(X, plan, states, members)
    most = max(map(len, rows_of))

    def grow_span(span: slice) -> list[Forest]:
        grower = _Grower(X, columns, most, plan)
        return [grower.grow(states[t], rows_of[t]) for t in range(span.start, span.stop)]

    if memory_needed(plan, plan.most_nodes(most), boxed=True) > memory_limit():  # may not fit: grow one tree to see
        largest = int(np.argmax([len(rows) for rows in rows_of]))
        pilot = _Grower(X, columns, most, plan).grow(states[largest].copy(), rows_of[largest])
        check_forest_fits_memory(plan, int(pilot.size[0]), boxed=True)
    spans_of_trees = run(grow_span, tree_spans(plan.n_trees, plan.n_jobs), plan.n_jobs)
    return stack([tree for span in spans_of_trees for tree in span], capacity)


def _grow_small(X: Array, plan: Plan, states: Array, members: Array) -> Forest:
    """Grow all trees in one call: young streams rebuild small trees so often that separate calls would dominate."""
    fixed, spread = plan.weighting.fixed, plan.weighting.spread
    weights = np.empty((plan.n_trees, X.shape[1])) if fixed is None else np.tile(fixed, (plan.n_trees, 1))
    n_nodes = plan.most_nodes(members.shape[1])
    check_forest_fits_memory(plan, n_nodes, boxed=True)
    forest = allocate(plan, n_nodes, weights, states.copy(), boxed=True)
    drawn_by = spread if fixed is None else spread[:0]
    limits = plan.most_features, plan.lifetime, plan.depth_limit
    mondrian_tree.sample_trees(forest, X, members, drawn_by, plan.weighting.deviation, *limits)
    return forest


class _Grower:
    """One thread's workspace for growing Mondrian trees."""

    def __init__(self, X: Array, columns: Array | None, most_rows: int, plan: Plan) -> None:
        self.X, self.columns, self.plan = X, columns, plan  # columns: None if trees take samples
        self.order, self.spare = np.empty(most_rows, np.int32), np.empty(most_rows, np.int32)
        self.most = plan.most_nodes(most_rows)
        self._allocate(min(self.most, _FIRST_CAPACITY))

    def _allocate(self, capacity: int) -> None:
        rng, weights = np.zeros((1, 4), np.uint64), np.ones((1, self.X.shape[1]))
        self.tree = allocate(self.plan, capacity, weights, rng, boxed=True)
        self.slots = [np.empty(capacity, np.int32) for _ in range(4)]

    def grow(self, state: Array, members: Array) -> Forest:
        """Sample the feature weights, then the cuts, of one tree over some rows with the generator `state`."""
        weights, n_rows = _draw_weights(state, self.plan), len(members)
        rows = self.X if self.columns is not None else self.X[members]
        columns = np.ascontiguousarray(rows.T) if self.columns is None else self.columns
        while True:
            self.tree.rng[0], self.tree.weights[0] = state, weights
            work = mondrian_tree.SamplingWorkspace(rows, columns, self.order[:n_rows], self.spare[:n_rows], *self.slots)
            if mondrian_tree.sample_tree(self.tree, 0, work, self.plan.lifetime, self.plan.depth_limit):
                return trim(self.tree)
            self._allocate(min(self.most, 2 * self.tree.left.shape[1]))


def sample_processes(plan: Plan) -> Forest:
    """Sample a forest of Mondrian processes over the plan's domain, without counting rows."""
    states = seed_states(plan.seed, plan.n_trees)

    def sample(state: Array) -> Forest:
        weights = _draw_weights(state, plan)
        most = plan.most_nodes()
        capacity, levels = min(most, _FIRST_CAPACITY), max(min(plan.depth_limit, 64), 1)
        while True:
            check_forest_fits_memory(plan, capacity // 2, boxed=False)
            tree = allocate(plan, capacity, weights[None].copy(), state[None].copy(), boxed=False)
            regions = np.empty((levels, *plan.domain.shape))
            if mondrian_process.sample_process(tree, 0, regions, plan.lifetime, plan.depth_limit):
                return trim(tree)
            capacity, levels = min(most, 2 * capacity), 2 * levels

    return stack(run(sample, list(states), plan.n_jobs))


def _draw_weights(state: Array, plan: Plan) -> Array:
    """Return the feature weights of a new tree."""
    weighting = plan.weighting
    if weighting.fixed is not None:
        return weighting.fixed
    weights = np.empty_like(weighting.spread)
    cuts.draw_weights(state, weighting.spread, weighting.deviation, plan.most_features, weights)
    return weights


def empty_forest(plan: Plan, states: Array) -> Forest:
    """Return a forest of empty trees."""
    weights = np.ones((plan.n_trees, plan.domain.shape[1]))
    return allocate(plan, plan.most_nodes(1) + SPARE_NODES, weights, states, boxed=True)


def memory_needed(plan: Plan, n_nodes: int, *, boxed: bool) -> int:
    """Return the peak bytes of building a forest of trees of `n_nodes` nodes: each tree, the stack, the posterior."""
    return plan.n_trees * n_nodes * (2 * node_bytes(plan.domain.shape[1], boxed=boxed) + 4 * 8)


def memory_limit() -> float:
    """Return the bytes that a forest may take: 80 % of the machine's memory if its size is known, else infinity."""
    size = physical_memory()
    return float("inf") if size is None else 0.8 * size


def check_table_fits_memory(n_rows: int, n_features: int) -> None:
    """Raise MemoryError if the copies of the rows of a table would not fit into memory."""
    needed, limit = 16 * n_rows * n_features, memory_limit()  # by row and by column
    if needed > limit:
        raise MemoryError(
            f"the weights amount to {n_rows:,} rows, and a window by order or time needs all of them at once: "
            f'{needed / 1e9:.1f} GB. Choose window="auto" or Reservoir(n), or scale the weights down'
        )


def check_forest_fits_memory(plan: Plan, n_nodes: int, *, boxed: bool) -> None:
    """Raise MemoryError if a forest with trees of `n_nodes` nodes would not fit into memory."""
    needed, limit = memory_needed(plan, n_nodes, boxed=boxed), memory_limit()
    if needed > limit:
        remedies = "max_depth, lifetime, max_samples" if boxed else "max_depth, lifetime"
        raise MemoryError(
            f"the forest needs about {needed / 1e9:.1f} GB ({plan.n_trees} trees of at least {n_nodes:,} nodes), but "
            f"the limit on this machine is {limit / 1e9:.1f} GB: set a smaller {remedies} or n_estimators"
        )
