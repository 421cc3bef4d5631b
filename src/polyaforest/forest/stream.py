"""A forest on a stream: trees, the points they hold, and the policy that decides which points to keep.

Learning updates the arrays in place, chunk by chunk. If learning a chunk fails halfway, later calls raise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cached_property
from typing import NamedTuple

import numpy as np

from polyaforest.forest import draws, gaps, grow, imputation, learn, posterior, score
from polyaforest.forest.calibration import LEAST_ROWS, RunningCalibration, beyond_others
from polyaforest.forest.columns import LateColumns
from polyaforest.forest.margins import MOST_POINTS
from polyaforest.forest.penalties import NO_PENALTIES, Penalties
from polyaforest.forest.point_store import Key, PointStore, Schedule
from polyaforest.forest.retention import Policy, Window
from polyaforest.forest.score_types import Score
from polyaforest.forest.spec import Plan, Weighting, weighting_of_rows
from polyaforest.forest.thresholds import Detections, ThresholdPolicy, tail_step
from polyaforest.kernels.arrays import (
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
from polyaforest.kernels.online import Limits
from polyaforest.kernels.prequential import Scoring, StreamChunk
from polyaforest.kernels.rng import seeds_of_stream
from polyaforest.kernels.sampling import NO_CUTOFF, TreeSamples
from polyaforest.tables.validation import all_or_nothing

WARM_UP = 256  # arrivals after which the weights of features are fixed
_LEAST_CHUNK, _MOST_CHUNK = 256, 4096  # rows that each tree processes at a time
_FEW = 4  # points that are cleared faster one by one
_ROWS_PER_STEP = 128  # points whose scores show how their tail falls
_ARRIVALS_PER_MEASUREMENT = 1024  # arrivals between measurements of the penalties; before, after powers of two
MOST_BEYOND = 8  # rows beyond the margins after which these are out of date


class Rules(NamedTuple):
    """The parameters of a stream."""

    plan: Plan  # without measurements of features, which would reveal points after their deletion
    policy: Policy | None  # None for a summary, which keeps no points
    prior: Prior
    grid: Array  # times of the multiscale score, in units of the weighting
    score: Score
    sizes: Array  # int64 (T,): the most points of each tree, EVERY if unlimited
    n_calibration: int = LEAST_ROWS  # the most calibration scores to keep
    damping: Array | None = None  # the factor by which each feature weighs less than by its spread


class Task(NamedTuple):
    """How to process rows to be learned."""

    is_scored: bool
    is_judged: bool  # whether their scores become calibration scores
    is_marginal: bool  # whether marginal walks score rows with missing values, instead of completions


class Stream:
    """Trees that learn and delete points one at a time, exactly."""

    def __init__(self, rules: Rules) -> None:
        # generators of the trees and of the policy, and seeds of the trees' samples
        states, self.rng, self.seeds, seed = seeds_of_stream(rules.plan.seed, rules.plan.n_trees)
        rules = rules._replace(plan=rules.plan._replace(seed=seed))
        self.rules = rules
        self.lifetimes = rules.grid
        self.store = PointStore(rules.policy or Window(WARM_UP))
        self.forest: Forest = grow.empty_forest(rules.plan, states)
        self.points: Points = new_points(rules.plan.n_trees, self.forest.left.shape[1], 0, self.n_features)
        self.cutoffs = np.full(rules.plan.n_trees, NO_CUTOFF)
        self.numbers = np.empty(0, np.int64)  # the arrival of the point in each slot, NONE in a free one
        self.next_rebuild = 1  # arrivals since `origin` after which the trees are rebuilt; 0 for never
        self.origin = 0  # the first arrival of the stream, or the one with the latest first value of a column
        self.columns = LateColumns(rules.plan.domain)
        self.is_dirty = False  # whether a change is in progress or was interrupted
        self.is_frozen = False  # whether it was loaded from a file that holds trees without their points
        self.calibration = RunningCalibration(rules.n_calibration)  # log-scores of the last rows
        self.penalties = NO_PENALTIES  # as last measured
        self.n_beyond = 0  # rows learned since then that were beyond the margins

    @property
    def n_features(self) -> int:
        """Features of every point."""
        return int(self.rules.plan.domain.shape[1])

    @property
    def n_categories(self) -> int:
        """The number of categorical features, which come last."""
        return self.rules.plan.n_categories

    @property
    def keeps_points(self) -> bool:
        """Whether points are kept; a summary drops them once it has warmed up."""
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

    # ---- learning ---------------------------------------------------------------------------------------------------

    def _draw_exponentials(self, n: int) -> Array:
        """Draw from Exp(1) for each of `n` rows, if the policy needs such draws."""
        return learn.draw_exponentials(self.rng, n) if self.store.policy.is_random else np.empty(0)

    def advance(
        self,
        rows: Array,
        keys: Sequence[Key | None],
        times: Array,
        *,
        is_scored: bool,
        n_jobs: int | None,
        is_judged: bool = False,
        is_marginal: bool = False,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> Array:
        """Learn rows one after another until done or stopped; return their scores from before, if wanted.

        With `is_judged`, scores become calibration scores, so a summary needs no others to start with. Rows with
        missing values are scored by their completions, or with `is_marginal` by marginal walks.
        """
        scores, start, task = [], 0, Task(is_scored, is_judged, is_marginal)
        is_plain = self.columns.are_known and not np.isnan(rows).any()  # the common case, which must be fast
        while start < len(rows) and not is_stopped():
            is_new = None if is_plain else self._open_columns(rows[start])
            worthwhile = min(max(self.n_points, _LEAST_CHUNK), _MOST_CHUNK)  # amortises loading a tree
            coming = rows[start : start + worthwhile]
            n = len(coming) if is_plain else self._until_new_column(coming)
            stop = start + min(n, self._until_rebuild, self._until_measurement, self._until_out_of_date(coming))
            part = slice(start, stop)
            scores.append(self._learn(rows[part], is_new, keys[part], times[part], task, n_jobs))
            start = stop
        return scores[0] if len(scores) == 1 else np.concatenate([*scores, np.empty(0)])

    def score(self, rows: Array, n_jobs: int | None) -> Array:
        """Score rows without learning them."""
        idle = np.full(len(rows), NONE, np.int32)
        schedule = Schedule(idle, np.zeros(len(rows), np.int32), np.empty(0, np.int32))
        return self._run(StreamChunk(rows, *schedule), rows, self.rules.score, n_jobs, self._samples)

    def some_held(self, most: int) -> Array:
        """Return the slots of at most `most` points held, spread evenly over the arrivals."""
        slots = self.store.held.astype(np.int32)
        return slots if len(slots) <= most else slots[np.linspace(0, len(slots) - 1, most).astype(int)]

    def is_member(self, slots: Array) -> Array:
        """Return which trees have learned the points in `slots`, bool (T, n)."""
        return np.asarray(self.points.links[:, slots, 2] != NONE)

    def left_out_scores(self, n_jobs: int | None, slots: Array) -> tuple[Array, Array]:
        """Score points held, each by the forest without it; return log-scores and arrivals.

        In a copy of the forest, each point in turn is deleted, scored and inserted again.
        """
        if len(slots) == 0:
            return np.empty(0), np.empty(0, np.int64)
        copy = deepcopy(self)
        copy.penalties = self.penalties.left_out()
        others = copy._samples_without(slots[:1])
        learn.remove_points(copy.forest, copy.points, slots[:1], self._limits, n_jobs, others)
        turns = Schedule(slots, np.minimum(np.arange(1, len(slots) + 1), len(slots) - 1).astype(np.int32), slots[1:])
        rows = self.points.values[slots]
        placed = self.as_left_out(rows)
        moved = np.flatnonzero((placed != rows).any(axis=1)).tolist()
        prepared = gaps.Prepared.of(rows, gaps.Asked({i: placed[i : i + 1] for i in moved}, {}), turns)
        scored = prepared.scored
        if moved and prepared.places is not None:
            scored[prepared.places[moved] - 1] = rows[moved]  # margins do not depend on weights
        scores = prepared.scores(copy._run(prepared.chunk, scored, self.rules.score, n_jobs, others))
        return self.rules.score.to_log(scores), self.numbers[slots]

    def as_left_out(self, rows: Array) -> Array:
        """Return some of the points held as they would be placed by weights measured without them."""
        if self.rules.plan.weighting.fixed is not None:
            return rows
        return beyond_others(rows, self.rows, self.n_categories)

    def judge(self, scores: Array, policy: ThresholdPolicy, came: int | None = None) -> Detections:
        """Compare scores with the calibration scores; with `came`, add the scores of rows from that arrival on."""
        logs = self.rules.score.to_log(scores)
        if came is None:
            judged = self.calibration.judge(logs, policy)
        else:
            judged = self.calibration.judge_then_learn(logs, np.arange(came, came + len(scores)), policy)
        return judged._replace(scores=scores, thresholds=self.rules.score.from_log(judged.thresholds))

    def is_below_threshold(self, score: Array, policy: ThresholdPolicy) -> bool:
        """Return whether `judge` would flag a row with this score, (1,)."""
        return bool(self.rules.score.to_log(score).item() < self.calibration.threshold(policy))

    def judge_one(self, score: Array, policy: ThresholdPolicy, came: int) -> Detections:
        """Do what `judge` does for a single row, faster, and add its score."""
        kind = self.rules.score
        log = kind.to_log(score).item()
        p_value, threshold, bits = self.calibration.judge_one(log, came, policy)
        placed = kind.from_log(np.array([threshold]))
        return Detections(score, np.array([p_value]), np.array([log < threshold]), placed, tail_bits=np.array([bits]))

    def keep_scores(self, n: int) -> None:
        """Keep at most `n` calibration scores from now on."""
        self.calibration.resize(n)
        self.rules = self.rules._replace(n_calibration=n)

    def delete(self, slots: Sequence[int], n_jobs: int | None) -> None:
        """Delete points."""
        gone = np.array(slots, np.int32)
        self._begin_to_change()
        self.calibration.forget(self.numbers[gone].tolist())
        self.store.remove(slots)
        learn.remove_points(self.forest, self.points, gone, self._limits, n_jobs, self._samples_without(gone))
        self._let_go(gone)
        self._measure_penalties()
        self.is_dirty = False

    def rebuild(self, n_jobs: int | None) -> None:
        """Weigh features by the points held, and grow all trees from scratch."""
        with all_or_nothing(self):
            plan = self.rules.plan
            self._fill_young_columns()
            if len(self.store):
                plan = self._weigh(weighting_of_rows(self.rows, self.n_categories))
            self._grow_again(plan, n_jobs)

    # ---- one chunk --------------------------------------------------------------------------------------------------

    def _learn(
        self,
        rows: Array,
        is_new: Array | None,
        keys: Sequence[Key | None],
        times: Array,
        task: Task,
        n_jobs: int | None,
    ) -> Array:
        """Learn rows together; `is_new` are columns with their first value in the first row, None without gaps."""
        self._make_slots(len(rows))
        self._make_nodes(len(rows))
        self._begin_to_change()
        samples, is_time, came = self._samples, self._until_measurement == len(rows), self.store.n_seen
        held = None if is_new is None else self.store.held  # before any leave
        schedule = self._admit(keys, times)
        if is_new is None or held is None:
            prepared = gaps.Prepared.plain(rows, schedule)
        else:
            prepared = self._prepared(rows, is_new, held, schedule, task)
        self._keep(prepared.learned, schedule.slots, came)
        score = self.rules.score if task.is_scored else None
        scores = self._run(prepared.chunk, prepared.scored, score, n_jobs, samples)
        self._let_go(schedule.leaving)
        self.n_beyond += len(self.penalties.places_beyond(rows))
        if is_time:
            self._measure_penalties()
        elif self.n_beyond >= MOST_BEYOND:
            self._measure_margins()
        if self._until_rebuild == 0:
            self._rebuild_while_warming_up(n_jobs, task.is_judged)
        if is_new is not None:
            self._let_columns_age()
        self.is_dirty = False
        return prepared.scores(scores) if task.is_scored else scores

    def _prepared(self, rows: Array, is_new: Array, held: Array, schedule: Schedule, task: Task) -> gaps.Prepared:
        """Fill in the rows of a chunk, the first of which has the first values of new columns."""
        scored = self.columns.scored(rows)
        if is_new.any():
            scored[0, is_new] = rows[0, is_new]  # all points held have these values now
        donors = gaps.ChunkDonors(self.points.values[held], held, schedule, self.n_categories)
        how = gaps.How(task.is_scored, task.is_marginal, self.columns.is_young)
        return gaps.Prepared.of(*gaps.fill_chunk(self.columns.placed(rows), scored, donors, how), schedule)

    def _open_columns(self, row: Array) -> Array:
        """Record which columns have their first value in the next row; return them, bool (D,).

        The value replaces the placeholder of points held. The trees are rebuilt soon, to weigh the column by its scale.
        """
        columns = self.columns
        if not self.keeps_points or (columns.are_known and not np.isnan(row).any()):
            return np.zeros(len(row), np.bool_)
        self._begin_to_change()
        is_new, were_known = columns.new_in(row), columns.are_known
        if not len(self.store):
            columns.begin(row)
        elif is_new.any():
            columns.since[is_new] = self.store.n_seen
            self._move_points(is_new, row)
        if (is_new.any() or not (were_known or len(self.store))) and self.rules.policy is not None:
            self.origin, self.next_rebuild = self.store.n_seen, 1
        self.is_dirty = False
        return is_new

    def _move_points(self, is_moved: Array, row: Array) -> None:
        """Replace columns in which all points held are equal by the values of a row; the cuts do not change."""
        places = np.flatnonzero(is_moved)
        self.points.values[np.ix_(self.store.held, places)] = row[places]
        is_used = np.arange(self.forest.left.shape[1]) < self.forest.size[:, None]
        for corner in (self.forest.lower, self.forest.upper):
            corner[..., places] = np.where(is_used[..., None], row[places], corner[..., places])
        self.penalties = self.penalties.without_margins_of(places)

    def _admit(self, keys: Sequence[Key | None], times: Array) -> Schedule:
        """Decide which rows are kept and which points leave."""
        if not self.keeps_points:
            self.store.n_seen += len(keys)
            return Schedule(np.zeros(len(keys), np.int32), np.zeros(len(keys), np.int32), np.empty(0, np.int32))
        return self.store.admit(keys, times, self._draw_exponentials(len(keys)))

    def _keep(self, rows: Array, slots: Array, came: int) -> None:
        """Store rows in their slots; the first is arrival `came`."""
        if not self.keeps_points:
            return
        if len(rows) == 1:
            slot = slots[0]
            if slot != NONE:
                self.points.values[slot], self.numbers[slot] = rows[0], came
            return
        numbers = np.arange(came, came + len(rows))
        if not self.store.takes_all:
            kept = slots != NONE
            slots, numbers, rows = slots[kept], numbers[kept], rows[kept]
        self.points.values[slots], self.numbers[slots] = rows, numbers

    def _run(
        self, chunk: StreamChunk, scored: Array, score: Score | None, n_jobs: int | None, samples: TreeSamples
    ) -> Array:
        """Score and learn a chunk in all trees; `scored` are the values by which its rows are scored."""
        prior, domain = self.rules.prior, self.rules.plan.domain
        kind = SCORE_NOTHING if score is None else score.code
        lifetimes = self.lifetimes if score is not None and score.uses_cells else np.empty(0)
        scoring = Scoring(kind, lifetimes, prior.strength, prior.is_open, domain)
        scores = learn.run_chunk(self.forest, self.points, chunk, self._limits, scoring, n_jobs, samples)
        return scores if score is None else self.penalties.subtract(scores, scored)

    def _let_go(self, slots: Array) -> None:
        """Clear the slots of points that left."""
        for slot in slots.tolist() if len(slots) <= _FEW else ():
            self.points.values[slot], self.numbers[slot] = 0.0, NONE
        if len(slots) > _FEW:
            self.points.values[slots], self.numbers[slots] = 0.0, NONE
        self.store.release(slots.tolist())

    # ---- penalties and columns --------------------------------------------------------------------------------------

    def _measure_penalties(self) -> None:
        """Measure the penalties on the points held, if the score uses them."""
        self.penalties, self.n_beyond = NO_PENALTIES, 0
        if self.rules.score is Score.MARGINS and self.rules.policy is not None:
            self.penalties = Penalties.of(self._some_rows, self.n_categories, self._bits_per_step)

    def _measure_margins(self) -> None:
        """Measure the margins only, once rows beyond them have become usual."""
        self.penalties = self.penalties.with_margins_of(self._some_rows(MOST_POINTS), self.n_categories)
        self.n_beyond = 0

    def _some_rows(self, most: int) -> Array:
        return self.points.values[self.some_held(most)]

    def _bits_per_step(self) -> float:
        """Return the bits by which the share of points halves in the tail of their scores."""
        known = posterior.posterior(self.forest, self.rules.prior, n_jobs=1)
        rows = self._some_rows(_ROWS_PER_STEP)
        scores = score.row_scores(Score.TYPICALITY, self.forest, known, rows, self.lifetimes, 1)
        return float(tail_step(np.sort(scores).tolist()) / np.log(2))

    def _until_new_column(self, rows: Array) -> int:
        """Return how many of the rows can be learned before a column becomes known or ceases to be young."""
        if not self.keeps_points:
            return len(rows)
        if not len(self.store):
            return 1  # the row may not be kept
        first = self.columns.first_young
        n_young = len(rows) if first is None else first + WARM_UP - self.store.n_seen
        return min(n_young, self.columns.n_until_new(rows))

    def _let_columns_age(self) -> None:
        """End the youth of columns after `WARM_UP` arrivals; in a summary, when it drops its points."""
        if self.rules.policy is not None:
            self.columns.age(self.store.n_seen - WARM_UP)
        elif not self.keeps_points:
            self.columns.age(self.store.n_seen)

    @property
    def _until_rebuild(self) -> int:
        """Rows until the next rebuild of the trees; more than a chunk has if there is none."""
        return self.next_rebuild - (self.store.n_seen - self.origin) if self.next_rebuild else _MOST_CHUNK + 1

    def _until_out_of_date(self, rows: Array) -> int:
        """Return after how many of the next rows so many were beyond the margins that they are measured again."""
        places, n_left = self.penalties.places_beyond(rows), MOST_BEYOND - self.n_beyond
        return int(places[n_left - 1]) + 1 if len(places) >= n_left else len(rows)

    @property
    def _until_measurement(self) -> int:
        """Rows until the penalties are measured again: after 1, 2, 4, ... arrivals, then at regular intervals."""
        n = self.store.n_seen
        if n < _ARRIVALS_PER_MEASUREMENT:
            return int(1 << n.bit_length()) - n
        return _ARRIVALS_PER_MEASUREMENT - n % _ARRIVALS_PER_MEASUREMENT

    @property
    def _limits(self) -> Limits:
        return Limits(self.rules.plan.lifetime, self.rules.plan.depth_limit)

    # ---- samples ----------------------------------------------------------------------------------------------------

    @property
    def is_sampled(self) -> bool:
        """Whether trees hold samples of the points."""
        return bool((self.rules.sizes < EVERY).any())

    @property
    def _samples(self) -> TreeSamples:
        """The samples of the trees, with the points held now."""
        return TreeSamples(self.rules.sizes, self.seeds, self.cutoffs, self.numbers, self.numbers != NONE)

    def _samples_without(self, slots: Array) -> TreeSamples:
        """Return `_samples` as if the points in `slots` had left."""
        samples = self._samples
        samples.is_held[slots] = False
        return samples

    @property
    def is_drawn(self) -> Array:
        """Which points held, by order of arrival, the sample of each tree consists of, bool (T, n)."""
        return draws.are_lowest(self.seeds, self.numbers[self.store.held], self.rules.sizes)

    def current_cutoffs(self) -> Array:
        """Return the highest priority in each full tree, else NO_CUTOFF."""
        return draws.cutoffs(self.seeds, self.numbers[self.store.held], self.rules.sizes)

    # ---- capacity ---------------------------------------------------------------------------------------------------

    def _make_slots(self, n_coming: int) -> None:
        """Allocate slots for `n_coming` more points; double them when they run out, up to the maximum needed."""
        needed = len(self.store) + n_coming
        if self.keeps_points and needed > self.store.capacity:
            most = (self.store.policy.n or np.inf) + n_coming
            n_slots = int(min(max(needed, 2 * self.store.capacity), most))
            points = pad_points(self.points, 0, n_slots)
            numbers = np.append(self.numbers, np.full(n_slots - len(self.numbers), NONE))
            self.store.reserve(n_slots)
            self.points, self.numbers = points, numbers

    def _make_nodes(self, n_coming: int) -> None:
        """Allocate node slots for `n_coming` more points."""
        capacity, most_points = self.forest.left.shape[1] - grow.SPARE_NODES, self._most_points + 1
        most_points = most_points if self.keeps_points else 2**30
        needed = 2 * min(self.n_points + n_coming, most_points) - 1
        if needed <= capacity:
            return
        plan = self.rules.plan
        if capacity >= plan.most_nodes(most_points):
            return
        n_nodes = min(max(needed, 2 * capacity), plan.most_nodes(most_points))
        grow.check_forest_fits_memory(plan, n_nodes, boxed=True)
        forest = pad(self.forest, n_nodes + grow.SPARE_NODES)
        points = pad_points(self.points, n_nodes + grow.SPARE_NODES, 0) if self.keeps_points else self.points
        self.forest, self.points = forest, points

    @cached_property
    def _most_points(self) -> int:
        """The maximum number of points of a tree."""
        return min(self.store.policy.n or 2**30, int(self.rules.sizes.max()))

    # ---- rebuilding -------------------------------------------------------------------------------------------------

    def _rebuild_while_warming_up(self, n_jobs: int | None, is_judged: bool) -> None:
        """Rebuild the trees after 1, 2, 4, ... arrivals, while the scales of the features are being learned."""
        self.next_rebuild = 2 * self.next_rebuild if self.next_rebuild < WARM_UP else 0
        self.origin = self.origin if self.next_rebuild else 0
        self.rebuild(n_jobs)
        if not self.keeps_points:
            if not len(self.calibration) and not is_judged:
                self.calibration.seed(*self.left_out_scores(n_jobs, self.some_held(WARM_UP)))
            self._forget_points()

    def _fill_young_columns(self) -> None:
        """Fill in the columns of points that arrived before their first value, from later donors if there are any."""
        held = self.store.held
        is_lacking = self.numbers[held][:, None] < self.columns.since
        if is_lacking.any():
            values = self.points.values.copy()
            values[held] = imputation.fill_from_others(values[held], is_lacking, self.n_categories)
            self.points = self.points._replace(values=values)

    def _weigh(self, measured: Weighting) -> Plan:
        """Weigh the features as measured: set the times of the score, and return a plan for these trees."""
        weighting = measured._replace(fixed=self.rules.plan.weighting.fixed)
        if self.rules.damping is not None:
            weighting = weighting._replace(spread=weighting.spread * self.rules.damping)
        self.lifetimes = self.rules.grid / weighting.unit
        return self.rules.plan._replace(weighting=weighting)

    def _grow_again(self, plan: Plan, n_jobs: int | None) -> None:
        """Grow all trees from the points held, continuing their generators."""
        slots, n_nodes = self.store.held, self.forest.left.shape[1]
        if len(slots):
            members = draws.places_of(self.is_drawn)
            n_nodes = max(n_nodes, plan.most_nodes(members.shape[1]) + grow.SPARE_NODES)
            forest = grow.grow_trees(self.points.values[slots], plan, self.forest.rng, members, n_nodes)
        else:
            members, forest = np.empty((plan.n_trees, 0), np.int64), grow.empty_forest(plan, self.forest.rng)
        self.forest = pad(forest, max(n_nodes, plan.most_nodes(1) + grow.SPARE_NODES))
        in_slots = np.where(members == NONE, NONE, slots[members]) if len(slots) else members
        self.points = learn.hold_points(self.forest, self.points.values, in_slots, n_jobs)
        self.cutoffs = self.current_cutoffs()
        self._measure_penalties()

    def _forget_points(self) -> None:
        """Drop the points and keep the trees."""
        n_seen = self.store.n_seen
        self.store = PointStore(self.store.policy)
        self.store.n_seen = n_seen
        self.points = new_points(len(self.forest.left), 0, 0, self.n_features)
        self.numbers = np.empty(0, np.int64)

    # ---- snapshots --------------------------------------------------------------------------------------------------

    def twin(self) -> Stream:
        """Return a stream with the same arrays, to read trees, points and columns until this one changes."""
        twin = Stream.__new__(Stream)
        vars(twin).update(vars(self))
        return twin

    def detach(self) -> None:
        """Copy trees, points and columns before a change, so that twins keep the originals.

        Twins do not read the lists of points, the generator and the samples.
        """
        self.forest = Forest(*(part.copy() for part in self.forest))
        self.points = self.points._replace(values=self.points.values.copy())
        self.store, self.columns, self.numbers = self.store.copy(), self.columns.copy(), self.numbers.copy()

    def check_consistent(self) -> None:
        """Raise RuntimeError if a change was interrupted, so that trees and points may be inconsistent."""
        if self.is_dirty:
            raise RuntimeError(
                "learning was interrupted halfway, so the forest is inconsistent: load the last snapshot, or fit again"
            )

    def _begin_to_change(self) -> None:
        """Mark as dirty; the caller clears the mark on success."""
        self.check_consistent()
        self.is_dirty = True
