"""Rows with missing values, by default: completed by their nearest donors, scored and explained by the mean."""

import numpy as np
import pytest
from forests import made
from gaps import hide
from numpy.testing import assert_allclose, assert_array_equal
from streams import bits

import polyaforest
from polyaforest import BatchMPF, EpsilonPhi, Reservoir, StreamingMPF, Window
from polyaforest.detectors import loads
from polyaforest.forest import imputation, stream
from polyaforest.storage.modelfile import read_model, write_model

NAN = np.nan
ROWS = np.random.default_rng(0).normal([3.0, -1.0, 0.5], [1.0, 20.0, 0.1], size=(40, 3))
GAPPY = np.array([[3.0, NAN, 0.5], [NAN, NAN, 0.4], [NAN, NAN, NAN], [50.0, NAN, 0.5], [3.0, -1.0, 0.5]])
SCORES = ["typicality", "multiscale", "mass", "log_mass", EpsilonPhi(0.01)]


@pytest.fixture(params=[StreamingMPF, BatchMPF])
def estimator(request):
    return request.param


def build(estimator=StreamingMPF, **parameters):
    shallow = {"max_depth": 4} if estimator is BatchMPF else {}
    return made(estimator, **{"n_estimators": 8, "random_state": 0} | shallow | parameters)


def with_gaps(seed, share=0.3):
    rows = hide(ROWS, np.random.default_rng(seed).random(ROWS.shape) < share)
    rows[0] = ROWS[0]
    return rows


# ---- completions -----------------------------------------------------------------------------------------------------


def test_row_is_completed_by_nearest_donors_in_order(monkeypatch):
    monkeypatch.setattr(imputation, "N_COMPLETIONS", 2)
    donors = np.array([[0.0, 1.0, 5.0], [9.0, 2.0, 6.0], [1.0, 3.0, 7.0]])
    found = imputation.completions(np.array([[0.9, NAN, NAN], [NAN, 1.9, 5.9]]), donors)
    assert_array_equal(found, [[[0.9, 3.0, 7.0], [0.9, 1.0, 5.0]], [[9.0, 1.9, 5.9], [0.0, 1.9, 5.9]]])


def test_donors_of_empty_row_are_spread_evenly(monkeypatch):
    monkeypatch.setattr(imputation, "N_COMPLETIONS", 3)
    donors = np.arange(10.0)[:, None]
    assert_array_equal(imputation.completions(np.array([[NAN]]), donors)[0, :, 0], [0.0, 4.0, 9.0])


def test_distances_are_scaled_by_spread_of_features():
    far_in_numbers = np.array([[1.0, 1000.0, 1.0], [2.0, 3000.0, 2.0], [9.0, 1000.0, 3.0], [5.0, 9000.0, 4.0]])
    found = imputation.completions(np.array([[1.1, 1500.0, NAN]]), far_in_numbers)
    assert found.shape == (1, 4, 3)
    assert_array_equal(found[0, :2, 2], [1.0, 2.0])


# ---- scores ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("score", SCORES, ids=str)
def test_score_is_mean_over_completions(estimator, score):
    forest = build(estimator, score_type=score).fit(ROWS)
    donors = forest._fitted.donors
    assert len(donors) == 40
    scores = forest.score_samples(GAPPY)
    for row, found in zip(GAPPY, scores, strict=True):
        completed = imputation.completions(row[None], donors)[0]
        assert completed.shape == (8, 3)
        assert found == pytest.approx(forest.score_samples(completed).mean(), rel=1e-12)
    assert_array_equal(forest.predict(GAPPY), np.where(scores >= forest.offset_, 1, -1))
    assert scores[3] == scores.min()


def test_complete_rows_score_the_same_beside_incomplete_rows(estimator):
    forest, strict = (build(estimator, missing=missing).fit(ROWS) for missing in ("impute", "error"))
    rows = np.vstack([ROWS, GAPPY])
    assert_array_equal(forest.score_samples(rows)[:40], strict.score_samples(ROWS))
    assert forest.offset_ == strict.offset_
    assert_array_equal(forest.p_value(ROWS), strict.p_value(ROWS))


def test_many_rows_score_the_same_as_single_rows(estimator):
    forest, rows = build(estimator).fit(ROWS), np.tile(with_gaps(1), (10, 1))
    assert_array_equal(forest.score_samples(rows), [forest.score_samples(row[None])[0] for row in rows])
    assert_array_equal(forest.set_params(n_jobs=3).score_samples(rows), forest.set_params(n_jobs=1).score_samples(rows))


def test_masses_stay_marginal(estimator):
    forest, marginal = (build(estimator, missing=missing).fit(ROWS) for missing in ("impute", "marginalise"))
    for method in ("mass", "tree_masses", "log_density"):
        assert_array_equal(getattr(forest, method)(GAPPY), getattr(marginal, method)(GAPPY))
    assert_array_equal(forest.epsilon_level(GAPPY, 0.8), marginal.epsilon_level(GAPPY, 0.8))
    assert_allclose(forest.mass(GAPPY[2:3]), 1.0)


def test_row_between_clusters_by_mean_only_is_normal():
    rng = np.random.default_rng(1)
    clusters = np.vstack([rng.normal([0, -10], 0.5, size=(400, 2)), rng.normal([0, 10], 0.5, size=(600, 2))])
    forest = StreamingMPF(n_estimators=40, random_state=0).fit(clusters)
    asked = np.array([[0.0, NAN], [NAN, -10.0], [NAN, NAN], [8.0, NAN]])
    assert_array_equal(forest.predict(asked), [1, 1, 1, -1])
    as_a_point = forest.score_samples(clusters).mean()
    assert abs(forest.score_samples(asked)[0] - as_a_point) < 1.0
    assert forest.score_samples(forest.impute(asked))[0] < as_a_point - 1.5  # in the gap between the clusters


def test_forest_without_points_completes_with_mode(monkeypatch):
    monkeypatch.setattr(stream, "WARM_UP", 8)
    forest = build(window=None, max_depth=4).partial_fit(ROWS)
    assert not forest.keeps_points_
    assert_array_equal(forest.score_samples(GAPPY), forest.score_samples(forest.impute(GAPPY, how="mode")))
    batch = build(BatchMPF).fit(ROWS).delete_rows(ROWS[:1])  # which leaves no sample behind
    assert_array_equal(batch.score_samples(GAPPY), batch.score_samples(batch.impute(GAPPY, how="mode")))


def test_empty_forest_gives_mass_of_one_half():
    forest = build(window=5).partial_fit(ROWS[:1])
    forest.delete(0)
    assert_array_equal(forest.score_samples(GAPPY), np.full(5, np.log(0.5)))


# ---- calibration -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["independent", "one factor", "skewed", "clusters"])
def test_incomplete_normal_rows_are_not_flagged_more_often(kind):
    """At a stated rate of 5 %; with 600 rows the share has a standard error below 0.01, of which this allows 4."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(1500, 6))
    if kind == "one factor":
        rows = rows[:, :1] + 0.3 * rows
    elif kind == "skewed":
        rows = np.exp(rows)
    elif kind == "clusters":
        rows += 6 * rng.integers(0, 3, size=(1500, 1)) * np.array([1, 0, 1, 0, 1, 0])
    forest = StreamingMPF(n_estimators=50, random_state=0, false_alarm_rate=0.05).fit(rows[:900])
    asked = hide(rows[900:], rng.random((600, 6)) < rng.choice([0.2, 0.5, 0.8]))
    assert (forest.p_value(asked) <= 0.05).mean() < 0.09
    assert_array_equal(forest.predict(asked) == -1, forest.p_value(asked) <= 0.05)


def test_batch_forest_calibrates_incomplete_rows_by_completions():
    rows = with_gaps(2)
    forest = build(BatchMPF, contamination=0.25)
    assert (forest.fit_predict(rows) == -1).sum() == 10
    assert np.isfinite(build(BatchMPF).fit(rows).p_value(rows)).all()


# ---- streams ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [12, Window(duration=9.0), Reservoir(12, half_life=10)])
@pytest.mark.parametrize("score", SCORES, ids=str)
def test_stream_with_gaps_is_same_row_by_row_and_in_chunks(window, score):
    rows, times = with_gaps(3), np.arange(40.0)
    given = {} if window == 12 else {"times": times}
    whole = build(window=window, score_type=score)
    detected = whole.detect_then_learn(rows, **given)
    for size in (1, 7):
        parts, found = build(window=window, score_type=score), []
        for start in range(0, 40, size):
            part = slice(start, start + size)
            found.append(parts.detect_then_learn(rows[part], **{name: values[part] for name, values in given.items()}))
        assert_array_equal(np.concatenate([part.scores for part in found]), detected.scores)
        assert_array_equal(np.concatenate([part.p_values for part in found]), detected.p_values)
        assert bits(parts) == bits(whole)


@pytest.mark.parametrize("score", SCORES, ids=str)
def test_stream_scores_row_as_score_samples_before_learning(score):
    forest = build(window=12, score_type=score).partial_fit(ROWS[:14])
    for row in (GAPPY[:1], ROWS[14:15], GAPPY[1:2], GAPPY[2:3]):
        before = forest.score_samples(row)
        assert_allclose(forest.score_then_learn(row), before, rtol=1e-12)


def test_loaded_stream_continues_bit_for_bit(tmp_path):
    forest = build(window=20).partial_fit(ROWS[:30])
    forest.save(tmp_path / "model.mpf")
    again = polyaforest.load(tmp_path / "model.mpf")
    assert again.missing == "impute"
    rows = with_gaps(4)
    assert_array_equal(again.score_then_learn(rows), forest.score_then_learn(rows))
    assert bits(loads(again.to_bytes())) == bits(forest)


# ---- explanations ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("score", ["typicality", "log_mass"])
def test_bits_add_up_to_the_score(estimator, score):
    forest = build(estimator, score_type=score).fit(ROWS)
    rows = np.vstack([GAPPY, with_gaps(5)])
    explained = forest.explain(rows)
    assert_allclose(explained.surprise * -np.log(2), forest.score_samples(rows), rtol=1e-10)
    assert_allclose(explained.parts.sum(axis=1), explained.surprise - explained.typical, atol=1e-9)
    assert_array_equal(explained.is_anomaly, forest.predict(rows) == -1)
    assert_array_equal(explained.p_values, forest.p_value(rows))


def test_bits_are_mean_over_completions(estimator):
    forest = build(estimator).fit(ROWS)
    completed = imputation.completions(GAPPY[:1], forest._fitted.donors)[0]
    alone, each = forest.explain(GAPPY[:1]), forest.explain(completed)
    assert_allclose(alone.parts[0], each.parts.mean(axis=0), atol=1e-9)


@pytest.mark.parametrize("missing", ["impute", "marginalise"])
def test_missing_values_are_never_attributed(estimator, missing):
    forest = build(estimator, missing=missing).fit(ROWS)
    explanation = forest.explain(GAPPY)[3]
    assert [attribution.feature for attribution in explanation.attributions] == [0]
    assert_array_equal(np.isnan(explanation.values), [False, True, False])
    facts = explanation.to_dict()
    assert [feature["value"] for feature in facts["features"]] == [50.0, None, 0.5]
    assert "nan" not in str(explanation)
    nothing = forest.explain(np.full((1, 3), NAN))[0]
    assert nothing.attributions == []
    assert "no feature stands out" in str(nothing)


def test_stream_explains_flagged_rows_before_learning():
    forest = build(window=30, n_estimators=30).partial_fit(ROWS)
    detected = forest.detect_then_learn(np.vstack([ROWS[:5], [[90.0, NAN, 0.5]]]), explain=True)
    assert detected.is_anomaly[5]
    explanation = detected.explanations[5]
    assert explanation.surprise * -np.log(2) == pytest.approx(detected.scores[5], rel=1e-9)
    assert explanation.attributions[0].feature == 0


# ---- the default and files -------------------------------------------------------------------------------------------


def test_impute_is_default_and_models_keep_saved_setting(estimator, tmp_path):
    assert estimator().missing == "impute"
    for missing in ("impute", "marginalise", "error"):
        build(estimator, missing=missing).fit(ROWS).save(tmp_path / "model.mpf")
        assert polyaforest.load(tmp_path / "model.mpf").missing == missing
    header, arrays = read_model(tmp_path / "model.mpf")
    del header["parameters"]["missing"]  # as in files from before there was the parameter
    write_model(tmp_path / "old.mpf", header, arrays)
    old = polyaforest.load(tmp_path / "old.mpf")
    assert old.missing == "error"
    with pytest.raises(ValueError, match="row 0, column 1 is missing"):
        old.score_samples(GAPPY)
