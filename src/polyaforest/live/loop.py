"""The endless loop: read records, have them judged, write the results, and commit now and then.

Records are pulled in batches of bounded size, and the next batch is read when the results of the last are written: so
nothing queues up, and a slow reader slows the source down. A commit saves the models, the position in the source and
marks of the outputs as of one moment. After a crash the outputs are taken back to that moment and the source resumes
from there: every record is learned once, and its result is written once.
"""

from __future__ import annotations

import time as clock
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from polyaforest.core import schema
from polyaforest.io import file_identity
from polyaforest.io.records import ParsedRow, Record, RecordReader
from polyaforest.io.sources import Position, Source
from polyaforest.live import Entry, Store
from polyaforest.live.judge import Judge, Judged, Piece, Result, whole_piece
from polyaforest.live.verdicts import Arrival, Verdict
from polyaforest.persistence.model_store import refusing_notes

__all__ = ["Cadence", "Counts", "Loop", "check_notes"]

_SUSPICIOUS = 20  # first records that are all bad
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
    optional=["device", "born", "ends"],  # which marks of older releases do not have
)
# The notes of a commit. A store may come from an untrusted source, so they are checked before they are used.
_NOTES = schema.record(
    {
        "is_end": schema.flag,
        "where": schema.path,
        "position": schema.anything,  # by the source
        "settings": schema.mapping,
        "reader": schema.record(
            {
                "format": schema.one_of("auto", "jsonl", "csv"),
                "names": schema.many(schema.text),
                "time": _TEXT_OR_NONE,
                "key": _TEXT_OR_NONE,
                "id": _TEXT_OR_NONE,
                "skipped": schema.mapping,
                "named": schema.flag,
                "settled": schema.flag,
                "header": schema.many(schema.text),
                "delimiter": schema.one_of(",", "\t", ";", "|"),
                "categories": schema.names,
            },
            optional=["categories"],
        ),
        "out": schema.either(schema.nothing, _MARK),
        "quarantine": schema.either(schema.nothing, _MARK),
        "counts": schema.record({"records": _COUNT, "bad": _COUNT, "anomalies": _COUNT}),
        "history": schema.mapping,  # by the service
    },
    optional=["history"],
)


@dataclass(frozen=True)
class Cadence:
    """How often to commit, and how much to read at a time."""

    records: int = 10_000  # between two commits
    seconds: float = 30.0  # between two commits, if any records have come
    batch: int = 4096  # the most records that are read at a time


@dataclass
class Counts:
    """Totals since the models started."""

    records: int = 0
    bad: int = 0
    anomalies: int = 0


def check_notes(notes: Mapping[str, Any], name: str) -> None:
    """Raise a `ModelFileError` that names the file unless these are the notes of a commit."""
    with refusing_notes(name):
        _NOTES(notes, "")


class Loop(ABC, Generic[Result]):
    """Judges the records of a source, each by the model of its key; subclasses write the results.

    Parameters
    ----------
    source : Source
    reader : RecordReader
    store : ModelStore
    where : str
        The name of the source, by which it is recognised when the store is used again.
    settings : dict
        The settings of the models, saved with them.
    finds_series : bool
        Whether a model that judges records one by one becomes one of a time series, if they turn out to be that.
    drift : mapping or None
        Parameters of the monitors of drift beside the models; None for no monitors.
    cadence : Cadence
    notify : callable
        Takes messages for the user.
    """

    _ROWS_OPTION = "--rows"  # how the user has records judged one by one

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
        self.source, self.store = source, store
        self._where, self._settings, self._notify = where, settings or {}, notify
        self._judge: Judge[Result] = Judge(
            reader,
            store,
            self._describe,
            self._plan,
            finds_series=finds_series,
            drift=drift,
            rows_option=self._ROWS_OPTION,
            check=self._check,
            notify=notify,
        )
        self._cadence = cadence or Cadence()
        self.counts = Counts()
        self.resumed_from: dict[str, Any] = {}  # the notes of the run before
        self._has_warned = False
        self._uncommitted = 0  # records since the last commit
        self._committed_at = clock.monotonic()

    @property
    def reader(self) -> RecordReader:
        """The parser of records."""
        return self._judge.reader

    # ---- what subclasses do with the results -------------------------------------------------------------------------

    @abstractmethod
    def _describe(self, entry: Entry, arrivals: list[Arrival], verdicts: list[Verdict]) -> Sequence[Result]:
        """Return a result for each of some records of a key; notes of the entry may be changed."""

    @abstractmethod
    def _write(self, judged: Judged[Result]) -> None:
        """Write the results of a batch."""

    @abstractmethod
    def _marks(self) -> dict[str, Any]:
        """Return marks to take the outputs back to, once what was written is on disk."""

    @abstractmethod
    def _rewind(self, notes: dict[str, Any]) -> None:
        """Take the outputs back to the marks in the notes of a commit."""

    def _plan(self, entry: Entry, arrivals: Sequence[Arrival]) -> Piece:
        """Return how many of the next records of a key to judge together."""
        return whole_piece(entry, arrivals)

    def _check(self, record: Record, row: ParsedRow) -> str | None:
        """Return why a record cannot be used, None if it can."""
        return None

    @property
    def _has_moved(self) -> bool:
        """Whether outputs have to be opened anew, which a commit does."""
        return False

    def _end(self) -> None:
        """Write what is left when the source ends."""

    # ---- the loop ----------------------------------------------------------------------------------------------------

    def resume(self, *, skip_seen: bool = False) -> bool:
        """Return to the last commit, if the store has one; return whether the source resumes where it was.

        A source that cannot replay continues with what comes next. If it starts over instead, `skip_seen` skips the
        records that were counted before.
        """
        notes = self.store.notes
        if not notes:
            self.commit()  # what is written from now on can be taken back
            return False
        check_notes(notes, self.store.name)
        with refusing_notes(self.store.name):
            self.counts = Counts(**notes["counts"])
            self._judge.reader = RecordReader.of_state(notes["reader"])
            is_same = notes["where"] == self._where and notes["position"] is not None
            if is_same and (self.source.can_replay or skip_seen):
                self.source.seek(notes["position"])
            self._rewind(notes)
        self.resumed_from = notes
        self.commit()
        return bool(is_same)

    def run(self, is_stopped: Callable[[], bool] = lambda: False, watching: Callable[[], None] = lambda: None) -> None:
        """Run until the source ends or `is_stopped` returns True; then save everything.

        If the results cannot be written, nothing is saved: what was not delivered is read again next time.
        """
        while not is_stopped():
            place = self.source.position
            records = self.source.read(self._cadence.batch, _PATIENCE)
            self._pass_on_notices()
            if self._has_moved:
                self.commit(place=place)  # the lines of these records go to a new file, from the start of it
            if records is None:
                self._end()
                break
            if records:
                judged = self._judge(records)
                self._uncommitted += len(records)
                self._count(judged)
                self._write(judged)
            is_time = clock.monotonic() - self._committed_at >= self._cadence.seconds
            due = 1 if is_time else self._cadence.records
            if self.store.is_due or self._uncommitted >= due:
                self.commit()
            watching()
        self.commit(is_end=True)

    def commit(self, *, is_end: bool = False, place: Position = None, purge: bool = False) -> None:
        """Save the models, the position in the source (the current one by default) and marks of the outputs.

        With `purge`, what was deleted is removed from all files beside them, too.
        """
        self.store.commit(
            {
                "is_end": is_end,  # whether it stops here, so that nothing can have been lost
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

    def _count(self, judged: Judged[Result]) -> None:
        """Count records; report if all of the first are bad, most likely because of wrong columns."""
        counts, bad = self.counts, judged.bad
        counts.records += judged.n_records
        counts.anomalies += judged.n_anomalies
        counts.bad += len(bad)
        if bad and not self._has_warned and counts.bad == counts.records >= _SUSPICIOUS:
            self._has_warned = True
            self._notify(f"all of the first {counts.records:,} records are bad; the last one: {bad[-1].reason}")
