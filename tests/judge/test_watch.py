"""`watch` with real processes, pipes and servers: kills, rotation, slow readers and many keys."""

import json
import os
import select
import signal
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from effort import FULL, PROFILE
from servers import redis_server
from waiting import until

from polyaforest.judge import read_model, read_notes

pytestmark = pytest.mark.end_to_end

SMALL = ["--trees", "5", "--window", "50", "--quiet"]
ROWS = np.random.default_rng(5).normal(size=(600, 2))
ROWS[[300, 301, 500]] = [[30.0, 0.0], [25.0, 0.0], [0.0, -40.0]]


def line(i, row, hosts=1):
    return json.dumps({"ts": 1.7e9 + 10 * i, "host": f"web-{i % hosts}", "cpu": row[0], "disk": row[1]})


def written(path):
    return [json.loads(text) for text in Path(path).read_text().splitlines()] if Path(path).exists() else []


# ---- killed ----------------------------------------------------------------------------------------------------------


def test_repeated_kills_lose_and_repeat_no_record(tmp_path, factory):
    import redis

    rng, n_kills = np.random.default_rng(11), 50 if PROFILE == FULL else 10
    with redis_server(tmp_path) as server, redis.Redis(port=server.port) as client:
        source = ["--from", f"{server.address}?stream=metrics", "--by", "host", "--columns", "cpu,disk", *SMALL]
        saving = ["--model", "m", "--out", "out", "--quarantine", "bad", "--save-records", "5"]
        for turn, part in enumerate(np.array_split(np.arange(595), n_kills)):
            n_before = n_lines(tmp_path), n_committed(tmp_path)
            child = factory.start(tmp_path, *source, *saving)
            for i in part.tolist():
                add(client, i)
            if turn % 2:
                until(lambda: (n_lines(tmp_path), n_committed(tmp_path)) != n_before)  # noqa: B023
            time.sleep(float(rng.uniform(0, 0.1)))  # while starting, reading, learning, writing or saving
            os.kill(child, signal.SIGKILL)
            assert factory.wait() == -signal.SIGKILL
        calm = tmp_path / "calm"
        calm.mkdir()
        for i in range(595, 600):  # committed only by the process that is asked to stop, so it has started
            add(client, i)
        for folder in (tmp_path, calm):
            child = factory.start(folder, *source, *saving)
            until(lambda folder=folder: n_committed(folder) == 606)
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
    """Add a record, or sometimes a bad one, to the stream of a Redis server."""
    cpu, disk = ROWS[i].tolist()
    client.xadd("metrics", {"host": f"web-{i % 3}", "cpu": repr(cpu), "disk": repr(disk)}, id=f"{i + 1}-0")
    if i % 100 == 50:
        client.xadd("metrics", {"host": "web-0", "cpu": "warm", "disk": "1"}, id=f"{i + 1}-1")


def n_committed(folder):
    """Return the number of committed records."""
    if not (folder / "m").exists():
        return 0
    try:
        return read_notes(folder / "m")[0].get("counts", {}).get("records", 0)
    except (OSError, ValueError):  # it is being made
        return 0


def n_lines(folder, name="out"):
    """Return the number of complete lines."""
    return (folder / name).read_bytes().count(b"\n") if (folder / name).exists() else 0


def test_ctrl_c_saves_and_the_next_start_resumes(tmp_path, factory):
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


def test_settings_that_do_not_fit_are_rejected_for_an_existing_model(tmp_path, factory):
    (tmp_path / "log").write_text(line(0, [1.0, 2.0]) + "\n")
    factory.start(tmp_path, "log", "--model", "m", *SMALL)
    assert factory.wait() == 0
    factory.start(tmp_path, "log", "--model", "m", "--by", "host", *SMALL)
    assert factory.wait() == 3
    error = (tmp_path / "stderr").read_text()
    assert "--by: all records share their models, but by is now 'host': use the same setting, or another" in error


# ---- files that rotate -----------------------------------------------------------------------------------------------


def test_rotated_log_is_followed(tmp_path, factory):
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


def test_closed_stdout_ends_watch_without_error(tmp_path, programs):
    with programs.piped("watch", *SMALL, cwd=tmp_path) as (process, stdin, stdout):
        stdin.write((line(0, [0.0, 1.0]) + "\n").encode())
        assert json.loads(stdout.readline())["is_anomaly"] is False
        stdout.close()
        with suppress(BrokenPipeError):
            for i in range(1, 2000):
                stdin.write((line(i, [0.0, 1.0]) + "\n").encode())
        stdin.close()
        assert programs.wait(process) == 0
    assert (tmp_path / "stderr").read_text() == ""


def test_slow_reader_slows_the_source_and_loses_nothing(tmp_path, programs):
    with programs.piped("watch", *SMALL, cwd=tmp_path) as (process, stdin, stdout):
        os.set_blocking(stdin.fileno(), False)
        text = "".join(line(i, ROWS[i % 600].tolist()) + "\n" for i in range(20_000)).encode()
        n_sent = 0
        while select.select([], [stdin], [], 1.0)[1]:  # without a reader, the pipe soon blocks
            n_sent += os.write(stdin.fileno(), text[n_sent : n_sent + 65_536])
        assert n_sent < len(text)
        n_whole = text[:n_sent].count(b"\n")
        stdin.close()
        lines = stdout.read().splitlines()
        assert programs.wait(process) == 0
        assert len(lines) - n_whole in (0, 1)  # a truncated last line may still be valid
        assert [json.loads(text)["position"] for text in lines] == [str(i + 1) for i in range(len(lines))]


def test_csv_from_a_pipe_quarantines_all_kinds_of_bad_records(tmp_path, programs):
    good = "".join(f"{a},{b}\n" for a, b in ROWS.tolist())
    bad = b'1\n1,2,3\nhot,1\n1e400,1\ninf,2\n\xff\xfe,1\n\x00\x01\x02\n"1\n'
    text = b"cpu,disk\n" + good.encode() + bad + good.encode()
    done = programs.run("watch", *SMALL, "--fail-on-anomaly", "--only-anomalies", text=text, cwd=tmp_path)
    assert done.returncode == 1
    flagged = [json.loads(text) for text in done.stdout.splitlines()]
    assert {"cpu"} == {reason["feature"] for item in flagged for reason in item["reasons"]} - {"disk"}
    assert len(written(tmp_path / "quarantine.jsonl")) == 8


def test_stream_that_begins_with_missing_values_resumes(tmp_path, programs):
    """Score all records, in one run or several, although a column has no value in the first 300."""
    records = [{"cpu": cpu, "disk": None if i < 300 else disk} for i, (cpu, disk) in enumerate(ROWS.tolist())]
    records[0]["cpu"], records[0]["net"] = None, None
    lines = [json.dumps({"net": 1.0, **record}).encode() + b"\n" for record in records]
    arguments = ["watch", *SMALL, "--rows", "--columns", "cpu,disk,net"]

    def scores(folder, parts, *more):
        folder.mkdir()
        done = [programs.run(*arguments, *more, text=b"".join(part), cwd=folder) for part in parts]
        assert [one.returncode for one in done] == [0] * len(parts)
        assert [item["position"] for item in written(folder / "quarantine.jsonl")] == ["1"]
        return [json.loads(text) for one in done for text in one.stdout.splitlines()]

    whole = scores(tmp_path / "whole", [lines])
    parts = scores(tmp_path / "parts", [lines[:2], lines[2:290], lines[290:310], lines[310:]], "--model", "m")
    assert [item["score"] for item in parts] == [item["score"] for item in whole]
    assert len(whole) == len(lines) - 1
    assert {i + 1 for i, item in enumerate(whole) if item["is_anomaly"]} & {299, 302, 303, 304} == set()
    assert [i + 1 for i, item in enumerate(whole) if item["is_anomaly"] and i > 310]


def test_field_that_is_empty_in_the_first_record_is_reported(tmp_path, programs):
    done = programs.run("watch", *SMALL, text=b'{"cpu": 1, "disk": null}\n{"cpu": 2, "disk": 3}\n', cwd=tmp_path)
    assert "'disk' has no value in the first record, so it is ignored" in done.stderr.decode()
    named = programs.run("watch", *SMALL, "--columns", "cpu,disk", text=b'{"cpu": 1, "disk": null}\n', cwd=tmp_path)
    assert "first record" not in named.stderr.decode()


def test_thousand_keys_fit_in_little_memory(tmp_path, factory):
    rows = np.random.default_rng(1).normal(size=(3000, 2))
    (tmp_path / "log").write_text("".join(line(i, row, hosts=1000) + "\n" for i, row in enumerate(rows.tolist())))
    factory.start(tmp_path, "log", "--by", "host", "--model", "m", "--out", "out", "--memory-mb", "1", *SMALL)
    assert factory.wait() == 0, (tmp_path / "stderr").read_text()
    notes, keys = read_notes(tmp_path / "m")
    assert len(keys) == 1000
    assert notes["counts"] == {"records": 3000, "bad": 0, "anomalies": 0}
    assert read_model(tmp_path / "m", "web-7").n_seen_ == 3
    assert len(written(tmp_path / "out")) == 3000


def test_shingle_option_finds_a_jump_of_phase(tmp_path, factory):
    steps = np.arange(1500)
    phase = np.where(steps < 1000, 0, 3)  # it jumps to a usual value at the wrong time
    values = np.sin(steps / 8 + phase) + np.random.default_rng(0).normal(0, 0.03, 1500)
    (tmp_path / "log").write_text("".join(json.dumps({"cpu": float(v)}) + "\n" for v in values))
    arguments = ["log", "--shingle", "10", "--trees", "30", "--window", "600", "--events", "--out", "out", "--quiet"]
    factory.start(tmp_path, *arguments)
    assert factory.wait() == 0, (tmp_path / "stderr").read_text()
    events = [item["event"] for item in written(tmp_path / "out")]
    worst = min((event for event in events if event["state"] == "ended"), key=lambda event: event["score"])
    assert 1000 <= worst["peak"] <= 1022
    assert worst["n_flagged"] > 1
    assert set(worst["attributions"]) == {"cpu"}


def test_missing_job_is_flagged_without_options(tmp_path, factory):
    rng, records = np.random.default_rng(3), []
    for i in range(10 * 288):
        day, minute = divmod(5 * i, 1440)
        level = 20 + 10 * np.sin(2 * np.pi * (minute / 1440 - 1 / 3)) + rng.normal(0, 2)
        runs = 120 <= minute < 210 and day != 8
        when = np.datetime64("2026-03-02T00:00:00") + np.timedelta64(5 * i, "m")
        records.append(json.dumps({"time": f"{when}Z", "cpu": round(level + 45 * runs, 2)}) + "\n")
    (tmp_path / "cpu.jsonl").write_text("".join(records))
    factory.start(tmp_path, "cpu.jsonl", "--events", "--out", "out")
    assert factory.wait() == 0
    assert "scored as a time series" in (tmp_path / "stderr").read_text()
    events = [item["event"] for item in written(tmp_path / "out")]
    begun = [event for event in events if event["state"] == "begun" and event["start"] >= "2026-03-04"]
    assert len(begun) == 1
    assert "2026-03-10T02:00:00Z" <= begun[0]["start"] <= "2026-03-10T02:10:00Z"
    assert "the usual rise at 02:00 is missing" in begun[0]["summary"]


def test_models_of_watch_can_be_inspected_and_used(tmp_path, cli):
    log, model = tmp_path / "log.jsonl", tmp_path / "m"
    log.write_text("".join(line(i, row, hosts=2) + "\n" for i, row in enumerate(ROWS.tolist())))
    bad, text = tmp_path / "bad", tmp_path / "text"
    text.write_text("no model at all")
    assert (
        cli("watch", log, "--by", "host", "-m", model, "--quarantine", bad, "--out", tmp_path / "out", *SMALL)[0] == 0
    )
    code, scores, _ = cli("score", "-m", model, "--by", "web-0", log, "--quiet")
    assert code == 0
    assert len(scores.splitlines()) == 601
    code, words, _ = cli("explain", "-m", model, "--by", "web-0", log, "--row", "501")
    assert code == 0
    assert "disk" in words
    for arguments, message in (
        (["score", "-m", model, log], "2 partitions: choose one with --by"),
        (["score", "-m", model, "--by", "web0", log], "Did you mean 'web-0'?"),
        (["watch", log, "--model", model, "--by", "ts", "--quarantine", bad], "--by: each 'host' has its own models"),
        (["watch", log, "--model", text, "--quarantine", bad], "--start-from"),
        (["watch", log, "--start-from", model, "--quarantine", bad], "polyaforest.judge"),
    ):
        code, _, error = cli(*arguments)
        assert code == 3
        assert message in error


def test_harmful_options_are_rejected(tmp_path, cli):
    log, model, bad = tmp_path / "log.jsonl", tmp_path / "m.mpf", tmp_path / "bad"
    log.write_text("".join(line(i, row) + "\n" for i, row in enumerate(ROWS[:150].tolist())))
    before = log.read_bytes()
    assert cli("fit", log, "--stream", "-m", model, "--quiet")[0] == 0
    for arguments, code, message in (
        (["--out", log], 2, "FILE and --out are the same file"),
        (["--model", tmp_path / "x", "--quarantine", tmp_path / "x"], 2, "--model and --quarantine are the same file"),
        (
            ["--start-from", model, "--trees", "7"],
            2,
            "--trees is part of the model of --start-from: give it to `fit` instead",
        ),
        (["--start-from", model, "--columns", "disk,cpu"], 3, "was fitted on the columns cpu, disk"),
        (["--model", tmp_path / "no" / "m"], 3, "the directory to write to does not exist"),
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


def test_passwords_are_not_saved_in_the_model(tmp_path, factory):
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


def test_reports_immediately_when_all_records_are_bad(tmp_path, cli):
    log = tmp_path / "log.jsonl"
    log.write_text("".join(line(i, row) + "\n" for i, row in enumerate(ROWS[:50].tolist())))
    code, _, words = cli("watch", log, "--columns", "gpu", "--quarantine", tmp_path / "bad", "--out", tmp_path / "out")
    assert code == 0
    assert "all of the first 50 records are bad" in words


def test_fail_on_anomaly_counts_only_the_current_run(tmp_path, cli):
    log = tmp_path / "log.jsonl"
    log.write_text("".join(line(i, row) + "\n" for i, row in enumerate(ROWS.tolist())))
    arguments = ["--model", tmp_path / "m", "--out", tmp_path / "out", "--fail-on-anomaly", *SMALL]
    assert cli("watch", log, *arguments)[0] == 1
    assert cli("watch", f"{tmp_path}/./log.jsonl", *arguments)[0] == 0
    assert len(written(tmp_path / "out")) == 600
