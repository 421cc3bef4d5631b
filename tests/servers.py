"""Redis and PostgreSQL servers for tests, in temporary directories on free ports."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from glob import glob
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

import pytest
from waiting import until


class RedisServer:
    """A Redis server whose data survives a kill."""

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
        """Address without a stream."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start the server; wait until it listens."""
        self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL)
        until(lambda: self._process.poll() is not None or self._listens())
        if self._process.poll() is not None:
            raise RuntimeError(f"redis-server did not start: {(self.directory / 'redis.log').read_text()}")

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        """Kill the server, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = None


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def redis_server(directory: Path, *options: str) -> Iterator[RedisServer]:
    """Run a Redis server; skip the test if it is not installed."""
    server = RedisServer(directory, *options)
    server.start()
    try:
        yield server
    finally:
        server.kill()


class PostgresServer:
    """A PostgreSQL server in a directory, with a socket there and a loopback port."""

    PASSWORD = "p@ss/w%rd"

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._programs = _postgres_programs()
        self._user = _ordinary_user()
        self.port = free_port()
        self._data = directory / "data"
        self._process: subprocess.Popen[bytes] | None = None

    def address(self, user: str = "tester", password: str = PASSWORD) -> str:
        """Address of the database."""
        return f"postgresql://{user}:{quote(password, safe='')}@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Create a cluster, start the server, and wait until it answers."""
        if self._user:
            _let_in(self.directory, self._user)
        password = self.directory / "password"
        password.write_text(self.PASSWORD)
        password.chmod(0o644)
        self._run(
            "initdb", "-D", self._data, "-U", "tester", "--pwfile", password, "-A", "scram-sha-256", "-N", "-E", "UTF8"
        )
        settings = {
            "port": self.port, "listen_addresses": "127.0.0.1", "unix_socket_directories": "", "fsync": "off",
            "shared_buffers": "16MB", "max_connections": "10",
        }  # fmt: skip
        command = [
            self._programs / "postgres",
            "-D",
            self._data,
            *(f"--{name}={value}" for name, value in settings.items()),
        ]
        with (self.directory / "log").open("wb") as log:
            self._process = subprocess.Popen(self._as_user(command), stdin=subprocess.DEVNULL, stderr=log, stdout=log)
        until(lambda: self._process.poll() is not None or self._answers())
        if self._process.poll() is not None:
            raise RuntimeError(f"postgres did not start: {(self.directory / 'log').read_text()}")

    def _run(self, program: str, *options: object) -> None:
        subprocess.run(self._as_user([self._programs / program, *options]), check=True, capture_output=True)

    def _as_user(self, command: list[object]) -> list[str]:
        """Return a command that runs as an ordinary user: the server does not run as root."""
        before = ["setpriv", f"--reuid={self._user}", "--regid=65534", "--clear-groups"] if self._user else []
        return [*before, *map(str, command)]

    def _answers(self) -> bool:
        ready = [str(self._programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(ready, check=False).returncode == 0

    def stop(self) -> None:
        """Stop the server immediately."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait()


def _postgres_programs() -> Path:
    """Return the directory of the PostgreSQL programs, which Debian does not put on the path."""
    found = [Path(path).parent for path in glob("/usr/lib/postgresql/*/bin/postgres")]
    on_path = shutil.which("postgres")
    found += [Path(on_path).resolve().parent] if on_path else []
    if not found:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    return found[-1]


def _ordinary_user() -> str | None:
    """Return the id of an ordinary user if the tests run as root, else None."""
    if os.getuid() != 0:
        return None
    if shutil.which("setpriv") is None:
        pytest.skip("PostgreSQL does not run as root, and setpriv is not installed")
    return "65534"


def _let_in(directory: Path, user: str) -> None:
    """Make a user the owner of a directory, and its parents accessible."""
    os.chown(directory, int(user), 65534)
    for parent in directory.parents:
        if parent.stat().st_uid == os.getuid() and not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o011)


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Run a PostgreSQL server; skip the test if it is not installed.

    Its directory is not among those of pytest: every run of pytest closes these to all users but its own.
    """
    with TemporaryDirectory(prefix="postgres-", ignore_cleanup_errors=True) as directory:
        server = PostgresServer(Path(directory))
        try:
            server.start()
            yield server
        finally:
            server.stop()
