"""Update forests in place: score and learn rows of a stream, remove points, count rows."""

from __future__ import annotations

from collections.abc import Callable
from threading import local

import numpy as np

from polyaforest.forest import copies
from polyaforest.kernels import online, prequential, sampling, traversal
from polyaforest.kernels.arrays import (
    EVERY,
    SCORE_CELLS,
    SCORE_LOG_CELLS,
    SCORE_LOG_MASS,
    SCORE_MASS,
    SCORE_NOTHING,
    Array,
    Forest,
    Points,
    new_points,
)
from polyaforest.kernels.jit import direct
from polyaforest.kernels.rng import fill_exponentials
from polyaforest.util.parallel import is_worth_threads, log_mean_exp, ordered_sum, run, tree_spans

_LOCAL = local()
_run_chunk = direct(prequential.run_chunk)


def draw_exponentials(state: Array, n: int) -> Array:
    """Draw from Exp(1)."""
    draws = np.empty(n)
    fill_exponentials(state, draws)
    return draws


def every_point(n_trees: int) -> sampling.TreeSamples:
    """Return the samples of trees that hold every point."""
    nothing = np.empty(0, np.uint64)
    sizes = np.full(n_trees, EVERY, np.int64)
    return sampling.TreeSamples(sizes, nothing, nothing.copy(), np.empty(0, np.int64), np.empty(0, np.bool_))


def hold_points(forest: Forest, values: Array, members: Array, n_jobs: int | None) -> Points:
    """Return the lists of points that trees were grown on.

    `members` are slots of `values`: the same for every tree, or (T, n) for each tree, with NONE after the last.
    """
    n_trees, n_nodes = forest.left.shape
    points = new_points(n_trees, n_nodes, *values.shape)._replace(values=values)
    slots = np.ascontiguousarray(np.broadcast_to(members, (n_trees, members.shape[-1])), np.int32)

    def link(span: slice) -> None:
        online.link_points(forest, points, span.start, span.stop, slots)

    if not is_worth_threads(slots.size):
        link(slice(0, n_trees))
    else:
        run(link, tree_spans(n_trees, n_jobs), n_jobs)
    return points


def run_chunk(
    forest: Forest,
    points: Points,
    chunk: prequential.StreamChunk,
    limits: online.Limits,
    scoring: prequential.Scoring,
    n_jobs: int | None,
    drawn: sampling.TreeSamples,
) -> Array:
    """Score and learn the rows of `chunk` in all trees, in place; return the scores, empty for SCORE_NOTHING."""
    if not chunk.rows.flags.c_contiguous:  # direct calls of kernels do not check this
        chunk = chunk._replace(rows=np.ascontiguousarray(chunk.rows))
    n_trees, n_rows = len(forest.left), len(chunk.rows)
    n_blocks, n_cells = -(-n_trees // prequential.BLOCK), 0 if scoring.kind == SCORE_NOTHING else len(chunk.gappy)
    totals = new_totals(scoring, n_trees, n_rows, n_cells)

    def learn(span: slice) -> None:
        first, last = span.start * prequential.BLOCK, min(span.stop * prequential.BLOCK, n_trees)
        walk = walk_workspace(forest, drawn)
        _run_chunk(forest, points, first, last, chunk, limits, scoring, drawn, totals, walk)

    if not is_worth_threads(n_rows * n_trees):
        learn(slice(0, n_blocks))
    else:
        run(learn, tree_spans(n_blocks, n_jobs), n_jobs)
    scores = _scores_of_totals(totals, scoring.kind, n_trees)
    if n_cells:
        scores[np.flatnonzero(chunk.gaps >= 0)] = _scores_of_cells(totals.cells, scoring.kind)
    return scores


def new_totals(scoring: prequential.Scoring, n_trees: int, n_rows: int, n_gappy: int = 0) -> prequential.Totals:
    """Return totals for rows, of which some have gaps."""
    n_blocks, n_scores = -(-n_trees // prequential.BLOCK), len(scoring.lifetimes) if scoring.kind == SCORE_CELLS else 1
    n_tops = n_rows if scoring.kind in (SCORE_CELLS, SCORE_MASS) else 0  # logarithms need no scaling
    return prequential.Totals(
        sums=np.zeros((n_blocks, n_scores, n_rows)),
        tops=np.full((n_blocks, n_scores, n_tops), -np.inf),
        cells=np.empty((n_trees, n_gappy, len(scoring.lifetimes))),
    )


def run_row(
    forest: Forest,
    points: Points,
    chunk: prequential.StreamChunk,
    limits: online.Limits,
    scoring: prequential.Scoring,
    drawn: sampling.TreeSamples,
    totals: prequential.Totals,
) -> Array:
    """Do what `run_chunk` does for a single complete row, on this thread, with `totals` of an earlier row."""
    n_trees = len(forest.left)
    totals.sums.fill(0.0)
    totals.tops.fill(-np.inf)
    _run_chunk(forest, points, 0, n_trees, chunk, limits, scoring, drawn, totals, walk_workspace(forest, drawn))
    return _scores_of_totals(totals, scoring.kind, n_trees)


def _scores_of_totals(totals: prequential.Totals, kind: int, n_trees: int) -> Array:
    """Return the mean over trees, or the mean over lifetimes of its logarithm, summed in a fixed order."""
    if kind == SCORE_NOTHING:
        return np.empty(0)
    if kind in (SCORE_LOG_MASS, SCORE_LOG_CELLS):
        return ordered_sum(totals.sums / n_trees)[0]  # type: ignore[no-any-return]
    top = totals.tops.max(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):  # unscored rows have no totals
        mean = ordered_sum(totals.sums * np.exp(totals.tops - top)) / n_trees
        if kind == SCORE_MASS:
            return (mean * np.exp(top))[0]  # type: ignore[no-any-return]
        return ordered_sum(np.log(mean) + top) / len(top)


def _scores_of_cells(cells: Array, kind: int) -> Array:
    """Return the scores of rows with gaps, given the log-masses of their cells, (T, g, S), as `score.row_scores`."""
    n_trees, _, n_lifetimes = cells.shape
    by_lifetime = cells.transpose(0, 2, 1)
    if kind == SCORE_LOG_CELLS:
        return np.asarray(ordered_sum(ordered_sum(by_lifetime)) / (n_trees * n_lifetimes))
    return np.asarray(ordered_sum(log_mean_exp(by_lifetime)) / n_lifetimes)


def remove_points(
    forest: Forest,
    points: Points,
    slots: Array,
    limits: online.Limits,
    n_jobs: int | None,
    drawn: sampling.TreeSamples,
) -> None:
    """Delete the points in `slots`, no longer marked as held, from all trees, in place."""
    slots = slots.astype(np.int32)

    def remove(span: slice) -> None:
        sampling.remove_points(
            forest, points, span.start, span.stop, slots, limits, drawn, walk_workspace(forest, drawn)
        )

    run(remove, tree_spans(len(forest.left), n_jobs), n_jobs)


def subtract_rows(forest: Forest, points: Points, X: Array, n_jobs: int | None) -> tuple[Forest, int]:
    """Return a forest of summaries without the rows of `X`, and the first row that cannot be subtracted, or len(X)."""
    reduced = forest._replace(counts=forest.counts.copy())

    def subtract(span: slice) -> int:
        return int(online.subtract_rows(reduced, points, span.start, span.stop, X))

    return reduced, min(run(subtract, tree_spans(len(forest.left), n_jobs), n_jobs))


def walk_workspace(forest: Forest, drawn: sampling.TreeSamples) -> online.Walk:
    """Return this thread's workspace for the trees of `forest`, reallocating it if the shape changed.

    It belongs to the thread and not to the forest, because walks leave traces of points.
    """
    shape = forest.left.shape[1] + 1, len(drawn.is_held)
    workspace: tuple[tuple[int, int], online.Walk] | None = getattr(_LOCAL, "workspace", None)
    if workspace is None or workspace[0] != shape:
        workspace = _LOCAL.workspace = shape, _new_walk(*shape)
    return workspace[1]


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


def count_rows(forest: Forest, X: Array, n_jobs: int | None) -> tuple[Array, Array]:
    """Count the rows of `X` below every node, (T, C), and outside the domain, (T,)."""
    counts, X = np.zeros_like(forest.counts), np.require(X, np.float64, ["C", "W"])

    def count(trees: slice) -> int:
        return int(traversal.count_rows(forest, trees.start, trees.stop, X, counts))

    outside = run(count, tree_spans(len(counts), n_jobs), n_jobs)
    return counts, np.full(len(counts), outside[0], np.int64)


def count_copies(
    forest: Forest,
    rows: Array,
    n_copies: Array,
    starts: Array,
    fill: Callable[[Array, Array], Array],
    n_jobs: int | None,
) -> tuple[Array, Array]:
    """Count `n_copies` of each row; `fill` completes rows with gaps, given the ids of their copies.

    The ids of the copies of a row are consecutive, from its start on. Complete rows are counted once per binary digit
    of their number of copies, so that the cost grows with its logarithm.
    """
    total, outside = np.zeros_like(forest.counts), np.zeros_like(forest.outside)
    has_gap = np.isnan(rows).any(axis=1)

    def add(part: Array, times: int) -> None:
        counted, beyond = count_rows(forest, part, n_jobs)
        np.add(total, counted * times, out=total)
        np.add(outside, beyond * times, out=outside)

    for digit in range(int(n_copies.max(initial=0)).bit_length()):
        chosen = (n_copies >> digit & 1 == 1) & ~has_gap
        if chosen.any():
            add(rows[chosen], 1 << digit)
    gaps = np.flatnonzero(has_gap)
    for places, ids in copies.parts(n_copies[gaps], starts[gaps]):
        add(fill(rows[gaps[places]], ids), 1)
    return total, outside
