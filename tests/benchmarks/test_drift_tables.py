"""The benchmark of two-sample tests: every test keeps its rate, finds what is plain, and the page is filled."""

import numpy as np
import pytest
from scipy.stats import binom

from benchmarks import drift_tables
from benchmarks.baselines import two_samples
from benchmarks.shared.results import Results

REAL = {name: test for name, test in drift_tables.METHODS.items() if name not in ("never", "always")}


@pytest.mark.parametrize("name", REAL)
def test_a_test_finds_a_large_change_and_rarely_raises_false_alarms(name, any_seed):
    p_values, plain = [], []
    for trial in range(30):
        a, b = np.random.default_rng([any_seed, trial]).standard_normal((2, 60, 2))
        p_values.append(REAL[name](a, b, trial))
        if trial < 3:
            plain.append(REAL[name](a, b + 3, trial))
    assert (np.array(p_values) <= 0.1).sum() <= binom.ppf(1 - 1e-6, 30, 0.1)
    assert max(plain) <= 0.01


def test_dummies_ignore_the_data():
    a = np.zeros((5, 1))
    assert two_samples.never(a, a + 9, 0) == 1
    assert two_samples.always(a, a, 0) == 0


def test_energy_and_discrepancy_follow_the_definition():
    rng = np.random.default_rng(0)
    matrix = rng.random((7, 7))
    matrix += matrix.T
    signs = np.array([1.0, 1, 1, -1, -1, -1, -1])[:, None]
    a, b = np.arange(3), np.arange(3, 7)
    expected = matrix[np.ix_(a, a)].mean() + matrix[np.ix_(b, b)].mean() - 2 * matrix[np.ix_(a, b)].mean()
    assert two_samples._between(matrix, signs)[0] == pytest.approx(expected)


@pytest.mark.parametrize("change", drift_tables.CHANGES)
def test_changes_affect_the_named_features(change):
    a, b = drift_tables.draw(change, 0)
    _, n, d = drift_tables.CHANGES[change]
    assert a.shape == b.shape == (n, d)
    if change.startswith("a corner"):
        inside = (b[:, drift_tables.CORNER] > 1.5).all(axis=1).mean() - (a[:, drift_tables.CORNER] > 1.5).all(
            axis=1
        ).mean()
        assert 0.01 < inside < 0.03


def test_a_small_run_fills_the_page(tmp_path, monkeypatch):
    monkeypatch.setattr(
        drift_tables,
        "CHANGES",
        {name: drift_tables.CHANGES[name] for name in ("none", "a corner with 2 % of the rows")},
    )
    page = drift_tables.PAGES / "drift-tables.md"
    (tmp_path / page.name).write_text(page.read_text("utf-8"), "utf-8")
    files = Results("drift-tables", drift_tables.KEYS, tmp_path), Results("drift-sizes", ("rows",), tmp_path)
    drift_tables.run(files[0], (drift_tables.OURS, "KS", "never", "always"), 1)
    drift_tables.run_sizes(files[1], [500])
    drift_tables.render(list(files[0]), list(files[1]), tmp_path)
    filled = (tmp_path / page.name).read_text("utf-8")
    assert "| a corner with 2 % of the rows | 2 × 4,000 × 5 |" in filled
    assert "In 1 trials the first region names" in filled
    assert "| 2 × 500 |" in filled
