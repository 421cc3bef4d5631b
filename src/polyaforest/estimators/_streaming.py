"""The streaming detector: a forest of Mondrian trees."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from numbers import Integral, Real
from threading import Lock
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

import numpy as np
from sklearn.base import _fit_context
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from polyaforest._arrays import Array
from polyaforest._files import Arrays, Header
from polyaforest._holdings import Key
from polyaforest._locks import uninterrupted
from polyaforest._plan import bounding_box, empty_box, unmeasured, weighting_of_rows
from polyaforest._validation import (
    all_or_nothing,
    read_domain,
    read_key,
    read_keys,
    read_rows,
    read_stamps,
    refuse_rows_outside,
)
from polyaforest.retention import Policy, Reservoir, Window, as_policy

if TYPE_CHECKING:
    from polyaforest._stream import Stream

from polyaforest.estimators._base import PolyaForest, kernels

_BEGINNING = Lock()  # held while a stream begins: a forest that is not there yet has no lock of its own
_ROWS_AT_ONCE = 4096  # rows that are scored while nothing may be learned
_SAMPLE_SIZES = np.array([8, 16, 32, 64])  # rows of a table that trees take in turn
_LOWEST = float(np.finfo(np.float64).min)  # below any score but that of mass 0


def _streams() -> ModuleType:
    """As `_kernels`, for what streams are made of."""
    from polyaforest import _stream

    return _stream


class StreamingMPF(PolyaForest):
    """Streaming Mondrian Pólya forest (sMPF): anomalies by probability mass, from Mondrian trees grown on the data.

    Scores are higher for normal rows. Each tree cuts the box of its rows at random, long sides first, and a Bayesian
    posterior says how much probability each part of the partition holds.

    Parameters
    ----------
    n_estimators : int, default=100
        Number of trees.
    max_samples : "auto", int, float or None, default="auto"
        Rows of a table per tree, drawn without replacement: a number, a share in (0, 1], or None for all rows. "auto"
        gives trees 8, 16, 32 and 64 rows in turn, and never more than half of them: small samples tell a cluster of
        anomalies from the bulk, larger ones see finer structure.
    window : "auto", int, timedelta, Window, Reservoir or None, default="auto"
        What the forest holds of a stream: the last so many points (`Window`), those of the last so long, a random
        sample (`Reservoir`), or with None no points at all but what the trees have counted, which needs `max_depth`.
        Every tree then holds all of it. "auto" takes what is given to `fit` for a table, from which each tree draws
        `max_samples` rows of its own and which cannot be continued; a stream begun without `fit` holds 256 points.
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
    score : {"typicality", "multiscale", "mass", "log_mass"}, default="typicality"
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
        The times behind the score.
    offset_ : float
        ``decision_function = score_samples - offset_``.
    n_points_ : int
        Points that a tree holds.
    n_seen_ : int
        Rows of a stream that have come so far, held or not.
    points_ : ndarray
        The points held of a stream, by order of arrival.
    keys_ : list
        Their keys.
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
        **PolyaForest._parameter_constraints,
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

    _trees_count_alike: ClassVar[bool] = False  # on a table; a stream sees to it that its trees do
    _lifetimes: ClassVar[dict[str, Array]] = {
        "multiscale": np.geomspace(0.5, 5, 5),
        "typicality": np.geomspace(0.25, 16, 7),
    }
    # at late times a row would look normal for one other like it, and all trees of a stream hold that one
    _lifetimes_of_streams: ClassVar[dict[str, Array]] = {**_lifetimes, "typicality": np.geomspace(0.25, 4, 5)}
    _stream: Stream | None = None  # for a forest fitted on a table

    def __init__(
        self,
        *,
        n_estimators: int = 100,
        max_samples: int | float | str | None = "auto",
        window: int | timedelta | Window | Reservoir | str | None = "auto",
        max_depth: int | None = None,
        prior_strength: float = 0.001,
        lifetime: float = np.inf,
        feature_weights: Any = "auto",
        score: str = "typicality",
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
                stamps, names = self._read_labels(stream, len(rows), keys, times)
                stream.holdings.refuse_keys(names)
                stream.begin_with(rows, names, stamps, self.n_jobs)
                self._follow(stream, rows)
        return self

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
        return self._advance(X, keys, times, is_scored=True)[0]

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
        if isinstance(x, Mapping):
            raise TypeError(
                "insert takes the values alone, in the order of the columns; got a mapping of names to them"
            )
        is_series, is_frame = hasattr(x, "to_frame") and hasattr(x, "index"), hasattr(x, "columns")
        row = x.to_frame().T if is_series else x if is_frame else np.atleast_2d(np.asarray(x))
        if len(row) != 1 or row.ndim != 2:
            raise ValueError(f"insert takes one point, an array of its features; got shape {np.shape(x)}")
        return self._advance(row, None if key is None else [key], None if time is None else [time], is_scored=False)[1]

    def delete(self, keys: Key | Iterable[Key]) -> Self:
        """Take points out again: afterwards the forest is what it would be had they never come.

        Parameters
        ----------
        keys : int, str, or a sequence of them
            If one is not held, a KeyError says so and nothing is deleted.
        """
        stream = self._continued()
        is_many = np.ndim(keys) > 0 if isinstance(keys, np.ndarray) else isinstance(keys, Iterable)
        is_many &= not isinstance(keys, str | bytes)
        wanted = [read_key(key) for key in cast("Iterable[Key]", keys if is_many else [keys])]
        with self._writing():
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
        with self._writing():
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
        with self._writing():
            if not stream.keeps_points:
                raise ValueError("a forest with window=None keeps no points to be rebuilt from")
            stream.refuse_if_in_doubt()
            stream.rebuild(self.n_jobs)
            self._refresh(stream)
        return self

    # ---- what is held -----------------------------------------------------------------------------------------------

    @property
    def n_points_(self) -> int:
        """Points that a tree holds: of a stream all the same, of a table the most that any drew."""
        check_is_fitted(self)
        with self._reading():
            return int(self.forest_.counts[np.arange(len(self.forest_.root)), self.forest_.root].max())

    @property
    def n_seen_(self) -> int:
        """Rows that have come so far, held or not: the place in the stream to go on from."""
        return self._kept().holdings.n_seen

    @property
    def points_(self) -> Array:
        """The points held, by order of arrival, ndarray of shape (n_points_, n_features)."""
        with self._with_points() as stream:
            return stream.rows

    @property
    def keys_(self) -> list[Key]:
        """The keys of ``points_``, in the same order."""
        with self._with_points() as stream:
            return stream.holdings.held_keys

    @property
    def offset_(self) -> float:
        """``decision_function = score_samples - offset_``.

        Of a stream, it is placed by the points held as they are now, each scored as if it had not come yet; of one
        that keeps no points, by those of the warm-up.
        """
        check_is_fitted(self)
        offset = self._offset
        if offset is None:
            stream = self._kept()
            with self._reading():
                offset = self._offset = self._line_of_held(stream)
        return offset

    def _line_of_held(self, stream: Stream) -> float:
        scores = stream.score_held(self.n_jobs) if stream.keeps_points else stream.parting_scores
        return self._line(scores, is_log=stream.rules.score != "mass") if len(scores) else _LOWEST

    # ---- inner workings ---------------------------------------------------------------------------------------------

    def _fit_table(self, rows: Array, keys: Any, times: Any) -> None:
        if keys is not None or times is not None:
            raise ValueError("a table given to fit keeps no points, so keys and times mean nothing: set window first")
        self._stream = None
        plan = self._plan(weighting_of_rows(rows), self._read_domain(rows))
        self._adopt(kernels().grow_trees(rows, self._sizes_of_samples(len(rows)), plan))
        self._offset = self._threshold(rows)

    def _state(self) -> tuple[Header, Arrays]:
        stream = self._stream
        if stream is not None:
            stream.refuse_if_in_doubt()
            if stream.keeps_points:
                self._offset = None  # worked out again when asked for
            elif self._offset is None:
                self._offset = self._line_of_held(stream)
        header, arrays = super()._state()
        if stream is None:
            return {**header, "stream": None}, arrays
        about, parts = stream.state()
        return {**header, "stream": about}, {**arrays, **parts}

    @classmethod
    def _of_state(cls, header: Header, arrays: Arrays) -> Self:
        forest: Self = super()._of_state(header, arrays)
        forest._stream = None
        if header["stream"] is not None:
            forest._stream = _streams().Stream.of_state(
                header["stream"], arrays, forest.forest_, forest.prior_, forest.lifetimes_
            )
        return forest

    def _advance(self, X: Any, keys: Any, times: Any, *, is_scored: bool) -> tuple[Array, Key | None]:
        """Learn rows, each scored first if wanted; return the scores, and the key of the last row if it is held.

        All checks come before any change.
        """
        with nullcontext() if hasattr(self, "forest_") else _BEGINNING:
            if not hasattr(self, "forest_"):
                return self._begin(X, keys, times, is_scored)
        rows = read_rows(self, X, reset=False, at_least=0)
        return self._learn(self._continued(), rows, keys, times, is_scored)

    def _begin(self, X: Any, keys: Any, times: Any, is_scored: bool) -> tuple[Array, Key | None]:
        self._validate_params()
        with all_or_nothing(self):
            rows = read_rows(self, X, reset=True)
            stream = self._new_stream(rows)
            self._follow(stream, None)
            return self._learn(stream, rows, keys, times, is_scored)

    def _learn(self, stream: Stream, rows: Array, keys: Any, times: Any, is_scored: bool) -> tuple[Array, Key | None]:
        stamps, names = self._read_labels(stream, len(rows), keys, times)
        if np.isfinite(self.forest_.domain).all():
            refuse_rows_outside(self, rows, self.forest_.domain)
        scores, start, key = [], 0, None
        while start < len(rows):  # more than once only if Ctrl-C came and was not taken as a reason to stop
            with self._writing() as is_interrupted:
                came = stream.holdings.n_seen
                stream.holdings.refuse_keys(names[start:])
                try:
                    scores.append(
                        stream.advance(
                            rows[start:],
                            names[start:],
                            stamps[start:],
                            is_scored=is_scored,
                            n_jobs=self.n_jobs,
                            is_stopped=is_interrupted,
                        )
                    )
                finally:
                    self._refresh(stream)
                start += stream.holdings.n_seen - came
                key = stream.holdings.newest_key
        return np.concatenate([*scores, np.empty(0)]), key

    @staticmethod
    def _read_labels(stream: Stream, n_rows: int, keys: Any, times: Any) -> tuple[Array, list[Key | None]]:
        """The times and keys of rows."""
        if keys is not None and stream.rules.policy is None:
            raise ValueError("a forest with window=None keeps no points, so keys mean nothing to it")
        return read_stamps(times, n_rows, needed=stream.holdings.policy.needs_times), read_keys(keys, n_rows)

    def _new_stream(self, rows: Array) -> Stream:
        """A stream by the parameters as they are, for rows like these."""
        policy = self._policy()
        if policy is None and self.max_depth is None:
            raise ValueError(
                "an endless stream needs a bound: set max_depth for a summary that keeps no points, or a window to keep"
            )
        n_features = rows.shape[1]
        domain = empty_box(n_features) if self._is_closed else self._read_domain(rows)
        plan = self._plan(unmeasured(n_features, None), domain)
        streams = _streams()
        grid = self._times_of(self.score, self._lifetimes_of_streams)
        stream: Stream = streams.Stream(streams.Rules(plan, policy, self.prior_, grid, self.score))
        return stream

    def _policy(self) -> Policy | None:
        if isinstance(self.window, str):
            return Window(_streams().WARM_UP)
        return None if self.window is None else as_policy(self.window)

    def _follow(self, stream: Stream, rows: Array | None) -> None:
        """Make `stream` this detector's; `rows` place the threshold where no points are kept to do it."""
        self._stream = stream
        self._refresh(stream)
        if rows is not None and not stream.keeps_points:
            self._offset = self._threshold(rows)

    def _refresh(self, stream: Stream) -> None:
        """Show the stream as it is now, and forget what was derived from it as it was."""
        self.forest_, self.lifetimes_, self._posterior = stream.forest, stream.lifetimes, None
        if stream.keeps_points or len(stream.parting_scores):
            self._offset = None

    def _scores(self, rows: Array) -> Array:
        if self._stream is None:
            return super()._scores(rows)
        parts = []
        for start in range(0, len(rows), _ROWS_AT_ONCE):  # so that learning and Ctrl-C need not wait for all of them
            with self._reading():
                parts.append(self._stream.score(rows[start : start + _ROWS_AT_ONCE], self.n_jobs))
        return np.concatenate(parts)

    def _kept(self) -> Stream:
        """The stream, of a forest that follows one."""
        check_is_fitted(self)
        if self._stream is None:
            raise AttributeError('this forest was fitted on a table (window="auto") and keeps no points: set a window')
        return self._stream

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """A stream writes to its arrays: hold it off. Ctrl-C has to wait too, or it might leave the door locked."""
        if self._stream is None:
            yield
            return
        with uninterrupted(), self._lock.reading():
            self._stream.refuse_if_in_doubt()
            yield

    @contextmanager
    def _writing(self) -> Iterator[Callable[[], bool]]:
        """Change the forest alone, and as a whole: Ctrl-C waits until that is done; yields whether it has come."""
        with uninterrupted() as is_interrupted, self._lock.writing():
            yield is_interrupted

    @contextmanager
    def _with_points(self) -> Iterator[Stream]:
        """The stream, for as long as nobody changes it."""
        stream = self._kept()
        with self._reading():
            if not stream.keeps_points:
                raise AttributeError("a forest with window=None keeps no points")
            yield stream

    def _continued(self) -> Stream:
        """The stream, to be changed."""
        if not hasattr(self, "forest_"):
            check_is_fitted(self)  # which takes its time, and says what is wrong
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
            return empty_box(rows.shape[1])
        if self._is_closed:
            return bounding_box(rows)
        domain = read_domain(self.domain, rows.shape[1])
        refuse_rows_outside(self, rows, domain)
        return domain

    def _sizes_of_samples(self, n_rows: int) -> Array:
        """How many rows of a table each tree takes."""
        if self.max_samples is None:
            return np.full(self.n_estimators, n_rows)
        if isinstance(self.max_samples, str):
            return np.minimum(np.resize(_SAMPLE_SIZES, self.n_estimators), max(n_rows // 2, 1))
        if isinstance(self.max_samples, Integral):
            return np.full(self.n_estimators, min(int(self.max_samples), n_rows))
        return np.full(self.n_estimators, max(int(self.max_samples * n_rows), 1))
