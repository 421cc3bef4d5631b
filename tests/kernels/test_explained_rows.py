"""Explanations and novelty of series, computed by the kernels in plain Python and compared with slow definitions."""

import numpy as np
import pytest

from polyaforest import BatchMPF, StreamingMPF
from polyaforest.kernels.contexts import fill_novelties

pytestmark = pytest.mark.plain
ROWS = np.random.default_rng(5).normal(size=(60, 2))
ODD = np.array([[9.0, 0.1]])


@pytest.mark.parametrize("score", ["typicality", "log_mass"])
@pytest.mark.parametrize("detector", [StreamingMPF, BatchMPF])
def test_the_odd_feature_is_beyond_a_bound_on_its_side(detector, score):
    forest = detector(n_estimators=3, score_type=score, random_state=0).fit(ROWS)
    explanation = forest.explain(ODD)[0]
    first = explanation.attributions[0]
    assert (first.name, first.side) == ("x0", "high")
    assert first.usual[0] < first.usual[1] < 9.0
    assert "x0" in str(explanation)


def novelty(values, begin, step, most, least):
    """Return the novelty of a step of one channel by its definition; NaN if it has too few values before it."""
    before = values[max(begin, step - most) : step]
    before = before[~np.isnan(before)]
    if len(before) < least or np.isnan(values[step]):
        return np.nan
    nearest, spread = np.abs(before - values[step]).min(), before.max() - before.min()
    return 0.0 if nearest * 4096 <= spread else nearest / (nearest + spread)


def test_novelty_is_the_distance_to_the_nearest_of_the_last_values():
    values = np.random.default_rng(6).normal(size=(2, 40)).cumsum(axis=1)
    values[0, [12, 20, 21]] = np.nan
    values[1, 30] = 40.0
    begin, end, most, least = 2, 10, 9, 4
    known = values[:, begin:end]
    ranges = np.column_stack([(~np.isnan(known)).sum(axis=1), np.nanmin(known, axis=1), np.nanmax(known, axis=1)])
    found = np.full(30, np.nan)
    fill_novelties(values, begin, end, most, least, 0.5, ranges, found)
    wanted = [
        np.nanmax([0.5 * novelty(channel, begin, step, most, least) for channel in values]) for step in range(end, 40)
    ]
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
    last = values[:, 40 - most :]
    np.testing.assert_allclose(ranges[:, 1:], np.column_stack([np.nanmin(last, axis=1), np.nanmax(last, axis=1)]))
