"""The false-alarm rate of a detector that has learned: changed at once, without relearning."""

from io import BytesIO

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from polyaforest import SeriesMPF, StreamingMPF

N = 1500
ROWS = np.random.default_rng(3).normal(size=(2 * N, 2))
ROWS[-1] = 40.0
MOMENTS = np.arange(2.0 * N)
MAKERS = {
    "rows": lambda rate: StreamingMPF(n_estimators=5, window=256, false_alarm_rate=rate, random_state=0),
    "shingles": lambda rate: SeriesMPF(MAKERS["rows"](rate), shingle=2),
    "contexts": lambda rate: SeriesMPF(MAKERS["rows"](rate), short_memory=False),
}


def learn(detector, first, last):
    return detector.detect_then_learn(ROWS[first:last], times=MOMENTS[first:last])


@pytest.mark.parametrize("kind", MAKERS)
def test_changed_rate_flags_same_rows_as_initial_rate(kind):
    """Both rates need no more calibration scores than are kept anyway, so the past makes no difference."""
    changed, always = MAKERS[kind](0.5), MAKERS[kind](0.01)
    for detector in (changed, always):
        learn(detector, 0, N)
    changed.change_false_alarm_rate(0.01)
    found, wanted = learn(changed, N, 2 * N), learn(always, N, 2 * N)
    assert wanted.is_anomaly.any()
    for name in ("is_anomaly", "p_values", "thresholds"):
        assert_array_equal(getattr(found, name), getattr(wanted, name))


@pytest.mark.parametrize("kind", MAKERS)
def test_changed_rate_is_saved_and_keeps_needed_scores(kind):
    detector = MAKERS[kind](None)
    learn(detector, 0, N)
    detector.change_false_alarm_rate(0.001)
    loaded = type(detector).load(_file(detector))
    found, again = learn(detector, N, 2 * N), learn(loaded, N, 2 * N)
    assert_array_equal(found.is_anomaly, again.is_anomaly)
    assert found.p_values[-1] < 1 / 1001  # which a thousand scores cannot tell
    assert_array_equal(found.p_values, again.p_values)
    detector.change_false_alarm_rate(0.5)
    assert learn(detector, 0, 0).p_values.shape == (0,)


def test_unfitted_detector_accepts_changed_rate():
    for make in MAKERS.values():
        detector = make(None).change_false_alarm_rate(0.3)
        assert learn(detector, 0, N).is_anomaly.mean() > 0.1


@pytest.mark.parametrize("kind", MAKERS)
def test_invalid_rate_changes_nothing(kind):
    detector = MAKERS[kind](0.01)
    learn(detector, 0, 300)
    with pytest.raises(ValueError, match="false_alarm_rate"):
        detector.change_false_alarm_rate(2.0)
    assert (detector.estimator if isinstance(detector, SeriesMPF) else detector).false_alarm_rate == 0.01


def _file(detector):
    file = BytesIO()
    detector.save(file)
    file.seek(0)
    return file
