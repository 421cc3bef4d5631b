"""Novelty: the kernel compared with numpy, chunks, files, deletion and results."""

from pathlib import Path

import numpy as np
import pytest
from golden.make import NEXT, READINGS
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

import polyaforest
from polyaforest import Detections, SeriesMPF, StreamingMPF
from polyaforest.detectors import loads
from polyaforest.kernels.contexts import fill_novelties
from polyaforest.series.contexts import REACH
from polyaforest.series.novelty import KNOWN, LEAST, KnownReadings

GOLDEN = Path(__file__).parents[1] / "golden"


def naive(values, n_new, most, least, weight=1.0):
    """How new the last steps of channels, (C, S), are."""
    found = []
    for step in range(values.shape[1] - n_new, values.shape[1]):
        shares = []
        for channel in values:
            past = channel[max(step - most, 0) : step]
            past = past[~np.isnan(past)]
            if len(past) >= least and not np.isnan(channel[step]):
                d, r = np.abs(past - channel[step]).min(), np.ptp(past)
                shares.append(weight * d / (d + r) if d * 4096 > r else 0.0)
        found.append(max(shares, default=np.nan))
    return np.array(found)


@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.integers(1, 40), st.integers(1, 60), st.integers(1, 12))
def test_novelty_matches_numpy(seed, n_channels, n_new, most, least):
    rng = np.random.default_rng(seed)
    values = rng.choice([rng.normal(size=(n_channels, 80)), rng.integers(0, 4, (n_channels, 80)).astype(float)])
    values[rng.random(values.shape) < 0.2] = np.nan
    out = np.full(n_new, np.nan)
    begin, end = max(80 - n_new - most, 0), 80 - n_new
    known = values[:, begin:end]
    ranges = np.stack(
        [
            (~np.isnan(known)).sum(axis=1),
            np.fmin.reduce(known, 1, initial=np.inf),
            np.fmax.reduce(known, 1, initial=-np.inf),
        ],
        axis=1,
    ).astype(float)
    fill_novelties(values, begin, end, most, least, 0.5, ranges, out)
    assert_array_equal(out, naive(values, n_new, most, least, 0.5))


def test_fill_novelties_keeps_maximum():
    out = np.array([0.9, np.nan, 0.1])
    ranges = np.array([[2.0, 0.0, 1.0]])
    fill_novelties(np.array([[0.0, 1.0, 0.5, 2.0, 4.0]]), 0, 2, 10, 2, 1.0, ranges, out)
    assert_array_equal(out, [0.9, 0.5, 0.5])
    assert_array_equal(ranges, [[5.0, 0.0, 4.0]])


@given(st.integers(0, 2**32 - 1), st.lists(st.integers(0, 300), max_size=5).map(sorted))
def test_novelty_has_same_bits_in_any_chunks(seed, cuts):
    rng = np.random.default_rng(seed)
    rows, deviations = rng.normal(size=(2, 300, 2)).cumsum(axis=1)
    rows[rng.random(rows.shape) < 0.1] = np.nan
    known, in_chunks = KnownReadings(2), KnownReadings(2)
    whole = known.judge_then_learn(rows, deviations)
    pieces = zip(np.split(rows, cuts), np.split(deviations, cuts), strict=True)
    assert_array_equal(np.concatenate([in_chunks.judge_then_learn(*piece) for piece in pieces]), whole)
    for name in ("readings", "deviations", "novelties"):
        assert_array_equal(getattr(in_chunks, name), getattr(known, name))


def judged(rows, known=None):
    """The results for rows of one channel that has no rhythm."""
    known = KnownReadings(1) if known is None else known
    return known.judge_then_learn(rows, np.full(rows.shape, np.nan)), known


def test_novelty_reports_event_once_unless_it_gets_worse():
    rows = np.tile([0.0, 1.0], LEAST)[:, None]
    event = np.array([[2.0], [1.5], [3.0], [9.0]])
    novelty, known = judged(np.concatenate([rows, event]))
    assert np.isnan(novelty[:LEAST]).all()
    assert (novelty[LEAST : 2 * LEAST] == 0).all()
    assert_array_equal(novelty[2 * LEAST :], [0.5, 0.0, 0.0, 6 / 9])  # 3 is as new as 2 was, by a wider range less so
    quiet = np.tile([0.0, 1.0], REACH // 2)[:, None]
    judged(quiet, known)
    assert judged(np.array([[15.0]]), known)[0] == 6 / 15


def test_forgotten_values_are_new_again():
    rows = np.concatenate([[5.0], np.arange(KNOWN) % 2, [5.0]])[:, None]
    assert judged(rows)[0][-1] == 0.8
    assert judged(rows[:-1])[1].readings.shape == (KNOWN, 1)
    assert judged(rows[:-2])[1].readings[0] == 5.0


def test_novelty_compares_with_last_readings_only():
    rows, known, parts = np.random.default_rng(1).standard_t(2, size=(6000, 2)), KnownReadings(2), []
    for start in range(0, 6000, 700):
        parts.append(known.copy().judge_then_learn(rows[start : start + 1], np.full((1, 2), np.nan)))
        known.judge_then_learn(rows[start : start + 700], np.full(rows[start : start + 700].shape, np.nan))
    assert_array_equal(known.readings, rows[-KNOWN:])
    assert known.deviations is None
    assert_array_equal(
        known._ranges[0], np.stack([[KNOWN] * 2, known.readings.min(axis=0), known.readings.max(axis=0)], 1)
    )
    kept = np.flatnonzero(~np.isnan(known._room[0]).all(axis=0))
    assert len(kept) == KNOWN  # nothing older stays in memory
    unpaused = [naive(rows[: start + 1].T, 1, KNOWN, LEAST)[0] for start in range(0, 6000, 700)]
    assert all(part[0] in (0.0, new) or np.isnan(new) for part, new in zip(parts, unpaused, strict=True))


def test_new_deviations_count_a_quarter_when_enough_are_known():
    rows = np.tile(np.arange(8.0), 100)[:, None]
    deviations = np.tile([0.0, 1.0], 400)[:, None]
    deviations[[400, 700]] = [[3.0], [9.0]]
    novelty = KnownReadings(1).judge_then_learn(rows, deviations)
    assert novelty[400] == 0  # there are not 512 yet
    assert novelty[700] == 0.25 * (6 / 9)


# ---- a series --------------------------------------------------------------------------------------------------------


def wave(n=1500, period=30, seed=0):
    noise = np.random.default_rng(seed).normal(0, 0.05, n)
    return np.sin(2 * np.pi * np.arange(n) / period) + noise


def small(**parameters):
    return SeriesMPF(StreamingMPF(n_estimators=4, random_state=0), **parameters)


def test_novelty_does_not_depend_on_scale_or_unit():
    line = wave()
    line[1400] = 4.0
    novelty = small().detect_then_learn(line).novelty
    assert np.nanargmax(novelty) == 1400
    assert novelty[1400] > 0.5
    assert (novelty[1401 : 1400 + REACH] == 0).all()
    assert_array_equal(small().detect_then_learn(line * 1024).novelty, novelty)  # no rounding


def test_usual_value_at_wrong_time_is_new_deviation():
    line = wave()
    line[1400:1410] = -line[1400:1410]
    novelty = small().detect_then_learn(line).novelty
    assert 1400 <= np.nanargmax(np.where(np.arange(1500) < 600, 0, novelty)) < 1410


@pytest.mark.parametrize("size", [1, 77, 256, 700])
def test_novelty_continues_bit_for_bit_from_chunks_copies_and_files(size, tmp_path):
    line = wave(700 if size == 1 else 1500)
    whole, series, parts = small().detect_then_learn(line).novelty, small(), []
    for start in range(0, len(line), size):
        parts.append(series.detect_then_learn(line[start : start + size]).novelty)
        if start <= 600 < start + size:
            series.save(tmp_path / "series.mpf")
            series = loads(polyaforest.load(tmp_path / "series.mpf").to_bytes())
    assert_array_equal(np.concatenate(parts), whole)


def test_all_ways_of_learning_give_same_novelty():
    line = wave()
    expected = small().detect_then_learn(line).novelty[1000:]
    for learn in (SeriesMPF.partial_fit, SeriesMPF.score_then_learn):
        series = small()
        learn(series, line[:1000])
        assert_array_equal(series.detect(line[1000:1020]).novelty, expected[:20])
        assert_array_equal(series.detect_then_learn(line[1000:]).novelty, expected)


def test_standalone_table_is_compared_with_itself_only():
    line = wave()
    series = small().fit(line[:1000])
    assert series.detect(np.append(line[:3], 9.0)).novelty[-1] > 0.7
    alone = series.detect(line[:1000], standalone=True).novelty
    assert np.isnan(alone[:LEAST]).all()
    assert not np.isnan(alone[LEAST:]).any()


def test_missing_values_do_not_hide_novelty_of_other_channels():
    rows = np.stack([wave(), wave(seed=1)], axis=1)
    rows[1400] = np.nan, 7.0
    rows[1480] = np.nan
    novelty = small().detect_then_learn(rows).novelty
    assert novelty[1400] > 0.5
    assert np.isnan(novelty[1480])


def test_deleted_reading_is_forgotten():
    line = wave()
    line[1200] = 4.0
    series = small().partial_fit(line[:1400])
    assert series.detect([4.0]).novelty < 0.1  # of its phase, it is the first
    series.delete(1200)
    assert 1200 not in series.keys_
    assert series.detect([4.0]).novelty > 0.5
    assert_array_equal(series._model.history.known.readings[:, 0], line[1201:1400])


def test_known_readings_can_be_deleted():
    series = small().partial_fit(wave(5000))
    assert series.keys_ == list(range(5000 - KNOWN, 5000))
    series.delete(5000 - KNOWN)
    assert series.keys_[0] == 5001 - KNOWN
    assert loads(series.to_bytes()).keys_ == series.keys_


def test_novelty_is_nan_with_shingles():
    series = small(shingle=3)
    assert np.isnan(series.detect_then_learn(wave(300)).novelty).all()
    assert len(series._model.history.known) == 0


def test_older_files_restore_known_readings():
    old, new = (polyaforest.load(GOLDEN / f"{version}-courses.mpf") for version in (3, 4))
    assert_array_equal(old._model.history.known.readings, READINGS)
    assert_array_equal(new._model.history.known.readings, READINGS)
    times = 60.0 * np.arange(len(READINGS), len(READINGS) + len(NEXT))
    assert_array_equal(old.detect(NEXT, times=times).novelty, new.detect(NEXT, times=times).novelty)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("series/novelties", np.full(3, 2.0), "between 0 and 1"),
        ("series/novelties", np.zeros(65), "65 novelties"),
        ("series/readings", np.full((1400, 1), 1e300), "too large"),
        ("series/readings", np.zeros((1401, 1)), "it has 1401 known readings"),
    ],
)
def test_invalid_states_are_rejected(name, value, message):
    header, arrays = small().partial_fit(wave(1400))._state()
    arrays.pop("series/deviations", None)
    arrays[name] = value
    with pytest.raises(ValueError, match=message):
        SeriesMPF._of_state({**header, "novelty": len(arrays["series/readings"])}, arrays)


@pytest.mark.parametrize("missing", ["series/readings", "series/novelties", "novelty"])
def test_incomplete_states_are_rejected(missing):
    header, arrays = small().partial_fit(wave(400))._state()
    header, arrays = ({name: part for name, part in found.items() if name != missing} for found in (header, arrays))
    with pytest.raises(ValueError, match="the header announces"):
        SeriesMPF._of_state(header, arrays)


# ---- results ---------------------------------------------------------------------------------------------------------


def test_results_with_and_without_novelty_are_joined_and_selected():
    rows = Detections(np.zeros(2), np.ones(2), np.zeros(2, bool), np.zeros(2))
    judged = rows._replace(novelty=np.array([0.1, 0.2]))
    assert len(Detections.joined([rows, rows]).novelty) == 0
    joined = Detections.joined([rows, judged])
    assert_array_equal(joined.novelty, [np.nan, np.nan, 0.1, 0.2])
    assert_array_equal(joined.select(np.array([3, 0])).novelty, [0.2, np.nan])
    assert_array_equal(judged.row(1).novelty, [0.2])
    assert len(rows.row(1).novelty) == 0
