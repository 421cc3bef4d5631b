"""Times in the service: future records, retention, and wrong or corrected system clocks."""

import time

import orjson
import pytest
from services import START, WEB, odd, rows
from streams_served import post, running
from waiting import until

from polyaforest.service.blocks import ScoredRecord
from polyaforest.service.clocks import Clocks
from polyaforest.service.database import Database
from polyaforest.service.events import EventChange, EventLog
from polyaforest.service.history import RecordHistory
from polyaforest.service.silence import Silence

DAY, YEAR = 86400.0, 365 * 86400.0


class Machine:
    """A system clock that can be set, and a monotonic one."""

    def __init__(self, wall=START + YEAR * 2):
        self.wall, self.steady = wall, 0.0

    def run(self, seconds):
        """Let time pass."""
        self.wall += seconds
        self.steady += seconds

    def clocks(self, database, **options):
        return Clocks(database, wall=lambda: self.wall, steady=lambda: self.steady, **options)


@pytest.fixture
def machine():
    return Machine()


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "x.history")


@pytest.fixture
def open_history(path, machine):
    """Open the history as a new process, with a retention of 100 days."""
    databases = []

    def start():
        database = Database(path)
        databases.append(database)
        return RecordHistory(database, 10**9, 100 * DAY, machine.clocks(database, max_gap=10 * DAY)), database

    yield start
    for database in databases:
        database.close()


def put(history, number, times, key="a"):
    samples = [
        ScoredRecord(number + i, number + i, moment, -1.0, 0.5, -9.0, 0, number + i, [1.0], None)
        for i, moment in enumerate(times)
    ]
    history.append({key: samples}, number + len(samples) - 1)
    history.flush()
    history.expire()


def kept(history, key="a"):
    found = history.records(key)
    return [] if found is None else found.times.tolist()


def test_times_of_records_delete_nothing(open_history, machine):
    history, _ = open_history()
    old, live, future = [START - 9 * YEAR], [machine.wall], [machine.wall + 8000 * YEAR]
    for number, times in enumerate((live, old, future), 1):
        put(history, number, times, key=f"key-{number}")
    assert kept(history, "key-1") == live
    assert kept(history, "key-2") == old
    machine.run(99 * DAY)
    history.expire()
    assert kept(history, "key-2") == old
    machine.run(2 * DAY)
    history.expire()
    assert [kept(history, f"key-{number}") for number in (1, 2, 3)] == [[], [], []]


def test_events_expire_after_their_last_change(open_history, machine):
    history, database = open_history()
    log = EventLog("s", database, history)
    with database.write() as file:
        log.write([EventChange("old", "a", "anomaly", START - 9 * YEAR, START - 9 * YEAR, False, 1, {})], file)
        log.write([EventChange("open", "a", "anomaly", START, START, True, 1, {})], file)
        log.write([EventChange("labelled", "a", "anomaly", START, START, False, 1, {})], file)
    machine.run(60 * DAY)
    with database.write() as file:
        log.update(file, "labelled", label="incident")
        log.expire(file)
    assert {event["id"] for event in log.find()} == {"old", "open", "labelled"}
    machine.run(60 * DAY)
    with database.write() as file:
        log.expire(file)
    assert {event["id"] for event in log.find()} == {"open", "labelled"}


@pytest.mark.parametrize("jump", [-60 * YEAR, -DAY, 3 * YEAR, 70 * YEAR])
def test_setting_the_clock_while_running_ages_nothing(open_history, machine, jump):
    history, _ = open_history()
    put(history, 1, [START])
    machine.wall += jump
    put(history, 2, [START + 1])
    machine.wall -= jump
    put(history, 3, [START + 2])
    assert len(kept(history)) == 3
    machine.run(101 * DAY)
    history.expire()
    assert kept(history) == []


@pytest.mark.parametrize("jump", [-60 * YEAR, 3 * YEAR, 70 * YEAR])
def test_wrong_clock_at_a_start_ages_the_history_by_a_bounded_amount(open_history, machine, jump):
    history, _ = open_history()
    put(history, 1, [START])
    machine.run(80 * DAY)
    history.expire()
    machine.wall += jump
    history, _ = open_history()
    put(history, 2, [START + 1])
    machine.wall -= jump
    history, _ = open_history()
    put(history, 3, [START + 2])
    assert len(kept(history)) == 3


def test_time_between_two_runs_counts(open_history, machine):
    history, _ = open_history()
    put(history, 1, [START])
    machine.run(95 * DAY)
    history.expire()
    machine.wall += 6 * DAY
    history, _ = open_history()
    history.expire()
    assert kept(history) == []


def test_damaged_clocks_start_over(path, machine):
    database = Database(path)
    with database.write() as file:
        file.execute("INSERT INTO facts VALUES ('clocks', ?)", (b'{"wall": "soon"}',))
    assert machine.clocks(database).age == machine.wall
    database.close()


def test_record_is_ahead_only_beyond_the_tolerance(path, machine):
    database = Database(path)
    clocks = machine.clocks(database, max_ahead=3600.0)
    now = machine.wall
    assert clocks.why_ahead(now + 3600, now) is None
    assert clocks.why_ahead(START - 100 * YEAR, now) is None
    assert "2d ahead of the system clock" in clocks.why_ahead(now + 2 * DAY, now)
    assert "max_ahead = 1h" in clocks.why_ahead(1e300, now)
    assert clocks.why_ahead(now, 0.0) is None  # the system clock is not set
    database.close()


def test_span_ignores_the_future(open_history, machine):
    history, _ = open_history()
    put(history, 1, [START])
    put(history, 2, [machine.wall + 8000 * YEAR], key="b")  # stored by an earlier release
    assert history.span() == (START, START)
    put(history, 3, [machine.wall + 600], key="c")  # a fast clock
    assert history.span() == (START, machine.wall)
    machine.wall = 0.0  # the clock is not set
    assert history.span()[1] > START


def test_correcting_the_clock_causes_no_silence(machine, monkeypatch):
    watch = Silence("s", 60.0, ["a"], [], steady=lambda: machine.steady)
    monkeypatch.setattr("polyaforest.service.silence.clock.time", lambda: machine.wall)
    machine.wall += YEAR
    machine.steady += 30
    assert watch.check(1) == []
    machine.steady += 31
    (begun,) = watch.check(1)
    assert begun.start == machine.wall - 61
    machine.wall -= YEAR
    (ended,) = watch.hear({"a": [ScoredRecord(1, 0, START, -1.0, 0.5, -9.0, 0, 1, [1.0], None)]}, ["x"])
    assert ended.end >= ended.start


# ---- the service -----------------------------------------------------------------------------------------------------


def ahead(record, seconds):
    return {**record, "time": time.time() + seconds}


def test_future_records_are_rejected_with_the_reason(tmp_path):
    with running(tmp_path) as stream:
        post(stream, rows(300))
        n_events = len(stream.events.find())
        far, near, text = ahead(odd(300), 2 * YEAR), ahead(odd(301), 600), {**odd(302), "time": "9999-12-31T23:59:59Z"}
        results = post(stream, [far, near, text])
        assert [isinstance(result, dict) for result in results] == [True, False, True]
        assert "ahead of the system clock" in results[0]["error"]
        assert "9999-12-31" in results[2]["error"]
        with stream.database.read() as file:
            reasons = [reason for (reason,) in file.execute("SELECT reason FROM quarantine")]
        assert len(reasons) == 2
        stream.call(lambda worker: worker.commit()).result(60)
        stream.call(lambda worker: stream.history.expire()).result(60)
        assert stream.n_records == 301
        assert len(stream.history.records("web-1")) == 301
        assert len(stream.events.find()) == n_events + 1
        assert stream.history.span()[1] <= time.time()
        old = {**odd(1), "time": 0.0, "id": "from 1970"}
        assert post(stream, [old])[0].judgement.row.key == "web-1"


def test_max_ahead_is_a_setting(tmp_path):
    with running(tmp_path, WEB + 'max_ahead = "10d"\n') as stream:
        assert not isinstance(post(stream, [ahead(odd(1), 9 * DAY)])[0], dict)
        assert "max_ahead = 10d" in post(stream, [ahead(odd(1), 11 * DAY)])[0]["error"]


def test_lag_grows_after_a_record_of_a_fast_clock(tmp_path):
    with running(tmp_path) as stream:
        post(stream, [ahead(odd(1), 1800)])
        before = stream.lag
        until(lambda: stream.lag >= before + 0.01)
        assert stream.lag < 600
    with running(tmp_path) as stream:
        assert 0 < stream.lag < 600  # also right after a start


def test_replayed_record_is_checked_by_its_time_of_arrival(tmp_path):
    """A rejected record stays rejected after a crash, even once its time has passed."""
    with running(tmp_path) as stream:
        post(stream, rows(10))
    came = time.time() - 10_000
    lines = [orjson.dumps({**odd(11), "time": came + ahead}) for ahead in (4000, 1000)]
    database = Database(str(tmp_path / "web.history"))  # as a killed process leaves it
    with database.write() as file:
        file.execute("INSERT INTO inbox (first, n, received, body) VALUES (11, 2, ?, ?)", (came, b"\n".join(lines)))
    database.close()
    with running(tmp_path) as stream:
        assert stream.n_records == 11
        with stream.database.read() as file:
            assert file.execute("SELECT position FROM quarantine").fetchall() == [("11",)]
