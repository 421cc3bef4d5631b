"""The posterior of a row's mass over a forest: a mixture with one component per tree.

Within a tree, the mass is a product of independent Betas. Its first two moments are exact; quantiles use the Beta with
the same two moments. Masses may be as small as 1e-300, so the search for a quantile works on logarithms.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import special

from polyaforest.kernels.arrays import Array

_FLOOR = float(np.log(np.finfo(np.float64).tiny))  # log-masses below it count as mass 0
_TOLERANCE = 1e-9  # relative error of a quantile; Newton's last step leaves far less than its length
_NARROW = 1e-12  # width of the bracket at which to stop where the mixture jumps
_MOST_STEPS = 200  # bisection alone takes 50
_LEAST = 1e-100  # smallest parameter of a Beta; older versions of SciPy fail below it
_LEAST_EXCESS = 1e-14  # below it a share counts as known exactly; SciPy may take minutes for such a Beta
_LONG_TAIL = 1e10  # from this sum of its parameters on, a Beta of small mean equals a Gamma


class Masses(NamedTuple):
    """Moments of the masses of rows in the trees of a forest, each array (n_rows, n_trees).

    The mass of a row is a random share, given by its first two moments, times a known weight.
    """

    log_mean: Array  # log E[share]
    excess: Array  # log(E[share²] / E[share]²)
    log_weight: Array


class Moments(NamedTuple):
    """Mean and variance of the posterior of each row's mass, both of shape (n_rows,)."""

    mean: Array
    variance: Array


class _Betas(NamedTuple):
    """The components of mixtures, ready for evaluation; each array (n_rows, n_trees)."""

    a: Array
    b: Array
    log_norm: Array  # log of the Beta function, or of the Gamma function
    log_mean: Array  # of the weighted mass
    log_weight: Array
    is_point: Array  # bool: known exactly, or nearly so
    is_gamma: Array  # bool: the mean is so small that the Beta equals a Gamma


def moments(masses: Masses) -> Moments:
    """Return the mean and variance of the mixtures; the variance is the sum of those within and between trees."""
    log_mean, excess = masses.log_mean + masses.log_weight, _possible_excess(masses)
    means = np.exp(log_mean)
    with np.errstate(divide="ignore", invalid="ignore"):  # log(0) where a mass is known exactly
        variances = np.exp(2 * log_mean + _log_expm1(excess))
    variances[~np.isfinite(log_mean)] = 0.0
    return Moments(means.mean(axis=1), variances.mean(axis=1) + means.var(axis=1))


def interval(masses: Masses, level: float) -> Array:
    """Return the equal-tailed interval that holds each row's mass with probability `level`, (n_rows, 2)."""
    betas = _matched(masses)
    bounds = np.stack([_quantile(masses, betas, (1 - level) / 2), _quantile(masses, betas, (1 + level) / 2)], axis=1)
    return np.maximum.accumulate(bounds, axis=1)  # each is found to within a rounding error of its own


def _possible_excess(masses: Masses) -> Array:
    """Return the excess, which for a share is at most -log(mean): its square is at most itself."""
    return np.where(np.isfinite(masses.log_mean), np.minimum(masses.excess, -masses.log_mean), 0.0)


def _log_expm1(values: Array) -> Array:
    """log(exp(v) - 1) without overflow."""
    return values + np.log(-np.expm1(-values))


def _matched(masses: Masses) -> _Betas:
    """Return the Betas with the moments of the masses, before their weights.

    From E = a / (a + b) and E[s²] = E (a + 1) / (a + b + 1) follows a = (1 - E[s²] / E) / (E[s²] / E² - 1).
    """
    excess = _possible_excess(masses)
    is_point = ~((excess > _LEAST_EXCESS) & (masses.log_mean < 0))
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):  # points, which take no part
        a = np.maximum(-np.expm1(masses.log_mean + excess) / np.expm1(excess), _LEAST)
        total, b = a * np.exp(-masses.log_mean), np.maximum(a * np.expm1(-masses.log_mean), _LEAST)
    a, b = np.where(is_point, 1.0, a), np.where(is_point, 1.0, b)
    is_gamma = ~is_point & ~(total < _LONG_TAIL * (1 + a))
    log_norm = np.where(is_gamma, special.gammaln(a), special.betaln(a, np.where(is_gamma, 1.0, b)))
    return _Betas(a, b, log_norm, masses.log_mean + masses.log_weight, masses.log_weight, is_point, is_gamma)


def _mixture_at(betas: _Betas, places: Array) -> tuple[Array, Array]:
    """Return the distribution function and the density of each row's log-mass at one place per row, (n_rows,)."""
    ratio, log_share = places[:, None] - betas.log_mean, np.minimum(places[:, None] - betas.log_weight, 0.0)
    is_beta, is_gamma = ~(betas.is_point | betas.is_gamma), betas.is_gamma
    below = np.where(betas.is_point, ratio >= 0, 0.0)
    # index instead of passing `where`: with it, some versions of SciPy write beyond the end of `out`
    below[is_beta] = special.betainc(betas.a[is_beta], betas.b[is_beta], np.exp(log_share[is_beta]))
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # far out, where densities are 0
        z = betas.a * np.exp(ratio)
        below[is_gamma] = special.gammainc(betas.a[is_gamma], z[is_gamma])
        beta = betas.a * log_share + (betas.b - 1) * np.log1p(-np.exp(log_share)) - betas.log_norm
        gamma = betas.a * (np.log(betas.a) + ratio) - z - betas.log_norm
        density = np.where(betas.is_point | (log_share >= 0), 0.0, np.exp(np.where(betas.is_gamma, gamma, beta)))
    return below.mean(axis=1), density.mean(axis=1)


def _quantile(masses: Masses, betas: _Betas, p: float) -> Array:
    """Return the `p`-quantile of each row's mixture, by Newton's method on the logit, safeguarded by bisection."""
    at = _first_guess(masses, p)
    low, high, found = np.full_like(at, -np.inf), np.zeros_like(at), np.zeros_like(at)
    rows = np.arange(len(at))
    for _ in range(_MOST_STEPS):
        below, density = _mixture_at(betas, at)
        is_low = below < p
        low, high = np.where(is_low, at, low), np.where(is_low, high, at)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # where the mixture is flat
            step = (np.log(p / below) - np.log((1 - p) / (1 - below))) * below * (1 - below) / density
        is_near = (density > 0) & np.isfinite(density) & (np.abs(step) < _TOLERANCE)
        is_nothing = high <= _FLOOR
        is_open = ~(is_near | is_nothing | (high - low < _NARROW))
        found[rows] = np.where(is_nothing, -np.inf, np.where(is_near, at + step, high))
        if not is_open.any():
            break
        at = _next_place(at + step, low, high)[is_open]
        rows, low, high = rows[is_open], low[is_open], high[is_open]
        betas = _Betas(*(part[is_open] for part in betas))
    return np.exp(np.minimum(found, 0.0))


def _next_place(wanted: Array, low: Array, high: Array) -> Array:
    """Return the next place to evaluate: Newton's if it is between the bounds, else the midpoint.

    Without a lower bound yet, try the floor, unless Newton's step leads upwards.
    """
    is_between = (wanted > np.maximum(low, _FLOOR)) & (wanted < high)
    is_floor = np.isneginf(low) & ~(wanted >= high)
    halfway = 0.5 * (np.maximum(low, _FLOOR) + high)
    return np.where(is_between, wanted, np.where(is_floor, _FLOOR, halfway))


def _first_guess(masses: Masses, p: float) -> Array:
    """Return the quantile of one log-normal mass for all trees, with the excess as the variance of its logarithm."""
    excess = _possible_excess(masses)
    centre = np.maximum(masses.log_mean + masses.log_weight - 0.5 * excess, 2 * _FLOOR)
    variance = np.minimum(excess, -_FLOOR).mean(axis=1) + centre.var(axis=1)
    deviations: float = special.ndtri(p)
    guess: Array = np.clip(centre.mean(axis=1) + deviations * np.sqrt(variance), 0.9 * _FLOOR, -1e-6)
    return guess
