"""Fitting and scoring on Dask and Spark: rows per second, next to a local forest and a no-op.

Writes results/clusters.csv, a row per engine and task, and prints it. Both engines run on this machine, with one
process per core. The no-op reads the same rows on the same engine and returns one number for each.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from distributed import Client, LocalCluster
from pyspark.sql.types import DoubleType, StructField, StructType

from benchmarks.registry import Benchmark, only
from benchmarks.shared.results import write
from benchmarks.shared.spark import new_session
from benchmarks.shared.timing import seconds
from polyaforest import BatchMPF, StreamingMPF
from polyaforest.distributed import dask as forests
from polyaforest.distributed.spark.ml import MPFEstimator

N_FEATURES = 10
KINDS = {"streaming": StreamingMPF, "batch": BatchMPF}
ROUNDS = 3


def table(n_rows: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(n_rows, N_FEATURES))


def best(task: Callable[[], Any]) -> float:
    """Return the least time of some rounds, after one that loads compiled code."""
    task()
    return min(seconds(task) for _ in range(ROUNDS))


def local(n_rows: int) -> Iterator[tuple[str, float]]:
    """Time a local forest on all cores."""
    rows = table(n_rows)
    for name, kind in KINDS.items():
        detector = kind(random_state=0, n_jobs=-1)
        yield f"fit {name}", best(lambda detector=detector: detector.fit(rows))
        yield f"score {name}", best(lambda detector=detector: detector.score_samples(rows))


def on_dask(n_rows: int) -> Iterator[tuple[str, float]]:
    """Time Dask with a process for every core; rows are in the memory of the workers."""
    n_workers = os.cpu_count() or 1
    with (
        LocalCluster(n_workers=n_workers, threads_per_worker=1, host="127.0.0.1", dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        chunk = -(-n_rows // (4 * n_workers))
        rows = da.random.default_rng(0).normal(size=(n_rows, N_FEATURES), chunks=(chunk, N_FEATURES)).persist()
        client.gather(client.compute(rows.sum()))
        yield "no-op", best(lambda: rows.map_blocks(_first, drop_axis=1).compute())
        for name, kind in KINDS.items():
            yield f"fit {name}", best(lambda kind=kind: forests.fit(kind(random_state=0), rows))
            fitted = forests.fit(kind(random_state=0), rows)
            yield f"score {name}", best(lambda fitted=fitted: forests.score_samples(fitted, rows).compute())


def _first(block: Any) -> Any:
    return block[:, 0].copy()


def on_spark(n_rows: int) -> Iterator[tuple[str, float]]:
    """Time Spark with a thread for every core; rows are cached by the executor."""
    with _spark() as session:
        columns = [f"x{k}" for k in range(N_FEATURES)]
        n_parts = 2 * (os.cpu_count() or 1)
        numbers = ", ".join(f"randn({k}) AS {name}" for k, name in enumerate(columns)).split(", ")
        frame = session.range(0, n_rows, 1, n_parts).selectExpr("id", *numbers).cache()
        frame.count()
        schema = StructType([*frame.schema.fields, StructField("score", DoubleType())])
        passed = frame.mapInArrow(_pass_on, schema)
        yield "no-op", best(lambda: _drain(passed))
        for name in KINDS:
            estimator = MPFEstimator(inputCols=columns, idCol="id", detector=name, seed=0)
            yield f"fit {name}", best(lambda estimator=estimator: estimator.fit(frame))
            scored = estimator.fit(frame).transform(frame)
            yield f"score {name}", best(lambda scored=scored: _drain(scored))


def _pass_on(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        yield batch.append_column("score", batch.column(1))


def _drain(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


@contextmanager
def _spark() -> Iterator[Any]:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = new_session("*", spark_sql_warehouse_dir=folder)
        try:
            yield session
        finally:
            session.stop()


ENGINES = {"local": local, "dask": on_dask, "spark": on_spark}


def measure_all(options: Namespace, directory: Path) -> None:
    """Measure all engines, and write the file."""
    n_rows = 50_000 if options.quick else options.rows
    found: list[dict[str, Any]] = []
    for engine in options.engine:
        for task, taken in ENGINES[engine](n_rows):
            found.append(
                {"engine": engine, "task": task, "rows": n_rows, "seconds": taken, "rows_per_s": n_rows / taken}
            )
            print(f"{engine:6} {task:20} {n_rows / taken:12,.0f} rows/s", flush=True)
    write("clusters", found, directory)


BENCHMARK = Benchmark(
    measure_all,
    quick="few rows",
    options={
        "--engine": only(ENGINES),
        "--rows": {"type": int, "default": 1_000_000},
    },
    peers=("dask", "distributed", "pyspark"),
)
