"""Alarms and events counted by hand, limits at equal numbers of alarms, and the tables of the benchmark."""

from argparse import Namespace

import numpy as np
import pytest

from benchmarks import alarms as bench
from benchmarks.series import Case
from benchmarks.shared.alarm_detectors import DETECTORS, OURS, carried_forward, highest, robust_z, seasonal_naive
from benchmarks.shared.alarm_series import CLEAN, GENERATORS, clean_case
from benchmarks.shared.alarms import Tally, alarms_of, events_of, limit_for, soft_average_precision, tally
from benchmarks.shared.results import read


def flags(size, *ranges):
    """Return flags that are set in ranges, given by first and last reading."""
    found = np.zeros(size, bool)
    for first, last in ranges:
        found[first : last + 1] = True
    return found


# ---- alarms and events -----------------------------------------------------------------------------------------------


def test_consecutive_labels_are_one_event():
    assert events_of(np.array([1, 1, 0, 1, 0, 0, 1])).tolist() == [[0, 1], [3, 3], [6, 6]]
    assert events_of(np.zeros(5)).shape == (0, 2)


def test_flags_at_most_three_readings_apart_are_one_alarm():
    found = np.zeros(30, bool)
    found[[0, 3, 7, 20, 21, 29]] = True
    assert alarms_of(found).tolist() == [[0, 3], [7, 7], [20, 21], [29, 29]]
    assert alarms_of(np.zeros(5, bool)).shape == (0, 2)


def test_alarms_and_events_by_hand():
    y = flags(100, (10, 13), (50, 50), (80, 89))
    found = tally(flags(100, (12, 19), (40, 40), (53, 53), (70, 70)), y)
    assert found == Tally(100, 3, 2, 4, 2, (2, 3), (2.0, 1.0))
    assert found.recall == 2 / 3
    assert found.precision == 0.5
    assert found.per_thousand == 40.0
    assert found.delay == 2.5
    assert found.length_ratio == 1.5


@pytest.mark.parametrize(("place", "is_hit"), [(6, False), (7, True), (10, True), (15, True), (16, False)])
def test_an_alarm_within_three_readings_is_a_hit(place, is_hit):
    found = tally(flags(30, (place, place)), flags(30, (10, 12)))
    assert (found.n_found, found.n_hits) == (is_hit, is_hit)


def test_one_alarm_may_hit_two_events_and_two_alarms_one_event():
    one = tally(flags(60, (8, 30)), flags(60, (10, 11), (20, 29)))
    assert (one.n_found, one.n_alarms, one.n_hits) == (2, 1, 1)
    assert one.delays == (0, 0)
    assert one.ratios == (11.5, 2.3)
    two = tally(flags(60, (12, 13), (20, 20)), flags(60, (10, 29)))
    assert (two.n_found, two.n_alarms, two.n_hits) == (1, 2, 2)
    assert two.delays == (2,)
    assert two.ratios == (3 / 20,)


def test_tallies_add_up():
    total = tally(flags(10, (2, 2)), flags(10, (2, 2))) + tally(flags(30, (20, 20)), flags(30, (5, 5)))
    assert total == Tally(40, 2, 1, 2, 1, (0,), (1.0,))


def test_a_series_without_alarms_or_events_has_no_shares():
    nothing = tally(np.zeros(10, bool), np.zeros(10))
    assert np.isnan([nothing.recall, nothing.precision, nothing.delay, nothing.length_ratio]).all()
    assert nothing.per_thousand == 0


# ---- rankings --------------------------------------------------------------------------------------------------------


def test_readings_near_an_event_are_ignored():
    y, scores = flags(20, (10, 10)).astype(int), np.zeros(20)
    scores[10], scores[13] = 1.0, 2.0
    assert soft_average_precision(y, scores) == 1.0
    scores[14] = 2.0
    assert soft_average_precision(y, scores) == 0.5


def test_labelled_readings_near_another_event_count():
    y, scores = flags(20, (8, 8), (10, 10)).astype(int), np.zeros(20)
    scores[[0, 8, 10]] = 2.0, 3.0, 1.0
    assert soft_average_precision(y, scores) == pytest.approx((1 + 2 / 3) / 2)


def test_readings_without_a_score_rank_last_and_infinite_scores_first():
    y, scores = flags(10, (4, 4)).astype(int), np.full(10, -5.0)
    scores[4] = np.nan
    assert soft_average_precision(y, scores) == pytest.approx(1 / 4)  # of the four readings that count
    scores[4] = np.inf
    assert soft_average_precision(y, scores) == 1.0
    assert np.isnan(soft_average_precision(np.zeros(10, int), scores))


# ---- limits ----------------------------------------------------------------------------------------------------------


def test_the_limit_is_one_for_all_series():
    scores = [np.zeros(50), np.zeros(50)]
    scores[0][[10, 30]] = 5.0, 3.0
    scores[1][20] = 4.0
    assert [limit_for(scores, n) for n in (1, 2, 3)] == [5.0, 4.0, 3.0]
    assert np.isnan(limit_for(scores, 0))


def test_readings_may_join_an_alarm():
    scores = np.arange(100.0)  # the highest readings are neighbours: one alarm at every limit
    assert limit_for([scores], 1) == limit_for([scores], 5) == 99.0
    scores[10] = 97.0
    assert [limit_for([scores], n) for n in (1, 2)] == [99.0, 97.0]


def test_equal_scores_that_raise_too_many_alarms_raise_none():
    scores = np.zeros(50)
    scores[[10, 20, 30]] = 4.0, 3.0, 3.0
    assert [limit_for([scores], n) for n in (1, 2, 3)] == [4.0, 4.0, 3.0]
    assert np.isnan(limit_for([np.full(5, np.nan)], 1))


@pytest.mark.parametrize("n", [1, 7, 40])
def test_random_scores_raise_the_requested_number_of_alarms(n):
    scores = list(np.random.default_rng(n).normal(size=(3, 2000)))
    scores[0][:300] = np.nan
    limit = limit_for(scores, n)
    assert sum(len(alarms_of(one >= limit)) for one in scores) == n


# ---- detectors -------------------------------------------------------------------------------------------------------


def test_the_robust_z_by_hand():
    found = robust_z(np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 14.0, np.nan, 4.5]))
    assert np.isnan(found[:7]).all()
    assert np.isnan(found[8])
    assert found[7] == pytest.approx(10 / (1.4826 * 2))
    assert found[9] == pytest.approx(0.0)
    zeros = np.zeros(12)
    zeros[[3, 9, 11]] = 1.0, 2.0, 0.0
    assert robust_z(zeros)[9] == pytest.approx(2 / (1 / 9))  # the MAD is 0, the mean absolute deviation 1/9
    assert robust_z(zeros)[11] == 0.0
    assert robust_z(np.array([0.0] * 8 + [1.0]))[8] == np.inf


def test_the_robust_z_forgets_readings_before_the_last_500():
    values = np.random.default_rng(0).normal(size=3000)
    found = robust_z(values)
    for place in (499, 500, 501, 2548, 2999):
        past = values[max(place - 500, 0) : place]
        spread = 1.4826 * np.median(np.abs(past - np.median(past)))
        assert found[place] == pytest.approx(abs(values[place] - np.median(past)) / spread)


def test_the_seasonal_naive_forecast_knows_the_period_of_the_past_only():
    hours = np.arange(600)
    values = 10 * np.sin(2 * np.pi * hours / 24) + np.random.default_rng(0).normal(0, 0.1, 600)
    values[500] = -values[500 - 24]
    changed = values.copy()
    changed[450:] = 0.0
    found = seasonal_naive(values)
    assert set(np.argsort(found[200:])[-2:] + 200) == {500, 524}  # and one period later, against a wrong reading
    np.testing.assert_array_equal(found[:450], seasonal_naive(changed)[:450])


def test_a_missing_reading_is_that_before():
    values = np.array([[np.nan, 1.0], [2.0, np.nan], [np.nan, np.nan], [5.0, 4.0]])
    assert carried_forward(values).tolist() == [[2.0, 1.0], [2.0, 1.0], [2.0, 1.0], [5.0, 4.0]]


def test_the_highest_score_of_the_channels_counts():
    values = np.random.default_rng(0).normal(size=(100, 3))
    values[:, 1] = 7.0
    values[60, 2] = 50.0
    found = highest(robust_z)(values)
    assert found.flags is None
    assert np.nanargmax(found.scores) == 60
    assert highest(robust_z)(np.ones((20, 1))).scores.tolist() == [0.0] * 20


# ---- runs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GENERATORS)
def test_clean_series_are_reproducible(name):
    one, same, other = (clean_case(name, seed, 500) for seed in (1, 1, 2))
    assert one.values.shape == (500, 1)
    assert not one.y.any()
    np.testing.assert_array_equal(one.values, same.values)
    assert not np.array_equal(one.values, other.values)


@pytest.fixture
def cases(monkeypatch):
    """Two short series with an event, a clean one, and a detector that flags what is far from 0."""
    rng = np.random.default_rng(0)

    def ours(values):
        ours.n_runs += 1
        return bench.Verdicts(np.abs(values[:, 0]), np.abs(values[:, 0]) > 6)

    ours.n_runs = 0
    monkeypatch.setitem(DETECTORS, OURS, ours)
    found = {"cloud": [], CLEAN: [clean_case("white noise", 0, 400)]}
    for name in ("a", "b"):
        values, y = rng.normal(size=(600, 1)), flags(600, (400, 404)).astype(np.int8)
        values[400:405] += 20.0
        found["cloud"].append(Case("cloud", name, "", values, y, 0))
    monkeypatch.setattr(bench, "cases_of", found.__getitem__)
    return ours


def options(**others):
    """Return the options of a run."""
    defaults = {"quick": False, "family": ("cloud", CLEAN), "again": None, "jobs": 1}
    return Namespace(**{**defaults, "detector": (OURS, "rolling robust z"), **others})


def test_a_run_resumes_and_others_raise_as_many_alarms(cases, tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "CACHE", tmp_path / "cache")
    bench.measure_all(options(), tmp_path)
    ours, z = read(tmp_path / "alarms.csv")
    assert (ours["detector"], ours["alarms"], ours["recall"], ours["precision"]) == (OURS, "2", "1", "1")
    assert (ours["delay"], ours["length_ratio"], ours["limit"]) == ("0", "1", "")
    assert (z["detector"], z["alarms"], z["events"]) == ("rolling robust z", "2", "2")
    assert float(z["limit"]) > 0
    assert [row["ap"] for row in read(tmp_path / "alarms-scores.csv") if row["detector"] == OURS] == ["1", "1"]
    assert [row["alarms"] for row in read(tmp_path / "alarms-clean.csv")] == ["0", "0"]
    bench.measure_all(options(), tmp_path)
    assert cases.n_runs == 3
    assert len(read(tmp_path / "alarms.csv")) == 2
    bench.measure_all(options(again=[]), tmp_path)
    assert cases.n_runs == 6
    assert [row["detector"] for row in read(tmp_path / "alarms.csv")] == [OURS, "rolling robust z"]


def test_peers_that_are_not_installed_are_left_out(monkeypatch, capsys):
    monkeypatch.setattr(bench, "find_spec", lambda name: None)
    assert bench.installed(["krcf", "rolling robust z"]) == [OURS, "rolling robust z"]
    assert "krcf is not installed" in capsys.readouterr().out


def test_tables_have_a_line_for_each_detector():
    row = {"family": "cloud", "series": "2", "readings": "1000", "events": "4", "alarms": "2", "per_1000": "2"}
    ours = {**row, "detector": OURS, "recall": "0.5", "precision": "1", "delay": "3", "length_ratio": "1.25"}
    other = {**row, "detector": "krcf", "recall": "0", "precision": "0", "delay": "", "length_ratio": ""}
    text = bench.totals_text([{**ours, "limit": ""}, {**other, "limit": "1.2345"}])
    assert "**cloud**, 2 series, 1,000 readings, 4 events:" in text
    assert f"| {OURS} | 0.50 | 1.00 | 2 | 2.00 | 3 | 1.25 | its own |" in text
    assert "| krcf | 0.00 | 0.00 | 2 | 2.00 |  |  | 1.23 |" in text
    rankings = [{"detector": OURS, "family": "cloud", "series": one, "ap": one, "ap_later": ""} for one in ("0.5", "1")]
    assert bench.rankings_table(rankings).splitlines()[-1] == f"| {OURS} | 0.750 |  |"
    clean = [{"detector": OURS, "series": f"lognormal, seed {i}", "readings": "500", "alarms": str(i)} for i in (1, 2)]
    assert bench.clean_table(clean).splitlines()[-1] == "| lognormal | 3.00 |"
