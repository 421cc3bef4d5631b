"""Private releases of a batch of counts: their contents, their methods, and their errors."""

import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.metrics import roc_auc_score
from strategies import seeds

import polyaforest
from polyaforest import BatchMPF, EpsilonPhi, StreamingMPF, Tree
from polyaforest.detectors import loads
from polyaforest.forest import privacy
from polyaforest.forest.integrity import check_forest
from polyaforest.kernels.arrays import NONE

TREE = Tree(domain=[[-8.0, -8.0], [8.0, 8.0]], max_depth=6)
RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(3000, 2))
ODD = RNG.uniform(4, 7, size=(60, 2))


def counted(rows=ROWS, **given):
    return BatchMPF(**{"n_estimators": 10, "tree": TREE, "random_state": 0} | given).fit(rows)


@given(seeds, st.integers(1, 5), st.integers(0, 5), st.sampled_from([0.01, 1.0, 50.0]), st.integers(1, 60))
def test_counts_are_non_negative_integers_that_add_up(seed, n_trees, depth, epsilon, n):
    tree = Tree(domain=[[-1.0, 0.0], [1.0, 3.0]], max_depth=depth, lifetime=2.0)
    rows = np.random.default_rng(seed).normal(size=(n, 2))
    forest = BatchMPF(n_estimators=n_trees, tree=tree, random_state=seed).fit(rows).release(epsilon, random_state=seed)
    check_forest(forest.forest_)
    counts, left, right = forest.forest_.counts, forest.forest_.left, forest.forest_.right
    assert (counts >= 0).all()
    for t in range(n_trees):
        inner = np.flatnonzero(left[t, : forest.forest_.size[t]] != NONE)
        assert_array_equal(counts[t, inner], counts[t, left[t, inner]] + counts[t, right[t, inner]])
    assert len(set(counts[np.arange(n_trees), forest.forest_.root].tolist())) == 1


@given(st.floats(1e-3, 1000), st.integers(1, 500), st.booleans())
def test_budgets_never_exceed_epsilon(epsilon, n_trees, has_scores):
    budget = privacy.Budget.of(epsilon, n_trees, has_scores=has_scores)
    spent = Fraction(budget.totals + budget.scores + n_trees * budget.leaf, privacy._UNIT)
    assert spent <= Fraction(epsilon)  # exactly
    assert spent > Fraction(epsilon) - Fraction(n_trees + 3, privacy._UNIT)
    assert (budget.scores > 0) == has_scores


def test_release_with_little_noise_matches_the_forest():
    forest = counted()
    released = forest.release(1000.0, random_state=0)
    assert released.privacy_epsilon_ == 1000.0
    assert forest.privacy_epsilon_ is None
    np.testing.assert_allclose(released.score_samples(ROWS), forest.score_samples(ROWS), atol=0.5)


def test_release_detects_and_explains_anomalies():
    table, is_odd = np.vstack([ROWS, ODD]), np.arange(3060) >= 3000
    released = counted(table, contamination=0.03).release(2.0, table, random_state=0)
    assert roc_auc_score(is_odd, -released.score_samples(table)) > 0.95
    found = released.detect(table)
    assert found.is_anomaly[is_odd].mean() > 0.8
    assert found.is_anomaly[~is_odd].mean() < 0.05
    assert np.isfinite(found.p_values).all()
    assert "x" in str(released.explain(ODD[:1])[0])
    released.set_params(contamination="auto", false_alarm_rate=0.05)
    assert 0.01 < (released.predict(ROWS) == -1).mean() < 0.1
    assert_array_equal(released.predict(ROWS) == -1, released.detect(ROWS).is_anomaly)


def test_scores_of_release_match_its_p_values():
    rows = np.random.default_rng(1).normal(size=(20_000, 2))
    released = counted(rows).release(1.0, rows, random_state=0)
    p_values = released.p_value(np.random.default_rng(2).normal(size=(5000, 2)))
    for level in (0.05, 0.2, 0.5):
        assert (p_values <= level).mean() == pytest.approx(level, abs=0.03)


def test_release_without_rows_has_scores_but_no_threshold():
    released = counted().release(1.0)
    assert np.isfinite(released.score_samples(ROWS)).all()
    assert released.mass([[0.0, 0.0]]) > 0
    for ask in (released.predict, released.detect, released.decision_function):
        with pytest.raises(ValueError, match="this private release has no threshold"):
            ask(ROWS)
    with pytest.raises(ValueError, match="no calibration scores"):
        released.p_value(ROWS)
    with pytest.raises(ValueError, match="X has 10 rows, but 3,000 were counted"):
        counted().release(1.0, ROWS[:10])


def test_noise_differs_every_time_without_a_seed():
    forest = counted()
    one, other = forest.release(0.5), forest.release(0.5)
    assert (one.forest_.counts != other.forest_.counts).any()
    assert forest.release(0.5, random_state=3).to_bytes() == forest.release(0.5, random_state=3).to_bytes()
    assert forest.to_bytes() == counted().to_bytes()


def test_release_contains_only_counts(monkeypatch):
    """With the same counts, releases of different tables are identical, byte for byte."""
    budget = privacy.Budget.of(1.0, 10, has_scores=True)
    fixed = privacy.private_counts(counted().forest_, budget, privacy.system_words)
    monkeypatch.setattr(privacy, "private_counts", lambda *_: fixed)
    monkeypatch.setattr(privacy, "private_scores", lambda *_: np.linspace(-5, 0, 50))
    tables = [ROWS, RNG.uniform(-8, 8, size=(50, 2)), np.vstack([ROWS[:10], [[100.0, 100.0]]])]
    for own in (lambda rows: None, lambda rows: rows):
        released = [counted(rows).release(1.0, own(rows), random_state=0) for rows in tables]
        assert len({forest.to_bytes() for forest in released}) == 1
        assert len({pickle.dumps(forest) for forest in released}) == 1


def test_file_contains_no_value_of_a_row(tmp_path):
    counted().release(1.0, ROWS).save(tmp_path / "released.mpf")
    with np.load(tmp_path / "released.mpf") as file:
        arrays = [file[name] for name in file.files]
    values = set(ROWS.ravel().tolist())
    for array in arrays:
        if array.dtype == np.float64:
            assert not values & set(array.ravel().tolist())


def test_release_is_saved_with_its_epsilon(tmp_path, cli):
    released = counted().release(0.25, ROWS)
    released.save(tmp_path / "released.mpf")
    again = polyaforest.load(tmp_path / "released.mpf")
    assert again.privacy_epsilon_ == 0.25
    assert_array_equal(again.score_samples(ROWS[:100]), released.score_samples(ROWS[:100]))
    assert_array_equal(again.p_value(ROWS[:100]), released.p_value(ROWS[:100]))
    code, said, _ = cli("info", tmp_path / "released.mpf")
    assert code == 0
    assert "epsilon = 0.25" in said
    assert '"privacy_epsilon": 0.25' in cli("info", tmp_path / "released.mpf", "--json")[1]


def test_releases_of_parts_merge_and_epsilons_add_up():
    parts = [counted(ROWS[:1000]).release(1.0, ROWS[:1000]), counted(ROWS[1000:]).release(0.5)]
    merged = parts[0] + parts[1]
    assert merged.privacy_epsilon_ == 1.5
    assert_array_equal(merged.forest_.counts, parts[0].forest_.counts + parts[1].forest_.counts)
    scores = merged.score_samples([[0.0, 0.0], [7.9, -7.9]])
    assert scores[0] > scores[1]
    with pytest.raises(ValueError, match="this private release has no threshold"):
        merged.predict(ROWS)
    assert parts[0].predict([[0.0, 0.0]]) == [1]
    with pytest.raises(ValueError, match="only one of the forests is a private release"):
        merged.merge(counted())
    with pytest.raises(ValueError, match="only one of the forests is a private release"):
        counted().merge(merged)


def test_release_does_not_learn_but_can_be_refitted():
    released = counted().release(1.0, ROWS)
    before = released.to_bytes()
    for method in ("partial_fit", "delete_rows"):
        with pytest.raises(ValueError, match="this forest is a private release"):
            getattr(released, method)(ROWS[:3])
    with pytest.raises(ValueError, match="this forest is a private release"):
        released.release(1.0)
    assert released.to_bytes() == before
    assert clone(released).fit(ROWS).privacy_epsilon_ is None
    assert released.fit(ROWS).privacy_epsilon_ is None
    assert released.to_bytes() == counted().to_bytes()


@pytest.mark.parametrize("epsilon", [0, -1.0, np.nan, np.inf, 1e4, "1", None, True])
def test_rejects_invalid_epsilon(epsilon):
    with pytest.raises(ValueError, match="epsilon must be a number above 0"):
        counted().release(epsilon)


def test_rejects_releases_that_could_reveal_rows(tmp_path, cli):
    with pytest.raises(ValueError, match="the domain is computed from the rows"):
        BatchMPF(n_estimators=2).fit(ROWS).release(1.0)
    with pytest.raises(ValueError, match="the domain is computed from the rows"):
        BatchMPF(n_estimators=2, tree=Tree(domain="data")).fit(ROWS).release(1.0)
    gappy = np.where(np.arange(3000)[:, None] == [5, 9], np.nan, ROWS)
    assert counted(missing="marginalise").release(1.0).privacy_epsilon_ == 1.0
    for filled in (
        counted(gappy, missing="marginalise"),
        counted(missing="marginalise").partial_fit(gappy),
        counted(missing="marginalise").merge(counted(gappy, missing="marginalise")),
    ):
        for forest in (filled, loads(filled.to_bytes())):
            with pytest.raises(ValueError, match="imputed from other rows"):
                forest.release(1.0)
    assert loads(counted(missing="marginalise").to_bytes()).release(1.0).privacy_epsilon_ == 1.0
    with pytest.raises(ValueError, match="too small for 10 trees"):
        counted().release(1e-7)
    assert not hasattr(StreamingMPF, "release")
    np.savetxt(tmp_path / "rows.csv", ROWS, delimiter=",", header="a,b", comments="")
    assert cli("fit", "--batch", tmp_path / "rows.csv", "-m", tmp_path / "rows.mpf")[0] == 0
    with pytest.raises(ValueError, match="the domain is computed from the rows"):
        polyaforest.load(tmp_path / "rows.mpf").release(1.0)


def test_epsilon_phi_verdict_needs_no_calibration():
    released = counted(score_type=EpsilonPhi(0.001, 0.5)).release(5.0)
    assert released.predict([[0.0, 0.0], [7.9, -7.9]]).tolist() == [1, -1]
