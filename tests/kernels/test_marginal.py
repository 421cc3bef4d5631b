"""Rows with missing values: the marginal mass is exact, never falls if more is hidden, and is a density."""

import numba
import numpy as np
import pytest
from effort import examples
from forests import made
from gaps import hide, plain_cells, plain_mass
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from strategies import depths, mixed, narrow_matrices, prior_strengths, probes, seeds

from polyaforest import BatchMPF, StreamingMPF, Tree

pytestmark = [pytest.mark.property, pytest.mark.plain]

N_TREES = 3
SLACK = 1 + 1e-9  # sums of logarithms are rounded
TIMES = np.array([0.0, 0.5, 2.0, 10.0])


@st.composite
def forests(draw):
    """Draw a detector of either kind, rows to fit, rows to score, and which values of those to hide."""
    (rows, n_categories), seed = draw(mixed(narrow_matrices(max_rows=8, max_features=4))), draw(seeds)
    kind = draw(st.sampled_from([StreamingMPF, BatchMPF]))
    parameters = {
        "n_estimators": N_TREES,
        "prior_strength": draw(prior_strengths),
        "max_depth": draw(depths if kind is StreamingMPF else st.sampled_from([0, 1, 3, 6])),
        "domain": draw(st.sampled_from([None, "data"])),
        "random_state": seed,
        "missing": "marginalise",
        "n_categories": n_categories,
    }
    if kind is StreamingMPF:
        parameters["window"] = draw(st.sampled_from(["auto", 5]))
    asked = probes(rows, seed, n_categories)
    hidden = np.random.default_rng(seed).random(asked.shape) < draw(st.sampled_from([0.2, 0.5, 0.9]))
    return kind, parameters, rows, asked, hidden


def fitted(case):
    kind, parameters, rows, asked, hidden = case
    return made(kind, **parameters).fit(rows), asked, hidden


@given(forests())
def test_marginal_mass_is_the_sum_over_leaves_and_cells(case):
    forest, asked, hidden = fitted(case)
    rows = hide(asked, hidden)
    rows, trees, known = rows[hidden.any(axis=1)][:6], forest.forest_, forest.posterior_
    if not len(rows):
        return
    masses, at_times = forest.tree_masses(rows), forest.mass(rows, lifetime=TIMES)
    for i, x in enumerate(rows):
        assert_allclose(masses[i], [plain_mass(trees, known, t, x) for t in range(N_TREES)], rtol=1e-9, atol=1e-300)
        for s, time in enumerate(TIMES):
            logs = [log for t in range(N_TREES) for _, log in plain_cells(trees, known, t, x, time)]
            assert at_times[i, s] == pytest.approx(np.exp(np.logaddexp.reduce(logs)) / N_TREES, rel=1e-9, abs=1e-300)


@given(forests(), seeds)
def test_hiding_one_more_value_never_lowers_the_mass(case, seed):
    forest, asked, hidden = fitted(case)
    rng = np.random.default_rng(seed)
    more = hidden.copy()
    more[np.arange(len(asked)), rng.integers(asked.shape[1], size=len(asked))] = True
    less, fuller = hide(asked, more), hide(asked, hidden)
    assert (forest.tree_masses(less) * SLACK >= forest.tree_masses(fuller)).all()
    assert (forest.mass(less, lifetime=TIMES) * SLACK >= forest.mass(fuller, lifetime=TIMES)).all()
    scores, fuller_scores = np.maximum(forest.score_samples(less), -1e300), forest.score_samples(fuller)
    is_possible = np.isfinite(fuller_scores)  # nothing is less than nothing
    assert (scores + 1e-9 * (1 + np.abs(scores)) >= fuller_scores)[is_possible].all()


@given(forests())
def test_row_without_values_has_total_mass(case):
    forest, asked, _ = fitted(case)
    assert_allclose(forest.tree_masses(np.full((1, asked.shape[1]), np.nan)), 1.0, rtol=1e-9)


@given(forests())
def test_complete_rows_do_not_depend_on_rows_with_gaps(case):
    forest, asked, hidden = fitted(case)
    rows = hide(asked, hidden)
    is_whole = ~np.isnan(rows).any(axis=1)
    if is_whole.any():
        assert_array_equal(forest.score_samples(rows)[is_whole], forest.score_samples(rows[is_whole]))
        assert_array_equal(forest.impute(rows)[is_whole], rows[is_whole])


@given(forests())
def test_imputed_values_lie_in_known_world(case):
    forest, asked, hidden = fitted(case)
    rows = hide(asked, hidden)
    world = forest.posterior_.world
    low, high = world[0].min(axis=0), world[1].max(axis=0)
    slack = 1e-9 * (np.abs(low) + np.abs(high))
    for how in ("mean", "mode"):
        filled = forest.impute(rows, how=how)
        assert_array_equal(filled[~hidden], asked[~hidden])
        assert ((low - slack <= filled) & (filled <= high + slack))[hidden].all()


@settings(max_examples=examples(10))
@given(seeds)
def test_streams_with_gaps_do_not_depend_on_chunk_size(seed):
    rng = np.random.default_rng(seed)
    rows = hide(rng.normal(size=(20, 3)), rng.random((20, 3)) < 0.3)
    rows[0] = 0.0
    stops = np.sort(rng.integers(0, 20, size=3))
    whole, parts = (StreamingMPF(n_estimators=2, window=8, random_state=0, missing="marginalise") for _ in range(2))
    scores = whole.score_then_learn(rows)
    assert_array_equal(
        np.concatenate([parts.score_then_learn(part) for part in np.split(rows, stops) if len(part)]), scores
    )
    assert_array_equal(parts.points_, whole.points_)


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="thousands of trees take long in plain Python")
@pytest.mark.parametrize("hidden", [(True, False, False), (False, True, True), (False, False, True)])
def test_expected_marginal_mass_is_kernel_density_of_present_values(hidden):
    """Without cuts of hidden features, two points share a cell with probability exp(-t * distance in the others)."""
    rng = np.random.default_rng(7)
    rows, weights, times = rng.normal(size=(6, 3)), np.array([0.5, 1.0, 2.0]), np.array([0.2, 0.7, 1.5])
    asked = rng.normal(size=(4, 3))
    forest = StreamingMPF(
        n_estimators=4000,
        max_samples=None,
        tree=Tree(feature_weights=weights, prior_strength=1e-9),
        random_state=0,
        missing="marginalise",
    ).fit(rows)
    there = ~np.array(hidden)
    distances = (weights * np.abs(asked[:, None] - rows))[..., there].sum(axis=-1)
    expected = np.exp(-times * distances[..., None]).mean(axis=1)
    found = forest.mass(hide(asked, hidden), lifetime=times)
    # masses lie between 0 and 1: the standard error of their mean is at most 0.5 / sqrt(4000); allow 4.5 of them
    assert_allclose(found, expected, atol=4.5 * 0.5 / np.sqrt(4000))
    assert np.abs(found - expected).mean() < 0.01
