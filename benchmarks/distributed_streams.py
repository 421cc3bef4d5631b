"""Keyed streams on a cluster: size and speed of serialized detectors, and keys per second on Spark.

Writes results/distributed-codec.csv and results/distributed-keyed.csv, and fills docs/benchmarks/keyed-streams.md.
Times are comparable only within a run, so a part is always measured completely. Serialization is measured by the
processor time of the process; Spark by the clock and by the processor time of driver, JVM and workers together, so that
other load on the machine does not matter.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import psutil
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

import polyaforest
from benchmarks.registry import Benchmark, only
from benchmarks.shared.pages import ROOT, fill, table
from benchmarks.shared.results import Results, read
from benchmarks.shared.spark import new_session
from polyaforest import SeriesMPF, StreamingMPF
from polyaforest.detectors import loads
from polyaforest.distributed.spark.stream import watch

Rows = Sequence[Mapping[str, str]]

PAGE = "keyed-streams"
CODEC, KEYED = "distributed-codec", "distributed-keyed"
ROUNDS = 40
KEYS, ROWS = 10_000, 10  # keys, and rows of each in a micro-batch
FEATURES, WINDOW = 3, 256
KINDS = ("no-op", "watch")
CHILD = """
import json, sys, pathlib
from benchmarks.distributed_streams import measure
kind, workers, keys, folder = sys.argv[1:]
print(json.dumps(measure(kind, int(workers), int(keys), pathlib.Path(folder))), flush=True)
"""


# ---- bytes -----------------------------------------------------------------------------------------------------------


def detectors() -> dict[str, Any]:
    """Return detectors with full windows."""
    rng = np.random.default_rng(0)
    rows, steps = rng.normal(size=(2_000, FEATURES)), np.arange(3_000)
    stream, series = StreamingMPF(window=WINDOW, random_state=0), SeriesMPF(StreamingMPF(random_state=0))
    stream.detect_then_learn(rows)
    series.detect_then_learn(np.sin(steps / 20) + rng.normal(size=len(steps)) / 9, times=60.0 * steps)
    return {"StreamingMPF, 256 x 3": stream, "SeriesMPF, one channel": series}


def sealed(model: Any) -> bytes:
    """Return a model as a file has it."""
    file = io.BytesIO()
    model.save(file)
    return file.getvalue()


def measure_codec(rounds: int, directory: Path) -> None:
    """Time how detectors become bytes and come back, the ways of it by turns."""
    ways: dict[str, tuple[Callable[[Any], bytes], Callable[[bytes], Any]]] = {
        "to_bytes, loads": (lambda model: model.to_bytes(), loads),
        "pickle": (lambda model: pickle.dumps(model, 5), pickle.loads),
        "save, load": (sealed, lambda block: polyaforest.load(io.BytesIO(block))),
    }
    results = Results(CODEC, ("detector", "way"), directory)
    for name, model in detectors().items():
        results.forget(detector=name)
        blocks = {way: store(model) for way, (store, _) in ways.items()}
        spent: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        for _ in range(rounds):
            for way, (store, restore) in ways.items():
                spent[way].append((seconds(lambda: store(model)), seconds(lambda: restore(blocks[way]))))  # noqa: B023
        for way, times in spent.items():
            stored, loaded = (1000 * median(part) for part in zip(*times, strict=True))
            results.add(
                {"detector": name, "way": way, "bytes": len(blocks[way]), "store_ms": stored, "load_ms": loaded}
            )


def seconds(task: Callable[[], Any]) -> float:
    """Return the processor time that a task takes."""
    start = time.process_time()
    task()
    return time.process_time() - start


# ---- Spark -----------------------------------------------------------------------------------------------------------


def measure_keyed(n_keys: int, workers: list[int], directory: Path) -> None:
    """Measure a micro-batch of all keys, for each number of workers, in separate processes."""
    results = Results(KEYED, ("kind", "workers"), directory)
    for n_workers in workers:
        for kind in KINDS:
            results.forget(kind=kind, workers=n_workers)
            results.add({"kind": kind, "workers": n_workers, **json.loads(measured(kind, n_workers, n_keys))})


def measured(kind: str, n_workers: int, n_keys: int) -> bytes:
    """Measure in a process; again if Spark lost patience with a Python that it had started, as on a busy machine."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    for is_last in (False, False, True):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-c", CHILD, kind, str(n_workers), str(n_keys), folder]
            done = subprocess.run(command, check=is_last, stdout=subprocess.PIPE, env=environment, cwd=ROOT)
        if not done.returncode:
            break
    return done.stdout.splitlines()[-1]


def measure(kind: str, n_workers: int, n_keys: int, folder: Path) -> dict[str, Any]:
    """Run a query whose first micro-batch fills the states, and return what the second took."""
    rng = np.random.default_rng(0)
    (folder / "in").mkdir()
    for batch, n_rows in enumerate((1, ROWS)):
        values = rng.normal(size=(n_keys * n_rows, FEATURES))
        rows = pl.DataFrame({f"f{k}": column for k, column in enumerate(values.T)}).with_columns(
            host=pl.Series(np.arange(len(values)) % n_keys), offset=pl.Series(np.arange(len(values)) + n_keys * batch)
        )
        path = folder / "in" / f"{batch}.parquet"
        rows.write_parquet(path)
        os.utime(path, (1e9 + batch, 1e9 + batch))
    spark = new_session(n_workers, spark_sql_shuffle_partitions="4", spark_driver_memory="3g")
    schema = ", ".join(f"f{k} double" for k in range(FEATURES)) + ", host long, offset long"
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
    before: list[float] = []

    def note(batch: Any, number: int) -> None:
        if number == 1:
            before.append(processor_time())
        batch.write.format("noop").mode("append").save()

    writing = (
        verdicts_on(stream, kind).writeStream.foreachBatch(note).option("checkpointLocation", str(folder / "state"))
    )
    query = writing.trigger(availableNow=True).start()
    query.awaitTermination()
    spent = processor_time() - before[0]
    done = next(progress for progress in query.recentProgress if progress["numInputRows"] == n_keys * ROWS)
    wall = done["durationMs"]["addBatch"] / 1000
    state = sum(operator["memoryUsedBytes"] for operator in done["stateOperators"])
    spark.stop()
    return {"keys": n_keys, "rows": ROWS, "seconds": wall, "cpu_seconds": spent, "state_bytes": state}


def full_window() -> Any:
    """Return a detector with a full window, a copy of which every key starts with."""
    rows = np.random.default_rng(1).normal(size=(1_300, FEATURES))
    model = StreamingMPF(window=WINDOW, random_state=0, missing="marginalise")
    names = [f"f{k}" for k in range(FEATURES)]
    model.detect_then_learn(pd.DataFrame(rows, columns=names))
    return model


def verdicts_on(stream: Any, kind: str) -> Any:
    """Return the results of a stream: by `watch`, or of as many rows and states by a task that does nothing else."""
    model = full_window()
    verdicts = watch(stream, key="host", order="offset", start_from=model)
    if kind == "watch":
        return verdicts
    return stream.groupBy("host").transformWithState(
        NoOp(model.to_bytes()),
        outputStructType="host long, offset long, score double",
        outputMode="Append",
        timeMode="None",
    )


class NoOp(StatefulProcessor):  # type: ignore[misc]
    """Reads and writes a state of as many bytes as a detector has, and returns as many rows."""

    def __init__(self, block: bytes) -> None:
        self.block = block

    def init(self, handle: Any) -> None:
        """Declare the state."""
        self.state = handle.getValueState("model", "model BINARY, latest BIGINT")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:  # noqa: N802 -- Spark's
        """Return a row for each."""
        self.state.get()
        self.state.update((self.block, 0))
        for row in rows:
            yield Row(host=key[0], offset=row.offset, score=0.0)

    def close(self) -> None:
        """Do nothing."""


def processor_time() -> float:
    """Return the processor time of this process and of all that it has started, in seconds."""
    me = psutil.Process()
    total = 0.0
    for process in (me, *me.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


# ---- the page --------------------------------------------------------------------------------------------------------


def codec_table(rows: Rows) -> str:
    """Return bytes and times by detector and format."""
    lines = [
        [
            row["detector"],
            f"`{row['way']}`",
            f"{int(row['bytes']) / 1e6:.2f} MB",
            f"{float(row['store_ms']):.1f} ms",
            f"{float(row['load_ms']):.1f} ms",
        ]
        for row in rows
    ]
    return table(["detector", "how", "size", "store", "load"], lines)


def keyed_table(rows: Rows) -> str:
    """Return keys per second by query and number of workers."""
    lines = []
    for row in rows:
        n, wall, spent = int(row["keys"]), float(row["seconds"]), float(row["cpu_seconds"])
        per_key = 1000 * spent / n
        lines.append(
            [row["kind"], row["workers"], f"{n:,}", f"{n / wall:,.0f}", f"{per_key:.1f} ms", f"{2000 / per_key:,.0f}"]
        )
    header = [
        "query",
        "workers",
        "keys",
        "keys/s by the clock",
        "processor time per key",
        "keys/s that two cores allow",
    ]
    return table(header, lines)


BLOCKS: dict[str, tuple[str, Callable[[Rows], str]]] = {"codec": (CODEC, codec_table), "keyed": (KEYED, keyed_table)}


def render(directory: Path, pages: Path) -> None:
    """Fill the tables of the page from those files that there are."""
    for part, (name, tabulate) in BLOCKS.items():
        path = directory / f"{name}.csv"
        if path.exists():
            fill(PAGE, part, tabulate(read(path)), pages)


def measure_all(options: Namespace, directory: Path) -> None:
    """Measure some parts again."""
    if "codec" in options.part:
        measure_codec(3 if options.quick else ROUNDS, directory)
    if "keyed" in options.part:
        measure_keyed(100 if options.quick else options.keys, [2] if options.quick else [2, 1], directory)


BENCHMARK = Benchmark(
    measure_all,
    render,
    quick="few rounds and few keys",
    options={
        "--part": only(BLOCKS),
        "--keys": {"type": int, "default": KEYS, "help": "of the stream on Spark"},
    },
    peers=("pyspark",),
)
