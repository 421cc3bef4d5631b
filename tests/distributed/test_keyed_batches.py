"""Streams by key in batches: however rows are cut into batches, the results are those of one process."""

from copy import deepcopy

import numpy as np
import polars as pl
import pytest
from effort import examples
from forests import made
from hypothesis import given, settings
from hypothesis import strategies as st

from polyaforest import BatchMPF, SeriesMPF, StreamingMPF, Window
from polyaforest.detectors import loads
from polyaforest.detectors.keyed import check_follows_streams
from polyaforest.distributed.keyed import KeyedJudge, State, Status, default_detector
from polyaforest.settings.stream import StreamSettings
from polyaforest.tables.rows import StreamRow
from polyaforest.tables.validation import NamedRows

pytestmark = pytest.mark.property

NEW = State(None, None)
SMALL = {"n_estimators": 3, "window": 12, "random_state": 0, "missing": "marginalise"}
TEMPLATES = {
    "rows": lambda: made(StreamingMPF, **SMALL),
    "shingles": lambda: SeriesMPF(made(StreamingMPF, **SMALL), shingle=2),
    "contexts": lambda: SeriesMPF(made(StreamingMPF, **SMALL)),
}
values = st.floats(-5, 5) | st.just(np.nan) | st.sampled_from([1e200, np.inf, -1e101])
rows = st.lists(st.tuples(values, values), min_size=1, max_size=40)


def run(judge, arrivals, cuts):
    """The state and all results after batches that end at `cuts`."""
    state, results = NEW, []
    for start, stop in zip([0, *cuts], [*cuts, len(arrivals)], strict=True):
        state, found = judge.judge(state, arrivals[start:stop][::-1])
        results += found
    return state, results


@settings(max_examples=examples(150))
@given(rows=rows, data=st.data(), kind=st.sampled_from(sorted(TEMPLATES)))
def test_batches_match_single_process(rows, data, kind):
    arrivals = [StreamRow(row, 10.0 * i, place=3 * i) for i, row in enumerate(rows)]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    judge = KeyedJudge(["a", "b"], TEMPLATES[kind](), has_times=True)
    state, results = run(judge, arrivals, cuts)
    assert [result.order for result in results] == [arrival.place for arrival in arrivals]
    local = TEMPLATES[kind]()
    for arrival, result in zip(arrivals, results, strict=True):
        if result.status is Status.BAD:
            assert result.error
            assert result[2:6] == (None,) * 4
            continue
        assert result.status is Status.JUDGED
        given = NamedRows(np.array([arrival.values]), ["a", "b"])
        found = local.detect_then_learn(given, times=np.array([arrival.time]), explain=True)
        mine = [np.nan if part is None else part for part in result[2:5]]
        np.testing.assert_array_equal(mine, [part[0] for part in found[:3]])
        assert (result.reasons is not None) == bool(found.is_anomaly[0])
        if result.reasons is not None:
            assert result.reasons == found.explanations[0].to_json()
    usable = [all(np.isnan(row)) or np.nanmax(np.abs(row)) > 1e100 for row in rows]
    if kind != "rows":  # which rejects gaps before there is a row to impute from
        assert [result.status is Status.BAD for result in results] == usable
    assert (state.model is None) == (not local.is_fitted)
    if state.model is not None:
        assert state.model == local.to_bytes()
    assert state.latest == arrivals[-1].place


@settings(max_examples=examples(50))
@given(
    rows=st.lists(st.tuples(st.floats(-5, 5), st.sampled_from(["eu", "us", "", None])), min_size=1, max_size=30),
    data=st.data(),
)
def test_batches_with_categories_match_single_process(rows, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    judge = KeyedJudge(["zone", "a"], TEMPLATES["rows"](), categories=["zone"])
    arrivals = [judge.row(i, [number], [text], 0.0) for i, (number, text) in enumerate(rows)]
    state, results = run(judge, arrivals, cuts)
    local = TEMPLATES["rows"]()
    for result, (number, text) in zip(results, rows, strict=True):
        if result.status is Status.BAD:  # a gap, with nothing to fill it from
            assert not local.is_fitted
            continue
        given = pl.DataFrame({"zone": pl.Series([text], dtype=pl.Categorical), "a": [number]})
        found = local.detect_then_learn(given, explain=True)
        np.testing.assert_array_equal(
            [np.nan if part is None else part for part in result[2:5]], [p[0] for p in found[:3]]
        )
        assert result.reasons == (found.explanations[0].to_json() if found.is_anomaly[0] else None)
    assert state.model == (local.to_bytes() if local.is_fitted else None)


def test_rows_before_last_are_late_and_not_learned():
    judge = KeyedJudge(["a"], made(StreamingMPF, **SMALL))
    state, _ = judge.judge(NEW, [StreamRow((1.0,), place=5), StreamRow((2.0,), place=7)])
    after, results = judge.judge(
        state,
        [
            StreamRow((3.0,), place=8),
            StreamRow((9.0,), place=6),
            StreamRow((9.0,), place=7),
            StreamRow((9.0,), place=8),
        ],
    )
    assert [(result.order, result.status) for result in results] == [
        (6, "late"),
        (7, "late"),
        (8, "late"),
        (8, "judged"),
    ]
    assert "order 7 came earlier" in results[0].error
    assert loads(after.model).n_seen_ == 3
    assert judge.judge(state, [StreamRow((3.0,), place=8)])[0] == after  # a repeated task


def test_rows_without_order_or_time_are_bad():
    judge = KeyedJudge(["a"], made(StreamingMPF, **SMALL), has_times=True)
    state, results = judge.judge(NEW, [judge.row(None, [1.0], [], 0.0), judge.row(1, [1.0], [], np.nan)])
    assert [(result.status, result.error) for result in results] == [
        ("bad", "order is missing"),
        ("bad", "time is missing"),
    ]
    assert state == NEW


class Faulty(StreamingMPF):
    """Fails halfway on rows above 100."""

    def detect_then_learn(self, X, **options):
        detected = super().detect_then_learn(X, **options)
        if (X.values > 100).any():
            raise RuntimeError("out of order")
        return detected


def test_failing_detector_loses_only_the_row(monkeypatch):
    saved = {}

    def to_bytes(self):
        block = str(self.n_seen_).encode()
        saved[block] = self
        return block

    monkeypatch.setattr("polyaforest.distributed.keyed.loads", lambda block: deepcopy(saved[block]))
    monkeypatch.setattr(Faulty, "to_bytes", to_bytes)
    judge = KeyedJudge(["a"], Faulty(n_estimators=3, window=12, random_state=0))
    state, _ = judge.judge(NEW, [StreamRow((float(i),), place=i) for i in range(3)])
    state, results = judge.judge(
        state, [StreamRow((3.0,), place=3), StreamRow((101.0,), place=4), StreamRow((4.0,), place=5)]
    )
    assert [result.status for result in results] == ["judged", "bad", "judged"]
    assert results[1].error == "RuntimeError: out of order"
    wanted = StreamingMPF(n_estimators=3, window=12, random_state=0)
    given = NamedRows(np.array([[0.0], [1], [2], [3], [4]]), ["a"])
    assert wanted.detect_then_learn(given).scores[-1] == results[2].score
    assert saved[state.model].n_seen_ == 5


def test_default_detector_is_that_of_watch():
    watch, model = StreamSettings(), default_detector()
    assert (model.n_estimators, model.window, model.random_state) == (watch.trees, watch.window, watch.seed)
    assert model.missing == "impute"


@pytest.mark.parametrize(
    ("detector", "words"),
    [
        (StreamingMPF(), "set random_state, as in StreamingMPF"),
        (SeriesMPF(), r"as in SeriesMPF\(StreamingMPF\(random_state=0\)\)"),
        (StreamingMPF(window=Window(duration=3.0), random_state=0), "name the timestamp column"),
        (StreamingMPF(n_estimators=0, random_state=0), "n_estimators"),
    ],
)
def test_unsuitable_detector_is_rejected(detector, words):
    with pytest.raises(ValueError, match=words):
        check_follows_streams(detector, has_times=False)


def test_other_detectors_are_rejected():
    with pytest.raises(TypeError, match="BatchMPF"):
        check_follows_streams(BatchMPF(), has_times=True)
