"""The streaming detector: a forest of Mondrian trees that learns and forgets point by point."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from datetime import timedelta
from math import inf
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from sklearn.base import _fit_context, clone
from sklearn.utils._param_validation import Interval, StrOptions

from polyaforest import forest as forests
from polyaforest.detectors.forest import ForestDetector
from polyaforest.detectors.tree import Tree
from polyaforest.explain import Explanation
from polyaforest.forest.calibration import n_to_calibrate
from polyaforest.forest.point_store import Key, Labels, copied_keys
from polyaforest.forest.retention import Policy, Reservoir, Window, as_policy
from polyaforest.forest.score_types import EpsilonPhi, Score
from polyaforest.forest.spec import unmeasured
from polyaforest.forest.thresholds import NOTHING, Detections, check_scores
from polyaforest.kernels.arrays import EVERY, Array, Prior
from polyaforest.kernels.boxes import empty_box
from polyaforest.model.base import ForestModel
from polyaforest.model.fitted import ExplainedRows, FittedForest, FittedStream
from polyaforest.model.stream_model import LearnTask, StreamModel
from polyaforest.storage.modelfile import Arrays, Header
from polyaforest.tables.categories import Codes
from polyaforest.tables.validation import (
    LARGEST,
    SMALLEST,
    check_box_inside,
    check_complete,
    check_countable,
    check_rows_inside,
    read_coded,
    read_copies,
    read_keys,
    read_one_or_more_keys,
    read_rows,
    read_stamps,
)
from polyaforest.util import schema
from polyaforest.util.locks import uninterrupted

if TYPE_CHECKING:
    from polyaforest.forest.stream import Stream
    from polyaforest.forest.survey import Inquiry, Survey

_LEAST_HELD = 2048  # points of a table that the forest holds with window="auto"
_FEW = 16  # up to so many rows are explained one by one; replaying more rows on a copy is faster
_SAMPLE_SIZES = np.array([8, 16, 32, 64])  # points per tree, cycling through the trees
_SIZES_WITH_CATEGORIES = np.array([32, 64, 128, 256])  # fewer do not show which categories occur together


class StreamingMPF(ForestDetector):
    """Streaming Mondrian Pólya forest (sMPF).

    Each tree cuts the bounding box of its points at random, preferring long sides, and a Bayesian posterior assigns
    probability mass to each cell. Rows with little mass around them are anomalies; scores are higher for normal rows.
    `fit` learns a table, `partial_fit` continues with more rows, and `delete` removes learned points exactly.

    Parameters
    ----------
    n_estimators : int, default=100
        Number of trees.
    max_samples : "auto", int, float or None, default="auto"
        Number or share of the points held that each tree samples without replacement; None for all. "auto" cycles
        through 8, 16, 32 and 64 points (with categories 32, 64, 128 and 256), at most half of the points: small
        samples separate clusters of anomalies, larger ones resolve finer structure. Samples stay uniform as points
        come and go. Ignored with ``window=None`` or ``Tree(domain="data")``, where trees use all points.
    window : "auto", int, timedelta, Window, Reservoir or None, default="auto"
        Points to hold: the last n, those of a duration, or a random sample (`Reservoir`). None holds no points, only
        counts in trees, and needs a limited depth. "auto" holds a uniform sample of 2,048 rows after `fit` (more if
        `false_alarm_rate` needs them), or the last 256 rows of a stream that starts with `partial_fit`.
    tree : Tree, optional
        Depth, lifetime, feature weights, prior and domain of each tree.
    score_type : {"margins", "typicality", "multiscale", "mass", "log_mass"} or EpsilonPhi, default="margins"
        The score, described at `score_samples`. "margins" is "typicality" plus, once 256 points are held, the bits of
        single features outside their margins. "mass" is the paper's score; `EpsilonPhi` also sets its threshold.
    contamination : "auto" or float in (0, 0.5], default="auto"
        Share of rows to flag, estimated from the points held. "auto" places the threshold far enough below the bulk of
        the scores to flag about one normal row in a thousand.
    false_alarm_rate : float between 0 and 1, optional
        Share of new normal rows to flag, instead of `contamination`. See `p_value`.
    missing : {"impute", "marginalise", "error"}, default="impute"
        How to handle NaN. "impute" completes a row with the values of the 8 most similar points and averages the
        scores of the completions. "marginalise" scores the observed values alone; fewer values give higher scores.
        Both learn the row with the values of the most similar point. "error" raises ValueError. Scores ignore a column
        until 256 rows after its first value.
    categorical_features : "from_dtype", array-like of str, int or bool, or None, default="from_dtype"
        Categorical columns, as in scikit-learn's `HistGradientBoostingClassifier`: names, indices, a boolean mask, None
        for no column, or "from_dtype" for columns of type ``category`` (pandas), ``Categorical`` or ``Enum`` (polars)
        or dictionary (Arrow). Other text columns raise ValueError. Categories are compared by their text; unseen
        categories are allowed.
    random_state : int, RandomState or None, default=None
        Seed of the trees and samples.
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
        Number of points held, or counted with ``window=None``.
    n_seen_ : int
        Number of rows learned so far, held or not.
    keeps_points_ : bool
        Whether the forest holds points.
    points_ : ndarray of shape (n_points_, n_features)
        The points held, by order of arrival; NaN in columns without a value so far.
    times_ : ndarray of shape (n_points_,)
        Their times; NaN if not given.
    keys_ : list
        Their keys.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
    is_categorical_ : ndarray of bool, shape (n_features,), or None
        Mask of the categorical columns; None if there are none.
    categories_ : dict of str to list of str
        The categories of the points held, by column.
    encoding_ : Categories or None
        Encoding of categories as numbers; None if there are none.

    Notes
    -----
    The paper's setting is ``window=None, score_type="mass"`` with
    ``tree=Tree(feature_weights=None, max_depth=10, domain="data")``.

    Examples
    --------
    >>> import numpy as np
    >>> from polyaforest import StreamingMPF
    >>> X = np.random.default_rng(0).normal(size=(1000, 2))
    >>> forest = StreamingMPF(random_state=0).fit(X)
    >>> forest.predict([[0.0, 0.0], [8.0, 8.0]])
    array([ 1, -1])
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **ForestDetector._parameter_constraints,
        "max_samples": [
            StrOptions({"auto"}),
            Interval(Integral, 1, None, closed="left"),
            Interval(Real, 0, 1, closed="right"),
            None,
        ],
        "window": [
            StrOptions({"auto"}),
            Interval(Integral, 1, None, closed="left"),
            Window,
            Reservoir,
            timedelta,
            None,
        ],
    }

    _auto_depth: ClassVar[int | None] = None
    _rules_of_state: ClassVar[dict[str, schema.Rule]] = {"stream": schema.either(schema.nothing, schema.mapping)}
    _groups_of_arrays: ClassVar[tuple[str, ...]] = ("forest", "points", "stream", "compact")
    _kind: ClassVar[type[FittedForest]] = FittedStream
    _model: StreamModel
    _damping: Array | None = None  # factor by which the weight of each feature is reduced

    def __init__(
        self,
        *,
        n_estimators: int = 100,
        max_samples: int | float | str | None = "auto",
        window: int | timedelta | Window | Reservoir | str | None = "auto",
        tree: Tree | None = None,
        score_type: str | EpsilonPhi = "margins",
        contamination: str | float = "auto",
        false_alarm_rate: float | None = None,
        missing: str = "impute",
        categorical_features: Any = "from_dtype",
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        self.n_estimators = n_estimators
        self.max_samples = max_samples
        self.window = window
        self.tree = tree
        self.score_type = score_type
        self.contamination = contamination
        self.false_alarm_rate = false_alarm_rate
        self.missing = missing
        self.categorical_features = categorical_features
        self.random_state = random_state
        self.n_jobs = n_jobs

    # ---- learning ---------------------------------------------------------------------------------------------------

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None, *, keys: Any = None, times: Any = None, sample_weight: Any = None) -> Self:
        """Fit the forest to the rows of `X`, replacing any previous fit; `y` is ignored.

        The forest holds the points that the window keeps, as if rows had arrived one by one, but feature weights
        depend on all rows (on a sample and the range of all, if the window is a uniform sample). `keys`, `times` and
        `sample_weight` are as in `partial_fit`.
        """
        with self._lock.turn(), self._drafted() as draft:
            draft._grow(X, keys, times, sample_weight)
        return self

    def partial_fit(
        self, X: Any, y: Any = None, *, keys: Any = None, times: Any = None, sample_weight: Any = None
    ) -> Self:
        """Learn rows in order, dropping old points as the window requires; `y` is ignored.

        Parameters
        ----------
        X : array-like or frame of shape (n_rows, n_features)
        keys : sequence of int or str, optional
            Keys to `delete` the rows by. The default key of a row is its arrival number, from 0.
        times : array-like of float or datetime, optional
            The time of each row; required by windows of a duration.
        sample_weight : array-like of shape (n_rows,), optional
            Number of times to learn each row. Fractions are rounded at random: 2.3 counts as 3 with probability 0.3,
            for any chunks. All copies of a row share its key.
        """
        self._advance(X, keys, times, LearnTask(), sample_weight)
        return self

    def score_then_learn(self, X: Any, *, keys: Any = None, times: Any = None, sample_weight: Any = None) -> Array:
        """Score each row, then learn it, row by row (prequential evaluation).

        Results do not depend on how rows are split into calls.

        Parameters
        ----------
        X, keys, times, sample_weight
            As in `partial_fit`. Rows of weight 0 are scored but not learned; rows of larger weight are scored before
            their first copy is learned.

        Returns
        -------
        scores : ndarray of shape (n_rows,)
            As in `score_samples`; higher is more normal. An empty forest gives every row a mass of 1/2.
        """
        return self._advance(X, keys, times, LearnTask(is_scored=True), sample_weight)[0].scores

    def detect_then_learn(
        self, X: Any, *, keys: Any = None, times: Any = None, sample_weight: Any = None, explain: bool = False
    ) -> Detections:
        """Return scores, p-values and verdicts of each row, then learn it, row by row.

        The score of a row is compared with the scores of the last 1,000 rows, or of the last
        ``10 / false_alarm_rate`` if that is more, so the threshold follows the stream. After `fit` or `partial_fit`,
        the first rows are compared with out-of-sample scores of the points held. A new stream flags none of its first
        100 rows. Deleting a point also deletes its score. Results do not depend on how rows are split into calls.

        Parameters
        ----------
        X, keys, times, sample_weight
            As in `score_then_learn`.
        explain : bool, default=False
            Whether to explain the flagged rows, each before it is learned.

        Returns
        -------
        detections : Detections
            A named tuple of arrays of shape (n_rows,): `scores`, `p_values`, `is_anomaly` and `thresholds`, and the
            dict `explanations` of flagged rows, by position.
        """
        task = LearnTask(is_scored=True, is_judged=True, is_explained=explain)
        return self._advance(X, keys, times, task, sample_weight)[0]

    def insert(self, x: Any, key: Key | None = None, time: Any = None) -> Key | None:
        """Learn one point.

        Parameters
        ----------
        x : array-like of shape (n_features,)
        key : int or str, optional
            Key to `delete` it by. The default is its arrival number, from 0.
        time : float or datetime, optional
            Its time; required by windows of a duration.

        Returns
        -------
        key : int, str or None
            The key of the point; None if the window does not hold it.
        """
        if isinstance(x, Mapping):
            raise TypeError("insert takes an array of values in column order; got a mapping")
        is_series, is_frame = hasattr(x, "to_frame") and hasattr(x, "index"), hasattr(x, "columns")
        row = x.to_frame().T if is_series else x if is_frame else np.atleast_2d(np.asanyarray(x))
        if len(row) != 1 or row.ndim != 2:
            raise ValueError(f"insert takes a single point of shape (n_features,); got shape {np.shape(x)}")
        return self._advance(row, None if key is None else [key], None if time is None else [time], LearnTask())[1]

    def delete(self, keys: Key | Iterable[Key], *, sample_weight: Any = None) -> Self:
        """Delete points exactly, as if they had never been learned.

        Parameters
        ----------
        keys : int, str, or a sequence of them
            If a key is not held, KeyError is raised and nothing is deleted.
        sample_weight : array-like of int, one for each key, optional
            Number of copies to delete, oldest first; by default all.
        """
        stream, wanted = self._continued(), read_one_or_more_keys(keys)
        limits = None if sample_weight is None else read_copies(sample_weight, len(wanted))
        self._check_companion()
        with self._writing(stream):
            self._model.delete(wanted, limits, self.n_jobs)
        self._have_companion_forget(wanted)
        return self

    def delete_rows(self, X: Any, *, sample_weight: Any = None) -> Self:
        """Delete points by value: for each row of `X` the oldest point equal to it.

        If a row is not held, ValueError is raised and nothing is deleted. `sample_weight` is the number of equal points
        to delete for each row, as integers. Rows may lack values only in columns without a value so far.

        A forest with ``window=None`` can delete rows inside the boxes of all their leaves, and rows with duplicates. It
        cannot verify that a row was learned.
        """
        stream = self._continued()
        rows = stream.columns.placed(super()._read(X, allow_missing=not stream.columns.are_known))
        check_complete(self, rows)
        copies = read_copies(sample_weight, len(rows))
        self._check_companion()
        with self._writing(stream):
            keys = self._model.delete_rows(rows, copies, self.n_jobs)
        self._have_companion_forget(keys)
        return self

    def change_false_alarm_rate(self, rate: float | None) -> Self:
        """Change `false_alarm_rate` without fitting again.

        The threshold changes at once, given the calibration scores held. A lower rate keeps more scores from now on,
        and flags nothing until there are ``1 / rate`` of them.

        Parameters
        ----------
        rate : float between 0 and 1, or None
            None for the automatic threshold.
        """
        draft = clone(self).set_params(false_alarm_rate=rate)
        draft._validate_params()
        draft._check_rates()
        if hasattr(self, "forest_"):
            stream = self._continued()
            with self._writing(stream):
                self.false_alarm_rate = rate
                stream.keep_scores(n_to_calibrate(rate))
                self._model.refresh()
        else:
            self.false_alarm_rate = rate
        return self

    def rebuild(self) -> Self:
        """Recompute feature weights from the points held and regrow all trees, after the scale of a stream changed."""
        stream = self._continued()
        with self._writing(stream):
            if not stream.keeps_points:
                raise ValueError("a forest with window=None holds no points to rebuild from")
            stream.check_consistent()
            stream.rebuild(self.n_jobs)
            self._model.refresh()
        return self

    def add_features(self, values: Any) -> Self:
        """Append columns and regrow the trees; later rows must have these columns.

        Not available if columns have names, or if feature weights or the domain are arrays.

        Parameters
        ----------
        values : array-like of shape (n_new_features,)
            The value of each new feature in the points held.
        """
        stream, filler = self._continued(), np.atleast_1d(np.asarray(values, np.float64))
        if filler.ndim != 1 or not filler.size or not (np.abs(filler) <= LARGEST).all():  # NaN fails too
            raise ValueError(f"values must be one finite number for each new feature; got {values!r}")
        if hasattr(self, "feature_names_in_") or np.ndim(self._tree.feature_weights) or np.ndim(self._tree.domain):
            raise ValueError(
                "cannot add features to named columns, or to feature weights or a domain given as an array"
            )
        with self._writing(stream):
            if not stream.keeps_points:
                raise ValueError("a forest with window=None holds no points to rebuild from")
            stream.widen(np.where(np.abs(filler) < SMALLEST, 0.0, filler), self.n_jobs)
            self.n_features_in_ += len(filler)
            if self.encoding_ is not None:
                are_last = isinstance(self.categorical_features, Codes)
                self.encoding_ = self.encoding_.widened(len(filler), are_last=are_last)
            self._model.refresh()
        return self

    def _damp(self, damping: Array) -> None:
        """Divide the weight of each feature by a factor, (D,), from the next rebuild on."""
        self._damping = damping
        if self.is_fitted:
            self._stream.rules = self._stream.rules._replace(damping=damping)

    def _amend(self, first: int, values: Array) -> None:
        """Replace features of the points held, from the `first` on, by `values`, (n, m), and regrow the trees."""
        stream = self._continued()
        with self._writing(stream):
            stream.amend(first, values, self.n_jobs)
            self._model.refresh()

    # ---- points held -------------------------------------------------------------------------------------------------

    @property
    def keeps_points_(self) -> bool:
        """Whether the forest holds points; with ``window=None`` only during its first 256 rows."""
        self._check_fitted()
        return self._stream.keeps_points

    @property
    def n_points_(self) -> int:
        """Number of points held, or counted with ``window=None``."""
        self._check_fitted()
        with self._frozen():
            return self._stream.n_points

    @property
    def is_frozen_(self) -> bool:
        """Whether the forest cannot learn, because an earlier version saved it without its points."""
        self._check_fitted()
        return self._stream.is_frozen

    @property
    def nbytes(self) -> int:
        """Size of the trees and of the points held, in bytes; 0 before fitting."""
        points = 8 * self.n_points_ * self.n_features_in_ if self.is_fitted else 0
        return points + super().nbytes

    @property
    def n_seen_(self) -> int:
        """Number of rows learned so far, held or not: the position in the stream."""
        self._check_fitted()
        return self._stream.store.n_seen

    @property
    def points_(self) -> Array:
        """The points held, by order of arrival, of shape (n_points_, n_features), with texts of categories.

        Columns without a value so far are NaN.
        """
        with self._with_points() as stream:
            return self._as_given(stream.rows)

    @property
    def times_(self) -> Array:
        """The times of ``points_``, in the same order, as seconds since 1970 or numbers; NaN if not given."""
        with self._with_points() as stream:
            return stream.store.times[stream.store.held]

    def holds(self, key: Key) -> bool:
        """Return whether a point with this key is held."""
        if not hasattr(self, "forest_"):
            return False
        with self._with_points() as stream:
            return key in stream.store.slot_of

    @property
    def keys_(self) -> list[Key]:
        """The keys of ``points_``, in the same order."""
        with self._with_points() as stream:
            return stream.store.held_keys

    # ---- thresholds -------------------------------------------------------------------------------------------------

    def _as_given(self, rows: Array) -> Array:
        return super()._as_given(self._stream.columns.shown(rows))

    def _read(self, X: Any, *, allow_missing: bool = False) -> Array:
        rows = super()._read(X, allow_missing=allow_missing)
        return self._stream.as_scored(rows, is_marginal=self._query.is_marginal)

    def _scores_left_out(self, rows: Array, places: Array) -> Array:
        """Return log-scores of rows of the fitted table, each left out of the forest; NaN if all trees contain it."""
        return self._model.scores_left_out(rows, places, self._query)

    # ---- state ------------------------------------------------------------------------------------------------------

    def _state(self, *, is_compact: bool = False) -> tuple[Header, Arrays]:
        is_compact &= self._model.can_be_compact
        header, arrays = super()._state(is_compact=is_compact)
        about, parts = self._model.state(is_compact=is_compact)
        return {**header, "stream": about}, {**arrays, **parts}

    def _restored_model(self, header: Header, arrays: Arrays, prior: Prior) -> ForestModel:
        if header["stream"] is None:
            return StreamModel(self._frozen_stream(arrays, prior))
        is_compact = any(name.startswith("compact/") for name in arrays)
        trees = None if is_compact else self._trees_in(arrays)
        state = header["stream"], arrays, trees, prior, arrays["lifetimes"], self._n_categories
        return StreamModel(forests.stream_state.stream_of_state(*state))

    def _complete_model(self, arrays: Arrays) -> None:
        if not self._stream.is_frozen and self._policy.contamination is None:
            self._model.offset = None  # derived from the calibration scores; else it may be that of a larger table
        self._check_besides_trees()

    def _frozen_stream(self, arrays: Arrays, prior: Prior) -> Stream:
        """Return the stream of a table that an earlier version saved without its points."""
        unknown = [name for name in arrays if name.startswith(("points/", "stream/", "compact/"))]
        if unknown:
            raise ValueError(f"array {unknown[0]}: belongs to a stream, but the header has none")
        trees = self._trees_in(arrays)
        if np.isnan(arrays["offset"]) or not trees.size.all():
            raise ValueError("it has no stream, and its forest is empty or has no offset")
        scores = arrays.get("calibration", np.empty(0))
        check_scores("calibration", scores)
        plan = self._plan(unmeasured(self.n_features_in_, None), trees.domain, self._seed())
        sizes, score = np.full(len(trees.root), EVERY), self._chosen_score
        n = max(len(scores), n_to_calibrate(self.false_alarm_rate))
        rules = forests.stream.Rules(plan._replace(n_trees=len(sizes)), None, prior, self._grid, score, sizes, n)
        return forests.stream_state.frozen_stream(rules, trees, arrays["lifetimes"], score.to_log(scores))

    # ---- learning, step by step -------------------------------------------------------------------------------------

    def _grow(self, X: Any, keys: Any, times: Any, sample_weight: Any) -> None:
        rows = read_rows(self, X, reset=True, allow_missing=self._allows_missing)
        policy, seed = self._policy_of_table(), self._seed()
        copies = self._copies_of_table(sample_weight, len(rows), forests.survey.seed_of_draws(seed))
        forests.copies.check_any_counts(copies)
        n = len(rows) if copies is None else int(copies.sum())
        self._check_rates(n)
        domain = self._domain_around(rows if copies is None else rows[copies > 0])
        self._model = StreamModel(self._new_stream((n, rows.shape[1]), domain, policy, seed))
        stream = self._stream
        stamps, names = self._read_labels(stream, len(rows), keys, times)
        if policy is not None and policy.is_uniform and copies is not None:
            stream.store.check_keys(copied_keys(names, copies) if keys is not None else [])
            survey = self._inquiry(seed).of_copies(rows, copies, forests.copies.starts_of(copies))
            self._begin_with(survey, lambda numbers: Labels.of_copies(names, stamps, copies, numbers))
        elif policy is not None and policy.is_uniform:
            stream.store.check_keys(names)
            survey = self._inquiry(seed).of_table(rows)
            self._begin_with(survey, lambda places: Labels.of(names, stamps, places))
        else:
            if copies is not None:
                forests.grow.check_table_fits_memory(n, rows.shape[1])
                rows, stamps, names = rows.repeat(copies, axis=0), stamps.repeat(copies), copied_keys(names, copies)
            stream.store.check_keys(names)
            whole = forests.imputation.fill_table(self, rows)
            self._model.begin_with_table(rows, whole, names, stamps, self._query)

    def _inquiry(self, seed: np.random.SeedSequence) -> Inquiry:
        """Return the inquiry to survey a table with before the trees are grown."""
        policy = self._policy_of_table()
        assert isinstance(policy, Reservoir)
        most = max(_LEAST_HELD, policy.n)
        return forests.survey.Inquiry.seeded(seed, most, self._allows_missing, self._n_categories)

    def _grow_from(self, survey: Survey, seed: np.random.SeedSequence) -> None:
        """Fit the forest to a surveyed table; keys are ids, unless these are row numbers."""
        facts, shape = survey.facts, (survey.facts.n, self.n_features_in_)
        self._check_rates(facts.n)
        domain = self._read_domain(self.n_features_in_)
        if self._has_given_domain:
            check_box_inside(self, facts.box, domain)
        self._model = StreamModel(self._new_stream(shape, domain, self._policy_of_table(), seed))

        def labels_of(ids: Array) -> Labels:
            return Labels([None] * len(ids) if facts.has_row_numbers else ids.tolist(), np.full(len(ids), np.nan), -inf)

        self._begin_with(survey, labels_of)

    def _begin_with(self, survey: Survey, labels_of: Callable[[Array], Labels]) -> None:
        """Start with the sample of a table; `labels_of` returns the keys and times of rows by their ids."""
        forests.imputation.check_columns_have_values(self, survey.facts.n_missing, survey.facts.n)
        self._model.begin_with_survey(survey, labels_of, self.n_jobs)

    def _advance(
        self, X: Any, keys: Any, times: Any, task: LearnTask, sample_weight: Any = None
    ) -> tuple[Detections, Key | None]:
        """Learn rows; return the results of the task, and the key of the last row if it is held.

        Validate everything before changing anything.
        """
        if not hasattr(self, "forest_"):
            with self._lock.turn():
                if not hasattr(self, "forest_"):  # no other thread was faster
                    with self._drafted() as draft:
                        return draft._begin(X, keys, times, task, sample_weight)
        rows, texts = read_coded(self, X, reset=False, at_least=0, allow_missing=self._allows_missing)
        stream = self._continued()
        stamps, names = self._read_labels(stream, len(rows), keys, times)
        if texts:
            with self._changing():
                self._note(texts)
        return self._learn_weighted(stream, rows, names, stamps, task, sample_weight)

    def _begin(
        self, X: Any, keys: Any, times: Any, task: LearnTask, sample_weight: Any = None
    ) -> tuple[Detections, Key | None]:
        self._validate_params()
        rows = read_rows(self, X, reset=True, allow_missing=self._allows_missing)
        policy, seed = self._policy_of_stream(), self._seed()
        stream = self._new_stream(rows.shape, self._read_domain(rows.shape[1]), policy, seed)
        stamps, names = self._read_labels(stream, len(rows), keys, times)
        self._model = StreamModel(stream)
        return self._learn_weighted(stream, rows, names, stamps, task, sample_weight)

    def _learn_weighted(
        self, stream: Stream, rows: Array, names: list[Key | None], stamps: Array, task: LearnTask, sample_weight: Any
    ) -> tuple[Detections, Key | None]:
        """Learn weighted rows; the results of a row are those before its first copy."""
        if sample_weight is None:
            return self._learn(stream, rows, names, stamps, task)
        with self._writing(stream):
            copies, n_random_draws = self._copies_that_follow(
                sample_weight, len(rows), int(stream.seeds[0]), self._model.n_random_draws
            )
            if copies is not None:
                self._check_copies(stream, rows, copies, names)
            self._model.n_random_draws += n_random_draws
        if copies is None:
            return self._learn(stream, rows, names, stamps, task)
        if task.is_judged:
            self._seed_calibration(stream, [])
        answers: list[Detections] = []
        key, is_learned = None, copies > 0
        ends = [*(np.flatnonzero(np.diff(is_learned)) + 1).tolist(), len(rows)] if task.is_scored else [len(rows)]
        for start, stop in zip([0, *ends[:-1]], ends, strict=True):
            if task.is_scored and start < stop and not is_learned[start]:
                answers += [self._detect_ahead(stream, rows[i : i + 1], task) for i in range(start, stop)]
                continue
            for places, turns in forests.copies.parts(copies[start:stop], np.zeros(stop - start, np.int64)):
                own = places + start
                part = rows[own], copied_keys([names[i] for i in own.tolist()], turns=turns), stamps[own]
                found, key = self._learn(stream, *part, task)
                answers.append(found.select(np.flatnonzero(turns == 0)) if task.is_scored else found)
        return Detections.joined(answers), key

    def _check_copies(self, stream: Stream, rows: Array, copies: Array, names: list[Key | None]) -> None:
        """Raise, before any row is learned, if one of them is invalid."""
        check_countable(stream.store.n_seen, int(copies.sum()))
        if any(name is not None for name in names):
            stream.store.check_keys(copied_keys(names, copies))
        self._check_inside(rows[copies > 0])

    def _check_inside(self, rows: Array) -> None:
        low, high = self.forest_.domain[:, -1]
        if low <= high:  # only added features, which are last, have no bounds
            check_rows_inside(self, rows, self.forest_.domain)

    def _learn(
        self, stream: Stream, rows: Array, names: list[Key | None], stamps: Array, task: LearnTask
    ) -> tuple[Detections, Key | None]:
        if task.is_explained and len(rows) > _FEW:
            return self._learn_and_replay(stream, rows, names, stamps, task)
        self._check_inside(rows)
        if task.is_judged:
            self._seed_calibration(stream, names)
        ends = [
            *self._model.places_alone(rows, task, self._query),
            len(rows),
        ]  # of runs of rows that are learned together
        answers: list[Detections] = []
        start, key = 0, None
        # more than one iteration only if rows are learned one by one, or if a handler ignored Ctrl-C
        while start < len(rows):
            stop = ends[bisect_left(ends, start)]
            part = slice(start, max(stop, start + 1))
            labels = names[part], stamps[part]
            ahead = self._detect_ahead(stream, rows[part], task) if stop == start else None
            with self._writing(stream) as is_interrupted:
                came = stream.store.n_seen
                check_countable(came, len(rows) - start)
                stream.store.check_keys(names[start:])
                query, model = self._query, self._model
                answers.append(model.learn(rows[part], *labels, task, query, ahead, is_interrupted))
                start += stream.store.n_seen - came
                key = stream.store.newest_key
        return Detections.joined(answers), key

    def _learn_and_replay(
        self, stream: Stream, rows: Array, names: list[Key | None], stamps: Array, task: LearnTask
    ) -> tuple[Detections, Key | None]:
        """Learn rows together, and explain the flagged ones by replaying the rows on a copy."""
        before = deepcopy(self)
        detected, key = self._learn(stream, rows, names, stamps, task._replace(is_explained=False))
        explanations, start = {}, 0
        for i in np.flatnonzero(detected.is_anomaly).tolist():
            part = slice(start, i)
            before._learn(before._stream, rows[part], names[part], stamps[part], LearnTask())
            explanations[i] = before._explanation(rows[i : i + 1], detected.row(i))
            start = i
        return detected._replace(explanations=explanations), key

    def _detect_ahead(self, stream: Stream, row: Array, task: LearnTask) -> Detections:
        """Return the results for a single row before it is learned."""
        if not task.is_scored:
            return NOTHING
        with self._frozen():
            detected = self._model.detect_ahead(row, task, self._query)
        if not (task.is_explained and detected.is_anomaly[0]):
            return detected
        return detected._replace(explanations={0: self._explanation(row, detected)})

    def _explanation(self, row: Array, detected: Detections) -> Explanation:
        """Explain a flagged row, given the threshold it was compared with."""
        names = self._feature_names
        given = ExplainedRows(row, names, np.arange(len(names)), self.encoding_)
        with self._frozen():
            return self._model.explanation(given, detected, self._query)

    def _seed_calibration(self, stream: Stream, names: list[Key | None]) -> None:
        """Seed the calibration scores of a stream with those of the points held, if there are any."""
        if len(stream.calibration) or not stream.n_points or not stream.keeps_points:
            return
        with self._writing(stream):
            stream.store.check_keys(names)  # raise before changing anything
            self._model.seed_calibration(self._query)

    @staticmethod
    def _read_labels(stream: Stream, n_rows: int, keys: Any, times: Any) -> tuple[Array, list[Key | None]]:
        """Return the times and keys of rows."""
        if keys is not None and stream.rules.policy is None:
            raise ValueError("a forest with window=None holds no points and takes no keys: omit keys or set a window")
        return read_stamps(times, n_rows, needed=stream.store.policy.needs_times), read_keys(keys, n_rows)

    def _new_stream(
        self, shape: tuple[int, ...], domain: Array, policy: Policy | None, seed: np.random.SeedSequence
    ) -> Stream:
        """Return a stream with the current parameters for rows of this shape."""
        self._check_rates()
        if policy is None and self._max_depth is None:
            raise ValueError("window=None needs trees of limited depth: set max_depth in tree=, or set a window")
        n_rows, n_features = shape
        plan = self._plan(unmeasured(n_features, None), domain, seed)
        sizes, n_calibration = self._sizes_in_stream(policy, n_rows), n_to_calibrate(self.false_alarm_rate)
        score = self._chosen_score
        rules = forests.stream.Rules(plan, policy, self._prior, self._grid, score, sizes, n_calibration, self._damping)
        return forests.stream.Stream(rules)

    def _sizes_in_stream(self, policy: Policy | None, n_rows: int) -> Array:
        """Return the sample size of each tree, for a stream that starts with `n_rows` rows.

        Trees use all points if none are held to sample from, or if the domain is the box of all points.
        """
        if policy is None or self._is_closed:
            return np.full(self.n_estimators, EVERY)
        is_table = isinstance(self.window, str) and isinstance(policy, Reservoir)
        most = min(policy.n or n_rows, n_rows) if is_table else policy.n
        sizes = self._sizes_of_samples(most)
        return np.where(sizes < (most or EVERY), sizes, EVERY)

    @contextmanager
    def _with_points(self) -> Iterator[Stream]:
        """Yield the stream while it cannot change."""
        self._check_fitted()
        stream = self._stream
        with self._frozen():
            if not stream.keeps_points:
                raise AttributeError("a forest with window=None holds no points")
            yield stream

    def _sizes_of_samples(self, n_rows: int | None) -> Array:
        """Return the sample size of each tree, given the most points held, None if unlimited."""
        most = EVERY if n_rows is None else n_rows
        if self.max_samples is None:
            return np.full(self.n_estimators, most)
        if isinstance(self.max_samples, str):
            sizes = _SIZES_WITH_CATEGORIES if self._n_categories else _SAMPLE_SIZES
            return np.minimum(np.resize(sizes, self.n_estimators), max(most // 2, 1))
        if isinstance(self.max_samples, Integral):
            return np.full(self.n_estimators, min(int(self.max_samples), most))
        if n_rows is None:
            raise ValueError(
                f"max_samples={self.max_samples} is a share of the points held, but this window does not limit their "
                "number: set max_samples to an integer, or limit the number of points in the window"
            )
        return np.full(self.n_estimators, max(int(self.max_samples * n_rows), 1))

    @contextmanager
    def _writing(self, stream: Stream) -> Iterator[Callable[[], bool]]:
        """Change `stream` exclusively and atomically, deferring Ctrl-C; yield whether it was pressed."""
        with uninterrupted() as is_interrupted, self._lock.writing():
            if self._stream is not stream:
                raise RuntimeError("another thread has fitted this forest at the same time: nothing was changed")
            self._model.leave_snapshots()
            yield is_interrupted

    def _policy_of_table(self) -> Policy | None:
        """Return the retention policy for a table: by default as many points as the threshold and the trees need."""
        if not isinstance(self.window, str):
            return self._policy_of_stream()
        wanted = int(self.max_samples) if isinstance(self.max_samples, Integral) else 0
        least = n_to_calibrate(self.false_alarm_rate) if self.false_alarm_rate is not None else 0
        return Reservoir(max(_LEAST_HELD, wanted, least))

    def _policy_of_stream(self) -> Policy | None:
        if isinstance(self.window, str):
            return Window(forests.stream.WARM_UP)
        return None if self.window is None else as_policy(self.window)

    @property
    def _stream(self) -> Stream:
        return self._model.stream

    @property
    def _score(self) -> Score:
        return self._stream.rules.score

    @contextmanager
    def _frozen(self) -> Iterator[None]:
        with super()._frozen():
            if self.is_fitted:
                self._stream.check_consistent()
            yield

    def _continued(self) -> Stream:
        """Return the stream to change; raise ValueError if it is frozen."""
        self._check_fitted()
        if self._stream.is_frozen:
            raise ValueError(
                "this model was fitted on a table by an earlier version and holds no points: it can score, but not "
                "learn or delete. Fit it again"
            )
        return self._stream

    def _domain_around(self, rows: Array) -> Array:
        """Return the domain of a stream that starts with these rows; raise ValueError if a row is outside."""
        domain = self._read_domain(rows.shape[1])
        if self._has_given_domain:
            check_rows_inside(self, rows, domain)
        return domain

    def _read_domain(self, n_features: int) -> Array:
        """Return the domain of a stream; empty if it is the bounding box of the points held."""
        return self._given_domain(n_features) if self._has_given_domain else empty_box(n_features, self._n_categories)
