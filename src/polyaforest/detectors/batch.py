"""The batch detector: a forest of Mondrian processes."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from sklearn.base import clone
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_is_fitted

from polyaforest import forest as forests
from polyaforest.detectors._detector import validates_parameters
from polyaforest.detectors.forest import ForestDetector
from polyaforest.detectors.tree import Tree
from polyaforest.forest.calibration import n_to_calibrate
from polyaforest.forest.score_types import EpsilonPhi, Score
from polyaforest.forest.spec import weighting_of_domain
from polyaforest.kernels.arrays import Array
from polyaforest.model import forest_state
from polyaforest.model.base import ForestModel
from polyaforest.model.count_model import LEAST_SAMPLE, CountModel
from polyaforest.storage.modelfile import Arrays, Header
from polyaforest.tables.validation import (
    check_rows_inside,
    read_coded,
    read_copies,
    read_rows,
)

if TYPE_CHECKING:
    from polyaforest.forest.survey import Inquiry, Survey

_MOST_EPSILON = 1000  # more would hide nothing
_SEED_OF_SAMPLES = 0  # constant, so that the calibration sample does not depend on the trees


def _words_of(random_state: Any) -> Callable[[int], Array]:
    """Return a seeded source of random 64-bit words."""
    rng = np.random.default_rng(random_state)
    return lambda n: rng.integers(2**64, size=n, dtype=np.uint64)


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
    _auto_depth: ClassVar[int | None] = 10
    _groups_of_arrays: ClassVar[tuple[str, ...]] = ("forest", "sample")
    _model: CountModel

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
        return self._model.n_points

    @property
    def privacy_epsilon_(self) -> float | None:
        """The epsilon of a private `release`, summed over merged releases; None for true counts."""
        check_is_fitted(self)
        return self._model.epsilon

    @validates_parameters
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

    @validates_parameters
    def partial_fit(self, X: Any, y: Any = None, *, sample_weight: Any = None) -> Self:
        """Count more rows; rows beyond the domain count as outside. The first call is equivalent to `fit`.

        At least 100 rows recalibrate the threshold and `p_value`. `sample_weight` is as in `fit`, except that the
        number of fractional weights so far determines the rounding.
        """
        with self._lock.turn(), self._drafted() as draft:
            if draft.is_fitted:
                draft._count(X, sample_weight)
            else:
                draft._begin(X, sample_weight, follows=True)
        return self

    def _count(self, X: Any, sample_weight: Any) -> None:
        model = self._model = self._model.copy()
        model.check_not_private()
        rows, texts = read_coded(self, X, reset=False, allow_missing=self._allows_missing)
        drawn = model.n_random_draws
        copies, n_random_draws = self._copies_that_follow(sample_weight, len(rows), _SEED_OF_SAMPLES, drawn)
        model.n_random_draws += n_random_draws
        survey = self._survey(rows, copies)
        if not survey.facts.n:
            return
        self._note(texts)
        forests.imputation.check_columns_have_values(self, survey.facts.n_missing, survey.facts.n)
        if not model.prior.is_open:
            check_rows_inside(self, rows if copies is None else rows[copies > 0], model.forest.domain)
        model.add(survey, *model.count(survey, rows, copies, self.n_jobs), self._query)

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
        self._model.check_not_private()
        model = self._model = self._model.copy()
        model.subtract(rows, read_copies(sample_weight, len(rows)), self._query)
        self._drop_texts()

    def _drop_texts(self) -> None:
        """Drop the texts of categories, together with the sample that has them."""
        self.encoding_ = None if self.encoding_ is None else self.encoding_.kept(None)

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
                theirs, texts = other._model.copy(), {} if other.encoding_ is None else other.encoding_.texts
            model = draft._model = draft._model.copy()
            model.merge(theirs, draft._query)
            if model.epsilon is None and model.sample is None:
                draft._drop_texts()
            elif model.epsilon is None:
                draft._note(texts)
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
            self._model.check_not_private()
            if rows is not None and len(rows) != self.n_points_:
                raise ValueError(f"X has {len(rows):,} rows, but {self.n_points_:,} were counted: pass the same rows")
            twin._model = self._model.released(float(epsilon), budget, words)
            for name in ("n_features_in_", "feature_names_in_"):
                if hasattr(self, name):
                    setattr(twin, name, getattr(self, name))
        if self.encoding_ is not None:
            twin.encoding_ = self.encoding_.kept(None)  # texts would reveal rows
        if rows is not None and not isinstance(twin.score_type, EpsilonPhi):
            twin._model.calibrate_privately(rows, budget, words, twin._query)
        return twin

    def _check_can_be_private(self) -> None:
        """Raise ValueError if a row affects more than one leaf per tree."""
        if not self._parameters.has_given_domain or self._notes.get("domain") == "rows":
            raise ValueError(
                "the domain is computed from the rows and would reveal their extremes: fit with "
                "tree=Tree(domain=...), with bounds chosen without looking at the rows"
            )
        if self._model.was_filled:
            raise ValueError(
                "missing values were imputed from other rows, so one row can affect many cells: fit complete rows only"
            )

    def __add__(self, other: object) -> BatchMPF:
        if not isinstance(other, BatchMPF):
            return NotImplemented
        return deepcopy(self).merge(other)

    def _begin(self, X: Any, sample_weight: Any, *, follows: bool) -> None:
        """Start with a table, or with its first part if more of it `follows`."""
        rows = read_rows(self, X, reset=True, allow_missing=self._allows_missing)
        n_random_draws = 0
        if follows:
            copies, n_random_draws = self._copies_that_follow(sample_weight, len(rows), _SEED_OF_SAMPLES, 0)
        else:
            copies = self._copies_of_table(sample_weight, len(rows), _SEED_OF_SAMPLES)
        forests.copies.check_any_counts(copies)
        survey = self._survey(rows, copies)
        self._cut(survey, self._parameters.seed())
        self._model.n_random_draws = n_random_draws
        self._take_counts(survey, *self._model.count(survey, rows, copies, self.n_jobs))

    def _survey(self, rows: Array, copies: Array | None) -> Survey:
        """Survey rows, each repeated `copies` times."""
        if copies is None:
            return self._inquiry().of_table(rows)
        return self._inquiry().of_copies(rows, copies, forests.copies.starts_of(copies))

    def _inquiry(self) -> Inquiry:
        """Return the inquiry to survey a table with before its rows are counted."""
        n_wanted = max(n_to_calibrate(self.false_alarm_rate), LEAST_SAMPLE)
        return forests.survey.Inquiry(_SEED_OF_SAMPLES, n_wanted, self._allows_missing, self._n_categories)

    def _cut(self, survey: Survey, seed: np.random.SeedSequence) -> None:
        """Cut the domain of a table without counting rows."""
        parameters, facts = self._parameters, survey.facts
        if parameters.tree.max_depth is None and not np.isfinite(parameters.tree.lifetime):
            raise ValueError("without max_depth and lifetime a Mondrian process never ends: set one of them in tree=")
        parameters.check_rates(facts.n)
        forests.imputation.check_columns_have_values(self, facts.n_missing, facts.n)
        given = parameters.has_given_domain
        domain = parameters.given_domain(self.n_features_in_, self._n_categories) if given else facts.box
        measured = weighting_of_domain(domain, self._n_categories)
        plan = parameters.plan(measured, domain, seed, self._n_categories, self._order)
        lifetimes = parameters.grid / plan.weighting.unit
        self._model = CountModel(forests.grow.sample_processes(plan), parameters.prior, lifetimes)

    def _take_counts(self, survey: Survey, counts: Array, outside: Array) -> None:
        """Start with these counts of a table."""
        self._model.begin(survey, counts, outside, follows_rows=not self._parameters.has_given_domain)

    def _scores_left_out(self, rows: Array, places: Array) -> Array:
        """Return log-scores of rows of the fitted table, each left out of the counts."""
        whole = forests.imputation.fill_table(self, rows)
        return self._model.scores_left_out(rows, whole, places, self._query)

    # ---- state ------------------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        if self.is_fitted:
            with self._frozen():
                self._model.materialise(self._query)
        return super().__getstate__()

    def _state(self, *, is_compact: bool = False) -> tuple[Header, Arrays]:
        own = self._model.state(self._query)
        header, arrays = super()._state()
        return header, {**arrays, **own}

    def _restored_model(self, header: Header, arrays: Arrays) -> ForestModel:
        trees = forest_state.trees_of(arrays, self._n_categories)
        return CountModel(trees, forest_state.prior_of(header, arrays), arrays["lifetimes"])

    def _complete_model(self, arrays: Arrays) -> None:
        self._model.restore(arrays, self._query)
        self._check()

    def _check_same_partition(self, other: BatchMPF) -> None:
        self._model.check_same_partition(other._model)
        for name, mine, theirs in (
            ("n_estimators", self.n_estimators, other.n_estimators),
            ("score_type", self.score_type, other.score_type),
            ("tree__max_depth", self._tree.max_depth, other._tree.max_depth),
            ("tree__lifetime", self._tree.lifetime, other._tree.lifetime),
        ):
            if mine != theirs:
                raise ValueError(f"forests differ in {name} ({mine!r} and {theirs!r}) and cannot be merged")
        names, others = (getattr(forest, "feature_names_in_", np.array([])) for forest in (self, other))
        if not np.array_equal(names, others) or self.n_features_in_ != other.n_features_in_:
            raise ValueError("forests were fitted on different columns and cannot be merged")
        own, their = (() if forest.encoding_ is None else forest.encoding_.columns for forest in (self, other))
        if own != their:
            raise ValueError("forests have categories in different columns and cannot be merged")
        self._model.check_same_cuts(other._model)
