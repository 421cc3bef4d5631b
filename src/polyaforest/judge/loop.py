"""The endless loop: read records, score them, write the results, and commit at intervals.

The loop reads batches of bounded size, and the next one only when the results of the last are written: nothing queues
up, and a slow reader slows down the source. A commit saves the models, the position in the source and marks of the
outputs, all as of one moment. After a crash the outputs are truncated to that moment and the source resumes from there:
each record is learned once, and its result is written once.
"""

from __future__ import annotations

import time as clock
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polyaforest.io import file_identity
from polyaforest.io.errors import in_words
from polyaforest.io.records import Record, RecordReader
from polyaforest.io.sources import Position, Source
from polyaforest.judge.judge import Judge, Judged, Result
from polyaforest.judge.models import Store
from polyaforest.storage.model_store import reporting_invalid_notes
from polyaforest.tables.rows import StreamRow
from polyaforest.util import schema

__all__ = ["Cadence", "Loop", "StreamCounts", "check_notes"]

_SUSPICIOUS = 20  # bad records at the start that are worth a warning
_PATIENCE = 0.25  # seconds to wait for a record before the loop checks for other work
_COUNT = schema.whole()
_TEXT_OR_NONE = schema.either(schema.nothing, schema.text)
_MARK = schema.record(
    {
        "path": schema.path,
        "device": file_identity.file_number,
        "inode": file_identity.file_number,
        "born": file_identity.born,
        "length": _COUNT,
        "ends": schema.text,
    },
    optional=["device", "born", "ends"],  # missing in marks of older releases
)
# The notes of a commit, checked before use: a store may come from an untrusted source.
_NOTES = schema.record(
    {
        "is_end": schema.flag,
        "where": schema.path,
        "position": schema.anything,  # checked by the source
        "settings": schema.mapping,
        "reader": schema.record(
            {
                "format": schema.one_of("auto", "jsonl", "csv"),
                "names": schema.many(schema.text),
                "time": _TEXT_OR_NONE,
                "key": schema.either(schema.nothing, schema.text, schema.names),
                "id": _TEXT_OR_NONE,
                "skipped": schema.mapping,
                "named": schema.flag,
                "settled": schema.flag,
                "header": schema.many(schema.text),
                "delimiter": schema.one_of(",", "\t", ";", "|"),
                "categories": schema.names,
                "weight": schema.text,
            },
            optional=["categories", "weight"],
        ),
        "out": schema.either(schema.nothing, _MARK),
        "quarantine": schema.either(schema.nothing, _MARK),
        "counts": schema.record({"records": _COUNT, "bad": _COUNT, "anomalies": _COUNT}),
        "history": schema.mapping,  # checked by the service
    },
    optional=["history"],
)


@dataclass(frozen=True)
class Cadence:
    """How often to commit, and how much to read at a time."""

    records: int = 10_000  # between two commits
    seconds: float = 30.0  # between two commits, if there are new records
    batch: int = 4096  # most records to read at a time


@dataclass
class StreamCounts:
    """Totals since the models started."""

    records: int = 0
    bad: int = 0
    anomalies: int = 0


def check_notes(notes: Mapping[str, Any], name: str) -> None:
    """Raise a `ModelFileError` that names the file if these are not the notes of a commit."""
    with reporting_invalid_notes(name):
        _NOTES(notes, "")


class Loop(Judge[Result]):
    """Judge the records of a source; subclasses write the results.

    Parameters
    ----------
    source : Source
    reader : RecordReader
    store : ModelStore
    where : str
        The name of the source, to recognise it when the store is opened again.
    settings : dict
        The settings of the models, saved with them.
    finds_series : bool
        Whether a model of independent records is replaced by one of a time series if the records turn out to be one.
    drift : mapping or None
        Parameters of the drift monitors beside the models; None for no monitors.
    cadence : Cadence
    notify : callable
        Takes messages for the user.
    """

    def __init__(
        self,
        source: Source,
        reader: RecordReader,
        store: Store,
        *,
        where: str = "-",
        settings: dict[str, Any] | None = None,
        finds_series: bool = False,
        drift: Mapping[str, Any] | None = None,
        cadence: Cadence | None = None,
        notify: Callable[[str], None] = lambda message: None,
    ) -> None:
        super().__init__(store, finds_series=finds_series, drift=drift, notify=notify)
        self.source, self.reader, self.store = source, reader, store
        self._where, self._settings = where, settings or {}
        self._cadence = cadence or Cadence()
        self.counts = StreamCounts()
        self.resumed_from: dict[str, Any] = {}  # the notes of the previous run
        self._has_warned = False
        self._late: set[str] = set()  # reported fields
        self._uncommitted = 0  # records since the last commit
        self._committed_at = clock.monotonic()

    # ---- for subclasses ----------------------------------------------------------------------------------------------

    @abstractmethod
    def _write(self, records: Sequence[Record], judged: Judged[Result]) -> None:
        """Write the results of a batch."""

    @abstractmethod
    def _marks(self) -> dict[str, Any]:
        """Sync the outputs to disk, and return marks to rewind them to."""

    @abstractmethod
    def _rewind(self, notes: dict[str, Any]) -> None:
        """Rewind the outputs to the marks in the notes of a commit."""

    def _why_invalid(self, row: StreamRow) -> str | None:
        """Return why a parsed record is invalid, or None."""
        return None

    @property
    def _has_moved(self) -> bool:
        """Whether outputs must be reopened, which a commit does."""
        return False

    def _end(self) -> None:
        """Write the remaining results when the source ends."""

    # ---- the loop ----------------------------------------------------------------------------------------------------

    def resume(self, *, skip_seen: bool = False) -> bool:
        """Return to the last commit, if the store has one; return whether the source resumes where it was.

        A source that cannot replay continues with the next record. If it starts over instead, `skip_seen` skips the
        records already counted.
        """
        notes = self.store.notes
        if not notes:
            self.commit()  # so that a crash can be rewound
            return False
        check_notes(notes, self.store.name)
        with reporting_invalid_notes(self.store.name):
            self.counts = StreamCounts(**notes["counts"])
            self.reader = RecordReader.of_state(notes["reader"])
            is_same = notes["where"] == self._where and notes["position"] is not None
            if is_same and (self.source.can_replay or skip_seen):
                self.source.seek(notes["position"])
            self._rewind(notes)
        self.resumed_from = notes
        self.commit()
        return bool(is_same)

    def run(self, is_stopped: Callable[[], bool] = lambda: False, on_batch: Callable[[], None] = lambda: None) -> None:
        """Run until the source ends or `is_stopped` returns True; then commit.

        If the results cannot be written, nothing is committed: undelivered records are read again next time.
        """
        while not is_stopped():
            place = self.source.position
            records = self.source.read(self._cadence.batch, _PATIENCE)
            self._pass_on_notices()
            if self._has_moved:
                self.commit(place=place)  # the lines of these records start a new file
            if records is None:
                self._end()
                break
            if records:
                judged = self._judge_records(records)
                self._uncommitted += len(records)
                self._write(records, judged)
            is_time = clock.monotonic() - self._committed_at >= self._cadence.seconds
            due = 1 if is_time else self._cadence.records
            if self.store.is_due or self._uncommitted >= due:
                self.commit()
            on_batch()
        self.commit(is_end=True)

    def commit(self, *, is_end: bool = False, place: Position = None, purge: bool = False) -> None:
        """Save the models, the position in the source (by default the current one) and marks of the outputs.

        With `purge`, deleted points are also removed from all files beside them.
        """
        self.store.commit(
            {
                "is_end": is_end,  # the run ended here, so nothing is lost
                "where": self._where,
                "position": self.source.position if place is None else place,
                "settings": self._settings,
                "reader": self.reader.state(),
                "out": None,
                "quarantine": None,
                "counts": vars(self.counts).copy(),
                **self._marks(),
            },
            purge=purge,
        )
        self._uncommitted, self._committed_at = 0, clock.monotonic()
        self._pass_on_notices()

    def close(self) -> None:
        """Close the source."""
        self.source.close()

    def _pass_on_notices(self) -> None:
        while self.source.notices:
            self._notify(self.source.notices.pop(0))

    def _judge_records(self, records: Sequence[Record]) -> Judged[Result]:
        """Parse, score, learn and count records; reject invalid ones with a reason."""
        rows, invalid = self._parse(records)
        judged = self.judge(rows, self.reader.layout)
        judged.rejected |= invalid
        self._count(len(rows) + len(invalid), judged)
        return judged

    def _parse(self, records: Sequence[Record]) -> tuple[list[StreamRow], dict[int, str]]:
        """Return the rows of valid records, and why others are invalid; skip headers and blank lines."""
        rows: list[StreamRow] = []
        invalid: dict[int, str] = {}
        has_columns = bool(self.reader.names)
        for place, record in enumerate(records):
            row: StreamRow | str | None = self.reader.parse(record)
            if isinstance(row, StreamRow):
                row = row._replace(place=place, position=record.position)
                row = self._why_invalid(row) or row
            if isinstance(row, str):
                invalid[place] = row
            elif row is not None:
                rows.append(row)
        if not has_columns:
            self._report_empty_fields()
        self._report_late_fields()
        return rows, invalid

    def _report_late_fields(self) -> None:
        """Report fields that appear after the first record, each once."""
        new = [name for name in self.reader.late if name not in self._late]
        self._late.update(new)
        if new:
            self._notify(
                f"{in_words(new)}: not in the first record, so it is ignored. To use it, start a new stream, or list "
                "all columns"
            )

    def _report_empty_fields(self) -> None:
        """Report fields that are empty in the first record: they may be numbers."""
        empty = [name for name, reason in self.reader.skipped.items() if reason == "empty"]
        if self.reader.names and empty:
            self._notify(
                f"{in_words(empty)} has no value in the first record, so it is ignored: to use it, list all --columns"
            )

    def _count(self, n_records: int, judged: Judged[Result]) -> None:
        """Count records; warn if all of the first are bad, most likely because of a wrong column."""
        counts, rejected = self.counts, judged.rejected
        counts.records += n_records
        counts.anomalies += judged.n_anomalies
        counts.bad += len(rejected)
        if rejected and not self._has_warned and counts.bad == counts.records >= _SUSPICIOUS:
            self._has_warned = True
            reason = rejected[max(rejected)]
            self._notify(f"all of the first {counts.records:,} records are bad; the last one: {reason}")
