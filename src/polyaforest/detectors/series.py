"""The detector for time series: forests on context windows or shingles of the readings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import clone
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from polyaforest.detectors._detector import remembers_frame
from polyaforest.detectors.series_queries import SeriesQueries, as_table
from polyaforest.detectors.streaming import StreamingMPF
from polyaforest.forest.json_parameters import decode, encode
from polyaforest.forest.point_store import Key
from polyaforest.forest.thresholds import Detections
from polyaforest.kernels.arrays import Array
from polyaforest.model.parameters import StreamParameters
from polyaforest.model.stream_model import LearnTask
from polyaforest.series.alarm_model import AlarmSeries
from polyaforest.series.calendar import AUTO, read_calendar, timezone_of
from polyaforest.series.history import check_channels
from polyaforest.series.model import SeriesModel, readings_of
from polyaforest.series.shingles import CONSTRAINTS, read_every, read_pattern
from polyaforest.storage.modelfile import Arrays, Header
from polyaforest.storage.state import reporting_invalid_pickle
from polyaforest.tables.validation import (
    NamedRows,
    check_countable,
    feature_names,
    read_keys,
    read_one_or_more_keys,
    read_rate,
    read_rows,
)
from polyaforest.util import schema


class SeriesMPF(SeriesQueries):
    """Streaming Mondrian Pólya forest for time series.

    The forest scores the context window that ends at each reading, rather than the reading alone; scores are higher
    for normal readings. Each quarter of the trees sees one of four views of the context window: *change* (differences
    of means over 1 to 32 steps, level, volatility), *shape* (a cosine transform of the last 96 readings), *season*
    (deviations from the readings one to three periods before) and *rhythm* (levels and phase of the periods). With
    ``shingle=n`` the forest scores the last n raw readings instead. Results do not depend on how readings are split
    into calls.

    Parameters
    ----------
    estimator : StreamingMPF, optional
        The forest to clone, a `StreamingMPF` by default. Its `window` counts context windows: "auto" is the last 2,048
        (a random sample of 2,048 after `fit`); None is not allowed. "auto" for `max_samples` is 256.
    shingle : "auto" or int, default="auto"
        Number of raw readings to score together; "auto" scores context windows.
    every : float or timedelta, optional
        Usual time between readings, in seconds or in the unit of numeric `times`. By default the median spacing of the
        first rows, which have no scores; after `fit`, of all rows.
    max_gap : int, default=3
        Most consecutive missing steps to interpolate.
    difference : bool, default=False
        Whether to score changes between steps instead of levels; requires an integer `shingle`.
    calendar : sequence of str, default=()
        Features to add to each context window, as sine and cosine; requires `times`: "time of day", "day of week",
        "day of month", and "public holidays DE" with the code of a country, or of a part of it, such as "DE-BY".
    timezone : str, default="auto"
        Time zone of the calendar and of texts, such as "Europe/Berlin" or "+02:00"; "auto" uses that of the first
        `times`, or UTC.
    rescale : float or None, default=2.0
        Change of scale that triggers new feature weights; None for never.
    short_memory : bool, default=True
        Whether to compare the last two and eight readings with the last 4,096, too, and to raise alarms at an absolute
        level; without effect with more than three channels, or if `shingle` is an integer.
    learn_alarms : bool, default=False
        Whether the readings of an open alarm are compared with right away, so that a long incident soon looks normal,
        instead of after its end.
    n_estimators : int, optional
        Number of trees, instead of that of `estimator`.
    random_state : int, optional
        Seed, instead of that of `estimator`.

    Attributes
    ----------
    estimator_ : StreamingMPF
        The forest, with ``shingle=n``.
    estimators_ : dict of str to StreamingMPF
        The forest of each view, or of the "shingle". Its keys are those of the last reading of each context window.
    n_seen_ : int
        Number of readings learned so far.
    n_points_ : int
        Number of context windows held.
    keys_ : list
        Keys of the readings that can be deleted.
    every_ : float or None
        The usual time between readings, if known.
    periods_ : tuple of int
        The periods of the series in steps, strongest first; empty if it has none.
    latest_ : float or None
        The time of the newest reading, if readings have times.
    n_features_in_ : int
        Number of channels.
    feature_names_in_ : ndarray of str
        Names of the channels, if rows are frames.

    Notes
    -----
    **Warm-up.** A context window needs 96 unbroken readings; if there are fewer than 128, they are mirrored. A stream
    has scores of NaN until it has learned 256 context windows, which set the feature weights. `fit` has no warm-up.

    **Gaps.** With `times`, the number of missing steps between two rows is round(time between them / `every`) - 1;
    without, rows are consecutive. NaN is missing too. Up to `max_gap` steps are interpolated linearly once the next
    reading arrives. After a longer gap a new context window starts, and scores are NaN until it is complete.

    **Scale.** Features are weighted by their spread over the context windows held, which is checked every 256
    readings. If the spread of a feature changes by more than a factor of `rescale`, the trees are regrown with new
    weights. All binary channels together weigh a quarter of another channel.

    **Periods.** Up to two periods are found by the autocorrelation of the last 3,200 readings, after 512, 1,024,
    2,048, ... readings; after `fit`, of all readings.

    **Alarms.** Context windows that share readings are anomalous together. The automatic threshold starts about one
    false *alarm* in a thousand normal readings, however long it lasts.

    **Short memory.** Readings have scores from the 24th on, a loud reading is flagged when it comes and no longer than
    it lasts, and a table is judged by both sides of each reading (``standalone=True``). Scores are minus a *level*,
    which grows with the log of the surprise; an alarm begins at level 1 (more in a series with a heavy tail, once 1,000
    readings have shown it) or where context windows stand out, lasts while the level is above 70 % of that, and is the
    new normal after 256 readings. In an alarm, `thresholds` are those that would have ended it. With more than three
    channels, and with ``short_memory=False``, context windows alone decide.

    **Novelty.** `detect_then_learn` and `detect` also return the distance d of a reading to the nearest of the last
    4,096, as d / (d + range), the maximum over channels; a deviation from the rhythm counts a quarter. The scale is the
    same for every series, so one limit, such as 0.02, fits all. It is 0 unless it exceeds that of the 64 readings
    before, and NaN for the first 100 readings and with ``shingle=n``.

    **Deletion.** `delete` removes every context window that depends on a reading, and a new context window starts
    after it. If the reading affected the feature weights, they are recomputed.

    Examples
    --------
    >>> import numpy as np
    >>> from polyaforest import SeriesMPF, StreamingMPF
    >>> wave = np.sin(np.arange(1200) / 4)
    >>> wave[1150:1153] = 0.0  # a usual value, but not three times in a row
    >>> series = SeriesMPF(StreamingMPF(random_state=0)).fit(wave[:1000])
    >>> series.periods_, int(series.score_samples(wave[1000:]).argmin()) + 1000 in range(1150, 1160)
    ((25,), True)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **CONSTRAINTS,
        "shingle": [StrOptions({"auto"}), *CONSTRAINTS["shingle"]],
        "estimator": [StreamingMPF, None],
        "rescale": [Interval(Real, 1, None, closed="neither"), None],
        "short_memory": ["boolean"],
        "learn_alarms": ["boolean"],
        "n_estimators": [Interval(Integral, 1, None, closed="left"), None],
        "random_state": [Interval(Integral, 0, 2**32 - 1, closed="both"), None],
    }

    def __init__(
        self,
        estimator: StreamingMPF | None = None,
        *,
        shingle: int | str = "auto",
        every: float | timedelta | None = None,
        max_gap: int = 3,
        difference: bool = False,
        calendar: Sequence[str] = (),
        timezone: str = "auto",
        rescale: float | None = 2.0,
        short_memory: bool = True,
        learn_alarms: bool = False,
        n_estimators: int | None = None,
        random_state: int | None = None,
    ) -> None:
        self.estimator = estimator
        self.shingle = shingle
        self.every = every
        self.max_gap = max_gap
        self.difference = difference
        self.calendar = calendar
        self.timezone = timezone
        self.rescale = rescale
        self.short_memory = short_memory
        self.learn_alarms = learn_alarms
        self.n_estimators = n_estimators
        self.random_state = random_state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_model" in state:
            with reporting_invalid_pickle(self):
                self._model.check_trees()
                self._check()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    @classmethod
    def from_stream(cls, forest: StreamingMPF, **parameters: Any) -> Self:
        """Return a detector that continues the stream of a forest, if the stream turns out to be a time series.

        The points held become the readings so far, with their keys and times. The companion of the forest continues
        with the detector.

        Parameters
        ----------
        forest : StreamingMPF
            A forest whose window holds the last points. Unchanged.
        **parameters
            Parameters of the detector, except `estimator`, which is a clone of the forest.
        """
        series = cls(clone(forest), **parameters)
        series._validate_params()
        with forest.reading():
            first, values, keys, times = readings_of(forest._model)
        names = getattr(forest, "feature_names_in_", None)
        rows = series._begin(values if names is None else NamedRows(values, names), times)
        series._model.begin_at(first)
        series._learn(rows, keys, times, LearnTask())
        series.companion = forest.companion
        return series

    # ---- learning ---------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None, *, keys: Any = None, times: Any = None) -> Self:
        """Fit the detector to the readings of a table, replacing any previous fit; `y` is ignored.

        Parameters
        ----------
        X : array-like or frame of shape (n_rows, n_channels), or (n_rows,) for one channel
            Readings in order; NaN where a value is missing.
        keys : sequence of int or str, optional
            Keys to `delete` readings by. The default key of a reading is its arrival number, from 0.
        times : array-like of float or datetime, optional
            The time of each reading. Pass times always or never.
        """
        self._validate_params()
        with self._lock.turn(), self._drafted() as draft:
            draft._grow(X, keys, times)
        return self

    def fit_predict(self, X: Any, y: Any = None, *, keys: Any = None, times: Any = None) -> Array:
        """Fit, then `predict` the same rows."""
        return self.fit(X, keys=keys, times=times).predict(X, times=times, standalone=True)

    def _grow(self, X: Any, keys: Any, times: Any) -> None:
        rows = self._begin(X, times)
        stamps, names = self._read_labels(len(rows), keys, times)
        self._model.fit(rows, stamps, names, is_timed=times is not None)

    def partial_fit(self, X: Any, y: Any = None, *, keys: Any = None, times: Any = None) -> Self:
        """Learn readings in order; `y` is ignored. Parameters as in `fit`."""
        self._advance(X, keys, times, LearnTask())
        return self

    def score_then_learn(self, X: Any, *, keys: Any = None, times: Any = None) -> Array:
        """Score the context window or shingle that ends at each reading, then learn it. Parameters as in `fit`.

        Returns
        -------
        scores : ndarray of shape (n_rows,)
            Higher is more normal; NaN where no complete context window ends.
        """
        return self._advance(X, keys, times, LearnTask(is_scored=True)).scores

    @remembers_frame
    def detect_then_learn(self, X: Any, *, keys: Any = None, times: Any = None, explain: bool = False) -> Detections:
        """Return scores, p-values, verdicts and `novelty` of each reading, then learn it. Parameters as in `fit`.

        Works as `StreamingMPF.detect_then_learn`. Where no complete context window ends, results are NaN and not
        flagged.
        """
        return self._advance(X, keys, times, LearnTask(is_scored=True, is_judged=True, is_explained=explain))

    def change_false_alarm_rate(self, rate: float | None) -> Self:
        """Change the `false_alarm_rate` of the estimator without fitting again.

        Parameters
        ----------
        rate : float between 0 and 1, or None
            As in `StreamingMPF.change_false_alarm_rate`.
        """
        estimator = StreamingMPF() if self.estimator is None else clone(self.estimator)
        estimator.change_false_alarm_rate(rate)
        with self._lock.turn(), self._changing():
            self.estimator = estimator
            if self.is_fitted:
                self._model.change_false_alarm_rate(rate)
        return self

    def flag_at_rate(self, rate: float) -> Self:
        """Flag rows at a false alarm rate, by the calibration scores held, without changing what to learn.

        Parameters
        ----------
        rate : float between 0 and 1
            Replaces `contamination` and `false_alarm_rate` of the forests; those of `estimator` are unchanged.
        """
        check_is_fitted(self)
        rate = read_rate("rate", rate)
        with self._lock.turn(), self._changing():
            self._model.flag_at_rate(rate)
        return self

    def delete(self, keys: Key | Iterable[Key]) -> Self:
        """Delete readings exactly, with every context window or shingle that depends on them.

        If the newest readings depend on a deleted one, the next context window starts after it. If nothing is held any
        more, the forest starts again.

        Parameters
        ----------
        keys : int, str, or a sequence of them
            If a key is not in ``keys_``, KeyError is raised and nothing is deleted.
        """
        check_is_fitted(self)
        self._check_companion()
        wanted = read_one_or_more_keys(keys)
        with self._lock.turn(), self._changing():
            self._model.delete(wanted)
        self._have_companion_forget(wanted)
        return self

    def delete_rows(self, X: Any) -> Self:
        """Delete readings by value: for each row of `X` the oldest equal reading at which a shingle held ends.

        If there is none, ValueError is raised and nothing is deleted. With ``difference=True`` readings are not held:
        use `delete`.
        """
        rows = self._read(X)
        with self._frozen():
            keys = self._model.keys_of_rows(rows)
        return self.delete(keys)

    # ---- files ------------------------------------------------------------------------------------------------------

    def _state(self, *, is_compact: bool = False) -> tuple[Header, Arrays]:
        """Return the parameters, history and forest."""
        names, parameters = getattr(self, "feature_names_in_", None), self.get_params(deep=False)
        template = parameters.pop("estimator")
        parameters["every"] = None if self.every is None else read_every(self.every)
        parameters["calendar"] = list(read_calendar(self.calendar))
        about, arrays = self._model.state(is_compact=is_compact)
        header = {
            "detector": type(self).__name__,
            "parameters": {name: part if isinstance(part, list) else encode(part) for name, part in parameters.items()},
            "template": None if template is None else template._parameters.stored(),
            "n_features": self.n_features_in_,
            "feature_names": None if names is None else [str(name) for name in names],
            **about,
        }
        return header, arrays

    @classmethod
    def _of_state(cls, header: Header, arrays: Arrays) -> Self:
        _STATE(header, "")
        template = None if header["template"] is None else StreamingMPF._of_stored(header["template"])
        series = cls(template, **{name: decode(value) for name, value in header["parameters"].items()})
        series.calendar = read_calendar(series.calendar)
        series._validate_params()
        series.n_features_in_ = header["n_features"]
        if header["feature_names"] is not None:
            series.feature_names_in_ = np.array(header["feature_names"], dtype=object)
        check_channels(arrays["series/values"], series.n_features_in_)
        given = feature_names(series), series._parameters, series.rescale
        series._model = series._kind.of_state(header, arrays, *given, _read_view)
        series._notes = header.get("notes", {})
        if not isinstance(series._notes, dict):
            raise ValueError(f"its notes are {series._notes!r}, not a mapping")
        series._check()
        return series

    def _check(self) -> None:
        """Raise ValueError if a state read from a file or a pickle is inconsistent."""
        names = getattr(self, "feature_names_in_", None)
        if names is not None and len(names) != self.n_features_in_:
            raise ValueError(f"it has {len(names)} channel names for {self.n_features_in_} channels")
        self._model.check()

    # ---- inner workings ---------------------------------------------------------------------------------------------

    @property
    def _parameters(self) -> StreamParameters:
        """The parameters of the forests, as given."""
        given = {"n_estimators": self.n_estimators, "random_state": self.random_state}
        forest = StreamingMPF() if self.estimator is None else self.estimator
        return forest._parameters.but(**{name: value for name, value in given.items() if value is not None})

    def _begin(self, X: Any, times: Any) -> Array:
        """Start a series with the current parameters; return the validated rows."""
        rows = read_rows(self, as_table(X), reset=True, allow_missing=True)
        pattern = read_pattern(self)
        if pattern.timezone == AUTO:
            pattern = pattern._replace(timezone=timezone_of(times))
        given = feature_names(self), read_every(self.every), self._parameters, self.rescale
        self._model, self._notes = self._kind(pattern, *given), {}
        if isinstance(self._model, AlarmSeries):
            self._model.monitor.holds = not self.learn_alarms
        return rows

    @property
    def _kind(self) -> type[SeriesModel]:
        return AlarmSeries if self.has_short_memory else SeriesModel

    def _advance(self, X: Any, keys: Any, times: Any, task: LearnTask) -> Detections:
        """Learn rows; return the results of the task."""
        if not self.is_fitted:
            with self._lock.turn():
                if not self.is_fitted:  # no other thread was faster
                    self._validate_params()
                    with self._drafted() as draft:
                        return draft._learn(draft._begin(X, times), keys, times, task)
        rows = self._read(X, at_least=0, allow_missing=True)
        with self._lock.turn():
            return self._learn(rows, keys, times, task)

    def _learn(self, rows: Array, keys: Any, times: Any, task: LearnTask) -> Detections:
        """Validate rows, then learn them piece by piece. Ctrl-C takes effect between pieces."""
        model, (stamps, names) = self._model, self._read_labels(len(rows), keys, times)
        model.check_rows(rows, stamps)
        if len(rows):
            model.history.is_timed = times is not None
        answers = []
        for part in model.pieces(len(rows)):
            with self._changing():
                answers.append(model.learn(rows[part], stamps[part], names[part], task))
        return Detections.joined(answers)

    # ---- validation -------------------------------------------------------------------------------------------------

    def _read_labels(self, n_rows: int, keys: Any, times: Any) -> tuple[Array, list[Key | None]]:
        """Return the validated times and keys of rows to learn."""
        stamps, names, history = self._read_times(n_rows, times), read_keys(keys, n_rows), self._model.history
        check_countable(history.n_seen, n_rows)
        history.provenance.check_keys(names, history.n_seen)
        return stamps, names


def _read_view(header: Header) -> StreamParameters:
    """Return the validated parameters of a view in a file."""
    _FOREST(header["parameters"], "parameters")
    return StreamingMPF._of_stored(header["parameters"])._parameters


_FOREST = schema.parameters(StreamingMPF._names_in_files())
_STATE = schema.record(
    {
        "detector": schema.text,
        "parameters": schema.parameters([name for name in SeriesMPF._get_param_names() if name != "estimator"]),
        "template": schema.either(schema.nothing, _FOREST),
        "n_features": schema.n_features,
        "feature_names": schema.either(schema.nothing, schema.names),
        "series": schema.mapping,
        "forest": schema.mapping,
        "novelty": schema.whole(),
        "alarms": schema.mapping,
        "notes": schema.mapping,
    },
    optional=["novelty", "alarms", "notes"],
)
