"""Runs kernels over whole forests: threads, work space, memory. The only door from estimators to compiled code.

Trees are grown by threads over ranges of trees, rows are scored by threads over fixed chunks of rows; each writes its
own part and sums run in the order of the trees, so results do not depend on the number of threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import local
from typing import TypeVar

import numpy as np
from joblib import effective_n_jobs

from polyaforest.core.arrays import (
    EVERY,
    FADE_LOG_DENSITY,
    FADE_LOG_MASS,
    FADE_MASS,
    NONE,
    SCORE_CELLS,
    SCORE_LOG_CELLS,
    SCORE_LOG_MASS,
    SCORE_MASS,
    SCORE_NOTHING,
    Array,
    Forest,
    LeafKind,
    LeafTable,
    Points,
    Posterior,
    Prior,
    new_forest,
    new_points,
    new_posterior,
    node_bytes,
    stack,
    trim,
)
from polyaforest.core.rng import fill_exponentials, seed_states
from polyaforest.decision.credible import Masses, interval
from polyaforest.forest.spec import Plan, Weighting
from polyaforest.kernels import (
    attribution,
    cuts,
    leave_one_out,
    marginal,
    moments,
    mondrian_process,
    mondrian_tree,
    online,
    polya,
    prequential,
    sampling,
    traversal,
    upkeep,
)

_FIRST_CAPACITY = 4096  # node slots of the first attempt at a tree
ROOM_TO_MOVE = 2  # node slots that a tree needs for a moment while it changes
_BLAMED_AT_ONCE = 512  # rows that are blamed by one thread at a time
_LARGEST_TABLE = 2**27  # bytes that each thread may take for speed
_WORTH_A_THREAD = 2000  # rows times trees from which on a chunk is shared among threads
_ROWS_OF_A_MIXTURE = 256  # rows whose quantiles are looked for together
_ROWS_BY_TREE = 256  # rows looked up together where what every tree says of them is kept
_TINY = 1e-290  # a sum of masses below this has lost digits to underflow

_ROOM = local()
Item = TypeVar("Item")
Result = TypeVar("Result")


def run(task: Callable[[Item], Result], items: Sequence[Item], n_jobs: int | None) -> list[Result]:
    """Apply `task` to every item on up to `n_jobs` threads; results in order."""
    n_threads = min(effective_n_jobs(n_jobs), len(items)) if len(items) > 1 else 1
    if n_threads <= 1:
        return [task(item) for item in items]
    with ThreadPoolExecutor(n_threads) as pool:
        return list(pool.map(task, items))


def spans(n: int, size: int) -> list[slice]:
    """Consecutive slices of at most `size` that cover range(n)."""
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def tree_spans(n_trees: int, n_jobs: int | None) -> list[slice]:
    """One slice of trees per thread."""
    return spans(n_trees, -(-n_trees // max(effective_n_jobs(n_jobs), 1)))


# ---- growing -------------------------------------------------------------------------------------------------------


def new_states(plan: Plan) -> Array:
    """The generators of trees that are yet to be grown."""
    return seed_states(plan.seed, plan.n_trees)


def grow_trees(
    X: Array, n_rows: int | Array, plan: Plan, states: Array | None = None, members: Array | None = None
) -> Forest:
    """As `grow_samples`, the forest alone."""
    if states is not None and members is not None and members.size < _WORTH_A_THREAD:
        return _grow_small(X, plan, states, members)
    return grow_samples(X, n_rows, plan, states, members)[0]


def _grow_small(X: Array, plan: Plan, states: Array, members: Array) -> Forest:
    """As `grow_trees`, in one call for all trees: young streams are grown anew so often that calls would cost most."""
    fixed, spread = plan.weighting.fixed, plan.weighting.spread
    weights = np.empty((plan.n_trees, X.shape[1])) if fixed is None else np.tile(fixed, (plan.n_trees, 1))
    n_nodes = plan.most_nodes(members.shape[1])
    refuse_if_too_large(plan, n_nodes, boxed=True)
    forest = new_forest(n_nodes, weights, states.copy(), plan.domain, boxed=True)
    drawn_by = spread if fixed is None else spread[:0]
    mondrian_tree.sample_trees(forest, X, members, drawn_by, plan.weighting.deviation, plan.lifetime, plan.depth_limit)
    return forest


def grow_samples(
    X: Array, n_rows: int | Array, plan: Plan, states: Array | None = None, members: Array | None = None
) -> tuple[Forest, list[Array]]:
    """A forest of Mondrian trees over rows of `X` drawn without replacement, so many for all trees or for each its own.

    The generators may be those of trees that went before; else the plan's seed makes new ones. Where the rows of each
    tree are given, (T, n) with NONE after the last of the `n_rows`, none are drawn. Returns the rows of each tree too.
    """
    states = new_states(plan) if states is None else states
    sizes = np.broadcast_to(n_rows, plan.n_trees)
    most = int(sizes.max())
    columns = np.ascontiguousarray(X.T) if (sizes == len(X)).all() else None

    def grow_span(span: slice) -> list[tuple[Forest, Array]]:
        grower = _Grower(X, columns, most, plan)
        return [
            grower.grow(states[t], int(sizes[t]), None if members is None else members[t])
            for t in range(span.start, span.stop)
        ]

    if memory_needed(plan, plan.most_nodes(most), boxed=True) > memory_limit():  # it may: one tree will tell
        pilot, _ = _Grower(X, columns, most, plan).grow(states[sizes.argmax()].copy(), most)
        refuse_if_too_large(plan, int(pilot.size[0]), boxed=True)
    spans_of_trees = run(grow_span, tree_spans(plan.n_trees, plan.n_jobs), plan.n_jobs)
    trees, chosen = zip(*(grown for span in spans_of_trees for grown in span), strict=True)
    return stack(trees), list(chosen)


class _Grower:
    """One thread's work space for growing Mondrian trees one after another."""

    def __init__(self, X: Array, columns: Array | None, most_rows: int, plan: Plan) -> None:
        self.X, self.columns, self.plan = X, columns, plan
        self.everyone = np.arange(len(X) if columns is not None else 0)  # one for all trees: there may be many rows
        self.taken = np.zeros(len(X), np.bool_)
        self.chosen = np.empty(most_rows, np.int32)
        self.order, self.spare = np.empty(most_rows, np.int32), np.empty(most_rows, np.int32)
        self.most = plan.most_nodes(most_rows)
        self._make_room(min(self.most, _FIRST_CAPACITY))

    def _make_room(self, capacity: int) -> None:
        rng, weights = np.zeros((1, 4), np.uint64), np.ones((1, self.X.shape[1]))
        self.tree = new_forest(capacity, weights, rng, self.plan.domain, boxed=True)
        self.slots = [np.empty(capacity, np.int32) for _ in range(4)]

    def grow(self, state: Array, n_rows: int, members: Array | None = None) -> tuple[Forest, Array]:
        """Sample one tree with the generator `state`: its feature weights, its rows unless given, its cuts.

        Returns the numbers of its rows too.
        """
        weights = _draw_weights(state, self.plan.weighting)
        rows, columns, chosen = self._rows_of(state, n_rows, members)
        while True:
            self.tree.rng[0], self.tree.weights[0] = state, weights
            work = mondrian_tree.Workspace(rows, columns, self.order[:n_rows], self.spare[:n_rows], *self.slots)
            if mondrian_tree.sample_tree(self.tree, 0, work, self.plan.lifetime, self.plan.depth_limit):
                return trim(self.tree), chosen
            self._make_room(min(self.most, 2 * self.tree.left.shape[1]))

    def _rows_of(self, state: Array, n_rows: int, members: Array | None) -> tuple[Array, Array, Array]:
        if self.columns is not None:
            return self.X, self.columns, self.everyone
        chosen = self.chosen[:n_rows] if members is None else members[:n_rows]
        if members is None:
            mondrian_tree.draw_rows(state, self.taken, chosen)
        rows = self.X[chosen]
        return rows, np.ascontiguousarray(rows.T), chosen.copy()


def sample_processes(plan: Plan) -> Forest:
    """A forest of Mondrian processes over the plan's domain, no rows counted."""
    states = seed_states(plan.seed, plan.n_trees)

    def sample(state: Array) -> Forest:
        weights = _draw_weights(state, plan.weighting)
        most = plan.most_nodes()
        capacity, levels = min(most, _FIRST_CAPACITY), max(min(plan.depth_limit, 64), 1)
        while True:
            refuse_if_too_large(plan, capacity // 2, boxed=False)
            tree = new_forest(capacity, weights[None].copy(), state[None].copy(), plan.domain, boxed=False)
            regions = np.empty((levels, *plan.domain.shape))
            if mondrian_process.sample_process(tree, 0, regions, plan.lifetime, plan.depth_limit):
                return trim(tree)
            capacity, levels = min(most, 2 * capacity), 2 * levels

    return stack(run(sample, list(states), plan.n_jobs))


def _draw_weights(state: Array, weighting: Weighting) -> Array:
    """The feature weights of a tree about to be born."""
    if weighting.fixed is not None:
        return weighting.fixed
    weights = np.empty_like(weighting.spread)
    cuts.draw_weights(state, weighting.spread, weighting.deviation, weights)
    return weights


def memory_needed(plan: Plan, n_nodes: int, *, boxed: bool) -> int:
    """Bytes at the peak of building a forest of trees of `n_nodes` nodes: each tree, all of them stacked, posterior."""
    return plan.n_trees * n_nodes * (2 * node_bytes(plan.domain.shape[1], boxed=boxed) + 4 * 8)


def memory_limit() -> float:
    """Bytes that a forest may take: most of the machine's memory, where the system tells how much that is."""
    if "SC_PHYS_PAGES" not in getattr(os, "sysconf_names", {}):
        return float("inf")
    return 0.8 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def refuse_if_too_large(plan: Plan, n_nodes: int, *, boxed: bool) -> None:
    """Raise before a forest with trees of `n_nodes` nodes or more would exhaust the machine's memory."""
    needed, limit = memory_needed(plan, n_nodes, boxed=boxed), memory_limit()
    if needed > limit:
        remedies = "max_depth, lifetime, max_samples" if boxed else "max_depth, lifetime"
        raise MemoryError(
            f"the forest would need about {needed / 1e9:.1f} GB ({plan.n_trees} trees of {n_nodes:,} nodes or more), "
            f"more than the {limit / 1e9:.1f} GB it may take here: set a smaller {remedies} or n_estimators"
        )


# ---- streaming -----------------------------------------------------------------------------------------------------


def draw_exponentials(state: Array, n: int) -> Array:
    """Draws from Exp(1)."""
    draws = np.empty(n)
    fill_exponentials(state, draws)
    return draws


def empty_forest(plan: Plan, states: Array) -> Forest:
    """A forest whose trees have not seen a point."""
    weights = np.ones((plan.n_trees, plan.domain.shape[1]))
    return new_forest(plan.most_nodes(1) + ROOM_TO_MOVE, weights, states, plan.domain, boxed=True)


def hold_points(forest: Forest, values: Array, members: Array, n_jobs: int | None) -> Points:
    """The lists of points that trees were grown on, the slots of `values` in `members`: all in every tree, or, (T, n),
    those of each, with NONE after the last.
    """
    n_trees, n_nodes = forest.left.shape
    points = new_points(n_trees, n_nodes, *values.shape)._replace(values=values)
    slots = np.ascontiguousarray(np.broadcast_to(members, (n_trees, members.shape[-1])), np.int32)

    def link(span: slice) -> None:
        upkeep.link_points(forest, points, span.start, span.stop, slots)

    if slots.size < _WORTH_A_THREAD:
        link(slice(0, n_trees))
    else:
        run(link, tree_spans(n_trees, n_jobs), n_jobs)
    return points


def tickets(seeds: Array, numbers: Array) -> Array:
    """The tickets of arrivals in every tree, uint64 (T, n)."""
    drawn = np.empty((len(seeds), len(numbers)), np.uint64)
    sampling.fill_tickets(seeds, numbers, drawn)
    return drawn


def every_point(n_trees: int) -> sampling.Samples:
    """Samples for trees that all take every point."""
    nothing = np.empty(0, np.uint64)
    sizes = np.full(n_trees, EVERY, np.int64)
    return sampling.Samples(sizes, nothing, nothing.copy(), np.empty(0, np.int64), np.empty(0, np.bool_))


def run_chunk(
    forest: Forest,
    points: Points,
    chunk: prequential.Chunk,
    limits: online.Limits,
    scoring: prequential.Scoring,
    n_jobs: int | None,
    drawn: sampling.Samples | None = None,
) -> Array:
    """Let all trees score and learn the rows of `chunk`, in place; the rows' scores, nothing if none are wanted.

    Trees take every point that is kept, or those that their samples have `drawn`.
    """
    n_trees, n_rows = len(forest.left), len(chunk.rows)
    drawn = every_point(n_trees) if drawn is None else drawn
    n_blocks, n_scores = -(-n_trees // prequential.BLOCK), len(scoring.lifetimes) if scoring.kind == SCORE_CELLS else 1
    n_tops = n_rows if scoring.kind in (SCORE_CELLS, SCORE_MASS) else 0  # logarithms are added up as they are
    totals = prequential.Totals(np.zeros((n_blocks, n_scores, n_rows)), np.full((n_blocks, n_scores, n_tops), -np.inf))

    def learn(span: slice) -> None:
        first, last = span.start * prequential.BLOCK, min(span.stop * prequential.BLOCK, n_trees)
        walk = room_to_walk(forest, drawn)
        prequential.run_chunk(forest, points, first, last, chunk, limits, scoring, drawn, totals, walk)

    if n_rows * n_trees < _WORTH_A_THREAD:
        learn(slice(0, n_blocks))
    else:
        run(learn, tree_spans(n_blocks, n_jobs), n_jobs)
    return _scores_of_totals(totals, scoring.kind, n_trees)


def _scores_of_totals(totals: prequential.Totals, kind: int, n_trees: int) -> Array:
    """Mean over trees, or the mean over lifetimes of its logarithm; always added up in the same order."""
    if kind == SCORE_NOTHING:
        return np.empty(0)
    if kind in (SCORE_LOG_MASS, SCORE_LOG_CELLS):
        return _ordered_sum(totals.sums / n_trees)[0]  # type: ignore[no-any-return]
    top = totals.tops.max(axis=0)
    mean = _ordered_sum(totals.sums * np.exp(totals.tops - top)) / n_trees
    if kind == SCORE_MASS:
        return (mean * np.exp(top))[0]  # type: ignore[no-any-return]
    with np.errstate(divide="ignore"):
        return _ordered_sum(np.log(mean) + top) / len(top)


def _ordered_sum(terms: Array) -> Array:
    """Sum along the first axis, term by term: the order of NumPy's own depends on the other axes."""
    total: Array = np.add.accumulate(terms, axis=0)[-1]
    return total


def remove_points(
    forest: Forest,
    points: Points,
    slots: Array,
    limits: online.Limits,
    n_jobs: int | None,
    drawn: sampling.Samples | None = None,
) -> None:
    """Delete the points in `slots`, which no longer count as held, from all trees, in place."""
    slots = slots.astype(np.int32)
    drawn = every_point(len(forest.left)) if drawn is None else drawn

    def remove(span: slice) -> None:
        upkeep.remove_points(forest, points, span.start, span.stop, slots, limits, drawn, room_to_walk(forest, drawn))

    run(remove, tree_spans(len(forest.left), n_jobs), n_jobs)


def subtract_rows(forest: Forest, points: Points, X: Array, n_jobs: int | None) -> tuple[Forest, int]:
    """The forest without the rows of `X`, of which no points were kept; and the first row that cannot be taken out."""
    reduced = forest._replace(counts=forest.counts.copy())

    def subtract(span: slice) -> int:
        return int(upkeep.subtract_rows(reduced, points, span.start, span.stop, X))

    return reduced, min(run(subtract, tree_spans(len(forest.left), n_jobs), n_jobs))


def room_to_walk(forest: Forest, drawn: sampling.Samples) -> online.Walk:
    """Room for this thread to walk the trees of `forest`, which take the points `drawn`; what it had, if that will do.

    It is the thread's and not the forest's: walks leave traces of the points that they were about.
    """
    shape = forest.left.shape[1] + 1, len(drawn.is_held)
    room: tuple[tuple[int, int], online.Walk] | None = getattr(_ROOM, "room", None)
    if room is None or room[0] != shape:
        room = _ROOM.room = shape, _new_walk(*shape)
    return room[1]


def _new_walk(n: int, n_slots: int) -> online.Walk:
    return online.Walk(
        path=np.empty(n, np.uint32),
        rates=np.empty(n),
        hazards=np.empty(n),
        waiting=np.empty((n, 2), np.int32),
        freed=np.empty(n, np.int32),
        volumes=np.empty(n),
        births=np.empty(n),
        counts=np.empty(n),
        sides=np.empty(n),
        parts=np.empty(n),
        means=np.empty(n),
        masses=np.empty(n),
        scales=np.empty(n),
        is_held=np.empty(n_slots, np.bool_),
    )


# ---- counting ------------------------------------------------------------------------------------------------------


def count_rows(forest: Forest, X: Array, n_jobs: int | None) -> tuple[Array, Array]:
    """How many rows of `X` fall below every node, (T, C), and outside the domain, (T,)."""
    counts = np.zeros_like(forest.counts)
    trees = range(len(counts))
    outside = run(lambda t: traversal.count_rows(forest, t, X, counts[t]), trees, n_jobs)
    return counts, np.array(outside, np.int64)


# ---- posterior and lookups -----------------------------------------------------------------------------------------


def posterior(forest: Forest, prior: Prior, *, n_jobs: int | None) -> Posterior:
    """The posterior masses and volumes of every node."""
    whole = new_posterior(forest)
    if is_empty(forest):  # beyond the known world, which is nothing, is as likely as within; its density is nowhere
        whole.outside[:], whole.outside_volume[:] = np.log(0.5) if prior.is_open else -np.inf, np.inf
        return whole

    def derive(span: slice) -> None:
        polya.set_posteriors(forest, span.start, span.stop, prior.strength, prior.is_open, whole)

    run(derive, tree_spans(len(forest.left), n_jobs), n_jobs)
    return whole


def is_empty(forest: Forest) -> bool:
    """Whether the trees have no nodes, which is when all points have been deleted."""
    return not forest.size[0]


def mass_table(known: Posterior) -> LeafTable:
    """Leaf masses. Beyond the known world: the mass of all that is at least as far away."""
    inside, complement, outside = np.exp(known.inside), np.exp(known.complement), np.exp(known.outside)
    return LeafTable(inside, complement, outside, known.world, FADE_MASS)


def log_mass_table(known: Posterior) -> LeafTable:
    """The logarithms of `mass_table`."""
    return LeafTable(known.inside, known.complement, known.outside, known.world, FADE_LOG_MASS)


def log_density_table(known: Posterior) -> LeafTable:
    """Leaf log-densities, over the dimensions in which the known world has a length."""
    complement = np.full_like(known.complement, -np.inf)
    np.subtract(known.complement, known.complement_volume, out=complement, where=np.isfinite(known.complement))
    inside, outside = known.inside - known.inside_volume, known.outside - known.outside_volume
    return LeafTable(inside, complement, outside, known.world, FADE_LOG_DENSITY)


def leaf_values(
    forest: Forest, table: LeafTable, X: Array, reduce: Callable[[Array], Array], n_jobs: int | None
) -> Array:
    """`reduce` of the table's values for the leaves of each chunk of rows, (T, rows), put together by row."""
    return _look_up_leaves(forest, table, X, len(forest.left), reduce, n_jobs)


def leaf_means(forest: Forest, table: LeafTable, X: Array, n_jobs: int | None) -> Array:
    """Mean over the trees of the table's values for the leaves of each row, summed in the order of the trees."""
    return _look_up_leaves(forest, table, X, 1, lambda total: total[0] / len(forest.left), n_jobs)


def _look_up_leaves(
    forest: Forest, table: LeafTable, X: Array, height: int, reduce: Callable[[Array], Array], n_jobs: int | None
) -> Array:
    def look_up(rows: slice) -> Array:
        values = np.zeros((height, rows.stop - rows.start))
        if is_empty(forest):
            values += table.outside[:, None] if height > 1 else _ordered_sum(table.outside)
        else:
            traversal.leaf_values(forest, table, X[rows], values)
            _make_good(X[rows], values, lambda gappy, totals: marginal.leaf_values(forest, table, gappy, totals))
        return reduce(values)

    return np.concatenate(run(look_up, spans(len(X), traversal.BLOCK), n_jobs))


def leaf_kinds(forest: Forest, known: Posterior, X: Array, n_jobs: int | None) -> tuple[Array, Array]:
    """Node (NONE when outside) and `LeafKind` of the leaf of each row in each tree, both (n, T)."""
    nodes, kinds = np.empty((len(forest.left), len(X)), np.int32), np.empty((len(forest.left), len(X)), np.int8)

    if is_empty(forest):
        nodes[:], kinds[:] = NONE, LeafKind.OUTSIDE
        return nodes.T, kinds.T

    def look_up(rows: slice) -> None:
        traversal.leaf_kinds(forest, known.world, X[rows], nodes[:, rows], kinds[:, rows])

    run(look_up, spans(len(X), traversal.BLOCK), n_jobs)
    return nodes.T, kinds.T


def log_cell_masses(forest: Forest, known: Posterior, X: Array, lifetimes: Array, n_jobs: int | None) -> Array:
    """Log of the forest-mean mass of each row's cell at each of the ascending `lifetimes`, (n, S)."""
    n_trees, n_lifetimes = len(forest.left), len(lifetimes)
    if is_empty(forest):
        return np.full((len(X), n_lifetimes), known.outside[0])
    masses = np.exp(known.inside)

    def look_up(rows: slice) -> Array:
        total = np.zeros((n_lifetimes, rows.stop - rows.start))
        traversal.cell_masses(forest, masses, X[rows], lifetimes, total, np.empty((n_trees, n_lifetimes, 0)))
        with np.errstate(divide="ignore"):
            log_mean: Array = np.log(total) - np.log(n_trees)
        apart = np.flatnonzero((total < _TINY).any(axis=0) | np.isnan(X[rows]).any(axis=1))
        if apart.size:
            log_mean[:, apart] = log_mean_exp(_log_cells(forest, known, X[rows][apart], lifetimes, n_trees))
        return log_mean.T

    return np.concatenate(run(look_up, spans(len(X), traversal.BLOCK), n_jobs))


def row_scores(kind: str, forest: Forest, known: Posterior, X: Array, lifetimes: Array, n_jobs: int | None) -> Array:
    """The scores of rows, (n,), by the parameter `score` of the detectors."""
    if kind == "mass":
        return leaf_means(forest, mass_table(known), X, n_jobs)
    if kind == "log_mass":
        return leaf_means(forest, log_mass_table(known), X, n_jobs)
    if kind == "multiscale":
        return log_cell_masses(forest, known, X, lifetimes, n_jobs).mean(axis=1)  # type: ignore[no-any-return]
    return mean_log_cell_masses(forest, known, X, lifetimes, n_jobs)


def mean_log_cell_masses(forest: Forest, known: Posterior, X: Array, lifetimes: Array, n_jobs: int | None) -> Array:
    """Mean over the trees and the ascending `lifetimes` of the log-mass of each row's cell, (n,)."""
    n_trees, n_lifetimes = len(forest.left), len(lifetimes)
    if is_empty(forest):
        return np.full(len(X), known.outside[0])

    def look_up(rows: slice) -> Array:
        sums = _log_cells(forest, known, X[rows], lifetimes, 1)
        return _ordered_sum(sums[0]) / (n_trees * n_lifetimes)

    return np.concatenate(run(look_up, spans(len(X), traversal.BLOCK), n_jobs))


def weighted_scores(
    kind: str,
    forest: Forest,
    known: Posterior,
    X: Array,
    lifetimes: Array,
    weights: Array,
    n_jobs: int | None,
) -> Array:
    """As `row_scores`, the trees counting with `weights`, (T, n), which sum to 1 for every row."""
    if kind in ("mass", "log_mass"):
        table = mass_table(known) if kind == "mass" else log_mass_table(known)
        return _weighted_sum(leaf_values(forest, table, X, np.transpose, n_jobs).T, weights)

    def look_up(rows: slice) -> Array:
        logs = _log_cells(forest, known, X[rows], lifetimes, len(forest.left))
        share = weights[:, None, rows]
        if kind == "multiscale":
            top = np.where(share > 0, logs, -np.inf).max(axis=0)
            near = np.exp(np.minimum(logs - top, 0.0))
            return (np.log(_weighted_sum(near, share)) + top).mean(axis=0)  # type: ignore[no-any-return]
        return _weighted_sum(logs, share).mean(axis=0)  # type: ignore[no-any-return]

    return np.concatenate(run(look_up, spans(len(X), _ROWS_BY_TREE), n_jobs))


def left_out_scores(
    kind: str, forest: Forest, known: Posterior, prior: Prior, X: Array, lifetimes: Array, n_jobs: int | None
) -> Array:
    """As `row_scores`, for rows that a forest of processes has counted, each as if it had not been.

    They may lie beyond the domain, as if it had not grown to hold them: cells at its edge have counted them.
    """
    if kind in ("mass", "log_mass"):
        times = np.array([np.inf])
        excess = np.zeros_like(X)
    else:
        times = lifetimes
        excess = np.maximum(np.maximum(forest.domain[0] - X, X - forest.domain[1]), 0.0)

    def look_up(rows: slice) -> Array:
        logs = np.empty((len(forest.left), len(times), rows.stop - rows.start))
        leave_one_out.left_out_masses(forest, known, prior.strength, prior.is_open, X[rows], times, logs)
        if excess[rows].any():
            endured = np.minimum(times, forest.time.max())[:, None]  # cells end with the forest's own lifetime
            logs -= endured * (forest.weights @ excess[rows].T)[:, None]
        if kind in ("typicality", "log_mass"):
            return logs.mean(axis=(0, 1))  # type: ignore[no-any-return]
        log_means = log_mean_exp(logs)
        return np.exp(log_means[0]) if kind == "mass" else log_means.mean(axis=0)  # type: ignore[no-any-return]

    return np.concatenate(run(look_up, spans(len(X), _ROWS_BY_TREE), n_jobs))


def _weighted_sum(values: Array, weights: Array) -> Array:
    """Sum over the trees, of which those without weight may say anything."""
    total: Array = (np.where(weights > 0, values, 0.0) * weights).sum(axis=0)
    return total


def _log_cells(forest: Forest, known: Posterior, X: Array, lifetimes: Array, height: int) -> Array:
    """Log-masses of the cells of rows, which may lack values: of every tree, (T, S, n), or with height 1 their sums."""
    logs = np.zeros((height, len(lifetimes), len(X)))
    traversal.cell_masses(forest, known.inside, X, lifetimes, np.empty((len(lifetimes), 0)), logs)
    _make_good(X, logs, lambda gappy, each: marginal.cell_masses(forest, known.inside, gappy, lifetimes, each))
    return logs


def rows_with_gaps(X: Array) -> Array:
    """Which rows lack values."""
    return np.flatnonzero(np.isnan(X).any(axis=1))


def _make_good(X: Array, values: Array, walk: Callable[[Array, Array], None]) -> None:
    """Put the totals of a marginal walk in the place of what `values`, (..., n), hold for rows that lack values."""
    gappy = rows_with_gaps(X)
    if gappy.size:
        totals = np.zeros((*values.shape[:-1], gappy.size))
        walk(X[gappy], totals)
        values[..., gappy] = totals


def impute(forest: Forest, known: Posterior, X: Array, lifetimes: Array, how: str, n_jobs: int | None) -> Array:
    """`X` with the missing values filled in: by the mean of the cells that a row may be in, or by the heaviest.

    Of several `lifetimes` the means count alike, each of them taken over all trees.
    """
    filled = X.copy()
    gappy = rows_with_gaps(X)

    def fill(span: slice) -> None:
        rows = X[gappy[span]]
        each, wide = (len(lifetimes), len(rows)), (len(lifetimes), *rows.shape)
        guess = marginal.Guess(
            tops=np.full(each, -np.inf),
            totals=np.zeros(wide),
            sums=np.zeros(wide),
            peaks=np.full(each, -np.inf),
            modes=np.zeros(wide),
        )
        marginal.guess_values(forest, known.inside, rows, lifetimes, guess)
        with np.errstate(invalid="ignore"):  # of features that are there nothing is known
            values = guess.modes[-1] if how == "mode" else _ordered_sum(guess.sums / guess.totals) / len(lifetimes)
        filled[gappy[span]] = np.where(np.isnan(rows), values, rows)

    run(fill, spans(len(gappy), traversal.BLOCK), n_jobs)
    return filled


def log_mean_exp(values: Array) -> Array:
    """Log of the mean of exp(values) along the first axis, without overflow; -inf where all are -inf."""
    top = values.max(axis=0)
    shift = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        result: Array = shift + np.log(_ordered_sum(np.exp(values - shift)) / len(values))
    return result


# ---- uncertainty ---------------------------------------------------------------------------------------------------


def doubts(forest: Forest, prior: Prior, known: Posterior, n_jobs: int | None) -> moments.Doubt:
    """How sure the posterior is of the mass of every node."""
    nodes = np.zeros_like(known.inside), np.zeros_like(known.inside)
    whole = moments.Doubt(*nodes, np.zeros_like(known.outside))
    if is_empty(forest):  # a share of which nothing is known but that it is as likely large as small
        whole.outside[:] = moments.log_excess(0.5 * prior.strength, 0.5 * prior.strength) if prior.is_open else 0.0
        return whole

    def derive(span: slice) -> None:
        moments.set_doubts(forest, span.start, span.stop, prior.strength, prior.is_open, known.world, whole)

    run(derive, tree_spans(len(forest.left), n_jobs), n_jobs)
    return whole


def row_masses(
    forest: Forest, known: Posterior, unsure: moments.Doubt, X: Array, lifetime: float | None, n_jobs: int | None
) -> Masses:
    """What every tree says of the mass of each row's leaf, or of its cell at a lifetime."""

    def look_up(rows: slice) -> Masses:
        nodes, is_complement, log_weights = _places(forest, known, X[rows], lifetime)
        trees, is_outside = np.arange(len(nodes))[:, None], nodes == NONE

        def values(of: Posterior | moments.Doubt) -> Array:
            within = np.where(is_complement, of.complement[trees, nodes], of.inside[trees, nodes])
            return np.where(is_outside, of.outside[:, None], within)

        parts = values(known), values(unsure), log_weights
        return Masses(*(np.ascontiguousarray(part.T) for part in parts))

    return Masses(*map(np.concatenate, zip(*run(look_up, spans(len(X), traversal.BLOCK), n_jobs), strict=True)))


def _places(forest: Forest, known: Posterior, X: Array, lifetime: float | None) -> tuple[Array, Array, Array]:
    """The node whose mass counts for each row in each tree, whether what it left out counts, and the log of a weight.

    All are (T, n). The node is NONE where what lies beyond the known world counts.
    """
    n_trees, n_nodes = forest.left.shape
    nodes, log_weights = np.full((n_trees, len(X)), NONE), np.zeros((n_trees, len(X)))
    if is_empty(forest):
        return nodes, np.zeros_like(nodes, np.bool_), log_weights
    if lifetime is not None:
        moments.cells_of_rows(forest, X, np.array([lifetime]), nodes, log_weights)
        return nodes, np.zeros_like(nodes, np.bool_), log_weights
    # one walk for both: places have the numbers from 1 on, and numbers up to 0 are the log of how masses fade beyond
    numbers = np.tile(np.arange(1.0, n_nodes + 1), (n_trees, 1))
    table = LeafTable(numbers, numbers + n_nodes, np.zeros(n_trees), known.world, FADE_LOG_MASS)
    traversal.leaf_values(forest, table, X, log_weights)
    is_inside = log_weights > 0
    nodes[is_inside] = log_weights[is_inside] - 1
    is_complement = nodes >= n_nodes
    nodes[is_complement] -= n_nodes
    log_weights[is_inside] = 0.0
    return nodes, is_complement, log_weights


def intervals(masses: Masses, level: float, n_jobs: int | None) -> Array:
    """The credible interval of each row's mass, (n, 2); rows in blocks that fit the cache."""

    def find(rows: slice) -> Array:
        return interval(Masses(*(part[rows] for part in masses)), level)

    return np.concatenate(run(find, spans(len(masses.log_mean), _ROWS_OF_A_MIXTURE), n_jobs))


# ---- blame ---------------------------------------------------------------------------------------------------------


def blame_rows(forest: Forest, known: Posterior, X: Array, lifetimes: Array, n_jobs: int | None) -> tuple[Array, float]:
    """What the low and the high side of each feature cost each row, (n, 2, D), and what all rows are charged, in bits.

    Mean over the trees, and over the cells at the ascending `lifetimes`; over leaves if there are no lifetimes.
    """
    n_trees, bits = len(forest.left), _bits_per_nat(forest)
    if is_empty(forest):
        return np.zeros((len(X), 2, X.shape[1])), float(-known.outside[0] * bits * n_trees)
    with_table = blame_with_table(forest, len(X))

    def look_up(rows: slice) -> Array:
        turns = np.zeros((2, forest.left.shape[1]), np.int32)
        sides = np.zeros((rows.stop - rows.start, 2, X.shape[1]))
        attribution.blame_rows(forest, known, X[rows], lifetimes, with_table, turns, sides)
        return sides * bits

    trees = np.arange(n_trees)
    within = np.logaddexp(known.inside[trees, forest.root], known.complement[trees, forest.root])
    sides = np.concatenate(run(look_up, spans(len(X), _BLAMED_AT_ONCE), n_jobs))
    return sides, float(-_ordered_sum(within) * bits)


def _bits_per_nat(forest: Forest) -> float:
    """Bits of the mean over the trees per nat of their sum."""
    return float(1 / (len(forest.left) * np.log(2)))


def blame_with_table(forest: Forest, n_rows: int) -> bool:
    """Whether sums along paths are worth keeping for other rows, in time and in memory. It changes no result."""
    n_nodes, n_features = forest.left.shape[1], forest.lower.shape[2]
    return bool(n_features > 0 and n_nodes < 4 * n_rows and n_nodes * 2 * n_features * 8 < _LARGEST_TABLE)


def blame_counted(forest: Forest, known: Posterior, lifetimes: Array) -> Array:
    """What the points counted are charged on average, (2, D), in bits."""
    parts = np.zeros((2, forest.weights.shape[1]))
    if not is_empty(forest):
        attribution.blame_counted(forest, known, lifetimes, parts)
    return parts * _bits_per_nat(forest)


def find_bounds(
    forest: Forest, known: Posterior, row: Array, lifetimes: Array, features: Array, sides: Array
) -> tuple[Array, Array]:
    """Where the blame of a row begins in each tree, for some features on one side each, and what it costs: (T, m).

    A bound is infinite where a tree does not blame that side.
    """
    shape = (len(forest.left), len(features))
    bounds, costs = np.where(sides == attribution.LOW, np.inf, -np.inf) + np.zeros(shape), np.zeros(shape)
    if not is_empty(forest):
        attribution.find_bounds(forest, known, row[None], lifetimes, features, sides, bounds, costs)
    return bounds, costs


def count_within(forest: Forest, world: Array, low: Array, high: Array) -> Array:
    """How many points of each tree lie above `low` and up to `high` in all features, (T,)."""
    counts = np.zeros(len(forest.left))
    if not is_empty(forest):
        attribution.count_within(forest, world, low, high, counts)
    return counts
