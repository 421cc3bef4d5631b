"""Import tables into the streams of a service that does not run otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import isfinite
from typing import NamedTuple

import orjson

from polyaforest.io.errors import BadInput
from polyaforest.io.tables import Table, TableChunk, open_table
from polyaforest.service.changes import new_reader
from polyaforest.service.rows import time_text
from polyaforest.service.stream import ServedStream
from polyaforest.service.worker import RecordResult

__all__ = ["Imported", "import_tables"]

_BATCH = 2000  # records
_BATCH_SECONDS = 3600.0


class Imported(NamedTuple):
    """What was imported."""

    n_records: int
    n_flagged: int
    n_rejected: int
    first_reason: str


def import_tables(stream: ServedStream, paths: Sequence[str], progress: Callable[[int], None]) -> Imported:
    """Score and learn the rows of tables, in their order; return once all are in the history.

    Parameters
    ----------
    stream : ServedStream
        It runs, and its records come by HTTP.
    paths : sequence of str
        Files or addresses of databases, as for `detect`.
    progress : callable
        Takes the number of records so far.
    """
    if stream.inbox is None:
        raise BadInput(
            f"the stream {stream.name!r} reads from {stream.source_name}: only streams with HTTP import files"
        )
    reader = stream.reader if stream.fields else new_reader(stream.config)
    table = open_table(
        list(paths),
        columns=[name for name in reader.names if name not in reader.categories] or None,
        time=reader.time,
        key=reader.key,
        id=reader.id,
        categories=reader.categories,
        weight=reader.weight,
    )
    n = n_flagged = 0
    reasons: list[str] = []
    n_rejected = 0
    for lines in _batches(table, "time" if reader.time is None else reader.time):
        results = stream.inbox.put(lines).result(_BATCH_SECONDS).results
        good = [one for one in results if isinstance(one, RecordResult)]
        bad = [one["error"] for one in results if not isinstance(one, RecordResult)]
        n, n_rejected = n + len(good), n_rejected + len(bad)
        n_flagged += sum(one.judgement.is_anomaly for one in good)
        reasons = reasons or bad[:1]
        progress(n)
    if not reasons and table.rejected:
        reasons = [f"row {table.rejected[0].number}: {table.rejected[0].reason}"]
    return Imported(n, n_flagged, n_rejected + table.n_rejected, reasons[0] if reasons else "")


def _batches(table: Table, time: str) -> Iterator[list[bytes]]:
    """Yield the rows of a table as lines of JSON."""
    for chunk in table.chunks():
        for piece in chunk.pieces(_BATCH):
            yield list(_lines(table, piece, table.columns.time or time))


def _lines(table: Table, piece: TableChunk, time: str) -> Iterator[bytes]:
    columns = table.columns
    for i, row in enumerate(piece.rows.tolist()):
        record = {
            name: piece.texts.get(value) if name in columns.categories else value if isfinite(value) else None
            for name, value in zip(columns.used, row, strict=True)
        }
        if piece.times is not None:
            record[time] = time_text(float(piece.times[i]))
        if columns.key is not None and piece.keys is not None:
            record[columns.key] = piece.keys[i]
        if columns.id is not None and piece.ids is not None:
            record[columns.id] = piece.ids[i]
        if columns.weight is not None and piece.weights is not None:
            record[columns.weight] = piece.weights[i].item()
        yield orjson.dumps(record)
