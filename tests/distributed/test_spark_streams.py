"""Keyed streams on Spark return the results of one process, each row once, even if processes are killed."""

import json
import os
import random
import signal
import subprocess
import time
from contextlib import contextmanager, suppress
from copy import deepcopy
from math import nan
from pathlib import Path

import polars as pl
import pytest
from numpy.testing import assert_array_equal
from spark_streams import (
    KEYS,
    QUERIES,
    batches,
    command,
    results,
    seasoned,
    skip_without_java,
    started,
    table,
    timed,
    write,
    zoned,
)
from waiting import until

from polyaforest.distributed.keyed import default_detector
from polyaforest.tables.validation import NamedRows

pytestmark = pytest.mark.end_to_end

N_ROWS = 900
PATIENCE = 900  # seconds, on a busy machine
LATE = {"a": 1.0, "b": 1.0, "host": KEYS[0], "offset": -5, "at": 0.0}
UNPLACED = {**LATE, "offset": None}


@pytest.fixture(scope="module", autouse=True)
def java():
    skip_without_java()


@pytest.fixture(scope="module")
def rows(pytestconfig):
    """Rows by offset; some are too large, some have no values."""
    is_huge, is_empty = pl.col("offset") % 97 == 13, pl.col("offset") % 89 == 7
    return table(N_ROWS, int(pytestconfig.option.hypothesis_seed)).with_columns(
        a=pl.when(is_huge).then(1e200).when(is_empty).then(None).otherwise(pl.col("a")),
        b=pl.when(is_empty).then(None).otherwise(pl.col("b")),
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory, rows):
    """Folder in which the first query has run."""
    folder = tmp_path_factory.mktemp("spark")
    write_stream(folder / "rows", rows, 3)
    with running(folder, "refusals", "rows") as process:
        finish(process, folder)
    return folder


@pytest.fixture(scope="module")
def other_queries(tmp_path_factory, rows):
    """Folder in which all other queries have run."""
    folder, names = tmp_path_factory.mktemp("spark-others"), [name for name in QUERIES if name != "rows"]
    for name in names:
        write_stream(folder / name, *((rows, 2) if name != "silent" else (rows[:50], 1)))
    with running(folder, *names) as process:
        until(lambda: process.poll() is not None or has_forgotten(folder / "silent"), seconds=PATIENCE)
        (folder / "silent" / "stop").touch()
        finish(process, folder)
    return folder


def write_stream(folder, rows, n_files):
    """Write micro-batches by offset, each in random order, and two bad rows."""
    size = -(-len(rows) // n_files)
    parts = [rows[i : i + size].sample(fraction=1.0, shuffle=True, seed=i) for i in range(0, len(rows), size)]
    parts[-1] = pl.concat([parts[-1], pl.DataFrame([LATE, UNPLACED], schema=rows.schema)])
    write(folder, parts)


@contextmanager
def running(folder, *names, master="local[2]"):
    """Run queries in a process; kill it with its JVM at the end of the block."""
    with (folder / "said").open("ab") as said:
        process = subprocess.Popen(
            command(folder, *names, master=master), stdout=said, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def words(folder):
    return (folder / "said").read_text(errors="replace")[-5000:]


def finish(process, folder):
    assert process.wait(PATIENCE) == 0, words(folder)


def kill_in_the_middle(folder, name, n_files, rng):
    """Kill driver and JVM in the middle of a later micro-batch."""
    done = batches(folder / name)
    wanted = done + 1 + rng.randrange((n_files - done) // 4)
    with running(folder, name) as process:
        until(lambda: batches(folder / name) >= wanted or process.poll() is not None, seconds=PATIENCE)
        time.sleep(rng.random() * 2)
        assert process.poll() is None, words(folder)
    assert batches(folder / name) < n_files


def has_forgotten(folder):
    return set(results(folder).filter(pl.col("status") == "forgotten")["host"]) == set(KEYS)


def one_process(rows, model, columns, times=None):
    """Results by offset of one process that sees the good rows of a key in order."""
    has_values = pl.any_horizontal(pl.col(name).is_not_null() for name in columns)
    is_small = pl.all_horizontal((pl.col(name).abs() < 1e100).fill_null(True) for name in columns)
    good = rows.sort("offset").filter(has_values & is_small)
    given = NamedRows(good.select(columns).to_numpy(), columns)
    found = model.detect_then_learn(given, times=None if times is None else good[times].to_numpy())
    facts = zip(*(part.tolist() for part in found[:3]), strict=True)
    return dict(zip(good["offset"].to_list(), facts, strict=True))


def check(found, rows, models, columns, times=None):
    """Assert that each row has one result, equal to that of one process."""
    is_extra = pl.col("offset").is_null() | (pl.col("offset") < 0)
    assert sorted(found.filter(is_extra)["status"]) == ["bad", "late"]
    found = found.filter(~is_extra)
    reported = sorted(zip(found["host"], found["offset"], strict=True))
    assert reported == sorted(zip(rows["host"], rows["offset"], strict=True))
    for key in KEYS:
        own = rows.filter(pl.col("host") == key)
        wanted, of_key = one_process(own, models[key], columns, times), found.filter(pl.col("host") == key)
        judged = of_key.filter(pl.col("status") == "judged").sort("offset")
        assert judged["offset"].to_list() == list(wanted)
        facts = [judged[name].fill_null(nan).to_list() for name in ("score", "pValue")]
        for mine, theirs in zip(
            (*facts, judged["isAnomaly"].to_list()), zip(*wanted.values(), strict=True), strict=True
        ):
            assert_array_equal(mine, theirs)
        bad = of_key.filter(pl.col("status") == "bad")
        assert len(bad) == len(own) - len(wanted)
        assert bad["error"].str.contains("all its values are missing|values must not exceed").all()


def test_each_row_is_reported_once_as_by_watch(folder, rows, programs):
    found = results(folder / "rows")
    check(found, rows, {key: default_detector() for key in KEYS}, ["a", "b"])
    text = "".join(json.dumps(row) + "\n" for row in rows.select("host", "a", "b").iter_rows(named=True))
    options = ["--by", "host", "--columns", "a,b", "--quarantine", os.devnull, "--quiet"]
    done = programs.run("watch", *options, text=text, cwd=folder)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    judged = found.filter(pl.col("status") == "judged").sort("offset")
    for name, field in {"host": "key", "score": "score", "pValue": "p_value", "isAnomaly": "is_anomaly"}.items():
        assert judged[name].to_list() == [line[field] for line in lines]
    flagged = [json.loads(text) for text in judged.filter(pl.col("isAnomaly"))["reasons"]]
    assert [why["surprise"] - why["typical"] for why in flagged] == [line["bits"] for line in lines if "bits" in line]
    assert flagged
    assert judged.filter(~pl.col("isAnomaly"))["reasons"].null_count() == len(judged) - len(flagged)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["series", "timed"])
def test_series_and_time_windows_equal_one_process(other_queries, rows, name):
    found = results(other_queries / name)
    if name == "series":
        found = found.with_columns(offset=pl.col("offset").dt.epoch("s"))
    columns, model = QUERIES[name]["columns"], timed() if name == "timed" else QUERIES[name]["detector"]
    check(found, rows, {key: deepcopy(model) for key in KEYS}, columns, "at")


@pytest.mark.slow
def test_keys_start_from_given_models(other_queries, rows):
    models = {key: started() for key in KEYS} | seasoned()
    check(results(other_queries / "seasoned"), rows, models, ["a", "b"])


@pytest.mark.slow
def test_silent_key_is_reported_once_and_forgotten(other_queries, rows):
    found = results(other_queries / "silent")
    for status in ("silent", "forgotten"):
        reported = found.filter(pl.col("status") == status).sort("host")
        assert reported["host"].to_list() == sorted(set(rows[:50]["host"]))
        assert reported["error"].str.contains(r"no row for [\d.]+ s").all()
        latest = rows[:50].group_by("host").agg(pl.col("offset").max()).sort("host")
        assert reported["offset"].to_list() == latest["offset"].to_list()


def test_strings_are_categories(folder):
    """Scores and reasons equal those of one process, also for an unseen category."""
    rows = zoned(300)
    found = json.loads((folder / "categories").read_text("utf-8"))
    local = started().detect_then_learn(rows.select("a", pl.col("zone").cast(pl.Categorical), "b"), explain=True)
    assert [row[0] for row in found] == rows["offset"].to_list()
    for k, part in enumerate(local[:3], start=1):
        assert_array_equal([nan if row[k] is None else row[k] for row in found], part)
    assert {i: row[4] for i, row in enumerate(found) if row[4]} == {
        i: why.to_json() for i, why in local.explanations.items()
    }
    assert local.is_anomaly[-1]
    assert "mars" in found[-1][4]


def test_watch_rejects_invalid_arguments_before_start(folder):
    said = json.loads((folder / "refusals").read_text("utf-8"))
    for (_, words), wanted in zip(
        said,
        [
            "no column 'hosts'",
            "order: column 'host' must hold integers or timestamps, not string",
            "order: column 'a' must",
            "has the name of an output column",
            "columns: 'host' is the key, which is constant within a stream",
            "columns: 'at' must hold numbers or strings, not timestamp",
            "columns: 'zone' must hold numbers (SeriesMPF takes no categories), not string",
            "columns: 'b' has categories in the model to start from, but is int here: cast it to string",
            "no column 'nothing'",
            "no numeric column",
            "time: column 'host' must hold timestamps or numbers",
            "silence must be a positive timedelta; got 5",
            "forget_after must be",
            "set random_state",
            "pass either detector or start_from",
            "start_from is not fitted",
            "the detector of 'web-1' is not fitted",
            "was fitted on a, b; got b, a",
            "name the timestamp column",
            "[('x', 0, 'judged'), ('x', 1, 'judged'), ('x', 2, 'judged')]",
        ],
        strict=True,
    ):
        assert wanted in words


@pytest.mark.slow
def test_driver_killed_ten_times_reports_each_row_once(tmp_path, rows, any_seed):
    rng = random.Random(any_seed)
    write_stream(tmp_path / "rows", rows, 40)
    for _ in range(10):
        kill_in_the_middle(tmp_path, "rows", 40, rng)
    with running(tmp_path, "rows") as process:
        finish(process, tmp_path)
    check(results(tmp_path / "rows"), rows, {key: default_detector() for key in KEYS}, ["a", "b"])


@pytest.mark.slow
def test_killed_executor_loses_no_row(tmp_path, rows, monkeypatch):
    monkeypatch.setenv("SPARK_HOME", str(spark_home(tmp_path / "home")))
    write_stream(tmp_path / "rows", rows, 12)
    with running(tmp_path, "rows", master="local-cluster[2,1,1024]") as process:
        until(lambda: batches(tmp_path / "rows") > 1 or process.poll() is not None, seconds=PATIENCE)
        executors = [number for number, line in descendants(process.pid) if "CoarseGrainedExecutorBackend" in line]
        assert len(executors) == 2, words(tmp_path)
        os.kill(executors[0], signal.SIGKILL)
        assert batches(tmp_path / "rows") < 12
        finish(process, tmp_path)
    assert len(list(tmp_path.glob("home/work/app-*/*"))) == 3  # with a replacement
    check(results(tmp_path / "rows"), rows, {key: default_detector() for key in KEYS}, ["a", "b"])


def spark_home(folder):
    """Copy PySpark's home, with another working directory of executors."""
    import pyspark

    folder.mkdir()
    for part in Path(pyspark.__file__).parent.iterdir():
        if part.name != "work":
            (folder / part.name).symlink_to(part)
    return folder


def descendants(process):
    """Ids and command lines of all descendants of a process."""
    found = []
    with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
        for task in Path(f"/proc/{process}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                line = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found += [(child, line), *descendants(child)]
    return found
