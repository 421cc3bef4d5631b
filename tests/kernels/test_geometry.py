"""Containment, distances and volume shares of boxes, at edges and extremes."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from compiled import all_from_python, from_python
from reference import naive

from polyaforest.kernels import geometry as helpers

pytestmark = pytest.mark.plain

NAMES = "contains contains_live extension linear_dimension log_live_share log_volume"
geometry = SimpleNamespace(log_share=from_python(helpers.log_share))
for name, function in vars(all_from_python(helpers, *NAMES.split())).items():
    setattr(geometry, name, partial(lambda call, *args: call(*args, 0), function))  # no categories

BOX = np.array([[0.0, -1.0, 2.0]]), np.array([[1.0, 1.0, 2.0]])  # the third dimension has collapsed
NO_BOX = np.empty((1, 0)), np.empty((1, 0))
UNIT = np.ones(3)


def row(*values):
    return np.array([values], np.float64)


@pytest.mark.parametrize(
    ("x", "in_box", "in_live"),
    [
        (row(0.5, 0.0, 2.0), True, True),
        (row(0.0, -1.0, 2.0), True, True),
        (row(1.0, 1.0, 2.0), True, True),
        (row(0.5, 0.0, 2.1), False, True),
        (row(0.5, 0.0, -5.0), False, True),
        (row(np.nextafter(1.0, 2.0), 0.0, 2.0), False, False),
        (row(0.5, np.nextafter(-1.0, -2.0), 2.0), False, False),
    ],
)
def test_boxes_are_closed_and_collapsed_dimensions_restrict_only_the_whole_box(x, in_box, in_live):
    assert geometry.contains(*BOX, 0, x, 0) == in_box
    assert geometry.contains_live(*BOX, 0, x, 0) == in_live


def test_box_without_dimensions_contains_everything_at_distance_zero():
    x = row(1e300, -1e300)
    assert geometry.contains(*NO_BOX, 0, x, 0)
    assert geometry.contains_live(*NO_BOX, 0, x, 0)
    assert geometry.extension(*NO_BOX, 0, np.ones(2), x, 0) == 0
    assert geometry.linear_dimension(NO_BOX[0][0], NO_BOX[1][0], np.ones(2)) == 0
    assert geometry.log_volume(NO_BOX[0][0], NO_BOX[1][0]) == 0


def test_point_box_contains_only_its_point_but_restricts_nothing():
    point = row(3.0, 4.0)
    assert geometry.contains(point, point, 0, point, 0)
    assert not geometry.contains(point, point, 0, row(3.0, 4.5), 0)
    assert geometry.contains_live(point, point, 0, row(-9.0, 9.0), 0)
    assert geometry.linear_dimension(point[0], point[0], np.ones(2)) == 0
    assert geometry.log_volume(point[0], point[0]) == 0
    assert geometry.extension(point, point, 0, np.ones(2), row(1.0, 5.0), 0) == 3


@pytest.mark.parametrize(
    ("x", "distance"),
    [(row(0.5, 0.0, 2.0), 0), (row(-2.0, 0.0, 2.0), 2), (row(0.5, 3.0, 2.0), 2), (row(2.0, -3.0, 5.0), 6)],
)
def test_extension_sums_distances_over_sides(x, distance):
    assert geometry.extension(*BOX, 0, UNIT, x, 0) == distance


def test_extension_weighs_features_and_ignores_zero_weights():
    assert geometry.extension(*BOX, 0, np.array([3.0, 0.0, 0.5]), row(2.0, 99.0, 4.0), 0) == 4


@pytest.mark.parametrize("n_features", [1, 2, 3, 4, 5, 7, 8, 9, 400])
def test_extension_matches_reference_for_any_number_of_features(n_features):
    rng = np.random.default_rng(n_features)
    lower, weights, x = rng.normal(size=(2, n_features)), rng.random(n_features), 3 * rng.normal(size=(2, n_features))
    upper = lower + rng.random((2, n_features))
    for j in range(2):
        box = [naive.side(a, b) for a, b in zip(lower[j].tolist(), upper[j].tolist(), strict=True)]
        expected = naive.extension(box, weights.tolist(), x[1 - j].tolist())
        assert geometry.extension(lower, upper, j, weights, x, 1 - j) == pytest.approx(expected, rel=1e-13)


def test_extension_is_the_growth_of_the_linear_dimension():
    x = row(4.0, 0.0, -1.0)
    grown = np.minimum(BOX[0], x), np.maximum(BOX[1], x)
    before, after = (geometry.linear_dimension(low[0], high[0], UNIT) for low, high in (BOX, grown))
    assert before + geometry.extension(*BOX, 0, UNIT, x, 0) == after


@pytest.mark.parametrize(
    ("low", "high", "box_low", "box_high"),
    [
        (0.0, 1.0, 0.0, 1.0),
        (0.0, 1.0, 0.25, 0.5),
        (0.0, 1.0, 0.0, 1.0 - 2.0**-53),
        (0.0, 1.0, 2.0**-60, 1.0),
        (0.0, 1.0, 0.5, np.nextafter(0.5, 1.0)),
        (-1e300, 1e300, -1e-300, 1e-300),
        (-1e300, 1e300, -1e300, 1e299),
        (0.0, 1e-300, 0.0, 5e-301),
        (1.7e9, 1.7e9 + 1, 1.7e9 + 0.25, 1.7e9 + 0.75),
        (1.0, 1.0 + 2.0**-51, 1.0, 1.0 + 2.0**-52),
    ],
)
def test_log_share_is_exact_near_zero_and_one(low, high, box_low, box_high):
    share = naive.side(box_low, box_high).length / naive.side(low, high).length
    left_out = 1 - share
    result = geometry.log_share(low, high, box_low, box_high)
    assert result == pytest.approx(naive.log(share), rel=1e-12, abs=1e-300)
    assert -math.expm1(result) == pytest.approx(float(left_out), rel=1e-12, abs=0)


def test_log_live_share_uses_side_of_cut_and_skips_collapsed_dimensions():
    lower, upper = np.array([0.0, 0.0, 0.0]), np.array([1.0, 2.0, 5.0])
    box = np.array([0.1, 0.5, 3.0]), np.array([0.2, 1.5, 3.0])
    left = geometry.log_live_share(lower, upper, 0, 0.4, True, *box)
    right = geometry.log_live_share(lower, upper, 0, 0.05, False, *box)
    whole = geometry.log_live_share(lower, upper, -1, 0.0, True, *box)
    half = Fraction(1, 2)
    assert left == pytest.approx(naive.log(Fraction(1, 4) * half))
    assert right == pytest.approx(naive.log(Fraction(10, 95) * half))
    assert whole == pytest.approx(naive.log(Fraction(1, 10) * half))


def test_point_fills_its_region():
    point = np.array([0.3, 0.3])
    assert geometry.log_live_share(np.zeros(2), np.ones(2), 0, 0.5, True, point, point) == 0


def test_volumes_do_not_underflow_in_hundreds_of_dimensions():
    lower, upper = np.zeros(400), np.full(400, 1e-300)
    assert geometry.log_volume(lower, upper) == pytest.approx(400 * math.log(1e-300))
    assert geometry.log_live_share(lower, np.full(400, 1e300), -1, 0.0, True, lower, upper) == pytest.approx(
        -400 * 600 * math.log(10)
    )
