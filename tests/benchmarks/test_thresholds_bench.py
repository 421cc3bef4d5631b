"""The benchmark of thresholds: the rules that it keeps, and how they are measured."""

import shutil

import numpy as np
import pytest

from benchmarks import thresholds
from benchmarks.registry import main
from benchmarks.shared.pages import PAGES
from benchmarks.shared.results import read
from polyaforest import StreamingMPF

EXPONENTIAL = np.sort(-np.random.default_rng(0).exponential(size=100_000))


@pytest.mark.parametrize("rule", ["quartile", "tail", "old stream"])
def test_an_exponential_tail_is_extrapolated_to_one_row_in_a_thousand(rule):
    below = np.mean(thresholds.RULES[rule](EXPONENTIAL) > EXPONENTIAL)
    assert below == pytest.approx(0.001, rel=0.4)


@pytest.mark.parametrize(("rule", "share"), [("hundredth", 0.01), ("conformal 0.01", 0.01), ("conformal 0.001", 0.001)])
def test_a_rule_of_ranks_flags_its_share(rule, share):
    below = np.mean(thresholds.RULES[rule](EXPONENTIAL) > EXPONENTIAL)
    assert below == pytest.approx(share, rel=0.02)


def test_rules_flag_nothing_for_infinite_or_few_scores():
    nowhere = np.full(200, -np.inf)
    assert thresholds.quartile_rule(nowhere) == thresholds.stream_rule(nowhere) == -np.inf
    assert thresholds.stream_rule(EXPONENTIAL[:99]) == -np.inf  # too few
    assert np.isfinite(thresholds.quartile_rule(np.r_[-5.0, np.full(99, -1.0)]))  # ties down to the quartile


def test_figures_of_a_verdict():
    found = thresholds.figures(np.array([True, True, False, False]), np.array([True, False, True, False]))
    assert found == {"flagged": 0.5, "false": 0.5, "precision": 0.5, "recall": 0.5, "f1": 0.5}
    nothing = thresholds.figures(np.zeros(3, bool), np.zeros(3, bool))
    assert (nothing["flagged"], nothing["false"]) == (0.0, 0.0)
    assert np.isnan([nothing["precision"], nothing["recall"], nothing["f1"]]).all()


def test_detector_verdicts_equal_those_of_the_detector():
    X, y = thresholds.flood(np.random.default_rng(0), "scattered", 0.01)
    flagged = dict(thresholds.verdicts_on_table(X, 0))
    assert flagged.keys() == set(thresholds.COLUMNS)
    forest = StreamingMPF(random_state=0).fit(X)
    np.testing.assert_array_equal(flagged["detector"], forest.predict(X) == -1)
    assert flagged["detector"][y].mean() > 0.8


def test_a_burst_is_found_by_the_rules_of_a_stream():
    X, y = thresholds.stream(np.random.default_rng(0), "normal", 0.02, 3100)
    assert y.sum() == 20
    flagged = dict(thresholds.verdicts_on_stream(X, 0))
    for rule in ("tail", "old stream", "detector"):
        assert flagged[rule][y].all()
        assert flagged[rule][thresholds.START :][~y[thresholds.START :]].mean() < 0.01


def test_a_run_resumes_where_it_was_interrupted_and_fills_the_page(tmp_path, monkeypatch):
    pages = shutil.copytree(PAGES, tmp_path / "pages")
    some = [
        task for task in thresholds.tasks_of(1, is_quick=True) if task.data in ("50 x 1", "uniform", "1% clustered")
    ]
    monkeypatch.setattr(thresholds, "tasks_of", lambda *_, **__: some)
    main(["run", "thresholds", "--quick"], tmp_path, pages)
    first = read(tmp_path / "thresholds.csv")
    assert len(first) == 3 * len(thresholds.COLUMNS)
    main(["run", "thresholds", "--quick"], tmp_path, pages)
    assert read(tmp_path / "thresholds.csv") == first
    assert "| 50 x 1 |" in (pages / "thresholds.md").read_text("utf-8")
