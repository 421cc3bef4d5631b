"""The model behind `SeriesMPF`: views of the same readings, and the history that they are built from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from math import isnan
from typing import Any

import numpy as np

from polyaforest.explain import Explanation, read_features
from polyaforest.forest.point_store import Key, places_of
from polyaforest.forest.retention import Policy, Reservoir, as_policy
from polyaforest.forest.score_types import Score
from polyaforest.forest.spec import weighting_of_rows
from polyaforest.forest.thresholds import NOTHING, Detections
from polyaforest.kernels.arrays import NONE, Array
from polyaforest.model.parameters import StreamParameters
from polyaforest.model.stream_model import LearnTask, StreamModel
from polyaforest.series.context_views import ContextViews
from polyaforest.series.forecasts import Forecast
from polyaforest.series.history import SeriesHistory, pattern_of_state
from polyaforest.series.rhythm import find_periods
from polyaforest.series.shingles import Alignment, Pattern, check_times, measured_spacing, new_track
from polyaforest.series.views import ReadParameters, Rows, ShingleViews, Views
from polyaforest.storage.modelfile import Arrays, Header

FARTHEST = 1024  # most steps of a forecast
_PIECE = 256  # readings to learn at a time, and after which the scale of features is checked
_WINDOW = 2048  # shingles held by default
_FIRST_RHYTHM = 512  # readings before the first search for periods
_SAMPLES = 256  # shingles per tree by default: they lie along curves, which small samples miss


class SeriesModel:
    """A series of readings: its history, and the views that learn the shingles or context windows of the readings.

    Callers exclude other threads while they change a model, validate rows, and check them by `check_rows`.

    Parameters
    ----------
    pattern : Pattern
    channels : list of str
        Names of the channels.
    every : float
        Usual time between readings; NaN to measure it.
    forest : StreamParameters
        Of the forests, as given.
    rescale : float or None
        Change of scale that triggers new feature weights; None for never.

    Attributes
    ----------
    history : SeriesHistory
    views : Views
    """

    def __init__(
        self, pattern: Pattern, channels: Sequence[str], every: float, forest: StreamParameters, rescale: float | None
    ) -> None:
        self.channels, self.forest, self.rescale = list(channels), deepcopy(forest), rescale
        self.history = SeriesHistory(pattern, new_track(len(channels), every))
        self._begin_views()

    @property
    def pattern(self) -> Pattern:
        """The pattern that the series started with; parameters may have changed."""
        return self.history.pattern

    @property
    def has_contexts(self) -> bool:
        """Whether context windows are scored, not shingles of raw readings."""
        return self.pattern.shingle is None

    @property
    def n_channels(self) -> int:
        """Number of channels."""
        return len(self.channels)

    @property
    def is_silent(self) -> bool:
        """Whether the next rows have no scores."""
        return not self.views.has_begun or self.views.is_warming_up

    @property
    def every(self) -> float | None:
        """The usual time between readings, if known."""
        return self.history.track.every if self.history.track.every > 0 else None

    @property
    def policy(self) -> Policy:
        """The retention policy of the views."""
        return self.views.first.policy

    @property
    def keys(self) -> list[Key]:
        """Keys of the readings that can be deleted, by order of arrival."""
        provenance = self.history.provenance
        return [provenance.key_of(number) for number in provenance.known(self.history.n_seen)]

    def holds(self, key: Key) -> bool:
        """Return whether a reading with this key can be deleted."""
        return self.history.provenance.number_of(key, self.history.n_seen) is not None

    def _begin_views(self) -> None:
        parameters = series_parameters(deepcopy(self.forest), self.pattern)
        kind = ContextViews if self.has_contexts else ShingleViews
        self.views: Views = kind.begin(self.pattern, self.channels, parameters)
        self.history.spread, self.history.weighed_at = None, 0

    # ---- learning ---------------------------------------------------------------------------------------------------

    def begin_at(self, number: int) -> None:
        """Count readings from `number`, as if the earlier ones were forgotten."""
        self.history.begin_at(number)

    def fit(self, rows: Array, stamps: Array, names: list[Key | None], *, is_timed: bool) -> None:
        """Learn the readings of a table."""
        history = self.history
        history.is_timed = is_timed
        if isnan(history.track.every) and is_timed:
            history.track = history.track._replace(every=measured_spacing(stamps))
        self.check_rows(rows, stamps)
        aligned = history.align(rows, stamps)
        if self.has_contexts:
            periods = find_periods(aligned.track.values[aligned.places][aligned.is_complete])
            aligned = aligned._replace(track=aligned.track._replace(periods=periods))
            history.known.learn(aligned.rows, aligned.deviations())
        self._fit_views(aligned, stamps, names)

    def _fit_views(self, aligned: Alignment, stamps: Array, names: list[Key | None]) -> None:
        """Fit the views to the shingles of a table."""
        history, shingles, ends = self.history, aligned.shingles(), np.flatnonzero(aligned.is_whole)
        if not len(shingles):
            raise ValueError(
                f"these {len(aligned.places)} rows contain no {self.pattern.whole}: pass more rows, or set a "
                "smaller shingle or a larger max_gap"
            )
        history.provenance.enter_names(names, 0)
        kept = self._chosen(len(shingles))
        keys = [history.provenance.key_of(end) for end in ends[kept].tolist()]
        self.views.weigh(shingles)
        self.views.fit(Rows(shingles[kept], [*keys], stamps[ends[kept]], ends[kept].tolist()))
        self._commit(aligned, ends)
        if self.rescale is not None and self.views.n_points < len(kept):
            self.views.rebuild()
        self._note_spread(history.n_seen)
        self.views.measure_run_length(shingles)

    def _chosen(self, n: int) -> Array:
        """Return the context windows of a table to learn: all, or a random sample of the size of the window."""
        if not self.has_contexts or self.forest.window != "auto" or n <= _WINDOW:
            return np.arange(n)
        rng = np.random.default_rng(self.views.first.parameters.seed())
        return np.sort(rng.choice(n, _WINDOW, replace=False))

    def pieces(self, n_rows: int) -> Iterator[slice]:
        """Yield the rows to `learn` together, given what has been learned by then."""
        start = 0
        while start < n_rows:
            stop = min(n_rows, start + _PIECE - self.history.n_seen % _PIECE)
            yield slice(start, stop)
            start = stop

    def learn(self, rows: Array, stamps: Array, names: list[Key | None], task: LearnTask) -> Detections:
        """Learn a piece of the next readings; return the results of the task."""
        history, views = self.history, self.views
        aligned = history.align(rows, stamps)
        ends = np.flatnonzero(aligned.is_whole)
        keys = [history.n_seen + end if names[end] is None else names[end] for end in ends.tolist()]
        numbers = history.n_seen + ends
        detected = self._taught(Rows(aligned.shingles(), keys, stamps[ends], numbers.tolist()), task, aligned)
        history.provenance.enter_names(names, history.n_seen)
        novelty = history.judge(aligned, history.known)
        self._commit(aligned, numbers)
        if history.n_seen % _PIECE == 0:
            views.measure_run_length_if_known(_PIECE)
        self._find_rhythm_if_due()
        self._rescale_if_due()
        if not task.is_scored:
            return NOTHING
        return detected._replace(novelty=novelty) if task.is_judged else detected

    def _taught(self, rows: Rows, task: LearnTask, aligned: Alignment) -> Detections:
        """Learn the shingles of an alignment; return the results of all its rows."""
        detected = self._teach(rows, task, aligned)
        return _placed(aligned.is_whole, detected) if task.is_scored else NOTHING

    def _teach(self, rows: Rows, task: LearnTask, aligned: Alignment) -> Detections:
        """Learn the shingles of an alignment; return the results of the task."""
        answers = list[Detections]()
        for part, is_silent in self._stretches(rows):
            detected = self.views.learn(part, LearnTask() if is_silent else task, aligned)
            answers.append(_silence(len(part)) if is_silent and task.is_scored else detected)
        return Detections.joined(answers)

    def _stretches(self, rows: Rows) -> Iterator[tuple[Rows, bool]]:
        """Yield rows to learn in parts with the same feature weights, and whether they have no scores yet.

        Record the scale whenever feature weights change.
        """
        views, start = self.views, 0
        while start < len(rows):
            n_until_weighed, is_silent = views.n_until_weighed, views.is_warming_up
            stop = min(len(rows), start + (n_until_weighed or len(rows)))
            yield rows.part(slice(start, stop)), is_silent
            if stop - start == n_until_weighed:
                if not views.n_until_weighed:
                    views.end_warm_up()
                self._note_spread(rows.numbers[stop - 1] + 1)
            start = stop

    def _commit(self, aligned: Alignment, ends: Array) -> None:
        """Advance past learned rows, whose shingles end at the readings with numbers `ends`."""
        history, held = self.history, self.views.slot_of
        if self.views.has_begun:
            history.provenance.enter(aligned.oldest().tolist(), ends.tolist(), held)
        history.track, history.n_seen = aligned.kept(), history.n_seen + len(aligned.places)
        history.provenance.prune(held, history.recent)

    def _find_rhythm_if_due(self) -> None:
        """Search for periods in the last readings, at fixed counts so that chunks do not matter."""
        n_seen = self.history.n_seen
        is_due = n_seen >= _FIRST_RHYTHM and n_seen & (n_seen - 1) == 0
        if not is_due or not self.has_contexts or not self.views.n_points:
            return
        periods = find_periods(self.history.track.filled)
        if periods != self.history.track.periods:
            self.history.follow_rhythm(periods)
            self._follow_rhythm()
            self._note_spread(n_seen)

    def _follow_rhythm(self) -> None:
        """Recompute what the context windows held know about the rhythm."""
        numbers = np.array([newest for _, newest in self.history.provenance.spans.values()], np.int64)
        self.views.follow_rhythm(self.history.track, numbers, self.every if self.history.is_timed else None)

    def _rescale_if_due(self) -> None:
        """Recompute feature weights if a scale has changed, at fixed counts so that chunks do not matter."""
        history, views = self.history, self.views
        is_due = self.rescale is not None and history.n_seen % _PIECE == 0 and history.spread is not None
        if not is_due or views.n_until_weighed or not views.n_points:
            return
        spread = weighting_of_rows(views.points).spread
        if np.maximum(spread / history.spread, history.spread / spread).max() > self.rescale:
            views.weigh(views.points)
            views.rebuild()
            self._note_spread(history.n_seen)

    def _note_spread(self, n_seen: int) -> None:
        """Record the scale that the feature weights are based on."""
        if self.rescale is not None:
            self.history.spread, self.history.weighed_at = weighting_of_rows(self.views.points).spread, n_seen

    # ---- changes ----------------------------------------------------------------------------------------------------

    def change_false_alarm_rate(self, rate: float | None) -> None:
        """Change the false alarm rate."""
        self.forest = self.forest.but(false_alarm_rate=rate)
        self.views.change_false_alarm_rate(rate)

    def flag_at_rate(self, rate: float) -> None:
        """Flag rows at a false alarm rate, without changing what to learn."""
        self.views.flag_at_rate(rate)

    def delete(self, keys: Sequence[Key]) -> None:
        """Delete readings, with every shingle that depends on them."""
        history, views = self.history, self.views
        numbers = self._numbers_of(keys)
        gone = history.provenance.with_any(numbers)
        had_part_in_scale = any(number < history.weighed_at for number in numbers)
        if gone:
            views.delete(gone)
        history.forget(numbers)
        history.provenance.prune(views.slot_of, history.recent)
        if gone and not views.n_points:
            history.follow_rhythm(())
            self._begin_views()
            views = self.views
        elif history.track.periods and views.n_points:
            self._follow_rhythm()  # deviations may depend on the deleted readings
        if gone and had_part_in_scale and self.rescale is not None and views.n_points:
            views.rebuild()
            self._note_spread(history.n_seen)

    def _numbers_of(self, keys: Sequence[Key]) -> list[int]:
        """Return the numbers of the readings with these keys."""
        numbers = []
        for key in keys:
            number = self.history.provenance.number_of(key, self.history.n_seen)
            if number is None:
                raise KeyError(f"no reading with key {key!r} is held. Nothing was deleted")
            numbers.append(number)
        if len(set(numbers)) < len(numbers):
            raise ValueError("a key occurs more than once. Nothing was deleted")
        return numbers

    def keys_of_rows(self, rows: Array) -> list[Key]:
        """Return the key of the oldest reading equal to each row at which a shingle held ends."""
        if self.pattern.difference:
            raise ValueError("with difference=True readings are not held: delete them by key")
        names = self.pattern.names(self.channels)
        newest = [names.index(channel) for channel in self.channels]
        keys = self.views.first.keys
        points = self.views.points[:, newest] if keys else np.empty((0, 1))
        return [keys[place] for place in places_of(rows, points)]

    # ---- as if rows came next ---------------------------------------------------------------------------------------

    def align_ahead(self, rows: Array, stamps: Array, *, is_apart: bool) -> Alignment:
        """Align rows after the series, or apart; no row is complete if there are no scores yet."""
        self._check_extreme(rows)
        aligned = self.history_of(is_apart=is_apart).align(rows, stamps)
        return aligned._replace(is_whole=np.zeros(len(rows), np.bool_)) if self.is_silent else aligned

    def history_of(self, *, is_apart: bool) -> SeriesHistory:
        """Return the history that rows continue: the series so far, or an empty one with the same rhythm."""
        history = self.history
        return SeriesHistory(history.pattern, history.track.last(0), is_timed=history.is_timed) if is_apart else history

    def scores(self, aligned: Alignment, *, is_apart: bool) -> Array:
        """Return the scores of aligned rows; NaN where no shingle ends."""
        scores = np.full(len(aligned.is_whole), np.nan)
        if aligned.is_whole.any():
            scores[aligned.is_whole] = self.views.scores(aligned.shingles())
        return scores

    def detect(self, aligned: Alignment, *, is_apart: bool) -> Detections:
        """Return the results for aligned rows without learning them."""
        shingles = aligned.shingles()
        found = _placed(aligned.is_whole, self.views.detect(shingles) if len(shingles) else NOTHING)
        history = self.history_of(is_apart=is_apart)
        return found._replace(novelty=history.judge(aligned, history.known.copy()))

    @property
    def threshold(self) -> float:
        """The threshold."""
        return self.views.threshold if self.views.has_begun else -np.inf

    def p_values(self, scores: Array) -> Array:
        """Return the p-values of scores; NaN where there is none."""
        is_whole, p_values = ~np.isnan(scores), np.full(len(scores), np.nan)
        p_values[is_whole] = self.views.p_values(scores[is_whole])
        return p_values

    def check_calibrated(self) -> None:
        """Raise ValueError if there are no calibration scores."""
        if not self.views.has_begun:
            raise ValueError("this detector has no calibration scores: learn more readings first")
        self.views.first.check_calibrated()

    def check_features(self, features: Sequence[str | int] | None) -> None:
        """Raise ValueError if a feature to explain is unknown."""
        read_features(features, self.pattern.names(self.channels))

    def explain(
        self, aligned: Alignment, rows: Sequence[int] | None, features: Any, *, is_apart: bool
    ) -> Sequence[Explanation]:
        """Explain the shingles that end at some rows of an alignment; at all by default."""
        wanted = np.arange(len(aligned.is_whole)) if rows is None else np.asarray(rows, np.int64)
        if not len(wanted):
            raise ValueError("there are no rows to explain")
        silent = wanted[~aligned.is_whole[wanted]]
        if len(silent):
            raise ValueError(
                f"row {silent[0]} has no score, so there is nothing to explain: it ends no "
                f"{self.pattern.whole}, or the detector is warming up. Pass rows= with scores only"
            )
        shingles = aligned.shingles()[np.cumsum(aligned.is_whole)[wanted] - 1]
        return self.views.explain(shingles, features, aligned, aligned.places[wanted], is_apart=is_apart)

    def bits_by_channel(self, explanation: Explanation) -> dict[str, float]:
        """Return the bits of each channel and of each feature of the calendar, largest first."""
        names, channels = self.channels, self.pattern.channels(self.n_channels)
        owner = dict(zip(self.pattern.names(names), channels.tolist(), strict=True))
        if not set(explanation.names) <= set(owner):
            raise ValueError("the explanation has features that do not belong to this series")
        bits = dict.fromkeys([*names, *(_word(name) for name, c in owner.items() if c == NONE)], 0.0)
        for name, part in zip(explanation.names, explanation.parts.tolist(), strict=True):
            whose = names[owner[name]] if owner[name] != NONE else _word(name)
            bits[whose] += part
        return dict(sorted(bits.items(), key=lambda item: -item[1]))

    def expect(self, aligned: Alignment, hidden: Array, *, is_apart: bool) -> Forecast:
        """Return the reading expected at each aligned row, given the rows before it that are not hidden."""
        views, places = self._views_that_forecast("expect"), aligned.places
        expected = Forecast.nothing(len(places), self.n_channels)
        if self.is_silent or not views.n_points:
            return expected
        is_hidden = np.zeros(len(aligned.track.values), np.bool_)
        is_hidden[places] = hidden
        ends = aligned.ends_context() & ~is_hidden
        before = np.maximum.accumulate(np.where(ends, np.arange(len(ends)), NONE))
        origins = np.append(NONE, before)[places]
        ahead = np.where(origins != NONE, places - origins, 0)
        outlook = views.outlook(aligned, is_apart=is_apart, unseen=is_hidden)
        rows = np.flatnonzero(ahead == 1)
        if len(rows):
            expected.fill(rows, outlook.after(origins[rows], aligned.states(origins[rows]), 1))
        for origin in np.unique(origins[(ahead > 1) | is_hidden[places]]).tolist():
            rows = np.flatnonzero((origins == origin) & (ahead <= FARTHEST))
            if origin != NONE and len(rows):
                steps = np.arange(origin + 1, places[rows[-1]] + 1)
                across = outlook.across(steps, aligned.states(np.array([origin])))
                expected.fill(rows, Forecast(*(part[places[rows] - origin - 1] for part in across)))
        return expected

    def forecast(self, n_steps: int) -> Forecast:
        """Forecast the next readings; NaN if there are too few unbroken ones."""
        views, expected = self._views_that_forecast("forecast"), Forecast.nothing(n_steps, self.n_channels)
        aligned = self.history.align(np.empty((0, self.n_channels)), np.empty(0))
        if views.n_points and aligned.ends_context()[-1:].any():
            newest = np.array([len(aligned.track.values) - 1])
            outlook, state = views.outlook(aligned), aligned.states(newest)
            for step in range(n_steps):
                expected.fill(slice(step, step + 1), outlook.after(newest, state, step + 1))
        return expected

    def _views_that_forecast(self, what: str) -> ContextViews:
        if not isinstance(self.views, ContextViews):
            raise ValueError(f"{what} needs context windows: set shingle='auto'")
        return self.views

    # ---- checks -----------------------------------------------------------------------------------------------------

    def check_stamps(self, stamps: Array, *, is_timed: bool, is_apart: bool = False) -> None:
        """Raise ValueError if the times of the next rows contradict earlier ones."""
        history = self.history_of(is_apart=is_apart)
        if len(stamps) and history.is_timed is not None and history.is_timed != is_timed:
            before = "times" if history.is_timed else "no times"
            raise ValueError(f"earlier readings had {before}: pass times for all readings or for none")
        check_times(stamps, history.track.latest, self.pattern)

    def check_rows(self, rows: Array, stamps: Array) -> None:
        """Raise ValueError if rows to learn are too large, or their shingles outside a given domain."""
        self._check_extreme(rows)
        low, high = self.views.domain
        if np.isinf(low).any():
            return
        aligned = self.history.align(rows, stamps)
        shingles = aligned.shingles()
        outside = ((shingles < low) | (shingles > high)).any(axis=1)
        if outside.any():
            i = int(np.flatnonzero(aligned.is_whole)[np.argmax(outside)])
            raise ValueError(
                f"the shingle that ends at row {i} lies outside the domain of the forest: widen the domain or omit "
                "the row"
            )

    def _check_extreme(self, rows: Array) -> None:
        """Raise ValueError if the difference of two readings could overflow."""
        largest = self.pattern.largest
        is_extreme = np.abs(rows) > largest
        if is_extreme.any():
            i, k = np.argwhere(is_extreme)[0]
            raise ValueError(
                f"row {i}, column {self.channels[k]!r} is {rows[i, k]:g}: the largest supported value is "
                f"{largest:g}; rescale the column"
            )

    # ---- files ------------------------------------------------------------------------------------------------------

    def state(self, *, is_compact: bool = False) -> tuple[Header, Arrays]:
        """Return history and views; a compact state omits derived arrays."""
        about, own = self.history.state()
        inner, parts = self.views.state(is_compact=is_compact)
        of_contexts = {"novelty": len(self.history.known)} if self.has_contexts else {}
        header = {"series": about, "forest": inner, **of_contexts}
        return header, {**under("series", own), **under("forest", parts)}

    @classmethod
    def of_state(
        cls,
        header: Mapping[str, Any],
        arrays: Arrays,
        channels: Sequence[str],
        forest: StreamParameters,
        rescale: float | None,
        read: ReadParameters,
    ) -> SeriesModel:
        """Return the model with a state from `state`; `read` validates the parameters of a view."""
        unknown = [name for name in arrays if name.partition("/")[0] not in ("series", "forest")]
        if unknown:
            raise ValueError(f"array {unknown[0]}: does not belong to this format version")
        is_there = ["series/readings" in arrays, "series/novelties" in arrays]
        n_known = len(arrays["series/readings"]) if all(is_there) else None
        if header.get("novelty") != n_known or is_there[0] != is_there[1]:
            raise ValueError(f"the header announces {header.get('novelty')} known readings, but the arrays differ")
        pattern, own = pattern_of_state(header["series"]), from_under("forest", arrays)
        model = cls.__new__(cls)
        model.channels, model.forest, model.rescale = list(channels), forest, rescale
        kind = ContextViews if pattern.shingle is None else ShingleViews
        model.views = kind.of_state(pattern, channels, header["forest"], own, read)
        history, held = from_under("series", arrays), model.views.first.keys
        model.history = SeriesHistory.of_state(header["series"], history, len(channels), held)
        model.views.restore_numbers(model.history.provenance.spans)
        return model

    def check_trees(self) -> None:
        """Raise ValueError if trees from a pickle are invalid; those of a file are checked when they are read."""
        for view in self.views.members:
            view.check()

    def check(self) -> None:
        """Raise ValueError if a state read from a file or a pickle is inconsistent."""
        check_parameters(self.forest, self.pattern)  # begun again once all readings are deleted
        views = self.views
        if not views.has_begun:
            check_holds_points(views.first.parameters)
            check_parameters(views.first.parameters, self.pattern)
            self.check_rows(np.empty((0, self.n_channels)), np.empty(0))
            views.first.check_unbegun()
        elif views.first.n_seen > self.history.n_seen:
            raise ValueError("its forests do not match its shingles")


def series_parameters(forest: StreamParameters, pattern: Pattern) -> StreamParameters:
    """Return the parameters of a forest in a series, with its defaults; raise ValueError if they do not work there."""
    if isinstance(forest.window, str):
        forest = forest.but(window=_WINDOW)
    if isinstance(forest.max_samples, str):
        forest = forest.but(max_samples=_SAMPLES)
    if forest.score_type == Score.MARGINS:  # margins apply to values, not to features of context windows
        forest = forest.but(score_type=str(Score.TYPICALITY))
    if isinstance(forest.tree.max_features, str):  # features of a context window are few measurements each
        forest = forest.but(tree=forest.tree._replace(max_features=None))
    check_holds_points(forest)
    check_parameters(forest, pattern)
    return forest


def check_holds_points(forest: StreamParameters) -> None:
    """Raise ValueError if a forest need not hold its points."""
    if forest.window is None or isinstance(forest.window, str):
        raise ValueError(
            "window=None is not allowed in the forest of a series, which must hold its points: set a window"
        )
    as_policy(forest.window)


def check_parameters(forest: StreamParameters, pattern: Pattern) -> None:
    """Raise ValueError if the parameters of a forest do not work with the rows of a series."""
    if not (forest.categorical_features is None or isinstance(forest.categorical_features, str)):
        raise ValueError("categorical_features do not work in a series, whose readings are numbers: omit them")
    if pattern.shingle is not None:
        return
    if isinstance(forest.window, Reservoir):
        raise ValueError(
            "a Reservoir does not work with shingle='auto', where several forests hold the same context windows: use "
            "a Window, or set shingle to a number of readings"
        )
    given = (forest.tree.domain, forest.tree.feature_weights)
    if any(np.ndim(part) or part == "data" for part in given if part is not None):
        raise ValueError(
            "feature_weights and domain do not work with shingle='auto', where features are computed: omit them, or "
            "set shingle to a number of readings"
        )
    if forest.score_type not in (Score.MARGINS, Score.TYPICALITY, Score.LOG_MASS):
        raise ValueError(
            f"score_type={forest.score_type!r} does not work with shingle='auto': use 'typicality' or 'log_mass', or "
            "set shingle to a number of readings"
        )


def readings_of(model: StreamModel) -> tuple[int, Array, list[Key | None], Array | None]:
    """Return the readings that a forest holds: the number of the first, values, keys and times.

    Deleted readings are rows of NaN.
    """
    stream = model.stream
    store, held = stream.store, stream.store.held
    if not len(held):
        raise ValueError("the forest holds no points to start a series with")
    if store.policy.is_random:
        raise ValueError("the forest holds a random sample, not a series: use a window that holds the last points")
    arrivals, stamps = stream.numbers[held], store.times[held]
    numbers = np.arange(arrivals[0], store.n_seen)
    values, keys = np.full((len(numbers), stream.n_features), np.nan), list[Key | None]([None] * len(numbers))
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


def under(name: str, arrays: Arrays) -> Arrays:
    """Return arrays with a prefix added to their names."""
    return {f"{name}/{field}": part for field, part in arrays.items()}


def from_under(name: str, arrays: Arrays) -> Arrays:
    """Return the arrays with a prefix, and remove the prefix."""
    return {field.removeprefix(f"{name}/"): part for field, part in arrays.items() if field.startswith(f"{name}/")}
