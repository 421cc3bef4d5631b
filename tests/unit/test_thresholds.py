"""Lines on scores: the automatic one, and those that mean a rate of false alarms or of false discoveries."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyaforest.decision.thresholds import (
    AUTO_RATE,
    AUTO_SHARE,
    RunningCalibration,
    auto_threshold,
    benjamini_hochberg,
    conformal_p_values,
    conformal_threshold,
    end_of_tail,
    least_calibration,
)

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


# ---- p-values ------------------------------------------------------------------------------------------------------

# few different values, so that ties are common; minus infinity is the logarithm of no mass
scores = st.sampled_from([-np.inf, -2.5, -0.0, 0.0, 1.0, 1.5, 7.0]) | st.floats(-10, 10)
some_scores = st.lists(scores, min_size=1, max_size=30).map(np.array)
rates = st.sampled_from([0.01, 0.05, 0.1, 1 / 7, 0.3, 1 / 3, 0.5, 0.9]) | st.floats(0.01, 0.99)


def plain_p_value(score, calibration):
    return (1 + sum(other <= score for other in calibration)) / (len(calibration) + 1)


@given(some_scores, st.lists(scores, max_size=30).map(np.array))
def test_p_values_count_those_not_above_and_the_score_itself(new, calibration):
    assert conformal_p_values(new, calibration).tolist() == [plain_p_value(score, calibration) for score in new]


def test_without_calibration_nothing_is_surprising():
    assert conformal_p_values(np.array([-1e9, 0.0]), np.empty(0)).tolist() == [1.0, 1.0]


def test_ties_count_against_surprise():
    assert conformal_p_values(np.array([2.0]), np.full(9, 2.0)) == [1.0]


@pytest.mark.parametrize(
    ("alpha", "needed"), [(0.5, 1), (0.1, 9), (0.05, 19), (0.01, 99), (0.001, 999), (0.3, 3), (1 / 3, 2), (0.99, 1)]
)
def test_so_many_scores_are_needed(alpha, needed):
    assert least_calibration(alpha) == needed


@given(st.integers(1, 10_000) | st.floats(1e-6, 0.999))
def test_no_fewer_scores_would_do(inverse):
    alpha = inverse if isinstance(inverse, float) else 1 / (inverse + 1)
    n = least_calibration(alpha)
    assert conformal_p_values(np.array([-1.0]), np.zeros(n))[0] <= alpha
    assert conformal_p_values(np.array([-1.0]), np.zeros(n - 1))[0] > alpha


def test_the_least_rate_of_all_has_an_answer():
    assert least_calibration(5e-324) > 1e300


@given(some_scores, some_scores, rates)
def test_below_the_line_is_where_p_values_are_small(new, calibration, alpha):
    if len(calibration) < least_calibration(alpha):
        with pytest.raises(ValueError, match=f"at least {least_calibration(alpha)} scores"):
            conformal_threshold(calibration, alpha)
        return
    line = conformal_threshold(calibration, alpha)
    for asked in (new, calibration):  # its own scores lie on the line, or tie with it
        assert ((asked < line) == (conformal_p_values(asked, calibration) <= alpha)).all()


def test_too_few_scores_are_refused_with_the_number_needed():
    with pytest.raises(ValueError, match=r"rate of 0\.001 needs at least 999 scores to calibrate with; there are 500"):
        conformal_threshold(np.arange(500.0), 0.001)
    assert conformal_threshold(np.arange(999.0), 0.001) == 0.0


# ---- false discoveries ---------------------------------------------------------------------------------------------


def plain_discoveries(p_values, rate):
    """Every k in turn, by the definition."""
    m, flagged = len(p_values), [False] * len(p_values)
    for k in range(1, m + 1):
        if sorted(p_values)[k - 1] <= rate * k / m:
            flagged = [p <= sorted(p_values)[k - 1] for p in p_values]
    return flagged


@given(st.lists(st.sampled_from([0.01, 0.02, 0.05, 0.5, 1.0]) | st.floats(0, 1), max_size=20).map(np.array), rates)
def test_discoveries_are_those_of_the_definition(p_values, rate):
    found = benjamini_hochberg(p_values, rate)
    assert found.dtype == bool
    assert found.tolist() == plain_discoveries(p_values.tolist(), rate)


def test_a_step_up_takes_in_p_values_that_are_not_small_by_themselves():
    assert benjamini_hochberg(np.array([0.09, 0.08, 0.07, 0.1]), 0.1).all()
    assert not benjamini_hochberg(np.array([0.09, 0.8, 0.7, 0.6]), 0.1).any()


def test_nothing_to_discover():
    assert benjamini_hochberg(np.empty(0), 0.1).shape == (0,)
    assert not benjamini_hochberg(np.ones(5), 0.1).any()


# ---- running calibration -------------------------------------------------------------------------------------------


@given(
    some_scores, st.integers(1, 12), st.lists(st.integers(0, 30), max_size=4), st.sets(st.integers(0, 40), max_size=8)
)
def test_a_running_calibration_is_the_last_scores_in_any_chunks(new, n, cuts, forgotten):
    calibration, held, expected = RunningCalibration(n), [], []
    p_values = []
    for chunk in np.split(np.arange(len(new)), sorted(cut for cut in cuts if cut <= len(new))):
        p_values += calibration.p_values_then_learn(new[chunk], 3 * chunk).tolist()
        for i in chunk:
            expected.append(plain_p_value(new[i], [score for _, score in held]))
            held = [*held, (3 * i, new[i])][-n:]
        calibration.forget(forgotten)
        held = [(arrival, score) for arrival, score in held if arrival not in forgotten]
        assert calibration.arrivals.tolist() == [arrival for arrival, _ in held]
        assert calibration.scores.tolist() == [score for _, score in held]
        assert calibration.ascending.tolist() == sorted(score for _, score in held)
    assert p_values == expected
    assert calibration.p_values(new).tolist() == [plain_p_value(s, [score for _, score in held]) for s in new]


def test_one_by_one_is_all_at_once():
    values = np.random.default_rng(0).normal(size=200).round(1)
    whole, single = RunningCalibration(30), RunningCalibration(30)
    at_once = whole.p_values_then_learn(values, np.arange(200))
    one_by_one = [single.p_values_then_learn(values[i : i + 1], np.array([i]))[0] for i in range(200)]
    assert at_once.tolist() == one_by_one
    assert (whole.scores == single.scores).all()
    assert len(whole) == 30


def test_a_running_calibration_goes_on_from_its_state():
    values = np.random.default_rng(1).normal(size=100)
    whole = RunningCalibration(20)
    whole.p_values_then_learn(values[:60], np.arange(60))
    whole.forget([55, 3])  # arrival 3 has left long ago
    assert len(whole) == 19
    again = RunningCalibration.of_state(20, whole.arrivals, whole.scores)
    assert whole.arrivals.dtype == np.int64
    assert whole.scores.dtype == np.float64
    rest = np.arange(60, 100)
    assert (whole.p_values_then_learn(values[60:], rest) == again.p_values_then_learn(values[60:], rest)).all()


def test_an_empty_calibration_has_a_state_too():
    calibration = RunningCalibration.of_state(5, np.empty(0, np.int64), np.empty(0))
    assert calibration.p_values(np.array([0.0])).tolist() == [1.0]
    assert calibration.p_values_then_learn(np.empty(0), np.empty(0, np.int64)).shape == (0,)


@pytest.mark.parametrize(
    ("values", "arrivals", "message"),
    [
        ([1.0, np.nan], [5, 6], "score 1 is not a number"),
        ([1.0, 2.0], [5, 5], "arrivals must rise"),
        ([1.0, 2.0], [4, 5], "arrivals must rise"),
        ([1.0, 2.0], [5], "2 scores for 1 arrivals"),
    ],
)
def test_bad_scores_change_nothing(values, arrivals, message):
    calibration = RunningCalibration(3)
    calibration.p_values_then_learn(np.array([0.5]), np.array([4]))
    with pytest.raises(ValueError, match=message):
        calibration.p_values_then_learn(np.array(values), np.array(arrivals))
    assert calibration.arrivals.tolist() == [4]


def test_a_state_that_cannot_be_is_refused():
    with pytest.raises(ValueError, match="3 scores to calibrate with, more than 2"):
        RunningCalibration.of_state(2, np.arange(3), np.zeros(3))
    with pytest.raises(ValueError, match="arrivals must rise"):
        RunningCalibration.of_state(3, np.array([2, 1]), np.zeros(2))
    with pytest.raises(ValueError, match="at least one score"):
        RunningCalibration(0)
