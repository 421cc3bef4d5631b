"""Complete the explanation of a context window: readings, what was expected, the bits of each step, and a summary."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polyaforest.explain import ContextWindow, Explanation
from polyaforest.forest.thresholds import Detections
from polyaforest.kernels.arrays import NONE, Array
from polyaforest.model.fitted import with_verdicts
from polyaforest.model.parameters import StreamParameters
from polyaforest.series.calendar import read_timezone
from polyaforest.series.contexts import LENGTH, layout_of
from polyaforest.series.forecasts import Forecast, Outlook, usual_by_rhythm
from polyaforest.series.shingles import Alignment
from polyaforest.series.steps import fold_on_steps
from polyaforest.series.view import View
from polyaforest.series.words import Readings, describe
from polyaforest.util.numbers import are_counts

_BACK = 32  # steps before a reading at which its forecast starts
_COMPARED = 512  # readings that explain a reading by itself


class ContextReasons:
    """What to add to the explanations of context windows that end at places of an alignment.

    Parameters
    ----------
    aligned : Alignment
    outlook : Outlook
    channels : list of str
        Names of the channels.
    held : ndarray of shape (n, C)
        The newest reading of each context window held.
    """

    def __init__(self, aligned: Alignment, outlook: Outlook, channels: Sequence[str], held: Array) -> None:
        self._aligned, self._outlook, self._channels, self._held = aligned, outlook, list(channels), held
        self._layout = layout_of(len(channels))

    def complete(self, explanation: Explanation, columns: slice, points: Array, place: int) -> Explanation:
        """Add context and summary to an explanation of the features in `columns`, by a view with `points`."""
        context = explanation.context = self._context(explanation, columns, place)
        explanation.summary = self._in_words(explanation, context, columns, points)
        return explanation

    def _context(self, explanation: Explanation, columns: slice, place: int) -> ContextWindow:
        """Return the steps up to a place, the readings expected at the last of them, and the bits of each."""
        aligned, n_channels, held = self._aligned, len(self._channels), self._held
        track = aligned.track
        first = max(aligned.start_of(place), place + 1 - LENGTH)
        steps, back = np.arange(first, place + 1), place - _BACK
        expected = Forecast.nothing(len(steps), n_channels)
        if back >= 0 and aligned.ends_context()[back]:
            expected.fill(slice(-_BACK, None), self._outlook.across(steps[-_BACK:], aligned.states(np.array([back]))))
        usual = np.tile(np.median(held, axis=0), (len(steps), 1))
        if track.periods:
            by_rhythm = usual_by_rhythm(track.values, steps, track.periods[0])
            usual = np.where(np.isnan(by_rhythm), usual, by_rhythm)
        deviations = track.rhythm(steps)[0].reshape(len(steps), n_channels, -1)[:, :, 0]
        readings = track.values[steps]
        bits = fold_on_steps(explanation.low, explanation.high, columns, readings, usual, deviations)
        band, usual = (expected.median, expected.low, expected.high), np.quantile(held, [0.05, 0.5, 0.95], axis=0)
        return ContextWindow(self._channels, track.times[steps], readings, *band, bits, usual, are_counts(held))

    def _in_words(self, explanation: Explanation, context: ContextWindow, columns: slice, points: Array) -> str:
        """Describe what is unusual about a context window."""
        k = int(explanation.parts.argmax())
        place, channels = columns.start + k, self._layout.channels()
        is_of_channel = place < len(channels) and channels[place] != NONE
        c = int(channels[place]) if is_of_channel else 0
        name = self._layout.names(["{}"] * len(self._channels))[place] if is_of_channel else explanation.names[k]
        side = "high" if explanation.values[k] > np.median(points[:, k]) else "low"
        columns_of_steps = (context.readings, context.low, context.median, context.high)
        actual, low, median, high = (part[-_BACK:, c] for part in columns_of_steps)
        is_count = context.is_count is not None and bool(context.is_count[c])
        readings = Readings(actual, low, median, high, context.times[-_BACK:], context.band(c), is_count)
        zone = read_timezone(self._aligned.pattern.timezone)
        return describe(name, side, context.channels[c], readings, zone)


class ReadingReasons:
    """Explanations of readings by themselves, without their context windows: by a forest on other readings.

    Parameters
    ----------
    aligned : Alignment
    known : ndarray of shape (n, C)
        The readings to compare with, oldest first; NaN where a value is missing.
    channels : list of str
    parameters : StreamParameters
        Of the forest.
    """

    def __init__(self, aligned: Alignment, known: Array, channels: Sequence[str], parameters: StreamParameters) -> None:
        self._aligned, self._channels = aligned, list(channels)
        complete = known[~np.isnan(known).any(axis=1)]
        self._known = np.ascontiguousarray(complete[-_COMPARED:])
        parameters = parameters.but(contamination="auto", false_alarm_rate=None, window="auto", max_samples="auto")
        self._view = View("readings", parameters, self._channels, slice(0, len(self._channels)))

    def explain(self, place: int, detected: Detections) -> Explanation:
        """Explain the reading at a place of the alignment."""
        if self._view.model is None:
            n = len(self._known)
            self._view.fit(self._known, list(range(n)), np.full(n, np.nan))
        track = self._aligned.track
        row = np.where(np.isnan(track.values[place]), np.median(self._known, axis=0), track.values[place])
        explanation = with_verdicts(self._view.explained(row[None], None, self._view.threshold), detected)[0]
        context = explanation.context = self._context(explanation, place)
        explanation.summary = self._in_words(explanation, context)
        return explanation

    def _context(self, explanation: Explanation, place: int) -> ContextWindow:
        """Return the steps up to a place, and the bits of the last."""
        steps = np.arange(max(0, place + 1 - LENGTH), place + 1)
        readings = self._aligned.track.values[steps]
        nothing, bits = np.full(readings.shape, np.nan), np.zeros(readings.shape)
        bits[-1] = explanation.parts
        usual = np.quantile(self._known, [0.05, 0.5, 0.95], axis=0)
        forecast = (nothing, nothing, nothing)
        times = self._aligned.track.times[steps]
        return ContextWindow(self._channels, times, readings, *forecast, bits, usual, are_counts(self._known))

    def _in_words(self, explanation: Explanation, context: ContextWindow) -> str:
        """Describe what is unusual about the reading."""
        c = int(explanation.parts.argmax())
        low, median, high = context.band(c)
        readings = context.readings[-_BACK:, c]
        nothing = np.full(len(readings), np.nan)
        is_count = context.is_count is not None and bool(context.is_count[c])
        given = Readings(readings, nothing, nothing, nothing, context.times[-_BACK:], (low, median, high), is_count)
        side = "high" if readings[-1] > median else "low"
        return describe("reading", side, self._channels[c], given, read_timezone(self._aligned.pattern.timezone))
