"""The base class of `BatchMPF` and `StreamingMPF`: parameters, state and scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, Self, overload

import numpy as np
from joblib import effective_n_jobs
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval, StrOptions

from polyaforest import forest as forests
from polyaforest.detectors._detector import Detector, remembers_frame
from polyaforest.detectors.probabilities import Probabilities
from polyaforest.detectors.tree import Tree
from polyaforest.explain import Explanations, read_features
from polyaforest.forest.json_parameters import decode
from polyaforest.forest.score_types import EpsilonPhi, Score
from polyaforest.forest.thresholds import Detections, ThresholdPolicy
from polyaforest.kernels.arrays import Array, Forest, Posterior, Prior
from polyaforest.model import forest_state
from polyaforest.model.base import ForestModel, Offset
from polyaforest.model.fitted import NO_TEXTS, ExplainedRows, FittedForest, Query, with_verdicts
from polyaforest.model.parameters import IN_FILES, ForestParameters, TreeParameters
from polyaforest.storage.modelfile import Arrays, Header
from polyaforest.storage.state import reporting_invalid_pickle
from polyaforest.tables.categories import Categories, Codes, Texts
from polyaforest.tables.validation import (
    feature_names,
    read_coded,
    read_rows,
    read_sample_weight,
)
from polyaforest.util import schema
from polyaforest.util.parallel import spans

_ROWS_AT_ONCE = 4096  # rows that each thread scores while holding the lock
_PLAIN = (bool, int, float, str, type(None))  # immutable parameters


@cache
def _names_of_parameters(kind: Any) -> list[str]:
    """Return the names of parameters; scikit-learn would inspect the signature at every call."""
    names: list[str] = super(ForestDetector, kind)._get_param_names()
    return names


@lru_cache(64)
def _validate_plain(kind: Any, given: tuple[Any, ...], types: tuple[type, ...]) -> None:
    """Raise if parameters, in the order of their names, are invalid."""
    names = kind._get_param_names()
    BaseEstimator._validate_params(kind(**dict(zip(names, given, strict=True))))


class ForestDetector(Probabilities, Detector):
    """Base of `BatchMPF` and `StreamingMPF`: parameters, state, scores, masses and explanations."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_estimators": [Interval(Integral, 1, None, closed="left")],
        "tree": [Tree, None],
        "score_type": [StrOptions({str(score) for score in Score}), EpsilonPhi],
        "contamination": [StrOptions({"auto"}), Interval(Real, 0, 0.5, closed="right")],
        "false_alarm_rate": [Interval(Real, 0, 1, closed="neither"), None],
        "missing": [StrOptions({"impute", "marginalise", "error"})],
        "categorical_features": ["array-like", StrOptions({"from_dtype"}), Codes, None],
        "random_state": ["random_state"],
        "n_jobs": [Interval(Integral, 1, None, closed="left"), Interval(Integral, None, -1, closed="right"), None],
    }

    _auto_depth: ClassVar[int | None]  # the value of max_depth="auto"
    _kind_of_parameters: ClassVar[type[ForestParameters]] = ForestParameters
    _model: ForestModel
    _names_of_shingle: list[str] | None = None  # names of the features of a time series
    encoding_: Categories | None = None  # the categorical columns and the texts of the categories held

    def _become(self, fitted: ForestDetector) -> None:
        """Replace the learned state with that of another forest."""
        with self._lock.turn(), self._drafted() as draft:
            learned = {name: part for name, part in vars(fitted).items() if name not in self._not_copied}
            draft.__dict__ = learned | self.get_params(deep=False)

    @property
    def posterior_(self) -> Posterior:
        """Log-masses and log-volumes of every node, derived from the forest on first use."""
        with self._frozen():
            return self._fitted.posterior(self.n_jobs)

    @property
    def forest_(self) -> Forest:
        """The trees, as arrays."""
        return self._model.forest

    @property
    def prior_(self) -> Prior:
        """The prior that the posterior was derived with."""
        return self._model.prior

    @property
    def lifetimes_(self) -> Array:
        """The times at which the score evaluates cells."""
        return self._model.lifetimes

    @property
    def _fitted(self) -> FittedForest:
        """The forest as it is now."""
        return self._model.fitted

    @property
    def _query(self) -> Query:
        chosen = self.score_type if isinstance(self.score_type, EpsilonPhi) else None
        return Query(self._score, chosen, self.missing, self.n_jobs, self._policy)

    @classmethod
    def _get_param_names(cls) -> list[str]:
        kind: Any = cls  # mypy takes no class of estimators for hashable
        return _names_of_parameters(kind)

    def _validate_params(self) -> None:
        """Validate the parameters, caching plain ones: thousands of streams may share them."""
        kind: Any = type(self)
        given = tuple(getattr(self, name) for name in self._get_param_names())
        if all(type(value) in _PLAIN for value in given):
            _validate_plain(kind, given, tuple(map(type, given)))  # types, because 1 == True == 1.0
        else:
            super()._validate_params()
            self._tree._validate_params()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_model" in state:
            with reporting_invalid_pickle(self):  # kernels trust the trees they walk
                self._check()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self._allows_missing
        tags.input_tags.categorical = True
        return tags

    # ---- parameters -------------------------------------------------------------------------------------------------

    @property
    def _tree(self) -> Tree:
        return Tree() if self.tree is None else self.tree

    @property
    def _parameters(self) -> ForestParameters:
        own = {name: getattr(self, name) for name in self._get_param_names() if name != "tree"}
        tree = self._tree.get_params()
        depth = self._auto_depth if isinstance(tree["max_depth"], str) else tree["max_depth"]
        return self._kind_of_parameters(**own, tree=TreeParameters(**{**tree, "max_depth": depth}))

    @property
    def _allows_missing(self) -> bool:
        """Whether rows may have missing values."""
        return bool(self.missing != "error")

    @property
    def _n_categories(self) -> int:
        """The number of categorical columns, which are last in encoded rows."""
        return 0 if self.encoding_ is None else len(self.encoding_.columns)

    @property
    def _order(self) -> Array | None:
        """The order of encoded columns; None if there are no categories."""
        return None if self.encoding_ is None else self.encoding_.order

    @property
    def _score(self) -> Score:
        """The current score."""
        return self._parameters.score

    @property
    def _policy(self) -> ThresholdPolicy:
        return ThresholdPolicy.of(self.contamination, self.false_alarm_rate)

    # ---- sample weights ---------------------------------------------------------------------------------------------

    def _copies_of_table(self, sample_weight: Any, n_rows: int, seed: int) -> Array | None:
        """Return how often each row of a table counts, rounding weights by row number; None if each counts once."""
        weights = read_sample_weight(sample_weight, n_rows)
        if weights is None:
            return None
        return forests.copies.n_copies(weights, np.arange(n_rows), seed)

    @staticmethod
    def _copies_that_follow(
        sample_weight: Any, n_rows: int, seed: int, n_random_draws: int
    ) -> tuple[Array | None, int]:
        """Return how often each of the next rows counts, and the number of fractional weights rounded for it."""
        weights = read_sample_weight(sample_weight, n_rows)
        return (None, 0) if weights is None else forests.copies.n_copies_next(weights, seed, n_random_draws)

    # ---- scores and verdicts ----------------------------------------------------------------------------------------

    def score_samples(self, X: Any) -> Array:
        """Return the score of each row: higher is more normal, lower is more anomalous.

        Parameters
        ----------
        X : array-like or frame of shape (n_rows, n_features)
            NaN is handled as set by the parameter `missing`.

        Returns
        -------
        scores : ndarray of shape (n_rows,)
            Depending on `score_type`:

            - ``"typicality"``: the log mass of the row's cell, averaged over trees and ``lifetimes_``
            - ``"margins"``: the same, minus log(2) times the bits of every feature outside its margins
            - ``"multiscale"``: the log of ``mass(X, lifetime)``, averaged over ``lifetimes_``
            - ``"mass"``: ``mass(X)``
            - ``"log_mass"``: the log of ``tree_masses(X)``, averaged over trees
            - `EpsilonPhi`: ``epsilon_level(X, phi)``
        """
        return self._scores(self._read(X, allow_missing=True))

    @remembers_frame
    def detect(self, X: Any) -> Detections:
        """Return scores, p-values and verdicts of rows without learning them.

        Returns
        -------
        detections : Detections
            A named tuple of arrays of shape (n_rows,): `scores`, `p_values` (NaN without calibration scores),
            `is_anomaly` and `thresholds` (all equal to ``offset_``).
        """
        return self._detected(self.score_samples(X))

    @property
    def offset_(self) -> float:
        """The threshold: ``decision_function = score_samples - offset_``."""
        self._check_fitted()
        with self._frozen():
            return self._model.threshold(self._query)

    def _place_by_table(self, log_score: float) -> None:
        """Set the threshold to a quantile of the log-scores of the fitted table."""
        with self._changing():
            self._model.offset = Offset(self._policy, float(self._score.from_log(np.array(log_score))))

    def _calibration_scores(self) -> Array:
        """Return the log-scores to compare new ones with; may be empty."""
        with self._frozen():
            return self._model.calibration_scores(self._query)

    def _detected(self, scores: Array) -> Detections:
        """Return the results for rows with these scores."""
        with self._frozen():
            return self._model.detected(scores, self._query)

    def _p_values(self, scores: Array) -> Array:
        with self._frozen():
            return self._model.p_values(scores, self._query)

    def _check_calibrated(self) -> None:
        self._check_fitted()
        with self._frozen():
            self._model.check_calibrated(self._query)

    def _read(self, X: Any, *, allow_missing: bool = False) -> Array:
        """Return validated rows; missing values raise unless both the caller and the parameters allow them."""
        self._check_fitted()
        return read_rows(self, X, reset=False, allow_missing=allow_missing and self._allows_missing)

    # ---- categories -------------------------------------------------------------------------------------------------

    @property
    def is_categorical_(self) -> Array | None:
        """Mask of the categorical columns, of shape (n_features,); None if there are none, as in scikit-learn."""
        self._check_fitted()
        return None if self.encoding_ is None else self.encoding_.mask

    @property
    def categories_(self) -> dict[str, list[str]]:
        """The categories of the rows held, sorted, by column name."""
        self._check_fitted()
        with self._frozen():
            categories, rows = self.encoding_, self._fitted.rows
        if categories is None or rows is None:
            return {}
        names, texts = feature_names(self), categories.texts
        columns = zip(categories.columns, rows[:, categories.n_numeric :].T, strict=True)
        return {names[k]: sorted(texts[code] for code in set(codes.tolist()) & texts.keys()) for k, codes in columns}

    def _note(self, texts: Texts) -> None:
        """Store the texts of the categories of rows being learned."""
        if self.encoding_ is None or not texts:
            return
        noted = self.encoding_.with_texts(texts)
        if noted.is_crowded:
            noted = noted.kept(self._fitted.rows).with_texts(texts)
        self.encoding_ = noted

    def _as_given(self, rows: Array) -> Array:
        """Return rows with the column order of tables and the texts of categories."""
        if self.encoding_ is None or isinstance(self.categorical_features, Codes):
            return rows
        return self.encoding_.shown(rows)

    def _scores(self, rows: Array) -> Array:
        n_threads = effective_n_jobs(self.n_jobs) if len(rows) > _ROWS_AT_ONCE else 1
        parts = []
        for span in spans(len(rows), _ROWS_AT_ONCE * n_threads):  # so that learning and Ctrl-C do not wait long
            with self._frozen():
                parts.append(self._fitted.scores(rows[span], self._query))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    @property
    def nbytes(self) -> int:
        """Size of the trees and of the points held, in bytes; 0 before fitting."""
        return self._model.nbytes if self.is_fitted else 0

    # ---- explanations ------------------------------------------------------------------------------------------------

    def explain(self, X: Any, features: Sequence[str | int] | None = None) -> Explanations:
        """Explain the score of each row: bits of surprise by feature, and text.

        The surprise is -log2 of a probability, averaged over trees: of the mass of the row's cells at ``lifetimes_``
        if `score_type` is ``"margins"``, ``"typicality"`` or ``"multiscale"``, else of the mass of its leaf.
        ``"margins"`` adds the bits of features outside their margins. For ``"margins"``, ``"typicality"`` and
        ``"log_mass"`` the surprise equals ``-score_samples(X) / log(2)``.

        Each bit is attributed to a feature, for being low or for being high. The attributions of a typical point are
        subtracted; the rest adds up to the surprise beyond the typical, exactly.

        Parameters
        ----------
        X : array-like or frame of shape (n_rows, n_features)
            An incomplete row is explained by the mean over its completions, or with ``missing="marginalise"`` after
            `impute`. Missing values are never reported as a cause.
        features : sequence of names or column indices, optional
            Features to report; all by default. The bits of the others still count.

        Returns
        -------
        explanations : Explanations
            A sequence with one `Explanation` per row, and the arrays ``surprise``, ``low``, ``high`` and ``parts``.
            Text is computed on first access, by the forest as it was; `Explanations.materialise` computes it at once
            and releases that forest.
        """
        self._check_fitted()
        given, texts = read_coded(self, X, reset=False, allow_missing=self._allows_missing)
        explained = self._explained(given, features, X.index if hasattr(X, "iloc") else None, texts=texts)
        query = self._query
        is_score = query.is_additive and not (query.is_marginal and np.isnan(given).any())
        scores = explained.surprise * -np.log(2) if is_score else self._scores(given)
        return with_verdicts(explained, self._detected(scores))

    def _explained(
        self,
        given: Array,
        features: Sequence[str | int] | None = None,
        index: Any = None,
        offset: float | None = None,
        texts: Texts = NO_TEXTS,
    ) -> Explanations:
        """Return explanations of validated rows, without verdicts; `texts` are those of their categories."""
        names = self._feature_names
        candidates, threshold = read_features(features, names), self.offset_ if offset is None else offset
        with self._frozen():
            rows = ExplainedRows(given, names, candidates, self.encoding_, texts, index)
            return self._fitted.explain(rows, self._query, threshold)

    @property
    def _feature_names(self) -> list[str]:
        """Names of the features: of a shingle, of columns, or generic."""
        return feature_names(self) if self._names_of_shingle is None else self._names_of_shingle

    # ---- files ------------------------------------------------------------------------------------------------------

    @overload
    def export(self, format: Literal["json", "sql"], **options: Any) -> str: ...

    @overload
    def export(self, format: Literal["onnx"], **options: Any) -> bytes: ...

    @overload
    def export(self, format: str, **options: Any) -> str | bytes: ...

    def export(self, format: str, **options: Any) -> str | bytes:
        """Return the model in a format that other programs score with, without polyaforest.

        Parameters
        ----------
        format : {"json", "sql", "onnx"}
            ``"json"`` is a text with everything that scoring needs, for scorers in Python and JavaScript. ``"sql"`` is
            a script that creates tables, and a view of the scores of the rows of a table. ``"onnx"`` is a graph, as
            bytes, with the input ``X`` and the outputs ``score`` and ``is_anomaly``.
        **options
            Of SQL: `dialect` ("postgresql", "sqlite" or "duckdb"), the `table` to score ("rows"), the column that is
            its unique `key` ("id"), and the `prefix` of what is created ("polyaforest").

        Returns
        -------
        exported : str or bytes

        Raises
        ------
        ValueError
            If the format cannot express the model, with the reason.
        """
        from polyaforest import __version__, export

        self._check_fitted()
        if isinstance(self.categorical_features, Codes) or self._names_of_shingle is not None:
            raise ValueError("the trees of a time series cannot be exported alone: export a StreamingMPF or BatchMPF")
        with self._frozen():
            model, query = self._model, self._query
            try:
                threshold = model.threshold(query)
            except ValueError:  # too few calibration scores, or a private release without them
                threshold = -np.inf
            own = self._feature_names, self.encoding_, threshold, model.calibration_scores(query)
            parts = export.Exported(type(self).__name__, model.fitted, query, *own)
            return export.write(parts, format, f"polyaforest {__version__}", options)

    @classmethod
    def _names_in_files(cls) -> list[str]:
        own = [name for name in cls._get_param_names() if name != "tree"]
        return [IN_FILES.get(name, name) for name in own] + list(TreeParameters._fields)

    @classmethod
    def _of_stored(cls, stored: Header) -> Self:
        """Return an unfitted forest with parameters from a file."""
        names = {in_file: name for name, in_file in IN_FILES.items()}
        given = {names.get(name, name): decode(value) for name, value in stored.items()}
        tree = TreeParameters(**{name: given.pop(name) for name in TreeParameters._fields if name in given})
        forest = cls._with_tree(tree, given)
        forest._validate_params()
        return forest

    @classmethod
    def _with_tree(cls, tree: TreeParameters, others: Mapping[str, Any]) -> Self:
        """Return an unfitted forest with these parameters."""
        defaults = {**TreeParameters()._asdict(), "max_depth": cls._auto_depth}
        own = {name: value for name, value in tree._asdict().items() if np.ndim(value) or value != defaults[name]}
        return cls(tree=Tree(**own) if own else None, **others)

    def _state(self, *, is_compact: bool = False) -> tuple[Header, Arrays]:
        given = self._parameters.stored(), self.n_features_in_, getattr(self, "feature_names_in_", None)
        header, texts = forest_state.header_of(self._model, *given, type(self).__name__), {}
        categories = None if self.encoding_ is None else self.encoding_.kept(self._fitted.rows)
        if categories is not None:
            header["categories"] = list(categories.columns)
            texts["texts"] = categories.pack_texts()
        return header, forest_state.arrays_of(self._model, texts, is_compact=is_compact)

    _rules_of_state: ClassVar[dict[str, schema.Rule]] = {}  # of header fields of a subclass
    _groups_of_arrays: ClassVar[tuple[str, ...]] = ("forest",)

    @classmethod
    def _of_state(cls, header: Header, arrays: Arrays) -> Self:
        rules = {**cls._rules_of_state, "parameters": schema.parameters(cls._names_in_files())}
        forest_state.check_state(header, arrays, rules, cls._groups_of_arrays)
        forest = cls._of_stored(header["parameters"])
        forest.n_features_in_ = header["n_features"]
        if header["feature_names"] is not None:
            forest.feature_names_in_ = np.array(header["feature_names"], dtype=object)
        if "categories" in header:
            forest.encoding_ = Categories.of_state(header["categories"], header["n_features"], arrays["texts"])
        forest._notes = header.get("notes", {})
        forest._model = forest._restored_model(header, arrays)
        forest_state.restore(forest._model, arrays, forest._policy)
        forest._complete_model(arrays)
        return forest

    def _restored_model(self, header: Header, arrays: Arrays) -> ForestModel:
        """Return the model in a file, which lacks what all models have."""
        raise NotImplementedError

    def _complete_model(self, arrays: Arrays) -> None:
        """Restore the rest of a model, and check it."""
        raise NotImplementedError

    def _check(self) -> None:
        """Raise ValueError if a state read from a file or a pickle is invalid."""
        self._model.check_trees()
        self._check_besides_trees()

    def _check_besides_trees(self) -> None:
        self._model.check_besides_trees(self.n_features_in_, self._n_categories)
        if "feature_names_in_" in vars(self) and len(self.feature_names_in_) != self.n_features_in_:
            raise ValueError(f"it has {len(self.feature_names_in_)} feature names for {self.n_features_in_} features")
