"""A row of weight w equals w copies of the row, draw for draw, for any method, window and chunks."""

import tracemalloc

import numpy as np
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from scipy.stats import binom
from strategies import policies, rows_of_a_stream, seeds

from polyaforest import BatchMPF, Reservoir, StreamingMPF, Tree, Window
from polyaforest.detectors import loads
from polyaforest.forest import copies

pytestmark = pytest.mark.property

SMALL = {"n_estimators": 3, "random_state": 0}
whole = st.integers(0, 3)
fractions = st.sampled_from([0.0, 0.25, 1.0, 1.5, 2.75])


@st.composite
def weighted(draw, weights=whole, max_features=3):
    """Draw rows, some with gaps, and their weights; the first is complete and has weight."""
    rows = draw(rows_of_a_stream(max_features))
    n = len(rows)
    rows[np.array(draw(st.lists(st.integers(0, 9), min_size=n, max_size=n))) == 0, 0] = np.nan
    given = np.array(draw(st.lists(weights, min_size=n, max_size=n)), float)
    rows[0], given[0] = np.nan_to_num(rows[0]), max(given[0], 1.0)
    return rows, given


def repeated(weights, *labels):
    return [label.repeat(weights.astype(int), axis=0) for label in labels]


def firsts(weights):
    """Return the place of the first copy of each row with weight."""
    return (np.cumsum(weights) - weights)[weights > 0].astype(int)


def assert_same(one, other):
    assert one.to_bytes() == other.to_bytes()


@st.composite
def streams(draw):
    """Draw a factory of streams with some policy, and whether they need times."""
    policy = draw(st.one_of(st.just("auto"), st.none(), policies))
    tree = Tree(max_depth=3) if policy is None else None

    def make():
        return StreamingMPF(**SMALL, window=policy, tree=tree, missing="marginalise")

    return make, policy is not None and not isinstance(policy, str) and policy.needs_times


def times_of(n, needs_times):
    return np.arange(n) // 2.0 if needs_times else np.full(n, np.nan)


@given(streams(), weighted())
@settings(max_examples=examples(100))
def test_weighted_table_matches_table_of_repeated_rows(stream, table):
    make, needs_times = stream
    rows, weights = table
    times = times_of(len(rows), needs_times)
    again, stamps = repeated(weights, rows, times)
    given_times, stamps = ({"times": times}, {"times": stamps}) if needs_times else ({}, {})
    assert_same(make().fit(rows, sample_weight=weights, **given_times), make().fit(again, **stamps))


@given(streams(), weighted(), st.integers(1, 4))
@settings(max_examples=examples(100))
def test_weighted_streams_match_streams_of_repeated_rows(stream, table, n_at_once):
    make, needs_times = stream
    rows, weights = table
    times = times_of(len(rows), needs_times)
    again, stamps = repeated(weights, rows, times)
    scored, judged, expected, verdicts = make(), make(), make(), make()
    scores, found = [], []
    for start in range(0, len(rows), n_at_once):
        part = slice(start, start + n_at_once)
        options = {"sample_weight": weights[part]} | ({"times": times[part]} if needs_times else {})
        scores.append(scored.score_then_learn(rows[part], **options))
        found.append(judged.detect_then_learn(rows[part], **options))
    once = {"times": stamps} if needs_times else {}
    at_first, counts = firsts(weights), weights > 0
    assert_array_equal(np.concatenate(scores)[counts], expected.score_then_learn(again, **once)[at_first])
    assert_same(scored, expected)
    truth = verdicts.detect_then_learn(again, **once)
    assert_array_equal(np.concatenate([part.p_values for part in found])[counts], truth.p_values[at_first])
    assert_array_equal(np.concatenate([part.is_anomaly for part in found])[counts], truth.is_anomaly[at_first])
    assert_same(judged, verdicts)
    options = {"times": times} if needs_times else {}
    assert_same(make().partial_fit(rows, sample_weight=weights, **options), make().partial_fit(again, **once))


@given(weighted(), weighted())
@settings(max_examples=examples(100))
def test_counts_of_batch_match_repeated_rows(table, more):
    n_features = min(table[0].shape[1], more[0].shape[1])
    (rows, weights), (others, follow) = ((part[:, :n_features], own) for part, own in (table, more))

    def make():
        return BatchMPF(**SMALL, missing="marginalise")

    one, other = make().fit(rows, sample_weight=weights), make().fit(*repeated(weights, rows))
    assert_same(one, other)
    one.partial_fit(others, sample_weight=follow)
    other.partial_fit(*repeated(follow, others))
    assert_same(one, other)
    complete = ~np.isnan(others).any(axis=1)
    one.delete_rows(others[complete], sample_weight=follow[complete])
    other.delete_rows(*repeated(follow[complete], others[complete]))
    assert_same(one, other)


@given(weighted(max_features=2), st.sampled_from([Window(50), Reservoir(50)]), st.booleans())
@settings(max_examples=examples(60))
def test_weighted_deletion_matches_deletion_of_repeated_rows(table, window, is_table):
    rows, weights = table
    rows = np.nan_to_num(rows)
    forest = StreamingMPF(**SMALL, window=window)
    one = getattr(forest, "fit" if is_table else "partial_fit")(rows, sample_weight=weights)
    other = loads(one.to_bytes())
    less = np.maximum(weights - 1, 0)
    one.delete_rows(rows, sample_weight=less)
    if less.any():
        other.delete_rows(*repeated(less, rows))
    assert_same(one, other)
    assert one.n_points_ == (weights > 0).sum()


def test_summary_subtracts_rows_by_weight():
    rows = np.array([[0.0, 0.0], [1.0, 1.0], [0.4, 0.6]])
    one = StreamingMPF(**SMALL, window=None, tree=Tree(max_depth=0)).fit(rows, sample_weight=[5, 5, 5])
    other = loads(one.to_bytes()).delete_rows(rows[[2, 2, 2]])
    assert_same(one.delete_rows(rows[[0, 2]], sample_weight=[0, 3]), other)
    with pytest.raises(ValueError, match="row 1 is not held, or not as many times"):
        one.delete_rows(rows, sample_weight=[0, 50, 0])
    with pytest.raises(ValueError, match="row 1 lies on the edge"):
        one.delete_rows(rows, sample_weight=[0, 5, 0])
    assert_same(one, other)


@given(weighted(fractions), seeds, st.integers(1, 3))
@settings(max_examples=examples(60))
def test_fractional_weights_do_not_depend_on_chunks_or_saving(table, seed, n_at_once):
    rows, weights = np.nan_to_num(table[0]), table[1]
    for kind in (StreamingMPF, BatchMPF):
        tree = Tree(domain=[[-1e100] * rows.shape[1], [1e100] * rows.shape[1]]) if kind is BatchMPF else None
        at_once = kind(n_estimators=3, random_state=seed, tree=tree).partial_fit(rows, sample_weight=weights)
        by_parts = kind(n_estimators=3, random_state=seed, tree=tree)
        for start in range(0, len(rows), n_at_once):
            part = slice(start, start + n_at_once)
            by_parts.partial_fit(rows[part], sample_weight=weights[part])
            by_parts = loads(by_parts.to_bytes())
        if kind is BatchMPF:  # its threshold depends on when it was first computed
            assert_array_equal(at_once.forest_.counts, by_parts.forest_.counts)
        else:
            assert_same(at_once, by_parts)
        n = at_once.n_points_
        assert np.floor(weights).sum() <= n <= np.ceil(weights).sum()


def test_expected_number_of_copies_is_the_weight(any_seed):
    n, weight = 100_000, 2.3
    found = copies.n_copies(np.full(n, weight), np.arange(n), any_seed)
    assert set(found.tolist()) == {2, 3}
    more = int((found == 3).sum())
    assert 1e-7 < binom.cdf(more, n, 0.3) < 1 - 1e-7
    rest = copies.n_copies(np.full(n, weight), -1 - np.arange(n), any_seed)  # those of rows that follow
    together = int(((found == 3) & (rest == 3)).sum())
    assert 1e-7 < binom.cdf(together, n, 0.09) < 1 - 1e-7


def test_rows_of_weight_zero_are_scored_and_leave_no_trace():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(400, 2))
    weights = rng.integers(0, 2, 400)
    weights[0] = 1
    one, other = StreamingMPF(**SMALL, window=100), StreamingMPF(**SMALL, window=100)
    scores = one.score_then_learn(rows, sample_weight=weights)
    expected = []
    for row, weight in zip(rows[:, None], weights, strict=True):
        expected += (other.score_then_learn if weight else other.score_samples)(row).tolist()
    np.testing.assert_allclose(scores, expected, rtol=1e-12)
    assert_same(one, other)
    far = one.detect_then_learn([[50.0, 50.0], [0.0, 0.0]], sample_weight=[0, 1], explain=True)
    assert far.is_anomaly.tolist() == [True, False]
    assert list(far.explanations) == [0]
    assert one.n_seen_ == weights.sum() + 1


def test_key_refers_to_all_copies_of_a_row():
    forest = StreamingMPF(**SMALL, window=10)
    forest.partial_fit([[1.0], [2.0], [3.0]], keys=["ann", 7, "7"], sample_weight=[3, 2, 2])
    assert len(forest.keys_) == forest.n_points_ == 7
    assert loads(forest.to_bytes()).delete(7).points_.ravel().tolist() == [1.0, 1.0, 1.0, 3.0, 3.0]
    forest.delete("ann", sample_weight=[2])
    assert forest.points_.ravel().tolist() == [1.0, 2.0, 2.0, 3.0, 3.0]
    with pytest.raises(ValueError, match=r"only 1 of 2 copies with key 'ann' are held\. Nothing was deleted"):
        forest.delete(["7", "ann"], sample_weight=[1, 2])
    forest.delete(["ann", "7"])
    assert forest.points_.ravel().tolist() == [2.0, 2.0]
    with pytest.raises(KeyError, match="no point with key 'ann' is held"):
        forest.delete(["ann", 7])
    with pytest.raises(ValueError, match="contains the control character"):
        forest.partial_fit([[1.0]], keys=["a\x1eb"], sample_weight=[2])
    with pytest.raises(ValueError, match="key 7 is already in use"):
        forest.partial_fit([[9.0], [1.0]], keys=["new", 7], sample_weight=[2, 2])
    assert forest.n_seen_ == 7


def test_copies_beyond_a_window_can_be_deleted_by_key():
    forest = StreamingMPF(**SMALL, window=2).partial_fit([[1.0], [2.0]], keys=["ann", "bob"], sample_weight=[3, 1])
    assert forest.points_.ravel().tolist() == [1.0, 2.0]
    assert forest.delete("ann").points_.ravel().tolist() == [2.0]
    table = StreamingMPF(**SMALL, window=Reservoir(5)).fit([[1.0], [2.0]], keys=["ann", "bob"], sample_weight=[4, 9])
    n_bob = int((table.points_ == 2.0).sum())
    assert table.delete("ann" if n_bob < 5 else "bob").n_points_ == (n_bob if n_bob < 5 else 0)


@pytest.mark.parametrize("kind", [StreamingMPF, BatchMPF])
@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1, -1, 1], "the weight of row 1 is -1"),
        ([1, 1, np.nan], "the weight of row 2 is nan"),
        ([1, np.inf, 1], "the weight of row 1 is inf"),
        ([1, 1e10, 1], "the weight of row 1 is 1e\\+10"),
        ([2**30, 2**30, 2**30], "add up to 3.22e\\+09"),
        ([1, 1], "one weight for each of the 3 rows"),
        (2.0, "one weight for each of the 3 rows"),
        (["a", "b", "c"], "sample_weight must be numbers"),
        ([0, 0, 0], "all weights are zero"),
    ],
)
def test_rejects_bad_weights_before_any_change(kind, weights, message):
    forest = kind(**SMALL).fit([[1.0], [2.0], [4.0]])
    before = forest.to_bytes()
    methods = ["fit", "partial_fit", "score_then_learn", "detect_then_learn", "delete_rows"]
    if "zero" in message:
        methods = ["fit"]
    for method in methods:
        if hasattr(forest, method):
            with pytest.raises(ValueError, match=message):
                getattr(forest, method)([[1.0], [2.0], [4.0]], sample_weight=weights)
            assert forest.to_bytes() == before
    with pytest.raises(ValueError, match=r"the weight of row 1 is 0\.5: to delete rows, use whole numbers"):
        forest.delete_rows([[1.0], [2.0]], sample_weight=[1, 0.5])


@pytest.mark.parametrize("kind", [StreamingMPF, BatchMPF])
def test_large_weights_need_no_memory(kind):
    rows = np.random.default_rng(0).normal(size=(1000, 20))
    kind(**SMALL).fit(rows, sample_weight=np.full(1000, 2))  # compiled
    tracemalloc.start()
    forest = kind(**SMALL).fit(rows, sample_weight=np.full(1000, 5000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2e8  # the rows repeated would take 8e8
    assert getattr(forest, "n_seen_", forest.n_points_) == 5_000_000


def test_one_row_can_count_a_billion_times():
    forest = BatchMPF(**SMALL, tree=Tree(domain=[[0.0], [1.0]]))
    forest.fit([[0.2]], sample_weight=[3]).partial_fit([[0.2], [0.9]], sample_weight=[50, 20])
    assert forest.n_points_ == 73
    forest.delete_rows([[0.2], [0.9]], sample_weight=[53, 0])
    assert_array_equal(forest.forest_.counts, BatchMPF(**SMALL, tree=forest.tree).fit([[0.9]] * 20).forest_.counts)


def test_window_by_order_raises_if_weights_need_too_much_memory():
    forest = StreamingMPF(**SMALL, window=10)
    with pytest.raises(MemoryError, match=r"window=\"auto\" or Reservoir"):
        forest.fit(np.zeros((2, 100_000)), sample_weight=[2**29, 2**29])
