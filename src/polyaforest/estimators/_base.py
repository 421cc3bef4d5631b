"""What both detectors share: everything that reads a forest once it stands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, lru_cache
from numbers import Integral, Real
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
from sklearn.base import BaseEstimator, OutlierMixin
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from polyaforest.core import schema
from polyaforest.core.arrays import Array, Forest, LeafTable, Posterior, Prior
from polyaforest.core.locks import Guarded
from polyaforest.core.validation import (
    LARGEST,
    SMALLEST,
    read_rate,
    read_rows,
    read_share,
    read_times,
    read_weights,
)
from polyaforest.decision.calibration import n_to_calibrate, some_rows
from polyaforest.decision.credible import Masses, Moments, moments
from polyaforest.decision.thresholds import (
    Judgements,
    auto_threshold,
    benjamini_hochberg,
    check_scores,
    conformal_p_values,
    conformal_threshold,
)
from polyaforest.explain import Explanations, read_features
from polyaforest.forest.integrity import Layout, check_forest, check_layout
from polyaforest.forest.spec import Plan, Weighting
from polyaforest.persistence.modelfile import Arrays, Header, Place, read_model, write_model
from polyaforest.persistence.state import decode, encode, packed, refusing, refusing_pickle, unpacked

if TYPE_CHECKING:
    from polyaforest.explain.context import Reference, Witness

_FEW = 16  # rows of a stream for which words are looked up at once
_DOUBT = 1e-9  # by which share surprise and score, which are worked out in different ways, may differ
_THRESHOLD_ROWS = 4096  # rows whose scores place the automatic threshold
_ROWS_OF_MASSES = 2048  # rows whose masses are looked up, tree by tree, at a time
Tabulate = Callable[[Posterior], LeafTable]
_STATE: dict[str, schema.Rule] = {  # what the header of every forest says
    "detector": schema.text,
    "parameters": schema.mapping,
    "n_features": schema.n_features,
    "feature_names": schema.either(schema.nothing, schema.names),
    "is_open": schema.flag,
    "notes": schema.mapping,  # models written before there were any have none
}
_LAYOUT: Layout = {  # arrays that do not make up the trees; L lifetimes, N scores, Q quantiles, D features
    "prior_strength": (np.float64, ""),
    "offset": (np.float64, ""),
    "lifetimes": (np.float64, "L"),
    "quantiles": (np.float64, "QD"),
    "calibration": (np.float64, "N"),
}
_ROUNDING = 1 - 1e-12  # keeps a mass from falling below its own logarithm's exponential


def kernels() -> ModuleType:
    """The compiled half of the package, imported on first use so that importing polyaforest stays light."""
    from polyaforest.forest import engine

    return engine


class Leaves(NamedTuple):
    """Which leaf each row falls in, per tree; both arrays have shape (n_rows, n_estimators)."""

    node: Array  # int32: the node whose region it is, -1 outside
    kind: Array  # int8: a `LeafKind`


_PLAIN = (bool, int, float, str, type(None))  # parameters that cannot change under the same name


@cache
def _names_of_parameters(kind: Any) -> list[str]:
    """The names of parameters, which scikit-learn would take from the signature at every call."""
    names: list[str] = super(PolyaForest, kind)._get_param_names()
    return names


@lru_cache(64)
def _validate_plain(kind: Any, given: tuple[Any, ...], types: tuple[type, ...]) -> None:
    """Raise unless a forest may have these parameters, in the order of their names."""
    names = kind._get_param_names()
    BaseEstimator._validate_params(kind(**dict(zip(names, given, strict=True))))


class PolyaForest(Guarded, OutlierMixin, BaseEstimator):
    """What both detectors share: everything that reads a forest once it stands."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_estimators": [Interval(Integral, 1, None, closed="left")],
        "max_depth": [Interval(Integral, 0, None, closed="left"), None],
        "prior_strength": [Interval(Real, SMALLEST, LARGEST, closed="both")],
        "lifetime": [Interval(Real, 0, None, closed="right")],
        "feature_weights": [StrOptions({"auto"}), "array-like", None],
        "score": [StrOptions({"typicality", "multiscale", "mass", "log_mass"})],
        "contamination": [StrOptions({"auto"}), Interval(Real, 0, 0.5, closed="right")],
        "false_alarm_rate": [Interval(Real, 0, 1, closed="neither"), None],
        "domain": [StrOptions({"data"}), "array-like", None],
        "missing": [StrOptions({"error", "marginalise"})],
        "random_state": ["random_state"],
        "n_jobs": [Interval(Integral, 1, None, closed="left"), Interval(Integral, None, -1, closed="right"), None],
    }

    _has_boxes: ClassVar[bool] = False  # whether nodes know the bounding box of their points
    _trees_count_alike: ClassVar[bool] = True  # whether all trees count as many rows
    _lifetimes: ClassVar[dict[str, Array]]  # times behind each score that has any, in units of the weighting
    _grids: ClassVar[list[Array]]  # all of these times, and those of streams
    _imputing_times: ClassVar[Array]  # times of the cells that missing values are filled in by, in the same units
    forest_: Forest
    lifetimes_: Array
    prior_: Prior
    _posterior: Posterior | None  # derived from the forest as it stands, None until it is asked for
    _offset: float | None  # as above
    _calibration: Array | None = None  # scores of rows as if the forest had not learned them, if they are known
    _doubt: tuple[Posterior, Any] | None = None  # how sure a posterior is, and which one
    _reference: tuple[Posterior, str, Reference] | None = None  # what is typical, by which posterior and score
    _quantiles: Array | None = None  # of the rows of a table, by which to tell what is usual
    _notes: Mapping[str, Any] = MappingProxyType({})
    _not_copied: ClassVar[frozenset[str]] = Guarded._not_copied | {"_reference", "_doubt"}

    def _reading(self) -> AbstractContextManager[None]:
        """For as long as a forest is read. One whose arrays are replaced, never written to, needs nothing more."""
        return nullcontext()

    @property
    def posterior_(self) -> Posterior:
        """Log-masses and log-volumes of every node, derived from the forest when first asked for."""
        if self._posterior is None:
            self._posterior = kernels().posterior(self.forest_, self.prior_, n_jobs=self.n_jobs)
        return self._posterior

    @property
    def offset_(self) -> float:
        """``decision_function = score_samples - offset_``."""
        check_is_fitted(self)
        assert self._offset is not None
        return self._offset

    @classmethod
    def _get_param_names(cls) -> list[str]:
        kind: Any = cls  # mypy takes no class of estimators for hashable
        return _names_of_parameters(kind)

    def _validate_params(self) -> None:
        """Check the parameters; those of one forest after another may be the same, as for the streams of keys."""
        kind: Any = type(self)
        given = tuple(getattr(self, name) for name in self._get_param_names())
        if all(type(value) in _PLAIN for value in given):
            _validate_plain(kind, given, tuple(map(type, given)))  # 1 equals True, and 1.0
        else:
            super()._validate_params()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "forest_" in state:
            with refusing_pickle(self):  # kernels trust what they walk along
                self._check()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self._marginalises
        return tags

    # ---- files ------------------------------------------------------------------------------------------------------

    @property
    def notes(self) -> dict[str, Any]:
        """What was noted in the file that the forest was loaded from; empty for any other forest."""
        return dict(self._notes)

    def save(self, path: Place, notes: Mapping[str, Any] | None = None) -> None:
        """Write the forest to a file, from which `load` makes one that goes on as this one would, bit for bit.

        The file holds arrays and a JSON header, no code. It is written whole or not at all: until the end, and if
        anything goes wrong, what was at `path` before stays there.

        Parameters
        ----------
        path : str, path-like or binary file
        notes : dict of what JSON holds as it is, optional
            What else to remember: how far into its stream the forest has come, say. `load` gives it back as ``notes``.
            By default the notes that the forest came with.
        """
        check_is_fitted(self)
        self._validate_params()  # or the file could not be read again
        with self._frozen():
            header, arrays = self._state()
            write_model(path, {**header, "notes": self.notes if notes is None else dict(notes)}, arrays)

    @classmethod
    def load(cls, path: Place) -> Self:
        """The forest that `save` wrote to a file; a `ModelFileError` if the file is damaged or another's."""
        header, arrays = read_model(path)
        with refusing(path):
            return cls._of_state(header, arrays)

    def _state(self) -> tuple[Header, Arrays]:
        """All there is to know of a fitted forest."""
        names = getattr(self, "feature_names_in_", None)
        header = {
            "detector": type(self).__name__,
            "parameters": {name: encode(value) for name, value in self.get_params(deep=False).items()},
            "n_features": self.n_features_in_,
            "feature_names": None if names is None else [str(name) for name in names],
            "is_open": self.prior_.is_open,
        }
        offset = np.nan if self._offset is None else self._offset
        numbers = {"prior_strength": np.array(self.prior_.strength), "offset": np.array(offset)}
        known = {"quantiles": self._quantiles, "calibration": self._calibration}
        numbers |= {name: part for name, part in known.items() if part is not None}
        return header, {**numbers, "lifetimes": self.lifetimes_, **packed("forest", self.forest_)}

    _rules_of_state: ClassVar[dict[str, schema.Rule]] = {}  # of what a header says beside what all of them do
    _groups_of_arrays: ClassVar[tuple[str, ...]] = ("forest",)

    @classmethod
    def _of_state(cls, header: Header, arrays: Arrays) -> Self:
        if header.get("detector") != cls.__name__:
            raise ValueError(f"it holds a {header.get('detector')}, not a {cls.__name__}")
        rules = {**_STATE, **cls._rules_of_state, "parameters": schema.parameters(cls._get_param_names())}
        schema.record(rules, optional=["notes"])(header, "")
        own = {name: part for name, part in arrays.items() if name.partition("/")[0] not in cls._groups_of_arrays}
        check_layout(own, _LAYOUT, {"D": header["n_features"]})
        forest = cls(**{name: decode(value) for name, value in header["parameters"].items()})
        forest._validate_params()
        forest.n_features_in_ = header["n_features"]
        if header["feature_names"] is not None:
            forest.feature_names_in_ = np.array(header["feature_names"], dtype=object)
        forest.forest_, forest.lifetimes_ = unpacked("forest", arrays, Forest), arrays["lifetimes"]
        forest.prior_ = Prior(float(arrays["prior_strength"]), header["is_open"])
        offset = float(arrays["offset"])
        forest._offset, forest._posterior = None if np.isnan(offset) else offset, None
        forest._quantiles, forest._calibration = arrays.get("quantiles"), arrays.get("calibration")
        forest._notes = header.get("notes", {})
        forest._check()
        if header.get("stream") is None and (forest._offset is None or not forest.forest_.size.all()):
            raise ValueError("it follows no stream, but its forest is empty or has no offset")
        return forest

    def _check(self) -> None:
        """Raise unless what was read from a file or a pickle can be a forest."""
        self._check_trees()
        if self.forest_.weights.shape[1] != self.n_features_in_:
            raise ValueError(f"its forest has {self.forest_.weights.shape[1]} features, not {self.n_features_in_}")
        if "feature_names_in_" in vars(self) and len(self.feature_names_in_) != self.n_features_in_:
            raise ValueError("the number of its feature names is not that of its features")
        if self.forest_.lower.shape[2] != (self.n_features_in_ if self._has_boxes else 0):
            raise ValueError(f"its trees are not those of a {type(self).__name__}")
        if not SMALLEST <= self.prior_.strength <= LARGEST:
            raise ValueError(f"its prior strength is {self.prior_.strength}")
        if self._quantiles is not None:
            self._check_quantiles(self._quantiles)
        if self._calibration is not None:
            check_scores("calibration", self._calibration)
        if self._offset is not None:
            check_scores("offset", np.array([self._offset]))
        times = self.lifetimes_
        if not times.size or not (np.isfinite(times) & (times > 0) & (np.diff(times, prepend=0) > 0)).all():
            raise ValueError("the lifetimes of its score are not positive, finite and ascending")

    def _check_trees(self) -> None:
        check_forest(self.forest_, alike=self._trees_count_alike, largest=LARGEST)

    # ---- scikit-learn's words ---------------------------------------------------------------------------------------

    def score_samples(self, X: Any) -> Array:
        """How normal each row is: higher is more normal, lower more anomalous.

        Parameters
        ----------
        X : array-like or frame of shape (n_rows, n_features)

        Returns
        -------
        scores : ndarray of shape (n_rows,)
            With ``score="typicality"`` the mean, over trees and ``lifetimes_``, of the log of the mass of the row's
            cell: how likely it is, at several scales at once, to find a point where the row is. With ``"multiscale"``
            the mean, over ``lifetimes_``, of the log of ``mass(X, lifetime)``, in which trees are averaged first. With
            ``"mass"`` the same as ``mass(X)``, with ``"log_mass"`` the mean over trees of the log of
            ``tree_masses(X)``.
        """
        return self._scores(self._read(X, allow_missing=True))

    def decision_function(self, X: Any) -> Array:
        """``score_samples(X) - offset_``: negative for anomalies."""
        scores, offset = self.score_samples(X), self.offset_
        with np.errstate(invalid="ignore"):
            return np.where(scores == offset, 0.0, scores - offset)  # both may be infinite

    def predict(self, X: Any) -> Array:
        """+1 for normal rows, -1 for anomalies (``decision_function(X) < 0``)."""
        return np.where(self.decision_function(X) >= 0, 1, -1)

    def judge(self, X: Any) -> Judgements:
        """Scores, p-values and verdicts of rows in one call, nothing being learned.

        Returns
        -------
        judgements : Judgements
            A named tuple of arrays of shape (n_rows,): `scores`, `p_values` (NaN where the forest has nothing to
            compare with), `is_anomaly`, and `lines`, below which scores are flagged: ``offset_``; for a stream see
            `StreamingMPF.judge_then_learn`.
        """
        scores = self.score_samples(X)
        p_values, line = self._p_values(scores), self.offset_
        unknown = np.full(len(scores), np.nan)
        lines = np.full(len(scores), line)
        return Judgements(scores, unknown if p_values is None else p_values, scores < line, lines)

    # ---- false alarms -----------------------------------------------------------------------------------------------

    def p_value(self, X: Any) -> Array:
        """How likely a row like those learned, but new, would look at least as strange: conformal p-values.

        A p-value is (1 + the number of calibration scores that are not above the row's) / (1 + their number). The
        calibration scores are those of rows that were learned, each scored as if it had not been. If the new row could
        as well have been one of them, its p-value is at most alpha with a probability of about alpha, for every alpha.

        Parameters
        ----------
        X : array-like or frame of shape (n_rows, n_features)

        Returns
        -------
        p_values : ndarray of shape (n_rows,)
            From ``1 / (n + 1)``, for rows stranger than all n calibration scores, to 1.
        """
        rows = self._read(X, allow_missing=True)
        return conformal_p_values(self._scores(rows), self._calibrated())

    def discoveries(self, X: Any, rate: float = 0.1) -> Array:
        """Which rows to flag if, on average, at most a share `rate` of those flagged may be false alarms.

        The procedure of Benjamini and Hochberg on ``p_value(X)``: all rows are judged together, so that many of them do
        not make many false alarms.

        Parameters
        ----------
        X : array-like or frame of shape (n_rows, n_features)
        rate : float between 0 and 1, default=0.1

        Returns
        -------
        is_flagged : ndarray of bool, shape (n_rows,)
        """
        return benjamini_hochberg(self.p_value(X), read_rate("rate", rate))

    _why_uncalibrated: ClassVar[str]  # and what to do about it

    @property
    def _remedy_for_few(self) -> str:
        """What to do if there are too few scores for a rate."""
        return "give more rows or allow a higher rate"

    def _calibrated(self) -> Array:
        """The scores to compare others with."""
        if self._calibration is None:
            raise ValueError(f"this forest has no scores to compare with: {self._why_uncalibrated}")
        return self._calibration

    # ---- probabilities ----------------------------------------------------------------------------------------------

    def mass(self, X: Any, lifetime: float | Array | None = None) -> Array:
        """Probability mass around each row, averaged over the trees.

        Parameters
        ----------
        X : array-like or frame of shape (n_rows, n_features)
        lifetime : float or array-like of shape (n_lifetimes,), optional
            Without it, the mass of the leaves that hold the row. With it, the mass of the row's cells in the partition
            as it stood at that time: early cells are large, late cells small. For a prior strength near 0 its
            expectation is a kernel density with a Laplace kernel of bandwidth 1 / lifetime.

        Returns
        -------
        mass : ndarray of shape (n_rows,), or (n_rows, n_lifetimes) for an array of lifetimes
        """
        rows = self._read(X, allow_missing=True)
        if lifetime is None:
            return self._leaf_means(kernels().mass_table, rows)
        times = read_times("lifetime", lifetime, self._grown_until)
        ascending, places = np.unique(times, return_inverse=True)
        masses = np.exp(self._log_cell_masses(rows, ascending))[:, places]
        return masses if np.ndim(lifetime) else masses[:, 0]

    def tree_masses(self, X: Any) -> Array:
        """Mass of the leaf that holds each row, in every tree, ndarray of shape (n_rows, n_estimators)."""
        return self._leaf_values(kernels().mass_table, self._read(X, allow_missing=True), np.transpose)

    def log_density(self, X: Any) -> Array:
        """Log of the forest's mean density at each row, over the features that vary.

        Within a leaf the density is its mass divided by its volume. For a row that lacks values it is the density of
        those that are there.
        """
        rows = self._read(X, allow_missing=True)
        return self._leaf_values(kernels().log_density_table, rows, kernels().log_mean_exp)

    def epsilon_level(self, X: Any, phi: float) -> Array:
        """The smallest epsilon at which each row is an (epsilon, phi)-anomaly: the phi-quantile of its tree masses.

        Leaf masses depend on how finely the trees cut: uncapped trees of 64 rows have leaves of about 1/64, however
        normal. Set `max_depth` or `lifetime` where epsilon is to mean something by itself.
        """
        masses = self.tree_masses(X)
        shares = np.arange(masses.shape[1] + 1) / masses.shape[1]
        needed = int(np.searchsorted(shares, read_share("phi", phi)))  # the fewest trees that make up a share of phi
        if needed == 0:
            return np.zeros(len(masses))
        return np.partition(masses, needed - 1, axis=1)[:, needed - 1]

    def is_anomaly(self, X: Any, epsilon: float, phi: float) -> Array:
        """Whether at least a share `phi` of the trees give the leaf of each row a mass of at most `epsilon`.

        See `epsilon_level` on how fine trees should be for that.
        """
        levels = self.epsilon_level(X, phi)
        return levels <= read_share("epsilon", epsilon)

    def leaves(self, X: Any) -> Leaves:
        """The leaf that holds each row, in every tree: its node in ``forest_`` and its `LeafKind`."""
        rows = self._read(X)
        with self._reading():
            return Leaves(*kernels().leaf_kinds(self.forest_, self.posterior_, rows, self.n_jobs))

    # ---- missing values ---------------------------------------------------------------------------------------------

    def impute(self, X: Any, how: str = "mean") -> Array:
        """The rows of `X` with their missing values (NaN) filled in by the forest, whatever the parameter `missing`.

        Parameters
        ----------
        X : array-like or frame of shape (n_rows, n_features)
        how : {"mean", "mode"}, default="mean"
            "mean" fills in the conditional expectation of each value: the mean of the centres of the cells that the row
            may be in, weighted by their mass and by how near they are in the values that are there. "mode" takes the
            centre of the heaviest of these cells, so that values filled into one row go together.

        Returns
        -------
        filled : ndarray of shape (n_rows, n_features)
            Rows that lack nothing are as they were.
        """
        if how not in ("mean", "mode"):
            raise ValueError(f'how must be "mean" or "mode"; got {how!r}')
        check_is_fitted(self)
        rows = read_rows(self, X, reset=False, allow_missing=True)
        with self._reading():
            if kernels().is_empty(self.forest_):
                raise ValueError("a forest that holds no points knows nothing to fill in: let it learn some first")
            return self._imputed(rows, how)

    def _imputed(self, rows: Array, how: str) -> Array:
        times = np.unique(np.minimum(self._imputing_times * self._unit_of_time, self._grown_until))
        filled: Array = kernels().impute(self.forest_, self.posterior_, rows, times, how, self.n_jobs)
        return filled

    @property
    def _unit_of_time(self) -> float:
        """What the lifetimes are multiples of, told from them: parameters may have changed since they were set."""
        for grid in self._grids:
            if len(grid) == len(self.lifetimes_) and np.allclose(grid / grid[0], self.lifetimes_ / self.lifetimes_[0]):
                return float(self.lifetimes_[0] / grid[0])
        return 1.0

    # ---- uncertainty ------------------------------------------------------------------------------------------------

    def mass_moments(self, X: Any, lifetime: float | None = None) -> Moments:
        """Mean and variance of the posterior of ``mass(X, lifetime)``, for a tree of the forest drawn at random.

        Parameters
        ----------
        X : array-like or frame of shape (n_rows, n_features)
        lifetime : float, optional
            As in `mass`.

        Returns
        -------
        moments : Moments
            ``mean``, the same as ``mass(X, lifetime)``, and ``variance``, both of shape (n_rows,). The variance is what
            the posterior of each tree leaves open, on average, and how much the trees disagree.
        """
        parts = [moments(masses) for masses in self._masses(X, lifetime)]
        return Moments(*map(np.concatenate, zip(*parts, strict=True)))

    def credible_interval(self, X: Any, level: float = 0.9, lifetime: float | None = None) -> Array:
        """Where the mass of each row lies with probability `level`, by the posterior of a tree drawn at random.

        The interval is equal-tailed. It says how sure the forest is of a mass, not how often rows are flagged.

        Parameters
        ----------
        X : array-like or frame of shape (n_rows, n_features)
        level : float between 0 and 1, default=0.9
        lifetime : float, optional
            As in `mass`.

        Returns
        -------
        interval : ndarray of shape (n_rows, 2)
            Lower and upper bound. A bound too small for a float is 0.
        """
        level = read_rate("level", level)
        return np.concatenate([kernels().intervals(masses, level, self.n_jobs) for masses in self._masses(X, lifetime)])

    def _masses(self, X: Any, lifetime: float | None) -> Iterator[Masses]:
        """What the trees say of the masses of rows, so many at a time that a stream need not wait for all of them."""
        rows = self._read(X)
        if np.ndim(lifetime):  # type: ignore[arg-type]
            raise ValueError(f"lifetime must be one time; got {lifetime!r}")
        time = None if lifetime is None else float(read_times("lifetime", lifetime, self._grown_until)[0])
        for start in range(0, len(rows), _ROWS_OF_MASSES):
            with self._reading():
                doubt, some = self._doubts(), rows[start : start + _ROWS_OF_MASSES]
                masses = kernels().row_masses(self.forest_, self.posterior_, doubt, some, time, self.n_jobs)
            yield masses

    def _doubts(self) -> Any:
        """How sure ``posterior_`` is of its masses, kept for as long as that stands."""
        known, kept = self.posterior_, self._doubt
        if kept is None or kept[0] is not known:
            kept = self._doubt = known, kernels().doubts(self.forest_, self.prior_, known, self.n_jobs)
        return kept[1]

    # ---- explanations -----------------------------------------------------------------------------------------------

    def explain(
        self, X: Any, features: Sequence[str | int] | None = None, *, line: float | None = None
    ) -> Explanations:
        """Why rows are as strange as they are: bits of surprise, feature by feature, and in words.

        With the scores ``"typicality"`` and ``"multiscale"`` the surprise of a row is the mean, over trees and
        ``lifetimes_``, of -log2 of the mass of its cell; with ``"log_mass"`` and ``"mass"`` the mean over trees of
        -log2 of the mass of its leaf. So for ``"typicality"`` and ``"log_mass"`` it is the score itself, in bits:
        ``-score_samples(X) / log(2)``.

        Every bit is charged to the feature that caused it, on its low or its high side, and the bits that a typical
        point is charged are taken off: what remains adds up to the surprise beyond the typical, exactly.

        Parameters
        ----------
        X : array-like or frame of shape (n_rows, n_features)
        features : sequence of names or column numbers, optional
            The features that may be blamed, if not all; the bits of the others are counted all the same.
        line : float, optional
            The score below which rows count as anomalies, if not ``offset_``: one of `StreamingMPF.judge_then_learn`,
            say. It saves a stream the time to work its own line out.

        Returns
        -------
        explanations : Explanations
            A sequence of one `Explanation` per row, with the arrays ``surprise``, ``low``, ``high`` and ``parts``.
            Words are looked up when first asked for. A stream that has learned since can no longer be asked: see
            `Explanations.settle`, which happens by itself for a few rows.
        """
        rows = self._read(X)
        names = [str(name) for name in getattr(self, "feature_names_in_", [f"x{k}" for k in range(rows.shape[1])])]
        candidates = read_features(features, names)
        offset, index = self.offset_ if line is None else line, X.index if hasattr(X, "iloc") else None
        with self._reading():
            witness = self._witness(offset)
            must_hurry = witness.watching is not nullcontext and len(rows) <= _FEW
            if must_hurry:  # nobody can change the forest until all is said
                witness = witness._replace(watching=nullcontext)
            charges, base = kernels().blame_rows(witness.forest, witness.known, rows, witness.lifetimes, self.n_jobs)
            said = Explanations(rows.copy(), names, charges, base, candidates, witness, index)
            if must_hurry:
                said.settle()
        return said.judged(*self._verdicts(rows, said.surprise, offset, as_it_comes=line is not None))

    def _verdicts(
        self, rows: Array, surprise: Array, offset: float, *, as_it_comes: bool
    ) -> tuple[Array, Array | None]:
        """Which rows are anomalies, and their p-values, by their surprise where the score is the same in other units.

        That is true up to rounding, so rows that are no farther than that from the line, or from a score that they
        are compared with, are scored after all.
        """
        compare = self._p_values_of_late if as_it_comes else self._p_values
        if self._kind_of_score not in ("typicality", "log_mass"):
            scores = self._scores(rows)
            return scores < offset, compare(scores)
        n, scores = len(rows), surprise * -np.log(2)
        margin = np.where(np.isfinite(scores), _DOUBT * (1 + np.abs(scores)), 0.0)
        either = np.concatenate([scores - margin, scores + margin])
        p_values, is_anomaly = compare(either), either < offset
        in_doubt = is_anomaly[:n] != is_anomaly[n:]
        if p_values is not None:
            in_doubt |= p_values[:n] != p_values[n:]
        if in_doubt.any():
            scores[in_doubt] = self._scores(rows[in_doubt])
            return scores < offset, compare(scores)
        return is_anomaly[:n], None if p_values is None else p_values[:n]

    def _p_values(self, scores: Array) -> Array | None:
        """The p-values of scores, where there is anything to compare them with."""
        return None if self._calibration is None else conformal_p_values(scores, self._calibrated())

    def _p_values_of_late(self, scores: Array) -> Array | None:
        """The p-values of scores by what a stream has said of late; other forests say the same at any time."""
        return self._p_values(scores)

    def _witness(self, offset: float) -> Witness:
        """The forest as it stands, for questions about rows."""
        from polyaforest.explain import context

        forest, known, times, score = self.forest_, self.posterior_, self.lifetimes_, self._kind_of_score
        lifetimes = times if score in ("typicality", "multiscale") else np.empty(0)
        if self._reference is None or self._reference[0] is not known or self._reference[1] != score:
            reference = context.derive(forest, known, lifetimes, self._points_kept, self._quantiles)
            self._reference = known, score, reference
        return context.Witness(
            forest,
            known,
            lifetimes,
            lambda rows: kernels().row_scores(score, forest, known, rows, times, None),
            offset,
            self._reference[2],
            None,
            nullcontext,
        )

    @property
    def _kind_of_score(self) -> str:
        """The score that the forest gives as it stands."""
        return str(self.score)

    @property
    def _points_kept(self) -> Array | None:
        """The points that the forest knows, if it does."""
        return None

    def _check_quantiles(self, quantiles: Array) -> None:
        from polyaforest.explain.context import N_QUANTILES

        if len(quantiles) != N_QUANTILES or not (np.abs(quantiles) <= LARGEST).all():  # which NaN is not
            raise ValueError(f"array quantiles: it must hold {N_QUANTILES} finite values of each feature")

    def _note_what_is_usual(self, rows: Array) -> None:
        from polyaforest.explain.context import quantiles_of

        self._quantiles = quantiles_of(rows)

    # ---- shared machinery --------------------------------------------------------------------------------------------

    def _read(self, X: Any, *, allow_missing: bool = False) -> Array:
        """Rows checked against the fit's; they may lack values only where the caller can do with that."""
        check_is_fitted(self)
        return read_rows(self, X, reset=False, allow_missing=allow_missing and self._marginalises)

    @property
    def _marginalises(self) -> bool:
        """Whether rows may lack values."""
        return bool(self.missing == "marginalise")

    def _scores(self, rows: Array) -> Array:
        with self._reading():
            scores: Array = kernels().row_scores(
                self.score, self.forest_, self.posterior_, rows, self.lifetimes_, self.n_jobs
            )
        return scores

    def _leaf_means(self, tabulate: Tabulate, rows: Array) -> Array:
        """Mean over the trees of what a table of the posterior says of the leaves of `rows`."""
        with self._reading():
            means: Array = kernels().leaf_means(self.forest_, tabulate(self.posterior_), rows, self.n_jobs)
        return means

    def _leaf_values(self, tabulate: Tabulate, rows: Array, reduce: Callable[[Array], Array]) -> Array:
        """`reduce` over the trees, (n_trees, rows), of what a table of the posterior says of the leaves of `rows`."""
        with self._reading():
            values: Array = kernels().leaf_values(self.forest_, tabulate(self.posterior_), rows, reduce, self.n_jobs)
        return values

    def _log_cell_masses(self, rows: Array, lifetimes: Array) -> Array:
        with self._reading():
            logs: Array = kernels().log_cell_masses(self.forest_, self.posterior_, rows, lifetimes, self.n_jobs)
        return logs

    @property
    def _is_closed(self) -> bool:
        """Whether the parameters say that nothing lies beyond the known world."""
        return isinstance(self.domain, str)

    @property
    def _grid(self) -> Array:
        """The times behind the score, in units of the weighting; a score without any keeps some for good measure."""
        return self._lifetimes.get(self.score, self._lifetimes["multiscale"])

    @property
    def _grown_until(self) -> float:
        """The lifetime of the forest as it stands, whatever the parameter says by now: the time of its leaves."""
        return float(self.forest_.time[0, : self.forest_.size[0]].max())

    def _plan(self, measured: Weighting, domain: Array) -> Plan:
        """How to draw this forest, given how its features measure up; also sets prior and times of the score."""
        weighting = measured
        if not isinstance(self.feature_weights, str):
            weighting = measured._replace(fixed=read_weights(self.feature_weights, domain.shape[1]))
        self.lifetimes_ = self._grid / weighting.unit
        self.prior_ = Prior(float(self.prior_strength), is_open=not self._is_closed)
        return Plan(
            self.n_estimators, float(self.lifetime), self.max_depth, weighting, domain, self._seed(), self.n_jobs
        )

    def _seed(self) -> np.random.SeedSequence:
        if self.random_state is None:
            return np.random.SeedSequence()
        if isinstance(self.random_state, Integral):
            return np.random.SeedSequence(int(self.random_state))
        return np.random.SeedSequence(check_random_state(self.random_state).randint(2**31, size=4).tolist())

    def _adopt(self, forest: Forest) -> None:
        """Make `forest` this detector's, its posterior derived."""
        self.forest_, self._posterior = forest, kernels().posterior(forest, self.prior_, n_jobs=self.n_jobs)
        self._quantiles = self._reference = self._doubt = self._calibration = None

    def _refuse_two_rates(self) -> None:
        if self.contamination != "auto" and self.false_alarm_rate is not None:
            raise ValueError(
                f"contamination={self.contamination} and false_alarm_rate={self.false_alarm_rate} both say how many "
                "rows to flag: set one of them"
            )

    def _rows_to_calibrate(self, n_rows: int) -> Array:
        """Which of so many rows to calibrate with."""
        return some_rows(n_rows, n_to_calibrate(self.false_alarm_rate))

    def _threshold(self, rows: Array) -> float:
        """The score to flag below: by the scores that the forest was calibrated with, where false alarms count.

        Otherwise by the rows' own scores, since it is among them that a share is to be flagged, or the odd ones.
        """
        if self.false_alarm_rate is not None:
            scores = self._calibrated()
        elif self.contamination == "auto":
            scores = self._scores(rows[some_rows(len(rows), _THRESHOLD_ROWS)])
        else:
            scores = self._scores(rows)
        return self._line(scores, is_log=self.score != "mass")

    def _line(self, scores: Array, *, is_log: bool) -> float:
        """The score at the share to flag, or where the bulk of the scores says that their tail ends."""
        if self.false_alarm_rate is not None:
            return conformal_threshold(scores, float(self.false_alarm_rate), self._remedy_for_few)
        if self.contamination != "auto":
            return _percentile(scores, 100.0 * self.contamination)
        if is_log:
            return auto_threshold(scores)
        with np.errstate(divide="ignore"):
            threshold = np.exp(auto_threshold(np.log(scores)))
        return float(threshold * _ROUNDING)


def _percentile(scores: Array, percent: float) -> float:
    """The percentile of scores; where it would lie between an infinite one and another, the other."""
    with np.errstate(invalid="ignore"):
        line = float(np.percentile(scores, percent))
    return line if np.isfinite(line) else float(np.percentile(scores, percent, method="higher"))
