"""Damaged history files are detected, reported and set aside; files of earlier releases are upgraded."""

import random
import re
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from effort import examples
from services import START, WEB, odd, rows
from streams_served import post, running, service_of
from waiting import until

from polyaforest.service.blocks import Buckets, ScoredRecord
from polyaforest.service.clocks import Clocks
from polyaforest.service.database import Damaged, Database
from polyaforest.service.events import EventLog
from polyaforest.service.feedback import forget
from polyaforest.service.history import RecordHistory

pytestmark = pytest.mark.fault

OLD = Path(__file__).parents[1] / "golden" / "history-1.history"
N, N_KEYS = 4000, 2
SEAL = b"POLYA\x02\xff\xff"  # starts all data of a block


@pytest.fixture
def path(tmp_path):
    """A history of two keys, in several blocks each."""
    path = tmp_path / "x.history"
    database = Database(str(path))
    history = RecordHistory(database, 10**9, 1e12)
    for key in range(N_KEYS):
        samples = [
            ScoredRecord(
                key * N + i + 1, i, START + 60.0 * i, -1.0, 0.5, -9.0, int(i == 99), f"id-{i}", [float(i), 7.0], None
            )
            for i in range(N)
        ]
        history.append({f"key-{key}": samples}, (key + 1) * N)
        history.flush()
    database.purge()
    database.close()
    return path


def change_texts(path, column, at, where):
    """Overwrite a byte in the data of blocks."""
    with sqlite3.connect(path) as file:
        for key, first, text in file.execute(f"SELECT key, first, {column} FROM blocks WHERE {where}").fetchall():
            changed = text[:at] + bytes([text[at] ^ 1]) + text[at + 1 :]
            query = f"UPDATE blocks SET {column} = ? WHERE key = ? AND first = ?"
            file.execute(query, (changed, key, first))
    file.close()


READS = {
    "data": lambda history: history.records("key-0"),
    "summary": lambda history: history.range("key-0", START, START + 60.0 * N, 10),
    "strip": lambda history: history.lanes(Buckets(START, START + 60.0 * N, 10), 5),
    "fine": lambda history: history.lanes(Buckets(START, START + 60.0 * N, N), 5),
}


@pytest.mark.parametrize("column", READS)
@pytest.mark.parametrize("at", [3, 12, 40, 200])
def test_changed_byte_is_detected_and_its_block_set_aside(path, column, at):
    change_texts(path, column, at, "key = 1 AND first = 513")
    database = Database(str(path))
    history = RecordHistory(database, 10**9, 1e12)
    READS[column](history)
    assert history.has_damage
    history.set_aside()
    assert not history.has_damage
    (part,) = history.damaged()
    assert (part["what"], part["key"], part["n"]) == ("block", "key-0", 512)
    assert (part["start"], part["end"]) == (START + 60.0 * 512, START + 60.0 * 1023)
    left = history.records("key-0").numbers.tolist()
    assert left == [*range(512), *range(1024, N)]
    assert len(history.records("key-1")) == N
    READS[column](history)
    assert not history.has_damage
    database.close()


def test_moved_row_is_detected(path):
    """Checksums cover the place of a block, too."""
    with sqlite3.connect(path) as file:
        file.execute("UPDATE blocks SET start = start - 1e6 WHERE key = 2 AND first = ?", (N + 1,))
    file.close()
    database = Database(str(path))
    history = RecordHistory(database, 10**9, 1e12)
    assert len(history.records("key-1")) == N - 512
    assert history.has_damage
    database.close()


def read_all(path, log):
    """Read everything and set damage aside, as a stream does; return the record numbers of each key."""
    database = Database(str(path))
    history = RecordHistory(database, 10**9, 1e12)
    while True:
        try:
            found = [history.records(f"key-{key}") for key in range(N_KEYS)]
            for read in READS.values():
                read(history)
        except Damaged:
            assert database.is_damaged
            database.repair()
            history.reload()
            continue
        if not history.has_damage:
            break
        history.set_aside()
    log.extend(database.repairs)
    named = history.damaged()
    database.close()
    return [[] if block is None else block.numbers.tolist() for block in found], found, named


@pytest.mark.parametrize("seed", range(examples(40)))
def test_overwritten_pages_lose_only_their_records(path, seed):
    rng = random.Random(seed)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(rng.randrange(size // 4, 3 * size // 4))
        file.write(rng.randbytes(20_000) if seed % 2 else bytes(20_000))
    log = []
    numbers, found, named = read_all(path, log)
    n_lost = N_KEYS * N - sum(map(len, numbers))
    assert n_lost <= 512 * 4
    assert bool(n_lost) <= bool(named or log)
    for block in found:  # the remaining records are correct
        assert block.values[:, 0].tolist() == block.numbers.tolist()
        np.testing.assert_array_equal(block.times, START + 60.0 * block.numbers)
    if log:
        (kept,) = path.parent.glob("x.history.damaged-1")
        assert str(kept) in log[0]
    again = []
    assert read_all(path, again)[0] == numbers
    assert again == []


def test_file_damaged_while_open_is_rebuilt(tmp_path):
    with running(tmp_path) as stream:
        for start in range(0, 6000, 1000):
            post(stream, rows(1000, start))
        stream.call(lambda worker: worker.commit()).result(60)
        stream.call(lambda worker: stream.database.purge()).result(60)
        path = tmp_path / "web.history"
        places = [found.start() for found in re.finditer(SEAL, path.read_bytes())]
        with path.open("r+b") as file:
            file.seek(places[len(places) // 2])
            file.write(bytes(20_000))

        def n_read():
            try:
                with stream.database.read() as file:
                    file.execute("PRAGMA shrink_memory")  # cached pages are not damaged
                return len(stream.history.records("web-1"))
            except Damaged:
                return 0

        until(lambda: n_read() > 3000 and Path(f"{path}.damaged-1").exists())  # all of it may have been cached
        until(lambda: not stream.history.has_damage and not stream.database.is_damaged)
        post(stream, rows(100, 6000))
        assert stream.error is None
        text = service_of[stream].metrics.text().decode()
        assert f'polyaforest_damaged{{stream="web"}} {stream.history.n_damaged}.0' in text
    with running(tmp_path) as stream:
        assert stream.n_records == 6100


def test_damaged_event_does_not_affect_others(tmp_path):
    with running(tmp_path) as stream:
        post(stream, rows(300))
        post(stream, [odd(300)])
        ids = {event["id"] for event in stream.events.find()}
    file = sqlite3.connect(tmp_path / "web.history")
    lost = file.execute("SELECT id FROM events ORDER BY start DESC LIMIT 1").fetchone()[0]
    file.execute("UPDATE events SET body = zeroblob(length(body)) WHERE id = ?", (lost,))
    file.commit()
    file.close()
    with running(tmp_path) as stream:
        assert {event["id"] for event in stream.events.find()} == ids - {lost}
        until(lambda: stream.history.n_damaged == 1)
        assert stream.history.damaged()[0]["reason"].startswith(f"event {lost}")
        post(stream, rows(30, 301))
        assert stream.error is None


def test_deleting_an_id_deletes_damaged_parts_of_its_keys(tmp_path):
    with running(tmp_path, WEB.replace('"1s"', '"1h"')) as stream:
        post(stream, rows(600))
        stream.call(lambda worker: worker.commit()).result(60)
    change_texts(tmp_path / "web.history", "data", 500, "key = 1 AND first = 1")
    with running(tmp_path) as stream:
        stream.history.records("web-1")
        until(lambda: stream.history.n_damaged == 1)
        stream.call(lambda worker: forget(stream, worker, "web-1-1", None, who="me")).result(60)
        assert stream.history.n_damaged == 0


# ---- files of earlier releases ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("now", [START + 3600.0 * 24 * 500, START + 7200.0])
def test_history_without_checksums_is_upgraded(tmp_path, now):
    path = shutil.copy(OLD, tmp_path / "web.history")
    for _ in range(2):
        database = Database(str(path))
        clocks = Clocks(database, wall=lambda: now, steady=lambda: 0.0)
        history = RecordHistory(database, 10**6, 86400.0, clocks)
        log = EventLog("web", database, history)
        history.expire()
        with database.write() as file:
            log.expire(file)
        assert history.records("web-1").numbers.tolist() == list(range(140))
        assert history.records("web-1").point_keys()[:4] == ["id-0", 1, 2, "id-3"]
        assert history.records("web-2").values[:, 1].tolist() == [-0.5 * i for i in range(60)]
        assert {event["id"]: event["label"] for event in log.find()} == {"aaaa": "incident", "bbbb": "normal"}
        ((lane, _), _) = history.lanes(Buckets(START, START + 60.0 * 140, 20), 5)
        assert sum(lane.n) in (140, 60)
        assert history.range("web-1", START, START + 60.0 * 140, 10).n == 140
        database.close()
    change_texts(path, "data", 500, "key = 1")
    database = Database(str(path))
    history = RecordHistory(database, 10**6, 86400.0)
    assert history.records("web-1") is None
    assert history.has_damage
    database.close()


def test_detects_unparsable_blocks_in_a_history_without_checksums(tmp_path):
    path = shutil.copy(OLD, tmp_path / "web.history")
    change_texts(path, "data", 7, "key = 1")  # in its header
    database = Database(str(path))
    history = RecordHistory(database, 10**6, 1e12)
    history.set_aside()
    assert [part["key"] for part in history.damaged()] == ["web-1"]
    assert len(history.records("web-2")) == 60
    database.close()
