"""Align readings to even steps, and build the shingles that end at them.

A shingle is the last readings of all channels in one row, oldest first. Readings may be late, incomplete or missing.
`align` is a pure function of the past and the next rows, for tables and streams alike, so the result does not depend on
chunks, and rows can be aligned without learning them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from math import isnan, nan
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils._param_validation import Interval, validate_parameter_constraints

from polyaforest.kernels.arrays import NONE, Array
from polyaforest.series.calendar import (
    calendar_features,
    calendar_names,
    check_dates,
    read_calendar,
    read_timezone,
)
from polyaforest.series.contexts import (
    LEAST,
    LENGTH,
    LONGEST_PERIOD,
    PHASE,
    context_features,
    layout_of,
    phase_features,
    season_features,
)
from polyaforest.tables.validation import LARGEST

# Parameters that the transformer and the detector share.
CONSTRAINTS: dict[str, list[Any]] = {
    "shingle": [Interval(Integral, 1, 2**20, closed="both"), None],
    "every": [Interval(Real, 0, None, closed="neither"), timedelta, np.timedelta64, None],
    "max_gap": [Interval(Integral, 0, 2**16, closed="both")],  # bounded, because a gap takes memory for its steps
    "difference": ["boolean"],
    "calendar": ["array-like", str],
    "timezone": [str],
}


class Pattern(NamedTuple):
    """The parameters of shingles."""

    shingle: int | None  # readings in each; None for context windows
    max_gap: int  # most consecutive steps to interpolate
    difference: bool  # whether to use changes instead of levels
    calendar: tuple[str, ...]
    timezone: str

    @property
    def depth(self) -> int:
        """Number of steps that a shingle looks back."""
        return LENGTH if self.shingle is None else self.shingle + self.difference

    @property
    def least(self) -> int:
        """Number of unbroken steps that a shingle needs."""
        return LEAST if self.shingle is None else self.depth

    @property
    def whole(self) -> str:
        """Description of what a row needs to have a score."""
        return (
            f"context window of {LEAST} unbroken readings"
            if self.shingle is None
            else f"complete shingle of {self.shingle} readings"
        )

    @property
    def n_to_measure(self) -> int:
        """Number of intervals to measure the usual spacing from."""
        return LEAST if self.shingle is None else self.shingle

    @property
    def room(self) -> int:
        """Number of steps to keep for later shingles: shared steps, earlier periods, and gaps."""
        before = 3 * LONGEST_PERIOD + LENGTH if self.shingle is None else self.depth - 1
        return max(before, self.max_gap + 1)

    @property
    def largest(self) -> float:
        """The largest supported reading: differences must not overflow."""
        return LARGEST / 2 if self.shingle is None or self.difference else LARGEST

    @property
    def readings_before_the_newest(self) -> tuple[int, int]:
        """The least and the most readings before its newest that a shingle depends on."""
        return self.least - 1 if self.max_gap == 0 else min(self.least - 1, 1), self.depth - 1 + self.max_gap

    def n_features(self, n_channels: int) -> int:
        """Return the number of features of a shingle."""
        own = sum(layout_of(n_channels).widths) if self.shingle is None else self.shingle * n_channels
        return own + 2 * len(self.calendar)

    def widths(self, n_channels: int) -> list[int]:
        """Return the number of features of each view; the calendar belongs to the last."""
        if self.shingle is not None:
            return [self.n_features(n_channels)]
        *others, last = layout_of(n_channels).widths
        return [*others, last + 2 * len(self.calendar)]

    def channels(self, n_channels: int) -> Array:
        """Return the channel of each feature; NONE for calendar and phase."""
        own = layout_of(n_channels).channels() if self.shingle is None else np.tile(np.arange(n_channels), self.shingle)
        return np.append(own, np.full(2 * len(self.calendar), NONE))

    def names(self, channels: Sequence[str]) -> list[str]:
        """Return the feature names: "cpu" is the newest reading, "cpu[-3]" the one three steps before."""
        if self.shingle is None:
            return layout_of(len(channels)).names(channels) + calendar_names(self.calendar)
        words = [f"change of {channel}" for channel in channels] if self.difference else channels
        ages = range(self.shingle - 1, -1, -1)
        return [f"{word}[-{age}]" if age else word for age in ages for word in words] + calendar_names(self.calendar)


def checked_pattern(**settings: Any) -> Pattern:
    """Return the validated pattern with these settings."""
    validate_parameter_constraints(CONSTRAINTS, settings, "a series")
    shingle, max_gap, difference, calendar, timezone = (settings[name] for name in Pattern._fields)
    read_timezone(timezone)
    if shingle is None and difference:
        raise ValueError("difference=True needs an integer shingle: context windows include changes already")
    return Pattern(
        None if shingle is None else int(shingle), int(max_gap), bool(difference), read_calendar(calendar), timezone
    )


def read_pattern(estimator: Any) -> Pattern:
    """Return the validated pattern of an estimator."""
    given = {name: getattr(estimator, name) for name in Pattern._fields}
    return checked_pattern(**given | {"shingle": None if given["shingle"] == "auto" else given["shingle"]})


def read_every(every: Any) -> float:
    """Return the spacing in seconds; NaN for None."""
    if every is None:
        return nan
    if isinstance(every, np.timedelta64):
        every = float(every / np.timedelta64(1, "s"))
    seconds = every.total_seconds() if isinstance(every, timedelta) else float(every)
    if not 0 < seconds < np.inf:
        raise ValueError(f"every must be a positive duration; got {every!r}")
    return float(seconds)


def check_times(stamps: Array, latest: float, pattern: Pattern) -> None:
    """Raise ValueError if times decrease, or are missing or out of range although a calendar needs them."""
    if pattern.calendar:
        if np.isnan(stamps).any():
            raise ValueError(f"calendar={pattern.calendar} needs times: pass one for each row")
        check_dates(stamps)
    before = np.append(latest, stamps[:-1])
    is_back = stamps < before
    if is_back.any():
        i = int(is_back.argmax())
        raise ValueError(
            f"the time of row {i} is {stamps[i]}, earlier than the row before, {before[i]}: sort the rows by time. "
            "Nothing was learned"
        )


def measured_spacing(stamps: Array) -> float:
    """Return the median time between readings, ignoring equal times; 0 if all times are equal."""
    steps = np.diff(stamps)
    return float(np.median(steps[steps > 0])) if (steps > 0).any() else 0.0


class Track(NamedTuple):
    """The last steps of a series that later shingles may need. The newest is always a reading."""

    values: Array  # float64 (k, C): NaN if unknown
    numbers: Array  # int64 (k,): arrival number of the reading, NONE for a step without one
    since: Array  # int64 (k,): the oldest reading that the values depend on
    times: Array  # float64 (k,): NaN for a step without a reading, or without times
    every: float  # the usual spacing: NaN while unknown, 0 if all times are equal
    periods: tuple[int, ...] = ()  # in steps, strongest first

    @property
    def clock(self) -> Array:
        """The time of each step in steps, or its arrival number without times."""
        is_timed = self.every > 0 and not isnan(self.latest)
        return self.times / self.every if is_timed else self.numbers.astype(np.float64)

    @property
    def filled(self) -> Array:
        """The values, with gaps of any length interpolated."""
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
        """The time of the newest reading; NaN if there is none."""
        return float(self.times[-1]) if len(self.times) else nan

    @property
    def oldest(self) -> int | None:
        """The arrival number of the oldest reading kept; None if there is none."""
        readings = self.numbers[self.numbers != NONE]
        return int(readings[0]) if len(readings) else None

    def rhythm(self, places: Array) -> tuple[Array, Array]:
        """Return the season and phase features at steps; zeros without a rhythm."""
        layout = layout_of(self.values.shape[1])
        season = np.zeros((len(places), layout.season.stop - layout.season.start))
        if self.periods:
            season = season_features(self.values, places, self.periods[0])
        return season, phase_features(self.clock[places], self.periods)

    def without(self, number: int) -> Track:
        """Return the steps that do not depend on a reading or older ones, so that a new shingle starts after it."""
        dependent = np.flatnonzero(self.since <= number)
        return self.last(len(self.values) - 1 - int(dependent[-1])) if len(dependent) else self

    def last(self, n: int) -> Track:
        """Return a copy of the newest `n` steps, which releases the others."""
        start = max(len(self.values) - n, 0)
        values, numbers, since, times = (part[start:].copy() for part in self[:4])
        return Track(values, numbers, since, times, self.every, self.periods)


def new_track(n_channels: int, every: float) -> Track:
    """Return the track of a new series."""
    none = np.empty(0, np.int64)
    return Track(np.empty((0, n_channels)), none, none, np.empty(0), every)


class Alignment(NamedTuple):
    """Rows aligned to steps, after those of a track."""

    track: Track  # all steps, short gaps interpolated
    places: Array  # int64 (n,): the step of each row
    starts: Array  # int64 (n,): the first of the unbroken steps that end at the row
    is_whole: Array  # bool (n,): whether a complete shingle ends at the row
    is_complete: Array  # bool (n,): whether the row has no missing values
    pattern: Pattern
    rows: Array  # float64 (n, C): raw rows, NaN where a value is missing

    def kept(self) -> Track:
        """Return the track for later rows; all steps while the spacing is unknown."""
        is_pending = isnan(self.track.every) and not isnan(self.track.latest)
        return self.track.last(self.pattern.n_to_measure if is_pending else self.pattern.room)

    def shingles(self) -> Array:
        """Return the complete shingles, (n_whole, n_features)."""
        places = self.places[self.is_whole]
        if self.pattern.shingle is None:
            return self.contexts(places, self.starts[self.is_whole])
        return self._finished(self.track.values[self._steps_to(places)], places)

    def place_of(self, number: int) -> int:
        """Return the step of the reading with this arrival number."""
        return int(np.flatnonzero(self.track.numbers == number)[0])

    def start_of(self, place: int) -> int:
        """Return the first of the unbroken steps that end at a step."""
        return int(starts_of(self.track.values)[place])

    def ends_context(self) -> Array:
        """Return whether a context window ends at each step, bool (S,)."""
        values, steps = self.track.values, np.arange(len(self.track.values))
        is_reading = (self.track.numbers != NONE) & ~np.isnan(values).any(axis=1)
        return np.asarray(is_reading & (steps - starts_of(values) + 1 >= self.pattern.least))

    def states(self, places: Array) -> Array:
        """Return the features of the rhythm view of the context windows that end at steps, (n, D)."""
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
        """Return the deviations of the rows from their rhythm, (n, C); NaN without one."""
        if not self.track.periods:
            return np.full(self.rows.shape, np.nan)
        season = season_features(self.track.values, self.places, self.track.periods[0])
        return season.reshape(*self.rows.shape, -1)[:, :, 0]

    def padded_shingles(self) -> Array:
        """Return a shingle for each row, (n, n_features), padded with its first reading; NaN for incomplete rows."""
        steps = np.maximum(self._steps_to(self.places), np.where(self.is_complete, self.starts, 0)[:, None])
        rows = self._finished(self.track.values[steps], self.places)
        rows[~self.is_complete] = np.nan
        return rows

    def oldest(self) -> Array:
        """Return the oldest reading that each complete shingle depends on, int64 (n_whole,)."""
        steps = np.maximum(self._steps_to(self.places[self.is_whole]), self.starts[self.is_whole, None])
        oldest: Array = self.track.since[steps].min(axis=1)
        return oldest

    def _steps_to(self, places: Array) -> Array:
        """Return the steps of the shingles that end at `places`, (n, depth)."""
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
    """Align rows to steps after a track, which is unchanged; `number` is the arrival number of the first row.

    The number of missing steps before a row is round(time since the row before / usual spacing) - 1, or 0 without
    times. At most `max_gap` consecutive missing values are interpolated linearly, once the next value is known.
    """
    n_old, n = len(track.values), len(rows)
    arrivals = np.arange(number, number + n)
    values, times = np.concatenate([track.values, rows]), np.concatenate([track.times, stamps])
    numbers, since = np.concatenate([track.numbers, arrivals]), np.concatenate([track.since, arrivals])
    every, n_aligned, n_mute = track.every, n_old, n_old
    is_pending = isnan(every) and len(times) > 0 and not isnan(times[-1])
    if is_pending:
        n_aligned, n_mute = 0, max(n_old, pattern.n_to_measure)  # no shingle ends before the spacing is known
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
    """Insert empty steps for missing readings after the first `n_aligned` steps; also return the new places.

    Insert at most `max_gap` + 1 steps, because longer gaps are all alike.
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
    """Interpolate gaps of at most `max_gap` steps, channel by channel."""
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
    """Return the first step of the unbroken run that ends at each step; the next step if it is incomplete itself."""
    is_broken = np.isnan(values).any(axis=1)
    if not is_broken.any():
        return np.zeros(len(values), np.int64)
    starts: Array = np.maximum.accumulate(np.where(is_broken, np.arange(1, len(values) + 1), 0))
    return starts
