"""The model behind `BatchMPF`: Mondrian processes that count rows, and a sample of these rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from polyaforest import forest as forests
from polyaforest.forest.calibration import n_to_calibrate
from polyaforest.forest.integrity import check_forest
from polyaforest.forest.thresholds import check_calibration_size, check_scores
from polyaforest.kernels.arrays import Array, Forest, LeafKind, Prior
from polyaforest.kernels.boxes import are_within
from polyaforest.model.base import ForestModel, Offset
from polyaforest.model.fitted import FittedCounts, FittedForest, Query
from polyaforest.model.sample import CalibrationSample
from polyaforest.storage.modelfile import Arrays
from polyaforest.tables.validation import LARGEST, check_countable

if TYPE_CHECKING:
    from polyaforest.forest.privacy import Budget
    from polyaforest.forest.survey import Survey

ROWS_TO_RECALIBRATE = 100  # a chunk of at least so many rows recalibrates the model
LEAST_SAMPLE = 2048  # rows to calibrate with, if there are as many


class CountModel(ForestModel):
    """Counts of rows in the cells of Mondrian processes.

    Attributes
    ----------
    sample : CalibrationSample or None
        Counted rows for lazy calibration.
    calibration : ndarray or None
        Log-scores of these rows, each left out of the counts, once they are computed.
    epsilon : float or None
        Of a private release.
    was_filled : bool
        Whether missing values were imputed from other rows.
    """

    why_uncalibrated: ClassVar[str] = (
        "its counts have changed, or it was fitted on one row. Call fit or partial_fit with at least 100 rows"
    )
    detector: ClassVar[str] = "BatchMPF"
    has_boxes: ClassVar[bool] = False

    def __init__(self, forest: Forest, prior: Prior, lifetimes: Array) -> None:
        super().__init__(prior)
        self.forest, self.lifetimes = forest, lifetimes
        self.sample: CalibrationSample | None = None
        self.calibration: Array | None = None
        self.epsilon: float | None = None
        self.was_filled = False

    def _new_fitted(self) -> FittedForest:
        return FittedCounts(self.forest, self.prior, self.lifetimes, self.quantiles, self.sample)

    @property
    def n_points(self) -> int:
        """Number of rows counted, including rows outside the domain."""
        return _n_counted(self.forest)

    @property
    def n_categories(self) -> int:
        """The number of categorical columns, which are last."""
        return int(self.forest.n_categories[0])

    # ---- counting ---------------------------------------------------------------------------------------------------

    def count(
        self, survey: Survey | None, rows: Array, copies: Array | None, n_jobs: int | None
    ) -> tuple[Array, Array]:
        """Count rows, each `copies` times, without adding the counts; a survey imputes missing values."""

        def filled(rows: Array, ids: Array) -> Array:
            return rows if survey is None else survey.filled(rows, ids)

        if copies is None:
            return forests.learn.count_rows(self.forest, filled(rows, np.arange(len(rows))), n_jobs)
        starts = forests.copies.starts_of(copies)
        return forests.learn.count_copies(self.forest, rows, copies, starts, filled, n_jobs)

    def begin(self, survey: Survey, counts: Array, outside: Array, *, follows_rows: bool) -> None:
        """Start with the counts of a table; `follows_rows` if the domain is the bounding box of its rows."""
        self.sample = self.calibration = self.offset = self.epsilon = None
        self.was_filled = bool(survey.facts.n_missing.any())
        self._adopt(self._with_counts(counts, outside))
        self._draw_sample(survey, follows_rows=follows_rows)
        self._take_quantiles(survey.drawn.rows)

    def add(self, survey: Survey, counts: Array, outside: Array, query: Query) -> None:
        """Add the counts of more rows; enough of them recalibrate the model."""
        n = survey.facts.n
        if n < ROWS_TO_RECALIBRATE:
            self.materialise(query)  # else the threshold would depend on whether it was read before these rows came
        self.was_filled |= bool(survey.facts.n_missing.any())
        self._adopt(self._with_counts(counts, outside))
        if n >= ROWS_TO_RECALIBRATE:
            self._draw_sample(survey, follows_rows=False)

    def subtract(self, rows: Array, copies: Array, query: Query) -> None:
        """Delete rows; raise ValueError if a count would become negative."""
        count, outside = self.count(None, rows, copies, query.n_jobs)
        if (self.forest.counts < count).any() or (self.forest.outside < outside).any():
            _, kinds = self.fitted.leaves(rows, query.n_jobs)
            is_empty = (kinds == LeafKind.COMPLEMENTARY) | ((kinds == LeafKind.OUTSIDE) & (self.forest.outside == 0))
            unknown = np.flatnonzero(is_empty.any(axis=1) & (copies > 0))
            which = f"row {unknown[0]} was never counted" if unknown.size else "some rows were not counted that often"
            raise ValueError(f"{which}: deletion would make a count negative. Nothing was deleted")
        self._keep_threshold(query)
        self._adopt(self._with_counts(-count, -outside))

    def merge(self, other: CountModel, query: Query) -> None:
        """Add the counts of another model with the same partition."""
        theirs = other.forest
        self.was_filled |= other.was_filled
        if self.epsilon is not None and other.epsilon is not None:
            self.epsilon += other.epsilon
            self._adopt(self._with_counts(theirs.counts, theirs.outside))
            self.offset = self.calibration = None
            return
        if self.sample is None or other.sample is None:
            self._keep_threshold(query)
        else:
            self.sample = self.sample.joined(other.sample, self.n_categories)
            self.offset = self.calibration = None
            self._take_quantiles(self.sample.in_order_of_priority)
        self._adopt(self._with_counts(theirs.counts, theirs.outside))

    def check_same_partition(self, other: CountModel) -> None:
        """Raise ValueError if the counts of another model cannot be added."""
        if (self.epsilon is None) != (other.epsilon is None):
            raise ValueError("only one of the forests is a private release: true and noisy counts cannot be merged")
        if self.prior.strength != other.prior.strength:
            strengths = f"{self.prior.strength} and {other.prior.strength}"
            raise ValueError(f"forests differ in prior_strength ({strengths}) and cannot be merged")
        if self.prior.is_open != other.prior.is_open:
            raise ValueError("only one of the forests allows rows beyond its domain: they cannot be merged")

    def check_same_cuts(self, other: CountModel) -> None:
        """Raise ValueError if another model has other cells."""
        if not np.array_equal(self.forest.domain, other.forest.domain):
            raise ValueError("forests have different domains and cannot be merged: set the same domain array in both")
        for name in ("left", "feature", "cut", "time", "weights"):
            if not np.array_equal(getattr(self.forest, name), getattr(other.forest, name), equal_nan=name == "cut"):
                raise ValueError(
                    "forests cut their domain differently and cannot be merged: set the same integer random_state and "
                    "the same feature_weights in both"
                )

    def released(self, epsilon: float, budget: Budget, words: Callable[[int], Array]) -> CountModel:
        """Return an epsilon-differentially private model, without calibration."""
        counts, outside = forests.privacy.private_counts(self.forest, budget, words)
        model = CountModel(self.forest._replace(counts=counts, outside=outside), self.prior, self.lifetimes)
        model.epsilon = epsilon
        return model

    def calibrate_privately(self, rows: Array, budget: Budget, words: Callable[[int], Array], query: Query) -> None:
        """Calibrate a release with scores of nearly the distribution of its scores of the rows."""
        lowest = forests.privacy.lowest_log_mass(self.forest, self.fitted.posterior(query.n_jobs))
        logs = query.score.to_log(self.fitted.scores(rows, query))
        found = forests.privacy.private_scores(logs, lowest, self.n_points, budget, words)
        most = max(n_to_calibrate(query.policy.false_alarm_rate), LEAST_SAMPLE)
        is_short = len(found) <= most
        self.calibration = found if is_short else found[np.linspace(0, len(found) - 1, most).astype(int)]

    def check_not_private(self) -> None:
        """Raise ValueError if this is a private release."""
        if self.epsilon is not None:
            raise ValueError(
                "this forest is a private release and cannot learn or delete rows: update the original forest and "
                "release it again"
            )

    def _with_counts(self, counts: Array, outside: Array) -> Forest:
        """Return the forest with these counts added to its own."""
        forest = self.forest
        check_countable(_n_counted(forest), _n_counted(forest._replace(counts=counts, outside=outside)))
        return forest._replace(counts=forest.counts + counts, outside=forest.outside + outside)

    def _adopt(self, forest: Forest) -> None:
        """Replace the forest and drop what was derived from it."""
        self.forest, self._fitted = forest, None

    # ---- thresholds -------------------------------------------------------------------------------------------------

    def threshold(self, query: Query) -> float:
        """Return the threshold score; raise ValueError if there are too few calibration scores."""
        if query.epsilon_phi is not None:
            return query.epsilon_phi.threshold
        if self.epsilon is not None and self.calibration is None:
            raise ValueError(
                "this private release has no threshold: pass the rows, release(epsilon, X), or use score_samples and "
                "mass. To merge, merge the forests first and then release"
            )
        offset, rate = self.place_threshold(query), query.policy.false_alarm_rate
        if offset == -np.inf and rate is not None:
            check_calibration_size(len(self.calibration_scores(query)), rate, "fit more rows or set a higher rate")
        return offset

    def place_threshold(self, query: Query) -> float:
        """Return the threshold score of a policy, computed on first use."""
        policy = query.policy
        if self.offset is not None and self.offset.policy == policy:
            return self.offset.value
        if policy.contamination is not None and self.sample is not None:
            logs = query.score.to_log(self.fitted.scores(self.sample.rows, query))
        else:
            logs = self.calibration_scores(query)
        if self.offset is not None and not len(logs):
            raise ValueError(f"the threshold cannot be recomputed without calibration scores: {self.why_uncalibrated}")
        threshold = policy.threshold(np.sort(logs).tolist())
        self.offset = Offset(policy, float(query.score.from_log(np.array(threshold))))
        return self.offset.value

    def calibration_scores(self, query: Query) -> Array:
        """Return the log-scores of the sample, each row left out of the counts."""
        if query.epsilon_phi is not None:
            return np.empty(0)
        if self.calibration is None and self.sample is not None:
            self.calibration = query.score.to_log(self._scores_counted_out(self.sample, query))
        return np.empty(0) if self.calibration is None else self.calibration

    def materialise(self, query: Query) -> None:
        """Compute the threshold and the calibration scores, which are otherwise lazy."""
        if query.epsilon_phi is None:
            self.place_threshold(query)
            self.calibration_scores(query)

    def scores_left_out(self, rows: Array, whole: Array, places: Array, query: Query) -> Array:
        """Return log-scores of some rows of the fitted table, each left out; `whole` are its imputed rows."""
        drawn = forests.draws.Draw(
            len(places), np.zeros(len(places), np.uint64), places, np.hstack([rows[places], whole[places]])
        )
        sample = CalibrationSample(drawn, None if self.sample is None else self.sample.edges)
        return query.score.to_log(self._scores_counted_out(sample, query))

    def _keep_threshold(self, query: Query) -> None:
        """Materialise the threshold before counts change, and drop the calibration sample."""
        self.materialise(query)
        self.sample = self.calibration = self.quantiles = None

    def _draw_sample(self, survey: Survey, *, follows_rows: bool) -> None:
        """Keep a sample of the rows just counted, to calibrate with when needed."""
        if survey.facts.n >= 2:
            self.sample = CalibrationSample.of(survey, follows_rows=follows_rows)
            self.offset = self.calibration = None

    def _take_quantiles(self, sample: Array) -> None:
        """Set the usual ranges from a sample of rows in order of priority."""
        from polyaforest.explain.context import MOST_ROWS, quantiles_of

        self.quantiles = quantiles_of(sample[:MOST_ROWS])

    def _scores_counted_out(self, sample: CalibrationSample, query: Query) -> Array:
        """Return the scores of counted rows, each left out of the counts.

        Rows with missing values, and rows beyond a given domain, are left out in two halves.
        """
        domain, rows, whole = self.forest.domain, sample.rows, sample.whole
        has_measured_weights = bool((self.forest.weights != self.forest.weights[0]).any())  # not the caller's
        follows_rows = sample.edges is not None
        own = sample.beyond(domain, self.n_categories, is_rescaled=has_measured_weights)
        is_outside = ~are_within(own, domain, self.n_categories)
        is_apart = np.isnan(rows).any(axis=1) | (is_outside & (not follows_rows))
        is_moved = is_outside & ~is_apart & (not query.score.uses_cells)  # to a place that no cell covers
        is_plain, scores = ~(is_apart | is_moved), np.empty(len(own))
        if is_plain.any():
            known = self.fitted.posterior(query.n_jobs)
            scores[is_plain] = forests.score.left_out_scores(
                query.score, self.forest, known, self.prior, own[is_plain], self.lifetimes, query.n_jobs
            )
        if is_moved.any():
            scores[is_moved] = self.fitted.scores(own[is_moved], query)
        apart = np.flatnonzero(is_apart)
        for half in (apart[::2], apart[1::2]):
            if half.size:
                counts, outside = forests.learn.count_rows(self.forest, whole[half], query.n_jobs)
                rest = self._with_counts(-counts, -outside)
                others = FittedCounts(rest, self.prior, self.lifetimes, None, self.sample)
                scores[half] = others.scores(rows[half], query)
        return scores

    # ---- state ------------------------------------------------------------------------------------------------------

    def state(self, query: Query) -> Arrays:
        """Return the arrays of a state, without the trees."""
        arrays: Arrays = {}
        self.materialise(query)
        scores = self.calibration_scores(query)
        if len(scores):
            arrays["calibration"] = query.score.from_log(scores)
        if self.epsilon is not None:
            arrays["epsilon"] = np.array(self.epsilon)
        if query.missing != "error":
            arrays["filled"] = np.array(self.was_filled, np.int64)
        kept = {} if self.sample is None else self.sample.state()
        return {**arrays, **{f"sample/{name}": part for name, part in kept.items()}}

    def restore(self, arrays: Arrays, query: Query) -> None:
        """Restore a state; raise ValueError if it is invalid."""
        if not self.forest.size.all():
            raise ValueError("its forest is empty")
        if "calibration" in arrays:
            check_scores("calibration", arrays["calibration"])
            self.calibration = query.score.to_log(arrays["calibration"])
        self.was_filled = query.missing != "error" and bool(arrays["filled"])
        if "epsilon" in arrays:
            self.epsilon = float(arrays["epsilon"])
            if not 0 < self.epsilon < np.inf:  # NaN fails too
                raise ValueError(f"epsilon is {self.epsilon}, but must be positive and finite")
        kept = {name.removeprefix("sample/"): part for name, part in arrays.items() if name.startswith("sample/")}
        n_features = self.forest.weights.shape[1]
        self.sample = CalibrationSample.of_state(kept, n_features, self.n_categories) if kept else None
        if self.offset is None and query.epsilon_phi is None:
            raise ValueError("it has no offset")

    def check_trees(self) -> None:
        """Raise ValueError if the trees are invalid."""
        check_forest(self.forest, alike=True, largest=LARGEST)


def _n_counted(forest: Forest) -> int:
    return int(forest.counts[0, forest.root[0]] + forest.outside[0])
