"""Reports of damaged parts of a history, and records that a stream rejects."""

from __future__ import annotations

import time as clock
from collections.abc import Iterator, Mapping, Sequence

from polyaforest.io.records import Record
from polyaforest.service.clocks import moment_text
from polyaforest.service.database import Database
from polyaforest.service.history import RecordHistory

__all__ = ["DamageReports", "quarantine"]

_MOST_NAMED = 100  # damaged parts to report at a time
_MOST_QUARANTINED = 1000


class DamageReports:
    """Report each damaged part of a history once."""

    def __init__(self, database: Database, history: RecordHistory) -> None:
        self._database, self._history = database, history
        self._reported = 0 if database.repairs else history.last_damaged  # number of the last damaged part reported

    def new(self) -> Iterator[str]:
        """Yield a sentence for each part that is not reported yet."""
        found = self._history.damaged(most=_MOST_NAMED)
        new = [part for part in found if part["id"] > self._reported]
        self._reported = max([self._reported, *(part["id"] for part in found)])
        for part in reversed(new):
            records = f"{part['n']} records" if part["what"] == "block" else "an event"
            span = f"{moment_text(part['start'])} to {moment_text(part['end'])}"
            yield (
                f"{self._database.path} is damaged: {records} of key {part['key']!r} from {span} cannot be read "
                f"({part['reason']}). The damaged part was set aside; all other data is kept"
            )


def quarantine(database: Database, records: Sequence[Record], rejected: Mapping[int, str]) -> None:
    """Keep the latest rejected records of a batch, with the reasons by place."""
    now, latest = clock.time(), sorted(rejected.items())[-_MOST_QUARANTINED:]
    rows = [(records[place].position, now, reason, records[place].text) for place, reason in latest]
    with database.write() as file:
        file.executemany("INSERT OR REPLACE INTO quarantine VALUES (?, ?, ?, ?)", rows)
        query = "DELETE FROM quarantine WHERE rowid <= (SELECT max(rowid) FROM quarantine) - ?"
        file.execute(query, (_MOST_QUARANTINED,))
