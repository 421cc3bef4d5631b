"""Monitor a stream for changes of its distribution, point by point."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from io import BytesIO
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.utils._param_validation import Interval, StrOptions

from polyaforest.detectors import SeriesMPF, StreamingMPF
from polyaforest.drift.changes import MIN_REFERENCE, Change, RunLengths, Trace
from polyaforest.forest.json_parameters import decode, encode, encode_columns
from polyaforest.forest.point_store import Key
from polyaforest.forest.thresholds import Detections
from polyaforest.kernels.arrays import Array
from polyaforest.storage.codec import pack, unpack
from polyaforest.storage.migrations import upgrade
from polyaforest.storage.modelfile import Arrays, Header, Place, read_model, write_model
from polyaforest.storage.state import reporting_invalid_model
from polyaforest.tables.categories import Categories, Codes, Texts
from polyaforest.tables.validation import (
    NamedRows,
    check_countable,
    feature_names,
    read_coded,
    read_keys,
    read_one_or_more_keys,
    read_stamps,
)
from polyaforest.util import schema
from polyaforest.util.durations import parse_duration
from polyaforest.util.locks import Guarded

if TYPE_CHECKING:
    from polyaforest.drift.follower import Follower

Detector: TypeAlias = StreamingMPF | SeriesMPF

_RELEARNS = "the model has started to relearn"
_KEEPS = "the model keeps to what it learned before"


class DriftMonitor(Guarded, BaseEstimator):
    """Monitor of a stream: whether, since when, where and how its distribution has changed.

    The first points are the reference. Trees grown on a sample of them count the reference and the points of recent
    windows of several lengths. Divergence of the counts is the evidence of a change; a point that arrives or leaves
    changes only the counts along its own paths. An alarm is raised when the evidence exceeds a threshold that is
    exceeded once in `false_alarms_every` points without a change.

    Parameters
    ----------
    reference : int, default=1024
        Number of points that the stream is compared with: the first ones, unless `fit` is given others. They should
        cover what recurs, such as a few days where days differ from nights.
    windows : "auto" or sequence of int, default="auto"
        Lengths of the recent windows, in points. Short windows detect large changes soon, long windows small changes.
        "auto" means the length of the reference, half of it, and so on down to 8.
    false_alarms_every : int, timedelta or str, default=100_000
        Expected time between false alarms: a number of points, or a duration such as "30 days" for points with times,
        which is converted at the rate of points in the reference.
    on_drift : {"report", "relearn", "keep"}, default="report"
        What to do about a lasting change. "report" leaves the detector unchanged, whose window adapts; "relearn"
        deletes the points before the change from it, and computes feature weights again; "keep" deletes the points
        since the change from it, and learns nothing until the stream returns to normal. The monitor itself adopts the
        points since the change as its new reference once there are enough, except with "keep".
    n_estimators : int, default=32
        Number of trees.
    categorical_features : "from_dtype", array-like of str, int or bool, or None, default="from_dtype"
        Columns that are categories, as for `StreamingMPF`: those of a categorical type, or names, positions or a mask;
        None for no column. Beside a detector, those of the detector.
    random_state : int or None, default=None

    Attributes
    ----------
    status_ : str
        "learning", "normal", "outlier" (of the last point), or the kind of the ongoing change.
    drift_detected : bool
        Whether a change was noticed at the last point.
    change_ : Change or None
        The ongoing change, as currently estimated.
    windows_ : ndarray of int, shape (K,)
        Lengths of the windows.
    evidence_ : ndarray of shape (K,)
        Natural logarithm of the Bayes factor of a change for each window, at the least.
    thresholds_ : ndarray of shape (K,)
        The evidence above which an alarm is raised.
    dispersions_ : ndarray of shape (K,)
        Factors by which the variance of counts in windows exceeds that of independent points, at least 1.
    n_seen_ : int
        Number of points followed so far.
    encoding_ : Categories or None
        The columns of categories, and the texts of those held.

    Notes
    -----
    Rules distinguish kinds of changes. A point is an *outlier* if a forest of the reference flags it while there is no
    alarm. An alarm is a *burst* until it has lasted for a sixteenth of the length of the reference, at least 64 points,
    and remains one if it ends before. After that it is a *scale change* if both tails of the feature that changed most
    became heavier, or both lighter; a *gradual drift* if the two halves of the points since the change differ from each
    other; else a *drift*. The stream *returns to normal* when the last points are more likely under the reference than
    under the changed distribution, by a factor of the number of points between false alarms.

    Examples
    --------
    >>> import numpy as np
    >>> from polyaforest.drift import DriftMonitor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(4000, 2))
    >>> X[3000:, 0] += 2.0
    >>> monitor = DriftMonitor(random_state=0)
    >>> changes = monitor.update(X)
    >>> changes[-1].kind, abs(changes[-1].start - 3000) < 5
    ('drift', True)
    """

    _not_copied: ClassVar[frozenset[str]] = Guarded._not_copied | {"_detector"}  # a copy has no detector
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "reference": [Interval(Integral, MIN_REFERENCE, None, closed="left")],
        "windows": [StrOptions({"auto"}), "array-like"],
        "false_alarms_every": [Interval(Real, 1, None, closed="left"), timedelta, str],
        "on_drift": [StrOptions({"report", "relearn", "keep"})],
        "n_estimators": [Interval(Integral, 1, None, closed="left")],
        "categorical_features": ["array-like", StrOptions({"from_dtype"}), Codes, None],
        "random_state": [Interval(Integral, 0, None, closed="left"), None],
    }
    _follower: Follower
    _detector: Detector | None = None
    encoding_: Categories | None = None
    _is_acting = False  # whether points are being deleted from the detector because of a change
    missing = "marginalise"  # for messages about rows

    def __init__(
        self,
        *,
        reference: int = 1024,
        windows: Sequence[int] | str = "auto",
        false_alarms_every: float | timedelta | str = 100_000,
        on_drift: str = "report",
        n_estimators: int = 32,
        categorical_features: Any = "from_dtype",
        random_state: int | None = None,
    ) -> None:
        self.reference = reference
        self.windows = windows
        self.false_alarms_every = false_alarms_every
        self.on_drift = on_drift
        self.n_estimators = n_estimators
        self.categorical_features = categorical_features
        self.random_state = random_state

    # ---- following a stream ------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None, *, keys: Any = None, times: Any = None) -> Self:
        """Restart with the rows of a table as the reference, however many they are; ignore `y`.

        Parameters
        ----------
        X, keys, times
            As in `update`.
        """
        with self._drafted() as draft:
            rows, stamps, names = draft._read_first(X, keys, times)
            if len(rows) < MIN_REFERENCE:
                raise ValueError(f"a reference of {len(rows)} rows is too small: give at least {MIN_REFERENCE}")
            draft._follower = draft._new_follower(len(rows))
            draft._follower.follow(rows, stamps, names)
        return self

    def update(self, X: Any, *, keys: Any = None, times: Any = None) -> list[Change]:
        """Follow the stream over more rows; return its changes.

        The result does not depend on how rows are split into chunks.

        Parameters
        ----------
        X : array-like or frame of shape (n_rows, n_features)
            NaN where values are missing: a missing value counts as one below all others, a missing category as one
            more category.
        keys : sequence of int or str, optional
            Keys to `delete` the rows by; by default the arrival numbers, from 0.
        times : array-like of float or datetime, optional
            Times of the rows, for durations and the dates of changes.

        Returns
        -------
        changes : list of Change
            Changes that were noticed, found to be of another kind, ended or adopted at one of the rows.
        """
        return [change for part in self._follow(X, keys, times) for change in part.changes]

    def follow(self, X: Any, *, keys: Any = None, times: Any = None) -> Trace:
        """Follow the stream over more rows, as `update`; return also the evidence and status after each.

        Parameters
        ----------
        X, keys, times
            As in `update`.

        Returns
        -------
        trace : Trace
            A named tuple: `evidence` and `thresholds` of shape (n_rows, n_windows), `status`, an array of str of shape
            (n_rows,), the list `changes`, and `first`, the arrival number of the first row.
        """
        empty = Trace.without_windows(np.empty(0, dtype=object), self.n_seen_)
        return Trace.joined([empty, *self._follow(X, keys, times, flag_outliers=True)])

    def delete(self, keys: Any) -> Self:
        """Delete points: all counts, and the evidence, become those of a stream without them.

        The windows then extend further back, and the reference shrinks. Changes reported before stay unchanged.

        Parameters
        ----------
        keys : int, str, or a sequence of them
            If a key is not held, raise KeyError and delete nothing.
        """
        self._check_fitted()
        wanted = read_one_or_more_keys(keys)
        with self._changing():
            held = {*self._follower.points.keys, *self._follower.reference.keys}
            unknown = [key for key in wanted if key not in held]
            if unknown:
                raise KeyError(f"no point with key {unknown[0]!r} is held. Nothing was deleted")
            self._follower.delete(wanted)
        return self

    def forget(self, keys: Iterable[Key]) -> None:
        """Delete the points of these keys that are held."""
        if hasattr(self, "_follower") and not self._is_acting:
            with self._changing():
                self._follower.delete(list(keys))

    def run_lengths(self) -> RunLengths:
        """Return the run-length posterior: the number of points since a change."""
        self._check_learned()
        with self._frozen():
            return self._follower.run_lengths()

    def thresholds_for(self, points_between_alarms: float) -> Array:
        """Return the thresholds for another rate of false alarms, for each window, (K,).

        Compare them with the evidence of `follow` to count alarms at that rate. They hold for at least 128 points
        between false alarms.

        Parameters
        ----------
        points_between_alarms : float
            Expected number of points between false alarms.
        """
        self._check_learned()
        with self._frozen():
            known = self._follower.thresholds
            levels: Array = known.levels + known.slopes * np.log(points_between_alarms / self._follower.every)
            return levels

    def _follow(self, X: Any, keys: Any, times: Any, *, flag_outliers: bool = False) -> list[Trace]:
        """Follow the stream over rows; return the traces of its parts."""
        if not hasattr(self, "_follower"):
            with self._drafted() as draft:
                read = draft._read_first(X, keys, times)
                draft._follower = draft._new_follower(int(self.reference))
                return draft._follower.follow(*read, flag_outliers=flag_outliers)
        read = self._read(X, keys, times)
        with self._changing():
            return self._follower.follow(*read, flag_outliers=flag_outliers)

    def _new_follower(self, n_reference: int) -> Follower:
        from polyaforest.drift.follower import Follower, FollowerSettings

        lengths = None if isinstance(self.windows, str) else _read_lengths(self.windows, n_reference)
        entropy = secrets.randbits(128) if self.random_state is None else int(self.random_state)
        keeps, n_trees = self.on_drift == "keep", int(self.n_estimators)
        settings = FollowerSettings(
            n_reference, lengths, *_read_every(self.false_alarms_every), keeps, n_trees, entropy
        )
        return Follower(settings, self.n_features_in_, feature_names(self), self.encoding_)

    # ---- beside a detector -------------------------------------------------------------------------------------------

    @classmethod
    def beside(cls, detector: Detector, **parameters: Any) -> Self:
        """Return the monitor that follows the stream of a detector: the one saved with it, or a new one.

        The monitor is saved with the detector, and points deleted from the detector are deleted from the monitor.

        Parameters
        ----------
        detector : StreamingMPF or SeriesMPF
        **parameters
            Parameters of a new monitor. Its columns of categories are those of the detector.
        """
        known = detector.companion
        monitor = cls.of_bytes(known) if isinstance(known, bytes) else known
        if monitor is None:
            monitor = cls(**{**parameters, "categorical_features": _categories_of(detector)})
        if not isinstance(monitor, cls):
            raise TypeError(f"the detector already has a {type(monitor).__name__} beside it")
        monitor._detector = detector
        detector.companion = monitor
        return monitor

    def detect_then_learn(
        self, X: Any, *, keys: Any = None, times: Any = None, explain: bool = False
    ) -> tuple[Detections, list[Change]]:
        """Score and learn rows with the detector, follow them, and handle changes according to `on_drift`.

        The result does not depend on how rows are split into chunks.

        Parameters
        ----------
        X, keys, times, explain
            As in the detector's `detect_then_learn`.

        Returns
        -------
        detections : Detections
            Results of the detector.
        changes : list of Change
            As in `update`.
        """
        detector = self._detector
        if detector is None:
            raise ValueError("this monitor has no detector: create it with DriftMonitor.beside(detector)")
        is_new = not hasattr(self, "_follower")
        rows, stamps, names = (self._read_first if is_new else self._read)(X, keys, times)
        if is_new:
            self._follower = self._new_follower(int(self.reference))
        detections, changes, start = [], list[Change](), 0
        while start < len(rows):
            checkpoint = self._follower.checkpoint()
            is_learned = self.on_drift != "keep" or self._follower.ongoing is None
            known = _keys_in(detector, names[start:], self._follower.n_seen, is_learned)
            with self._changing():
                trace = self._follower.advance(rows[start:], stamps[start:], known)
            part = slice(start, start + len(trace.status))
            table, when = self._as_table(rows[part]), None if times is None else stamps[part]
            try:
                if is_learned:
                    labels = None if keys is None else names[part]
                    found = detector.detect_then_learn(table, keys=labels, times=when, explain=explain)
                else:
                    found = detect_only(detector, table, when, explain=explain)
            except BaseException:
                with self._changing():
                    self._follower.roll_back(checkpoint)
                    if not self._follower.n_seen:
                        del self._follower
                raise
            detections.append(found)
            changes += [self._act(detector, change) for change in trace.changes]
            start = part.stop
        return Detections.joined(detections), changes

    def _as_table(self, rows: Array) -> Any:
        """Return rows in the form that the detector takes."""
        names, encoding = getattr(self, "feature_names_in_", None), self.encoding_
        ordered = rows if encoding is None else rows[:, encoding.places]
        if names is not None:
            return NamedRows(ordered, names, encoding)
        if encoding is None or isinstance(self.categorical_features, Codes):
            return ordered
        return encoding.decoded(ordered)

    def _act(self, detector: Detector, change: Change) -> Change:
        """Handle a change according to `on_drift`; return it with the action taken."""
        follower, is_lasting = self._follower, change.kind != "burst" and change.state != "adopted"
        since = follower.points.keys[follower.points.place(change.start) :]
        self._is_acting = True  # the monitor keeps points that the detector deletes now
        try:
            if self.on_drift == "relearn" and is_lasting and not change.action:
                _relearn(detector, since)
                return follower.note_action(_RELEARNS) if follower.ongoing else change._replace(action=_RELEARNS)
            if self.on_drift == "keep" and change.state == "begun" and not change.action:
                _unlearn(detector, since)
                return follower.note_action(_KEEPS)
        finally:
            self._is_acting = False
        return change

    # ---- results -----------------------------------------------------------------------------------------------------

    @property
    def status_(self) -> str:
        """The status of the stream after the last point."""
        if not hasattr(self, "_follower"):
            return "learning"
        with self._frozen():
            follower = self._follower
            can_be_outlier = follower.status == "normal" and len(follower.points)
            is_outlier = can_be_outlier and follower.is_outlier(follower.points.values[-1:])[0]
            return "outlier" if is_outlier else follower.status

    @property
    def drift_detected(self) -> bool:
        """Whether a change was noticed at the last point."""
        change = self.change_
        return change is not None and change.noticed == self.n_seen_ - 1

    @property
    def change_(self) -> Change | None:
        """The ongoing change, as currently estimated."""
        ongoing = self._follower.ongoing if hasattr(self, "_follower") else None
        return None if ongoing is None else ongoing.change

    @property
    def windows_(self) -> Array:
        """Lengths of the windows."""
        self._check_learned()
        return self._follower.windows.lengths.copy()

    @property
    def evidence_(self) -> Array:
        """The evidence of a change in each window."""
        self._check_learned()
        with self._frozen():
            return self._follower.windows.evidence

    @property
    def thresholds_(self) -> Array:
        """The evidence above which an alarm is raised."""
        self._check_learned()
        return self._follower.thresholds.levels.copy()

    @property
    def dispersions_(self) -> Array:
        """Factors by which the variance of counts exceeds that of independent points."""
        self._check_learned()
        return self._follower.thresholds.dispersions.copy()

    @property
    def n_seen_(self) -> int:
        """Number of points followed so far."""
        return self._follower.n_seen if hasattr(self, "_follower") else 0

    def holds(self, key: Key) -> bool:
        """Return whether a point of this key is held, in the reference or among the recent points."""
        follower = getattr(self, "_follower", None)
        return follower is not None and (key in follower.points.keys or key in follower.reference.keys)

    # ---- files -------------------------------------------------------------------------------------------------------

    def save(self, path: Place) -> None:
        """Write the monitor to a file; after `load` it continues bit for bit.

        Parameters
        ----------
        path : str, path-like or binary file
        """
        with self._contents() as (header, arrays):
            write_model(path, header, arrays)

    def to_bytes(self) -> bytes:
        """Return the monitor as bytes for `of_bytes`."""
        with self._contents() as (header, arrays):
            return pack(header, arrays)

    @classmethod
    def load(cls, path: Place) -> Self:
        """Return the monitor saved in a file; raise `ModelFileError` if it is damaged or holds something else."""
        header, arrays = read_model(path)
        with reporting_invalid_model(path):
            return cls._of_state(*upgrade(header, arrays))

    @classmethod
    def of_bytes(cls, block: bytes) -> Self:
        """Return the monitor from the bytes of `to_bytes`; raise `ModelFileError` if they are damaged."""
        header, arrays = unpack(block)
        with reporting_invalid_model(BytesIO(block)):
            return cls._of_state(*upgrade(header, arrays))

    @contextmanager
    def _contents(self) -> Iterator[tuple[Header, Arrays]]:
        """Yield the state, unchanged until it is written."""
        self._check_fitted()
        self._validate_params()  # invalid parameters could not be read again
        with self._frozen():
            yield _state_of(self)

    @classmethod
    def _of_state(cls, header: Header, arrays: Arrays) -> Self:
        _STATE(header, "")
        if header["detector"] != cls.__name__:
            raise ValueError(f"it holds a {header['detector']}, not a {cls.__name__}")
        schema.parameters(cls._get_param_names())(header["parameters"], "parameters")
        given = {name: decode(value) for name, value in header["parameters"].items()}
        if not isinstance(given.get("windows", ""), str):
            given["windows"] = [int(length) for length in given["windows"]]
        monitor = cls(**given)
        monitor._check_parameters()
        _restore(monitor, header, arrays)
        return monitor

    # ---- input -------------------------------------------------------------------------------------------------------

    def _read_first(self, X: Any, keys: Any, times: Any) -> tuple[Array, Array, list[Key | None]]:
        """Return the first rows of a stream, with their times and keys."""
        self._check_parameters()
        rows = read_coded(self, X, reset=True, allow_missing=True).rows
        return rows, *self._read_labels(len(rows), keys, times)

    def _read(self, X: Any, keys: Any, times: Any) -> tuple[Array, Array, list[Key | None]]:
        """Return more rows, with their times and keys."""
        rows, texts = read_coded(self, X, reset=False, at_least=0, allow_missing=True)
        check_countable(self._follower.n_seen, len(rows))
        labels = self._read_labels(len(rows), keys, times)
        self._add_texts(texts)
        return rows, *labels

    def _add_texts(self, texts: Texts) -> None:
        """Add the texts of categories."""
        if self.encoding_ is None or not texts:
            return
        encoding = self.encoding_.with_texts(texts)
        if encoding.is_crowded:
            encoding = encoding.kept(self._follower.rows).with_texts(texts)
        self.encoding_ = self._follower.encoding = encoding

    def _read_labels(self, n_rows: int, keys: Any, times: Any) -> tuple[Array, list[Key | None]]:
        _, is_duration = _read_every(self.false_alarms_every)
        if is_duration and times is None:
            raise ValueError(
                f"false_alarms_every={self.false_alarms_every!r} is a duration: pass times, one per row, or give a "
                "number of points"
            )
        return read_stamps(times, n_rows, needed=False), read_keys(keys, n_rows)

    def _check_parameters(self) -> None:
        self._validate_params()
        _read_every(self.false_alarms_every)

    def _check_fitted(self) -> None:
        if not hasattr(self, "_follower"):
            raise NotFittedError("this DriftMonitor has not followed any points yet: call update or fit first")

    def _check_learned(self) -> None:
        self._check_fitted()
        if self._follower.is_learning:
            n, n_all = len(self._follower.reference), self._follower.settings.n_reference
            raise NotFittedError(f"this DriftMonitor is still learning its reference: it has {n:,} of {n_all:,} points")


# ---- state -----------------------------------------------------------------------------------------------------------


_STATE = schema.record(
    {
        "detector": schema.text,
        "parameters": schema.mapping,
        "n_features": schema.n_features,
        "feature_names": schema.either(schema.nothing, schema.names),
        "monitor": schema.mapping,
        "categories": schema.many(schema.whole(0, 2**31 - 1)),  # columns of categories; absent without any
    },
    optional=["categories"],
)


def _state_of(monitor: DriftMonitor) -> tuple[Header, Arrays]:
    """Return the header and the arrays of a fitted monitor."""
    state, arrays = monitor._follower.state()
    names, encoding = getattr(monitor, "feature_names_in_", None), monitor.encoding_
    header = {
        "detector": type(monitor).__name__,
        "parameters": _encode_parameters(monitor.get_params(deep=False)),
        "n_features": monitor.n_features_in_,
        "feature_names": None if names is None else [str(name) for name in names],
        "monitor": state,
    }
    if encoding is not None:
        header["categories"] = list(encoding.columns)
        arrays["texts"] = encoding.kept(monitor._follower.rows).pack_texts()
    return header, arrays


def _restore(monitor: DriftMonitor, header: Header, arrays: Arrays) -> None:
    """Set the fitted attributes of a monitor; raise ValueError if the state is invalid."""
    from polyaforest.drift.follower import Follower

    monitor.n_features_in_, names = header["n_features"], header["feature_names"]
    if names is not None:
        if len(names) != monitor.n_features_in_:
            raise ValueError("the number of its feature names is not that of its features")
        monitor.feature_names_in_ = np.array(names, dtype=object)
    if ("texts" in arrays) != ("categories" in header):
        raise ValueError("it has texts of categories, but no columns of them, or the other way round")
    own = {name: part for name, part in arrays.items() if name != "texts"}
    if "categories" in header:
        monitor.encoding_ = Categories.of_state(header["categories"], monitor.n_features_in_, arrays["texts"])
    known = monitor.n_features_in_, feature_names(monitor), monitor.encoding_
    monitor._follower = Follower.of_state(header["monitor"], own, *known)


def _encode_parameters(given: dict[str, Any]) -> dict[str, Any]:
    """Return parameters as JSON can hold them; columns of categories only if they are not the default."""
    columns = encode_columns(given.pop("categorical_features"))
    stored = {name: encode(value) for name, value in given.items()}
    return stored if columns == "from_dtype" else {**stored, "categorical_features": columns}


def _read_every(every: float | timedelta | str) -> tuple[float, bool]:
    """Return the points or seconds between false alarms, and whether they are seconds."""
    if not isinstance(every, timedelta | str):
        return float(every), False
    seconds = parse_duration(every) if isinstance(every, str) else every.total_seconds()
    if not seconds > 0:
        raise ValueError(f"false_alarms_every must be a positive duration; got {every!r}")
    return seconds, True


def _read_lengths(windows: Sequence[int], n_reference: int) -> tuple[int, ...]:
    """Return validated lengths of windows, ascending."""
    lengths = list(windows)
    is_valid = lengths and all(isinstance(n, Integral) and not isinstance(n, bool) and n >= 2 for n in lengths)
    if not is_valid or len(set(lengths)) < len(lengths):
        raise ValueError(f"windows must be different numbers of points, at least 2 each; got {windows!r}")
    if max(lengths) > n_reference:
        raise ValueError(
            f"a window of {max(lengths):,} points is longer than the reference of {n_reference:,}: make the reference "
            "longer, or the window shorter"
        )
    return tuple(sorted(int(n) for n in lengths))


# ---- detectors -------------------------------------------------------------------------------------------------------


def _categories_of(detector: Detector) -> Any:
    """Return the parameter `categorical_features` that gives a monitor the categories of a detector."""
    given = getattr(detector, "categorical_features", None)  # a series has only numbers
    if not detector.is_fitted or isinstance(given, Codes):
        return given
    encoding = getattr(detector, "encoding_", None)
    return None if encoding is None else list(encoding.columns)


def _keys_in(detector: Detector, names: list[Key | None], n_followed: int, is_learned: bool) -> list[Key | None]:
    """Return the keys of the next rows in a detector, or distinct ones if it does not learn them."""
    n = detector.n_seen_ if detector.is_fitted else 0
    return [
        name if name is not None else n + i if is_learned else f"not learned: {n_followed + i}"
        for i, name in enumerate(names)
    ]


def _relearn(detector: Detector, new: Iterable[Key]) -> None:
    """Delete all but the `new` points from a detector, and compute feature weights again."""
    known = set(new)
    old = [key for key in detector.keys_ if key not in known]
    if old:
        detector.delete(old)
    if isinstance(detector, StreamingMPF) and detector.n_points_:
        detector.rebuild()  # a series does so itself when the points behind its weights are deleted


def _unlearn(detector: Detector, new: Iterable[Key]) -> None:
    """Delete the `new` points from a detector."""
    held = set(detector.keys_)
    unwanted = [key for key in new if key in held]
    if unwanted:
        detector.delete(unwanted)


def detect_only(detector: Detector, rows: Array | NamedRows, times: Array | None, *, explain: bool) -> Detections:
    """Return the results for rows without learning them."""
    if not detector.is_fitted or not detector.n_points_:
        nothing = np.full(len(rows), np.nan)
        return Detections(nothing, nothing, np.zeros(len(rows), np.bool_), nothing)
    detected = detector.detect(rows, times=times) if isinstance(detector, SeriesMPF) else detector.detect(rows)
    flagged = np.flatnonzero(detected.is_anomaly).tolist()
    if not explain or not flagged:
        return detected
    if isinstance(detector, SeriesMPF):
        why = detector.explain(rows, times=times, rows=flagged)
    else:
        why = detector.explain(rows[np.array(flagged)])
    return detected._replace(explanations=dict(zip(flagged, why, strict=True)))
