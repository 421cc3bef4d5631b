"""The history of a stream in one SQLite file, beside its models.

One thread writes. After a crash it repeats what came after the last commit of the models, with the same numbers. So a
table has keys that a replay repeats, or can be truncated at a position in the stream. Other threads read the last
commit. Acknowledged data is on disk (`synchronous = FULL`).

A file whose pages are damaged is rebuilt from the rows that can be read; the damaged file is kept beside the new one.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time as clock
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from itertools import count
from typing import Any
from urllib.parse import quote

from polyaforest.io.errors import BadInput
from polyaforest.storage import databases

__all__ = ["Damaged", "Database", "check_history"]

_APPLICATION = 0x504D5048  # "PMPH"
_VERSION = 2  # version 1 lacks checksums and storage times of blocks, and digests of requests
_TRIES = 10_000  # row numbers to try one by one after a damaged page, before the steps grow
_UNUSABLE = (
    "{path} cannot be used as a history ({problem}): restore a backup, or move it and its models away to start over"
)
_CORRUPT = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_SCHEMA = """
CREATE TABLE keys (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE);
CREATE TABLE blocks (
    key INTEGER NOT NULL, first INTEGER NOT NULL, n INTEGER NOT NULL, start REAL NOT NULL, end REAL NOT NULL,
    position INTEGER NOT NULL, strip BLOB NOT NULL, fine BLOB NOT NULL, summary BLOB NOT NULL, data BLOB NOT NULL,
    stored REAL, PRIMARY KEY (key, first)
);
CREATE INDEX blocks_by_time ON blocks (key, end);
CREATE INDEX blocks_by_start ON blocks (start);
CREATE INDEX blocks_by_end ON blocks (end);
CREATE INDEX blocks_by_position ON blocks (position);
CREATE INDEX blocks_by_stored ON blocks (stored);
CREATE TABLE events (
    id TEXT PRIMARY KEY, key INTEGER NOT NULL, kind TEXT NOT NULL, start REAL NOT NULL, end REAL NOT NULL,
    is_open INTEGER NOT NULL, bits REAL, position INTEGER NOT NULL, label TEXT, body BLOB NOT NULL,
    changed REAL
);
CREATE INDEX events_by_time ON events (end);
CREATE INDEX events_by_key ON events (key, end);
CREATE INDEX events_open ON events (is_open) WHERE is_open;
CREATE TABLE inbox (
    first INTEGER PRIMARY KEY, n INTEGER NOT NULL, received REAL NOT NULL, request TEXT UNIQUE, body BLOB,
    digest BLOB
);
CREATE TABLE quarantine (position TEXT PRIMARY KEY, at REAL NOT NULL, reason TEXT NOT NULL, record TEXT NOT NULL);
CREATE TABLE feedback (
    id INTEGER PRIMARY KEY AUTOINCREMENT, event TEXT NOT NULL, verdict TEXT NOT NULL, at REAL NOT NULL,
    state TEXT NOT NULL, position INTEGER, facts BLOB NOT NULL, before BLOB
);
CREATE INDEX feedback_by_event ON feedback (event);
CREATE TABLE audit (
    id INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, who TEXT NOT NULL, action TEXT NOT NULL, facts BLOB NOT NULL
);
CREATE TABLE outbox (
    id INTEGER PRIMARY KEY AUTOINCREMENT, event TEXT NOT NULL, destination TEXT NOT NULL, kind TEXT NOT NULL,
    level INTEGER NOT NULL, message BLOB NOT NULL, state TEXT NOT NULL, attempts INTEGER NOT NULL, due REAL NOT NULL,
    at REAL NOT NULL, error TEXT, UNIQUE (event, destination, kind, level)
);
CREATE INDEX outbox_waiting ON outbox (due) WHERE state = 'waiting';
CREATE TABLE facts (name TEXT PRIMARY KEY, value BLOB NOT NULL);
"""
_DAMAGED = """
CREATE TABLE damaged (
    id INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, what TEXT NOT NULL, key TEXT NOT NULL, n INTEGER NOT NULL,
    start REAL, end REAL, reason TEXT NOT NULL, body BLOB, stored REAL
);
"""
# absent from files of earlier releases, which do not need them
_ADDED = """
CREATE TABLE IF NOT EXISTS mutes (
    id INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, until REAL NOT NULL, who TEXT NOT NULL, key TEXT,
    pattern TEXT, field TEXT, reason TEXT NOT NULL, ended REAL
);
CREATE TABLE IF NOT EXISTS annotations (
    id TEXT PRIMARY KEY, start REAL NOT NULL, end REAL NOT NULL, key TEXT, text TEXT NOT NULL, kind TEXT NOT NULL,
    who TEXT NOT NULL, at REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS annotations_by_start ON annotations (start);
"""
_UPGRADE = f"""
ALTER TABLE inbox ADD COLUMN digest BLOB;
ALTER TABLE blocks ADD COLUMN stored REAL;
CREATE INDEX blocks_by_stored ON blocks (stored);
ALTER TABLE events ADD COLUMN changed REAL;
{_DAMAGED}
"""
_TABLES = (
    "keys",
    "blocks",
    "events",
    "inbox",
    "quarantine",
    "feedback",
    "audit",
    "outbox",
    "facts",
    "damaged",
    "mutes",
    "annotations",
)


class Damaged(Exception):  # noqa: N818 - reads better where it is caught
    """Raised if a page of the file cannot be read; the stream's thread then rebuilds the file."""


class Database:
    """The SQLite file of a stream: one connection to write, one to read.

    Parameters
    ----------
    path : str
        The file, created if it does not exist.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.is_damaged = False  # whether a page could not be read
        self.repairs: list[str] = []  # reports of repairs, for the log
        self._writing, self._reading = threading.RLock(), threading.Lock()
        self._connect()
        if not _is_sound(self._reader):
            self.repair()

    def _connect(self) -> None:
        self._writer = _opened(self.path)
        self._reader = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=30)
        self._reader.execute("PRAGMA query_only = ON")

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """Yield the writing connection in a durable transaction; may be nested."""
        with self._writing:
            if self._writer.in_transaction:
                yield self._writer
                return
            with self._noting_damage():
                self._writer.execute("BEGIN IMMEDIATE")
                try:
                    yield self._writer
                except BaseException:
                    self._writer.execute("ROLLBACK")
                    raise
                self._writer.execute("COMMIT")

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """Yield the reading connection."""
        with self._reading, self._noting_damage():
            yield self._reader

    @contextmanager
    def _noting_damage(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as problem:
            if not _is_damage(problem):
                raise
            self.is_damaged = True
            raise Damaged(f"{self.path} is damaged ({problem}): the service is rebuilding it") from problem

    def repair(self) -> None:
        """Rebuild the file from its readable rows; keep the damaged file beside it."""
        kept, lost = _unused_name(self.path), dict[str, int]()
        with self._writing, self._reading:
            fresh = databases.build(self.path, lambda copy: lost.update(_copy_readable(self._writer, copy)))
            self._writer.close()
            self._reader.close()
            databases.keep(self.path, kept)
            databases.replace(fresh, self.path)
            self._connect()
            self.is_damaged = False
        rows = ", ".join(f"{n} of {table}" for table, n in lost.items()) or "none"
        self.repairs.append(
            f"{self.path} was damaged and has been rebuilt; unreadable rows: {rows}. The damaged file is kept as {kept}"
        )

    def purge(self) -> None:
        """Remove deleted data from the write-ahead log, too."""
        with self._writing, self._reading:
            self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Close the file."""
        with self._writing, self._reading:
            self._writer.close()
            self._reader.close()


def check_history(path: str) -> None:
    """Raise `BadInput` if a file is not a readable history; never write to it."""
    try:
        with closing(sqlite3.connect(f"file:{quote(os.path.abspath(path))}?mode=ro", uri=True, timeout=30)) as file:
            if file.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                _check(file, path)
    except sqlite3.DatabaseError as problem:
        raise BadInput(_UNUSABLE.format(path=path, problem=problem)) from problem


def _check(file: sqlite3.Connection, path: str) -> None:
    """Raise `BadInput` if a database is not a history of a supported version."""
    if file.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION:
        raise BadInput(f"{path} is a database, but not a history of polyaforest")
    version = file.execute("PRAGMA user_version").fetchone()[0]
    if version > _VERSION:
        raise BadInput(f"{path} has format version {version}, this release reads up to {_VERSION}: upgrade polyaforest")


def _opened(path: str) -> sqlite3.Connection:
    """Open or create a history; raise `BadInput` if the file is of another kind."""
    try:
        databases.remove_leftovers(path)
        if not os.path.exists(path) or _is_blank(path):
            databases.create(path, _create_tables)
        file = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30)
        file.execute("PRAGMA trusted_schema = OFF")
        _check(file, path)
        file.execute("PRAGMA journal_mode = WAL")
        file.execute("PRAGMA synchronous = FULL")  # acknowledged records survive a power failure
        file.execute("PRAGMA secure_delete = ON")  # deleted records must not remain in free pages
        if file.execute("PRAGMA user_version").fetchone()[0] < _VERSION:
            file.executescript(f"BEGIN; {_UPGRADE} PRAGMA user_version = {_VERSION}; COMMIT")
        file.executescript(f"BEGIN; {_ADDED} COMMIT")
        return file
    except (OSError, sqlite3.DatabaseError) as problem:
        raise BadInput(_UNUSABLE.format(path=path, problem=problem)) from problem


def _is_blank(path: str) -> bool:
    """Return whether a file has no tables, because an older version was killed while creating it."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as file:
        return databases.is_blank(file)


def _create_tables(file: sqlite3.Connection) -> None:
    """Create the tables of an empty history."""
    file.execute("PRAGMA page_size = 8192")
    marks = f"PRAGMA application_id = {_APPLICATION}; PRAGMA user_version = {_VERSION};"
    file.executescript(f"BEGIN; {_SCHEMA} {_DAMAGED} {_ADDED} {marks} COMMIT")


# ---- damage ----------------------------------------------------------------------------------------------------------


def _is_damage(problem: sqlite3.DatabaseError) -> bool:
    """Return whether an error means damaged pages or invalid text in the file."""
    return getattr(problem, "sqlite_errorcode", 0) & 0xFF in _CORRUPT or "decode to UTF-8" in str(problem)


def _is_sound(file: sqlite3.Connection) -> bool:
    """Return whether the pages of the file are consistent."""
    try:
        return bool(file.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok")
    except sqlite3.DatabaseError as problem:
        if _is_damage(problem):
            return False
        raise


def _unused_name(path: str) -> str:
    """Return an unused file name for a damaged file."""
    return next(name for n in count(1) if not os.path.exists(name := f"{path}.damaged-{n}"))


def _copy_readable(file: sqlite3.Connection, copy: sqlite3.Connection) -> dict[str, int]:
    """Copy the readable rows of all tables to an empty file; return the number of lost rows per table."""
    _create_tables(copy)
    copy.execute("BEGIN")
    lost = {table: n for table in _TABLES if (n := _copy_table(file, copy, table))}
    with suppress(sqlite3.DatabaseError):  # numbers are never reused
        for table, last in file.execute("SELECT name, seq FROM sqlite_sequence").fetchall():
            copy.execute("UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = ?", (last, table))
    copy.execute("COMMIT")
    return lost


def _copy_table(file: sqlite3.Connection, copy: sqlite3.Connection, table: str) -> int:
    """Copy the readable rows of a table; return the number of lost rows, as far as it is known."""
    n_lost = 0
    marks = ", ".join("?" * len(copy.execute(f"PRAGMA table_info({table})").fetchall()))
    for number in _row_numbers(file, table):
        try:
            row = file.execute(f"SELECT * FROM {table} WHERE rowid = ?", (number,)).fetchone()
            if row is None:  # a bogus row number from a damaged page
                n_lost += 1
            else:
                copy.execute(f"INSERT INTO {table} VALUES ({marks})", row)
        except sqlite3.IntegrityError:  # bogus columns
            n_lost += 1
        except sqlite3.DatabaseError as problem:
            if not _is_damage(problem):
                raise
            n_lost += 1
            if table == "blocks":
                _name_lost_block(file, copy, number, str(problem))
    return n_lost


def _row_numbers(file: sqlite3.Connection, table: str) -> Iterator[int]:
    """Yield the row numbers on readable pages."""
    at, n_failed = -1, 0
    while at < 2**62:
        try:
            query = f"SELECT rowid FROM {table} NOT INDEXED WHERE rowid > ? ORDER BY rowid"
            for (number,) in file.execute(query, (at,)):
                at, n_failed = number, 0
                yield number
            return
        except sqlite3.DatabaseError as problem:
            if not _is_damage(problem):
                raise
            n_failed += 1
            at += 1 if n_failed < _TRIES else 2 ** min(n_failed - _TRIES, 40)


def _name_lost_block(file: sqlite3.Connection, copy: sqlite3.Connection, number: int, reason: str) -> None:
    """Record the key and times of a block that cannot be read."""
    query = "SELECT (SELECT key FROM keys WHERE id = blocks.key), first, n, start, end FROM blocks WHERE rowid = ?"
    try:
        key, first, n, start, end = file.execute(query, (number,)).fetchone()
    except (sqlite3.DatabaseError, TypeError):  # its own page is damaged, too
        return
    why = f"block {first} of its key: {reason}"
    row: tuple[Any, ...] = (clock.time(), "block", key or "", n, start, end, why)
    copy.execute("INSERT INTO damaged (at, what, key, n, start, end, reason) VALUES (?, ?, ?, ?, ?, ?, ?)", row)
