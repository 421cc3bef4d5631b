"""What is expected next in a series, by what followed similar context windows."""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
from scipy.spatial.distance import cdist

from polyaforest.core.arrays import Array
from polyaforest.timeseries._contexts import LENGTH, mean_deviations

_OUTSIDE = 0.1  # share of readings outside the band
_NEIGHBOURS = 20  # context windows that a forecast rests on, about: by fewer, the band would be a guess
_STEEPNESS = 2.0  # the farthest of them weighs exp(-2) of the nearest
_CLEARLY = 0.8  # ratio of widths: of two bands, the narrower one by chance would hold too few readings
_MOST_CELLS = 2**21  # distances held at a time
_MOST_SAMPLES = 2048  # steps of a table that its rhythm is judged by
_NO_WEIGHT = 1e-9  # samples of less weight in total do not bound a band


class Forecast(NamedTuple):
    """The readings expected at some steps, float64 (n_steps, n_channels) each; NaN where nothing could be said."""

    mean: Array
    low: Array  # nine readings in ten lie between `low` and `high`
    high: Array
    median: Array

    @classmethod
    def nothing(cls, n_steps: int, n_channels: int) -> Self:
        """Return a forecast that says nothing, to be filled in."""
        return cls(*(np.full((n_steps, n_channels), np.nan) for _ in cls._fields))

    def fill(self, places: Array | slice, found: Forecast) -> None:
        """Fill in what is expected at some of the steps."""
        for part, own in zip(self, found, strict=True):
            part[places] = own

    def beyond(self, readings: Array) -> Forecast:
        """Return the readings expected, if these are the changes from others."""
        return Forecast(*(readings + part for part in self))

    def of_channel(self, c: int) -> Forecast:
        """Return the forecast of one channel, as a table of one column."""
        return Forecast(*(part[:, c : c + 1] for part in self))


class HeldContexts(NamedTuple):
    """The context windows that a forest holds, by order of arrival."""

    states: Array  # float64 (m, D): what the forest sees of each
    readings: Array  # float64 (m, C): the newest reading of each
    numbers: Array  # int64 (m,): their arrivals, one for each step
    weights: Array  # float64 (D,): of the features in the forest, on average
    of_season: Array  # float64 (D,): those of deviations from the rhythm
    lifetime: float  # the finest of the score


class PastChanges(NamedTuple):
    """What followed context windows of the past."""

    states: Array  # float64 (m, D): each feature by its weight
    changes: Array  # float64 (m, C)
    numbers: Array  # int64 (m,): when they were, in steps


class Outlook:
    """What is expected at the steps of a series.

    A context window is followed by what followed similar ones: those held or, if that is clearly narrower, context
    windows that deviated alike from the rhythm.

    Parameters
    ----------
    held : HeldContexts
    values : ndarray of shape (n_steps, n_channels)
        The readings in even steps, NaN where one is missing.
    numbers : ndarray of int64, shape (n_steps,)
        Their arrivals.
    period : int, optional
        Of the rhythm, in steps.
    is_apart : bool, default=False
        Whether the steps may be those of the context windows held. What shares readings with a context window, or with
        what follows it, then has no say in it; else what came later has none.
    unseen : ndarray of bool, shape (n_steps,), optional
        Steps whose readings are not to be looked at.
    """

    def __init__(
        self,
        held: HeldContexts,
        values: Array,
        numbers: Array,
        period: int | None,
        *,
        is_apart: bool = False,
        unseen: Array | None = None,
    ) -> None:
        self.held, self.numbers, self.period, self.is_apart = held, numbers, period, is_apart
        self.values = values if unseen is None else np.where(unseen[:, None], np.nan, values)
        if period is not None:
            self.deviations = self.values - usual_by_rhythm(self.values, np.arange(len(values)), period)
            self.states = mean_deviations(np.nan_to_num(self.deviations)) * held.of_season
            self.is_known = ~np.isnan(self.deviations).any(axis=1)

    def after(self, steps: Array, states: Array, ahead: int) -> Forecast:
        """Return the readings expected `ahead` steps after `steps`, at which context windows end, `states` (n, D)."""
        held, newest = self.held, int(steps.min())
        own, places = (self.numbers[steps], steps) if self.is_apart else (None, None)
        samples = _followed(held, ahead, None if self.is_apart else int(self.numbers[newest]))
        expected = foresee(samples, states * held.weights, held.lifetime, ahead, own).beyond(self.values[steps])
        if self.period is None:
            return expected
        samples, lasting = self._deviated(ahead, len(self.values) - 1 if self.is_apart else newest)
        usual = usual_by_rhythm(self.values, steps + ahead, self.period, ahead)
        found = foresee(samples, self.states[steps], held.lifetime, ahead, places)
        by_rhythm = found.beyond(usual + lasting * self.deviations[steps])
        is_better = by_rhythm.high - by_rhythm.low < _CLEARLY * (expected.high - expected.low)
        is_better |= np.isnan(expected.mean)
        return Forecast(*(np.where(is_better, one, other) for one, other in zip(by_rhythm, expected, strict=True)))

    def across(self, steps: Array, state: Array) -> Forecast:
        """Return what was expected of consecutive steps whatever they were, after a context window seen as `state`, (1,
        D).

        With a rhythm it is the rhythm alone: what is odd may have begun before them.
        """
        first = int(steps[0])
        if self.period is not None:
            usual = usual_by_rhythm(self.values, steps, self.period)
            others = self.is_known.copy()
            others[max(first - LENGTH, 0) : steps[-1] + LENGTH if self.is_apart else None] = False
            if others.any() and not np.isnan(usual).any():
                deviations = self.deviations[others]
                weights = np.full((1, len(deviations)), 1 / len(deviations))
                return Forecast(*(usual + part for part in _summary(deviations, weights)))
        before = np.array([first - 1])
        each = [self.after(before, state, ahead) for ahead in range(1, len(steps) + 1)]
        return Forecast(*(np.concatenate(parts) for parts in zip(*each, strict=True)))

    def _deviated(self, ahead: int, last: int) -> tuple[PastChanges, Array]:
        """Return what deviations from the rhythm were followed by up to step `last`, and the share that lasts, (C,)."""
        assert self.period is not None
        steps = np.flatnonzero(self.is_known[: max(last + 1 - ahead, 0)])
        steps = steps[self.is_known[steps + ahead]]
        if len(steps) > _MOST_SAMPLES:
            steps = steps[np.linspace(0, len(steps) - 1, _MOST_SAMPLES).astype(np.int64)]
        usual = usual_by_rhythm(self.values, steps + ahead, self.period, ahead)
        now, later = self.deviations[steps], self.values[steps + ahead] - usual
        is_whole = ~np.isnan(later).any(axis=1)
        now, later = now[is_whole], later[is_whole]
        power = (now**2).sum(axis=0)
        lasting = np.clip((now * later).sum(axis=0) / np.where(power > 0, power, 1.0), 0.0, 1.0)
        return PastChanges(self.states[steps[is_whole]], later - lasting * now, steps[is_whole]), lasting


def _followed(held: HeldContexts, ahead: int, last: int | None) -> PastChanges:
    """Return how readings changed after the context windows held; not after arrival `last`, if it is given."""
    later = np.searchsorted(held.numbers, held.numbers + ahead)
    has_later = held.numbers[np.minimum(later, len(later) - 1)] == held.numbers + ahead
    has_later &= True if last is None else held.numbers + ahead <= last
    changes = held.readings[later[has_later]] - held.readings[has_later]
    return PastChanges(held.states[has_later] * held.weights, changes, held.numbers[has_later])


def foresee(samples: PastChanges, states: Array, lifetime: float, ahead: int, numbers: Array | None = None) -> Forecast:
    """Return the changes expected after context windows; NaN without any to compare with.

    In a Mondrian partition two context windows share a cell at time t with probability exp(-t * distance): by these
    weights, what followed others is a sample of what follows this one. The time is that of the finest score, or an
    earlier one by which enough of them are near.

    Parameters
    ----------
    samples : PastChanges
    states : ndarray of shape (n, D)
        What is seen of each context window, each feature by its weight.
    lifetime : float
    ahead : int
        Steps until the change.
    numbers : ndarray of int64, shape (n,), optional
        When the context windows were; samples that share readings with one, or with what follows it, have no say in it.
    """
    expected = Forecast.nothing(len(states), samples.changes.shape[1])
    if not len(samples.changes):
        return expected
    size = max(_MOST_CELLS // len(samples.changes), 1)
    for start in range(0, len(states), size):
        part = slice(start, start + size)
        distance = cdist(states[part], samples.states, "cityblock")
        if numbers is not None:
            distance[np.abs(np.subtract.outer(numbers[part], samples.numbers)) < LENGTH + ahead] = np.inf
        expected.fill(part, Forecast(*_summary(samples.changes, _weights(distance, lifetime))))
    return expected


def usual_by_rhythm(values: Array, steps: Array, period: int, ahead: int = 1) -> Array:
    """Return the median of the readings one, two and three periods before steps, (n, C); NaN if none is known.

    From `ahead` steps before them, those of the nearest period may not have come yet: then it is those before it.
    """
    first = -(-ahead // period)
    before = np.subtract.outer(period * np.arange(first, first + 3), steps) * -1
    found = np.where((before >= 0)[..., None], values[np.maximum(before, 0)], np.nan)
    found.sort(axis=0)  # unknown ones last
    n_known = 3 - np.isnan(found).sum(axis=0)
    middle = np.where(n_known == 3, found[1], np.where(n_known == 2, (found[0] + found[1]) / 2, found[0]))
    return np.asarray(middle)


def _weights(distance: Array, lifetime: float) -> Array:
    """Return how much each of the context windows held counts, (n, m), rows summing to 1; NaN if none is left."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):  # rows without any, or far from all
        near = distance - distance.min(axis=1, keepdims=True)
        rank = min(_NEIGHBOURS, near.shape[1]) - 1
        farthest = np.partition(near, rank, axis=1)[:, rank, None]
        weights = np.exp(-np.minimum(lifetime, _STEEPNESS / farthest) * near)
        weights[np.isinf(distance)] = 0.0
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def _summary(samples: Array, weights: Array) -> tuple[Array, ...]:
    """Return mean, band and median of samples, (m, C), by each row of weights, (n, m): four of (n, C).

    The reading to come is one more among them, whose place is not known, so the ends of the band lie farther out than
    those of the samples: by half its share at each side.
    """
    n_effective = 1 / (weights**2).sum(axis=1)
    outside = np.maximum(_OUTSIDE / 2 - 0.5 / (n_effective + 1), _NO_WEIGHT)
    levels = np.stack([outside, 1 - outside, np.full(len(weights), 0.5)])
    found = np.empty((3, len(weights), samples.shape[1]))
    for c, column in enumerate(samples.T):
        order = np.argsort(column, kind="stable")
        total = np.cumsum(weights[:, order], axis=1)
        for k, level in enumerate(levels):
            place = (total < level[:, None]).sum(axis=1)
            found[k, :, c] = column[order][np.minimum(place, len(column) - 1)]
    found[:, np.isnan(n_effective)] = np.nan
    low, high, median = found
    return weights @ samples, low, high, median
