"""The benchmark of streams: detectors find what is plain, settings are chosen by false alarms, tables report it."""

import numpy as np
import pytest
from scipy import stats

pytest.importorskip("river")
from benchmarks import drift_streams as bench

PEERS = [name for name in bench.METHODS if name not in (bench.OURS, *bench.DUMMIES)]


@pytest.mark.parametrize("name", PEERS)
def test_a_more_sensitive_detector_finds_a_large_change_sooner(name):
    rows = np.random.default_rng(0).standard_normal((1424, 2))
    rows[1124:, 1] += 4.0
    detect, settings = bench.METHODS[name]
    alarms = detect(rows[:1024], rows[1024:], [settings[0], settings[len(settings) // 3]], 0)
    assert alarms[0] <= alarms[1]
    assert 100 <= alarms[1] < 250


def test_drift_monitor_reports_the_alarm_of_its_setting():
    rows = np.random.default_rng(0).standard_normal((400, 1))
    rows[300:] += 3.0
    every = [500.0, 50_000.0]
    alarms = bench.ours(rows[:256], rows[256:], every, 0)
    for one, alarm in zip(every, alarms, strict=True):
        changes = bench.DriftMonitor(false_alarms_every=one, random_state=0).fit(rows[:256]).update(rows[256:])
        assert changes[0].noticed == 256 + alarm


def test_fast_p_values_equal_those_of_scipy(any_seed):
    rng = np.random.default_rng(any_seed)
    for shift in (0.0, 0.5, 2.0):
        a, b = rng.standard_normal(30).round(1), rng.standard_normal(30).round(1) + shift
        expected = stats.ks_2samp(a, b)
        found = bench._ks_2samp(a.tolist(), b.tolist(), "auto")
        assert found == pytest.approx((expected.statistic, expected.pvalue))


def test_the_most_sensitive_setting_with_few_false_alarms_is_chosen():
    null, name = "normal, 1 feature", "CUSUM"
    first = {0: [10, 20], 1: [bench.N_NULL, 1500], 2: [bench.N_NULL, bench.N_NULL]}
    rows = [
        {"null": null, "method": name, "number": str(number), "alarm": str(alarm), "points": str(min(alarm + 1, 4000))}
        for number in range(len(bench.METHODS[name][1]))
        for alarm in first.get(number, first[2])
    ]
    assert bench.time_between(rows, null, name, 0) == pytest.approx((11 + 21) / 2)
    assert bench.time_between(rows, null, name, 1) == 5501
    assert bench.chosen(rows, null, name) == 1
    assert bench.chosen([], null, "never") == 0


def test_alarms_before_a_change_are_false_in_the_table():
    facts = {"change": "mean", "method": "CUSUM"}
    rows = [
        {**facts, "trial": str(trial), "alarm": str(bench.N_BEFORE + delay)} for trial, delay in enumerate([-5, 10, 20])
    ]
    line = next(line for line in bench.delays_table(rows).splitlines() if line.startswith("| mean |"))
    assert "**15 (0.67)**" in line
