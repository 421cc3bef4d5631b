"""The area under the precision-recall-gain curve, by hand and by brute force."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.shared.metrics import auc, auprg, average_precision, hits


@st.composite
def ranked(draw):
    """Labels of both kinds, and scores with many ties."""
    labels = draw(st.lists(st.integers(0, 1), min_size=2, max_size=25).filter(lambda y: 0 < sum(y) < len(y)))
    scores = draw(st.lists(st.integers(0, 8), min_size=len(labels), max_size=len(labels)))
    return np.array(labels), np.array(scores, float)


def integrated(y: np.ndarray, score: np.ndarray) -> Fraction:
    """The area from the definition of gains, piece by piece in exact fractions.

    Each step from a threshold to the next is a straight line in numbers of rows, and so in gains.
    """
    n, positives = len(y), int(y.sum())
    share = Fraction(positives, n)

    def gain(value: Fraction) -> Fraction:
        return (value - share) / ((1 - share) * value)

    def gains(true: Fraction, false: Fraction) -> tuple[Fraction, Fraction]:
        precision, recall = true / (true + false), true / positives
        return gain(precision), gain(recall)

    area, true, false = Fraction(0), Fraction(0), Fraction(0)
    for threshold in sorted(set(score), reverse=True):
        next_true, next_false = (
            Fraction(int(y[score >= threshold].sum())),
            Fraction(int((1 - y[score >= threshold]).sum())),
        )
        begin = max(true, share * positives)  # a recall of `share` has gain 0
        if next_true > begin:
            false_at_begin = false + (next_false - false) * (begin - true) / (next_true - true)
            (high, left), (low, right) = gains(begin, false_at_begin), gains(next_true, next_false)
            area += (right - left) * (high + low) / 2
        true, false = next_true, next_false
    return area


def test_hits_count_equal_scores_together():
    found, false = hits([1, 0, 1, 0, 0], [3.0, 2.0, 2.0, 1.0, 2.0])
    assert found.tolist() == [0, 1, 2, 2]
    assert false.tolist() == [0, 0, 2, 3]


def test_a_perfect_ranking_has_area_one():
    assert auprg([0, 1, 0, 1, 0], [1, 9, 2, 8, 3]) == pytest.approx(1.0)
    assert auprg([0, 1, 0, 1, 0], [1, 9, 2, 9, 1]) == pytest.approx(1.0)


@pytest.mark.parametrize("y", [[0, 1], [0, 0, 0, 1], [1, 1, 1, 0, 0]])
def test_equal_scores_have_area_zero(y):
    assert auprg(y, np.ones(len(y))) == pytest.approx(0.0, abs=1e-12)


def test_an_area_worked_by_hand():
    # Order + − + −: π = 1/2, gains are 1 − false/found and 1 − missed/found. Recall gain is 0 at one anomaly found,
    # where precision gain steps from 1 to 0; it is 1 − 1/2 when both are found.
    assert auprg([1, 0, 1, 0], [4, 3, 2, 1]) == pytest.approx(1 / 4)


def test_another_area_worked_by_hand():
    # Order − + − + + −, a tie of the third and fourth: (found, false) run (0, 0) (0, 1) (1, 1) (2, 2) (3, 2) (3, 3),
    # π = 1/2 as before, so recall gain is 0 at 3/2 found, 3/2 false, where precision gain is 0; (2, 2) has gains
    # (1/2, 0) for recall and precision, (3, 2) has (1, 1/3): the area is 1/2 · 1/6.
    assert auprg([0, 1, 0, 1, 1, 0], [6, 5, 4, 4, 3, 2]) == pytest.approx(1 / 12)


def test_the_curve_may_start_between_no_anomaly_and_the_first():
    # Order − + − − : π = 1/4, recall gain is 0 at 1/4 found and 1 false, where precision gain is 1 − 4/3 = −1/3;
    # it is 1 at one found, where precision gain is 1 − 1/3.
    assert auprg([0, 1, 0, 0], [4, 3, 2, 1]) == pytest.approx((-1 / 3 + 2 / 3) / 2)


@given(ranked())
def test_the_area_equals_numerical_integration(data):
    y, score = data
    assert auprg(y, score) == pytest.approx(float(integrated(y, score)), abs=1e-9)


@given(ranked())
def test_only_the_order_of_the_scores_counts(data):
    y, score = data
    assert auprg(y, np.exp(score) - 5) == pytest.approx(auprg(y, score), abs=1e-12)
    assert auprg(y, score**3 / 7) == pytest.approx(auprg(y, score), abs=1e-12)


@given(ranked(), st.randoms(use_true_random=False))
def test_the_order_of_the_rows_does_not_count(data, random):
    y, score = data
    order = random.sample(range(len(y)), len(y))
    assert auprg(y[order], score[order]) == pytest.approx(auprg(y, score), abs=1e-12)


@given(ranked())
def test_no_area_exceeds_one(data):
    assert auprg(*data) <= 1 + 1e-12


@pytest.mark.parametrize(
    ("y", "score", "message"),
    [
        ([1, 1], [1.0, 2.0], "both must occur"),
        ([0, 2], [1.0, 2.0], "labels must be 0 and 1"),
        ([0, 1], [1.0, np.nan], "not a number"),
        ([0, 1], [1.0], "one score per label"),
    ],
)
def test_invalid_input_raises(y, score, message):
    with pytest.raises(ValueError, match=message):
        auprg(y, score)


def test_auc_is_the_share_of_pairs_in_order_and_ties_are_half():
    assert auc([1, 0, 1, 0], [4, 3, 3, 1]) == pytest.approx((1 + 1 + 0.5 + 1) / 4)


def test_average_precision_is_the_mean_precision_where_anomalies_are_found():
    assert average_precision([1, 0, 1, 0], [4, 3, 2, 1]) == pytest.approx((1 + 2 / 3) / 2)
