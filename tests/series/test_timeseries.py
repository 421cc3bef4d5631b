"""Shingles and series: gaps, clocks, names, deletion, scale, files and bad input."""

import copy
import io
import pickle
import struct
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from datetime import timezone as tz
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest
from effort import mostly_slow
from scipy.stats import ks_2samp
from sklearn import config_context
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks
from streams import bytes_of

import polyaforest
from polyaforest import EpsilonPhi, ModelFileError, Reservoir, SeriesMPF, StreamingMPF, Tree, Window
from polyaforest.forest.spec import weighting_of_rows
from polyaforest.forest.stream_checks import check_stream
from polyaforest.series import Shingler
from polyaforest.series.contexts import LEAST, context_features, layout_of, phase_features, season_features
from polyaforest.storage.modelfile import read_model, write_model

NOISE = np.random.default_rng(0).normal(size=(600, 2))
MINUTES = np.arange(600) * 60.0
FIRST = LEAST - 1  # the reading at which the first context window ends


def build(window=40, n_estimators=4, contamination="auto", **parameters):
    forest = StreamingMPF(n_estimators=n_estimators, window=window, contamination=contamination, random_state=0)
    return SeriesMPF(forest, **{"shingle": 3} | parameters)


def contexts(n_estimators=6, window=300, **parameters):
    """Context windows alone."""
    forest = StreamingMPF(n_estimators=n_estimators, window=window, random_state=0)
    return SeriesMPF(forest, short_memory=False, **parameters)


def waves(n, period=24, seed=0, n_channels=1, noise=0.1):
    """Readings that repeat, with noise, (n, n_channels)."""
    clock = np.arange(n)[:, None] + 5 * np.arange(n_channels)
    return np.sin(2 * np.pi * clock / period) + noise * np.random.default_rng(seed).normal(size=(n, n_channels))


# ---- the transformer -------------------------------------------------------------------------------------------------

ROWS_DEPEND_ON_ROWS = "what a row becomes depends on the rows before it"


@parametrize_with_checks(
    [Shingler(), Shingler(2, difference=True)],
    expected_failed_checks=lambda estimator: {
        "check_methods_subset_invariance": ROWS_DEPEND_ON_ROWS,
        "check_methods_sample_order_invariance": ROWS_DEPEND_ON_ROWS,
    },
)
def test_estimators_pass_scikit_learn_checks(estimator, check):
    check(estimator)


def test_shingles_are_oldest_first_and_padded_at_start_of_run():
    table = Shingler(3).fit_transform([[1, 10], [2, 20], [3, 30], [4, 40]])
    assert table.tolist() == [
        [1, 10, 1, 10, 1, 10],
        [1, 10, 1, 10, 2, 20],
        [1, 10, 2, 20, 3, 30],
        [2, 20, 3, 30, 4, 40],
    ]
    changes = Shingler(2, difference=True).fit_transform([[1.0], [2.0], [5.0]])
    assert changes.tolist() == [[0, 0], [0, 1], [1, 3]]


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([0, 1.1, 1.9, 3], [[1, 1, 1], [1, 1, 2], [1, 2, 4], [2, 4, 8]]),  # jitter
        ([0, 1, 3, 4], [[1, 1, 1], [1, 1, 2], [2, 3, 4], [3, 4, 8]]),  # one step missing, on a line
        ([0, 1, 4, 5], [[1, 1, 1], [1, 1, 2], [4, 4, 4], [4, 4, 8]]),  # too many: restarts
        ([0, 1, 1, 2], [[1, 1, 1], [1, 1, 2], [1, 2, 4], [2, 4, 8]]),  # the same time twice
    ],
)
def test_gaps_are_interpolated_or_start_run(times, expected):
    shingler = Shingler(3, every=timedelta(seconds=1), max_gap=1)
    rows = [[1.0], [2.0], [4.0], [8.0]]
    assert shingler.fit_transform(rows, times=times).tolist() == expected
    dates = [datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=time) for time in times]
    assert shingler.fit_transform(rows, times=dates).tolist() == expected
    assert shingler.fit_transform(rows, times=pd.to_datetime(dates)).tolist() == expected


def test_missing_values_are_missing_steps():
    rows = [[1.0, 5.0], [np.nan, np.nan], [3.0, np.nan], [4.0, 8.0]]
    table = Shingler(2, max_gap=2).fit_transform(rows)
    assert np.array_equal(table, [[1, 5, 1, 5], [np.nan] * 4, [np.nan] * 4, [3, 7, 4, 8]], equal_nan=True)
    table = Shingler(2, max_gap=1).fit_transform(rows)
    assert table[3].tolist() == [4, 8, 4, 8]  # the second channel was away for too long


def test_spacing_is_median_of_table():
    times = [0.0, 10.0, 20.0, 20.0, 50.0, 60.0]
    shingler = Shingler(2).fit(np.zeros((6, 1)), times=times)
    assert shingler.every_ == 10.0
    assert shingler.transform([[0.0], [3.0]], times=[0.0, 30.0])[1].tolist() == [2.0, 3.0]
    assert Shingler(2).fit(np.zeros((2, 1))).every_ is None
    assert Shingler(2).fit(np.zeros((3, 1)), times=[5.0, 5.0, 5.0]).every_ == 0.0


def test_calendar_uses_time_zone():
    noon = datetime(2024, 7, 1, 10, tzinfo=UTC)  # noon in Berlin, a Monday
    shingler = Shingler(1, calendar=("time of day", "day of week"), timezone="Europe/Berlin")
    times = [noon, noon + timedelta(hours=6), noon + timedelta(hours=12)]
    table = shingler.fit_transform(np.zeros((3, 1)), times=times)
    assert np.allclose(table[0], [0, 0, -1, 0, 1])
    assert np.allclose(table[1], [0, -1, 0, 0, 1])
    assert np.allclose(table[2], [0, 0, 1, np.sin(2 * np.pi / 7), np.cos(2 * np.pi / 7)])
    winter = shingler.transform([[0.0]], times=[datetime(2024, 12, 2, 11, tzinfo=UTC)])
    assert np.allclose(winter[0], [0, 0, -1, 0, 1])
    utc = shingler.set_params(timezone="UTC").transform([[0.0]], times=[datetime(2024, 12, 2, 12, tzinfo=UTC)])
    assert np.allclose(utc, winter)


def test_feature_names_contain_age():
    frame = pd.DataFrame({"cpu": [1.0, 2.0], "disk": [3.0, 4.0]})
    shingler = Shingler(2, calendar="time of day").set_output(transform="pandas")
    table = shingler.fit_transform(frame, times=[0.0, 60.0])
    assert table.columns.tolist() == [
        "cpu[-1]",
        "disk[-1]",
        "cpu",
        "disk",
        "time of day (sin)",
        "time of day (cos)",
    ]
    assert table["cpu[-1]"].tolist() == [1.0, 1.0]
    names = Shingler(3, difference=True).fit(frame[["cpu"]]).get_feature_names_out()
    assert names.tolist() == ["change of cpu[-2]", "change of cpu[-1]", "change of cpu"]


def test_pipeline_passes_times():
    with config_context(enable_metadata_routing=True):
        shingler = Shingler(4, every=60.0).set_fit_request(times=True).set_transform_request(times=True)
        forest = StreamingMPF(n_estimators=10, random_state=0).set_fit_request(times=False, keys=False)
        pipeline = make_pipeline(shingler, forest)
        pipeline.fit(NOISE, times=MINUTES)
        late = np.where(np.arange(600) < 300, MINUTES, MINUTES + 1e6)
        at_once, with_gap = (pipeline.decision_function(NOISE, times=times) for times in (MINUTES, late))
    assert np.array_equal(at_once[:300], with_gap[:300])
    assert at_once[300] != with_gap[300]
    assert np.array_equal(at_once[303:], with_gap[303:])


# ---- the detector ----------------------------------------------------------------------------------------------------


def test_series_equals_forest_on_shingles():
    model = build().partial_fit(NOISE[:100])
    table = np.lib.stride_tricks.sliding_window_view(NOISE[:100].ravel(), 6)[::2]
    plain = StreamingMPF(n_estimators=4, window=40, random_state=0).partial_fit(np.ascontiguousarray(table))
    assert model.estimator_.points_.tobytes() == plain.points_.tobytes()
    assert (model.n_seen_, model.n_points_, model.n_features_in_) == (100, 40, 2)
    assert model.estimator_.keys_ == list(range(60, 100))
    assert model.keys_ == list(range(58, 100))
    ahead = model.score_samples(NOISE[100:110])
    assert not np.isnan(ahead).any()
    np.testing.assert_allclose(ahead[0], model.score_then_learn(NOISE[100:101])[0], rtol=1e-12)
    for found, expected in zip(model.detect(NOISE[101:102])[:4], model.detect_then_learn(NOISE[101:102]), strict=False):
        np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("policy", [{}, {"contamination": 0.2}, {"false_alarm_rate": 0.1}], ids=str)
def test_all_methods_use_one_threshold(policy):
    forest = StreamingMPF(n_estimators=8, window=200, random_state=0, **policy)
    model = SeriesMPF(forest, shingle=3).fit(NOISE[:400], times=MINUTES[:400])
    rows, times = NOISE[400:460].copy(), 60.0 + MINUTES[400:460]
    rows[20], rows[40], times[50:] = 9.0, np.nan, times[50:] + 3600
    detected = model.detect(rows, times=times)
    silent = np.isnan(detected.scores)
    assert np.flatnonzero(silent).tolist() == [40, 50, 51]
    assert detected.is_anomaly[20]
    np.testing.assert_array_equal(detected.is_anomaly, model.predict(rows, times=times) == -1)
    distance = model.decision_function(rows, times=times)
    np.testing.assert_array_equal(np.isnan(distance), silent)
    np.testing.assert_array_equal(detected.is_anomaly[~silent], distance[~silent] < 0)
    np.testing.assert_array_equal(detected.is_anomaly[~silent], detected.scores[~silent] < model.offset_)
    np.testing.assert_array_equal(detected.p_values, model.p_value(rows, times=times))
    explained = model.explain(rows, times=times, rows=np.flatnonzero(~silent))
    np.testing.assert_array_equal([one.is_anomaly for one in explained], detected.is_anomaly[~silent])
    np.testing.assert_allclose([one.p_value for one in explained], detected.p_values[~silent])
    twin = copy.deepcopy(model)
    np.testing.assert_array_equal(twin.detect_then_learn(rows[:1], times=times[:1]).is_anomaly, detected.is_anomaly[:1])


def test_flagged_readings_are_explained_before_they_are_learned():
    model = build(n_estimators=8, window=200, contamination=0.1)
    frame = pd.DataFrame(NOISE[:500], columns=["cpu", "load"])
    frame.iloc[300] = 25.0
    detected = model.detect_then_learn(frame, explain=True)
    assert set(detected.explanations) == set(np.flatnonzero(detected.is_anomaly).tolist())
    reason = detected.explanations[300]
    assert set(reason.names) == {f"{name}{step}" for name in ("cpu", "load") for step in ("[-2]", "[-1]", "")}
    np.testing.assert_allclose(-np.log(2) * reason.surprise, detected.scores[300], rtol=1e-9)
    assert reason.p_value == detected.p_values[300]
    assert next(iter(model.bits_by_channel(reason))) in ("cpu", "load")


def test_scores_are_nan_until_shingle_is_complete():
    times = np.concatenate([MINUTES[:20], MINUTES[20:40] + 600])
    model = build(every=60.0)
    judged = model.detect_then_learn(NOISE[:40], times=times)
    silent = np.flatnonzero(np.isnan(judged.scores))
    assert silent.tolist() == [0, 1, 20, 21]
    assert np.isnan(judged.p_values[silent]).all()
    assert not judged.is_anomaly[silent].any()
    p_values = (
        build().detect_then_learn(NOISE[:40], times=times).p_values
    )  # the spacing is known from the fourth row on
    assert np.flatnonzero(np.isnan(p_values)).tolist() == [0, 1, 2, 20, 21]
    assert np.isnan(model.score_samples(NOISE[:3], times=times[-1] + 1e6 + MINUTES[:3])).tolist() == [1, 1, 0]


def test_spacing_is_measured_on_first_rows_or_whole_table():
    times = np.cumsum([0, 60, 60, 60, *[10] * 36])
    model = build()
    assert model.partial_fit(NOISE[:3], times=times[:3]).every_ is None
    assert model.partial_fit(NOISE[3:40], times=times[3:]).every_ == 60.0
    assert build().fit(NOISE[:40], times=times).every_ == 10.0
    assert build().partial_fit(NOISE[:40]).every_ is None


def test_fit_can_be_continued():
    model = build(window=20).fit(NOISE[:100], keys=[f"row {i}" for i in range(100)], times=MINUTES[:100])
    assert model.estimator_.keys_ == [f"row {i}" for i in range(80, 100)]
    assert model.keys_ == [f"row {i}" for i in range(78, 100)]
    assert not np.isnan(model.score_then_learn(NOISE[100:200], times=MINUTES[100:200])).any()
    assert np.array_equal(model._model.history.spread > 0, np.ones(6, bool))
    again = model.fit(NOISE[:50])
    assert (again.n_seen_, again.n_points_) == (50, 20)


@pytest.mark.parametrize("calendar", [(), ("time of day", "day of week")])
def test_fit_predict_accepts_times(calendar):
    start = datetime(2024, 5, 6, tzinfo=UTC)
    times = [start + timedelta(seconds=float(second)) for second in MINUTES]
    flags = build(1024, calendar=calendar, contamination=0.1).fit_predict(NOISE, times=times)
    model = build(1024, calendar=calendar, contamination=0.1).fit(NOISE, times=times)
    later = [time + timedelta(weeks=1) for time in times]
    np.testing.assert_array_equal(flags, model.predict(NOISE, times=later))
    assert 0 < (flags == -1).sum() < 120
    assert (flags[:2] == 1).all()  # no shingle ends there


@pytest.mark.parametrize("as_line", [np.asarray, pd.Series, list])
def test_single_channel_may_be_one_dimensional(as_line):
    line = NOISE[:60, 0]
    scores = build().score_then_learn(as_line(line))
    assert np.array_equal(scores, build().score_then_learn(line[:, None]), equal_nan=True)


def test_threads_can_share_series():
    model = build(window=200)
    with ThreadPoolExecutor(4) as pool:
        learning = [pool.submit(model.score_then_learn, NOISE[i : i + 50]) for i in range(0, 600, 50)]
        looking = [pool.submit(model.score_samples, NOISE[:5]) for _ in range(50) if hasattr(model, "estimator_")]
        scores = [future.result() for future in (*learning, *looking)]
    assert model.n_seen_ == 600
    assert sum(np.isnan(part).sum() for part in scores[: len(learning)]) == 2  # of one series, not of several
    assert model.keys_ == list(range(398, 600))
    model._model.history.provenance.check(600)


def test_explanations_name_channels_and_steps():
    frame = pd.DataFrame(NOISE[:300], columns=["cpu", "disk"])
    model = build(window=200, n_estimators=20, calendar=("time of day",)).partial_fit(frame, times=MINUTES[:300])
    odd = pd.DataFrame([[0.0, 0.0], [25.0, 0.0], [0.0, 0.0]], columns=["cpu", "disk"])
    said = model.explain(odd, times=MINUTES[300:303])
    assert said[1].attributions[0].name == "cpu"
    assert said[2].attributions[0].name == "cpu[-1]"
    assert "cpu[-1]" in str(said[2])
    bits = model.bits_by_channel(said[2])
    assert next(iter(bits)) == "cpu"
    assert set(bits) == {"cpu", "disk", "time of day"}
    assert sum(bits.values()) == pytest.approx(said[2].surprise - said[2].typical)
    assert str(model.explain(odd, times=MINUTES[300:303], rows=[2])[0]) == str(said[2])
    only = model.explain(odd, ["disk"], times=MINUTES[300:303], rows=[1])
    assert {attributions.name for attributions in only[0].attributions} <= {"disk"}
    many = model.explain(frame.iloc[:40], times=MINUTES[300:340])  # words are looked up when asked for
    assert many.names == said.names
    assert {attributions.name for one in many for attributions in one.attributions} <= set(said.names)
    assert model.n_seen_ == 300


# ---- context windows -------------------------------------------------------------------------------------------------


def columns_of(model, view):
    """Where the features of a view are among those of all."""
    return next(member.columns for member in model._model.views.members if member.name == view)


def test_series_scores_context_windows_by_default():
    rows = waves(500)
    model = SeriesMPF(StreamingMPF(random_state=0)).fit(rows)
    sizes = {name: forest.n_estimators for name, forest in model.estimators_.items()}
    assert sizes == dict.fromkeys(("change", "shape", "season", "rhythm"), 25)
    assert (model.n_seen_, model.n_points_, model.periods_) == (500, 500 - FIRST, (24,))
    layout = layout_of(1)
    expected = context_features(rows, np.arange(FIRST, 500), np.zeros(500 - FIRST, int))
    expected[:, -4:] = phase_features(np.arange(float(FIRST), 500), (24,))
    expected[:, layout.season] = season_features(rows, np.arange(FIRST, 500), 24)
    for name, forest in model.estimators_.items():
        np.testing.assert_array_equal(forest.points_, expected[:, columns_of(model, name)])
        assert forest.keys_ == list(range(FIRST, 500))
    assert sum(layout.widths) == expected.shape[1]
    with pytest.raises(AttributeError, match="estimators_"):
        _ = model.estimator_
    assert list(build().fit(NOISE).estimators_) == ["shingle"]


def test_score_is_mean_over_trees_of_all_views():
    model = contexts(n_estimators=9).fit(waves(600, n_channels=2))
    rows = waves(20, seed=1, n_channels=2)
    aligned = model._model.history.align(rows, np.full(20, np.nan)).shingles()
    forests = model.estimators_
    scores = [forest.score_samples(aligned[:, columns_of(model, name)]) for name, forest in forests.items()]
    sizes = [len(forest.forest_.left) for forest in forests.values()]
    assert sum(sizes) == 9
    np.testing.assert_allclose(model.score_samples(rows), np.average(scores, axis=0, weights=sizes), rtol=1e-12)
    together = model.score_samples(rows)
    assert model.score_samples(rows[:1])[0] == together[0]  # the same bits for one row or many


def test_scores_are_nan_during_warm_up_in_all_methods():
    model, rows = contexts(), waves(370)
    for i in range(0, 370, 10):
        part = rows[i : i + 10]
        ahead = model.score_samples(part) if i else np.full(10, np.nan)
        asked = model.detect(part) if i else None
        judged = model.detect_then_learn(part)
        is_silent = np.arange(i, i + 10) < FIRST + 256
        np.testing.assert_array_equal(np.isnan(judged.scores), is_silent)
        np.testing.assert_array_equal(np.isnan(judged.p_values), is_silent)
        assert not judged.is_anomaly[is_silent].any()
        if i:
            np.testing.assert_array_equal(np.isnan(ahead), np.full(10, i < FIRST + 256))
            np.testing.assert_array_equal(np.isnan(asked.scores), np.isnan(ahead))
    with pytest.raises(ValueError, match="context window of 96 unbroken readings"):
        contexts().partial_fit(rows[:100]).explain(rows[:5])
    assert not np.isnan(contexts().fit(rows[:120]).score_then_learn(rows[120:130])).any()  # a table needs no warming up


def test_context_window_restarts_after_long_gap_only():
    rows, times = waves(700), np.arange(700) * 60.0
    times[400:] += 2 * 60.0
    times[500:] += 50 * 60.0
    model = contexts(every=60.0)
    scores = model.score_then_learn(rows, times=times)
    expected = (np.arange(700) < FIRST + 256) | ((np.arange(700) >= 500) & (np.arange(700) < 500 + FIRST))
    np.testing.assert_array_equal(np.isnan(scores), expected)
    late = contexts()
    assert np.flatnonzero(np.isnan(late.score_then_learn(rows, times=times)) != expected).tolist() == [FIRST + 256]
    assert late.every_ == 60.0  # measured by as many steps, after the first context window could have ended
    rows[450] = np.nan
    judged = contexts(every=60.0).detect_then_learn(rows[:, 0], times=times)
    assert np.flatnonzero(np.isnan(judged.scores) & ~expected).tolist() == [450]


def test_threshold_is_same_before_and_while_learning():
    rows = waves(900, noise=0.3)
    for model in (contexts().fit(rows[:800]), contexts().partial_fit(rows[:800])):
        for i in range(800, 830):
            ahead, offset = model.detect(rows[i : i + 1]), model.offset_
            judged = model.detect_then_learn(rows[i : i + 1])
            assert judged.thresholds[0] == ahead.thresholds[0] == offset
            assert judged.p_values[0] == ahead.p_values[0]


def test_rhythm_of_stream_does_not_depend_on_window():
    model = contexts()
    assert model.partial_fit(waves(511)).periods_ == ()
    assert model.partial_fit(waves(512)[511:]).periods_ == (24,)
    rhythm = model.estimators_["rhythm"]
    clock = np.array(rhythm.keys_, float)
    np.testing.assert_array_equal(rhythm.points_[:, -4:], phase_features(clock, (24,)))
    rows = waves(4200)
    sampled = SeriesMPF(StreamingMPF(n_estimators=4, random_state=0)).fit(rows[:3000])  # holds readings drawn at random
    assert sampled.n_points_ == 2048
    assert sampled.partial_fit(rows[3000:]).periods_ == (24,)
    holes = rows[:600].copy()
    holes[::50] = np.nan
    assert contexts().partial_fit(holes).periods_ == (24,)


def test_every_without_times_does_not_define_clock():
    with_every, without = contexts(every=60.0).fit(waves(600)), contexts().fit(waves(600))
    np.testing.assert_array_equal(with_every._model.views.points, without._model.views.points)
    streamed = contexts(every=60.0).partial_fit(waves(600))
    assert streamed.periods_ == (24,)
    assert not np.isnan(streamed._model.views.points).any()


def test_rhythm_follows_clock():
    """After an outage the phase is that of the time, not of the count."""
    rows, times = waves(1000), np.arange(1000) * 3600.0
    kept = np.r_[0:700, 712:1000]  # half a day without readings
    model = contexts(window=900).fit(rows[kept], times=times[kept])
    phases = model.estimators_["rhythm"].points_[:, -4:]
    clock = times[kept][np.array(model.estimators_["rhythm"].keys_)] / 3600.0
    np.testing.assert_allclose(phases, phase_features(clock, (24,)), atol=1e-9)


# ---- anomalies in context --------------------------------------------------------------------------------------------


def best_of(n=40):
    return SeriesMPF(StreamingMPF(n_estimators=n, random_state=0))


def flagged_in(detected, start, stop):
    """Whether rows from `start` to `stop` are flagged, and none that came 200 rows before."""
    flagged = np.flatnonzero(detected.is_anomaly)
    before = flagged[(flagged >= start - 200) & (flagged < start)]
    return bool(((flagged >= start) & (flagged < stop)).any()) and not len(before)


def flat_line(rows):
    rows[900:940] = rows[900]


def no_rise(rows):
    rows[900:936] = np.minimum(rows[900:936], 0.0)


def phase_jump(rows):
    rows[900:-7] = rows[907:].copy()


@pytest.mark.parametrize("event", [flat_line, no_rise, phase_jump])
def test_anomalies_of_usual_values_are_found(event):
    rows = waves(1100)
    event(rows)
    assert np.abs(rows).max() < 2.0
    streamed = best_of().detect_then_learn(rows)
    assert flagged_in(streamed, 900, 960)
    fitted = best_of().fit(np.delete(rows, slice(890, None), axis=0)).detect(rows[890:])
    assert flagged_in(fitted, 10, 70)


def test_fitted_table_can_be_scored_standalone():
    rows = waves(2000)
    rows[1500:1530] = rows[1500]
    model = best_of().fit(rows)
    found = model.detect(rows, standalone=True)
    assert not np.isnan(found.scores[FIRST:]).any()
    assert flagged_in(found, 1495, 1560)
    np.testing.assert_array_equal(model.score_samples(rows, standalone=True), found.scores)
    np.testing.assert_array_equal(model.predict(rows, standalone=True) == -1, found.is_anomaly)
    np.testing.assert_array_equal(best_of().fit_predict(rows) == -1, found.is_anomaly)
    assert (found.scores <= found.thresholds)[found.is_anomaly].all()
    np.testing.assert_array_equal(model.p_value(rows, standalone=True), found.p_values)
    explained = model.explain(rows, rows=np.flatnonzero(found.is_anomaly), standalone=True)
    assert all(one.is_anomaly for one in explained)
    assert model.n_seen_ == 2000


@pytest.mark.parametrize("period", [12, 24, 50])
def test_start_of_series_or_context_window_is_not_flagged(period):
    rows = waves(1600, period)
    found = best_of().fit(rows).detect(rows, standalone=True)
    assert found.is_anomaly[:200].sum() < 5
    times = 60.0 * (np.arange(1600) + 100 * (np.arange(1600) >= 1100))
    streamed = best_of().detect_then_learn(rows, times=times)
    assert streamed.is_anomaly[1100:1300].sum() < 5


def test_explanations_of_context_windows_name_channel():
    rows = pd.DataFrame(waves(900, n_channels=2), columns=["cpu", "disk"])
    model = contexts(40, window=2048, calendar=("time of day",)).fit(rows, times=np.arange(900) * 3600.0)
    odd = pd.DataFrame(waves(1000, n_channels=2)[900:], columns=["cpu", "disk"])
    odd.loc[50:, "disk"] += 4.0
    said = model.explain(odd, times=np.arange(900, 1000) * 3600.0, rows=[50, 55, 60])
    for one in said:
        assert one.is_anomaly
        assert "disk" in one.attributions[0].name
        bits = model.bits_by_channel(one)
        assert next(iter(bits)) == "disk"
        assert set(bits) == {"cpu", "disk", "phase", "time of day"}
        assert sum(bits.values()) == pytest.approx(one.surprise - one.typical)
    with pytest.raises(ValueError, match="do not belong to this series"):
        contexts().fit(rows.rename(columns={"cpu": "gpu"})).bits_by_channel(said[0])


def test_flagged_context_windows_are_explained_before_they_are_learned():
    rows = waves(900, n_channels=2)
    rows[800:, 1] += 4.0
    plain, model = best_of().detect_then_learn(rows), best_of()
    detected = model.detect_then_learn(rows, explain=True)
    np.testing.assert_array_equal(detected.is_anomaly, plain.is_anomaly)
    np.testing.assert_array_equal(detected.scores, plain.scores)
    assert set(detected.explanations) == set(np.flatnonzero(detected.is_anomaly).tolist())
    reason = detected.explanations[800]
    assert reason.is_anomaly
    assert next(iter(model.bits_by_channel(reason))) == "x1"


# ---- switches --------------------------------------------------------------------------------------------------------


def with_switches(n, n_switches, seed=0):
    rng = np.random.default_rng(seed)
    switches = (np.cumsum(rng.random((n, n_switches)) < 0.05, axis=0) % 2).astype(float)
    return np.hstack([waves(n, n_channels=2), switches])


@pytest.mark.parametrize("n_switches", [1, 3])
@pytest.mark.parametrize("is_table", [True, False])
def test_binary_channels_together_weigh_a_quarter(n_switches, is_table, tmp_path):
    rows = with_switches(600, n_switches)
    model = contexts().fit(rows) if is_table else contexts().partial_fit(rows)
    channels, first = model._model.history.pattern.channels(2 + n_switches), 0
    model.save(tmp_path / "model")
    for forest, loaded in zip(
        model.estimators_.values(), SeriesMPF.load(tmp_path / "model").estimators_.values(), strict=True
    ):
        own = channels[first : first + forest.n_features_in_]
        expected = np.where(own >= 2, 4.0 * n_switches, 1.0)
        np.testing.assert_array_equal(forest._stream.rules.damping, expected)
        np.testing.assert_array_equal(loaded._stream.rules.damping, expected)
        first += forest.n_features_in_


def test_single_or_only_binary_channels_keep_weight():
    only = contexts().fit(with_switches(600, 2)[:, 2:])
    for forest in only.estimators_.values():
        assert forest._stream.rules.damping is None or (forest._stream.rules.damping == 1).all()
    single = contexts().fit(with_switches(600, 1)[:, 2:])
    assert all(forest._stream.rules.damping is None for forest in single.estimators_.values())


def test_damped_feature_is_cut_less_often():
    rows = with_switches(900, 2)
    model = contexts(60).fit(rows)
    forest = model.estimators_["change"].forest_
    channels = model._model.history.pattern.channels(4)[: model.estimators_["change"].n_features_in_]
    cut = forest.feature[forest.left >= 0]
    shares = np.bincount(channels[cut], minlength=4) / len(cut)
    assert shares[2:].sum() < 0.5 * shares[:2].mean()  # nodes of few points hardly know of weights


# ---- deletion --------------------------------------------------------------------------------------------------------

SECRET, BEFORE, AFTER = 123456.789e7, 1234.5e3, 9.87654e6


def traces(model, *numbers):
    """How many of the numbers can be found in a series, or in its file."""
    file = io.BytesIO()
    model.save(file)
    found = bytes_of(model) + file.getvalue()
    return sum(struct.pack("<d", number) in found or struct.pack(">d", number) in found for number in numbers)


@pytest.mark.parametrize("n_after", [0, 1, 6])
@pytest.mark.parametrize("difference", [False, True])
def test_deleted_reading_leaves_no_trace(n_after, difference):
    """Neither the value nor anything derived from it remains."""
    derived = [SECRET - BEFORE, AFTER - SECRET] if difference else [SECRET]
    model = build(difference=difference).partial_fit(NOISE[:30, :1])
    model.partial_fit([[BEFORE]]).score_then_learn([[SECRET]], keys=["Jane Roe"])
    model.partial_fit([[AFTER], *NOISE[30 : 30 + n_after, :1]])
    model.explain(NOISE[:1, :1])
    assert traces(model, SECRET, *derived) > 0
    model.delete("Jane Roe")
    assert traces(model, SECRET, *derived, SECRET - BEFORE, AFTER - SECRET) == 0
    assert b"Jane Roe" not in bytes_of(model)
    assert np.isnan(model.score_then_learn(NOISE[50:60, :1])).sum() == max(2 + difference - 1 - n_after, 0)
    assert traces(copy.deepcopy(model), SECRET, *derived) == 0


def test_deleted_reading_leaves_no_interpolated_values():
    model = build(max_gap=3).partial_fit([*NOISE[:30, :1], [SECRET], [np.nan], [AFTER], [1.0], [2.0], [3.0]])
    middle = 0.5 * SECRET + 0.5 * AFTER
    assert traces(model, middle) == 1
    model.delete(32)  # the second of the two that it was filled in from
    assert traces(model, middle, AFTER) == 0
    assert traces(model, SECRET) == 1
    assert model.delete(30).keys_[-1] == 35
    assert traces(model, SECRET) == 0
    model = build(max_gap=3).partial_fit([*NOISE[:30, :1], [SECRET], [np.nan], [AFTER]])
    assert traces(model.delete(30), SECRET, middle) == 0  # the filled step is among those for shingles to come
    assert traces(model, AFTER) == 1


def test_deletion_removes_shingles_of_reading_only():
    model = build().partial_fit(NOISE[:60]).delete({40, 50})
    assert model.estimator_.keys_ == [i for i in range(20, 60) if i not in (40, 41, 42, 50, 51, 52)]
    assert {40, 50} & set(model.keys_) == set()
    assert 39 in model.keys_
    assert model.delete(59).score_then_learn(NOISE[60:64]).tolist()[:2] == pytest.approx([np.nan] * 2, nan_ok=True)
    assert model.n_seen_ == 64


def test_readings_without_shingles_are_forgotten():
    model = build(window=10).partial_fit(NOISE[:30], keys=[f"row {i}" for i in range(30)]).delete(["row 22", "row 24"])
    assert "row 23" not in model.keys_
    assert b"row 23" not in bytes_of(model)
    with pytest.raises(KeyError, match="'row 23'"):
        model.delete("row 23")


def test_deletion_is_all_or_nothing_and_requires_held_key():
    model = build(window=10).partial_fit(NOISE[:30], keys=["first", *range(100, 129)])
    before = pickle.dumps(model)
    for keys, problem in ((["first"], KeyError), ([128, 7], KeyError), ([120, 120], ValueError), (1.5, ValueError)):
        with pytest.raises(problem, match=r"Nothing was deleted|must be an integer"):
            model.delete(keys)
    assert pickle.dumps(model) == before
    with pytest.raises(ValueError, match="128 is already in use"):
        model.partial_fit(NOISE[:1], keys=[128])
    assert model.delete(np.array([128])).partial_fit(NOISE[:1], keys=[128]).keys_[-1] == 128
    assert model.delete(128).partial_fit(NOISE[:1], keys=["first"]).keys_[-1] == "first"


def test_forest_restarts_when_nothing_is_held():
    model = build().partial_fit(1e9 * NOISE[:30]).delete(list(range(30)))
    assert (model.n_points_, model.keys_, model.n_seen_) == (0, [], 30)
    assert traces(model, *(1e9 * NOISE[:30]).ravel().tolist()) == 0
    scores = model.score_then_learn(NOISE[30:60])
    assert np.array_equal(scores, build().score_then_learn(NOISE[30:60]), equal_nan=True)


def test_no_context_window_held_depends_on_deleted_reading():
    keys = [f"row {i}" for i in range(600)]
    model, rows = contexts(window=400), waves(600)
    rows[500] = SECRET
    model.detect_then_learn(rows, keys=keys)
    assert model.keys_ == keys  # those that are no longer held are still known for their season
    model.delete("row 500")
    assert not model.holds("row 500")
    assert "row 500" not in model.keys_
    left = set(keys[200:500])
    for forest in model.estimators_.values():
        assert set(forest.keys_) == left
        check_stream(forest._stream)
    assert np.abs(model._model.views.points).max() < 10
    assert traces(model, SECRET) == 0
    assert b"row 500" not in bytes_of(model)
    assert model._model.views.calibration.arrivals.max() < 500 - FIRST  # no score of a context window with it
    assert model.n_points_ == 300
    model._model.history.provenance.check(model.n_seen_)
    scores = model.score_then_learn(waves(640)[600:])
    assert not np.isnan(scores).any()  # 99 readings have come since


def test_series_restarts_after_deletion_of_all_readings():
    model = contexts().partial_fit(1e6 * waves(600))
    assert model.periods_ == (24,)
    model.delete(model.keys_)
    assert (model.n_points_, model.keys_, model.periods_) == (0, [], ())
    assert np.isnan(model.score_then_learn(NOISE[:300, :1])).all()
    assert np.abs(model._model.views.points).max() < 10


def test_context_windows_can_be_deleted_by_value():
    rows = waves(400)
    model = contexts().partial_fit(rows).delete_rows(rows[[200]])
    assert not model.holds(200)
    assert set(model.estimators_["shape"].keys_) & set(range(200, 328)) == set()
    with pytest.raises(ValueError, match="row 0"):
        model.delete_rows([[77.0]])


# ---- scale -----------------------------------------------------------------------------------------------------------


def spread_of(model):
    return weighting_of_rows(model.estimator_.points_).spread


def scores_without_outliers(seed, *, rescale, with_outliers):
    """Scores of ordinary rows by a series that had outliers at the beginning, since deleted, or never had any."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(300, 1))
    rows[10:290:40] = 1e6 if with_outliers else np.nan  # NaN: away for as long
    forest = StreamingMPF(n_estimators=30, window=1000, random_state=seed)
    model = SeriesMPF(forest, shingle=3, max_gap=0, rescale=rescale).partial_fit(rows)
    if with_outliers:
        model.delete(list(range(10, 290, 40)))
    return model, model.score_samples(rng.normal(size=(60, 1)))[2:]


def test_deleting_outlier_restores_scale():
    results = {}
    for name, rescale, with_outliers in (("clean", 2.0, False), ("deleted", 2.0, True), ("as it was", None, True)):
        runs = [scores_without_outliers(seed, rescale=rescale, with_outliers=with_outliers) for seed in range(6)]
        results[name] = np.concatenate([scores for _, scores in runs])
        if name == "deleted":
            assert all(np.array_equal(model._model.history.spread, spread_of(model)) for model, _ in runs)
            assert all(model.n_points_ == 300 - 2 - 3 * 7 for model, _ in runs)
    assert ks_2samp(results["clean"], results["deleted"]).pvalue > 0.01
    assert ks_2samp(results["clean"], results["as it was"]).pvalue < 1e-6  # hence the test can tell


def test_change_of_scale_is_detected_in_any_chunks():
    rows = np.concatenate([NOISE[:400], 50 * NOISE[400:], 50 * NOISE])
    models = [build(window=64), build(window=64), build(window=64, rescale=None)]
    scores = [models[0].score_then_learn(rows), models[2].score_then_learn(rows)]
    parts = [models[1].score_then_learn(part) for part in np.split(rows, [1, 77, 255, 256, 257, 440, 700])]
    assert np.array_equal(scores[0], np.concatenate(parts), equal_nan=True)
    assert models[0]._model.history.spread.tobytes() == models[1]._model.history.spread.tobytes()
    ratio = models[0]._model.history.spread / spread_of(models[0])
    assert ((ratio > 0.5) & (ratio < 2)).all()
    rescaled = slice(530, None)  # all readings held are of the new scale, and it has been measured
    assert scores[0][rescaled].mean() > scores[1][rescaled].mean() + 1


# ---- files -----------------------------------------------------------------------------------------------------------

MODELS = {
    "window": lambda: build().partial_fit(NOISE[:100]),
    "keyed": lambda: build(difference=True).partial_fit(NOISE[:50], keys=[f"row {i}" for i in range(50)]),
    "timed": lambda: build(window=Window(timedelta(minutes=9)), calendar=("time of day",)).partial_fit(
        NOISE[:300], times=MINUTES[:300]
    ),
    "sample": lambda: build(window=Reservoir(9), rescale=None).partial_fit(NOISE[:100]).delete([99]),
    "gaps": lambda: build(max_gap=5).partial_fit([*NOISE[:50], [np.nan, 1.0], [np.nan, np.nan]]),
    "no forest yet": lambda: build(every=60.0).partial_fit(NOISE[:2], times=MINUTES[:2]),
    "no spacing yet": lambda: build().partial_fit(NOISE[:3], times=MINUTES[:3]),
    "emptied": lambda: build().partial_fit(NOISE[:9]).delete(list(range(9))),
    "by default": lambda: SeriesMPF(shingle=2).fit(NOISE[:50]),
    "contexts": lambda: contexts().partial_fit(NOISE[:400]),
    "contexts with a rhythm": lambda: judged(contexts(), waves(600, n_channels=2)),
    "contexts of a table": lambda: judged(contexts().fit(waves(500, n_channels=2)), NOISE[:20]),
    "contexts in time": lambda: contexts(window=Window(timedelta(minutes=200)), calendar=("time of day",)).partial_fit(
        NOISE[:500], times=MINUTES[:500]
    ),
    "contexts warming up": lambda: contexts().partial_fit(NOISE[:200], keys=[f"row {i}" for i in range(200)]),
    "no context yet": lambda: contexts().partial_fit(NOISE[:20]),
    "contexts emptied": lambda: contexts().partial_fit(NOISE[:100]).delete(list(range(100))),
}


def judged(model, rows):
    model.detect_then_learn(rows)
    return model


def learn_more(model):
    """Return the results for more readings and the state after learning and deleting."""
    times = 1e5 + MINUTES[:100] if model._model.history.is_timed else None
    answers = [np.stack(model.detect_then_learn(NOISE[100:200], times=times)[:4])]
    model.delete(model.keys_[-4])
    return [
        *answers,
        model._model.views.points,
        np.array([str(key) for key in model.keys_]),
        np.array([*model.periods_, model._model.views.run_length]),
        *(forest.forest_.cut for forest in model.estimators_.values()),
    ]


@pytest.mark.parametrize("name", MODELS)
def test_saved_series_continues_bit_for_bit(name, tmp_path):
    model = MODELS[name]()
    model.save(tmp_path / "model", notes={"position": [1, "a"]})
    back = polyaforest.load(tmp_path / "model")
    assert type(back) is SeriesMPF
    assert back.notes == {"position": [1, "a"]}
    assert back.n_seen_ == model.n_seen_
    assert back.keys_ == model.keys_
    back.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "model").read_bytes()
    assert str(clone(back).get_params()) == str(clone(model).get_params())
    others = [pickle.loads(pickle.dumps(model)), copy.deepcopy(model)]
    expected = learn_more(model)
    for other in (back, *others):
        assert all(map(same_array, learn_more(other), expected))


def same_array(one, other):
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


WRONG = [None, -1, "x", 10**9, [], {}, 1.5, True]


@pytest.mark.parametrize("kind", mostly_slow(["keyed", "contexts with a rhythm"]))
def test_inconsistent_file_is_rejected(tmp_path, kind):
    path, other = tmp_path / "model", tmp_path / "other"
    MODELS[kind]().save(path)
    header, arrays = read_model(path)
    places = [("series", name) for name in header["series"]] + [
        ("series", "pattern", name) for name in header["series"]["pattern"]
    ]
    places += [("forest", name) for name in ("views", "is_seeded", "spell") if name in header["forest"]]
    places += [(name,) for name in ("template", "n_features", "feature_names", "series", "forest", "parameters")]
    for place in places:
        for wrong in WRONG:
            changed = copy.deepcopy(header)
            inner = changed
            for name in place[:-1]:
                inner = inner[name]
            if type(wrong) is type(inner[place[-1]]) or (wrong is None and inner[place[-1]] is None):
                continue
            inner[place[-1]] = wrong
            write_model(other, changed, arrays)
            assert_refused_or_sound(other)
    for name in [name for name in arrays if name.startswith(("series/", "forest/calibration/"))]:
        for wrong in damaged(arrays[name]):
            write_model(other, header, {**arrays, name: wrong})
            assert_refused_or_sound(other)
        write_model(other, header, {key: part for key, part in arrays.items() if key != name})
        if name not in ("series/spread", "series/periods", "series/deviations"):  # which not all files have
            with pytest.raises(ModelFileError):
                SeriesMPF.load(other)


def damaged(array):
    yield from (array[None], array.astype(np.float32), array.ravel()[:-1] if array.size else np.zeros(3))
    for wrong in (-1, 10**9, np.nan, np.inf) if array.dtype.kind == "f" else (-1, 0, 10**9):
        if array.dtype != np.uint8 and array.size:
            changed = array.copy()
            changed[(0,) * array.ndim] = wrong
            yield changed
    yield array[::-1] if array.ndim else array


def assert_refused_or_sound(path):
    """Loading raises `ModelFileError`, or the series can learn, delete and be saved again."""
    try:
        model = polyaforest.load(path)
    except ModelFileError:
        return
    model.score_then_learn(NOISE[:9])
    model.delete(model.keys_[-1])
    model.save(path)
    SeriesMPF.load(path)


@pytest.mark.parametrize(
    ("name", "place", "wrong"),
    [
        ("spans", (0, 0), 10),  # the newest reading, as if the shingle depended on it alone
        ("spans", (-1, 1), 48),
        ("since", (-1,), 10**6),
        ("numbers", (-1,), 3),
        ("values", (0, 0), 1e305),
        ("times", (0,), 5.0),
        ("named", (0,), 1),
        ("spread", (0,), 0.0),
    ],
)
def test_inconsistent_state_is_rejected(name, place, wrong, tmp_path):
    path = tmp_path / "model"
    MODELS["keyed"]().save(path)
    header, arrays = read_model(path)
    arrays[f"series/{name}"][place] = wrong
    write_model(path, header, arrays)
    with pytest.raises(ModelFileError, match="does not contain a valid model"):
        SeriesMPF.load(path)


def test_load_rejects_file_of_other_detector(tmp_path):
    StreamingMPF(n_estimators=2).fit(NOISE).save(tmp_path / "forest")
    with pytest.raises(ModelFileError, match="StreamingMPF"):
        SeriesMPF.load(tmp_path / "forest")


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda m: m.partial_fit(NOISE[:3], times=[1e6, 1e6 + 60, 1e6]),
            r"row 2 is 1000000.0, earlier than .* 1000060.0",
        ),
        (lambda m: m.partial_fit(NOISE[:1], times=[0.0]), r"row 0 is 0.0, earlier than .* 2940.0"),
        (lambda m: m.partial_fit(NOISE[:1]), "pass times for all readings or for none"),
        (lambda m: m.partial_fit(NOISE[:2], times=[1e6]), "one time for each of the 2 rows"),
        (lambda m: m.partial_fit(NOISE[:2, :1], times=[1e6, 2e6]), "1 features"),
        (lambda m: m.partial_fit([[0.0, np.inf]], times=[1e6]), "row 0, column 1 is inf"),
        (lambda m: m.partial_fit([[0.0, 7e99]], times=[1e6]), r"row 0, column 'x1' .* rescale"),
        (lambda m: m.partial_fit(NOISE[:2], times=[1e6, 2e6], keys=["a", "a"]), "'a' is already in use"),
        (lambda m: m.partial_fit(NOISE[:2], times=[1e6, 2e6], keys=["b", 49]), "49 is already in use"),
        (lambda m: m.explain(NOISE[:1], times=[1e6]), r"row 0 has no score.* it ends no complete shingle"),
        (lambda m: m.explain(NOISE[:1], ["no"], times=[1e6]), "no feature 'no'"),
        (lambda m: m.score_samples(NOISE[:1], times=[0.0]), "row 0 is 0.0"),
        (lambda m: m.fit(NOISE[:2]), "no complete shingle of 3 readings"),
        (lambda m: m.set_params(calendar=("time of week",)).fit(NOISE), "did you mean 'time of day'"),
        (lambda m: m.set_params(calendar=("time of day",)).fit(NOISE), "needs times"),
        (lambda m: m.set_params(calendar=("day of week",)).fit(NOISE[:9], times=[1e15] * 9), "not a date"),
        (lambda m: m.set_params(timezone="Mars/Dome").fit(NOISE), "no time zone 'Mars/Dome'"),
        (lambda m: m.set_params(shingle=0).fit(NOISE), "shingle"),
        (lambda m: m.set_params(every=timedelta(0)).fit(NOISE), "positive"),
        (lambda m: m.set_params(rescale=1.0).fit(NOISE), "rescale"),
        (lambda m: m.set_params(shingle="auto").fit(NOISE), "difference=True needs an integer shingle"),
        (
            lambda m: m.set_params(shingle="auto", difference=False, short_memory=False).fit(NOISE[:60]),
            "no context window of 96 unbroken readings",
        ),
        *(
            (lambda m, given=given: m.set_params(shingle="auto", difference=False, estimator=given).fit(NOISE), words)
            for given, words in (
                (StreamingMPF(window=Reservoir(9)), "a Reservoir does not work"),
                (StreamingMPF(score_type="mass"), "score_type='mass' does not work"),
                (StreamingMPF(score_type=EpsilonPhi(0.01)), "score_type=EpsilonPhi.* does not work"),
                (StreamingMPF(tree=Tree(domain="data")), "feature_weights and domain do not work"),
                (StreamingMPF(tree=Tree(feature_weights=[1.0, 2.0])), "feature_weights and domain do not work"),
            )
        ),
        (
            lambda m: m.set_params(estimator=StreamingMPF(window=None, tree=Tree(max_depth=4))).fit(NOISE),
            "window=None is not allowed",
        ),
        (lambda m: m.set_params(estimator=StreamingMPF(window=Window(duration=9.0))).fit(NOISE), "spans a duration"),
    ],
)
def test_bad_input_raises_and_changes_nothing(call, message):
    model = build(difference=True).partial_fit(NOISE[:50], times=MINUTES[:50])
    before = bytes_of(model._model.history) + bytes_of(model.estimator_)
    with pytest.raises(ValueError, match=message):
        call(model)
    assert bytes_of(model._model.history) + bytes_of(model.estimator_) == before
    assert not np.isnan(model.set_params(rescale=2.0).score_then_learn(NOISE[:9], times=MINUTES[50:59])).any()


def test_failed_first_call_leaves_detector_unfitted():
    model = build(calendar=("time of day",))
    for times in (None, [0.0, -1.0]):
        with pytest.raises(ValueError, match="time"):
            model.partial_fit(NOISE[:2], times=times)
        assert not hasattr(model, "estimator_")
        assert not hasattr(model, "n_features_in_")


def test_shingle_outside_domain_raises_with_row():
    model = SeriesMPF(StreamingMPF(n_estimators=2, window=9, tree=Tree(domain=[[-9.0] * 2, [9.0] * 2])), shingle=2)
    model.partial_fit(NOISE[:5, :1])
    with pytest.raises(ValueError, match="ends at row 1 lies outside the domain"):
        model.partial_fit([[0.0], [10.0], [0.0]])
    assert model.n_seen_ == 5


def test_summary_names_channel_even_if_it_looks_like_feature():
    for first, second in (("cpu", "cpu2"), ("a", "wave 1 of a"), ("volatility", "change")):
        rows = pd.DataFrame(waves(900, n_channels=2), columns=[first, second])
        model = contexts(40, window=2048).fit(rows)
        odd = pd.DataFrame(waves(1000, n_channels=2)[900:], columns=[first, second])
        odd.loc[50:, second] += 4.0
        said = model.explain(odd, rows=[50, 52])
        assert all(one.summary.startswith((f"{second} ", f"{second}:", f"the shape of {second} ")) for one in said)


@pytest.mark.parametrize(
    ("first", "timezone", "hour"),
    [
        (datetime(2024, 1, 1, tzinfo=UTC), "auto", 12),
        (datetime(2024, 1, 1), "auto", 12),
        (datetime(2024, 1, 1, 2, tzinfo=tz(timedelta(hours=2))), "auto", 14),
        (datetime(2024, 1, 1, 1, tzinfo=ZoneInfo("Europe/Berlin")), "auto", 13),
        (datetime(2024, 1, 1, tzinfo=UTC), "-05:30", 6),
    ],
)
def test_times_in_summary_use_time_zone(first, timezone, hour):
    steps = np.arange(600)
    load = np.where(steps % 24 >= 12, 10.0, 0.0) + np.random.default_rng(0).normal(0, 0.2, 600)
    load[588:] = load[580]  # the rise at noon of the last day does not come
    times = [first + timedelta(hours=int(step)) for step in steps]
    model = SeriesMPF(StreamingMPF(n_estimators=12, random_state=0), timezone=timezone).fit(
        load[:560], times=times[:560]
    )
    said = model.explain(load[560:], times=times[560:], rows=[36])[0]
    assert "the usual rise at" in said.summary
    assert f" {hour:02}:" in said.summary


# ---- forests of the views --------------------------------------------------------------------------------------------


def test_forests_of_views_follow_the_series_and_are_independent_once_copied():
    model = contexts().partial_fit(waves(400))
    forest = model.estimators_["change"]
    twin, n_seen = copy.deepcopy(forest), forest.n_seen_
    model.partial_fit(waves(410)[400:])
    assert (forest.n_seen_, twin.n_seen_) == (n_seen + 10, n_seen)
    assert forest.score_samples(twin.points_[:3]).shape == (3,)
    assert forest.n_estimators == len(forest.forest_.left)


@pytest.mark.parametrize("parameters", [{}, {"shingle": 4}])
def test_rate_to_flag_at_replaces_the_threshold_only(parameters):
    model = SeriesMPF(StreamingMPF(n_estimators=8, contamination=0.1, random_state=0), short_memory=False, **parameters)
    model.fit(waves(600))
    before, scores = model.offset_, model.score_samples(waves(650)[600:])
    model.flag_at_rate(0.01)
    assert model.offset_ < before
    np.testing.assert_array_equal(model.score_samples(waves(650)[600:]), scores)
    assert model.estimator.contamination == 0.1
    with pytest.raises(ValueError, match="rate must be"):
        model.flag_at_rate(2.0)


def test_categories_are_rejected_in_a_series():
    with pytest.raises(ValueError, match="categorical_features do not work in a series"):
        SeriesMPF(StreamingMPF(categorical_features=[0]), shingle=2).fit(NOISE)
