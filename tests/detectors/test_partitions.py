"""A forest fitted to a table in parts equals the forest of the whole table, bit for bit."""

from __future__ import annotations

import pickle
from functools import reduce
from operator import add

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from polyaforest import BatchMPF, EpsilonPhi, Reservoir, StreamingMPF, Tree
from polyaforest.detectors import loads
from polyaforest.distributed.passes import fit_in_passes
from polyaforest.forest.stream_checks import check_stream
from tests.effort import examples

pytestmark = pytest.mark.property

N_TREES = 6
KINDS = {
    "streaming": lambda **given: StreamingMPF(n_estimators=N_TREES, **given),
    "reservoir": lambda **given: StreamingMPF(n_estimators=N_TREES, window=Reservoir(7), **given),
    "paper": lambda **given: StreamingMPF(
        n_estimators=N_TREES, tree=Tree(max_depth=6, domain="data", feature_weights=None), score_type="mass", **given
    ),
    "epsilon": lambda **given: StreamingMPF(n_estimators=N_TREES, score_type=EpsilonPhi(0.02, 0.5), **given),
    "batch": lambda **given: BatchMPF(n_estimators=N_TREES, **given),
    "batch, domain": lambda **given: BatchMPF(
        n_estimators=N_TREES, tree=Tree(max_depth=6, domain=[[-2.0] * 3, [2.0] * 3]), **given
    ),
    "batch, closed": lambda **given: BatchMPF(n_estimators=N_TREES, tree=Tree(max_depth=6, domain="data"), **given),
}


@st.composite
def tables(draw):
    """Draw rows, fewer or more than a sample: with ties, equal rows, and missing values in any column."""
    n, seed = draw(st.sampled_from([1, 2, 3, 17, 40, 2500])), draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, 3))
    if draw(st.booleans()):
        rows[:, 1] = rng.integers(-1, 2, n) * -1.0  # with both zeros
    rows = rows[rng.integers(0, n, n)] if draw(st.booleans()) else rows
    share = draw(st.sampled_from([0.0, 0.0, 0.02, 0.4, 0.95]))
    rows[1:][rng.random(rows[1:].shape) < share] = np.nan
    return rows


@st.composite
def partitions(draw, n):
    """Draw a partition of `n` rows into parts, in any order; some parts are empty."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n_parts = draw(st.sampled_from([1, 2, 3, 11]))
    order = rng.permutation(n) if draw(st.booleans()) else np.arange(n)
    parts = np.split(order, np.sort(rng.integers(0, n + 1, n_parts - 1)))
    return [parts[i] for i in rng.permutation(len(parts))]


def sent(thing):
    return pickle.loads(pickle.dumps(thing))


def in_parts(rows, parts, ids=None):
    """A distributed engine: sends every task and result, and adds results as they arrive."""
    ids = np.arange(len(rows)) if ids is None else ids

    def gather(task):
        task = sent(task)
        return reduce(add, (sent(task(np.asfortranarray(rows[part]), ids[part])) for part in parts))

    return gather


def assert_same(one, other, rows):
    for mine, theirs in zip(one.forest_, other.forest_, strict=True):
        assert_array_equal(mine, theirs)
        assert mine.tobytes() == theirs.tobytes()
    assert_array_equal(one.score_samples(rows), other.score_samples(rows))
    assert one.offset_ == other.offset_
    assert_array_equal(one.lifetimes_, other.lifetimes_)
    if not isinstance(one.score_type, EpsilonPhi) and len(rows) > 1:
        assert_array_equal(one.p_value(rows), other.p_value(rows))
    assert one.to_bytes() == other.to_bytes()


@pytest.mark.parametrize("kind", KINDS)
@given(rows=tables(), data=st.data())
@settings(max_examples=examples(60), deadline=None)
def test_table_in_parts_gives_forest_of_whole_table(kind, rows, data):
    given = {"random_state": data.draw(st.integers(0, 9)), "missing": "marginalise"}
    if kind != "epsilon" and len(rows) > 10 and data.draw(st.booleans()):
        given["false_alarm_rate"] = 0.2
    local = KINDS[kind](**given).fit(rows)
    cluster = KINDS[kind](**given)
    parts = data.draw(partitions(len(rows)))
    assert fit_in_passes(cluster, 3, in_parts(rows, parts)) is cluster
    assert_same(local, cluster, rows)
    if isinstance(local, StreamingMPF):
        assert_array_equal(local.points_, cluster.points_)
        assert local.keys_ == cluster.keys_
        check_stream(cluster._stream)
        later = np.random.default_rng(1).normal(size=(30, 3))
        for forest in local, cluster:
            forest.detect_then_learn(later)
            forest.delete(forest.keys_[::2])
            check_stream(forest._stream)
        assert_same(local, cluster, rows)


@pytest.mark.parametrize("kind", ["streaming", "reservoir", "batch"])
@given(rows=tables(), data=st.data())
@settings(max_examples=examples(40), deadline=None)
def test_forest_depends_on_ids_and_not_on_parts(kind, rows, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    ids = rng.choice(2**40, len(rows), replace=False) - 2**39
    forests = [
        fit_in_passes(
            KINDS[kind](random_state=0, missing="marginalise"),
            3,
            in_parts(rows, data.draw(partitions(len(rows))), ids),
        )
        for _ in range(2)
    ]
    assert_same(*forests, rows)
    if isinstance(forests[0], StreamingMPF):
        assert set(forests[0].keys_) <= set(ids.tolist())
        check_stream(forests[0]._stream)
        assert forests[0].insert(rows[0] if not np.isnan(rows[0]).any() else np.zeros(3)) in (len(rows), None)


@pytest.mark.parametrize("kind", ["streaming", "batch"])
def test_missing_seed_is_drawn_once(kind):
    rows = np.random.default_rng(0).normal(size=(50, 3))
    states = [KINDS[kind](random_state=state) for state in (None, np.random.RandomState(3))]
    for forest in states:
        fit_in_passes(forest, 3, in_parts(rows, [np.arange(20), np.arange(20, 50)]))
        assert forest.n_points_ == 50
    local = KINDS[kind](random_state=np.random.RandomState(3)).fit(rows)
    assert_same(local, states[1], rows)
    assert not np.array_equal(states[0].score_samples(rows), local.score_samples(rows))


def test_column_names_come_from_the_frame():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(50, 2)), columns=["a", "b"])
    local = BatchMPF(n_estimators=N_TREES, random_state=0).fit(frame)
    cluster = BatchMPF(n_estimators=N_TREES, random_state=0)

    def gather(task):
        return task(frame[:30], np.arange(30)) + task(frame[:0], np.arange(0)) + task(frame[30:], np.arange(30, 50))

    fit_in_passes(cluster, ["a", "b"], gather)
    assert_same(local, cluster, frame)
    with pytest.raises(ValueError, match="a"):
        fit_in_passes(cluster, ["b", "a"], gather)
    assert_same(local, cluster, frame)


@pytest.mark.parametrize("kind", ["streaming", "batch"])
def test_contamination_uses_sketch_of_scores(kind):
    rows = np.random.default_rng(0).normal(size=(20_000, 3))
    parts = np.split(np.arange(20_000), [0, 500, 9_000, 9_000])
    cluster, local = KINDS[kind](random_state=0, contamination=0.01), KINDS[kind](random_state=0).fit(rows)
    fit_in_passes(cluster, 3, in_parts(rows, parts))
    assert_array_equal(cluster.score_samples(rows), local.score_samples(rows))
    assert_array_equal(cluster.p_value(rows), local.p_value(rows))
    assert 0.0097 < (cluster.predict(rows) == -1).mean() < 0.0103
    assert pickle.loads(pickle.dumps(cluster)).offset_ == cluster.offset_
    assert loads(cluster.to_bytes()).offset_ == cluster.offset_
    before = cluster.offset_
    cluster.partial_fit(rows[:200])
    assert cluster.offset_ != before  # it follows the rows that come later


@pytest.mark.parametrize("kind", ["streaming", "batch"])
def test_contamination_of_few_rows_matches_local_fit(kind):
    rows = np.random.default_rng(0).normal(size=(500, 3))
    given = {"random_state": 0, "contamination": 0.1}
    cluster = fit_in_passes(KINDS[kind](**given), 3, in_parts(rows, [np.arange(100), np.arange(100, 500)]))
    assert_same(KINDS[kind](**given).fit(rows), cluster, rows)


def test_rejects_detectors_that_cannot_be_fitted_in_parts():
    rows = np.random.default_rng(0).normal(size=(50, 3))
    parts = in_parts(rows, [np.arange(25), np.arange(25, 50)])
    for window in (None, 10, Reservoir(10, half_life=5)):
        with pytest.raises(ValueError, match="depends on the order"):
            fit_in_passes(StreamingMPF(window=window, tree=Tree(max_depth=5)), 3, parts)
    with pytest.raises(ValueError, match="id 7 occurs more than once"):
        fit_in_passes(StreamingMPF(), 3, in_parts(rows, [np.arange(50)], np.append(np.arange(49), 7)))
    with pytest.raises(ValueError, match="the table is empty"):
        fit_in_passes(BatchMPF(), 3, in_parts(rows, [np.arange(0)]))
    with pytest.raises(ValueError, match=r"column 1 ranges from .* beyond the domain"):
        fit_in_passes(StreamingMPF(tree=Tree(domain=[[-9, -1, -9], [9, 1, 9]])), 3, parts)
    gaps = np.where(np.arange(3) == 1, np.nan, rows)
    with pytest.raises(ValueError, match="column 1 is missing in all 50 rows"):
        fit_in_passes(BatchMPF(missing="marginalise"), 3, in_parts(gaps, [np.arange(50)]))
    with pytest.raises(ValueError, match=r"row 0, column 1"):
        fit_in_passes(BatchMPF(missing="error"), 3, in_parts(gaps, [np.arange(50)]))
    with pytest.raises(ValueError, match="integers"):
        fit_in_passes(BatchMPF(), 3, in_parts(rows, [np.arange(50)], np.arange(50.0)))
