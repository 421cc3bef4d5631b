"""Uncertainty of masses: exact moments of products of Betas, and quantiles of their mixtures."""

import pickle

import numpy as np
import pytest
from effort import examples
from forests import made
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats
from shares import OUTSIDE, cells_of_rows, places_of_rows, shares_of_tree
from strategies import matrices, prior_strengths, probes, seeds

from polyaforest import BatchMPF, StreamingMPF, Tree
from polyaforest.forest.credible import Masses, interval, moments
from polyaforest.kernels.moments import log_excess

pytestmark = pytest.mark.plain

N_TREES = 4
BOX = [[-3.0, -3.0], [3.0, 3.0]]
SETTINGS = {
    "tree": (StreamingMPF, {"max_samples": None}),
    "shallow": (StreamingMPF, {"max_samples": None, "max_depth": 2}),
    "closed": (StreamingMPF, {"max_samples": None, "domain": "data"}),
    "domain": (StreamingMPF, {"window": 10, "domain": BOX}),
    "stream": (StreamingMPF, {"window": 10, "lifetime": 5.0}),
    "process": (BatchMPF, {"max_depth": 3, "domain": BOX}),
    "closed process": (BatchMPF, {"max_depth": 3, "domain": "data"}),
}


def rows_of(seed, n=9):
    """Return rows on a plane, some equal, all within the box."""
    rows = np.random.default_rng(seed).normal(size=(n, 2)).clip(-3, 3)
    rows[1] = rows[0]
    return rows


def probes_of(rows):
    """Return learned rows, rows between them, just outside and far away."""
    return np.concatenate([rows[:3], rows[:3, ::-1], [[0.1, 2.9], [0.0, 3.5], [9.0, 0.0], [-50.0, 50.0]]])


def fitted(kind, seed=0, gamma=0.01, **more):
    estimator, parameters = SETTINGS[kind]
    rows = rows_of(seed)
    detector = made(estimator, n_estimators=N_TREES, prior_strength=gamma, random_state=seed, **{**parameters, **more})
    return detector.fit(rows), probes_of(rows)


def beta_masses(a, b, log_weight):
    """Return masses with exact Beta distributions, times weights."""
    a, b = np.asarray(a, float), np.asarray(b, float)
    excess = np.log1p(b / (a * (a + b + 1)))
    return Masses(np.log(a / (a + b)), excess, np.broadcast_to(np.asarray(log_weight, float), a.shape))


def distribution(x, a, b, weights):
    return np.mean([stats.beta.cdf(x / w, *ab) for *ab, w in zip(a, b, weights, strict=True)])


# ---- moments -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("a", "b"), [(1.0, 1.0), (0.001, 5.0), (70.0, 0.01), (3.0, 12.0)])
def test_log_excess_matches_moments_of_beta(a, b):
    mean, second = stats.beta.moment(1, a, b), stats.beta.moment(2, a, b)
    assert log_excess(a, b) == pytest.approx(np.log(second / mean**2), rel=1e-9)


def test_log_excess_is_exact_for_tiny_variance():
    assert log_excess(1e9, 1e-9) == pytest.approx(1e-27, rel=1e-6)


@pytest.mark.parametrize("kind", SETTINGS)
@given(seed=seeds, gamma=prior_strengths)
@settings(max_examples=examples(5))
def test_second_moment_of_node_is_product_over_its_shares(kind, seed, gamma):
    detector, _ = fitted(kind, seed, gamma)
    spread, posterior = detector._fitted._second_moments(None), detector.posterior_
    for t in range(N_TREES):
        shares = shares_of_tree(detector.forest_, t, detector.prior_)
        for place in shares.places:
            first, second = shares.moments(place)
            if place == OUTSIDE:
                log_mean, excess = posterior.outside[t], spread.outside[t]
            else:
                node, is_inside = place
                log_mean = (posterior.inside if is_inside else posterior.complement)[t, node]
                excess = (spread.inside if is_inside else spread.complement)[t, node]
            assert np.exp(log_mean) == pytest.approx(first, rel=1e-9)
            assert np.exp(excess + 2 * log_mean) == pytest.approx(second, rel=1e-8)


@pytest.mark.parametrize("lifetime", [None, 0.0, 0.4, 2.0])
@pytest.mark.parametrize("kind", SETTINGS)
def test_moments_of_rows_match_mixture_over_trees(kind, lifetime):
    detector, X = fitted(kind)
    places, weights = places_of_rows(detector, X) if lifetime is None else cells_of_rows(detector, X, lifetime)
    trees = [shares_of_tree(detector.forest_, t, detector.prior_) for t in range(N_TREES)]
    is_shut_out = np.vectorize(lambda place: place == OUTSIDE)(places) & (not detector.prior_.is_open)
    first, second = np.zeros(places.shape), np.zeros(places.shape)
    for i, t in np.argwhere(~is_shut_out):
        first[i, t], second[i, t] = trees[t].moments(places[i, t])
    mean = (weights * first).mean(axis=1)
    variance = (weights**2 * second).mean(axis=1) - mean**2
    found, std = detector.mass(X, lifetime, return_std=True)
    np.testing.assert_allclose(found, mean, rtol=1e-9)
    np.testing.assert_allclose(found, detector.mass(X, lifetime), rtol=1e-12)
    np.testing.assert_allclose(std**2, variance, rtol=1e-7, atol=1e-14)
    assert (std[mean > 0] > 0).all() or not detector.prior_.is_open


def test_variance_splits_into_within_and_between_trees():
    same = beta_masses([[2.0, 2.0]], [[6.0, 6.0]], 0.0)
    apart = beta_masses([[2.0, 6.0]], [[6.0, 2.0]], 0.0)
    within = stats.beta.var(2, 6)
    assert moments(same).variance == pytest.approx(within)
    assert moments(apart).variance == pytest.approx(within + 0.25**2)
    assert moments(apart).mean == pytest.approx(0.5)


# ---- quantiles -----------------------------------------------------------------------------------------------------

parameters = st.tuples(st.floats(-4, 3), st.floats(-3, 4), st.floats(-30, 0))  # log10 a, log10 b, log weight


@given(st.lists(parameters, min_size=1, max_size=6), st.sampled_from([0.5, 0.9, 0.999]))
@settings(max_examples=examples(60))
def test_bounds_are_quantiles_of_the_mixture(parts, level):
    log_a, log_b, log_weights = np.array(parts).T
    a, b = 10**log_a, 10**log_b
    low, high = interval(beta_masses(a[None], b[None], log_weights[None]), level)[0]
    for bound, p in ((low, (1 - level) / 2), (high, (1 + level) / 2)):
        at = [distribution(bound * factor, a, b, np.exp(log_weights)) for factor in (1 - 1e-6, 1 + 1e-6)]
        if bound == 0:
            assert distribution(1e-307, a, b, np.exp(log_weights)) >= p - 1e-9
        else:
            assert at[0] - 1e-9 <= p <= at[1] + 1e-9


@pytest.mark.parametrize(("a", "b"), [(1.0, 1.0), (0.5, 40.0), (300.0, 2.0), (0.01, 64.0), (5e4, 5e4)])
def test_single_beta_has_exact_quantiles(a, b):
    expected = stats.beta.ppf([0.05, 0.95], a, b)
    np.testing.assert_allclose(interval(beta_masses([[a]], [[b]], 0.0), 0.9)[0], expected, rtol=1e-6)


def test_weight_scales_the_interval():
    plain, weighted = (interval(beta_masses([[2.0]], [[5.0]], w), 0.8)[0] for w in (0.0, -400.0))
    np.testing.assert_allclose(np.log(weighted), np.log(plain) - 400, rtol=1e-9)


def test_tiny_mass_is_gamma_distributed():
    log_mean, a = -600.0, 2.0
    masses = Masses(np.array([[log_mean]]), np.array([[np.log1p(1 / a)]]), np.zeros((1, 1)))
    expected = log_mean + np.log(stats.gamma.ppf([0.05, 0.95], a) / a)
    np.testing.assert_allclose(np.log(interval(masses, 0.9)[0]), expected, rtol=1e-6)


def test_exactly_known_masses_give_steps():
    def known(*values):
        with np.errstate(divide="ignore"):
            logs = np.log([values])
        return Masses(logs, np.zeros_like(logs), np.zeros_like(logs))

    np.testing.assert_allclose(interval(known(0.25), 0.9), [[0.25, 0.25]])
    np.testing.assert_allclose(interval(known(0.1, 0.2, 0.3, 0.4), 0.6), [[0.1, 0.4]])
    np.testing.assert_array_equal(interval(known(1.0), 0.9), [[1.0, 1.0]])
    np.testing.assert_array_equal(interval(known(0.0, 0.0), 0.9), [[0.0, 0.0]])
    np.testing.assert_allclose(interval(known(0.0, 0.0, 0.5), 0.9), [[0.0, 0.5]])
    assert moments(known(0.0, 0.5)).variance == pytest.approx(0.25**2)


def test_mass_of_zero_or_one_gives_full_interval():
    half = Masses(np.full((1, 1), np.log(0.5)), np.full((1, 1), np.log(2.0)), np.zeros((1, 1)))
    np.testing.assert_allclose(interval(half, 0.9), [[0.0, 1.0]])
    assert moments(half).variance == pytest.approx(0.25)


def test_bounds_are_clipped_to_valid_shares():
    nearly_one = Masses(np.zeros((1, 1)), np.full((1, 1), 1e-20), np.zeros((1, 1)))
    np.testing.assert_array_equal(interval(nearly_one, 0.9), [[1.0, 1.0]])
    impossible = Masses(np.full((1, 1), -2.0), np.full((1, 1), np.inf), np.zeros((1, 1)))
    assert moments(impossible).variance == pytest.approx(np.exp(-2) * (1 - np.exp(-2)))


def test_bound_below_float_range_is_zero():
    bounds = interval(beta_masses([[5e-4]], [[64.0]], 0.0), 0.9)[0]
    assert bounds[0] == 0
    upper = optimize.brentq(lambda u: stats.beta.cdf(np.exp(u), 5e-4, 64.0) - 0.95, -700, -1)
    assert np.log(bounds[1]) == pytest.approx(upper, rel=1e-6)


# ---- detectors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lifetime", [None, 0.4])
@pytest.mark.parametrize("kind", SETTINGS)
def test_higher_level_widens_the_interval(kind, lifetime):
    detector, X = fitted(kind)
    wide, narrow = (detector.credible_interval(X, level, lifetime) for level in (0.95, 0.5))
    assert wide.shape == narrow.shape == (len(X), 2)
    assert ((wide >= 0) & (wide <= 1)).all()
    assert (narrow[:, 0] <= narrow[:, 1]).all()
    rounding = 1 + 1e-9
    assert (wide[:, 0] <= narrow[:, 0] * rounding).all()
    assert (narrow[:, 1] <= wide[:, 1] * rounding).all()


def test_intervals_do_not_depend_on_other_rows_or_threads():
    detector, X = fitted("stream")
    together = detector.credible_interval(X)
    alone = np.concatenate([detector.credible_interval(x[None]) for x in X])
    np.testing.assert_allclose(together, alone, rtol=1e-9)
    np.testing.assert_array_equal(together, detector.set_params(n_jobs=2).credible_interval(X))


def test_many_rows_are_processed_in_blocks(monkeypatch):
    detector, X = fitted("process")
    whole = detector.credible_interval(X), *detector.mass(X, return_std=True)
    monkeypatch.setattr("polyaforest.detectors.probabilities._ROWS_OF_MASSES", 3)
    monkeypatch.setattr("polyaforest.forest.posterior._ROWS_OF_A_MIXTURE", 2)
    for part, again in zip(whole, (detector.credible_interval(X), *detector.mass(X, return_std=True)), strict=True):
        np.testing.assert_allclose(part, again, rtol=1e-9)


def test_more_rows_narrow_the_interval():
    rng = np.random.default_rng(0)
    few, many = rng.uniform(size=(20, 1)), rng.uniform(size=(2000, 1))
    widths = []
    for rows in (few, many):
        forest = BatchMPF(n_estimators=1, tree=Tree(max_depth=2, domain=[[0.0], [1.0]]), random_state=0).fit(rows)
        widths.append(np.diff(forest.credible_interval(few)))
    assert (widths[1] < 0.4 * widths[0]).all()


def test_intervals_follow_learned_rows():
    detector, X = fitted("stream")
    before = detector.credible_interval(X[:1], 0.9, 0.4)
    np.testing.assert_array_equal(before, detector.credible_interval(X[:1], 0.9, 0.4))
    detector.partial_fit(X[:1].repeat(8, axis=0))
    after = detector.credible_interval(X[:1], 0.9, 0.4)
    assert (after[:, 0] > before[:, 0]).all()


def test_copy_has_same_intervals():
    detector, X = fitted("tree")
    before = detector.credible_interval(X)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(detector)).credible_interval(X), before)


def test_empty_forest_gives_full_interval():
    detector, X = fitted("stream", gamma=2.0)
    detector.delete(detector.keys_)
    for lifetime in (None, 1.0):
        np.testing.assert_allclose(detector.credible_interval(X, 0.9, lifetime), np.tile([0.05, 0.95], (len(X), 1)))
        mean, std = detector.mass(X, lifetime, return_std=True)
        np.testing.assert_allclose(mean, 0.5)
        np.testing.assert_allclose(std**2, 1 / 12)


def test_bounds_decrease_with_distance():
    detector, _ = fitted("process", gamma=1.0)
    far = np.array([[1e1, 0.0], [1e3, 0.0], [1e50, 0.0], [1e99, 0.0]])
    for lifetime in (None, 0.1):
        bounds = detector.credible_interval(far, 0.9, lifetime)
        assert np.isfinite(bounds).all()
        assert (np.diff(bounds, axis=0) <= 0).all()


@given(X=matrices(), seed=seeds, gamma=prior_strengths, is_process=st.booleans())
@settings(max_examples=examples(25))
def test_bounds_lie_between_zero_and_one(X, seed, gamma, is_process):
    kind, parameters = (BatchMPF, {"max_depth": 4}) if is_process else (StreamingMPF, {"max_samples": None})
    detector = made(kind, n_estimators=2, random_state=seed, prior_strength=gamma, **parameters).fit(X)
    for lifetime in (None, float(detector.lifetimes_[0])):
        bounds = detector.credible_interval(probes(X, seed), lifetime=lifetime)
        mean, std = detector.mass(probes(X, seed), lifetime, return_std=True)
        assert ((bounds >= 0) & (bounds <= 1)).all()
        assert (bounds[:, 0] <= bounds[:, 1]).all()
        assert ((std >= 0) & (std**2 <= mean * (1 - mean) + 1e-12)).all()
        np.testing.assert_allclose(mean, detector.mass(probes(X, seed), lifetime), rtol=1e-9)


# ---- bad input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [0, 1, -0.1, 1.5, 90, np.nan, "0.9", None])
def test_rejects_invalid_level(level):
    detector, X = fitted("process")
    with pytest.raises(ValueError, match="level must be a number between 0 and 1, both excluded; got"):
        detector.credible_interval(X, level=level)


@pytest.mark.parametrize(("ask", "given"), [("credible_interval", {}), ("mass", {"return_std": True})])
def test_rejects_invalid_lifetime(ask, given):
    detector, X = fitted("stream")
    with pytest.raises(ValueError, match="lifetime must be a single number"):
        getattr(detector, ask)(X, lifetime=[0.1, 0.2], **given)
    with pytest.raises(ValueError, match="from 0 to 5"):
        getattr(detector, ask)(X, lifetime=6.0, **given)


@pytest.mark.parametrize(("ask", "given"), [("credible_interval", {}), ("mass", {"return_std": True})])
def test_validates_rows_like_other_methods(ask, given):
    detector, X = fitted("tree")
    with pytest.raises(ValueError, match="row 0, column 1 is missing"):
        getattr(detector, ask)([[0.0, np.nan]], **given)
    with pytest.raises(ValueError, match="features"):
        getattr(detector, ask)(X[:, :1], **given)
    with pytest.raises(ValueError, match="not fitted yet"):
        getattr(StreamingMPF(), ask)(X, **given)
