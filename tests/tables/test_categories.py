"""Columns of categories: codes of texts, which columns they are, and that every way of giving them is the same."""

import datetime as dt
import io
import json
import pickle
from copy import deepcopy

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyaforest import BatchMPF, SeriesMPF, StreamingMPF, Tree, load
from polyaforest.detectors import loads
from polyaforest.kernels.arrays import QUESTIONS
from polyaforest.storage.modelfile import ModelFileError
from polyaforest.tables.categories import LONGEST_KEPT, Categories, canonical, code_of, encode
from polyaforest.tables.validation import NamedRows

RNG = np.random.default_rng(0)
N = 300
HOMES = {"Grocer": "DE", "Bakery": "DE", "Bistro": "FR", "Books": "GB"}
MERCHANTS = RNG.choice(list(HOMES), N)
FRAME = pd.DataFrame(
    {
        "merchant": pd.Categorical(MERCHANTS),
        "amount": RNG.lognormal(3, 0.4, N),
        "country": pd.Categorical([HOMES[merchant] for merchant in MERCHANTS]),
        "items": RNG.integers(1, 9, N),
    }
)
OBJECTS = FRAME.to_numpy(object)
CODED = ["merchant", "country"]
DETECTORS = [StreamingMPF, BatchMPF]


def small(kind, **parameters):
    return kind(**{"n_estimators": 10, "random_state": 0} | parameters)


def as_arrow(frame):
    return pa.table({name: pa.array(column).dictionary_encode() if column.dtype == object else pa.array(column)
                     for name, column in frame.astype(dict.fromkeys(CODED, object)).items()})  # fmt: skip


# ---- codes -----------------------------------------------------------------------------------------------------------


@given(st.text())
def test_code_is_exact_integer_determined_by_text(text):
    code = code_of(text)
    assert code == code_of(text)
    assert 0 <= code < 2**QUESTIONS
    assert code == int(code)


def test_codes_do_not_change_between_versions():
    known = [4022468892641179, 3833857515619779, 4121826298722375, 1161666312611792]  # which are in files
    assert [code_of(text) for text in ("", "DE", "Pólya", "\ud800")] == known


def test_every_question_divides_texts_evenly():
    codes = np.array([int(code_of(str(i))) for i in range(4000)])
    shares = np.array([((codes >> b) & 1).mean() for b in range(QUESTIONS)])
    assert (np.abs(shares - 0.5) < 6 * 0.5 / np.sqrt(len(codes))).all()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("DE", "DE"),
        ("", ""),
        (np.str_("DE"), "DE"),
        (3, "3"),
        (3.0, "3"),
        (np.int8(3), "3"),
        (np.float32(3), "3"),
        (0.5, "0.5"),
        (True, "True"),
        (np.bool_(False), "False"),
        (dt.date(2024, 5, 1), "2024-05-01"),
        (pd.Timestamp("2024-05-01 12:00"), "2024-05-01T12:00:00"),
        (None, None),
        (float("nan"), None),
        (pd.NA, None),
        (pd.NaT, None),
        (np.datetime64("NaT"), None),
        (np.ma.masked, None),
    ],
)
def test_equal_values_have_one_text(value, text):
    assert canonical(value) == text


@pytest.mark.parametrize("value", [b"DE", ["DE"], {"a": 1}, object()])
def test_invalid_categories_are_rejected(value):
    with pytest.raises(ValueError, match="a category must be text, a number, a bool or a date"):
        canonical(value)


@given(st.lists(st.one_of(st.none(), st.text(max_size=3), st.integers(-3, 3), st.booleans())))
def test_codes_decode_to_texts(values):
    codes, texts = encode(values)
    assert [texts.get(code) for code in codes] == [canonical(value) for value in values]


@given(st.sets(st.integers(0, 5), max_size=6), st.integers(6, 8))
def test_rows_round_trip_through_order_of_forest(columns, n_features):
    categories = Categories(tuple(sorted(columns)), n_features)
    row = np.arange(n_features, dtype=float)
    assert (row[categories.order][categories.places] == row).all()
    assert sorted(categories.order[categories.n_numeric :]) == sorted(columns)


# ---- ways to give them -----------------------------------------------------------------------------------------------

WAYS = {
    "pandas category": (FRAME, "from_dtype"),
    "pandas object": (FRAME.astype(dict.fromkeys(CODED, object)), CODED),
    "pandas string": (FRAME.astype(dict.fromkeys(CODED, "string")), CODED),
    "polars Categorical": (pl.DataFrame(FRAME.astype(dict.fromkeys(CODED, object)).to_dict("list")).cast(
        dict.fromkeys(CODED, pl.Categorical)), "from_dtype"),
    "polars Enum": (pl.DataFrame(FRAME.astype(dict.fromkeys(CODED, object)).to_dict("list")).cast(
        {"merchant": pl.Enum(list(HOMES)), "country": pl.Enum(["DE", "FR", "GB"])}), "from_dtype"),
    "polars String": (pl.DataFrame(FRAME.astype(dict.fromkeys(CODED, object)).to_dict("list")), CODED),
    "Arrow dictionaries": (as_arrow(FRAME), "from_dtype"),
    "objects and a mask": (OBJECTS, [True, False, True, False]),
    "objects and numbers": (OBJECTS, [0, 2]),
    "objects and negative numbers": (OBJECTS, np.array([-4, -2])),
    "lists": (OBJECTS.tolist(), (0, 2)),
}  # fmt: skip


@pytest.mark.parametrize("kind", DETECTORS)
@pytest.mark.parametrize("way", WAYS)
def test_all_ways_to_select_categories_give_same_forest(kind, way):
    expected = small(kind).fit(FRAME).score_samples(FRAME)
    X, features = WAYS[way]
    detector = small(kind, categorical_features=features).fit(X)
    assert (detector.score_samples(X) == expected).all()
    assert detector.is_categorical_.tolist() == [True, False, True, False]
    assert list(detector.categories_.values()) == [sorted(HOMES), ["DE", "FR", "GB"]]


@pytest.mark.parametrize("kind", DETECTORS)
def test_named_rows_contain_codes(kind):
    columns = [encode(FRAME[name])[0] if name in CODED else FRAME[name].to_numpy(float) for name in FRAME]
    texts = {code_of(text): text for text in [*HOMES, *HOMES.values()]}
    rows = NamedRows(np.column_stack(columns), list(FRAME), Categories((0, 2), 4, texts))
    detector = small(kind).fit(rows)
    assert (detector.score_samples(rows) == small(kind).fit(FRAME).score_samples(FRAME)).all()
    assert (detector.score_samples(rows[:3]) == detector.score_samples(FRAME[:3])).all()
    assert detector.categories_["country"] == ["DE", "FR", "GB"]


@pytest.mark.parametrize("kind", DETECTORS)
def test_numbers_may_be_categories(kind):
    numbers = np.column_stack([FRAME["amount"], FRAME["items"]])
    detector = small(kind, categorical_features=[1]).fit(numbers)
    assert detector.categories_ == {"x1": [str(i) for i in range(1, 9)]}
    texts = numbers.astype(object)
    texts[:, 1] = [str(int(item)) for item in numbers[:, 1]]
    assert (detector.score_samples(texts) == detector.score_samples(numbers)).all()


@pytest.mark.parametrize("kind", DETECTORS)
def test_numbers_stay_numbers_by_default(kind):
    numbers = FRAME[["amount", "items"]]
    detectors = [small(kind, categorical_features=given).fit(numbers) for given in ("from_dtype", None, [])]
    scores = [detector.score_samples(numbers) for detector in detectors]
    assert (scores[0] == scores[1]).all()
    assert (scores[0] == scores[2]).all()
    assert detectors[0].is_categorical_ is None
    assert detectors[0].categories_ == {}


@pytest.mark.parametrize("kind", DETECTORS)
def test_feature_weights_do_not_depend_on_column_order(kind):
    """Categories come last in the forest wherever they are in the table, so the draws are the same."""
    moved = FRAME[["amount", "merchant", "items", "country"]]
    expected = small(kind).fit(FRAME)
    detector = small(kind).fit(moved)
    assert (detector.score_samples(moved) == expected.score_samples(FRAME)).all()
    ours, theirs = detector.explain(moved[:5]), expected.explain(FRAME[:5])
    assert (ours.parts == theirs.parts[:, [list(FRAME).index(name) for name in moved]]).all()
    assert ours.values[0].tolist() == moved.iloc[0].tolist()


# ---- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", DETECTORS)
@pytest.mark.parametrize(
    ("X", "features", "message"),
    [
        (FRAME.astype(object), "from_dtype", "row 0, column 'merchant' is .* name it in categorical_features"),
        (FRAME, None, "column 'merchant' is .*which is not a number: to use the column as categories, name it"),
        (OBJECTS, "from_dtype", "row 0, column 0 is .*name it in categorical_features"),
        (FRAME, ["merchant"], "column 'country' is .*name it in categorical_features"),
        (FRAME, ["merchent", "country"], "contains 'merchent', which is not a column of X: did you mean 'merchant'"),
        (FRAME, "merchant", "categorical_features"),
        (FRAME, [True, False], "a mask of 2 columns, but X has 4"),
        (FRAME, [0, 4], "contains column 4, but X has columns 0 to 3"),
        (FRAME, [0.5], "must be None, .* got values of type float"),
        (FRAME, [["merchant"]], "one-dimensional"),
        (OBJECTS, ["merchant"], "but X has none: pass column numbers or a mask"),
        (FRAME.assign(country=[b"DE"] * N), CODED, "column 'country': a category must be text"),
        (OBJECTS[0], [0, 2], "2D array"),
        (FRAME[:0], "from_dtype", r"0 sample\(s\)"),
    ],
)
def test_errors_name_column_and_remedy(kind, X, features, message):
    detector = small(kind, categorical_features=features)
    with pytest.raises((ValueError, TypeError), match=message):
        detector.fit(X)
    assert not detector.is_fitted


@pytest.mark.parametrize("kind", DETECTORS)
def test_scoring_requires_columns_of_fit(kind):
    detector = small(kind).fit(FRAME)
    with pytest.raises(ValueError, match="feature names"):
        detector.score_samples(FRAME[["amount", "merchant", "items", "country"]])
    with pytest.raises(ValueError, match="row 0, column 'amount' is 'much', which is not a number"):
        detector.score_samples(FRAME.assign(amount="much"))
    numeric = small(kind).fit(FRAME[["amount"]])
    with pytest.raises(ValueError, match="column 'amount' is"):
        numeric.score_samples(FRAME[["merchant"]].rename(columns={"merchant": "amount"}))
    rows = NamedRows(np.zeros((1, 1)), ["amount"], Categories((0,), 1, {0.0: "x"}))
    with pytest.raises(ValueError, match="column 'amount' holds categories"):
        numeric.score_samples(rows)


@pytest.mark.parametrize("kind", DETECTORS)
def test_missing_categories_follow_missing_parameter(kind):
    gone = FRAME.copy()
    gone.loc[5, "country"] = None
    with pytest.raises(ValueError, match="row 5, column 'country' is missing"):
        small(kind, missing="error").fit(gone)
    for missing in ("impute", "marginalise"):
        detector = small(kind, missing=missing).fit(gone)
        assert np.isfinite(detector.score_samples(gone)).all()
        assert detector.categories_["country"] == ["DE", "FR", "GB"]
        filled = detector.impute(gone[5:6])
        assert filled.shape == (1, 4)
        assert filled[0, 0] == gone.loc[5, "merchant"]
        explained = detector.explain(gone)[5]
        assert "country" not in [attribution.name for attribution in explained.attributions]


def test_series_rejects_categories():
    with pytest.raises(ValueError, match="accepts only numbers: leave the column out"):
        SeriesMPF(small(StreamingMPF)).fit(FRAME)


# ---- learning --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", DETECTORS)
def test_unseen_category_is_scored(kind):
    detector = small(kind, n_estimators=50).fit(FRAME)
    unseen = FRAME[:1].assign(country=pd.Categorical(["XK"]))
    [score] = detector.score_samples(unseen)
    assert np.isfinite(score)
    assert score < np.quantile(detector.score_samples(FRAME), 0.05)


def test_rows_are_learned_and_deleted_by_texts():
    detector = small(StreamingMPF, window=1000).fit(FRAME[:200])
    before = deepcopy(detector)
    new = FRAME[200:].assign(country=pd.Categorical(["XK"] * 100))
    detector.partial_fit(new)
    assert "XK" in detector.categories_["country"]
    assert detector.points_[-1].tolist() == new.iloc[-1].tolist()
    detector.delete_rows(new)
    assert detector.categories_ == before.categories_
    assert b"XK" not in detector.to_bytes()  # deletion leaves no trace
    assert detector.n_points_ == 200


def test_chunks_do_not_change_results():
    whole, parts = small(StreamingMPF), small(StreamingMPF)
    expected = whole.score_then_learn(FRAME)
    scores = [parts.score_then_learn(FRAME[start : start + 70]) for start in range(0, N, 70)]
    assert (np.concatenate(scores) == expected).all()
    assert whole.to_bytes() == parts.to_bytes()


def test_flagged_rows_are_explained_with_texts():
    stream = pd.concat([FRAME, FRAME[:1].assign(country=pd.Categorical(["XK"]), amount=1e4)], ignore_index=True)
    found = small(StreamingMPF).detect_then_learn(stream.astype({"country": "category"}), explain=True)
    assert found.is_anomaly[-1]
    assert found.explanations[N].values.tolist() == stream.iloc[-1].tolist()
    assert json.loads(found.explanations[N].to_json())["features"][2]["value"] == "XK"


def test_batch_forests_with_categories_merge():
    tree = Tree(domain=[[0, 0], [100, 10]])  # of the numbers; categories may be any
    whole = small(BatchMPF, tree=tree).fit(FRAME)
    parts = [small(BatchMPF, tree=tree).fit(part) for part in (FRAME[:100], FRAME[100:])]
    merged = parts[0] + parts[1]
    assert (merged.mass(FRAME) == whole.mass(FRAME)).all()
    assert merged.categories_ == whole.categories_
    other = small(BatchMPF, tree=Tree(domain=[[0], [100]]), categorical_features=[0, 2, 3]).fit(FRAME)
    with pytest.raises(ValueError, match="categories in different columns"):
        whole.merge(other)


def test_add_features_appends_numbers_at_end_of_table():
    detector = small(StreamingMPF, categorical_features=[0, 2]).partial_fit(OBJECTS)
    detector.add_features([2.5])
    assert detector.points_[-1].tolist() == [*OBJECTS[-1], 2.5]
    more = np.column_stack([OBJECTS, np.full(N, 2.5, dtype=object)])
    assert np.isfinite(detector.score_then_learn(more[:5])).all()
    assert detector.is_categorical_.tolist() == [True, False, True, False, False]


def test_texts_of_old_rows_are_dropped():
    detector = small(StreamingMPF, window=50, categorical_features=[0])
    for start in range(0, 20_000, 500):
        rows = np.array([[f"id {i}", 0.5] for i in range(start, start + 500)], dtype=object)
        detector.partial_fit(rows)
    assert len(detector.encoding_.texts) <= 2 * 4096
    assert detector.categories_["x0"] == sorted(f"id {i}" for i in range(19_950, 20_000))


# ---- files -----------------------------------------------------------------------------------------------------------


def saved(detector):
    file = io.BytesIO()
    detector.save(file)
    file.seek(0)
    return load(file)


@pytest.mark.parametrize("kind", DETECTORS)
@pytest.mark.parametrize("restored", [saved, lambda forest: loads(forest.to_bytes()), deepcopy,
                                      lambda forest: pickle.loads(pickle.dumps(forest))])  # fmt: skip
def test_categories_survive_files_and_copies(kind, restored):
    for features, X in (
        ("from_dtype", FRAME),
        ([0, 2], OBJECTS),
        ([True, False, True, False], OBJECTS),
        (CODED, FRAME),
    ):
        detector = small(kind, categorical_features=features).fit(X)
        twin = restored(detector)
        assert (twin.score_samples(X) == detector.score_samples(X)).all()
        assert twin.categories_ == detector.categories_
        assert twin.get_params()["categorical_features"] == features
        assert twin.to_bytes() == detector.to_bytes()
        assert str(twin.explain(X[:1])[0]) == str(detector.explain(X[:1])[0])


def test_file_without_categories_omits_them():
    header, arrays = small(StreamingMPF).fit(FRAME[["amount"]])._state()
    assert "categories" not in header
    assert "categorical_features" not in header["parameters"]
    assert "texts" not in arrays


def test_hostile_texts_are_escaped():
    hostile = ["<script>", "\x1b[31m", "\u202e", "a\nb", "\ud800", "", "$x^2$", "x" * (LONGEST_KEPT + 1), "'; DROP"]
    table = np.array([[text, float(i)] for i, text in enumerate(hostile * 30)], dtype=object)
    detector = saved(small(StreamingMPF, categorical_features=[0]).fit(table))
    assert detector.categories_["x0"] == sorted(text for text in hostile if len(text) <= LONGEST_KEPT)
    table[:, 1] = 1e6
    for explanation in detector.explain(table[: len(hostile)]):
        shown = str(explanation)
        assert "\x1b" not in shown
        assert "\u202e" not in shown
        assert "<script>" not in explanation._repr_html_()
        json.loads(explanation.to_json())


@pytest.mark.parametrize(
    ("columns", "texts", "message"),
    [
        ([], b"[]", "invalid categorical columns"),
        ([2, 0], b"[]", "invalid categorical columns"),
        ([0, 0], b"[]", "invalid categorical columns"),
        ([4], b"[]", "invalid categorical columns"),
        ([0], b"{}", "list of strings"),
        ([0], b"[1]", "list of strings"),
        ([0], b'["' + b"x" * (LONGEST_KEPT + 1) + b'"]', "list of strings"),
        ([0], b"[", "Expecting value"),
        ([0], b"\xff", "decode"),
    ],
)
def test_damaged_categories_in_files_are_rejected(columns, texts, message):
    with pytest.raises(ValueError, match=message):
        Categories.of_state(columns, 4, np.frombuffer(texts, np.uint8))


def test_file_with_texts_but_no_columns_is_rejected(tmp_path):
    from polyaforest.storage.modelfile import write_model

    header, arrays = small(StreamingMPF).fit(FRAME)._state()
    del header["categories"]
    write_model(tmp_path / "model.mpf", header, arrays)
    with pytest.raises(ModelFileError, match="texts of categories"):
        load(tmp_path / "model.mpf")


# ---- words -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", DETECTORS)
def test_explanations_show_texts(kind):
    detector = small(kind, n_estimators=50).fit(FRAME)
    odd = FRAME[:1].assign(country=pd.Categorical(["XK"]))
    [explanation] = explanations = detector.explain(odd)
    attribution = explanation.attributions[0]
    assert (attribution.name, attribution.value, attribution.side) == ("country", "XK", "new")
    assert attribution.seen == "never seen in 300 rows"
    assert set(attribution.usual) == {"DE", "FR", "GB"}
    assert HOMES[odd["merchant"].iloc[0]] in attribution.expected
    assert "country = XK (never seen in 300 rows)" in explanation.region
    facts = json.loads(explanation.to_json())
    assert facts["features"][2]["value"] == "XK"
    assert facts["attributions"][0]["seen"] == "never seen in 300 rows"
    codes = {f"{code_of(text):.0f}"[:12] for text in [*HOMES, *HOMES.values(), "XK"]}
    for shown in (explanation.to_json(), str(explanation), explanation._repr_html_(), explanations.to_frame().to_csv()):
        assert not any(code in shown for code in codes)


def test_rare_combination_is_reported():
    detector = small(StreamingMPF, n_estimators=100).fit(FRAME)
    odd = FRAME[:1].assign(merchant=pd.Categorical(["Grocer"]), country=pd.Categorical(["GB"]), amount=20.0)
    [explanation] = detector.explain(odd)
    n = int((FRAME["merchant"] == "Grocer").sum())
    seen = {attribution.name: attribution.seen for attribution in explanation.attributions}
    assert seen["country"] == f"seen in 0 of {n} rows with merchant = Grocer"
    assert f"merchant = Grocer (seen in 0 of {(FRAME['country'] == 'GB').sum()} rows with country = GB)" in (
        explanation.region
    )


@pytest.mark.parametrize("kind", DETECTORS)
def test_bits_add_up(kind):
    detector = small(kind).fit(FRAME)
    explained = detector.explain(FRAME)
    assert np.allclose(explained.parts.sum(axis=1), explained.surprise - explained.typical)
    assert explained.values[7].tolist() == FRAME.iloc[7].tolist()


def test_plots_of_planes_and_trees_reject_categories():
    pytest.importorskip("matplotlib")
    from polyaforest import plots

    detector = small(StreamingMPF).fit(FRAME)
    for draw in (plots.tree, plots.partition, plots.density):
        with pytest.raises(ValueError, match="the forest has categories"):
            draw(detector)
    bars = plots.attribution_bars(detector.explain(FRAME[:1].assign(country=pd.Categorical(["XK"])))[0])
    assert any("XK" in label.get_text() for label in bars.ax.get_yticklabels())
