"""The streaming detector: a forest of Mondrian trees."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from enum import Enum
from math import isfinite
from numbers import Integral, Real
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

import numpy as np
from sklearn.base import _fit_context
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from polyaforest.core import schema
from polyaforest.core.arrays import EVERY, Array, Posterior
from polyaforest.core.locks import uninterrupted
from polyaforest.core.validation import (
    column_name,
    read_domain,
    read_key,
    read_keys,
    read_rows,
    read_stamps,
    refuse_rows_outside,
    refuse_uncountable,
)
from polyaforest.decision.calibration import n_to_calibrate, some_rows, weights_of_strangers
from polyaforest.decision.thresholds import Judgements, conformal_p_values
from polyaforest.forest.imputation import MOST, fill_row, fill_table
from polyaforest.forest.point_store import Key
from polyaforest.forest.spec import Plan, bounding_box, empty_box, unmeasured, weighting_of_rows
from polyaforest.persistence.modelfile import Arrays, Header
from polyaforest.retention import Policy, Reservoir, Window, as_policy

if TYPE_CHECKING:
    from polyaforest.explain.context import Witness
    from polyaforest.forest.stream import Stream

from polyaforest.estimators._base import PolyaForest, kernels

_ROWS_AT_ONCE = 4096  # rows that are scored while nothing may be learned
_MOST_HELD_OUT = 512  # points of a stream that are scored as if they had not come yet, unless a rate needs more
_LOWEST = float(np.finfo(np.float64).min)  # below any score but that of mass 0
_SAMPLE_SIZES = np.array([8, 16, 32, 64])  # rows that trees take in turn, of a table or of the points held


class Task(Enum):
    """What to say of rows before they are learned."""

    LEARN = 0  # nothing
    SCORE = 1  # their scores
    JUDGE = 2  # their scores, p-values and verdicts, the rows of one array

    @property
    def is_scored(self) -> bool:
        """Whether scores are needed."""
        return self is not Task.LEARN

    @property
    def is_judged(self) -> bool:
        """Whether scores are compared with those before."""
        return self is Task.JUDGE


def _streams() -> ModuleType:
    """As `_kernels`, for what streams are made of."""
    from polyaforest.forest import stream

    return stream


class StreamingMPF(PolyaForest):
    """Streaming Mondrian Pólya forest (sMPF): anomalies by probability mass, from Mondrian trees grown on the data.

    Scores are higher for normal rows. Each tree cuts the box of its rows at random, long sides first, and a Bayesian
    posterior says how much probability each part of the partition holds.

    Parameters
    ----------
    n_estimators : int, default=100
        Number of trees.
    max_samples : "auto", int, float or None, default="auto"
        Rows per tree, each tree drawing its own without replacement, of a table or of the points that a stream holds: a
        number, a share in (0, 1] of the table or of the n of the window, or None for all. "auto" gives trees 8, 16, 32
        and 64 in turn, and never more than half of them: small samples tell a cluster of anomalies from the bulk,
        larger ones see finer structure. On a stream the samples change as points come and go, and are random samples of
        what is held at every moment. Trees take all points where the forest keeps none (``window=None``), or where
        nothing lies beyond them (``domain="data"`` on a stream).
    window : "auto", int, timedelta, Window, Reservoir or None, default="auto"
        What the forest holds of a stream: the last so many points (`Window`), those of the last so long, a random
        sample (`Reservoir`), or with None no points at all but what the trees have counted, which needs `max_depth`.
        "auto" takes what is given to `fit` for a table, which cannot be continued; a stream begun without `fit` holds
        256 points.
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
    false_alarm_rate : float between 0 and 1, optional
        Share of new, normal rows that may be flagged; instead of `contamination`. See `p_value`.
    domain : None, "data" or array-like of shape (2, n_features), default=None
        The known world. None: the box of each tree's rows, with room for rows beyond it. An array of lower and upper
        bounds: that box, with room beyond. "data": the box of the rows and nothing outside it (mass 0), the paper's
        reading.
    missing : {"error", "marginalise"}, default="error"
        What to do about NaN. "error" refuses it. "marginalise" scores a row by the values that are there, a missing one
        being free to be anything, and learns it with the values of the nearest row that has them.
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
        Points that the forest holds: of a stream, what its window keeps; of a table, the most that a tree drew.
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

    _why_uncalibrated: ClassVar[str] = (
        "its trees hold the rows that they could be calibrated with. Set false_alarm_rate before fit, or max_samples "
        "to leave each tree some rows to judge; one row is not enough"
    )
    _has_boxes: ClassVar[bool] = True
    _rules_of_state: ClassVar[dict[str, schema.Rule]] = {"stream": schema.either(schema.nothing, schema.mapping)}
    _groups_of_arrays: ClassVar[tuple[str, ...]] = ("forest", "points", "stream")
    _trees_count_alike: ClassVar[bool] = False  # on a table; a stream sees to it that its trees do
    _lifetimes: ClassVar[dict[str, Array]] = {
        "multiscale": np.geomspace(0.5, 5, 5),
        "typicality": np.geomspace(0.25, 16, 7),
    }
    _grids: ClassVar[list[Array]] = [*_lifetimes.values(), np.geomspace(0.25, 4, 5)]  # the last: files of version 1
    _imputing_times: ClassVar[Array] = np.array([8.0, 16.0])
    _stream: Stream | None = None  # for a forest fitted on a table
    _held_scores: tuple[int, Array] | None = None  # of so many points held at most, as if they had not come

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
        false_alarm_rate: float | None = None,
        domain: Any = None,
        missing: str = "error",
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
        self.false_alarm_rate = false_alarm_rate
        self.domain = domain
        self.missing = missing
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
        with self._lock.turn(), self._anew() as draft:
            draft._grow(X, keys, times)
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
        self._advance(X, keys, times, Task.LEARN)
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
        return self._advance(X, keys, times, Task.SCORE)[0]

    def p_value_then_learn(self, X: Any, *, keys: Any = None, times: Any = None) -> Array:
        """As `score_then_learn`, for p-values: how strange each row is next to the rows that this was asked of before.

        A running calibration: the score of a row is compared with those that the last thousand rows got when they came
        (or the last ``10 / false_alarm_rate``, if that is more), then joins them. It costs hardly more than scoring,
        and what counts as strange follows the stream. The first hundred rows have little to be judged by: their scores
        leave when the two hundredth has come. The score of a point that is deleted by its key, or found by its value
        among those held, leaves with it.

        Parameters
        ----------
        X, keys, times
            As in `partial_fit`.

        Returns
        -------
        p_values : ndarray of shape (n_rows,)
            1 for the first row; while n rows have come, none is below ``1 / (n + 1)``.
        """
        return self.judge_then_learn(X, keys=keys, times=times).p_values

    def judge_then_learn(self, X: Any, *, keys: Any = None, times: Any = None) -> Judgements:
        """Scores, p-values and verdicts of rows as they come, each by those before it, and then they are learned.

        With a `false_alarm_rate` a row is an anomaly if its p-value is at most that. Without one the line is drawn
        where the scores of late, as many as `p_value_then_learn` compares with, would thin out to one in a thousand:
        a burst of anomalies does not hide itself. That flags more than one in a thousand where tails are heavy, up to
        about one in a hundred. Either way nothing is flagged before a hundred rows have come, or enough for the rate.

        Parameters
        ----------
        X, keys, times
            As in `partial_fit`.

        Returns
        -------
        judgements : Judgements
            A named tuple of arrays of shape (n_rows,): `scores`, `p_values`, `is_anomaly`, and `lines`, below which
            scores were flagged.
        """
        scores, p_values, is_anomaly, lines = self._advance(X, keys, times, Task.JUDGE)[0]
        return Judgements(scores, p_values, is_anomaly > 0, lines)

    def judge(self, X: Any) -> Judgements:
        """As `judge_then_learn`, each row as if it came next, but nothing is learned.

        For a forest fitted on a table: by ``offset_`` and `p_value`.
        """
        if self._stream is None:
            return super().judge(X)
        scores = self.score_samples(X)
        with self._reading():
            return self._stream.verdicts(scores, self.false_alarm_rate)

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
        row = x.to_frame().T if is_series else x if is_frame else np.atleast_2d(np.asanyarray(x))
        if len(row) != 1 or row.ndim != 2:
            raise ValueError(f"insert takes one point, an array of its features; got shape {np.shape(x)}")
        return self._advance(row, None if key is None else [key], None if time is None else [time], Task.LEARN)[1]

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
        with self._writing(stream):
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
        with self._writing(stream):
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
        with self._writing(stream):
            if not stream.keeps_points:
                raise ValueError("a forest with window=None keeps no points to be rebuilt from")
            stream.refuse_if_in_doubt()
            stream.rebuild(self.n_jobs)
            self._refresh(stream)
        return self

    # ---- what is held -----------------------------------------------------------------------------------------------

    @property
    def n_points_(self) -> int:
        """Points that the forest holds: of a stream, what its window keeps; of a table, the most that a tree drew."""
        check_is_fitted(self)
        with self._reading():
            if self._stream is not None:
                return self._stream.n_points
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

    def holds(self, key: Key) -> bool:
        """Return whether a point of this key is held; nothing is before the first row comes."""
        if not hasattr(self, "forest_"):
            return False
        with self._with_points() as stream:
            return key in stream.holdings.slot_of

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
        scores = self._scores_of_held(stream)
        return self._line(scores, is_log=stream.rules.score != "mass") if len(scores) else _LOWEST

    def _scores_of_held(self, stream: Stream) -> Array:
        """The scores of points held, each as if it had not come yet; of those of the warm-up, where none are kept."""
        if not stream.keeps_points:
            return np.empty(0) if self._calibration is None else self._calibration
        wanted = _MOST_HELD_OUT if self.false_alarm_rate is None else n_to_calibrate(self.false_alarm_rate)
        known = self._held_scores
        if known is None or known[0] < wanted:
            known = self._held_scores = wanted, stream.score_held(self.n_jobs, wanted)
        return known[1]

    def _calibrated(self) -> Array:
        stream = self._stream
        if stream is None:
            return super()._calibrated()
        with self._reading():
            scores = self._scores_of_held(stream)
        if not len(scores):
            held = "holds no points" if stream.keeps_points else "keeps no points, and began with a table, but none"
            remedy = "let it learn some first" if stream.keeps_points else "set false_alarm_rate before fit"
            raise ValueError(f"this forest {held} whose scores could be compared with: {remedy}")
        return scores

    @property
    def _remedy_for_few(self) -> str:
        if self._stream is None:
            return super()._remedy_for_few
        return (
            "hold more points, allow a higher rate, or ask p_value_then_learn, which remembers the scores of points "
            "that have left"
        )

    def _p_values(self, scores: Array) -> Array | None:
        if self._stream is None:
            return super()._p_values(scores)
        with self._reading():
            known = self._scores_of_held(self._stream)
        return conformal_p_values(scores, known) if len(known) else None

    def _p_values_of_late(self, scores: Array) -> Array | None:
        if self._stream is None:
            return super()._p_values_of_late(scores)
        with self._reading():
            return self._stream.verdicts(scores, self.false_alarm_rate).p_values

    # ---- inner workings ---------------------------------------------------------------------------------------------

    def _grow(self, X: Any, keys: Any, times: Any) -> None:
        rows = read_rows(self, X, reset=True, allow_missing=self._marginalises)
        whole = fill_table(self, rows)
        if isinstance(self.window, str):
            self._fit_table(rows, whole, keys, times)
            return
        stream = self._new_stream(rows)
        stamps, names = self._read_labels(stream, len(rows), keys, times)
        stream.holdings.refuse_keys(names)
        stream.begin_with(whole, names, stamps, self.n_jobs)
        self._follow(stream)
        if not stream.keeps_points:
            self._calibrate_summary(stream, rows, whole)

    def _fit_table(self, rows: Array, whole: Array, keys: Any, times: Any) -> None:
        """Grow trees on the rows made `whole`, and place the threshold by the `rows` as they were given."""
        if keys is not None or times is not None:
            raise ValueError("a table given to fit keeps no points, so keys and times mean nothing: set window first")
        self._refuse_two_rates()
        self._stream = None
        plan = self._plan(weighting_of_rows(whole), self._read_domain(whole))
        sizes = self._sizes_of_samples(len(rows))
        forest, members = kernels().grow_samples(whole, sizes, plan)
        self._adopt(forest)
        if 2 * sizes.max() <= len(rows):
            self._calibration = self._scores_by_strangers(rows, members)
        else:
            self._calibration = self._scores_of_held_out(rows, whole, plan)
        self._offset = self._threshold(rows)
        self._note_what_is_usual(rows)

    def _scores_by_strangers(self, rows: Array, members: Sequence[Array]) -> Array:
        """Scores of some rows of a table, each by the trees that did not take it."""
        chosen = self._rows_to_calibrate(len(rows))
        weights = weights_of_strangers(members, chosen, len(rows))
        has_any = weights.any(axis=0)
        scores: Array = kernels().weighted_scores(
            self.score,
            self.forest_,
            self.posterior_,
            rows[chosen[has_any]],
            self.lifetimes_,
            weights[:, has_any],
            self.n_jobs,
        )
        return scores

    def _scores_of_held_out(self, rows: Array, whole: Array, plan: Plan, *, all_rows: bool = False) -> Array | None:
        """Scores of a part of the rows, by another forest that was grown on the rest: only where false alarms count."""
        if self.false_alarm_rate is None:
            return None
        engine, n = kernels(), min(n_to_calibrate(self.false_alarm_rate), len(rows) // 2)
        if n == 0:
            return np.empty(0)
        is_held_out = np.zeros(len(rows), np.bool_)
        is_held_out[some_rows(len(rows), n)] = True
        sizes = len(rows) - n if all_rows else self._sizes_of_samples(len(rows) - n)
        forest = engine.grow_trees(whole[~is_held_out], sizes, plan._replace(seed=plan.seed.spawn(1)[0]))
        known = engine.posterior(forest, self.prior_, n_jobs=self.n_jobs)
        scores: Array = engine.row_scores(self.score, forest, known, rows[is_held_out], self.lifetimes_, self.n_jobs)
        return scores

    def _state(self) -> tuple[Header, Arrays]:
        stream = self._stream
        header, arrays = super()._state()
        if stream is None:
            return {**header, "stream": None}, arrays
        stream.refuse_if_in_doubt()
        if stream.keeps_points:
            arrays["offset"] = np.array(np.nan)  # worked out again when asked for
        about, parts = stream.state()
        return {**header, "stream": about}, {**arrays, **parts}

    @classmethod
    def _of_state(cls, header: Header, arrays: Arrays) -> Self:
        forest: Self = super()._of_state(header, arrays)
        forest._stream = None
        if header["stream"] is None:
            unknown = [name for name in arrays if name.startswith(("points/", "stream/"))]
            if unknown:
                raise ValueError(f"array {unknown[0]}: is of a stream, but the forest follows none")
        else:
            forest._stream = _streams().Stream.of_state(
                header["stream"], arrays, forest.forest_, forest.prior_, forest.lifetimes_
            )
        return forest

    def _check_trees(self) -> None:
        stream = self._stream
        if stream is None:
            super()._check_trees()
        elif stream.forest is not self.forest_:
            raise ValueError("its forest is not that of its stream")
        elif not stream.in_doubt:  # one in doubt is never walked along
            stream.check()

    def _advance(self, X: Any, keys: Any, times: Any, task: Task) -> tuple[Array, Key | None]:
        """Learn rows; return what the task asks of them first, and the key of the last row if it is held.

        All checks come before any change.
        """
        if not hasattr(self, "forest_"):
            with self._lock.turn():
                if not hasattr(self, "forest_"):  # nobody else has begun meanwhile
                    with self._anew() as draft:
                        return draft._begin(X, keys, times, task)
        rows = read_rows(self, X, reset=False, at_least=0, allow_missing=self._marginalises)
        return self._learn(self._continued(), rows, keys, times, task)

    def _begin(self, X: Any, keys: Any, times: Any, task: Task) -> tuple[Array, Key | None]:
        self._validate_params()
        rows = read_rows(self, X, reset=True, allow_missing=self._marginalises)
        stream = self._new_stream(rows)
        self._follow(stream)
        return self._learn(stream, rows, keys, times, task)

    def _learn(self, stream: Stream, rows: Array, keys: Any, times: Any, task: Task) -> tuple[Array, Key | None]:
        stamps, names = self._read_labels(stream, len(rows), keys, times)
        if isfinite(self.forest_.domain[0, -1]):  # only features that came later, hence last, are without bounds
            refuse_rows_outside(self, rows, self.forest_.domain)
        ends = [*self._places_of_gaps(stream, rows), len(rows)]  # of stretches of complete rows
        answers, start, key = [], 0, None
        # more than once only if rows lack values, or if Ctrl-C came and was not taken as a reason to stop
        while start < len(rows):
            stop = ends[bisect_left(ends, start)]
            part = slice(start, max(stop, start + 1))
            with self._writing(stream) as is_interrupted:
                came = stream.holdings.n_seen
                refuse_uncountable(came, len(rows) - start)
                stream.holdings.refuse_keys(names[start:])
                labels = names[part], stamps[part]
                try:
                    if stop > start:
                        scores = stream.advance(
                            rows[part], *labels, is_scored=task.is_scored, n_jobs=self.n_jobs, is_stopped=is_interrupted
                        )
                    else:
                        scores = self._marginal_scores(rows[part]) if task.is_scored else np.empty(0)
                        whole = self._made_whole(stream, rows, start)
                        stream.advance(whole, *labels, is_scored=False, n_jobs=self.n_jobs)
                    if task.is_judged:
                        scores = np.stack(stream.judge(scores, came, self.false_alarm_rate))
                finally:
                    self._refresh(stream)
                answers.append(scores)
                start += stream.holdings.n_seen - came
                key = stream.holdings.newest_key
        if len(answers) == 1:
            return answers[0], key
        none = np.empty((len(Judgements._fields), 0) if task.is_judged else 0)
        return np.concatenate([none, *answers], axis=-1), key

    def _places_of_gaps(self, stream: Stream, rows: Array) -> list[int]:
        """Which rows lack values; refused where nothing is there to learn them with."""
        gaps: list[int] = np.flatnonzero(np.isnan(rows).any(axis=1)).tolist() if self._marginalises else []
        if gaps and gaps[0] == 0 and not stream.n_points:
            self._refuse_for_want_of_donors(rows, 0, "begin with a complete row")
        return gaps

    def _made_whole(self, stream: Stream, rows: Array, i: int) -> Array:
        """Row `i` to learn, with values in place of those that it lacks: a donor's, or what a summary would expect."""
        row = rows[i : i + 1]
        if not stream.n_points:
            self._refuse_for_want_of_donors(rows, i, "give a complete row first. The rows before it were learned")
        if not stream.keeps_points:
            return self._imputed(row, "mode")
        return fill_row(row, stream.points.values[stream.holdings.held[-MOST:]])

    def _refuse_for_want_of_donors(self, rows: Array, i: int, remedy: str) -> None:
        place = f"row {i}, column {column_name(self, int(np.isnan(rows[i]).argmax()))}"
        raise ValueError(f"{place} is missing, and no point is held yet to take the value from: {remedy}")

    def _marginal_scores(self, rows: Array) -> Array:
        """Scores of rows that lack values, by the stream as it is shown."""
        assert self._stream is not None
        score, times = self._stream.rules.score, self.lifetimes_
        scores: Array = kernels().row_scores(score, self.forest_, self.posterior_, rows, times, self.n_jobs)
        return scores

    @staticmethod
    def _read_labels(stream: Stream, n_rows: int, keys: Any, times: Any) -> tuple[Array, list[Key | None]]:
        """The times and keys of rows."""
        if keys is not None and stream.rules.policy is None:
            raise ValueError("a forest with window=None keeps no points, so keys mean nothing to it")
        return read_stamps(times, n_rows, needed=stream.holdings.policy.needs_times), read_keys(keys, n_rows)

    def _new_stream(self, rows: Array) -> Stream:
        """A stream by the parameters as they are, for rows like these."""
        self._refuse_two_rates()
        policy = self._policy()
        if policy is None and self.max_depth is None:
            raise ValueError(
                "an endless stream needs a bound: set max_depth for a summary that keeps no points, or a window to keep"
            )
        n_features = rows.shape[1]
        domain = empty_box(n_features) if self._is_closed else self._read_domain(rows)
        plan = self._plan(unmeasured(n_features, None), domain)
        streams = _streams()
        sizes = self._sizes_in_stream(policy)
        stream: Stream = streams.Stream(
            streams.Rules(
                plan, policy, self.prior_, self._grid, self.score, sizes, n_to_calibrate(self.false_alarm_rate)
            )
        )
        return stream

    def _sizes_in_stream(self, policy: Policy | None) -> Array:
        """How many of the points held each tree takes.

        A summary keeps none to draw from: its trees count all. And where nothing lies beyond the box of the points
        held, every tree has to know all of them.
        """
        if policy is None or self._is_closed:
            return np.full(self.n_estimators, EVERY)
        sizes = self._sizes_of_samples(policy.n)
        return np.where(sizes < (policy.n or EVERY), sizes, EVERY)

    def _policy(self) -> Policy | None:
        if isinstance(self.window, str):
            return Window(_streams().WARM_UP)
        return None if self.window is None else as_policy(self.window)

    def _follow(self, stream: Stream) -> None:
        """Make `stream` this detector's."""
        self._stream = stream
        self._refresh(stream)

    def _calibrate_summary(self, stream: Stream, rows: Array, whole: Array) -> None:
        """Place the threshold by the rows that a summary begins with, since it keeps no points to do it later."""
        plan = stream.rules.plan
        weighting = weighting_of_rows(whole)._replace(fixed=plan.weighting.fixed)
        self._calibration = self._scores_of_held_out(rows, whole, plan._replace(weighting=weighting), all_rows=True)
        self._offset = self._threshold(rows)

    def _refresh(self, stream: Stream) -> None:
        """Show the stream as it is now, and forget what was derived from it as it was."""
        self.forest_, self.lifetimes_, self._posterior = stream.forest, stream.lifetimes, None
        self._reference = self._quantiles = self._doubt = self._held_scores = None
        if stream.keeps_points:
            self._offset = self._calibration = None
        elif len(stream.parting_scores):
            self._calibration, self._offset = stream.parting_scores, None
            stream.parting_scores = np.empty(0)

    def _scores(self, rows: Array) -> Array:
        if self._stream is None:
            return super()._scores(rows)
        parts = []
        for start in range(0, len(rows), _ROWS_AT_ONCE):  # so that learning and Ctrl-C need not wait for all of them
            with self._reading():
                part = rows[start : start + _ROWS_AT_ONCE]
                scores = self._stream.score(part, self.n_jobs)
                gaps = kernels().rows_with_gaps(part) if self._marginalises else []
                if len(gaps):
                    scores[gaps] = self._marginal_scores(part[gaps])
                parts.append(scores)
        return np.concatenate(parts)

    def _witness(self, offset: float) -> Witness:
        from polyaforest.explain.context import Held

        witness, stream = super()._witness(offset), self._stream
        if stream is None:
            return witness
        return witness._replace(
            held=(lambda: Held(stream.rows, stream.holdings.held_keys)) if stream.keeps_points else None,
            watching=lambda: self._watching(witness.known),
        )

    @contextmanager
    def _watching(self, known: Posterior) -> Iterator[None]:
        """Read the forest, if it is still the one that rows were explained by."""
        with self._reading():
            if self._posterior is not known:
                raise RuntimeError(
                    "the stream has moved on since these rows were explained: read the explanations before it does, "
                    "or call settle() on them to have all words looked up"
                )
            yield

    @property
    def _kind_of_score(self) -> str:
        return super()._kind_of_score if self._stream is None else self._stream.rules.score

    @property
    def _points_kept(self) -> Array | None:
        return self._stream.rows if self._stream is not None and self._stream.keeps_points else None

    def _kept(self) -> Stream:
        """The stream, of a forest that follows one."""
        check_is_fitted(self)
        if self._stream is None:
            raise AttributeError('this forest was fitted on a table (window="auto") and keeps no points: set a window')
        return self._stream

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """A stream writes to its arrays: hold it off."""
        if self._stream is None:
            yield
            return
        with self._frozen():
            yield

    @contextmanager
    def _frozen(self) -> Iterator[None]:
        with super()._frozen():
            if self._stream is not None:
                self._stream.refuse_if_in_doubt()
            yield

    @contextmanager
    def _writing(self, stream: Stream) -> Iterator[Callable[[], bool]]:
        """Change `stream` alone, and as a whole: Ctrl-C waits until that is done; yields whether it has come."""
        with uninterrupted() as is_interrupted, self._lock.writing():
            if self._stream is not stream:
                raise RuntimeError("another thread has fitted this forest anew meanwhile: nothing was changed")
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

    def _sizes_of_samples(self, n_rows: int | None) -> Array:
        """How many rows each tree takes of a table, or of a window that holds so many at most, if anybody knows."""
        most = EVERY if n_rows is None else n_rows
        if self.max_samples is None:
            return np.full(self.n_estimators, most)
        if isinstance(self.max_samples, str):
            return np.minimum(np.resize(_SAMPLE_SIZES, self.n_estimators), max(most // 2, 1))
        if isinstance(self.max_samples, Integral):
            return np.full(self.n_estimators, min(int(self.max_samples), most))
        if n_rows is None:
            raise ValueError(
                f"max_samples={self.max_samples} is a share of the points held, but this window does not say how many "
                "they are: give max_samples as a number of points, or the window a number too"
            )
        return np.full(self.n_estimators, max(int(self.max_samples * n_rows), 1))
