"""The rhythm of a series: the period at which its readings repeat, if they do."""

from __future__ import annotations

import numpy as np

from polyaforest.core.arrays import Array

_LEAST_CYCLES = 3  # seen of a rhythm before it counts as one
_LEAST_STEPS = 4  # of a period
_LEAST_CORRELATION = 0.5  # of readings one period apart
_ABOUT = 0.95  # a shorter period that is nearly as good is the period


def find_common_period(values: Array) -> int | None:
    """Return the period of the channel, of several in the columns of `values`, that repeats most faithfully."""
    found = [(_correlation_at(column, period), period) for column in values.T if (period := find_period(column))]
    return max(found)[1] if found else None


def find_period(values: Array) -> int | None:
    """Return the number of steps after which readings repeat, None if they do not.

    It is the shortest lag among the best peaks of the autocorrelation, beyond its first zero. Extreme values are cut
    off first, so that a spike does not hide a rhythm or pretend to be one.

    Parameters
    ----------
    values : ndarray of shape (n,)
        Readings in even steps.

    Examples
    --------
    >>> find_period(np.sin(np.arange(400) * 2 * np.pi / 24))
    24
    >>> find_period(np.random.default_rng(0).normal(size=400)) is None
    True
    """
    n = len(values)
    if n < _LEAST_CYCLES * _LEAST_STEPS:
        return None
    correlation = _autocorrelation(values)
    negative = np.flatnonzero(correlation < 0)
    first, last = max(int(negative[0]) if len(negative) else n, _LEAST_STEPS), n // _LEAST_CYCLES
    lags = np.arange(first, last)
    if not len(lags):
        return None
    here = correlation[lags]
    peaks = lags[(here >= correlation[lags - 1]) & (here >= correlation[lags + 1])]
    best = correlation[peaks].max(initial=0.0)
    if best < _LEAST_CORRELATION:
        return None
    return int(peaks[np.argmax(correlation[peaks] >= _ABOUT * best)])


def _correlation_at(values: Array, lag: int) -> float:
    return float(_autocorrelation(values)[lag])


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
