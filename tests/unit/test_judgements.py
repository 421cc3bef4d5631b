"""Verdicts on rows as they come and before they do, lines, notes in model files, and rows with names."""

from io import BytesIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import polyaforest
from polyaforest import BatchMPF, ModelFileError, StreamingMPF
from polyaforest.core.validation import NamedRows
from polyaforest.decision.thresholds import RunningCalibration, conformal_threshold, line_below

ROWS = np.random.default_rng(8).normal(size=(260, 2))
ROWS[[180, 240]] = [[9.0, 0.0], [0.0, -12.0]]
SETTINGS = {"n_estimators": 6, "window": 60, "random_state": 1}


def concatenated(parts):
    return [np.concatenate(field) for field in zip(*parts, strict=True)]


@pytest.mark.parametrize("score", ["typicality", "mass"])
@pytest.mark.parametrize("rate", [None, 0.02])
def test_verdicts_are_those_of_the_line_and_the_same_in_any_chunks(score, rate):
    whole = StreamingMPF(**SETTINGS, score=score, false_alarm_rate=rate)
    judged = whole.judge_then_learn(ROWS)
    assert np.array_equal(judged.is_anomaly, judged.scores < judged.lines)
    parts = StreamingMPF(**SETTINGS, score=score, false_alarm_rate=rate)
    again = concatenated([parts.judge_then_learn(ROWS[start : start + 37]) for start in range(0, len(ROWS), 37)])
    assert all(np.array_equal(mine, theirs) for mine, theirs in zip(judged, again, strict=True))
    scores = StreamingMPF(**SETTINGS, score=score).score_then_learn(ROWS)
    assert np.array_equal(judged.scores, scores)
    if rate is not None:
        assert np.array_equal(judged.is_anomaly, judged.p_values <= rate)
    if score == "typicality":
        assert judged.is_anomaly[[180, 240]].all()
    assert not judged.is_anomaly[:100].any() or rate is not None


def test_a_row_that_is_looked_at_gets_the_verdict_that_it_gets_when_it_comes():
    forest = StreamingMPF(**SETTINGS)
    forest.judge_then_learn(ROWS[:150])
    for i in range(150, 210):  # past the 200th, when the first hundred leave
        ahead = forest.judge(ROWS[i : i + 1])
        come = forest.judge_then_learn(ROWS[i : i + 1])
        assert all(np.array_equal(mine, theirs) for mine, theirs in zip(ahead, come, strict=True))


@pytest.mark.parametrize("detector", [StreamingMPF, BatchMPF])
def test_forests_of_tables_judge_by_their_own_line(detector):
    forest = detector(n_estimators=5, random_state=0).fit(ROWS)
    judged = forest.judge(ROWS)
    assert np.array_equal(judged.is_anomaly, forest.predict(ROWS) < 0)
    assert np.array_equal(judged.p_values, forest.p_value(ROWS))


def test_no_rows_get_no_verdicts():
    forest = StreamingMPF(**SETTINGS).partial_fit(ROWS)
    assert all(field.shape == (0,) for field in forest.judge_then_learn(ROWS[:0]))


def test_a_line_tells_what_counts_as_an_anomaly_in_explanations():
    forest = StreamingMPF(**SETTINGS)
    forest.judge_then_learn(ROWS[:240])
    judged = forest.judge(ROWS[240:241])
    strict = forest.explain(ROWS[240:241], line=float(judged.lines[0]))[0]
    assert strict.is_anomaly
    assert strict.p_value == judged.p_values[0]
    assert not forest.explain(ROWS[240:241], line=-1e9)[0].is_anomaly


# ---- the line ------------------------------------------------------------------------------------------------------


def test_there_is_no_line_before_a_hundred_scores():
    assert line_below(sorted(np.linspace(-3, -2, 99)), 0.001) == -np.inf
    assert line_below(sorted(np.linspace(-3, -2, 100)), 0.001) > -np.inf


@pytest.mark.parametrize("rate", [0.001, 0.01])
def test_exponential_tails_end_where_they_hold_the_rate(rate):
    n = 100_000
    ascending = sorted((np.log((np.arange(n) + 0.5) / n)).tolist())  # the quantiles of -Exp(1)
    assert line_below(ascending, rate) == pytest.approx(np.log(rate), abs=0.3)


def test_a_burst_does_not_hide_itself():
    usual = np.random.default_rng(0).normal(-3, 0.3, 1000)
    calm = line_below(sorted(usual), 0.001)
    stormy = line_below(sorted([*usual[30:], *[-40.0] * 30]), 0.001)
    assert stormy > -40
    assert abs(stormy - calm) < 2


def test_scores_that_are_all_the_same_leave_only_lower_ones_to_flag():
    assert line_below([-2.0] * 500, 0.001) == -2.0


def test_scores_of_minus_infinity_draw_no_line():
    assert line_below([-np.inf] * 50 + [-2.0] * 450, 0.001) == -np.inf


@settings(max_examples=60)
@given(
    scores=st.lists(st.integers(-9, 0).map(float), min_size=1, max_size=60),
    rate=st.sampled_from([0.03, 0.1, 0.25, 0.5]),
)
def test_a_rate_gives_the_line_of_the_p_values(scores, rate):
    calibration = RunningCalibration(20)
    judged = calibration.judge_then_learn(np.array(scores), np.arange(len(scores)), rate)
    assert np.array_equal(judged.is_anomaly, judged.p_values <= rate)
    if len(calibration) >= 1 / rate:
        assert calibration.judge(np.zeros(1), rate).lines[0] == conformal_threshold(calibration.scores, rate)


# ---- notes and files ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [lambda: StreamingMPF(**SETTINGS).partial_fit(ROWS), lambda: BatchMPF().fit(ROWS)])
def test_notes_come_back_and_go_on(make, tmp_path):
    forest, notes = make(), {"position": {"offset": 17}, "columns": ["a", "é"]}
    assert forest.notes == {}
    forest.save(tmp_path / "a.mpf", notes=notes)
    loaded = polyaforest.load(tmp_path / "a.mpf")
    assert loaded.notes == notes
    loaded.save(tmp_path / "b.mpf")
    assert polyaforest.load(tmp_path / "b.mpf").notes == notes
    loaded.save(tmp_path / "c.mpf", notes={})
    assert polyaforest.load(tmp_path / "c.mpf").notes == {}


def test_notes_that_json_would_change_are_refused(tmp_path):
    forest = BatchMPF(n_estimators=2).fit(ROWS)
    with pytest.raises(ValueError, match="something else"):
        forest.save(tmp_path / "a.mpf", notes={1: "one"})
    assert not (tmp_path / "a.mpf").exists()


def test_an_open_file_holds_the_same_bytes_as_a_path(tmp_path):
    forest, memory = StreamingMPF(**SETTINGS).partial_fit(ROWS), BytesIO()
    forest.save(memory)
    forest.save(tmp_path / "a.mpf")
    assert memory.getvalue() == (tmp_path / "a.mpf").read_bytes()
    memory.seek(0)
    assert np.array_equal(polyaforest.load(memory).score_samples(ROWS), forest.score_samples(ROWS))
    with pytest.raises(ModelFileError, match="the file given"):
        polyaforest.load(BytesIO(b"nothing of the kind"))


# ---- rows with names ------------------------------------------------------------------------------------------------


def test_named_rows_are_learned_under_their_names():
    rows, plain = NamedRows(ROWS, ["cpu", "disk"]), StreamingMPF(**SETTINGS).partial_fit(ROWS)
    forest = StreamingMPF(**SETTINGS).partial_fit(rows[:100]).partial_fit(rows[100:])
    assert forest.feature_names_in_.tolist() == ["cpu", "disk"]
    assert np.array_equal(forest.score_samples(rows), plain.score_samples(ROWS))
    assert forest.explain(rows[180:181])[0].names == ["cpu", "disk"]


def test_other_names_are_refused():
    forest = StreamingMPF(**SETTINGS).partial_fit(NamedRows(ROWS, ["cpu", "disk"]))
    with pytest.raises(ValueError, match="'net'"):
        forest.partial_fit(NamedRows(ROWS, ["cpu", "net"]))
    with pytest.raises(ValueError, match="given none"):
        StreamingMPF(**SETTINGS).partial_fit(ROWS).partial_fit(NamedRows(ROWS, ["cpu", "disk"]))
    with pytest.raises(ValueError, match="3 names"):
        NamedRows(ROWS, ["a", "b", "c"])
    with pytest.raises(ValueError, match="minimum of 1"):
        StreamingMPF(**SETTINGS).fit(NamedRows(ROWS[:0], ["cpu", "disk"]))
