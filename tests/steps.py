"""Kill processes at each step: before each SQL statement and each change of a file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from itertools import count

from effort import FULL, PROFILE

STRIDE = 1 if PROFILE == FULL else 3  # every how many steps to kill
# Orders are lines of JSON: run code in a forked process that kills itself at a step, and print its exit code.
_SERVER = """
import json, os, signal, sqlite3, sys, time
import numpy as np
import polyaforest.cli._demo, polyaforest.datasets.demo
from polyaforest import StreamingMPF
from polyaforest.judge import open_store
from polyaforest.service.database import Database

CHANGES = {"open", "link", "rename", "replace", "remove", "unlink", "fsync", "chmod", "fchmod", "mkdir", "rmdir"}
ROWS = np.random.default_rng(0).normal(size=(30, 2))
StreamingMPF(n_estimators=2, window=8, random_state=0).detect_then_learn(ROWS)  # compile all kernels

def forest():
    return StreamingMPF(n_estimators=2, window=8, random_state=0)

class Steps:
    def __init__(self, last):
        self.n, self.last = 0, last

    def __call__(self, *_):
        self.n += 1
        if self.n == self.last:
            os.kill(os.getpid(), signal.SIGKILL)

    def profile(self, frame, event, called):
        if event == "c_call" and called.__name__ in CHANGES and called.__module__ in ("posix", "_io", "io"):
            self()
        if event == "c_call" and isinstance(called.__self__, sqlite3.Connection) and called.__name__ != "execute":
            self()

def run(order):
    os.chdir(order["cwd"])
    steps = Steps(order["last"])

    class Traced(sqlite3.Connection):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            self.set_trace_callback(steps)  # also within a script

    connect = sqlite3.connect
    sqlite3.connect = lambda *args, **options: connect(*args, **options, factory=Traced)
    sys.setprofile(steps.profile)
    exec(compile(order["code"], "step", "exec"), globals())
    sys.setprofile(None)

print("ready", flush=True)
for line in sys.stdin:
    child = os.fork()
    if not child:
        try:
            run(json.loads(line))
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Killed:
    """Run code in processes that are killed."""

    def __init__(self):
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # forking a process with threads is unsafe
        self._server = subprocess.Popen(
            [sys.executable, "-c", _SERVER], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._server.stdout.readline() == "ready\n"

    def run(self, code, cwd, last=0):
        """Run code until step `last`, or to its end; return whether it was killed."""
        print(json.dumps({"code": code, "cwd": str(cwd), "last": last}), file=self._server.stdin, flush=True)
        ended = int(self._server.stdout.readline())
        assert ended in (0, -signal.SIGKILL)
        return ended != 0

    def at_each_step(self, code, tmp_path, prepare=lambda folder: None):
        """Kill the code at one in `STRIDE` steps in turn; yield the folder of each, filled by `prepare` before."""
        for last in count(1, STRIDE):
            folder = tmp_path / f"step {last}"
            folder.mkdir()
            prepare(folder)
            if not self.run(code, folder, last):
                return
            yield folder

    def close(self):
        """End the parent process."""
        self._server.stdin.close()
        self._server.wait()
        self._server.stdout.close()
