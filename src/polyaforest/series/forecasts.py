"""Forecasts of a series by what followed similar context windows."""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
from scipy.spatial.distance import cdist

from polyaforest.kernels.arrays import Array
from polyaforest.series.contexts import LENGTH, mean_deviations
from polyaforest.util.numbers import are_counts

_OUTSIDE = 0.1  # share of readings outside the band
_NEIGHBOURS = 20  # approximate number of context windows per forecast: fewer give unreliable bands
_STEEPNESS = 2.0  # the farthest of them weighs exp(-2) times the nearest
_CLEARLY = 0.8  # the band by the rhythm must be narrower by this factor: narrower by chance is too narrow
_MOST_CELLS = 2**21  # distances in memory at a time
_MOST_SAMPLES = 2048  # most steps to learn deviations from the rhythm from
_NO_WEIGHT = 1e-9  # smallest tail weight outside a band


class Forecast(NamedTuple):
    """The readings expected at some steps, float64 (n_steps, n_channels) each; NaN without a forecast."""

    mean: Array
    low: Array  # nine readings in ten lie between `low` and `high`
    high: Array
    median: Array

    @classmethod
    def nothing(cls, n_steps: int, n_channels: int) -> Self:
        """Return a forecast of NaN, to be filled in."""
        return cls(*(np.full((n_steps, n_channels), np.nan) for _ in cls._fields))

    def fill(self, places: Array | slice, found: Forecast) -> None:
        """Set the forecast of some steps."""
        for part, own in zip(self, found, strict=True):
            part[places] = own

    def beyond(self, readings: Array) -> Forecast:
        """Return the expected readings, if this is a forecast of changes from `readings`."""
        return Forecast(*(readings + part for part in self))

    def at_least(self, least: Array) -> Forecast:
        """Return the forecast without values below the least of each channel, (C,)."""
        return Forecast(*(np.maximum(part, least) for part in self))

    def of_channel(self, c: int) -> Forecast:
        """Return the forecast of one channel, with one column."""
        return Forecast(*(part[:, c : c + 1] for part in self))


class HeldContexts(NamedTuple):
    """The context windows that a forest holds, by order of arrival."""

    states: Array  # float64 (m, D): the features of each
    readings: Array  # float64 (m, C): the newest reading of each
    numbers: Array  # int64 (m,): arrival numbers
    weights: Array  # float64 (D,): mean feature weights of the forest
    of_season: Array  # float64 (D,): mean weights of deviations from the rhythm
    lifetime: float  # the last time of the score


class PastChanges(NamedTuple):
    """The changes that followed earlier context windows."""

    states: Array  # float64 (m, D): weighted features
    changes: Array  # float64 (m, C)
    numbers: Array  # int64 (m,): steps


class Outlook:
    """Forecasts at the steps of a series.

    A forecast is what followed similar context windows held or, if its band is clearly narrower, what followed similar
    deviations from the rhythm.

    Parameters
    ----------
    held : HeldContexts
    values : ndarray of shape (n_steps, n_channels)
        Evenly spaced readings; NaN where one is missing.
    numbers : ndarray of int64, shape (n_steps,)
        Their arrival numbers.
    period : int, optional
        Period in steps.
    is_apart : bool, default=False
        Whether the steps may be those of the context windows held. If so, context windows that share readings with a
        forecast are not used for it; otherwise, later ones are not.
    unseen : ndarray of bool, shape (n_steps,), optional
        Steps to ignore.
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
        self.least = np.where(are_counts(held.readings), 0.0, -np.inf)  # of each channel: counts are not negative
        self.values = values if unseen is None else np.where(unseen[:, None], np.nan, values)
        if period is not None:
            self.deviations = self.values - usual_by_rhythm(self.values, np.arange(len(values)), period)
            self.states = mean_deviations(np.nan_to_num(self.deviations)) * held.of_season
            self.is_known = ~np.isnan(self.deviations).any(axis=1)

    def after(self, steps: Array, states: Array, ahead: int) -> Forecast:
        """Forecast the readings `ahead` steps after context windows with features `states`, (n, D), end at `steps`."""
        return self._after(steps, states, ahead).at_least(self.least)

    def _after(self, steps: Array, states: Array, ahead: int) -> Forecast:
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
        """Forecast consecutive steps from the context window before them, with features `state`, (1, D).

        With a rhythm, use the rhythm alone: an anomaly may have started before these steps.
        """
        first = int(steps[0])
        if self.period is not None:
            usual = usual_by_rhythm(self.values, steps, self.period)
            others = self.is_known.copy()
            others[max(first - LENGTH, 0) : steps[-1] + LENGTH if self.is_apart else None] = False
            if others.any() and not np.isnan(usual).any():
                deviations = self.deviations[others]
                weights = np.full((1, len(deviations)), 1 / len(deviations))
                return Forecast(*(usual + part for part in _summary(deviations, weights))).at_least(self.least)
        before = np.array([first - 1])
        each = [self.after(before, state, ahead) for ahead in range(1, len(steps) + 1)]
        return Forecast(*(np.concatenate(parts) for parts in zip(*each, strict=True)))

    def _deviated(self, ahead: int, last: int) -> tuple[PastChanges, Array]:
        """Return what followed deviations from the rhythm up to step `last`, and the share that persists, (C,)."""
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
    """Return the changes that followed the context windows held, up to arrival `last` if given."""
    later = np.searchsorted(held.numbers, held.numbers + ahead)
    has_later = held.numbers[np.minimum(later, len(later) - 1)] == held.numbers + ahead
    has_later &= True if last is None else held.numbers + ahead <= last
    changes = held.readings[later[has_later]] - held.readings[has_later]
    return PastChanges(held.states[has_later] * held.weights, changes, held.numbers[has_later])


def foresee(samples: PastChanges, states: Array, lifetime: float, ahead: int, numbers: Array | None = None) -> Forecast:
    """Forecast the changes after context windows; NaN without any to compare with.

    In a Mondrian partition two context windows share a cell at time t with probability exp(-t * distance). With these
    weights, past changes are a sample of the next one. The time is `lifetime`, or an earlier one at which enough
    samples have weight.

    Parameters
    ----------
    samples : PastChanges
    states : ndarray of shape (n, D)
        Weighted features of each context window.
    lifetime : float
    ahead : int
        Steps until the change.
    numbers : ndarray of int64, shape (n,), optional
        Steps of the context windows. Samples that share readings with a context window, or with what follows it, are
        not used for it.
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

    Use earlier periods if the nearest one is not known `ahead` steps before.
    """
    first = -(-ahead // period)
    before = np.subtract.outer(period * np.arange(first, first + 3), steps) * -1
    found = np.where((before >= 0)[..., None], values[np.maximum(before, 0)], np.nan)
    found.sort(axis=0)  # NaN last
    n_known = 3 - np.isnan(found).sum(axis=0)
    middle = np.where(n_known == 3, found[1], np.where(n_known == 2, (found[0] + found[1]) / 2, found[0]))
    return np.asarray(middle)


def _weights(distance: Array, lifetime: float) -> Array:
    """Return the weight of each context window held, (n, m), rows summing to 1; NaN if none is left."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):  # rows without neighbours
        near = distance - distance.min(axis=1, keepdims=True)
        rank = min(_NEIGHBOURS, near.shape[1]) - 1
        farthest = np.partition(near, rank, axis=1)[:, rank, None]
        weights = np.exp(-np.minimum(lifetime, _STEEPNESS / farthest) * near)
        weights[np.isinf(distance)] = 0.0
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def _summary(samples: Array, weights: Array) -> tuple[Array, ...]:
    """Return mean, low, high and median of samples, (m, C), for each row of weights, (n, m): four arrays (n, C).

    The next reading is one more sample of unknown rank, so the band is widened by half its share on each side.
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
