"""Files are absent or complete when a process is killed at any step of creating them."""

import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from effort import examples
from steps import STRIDE, Killed

from polyaforest import ModelFileError, StreamingMPF, load
from polyaforest.cli._demo import NAME, example_text, write_example
from polyaforest.io.errors import BadInput
from polyaforest.judge import open_store, read_damaged, read_model, read_notes
from polyaforest.service.database import Database
from polyaforest.storage import databases, model_store

pytestmark = pytest.mark.fault

ROWS = np.random.default_rng(0).normal(size=(30, 2))


def forest():
    return StreamingMPF(n_estimators=2, window=8, random_state=0)


@pytest.fixture(scope="module")
def killed():
    made = Killed()
    yield made
    made.close()


def fill(path, n=1):
    """Create a store with the models a, b and c."""
    with open_store(path, forest) as store:
        for key in "abc":
            store[key].detector.partial_fit(ROWS)
        store.commit({"n": n})


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# ---- creation of a store ---------------------------------------------------------------------------------------------

CREATE = """
with open_store("m", forest) as store:
    store["a"].detector.partial_fit(ROWS)
    store.commit({"n": 1})
"""


def test_store_is_absent_or_complete_when_killed_at_any_step(killed, tmp_path):
    found = []
    for folder in killed.at_each_step(CREATE, tmp_path):
        found.append((folder / "m").exists())
        if found[-1]:
            assert read_notes(folder / "m") in (({}, []), ({"n": 1}, ["a"]))
        with open_store(folder / "m", forest) as store:
            assert store.keys == (["a"] if store.notes else [])
            store.commit({"n": 2})
        assert read_notes(folder / "m")[0] == {"n": 2}
        assert names(folder) == ["m", "m-lock"]
    assert found == sorted(found)  # once created, it stays
    assert min(found.count(True), found.count(False)) > 8 // STRIDE  # steps before and after


RACE = """
gate, opener = os.pipe()
for name in "xy":
    if not os.fork():
        signal.alarm(60)
        os.close(opener)
        os.read(gate, 1)  # until the other process is ready too
        try:
            with open_store("m", forest) as store:
                store.commit({"by": name})
                while not os.path.exists("loser"):
                    time.sleep(0.001)
        except BlockingIOError:
            os.mkdir("loser")
        os._exit(0)
os.close(opener)
assert [os.wait()[1] for _ in "xy"] == [0, 0]
"""


@pytest.mark.parametrize("turn", range(examples(50)))
def test_one_of_two_concurrent_creators_gets_the_store(killed, tmp_path, turn):
    assert not killed.run(RACE, tmp_path)
    assert read_notes(tmp_path / "m")[0] in ({"by": "x"}, {"by": "y"})
    assert names(tmp_path) == ["loser", "m", "m-lock"]


def test_database_published_first_by_another_process_is_kept(tmp_path):
    path = str(tmp_path / "d")
    first, second = (databases.build(path, lambda file, n=n: file.execute(f"CREATE TABLE t{n} (x)")) for n in (1, 2))
    databases.publish(first, path)
    with pytest.raises(FileExistsError):
        databases.publish(second, path)
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("SELECT name FROM sqlite_master").fetchall() == [("t1",)]
    assert names(tmp_path) == ["d"]


def test_database_is_renamed_on_file_systems_without_hard_links(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)  # as on FAT
    fill(tmp_path / "m")
    assert read_notes(tmp_path / "m") == ({"n": 1}, ["a", "b", "c"])
    assert names(tmp_path) == ["m", "m-lock"]


def test_only_scratch_files_of_the_store_are_removed(tmp_path):
    mine = ["m-new-0123abcd", "m-new-0123abcd-wal", "m-new-0123abcd-shm"]
    others = ["m-new-notes.txt", "m-new-0123abcde", "mm-new-0123abcd", "m-news"]
    for name in [*mine, *others]:
        (tmp_path / name).touch()
    fill(tmp_path / "m")
    assert names(tmp_path) == sorted(["m", "m-lock", *others])


def test_log_of_a_deleted_store_is_not_applied_to_a_new_one(killed, tmp_path):
    crash = "store = open_store('m', forest); store['a'].detector.partial_fit(ROWS); store.commit({'n': 1})\n"
    assert killed.run(f"{crash}os.kill(os.getpid(), signal.SIGKILL)", tmp_path)
    assert (tmp_path / "m-wal").stat().st_size > 0
    (tmp_path / "m").unlink()
    with open_store(tmp_path / "m", forest) as store:
        assert (store.notes, store.keys) == ({}, [])


@pytest.mark.parametrize("mode", [0o600, 0o664])
def test_store_keeps_permissions_of_the_empty_file_it_replaces(tmp_path, mode):
    (tmp_path / "m").touch()
    (tmp_path / "m").chmod(mode)
    fill(tmp_path / "m")
    assert stat.S_IMODE((tmp_path / "m").stat().st_mode) == mode


@pytest.mark.parametrize("is_there", [True, False])
def test_store_is_created_at_the_target_of_a_symbolic_link(tmp_path, is_there):
    (tmp_path / "disk").mkdir()
    (tmp_path / "m").symlink_to(tmp_path / "disk" / "models")
    if is_there:
        (tmp_path / "disk" / "models").touch()
    fill(tmp_path / "m")
    assert read_notes(tmp_path / "m") == ({"n": 1}, ["a", "b", "c"])
    assert (tmp_path / "m").is_symlink()
    with open_store(tmp_path / "disk" / "models", forest), pytest.raises(BlockingIOError, match="in use"):
        open_store(tmp_path / "m", forest)


# ---- files left by killed processes of earlier versions --------------------------------------------------------------

# statements with which they created a store: a kill in between leaves a database without tables
STATEMENTS = [
    "PRAGMA page_size = 16384",
    "PRAGMA user_version",
    "PRAGMA journal_mode = WAL",
    "BEGIN",
    model_store._MODELS,
    model_store._NOTES,
]
EARLIER = """
file = sqlite3.connect("m", isolation_level=None)
for statement in {statements}:
    file.execute(statement).fetchall()
os.kill(os.getpid(), signal.SIGKILL)
"""
KILLED_FIRST = """
file = sqlite3.connect("m", isolation_level=None)
file.execute("PRAGMA cache_size = 1")
file.executescript("BEGIN; CREATE TABLE models (key, model)")
file.executemany("INSERT INTO models VALUES (?, zeroblob(9000))", [(n,) for n in range(50)])
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("n", range(1, len(STATEMENTS) + 1))
def test_database_without_tables_becomes_a_store(killed, tmp_path, n):
    assert killed.run(EARLIER.format(statements=STATEMENTS[:n]), tmp_path)
    assert (tmp_path / "m").exists()
    fill(tmp_path / "m")
    assert read_notes(tmp_path / "m") == ({"n": 1}, ["a", "b", "c"])
    with closing(sqlite3.connect(tmp_path / "m")) as file:
        assert file.execute("PRAGMA page_size").fetchone() == (16384,)


def test_first_transaction_is_rolled_back_when_killed(killed, tmp_path):
    assert killed.run(KILLED_FIRST, tmp_path)
    assert is_hot(tmp_path / "m")
    fill(tmp_path / "m")
    assert read_notes(tmp_path / "m") == ({"n": 1}, ["a", "b", "c"])
    assert names(tmp_path) == ["m", "m-lock"]


def test_readers_report_an_empty_database(killed, tmp_path):
    assert killed.run(EARLIER.format(statements=STATEMENTS[:3]), tmp_path)
    with pytest.raises(ModelFileError, match=r"m' is an empty database"):
        read_notes(tmp_path / "m")


@pytest.mark.parametrize(
    ("statements", "words"),
    [
        (["PRAGMA user_version = 3"], "not a model store"),
        (["PRAGMA application_id = 3"], "not a model store"),
        (["CREATE TABLE t (x)", "INSERT INTO t VALUES (zeroblob(9000))", "DROP TABLE t"], "not a model store"),
        ([f"PRAGMA application_id = {model_store._APPLICATION}"], "no tables"),
    ],
    ids=["version", "application", "free pages", "ours"],
)
def test_used_database_without_tables_is_not_touched(tmp_path, statements, words):
    with closing(sqlite3.connect(tmp_path / "m", isolation_level=None)) as file:
        for statement in statements:
            file.execute(statement)
    before = (tmp_path / "m").read_bytes()
    with pytest.raises(ModelFileError, match=words):
        open_store(tmp_path / "m", forest)
    assert (tmp_path / "m").read_bytes() == before


def test_database_with_a_header_alone_is_damaged(tmp_path):
    fill(tmp_path / "m")
    os.truncate(tmp_path / "m", 100)
    with pytest.raises(ModelFileError, match=r"m' is damaged"):
        open_store(tmp_path / "m", forest)
    assert (tmp_path / "m").stat().st_size == 100


# ---- killed transactions ---------------------------------------------------------------------------------------------

INTERRUPT = """
file = sqlite3.connect({name!r}, isolation_level=None)
file.execute("PRAGMA journal_mode = DELETE")  # as another tool may leave it
file.execute("PRAGMA cache_size = 1")
file.execute("BEGIN")
file.execute("UPDATE {table} SET {column} = zeroblob(9000)")
file.execute("CREATE TABLE more (x)")
os.kill(os.getpid(), signal.SIGKILL)
"""


def is_hot(path):
    """Return whether a journal has to be rolled back."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as file:
        return databases.has_hot_journal(file)


@pytest.fixture
def interrupted(killed, tmp_path):
    """A store whose latest transaction was killed."""
    fill(tmp_path / "m")
    assert killed.run(INTERRUPT.format(name="m", table="models", column="model"), tmp_path)
    assert is_hot(tmp_path / "m")
    return tmp_path / "m"


@pytest.fixture
def foreign(killed, tmp_path):
    """A database of another application whose latest transaction was killed."""
    with closing(sqlite3.connect(tmp_path / "cats", isolation_level=None)) as file:
        file.execute("CREATE TABLE cats (name)")
        file.executemany("INSERT INTO cats VALUES (zeroblob(5000))", [()] * 50)
    assert killed.run(INTERRUPT.format(name="cats", table="cats", column="name"), tmp_path)
    assert is_hot(tmp_path / "cats")
    return tmp_path / "cats"


def test_store_is_rolled_back_when_its_transaction_was_killed(interrupted):
    expected = forest().partial_fit(ROWS).score_samples(ROWS)
    with open_store(interrupted, forest) as store:
        assert (store.notes, store.keys) == ({"n": 1}, ["a", "b", "c"])
        assert np.array_equal(store["b"].detector.score_samples(ROWS), expected)
        store.commit({"n": 2})
    assert read_notes(interrupted)[0] == {"n": 2}


def test_readers_roll_back_a_killed_transaction(interrupted):
    assert read_notes(interrupted) == ({"n": 1}, ["a", "b", "c"])
    assert read_model(interrupted, "a").n_seen_ == 30
    assert not is_hot(interrupted)


def test_reader_without_write_access_reports_what_to_do(interrupted, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    before = contents(interrupted.parent)
    with pytest.raises(PermissionError, match="rolled back: read the file once with permission"):
        read_notes(interrupted)
    assert contents(interrupted.parent) == before


@pytest.mark.parametrize("use", [lambda path: open_store(path, forest), read_notes, read_damaged])
def test_database_of_another_application_is_not_rolled_back(foreign, use):
    before = contents(foreign.parent)
    with pytest.raises(ModelFileError, match="not a model store of polyaforest"):
        use(foreign)
    after = contents(foreign.parent)
    assert {name: after[name] for name in before} == before
    assert set(after) - set(before) <= {"cats-lock"}


def test_crafted_store_is_not_rolled_back(interrupted, killed):
    with closing(sqlite3.connect(interrupted, isolation_level=None)) as file:
        file.execute("CREATE TRIGGER t AFTER INSERT ON models BEGIN DELETE FROM models; END")
    assert killed.run(INTERRUPT.format(name="m", table="models", column="model"), interrupted.parent)
    before = contents(interrupted.parent)
    with pytest.raises(ModelFileError, match="another schema"):
        open_store(interrupted, forest)
    assert contents(interrupted.parent) == before


def name_in_journal(path, victim):
    """Append the name of a super-journal to a journal (SQLite's pager.c, `readSuperJournal`)."""
    name = os.fsencode(victim)
    checksum = sum(byte if byte < 128 else byte - 256 for byte in name) % 2**32
    with open(f"{path}-journal", "ab") as journal:
        lock_page = (2**30 // 16384 + 1).to_bytes(4, "big")
        journal.write(lock_page + name + len(name).to_bytes(4, "big") + checksum.to_bytes(4, "big"))
        journal.write(databases._JOURNAL_MAGIC)


def test_journal_cannot_delete_another_file(interrupted, tmp_path):
    victim = tmp_path / "payroll.csv"
    victim.write_text("secret\n" * 100)
    name_in_journal(interrupted, victim)
    before = contents(tmp_path)
    for use in (lambda: open_store(interrupted, forest), lambda: read_notes(interrupted)):
        with pytest.raises(ModelFileError, match="several databases"):
            use()
    assert contents(tmp_path) == before
    with closing(sqlite3.connect(interrupted)) as file:  # SQLite itself would delete it
        file.execute("SELECT count(*) FROM models").fetchone()
    assert not victim.exists()


# ---- rewritten stores ------------------------------------------------------------------------------------------------


def damage(path):
    """Damage a page of the model b, so that its store has to be rewritten without it."""
    content = bytearray(path.read_bytes())
    with closing(sqlite3.connect(path)) as file:
        (block,) = file.execute("SELECT model FROM models WHERE key = 'b'").fetchone()
        (page,) = file.execute("PRAGMA page_size").fetchone()
    at = content.find(block[len(block) // 2 :][:32])
    assert at > page
    assert len(block) > 3 * page  # the block spans several pages
    content[at // page * page : at // page * page + 4] = b"\xff\xff\xff\xff"  # the number of its next page
    path.write_bytes(content)


def fill_large(path):
    """Create a store with models of several pages each."""
    with open_store(path, lambda: StreamingMPF(n_estimators=400, window=10, random_state=0)) as store:
        for number, key in enumerate("abc"):
            store[key].detector.partial_fit(ROWS + number)
        store.commit({"n": 1})


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    """Return the bytes of a store with a damaged model."""
    path = tmp_path_factory.mktemp("damaged") / "m"
    fill_large(path)
    damage(path)
    return path.read_bytes()


def test_damaged_store_is_original_or_complete_copy_when_killed_at_any_step(killed, tmp_path, damaged):
    code = "with open_store('m', forest) as store:\n    store['b']\n    store.commit({'n': 2})\n"
    n_steps = 0
    for folder in killed.at_each_step(code, tmp_path, lambda folder: (folder / "m").write_bytes(damaged)):
        n_steps += 1
        with open_store(folder / "m", forest) as store:
            assert store.notes in ({"n": 1}, {"n": 2})
            assert {"a", "c"} <= set(store.keys)
            assert store["a"].detector.n_seen_ == store["c"].detector.n_seen_ == 30
            assert not hasattr(store["b"].detector, "forest_")
            store.commit({"n": 3})
        assert read_notes(folder / "m") == ({"n": 3}, ["a", "c"])
        kept = [path for path in folder.glob("m.damaged-*") if path.read_bytes() == damaged]
        assert len(kept) in (1, 2)
        assert not list(folder.glob("m-new-*"))
    assert n_steps > 40 // STRIDE


def test_damaged_store_is_not_rewritten_while_another_process_reads_it(tmp_path, damaged):
    path = tmp_path / "m"
    path.write_bytes(damaged)
    with open_store(path, forest) as store, closing(sqlite3.connect(path)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM notes").fetchall()
        store.commit({"n": 2})  # into the log, which the reader keeps from being truncated
        with pytest.raises(BlockingIOError, match="another process reads it"):
            store["b"]
    assert read_notes(path) == ({"n": 2}, ["a", "b", "c"])
    assert names(tmp_path) == ["m", "m-lock"]


def test_rescued_store_is_absent_or_complete_when_killed_at_any_step(killed, tmp_path):
    code = """
with open_store("m", forest) as store:
    store["a"].detector.partial_fit(ROWS)
    store.commit({"n": 1})
    with open("other", "w") as other:
        other.write("another file")
    os.replace("other", "m")
    try:
        store.commit({"n": 2})
    except OSError:
        pass
"""
    n_rescued = 0
    for folder in killed.at_each_step(code, tmp_path):
        if (folder / "m.rescued-1").exists():
            n_rescued += 1
            assert read_notes(folder / "m.rescued-1") == ({"n": 2}, ["a"])
    assert n_rescued > 0


# ---- other files -----------------------------------------------------------------------------------------------------


def test_history_is_absent_or_complete_when_killed_at_any_step(killed, tmp_path):
    found = []
    for folder in killed.at_each_step("Database('h').close()", tmp_path):
        path = folder / "h"
        found.append(path.exists())
        if found[-1]:
            with closing(sqlite3.connect(path)) as file:
                assert file.execute("SELECT count(*) FROM outbox").fetchone() == (0,)
        check_history(path)
        assert names(folder) == ["h"]
    assert found == sorted(found)
    assert min(found.count(True), found.count(False)) > 3 // STRIDE


def check_history(path):
    with closing(Database(str(path))) as database:
        with database.write() as file:
            file.execute("INSERT INTO facts VALUES ('era', 1)")
        with database.read() as file:
            assert file.execute("PRAGMA page_size").fetchone() == (8192,)


@pytest.mark.parametrize("n", range(1, 5))
def test_history_without_tables_is_completed(killed, tmp_path, n):
    assert killed.run(EARLIER.format(statements=STATEMENTS[:n]), tmp_path)
    check_history(tmp_path / "m")


def test_history_that_cannot_be_created_reports_why(tmp_path):
    with pytest.raises(BadInput, match="cannot be used as a history"):
        Database(str(tmp_path / "nowhere" / "h"))


WRITERS = {
    "model": ("forest().partial_fit(ROWS).save('f')", lambda path: load(path).n_seen_ == 30),
    "example": (
        "polyaforest.cli._demo.write_example('.')",
        lambda path: (path.parent / NAME).read_text() == example_text(),
    ),
}


@pytest.mark.parametrize("name", WRITERS)
def test_written_file_is_absent_or_complete_when_killed_at_any_step(killed, tmp_path, name):
    code, is_complete = WRITERS[name]
    found = []
    for folder in killed.at_each_step(code, tmp_path):
        visible = [path for path in folder.iterdir() if not path.name.startswith(".")]
        found.append(bool(visible))
        assert not visible or is_complete(folder / "f")
    assert set(found) == {True, False}


def test_truncated_example_is_completed(tmp_path):
    (tmp_path / NAME).write_text(example_text()[:5000])
    assert Path(write_example(str(tmp_path))).read_text() == example_text()
