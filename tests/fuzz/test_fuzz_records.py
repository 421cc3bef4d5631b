"""`watch` survives any lines: each record is scored or quarantined, and all numbers are finite."""

import json
import tempfile
from math import isfinite
from pathlib import Path

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from list_source import ListSource

from polyaforest import SeriesMPF, StreamingMPF
from polyaforest.io.outputs import FileLines
from polyaforest.io.records import RecordReader
from polyaforest.judge import open_store, read_model, read_notes
from polyaforest.judge.watcher import Cadence, Watcher

pytestmark = pytest.mark.fuzz

numbers = st.one_of(
    st.floats(-10, 10),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0, -0.0, 1e-310, 5e-324, 1e-100, 1e100, 1.0000001e100, 1e308, 2**53 + 1, True]),
)
values = numbers | st.none() | st.text(max_size=5) | st.lists(st.integers(), max_size=2)
names = st.sampled_from(["a", "b"])
labels = st.sampled_from(["x", "y", "", "\x1b[31m", "é", "__proto__"]) | st.text(max_size=4) | st.integers()
nested = st.recursive(
    values,
    lambda inner: st.dictionaries(st.text(max_size=3) | st.sampled_from(["a", "b.c"]), inner, max_size=4),
    max_leaves=8,
)
objects = st.fixed_dictionaries(
    {}, optional={"a": values, "b": nested, "host": labels, "id": labels, "ts": numbers | st.text(max_size=8)}
)
usual = st.fixed_dictionaries({"a": st.floats(-5, 5), "b": st.integers(0, 9), "host": st.sampled_from(["x", "y"])})
raw = st.binary(max_size=30) | st.text(max_size=30).map(lambda text: text.encode("utf-8", "surrogatepass"))
lines = usual.map(json.dumps).map(str.encode) | objects.map(json.dumps).map(str.encode) | raw


def watch(folder, records, at_once, shingle, labelled, writes_events=False):
    """Watch records to their end, or resume; return the counts."""

    def make():
        forest = StreamingMPF(n_estimators=3, window=20, missing="marginalise", random_state=0)
        return forest if shingle is None else SeriesMPF(forest, shingle=shingle)

    out, bad = FileLines(str(folder / "out")), FileLines(str(folder / "bad"))
    reader = RecordReader(**({"key": "host", "id": "id"} if labelled else {}))
    with open_store(folder / "models", make) as store:
        source, cadence = ListSource(records, at_once=at_once), Cadence(records=5)
        loop = Watcher(source, reader, store, out, bad, cadence=cadence, writes_events=writes_events)
        loop.resume()
        loop.run()
        loop.close()
    return loop.counts


def written(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@settings(max_examples=examples(60))
@given(
    records=st.lists(lines, max_size=60),
    at_once=st.sampled_from([1, 5, 40]),
    shingle=st.sampled_from([None, None, 1, 3]),
    labelled=st.booleans(),
)
def test_no_record_stops_the_stream(records, at_once, shingle, labelled):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        counts = watch(folder, records, at_once, shingle, labelled)
        out, bad = written(folder / "out"), written(folder / "bad")
        assert len(out) + len(bad) == counts.records
        assert len(bad) == counts.bad
        assert all(line["reason"] for line in bad)
        for line in out:
            assert shingle is not None or isfinite(line["score"])
            assert line["score"] is None or isfinite(line["score"])
            assert line["p_value"] is None or 0 < line["p_value"] <= 1
        assert watch(folder, records, at_once, shingle, labelled) == counts  # there is nothing left to do
        assert (written(folder / "out"), written(folder / "bad")) == (out, bad)
        for key in read_notes(folder / "models")[1]:
            assert read_model(folder / "models", key).n_seen_ > 0


@settings(max_examples=examples(25))
@given(records=st.lists(lines, max_size=60), at_once=st.sampled_from([1, 40]), labelled=st.booleans())
def test_no_record_stops_the_events(records, at_once, labelled):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        counts = watch(folder, records, at_once, None, labelled, writes_events=True)
        events = [line["event"] for line in written(folder / "out")]
        ended = [event for event in events if event["state"] == "ended"]
        assert sum(event["n_flagged"] for event in ended) == counts.anomalies
        assert len(events) == 2 * len(ended)
        assert watch(folder, records, at_once, None, labelled, writes_events=True) == counts
