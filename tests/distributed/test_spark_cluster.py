"""Spark ML on a cluster of a master and two workers; one executor is killed."""

from __future__ import annotations

import os
import re
import signal
import uuid
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install polyaforest[spark]")
pd = pytest.importorskip("pandas")

from spark_cluster import cluster_session  # noqa: E402 -- only where it is installed

from polyaforest.distributed.spark.ml import MPFEstimator, MPFModel  # noqa: E402

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.slow,
    pytest.mark.filterwarnings(  # of PySpark itself, which is older than this pandas
        "ignore:PySpark does not yet fully support pandas:FutureWarning",
        "ignore:The copy keyword is deprecated",
        "ignore::ResourceWarning",
    ),
]

N = 3000
COLUMNS = ["a", "b", "c"]


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    with cluster_session(tmp_path_factory.mktemp("spark")) as session:
        yield session


def dying(folder: str):
    """Stage that copies rows, records each attempt, and once kills its executor half-way through a second pass."""

    def passing(batches):
        from pyspark import TaskContext

        context = TaskContext.get()
        place, n_before = context.partitionId(), len(list(Path(folder).glob(f"{context.partitionId()}-*")))
        Path(folder, f"{place}-{uuid.uuid4()}").touch()
        for i, batch in enumerate(batches):
            if i == 2 and place == 1 and n_before == 1 and not Path(folder, "killed").exists():
                Path(folder, "killed").touch()
                daemon = os.getppid()  # of the processes that run Python; its own parent is the executor
                executor = int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])
                os.kill(executor, signal.SIGKILL)
                signal.pause()
            yield batch

    return passing


def test_killed_executor_does_not_change_result(spark, tmp_path):
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "200")
    rows = pd.DataFrame(np.random.default_rng(0).normal(size=(N, 3)), columns=COLUMNS)
    frame = spark.createDataFrame(rows.reset_index(names="row")).repartition(4)
    mortal = frame.mapInArrow(dying(str(tmp_path)), frame.schema)
    estimator = MPFEstimator(inputCols=COLUMNS, idCol="row", numTrees=20, seed=0, detector="batch")
    model = estimator.fit(mortal)
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert (tmp_path / "killed").exists()
    # Spark retries the task or, if its shuffled input is lost, the stage: two passes and one retry read the part.
    assert len(list(tmp_path.glob("1-*"))) >= 3
    local = estimator.local_detector().fit(rows)
    assert_array_equal(model.forest.forest_.counts, local.forest_.counts)
    assert model.forest.to_bytes() == local.to_bytes()


def test_page_runs_as_printed(spark, tmp_path, monkeypatch, capsys):
    """Fit on the cluster, load the model locally, and explain row 17."""
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "clusters.md").read_text("utf-8")
    fit, ask = re.findall(r"^```py\n(.*?)^```$", page, re.M | re.S)[:2]
    namespace, saved = {}, str(tmp_path / "servers")
    assert '.save("servers")' in fit  # relative to where Java was started
    exec(fit.replace('.save("servers")', f".save({saved!r})"), namespace)
    assert namespace["spark"] is spark
    assert "|17 " in capsys.readouterr().out.splitlines()[3]
    exec(ask, {})
    said = capsys.readouterr().out
    assert "Anomalous" in said
    assert "latency > " in said
    assert MPFModel.load(saved).forest.n_seen_ == 100_000
