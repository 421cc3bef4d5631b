"""Thresholds and p-values are worked out on first use: when that is must not matter."""

import pickle

import numpy as np
import pytest

from polyaforest import BatchMPF, SeriesMPF, StreamingMPF, Tree, load
from polyaforest.forest.thresholds import benjamini_hochberg

ROWS = np.random.default_rng(0).normal(size=(400, 2))
FEW = ROWS[:30] * 0.1 + 3.0  # which would move the threshold
POLICIES = [{}, {"contamination": 0.1}, {"false_alarm_rate": 0.05}]


def forests(make, policy):
    """Two forests that have learned the same."""
    tree = Tree(domain=[[-9.0, -9.0], [9.0, 9.0]])
    return [make(n_estimators=5, tree=tree, random_state=0, **policy).fit(ROWS) for _ in range(2)]


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("make", [StreamingMPF, BatchMPF])
def test_earlier_reads_do_not_change_later_results(make, policy):
    asked, silent = forests(make, policy)
    asked.detect(ROWS)
    asked.explain(ROWS[:3])
    for change in ("partial_fit", "delete_rows"):
        for forest in asked, silent:
            getattr(forest, change)(FEW)
        for mine, theirs in zip(asked.detect(ROWS)[:4], silent.detect(ROWS)[:4], strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("make", [StreamingMPF, BatchMPF])
def test_unread_file_or_pickle_gives_same_results_after_more_rows(make, policy, tmp_path):
    forest, twin = forests(make, policy)
    forest.save(tmp_path / "model")
    for other in (load(tmp_path / "model"), pickle.loads(pickle.dumps(twin)), twin):
        other.partial_fit(FEW)
        if other is twin:
            forest.partial_fit(FEW)
        expected = forests(make, policy)[0].partial_fit(FEW).detect(ROWS)
        for mine, theirs in zip(other.detect(ROWS)[:4], expected[:4], strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_copies_do_not_share_derived_values():
    forest = BatchMPF(n_estimators=3, random_state=0).fit(ROWS)
    forest.detect(ROWS)
    twin = pickle.loads(pickle.dumps(forest))
    assert twin._model._fitted is None
    assert twin._model.offset == forest._model.offset
    before = forest.offset_
    twin.fit(ROWS * 2)
    assert forest.offset_ == before


@pytest.mark.parametrize("make", [StreamingMPF, BatchMPF])
def test_notes_do_not_change_threshold(make, tmp_path):
    forest = make(n_estimators=3, random_state=0).fit(ROWS)
    forest.save(tmp_path / "model", notes={"line": -0.5})
    assert load(tmp_path / "model").offset_ == forest.offset_


def test_line_in_notes_of_early_version_is_threshold_until_recomputed(tmp_path):
    forest = BatchMPF(n_estimators=3, random_state=0).fit(ROWS)
    expected = forest.offset_
    forest.save(tmp_path / "old", notes={"columns": ["a", "b"], "line": -0.5})
    back = load(tmp_path / "old")
    assert back.offset_ == -0.5
    back.save(tmp_path / "new")
    assert load(tmp_path / "new").offset_ == -0.5
    back.fit(ROWS).save(tmp_path / "new")
    assert load(tmp_path / "new").offset_ == expected
    assert load(tmp_path / "new").notes == {"columns": ["a", "b"]}


def test_rows_without_p_value_are_not_tested():
    p_values = np.array([np.nan, 0.02, 0.3, np.nan, np.nan, 0.04, np.nan])
    known = ~np.isnan(p_values)
    rejected = benjamini_hochberg(p_values, 0.1)
    np.testing.assert_array_equal(rejected[known], benjamini_hochberg(p_values[known], 0.1))
    assert rejected.tolist() == [False, True, False, False, False, True, False]
    assert not benjamini_hochberg(np.full(3, np.nan), 0.5).any()


def test_discoveries_in_series_ignore_rows_without_score():
    wave = np.sin(np.arange(500.0))
    series = SeriesMPF(StreamingMPF(n_estimators=10, random_state=0), shingle=4).fit(wave)
    ahead = np.sin(np.arange(500.0, 540.0))
    ahead[20] = 9.0
    with_gap = np.concatenate([ahead, np.full(400, np.nan)])
    found = series.predict_fdr(ahead, 0.1)
    assert (found == -1).any()
    np.testing.assert_array_equal(series.predict_fdr(with_gap, 0.1)[: len(ahead)], found)
    assert (series.predict_fdr(with_gap, 0.1)[len(ahead) :] == 1).all()


def test_one_dimensional_readings_need_single_channel():
    series = SeriesMPF(StreamingMPF(n_estimators=3, random_state=0), shingle=2).fit(ROWS)
    with pytest.raises(ValueError, match="Reshape your data"):
        series.score_samples(ROWS[0])
