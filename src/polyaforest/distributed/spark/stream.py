"""Keyed streams on Apache Spark: `watch` scores each row with the detector of its key."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from math import nan
from typing import Any, NamedTuple

from polyaforest.detectors import SeriesMPF
from polyaforest.detectors.keyed import check_follows_streams
from polyaforest.distributed.keyed import (
    KeyedJudge,
    KeyedResult,
    State,
    Status,
    default_detector,
)
from polyaforest.judge.models import Detector
from polyaforest.tables.rows import StreamRow

try:
    import google.protobuf  # noqa: F401 -- without it, Spark's workers fail without naming it
    from pyspark.sql import DataFrame, Row
    from pyspark.sql import functions as F  # noqa: N812 -- as everywhere in Spark
    from pyspark.sql import types as T  # noqa: N812 -- as above
    from pyspark.sql.streaming import StatefulProcessor
except ImportError as problem:
    raise ImportError(
        'polyaforest.distributed.spark needs PySpark and protobuf: pip install "polyaforest[spark]"', name="pyspark"
    ) from problem

__all__ = ["watch"]

_CONFIGURATION = {  # keep states in RocksDB, with a changelog: a micro-batch writes only its changes
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
_THRESHOLD = "spark.broadcast.UDFCompressionThreshold"  # Spark broadcasts larger functions
_RESULTS = [
    T.StructField("status", T.StringType()),
    T.StructField("score", T.DoubleType()),
    T.StructField("pValue", T.DoubleType()),
    T.StructField("isAnomaly", T.BooleanType()),
    T.StructField("reasons", T.StringType()),
    T.StructField("error", T.StringType()),
]


def watch(
    df: DataFrame,
    *,
    key: str,
    order: str,
    columns: Sequence[str] | None = None,
    time: str | None = None,
    detector: Detector | None = None,
    start_from: Detector | Mapping[Any, Detector] | None = None,
    silence: timedelta | None = None,
    forget_after: timedelta | None = None,
    explain: bool = True,
) -> DataFrame:
    """Score each row of a streaming frame by the earlier rows of its key, then learn it.

    Spark's state store keeps one detector per key. Scores, p-values and verdicts equal those of one process that calls
    `detect_then_learn` on the rows of the key by `order`, bit for bit, whatever the micro-batches; with the defaults
    they equal those of ``polyaforest watch --by --rows``. With a sink that writes each micro-batch once, such as files,
    each row gets one result, even if the driver or executors are killed.

    Parameters
    ----------
    df : DataFrame
        A streaming frame; or a static one, as a single batch.
    key : str
        Column that identifies the stream of a row.
    order : str
        Column of integers or timestamps that increases along each stream, such as an offset; rows of a micro-batch are
        sorted by it. A row is *late* if an earlier row of its key has the same or a higher order. Late rows are
        reported and not learned.
    columns : sequence of str, optional
        Columns to score: numbers, or strings, which are categories. By default the columns of `start_from`, else all
        other numeric columns. Nulls are missing values.
    time : str, optional
        Column of timestamps or numbers; required by time-based windows and calendars.
    detector : StreamingMPF or SeriesMPF, optional
        Detector of which each new key gets a copy; it needs a fixed `random_state`. By default a `StreamingMPF` that
        holds the last 1,024 rows.
    start_from : StreamingMPF, SeriesMPF or mapping, optional
        Fitted detector of which each new key gets a copy; or fitted detectors by key, for a query without a checkpoint.
    silence : timedelta, optional
        Report a key, once, if it has no rows for this long by the clock of the cluster. Time in which the query does
        not run does not count.
    forget_after : timedelta, optional
        Drop the detector of a key without rows for this long, and report the key; its next row starts from scratch.
        For a time-based window, choose its duration: by then the window holds no row of the key.
    explain : bool, default=True
        Whether to explain flagged rows.

    Returns
    -------
    verdicts : DataFrame
        One row for each row of `df`: the columns `key` and `order`; `status`, "judged", "bad" or "late", or for a key
        "silent" or "forgotten"; `score`, higher is more normal; `pValue`; `isAnomaly`; `reasons`, for flagged rows, the
        JSON of `Explanation.to_json`; `error`, why a row was not scored.

    Notes
    -----
    Sets two options of the session, to keep states in RocksDB with a changelog.
    """
    template, models = _read_models(detector, start_from)
    names = _read_columns(df, key, order, time, columns, template, models)
    for model in (template, *models.values()):
        check_follows_streams(model, has_times=time is not None)
    texts = [name for name in names if isinstance(df.schema[name].dataType, T.StringType)]
    judge = KeyedJudge(names, template, has_times=time is not None, explain=explain, categories=texts)
    timers = Timers(
        *(_milliseconds(name, span) for name, span in (("silence", silence), ("forget_after", forget_after)))
    )
    rows = df.select(
        F.col(_quoted(key)).alias("key"),
        _as_order(df, order).alias("order"),
        F.array(*(F.col(_quoted(name)).cast("double") for name in names if name not in texts))
        .cast("array<double>")
        .alias("numbers"),
        F.array(*(F.col(_quoted(name)) for name in texts)).cast("array<string>").alias("texts"),
        (F.lit(0.0) if time is None else _as_time(df, time)).alias("time"),
    )
    _check_broadcast_size(df, judge)
    for option, value in _CONFIGURATION.items():
        df.sparkSession.conf.set(option, value)
    _ = df.sparkSession.streams  # its side effect: Spark 4.1 can then keep states of static frames too
    type_of_key = df.schema[key].dataType
    schema = T.StructType([T.StructField("key", type_of_key), T.StructField("order", T.LongType()), *_RESULTS])
    verdicts = rows.groupBy("key").transformWithState(
        statefulProcessor=_Processor(judge, timers),
        outputStructType=schema,
        outputMode="Append",
        timeMode="ProcessingTime" if any(timers) else "None",
        initialState=_initial_state(df, type_of_key, models),
    )
    placed = F.timestamp_micros("order") if isinstance(df.schema[order].dataType, T.TimestampType) else F.col("order")
    return verdicts.select(F.col("key").alias(key), placed.alias(order), *(field.name for field in _RESULTS))


class Timers(NamedTuple):
    """Milliseconds without a row after which a key is reported or forgotten; None for never."""

    silence: int | None
    forget: int | None


class _Processor(StatefulProcessor):
    """Keep the detectors of keys in Spark's state store, with timers for keys without rows."""

    def __init__(self, judge: KeyedJudge, timers: Timers) -> None:
        self._judge, self._timers = judge, timers

    def init(self, handle: Any) -> None:
        """Declare the states."""
        self._handle = handle
        self._model = handle.getValueState("model", "model BINARY, latest BIGINT")
        if any(self._timers):
            self._clock = handle.getValueState("clock", "seen BIGINT, due BIGINT, isForgetting BOOLEAN")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:  # noqa: N802 -- Spark's name
        """Store the initial model of a key."""
        self._model.update((bytes(initialState.model), None))

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:  # noqa: N802
        """Score and learn the rows of a micro-batch."""
        found = self._model.get()
        before = State(None, None) if found is None else State(None if found[0] is None else bytes(found[0]), found[1])
        after, results = self._judge.judge(before, map(self._row, rows))
        self._model.update(tuple(after))
        if any(self._timers):
            self._start_timer(timerValues.getCurrentProcessingTimeInMs())
        return (_as_row(key, result) for result in results)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802
        """Report a key without rows."""
        now, due = timerValues.getCurrentProcessingTimeInMs(), expiredTimerInfo.getExpiryTimeInMs()
        clock, found = self._clock.get(), self._model.get()
        if clock is None or found is None or clock[1] != due:
            return
        seen, _, is_forgetting = clock
        if is_forgetting:
            self._model.clear()
            self._clock.clear()
            yield _as_row(key, KeyedResult(found[1], Status.FORGOTTEN, error=_without_rows(now - seen)))
        elif now - due > self._timers.silence:
            self._start_timer(now)  # the query was not running: restart
        else:
            self._start_to_forget(seen, now)
            yield _as_row(key, KeyedResult(found[1], Status.SILENT, error=_without_rows(now - seen)))

    def _start_timer(self, now: int) -> None:
        """Restart the timer of a key."""
        clock = self._clock.get()
        if clock is not None and clock[1] is not None:
            self._handle.deleteTimer(clock[1])
        if self._timers.silence is None:
            self._start_to_forget(now, now)
        else:
            self._set_timer(now, now + self._timers.silence, is_forgetting=False)

    def _start_to_forget(self, seen: int, now: int) -> None:
        if self._timers.forget is None:
            self._clock.update((seen, None, False))
        else:
            self._set_timer(seen, max(seen + self._timers.forget, now + 1), is_forgetting=True)

    def _set_timer(self, seen: int, due: int, *, is_forgetting: bool) -> None:
        self._clock.update((seen, due, is_forgetting))
        self._handle.registerTimer(due)

    def _row(self, row: Any) -> StreamRow | None:
        return self._judge.row(row.order, row.numbers, row.texts, nan if row.time is None else row.time)

    def close(self) -> None:
        """Do nothing: Spark closes the states."""


_FIELDS = Row("key", "order", *(field.name for field in _RESULTS))


def _as_row(key: tuple[Any, ...], result: KeyedResult) -> Row:
    order, status, *facts = result
    return _FIELDS(key[0], order, str(status), *facts)


def _without_rows(milliseconds: int) -> str:
    return f"no row for {milliseconds / 1000:g} s"


# ---- input -----------------------------------------------------------------------------------------------------------


def _read_models(detector: Any, start_from: Any) -> tuple[Detector, dict[Any, Detector]]:
    """Return the detector of new keys, and the fitted detectors by key."""
    if start_from is None or isinstance(start_from, Mapping):
        models = {} if start_from is None else dict(start_from)
        unfitted = [name for name, model in models.items() if not model.is_fitted]
        if unfitted:
            raise ValueError(f"start_from: the detector of {unfitted[0]!r} is not fitted: fit it first")
        return default_detector() if detector is None else detector, models
    if detector is not None:
        raise ValueError("pass either detector or start_from, unless start_from is a mapping by key")
    if not start_from.is_fitted:
        raise ValueError("start_from is not fitted: fit it first, or pass it as detector")
    return start_from, {}


def _read_columns(
    df: DataFrame,
    key: str,
    order: str,
    time: str | None,
    columns: Sequence[str] | None,
    template: Detector,
    models: Mapping[Any, Detector],
) -> list[str]:
    """Return the columns to score; raise if a required column is absent or has the wrong type."""
    results = [field.name for field in _RESULTS]
    for role, name in {"key": key, "order": order, **({} if time is None else {"time": time})}.items():
        _check_present(df, name, role)
        if role != "time" and name in results:
            raise ValueError(f"{role}: column {name!r} has the name of an output column: rename it")
    if not isinstance(df.schema[order].dataType, T.IntegralType | T.TimestampType):
        raise ValueError(f"order: column {order!r} must hold integers or timestamps, not {_type_of(df, order)}")
    known = [list(map(str, model.feature_names_in_)) for model in _named(template, models)]
    taken = (key, order, time)
    numeric = [field.name for field in df.schema if _is_number(field.dataType) and field.name not in taken]
    names = list(columns) if columns is not None else known[0] if known else numeric
    if not names:
        raise ValueError("columns: no numeric column to score")
    for name in names:
        _check_present(df, name, "columns")
        if name == key:
            raise ValueError(f"columns: {name!r} is the key, which is constant within a stream: omit it")
        _check_type(df, name, template)
    for model, other in zip(_named(template, models), known, strict=True):
        if other != names:
            raise ValueError(
                f"columns: the model to start from was fitted on {', '.join(other)}; got {', '.join(names)}"
            )
        _check_same_categories(df, names, model)
    return names


def _check_same_categories(df: DataFrame, names: Sequence[str], model: Detector) -> None:
    """Raise unless exactly the string columns are categories of the model."""
    encoding = getattr(model, "encoding_", None)
    for k, name in enumerate(names):
        is_category = encoding is not None and k in encoding.columns
        if is_category != isinstance(df.schema[name].dataType, T.StringType):
            holds, remedy = ("categories", "string") if is_category else ("numbers", "double")
            raise ValueError(
                f"columns: {name!r} has {holds} in the model to start from, but is {_type_of(df, name)} here: cast it "
                f"to {remedy}"
            )


def _named(template: Detector, models: Mapping[Any, Detector]) -> list[Detector]:
    """Return the models that have column names."""
    return [model for model in (template, *models.values()) if hasattr(model, "feature_names_in_")]


def _check_present(df: DataFrame, name: str, role: str) -> None:
    if name not in df.columns:
        raise ValueError(f"{role}: no column {name!r} among {', '.join(df.columns)}")


def _check_type(df: DataFrame, name: str, template: Detector) -> None:
    """Raise unless a column holds numbers, or strings if the detector takes categories."""
    kind, is_series = df.schema[name].dataType, isinstance(template, SeriesMPF)
    if _is_number(kind) or (isinstance(kind, T.StringType) and not is_series):
        return
    wanted = "numbers (SeriesMPF takes no categories)" if is_series else "numbers or strings"
    raise ValueError(f"columns: {name!r} must hold {wanted}, not {_type_of(df, name)}")


def _type_of(df: DataFrame, name: str) -> str:
    return str(df.schema[name].dataType.simpleString())


def _is_number(kind: T.DataType) -> bool:
    return isinstance(kind, T.NumericType | T.BooleanType)


def _quoted(name: str) -> str:
    """Quote a column name for Spark."""
    return "`" + name.replace("`", "``") + "`"


def _as_order(df: DataFrame, name: str) -> Any:
    column = F.col(_quoted(name))
    return F.unix_micros(column) if isinstance(df.schema[name].dataType, T.TimestampType) else column.cast("long")


def _as_time(df: DataFrame, name: str) -> Any:
    """Return timestamps in seconds, and numbers unchanged."""
    if not isinstance(df.schema[name].dataType, T.TimestampType | T.NumericType):
        raise ValueError(f"time: column {name!r} must hold timestamps or numbers, not {_type_of(df, name)}")
    return F.col(_quoted(name)).cast("double")


def _milliseconds(name: str, span: timedelta | None) -> int | None:
    if span is None:
        return None
    if not isinstance(span, timedelta) or span <= timedelta(0):
        raise ValueError(f"{name} must be a positive timedelta; got {span!r}")
    return max(round(span / timedelta(milliseconds=1)), 1)


def _check_broadcast_size(df: DataFrame, judge: KeyedJudge) -> None:
    """Raise if Spark would broadcast the initial detector: states are declared before a broadcast arrives."""
    size, limit = len(pickle.dumps(judge)), _size_in_bytes(df.sparkSession.conf.get(_THRESHOLD, "1m"))
    if size > 0.9 * limit:
        raise ValueError(
            f"the initial detector takes {size / 1e6:.1f} MB, too much for Spark: start the session with "
            f"{_THRESHOLD}=64m, or start from a smaller detector"
        )


def _size_in_bytes(text: str) -> int:
    """Parse a size in Spark's notation, such as 64m."""
    number = text.strip().lower().removesuffix("b")
    unit = {"k": 10, "m": 20, "g": 30}.get(number[-1:])
    return int(number) if unit is None else int(number[:-1]) << unit


def _initial_state(df: DataFrame, type_of_key: T.DataType, models: Mapping[Any, Detector]) -> Any:
    """Return the models by key as Spark's initial state; None without models."""
    if not models:
        return None
    schema = T.StructType([T.StructField("key", type_of_key), T.StructField("model", T.BinaryType())])
    rows = [(key, bytearray(model.to_bytes())) for key, model in models.items()]
    return df.sparkSession.createDataFrame(rows, schema).groupBy("key")
