"""The benchmark of mixed tables: what is planted, what is measured, the tables, and a small run from end to end."""

import numpy as np
import pytest

from benchmarks import mixed
from benchmarks.registry import main
from benchmarks.shared.results import read

BLOCKS = ("auc", "named", "pairs", "pairs-first", "pairs-cost", "clean")
SMALL = mixed.Sketch(2, (4, 5, 0))


@pytest.fixture(scope="module")
def table():
    return mixed.generated(SMALL, 3)


def test_one_column_of_every_planted_row_was_changed(table):
    planted = np.flatnonzero(table.y)
    assert len(planted) == mixed.N_PLANTED
    assert ((table.changed >= 0) == (table.y == 1)).all()
    assert set(table.changed[planted]) <= {0, 1, 2, 3}  # never the ids
    assert len(np.unique(table.categories[:, 2])) == mixed.N_ROWS


def test_the_same_seed_makes_the_same_table(table):
    for part, again in zip(table, mixed.generated(SMALL, 3), strict=True):
        np.testing.assert_array_equal(part, again)
    assert not np.array_equal(table.numbers, mixed.generated(SMALL, 4).numbers)


def test_the_most_effective_column_is_the_anomalous_one():
    rng = np.random.default_rng(0)
    numbers, categories = rng.normal(size=(200, 2)), rng.integers(0, 3, (200, 2))
    numbers[0, 1], categories[1, 0] = 9.0, 7
    table = mixed.Table(numbers, categories, np.zeros(200, int), np.full(200, -1))

    def score(some):
        return np.abs(some.numbers).sum(axis=1) + 5.0 * (some.categories == 7).sum(axis=1)

    assert mixed.most_effective(score, table, np.array([0, 1]), 0).tolist() == [1, 2]


def test_end_to_end(tmp_path, monkeypatch, table):
    monkeypatch.setattr(mixed, "METHODS", {name: mixed.METHODS[name] for name in ("sMPF", "IsolationForest, one-hot")})
    monkeypatch.setattr(mixed, "SKETCHES", {"small": SMALL})
    monkeypatch.setattr(mixed, "DATA", ("small",))
    monkeypatch.setattr(mixed, "QUICK_DATA", ("small",))
    page = tmp_path / "mixed.md"
    page.write_text("".join(f"<!-- begin {block} -->\n<!-- end {block} -->\n" for block in BLOCKS))
    kept = ("sMPF", "sMPF, typicality")
    monkeypatch.setattr(mixed, "PAIR_METHODS", {name: mixed.PAIR_METHODS[name] for name in kept})
    monkeypatch.setattr(mixed, "N_NEW", 200)
    main(["run", "mixed", "--quick"], tmp_path, tmp_path)
    rows = read(tmp_path / "mixed.csv")
    assert [row["method"] for row in rows] == ["sMPF", "IsolationForest, one-hot"]
    assert all(0.5 < float(row["auc"]) <= 1 for row in rows)
    assert float(rows[0]["named"]) > 0.25  # of five columns
    assert page.read_text().count("| small |") == 2
    pairs, _ = read(tmp_path / "mixed-pairs.csv")
    assert float(pairs["auc"]) > 0.95
    assert page.read_text().count("| payments |") == 4
    assert {row["method"] for row in read(tmp_path / "mixed-clean.csv")} == set(mixed.CLEAN_METHODS)
    assert page.read_text().count("| soft |") == 1


def test_rare_pairs_are_common_values_that_hardly_meet():
    table, before = mixed.with_rare_pairs("payments", 1), mixed.clean("payments", 1, mixed.N_OF_PAIRS)
    planted = np.flatnonzero(table.y)
    assert len(planted) == mixed.N_RARE
    assert ((table.categories != before.categories).sum(axis=1) == table.y).all()
    known = {(b, other, a, value) for a, value, b, other in mixed.rare_pairs(before.categories)}
    for i in planted:
        row, b = table.categories[i], table.changed[i] - 1
        assert any((b, row[b], a, row[a]) in known for a in range(3))
    assert not mixed.rare_pairs(np.tile([[0, 0], [0, 1], [1, 0], [1, 1]], (100, 1)))
    assert mixed.rare_pairs(np.repeat([[0, 0], [1, 1]], 100, axis=0)) == [
        (0, 0, 1, 1),
        (0, 1, 1, 0),
        (1, 0, 0, 1),
        (1, 1, 0, 0),
    ]
