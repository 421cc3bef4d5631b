"""Damaged or hostile model stores: a damaged model affects one stream, and no foreign schema is run."""

import sqlite3
import struct
from pathlib import Path

import numpy as np
import orjson
import pytest
from effort import FULL, PROFILE

from polyaforest import BatchMPF, ModelFileError, StreamingMPF, Tree, load
from polyaforest.judge import open_store, read_damaged, read_model, read_notes

pytestmark = pytest.mark.fault

GOLDEN = Path(__file__).parents[1] / "golden"
ROWS = np.random.default_rng(0).normal(size=(30, 2))


def forest():
    return StreamingMPF(n_estimators=2, window=8, random_state=0)


@pytest.fixture
def path(tmp_path):
    """Return a store with the models a, b and c."""
    path = tmp_path / "m.models"
    with open_store(path, forest) as store:
        for key in "abc":
            store[key].detector.detect_then_learn(ROWS)
        store.commit({"n": 1})
    return path


def altered(path, *statements):
    file = sqlite3.connect(path, isolation_level=None)
    for statement, *values in statements:
        file.execute(statement, *values)
    file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    file.close()


def saved(model, tmp_path, **options):
    model.save(tmp_path / "one", **options)
    return (tmp_path / "one").read_bytes()


# ---- one damaged model -----------------------------------------------------------------------------------------------

DAMAGE = {
    "cut short": ("UPDATE models SET model = substr(model, 1, 1000) WHERE key = 'b'",),
    "empty": ("UPDATE models SET model = x'' WHERE key = 'b'",),
    "a text": ("UPDATE models SET model = 'PK' WHERE key = 'b'",),
    "a number": ("UPDATE models SET model = 7 WHERE key = 'b'",),
    "zeros": ("UPDATE models SET model = zeroblob(20000000) WHERE key = 'b'",),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damaged_model_affects_its_stream_only(path, damage):
    expected = read_model(path, "a").score_samples(ROWS)
    altered(path, damage)
    notices = []
    with open_store(path, forest, notify=notices.append) as store:
        assert not hasattr(store["b"].detector, "forest_")
        assert np.array_equal(store["a"].detector.score_samples(ROWS), expected)
        store["b"].detector.partial_fit(ROWS[:3])
        store.commit({"n": 2})
    assert len(notices) == 1
    assert "'b'" in notices[0]
    assert repr(str(path)) in notices[0]
    assert read_notes(path) == ({"n": 2}, ["a", "b", "c"])
    assert read_model(path, "b").n_points_ == 3
    assert list(read_damaged(path)) == ["b"]
    file = sqlite3.connect(path)
    ((kept,),) = file.execute("SELECT model FROM damaged")
    file.close()
    wanted = damage[0].partition("SET model = ")[2].partition(" WHERE")[0]
    assert wanted.startswith("substr") or kept == {"x''": b"", "'PK'": "PK", "7": 7}.get(wanted, bytes(20_000_000))


def test_sets_nothing_aside_before_commit(path):
    altered(path, DAMAGE["empty"])
    with open_store(path, forest) as store:
        store["b"]
    assert read_notes(path)[1] == ["a", "b", "c"]
    assert read_damaged(path) == {}


@pytest.mark.parametrize(
    ("make", "notes"),
    [
        (lambda: BatchMPF(n_estimators=1, tree=Tree(max_depth=2)).fit(ROWS), {}),
        (lambda: forest().fit(ROWS), {"rows": "7"}),
        (lambda: forest().fit(ROWS), {"events": {"merge": True, "row": None, "event": None}}),
        (lambda: forest().fit(ROWS), {"events": {"merge": 3, "row": 7, "event": [1, 2]}}),
        (lambda: forest().fit(ROWS), {"events": {"merge": 3, "row": 7, "event": [{"is": None}] * 9}}),
        (lambda: forest().fit(ROWS), {"events": 1}),
        (lambda: load(GOLDEN / "2-table.mpf"), {}),  # a table of an earlier version, which cannot learn
    ],
)
def test_sets_aside_model_that_follows_no_stream(path, tmp_path, make, notes):
    altered(path, ("UPDATE models SET model = ? WHERE key = 'b'", (saved(make(), tmp_path, notes=notes),)))
    notices = []
    with open_store(path, forest, notify=notices.append) as store:
        assert not hasattr(store["b"].detector, "forest_")
    assert len(notices) == 1
    with pytest.raises(ModelFileError, match=r"the model of 'b' in .*m\.models"):
        read_model(path, "b")


@pytest.mark.parametrize("key", [b"b", None, b"\xff"])
def test_sets_aside_key_that_is_not_text(path, key):
    altered(path, ("UPDATE models SET key = ? WHERE key = 'b'", (key,)))
    notices = []
    with open_store(path, forest, notify=notices.append) as store:
        assert store.keys == ["a", "c"]
        store.commit({})
    assert "its key is not text" in notices[0]
    assert len(read_damaged(path)) == 1
    assert read_notes(path)[1] == ["a", "c"]


def test_sets_aside_key_that_is_not_unicode(path):
    altered(path, ("UPDATE models SET key = CAST(x'ff62' AS TEXT) WHERE key = 'b'",))
    assert read_notes(path)[1] == ["a", "c"]
    with open_store(path, forest) as store:
        assert store.keys == ["a", "c"]


def test_deleting_key_deletes_its_damaged_model(path):
    altered(path, DAMAGE["cut short"])
    with open_store(path, forest) as store:
        store["b"]
        store.commit({})
    with open_store(path, forest) as store:
        store.delete("b")
        store.commit({})
    assert read_damaged(path) == {}


@pytest.mark.parametrize("notes", [b"{", b"[]", b"", b"\xff", 7, "text"])
def test_reports_damaged_notes_with_file(path, notes):
    altered(path, ("UPDATE notes SET text = ?", (notes,)))
    for use in (lambda: open_store(path, forest), lambda: read_notes(path)):
        with pytest.raises(ModelFileError, match=r"the notes in .*m\.models' are damaged"):
            use()


# ---- through the commands --------------------------------------------------------------------------------------------


def test_watch_continues_without_damaged_model_and_commands_name_it(programs, tmp_path):
    def polyaforest(*args, text=""):
        done = programs.run(*args, text=text)
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    path, lines = tmp_path / "hosts.models", ""
    for i in range(40):
        lines += "".join(f'{{"host":"{host}","cpu":{i % 7},"id":"{host}{i}"}}\n' for host in "abc")
    watch = ("watch", "-m", path, "--by", "host", "--id", "id", "--trees", 3, "--quarantine", tmp_path / "q")
    code, _, said = polyaforest(*watch, text=lines)
    assert code == 0, said
    altered(path, DAMAGE["cut short"])
    code, _, said = polyaforest("info", path, "--by", "b")
    assert code == 3
    assert "'b'" in said
    assert "hosts.models" in said
    rows = tmp_path / "rows.csv"
    rows.write_text("cpu\n1\n2\n")
    for command in (["score"], ["explain", "--row", 1]):
        code, _, said = polyaforest(*command, rows, "-m", path, "--by", "b")
        assert (code, "the model of 'b'" in said) == (3, True), said
    code, _, said = polyaforest("forget", "-m", path, "--id", "a3")
    assert code == 0, said
    assert "the model of 'b'" in said
    code, out, said = polyaforest(*watch, text=lines)
    assert code == 0, said
    assert said.count("the model of 'b'") == 1
    assert "hosts.models" in said
    assert len(out.splitlines()) == 120
    answers = [orjson.loads(line) for line in out.splitlines()]
    assert {answer["p_value"] for answer in answers if answer["key"] == "b"} >= {1.0}  # it started over
    code, out, _ = polyaforest("info", path)
    assert code == 0
    assert "damaged" in out
    assert "'b'" in out
    code, _, said = polyaforest("forget", "-m", path, "--by", "b", "--all")
    assert code == 0, said
    assert "damaged" not in polyaforest("info", path)[1]


# ---- other schemas ---------------------------------------------------------------------------------------------------

ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"
HARM = {
    "an endless view": [
        ("DROP TABLE models",),
        (f"CREATE VIEW models AS {ENDLESS} SELECT x AS key, x AS model FROM n",),
    ],
    "endless notes": [("DROP TABLE notes",), (f"CREATE VIEW notes AS {ENDLESS} SELECT 1 AS one, x AS text FROM n",)],
    "a trigger": [("CREATE TRIGGER t AFTER INSERT ON models BEGIN DELETE FROM models; END",)],
    "an endless trigger": [
        (f"CREATE TRIGGER t AFTER INSERT ON notes BEGIN INSERT INTO models {ENDLESS} SELECT x, x FROM n; END",)
    ],
    "another view": [("CREATE VIEW v AS SELECT 1",)],
    "another table": [("CREATE TABLE t (x)",)],
    "an index": [("CREATE INDEX i ON models (length(model))",)],
    "a generated column": [
        ("DROP TABLE models",),
        ("CREATE TABLE models (key TEXT PRIMARY KEY, model BLOB AS (zeroblob(1000000)) STORED)",),
    ],
    "a default": [("DROP TABLE models",), ("CREATE TABLE models (key TEXT PRIMARY KEY, model BLOB DEFAULT 'x')",)],
    "a table like another": [
        ("DROP TABLE models",),
        ("CREATE TABLE models (key TEXT PRIMARY KEY,model BLOB NOT NULL)",),
    ],
    "a virtual table": [("CREATE VIRTUAL TABLE v USING fts5(x)",)],
    "nothing": [("DROP TABLE models",), ("DROP TABLE notes",)],
    "a wrong table of damaged models": [("CREATE VIEW damaged AS SELECT 1 AS key, 2 AS model, 3 AS reason",)],
    "a schema too long": [("CREATE TABLE t (x /*" + "x" * 100_000 + "*/)",)],
    "many tables": [(f"CREATE TABLE t{i} (x)",) for i in range(100)],
}


@pytest.mark.parametrize("statements", HARM.values(), ids=HARM)
def test_rejects_other_schema_and_leaves_file_unchanged(path, statements):
    altered(path, *statements)
    before = path.read_bytes()
    for use in (
        lambda: read_notes(path),
        lambda: read_model(path, "a"),
        lambda: read_damaged(path),
        lambda: open_store(path, forest),
    ):
        with pytest.raises(ModelFileError, match=r"m\.models"):
            use()
    assert path.read_bytes() == before


def interior(child, n_cells=1000, size=16384):
    """A page of an index whose entries all lead to the page `child`: SQLite's file format, section 1.6."""
    cell = struct.pack(">IB3Bc", child, 4, 3, 15, 9, b"a")  # a record of 4 bytes: the key "a", of row 1
    start = size - len(cell)
    page = bytearray(struct.pack(">BHHHBI", 2, 0, n_cells, start, 0, child))
    page += struct.pack(">H", start) * n_cells
    return bytes(page).ljust(start, b"\0") + cell


def test_interrupts_endless_page_tree(path):
    altered(path, ("DELETE FROM models WHERE key != 'a'",), ("VACUUM",))
    file = sqlite3.connect(path)
    (root,) = file.execute("SELECT rootpage FROM sqlite_master WHERE name = 'sqlite_autoindex_models_1'").fetchone()
    file.close()
    pages = path.read_bytes()
    n_pages = len(pages) // 16384
    more = [interior(n_pages + 2 + i) for i in range(7)]  # each links to the next 1,000 times
    leaf = pages[16384 * (root - 1) : 16384 * root]
    pages = pages[: 16384 * (root - 1)] + interior(n_pages + 1) + pages[16384 * root :] + b"".join(more) + leaf
    path.write_bytes(pages[:28] + struct.pack(">I", n_pages + 8) + pages[32:])
    for use in (lambda: read_notes(path), lambda: open_store(path, forest)):
        with pytest.raises(ModelFileError, match="longer than any valid file"):
            use()


def test_reports_overwritten_pages_with_file(path):
    whole = path.read_bytes()
    rng, notices = np.random.default_rng(1), []
    for _ in range(150 if PROFILE == FULL else 50):
        place = int(rng.integers(100, len(whole) - 64))
        n = int(rng.choice([1, 8, 64]))
        path.write_bytes(whole[:place] + rng.bytes(n) + whole[place + n :])
        for key in "abc":
            try:
                scores = read_model(path, key).score_samples(ROWS[:2])
            except KeyError:  # the row is gone
                continue
            except (ModelFileError, OSError) as problem:
                notices.append(str(problem))
            else:
                assert np.isfinite(scores).all()
    assert notices
    assert all("m.models" in words for words in notices)


@pytest.mark.parametrize("name", ["a?mode=ro", "b#c", "100%25.models", "sp ace", "ü", "file:x", "a&b=c"])
def test_quotes_special_characters_in_file_names(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with open_store(name, forest) as store:
        store["a"].detector.partial_fit(ROWS)
        store.commit({"n": 3})
    assert Path(name).exists()
    assert read_notes(name) == ({"n": 3}, ["a"])
    with open_store(name, forest) as store:
        assert store.keys == ["a"]
