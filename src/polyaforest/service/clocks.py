"""The clocks of a stream: which records are dated in the future, and how old the history is.

The system clock may be wrong and may be corrected at any time. So ages are measured on a separate clock, which advances
while the process runs. Between two runs, the system clock tells how much time has passed, up to a limit: a wrong clock
at a start ages the history by at most that much. A machine without a battery starts in 1970; until its clock is set, no
record counts as in the future.
"""

from __future__ import annotations

import sqlite3
import time as clock
from collections.abc import Callable
from datetime import UTC, datetime

import orjson

from polyaforest.service.database import Database
from polyaforest.util import schema

__all__ = ["Clocks", "moment_text"]

_FACT = "clocks"  # in the table of facts
_SAVED = schema.record({"wall": schema.number, "age": schema.number})
_SET = datetime(2025, 1, 1, tzinfo=UTC).timestamp()  # an earlier system clock has not been set


class Clocks:
    """The clocks of a stream, saved with its history.

    Parameters
    ----------
    database : Database
    max_gap : float
        Longest time between two runs that counts, in seconds.
    max_ahead : float
        Seconds by which a record may be ahead of the system clock.
    wall, steady : callable
        The system clock, and a monotonic one.
    """

    def __init__(
        self,
        database: Database,
        *,
        max_gap: float = 86400.0,
        max_ahead: float = 3600.0,
        wall: Callable[[], float] = clock.time,
        steady: Callable[[], float] = clock.monotonic,
    ) -> None:
        self.max_ahead = max_ahead
        self._wall, self._steady = wall, steady
        now = wall()
        saved = _saved(database) or {"wall": now, "age": now}
        gap = min(max(0.0, now - saved["wall"]), max_gap)
        self._age_at_start: float = saved["age"] + gap
        self._started = steady()

    @property
    def age(self) -> float:
        """The clock that measures ages of the history: seconds since an arbitrary moment."""
        return self._age_at_start + self._steady() - self._started

    @property
    def now(self) -> float | None:
        """Seconds since 1970; None while the system clock is not set."""
        wall = self._wall()
        return wall if wall >= _SET else None

    def why_ahead(self, time: float, received: float) -> str | None:
        """Return why a record is dated too far in the future, or None if it is not.

        Parameters
        ----------
        time : float
            Time of the record.
        received : float
            When it arrived, by the system clock.
        """
        if time <= received + self.max_ahead or received < _SET:
            return None
        ahead = f"{_in_words(time - received)} ahead of the system clock ({moment_text(received)})"
        return f"its time, {moment_text(time)}, is {ahead}, more than max_ahead = {_in_words(self.max_ahead)}"

    def save(self, file: sqlite3.Connection) -> None:
        """Save the clocks in a transaction."""
        facts = {"wall": self._wall(), "age": self.age}
        file.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (_FACT, orjson.dumps(facts)))


def _saved(database: Database) -> dict[str, float] | None:
    """Return the saved clocks; None if they are missing or damaged."""
    with database.read() as file:
        found = file.execute("SELECT value FROM facts WHERE name = ?", (_FACT,)).fetchone()
    try:
        facts: dict[str, float] | None = None if found is None else orjson.loads(found[0])
        if facts is not None:
            _SAVED(facts, _FACT)
        return facts
    except (ValueError, TypeError):
        return None


def moment_text(time: float) -> str:
    """Return a time in ISO 8601, or as a number if it is out of range."""
    try:
        return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return f"{time:g}"


def time_of_day(time: float) -> str:
    """Return the time of day in UTC, with seconds unless they are 0."""
    try:
        date = datetime.fromtimestamp(time, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{time:g}"
    return f"{date:%H:%M:%S}" if date.second else f"{date:%H:%M}"


def _in_words(seconds: float) -> str:
    """Return a duration in its largest unit."""
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("m", 60.0)):
        if seconds >= size:
            return f"{seconds / size:.4g}{unit}"
    return f"{seconds:.4g}s"
