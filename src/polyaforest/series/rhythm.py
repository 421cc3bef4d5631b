"""Whether rows form a time series, and the periods at which it repeats."""

from __future__ import annotations

import numpy as np

from polyaforest.kernels.arrays import Array
from polyaforest.series.contexts import LEAST, LONGEST_PERIOD, MOST_PERIODS
from polyaforest.series.recent import LEAST_READINGS, MOST_CHANNELS

_LEAST_CYCLES = 3  # cycles needed to find a period
_LEAST_STEPS = 4  # shortest period
_LEAST_CORRELATION = 0.5  # of readings one period apart
_EVEN = 0.8  # share of the steps of a series that are about as long as the usual one
_RESEMBLING = 0.3  # rank correlation of neighbours in at least half of the columns of a series
_CHANCE = 3.0  # times 1 / sqrt(rows): a rank correlation that independent rows hardly ever have
_LEAST_OF_WIDE = LEAST + 256  # rows of a series with context windows alone: the first, and the warm-up
_MOST_MISSING = 3  # default of `max_gap`
_ABOUT = 0.95  # a shorter period wins if its correlation is at least this share of the highest


def least_readings(n_columns: int) -> int:
    """Return how many rows are needed to tell that they are a series."""
    return _LEAST_OF_WIDE if n_columns > MOST_CHANNELS else LEAST_READINGS


def is_series(times: Array, values: Array) -> bool:
    """Return whether rows are readings of a series rather than independent.

    They are if times increase in mostly even steps, and neighbours are correlated in at least half of the columns that
    vary: more than those of few independent rows may be by chance. With more than three columns, there must be a
    complete context window, and more rows.

    Examples
    --------
    >>> wave, noise = np.sin(np.arange(300) / 9)[:, None], np.random.default_rng(0).normal(size=(300, 1))
    >>> is_series(np.arange(300), wave), is_series(np.arange(300), noise), is_series(-np.arange(300), wave)
    (True, False, False)
    """
    steps = np.diff(times)
    is_wide = values.shape[1] > MOST_CHANNELS
    if len(times) < least_readings(values.shape[1]) or not (steps >= 0).all():
        return False
    usual = np.median(steps)
    if not usual > 0 or np.mean(np.abs(steps - usual) <= 0.5 * usual) < _EVEN:
        return False
    found = [_resemblance(column) for column in values.T]
    known = [value for value in found if value is not None]
    least = max(_RESEMBLING, _CHANCE / len(times) ** 0.5)
    return bool(known) and float(np.median(known)) >= least and (not is_wide or has_context(times, values))


def has_context(times: Array | None, values: Array) -> bool:
    """Return whether rows contain a complete context window without too long a gap."""
    places = np.flatnonzero(~np.isnan(values).any(axis=1))
    when = places if times is None else times[places]
    usual = 1.0 if times is None else float(np.median(np.diff(times)))
    ends = np.flatnonzero(np.diff(when) > (_MOST_MISSING + 1.5) * usual) + 1
    return bool(np.diff([0, *ends, len(places)]).max() >= LEAST)


def _resemblance(values: Array) -> float | None:
    """Return the rank correlation of neighbours; None if values do not vary."""
    is_pair = ~np.isnan(values[1:]) & ~np.isnan(values[:-1])
    before, after = (_ranks(part[is_pair]) for part in (values[:-1], values[1:]))
    if not is_pair.any() or np.ptp(before) == 0 or np.ptp(after) == 0:
        return None
    return float(np.corrcoef(before, after)[0, 1])


def _ranks(values: Array) -> Array:
    """Return the ranks of values, with mean ranks for ties: ranking ties by row order would correlate neighbours."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    middles: Array = np.cumsum(count) - count / 2
    return middles[place]


def find_periods(values: Array) -> tuple[int, ...]:
    """Return at most two periods of a series in steps, strongest first; empty if it has none.

    The first period is the shortest lag with nearly the highest peak of the autocorrelation, beyond its first zero. The
    second is the best lag of at most half of the first, as a day in a week. Values are clipped first, so that a spike
    neither hides nor mimics a period.

    Parameters
    ----------
    values : ndarray of shape (n, n_channels)
        Evenly spaced readings. The channel with the highest peak counts.

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
    """Return the lags of the peaks of the autocorrelation, and their heights."""
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
