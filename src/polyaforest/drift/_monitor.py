"""Watch a stream for changes of its distribution, point by point."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from io import BytesIO
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.utils._param_validation import Interval, StrOptions

from polyaforest.core import schema
from polyaforest.core.arrays import Array
from polyaforest.core.categories import Categories, Codes, Texts
from polyaforest.core.locks import Guarded
from polyaforest.core.validation import (
    NamedRows,
    check_countable,
    feature_names,
    read_coded,
    read_keys,
    read_one_or_more_keys,
    read_stamps,
)
from polyaforest.decision.thresholds import Detections
from polyaforest.drift._change import LEAST, Change
from polyaforest.drift._runs import RunLengths
from polyaforest.forest.point_store import Key
from polyaforest.persistence.codec import pack, unpack
from polyaforest.persistence.modelfile import Arrays, Header, Place, read_model, write_model
from polyaforest.persistence.state import decode, encode, encode_columns, refusing

if TYPE_CHECKING:
    from polyaforest.drift._follower import Follower, Step
    from polyaforest.estimators import SeriesMPF, StreamingMPF

_UNITS = {"second": 1, "sec": 1, "s": 1, "minute": 60, "min": 60, "m": 60, "hour": 3600, "h": 3600, "day": 86400,
          "d": 86400, "week": 604800, "w": 604800}  # fmt: skip
_DURATION = re.compile(r"(\d+(?:\.\d+)?) *([a-z]+?)s?", re.IGNORECASE)


class Trace(NamedTuple):
    """What a monitor made of rows, one after another."""

    evidence: Array  # float64 (n, K): log evidence of each window that the stream has changed; NaN while it learns
    bars: Array  # float64 (n, K): the evidence from which on there is an alarm
    status: Array  # of str, (n,): "learning", "normal", "outlier", or the kind of the change that goes on
    changes: list[Change]
    first: int  # the number of the arrival of the first row

    @classmethod
    def joined(cls, parts: Sequence[Trace]) -> Trace:
        """Return the trace of rows that were followed in several parts, all with the same windows."""
        evidence, bars, status = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("evidence", "bars", "status")
        )
        return cls(evidence, bars, status, [change for part in parts for change in part.changes], parts[0].first)


class DriftMonitor(Guarded, BaseEstimator):
    """Monitor of a stream: whether, since when, where and in which way its distribution has changed.

    The first points are the reference. Trees grown on some of them count the reference and the points of recent windows
    of several lengths; a point that comes or goes changes the counts along its own paths alone. Counts that part say
    how much evidence there is of a change, and it is an alarm if there is more than there would be, without a change,
    once in `false_alarms_every` points.

    Parameters
    ----------
    reference : int, default=1024
        Points that the stream is compared with: the first so many, unless `fit` is given others. They should cover what
        recurs, such as a few days where days differ from nights.
    windows : "auto" or sequence of int, default="auto"
        Lengths of the recent windows, in points: short ones notice large changes soon, long ones small changes at all.
        "auto" means as many points as the reference has, half as many, and so on down to 8.
    false_alarms_every : int, timedelta or str, default=100_000
        Expected time between false alarms: a number of points, or a duration, as in "30 days", for points with times;
        how many points come in that time is taken from the reference.
    on_drift : {"report", "relearn", "keep"}, default="report"
        What to do about a change that lasts. "report" leaves the detector alone, whose window gets used to it;
        "relearn" deletes from it what came before the change, and weighs its features anew; "keep" deletes from it what
        came since, and learns nothing until the stream returns to normal. The monitor itself takes what came since the
        change for its new reference once that is as long, unless it is to "keep" the old one.
    n_estimators : int, default=32
        Number of trees.
    categorical_features : "from_dtype", array-like of str, int or bool, or None, default="from_dtype"
        Which columns are categories, as for `StreamingMPF`: those of a categorical type, those of these names or
        places, or, as a mask, those that are True; None for none. Beside a detector, those of the detector.
    random_state : int or None, default=None

    Attributes
    ----------
    status_ : str
        "learning", "normal", "outlier" (of the last point), or the kind of the change that goes on.
    drift_detected : bool
        Whether a change was noticed with the last point.
    change_ : Change or None
        The change that goes on, as far as it is known.
    windows_ : ndarray of int, shape (K,)
        Lengths of the windows.
    evidence_ : ndarray of shape (K,)
        Natural logarithm of the Bayes factor of a change, for each window, at the least.
    bars_ : ndarray of shape (K,)
        The evidence from which on there is an alarm.
    dispersions_ : ndarray of shape (K,)
        By which factor counts in windows vary more than those of independent points; 1 if they do not.
    n_seen_ : int
        Points followed so far.
    encoding_ : Categories or None
        Which columns are categories, and the texts of those that are held.

    Notes
    -----
    Kinds of changes are told apart by rules. A point is an *outlier* if a forest of the reference flags it while there
    is no alarm. An alarm is a *burst* until what has changed has lasted for a sixteenth as many points as the reference
    has, at least 64, and stays one if it is over by then. From then on it is a *scale change* if both tails of the
    feature that changed most became heavier, or both lighter; a *gradual drift* if the two halves of what came since
    the change differ from each other; else a *drift*. There is a *return to normal* when the last points are
    likelier under the reference than under what came since the change, by a factor of as many as there are points
    between false alarms.

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

    _not_copied: ClassVar[frozenset[str]] = Guarded._not_copied | {"_detector"}  # a copy is beside nothing yet
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "reference": [Interval(Integral, LEAST, None, closed="left")],
        "windows": [StrOptions({"auto"}), "array-like"],
        "false_alarms_every": [Interval(Real, 1, None, closed="left"), timedelta, str],
        "on_drift": [StrOptions({"report", "relearn", "keep"})],
        "n_estimators": [Interval(Integral, 1, None, closed="left")],
        "categorical_features": ["array-like", StrOptions({"from_dtype"}), Codes, None],
        "random_state": [Interval(Integral, 0, None, closed="left"), None],
    }
    _follower: Follower
    _detector: StreamingMPF | SeriesMPF | None = None
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
        """Start anew, with the rows of a table as the reference, however many they are; `y` is ignored.

        Parameters
        ----------
        X, keys, times
            As in `update`.
        """
        with self._drafted() as draft:
            rows, stamps, names = draft._begin(X, keys, times)
            if len(rows) < LEAST:
                raise ValueError(f"a reference of {len(rows)} rows is too small: give at least {LEAST}")
            draft._follower = draft._new_follower(len(rows))
            draft._pass_on(rows, stamps, names)
        return self

    def update(self, X: Any, *, keys: Any = None, times: Any = None) -> list[Change]:
        """Follow the stream over more rows; return what has changed.

        The result is the same row by row or in chunks of any size.

        Parameters
        ----------
        X : array-like or frame of shape (n_rows, n_features)
            NaN where values are missing: a missing value counts as one below all others, a missing category as one
            more category.
        keys : sequence of int or str, optional
            Names by which to `delete` the rows later; a row without one gets the number of its arrival, from 0.
        times : array-like of float or datetime, optional
            When each row happened, for durations and the dates of changes.

        Returns
        -------
        changes : list of Change
            Those that were noticed, turned out to be of another kind, ended or settled with one of the rows.
        """
        return [step.change for step, _ in self._take_in(X, keys, times) if step.change is not None]

    def follow(self, X: Any, *, keys: Any = None, times: Any = None) -> Trace:
        """Follow the stream over more rows, as `update`; return evidence and status after each, too.

        Parameters
        ----------
        X, keys, times
            As in `update`.

        Returns
        -------
        trace : Trace
            A named tuple: `evidence` and `bars` of shape (n_rows, n_windows), `status`, an array of str of shape
            (n_rows,), the list `changes`, and `first`, the number of the first row in the stream.
        """
        first = self.n_seen_
        return _joined(self._take_in(X, keys, times, tells_outliers=True), first)

    def delete(self, keys: Any) -> Self:
        """Delete points: afterwards all counts, and the evidence, are what they would be had the points never come.

        A point that is deleted leaves the windows, which reach one point further back instead, or the reference, which
        is one point smaller from then on. What was found before stays as it was.

        Parameters
        ----------
        keys : int, str, or a sequence of them
            If one is not held, a KeyError says so and nothing is deleted.
        """
        self._refuse_unfitted()
        wanted = read_one_or_more_keys(keys)
        with self._changing():
            held = {*self._follower.points.keys, *self._follower.reference.keys}
            unknown = [key for key in wanted if key not in held]
            if unknown:
                raise KeyError(f"no point with key {unknown[0]!r} is held. Nothing was deleted")
            self._follower.delete(wanted)
        return self

    def forget(self, keys: Iterable[Key]) -> None:
        """Delete those points of these keys that are held, if any."""
        if hasattr(self, "_follower") and not self._is_acting:
            with self._changing():
                self._follower.delete(list(keys))

    def run_lengths(self) -> RunLengths:
        """Return how many of the last points may have come since a change: the run-length posterior."""
        self._refuse_learning()
        with self._frozen():
            return self._follower.run_lengths()

    def bars_for(self, points_between_alarms: float) -> Array:
        """Return the evidence from which on there would be an alarm at another rate, for each window, (K,).

        With `follow`, it tells which alarms there would have been. Bars are right for 128 points between false alarms
        or more.

        Parameters
        ----------
        points_between_alarms : float
            Expected number of points between false alarms.
        """
        self._refuse_learning()
        with self._frozen():
            known = self._follower.bars
            bars: Array = known.bars + known.slopes * np.log(points_between_alarms / self._follower.every)
            return bars

    # ---- beside a detector -------------------------------------------------------------------------------------------

    @classmethod
    def beside(cls, detector: StreamingMPF | SeriesMPF, **parameters: Any) -> Self:
        """Return the monitor that follows the stream of a detector: the one saved with it, or a new one.

        It is saved with the detector from then on, and points that are deleted from the detector leave it too.

        Parameters
        ----------
        detector : StreamingMPF or SeriesMPF
        **parameters
            Those of a new monitor. Its columns of categories are those of the detector.
        """
        known = detector.companion
        monitor = cls.of_bytes(known) if isinstance(known, bytes) else known
        if monitor is None:
            monitor = cls(**{**parameters, "categorical_features": _columns_of(detector)})
        if not isinstance(monitor, cls):
            raise TypeError(f"the detector has a {type(monitor).__name__} beside it already")
        monitor._detector = detector
        detector.companion = monitor
        return monitor

    def detect_then_learn(
        self, X: Any, *, keys: Any = None, times: Any = None, explain: bool = False
    ) -> tuple[Detections, list[Change]]:
        """Let the detector beside it judge and learn rows, follow them, and do about changes what `on_drift` says.

        The result is the same row by row or in chunks of any size.

        Parameters
        ----------
        X, keys, times, explain
            As in the detector's `detect_then_learn`.

        Returns
        -------
        detections : Detections
            As the detector's.
        changes : list of Change
            As of `update`.
        """
        from polyaforest.drift._action import detect_only

        detector = self._detector
        if detector is None:
            raise ValueError("there is no detector beside this monitor: make it with DriftMonitor.beside(detector)")
        is_new = not hasattr(self, "_follower")
        rows, stamps, names = (self._begin if is_new else self._read)(X, keys, times)
        if is_new:
            self._follower = self._new_follower(int(self.reference))
        answers, changes, start = [], list[Change](), 0
        while start < len(rows):
            mark, is_learned = self._follower.mark(), self._is_learning_allowed
            known = self._keys_beside(detector, names[start:], is_learned)
            with self._changing():
                step = self._follower.advance(rows[start:], stamps[start:], known)
            part = slice(start, start + len(step.status))
            some = self._as_table(rows[part])
            when = None if times is None else stamps[part]
            try:
                if is_learned:
                    labels = None if keys is None else names[part]
                    answers.append(detector.detect_then_learn(some, keys=labels, times=when, explain=explain))
                else:
                    answers.append(detect_only(detector, some, when, explain=explain))
            except BaseException:
                with self._changing():
                    self._follower.go_back(mark)
                    if not self._follower.n_seen:
                        del self._follower
                raise
            if step.change is not None:
                changes.append(self._act(detector, step.change))
            start = part.stop
        return Detections.joined(answers), changes

    def _as_table(self, rows: Array) -> Any:
        """Return rows as the detector takes them."""
        names, encoding = getattr(self, "feature_names_in_", None), self.encoding_
        ordered = rows if encoding is None else rows[:, encoding.places]
        if names is not None:
            return NamedRows(ordered, names, encoding)
        if encoding is None or isinstance(self.categorical_features, Codes):
            return ordered
        return encoding.decoded(ordered)

    def _keys_beside(
        self, detector: StreamingMPF | SeriesMPF, names: list[Key | None], is_learned: bool
    ) -> list[Key | None]:
        """Return the keys that the next rows have in the detector, and others for rows that it does not learn."""
        n, seen = detector.n_seen_ if detector.is_fitted else 0, self._follower.n_seen
        return [
            name if name is not None else n + i if is_learned else f"not learned: {seen + i}"
            for i, name in enumerate(names)
        ]

    @property
    def _is_learning_allowed(self) -> bool:
        return self.on_drift != "keep" or self._follower.open is None

    def _act(self, detector: StreamingMPF | SeriesMPF, change: Change) -> Change:
        """Do about a change what `on_drift` says; return it with what is done."""
        from polyaforest.drift import _action

        follower = self._follower
        is_lasting = change.kind != "burst" and change.state != "settled"
        since = follower.points.keys[follower.points.place(change.start) :]
        self._is_acting = True  # what the detector deletes now stays with the monitor
        try:
            if self.on_drift == "relearn" and is_lasting and not change.action:
                _action.relearn(detector, since)
                return follower.note(_action.RELEARNS) if follower.open else change._replace(action=_action.RELEARNS)
            if self.on_drift == "keep" and change.state == "begun" and not change.action:
                _action.unlearn(detector, since)
                return follower.note(_action.KEEPS)
        finally:
            self._is_acting = False
        return change

    # ---- results -----------------------------------------------------------------------------------------------------

    @property
    def status_(self) -> str:
        """What the stream is like now."""
        if not hasattr(self, "_follower"):
            return "learning"
        with self._frozen():
            follower = self._follower
            is_outlier = (
                follower.status == "normal"
                and len(follower.points)
                and follower.is_outlier(follower.points.values[-1:])[0]
            )
            return "outlier" if is_outlier else follower.status

    @property
    def drift_detected(self) -> bool:
        """Whether a change was noticed with the last point."""
        change = self.change_
        return change is not None and change.noticed == self.n_seen_ - 1

    @property
    def change_(self) -> Change | None:
        """The change that goes on, as far as it is known."""
        if not hasattr(self, "_follower") or self._follower.open is None:
            return None
        return self._follower.open.change

    @property
    def windows_(self) -> Array:
        """Lengths of the windows."""
        self._refuse_learning()
        return self._follower.windows.lengths.copy()

    @property
    def evidence_(self) -> Array:
        """The evidence of each window that the stream has changed."""
        self._refuse_learning()
        with self._frozen():
            return self._follower.windows.evidence

    @property
    def bars_(self) -> Array:
        """The evidence from which on there is an alarm."""
        self._refuse_learning()
        return self._follower.bars.bars.copy()

    @property
    def dispersions_(self) -> Array:
        """By which factor counts vary more than those of independent points."""
        self._refuse_learning()
        return self._follower.bars.dispersions.copy()

    @property
    def n_seen_(self) -> int:
        """Points followed so far."""
        return self._follower.n_seen if hasattr(self, "_follower") else 0

    def holds(self, key: Key) -> bool:
        """Return whether a point of this key is held, in the reference or among the recent points."""
        if not hasattr(self, "_follower"):
            return False
        return key in self._follower.points.keys or key in self._follower.reference.keys

    # ---- files -------------------------------------------------------------------------------------------------------

    def save(self, path: Place) -> None:
        """Write the monitor to a file, from which `load` restores it: it goes on bit for bit.

        Parameters
        ----------
        path : str, path-like or binary file
        """
        with self._contents() as (header, arrays):
            write_model(path, header, arrays)

    def to_bytes(self) -> bytes:
        """Return the monitor as bytes, from which `of_bytes` restores it."""
        with self._contents() as (header, arrays):
            return pack(header, arrays)

    @classmethod
    def load(cls, path: Place) -> Self:
        """Return the monitor saved in a file; raise `ModelFileError` if it is damaged or holds something else."""
        header, arrays = read_model(path)
        with refusing(path):
            return cls._of_state(header, arrays)

    @classmethod
    def of_bytes(cls, block: bytes) -> Self:
        """Return the monitor in bytes that `to_bytes` made; raise `ModelFileError` if they are damaged."""
        header, arrays = unpack(block)
        with refusing(BytesIO(block)):
            return cls._of_state(header, arrays)

    @contextmanager
    def _contents(self) -> Iterator[tuple[Header, Arrays]]:
        """Yield what to save, which does not change until it is written."""
        self._refuse_unfitted()
        self._validate_params()  # or it could not be read again
        with self._frozen():
            about, arrays = self._follower.state()
            names = getattr(self, "feature_names_in_", None)
            header = {
                "detector": type(self).__name__,
                "parameters": self._parameters(),
                "n_features": self.n_features_in_,
                "feature_names": None if names is None else [str(name) for name in names],
                "monitor": about,
            }
            if self.encoding_ is not None:
                header["categories"] = list(self.encoding_.columns)
                arrays["texts"] = self.encoding_.kept(self._follower.rows).pack_texts()
            yield header, arrays

    def _parameters(self) -> dict[str, Any]:
        """Return the parameters as JSON can hold them; those of categories only where they are not the default."""
        given = self.get_params(deep=False)
        columns = encode_columns(given.pop("categorical_features"))
        stored = {name: encode(value) for name, value in given.items()}
        return stored if columns == "from_dtype" else {**stored, "categorical_features": columns}

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
        monitor._restore(header, arrays)
        return monitor

    def _restore(self, header: Header, arrays: Arrays) -> None:
        from polyaforest.drift._follower import Follower

        self._validate_params()
        self._every()
        self.n_features_in_, names = header["n_features"], header["feature_names"]
        if names is not None:
            if len(names) != self.n_features_in_:
                raise ValueError("the number of its feature names is not that of its features")
            self.feature_names_in_ = np.array(names, dtype=object)
        if ("texts" in arrays) != ("categories" in header):
            raise ValueError("it has texts of categories, but no columns of them, or the other way round")
        own = {name: part for name, part in arrays.items() if name != "texts"}
        if "categories" in header:
            self.encoding_ = Categories.of_state(header["categories"], self.n_features_in_, arrays["texts"])
        known = header["monitor"], own, self.n_features_in_, feature_names(self), self.encoding_
        self._follower = Follower.of_state(*known)

    # ---- step by step ------------------------------------------------------------------------------------------------

    def _begin(self, X: Any, keys: Any, times: Any) -> tuple[Array, Array, list[Key | None]]:
        self._validate_params()
        rows = read_coded(self, X, reset=True, allow_missing=True).rows
        return rows, *self._read_labels(len(rows), keys, times)

    def _read(self, X: Any, keys: Any, times: Any) -> tuple[Array, Array, list[Key | None]]:
        rows, texts = read_coded(self, X, reset=False, at_least=0, allow_missing=True)
        check_countable(self._follower.n_seen, len(rows))
        labels = self._read_labels(len(rows), keys, times)
        self._note(texts)
        return rows, *labels

    def _note(self, texts: Texts) -> None:
        """Keep the texts of rows that are followed."""
        if self.encoding_ is None or not texts:
            return
        noted = self.encoding_.with_texts(texts)
        if noted.is_crowded:
            noted = noted.kept(self._follower.rows).with_texts(texts)
        self.encoding_ = self._follower.encoding = noted

    def _read_labels(self, n_rows: int, keys: Any, times: Any) -> tuple[Array, list[Key | None]]:
        is_timed = self._every()[1]
        if is_timed and times is None:
            raise ValueError(
                f"false_alarms_every={self.false_alarms_every!r} is a duration: pass times, one per row, or give a "
                "number of points"
            )
        return read_stamps(times, n_rows, needed=False), read_keys(keys, n_rows)

    def _new_follower(self, n_reference: int) -> Follower:
        from polyaforest.drift._follower import Follower, Settings

        every, is_duration = self._every()
        lengths = None if isinstance(self.windows, str) else _read_lengths(self.windows, n_reference)
        entropy = secrets.randbits(128) if self.random_state is None else int(self.random_state)
        settings = Settings(
            n_reference, lengths, every, is_duration, self.on_drift == "keep", int(self.n_estimators), entropy
        )
        return Follower(settings, self.n_features_in_, feature_names(self), self.encoding_)

    def _take_in(self, X: Any, keys: Any, times: Any, *, tells_outliers: bool = False) -> list[tuple[Step, Array]]:
        """Follow the stream over rows; return its steps, each with the bars that were in force."""
        if not hasattr(self, "_follower"):
            with self._drafted() as draft:
                rows, stamps, names = draft._begin(X, keys, times)
                draft._follower = draft._new_follower(int(self.reference))
                return draft._pass_on(rows, stamps, names, tells_outliers=tells_outliers)
        rows, stamps, names = self._read(X, keys, times)
        with self._changing():
            return self._pass_on(rows, stamps, names, tells_outliers=tells_outliers)

    def _pass_on(
        self, rows: Array, stamps: Array, names: list[Key | None], *, tells_outliers: bool = False
    ) -> list[tuple[Step, Array]]:
        """Let the follower take in rows."""
        follower, steps, start = self._follower, [], 0
        while start < len(rows):
            step = follower.advance(rows[start:], stamps[start:], names[start:])
            part = slice(start, start + len(step.status))
            is_followed = step.evidence.shape[1] > 0
            if is_followed and tells_outliers and "normal" in step.status and not follower.is_learning:
                is_outlier = follower.is_outlier(rows[part])
                status = [
                    "outlier" if one == "normal" and is_odd else one
                    for one, is_odd in zip(step.status, is_outlier, strict=True)
                ]
                step = step._replace(status=status)
            steps.append((step, follower.bars.bars if is_followed else np.empty(0)))
            start = part.stop
        return steps

    def _every(self) -> tuple[float, bool]:
        """Return the points or seconds between false alarms, and whether they are seconds."""
        every = self.false_alarms_every
        if isinstance(every, timedelta):
            seconds = every.total_seconds()
        elif isinstance(every, str):
            seconds = read_duration(every)
        else:
            return float(every), False
        if not seconds > 0:
            raise ValueError(f"false_alarms_every must be longer than nothing; got {every!r}")
        return seconds, True

    def _refuse_unfitted(self) -> None:
        if not hasattr(self, "_follower"):
            raise NotFittedError("this DriftMonitor has not followed any points yet: call update or fit first")

    def _refuse_learning(self) -> None:
        self._refuse_unfitted()
        if self._follower.is_learning:
            n = self._follower.settings.n_reference
            raise NotFittedError(
                f"this DriftMonitor is still learning its reference: it has {len(self._follower.reference):,} of {n:,} "
                "points"
            )


_STATE = schema.record(
    {
        "detector": schema.text,
        "parameters": schema.mapping,
        "n_features": schema.n_features,
        "feature_names": schema.either(schema.nothing, schema.names),
        "monitor": schema.mapping,
        "categories": schema.many(schema.whole(0, 2**31 - 1)),  # columns of categories; absent where there are none
    },
    optional=["categories"],
)


def _columns_of(detector: StreamingMPF | SeriesMPF) -> Any:
    """Return the parameter `categorical_features` by which a monitor has the categories of a detector."""
    given = getattr(detector, "categorical_features", None)  # a series has numbers only
    if not detector.is_fitted or isinstance(given, Codes):
        return given
    encoding = getattr(detector, "encoding_", None)
    return None if encoding is None else list(encoding.columns)


def read_duration(text: str) -> float:
    """Return the seconds of a duration in words.

    Examples
    --------
    >>> read_duration("30 days"), read_duration("90s"), read_duration("1.5 h")
    (2592000.0, 90.0, 5400.0)
    """
    found = _DURATION.fullmatch(text.strip())
    unit = None if found is None else _UNITS.get(found[2].lower())
    if found is None or unit is None:
        raise ValueError(f'{text!r} is not a duration: write "30 days", "6 hours", "90 minutes" or "45s"')
    return float(found[1]) * unit


def _read_lengths(windows: Sequence[int], n_reference: int) -> tuple[int, ...]:
    """Return lengths of windows, checked, ascending."""
    lengths = list(windows)
    is_right = lengths and all(isinstance(n, Integral) and not isinstance(n, bool) and n >= 2 for n in lengths)
    if not is_right or len(set(lengths)) < len(lengths):
        raise ValueError(f"windows must be different numbers of points, at least 2 each; got {windows!r}")
    if max(lengths) > n_reference:
        raise ValueError(
            f"a window of {max(lengths):,} points is longer than the reference of {n_reference:,}: make the reference "
            "longer, or the window shorter"
        )
    return tuple(sorted(int(n) for n in lengths))


def _joined(steps: list[tuple[Step, Array]], first: int) -> Trace:
    """Return the trace of several steps; what was not known yet is NaN."""
    n_windows = max((step.evidence.shape[1] for step, _ in steps), default=0)
    n = sum(len(step.status) for step, _ in steps)
    evidence, bars = np.full((2, n, n_windows), np.nan)
    status: list[str] = []
    for step, height in steps:
        part = slice(len(status), len(status) + len(step.status))
        if step.evidence.shape[1]:
            evidence[part], bars[part] = step.evidence, height
        status += step.status
    changes = [step.change for step, _ in steps if step.change is not None]
    return Trace(evidence, bars, np.array(status, dtype=object), changes, first)
