"""Spark in this process with local threads, and a local cluster: a master and two workers on free loopback ports."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from servers import free_port
from waiting import until

MEMORY = "700m"  # of each executor
SHORT_RUN = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # options of Java that cost less processor time at the start


def skip_without_java() -> None:
    """Skip the test without Java."""
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java 17, which is not installed: apt-get install openjdk-17-jre-headless")


class Cluster:
    """A master and two workers of one core each."""

    def __init__(self, directory: Path) -> None:
        import pyspark

        self.directory, self.port = directory, free_port()
        self._home = Path(pyspark.__file__).parent
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def address(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start all processes; wait until the master lists both workers."""
        self._run("master", "master.Master", "--host", "127.0.0.1", "--port", str(self.port), "--webui-port", "0")
        for i in range(2):
            self._run(
                f"worker{i}", "worker.Worker", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0",
                "--cores", "1", "--memory", "1g", "--work-dir", str(self.directory / f"work{i}"), self.address,
            )  # fmt: skip
        log = self.directory / "master.log"
        until(lambda: self._alive() and log.read_text().count("Registering worker") == 2, seconds=120)

    def _run(self, name: str, kind: str, *options: str) -> None:
        environment = os.environ | {
            "SPARK_HOME": str(self._home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self.directory / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_NO_DAEMONIZE": "1",
        }
        with (self.directory / f"{name}.log").open("wb") as log:
            command = [str(self._home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *options]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        self._processes.append(process)

    def _alive(self) -> bool:
        for process in self._processes:
            if process.poll() is not None:
                logs = "\n".join(path.read_text()[-2000:] for path in self.directory.glob("*.log"))
                raise RuntimeError(f"Spark did not start: {logs}")
        return True

    def close(self) -> None:
        """End all processes."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait()


@contextmanager
def cluster_session(directory: Path) -> Iterator[Any]:
    """Session on a new cluster; skip the test without Java."""
    skip_without_java()
    cluster = Cluster(directory)
    cluster.start()
    try:
        with _session(cluster.address, directory) as session:
            yield session
    finally:
        cluster.close()


@contextmanager
def local_session(directory: Path) -> Iterator[Any]:
    """Session with two threads of this process's Java; skip the test without Java."""
    skip_without_java()
    with _session("local[2]", directory) as session:
        yield session


@contextmanager
def _session(master: str, directory: Path) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.master(master).appName("tests")
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": SHORT_RUN,
        "spark.executor.memory": MEMORY,
        "spark.executor.cores": "1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    for name in {"PYTHONPATH", "POLYAFOREST_CACHE_DIR"} & set(os.environ):
        settings[f"spark.executorEnv.{name}"] = os.environ[name]
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()
