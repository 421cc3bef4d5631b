"""Run the program in processes forked from one that has imported everything."""

from __future__ import annotations

import ctypes
import json
import os
import pty
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

# Commands are lines of JSON: start a process and print its id, or wait for one and print its exit code.
_SERVER = """
import gc, json, os, signal, sys
import matplotlib.figure, numpy, polars
import polyaforest.cli, polyaforest.judge.saved, polyaforest.judge.watcher, polyaforest.io.sources, polyaforest.series
from importlib import import_module
for name in polyaforest.cli.COMMANDS:
    import_module(f"polyaforest.cli._{name}")
import polyaforest.service.server, polyaforest.service.demo, requests
rows = numpy.random.default_rng(0).normal(size=(150, 2))
rows[140] = 99  # an anomaly to explain
polyaforest.StreamingMPF(n_estimators=2, window=50, missing="marginalise").detect_then_learn(rows, explain=True)
gc.freeze()
print("ready", flush=True)
for line in sys.stdin:
    order = json.loads(line)
    if "wait" in order:
        _, status = os.waitpid(order["wait"], 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
        continue
    child = os.fork()
    if child == 0:
        os.chdir(order["cwd"])
        os.environ.update(order["env"])
        os.setsid()
        signal.alarm(300)  # kill a program that hangs
        modes = (os.O_RDONLY, os.O_WRONLY | os.O_CREAT | os.O_APPEND, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for number, (path, mode) in enumerate(zip(order["files"], modes)):
            os.dup2(os.open(path, mode), number)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", errors="backslashreplace")
        try:
            polyaforest.cli.run(order["arguments"])
        except SystemExit as left:
            os._exit(left.code)  # a regular exit takes more than a second to tear down imports
    print(child, flush=True)
"""


def without_privileges() -> None:
    """Make file permissions apply to root in the new process, by a Linux system call (`preexec_fn`)."""
    if os.geteuid() == 0:
        drop_from_bounding_set, override_permissions, override_reading = 24, 1, 2
        for capability in (override_permissions, override_reading):
            ctypes.CDLL(None).prctl(drop_from_bounding_set, capability, 0, 0, 0)


class Programs:
    """Start processes of `polyaforest` and return their exit codes."""

    def __init__(self) -> None:
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # forking a process with threads is unsafe
        self._server = subprocess.Popen(
            [sys.executable, "-c", _SERVER], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._answer() == "ready"

    def start(self, *arguments, cwd, files=(os.devnull, "stdout", "stderr"), env=None):
        """Start a process with `files` as stdin, stdout and stderr; return its id."""
        given = [os.fsdecode(part) if isinstance(part, bytes | os.PathLike) else str(part) for part in arguments]
        order = {"arguments": given, "cwd": str(cwd), "files": [str(file) for file in files], "env": env or {}}
        return int(self._answer(order))

    def wait(self, process):
        """Return the exit code of a process, negative if a signal ended it."""
        return int(self._answer({"wait": process}))

    def run(self, *arguments, text=b"", cwd=".", env=None):
        """Run the program to its end, like `subprocess.run`; capture its output as bytes."""
        with tempfile.TemporaryDirectory() as folder:
            pipe, out, err = (Path(folder, name) for name in ("stdin", "stdout", "stderr"))
            os.mkfifo(pipe)
            process = self.start(*arguments, cwd=os.path.abspath(cwd), files=[pipe, out, err], env=env)
            with suppress(BrokenPipeError):  # it has read enough
                pipe.write_bytes(text.encode() if isinstance(text, str) else text)
            code = self.wait(process)
            return subprocess.CompletedProcess(arguments, code, out.read_bytes(), err.read_bytes())

    def run_on_terminal(self, *arguments, cwd=".", env=None, err=None):
        """Run the program on a terminal, with stderr there or in a file; return exit code and output."""
        reader, terminal = pty.openpty()
        place = os.ttyname(terminal)
        process = self.start(*arguments, cwd=os.path.abspath(cwd), files=[place, place, err or place], env=env)
        codes = []

        def wait():
            codes.append(self.wait(process))
            os.close(terminal)

        waiter = threading.Thread(target=wait)
        waiter.start()
        said = b""
        with suppress(OSError):  # Linux raises it when the other end is closed
            while chunk := os.read(reader, 1 << 16):
                said += chunk
        waiter.join()
        os.close(reader)
        return codes[0], said.decode().replace("\r\n", "\n")

    @contextmanager
    def piped(self, *arguments, cwd):
        """Run the program with pipes; yield its id and our ends of stdin and stdout. stderr goes to a file."""
        with tempfile.TemporaryDirectory() as folder:
            pipes = [Path(folder, name) for name in ("stdin", "stdout")]
            for pipe in pipes:
                os.mkfifo(pipe)
            process = self.start(*arguments, cwd=cwd, files=[*pipes, "stderr"])
            stdin, stdout = pipes[0].open("wb", buffering=0), pipes[1].open("rb")
            with stdin, stdout:
                yield process, stdin, stdout

    def close(self):
        """End the parent process."""
        self._server.stdin.close()
        self._server.wait()
        self._server.stdout.close()

    def _answer(self, order=None):
        if order is not None:
            print(json.dumps(order), file=self._server.stdin, flush=True)
        return self._server.stdout.readline().rstrip("\n")


class Watches:
    """Start one `polyaforest watch` after another; output goes to the files stdout and stderr of a directory."""

    def __init__(self, programs):
        self._programs = programs
        self.child = None  # a process that has not been waited for

    def start(self, folder, *arguments):
        """Start a process; return its id."""
        self.child = self._programs.start("watch", *arguments, cwd=folder)
        return self.child

    def wait(self):
        """Wait for the latest process; return its exit code."""
        child, self.child = self.child, None
        return self._programs.wait(child)

    def close(self):
        """Kill the process that a failed test left running."""
        if self.child is not None:
            os.kill(self.child, signal.SIGKILL)
            self.wait()
