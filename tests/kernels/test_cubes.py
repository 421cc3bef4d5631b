"""Cubes of categories, in kernels and in NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from compiled import all_from_python
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from reference import naive

from polyaforest.forest.calibration import as_beyond, boxes_without
from polyaforest.forest.spec import weighting_of_domain, weighting_of_rows, weighting_of_sample
from polyaforest.forest.survey import ColumnBounds, answers_of
from polyaforest.kernels import boxes, geometry
from polyaforest.kernels import cubes as helpers
from polyaforest.kernels.arrays import ALL_YES, QUESTIONS

pytestmark = pytest.mark.plain

NAMES = "length distance meet join says_no low_side high_side choose_question live_questions new_questions"
cubes = all_from_python(helpers, *NAMES.split())
whole = all_from_python(geometry, "contains", "contains_live", "extension", "linear_dimension", "log_volume")

codes = st.integers(0, 2**QUESTIONS - 1) | st.sampled_from([0, 1, 2 ** (QUESTIONS - 1), 2**QUESTIONS - 1])
tables = st.lists(codes, min_size=1, max_size=6)


def cube_of(given_codes):
    cube = naive.hull_of([naive.Category(code) for code in given_codes])
    return cube, (float(cube.every), float(cube.some))


@given(tables, codes)
def test_length_counts_live_questions_and_distance_counts_new_answers(held, code):
    cube, ends = cube_of(held)
    assert cubes.length(*ends) == len(cube.live) / 26
    assert cubes.distance(*ends, float(code)) == len(cube.new(code)) / 26
    assert cubes.length(*cube_of([*held, code])[1]) == pytest.approx(cube.extent + cube.distance(code))
    for known in held:
        assert cubes.distance(*ends, float(known)) == 0


def test_missing_category_is_at_distance_zero():
    assert cubes.distance(0.0, 0.0, math.nan) == 0
    assert cubes.new_questions(3.0, 7.0, math.nan) == 0


@given(codes, codes)
def test_hull_is_meet_and_join(a, b):
    assert cubes.meet(float(a), float(b)) == a & b
    assert cubes.join(float(a), float(b)) == a | b


@given(tables, st.integers(0, QUESTIONS - 1))
def test_question_sends_no_left_and_splits_the_cube(held, question):
    cube, (low, high) = cube_of(held)
    for code in held:
        assert cubes.says_no(float(code), float(question)) == (not code >> question & 1)
    no, yes = cube.parts(question)
    assert (low, cubes.low_side(high, float(question))) == (no.low, no.high)
    assert (cubes.high_side(low, float(question)), high) == (yes.low, yes.high)


@given(codes.filter(bool), st.floats(0, 1, exclude_max=True))
def test_questions_are_equally_long(questions, share):
    numbers = naive.questions_in(questions)
    place = share * len(numbers) / 26
    assert cubes.choose_question(questions, place) in numbers[max(int(share * len(numbers)) - 1, 0) :][:3]
    assert cubes.choose_question(questions, 0.0) == numbers[0]
    assert cubes.choose_question(questions, 99.0) == numbers[-1]  # rounding may lead beyond the last


@given(tables, codes, st.booleans())
def test_boxes_of_numbers_and_categories(held, code, is_inside):
    cube, (low, high) = cube_of(held)
    lower, upper = np.array([[0.0, low]]), np.array([[2.0, high]])
    x, weights = np.array([[1.0 if is_inside else 3.0, float(code)]]), np.array([0.5, 2.0])
    assert whole.contains(lower, upper, 0, x, 0, 1) == (is_inside and cube.holds(code))
    assert whole.contains_live(lower, upper, 0, x, 0, 1) == is_inside  # a cube restricts nothing
    expected = (0.0 if is_inside else 0.5) + 2 * cube.distance(code)
    assert whole.extension(lower, upper, 0, weights, x, 0, 1) == pytest.approx(expected)
    assert whole.linear_dimension(lower[0], upper[0], weights, 1) == pytest.approx(1.0 + 2 * cube.extent)
    assert whole.log_volume(lower[0], upper[0], 1) == math.log(2.0)
    assert_array_equal(
        boxes.distances(np.stack([lower[0], upper[0]]), x, 1), [[0.0 if is_inside else 1.0, cube.distance(code)]]
    )
    assert boxes.are_within(x, np.stack([lower[0], upper[0]]), 1)[0] == (is_inside and cube.holds(code))


@given(tables, tables)
def test_numpy_boxes_match_reference(one, other):
    box, more = (boxes.bounding_box(np.array(held, np.float64)[:, None], 1) for held in (one, other))
    assert tuple(box[:, 0]) == cube_of(one)[1]
    assert_array_equal(boxes.hull(box, more, 1)[:, 0], cube_of([*one, *other])[1])
    assert_array_equal(boxes.hull(boxes.empty_box(1, 1), box, 1), box)
    assert_array_equal(boxes.hull(boxes.whole_cube(1), box, 1), boxes.whole_cube(1))


@given(codes)
def test_count_bits_counts_ones(code):
    assert boxes.count_bits(np.array([code]))[0] == code.bit_count()


def test_is_code_accepts_valid_codes_only():
    values = [0.0, 5.0, ALL_YES, ALL_YES + 1, -1.0, 0.5, np.nan, np.inf, -np.inf]
    assert boxes.is_code(np.array(values)).tolist() == [True] * 3 + [False] * 6


# ---- what a fit knows of categories ----------------------------------------------------------------------------------


@given(st.lists(codes | st.none(), max_size=7), st.integers(0, 7))
def test_answers_without_a_row_match_the_other_rows(given_codes, split):
    column = np.array([np.nan if code is None else code for code in given_codes], np.float64).reshape(-1, 1)
    ids = np.arange(len(column))
    facts = ColumnBounds.of(column, ids, 1)
    parts = ColumnBounds.of(column[:split], ids[:split], 1) + ColumnBounds.of(column[split:], ids[split:], 1)
    assert_array_equal(parts.lowest, facts.lowest)
    assert_array_equal(parts.highest, facts.highest)
    assert_array_equal(np.concatenate([facts.lowest, facts.highest]), answers_of(column))
    known = [code for code in given_codes if code is not None]
    if known:
        assert tuple(facts.box[:, 0]) == cube_of(known)[1]
    for place, code in enumerate(known):
        others = known[:place] + known[place + 1 :]
        if len(others) < 2:  # of two, either may be the only one: then the box is that of the row itself
            continue
        found = boxes_without(np.array([[float(code)]]), facts.lowest, facts.highest, 1)[:, 0, 0]
        assert tuple(found) == cube_of(others)[1]


@given(st.lists(codes, min_size=3, max_size=6))
def test_left_out_row_is_as_far_from_domain_as_from_other_rows(held):
    rows = np.array(held, np.float64)[:, None]
    facts, domain = ColumnBounds.of(rows, np.arange(len(rows)), 1), boxes.bounding_box(rows, 1)
    moved = as_beyond(rows, boxes_without(rows, facts.lowest, facts.highest, 1), domain, 1)
    room = QUESTIONS - len(cube_of(held)[0].live)
    for place, code in enumerate(held):
        apart = len(cube_of(held[:place] + held[place + 1 :])[0].new(code))
        assert boxes.distances(domain, moved[[place]], 1)[0, 0] == min(apart, room) / 26
        asked = int(moved[place, 0]) ^ code  # no cut asks what all answer alike
        assert asked & (int(domain[0, 0]) ^ int(domain[1, 0])) == 0


# ---- weights ---------------------------------------------------------------------------------------------------------


def test_weight_of_categories_depends_on_number_and_diversity():
    rng = np.random.default_rng(0)
    first, second = rng.integers(0, 2**QUESTIONS, 2).astype(float)
    answers, ids = np.tile([first, second], 50), rng.integers(0, 2**QUESTIONS, 100).astype(float)
    rare = np.append(np.full(99, first), second)
    weighting = weighting_of_rows(np.column_stack([answers, ids, rare, np.full(100, first)]), 4)
    assert 4 * weighting.deviation == pytest.approx([0.5, 0.99, 0.0198, 0.0])
    assert weighting.spread[0] == pytest.approx(np.sqrt(1.04))
    assert weighting.spread[1] == pytest.approx(np.sqrt(101))  # ids get a share of the cuts that falls as they come
    assert weighting.spread[2:] == pytest.approx([1.0, 1.0], abs=0.01)  # rare and constant ones are noticed


def test_category_constant_in_the_sample_still_has_weight():
    sample, box = np.full((10, 1), 5.0), np.array([[4.0], [7.0]])
    assert weighting_of_sample(sample, box, 1).deviation == pytest.approx([0.025])


def test_weighting_of_domain_uses_the_cube():
    domain = np.array([[0.0, 1.0, 6.0], [4.0, 7.0, 6.0]])
    weighting = weighting_of_domain(domain, 2)
    assert weighting.deviation == pytest.approx([4.0, 2 / 26, 0.0])
    assert weighting.spread == pytest.approx([4.0, 2 / 26, 1.0])
