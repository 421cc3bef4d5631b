"""Alarms on a series: one level from the long and the short memory, an absolute limit, and events with an end.

The level of a reading grows with the log of its surprise, so that it is comparable between series, and the alarm limit
is the same for all. A series with a heavy tail raises its own limit once 1,000 readings have shown the tail. An alarm
lasts while the level is above 70 % of the limit.
"""

from __future__ import annotations

from copy import deepcopy
from typing import NamedTuple

import numpy as np

from polyaforest.forest.integrity import Layout, check_layout
from polyaforest.forest.severity import score_at, tail_bits
from polyaforest.forest.thresholds import Detections, conformal_p_values
from polyaforest.kernels.arrays import Array
from polyaforest.series.recent import LENGTHS, MOST_HELD, RecentReadings, mean_ahead, surprise_in_table
from polyaforest.storage.modelfile import Arrays, Header
from polyaforest.util import schema

LIMIT = 1.0  # level at which an alarm begins
FALSE_ALARMS = 10.0  # bits: one reading in 1,024 may pass the limit of a series with a heavy tail
_STAYS = 0.7  # share of the limit above which an alarm lasts
_LONGEST_EVENT = 256  # readings after which an event is the new normal
_LEAST_LEVELS, _MOST_LEVELS = 1000, 2000  # levels without alarm that show the tail, and to keep
_USUAL_LONG, _USUAL_SHORT = 3.0, 4.0  # nats that are no surprise
_LOUD, _LOUD_IN_TABLE = 14.0, 12.0  # nats of the short memory that count at any age
_OF_YOUNG, _OF_LOUD = 0.15, 0.6  # weights of the short memory
_AGE = 2000  # readings after which the long memory weighs as much as the short
_TRAIL, _AHEAD, _SHARP = 24, 64, 8  # readings that levels of the long memory average: streams, tables, extents
_GLOW = int(LENGTHS[-1]) - 1  # readings after an alarm whose shingles contain it
_MOST_CHANNELS = 3  # with more, the short memory only bridges the warm-up of the long one


class Verdicts(NamedTuple):
    """Results of readings; arrays of shape (n,)."""

    levels: Array  # NaN without a score
    is_alarm: Array  # bool
    limits: Array
    is_short: Array  # bool: whether the short memory decides

    @classmethod
    def empty(cls, n: int) -> Verdicts:
        """Return results to be filled in."""
        return cls(np.full(n, np.nan), np.zeros(n, np.bool_), np.full(n, np.nan), np.zeros(n, np.bool_))


def combined(long: Array, short: Array, ages: Array, n_channels: int, loud: float = _LOUD) -> tuple[Array, Array]:
    """Return the levels of readings, and whether the short memory decides.

    While a series is young, the short memory counts more; later it counts if it is loud.

    Parameters
    ----------
    long : ndarray of shape (n,)
        Level of the long memory; NaN if unknown.
    short : ndarray of shape (n,)
        Surprise of the short memory in nats; NaN if unknown.
    ages : ndarray of shape (n,)
        Number of readings before each.
    """
    share, is_known = 1 / (1 + (ages / _AGE) ** 2), ~np.isnan(long)
    surprise = np.where(np.isnan(short), 0.0, short)
    if n_channels > _MOST_CHANNELS:
        share, surprise = np.where(is_known, 0.0, 1.0), np.where(is_known, 0.0, surprise)
    young = _OF_YOUNG * share * np.log1p(np.maximum(surprise - _USUAL_SHORT, 0.0))
    of_short = young + _OF_LOUD * np.log1p(np.maximum(surprise - loud, 0.0))
    of_long = (1 - share) * np.where(is_known, long, 0.0)
    levels = np.where(is_known | ~np.isnan(short), of_short + of_long, np.nan)
    return levels, of_short > of_long


class AlarmMonitor:
    """Levels and alarms of a stream of readings.

    Parameters
    ----------
    n_channels : int
    bits : float
        How rare false alarms are in a series with a heavy tail: one reading in 2 ** bits.
    holds : bool
        Whether readings of an open alarm are kept out of the short memory until it ends.

    Attributes
    ----------
    recent : RecentReadings
    limit : float
        The level at which an alarm begins.
    n_open : int
        Number of readings of the open alarm; 0 without one.
    is_of_pair : bool
        Whether the last two readings alone are loud enough for the last alarm, so that it ends with them.
    n_after : int
        Number of readings since the end of such an alarm, as far as shingles still contain it.
    calm : ndarray
        The last levels without alarm.
    """

    def __init__(self, n_channels: int, bits: float = FALSE_ALARMS, *, holds: bool = False) -> None:
        self.recent, self.bits, self.holds = RecentReadings(n_channels), bits, holds
        self.limit, self.n_open, self.calm = LIMIT, 0, np.empty(0)
        self.is_of_pair, self.n_after = False, _GLOW
        self.loud = _LOUD
        self._shorts = np.empty(0)  # the last surprises of the short memory without alarm
        self._trail = np.empty(0)  # the last levels of the long memory

    @property
    def n_channels(self) -> int:
        """Number of channels."""
        return len(self.recent.values)

    def copy(self) -> AlarmMonitor:
        """Return a copy, to score readings without learning them."""
        return deepcopy(self)

    # ---- streams ----------------------------------------------------------------------------------------------------

    def advance(self, rows: Array, surprise: Array) -> Verdicts:
        """Return the results for the next readings, and learn them. Results do not depend on chunks.

        Parameters
        ----------
        rows : ndarray of shape (n, n_channels)
            Readings; NaN where a value is missing.
        surprise : ndarray of shape (n_views, n)
            Surprise of their context windows in nats; NaN without.
        """
        if not len(rows):
            return Verdicts.empty(0)
        first, n = self.recent.append(rows), len(rows)
        results, long, start = Verdicts.empty(n), self._long(surprise), 0
        while start < n:
            n_until_weighed = self.recent.n_until_weighed
            stop = min(n, start + n_until_weighed)
            part = slice(start, stop)
            self._advance_piece(first + start, long[part], Verdicts(*(column[part] for column in results)))
            self.recent.n_seen += stop - start
            if stop - start == n_until_weighed:
                self.recent.weigh(first + stop)
                self._raise_limits()
            start = stop
        self.recent.keep_last(MOST_HELD)
        return results

    def _long(self, surprise: Array) -> Array:
        """Return the level of the long memory: the mean of the newest and of the mean of the last 24."""
        newest = np.asarray(np.log1p(np.maximum(surprise - _USUAL_LONG, 0.0).mean(axis=0)))
        if self.n_channels > _MOST_CHANNELS:
            return newest
        padding = np.full(_TRAIL - len(self._trail), np.nan)
        levels = np.concatenate([padding, self._trail, newest])
        self._trail = levels[-_TRAIL:].copy()
        last = np.lib.stride_tricks.sliding_window_view(levels[1:], _TRAIL)
        counts = np.count_nonzero(~np.isnan(last), axis=1)
        with np.errstate(invalid="ignore"):
            return np.asarray((newest + np.nansum(last, axis=1) / counts) / 2)

    def _advance_piece(self, first: int, long: Array, out: Verdicts) -> None:
        """Fill the results of readings from the place `first` on, for which weights and limit are the same.

        What the short memory knows depends on the state, so it is measured again once an alarm begins or ends.
        """
        start, n, recent = 0, len(long), self.recent
        while start < n:
            place, end, is_open = first + start, first + n, self.n_open > 0
            event = max(0, place - self.n_open)
            recent.learn(event, end, is_known=True)
            levels, pairs, is_short, short = self._levels(place, long[start:], start)
            if is_open:
                recent.learn(event, end, is_known=not self.holds)
                held = self._levels(place, long[start:], start)[:2] if self.holds else (levels, pairs)
                is_above = held[int(self.is_of_pair)] >= _STAYS * self.limit
            else:
                is_after = self.n_after + np.arange(len(levels)) < _GLOW
                is_above = np.where(is_after, pairs, levels) >= self.limit
            changes = np.flatnonzero(is_above != is_open)
            stop = start + (int(changes[0]) if len(changes) else len(levels))
            if is_open:
                stop = min(stop, start + _LONGEST_EVENT - self.n_open)
            begins = not is_open and stop < n
            n_same = stop - start + begins  # an alarm begins with the reading above the limit
            part = slice(0, n_same)
            is_alarm = np.full(n_same, is_open)
            is_alarm[stop - start :] = True
            limits = self._limits(levels[part], is_open)
            self._fill(out, start, Verdicts(levels[part], is_alarm, limits, is_short[part]))
            calm = short[part][~is_alarm]
            self._shorts = np.concatenate([self._shorts, calm[~np.isnan(calm)]])[-_MOST_LEVELS:]
            self.n_after = 0 if is_open else self.n_after + stop - start
            if is_open and stop < n:  # the level is low again, or the event is the new normal
                recent.learn(max(0, first + stop - self.n_open - n_same), end, is_known=True)
                self.n_after = 0 if self.is_of_pair else _GLOW
                self.n_open = 0
            else:
                self.n_open += int(is_alarm.sum())
            if begins:
                self.is_of_pair = bool(pairs[n_same - 1] >= _STAYS * self.limit)
            start += n_same

    def _levels(self, place: int, long: Array, n_before: int) -> tuple[Array, Array, Array, Array]:
        """Return the levels of readings from a place on, levels by the last two readings, who decides, and surprise."""
        ages, n = self.recent.n_seen + np.arange(n_before, n_before + len(long)), len(long)
        short = np.full((n, 2), np.nan)
        if self.n_channels <= _MOST_CHANNELS or np.isnan(long).any():
            short = self.recent.surprise(place, place + n)
        total = short.sum(axis=1)
        levels, is_short = combined(long, total, ages, self.n_channels, self.loud)
        pairs, _ = combined(long, 2 * short[:, 0], ages, self.n_channels, self.loud)
        return levels, pairs, is_short, total

    def _limits(self, levels: Array, is_open: bool) -> Array:
        """Return the limits that levels are compared with: in an alarm, the level at which it would have ended."""
        return np.minimum(_STAYS * self.limit, levels) if is_open else np.full(len(levels), self.limit)

    def _fill(self, out: Verdicts, start: int, found: Verdicts) -> None:
        for column, part in zip(out, found, strict=True):
            column[start : start + len(part)] = part
        calm = found.levels[~found.is_alarm & ~np.isnan(found.levels)]
        self.calm = np.concatenate([self.calm, calm])[-_MOST_LEVELS:]

    def change_bits(self, bits: float) -> None:
        """Change how rare false alarms are."""
        self.bits = bits
        self._raise_limits()

    def _raise_limits(self) -> None:
        """Adapt the limit, and how loud the short memory must be, to the tails of readings without alarm."""
        self.limit = limit_of(self.calm, self.bits)
        self.loud = raised_limit(_LOUD, self._shorts, self.bits, least=_MOST_LEVELS)

    def forget(self, n_kept: int) -> None:
        """Forget all readings but the last `n_kept`, the levels of all readings, and an open alarm."""
        self.recent.keep_last(n_kept)
        self.calm, self._trail, self.n_open, self.limit = np.empty(0), np.empty(0), 0, LIMIT
        self.is_of_pair, self.n_after, self.loud, self._shorts = False, _GLOW, _LOUD, np.empty(0)
        self.recent.weigh(len(self.recent.is_known))

    # ---- files ------------------------------------------------------------------------------------------------------

    def state(self) -> tuple[Header, Arrays]:
        """Return the state for a file."""
        recent = self.recent
        header = {
            "bits": self.bits,
            "holds": self.holds,
            "limit": self.limit,
            "loud": self.loud,
            "n_open": self.n_open,
            "is_of_pair": self.is_of_pair,
            "n_after": min(self.n_after, _GLOW),
            "n_seen": recent.n_seen,
        }
        arrays = {"values": recent.values, "is_known": recent.is_known, "weights": recent.weights}
        return header, {**arrays, "calm": self.calm, "shorts": self._shorts, "trail": self._trail}

    @classmethod
    def of_state(cls, header: Header, arrays: Arrays, n_channels: int) -> AlarmMonitor:
        """Return the monitor with a state from `state`; raise ValueError if it is inconsistent."""
        _STATE(header, "alarms")
        check_layout(arrays, _LAYOUT, {"C": n_channels})
        monitor = cls(n_channels, header["bits"], holds=header["holds"])
        monitor.recent.values, monitor.recent.is_known = arrays["values"], arrays["is_known"]
        monitor.recent.weights, monitor.recent.n_seen = arrays["weights"], header["n_seen"]
        monitor.limit, monitor.n_open = header["limit"], header["n_open"]
        monitor.is_of_pair, monitor.n_after = header["is_of_pair"], header["n_after"]
        monitor.loud, monitor.calm = header["loud"], arrays["calm"]
        monitor._shorts, monitor._trail = arrays["shorts"], arrays["trail"]
        monitor._check()
        return monitor

    def _check(self) -> None:
        self.recent.check()
        if not LIMIT <= self.limit < np.inf or not 0 <= self.n_open <= min(_LONGEST_EVENT, self.recent.n_seen):
            raise ValueError("its alarm has an impossible limit or length")
        if max(len(self.calm), len(self._shorts)) > _MOST_LEVELS or len(self._trail) > _TRAIL:
            raise ValueError("it has too many levels")
        trail = self._trail[~np.isnan(self._trail)]
        if not all(((part >= 0) & (part < np.inf)).all() for part in (self.calm, trail)):
            raise ValueError("its levels are out of range")
        if not _LOUD <= self.loud < np.inf or not np.isfinite(self._shorts).all():
            raise ValueError("the surprise of its short memory is out of range")


def detections(found: Verdicts, calm: Array) -> Detections:
    """Return results as scores, which are minus the levels, with p-values among levels without alarm."""
    scores, is_scored = -found.levels, ~np.isnan(found.levels)
    p_values, ascending = np.full(len(scores), np.nan), np.sort(-calm)
    if len(calm):
        p_values[is_scored] = conformal_p_values(scores[is_scored], ascending)
    bits = tail_bits(scores, found.is_alarm, ascending)
    return Detections(scores, p_values, found.is_alarm, -found.limits, tail_bits=bits)


def limit_of(levels: Array, bits: float) -> float:
    """Return the level at which an alarm begins, given levels without alarms: at least 1.

    With 1,000 levels, it is also at least the level that one reading in 2 ** bits exceeds, by a model of their tail.

    Examples
    --------
    >>> limit_of(np.zeros(5000), 10.0)
    1.0
    >>> 4 < limit_of(np.random.default_rng(0).exponential(size=5000), 10.0) < 20
    True
    """
    return raised_limit(LIMIT, levels, bits)


def raised_limit(limit: float, values: Array, bits: float, least: int = _LEAST_LEVELS) -> float:
    """Return a limit, or the value that one in 2 ** bits exceeds if that is more; fewer than `least` do not show it."""
    return limit if len(values) < least else max(limit, -score_at(bits, np.sort(-values)))


def judge_table(values: Array, surprise: Array, bits: float = FALSE_ALARMS) -> Verdicts:
    """Return the results of the readings of a table, each compared with the readings on both sides.

    Parameters
    ----------
    values : ndarray of shape (n_channels, n)
        Readings; NaN where a value is missing.
    surprise : ndarray of shape (n_views, n)
        Surprise of their context windows in nats; NaN without.
    bits : float
        As in `AlarmMonitor`.
    """
    n_channels, n = values.shape
    is_known, ages = ~np.isnan(surprise).all(axis=0), np.full(n, float(n))
    excess = np.full(n, np.nan)
    if is_known.any():
        usual = np.nanmedian(surprise, axis=1, keepdims=True)
        excess = np.maximum(surprise - usual, 0.0).mean(axis=0)
    needs_short = n_channels <= _MOST_CHANNELS or not is_known.all()
    short = surprise_in_table(values) if needs_short else np.full(n, np.nan)

    # A series with a heavy tail must be louder. The tail of the levels would not do: the means of the long memory
    # spread events over many readings.
    loud = raised_limit(_LOUD_IN_TABLE, short[~np.isnan(short)], bits, least=_MOST_LEVELS)

    def levels_by(ahead: int) -> tuple[Array, Array]:
        return combined(np.log1p(mean_ahead(excess, ahead)), short, ages, n_channels, loud)

    (levels, is_short), (sharp, _) = levels_by(_AHEAD), levels_by(_SHARP)
    return Verdicts(levels, alarms_of_table(levels, sharp, LIMIT), np.full(n, LIMIT), is_short)


def alarms_of_table(levels: Array, sharp: Array, limit: float) -> Array:
    """Return which readings belong to an alarm: runs of `sharp` levels above 70 % of the limit that reach the limit.

    Levels of the long memory are means over the readings that follow; where alarms begin and end, sharp ones decide.

    Examples
    --------
    >>> sharp = np.array([0.8, 1.2, 0.9, 0.2, 0.9])
    >>> alarms_of_table(sharp, sharp, 1.0)
    array([ True,  True,  True, False, False])
    """
    is_near = sharp >= _STAYS * limit
    run = np.cumsum(np.diff(is_near, prepend=False) & is_near)
    return np.asarray(is_near & np.isin(run, np.unique(run[is_near & (levels >= limit)])))


_STATE = schema.record(
    {
        "bits": schema.number,
        "holds": schema.flag,
        "limit": schema.number,
        "loud": schema.number,
        "n_open": schema.whole(),
        "is_of_pair": schema.flag,
        "n_after": schema.whole(),
        "n_seen": schema.whole(),
    }
)
_LAYOUT: Layout = {  # C channels, S readings, L levels, M surprises, T levels of the long memory
    "values": (np.float64, "CS"),
    "is_known": (np.bool_, "S"),
    "weights": (np.float64, "C"),
    "calm": (np.float64, "L"),
    "shorts": (np.float64, "M"),
    "trail": (np.float64, "T"),
}
