"""Untrusted stores and first records cannot harm other files and streams."""

import json
import sqlite3
from contextlib import closing

import numpy as np
import pytest
from list_source import ListSource

from polyaforest import ModelFileError, StreamingMPF
from polyaforest.io.outputs import FileLines
from polyaforest.io.records import MOST_COLUMNS, Record, RecordReader
from polyaforest.io.sources import open_source
from polyaforest.judge import open_store, read_notes
from polyaforest.judge.watcher import Watcher
from polyaforest.storage import model_store

pytestmark = pytest.mark.fault

ROWS = np.random.default_rng(4).normal(size=(60, 2)).tolist()
RECORDS = [json.dumps({"host": f"web-{i % 3}", "a": a, "b": b}).encode() for i, (a, b) in enumerate(ROWS)]


def make():
    return StreamingMPF(n_estimators=400, window=10, random_state=0)


def watch(folder, records, said=None, **options):
    """Watch to the end, and return how many records each key has learned."""
    out, bad = FileLines(str(folder / "out")), FileLines(str(folder / "bad"))
    note = (lambda words: None) if said is None else said.append
    with (
        open_store(folder / "m.db", make, notify=note) as store,
        closing(
            Watcher(ListSource(records), RecordReader(key="host"), store, out, bad, notify=note, **options)
        ) as loop,
    ):
        loop.resume()
        loop.run()
        return {key: store[key].detector.n_seen_ for key in store.keys}


def changed(folder, change):
    """Change the notes in the store of a folder."""
    with closing(sqlite3.connect(folder / "m.db", isolation_level=None)) as file:
        notes = json.loads(file.execute("SELECT text FROM notes").fetchone()[0])
        change(notes)
        file.execute("UPDATE notes SET text = ?", (json.dumps(notes).encode(),))


@pytest.mark.parametrize("older", [True, False])
def test_mark_cannot_truncate_file_beside_output(tmp_path, older):
    watch(tmp_path, RECORDS[:30])
    other = tmp_path / "payroll.csv"
    other.write_text("secret\n" * 100)

    def aim(notes):
        notes["is_end"] = False
        mark = {"path": notes["out"]["path"], "inode": other.stat().st_ino, "length": 0}
        notes["out"] = mark if older else {**notes["out"], **mark}

    changed(tmp_path, aim)
    watch(tmp_path, RECORDS)
    assert other.read_text() == "secret\n" * 100


def test_never_truncates_path_other_than_output(tmp_path):
    watch(tmp_path, RECORDS[:30])
    other = tmp_path / "elsewhere"
    other.write_text("mine\n")
    changed(tmp_path, lambda notes: (notes.update(is_end=False), notes["out"].update(path=str(other), length=0)))
    said = []
    watch(tmp_path, RECORDS, said)
    assert other.read_text() == "mine\n"
    assert any(str(other) in words for words in said)


@pytest.mark.parametrize(
    "change",
    [
        lambda notes: notes.update(counts=None),
        lambda notes: notes["counts"].update(records="many"),
        lambda notes: notes["reader"].update(names=["\ud800"]),
        lambda notes: notes["reader"].update(delimiter="::"),
        lambda notes: notes.update(position=[]),
        lambda notes: notes["out"].update(length=-1),
        lambda notes: notes.pop("where"),
    ],
)
def test_rejects_invalid_notes_and_names_file(tmp_path, change):
    watch(tmp_path, RECORDS[:30])
    changed(tmp_path, change)
    with pytest.raises(ModelFileError, match=r"m\.db.* are damaged"):
        watch(tmp_path, RECORDS)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000])
def test_rejects_deeply_nested_notes(tmp_path, text):
    watch(tmp_path, RECORDS[:30])
    with closing(sqlite3.connect(tmp_path / "m.db", isolation_level=None)) as file:
        file.execute("UPDATE notes SET text = ?", (text.encode(),))
    with pytest.raises(ModelFileError, match=r"m\.db"):
        read_notes(tmp_path / "m.db")


def test_rejects_store_in_other_encoding(tmp_path):
    watch(tmp_path, RECORDS[:30])
    with closing(sqlite3.connect(tmp_path / "m.db")) as old:
        script = "\n".join(old.iterdump())
    (tmp_path / "m.db").unlink()
    with closing(sqlite3.connect(tmp_path / "m.db", isolation_level=None)) as new:
        new.execute("PRAGMA encoding = 'UTF-16'")
        new.executescript(script)
        new.execute(f"PRAGMA application_id = {model_store._APPLICATION}")
        new.execute(f"PRAGMA user_version = {model_store._VERSION}")
    with pytest.raises(ModelFileError, match="encoding"):
        watch(tmp_path, RECORDS)


def test_damaged_pages_affect_one_key_and_old_file_is_kept(tmp_path):
    watch(tmp_path, RECORDS[:30])
    content = bytearray((tmp_path / "m.db").read_bytes())
    page = int.from_bytes(content[16:18], "big") or 65536
    with closing(sqlite3.connect(tmp_path / "m.db")) as file:
        (block,) = file.execute("SELECT model FROM models WHERE key = 'web-1'").fetchone()
    at = content.find(block[len(block) // 2 :][:32])
    assert at > page
    assert len(block) > 3 * page  # so that it covers several pages
    content[at // page * page : at // page * page + 4] = b"\xff\xff\xff\xff"  # the number of its next page
    (tmp_path / "m.db").write_bytes(content)
    said = []
    assert watch(tmp_path, RECORDS, said) == {"web-0": 20, "web-1": 10, "web-2": 20}
    assert any("web-1" in words and "m.db.damaged-1" in words for words in said)
    assert (tmp_path / "m.db.damaged-1").exists()
    assert watch(tmp_path, RECORDS) == {"web-0": 20, "web-1": 10, "web-2": 20}


def test_unsavable_model_affects_its_key_only(tmp_path, monkeypatch):
    to_bytes = StreamingMPF.to_bytes

    def refuse(self, notes=None):
        if self.n_seen_ == 10 and self.points_[0, 0] == ROWS[1][0]:  # of web-1
            raise ValueError("the header takes too many bytes")
        return to_bytes(self, notes)

    monkeypatch.setattr(StreamingMPF, "to_bytes", refuse)
    said = []
    watch(tmp_path, RECORDS[:30], said)
    assert any("'web-1' cannot be saved" in words for words in said)
    assert read_notes(tmp_path / "m.db")[1] == ["web-0", "web-2"]


def test_out_of_memory_for_one_model_affects_its_key_only(tmp_path, monkeypatch):
    judge = StreamingMPF.detect_then_learn

    def starve(self, rows, **labels):
        if ROWS[31][0] in rows.values[:, 0]:  # of web-1
            raise MemoryError("Unable to allocate 9 TiB")
        return judge(self, rows, **labels)

    monkeypatch.setattr(StreamingMPF, "detect_then_learn", starve)
    learned = watch(tmp_path, RECORDS)
    assert learned["web-0"] == learned["web-2"] == 20
    assert learned["web-1"] == 19


@pytest.mark.parametrize(
    "record",
    [
        {"p" * 2000: {f"a{i}": i for i in range(1000)}},
        {f"a{i}": i for i in range(MOST_COLUMNS + 1)},
    ],
    ids=["names that multiply", "columns"],
)
def test_first_record_with_too_many_names_is_invalid(record):
    reader = RecordReader()
    reason = reader.parse(Record("1", json.dumps(record).encode()))
    assert isinstance(reason, str)
    assert reader.names == []
    assert reader.parse(Record("2", b'{"a": 1}')).values == [1.0]


def test_continues_after_truncated_log(tmp_path):
    log = tmp_path / "log"
    (tmp_path / "log.1").write_text('{"a": 1}\n')
    log.write_text('{"a": 2}\n{"a": 3}\n')
    with closing(open_source(str(log), follow=True)) as source:
        while source.read(10, 0.1):
            pass
        log.write_text('{"a": 4}\n')
        while source.read(10, 0.1):
            pass
        position = json.loads(json.dumps(source.position))
    with closing(open_source(str(log), follow=True)) as source:
        source.seek(position)


def test_unfitted_models_do_not_accumulate_in_memory():
    with open_store(None, make, max_bytes=200_000) as store:
        for i in range(1000):
            store[f"key {i}"]
        assert store.n_in_memory < 50
