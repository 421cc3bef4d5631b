"""The batch detector: a forest of Mondrian processes."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from sklearn.base import _fit_context, clone
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_is_fitted

from polyaforest import forest as forests
from polyaforest.detectors.forest import ForestDetector, Offset
from polyaforest.detectors.tree import Tree
from polyaforest.forest.calibration import n_to_calibrate
from polyaforest.forest.score_types import EpsilonPhi, Score
from polyaforest.forest.spec import weighting_of_domain
from polyaforest.forest.thresholds import check_calibration_size, check_scores
from polyaforest.kernels.arrays import Array, Forest, LeafKind
from polyaforest.kernels.boxes import are_within
from polyaforest.model.fitted import FittedCounts, FittedForest
from polyaforest.model.sample import CalibrationSample
from polyaforest.storage.modelfile import Arrays, Header
from polyaforest.tables.validation import (
    check_countable,
    check_rows_inside,
    read_coded,
    read_copies,
    read_rows,
)
from polyaforest.util.derived import Derived, lasting

if TYPE_CHECKING:
    from polyaforest.forest.privacy import Budget
    from polyaforest.forest.survey import Inquiry, Survey

_ROWS_TO_RECALIBRATE = 100  # a chunk of at least so many rows recalibrates the forest
_LEAST_SAMPLE = 2048  # rows to calibrate with, if there are as many
_MOST_EPSILON = 1000  # more would hide nothing
_SEED_OF_SAMPLES = 0  # constant, so that the calibration sample does not depend on the trees


def _words_of(random_state: Any) -> Callable[[int], Array]:
    """Return a seeded source of random 64-bit words."""
    rng = np.random.default_rng(random_state)
    return lambda n: rng.integers(2**64, size=n, dtype=np.uint64)


def _n_counted(forest: Forest) -> int:
    return int(forest.counts[0, forest.root[0]] + forest.outside[0])


class BatchMPF(ForestDetector):
    """Batch Mondrian Pólya forest (bMPF).

    Each tree cuts the domain at random, independently of the data, and counts the rows in each cell. Rows with little
    probability mass around them are anomalies; scores are higher for normal rows. Rows can be added and deleted
    exactly, in any order. Forests with the same seed, domain and parameters can be fitted separately and merged.

    Parameters
    ----------
    n_estimators : int, default=100
        Number of trees.
    tree : Tree, optional
        Depth (10 by default), lifetime, feature weights, prior and domain of each tree. Merging requires the domain to
        be an array.
    score_type : {"log_mass", "mass", "multiscale", "typicality"} or EpsilonPhi, default="log_mass"
        The score, described at `score_samples`. "mass" is the paper's; `EpsilonPhi` also sets the paper's threshold.
    contamination : "auto" or float in (0, 0.5], default="auto"
        Share of rows to flag, estimated from a sample of the last fitted rows. "auto" places the threshold far enough
        below the bulk of the scores to flag about one normal row in a thousand.
    false_alarm_rate : float between 0 and 1, optional
        Share of new normal rows to flag, instead of `contamination`. See `p_value`.
    missing : {"impute", "marginalise", "error"}, default="impute"
        How to handle NaN. "impute" completes a row with the values of the 8 most similar rows and averages the scores
        of the completions. "marginalise" scores the observed values alone; fewer values give higher scores. Both learn
        the row with the values of the most similar one. "error" raises ValueError.
    categorical_features : "from_dtype", array-like of str, int or bool, or None, default="from_dtype"
        Categorical columns, as in scikit-learn's `HistGradientBoostingClassifier`: names, indices, a boolean mask, None
        for no column, or "from_dtype" for columns of type ``category`` (pandas), ``Categorical`` or ``Enum`` (polars)
        or dictionary (Arrow). Other text columns raise ValueError. Categories are compared by their text; unseen
        categories are allowed.
    random_state : int, RandomState or None, default=None
        Seed of the trees. Merging requires the same integer.
    n_jobs : int or None, default=None
        Number of threads; None means 1. Results do not depend on it.

    Attributes
    ----------
    forest_ : Forest
        The trees, as arrays.
    posterior_ : Posterior
        Log-masses and log-volumes of every node.
    prior_ : Prior
        The prior that the posterior was derived with.
    lifetimes_ : ndarray
        The times at which the score evaluates cells.
    offset_ : float
        The threshold: ``decision_function = score_samples - offset_``.
    n_points_ : int
        Number of rows counted.
    privacy_epsilon_ : float or None
        The epsilon of a private `release`; None for true counts.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
    is_categorical_ : ndarray of bool, shape (n_features,), or None
        Mask of the categorical columns; None if there are none.
    categories_ : dict of str to list of str
        The categories in the calibration sample, by column.
    encoding_ : Categories or None
        Encoding of categories as numbers; None if there are none.

    Notes
    -----
    The paper's setting is ``score_type="mass", tree=Tree(feature_weights=None, domain="data")``. Every tree counts
    every row, so there is no ``max_samples``.

    Examples
    --------
    >>> import numpy as np
    >>> from polyaforest import BatchMPF, Tree
    >>> X = np.random.default_rng(0).uniform(-1, 1, size=(1000, 2))
    >>> tree = Tree(domain=[[-9, -9], [9, 9]])
    >>> whole = BatchMPF(tree=tree, random_state=0).fit(X)
    >>> parts = [BatchMPF(tree=tree, random_state=0).fit(part) for part in (X[:400], X[400:])]
    >>> bool((whole.mass(X) == (parts[0] + parts[1]).mass(X)).all())
    True
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **ForestDetector._parameter_constraints,
        "score_type": [StrOptions({str(score) for score in Score if score is not Score.MARGINS}), EpsilonPhi],
    }
    _why_uncalibrated: ClassVar[str] = (
        "its counts have changed, or it was fitted on one row. Call fit or partial_fit with at least 100 rows"
    )
    _auto_depth: ClassVar[int | None] = 10
    _kind: ClassVar[type[FittedForest]] = FittedCounts
    _groups_of_arrays: ClassVar[tuple[str, ...]] = ("forest", "sample")
    _epsilon: float | None = None  # of a private release
    _was_filled: bool = False  # whether missing values were imputed from other rows
    _sample: CalibrationSample | None = None  # rows for lazy calibration
    _calibration = Derived[Array](is_lasting=True)  # log-scores of these rows, each left out of the counts

    def __init__(
        self,
        *,
        n_estimators: int = 100,
        tree: Tree | None = None,
        score_type: str | EpsilonPhi = "log_mass",
        contamination: str | float = "auto",
        false_alarm_rate: float | None = None,
        missing: str = "impute",
        categorical_features: Any = "from_dtype",
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        self.n_estimators = n_estimators
        self.tree = tree
        self.score_type = score_type
        self.contamination = contamination
        self.false_alarm_rate = false_alarm_rate
        self.missing = missing
        self.categorical_features = categorical_features
        self.random_state = random_state
        self.n_jobs = n_jobs

    @property
    def n_points_(self) -> int:
        """Number of rows counted, including rows outside the domain."""
        check_is_fitted(self)
        return _n_counted(self.forest_)

    @property
    def privacy_epsilon_(self) -> float | None:
        """The epsilon of a private `release`, summed over merged releases; None for true counts."""
        check_is_fitted(self)
        return self._epsilon

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None, *, sample_weight: Any = None) -> Self:
        """Fit the forest to the rows of `X`, replacing any previous fit; `y` is ignored.

        Parameters
        ----------
        X : array-like or frame of shape (n_rows, n_features)
        sample_weight : array-like of shape (n_rows,), optional
            Number of times to count each row. Fractions are rounded at random: 2.3 counts as 3 with probability 0.3,
            determined by the row number.
        """
        with self._lock.turn(), self._drafted() as draft:
            draft._begin(X, sample_weight, follows=False)
        return self

    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X: Any, y: Any = None, *, sample_weight: Any = None) -> Self:
        """Count more rows; rows beyond the domain count as outside. The first call is equivalent to `fit`.

        At least 100 rows recalibrate the threshold and `p_value`. `sample_weight` is as in `fit`, except that the
        number of fractional weights so far determines the rounding.
        """
        with self._lock.turn(), self._drafted() as draft:
            if hasattr(draft, "forest_"):
                draft._count(X, sample_weight)
            else:
                draft._begin(X, sample_weight, follows=True)
        return self

    def _count(self, X: Any, sample_weight: Any) -> None:
        self._check_not_private()
        rows, texts = read_coded(self, X, reset=False, allow_missing=self._allows_missing)
        copies, n_random_draws = self._copies_that_follow(sample_weight, len(rows), _SEED_OF_SAMPLES)
        self._n_random_draws += n_random_draws
        survey = self._survey(rows, copies)
        n = survey.facts.n
        if not n:
            return
        self._note(texts)
        forests.imputation.check_columns_have_values(self, survey.facts.n_missing, n)
        if not self.prior_.is_open:
            check_rows_inside(self, rows if copies is None else rows[copies > 0], self.forest_.domain)
        if n < _ROWS_TO_RECALIBRATE:
            self._materialise()  # else the threshold would depend on whether it was read before these rows came
        self._was_filled |= bool(survey.facts.n_missing.any())
        self._adopt(self._with_counts(*self._counted(survey, rows, copies)))
        if n >= _ROWS_TO_RECALIBRATE:
            self._draw_sample(survey, follows_rows=False)

    def delete_rows(self, X: Any, *, sample_weight: Any = None) -> Self:
        """Delete rows exactly, as if they had never been counted.

        Only the threshold, ``offset_``, is kept; `p_value` needs a `partial_fit` with at least 100 rows first.
        `sample_weight` is the number of copies of each row to delete, as integers.
        """
        with self._lock.turn(), self._drafted() as draft:
            draft._count_out(X, sample_weight)
        return self

    def _count_out(self, X: Any, sample_weight: Any) -> None:
        rows = self._read(X)
        self._check_not_private()
        copies = read_copies(sample_weight, len(rows))
        count, outside = self._counted(None, rows, copies)
        if (self.forest_.counts < count).any() or (self.forest_.outside < outside).any():
            _, kinds = forests.posterior.leaf_kinds(
                self.forest_, self._fitted.posterior(self.n_jobs), rows, self.n_jobs
            )
            is_empty = (kinds == LeafKind.COMPLEMENTARY) | ((kinds == LeafKind.OUTSIDE) & (self.forest_.outside == 0))
            unknown = np.flatnonzero(is_empty.any(axis=1) & (copies > 0))
            which = f"row {unknown[0]} was never counted" if unknown.size else "some rows were not counted that often"
            raise ValueError(f"{which}: deletion would make a count negative. Nothing was deleted")
        self._keep_threshold()
        self._adopt(self._with_counts(-count, -outside))

    def merge(self, other: BatchMPF) -> Self:
        """Merge another forest with the same partition into this one, exactly as if this one had counted all rows.

        The rows kept by both forests recalibrate the threshold and `p_value`. If either forest keeps none (after
        deletion, or loaded from a file of an earlier version), ``offset_`` is unchanged and `p_value` needs a
        `partial_fit` with at least 100 rows first. Private releases merge with each other; their epsilons add up.
        """
        check_is_fitted(self)
        if not isinstance(other, BatchMPF):
            raise TypeError(f"only a BatchMPF can be merged into a BatchMPF, not {type(other).__name__}")
        check_is_fitted(other)
        with self._lock.turn(), self._drafted() as draft:
            draft._check_same_partition(other)
            with other._frozen():
                theirs, sample, epsilon = other.forest_, other._sample, other._epsilon
                categories = other.encoding_
                draft._was_filled |= other._was_filled
            if draft._epsilon is not None and epsilon is not None:
                draft._epsilon += epsilon
                draft._adopt(draft._with_counts(theirs.counts, theirs.outside))
                draft._offset = draft._calibration = None
                return self
            if draft._sample is None or sample is None:
                draft._keep_threshold()
            else:
                draft._sample = draft._sample.joined(sample, draft._n_categories)
                draft._note({} if categories is None else categories.texts)
                draft._offset = draft._calibration = None
                draft._take_quantiles(draft._sample.in_order_of_priority)
            draft._adopt(draft._with_counts(theirs.counts, theirs.outside))
        return self

    # ---- privacy ----------------------------------------------------------------------------------------------------

    def release(self, epsilon: float = 1.0, X: Any = None, *, random_state: Any = None) -> BatchMPF:
        """Return an epsilon-differentially private copy of the forest, with noisy counts, that can be shared.

        Adding or removing any one row changes the probability of each possible release by a factor of at most
        exp(epsilon). Two releases spend both epsilons. A release can score, explain, be saved and be merged with other
        releases, but it cannot learn.

        Parameters
        ----------
        epsilon : float, default=1.0
            Privacy budget. Smaller values are more private and noisier: each leaf gets noise of about
            ``n_estimators / epsilon`` rows. Use few, shallow trees.
        X : array-like or frame of shape (n_points_, n_features), optional
            The counted rows. If given, a fifth of `epsilon` buys a threshold and p-values; otherwise the release only
            has scores and masses.
        random_state : int or None, default=None
            None takes the noise from the operating system. Set a seed in tests only: the seed reveals the noise.

        Returns
        -------
        forest : BatchMPF
            Its ``privacy_epsilon_`` is `epsilon`.
        """
        check_is_fitted(self)
        if isinstance(epsilon, bool) or not isinstance(epsilon, Real) or not 0 < float(epsilon) <= _MOST_EPSILON:
            raise ValueError(f"epsilon must be a number above 0, at most {_MOST_EPSILON}; got {epsilon!r}")
        self._check_can_be_private()
        rows = None if X is None else self._read(X)
        words = forests.privacy.system_words if random_state is None else _words_of(random_state)
        budget = forests.privacy.Budget.of(float(epsilon), len(self.forest_.root), has_scores=rows is not None)
        twin: BatchMPF = clone(self)
        with self._frozen():
            self._check_not_private()
            if rows is not None and len(rows) != self.n_points_:
                raise ValueError(f"X has {len(rows):,} rows, but {self.n_points_:,} were counted: pass the same rows")
            counts, outside = forests.privacy.private_counts(self.forest_, budget, words)
            twin.forest_ = self.forest_._replace(counts=counts, outside=outside)
            for name in ("n_features_in_", "feature_names_in_", "lifetimes_", "prior_"):
                if hasattr(self, name):
                    setattr(twin, name, getattr(self, name))
        if self.encoding_ is not None:
            twin.encoding_ = self.encoding_.kept(None)  # texts would reveal rows
        twin._epsilon = float(epsilon)
        if rows is not None and not isinstance(twin.score_type, EpsilonPhi):
            twin._calibration = twin._private_calibration(rows, budget, words)
        return twin

    def _private_calibration(self, rows: Array, budget: Budget, words: Callable[[int], Array]) -> Array:
        """Return log-scores with nearly the distribution of this release's scores of its rows."""
        lowest = forests.privacy.lowest_log_mass(self.forest_, self._fitted.posterior(self.n_jobs))
        logs = self._score.to_log(self._scores(rows))
        found = forests.privacy.private_scores(logs, lowest, self.n_points_, budget, words)
        most = max(n_to_calibrate(self.false_alarm_rate), _LEAST_SAMPLE)
        return found if len(found) <= most else found[np.linspace(0, len(found) - 1, most).astype(int)]

    def _check_can_be_private(self) -> None:
        """Raise ValueError if a row affects more than one leaf per tree."""
        if not self._has_given_domain or self._notes.get("domain") == "rows":
            raise ValueError(
                "the domain is computed from the rows and would reveal their extremes: fit with "
                "tree=Tree(domain=...), with bounds chosen without looking at the rows"
            )
        if self._was_filled:
            raise ValueError(
                "missing values were imputed from other rows, so one row can affect many cells: fit complete rows only"
            )

    def _check_not_private(self) -> None:
        if self._epsilon is not None:
            raise ValueError(
                "this forest is a private release and cannot learn or delete rows: update the original forest and "
                "release it again"
            )

    def __add__(self, other: object) -> BatchMPF:
        if not isinstance(other, BatchMPF):
            return NotImplemented
        return deepcopy(self).merge(other)

    def _begin(self, X: Any, sample_weight: Any, *, follows: bool) -> None:
        """Start with a table, or with its first part if more of it `follows`."""
        rows = read_rows(self, X, reset=True, allow_missing=self._allows_missing)
        self._n_random_draws, self._epsilon = 0, None
        if follows:
            copies, self._n_random_draws = self._copies_that_follow(sample_weight, len(rows), _SEED_OF_SAMPLES)
        else:
            copies = self._copies_of_table(sample_weight, len(rows), _SEED_OF_SAMPLES)
        forests.copies.check_any_counts(copies)
        survey = self._survey(rows, copies)
        self._cut(survey, self._seed())
        self._take_counts(survey, *self._counted(survey, rows, copies))

    def _survey(self, rows: Array, copies: Array | None) -> Survey:
        """Survey rows, each repeated `copies` times."""
        if copies is None:
            return self._inquiry().of_table(rows)
        return self._inquiry().of_copies(rows, copies, forests.copies.starts_of(copies))

    def _counted(self, survey: Survey | None, rows: Array, copies: Array | None) -> tuple[Array, Array]:
        """Count rows, each `copies` times; a survey imputes missing values."""

        def filled(rows: Array, ids: Array) -> Array:
            return rows if survey is None else survey.filled(rows, ids)

        if copies is None:
            return forests.learn.count_rows(self.forest_, filled(rows, np.arange(len(rows))), self.n_jobs)
        starts = forests.copies.starts_of(copies)
        return forests.learn.count_copies(self.forest_, rows, copies, starts, filled, self.n_jobs)

    def _inquiry(self) -> Inquiry:
        """Return the inquiry to survey a table with before its rows are counted."""
        n_wanted = max(n_to_calibrate(self.false_alarm_rate), _LEAST_SAMPLE)
        return forests.survey.Inquiry(_SEED_OF_SAMPLES, n_wanted, self._allows_missing, self._n_categories)

    def _cut(self, survey: Survey, seed: np.random.SeedSequence) -> None:
        """Cut the domain of a table without counting rows."""
        tree, facts = self._tree, survey.facts
        if self._max_depth is None and not np.isfinite(tree.lifetime):
            raise ValueError("without max_depth and lifetime a Mondrian process never ends: set one of them in tree=")
        self._check_rates(facts.n)
        forests.imputation.check_columns_have_values(self, facts.n_missing, facts.n)
        domain = self._given_domain(self.n_features_in_) if self._has_given_domain else facts.box
        measured = weighting_of_domain(domain, self._n_categories)
        self.forest_ = forests.grow.sample_processes(self._plan(measured, domain, seed))

    def _take_counts(self, survey: Survey, counts: Array, outside: Array) -> None:
        """Start with these counts of a table."""
        self._sample = self._calibration = self._offset = self._epsilon = None
        self._was_filled = bool(survey.facts.n_missing.any())
        self._adopt(self._with_counts(counts, outside))
        self._draw_sample(survey, follows_rows=not self._has_given_domain)
        self._take_quantiles(survey.drawn.rows)

    def _adopt(self, forest: Forest) -> None:
        """Replace the forest and drop what was derived from it."""
        self.forest_, self._derived = forest, lasting(vars(self).get("_derived", {}))

    # ---- thresholds -------------------------------------------------------------------------------------------------

    def _new_fitted(self) -> FittedForest:
        return FittedCounts(self.forest_, self.prior_, self.lifetimes_, self._quantiles, self._sample)

    def _threshold(self) -> float:
        if self._epsilon is not None and self._calibration is None:
            raise ValueError(
                "this private release has no threshold: pass the rows, release(epsilon, X), or use score_samples and "
                "mass. To merge, merge the forests first and then release"
            )
        offset, rate = self._place_threshold(), self.false_alarm_rate
        if offset == -np.inf and rate is not None:
            check_calibration_size(len(self._calibration_scores()), rate, "fit more rows or set a higher rate")
        return offset

    def _place_threshold(self) -> float:
        with self._frozen():
            policy = self._policy
            if self._offset is not None and self._offset.policy == policy:
                return self._offset.value
            if policy.contamination is not None and self._sample is not None:
                logs = self._score.to_log(self._scores(self._sample.rows))
            else:
                logs = self._calibration_scores()
            if self._offset is not None and not len(logs):
                raise ValueError(
                    f"the threshold cannot be recomputed without calibration scores: {self._why_uncalibrated}"
                )
            threshold = policy.threshold(np.sort(logs).tolist())
            self._offset = Offset(policy, float(self._score.from_log(np.array(threshold))))
            return self._offset.value

    def _calibration_scores(self) -> Array:
        if isinstance(self.score_type, EpsilonPhi):
            return np.empty(0)
        with self._frozen():
            if self._calibration is None and self._sample is not None:
                self._calibration = self._score.to_log(self._scores_counted_out(self._sample))
            return np.empty(0) if self._calibration is None else self._calibration

    def _keep_threshold(self) -> None:
        """Materialise the threshold before counts change, and drop the calibration sample."""
        self._materialise()
        self._sample = self._calibration = self._quantiles = None
        self.encoding_ = None if self.encoding_ is None else self.encoding_.kept(None)

    def _draw_sample(self, survey: Survey, *, follows_rows: bool) -> None:
        """Keep a sample of the rows just counted, to calibrate with when needed."""
        if survey.facts.n >= 2:
            self._sample = CalibrationSample.of(survey, follows_rows=follows_rows)
            self._offset = self._calibration = None

    def _take_quantiles(self, sample: Array) -> None:
        """Set the usual ranges from a sample of rows in order of priority."""
        from polyaforest.explain.context import MOST_ROWS, quantiles_of

        self._quantiles = quantiles_of(sample[:MOST_ROWS])

    def _scores_counted_out(self, sample: CalibrationSample) -> Array:
        """Return the scores of counted rows, each left out of the counts.

        Rows with missing values, and rows beyond a given domain, are left out in two halves.
        """
        domain, rows, whole = self.forest_.domain, sample.rows, sample.whole
        follows_rows, own = sample.edges is not None, sample.beyond(domain, self._n_categories)
        is_outside = ~are_within(own, domain, self._n_categories)
        is_apart = np.isnan(rows).any(axis=1) | (is_outside & (not follows_rows))
        is_moved = is_outside & ~is_apart & (not self._score.uses_cells)  # to a place that no cell covers
        is_plain, scores = ~(is_apart | is_moved), np.empty(len(own))
        if is_plain.any():
            scores[is_plain] = forests.score.left_out_scores(
                self._score,
                self.forest_,
                self._fitted.posterior(self.n_jobs),
                self.prior_,
                own[is_plain],
                self.lifetimes_,
                self.n_jobs,
            )
        if is_moved.any():
            scores[is_moved] = self._scores(own[is_moved])
        apart = np.flatnonzero(is_apart)
        for half in (apart[::2], apart[1::2]):
            if half.size:
                counts, outside = forests.learn.count_rows(self.forest_, whole[half], self.n_jobs)
                rest = FittedCounts(
                    self._with_counts(-counts, -outside), self.prior_, self.lifetimes_, None, self._sample
                )
                scores[half] = rest.scores(rows[half], self._query)
        return scores

    def _scores_left_out(self, rows: Array, places: Array) -> Array:
        """Return log-scores of rows of the fitted table, each left out of the counts."""
        whole = forests.imputation.fill_table(self, rows)
        drawn = forests.draws.Draw(
            len(places), np.zeros(len(places), np.uint64), places, np.hstack([rows[places], whole[places]])
        )
        sample = CalibrationSample(drawn, None if self._sample is None else self._sample.edges)
        return self._score.to_log(self._scores_counted_out(sample))

    # ---- state ------------------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        if hasattr(self, "forest_"):
            self._materialise()
        return super().__getstate__()

    def _materialise(self) -> None:
        """Compute the threshold and the calibration scores, which are otherwise lazy."""
        if not isinstance(self.score_type, EpsilonPhi):
            self._place_threshold()
            self._calibration_scores()

    def _state(self, *, is_compact: bool = False) -> tuple[Header, Arrays]:
        self._materialise()
        scores = self._calibration_scores()
        header, arrays = super()._state()
        if len(scores):
            arrays["calibration"] = self._score.from_log(scores)
        if self._epsilon is not None:
            arrays["epsilon"] = np.array(self._epsilon)
        if self.missing != "error":
            arrays["filled"] = np.array(self._was_filled, np.int64)
        kept = {} if self._sample is None else self._sample.state()
        return header, {**arrays, **{f"sample/{name}": part for name, part in kept.items()}}

    @classmethod
    def _of_state(cls, header: Header, arrays: Arrays) -> Self:
        forest: Self = super()._of_state(header, arrays)
        if not forest.forest_.size.all():
            raise ValueError("its forest is empty")
        if "calibration" in arrays:
            check_scores("calibration", arrays["calibration"])
            forest._calibration = forest._score.to_log(arrays["calibration"])
        forest._was_filled = forest.missing != "error" and bool(arrays["filled"])
        if "epsilon" in arrays:
            forest._epsilon = float(arrays["epsilon"])
            if not 0 < forest._epsilon < np.inf:  # NaN fails too
                raise ValueError(f"epsilon is {forest._epsilon}, but must be positive and finite")
        kept = {name.removeprefix("sample/"): part for name, part in arrays.items() if name.startswith("sample/")}
        forest._sample = CalibrationSample.of_state(kept, forest.n_features_in_, forest._n_categories) if kept else None
        if forest._offset is None and not isinstance(forest.score_type, EpsilonPhi):
            raise ValueError("it has no offset")
        forest._check()
        return forest

    def _with_counts(self, counts: Array, outside: Array) -> Forest:
        """Return the forest with these counts added to its own."""
        forest = self.forest_
        check_countable(_n_counted(forest), _n_counted(forest._replace(counts=counts, outside=outside)))
        return forest._replace(counts=forest.counts + counts, outside=forest.outside + outside)

    def _check_same_partition(self, other: BatchMPF) -> None:
        if (self._epsilon is None) != (other._epsilon is None):
            raise ValueError("only one of the forests is a private release: true and noisy counts cannot be merged")
        for name, mine, theirs in (
            ("n_estimators", self.n_estimators, other.n_estimators),
            ("score_type", self.score_type, other.score_type),
            ("tree__max_depth", self._tree.max_depth, other._tree.max_depth),
            ("tree__lifetime", self._tree.lifetime, other._tree.lifetime),
        ):
            if mine != theirs:
                raise ValueError(f"forests differ in {name} ({mine!r} and {theirs!r}) and cannot be merged")
        if self.prior_.strength != other.prior_.strength:
            strengths = f"{self.prior_.strength} and {other.prior_.strength}"
            raise ValueError(f"forests differ in prior_strength ({strengths}) and cannot be merged")
        if self.prior_.is_open != other.prior_.is_open:
            raise ValueError("only one of the forests allows rows beyond its domain: they cannot be merged")
        names, others = (getattr(forest, "feature_names_in_", np.array([])) for forest in (self, other))
        if not np.array_equal(names, others) or self.n_features_in_ != other.n_features_in_:
            raise ValueError("forests were fitted on different columns and cannot be merged")
        own, their = (() if forest.encoding_ is None else forest.encoding_.columns for forest in (self, other))
        if own != their:
            raise ValueError("forests have categories in different columns and cannot be merged")
        if not np.array_equal(self.forest_.domain, other.forest_.domain):
            raise ValueError("forests have different domains and cannot be merged: set the same domain array in both")
        for name in ("left", "feature", "cut", "time", "weights"):
            if not np.array_equal(getattr(self.forest_, name), getattr(other.forest_, name), equal_nan=name == "cut"):
                raise ValueError(
                    "forests cut their domain differently and cannot be merged: set the same integer random_state and "
                    "the same feature_weights in both"
                )
