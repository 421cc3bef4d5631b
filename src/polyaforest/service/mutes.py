"""Rules of operators that mute flagged records for a while: of a key, of keys that match a pattern, or of a field.

Rules are part of the history. A rule applies to records that arrive between its creation and its end, so that records
that are scored again after a crash are muted as before.
"""

from __future__ import annotations

import sqlite3
import time as clock
from dataclasses import asdict, dataclass
from typing import Any

from polyaforest.service.database import Database
from polyaforest.util.patterns import matches

__all__ = ["MuteRule", "Mutes", "TooManyMutes"]

_MOST = 1000  # rules in force
_COLUMNS = "id, at, until, who, key, pattern, field, reason, ended"


class TooManyMutes(ValueError):  # noqa: N818 - reads better where it is caught
    """Raised if a stream has too many rules."""


@dataclass(frozen=True)
class MuteRule:
    """A rule; a condition that is None holds for all."""

    id: int
    at: float
    until: float
    who: str
    key: str | None
    pattern: str | None  # a regular expression that the whole key matches
    field: str | None
    reason: str
    ended: float | None = None  # when it was removed before its end

    @property
    def end(self) -> float:
        """When it ends, or was removed."""
        return self.until if self.ended is None else min(self.until, self.ended)

    def covers(self, key: str, field: str | None, received: float) -> bool:
        """Return whether the rule mutes a record of a key, mostly attributed to a field."""
        is_key = (self.key is None or self.key == key) and (self.pattern is None or matches(self.pattern, key))
        return self.at <= received < self.end and is_key and (self.field is None or self.field == field)

    def facts(self) -> dict[str, Any]:
        """Return the rule as JSON values."""
        return asdict(self)


class Mutes:
    """The rules of a stream; safe in any thread."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._rules: tuple[MuteRule, ...] = ()
        self.reload()

    def reload(self) -> None:
        """Read the rules again."""
        with self._database.read() as file:
            rows = file.execute(f"SELECT {_COLUMNS} FROM mutes ORDER BY id").fetchall()
        self._rules = tuple(MuteRule(*row) for row in rows)

    def in_force(self) -> list[MuteRule]:
        """Return the rules that have not ended, latest first."""
        now = clock.time()
        return [rule for rule in reversed(self._rules) if now < rule.end]

    def add(self, file: sqlite3.Connection, rule: dict[str, Any]) -> MuteRule:
        """Add a rule in a transaction; `reload` puts it into force."""
        if len(self.in_force()) >= _MOST:
            raise TooManyMutes(f"{_MOST} rules are in force: remove some")
        facts = {"at": clock.time(), "ended": None, **rule}
        names = ("at", "until", "who", "key", "pattern", "field", "reason", "ended")
        columns, marks = ", ".join(names), ", ".join("?" * len(names))
        query = f"INSERT INTO mutes ({columns}) VALUES ({marks})"
        number = file.execute(query, [facts[name] for name in names]).lastrowid
        assert number is not None
        return MuteRule(number, **{name: facts[name] for name in names})

    def end(self, file: sqlite3.Connection, id: int) -> None:
        """End a rule now, in a transaction; raise KeyError if it does not exist or has ended."""
        now = clock.time()
        query = "UPDATE mutes SET ended = ? WHERE id = ? AND until > ? AND ended IS NULL"
        if not file.execute(query, (now, id, now)).rowcount:
            raise KeyError(id)

    def expire(self, file: sqlite3.Connection, before: float) -> None:
        """Delete rules that ended before a time."""
        file.execute("DELETE FROM mutes WHERE min(until, coalesce(ended, until)) < ?", (before,))

    def why(self, key: str, field: str | None, received: float) -> str | None:
        """Return why a flagged record does not count, or None if it does."""
        for rule in self._rules:
            if rule.covers(key, field, received):
                return f"muted by {rule.who}{f': {rule.reason}' if rule.reason else ''}"
        return None
