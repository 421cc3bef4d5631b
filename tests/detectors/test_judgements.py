"""Detections on rows before and while they are learned, notes in model files, and rows with names."""

import copy
from io import BytesIO

import numpy as np
import pytest
from effort import examples
from forests import made
from hypothesis import given, settings
from hypothesis import strategies as st

import polyaforest
from polyaforest import BatchMPF, Detections, ModelFileError, StreamingMPF
from polyaforest.forest.calibration import RunningCalibration
from polyaforest.forest.thresholds import ThresholdPolicy
from polyaforest.tables.validation import NamedRows

ROWS = np.random.default_rng(8).normal(size=(260, 2))
ROWS[[180, 240]] = [[9.0, 0.0], [0.0, -12.0]]
SETTINGS = {"n_estimators": 6, "window": 60, "random_state": 1}


@pytest.mark.parametrize("score", ["typicality", "mass"])
@pytest.mark.parametrize("rate", [None, 0.02])
def test_verdicts_are_those_of_the_line_and_the_same_in_any_chunks(score, rate):
    whole = made(StreamingMPF, **SETTINGS, score_type=score, false_alarm_rate=rate)
    judged = whole.detect_then_learn(ROWS)
    assert np.array_equal(judged.is_anomaly, judged.scores < judged.thresholds)
    parts = made(StreamingMPF, **SETTINGS, score_type=score, false_alarm_rate=rate)
    again = Detections.joined([parts.detect_then_learn(ROWS[start : start + 37]) for start in range(0, len(ROWS), 37)])
    for mine, theirs in zip(judged, again, strict=True):  # tail_bits are NaN where the tail is not known yet
        np.testing.assert_array_equal(mine, theirs)
    scores = made(StreamingMPF, **SETTINGS, score_type=score).score_then_learn(ROWS)
    assert np.array_equal(judged.scores, scores)
    if rate is not None:
        assert np.array_equal(judged.is_anomaly, judged.p_values <= rate)
    if score == "typicality":
        assert judged.is_anomaly[[180, 240]].all()
    assert not judged.is_anomaly[:100].any() or rate is not None


def test_a_row_that_is_looked_at_gets_the_verdict_that_it_gets_when_it_comes():
    forest = made(StreamingMPF, **SETTINGS)
    forest.detect_then_learn(ROWS[:150])
    for i in range(150, 210):  # past the 200th, when the first hundred leave
        ahead = forest.detect(ROWS[i : i + 1])
        come = forest.detect_then_learn(ROWS[i : i + 1])
        for mine, theirs in zip(ahead[:4], come[:4], strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-12)
        assert ahead.is_anomaly == come.is_anomaly


@pytest.mark.parametrize("detector", [StreamingMPF, BatchMPF])
def test_forests_of_tables_judge_by_their_own_line(detector):
    forest = detector(n_estimators=5, random_state=0).fit(ROWS)
    judged = forest.detect(ROWS)
    assert np.array_equal(judged.is_anomaly, forest.predict(ROWS) < 0)
    assert np.array_equal(judged.p_values, forest.p_value(ROWS))


def test_no_rows_get_no_verdicts():
    forest = made(StreamingMPF, **SETTINGS).partial_fit(ROWS)
    assert all(field.shape == (0,) for field in forest.detect_then_learn(ROWS[:0])[:4])


@pytest.mark.parametrize("size", [1, 37])
@pytest.mark.parametrize("begin", ["detect_then_learn", "fit"])
def test_flagged_rows_are_explained_by_the_forest_before_them_in_any_chunks(size, begin):
    forest = made(StreamingMPF, **SETTINGS)
    getattr(forest, begin)(ROWS[:150])
    twin = copy.deepcopy(forest)
    parts = [
        forest.detect_then_learn(ROWS[start : start + size], explain=True) for start in range(150, len(ROWS), size)
    ]
    found = Detections.joined(parts)
    assert set(found.explanations) == set(np.flatnonzero(found.is_anomaly)) >= {30, 90}
    for i, row in enumerate(ROWS[150:, None]):
        if i in found.explanations:
            expected = twin.explain(row)[0]
            np.testing.assert_allclose(found.explanations[i].parts, expected.parts)
            assert found.explanations[i].is_anomaly
            assert found.explanations[i].p_value == found.p_values[i] == expected.p_value
        twin.detect_then_learn(row)


@pytest.mark.parametrize("policy", [{}, {"contamination": 0.05}, {"false_alarm_rate": 0.05}])
@pytest.mark.parametrize("begin", ["fit", "partial_fit", "detect_then_learn"])
def test_a_stream_flags_what_predict_would_just_before(policy, begin):
    forest = made(StreamingMPF, **SETTINGS, **policy)
    getattr(forest, begin)(ROWS[:150])
    for row in ROWS[150:, None]:
        asked = forest.predict(row) == -1, forest.decision_function(row) < 0, forest.explain(row).is_anomaly
        assert [*asked] == [forest.detect_then_learn(row).is_anomaly] * 3


def test_forest_continues_after_fit_with_defaults():
    forest = StreamingMPF(n_estimators=5, random_state=0).fit(ROWS)
    assert forest.partial_fit(ROWS).n_seen_ == 2 * len(ROWS)
    assert forest.n_points_ == 2 * len(ROWS)
    assert forest.delete(forest.keys_[:10]).n_points_ == 2 * len(ROWS) - 10


@settings(max_examples=examples(60))
@given(
    scores=st.lists(st.integers(-9, 0).map(float), min_size=1, max_size=60),
    rate=st.sampled_from([0.03, 0.1, 0.25, 0.5]),
)
def test_a_rate_flags_the_p_values_that_are_at_most_it(scores, rate):
    calibration = RunningCalibration(20)
    judged = calibration.judge_then_learn(np.array(scores), np.arange(len(scores)), ThresholdPolicy(None, rate))
    assert np.array_equal(judged.is_anomaly, judged.p_values <= rate)


# ---- notes and files ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make", [lambda: made(StreamingMPF, **SETTINGS).partial_fit(ROWS), lambda: BatchMPF().fit(ROWS)]
)
def test_notes_are_restored_and_kept(make, tmp_path):
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
    with pytest.raises(ValueError, match="JSON"):
        forest.save(tmp_path / "a.mpf", notes={1: "one"})
    assert not (tmp_path / "a.mpf").exists()


def test_an_open_file_holds_the_same_bytes_as_a_path(tmp_path):
    forest, memory = made(StreamingMPF, **SETTINGS).partial_fit(ROWS), BytesIO()
    forest.save(memory)
    forest.save(tmp_path / "a.mpf")
    assert memory.getvalue() == (tmp_path / "a.mpf").read_bytes()
    memory.seek(0)
    assert np.array_equal(polyaforest.load(memory).score_samples(ROWS), forest.score_samples(ROWS))
    with pytest.raises(ModelFileError, match="the file given"):
        polyaforest.load(BytesIO(b"nothing of the kind"))


# ---- rows with names ------------------------------------------------------------------------------------------------


def test_named_rows_are_learned_under_their_names():
    rows, plain = NamedRows(ROWS, ["cpu", "disk"]), made(StreamingMPF, **SETTINGS).partial_fit(ROWS)
    forest = made(StreamingMPF, **SETTINGS).partial_fit(rows[:100]).partial_fit(rows[100:])
    assert forest.feature_names_in_.tolist() == ["cpu", "disk"]
    assert np.array_equal(forest.score_samples(rows), plain.score_samples(ROWS))
    assert forest.explain(rows[180:181])[0].names == ["cpu", "disk"]


def test_other_names_are_refused():
    forest = made(StreamingMPF, **SETTINGS).partial_fit(NamedRows(ROWS, ["cpu", "disk"]))
    with pytest.raises(ValueError, match="'net'"):
        forest.partial_fit(NamedRows(ROWS, ["cpu", "net"]))
    with pytest.raises(ValueError, match="fitted on columns without names"):
        made(StreamingMPF, **SETTINGS).partial_fit(ROWS).partial_fit(NamedRows(ROWS, ["cpu", "disk"]))
    with pytest.raises(ValueError, match="3 names"):
        NamedRows(ROWS, ["a", "b", "c"])
    with pytest.raises(ValueError, match="minimum of 1"):
        made(StreamingMPF, **SETTINGS).fit(NamedRows(ROWS[:0], ["cpu", "disk"]))
