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
from polyaforest.forest.integrity import POINTS_LAYOUT, check_forest, check_layout, check_sample_sizes
from polyaforest.forest.margins import MOST_POINTS, Margins
from polyaforest.forest.pairs import MOST_POINTS as MOST_IN_PAIRS
from polyaforest.forest.pairs import Pairs
from polyaforest.forest.point_store import Key, Labels, PointStore, Schedule
from polyaforest.forest.retention import Policy, Window
from polyaforest.forest.score_types import Score
from polyaforest.forest.spec import Plan, Weighting, unmeasured, weighting_of_rows
from polyaforest.forest.thresholds import Detections, ThresholdPolicy, tail_step
from polyaforest.kernels.arrays import (
    EVERY,
    NONE,
    SCORE_NOTHING,
    Array,
    Forest,
    Points,
    Prior,
    is_ascending,
    new_points,
    pad,
    pad_points,
)
from polyaforest.kernels.boxes import empty_box
from polyaforest.kernels.online import Limits
from polyaforest.kernels.prequential import Scoring, StreamChunk
from polyaforest.kernels.rng import seeds_of_stream
from polyaforest.kernels.sampling import NO_CUTOFF, TreeSamples
from polyaforest.tables.validation import LARGEST, all_or_nothing

WARM_UP = 256  # arrivals after which the weights of features are fixed
_LEAST_CHUNK, _MOST_CHUNK = 256, 4096  # rows that each tree processes at a time
_FEW = 4  # points that are cleared faster one by one
_ROWS_PER_STEP = 128  # points whose scores show how their tail falls
_ARRIVALS_PER_MARGINS = 1024  # arrivals between measurements of the margins; before, after powers of two


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
        self.margins: Margins | None = None  # as last measured
        self.pairs: Pairs | None = None  # of values that rarely occur together, measured with the margins

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

    @property
    def ring(self) -> Array:
        """The points held, ordered so that a new point of a full window takes the place of the oldest."""
        held = self.store.held
        return self.points.values[held[np.argsort(self.numbers[held] % max(len(held), 1), kind="stable")]]

    # ---- checks -----------------------------------------------------------------------------------------------------

    def check(self, *, is_derived: bool = False) -> None:
        """Raise ValueError if trees, points, store or rules are inconsistent.

        With `is_derived`, skip checks of trees that were derived from the points.
        """
        if self.is_frozen:
            check_forest(self.forest, alike=False, largest=LARGEST)
            return
        plan, store = self.rules.plan, self.store
        if not is_derived:
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
            raise ValueError(f"the stream keeps no points, but has slots for {store.capacity}")
        most_counted = int(self.forest.counts[np.arange(plan.n_trees), self.forest.root].max())
        if self.keeps_points and n_nodes < plan.most_nodes(max(most_counted, 1)) + grow.SPARE_NODES:
            raise ValueError(f"the trees have {n_nodes} node slots, too few for {most_counted} points")
        if not is_derived:
            self._check_samples()

    def _check_rules_and_progress(self) -> None:
        """Raise ValueError if the rules are invalid, or the counts of rows are inconsistent."""
        rules = self.rules
        if rules.policy is None and rules.plan.max_depth is None:
            raise ValueError("the stream keeps no points and has no max_depth, so its trees are unbounded")
        check_sample_sizes(rules.sizes)
        if rules.policy is None and self.is_sampled:
            raise ValueError("array sizes: the trees of a summary must take every point")
        if not rules.plan.lifetime > 0:
            raise ValueError(f"the lifetime must be positive; got {rules.plan.lifetime}")
        if not self.rng.any():
            raise ValueError("the state of the generator is all zeros")
        if not ((rules.grid > 1e-6) & (rules.grid < 1e6)).all() or not is_ascending(rules.grid):
            raise ValueError("array grid: times must increase strictly, between 1e-6 and 1e6")
        n_seen, due, arrivals = self.store.n_seen, self.next_rebuild, self.calibration.arrivals
        is_due = due & (due - 1) == 0 and due // 2 <= n_seen - self.origin < due  # after 1, 2, 4, ... arrivals
        if (due or self.origin) and not is_due:
            raise ValueError(f"the next rebuild of the trees is due after {due} rows, but {n_seen} have arrived")
        if self.n_points > n_seen:
            raise ValueError(f"the trees have counted {self.n_points} points, but only {n_seen} rows have arrived")
        self.columns.check(n_seen, self.rows if self.keeps_points else np.empty((0, self.n_features)))
        if len(arrivals) and not 0 <= arrivals[0] <= arrivals[-1] < n_seen:
            raise ValueError("there are calibration scores of rows that have not arrived")

    def _check_samples(self) -> None:
        """Raise ValueError unless every tree holds the points of lowest priority."""
        if self.is_sampled and not np.array_equal(self.is_member(self.store.held), self._is_drawn()):
            raise ValueError("the trees do not hold their samples of points")

    # ---- learning ---------------------------------------------------------------------------------------------------

    def begin_with(self, rows: Array, keys: Sequence[Key | None], times: Array, n_jobs: int | None) -> None:
        """Learn a table as if it had arrived row by row; weigh features by all rows, without later rebuilds."""
        plan = self._weigh(weighting_of_rows(rows, self.n_categories))
        self.next_rebuild = 0
        if self.rules.policy is None:
            self.store.n_seen = len(rows)
            self.forest = grow.grow_trees(rows, plan, self.forest.rng)
            self._forget_points()
            return
        kept = self.store.begin_with(keys, times, self._draw_exponentials(len(rows)))
        self._grow_on(rows[kept], plan, n_jobs)

    def begin_with_draw(
        self, drawn: draws.Draw, arrivals: Array, labels: Labels, measured: Weighting, n_seen: int, n_jobs: int | None
    ) -> None:
        """Learn a uniform sample of `n_seen` rows, drawn by priority; the policy must be a uniform reservoir.

        The rows drawn, their `arrivals` and labels are in order of priority. Features are weighed as `measured`.
        """
        plan = self._weigh(measured)
        self.next_rebuild = 0
        order = np.argsort(arrivals)
        ranks = self.store.policy.ranks(arrivals, labels.times, draws.exponentials(drawn.priorities))
        floor = -np.inf
        if drawn.cutoff != NO_CUTOFF:
            cutoff = np.array([drawn.cutoff], np.uint64)
            floor = float(self.store.policy.ranks(cutoff, cutoff, draws.exponentials(cutoff))[0])
        labels = labels._replace(keys=[labels.keys[i] for i in order.tolist()], times=labels.times[order])
        self.store.hold(arrivals[order], ranks[order], labels, n_seen, floor)
        self._grow_on(drawn.rows[order], plan, n_jobs)

    def _grow_on(self, held: Array, plan: Plan, n_jobs: int | None) -> None:
        """Grow the trees on the first points of the store."""
        self.points = pad_points(self.points, 0, len(held))
        self.numbers = self.store.arrivals.copy()
        self.points.values[:] = held
        self._grow_again(plan, n_jobs)

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

        Scores of judged rows become calibration scores, so a summary needs no others to start with. Rows with missing
        values are scored by their completions, or with `is_marginal` by marginal walks.
        """
        scores, start, task = [], 0, Task(is_scored, is_judged, is_marginal)
        is_plain = self.columns.are_known and not np.isnan(rows).any()  # the common case, which must be fast
        while start < len(rows) and not is_stopped():
            is_new = None if is_plain else self._open_columns(rows[start])
            worthwhile = min(max(self.n_points, _LEAST_CHUNK), _MOST_CHUNK)  # amortises loading a tree
            coming = rows[start : start + worthwhile]
            n = len(coming) if is_plain else self._until_new_column(coming)
            stop = start + min(n, self._until_rebuild, self._until_margins)
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
        copy.pairs = None if self.pairs is None else self.pairs.left_out()
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
        self._measure_margins()
        self.is_dirty = False

    def subtract(self, rows: Array, n_jobs: int | None) -> int:
        """Subtract rows from a summary, all or none; return the first that cannot be subtracted, or their number."""
        reduced, n = learn.subtract_rows(self.forest, self.points, rows, n_jobs)
        if n == len(rows):
            self.forest = reduced
        return n

    def rebuild(self, n_jobs: int | None) -> None:
        """Weigh features by the points held, and grow all trees from scratch."""
        with all_or_nothing(self):
            plan = self.rules.plan
            self._fill_young_columns()
            if len(self.store):
                plan = self._weigh(weighting_of_rows(self.rows, self.n_categories))
            self._grow_again(plan, n_jobs)

    def widen(self, values: Array, n_jobs: int | None) -> None:
        """Append numeric features with the given values for all points held, and rebuild the trees."""
        plan, n_new, n = self.rules.plan, len(values), self.n_features - self.n_categories
        wider = np.insert(self.points.values, [n] * n_new, 0.0, axis=1)
        wider[self.store.held, n : n + n_new] = values
        domain, fixed = np.insert(plan.domain, [n] * n_new, empty_box(n_new), axis=1), plan.weighting.fixed
        weighting = unmeasured(self.n_features + n_new, None if fixed is None else np.insert(fixed, [n] * n_new, 1.0))
        self.check_consistent()
        with all_or_nothing(self):
            self.points = self.points._replace(values=wider)
            self.rules = self.rules._replace(plan=plan._replace(domain=domain, weighting=weighting))
            self.columns = self.columns.widened(n, n_new)
            self.rebuild(n_jobs)

    def amend(self, first: int, values: Array, n_jobs: int | None) -> None:
        """Replace features of the points held, from the `first` on, by `values`, and rebuild the trees."""
        amended = self.points.values.copy()
        amended[self.store.held, first : first + values.shape[1]] = values
        self.check_consistent()
        with all_or_nothing(self):
            self.points = self.points._replace(values=amended)
            self.rebuild(n_jobs)

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
        samples, is_time, came = self._samples, self._until_margins == len(rows), self.store.n_seen
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
        if is_time:
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
        if self.margins is not None:
            limit = self.margins.limit.copy()
            limit[:, places] = np.inf
            self.margins = self.margins._replace(limit=limit)

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
        return scores if score is None else self.subtract_margins(scores, scored)

    def _let_go(self, slots: Array) -> None:
        """Clear the slots of points that left."""
        for slot in slots.tolist() if len(slots) <= _FEW else ():
            self.points.values[slot], self.numbers[slot] = 0.0, NONE
        if len(slots) > _FEW:
            self.points.values[slots], self.numbers[slots] = 0.0, NONE
        self.store.release(slots.tolist())

    def as_scored(self, rows: Array, *, is_marginal: bool) -> Array:
        """Return rows without the values of unknown and young columns, to be scored.

        Marginal scores rise with fewer values, so for these the values of young columns come from a donor.
        """
        if not self.n_points:  # there are no points to compare with
            return np.where(np.isnan(rows), self.columns.placeholder, rows)
        scored, is_young = self.columns.scored(rows), self.columns.is_young
        if not is_marginal or not is_young.any():
            return scored
        donors = self.points.values[self.some_held(imputation.MOST)]
        return np.where(is_young, imputation.completions(scored, donors, self.n_categories)[:, 0], scored)

    # ---- margins ----------------------------------------------------------------------------------------------------

    def subtract_margins(self, scores: Array, rows: Array, *, are_left_out: bool = False) -> Array:
        """Subtract the surprise of features beyond their margins, and of rare pairs, from the scores of rows.

        Points held are scored as new rows with `are_left_out`, if the trees that scored them have not learned them.
        """
        pairs = self.pairs.left_out() if are_left_out and self.pairs is not None else self.pairs
        for part in (self.margins, pairs):
            costs = None if part is None else part.costs(rows)
            scores = scores if costs is None else scores - np.log(2) * costs
        return scores

    def margin_attributions(self, rows: Array) -> Array | None:
        """Return the bits that `subtract_margins` subtracts, by side and feature, (n, 2, D); None if there are none."""
        parts = [part.attributions(rows) for part in (self.margins, self.pairs) if part is not None]
        return sum(parts[1:], start=parts[0]) if parts else None

    def _measure_margins(self) -> None:
        """Measure the margins and the rare pairs on the points held, if the score uses them."""
        self.margins = self.pairs = None
        if self.rules.score is Score.MARGINS and self.rules.policy is not None:
            n_categories = self.n_categories
            self.margins = Margins.of(self.points.values[self.some_held(MOST_POINTS)], n_categories)
            if n_categories:
                self.pairs = Pairs.of(self.points.values[self.some_held(MOST_IN_PAIRS)], n_categories)
            if self.pairs is not None and len(self.pairs.cells):
                self.pairs = self.pairs.scaled(self._bits_per_step())

    def _bits_per_step(self) -> float:
        """Return the bits by which the share of points halves in the tail of their scores."""
        rows = self.points.values[self.some_held(_ROWS_PER_STEP)]
        known = posterior.posterior(self.forest, self.rules.prior, n_jobs=1)
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

    @property
    def _until_margins(self) -> int:
        """Rows until the margins are measured again: after 1, 2, 4, ... arrivals, then at regular intervals."""
        n = self.store.n_seen
        if n < _ARRIVALS_PER_MARGINS:
            return int(1 << n.bit_length()) - n
        return _ARRIVALS_PER_MARGINS - n % _ARRIVALS_PER_MARGINS

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

    def _is_drawn(self) -> Array:
        """Return which points held, by order of arrival, have the lowest priorities in each tree, bool (T, n)."""
        held, sizes = self.store.held, self.rules.sizes
        is_drawn = np.ones((len(sizes), len(held)), np.bool_)
        for size in np.unique(sizes[sizes < len(held)]):
            alike = sizes == size
            priorities = draws.priorities(self.seeds[alike], self.numbers[held])
            is_drawn[alike] = priorities <= np.partition(priorities, size - 1, axis=1)[:, size - 1 : size]
        return is_drawn

    def _current_cutoffs(self) -> Array:
        """Return the highest priority in each full tree, else NO_CUTOFF."""
        if not self.is_sampled:
            return np.full(len(self.seeds), NO_CUTOFF)
        priorities, is_drawn = draws.priorities(self.seeds, self.numbers[self.store.held]), self._is_drawn()
        highest = np.where(is_drawn, priorities, np.uint64(0)).max(axis=1, initial=0)
        return np.where(is_drawn.sum(axis=1) == self.rules.sizes, highest, NO_CUTOFF)

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
            members = _numbered(self._is_drawn())
            n_nodes = max(n_nodes, plan.most_nodes(members.shape[1]) + grow.SPARE_NODES)
            forest = grow.grow_trees(self.points.values[slots], plan, self.forest.rng, members, n_nodes)
        else:
            members, forest = np.empty((plan.n_trees, 0), np.int64), grow.empty_forest(plan, self.forest.rng)
        self.forest = pad(forest, max(n_nodes, plan.most_nodes(1) + grow.SPARE_NODES))
        in_slots = np.where(members == NONE, NONE, slots[members]) if len(slots) else members
        self.points = learn.hold_points(self.forest, self.points.values, in_slots, n_jobs)
        self.cutoffs = self._current_cutoffs()
        self._measure_margins()

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


def _numbered(is_drawn: Array) -> Array:
    """Return the places of the true values in each row, in order, (T, most); NONE after the last."""
    order = np.argsort(~is_drawn, axis=1, kind="stable")[:, : int(is_drawn.sum(axis=1).max())]
    return np.where(np.take_along_axis(is_drawn, order, axis=1), order, NONE)
