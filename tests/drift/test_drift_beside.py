"""A monitor beside a detector: actions on changes, saving and deletion."""

from __future__ import annotations

import copy
import io
import pickle
from itertools import pairwise

import numpy as np
import pytest

from polyaforest import SeriesMPF, StreamingMPF, load
from polyaforest.detectors import loads
from polyaforest.drift import DriftMonitor

_REFERENCE = 128
_CHANGE = 400


def rows_with_change(n: int = 700, shift: float = 6.0) -> np.ndarray:
    rows = np.random.default_rng(0).normal(size=(n, 2))
    rows[_CHANGE:, 0] += shift
    return rows


def forest(**given: object) -> StreamingMPF:
    return StreamingMPF(**{"n_estimators": 8, "window": 300, "random_state": 0, **given})


def beside(detector: StreamingMPF | SeriesMPF, on_drift: str = "report") -> DriftMonitor:
    return DriftMonitor.beside(
        detector, reference=_REFERENCE, n_estimators=4, random_state=0, false_alarms_every=10_000, on_drift=on_drift
    )


def test_report_leaves_the_detector_unchanged() -> None:
    rows, plain, watched = rows_with_change(), forest(), forest()
    expected = plain.detect_then_learn(rows)
    detected, changes = beside(watched).detect_then_learn(rows)
    assert (detected.scores == expected.scores).all()
    assert [change.kind for change in changes][:2] == ["burst", "drift"]
    assert all(change.action == "" for change in changes)
    assert watched.keys_ == plain.keys_


def test_relearn_cuts_the_window_at_the_change_and_recomputes_weights() -> None:
    rows, detector = rows_with_change(), forest()
    monitor = beside(detector, "relearn")
    _, changes = monitor.detect_then_learn(rows[:460])
    weights = detector.forest_.weights.copy()
    _, more = monitor.detect_then_learn(rows[460:480])
    drift = next(change for change in more if change.kind == "drift")
    assert "has started to relearn" in str(drift)
    assert min(detector.keys_) == drift.start
    assert detector.n_points_ == 480 - drift.start
    assert not (detector.forest_.weights == weights).all()
    assert abs(drift.start - _CHANGE) <= 2
    verdicts = detector.predict(rows[_CHANGE + 80 :])
    assert (verdicts == 1).mean() > 0.9
    assert changes


def test_a_relearned_detector_holds_only_points_since_the_change() -> None:
    rows, detector = rows_with_change(), forest(max_samples=None)
    monitor = beside(detector, "relearn")
    monitor.detect_then_learn(rows[:480])
    start = min(detector.keys_)
    assert np.array_equal(detector.points_, rows[start:480])
    counts = detector.forest_.counts[np.arange(8), detector.forest_.root]
    assert (counts == 480 - start).all()


def test_keep_learns_nothing_until_the_stream_returns_to_normal() -> None:
    rows = rows_with_change(900)
    rows[600:, 0] -= 6.0
    detector = forest()
    monitor = beside(detector, "keep")
    _, changes = monitor.detect_then_learn(rows[:600])
    assert "keeps to what it learned before" in str(changes[0])
    assert max(detector.keys_) < _CHANGE + 2
    assert (detector.points_[:, 0] < 4.5).all()
    detected, more = monitor.detect_then_learn(rows[600:])
    assert more[-1].kind == "return to normal"
    assert detector.n_points_ == 300
    assert not detected.is_anomaly[-100:].any() or detected.is_anomaly[-100:].mean() < 0.1


@pytest.mark.parametrize("on_drift", ["relearn", "keep"])
def test_results_beside_a_detector_do_not_depend_on_chunks(on_drift: str) -> None:
    rows, ends = rows_with_change(600), [0, 1, 130, 401, 402, 415, 466, 600]
    one, many = forest(), forest()
    whole, changes = beside(one, on_drift).detect_then_learn(rows)
    monitor, parts, reported = beside(many, on_drift), [], []
    for start, stop in pairwise(ends):
        detected, news = monitor.detect_then_learn(rows[start:stop])
        parts.append(detected.scores)
        reported += news
    assert np.array_equal(np.concatenate(parts), whole.scores)
    assert reported == changes
    assert many.to_bytes() == one.to_bytes()


@pytest.mark.parametrize("n", [100, 300, 410, 480])
def test_the_monitor_is_saved_with_the_model(n: int) -> None:
    rows = rows_with_change(600)
    one, other = forest(), forest()
    beside(one, "relearn").detect_then_learn(rows)
    beside(other, "relearn").detect_then_learn(rows[:n])
    file = io.BytesIO()
    other.save(file)
    file.seek(0)
    for again in (load(file), loads(other.to_bytes()), copy.deepcopy(other), pickle.loads(pickle.dumps(other))):
        monitor = DriftMonitor.beside(again)
        assert monitor.on_drift == "relearn"
        monitor.detect_then_learn(rows[n:])
        assert again.to_bytes() == one.to_bytes()


def test_a_monitor_follows_a_series() -> None:
    rng = np.random.default_rng(0)
    readings = np.sin(np.arange(1200) / 5)[:, None] + 0.2 * rng.normal(size=(1200, 1))
    readings[800:] += 5.0
    series = SeriesMPF(forest(window=400), shingle=4)
    monitor = DriftMonitor.beside(
        series, reference=256, n_estimators=8, random_state=0, false_alarms_every=5000, on_drift="relearn"
    )
    _, changes = monitor.detect_then_learn(readings, times=np.arange(1200.0))
    drift = next(change for change in changes if change.kind == "drift")
    assert abs(drift.start - 800) <= 2
    assert min(series.keys_) >= 800
    assert isinstance(loads(series.to_bytes()).companion, bytes)


def test_a_stream_that_becomes_a_series_keeps_its_monitor() -> None:
    rng = np.random.default_rng(0)
    detector = forest()
    monitor = beside(detector)
    monitor.detect_then_learn(rng.normal(size=(300, 1)), times=np.arange(300.0))
    series = SeriesMPF.from_stream(detector, shingle=4)
    assert DriftMonitor.beside(series) is monitor
    monitor.detect_then_learn(rng.normal(size=(10, 1)), times=np.arange(300.0, 310.0))
    assert series.n_seen_ == monitor.n_seen_ == 310


def test_points_deleted_from_the_model_are_deleted_from_its_monitor() -> None:
    rows, detector = rows_with_change(350), forest()
    monitor = beside(detector)
    keys = [f"k{i}" for i in range(350)]
    monitor.detect_then_learn(rows, keys=keys)
    detector.delete(["k340", "k100"])
    assert not monitor.holds("k340")
    assert not monitor.holds("k100")
    detector.delete_rows(rows[345:346])
    assert not monitor.holds("k345")
    assert monitor._follower.reference.values.shape == (_REFERENCE - 1, 2)
    assert monitor.status_ in ("normal", "outlier")


def test_delete_requires_a_saved_monitor_to_be_loaded() -> None:
    detector = forest()
    beside(detector).detect_then_learn(rows_with_change(300))
    again = loads(detector.to_bytes())
    with pytest.raises(ValueError, match=r"DriftMonitor.beside\(model\)"):
        again.delete(250)
    assert again.holds(250)
    DriftMonitor.beside(again)
    again.delete(250)
    assert not again.holds(250)


def test_rejected_rows_change_neither_detector_nor_monitor() -> None:
    rows, detector = rows_with_change(450), forest(missing="error")
    monitor = beside(detector)
    gappy = rows.copy()
    gappy[0, 0] = np.nan  # rejected by this forest
    with pytest.raises(ValueError, match=r"NaN|missing"):
        monitor.detect_then_learn(gappy)
    assert not detector.is_fitted
    assert monitor.n_seen_ == 0
    monitor.detect_then_learn(rows[:430])
    before = detector.to_bytes()
    with pytest.raises(ValueError, match=r"NaN|missing"):
        monitor.detect_then_learn(np.array([[np.nan, 0.0]]))
    assert detector.to_bytes() == before
    with pytest.raises(ValueError, match=r"DriftMonitor.beside"):
        DriftMonitor().detect_then_learn(rows)
