"""Forests on different features of the same rows, combined into one score."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np

from polyaforest.detectors.streaming import StreamingMPF
from polyaforest.explain import ContextWindow, Explanation, Explanations
from polyaforest.forest.calibration import RunningCalibration, n_to_calibrate
from polyaforest.forest.integrity import Layout, check_layout
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
from polyaforest.model.stream_model import REMEDY, LearnTask
from polyaforest.series.calendar import read_timezone
from polyaforest.series.contexts import LENGTH, layout_of
from polyaforest.series.forecasts import Forecast, HeldContexts, Outlook, usual_by_rhythm
from polyaforest.series.shingles import Alignment
from polyaforest.series.steps import fold_on_steps
from polyaforest.series.words import describe
from polyaforest.storage.modelfile import Arrays, Header
from polyaforest.util import schema

_BACK = 32  # steps before a reading at which its forecast starts
_STRETCH = 2048  # consecutive rows of a table to measure run lengths on


class Views:
    """Forests, one for each view of a row; the score is the mean over all trees.

    All forests hold the same points, but each has its own columns. A single forest keeps its own threshold.

    Parameters
    ----------
    members : list of StreamingMPF
    widths : list of int
        Number of columns of each forest, side by side.
    n_channels : int
        Number of channels of the series; ignored for a single forest.
    """

    def __init__(self, members: Sequence[StreamingMPF], widths: Sequence[int], n_channels: int) -> None:
        self.members, self.widths, self.n_channels = list(members), list(widths), n_channels
        self.calibration = RunningCalibration(n_to_calibrate(members[0].false_alarm_rate))
        self.run_length = 1.0  # mean number of consecutive rows that are anomalous together
        self.steps: dict[Key, int] = {}  # arrival number of each point held

    @property
    def policy(self) -> ThresholdPolicy:
        """The threshold policy of several views."""
        return replace(self.first._policy, run_length=self.run_length)

    def _judges(self) -> tuple[RunningCalibration, ThresholdPolicy]:
        """Return the calibration scores and the policy for the next row; by default from the points held."""
        if len(self.calibration) or not self.n_points:
            return self.calibration, self.policy
        seeded = RunningCalibration(self.calibration.n)
        seeded.seed(*self.left_out_scores())
        run_length = self.run_length if self.run_length > 1 else mean_run_length(seeded.scores)
        return seeded, replace(self.first._policy, run_length=run_length)

    @classmethod
    def like(cls, forest: StreamingMPF, widths: Sequence[int], n_channels: int) -> Views:
        """Split the trees of an unfitted forest into views."""
        if len(widths) == 1:
            return cls([forest], widths, n_channels)
        sizes = [len(trees) for trees in np.array_split(np.arange(max(forest.n_estimators, len(widths))), len(widths))]
        members = []
        for number, size in enumerate(sizes):
            member = deepcopy(forest)
            seed = forest.random_state
            if isinstance(seed, int | np.integer):
                seed = int(np.random.SeedSequence([int(seed), number]).generate_state(1)[0])
            members.append(member.set_params(n_estimators=size, random_state=seed))
        return cls(members, widths, n_channels)

    @property
    def first(self) -> StreamingMPF:
        """The first forest; all have the same keys and window."""
        return self.members[0]

    @property
    def is_one(self) -> bool:
        """Whether there is a single forest."""
        return len(self.members) == 1

    @property
    def has_begun(self) -> bool:
        """Whether the forests have learned any row."""
        return hasattr(self.first, "forest_")

    @property
    def n_points(self) -> int:
        """Number of points held."""
        return self.first.n_points_ if self.has_begun else 0

    @property
    def n_features(self) -> int:
        """Number of features of all views together."""
        return sum(member.n_features_in_ for member in self.members)

    @property
    def nbytes(self) -> int:
        """Size of the trees and of the points held, in bytes."""
        return sum(member.nbytes for member in self.members)

    @property
    def points(self) -> Array:
        """The points held, by order of arrival, the columns of all views side by side."""
        return np.concatenate([member.points_ for member in self.members], axis=1)

    def _mean(self, scores: Sequence[Array]) -> Array:
        """Return the mean of the scores of the forests, weighted by their numbers of trees."""
        if self.is_one:
            return scores[0]
        sizes = [len(member.forest_.left) for member in self.members]
        total: Array = sum(size / sum(sizes) * part for size, part in zip(sizes, scores, strict=True))  # type: ignore[assignment]
        return total

    def split(self, rows: Array) -> list[Array]:
        """Return the columns of each view."""
        if self.is_one:
            return [rows]
        return [np.ascontiguousarray(part) for part in np.split(rows, np.cumsum(self.widths)[:-1], axis=1)]

    # ---- files ------------------------------------------------------------------------------------------------------

    def state(self, *, is_compact: bool = False) -> tuple[Header, Arrays]:
        """Return the state; a compact state omits derived arrays."""
        found = [_state_of(member, is_compact) for member in self.members]
        if self.is_one:
            return found[0]
        arrays = {f"{v}/{name}": part for v, (_, parts) in enumerate(found) for name, part in parts.items()}
        calibration = {"arrivals": self.calibration.arrivals, "scores": self.calibration.scores}
        header = {
            "views": [about for about, _ in found],
            "is_seeded": self.calibration.is_seeded,
            "spell": self.run_length,
        }
        return header, {**arrays, **{f"calibration/{name}": part for name, part in calibration.items()}}

    @classmethod
    def of_state(cls, header: Header, arrays: Arrays, widths: Sequence[int], n_channels: int) -> Views:
        """Return the forests with a state from `state`."""
        if len(widths) == 1:
            return cls([_of_state(header, arrays)], widths, n_channels)
        _STATE(header, "forest")
        groups: dict[str, Arrays] = {}
        for name, part in arrays.items():
            group, _, field = name.partition("/")
            groups.setdefault(group, {})[field] = part
        scores = groups.pop("calibration", {})
        known = [str(v) for v in range(len(widths))]
        if len(header["views"]) != len(widths) or not set(groups) <= set(known):
            raise ValueError(f"it has {len(header['views'])} views, not {len(widths)}")
        members = [_of_state(about, groups.get(v, {})) for v, about in zip(known, header["views"], strict=True)]
        views = cls(members, widths, n_channels)
        check_layout(scores, _CALIBRATION, {})
        views.calibration = RunningCalibration.of_state(
            views.calibration.n, scores["arrivals"], scores["scores"], is_seeded=header["is_seeded"]
        )
        views.run_length = header["spell"]
        views._check()
        return views

    def _check(self) -> None:
        """Raise ValueError if the forests do not hold the same points."""
        if not 1 <= self.run_length <= LONGEST_RUN:
            raise ValueError(f"its mean run length of alarms is {self.run_length}, out of range")
        if any(_common(member) != _common(self.first) for member in self.members):
            raise ValueError("its views have different parameters")
        arrivals = self.calibration.arrivals
        if len(arrivals) and not (self.has_begun and 0 <= arrivals[0] <= arrivals[-1] < self.first.n_seen_):
            raise ValueError("it has scores of rows that were never learned")
        if not self.has_begun:
            return
        held = _held_by(self.first)
        for member, width in zip(self.members, self.widths, strict=True):
            if _held_by(member) != held or member.n_features_in_ != width:
                raise ValueError("its views do not hold the same points")

    # ---- learning ---------------------------------------------------------------------------------------------------

    def fit(self, rows: Array, keys: Any, times: Array | None, steps: Sequence[int]) -> None:
        """Fit the forests to the rows of a table, which arrived at `steps`."""
        self.steps = dict(zip(keys, steps, strict=True))
        for member, part in zip(self.members, self.split(rows), strict=True):
            member.fit(part, keys=keys, times=times)
        self.calibration = RunningCalibration(self.calibration.n)

    def measure_run_length(self, rows: Array | None = None) -> None:
        """Measure the mean run length of anomalous rows, on consecutive rows or on the calibration scores."""
        if not self.is_one:
            scores = self.calibration.scores if rows is None else self.score_samples(rows[-_STRETCH:])
            self.run_length = mean_run_length(scores)

    def advance(
        self, rows: Array, keys: Any, times: Array | None, task: LearnTask, steps: Sequence[int], aligned: Alignment
    ) -> Detections:
        """Learn rows, which arrived at `steps`; return the results of the task."""
        if self.is_one:
            return self.first._advance(rows, keys, times, task)[0]
        if task.is_explained:
            return self._advance_and_replay(rows, keys, times, task, steps, aligned)
        if task.is_judged:
            self._seed_calibration()
        came, part_of = self.first.n_seen_ if self.has_begun else 0, LearnTask(is_scored=task.is_scored)
        parts = zip(self.members, self.split(rows), strict=True)
        answers = [member._advance(part, keys, times, part_of)[0].scores for member, part in parts]
        self.steps.update(zip(keys, steps, strict=True))
        held = self.first._stream.store.slot_of
        while self.steps and (oldest := next(iter(self.steps))) not in held:
            del self.steps[oldest]
        if not task.is_scored:
            return NOTHING
        scores = self._mean(answers)
        if not task.is_judged:
            return Detections(scores, *NOTHING[1:])
        return self.calibration.judge_then_learn(scores, np.arange(came, came + len(scores)), self.policy)

    def _advance_and_replay(
        self, rows: Array, keys: Any, times: Array | None, task: LearnTask, steps: Sequence[int], aligned: Alignment
    ) -> Detections:
        """Learn rows together, and explain the flagged ones by replaying the rows on a copy."""
        before = deepcopy(self)
        detected = self.advance(rows, keys, times, task._replace(is_explained=False), steps, aligned)
        explanations, start = {}, 0
        for i in np.flatnonzero(detected.is_anomaly).tolist():
            part = slice(start, i)
            before.advance(
                rows[part], keys[part], None if times is None else times[part], LearnTask(), steps[part], aligned
            )
            places = np.array([aligned.place_of(steps[i])])
            explanations[i] = before.explain(rows[i : i + 1], None, aligned, places, detected=detected.row(i))[0]
            start = i
        return detected._replace(explanations=explanations)

    def delete(self, keys: Iterable[Key]) -> None:
        """Delete points."""
        gone = list(keys)
        slots = [self.first._stream.store.slot_of[key] for key in gone]
        self.calibration.forget(self.first._stream.numbers[slots].tolist())
        for key in gone:
            self.steps.pop(key, None)
        for member in self.members:
            member.delete(gone)

    def change_false_alarm_rate(self, rate: float | None) -> None:
        """Change the false alarm rate."""
        for member in self.members:
            member.change_false_alarm_rate(rate)
        self.calibration.resize(n_to_calibrate(rate))

    def rebuild(self) -> None:
        """Recompute feature weights and regrow all trees."""
        for member in self.members:
            member.rebuild()

    def damp(self, damping: Array) -> None:
        """Divide the weight of each feature by a factor, from the next rebuild on."""
        for member, part in zip(self.members, self.split(damping[None]), strict=True):
            member._damp(part[0])

    # ---- verdicts ---------------------------------------------------------------------------------------------------

    def score_samples(self, rows: Array) -> Array:
        """Return the scores of rows."""
        parts = zip(self.members, self.split(rows), strict=True)
        return self._mean([member.score_samples(part) for member, part in parts])

    def detect(self, rows: Array) -> Detections:
        """Return the results for rows without learning them."""
        if self.is_one:
            return self.first.detect(rows)
        judges, policy = self._checked_judges()
        return judges.judge(self.score_samples(rows), policy)

    @property
    def offset(self) -> float:
        """The threshold."""
        if self.is_one:
            return float(self.first.offset_)
        judges, policy = self._checked_judges()
        return judges.threshold(policy)

    def _checked_judges(self) -> tuple[RunningCalibration, ThresholdPolicy]:
        """Return `_judges`; raise ValueError if they are too few for the false alarm rate."""
        judges, policy = self._judges()
        if policy.false_alarm_rate is not None and not len(self.calibration):
            check_calibration_size(len(judges), policy.false_alarm_rate, REMEDY)
        return judges, policy

    def p_values(self, scores: Array) -> Array:
        """Return the p-values of scores."""
        if self.is_one:
            return self.first._p_values(scores)
        judges, policy = self._judges()
        return judges.judge(scores, policy).p_values

    def left_out_scores(self) -> tuple[Array, Array]:
        """Return scores and arrivals of points held, each left out of the forests."""
        found = [member._model.left_out_scores(member._query) for member in self.members]
        common = found[0][1]
        for _, arrivals in found[1:]:
            common = np.intersect1d(common, arrivals)
        columns = [scores[np.argsort(arrivals)][np.isin(np.sort(arrivals), common)] for scores, arrivals in found]
        return self._mean(columns), np.sort(common)

    def _seed_calibration(self) -> None:
        """Seed the calibration scores with those of the points held, if there are any."""
        self.calibration, policy = self._judges()
        self.run_length = policy.run_length

    def recalibrate(self) -> None:
        """Replace the calibration scores after the forests have changed."""
        self.calibration = RunningCalibration(self.calibration.n)
        self.calibration.seed(*self.left_out_scores())
        self.measure_run_length()

    # ---- reasons ----------------------------------------------------------------------------------------------------

    def explain(
        self,
        rows: Array,
        features: Any,
        aligned: Alignment,
        places: Array,
        *,
        is_apart: bool = False,
        detected: Detections | None = None,
    ) -> Sequence[Explanation]:
        """Explain each row by its most anomalous view.

        The rows are the context windows that end at `places` of an alignment; `is_apart` as in `Outlook`.
        """
        if self.is_one:
            return self.first.explain(rows, features)
        detected = self.detect(rows) if detected is None else detected
        explained = [self._explained(number, part, features, detected) for number, part in enumerate(self.split(rows))]
        excess = np.array([[one.surprise - one.typical for one in view] for view in explained])
        outlook = self.outlook(aligned, is_apart=is_apart)
        chosen = []
        for i, (view, place) in enumerate(zip(excess.argmax(axis=0).tolist(), places.tolist(), strict=True)):
            explanation = explained[view][i]
            explanation.context = self._context(view, explanation, aligned, place, outlook)
            explanation.summary = self._in_words(view, explanation, aligned.pattern.timezone)
            chosen.append(explanation)
        return chosen

    def _explained(self, number: int, rows: Array, features: Any, detected: Detections) -> Explanations:
        """Explain rows by one view, with a threshold at the same distance from the score as in all views together."""
        member = self.members[number]
        names = member._feature_names
        own = None if features is None else [name for name in features if name in names]
        offset = float(np.mean(member.score_samples(rows) + detected.thresholds - detected.scores))
        return with_verdicts(member._explained(rows, own, offset=offset), detected)

    def _context(
        self, view: int, explanation: Explanation, aligned: Alignment, place: int, outlook: Outlook
    ) -> ContextWindow:
        """Return the steps up to a place, the readings expected at the last of them, and the bits of each."""
        track, layout = aligned.track, layout_of(self.n_channels)
        first = max(aligned.start_of(place), place + 1 - LENGTH)
        steps, back = np.arange(first, place + 1), place - _BACK
        expected = Forecast.nothing(len(steps), self.n_channels)
        if back >= 0 and aligned.ends_context()[back]:
            expected.fill(slice(-_BACK, None), outlook.across(steps[-_BACK:], aligned.states(np.array([back]))))
        usual = np.tile(np.median(self._readings_held, axis=0), (len(steps), 1))
        if track.periods:
            by_rhythm = usual_by_rhythm(track.values, steps, track.periods[0])
            usual = np.where(np.isnan(by_rhythm), usual, by_rhythm)
        deviations = track.rhythm(steps)[0].reshape(len(steps), self.n_channels, -1)[:, :, 0]
        start = sum(self.widths[:view])
        own, readings = slice(start, start + self.widths[view]), track.values[steps]
        bits = fold_on_steps(explanation.low, explanation.high, own, readings, usual, deviations)
        names = self.members[-1]._feature_names
        channels = [names[column] for column in layout.readings_in_view.tolist()]
        return ContextWindow(channels, track.times[steps], readings, expected.mean, expected.low, expected.high, bits)

    def _in_words(self, view: int, explanation: Explanation, timezone: str) -> str:
        """Describe what is unusual about a context window."""
        k, layout = int(explanation.parts.argmax()), layout_of(self.n_channels)
        place = sum(self.widths[:view]) + k
        is_of_channel = place < len(layout.channels()) and layout.channels()[place] != NONE
        c = int(layout.channels()[place]) if is_of_channel else 0
        name = layout.names(["{}"] * self.n_channels)[place] if is_of_channel else explanation.names[k]
        side = "high" if explanation.values[k] > np.median(self.members[view].points_[:, k]) else "low"
        context = explanation.context
        assert context is not None
        actual, *expected = (part[-_BACK:, c] for part in (context.readings, context.mean, context.low, context.high))
        zone = read_timezone(timezone)
        return describe(name, side, context.channels[c], actual, expected, context.times[-_BACK:], zone)

    @property
    def _readings_held(self) -> Array:
        """The newest reading of each context window held, (n, C)."""
        return np.asarray(self.members[-1].points_[:, layout_of(self.n_channels).readings_in_view])

    # ---- what comes next --------------------------------------------------------------------------------------------

    def outlook(self, aligned: Alignment, *, is_apart: bool = False, unseen: Array | None = None) -> Outlook:
        """Return the outlook for the steps of an alignment, given the context windows held."""
        *_, season, rhythm = self.members
        held = HeldContexts(
            rhythm.points_,
            self._readings_held,
            np.array([self.steps[key] for key in rhythm.keys_]),
            rhythm.forest_.weights.mean(axis=0),
            season.forest_.weights.mean(axis=0),
            float(rhythm.lifetimes_[-1]),
        )
        period = aligned.track.periods[0] if aligned.track.periods else None
        return Outlook(held, aligned.track.values, aligned.track.numbers, period, is_apart=is_apart, unseen=unseen)


_UNBEGUN = schema.record({"parameters": schema.parameters(StreamingMPF._names_in_files())})
_STATE = schema.record({"views": schema.many(schema.mapping), "is_seeded": schema.flag, "spell": schema.number})
_CALIBRATION: Layout = {"arrivals": (np.int64, "J"), "scores": (np.float64, "J")}


def _common(forest: StreamingMPF) -> Any:
    """Return what all views must share: whether they are fitted, and all parameters except size and seed."""
    own = {"n_estimators": None, "random_state": None}
    return hasattr(forest, "forest_"), {**forest._parameters(), **own}


def _held_by(forest: StreamingMPF) -> Any:
    """Return the points that a forest holds and the state of its retention policy."""
    stream = forest._stream
    store, slots = stream.store, stream.store.held
    moments = (stream.numbers[slots].tolist(), store.times[slots].tobytes(), store.clock, store.floor)
    return forest.keys_, store.n_seen, stream.next_rebuild, stream.rules.policy, stream.rules.score, repr(moments)


def _state_of(forest: StreamingMPF, is_compact: bool) -> tuple[Header, Arrays]:
    """Return the state of a forest; only the parameters if it is not fitted."""
    if not hasattr(forest, "forest_"):
        return {"parameters": forest._parameters()}, {}
    with forest._frozen():
        return forest._state(is_compact=is_compact)


def _of_state(header: Header, arrays: Arrays) -> StreamingMPF:
    if arrays:
        return StreamingMPF._of_state(header, arrays)
    _UNBEGUN(header, "forest")
    return StreamingMPF._of_parameters(header["parameters"])
