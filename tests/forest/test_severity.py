"""Severity: tail bits by a model of the tail, grades and certainty."""

from math import inf, isnan, log2, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyaforest import BatchMPF, StreamingMPF
from polyaforest.forest.calibration import RunningCalibration
from polyaforest.forest.grades import GRADES, severity
from polyaforest.forest.severity import bits_of, certainty, tail_bits
from polyaforest.forest.thresholds import Detections, ThresholdPolicy

SCORES = np.sort(np.log(np.arange(1, 1001) / 1000))  # exponential


@given(st.lists(st.floats(-1e6, 0), min_size=1, max_size=80), st.floats(-1e9, 1), st.floats(0, 1e9))
def test_bits_and_grades_never_fall_as_scores_fall(known, score, lower):
    ascending = np.sort(known)
    high, low = bits_of(score, ascending), bits_of(score - lower, ascending)
    assert 0 <= high <= low
    assert severity(high) <= severity(low)
    assert severity(low) in GRADES


def test_grades_are_powers_of_ten():
    rows = [999, 1_000, 9_999, 10_000, 99_999, 100_000, 999_999, 1_000_000]
    assert [severity(log2(n)) for n in rows] == [1, 2, 2, 3, 3, 4, 4, 5]
    assert severity(inf) == 5
    assert severity(nan) is None


@pytest.mark.parametrize("draw", ["exponential", "heavier", "counts"])
def test_model_does_not_overstate_the_rarity_of_normal_rows(draw):
    rng = np.random.default_rng(0)
    draws = {
        "exponential": lambda n: -rng.exponential(size=n),
        "heavier": lambda n: -rng.weibull(0.7, size=n),
        "counts": lambda n: -rng.geometric(0.3, size=n).astype(float),
    }
    known, new = np.sort(draws[draw](2_000)), draws[draw](200_000)
    bits = tail_bits(new, np.ones(len(new), bool), known)
    for least in (6, 8, 10, 12, 14):
        assert (bits >= least).sum() <= 3 * len(new) * 2.0**-least + 5


def test_ties_do_not_support_a_tail():
    constant = np.full(999, -2.0)
    assert bits_of(-900.0, constant) == pytest.approx(log2(1000))
    assert bits_of(-2.0, constant) == 0.0
    assert bits_of(-900.0, constant[:20]) == pytest.approx(log2(21))
    assert isnan(bits_of(-900.0, []))


def test_certainty_depends_on_the_number_of_rows():
    assert [certainty(14.0, n) for n in (100, 5_000, 50_000)] == ["certain", "likely", "borderline"]
    assert certainty(nan, 10) == "borderline"


def test_only_flagged_rows_have_tail_bits():
    calibration = RunningCalibration(1000)
    scores = np.append(SCORES, [-40.0, -0.5])
    found = calibration.judge_then_learn(scores, np.arange(1002), ThresholdPolicy())
    assert np.isnan(found.tail_bits).tolist() == (~found.is_anomaly).tolist()
    assert found.tail_bits[1000] > 10
    again = calibration.judge(np.array([-40.0, -0.5]), ThresholdPolicy())
    assert again.tail_bits[0] > 10
    assert isnan(again.tail_bits[1])


@pytest.mark.parametrize("detector", [StreamingMPF, BatchMPF])
def test_detectors_return_tail_bits(detector):
    rows = np.random.default_rng(1).normal(size=(400, 2))
    found = detector(n_estimators=20, random_state=0).fit(rows).detect(np.array([[90.0, 90.0], [0.0, 0.0]]))
    assert found.is_anomaly.tolist() == [True, False]
    assert found.tail_bits[0] > 6
    assert isnan(found.tail_bits[1])


def test_results_are_joined_and_selected_with_their_bits():
    part = Detections(np.zeros(2), np.ones(2), np.zeros(2, bool), np.zeros(2), tail_bits=np.array([nan, 12.0]))
    plain = Detections(np.zeros(1), np.ones(1), np.zeros(1, bool), np.zeros(1))
    joined = Detections.joined([part, plain])
    assert joined.tail_bits[1] == 12.0
    assert len(joined.tail_bits) == 3
    assert joined.select(np.array([1])).tail_bits.tolist() == [12.0]
    assert part.row(1).tail_bits.tolist() == [12.0]
    assert not len(Detections.joined([plain, plain]).tail_bits)
