"""False alarm rates hold for exchangeable rows.

A rate is measured over many fits, each with fresh rows to learn and to score. The rate of a single fit scatters: with n
calibration scores it is Beta(k, n + 1 - k) with a mean of about the requested rate. The mean over the fits must lie
within four standard errors, plus a stated bias: leaving a row out, by trees that did not take it or by its count, is
not exactly the same as a new row.
"""

import numpy as np
import pytest
from effort import mostly_slow
from scipy.signal import lfilter

from polyaforest import BatchMPF, SeriesMPF, StreamingMPF, Tree
from polyaforest.forest.thresholds import mean_run_length
from polyaforest.series.novelty import KnownReadings

pytestmark = pytest.mark.statistical

RATE, N_FITS, N_NEW = 0.1, 30, 400
FORESTS = {
    "table": lambda seed, score: StreamingMPF(
        score_type=score, false_alarm_rate=RATE, n_estimators=50, random_state=seed
    ),
    "all rows": lambda seed, score: StreamingMPF(
        max_samples=None,
        tree=Tree(max_depth=6),
        score_type=score,
        false_alarm_rate=RATE,
        n_estimators=25,
        random_state=seed,
    ),
    "batch": lambda seed, score: BatchMPF(score_type=score, false_alarm_rate=RATE, n_estimators=50, random_state=seed),
    "summary": lambda seed, score: StreamingMPF(
        window=None, tree=Tree(max_depth=6), score_type=score, false_alarm_rate=RATE, n_estimators=25, random_state=seed
    ),
    "window": lambda seed, score: StreamingMPF(
        window=150, score_type=score, false_alarm_rate=RATE, n_estimators=50, random_state=seed
    ),
}


def draw(kind, n, rng):
    """Draw rows of a kind: a Gaussian, heavy tails, or two clusters of integers with many ties."""
    if kind == "heavy":
        return rng.standard_t(2, size=(n, 3))
    if kind == "ties":
        return (rng.integers(0, 2, size=(n, 1)) * 10 + rng.integers(0, 4, size=(n, 2))).astype(float)
    return rng.normal(size=(n, 6))


@pytest.mark.parametrize("data", mostly_slow(["gauss", "heavy", "ties"], 1))
@pytest.mark.parametrize(
    ("kind", "score"),
    mostly_slow(
        [
            ("table", "typicality"),
            ("table", "multiscale"),
            ("all rows", "mass"),
            ("summary", "log_mass"),
            ("batch", "log_mass"),
            ("window", "typicality"),
        ],
        0,
        3,
        4,
        5,
    ),
)
def test_share_of_flagged_new_rows_is_about_the_rate(kind, score, data):
    n, rng = 150, np.random.default_rng(20)
    rates = []
    for seed in range(N_FITS):
        forest = FORESTS[kind](seed, score).fit(draw(data, n, rng))
        rates.append((forest.predict(draw(data, N_NEW, rng)) == -1).mean())
    error = 4 * np.std(rates) / np.sqrt(N_FITS)
    assert np.mean(rates) < RATE + error + 0.02
    if data != "ties":  # which leave no line at the rate
        slack = 0.07 if kind in ("all rows", "summary") else 0.03  # a forest of half the rows is less sure of new ones
        assert np.mean(rates) > RATE - error - slack


def test_running_p_values_of_a_stream_are_uniform():
    rows = np.random.default_rng(21).normal(size=(8000, 3))
    p_values = StreamingMPF(window=128, n_estimators=30, random_state=0).detect_then_learn(rows).p_values[1500:]
    for alpha in (0.01, 0.05, 0.2, 0.5):
        # p-values with shared calibration scores scatter more than independent ones
        assert abs((p_values <= alpha).mean() - alpha) < 5 * np.sqrt(alpha * (1 - alpha) / len(p_values)) + 0.1 * alpha


def test_mean_share_of_false_discoveries_is_the_requested_rate():
    rng, shares, found = np.random.default_rng(22), [], []
    for seed in range(40):
        forest = StreamingMPF(n_estimators=40, random_state=seed).fit(rng.normal(size=(500, 3)))
        rows = np.vstack([rng.normal(size=(180, 3)), rng.normal(7, 1, size=(20, 3))])
        flagged = forest.predict_fdr(rows, rate=0.2) == -1
        shares.append(flagged[:180].sum() / max(flagged.sum(), 1))
        found.append(flagged[180:].mean())
    assert np.mean(shares) < 0.2 + 4 * np.std(shares) / np.sqrt(40)
    assert np.mean(found) > 0.9


# ---- alarms of a series ----------------------------------------------------------------------------------------------

MOST_ALARMS = 2.5  # begun per 1,000 normal readings, on average; one is promised
APART = 8  # readings between two alarms


def autoregressive(n, phi, rng):
    """Return an autoregressive series: each reading is `phi` times the one before, plus noise."""
    return lfilter([1.0], [1.0, -phi], rng.normal(size=n))


def alarms_begun(detected):
    """Return the number of alarms per 1,000 scored readings."""
    flagged = np.flatnonzero(detected.is_anomaly)
    n = 1 + np.count_nonzero(np.diff(flagged) > APART) if len(flagged) else 0
    return 1000 * n / np.count_nonzero(~np.isnan(detected.scores))


@pytest.mark.parametrize("n_series", mostly_slow([4, 24]))
@pytest.mark.parametrize("phi", mostly_slow([0.0, 0.9, 0.5, 0.99], 0, 1))
def test_normal_series_hardly_ever_raises_alarms(phi, n_series):
    streamed, fitted = [], []
    for seed in range(n_series):
        rows = autoregressive(3000, phi, np.random.default_rng([23, seed]))
        forest = StreamingMPF(n_estimators=40, random_state=seed)
        streamed.append(alarms_begun(SeriesMPF(forest).detect_then_learn(rows)))
        fitted.append(alarms_begun(SeriesMPF(forest).fit(rows[:2000]).detect(rows[2000:])))
    assert np.mean(streamed) < MOST_ALARMS
    assert np.mean(fitted) < MOST_ALARMS
    assert np.mean(streamed) + np.mean(fitted) > 0  # or nothing could ever be flagged


def test_run_length_measures_clustering_of_unusual_rows():
    rng = np.random.default_rng(24)
    lengths = [mean_run_length(autoregressive(4000, phi, rng)) for phi in (0.0, 0.9, 0.99)]
    assert 1 <= lengths[0] < 1.5
    assert lengths[0] < lengths[1] < lengths[2]


def test_threshold_counts_alarms_not_rows_in_clusters():
    """Counting rows would lower the threshold, and miss events as long as a false alarm."""
    rows = autoregressive(3000, 0.98, np.random.default_rng(25))
    model = SeriesMPF(StreamingMPF(n_estimators=20, random_state=0), short_memory=False).fit(rows)
    run_length = model._model.views.run_length
    assert run_length > 1.5
    at_once = model.offset_
    model._model.views.run_length = 1.0001  # as if rows were odd by themselves
    assert model.offset_ < at_once


@pytest.mark.parametrize(("kind", "most"), [("gauss", 40), ("long tail", 60)])
def test_noise_is_seldom_novel_with_much_history(kind, most, any_seed):
    """About 9 and 19 of 20,000 readings are novel; more than `most` has a probability below one in a billion."""
    rng = np.random.default_rng(any_seed)
    noise = rng.normal(size=(24_096, 1)) if kind == "gauss" else np.exp(rng.normal(size=(24_096, 1)))
    novelty = KnownReadings(1).judge_then_learn(noise, np.full(noise.shape, np.nan))
    assert (novelty[4096:] >= 0.02).sum() <= most
