"""Durations as text."""

from datetime import timedelta

import pytest

from polyaforest.util.durations import format_duration, parse_duration


def test_parse_duration_reads_numbers_with_units() -> None:
    assert [parse_duration(text) for text in ("1 week", "2 Days", "3h", "45 min", "1.5 s")] == [
        604800.0,
        172800.0,
        10800.0,
        2700.0,
        1.5,
    ]


@pytest.mark.parametrize("text", ["days", "-3 days", "3 parsecs", "", "3", "soon"])
def test_parse_duration_names_the_text_and_the_accepted_forms_when_invalid(text: str) -> None:
    with pytest.raises(ValueError, match=rf"^'{text}' is not a duration such as \"30 days\", 90s, 30m, 6h or 7d$"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0s", "shorter than 0.001 seconds"),
        ("0.0001s", "shorter than 0.001 seconds"),
        ("9999999999999999d", r"longer than 1e\+13 seconds"),
        ("1e999 weeks", r"longer than 1e\+13 seconds"),
    ],
)
def test_parse_duration_names_the_text_and_the_bound_when_out_of_range(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=f"^the duration '{text}' is {words}$"):
        parse_duration(text)


@pytest.mark.parametrize("seconds", [0.001, 0.25, 90, 5400.5, 999999, 1234567, 2592000, 34560000.000001, 1e10])
def test_format_duration_is_read_back_exactly(seconds: float) -> None:
    assert parse_duration(format_duration(timedelta(seconds=seconds))) == seconds


def test_parse_duration_reads_exponents_of_earlier_settings() -> None:
    assert parse_duration("2.592e+06s") == 2592000.0
