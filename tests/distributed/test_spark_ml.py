"""Spark ML: fits and scores equal those of one process."""

from __future__ import annotations

import numpy as np
import pytest
from effort import mostly_slow
from extras import import_without
from numpy.testing import assert_array_equal

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install polyaforest[spark]")
pa = pytest.importorskip("pyarrow")
pd = pytest.importorskip("pandas")

from pyspark.ml import Pipeline, PipelineModel  # noqa: E402 -- only where it is installed
from pyspark.sql import DataFrame  # noqa: E402
from pyspark.sql import functions as f  # noqa: E402
from spark_cluster import local_session  # noqa: E402

from polyaforest.distributed.spark.ml import MPFEstimator, MPFModel  # noqa: E402

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.filterwarnings(  # of PySpark itself, which is older than this pandas
        "ignore:PySpark does not yet fully support pandas:FutureWarning",
        "ignore:The copy keyword is deprecated",
        "ignore::ResourceWarning",
    ),
]

N = 3000
COLUMNS = ["cpu", "memory.used", "errors"]
OPTIONS = {"inputCols": COLUMNS, "numTrees": 8, "seed": 3}


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    with local_session(tmp_path_factory.mktemp("spark")) as session:
        yield session


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(N, 3)), columns=COLUMNS)
    table["errors"] = rng.poisson(3, N)  # whole numbers
    table.loc[17, "cpu"] = 30.0
    table.insert(0, "row", np.arange(N))
    return table.assign(host=[f"host {i % 7}" for i in range(N)])


@pytest.fixture(scope="module")
def frame(spark, rows):
    return spark.createDataFrame(rows)


@pytest.mark.parametrize("detector", ["streaming", "batch"])
def test_fit_equals_local_fit(detector, frame, rows):
    estimator = MPFEstimator(**OPTIONS, idCol="row", detector=detector, falseAlarmRate=0.01, reasonsCol="reasons")
    local = estimator.local_detector().fit(rows[COLUMNS])
    models = [estimator.fit(frame.repartition(n)) for n in (1, 7)]
    for model in models:
        assert model.forest.to_bytes() == local.to_bytes()
    found = models[0].transform(frame).toPandas().sort_values("row")
    assert list(found.columns) == [*rows.columns, "score", "pValue", "prediction", "reasons"]
    assert_array_equal(found[rows.columns], rows)
    assert_array_equal(found["score"], local.score_samples(rows[COLUMNS]))
    assert_array_equal(found["pValue"], local.p_value(rows[COLUMNS]))
    assert_array_equal(found["prediction"], local.predict(rows[COLUMNS]))
    assert found["reasons"][17][0]["feature"] == "cpu"
    assert found["reasons"][17][0]["value"] == 30.0
    (why,) = local.explain(rows.loc[[17], COLUMNS])
    assert found["reasons"][17][0]["bits"] == pytest.approx(why.attributions[0].bits)
    assert found["reasons"][found["prediction"] == 1].isna().all()


@pytest.mark.parametrize("detector", ["streaming", "batch"])
def test_fit_with_weights_equals_local_fit(detector, spark, rows):
    weighted = rows.assign(n=np.random.default_rng(2).choice([0.0, 0.5, 1.0, 3.0], N))
    estimator = MPFEstimator(**OPTIONS, weightCol="n", detector=detector)
    local = estimator.local_detector().fit(rows[COLUMNS], sample_weight=weighted["n"])
    table = spark.createDataFrame(weighted)
    assert table.rdd.getNumPartitions() > 1
    assert estimator.fit(table).forest.to_bytes() == local.to_bytes()
    with pytest.raises(ValueError, match="omit idCol"):
        MPFEstimator(**OPTIONS, weightCol="n", idCol="row").fit(table)


def test_fit_numbers_rows_without_ids_and_treats_nulls_as_missing(spark, rows):
    gaps = rows[COLUMNS].astype(float).mask(np.random.default_rng(1).random((N, 3)) < 0.1)
    frame = spark.createDataFrame(
        gaps.astype(object).where(gaps.notna(), None), "cpu double, `memory.used` double, errors double"
    )
    estimator = MPFEstimator(**OPTIONS, detector="batch", pValueCol="", scoreCol="s")
    model = estimator.fit(frame)
    assert frame.filter(f.col("cpu").isNull()).count() > 200
    assert model.forest.to_bytes() == estimator.local_detector().fit(frame.toPandas()).to_bytes()
    found = model.transform(frame)
    assert found.columns == [*COLUMNS, "s", "prediction"]
    assert_array_equal(found.toPandas()["s"], model.forest.score_samples(gaps))
    place = r"partition 0, rows from 0: Input X contains NaN: row \d+, column '(cpu|mem|err)"
    with pytest.raises(Exception, match=place):
        MPFEstimator(**OPTIONS, missing="error").fit(frame.coalesce(1))


def test_pipelines_and_models_round_trip(frame, rows, tmp_path):
    estimator = MPFEstimator(**OPTIONS, idCol="row", contamination=0.02)
    estimator.save(str(tmp_path / "estimator"))
    again = MPFEstimator.load(str(tmp_path / "estimator"))
    given, read = ({param.name: value for param, value in e.extractParamMap().items()} for e in (estimator, again))
    assert read == given
    pipeline = Pipeline(stages=[again]).fit(frame)
    assert 50 <= pipeline.transform(frame).filter("prediction = -1").count() <= 70
    pipeline.save(str(tmp_path / "pipeline"))
    loaded = PipelineModel.load(str(tmp_path / "pipeline")).stages[0]
    assert isinstance(loaded, MPFModel)
    assert loaded.forest.to_bytes() == pipeline.stages[0].forest.to_bytes()
    assert loaded.getInputCols() == COLUMNS
    assert "errors" in str(loaded.forest.explain(rows.loc[[17], COLUMNS])[0])


def test_strings_are_categories(spark, frame, rows):
    model = MPFEstimator(**{**OPTIONS, "inputCols": ["cpu", "host"]}, idCol="row", reasonsCol="reasons").fit(frame)
    assert list(model.forest.categories_) == ["host"]
    found = model.transform(frame).orderBy("row").toPandas()
    assert found["score"].to_numpy() == pytest.approx(model.forest.score_samples(rows[["cpu", "host"]]))


def test_fit_rejects_bad_columns_before_reading(spark, frame):
    def fit(**given):
        return MPFEstimator(**{**OPTIONS, **given}).fit(frame)

    dated = frame.selectExpr("*", "current_date() AS day")
    with pytest.raises(TypeError, match="column 'day' has type date: inputCols must be numbers or strings"):
        MPFEstimator(**{**OPTIONS, "inputCols": ["cpu", "day"]}).fit(dated)
    with pytest.raises(ValueError, match="column 'gpu' is not among the columns"):
        fit(inputCols=["cpu", "gpu"])
    with pytest.raises(ValueError, match="inputCols is not set"):
        MPFEstimator().fit(frame)
    with pytest.raises(TypeError, match="idCol 'cpu' has type double: ids must be integers"):
        fit(idCol="cpu")
    with pytest.raises(ValueError, match="detector must be one of"):
        fit(detector="other")
    with pytest.raises(ValueError, match="occurs more than once"):
        fit(idCol="errors")
    with pytest.raises(ValueError, match="the table is empty"):
        MPFEstimator(**OPTIONS).fit(frame.limit(0))
    model = fit()
    with pytest.raises(ValueError, match="already exist"):
        model.transform(frame.withColumn("score", f.lit(1.0)))
    connected = object.__new__(type("DataFrame", (DataFrame,), {}))
    with pytest.raises(NotImplementedError, match="Spark Connect"):
        model.transform(connected)
    with pytest.raises(NotImplementedError, match="classic Spark session"):
        MPFEstimator(**OPTIONS).fit(connected)


@pytest.mark.parametrize("absent", mostly_slow(["pyspark", "datasketches"]))
def test_import_error_names_missing_package(absent):
    message = f'polyaforest.distributed.spark.ml needs {absent}: pip install "polyaforest[spark]"'
    assert import_without(absent, "polyaforest.distributed.spark.ml") == f"ModuleNotFoundError {absent} {message}"
