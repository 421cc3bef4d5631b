"""Thresholds on scores: automatic, by contamination, by false alarm rate and by false discovery rate."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyaforest.forest.calibration import RunningCalibration
from polyaforest.forest.thresholds import (
    AUTO_RATE,
    LONGEST_RUN,
    ThresholdPolicy,
    benjamini_hochberg,
    check_calibration_size,
    conformal_p_values,
    least_calibration,
    mean_run_length,
    raised,
    tail_threshold,
)

BULK = np.sort(-np.random.default_rng(0).exponential(size=4000))
AUTO = ThresholdPolicy()


def p_values_then_learn(calibration, scores, arrivals):
    return calibration.judge_then_learn(scores, arrivals, AUTO).p_values


def test_tail_threshold_of_exponential_tail_has_the_rate():
    # quantiles of Exp(1), so that only the rule is tested, not a sample
    scores = np.log(np.arange(0.5, 10_000) / 10_000)
    assert (scores < tail_threshold(scores)).mean() == pytest.approx(AUTO_RATE, rel=0.01)
    assert (scores < AUTO.threshold(scores)).mean() == pytest.approx(1 / 1000, rel=0.01)  # as documented


@pytest.mark.parametrize(("shift", "scale"), [(0, 1), (-7, 1), (3, 20), (100, 1e-6)])
def test_threshold_shifts_with_scores(shift, scale):
    assert tail_threshold(shift + scale * BULK) == pytest.approx(shift + scale * tail_threshold(BULK), rel=1e-9)


def test_light_tail_flags_no_row():
    assert tail_threshold(np.linspace(0, 1, 1001)) < 0


def test_burst_does_not_raise_its_own_threshold():
    threshold = tail_threshold(np.sort([*BULK, *np.full(400, -50.0)]))
    assert threshold > -50
    assert np.mean(threshold > BULK) < 0.01


def test_few_anomalies_hardly_change_threshold():
    assert tail_threshold(np.sort([*BULK, *np.full(40, -1e6)])) == pytest.approx(tail_threshold(BULK), rel=0.06)


def test_equal_scores_flag_only_lower_rows():
    assert tail_threshold(np.full(50, -2.5)) == -2.5


def test_ties_down_to_lowest_eighth_leave_room_for_tail():
    scores = np.sort(np.concatenate([np.zeros(90), np.linspace(-2, -0.1, 9), [-100.0]]))
    assert -100 < tail_threshold(scores) < -1


def test_ties_down_to_quartile_use_step_of_lowest_eighth():
    scores = np.sort(np.concatenate([np.zeros(700), np.full(100, -1.0), np.full(200, -6.0)]))
    halvings_per_step = np.log2(0.5 / AUTO_RATE)
    assert tail_threshold(scores) == pytest.approx(-3.0 * halvings_per_step)


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([1] * 80, 1.0),
        ([4] * 20, 4.0),
        ([2] * 20 + [4] * 10, 68 / 27),  # without three of the longest
        ([1] * 18 + [30, 32], 1.0),  # anomalies last, and do not count
    ],
)
def test_mean_run_length_counts_runs_of_low_scores(runs, expected):
    """Scores of 640 rows whose lowest eighth come in runs of these lengths."""
    scores, place = np.arange(640.0) + 1000, 0
    for length in runs:
        scores[place : place + length] = -np.arange(1.0, length + 1) - place
        place += length + (640 - sum(runs)) // len(runs)
    assert mean_run_length(scores) == pytest.approx(expected)
    assert mean_run_length(7 * scores - 3) == mean_run_length(scores)


def test_mean_run_length_is_bounded_and_one_for_few_scores():
    assert mean_run_length(np.arange(6400.0)) == LONGEST_RUN
    assert mean_run_length(np.arange(15.0)) == mean_run_length(np.empty(0)) == 1.0


def test_run_length_raises_automatic_threshold_only():
    levels = [ThresholdPolicy(run_length=n).threshold(BULK.tolist()) for n in (1.0, 2.0, 8.0)]
    assert levels == sorted(set(levels))
    assert np.searchsorted(BULK, levels[2]) / len(BULK) == pytest.approx(8 * AUTO_RATE, rel=0.3)
    for policy in ({"contamination": 0.1}, {"false_alarm_rate": 0.1}):
        one, other = (ThresholdPolicy(**policy, run_length=n).threshold(BULK.tolist()) for n in (1.0, 8.0))
        assert one == other


def test_fewer_than_eight_scores_flag_no_row():
    assert tail_threshold([-9.0] + [-1.0] * 6) == -np.inf
    assert tail_threshold([-9.0] + [-1.0] * 7) > -np.inf


def test_infinite_scores_do_not_affect_threshold():
    assert tail_threshold([-np.inf, *BULK]) == pytest.approx(tail_threshold(BULK), rel=0.01)
    assert tail_threshold([-np.inf] * 90 + BULK[:10].tolist()) == -np.inf
    assert tail_threshold([-np.inf] * 9) == -np.inf


@given(st.lists(st.integers(-9, 0).map(float), min_size=1, max_size=60), st.sampled_from([0.05, 0.25, 0.5]))
def test_contamination_is_share_below_threshold(values, share):
    scores = np.sort(values)
    threshold = ThresholdPolicy(contamination=share).threshold(scores.tolist())
    assert (scores < threshold).sum() <= int(share * (len(scores) - 1)) + 1
    assert (scores <= threshold + 1e-6).sum() >= int(share * (len(scores) - 1))


# ---- p-values ------------------------------------------------------------------------------------------------------

# few different values, so that ties are common; minus infinity is the logarithm of no mass
scores = st.sampled_from([-np.inf, -2.5, -0.0, 0.0, 1.0, 1.5, 7.0]) | st.floats(-10, 10)
some_scores = st.lists(scores, min_size=1, max_size=30).map(np.array)
rates = st.sampled_from([0.01, 0.05, 0.1, 1 / 7, 0.3, 1 / 3, 0.5, 0.9]) | st.floats(0.01, 0.99)


def plain_p_value(score, calibration):
    return (1 + sum(other <= raised(np.array(score)) for other in calibration)) / (len(calibration) + 1)


@given(some_scores, st.lists(scores, max_size=30).map(np.array))
def test_p_values_count_scores_not_above_and_the_score_itself(new, calibration):
    assert conformal_p_values(new, calibration).tolist() == [plain_p_value(score, calibration) for score in new]


def test_p_values_are_one_without_calibration():
    assert conformal_p_values(np.array([-1e9, 0.0]), np.empty(0)).tolist() == [1.0, 1.0]


def test_ties_raise_p_values():
    assert conformal_p_values(np.array([2.0]), np.full(9, 2.0)) == [1.0]


@pytest.mark.parametrize(
    ("alpha", "needed"), [(0.5, 1), (0.1, 9), (0.05, 19), (0.01, 99), (0.001, 999), (0.3, 3), (1 / 3, 2), (0.99, 1)]
)
def test_least_calibration_is_enough(alpha, needed):
    assert least_calibration(alpha) == needed


@given(st.integers(1, 10_000) | st.floats(1e-6, 0.999))
def test_least_calibration_is_minimal(inverse):
    alpha = inverse if isinstance(inverse, float) else 1 / (inverse + 1)
    n = least_calibration(alpha)
    assert conformal_p_values(np.array([-1.0]), np.zeros(n))[0] <= alpha
    assert conformal_p_values(np.array([-1.0]), np.zeros(n - 1))[0] > alpha


def test_least_calibration_of_smallest_rate_is_finite():
    assert least_calibration(5e-324) > 1e300


@given(some_scores, some_scores, rates)
def test_rows_below_threshold_have_small_p_values(new, calibration, alpha):
    threshold = ThresholdPolicy(false_alarm_rate=alpha).threshold(np.sort(calibration).tolist())
    if len(calibration) < least_calibration(alpha):
        assert threshold == -np.inf
        with pytest.raises(ValueError, match=f"at least {least_calibration(alpha):,} calibration scores"):
            check_calibration_size(len(calibration), alpha, "give more")
        return
    with np.errstate(invalid="ignore"):
        gaps = np.abs(np.subtract.outer(np.append(new, calibration), calibration))
    if (np.isfinite(gaps) & (gaps > 0) & (gaps < 1e-7)).any():
        return  # closer than rounding errors may be
    for asked in (new, calibration):  # its own scores are on the threshold, or tie with it
        assert ((asked < threshold) == (conformal_p_values(asked, calibration) <= alpha)).all()


def test_too_few_scores_raise_with_number_needed():
    with pytest.raises(ValueError, match=r"rate of 0\.001 needs at least 999 calibration scores; got 500: hold"):
        check_calibration_size(500, 0.001, "hold more")
    check_calibration_size(999, 0.001, "hold more")
    rate = ThresholdPolicy(false_alarm_rate=0.001)
    assert rate.threshold(np.arange(999.0).tolist()) == pytest.approx(0.0, abs=1e-8)


# ---- false discoveries ---------------------------------------------------------------------------------------------


def plain_discoveries(p_values, rate):
    """Try every k, by the definition."""
    m, flagged = len(p_values), [False] * len(p_values)
    for k in range(1, m + 1):
        if sorted(p_values)[k - 1] <= rate * k / m:
            flagged = [p <= sorted(p_values)[k - 1] for p in p_values]
    return flagged


@given(st.lists(st.sampled_from([0.01, 0.02, 0.05, 0.5, 1.0]) | st.floats(0, 1), max_size=20).map(np.array), rates)
def test_benjamini_hochberg_matches_definition(p_values, rate):
    found = benjamini_hochberg(p_values, rate)
    assert found.dtype == bool
    assert found.tolist() == plain_discoveries(p_values.tolist(), rate)


def test_benjamini_hochberg_steps_up():
    assert benjamini_hochberg(np.array([0.09, 0.08, 0.07, 0.1]), 0.1).all()
    assert not benjamini_hochberg(np.array([0.09, 0.8, 0.7, 0.6]), 0.1).any()


def test_benjamini_hochberg_may_reject_nothing():
    assert benjamini_hochberg(np.empty(0), 0.1).shape == (0,)
    assert not benjamini_hochberg(np.ones(5), 0.1).any()


# ---- running calibration -------------------------------------------------------------------------------------------


@given(
    some_scores, st.integers(1, 12), st.lists(st.integers(0, 30), max_size=4), st.sets(st.integers(0, 40), max_size=8)
)
def test_running_calibration_holds_last_scores_for_any_chunks(new, n, cuts, forgotten):
    calibration, held, expected = RunningCalibration(n), [], []
    p_values = []
    for chunk in np.split(np.arange(len(new)), sorted(cut for cut in cuts if cut <= len(new))):
        p_values += p_values_then_learn(calibration, new[chunk], 3 * chunk).tolist()
        for i in chunk:
            expected.append(plain_p_value(new[i], [score for _, score in held]))
            held = [*held, (3 * i, new[i])][-n:]
        calibration.forget(forgotten)
        held = [(arrival, score) for arrival, score in held if arrival not in forgotten]
        assert calibration.arrivals.tolist() == [arrival for arrival, _ in held]
        assert calibration.scores.tolist() == [score for _, score in held]
        assert calibration.ascending.tolist() == sorted(score for _, score in held)
    assert p_values == expected
    assert calibration.judge(new, AUTO).p_values.tolist() == [
        plain_p_value(s, [score for _, score in held]) for s in new
    ]


def test_scoring_one_by_one_equals_chunks():
    values = np.random.default_rng(0).normal(size=200).round(1)
    whole, single = RunningCalibration(30), RunningCalibration(30)
    at_once = p_values_then_learn(whole, values, np.arange(200))
    one_by_one = [p_values_then_learn(single, values[i : i + 1], np.array([i]))[0] for i in range(200)]
    assert at_once.tolist() == one_by_one
    assert (whole.scores == single.scores).all()
    assert len(whole) == 30


def test_running_calibration_continues_from_state():
    values = np.random.default_rng(1).normal(size=100)
    whole = RunningCalibration(20)
    p_values_then_learn(whole, values[:60], np.arange(60))
    whole.forget([55, 3])  # arrival 3 has left long ago
    assert len(whole) == 19
    again = RunningCalibration.of_state(20, whole.arrivals, whole.scores, is_seeded=False)
    assert whole.arrivals.dtype == np.int64
    assert whole.scores.dtype == np.float64
    rest = np.arange(60, 100)
    assert (p_values_then_learn(whole, values[60:], rest) == p_values_then_learn(again, values[60:], rest)).all()


def test_empty_calibration_has_state():
    calibration = RunningCalibration.of_state(5, np.empty(0, np.int64), np.empty(0), is_seeded=False)
    assert calibration.judge(np.array([0.0]), AUTO).p_values.tolist() == [1.0]
    assert p_values_then_learn(calibration, np.empty(0), np.empty(0, np.int64)).shape == (0,)


@pytest.mark.parametrize(
    ("values", "arrivals", "message"),
    [
        ([1.0, np.nan], [5, 6], "score 1 is not a number"),
        ([1.0, 2.0], [5, 5], "arrivals must increase"),
        ([1.0, 2.0], [4, 5], "arrivals must increase"),
        ([1.0, 2.0], [5], "2 scores for 1 arrivals"),
    ],
)
def test_rejects_invalid_scores_and_changes_nothing(values, arrivals, message):
    calibration = RunningCalibration(3)
    p_values_then_learn(calibration, np.array([0.5]), np.array([4]))
    with pytest.raises(ValueError, match=message):
        p_values_then_learn(calibration, np.array(values), np.array(arrivals))
    assert calibration.arrivals.tolist() == [4]


def test_rejects_invalid_state():
    with pytest.raises(ValueError, match="3 calibration scores exceed the maximum of 2"):
        RunningCalibration.of_state(2, np.arange(3), np.zeros(3), is_seeded=False)
    with pytest.raises(ValueError, match="increasing arrivals"):
        RunningCalibration.of_state(3, np.array([2, 1]), np.zeros(2), is_seeded=False)
    with pytest.raises(ValueError, match="n must be at least 1; got 0"):
        RunningCalibration(0)


# ---- young and seeded calibrations ----------------------------------------------------------------------------------


def test_unseeded_calibration_flags_nothing_before_hundredth_score():
    calibration = RunningCalibration(1000)
    scores = np.append(np.linspace(-3, -2, 99), [-50.0, -2.5, -50.0])
    detected = calibration.judge_then_learn(scores, np.arange(102), AUTO)
    assert np.flatnonzero(detected.is_anomaly).tolist() == [101]


def test_unseeded_calibration_drops_first_hundred_scores():
    young, seeded = RunningCalibration(1000), RunningCalibration(1000)
    seeded.seed(np.linspace(-3, -2, 150), np.arange(150))
    young.judge_then_learn(np.linspace(-3, -2, 150), np.arange(150), AUTO)
    for calibration, first in ((young, 100), (seeded, 0)):
        calibration.judge_then_learn(np.linspace(-3, -2, 60), np.arange(150, 210), AUTO)
        assert calibration.arrivals[0] == first


def test_seeded_calibration_flags_at_once_and_keeps_newest_scores():
    calibration = RunningCalibration(20)
    calibration.seed(np.linspace(-3, -2, 50), np.arange(50))
    assert calibration.arrivals.tolist() == [*range(30, 50)]
    assert calibration.judge(np.array([-50.0, -2.5]), AUTO).is_anomaly.tolist() == [True, False]
