"""Readings laid out in even steps, and the shingles that end at them.

A shingle is the last readings of all channels in one row, oldest first. Readings may come late, lack values or stay
away: here is what is done about it, for tables and streams alike. `align` is a pure function of what was kept of the
past and of the rows that come, so rows can also be laid on trial, and the result is the same row by row or in chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from math import isnan, nan
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils._param_validation import Interval, validate_parameter_constraints

from polyaforest.core.arrays import NONE, Array
from polyaforest.core.validation import LARGEST
from polyaforest.timeseries._calendar import (
    calendar_features,
    calendar_names,
    check_dates,
    read_calendar,
    read_timezone,
)
from polyaforest.timeseries._contexts import (
    LEAST,
    LENGTH,
    LONGEST_PERIOD,
    PHASE,
    context_features,
    layout_of,
    phase_features,
    season_features,
)

# What both the transformer and the detector let callers set.
CONSTRAINTS: dict[str, list[Any]] = {
    "shingle": [Interval(Integral, 1, 2**20, closed="both"), None],
    "every": [Interval(Real, 0, None, closed="neither"), timedelta, np.timedelta64, None],
    "max_gap": [Interval(Integral, 0, 2**16, closed="both")],  # a gap takes memory for as many steps
    "difference": ["boolean"],
    "calendar": ["array-like", str],
    "timezone": [str],
}


class Pattern(NamedTuple):
    """What shingles are made of."""

    shingle: int | None  # readings in each; None for context windows
    max_gap: int  # the most steps in a row that are filled in
    difference: bool  # whether changes count instead of levels
    calendar: tuple[str, ...]
    timezone: str

    @property
    def depth(self) -> int:
        """Steps that a shingle is made from."""
        return LENGTH if self.shingle is None else self.shingle + self.difference

    @property
    def least(self) -> int:
        """Unbroken steps that a shingle needs."""
        return LEAST if self.shingle is None else self.depth

    @property
    def whole(self) -> str:
        """What a row needs to be judged, in words."""
        return (
            f"context window of {LEAST} unbroken readings"
            if self.shingle is None
            else f"complete shingle of {self.shingle} readings"
        )

    @property
    def n_to_measure(self) -> int:
        """Rows from which the usual spacing is measured, but one."""
        return LEAST if self.shingle is None else self.shingle

    @property
    def room(self) -> int:
        """Steps to keep for the shingles to come: those they share, those of earlier periods, and those around gaps."""
        before = 3 * LONGEST_PERIOD + LENGTH if self.shingle is None else self.depth - 1
        return max(before, self.max_gap + 1)

    @property
    def largest(self) -> float:
        """The largest reading: differences have to be measurable too."""
        return LARGEST / 2 if self.shingle is None or self.difference else LARGEST

    @property
    def readings_before_the_newest(self) -> tuple[int, int]:
        """How many more than its newest a shingle is made of, at least and at most."""
        return self.least - 1 if self.max_gap == 0 else min(self.least - 1, 1), self.depth - 1 + self.max_gap

    def n_features(self, n_channels: int) -> int:
        """Features of a shingle."""
        own = sum(layout_of(n_channels).widths) if self.shingle is None else self.shingle * n_channels
        return own + 2 * len(self.calendar)

    def widths(self, n_channels: int) -> list[int]:
        """Features of each view; the calendar belongs to the last one."""
        if self.shingle is not None:
            return [self.n_features(n_channels)]
        *others, last = layout_of(n_channels).widths
        return [*others, last + 2 * len(self.calendar)]

    def channels(self, n_channels: int) -> Array:
        """Return the channel of each feature, NONE for those of the calendar and of the rhythm."""
        own = layout_of(n_channels).channels() if self.shingle is None else np.tile(np.arange(n_channels), self.shingle)
        return np.append(own, np.full(2 * len(self.calendar), NONE))

    def names(self, channels: Sequence[str]) -> list[str]:
        """Return the names of features: "cpu[-3]" is the reading three steps before the newest, "cpu"."""
        if self.shingle is None:
            return layout_of(len(channels)).names(channels) + calendar_names(self.calendar)
        words = [f"change of {channel}" for channel in channels] if self.difference else channels
        ages = range(self.shingle - 1, -1, -1)
        return [f"{word}[-{age}]" if age else word for age in ages for word in words] + calendar_names(self.calendar)


def checked_pattern(**settings: Any) -> Pattern:
    """Return the pattern with these settings, checked."""
    validate_parameter_constraints(CONSTRAINTS, settings, "a series")
    shingle, max_gap, difference, calendar, timezone = (settings[name] for name in Pattern._fields)
    read_timezone(timezone)
    if shingle is None and difference:
        raise ValueError("difference=True is for shingles of a given length: context windows look at changes anyway")
    return Pattern(
        None if shingle is None else int(shingle), int(max_gap), bool(difference), read_calendar(calendar), timezone
    )


def read_pattern(estimator: Any) -> Pattern:
    """Return the pattern by the parameters of an estimator, checked."""
    given = {name: getattr(estimator, name) for name in Pattern._fields}
    return checked_pattern(**given | {"shingle": None if given["shingle"] == "auto" else given["shingle"]})


def read_every(every: Any) -> float:
    """Return the spacing in seconds; NaN if it is to be measured."""
    if every is None:
        return nan
    if isinstance(every, np.timedelta64):
        every = float(every / np.timedelta64(1, "s"))
    seconds = every.total_seconds() if isinstance(every, timedelta) else float(every)
    if not 0 < seconds < np.inf:
        raise ValueError(f"every must be a positive length of time; got {every!r}")
    return float(seconds)


def check_times(stamps: Array, latest: float, pattern: Pattern) -> None:
    """Raise if times decrease, or are missing or out of range where a calendar needs them."""
    if pattern.calendar:
        if np.isnan(stamps).any():
            raise ValueError(f"calendar={pattern.calendar} needs times: give one for each row")
        check_dates(stamps)
    before = np.append(latest, stamps[:-1])
    is_back = stamps < before
    if is_back.any():
        i = int(is_back.argmax())
        raise ValueError(
            f"the time of row {i} is {stamps[i]}, before that of the row before it, {before[i]}: sort the rows by "
            "time. Nothing was learned"
        )


def measured_spacing(stamps: Array) -> float:
    """Return the usual time between readings; 0 if there is none, so that rows are consecutive.

    Readings with the same time say nothing about it.
    """
    steps = np.diff(stamps)
    return float(np.median(steps[steps > 0])) if (steps > 0).any() else 0.0


class Track(NamedTuple):
    """The last steps of a series that later shingles may need. The newest is always a reading."""

    values: Array  # float64 (k, C): NaN where nothing is known
    numbers: Array  # int64 (k,): the arrival of the reading, NONE for a step without one
    since: Array  # int64 (k,): the oldest reading that the values are derived from
    times: Array  # float64 (k,): NaN for a step without a reading, or without times
    every: float  # the usual spacing: NaN while it is unknown, 0 if there is none
    periods: tuple[int, ...] = ()  # steps of the rhythm, the strongest first

    @property
    def clock(self) -> Array:
        """When each step was, in steps: by the time, or by the number of its reading."""
        is_timed = self.every > 0 and not isnan(self.latest)
        return self.times / self.every if is_timed else self.numbers.astype(np.float64)

    @property
    def filled(self) -> Array:
        """The values, missing ones interpolated however long the gap."""
        filled = self.values.copy()
        for column in filled.T:
            is_missing = np.isnan(column)
            if is_missing.any() and not is_missing.all():
                column[is_missing] = np.interp(
                    np.flatnonzero(is_missing), np.flatnonzero(~is_missing), column[~is_missing]
                )
        return filled[:, ~np.isnan(filled).any(axis=0)]

    @property
    def latest(self) -> float:
        """The time of the newest reading, NaN if there is none."""
        return float(self.times[-1]) if len(self.times) else nan

    @property
    def oldest(self) -> int | None:
        """The arrival of the oldest reading kept, None if none is."""
        readings = self.numbers[self.numbers != NONE]
        return int(readings[0]) if len(readings) else None

    def rhythm(self, places: Array) -> tuple[Array, Array]:
        """Return the features of season and phase at steps; zeros without a rhythm."""
        layout = layout_of(self.values.shape[1])
        season = np.zeros((len(places), layout.season.stop - layout.season.start))
        if self.periods:
            season = season_features(self.values, places, self.periods[0])
        return season, phase_features(self.clock[places], self.periods)

    def without(self, number: int) -> Track:
        """Return the track as if a reading had never come: the steps after all that was derived from it or older ones.

        So a shingle begins anew behind the hole.
        """
        told = np.flatnonzero(self.since <= number)
        return self.last(len(self.values) - 1 - int(told[-1])) if len(told) else self

    def last(self, n: int) -> Track:
        """Return the newest `n` steps, copied, so that nothing else is kept alive."""
        start = max(len(self.values) - n, 0)
        values, numbers, since, times = (part[start:].copy() for part in self[:4])
        return Track(values, numbers, since, times, self.every, self.periods)


def new_track(n_channels: int, every: float) -> Track:
    """Return the track of a series that has not begun."""
    none = np.empty(0, np.int64)
    return Track(np.empty((0, n_channels)), none, none, np.empty(0), every)


class Alignment(NamedTuple):
    """Rows laid out in steps, behind those of a track."""

    track: Track  # all steps, gaps filled in where that may be; not cut to size
    places: Array  # int64 (n,): the step of each row
    starts: Array  # int64 (n,): the first of the unbroken steps that end at the row
    is_whole: Array  # bool (n,): whether a whole shingle ends at the row
    is_complete: Array  # bool (n,): whether the row lacks no value
    pattern: Pattern
    rows: Array  # float64 (n, C): as they came, NaN where a value is missing

    def kept(self) -> Track:
        """Return the track for later rows; all steps while the spacing is unknown."""
        is_pending = isnan(self.track.every) and not isnan(self.track.latest)
        return self.track.last(self.pattern.n_to_measure if is_pending else self.pattern.room)

    def shingles(self) -> Array:
        """Return the shingles that end at complete rows, (n_whole, n_features)."""
        places = self.places[self.is_whole]
        if self.pattern.shingle is None:
            return self.contexts(places, self.starts[self.is_whole])
        return self._finished(self.track.values[self._steps_to(places)], places)

    def place_of(self, number: int) -> int:
        """Return the step of the reading of this arrival."""
        return int(np.flatnonzero(self.track.numbers == number)[0])

    def start_of(self, place: int) -> int:
        """Return the first of the unbroken steps that end at a step."""
        return int(starts_of(self.track.values)[place])

    def ends_context(self) -> Array:
        """Return at which steps a context window ends, bool (S,): at readings that follow enough others."""
        values, steps = self.track.values, np.arange(len(self.track.values))
        is_reading = (self.track.numbers != NONE) & ~np.isnan(values).any(axis=1)
        return np.asarray(is_reading & (steps - starts_of(values) + 1 >= self.pattern.least))

    def states(self, places: Array) -> Array:
        """Return what the view of levels and rhythm sees of the context windows that end at steps, (n, D)."""
        width = self.pattern.widths(self.track.values.shape[1])[-1]
        return self.contexts(places, starts_of(self.track.values)[places])[:, -width:]

    def contexts(self, places: Array, starts: Array) -> Array:
        """Return the features of the context windows that end at steps, (n, n_features)."""
        features = context_features(self.track.values, places, starts)
        season, phase = self.track.rhythm(places)
        features[:, layout_of(self.track.values.shape[1]).season] = season
        features[:, -len(PHASE) :] = phase
        return self._with_calendar(features, places)

    def deviations(self) -> Array:
        """Return how far the newest readings are from their rhythm, (n, C); NaN without one."""
        if not self.track.periods:
            return np.full(self.rows.shape, np.nan)
        season = season_features(self.track.values, self.places, self.track.periods[0])
        return season.reshape(*self.rows.shape, -1)[:, :, 0]

    def padded_shingles(self) -> Array:
        """Return a shingle for each row, the first reading of a run repeated before it; NaN if values are missing.

        (n, n_features)
        """
        steps = np.maximum(self._steps_to(self.places), np.where(self.is_complete, self.starts, 0)[:, None])
        rows = self._finished(self.track.values[steps], self.places)
        rows[~self.is_complete] = np.nan
        return rows

    def oldest(self) -> Array:
        """Return the oldest reading behind the shingle of each complete row, int64 (n_whole,)."""
        steps = np.maximum(self._steps_to(self.places[self.is_whole]), self.starts[self.is_whole, None])
        oldest: Array = self.track.since[steps].min(axis=1)
        return oldest

    def _steps_to(self, places: Array) -> Array:
        """Return the steps of the shingles that end at given ones, (n, depth)."""
        return np.add.outer(places, np.arange(1 - self.pattern.depth, 1))

    def _finished(self, steps: Array, places: Array) -> Array:
        """Return windows of steps, (n, depth, C), as rows of features."""
        levels = np.diff(steps, axis=1) if self.pattern.difference else steps
        return self._with_calendar(levels.reshape(len(levels), levels.shape[1] * levels.shape[2]), places)

    def _with_calendar(self, features: Array, places: Array) -> Array:
        if not self.pattern.calendar:
            return features
        clock = calendar_features(self.track.times[places], self.pattern.calendar, self.pattern.timezone)
        return np.hstack([features, clock])


def align(track: Track, rows: Array, stamps: Array, number: int, pattern: Pattern) -> Alignment:
    """Lay rows out behind a track, the first of them as arrival `number`. The track stays as it is.

    The steps missing before a row are the time since the row before it in units of the usual spacing, rounded, but
    one; without times there are none. Values that are missing for at most `max_gap` steps in a row are filled in on a
    straight line, once the next one is known.
    """
    n_old, n = len(track.values), len(rows)
    arrivals = np.arange(number, number + n)
    values, times = np.concatenate([track.values, rows]), np.concatenate([track.times, stamps])
    numbers, since = np.concatenate([track.numbers, arrivals]), np.concatenate([track.since, arrivals])
    every, n_aligned, n_mute = track.every, n_old, n_old
    is_pending = isnan(every) and len(times) > 0 and not isnan(times[-1])
    if is_pending:
        n_aligned, n_mute = 0, max(n_old, pattern.n_to_measure)  # rows before the spacing is known end no shingle
        is_pending = len(values) <= pattern.n_to_measure
        every = nan if is_pending else measured_spacing(times[: pattern.n_to_measure + 1])
    steps, places = Track(values, numbers, since, times, every, track.periods), np.arange(n_old + n)
    if every > 0 and not np.isnan(stamps).any():
        steps, places = _with_gaps(steps, n_aligned, pattern.max_gap)
    if not is_pending:
        _fill(steps, pattern.max_gap)
    new = places[n_old:]
    starts, is_complete = starts_of(steps.values)[new], np.logical_not(np.isnan(rows).any(axis=1))
    is_whole = is_complete & (new - starts + 1 >= pattern.least)
    is_whole[: n_mute - n_old] = False
    return Alignment(steps, new, starts, is_whole, is_complete, pattern, rows)


def _with_gaps(steps: Track, n_aligned: int, max_gap: int) -> tuple[Track, Array]:
    """Put empty steps where readings are missing, behind the first `n_aligned` steps; also where each step is now.

    Beyond `max_gap` it does not matter how many they are.
    """
    n, behind = len(steps.values), max(n_aligned, 1)
    missing = np.rint((steps.times[behind:] - steps.times[behind - 1 : -1]) / steps.every) - 1
    missing = np.clip(missing, 0, max_gap + 1).astype(np.int64)
    if not missing.any():
        return steps, np.arange(n)
    places = np.arange(n)
    places[behind:] += np.cumsum(missing)
    n_steps = int(places[-1]) + 1
    values, numbers = np.full((n_steps, steps.values.shape[1]), np.nan), np.full(n_steps, NONE, np.int64)
    since, times = np.repeat(steps.since, np.diff(places, prepend=-1)), np.full(n_steps, np.nan)
    values[places], numbers[places], times[places] = steps.values, steps.numbers, steps.times
    return Track(values, numbers, since, times, steps.every, steps.periods), places


def _fill(steps: Track, max_gap: int) -> None:
    """Interpolate missing values between readings that are near enough, channel by channel."""
    values = steps.values
    for channel in np.flatnonzero(np.isnan(values).any(axis=0)):
        column = values[:, channel]
        known, holes = np.flatnonzero(~np.isnan(column)), np.flatnonzero(np.isnan(column))
        after = np.searchsorted(known, holes)
        is_between = (after > 0) & (after < len(known))
        holes, after = holes[is_between], after[is_between]
        left, right = known[after - 1], known[after]
        is_short = right - left <= max_gap + 1
        holes, left, right = holes[is_short], left[is_short], right[is_short]
        share = (holes - left) / (right - left)
        column[holes] = (1 - share) * column[left] + share * column[right]
        steps.since[holes] = np.minimum(steps.since[holes], steps.numbers[left])


def starts_of(values: Array) -> Array:
    """Return for each step the first of the unbroken run that ends there; the next step, if it is broken itself."""
    is_broken = np.isnan(values).any(axis=1)
    if not is_broken.any():
        return np.zeros(len(values), np.int64)
    starts: Array = np.maximum.accumulate(np.where(is_broken, np.arange(1, len(values) + 1), 0))
    return starts
