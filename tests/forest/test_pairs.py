"""Pairs of values that rarely occur together: counts, costs, and rows that are found by them."""

import numpy as np
import pandas as pd
import pytest
from forests import made
from numpy.testing import assert_allclose, assert_array_equal
from reference.pairs import costs_in_steps
from streams import bits as bits_of

import polyaforest
from polyaforest import Reservoir, StreamingMPF
from polyaforest.detectors import loads
from polyaforest.forest import pairs, stream
from polyaforest.forest.pairs import Bins, Pairs, PairTables
from polyaforest.storage.modelfile import ModelFileError, read_model, write_model
from polyaforest.tables.categories import code_of

COUNTRIES, CURRENCIES = ["DE", "US", "FR", "GB", "CH"], ["EUR", "USD", "GBP", "CHF"]
COLUMNS = ["amount", "country", "currency"]


def payments(n=2000, seed=0, odd=()):
    """Payments in the currency of the country, or in dollars, but for Germany; `odd` rows are German, in dollars."""
    rng = np.random.default_rng(seed)
    country = rng.choice(5, n, p=[0.34, 0.3, 0.12, 0.12, 0.12])
    currency = np.array([0, 1, 0, 2, 3])[country]
    currency = np.where((rng.random(n) < 0.3) & (country > 0), 1, currency)
    country[list(odd)], currency[list(odd)] = 0, 1
    frame = {"amount": rng.normal(100, 20, n).round(), "country": country, "currency": currency}
    return pd.DataFrame(frame).assign(
        country=[COUNTRIES[k] for k in country], currency=[CURRENCIES[k] for k in currency]
    )


def build(**parameters):
    return made(
        StreamingMPF,
        **{"n_estimators": 6, "random_state": 0, "categorical_features": ["country", "currency"]} | parameters,
    )


def coded(frame):
    codes = [[code_of(text) for text in frame[name]] for name in ("country", "currency")]
    return np.column_stack([frame["amount"].to_numpy(float), *codes])


ODD = payments(1, odd=[0])
ROWS = coded(payments(odd=[7, 1200]))


def bits(forest):
    *state, _ = bits_of(forest)
    return *state, forest._stream.rows.tobytes()


# ---- counts and costs ------------------------------------------------------------------------------------------------


def drawn(n, sizes, n_classes, evenness, seed, n_numbers=2):
    """Return rows of classes that decide about numbers and categories."""
    rng = np.random.default_rng(seed)
    own = rng.integers(0, n_classes, n)
    numbers = 2.0 * own[:, None] * rng.normal(size=n_numbers) + rng.normal(size=(n, n_numbers)).round(1)
    columns = []
    for size in sizes:
        shares = rng.dirichlet([evenness] * size, n_classes).cumsum(axis=1)[own]
        columns.append((rng.random((n, 1)) * shares[:, -1:] > shares).sum(axis=1))
    return np.column_stack([numbers, *columns]).astype(float)


@pytest.mark.parametrize(("n", "sizes", "n_classes", "evenness"), [(700, (4, 3, 12), 5, 0.3), (500, (3, 30), 4, 0.1)])
def test_costs_match_the_reference(n, sizes, n_classes, evenness):
    rows = drawn(2 * n, sizes, n_classes, evenness, seed=3)
    points, new = rows[:n], rows[n:]
    found = Pairs.of(points, len(sizes))
    expected = costs_in_steps(points, len(sizes), new)
    assert_allclose(costs_of(found, new), expected, atol=1e-12)
    assert_allclose(
        costs_of(found.left_out(), points), costs_in_steps(points, len(sizes), points, are_held=True), atol=1e-12
    )
    assert len(np.unique(expected)) > 3


def costs_of(found, rows):
    costs = found.costs(rows)
    return np.zeros(len(rows)) if costs is None else costs


def test_rare_pair_of_common_values_is_outstanding():
    found = Pairs.of(ROWS, 2).scaled(1.5)
    odd = np.vstack([coded(ODD), ROWS[:3]])
    assert_array_equal(found.costs(odd), [15.0, 0, 0, 0])
    attributions = found.attributions(odd)
    assert_array_equal(attributions.sum(axis=1)[0], [0, 7.5, 7.5])
    assert_allclose(attributions.sum(axis=(1, 2)), found.costs(odd))
    rare = found.rarest(odd[0])
    assert (rare.columns, rare.low, rare.high) == ((1, 2), tuple(odd[0, 1:]), tuple(odd[0, 1:]))
    assert found.rarest(odd[1]) is None
    assert found.left_out().costs(ROWS[[7, 1200]]).tolist() == [15.0, 15.0]


def test_number_that_rarely_occurs_with_category_is_outstanding():
    rng = np.random.default_rng(2)
    kind = rng.integers(0, 2, 1500)
    rows = np.column_stack([np.where(kind > 0, rng.choice([-10, 10], 1500), 0) + rng.normal(size=1500), kind])
    found = Pairs.of(rows, 1)
    costs = costs_of(found, np.array([[0.1, 1.0], [10.0, 0.0], [0.1, 0.0], [10.0, 1.0]]))
    assert costs[0] == 10
    assert costs[1] >= 4
    assert not costs[2:].any()
    low, middle = found.attributions(np.array([[-10.0, 0.0], [10.0, 0.0]]))
    assert (low > 0).tolist() == [[True, False], [False, True]]
    assert (middle > 0).tolist() == [[False, False], [True, True]]
    rare = found.rarest(np.array([10.0, 0.0]))
    assert rare.low[0] < 10 <= rare.high[0]


def test_new_rare_and_missing_categories_cost_nothing():
    found = Pairs.of(ROWS, 2)
    for value in (code_of("new"), np.nan):
        row = coded(ODD)
        row[0, 2] = value
        assert found.costs(row) is None


def test_unrelated_columns_cost_nothing():
    rng = np.random.default_rng(1)
    rows = np.column_stack([rng.normal(size=3000), *(rng.integers(0, size, 3000) for size in (3, 5, 9))]).astype(float)
    found = Pairs.of(rows[:2048], 3)
    assert not len(found.cells)
    assert found.costs(rows) is None
    assert not found.attributions(rows[:5]).any()
    assert found.rarest(rows[0]) is None


@pytest.mark.parametrize(("n_classes", "evenness"), [(1, 1.0), (4, 2.0), (6, 0.3)])
def test_share_of_outstanding_pairs_is_small(n_classes, evenness):
    """At most one row in 2,048 is expected by chance; allow one in 600, over five tables (seeds are fixed)."""
    shares = []
    for seed in range(5):
        rows = drawn(6000, (4, 6, 8, 3), n_classes, evenness, seed)
        shares.append((costs_of(Pairs.of(rows[:2048], 4), rows[2048:]) >= 10).mean())
    assert np.mean(shares) < 1 / 600


def test_too_few_points_or_columns_give_no_pairs():
    assert Pairs.of(ROWS[:255], 2) is None
    assert Pairs.of(ROWS[:256], 2) is not None
    assert Pairs.of(ROWS, 0) is None
    assert Pairs.of(np.column_stack([np.zeros(300), np.arange(300.0)]), 1) is None  # no category is common


def test_categories_come_first_among_many_pairs(monkeypatch):
    monkeypatch.setattr(pairs, "_MOST_PAIRS", 2)
    bins = Bins.of(ROWS, 2)
    assert bins.columns[bins.pairs].T.tolist() == [[1, 2], [0, 1]]
    assert PairTables.of(bins).n_pairs == 2


# ---- forests ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", ["auto", 2500, Reservoir(2100)])
def test_score_is_typicality_minus_costs(window):
    frame = payments()
    forest, plain = (build(window=window, score_type=kind).fit(frame) for kind in ("margins", "typicality"))
    rows = pd.concat([ODD, frame[:20]])
    costs = costs_of(forest._stream.penalties.pairs, coded(rows))
    assert costs[0] > 0
    assert_allclose(forest.score_samples(rows), plain.score_samples(rows) - np.log(2) * costs, rtol=1e-12)
    assert plain._stream.penalties.pairs is None


def test_tables_of_numbers_keep_their_scores():
    rows = ROWS[:, :1]
    forest, plain = (
        made(StreamingMPF, n_estimators=6, random_state=0, score_type=kind).fit(rows)
        for kind in ("margins", "typicality")
    )
    assert forest._stream.penalties.pairs is None
    assert_array_equal(forest.score_samples(rows), plain.score_samples(rows))


def test_step_is_that_of_the_tail_of_scores():
    frame = payments()
    forest, plain = (build(score_type=kind).fit(frame) for kind in ("margins", "typicality"))
    held = forest._stream.rows[np.linspace(0, 1999, 128).astype(int)]
    ascending = np.sort(plain._model.fitted.row_scores(held, plain._query))
    step = max(ascending[64] - ascending[32], (ascending[64] - ascending[16]) / 2) / np.log(2)
    assert forest._stream.penalties.pairs.bits_per_step == pytest.approx(step)


@pytest.mark.parametrize("seed", range(3))
def test_finds_two_payments_in_dollars(seed):
    frame = payments(2500, seed, odd=[7, 1200])
    forest = build(n_estimators=60, random_state=seed).fit(frame)
    assert (forest.predict(frame.iloc[[7, 1200]]) == -1).all()
    assert (forest.predict(frame) == -1).sum() < 10
    explained = forest.explain(frame.iloc[[7]])
    assert explained.surprise[0] * -np.log(2) == pytest.approx(forest.score_samples(frame.iloc[[7]])[0], rel=1e-10)
    assert explained.parts[0].sum() == pytest.approx(explained.surprise[0] - explained.typical, abs=1e-9)
    assert {attribution.name for attribution in explained[0].attributions} == {"country", "currency"}
    held = forest._stream.rows
    is_german, is_odd = held[:, 1] == code_of("DE"), (held[:, 1:] == coded(ODD)[0, 1:]).all(axis=1)
    sentence = f"currency = USD with country = DE: {is_odd.sum()} of {is_german.sum()} rows"
    assert explained[0].summary == sentence
    assert sentence in str(explained[0])
    assert explained[0].to_dict()["summary"] == sentence
    assert forest.explain(frame.iloc[[8]])[0].summary == ""


def test_explains_pair_of_number_and_category():
    rng = np.random.default_rng(2)
    kind = rng.choice(["on", "off"], 1500)
    speed = np.where(kind == "off", 0.0, rng.normal(40, 5, 1500).round(1))
    frame = pd.DataFrame({"speed": speed, "<kind>": kind})
    forest = made(StreamingMPF, n_estimators=6, random_state=0, categorical_features=["<kind>"]).fit(frame)
    explained = forest.explain(pd.DataFrame({"speed": [41.0, 0.0], "<kind>": ["off", "on"]}))
    assert explained[0].summary.startswith("speed ")
    assert explained[0].summary.endswith(f" with <kind> = off: 0 of {(kind == 'off').sum()} rows")
    assert explained[1].summary == f"speed up to 0 with <kind> = on: 0 of {(kind == 'on').sum()} rows"
    assert "&lt;kind&gt;" in explained[0]._repr_html_()
    assert "<kind>" not in explained[0]._repr_html_()


def test_missing_values_are_completed():
    gappy = payments(1, odd=[0]).assign(amount=np.nan)
    forest = build().fit(payments())
    plain = build(score_type="typicality").fit(payments())
    cost = forest._stream.penalties.pairs.costs(coded(ODD))[0]
    assert forest.score_samples(gappy) == pytest.approx(plain.score_samples(gappy) - np.log(2) * cost)
    assert forest.explain(gappy).surprise[0] * -np.log(2) == pytest.approx(forest.score_samples(gappy)[0], rel=1e-10)


# ---- calibration -----------------------------------------------------------------------------------------------------

LEFT_OUT = {"out of bag": {}, "one by one": {"max_samples": None, "max_depth": 6}}


@pytest.mark.parametrize("parameters", LEFT_OUT.values(), ids=LEFT_OUT)
def test_calibration_scores_leave_each_point_out_of_the_counts(parameters):
    frame = payments(600, odd=[7, 300])
    forest, plain = (build(score_type=kind, **parameters).fit(frame) for kind in ("margins", "typicality"))
    (scores, arrivals), (expected, _) = (model._model.left_out_scores(model._query) for model in (forest, plain))
    costs = costs_of(forest._stream.penalties.pairs.left_out(), coded(frame.iloc[arrivals]))
    assert costs[7] > 0
    assert_allclose(scores, expected - np.log(2) * costs, rtol=1e-12)


# ---- streams ---------------------------------------------------------------------------------------------------------


def test_stream_is_the_same_row_by_row_and_in_chunks(monkeypatch):
    monkeypatch.setattr(stream, "_ARRIVALS_PER_MEASUREMENT", 64)
    frame = payments(500, odd=[350, 450])
    whole = build(window=300)
    detected = whole.detect_then_learn(frame)
    for size in (1, 97):
        parts = build(window=300)
        found = [parts.detect_then_learn(frame[start : start + size]) for start in range(0, 500, size)]
        assert_array_equal(np.concatenate([part.scores for part in found]), detected.scores)
        assert bits(parts) == bits(whole)
    plain = build(window=300, score_type="typicality").score_then_learn(frame)
    assert (plain > detected.scores)[[350, 450]].all()


def test_pairs_follow_insertions_and_deletions():
    frame = payments(1500, odd=[30, 700])
    forest = build(window=600).partial_fit(frame[:1024])
    assert same(forest._stream.penalties.pairs, Pairs.of(coded(frame[424:1024]), 2))
    forest.delete(700)
    assert same(forest._stream.penalties.pairs, Pairs.of(np.delete(coded(frame[424:1024]), 276, axis=0), 2))
    forest.delete_rows(frame[1000:1024])
    assert forest._stream.penalties.pairs.costs(coded(ODD)) > 0
    forest.delete([key for key in range(424, 700) if forest.holds(key)])
    assert same(forest._stream.penalties.pairs, Pairs.of(forest._stream.rows, 2))
    forest.delete([key for key in range(701, 900) if forest.holds(key)])
    assert forest._stream.penalties.pairs is None


def same(a, b):
    parts = ("cells", "steps", "own_steps")
    is_same = all(np.array_equal(getattr(a, part), getattr(b, part)) for part in parts)
    return is_same and all(np.array_equal(*both) for both in zip(a.bins, b.bins, strict=True))


def test_loaded_stream_continues_bit_for_bit(tmp_path):
    frame = payments(1500, odd=[400, 1100])
    forest = build(window=500).partial_fit(frame[:700])
    forest.save(tmp_path / "model.mpf")
    others = [polyaforest.load(tmp_path / "model.mpf"), loads(forest.to_bytes())]
    scores = forest.score_then_learn(frame[700:])
    for other in others:
        assert_array_equal(other.score_then_learn(frame[700:]), scores)
        assert bits(other) == bits(forest)


def test_rejects_damaged_file(tmp_path):
    build().fit(payments()).save(tmp_path / "model.mpf")
    header, arrays = read_model(tmp_path / "model.mpf")

    def damaged(name, part):
        write_model(tmp_path / "broken.mpf", header, {**arrays, f"stream/pairs_{name}": part})
        with pytest.raises(ModelFileError, match="pairs"):
            polyaforest.load(tmp_path / "broken.mpf")

    given = {name: arrays[f"stream/pairs_{name}"] for name in ("columns", "sizes", "values", "cells", "steps")}
    damaged("columns", given["columns"] + 1)
    damaged("columns", given["columns"][::-1].copy())
    damaged("sizes", given["sizes"] + 1)
    damaged("sizes", np.full_like(given["sizes"], 2**40))
    damaged("values", given["values"] * np.nan)
    damaged("cells", given["cells"] + 10**6)
    damaged("steps", -given["steps"])
    damaged("steps", given["steps"][1:].copy())
    damaged("bits_per_step", np.array(np.nan))
    without = {name: part for name, part in arrays.items() if name != "stream/pairs_cells"}
    write_model(tmp_path / "broken.mpf", header, without)
    with pytest.raises(ModelFileError, match="pairs_cells"):
        polyaforest.load(tmp_path / "broken.mpf")


def test_older_files_gain_pairs_when_they_are_next_measured(tmp_path):
    forest = build(window=600).partial_fit(payments(600))
    forest.save(tmp_path / "model.mpf")
    header, arrays = read_model(tmp_path / "model.mpf")
    older = {name: part for name, part in arrays.items() if not name.startswith("stream/pairs_")}
    write_model(tmp_path / "older.mpf", header, older)
    again = polyaforest.load(tmp_path / "older.mpf")
    assert again._stream.penalties.pairs is None
    again.partial_fit(payments(600, seed=1))
    assert again._stream.penalties.pairs.costs(coded(ODD)) > 0
