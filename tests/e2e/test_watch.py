"""watch through real processes, pipes and servers: killed, rotated, cut off, slowed down, with a thousand keys."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from servers import redis_server

from polyaforest.live.model_store import read_model, read_notes

SMALL = ["--trees", "5", "--window", "50", "--quiet"]
ROWS = np.random.default_rng(5).normal(size=(600, 2))
ROWS[[300, 301, 500]] = [[30.0, 0.0], [25.0, 0.0], [0.0, -40.0]]

# Processes that watch are forked from one that has everything imported: they start at once, and are real.
FACTORY = """
import os, sys
import polyaforest.cli, polyaforest.cli._watch, polyaforest.live.watcher, polyaforest.io.sources, polyaforest.timeseries
import numpy, redis
from polyaforest.live.judging import judge_and_explain
rows = numpy.random.default_rng(0).normal(size=(150, 2))
rows[140] = 99  # so that there is something to explain
judge_and_explain(polyaforest.StreamingMPF(n_estimators=2, window=50, missing="marginalise"), rows)
print("ready", flush=True)
for line in sys.stdin:
    arguments = line.rstrip("\\n").split("\\t")
    child = os.fork()
    if child == 0:
        os.chdir(arguments[0])
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(os.open("stdout", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
        os.dup2(os.open("stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        polyaforest.cli.run(arguments[1:])
    print(child, flush=True)
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
"""


class Factory:
    """Starts a process that watches, and tells how it ended."""

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, "-c", FACTORY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout.readline() == "ready\n"

    def start(self, folder, *arguments):
        self._process.stdin.write("\t".join([str(folder), "watch", *map(str, arguments)]) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def wait(self):
        return int(self._process.stdout.readline())

    def close(self):
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@pytest.fixture(scope="module")
def factory():
    made = Factory()
    yield made
    made.close()


def line(i, row, hosts=1):
    return json.dumps({"ts": 1.7e9 + 10 * i, "host": f"web-{i % hosts}", "cpu": row[0], "disk": row[1]})


def written(path):
    return [json.loads(text) for text in Path(path).read_text().splitlines()] if Path(path).exists() else []


def until(is_so, seconds=30.0):
    """Wait until something is so."""
    for _ in range(int(seconds / 0.01)):
        if is_so():
            return
        time.sleep(0.01)
    raise AssertionError("it never came to be")


def watch(folder, *arguments, **options):
    """A process of its own, with pipes."""
    command = [sys.executable, "-m", "polyaforest", "watch", *map(str, arguments)]
    return subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options)


@contextmanager
def running(*args, **options):
    process = watch(*args, **options)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with suppress(BrokenPipeError):  # what it had not been sent yet
                pipe.close()


# ---- killed ----------------------------------------------------------------------------------------------------------


def test_killed_fifty_times_nothing_is_lost_or_counted_twice(tmp_path, factory):
    import redis

    rng, n_kills = np.random.default_rng(11), 50
    with redis_server(tmp_path) as server, redis.Redis(port=server.port) as client:
        source = ["--from", f"{server.address}?stream=metrics", "--key", "host", "--columns", "cpu,disk", *SMALL]
        saving = ["--model", "m", "--out", "out", "--quarantine", "bad", "--snapshot-every", "5"]
        for turn, part in enumerate(np.array_split(np.arange(600), n_kills)):
            n_before = n_lines(tmp_path), n_committed(tmp_path)
            child = factory.start(tmp_path, *source, *saving)
            for i in part.tolist():
                add(client, i)
            if turn % 2:
                until(lambda: (n_lines(tmp_path), n_committed(tmp_path)) != n_before)  # noqa: B023
            time.sleep(float(rng.uniform(0, 0.1)))  # in the middle of starting, reading, learning, writing, saving
            os.kill(child, signal.SIGKILL)
            assert factory.wait() == -signal.SIGKILL
        calm = tmp_path / "calm"
        calm.mkdir()
        for folder in (tmp_path, calm):
            child = factory.start(folder, *source, *saving)
            until(lambda folder=folder: n_committed(folder) == 606)
            time.sleep(0.3)  # by now it waits for more
            os.kill(child, signal.SIGTERM)
            assert factory.wait() == 0, (folder / "stderr").read_text()
    for name in ("out", "bad"):
        assert written(tmp_path / name) == written(calm / name)
    assert [item["position"] for item in written(tmp_path / "out")] == [f"metrics {i + 1}-0" for i in range(600)]
    assert len(written(tmp_path / "bad")) == 6
    for key in ("web-0", "web-1", "web-2"):
        models = [read_model(folder / "m", key) for folder in (tmp_path, calm)]
        assert models[0].n_seen_ == models[1].n_seen_ == 200
        assert np.array_equal(models[0].points_, models[1].points_)


def add(client, i):
    """Add a record to the stream of a Redis server, and a bad one now and then."""
    cpu, disk = ROWS[i].tolist()
    client.xadd("metrics", {"host": f"web-{i % 3}", "cpu": repr(cpu), "disk": repr(disk)}, id=f"{i + 1}-0")
    if i % 100 == 50:
        client.xadd("metrics", {"host": "web-0", "cpu": "warm", "disk": "1"}, id=f"{i + 1}-1")


def n_committed(folder):
    """Records that the last commit counts."""
    if not (folder / "m").exists():
        return 0
    try:
        return read_notes(folder / "m")[0].get("counts", {}).get("records", 0)
    except (OSError, ValueError):  # it is being made
        return 0


def n_lines(folder):
    return (folder / "out").read_bytes().count(b"\n") if (folder / "out").exists() else 0


def test_ctrl_c_saves_and_the_next_start_goes_on(tmp_path, factory):
    log = tmp_path / "log"
    log.write_text("".join(line(i, row) + "\n" for i, row in enumerate(ROWS[:200].tolist())))
    arguments = [log, "--follow", "--model", "m", "--out", "out", *SMALL]
    for n, number in ((200, signal.SIGINT), (600, signal.SIGTERM)):
        if n > 200:
            with log.open("a") as file:
                file.writelines(line(i, row) + "\n" for i, row in enumerate(ROWS[200:].tolist(), 200))
        child = factory.start(tmp_path, *arguments)
        until(lambda n=n: n_lines(tmp_path) == n)
        os.kill(child, number)
        assert factory.wait() == 0
        assert n_committed(tmp_path) == n
    assert [item["is_anomaly"] for item in written(tmp_path / "out")][300]


def test_other_settings_are_refused_for_a_model_that_has_begun(tmp_path, factory):
    (tmp_path / "log").write_text(line(0, [1.0, 2.0]) + "\n")
    factory.start(tmp_path, "log", "--model", "m", *SMALL)
    assert factory.wait() == 0
    factory.start(tmp_path, "log", "--model", "m", "--shingle", "3", *SMALL)
    assert factory.wait() == 3
    assert "--shingle was not given when m was begun, and is 3 now" in (tmp_path / "stderr").read_text()


# ---- files that rotate -----------------------------------------------------------------------------------------------


def test_a_log_that_rotates_is_followed(tmp_path, factory):
    log = tmp_path / "log"
    child = factory.start(tmp_path, log, "--follow", "--out", "out", *SMALL)
    for start in range(0, 600, 100):
        if start % 200:
            log.rename(tmp_path / f"log.{start}")
        with log.open("a") as file:
            for i in range(start, start + 100):
                file.write(line(i, ROWS[i].tolist()) + "\n")
        until(lambda start=start: n_lines(tmp_path) == start + 100)
    os.kill(child, signal.SIGTERM)
    assert factory.wait() == 0
    assert [item["time"] for item in written(tmp_path / "out")] == sorted(
        {x["time"] for x in written(tmp_path / "out")}
    )
    assert len(written(tmp_path / "out")) == 600


# ---- pipes -----------------------------------------------------------------------------------------------------------


def test_a_reader_that_has_seen_enough_ends_it_quietly(tmp_path):
    with running(tmp_path, *SMALL, stderr=subprocess.PIPE) as process:
        process.stdin.write((line(0, [0.0, 1.0]) + "\n").encode())
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["is_anomaly"] is False
        process.stdout.close()
        for i in range(1, 2000):
            try:
                process.stdin.write((line(i, [0.0, 1.0]) + "\n").encode())
                process.stdin.flush()
            except BrokenPipeError:
                break
        assert process.wait(30) == 0
        assert process.stderr.read() == b""
        process.stderr.close()


def test_a_slow_reader_holds_the_writer_up_and_loses_nothing(tmp_path):
    with running(tmp_path, *SMALL) as process:
        os.set_blocking(process.stdin.fileno(), False)
        text = "".join(line(i, ROWS[i % 600].tolist()) + "\n" for i in range(20_000)).encode()
        n_sent, stuck_at = 0, time.monotonic()
        while n_sent < len(text) and time.monotonic() - stuck_at < 2:  # nobody reads: before long nobody can write
            try:
                n_sent += os.write(process.stdin.fileno(), text[n_sent : n_sent + 65_536])
                stuck_at = time.monotonic()
            except BlockingIOError:
                time.sleep(0.01)
        assert n_sent < len(text)
        n_whole = text[:n_sent].count(b"\n")
        process.stdin.close()
        lines = process.stdout.read().splitlines()
        assert process.wait(30) == 0
        assert len(lines) - n_whole in (0, 1)  # a last line that was cut may read as one
        assert [json.loads(text)["position"] for text in lines] == [str(i + 1) for i in range(len(lines))]


def test_csv_from_a_pipe_with_all_that_can_be_wrong(tmp_path):
    good = "".join(f"{a},{b}\n" for a, b in ROWS.tolist())
    bad = b'1\n1,2,3\nhot,1\n1e400,1\ninf,2\n\xff\xfe,1\n\x00\x01\x02\n"1\n'
    text = b"cpu,disk\n" + good.encode() + bad + good.encode()
    with running(tmp_path, *SMALL, "--fail-on-anomaly", "--only-anomalies") as process:
        out, _ = process.communicate(text, timeout=60)
        assert process.returncode == 1
    flagged = [json.loads(text) for text in out.splitlines()]
    assert {"cpu"} == {reason["feature"] for item in flagged for reason in item["reasons"]} - {"disk"}
    assert len(written(tmp_path / "quarantine.jsonl")) == 8


def test_a_thousand_keys_in_little_memory(tmp_path, factory):
    rows = np.random.default_rng(1).normal(size=(3000, 2))
    (tmp_path / "log").write_text("".join(line(i, row, hosts=1000) + "\n" for i, row in enumerate(rows.tolist())))
    factory.start(tmp_path, "log", "--key", "host", "--model", "m", "--out", "out", "--memory", "1", *SMALL)
    assert factory.wait() == 0, (tmp_path / "stderr").read_text()
    notes, keys = read_notes(tmp_path / "m")
    assert len(keys) == 1000
    assert notes["counts"] == {"records": 3000, "bad": 0, "anomalies": 0}
    assert read_model(tmp_path / "m", "web-7").n_seen_ == 3
    assert len(written(tmp_path / "out")) == 3000


def test_a_metric_as_a_time_series_with_one_flag(tmp_path, factory):
    steps = np.arange(1500)
    phase = np.where(steps < 1000, 0, 3)  # it jumps to a value that is quite usual, but not then
    values = np.sin(steps / 8 + phase) + np.random.default_rng(0).normal(0, 0.03, 1500)
    (tmp_path / "log").write_text("".join(json.dumps({"cpu": float(v)}) + "\n" for v in values))
    arguments = ["log", "--shingle", "10", "--trees", "30", "--window", "600", "--events", "--out", "out", "--quiet"]
    factory.start(tmp_path, *arguments)
    assert factory.wait() == 0, (tmp_path / "stderr").read_text()
    worst = min((item["event"] for item in written(tmp_path / "out")), key=lambda event: event["score"])
    assert 1000 <= worst["peak"] <= 1022
    assert worst["n_flagged"] > 1
    assert set(worst["blame"]) == {"cpu"}


def test_the_models_of_a_watch_answer_questions(tmp_path, cli):
    log, model = tmp_path / "log.jsonl", tmp_path / "m"
    log.write_text("".join(line(i, row, hosts=2) + "\n" for i, row in enumerate(ROWS.tolist())))
    bad, text = tmp_path / "bad", tmp_path / "text"
    text.write_text("no model at all")
    assert (
        cli("watch", log, "--key", "host", "-m", model, "--quarantine", bad, "--out", tmp_path / "out", *SMALL)[0] == 0
    )
    code, scores, _ = cli("score", "-m", model, "--key", "web-0", log, "--quiet")
    assert code == 0
    assert len(scores.splitlines()) == 601
    code, words, _ = cli("explain", "-m", model, "--key", "web-0", log, "--row", "501")
    assert code == 0
    assert "disk" in words
    for arguments, message in (
        (["score", "-m", model, log], "2 streams: choose one by --key"),
        (["score", "-m", model, "--key", "web0", log], "Did you mean 'web-0'?"),
        (["watch", log, "--model", model, "--key", "host", "--trees", "6", "--quarantine", bad], "--trees was 5"),
        (["watch", log, "--model", text, "--quarantine", bad], "--start-from"),
        (["watch", log, "--start-from", model, "--quarantine", bad], "polyaforest.live"),
    ):
        code, _, error = cli(*arguments)
        assert code == 3
        assert message in error


def test_what_would_do_harm_is_refused(tmp_path, cli):
    log, model, bad = tmp_path / "log.jsonl", tmp_path / "m.mpf", tmp_path / "bad"
    log.write_text("".join(line(i, row) + "\n" for i, row in enumerate(ROWS[:150].tolist())))
    before = log.read_bytes()
    assert cli("fit", log, "--stream", "-m", model, "--quiet")[0] == 0
    for arguments, code, message in (
        (["--out", log], 2, "FILE and --out are the same file"),
        (["--model", tmp_path / "x", "--quarantine", tmp_path / "x"], 2, "--model and --quarantine are the same file"),
        (["--start-from", model, "--trees", "7"], 2, "leave --trees to `fit`"),
        (["--start-from", model, "--columns", "disk,cpu"], 3, "was made of the columns cpu, disk"),
        (["--model", tmp_path / "no" / "m"], 3, "no such directory"),
        (["--window", "1y"], 2, "30m, 6h or 7d"),
        (["--window", "30m"], 2, "needs --time"),
        (["--follow", "--from", "redis://localhost"], 2, "FILE and --from"),
    ):
        left, _, error = cli("watch", log, *arguments)
        assert left == code, error
        assert message in " ".join(error.split())
    assert log.read_bytes() == before
    out = tmp_path / "out"
    assert cli("watch", log, "--start-from", model, "--out", out, "--quarantine", bad, "--quiet")[0] == 0
    assert len(written(out)) == 150
    assert not bad.exists()


def test_passwords_are_not_written_into_the_model(tmp_path, factory):
    with redis_server(tmp_path, "--requirepass", "sekret") as server:
        address = f"redis://:sekret@127.0.0.1:{server.port}/0?stream=metrics"
        child = factory.start(tmp_path, "--from", address, "--model", "m", "--columns", "cpu", *SMALL)
        until(lambda: (tmp_path / "m").exists() and "where" in notes_of(tmp_path / "m"))
        os.kill(child, signal.SIGTERM)
        assert factory.wait() == 0
    assert notes_of(tmp_path / "m")["where"] == f"redis://127.0.0.1:{server.port}/0?stream=metrics"
    assert b"sekret" not in (tmp_path / "m").read_bytes()


def notes_of(path):
    try:
        return read_notes(path)[0]
    except (OSError, ValueError):  # it is being made
        return {}


def test_records_that_are_all_bad_are_told_of_at_once(tmp_path, cli):
    log = tmp_path / "log.jsonl"
    log.write_text("".join(line(i, row) + "\n" for i, row in enumerate(ROWS[:50].tolist())))
    code, _, words = cli("watch", log, "--columns", "gpu", "--quarantine", tmp_path / "bad", "--out", tmp_path / "out")
    assert code == 0
    assert "all of the first 50 records are bad" in words


def test_a_second_run_fails_only_on_anomalies_of_its_own(tmp_path, cli):
    log = tmp_path / "log.jsonl"
    log.write_text("".join(line(i, row) + "\n" for i, row in enumerate(ROWS.tolist())))
    arguments = ["--model", tmp_path / "m", "--out", tmp_path / "out", "--fail-on-anomaly", *SMALL]
    assert cli("watch", log, *arguments)[0] == 1
    assert cli("watch", f"{tmp_path}/./log.jsonl", *arguments)[0] == 0
    assert len(written(tmp_path / "out")) == 600
