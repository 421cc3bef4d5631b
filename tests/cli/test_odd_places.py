"""Pipes, devices and directories instead of files are rejected immediately; help works under python -OO."""

import os
import subprocess
import sys

import numpy as np
import polars as pl
import pytest

from polyaforest.cli import COMMANDS
from polyaforest.datasets.demo import server_metrics

PROGRAM = [sys.executable, "-m", "polyaforest"]
pytestmark = [pytest.mark.end_to_end, pytest.mark.skipif(sys.platform == "win32", reason="there are no named pipes")]


@pytest.fixture
def pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    return tmp_path / "pipe.csv"


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "table.csv"
    pl.DataFrame({"a": np.random.default_rng(0).normal(size=60)}).write_csv(path)
    return path


@pytest.mark.parametrize(
    "args",
    [
        ["info", "PIPE"],
        ["info", "/dev/zero"],
        ["score", "-m", "PIPE", "TABLE"],
        ["explain", "-m", "PIPE", "TABLE", "--row", "1"],
        ["merge", "PIPE", "/dev/zero", "-o", "out.mpf"],
        ["forget", "-m", "PIPE", "--id", "a"],
        ["forget", "-m", "TABLE", "--ids-from", "/dev/zero"],
        ["fit", "TABLE", "-m", "PIPE"],
        ["fit", "--batch", "--like", "PIPE", "TABLE", "-m", "out.mpf"],
        ["detect", "TABLE", "--out", "PIPE"],
        ["watch", "TABLE", "--model", "PIPE"],
        ["watch", "TABLE", "--model", "FOLDER"],
        ["watch", "TABLE", "--start-from", "PIPE"],
        ["watch", "TABLE", "--out", "PIPE"],
        ["detect", "/dev/zero"],
        ["detect", "PIPES"],
    ],
    ids=" ".join,
)
def test_command_rejects_pipes_devices_and_directories_at_once(programs, args, pipe, table, tmp_path):
    (tmp_path / "pipes").mkdir()
    os.mkfifo(tmp_path / "pipes" / "pipe.csv")
    places = {"PIPE": pipe, "TABLE": table, "FOLDER": tmp_path, "PIPES": tmp_path / "pipes"}
    done = programs.run(*(places.get(arg, arg) for arg in args), cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    *_, last = done.stderr.splitlines()
    assert last.startswith(b"Error: ")


def test_plot_and_example_do_not_wait_for_a_pipe(programs, table, tmp_path):
    os.mkfifo(tmp_path / "picture.png")
    os.mkfifo(tmp_path / "server-metrics.csv")
    os.mkfifo(tmp_path / "m.models-lock")
    for args in (
        ["detect", table, "--plot", tmp_path / "picture.png"],
        ["demo", "--to", tmp_path],
        ["watch", table, "--model", tmp_path / "m.models"],
    ):
        done = programs.run(*args, cwd=tmp_path)
        assert (done.returncode, b"a pipe or a device, not a file" in done.stderr) == (3, True)


@pytest.mark.slow
def test_pipes_with_a_reader_or_writer_work(table, tmp_path):
    program = " ".join(PROGRAM)
    script = f"""
    {program} detect -q <(cat {table}) &&
    cat {table} | {program} detect -q /dev/stdin &&
    {program} detect -q {table} --out >(cat > {tmp_path}/copy.csv) --only-anomalies &&
    {program} watch -q {table} --quarantine {tmp_path}/bad --out >(cat > {tmp_path}/lines.jsonl)
    """
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("of 60 rows") == 3


def test_help_is_the_same_without_docstrings():
    said = [
        subprocess.run([sys.executable, *flags, "-c", HELP], capture_output=True, text=True, check=True).stdout
        for flags in ([], ["-OO"])
    ]
    assert said[0] == said[1]
    pages = said[0].split("Usage: ")[1:]
    assert len(pages) == 1 + len(COMMANDS)
    assert all(len(page.split("Options:")[0].splitlines()) > 2 for page in pages)


@pytest.mark.slow  # kernels are compiled again without docstrings
def test_commands_work_without_docstrings(tmp_path):
    pl.DataFrame(server_metrics())[:100].write_csv(tmp_path / "table.csv")
    command = [sys.executable, "-OO", "-m", "polyaforest", "detect", str(tmp_path / "table.csv")]
    assert "of 100 rows" in subprocess.run(command, capture_output=True, text=True, check=True).stdout


HELP = """
from polyaforest.cli import COMMANDS, run
for args in ([], *([name] for name in COMMANDS)):
    try:
        run([*args, "--help"])
    except SystemExit as left:
        assert left.code == 0
"""
