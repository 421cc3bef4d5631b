"""Explanations compared: cases are as promised, measures separate good from bad, and a run from end to end."""

from __future__ import annotations

import numpy as np
import pytest
from effort import examples, mostly_slow
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import explanations
from benchmarks.explanations import (
    FAMILIES,
    Fitted,
    make_case,
    make_trial,
    masking,
    precision,
    ranked,
    recovery,
    repaired,
)
from benchmarks.registry import main
from benchmarks.shared.results import Results, read

BLOCKS = ("guilty", "masking", "own", "sets", "time")


def a_page(directory):
    """An empty page with all blocks."""
    page = directory / "explanations.md"
    page.write_text("".join(f"<!-- begin {block} -->\n<!-- end {block} -->\n" for block in BLOCKS))
    return page


def a_set(seed=0):
    """A table of 300 normal rows and 20 anomalies that are odd in the first of six features."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(320, 6))
    X[300:, 0] += 8.0
    return X, (np.arange(320) >= 300).astype(int)


@settings(max_examples=examples(30))
@given(st.integers(0, 99), st.sampled_from([10, 50]), st.sampled_from([1, 2, 4]))
def test_guilty_features_have_the_requested_number_and_few_of_a_block(seed, n_features, n_guilty):
    guilty = explanations.drawn_guilty(np.random.default_rng(seed), 40, n_features, n_guilty)
    assert (guilty.sum(axis=1) == n_guilty).all()
    assert guilty.reshape(40, -1, explanations.BLOCK).sum(axis=2).max() <= 2


def test_every_feature_is_guilty_equally_often():
    guilty = explanations.drawn_guilty(np.random.default_rng(0), 20_000, 10, 2)
    np.testing.assert_allclose(guilty.mean(axis=0), 0.2, atol=0.014)  # 5 standard deviations


@pytest.mark.parametrize("family", FAMILIES)
def test_a_case_depends_only_on_its_seed(family):
    case, again, other = (make_case(family, 10, 2, seed) for seed in (3, 3, 4))
    assert case.table.shape == (explanations.N_NORMAL + explanations.N_SPOILED, 10)
    assert case.rows.shape == case.guilty.shape == (explanations.N_EXPLAINED, 10)
    np.testing.assert_array_equal(case.rows, again.rows)
    assert not np.array_equal(case.rows, other.rows)


@pytest.mark.parametrize("family", ["shift", "heavy tails"])
def test_guilty_values_are_anomalous_alone(family):
    case = make_case(family, 10, 2, 0)
    normal = np.abs(case.table[: explanations.N_NORMAL])
    is_extreme = np.abs(case.rows) > np.quantile(normal, 0.995, axis=0)
    assert is_extreme[case.guilty].all()
    assert is_extreme[~case.guilty].mean() < 0.03


@pytest.mark.parametrize("family", ["correlation", "other cluster"])
def test_guilty_values_are_normal_alone(family):
    case = make_case(family, 10, 2, 0)
    normal = case.table[: explanations.N_NORMAL]
    low, high = np.quantile(normal, [0.005, 0.995], axis=0)
    is_usual = (low <= case.rows) & (case.rows <= high)
    assert is_usual[case.guilty].mean() > 0.9


@pytest.mark.parametrize("family", ["correlation", "other cluster", "between clusters"])
def test_guilty_values_are_far_from_their_prediction_by_other_features(family):
    case = make_case(family, 10, 1, 0)
    normal = case.table[: explanations.N_NORMAL]
    far = []
    for row, guilty in zip(case.rows, case.guilty, strict=True):
        feature = guilty.argmax()
        near = normal[np.argsort(np.abs(normal[:, ~guilty] - row[~guilty]).sum(axis=1))[:10], feature]
        far.append(abs(row[feature] - np.median(near)))
    assert np.median(far) > 1.5


def test_precision_counts_guilty_features_among_the_first():
    guilty = np.array([[True, False, True, False], [False, False, False, True]])
    assert precision(guilty, ranked(np.array([[9.0, 1.0, 8.0, 0.0], [0.0, 1.0, 2.0, 3.0]]))) == 1.0
    assert precision(guilty, ranked(np.array([[9.0, 8.0, 1.0, 0.0], [3.0, 2.0, 1.0, 0.0]]))) == 0.25


def test_equal_attributions_favour_no_column():
    first = ranked(np.zeros((4000, 4)))[:, 0]
    np.testing.assert_allclose(np.bincount(first) / 4000, 0.25, atol=0.035)  # 5 standard deviations


def test_recovery_has_a_scale():
    before = np.array([3.0, 5.0])
    assert recovery(before, np.array([1.0, 1.0]), usual=1.0) == 1.0
    assert recovery(before, before, usual=1.0) == 0.0
    assert recovery(before, np.array([2.0, 3.0]), usual=1.0) == 0.5
    assert recovery(before, np.array([99.0, 99.0]), usual=1.0) == -1.0
    assert recovery(np.array([0.5, 5.0]), np.array([9.0, 1.0]), usual=1.0) == 1.0, "the first was not odd"
    assert np.isnan(recovery(np.array([0.5]), np.array([0.4]), usual=1.0))


def test_the_share_of_more_anomalous_rows_counts_ties():
    among = np.array([4.0, 1.0, 2.0, 3.0])
    assert explanations.share_odder(np.array([0.0]), among) == 1.0
    assert explanations.share_odder(np.array([4.0]), among) == 0.25
    assert explanations.share_odder(np.array([9.0, 0.0]), among) == 0.5


def test_halves_are_disjoint_and_the_most_anomalous_rows_are_explained():
    X, y = a_set()
    trial = make_trial(X, y, 0)
    assert trial.table.shape == (160, 6)
    assert trial.normal.shape == (150, 6)
    assert trial.rows.shape == (10, 6)
    assert (trial.rows[:, 0] > 4).all()
    assert not set(map(tuple, trial.rows)) & set(map(tuple, trial.table))
    assert (np.diff(trial.judge.scores(trial.rows)["knn"]) <= 0).all()


def test_large_sets_are_thinned_but_keep_anomalies():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(20_000, 2)), (np.arange(20_000) < 40).astype(int)
    trial = make_trial(X, y, 0)
    assert len(trial.table) == pytest.approx(explanations.MOST_ROWS, abs=3)
    assert len(trial.rows) >= 2


def test_only_masked_values_are_replaced_by_normal_ones():
    X, y = a_set()
    trial = make_trial(X, y, 0)
    order = np.tile(np.arange(6), (len(trial.rows), 1))
    middle, nearest = (repaired(trial, order, 2, repair) for repair in ("median", "nearest"))
    np.testing.assert_array_equal(middle[:, 2:], trial.rows[:, 2:])
    np.testing.assert_array_equal(nearest[:, 2:], trial.rows[:, 2:])
    np.testing.assert_array_equal(middle[:, :2], np.tile(np.median(trial.normal[:, :2], axis=0), (len(middle), 1)))
    scaled, normal = trial.judge.scaler(trial.rows), trial.judge.scaler(trial.normal)
    for row, donated in zip(scaled, nearest, strict=True):
        donor = np.linalg.norm(normal[:, 2:] - row[2:], axis=1).argmin()
        np.testing.assert_array_equal(donated[:2], trial.normal[donor, :2])


@pytest.mark.parametrize(
    "measure",
    mostly_slow(
        ["knn median", "knn nearest", "lof median", "lof nearest", "iforest nearest", "smpf median", "own median"], 1, 5
    ),
)
def test_good_attributions_recover_more_than_bad_ones(measure):
    X, y = a_set()
    trial = make_trial(X, y, 0)

    def score(rows):
        return np.abs(rows).max(axis=1)

    good, bad = (
        masking(trial, Fitted(score, lambda rows, sign=sign: sign * np.abs(rows)))[measure] for sign in (1.0, -1.0)
    )
    assert good > bad + 0.3


@pytest.mark.parametrize("name", [name for name in explanations.METHODS if name != "random"])
def test_every_method_scores_and_attributes(name):
    library = {"SHAP": "shap", "krcf": "krcf", "rcf3": "rcf3"}.get(name)
    if library:
        pytest.importorskip(library)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4)) * [1.0, 10.0, 0.1, 1.0]
    odd = np.array([[0.0, 0.0, 0.9, 0.0], [0.0, -90.0, 0.0, 0.0]])
    fitted = explanations.METHODS[name](X, 0)
    assert fitted.scores(odd).min() > np.median(fitted.scores(X))
    parts = fitted.attribute(odd)
    assert parts.shape == (2, 4)
    assert np.isfinite(parts).all()
    if name != "rcf3":  # whose attribution does not find this
        assert parts.argmax(axis=1).tolist() == [2, 1]


def test_constant_columns_have_no_attributions():
    X = np.column_stack([np.random.default_rng(0).normal(size=200), np.ones(200), np.repeat([0.0, 5.0], [190, 10])])
    parts = explanations.deviations(X, 0).attribute(X)
    assert (parts[:, 1] == 0).all()
    assert np.isfinite(parts).all()


def test_times_are_of_one_run(tmp_path, monkeypatch):
    monkeypatch.setattr(explanations, "N_FEATURES", (10,))
    monkeypatch.setattr(explanations, "N_ROUNDS", 2)
    results = Results("t", ("features", "method"), tmp_path)
    explanations.run_time(results, ["z-score"], 10)
    (first,) = list(results)
    explanations.run_time(results, ["z-score"], 10)
    assert list(results) == [first], "what is there is kept"
    explanations.run_time(results, ["z-score", "random"], 10)
    assert [row["method"] for row in results] == ["z-score", "random"]
    assert next(iter(results)) != first, "a newcomer makes all of them run again"


def test_tables_show_the_best_figure_in_bold():
    rows = [
        {"family": "shift", "features": "10", "guilty": str(k), "method": name, "seed": "0", "precision": f"{value}"}
        for name, value in (("sMPF", 1.0), ("SHAP", 0.5))
        for k in (1, 2)
    ]
    lines = explanations.guilty_table(rows).splitlines()
    assert lines[0] == "| family | features | guilty | sMPF | SHAP |"
    assert lines[2] == "| shift | 10 | 1, 2, 4 | **1.00** | 0.50 |"
    assert lines[-1] == "| mean |  |  | **1.00** | 0.50 |"


def test_times_have_two_figures_and_ratios_to_ours():
    rows = [
        {"features": "10", "method": name, "batch": batch, "single": "200"}
        for name, batch in (("sMPF", "20"), ("SHAP", "1234"), ("z-score", "0.05"))
    ]
    lines = explanations.time_table(rows).splitlines()
    assert lines[2] == "| 10 | many rows a call | 20 (1.0×) | 1,234 (62×) | 0.05 (0.0025×) |"


def test_ahead_ignores_equal_figures():
    assert explanations.ahead([0.5, 0.6, 0.7], [0.5, 0.5, 0.8]) == "*1 of 2*"
    assert explanations.ahead([0.5], [0.5001]) == ""


@pytest.mark.slow
def test_end_to_end(tmp_path, monkeypatch):
    names = ("sMPF", "z-score", "random")
    monkeypatch.setattr(explanations, "METHODS", {name: explanations.METHODS[name] for name in names})
    monkeypatch.setattr(explanations, "FAMILIES", {"shift": explanations.shifted})
    monkeypatch.setattr(explanations, "QUICK_DATA", ("toy",))
    monkeypatch.setattr(explanations, "TABLES", ("toy",))
    monkeypatch.setattr(explanations, "load", lambda name: (name, *a_set()))
    page = a_page(tmp_path)
    main(["run", "explanations", "--quick"], tmp_path, tmp_path)
    found = {
        name: np.mean([float(row["precision"]) for row in read(tmp_path / "explanations.csv") if row["method"] == name])
        for name in names
    }
    assert found["sMPF"] > 0.9
    assert found["z-score"] > 0.9
    assert found["random"] < 0.4
    masked = {row["method"]: float(row["knn nearest"]) for row in read(tmp_path / "explanations-masking.csv")}
    assert masked["sMPF"] > masked["random"] + 0.1
    assert len(read(tmp_path / "explanations-time.csv")) == 2 * len(names)
    filled = page.read_text()
    main(["render", "explanations"], tmp_path, tmp_path)
    assert page.read_text() == filled
    assert "| toy | 6 |" in filled
