"""Large tables are held in memory once, and out-of-memory errors name the remedy."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from types import SimpleNamespace

import click
import numpy as np
import pytest

from polyaforest.cli import run
from polyaforest.io.tables import TableChunk, TableColumns, gather
from polyaforest.judge.table import DetectorSettings, TableDetector

N_CHUNKS, N_ROWS, N_COLUMNS = 20, 5_000, 40
N_BYTES = 8 * N_CHUNKS * N_ROWS * N_COLUMNS


def chunks():
    """Yield the chunks of a table, created one by one."""
    rng = np.random.default_rng(0)
    for i in range(N_CHUNKS):
        rows = rng.normal(size=(N_ROWS, N_COLUMNS))
        numbers = np.arange(i * N_ROWS, (i + 1) * N_ROWS)
        yield TableChunk(rows, numbers, None, None, None)


@pytest.fixture
def bench(monkeypatch):
    """Replace the work of `polyaforest bench`."""

    def put(function):
        command = click.command()(click.pass_context(function))
        monkeypatch.setitem(sys.modules, "polyaforest.cli._bench", SimpleNamespace(command=command))

    return put


def peak_of(work):
    """Return the peak of bytes that NumPy allocates during some work, and the result of the work."""
    tracemalloc.start()
    try:
        result = work()
        return tracemalloc.get_traced_memory()[1], result
    finally:
        tracemalloc.stop()


def test_gather_does_not_copy_chunks_twice():
    peak, whole = peak_of(lambda: gather(chunks()))
    assert len(whole.rows) == N_CHUNKS * N_ROWS
    np.testing.assert_array_equal(whole.rows, np.concatenate([chunk.rows for chunk in chunks()]))
    np.testing.assert_array_equal(whole.numbers, np.arange(N_CHUNKS * N_ROWS))
    assert peak < 1.3 * N_BYTES


def test_table_is_scored_without_a_copy():
    """More rows only add the memory of their scores; the forest takes the same for both."""
    whole = gather(chunks())
    names = [f"c{k}" for k in range(N_COLUMNS)]

    def peak(n_rows):
        part = TableChunk(whole.rows[:n_rows].copy(), whole.numbers[:n_rows], None, None, None)
        return peak_of(TableDetector(part, TableColumns(names), DetectorSettings(n_jobs=1)).detect)[0]

    few, many = 20_000, 60_000
    peak(few)  # kernels are loaded now
    assert peak(many) - peak(few) < 0.6 * 8 * N_COLUMNS * (many - few)


def test_out_of_memory_error_names_size_and_remedy(bench, capsys):
    bench(lambda ctx: np.empty(2**57))
    with pytest.raises(SystemExit) as ended:
        run(["bench"])
    err = capsys.readouterr().err
    assert ended.value.code == 3
    assert "not enough memory: unable to allocate 1.00 EiB" in err
    assert "--stream" in err
    assert "bug" not in err


def test_thread_without_stack_is_out_of_memory(bench, capsys):
    def begin(ctx):
        raise RuntimeError("can't start new thread")

    bench(begin)
    with pytest.raises(SystemExit) as ended:
        run(["bench"])
    assert ended.value.code == 3
    assert "not enough memory" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform != "linux", reason="limits on address space are Linux's")
def test_reports_address_space_limit():
    """Run a real process whose memory limit is below the size of a table."""
    code = (
        "import resource, numpy as np, polyaforest.cli as cli\n"
        "from types import SimpleNamespace\n"
        "import click, sys\n"
        "work = click.command()(lambda: np.ones(2**28))\n"
        "sys.modules['polyaforest.cli._bench'] = SimpleNamespace(command=work)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))\n"
        "cli.run(['bench'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    assert "unable to allocate 2.00 GiB" in done.stderr
    assert "of 1.1 GB of address space" in done.stderr
