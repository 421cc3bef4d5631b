"""A forest on a stream: trees, the points they hold, and the policy by which points come and go.

Learning writes to the arrays in place, chunk by chunk. If learning a chunk fails halfway, the stream refuses
to go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np

from polyaforest.core import schema
from polyaforest.core.arrays import (
    EVERY,
    NONE,
    SCORE_NOTHING,
    Array,
    Forest,
    Points,
    Prior,
    new_points,
    pad,
    pad_points,
)
from polyaforest.core.rng import seeds_of_stream
from polyaforest.core.score import Score
from polyaforest.core.validation import LARGEST, all_or_nothing, read_weights
from polyaforest.decision.calibration import LEAST_ROWS, RunningCalibration
from polyaforest.decision.thresholds import Detections, ThresholdPolicy
from polyaforest.forest import grow, learn
from polyaforest.forest.integrity import POINTS_LAYOUT, Layout, check_forest, check_layout
from polyaforest.forest.point_store import Key, PointStore, Schedule
from polyaforest.forest.spec import Plan, empty_box, unmeasured, weighting_of_rows
from polyaforest.kernels.online import Limits
from polyaforest.kernels.prequential import Chunk, Scoring
from polyaforest.kernels.sampling import NO_BAR, Samples
from polyaforest.persistence.modelfile import Arrays, Header
from polyaforest.persistence.state import decode, encode, pack_keys, packed, unpack_keys, unpacked
from polyaforest.retention import Policy, Window

WARM_UP = 256  # arrivals after which the weights of features are settled
_LEAST_CHUNK, _MOST_CHUNK = 256, 4096  # rows that each tree runs through at once
_STATE = schema.record(
    {
        "policy": schema.policy,
        "score": schema.one_of(*Score),
        "max_depth": schema.either(schema.nothing, schema.whole(0, None)),
        "n_seen": schema.whole(),
        "next_birth": schema.whole(0, WARM_UP),
        "has_fixed_weights": schema.flag,
        "n_judges": schema.whole(1, None),
        "is_seeded": schema.flag,
    },
    optional=["n_judges", "is_seeded"],  # absent from older files
)
_LAYOUT: Layout = {  # T trees, D features, P slots for points, L times of the score, J scores; W weights, K bytes
    "lifetime": (np.float64, ""),
    "grid": (np.float64, "L"),
    "rng": (np.uint64, "4"),
    "clock": (np.float64, ""),
    "floor": (np.float64, ""),
    "arrivals": (np.int64, "P"),
    "ranks": (np.float64, "P"),
    "times": (np.float64, "P"),
    "keys": (np.uint8, "K"),
    "fixed": (np.float64, "W"),
    "sizes": (np.int64, "T"),
    "seeds": (np.uint64, "T"),
    "judges": (np.int64, "J"),
    "judging": (np.float64, "J"),
    "damping": (np.float64, "D"),
}


class Rules(NamedTuple):
    """What a stream was begun with."""

    plan: Plan  # its features unmeasured: what was measured would tell of points after they have gone
    policy: Policy | None  # None for a summary, which keeps no points
    prior: Prior
    grid: Array  # times of the multiscale score, in units of the weighting
    score: Score
    sizes: Array  # int64 (T,): the most points that each tree takes, EVERY for all that are held
    n_calibration: int = LEAST_ROWS  # the most calibration scores to keep
    damping: Array | None = None  # by which factor each feature weighs less than by its spread


class Stream:
    """Trees that learn one point after another, and forget as exactly as they learn."""

    def __init__(self, rules: Rules) -> None:
        # generators of the trees, of policies that draw, and of the trees' priorities
        states, self.rng, self.seeds, seed = seeds_of_stream(rules.plan.seed, rules.plan.n_trees)
        rules = rules._replace(plan=rules.plan._replace(seed=seed))
        self.rules = rules
        self.lifetimes = rules.grid
        self.store = PointStore(rules.policy or Window(WARM_UP))
        self.forest: Forest = grow.empty_forest(rules.plan, states)
        self.points: Points = new_points(rules.plan.n_trees, self.forest.left.shape[1], 0, self.n_features)
        self.bars = np.full(rules.plan.n_trees, NO_BAR)
        self.numbers = np.empty(0, np.int64)  # the arrival of the point in each slot, NONE in a free one
        self.next_rebuild = 1  # the arrival after which the trees are grown anew; 0 when they no longer are
        self.in_doubt = False  # whether learning was interrupted half-way
        self.is_frozen = False  # whether it came from a file that holds trees without their points
        self.calibration = RunningCalibration(rules.n_calibration)  # log-scores of the last rows that were judged

    @property
    def n_features(self) -> int:
        """Features of every point."""
        return int(self.rules.plan.domain.shape[1])

    @property
    def keeps_points(self) -> bool:
        """Whether the points held are known; a summary forgets them once it has warmed up."""
        return self.rules.policy is not None or self.next_rebuild > 0

    @property
    def n_points(self) -> int:
        """Points held."""
        if self.keeps_points:
            return len(self.store)
        return int(self.forest.counts[np.arange(len(self.forest.root)), self.forest.root].max())

    @property
    def rows(self) -> Array:
        """The points held, by order of arrival."""
        return self.points.values[self.store.held]

    @property
    def ring(self) -> Array:
        """The points held, in an order in which a point that comes to a full window takes the place of the oldest."""
        held = self.store.held
        return self.points.values[held[np.argsort(self.numbers[held] % max(len(held), 1), kind="stable")]]

    # ---- files ------------------------------------------------------------------------------------------------------

    def state(self) -> tuple[Header, Arrays]:
        """Return the state of the stream, without its forest."""
        rules, plan, store = self.rules, self.rules.plan, self.store
        header = {
            "policy": encode(rules.policy),
            "score": rules.score,
            "max_depth": None if plan.max_depth is None else int(plan.max_depth),
            "n_seen": store.n_seen,
            "next_birth": self.next_rebuild,
            "has_fixed_weights": plan.weighting.fixed is not None,
            "n_judges": rules.n_calibration,
            "is_seeded": self.calibration.is_seeded,
        }
        arrays = {
            "lifetime": np.array(plan.lifetime),
            "grid": rules.grid,
            "rng": self.rng,
            "clock": np.array(store.clock),
            "floor": np.array(store.floor),
            "arrivals": store.arrivals,
            "ranks": store.ranks,
            "times": store.times,
            "keys": pack_keys(store.held_keys),
            "fixed": np.empty(0) if plan.weighting.fixed is None else plan.weighting.fixed,
            "sizes": rules.sizes,
            "seeds": self.seeds,
            "judges": self.calibration.arrivals,
            "judging": self.calibration.scores,
        }
        if rules.damping is not None:
            arrays["damping"] = rules.damping
        return header, {**packed("points", self.points), **{f"stream/{name}": part for name, part in arrays.items()}}

    @classmethod
    def of_state(cls, header: Header, arrays: Arrays, forest: Forest, prior: Prior, lifetimes: Array) -> Self:
        """Return the stream with a state from `state`, continuing with `forest`."""
        part = {name.removeprefix("stream/"): array for name, array in arrays.items() if name.startswith("stream/")}
        n_features = forest.domain.shape[1]
        _STATE(header, "stream")
        n_fixed = n_features if header["has_fixed_weights"] else 0
        check_layout(part, _LAYOUT, {"T": len(forest.left), "D": n_features, "L": len(lifetimes), "W": n_fixed})
        weighting = unmeasured(n_features, read_weights(part["fixed"], n_features) if n_fixed else None)
        plan = Plan(
            len(forest.left),
            float(part["lifetime"]),
            header["max_depth"],
            weighting,
            forest.domain,
            np.random.SeedSequence(),  # has served: the generators that it made are in the forest
            None,
        )
        stream = cls.__new__(cls)
        n_calibration = header.get("n_judges", LEAST_ROWS)
        every = np.full(plan.n_trees, EVERY, np.int64)  # before there were samples, trees took every point
        sizes = part.get("sizes", every)
        score = Score(header["score"])
        damping = part.get("damping")
        if damping is not None and not ((damping >= 1) & (damping < np.inf)).all():
            raise ValueError("array damping: a feature can only weigh less, by a finite factor")
        stream.rules = Rules(plan, decode(header["policy"]), prior, part["grid"], score, sizes, n_calibration, damping)
        stream.seeds = part.get("seeds", np.zeros(plan.n_trees, np.uint64))
        stream.lifetimes, stream.forest, stream.rng = lifetimes, forest, part["rng"]
        stream.points, stream.next_rebuild = unpacked("points", arrays, Points), header["next_birth"]
        stream.in_doubt = stream.is_frozen = False
        stream.calibration = RunningCalibration.of_state(
            n_calibration,
            part.get("judges", np.empty(0, np.int64)),
            part.get("judging", np.empty(0)),
            is_seeded=header.get("is_seeded", False),
        )
        stream.store = PointStore(stream.rules.policy or Window(WARM_UP))
        stream.store.n_seen = header["n_seen"]
        stream.store.clock, stream.store.floor = float(part["clock"]), float(part["floor"])
        stream.store.restore(part["arrivals"], part["ranks"], part["times"], unpack_keys(part["keys"]))
        stream.numbers = part["arrivals"].copy()
        stream.check()
        stream.bars = stream._bars_now()
        return stream

    @classmethod
    def frozen(cls, rules: Rules, forest: Forest, lifetimes: Array, calibration: Array) -> Self:
        """Return a stream that only scores: trees of earlier formats, each of rows of its own, without the rows."""
        stream = cls(rules)
        stream.is_frozen, stream.forest, stream.lifetimes, stream.next_rebuild = True, forest, lifetimes, 0
        stream._forget_points()
        if len(calibration):
            stream.calibration.seed(calibration, np.arange(len(calibration)))
        stream.check()
        return stream

    def check(self) -> None:
        """Raise unless trees, points and store agree with each other and with the rules."""
        if self.is_frozen:
            check_forest(self.forest, alike=False, largest=LARGEST)
            return
        plan, store = self.rules.plan, self.store
        points, held = (self.points, store.held) if self.keeps_points else (None, None)
        check_forest(
            self.forest,
            points=points,
            held=held,
            lifetime=plan.lifetime,
            max_depth=plan.max_depth,
            alike=not self.is_sampled,
            largest=LARGEST,
        )
        store.check()
        self._check_rules_and_progress()
        n_nodes, n_slots = (self.forest.left.shape[1], store.capacity) if self.keeps_points else (0, 0)
        lengths = {"T": plan.n_trees, "C": n_nodes, "P": n_slots, "D": self.n_features}
        check_layout(self.points._asdict(), POINTS_LAYOUT, lengths)
        if store.capacity != n_slots:
            raise ValueError(f"it keeps no points, but has slots for {store.capacity}")
        most_counted = int(self.forest.counts[np.arange(plan.n_trees), self.forest.root].max())
        if self.keeps_points and n_nodes < plan.most_nodes(max(most_counted, 1)) + grow.SPARE_NODES:
            raise ValueError(f"its trees have {n_nodes} node slots, too few for {most_counted} points to come and go")
        self._check_samples()

    def _check_rules_and_progress(self) -> None:
        """Raise unless a stream can be begun with the rules, and what has come, is held and is to come agree."""
        rules = self.rules
        if rules.policy is None and rules.plan.max_depth is None:
            raise ValueError("it keeps no points and has no max_depth, so nothing bounds its trees")
        if not rules.plan.lifetime > 0:
            raise ValueError(f"its lifetime is {rules.plan.lifetime}")
        if not self.rng.any():
            raise ValueError("the state of its generator is all zeros")
        if not ((rules.grid > 1e-6) & (rules.grid < 1e6) & (np.diff(rules.grid, prepend=0) > 0)).all():
            raise ValueError("array grid: the times of a score must ascend from 1e-6 to 1e6 at most")
        n_seen, due, arrivals = self.store.n_seen, self.next_rebuild, self.calibration.arrivals
        is_due = due & (due - 1) == 0 and due // 2 <= n_seen < due  # after 1, 2, 4, ... arrivals
        if due and not is_due:
            raise ValueError(f"its trees are to be rebuilt after {due} rows, but {n_seen} have come")
        if self.n_points > n_seen:
            raise ValueError(f"it has counted {self.n_points} points, but only {n_seen} rows have come")
        if len(arrivals) and not 0 <= arrivals[0] <= arrivals[-1] < n_seen:
            raise ValueError("it has scores of rows that have not come")

    def _check_samples(self) -> None:
        """Raise unless every tree holds the points of lowest priority."""
        sizes = self.rules.sizes
        if (sizes < 1).any() or (sizes > EVERY).any():
            raise ValueError("array sizes: trees must take at least one point")
        if not self.is_sampled:
            return
        if self.rules.policy is None:
            raise ValueError("array sizes: the trees of a summary take every point")
        if not np.array_equal(self.is_member(self.store.held), self._is_drawn()):
            raise ValueError("its trees do not hold the points that were drawn for them")

    # ---- learning ---------------------------------------------------------------------------------------------------

    def begin_with(self, rows: Array, keys: Sequence[Key | None], times: Array, n_jobs: int | None) -> None:
        """Learn a table as if it had come row by row; features are weighed by all of it, once and for all."""
        plan = self._weigh(rows)
        self.next_rebuild = 0
        if self.rules.policy is None:
            self.store.n_seen = len(rows)
            self.forest = grow.grow_trees(rows, plan, self.forest.rng)
            self._forget_points()
            return
        draws = learn.draw_exponentials(self.rng, len(rows)) if self.store.policy.is_random else np.empty(0)
        kept = self.store.begin_with(keys, times, draws)
        self.points = pad_points(self.points, 0, len(kept))
        self.numbers = kept.copy()
        self.points.values[:] = rows[kept]
        self._grow_anew(plan, n_jobs)

    def advance(
        self,
        rows: Array,
        keys: Sequence[Key | None],
        times: Array,
        *,
        is_scored: bool,
        n_jobs: int | None,
        is_judged: bool = False,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> Array:
        """Learn rows one after another, each scored first if wanted, until done or stopped; return the scores.

        Scores of rows that are judged are calibration scores, so a summary needs no others to begin with.
        """
        scores, start = [], 0
        while start < len(rows) and not is_stopped():
            worthwhile = min(max(self.n_points, _LEAST_CHUNK), _MOST_CHUNK)  # to amortise loading a tree
            until_rebuild = self.next_rebuild - self.store.n_seen if self.next_rebuild else _MOST_CHUNK
            stop = start + min(len(rows) - start, worthwhile, until_rebuild)
            part = slice(start, stop)
            scores.append(self._learn(rows[part], keys[part], times[part], is_scored, is_judged, n_jobs))
            start = stop
        return scores[0] if len(scores) == 1 else np.concatenate([*scores, np.empty(0)])

    def score(self, rows: Array, n_jobs: int | None) -> Array:
        """Score rows without learning them."""
        idle = np.full(len(rows), NONE, np.int32)
        schedule = Schedule(idle, np.zeros(len(rows), np.int32), np.empty(0, np.int32))
        return self._run(rows, schedule, self.rules.score, n_jobs, self._samples)

    def some_held(self, most: int) -> Array:
        """Return the slots of points held, at most `most` of them, spread evenly over the arrivals."""
        slots = self.store.held.astype(np.int32)
        return slots if len(slots) <= most else slots[np.linspace(0, len(slots) - 1, most).astype(int)]

    def is_member(self, slots: Array) -> Array:
        """Return which trees have learned the points in `slots`, bool (T, n)."""
        return np.asarray(self.points.links[:, slots, 2] != NONE)

    def left_out_scores(self, n_jobs: int | None, most: int) -> tuple[Array, Array]:
        """Score points held, each by the forest without it; return log-scores and arrivals, at most `most` of each.

        One point after another leaves a copy of the forest, is scored and comes back.
        """
        slots = self.some_held(most)
        if len(slots) == 0:
            return np.empty(0), np.empty(0, np.int64)
        copy = deepcopy(self)
        others = copy._samples_without(slots[:1])
        learn.remove_points(copy.forest, copy.points, slots[:1], self._limits, n_jobs, others)
        turns = Schedule(slots, np.minimum(np.arange(1, len(slots) + 1), len(slots) - 1).astype(np.int32), slots[1:])
        scores = copy._run(self.points.values[slots], turns, self.rules.score, n_jobs, others)
        return self.rules.score.to_log(scores), self.numbers[slots]

    def judge(self, scores: Array, policy: ThresholdPolicy, came: int | None = None) -> Detections:
        """Compare scores with the calibration scores, which those of rows that came, from arrival `came` on, join."""
        logs = self.rules.score.to_log(scores)
        if came is None:
            judged = self.calibration.judge(logs, policy)
        else:
            judged = self.calibration.judge_then_learn(logs, np.arange(came, came + len(scores)), policy)
        return judged._replace(scores=scores, thresholds=self.rules.score.from_log(judged.thresholds))

    def delete(self, slots: Sequence[int], n_jobs: int | None) -> None:
        """Delete points."""
        gone = np.array(slots, np.int32)
        self._begin_to_change()
        self.calibration.forget(self.numbers[gone].tolist())
        self.store.remove(slots)
        learn.remove_points(self.forest, self.points, gone, self._limits, n_jobs, self._samples_without(gone))
        self._let_go(gone)
        self.in_doubt = False

    def subtract(self, rows: Array, n_jobs: int | None) -> int:
        """Count rows out of a summary; return the first that cannot be, or else their number. All of them or none."""
        reduced, n = learn.subtract_rows(self.forest, self.points, rows, n_jobs)
        if n == len(rows):
            self.forest = reduced
        return n

    def rebuild(self, n_jobs: int | None) -> None:
        """Weigh features anew by the points held, and grow all trees anew."""
        with all_or_nothing(self):
            plan = self._weigh(self.rows) if len(self.store) else self.rules.plan
            self._grow_anew(plan, n_jobs)

    def widen(self, values: Array, n_jobs: int | None) -> None:
        """Add features in which every point held has the value given, and grow the trees anew."""
        plan, n_new = self.rules.plan, len(values)
        wider = np.zeros((len(self.points.values), self.n_features + n_new))
        wider[:, :-n_new] = self.points.values
        wider[self.store.held, -n_new:] = values
        domain, fixed = np.hstack([plan.domain, empty_box(n_new)]), plan.weighting.fixed
        weighting = unmeasured(self.n_features + n_new, None if fixed is None else np.append(fixed, np.ones(n_new)))
        self.refuse_if_in_doubt()
        with all_or_nothing(self):
            self.points = self.points._replace(values=wider)
            self.rules = self.rules._replace(plan=plan._replace(domain=domain, weighting=weighting))
            self.rebuild(n_jobs)

    def amend(self, first: int, values: Array, n_jobs: int | None) -> None:
        """Replace features of the points held, from the `first` on, by `values`, and grow the trees anew."""
        amended = self.points.values.copy()
        amended[self.store.held, first : first + values.shape[1]] = values
        self.refuse_if_in_doubt()
        with all_or_nothing(self):
            self.points = self.points._replace(values=amended)
            self.rebuild(n_jobs)

    # ---- one chunk --------------------------------------------------------------------------------------------------

    def _learn(
        self,
        rows: Array,
        keys: Sequence[Key | None],
        times: Array,
        is_scored: bool,
        is_judged: bool,
        n_jobs: int | None,
    ) -> Array:
        self._make_slots(len(rows))
        self._make_nodes(len(rows))
        self._begin_to_change()
        samples = self._samples
        schedule = self._admit(rows, keys, times)
        score = self.rules.score if is_scored else None
        scores = self._run(rows, schedule, score, n_jobs, samples)
        self._let_go(schedule.leaving)
        if self.store.n_seen == self.next_rebuild:
            self._rebuild_while_warming_up(n_jobs, is_judged)
        self.in_doubt = False
        return scores

    def _admit(self, rows: Array, keys: Sequence[Key | None], times: Array) -> Schedule:
        """Decide which rows are kept and who leaves for them, and store them."""
        if not self.keeps_points:
            self.store.n_seen += len(rows)
            return Schedule(np.zeros(len(rows), np.int32), np.zeros(len(rows), np.int32), np.empty(0, np.int32))
        draws = learn.draw_exponentials(self.rng, len(rows)) if self.store.policy.is_random else np.empty(0)
        came = self.store.n_seen
        schedule = self.store.admit(keys, times, draws)
        slots, numbers = schedule.slots, np.arange(came, came + len(rows))
        if not self.store.takes_all:
            kept = slots != NONE
            slots, numbers, rows = slots[kept], numbers[kept], rows[kept]
        self.points.values[slots], self.numbers[slots] = rows, numbers
        return schedule

    def _run(
        self,
        rows: Array,
        schedule: Schedule,
        score: Score | None,
        n_jobs: int | None,
        samples: Samples,
    ) -> Array:
        prior, domain = self.rules.prior, self.rules.plan.domain
        kind = SCORE_NOTHING if score is None else score.code
        lifetimes = self.lifetimes if score is not None and score.uses_cells else np.empty(0)
        scoring = Scoring(kind, lifetimes, prior.strength, prior.is_open, domain)
        chunk = Chunk(rows, *schedule)
        return learn.run_chunk(self.forest, self.points, chunk, self._limits, scoring, n_jobs, samples)

    def _let_go(self, slots: Array) -> None:
        """Clear the slots of points that have left."""
        if len(slots):
            self.points.values[slots], self.numbers[slots] = 0.0, NONE
            self.store.settle(slots.tolist())

    @property
    def _limits(self) -> Limits:
        return Limits(self.rules.plan.lifetime, self.rules.plan.depth_limit)

    # ---- samples ----------------------------------------------------------------------------------------------------

    @property
    def is_sampled(self) -> bool:
        """Whether trees take samples of their own from the points held."""
        return bool((self.rules.sizes < EVERY).any())

    @property
    def _samples(self) -> Samples:
        """What decides which points trees take, with the points held now."""
        return Samples(self.rules.sizes, self.seeds, self.bars, self.numbers, self.numbers != NONE)

    def _samples_without(self, slots: Array) -> Samples:
        """As `_samples`, as if the points in `slots` had left."""
        samples = self._samples
        samples.is_held[slots] = False
        return samples

    def _is_drawn(self) -> Array:
        """Return which of the points held, by order of arrival, each tree takes: the lowest priorities, bool (T, n)."""
        held, sizes = self.store.held, self.rules.sizes
        is_drawn = np.ones((len(sizes), len(held)), np.bool_)
        for size in np.unique(sizes[sizes < len(held)]):
            alike = sizes == size
            priorities = learn.priorities(self.seeds[alike], self.numbers[held])
            is_drawn[alike] = priorities <= np.partition(priorities, size - 1, axis=1)[:, size - 1 : size]
        return is_drawn

    def _bars_now(self) -> Array:
        """Return the highest priority in each tree that is full."""
        if not self.is_sampled:
            return np.full(len(self.seeds), NO_BAR)
        priorities, is_drawn = learn.priorities(self.seeds, self.numbers[self.store.held]), self._is_drawn()
        highest = np.where(is_drawn, priorities, np.uint64(0)).max(axis=1, initial=0)
        return np.where(is_drawn.sum(axis=1) == self.rules.sizes, highest, NO_BAR)

    # ---- capacity ---------------------------------------------------------------------------------------------------

    def _make_slots(self, n_coming: int) -> None:
        """Provide slots for `n_coming` more points, doubling them as they run out, up to what is needed."""
        needed = len(self.store) + n_coming
        if self.keeps_points and needed > self.store.capacity:
            most = (self.store.policy.n or np.inf) + n_coming
            n_slots = int(min(max(needed, 2 * self.store.capacity), most))
            points = pad_points(self.points, 0, n_slots)
            numbers = np.append(self.numbers, np.full(n_slots - len(self.numbers), NONE))
            self.store.reserve(n_slots)
            self.points, self.numbers = points, numbers

    def _make_nodes(self, n_coming: int) -> None:
        """Provide node slots for `n_coming` more points."""
        plan, capacity = self.rules.plan, self.forest.left.shape[1] - grow.SPARE_NODES
        most_points = self._most_points + 1 if self.keeps_points else 2**30
        needed = 2 * min(self.n_points + n_coming, most_points) - 1
        if needed <= capacity or capacity >= plan.most_nodes(most_points):
            return
        n_nodes = min(max(needed, 2 * capacity), plan.most_nodes(most_points))
        grow.refuse_if_too_large(plan, n_nodes, boxed=True)
        forest = pad(self.forest, n_nodes + grow.SPARE_NODES)
        points = pad_points(self.points, n_nodes + grow.SPARE_NODES, 0) if self.keeps_points else self.points
        self.forest, self.points = forest, points

    @cached_property
    def _most_points(self) -> int:
        """The most points that a tree may come to hold."""
        return min(self.store.policy.n or 2**30, int(self.rules.sizes.max()))

    # ---- trees anew -------------------------------------------------------------------------------------------------

    def _rebuild_while_warming_up(self, n_jobs: int | None, is_judged: bool) -> None:
        """Rebuild the trees after 1, 2, 4, ... arrivals, while the scale of the features is still being learned."""
        self.next_rebuild = 2 * self.next_rebuild if self.next_rebuild < WARM_UP else 0
        self.rebuild(n_jobs)
        if not self.keeps_points:
            if not len(self.calibration) and not is_judged:
                self.calibration.seed(*self.left_out_scores(n_jobs, WARM_UP))
            self._forget_points()

    def _weigh(self, rows: Array) -> Plan:
        """Measure the features by `rows`: sets the times of the score and returns a plan for trees, for this once."""
        weighting = weighting_of_rows(rows)._replace(fixed=self.rules.plan.weighting.fixed)
        if self.rules.damping is not None:
            weighting = weighting._replace(spread=weighting.spread * self.rules.damping)
        self.lifetimes = self.rules.grid / weighting.unit
        return self.rules.plan._replace(weighting=weighting)

    def _grow_anew(self, plan: Plan, n_jobs: int | None) -> None:
        """Grow all trees from the points held, with the generators they have."""
        slots, n_nodes = self.store.held, self.forest.left.shape[1]
        if len(slots):
            members = _numbered(self._is_drawn())
            forest = grow.grow_trees(self.points.values[slots], plan, self.forest.rng, members)
        else:
            members, forest = np.empty((plan.n_trees, 0), np.int64), grow.empty_forest(plan, self.forest.rng)
        self.forest = pad(forest, max(n_nodes, plan.most_nodes(max(members.shape[1], 1)) + grow.SPARE_NODES))
        in_slots = np.where(members == NONE, NONE, slots[members]) if len(slots) else members
        self.points = learn.hold_points(self.forest, self.points.values, in_slots, n_jobs)
        self.bars = self._bars_now()

    def _forget_points(self) -> None:
        """Keep the trees alone."""
        n_seen = self.store.n_seen
        self.store = PointStore(self.store.policy)
        self.store.n_seen = n_seen
        self.points = new_points(len(self.forest.left), 0, 0, self.n_features)
        self.numbers = np.empty(0, np.int64)

    def refuse_if_in_doubt(self) -> None:
        """Raise if learning was once cut short, so that the trees may disagree with the points and with each other."""
        if self.in_doubt:
            raise RuntimeError(
                "learning was interrupted half-way and the forest can no longer be trusted: load the last snapshot, or "
                "fit again"
            )

    def _begin_to_change(self) -> None:
        """Be in doubt until a change is complete: whoever begins it says so, and a failure halfway does not."""
        self.refuse_if_in_doubt()
        self.in_doubt = True


def _numbered(is_drawn: Array) -> Array:
    """Return the places of the true values in each row, in order, (T, most); NONE after the last."""
    order = np.argsort(~is_drawn, axis=1, kind="stable")[:, : int(is_drawn.sum(axis=1).max())]
    return np.where(np.take_along_axis(is_drawn, order, axis=1), order, NONE)
