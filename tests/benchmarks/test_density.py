"""The densities that are estimated, the errors against closed forms, and a small run from end to end."""

from functools import partial

import numpy as np
import pytest
from effort import mostly_slow
from scipy.integrate import quad
from scipy.stats import norm

from benchmarks import density
from benchmarks.density import (
    DENSITIES,
    ESTIMATORS,
    FLOOR,
    STEPS,
    bin_edges,
    divergence,
    grid,
    histogram,
    mixture,
    squared_error,
)
from benchmarks.registry import main
from benchmarks.shared.results import Results, read


def over(truth, n_steps=None):
    return grid(truth.box, n_steps or STEPS[truth.means.shape[1]])


@pytest.mark.parametrize("name", DENSITIES)
def test_the_box_contains_all_but_a_millionth(name):
    truth = DENSITIES[name]
    cells = over(truth)
    assert cells.integral(truth.density(cells.places)) == pytest.approx(1, abs=1e-6)


def test_the_grid_integrates_like_closed_forms_and_quadrature():
    truth = DENSITIES["mixture"]
    low, high = truth.box[:, 0]
    exact = quad(lambda x: truth.density(np.array([[x]])).item() ** 2, low, high, points=[0, 5])[0]
    cells = over(truth)
    assert cells.integral(truth.density(cells.places) ** 2) == pytest.approx(exact, rel=1e-6)

    truth = DENSITIES["bivariate mixture"]
    cells = over(truth)
    product = cells.integral(cells.places.prod(axis=1) * truth.density(cells.places))
    assert product == pytest.approx(0.3 * 0.6 + 0.7 * (25 - 0.5), rel=1e-4)


@pytest.mark.parametrize("name", DENSITIES)
def test_samples_come_from_the_density(name):
    truth = DENSITIES[name]
    sample = truth.sample(40_000, np.random.default_rng(0))
    cells = over(truth)
    weights = truth.density(cells.places) * cells.volume
    mean = weights @ cells.places
    covariance = (weights[:, None] * (cells.places - mean)).T @ (cells.places - mean)
    assert sample.mean(axis=0) == pytest.approx(mean, abs=5 * np.sqrt(covariance.max() / 40_000))
    assert np.atleast_2d(np.cov(sample.T)) == pytest.approx(covariance, abs=0.2)


@pytest.mark.parametrize(("shift", "spread"), [(0.0, 1.0), (0.5, 1.0), (0.3, 1.4), (-1.0, 1.2)])
def test_errors_of_one_normal_against_another(shift, spread):
    p, q = mixture((1.0, [0], [[1]])), mixture((1.0, [shift], [[spread**2]]))
    cells = grid(np.array([[-20.0], [20.0]]), 8_000)
    truth, estimate = p.density(cells.places), q.density(cells.places)
    kl = np.log(spread) + (1 + shift**2) / (2 * spread**2) - 0.5
    self_products = (1 + 1 / spread) / (2 * np.sqrt(np.pi))
    ise = self_products - 2 * norm.pdf(shift, scale=np.sqrt(1 + spread**2))
    assert divergence(truth, estimate, cells) == pytest.approx(kl, abs=1e-6)
    assert squared_error(truth, estimate, cells) == pytest.approx(ise, abs=1e-9)


def test_errors_of_one_normal_against_another_in_the_plane():
    p, q = mixture((1.0, [0, 0], np.eye(2))), mixture((1.0, [0.5, 0], [[1.0, 0.5], [0.5, 1.0]]))
    cells = grid(np.array([[-9.0, -9.0], [9.0, 9.0]]), 300)
    truth, estimate = p.density(cells.places), q.density(cells.places)
    inverse = np.linalg.inv([[1.0, 0.5], [0.5, 1.0]])
    kl = (np.trace(inverse) + 0.25 * inverse[0, 0] - 2 + np.log(0.75)) / 2
    # where q is below the floor it counts for more, which is why the two are not closer
    assert divergence(truth, estimate, cells) == pytest.approx(kl, abs=1e-4)


def test_divergence_of_a_scaled_density_follows_the_formula():
    truth = DENSITIES["normal"]
    cells = over(truth)
    values = truth.density(cells.places)
    for factor in (0.5, 0.9, 1.1, 2.0):
        assert divergence(values, factor * values, cells) == pytest.approx(factor - 1 - np.log(factor), abs=1e-6)


def test_an_estimate_of_zero_diverges_like_the_floor():
    cells = grid(np.array([[0.0], [1.0]]), 10)
    truth, estimate = np.ones(10), np.repeat([2.0, 0.0], 5)
    assert divergence(truth, estimate, cells) == pytest.approx(0.5 * np.log(0.5) + 0.5 * np.log(1 / FLOOR))
    assert divergence(estimate, truth, cells) == pytest.approx(np.log(2))


@pytest.mark.parametrize("n", [100, 999])
def test_bins_along_one_feature_follow_freedman_and_diaconis(n):
    X = np.random.default_rng(n).normal(size=(n, 1))
    np.testing.assert_allclose(bin_edges(X)[0], np.histogram_bin_edges(X, "fd"))


def test_a_histogram_has_the_shares_of_its_bins():
    X = np.random.default_rng(1).normal(size=(400, 2))
    cells = grid(np.stack([X.min(axis=0) - 1, X.max(axis=0) + 1]), 700)
    estimate = histogram(X, cells.places, 0)
    assert cells.integral(estimate) == pytest.approx(1, abs=5e-3)
    is_beyond = ((cells.places < X.min(axis=0)) | (cells.places > X.max(axis=0))).any(axis=1)
    assert (estimate[is_beyond] == 0).all()
    is_left = cells.places[:, 0] < bin_edges(X)[0][3]
    share = (X[:, 0] < bin_edges(X)[0][3]).mean()
    assert cells.integral(estimate[is_left]) == pytest.approx(share, abs=5e-3)


@pytest.mark.parametrize("name", ["sMPF for densities", "sMPF as a kernel", "bMPF for densities", "KDE", "histogram"])
@pytest.mark.parametrize("target", mostly_slow(["normal", "bivariate normal"]))
def test_estimators_approximate_the_density(name, target):
    truth = DENSITIES[target]
    near = density.measure(truth, ESTIMATORS[name], 2_000, seed=0)
    assert near["integral"] == pytest.approx(1, abs=0.05)
    flat = np.full(STEPS[1] if target == "normal" else STEPS[2] ** 2, 1 / np.prod(np.ptp(truth.box, axis=0)))
    assert near["ise"] < 0.2 * density.measure(truth, lambda *_: flat, 2_000, seed=0)["ise"]


def test_mass_at_a_lifetime_approximates_a_laplace_kernel_density():
    X = DENSITIES["normal"].sample(300, np.random.default_rng(2))
    places = np.linspace(-4, 4, 41)[:, None]
    width = density.silverman(X) * (np.sqrt(np.pi) / 8) ** 0.2
    exact = np.exp(-np.abs(places - X.T) / width).mean(axis=1) / (2 * width)
    estimate = np.mean([density.kernel_view(X, places, seed) for seed in range(10)], axis=0)
    np.testing.assert_allclose(estimate, exact, atol=0.05 * exact.max())


@pytest.mark.slow
def test_end_to_end(tmp_path, monkeypatch):
    monkeypatch.setattr(density, "STEPS", {1: 200, 2: 30})
    monkeypatch.setattr(density, "PIXELS", 20)
    for name, estimator in ESTIMATORS.items():
        if isinstance(estimator, partial):  # small forests, to be quick
            monkeypatch.setitem(ESTIMATORS, name, partial(estimator, n_estimators=3))
    blocks = ("divergence", "squared-error", "missed")
    page = tmp_path / "density.md"
    page.write_text("".join(f"<!-- begin {block} -->\n<!-- end {block} -->\n" for block in blocks))
    main(["run", "density", "--quick"], tmp_path, tmp_path)

    rows = read(tmp_path / "density.csv")
    assert len(rows) == len(DENSITIES) * len(ESTIMATORS) * 2 * 2
    assert all(float(row["kl"]) >= 0 for row in rows)
    text = page.read_text()
    assert text.count("| bivariate mixture | KDE |") >= 2
    assert "n = 300" in text
    assert {path.name for path in (tmp_path / "images").iterdir()} == {
        "density-1d.png",
        "density-2d.png",
        "density-errors.png",
    }

    results = Results("density", density.KEYS, tmp_path)
    results.forget(estimator="sMPF")
    density.run(results, DENSITIES, density.SIZES[:2], 2)
    assert sorted(read(tmp_path / "density.csv"), key=str) == sorted(rows, key=str)  # measured again, the same
