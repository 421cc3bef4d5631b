"""A forest that lives on a stream: trees, the points they hold, and the policy by which those come and go.

Learning writes to the arrays in place, chunk by chunk. A chunk is learned as a whole or, should the process fall over
in the middle of it, the stream refuses to go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np

from polyaforest.core import schema
from polyaforest.core.arrays import (
    EVERY,
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
    pad_points,
)
from polyaforest.core.rng import seeds_of_stream
from polyaforest.core.validation import LARGEST, all_or_nothing, read_weights
from polyaforest.decision.calibration import LEAST_ROWS
from polyaforest.decision.thresholds import Judgements, RunningCalibration
from polyaforest.forest import engine
from polyaforest.forest.integrity import POINTS_LAYOUT, Layout, check_forest, check_layout
from polyaforest.forest.point_store import Holdings, Key, Schedule
from polyaforest.forest.spec import Plan, empty_box, unmeasured, weighting_of_rows
from polyaforest.kernels.online import Limits
from polyaforest.kernels.prequential import Chunk, Scoring
from polyaforest.kernels.sampling import NO_BAR, Samples
from polyaforest.persistence.modelfile import Arrays, Header
from polyaforest.persistence.state import decode, encode, pack_keys, packed, unpack_keys, unpacked
from polyaforest.retention import Policy, Window

WARM_UP = 256  # arrivals after which the weights of features are settled
_LEAST_CHUNK, _MOST_CHUNK = 256, 4096  # rows that each tree runs through at once
_SCORES = {
    "typicality": SCORE_LOG_CELLS,
    "multiscale": SCORE_CELLS,
    "mass": SCORE_MASS,
    "log_mass": SCORE_LOG_MASS,
}
_STATE = schema.record(
    {
        "policy": schema.policy,
        "score": schema.one_of(*_SCORES),
        "max_depth": schema.either(schema.nothing, schema.whole(0, None)),
        "n_seen": schema.whole(),
        "next_birth": schema.whole(0, WARM_UP),
        "has_fixed_weights": schema.flag,
        "n_judges": schema.whole(1, None),
    },
    optional=["n_judges"],  # before there were any
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
}


class Rules(NamedTuple):
    """What a stream was begun with."""

    plan: Plan  # its features unmeasured: what was measured would tell of points after they have gone
    policy: Policy | None  # None for a summary, which keeps no points
    prior: Prior
    grid: Array  # times of the multiscale score, in units of the weighting
    score: str
    sizes: Array  # int64 (T,): the most points that each tree takes, EVERY for all that are held
    n_judges: int = LEAST_ROWS  # the most scores to compare others with


class Stream:
    """Trees that learn one point after another, and forget as exactly as they learn."""

    def __init__(self, rules: Rules) -> None:
        # generators of the trees, of policies that draw, and of the trees' tickets
        states, self.rng, self.seeds, seed = seeds_of_stream(rules.plan.seed, rules.plan.n_trees)
        rules = rules._replace(plan=rules.plan._replace(seed=seed))
        self.rules = rules
        self.lifetimes = rules.grid
        self.holdings = Holdings(rules.policy or Window(WARM_UP))
        self.forest: Forest = engine.empty_forest(rules.plan, states)
        self.points: Points = new_points(rules.plan.n_trees, self.forest.left.shape[1], 0, self.n_features)
        self.bars = np.full(rules.plan.n_trees, NO_BAR)
        self.numbers = np.empty(0, np.int64)  # the arrival of the point in each slot, NONE in a free one
        self.next_birth = 1  # the arrival after which the trees are grown anew; 0 when they no longer are
        self.in_doubt = False  # whether learning was interrupted half-way
        self.judges = RunningCalibration(rules.n_judges)  # scores of the last rows that were to be judged
        self.parting_scores = np.empty(0)  # of the points that a summary has forgotten, as `score_held` gives them

    @property
    def n_features(self) -> int:
        """Features of every point."""
        return int(self.rules.plan.domain.shape[1])

    @property
    def keeps_points(self) -> bool:
        """Whether the points held are known; a summary forgets them once it has warmed up."""
        return self.rules.policy is not None or self.next_birth > 0

    @property
    def n_points(self) -> int:
        """Points held."""
        return len(self.holdings) if self.keeps_points else int(self.forest.counts[0, self.forest.root[0]])

    @property
    def rows(self) -> Array:
        """The points held, by order of arrival."""
        return self.points.values[self.holdings.held]

    # ---- files ------------------------------------------------------------------------------------------------------

    def state(self) -> tuple[Header, Arrays]:
        """All there is to know of the stream, but for its forest."""
        rules, plan, holdings = self.rules, self.rules.plan, self.holdings
        header = {
            "policy": encode(rules.policy),
            "score": rules.score,
            "max_depth": None if plan.max_depth is None else int(plan.max_depth),
            "n_seen": holdings.n_seen,
            "next_birth": self.next_birth,
            "has_fixed_weights": plan.weighting.fixed is not None,
            "n_judges": rules.n_judges,
        }
        arrays = {
            "lifetime": np.array(plan.lifetime),
            "grid": rules.grid,
            "rng": self.rng,
            "clock": np.array(holdings.clock),
            "floor": np.array(holdings.floor),
            "arrivals": holdings.arrivals,
            "ranks": holdings.ranks,
            "times": holdings.times,
            "keys": pack_keys(holdings.held_keys),
            "fixed": np.empty(0) if plan.weighting.fixed is None else plan.weighting.fixed,
            "sizes": rules.sizes,
            "seeds": self.seeds,
            "judges": self.judges.arrivals,
            "judging": self.judges.scores,
        }
        return header, {**packed("points", self.points), **{f"stream/{name}": part for name, part in arrays.items()}}

    @classmethod
    def of_state(cls, header: Header, arrays: Arrays, forest: Forest, prior: Prior, lifetimes: Array) -> Self:
        """The stream that `state` told of, going on with `forest`."""
        part = {name.removeprefix("stream/"): array for name, array in arrays.items() if name.startswith("stream/")}
        n_features = forest.domain.shape[1]
        _STATE(header, "stream")
        n_fixed = n_features if header["has_fixed_weights"] else 0
        check_layout(part, _LAYOUT, {"T": len(forest.left), "L": len(lifetimes), "W": n_fixed})
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
        n_judges = header.get("n_judges", LEAST_ROWS)
        every = np.full(plan.n_trees, EVERY, np.int64)  # before there were samples, trees took every point
        sizes = part.get("sizes", every)
        stream.rules = Rules(plan, decode(header["policy"]), prior, part["grid"], header["score"], sizes, n_judges)
        stream.seeds = part.get("seeds", np.zeros(plan.n_trees, np.uint64))
        stream.lifetimes, stream.forest, stream.rng = lifetimes, forest, part["rng"]
        stream.points, stream.next_birth, stream.in_doubt = (
            unpacked("points", arrays, Points),
            header["next_birth"],
            False,
        )
        stream.judges = RunningCalibration.of_state(
            n_judges, part.get("judges", np.empty(0, np.int64)), part.get("judging", np.empty(0))
        )
        stream.parting_scores = np.empty(0)
        stream.holdings = Holdings(stream.rules.policy or Window(WARM_UP))
        stream.holdings.n_seen = header["n_seen"]
        stream.holdings.clock, stream.holdings.floor = float(part["clock"]), float(part["floor"])
        stream.holdings.restore(part["arrivals"], part["ranks"], part["times"], unpack_keys(part["keys"]))
        stream.numbers = part["arrivals"].copy()
        stream.check()
        stream.bars = stream._bars_now()
        return stream

    def check(self) -> None:
        """Raise unless trees, points and holdings agree with each other and with the rules."""
        plan, holdings = self.rules.plan, self.holdings
        points, held = (self.points, holdings.held) if self.keeps_points else (None, None)
        check_forest(
            self.forest,
            points=points,
            held=held,
            lifetime=plan.lifetime,
            max_depth=plan.max_depth,
            alike=not self.is_sampled,
            largest=LARGEST,
        )
        holdings.check()
        self._check_rules()
        self._check_progress()
        n_nodes, n_slots = (self.forest.left.shape[1], holdings.capacity) if self.keeps_points else (0, 0)
        lengths = {"T": plan.n_trees, "C": n_nodes, "P": n_slots, "D": self.n_features}
        check_layout(self.points._asdict(), POINTS_LAYOUT, lengths)
        if holdings.capacity != n_slots:
            raise ValueError(f"it keeps no points, but has slots for {holdings.capacity}")
        most_counted = int(self.forest.counts[np.arange(plan.n_trees), self.forest.root].max())
        if self.keeps_points and n_nodes < plan.most_nodes(max(most_counted, 1)) + engine.ROOM_TO_MOVE:
            raise ValueError(f"its trees have {n_nodes} node slots, too few for {most_counted} points to come and go")
        self._check_samples()

    def _check_rules(self) -> None:
        """Raise unless the rules are some that a stream can be begun with."""
        rules = self.rules
        if rules.policy is None and rules.plan.max_depth is None:
            raise ValueError("it keeps no points and has no max_depth, so nothing bounds its trees")
        if not rules.plan.lifetime > 0:
            raise ValueError(f"its lifetime is {rules.plan.lifetime}")
        if not self.rng.any():
            raise ValueError("the state of its generator is all zeros")
        if not ((rules.grid > 1e-6) & (rules.grid < 1e6) & (np.diff(rules.grid, prepend=0) > 0)).all():
            raise ValueError("array grid: the times of a score must ascend from 1e-6 to 1e6 at most")

    def _check_progress(self) -> None:
        """Raise unless what has come, what is held and what is to come agree."""
        n_seen, birth, arrivals = self.holdings.n_seen, self.next_birth, self.judges.arrivals
        is_due = birth & (birth - 1) == 0 and birth // 2 <= n_seen < birth  # after 1, 2, 4, ... arrivals
        if birth and not is_due:
            raise ValueError(f"its trees are to be grown anew after {birth} rows, but {n_seen} have come")
        if self.n_points > n_seen:
            raise ValueError(f"it has counted {self.n_points} points, but only {n_seen} rows have come")
        if len(arrivals) and not 0 <= arrivals[0] <= arrivals[-1] < n_seen:
            raise ValueError("it has scores of rows that have not come")

    def _check_samples(self) -> None:
        """Raise unless every tree holds the points that its tickets say."""
        sizes = self.rules.sizes
        if (sizes < 1).any() or (sizes > EVERY).any():
            raise ValueError("array sizes: trees must take at least one point")
        if not self.is_sampled:
            return
        if self.rules.policy is None:
            raise ValueError("array sizes: the trees of a summary take every point")
        is_member = self.points.links[:, self.holdings.held, 2] != NONE
        if not np.array_equal(is_member, self._is_drawn()):
            raise ValueError("its trees do not hold the points that were drawn for them")

    # ---- learning ---------------------------------------------------------------------------------------------------

    def begin_with(self, rows: Array, keys: Sequence[Key | None], times: Array, n_jobs: int | None) -> None:
        """Learn a table as if it had come row by row; features are weighed by all of it, once and for all."""
        plan = self._weigh(rows)
        self.next_birth = 0
        if self.rules.policy is None:
            self.holdings.n_seen = len(rows)
            self.forest = engine.grow_trees(rows, len(rows), plan, self.forest.rng)
            self._forget_points()
            return
        for start in range(0, len(rows), _MOST_CHUNK):
            part = slice(start, start + _MOST_CHUNK)
            self._make_slots(len(rows[part]))
            self._let_go(self._admit(rows[part], keys[part], times[part]).leaving)
        self._grow_anew(plan, n_jobs)

    def advance(
        self,
        rows: Array,
        keys: Sequence[Key | None],
        times: Array,
        *,
        is_scored: bool,
        n_jobs: int | None,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> Array:
        """Learn rows one after another, each scored first if wanted, until done or stopped; return the scores."""
        scores, start = [], 0
        while start < len(rows) and not is_stopped():
            stop = start + self._chunk_size(len(rows) - start)
            part = slice(start, stop)
            scores.append(self._learn(rows[part], keys[part], times[part], is_scored, n_jobs))
            start = stop
        return scores[0] if len(scores) == 1 else np.concatenate([*scores, np.empty(0)])

    def score(self, rows: Array, n_jobs: int | None) -> Array:
        """Score rows without learning them."""
        idle = np.full(len(rows), NONE, np.int32)
        schedule = Schedule(idle, np.zeros(len(rows), np.int32), np.empty(0, np.int32))
        return self._run(rows, schedule, self.rules.score, n_jobs, self._samples)

    def score_held(self, n_jobs: int | None, most: int) -> Array:
        """Score points held, each by the forest without it: what it would have got had it come only now.

        One point after another leaves a copy of the forest, is scored and comes back. Of many points a part, spread
        over all arrivals, tells enough: so many at most.
        """
        slots = self.holdings.held.astype(np.int32)
        if len(slots) == 0:
            return np.empty(0)
        slots = np.ascontiguousarray(slots[:: -(-len(slots) // most)])
        copy = deepcopy(self)
        others = copy._samples_without(slots[:1])
        engine.remove_points(copy.forest, copy.points, slots[:1], self._limits, n_jobs, others)
        turns = Schedule(slots, np.minimum(np.arange(1, len(slots) + 1), len(slots) - 1).astype(np.int32), slots[1:])
        return copy._run(self.points.values[slots], turns, self.rules.score, n_jobs, others)

    def judge(self, scores: Array, came: int, rate: float | None) -> Judgements:
        """The verdicts on rows that have come, the first of them as arrival `came`."""
        numbers = np.arange(came, came + len(scores))
        return self._in_own_units(scores, self.judges.judge_then_learn(self._in_logs(scores), numbers, rate))

    def verdicts(self, scores: Array, rate: float | None) -> Judgements:
        """The verdicts on rows that are not to be learned, each as if it came next."""
        return self._in_own_units(scores, self.judges.judge(self._in_logs(scores), rate))

    def _in_logs(self, scores: Array) -> Array:
        """Scores as they are compared: tails are told in logs, and ranks are the same in them."""
        if self.rules.score != "mass":
            return scores
        with np.errstate(divide="ignore"):
            logs: Array = np.log(scores)
        return logs

    def _in_own_units(self, scores: Array, judged: Judgements) -> Judgements:
        if self.rules.score != "mass":
            return judged
        return judged._replace(scores=scores, lines=np.exp(judged.lines))

    def delete(self, slots: Sequence[int], n_jobs: int | None) -> None:
        """Take points out again."""
        gone = np.array(slots, np.int32)
        with self._changing():
            self.judges.forget(self.numbers[gone].tolist())
            self.holdings.remove(slots)
            engine.remove_points(self.forest, self.points, gone, self._limits, n_jobs, self._samples_without(gone))
            self._let_go(gone)

    def subtract(self, rows: Array, n_jobs: int | None) -> int:
        """Count rows out of a summary; return the first that cannot be, or else their number. All of them or none."""
        reduced, n = engine.subtract_rows(self.forest, self.points, rows, n_jobs)
        if n == len(rows):
            self.forest = reduced
        return n

    def rebuild(self, n_jobs: int | None) -> None:
        """Weigh features anew by the points held, and grow all trees anew."""
        with all_or_nothing(self):
            plan = self._weigh(self.rows) if len(self.holdings) else self.rules.plan
            self._grow_anew(plan, n_jobs)

    def widen(self, values: Array, n_jobs: int | None) -> None:
        """Add features in which every point held has the value given, and grow the trees anew."""
        plan, n_new = self.rules.plan, len(values)
        wider = np.zeros((len(self.points.values), self.n_features + n_new))
        wider[:, :-n_new] = self.points.values
        wider[self.holdings.held, -n_new:] = values
        domain, fixed = np.hstack([plan.domain, empty_box(n_new)]), plan.weighting.fixed
        weighting = unmeasured(self.n_features + n_new, None if fixed is None else np.append(fixed, np.ones(n_new)))
        self.refuse_if_in_doubt()
        with all_or_nothing(self):
            self.points = self.points._replace(values=wider)
            self.rules = self.rules._replace(plan=plan._replace(domain=domain, weighting=weighting))
            self.rebuild(n_jobs)

    # ---- one chunk --------------------------------------------------------------------------------------------------

    def _chunk_size(self, n_rows: int) -> int:
        """Rows to run through at once: enough to pay for bringing a tree into the cache, at most to the next birth."""
        worthwhile = min(max(self.n_points, _LEAST_CHUNK), _MOST_CHUNK)
        until_birth = self.next_birth - self.holdings.n_seen if self.next_birth else n_rows
        return min(n_rows, worthwhile, until_birth)

    def _learn(
        self, rows: Array, keys: Sequence[Key | None], times: Array, is_scored: bool, n_jobs: int | None
    ) -> Array:
        self._make_slots(len(rows))
        self._make_nodes(len(rows))
        with self._changing():
            samples = self._samples
            schedule = self._admit(rows, keys, times)
            score = self.rules.score if is_scored else None
            scores = self._run(rows, schedule, score, n_jobs, samples)
            self._let_go(schedule.leaving)
            if self.holdings.n_seen == self.next_birth:
                self._give_birth(n_jobs)
        return scores

    def _admit(self, rows: Array, keys: Sequence[Key | None], times: Array) -> Schedule:
        """Decide which rows are kept and who leaves for them, and store them."""
        if not self.keeps_points:
            self.holdings.n_seen += len(rows)
            return Schedule(np.zeros(len(rows), np.int32), np.zeros(len(rows), np.int32), np.empty(0, np.int32))
        draws = engine.draw_exponentials(self.rng, len(rows)) if self.holdings.policy.is_random else np.empty(0)
        came = self.holdings.n_seen
        schedule = self.holdings.admit(keys, times, draws)
        slots, numbers = schedule.slots, np.arange(came, came + len(rows))
        if not self.holdings.takes_all:
            kept = slots != NONE
            slots, numbers, rows = slots[kept], numbers[kept], rows[kept]
        self.points.values[slots], self.numbers[slots] = rows, numbers
        return schedule

    def _run(
        self,
        rows: Array,
        schedule: Schedule,
        score: str | None,
        n_jobs: int | None,
        samples: Samples,
    ) -> Array:
        prior, domain = self.rules.prior, self.rules.plan.domain
        kind = SCORE_NOTHING if score is None else _SCORES[score]
        lifetimes = self.lifetimes if kind in (SCORE_CELLS, SCORE_LOG_CELLS) else np.empty(0)
        scoring = Scoring(kind, lifetimes, prior.strength, prior.is_open, domain)
        chunk = Chunk(rows, *schedule)
        return engine.run_chunk(self.forest, self.points, chunk, self._limits, scoring, n_jobs, samples)

    def _let_go(self, slots: Array) -> None:
        """Wipe the points that have left out of their slots."""
        self.points.values[slots], self.numbers[slots] = 0.0, NONE
        self.holdings.settle(slots.tolist())

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
        """Which of the points held, by order of arrival, each tree takes: the lowest tickets, bool (T, n)."""
        held, sizes = self.holdings.held, self.rules.sizes
        is_drawn = np.ones((len(sizes), len(held)), np.bool_)
        for size in np.unique(sizes[sizes < len(held)]):
            alike = sizes == size
            tickets = engine.tickets(self.seeds[alike], self.numbers[held])
            is_drawn[alike] = tickets <= np.partition(tickets, size - 1, axis=1)[:, size - 1 : size]
        return is_drawn

    def _bars_now(self) -> Array:
        """The highest ticket of each tree that holds as many points as it may."""
        if not self.is_sampled:
            return np.full(len(self.seeds), NO_BAR)
        tickets, is_drawn = engine.tickets(self.seeds, self.numbers[self.holdings.held]), self._is_drawn()
        highest = np.where(is_drawn, tickets, np.uint64(0)).max(axis=1, initial=0)
        return np.where(is_drawn.sum(axis=1) == self.rules.sizes, highest, NO_BAR)

    # ---- room -------------------------------------------------------------------------------------------------------

    def _make_slots(self, n_coming: int) -> None:
        """Have slots for so many more points: twice as many as before when they run out, but no more than needed."""
        needed = len(self.holdings) + n_coming
        if self.keeps_points and needed > self.holdings.capacity:
            most = (self.holdings.policy.n or np.inf) + n_coming
            n_slots = int(min(max(needed, 2 * self.holdings.capacity), most))
            points = pad_points(self.points, 0, n_slots)
            numbers = np.append(self.numbers, np.full(n_slots - len(self.numbers), NONE))
            self.holdings.make_room(n_slots)
            self.points, self.numbers = points, numbers

    def _make_nodes(self, n_coming: int) -> None:
        """Have node slots for so many more points."""
        plan, capacity = self.rules.plan, self.forest.left.shape[1] - engine.ROOM_TO_MOVE
        most_points = self._most_points + 1 if self.keeps_points else 2**30
        needed = 2 * min(self.n_points + n_coming, most_points) - 1
        if needed <= capacity or capacity >= plan.most_nodes(most_points):
            return
        n_nodes = min(max(needed, 2 * capacity), plan.most_nodes(most_points))
        engine.refuse_if_too_large(plan, n_nodes, boxed=True)
        forest = pad(self.forest, n_nodes + engine.ROOM_TO_MOVE)
        points = pad_points(self.points, n_nodes + engine.ROOM_TO_MOVE, 0) if self.keeps_points else self.points
        self.forest, self.points = forest, points

    @cached_property
    def _most_points(self) -> int:
        """The most points that a tree may come to hold."""
        return min(self.holdings.policy.n or 2**30, int(self.rules.sizes.max()))

    # ---- trees anew -------------------------------------------------------------------------------------------------

    def _give_birth(self, n_jobs: int | None) -> None:
        """Grow the trees anew while the scale of the features is still being learned: after 1, 2, 4, ... arrivals."""
        self.next_birth = 2 * self.next_birth if self.next_birth < WARM_UP else 0
        self.rebuild(n_jobs)
        if not self.keeps_points:
            self.parting_scores = self.score_held(n_jobs, WARM_UP)
            self._forget_points()

    def _weigh(self, rows: Array) -> Plan:
        """Measure the features by `rows`: sets the times of the score and returns a plan for trees, for this once."""
        weighting = weighting_of_rows(rows)._replace(fixed=self.rules.plan.weighting.fixed)
        self.lifetimes = self.rules.grid / weighting.unit
        return self.rules.plan._replace(weighting=weighting)

    def _grow_anew(self, plan: Plan, n_jobs: int | None) -> None:
        """Grow all trees from the points held, with the generators they have."""
        slots, n_nodes = self.holdings.held, self.forest.left.shape[1]
        if len(slots):
            members = _numbered(self._is_drawn())
            n_members = (members != NONE).sum(axis=1)
            forest = engine.grow_trees(self.points.values[slots], n_members, plan, self.forest.rng, members)
        else:
            members, forest = np.empty((plan.n_trees, 0), np.int64), engine.empty_forest(plan, self.forest.rng)
        self.forest = pad(forest, max(n_nodes, plan.most_nodes(max(members.shape[1], 1)) + engine.ROOM_TO_MOVE))
        in_slots = np.where(members == NONE, NONE, slots[members]) if len(slots) else members
        self.points = engine.hold_points(self.forest, self.points.values, in_slots, n_jobs)
        self.bars = self._bars_now()

    def _forget_points(self) -> None:
        """Keep the trees alone."""
        n_seen = self.holdings.n_seen
        self.holdings = Holdings(self.holdings.policy)
        self.holdings.n_seen = n_seen
        self.points = new_points(len(self.forest.left), 0, 0, self.n_features)
        self.numbers = np.empty(0, np.int64)

    def refuse_if_in_doubt(self) -> None:
        """Raise if learning was once cut short, so that the trees may disagree with the points and with each other."""
        if self.in_doubt:
            raise RuntimeError(
                "learning was interrupted half-way and the forest can no longer be trusted: load the last snapshot, or "
                "fit again"
            )

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Change the stream as a whole: what breaks off in the middle leaves it in doubt."""
        self.refuse_if_in_doubt()
        self.in_doubt = True
        yield
        self.in_doubt = False


def _numbered(is_drawn: Array) -> Array:
    """The places of the true values in each row, in order, (T, most); NONE after the last."""
    order = np.argsort(~is_drawn, axis=1, kind="stable")[:, : int(is_drawn.sum(axis=1).max())]
    return np.where(np.take_along_axis(is_drawn, order, axis=1), order, NONE)
