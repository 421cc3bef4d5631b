"""The command line as a process, and the smaller commands on real files."""

import json
import os
import re
import signal
import subprocess
import sys

import numpy as np
import polars as pl
import pytest

import polyaforest
from polyaforest import StreamingMPF
from polyaforest.cli import COMMANDS, _bench
from polyaforest.datasets.demo import HOSTS, INCIDENTS, server_metrics

pytestmark = pytest.mark.end_to_end

PROGRAM = [sys.executable, "-m", "polyaforest"]
METRICS = ["requests", "cpu", "memory", "latency_ms", "errors"]


# ---- as a process ----------------------------------------------------------------------------------------------------

ONLY_HELP = """
import sys
import polyaforest.__main__
for name in [(), *((name,) for name in polyaforest.cli.COMMANDS)]:
    try:
        polyaforest.cli.run([*name, "--help"])
    except SystemExit as left:
        assert left.code == 0
print("imported:", *sorted({"numpy", "polars", "orjson", "sklearn", "scipy", "numba"} & sys.modules.keys()))
"""


def test_help_imports_nothing_heavy():
    done = subprocess.run([sys.executable, "-c", ONLY_HELP], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("Usage: polyaforest ") == 1 + len(COMMANDS)
    assert done.stdout.endswith("imported:\n")


@pytest.mark.parametrize("args", [["--help"], ["info", "--help"], ["datasets"]])
def test_closed_pipe_ends_a_command_without_error(args):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*PROGRAM, *args], stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(sys.platform == "win32", reason="there are no signals to send")
def test_interrupt_exits_with_130_without_traceback():
    process = subprocess.Popen([*PROGRAM, "bench", "--seconds", "600"], stderr=subprocess.PIPE, text=True)
    assert process.stderr.readline().startswith("Measuring")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, "\n")


@pytest.mark.skipif(sys.platform == "win32", reason="there is no bash")
def test_bash_accepts_the_completion_script():
    script = subprocess.run([*PROGRAM, "completion", "bash"], capture_output=True, text=True, check=True).stdout
    listed = subprocess.run(
        ["bash", "-c", f"{script}\ncomplete -p polyaforest"], capture_output=True, text=True, check=True
    )
    assert "-F _polyaforest_completion polyaforest" in listed.stdout


# ---- from files to models and back -----------------------------------------------------------------------------------


def test_merge_adds_models_fitted_separately(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = pl.DataFrame(server_metrics()).drop("timestamp", "host")[:600]
    for name, part in {"all": table, "a": table[:200], "b": table[200:]}.items():
        part.write_csv(f"{name}.csv")
    assert cli("fit", "--batch", "all.csv", "-m", "all.mpf")[0] == 0
    for name in "ab":
        assert cli("fit", "--batch", "--like", "all.mpf", f"{name}.csv", "-m", f"{name}.mpf")[0] == 0
    code, out, err = cli("merge", "a.mpf", "b.mpf", "-o", "c.mpf")
    assert (code, out, err) == (0, "", "c.mpf holds the counts of 200 + 400 = 600 rows.\n")
    rows = table.to_numpy().astype(float)
    whole, merged = polyaforest.load("all.mpf"), polyaforest.load("c.mpf")
    frame = pl.DataFrame(rows, schema=table.columns)
    np.testing.assert_array_equal(merged.score_samples(frame), whole.score_samples(frame))
    assert "600 counted" in cli("info", "c.mpf")[1]


def test_forget_deletes_rows_fitted_by_id(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = pl.DataFrame(server_metrics())[:200]
    table.write_csv("all.csv")
    assert cli("fit", "all.csv", "--id", "host", "--columns", ",".join(METRICS), "-m", "model.mpf")[0] == 0
    assert "200 held of 200 seen" in cli("info", "model.mpf")[1]
    code, _, err = cli("forget", "-m", "model.mpf", "--id", "web-1")
    assert (code, err) == (0, "Deleted 100 rows; model.mpf holds 100 points.\n")
    kept = table.filter(pl.col("host") == "web-2").select(METRICS).to_numpy().astype(float)
    np.testing.assert_array_equal(polyaforest.load("model.mpf").points_, kept)
    assert cli("forget", "-m", "model.mpf", "--id", "web-1")[0] == 3


# ---- demo ------------------------------------------------------------------------------------------------------------


def test_every_incident_of_the_example_is_flagged():
    columns = server_metrics()
    rows = np.column_stack([columns[name] for name in ("requests", "cpu", "memory", "latency_ms", "errors")])
    scores = StreamingMPF(random_state=0).fit(rows.astype(float)).score_samples(rows.astype(float))
    lowest = set(np.argsort(scores)[:20].tolist())
    stamps = np.array(columns["timestamp"])
    for incident in INCIDENTS:
        first = int(np.flatnonzero(stamps == f"{incident.start}Z")[HOSTS.index(incident.host)])
        assert {first + len(HOSTS) * i for i in range(incident.n_readings)} <= lowest


def test_demo_finds_the_planted_incidents(cli, tmp_path):
    code, out, err = cli("demo", "--to", tmp_path / "here")
    assert code == 0
    path = tmp_path / "here" / "server-metrics.csv"
    assert pl.read_csv(path).to_dict(as_series=False) == server_metrics()
    assert f"$ polyaforest detect {path}" in err
    assert "Next, score each host separately" in err
    for incident in INCIDENTS:
        assert incident.what in err
        day, hour = incident.start.split("T")
        assert re.search(rf"{day}.{hour[:5]}", out)
    picture = tmp_path / "here" / "server-metrics.png"
    assert picture.read_bytes().startswith(b"\x89PNG")


# ---- bench -----------------------------------------------------------------------------------------------------------


def test_bench_measures_and_compares_speeds(cli, monkeypatch):
    monkeypatch.setattr(_bench, "TREES", 2)
    code, out, _ = cli("bench", "--rows", 1000, "--columns", 2, "--seconds", 0.01, "--json")
    assert code == 0
    report = json.loads(out)
    speeds = {(speed["task"], speed["detector"]): speed for speed in report["speeds"]}
    assert {task for task, _ in speeds} == {"fit", "score", "explain", "stream"}
    assert ("fit", "sklearn IsolationForest") in speeds
    for speed in speeds.values():
        ours = speeds[speed["task"], "StreamingMPF"]["rows_per_second"]
        assert speed["streaming_mpf_is_times"] == pytest.approx(ours / speed["rows_per_second"])


def test_bench_reports_detectors_that_are_not_installed(cli, monkeypatch):
    monkeypatch.setattr(_bench, "TREES", 2)
    monkeypatch.setattr(_bench, "_is_installed", lambda module: False)
    code, out, err = cli("bench", "--rows", 1000, "--columns", 2, "--seconds", 0.01)
    assert code == 0
    assert re.search(r"^fit +sklearn IsolationForest +[\d,]+   [\d.e+]+x (as fast|slower)$", out, re.M)
    assert "rrcf" not in out
    assert "Not measured, because not installed: river, rrcf, krcf." in err
