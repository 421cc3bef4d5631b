"""The benchmark of missing values: what is hidden, what is measured, the tables, and a small run from end to end."""

import numpy as np
import pytest

from benchmarks import missing
from benchmarks.registry import main
from benchmarks.shared.results import read
from polyaforest.datasets import load

X = np.random.default_rng(0).normal(size=(400, 4))


@pytest.mark.parametrize("rate", [0, 10, 30])
def test_mask_hides_the_requested_share_and_no_whole_column(rate):
    gappy = missing.mask(X, rate, np.random.default_rng(0))
    assert np.isnan(gappy).mean() == pytest.approx(rate / 100, abs=0.03)
    assert np.array_equal(gappy[~np.isnan(gappy)], X[~np.isnan(gappy)])
    assert not np.isnan(missing.mask(X[:1], 100, np.random.default_rng(0))).any()


def test_all_rows_may_lack_the_same_columns():
    is_gap = np.isnan(missing.hide_columns(X, 50, np.random.default_rng(0)))
    assert is_gap.all(axis=0).sum() == is_gap.any(axis=0).sum() == 2


def test_the_error_of_an_imputer_is_in_standard_deviations():
    rows = np.column_stack([X * [1.0, 10.0, 100.0, 1000.0], np.ones(len(X))])
    assert missing.imputation(rows, "scored", 30, missing.impute_by_means, 0) == pytest.approx(1.0, abs=0.1)

    def off_by_one_deviation(fitted, gappy, seed):
        order = np.random.default_rng(seed).permutation(len(rows))
        return rows[order[1::2]] + rows.std(axis=0)

    assert missing.imputation(rows, "both", 30, off_by_one_deviation, 0) == pytest.approx(1.0)


@pytest.mark.parametrize(("setting", "has_gaps"), [("scored", False), ("both", True)])
def test_gaps_follow_the_setting(setting, has_gaps):
    def watch(fitted, gappy, seed):
        assert np.isnan(fitted).any() == has_gaps
        assert np.isnan(gappy).any()
        return np.nan_to_num(gappy)[:, 0]

    assert missing.detection(X, X[:, 0] > 1, setting, 30, watch, 0) > 0.6


def test_the_best_figure_of_a_set_is_bold():
    rows = [
        {
            "task": "impute",
            "data": "wine",
            "setting": "both",
            "rate": "10",
            "method": method,
            "seed": "0",
            "value": value,
        }
        for method, value in zip(missing.IMPUTERS, ["0.5", "0.7", "0.6", "0.9", "0.5", "1.0"], strict=True)
    ]
    lines = missing.sets_table(rows, "impute", "both", 10, min).splitlines()
    assert lines[2] == "| wine | **0.500** | 0.700 | 0.600 | 0.900 | **0.500** | 1.000 |"
    assert lines[3].startswith("| mean of the sets | **0.500**")


def test_end_to_end(tmp_path, monkeypatch):
    try:
        data = load("wine", download=False)
    except (FileNotFoundError, NotADirectoryError):
        pytest.skip("the data are not on this machine")
    ours = {name: missing.DETECTORS[name] for name in ("sMPF", "sMPF, filled by column means")}
    imputers = {name: missing.IMPUTERS[name] for name in ("sMPF", "column mean")}
    monkeypatch.setattr(missing, "DETECTORS", ours)
    monkeypatch.setattr(missing, "TASKS", {"detect": (("wine",), ours), "impute": (("wine",), imputers)})
    page = tmp_path / "missing.md"
    blocks = [
        "summary",
        "detect-scored",
        "detect-both",
        *(f"impute-{s}-{r}" for s in missing.SETTINGS for r in missing.RATES),
    ]
    page.write_text("".join(f"<!-- begin {block} -->\n<!-- end {block} -->\n" for block in blocks))
    main(["run", "missing", "--quick"], tmp_path, tmp_path)
    rows = read(tmp_path / "missing.csv")
    assert len(rows) == 7 * 2 + 4 * 2
    row = next(row for row in rows if row["method"] == "sMPF" and row["setting"] == "none")
    assert float(row["value"]) == pytest.approx(missing.auc(data.y, ours["sMPF"](data.X, data.X, 0)), abs=1e-5)
    errors = {row["method"]: float(row["value"]) for row in rows if (row["task"], row["rate"]) == ("impute", "10")}
    assert errors["sMPF"] < errors["column mean"]
    assert page.read_text().count("| wine |") == 6
