"""Forecasts of a series: coverage of bands, hidden readings, and bits by step."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from polyaforest import SeriesMPF, StreamingMPF
from polyaforest.series import Forecast
from polyaforest.series.contexts import LENGTH, layout_of, mean_deviations, season_features
from polyaforest.series.forecasts import PastChanges, foresee, usual_by_rhythm
from polyaforest.series.steps import fold_on_steps


def daily(n, period=24, noise=0.1, seed=0, n_channels=1):
    rng = np.random.default_rng(seed)
    wave = np.sin(2 * np.pi * (np.arange(n)[:, None] / period + np.arange(n_channels) / 7))
    return wave + noise * rng.normal(size=(n, n_channels))


def taught(rows, **parameters):
    return SeriesMPF(StreamingMPF(n_estimators=20, random_state=0), **parameters).fit(rows)


# ---- forecasts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "ahead", "expected"), [(30, 1, [20, 10, 0]), (35, 12, [15, 5]), (8, 1, []), (12, 1, [2])]
)
def test_usual_by_rhythm_is_median_of_three_periods_before(step, ahead, expected):
    values = np.random.default_rng(0).normal(size=(40, 2))
    found = usual_by_rhythm(values, np.array([step]), 10, ahead)[0]
    assert_allclose(found, np.median(values[expected], axis=0) if expected else [np.nan] * 2)
    values[20] = np.nan  # missing
    assert_allclose(usual_by_rhythm(values, np.array([30]), 10)[0], values[[0, 10]].mean(axis=0))


def test_mean_deviations_match_season_features():
    values = np.random.default_rng(1).normal(size=(400, 3))
    values[:300] = values[:100].repeat(3, axis=0)[np.arange(300) % 100]  # the same thrice: deviations are plain
    period, steps = 100, np.arange(400)
    season = season_features(values, steps, period)
    single = season.reshape(400, 3, -1)[:, :, 0]
    assert_allclose(mean_deviations(single)[32:], season[32:], atol=1e-12)


def test_constant_samples_forecast_themselves_and_none_forecast_nan():
    samples = PastChanges(np.zeros((9, 1)), np.arange(9.0)[:, None], np.arange(9))
    found = foresee(samples, np.zeros((2, 1)), 1.0, 1)
    assert_allclose(found.mean, 4.0)
    assert_allclose(found.median, 4.0)
    assert_array_equal(found.low, [[0.0]] * 2)  # nine samples say nothing of one in twenty
    assert_array_equal(found.high, [[8.0]] * 2)
    nothing = foresee(PastChanges(np.empty((0, 1)), np.empty((0, 1)), np.empty(0, np.int64)), np.zeros((2, 1)), 1.0, 1)
    assert np.isnan(nothing.mean).all()
    apart = foresee(samples, np.zeros((1, 1)), 1.0, 1, np.array([4]))  # all of them share readings with it
    assert all(np.isnan(part).all() for part in apart)


def test_near_context_windows_weigh_more():
    rng = np.random.default_rng(0)
    states = rng.uniform(-1, 1, (2000, 1))
    samples = PastChanges(states, states + 0.01 * rng.normal(size=(2000, 1)), np.arange(2000))
    found = foresee(samples, np.array([[0.5], [-0.5]]), 1e9, 1)  # at so fine a time, one context would decide
    assert_allclose(found.mean[:, 0], [0.5, -0.5], atol=0.02)
    assert (found.high - found.low > 0.01).all()


@pytest.mark.parametrize("kind", ["noise", "wave", "walk"])
def test_band_contains_nine_readings_in_ten(kind):
    rng = np.random.default_rng(5)
    rows = {"noise": rng.normal(size=(1600, 1)), "wave": daily(1600, noise=0.3), "walk": daily(1600)}[kind]
    if kind == "walk":
        for i in range(1, 1600):
            rows[i] = 0.9 * rows[i - 1] + rng.normal()
    expected = taught(rows[:1000]).expect(rows[1000:])
    share = np.mean((expected.low <= rows[1000:]) & (rows[1000:] <= expected.high))
    assert 0.84 <= share <= 0.97  # 600 readings: three standard errors are 0.04, and contexts overlap


def test_rhythm_is_forecast_far_ahead():
    rows = daily(1200)
    expected = taught(rows).forecast(100)
    truth = daily(1300, noise=0.0)[1200:]
    assert np.abs(expected.mean - truth).mean() < 0.15
    assert np.mean(expected.high - expected.low) < 1.0  # while readings move by two


@pytest.mark.parametrize("standalone", [False, True])
def test_expectation_of_row_does_not_depend_on_row(standalone):
    rows = daily(900, n_channels=2)
    model = taught(rows)
    asked = rows if standalone else daily(80, seed=3, n_channels=2)
    before = model.expect(asked, standalone=standalone)
    place = 450 if standalone else 40
    touched = asked.copy()
    touched[place] += 9.0
    after = model.expect(touched, standalone=standalone)
    for one, other in zip(before, after, strict=True):
        assert_array_equal(
            one[: place + 1] if not standalone else one[place], other[: place + 1] if not standalone else other[place]
        )
    assert (before.mean[place + 1] != after.mean[place + 1]).all()  # the next one does


def test_expectation_continues_rhythm_across_unseen_rows():
    rows = daily(900)
    model, hidden = taught(rows), np.zeros(900, bool)
    hidden[600:640] = True
    flat = rows.copy()
    flat[600:640] = 0.0
    expected = model.expect(flat, standalone=True, unseen=hidden)
    truth = daily(900, noise=0.0)
    assert np.abs(expected.mean[600:640] - truth[600:640]).max() < 0.35
    other = rows.copy()
    other[600:640] = 7.0
    assert_array_equal(model.expect(other, standalone=True, unseen=hidden).mean[600:641], expected.mean[600:641])


def test_expect_is_nan_before_context_window_and_raises_for_shingles():
    model = taught(daily(700))
    start = model.expect(daily(120), standalone=True)
    assert np.isnan(start.mean[:96]).all()
    assert not np.isnan(start.mean[96:]).any()
    with pytest.raises(ValueError, match="expect needs context windows"):
        SeriesMPF(StreamingMPF(n_estimators=4, random_state=0), shingle=3).fit(daily(60)).expect(daily(9))
    for wrong in (np.zeros(5, bool), np.zeros(120)):
        with pytest.raises(ValueError, match="unseen must be True or False for each of the 120 rows"):
            model.expect(daily(120), standalone=True, unseen=wrong)


# ---- bits by step ----------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(1, LENGTH), st.integers(0, 3))
def test_bits_by_step_add_up(seed, n_channels, n_steps, view):
    rng = np.random.default_rng(seed)
    widths = layout_of(n_channels).widths
    widths[-1] += 2  # a calendar
    own = slice(sum(widths[:view]), sum(widths[: view + 1]))
    low, high = rng.normal(size=(2, widths[view]))
    context, usual, deviations = rng.normal(size=(3, n_steps, n_channels)).round(rng.integers(0, 2))
    folded = fold_on_steps(low, high, own, context, usual, deviations)
    assert folded.shape == (n_steps, n_channels)
    assert_allclose(folded.sum(), low.sum() + high.sum(), atol=1e-9)


def test_bits_go_to_steps_that_move_feature():
    layout = layout_of(1)
    names, context, usual = layout.names(["{}"]), np.zeros((LENGTH, 1)), np.zeros((LENGTH, 1))
    context[-3] = 5.0
    k = names.index("mean of {} over 8")
    for sign, low, high in ((1, 0.0, 4.0), (-1, 4.0, 0.0)):
        folded = fold_on_steps(np.array([low]), np.array([high]), slice(k, k + 1), sign * context, usual, usual)
        assert folded[-3, 0] == 4.0
    k = names.index("change of {} over 4")  # the mean over four minus that over four before: -3 raises it, -6 lowers it
    context[-6] = 5.0
    folded = fold_on_steps(np.array([1.0]), np.array([2.0]), slice(k, k + 1), context, usual, usual)
    assert (folded[-3, 0], folded[-6, 0]) == (2.0, 1.0)


def explained(rows, at):
    model = taught(rows[: at - 100])
    return model.explain(rows[at - 100 : at + 1], rows=[100])[0]


def test_bits_of_spike_go_to_its_step():
    rows = daily(900)
    rows[850] += 4.0
    for later in (0, 3):
        said = explained(rows, 850 + later)
        bits = said.by_step()[:, 0]
        assert_allclose(bits.sum(), said.surprise - said.typical)
        assert bits.argmax() == len(bits) - 1 - later
        assert bits.max() > 0.5 * bits.sum()


def test_bits_of_missing_rise_go_to_its_steps():
    rows = daily(900, noise=0.05)
    rows[834:848] = -1.0  # the trough of the wave is at 834; from there on it should rise
    said = explained(rows, 846)
    bits = said.by_step()[:, 0]
    assert bits[-13:].sum() > 0.8 * bits.sum() > 0
    assert "rise" in said.summary
    assert (said.context.readings[-4:, 0] < said.context.low[-4:, 0]).all()


def test_context_has_readings_and_forecast():
    rows = daily(900, n_channels=2)
    rows[850, 1] += 4.0
    said = explained(rows, 850)
    context = said.context
    assert context.channels == ["x0", "x1"]
    assert_array_equal(context.readings, rows[850 + 1 - LENGTH : 851])
    assert np.isnan(context.times).all()
    assert np.isnan(context.median[:-32]).all()
    assert not np.isnan(context.median[-32:]).any()
    assert context.high[-1, 1] < rows[850, 1]
    assert said.by_step() is context.bits
    assert said.to_dict()["context"]["readings"][-1] == rows[850].tolist()
    assert said.to_dict()["context"]["median"][0] == [None, None]
    shingles = SeriesMPF(StreamingMPF(n_estimators=4, random_state=0), shingle=3).fit(rows)
    with pytest.raises(ValueError, match="see `fold`"):
        shingles.explain(rows[:4], rows=[3])[0].by_step()


def contexts(**parameters):
    """Context windows alone."""
    return SeriesMPF(StreamingMPF(random_state=0, **parameters), short_memory=False)


def test_streams_explain_context_windows():
    rows = daily(1000)
    rows[900] += 4.0
    found = contexts(n_estimators=20).detect_then_learn(rows, explain=True)
    said = found.explanations[900]
    assert_array_equal(said.context.readings, rows[901 - LENGTH : 901])
    assert said.by_step()[-1, 0] > 0.5 * said.by_step().sum()
    assert said.context.high[-1, 0] < rows[900, 0]


# ---- a sensor that hangs ---------------------------------------------------------------------------------------------


def test_stuck_sensor_is_flagged_and_described():
    n_found = 0
    for seed in range(3):
        rows = np.random.default_rng(seed).normal(size=1400)
        rows[1300:1330] = rows[1299]
        found = contexts().detect_then_learn(rows, explain=True)
        flagged = np.flatnonzero(found.is_anomaly[1300:1330]) + 1300
        if len(flagged):
            n_found += 1
            said = found.explanations[int(flagged[-1])]
            assert "unchanged for" in said.summary
            n_still = int(flagged[-1]) - 1299
            assert said.by_step()[-n_still:].sum() > 0.8 * said.by_step().sum()
    assert n_found >= 2


def test_of_channel_selects_one_column():
    parts = [np.arange(6.0).reshape(3, 2) + k for k in range(4)]
    assert_array_equal(Forecast(*parts).of_channel(1).high, [[3.0], [5.0], [7.0]])
