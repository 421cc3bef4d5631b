"""Spark ML estimator and model: fit an ordinary forest on a cluster, and score rows where they are.

Rows reach Python as Arrow batches through ``mapInArrow``, and are validated as by a local detector.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, reduce
from operator import add
from typing import Any, NamedTuple

import numpy as np

from polyaforest.detectors import BatchMPF, StreamingMPF, Tree, loads
from polyaforest.detectors.tables import WeighTask
from polyaforest.forest.copies import starts_of
from polyaforest.kernels.arrays import Array
from polyaforest.tables.validation import NamedRows
from polyaforest.util.extras import extra

with extra(__name__, "pyspark", "pyarrow", "pandas", "datasketches", name="spark"):
    import pyarrow as pa
    from pyspark import TaskContext, keyword_only
    from pyspark.ml import Estimator, Model
    from pyspark.ml.param import Param, Params, TypeConverters
    from pyspark.ml.param.shared import HasInputCols, HasPredictionCol, HasSeed
    from pyspark.ml.util import (
        DefaultParamsReadable,
        DefaultParamsReader,
        DefaultParamsWritable,
        DefaultParamsWriter,
        MLReadable,
        MLReader,
        MLWritable,
        MLWriter,
    )
    from pyspark.sql import types as st
    from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

    from polyaforest.distributed.passes import Task, fit_in_passes, numbered
    from polyaforest.distributed.wire import packed, unpacked

__all__ = ["MPFEstimator", "MPFModel"]

_ROWS_AT_ONCE = 65_536  # rows that a task processes together
_MERGERS = 8  # tasks that add up results on the cluster
_DETECTORS = {"streaming": StreamingMPF, "batch": BatchMPF}
_WHOLE = (st.ByteType, st.ShortType, st.IntegerType, st.LongType)
_NUMBERS = (*_WHOLE, st.FloatType, st.DoubleType, st.BooleanType, st.DecimalType)
_REASON = st.StructType(
    [
        st.StructField("feature", st.StringType()),
        st.StructField("value", st.DoubleType()),
        st.StructField("bits", st.DoubleType()),
    ]
)
_CATEGORY = st.StructField("category", st.StringType())  # the value of a category; only for forests with categories


class _MPFParams(HasInputCols, HasPredictionCol, HasSeed):
    """Parameters of the estimator and the model."""

    idCol = Param(Params._dummy(), "idCol", "column of whole numbers, one for each row.", TypeConverters.toString)
    weightCol = Param(
        Params._dummy(), "weightCol", "column of weights: how often each row counts.", TypeConverters.toString
    )
    detector = Param(Params._dummy(), "detector", '"streaming" or "batch".', TypeConverters.toString)
    numTrees = Param(Params._dummy(), "numTrees", "number of trees.", TypeConverters.toInt)
    maxDepth = Param(Params._dummy(), "maxDepth", "depth at which cutting stops.", TypeConverters.toInt)
    maxSamples = Param(Params._dummy(), "maxSamples", "points per tree (streaming).", TypeConverters.toInt)
    scoreType = Param(Params._dummy(), "scoreType", "kind of score, as score_type.", TypeConverters.toString)
    contamination = Param(Params._dummy(), "contamination", "share of rows to flag.", TypeConverters.toFloat)
    falseAlarmRate = Param(
        Params._dummy(), "falseAlarmRate", "share of new, normal rows that may be flagged.", TypeConverters.toFloat
    )
    missing = Param(
        Params._dummy(), "missing", 'nulls and NaN: "impute", "marginalise" or "error".', TypeConverters.toString
    )
    domain = Param(Params._dummy(), "domain", "lower bounds, then upper bounds of all columns.", TypeConverters.toList)
    scoreCol = Param(Params._dummy(), "scoreCol", "output: higher is more normal.", TypeConverters.toString)
    pValueCol = Param(Params._dummy(), "pValueCol", "output: conformal p-value.", TypeConverters.toString)
    reasonsCol = Param(
        Params._dummy(), "reasonsCol", "output: unusual features of flagged rows.", TypeConverters.toString
    )

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(
            detector="streaming",
            numTrees=100,
            missing="impute",
            scoreCol="score",
            pValueCol="pValue",
            predictionCol="prediction",
        )

    def _given(self, name: str) -> Any:
        """Return the value of a parameter, or None if it is not set."""
        param = self.getParam(name)
        return self.getOrDefault(param) if self.isDefined(param) else None

    @property
    def _outputs(self) -> list[str]:
        names = [self._given(name) for name in ("scoreCol", "pValueCol", "predictionCol", "reasonsCol")]
        return [name for name in names if name]

    def _check_columns(self, schema: Any, wanted: Sequence[str]) -> None:
        """Raise unless each of the columns occurs once and holds numbers or strings."""
        names, kinds = schema.fieldNames(), {field.name: field.dataType for field in schema.fields}
        for name in wanted:
            if names.count(name) != 1:
                there = "is not" if name not in names else "occurs more than once"
                raise ValueError(f"column {name!r} {there} among the columns {names}")
            if not isinstance(kinds[name], (*_NUMBERS, st.StringType)):
                raise TypeError(
                    f"column {name!r} has type {kinds[name].simpleString()}: inputCols must be numbers or strings; "
                    "encode or omit it"
                )


class MPFEstimator(_MPFParams, Estimator[Any], DefaultParamsReadable[Any], DefaultParamsWritable):
    """Spark ML estimator: fit a Mondrian Pólya forest to a table on a cluster.

    With an `idCol`, the forest depends only on the ids and the rows, not on partitions, their order or retried tasks.
    Ids 0, 1, 2, ... give the forest of a local `fit` to the rows in that order, bit for bit. Without an `idCol`, rows
    are numbered in the order of the partitions, in one more pass.

    Parameters
    ----------
    inputCols : list of str
        Columns of numbers, or of strings, which are categories.
    idCol : str, optional
        Column of distinct whole numbers.
    weightCol : str, optional
        Column of weights: 2 counts a row twice, 0 not at all; a fraction is a probability. Cannot be combined with
        `idCol`: copies of rows are numbered in the order of the partitions, in one more pass. Each pass must see the
        rows in the same order: persist a repartitioned frame.
    detector : {"streaming", "batch"}, default="streaming"
        `StreamingMPF` (one pass) or `BatchMPF` (two passes).
    numTrees : int, default=100
    maxDepth, maxSamples : int, optional
    scoreType : str, optional
        As `score_type` of the detector.
    contamination : float, optional
        Share of rows to flag; takes one more pass.
    falseAlarmRate : float, optional
        Share of new, normal rows that may be flagged.
    missing : {"impute", "marginalise", "error"}, default="impute"
        How to treat nulls and NaN, as `missing` of the detector.
    domain : list of two lists, optional
        Lower and upper bounds of the columns.
    seed : int, optional
        The `random_state`; by default, a different one for each fit.
    scoreCol, pValueCol, predictionCol : str
        Output columns, "score", "pValue" and "prediction" by default; an empty name omits the column.
    reasonsCol : str, optional
        Output column with the unusual features of flagged rows, their values or categories, and bits; null for other
        rows.
    """

    @keyword_only
    def __init__(
        self,
        *,
        inputCols: list[str] | None = None,
        idCol: str | None = None,
        weightCol: str | None = None,
        detector: str = "streaming",
        numTrees: int = 100,
        maxDepth: int | None = None,
        maxSamples: int | None = None,
        scoreType: str | None = None,
        contamination: float | None = None,
        falseAlarmRate: float | None = None,
        missing: str = "impute",
        domain: list[list[float]] | None = None,
        seed: int | None = None,
        scoreCol: str = "score",
        pValueCol: str = "pValue",
        predictionCol: str = "prediction",
        reasonsCol: str | None = None,
    ) -> None:
        super().__init__()
        self._unset_seed()
        self._set(**{name: value for name, value in self._input_kwargs.items() if value is not None})

    def _unset_seed(self) -> None:
        """Drop Spark's default, which is the same for all estimators."""
        self._defaultParamMap.pop(self.getParam("seed"), None)

    def local_detector(self) -> BatchMPF | StreamingMPF:
        """Return an unfitted detector with these parameters; its `fit` is the local equivalent."""
        name = self.getOrDefault(self.detector)
        if name not in _DETECTORS:
            raise ValueError(f"detector must be one of {list(_DETECTORS)}; got {name!r}")
        tree = {key: self._given(param) for key, param in (("max_depth", "maxDepth"), ("domain", "domain"))}
        options = {
            "n_estimators": self._given("numTrees"),
            "missing": self._given("missing"),
            "score_type": self._given("scoreType"),
            "contamination": self._given("contamination"),
            "false_alarm_rate": self._given("falseAlarmRate"),
            "max_samples": self._given("maxSamples"),
            "random_state": self._given("seed"),
        }
        if name == "batch" and options["max_samples"] is not None:
            raise ValueError('maxSamples requires detector="streaming": each tree of a BatchMPF counts all rows')
        kind: Any = _DETECTORS[name]
        made: BatchMPF | StreamingMPF = kind(
            tree=Tree(**{key: value for key, value in tree.items() if value is not None}),
            **{key: value for key, value in options.items() if value is not None},
        )
        return made

    def _fit(self, dataset: Any) -> MPFModel:
        _check_classic(dataset)
        columns = self._given("inputCols")
        if not columns:
            raise ValueError("inputCols is not set: name the columns to learn from")
        self._check_columns(dataset.schema, columns)
        table = _Table(dataset, columns, self._id_column(dataset), self._weight_column(dataset))
        detector, texts = self.local_detector(), _of_text(dataset, columns)
        if texts:
            detector.set_params(categorical_features=texts)
        fitted = fit_in_passes(detector, columns, table.gather, prepare=table.prepare)
        model = MPFModel(fitted)
        model._resetUid(self.uid)
        self._copyValues(model)
        return model

    def _id_column(self, dataset: Any) -> str | None:
        name = self._given("idCol")
        if name is None:
            return None
        self._check_columns(dataset.schema, [name])
        if not isinstance(dataset.schema[name].dataType, _WHOLE):
            kind = dataset.schema[name].dataType.simpleString()
            raise TypeError(f"idCol {name!r} has type {kind}: ids must be integers, such as xxhash64({name})")
        return str(name)

    def _weight_column(self, dataset: Any) -> str | None:
        name = self._given("weightCol")
        if name is None:
            return None
        if self._given("idCol") is not None:
            raise ValueError("weightCol cannot be combined with idCol: omit idCol")
        self._check_columns(dataset.schema, [name])
        return str(name)


def _of_text(dataset: Any, columns: Sequence[str]) -> list[str]:
    """Return the columns of strings."""
    return [name for name in columns if isinstance(dataset.schema[name].dataType, st.StringType)]


class _Table:
    """A table on a cluster; runs tasks over its partitions."""

    def __init__(self, frame: Any, columns: Sequence[str], id_column: str | None, weight_column: str | None) -> None:
        self.columns, self.id_column, self.weight_column = list(columns), id_column, weight_column
        wanted = [*columns, *filter(None, (id_column, weight_column))]  # at most one of the last two
        self.frame = _plain(frame.select(*(_quoted(name) for name in wanted)))
        self.starts = self._number(self.frame.select("_0"), _count_rows) if id_column is None else {}
        self.copying: _Copying | None = None

    @staticmethod
    def _number(frame: Any, count: Callable[[Any], Iterator[pa.RecordBatch]]) -> dict[int, int]:
        """Return the running total of `count` before each partition."""
        counted = frame.mapInArrow(count, "partition int, n long").collect()
        starts, n = {}, 0
        for partition, length in sorted((row.partition, row.n) for row in counted):
            starts[partition] = n
            n += length
        return starts

    def prepare(self, weigh: WeighTask) -> None:
        """Count the copies of rows, if they have weights.

        Read whole rows: Spark may return a single column in another order.
        """
        if self.weight_column is not None:
            self.copying = _Copying(weigh, self._number(self.frame, _CopyCount(weigh, self.starts)))

    def gather(self, task: Task) -> Any:
        """Apply a task to each partition; return the sum of the results, most of it computed on the cluster."""
        run = _Run(_broadcast(self.frame, packed(task)), self.columns, self.id_column, self.starts, self.copying)
        results = self.frame.mapInArrow(run, "result binary")
        merged = results.repartition(_MERGERS).mapInArrow(_merge, "result binary").collect()
        nothing = task(np.empty((0, len(self.columns))), np.empty(0, np.int64))  # a table may have no partition
        return reduce(add, (unpacked(row.result) for row in merged), nothing)


def _plain(frame: Any) -> Any:
    """Rename columns to their positions, since ``mapInArrow`` interprets dots in names as fields."""
    return frame.toDF(*(f"_{place}" for place in range(len(frame.columns))))


def _quoted(name: str) -> str:
    """Quote a column name, so that Spark takes dots in it literally."""
    return "`" + name.replace("`", "``") + "`"


def _count_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield _as_count(sum(batch.num_rows for batch in batches))


def _as_count(n: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"partition": pa.array([_partition()], pa.int32()), "n": [n]})


class _Copying(NamedTuple):
    """How rows with weights are repeated."""

    weigh: WeighTask
    firsts: dict[int, int]  # number of copies before each partition


class _CopyCount:
    """Task that counts the copies of the rows of a partition."""

    def __init__(self, weigh: WeighTask, starts: dict[int, int]) -> None:
        self.weigh, self.starts = weigh, starts

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        partition, n, total = _partition(), 0, 0
        for table in _grouped(batches):
            with _naming(partition, n):
                ids = numbered(self.starts.get(partition, 0) + n, table.num_rows)
                total += int(self.weigh(_weights_of(table), ids).sum())
            n += table.num_rows
        yield _as_count(total)


def _weights_of(table: pa.Table) -> Array:
    """Return the last column; nulls become NaN, which is an invalid weight."""
    return np.asarray(table.column(table.num_columns - 1).to_pandas(), np.float64)


def _partition() -> int:
    context = TaskContext.get()
    assert context is not None
    return int(context.partitionId())


def _merge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    results = [unpacked(block) for batch in batches for block in batch.column(0).to_pylist()]
    if results:
        yield _as_row(reduce(add, results))


def _as_row(result: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"result": pa.array([packed(result)], pa.binary())})


def _check_classic(frame: Any) -> None:
    """Raise for frames of Spark Connect, whose sessions cannot broadcast."""
    if not isinstance(frame, ClassicFrame):
        raise NotImplementedError(
            "MPFEstimator and MPFModel need a classic Spark session (local, standalone, YARN, Kubernetes): Spark "
            "Connect has no broadcast variables. Fit in a classic session; the saved model can be loaded anywhere"
        )


def _broadcast(frame: Any, block: bytes) -> Any:
    """Send bytes to every executor once."""
    return frame.sparkSession.sparkContext.broadcast(block)


class _Run:
    """Apply a task to the rows of a partition."""

    def __init__(
        self,
        task: Any,
        columns: list[str],
        id_column: str | None,
        starts: dict[int, int],
        copying: _Copying | None,
    ) -> None:
        self.task, self.columns, self.id_column, self.starts = task, columns, id_column, starts
        self.copying = copying

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task, partition, n, total = unpacked(self.task.value), _partition(), 0, None
        n_copies = 0 if self.copying is None else self.copying.firsts.get(partition, 0)
        for table in _grouped(batches):
            with _naming(partition, n):
                rows = _rows_of(table, range(len(self.columns)), self.columns)
                ids = self._ids(table, self.starts.get(partition, 0) + n)
                if self.copying is None:
                    found = task(rows, ids)
                else:
                    copies = self.copying.weigh(_weights_of(table), ids)
                    found = task(rows, starts_of(copies, n_copies), copies)
                    n_copies += int(copies.sum())
            total, n = found if total is None else total + found, n + table.num_rows
        if total is not None:
            yield _as_row(total)

    def _ids(self, table: pa.Table, n_before: int) -> Array:
        if self.id_column is None:
            return numbered(n_before, table.num_rows)
        ids = table.column(len(self.columns))
        if ids.null_count:
            raise ValueError(f"idCol {self.id_column!r} contains nulls: each row needs a distinct id")
        return np.asarray(ids.to_numpy(), np.int64)


@contextmanager
def _naming(partition: int, start: int) -> Iterator[None]:
    """Add the partition and the first row of the group to the message of a ValueError."""
    try:
        yield
    except ValueError as problem:
        raise ValueError(f"partition {partition}, rows from {start}: {problem}") from problem


def _grouped(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Combine batches into larger tables, which are never empty, to amortise the overhead of a task."""
    waiting: list[pa.RecordBatch] = []
    n = 0
    for batch in batches:
        if batch.num_rows:
            waiting.append(batch)
            n += batch.num_rows
        if n >= _ROWS_AT_ONCE:
            yield pa.Table.from_batches(waiting)
            waiting, n = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def _rows_of(table: pa.Table, places: Iterable[int], names: list[str]) -> Any:
    """Return columns as rows that a detector accepts; it validates integers and decimals itself."""
    chosen = table.select(list(places)).rename_columns(names)
    if all(pa.types.is_floating(field.type) for field in chosen.schema):
        values = np.empty((chosen.num_rows, len(names)))
        for k, column in enumerate(chosen.columns):
            values[:, k] = column.to_numpy()  # nulls are NaN
        return NamedRows(values, names)
    return chosen.to_pandas()


class MPFModel(_MPFParams, Model, MLReadable[Any], MLWritable):
    """Spark ML model of a fitted forest: `transform` adds the score, p-value and prediction of each row.

    Attributes
    ----------
    forest : BatchMPF or StreamingMPF
        The local forest, to explain rows, plot or save.
    """

    def __init__(self, forest: BatchMPF | StreamingMPF) -> None:
        super().__init__()
        self.forest = forest

    def _transform(self, dataset: Any) -> Any:
        _check_classic(dataset)
        columns, outputs = self._given("inputCols"), self._outputs
        self._check_columns(dataset.schema, columns)
        taken = [name for name in outputs if name in dataset.columns]
        if taken or len(set(outputs)) < len(outputs):
            raise ValueError(f"output columns {taken or outputs} already exist: choose other names")
        schema = st.StructType(list(dataset.schema.fields))
        kinds = {"scoreCol": st.DoubleType(), "pValueCol": st.DoubleType(), "predictionCol": st.IntegerType()}
        has_categories = self.forest.encoding_ is not None
        kinds["reasonsCol"] = st.ArrayType(st.StructType([*_REASON, _CATEGORY]) if has_categories else _REASON)
        named = {param: name for param in kinds if (name := self._given(param))}
        for param, name in named.items():
            schema = schema.add(name, kinds[param])
        sent = _broadcast(dataset, self.forest.to_bytes())
        places = [dataset.columns.index(name) for name in columns]
        return _plain(dataset).mapInArrow(_Scoring(sent, places, columns, schema.names, list(named)), schema)

    def write(self) -> MLWriter:
        """Return a writer; ``model.save(path)`` is a shortcut."""
        return _ModelWriter(self)

    @classmethod
    def read(cls) -> MLReader[Any]:
        """Return a reader; ``MPFModel.load(path)`` is a shortcut."""
        return _ModelReader()


class _ModelWriter(MLWriter):
    def __init__(self, model: MPFModel) -> None:
        super().__init__()
        self.model = model

    def saveImpl(self, path: str) -> None:
        """Write parameters and forest to any path that Spark can write."""
        DefaultParamsWriter.saveMetadata(self.model, path, self.sparkSession)
        frame = self.sparkSession.createDataFrame([(bytearray(self.model.forest.to_bytes()),)], "forest binary")
        frame.coalesce(1).write.parquet(os.path.join(path, "forest"))


class _ModelReader(MLReader[Any]):
    def load(self, path: str) -> MPFModel:
        """Read parameters and forest."""
        metadata = DefaultParamsReader.loadMetadata(path, self.sparkSession)
        row = self.sparkSession.read.parquet(os.path.join(path, "forest")).first()
        model = MPFModel(loads(bytes(row.forest)))
        model._resetUid(metadata["uid"])
        DefaultParamsReader.getAndSetParams(model, metadata)
        return model


@lru_cache(4)
def _loaded(block: bytes) -> BatchMPF | StreamingMPF:
    """Load a forest once per worker process."""
    return loads(block)


class _Scoring:
    """Append the outputs of a forest to the rows of a partition."""

    def __init__(self, forest: Any, places: list[int], columns: list[str], names: list[str], wanted: list[str]) -> None:
        self.forest, self.places, self.columns = forest, places, columns
        self.names, self.wanted = names, wanted  # all columns of the result; the parameters that name new columns

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        forest, partition, n = _loaded(bytes(self.forest.value)), _partition(), 0
        for batch in batches:
            if batch.num_rows:
                with _naming(partition, n):
                    rows = _rows_of(pa.Table.from_batches([batch]), self.places, self.columns)
                    found = self._found(forest, rows)
                n += batch.num_rows
                yield pa.RecordBatch.from_arrays([*batch.columns, *found], names=self.names)

    def _found(self, forest: BatchMPF | StreamingMPF, rows: Any) -> list[pa.Array]:
        """Return one column per output."""
        detected = forest.detect(rows)
        results: dict[str, Callable[[], pa.Array]] = {
            "scoreCol": lambda: pa.array(detected.scores, pa.float64()),
            "pValueCol": lambda: pa.array(detected.p_values, pa.float64(), from_pandas=True),
            "predictionCol": lambda: pa.array(np.where(detected.is_anomaly, -1, 1), pa.int32()),
            "reasonsCol": lambda: _reasons(forest, rows, detected.is_anomaly),
        }
        return [results[param]() for param in self.wanted]


def _reasons(forest: BatchMPF | StreamingMPF, rows: Any, is_anomaly: Array) -> pa.Array:
    """Return the attributions of flagged rows; null for other rows."""
    places = np.flatnonzero(is_anomaly)
    reasons: list[list[dict[str, Any]] | None] = [None] * len(is_anomaly)
    if places.size:
        odd = rows[places] if isinstance(rows, NamedRows) else rows.iloc[places]
        for place, explanation in zip(places.tolist(), forest.explain(odd), strict=True):
            reasons[place] = [
                {
                    "feature": attribution.name,
                    "value": None if attribution.is_category else float(attribution.value),
                    "category": attribution.value if attribution.is_category else None,
                    "bits": float(attribution.bits),
                }
                for attribution in explanation.attributions
            ]
    fields = [("feature", pa.string()), ("value", pa.float64()), ("bits", pa.float64())]
    if forest.encoding_ is not None:
        fields.append(("category", pa.string()))
    return pa.array(reasons, pa.list_(pa.struct(fields)))
