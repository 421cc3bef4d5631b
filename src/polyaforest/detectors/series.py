"""The detector for time series: forests on context windows or shingles of the readings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from math import isnan
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import clone
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from polyaforest.detectors._detector import Detector
from polyaforest.detectors._views import Views
from polyaforest.detectors.streaming import StreamingMPF
from polyaforest.explain import Explanation, read_features
from polyaforest.forest.parameters import decode, encode
from polyaforest.forest.point_store import Key, places_of
from polyaforest.forest.retention import Policy, Reservoir, as_policy
from polyaforest.forest.score_types import Score
from polyaforest.forest.spec import weighting_of_rows
from polyaforest.forest.thresholds import NOTHING, Detections
from polyaforest.kernels.arrays import NONE, Array
from polyaforest.kernels.boxes import empty_box
from polyaforest.model.stream_model import LearnTask
from polyaforest.series.calendar import AUTO, read_calendar, timezone_of
from polyaforest.series.contexts import PHASE, REACH, layout_of, phase_features
from polyaforest.series.forecasts import Forecast
from polyaforest.series.history import SeriesHistory, widths_of_state
from polyaforest.series.rhythm import find_periods
from polyaforest.series.shingles import (
    CONSTRAINTS,
    Alignment,
    check_times,
    measured_spacing,
    new_track,
    read_every,
    read_pattern,
)
from polyaforest.storage.modelfile import Arrays, Header
from polyaforest.storage.state import reporting_invalid_pickle
from polyaforest.tables.validation import (
    NamedRows,
    check_countable,
    feature_names,
    read_domain,
    read_flags,
    read_keys,
    read_one_or_more_keys,
    read_rows,
    read_stamps,
    read_weights,
)
from polyaforest.util import schema

_PIECE = 256  # readings to learn at a time, and after which the scale of features is checked
_WINDOW = 2048  # shingles held by default
_SWITCHES = 4.0  # factor by which all binary channels together weigh less than another channel
_FARTHEST = 1024  # most steps of a forecast
_FIRST_RHYTHM = 512  # readings before the first search for periods
_SAMPLES = 256  # shingles per tree by default: they lie along curves, which small samples miss


class SeriesMPF(Detector):
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
    calendar : sequence of {"time of day", "day of week"}, default=()
        Features to add to each context window, as sine and cosine; requires `times`.
    timezone : str, default="auto"
        Time zone of the calendar and of texts, such as "Europe/Berlin" or "+02:00"; "auto" uses that of the first
        `times`, or UTC.
    rescale : float or None, default=2.0
        Change of scale that triggers new feature weights; None for never.

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
    }

    _views: Views
    _history: SeriesHistory

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
    ) -> None:
        self.estimator = estimator
        self.shingle = shingle
        self.every = every
        self.max_gap = max_gap
        self.difference = difference
        self.calendar = calendar
        self.timezone = timezone
        self.rescale = rescale

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_views" in state:
            with reporting_invalid_pickle(self):
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
        first, values, keys, times = _readings_of(forest)
        names = getattr(forest, "feature_names_in_", None)
        rows = series._begin(values if names is None else NamedRows(values, names), times)
        series._history.begin_at(first)
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
        self._check_extreme(rows)
        self._history.is_timed = times is not None
        if isnan(self._history.track.every) and self._history.is_timed:
            self._history.track = self._history.track._replace(every=measured_spacing(stamps))
        self._check_inside(rows, stamps)
        aligned = self._history.align(rows, stamps)
        if aligned.pattern.shingle is None:
            periods = find_periods(aligned.track.values[aligned.places][aligned.is_complete])
            aligned = aligned._replace(track=aligned.track._replace(periods=periods))
            self._history.known.learn(aligned.rows, aligned.deviations())
        self._fit_forest(aligned, stamps, names)

    def _fit_forest(self, aligned: Alignment, stamps: Array, names: list[Key | None]) -> None:
        """Fit the forests to the shingles of a table, and weigh features by the shingles held."""
        shingles, ends = aligned.shingles(), np.flatnonzero(aligned.is_whole)
        if not len(shingles):
            raise ValueError(
                f"these {len(aligned.places)} rows contain no {aligned.pattern.whole}: pass more rows, or set a "
                "smaller shingle or a larger max_gap"
            )
        self._history.provenance.enter_names(names, 0)
        kept = self._chosen(len(shingles))
        keys = [self._history.provenance.key_of(end) for end in ends[kept].tolist()]
        self._damp_switches(shingles)
        self._views.fit(
            shingles[kept], keys, stamps[ends[kept]] if self._history.is_timed else None, ends[kept].tolist()
        )
        self._commit(aligned, ends)
        if self.rescale is not None and self._views.n_points < len(kept):
            self._views.rebuild()
        self._note_spread(self._history.n_seen)
        self._views.measure_run_length(shingles)

    def _chosen(self, n: int) -> Array:
        """Return the context windows of a table to learn: all, or a random sample of the size of the window."""
        is_default = self.estimator is None or self.estimator.window == "auto"
        if self._history.pattern.shingle is not None or not is_default or n <= _WINDOW:
            return np.arange(n)
        rng = np.random.default_rng(self._views.first._seed())
        return np.sort(rng.choice(n, _WINDOW, replace=False))

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
            if hasattr(self, "_views"):
                self._views.change_false_alarm_rate(rate)
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
            numbers = self._numbers_of(wanted)
            gone = self._history.provenance.with_any(numbers)
            had_part_in_scale = any(number < self._history.weighed_at for number in numbers)
            if gone:
                self._views.delete(gone)
            self._history.forget(numbers)
            self._history.provenance.prune(self._held, self._history.recent)
            if gone and not self._views.n_points:
                self._history.follow_rhythm(())
                self._begin_forest()
            elif self._history.track.periods and self._views.n_points:
                self._amend_rhythm()  # deviations may depend on the deleted readings
            if gone and had_part_in_scale and self.rescale is not None and self._views.n_points:
                self._views.rebuild()
                self._note_spread(self._history.n_seen)
        self._have_companion_forget(wanted)
        return self

    def delete_rows(self, X: Any) -> Self:
        """Delete readings by value: for each row of `X` the oldest equal reading at which a shingle held ends.

        If there is none, ValueError is raised and nothing is deleted. With ``difference=True`` readings are not held:
        use `delete`.
        """
        check_is_fitted(self)
        if self._history.pattern.difference:
            raise ValueError("with difference=True readings are not held: delete them by key")
        rows = read_rows(self, _as_table(X, self.n_features_in_), reset=False)
        names = self._history.pattern.names(feature_names(self))
        newest = [names.index(channel) for channel in feature_names(self)]
        points, keys = (self._views.points, self._views.first.keys_) if self._has_begun else (np.empty((0, 1)), [])
        return self.delete([keys[place] for place in places_of(rows, points[:, newest] if len(keys) else points)])

    def _numbers_of(self, keys: Sequence[Key]) -> list[int]:
        """Return the numbers of the readings with these keys."""
        numbers = []
        for key in keys:
            number = self._history.provenance.number_of(key, self._history.n_seen)
            if number is None:
                raise KeyError(f"no reading with key {key!r} is held. Nothing was deleted")
            numbers.append(number)
        if len(set(numbers)) < len(numbers):
            raise ValueError("a key occurs more than once. Nothing was deleted")
        return numbers

    # ---- as if rows came next ---------------------------------------------------------------------------------------

    def score_samples(self, X: Any, *, times: Any = None, standalone: bool = False) -> Array:
        """Return the scores of rows, as the next readings of the series, without learning them.

        Parameters
        ----------
        X, times
            As in `fit`.
        standalone : bool, default=False
            Whether the rows are a separate series, such as the one passed to `fit`, instead of the next readings.

        Returns
        -------
        scores : ndarray of shape (n_rows,)
            Higher is more normal; NaN where no complete context window ends, or during warm-up.
        """
        with self._looking_ahead(X, times, standalone) as aligned:
            scores = np.full(len(aligned.is_whole), np.nan)
            if aligned.is_whole.any():
                scores[aligned.is_whole] = self._views.score_samples(aligned.shingles())
            return scores

    def detect(self, X: Any, *, times: Any = None, standalone: bool = False) -> Detections:
        """Return what `detect_then_learn` would, without learning the rows. Parameters as in `score_samples`."""
        with self._looking_ahead(X, times, standalone) as aligned:
            shingles = aligned.shingles()
            found = _placed(aligned.is_whole, self._views.detect(shingles) if len(shingles) else NOTHING)
            history = self._history_of(standalone)
            return found._replace(novelty=history.judge(aligned, history.known.copy()))

    def predict(self, X: Any, **labels: Any) -> Array:
        """Return +1 for normal rows and rows without a score, and -1 for anomalies."""
        return np.where(self.score_samples(X, **labels) < self.offset_, -1, 1)

    @property
    def offset_(self) -> float:
        """The threshold: ``decision_function = score_samples - offset_``."""
        check_is_fitted(self)
        return self._views.offset if self._has_begun else -np.inf

    def _p_values(self, scores: Array) -> Array:
        is_whole, p_values = ~np.isnan(scores), np.full(len(scores), np.nan)
        p_values[is_whole] = self._views.p_values(scores[is_whole])
        return p_values

    def _check_calibrated(self) -> None:
        check_is_fitted(self)
        if not self._has_begun:
            raise ValueError("this detector has no calibration scores: learn more readings first")
        self._views.first._check_calibrated()

    def explain(
        self,
        X: Any,
        features: Sequence[str | int] | None = None,
        *,
        times: Any = None,
        rows: Sequence[int] | None = None,
        standalone: bool = False,
    ) -> Sequence[Explanation]:
        """Explain the context windows or shingles that end at rows, without learning them.

        In shingles, feature "cpu" is the newest reading and "cpu[-3]" the one three steps before.

        Parameters
        ----------
        X, times, standalone
            As in `score_samples`.
        features
            As in `StreamingMPF.explain`.
        rows : sequence of int, optional
            Indices of the rows to explain; all by default.

        Returns
        -------
        explanations : sequence of Explanation
            A context window is explained by its most anomalous view. See `bits_by_channel` for totals by channel.
        """
        check_is_fitted(self)
        read_features(features, self._history.pattern.names(feature_names(self)))  # raise before reading rows
        with self._looking_ahead(X, times, standalone) as aligned:
            wanted = np.arange(len(aligned.is_whole)) if rows is None else np.asarray(rows, np.int64)
            if not len(wanted):
                raise ValueError("there are no rows to explain")
            silent = wanted[~aligned.is_whole[wanted]]
            if len(silent):
                raise ValueError(
                    f"row {silent[0]} has no score, so there is nothing to explain: it ends no "
                    f"{self._history.pattern.whole}, or the detector is warming up. Pass rows= with scores only"
                )
            shingles = aligned.shingles()[np.cumsum(aligned.is_whole)[wanted] - 1]
            return self._views.explain(shingles, features, aligned, aligned.places[wanted], is_apart=standalone)

    def expect(self, X: Any, *, times: Any = None, standalone: bool = False, unseen: Any = None) -> Forecast:
        """Return the reading expected at each row, given the rows before it, without learning them.

        Parameters
        ----------
        X, times, standalone
            As in `score_samples`. With `standalone`, context windows that share readings with a row are not used for
            it.
        unseen : array-like of bool, shape (n_rows,), optional
            Rows to ignore, such as flagged ones: the forecast continues across them from the last row before.

        Returns
        -------
        expected : Forecast
            A named tuple of arrays of shape (n_rows, n_channels): `mean`, `low`, `high` and `median`; NaN where no
            context window ends before a row.

        Examples
        --------
        >>> import numpy as np
        >>> from polyaforest import SeriesMPF, StreamingMPF
        >>> wave = np.sin(np.arange(1000) / 8)
        >>> is_odd = np.arange(1000) // 20 == 35
        >>> series = SeriesMPF(StreamingMPF(random_state=0)).fit(np.where(is_odd, 0.0, wave))
        >>> expected = series.expect(np.where(is_odd, 0.0, wave), standalone=True, unseen=is_odd)
        >>> bool(np.abs(expected.mean[is_odd, 0] - wave[is_odd]).max() < 0.2)
        True
        """
        with self._looking_ahead(X, times, standalone) as aligned:
            expected = Forecast.nothing(len(aligned.places), self.n_features_in_)
            hidden = np.zeros(len(aligned.track.values), np.bool_)
            if unseen is not None:
                hidden[aligned.places] = read_flags("unseen", unseen, len(aligned.places))
            if self._history.pattern.shingle is not None:
                raise ValueError("expect needs context windows: set shingle='auto'")
            if self._is_silent or not self._views.n_points:
                return expected
            ends = aligned.ends_context() & ~hidden
            before = np.maximum.accumulate(np.where(ends, np.arange(len(ends)), NONE))
            origins = np.append(NONE, before)[aligned.places]
            ahead = np.where(origins != NONE, aligned.places - origins, 0)
            outlook = self._views.outlook(aligned, is_apart=standalone, unseen=hidden)
            rows = np.flatnonzero(ahead == 1)
            if len(rows):
                expected.fill(rows, outlook.after(origins[rows], aligned.states(origins[rows]), 1))
            for origin in np.unique(origins[(ahead > 1) | hidden[aligned.places]]).tolist():
                rows = np.flatnonzero((origins == origin) & (ahead <= _FARTHEST))
                if origin != NONE and len(rows):
                    steps = np.arange(origin + 1, aligned.places[rows[-1]] + 1)
                    across = outlook.across(steps, aligned.states(np.array([origin])))
                    expected.fill(rows, Forecast(*(part[aligned.places[rows] - origin - 1] for part in across)))
            return expected

    def forecast(self, n_steps: int = 1) -> Forecast:
        """Forecast the next readings, with a range for nine readings in ten.

        The forecast averages the continuations of similar context windows, weighted by the probability that the forest
        puts them into one cell. If the series has a period, it uses context windows with a similar deviation from the
        rhythm instead, where their range is narrower.

        Parameters
        ----------
        n_steps : int, default=1
            Steps to look ahead, at most 1,024; fewer if few context windows are held.

        Returns
        -------
        forecast : Forecast
            A named tuple of arrays of shape (n_steps, n_channels): `mean`, `low`, `high` and `median`.

        Examples
        --------
        >>> import numpy as np
        >>> from polyaforest import SeriesMPF, StreamingMPF
        >>> series = SeriesMPF(StreamingMPF(random_state=0)).partial_fit(np.sin(np.arange(1000) / 8))
        >>> error = np.abs(series.forecast(3).mean[:, 0] - np.sin(np.arange(1000, 1003) / 8)).max()
        >>> bool(error < 0.05)
        True
        """
        check_is_fitted(self)
        if not isinstance(n_steps, Integral) or isinstance(n_steps, bool) or not 1 <= n_steps <= _FARTHEST:
            raise ValueError(f"n_steps must be an integer from 1 to {_FARTHEST:,}; got {n_steps!r}")
        with self._frozen():
            if self._history.pattern.shingle is not None:
                raise ValueError("forecast needs context windows: set shingle='auto'")
            expected = Forecast.nothing(int(n_steps), self.n_features_in_)
            aligned = self._history.align(np.empty((0, self.n_features_in_)), np.empty(0))
            newest = np.array([len(aligned.track.values) - 1])
            if self._has_begun and self._views.n_points and aligned.ends_context()[-1:].any():
                outlook, state = self._views.outlook(aligned), aligned.states(newest)
                for step in range(int(n_steps)):
                    expected.fill(slice(step, step + 1), outlook.after(newest, state, step + 1))
        if np.isnan(expected.mean).any():
            raise ValueError(
                f"there are too few unbroken readings to forecast {n_steps} steps ahead: learn more readings first"
            )
        return expected

    def bits_by_channel(self, explanation: Explanation) -> dict[str, float]:
        """Return the bits of each channel in an explanation, summed over steps, largest first.

        Calendar features are listed under their own names.
        """
        check_is_fitted(self)
        pattern, names = self._history.pattern, feature_names(self)
        channels = pattern.channels(self.n_features_in_)
        owner = dict(zip(pattern.names(names), channels.tolist(), strict=True))
        if not set(explanation.names) <= set(owner):
            raise ValueError("the explanation has features that do not belong to this series")
        bits = dict.fromkeys([*names, *(_word(name) for name, c in owner.items() if c == NONE)], 0.0)
        for name, part in zip(explanation.names, explanation.parts.tolist(), strict=True):
            whose = names[owner[name]] if owner[name] != NONE else _word(name)
            bits[whose] += part
        return dict(sorted(bits.items(), key=lambda item: -item[1]))

    @contextmanager
    def _looking_ahead(self, X: Any, times: Any, standalone: bool) -> Iterator[Alignment]:
        """Align rows after the series, or separately; no row is complete if the detector has no scores yet."""
        check_is_fitted(self)
        rows = read_rows(self, _as_table(X, self.n_features_in_), reset=False, allow_missing=True)
        with self._frozen():
            self._check_extreme(rows)
            history = self._history_of(standalone)
            aligned = history.align(rows, self._read_times(len(rows), times, history))
            yield aligned._replace(is_whole=np.zeros(len(rows), np.bool_)) if self._is_silent else aligned

    def _history_of(self, standalone: bool) -> SeriesHistory:
        """Return the history that rows continue: the series so far, or an empty one with the same rhythm."""
        history = self._history
        return (
            SeriesHistory(history.pattern, history.track.last(0), is_timed=history.is_timed) if standalone else history
        )

    # ---- points held -------------------------------------------------------------------------------------------------

    @property
    def n_seen_(self) -> int:
        """Number of readings learned so far: the position in the series."""
        check_is_fitted(self)
        return self._history.n_seen

    @property
    def is_fitted(self) -> bool:
        """Whether the detector has learned any reading."""
        return hasattr(self, "_views")

    @property
    def nbytes(self) -> int:
        """Size of the trees and of the shingles held, in bytes; 0 before fitting."""
        return self._views.nbytes if self.is_fitted else 0

    @property
    def estimator_(self) -> StreamingMPF:
        """The forest, with ``shingle=n``."""
        check_is_fitted(self)
        if not self._views.is_one:
            raise AttributeError("with shingle='auto' there is one forest for each view: use estimators_")
        return self._views.first

    @property
    def estimators_(self) -> dict[str, StreamingMPF]:
        """The forest of each view, or of the "shingle"."""
        check_is_fitted(self)
        names = [view.name for view in layout_of(self.n_features_in_).views] if not self._views.is_one else ["shingle"]
        return dict(zip(names, self._views.members, strict=True))

    @property
    def n_points_(self) -> int:
        """Number of context windows or shingles held."""
        check_is_fitted(self)
        return self._views.n_points

    @property
    def keys_(self) -> list[Key]:
        """Keys of the readings that can be deleted, by order of arrival."""
        check_is_fitted(self)
        with self._frozen():
            provenance = self._history.provenance
            return [provenance.key_of(number) for number in provenance.known(self._history.n_seen)]

    def holds(self, key: Key) -> bool:
        """Return whether a reading with this key can be deleted."""
        if not hasattr(self, "_views"):
            return False
        with self._frozen():
            return self._history.provenance.number_of(key, self._history.n_seen) is not None

    @property
    def reach(self) -> int:
        """Number of rows after an anomalous reading that may look anomalous because of it."""
        return REACH if isinstance(self.shingle, str) else int(self.shingle)

    @property
    def every_(self) -> float | None:
        """The usual time between readings, if known."""
        check_is_fitted(self)
        return self._history.track.every if self._history.track.every > 0 else None

    @property
    def periods_(self) -> tuple[int, ...]:
        """The periods of the series in steps, strongest first; empty if it has none."""
        check_is_fitted(self)
        return self._history.track.periods

    @property
    def latest_(self) -> float | None:
        """The time of the newest reading; None if readings have no times."""
        check_is_fitted(self)
        return self._history.track.latest if self._history.is_timed else None

    @property
    def _has_begun(self) -> bool:
        """Whether the forest has learned any shingle."""
        return self._views.has_begun

    # ---- files ------------------------------------------------------------------------------------------------------

    def _state(self, *, is_compact: bool = False) -> tuple[Header, Arrays]:
        """Return the parameters, history and forest."""
        names, parameters = getattr(self, "feature_names_in_", None), self.get_params(deep=False)
        template = parameters.pop("estimator")
        parameters["every"] = None if self.every is None else read_every(self.every)
        parameters["calendar"] = list(read_calendar(self.calendar))
        about, own = self._history.state()
        inner, parts = self._views.state(is_compact=is_compact)
        of_contexts = {"novelty": len(self._history.known)} if self._history.pattern.shingle is None else {}
        header = {
            "detector": type(self).__name__,
            "parameters": {name: part if isinstance(part, list) else encode(part) for name, part in parameters.items()},
            "template": None if template is None else template._parameters(),
            "n_features": self.n_features_in_,
            "feature_names": None if names is None else [str(name) for name in names],
            "series": about,
            "forest": inner,
            **of_contexts,
        }
        return header, {**_under("series", own), **_under("forest", parts)}

    @classmethod
    def _of_state(cls, header: Header, arrays: Arrays) -> Self:
        _STATE(header, "")
        unknown = [name for name in arrays if name.partition("/")[0] not in ("series", "forest")]
        if unknown:
            raise ValueError(f"array {unknown[0]}: does not belong to this format version")
        is_there = ["series/readings" in arrays, "series/novelties" in arrays]
        n_known = len(arrays["series/readings"]) if all(is_there) else None
        if header.get("novelty") != n_known or is_there[0] != is_there[1]:
            raise ValueError(f"the header announces {header.get('novelty')} known readings, but the arrays differ")
        template = None if header["template"] is None else StreamingMPF._of_parameters(header["template"])
        series = cls(template, **{name: decode(value) for name, value in header["parameters"].items()})
        series.calendar = read_calendar(series.calendar)
        series._validate_params()
        series.n_features_in_ = header["n_features"]
        if header["feature_names"] is not None:
            series.feature_names_in_ = np.array(header["feature_names"], dtype=object)
        widths = widths_of_state(header["series"], series.n_features_in_)
        series._views = Views.of_state(header["forest"], _from_under("forest", arrays), widths, series.n_features_in_)
        held = series._views.first.keys_ if series._has_begun else []
        series._history = SeriesHistory.of_state(
            header["series"], _from_under("series", arrays), series.n_features_in_, held
        )
        series._views.steps = {key: newest for key, (_, newest) in series._history.provenance.spans.items()}
        series._name_features()
        series._notes = header.get("notes", {})
        if not isinstance(series._notes, dict):
            raise ValueError(f"its notes are {series._notes!r}, not a mapping")
        series._check()
        return series

    def _check(self) -> None:
        """Raise ValueError if a state read from a file or a pickle is inconsistent."""
        names, n_features = getattr(self, "feature_names_in_", None), self._history.n_features
        if names is not None and len(names) != self.n_features_in_:
            raise ValueError(f"it has {len(names)} channel names for {self.n_features_in_} channels")
        if self._history.pattern.shingle is None and self.estimator is not None:
            _check_columns(self.estimator)  # cloned again once all readings are deleted
        if not self._has_begun:
            self._check_holds_points(self._views.first)
            if self._history.pattern.shingle is None:
                _check_columns(self._views.first)
            self._check_inside(np.empty((0, self.n_features_in_)), np.empty(0))
            if not isinstance(self._views.first._tree.feature_weights, str):
                read_weights(self._views.first._tree.feature_weights, n_features)
        elif self._views.n_features != n_features or self._views.first.n_seen_ > self._history.n_seen:
            raise ValueError("its forests do not match its shingles")

    # ---- inner workings ---------------------------------------------------------------------------------------------

    def _begin(self, X: Any, times: Any) -> Array:
        """Start a series with the current parameters; return the validated rows."""
        rows = read_rows(self, _as_table(X), reset=True, allow_missing=True)
        pattern = read_pattern(self)
        if pattern.timezone == AUTO:
            pattern = pattern._replace(timezone=timezone_of(times))
        self._history = SeriesHistory(pattern, new_track(rows.shape[1], read_every(self.every)))
        self._notes = {}
        self._begin_forest()
        return rows

    @property
    def _policy(self) -> Policy:
        """The retention policy of the forest: of its stream, or of its parameters before it learns."""
        if self._has_begun and self._views.first._stream.rules.policy is not None:
            return self._views.first._stream.rules.policy
        window = self._views.first.window
        assert window is not None
        assert not isinstance(window, str)
        return as_policy(window)

    @property
    def _domain(self) -> Array:
        """The bounds of shingles, (2, n_features); infinite if there are none."""
        if self._has_begun:
            return np.hstack([member.forest_.domain for member in self._views.members])
        domain, n_features = self._views.first._tree.domain, self._history.n_features
        is_given = domain is not None and not isinstance(domain, str)
        return read_domain(domain, n_features) if is_given else empty_box(n_features)

    def _begin_forest(self) -> None:
        forest = StreamingMPF() if self.estimator is None else clone(self.estimator)
        if isinstance(forest.window, str):
            forest.set_params(window=_WINDOW)
        if isinstance(forest.max_samples, str):
            forest.set_params(max_samples=_SAMPLES)
        if forest.score_type == Score.MARGINS:  # margins apply to values, not to features of context windows
            forest.set_params(score_type=str(Score.TYPICALITY))
        forest._validate_params()
        self._check_holds_points(forest)
        if self._history.pattern.shingle is None:
            _check_columns(forest)
        n_channels = self.n_features_in_
        self._views = Views.like(forest, self._history.pattern.widths(n_channels), n_channels)
        self._history.spread, self._history.weighed_at = None, 0
        self._name_features()

    def _name_features(self) -> None:
        """Name the features of the forests by channel and step."""
        names, first = self._history.pattern.names(feature_names(self)), 0
        for member, width in zip(self._views.members, self._views.widths, strict=True):
            member._names_of_shingle, first = names[first : first + width], first + width

    @staticmethod
    def _check_holds_points(forest: StreamingMPF) -> None:
        if forest.window is None or isinstance(forest.window, str):
            raise ValueError(
                "window=None is not allowed in the forest of a series, which must hold its points: set a window"
            )
        as_policy(forest.window)

    def _advance(self, X: Any, keys: Any, times: Any, task: LearnTask) -> Detections:
        """Learn rows; return the results of the task."""
        if not hasattr(self, "_views"):
            with self._lock.turn():
                if not hasattr(self, "_views"):  # no other thread was faster
                    self._validate_params()
                    with self._drafted() as draft:
                        return draft._learn(draft._begin(X, times), keys, times, task)
        rows = read_rows(self, _as_table(X, self.n_features_in_), reset=False, at_least=0, allow_missing=True)
        with self._lock.turn():
            return self._learn(rows, keys, times, task)

    def _learn(self, rows: Array, keys: Any, times: Any, task: LearnTask) -> Detections:
        """Validate rows, then learn them piece by piece. Ctrl-C takes effect between pieces."""
        stamps, names = self._read_labels(len(rows), keys, times)
        self._check_extreme(rows)
        self._check_inside(rows, stamps)
        if len(rows):
            self._history.is_timed = times is not None
        answers, start = [], 0
        while start < len(rows):
            stop = min(len(rows), start + _PIECE - self._history.n_seen % _PIECE)
            part = slice(start, stop)
            with self._changing():
                answers.append(self._learn_piece(rows[part], stamps[part], names[part], task))
            start = stop
        return Detections.joined(answers)

    def _learn_piece(self, rows: Array, stamps: Array, names: list[Key | None], task: LearnTask) -> Detections:
        aligned = self._history.align(rows, stamps)
        ends = np.flatnonzero(aligned.is_whole)
        keys = [self._history.n_seen + end if names[end] is None else names[end] for end in ends.tolist()]
        detected = self._teach(
            aligned, keys, stamps[ends] if self._history.is_timed else None, task, self._history.n_seen + ends
        )
        self._history.provenance.enter_names(names, self._history.n_seen)
        novelty = self._history.judge(aligned, self._history.known)
        self._commit(aligned, self._history.n_seen + ends)
        if self._history.n_seen % _PIECE == 0 and len(self._views.calibration) >= _PIECE:
            self._views.measure_run_length()
        self._find_rhythm_if_due()
        self._rescale_if_due()
        if not task.is_scored:
            return NOTHING
        placed = _placed(aligned.is_whole, detected)
        return placed._replace(novelty=novelty) if task.is_judged else placed

    def _teach(
        self, aligned: Alignment, keys: list[Any], stamps: Array | None, task: LearnTask, numbers: Array
    ) -> Detections:
        """Learn the shingles of rows, and record the scale whenever feature weights change."""
        shingles = aligned.shingles()
        answers, start = [], 0
        while start < len(shingles):
            n_until_weighed, is_silent = self._n_until_weighed, self._is_warming_up
            stop = min(len(shingles), start + (n_until_weighed or len(shingles)))
            part = slice(start, stop)
            times = None if stamps is None else stamps[part]
            detected = self._views.advance(
                shingles[part], keys[part], times, LearnTask() if is_silent else task, numbers[part].tolist(), aligned
            )
            answers.append(_silence(stop - start) if is_silent and task.is_scored else detected)
            if stop - start == n_until_weighed:
                if not self._n_until_weighed:
                    self._end_warm_up()
                self._note_spread(int(numbers[stop - 1]) + 1)
            start = stop
        return Detections.joined(answers)

    def _end_warm_up(self) -> None:
        """End the warm-up: reduce the weight of binary channels, which are known now."""
        self._damp_switches(self._views.points)
        if any(member._damping is not None for member in self._views.members):
            self._views.rebuild()

    @property
    def _n_until_weighed(self) -> int:
        """Number of shingles until the next change of feature weights during warm-up; 0 afterwards."""
        if not self._has_begun:
            return 1
        stream = self._views.first._stream
        return stream.next_rebuild - stream.store.n_seen if stream.next_rebuild else 0

    @property
    def _is_warming_up(self) -> bool:
        """Whether context windows are learned but not yet scored."""
        return self._history.pattern.shingle is None and self._n_until_weighed > 0

    @property
    def _is_silent(self) -> bool:
        """Whether the next rows have no scores."""
        return not self._has_begun or self._is_warming_up

    def _commit(self, aligned: Alignment, ends: Array) -> None:
        """Advance past learned rows, whose shingles end at the readings with numbers `ends`."""
        history = self._history
        if self._has_begun:
            history.provenance.enter(aligned.oldest().tolist(), ends.tolist(), self._held)
        history.track, history.n_seen = aligned.kept(), history.n_seen + len(aligned.places)
        history.provenance.prune(self._held, history.recent)

    @property
    def _held(self) -> Mapping[Key, object]:
        """The keys of the shingles held."""
        return self._views.first._stream.store.slot_of if self._has_begun else {}

    def _find_rhythm_if_due(self) -> None:
        """Search for periods in the last readings, at fixed counts so that chunks do not matter."""
        n_seen = self._history.n_seen
        is_due = n_seen >= _FIRST_RHYTHM and n_seen & (n_seen - 1) == 0
        if not is_due or self._history.pattern.shingle is not None or not self._views.n_points:
            return
        periods = find_periods(self._history.track.filled)
        if periods == self.periods_:
            return
        self._history.follow_rhythm(periods)
        self._amend_rhythm()
        self._note_spread(n_seen)

    def _amend_rhythm(self) -> None:
        """Recompute season and phase of the context windows held, and regrow their trees."""
        track, layout = self._history.track, layout_of(self.n_features_in_)
        numbers = np.array([newest for _, newest in self._history.provenance.spans.values()], np.int64)
        is_known = np.isin(numbers, track.numbers)
        season = np.zeros((len(numbers), layout.season.stop - layout.season.start))
        at = {int(number): place for place, number in enumerate(track.numbers.tolist()) if number != NONE}
        places = np.array([at[number] for number in numbers[is_known].tolist()], np.int64)
        season[is_known] = track.rhythm(places)[0]
        store = self._views.first._stream.store
        clock = store.times[store.held] / self.every_ if self.every_ and self._history.is_timed else 1.0 * numbers
        *_, seasonal, rhythm = self._views.members
        seasonal._amend(0, season)
        rhythm._amend(layout.widths[-1] - len(PHASE), phase_features(clock, track.periods))
        if len(self._views.calibration):
            self._views.recalibrate()

    def _rescale_if_due(self) -> None:
        """Recompute feature weights if a scale has changed, at fixed counts so that chunks do not matter."""
        is_due = self.rescale is not None and self._history.n_seen % _PIECE == 0 and self._history.spread is not None
        if not is_due or self._n_until_weighed or not self._views.n_points:
            return
        spread = weighting_of_rows(self._views.points).spread
        if np.maximum(spread / self._history.spread, self._history.spread / spread).max() > self.rescale:
            self._damp_switches(self._views.points)
            self._views.rebuild()
            self._note_spread(self._history.n_seen)

    def _damp_switches(self, features: Array) -> None:
        """Down-weight binary channels: together they weigh a quarter of another channel."""
        n_channels = self.n_features_in_
        if self._history.pattern.shingle is not None or n_channels == 1:
            return
        readings = features[:, layout_of(n_channels).readings()]
        is_switch = np.array([len(np.unique(column)) <= 2 for column in readings.T])
        factors = np.where(is_switch & ~is_switch.all(), _SWITCHES * is_switch.sum(), 1.0)
        channels = self._history.pattern.channels(n_channels)
        self._views.damp(np.where(channels == NONE, 1.0, factors[channels]))

    def _note_spread(self, n_seen: int) -> None:
        """Record the scale that the feature weights are based on."""
        if self.rescale is not None:
            self._history.spread, self._history.weighed_at = weighting_of_rows(self._views.points).spread, n_seen

    # ---- bad input --------------------------------------------------------------------------------------------------

    def _read_labels(self, n_rows: int, keys: Any, times: Any) -> tuple[Array, list[Key | None]]:
        """Return the validated times and keys of rows to learn."""
        stamps, names = self._read_times(n_rows, times, self._history), read_keys(keys, n_rows)
        check_countable(self._history.n_seen, n_rows)
        self._history.provenance.check_keys(names, self._history.n_seen)
        return stamps, names

    def _read_times(self, n_rows: int, times: Any, history: SeriesHistory) -> Array:
        """Return the validated times of the next rows of a history."""
        stamps = read_stamps(times, n_rows, needed=self._policy.needs_times)
        if n_rows and history.is_timed is not None and history.is_timed != (times is not None):
            before = "times" if history.is_timed else "no times"
            raise ValueError(f"earlier readings had {before}: pass times for all readings or for none")
        check_times(stamps, history.track.latest, history.pattern)
        return stamps

    def _check_extreme(self, rows: Array) -> None:
        """Raise ValueError if the difference of two readings could overflow."""
        largest = self._history.pattern.largest
        is_extreme = np.abs(rows) > largest
        if is_extreme.any():
            i, k = np.argwhere(is_extreme)[0]
            raise ValueError(
                f"row {i}, column {feature_names(self)[k]!r} is {rows[i, k]:g}: the largest supported value is "
                f"{largest:g}; rescale the column"
            )

    def _check_inside(self, rows: Array, stamps: Array) -> None:
        """Raise ValueError if a shingle lies outside a given domain."""
        low, high = self._domain
        if np.isinf(low).any():
            return
        aligned = self._history.align(rows, stamps)
        shingles = aligned.shingles()
        outside = ((shingles < low) | (shingles > high)).any(axis=1)
        if outside.any():
            i = int(np.flatnonzero(aligned.is_whole)[np.argmax(outside)])
            raise ValueError(
                f"the shingle that ends at row {i} lies outside the domain of the forest: widen the domain or omit "
                "the row"
            )


def _as_table(X: Any, n_channels: int = 1) -> Any:
    """Return one-dimensional readings of one channel as a table; anything else unchanged."""
    if hasattr(X, "columns") or n_channels != 1:
        return X
    if hasattr(X, "to_frame"):
        return X.to_frame()
    return np.reshape(X, (-1, 1)) if np.ndim(np.asanyarray(X)) == 1 else X


def _check_columns(forest: StreamingMPF) -> None:
    """Raise ValueError if the parameters of a forest do not work with context windows."""
    if isinstance(forest.window, Reservoir):
        raise ValueError(
            "a Reservoir does not work with shingle='auto', where several forests hold the same context windows: use "
            "a Window, or set shingle to a number of readings"
        )
    if any(
        np.ndim(part) or part == "data"
        for part in (forest._tree.domain, forest._tree.feature_weights)
        if part is not None
    ):
        raise ValueError(
            "feature_weights and domain do not work with shingle='auto', where features are computed: omit them, or "
            "set shingle to a number of readings"
        )
    if forest.score_type not in (Score.MARGINS, Score.TYPICALITY, Score.LOG_MASS):
        raise ValueError(
            f"score_type={forest.score_type!r} does not work with shingle='auto': use 'typicality' or 'log_mass', or "
            "set shingle to a number of readings"
        )


def _readings_of(forest: StreamingMPF) -> tuple[int, Array, list[Key | None], Array | None]:
    """Return the readings that a forest holds: the number of the first, values, keys and times.

    Deleted readings are rows of NaN.
    """
    with forest._with_points() as stream:
        store, held = stream.store, stream.store.held
        if not len(held):
            raise ValueError("the forest holds no points to start a series with")
        if store.policy.is_random:
            raise ValueError("the forest holds a random sample, not a series: use a window that holds the last points")
        arrivals, stamps = stream.numbers[held], store.times[held]
        numbers = np.arange(arrivals[0], store.n_seen)
        values, keys = np.full((len(numbers), forest.n_features_in_), np.nan), list[Key | None]([None] * len(numbers))
        values[arrivals - arrivals[0]] = stream.columns.shown(stream.rows)
        for number, slot in zip(arrivals.tolist(), held.tolist(), strict=True):
            key = store.keys[slot]
            keys[number - arrivals[0]] = None if key == number else key
        times = None if np.isnan(stamps).any() else np.interp(numbers, arrivals, stamps)
    return int(arrivals[0]), values, keys, times


def _word(name: str) -> str:
    """Return the subject of a calendar feature: "time of day" for its sine and its cosine."""
    return name.rpartition(" (")[0].removeprefix("shorter ")


def _silence(n: int) -> Detections:
    """Return empty results for `n` rows."""
    nothing = np.full(n, np.nan)
    return Detections(nothing, nothing, np.zeros(n, np.bool_), nothing)


def _placed(is_whole: Array, detected: Detections) -> Detections:
    """Return the results of complete shingles at their rows, and NaN elsewhere."""
    if len(detected.scores) == len(is_whole):
        return detected
    places = np.flatnonzero(is_whole)
    numbers = []
    for part in (detected.scores, detected.p_values, detected.thresholds, detected.tail_bits):
        placed = np.full(len(is_whole), np.nan)
        placed[places[: len(part)]] = part
        numbers.append(placed)
    is_anomaly = np.zeros(len(is_whole), np.bool_)
    is_anomaly[places[: len(detected.is_anomaly)]] = detected.is_anomaly
    explanations = {int(places[i]): explanation for i, explanation in detected.explanations.items()}
    return Detections(numbers[0], numbers[1], is_anomaly, numbers[2], explanations, tail_bits=numbers[3])


_STATE = schema.record(
    {
        "detector": schema.text,
        "parameters": schema.parameters([name for name in SeriesMPF._get_param_names() if name != "estimator"]),
        "template": schema.either(schema.nothing, schema.parameters(StreamingMPF._names_in_files())),
        "n_features": schema.n_features,
        "feature_names": schema.either(schema.nothing, schema.names),
        "series": schema.mapping,
        "forest": schema.mapping,
        "novelty": schema.whole(),
        "notes": schema.mapping,
    },
    optional=["novelty", "notes"],
)


def _under(name: str, arrays: Arrays) -> Arrays:
    """Return arrays with a prefix added to their names."""
    return {f"{name}/{field}": part for field, part in arrays.items()}


def _from_under(name: str, arrays: Arrays) -> Arrays:
    """Return the arrays with a prefix, and remove the prefix."""
    return {field.removeprefix(f"{name}/"): part for field, part in arrays.items() if field.startswith(f"{name}/")}
