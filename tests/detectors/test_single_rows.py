"""Rows learned one a call give the same bits as rows learned in chunks, by a shorter way."""

from datetime import timedelta

import numpy as np
import pytest
from forests import made
from numpy.testing import assert_array_equal

from polyaforest import StreamingMPF
from polyaforest.detectors import loads
from polyaforest.forest import learn
from polyaforest.forest.retention import Reservoir, Window
from polyaforest.kernels.single_row import BEYOND, ORDINARY, UNUSABLE, take_row
from polyaforest.tables.validation import LARGEST, SMALLEST, NamedRows

pytestmark = pytest.mark.property

N, WINDOW = 640, 40
ROWS = np.random.default_rng(0).normal(size=(N, 3))
ROWS[300:520:20] *= 6.0  # beyond the margins, and flagged
ROWS[401:420, 1] = ROWS[401, 1]
TIMES = np.cumsum(np.random.default_rng(1).integers(0, 3, N)).astype(float)
POLICIES = {
    "count": WINDOW,
    "large": 300,
    "duration": timedelta(seconds=WINDOW),
    "both": Window(WINDOW, duration=30.0),
    "reservoir": Reservoir(WINDOW),
    "half-life": Reservoir(WINDOW, half_life=50),
    "summary": None,  # its trees grow on
}


def build(window=WINDOW, **parameters):
    given = {"max_depth": 6} if window is None else {}
    return made(StreamingMPF, n_estimators=7, window=window, random_state=3, **given, **parameters)


def by_row(forest, rows, start=0, **labels):
    """Learn rows one a call; return their results as columns."""
    found = [
        forest.detect_then_learn(rows[i : i + 1], **{name: part[i : i + 1] for name, part in labels.items()})
        for i in range(start, len(rows))
    ]
    return [np.concatenate([getattr(each, name) for each in found]) for name in RESULTS]


RESULTS = ("scores", "p_values", "is_anomaly", "thresholds", "tail_bits")


def assert_same(one, other):
    assert one.to_bytes() == other.to_bytes()


@pytest.fixture
def short_ways(monkeypatch):
    """Count the rows that are learned by the short way."""
    calls, run_row = [], learn.run_row
    monkeypatch.setattr(learn, "run_row", lambda *args: calls.append(1) or run_row(*args))
    return calls


@pytest.mark.parametrize("name", POLICIES)
def test_rows_equal_chunks(name, short_ways):
    times = {"times": TIMES} if name in ("duration", "both") else {}
    whole, single = build(POLICIES[name]), build(POLICIES[name])
    expected = whole.detect_then_learn(ROWS, **times)
    for found, column in zip(by_row(single, ROWS, **times), RESULTS, strict=True):
        assert_array_equal(found, getattr(expected, column))
    assert_same(single, whole)
    assert expected.is_anomaly.any()
    assert len(short_ways) > N - 30


@pytest.mark.parametrize("score", ["margins", "typicality", "multiscale", "mass", "log_mass"])
def test_rows_equal_chunks_with_every_score(score, short_ways):
    whole, single = build(score_type=score), build(score_type=score)
    expected = whole.score_then_learn(ROWS)
    assert_array_equal(np.concatenate([single.score_then_learn(row[None]) for row in ROWS]), expected)
    assert_same(single, whole)
    assert len(short_ways) > N - 30


def test_rows_with_gaps_and_weights_take_the_long_way_in_between(short_ways):
    rows, rng = ROWS.copy(), np.random.default_rng(5)
    rows[rng.integers(50, N, 40), rng.integers(0, 3, 40)] = np.nan
    weights = np.where(rng.random(N) < 0.1, rng.uniform(0, 3, N), 1.0)
    whole, single = build(), build()
    expected = whole.score_then_learn(rows, sample_weight=weights)
    found = [
        single.score_then_learn(row[None], sample_weight=None if weight == 1 else [weight])
        for row, weight in zip(rows, weights, strict=True)
    ]
    assert_array_equal(np.concatenate(found), expected)
    assert_same(single, whole)
    assert N / 2 < len(short_ways) < N - 40


def test_rows_have_keys_and_can_be_deleted_in_between(short_ways):
    keys = [f"key {i}" if i % 3 else i + 1000 for i in range(N)]
    whole, single = build(), build()
    for start in range(0, N, 80):
        part = slice(start, start + 80)
        whole.partial_fit(ROWS[part], keys=keys[part])
        for row, key in zip(ROWS[part], keys[part], strict=True):
            assert single.insert(row, key) == key
        gone = keys[start + 50 : start + 60]
        whole.delete(gone)
        single.delete(gone)
    assert_same(single, whole)
    assert short_ways
    with pytest.raises(ValueError, match="is already in use"):
        single.insert(ROWS[0], keys[-1])
    assert_same(single, whole)


def test_flagged_rows_are_explained_as_in_chunks(short_ways):
    whole, single = build(), build()
    expected = whole.detect_then_learn(ROWS, explain=True)
    for i, row in enumerate(ROWS):
        found = single.detect_then_learn(row[None], explain=True)
        assert_array_equal(found.scores, expected.scores[i])
        assert (found.explanations[0].to_dict() if found.explanations else None) == (
            expected.explanations[i].to_dict() if i in expected.explanations else None
        )
    assert expected.explanations
    assert_same(single, whole)
    assert short_ways


def test_named_rows_take_the_short_way(short_ways):
    names = np.array(["a", "b", "c"], dtype=object)
    whole, single = build(), build()
    expected = whole.score_then_learn(NamedRows(ROWS, names))
    found = [single.score_then_learn(NamedRows(row[None], names)) for row in ROWS]
    assert_array_equal(np.concatenate(found), expected)
    assert_same(single, whole)
    assert len(short_ways) > N - 30


def test_copies_continue_on_their_own(short_ways):
    forest = build().partial_fit(ROWS[:200])
    by_row(forest, ROWS[200:300])
    twin, loaded = forest.__copy__(), loads(forest.to_bytes())
    expected = by_row(forest, ROWS[300:400])
    for other in (twin, loaded):
        for found, column in zip(by_row(other, ROWS[300:400]), expected, strict=True):
            assert_array_equal(found, column)
        assert_same(other, forest)
    assert short_ways


def test_explanations_of_earlier_rows_stay_valid():
    forest, quiet = build().partial_fit(ROWS[:300]), build().partial_fit(ROWS[:300])
    explained = forest.explain(ROWS[300:301])[0]
    expected = quiet.explain(ROWS[300:301])[0].to_dict()
    by_row(forest, ROWS[301:400])
    assert explained.to_dict() == expected


@pytest.mark.parametrize("bad", [np.inf, -2 * LARGEST])
def test_unusable_row_changes_nothing(bad):
    forest = build().partial_fit(ROWS[:100])
    before, row = forest.to_bytes(), ROWS[100:101].copy()
    row[0, 1] = bad
    with pytest.raises(ValueError, match="row 0, column 1"):
        forest.score_then_learn(row)
    assert forest.to_bytes() == before


@pytest.mark.plain
def test_row_is_copied_with_tiny_values_as_zero():
    limit, row = np.full((2, 3), 2.0), np.empty((1, 3))
    given = np.array([[SMALLEST / 2, -0.0, 1.0]])
    assert take_row(given, SMALLEST, LARGEST, limit, row) == ORDINARY
    assert row.tobytes() == np.array([[0.0, 0.0, 1.0]]).tobytes()
    for value, kind in ((2.5, BEYOND), (-2.5, BEYOND), (np.nan, UNUSABLE), (np.inf, UNUSABLE)):
        assert take_row(np.array([[0.0, value, 1.0]]), SMALLEST, LARGEST, limit, row) == kind
