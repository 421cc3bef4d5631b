"""Events: flagged rows that are near each other are reported once."""

from datetime import UTC, datetime

import numpy as np
import pandas as pd
import pytest

from polyaforest import SeriesMPF, StreamingMPF
from polyaforest.series import Event, EventTracker, find_events


def test_anomalous_reading_makes_one_event_of_many_shingles():
    rows = np.random.default_rng(0).normal(size=(500, 2))
    rows[400, 1] = 30.0
    model = SeriesMPF(StreamingMPF(n_estimators=30, window=300, random_state=0), shingle=5)
    model.detect_then_learn(rows[:390])
    judged, said = model.detect(rows[390:]), model.explain(rows[390:])
    assert judged.is_anomaly.sum() >= 4
    attributions = [model.bits_by_channel(explanation) for explanation in said]
    events = find_events(judged.is_anomaly, judged.scores, p_values=judged.p_values, attributions=attributions)
    assert [(event.first, event.last) for event in events] == [(10, 14)]
    assert max(events[0].attributions, key=events[0].attributions.get) == "x1"
    assert str(events[0]).startswith("10 to 14, peak at ")
    assert str(events[0]).endswith("mostly x1")
    assert events[0].p_value == judged.p_values[events[0].peak]


@pytest.mark.parametrize("kind", [list, np.array, pd.Series, pd.DatetimeIndex])
def test_times_may_be_dates(kind):
    dates = pd.date_range("2024-05-01", periods=4, freq="h", tz=None if kind is np.array else "UTC")
    times = kind(dates.to_numpy() if kind is np.array else dates)
    (event,) = find_events([False, True, True, False], [0, -1, -2, 0], times=times)
    start = event.start.replace(tzinfo=UTC)
    assert (start, event.peak) == (datetime(2024, 5, 1, 1, tzinfo=UTC), event.end)
    tracker = EventTracker()
    tracker.update(1, True, -1.0, time=times[1])
    assert EventTracker.of_state(tracker.state()).close() == tracker.close()


def test_rows_may_be_omitted_but_must_increase():
    tracker = EventTracker(merge=3)
    assert tracker.update(5, True, -4.0, time="noon", p_value=0.1) is None
    assert tracker.update(8, True, np.float64(-6.0)) is None
    ended = tracker.update(12, True, -1.0)
    assert ended == Event("noon", 8, 8, 5, 8, 2, -6.0, None, {})
    with pytest.raises(ValueError, match="got 12 after 12"):
        tracker.update(12, False, 0.0)
    assert tracker.close().first == 12
    assert tracker.close() is None


def test_bad_input_raises():
    with pytest.raises(ValueError, match="merge must be an integer"):
        EventTracker(merge=0)
    with pytest.raises(ValueError, match="p_values and is_anomaly"):
        find_events([True, False], [1.0, 2.0], p_values=[0.1])
