"""Alarms counted by hand, as many for each detector, and the tables of forecasts and alarms."""

import numpy as np
import pytest

from benchmarks import forecasts, series_alarms
from benchmarks.series import MERGED, OWN_ALARMS
from benchmarks.series_alarms import alarm_counts, alarms_table, as_many_alarms, first_steps, stretches


def test_stretches_and_alarms_by_hand():
    assert stretches(np.array([1, 1, 0, 0, 1, 0, 1])) == [(0, 1), (4, 4), (6, 6)]
    assert first_steps(np.array([3, 5, 5 + MERGED, 6 + 2 * MERGED + 5])).tolist() == [3, 11 + 2 * MERGED]


def test_events_are_found_at_their_first_alarm():
    y = np.zeros(1000, int)
    y[100:200] = y[500:510] = 1
    assert alarm_counts(np.array([90, 130, 180, 700]), y) == {
        "events": 2,
        "found": 1,
        "delay": 30.0,
        "alarms": 4,
        "inside": 2,
    }
    assert alarm_counts(np.array([], int), y) == {"events": 2, "found": 0, "delay": "", "alarms": 0, "inside": 0}


@pytest.mark.parametrize("n", [0, 1, 3, 50])
def test_the_threshold_is_lowered_to_the_requested_number_of_alarms(n):
    scores = np.zeros(2000)
    scores[[300, 301, 900, 1500]] = [9.0, 8.0, 7.0, 6.0]
    steps = as_many_alarms(scores, n)
    assert len(steps) <= n
    if n == 3:
        assert steps.tolist() == [300, 900, 1500]
    assert (np.diff(steps) > 0).all()


def test_the_table_has_a_line_for_each_detector():
    row = {"family": "NAB", "series": "a", "half": "choose", "events": "2", "alarms": "4"}
    rows = [
        {**row, "detector": "differences", "found": "0", "delay": "", "inside": "0"},
        {**row, "detector": OWN_ALARMS, "found": "1", "delay": "30", "inside": "2"},
    ]
    lines = alarms_table(rows).splitlines()
    assert lines[2] == f"| {OWN_ALARMS} | 50% | 30 | 2.0 | 2 | 4 |"
    assert lines[3] == "| differences | 0% |  |  | 4 | 4 |"
    assert series_alarms.SLOW


def test_tables_of_forecasts_are_by_family_and_horizon():
    numbers = dict.fromkeys((*forecasts.METHODS, "coverage", "width"), "1.0")
    rows = [
        {"family": family, "series": family, "horizon": str(horizon), **numbers, "median": median}
        for family, median in (("ECG", "0.5"), ("NAB", "2.0"))
        for horizon in forecasts.HORIZONS
    ]
    assert "| polyaforest, median | 1.25 | 1.25 | 1.25 | 1.25 |" in forecasts.summary_table(rows)
    assert forecasts.family_table(rows, 1).splitlines()[2].endswith("| 0 of 1 |")
    assert forecasts.losses_table(rows).splitlines()[2].startswith("| NAB NAB |")
