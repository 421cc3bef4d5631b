"""Numbers at the ends of what floats can hold."""

import numpy as np
import pytest

from polyaforest import StreamingMPF


@pytest.mark.parametrize("value", [0.1, 1e-300, 1e300])
@pytest.mark.parametrize("n", [5, 6, 7])
def test_rounding_does_not_give_a_constant_column_a_spread(value, n):
    forest = StreamingMPF(n_estimators=5, random_state=0).fit(np.full((n, 1), value))
    assert (forest.forest_.weights[:, 0] * value < 100).all()


def test_columns_of_subnormal_spread_do_not_overflow_the_weights():
    rows = np.random.default_rng(0).normal(size=(50, 2)) * [1.0, 1e-310]
    forest = StreamingMPF(n_estimators=20, random_state=0).fit(rows)
    assert np.isfinite(forest.forest_.weights).all()
    assert (forest.forest_.size > 1).all()


def test_density_outside_is_finite_when_sides_differ_by_more_than_floats_can_divide():
    rows = [[0.0, 0.0], [0.0, 0.0], [9e8, 1e-300]]
    forest = StreamingMPF(n_estimators=2, max_samples=None, feature_weights=None, random_state=0).fit(rows)
    assert np.isfinite(forest.log_density([[1e9, 0.0]])).all()


def test_mass_at_time_zero_is_whole_even_at_infinite_distance():
    rows = np.random.default_rng(0).normal(size=(20, 1)) * 1e-200
    forest = StreamingMPF(n_estimators=3, random_state=0).fit(rows)
    assert forest.mass([[1e200]], lifetime=0.0) == pytest.approx(1, abs=0.01)


def test_a_gap_too_small_to_be_a_share_of_its_side_still_has_mass():
    forest = StreamingMPF(n_estimators=30, max_samples=None, feature_weights=[1.0, 1.0], random_state=0)
    forest.fit([[0.0, 0.0], [1e-30, 1.0], [1e300, 0.5], [2e-30, 0.7]])
    assert (forest.tree_masses([[0.5e-30, 0.5]]) > 0).all()
