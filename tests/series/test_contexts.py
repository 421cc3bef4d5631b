"""Context windows: features compared with numpy, views, periods, and detection of series."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from polyaforest.kernels.arrays import NONE
from polyaforest.series import Shingler
from polyaforest.series.contexts import (
    LEAST,
    LENGTH,
    PHASE,
    context_features,
    layout_of,
    phase_features,
    season_features,
)
from polyaforest.series.recent import LEAST_READINGS
from polyaforest.series.rhythm import find_periods, is_series
from polyaforest.series.shingles import Pattern, align, new_track

pytestmark = pytest.mark.plain

CONTEXT = Pattern(None, 3, False, (), "UTC")

# ---- coordinates ----------------------------------------------------------------------------------------------------


def naive_coordinates(line, most_still):
    """The coordinates of a context window by name, from its readings, oldest first; mirrored if there are too few."""
    past = np.asarray(line, float)[::-1]
    while len(past) < LENGTH:
        past = np.concatenate([past, past[::-1]])
    past = past[:LENGTH]
    steps = np.arange(96)[::-1] + 0.5
    volatility = {n: np.abs(np.diff(past[: n + 1])).mean() for n in (8, 32, LENGTH - 1)}
    n_still = int(np.cumprod(np.diff(past) == 0)[:most_still].sum())
    return {
        **{f"change of {{}} over {n}": past[:n].mean() - past[n : 2 * n].mean() for n in (1, 2, 4, 8, 16, 32)},
        "{}": past[0],
        **{f"mean of {{}} over {n}": past[:n].mean() for n in (8, 32, 64)},
        **{f"volatility of {{}} over {n}": rough for n, rough in volatility.items()},
        "volatility of {} over 8": volatility[8] - n_still * volatility[LENGTH - 1],
        **{f"wave {k} of {{}}": past[:96] @ np.cos(np.pi * k * steps / 96) / 48 for k in range(1, 13)},
    }


def naive_features(rows):
    """The features of the context window that ends with rows, by name."""
    names, found = [f"x{c}" for c in range(rows.shape[1])], dict.fromkeys(PHASE, 0.0)
    for c, name in enumerate(names):
        found |= {
            label.format(name): value
            for label, value in naive_coordinates(rows[:, c], 64 if len(names) <= 3 else 0).items()
        }
        found |= {f"deviation of {name} from its rhythm{over}": 0.0 for over in ("", " over 8", " over 32")}
    return np.array([found[feature] for feature in layout_of(len(names)).names(names)])


def features_of(rows, places, starts):
    return context_features(rows, np.array(places), np.array(starts))


@pytest.mark.parametrize("n_channels", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("length", [1, LEAST, LENGTH - 1, LENGTH, 300])
def test_coordinates_match_numpy(n_channels, length):
    rows = 100 + np.random.default_rng(length).normal(size=(300, n_channels))
    found = features_of(rows, [299], [300 - length])[0]
    assert_allclose(found, naive_features(rows[300 - length :]), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("n_channels", [1, 3, 4])
@pytest.mark.parametrize("n_still", [1, 7, 64, 90, 200])
def test_unchanged_readings_reduce_volatility(n_channels, n_still):
    rows = np.random.default_rng(n_still).normal(size=(300, n_channels))
    rows[300 - n_still :, 0] = rows[299 - n_still, 0]
    found = features_of(rows, [299], [0])[0]
    assert_allclose(found, naive_features(rows), rtol=1e-9, atol=1e-10)


def test_context_window_has_same_bits_alone_and_ignores_older_readings():
    rows = np.random.default_rng(0).normal(size=(400, 2))
    places = np.arange(LEAST, 400)
    together = features_of(rows, places, np.zeros(len(places), int))
    for i in (0, 50, 200, len(places) - 1):
        assert features_of(rows, places[i : i + 1], [0]).tobytes() == together[i].tobytes()
    touched = rows.copy()
    touched[:200] = np.nan
    later = places >= 200 + LENGTH - 1
    assert features_of(touched, places[later], np.zeros(later.sum(), int)).tobytes() == together[later].tobytes()


def kinds(n_channels):
    """For each feature whether it is a level, or has to do with the phase."""
    names = layout_of(n_channels).names([f"x{c}" for c in range(n_channels)])
    return np.array([name[0] == "x" or name.startswith("mean") for name in names]), np.array(
        [n in PHASE for n in names]
    )


@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 5]), st.sampled_from([-512.0, 0.25, 64.0]))
def test_adding_constant_moves_levels_only_and_scaling_scales_all(seed, n_channels, number):
    rows = np.random.default_rng(seed).integers(-(2**20), 2**20, size=(LENGTH, n_channels)) / 1024.0
    before, is_level = features_of(rows, [LENGTH - 1], [0])[0], kinds(n_channels)[0]
    moved = features_of(rows + number, [LENGTH - 1], [0])[0]
    assert_allclose(moved, before + number * is_level, rtol=1e-9, atol=1e-8)
    scaled = features_of(rows * number, [LENGTH - 1], [0])[0]
    is_size = np.array(["volatility" in name for name in layout_of(n_channels).names(["x"] * n_channels)])
    assert_allclose(scaled, before * np.where(is_size, abs(number), number), rtol=1e-9, atol=1e-8)


def test_deviations_are_from_nearest_of_three_periods():
    values = np.random.default_rng(3).normal(size=(200, 2))
    values[60, 0] = np.nan
    period, places = 30, np.array([10, 59, 60, 90, 120, 199])

    def deviation(step, c):
        before = values[[step - k * period for k in (1, 2, 3) if step >= k * period], c]
        known = before[~np.isnan(before)]
        if step < 0 or np.isnan(values[step, c]) or len(known) < 2:
            return 0.0
        changes = values[step, c] - known
        return changes[np.abs(changes).argmin()]

    expected = [
        [np.mean([deviation(place - age, c) for age in range(n)]) for c in range(2) for n in (1, 8, 32)]
        for place in places
    ]
    assert_allclose(season_features(values, places, period), expected, atol=1e-12)


def test_constant_series_has_constant_features_bit_for_bit():
    """Rounding errors of a mean would be weighed like readings."""
    rows = np.full((200, 1), 0.1)
    found = features_of(rows, np.arange(LEAST, 200), np.zeros(200 - LEAST, int))
    is_level, _ = kinds(1)
    waves = np.array(["wave" in name for name in layout_of(1).names(["x0"])])
    assert (found[:, is_level] == 0.1).all()
    assert (found[:, ~is_level & ~waves] == 0).all()
    assert (np.ptp(found, axis=0) == 0).all()


@pytest.mark.parametrize("n_channels", [1, 3, 4, 9])
def test_views_partition_features(n_channels):
    layout = layout_of(n_channels)
    names = layout.names([f"x{c}" for c in range(n_channels)])
    assert [view.name for view in layout.views] == ["change", "shape", "season", "rhythm"]
    assert sum(layout.widths) == len(names) == len(set(names)) == len(layout.channels())
    for name, channel in zip(names, layout.channels().tolist(), strict=True):
        assert name in PHASE if channel == NONE else f"x{channel}" in name.split()
    assert [names[place] for place in layout.readings()] == [f"x{c}" for c in range(n_channels)]
    assert CONTEXT.widths(n_channels) == layout.widths
    with_calendar = CONTEXT._replace(calendar=("time of day",))
    assert with_calendar.widths(n_channels) == [*layout.widths[:-1], layout.widths[-1] + 2]
    assert with_calendar.n_features(n_channels) == len(names) + 2


def test_phases_follow_period_and_are_zero_without():
    clock = np.arange(50.0)
    both = phase_features(clock, (24, 6))
    assert_allclose(both[:, 0], np.sin(2 * np.pi * clock / 24), atol=1e-12)
    assert_allclose(both[:, 3], np.cos(2 * np.pi * clock / 6), atol=1e-12)
    assert_allclose(both[24:], both[:26], atol=1e-12)
    assert not phase_features(clock, ())[:, :].any()
    assert not phase_features(clock, (24,))[:, 2:].any()


def test_context_windows_need_least_readings_and_restart_after_gap():
    rows = np.random.default_rng(1).normal(size=(300, 1))
    times = np.arange(300.0) + 2.0 * (np.arange(300) >= 100) + 9.0 * (np.arange(300) >= 200)
    aligned = align(new_track(1, 1.0), rows, times, 0, CONTEXT)
    assert np.flatnonzero(aligned.is_whole).tolist() == [*range(LEAST - 1, 200), *range(200 + LEAST - 1, 300)]
    steps = np.interp(np.arange(202.0), times[:200], rows[:200, 0])  # two are missing, and filled in
    first, *_, last = aligned.shingles()
    assert_allclose(first, naive_features(rows[:LEAST]), rtol=1e-9, atol=1e-10)
    assert_allclose(last, naive_features(rows[200:]), rtol=1e-9, atol=1e-10)
    at = int(np.flatnonzero(np.flatnonzero(aligned.is_whole) == 150)[0])
    assert_allclose(aligned.shingles()[at], naive_features(steps[:153, None]), rtol=1e-9, atol=1e-10)


def test_phases_use_times_or_else_numbers():
    rows, number = np.zeros((100, 1)), 1000
    track = new_track(1, 60.0)._replace(periods=(24,))
    for stamps, clock in (
        (np.arange(100) * 60.0 + 600, np.arange(100) + 10),
        (np.full(100, np.nan), np.arange(1000, 1100)),
    ):
        aligned = align(track, rows, stamps, number, CONTEXT)
        expected = phase_features(clock[LEAST - 1 :].astype(float), (24,))
        assert_array_equal(aligned.shingles()[:, -len(PHASE) :], expected)


def test_shingler_requires_integer_shingle():
    with pytest.raises(ValueError, match="shingle"):
        Shingler(None).fit(np.zeros((200, 1)))


# ---- rhythm ---------------------------------------------------------------------------------------------------------

HOURS = np.arange(24.0 * 7 * 6)
DAY, WEEK = np.sin(2 * np.pi * HOURS / 24), (HOURS // 24 % 7 >= 5) * 1.0


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (DAY, (24,)),
        (1e6 + 1e-3 * DAY, (24,)),
        (np.where(HOURS % 24 < 8, 0.0, 5.0), (24,)),
        (DAY * (1 - 0.9 * WEEK), (168, 24)),
        (DAY + 1e9 * (HOURS == 300), (24,)),
        (1e9 * (HOURS == 300), ()),
        (HOURS, ()),
        (HOURS**2, ()),
        (np.full(1000, 7.0), ()),
        (DAY[:60], ()),  # fewer than three days
        (DAY[:80], (24,)),
        (DAY[:8], ()),
        (DAY[:0], ()),
        (HOURS % 2, (4,)),  # two steps are too short to have a phase
    ],
    ids=[
        "day",
        "small",
        "shifts",
        "week",
        "spiked",
        "spike",
        "trend",
        "parabola",
        "constant",
        "short",
        "3",
        "8",
        "0",
        "2",
    ],
)
def test_find_periods_returns_periods_of_readings(line, expected):
    assert find_periods(line[:, None]) == expected


def test_periods_survive_noise_and_noise_has_none(any_seed):
    rng = np.random.default_rng(any_seed)
    noise = rng.normal(size=(len(HOURS), 1))
    assert find_periods(noise) == ()
    assert find_periods(noise[:300] + HOURS[:300, None] / 50) == ()
    (found,) = find_periods(DAY[:, None] + 0.3 * noise)
    assert found % 24 in (0, 1, 23)
    assert find_periods(np.hstack([noise, DAY[:, None], np.zeros_like(noise)])) == (24,)  # the channel that repeats


# ---- detection of series --------------------------------------------------------------------------------------------

N = 600
EVEN = np.arange(N) * 60.0
SMOOTH = np.cumsum(np.random.default_rng(2).normal(size=(N, 3)), axis=0)


def test_rows_with_even_times_and_similar_neighbours_are_series():
    assert is_series(EVEN, SMOOTH)
    assert is_series(EVEN + np.random.default_rng(3).uniform(0, 20, N), SMOOTH)  # jitter
    assert is_series(np.delete(EVEN, slice(300, 350)), np.delete(SMOOTH, slice(300, 350), axis=0))  # a gap
    assert is_series(EVEN, np.exp(9 * np.sin(EVEN / 900))[:, None])  # ranks do not mind the scale
    holes = SMOOTH.copy()
    holes[::10, 0] = np.nan
    assert is_series(EVEN, holes)


def test_constant_column_is_ignored_in_detecting_series():
    assert is_series(EVEN, np.hstack([SMOOTH[:, :1], np.ones((N, 5))]))
    assert not is_series(EVEN, np.ones((N, 2)))
    assert not is_series(EVEN, np.full((N, 2), np.nan))


@pytest.mark.parametrize("seed", range(3))
def test_independent_rows_are_not_series(seed):
    rng = np.random.default_rng(seed)
    assert not is_series(EVEN, rng.normal(size=(N, 3)))
    assert not is_series(EVEN, rng.permutation(SMOOTH))
    assert not is_series(EVEN, (rng.random((N, 3)) < 0.02) * 1.0)  # ties say nothing by their order
    assert not is_series(EVEN, np.hstack([SMOOTH[:, :1], rng.normal(size=(N, 2))]))


def test_uneven_decreasing_or_constant_times_are_not_series():
    rng = np.random.default_rng(4)
    assert not is_series(np.cumsum(rng.exponential(size=N)), SMOOTH)
    assert not is_series(EVEN[::-1].copy(), SMOOTH)
    assert not is_series(np.where(np.arange(N) == 300, 0.0, EVEN), SMOOTH)
    assert not is_series(np.zeros(N), SMOOTH)
    assert not is_series(np.where(np.arange(N) == 300, np.nan, EVEN), SMOOTH)


def test_few_rows_are_not_series():
    assert is_series(EVEN[:LEAST_READINGS], SMOOTH[:LEAST_READINGS])
    assert not is_series(EVEN[: LEAST_READINGS - 1], SMOOTH[: LEAST_READINGS - 1])
    assert not is_series(EVEN[:0], SMOOTH[:0])


@pytest.mark.parametrize("n", [LEAST_READINGS, 64, 128, 512])
def test_few_independent_rows_are_hardly_ever_series(n):
    rng = np.random.default_rng(n)
    found = [is_series(np.arange(n), rng.normal(size=(n, 1))) for _ in range(400)]
    assert sum(found) <= 4
