"""The detector for time series: a forest on a stream of shingles, which it makes of readings as they come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from enum import Enum
from math import isnan
from numbers import Real
from types import MappingProxyType
from typing import Any, ClassVar, Self, cast

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.utils._param_validation import Interval
from sklearn.utils.validation import check_is_fitted

from polyaforest.core import schema
from polyaforest.core.arrays import Array
from polyaforest.core.locks import Guarded, uninterrupted
from polyaforest.core.validation import (
    LARGEST,
    read_domain,
    read_key,
    read_keys,
    read_rows,
    read_stamps,
    read_weights,
    refuse_uncountable,
)
from polyaforest.estimators import Judgements, StreamingMPF
from polyaforest.explain import Explanation, Explanations, read_features
from polyaforest.forest.point_store import Key
from polyaforest.forest.spec import empty_box, weighting_of_rows
from polyaforest.persistence.modelfile import Arrays, Header, Place, read_model, write_model
from polyaforest.persistence.state import decode, encode, refusing, refusing_pickle
from polyaforest.retention import Policy, as_policy
from polyaforest.timeseries._calendar import read_calendar
from polyaforest.timeseries._memory import Memory
from polyaforest.timeseries._shingles import (
    CONSTRAINTS,
    Laid,
    lay,
    measured_spacing,
    new_track,
    read_every,
    read_pattern,
    refuse_times,
)

_PIECE = 256  # readings after which the scale of features is looked at again; also those that are learned at a time
_WINDOW = 1024  # shingles held unless told otherwise
_SAMPLES = 256  # of them in each tree, as above: shingles lie along curves, which the small samples of tables miss


class Task(Enum):
    """What to say of readings before they are learned, and in how many numbers each."""

    LEARN = 0
    SCORE = 1
    JUDGE = len(Judgements._fields)


class SeriesMPF(Guarded, BaseEstimator):
    """Streaming Mondrian Pólya forest on the shingles of a time series. Scores are higher for normal readings.

    A shingle is a row of the last readings of all channels. The forest holds shingles, so what counts as normal is a
    course, not a value. Readings come as they are, one by one or in chunks of any size, with the same result.

    **Gaps.** With `times`, the steps missing between two rows are round(time between them / `every`) - 1, but never
    fewer than 0, so jitter does not matter. Without, rows follow each other. A value that is NaN is missing too. Up to
    `max_gap` missing steps in a row are filled in on a straight line between the readings around them, once the second
    has come; no shingle ends at a filled step. After a longer gap the shingle begins anew, and rows get NaN until it is
    whole again.

    **Scale.** Features are weighed by their spread over the shingles held, measured while the first 256 come. At every
    256th reading it is measured again, and if that of any feature has changed by more than a factor of `rescale`, the
    trees are grown anew with new weights.

    **Deletion.** `delete` removes every shingle that a reading has a part in, by its value, by filling in or by a
    difference, and begins a new one behind it. If one of them had a part in the scale, that is measured anew.

    Parameters
    ----------
    forest : StreamingMPF, optional
        The forest to use, of which a copy is made that has learned nothing. Its `window` counts shingles; "auto" is
        1,024 of them here, also for `fit`, and None will not do, since deletion needs them. "auto" for `max_samples` is
        256 here. By default a `StreamingMPF` with these.
    shingle : int, default=10
        Readings in a shingle.
    every : float or timedelta, optional
        The usual time between readings, in seconds, or in the unit of `times` that are numbers. By default the median
        of those between the first ``shingle + 1`` rows, which are silent until then; in `fit` of all its rows.
    max_gap : int, default=3
        Most steps in a row that are filled in.
    difference : bool, default=False
        Whether to look at changes from step to step instead of levels.
    calendar : sequence of {"time of day", "day of week"}, default=()
        What to add to each shingle, as sine and cosine; needs times.
    timezone : str, default="UTC"
        The time zone of the calendar, such as "Europe/Berlin".
    rescale : float or None, default=2.0
        The change of scale after which features are weighed anew; None for never.

    Attributes
    ----------
    forest_ : StreamingMPF
        The forest. Its keys are those of the readings at which its shingles end.
    n_seen_ : int
        Readings that have come so far.
    n_points_ : int
        Shingles held.
    keys_ : list
        Keys of the readings that can be deleted: those that a shingle held is made of, or one to come may be.
    every_ : float or None
        The usual time between readings, if it is known.
    n_features_in_ : int
        Channels.
    feature_names_in_ : ndarray of str
        Their names, if rows came as frames.

    Examples
    --------
    >>> import numpy as np
    >>> from polyaforest.timeseries import SeriesMPF
    >>> wave = np.sin(np.arange(600) / 4)
    >>> wave[550:553] = 0.0  # a value that is nothing unusual, but not three times in a row
    >>> scores = SeriesMPF(shingle=8).score_then_learn(wave)
    >>> int(np.isnan(scores).sum()), int(np.nanargmin(scores[300:])) + 300 in range(550, 560)
    (7, True)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **CONSTRAINTS,
        "forest": [StreamingMPF, None],
        "rescale": [Interval(Real, 1, None, closed="neither"), None],
    }

    forest_: StreamingMPF
    _memory: Memory
    _notes: Mapping[str, Any] = MappingProxyType({})

    def __init__(
        self,
        forest: StreamingMPF | None = None,
        *,
        shingle: int = 10,
        every: float | timedelta | None = None,
        max_gap: int = 3,
        difference: bool = False,
        calendar: Sequence[str] = (),
        timezone: str = "UTC",
        rescale: float | None = 2.0,
    ) -> None:
        self.forest = forest
        self.shingle = shingle
        self.every = every
        self.max_gap = max_gap
        self.difference = difference
        self.calendar = calendar
        self.timezone = timezone
        self.rescale = rescale

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "forest_" in state:
            with refusing_pickle(self):
                self._check()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    # ---- learning ---------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None, *, keys: Any = None, times: Any = None) -> Self:
        """Begin with the readings of a table, whatever was learned before; `y` is ignored.

        Features are weighed by the shingles held at the end of it.

        Parameters
        ----------
        X : array-like or frame of shape (n_rows, n_channels), or (n_rows,) for one channel
            Readings in order; NaN where a value is missing.
        keys : sequence of int or str, optional
            Names by which to `delete` readings again; a row without one goes by the number of its arrival, from 0.
        times : array-like of float or datetime, optional
            When each reading was taken. Give them always or never.
        """
        self._validate_params()
        with self._lock.turn(), self._anew() as draft:
            draft._begin_with(X, keys, times)
        return self

    def _begin_with(self, X: Any, keys: Any, times: Any) -> None:
        rows = self._begin(X)
        stamps, names = self._read_labels(len(rows), keys, times)
        self._refuse_extreme(rows)
        self._memory.is_timed = times is not None
        if isnan(self._memory.track.every) and self._memory.is_timed:
            self._memory.track = self._memory.track._replace(every=measured_spacing(stamps))
        self._refuse_outside(rows, stamps)
        self._fit_forest(lay(self._memory.track, rows, stamps, 0, self._memory.pattern), stamps, names)

    def _fit_forest(self, laid: Laid, stamps: Array, names: list[Key | None]) -> None:
        """Let the forest begin with a table, and weigh features by what it holds of it."""
        shingles, ends = laid.shingles(), np.flatnonzero(laid.is_whole)
        if not len(shingles):
            raise ValueError(
                f"there is no shingle of {self.shingle} readings without too long a gap in these {len(laid.places)} "
                "rows: give more of them, or set a smaller shingle or a larger max_gap"
            )
        self._memory.ledger.enter_names(names, 0)
        keys = [self._memory.ledger.key_of(end) for end in ends.tolist()]
        self.forest_.fit(shingles, keys=keys, times=stamps[ends] if self._memory.is_timed else None)
        self._commit(laid, ends)
        if self.rescale is not None and self.forest_.n_points_ < len(shingles):
            self.forest_.rebuild()
        self._note_spread(self._memory.n_seen)

    def partial_fit(self, X: Any, y: Any = None, *, keys: Any = None, times: Any = None) -> Self:
        """Learn readings one after another; `y` is ignored. The parameters are those of `fit`."""
        self._advance(X, keys, times, Task.LEARN)
        return self

    def score_then_learn(self, X: Any, *, keys: Any = None, times: Any = None) -> Array:
        """Score the shingle that ends at each reading by the forest as it stands, then learn it.

        Parameters
        ----------
        X, keys, times
            As in `fit`.

        Returns
        -------
        scores : ndarray of shape (n_rows,)
            Higher is more normal; NaN where no whole shingle ends.
        """
        (scores,) = self._advance(X, keys, times, Task.SCORE)
        return cast("Array", scores)

    def p_value_then_learn(self, X: Any, *, keys: Any = None, times: Any = None) -> Array:
        """As `score_then_learn`, for the p-values of `StreamingMPF.p_value_then_learn`."""
        return self.judge_then_learn(X, keys=keys, times=times).p_values

    def judge_then_learn(self, X: Any, *, keys: Any = None, times: Any = None) -> Judgements:
        """Scores, p-values and verdicts of the shingles that end at each reading, which are then learned.

        Parameters
        ----------
        X, keys, times
            As in `fit`.

        Returns
        -------
        judgements : Judgements
            As of `StreamingMPF.judge_then_learn`; where no whole shingle ends, numbers are NaN and nothing is flagged.
        """
        return _as_judgements(self._advance(X, keys, times, Task.JUDGE))

    def delete(self, keys: Key | Iterable[Key]) -> Self:
        """Take readings out again, with every shingle that they have a part in.

        Afterwards the forest is what it would be had those shingles never come. Where the newest readings are among
        them, the next shingle begins anew behind the last one deleted. If nothing is held any more, so does the forest.

        Parameters
        ----------
        keys : int, str, or a sequence of them
            If one is not in ``keys_``, a KeyError says so and nothing is deleted.
        """
        check_is_fitted(self, "forest_")
        is_one = isinstance(keys, str | bytes) or not isinstance(keys, Iterable)
        wanted = [read_key(key) for key in ([keys] if is_one else cast("Iterable[Key]", keys))]
        with self._changing():
            numbers = self._numbers_of(wanted)
            gone = self._memory.ledger.with_any(numbers)
            had_part_in_scale = any(number < self._memory.weighed_at for number in numbers)
            if gone:
                self.forest_.delete(gone)
            for number in numbers:
                self._memory.track = self._memory.track.without(number)
            self._settle()
            if gone and not self.forest_.n_points_:
                self._begin_forest()
            elif had_part_in_scale and self.rescale is not None and self.forest_.n_points_:
                self.forest_.rebuild()
                self._note_spread(self._memory.n_seen)
        return self

    def _numbers_of(self, keys: Sequence[Key]) -> list[int]:
        """The numbers of readings that are known by these keys."""
        numbers = []
        for key in keys:
            number = self._memory.ledger.number_of(key, self._memory.n_seen)
            if number is None:
                raise KeyError(f"no shingle with a reading of key {key!r} is held. Nothing was deleted")
            numbers.append(number)
        if len(set(numbers)) < len(numbers):
            raise ValueError("a key is given more than once. Nothing was deleted")
        return numbers

    # ---- as if rows came next ---------------------------------------------------------------------------------------

    def score_samples(self, X: Any, *, times: Any = None) -> Array:
        """The scores that rows would get if they came next, one after another; nothing is learned.

        Parameters
        ----------
        X, times
            As in `fit`.

        Returns
        -------
        scores : ndarray of shape (n_rows,)
            Higher is more normal; NaN where no whole shingle would end, or the forest holds none to compare with.
        """
        with self._looking_ahead(X, times) as laid:
            scores = np.full(len(laid.is_whole), np.nan)
            if laid.is_whole.any():
                scores[laid.is_whole] = self.forest_.score_samples(laid.shingles())
            return scores

    def judge(self, X: Any, *, times: Any = None) -> Judgements:
        """As `judge_then_learn`, as if rows came next, but nothing is learned."""
        with self._looking_ahead(X, times) as laid:
            n_fields = Task.JUDGE.value
            judged = np.stack(self.forest_.judge(laid.shingles())) if laid.is_whole.any() else np.empty((n_fields, 0))
            return _as_judgements(_at(laid.is_whole, judged))

    def explain(
        self,
        X: Any,
        features: Sequence[str | int] | None = None,
        *,
        times: Any = None,
        rows: Sequence[int] | None = None,
        line: float | None = None,
    ) -> Explanations:
        """Why the shingles that rows would end are as strange as they are, as if they came next; nothing is learned.

        Features are called "cpu" for the newest reading and "cpu[-3]" for the one three steps before.

        Parameters
        ----------
        X, times
            As in `fit`.
        features, line
            As in `StreamingMPF.explain`.
        rows : sequence of int, optional
            The places of the rows to explain, if not all; the others only lead up to them.

        Returns
        -------
        explanations : Explanations
            For what each channel adds see `blame_by_channel`.
        """
        names = self._names_of_features
        candidates = None if features is None else read_features(features, names).tolist()
        with self._looking_ahead(X, times) as laid:
            wanted = np.arange(len(laid.is_whole)) if rows is None else np.asarray(rows, np.int64)
            silent = wanted[~laid.is_whole[wanted]]
            if len(silent) or not len(wanted):
                raise ValueError(self._why_silent(silent))
            shingles = laid.shingles()[np.cumsum(laid.is_whole)[wanted] - 1]
            return _renamed(self.forest_.explain(shingles, candidates, line=line), names)

    def blame_by_channel(self, explanation: Explanation) -> dict[str, float]:
        """The bits that each channel adds to the surprise of a shingle, over all its steps, the worst first.

        What the calendar adds goes by its own words.
        """
        check_is_fitted(self, "forest_")
        n_steps, words = self._memory.pattern.shingle * self.n_features_in_, self._memory.pattern.calendar
        if len(explanation.parts) != self._memory.pattern.n_features(self.n_features_in_):
            raise ValueError(f"this explains {len(explanation.parts)} features, not a shingle of this series")
        steps, clock = explanation.parts[:n_steps], explanation.parts[n_steps:]
        bits = [*steps.reshape(-1, self.n_features_in_).sum(axis=0), *clock.reshape(-1, 2).sum(axis=1)]
        named = zip([*self._channels, *words], map(float, bits), strict=True)
        return dict(sorted(named, key=lambda item: -item[1]))

    def _why_silent(self, silent: Array) -> str:
        if not len(silent):
            return "there are no rows to explain"
        return (
            f"row {silent[0]} would end no whole shingle of {self._memory.pattern.shingle} readings that could be "
            "compared with others, so there is nothing to explain: name the rows to explain in rows=, where "
            "score_samples is not NaN"
        )

    @contextmanager
    def _looking_ahead(self, X: Any, times: Any) -> Iterator[Laid]:
        """Rows laid out as if they came next; none is whole if the forest has nothing to compare with."""
        check_is_fitted(self, "forest_")
        rows = read_rows(self, _as_table(X), reset=False, allow_missing=True)
        with self._frozen():
            self._refuse_extreme(rows)
            laid = lay(
                self._memory.track, rows, self._read_times(len(rows), times), self._memory.n_seen, self._memory.pattern
            )
            yield laid if self._has_begun else laid._replace(is_whole=np.zeros(len(rows), np.bool_))

    # ---- what is held -----------------------------------------------------------------------------------------------

    @property
    def n_seen_(self) -> int:
        """Readings that have come so far: the place in the series to go on from."""
        check_is_fitted(self, "forest_")
        return self._memory.n_seen

    @property
    def n_points_(self) -> int:
        """Shingles held."""
        check_is_fitted(self, "forest_")
        return self.forest_.n_points_ if self._has_begun else 0

    @property
    def keys_(self) -> list[Key]:
        """Keys of the readings that can be deleted, by order of arrival."""
        check_is_fitted(self, "forest_")
        with self._frozen():
            return [self._memory.ledger.key_of(number) for number in self._memory.ledger.known(self._memory.n_seen)]

    def holds(self, key: Key) -> bool:
        """Return whether a reading of this key can be deleted; nothing is held before the first comes."""
        if not hasattr(self, "forest_"):
            return False
        with uninterrupted(), self._lock.reading():
            return self._memory.ledger.number_of(key, self._memory.n_seen) is not None

    @property
    def every_(self) -> float | None:
        """The usual time between readings, if it is known."""
        check_is_fitted(self, "forest_")
        return self._memory.track.every if self._memory.track.every > 0 else None

    @property
    def _channels(self) -> list[str]:
        names = getattr(self, "feature_names_in_", None)
        return [f"x{k}" for k in range(self.n_features_in_)] if names is None else [str(name) for name in names]

    @property
    def _names_of_features(self) -> list[str]:
        check_is_fitted(self, "forest_")
        return self._memory.pattern.names(self._channels)

    @property
    def _has_begun(self) -> bool:
        """Whether the forest has learned any shingle."""
        return hasattr(self.forest_, "forest_")

    # ---- files ------------------------------------------------------------------------------------------------------

    @property
    def notes(self) -> dict[str, Any]:
        """What was noted in the file that the detector was loaded from; empty for any other."""
        return dict(self._notes)

    def save(self, path: Place, notes: Mapping[str, Any] | None = None) -> None:
        """Write the detector to a file, from which `load` makes one that goes on as this one would, bit for bit.

        As `StreamingMPF.save`.

        Parameters
        ----------
        path : str, path-like or binary file
        notes : dict of what JSON holds as it is, optional
            What else to remember; by default the notes that the detector came with.
        """
        check_is_fitted(self, "forest_")
        self._validate_params()
        with self._frozen():
            header, arrays = self._state()
            write_model(path, {**header, "notes": self.notes if notes is None else dict(notes)}, arrays)

    @classmethod
    def load(cls, path: Place) -> Self:
        """The detector that `save` wrote to a file; a `ModelFileError` if the file is damaged or another's."""
        header, arrays = read_model(path)
        with refusing(path):
            return cls._of_state(header, arrays)

    def _state(self) -> tuple[Header, Arrays]:
        """All there is to know of a series: of its parameters, its memory, and its forest."""
        names, parameters = getattr(self, "feature_names_in_", None), self.get_params(deep=False)
        template = parameters.pop("forest")
        parameters["every"] = None if self.every is None else read_every(self.every)
        parameters["calendar"] = list(read_calendar(self.calendar))
        about, own = self._memory.state()
        inner, parts = self._state_of_forest()
        header = {
            "detector": type(self).__name__,
            "parameters": {name: part if isinstance(part, list) else encode(part) for name, part in parameters.items()},
            "template": None if template is None else _parameters_of(template),
            "n_features": self.n_features_in_,
            "feature_names": None if names is None else [str(name) for name in names],
            "series": about,
            "forest": inner,
        }
        return header, {**_under("series", own), **_under("forest", parts)}

    def _state_of_forest(self) -> tuple[Header, Arrays]:
        """The state of the forest; its parameters alone, if it has learned nothing yet."""
        if not self._has_begun:
            return {"parameters": _parameters_of(self.forest_)}, {}
        with self.forest_._reading():
            return self.forest_._state()

    @classmethod
    def _of_state(cls, header: Header, arrays: Arrays) -> Self:
        if header.get("detector") != cls.__name__:
            raise ValueError(f"it holds a {header.get('detector')}, not a {cls.__name__}")
        _STATE(header, "")
        unknown = [name for name in arrays if name.partition("/")[0] not in ("series", "forest")]
        if unknown:
            raise ValueError(f"array {unknown[0]}: is not part of this format version")
        template = None if header["template"] is None else _forest_of(header["template"])
        series = cls(template, **{name: decode(value) for name, value in header["parameters"].items()})
        series.calendar = read_calendar(series.calendar)
        series._validate_params()
        series.n_features_in_ = header["n_features"]
        if header["feature_names"] is not None:
            series.feature_names_in_ = np.array(header["feature_names"], dtype=object)
        parts = _from_under("forest", arrays)
        inner = header["forest"]
        if not parts:
            _UNBEGUN(inner, "forest")
        series.forest_ = StreamingMPF._of_state(inner, parts) if parts else _forest_of(inner["parameters"])
        held = series.forest_.keys_ if parts else []
        series._memory = Memory.of_state(header["series"], _from_under("series", arrays), series.n_features_in_, held)
        series._notes = header.get("notes", {})
        if not isinstance(series._notes, dict):
            raise ValueError(f"its notes are {series._notes!r}")
        series._check()
        return series

    def _check(self) -> None:
        """Raise unless what was read from a file or a pickle can be a series."""
        names, n_features = getattr(self, "feature_names_in_", None), self._memory.n_features
        if names is not None and len(names) != self.n_features_in_:
            raise ValueError("the number of its channel names is not that of its channels")
        if not self._has_begun:
            self._refuse_summary(self.forest_)
            self._refuse_outside(np.empty((0, self.n_features_in_)), np.empty(0))
            if not isinstance(self.forest_.feature_weights, str):
                read_weights(self.forest_.feature_weights, n_features)
        elif self.forest_.n_features_in_ != n_features or self.forest_.n_seen_ > self._memory.n_seen:
            raise ValueError("its forest is not one for its shingles")

    # ---- inner workings ---------------------------------------------------------------------------------------------

    def _begin(self, X: Any) -> Array:
        """Begin a series by the parameters as they are; return the rows read."""
        rows = read_rows(self, _as_table(X), reset=True, allow_missing=True)
        self._memory = Memory(read_pattern(self), new_track(rows.shape[1], read_every(self.every)))
        self._notes = {}
        self._begin_forest()
        return rows

    @property
    def _policy(self) -> Policy:
        """What the forest holds, by its stream; by its parameters only if that has not begun."""
        stream = self.forest_._stream if self._has_begun else None
        if stream is not None and stream.rules.policy is not None:
            return stream.rules.policy
        window = self.forest_.window
        assert window is not None
        assert not isinstance(window, str)
        return as_policy(window)

    @property
    def _domain(self) -> Array:
        """The bounds of shingles, (2, n_features), infinite where there are none."""
        if self._has_begun:
            return self.forest_.forest_.domain
        domain, n_features = self.forest_.domain, self._memory.n_features
        is_given = domain is not None and not isinstance(domain, str)
        return read_domain(domain, n_features) if is_given else empty_box(n_features)

    def _begin_forest(self) -> None:
        forest = StreamingMPF() if self.forest is None else clone(self.forest)
        if isinstance(forest.window, str):
            forest.set_params(window=_WINDOW)
        if isinstance(forest.max_samples, str):
            forest.set_params(max_samples=_SAMPLES)
        forest._validate_params()
        self._refuse_summary(forest)
        self.forest_, self._memory.spread, self._memory.weighed_at = forest, None, 0

    @staticmethod
    def _refuse_summary(forest: StreamingMPF) -> None:
        if forest.window is None or isinstance(forest.window, str):
            raise ValueError(
                "the forest of a series has to hold its shingles, so that readings can be deleted: give it a window"
            )
        as_policy(forest.window)

    def _advance(self, X: Any, keys: Any, times: Any, task: Task) -> Array:
        """Learn rows; return what the task asks of them first, (numbers of the task, n_rows)."""
        if not hasattr(self, "forest_"):
            with self._lock.turn():
                if not hasattr(self, "forest_"):  # nobody else has begun meanwhile
                    self._validate_params()
                    with self._anew() as draft:
                        return draft._learn(draft._begin(X), keys, times, task)
        rows = read_rows(self, _as_table(X), reset=False, at_least=0, allow_missing=True)
        with self._lock.turn():
            return self._learn(rows, keys, times, task)

    def _learn(self, rows: Array, keys: Any, times: Any, task: Task) -> Array:
        """Learn rows piece by piece, after all checks. Ctrl-C waits for the end of a piece."""
        stamps, names = self._read_labels(len(rows), keys, times)
        self._refuse_extreme(rows)
        self._refuse_outside(rows, stamps)
        if len(rows):
            self._memory.is_timed = times is not None
        answers, start = [np.empty((task.value, 0))], 0
        while start < len(rows):
            stop = min(len(rows), start + _PIECE - self._memory.n_seen % _PIECE)
            part = slice(start, stop)
            with uninterrupted(), self._lock.writing():
                answers.append(self._learn_piece(rows[part], stamps[part], names[part], task))
            start = stop
        return np.concatenate(answers, axis=1)

    def _learn_piece(self, rows: Array, stamps: Array, names: list[Key | None], task: Task) -> Array:
        laid = lay(self._memory.track, rows, stamps, self._memory.n_seen, self._memory.pattern)
        ends = np.flatnonzero(laid.is_whole)
        keys = [self._memory.n_seen + end if names[end] is None else names[end] for end in ends.tolist()]
        answers = self._teach(
            laid.shingles(), keys, stamps[ends] if self._memory.is_timed else None, task, self._memory.n_seen + ends
        )
        self._memory.ledger.enter_names(names, self._memory.n_seen)
        self._commit(laid, self._memory.n_seen + ends)
        self._rescale_if_due()
        return _at(laid.is_whole, answers)

    def _teach(self, shingles: Array, keys: list[Any], stamps: Array | None, task: Task, numbers: Array) -> Array:
        """Let the forest learn shingles, and note the scale whenever it has weighed features by itself."""
        answers, start = [np.empty((task.value, 0))], 0
        while start < len(shingles):
            n_until_weighed = self._n_until_weighed
            stop = min(len(shingles), start + (n_until_weighed or len(shingles)))
            part = slice(start, stop)
            times = None if stamps is None else stamps[part]
            answers.append(_ask(self.forest_, task, shingles[part], keys[part], times))
            if stop - start == n_until_weighed:
                self._note_spread(int(numbers[stop - 1]) + 1)
            start = stop
        return np.concatenate(answers, axis=1)

    @property
    def _n_until_weighed(self) -> int:
        """Shingles after which the forest will weigh features by itself, 0 if it no longer does."""
        if not self._has_begun:
            return 1
        stream = self.forest_._stream
        assert stream is not None
        return stream.next_birth - stream.holdings.n_seen if stream.next_birth else 0

    def _commit(self, laid: Laid, ends: Array) -> None:
        """Go on behind rows that were learned, whose shingles end at the readings of numbers `ends`."""
        if self._has_begun:
            self._memory.ledger.enter(laid.oldest().tolist(), ends.tolist(), self._held)
        self._memory.track, self._memory.n_seen = laid.kept(), self._memory.n_seen + len(laid.places)
        self._settle()

    def _settle(self) -> None:
        """Forget the readings that are no longer needed."""
        self._memory.ledger.settle(self._held, self._memory.recent)

    @property
    def _held(self) -> Mapping[Key, object]:
        """The keys of the shingles held."""
        return self.forest_._stream.holdings.slot_of if self._has_begun and self.forest_._stream is not None else {}

    def _rescale_if_due(self) -> None:
        """Weigh features anew if the scale of any has changed too much: at fixed counts, so chunks do not matter."""
        is_due = self.rescale is not None and self._memory.n_seen % _PIECE == 0 and self._memory.spread is not None
        if not is_due or self._n_until_weighed or not self.forest_.n_points_:
            return
        spread = weighting_of_rows(self.forest_.points_).spread
        if np.maximum(spread / self._memory.spread, self._memory.spread / spread).max() > self.rescale:
            self.forest_.rebuild()
            self._note_spread(self._memory.n_seen)

    def _note_spread(self, n_seen: int) -> None:
        """Note the scale of the features by which they have just been weighed."""
        if self.rescale is not None:
            self._memory.spread, self._memory.weighed_at = weighting_of_rows(self.forest_.points_).spread, n_seen

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Change the series alone, and as a whole."""
        with self._lock.turn(), uninterrupted(), self._lock.writing():
            yield

    # ---- bad input --------------------------------------------------------------------------------------------------

    def _read_labels(self, n_rows: int, keys: Any, times: Any) -> tuple[Array, list[Key | None]]:
        """The times and keys of rows to learn, checked."""
        stamps, names = self._read_times(n_rows, times), read_keys(keys, n_rows)
        refuse_uncountable(self._memory.n_seen, n_rows)
        self._memory.ledger.refuse_keys(names, self._memory.n_seen)
        return stamps, names

    def _read_times(self, n_rows: int, times: Any) -> Array:
        """The times of rows that come next, checked."""
        stamps = read_stamps(times, n_rows, needed=self._policy.needs_times)
        if n_rows and self._memory.is_timed is not None and self._memory.is_timed != (times is not None):
            before = "times" if self._memory.is_timed else "no times"
            raise ValueError(f"the readings before had {before}: give times to all rows or to none")
        refuse_times(stamps, self._memory.track.latest, self._memory.pattern)
        return stamps

    def _refuse_extreme(self, rows: Array) -> None:
        """Raise if a change from one step to the next could be too large to measure."""
        is_extreme = self._memory.pattern.difference and bool((np.abs(rows) > LARGEST / 2).any())
        if is_extreme:
            i, k = (int(place) for place in np.argwhere(np.abs(rows) > LARGEST / 2)[0])
            raise ValueError(
                f"row {i}, column {self._channels[k]!r} is {rows[i, k]:g}: changes beyond {LARGEST:g} cannot be "
                "measured; rescale the column"
            )

    def _refuse_outside(self, rows: Array, stamps: Array) -> None:
        """Raise if a shingle would lie outside a domain that the forest was given."""
        low, high = self._domain
        if np.isinf(low).any():
            return
        laid = lay(self._memory.track, rows, stamps, self._memory.n_seen, self._memory.pattern)
        shingles = laid.shingles()
        outside = ((shingles < low) | (shingles > high)).any(axis=1)
        if outside.any():
            i = int(np.flatnonzero(laid.is_whole)[np.argmax(outside)])
            raise ValueError(
                f"the shingle that ends at row {i} lies outside the domain of the forest: widen the domain or leave "
                "the row out"
            )


def _as_table(X: Any) -> Any:
    """A line of readings as a table of one channel; a table as it is."""
    if hasattr(X, "to_frame") and not hasattr(X, "columns"):
        return X.to_frame()
    return np.reshape(X, (-1, 1)) if not hasattr(X, "columns") and np.ndim(X) == 1 else X


def _at(is_whole: Array, answers: Array) -> Array:
    """Answers for whole rows in their places, NaN in the others, (n_answers, n_rows)."""
    if answers.shape[1] == len(is_whole):
        return answers
    placed = np.full((len(answers), len(is_whole)), np.nan)
    placed[:, is_whole] = answers
    return placed


def _ask(forest: StreamingMPF, task: Task, shingles: Array, keys: list[Key], times: Array | None) -> Array:
    """What the task asks of shingles, which are then learned, (numbers of the task, n_shingles)."""
    if task is Task.SCORE:
        return forest.score_then_learn(shingles, keys=keys, times=times)[None]
    if task is Task.JUDGE:
        return np.stack(forest.judge_then_learn(shingles, keys=keys, times=times))
    forest.partial_fit(shingles, keys=keys, times=times)
    return np.empty((0, len(shingles)))


def _as_judgements(answers: Array) -> Judgements:
    scores, p_values, is_anomaly, lines = answers
    return Judgements(scores, p_values, is_anomaly > 0, lines)


def _renamed(said: Explanations, names: list[str]) -> Explanations:
    """Explanations with other names for the features, also in words that have been looked up already."""
    said.names[:] = names  # the list that all of them share
    for explanation in said._made.values():
        if "_words" in vars(explanation):
            words = explanation._words
            blamed = [blame._replace(name=names[blame.feature]) for blame in words.blamed]
            vars(explanation)["_words"] = words._replace(blamed=blamed)
    return said


def _parameters_of(forest: StreamingMPF) -> dict[str, Any]:
    return {name: encode(value) for name, value in forest.get_params(deep=False).items()}


def _forest_of(parameters: dict[str, Any]) -> StreamingMPF:
    """A forest that has learned nothing, by the parameters in a file."""
    forest = StreamingMPF(**{name: decode(value) for name, value in parameters.items()})
    forest._validate_params()
    return forest


_UNBEGUN = schema.record({"parameters": schema.parameters(StreamingMPF._get_param_names())})
_STATE = schema.record(
    {
        "detector": schema.text,
        "parameters": schema.parameters([name for name in SeriesMPF._get_param_names() if name != "forest"]),
        "template": schema.either(schema.nothing, schema.parameters(StreamingMPF._get_param_names())),
        "n_features": schema.n_features,
        "feature_names": schema.either(schema.nothing, schema.names),
        "series": schema.mapping,
        "forest": schema.mapping,
        "notes": schema.mapping,
    },
    optional=["notes"],
)


def _under(name: str, arrays: Arrays) -> Arrays:
    """Arrays under names that begin with `name`."""
    return {f"{name}/{field}": part for field, part in arrays.items()}


def _from_under(name: str, arrays: Arrays) -> Arrays:
    """Those of the arrays that were put `_under` a name."""
    return {field.removeprefix(f"{name}/"): part for field, part in arrays.items() if field.startswith(f"{name}/")}
