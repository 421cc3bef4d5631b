"""`StreamingMPF` and `DriftMonitor` as river models, which take dicts with varying features."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from numbers import Real
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from polyaforest import detectors, drift
from polyaforest.adapters._shared import anomaly_scores
from polyaforest.detectors import Tree
from polyaforest.detectors.ahead import score_ahead
from polyaforest.forest.retention import Reservoir, Window
from polyaforest.forest.score_types import EpsilonPhi
from polyaforest.kernels.arrays import Array
from polyaforest.tables.categories import Categories, canonical, code_of, encode
from polyaforest.tables.validation import LARGEST, NamedRows, read_sample_weight, read_stamps
from polyaforest.util.extras import extra
from polyaforest.util.locks import Guarded

with extra(__name__, "river"):
    from river import base

    if hasattr(base, "AnomalyDetector"):
        from river.base import AnomalyDetector
    else:  # before river 0.26
        from river.anomaly.base import AnomalyDetector

__all__ = ["DriftMonitor", "StreamingMPF"]

Observation: TypeAlias = Mapping[Hashable, Any]
_ROWS_AT_ONCE = 4096  # rows of a frame learned per lock and per check for Ctrl-C
_N_TO_SCALE = 256  # observations after which the scale of a new feature is known


class _Observed(NamedTuple):
    """The features of an observation that are not missing."""

    values: dict[Hashable, float]
    texts: dict[float, str]  # categories by their codes
    coded: set[Hashable]  # features that are categories


class StreamingMPF(Guarded, AnomalyDetector):
    """Streaming Mondrian Pólya forest, for river. Scores are higher for anomalies.

    They lie between 0 and 1, as river's metrics and filters expect: s / (1 + s) for a surprise of s nats, the negative
    log probability that `polyaforest.StreamingMPF` returns as its score. So 0.5 is a surprise of 1 nat, 0.8 of 4 and
    0.9 of 9, without saturation. With ``score_type="mass"`` the score is 1 - mass. It is 0 until the model has learned
    `grace_period` observations. Observations with scores above `threshold` are anomalies.

    **Categories.** A feature whose first value is a string is categorical. Unseen categories are allowed.

    **Varying features.** The order of features does not matter. None and NaN count as missing.

    - A missing known feature is imputed from the stored point that is nearest in the other features, or with `missing`.
    - A new feature is ignored in scores. When learned, it becomes a new column: the stored points get its first value,
      or `missing`, and the trees are rebuilt, then and after 1, 2, 4, ..., 256 more observations, while its scale is
      unknown.
    - A feature that no longer occurs keeps its column.
    - A forest with ``window=None`` stores no points after its first 256 observations: from then on it imputes the last
      observation learned, and ignores new features.

    Parameters
    ----------
    n_estimators : int, default=100
        Number of trees.
    window : int, Window, Reservoir or None, default=256
        Observations to keep: the last `window`, or the choice of a policy. None keeps only a summary of all
        observations, and requires a limited depth.
    tree : Tree, optional
        As for `polyaforest.StreamingMPF`, without feature weights or a domain by column, since columns come and go.
    score_type, contamination, false_alarm_rate, n_jobs
        As for `polyaforest.StreamingMPF`.
    grace_period : int, default=64
        Observations to learn before scoring. An untrained forest scores high, and filters that adapt to the scores,
        such as `QuantileFilter`, take long to recover.
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
    0.98
    >>> round(model.score_one({"heat": 21}), 2)
    0.71
    """

    def __init__(
        self,
        *,
        n_estimators: int = 100,
        window: int | Window | Reservoir | None = 256,
        tree: Tree | None = None,
        score_type: str | EpsilonPhi = "margins",
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
        self._coded: set[Hashable] = set()  # features that are categories
        self._forest: detectors.StreamingMPF | None = None
        self._n_learned = 0
        self._latest = np.empty(0)  # the last row learned
        self._n_since_new: int | None = None  # observations since the last new feature, None once its scale is known

    @property
    def forest(self) -> detectors.StreamingMPF | None:
        """The underlying forest; None before the first observation."""
        return self._forest

    @property
    def threshold(self) -> float:
        """The score above which `forest` flags observations; 1 in the grace period."""
        with self._frozen():
            if self._forest is None or self._n_learned < self.grace_period:
                return 1.0
            return self._bounded(np.array([self._forest.offset_]))

    @property
    def features(self) -> list[Hashable]:
        """The features known so far, in the order of the forest's columns."""
        return list(self._columns)

    # ---- river's interface -----------------------------------------------------------------------------------------

    def learn_one(self, x: Observation, t: Any = None, w: float = 1.0) -> None:
        """Learn an observation; the window may drop old ones.

        Parameters
        ----------
        x : dict of numbers and strings
        t : float or datetime, optional
            Time of the observation, required by time-based windows.
        w : float, default=1.0
            Weight: 2 learns the observation twice, 0 not at all; a fraction is the probability of one more time.
        """
        with self._changing():
            self._learn_weighted(x, t, w)

    def _learn_weighted(self, x: Observation, t: Any, w: float) -> None:
        if w != 1:
            weights = read_sample_weight([w], 1)
            w = 1.0 if weights is None else float(weights[0])
        for _ in range(int(w)):
            self._learn(x, t)
        if w % 1:
            self._learn(x, t, w % 1)

    def _learn(self, x: Observation, t: Any, chance: float = 1.0) -> None:
        if self._forest is None:
            self._begin(self._numbers(x), t, chance)
            return
        row, texts = self._plain_row(x), dict[float, str]()
        if row is None:
            given = self._numbers(x)
            if self._is_empty(given.values):
                return
            self._add_features(self._forest, given, t)
            row, texts = self._row(self._forest, given.values), given.texts
        self._partial_fit(self._forest, row, self._rows(row, texts), t, chance)

    def score_one(self, x: Observation) -> float:
        """Return the anomaly score of an observation, from 0 to 1: higher is more anomalous.

        Parameters
        ----------
        x : dict of numbers and strings
        """
        with self._frozen():
            return self._score(x)

    def _score(self, x: Observation) -> float:
        if self._forest is None or self._n_learned < self.grace_period:
            return 0.0
        row, texts = self._plain_row(x), dict[float, str]()
        if row is None:
            given = self._numbers(x)
            if self._is_empty(given.values):
                return 0.0
            row, texts = self._row(self._forest, given.values), given.texts
        return self._bounded(score_ahead(self._forest, self._rows(row, texts)))

    def score_then_learn_one(self, x: Observation, t: Any = None, w: float = 1.0) -> float:
        """Score an observation, then learn it, in one traversal of the trees.

        Parameters
        ----------
        x, t, w
            As in `learn_one`.
        """
        with self._changing():
            is_young = self._forest is None or self._n_learned < self.grace_period
            if self._forest is None or is_young or w != 1 or (row := self._plain_row(x)) is None:
                score = self._score(x)
                self._learn_weighted(x, t, w)
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
        cells = {name: _cells_of(X[name]) for name in names}
        has_known_columns = self._n_since_new is None and self._columns.keys() == set(names)
        if self._forest is not None and has_known_columns and len(X) and self._learn_known_columns(self._forest, cells):
            return
        for row in zip(*(cells[name].tolist() for name in names), strict=True):
            self.learn_one(dict(zip(names, row, strict=True)))

    def _learn_known_columns(self, forest: detectors.StreamingMPF, cells: Mapping[Hashable, Array]) -> bool:
        """Learn columns of known features together; return False if rows have to be learned one by one."""
        texts: dict[float, str] = {}
        table = np.empty((len(next(iter(cells.values()))), len(cells)))
        for name, k in self._columns.items():
            if name in self._coded:
                table[:, k], own = encode(cells[name])
                texts |= own
            elif cells[name].dtype.kind not in "biuf":
                return False
            else:
                table[:, k] = cells[name]
        if not np.abs(table).max() <= LARGEST:  # or NaN
            return False
        for start in range(0, len(table), _ROWS_AT_ONCE):  # so that Ctrl-C takes effect in between
            with self._changing():
                part = table[start : start + _ROWS_AT_ONCE]
                forest.partial_fit(self._rows(part, texts))
                self._learned(forest, part)
        return True

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"n_estimators": 10}

    # ---- rows of features -------------------------------------------------------------------------------------------

    def _plain_row(self, x: Observation) -> Array | None:
        """Return `x` as a row (1, D) if it has exactly the known features, all numbers; else None."""
        if len(x) != len(self._columns) or self._coded:
            return None
        try:
            row = np.array([[x[name] for name in self._columns]], np.float64)
        except (KeyError, TypeError, ValueError):
            return None
        return row if np.abs(row).max() <= LARGEST else None

    def _numbers(self, x: Observation) -> _Observed:
        """Return the features that are not missing."""
        return _given(x, self._coded, self._columns)

    def _rows(self, rows: Array, texts: Mapping[float, str]) -> Any:
        """Return rows in the form that the forest accepts."""
        return _named(rows, self._columns, self._coded, texts) if self._coded else rows

    def _is_empty(self, given: Mapping[Hashable, float]) -> bool:
        return not given and self.missing is None

    def _row(self, forest: detectors.StreamingMPF, given: Mapping[Hashable, float]) -> Array:
        """Return a row (1, D) of the known features, with missing ones imputed."""
        row = np.array([[given.get(name, math.nan) for name in self._columns]])
        absent = np.isnan(row[0])
        if absent.any():
            fillers = (
                [self._filler(name in self._coded) for name in self._columns] if self.missing is not None else None
            )
            row[0, absent] = (self._nearest(forest, row[0]) if fillers is None else np.array(fillers))[absent]
        return row

    def _nearest(self, forest: detectors.StreamingMPF, row: Array) -> Array:
        """Return the stored point nearest to `row` in its known features, scaled by mean absolute deviation."""
        keeps_points = forest.is_fitted and forest.keeps_points_
        held = self._held(forest)[::-1] if keeps_points else np.empty(0)  # latest first, to win ties
        if not len(held):
            return self._latest
        has = ~np.isnan(row)
        points = held[:, has]
        deviation = np.abs(points - points.mean(axis=0)).mean(axis=0)
        deviation[deviation == 0] = 1.0  # a constant column does not affect the distance order
        is_coded = np.array([name in self._coded for name in self._columns])[has]
        with np.errstate(over="ignore"):
            apart = np.abs(points - row[has]) / deviation
            apart[:, is_coded] = apart[:, is_coded] > 0
            distances = apart.sum(axis=1)
        nearest: Array = held[np.argmin(distances)]
        return nearest

    def _held(self, forest: detectors.StreamingMPF) -> Array:
        """Return the stored points, with codes of categories."""
        held = forest.points_
        if not self._coded:
            return held
        columns = [encode(held[:, k])[0] if name in self._coded else held[:, k] for name, k in self._columns.items()]
        return np.column_stack(columns).astype(np.float64)

    # ---- learning ---------------------------------------------------------------------------------------------------

    def _begin(self, given: _Observed, t: Any, chance: float) -> None:
        """Learn the first observation, which defines the columns."""
        if not given.values:
            return
        columns = {name: k for k, name in enumerate(_in_order(given.values))}
        row = np.array([[given.values[name] for name in columns]])
        forest = self._new_forest()
        named = _named(row, columns, given.coded, given.texts) if given.coded else row
        self._partial_fit(forest, row, named, t, chance)
        self._columns, self._coded, self._forest = columns, given.coded, forest

    def _new_forest(self) -> detectors.StreamingMPF:
        return detectors.StreamingMPF(
            n_estimators=self.n_estimators,
            window=self.window,
            tree=self.tree,
            score_type=self.score_type,
            contamination=self.contamination,
            false_alarm_rate=self.false_alarm_rate,
            random_state=self.seed,
            n_jobs=self.n_jobs,
        )

    def _partial_fit(self, forest: detectors.StreamingMPF, row: Array, named: Any, t: Any, chance: float) -> None:
        """Learn a row with probability `chance`; `named` is the row in the form that the forest accepts."""
        n_before = forest.n_seen_ if forest.is_fitted else 0
        forest.partial_fit(named, times=_times(t), sample_weight=None if chance == 1 else [chance])
        if forest.n_seen_ > n_before:
            self._learned(forest, row)

    def _add_features(self, forest: detectors.StreamingMPF, given: _Observed, t: Any) -> detectors.StreamingMPF:
        """Add columns for new features, if any, and rebuild the trees from the stored points; return the forest."""
        new = _in_order(given.values.keys() - self._columns.keys())
        if not new or not forest.keeps_points_:
            return forest
        read_stamps(_times(t), 1, needed=getattr(self.window, "needs_times", False))  # raise before any change
        values = np.array(
            [given.values[name] if self.missing is None else self._filler(name in given.coded) for name in new]
        )
        columns = {name: k for k, name in enumerate([*self._columns, *new])}
        coded = self._coded | (given.coded & set(new))
        if coded:
            forest = self._relearned(forest, values, columns, coded, given.texts)
        else:
            forest.add_features(values)
        self._columns, self._coded, self._forest = columns, coded, forest
        self._latest = np.append(self._latest, values)
        self._n_since_new = 0
        return forest

    def _relearned(
        self,
        forest: detectors.StreamingMPF,
        values: Array,
        columns: dict[Hashable, int],
        coded: set[Hashable],
        texts: Mapping[float, str],
    ) -> detectors.StreamingMPF:
        """Return a forest fitted on the stored points, extended by these values of new features."""
        held = self._held(forest)
        if not len(held):
            return self._new_forest()
        rows = np.hstack([held, np.tile(values, (len(held), 1))])
        known = {} if forest.encoding_ is None else forest.encoding_.texts
        times = None if np.isnan(forest.times_).any() else forest.times_
        return self._new_forest().partial_fit(_named(rows, columns, coded, {**known, **texts}), times=times)

    def _filler(self, is_coded: bool) -> float:
        """Return `missing` as a number or as the code of a category."""
        assert self.missing is not None
        return code_of(canonical(self.missing) or "") if is_coded else self.missing

    def _learned(self, forest: detectors.StreamingMPF, rows: Array) -> None:
        """Keep the latest row, and rebuild the trees 1, 2, 4, ... observations after a new feature."""
        self._n_learned += len(rows)
        self._latest = rows[-1]
        if self._n_since_new is None:
            return
        self._n_since_new += 1
        if self._n_since_new.bit_count() == 1 and forest.keeps_points_:
            forest.rebuild()
        if self._n_since_new == _N_TO_SCALE:
            self._n_since_new = None

    def _bounded(self, scores: Array) -> float:
        """Convert the score of a single row to the range 0 to 1, higher for anomalies."""
        surprise = float(anomaly_scores(scores)[0])
        is_mass = self.score_type == "mass" or isinstance(self.score_type, EpsilonPhi)
        return 1.0 + surprise if is_mass else 1.0 - 1.0 / (1.0 + max(surprise, 0.0))


def _given(x: Observation, coded: Collection[Hashable], known: Collection[Hashable]) -> _Observed:
    """Return the features that are not missing, as numbers; categories as codes.

    Features in `coded` are categories, and so are new features, not in `known`, whose value is a string.
    """
    given = _Observed({}, {}, set())
    for name, value in x.items():
        if name in coded or (isinstance(value, str) and name not in known):
            text = canonical(value)
            if text is not None:
                code = given.values[name] = code_of(text)
                given.texts[code] = text
                given.coded.add(name)
        elif value is not None and not math.isnan(number := _number(name, value)):
            given.values[name] = number
    return given


def _number(name: Hashable, value: Any) -> float:
    """Return a value as a number, which may be NaN."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(
            f"feature {name!r} is {value!r}, which is not a number: encode it first (preprocessing.OneHotEncoder) "
            "or discard it (compose.Discard)"
        ) from None
    if abs(number) > LARGEST:
        raise ValueError(f"feature {name!r} is {number:g}, beyond {LARGEST:g}: cap or rescale it first")
    return number


def _named(rows: Array, columns: dict[Hashable, int], coded: set[Hashable], texts: Mapping[float, str]) -> NamedRows:
    """Return rows with column names and categories."""
    at = tuple(sorted(columns[name] for name in coded))
    return NamedRows(rows, list(map(str, columns)), Categories(at, len(columns), texts))


def _in_order(names: Collection[Hashable]) -> list[Hashable]:
    """Return features in an order that does not depend on their order of appearance."""
    try:
        return sorted(names)  # type: ignore[type-var]
    except TypeError:  # mixed types
        return sorted(names, key=repr)


def _times(t: Any) -> list[Any] | None:
    return None if t is None else [t]


def _cells_of(column: Any) -> Array:
    """Return a column of a frame, as numbers if possible, else as objects."""
    try:
        return np.asarray(column, np.float64)
    except (TypeError, ValueError):
        return np.array(list(column), dtype=object)


def _features(x: float | Observation) -> Observation:
    """Return an observation; a single number becomes the feature "x"."""
    return x if isinstance(x, Mapping) else {"x": x}


class DriftMonitor(Guarded, base.DriftDetector):
    """Drift detector for river: report when the distribution of a stream changes.

    `update` takes a number, like river's drift detectors, or a dict of numbers and strings, like its models. The first
    observation defines the features; its strings are categories. None, NaN and absent features count as missing; new
    features are ignored. After an alarm, `drift_detected` is False until the monitor has learned the new distribution,
    or the stream has returned to the old one.

    Parameters
    ----------
    reference, windows, false_alarms_every, n_estimators
        As for `polyaforest.drift.DriftMonitor`.
    seed : int or None, default=None

    Examples
    --------
    >>> import random
    >>> from polyaforest.adapters.river import DriftMonitor
    >>> rng, monitor = random.Random(0), DriftMonitor(reference=256, seed=0)
    >>> for i in range(1000):
    ...     monitor.update({"load": rng.gauss(0.4, 0.1), "heat": rng.gauss(20 if i < 600 else 26, 2)})
    ...     if monitor.drift_detected:
    ...         print(600 <= i < 620, abs(monitor.change.start - 600) < 3)
    True True
    """

    def __init__(
        self,
        *,
        reference: int = 1024,
        windows: Sequence[int] | str = "auto",
        false_alarms_every: float = 100_000,
        n_estimators: int = 32,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self.reference = reference
        self.windows = windows
        self.false_alarms_every = false_alarms_every
        self.n_estimators = n_estimators
        self.seed = seed
        self._names: list[Hashable] | None = None
        self._coded: set[Hashable] = set()  # features that are categories
        self._monitor = drift.DriftMonitor(
            reference=reference,
            windows=windows,
            false_alarms_every=false_alarms_every,
            n_estimators=n_estimators,
            random_state=seed,
        )

    @property
    def monitor(self) -> drift.DriftMonitor:
        """The underlying monitor."""
        return self._monitor

    @property
    def change(self) -> drift.Change | None:
        """The current change, as far as it is known; None if there is none."""
        return self._monitor.change_

    def update(self, x: float | Observation) -> None:
        """Process one observation and set `drift_detected`.

        Parameters
        ----------
        x : float or dict of numbers and strings
        """
        with self._changing():
            given = _given(_features(x), self._coded, self._names or ())
            if self._names is None:
                if not given.values:
                    return
                self._names, self._coded = _in_order(given.values), given.coded
            was_normal = self._monitor.change_ is None
            row = np.array([[given.values.get(name, math.nan) for name in self._names]])
            columns = {name: k for k, name in enumerate(self._names)}
            self._monitor.update(_named(row, columns, self._coded, given.texts) if self._coded else row)
            self._drift_detected = was_normal and self._monitor.change_ is not None
