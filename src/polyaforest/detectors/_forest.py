"""The base class of `BatchMPF` and `StreamingMPF`: parameters, state and scores."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from numbers import Integral, Real
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from joblib import effective_n_jobs
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval, StrOptions

from polyaforest import forest as forests
from polyaforest.detectors._detector import Detector
from polyaforest.detectors.tree import Tree
from polyaforest.forest.integrity import Layout, check_forest, check_layout
from polyaforest.forest.parameters import decode, encode, encode_columns
from polyaforest.forest.score_types import EpsilonPhi, Score, epsilon_levels
from polyaforest.forest.severity import tail_bits
from polyaforest.forest.spec import Plan, Weighting
from polyaforest.forest.thresholds import (
    Detections,
    ThresholdPolicy,
    check_calibration_size,
    check_scores,
    conformal_p_values,
)
from polyaforest.kernels.arrays import Array, Forest, LeafTable, Posterior, Prior, is_ascending
from polyaforest.kernels.boxes import whole_cube
from polyaforest.storage.modelfile import Arrays, Header
from polyaforest.storage.state import packed, reporting_invalid_pickle, unpacked
from polyaforest.tables.categories import Categories, Codes, Texts
from polyaforest.tables.validation import (
    LARGEST,
    SMALLEST,
    feature_names,
    read_domain,
    read_rows,
    read_sample_weight,
    read_seed,
    read_weights,
)
from polyaforest.util import schema
from polyaforest.util.derived import Derived, lasting
from polyaforest.util.parallel import ordered_sum, spans

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
Tabulate = Callable[[Posterior], LeafTable]
_ROWS_AT_ONCE = 4096  # rows that each thread scores while holding the lock
_GAPPY_AT_ONCE = 256  # incomplete rows to complete at a time
_PLAIN = (bool, int, float, str, type(None))  # immutable parameters
_TREE = {name: Tree().get_params()[name] for name in Tree._parameter_constraints}  # in files as parameters of a forest
_IN_FILES = {"score_type": "score"}  # parameters with another name in files
_APART = frozenset({"tree", "categorical_features"})  # parameters with their own encoding in files


@cache
def _names_of_parameters(kind: Any) -> list[str]:
    """Return the names of parameters; scikit-learn would inspect the signature at every call."""
    names: list[str] = super(BaseForest, kind)._get_param_names()
    return names


@lru_cache(64)
def _validate_plain(kind: Any, given: tuple[Any, ...], types: tuple[type, ...]) -> None:
    """Raise if parameters, in the order of their names, are invalid."""
    names = kind._get_param_names()
    BaseEstimator._validate_params(kind(**dict(zip(names, given, strict=True))))


class Offset(NamedTuple):
    """A threshold score and the policy it was computed with."""

    policy: ThresholdPolicy
    value: float


class BaseForest(Detector):
    """Base class with parameters, state and scores; `PolyaForest` adds masses and explanations."""

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
    _has_boxes: ClassVar[bool] = False  # whether nodes store the bounding box of their points
    _lifetimes: ClassVar[dict[str, Array]]  # times at which scores evaluate cells, in units of the weighting
    _grids: ClassVar[list[Array]]  # all grids of such times that files may contain
    _imputing_times: ClassVar[Array]  # times at which imputation evaluates cells, in the same units
    _why_uncalibrated: ClassVar[str]  # the reason, and what to do
    forest_: Forest
    lifetimes_: Array
    prior_: Prior
    _derived: dict[str, Any]  # values computed on first use
    _posterior = Derived[Posterior]()  # of ``forest_``
    _offset = Derived[Offset](is_lasting=True)  # the threshold
    _known_moments = Derived[tuple[Posterior, Any]]()  # second moments, and their posterior
    _paths = Derived[Posterior]()  # the posterior of the nodes on the paths of explained rows
    _typical = Derived[tuple[Score, Array]]()  # the attributions of typical points, and their score
    _reference = Derived[Any]()  # the usual ranges
    _names_of_shingle: list[str] | None = None  # names of the features of a time series
    _quantiles: Array | None = None  # of the fitted rows, for the usual ranges
    _n_random_draws: int = 0  # fractional weights rounded at random since the fit
    encoding_: Categories | None = None  # the categorical columns and the texts of the categories held

    def _parts(self) -> dict[str, Any]:
        parts = super()._parts()
        return {**parts, "_derived": lasting(parts.get("_derived", {}))}

    def _become(self, fitted: BaseForest) -> None:
        """Replace the learned state with that of another forest."""
        with self._lock.turn(), self._drafted() as draft:
            draft.__dict__ = fitted._parts() | self.get_params(deep=False)

    @property
    def posterior_(self) -> Posterior:
        """Log-masses and log-volumes of every node, derived from the forest on first use."""
        known = self._posterior
        if known is None:
            known = self._posterior = forests.posterior.posterior(self.forest_, self.prior_, n_jobs=self.n_jobs)
        return known

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
        if "forest_" in state:
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
        return self._lifetimes.get(self._chosen_score, self._lifetimes["multiscale"])

    def _plan(self, measured: Weighting, domain: Array, seed: np.random.SeedSequence) -> Plan:
        """Return the plan of this forest for the measured features; also set the prior and the times of the score."""
        tree, weighting = self._tree, measured
        if not isinstance(tree.feature_weights, str):
            given = read_weights(tree.feature_weights, self.n_features_in_)
            weighting = measured._replace(fixed=given if self.encoding_ is None else given[self.encoding_.order])
        self.lifetimes_ = self._grid / weighting.unit
        self.prior_ = Prior(float(tree.prior_strength), is_open=not self._is_closed)
        limits = float(tree.lifetime), self._max_depth
        return Plan(self.n_estimators, *limits, weighting, domain, seed, self.n_jobs, self._n_categories)

    def _seed(self) -> np.random.SeedSequence:
        return read_seed(self.random_state)

    # ---- sample weights ---------------------------------------------------------------------------------------------

    def _copies_of_table(self, sample_weight: Any, n_rows: int, seed: int) -> Array | None:
        """Return how often each row of a table counts, rounding weights by row number; None if each counts once."""
        weights = read_sample_weight(sample_weight, n_rows)
        if weights is None:
            return None
        return forests.copies.n_copies(weights, np.arange(n_rows), seed)

    def _copies_that_follow(self, sample_weight: Any, n_rows: int, seed: int) -> tuple[Array | None, int]:
        """Return how often each of the next rows counts, and the number of fractional weights rounded for it.

        The number of earlier fractional weights determines the rounding.
        """
        weights = read_sample_weight(sample_weight, n_rows)
        if weights is None:
            return None, 0
        is_fractional = forests.copies.is_fractional(weights)
        ids = -1 - (
            self._n_random_draws + np.cumsum(is_fractional) - is_fractional
        )  # rows of a table have numbers from 0 on
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
        if isinstance(self.score_type, EpsilonPhi):
            return self.score_type.threshold
        return self._threshold()

    def _threshold(self) -> float:
        """Return the threshold of the current policy, computed on first use."""
        raise NotImplementedError

    def _place_by_table(self, log_score: float) -> None:
        """Set the threshold to a quantile of the log-scores of the fitted table."""
        with self._changing():
            self._offset = Offset(self._policy, float(self._score.from_log(np.array(log_score))))

    def _calibration_scores(self) -> Array:
        """Return the log-scores to compare new ones with; may be empty."""
        raise NotImplementedError

    def _detected(self, scores: Array) -> Detections:
        """Return the results for rows with these scores."""
        offset = self.offset_
        is_anomaly, p_values = ~(scores >= offset), self._p_values(scores)
        return Detections(
            scores, p_values, is_anomaly, np.full(len(scores), offset), tail_bits=self._tail_bits(scores, is_anomaly)
        )

    def _tail_bits(self, scores: Array, is_anomaly: Array) -> Array:
        """Return the tail bits of flagged rows (`severity`); NaN for other rows."""
        if isinstance(self.score_type, EpsilonPhi) or not is_anomaly.any():
            return np.full(len(scores), np.nan)
        return tail_bits(self._score.to_log(scores), is_anomaly, np.sort(self._calibration_scores()))

    def _p_values(self, scores: Array) -> Array:
        known = self._calibration_scores()
        return conformal_p_values(self._score.to_log(scores), known) if len(known) else np.full(len(scores), np.nan)

    def _check_calibrated(self) -> None:
        self._check_fitted()
        if isinstance(self.score_type, EpsilonPhi):
            raise ValueError("EpsilonPhi scores have no p-values: choose another score_type")
        if not len(self._calibration_scores()):
            raise ValueError(f"this forest has no calibration scores: {self._why_uncalibrated}")

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
            categories, rows = self.encoding_, self._rows_known
        if categories is None or rows is None:
            return {}
        names, texts = feature_names(self), categories.texts
        columns = zip(categories.columns, rows[:, categories.n_numeric :].T, strict=True)
        return {names[k]: sorted(texts[code] for code in set(codes.tolist()) & texts.keys()) for k, codes in columns}

    @property
    def _rows_known(self) -> Array | None:
        """The rows held, whose categories and texts are known; None if no rows are held."""
        return None

    def _note(self, texts: Texts) -> None:
        """Store the texts of the categories of rows being learned."""
        if self.encoding_ is None or not texts:
            return
        noted = self.encoding_.with_texts(texts)
        if noted.is_crowded:
            noted = noted.kept(self._rows_known).with_texts(texts)
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
                parts.append(self._score_by(self.forest_, self.posterior_)(rows[span], self.n_jobs))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _score_by(self, forest: Forest, known: Posterior) -> Callable[..., Array]:
        """Return a function that scores rows with a forest and its posterior."""
        score, times = self._score, self.lifetimes_

        def score_rows(rows: Array, n_jobs: int | None = None) -> Array:
            if isinstance(self.score_type, EpsilonPhi):
                return self._epsilon_levels(rows, self.score_type.phi)
            return self._less_margins(forests.score.row_scores(score, forest, known, rows, times, n_jobs), rows)

        return lambda rows, n_jobs=None: self._over_completions(rows, lambda whole: score_rows(whole, n_jobs))

    def _as_scored(self, rows: Array) -> Array:
        """Return rows with NaN in place of values that scores ignore."""
        return rows

    def _less_margins(self, scores: Array, rows: Array) -> Array:
        """Subtract the bits of features outside their margins from scores, if the forest has margins."""
        return scores

    def _over_completions(self, rows: Array, score: Callable[[Array], Array]) -> Array:
        """Return `score` of rows; with ``missing="impute"``, the mean over the completions of an incomplete row."""
        rows = self._as_scored(rows)
        gaps = forests.posterior.rows_with_gaps(rows) if self.missing == "impute" else np.empty(0, np.intp)
        if not gaps.size:
            return score(rows)
        values, is_whole = np.empty(len(rows)), np.ones(len(rows), np.bool_)
        is_whole[gaps] = False
        if is_whole.any():
            values[is_whole] = score(rows[is_whole])
        for span in spans(len(gaps), _GAPPY_AT_ONCE):
            some = gaps[span]
            completed = self._completions(rows[some])
            each = score(completed.reshape(-1, rows.shape[1])).reshape(completed.shape[:2])
            values[some] = ordered_sum(each.T) / completed.shape[1]
        return values

    def _completions(self, rows: Array) -> Array:
        """Return rows with missing values imputed from each of K donors, (n, K, D).

        Without donors K is 1: the values are imputed from the forest, or stay missing if it is empty.
        """
        donors = self._donors
        if donors is not None and len(donors):
            return forests.imputation.completions(rows, donors, self._n_categories)
        return (rows if forests.posterior.is_empty(self.forest_) else self._imputed(rows, "mode"))[:, None]

    @property
    def _donors(self) -> Array | None:
        """Complete rows to take missing values from, if any are kept."""
        raise NotImplementedError

    def _imputed(self, rows: Array, how: str) -> Array:
        """Return rows with missing values imputed from the cells that may contain them."""
        raise NotImplementedError

    def _epsilon_levels(self, rows: Array, phi: float) -> Array:
        """Return the `phi`-quantile over trees of the mass of each row's leaf."""
        return self._leaf_values(forests.posterior.mass_table, rows, lambda masses: epsilon_levels(masses, phi))

    def _leaf_values(self, tabulate: Tabulate, rows: Array, reduce: Callable[[Array], Array]) -> Array:
        """Reduce the table values of the leaves of `rows`, (n_trees, n), over the trees."""
        with self._frozen():
            table = tabulate(self.posterior_)
            values: Array = forests.posterior.leaf_values(self.forest_, table, rows, reduce, self.n_jobs)
        return values

    @property
    def _grown_until(self) -> float:
        """The lifetime that the forest was grown with, read from its leaves because the parameter may have changed."""
        return float(self.forest_.time[0, : self.forest_.size[0]].max())

    @property
    def nbytes(self) -> int:
        """Size of the trees and of the points held, in bytes; 0 before fitting."""
        return sum(part.nbytes for part in self.forest_) if self.is_fitted else 0

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
        categories = None if self.encoding_ is None else self.encoding_.kept(self._rows_known)
        if categories is not None:
            header["categories"] = list(categories.columns)
        offset = np.nan if self._offset is None else self._offset.value
        arrays = {"prior_strength": np.array(self.prior_.strength), "offset": np.array(offset)}
        if self._quantiles is not None:
            arrays["quantiles"] = self._quantiles
        if self._n_random_draws:
            arrays["coins"] = np.array(self._n_random_draws, np.int64)
        if categories is not None:
            arrays["texts"] = categories.pack_texts()
        trees = {} if is_compact else packed("forest", self.forest_)
        trees.pop("forest/n_categories", None)  # the header lists the columns
        return header, {**arrays, "lifetimes": self.lifetimes_, **trees}

    _rules_of_state: ClassVar[dict[str, schema.Rule]] = {}  # of header fields of a subclass
    _groups_of_arrays: ClassVar[tuple[str, ...]] = ("forest",)

    @classmethod
    def _of_state(cls, header: Header, arrays: Arrays) -> Self:
        rules = {**_STATE, **cls._rules_of_state, "parameters": schema.parameters(cls._names_in_files())}
        schema.record(rules, optional=["notes", "categories"])(header, "")
        groups = {name.partition("/")[0] for name in arrays}
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
        if "compact" not in groups:  # a compact file omits the trees, which are derived
            n_categories = {"forest/n_categories": np.array([forest._n_categories])}
            forest.forest_ = unpacked("forest", {**arrays, **n_categories}, Forest)
        forest.lifetimes_ = arrays["lifetimes"]
        forest.prior_ = Prior(float(arrays["prior_strength"]), header["is_open"])
        forest._n_random_draws = int(arrays.get("coins", 0))
        forest._quantiles, forest._notes = arrays.get("quantiles"), header.get("notes", {})
        offset = float(arrays["offset"])
        forest._offset = None if np.isnan(offset) else Offset(forest._policy, offset)
        return forest

    def _check(self) -> None:
        """Raise ValueError if a state read from a file or a pickle is invalid."""
        self._check_trees()
        self._check_besides_trees()

    def _check_besides_trees(self) -> None:
        if self.forest_.weights.shape[1] != self.n_features_in_:
            raise ValueError(f"its forest has {self.forest_.weights.shape[1]} features, not {self.n_features_in_}")
        if self.forest_.n_categories[0] != self._n_categories:
            raise ValueError(f"its forest has {self.forest_.n_categories[0]} categories, not {self._n_categories}")
        if "feature_names_in_" in vars(self) and len(self.feature_names_in_) != self.n_features_in_:
            raise ValueError(f"it has {len(self.feature_names_in_)} feature names for {self.n_features_in_} features")
        if self.forest_.lower.shape[2] != (self.n_features_in_ if self._has_boxes else 0):
            raise ValueError(f"its trees do not belong to a {type(self).__name__}")
        if not SMALLEST <= self.prior_.strength <= LARGEST:
            raise ValueError(f"its prior strength is {self.prior_.strength}, out of range")
        if self._n_random_draws < 0:
            raise ValueError(f"its number of random draws is negative: {self._n_random_draws}")
        if self._offset is not None:
            check_scores("offset", np.array([self._offset.value]))
        times = self.lifetimes_
        if not times.size or not (np.isfinite(times) & (times > 0)).all() or not is_ascending(times):
            raise ValueError("the lifetimes of its score must be positive, finite and ascending")

    def _check_trees(self) -> None:
        check_forest(self.forest_, alike=True, largest=LARGEST)
