"""The paper's toy sets: thresholds and verdicts, the table, and a small run from end to end."""

import numpy as np
import pytest
from effort import mostly_slow

from benchmarks import toy
from benchmarks.registry import main
from benchmarks.shared import methods
from benchmarks.shared.metrics import auc
from benchmarks.shared.results import read
from polyaforest.datasets import TOYS, make_toy


def test_the_best_threshold_separates_both_classes():
    y = np.array([0, 0, 0, 0, 1, 1])
    assert toy.best_threshold(y, np.array([1, 2, 3, 4, 5, 6])) == 5
    assert toy.best_threshold(y, np.array([1, 2, 3, 6, 0, 5])) == 5


def test_every_row_has_one_verdict():
    y, scores = np.array([0, 0, 1, 1]), np.array([1.0, 3.0, 2.0, 4.0])
    found = toy.verdicts(y, scores, 3.0)
    assert {kind: np.flatnonzero(is_so).tolist() for kind, is_so in found.items()} == {
        "true negative": [0],
        "false positive": [1],
        "false negative": [2],
        "true positive": [3],
    }
    assert set(found) == set(toy.MARKS)


def test_the_printed_tables_are_complete():
    assert set(toy.PRINTED_METHODS) == set(toy.METHODS) - {"sMPF", "bMPF"}
    for printed in toy.PRINTED.values():
        assert tuple(printed) == TOYS
        assert all(len(values) == len(toy.PRINTED_METHODS) for values in printed.values())


SCORED = [name for name in toy.METHODS if name != "rrcf"]


@pytest.mark.parametrize(
    "name",
    mostly_slow(SCORED, *(i for i, name in enumerate(SCORED) if name != "PIDForest")),  # which is compiled first
)
def test_the_plane_is_scored_like_the_rows(name):
    X = make_toy("moons").X
    np.testing.assert_allclose(toy.METHODS[name].scores(X, X[:50], 3), methods.METHODS[name](X, 3)[:50])


def test_places_far_off_displace_more():
    pytest.importorskip("rrcf")
    data = make_toy("single blob", n=120)
    scores = toy.codisplacements(data.X, np.array([[0.0, 0.0], [7.0, -7.0]]), seed=0, n_trees=5, tree_size=64)
    assert scores[1] > 3 * scores[0]


def test_the_table_shows_means_deviations_and_printed_figures():
    rows = [
        {"data": data, "method": name, "seed": str(seed), "auc": f"{value + 0.01 * seed}"}
        for data in TOYS
        for name, value in (("sMPF", 0.9), ("sMPF paper", 0.8))
        for seed in (0, 2)
    ]
    lines = toy.areas_table(rows, "auc").splitlines()
    assert lines[2] == "| single blob | **0.910** ± 0.014 | 0.810 ± 0.014 |"
    assert lines[3] == "| *printed* |  | *0.963* |"
    assert lines[-1] == "| mean of the sets | 0.910 | 0.810 |"


@pytest.mark.slow
def test_end_to_end(tmp_path, monkeypatch):
    names = ("sMPF", "bMPF")
    monkeypatch.setattr(toy, "METHODS", {name: toy.METHODS[name]._replace(n_steps=12) for name in names})
    page = tmp_path / "toy.md"
    page.write_text("".join(f"<!-- begin {block} -->\n<!-- end {block} -->\n" for block in toy.MEASURES))
    main(["run", "toy", "--quick"], tmp_path, tmp_path)
    rows = read(tmp_path / "toy.csv")
    assert len(rows) == len(TOYS) * len(names)
    assert all(0.7 < float(row["auc"]) <= 1 for row in rows)
    data = make_toy("moons", 0)
    row = next(row for row in rows if (row["data"], row["method"]) == ("moons", "bMPF"))
    assert float(row["auc"]) == pytest.approx(auc(data.y, methods.METHODS["bMPF"](data.X, 0)), abs=1e-5)
    assert page.read_text().count("| moons |") == 2
    assert (tmp_path / "images" / "toy.png").stat().st_size > 10_000
