"""Real servers for tests to talk to, started in a temporary directory on a free port."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from waiting import until


class RedisServer:
    """A Redis server that keeps what it has been told, also when it is killed."""

    def __init__(self, directory: Path, *options: str) -> None:
        program = shutil.which("redis-server")
        if program is None:
            pytest.skip("redis-server is not installed: apt-get install redis-server")
        self.port = free_port()
        self.directory = directory
        self._command = [
            program, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(directory), "--save", "",
            "--appendonly", "yes", "--loglevel", "warning", "--logfile", str(directory / "redis.log"), *options,
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """The address without a stream."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start the server, and wait until it listens."""
        self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL)
        until(lambda: self._process.poll() is not None or self._listens())
        if self._process.poll() is not None:
            raise RuntimeError(f"redis-server did not start: {(self.directory / 'redis.log').read_text()}")

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        """End the server without a warning; nothing if it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = None


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def redis_server(directory: Path, *options: str) -> Iterator[RedisServer]:
    """A Redis server that runs; skips the test where the program is missing."""
    server = RedisServer(directory, *options)
    server.start()
    try:
        yield server
    finally:
        server.kill()
