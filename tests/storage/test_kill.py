"""A process killed while writing a model leaves a complete one."""

import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from effort import FULL, PROFILE

from polyaforest.storage.modelfile import read_model, write_model

pytestmark = [
    pytest.mark.fault,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="writers are forked, to start quickly"),
]

SIZE = 400_000  # 3.2 MB: writing takes long enough to be killed halfway
N_KILLS = 100 if PROFILE == FULL else 30

# Forks a writer for each line it reads and prints its process id. Writers run until they are killed, or a long time.
NURSERY = f"""
import os, sys
import numpy as np
from polyaforest.storage.modelfile import write_model

base = np.arange({SIZE})
for line in sys.stdin:
    writer = os.fork()
    if not writer:
        for number in range(int(line) + 1, int(line) + 2000):
            write_model(sys.argv[1], {{"number": number}}, {{"array": base + number}})
        os._exit(0)
    print(writer, flush=True)
    os.waitpid(writer, 0)
    print("gone", flush=True)
"""


@pytest.fixture
def nursery(tmp_path):
    command = [sys.executable, "-c", NURSERY, str(tmp_path / "model.mpf")]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # do not fork a process with threads
    with subprocess.Popen(
        command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        yield process
        process.stdin.close()


def test_killed_writer_leaves_a_complete_model(tmp_path, nursery):
    path, rng = tmp_path / "model.mpf", random.Random(0)
    base = np.arange(SIZE)
    start = time.perf_counter()
    write_model(path, {"number": 0}, {"array": base})
    duration = time.perf_counter() - start
    number, n_strays, n_written = 0, 0, 0
    for _ in range(N_KILLS):
        print(number, file=nursery.stdin, flush=True)
        writer = int(nursery.stdout.readline())
        time.sleep(rng.uniform(0, 4 * duration))
        os.kill(writer, signal.SIGKILL)
        assert nursery.stdout.readline() == "gone\n"

        header, arrays = read_model(path)
        assert header["number"] >= number  # the old model or a newer one
        np.testing.assert_array_equal(arrays["array"], base + header["number"])
        n_written += header["number"] - number
        number = header["number"]

        strays = [file for file in tmp_path.iterdir() if file != path]
        assert all(file.name.startswith(".model.mpf.") and file.name.endswith(".tmp") for file in strays)
        assert len(strays) <= 1
        n_strays += len(strays)
        for file in strays:
            file.unlink()
    assert n_strays > N_KILLS / 10  # some kills hit writers halfway,
    assert n_written > N_KILLS / 10  # others after they finished a model
