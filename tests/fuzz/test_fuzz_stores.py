"""`watch` rejects a damaged store by name, or continues with its intact models."""

import json
import sqlite3
import tempfile
from contextlib import closing
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from crafted import placed, places
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from list_source import ListSource

from polyaforest import ModelFileError, StreamingMPF
from polyaforest.io.outputs import FileLines
from polyaforest.io.records import RecordReader
from polyaforest.judge import open_store, read_model, read_notes
from polyaforest.judge.watcher import Watcher

pytestmark = pytest.mark.fuzz

ROWS = np.random.default_rng(2).normal(size=(40, 2)).tolist()
RECORDS = [json.dumps({"host": f"web-{i % 3}", "a": a, "b": b}).encode() for i, (a, b) in enumerate(ROWS)]
STATEMENTS = [
    "DROP TABLE notes",
    "DELETE FROM notes",
    "UPDATE notes SET text = 7",
    "UPDATE notes SET text = '[]'",
    "UPDATE models SET model = zeroblob(1000) WHERE key = 'web-1'",
    "UPDATE models SET model = 'text' WHERE key = 'web-1'",
    "UPDATE models SET key = x'ff' WHERE key = 'web-1'",
    "CREATE VIEW more AS SELECT 1",
    "CREATE TRIGGER t AFTER INSERT ON models BEGIN DELETE FROM models; END",
    "PRAGMA user_version = 99",
    "PRAGMA application_id = 1",
    "INSERT INTO models VALUES ('new', x'00')",
]
statements = st.sampled_from(STATEMENTS).map(lambda text: ("sql", text, None))
overwritten = st.tuples(st.just("bytes"), st.integers(0, 2**20), st.binary(min_size=1, max_size=40))
cut = st.tuples(st.just("cut"), st.integers(0, 2**20), st.none())
values = (
    st.sampled_from(["\ud800", "../../etc", 2**63, -1, 0.5, 1e308])
    | st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.text(max_size=3)
    | st.just([])
    | st.just({})
)
noted = st.tuples(st.just("note"), st.integers(0, 10**6), values)


def make():
    return StreamingMPF(n_estimators=2, window=10, random_state=0)


def watch(folder, records):
    out, bad = FileLines(str(folder / "out")), FileLines(str(folder / "bad"))
    source, reader = ListSource(records, at_once=7), RecordReader(key="host")
    with (
        open_store(folder / "store.db", make) as store,
        closing(Watcher(source, reader, store, out, bad, writes_events=True)) as loop,
    ):
        loop.resume()
        loop.run()


@cache
def whole():
    """The bytes of a good store."""
    with tempfile.TemporaryDirectory() as folder:
        watch(Path(folder), RECORDS[:20])
        return (Path(folder) / "store.db").read_bytes()


def harm(path, how, what, value):
    """Do something to the store at a path."""
    if how == "bytes":
        content = bytearray(path.read_bytes())
        at = what % len(content)
        content[at : at + len(value)] = value
        path.write_bytes(content)
    elif how == "cut":
        path.write_bytes(path.read_bytes()[: what % len(whole())])
    else:
        with closing(sqlite3.connect(path, isolation_level=None)) as file:
            if how == "sql":
                file.execute(what)
                return
            notes = json.loads(file.execute("SELECT text FROM notes").fetchone()[0])
            known = places(notes)
            text = json.dumps(placed(notes, known[what % len(known)], value)).encode()
            file.execute("UPDATE notes SET text = ?", (text,))


@settings(max_examples=examples(150))
@given(done=statements | overwritten | cut | noted)
def test_changed_store_is_rejected_or_continues(done):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "store.db"
        path.write_bytes(whole())
        harm(path, *done)
        try:
            watch(folder, RECORDS)
        except (ModelFileError, OSError) as problem:
            assert "store.db" in str(problem)  # noqa: PT017 - it may be raised or not
            return
        assert {"web-0", "web-2"} <= set(read_notes(path)[1])
        for host in ("web-0", "web-2"):
            assert read_model(path, host).n_seen_ > 0
