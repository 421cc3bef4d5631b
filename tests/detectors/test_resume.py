"""A stream killed at any moment resumes from its last snapshot with identical results."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from polyaforest import StreamingMPF

pytestmark = pytest.mark.fault

CHUNK, N_ROWS, N_KILLS = 40, 2000, 4

WORKER = """
import sys
import numpy as np
from polyaforest import StreamingMPF

path, n_rows, chunk = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rows = np.random.default_rng(0).normal(size=(n_rows, 3))
try:
    forest = StreamingMPF.load(path)
except FileNotFoundError:
    forest = StreamingMPF(n_estimators=5, window=100, random_state=1).partial_fit(rows[:chunk])
print("ready", flush=True)
while forest.n_seen_ < n_rows:
    forest.score_then_learn(rows[forest.n_seen_ : forest.n_seen_ + chunk])
    forest.save(path)
"""


def start(path: Path) -> subprocess.Popen:
    command = [sys.executable, "-c", WORKER, str(path), str(N_ROWS), str(CHUNK)]
    worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    assert worker.stdout.readline() == "ready\n"
    return worker


@pytest.mark.slow  # test_watch.py kills and resumes in every run
def test_killed_stream_resumes_as_if_never_stopped(tmp_path):
    path, rng, n_killed = tmp_path / "model.mpf", np.random.default_rng(2), 0
    for _ in range(N_KILLS):
        with start(path) as worker:
            time.sleep(rng.uniform(0.005, 0.05))
            n_killed += worker.poll() is None
            worker.send_signal(signal.SIGKILL)
    with start(path) as worker:
        assert worker.wait(timeout=120) == 0
    assert n_killed > 0
    resumed = StreamingMPF.load(path)
    rows = np.random.default_rng(0).normal(size=(N_ROWS, 3))
    never_stopped = StreamingMPF(n_estimators=5, window=100, random_state=1).partial_fit(rows)
    assert resumed.n_seen_ == N_ROWS
    assert np.array_equal(resumed.points_, never_stopped.points_)
    for mine, theirs in zip(resumed.forest_, never_stopped.forest_, strict=True):
        assert np.array_equal(mine, theirs, equal_nan=mine.dtype.kind == "f")
    probes = rng.normal(size=(50, 3))
    assert np.array_equal(resumed.score_then_learn(probes), never_stopped.score_then_learn(probes))
