"""Calendar features of days: of the month, and public holidays."""

from datetime import UTC, datetime

import numpy as np
import pytest

from polyaforest import SeriesMPF, StreamingMPF
from polyaforest.detectors import loads
from polyaforest.series.calendar import calendar_features, read_calendar

DAY = 86400.0


def stamp(*date):
    return datetime(*date, tzinfo=UTC).timestamp()


def angle(times, word, timezone="UTC"):
    """Return a calendar feature as a share of a turn."""
    sine, cosine = calendar_features(np.array(times), (word,), timezone).T
    return np.mod(np.arctan2(sine, cosine) / (2 * np.pi), 1)


def test_last_days_of_all_months_are_alike():
    times = [stamp(2023, 2, 1), stamp(2023, 2, 28, 23), stamp(2024, 2, 29), stamp(2024, 12, 31), stamp(2024, 12, 1)]
    np.testing.assert_allclose(angle(times, "day of month"), [0, 27 / 28, 28 / 29, 30 / 31, 0], atol=1e-12)


def test_public_holidays_are_opposite_to_other_days():
    pytest.importorskip("holidays")
    times = [stamp(2024, 12, 24), stamp(2024, 12, 25), stamp(2024, 12, 25, 23, 59), stamp(2024, 8, 15)]
    np.testing.assert_allclose(angle(times, "public holidays DE"), [0, 0.5, 0.5, 0], atol=1e-12)
    np.testing.assert_allclose(angle(times, "public holidays DE-SL"), [0, 0.5, 0.5, 0.5], atol=1e-12)
    night = [stamp(2024, 12, 24, 23, 30)]  # already Christmas in Berlin
    np.testing.assert_allclose(angle(night, "public holidays DE", "Europe/Berlin"), [0.5], atol=1e-12)


@pytest.mark.parametrize("word", ["public holidays XX", "public holidays DE-ZZ", "public holidays", "week of year"])
def test_unknown_features_are_rejected(word):
    pytest.importorskip("holidays")
    with pytest.raises(ValueError, match=r"holidays|calendar has no feature"):
        read_calendar((word,))


def test_series_learns_and_keeps_calendar_of_days():
    pytest.importorskip("holidays")
    calendar = ("day of month", "public holidays DE")
    times = stamp(2024, 1, 1) + DAY / 2 * np.arange(300)
    values = np.random.default_rng(0).normal(size=(300, 1))
    series = SeriesMPF(StreamingMPF(n_estimators=10, random_state=0), calendar=calendar)
    series.detect_then_learn(values, times=times)
    again = loads(series.to_bytes())
    assert tuple(again.calendar) == calendar
    later = times[-1] + DAY / 2 * np.arange(1, 21)
    first, second = (one.detect_then_learn(values[:20], times=later).scores for one in (series, again))
    np.testing.assert_array_equal(first, second)
