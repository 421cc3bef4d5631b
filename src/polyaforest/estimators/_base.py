"""What both detectors share: everything that reads a forest once it stands."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from numbers import Integral, Real
from types import ModuleType
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from sklearn.base import BaseEstimator, OutlierMixin
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from polyaforest._arrays import Array, Forest, LeafTable, Posterior, Prior
from polyaforest._check import check_forest
from polyaforest._files import Arrays, Header, read_model, write_model
from polyaforest._locks import ReadersWriterLock
from polyaforest._plan import Plan, Weighting
from polyaforest._state import decode, encode, packed, refusing, unpacked
from polyaforest._validation import (
    read_rows,
    read_share,
    read_times,
    read_weights,
)
from polyaforest.thresholds import auto_threshold

_THRESHOLD_ROWS = 4096  # rows whose scores place the automatic threshold
Tabulate = Callable[[Posterior], LeafTable]
_ROUNDING = 1 - 1e-12  # keeps a mass from falling below its own logarithm's exponential


def kernels() -> ModuleType:
    """The compiled half of the package, imported on first use so that importing polyaforest stays light."""
    from polyaforest import _engine

    return _engine


class Leaves(NamedTuple):
    """Which leaf each row falls in, per tree; both arrays have shape (n_rows, n_estimators)."""

    node: Array  # int32: the node whose region it is, -1 outside
    kind: Array  # int8: a `LeafKind`


class PolyaForest(OutlierMixin, BaseEstimator):
    """What both detectors share: everything that reads a forest once it stands."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_estimators": [Interval(Integral, 1, None, closed="left")],
        "max_depth": [Interval(Integral, 0, None, closed="left"), None],
        "prior_strength": [Interval(Real, 0, None, closed="neither")],
        "lifetime": [Interval(Real, 0, None, closed="right")],
        "feature_weights": [StrOptions({"auto"}), "array-like", None],
        "score": [StrOptions({"typicality", "multiscale", "mass", "log_mass"})],
        "contamination": [StrOptions({"auto"}), Interval(Real, 0, 0.5, closed="right")],
        "domain": [StrOptions({"data"}), "array-like", None],
        "random_state": ["random_state"],
        "n_jobs": [Interval(Integral, 1, None, closed="left"), Interval(Integral, None, -1, closed="right"), None],
    }

    _trees_count_alike: ClassVar[bool] = True  # whether all trees count as many rows
    _lifetimes: ClassVar[dict[str, Array]]  # times behind each score that has any, in units of the weighting
    forest_: Forest
    lifetimes_: Array
    prior_: Prior
    _posterior: Posterior | None  # derived from the forest as it stands, None until it is asked for
    _offset: float | None  # as above
    _lock: ReadersWriterLock

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

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {name: part for name, part in state.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "forest_" in state:
            self._lock = ReadersWriterLock()

    # ---- files ------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the forest to a file, from which `load` makes one that goes on as this one would, bit for bit.

        The file holds arrays and a JSON header, no code. It is written whole or not at all: until the end, and if
        anything goes wrong, what was at `path` before stays there.
        """
        check_is_fitted(self)
        self._validate_params()  # or the file could not be read again
        with self._reading():
            write_model(path, *self._state())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
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
        return header, {**numbers, "lifetimes": self.lifetimes_, **packed("forest", self.forest_)}

    @classmethod
    def _of_state(cls, header: Header, arrays: Arrays) -> Self:
        if header["detector"] != cls.__name__:
            raise ValueError(f"it holds a {header['detector']}, not a {cls.__name__}")
        forest = cls(**{name: decode(value) for name, value in header["parameters"].items()})
        forest._validate_params()
        forest.n_features_in_ = header["n_features"]
        if header["feature_names"] is not None:
            forest.feature_names_in_ = np.array(header["feature_names"], dtype=object)
        forest.forest_, forest.lifetimes_ = unpacked("forest", arrays, Forest), arrays["lifetimes"]
        forest.prior_ = Prior(float(arrays["prior_strength"]), bool(header["is_open"]))
        offset = float(arrays["offset"])
        forest._offset, forest._posterior = None if np.isnan(offset) else offset, None
        forest._lock = ReadersWriterLock()
        forest._check()
        return forest

    def _check(self) -> None:
        """Raise unless what was read from a file can be a forest."""
        check_forest(self.forest_, alike=self._trees_count_alike)
        if self.forest_.weights.shape[1] != self.n_features_in_:
            raise ValueError(f"its forest has {self.forest_.weights.shape[1]} features, not {self.n_features_in_}")
        if "feature_names_in_" in vars(self) and len(self.feature_names_in_) != self.n_features_in_:
            raise ValueError("the number of its feature names is not that of its features")
        if not np.finfo(np.float64).tiny <= self.prior_.strength < np.inf:
            raise ValueError(f"its prior strength is {self.prior_.strength}")
        times = self.lifetimes_
        if (
            times.ndim != 1
            or not times.size
            or not (np.isfinite(times) & (times > 0) & (np.diff(times, prepend=0) > 0)).all()
        ):
            raise ValueError("the lifetimes of its score are not ascending")

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
        return self._scores(self._read(X))

    def decision_function(self, X: Any) -> Array:
        """``score_samples(X) - offset_``: negative for anomalies."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: Any) -> Array:
        """+1 for normal rows, -1 for anomalies (``decision_function(X) < 0``)."""
        return np.where(self.decision_function(X) >= 0, 1, -1)

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
        rows = self._read(X)
        if lifetime is None:
            return self._leaf_means(kernels().mass_table, rows)
        times = read_times("lifetime", lifetime, self._grown_until)
        ascending, places = np.unique(times, return_inverse=True)
        masses = np.exp(self._log_cell_masses(rows, ascending))[:, places]
        return masses if np.ndim(lifetime) else masses[:, 0]

    def tree_masses(self, X: Any) -> Array:
        """Mass of the leaf that holds each row, in every tree, ndarray of shape (n_rows, n_estimators)."""
        return self._leaf_values(kernels().mass_table, self._read(X), np.transpose)

    def log_density(self, X: Any) -> Array:
        """Log of the forest's mean density at each row, over the features that vary.

        Within a leaf the density is its mass divided by its volume.
        """
        return self._leaf_values(kernels().log_density_table, self._read(X), kernels().log_mean_exp)

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

    # ---- shared machinery --------------------------------------------------------------------------------------------

    def _read(self, X: Any) -> Array:
        check_is_fitted(self)
        return read_rows(self, X, reset=False)

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

    @staticmethod
    def _times_of(score: str, lifetimes: dict[str, Array]) -> Array:
        """The times behind a score, in units of the weighting; a score without any keeps some for good measure."""
        return lifetimes.get(score, lifetimes["multiscale"])

    @property
    def _grown_until(self) -> float:
        """The lifetime of the forest as it stands, whatever the parameter says by now: the time of its leaves."""
        return float(self.forest_.time[0, : self.forest_.size[0]].max())

    def _plan(self, measured: Weighting, domain: Array) -> Plan:
        """How to draw this forest, given how its features measure up; also sets prior, lock and times of the score."""
        weighting = measured
        if not isinstance(self.feature_weights, str):
            weighting = measured._replace(fixed=read_weights(self.feature_weights, domain.shape[1]))
        self.lifetimes_ = self._times_of(self.score, self._lifetimes) / weighting.unit
        self.prior_ = Prior(float(self.prior_strength), is_open=not self._is_closed)
        self._lock = ReadersWriterLock()
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
        posterior = kernels().posterior(forest, self.prior_, n_jobs=self.n_jobs)
        with self._lock.writing():
            self.forest_, self._posterior = forest, posterior

    def _threshold(self, rows: Array) -> float:
        """The score to flag below, by the scores of rows."""
        if self.contamination == "auto" and len(rows) > _THRESHOLD_ROWS:
            rows = rows[np.random.default_rng(len(rows)).choice(len(rows), _THRESHOLD_ROWS, replace=False)]
        return self._line(self._scores(rows), is_log=self.score != "mass")

    def _line(self, scores: Array, *, is_log: bool) -> float:
        """The score at the contamination asked for, or where the bulk of the scores says that their tail ends."""
        if self.contamination != "auto":
            return float(np.percentile(scores, 100.0 * self.contamination))
        if is_log:
            return auto_threshold(scores)
        with np.errstate(divide="ignore"):
            threshold = np.exp(auto_threshold(np.log(scores)))
        return float(threshold * _ROUNDING)
