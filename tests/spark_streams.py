"""Keyed Spark streams in a separate process, which tests may kill: the driver and its input.

    python tests/spark_streams.py FOLDER MASTER NAME ...

runs queries one after another; a query that ran before resumes. The input of a query is in FOLDER/NAME/in, one file per
micro-batch; its results are in FOLDER/NAME/out.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import polars as pl
import pytest
from spark_cluster import SHORT_RUN

from polyaforest import SeriesMPF, StreamingMPF, Window

KEYS = ["web-1", "web-2", "db", "é\u2028"]
BEGAN = 1_700_000_000


def table(n: int, seed: int) -> pl.DataFrame:
    """Rows of several keys, by offset, with missing values and anomalies."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(n, 2)) + np.sin(np.arange(n) / 30)[:, None]
    values[rng.random(n) < 0.02] *= 9
    frame = pl.DataFrame({"a": values[:, 0], "b": values[:, 1]}).with_columns(
        host=pl.Series(rng.choice(KEYS, n)), offset=pl.Series(np.arange(n)), at=pl.Series(BEGAN + 60.0 * np.arange(n))
    )
    is_missing = pl.Series(rng.random(n) < 0.03)
    return frame.with_columns(a=pl.when(is_missing).then(None).otherwise(pl.col("a")))


def seasoned() -> dict[str, StreamingMPF]:
    """Initial models of two keys."""
    rows = table(200, 5).drop_nulls()
    return {key: started().partial_fit(rows.select("a", "b")) for key in KEYS[:2]}


def timed() -> StreamingMPF:
    """An initial model that is larger than Spark's limit for broadcasts."""
    rows = table(200, 6).drop_nulls().with_columns(pl.col("at") - 60.0 * 200)
    window = Window(timedelta(hours=2))
    model = StreamingMPF(random_state=1, missing="marginalise", window=window, max_samples=None)
    return model.partial_fit(rows.select("b", "a"), times=rows["at"])


def started() -> StreamingMPF:
    return StreamingMPF(n_estimators=10, window=50, missing="marginalise", random_state=3)


QUERIES: dict[str, dict[str, Any]] = {  # arguments of `watch`
    "rows": {"columns": ["a", "b"]},
    "series": {"columns": ["a", "b"], "time": "at", "detector": SeriesMPF(started(), shingle=3)},
    "timed": {"columns": ["b", "a"], "time": "at", "explain": False},  # with an initial model
    "seasoned": {"columns": ["a", "b"], "detector": started()},
    "silent": {"columns": ["a", "b"], "silence": timedelta(seconds=2), "forget_after": timedelta(seconds=4)},
}


def write(folder: Path, parts: list[pl.DataFrame]) -> None:
    """Write the files of a stream, one per micro-batch."""
    (folder / "in").mkdir(parents=True)
    for i, part in enumerate(parts):
        path = folder / "in" / f"{i:03}.parquet"
        part.write_parquet(path)
        os.utime(path, (BEGAN + i, BEGAN + i))


def batches(folder: Path) -> int:
    """Number of micro-batches that a query has completed."""
    commits = folder / "checkpoint" / "commits"
    return sum(path.name.isdigit() for path in commits.iterdir()) if commits.exists() else 0


def results(folder: Path) -> pl.DataFrame:
    """Results of a query, from the files in the log of the sink; killed tasks leave other files."""
    written: dict[str, None] = {}
    log = folder / "out" / "_spark_metadata"
    files = [path for path in log.iterdir() if path.name[0] != "."] if log.exists() else []
    for path in sorted(files, key=lambda path: int(path.name.removesuffix(".compact"))):
        for line in path.read_text("utf-8").splitlines()[1:]:
            written[unquote(urlsplit(json.loads(line)["path"]).path)] = None
    schema = {"host": pl.String, "offset": pl.Int64, "status": pl.String}
    parts = [part for part in map(pl.read_parquet, written) if len(part)]
    return pl.concat(parts) if parts else pl.DataFrame(schema=schema)


def skip_without_java() -> None:
    pytest.importorskip("pyspark", reason='PySpark is not installed: pip install "polyaforest[spark]"')
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs Java 17, and there is none: apt-get install openjdk-17-jre-headless")


def command(folder: Path, *names: str, master: str = "local[2]") -> list[str]:
    """Command that runs queries."""
    return [sys.executable, str(Path(__file__)), str(folder), master, *names]


def main(folder: Path, master: str, names: list[str]) -> None:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(master).config("spark.sql.shuffle.partitions", "2")
    for option, value in {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": SHORT_RUN,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.streaming.noDataMicroBatches.enabled": "true",
    }.items():
        builder = builder.config(option, value)
    spark = builder.getOrCreate()
    for name in names:
        if name == "refusals":
            (folder / name).write_text(json.dumps(refusals(spark)), "utf-8")
            (folder / "categories").write_text(json.dumps(of_categories(spark)), "utf-8")
            continue
        run(spark, folder / name, QUERIES[name], name)
        print(name, "done", flush=True)
    spark.stop()


def run(spark: Any, folder: Path, given: dict[str, Any], name: str) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    from polyaforest.distributed.spark.stream import watch

    schema = "a double, b double, host string, offset long, at double"
    rows = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
    if name == "series":  # times and order as timestamps
        rows = rows.withColumn("at", F.timestamp_seconds("at")).withColumn("offset", F.timestamp_seconds("offset"))
    models = {"seasoned": seasoned, "timed": timed}
    given = {**given, "start_from": models[name]()} if name in models else given
    writing = (
        watch(rows, key="host", order="offset", **given)
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .option("path", str(folder / "out"))
    )
    if "silence" not in given:
        started_in_time(lambda: writing.trigger(availableNow=True).start().awaitTermination())
        return
    query = writing.trigger(processingTime="0 seconds").start()
    while query.isActive and not (folder / "stop").exists():
        query.awaitTermination(1)
    query.stop()


def started_in_time(task: Callable[[], Any]) -> Any:
    """Run a task; retry it if Python workers started too slowly for Spark."""
    for _ in range(5):
        try:
            return task()
        except Exception as problem:
            if "failed to connect back" not in str(problem):  # Spark waits for ten seconds, too few on a busy machine
                raise
    return task()


def refusals(spark: Any) -> list[list[str]]:
    """Error messages of `watch` for invalid arguments, and the result of a static frame."""
    from pyspark.sql import functions as F  # noqa: N812

    from polyaforest.distributed.spark.stream import watch

    schema = "a double, b int, host string, offset long, at timestamp, score double, `odd.name` double, t decimal(9, 2)"
    schema += ", zone string"
    rows = spark.createDataFrame([], schema)
    said = []
    for given in [
        {"key": "hosts"},
        {"order": "host"},
        {"order": "a"},
        {"key": "score"},
        {"columns": ["a", "host"]},
        {"columns": ["a", "at"]},
        {"columns": ["a", "zone"], "detector": SeriesMPF(started())},
        {"columns": ["a", "b"], "start_from": mixed()},
        {"columns": ["nothing"]},
        {"columns": []},
        {"time": "host"},
        {"silence": 5},
        {"forget_after": timedelta(0)},
        {"detector": StreamingMPF()},
        {"detector": started(), "start_from": started()},
        {"start_from": started()},
        {"start_from": {"web-1": started()}},
        {"start_from": seasoned(), "columns": ["b", "a"]},
        {"detector": StreamingMPF(random_state=0, window=Window(timedelta(hours=1)))},
    ]:
        try:
            watch(rows, **{"key": "host", "order": "offset", **given})
            said.append([str(given), "nothing"])
        except (TypeError, ValueError) as problem:
            said.append([str(sorted(given)), str(problem)])
    static = rows.drop("score").union(
        spark.range(3).select(
            F.col("id") * 1.0,
            F.lit(1),
            F.lit("x"),
            "id",
            F.timestamp_seconds("id"),
            F.lit(2.0),
            F.lit(3.0),
            F.lit("eu"),
        )
    )
    found = watch(static, key="host", order="at", time="t").orderBy("at").collect()
    said.append(["static", str([(row.host, row.at.second, row.status) for row in found])])
    return said


def zoned(n: int) -> pl.DataFrame:
    """Rows of one key with categories, some missing; the last row and its category are unusual."""
    zones = ["eu", "us", None, "\u2028<b>"]
    zone = pl.Series([zones[i % 7 % 4] for i in range(n - 1)] + ["mars"])
    a = pl.when(pl.col("offset") == n - 1).then(40.0).otherwise(pl.col("a").fill_null(0.0))
    return table(n, 7).with_columns(zone=zone, host=pl.lit("x"), a=a)


def mixed() -> StreamingMPF:
    """Initial model with categories."""
    return started().partial_fit(zoned(40).select("a", b=pl.col("zone").cast(pl.Categorical)))


def of_categories(spark: Any) -> list[list[Any]]:
    """Results of `watch` for rows with categories."""
    from polyaforest.distributed.spark.stream import watch

    rows = spark.createDataFrame(
        zoned(300).rows(), "a double, b double, host string, offset long, at double, zone string"
    )
    found = watch(rows, key="host", order="offset", columns=["a", "zone", "b"], detector=started())
    return [list(row) for row in found.orderBy("offset").drop("host", "error", "status").collect()]


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
