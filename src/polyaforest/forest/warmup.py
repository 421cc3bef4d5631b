"""Compile kernels before their first use, in several processes, because Numba's compiler uses one core each.

Kernels are compiled in groups, by calling the functions that use them on a forest of a single leaf.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
from joblib import cpu_count

from polyaforest.forest import attribute, draws, grow, learn, posterior, score
from polyaforest.forest.posterior import new_posterior
from polyaforest.forest.score_types import Score
from polyaforest.forest.spec import Plan, weighting_of_domain
from polyaforest.kernels import (
    attribution,
    change,
    contexts,
    leave_one_out,
    marginal,
    moments,
    mondrian_process,
    mondrian_tree,
    online,
    polya,
    preorder,
    prequential,
    recent,
    sampling,
    traversal,
    two_samples,
)
from polyaforest.kernels.arrays import NONE, Array, Forest, Prior, new_forest, new_points
from polyaforest.kernels.jit import COSTS, announcer, seconds_per_cost
from polyaforest.kernels.rng import seed_states
from polyaforest.kernels.single_row import take_row

_START = 2  # cost of starting a process
_SHARED = 0.7  # share of the costs if one process compiles several groups, since they share helpers
_ROWS = np.array([[0.0, 0.0], [1.0, 1.0]])
_DOMAIN = np.array([[0.0, 0.0], [1.0, 1.0]])
_LIFETIMES = np.array([1.0, 2.0])
_PRIOR = Prior(1.0, True)
_PLAN = Plan(1, 1.0, None, weighting_of_domain(_DOMAIN), _DOMAIN, np.random.SeedSequence(0), 1)


def _leaf(*, boxed: bool) -> Forest:
    """Return a forest of one tree, a leaf that holds both rows, without calling a kernel."""
    states = seed_states(np.random.SeedSequence(0), 1)
    forest = new_forest(4, np.ones((1, 2)), states, _DOMAIN, boxed=boxed)
    for part in (forest.left, forest.right, forest.parent, forest.feature):
        part[0, 0] = NONE
    forest.time[0, 0], forest.counts[0, 0], forest.size[0] = 1.0, len(_ROWS), 1
    if boxed:
        forest.lower[0, 0], forest.upper[0, 0] = _DOMAIN
    return forest


def _grow() -> None:
    grow.grow_trees(_ROWS, _PLAN)
    grow.grow_trees(_ROWS, _PLAN, members=np.arange(2)[None])


def _derive() -> None:
    forest = _leaf(boxed=True)
    posterior.posterior(forest, _PRIOR, n_jobs=1)
    posterior.derive_along(forest, _PRIOR, _ROWS[None], _LIFETIMES, posterior.underived(forest))


def _score() -> None:
    forest = _leaf(boxed=True)
    known = new_posterior(forest)
    score.row_scores(Score.TYPICALITY, forest, known, _ROWS, _LIFETIMES, 1)


def _score_masses() -> None:
    forest = _leaf(boxed=True)
    for kind in (Score.MASS, Score.MULTISCALE):
        score.row_scores(kind, forest, new_posterior(forest), _ROWS, _LIFETIMES, 1)


def _sample_processes() -> None:
    grow.sample_processes(_PLAN._replace(max_depth=1))
    forest = _leaf(boxed=False)
    known = new_posterior(forest)
    learn.count_rows(forest, _ROWS, 1)
    score.left_out_scores("multiscale", forest, known, _PRIOR, _ROWS, _LIFETIMES, 1)


def _measure() -> None:
    forest = _leaf(boxed=True)
    known = new_posterior(forest)
    second = posterior.second_moments(forest, _PRIOR, known, 1)
    moments.log_excess(0.5, 0.5)
    for lifetime in (None, 1.0):
        posterior.row_masses(forest, known, second, _ROWS, lifetime, 1)
    posterior.leaf_kinds(forest, known, _ROWS, 1)


def _score_gaps() -> None:
    forest, gappy = _leaf(boxed=True), np.array([[0.0, np.nan]])
    known = new_posterior(forest)
    for kind in ("mass", "multiscale"):
        score.row_scores(kind, forest, known, gappy, _LIFETIMES, 1)
    score.impute(forest, known, gappy, _LIFETIMES, "mean", 1)


def _explain() -> None:
    forest, features, sides = _leaf(boxed=True), np.array([0]), np.array([attribution.LOW])
    known = new_posterior(forest)
    attribute.attribute_rows(forest, known, _ROWS, _LIFETIMES, 1)
    attribute.find_bounds(forest, known, _ROWS[0], _LIFETIMES, features, sides)


def _compare() -> None:
    forest = _leaf(boxed=True)
    known = new_posterior(forest)
    attribute.attribute_counted(forest, known, _LIFETIMES)
    attribute.count_within(forest, known.world, *_DOMAIN)


def _compare_samples() -> None:
    forest, leaves = _leaf(boxed=False), np.empty(2, np.int32)
    two_samples.find_leaves(forest, 0, _ROWS, leaves)
    marks, depth = np.ones((2, 1), np.uint8), np.zeros(1, np.int64)
    counts, parent, left = np.empty((1, 1), np.int32), forest.parent[0, :1].copy(), forest.left[0, :1].copy()
    for kind in (np.uint16, np.int32):  # small trees number their leaves in 16 bits
        two_samples.count_marked(parent, leaves.astype(kind), marks, counts)
    two_samples.node_evidence(left, depth, depth, counts, counts.copy(), 1.0, 0.5, np.zeros(3), np.empty((1, 1)))


def _learn() -> None:
    states = seed_states(_PLAN.seed, 1)
    forest = grow.empty_forest(_PLAN, states)
    points = new_points(1, forest.left.shape[1], 2, 2)
    schedule: list[Array] = [np.array([NONE, NONE], np.int32), np.zeros(2, np.int32), np.empty(0, np.int32)]
    scoring = prequential.Scoring(0, np.empty(0), 1.0, True, _DOMAIN)
    learn.run_chunk(
        forest,
        points,
        prequential.StreamChunk(_ROWS, *schedule),
        online.Limits(1.0, 10),
        scoring,
        1,
        learn.every_point(1),
    )


def _hold() -> None:
    forest = _leaf(boxed=True)
    learn.draw_exponentials(forest.rng[0], 1)
    draws.priorities(np.zeros(1, np.uint64), np.zeros(1, np.int64))
    take_row(_ROWS[:1], 0.0, 1.0, _DOMAIN, np.empty((1, 2)))
    points = learn.hold_points(forest, _ROWS, np.empty(0, np.int64), 1)
    features, slots = np.zeros((2, 1), np.int32)
    nodes, room = (features, slots, np.empty(0), np.empty(0)), np.empty((2, 5), np.int32)
    preorder.write_trees(forest, *nodes, room[0])
    preorder.read_trees(forest, *nodes, 1.0, 1, *room)
    numbers, seeds = np.zeros(1, np.int64), np.zeros(1, np.uint64)
    preorder.fill_trees(forest, points, slots, numbers, numbers + 1, seeds, seeds.copy())


def _remove() -> None:
    forest = _leaf(boxed=True)
    points = new_points(1, forest.left.shape[1], 2, 2)
    learn.remove_points(forest, points, np.array([0]), online.Limits(1.0, 10), 1, learn.every_point(1))
    learn.subtract_rows(forest, points, _ROWS, 1)


def _follow() -> None:
    steps, scales = np.zeros(1, np.int64), np.ones(1, np.int64)
    waves, window, out = np.ones((1, 1)), np.empty(2), np.empty((1, _ROWS.shape[1], 4))
    contexts.fill_contexts(_ROWS, steps, steps, scales, scales, scales, waves, 1, window, out)
    contexts.fill_seasons(_ROWS, steps, 1, scales, np.empty((1, _ROWS.shape[1], 1)))
    contexts.fill_novelties(_ROWS, 0, 1, 1, 1, 1.0, np.zeros((len(_ROWS), 3)), np.empty(1))
    lengths, is_known = np.array([1]), np.ones(_ROWS.shape[1], np.bool_)
    weights, distances, out = np.ones(len(_ROWS)), np.empty(1), np.empty((1, 1))
    recent.fill_surprise(_ROWS, is_known, lengths, np.array([0]), lengths, weights, lengths, False, distances, out)


def _detect_change() -> None:
    forest, leaves, counts = _leaf(boxed=True), np.zeros((2, 1), np.int32), np.zeros((1, 4), np.int32)
    cuts = change.Cuts(*(getattr(forest, name) for name in change.Cuts._fields))
    change.find_leaves(cuts, _ROWS, leaves)
    change.count_leaves(cuts, leaves, counts)
    prior, chance = np.ones((1, 4), np.int32), 0.5 ** change.depths(cuts)
    change.set_prior(cuts, counts, np.ones(1), prior)
    windows, units = (np.zeros((2, 1, 4), np.int32), np.zeros((2, 1, 4))), np.zeros((2, 8), np.int32)
    tally = change.Tally(counts, prior, chance, *windows, units, np.zeros(8))
    lengths, room = np.ones(1, np.int64), np.empty((2, 1))
    change.slide(cuts, tally, leaves, 0, 0, lengths, room)
    change.read_evidence(cuts, tally, room[0])
    change.move_point(cuts, tally, 0, leaves[0], -1)
    change.run_evidence(cuts, tally, 1, leaves, room[:, 0].copy())
    change.set_sums(cuts, tally, 0)
    change.log_contrasts(cuts, tally, 0, np.empty((1, 4)))


class _Group(NamedTuple):
    kernels: tuple[Any, ...]
    call: Callable[[], None]
    cost: float  # in units of `seconds_per_cost`


_GROUPS = {
    "grow": _Group((mondrian_tree.sample_tree, mondrian_tree.sample_trees), _grow, 4),
    "hold": _Group(
        (
            online.link_points,
            sampling.fill_priorities,
            preorder.write_trees,
            preorder.read_trees,
            preorder.fill_trees,
            take_row,
        ),
        _hold,
        3,
    ),
    "derive": _Group((polya.set_posteriors, polya.set_paths), _derive, 3),
    "score": _Group((traversal.log_cell_sums,), _score, 4),
    "score masses": _Group((traversal.leaf_values, traversal.cell_masses), _score_masses, 5),
    "explain": _Group((attribution.attribute_rows, attribution.find_bounds), _explain, COSTS["attribute_rows"][1]),
    "compare": _Group((attribution.attribute_counted, attribution.count_within), _compare, 3),
    "learn": _Group((prequential.run_chunk,), _learn, COSTS["run_chunk"][1]),
    "remove": _Group((sampling.remove_points, online.subtract_rows), _remove, 8),
    "processes": _Group(
        (mondrian_process.sample_process, traversal.count_rows, leave_one_out.left_out_masses), _sample_processes, 5
    ),
    "measure": _Group((moments.set_second_moments, moments.cells_of_rows, traversal.leaf_kinds), _measure, 9),
    "contexts": _Group(
        (contexts.fill_contexts, contexts.fill_seasons, contexts.fill_novelties, recent.fill_surprise), _follow, 3
    ),
    "two samples": _Group(
        (two_samples.find_leaves, two_samples.count_marked, two_samples.node_evidence), _compare_samples, 3
    ),
    "change": _Group(
        (
            change.find_leaves,
            change.count_leaves,
            change.slide,
            change.read_evidence,
            change.move_point,
            change.run_evidence,
            change.set_sums,
            change.log_contrasts,
        ),
        _detect_change,
        4,
    ),
    "gaps": _Group((marginal.leaf_values, marginal.cell_masses, marginal.guess_values), _score_gaps, 10),
}
_TABLE = ("grow", "hold", "derive", "score", "explain", "contexts")
PURPOSES = {  # the groups that each purpose needs
    "table": _TABLE,
    "stream": (*_TABLE, "learn"),
    "drift": (*_TABLE, "learn", "remove", "two samples", "change"),
    "batch": ("processes", "derive", "score", "explain"),
    "comparison": ("grow", "two samples"),
    "everything": tuple(_GROUPS),
}


def cold(purpose: str) -> list[str]:
    """Return the groups for a purpose that are not yet compiled on this machine, the most costly first."""
    if numba.config.DISABLE_JIT:
        return []
    names = [name for name in PURPOSES[purpose] if not all(map(_is_cached, _GROUPS[name].kernels))]
    return sorted(names, key=lambda name: -_GROUPS[name].cost)


def _is_cached(kernel: Any) -> bool:
    """Return whether the machine code of a kernel is on disk."""
    folder = kernel.stats.cache_path
    if folder is None:  # without a cache, compiling ahead is useless
        return True
    return any(Path(folder).glob(f"{Path(kernel.py_func.__code__.co_filename).stem}.{kernel.__name__}-*.nbc"))


def compile_all(groups: Sequence[str], n_jobs: int | None = None) -> Iterator[float]:
    """Compile groups of kernels, in order, in separate processes; yield the share done so far."""
    total, done = sum(_GROUPS[name].cost for name in groups), 0.0
    with ProcessPoolExecutor(_n_processes(groups, n_jobs), get_context("spawn")) as pool:
        tasks = {pool.submit(compile_group, name): _GROUPS[name].cost for name in groups}
        for task in as_completed(tasks):
            task.result()
            done += tasks[task]
            yield done / total


def compile_group(name: str) -> None:
    """Compile the kernels of a group, or load them from disk."""
    announcer.is_silent = True
    _GROUPS[name].call()


def expected_seconds(groups: Sequence[str], n_jobs: int | None = None) -> float:
    """Estimate the time to compile groups on this machine."""
    costs = [_GROUPS[name].cost for name in groups]
    rounds = max(*costs, _SHARED * sum(costs) / _n_processes(groups, n_jobs))
    return (_START + rounds) * seconds_per_cost()


def _n_processes(groups: Sequence[str], n_jobs: int | None) -> int:
    return min(n_jobs or cpu_count(), len(groups))
