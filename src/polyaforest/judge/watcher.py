"""Write verdicts on the records of a source as lines of JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import orjson

from polyaforest.io.json_values import to_json
from polyaforest.io.outputs import Lines
from polyaforest.io.records import Record, RecordReader
from polyaforest.io.sources import Source
from polyaforest.judge.describe import close_event, describe_changes, describe_judgement, track_event
from polyaforest.judge.judge import Judged
from polyaforest.judge.judgement import Judgement
from polyaforest.judge.loop import Cadence, Loop, StreamCounts
from polyaforest.judge.models import Entry, Store

__all__ = ["Cadence", "StreamCounts", "Watcher"]


class Watcher(Loop[bytes]):
    """Score the records of a source, each with the model of its key, and write lines of JSON.

    Parameters
    ----------
    source, reader, store, where, settings, finds_series, drift, cadence, notify
        See `Loop`.
    out, quarantine : Lines
        Outputs of verdicts and of bad records, one line of JSON each.
    only_anomalies : bool
        Whether to write lines for flagged records only.
    writes_events : bool
        Whether to write lines for the beginning and end of events instead of one per record.
    merge : int or None
        Largest distance of flagged records in one event; None uses the reach of the detector.
    """

    def __init__(
        self,
        source: Source,
        reader: RecordReader,
        store: Store,
        out: Lines,
        quarantine: Lines,
        *,
        where: str = "-",
        settings: dict[str, Any] | None = None,
        only_anomalies: bool = False,
        writes_events: bool = False,
        merge: int | None = None,
        finds_series: bool = False,
        drift: Mapping[str, Any] | None = None,
        cadence: Cadence | None = None,
        notify: Callable[[str], None] = lambda message: None,
    ) -> None:
        super().__init__(
            source,
            reader,
            store,
            where=where,
            settings=settings,
            finds_series=finds_series,
            drift=drift,
            cadence=cadence,
            notify=notify,
        )
        self.out, self.quarantine = out, quarantine
        self._only_anomalies, self._writes_events, self._merge = only_anomalies, writes_events, merge

    def resume(self, *, skip_seen: bool = False) -> bool:
        """Return to the last commit, as `Loop.resume`; warn if a new model appends to existing lines."""
        is_new = not self.store.notes
        is_same = super().resume(skip_seen=skip_seen)
        mark = self.store.notes["out"]
        if is_new and self.store.name and mark is not None and mark["length"]:
            words = "is not empty: appending to it"  # the model may have been deleted by mistake
            self._notify(f"the model is new, but '{mark['path']}' {words}")
        return is_same

    def close(self) -> None:
        """Close the source and the output files."""
        for part in (self.source, self.out, self.quarantine):
            part.close()

    def describe(self, entry: Entry, judgements: list[Judgement]) -> Sequence[bytes]:
        """Return the lines for each record: its verdict or its events, and changes noticed with it."""
        return [_as_lines([*self._facts(entry, one), *describe_changes(one)]) for one in judgements]

    def _facts(self, entry: Entry, judgement: Judgement) -> list[dict[str, Any]]:
        if self._writes_events:
            return track_event(entry, judgement, self._merge)
        return [describe_judgement(judgement)] if judgement.is_anomaly or not self._only_anomalies else []

    def _write(self, records: Sequence[Record], judged: Judged[bytes]) -> None:
        """Write lines in the order of the records."""
        rejected = ((records[place], reason) for place, reason in sorted(judged.rejected.items()))
        facts = ({"position": one.position, "reason": reason, "record": one.text} for one, reason in rejected)
        self.quarantine.write(_as_lines(facts))
        self.out.write(b"".join(judged.results[place] for place in sorted(judged.results)))

    def _marks(self) -> dict[str, Any]:
        return {"out": self.out.mark(), "quarantine": self.quarantine.mark()}

    def _rewind(self, notes: dict[str, Any]) -> None:
        if not notes["is_end"]:  # after a regular end, later lines were written by others
            self.out.rewind(notes["out"])
            self.quarantine.rewind(notes["quarantine"])

    @property
    def _has_moved(self) -> bool:
        return self.out.has_moved or self.quarantine.has_moved

    def _pass_on_notices(self) -> None:
        super()._pass_on_notices()
        for part in (self.out, self.quarantine):
            while part.notices:
                self._notify(part.notices.pop(0))

    def _end(self) -> None:
        """Write the open events when the source ends."""
        for key in self.store.keys if self._writes_events else ():
            try:
                self.out.write(_as_lines(close_event(key, self.store[key])))
            except (OSError, MemoryError):
                raise
            except Exception as problem:  # still write the events of other keys
                self.recover(key, f"{type(problem).__name__}: {problem}", of_one=False)


def _as_lines(facts: Iterable[dict[str, Any]]) -> bytes:
    """Encode objects as lines of JSON."""
    return b"".join(to_json(fact, orjson.OPT_APPEND_NEWLINE) for fact in facts)
