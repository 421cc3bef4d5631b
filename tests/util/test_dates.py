"""Times as text."""

import pytest

from polyaforest.util.dates import moment, stamp

NOON = 1_714_564_800.0  # 2024-05-01 12:00 UTC


@pytest.mark.parametrize(
    ("seconds", "words", "iso"),
    [
        (NOON, "2024-05-01 12:00", "2024-05-01T12:00:00Z"),
        (NOON + 7, "2024-05-01 12:00:07", "2024-05-01T12:00:07Z"),
        (NOON + 0.25, "2024-05-01 12:00:00.25", "2024-05-01T12:00:00.250000Z"),
        (12.5, "12.5", "12.5"),
        (123456.0, "123456", "123456"),
    ],
)
def test_times_are_formatted_as_dates_when_plausible(seconds, words, iso):
    assert (moment(seconds), stamp(seconds)) == (words, iso)
