"""The streaming detector as river has it: `learn_one` and `score_one`, over dicts whose features may come and go."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Real
from typing import Any, TypeAlias

import numpy as np

from polyaforest import estimators
from polyaforest.adapters._shared import anomaly_scores, extra
from polyaforest.core.arrays import Array
from polyaforest.core.locks import Guarded, uninterrupted
from polyaforest.core.validation import LARGEST, read_stamps
from polyaforest.retention import Reservoir, Window

with extra("river"):
    from river import base

    if hasattr(base, "AnomalyDetector"):
        from river.base import AnomalyDetector
    else:  # before river 0.26
        from river.anomaly.base import AnomalyDetector

__all__ = ["StreamingMPF"]

Observation: TypeAlias = Mapping[Hashable, Any]
_ROWS_AT_ONCE = 4096  # rows of a frame that are learned while nothing else may be done
_SETTLED = 256  # observations after which the scale of a feature is known, as in a stream that begins


class StreamingMPF(Guarded, AnomalyDetector):
    """Streaming Mondrian Pólya forest, for river. Scores are higher for anomalies.

    They lie between 0 and 1, as river's metrics and filters like them: s / (1 + s) for a surprise of s nats, which is
    minus the log probability that `polyaforest.StreamingMPF` gives as its score. So 0.5 is a surprise of 1 nat, 0.8 of
    4 and 0.9 of 9, and however odd two observations are, the odder one scores higher. With ``score="mass"`` the score
    is 1 - mass. Until `grace_period` observations have been learned it is 0.

    **Features come and go.** The order of features never matters. What is None or NaN counts as not there.

    - A known feature that is missing is filled in from the point held that is most like the observation in the
      features it has; or with the number given as `missing`.
    - A new feature is left out of the score, there being nothing to compare it with. When learned, it becomes one more
      column. The points held get its first value, or `missing`, and the trees are grown anew: then, and after 1, 2, 4,
      ..., 256 more observations, while its scale is being learned.
    - A feature that stays away keeps its column.
    - A forest with ``window=None`` keeps no points after its first 256 observations: from then on it fills in what it
      learned last, and leaves new features out.

    Parameters
    ----------
    n_estimators : int, default=100
        Number of trees.
    window : int, Window, Reservoir or None, default=256
        What the forest holds: the last so many observations, or what the policy says. None keeps no points but a
        summary of all, and needs `max_depth`.
    max_depth, prior_strength, lifetime, score, n_jobs
        As for `polyaforest.StreamingMPF`.
    feature_weights : "auto" or None, default="auto"
        "auto" weighs features by their spread, so no scaler is needed. None cuts plain lengths, as the paper does.
    domain : None or "data", default=None
        "data" leaves no room beyond the data, as in the paper.
    grace_period : int, default=64
        Observations to learn before any is scored, since all is odd to a forest that knows little. Filters that learn
        what scores are usual, as `QuantileFilter` does, take long to get over such a beginning.
    missing : float or None, default=None
        The value of features that are not there; 0 suits sparse observations, such as counts of words.
    seed : int or None, default=None

    Examples
    --------
    >>> import random
    >>> from polyaforest.adapters.river import StreamingMPF
    >>> rng, model = random.Random(0), StreamingMPF(seed=0)
    >>> for _ in range(500):
    ...     model.learn_one({"load": rng.gauss(0.4, 0.05), "heat": rng.gauss(20, 2)})
    >>> round(model.score_one({"load": 0.42, "heat": 21}), 1)
    0.6
    >>> round(model.score_one({"load": 0.95, "heat": 21}), 1)
    0.9
    >>> round(model.score_one({"heat": 21}), 1)
    0.6
    """

    def __init__(
        self,
        *,
        n_estimators: int = 100,
        window: int | Window | Reservoir | None = 256,
        max_depth: int | None = None,
        prior_strength: float = 0.001,
        lifetime: float = math.inf,
        feature_weights: str | None = "auto",
        score: str = "typicality",
        domain: str | None = None,
        grace_period: int = 64,
        missing: float | None = None,
        seed: int | None = None,
        n_jobs: int | None = None,
    ) -> None:
        if not (feature_weights is None or isinstance(feature_weights, str)):
            raise ValueError(f'feature_weights must be "auto" or None for river; got {feature_weights!r}')
        if not (domain is None or isinstance(domain, str)):
            raise ValueError(f'domain must be None or "data" for river; got {domain!r}')
        if not (missing is None or (isinstance(missing, Real) and abs(missing) <= LARGEST)):
            raise ValueError(f"missing must be None or a finite number; got {missing!r}")
        self.n_estimators = n_estimators
        self.window = window
        self.max_depth = max_depth
        self.prior_strength = prior_strength
        self.lifetime = lifetime
        self.feature_weights = feature_weights
        self.score = score
        self.domain = domain
        self.grace_period = grace_period
        self.missing = missing
        self.seed = seed
        self.n_jobs = n_jobs
        self._columns: dict[Hashable, int] = {}
        self._forest: estimators.StreamingMPF | None = None
        self._n_learned = 0
        self._latest = np.empty(0)  # the row learned last
        self._n_since_new: int | None = None  # observations since the latest new feature, None once it has settled

    @property
    def forest(self) -> estimators.StreamingMPF | None:
        """The forest itself, for all that river has no word for; None before anything has been learned."""
        return self._forest

    @property
    def features(self) -> list[Hashable]:
        """The features known so far, in the order of the forest's columns."""
        return list(self._columns)

    # ---- river's words ----------------------------------------------------------------------------------------------

    def learn_one(self, x: Observation, t: Any = None) -> None:
        """Learn an observation, the window letting old ones go.

        Parameters
        ----------
        x : dict of numbers
        t : float or datetime, optional
            When it happened; windows in time need it.
        """
        with self._changing():
            self._learn(x, t)

    def _learn(self, x: Observation, t: Any) -> None:
        if self._forest is None:
            self._begin(_numbers(x), t)
            return
        row = self._plain_row(x)
        if row is None:
            given = _numbers(x)
            if self._says_nothing(given):
                return
            self._meet_features(self._forest, given, t)
            row = self._row(self._forest, given)
        self._forest.partial_fit(row, times=_times(t))
        self._learned(self._forest, row)

    def score_one(self, x: Observation) -> float:
        """How anomalous an observation is, from 0 to 1: higher is more anomalous.

        Parameters
        ----------
        x : dict of numbers
        """
        with self._frozen():
            return self._score(x)

    def _score(self, x: Observation) -> float:
        if self._forest is None or self._n_learned < self.grace_period:
            return 0.0
        row = self._plain_row(x)
        if row is None:
            given = _numbers(x)
            if self._says_nothing(given):
                return 0.0
            row = self._row(self._forest, given)
        return self._bounded(self._forest.score_samples(row))

    def score_then_learn_one(self, x: Observation, t: Any = None) -> float:
        """`score_one`, then `learn_one`, in one walk down the trees.

        Parameters
        ----------
        x, t
            As in `learn_one`.
        """
        with self._changing():
            if self._forest is None or self._n_learned < self.grace_period or (row := self._plain_row(x)) is None:
                score = self._score(x)
                self._learn(x, t)
            else:
                score = self._bounded(self._forest.score_then_learn(row, times=_times(t)))
                self._learned(self._forest, row)
        return score

    def learn_many(self, X: Any) -> None:
        """Learn the rows of a frame one after another, which is faster than `learn_one` on each, and the same.

        Parameters
        ----------
        X : frame of pandas or polars
        """
        names = list(X.columns)
        table = _table(X, names)
        is_settled = self._n_since_new is None and self._columns.keys() == set(names)
        if self._forest is not None and is_settled and len(table) and np.abs(table).max() <= LARGEST:
            rows = np.ascontiguousarray(table[:, [names.index(name) for name in self._columns]])
            for start in range(0, len(rows), _ROWS_AT_ONCE):  # Ctrl-C need not wait for all of them
                with self._changing():
                    part = rows[start : start + _ROWS_AT_ONCE]
                    self._forest.partial_fit(part)
                    self._learned(self._forest, part)
            return
        for row in table.tolist():
            self.learn_one(dict(zip(names, row, strict=True)))

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"n_estimators": 10}

    # ---- rows of features -------------------------------------------------------------------------------------------

    def _plain_row(self, x: Observation) -> Array | None:
        """`x` as a row (1, D) if it has the known features, all of them numbers, and no others; else None."""
        if len(x) != len(self._columns):
            return None
        try:
            row = np.array([[x[name] for name in self._columns]], np.float64)
        except (KeyError, TypeError, ValueError):
            return None
        return row if np.abs(row).max() <= LARGEST else None

    def _says_nothing(self, given: Mapping[Hashable, float]) -> bool:
        return not given and self.missing is None

    def _row(self, forest: estimators.StreamingMPF, given: Mapping[Hashable, float]) -> Array:
        """A row (1, D) of the known features, those missing filled in."""
        row = np.array([[given.get(name, math.nan) for name in self._columns]])
        absent = np.isnan(row[0])
        if absent.any():
            row[0, absent] = self._most_like(forest, row[0])[absent] if self.missing is None else self.missing
        return row

    def _most_like(self, forest: estimators.StreamingMPF, row: Array) -> Array:
        """The point held that is nearest to `row` in the features it has, each measured by its mean deviation."""
        held = forest.points_[::-1] if _keeps_points(forest) else np.empty(0)  # of points as near, the latest
        if not len(held):
            return self._latest
        has = ~np.isnan(row)
        points = held[:, has]
        deviation = np.abs(points - points.mean(axis=0)).mean(axis=0)
        deviation[deviation == 0] = 1.0  # all points are as far along a constant column
        with np.errstate(over="ignore"):
            distances = (np.abs(points - row[has]) / deviation).sum(axis=1)
        nearest: Array = held[np.argmin(distances)]
        return nearest

    # ---- learning ---------------------------------------------------------------------------------------------------

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Change the model alone, and as a whole: Ctrl-C waits until that is done."""
        with uninterrupted(), self._lock.writing():
            yield

    def _begin(self, given: Mapping[Hashable, float], t: Any) -> None:
        """Learn the first observation, which says what the columns are."""
        if not given:
            return
        columns = {name: k for k, name in enumerate(_in_order(given))}
        row = np.array([[given[name] for name in columns]])
        forest = estimators.StreamingMPF(
            n_estimators=self.n_estimators,
            window=self.window,
            max_depth=self.max_depth,
            prior_strength=self.prior_strength,
            lifetime=self.lifetime,
            feature_weights=self.feature_weights,
            score=self.score,
            domain=self.domain,
            random_state=self.seed,
            n_jobs=self.n_jobs,
        )
        forest.partial_fit(row, times=_times(t))
        self._columns, self._forest = columns, forest
        self._learned(forest, row)

    def _meet_features(self, forest: estimators.StreamingMPF, given: Mapping[Hashable, float], t: Any) -> None:
        """Make columns of new features, if there are any, and points to grow the trees anew from."""
        new = _in_order(given.keys() - self._columns.keys())
        if not new or not _keeps_points(forest):
            return
        read_stamps(_times(t), 1, needed=getattr(self.window, "needs_times", False))  # before anything is changed
        values = np.array([given[name] if self.missing is None else self.missing for name in new])
        _widen(forest, values)
        for name in new:
            self._columns[name] = len(self._columns)
        self._latest = np.append(self._latest, values)
        self._n_since_new = 0

    def _learned(self, forest: estimators.StreamingMPF, rows: Array) -> None:
        """Keep the latest row, and grow the trees anew after 1, 2, 4, ... observations with a new feature."""
        self._n_learned += len(rows)
        self._latest = rows[-1]
        if self._n_since_new is None:
            return
        self._n_since_new += 1
        if self._n_since_new.bit_count() == 1 and _keeps_points(forest):
            forest.rebuild()
        if self._n_since_new == _SETTLED:
            self._n_since_new = None

    def _bounded(self, scores: Array) -> float:
        """The score of a single row, between 0 and 1 and higher for anomalies."""
        surprise = float(anomaly_scores(scores)[0])
        return 1.0 + surprise if self.score == "mass" else 1.0 - 1.0 / (1.0 + max(surprise, 0.0))


def _keeps_points(forest: estimators.StreamingMPF) -> bool:
    stream = forest._stream
    return stream is not None and stream.keeps_points


def _widen(forest: estimators.StreamingMPF, values: Array) -> None:
    """Add columns in which every point held has the value given, and grow the trees anew."""
    stream = forest._stream
    assert stream is not None
    with forest._writing(stream):
        stream.widen(values, forest.n_jobs)
        forest.n_features_in_ += len(values)
        forest._refresh(stream)


def _numbers(x: Observation) -> dict[Hashable, float]:
    """The features that are there, as numbers."""
    given = {}
    for name, value in x.items():
        if value is None:
            continue
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise ValueError(
                f"feature {name!r} is {value!r}, which is not a number: encode it first (preprocessing.OneHotEncoder) "
                "or leave it out (compose.Discard)"
            ) from None
        if abs(number) > LARGEST:
            raise ValueError(f"feature {name!r} is {number:g}, beyond {LARGEST:g}: cap or rescale it first")
        if not math.isnan(number):
            given[name] = number
    return given


def _in_order(names: Collection[Hashable]) -> list[Hashable]:
    """Features in an order that does not depend on the order in which they came."""
    try:
        return sorted(names)  # type: ignore[type-var]
    except TypeError:  # texts and numbers, perhaps
        return sorted(names, key=repr)


def _times(t: Any) -> list[Any] | None:
    return None if t is None else [t]


def _table(X: Any, names: Collection[Hashable]) -> Array:
    """A frame as a matrix of floats, NaN where a value is missing."""
    columns = []
    for name in names:
        try:
            columns.append(np.asarray(X[name], np.float64))
        except (TypeError, ValueError) as problem:
            raise ValueError(
                f"feature {name!r} holds what is not a number: encode it first or leave it out ({problem})"
            ) from problem
    return np.column_stack(columns) if columns else np.empty((0, 0))
