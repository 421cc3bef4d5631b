"""The model behind `StreamingMPF`: Mondrian trees on a stream, and the calibration of their scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isnan
from typing import TYPE_CHECKING, ClassVar, NamedTuple
from weakref import ref

import numpy as np

from polyaforest import forest as forests
from polyaforest.explain import Explanation
from polyaforest.forest.calibration import n_to_calibrate, out_of_bag_weights, some_rows
from polyaforest.forest.point_store import Key, Labels, places_of
from polyaforest.forest.spec import unmeasured, weighting_of_rows, weighting_of_sample
from polyaforest.forest.thresholds import NOTHING, Detections, ThresholdPolicy, check_calibration_size, check_scores
from polyaforest.kernels.arrays import EVERY, NONE, Array
from polyaforest.model.base import ForestModel
from polyaforest.model.fitted import ExplainedRows, FittedForest, FittedStream, Query, with_verdicts
from polyaforest.model.forest_state import prior_of, trees_of
from polyaforest.model.parameters import StreamParameters
from polyaforest.storage.modelfile import Arrays, Header
from polyaforest.tables.validation import check_countable

if TYPE_CHECKING:
    from polyaforest.forest.single_row import SingleRow
    from polyaforest.forest.stream import Stream
    from polyaforest.forest.survey import Survey

REMEDY = "hold more points, set a higher rate, or use detect_then_learn, which remembers more scores"


class LearnTask(NamedTuple):
    """The results to compute for rows before they are learned."""

    is_scored: bool = False
    is_judged: bool = False
    is_explained: bool = False


class StreamModel(ForestModel):
    """Trees on a stream.

    Attributes
    ----------
    stream : Stream
        The trees, the points they hold and the calibration scores.
    """

    why_uncalibrated: ClassVar[str] = "it holds no points. Learn some rows first"
    detector: ClassVar[str] = "StreamingMPF"
    has_boxes: ClassVar[bool] = True
    groups_of_arrays: ClassVar[tuple[str, ...]] = ("forest", "points", "stream", "compact")
    _not_copied: ClassVar[dict[str, None]] = {"_fitted": None, "_left_out": None, "_row": None}

    def __init__(self, stream: Stream) -> None:
        super().__init__(stream.rules.prior)
        self.stream = stream
        self._left_out: tuple[int, Array, Array] | None = None  # number wanted, log-scores and arrivals
        self._row: SingleRow | None = None  # the row learned alone
        self.refresh()

    def refresh(self) -> None:
        """Adopt the trees of the stream after a change, and drop what was derived from earlier ones."""
        self.forest, self.lifetimes = self.stream.forest, self.stream.lifetimes
        self._fitted = self._left_out = self._row = self.quantiles = self.offset = None

    def leave_snapshots(self) -> None:
        """Before a change, leave the arrays of the stream to explanations that still need them."""
        if self._fitted is not None:
            reference, self._fitted = ref(self._fitted), None
            if reference() is not None:
                self.stream.detach()

    def _new_fitted(self) -> FittedForest:
        return FittedStream(self.stream, self.quantiles)

    # ---- learning ---------------------------------------------------------------------------------------------------

    def begin_with_table(
        self, rows: Array, whole: Array, keys: Sequence[Key | None], times: Array, query: Query
    ) -> None:
        """Learn a table as if it had arrived row by row; `whole` are its imputed rows."""
        forests.stream_rows.begin_with(self.stream, whole, keys, times, query.n_jobs)
        if not self.stream.keeps_points:
            self._calibrate_summary(rows, whole, query)
        self.refresh()

    def begin_with_survey(self, survey: Survey, labels_of: Callable[[Array], Labels], n_jobs: int | None) -> None:
        """Learn the sample of a surveyed table; `labels_of` returns the keys and times of rows by their ids."""
        facts, drawn, policy = survey.facts, survey.drawn, self.stream.rules.policy
        whole = survey.filled(drawn.rows, drawn.ids)
        assert policy is not None
        held = drawn.with_rows(whole).first(policy.n or facts.n)
        arrivals = held.ids if facts.has_row_numbers else np.argsort(np.argsort(held.ids))
        measured = weighting_of_sample(whole, facts.box, self.stream.n_categories)
        forests.stream_rows.begin_with_draw(self.stream, held, arrivals, labels_of(held.ids), measured, facts.n, n_jobs)
        self.refresh()

    def places_alone(self, rows: Array, task: LearnTask, query: Query) -> Sequence[int]:
        """Return the places of rows to learn one by one, because the chunk kernels cannot compute their results."""
        stream = self.stream
        if task.is_explained or (task.is_scored and query.epsilon_phi is not None):
            return range(len(rows))
        needs_leaves = task.is_scored and query.is_marginal and not stream.rules.score.uses_cells
        if not needs_leaves and stream.rules.policy is not None:
            return []
        is_new = not stream.n_points and np.isnan(rows).any()
        if stream.keeps_points and (is_new or not stream.columns.are_known):  # the ignored columns may change
            return range(len(rows))
        scored = forests.stream_rows.as_scored(stream, rows, is_marginal=query.is_marginal)
        places: list[int] = forests.posterior.rows_with_gaps(scored).tolist()
        return places

    def learn(
        self,
        rows: Array,
        keys: Sequence[Key | None],
        times: Array,
        task: LearnTask,
        query: Query,
        ahead: Detections | None = None,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> Detections:
        """Learn rows until done or stopped; return the results of the task, given those of a single row `ahead`."""
        stream, came = self.stream, self.stream.store.n_seen
        if ahead is not None and not stream.keeps_points:  # impute missing values from the trees
            rows = self.fitted.impute(stream.columns.placed(rows), "mode", query.n_jobs)
        try:
            scores = stream.advance(
                rows,
                keys,
                times,
                is_scored=task.is_scored and ahead is None,
                n_jobs=query.n_jobs,
                is_judged=task.is_judged,
                is_marginal=query.is_marginal,
                is_stopped=is_stopped,
            )
            return self._answer(scores, ahead, came, task, query)
        finally:
            self.refresh()

    def score_ahead(self, row: Array) -> Array | None:
        """Return the score that `learn` would give to a row, (1, D); None if it is not complete and usable."""
        single = None if self.stream.is_dirty else forests.single_row.SingleRow.of(self.stream, row)
        return None if single is None else single.score()

    def learn_alone(
        self, row: Array, key: Key | None, time: float, task: LearnTask, policy: ThresholdPolicy
    ) -> tuple[Detections, Key | None] | None:
        """Learn a single row, (1, D), as `learn` would, but faster; return None, having changed nothing, if it cannot.

        It cannot if a value is missing or unusable, if the row is flagged and has to be explained, or if more has to
        be done than to score and learn it.
        """
        stream, store = self.stream, self.stream.store
        if stream.is_dirty or (task.is_judged and not len(stream.calibration)):
            return None
        if (key is not None and stream.rules.policy is None) or (store.policy.needs_times and isnan(time)):
            return None
        self.leave_snapshots()
        single = forests.single_row.SingleRow.of(stream, row, self._row)
        if single is None or not single.is_steady:
            return None
        single = self._row = single.with_room()
        came = store.n_seen
        check_countable(came, 1)
        store.check_keys([key])
        ahead = single.score() if task.is_explained else None
        if ahead is not None and stream.is_below_threshold(ahead, policy):
            return None
        try:
            scores = single.learn(key, time, is_scored=task.is_scored and ahead is None)
            scores = scores if ahead is None else ahead
            found = stream.judge_one(scores, policy, came) if task.is_judged else Detections(scores, *NOTHING[1:])
            return found, store.newest_key
        finally:
            self.refresh()
            self._row = single.cleared()  # a point may be deleted, or not be kept at all

    def _answer(self, scores: Array, ahead: Detections | None, came: int, task: LearnTask, query: Query) -> Detections:
        """Return the results for learned rows, the first of them with arrival number `came`."""
        if ahead is not None and (not task.is_judged or query.epsilon_phi is not None):
            return ahead
        if not task.is_judged:
            return Detections(scores, *NOTHING[1:])
        if ahead is None:
            return self.stream.judge(scores, query.policy, came)
        return self.stream.judge(ahead.scores, query.policy, came)._replace(explanations=ahead.explanations)

    def detect_ahead(self, row: Array, task: LearnTask, query: Query) -> Detections:
        """Return the results for a single row before it is learned, without an explanation."""
        if not task.is_scored:
            return NOTHING
        fitted = self.fitted
        if query.epsilon_phi is not None:
            return self.detected(fitted.scores(row, query), query)

        def score(rows: Array) -> Array:
            """Score as the stream does, or marginally."""
            return fitted.row_scores(rows, query) if np.isnan(rows).any() else self.stream.score(rows, query.n_jobs)

        return self.stream.judge(fitted.over_completions(row, query, score), query.policy)

    def explanation(self, given: ExplainedRows, detected: Detections, query: Query) -> Explanation:
        """Explain a flagged row, given the threshold it was compared with."""
        explained = self.fitted.explain(given, query, float(detected.thresholds[0])).materialise()
        return with_verdicts(explained, detected)[0]

    def rebuild(self, n_jobs: int | None) -> None:
        """Recompute feature weights from the points held and regrow all trees."""
        self._check_keeps_points()
        self.stream.check_consistent()
        self.stream.rebuild(n_jobs)
        self.refresh()

    def widen(self, values: Array, n_jobs: int | None) -> None:
        """Append features with the given values for all points held, and regrow all trees."""
        self._check_keeps_points()
        forests.stream_rows.widen(self.stream, values, n_jobs)
        self.refresh()

    def amend(self, first: int, values: Array, n_jobs: int | None) -> None:
        """Replace features of the points held, from the `first` on, by `values`, (n, m), and regrow the trees."""
        forests.stream_rows.amend(self.stream, first, values, n_jobs)
        self.refresh()

    def keep_scores(self, n: int) -> None:
        """Set the maximum number of calibration scores."""
        self.stream.keep_scores(n)
        self.refresh()

    def _check_keeps_points(self) -> None:
        if not self.stream.keeps_points:
            raise ValueError("a forest with window=None holds no points to rebuild from")

    def delete(self, keys: Sequence[Key], limits: Array | None, n_jobs: int | None) -> None:
        """Delete points by key, at most `limits` of each."""
        if not self.stream.keeps_points:
            raise ValueError("a forest with window=None holds no keys: use delete_rows")
        self.stream.delete(self.stream.store.slots_of(keys, limits), n_jobs)
        self.refresh()

    def delete_rows(self, rows: Array, copies: Array, n_jobs: int | None) -> list[Key]:
        """Delete points by value, each `copies` times; return their keys, if they are held."""
        stream, keys = self.stream, list[Key]()
        too_often = np.flatnonzero(copies > stream.n_points)
        if too_often.size:
            raise ValueError(f"row {too_often[0]} is not held, or not as many times as given. Nothing was deleted")
        numbers = np.repeat(np.arange(len(rows)), copies)
        if stream.keeps_points:
            held = stream.store.held
            places = places_of(rows[numbers], stream.points.values[held], numbers)
            keys = [stream.store.held_keys[place] for place in places]
            stream.delete(held[places].tolist(), n_jobs)
        else:
            n = forests.stream_rows.subtract(stream, rows[numbers], n_jobs)
            if n < len(numbers):
                raise ValueError(
                    f"row {numbers[n]} lies on the edge of a box, which cannot shrink without its points: set "
                    "a window to hold points. Nothing was deleted"
                )
        self.refresh()
        return keys

    # ---- thresholds -------------------------------------------------------------------------------------------------

    def place_threshold(self, query: Query) -> float:
        """Return the threshold score of a policy."""
        calibration, policy = self.stream.calibration, query.policy
        if self.offset is not None and self.offset.policy == policy:  # a frozen stream, or a table
            return self.offset.value
        if len(calibration):
            n, threshold = len(calibration), calibration.threshold(policy)
        else:
            scores = np.sort(self._first_scores(query)[0]).tolist()
            n, threshold = len(scores), policy.threshold(scores)
        if policy.false_alarm_rate is not None and (calibration.is_seeded or not len(calibration)):
            check_calibration_size(n, policy.false_alarm_rate, REMEDY)
        return float(query.score.from_log(np.array(threshold)))

    def calibration_scores(self, query: Query) -> Array:
        """Return the log-scores of the last rows, or of points held, each left out."""
        if query.epsilon_phi is not None:
            return np.empty(0)
        calibration = self.stream.calibration
        return calibration.ascending if len(calibration) else self.left_out_scores(query)[0]

    def seed_calibration(self, query: Query) -> None:
        """Seed the calibration scores with those of the points held, if there are any."""
        scores, arrivals = self._first_scores(query)
        order = np.argsort(arrivals)
        self.stream.calibration.seed(scores[order], arrivals[order])

    def _first_scores(self, query: Query) -> tuple[Array, Array]:
        """Return scores and arrivals of points held, for the threshold of a stream without calibration scores.

        `contamination` is a share of these very points, so they are scored in-sample; a rate refers to new rows, so
        each point is left out of the forest.
        """
        stream = self.stream
        if query.policy.contamination is None or not stream.keeps_points:
            return self.left_out_scores(query)
        scores = self.fitted.row_scores(stream.rows, query)
        return stream.rules.score.to_log(scores), stream.numbers[stream.store.held]

    def left_out_scores(self, query: Query) -> tuple[Array, Array]:
        """Return scores and arrivals of points held, each left out of the forest; cached until the forest changes."""
        most = n_to_calibrate(query.policy.false_alarm_rate)
        if not self.stream.keeps_points:
            return np.empty(0), np.empty(0, np.int64)
        known = self._left_out
        if known is None or known[0] < most:
            known = self._left_out = most, *self._left_out_of(self.stream.some_held(most), query)
        return known[1:]

    def scores_left_out(self, rows: Array, places: Array, query: Query) -> Array:
        """Return log-scores of some rows of the fitted table, each left out; NaN if all trees contain a row."""
        stream = self.stream
        if not stream.keeps_points:
            raise ValueError("a forest with window=None holds no points to calibrate groups with: set a window")
        slot_of = np.full(len(rows), NONE)
        slot_of[stream.numbers[stream.store.held]] = stream.store.held
        slots, logs = slot_of[places], np.full(len(places), np.nan)
        is_held = slots != NONE
        if not is_held.all():
            scores = self.fitted.row_scores(rows[places[~is_held]], query)
            logs[~is_held] = stream.rules.score.to_log(scores)
        if is_held.any():
            found, arrivals = self._left_out_of(slots[is_held].astype(np.int32), query)
            at = np.full(len(rows), np.nan)
            at[arrivals] = found
            logs[is_held] = at[places[is_held]]
        return logs

    def _left_out_of(self, slots: Array, query: Query) -> tuple[Array, Array]:
        """Return scores and arrivals of the points in slots, each left out of the forest."""
        is_drawn = self.stream.rules.sizes.max() <= self.stream.n_points // 2
        return self._out_of_bag_scores(slots, query) if is_drawn else self.stream.left_out_scores(query.n_jobs, slots)

    def _out_of_bag_scores(self, slots: Array, query: Query) -> tuple[Array, Array]:
        """Return scores and arrivals of the points in slots, each scored by the trees that do not contain it."""
        stream, score = self.stream, self.stream.rules.score
        weights = out_of_bag_weights(stream.is_member(slots), stream.rules.sizes)
        is_known = weights.any(axis=0)
        rows, known = stream.points.values[slots[is_known]], self.fitted.posterior(query.n_jobs)
        own = np.ascontiguousarray(weights[:, is_known])
        placed = stream.as_left_out(rows)
        scores = forests.score.weighted_scores(score, self.forest, known, placed, self.lifetimes, own, query.n_jobs)
        return score.to_log(stream.penalties.left_out().subtract(scores, rows)), stream.numbers[slots[is_known]]

    def _calibrate_summary(self, rows: Array, whole: Array, query: Query) -> None:
        """Calibrate a forest that holds no points with some of its first rows.

        These rows are held out of a second forest, unless `contamination` is a share of these very rows.
        """
        stream, score, n_jobs = self.stream, self.stream.rules.score, query.n_jobs
        n, plan = min(n_to_calibrate(query.policy.false_alarm_rate), len(rows) // 2), stream.rules.plan
        chosen, forest = some_rows(len(rows), n), stream.forest
        asked = whole if query.missing == "impute" else rows
        if query.policy.contamination is None:
            weighting = weighting_of_rows(whole, stream.n_categories)._replace(fixed=plan.weighting.fixed)
            plan = plan._replace(weighting=weighting, seed=plan.seed.spawn(1)[0])
            rest = np.delete(whole, chosen, axis=0)
            forest = forests.grow.grow_trees(rest, plan)
        if n:
            known = forests.posterior.posterior(forest, self.prior, n_jobs=n_jobs)
            scores = forests.score.row_scores(score, forest, known, asked[chosen], stream.lifetimes, n_jobs)
            stream.calibration.seed(score.to_log(scores), chosen)

    # ---- state ------------------------------------------------------------------------------------------------------

    @property
    def can_be_compact(self) -> bool:
        """Whether the trees can be derived from the points."""
        return self.stream.keeps_points and not self.stream.is_frozen

    def state(self, *, is_compact: bool = False) -> tuple[Header | None, Arrays]:
        """Return the state of the stream without the trees; a compact state includes them."""
        stream = self.stream
        if stream.is_frozen:
            scores = stream.rules.score.from_log(stream.calibration.scores)
            return None, {"calibration": scores} if len(scores) else {}
        stream.check_consistent()
        return forests.stream_state.state_of(stream, is_compact=is_compact)

    @classmethod
    def of_state(cls, header: Header, arrays: Arrays, n_categories: int) -> StreamModel:
        """Return the model with a state that has a stream."""
        is_compact = any(name.startswith("compact/") for name in arrays)
        trees = None if is_compact else trees_of(arrays, n_categories)
        prior, lifetimes = prior_of(header, arrays), arrays["lifetimes"]
        of_stream = forests.stream_state.stream_of_state
        return cls(of_stream(header["stream"], arrays, trees, prior, lifetimes, n_categories))

    @classmethod
    def of_frozen_state(
        cls, header: Header, arrays: Arrays, parameters: StreamParameters, n_categories: int, order: Array | None
    ) -> StreamModel:
        """Return the model of a table that an earlier version saved without its points."""
        unknown = [name for name in arrays if name.startswith(("points/", "stream/", "compact/"))]
        if unknown:
            raise ValueError(f"array {unknown[0]}: belongs to a stream, but the header has none")
        trees = trees_of(arrays, n_categories)
        if np.isnan(arrays["offset"]) or not trees.size.all():
            raise ValueError("it has no stream, and its forest is empty or has no offset")
        scores, score = arrays.get("calibration", np.empty(0)), parameters.score
        check_scores("calibration", scores)
        measured = unmeasured(header["n_features"], None)
        plan = parameters.plan(measured, trees.domain, parameters.seed(), n_categories, order)
        sizes = np.full(len(trees.root), EVERY)
        n = max(len(scores), n_to_calibrate(parameters.false_alarm_rate))
        own = plan._replace(n_trees=len(sizes)), None, prior_of(header, arrays), parameters.grid, score, sizes, n
        frozen = forests.stream_state.frozen_stream
        return cls(frozen(forests.stream.Rules(*own), trees, arrays["lifetimes"], score.to_log(scores)))

    def forget_derived_offset(self, query: Query) -> None:
        """Forget a threshold that calibration scores place; it may be that of a larger table."""
        if not self.stream.is_frozen and query.policy.contamination is None:
            self.offset = None

    def check_trees(self) -> None:
        """Raise ValueError if the trees are invalid, or do not belong to the stream."""
        if self.stream.forest is not self.forest:
            raise ValueError("its forest and its stream differ")
        if not self.stream.is_dirty:  # a dirty stream raises before kernels run
            forests.stream_checks.check_stream(self.stream)
