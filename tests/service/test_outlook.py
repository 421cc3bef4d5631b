"""Expected ranges of the next records, which charts show."""

from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from polyaforest import SeriesMPF, StreamingMPF
from polyaforest.service import outlook

RNG = np.random.default_rng(0)
TIMES = np.arange(1000)
SLOW = 100 + 60 * np.sin(2 * np.pi * TIMES / 1440) + 3 * RNG.normal(size=1000)
FAST = 100 + 60 * np.sin(2 * np.pi * TIMES / 96)
FLAT = RNG.normal(size=1000)


def forest():
    return StreamingMPF(n_estimators=2, random_state=0, window=1024)


def ranges(values, every=1, notes=None):
    """Return the ranges of rows that are learned `every` rows at a time, as arrays of low, middle and high ends."""
    entry, found = SimpleNamespace(detector=forest(), notes={} if notes is None else notes), []
    for start in range(0, len(values), every):
        entry.detector.partial_fit(values[start : start + every])
        found += outlook.bands(entry, values.shape[1], start, len(values[start : start + every]))
    return np.array([np.full((3, values.shape[1]), np.nan) if one is None else np.array(one) for one in found])


def test_ranges_follow_a_slow_rhythm_from_row_to_row():
    table = np.column_stack([SLOW, FAST, FLAT])
    found = ranges(table, every=40)
    assert np.isnan(found[:32]).all()
    low, _, high = found[200:].transpose(1, 0, 2)
    is_inside = (low <= table[200:]) & (table[200:] <= high)
    assert (is_inside.mean(axis=0) > (0.7, 0.8, 0.8)).all()
    assert np.median(high[:, 0] - low[:, 0]) < 20  # not the 60 of the rhythm
    steps = np.diff(low[:, 0])
    assert np.count_nonzero(steps) > 0.6 * len(steps)  # no stairs of 16 rows


def test_ranges_do_not_depend_on_batches():
    table = np.column_stack([SLOW, FLAT])[:150]
    assert_allclose(ranges(table), ranges(table, every=15), rtol=1e-12)


@pytest.mark.parametrize("at", range(100, 132, 7))
def test_a_jump_is_not_a_trend(at):
    values = np.where(TIMES[:240, None] < at, 10.0, 50.0) + FLAT[:240, None]
    found = ranges(values, every=16)[40:]
    assert found.min() > 5
    assert found.max() < 55


def test_series_with_a_calendar_have_ranges():
    series = SeriesMPF(forest(), shingle=1, calendar=["time of day"])
    entry = SimpleNamespace(detector=series, notes={})
    series.partial_fit(np.column_stack([SLOW, FLAT])[:200], times=1.7e9 + 60 * TIMES[:200])
    outlook.renew(entry)
    (band,) = outlook.bands(entry, 2, 199, 1)
    assert band.low[0] < SLOW[199] < band.high[0]
    assert len(band.middle) == 2
    assert outlook.n_until_renewed(series) > 0


def test_range_saved_by_an_earlier_version_holds_until_it_is_renewed():
    values = FLAT[:100, None]
    notes = {"outlook": {"since": 96, "low": [[-7.0]], "middle": [[0.0]], "high": [[7.0]]}}
    entry = SimpleNamespace(detector=forest().partial_fit(values), notes=notes)
    assert [tuple(band.low) for band in outlook.bands(entry, 1, 97, 3)] == [(-7.0,)] * 3
