"""The posterior of a row's mass over a whole forest: a mixture with one part for each tree.

Within a tree a mass is a product of independent Betas. Its first two moments are exact; for quantiles it is taken for
the Beta that has the same two. Masses may be as small as 1e-300, so the search for a quantile runs over logarithms.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import special

from polyaforest.core.arrays import Array

_FLOOR = float(np.log(np.finfo(np.float64).tiny))  # what lies below it is 0 for all that floats can tell
_TOLERANCE = 1e-9  # of a quantile, relative to it; the last step of Newton's rule leaves far less than its length
_NARROW = 1e-12  # of the interval around a quantile at which the mixture jumps
_MOST_STEPS = 200  # bisection alone takes 50
_LEAST = 1e-100  # a parameter of a Beta that is all or nothing; smaller ones are too much for older versions of SciPy
_LEAST_EXCESS = 1e-14  # below it a share is known for all purposes, and SciPy may take minutes over such a Beta
_LONG_TAIL = 1e10  # from this sum of its parameters on, a Beta of small mean is a Gamma


class Masses(NamedTuple):
    """What the trees of a forest say of the masses around rows, each array (n_rows, n_trees).

    The mass of a row is a random share, of which the two moments are given, times a weight that is known.
    """

    log_mean: Array  # log E[share]
    excess: Array  # log(E[share²] / E[share]²)
    log_weight: Array


class Moments(NamedTuple):
    """Mean and variance of the posterior of each row's mass, both of shape (n_rows,)."""

    mean: Array
    variance: Array


class _Betas(NamedTuple):
    """The parts of mixtures, ready to be evaluated; each array (n_rows, n_trees)."""

    a: Array
    b: Array
    log_norm: Array  # log of the Beta function, or of the Gamma function
    log_mean: Array  # of the weighted mass
    log_weight: Array
    is_point: Array  # bool: known exactly, or all but exactly
    is_gamma: Array  # bool: of so small a mean that the Beta is a Gamma


def moments(masses: Masses) -> Moments:
    """Mean and variance of the mixtures: the mean over the trees, what trees leave open and where they disagree."""
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
    """Distribution function and density of the logarithm of each row's mass at one place for each, (n_rows,)."""
    ratio, log_share = places[:, None] - betas.log_mean, np.minimum(places[:, None] - betas.log_weight, 0.0)
    is_beta, is_gamma = ~(betas.is_point | betas.is_gamma), betas.is_gamma
    below = np.where(betas.is_point, ratio >= 0, 0.0)
    # picked out by hand: with `where`, functions of some versions of SciPy write beyond the end of `out`
    below[is_beta] = special.betainc(betas.a[is_beta], betas.b[is_beta], np.exp(log_share[is_beta]))
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # far out, where densities are 0
        z = betas.a * np.exp(ratio)
        below[is_gamma] = special.gammainc(betas.a[is_gamma], z[is_gamma])
        beta = betas.a * log_share + (betas.b - 1) * np.log1p(-np.exp(log_share)) - betas.log_norm
        gamma = betas.a * (np.log(betas.a) + ratio) - z - betas.log_norm
        density = np.where(betas.is_point | (log_share >= 0), 0.0, np.exp(np.where(betas.is_gamma, gamma, beta)))
    return below.mean(axis=1), density.mean(axis=1)


def _quantile(masses: Masses, betas: _Betas, p: float) -> Array:
    """Return the `p`-quantile of each row's mixture, by Newton's rule on the logit, safeguarded by bisection."""
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
    """Where to look next: where Newton's rule says if that is between the bounds, or else halfway.

    Before there is a lower bound, the floor is tried, unless the rule leads up.
    """
    is_between = (wanted > np.maximum(low, _FLOOR)) & (wanted < high)
    is_floor = np.isneginf(low) & ~(wanted >= high)
    halfway = 0.5 * (np.maximum(low, _FLOOR) + high)
    return np.where(is_between, wanted, np.where(is_floor, _FLOOR, halfway))


def _first_guess(masses: Masses, p: float) -> Array:
    """Return the quantile if all trees shared one log-normal mass, the variance of whose logarithm is the excess."""
    excess = _possible_excess(masses)
    centre = np.maximum(masses.log_mean + masses.log_weight - 0.5 * excess, 2 * _FLOOR)
    variance = np.minimum(excess, -_FLOOR).mean(axis=1) + centre.var(axis=1)
    deviations: float = special.ndtri(p)
    guess: Array = np.clip(centre.mean(axis=1) + deviations * np.sqrt(variance), 0.9 * _FLOOR, -1e-6)
    return guess
