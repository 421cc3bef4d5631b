"""A detector calibrated within groups of rows."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
from sklearn.base import clone
from sklearn.utils._param_validation import Interval

from polyaforest.detectors._detector import Detector, remembers_frame, validates_parameters
from polyaforest.detectors.batch import BatchMPF
from polyaforest.detectors.streaming import StreamingMPF
from polyaforest.explain import Explanations
from polyaforest.forest.calibration import n_to_calibrate, some_rows
from polyaforest.forest.score_types import EpsilonPhi
from polyaforest.forest.severity import tail_bits
from polyaforest.forest.thresholds import (
    Detections,
    check_scores,
    conformal_p_values,
    least_calibration,
)
from polyaforest.kernels.arrays import Array, is_ascending
from polyaforest.storage.modelfile import Arrays, Header
from polyaforest.tables.validation import read_rows
from polyaforest.util import schema

Label: TypeAlias = str | float | None  # None where a row has no group

_KINDS: dict[str, type[BatchMPF | StreamingMPF]] = {kind.__name__: kind for kind in (BatchMPF, StreamingMPF)}
_STATE = schema.record(
    {
        "detector": schema.text,
        "calibrate_by": schema.either(schema.nothing, schema.text, schema.whole(0, None)),
        "is_feature": schema.flag,
        "min_group": schema.whole(1, None),
        "labels": schema.mapping,
        "forest": schema.mapping,
        "notes": schema.mapping,
    },
    optional=["notes"],
)


class GroupedMPF(Detector):
    """Mondrian Pólya forest with thresholds and p-values calibrated within groups.

    One forest learns all rows, but each row's score is compared with the out-of-sample scores of its own group only. A
    small group in a sparse region is therefore not flagged more often than the others. Scores are higher for normal
    rows.

    Parameters
    ----------
    estimator : StreamingMPF or BatchMPF, optional
        The detector to clone and fit, a `StreamingMPF` by default. Its `contamination` or `false_alarm_rate` applies
        within each group.
    calibrate_by : str, int or None, default=None
        Name or index of the column of `X` that holds the groups; None to pass them as `groups`.
    is_feature : bool, default=False
        Whether the column is also a feature.
    min_group : int, default=100
        Calibration scores that a group needs to be calibrated separately; `false_alarm_rate` may need more. Smaller
        groups, unseen groups and rows without a group share one calibration, or use that of all rows if they have too
        few scores together.

    Attributes
    ----------
    estimator_ : StreamingMPF or BatchMPF
        The fitted detector.
    groups_ : list
        Labels of the groups that are calibrated separately: str or float.
    offsets_ : dict
        The thresholds of these groups, by label.
    offset_ : float
        The threshold of all other rows.

    Examples
    --------
    >>> import numpy as np
    >>> from polyaforest import GroupedMPF, StreamingMPF
    >>> rng = np.random.default_rng(0)
    >>> country = np.repeat(["DE", "LU"], [1900, 100])
    >>> X = rng.normal(size=(2000, 2)) + 6 * (country == "LU")[:, None]
    >>> forest = GroupedMPF(StreamingMPF(false_alarm_rate=0.05, random_state=0)).fit(X, groups=country)
    >>> forest.groups_
    ['DE', 'LU']
    >>> forest.predict([[6.0, 6.0], [6.0, 6.0]], groups=["DE", "LU"])
    array([-1,  1])
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "estimator": [BatchMPF, StreamingMPF, None],
        "calibrate_by": [str, Interval(Integral, 0, None, closed="left"), None],
        "is_feature": ["boolean"],
        "min_group": [Interval(Integral, 1, None, closed="left")],
    }

    estimator_: BatchMPF | StreamingMPF
    _scores_of: dict[Label, Array]  # ascending log-scores of each group that is calibrated separately
    _rest: Array  # log-scores for all other rows

    def __init__(
        self,
        estimator: BatchMPF | StreamingMPF | None = None,
        *,
        calibrate_by: str | int | None = None,
        is_feature: bool = False,
        min_group: int = 100,
    ) -> None:
        self.estimator = estimator
        self.calibrate_by = calibrate_by
        self.is_feature = is_feature
        self.min_group = min_group

    @validates_parameters
    def fit(self, X: Any, y: Any = None, *, groups: Any = None) -> Self:
        """Fit the detector to the rows of `X` and calibrate it within groups; `y` is ignored.

        Parameters
        ----------
        X : array-like or frame of shape (n_rows, n_columns)
        groups : sequence of str or numbers, of shape (n_rows,), optional
            The group of each row, if `calibrate_by` is None. None or NaN means no group.
        """
        with self._lock.turn(), self._drafted() as draft:
            draft._begin(X, groups)
        return self

    def _begin(self, X: Any, groups: Any) -> None:
        features, labels = self._split(X, groups)
        forest = StreamingMPF() if self.estimator is None else clone(self.estimator)
        if isinstance(forest.score_type, EpsilonPhi):
            raise ValueError("score_type=EpsilonPhi has a fixed threshold and cannot be calibrated: choose another")
        self.estimator_ = forest.fit(features)
        rows = read_rows(forest, features, reset=False, allow_missing=forest.missing != "error")
        by_label: dict[Label, list[int]] = {}
        for place, label in enumerate(labels):
            by_label.setdefault(label, []).append(place)
        most, least = n_to_calibrate(forest.false_alarm_rate), self._least
        chosen = {label: np.array(own)[some_rows(len(own), most)] for label, own in by_label.items()}
        logs = {label: forest._scores_left_out(rows, own) for label, own in chosen.items()}
        logs = {label: np.sort(own[~np.isnan(own)]) for label, own in logs.items()}
        large: dict[Label, Array] = {
            label: own for label, own in logs.items() if label is not None and len(own) >= least
        }
        small = np.sort(np.concatenate([np.empty(0), *(own for label, own in logs.items() if label not in large)]))
        self._scores_of = large
        self._rest = small if len(small) >= least else np.sort(forest._calibration_scores())

    @property
    def _least(self) -> int:
        """The number of scores that a group needs to be calibrated separately."""
        rate = None if self.estimator is None else self.estimator.false_alarm_rate
        return self.min_group if rate is None else max(self.min_group, least_calibration(rate))

    # ---- verdicts ---------------------------------------------------------------------------------------------------

    def score_samples(self, X: Any, *, groups: Any = None) -> Array:
        """Return the scores of the detector, independent of groups: higher is more normal."""
        self._check_fitted()
        return self.estimator_.score_samples(self._split(X, groups, needs_groups=False)[0])

    @remembers_frame
    def detect(self, X: Any, *, groups: Any = None) -> Detections:
        """Return scores, p-values and verdicts of rows, each calibrated within its group.

        Parameters
        ----------
        X : array-like or frame of shape (n_rows, n_columns)
        groups : sequence of str or numbers, optional
            As in `fit`.

        Returns
        -------
        detections : Detections
            A named tuple of arrays of shape (n_rows,): `scores`, `p_values`, `is_anomaly` and `thresholds`.
        """
        self._check_fitted()
        with self._frozen():
            features, labels = self._split(X, groups)
            scores = self.estimator_.score_samples(features)
            logs = self.estimator_._score.to_log(scores)
            p_values, thresholds, bits = (np.empty(len(scores)) for _ in range(3))
            places: dict[Label, list[int]] = {}
            for place, label in enumerate(labels):
                places.setdefault(label if label in self._scores_of else None, []).append(place)
            for label, own in places.items():
                known = self._scores_of.get(label, self._rest)
                p_values[own], thresholds[own] = conformal_p_values(logs[own], known), self._threshold_by(known)
                bits[own] = tail_bits(logs[own], ~(scores[own] >= thresholds[own]), np.sort(known))
        return Detections(scores, p_values, ~(scores >= thresholds), thresholds, tail_bits=bits)

    def p_value(self, X: Any, **labels: Any) -> Array:
        """Return conformal p-values within groups: the probability that a new normal row of the group scores as low.

        If a row is exchangeable with the fitted rows of its group, its p-value is at most alpha with a probability of
        about alpha, for every alpha and every group. `groups` as in `fit`.
        """
        return self.detect(X, **labels).p_values

    def decision_function(self, X: Any, **labels: Any) -> Array:
        """Return the score minus the threshold of the row's group: negative for anomalies. `groups` as in `fit`."""
        found = self.detect(X, **labels)
        with np.errstate(invalid="ignore"):
            return np.where(found.scores == found.thresholds, 0.0, found.scores - found.thresholds)

    def predict(self, X: Any, **labels: Any) -> Array:
        """Return +1 for normal rows and -1 for anomalies. `groups` as in `fit`."""
        return np.where(self.detect(X, **labels).is_anomaly, -1, 1)

    def explain(self, X: Any, *, groups: Any = None) -> Explanations:
        """Return the explanations of the detector, with the verdicts of the groups."""
        found = self.detect(X, groups=groups)
        explained = self.estimator_.explain(self._split(X, groups)[0])
        return explained.set_verdicts(found.is_anomaly, found.p_values)

    def _threshold_by(self, ascending: Array) -> float:
        """Return the threshold score for ascending calibration scores."""
        forest = self.estimator_
        return float(forest._score.from_log(np.array(forest._policy.threshold(ascending.tolist()))))

    @property
    def groups_(self) -> list[Label]:
        """The labels of the groups that are calibrated separately."""
        self._check_fitted()
        return list(self._scores_of)

    @property
    def offsets_(self) -> dict[Label, float]:
        """The thresholds of the groups that are calibrated separately, by label."""
        self._check_fitted()
        return {label: self._threshold_by(known) for label, known in self._scores_of.items()}

    @property
    def offset_(self) -> float:
        """The threshold of all other rows."""
        self._check_fitted()
        return self._threshold_by(self._rest)

    @property
    def is_fitted(self) -> bool:
        """Whether the detector has learned anything."""
        return hasattr(self, "estimator_")

    def __sklearn_is_fitted__(self) -> bool:
        return self.is_fitted

    @property
    def n_points_(self) -> int:
        """Number of points held, or counted if the forest holds none."""
        self._check_fitted()
        return self.estimator_.n_points_

    @property
    def n_features_in_(self) -> int:
        """Number of features, including the column of groups only if it is a feature."""
        return int(self.estimator_.n_features_in_)

    @property
    def nbytes(self) -> int:
        """Size of the trees and of the points held, in bytes; 0 before fitting."""
        return self.estimator_.nbytes if self.is_fitted else 0

    # ---- groups -----------------------------------------------------------------------------------------------------

    def _split(self, X: Any, groups: Any, *, needs_groups: bool = True) -> tuple[Any, list[Label]]:
        """Return the features of rows, and their groups."""
        by = self.calibrate_by
        if by is None:
            if groups is None and needs_groups:
                raise ValueError("pass groups=, one for each row, or set calibrate_by to their column")
            return X, [] if groups is None else _as_labels(groups, len(X))
        if groups is not None:
            raise ValueError(f"the groups are in column {by!r} of X: omit groups, or set calibrate_by=None")
        column, rest = _without_column(X, by)
        return X if self.is_feature else rest, _as_labels(column, len(X))

    # ---- files ------------------------------------------------------------------------------------------------------

    def _state(self, *, is_compact: bool = False) -> tuple[Header, Arrays]:
        inner, arrays = self.estimator_._state(is_compact=is_compact)
        by = self.calibrate_by
        header = {
            "detector": type(self).__name__,
            "calibrate_by": int(by) if isinstance(by, Integral) else by,
            "is_feature": bool(self.is_feature),
            "min_group": int(self.min_group),
            "labels": {str(i): label for i, label in enumerate(self._scores_of)},
            "forest": inner,
        }
        own = {
            "groups/lengths": np.array([len(known) for known in self._scores_of.values()], np.int64),
            "groups/scores": np.concatenate([np.empty(0), *self._scores_of.values()]),
            "groups/rest": self._rest,
        }
        return header, {**own, **{f"forest/{name}": part for name, part in arrays.items()}}

    @classmethod
    def _of_state(cls, header: Header, arrays: Arrays) -> Self:
        _STATE(header, "")
        kind = _KINDS.get(header["forest"].get("detector"))
        if kind is None:
            raise ValueError(f"its forest is a {header['forest'].get('detector')}, which cannot be grouped")
        inner = {name.removeprefix("forest/"): part for name, part in arrays.items() if name.startswith("forest/")}
        own = {name: part for name, part in arrays.items() if not name.startswith("forest/")}
        forest = kind._of_state(header["forest"], inner)
        grouped = cls(
            clone(forest),
            calibrate_by=header["calibrate_by"],
            is_feature=header["is_feature"],
            min_group=header["min_group"],
        )
        labels = [header["labels"].get(str(i)) for i in range(len(header["labels"]))]
        lengths, scores, rest = (own.get(f"groups/{name}") for name in ("lengths", "scores", "rest"))
        if lengths is None or scores is None or rest is None or len(own) != 3:
            raise ValueError("it must have exactly the arrays groups/lengths, groups/scores and groups/rest")
        _check_groups(labels, lengths, scores, rest)
        grouped.estimator_, grouped._rest = forest, rest
        parts = np.split(scores, np.cumsum(lengths)[:-1]) if len(lengths) else []
        grouped._scores_of = dict(zip(labels, parts, strict=True))
        grouped._notes = header.get("notes", {})
        return grouped


def _check_groups(labels: list[Any], lengths: Array, scores: Array, rest: Array) -> None:
    """Raise ValueError if the groups in a file are invalid."""
    is_label = [isinstance(label, str | float) and label == label for label in labels]  # noqa: PLR0124 -- not NaN
    if not all(is_label) or len(set(labels)) < len(labels):
        raise ValueError("labels of groups must be distinct texts or numbers")
    if lengths.dtype != np.int64 or lengths.shape != (len(labels),) or (lengths < 1).any():
        raise ValueError("array groups/lengths: must be positive, one for each label")
    for name, part in (("scores", scores), ("rest", rest)):
        if part.dtype != np.float64 or part.ndim != 1 or np.isnan(part).any():
            raise ValueError(f"array groups/{name}: must be 1-D float64 without NaN")
    if lengths.sum() != len(scores):
        raise ValueError("array groups/scores: its length must be the sum of groups/lengths")
    ends = np.cumsum(lengths)
    groups = [*np.split(scores, ends[:-1]), rest]
    if not all(is_ascending(group, strictly=False) for group in groups):
        raise ValueError("calibration scores of groups must ascend")
    check_scores("groups", np.exp(np.minimum(np.append(scores, rest), 0.0)))


def _as_labels(values: Any, n_rows: int) -> list[Label]:
    """Return the groups of rows as str or float; None for no group."""
    if isinstance(values, str | bytes) or not hasattr(values, "__len__"):
        raise ValueError(f"groups must be one label for each of the {n_rows} rows; got {values!r}")
    if len(values) != n_rows:
        raise ValueError(f"there are {len(values)} groups for {n_rows} rows: pass one for each row")
    return [_as_label(value) for value in (values.tolist() if hasattr(values, "tolist") else values)]


def _as_label(value: Any) -> Label:
    if value is None or value != value:  # noqa: PLR0124 -- NaN, NaT
        return None
    return float(value) if isinstance(value, Real) else str(value)


def _without_column(X: Any, by: str | int) -> tuple[Any, Any]:
    """Return a column of a table, and the table without it."""
    names: Sequence[Any] | None = list(X.columns) if hasattr(X, "columns") else None
    if isinstance(by, str):
        if names is None or by not in names:
            there = "it has no column names" if names is None else f"it has {', '.join(map(repr, names[:20]))}"
            raise ValueError(f"calibrate_by={by!r} is not a column of X: {there}")
        return X[by], X.drop(columns=[by]) if hasattr(X, "iloc") else X.drop(by)
    if names is not None:
        if by >= len(names):
            raise ValueError(f"calibrate_by={by} is not a column of X, which has {len(names)} columns")
        return _without_column(X, names[by])
    table = np.asarray(X)
    if table.ndim != 2 or by >= table.shape[1]:
        raise ValueError(f"calibrate_by={by} is not a column of X, which has shape {table.shape}")
    return table[:, by], np.delete(table, by, axis=1)
