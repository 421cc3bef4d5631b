"""Stated and simulated rates of false alarms and false discoveries agree.

For the false-alarm rate of the tests themselves see the package.
"""

import numpy as np
import pytest
from laws import ALARM, RARE
from scipy import stats

from polyaforest.forest.calibration import RunningCalibration
from polyaforest.forest.thresholds import ThresholdPolicy, benjamini_hochberg, conformal_p_values

pytestmark = pytest.mark.statistical

REPEATS = 4000
KINDS = {
    "gaussian": lambda rng, size: rng.normal(size=size),
    "heavy": lambda rng, size: rng.standard_cauchy(size=size),
    "ties": lambda rng, size: rng.integers(0, 5, size=size).astype(float),
}


def running_p_values(calibration, scores, arrivals):
    return calibration.judge_then_learn(scores, arrivals, ThresholdPolicy()).p_values


@pytest.mark.parametrize("alpha", [0.02, 0.1, 0.25])
@pytest.mark.parametrize("kind", KINDS)
def test_normal_rows_are_flagged_at_requested_rate(kind, alpha, any_seed):
    rng = np.random.default_rng(any_seed)
    draws = KINDS[kind](rng, (REPEATS, 100))  # 99 for calibration and one to score, each time
    flagged = sum(bool(row[0] < ThresholdPolicy(None, alpha).threshold(np.sort(row[1:]).tolist())) for row in draws)
    side = "greater" if kind == "ties" else "two-sided"  # without ties the rate is met exactly: alpha * 100 is whole
    assert stats.binomtest(flagged, REPEATS, alpha, alternative=side).pvalue > RARE


def test_p_values_without_plus_one_flag_too_many_rows():
    rng, alpha = np.random.default_rng(1), 0.12
    draws = rng.normal(size=(REPEATS, 10))
    plain = sum(bool((row[1:] <= row[0]).mean() <= alpha) for row in draws)
    corrected = sum(bool(conformal_p_values(row[:1], row[1:])[0] <= alpha) for row in draws)
    assert stats.binomtest(corrected, REPEATS, alpha, alternative="greater").pvalue > ALARM
    assert stats.binomtest(plain, REPEATS, alpha, alternative="greater").pvalue < ALARM


@pytest.mark.parametrize("rate", [0.1, 0.2])
def test_false_discoveries_stay_within_rate_with_shared_calibration(rate):
    rng, shares, found = np.random.default_rng(2), [], 0
    for _ in range(1500):
        scores = rng.normal(size=100)
        scores[:15] -= 4.0
        flagged = benjamini_hochberg(conformal_p_values(scores, rng.normal(size=300)), rate)
        shares.append(flagged[15:].sum() / max(flagged.sum(), 1))
        found += flagged[:15].sum()
    error = np.std(shares) / np.sqrt(len(shares))
    assert np.mean(shares) <= rate + stats.norm.isf(ALARM) * error
    assert np.mean(shares) > 0.5 * rate  # it does not keep the promise by flagging nothing
    assert found / (15 * 1500) > 0.8


def rates_of_streams(streams, n, alpha):
    """Return the share of scores of each stream with a small running p-value, once the calibration is full."""
    arrivals = np.arange(streams.shape[1])
    return np.array([(running_p_values(RunningCalibration(n), row, arrivals)[n:] <= alpha).mean() for row in streams])


@pytest.mark.parametrize("kind", KINDS)
def test_exchangeable_stream_is_flagged_at_the_rate(kind):
    rates = rates_of_streams(KINDS[kind](np.random.default_rng(3), (300, 400)), 99, 0.05)
    limit = stats.norm.isf(ALARM / 2) * rates.std() / np.sqrt(len(rates))
    assert rates.mean() <= 0.05 + limit
    assert kind == "ties" or rates.mean() >= 0.05 - limit


def test_drifting_stream_is_flagged_more_often():
    streams = np.random.default_rng(4).normal(size=(50, 400)) - np.linspace(0, 8, 400)
    assert rates_of_streams(streams, 99, 0.05).mean() > 0.15


def test_alarms_of_autocorrelated_stream_come_in_runs():
    noise, scores = np.random.default_rng(5).normal(size=20_000), np.zeros(20_000)
    for i in range(1, len(noise)):
        scores[i] = 0.95 * scores[i - 1] + noise[i]
    p_values = running_p_values(RunningCalibration(256), scores, np.arange(len(scores)))
    flagged = p_values <= 0.01
    assert flagged[1:][flagged[:-1]].mean() > 0.25
