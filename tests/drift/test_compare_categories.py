"""`compare` with categories: changes found, categories named, and errors."""

import json

import numpy as np
import pandas as pd
import polars as pl
import pytest

from polyaforest.drift import Condition, compare, regions
from polyaforest.drift.evidence import MISSING, Coded, Corners, Grid, draw_weights, grow_partitions
from polyaforest.kernels.arrays import NONE
from polyaforest.tables.validation import NamedRows

QUICK = {"n_estimators": 40, "n_permutations": 99, "random_state": 0}
HOSTILE = '<script>alert("x")</script>\x1b[31m\u202e$a$'
COUNTRIES = np.array(["DE", "FR", "US", "IT", "XK"], dtype=object)


def requests(n=2000, xk=0.002, seed=0, **changed):
    """Requests from countries, of which some are slow."""
    rng = np.random.default_rng(seed)
    countries = COUNTRIES[rng.choice(5, n, p=[0.5, 0.3 - xk, 0.1, 0.1, xk])]
    merchants = np.array([f"m{k:02}" for k in rng.integers(0, 40, n)], dtype=object)
    return pd.DataFrame({"country": countries, "latency": rng.gamma(8.0, 4.0, n), "merchant": merchants} | changed)


def as_categories(frame):
    return frame.astype({name: "category" for name in frame.columns if name != "latency"})


@pytest.fixture(scope="module")
def samples():
    return as_categories(requests(seed=1)), as_categories(requests(xk=0.06, seed=2))


@pytest.fixture(scope="module")
def changed(samples):
    return compare(*samples, **QUICK)


def test_compare_names_the_category_that_changed(changed):
    assert changed.is_changed
    assert changed.log_bayes_factor > 30
    region = changed.regions[0]
    assert str(region).startswith("country = XK: from 0.")
    (condition,) = region.conditions
    assert (condition.categories, condition.others, condition.missing) == (("XK",), False, False)
    assert region.before.low <= 0.003
    assert region.after.low <= 0.06 <= region.after.high
    assert changed.total_variation.low <= 0.058 <= changed.total_variation.high


def test_bits_of_categorical_features_sum_to_the_evidence(changed):
    assert changed.names == ["country", "latency", "merchant"]
    assert changed.feature_bits.argmax() == 0
    assert np.abs(changed.feature_bits[1:]).max() < 0.05 * changed.feature_bits[0]
    assert changed.feature_bits.sum() == pytest.approx(changed.log_bayes_factor / np.log(2))


def test_region_holds_accepts_any_table(changed, samples):
    region, after = changed.regions[0], samples[1]
    expected = (after["country"] == "XK").to_numpy()
    assert (region.holds(after) == expected).all()
    assert (region.holds(after[["merchant", "latency", "country"]]) == expected).all()  # by name
    assert (region.holds(pl.from_pandas(after)) == expected).all()
    assert (region.holds(after.to_numpy()) == expected).all()
    assert (region.holds(after.to_numpy().tolist()) == expected).all()
    with pytest.raises(ValueError, match="the rows have no column 'country'"):
        region.holds(after[["latency"]])


def test_to_json_has_the_categories(changed):
    (condition,) = json.loads(changed.to_json())["regions"][0]["conditions"]
    assert condition == {
        "feature": "country", "low": None, "high": None, "values": True, "missing": False, "categories": ["XK"],
        "others": False,
    }  # fmt: skip


def test_compare_finds_a_category_and_a_number_together():
    before, after = requests(6000, seed=1), requests(6000, seed=2)
    slow = (after["merchant"] == "m07") & (np.random.default_rng(3).random(6000) < 0.8)
    after.loc[slow, "latency"] = np.random.default_rng(4).uniform(40, 50, slow.sum())  # common elsewhere
    found = compare(before, after, categorical_features=["country", "merchant"], **QUICK)
    assert found.is_changed
    latency, merchant = found.regions[0].conditions
    assert (latency.name, merchant.name) == ("latency", "merchant")
    assert merchant.categories == ("m07",)
    assert 33 <= latency.low <= 42
    assert " and merchant = m07: from 0" in str(found.regions[0])


def test_compare_names_exactly_the_categories_that_changed():
    before, after = requests(4000, seed=1), requests(4000, seed=2)
    moved = np.random.default_rng(3).random(4000) < 0.2
    after.loc[moved, "merchant"] = np.random.default_rng(4).choice(["m03", "m11", "m20"], moved.sum())
    found = compare(before, after, categorical_features=["country", "merchant"], **QUICK)
    (condition,) = found.regions[0].conditions
    assert set(condition.categories) == {"m03", "m11", "m20"}
    assert str(condition).startswith("merchant is one of ")


def test_compare_names_a_category_that_only_one_sample_has():
    before, after = requests(seed=1), requests(seed=2)
    after.loc[::20, "country"] = "new"
    found = compare(before, after, categorical_features=["country", "merchant"], **QUICK)
    assert str(found.regions[0]).startswith("country = new: from 0 % to ")
    back = compare(after, before, categorical_features=["country", "merchant"], **QUICK)
    assert back.regions[0].conditions[0].categories == ("new",)
    assert back.regions[0].change.value < 0


def test_compare_detects_missing_categories():
    before, after = requests(seed=1), requests(seed=2)
    after.loc[::12, "country"] = None
    before.loc[::200, "country"] = None
    found = compare(before, after, categorical_features=["country", "merchant"], **QUICK)
    assert str(found.regions[0]).startswith("country is missing: from 0.")
    assert found.regions[0].holds(after).sum() == after["country"].isna().sum()


def test_compare_finds_no_change_in_one_distribution_of_many_categories():
    found = compare(requests(seed=1), requests(seed=2), categorical_features=["country", "merchant"], **QUICK)
    assert not found.is_changed
    assert found.log_bayes_factor < 0
    assert found.regions == []


def test_a_column_of_ids_does_not_hide_other_changes():
    frames = [requests(600, seed=1), requests(600, seed=2)]
    frames[1]["latency"] += 6.0
    plain = compare(*(frame[["latency", "country"]] for frame in frames), categorical_features=["country"], **QUICK)
    with_ids = [frame[["latency", "country"]].assign(id=[f"{k}-{i}" for i in range(600)]) for k, frame in
                enumerate(frames)]  # fmt: skip
    found = compare(*with_ids, categorical_features=["country", "id"], **QUICK)
    assert found.is_changed
    assert found.log_bayes_factor > 0.7 * plain.log_bayes_factor > 5
    assert [one.name for one in found.regions[0].conditions] == ["latency"]


def test_compare_accepts_only_categorical_columns():
    before, after = requests(seed=1), requests(xk=0.06, seed=2)
    found = compare(before[["country"]], after[["country"]], categorical_features=[True], **QUICK)
    assert str(found.regions[0]).startswith("country = XK")


# ---- which columns ---------------------------------------------------------------------------------------------------


def test_categorical_features_accepts_types_names_positions_and_masks(samples):
    texts = [frame.astype({"country": object, "merchant": object}) for frame in samples]
    expected = compare(*samples, **QUICK).to_dict()
    for given in (["country", "merchant"], [0, 2], [True, False, True]):
        assert compare(*texts, categorical_features=given, **QUICK).to_dict() == expected
    as_polars = [pl.from_pandas(frame) for frame in samples]
    assert compare(*as_polars, **QUICK).to_dict() == expected
    arrays = [frame.to_numpy() for frame in texts]
    unnamed = compare(*arrays, categorical_features=[0, 2], **QUICK)
    assert unnamed.log_bayes_factor == expected["log_bayes_factor"]
    assert str(unnamed.regions[0]).startswith("x0 = XK: ")


def test_compare_accepts_frames_with_columns_in_a_different_order(samples):
    before, after = samples
    expected = compare(before, after, **QUICK).to_dict()
    assert compare(before, after[["merchant", "latency", "country"]], **QUICK).to_dict() == expected
    turned = after.astype({"country": object, "merchant": object})[["merchant", "latency", "country"]]
    assert compare(before, turned, **QUICK).to_dict() == expected  # a categorical type in one sample is enough
    assert compare(before, turned, categorical_features=[0, 2], **QUICK).to_dict() == expected  # positions in A


def test_compare_accepts_numbers_as_categories():
    rng = np.random.default_rng(0)
    before, after = (pd.DataFrame({"status": rng.choice([200, 404, 500], 1000, p=p), "u": rng.random(1000)})
                     for p in ([0.9, 0.08, 0.02], [0.82, 0.08, 0.1]))  # fmt: skip
    found = compare(before, after.astype({"status": float}), categorical_features=["status"], **QUICK)
    assert str(found.regions[0]).startswith("status = 500: from ")
    assert (found.regions[0].holds(after) == (after["status"] == 500)).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "sample A: row 0, column 'country' is '..', which is not a number: .* name it in categorical_features"),
        ({"categorical_features": None}, "which is not a number"),
        ({"categorical_features": ["contry", "merchant"]}, "sample A: .*did you mean 'country'"),
        ({"categorical_features": "country"}, "categorical_features"),
        ({"categorical_features": [7]}, "sample A: categorical_features contains column 7, but X has columns 0 to 2"),
    ],
)
def test_compare_rejects_invalid_categorical_features(options, message):
    with pytest.raises(ValueError, match=message):
        compare(requests(50), requests(50), **options)


def test_compare_rejects_values_that_cannot_be_categories():
    frame = pd.DataFrame({"u": [(1, 2)] * 20})
    with pytest.raises(ValueError, match="sample A: column 'u': a category must be text"):
        compare(frame, frame, categorical_features=["u"])


# ---- text ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("categories", "others", "missing", "values", "words"),
    [
        (("XK",), False, False, True, "c = XK"),
        (("XK",), False, True, True, "(c = XK or missing)"),
        (("XK", "FR"), False, False, True, "c is one of XK, FR"),
        (tuple("abcdefgh"), False, False, True, "c is one of a, b, c, d, e and 3 more"),
        (("DE",), True, False, True, "c is not DE"),
        (("DE",), True, True, True, "(c is not DE or missing)"),
        (("DE", "FR"), True, False, True, "c is none of DE, FR"),
        ((), False, True, False, "c is missing"),
        ((), True, False, True, "c is not missing"),
        (("", "New York, NY"), False, False, True, "c is one of '', 'New York, NY'"),
    ],
)
def test_condition_on_categories_as_text(categories, others, missing, values, words):
    one = Condition(0, "c", -np.inf, np.inf, values, missing, categories, others)
    assert str(one) == words
    column = ["XK", "FR", "DE", "a", "", None, "New York, NY"]
    expected = [missing if cell is None else values and (cell in categories) != others for cell in column]
    assert one.holds(column).tolist() == expected


def test_reports_escape_hostile_categories():
    before, after = requests(seed=1), requests(seed=2)
    after.loc[::15, "country"] = HOSTILE
    after.loc[1::15, "country"] = "x" * 100_000
    found = compare(before, after, categorical_features=["country", "merchant"], **QUICK)
    named = {text for one in found.regions for text in one.conditions[0].categories}
    assert named == {HOSTILE, "x" * 100_000}
    for text in (str(found), found.to_html(), str(found.regions[0])):
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert len(text) < 5000
    assert "<script>" not in found._repr_html_()
    assert "\x1b" not in found.to_json()


def test_regions_limit_the_number_of_categories_named():
    rng = np.random.default_rng(0)
    before = pd.DataFrame({"c": rng.choice([f"old{i}" for i in range(300)], 3000)})
    after = pd.DataFrame({"c": rng.choice([f"new{i}" for i in range(300)], 3000)})
    found = compare(before, after, categorical_features=["c"], **QUICK)
    assert found.total_variation.low > 0.9
    for region in found.regions:
        assert len(region.conditions[0].categories) <= 64
        assert len(str(region)) < 200


def test_regions_do_not_name_categories_of_unknown_text():
    from polyaforest.tables.categories import Categories, encode

    before, after = requests(seed=1)[["country", "latency"]], requests(xk=0.06, seed=2)[["country", "latency"]]
    rows = []
    for frame in (before, after):
        codes, texts = encode(frame["country"])
        kept = {code: text for code, text in texts.items() if text != "XK"}
        values = np.column_stack([codes, frame["latency"]])
        rows.append(NamedRows(values, ["country", "latency"], Categories((0,), 2, kept)))
    found = compare(*rows, **QUICK)
    assert found.is_changed
    assert found.feature_bits[0] > 30
    for region in found.regions:
        assert "XK" not in str(region)
        assert region.holds(rows[1]).mean() == pytest.approx(region.after.value, abs=0.03)


# ---- trees -----------------------------------------------------------------------------------------------------------


def test_ranges_of_a_leaf_hold_exactly_its_rows():
    rng = np.random.default_rng(0)
    rows = np.column_stack([rng.integers(0, 9, 500), rng.random(500), rng.integers(0, 3, 500)]).astype(float)
    rows[::7, 0], rows[::9, 1] = np.nan, np.nan
    grid = Grid.of(rows, rows, Coded((0, 2), {}, rng))
    assert [isinstance(axis, Corners) for axis in grid.axes] == [True, False, True]
    for tree in grow_partitions(grid, np.arange(500), 9, 6, np.random.SeedSequence(1), 1):
        assert set(tree.feature[tree.left != NONE].tolist()) <= {0, 1, 2}
        for leaf in np.unique(tree.leaves).tolist():
            ranges = regions._ranges(tree, leaf, grid.axes)
            is_in = np.ones(500, bool)
            for k, part in ranges.items():
                own = grid.levels[:, k]
                is_category = isinstance(grid.axes[k], Corners)
                is_in &= np.isin(own, part.named) if is_category else (own >= part[0]) & (own <= part[1])
            assert (is_in == (tree.leaves == leaf)).all()


def test_corners_order_levels_by_frequency():
    values = np.array([5.0, np.nan, 7.0, 7.0, 3.0, 7.0, 3.0])
    corners = Corners.of(values, {5.0: "e", 7.0: "g"}, np.random.default_rng(0))
    assert corners.levels(values).tolist() == [3, MISSING, 1, 1, 2, 1, 2]
    assert corners.texts == ["g", None, "e"]
    assert len(set(corners.positions.tolist())) == corners.n_levels == 4


def test_one_tree_in_four_uses_a_single_feature_of_categories():
    weights = draw_weights(np.ones(5), 16, np.random.default_rng(0), n_categories=2)
    used = [np.flatnonzero(row).tolist() for row in weights]
    assert sorted(map(tuple, used[1::4])) == [(3,), (3,), (4,), (4,)]
    assert [len(one) for one in used[::2]] == [1, 2] * 4
    assert [len(one) for one in used[3::4]] == [5] * 4
