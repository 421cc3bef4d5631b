"""The automatic threshold: always a few rows, and all that lie far beyond the bulk."""

import numpy as np
import pytest

from polyaforest.thresholds import AUTO_RATE, AUTO_SHARE, auto_threshold, end_of_tail

BULK = -np.random.default_rng(0).exponential(size=4000)


@pytest.mark.parametrize("rate", [0.001, 0.01, 0.1])
def test_an_exponential_tail_ends_where_it_holds_the_rate(rate):
    # quantiles of Exp(1), so that only the rule is judged and not a sample
    scores = np.log(np.arange(0.5, 10_000) / 10_000)
    assert (scores < end_of_tail(scores, rate)).mean() == pytest.approx(rate, rel=0.01)


@pytest.mark.parametrize(("shift", "scale"), [(0, 1), (-7, 1), (3, 20), (100, 1e-6)])
def test_the_line_moves_with_the_scores(shift, scale):
    assert auto_threshold(shift + scale * BULK) == pytest.approx(shift + scale * auto_threshold(BULK), rel=1e-9)


def test_a_light_tail_still_gives_up_its_lowest_hundredth():
    scores = np.linspace(0, 1, 1001)
    assert end_of_tail(scores, AUTO_RATE) < 0
    assert auto_threshold(scores) == pytest.approx(AUTO_SHARE)


def test_rows_far_below_the_bulk_are_flagged_however_many_they_are():
    far = np.full(400, -50.0)
    line = auto_threshold(np.concatenate([BULK, far]))
    assert line > -50
    assert np.mean(line > BULK) < 2 * AUTO_SHARE


def test_a_few_anomalies_hardly_move_the_line_of_the_tail():
    with_anomalies = np.concatenate([BULK, np.full(40, -1e6)])
    assert end_of_tail(with_anomalies, AUTO_RATE) == pytest.approx(end_of_tail(BULK, AUTO_RATE), rel=0.05)


def test_scores_that_are_all_equal_flag_no_row():
    scores = np.full(50, -2.5)
    assert not (scores < auto_threshold(scores)).any()


def test_ties_down_to_the_quartile_leave_room_for_a_tail():
    scores = np.concatenate([np.zeros(90), np.linspace(-2, -0.1, 9), [-100.0]])
    line = auto_threshold(scores)
    assert -100 < line < 0


def test_one_score_is_not_below_its_own_line():
    assert auto_threshold(np.array([-3.0])) <= -3.0


def test_scores_of_minus_infinity_do_not_spoil_the_line():
    scores = np.concatenate([BULK, [-np.inf]])
    assert auto_threshold(scores) == pytest.approx(auto_threshold(BULK), rel=0.01)
    mostly = np.concatenate([BULK[:10], np.full(90, -np.inf)])
    assert np.isfinite(auto_threshold(mostly))
    assert auto_threshold(np.full(5, -np.inf)) == -np.inf
