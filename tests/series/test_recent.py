"""The short memory of a series: the exact Mondrian kernel over the last readings."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyaforest.series.recent import (
    KNOWN,
    LEAST,
    LENGTHS,
    MOST_HELD,
    RecentReadings,
    mean_ahead,
    surprise_in_table,
    typical_distance,
)

pytestmark = [pytest.mark.plain, pytest.mark.unit]


def naive_surprise(values, known, step, weights, is_apart=False):
    """Return the surprise of the shingles that end at `step`, written as in the definition."""
    total = 0.0
    for length in LENGTHS.tolist():
        others = [other for other in known if not (is_apart and abs(other - step) < length)]
        distances = []
        for other in others:
            gaps = np.abs(values[:, step - length + 1 : step + 1] - values[:, other - length + 1 : other + 1])
            distances.append(np.nansum(gaps * weights[:, None]) / (length * len(values)))
        masses = [np.mean(np.exp(-lifetime * np.array(distances))) for lifetime in (1, 3, 9)]
        total -= np.mean(np.log(masses))
    return total


@pytest.mark.parametrize("n_channels", [1, 3])
def test_surprise_matches_definition(n_channels):
    rows = np.random.default_rng(0).normal(size=(60, n_channels))
    rows[7, 0] = np.nan
    recent = RecentReadings(n_channels)
    recent.append(rows)
    recent.learn(0, 60, is_known=True)
    recent.weigh(60)
    found = recent.surprise(30, 60).sum(axis=1)
    for step in range(30, 60):
        known = [other for other in range(7, step) if recent.is_known[other]]
        expected = naive_surprise(recent.values, known, step, recent.weights)
        assert found[step - 30] == pytest.approx(expected, rel=1e-4)


def test_table_is_compared_with_both_sides():
    values = np.random.default_rng(1).normal(size=(1, 80))
    found = surprise_in_table(values).sum(axis=0)
    weights = np.array([1 / typical_distance(values[0])])
    steps = range(7, 80)
    own = np.full((80, 2), np.nan)
    for step in steps:
        for k, length in enumerate(LENGTHS.tolist()):
            others = [other for other in steps if abs(other - step) >= length]
            gaps = [
                np.abs(values[0, step - length + 1 : step + 1] - values[0, other - length + 1 : other + 1]).mean()
                for other in others
            ]
            masses = [np.mean(np.exp(-lifetime * np.array(gaps) * weights[0])) for lifetime in (1, 3, 9)]
            own[step, k] = -np.mean(np.log(masses))
    expected = mean_ahead(own[:, 0], 2) + mean_ahead(own[:, 1], 8)
    assert np.allclose(found, expected, rtol=1e-4, equal_nan=True)


def test_readings_that_are_not_known_do_not_count():
    rows = np.concatenate([np.zeros(40), np.full(5, 9.0), np.zeros(5), [9.0]])[:, None]
    rows[:40] += np.random.default_rng(0).normal(size=(40, 1))
    recent = RecentReadings(1)
    recent.append(rows)
    recent.learn(0, len(rows), is_known=True)
    recent.weigh(40)
    heard = recent.surprise(50, 51).sum()
    recent.learn(40, 45, is_known=False)
    assert recent.surprise(50, 51).sum() > heard + 1


def test_too_few_readings_have_no_surprise():
    recent = RecentReadings(1)
    recent.append(np.arange(40.0)[:, None])
    recent.learn(0, 40, is_known=True)
    found = recent.surprise(0, 40).sum(axis=1)
    first = int(LENGTHS[-1]) - 1 + LEAST
    assert np.isnan(found[:first]).all()
    assert not np.isnan(found[first:]).any()


def test_only_last_readings_are_held():
    recent = RecentReadings(1)
    for _ in range(5):
        recent.append(np.zeros((2000, 1)))
        recent.keep_last(MOST_HELD)
    assert len(recent.is_known) == recent.values.shape[1] == KNOWN + int(LENGTHS[-1])


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=30))
def test_typical_distance_is_positive_and_follows_scale(numbers):
    values = np.array(numbers, float)
    distance = typical_distance(values)
    assert distance > 0
    if len(set(numbers)) > 1:
        assert typical_distance(4 * values) == pytest.approx(4 * distance)


@given(st.lists(st.one_of(st.floats(-9, 9), st.just(np.nan)), max_size=20), st.integers(1, 25))
def test_mean_ahead_matches_slices(numbers, n):
    values = np.array(numbers, float)
    expected = [
        part[~np.isnan(part)].mean() if (~np.isnan(part)).any() else np.nan
        for part in (values[i : i + n] for i in range(len(values)))
    ]
    assert np.allclose(mean_ahead(values, n), np.array(expected, float), equal_nan=True)
