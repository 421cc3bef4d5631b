"""The order of readings: whether neighbours resemble each other, and the period at which readings repeat."""

from __future__ import annotations

import numpy as np

from polyaforest.core.arrays import Array
from polyaforest.timeseries._contexts import LEAST, LONGEST_PERIOD, MOST_PERIODS

_LEAST_CYCLES = 3  # seen of a rhythm before it counts as one
_LEAST_STEPS = 4  # of a period
_LEAST_CORRELATION = 0.5  # of readings one period apart
LEAST_READINGS = 256  # that show whether they are a series
_EVEN = 0.8  # share of the steps of a series that are about as long as the usual one
_RESEMBLING = 0.3  # rank correlation of neighbours in at least half of the columns of a series
_MOST_MISSING = 3  # steps in a row that are filled in, unless told otherwise
_ABOUT = 0.95  # a shorter period that is nearly as good is the period


def is_series(times: Array, values: Array) -> bool:
    """Return whether rows are readings of a series rather than independent of each other.

    They are if times rise in mostly even steps, in at least half of the columns that vary, neighbours resemble each
    other, and a context window can be made of some of them.

    Examples
    --------
    >>> wave, noise = np.sin(np.arange(300) / 9)[:, None], np.random.default_rng(0).normal(size=(300, 1))
    >>> is_series(np.arange(300), wave), is_series(np.arange(300), noise), is_series(-np.arange(300), wave)
    (True, False, False)
    """
    steps = np.diff(times)
    if len(times) < LEAST_READINGS or not (steps >= 0).all():
        return False
    usual = np.median(steps)
    if not usual > 0 or np.mean(np.abs(steps - usual) <= 0.5 * usual) < _EVEN:
        return False
    found = [_resemblance(column) for column in values.T]
    known = [value for value in found if value is not None]
    return bool(known) and float(np.median(known)) >= _RESEMBLING and has_context(times, values)


def has_context(times: Array | None, values: Array) -> bool:
    """Return whether enough complete rows follow each other without too long a gap to make a context window."""
    places = np.flatnonzero(~np.isnan(values).any(axis=1))
    when = places if times is None else times[places]
    usual = 1.0 if times is None else float(np.median(np.diff(times)))
    ends = np.flatnonzero(np.diff(when) > (_MOST_MISSING + 1.5) * usual) + 1
    return bool(np.diff([0, *ends, len(places)]).max() >= LEAST)


def _resemblance(values: Array) -> float | None:
    """Return the rank correlation of neighbours, None if values do not vary."""
    is_pair = ~np.isnan(values[1:]) & ~np.isnan(values[:-1])
    before, after = (_ranks(part[is_pair]) for part in (values[:-1], values[1:]))
    if not is_pair.any() or np.ptp(before) == 0 or np.ptp(after) == 0:
        return None
    return float(np.corrcoef(before, after)[0, 1])


def _ranks(values: Array) -> Array:
    """Return the ranks of values, equal ones for ties: in the order of rows, ties would resemble their neighbours."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    middles: Array = np.cumsum(count) - count / 2
    return middles[place]


def find_periods(values: Array) -> tuple[int, ...]:
    """Return the numbers of steps after which readings repeat, the strongest first, at most two; none if they do not.

    A period is a lag at a peak of the autocorrelation, beyond its first zero: the shortest of those that are nearly as
    high as the highest. The second is the best of those at most half as long, as a day is in a week. Extreme values
    are cut off first, so that a spike does not hide a rhythm or pretend to be one.

    Parameters
    ----------
    values : ndarray of shape (n, n_channels)
        Readings in even steps; of several channels the one that repeats most faithfully counts.

    Examples
    --------
    >>> find_periods(np.sin(np.arange(400) * 2 * np.pi / 24)[:, None])
    (24,)
    >>> find_periods(np.random.default_rng(0).normal(size=(400, 1)))
    ()
    """
    found = [_peaks(column) for column in values.T]
    best = max(found, key=lambda peaks: max(peaks.values(), default=0.0), default={})
    periods: list[int] = []
    while best and len(periods) < MOST_PERIODS:
        highest = max(best.values())
        periods.append(min(lag for lag, height in best.items() if height >= _ABOUT * highest))
        best = {lag: height for lag, height in best.items() if 2 * lag <= periods[-1]}
    return tuple(periods)


def _peaks(values: Array) -> dict[int, float]:
    """Return the lags at which readings repeat, and how faithfully."""
    n = len(values)
    if n < _LEAST_CYCLES * _LEAST_STEPS:
        return {}
    correlation = _autocorrelation(values)
    negative = np.flatnonzero(correlation < 0)
    first, last = max(int(negative[0]) if len(negative) else n, _LEAST_STEPS), n // _LEAST_CYCLES
    lags = np.arange(first, min(last, LONGEST_PERIOD + 1))
    here = correlation[lags]
    is_peak = (here >= correlation[lags - 1]) & (here >= correlation[lags + 1]) & (here >= _LEAST_CORRELATION)
    return dict(zip(lags[is_peak].tolist(), here[is_peak].tolist(), strict=True))


def _autocorrelation(values: Array) -> Array:
    """Return the autocorrelation at all lags, unbiased, (n,); zeros for a constant series."""
    n = len(values)
    centred = np.clip(values, *np.quantile(values, [0.01, 0.99]))
    centred = centred - centred.mean()
    spectrum = np.fft.rfft(centred, 2 * n)
    products = np.fft.irfft(spectrum * np.conj(spectrum))[:n]
    if not products[0] > 0:
        return np.zeros(n)
    correlation: Array = products / products[0] * n / np.arange(n, 0, -1)
    return correlation
