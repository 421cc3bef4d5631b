"""The streaming detector: a forest of Mondrian trees that learns and forgets point by point."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from datetime import timedelta
from functools import partial
from math import inf, nan
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from sklearn.utils._param_validation import Interval, StrOptions

from polyaforest import forest as forests
from polyaforest.detectors._detector import remembers_frame, validates_parameters
from polyaforest.detectors.forest import ForestDetector
from polyaforest.detectors.stream_points import StreamPoints
from polyaforest.detectors.tree import Tree
from polyaforest.forest.point_store import Key, Labels, copied_keys
from polyaforest.forest.retention import Policy, Reservoir, Window
from polyaforest.forest.score_types import EpsilonPhi, Score
from polyaforest.forest.thresholds import Detections
from polyaforest.kernels.arrays import Array
from polyaforest.model.base import ForestModel
from polyaforest.model.fitted import ExplainedRows
from polyaforest.model.learning import Access, Learner, NewRows
from polyaforest.model.parameters import StreamParameters
from polyaforest.model.stream_model import LearnTask, StreamModel
from polyaforest.storage.modelfile import Arrays, Header
from polyaforest.tables.validation import (
    as_plain_row,
    check_box_inside,
    check_rows_inside,
    read_coded,
    read_keys,
    read_rows,
    read_sample_weight,
    read_stamps,
)
from polyaforest.util import schema
from polyaforest.util.locks import ReadersWriterLock, uninterrupted

if TYPE_CHECKING:
    from polyaforest.forest.stream import Stream
    from polyaforest.forest.survey import Inquiry, Survey


class StreamingMPF(StreamPoints, ForestDetector):
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
    _groups_of_arrays: ClassVar[tuple[str, ...]] = StreamModel.groups_of_arrays
    _kind_of_parameters: ClassVar[type[StreamParameters]] = StreamParameters
    _parameters: StreamParameters
    _model: StreamModel

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

    @validates_parameters
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

    @remembers_frame
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

    # ---- thresholds -------------------------------------------------------------------------------------------------

    def _as_given(self, rows: Array) -> Array:
        return super()._as_given(self._stream.columns.shown(rows))

    def _scores_left_out(self, rows: Array, places: Array) -> Array:
        """Return log-scores of rows of the fitted table, each left out of the forest; NaN if all trees contain it."""
        return self._model.scores_left_out(rows, places, self._query)

    # ---- state ------------------------------------------------------------------------------------------------------

    def _state(self, *, is_compact: bool = False) -> tuple[Header, Arrays]:
        is_compact &= self._model.can_be_compact
        header, arrays = super()._state(is_compact=is_compact)
        about, parts = self._model.state(is_compact=is_compact)
        return {**header, "stream": about}, {**arrays, **parts}

    def _restored_model(self, header: Header, arrays: Arrays) -> ForestModel:
        if header["stream"] is None:
            return StreamModel.of_frozen_state(header, arrays, self._parameters, self._n_categories, self._order)
        return StreamModel.of_state(header, arrays, self._n_categories)

    def _complete_model(self, arrays: Arrays) -> None:
        self._model.forget_derived_offset(self._query)
        self._check_besides_trees()

    @classmethod
    def _around(
        cls, model: StreamModel | None, parameters: StreamParameters, names: list[str], lock: ReadersWriterLock
    ) -> Self:
        """Return a detector around a model that belongs to another detector with this lock."""
        own = {part.name: getattr(parameters, part.name) for part in fields(parameters) if part.name != "tree"}
        forest = cls._with_tree(parameters.tree, own)
        forest.__dict__["_lock"], forest._names_of_shingle = lock, names
        if model is not None:
            forest._model, forest.n_features_in_ = model, len(names)
        return forest

    # ---- learning, step by step -------------------------------------------------------------------------------------

    def _grow(self, X: Any, keys: Any, times: Any, sample_weight: Any) -> None:
        rows = read_rows(self, X, reset=True, allow_missing=self._allows_missing)
        parameters = self._parameters
        policy, seed = parameters.policy_of_table(), parameters.seed()
        copies = self._copies_of_table(sample_weight, len(rows), forests.survey.seed_of_draws(seed))
        forests.copies.check_any_counts(copies)
        n = len(rows) if copies is None else int(copies.sum())
        parameters.check_rates(n)
        domain = self._domain_around(rows if copies is None else rows[copies > 0])
        self._model = StreamModel(self._new_stream((n, rows.shape[1]), domain, policy, seed))
        stream = self._stream
        _, names, stamps = self._read_labels(stream, rows, keys, times)
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
        return self._parameters.inquiry(seed, self._n_categories)

    def _grow_from(self, survey: Survey, seed: np.random.SeedSequence) -> None:
        """Fit the forest to a surveyed table; keys are ids, unless these are row numbers."""
        facts, shape = survey.facts, (survey.facts.n, self.n_features_in_)
        parameters = self._parameters
        parameters.check_rates(facts.n)
        domain = parameters.domain(self.n_features_in_, self._n_categories)
        if parameters.has_given_domain:
            check_box_inside(self, facts.box, domain)
        self._model = StreamModel(self._new_stream(shape, domain, parameters.policy_of_table(), seed))

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
        found = None if sample_weight is not None else self._advance_alone(X, keys, times, task)
        if found is not None:
            return found
        if not hasattr(self, "forest_"):
            with self._lock.turn():
                if not hasattr(self, "forest_"):  # no other thread was faster
                    with self._drafted() as draft:
                        return draft._begin(X, keys, times, task, sample_weight)
        rows, texts = read_coded(self, X, reset=False, at_least=0, allow_missing=self._allows_missing)
        self._continued()
        model = self._model
        new = self._read_labels(model.stream, rows, keys, times)
        weights = read_sample_weight(sample_weight, len(rows))
        if texts:
            with self._changing():
                self._note(texts)
        return self._learn(model, new, weights, task)

    def _advance_alone(self, X: Any, keys: Any, times: Any, task: LearnTask) -> tuple[Detections, Key | None] | None:
        """Do what `_advance` does for a single row, faster; return None, having changed nothing, if it cannot."""
        model: StreamModel | None = getattr(self, "_model", None)
        row = None if model is None else as_plain_row(self, X)
        if model is None or row is None or (task.is_scored and isinstance(self.score_type, EpsilonPhi)):
            return None
        key = None if keys is None else read_keys(keys, 1)[0]
        time = nan if times is None else read_stamps(times, 1, needed=False).item()
        with uninterrupted(), self._lock.writing():
            is_current = self._model is model
            return model.learn_alone(row, key, time, task, self._policy) if is_current else None

    def _score_ahead(self, row: Array) -> Array | None:
        """Return what `score_then_learn` would for a single row; None if it takes more than the trees."""
        if isinstance(self.score_type, EpsilonPhi) or not self.is_fitted:
            return None
        with uninterrupted(), self._lock.reading():
            return self._model.score_ahead(row)

    def _begin(
        self, X: Any, keys: Any, times: Any, task: LearnTask, sample_weight: Any = None
    ) -> tuple[Detections, Key | None]:
        self._validate_params()
        rows = read_rows(self, X, reset=True, allow_missing=self._allows_missing)
        parameters = self._parameters
        policy, seed = parameters.policy_of_stream(), parameters.seed()
        domain = parameters.domain(rows.shape[1], self._n_categories)
        stream = self._new_stream(rows.shape, domain, policy, seed)
        new = self._read_labels(stream, rows, keys, times)
        weights = read_sample_weight(sample_weight, len(rows))
        self._model = StreamModel(stream)
        return self._learn(self._model, new, weights, task)

    def _learn(
        self, model: StreamModel, rows: NewRows, weights: Array | None, task: LearnTask
    ) -> tuple[Detections, Key | None]:
        """Learn validated rows; return the results of the task, and the key of the last row if it is held."""
        writing = partial(self._writing, model.stream)
        access = Access(self._frozen, writing, lambda: self._query, self._check_inside, self._as_explained)
        learner = Learner(model, access, task)
        return learner.learn(rows) if weights is None else learner.learn_weighted(rows, weights)

    def _as_explained(self, rows: Array) -> ExplainedRows:
        names = self._feature_names
        return ExplainedRows(rows, names, np.arange(len(names)), self.encoding_)

    def _check_inside(self, rows: Array) -> None:
        low, high = self.forest_.domain[:, -1]
        if low <= high:  # only added features, which are last, have no bounds
            check_rows_inside(self, rows, self.forest_.domain)

    @staticmethod
    def _read_labels(stream: Stream, rows: Array, keys: Any, times: Any) -> NewRows:
        """Return rows with their keys and times."""
        if keys is not None and stream.rules.policy is None:
            raise ValueError("a forest with window=None holds no points and takes no keys: omit keys or set a window")
        stamps = read_stamps(times, len(rows), needed=stream.store.policy.needs_times)
        return NewRows(rows, read_keys(keys, len(rows)), stamps)

    def _new_stream(
        self, shape: tuple[int, ...], domain: Array, policy: Policy | None, seed: np.random.SeedSequence
    ) -> Stream:
        """Return a stream with the current parameters for rows of this shape."""
        columns = self._n_categories, self._order
        return self._parameters.new_stream(shape, domain, policy, seed, *columns)

    @property
    def _score(self) -> Score:
        return self._stream.rules.score

    @contextmanager
    def _frozen(self) -> Iterator[None]:
        with super()._frozen():
            if self.is_fitted:
                self._stream.check_consistent()
            yield

    def _domain_around(self, rows: Array) -> Array:
        """Return the domain of a stream that starts with these rows; raise ValueError if a row is outside."""
        parameters = self._parameters
        domain = parameters.domain(rows.shape[1], self._n_categories)
        if parameters.has_given_domain:
            check_rows_inside(self, rows, domain)
        return domain
