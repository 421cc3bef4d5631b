"""`polyaforest.drift.compare`: results, regions, reports and errors."""

import json
import math

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy.signal import lfilter

from polyaforest.drift import Comparison, Condition, compare

QUICK = {"n_estimators": 30, "n_permutations": 99, "random_state": 0}
HOSTILE = '<script>alert("x")</script>\x1b[31m\u202e$a$'


def normal(n, d, seed):
    return np.random.default_rng(seed).standard_normal((n, d))


def corner(n=3000, share=0.06, seed=0):
    """Rows of errors and latency, some of which fail slowly."""
    rng = np.random.default_rng(seed)
    rows = np.column_stack([rng.poisson(1.0, n), rng.exponential(30.0, n)]).astype(float)
    failing = rng.random(n) < share
    rows[failing] = np.column_stack([rng.integers(5, 9, failing.sum()), 90 + rng.exponential(40, failing.sum())])
    return rows


@pytest.fixture(scope="module")
def changed():
    names = ["errors", "latency_ms"]
    return compare(
        pd.DataFrame(corner(share=0.002, seed=1), columns=names), pd.DataFrame(corner(seed=2), columns=names), **QUICK
    )


def test_compare_finds_no_change_in_one_distribution():
    found = compare(normal(800, 3, 0), normal(700, 3, 1), **QUICK)
    assert not found.is_changed
    assert found.log_bayes_factor < 0
    assert found.p_value > 0.01
    assert found.regions == []
    assert found.n_rows == (800, 700)
    assert str(found).startswith("No change found (p = ")
    assert "for one distribution" in found.verdict


def test_compare_locates_a_changed_corner_and_describes_it(changed):
    assert changed.is_changed
    assert changed.p_value == 0.01
    assert changed.log_bayes_factor > 30
    region = changed.regions[0]
    errors, latency = region.conditions
    assert (errors.name, latency.name) == ("errors", "latency_ms")
    assert 3 <= errors.low <= 4
    assert 70 <= latency.low <= 95
    assert errors.high == latency.high == math.inf
    assert region.before.low <= 0.002 <= region.before.high + 0.001
    assert region.after.low <= 0.065 <= region.after.high
    assert region.change.low > 0.03
    words = str(region)
    assert words.startswith(f"errors > {errors.low:g} and latency_ms > {latency.low:g}: from 0.")
    assert " % to " in words
    assert words.endswith(" %]")
    assert words in str(changed)


def test_bounds_of_distances_contain_the_true_distance(changed):
    assert changed.total_variation.low <= 0.062 <= changed.total_variation.high
    assert 0 < changed.jensen_shannon.low < changed.jensen_shannon.high < 0.1


def test_feature_bits_sum_to_the_evidence(changed):
    assert changed.feature_bits.sum() == pytest.approx(changed.log_bayes_factor / math.log(2))
    only_first = compare(normal(500, 4, 0), normal(500, 4, 1) + np.array([1.0, 0, 0, 0]), **QUICK)
    assert only_first.feature_bits.argmax() == 0
    assert only_first.feature_bits[0] > 10 * np.abs(only_first.feature_bits[1:]).max()


def test_compare_detects_a_changed_share_of_missing_values():
    a, b = normal(2000, 3, 0), normal(2000, 3, 1)
    rng = np.random.default_rng(2)
    a[rng.random(2000) < 0.01, 1] = np.nan
    b[rng.random(2000) < 0.08, 1] = np.nan
    found = compare(a, b, **QUICK)
    assert found.is_changed
    assert found.feature_bits.argmax() == 1
    assert str(found.regions[0]).startswith("x1 is missing: from ")
    assert compare(b, a, **QUICK).regions[0].change.value < 0


def test_compare_is_invariant_to_monotone_transformations():
    a, b = normal(400, 2, 0), normal(400, 2, 1) * [1.5, 1.0]
    plain = compare(a, b, **QUICK)
    scaled = compare(np.exp(a) * [1e6, 1e-6], np.exp(b) * [1e6, 1e-6], **QUICK)
    assert scaled.log_bayes_factor == pytest.approx(plain.log_bayes_factor)
    assert scaled.p_value == plain.p_value


def test_compare_is_reproducible_for_any_number_of_threads():
    a, b = normal(300, 2, 0), normal(300, 2, 1) + 0.3
    once, again = compare(a, b, **QUICK), compare(a, b, **QUICK, n_jobs=2)
    assert once.to_dict() == again.to_dict()
    assert compare(a, b, **{**QUICK, "random_state": 1}).log_bayes_factor != once.log_bayes_factor


def test_compare_counts_all_rows_when_axes_and_trees_use_a_subsample(monkeypatch):
    from polyaforest.drift import comparison, regions

    a, b = normal(3000, 2, 0), normal(3000, 2, 1) + np.array([1.0, 0])
    whole = compare(a, b, **QUICK)
    monkeypatch.setattr(comparison, "_MAX_AXIS_ROWS", 500)
    monkeypatch.setattr(comparison, "_MAX_TREE_ROWS", 200)
    monkeypatch.setattr(regions, "_MAX_SEARCH_ROWS", 600)
    part = compare(a, b, **QUICK)
    assert part.log_bayes_factor > 0.5 * whole.log_bayes_factor
    assert part.regions[0].change.high - part.regions[0].change.low < 0.1  # measured on all other rows


def test_blocks_prevent_false_changes_of_dependent_rows():
    noise = np.random.default_rng(0).standard_normal(6000)
    series = lfilter([1.0], [1.0, -0.97], noise)[:, None]  # memory of about 33 steps
    a, b = series[:3000], series[3000:]
    assert compare(a, b, **QUICK).p_value <= 0.01
    in_blocks = compare(a, b, **QUICK, block_size=200)
    assert in_blocks.p_value > 0.01
    assert "odds" not in in_blocks.verdict
    wide = in_blocks.total_variation.high - in_blocks.total_variation.low
    assert wide > 2 * np.ptp(compare(a, b, **QUICK).total_variation[1:])


def test_a_significant_but_small_difference_is_no_change():
    a, b = normal(40_000, 1, 0), normal(40_000, 1, 1) + 0.06
    found = compare(a, b, **QUICK, least_effect=0.1)
    assert found.is_significant
    assert found.is_small
    assert not found.is_changed
    assert found.verdict.startswith("Too small to matter: at least ")
    assert compare(a, b, **QUICK, least_effect=0.0).is_changed


def test_compare_accepts_ties_and_constant_columns():
    rng = np.random.default_rng(0)
    a = np.column_stack([rng.integers(0, 2, 500), np.ones(500), np.full(500, np.nan)]).astype(float)
    b = np.column_stack([rng.random(500) < 0.7, np.ones(500), np.full(500, np.nan)]).astype(float)
    found = compare(a, b, **QUICK)
    assert found.is_changed
    assert str(found.regions[0]).startswith(("x0 = 0: from ", "x0 = 1: from "))
    assert found.regions[0].conditions[0].is_one_value
    assert found.regions[0].holds(np.array([[0.0, 1, 0], [1.0, 1, 0]])).sum() == 1
    same = compare(np.ones((50, 1)), np.ones((50, 1)), **QUICK)
    assert same.p_value == 1
    assert same.log_bayes_factor == 0
    assert same.total_variation.value == 0


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_frames_are_matched_by_name(frame):
    a, b = normal(200, 2, 0), normal(200, 2, 1) + np.array([3.0, 0])
    found = compare(frame({"u": a[:, 0], "v": a[:, 1]}), frame({"v": b[:, 1], "u": b[:, 0]}), **QUICK)
    assert found.names == ["u", "v"]
    assert found.feature_bits.argmax() == 0


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ({"u": [1.0] * 20}, {"v": [1.0] * 20}, "sample B has no column 'u': both samples need the same columns"),
        ({"u": [1.0] * 20}, {"u": [1.0] * 20, "w": [1.0] * 20}, "sample A has no column 'w'"),
        ({"u": [1.0] * 20}, {"u": ["x"] * 20}, "sample B: row 0, column 'u' is 'x', which is not a number"),
        ({"u": [1.0] * 3}, {"u": [1.0] * 20}, "sample A has 3 rows: at least 10"),
        ({"u": [1.0] * 20}, {"u": [np.inf] * 20}, "sample B: Input X contains infinity"),
    ],
)
def test_compare_rejects_unusable_samples(a, b, message):
    with pytest.raises(ValueError, match=message):
        compare(pd.DataFrame(a), pd.DataFrame(b))


def test_compare_rejects_mismatched_samples_and_invalid_parameters():
    with pytest.raises(ValueError, match="sample A has 2 columns and sample B has 3"):
        compare(normal(20, 2, 0), normal(20, 3, 0))
    with pytest.raises(ValueError, match="sample A has column names and sample B does not"):
        compare(pd.DataFrame({"u": [1.0] * 20}), normal(20, 1, 0))
    with pytest.raises(ValueError, match="fewer than four blocks of 6"):
        compare(normal(20, 1, 0), normal(20, 1, 0), block_size=6)
    with pytest.raises(ValueError, match="'alpha' parameter"):
        compare(normal(20, 1, 0), normal(20, 1, 0), alpha=2)


def test_reports_escape_hostile_names():
    a, b = normal(300, 1, 0), normal(300, 1, 1) + 2
    found = compare(pd.DataFrame(a, columns=[HOSTILE]), pd.DataFrame(b, columns=[HOSTILE]), **QUICK)
    assert found.regions
    assert "\x1b" not in str(found)
    assert "\u202e" not in str(found)
    page = found._repr_html_()
    assert "<script>" not in page
    assert "mathjax_ignore" in page
    assert "\x1b" not in found.to_json()


def test_to_json_has_everything(changed):
    facts = json.loads(changed.to_json())
    assert facts["changed"] is True
    assert facts["regions"][0]["conditions"][0] == {
        "feature": "errors",
        "low": changed.regions[0].conditions[0].low,
        "high": None,
        "values": True,
        "missing": False,
    }
    assert facts["regions"][0]["words"] == str(changed.regions[0])
    assert sum(feature["bits"] for feature in facts["features"]) == pytest.approx(
        facts["log_bayes_factor"] / math.log(2)
    )
    assert facts["samples"] == [{"name": "A", "rows": 3000}, {"name": "B", "rows": 3000}]


def test_region_holds_returns_its_rows(changed):
    rows = corner(seed=2)
    share = changed.regions[0].holds(rows).mean()
    assert changed.regions[0].after.low <= share <= changed.regions[0].after.high


@pytest.mark.parametrize(
    ("low", "high", "values", "missing", "words"),
    [
        (4.0, math.inf, True, False, "u > 4"),
        (-math.inf, 0.25, True, False, "u ≤ 0.25"),
        (1.0, 2.5, True, False, "1 < u ≤ 2.5"),
        (-math.inf, -math.inf, False, True, "u is missing"),
        (-math.inf, math.inf, True, False, "u is not missing"),
        (-math.inf, 3.0, True, True, "(u ≤ 3 or missing)"),
    ],
)
def test_condition_as_text(low, high, values, missing, words):
    assert str(Condition(0, "u", low, high, values, missing)) == words


def test_odds_stay_finite():
    found = compare(normal(3000, 1, 0), normal(3000, 1, 1) + 5, **QUICK)
    assert isinstance(found, Comparison)
    assert math.isfinite(found.odds)
    assert "odds of 10^" in found.verdict
    assert found.total_variation.value > 0.9
    assert found.jensen_shannon.value > 0.8
