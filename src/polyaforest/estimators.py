"""The two detectors: `StreamingMPF`, a forest of Mondrian trees, and `BatchMPF`, a forest of Mondrian processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from numbers import Integral, Real
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
from sklearn.base import BaseEstimator, OutlierMixin, _fit_context
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from polyaforest._arrays import Array, Forest, LeafKind, LeafTable, Posterior, Prior
from polyaforest._holdings import Key
from polyaforest._locks import ReadersWriterLock
from polyaforest._plan import Plan, Weighting, bounding_box, weighting_of_domain, weighting_of_rows
from polyaforest._validation import (
    all_or_nothing,
    read_domain,
    read_key,
    read_keys,
    read_rows,
    read_share,
    read_stamps,
    read_times,
    read_weights,
    refuse_rows_outside,
)
from polyaforest.retention import Policy, Reservoir, Window
from polyaforest.thresholds import auto_threshold

if TYPE_CHECKING:
    from polyaforest._stream import Stream

_THRESHOLD_ROWS = 4096  # rows whose scores place the automatic threshold
Tabulate = Callable[[Posterior], LeafTable]
_ROUNDING = 1 - 1e-12  # keeps a mass from falling below its own logarithm's exponential


def _kernels() -> ModuleType:
    """The compiled half of the package, imported on first use so that importing polyaforest stays light."""
    from polyaforest import _engine

    return _engine


def _streams() -> ModuleType:
    """As `_kernels`, for what streams are made of."""
    from polyaforest import _stream

    return _stream


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
    lifetimes_: Array
    prior_: Prior
    _posterior: Posterior | None  # derived from the forest as it stands, None until it is asked for
    _offset: float | None  # as above
    _lock: ReadersWriterLock

    @property
    def posterior_(self) -> Posterior:
        """Log-masses and log-volumes of every node, derived from the forest when first asked for."""
        if self._posterior is None:
            self._posterior = _kernels().posterior(self.forest_, self.prior_, n_jobs=self.n_jobs)
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
        with self._lock.reading():
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
        with self._lock.reading():
            means: Array = _kernels().leaf_means(self.forest_, tabulate(self.posterior_), rows, self.n_jobs)
        return means

    def _leaf_values(self, tabulate: Tabulate, rows: Array, reduce: Callable[[Array], Array]) -> Array:
        """`reduce` over the trees, (n_trees, rows), of what a table of the posterior says of the leaves of `rows`."""
        with self._lock.reading():
            values: Array = _kernels().leaf_values(self.forest_, tabulate(self.posterior_), rows, reduce, self.n_jobs)
        return values

    def _log_cell_masses(self, rows: Array, lifetimes: Array) -> Array:
        with self._lock.reading():
            logs: Array = _kernels().log_cell_masses(self.forest_, self.posterior_, rows, lifetimes, self.n_jobs)
        return logs

    @property
    def _is_closed(self) -> bool:
        """Whether the parameters say that nothing lies beyond the known world."""
        return isinstance(self.domain, str)

    @property
    def _grown_until(self) -> float:
        """The lifetime of the forest as it stands, whatever the parameter says by now: the time of its leaves."""
        return float(self.forest_.time[0, : self.forest_.size[0]].max())

    def _plan(self, measured: Weighting, domain: Array) -> Plan:
        """How to draw this forest, given how its features measure up; also sets prior, lock and times of the score."""
        weighting = measured
        if not isinstance(self.feature_weights, str):
            weighting = measured._replace(fixed=read_weights(self.feature_weights, domain.shape[1]))
        self.lifetimes_ = self._lifetimes / weighting.unit
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
        posterior = _kernels().posterior(forest, self.prior_, n_jobs=self.n_jobs)
        with self._lock.writing():
            self.forest_, self._posterior = forest, posterior

    def _threshold(self, rows: Array) -> float:
        """The score to flag below: at the contamination asked for, or where the bulk of the rows says the tail ends."""
        if self.contamination != "auto":
            return float(np.percentile(self._scores(rows), 100.0 * self.contamination))
        if len(rows) > _THRESHOLD_ROWS:
            rows = rows[np.random.default_rng(len(rows)).choice(len(rows), _THRESHOLD_ROWS, replace=False)]
        scores = self._scores(rows)
        if self.score != "mass":
            return auto_threshold(scores)
        with np.errstate(divide="ignore"):
            threshold = np.exp(auto_threshold(np.log(scores)))
        return float(threshold * _ROUNDING)


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
        "window": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left"), Window, Reservoir, None],
    }

    _lifetimes: ClassVar[Array] = np.geomspace(0.5, 5, 5)
    _stream: Stream | None  # None for a forest fitted on a table

    def __init__(
        self,
        *,
        n_estimators: int = 100,
        max_samples: int | float | None = 256,
        window: int | Window | Reservoir | str | None = "auto",
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
        self.window = window
        self.max_depth = max_depth
        self.prior_strength = prior_strength
        self.lifetime = lifetime
        self.feature_weights = feature_weights
        self.score = score
        self.contamination = contamination
        self.domain = domain
        self.random_state = random_state
        self.n_jobs = n_jobs

    # ---- learning ---------------------------------------------------------------------------------------------------

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None, *, keys: Any = None, times: Any = None) -> Self:
        """Grow the forest on the rows of `X`, whatever was learned before; `y` is ignored.

        With ``window="auto"`` the rows are a table, and each tree takes a sample of its own. With any other window they
        are the beginning of a stream, to be continued: the forest holds what the window keeps of them, and `keys` and
        `times` are those of `partial_fit`.
        """
        with all_or_nothing(self):
            rows = read_rows(self, X, reset=True)
            if isinstance(self.window, str):
                self._fit_table(rows, keys, times)
            else:
                stream = self._new_stream(rows)
                stamps = read_stamps(times, len(rows), needed=stream.holdings.policy.needs_times)
                names = read_keys(keys, len(rows))
                stream.holdings.refuse_keys(names)
                stream.begin_with(rows, names, stamps, self.n_jobs)
                self._follow(stream, rows)
        return self

    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X: Any, y: Any = None, *, keys: Any = None, times: Any = None) -> Self:
        """Learn rows one after another, the window letting old points go; `y` is ignored.

        Parameters
        ----------
        X : array-like or frame of shape (n_rows, n_features)
        keys : sequence of int or str, optional
            Names by which to `delete` the rows again; a row without one goes by the number of its arrival, from 0.
        times : array-like of float or datetime, optional
            When each row happened; windows in time need it.
        """
        self._advance(X, keys, times, is_scored=False)
        return self

    @_fit_context(prefer_skip_nested_validation=True)
    def score_then_learn(self, X: Any, *, keys: Any = None, times: Any = None) -> Array:
        """Score each row by the forest as it stands, then learn it, row after row: the prequential loop in one call.

        The result is the same row by row or in chunks of any size.

        Parameters
        ----------
        X, keys, times
            As in `partial_fit`.

        Returns
        -------
        scores : ndarray of shape (n_rows,)
            As `score_samples` gives them; higher is more normal. A forest that holds nothing yet gives every row a mass
            of one half.
        """
        return self._advance(X, keys, times, is_scored=True)

    def insert(self, x: Any, key: Key | None = None, time: Any = None) -> Key | None:
        """Learn one point.

        Parameters
        ----------
        x : array-like of shape (n_features,)
        key : int or str, optional
            The name by which to `delete` it again; else the number of its arrival, from 0.
        time : float or datetime, optional
            When it happened; windows in time need it.

        Returns
        -------
        key : int, str or None
            The point's key; None if the window did not take it in, or keeps no points.
        """
        row = x.to_frame().T if hasattr(x, "to_frame") else np.reshape(np.asarray(x), (1, -1))
        self._advance(row, [key], None if time is None else [time], is_scored=False)
        holdings = self._continued().holdings
        key = holdings.n_seen - 1 if key is None else read_key(key)
        return key if key in holdings.slot_of else None

    def delete(self, keys: Key | Iterable[Key]) -> Self:
        """Take points out again: afterwards the forest is what it would be had they never come.

        Parameters
        ----------
        keys : int, str, or a sequence of them
            If one is not held, a KeyError says so and nothing is deleted.
        """
        stream = self._continued()
        wanted = [read_key(keys)] if isinstance(keys, str) or not isinstance(keys, Iterable) else [*map(read_key, keys)]
        with self._lock.writing():
            if not stream.keeps_points:
                raise ValueError("a forest with window=None keeps no keys: use delete_points, which goes by value")
            unknown = [key for key in wanted if key not in stream.holdings.slot_of]
            if unknown:
                raise KeyError(f"no point with key {unknown[0]!r} is held. Nothing was deleted")
            if len(set(wanted)) < len(wanted):
                raise ValueError("a key is given more than once. Nothing was deleted")
            stream.delete([stream.holdings.slot_of[key] for key in wanted], self.n_jobs)
            self._refresh(stream)
        return self

    def delete_points(self, X: Any) -> Self:
        """Take points out again by value, for every row of `X` one point equal to it, the oldest first.

        If a row is not held, a ValueError names it and nothing is deleted. A forest with ``window=None`` does not know
        its points: there a row can be taken out if it lies inside the boxes of all leaves that hold it, or is one of
        several equal ones; and it must be one that was learned, which nobody checks.
        """
        stream = self._continued()
        rows = self._read(X)
        with self._lock.writing():
            if stream.keeps_points:
                stream.delete(self._slots_of(rows, stream), self.n_jobs)
            else:
                n = stream.subtract(rows, self.n_jobs)
                if n < len(rows):
                    raise ValueError(
                        f"row {n} lies on the edge of what a tree has seen, which cannot be redrawn without points: "
                        "set a window to keep them. Nothing was deleted"
                    )
            self._refresh(stream)
        return self

    def rebuild(self) -> Self:
        """Weigh features anew by the points held, and grow all trees anew from them: for a stream that has changed."""
        stream = self._continued()
        with self._lock.writing():
            if not stream.keeps_points:
                raise ValueError("a forest with window=None keeps no points to be rebuilt from")
            stream.refuse_if_in_doubt()
            stream.rebuild(self.n_jobs)
            self._refresh(stream)
        return self

    # ---- what is held -----------------------------------------------------------------------------------------------

    @property
    def n_points_(self) -> int:
        """Points that every tree holds."""
        check_is_fitted(self)
        return int(self.forest_.counts[0, self.forest_.root[0]])

    @property
    def n_seen_(self) -> int:
        """Rows that have come so far, held or not: the place in the stream to go on from."""
        return self._kept().holdings.n_seen

    @property
    def points_(self) -> Array:
        """The points held, by order of arrival, ndarray of shape (n_points_, n_features)."""
        return self._with_points().rows

    @property
    def keys_(self) -> list[Key]:
        """The keys of ``points_``, in the same order."""
        holdings = self._with_points().holdings
        return holdings.held_keys

    @property
    def offset_(self) -> float:
        """``decision_function = score_samples - offset_``.

        Of a stream, it is placed by the points held as they are now; without any, by those held last.
        """
        check_is_fitted(self)
        if self._offset is None:
            held = self._kept().rows
            self._offset = self._threshold(held) if len(held) else -np.inf
        return self._offset

    # ---- inner workings ---------------------------------------------------------------------------------------------

    def _fit_table(self, rows: Array, keys: Any, times: Any) -> None:
        if keys is not None or times is not None:
            raise ValueError("a table given to fit keeps no points, so keys and times mean nothing: set window first")
        plan = self._plan(weighting_of_rows(rows), self._read_domain(rows))
        self._stream = None
        self._adopt(_kernels().grow_trees(rows, self._rows_per_tree(len(rows)), plan))
        self._offset = self._threshold(rows)

    def _advance(self, X: Any, keys: Any, times: Any, *, is_scored: bool) -> Array:
        """Learn rows, each scored first if wanted; all checks come before any change."""
        if not hasattr(self, "forest_"):
            with all_or_nothing(self):
                rows = read_rows(self, X, reset=True)
                self._follow(self._new_stream(rows), None)
                return self._learn(rows, keys, times, is_scored)
        self._continued()
        return self._learn(read_rows(self, X, reset=False), keys, times, is_scored)

    def _learn(self, rows: Array, keys: Any, times: Any, is_scored: bool) -> Array:
        stream = self._continued()
        stamps = read_stamps(times, len(rows), needed=stream.holdings.policy.needs_times)
        names = read_keys(keys, len(rows))
        if self.domain is not None and not self._is_closed:
            refuse_rows_outside(self, rows, self.forest_.domain)
        with self._lock.writing():
            if stream.keeps_points and keys is not None:
                stream.holdings.refuse_keys(names)
            scores: Array = stream.advance(rows, names, stamps, is_scored=is_scored, n_jobs=self.n_jobs)
            self._refresh(stream)
        return scores

    def _new_stream(self, rows: Array) -> Stream:
        """A stream by the parameters as they are, for rows like these."""
        policy = self._policy()
        if policy is None and self.max_depth is None:
            raise ValueError(
                "an endless stream needs a bound: set max_depth for a summary that keeps no points, or a window to keep"
            )
        nowhere = np.repeat([[np.inf], [-np.inf]], rows.shape[1], axis=1)
        domain = nowhere if self._is_closed else self._read_domain(rows)
        plan = self._plan(weighting_of_rows(rows), domain)
        streams = _streams()
        stream: Stream = streams.Stream(streams.Rules(plan, policy, self.prior_, self._lifetimes, self.score))
        return stream

    def _policy(self) -> Policy | None:
        if isinstance(self.window, str):
            return Window(_streams().WARM_UP)
        return Window(self.window) if isinstance(self.window, int | np.integer) else self.window

    def _follow(self, stream: Stream, rows: Array | None) -> None:
        """Make `stream` this detector's; `rows` place the threshold where no points are kept to do it."""
        self._stream = stream
        self._refresh(stream)
        if rows is not None and not stream.keeps_points:
            self._offset = self._threshold(rows)

    def _refresh(self, stream: Stream) -> None:
        """Show the stream as it is now, and forget what was derived from it as it was."""
        self.forest_, self.lifetimes_, self._posterior = stream.forest, stream.lifetimes, None
        if stream.keeps_points:
            self._offset = None

    def _scores(self, rows: Array) -> Array:
        if self._stream is None:
            return super()._scores(rows)
        with self._lock.reading():
            self._stream.refuse_if_in_doubt()
            scores: Array = self._stream.score(rows, self.n_jobs)
        return scores

    def _kept(self) -> Stream:
        """The stream, of a forest that follows one."""
        check_is_fitted(self)
        if self._stream is None:
            raise AttributeError('this forest was fitted on a table (window="auto") and keeps no points: set a window')
        return self._stream

    def _with_points(self) -> Stream:
        stream = self._kept()
        if not stream.keeps_points:
            raise AttributeError("a forest with window=None keeps no points")
        return stream

    def _continued(self) -> Stream:
        """The stream, to be changed."""
        check_is_fitted(self)
        if self._stream is None:
            raise ValueError(
                'this forest was fitted on a table (window="auto"), each tree on a sample of its own, and cannot go on '
                "as a stream: set a window before fit (window=256 keeps the last 256 points), or begin with partial_fit"
            )
        return self._stream

    def _slots_of(self, rows: Array, stream: Stream) -> list[int]:
        """The slots of points equal to `rows`, a different one for each, the oldest first."""
        by_value: dict[bytes, list[int]] = {}
        for slot in reversed(stream.holdings.held.tolist()):
            by_value.setdefault((stream.points.values[slot] + 0.0).tobytes(), []).append(slot)
        slots = []
        for i, row in enumerate(rows + 0.0):  # -0.0 equals 0.0, but not byte for byte
            equal = by_value.get(row.tobytes())
            if not equal:
                raise ValueError(f"row {i} is not held (so often). Nothing was deleted")
            slots.append(equal.pop())
        return slots

    @property
    def _grown_until(self) -> float:
        return super()._grown_until if self._stream is None else float(self._stream.rules.plan.lifetime)

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
        self._offset = self._threshold(rows)

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
