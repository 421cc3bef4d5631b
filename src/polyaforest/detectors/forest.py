"""The base class of `BatchMPF` and `StreamingMPF`: parameters, state and scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache
from numbers import Integral, Real
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from joblib import effective_n_jobs
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from polyaforest import forest as forests
from polyaforest.detectors._detector import Detector
from polyaforest.detectors.tree import Tree
from polyaforest.explain import Explanations, read_features
from polyaforest.forest.credible import Masses, moments
from polyaforest.forest.integrity import Layout, check_layout
from polyaforest.forest.parameters import decode, encode, encode_columns
from polyaforest.forest.score_types import EpsilonPhi, Score
from polyaforest.forest.spec import Plan, Weighting
from polyaforest.forest.thresholds import (
    Detections,
    ThresholdPolicy,
    check_calibration_size,
)
from polyaforest.kernels.arrays import Array, Forest, Posterior, Prior
from polyaforest.kernels.boxes import whole_cube
from polyaforest.model.base import ForestModel, Offset
from polyaforest.model.fitted import NO_TEXTS, ExplainedRows, FittedForest, Query, Tabulate, with_verdicts
from polyaforest.storage.modelfile import Arrays, Header
from polyaforest.storage.state import packed, reporting_invalid_pickle, unpacked
from polyaforest.tables.categories import Categories, Codes, Texts
from polyaforest.tables.validation import (
    feature_names,
    read_coded,
    read_domain,
    read_rate,
    read_rows,
    read_sample_weight,
    read_seed,
    read_share,
    read_times,
    read_weights,
)
from polyaforest.util import schema
from polyaforest.util.parallel import log_mean_exp, spans

_STATE: dict[str, schema.Rule] = {  # the header of every forest
    "detector": schema.text,
    "parameters": schema.mapping,
    "n_features": schema.n_features,
    "feature_names": schema.either(schema.nothing, schema.names),
    "is_open": schema.flag,
    "notes": schema.mapping,  # absent from models of early versions
    "categories": schema.many(schema.whole(0, 2**31 - 1)),  # categorical columns; absent if there are none
}
_LAYOUT: Layout = {  # arrays beside those of the trees; L lifetimes, N scores, Q quantiles, D features, B bytes
    "prior_strength": (np.float64, ""),
    "offset": (np.float64, ""),
    "lifetimes": (np.float64, "L"),
    "quantiles": (np.float64, "QD"),
    "calibration": (np.float64, "N"),
    "coins": (np.int64, ""),
    "texts": (np.uint8, "B"),
    "epsilon": (np.float64, ""),
    "filled": (np.int64, ""),
}
_ROWS_OF_MASSES = 2048  # rows per block of tree masses
_ROWS_AT_ONCE = 4096  # rows that each thread scores while holding the lock
_PLAIN = (bool, int, float, str, type(None))  # immutable parameters
_TREE = {name: Tree().get_params()[name] for name in Tree._parameter_constraints}  # in files as parameters of a forest
_IN_FILES = {"score_type": "score"}  # parameters with another name in files
_APART = frozenset({"tree", "categorical_features"})  # parameters with their own encoding in files


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


class Leaves(NamedTuple):
    """The leaf that contains each row, per tree; both arrays have shape (n_rows, n_estimators)."""

    node: Array  # int32: the node of the leaf, -1 outside
    kind: Array  # int8: a `LeafKind`


class ForestDetector(Detector):
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
    _kind: ClassVar[type[FittedForest]]
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
    def _max_depth(self) -> int | None:
        depth = self._tree.max_depth
        return self._auto_depth if isinstance(depth, str) else depth

    @property
    def _is_closed(self) -> bool:
        """Whether the domain is the bounding box of the data, with mass 0 outside."""
        return isinstance(self._tree.domain, str)

    @property
    def _has_given_domain(self) -> bool:
        """Whether the domain is a given array."""
        return self._tree.domain is not None and not self._is_closed

    def _given_domain(self, n_features: int) -> Array:
        """Return the given domain of the numeric columns, unbounded in the categorical ones."""
        numbers, whole = read_domain(self._tree.domain, n_features - self._n_categories), whole_cube(self._n_categories)
        return np.hstack([numbers, whole])

    @property
    def _allows_missing(self) -> bool:
        """Whether rows may have missing values."""
        return bool(self.missing != "error")

    @property
    def _n_categories(self) -> int:
        """The number of categorical columns, which are last in encoded rows."""
        return 0 if self.encoding_ is None else len(self.encoding_.columns)

    @property
    def _chosen_score(self) -> Score:
        """The score that kernels compute; `EpsilonPhi` is explained by the mean log mass."""
        return Score.LOG_MASS if isinstance(self.score_type, EpsilonPhi) else Score(self.score_type)

    @property
    def _score(self) -> Score:
        """The current score."""
        return self._chosen_score

    @property
    def _policy(self) -> ThresholdPolicy:
        share = None if self.contamination == "auto" else float(self.contamination)
        return ThresholdPolicy(share, self.false_alarm_rate)

    def _check_rates(self, n_rows: int | None = None) -> None:
        """Raise ValueError if both rates are set, or if `n_rows` are too few for `false_alarm_rate`."""
        if self.contamination != "auto" and self.false_alarm_rate is not None:
            raise ValueError(
                f"contamination={self.contamination} and false_alarm_rate={self.false_alarm_rate} exclude each other: "
                "set one of them"
            )
        if self.false_alarm_rate is not None and n_rows is not None:
            check_calibration_size(n_rows, self.false_alarm_rate, "pass more rows or set a higher rate")

    @property
    def _grid(self) -> Array:
        """The times at which the score evaluates cells, in units of the weighting; scores of leaves have a default."""
        return self._kind.grid(self._chosen_score)

    def _plan(self, measured: Weighting, domain: Array, seed: np.random.SeedSequence) -> Plan:
        """Return the plan of this forest for the measured features."""
        tree, weighting = self._tree, measured
        if not isinstance(tree.feature_weights, str):
            given = read_weights(tree.feature_weights, self.n_features_in_)
            weighting = measured._replace(fixed=given if self.encoding_ is None else given[self.encoding_.order])
        limits = float(tree.lifetime), self._max_depth
        return Plan(self.n_estimators, *limits, weighting, domain, seed, self.n_jobs, self._n_categories)

    @property
    def _prior(self) -> Prior:
        return Prior(float(self._tree.prior_strength), is_open=not self._is_closed)

    def _seed(self) -> np.random.SeedSequence:
        return read_seed(self.random_state)

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
        """Return how often each of the next rows counts, and the number of fractional weights rounded for it.

        The number of earlier fractional weights, `n_random_draws`, determines the rounding.
        """
        weights = read_sample_weight(sample_weight, n_rows)
        if weights is None:
            return None, 0
        is_fractional = forests.copies.is_fractional(weights)
        ids = -1 - (n_random_draws + np.cumsum(is_fractional) - is_fractional)  # rows of a table have numbers from 0 on
        return forests.copies.n_copies(weights, ids, seed), int(is_fractional.sum())

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
        if isinstance(self.score_type, EpsilonPhi):
            raise ValueError("EpsilonPhi scores have no p-values: choose another score_type")
        if not len(self._calibration_scores()):
            raise ValueError(f"this forest has no calibration scores: {self._model.why_uncalibrated}")

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
        return sum(part.nbytes for part in self.forest_) if self.is_fitted else 0

    # ---- probabilities -----------------------------------------------------------------------------------------------

    def mass(self, X: Any, lifetime: float | Array | None = None, *, return_std: bool = False) -> Any:
        """Return the probability mass around each row, averaged over the trees.

        Parameters
        ----------
        X : array-like or frame of shape (n_rows, n_features)
        lifetime : float or array-like of shape (n_lifetimes,), optional
            If None, the mass of the row's leaves. Otherwise the mass of the row's cells in the partition at that time:
            early cells are large, late cells small. For a prior strength near 0 its expectation is a kernel density
            with a Laplace kernel of bandwidth 1 / lifetime.
        return_std : bool, default=False
            Also return the posterior standard deviation of the mass in a random tree, which covers the uncertainty of
            each tree and the disagreement between trees. Needs complete rows and a single lifetime.

        Returns
        -------
        mass : ndarray of shape (n_rows,), or (n_rows, n_lifetimes) for an array of lifetimes
        std : ndarray of shape (n_rows,), if `return_std`
        """
        if return_std:
            parts = [moments(masses) for masses in self._masses(X, lifetime)]
            mean, variance = map(np.concatenate, zip(*parts, strict=True))
            return mean, np.sqrt(variance)
        rows = self._read(X, allow_missing=True)
        if lifetime is None:
            with self._frozen():
                return self._fitted.mass(rows, self.n_jobs)
        times = read_times("lifetime", lifetime, self._grown_until)
        ascending, places = np.unique(times, return_inverse=True)
        with self._frozen():
            logs = self._fitted.log_cell_masses(rows, ascending, self.n_jobs)
        masses = np.exp(logs)[:, places]
        return masses if np.ndim(lifetime) else masses[:, 0]

    def tree_masses(self, X: Any) -> Array:
        """Return the mass of each row's leaf in every tree, of shape (n_rows, n_estimators)."""
        return self._leaf_values(forests.posterior.mass_table, self._read(X, allow_missing=True), np.transpose)

    def log_density(self, X: Any) -> Array:
        """Return the log of the mean density at each row, over the features that vary.

        The density of a leaf is its mass divided by its volume. Missing values are integrated out.
        """
        rows = self._read(X, allow_missing=True)
        return self._leaf_values(forests.posterior.log_density_table, rows, log_mean_exp)

    def epsilon_level(self, X: Any, phi: float) -> Array:
        """Return the smallest epsilon at which each row is an (epsilon, phi)-anomaly: a quantile of its tree masses.

        Leaf masses depend on the depth of the trees: unlimited trees of 64 rows have leaves of about 1/64, even in
        normal regions. Limit the depth or the lifetime to make epsilon meaningful. `EpsilonPhi` makes this the score.
        """
        rows, phi = self._read(X, allow_missing=True), read_share("phi", phi)
        with self._frozen():
            return self._fitted.epsilon_levels(rows, phi, self.n_jobs)

    def leaves(self, X: Any) -> Leaves:
        """Return the leaf of each row in every tree: its node in ``forest_`` and its `LeafKind`."""
        rows = self._read(X)
        with self._frozen():
            return Leaves(*self._fitted.leaves(rows, self.n_jobs))

    def impute(self, X: Any, how: str = "mean") -> Array:
        """Return the rows of `X` with missing values (NaN) imputed by the forest, for any setting of `missing`.

        Parameters
        ----------
        X : array-like or frame of shape (n_rows, n_features)
        how : {"mean", "mode"}, default="mean"
            "mean" imputes the conditional expectation of each value: the mean of the centres of the cells that may
            contain the row, weighted by mass and by proximity in the observed values. "mode" imputes the centre of the
            heaviest of these cells, so that the imputed values of a row are consistent. A category is always the one
            with the highest score.

        Returns
        -------
        imputed : ndarray of shape (n_rows, n_features)
            Complete rows are unchanged.
        """
        if how not in ("mean", "mode"):
            raise ValueError(f'how must be "mean" or "mode"; got {how!r}')
        check_is_fitted(self)
        rows = read_rows(self, X, reset=False, allow_missing=True)
        with self._frozen():
            if forests.posterior.is_empty(self.forest_):
                raise ValueError("an empty forest cannot impute values: learn some rows first")
            return self._as_given(self._fitted.impute(rows, how, self.n_jobs))

    def credible_interval(self, X: Any, level: float = 0.9, lifetime: float | None = None) -> Array:
        """Return an equal-tailed credible interval for the mass of each row, by the posterior of a random tree.

        The interval measures the uncertainty of a mass, not the rate of false alarms.

        Parameters
        ----------
        X : array-like or frame of shape (n_rows, n_features)
        level : float between 0 and 1, default=0.9
        lifetime : float, optional
            As in `mass`.

        Returns
        -------
        interval : ndarray of shape (n_rows, 2)
            Lower and upper bounds; 0 if too small for a float.
        """
        level = read_rate("level", level)
        return np.concatenate(
            [forests.posterior.intervals(masses, level, self.n_jobs) for masses in self._masses(X, lifetime)]
        )

    def _masses(self, X: Any, lifetime: float | Array | None) -> Iterator[Masses]:
        """Yield the tree masses of rows in blocks, so that a stream can learn in between."""
        rows = self._read(X)
        if np.ndim(lifetime):  # type: ignore[arg-type]
            raise ValueError(f"lifetime must be a single number; got {lifetime!r}")
        time = None if lifetime is None else float(read_times("lifetime", lifetime, self._grown_until)[0])
        for start in range(0, len(rows), _ROWS_OF_MASSES):
            with self._frozen():
                masses = self._fitted.row_masses(rows[start : start + _ROWS_OF_MASSES], time, self.n_jobs)
            yield masses

    @property
    def _grown_until(self) -> float:
        with self._frozen():
            return self._fitted.grown_until

    def _leaf_values(self, tabulate: Tabulate, rows: Array, reduce: Callable[[Array], Array]) -> Array:
        with self._frozen():
            return self._fitted.leaf_values(tabulate, rows, reduce, self.n_jobs)

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

    def _parameters(self) -> Header:
        """Return the JSON-serialisable parameters, including those of the trees."""
        own = {name: value for name, value in self.get_params(deep=False).items() if name not in _APART}
        own |= {**self._tree.get_params(), "max_depth": self._max_depth}
        stored = {_IN_FILES.get(name, name): encode(value) for name, value in own.items()}
        columns = encode_columns(self.categorical_features)
        return stored if columns == "from_dtype" else {**stored, "categorical_features": columns}

    @classmethod
    def _names_in_files(cls) -> list[str]:
        own = [name for name in cls._get_param_names() if name != "tree"]
        return [_IN_FILES.get(name, name) for name in own] + list(_TREE)

    @classmethod
    def _of_parameters(cls, stored: Header) -> Self:
        """Return an unfitted forest with parameters from a file."""
        given = {name: decode(value) for name, value in stored.items()}
        defaults = {**_TREE, "max_depth": cls._auto_depth}
        tree = {name: given.pop(name) for name in _TREE}
        changed = {name: value for name, value in tree.items() if np.ndim(value) or value != defaults[name]}
        names = {stored: name for name, stored in _IN_FILES.items()}
        forest = cls(
            tree=Tree(**changed) if changed else None, **{names.get(name, name): value for name, value in given.items()}
        )
        forest._validate_params()
        return forest

    def _state(self, *, is_compact: bool = False) -> tuple[Header, Arrays]:
        names = getattr(self, "feature_names_in_", None)
        header = {
            "detector": type(self).__name__,
            "parameters": self._parameters(),
            "n_features": self.n_features_in_,
            "feature_names": None if names is None else [str(name) for name in names],
            "is_open": self.prior_.is_open,
        }
        categories = None if self.encoding_ is None else self.encoding_.kept(self._fitted.rows)
        if categories is not None:
            header["categories"] = list(categories.columns)
        model = self._model
        offset = np.nan if model.offset is None else model.offset.value
        arrays = {"prior_strength": np.array(model.prior.strength), "offset": np.array(offset)}
        if model.quantiles is not None:
            arrays["quantiles"] = model.quantiles
        if model.n_random_draws:
            arrays["coins"] = np.array(model.n_random_draws, np.int64)
        if categories is not None:
            arrays["texts"] = categories.pack_texts()
        trees = {} if is_compact else packed("forest", model.forest)
        trees.pop("forest/n_categories", None)  # the header lists the columns
        return header, {**arrays, "lifetimes": model.lifetimes, **trees}

    _rules_of_state: ClassVar[dict[str, schema.Rule]] = {}  # of header fields of a subclass
    _groups_of_arrays: ClassVar[tuple[str, ...]] = ("forest",)

    @classmethod
    def _of_state(cls, header: Header, arrays: Arrays) -> Self:
        rules = {**_STATE, **cls._rules_of_state, "parameters": schema.parameters(cls._names_in_files())}
        schema.record(rules, optional=["notes", "categories"])(header, "")
        own = {name: part for name, part in arrays.items() if name.partition("/")[0] not in cls._groups_of_arrays}
        check_layout(own, _LAYOUT, {"D": header["n_features"]})
        forest = cls._of_parameters(header["parameters"])
        forest.n_features_in_ = header["n_features"]
        if header["feature_names"] is not None:
            forest.feature_names_in_ = np.array(header["feature_names"], dtype=object)
        if ("texts" in arrays) != ("categories" in header):
            raise ValueError("it must have both categorical columns and texts of categories, or neither")
        if "categories" in header:
            forest.encoding_ = Categories.of_state(header["categories"], header["n_features"], arrays["texts"])
        forest._notes = header.get("notes", {})
        prior = Prior(float(arrays["prior_strength"]), header["is_open"])
        offset = float(arrays["offset"])
        model = forest._model = forest._restored_model(header, arrays, prior)
        model.n_random_draws, model.quantiles = int(arrays.get("coins", 0)), arrays.get("quantiles")
        model.offset = None if np.isnan(offset) else Offset(forest._policy, offset)
        forest._complete_model(arrays)
        return forest

    def _restored_model(self, header: Header, arrays: Arrays, prior: Prior) -> ForestModel:
        """Return the model in a file, which lacks what all models have."""
        raise NotImplementedError

    def _complete_model(self, arrays: Arrays) -> None:
        """Restore the rest of a model, and check it."""
        raise NotImplementedError

    def _trees_in(self, arrays: Arrays) -> Forest:
        n_categories = {"forest/n_categories": np.array([self._n_categories])}
        return unpacked("forest", {**arrays, **n_categories}, Forest)

    def _check(self) -> None:
        """Raise ValueError if a state read from a file or a pickle is invalid."""
        self._model.check_trees()
        self._check_besides_trees()

    def _check_besides_trees(self) -> None:
        self._model.check_besides_trees(self.n_features_in_, self._n_categories)
        if "feature_names_in_" in vars(self) and len(self.feature_names_in_) != self.n_features_in_:
            raise ValueError(f"it has {len(self.feature_names_in_)} feature names for {self.n_features_in_} features")
