"""Insertion, deletion and scores of the kernels match the reference, draw for draw."""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

import numba
import numpy as np
import pytest
from effort import examples, mostly_slow
from forests import every_point
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from reference import naive
from strategies import (
    domains,
    histories,
    lifetimes,
    matrices,
    mixed,
    prior_strengths,
    probes,
    rows_of_a_stream,
    seeds,
    weightings,
)
from test_reference import assert_same_tree, generators, points, sides, slots, weights_of

from polyaforest import StreamingMPF, Tree
from polyaforest.forest import grow, learn
from polyaforest.forest.integrity import check_forest
from polyaforest.forest.retention import Window
from polyaforest.forest.score import log_cell_masses, mean_log_cell_masses
from polyaforest.forest.score_types import Score
from polyaforest.forest.spec import Plan, Weighting, weighting_of_rows
from polyaforest.forest.stream import WARM_UP, Rules, Stream
from polyaforest.forest.stream_checks import check_samples
from polyaforest.forest.stream_rows import begin_with, subtract
from polyaforest.kernels.arrays import (
    EVERY,
    LEAST_LOG,
    NONE,
    SCORE_CELLS,
    SCORE_LOG_CELLS,
    SCORE_LOG_MASS,
    SCORE_MASS,
    SCORE_NOTHING,
    Array,
    Forest,
    Points,
    Prior,
    new_points,
    pad,
)
from polyaforest.kernels.boxes import empty_box
from polyaforest.kernels.online import Limits
from polyaforest.kernels.prequential import Scoring, StreamChunk
from polyaforest.util.parallel import log_mean_exp

pytestmark = [pytest.mark.property, pytest.mark.plain]

N_TREES = 2
NOWHERE = [[np.inf], [-np.inf]]
GRID = np.array([0.0, 0.3, 1.0, 4.0, 40.0])  # times to score at, in units of the weighting

depths = st.sampled_from([None, 0, 1, 2, 3, 5])
kinds = st.sampled_from([SCORE_NOTHING, SCORE_CELLS, SCORE_LOG_CELLS, SCORE_MASS, SCORE_LOG_MASS])
WITH_TIMES = (SCORE_CELLS, SCORE_LOG_CELLS)
KINDS = {
    "typicality": SCORE_LOG_CELLS,
    "multiscale": SCORE_CELLS,
    "mass": SCORE_MASS,
    "log_mass": SCORE_LOG_MASS,
}

oracle = settings(
    max_examples=examples(60 if numba.config.DISABLE_JIT else 200),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


class World(NamedTuple):
    """The parameters of trees on a stream."""

    rows: Array  # the rows that may come
    plan: Plan
    prior: Prior

    @property
    def depth(self) -> float:
        """The maximal depth for the reference."""
        return np.inf if self.plan.max_depth is None else self.plan.max_depth

    @property
    def domain(self) -> naive.Box | None:
        """The domain for the reference."""
        return sides(self.plan.domain, self.plan.n_categories)

    def points(self, rows: Array) -> list[list[float]]:
        """Return rows for the reference."""
        return points(rows, self.plan.n_categories)

    @property
    def limits(self) -> Limits:
        return Limits(self.plan.lifetime, self.plan.depth_limit)

    def scoring(self, kind: int) -> Scoring:
        times = np.minimum(GRID / self.plan.weighting.unit, self.plan.lifetime)
        times = times if kind in WITH_TIMES else np.empty(0)
        return Scoring(kind, times, self.prior.strength, self.prior.is_open, self.plan.domain)


@st.composite
def worlds(draw, max_depths=depths):
    rows, n_categories = draw(mixed(rows_of_a_stream()))
    weighting = draw(weightings(rows=rows, n_categories=n_categories))
    kind = draw(st.sampled_from(["none", "given", "data"]))  # what detectors take for a domain
    domain = draw(domains(rows, n_categories)) if kind == "given" else empty_box(rows.shape[1], n_categories)
    seed, lifetime = np.random.SeedSequence(draw(seeds)), draw(lifetimes) / weighting.unit
    plan = Plan(N_TREES, lifetime, draw(max_depths), weighting, domain, seed, None, n_categories)
    return World(rows, plan, Prior(draw(prior_strengths), is_open=kind != "data"))


def grown(rng: naive.Xoshiro, rows: Array, weights: list[float], world: World) -> naive.Tree:
    """Return a tree of the reference, sampled from scratch."""
    plan = world.plan
    return naive.sample_mondrian_tree(rng, world.points(rows), weights, plan.lifetime, world.depth, world.domain)


def assert_scores_close(scores: Array, expected: list[float], kind: int) -> None:
    """Compare logarithms to an absolute 1e-9, so masses to a relative 1e-9."""
    assert_allclose(scores, expected, rtol=1e-9, atol=1e-300 if kind == SCORE_MASS else 1e-9)


def reference_score(trees: list[naive.Tree], x: list[float], scoring: Scoring) -> float:
    """Return the score of a row in the reference's trees."""
    if trees[0].root is None:
        half = 0.5 if scoring.is_open else 0.0
        return half if scoring.kind == SCORE_MASS else np.log(half) if half else -np.inf
    for tree in trees:
        naive.set_polya_parameters(tree, scoring.gamma, is_open=scoring.is_open)
    if scoring.kind in WITH_TIMES:
        times = scoring.lifetimes.tolist()
        logs = np.array([[naive.log_cell_mass(tree, x, t) for t in times] for tree in trees])
        return (log_mean_exp(logs) if scoring.kind == SCORE_CELLS else logs.clip(LEAST_LOG)).mean()
    logs = [naive.find_leaf(tree, x).log_mass for tree in trees]
    return np.mean(logs if scoring.kind == SCORE_LOG_MASS else np.exp(logs))


def assert_same_trees(forest: Forest, trees: list[naive.Tree], rngs: list[naive.Xoshiro]) -> None:
    for t, (tree, rng) in enumerate(zip(trees, rngs, strict=True)):
        assert_array_equal(forest.rng[t], np.array(rng.s, np.uint64))
        if tree.root is None:
            assert forest.size[t] == forest.root[t] == 0
            assert_array_equal(forest.weights[t], tree.weights)
        else:
            assert_same_tree(forest, t, tree)
        for name in ("left", "right", "parent", "feature", "cut", "time", "counts", "lower", "upper"):
            assert not getattr(forest, name)[t, forest.size[t] :].any(), f"{name} of a free slot"


def assert_same_lists(forest: Forest, points: Points, trees: list[naive.Tree], members: list[list[int]]) -> None:
    """Check that every leaf lists exactly the rows that it holds in the reference."""
    for t, (tree, held) in enumerate(zip(trees, members, strict=True)):
        listed = []
        leaves = set()
        for j, node in slots(forest, t, tree.root) if tree.root else []:
            if not node.is_leaf:
                continue
            leaves.add(j)
            found, before, slot = [], NONE, int(points.head[t, j])
            while slot != NONE:
                assert_array_equal(points.links[t, slot, [0, 2]], [before, j])
                found.append(slot)
                before, slot = slot, int(points.links[t, slot, 1])
            assert sorted(points.values[found].tolist()) == sorted(node.rows)
            listed += found
        assert sorted(listed) == sorted(held)
        assert (np.delete(points.head[t], sorted(leaves)) == NONE).all()
        assert (np.delete(points.links[t], sorted(held), axis=0) == NONE).all()


# ---- chunks --------------------------------------------------------------------------------------------------------


class Twins:
    """Trees in the kernels and their twins in the reference, with the same history."""

    def __init__(self, world: World, n_first: int, n_most: int) -> None:
        self.world, self.rngs = world, generators_of(world.plan)
        plan, rows = world.plan, world.rows
        room = plan.most_nodes(n_most) + grow.SPARE_NODES  # and not one slot more
        weights = [weights_of(rng, plan.weighting) for rng in self.rngs]
        if n_first:
            rows = rows[np.arange(n_first) % len(rows)]
            self.trees = [grown(rng, rows, w, world) for rng, w in zip(self.rngs, weights, strict=True)]
            self.forest = pad(grow.grow_trees(rows, plan), room)
        else:
            self.trees = [naive.empty_tree(w, world.domain) for w in weights]
            states = np.array([rng.s for rng in self.rngs], np.uint64)
            self.forest = pad(grow.empty_forest(plan, states)._replace(weights=np.array(weights)), room)
        values = np.zeros((n_most + 24, rows.shape[1]))
        values[:n_first] = rows[:n_first]
        self.held = list(range(n_first))  # slots, by order of arrival
        self.points = new_points(N_TREES, room, *values.shape)._replace(values=values)
        if n_first:
            self.points = learn.hold_points(self.forest, values, np.arange(n_first), None)

    def live_through(self, steps: list[int | tuple[int]], kind: int) -> None:
        """Apply the steps of one chunk, one by one in the reference and all at once in the kernels."""
        first = next((place for place, step in enumerate(steps) if not is_departure(step)), len(steps))
        gone = [slot for slot in map(self._leave, steps[:first]) if slot is not None]
        learn.remove_points(
            self.forest,
            self.points,
            np.array(gone, np.int32),
            self.world.limits,
            None,
            every_point(self.forest),
        )
        self.points.values[gone] = 0.0
        if first < len(steps):
            self._run(steps[first:], self.world.scoring(kind))

    def _run(self, steps: list[int | tuple[int]], scoring: Scoring) -> None:
        free = sorted(set(range(len(self.points.values))) - set(self.held))
        rows, places, until, leaving, expected = [], [], [], [], []
        for step in steps:
            if is_departure(step):
                slot = self._leave(step)
                leaving += [] if slot is None else [slot]
                until[-1] = len(leaving)
                continue
            i = step[0] if isinstance(step, tuple) else step
            (x,) = self.world.points(self.world.rows[[i]])
            if scoring.kind != SCORE_NOTHING:
                expected.append(reference_score(self.trees, x, scoring))
            rows.append(x)
            places.append(NONE if isinstance(step, tuple) else free.pop(0))
            until.append(len(leaving))
            if places[-1] != NONE:
                self._come(places[-1], x)
        chunk = StreamChunk(
            np.array(rows, np.float64), *(np.array(part, np.int32) for part in (places, until, leaving))
        )
        scores = learn.run_chunk(
            self.forest, self.points, chunk, self.world.limits, scoring, None, every_point(self.forest)
        )
        assert_scores_close(scores, expected, scoring.kind)
        self.points.values[leaving] = 0.0

    def _come(self, slot: int, x: list[float]) -> None:
        self.held.append(slot)
        self.points.values[slot] = x
        for tree, rng in zip(self.trees, self.rngs, strict=True):
            naive.insert_point(rng, tree, x, self.world.plan.lifetime, self.world.depth)

    def _leave(self, step: int) -> int | None:
        if not self.held:
            return None
        slot = self.held.pop(~step % len(self.held))
        (x,) = self.world.points(self.points.values[[slot]])
        for tree, rng in zip(self.trees, self.rngs, strict=True):
            naive.delete_point(rng, tree, x, self.world.plan.lifetime, self.world.depth)
        return slot

    def assert_alike(self) -> None:
        assert_same_trees(self.forest, self.trees, self.rngs)
        assert_same_lists(self.forest, self.points, self.trees, [self.held] * len(self.trees))
        plan, held = self.world.plan, np.array(self.held, np.int32)
        check_forest(self.forest, points=self.points, held=held, lifetime=plan.lifetime, max_depth=plan.max_depth)


def is_departure(step: int | tuple[int]) -> bool:
    return not isinstance(step, tuple) and step < 0


def generators_of(plan: Plan) -> list[naive.Xoshiro]:
    return generators(plan.seed.entropy)


def most_held(history: list[list[int | tuple[int]]], n_first: int) -> int:
    """Return the largest number of points held at once."""
    n = most = n_first
    for step in chain.from_iterable(history):
        if not isinstance(step, tuple):
            n = n + 1 if step >= 0 else max(n - 1, 0)
            most = max(most, n)
    return max(most, 1)


@oracle
@given(world=worlds(), data=st.data(), n_first=st.integers(0, 4), kind=kinds)
def test_updated_trees_match_reference_draw_for_draw(world, data, n_first, kind):
    history = data.draw(histories(len(world.rows)))
    twins = Twins(world, n_first, most_held(history, n_first))
    twins.assert_alike()
    for chunk in history:
        twins.live_through(chunk, kind)
        twins.assert_alike()


# ---- streams -------------------------------------------------------------------------------------------------------


class StreamTwins:
    """A stream and its twin in the reference: arrivals, window, samples, and rebuilds while warming up."""

    def __init__(self, world: World, window: int | None, score: str, sizes: list[int] | None = None) -> None:
        self.world, self.window, self.rngs = world, window, generators_of(world.plan)
        policy = None if window is None else Window(window)
        self.sizes = [EVERY] * len(self.rngs) if sizes is None else sizes
        self.stream = Stream(Rules(world.plan, policy, world.prior, GRID, Score(score), np.array(self.sizes, np.int64)))
        self.trees = [naive.empty_tree([1.0] * world.rows.shape[1], world.domain) for _ in self.rngs]
        self.scoring = world.scoring(KINDS[score])
        self.held, self.n_seen, self.next_rebuild = [], 0, 1
        self.arrivals = []  # the number of each of the points held

    def begin_with(self, rows: list[int]) -> None:
        begin_with(self.stream, self.world.rows[rows], [None] * len(rows), np.full(len(rows), np.nan), None)
        self.held, self.n_seen, self.next_rebuild = rows[-(self.window or len(rows)) :], len(rows), 0
        self.arrivals = list(range(len(rows) - len(self.held), len(rows)))
        self._grow_again(weighting_of_rows(self.world.rows[rows], self.world.plan.n_categories))

    def advance(self, rows: list[int], *, is_scored: bool) -> None:
        X, nothing = self.world.rows[rows], [None] * len(rows)
        scores = self.stream.advance(X, nothing, np.full(len(rows), np.nan), is_scored=is_scored, n_jobs=None)
        expected = [self._come(i, is_scored) for i in rows]
        assert_scores_close(scores, expected if is_scored else [], self.scoring.kind)

    def delete(self, place: int) -> None:
        self.stream.delete([int(self.stream.store.held[place])], None)
        self._leave(place)

    def subtract(self, place: int) -> None:
        """Subtract a point from trees that keep none: no box may change, or the call must fail."""
        x = self.world.rows[self.held[place]]
        n = subtract(self.stream, x[None].copy(), None)
        assert n == all(is_spared(tree, *self.world.points(x[None])) for tree in self.trees)
        if n:
            self._leave(place)

    def _come(self, i: int, is_scored: bool) -> float | None:
        (x,) = self.world.points(self.world.rows[[i]])
        score = reference_score(self.trees, x, self.scoring) if is_scored else None
        before = [self.members(t) for t in range(len(self.trees))]
        self.held.append(i)
        self.arrivals.append(self.n_seen)
        self._keep_up(before)
        if self.window is not None and len(self.held) > self.window:
            self._leave(0)
        self.n_seen += 1
        if self.n_seen == self.next_rebuild:
            self.next_rebuild = 2 * self.next_rebuild if self.next_rebuild < WARM_UP else 0
            self._grow_again(weighting_of_rows(self.world.rows[self.held], self.world.plan.n_categories))
        return score

    def _leave(self, place: int) -> None:
        before = [self.members(t) for t in range(len(self.trees))]
        gone = self.arrivals.pop(place), self.held.pop(place)
        self._keep_up(before, gone)

    def members(self, t: int) -> list[int]:
        """Return the arrivals that tree `t` holds: those of lowest priority."""
        drawn = sorted(self.arrivals, key=lambda arrival: ticket(int(self.stream.seeds[t]), arrival))
        return sorted(drawn[: self.sizes[t]])

    def _keep_up(self, before: list[list[int]], gone: tuple[int, int] | None = None) -> None:
        """Update the sample of every tree: new points enter before others leave, deleted points leave first."""
        row_of = dict([*zip(self.arrivals, self.held, strict=True), *([gone] if gone else [])])
        for t, (tree, rng) in enumerate(zip(self.trees, self.rngs, strict=True)):
            now, limits = self.members(t), (self.world.plan.lifetime, self.world.depth)
            steps = [(naive.insert_point, set(now) - set(before[t])), (naive.delete_point, set(before[t]) - set(now))]
            for change, arrivals in reversed(steps) if gone else steps:
                for arrival in arrivals:
                    change(rng, tree, *self.world.points(self.world.rows[[row_of[arrival]]]), *limits)

    def _grow_again(self, weighting: Weighting) -> None:
        plan = self.world.plan
        weighting = weighting._replace(fixed=plan.weighting.fixed)
        times = np.minimum(GRID / weighting.unit, plan.lifetime)
        self.scoring = self.scoring._replace(lifetimes=times if self.scoring.kind in WITH_TIMES else np.empty(0))
        row_of = dict(zip(self.arrivals, self.held, strict=True))
        self.trees = [
            grown(rng, self.world.rows[[row_of[a] for a in self.members(t)]], weights_of(rng, weighting), self.world)
            for t, rng in enumerate(self.rngs)
        ]

    def assert_alike(self) -> None:
        stream = self.stream
        assert_same_trees(stream.forest, self.trees, self.rngs)
        assert stream.n_points == len(self.held)
        if stream.keeps_points:
            assert_array_equal(stream.rows, self.world.rows[self.held])
            slot_of = dict(zip(self.arrivals, stream.store.held.tolist(), strict=True))
            members = [[slot_of[arrival] for arrival in self.members(t)] for t in range(len(self.trees))]
            assert_same_lists(stream.forest, stream.points, self.trees, members)
        else:
            assert stream.points.values.size == stream.points.head.size == stream.points.links.size == 0
        if self.held and not stream.is_sampled:
            check_forest(stream.forest, self.world.rows[self.held])
        check_samples(stream)


def ticket(seed: int, arrival: int) -> int:
    """Return the priority of an arrival: half of a number of a SplitMix64 sequence."""
    word = (seed + arrival * 0x9E3779B97F4A7C15) % 2**64
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB % 2**64
    return (word ^ (word >> 31)) >> 1


def is_spared(tree: naive.Tree, x: list[float]) -> bool:
    """Return whether the leaf of `x` surely keeps its box without it."""
    j = tree.root
    while not j.is_leaf:
        j = naive.child_of(j, x)
    return j.count > 1 and all(
        isinstance(s, naive.Side) and s.low < v < s.high if s.is_live else v == s.low
        for s, v in zip(j.box, x, strict=True)
    )


@st.composite
def stream_steps(draw, n_rows):
    """Draw rows that arrive together, or the place of a point to delete (modulo their number)."""
    chunk = st.lists(st.integers(0, n_rows - 1), min_size=1, max_size=6)
    return draw(st.lists(st.one_of(chunk, chunk, st.integers(0, 11)), min_size=1, max_size=10))


def live_through(twins: StreamTwins, data, n_first: int) -> None:
    """Insert and delete points, and compare after every step."""
    n_rows = len(twins.world.rows)
    if n_first:
        twins.begin_with((np.arange(n_first) % n_rows).tolist())
        twins.assert_alike()
    for step in data.draw(stream_steps(n_rows)):
        if isinstance(step, list):
            twins.advance(step, is_scored=data.draw(st.booleans()))
        elif twins.held:
            twins.delete(step % len(twins.held))
        twins.assert_alike()


scores = st.sampled_from(list(KINDS))


@oracle
@given(world=worlds(), data=st.data(), window=st.integers(1, 6), score=scores, n_first=st.integers(0, 5))
def test_windowed_stream_matches_reference_draw_for_draw(world, data, window, score, n_first):
    live_through(StreamTwins(world, window, score), data, n_first)


@oracle
@given(
    world=worlds(),
    data=st.data(),
    window=st.integers(2, 8),
    score=scores,
    n_first=st.integers(0, 5),
    sizes=st.lists(st.sampled_from([1, 2, 3, EVERY]), min_size=N_TREES, max_size=N_TREES),
)
def test_sampled_trees_match_reference_draw_for_draw(world, data, window, score, n_first, sizes):
    live_through(StreamTwins(world, window, score, sizes), data, n_first)


capped = depths.filter(lambda depth: depth is not None)


@oracle
@given(world=worlds(max_depths=capped), data=st.data(), score=scores, n_first=st.integers(1, 12))
def test_summary_matches_reference_draw_for_draw(world, data, score, n_first):
    twins = StreamTwins(world, None, score)
    twins.begin_with((np.arange(n_first) % len(world.rows)).tolist())
    twins.assert_alike()
    for step in data.draw(stream_steps(len(world.rows))):
        if isinstance(step, list):
            twins.advance(step, is_scored=data.draw(st.booleans()))
        else:
            twins.subtract(step % len(twins.held))
        twins.assert_alike()


def test_summary_after_warm_up_matches_reference():
    rows = np.random.default_rng(1).normal(size=(WARM_UP + 40, 2)).round(1)
    plan = Plan(
        N_TREES, np.inf, 4, weighting_of_rows(rows), np.repeat(NOWHERE, 2, axis=1), np.random.SeedSequence(2), None
    )
    twins = StreamTwins(World(rows, plan, Prior(0.01, True)), None, "mass")
    twins.advance(list(range(WARM_UP - 1)), is_scored=False)
    assert twins.stream.keeps_points
    twins.assert_alike()
    twins.advance([WARM_UP - 1, *range(WARM_UP, len(rows))], is_scored=False)
    assert not twins.stream.keeps_points
    twins.assert_alike()


@pytest.mark.parametrize("max_depth", mostly_slow([None, 1, 3, 6], 0, 2))
@pytest.mark.parametrize("n_features", mostly_slow([1, 2, 4], 1))
def test_trees_after_many_updates_match_reference(n_features, max_depth):
    choices = np.random.default_rng([3, n_features])
    rows = choices.normal(size=(40, n_features))
    rows[20:30] = rows[20:30].round()  # equal coordinates
    rows[30:] = rows[:1] * choices.integers(-3, 4, size=(10, 1))  # on a line, some twice
    plan = Plan(
        N_TREES,
        np.inf if max_depth is None else 2.0,
        max_depth,
        weighting_of_rows(rows),
        np.repeat(NOWHERE, n_features, axis=1),
        np.random.SeedSequence(n_features),
        None,
    )
    steps = [int(choices.integers(40)) if goes < 0.5 else ~int(choices.integers(40)) for goes in choices.random(300)]
    history = [steps[k : k + 7] for k in range(0, len(steps), 7)]
    twins = Twins(World(rows, plan, Prior(0.01, True)), 20, most_held(history, 20))
    for chunk in history:
        twins.live_through(chunk, SCORE_NOTHING)
        twins.assert_alike()


# ---- scores of the estimator ---------------------------------------------------------------------------------------


@oracle
@given(
    rows=matrices(max_rows=12).map(lambda rows: rows.clip(-1e100, 1e100)),  # the most that detectors accept
    data=st.data(),
    window=st.integers(1, 9),
    max_depth=depths,
    score=scores,
    domain=st.sampled_from([None, "data", "given"]),
    gamma=prior_strengths,
    seed=seeds,
)
def test_scores_of_a_stream_match_the_posterior(rows, data, window, max_depth, score, domain, gamma, seed):
    """Scores are computed along the path of a row; `mass` and `tree_masses` look up the posterior of every node."""
    if domain == "given":
        low, high = rows.min(axis=0), rows.max(axis=0)
        margin = (high - low) * data.draw(st.sampled_from([0.0, 1e-12, 0.25]))
        domain = np.stack([low - margin, high + margin]).clip(-1e100, 1e100)
    tree = Tree(max_depth=max_depth, domain=domain, prior_strength=gamma)
    forest = StreamingMPF(n_estimators=7, window=window, tree=tree, score_type=score, random_state=seed)
    forest.partial_fit(rows)
    places = data.draw(st.lists(st.integers(0, forest.n_points_ - 1), unique=True, max_size=forest.n_points_ - 1))
    forest.delete([forest.keys_[place] for place in places])
    X = probes(rows, seed)
    found, masses = forest.score_samples(X), forest.tree_masses(X)
    if score == "multiscale":
        logs = log_cell_masses(forest.forest_, forest.posterior_, X, forest.lifetimes_, None)
        assert_scores_close(found, logs.mean(axis=1), SCORE_CELLS)
        assert_array_equal(forest.mass(X, forest.lifetimes_), np.exp(logs))
    elif score == "typicality":
        means = mean_log_cell_masses(forest.forest_, forest.posterior_, X, forest.lifetimes_, None)
        assert_scores_close(found, means, SCORE_LOG_CELLS)
    elif score == "mass":
        assert_scores_close(found, forest.mass(X), SCORE_MASS)
        assert_scores_close(found, masses.mean(axis=1), SCORE_MASS)
    else:
        with np.errstate(divide="ignore"):
            assert_scores_close(found, np.log(masses).mean(axis=1), SCORE_LOG_MASS)


@pytest.mark.parametrize("margin", [1e-9, 1e-12, 1e-18])
def test_scores_of_rows_close_to_the_data_match_the_posterior(margin):
    rows = np.linspace(0, 1, 20)[:, None]
    world = [[-margin], [1.0]]
    forest = StreamingMPF(
        n_estimators=5, window=50, score_type="log_mass", tree=Tree(domain=world), random_state=0
    ).fit(rows)
    x = [[-margin / 2]]
    assert_scores_close(forest.score_samples(x), np.log(forest.tree_masses(x)).mean(axis=1), SCORE_LOG_MASS)
