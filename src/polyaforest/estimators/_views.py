"""Forests that look at different features of the same rows, and score and decide as one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np

from polyaforest.core import schema
from polyaforest.core.arrays import NONE, Array
from polyaforest.decision.calibration import RunningCalibration, n_to_calibrate
from polyaforest.decision.thresholds import (
    LONGEST_SPELL,
    NOTHING,
    Detections,
    ThresholdPolicy,
    mean_spell,
    refuse_too_few,
)
from polyaforest.estimators._streaming import REMEDY, StreamingMPF, Task
from polyaforest.explain import Explanation, Explanations
from polyaforest.forest.integrity import Layout, check_layout
from polyaforest.forest.point_store import Key
from polyaforest.persistence.modelfile import Arrays, Header
from polyaforest.timeseries._courses import layout_of
from polyaforest.timeseries._outlook import BACK, Forecast, Past, Recent, describe, foresee

_STRETCH = 2048  # consecutive rows of a table by which spells are measured


class Views:
    """Forests, one for each view of a row; the score is the mean over all trees.

    All of them hold the same points, each its own columns. A single forest decides by itself.

    Parameters
    ----------
    members : list of StreamingMPF
    widths : list of int
        The columns of each, side by side.
    n_channels : int
        Channels of the series whose courses the rows are; of no matter to a single forest.
    """

    def __init__(self, members: Sequence[StreamingMPF], widths: Sequence[int], n_channels: int) -> None:
        self.members, self.widths, self.n_channels = list(members), list(widths), n_channels
        self.calibration = RunningCalibration(n_to_calibrate(members[0].false_alarm_rate))
        self.spell = 1.0  # rows that look odd together, on average
        self.steps: dict[Key, int] = {}  # when each point held came, in steps

    @property
    def policy(self) -> ThresholdPolicy:
        """Where the threshold of several views lies."""
        return replace(self.first._policy, spell=self.spell)

    def _judges(self) -> tuple[RunningCalibration, ThresholdPolicy]:
        """Return the calibration scores and the policy for the next row; by the points held, if none was judged yet."""
        if len(self.calibration) or not self.n_points:
            return self.calibration, self.policy
        seeded = RunningCalibration(self.calibration.n)
        seeded.seed(*self.left_out_scores())
        spell = self.spell if self.spell > 1 else mean_spell(seeded.scores)
        return seeded, replace(self.first._policy, spell=spell)

    @classmethod
    def like(cls, forest: StreamingMPF, widths: Sequence[int], n_channels: int) -> Views:
        """Return views whose trees together are those of `forest`, which has learned nothing."""
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
        """The first forest, whose keys and window are those of all."""
        return self.members[0]

    @property
    def is_one(self) -> bool:
        """Whether there is a single forest."""
        return len(self.members) == 1

    @property
    def has_begun(self) -> bool:
        """Whether the forests have learned anything."""
        return hasattr(self.first, "forest_")

    @property
    def n_points(self) -> int:
        """Points held."""
        return self.first.n_points_ if self.has_begun else 0

    @property
    def n_features(self) -> int:
        """Features of all views together, once they have begun."""
        return sum(member.n_features_in_ for member in self.members)

    @property
    def nbytes(self) -> int:
        """Bytes of the trees and of the points held."""
        return sum(member.nbytes for member in self.members)

    @property
    def points(self) -> Array:
        """The points held, by order of arrival, the columns of all views side by side."""
        return np.concatenate([member.points_ for member in self.members], axis=1)

    def _mean(self, scores: Sequence[Array]) -> Array:
        """Return the mean of the scores by each forest, weighted by its trees; the same bits for one row or many."""
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

    def state(self) -> tuple[Header, Arrays]:
        """Return the state for a file."""
        found = [_state_of(member) for member in self.members]
        if self.is_one:
            return found[0]
        arrays = {f"{v}/{name}": part for v, (_, parts) in enumerate(found) for name, part in parts.items()}
        calibration = {"arrivals": self.calibration.arrivals, "scores": self.calibration.scores}
        header = {"views": [about for about, _ in found], "is_seeded": self.calibration.is_seeded, "spell": self.spell}
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
        views.spell = header["spell"]
        views._check()
        return views

    def _check(self) -> None:
        """Raise unless the forests hold the same points, each its own columns."""
        if not 1 <= self.spell <= LONGEST_SPELL:
            raise ValueError(f"its false alarms last {self.spell} rows")
        if any(_common(member) != _common(self.first) for member in self.members):
            raise ValueError("its views were begun in different ways")
        arrivals = self.calibration.arrivals
        if len(arrivals) and not (self.has_begun and 0 <= arrivals[0] <= arrivals[-1] < self.first.n_seen_):
            raise ValueError("it has scores of rows that have not come")
        if not self.has_begun:
            return
        held = _held_by(self.first)
        for member, width in zip(self.members, self.widths, strict=True):
            if _held_by(member) != held or member.n_features_in_ != width:
                raise ValueError("its views do not hold the same points")

    # ---- learning ---------------------------------------------------------------------------------------------------

    def fit(self, rows: Array, keys: Any, times: Array | None, steps: Sequence[int]) -> None:
        """Start anew with the rows of a table; `steps` say when each came."""
        self.steps = dict(zip(keys, steps, strict=True))
        for member, part in zip(self.members, self.split(rows), strict=True):
            member.fit(part, keys=keys, times=times)
        self.calibration = RunningCalibration(self.calibration.n)

    def measure_spell(self, rows: Array | None = None) -> None:
        """Measure how many rows look odd together, by consecutive rows, or else by the calibration scores."""
        if not self.is_one:
            scores = self.calibration.scores if rows is None else self.score_samples(rows[-_STRETCH:])
            self.spell = mean_spell(scores)

    def advance(self, rows: Array, keys: Any, times: Array | None, task: Task, steps: Sequence[int]) -> Detections:
        """Learn rows, which came at these steps; return the results that the task asks for."""
        if self.is_one:
            return self.first._advance(rows, keys, times, task)[0]
        if task.is_explained:
            return self._advance_and_replay(rows, keys, times, task, steps)
        if task.is_judged:
            self._seed_calibration()
        came, part_of = self.first.n_seen_ if self.has_begun else 0, Task(is_scored=task.is_scored)
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
        self, rows: Array, keys: Any, times: Array | None, task: Task, steps: Sequence[int]
    ) -> Detections:
        """Learn rows together, and explain those flagged by a copy that learns what led to each of them."""
        before = deepcopy(self)
        detected = self.advance(rows, keys, times, task._replace(is_explained=False), steps)
        explanations, start = {}, 0
        for i in np.flatnonzero(detected.is_anomaly).tolist():
            part = slice(start, i)
            before.advance(rows[part], keys[part], None if times is None else times[part], Task(), steps[part])
            recent = before.recent(rows[i], np.nan if times is None else times[i])
            explanations[i] = before.explain(rows[i : i + 1], None, [recent], detected.row(i))[0]
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

    def rebuild(self) -> None:
        """Weigh features anew, and grow all trees anew."""
        for member in self.members:
            member.rebuild()

    def damp(self, damping: Array) -> None:
        """Let each feature weigh less by a factor, from the next time that features are weighed on."""
        for member, part in zip(self.members, self.split(damping[None]), strict=True):
            member._damp(part[0])

    # ---- verdicts ---------------------------------------------------------------------------------------------------

    def score_samples(self, rows: Array) -> Array:
        """Return the scores of rows."""
        parts = zip(self.members, self.split(rows), strict=True)
        return self._mean([member.score_samples(part) for member, part in parts])

    def detect(self, rows: Array) -> Detections:
        """Return the results for rows; nothing is learned."""
        if self.is_one:
            return self.first.detect(rows)
        scores, offset = self.score_samples(rows), self.offset
        return Detections(scores, self.p_values(scores), scores < offset, np.full(len(scores), offset))

    @property
    def offset(self) -> float:
        """The threshold."""
        if self.is_one:
            return float(self.first.offset_)
        judges, policy = self._judges()
        if policy.false_alarm_rate is not None and not len(self.calibration):
            refuse_too_few(len(judges), policy.false_alarm_rate, REMEDY)
        return judges.threshold(policy)

    def p_values(self, scores: Array) -> Array:
        """Return the p-values of rows with these scores."""
        if self.is_one:
            return self.first._p_values(scores)
        judges, policy = self._judges()
        return judges.judge(scores, policy).p_values

    def left_out_scores(self) -> tuple[Array, Array]:
        """Return the scores, and arrivals, of points held, each left out of the forests."""
        found = [member._left_out_scores(member._stream) for member in self.members]
        common = found[0][1]
        for _, arrivals in found[1:]:
            common = np.intersect1d(common, arrivals)
        columns = [scores[np.argsort(arrivals)][np.isin(np.sort(arrivals), common)] for scores, arrivals in found]
        return self._mean(columns), np.sort(common)

    def _seed_calibration(self) -> None:
        """Have the first rows that are judged compared with the points held, if there are any."""
        self.calibration, policy = self._judges()
        self.spell = policy.spell

    def recalibrate(self) -> None:
        """Compare rows to come with the points held, each left out of the forests, because those have changed."""
        self.calibration = RunningCalibration(self.calibration.n)
        self.calibration.seed(*self.left_out_scores())
        self.measure_spell()

    # ---- reasons ----------------------------------------------------------------------------------------------------

    def explain(
        self,
        rows: Array,
        features: Any,
        recent: Sequence[Recent | None],
        detected: Detections | None = None,
    ) -> Sequence[Explanation]:
        """Return an explanation of each row, by the view in which it is oddest; `recent` are the steps up to each."""
        if self.is_one:
            return self.first.explain(rows, features)
        detected = self.detect(rows) if detected is None else detected
        explained = [self._explained(number, part, features, detected) for number, part in enumerate(self.split(rows))]
        excess = np.array([[one.surprise - one.typical for one in view] for view in explained])
        chosen = []
        for i, (view, steps) in enumerate(zip(excess.argmax(axis=0).tolist(), recent, strict=True)):
            explanation = explained[view][i]
            explanation.summary = self._in_words(view, explanation, steps)
            chosen.append(explanation)
        return chosen

    def _explained(self, number: int, rows: Array, features: Any, detected: Detections) -> Explanations:
        """Return explanations by one view. Its threshold is as far from its score as that of all is from theirs."""
        member = self.members[number]
        names = member._feature_names
        own = None if features is None else [name for name in features if name in names]
        offset = float(np.mean(member.score_samples(rows) + detected.thresholds - detected.scores))
        return member._with_verdicts(member._explained(rows, own, offset=offset), detected)

    def _in_words(self, view: int, explanation: Explanation, recent: Recent | None) -> str:
        """Return what is odd about a course, in words; names of channels may look like those of features."""
        k, layout = int(explanation.parts.argmax()), layout_of(self.n_channels)
        place = sum(self.widths[:view]) + k
        is_of_channel = place < len(layout.channels()) and layout.channels()[place] != NONE
        c = int(layout.channels()[place]) if is_of_channel else 0
        name = layout.names(["{}"] * self.n_channels)[place] if is_of_channel else explanation.names[k]
        names = self.members[-1]._feature_names
        channels = [names[column] for column in layout.readings_in_view.tolist()]
        side = "high" if explanation.values[k] > np.median(self.members[view].points_[:, k]) else "low"
        if recent is None:
            return describe(name, side, channels[c], np.empty(0), None, np.empty(0))
        expected = self._expected(recent)
        own = None if expected is None else Forecast(*(part[:, c : c + 1] for part in expected))
        return describe(name, side, channels[c], recent.readings[:, c], own, recent.times)

    def _expected(self, recent: Recent) -> Forecast | None:
        """Return what was expected of the last steps: by the rhythm, or else by what followed similar courses."""
        if not recent.deviations.any():
            return foresee(self.past(), recent.state, recent.before, len(recent.readings))
        mean = recent.readings - recent.deviations
        low, high = np.quantile(self._deviations_held, (0.05, 0.95), axis=0)
        return Forecast(mean, mean + low, mean + high)

    @property
    def _deviations_held(self) -> Array:
        """How far the newest readings of the courses held are from the rhythm, (n, C)."""
        points = self.members[-2].points_
        return points.reshape(len(points), self.n_channels, -1)[:, :, 0]

    # ---- what comes next --------------------------------------------------------------------------------------------

    def past(self) -> Past:
        """Return the courses held, as the view of levels and rhythm sees them."""
        member, columns = self.members[-1], layout_of(self.n_channels).readings_in_view
        stream, states = member._stream, member.points_
        numbers, times = np.array([self.steps[key] for key in member.keys_]), stream.store.times[stream.store.held]
        weights = member.forest_.weights.mean(axis=0)
        return Past(states, states[:, columns], numbers, times, weights, float(member.lifetimes_[-1]))

    def recent(self, row: Array, time: float) -> Recent | None:
        """Return the steps up to a row that comes next; None if not all of them are held."""
        past = self.past()
        n = len(past.numbers)
        if n < BACK or past.numbers[-1] - past.numbers[-BACK] != BACK - 1:
            return None
        *_, season, rhythm = self.split(row[None])
        own = rhythm[:, layout_of(self.n_channels).readings_in_view]
        readings = np.concatenate([past.readings[n - BACK + 1 :], own])
        deviation = season.reshape(1, self.n_channels, -1)[:, :, 0]
        deviations = np.concatenate([self._deviations_held[n - BACK + 1 :], deviation])
        times = np.append(past.times[n - BACK + 1 :], time)
        return Recent(past.states[-BACK], past.readings[-BACK], readings, deviations, times)


_UNBEGUN = schema.record({"parameters": schema.parameters(StreamingMPF._names_in_files())})
_STATE = schema.record({"views": schema.many(schema.mapping), "is_seeded": schema.flag, "spell": schema.number})
_CALIBRATION: Layout = {"arrivals": (np.int64, "J"), "scores": (np.float64, "J")}


def _common(forest: StreamingMPF) -> Any:
    """Return what all views must have in common: whether they have begun, and all parameters but size and seed."""
    own = {"n_estimators": None, "random_state": None}
    return hasattr(forest, "forest_"), {**forest._parameters(), **own}


def _held_by(forest: StreamingMPF) -> Any:
    """Return which points a forest holds, and what decides how long."""
    stream = forest._stream
    store, slots = stream.store, stream.store.held
    moments = (stream.numbers[slots].tolist(), store.times[slots].tobytes(), store.clock, store.floor)
    return forest.keys_, store.n_seen, stream.next_rebuild, stream.rules.policy, stream.rules.score, repr(moments)


def _state_of(forest: StreamingMPF) -> tuple[Header, Arrays]:
    """Return the state of a forest: the parameters alone, if it has learned nothing."""
    if not hasattr(forest, "forest_"):
        return {"parameters": forest._parameters()}, {}
    with forest._frozen():
        return forest._state()


def _of_state(header: Header, arrays: Arrays) -> StreamingMPF:
    if arrays:
        return StreamingMPF._of_state(header, arrays)
    _UNBEGUN(header, "forest")
    return StreamingMPF._of_parameters(header["parameters"])
