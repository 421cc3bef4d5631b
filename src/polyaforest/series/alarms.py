"""Alarms on a series: one level from the long and the short memory, an absolute limit, and events with an end.

The level of a reading grows with the log of its surprise, so that it is comparable between series, and the alarm limit
is the same for all. A series with a heavy tail raises its own limit once 1,000 readings have shown the tail, and a
series that is asked for more alarms lowers it. An alarm lasts while the level is above 70 % of the limit.
"""

from __future__ import annotations

from copy import deepcopy
from typing import NamedTuple

import numpy as np

from polyaforest.forest.integrity import Layout, check_layout
from polyaforest.forest.severity import score_at, tail_bits
from polyaforest.forest.thresholds import Detections, conformal_p_values
from polyaforest.kernels.arrays import Array
from polyaforest.series.contexts import LENGTH
from polyaforest.series.recent import (
    LENGTHS,
    MOST_HELD,
    MOST_UNTIL_WEIGHED,
    RecentReadings,
    mean_ahead,
    surprise_in_table,
)
from polyaforest.storage.modelfile import Arrays, Header
from polyaforest.util import schema

LIMIT = 1.0  # level at which an alarm begins
FALSE_ALARMS = 10.0  # bits: one reading in 1,024 may pass the limit of a series with a heavy tail
_LEAST_LIMIT = 0.1  # if more alarms are asked for; most readings have a level of 0
_STAYS = 0.7  # share of the limit above which an alarm lasts
_LONGEST_EVENT = 256  # readings after which an event is the new normal
LEAST_LEVELS, _MOST_LEVELS = 1000, 2000  # levels without alarm that show the tail, and to keep
_USUAL_LONG, _USUAL_SHORT = 3.0, 4.0  # nats that are no surprise
_LOUD, _LOUD_IN_TABLE = 14.0, 12.0  # nats of the short memory that count at any age
_OF_YOUNG, _OF_LOUD = 0.15, 0.6  # weights of the short memory
_LONG_ALONE, _OUTSTANDS = 1.4, 1.0  # level of the long memory that is an alarm at any age; how far above its usual ones
_ALONE_IN_TABLE, _OUTSTANDS_IN_TABLE = 1.2, 0.5  # the same in a table, where levels are means over more readings
_OF_NEWEST = 0.9  # weight of the newest level of the long memory, without those before
_USUAL_SHARE = 0.9  # of the levels of the long memory are usual
_AGE = 2000  # readings after which the long memory weighs as much as the short
_TRAIL, _AHEAD, _SHARP = 24, 64, 8  # readings that levels of the long memory average: streams, tables, extents
_STEPS = 10.0  # times a step of the tail of levels is a step of scores
_ONE, _USUAL_READING = np.array([1]), 4.0  # shingles of one reading; nats that one in an incident exceeds
_LEAST_TAIL = 32  # levels that may show a tail
_ODD, _NEXT = 1.0, 3  # nats above the usual surprise of two readings that are odd; readings between odd ones
_GLOW = int(LENGTHS[-1]) - 1  # readings after an alarm whose shingles contain it


class Verdicts(NamedTuple):
    """Results of readings; arrays of shape (n,)."""

    levels: Array  # NaN without a score
    is_alarm: Array  # bool
    limits: Array
    is_short: Array  # bool: whether the short memory decides
    p_values: Array  # among levels without alarm; NaN without any
    tail_bits: Array  # as in `Detections`

    @classmethod
    def empty(cls, n: int) -> Verdicts:
        """Return results to be filled in."""
        levels, limits, p_values, bits = (np.full(n, np.nan) for _ in range(4))
        return cls(levels, np.zeros(n, np.bool_), limits, np.zeros(n, np.bool_), p_values, bits)

    @classmethod
    def of(cls, levels: Array, is_alarm: Array, limits: Array, is_short: Array, usual: Array) -> Verdicts:
        """Compare levels with the usual scores, ascending, which are minus the levels without alarm."""
        is_scored, p_values = ~np.isnan(levels), np.full(len(levels), np.nan)
        if len(usual):
            p_values[is_scored] = conformal_p_values(-levels[is_scored], usual)
        return cls(levels, is_alarm, limits, is_short, p_values, _tail_bits(levels, is_alarm, _nats(usual)))

    def detections(self) -> Detections:
        """Return these results with scores, which are minus the levels."""
        return Detections(-self.levels, self.p_values, self.is_alarm, -self.limits, tail_bits=self.tail_bits)


def _nats(scores: Array) -> Array:
    """Return scores on a scale on which the tail of normal readings is close to exponential: levels are logarithms."""
    return -np.expm1(-scores)


def _tail_bits(levels: Array, is_alarm: Array, known: Array) -> Array:
    """Return the tail bits of levels; where normal ones show no tail, they are those of the surprise itself."""
    nats = _nats(-levels)
    bits = tail_bits(nats, is_alarm, known)
    if len(known) < _LEAST_TAIL or not np.isfinite(score_at(FALSE_ALARMS, known)):
        bits = bits - nats / np.log(2)
    return bits


def combined(long: Array, short: Array, ages: Array, loud: float, is_alone: Array) -> tuple[Array, Array]:
    """Return the levels of readings, and whether the short memory decides.

    While a series is young, the short memory counts more; later it counts if it is loud. Where the long memory
    outstands, it raises an alarm alone.

    Parameters
    ----------
    long : ndarray of shape (n,)
        Level of the long memory; NaN if unknown.
    short : ndarray of shape (n,)
        Surprise of the short memory in nats; NaN if unknown.
    ages : ndarray of shape (n,)
        Number of readings before each.
    loud : float
        Surprise of the short memory that counts at any age.
    is_alone : ndarray of bool, shape (n,)
        Whether the long memory raises an alarm at any age.
    """
    share, is_known = 1 / (1 + (ages / _AGE) ** 2), ~np.isnan(long)
    surprise = np.where(np.isnan(short), 0.0, short)
    young = _OF_YOUNG * share * np.log1p(np.maximum(surprise - _USUAL_SHORT, 0.0))
    of_short = young + _OF_LOUD * np.log1p(np.maximum(surprise - loud, 0.0))
    own = np.where(is_known, long, 0.0)
    of_long = np.maximum((1 - share) * own, np.where(is_alone, LIMIT - of_short, 0.0))
    levels = np.where(is_known | ~np.isnan(short), of_short + of_long, np.nan)
    return levels, of_short > of_long


class AlarmMonitor:
    """Levels and alarms of a stream of readings.

    Parameters
    ----------
    n_channels : int
    bits : float
        How rare false alarms may be at most: one reading in 2 ** bits begins one.
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
    is_loud : bool
        Whether the short memory began the last alarm.
    n_quiet : int
        Number of readings whose context windows still contain such an alarm.
    known : ndarray
        The last levels without alarm, and those that began one.
    is_start : ndarray of bool
        Which of them began an alarm.
    n_fresh : int
        How many of them have come since the limit was last adapted.
    usual : ndarray
        Scores that p-values are compared with, ascending: minus the levels without alarm that the limit is adapted to.
    """

    def __init__(self, n_channels: int, bits: float = FALSE_ALARMS, *, holds: bool = False) -> None:
        self.recent, self.bits, self.holds = RecentReadings(n_channels), bits, holds
        self.limit, self.n_open = LIMIT, 0
        self.known, self.is_start, self.n_fresh = np.empty(0), np.empty(0, np.bool_), 0
        self.usual = np.empty(0)
        self.is_of_pair, self.n_after = False, _GLOW
        self.is_loud, self.n_quiet = False, 0
        self.loud = _LOUD
        self._shorts = np.empty(0)  # the last surprises of the short memory without alarm
        self._trail = np.empty(0)  # the last levels of the long memory
        self._peaks = np.empty(0)  # the last peaks of the long memory
        self.alone = _LONG_ALONE

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
        results, start = Verdicts.empty(n), 0
        long, peaks = self._long(surprise)
        while start < n:
            n_until_weighed = self.recent.n_until_weighed
            stop = min(n, start + n_until_weighed)
            part = slice(start, stop)
            out = Verdicts(*(column[part] for column in results))
            self._advance_piece(first + start, long[part], peaks[part], out)
            self.recent.n_seen += stop - start
            if stop - start == n_until_weighed:
                self.recent.weigh(first + stop)
                self._raise_limits()
            start = stop
        self.recent.keep_last(MOST_HELD)
        return results

    def _long(self, surprise: Array) -> tuple[Array, Array]:
        """Return the levels of the long memory, and the peaks that may raise an alarm alone.

        A level is the mean of the newest and of the mean of the last 24. A peak is higher where the newest stands out.
        """
        newest = np.asarray(np.log1p(np.maximum(surprise - _USUAL_LONG, 0.0).mean(axis=0)))
        padding = np.full(_TRAIL - len(self._trail), np.nan)
        levels = np.concatenate([padding, self._trail, newest])
        self._trail = levels[-_TRAIL:].copy()
        last = np.lib.stride_tricks.sliding_window_view(levels[1:], _TRAIL)
        counts = np.count_nonzero(~np.isnan(last), axis=1)
        with np.errstate(invalid="ignore"):
            long = np.asarray((newest + np.nansum(last, axis=1) / counts) / 2)
        return long, np.fmax(long, _OF_NEWEST * newest)

    def _advance_piece(self, first: int, long: Array, peaks: Array, out: Verdicts) -> None:
        """Fill the results of readings from the place `first` on, for which weights and limit are the same.

        What the short memory knows depends on the state, so it is measured again once an alarm begins or ends.
        """
        start, n, recent, is_alone = 0, len(long), self.recent, peaks >= self.alone
        while start < n:
            place, end, is_open = first + start, first + n, self.n_open > 0
            event = max(0, place - self.n_open)
            recent.learn(event, end, is_known=True)
            alone = self._are_alone(is_alone[start:])
            levels, pairs, is_short, short = self._levels(place, long[start:], alone, start)
            if is_open:
                recent.learn(event, end, is_known=not self.holds)
                held = self._levels(place, long[start:], alone, start)[:2] if self.holds else (levels, pairs)
                is_above = alone | (held[int(self.is_of_pair)] >= _STAYS * self.limit)
                if self.is_of_pair:  # a usual reading ends it, though the pair with the one before is unusual
                    is_above &= ~self._are_usual(place, end)
            else:
                is_after = self.n_after + np.arange(len(levels)) < _GLOW
                is_above = alone | (np.where(is_after, pairs, levels) >= self.limit)
                if self.n_after == 0 and is_above[0]:
                    is_above[0] = not self._are_usual(place, place + 1)[0]
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
            limits[is_alarm] = np.minimum(limits, levels[part])[is_alarm]
            self._fill(out, start, Verdicts.of(levels[part], is_alarm, limits, is_short[part], self.usual))
            if not is_open:
                self._note(levels[part], is_alarm)
            self._shorts = _appended(self._shorts, short[part][~is_alarm])
            self._peaks = _appended(self._peaks, peaks[start : start + n_same])
            self.n_after = 0 if is_open else self.n_after + stop - start
            if is_open and stop < n:  # the level is low again, or the event is the new normal
                recent.learn(max(0, first + stop - self.n_open - n_same), end, is_known=True)
                self.n_after = 0 if self.is_of_pair else _GLOW
                self.n_open = 0
            else:
                self.n_open += int(is_alarm.sum())
            self.n_quiet = LENGTH if is_open and self.is_loud else max(0, self.n_quiet - n_same)
            if begins:
                self.is_of_pair = bool(pairs[n_same - 1] >= _STAYS * self.limit)
                self.is_loud = bool(is_short[n_same - 1])
            start += n_same

    def _are_usual(self, begin: int, end: int) -> Array:
        """Return which readings from a place to before another are usual by themselves."""
        return np.asarray(self.recent.surprise(begin, end, _ONE)[:, 0] < _USUAL_READING)

    def _are_alone(self, is_alone: Array) -> Array:
        """Return where the long memory raises an alarm alone: not while context windows contain a loud incident."""
        if self.n_open and self.is_loud:
            return np.zeros(len(is_alone), np.bool_)
        return is_alone & (np.arange(len(is_alone)) >= self.n_quiet)

    def _levels(self, place: int, long: Array, is_alone: Array, n_before: int) -> tuple[Array, Array, Array, Array]:
        """Return the levels of readings from a place on, levels by the last two readings, who decides, and surprise."""
        ages, n = self.recent.n_seen + np.arange(n_before, n_before + len(long)), len(long)
        short = self.recent.surprise(place, place + n)
        total = short.sum(axis=1)
        levels, is_short = combined(long, total, ages, self.loud, is_alone)
        pairs, _ = combined(long, 2 * short[:, 0], ages, self.loud, is_alone)
        return levels, pairs, is_short, total

    def _limits(self, levels: Array, is_open: bool) -> Array:
        """Return the limits that levels are compared with: in an alarm, the level at which it would have ended."""
        return np.minimum(_STAYS * self.limit, levels) if is_open else np.full(len(levels), self.limit)

    def _fill(self, out: Verdicts, start: int, found: Verdicts) -> None:
        for column, part in zip(out, found, strict=True):
            column[start : start + len(part)] = part

    def _note(self, levels: Array, is_start: Array) -> None:
        """Keep levels to adapt the limit to; an alarm counts once, however long it lasts."""
        is_there = ~np.isnan(levels)
        self.known = np.concatenate([self.known, levels[is_there]])
        self.is_start = np.concatenate([self.is_start, is_start[is_there]])
        self.n_fresh += int(is_there.sum())

    def change_bits(self, bits: float) -> None:
        """Change how rare false alarms are."""
        self.bits = bits
        self._raise_limits()

    def _raise_limits(self) -> None:
        """Adapt the limit, and how loud either memory must be alone, to the readings so far."""
        self.known, self.is_start, self.n_fresh = self.known[-_MOST_LEVELS:], self.is_start[-_MOST_LEVELS:], 0
        self._sort_usual()
        self.limit = limit_of(-self.usual if self.bits >= FALSE_ALARMS else self.known, self.bits)
        self.loud = raised_limit(_LOUD, self._shorts, self.bits, least=_MOST_LEVELS)
        self.alone = alone_limit(self._peaks)

    def _sort_usual(self) -> None:
        n = len(self.known) - self.n_fresh
        self.usual = np.sort(-self.known[:n][~self.is_start[:n]])

    def forget(self, n_kept: int) -> None:
        """Forget all readings but the last `n_kept`, the levels of all readings, and an open alarm."""
        self.recent.keep_last(n_kept)
        self.known, self.is_start, self.n_fresh = np.empty(0), np.empty(0, np.bool_), 0
        self.usual = np.empty(0)
        self._trail, self.n_open, self.limit = np.empty(0), 0, LIMIT
        self.is_of_pair, self.n_after, self.loud, self._shorts = False, _GLOW, _LOUD, np.empty(0)
        self.alone, self._peaks = _LONG_ALONE, np.empty(0)
        self.is_loud, self.n_quiet = False, 0
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
            "alone": self.alone,
            "n_open": self.n_open,
            "n_fresh": self.n_fresh,
            "is_of_pair": self.is_of_pair,
            "n_after": min(self.n_after, _GLOW),
            "is_loud": self.is_loud,
            "n_quiet": self.n_quiet,
            "n_seen": recent.n_seen,
        }
        arrays = {"values": recent.values, "is_known": recent.is_known, "weights": recent.weights}
        levels = {"known": self.known, "is_start": self.is_start}
        memories = {"shorts": self._shorts, "peaks": self._peaks, "trail": self._trail}
        return header, {**arrays, **levels, **memories}

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
        monitor.is_loud, monitor.n_quiet = header["is_loud"], header["n_quiet"]
        monitor.loud, monitor.known, monitor.is_start = header["loud"], arrays["known"], arrays["is_start"]
        monitor._shorts, monitor._peaks, monitor._trail = arrays["shorts"], arrays["peaks"], arrays["trail"]
        monitor.alone, monitor.n_fresh = header["alone"], header["n_fresh"]
        monitor._check()
        monitor._sort_usual()
        return monitor

    def _check(self) -> None:
        self.recent.check()
        if not _LEAST_LIMIT <= self.limit < np.inf or not 0 <= self.n_open <= min(_LONGEST_EVENT, self.recent.n_seen):
            raise ValueError("its alarm has an impossible limit or length")
        if not self.n_fresh <= min(len(self.known), MOST_UNTIL_WEIGHED):
            raise ValueError("it has an impossible number of new levels")
        if (
            max(len(self.known) - self.n_fresh, len(self._shorts), len(self._peaks)) > _MOST_LEVELS
            or len(self._trail) > _TRAIL
        ):
            raise ValueError("it has too many levels")
        trail = self._trail[~np.isnan(self._trail)]
        if not all(((part >= 0) & (part < np.inf)).all() for part in (self.known, self._peaks, trail)):
            raise ValueError("its levels are out of range")
        if not _LOUD <= self.loud < np.inf or not np.isfinite(self._shorts).all():
            raise ValueError("the surprise of its short memory is out of range")
        if not _LONG_ALONE <= self.alone < np.inf:
            raise ValueError("the level of its long memory is out of range")


def limit_of(levels: Array, bits: float) -> float:
    """Return the level at which an alarm begins, given levels of normal readings.

    It is 1. With 1,000 levels, it is also at least the level that one reading in 2 ** bits exceeds, by a model of their
    tail; if one in less than 1,024 is asked for, it is at most the level that so many readings reach.

    Examples
    --------
    >>> limit_of(np.zeros(5000), 10.0)
    1.0
    >>> 4 < limit_of(np.random.default_rng(0).exponential(size=5000), 10.0) < 20
    True
    >>> limit_of(np.linspace(0, 0.5, 5001), 1.0)
    0.25
    """
    if bits >= FALSE_ALARMS:  # the steps of the tail of levels are shorter than those of scores
        return raised_limit(LIMIT * _STEPS, levels * _STEPS, bits) / _STEPS
    if len(levels) < LEAST_LEVELS:
        return LIMIT
    return float(np.clip(np.quantile(levels, 1 - 2.0**-bits), _LEAST_LIMIT, LIMIT))


def alone_limit(longs: Array, least: float = _LONG_ALONE, outstands: float = _OUTSTANDS) -> float:
    """Return the level at which the long memory raises an alarm alone, given its peaks: well above most of them.

    Examples
    --------
    >>> alone_limit(np.zeros(100)), alone_limit(np.full(100, 2.0))
    (1.4, 3.0)
    """
    return max(least, float(np.quantile(longs, _USUAL_SHARE)) + outstands) if len(longs) else least


def _appended(kept: Array, levels: Array) -> Array:
    """Return the last levels of two parts, without NaN."""
    return np.concatenate([kept, levels[~np.isnan(levels)]])[-_MOST_LEVELS:]


def raised_limit(limit: float, values: Array, bits: float, least: int = LEAST_LEVELS) -> float:
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
    n = values.shape[1]
    is_known, ages = ~np.isnan(surprise).all(axis=0), np.full(n, float(n))
    excess = np.full(n, np.nan)
    if is_known.any():
        usual = np.nanmedian(surprise, axis=1, keepdims=True)
        excess = np.maximum(surprise - usual, 0.0).mean(axis=0)
    by_length = surprise_in_table(values)
    short = by_length.sum(axis=0)

    # A series with a heavy tail must be louder. The tail of the levels would not do: the means of the long memory
    # spread events over many readings.
    loud = raised_limit(_LOUD_IN_TABLE, short[~np.isnan(short)], bits, least=_MOST_LEVELS)

    def levels_by(ahead: int) -> tuple[Array, Array]:
        long = np.log1p(mean_ahead(excess, ahead))
        alone = alone_limit(long[~np.isnan(long)], _ALONE_IN_TABLE, _OUTSTANDS_IN_TABLE)
        return combined(long, short, ages, loud, long >= alone)

    (levels, is_short), (sharp, _) = levels_by(_AHEAD), levels_by(_SHARP)
    limit = LIMIT if bits >= FALSE_ALARMS else limit_of(levels[~np.isnan(levels)], bits)
    pairs, _ = combined(np.full(n, np.nan), 2 * by_length[0], ages, loud, np.zeros(n, np.bool_))
    is_odd = by_length[0] >= _median(by_length[0]) + _ODD
    is_alarm = without_echoes(alarms_of_table(levels, sharp, limit), pairs >= _STAYS * limit, is_odd)
    usual = np.sort(-levels[~(is_alarm | np.isnan(levels))])
    limits = np.where(is_alarm, np.fmin(levels, limit), limit)
    return Verdicts.of(levels, is_alarm, limits, is_short, usual)


def _median(values: Array) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else np.nan


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


def without_echoes(is_alarm: Array, is_loud: Array, is_odd: Array) -> Array:
    """Return alarms without the readings that are alarms only because loud ones are near.

    An alarm with loud readings lasts from the first to the last of them, and of the odd readings next to them. Around
    these, the surprise of loud ones only echoes: in the means over the next readings, and in context windows.

    Examples
    --------
    >>> is_loud = np.array([False, True, False, True, False, False, False])
    >>> without_echoes(np.ones(7, np.bool_), is_loud, is_odd=np.arange(7) == 4).astype(int)
    array([0, 1, 1, 1, 1, 0, 0])
    """
    kept = is_alarm.copy()
    edges = np.flatnonzero(np.diff(is_alarm, prepend=False, append=False))
    for begin, end in edges.reshape(-1, 2).tolist():
        places = np.flatnonzero(is_loud[begin:end] | is_odd[begin:end]) + begin
        groups = np.split(places, np.flatnonzero(np.diff(places) > _NEXT) + 1)
        loud = [place for group in groups if is_loud[group].any() for place in group.tolist()]
        if loud:
            kept[max(begin, loud[0] - _SHARP) : loud[0]] = False
            kept[loud[-1] + 1 : min(end, loud[-1] + 1 + LENGTH)] = False
    return kept


_STATE = schema.record(
    {
        "bits": schema.number,
        "holds": schema.flag,
        "limit": schema.number,
        "loud": schema.number,
        "alone": schema.number,
        "n_open": schema.whole(),
        "n_fresh": schema.whole(),
        "is_of_pair": schema.flag,
        "n_after": schema.whole(),
        "is_loud": schema.flag,
        "n_quiet": schema.whole(0, LENGTH),
        "n_seen": schema.whole(),
    }
)
_LAYOUT: Layout = {  # C channels, S readings, L levels, M surprises, K and T levels of the long memory
    "values": (np.float64, "CS"),
    "is_known": (np.bool_, "S"),
    "weights": (np.float64, "C"),
    "known": (np.float64, "L"),
    "is_start": (np.bool_, "L"),
    "shorts": (np.float64, "M"),
    "peaks": (np.float64, "K"),
    "trail": (np.float64, "T"),
}
