"""What explanations say holds: direction, usual range, expected value and normal values agree, also as printed."""

import math
import re
from datetime import UTC

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyaforest import BatchMPF, SeriesMPF, StreamingMPF
from polyaforest.series.words import Readings, describe
from polyaforest.util import numbers

NUMBER = r"-?[\d,]+(?:\.\d+)?(?:e[+-]?\d+)?"
BAND = re.compile(rf"(?:about )?({NUMBER})(?: \(({NUMBER})(?:–| to )({NUMBER})\))?")


def read(text):
    return float(text.replace(",", ""))


def random_table(rng, is_count):
    """Return rows to learn and rows to explain: outliers, departures of single columns, and ordinary rows."""
    n_columns = int(rng.integers(1, 4))
    scale, mean = 10.0 ** rng.integers(-3, 4), rng.normal(0, 30)
    if is_count:
        draw = [rng.poisson, rng.geometric][int(rng.integers(2))]
        rows = draw(rng.uniform(0.1, 0.9) if draw == rng.geometric else 10 ** rng.uniform(-1, 3), (500, n_columns))
        rows, scale = rows.astype(float), rows.std() + 1
    else:
        rows = scale * (mean + rng.standard_t(rng.integers(2, 9), (500, n_columns)))
        rows[:, 0] = np.where(rng.random(500) < 0.5, rows[:, 0], rows[:, 0] + 8 * scale)  # two clusters
    odd = rows[:40].copy()
    places = rng.integers(0, n_columns, 40)
    odd[np.arange(40), places] += rng.normal(0, 6, 40) * scale * rng.integers(0, 2, 40)
    odd = np.rint(odd) if is_count else odd
    return rows, odd


def check(attribution, explanation):
    """Check that the parts of an attribution agree, as numbers and as printed."""
    value, (low, high), median = attribution.value, attribution.usual, attribution.median
    assert low <= median <= high
    if attribution.is_count:
        assert low >= 0
        assert {low, median, high} <= set(map(round, (low, median, high)))
    too_high, too_low = (numbers.is_beyond(value, low, high) and sign * (value - median) > 0 for sign in (1, -1))
    assert (attribution.direction == "too high") == too_high
    assert (attribution.direction in ("too low", "none at all")) == too_low
    if too_high or too_low:
        assert attribution.side == ("high" if too_high else "low")
    assert attribution.side == ("high" if value > median else "low") or value == median
    printed = read(explanation.format_value(attribution.feature, value))
    found = BAND.search(explanation.format_typical(attribution.feature))
    middle, *ends = (read(text) for text in found.groups() if text is not None)
    ends = ends or [middle, middle]
    assert ends[0] <= middle <= ends[1]
    assert printed > ends[1] if too_high else printed < ends[0] if too_low else True
    if attribution.expected is not None:
        first, last = attribution.expected
        assert first <= last
        assert min(abs(first - median), abs(last - median), *[0.0] * (first <= median <= last)) < abs(value - median)
        assert last <= value if value > median else first >= value
        if attribution.is_count:
            assert first >= 0
        if not first <= value <= last:
            normal = [
                read(text) for text in re.findall(NUMBER, explanation.format_expected(attribution).replace("–", " "))
            ]
            assert (printed > max(normal)) if value > median else (printed < min(normal))


@pytest.mark.parametrize("is_count", [False, True])
@pytest.mark.parametrize("detector", [StreamingMPF, BatchMPF])
def test_words_about_rows_hold(detector, is_count):
    n_checked = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        rows, odd = random_table(rng, is_count)
        forest = detector(n_estimators=16, contamination=0.1, random_state=seed).fit(rows)
        for explanation in forest.explain(odd):
            for attribution in explanation.attributions:
                check(attribution, explanation)
                n_checked += 1
    assert n_checked > 200


def random_series(rng, is_count):
    steps = np.arange(1_100)
    level = 40 + rng.uniform(0, 30) * np.sin(2 * np.pi * steps / 24)
    rows = rng.poisson(level * rng.uniform(0.1, 2)).astype(float) if is_count else level + rng.normal(0, 3, 1_100)
    for at in rng.integers(700, 1_090, 12):
        kind = rng.integers(4)
        stop = at + int(rng.integers(1, 9))
        rows[at:stop] = [rows[at:stop] + 200, 0.0 * rows[at:stop], rows[at], rows[at:stop] / 4][kind]
    return np.rint(rows) if is_count else rows


@pytest.mark.parametrize("is_count", [False, True])
def test_words_about_readings_hold(is_count):
    n_checked = 0
    for seed in range(3):
        rows = random_series(np.random.default_rng(seed), is_count)
        times = 1_700_006_400.0 + 3600.0 * np.arange(len(rows))
        series = SeriesMPF(StreamingMPF(n_estimators=16, random_state=seed)).fit(rows[:, None], times=times)
        at = np.arange(700, 1_100, 2)
        for i, explanation in zip(
            at, series.explain(rows[:, None], times=times, rows=at, standalone=True), strict=True
        ):
            (reading,) = explanation.readings
            assert reading.value == rows[i]
            assert reading.usual[0] <= reading.median <= reading.usual[1]
            assert not is_count or reading.usual[0] >= 0
            check_sentence(explanation.summary, reading)
            n_checked += 1
    assert n_checked == 600


def check_sentence(text, reading):
    """Check that a sentence says what was read and what was expected, and that its direction agrees."""
    found = re.match(rf"x0 ({NUMBER}) at \d\d:\d\d, (expected|usually) (.*): (.+)", text)
    value, words = read(found[1]), found[4]
    middle, *ends = (read(part) for part in BAND.match(found[3]).groups() if part is not None)
    low, high = ends or (middle, middle)
    assert low <= middle <= high
    assert words != "too high" or value > high
    assert words != "too low" or value < low
    assert not words.startswith("none at all") or (value == 0 < low)
    if reading.direction == "unusual":
        assert "too " not in words


@given(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9), st.floats(0, 1e9), st.floats(0, 1e9), st.booleans())
def test_printed_readings_keep_their_order(value, median, below, above, is_count):
    band = median - below, median, median + above
    if is_count:
        value, band = abs(round(value)), numbers.whole_band(*band)
        assert band[0] >= 0
        assert all(end == round(end) for end in band)
    low, middle, high = band
    if not low <= middle <= high:  # rounded
        return
    text, expected = numbers.beside_band(value, *band)
    found = [read(part) for part in BAND.match(expected).groups() if part is not None]
    assert sorted(found[1:]) == found[1:]
    if numbers.is_beyond(value, low, high):
        assert read(text) > max(found) if value > high else read(text) < min(found)


def test_no_readings_at_all_is_called_that():
    def words(actual, is_count=True):
        n = len(actual)
        band = [np.full(n, end) for end in (12.0, 45.0, 80.0)]
        times = 1.7e9 + 60.0 * np.arange(n) - 1.7e9 % 86_400
        readings = Readings(np.array(actual), *band, times, (12.0, 45.0, 80.0), is_count)
        return describe("volatility of {} over 8", "high", "requests", readings, UTC)

    assert words([40.0, 50.0, 0.0]) == "requests 0 at 00:02, expected about 45 (12–80): none at all"
    assert words([40.0, 0.0, 0.0]).endswith(": none at all for 2 readings")
    assert words([0.0, 0.0, 0.0]).endswith(": none at all for 3 readings or more")
    assert words([40.0, 0.0, 0.0], is_count=False).endswith(": too low")
    assert words([40.0, 50.0, 8191.0]) == "requests 8,191 at 00:02, expected about 45 (12–80): too high"
    assert words([40.0, 50.0, 46.0]).endswith(": more volatile than usual over 8 readings")
    assert not math.isnan(numbers.scale_of(math.nan, (1.0,), 2.0))
