"""The streaming detector with river's interface: `learn_one` and `score_one` on dicts with varying features."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterator, Mapping
from numbers import Real
from typing import Any, TypeAlias

import numpy as np

from polyaforest import estimators
from polyaforest.adapters._shared import anomaly_scores, extra
from polyaforest.core.arrays import Array
from polyaforest.core.locks import Guarded
from polyaforest.core.score import EpsilonPhi
from polyaforest.core.validation import LARGEST, read_stamps
from polyaforest.estimators import Tree
from polyaforest.retention import Reservoir, Window

with extra("river"):
    from river import base

    if hasattr(base, "AnomalyDetector"):
        from river.base import AnomalyDetector
    else:  # before river 0.26
        from river.anomaly.base import AnomalyDetector

__all__ = ["StreamingMPF"]

Observation: TypeAlias = Mapping[Hashable, Any]
_ROWS_AT_ONCE = 4096  # rows of a frame learned per lock and per check for Ctrl-C
_SETTLED = 256  # observations after which the scale of a new feature is known


class StreamingMPF(Guarded, AnomalyDetector):
    """Streaming Mondrian Pólya forest, for river. Scores are higher for anomalies.

    They lie between 0 and 1, as river's metrics and filters expect: s / (1 + s) for a surprise of s nats, the negative
    log probability that `polyaforest.StreamingMPF` returns as its score. So 0.5 is a surprise of 1 nat, 0.8 of 4 and
    0.9 of 9, without saturation. With ``score_type="mass"`` the score is 1 - mass. Until `grace_period` observations
    have been learned it is 0. Scores above `threshold` are those of anomalies.

    **Varying features.** The order of features does not matter. None and NaN count as missing.

    - A missing known feature is imputed from the stored point that is nearest in the other features, or with `missing`.
    - A new feature is ignored in scores. When learned, it becomes a new column: the stored points get its first value,
      or `missing`, and the trees are rebuilt, then and after 1, 2, 4, ..., 256 more observations, while its scale is
      being learned.
    - A feature that no longer occurs keeps its column.
    - A forest with ``window=None`` stores no points after its first 256 observations: from then on it imputes the last
      observation learned, and ignores new features.

    Parameters
    ----------
    n_estimators : int, default=100
        Number of trees.
    window : int, Window, Reservoir or None, default=256
        Observations to keep: the last `window`, or as the policy says. None keeps only a summary of all observations,
        and requires a limited depth.
    tree : Tree, optional
        As for `polyaforest.StreamingMPF`, but for feature weights and a domain by column: columns come and go.
    score_type, contamination, false_alarm_rate, n_jobs
        As for `polyaforest.StreamingMPF`.
    grace_period : int, default=64
        Observations to learn before scoring. Scores of an untrained forest are high, which filters that adapt to the
        scores, such as `QuantileFilter`, would take long to recover from.
    missing : float or None, default=None
        Value of missing features; 0 suits sparse observations, such as word counts.
    seed : int or None, default=None

    Examples
    --------
    >>> import random
    >>> from polyaforest.adapters.river import StreamingMPF
    >>> rng, model = random.Random(0), StreamingMPF(seed=0)
    >>> for _ in range(500):
    ...     model.learn_one({"load": rng.gauss(0.4, 0.05), "heat": rng.gauss(20, 2)})
    >>> round(model.score_one({"load": 0.42, "heat": 21}), 2)
    0.74
    >>> round(model.score_one({"load": 0.95, "heat": 21}), 2)
    0.97
    >>> round(model.score_one({"heat": 21}), 2)
    0.71
    """

    def __init__(
        self,
        *,
        n_estimators: int = 100,
        window: int | Window | Reservoir | None = 256,
        tree: Tree | None = None,
        score_type: str | EpsilonPhi = "typicality",
        contamination: str | float = "auto",
        false_alarm_rate: float | None = None,
        grace_period: int = 64,
        missing: float | None = None,
        seed: int | None = None,
        n_jobs: int | None = None,
    ) -> None:
        if tree is not None and np.ndim(tree.feature_weights):
            raise ValueError(f'feature_weights must be "auto" or None for river; got {tree.feature_weights!r}')
        if tree is not None and np.ndim(tree.domain):
            raise ValueError(f'domain must be None or "data" for river; got {tree.domain!r}')
        if not (missing is None or (isinstance(missing, Real) and abs(missing) <= LARGEST)):
            raise ValueError(f"missing must be None or a finite number; got {missing!r}")
        self.n_estimators = n_estimators
        self.window = window
        self.tree = tree
        self.score_type = score_type
        self.contamination = contamination
        self.false_alarm_rate = false_alarm_rate
        self.grace_period = grace_period
        self.missing = missing
        self.seed = seed
        self.n_jobs = n_jobs
        self._columns: dict[Hashable, int] = {}
        self._forest: estimators.StreamingMPF | None = None
        self._n_learned = 0
        self._latest = np.empty(0)  # the last row learned
        self._n_since_new: int | None = None  # observations since the last new feature, None once its scale is known

    @property
    def forest(self) -> estimators.StreamingMPF | None:
        """The underlying forest; None before the first observation."""
        return self._forest

    @property
    def threshold(self) -> float:
        """The score above which observations are anomalies, as by `forest`; 1 in the grace period."""
        with self._frozen():
            if self._forest is None or self._n_learned < self.grace_period:
                return 1.0
            return self._bounded(np.array([self._forest.offset_]))

    @property
    def features(self) -> list[Hashable]:
        """The features known so far, in the order of the forest's columns."""
        return list(self._columns)

    # ---- river's interface -----------------------------------------------------------------------------------------

    def learn_one(self, x: Observation, t: Any = None) -> None:
        """Learn an observation; the window may drop old ones.

        Parameters
        ----------
        x : dict of numbers
        t : float or datetime, optional
            Time of the observation, required by time-based windows.
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
            if self._is_empty(given):
                return
            self._add_features(self._forest, given, t)
            row = self._row(self._forest, given)
        self._forest.partial_fit(row, times=_times(t))
        self._learned(self._forest, row)

    def score_one(self, x: Observation) -> float:
        """Return the anomaly score of an observation, from 0 to 1: higher is more anomalous.

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
            if self._is_empty(given):
                return 0.0
            row = self._row(self._forest, given)
        return self._bounded(self._forest.score_samples(row))

    def score_then_learn_one(self, x: Observation, t: Any = None) -> float:
        """Score an observation, then learn it, in one traversal of the trees.

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
        """Learn the rows of a frame in order, like `learn_one` on each, but faster.

        Parameters
        ----------
        X : frame of pandas or polars
        """
        names = list(X.columns)
        table = _table(X, names)
        is_settled = self._n_since_new is None and self._columns.keys() == set(names)
        if self._forest is not None and is_settled and len(table) and np.abs(table).max() <= LARGEST:
            rows = np.ascontiguousarray(table[:, [names.index(name) for name in self._columns]])
            for start in range(0, len(rows), _ROWS_AT_ONCE):  # so that Ctrl-C takes effect in between
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
        """Return `x` as a row (1, D) if it has exactly the known features, all numbers; else None."""
        if len(x) != len(self._columns):
            return None
        try:
            row = np.array([[x[name] for name in self._columns]], np.float64)
        except (KeyError, TypeError, ValueError):
            return None
        return row if np.abs(row).max() <= LARGEST else None

    def _is_empty(self, given: Mapping[Hashable, float]) -> bool:
        return not given and self.missing is None

    def _row(self, forest: estimators.StreamingMPF, given: Mapping[Hashable, float]) -> Array:
        """Return a row (1, D) of the known features, with missing ones imputed."""
        row = np.array([[given.get(name, math.nan) for name in self._columns]])
        absent = np.isnan(row[0])
        if absent.any():
            row[0, absent] = self._nearest(forest, row[0])[absent] if self.missing is None else self.missing
        return row

    def _nearest(self, forest: estimators.StreamingMPF, row: Array) -> Array:
        """Return the stored point nearest to `row` in its known features, scaled by mean absolute deviation."""
        held = forest.points_[::-1] if forest.keeps_points_ else np.empty(0)  # latest first, to win ties
        if not len(held):
            return self._latest
        has = ~np.isnan(row)
        points = held[:, has]
        deviation = np.abs(points - points.mean(axis=0)).mean(axis=0)
        deviation[deviation == 0] = 1.0  # a constant column does not affect the distance order
        with np.errstate(over="ignore"):
            distances = (np.abs(points - row[has]) / deviation).sum(axis=1)
        nearest: Array = held[np.argmin(distances)]
        return nearest

    # ---- learning ---------------------------------------------------------------------------------------------------

    def _begin(self, given: Mapping[Hashable, float], t: Any) -> None:
        """Learn the first observation, which defines the columns."""
        if not given:
            return
        columns = {name: k for k, name in enumerate(_in_order(given))}
        row = np.array([[given[name] for name in columns]])
        forest = estimators.StreamingMPF(
            n_estimators=self.n_estimators,
            window=self.window,
            tree=self.tree,
            score_type=self.score_type,
            contamination=self.contamination,
            false_alarm_rate=self.false_alarm_rate,
            random_state=self.seed,
            n_jobs=self.n_jobs,
        )
        forest.partial_fit(row, times=_times(t))
        self._columns, self._forest = columns, forest
        self._learned(forest, row)

    def _add_features(self, forest: estimators.StreamingMPF, given: Mapping[Hashable, float], t: Any) -> None:
        """Add columns for new features, if any, and rebuild the trees from the stored points."""
        new = _in_order(given.keys() - self._columns.keys())
        if not new or not forest.keeps_points_:
            return
        read_stamps(_times(t), 1, needed=getattr(self.window, "needs_times", False))  # before anything is changed
        values = np.array([given[name] if self.missing is None else self.missing for name in new])
        forest.add_features(values)
        for name in new:
            self._columns[name] = len(self._columns)
        self._latest = np.append(self._latest, values)
        self._n_since_new = 0

    def _learned(self, forest: estimators.StreamingMPF, rows: Array) -> None:
        """Keep the latest row, and rebuild the trees 1, 2, 4, ... observations after a new feature."""
        self._n_learned += len(rows)
        self._latest = rows[-1]
        if self._n_since_new is None:
            return
        self._n_since_new += 1
        if self._n_since_new.bit_count() == 1 and forest.keeps_points_:
            forest.rebuild()
        if self._n_since_new == _SETTLED:
            self._n_since_new = None

    def _bounded(self, scores: Array) -> float:
        """Return the score of a single row, from 0 to 1, higher for anomalies."""
        surprise = float(anomaly_scores(scores)[0])
        is_mass = self.score_type == "mass" or isinstance(self.score_type, EpsilonPhi)
        return 1.0 + surprise if is_mass else 1.0 - 1.0 / (1.0 + max(surprise, 0.0))


def _numbers(x: Observation) -> dict[Hashable, float]:
    """Return the features that are not missing, as numbers."""
    given = {}
    for name, value in x.items():
        if value is None:
            continue
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise ValueError(
                f"feature {name!r} is {value!r}, which is not a number: encode it first (preprocessing.OneHotEncoder) "
                "or discard it (compose.Discard)"
            ) from None
        if abs(number) > LARGEST:
            raise ValueError(f"feature {name!r} is {number:g}, beyond {LARGEST:g}: cap or rescale it first")
        if not math.isnan(number):
            given[name] = number
    return given


def _in_order(names: Collection[Hashable]) -> list[Hashable]:
    """Return features in an order that does not depend on their order of appearance."""
    try:
        return sorted(names)  # type: ignore[type-var]
    except TypeError:  # mixed types
        return sorted(names, key=repr)


def _times(t: Any) -> list[Any] | None:
    return None if t is None else [t]


def _table(X: Any, names: Collection[Hashable]) -> Array:
    """Return a frame as a matrix of floats, NaN where a value is missing."""
    columns = []
    for name in names:
        try:
            columns.append(np.asarray(X[name], np.float64))
        except (TypeError, ValueError) as problem:
            raise ValueError(
                f"feature {name!r} contains a value that is not a number: encode or discard it first ({problem})"
            ) from problem
    return np.column_stack(columns) if columns else np.empty((0, 0))
