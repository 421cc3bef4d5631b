"""The benchmark of single features: what is measured, the tables, and a small run from end to end."""

import numpy as np
import pytest

from benchmarks import single_features
from benchmarks.registry import main
from benchmarks.shared.results import read

BLOCKS = ("outliers", "departures", "clean", "tables", "seconds")


@pytest.mark.parametrize("score", single_features.SCORES)
def test_shares_are_shares_and_margins_find_more(score, monkeypatch):
    monkeypatch.setattr(single_features, "N_CLEAN", 500)
    found = single_features.departures("always 7, then 7.1", score, 0)
    assert found == (1.0 if score == "margins" else 0.0)
    assert 0 <= single_features.false_alarms("Gaussian", 3, score, 0) < 0.01
    assert single_features.outliers(3, 12, "table", score, 0) == 1.0


def test_all_data_can_be_drawn():
    rng = np.random.default_rng(0)
    for draw in single_features.CLEAN.values():
        assert np.isfinite(draw(rng, 50, 3)).all()
    for draw, value in single_features.DEPARTURES.values():
        assert value not in draw(rng, 2000)


def test_end_to_end(tmp_path, monkeypatch):
    monkeypatch.setattr(single_features, "QUICK", {"outlier 10 5 table", "departure always 7, then 7.1"})
    page = tmp_path / "single-features.md"
    page.write_text("".join(f"<!-- begin {block} -->\n<!-- end {block} -->\n" for block in BLOCKS))
    main(["run", "single_features", "--quick"], tmp_path, tmp_path)
    rows = read(tmp_path / "single-features.csv")
    assert len(rows) == 4
    assert "| always 7, then 7.1 | 1.00 | 0.00 |" in page.read_text()
