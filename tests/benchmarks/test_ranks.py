"""Ranks, analysis of variance and critical differences on tables made by hand."""

import shutil

import numpy as np
import pandas as pd
import pytest

from benchmarks import accuracy, ranks
from benchmarks.shared import paper
from benchmarks.shared.pages import PAGES


def trials(table):
    """A frame from {method: {data: values by seed}}."""
    index = pd.MultiIndex.from_tuples(
        [(data, seed) for data, values in next(iter(table.values())).items() for seed in range(len(values))],
        names=["data", "seed"],
    )
    columns = {method: [value for values in sets.values() for value in values] for method, sets in table.items()}
    return pd.DataFrame(columns, index=index)


def test_ties_share_the_average_rank_and_do_not_win():
    result = ranks.standing(
        trials({"a": {"x": [0.9, 0.5]}, "b": {"x": [0.9, 0.6]}, "c": {"x": [0.1, 0.7]}}),
    )
    assert result.ranks.to_dict() == {"a": (1.5 + 3) / 2, "b": (1.5 + 2) / 2, "c": (3 + 1) / 2}
    assert result.wins.to_dict() == {"a": 0, "b": 0, "c": 1}


def test_trials_that_a_method_lacks_are_not_ranked():
    result = ranks.standing(trials({"a": {"x": [0.9, 0.5]}, "b": {"x": [0.8, np.nan]}}))
    assert result.n_trials == 1
    assert result.ranks.to_dict() == {"a": 1, "b": 2}


def test_sets_with_a_missing_cell_are_left_out_and_named():
    kept, left_out = ranks.complete(
        trials({"a": {"x": [0.9, 0.5], "y": [0.1, 0.2]}, "b": {"x": [1, np.nan], "y": [0, 0]}})
    )
    assert left_out == ["x"]
    assert list(kept.index.unique("data")) == ["y"]
    assert len(kept) == 2


# Demšar (2006), Table 5 (a): critical values of the two-tailed Nemenyi test
@pytest.mark.parametrize(
    ("n_methods", "level", "q"),
    [(2, 0.05, 1.960), (3, 0.05, 2.343), (5, 0.05, 2.728), (10, 0.05, 3.164), (5, 0.10, 2.459)],
)
def test_critical_difference_is_the_published_one(n_methods, level, q):
    n_sets = 14
    expected = q * np.sqrt(n_methods * (n_methods + 1) / (6 * n_sets))
    assert ranks.critical_difference(n_methods, n_sets, level) == pytest.approx(expected, rel=5e-4)


def test_bars_join_maximal_runs_without_significant_differences():
    standing = pd.Series({"a": 1.0, "b": 1.5, "c": 2.4, "d": 4.0, "e": 4.2})
    assert ranks.alike(standing, 1.0) == [(0, 1), (1, 2), (3, 4)]
    assert ranks.alike(standing, 0.1) == []
    assert ranks.alike(standing, 5.0) == [(0, 4)]


def test_friedman_distinguishes_a_constant_order_from_chance():
    rng = np.random.default_rng(0)
    noise = pd.DataFrame(rng.normal(size=(30, 4)), columns=list("abcd"))
    assert ranks.compare(noise).p_alike > 0.01
    ordered = ranks.compare(noise + 100 * np.arange(4))
    assert ordered.p_alike < 1e-6
    assert ordered.ranks.to_dict() == {"d": 1, "c": 2, "b": 3, "a": 4}


def test_variance_of_a_small_case_agrees_with_sums_of_squares():
    pytest.importorskip("pingouin")
    rng = np.random.default_rng(1)
    auc = trials(
        {method: {data: rng.normal(shift, 1, 4) for data in "xyz"} for method, shift in zip("ab", (0, 1), strict=True)}
    )
    result = ranks.analysis_of_variance(auc)
    # two methods: F of the algorithm is the square of the paired t of their means over data sets
    means = auc.groupby("seed").mean()
    gap = means["a"] - means["b"]
    t = gap.mean() / (gap.std() / np.sqrt(len(gap)))
    assert result.loc["algorithm", "F"] == pytest.approx(t**2)
    assert result.loc["algorithm", ["ddof1", "ddof2"]].tolist() == [1, 3]
    assert result.loc["algorithm * dataset", ["ddof1", "ddof2"]].tolist() == [2, 6]
    assert ranks.post_hoc(auc).loc[("a", "b"), "T"] == pytest.approx(t)


def rows_of(methods, sets, n_seeds, rng):
    return [
        {
            "data": data,
            "method": method,
            "seed": str(seed),
            "auc": f"{rng.uniform(0.5, 1):.4f}",
            "ap": "0.5",
            "reason": "",
        }
        for data in sets
        for method in methods
        for seed in range(n_seeds)
    ]


def test_the_page_and_the_diagram_come_from_the_file_alone(tmp_path):
    pytest.importorskip("pingouin")
    shutil.copy(PAGES / "paper-tables.md", tmp_path)
    rows = rows_of([*ranks.ANALYSED, "krcf"], [*paper.TWELVE, "wine", "glass"], 3, np.random.default_rng(0))
    rows = [row for row in rows if (row["data"], row["method"], row["seed"]) != ("http", "rrcf", "2")]
    ranks.render(rows, tmp_path)
    text = (tmp_path / "paper-tables.md").read_text("utf-8")
    assert "all, 42 trials | mean rank" in text
    assert "The paper's twelve: 11 sets, without http (not every seed of every method)." in text
    assert "| the paper's twelve | dataset | 10 | 20 |" in text
    assert "| all | algorithm × dataset | 48 | 96 |" in text
    assert text.count("6 methods on 14 data sets") == 2  # all there are, and all are forests
    for name in ("critical-difference.png", "critical-difference-forests.png"):
        assert (tmp_path / "images" / name).stat().st_size > 5_000


def test_every_pair_of_the_paper_is_found_in_either_order():
    table = pd.DataFrame(
        {"T": [2.0], "p": [0.1], "BF": [1.5], "g": [0.5]}, index=pd.MultiIndex.from_tuples([("a", "b")])
    )
    assert ranks._either_way(table, ("a", "b")) == (2.0, 0.1, 1.5, 0.5)
    assert ranks._either_way(table, ("b", "a")) == (-2.0, 0.1, 1.5, -0.5)
    assert all(pair in paper.POST_HOC for pair in ranks.combinations(ranks.ANALYSED, 2))


def test_methods_that_finished_few_sets_do_not_shrink_the_comparison(tmp_path):
    rows = rows_of(["bMPF", "sMPF", "iForest", "rrcf", "FCF"], list(paper.AUC)[:10], 1, np.random.default_rng(0))
    rows = [row for row in rows if row["method"] != "rrcf" or row["data"] in ("thyroid", "musk")]
    text = ranks.difference_block(accuracy.frame(rows), tmp_path)
    assert "3 methods on 10 data sets:" in text
    assert "4 methods on 10 data sets:" in text
