"""Margins of single features: their law, their costs, and rows that are unusual in one feature."""

import numpy as np
import pytest
from forests import made
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from sklearn.utils._param_validation import InvalidParameterError
from streams import bits

import polyaforest
from polyaforest import BatchMPF, Reservoir, SeriesMPF, StreamingMPF
from polyaforest.detectors import loads
from polyaforest.forest import margins, stream
from polyaforest.forest.margins import Margins, Tails
from polyaforest.forest.score_types import Score
from polyaforest.storage.modelfile import ModelFileError, read_model, write_model

ROWS = np.random.default_rng(0).normal(size=(600, 4))
FAR = np.where(np.arange(4) == 2, 12.0, ROWS[:1])


def build(**parameters):
    return made(StreamingMPF, **{"n_estimators": 6, "random_state": 0} | parameters)


def with_constant(value, n=2000, seed=0):
    return np.column_stack([np.random.default_rng(seed).normal(size=(n, 5)), np.full(n, value)])


# ---- the law ---------------------------------------------------------------------------------------------------------


def test_tails_of_gaussian_match_the_law():
    """Compare the surprise at 2.5 to 5 deviations, averaged over forty features, to within a sixth of the bits."""
    rows = np.random.default_rng(0).normal(size=(2048, 40))
    found = Tails.of(rows)
    for deviations in (2.5, 3.5, 5.0):
        bits_of = found.surprise(np.full((1, 40), deviations))[0, 1]
        assert bits_of.mean() == pytest.approx(-np.log2(stats.norm.sf(deviations)), rel=1 / 6)


def test_counted_tails_are_exact():
    rows = np.arange(1024.0)[:, None]
    found = Tails.of(rows)
    assert found.edge[1, 0] == 1024 - 32
    assert found.bits[1, 0] == 5.0
    assert found.edge[0, 0] == -31
    assert_array_equal(found.surprise(np.array([[992.0], [500.0], [31.0]])), 0.0)
    assert found.surprise(np.array([[992.5]]))[0, 1, 0] > 5.0


def test_exponential_tail_continues_as_line_and_heavier_tails_do_not_bend_down():
    quantiles = -np.log2(1 - (np.arange(2048) + 0.5) / 2048)[:, None]
    found = Tails.of(quantiles)
    assert found.surprise(np.array([[20.0]]))[0, 1, 0] == pytest.approx(20.0, abs=0.5)
    heavy = Tails.of(1.1**quantiles * quantiles**2)
    assert heavy.curve[1, 0] == 0.0
    assert heavy.slope[1, 0] > 0


def test_margins_are_symmetric_and_scale_invariant():
    rows = np.exp(ROWS)
    found, negated, scaled = Margins.of(rows), Margins.of(-rows), Margins.of(2.0**20 * rows)
    asked = rows[:50] * 20
    assert_allclose(found.attributions(asked), negated.attributions(-asked)[:, ::-1], rtol=1e-9)
    assert_allclose(found.attributions(asked), scaled.attributions(2.0**20 * asked), rtol=1e-9)
    assert found.attributions(asked).any()


def test_costs_are_the_sum_of_attributions():
    found = Margins.of(ROWS)
    rows = np.vstack([ROWS[:3], FAR, -FAR, np.full((1, 4), 9.0), np.full((1, 4), np.nan)])
    assert found.costs(ROWS[:1]) is None
    assert_allclose(found.costs(rows), found.attributions(rows).sum(axis=(1, 2)))
    assert (found.costs(rows) > 0).tolist() == [False, False, False, True, True, True, False]
    assert_array_equal(found.attributions(np.full((1, 4), 1e100))[0, 1], found.bits)


@pytest.mark.parametrize("n_features", [1, 3, 20])
@pytest.mark.parametrize("kind", ["normal", "laplace", "student", "lognormal", "counts", "flags", "rounded"])
def test_share_of_rows_beyond_margins_stays_within_rate(kind, n_features):
    """The rate is one row in 2,048; allow one in 400, over six draws with 4,000 new rows each (seeds are fixed)."""
    draw = {
        "normal": lambda rng, n: rng.normal(size=(n, n_features)),
        "laplace": lambda rng, n: rng.laplace(size=(n, n_features)),
        "student": lambda rng, n: rng.standard_t(4, size=(n, n_features)),
        "lognormal": lambda rng, n: np.exp(rng.normal(size=(n, n_features))),
        "counts": lambda rng, n: rng.poisson(0.1, size=(n, n_features)).astype(float),
        "flags": lambda rng, n: (rng.random((n, n_features)) < 0.005).astype(float),
        "rounded": lambda rng, n: rng.normal(size=(n, n_features)).round(),
    }[kind]
    shares = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        found = Margins.of(draw(rng, 2048))
        costs = found.costs(draw(rng, 4000))
        shares.append(0.0 if costs is None else (costs > 0).mean())
    assert np.mean(shares) < 1 / 400


def test_rare_flags_widen_margins_but_new_flag_is_detected():
    rng = np.random.default_rng(0)
    rare = (rng.random((2048, 200)) < 0.0005).astype(float)
    assert Margins.of(rare).costs((rng.random((2048, 200)) < 0.0005).astype(float)) is None
    quiet = np.column_stack([rng.normal(size=(2048, 3)), np.zeros(2048)])
    assert Margins.of(quiet).costs(np.array([[0.0, 0.0, 0.0, 1.0]])) > 10


@pytest.mark.parametrize(
    ("value", "other", "is_odd"),
    [(7, 7.1, True), (0, 0.01, True), (1e6, 1e6 + 1, True), (3, 4, True), (-2, -2.5, True), (7, 7 + 1e-12, False)],
)
def test_departure_from_constant_costs_at_any_size_beyond_rounding(value, other, is_odd):
    rows = with_constant(float(value))
    found = Margins.of(rows)
    asked = rows[:1].copy()
    asked[0, 5] = other
    attributions = found.attributions(asked)
    assert (attributions[0, int(other > value), 5] > 10) == is_odd
    assert_array_equal(attributions[0, int(other <= value)], 0.0)
    rows[17, 5] = other  # among those that were learned too, but not if there are several
    assert (Margins.of(rows).attributions(rows[17:18]).any()) == is_odd
    rows[18:20, 5] = other
    assert not Margins.of(rows).attributions(rows[17:18]).any()


def test_limit_is_where_surprise_exceeds_threshold():
    tails = Tails.of(ROWS)
    for threshold in (12.0, 20.0):
        limit = tails.limit(threshold)
        above, below = (tails.surprise(np.stack([-limit[0], limit[1]]) * share) for share in (1 + 1e-9, 1 - 1e-9))
        for side in (0, 1):
            assert (above[side, side] >= threshold).all()
            assert (below[side, side] <= threshold).all()
    assert np.isinf(tails.limit(64.0)).all()


@pytest.mark.parametrize("n_features", [1, 4, 16])
def test_threshold_is_at_least_ten_bits_plus_log_of_features(n_features):
    assert Margins.of(np.zeros((300, n_features))).bits == 10 + np.log2(n_features)


def test_too_few_points_give_no_margins():
    assert Margins.of(ROWS[:255]) is None
    assert Margins.of(ROWS[:256]) is not None
    assert Margins.of(np.empty((300, 0))) is None


# ---- forests ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", ["auto", 400, Reservoir(300)])
def test_score_is_typicality_minus_costs(window):
    forest, plain = (build(window=window, score_type=kind).fit(ROWS) for kind in ("margins", "typicality"))
    rows = np.vstack([ROWS[:20], FAR, -FAR])
    costs = forest._stream.penalties.margins.costs(rows)
    assert (costs[20:] > 0).all()
    assert_allclose(forest.score_samples(rows), plain.score_samples(rows) - np.log(2) * costs, rtol=1e-12)
    assert_array_equal(forest.score_samples(rows[:20]), plain.score_samples(rows[:20]))
    assert plain._stream.penalties.margins is None
    assert_array_equal(forest.mass(rows), plain.mass(rows))


def test_margins_are_the_default_of_streams_only():
    assert StreamingMPF().score_type == "margins"
    with pytest.raises(InvalidParameterError, match="score_type"):
        BatchMPF(score_type="margins").fit(ROWS)
    series = SeriesMPF(StreamingMPF(n_estimators=4, random_state=0), shingle=4).fit(np.sin(np.arange(600) / 5))
    assert series.estimator_._score is Score.TYPICALITY
    summary = build(window=None, max_depth=5).partial_fit(ROWS)
    assert summary._stream.penalties.margins is None
    assert np.isfinite(summary.score_samples(FAR)).all()


@pytest.mark.parametrize("n_features", [3, 10])
def test_flags_five_deviations_in_one_feature(n_features):
    rng = np.random.default_rng(3)
    forest = StreamingMPF(n_estimators=60, random_state=0).fit(rng.normal(size=(2000, n_features)))
    odd = rng.normal(size=(200, n_features))
    odd[np.arange(200), rng.integers(0, n_features, 200)] = 5.0 * rng.choice([-1, 1], 200)
    assert (forest.predict(odd) == -1).mean() > 0.9
    assert (forest.predict(rng.normal(size=(2000, n_features))) == -1).mean() < 0.003


def test_flags_departure_from_constant_column_with_bits_that_add_up():
    rows = with_constant(7.0)
    forest = StreamingMPF(n_estimators=40, random_state=0).fit(rows)
    odd = rows[:1].copy()
    odd[0, 5] = 7.1
    assert forest.predict(odd) == -1
    explained = forest.explain(odd)
    assert explained.surprise[0] * -np.log(2) == pytest.approx(forest.score_samples(odd)[0], rel=1e-10)
    assert explained.parts[0].sum() == pytest.approx(explained.surprise[0] - explained.typical, abs=1e-9)
    (attribution,) = explained[0].attributions
    assert (attribution.feature, attribution.side) == (5, "high")
    assert attribution.expected == pytest.approx((7.0, 7.0))
    gappy = odd.copy()
    gappy[0, 2] = np.nan
    assert forest.predict(gappy) == -1
    assert forest.explain(gappy).surprise[0] * -np.log(2) == pytest.approx(forest.score_samples(gappy)[0], rel=1e-10)


def test_flags_departure_within_a_table():
    rows = with_constant(7.0)
    rows[100, 5] = 7.1
    assert StreamingMPF(n_estimators=40, random_state=0).fit_predict(rows)[100] == -1


# ---- calibration -----------------------------------------------------------------------------------------------------

WITH_ODD = np.vstack([ROWS, FAR])  # the last row has a feature beyond its margins
LEFT_OUT = {
    "table, out of bag": {},
    "table, one by one": {"max_samples": None, "max_depth": 6},
    "window, out of bag": {"window": 601},
}


@pytest.mark.parametrize("parameters", LEFT_OUT.values(), ids=LEFT_OUT)
def test_calibration_scores_include_margins(parameters):
    forest, plain = (build(score_type=kind, **parameters).fit(WITH_ODD) for kind in ("margins", "typicality"))
    (scores, arrivals), (expected, same) = (model._model.left_out_scores(model._query) for model in (forest, plain))
    assert_array_equal(arrivals, same)
    costs = forest._stream.penalties.margins.costs(WITH_ODD[arrivals])
    assert 600 in arrivals[costs > 0]
    assert_allclose(scores, expected - np.log(2) * costs, rtol=1e-12)


@pytest.mark.parametrize("parameters", LEFT_OUT.values(), ids=LEFT_OUT)
def test_row_equal_to_a_point_held_is_not_more_anomalous(parameters):
    """One of 601 points has a feature as far out, so the p-value is not the smallest possible."""
    forest = build(n_estimators=60, **parameters).fit(WITH_ODD)
    assert forest._stream.penalties.margins.costs(FAR + 0.01) > 0
    assert forest.p_value(FAR + 0.01) > 1.5 / 602


def test_group_calibration_includes_margins():
    rows, places = np.vstack([FAR, WITH_ODD]), np.array([0, 590, 601])  # the first is no longer held
    forest, plain = (build(window=580, score_type=kind).fit(rows) for kind in ("margins", "typicality"))
    costs = forest._stream.penalties.margins.costs(rows[places])
    assert (costs > 0).tolist() == [True, False, True]
    expected = plain._scores_left_out(rows, places) - np.log(2) * costs
    assert_allclose(forest._scores_left_out(rows, places), expected, rtol=1e-12)


def test_contamination_share_includes_margins():
    forest = build(window=601, contamination=0.0008).fit(WITH_ODD)
    lowest = np.sort(forest.score_samples(WITH_ODD))[:2]
    place = 0.0008 * 600
    assert forest.offset_ == pytest.approx(lowest[0] + place * (lowest[1] - lowest[0]), rel=1e-6)


# ---- streams ---------------------------------------------------------------------------------------------------------


def far_now_and_then(n, seed=1):
    rows = np.random.default_rng(seed).normal(size=(n, 4))
    rows[[550, 850], 1] = 30.0
    return rows


def test_stream_is_the_same_row_by_row_and_in_chunks(monkeypatch):
    monkeypatch.setattr(stream, "_ARRIVALS_PER_MEASUREMENT", 256)
    rows = far_now_and_then(900)
    whole = build(window=600)
    detected = whole.detect_then_learn(rows)
    for size in (1, 97):
        parts = build(window=600)
        found = [parts.detect_then_learn(rows[start : start + size]) for start in range(0, 900, size)]
        assert_array_equal(np.concatenate([part.scores for part in found]), detected.scores)
        assert bits(parts) == bits(whole)
    assert detected.is_anomaly[[550, 850]].all()
    plain = build(window=600, score_type="typicality").score_then_learn(rows)
    is_other = plain != detected.scores
    assert is_other[[550, 850]].all()
    assert is_other.sum() <= 8  # but for rows that are far out, scores are those of typicality


def test_margins_are_measured_every_1024_arrivals():
    rows = np.random.default_rng(4).normal(size=(4000, 4)) * np.linspace(1, 9, 4000)[:, None]
    forest, measured = build(window=300).partial_fit(rows[:3072]), Margins.of(rows[3072 - 300 : 3072])
    assert_array_equal(forest._stream.penalties.margins.limit, measured.limit)
    forest.partial_fit(rows[3072:3200])
    assert_array_equal(forest._stream.penalties.margins.limit, measured.limit)


def test_margins_follow_rows_that_became_usual():
    """A new level is penalised for eight rows, in any chunks and after loading, not until the next measurement."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(1500, 2))
    rows[1100:, 0] += 12
    whole, parts = build(), build()
    scores = whole.score_then_learn(rows)
    found = []
    for part in np.split(rows, [1101, 1104, 1105, 1300]):
        found.append(parts.score_then_learn(part))
        parts = loads(parts.to_bytes())
    assert_array_equal(scores, np.concatenate(found))
    single = build().partial_fit(rows[:1100])
    assert_array_equal(scores[1100:1120], [single.score_then_learn(row[None])[0] for row in rows[1100:1120]])
    assert (scores[1100:1108] < scores[1110:].min()).all()
    assert whole.predict(rows[1400:]).mean() > 0.9


def test_loaded_stream_continues_bit_for_bit(tmp_path):
    rows = far_now_and_then(1500)
    forest = build(window=300).partial_fit(rows[:700])
    forest.save(tmp_path / "model.mpf")
    others = [polyaforest.load(tmp_path / "model.mpf"), loads(forest.to_bytes())]
    scores = forest.score_then_learn(rows[700:])
    for other in others:
        assert_array_equal(other.score_then_learn(rows[700:]), scores)
        assert bits(other) == bits(forest)


def test_margins_follow_deletions():
    rows = ROWS.copy()
    rows[5, 2] = 1e6  # a secret
    forest = build(window=600).partial_fit(rows)
    forest.delete(5)
    never = Margins.of(np.delete(rows, 5, axis=0))
    assert_array_equal(forest._stream.penalties.margins.limit, never.limit)
    assert forest._stream.penalties.margins.bits == never.bits
    forest.delete(list(range(6, 400)))
    assert forest._stream.penalties.margins is None


def test_rejects_damaged_file(tmp_path):
    build(window=300).fit(ROWS).save(tmp_path / "model.mpf")
    header, arrays = read_model(tmp_path / "model.mpf")
    for damage in (lambda part: part * np.nan, lambda part: part[:1], lambda part: part[:, :3]):
        broken = {**arrays, "stream/margins": np.ascontiguousarray(damage(arrays["stream/margins"]))}
        write_model(tmp_path / "broken.mpf", header, broken)
        with pytest.raises(ModelFileError, match="margins"):
            polyaforest.load(tmp_path / "broken.mpf")
    write_model(tmp_path / "old.mpf", header, {n: a for n, a in arrays.items() if n != "stream/bits_beyond"})
    with pytest.raises(ModelFileError, match="bits_beyond"):
        polyaforest.load(tmp_path / "old.mpf")


def test_models_saved_with_typicality_keep_typicality(tmp_path):
    forest = build(score_type="typicality").fit(ROWS)
    forest.save(tmp_path / "model.mpf")
    again = polyaforest.load(tmp_path / "model.mpf")
    assert again.score_type == "typicality"
    assert_array_equal(again.score_samples(FAR), forest.score_samples(FAR))


def test_rates_match_the_docs():
    assert 1 / margins.RATE == 2048
