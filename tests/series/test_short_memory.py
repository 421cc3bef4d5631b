"""Levels and alarms of a series, and the short memory of `SeriesMPF` from end to end."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import lfilter

from polyaforest import SeriesMPF, StreamingMPF
from polyaforest.detectors import loads
from polyaforest.series import find_events
from polyaforest.series.alarms import LIMIT, AlarmMonitor, Verdicts, alarms_of_table, judge_table, limit_of

pytestmark = pytest.mark.unit


def without_contexts(rows):
    """Return the surprise of context windows where there are none."""
    return np.full((4, len(rows)), np.nan)


def judged(values, *, holds=True):
    rows = np.asarray(values, float).reshape(-1, 1)
    monitor = AlarmMonitor(1, holds=holds)
    return monitor, monitor.advance(rows, without_contexts(rows))


def noise(n, seed=0):
    return np.random.default_rng(seed).normal(size=n)


def detector(**parameters):
    return SeriesMPF(StreamingMPF(n_estimators=20, random_state=0), **parameters)


# ---- streams ---------------------------------------------------------------------------------------------------------


@settings(max_examples=10)
@given(st.integers(0, 99), st.integers(1, 70))
def test_results_do_not_depend_on_chunks(seed, size):
    values = noise(300, seed)
    values[120:135] += 12
    values[200] = np.nan
    _, whole = judged(values)
    monitor, rows = AlarmMonitor(1, holds=True), values[:, None]
    parts = [rows[i : i + size] for i in range(0, 300, size)]
    pieces = [monitor.advance(part, without_contexts(part)) for part in parts]
    for column, found in zip(whole, zip(*pieces, strict=True), strict=True):
        assert np.array_equal(column, np.concatenate(found), equal_nan=True)


def test_spike_is_flagged_when_it_comes_and_no_longer():
    values = noise(200)
    values[90] = 25
    _, found = judged(values)
    flagged = np.flatnonzero(found.is_alarm)
    assert flagged[0] == 90
    assert flagged[-1] <= 91


def test_outage_stays_open_until_it_ends_and_teaches_nothing_meanwhile():
    values = 20 + noise(700)
    values[300:400] = 0
    monitor, found = judged(values)
    flagged = np.flatnonzero(found.is_alarm)
    assert flagged[0] == 300
    assert 399 <= flagged[-1] <= 402
    assert len(flagged) == flagged[-1] - 299
    assert monitor.n_open == 0


def test_without_holding_back_outage_becomes_normal():
    values = 20 + noise(700)
    values[300:400] = 0
    _, held = judged(values)
    _, taught = judged(values, holds=False)
    assert taught.is_alarm.sum() < held.is_alarm.sum()
    assert np.array_equal(taught.levels, held.levels, equal_nan=True)  # levels know all readings; alarms do not


def test_lasting_change_is_new_normal_after_256_readings():
    values = noise(900)
    values[300:] += 40
    _, found = judged(values)
    flagged = np.flatnonzero(found.is_alarm)
    assert flagged[0] == 300
    assert len(flagged) == 256
    assert not found.is_alarm[560:].any()


def test_flood_is_one_alarm_that_ends_with_it():
    rng = np.random.default_rng(4)
    values = rng.poisson(7, 900).astype(float)
    values[400:460] = rng.poisson(700, 60)
    _, found = judged(values)
    flagged = np.flatnonzero(found.is_alarm)
    assert flagged[0] == 400
    assert 458 <= flagged[-1] <= 462
    assert (np.diff(flagged) <= 8).all()


def test_leak_is_found_while_it_grows_and_its_end_is_no_second_incident():
    values = 40 + noise(1200)
    values[600:900] += np.linspace(0, 60, 300)
    found = detector().detect_then_learn(values)
    flagged = np.flatnonzero(found.is_anomaly)
    assert 600 < flagged[0] < 700
    assert not found.is_anomaly[200:600].any()


def test_slow_ramp_is_a_trend_and_raises_no_alarm():
    values = noise(3000) + np.linspace(0, 20, 3000)
    found = detector().detect_then_learn(values)
    begins = np.diff(found.is_anomaly.astype(int), prepend=0) == 1
    assert begins.sum() <= 3


@pytest.mark.parametrize("kind", ["normal", "ar", "poisson", "sparse", "sine"])
def test_clean_series_raise_few_alarms(kind):
    rng, n = np.random.default_rng(7), 4000
    values = {
        "normal": lambda: rng.normal(size=n),
        "ar": lambda: lfilter([1.0], [1.0, -0.9], rng.normal(size=n)),
        "poisson": lambda: rng.poisson(7, n),
        "sparse": lambda: rng.poisson(0.05, n),
        "sine": lambda: 3 * np.sin(np.arange(n) / 40) + rng.normal(0, 0.3, n),
    }[kind]()
    _, found = judged(values)
    begins = np.diff(found.is_alarm.astype(int), prepend=0) == 1
    assert begins.sum() <= 6  # 1.5 for each 1,000 readings


@pytest.mark.parametrize("kind", ["t", "lognormal"])
def test_heavy_tail_raises_limit(kind):
    rng = np.random.default_rng(3)
    values = rng.standard_t(3, 6000) if kind == "t" else rng.lognormal(size=6000)
    monitor, found = judged(values)
    begins = np.diff(found.is_alarm[2500:].astype(int), prepend=0) == 1
    assert monitor.loud > 14
    assert begins.sum() <= 6  # about one in 1,000 was asked for


def test_limit_needs_levels_to_rise():
    rng = np.random.default_rng(0)
    assert limit_of(rng.exponential(size=999), 10.0) == LIMIT
    assert limit_of(rng.exponential(size=1000), 12.0) > limit_of(rng.exponential(size=1000), 10.0) > LIMIT


def test_monitor_resumes_from_state():
    values = noise(400)
    values[300:420] += 30
    monitor, _ = judged(values)
    header, arrays = monitor.state()
    other, rows = AlarmMonitor.of_state(header, arrays, 1), noise(200, 5)[:, None]
    for column, same in zip(
        monitor.advance(rows, without_contexts(rows)), other.advance(rows, without_contexts(rows)), strict=True
    ):
        assert np.array_equal(column, same, equal_nan=True)


def test_long_stream_has_same_state_for_any_chunks_and_can_be_read():
    rows, whole, pieces = noise(4700)[:, None], AlarmMonitor(1), AlarmMonitor(1)
    whole.advance(rows, without_contexts(rows))
    for part in (rows[:256], rows[256:4300], rows[4300:]):
        pieces.advance(part, without_contexts(part))
    (header, arrays), (other, others) = whole.state(), pieces.state()
    assert header == other
    assert all(np.array_equal(arrays[name], others[name], equal_nan=True) for name in arrays)
    assert arrays["values"].shape == (1, 4104)
    AlarmMonitor.of_state(header, arrays, 1)


def test_long_table_can_be_read_from_file():
    series = detector().fit(noise(4700))
    assert loads(series.to_bytes()).n_seen_ == 4700


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_open", 999),
        ("limit", 0.05),
        ("n_fresh", 65),
        ("alone", 1.0),
        ("peaks", np.full(1, -1.0)),
        ("loud", 3.0),
        ("limit", float("inf")),
        ("weights", np.zeros(1)),
        ("known", np.full(1, -1.0)),
        ("known", np.full(1, np.nan)),
        ("is_start", np.ones(3, np.bool_)),
        ("trail", np.full(25, 0.0)),
        ("is_known", np.ones(3, np.bool_)),
        ("values", np.full((1, 400), np.inf)),
    ],
)
def test_damaged_state_is_reported(name, value):
    header, arrays = judged(noise(400))[0].state()
    (header if name in header else arrays)[name] = value
    with pytest.raises(ValueError, match=r"it has|its|array|weights|compares"):
        AlarmMonitor.of_state(header, arrays, 1)


# ---- tables ----------------------------------------------------------------------------------------------------------


def test_table_is_judged_by_both_sides():
    values = noise(400)
    values[150] = 20
    values[300:310] = 15
    found = judge_table(values[None], without_contexts(values))
    flagged = np.flatnonzero(found.is_alarm)
    assert {150, *range(300, 310)} <= set(flagged.tolist())
    assert all(147 <= i <= 153 or 297 <= i <= 313 for i in flagged)


def test_alarm_of_table_needs_level_above_limit():
    sharp = np.array([0.9, 0.9, 0.1, 0.8, 1.1])
    assert alarms_of_table(sharp, sharp, 1.0).tolist() == [False, False, False, True, True]
    assert not alarms_of_table(np.full(3, np.nan), np.full(3, np.nan), 1.0).any()


# ---- the detector ----------------------------------------------------------------------------------------------------


def waves(n=900, seed=0):
    return 20 + 5 * np.sin(np.arange(n) * 2 * np.pi / 24) + noise(n, seed)


def test_detector_flags_and_explains_from_first_readings():
    values = waves(500)
    values[60], values[400:405] = 70, 45
    found = detector().detect_then_learn(values, explain=True)
    flagged = np.flatnonzero(found.is_anomaly)
    assert {60, 400, 401} <= set(flagged.tolist())
    assert all(60 <= i <= 61 or 400 <= i <= 408 for i in flagged)
    assert found.explanations[60].summary == "x0 70, usually about 21.4 (15.4–25.2): too high"
    assert found.explanations[60].readings[0].value == 70
    assert set(found.explanations) == set(flagged.tolist())


def test_detector_judges_short_files():
    values = np.random.default_rng(0).poisson(7, 90).astype(float)
    values[50:53] = 400
    series = detector()
    flagged = np.flatnonzero(series.fit_predict(values) == -1)
    assert {50, 51, 52} <= set(flagged.tolist())
    assert flagged.min() >= 47
    assert flagged.max() <= 55
    assert series.explain(values, rows=[50], standalone=True)[0].summary.endswith("too high")
    with pytest.raises(ValueError, match="too few"):
        detector().fit(values[:20])


def test_detector_resumes_from_file_and_pickle():
    series = detector().fit(waves(600))
    rows = waves(200, seed=1)
    copies = [loads(series.to_bytes()), pickle.loads(pickle.dumps(series))]
    expected = series.detect_then_learn(rows)
    for copy in copies:
        found = copy.detect_then_learn(rows)
        assert np.array_equal(found.scores, expected.scores, equal_nan=True)
        assert np.array_equal(found.is_anomaly, expected.is_anomaly)


def test_detector_scores_ahead_like_learning_and_does_not_change():
    series, rows = detector().partial_fit(waves(600)), waves(40, seed=2)
    before = series.to_bytes()
    ahead = series.detect(rows)
    assert series.to_bytes() == before
    assert np.array_equal(series.score_samples(rows), ahead.scores)
    assert np.array_equal(series.predict(rows) == -1, ahead.is_anomaly)
    assert np.allclose(ahead.scores[0], series.detect_then_learn(rows).scores[0])


def test_deleted_readings_leave_short_memory():
    series = detector().partial_fit(waves(600))
    series.delete(series.keys_[-5:-4])
    assert len(series._model.monitor.recent.is_known) <= 5
    series.partial_fit(waves(50))
    assert not np.isnan(series.detect(waves(3)).scores).any()


def test_shingles_of_given_length_have_no_short_memory():
    rows = waves(300)
    found = [detector(shingle=3, short_memory=short).fit(rows[:200]).detect(rows[200:]) for short in (True, False)]
    assert np.array_equal(found[0].scores, found[1].scores)


def test_asking_for_more_alarms_lowers_limit():
    series = detector().partial_fit(waves(1500))
    rows = 20 + (waves(400, seed=3) - 20) * 1.2
    usual = series.detect(rows)
    series.flag_at_rate(0.05)
    more = series.detect(rows)
    assert np.array_equal(usual.scores, more.scores)
    assert usual.is_anomaly.sum() < more.is_anomaly.sum()
    assert series.offset_ > -LIMIT


def test_many_channels_are_judged_by_context_windows_alone():
    rows = np.stack([waves(500, seed) for seed in range(4)], axis=1)
    found = [detector(short_memory=short).detect_then_learn(rows) for short in (True, False)]
    assert np.array_equal(found[0].scores, found[1].scores, equal_nan=True)
    assert detector().partial_fit(rows[:, :3]).has_short_memory


def test_events_of_tables_have_the_length_of_incidents():
    values = 20 + 5 * np.sin(np.arange(2000) / 30) + noise(2000)
    values[500], values[800:860], values[1200:1205] = 60, 0, 80
    found = detector().fit(values).detect(values, standalone=True)
    events = find_events(found.is_anomaly, found.scores, merge=8)
    assert len(events) == 3
    for event, (first, last) in zip(events, [(500, 500), (800, 859), (1200, 1204)], strict=True):
        assert abs(event.first - first) <= 2
        assert abs(event.last - last) <= 2


def test_alarms_may_teach():
    values = 20 + noise(700)
    values[300:400] = 0
    held, taught = (detector(learn_alarms=learn).detect_then_learn(values) for learn in (False, True))
    assert taught.is_anomaly[300:400].sum() < held.is_anomaly[300:400].sum() == 100


def test_verdicts_are_empty_for_no_rows():
    found = AlarmMonitor(1).advance(np.empty((0, 1)), np.empty((4, 0)))
    assert [len(column) for column in found] == [0] * len(Verdicts._fields)


@pytest.mark.parametrize("shingle", ["auto", 3])
def test_trees_and_seed_need_no_forest(shingle):
    rows = waves(450)
    forest = StreamingMPF(n_estimators=8, random_state=3)
    plain = SeriesMPF(shingle=shingle, n_estimators=8, random_state=3).partial_fit(rows)
    assert np.array_equal(
        plain.score_samples(rows[:9]),
        SeriesMPF(forest, shingle=shingle).partial_fit(rows).score_samples(rows[:9]),
        equal_nan=True,
    )
    assert loads(plain.to_bytes()).get_params()["random_state"] == 3
    with pytest.raises(ValueError, match="n_estimators"):
        SeriesMPF(n_estimators=0).fit(rows)


def test_stream_of_rows_continues_with_short_memory():
    forest = StreamingMPF(n_estimators=8, window=300, random_state=0).partial_fit(waves(500)[:, None])
    series = SeriesMPF.from_stream(forest)
    found = series.detect_then_learn([99.0])
    assert found.is_anomaly.all()
    assert loads(series.to_bytes()).n_seen_ == 501
