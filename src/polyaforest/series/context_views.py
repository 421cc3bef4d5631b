"""The four views of a context window, which share one threshold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, ClassVar, cast

import numpy as np

from polyaforest.explain import Explanation, Explanations
from polyaforest.forest.calibration import RunningCalibration, n_to_calibrate
from polyaforest.forest.integrity import Layout as ArrayLayout
from polyaforest.forest.integrity import check_layout
from polyaforest.forest.point_store import Key
from polyaforest.forest.thresholds import (
    LONGEST_RUN,
    NOTHING,
    Detections,
    ThresholdPolicy,
    check_calibration_size,
    mean_run_length,
)
from polyaforest.kernels.arrays import NONE, Array
from polyaforest.model.fitted import with_verdicts
from polyaforest.model.parameters import StreamParameters
from polyaforest.model.stream_model import REMEDY, LearnTask
from polyaforest.series.contexts import PHASE, layout_of, phase_features
from polyaforest.series.forecasts import HeldContexts, Outlook
from polyaforest.series.reasons import ContextReasons
from polyaforest.series.shingles import Alignment, Pattern, Track
from polyaforest.series.view import View
from polyaforest.series.views import ReadParameters, Rows, Views
from polyaforest.storage.modelfile import Arrays, Header
from polyaforest.util import schema

_STRETCH = 2048  # consecutive rows of a table to measure run lengths on
_SWITCHES = 4.0  # factor by which all binary channels together weigh less than another channel


class ContextViews(Views):
    """Forests on the views of context windows. All hold the same points; the score is the mean over all trees.

    Attributes
    ----------
    calibration : RunningCalibration
        The last scores.
    """

    has_warm_up: ClassVar[bool] = True

    def __init__(self, pattern: Pattern, channels: Sequence[str], members: Sequence[View]) -> None:
        super().__init__(pattern, channels, members)
        self.calibration = RunningCalibration(n_to_calibrate(self.first.parameters.false_alarm_rate))
        self._numbers: dict[Key, int] = {}  # arrival number of the newest reading of each point held
        self._layout = layout_of(len(channels))

    @classmethod
    def begin(cls, pattern: Pattern, channels: Sequence[str], parameters: StreamParameters) -> ContextViews:
        """Return the views of a new series, which share the trees equally."""
        spans = cls.spans(pattern, channels)
        sizes = np.array_split(np.arange(max(parameters.n_estimators, len(spans))), len(spans))
        own = []
        for number, trees in enumerate(sizes):
            seed = parameters.random_state
            if isinstance(seed, int | np.integer):
                seed = int(np.random.SeedSequence([int(seed), number]).generate_state(1)[0])
            own.append(parameters.but(n_estimators=len(trees), random_state=seed))
        return cls._of(pattern, channels, own)

    @classmethod
    def _of(cls, pattern: Pattern, channels: Sequence[str], parameters: Sequence[StreamParameters]) -> ContextViews:
        names = [view.name for view in layout_of(len(channels)).views]
        parts = zip(names, parameters, cls.spans(pattern, channels), strict=True)
        return cls(pattern, channels, [View(name, one, *span) for name, one, span in parts])

    # ---- learning ---------------------------------------------------------------------------------------------------

    def fit(self, rows: Rows) -> None:
        """Fit the forests to the rows of a table."""
        self._numbers = dict(zip(cast("list[Key]", rows.keys), rows.numbers, strict=True))
        super().fit(rows)
        self.calibration = RunningCalibration(self.calibration.n)

    def learn(self, rows: Rows, task: LearnTask, aligned: Alignment) -> Detections:
        """Learn the rows of an alignment; return the results of the task."""
        if task.is_explained:
            return self._learn_and_replay(rows, task, aligned)
        if task.is_judged:  # start with the scores of the points held, if there are any
            self.calibration, policy = self._judges()
            self.run_length = policy.run_length
        came = self.first.n_seen
        found = self._learn_each(rows, LearnTask(is_scored=task.is_scored))
        if not task.is_scored:
            return NOTHING
        scores = self.mean(found)
        if not task.is_judged:
            return Detections(scores, *NOTHING[1:])
        return self.calibration.judge_then_learn(scores, np.arange(came, came + len(scores)), self._policy)

    def _learn_each(self, rows: Rows, task: LearnTask) -> list[Array]:
        """Learn rows by each view; return the scores of each."""
        found = [member.learn(member.of(rows.values), rows.keys, rows.times, task) for member in self.members]
        self._numbers.update(zip(cast("list[Key]", rows.keys), rows.numbers, strict=True))
        while self._numbers and (oldest := next(iter(self._numbers))) not in self.slot_of:
            del self._numbers[oldest]
        return [part.scores for part in found]

    def learn_surprise(self, rows: Rows) -> Array:
        """Learn rows; return the surprise of each view, (V, n), in nats."""
        return -np.array(self._learn_each(rows, LearnTask(is_scored=True)))

    def surprise(self, rows: Array) -> Array:
        """Return the surprise of rows by each view, (V, n), in nats."""
        return -np.array([member.scores(member.of(rows)) for member in self.members])

    def _learn_and_replay(self, rows: Rows, task: LearnTask, aligned: Alignment) -> Detections:
        """Learn rows together, and explain the flagged ones by replaying the rows on a copy."""
        before = deepcopy(self)
        detected = self.learn(rows, task._replace(is_explained=False), aligned)
        explanations, start = {}, 0
        for i in np.flatnonzero(detected.is_anomaly).tolist():
            before.learn(rows.part(slice(start, i)), LearnTask(), aligned)
            places = np.array([aligned.place_of(rows.numbers[i])])
            explanations[i] = before.explained(rows.values[i : i + 1], None, aligned, places, detected.row(i))[0]
            start = i
        return detected._replace(explanations=explanations)

    def delete(self, keys: Iterable[Key]) -> None:
        """Delete points."""
        gone = list(keys)
        self.calibration.forget(self.first.known.stream.numbers[[self.first.slot_of[key] for key in gone]].tolist())
        for key in gone:
            self._numbers.pop(key, None)
        super().delete(gone)

    def change_false_alarm_rate(self, rate: float | None) -> None:
        """Change the false alarm rate."""
        super().change_false_alarm_rate(rate)
        self.calibration.resize(n_to_calibrate(rate))

    def end_warm_up(self) -> None:
        """Reduce the weight of binary channels, which are known now."""
        self.weigh(self.points)
        if any(member.is_damped for member in self.members):
            self.rebuild()

    def weigh(self, rows: Array) -> None:
        """Down-weight binary channels: together they weigh a quarter of another channel."""
        n_channels = len(self.channels)
        if n_channels == 1:
            return
        readings = rows[:, self._layout.readings()]
        is_switch = np.array([len(np.unique(column)) <= 2 for column in readings.T])
        factors = np.where(is_switch & ~is_switch.all(), _SWITCHES * is_switch.sum(), 1.0)
        channels = self.pattern.channels(n_channels)
        damping = np.where(channels == NONE, 1.0, factors[channels])
        for member in self.members:
            member.damp(damping[member.columns])

    def follow_rhythm(self, track: Track, numbers: Array, every: float | None) -> None:
        """Recompute season and phase of the points held, which end at readings `numbers`, and regrow their trees."""
        season = np.zeros((len(numbers), self._layout.season.stop - self._layout.season.start))
        is_known = np.isin(numbers, track.numbers)
        at = {int(number): place for place, number in enumerate(track.numbers.tolist()) if number != NONE}
        places = np.array([at[number] for number in numbers[is_known].tolist()], np.int64)
        season[is_known] = track.rhythm(places)[0]
        store = self.first.known.stream.store
        clock = store.times[store.held] / every if every else 1.0 * numbers
        *_, seasonal, rhythm = self.members
        seasonal.amend(0, season)
        rhythm.amend(self._layout.widths[-1] - len(PHASE), phase_features(clock, track.periods))
        if len(self.calibration):  # the forests have changed
            self.calibration = RunningCalibration(self.calibration.n)
            self.calibration.seed(*self.left_out_scores())
            self.measure_run_length()

    def measure_run_length(self, rows: Array | None = None) -> None:
        """Measure how many rows are anomalous together, on consecutive rows or on the calibration scores."""
        self.run_length = mean_run_length(self.calibration.scores if rows is None else self.scores(rows[-_STRETCH:]))

    def measure_run_length_if_known(self, least: int) -> None:
        """Measure the run length, if there are at least so many calibration scores."""
        if len(self.calibration) >= least:
            self.measure_run_length()

    # ---- verdicts ---------------------------------------------------------------------------------------------------

    @property
    def _policy(self) -> ThresholdPolicy:
        return replace(self.first.query.policy, run_length=self.run_length)

    def _judges(self) -> tuple[RunningCalibration, ThresholdPolicy]:
        """Return the calibration scores and the policy for the next row; by default from the points held."""
        if len(self.calibration) or not self.n_points:
            return self.calibration, self._policy
        seeded = RunningCalibration(self.calibration.n)
        seeded.seed(*self.left_out_scores())
        run_length = self.run_length if self.run_length > 1 else mean_run_length(seeded.scores)
        return seeded, replace(self.first.query.policy, run_length=run_length)

    def _checked_judges(self) -> tuple[RunningCalibration, ThresholdPolicy]:
        """Return `_judges`; raise ValueError if they are too few for the false alarm rate."""
        judges, policy = self._judges()
        if policy.false_alarm_rate is not None and not len(self.calibration):
            check_calibration_size(len(judges), policy.false_alarm_rate, REMEDY)
        return judges, policy

    def detect(self, rows: Array) -> Detections:
        """Return the results for rows without learning them."""
        judges, policy = self._checked_judges()
        return judges.judge(self.scores(rows), policy)

    @property
    def threshold(self) -> float:
        """The threshold."""
        judges, policy = self._checked_judges()
        return judges.threshold(policy)

    def p_values(self, scores: Array) -> Array:
        """Return the p-values of scores."""
        judges, policy = self._judges()
        return judges.judge(scores, policy).p_values

    def left_out_scores(self) -> tuple[Array, Array]:
        """Return scores and arrivals of points held, each left out of the forests."""
        found = [member.left_out_scores() for member in self.members]
        common = found[0][1]
        for _, arrivals in found[1:]:
            common = np.intersect1d(common, arrivals)
        columns = [scores[np.argsort(arrivals)][np.isin(np.sort(arrivals), common)] for scores, arrivals in found]
        return self.mean(columns), np.sort(common)

    # ---- explanations -----------------------------------------------------------------------------------------------

    def explain(
        self, rows: Array, features: Any, aligned: Alignment, places: Array, *, is_apart: bool = False
    ) -> Sequence[Explanation]:
        """Explain each row by its most anomalous view."""
        return self.explained(rows, features, aligned, places, self.detect(rows), is_apart=is_apart)

    def explained(
        self,
        rows: Array,
        features: Any,
        aligned: Alignment,
        places: Array,
        detected: Detections,
        *,
        is_apart: bool = False,
    ) -> Sequence[Explanation]:
        explained = [self._by_view(member, member.of(rows), features, detected) for member in self.members]
        excess = np.array([[one.surprise - one.typical for one in view] for view in explained])
        outlook = self.outlook(aligned, is_apart=is_apart)
        reasons = ContextReasons(aligned, outlook, self.channels, self._readings_held)
        chosen = []
        for i, (v, place) in enumerate(zip(excess.argmax(axis=0).tolist(), places.tolist(), strict=True)):
            member = self.members[v]
            chosen.append(reasons.complete(explained[v][i], member.columns, member.points, place))
        return chosen

    def _by_view(self, member: View, rows: Array, features: Any, detected: Detections) -> Explanations:
        """Explain rows by one view, with a threshold at the same distance from the score as in all views together."""
        own = None if features is None else [name for name in features if name in member.features]
        thresholds = member.scores(rows) + detected.thresholds - detected.scores
        explained = member.explained(rows, own, float(thresholds.mean()))
        for explanation, threshold in zip(explained, thresholds.tolist(), strict=True):
            if explanation.snapshot is not None:
                explanation.snapshot = replace(explanation.snapshot, offset=threshold)
        return with_verdicts(explained, detected)

    @property
    def _readings_held(self) -> Array:
        """The newest reading of each context window held, (n, C)."""
        return np.asarray(self.members[-1].points[:, self._layout.readings_in_view])

    # ---- what comes next --------------------------------------------------------------------------------------------

    def outlook(self, aligned: Alignment, *, is_apart: bool = False, unseen: Array | None = None) -> Outlook:
        """Return the outlook for the steps of an alignment, given the context windows held."""
        *_, season, rhythm = self.members
        held = HeldContexts(
            rhythm.points,
            self._readings_held,
            np.array([self._numbers[key] for key in rhythm.keys]),
            rhythm.known.forest.weights.mean(axis=0),
            season.known.forest.weights.mean(axis=0),
            float(rhythm.known.lifetimes[-1]),
        )
        period = aligned.track.periods[0] if aligned.track.periods else None
        return Outlook(held, aligned.track.values, aligned.track.numbers, period, is_apart=is_apart, unseen=unseen)

    # ---- files ------------------------------------------------------------------------------------------------------

    def state(self, *, is_compact: bool = False) -> tuple[Header, Arrays]:
        """Return the state; a compact state omits derived arrays."""
        found = [member.state(is_compact=is_compact) for member in self.members]
        arrays = {f"{v}/{name}": part for v, (_, parts) in enumerate(found) for name, part in parts.items()}
        calibration = {"arrivals": self.calibration.arrivals, "scores": self.calibration.scores}
        header = {
            "views": [about for about, _ in found],
            "is_seeded": self.calibration.is_seeded,
            "spell": self.run_length,
        }
        return header, {**arrays, **{f"calibration/{name}": part for name, part in calibration.items()}}

    @classmethod
    def of_state(
        cls, pattern: Pattern, channels: Sequence[str], header: Header, arrays: Arrays, read: ReadParameters
    ) -> ContextViews:
        """Return the views with a state from `state`."""
        _STATE(header, "forest")
        groups: dict[str, Arrays] = {}
        for name, part in arrays.items():
            group, _, field = name.partition("/")
            groups.setdefault(group, {})[field] = part
        scores = groups.pop("calibration", {})
        known = [str(v) for v in range(len(cls.spans(pattern, channels)))]
        if len(header["views"]) != len(known) or not set(groups) <= set(known):
            raise ValueError(f"it has {len(header['views'])} views, not {len(known)}")
        views = cls._of(pattern, channels, [read(about) for about in header["views"]])
        for member, v, about in zip(views.members, known, header["views"], strict=True):
            member.restore(about, groups.get(v, {}))
        check_layout(scores, _CALIBRATION, {})
        views.calibration = RunningCalibration.of_state(
            views.calibration.n, scores["arrivals"], scores["scores"], is_seeded=header["is_seeded"]
        )
        views.run_length = header["spell"]
        views._check()
        return views

    def restore_numbers(self, spans: Mapping[Key, tuple[int, int]]) -> None:
        """Restore the arrival numbers of the readings at which the points held end."""
        self._numbers = {key: newest for key, (_, newest) in spans.items()}

    def _check(self) -> None:
        """Raise ValueError if the forests do not hold the same points."""
        if not 1 <= self.run_length <= LONGEST_RUN:
            raise ValueError(f"its mean run length of alarms is {self.run_length}, out of range")
        own = [member.parameters.but(n_estimators=1, random_state=None).stored() for member in self.members]
        if any(one != own[0] for one in own):
            raise ValueError("its views have different parameters")
        arrivals = self.calibration.arrivals
        if len(arrivals) and not 0 <= arrivals[0] <= arrivals[-1] < self.first.n_seen:
            raise ValueError("it has scores of rows that were never learned")
        if any(member.kept != self.first.kept for member in self.members):
            raise ValueError("its views do not hold the same points")


_STATE = schema.record({"views": schema.many(schema.mapping), "is_seeded": schema.flag, "spell": schema.number})
_CALIBRATION: ArrayLayout = {"arrivals": (np.int64, "J"), "scores": (np.float64, "J")}
