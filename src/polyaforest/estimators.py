"""The two detectors: `StreamingMPF`, a forest of Mondrian trees, and `BatchMPF`, a forest of Mondrian processes."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from numbers import Integral, Real
from types import ModuleType
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from sklearn.base import BaseEstimator, OutlierMixin, _fit_context
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from polyaforest._arrays import Array, Forest, LeafKind, LeafTable, Posterior, Prior
from polyaforest._plan import Plan, Weighting, bounding_box, weighting_of_domain, weighting_of_rows
from polyaforest._validation import (
    all_or_nothing,
    read_domain,
    read_rows,
    read_share,
    read_times,
    read_weights,
    refuse_rows_outside,
)
from polyaforest.thresholds import auto_threshold

_THRESHOLD_ROWS = 4096  # rows whose scores place the automatic threshold
Tabulate = Callable[[Posterior], LeafTable]
_ROUNDING = 1 - 1e-12  # keeps a mass from falling below its own logarithm's exponential


def _kernels() -> ModuleType:
    """The compiled half of the package, imported on first use so that importing polyaforest stays light."""
    from polyaforest import _engine

    return _engine


class Leaves(NamedTuple):
    """Which leaf each row falls in, per tree; both arrays have shape (n_rows, n_estimators)."""

    node: Array  # int32: the node whose region it is, -1 outside
    kind: Array  # int8: a `LeafKind`


class _PolyaForest(OutlierMixin, BaseEstimator):
    """What both detectors share: everything that reads a forest once it stands."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_estimators": [Interval(Integral, 1, None, closed="left")],
        "max_depth": [Interval(Integral, 0, None, closed="left"), None],
        "prior_strength": [Interval(Real, 0, None, closed="neither")],
        "lifetime": [Interval(Real, 0, None, closed="right")],
        "feature_weights": [StrOptions({"auto"}), "array-like", None],
        "score": [StrOptions({"multiscale", "mass", "log_mass"})],
        "contamination": [StrOptions({"auto"}), Interval(Real, 0, 0.5, closed="right")],
        "domain": [StrOptions({"data"}), "array-like", None],
        "random_state": ["random_state"],
        "n_jobs": [Interval(Integral, 1, None, closed="left"), Interval(Integral, None, -1, closed="right"), None],
    }

    _lifetimes: ClassVar[Array]  # times of the multiscale score, in units of the weighting
    forest_: Forest
    posterior_: Posterior
    offset_: float
    lifetimes_: Array
    prior_: Prior

    # ---- scikit-learn's words ---------------------------------------------------------------------------------------

    def score_samples(self, X: Any) -> Array:
        """How normal each row is: higher is more normal, lower more anomalous.

        Parameters
        ----------
        X : array-like or frame of shape (n_rows, n_features)

        Returns
        -------
        scores : ndarray of shape (n_rows,)
            With ``score="multiscale"`` the mean, over ``lifetimes_``, of the log of ``mass(X, lifetime)``: a log
            probability at several scales at once. With ``"mass"`` the same as ``mass(X)``, with ``"log_mass"`` the
            mean over trees of the log of ``tree_masses(X)``.
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
            return self._leaf_means(_kernels().mass_table, rows)
        times = read_times("lifetime", lifetime, self._grown_until)
        ascending, places = np.unique(times, return_inverse=True)
        masses = np.exp(self._log_cell_masses(rows, ascending))[:, places]
        return masses if np.ndim(lifetime) else masses[:, 0]

    def tree_masses(self, X: Any) -> Array:
        """Mass of the leaf that holds each row, in every tree, ndarray of shape (n_rows, n_estimators)."""
        return self._leaf_values(_kernels().mass_table, self._read(X), np.transpose)

    def log_density(self, X: Any) -> Array:
        """Log of the forest's mean density at each row, over the features that vary.

        Within a leaf the density is its mass divided by its volume.
        """
        return self._leaf_values(_kernels().log_density_table, self._read(X), _kernels().log_mean_exp)

    def epsilon_level(self, X: Any, phi: float) -> Array:
        """The smallest epsilon at which each row is an (epsilon, phi)-anomaly: the phi-quantile of its tree masses.

        Leaf masses depend on how finely the trees cut: uncapped trees of 256 rows have leaves of about 1/256, however
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
        return Leaves(*_kernels().leaf_kinds(self.forest_, self.posterior_, rows, self.n_jobs))

    # ---- shared machinery --------------------------------------------------------------------------------------------

    def _read(self, X: Any) -> Array:
        check_is_fitted(self)
        return read_rows(self, X, reset=False)

    def _scores(self, rows: Array) -> Array:
        if self.score == "mass":
            return self._leaf_means(_kernels().mass_table, rows)
        if self.score == "log_mass":
            return self._leaf_means(_kernels().log_mass_table, rows)
        return self._log_cell_masses(rows, self.lifetimes_).mean(axis=1)  # type: ignore[no-any-return]

    def _leaf_means(self, tabulate: Tabulate, rows: Array) -> Array:
        """Mean over the trees of what a table of the posterior says of the leaves of `rows`."""
        means: Array = _kernels().leaf_means(self.forest_, tabulate(self.posterior_), rows, self.n_jobs)
        return means

    def _leaf_values(self, tabulate: Tabulate, rows: Array, reduce: Callable[[Array], Array]) -> Array:
        """`reduce` over the trees, (n_trees, rows), of what a table of the posterior says of the leaves of `rows`."""
        values: Array = _kernels().leaf_values(self.forest_, tabulate(self.posterior_), rows, reduce, self.n_jobs)
        return values

    def _log_cell_masses(self, rows: Array, lifetimes: Array) -> Array:
        return _kernels().log_cell_masses(self.forest_, self.posterior_, rows, lifetimes, self.n_jobs)  # type: ignore[no-any-return]

    @property
    def _is_closed(self) -> bool:
        """Whether the parameters say that nothing lies beyond the known world."""
        return isinstance(self.domain, str)

    @property
    def _grown_until(self) -> float:
        """The lifetime of the forest as it stands, whatever the parameter says by now: the time of its leaves."""
        return float(self.forest_.time[0, : self.forest_.size[0]].max())

    def _plan(self, measured: Weighting, domain: Array) -> Plan:
        """How to draw this forest, given how its features measure up; also sets the times of the multiscale score."""
        weighting = measured
        if not isinstance(self.feature_weights, str):
            weighting = measured._replace(fixed=read_weights(self.feature_weights, domain.shape[1]))
        self.lifetimes_ = self._lifetimes / weighting.unit
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
        self.posterior_ = _kernels().posterior(forest, self.prior_, n_jobs=self.n_jobs)
        self.forest_ = forest

    def _set_offset(self, rows: Array) -> None:
        """Place the threshold: at the contamination asked for, or where the bulk of the rows says the tail ends."""
        if self.contamination != "auto":
            self.offset_ = float(np.percentile(self._scores(rows), 100.0 * self.contamination))
            return
        if len(rows) > _THRESHOLD_ROWS:
            rows = rows[np.random.default_rng(len(rows)).choice(len(rows), _THRESHOLD_ROWS, replace=False)]
        scores = self._scores(rows)
        if self.score != "mass":
            self.offset_ = auto_threshold(scores)
        else:
            with np.errstate(divide="ignore"):
                threshold = np.exp(auto_threshold(np.log(scores)))
            self.offset_ = float(threshold * _ROUNDING)


class StreamingMPF(_PolyaForest):
    """Streaming Mondrian Pólya forest (sMPF): anomalies by probability mass, from Mondrian trees grown on the data.

    Scores are higher for normal rows. Each tree cuts the box of its rows at random, long sides first, and a Bayesian
    posterior says how much probability each part of the partition holds.

    Parameters
    ----------
    n_estimators : int, default=100
        Number of trees.
    max_samples : int, float or None, default=256
        Rows per tree, drawn without replacement: a number, a share in (0, 1], or None for all rows.
    max_depth : int or None, default=None
        Depth at which cutting stops.
    prior_strength : float, default=0.001
        Pseudo-points behind the prior (the paper's gamma). The prior's weight grows with the square of the depth, so
        small values are right.
    lifetime : float, default=inf
        Time at which cutting stops: cells are no finer than about 1 / lifetime, in weighted feature units.
    feature_weights : "auto", None or array-like of shape (n_features,), default="auto"
        Weight of each feature's length in the choice of cuts. "auto" draws for every tree Exp(1) / spread, the spread
        being sqrt(range * mean absolute deviation), so no scaling of the data is needed. None cuts plain lengths, as
        the paper does.
    score : {"multiscale", "mass", "log_mass"}, default="multiscale"
        What `score_samples` returns: see there. "mass" is the paper's.
    contamination : "auto" or float in (0, 0.5], default="auto"
        Share of the fitted rows to flag. "auto" flags the lowest hundredth, and more where more lie so far below the
        bulk that no more than one normal row in a thousand should.
    domain : None, "data" or array-like of shape (2, n_features), default=None
        The known world. None: the box of each tree's rows, with room for rows beyond it. An array of lower and upper
        bounds: that box, with room beyond. "data": the box of the rows and nothing outside it (mass 0), the paper's
        reading.
    random_state : int, RandomState or None, default=None
    n_jobs : int or None, default=None
        Threads; None means 1. Results do not depend on it.

    Attributes
    ----------
    forest_ : Forest
        The trees, as arrays.
    posterior_ : Posterior
        Log-masses and log-volumes of every node.
    prior_ : Prior
        The prior that the posterior was derived with.
    lifetimes_ : ndarray
        The times behind the multiscale score.
    offset_ : float
        ``decision_function = score_samples - offset_``.
    n_features_in_ : int
    feature_names_in_ : ndarray of str

    Notes
    -----
    The paper's own setting is ``feature_weights=None, max_samples=None, max_depth=10, score="mass", domain="data"``.

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
        **_PolyaForest._parameter_constraints,
        "max_samples": [Interval(Integral, 1, None, closed="left"), Interval(Real, 0, 1, closed="right"), None],
    }

    _lifetimes: ClassVar[Array] = np.geomspace(0.5, 5, 5)

    def __init__(
        self,
        *,
        n_estimators: int = 100,
        max_samples: int | float | None = 256,
        max_depth: int | None = None,
        prior_strength: float = 0.001,
        lifetime: float = np.inf,
        feature_weights: Any = "auto",
        score: str = "multiscale",
        contamination: str | float = "auto",
        domain: Any = None,
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        self.n_estimators = n_estimators
        self.max_samples = max_samples
        self.max_depth = max_depth
        self.prior_strength = prior_strength
        self.lifetime = lifetime
        self.feature_weights = feature_weights
        self.score = score
        self.contamination = contamination
        self.domain = domain
        self.random_state = random_state
        self.n_jobs = n_jobs

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None) -> Self:
        """Grow the forest on the rows of `X`; `y` is ignored."""
        with all_or_nothing(self):
            rows = read_rows(self, X, reset=True)
            plan = self._plan(weighting_of_rows(rows), self._read_domain(rows))
            self._adopt(_kernels().grow_trees(rows, self._rows_per_tree(len(rows)), plan))
            self._set_offset(rows)
        return self

    def _read_domain(self, rows: Array) -> Array:
        if self.domain is None:
            return np.repeat([[np.inf], [-np.inf]], rows.shape[1], axis=1)
        if self._is_closed:
            return bounding_box(rows)
        domain = read_domain(self.domain, rows.shape[1])
        refuse_rows_outside(self, rows, domain)
        return domain

    def _rows_per_tree(self, n_rows: int) -> int:
        if self.max_samples is None:
            return n_rows
        if isinstance(self.max_samples, Integral):
            return min(int(self.max_samples), n_rows)
        return max(int(self.max_samples * n_rows), 1)


class BatchMPF(_PolyaForest):
    """Batch Mondrian Pólya forest (bMPF): anomalies by probability mass, from partitions that do not look at the data.

    Scores are higher for normal rows. Each tree is a Mondrian process over the domain, cut at random whatever the
    data, and counts the rows in its cells. So rows can be added and removed at any time, in any order, exactly; and
    forests with the same seed, domain and parameters can be counted apart and merged.

    Parameters
    ----------
    n_estimators : int, default=100
        Number of trees.
    max_depth : int or None, default=10
        Depth at which cutting stops; None needs a finite `lifetime`.
    prior_strength : float, default=0.001
        Pseudo-points behind the prior (the paper's gamma).
    lifetime : float, default=inf
        Time at which cutting stops.
    feature_weights : "auto", None or array-like of shape (n_features,), default="auto"
        Weight of each feature's length in the choice of cuts. "auto" draws Exp(1) / (length of the domain) for every
        tree. None cuts plain lengths, as the paper does.
    score : {"multiscale", "mass", "log_mass"}, default="log_mass"
        What `score_samples` returns: see there. "mass" is the paper's.
    contamination : "auto" or float in (0, 0.5], default="auto"
        Share of the fitted rows to flag. "auto" flags the lowest hundredth, and more where more lie so far below the
        bulk that no more than one normal row in a thousand should.
    domain : None, "data" or array-like of shape (2, n_features), default=None
        The box that is cut. None: the box of the rows first given, with room for rows beyond it. An array of lower and
        upper bounds: that box, with room beyond. "data": the box of the rows and nothing outside it (mass 0), the
        paper's reading. Forests to be merged need an array.
    random_state : int, RandomState or None, default=None
        Forests to be merged need the same integer.
    n_jobs : int or None, default=None
        Threads; None means 1. Results do not depend on it.

    Attributes
    ----------
    forest_ : Forest
        The trees, as arrays.
    posterior_ : Posterior
        Log-masses and log-volumes of every node.
    prior_ : Prior
        The prior that the posterior was derived with.
    lifetimes_ : ndarray
        The times behind the multiscale score.
    offset_ : float
        ``decision_function = score_samples - offset_``; set by `fit` or the first `partial_fit`.
    n_features_in_ : int
    feature_names_in_ : ndarray of str

    Notes
    -----
    The paper's own setting is ``feature_weights=None, score="mass", domain="data"``.

    Every tree counts every row: what a tree costs does not depend on how its rows were chosen, so there is no
    ``max_samples``.

    Examples
    --------
    >>> import numpy as np
    >>> from polyaforest import BatchMPF
    >>> X = np.random.default_rng(0).uniform(-1, 1, size=(1000, 2))
    >>> whole = BatchMPF(domain=[[-9, -9], [9, 9]], random_state=0).fit(X)
    >>> parts = [BatchMPF(domain=[[-9, -9], [9, 9]], random_state=0).fit(part) for part in (X[:400], X[400:])]
    >>> bool((whole.mass(X) == (parts[0] + parts[1]).mass(X)).all())
    True
    """

    _lifetimes: ClassVar[Array] = np.geomspace(8, 128, 5)

    def __init__(
        self,
        *,
        n_estimators: int = 100,
        max_depth: int | None = 10,
        prior_strength: float = 0.001,
        lifetime: float = np.inf,
        feature_weights: Any = "auto",
        score: str = "log_mass",
        contamination: str | float = "auto",
        domain: Any = None,
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        self.n_estimators = n_estimators
        self.max_depth = max_depth
        self.prior_strength = prior_strength
        self.lifetime = lifetime
        self.feature_weights = feature_weights
        self.score = score
        self.contamination = contamination
        self.domain = domain
        self.random_state = random_state
        self.n_jobs = n_jobs

    @property
    def n_points_(self) -> int:
        """Rows counted, those beyond the domain included."""
        check_is_fitted(self)
        return int(self.forest_.counts[0, 0] + self.forest_.outside[0])

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None) -> Self:
        """Cut the domain afresh and count the rows of `X`; `y` is ignored."""
        with all_or_nothing(self):
            self._begin(read_rows(self, X, reset=True))
        return self

    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Count more rows; rows beyond the domain count as outside it. The first call is a `fit`."""
        if not hasattr(self, "forest_"):
            self.fit(X)
            return self
        rows = read_rows(self, X, reset=False)
        if not self.prior_.is_open:
            refuse_rows_outside(self, rows, self.forest_.domain)
        self._adopt(self._with_counts(*_kernels().count_rows(self.forest_, rows, self.n_jobs)))
        return self

    def remove(self, X: Any) -> Self:
        """Take rows out again: afterwards the forest is what it would be had they never been counted."""
        rows = self._read(X)
        count, outside = _kernels().count_rows(self.forest_, rows, self.n_jobs)
        if (self.forest_.counts < count).any() or (self.forest_.outside < outside).any():
            _, kinds = _kernels().leaf_kinds(self.forest_, self.posterior_, rows, self.n_jobs)
            strange = (kinds == LeafKind.COMPLEMENTARY) | ((kinds == LeafKind.OUTSIDE) & (self.forest_.outside == 0))
            strangers = np.flatnonzero(strange.any(axis=1))
            which = f"row {strangers[0]} was never counted" if strangers.size else "some rows were not counted so often"
            raise ValueError(f"{which}: a cell would be left with fewer than no rows. Nothing was removed")
        self._adopt(self._with_counts(-count, -outside))
        return self

    def merge(self, other: BatchMPF) -> Self:
        """Take over the counts of another forest with the same partition; exact, as if all rows had been seen here."""
        check_is_fitted(self)
        if not isinstance(other, BatchMPF):
            raise TypeError(f"only a BatchMPF can be merged into a BatchMPF, not {type(other).__name__}")
        check_is_fitted(other)
        self._refuse_other_partition(other)
        self._adopt(self._with_counts(other.forest_.counts, other.forest_.outside))
        return self

    def __add__(self, other: object) -> BatchMPF:
        if not isinstance(other, BatchMPF):
            return NotImplemented
        return deepcopy(self).merge(other)

    def _begin(self, rows: Array) -> None:
        engine = _kernels()
        if self.max_depth is None and not np.isfinite(self.lifetime):
            raise ValueError("a Mondrian process without max_depth and lifetime would never end: set one of them")
        given = self.domain is not None and not self._is_closed
        domain = read_domain(self.domain, rows.shape[1]) if given else bounding_box(rows)
        self.forest_ = engine.sample_processes(self._plan(weighting_of_domain(domain), domain))
        self._adopt(self._with_counts(*engine.count_rows(self.forest_, rows, self.n_jobs)))
        self._set_offset(rows)

    def _with_counts(self, counts: Array, outside: Array) -> Forest:
        """The forest with these counts added to its own."""
        forest = self.forest_
        return forest._replace(counts=forest.counts + counts, outside=forest.outside + outside)

    def _refuse_other_partition(self, other: BatchMPF) -> None:
        for name in ("n_estimators", "max_depth", "lifetime", "score"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                raise ValueError(f"forests differ in {name} ({mine!r} and {theirs!r}) and cannot be merged")
        if self.prior_.strength != other.prior_.strength:
            strengths = f"{self.prior_.strength} and {other.prior_.strength}"
            raise ValueError(f"forests differ in prior_strength ({strengths}) and cannot be merged")
        if self.prior_.is_open != other.prior_.is_open:
            raise ValueError("only one of the forests leaves room beyond its domain: they cannot be merged")
        mine, theirs = (getattr(forest, "feature_names_in_", np.array([])) for forest in (self, other))
        if not np.array_equal(mine, theirs) or self.n_features_in_ != other.n_features_in_:
            raise ValueError("forests were fitted on different columns and cannot be merged")
        if not np.array_equal(self.forest_.domain, other.forest_.domain):
            raise ValueError("forests cover different domains and cannot be merged: give both the same domain array")
        for name in ("left", "feature", "cut", "time", "weights"):
            if not np.array_equal(getattr(self.forest_, name), getattr(other.forest_, name), equal_nan=name == "cut"):
                raise ValueError(
                    "forests cut their domain differently and cannot be merged: give both the same integer "
                    "random_state and the same feature_weights"
                )
