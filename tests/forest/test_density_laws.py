"""A density integrates to 1 over its domain, and approximates the density of the data.

For the false-alarm rate see the package: Monte-Carlo integrals are compared in units of their standard error, 1e-4
for each case.
"""

import numpy as np
import pytest
from forests import made
from laws import ALARM
from scipy import integrate, stats

from polyaforest import BatchMPF, StreamingMPF

pytestmark = pytest.mark.statistical

ESTIMATORS = [StreamingMPF, BatchMPF]
N_SAMPLES = 40_000
TOLERANCE = stats.norm.isf(ALARM / 2)

# shallow trees and a strong prior, so that no leaf is too narrow for uniform samples
SHALLOW = {"max_depth": 4, "prior_strength": 2.0, "random_state": 31}


def rows(n_features, n_rows=25):
    return np.random.default_rng(n_features).uniform(-1, 2, size=(n_rows, n_features)) * np.arange(1, n_features + 1)


def fitted(estimator, X, **parameters):
    everything = {"max_samples": None} if estimator is StreamingMPF else {}
    return made(estimator, **SHALLOW | everything | parameters).fit(X)


def integral_over(forest, low, high):
    """Estimate the integral of the density over a box, and its standard error."""
    rng = np.random.default_rng(32)
    values = np.exp(forest.log_density(rng.uniform(low, high, size=(N_SAMPLES, len(low))))) * np.prod(high - low)
    return values.mean(), values.std() / np.sqrt(N_SAMPLES)


@pytest.mark.parametrize("n_features", [1, 2, 3])
@pytest.mark.parametrize("n_estimators", [1, 8])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_density_with_domain_of_data_integrates_to_one(estimator, n_estimators, n_features):
    X = rows(n_features)
    forest = fitted(estimator, X, domain="data", n_estimators=n_estimators)
    total, error = integral_over(forest, X.min(axis=0), X.max(axis=0))
    assert error < 0.02
    assert abs(total - 1) < TOLERANCE * error


@pytest.mark.parametrize("given_domain", [False, True])
@pytest.mark.parametrize("n_features", [1, 2, 3])
@pytest.mark.parametrize("n_estimators", [1, 8])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_density_over_known_world_integrates_to_one_minus_mass_outside(
    estimator, n_estimators, n_features, given_domain
):
    X = rows(n_features)
    world = np.stack([X.min(axis=0), X.max(axis=0)]) + (np.array([[-0.5], [1.0]]) if given_domain else 0.0)
    forest = fitted(estimator, X, domain=world if given_domain else None, n_estimators=n_estimators)
    outside = np.exp(forest.posterior_.outside).mean()
    assert outside == pytest.approx(1.0 / 27.0)  # half of two pseudo-points, of those and 25 rows
    total, error = integral_over(forest, *world)
    assert error < 0.02
    assert abs(total - (1 - outside)) < TOLERANCE * error


def log_tails(X, low, high, rate):
    """Return the unnormalised log-density of independent features, flat on [low, high] and exponential beyond."""
    return -(rate * np.maximum(np.maximum(low - X, X - high), 0)).sum(axis=1)


@pytest.mark.parametrize("n_features", [1, 2, 3])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_density_outside_integrates_to_mass_outside(estimator, n_features):
    X = rows(n_features)
    low, high = X.min(axis=0), X.max(axis=0)
    length, shares = high - low, np.array([1.0, 0.5, 2.0])[:n_features]
    forest = fitted(estimator, X, n_estimators=4, feature_weights=shares / length)
    rng = np.random.default_rng(33)
    rate = shares / length / shares.mean() * 0.8  # tails a little heavier than the forest's, to sample from
    tail = rng.exponential(size=(N_SAMPLES, n_features)) / rate
    place = rng.uniform(size=(N_SAMPLES, n_features)) * (length + 2 / rate)
    samples = np.where(place < length, low + place, np.where(place < length + 1 / rate, high + tail, low - tail))
    log_proposal = log_tails(samples, low, high, rate) - np.log(length + 2 / rate).sum()
    is_outside = ((samples < low) | (samples > high)).any(axis=1)
    values = np.where(is_outside, np.exp(forest.log_density(samples) - log_proposal), 0.0)
    error = values.std() / np.sqrt(N_SAMPLES)
    assert error < 0.001
    assert abs(values.mean() - np.exp(forest.posterior_.outside).mean()) < TOLERANCE * error


@pytest.mark.parametrize("given_domain", [False, True])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_quadrature_over_tails_gives_mass_outside(estimator, given_domain):
    X = rows(1)
    low, high = (-3.0, 4.0) if given_domain else (X.min(), X.max())
    forest = fitted(estimator, X, domain=[[low], [high]] if given_domain else None, n_estimators=4)
    tails = 0.0
    for edge, far in ((low, low - 60 * (high - low)), (high, high + 60 * (high - low))):
        grid = np.linspace(np.nextafter(edge, far), far, 60_001)
        tails += abs(integrate.simpson(np.exp(forest.log_density(grid[:, None])), x=grid))
    assert tails == pytest.approx(np.exp(forest.posterior_.outside).mean(), rel=1e-6)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_density_approximates_true_gaussian(estimator):
    rng, n_features = np.random.default_rng(34), 2
    X, unseen = rng.normal(size=(2000, n_features)), rng.normal(size=(1000, n_features))
    forest = fitted(estimator, X, n_estimators=50, max_depth=10, prior_strength=0.01)
    along = np.linspace(0, 6, 7)[:, None] * [0.6, 0.8]
    assert (np.diff(forest.log_density(along)) < 0).all()
    truth = stats.multivariate_normal(np.zeros(n_features)).logpdf(unseen).mean()
    loss = truth - forest.log_density(unseen).mean()
    assert 0 < loss < 0.3  # nats; trees of depth 10 on 2000 rows lose about 0.1
