"""A series with a short memory beside its context windows, and alarms that begin and end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from math import log2
from typing import Any, cast

import numpy as np

from polyaforest.explain import Explanation
from polyaforest.forest.point_store import Key
from polyaforest.forest.thresholds import NOTHING, Detections, check_calibration_size, conformal_p_values
from polyaforest.kernels.arrays import Array
from polyaforest.model.parameters import StreamParameters
from polyaforest.model.stream_model import LearnTask
from polyaforest.series.alarms import FALSE_ALARMS, LEAST_LEVELS, AlarmMonitor, Verdicts, judge_table
from polyaforest.series.context_views import ContextViews
from polyaforest.series.model import SeriesModel, from_under, under
from polyaforest.series.reasons import ReadingReasons
from polyaforest.series.recent import LEAST_READINGS
from polyaforest.series.shingles import Alignment
from polyaforest.series.views import ReadParameters, Rows
from polyaforest.storage.modelfile import Arrays, Header


class AlarmSeries(SeriesModel):
    """A series of context windows whose readings also have a level by the short memory.

    Attributes
    ----------
    monitor : AlarmMonitor
    """

    views: ContextViews
    monitor: AlarmMonitor

    def _begin_views(self) -> None:
        super()._begin_views()
        if not hasattr(self, "monitor"):
            self.monitor = AlarmMonitor(self.n_channels, _bits(self.forest), holds=True)

    # ---- learning ---------------------------------------------------------------------------------------------------

    def begin_at(self, number: int) -> None:
        """Count readings from `number`, as if the earlier ones were forgotten."""
        super().begin_at(number)
        self.monitor.recent.n_seen = number

    def _fit_views(self, aligned: Alignment, stamps: Array, names: list[Key | None]) -> None:
        """Fit the views, as far as there are context windows, and begin with the levels of the table."""
        if aligned.is_whole.any():
            super()._fit_views(aligned, stamps, names)
        elif len(aligned.rows) < LEAST_READINGS:
            raise ValueError(f"these {len(aligned.rows)} rows are too few: pass at least {LEAST_READINGS}")
        else:
            self.history.provenance.enter_names(names, 0)
            self._commit(aligned, np.empty(0, np.int64))
        self.monitor.advance(*self._rows_of(aligned))

    def _taught(self, rows: Rows, task: LearnTask, aligned: Alignment) -> Detections:
        """Learn the readings of an alignment; return their results."""
        before = deepcopy(self) if task.is_explained else None
        parts = [np.empty((len(self.views.members), 0))]
        for part, is_silent in self._stretches(rows):
            surprise = self.views.learn_surprise(part)
            parts.append(np.full_like(surprise, np.nan) if is_silent else surprise)
        verdicts = self.monitor.advance(aligned.rows, _placed(np.concatenate(parts, axis=1), aligned))
        if not task.is_scored:
            return NOTHING
        found = verdicts.detections()
        if before is None:
            return found
        return found._replace(explanations=before._explained_in_turn(rows, aligned, found, verdicts.is_short))

    def _explained_in_turn(
        self, rows: Rows, aligned: Alignment, found: Detections, is_short: Array
    ) -> dict[int, Explanation]:
        """Explain the flagged rows, each as of the rows before it, which are learned here."""
        context_of = np.cumsum(aligned.is_whole) - 1
        explanations, start, n_before = {}, 0, 0
        for i in np.flatnonzero(found.is_anomaly).tolist():
            self.monitor.recent.append(aligned.rows[n_before:i])
            n_before, place = i, aligned.places[i : i + 1]
            if is_short[i] or not aligned.is_whole[i] or self.is_silent:
                explanations[i] = self._reading_reasons(aligned).explain(int(place[0]), found.row(i))
                continue
            k = int(context_of[i])
            for part, _ in self._stretches(rows.part(slice(start, k))):
                self.views.learn_surprise(part)
            start = k
            explanations[i] = self.views.explained(rows.values[k : k + 1], None, aligned, place, found.row(i))[0]
        return explanations

    def _reading_reasons(self, aligned: Alignment) -> ReadingReasons:
        return ReadingReasons(aligned, self.monitor.recent.values.T, self.channels, self.forest)

    # ---- changes ----------------------------------------------------------------------------------------------------

    def change_false_alarm_rate(self, rate: float | None) -> None:
        """Change the false alarm rate."""
        super().change_false_alarm_rate(rate)
        self.monitor.change_bits(_bits(self.forest))

    def flag_at_rate(self, rate: float) -> None:
        """Begin alarms at a false alarm rate, without changing what to learn; few levels do not show a low one."""
        if len(self.monitor.usual) < LEAST_LEVELS:
            check_calibration_size(len(self.monitor.usual), rate, "learn more readings")
        self.monitor.change_bits(-log2(rate))

    def delete(self, keys: Sequence[Key]) -> None:
        """Delete readings, with every context window that depends on them, and all earlier ones of the short memory."""
        newest = max(self._numbers_of(keys), default=-1)
        super().delete(keys)
        self.monitor.forget(self.history.n_seen - 1 - newest)

    # ---- as if rows came next ---------------------------------------------------------------------------------------

    def _judged(self, aligned: Alignment, *, is_apart: bool) -> Verdicts:
        """Return the results of aligned rows: as the next readings, or, apart, by the readings on both sides."""
        if is_apart:
            return self._judged_apart(aligned)
        found = self.monitor.copy().advance(*self._rows_of(aligned))
        return Verdicts.of(*found[:4], self.monitor.usual)  # as of now, for all rows

    def _judged_apart(self, aligned: Alignment) -> Verdicts:
        rows, surprise = self._rows_of(aligned)
        return judge_table(np.ascontiguousarray(rows.T), surprise, self.monitor.bits)

    def _rows_of(self, aligned: Alignment) -> tuple[Array, Array]:
        """Return aligned rows, and the surprise of their context windows."""
        if not aligned.is_whole.any() or self.is_silent:
            return aligned.rows, np.full((len(self.views.members), len(aligned.rows)), np.nan)
        return aligned.rows, _placed(self.views.surprise(aligned.shingles()), aligned)

    def scores(self, aligned: Alignment, *, is_apart: bool) -> Array:
        """Return the scores of aligned rows: minus their levels."""
        return -self._judged(aligned, is_apart=is_apart).levels

    def detect(self, aligned: Alignment, *, is_apart: bool) -> Detections:
        """Return the results for aligned rows without learning them."""
        found = self._judged(aligned, is_apart=is_apart).detections()
        history = self.history_of(is_apart=is_apart)
        return found._replace(novelty=history.judge(aligned, history.known.copy()))

    @property
    def threshold(self) -> float:
        """The threshold: minus the level at which an alarm begins."""
        return -self.monitor.limit

    def p_values(self, scores: Array) -> Array:
        """Return the p-values of scores among levels without alarm."""
        return conformal_p_values(scores, self.monitor.usual)

    def check_calibrated(self) -> None:
        """Raise ValueError if there are no levels to compare with."""
        if not len(self.monitor.usual):
            raise ValueError("this detector has no calibration scores: learn more readings first")

    def explain(
        self, aligned: Alignment, rows: Sequence[int] | None, features: Any, *, is_apart: bool
    ) -> Sequence[Explanation]:
        """Explain some rows of an alignment, each by the memory that decides; all rows by default."""
        wanted = np.arange(len(aligned.is_whole)) if rows is None else np.asarray(rows, np.int64)
        if not len(wanted):
            raise ValueError("there are no rows to explain")
        verdicts = self._judged(aligned, is_apart=is_apart)
        if np.isnan(verdicts.levels[wanted]).any():
            row = wanted[np.isnan(verdicts.levels[wanted])][0]
            raise ValueError(f"row {row} has no score, so there is nothing to explain: pass rows= with scores only")
        found, known = verdicts.detections(), self.monitor.recent.values.T
        reasons = ReadingReasons(aligned, aligned.rows if is_apart else known, self.channels, self.forest)
        is_short, context_of = verdicts.is_short | ~aligned.is_whole | self.is_silent, np.cumsum(aligned.is_whole) - 1
        contexts, explained = aligned.shingles(), list[Explanation]()
        for i in wanted.tolist():
            place, own = aligned.places[i : i + 1], found.row(i)
            if is_short[i]:
                explained.append(reasons.explain(int(place[0]), own))
            else:
                k = int(context_of[i])
                explained += self.views.explained(contexts[k : k + 1], features, aligned, place, own, is_apart=is_apart)
        return explained

    # ---- files ------------------------------------------------------------------------------------------------------

    def state(self, *, is_compact: bool = False) -> tuple[Header, Arrays]:
        """Return history, views and the monitor."""
        header, arrays = super().state(is_compact=is_compact)
        about, own = self.monitor.state()
        return {**header, "alarms": about}, {**arrays, **under("alarms", own)}

    @classmethod
    def of_state(
        cls,
        header: Mapping[str, Any],
        arrays: Arrays,
        channels: Sequence[str],
        forest: StreamParameters,
        rescale: float | None,
        read: ReadParameters,
    ) -> AlarmSeries:
        """Return the model with a state from `state`; `read` validates the parameters of a view."""
        own = from_under("alarms", arrays)
        rest = {name: part for name, part in arrays.items() if not name.startswith("alarms/")}
        model = cast("AlarmSeries", super().of_state(header, rest, channels, forest, rescale, read))
        model.monitor = AlarmMonitor.of_state(header.get("alarms", {}), own, len(channels))
        if model.monitor.recent.n_seen != model.history.n_seen:
            raise ValueError("its short memory does not match its readings")
        return model


def _bits(forest: StreamParameters) -> float:
    """Return how rare false alarms may be, given the parameters of the forest."""
    asked = forest.false_alarm_rate
    if asked is None and not isinstance(forest.contamination, str):
        asked = forest.contamination
    return FALSE_ALARMS if asked is None else -log2(asked)


def _placed(surprise: Array, aligned: Alignment) -> Array:
    """Return the surprise of context windows, (V, n), at the rows where they end; NaN elsewhere."""
    placed = np.full((len(surprise), len(aligned.is_whole)), np.nan)
    placed[:, aligned.is_whole] = surprise
    return placed
