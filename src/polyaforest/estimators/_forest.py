"""What `BatchMPF` and `StreamingMPF` share: parameters, state, and scores of a fitted forest."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
from joblib import effective_n_jobs
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval, StrOptions

from polyaforest import forest as forests
from polyaforest.core import schema
from polyaforest.core.arrays import Array, Forest, LeafTable, Posterior, Prior, is_ascending
from polyaforest.core.boxes import whole_cube
from polyaforest.core.categories import Categories, Codes, Texts
from polyaforest.core.derived import Derived, lasting
from polyaforest.core.parallel import ordered_sum, spans
from polyaforest.core.score import EpsilonPhi, Score, epsilon_levels
from polyaforest.core.validation import (
    LARGEST,
    SMALLEST,
    feature_names,
    read_domain,
    read_rows,
    read_sample_weight,
    read_seed,
    read_weights,
)
from polyaforest.decision.thresholds import (
    Detections,
    ThresholdPolicy,
    check_calibration_size,
    check_scores,
    conformal_p_values,
)
from polyaforest.estimators._detector import Detector
from polyaforest.estimators._tree import Tree
from polyaforest.forest.integrity import Layout, check_forest, check_layout
from polyaforest.forest.spec import Plan, Weighting
from polyaforest.persistence.modelfile import Arrays, Header
from polyaforest.persistence.state import decode, encode, encode_columns, packed, refusing_pickle, unpacked

if TYPE_CHECKING:
    pass

_STATE: dict[str, schema.Rule] = {  # the header of every forest
    "detector": schema.text,
    "parameters": schema.mapping,
    "n_features": schema.n_features,
    "feature_names": schema.either(schema.nothing, schema.names),
    "is_open": schema.flag,
    "notes": schema.mapping,  # absent from models written before there were notes
    "categories": schema.many(schema.whole(0, 2**31 - 1)),  # columns of categories; absent where there are none
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
_ROWS_AT_ONCE = 4096  # rows that each thread scores while nothing may be learned
_GAPPY_AT_ONCE = 256  # rows that are completed together
_PLAIN = (bool, int, float, str, type(None))  # parameters that are immutable
_TREE = {name: Tree().get_params()[name] for name in Tree._parameter_constraints}  # in files as parameters of a forest
_IN_FILES = {"score_type": "score"}  # parameters with another name in files
_ABSENT_FROM_FILES: Header = {"missing": "error"}  # parameters of forests from before they had them
_APART = frozenset({"tree", "categorical_features"})  # parameters that are stored in a way of their own


@cache
def _names_of_parameters(kind: Any) -> list[str]:
    """Return the names of parameters, which scikit-learn would derive from the signature at every call."""
    names: list[str] = super(BaseForest, kind)._get_param_names()
    return names


@lru_cache(64)
def _validate_plain(kind: Any, given: tuple[Any, ...], types: tuple[type, ...]) -> None:
    """Raise unless a forest may have these parameters, in the order of their names."""
    names = kind._get_param_names()
    BaseEstimator._validate_params(kind(**dict(zip(names, given, strict=True))))


class Offset(NamedTuple):
    """A threshold, as a score, and the policy that placed it."""

    policy: ThresholdPolicy
    value: float


class BaseForest(Detector):
    """Parameters, state and scores of `BatchMPF` and `StreamingMPF`; `PolyaForest` adds the rest of what they share."""

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

    _auto_depth: ClassVar[int | None]  # what max_depth="auto" means
    _has_boxes: ClassVar[bool] = False  # whether nodes know the bounding box of their points
    _lifetimes: ClassVar[dict[str, Array]]  # times behind each score that has any, in units of the weighting
    _grids: ClassVar[list[Array]]  # all of these times, and those of streams
    _imputing_times: ClassVar[Array]  # times of the cells by which missing values are imputed, in the same units
    _why_uncalibrated: ClassVar[str]  # and what to do about it
    forest_: Forest
    lifetimes_: Array
    prior_: Prior
    _derived: dict[str, Any]  # what is worked out on first use
    _posterior = Derived[Posterior]()  # of ``forest_``
    _offset = Derived[Offset](is_lasting=True)  # the threshold
    _known_moments = Derived[tuple[Posterior, Any]]()  # second moments, and of which posterior
    _paths = Derived[Posterior]()  # the same, of as many nodes as rows that were explained needed
    _typical = Derived[tuple[Score, Array]]()  # what typical points are charged, by which score
    _reference = Derived[Any]()  # what is usual
    _names_of_shingle: list[str] | None = None  # what the features of a time series are called
    _quantiles: Array | None = None  # of the rows fitted, to say what is usual
    _n_random_draws: int = 0  # rows that followed with a weight that is no whole number: each tossed a coin
    encoding_: Categories | None = None  # which columns are categories, if any, and the texts of those held

    def _parts(self) -> dict[str, Any]:
        parts = super()._parts()
        return {**parts, "_derived": lasting(parts.get("_derived", {}))}

    def _become(self, fitted: BaseForest) -> None:
        """Take over what another forest has learned, whatever was learned before."""
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
        """Check the parameters, remembering the last plain ones: thousands of streams may share the same."""
        kind: Any = type(self)
        given = tuple(getattr(self, name) for name in self._get_param_names())
        if all(type(value) in _PLAIN for value in given):
            _validate_plain(kind, given, tuple(map(type, given)))  # 1 equals True, and 1.0
        else:
            super()._validate_params()
            self._tree._validate_params()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "forest_" in state:
            with refusing_pickle(self):  # kernels trust the trees they walk
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
        """Whether nothing can lie outside the box of the data."""
        return isinstance(self._tree.domain, str)

    @property
    def _has_given_domain(self) -> bool:
        """Whether the domain is an array, whatever the data."""
        return self._tree.domain is not None and not self._is_closed

    def _given_domain(self, n_features: int) -> Array:
        """Return the domain that was given for the numbers; of categories any is within."""
        numbers, whole = read_domain(self._tree.domain, n_features - self._n_categories), whole_cube(self._n_categories)
        return np.hstack([numbers, whole])

    @property
    def _allows_missing(self) -> bool:
        """Whether rows may have missing values."""
        return bool(self.missing != "error")

    @property
    def _n_categories(self) -> int:
        """The number of columns of categories, the last of rows."""
        return 0 if self.encoding_ is None else len(self.encoding_.columns)

    @property
    def _chosen_score(self) -> Score:
        """The score that kernels compute; quantiles of tree masses are explained by the mean of their logs."""
        return Score.LOG_MASS if isinstance(self.score_type, EpsilonPhi) else Score(self.score_type)

    @property
    def _score(self) -> Score:
        """The score in force."""
        return self._chosen_score

    @property
    def _policy(self) -> ThresholdPolicy:
        share = None if self.contamination == "auto" else float(self.contamination)
        return ThresholdPolicy(share, self.false_alarm_rate)

    def _check_rates(self, n_rows: int | None = None) -> None:
        """Raise if two rates are set, or if a table of `n_rows` has too few rows for the one that is."""
        if self.contamination != "auto" and self.false_alarm_rate is not None:
            raise ValueError(
                f"contamination={self.contamination} and false_alarm_rate={self.false_alarm_rate} both say how many "
                "rows to flag: set one of them"
            )
        if self.false_alarm_rate is not None and n_rows is not None:
            check_calibration_size(n_rows, self.false_alarm_rate, "give more rows or allow a higher rate")

    @property
    def _grid(self) -> Array:
        """The times behind the score, in units of the weighting; a score without any still gets some, for `impute`."""
        return self._lifetimes.get(self._chosen_score, self._lifetimes["multiscale"])

    def _plan(self, measured: Weighting, domain: Array, seed: np.random.SeedSequence) -> Plan:
        """Return how to draw this forest, given the measured features; also set prior and times of the score."""
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
        """Return how often each row of a table counts, coins falling by row number; None if each counts once."""
        weights = read_sample_weight(sample_weight, n_rows)
        if weights is None:
            return None
        return forests.copies.n_copies(weights, np.arange(n_rows), seed)

    def _copies_that_follow(self, sample_weight: Any, n_rows: int, seed: int) -> tuple[Array | None, int]:
        """Return how often each of the rows that come next counts, and how many coins were tossed for it.

        Coins fall by how many were tossed before.
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
        """Return how normal each row is: higher is more normal, lower more anomalous.

        Parameters
        ----------
        X : array-like or frame of shape (n_rows, n_features)

        Returns
        -------
        scores : ndarray of shape (n_rows,)
            With ``score_type="typicality"`` the mean, over trees and ``lifetimes_``, of the log of the mass of the
            row's cell: how likely a point is, at several scales at once, to fall where the row is. With ``"margins"``
            the same, less log(2) times the bits of every feature that is beyond its own margins. With
            ``"multiscale"`` the mean, over ``lifetimes_``, of the log of ``mass(X, lifetime)``, in which trees are
            averaged first. With ``"mass"`` the same as ``mass(X)``, with ``"log_mass"`` the mean over trees of the log
            of ``tree_masses(X)``, with `EpsilonPhi` ``epsilon_level(X, phi)``. For a row with missing values see the
            parameter `missing`.
        """
        return self._scores(self._read(X, allow_missing=True))

    def detect(self, X: Any) -> Detections:
        """Return scores, p-values and verdicts of rows; nothing is learned.

        Returns
        -------
        detections : Detections
            A named tuple of arrays of shape (n_rows,): `scores`, `p_values` (NaN without calibration scores),
            `is_anomaly`, and `thresholds`, all equal to ``offset_``.
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
        """Return the threshold by the policy, worked out on first use."""
        raise NotImplementedError

    def _place_by_table(self, log_score: float) -> None:
        """Flag rows whose log-score is below this, a quantile of those of the table fitted."""
        with self._changing():
            self._offset = Offset(self._policy, float(self._score.from_log(np.array(log_score))))

    def _calibration_scores(self) -> Array:
        """Return the log-scores to compare new ones with, none if there are none."""
        raise NotImplementedError

    def _detected(self, scores: Array) -> Detections:
        """Return the results for rows with these scores."""
        offset = self.offset_
        return Detections(scores, self._p_values(scores), ~(scores >= offset), np.full(len(scores), offset))

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
        """Return rows checked against those of the fit; they may have missing values only where the caller allows."""
        self._check_fitted()
        return read_rows(self, X, reset=False, allow_missing=allow_missing and self._allows_missing)

    # ---- categories -------------------------------------------------------------------------------------------------

    @property
    def is_categorical_(self) -> Array | None:
        """Whether each column is one of categories, of shape (n_features,); None if none is, as in scikit-learn."""
        self._check_fitted()
        return None if self.encoding_ is None else self.encoding_.mask

    @property
    def categories_(self) -> dict[str, list[str]]:
        """The categories of the rows held, ascending, by the name of their column."""
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
        """Rows that tell which categories there are, and whose texts are kept; None if no rows are."""
        return None

    def _note(self, texts: Texts) -> None:
        """Keep the texts of rows that are being learned."""
        if self.encoding_ is None or not texts:
            return
        noted = self.encoding_.with_texts(texts)
        if noted.is_crowded:
            noted = noted.kept(self._rows_known).with_texts(texts)
        self.encoding_ = noted

    def _as_given(self, rows: Array) -> Array:
        """Return rows as tables have them: their order of columns, and texts of categories."""
        if self.encoding_ is None or isinstance(self.categorical_features, Codes):
            return rows
        return self.encoding_.shown(rows)

    def _scores(self, rows: Array) -> Array:
        n_threads = effective_n_jobs(self.n_jobs) if len(rows) > _ROWS_AT_ONCE else 1
        parts = []
        for span in spans(len(rows), _ROWS_AT_ONCE * n_threads):  # learning and Ctrl-C need not wait for all of them
            with self._frozen():
                parts.append(self._score_by(self.forest_, self.posterior_)(rows[span], self.n_jobs))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _score_by(self, forest: Forest, known: Posterior) -> Callable[..., Array]:
        """Return a function that scores rows by a forest and its posterior."""
        score, times = self._score, self.lifetimes_

        def score_rows(rows: Array, n_jobs: int | None = None) -> Array:
            if isinstance(self.score_type, EpsilonPhi):
                return self._epsilon_levels(rows, self.score_type.phi)
            return self._less_margins(forests.score.row_scores(score, forest, known, rows, times, n_jobs), rows)

        return lambda rows, n_jobs=None: self._over_completions(rows, lambda whole: score_rows(whole, n_jobs))

    def _as_scored(self, rows: Array) -> Array:
        """Return rows without the values that scores ignore."""
        return rows

    def _less_margins(self, scores: Array, rows: Array) -> Array:
        """Return the scores of rows, less what single features cost them by the margins of the forest, if any."""
        return scores

    def _over_completions(self, rows: Array, score: Callable[[Array], Array]) -> Array:
        """Return `score` of rows; of one with missing values, the mean over its completions, if rows are imputed."""
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
        """Return rows with their missing values filled in, (n, K, D), in as many ways as there are donors at hand.

        Without donors there is but one way, the cell that the forest expects; an empty forest expects nothing.
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
        """Return rows with their missing values filled in by the cells that they may be in."""
        raise NotImplementedError

    def _epsilon_levels(self, rows: Array, phi: float) -> Array:
        """Return the `phi`-quantile of the masses that the trees give the leaf of each row."""
        return self._leaf_values(forests.posterior.mass_table, rows, lambda masses: epsilon_levels(masses, phi))

    def _leaf_values(self, tabulate: Tabulate, rows: Array, reduce: Callable[[Array], Array]) -> Array:
        """Return `reduce` over the trees, (n_trees, rows), of what a table holds for the leaves of `rows`."""
        with self._frozen():
            table = tabulate(self.posterior_)
            values: Array = forests.posterior.leaf_values(self.forest_, table, rows, reduce, self.n_jobs)
        return values

    @property
    def _grown_until(self) -> float:
        """The lifetime of the forest, whatever the parameter is by now: the time of its leaves."""
        return float(self.forest_.time[0, : self.forest_.size[0]].max())

    @property
    def nbytes(self) -> int:
        """Bytes of the trees and of the points held; 0 before there are any."""
        return sum(part.nbytes for part in self.forest_) if self.is_fitted else 0

    # ---- files ------------------------------------------------------------------------------------------------------

    def _parameters(self) -> Header:
        """Return the parameters as JSON can hold them, those of the trees among the others."""
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
        """Return a forest that has learned nothing, with parameters from a file."""
        given = _ABSENT_FROM_FILES | {name: decode(value) for name, value in stored.items()}
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
        trees.pop("forest/n_categories", None)  # the header says which, if there are any
        return header, {**arrays, "lifetimes": self.lifetimes_, **trees}

    _rules_of_state: ClassVar[dict[str, schema.Rule]] = {}  # of header fields that only some forests have
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
            raise ValueError("it has texts of categories, but no columns of them, or the other way round")
        if "categories" in header:
            forest.encoding_ = Categories.of_state(header["categories"], header["n_features"], arrays["texts"])
        if "compact" not in groups:  # else they follow from the rest
            n_categories = {"forest/n_categories": np.array([forest._n_categories])}
            forest.forest_ = unpacked("forest", {**arrays, **n_categories}, Forest)
        forest.lifetimes_ = arrays["lifetimes"]
        forest.prior_ = Prior(float(arrays["prior_strength"]), header["is_open"])
        forest._n_random_draws = int(arrays.get("coins", 0))
        forest._quantiles, forest._notes = arrays.get("quantiles"), header.get("notes", {})
        offset = float(arrays["offset"])
        forest._offset = None if np.isnan(offset) else Offset(forest._policy, offset)
        return forest

    def _adopt_noted_threshold(self) -> None:
        """Take the threshold by which the command line of earlier versions flagged rows, which is in its notes."""
        line = self._notes.get("line") if "columns" in self._notes else None  # anyone may note a line
        if line is not None:
            self._offset = Offset(self._policy, float(line))
            self._notes = {name: note for name, note in self._notes.items() if name != "line"}  # saved as the offset

    def _check(self) -> None:
        """Raise unless what was read from a file or a pickle can be a forest."""
        self._check_trees()
        self._check_besides_trees()

    def _check_besides_trees(self) -> None:
        if self.forest_.weights.shape[1] != self.n_features_in_:
            raise ValueError(f"its forest has {self.forest_.weights.shape[1]} features, not {self.n_features_in_}")
        if self.forest_.n_categories[0] != self._n_categories:
            raise ValueError(f"its forest has {self.forest_.n_categories[0]} categories, not {self._n_categories}")
        if "feature_names_in_" in vars(self) and len(self.feature_names_in_) != self.n_features_in_:
            raise ValueError("the number of its feature names is not that of its features")
        if self.forest_.lower.shape[2] != (self.n_features_in_ if self._has_boxes else 0):
            raise ValueError(f"its trees are not those of a {type(self).__name__}")
        if not SMALLEST <= self.prior_.strength <= LARGEST:
            raise ValueError(f"its prior strength is {self.prior_.strength}")
        if self._n_random_draws < 0:
            raise ValueError(f"it has tossed {self._n_random_draws} coins")
        if self._offset is not None:
            check_scores("offset", np.array([self._offset.value]))
        times = self.lifetimes_
        if not times.size or not (np.isfinite(times) & (times > 0)).all() or not is_ascending(times):
            raise ValueError("the lifetimes of its score are not positive, finite and ascending")

    def _check_trees(self) -> None:
        check_forest(self.forest_, alike=True, largest=LARGEST)
