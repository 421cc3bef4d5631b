"""The history of a stream in one SQLite file, beside its models.

One thread writes: what it is told between two commits of the models it may be told again after a crash, with the same
numbers. So every table is written by keys that a replay repeats, or can be cut back to a position in the stream. Other
threads read the last commit. Everything that is acknowledged to others (`synchronous = FULL`) is on disk by then.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from urllib.parse import quote

from polyaforest.io.errors import BadInput
from polyaforest.persistence import databases

__all__ = ["Database", "check_history"]

_APPLICATION = 0x504D5048  # "PMPH"
_VERSION = 2  # version 1 has no digests of requests
_SCHEMA = """
CREATE TABLE keys (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE);
CREATE TABLE blocks (
    key INTEGER NOT NULL, first INTEGER NOT NULL, n INTEGER NOT NULL, start REAL NOT NULL, end REAL NOT NULL,
    position INTEGER NOT NULL, strip BLOB NOT NULL, fine BLOB NOT NULL, summary BLOB NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (key, first)
);
CREATE INDEX blocks_by_time ON blocks (key, end);
CREATE INDEX blocks_by_start ON blocks (start);
CREATE INDEX blocks_by_end ON blocks (end);
CREATE INDEX blocks_by_position ON blocks (position);
CREATE TABLE events (
    id TEXT PRIMARY KEY, key INTEGER NOT NULL, kind TEXT NOT NULL, start REAL NOT NULL, end REAL NOT NULL,
    is_open INTEGER NOT NULL, bits REAL, position INTEGER NOT NULL, label TEXT, body BLOB NOT NULL
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
_UPGRADE = """
ALTER TABLE inbox ADD COLUMN digest BLOB;
"""


class Database:
    """The SQLite file of a stream: one connection to write, one to read.

    Parameters
    ----------
    path : str
        The file, created if it does not exist.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._writing, self._reading = threading.RLock(), threading.Lock()
        self._writer = _opened(path)
        self._reader = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30)
        self._reader.execute("PRAGMA query_only = ON")

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection to write with, in a transaction that is on disk afterwards; nestable."""
        with self._writing:
            if self._writer.in_transaction:
                yield self._writer
                return
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
            except BaseException:
                self._writer.execute("ROLLBACK")
                raise
            self._writer.execute("COMMIT")

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection to read with."""
        with self._reading:
            yield self._reader

    def purge(self) -> None:
        """Remove what was deleted from the log beside the file, too."""
        with self._writing, self._reading:
            self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Close the file."""
        with self._writing, self._reading:
            self._writer.close()
            self._reader.close()


def check_history(path: str) -> None:
    """Raise `BadInput` unless a file can be opened as a history; it is only read."""
    try:
        with closing(sqlite3.connect(f"file:{quote(os.path.abspath(path))}?mode=ro", uri=True, timeout=30)) as file:
            if file.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                _check(file, path)
    except sqlite3.DatabaseError as problem:
        raise BadInput(f"{path} cannot be used as a history: {problem}") from problem


def _check(file: sqlite3.Connection, path: str) -> None:
    """Raise `BadInput` unless a database is a history of a version that this release reads."""
    if file.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION:
        raise BadInput(f"{path} is a database, but not a history of polyaforest")
    version = file.execute("PRAGMA user_version").fetchone()[0]
    if version > _VERSION:
        raise BadInput(f"{path} has format version {version}, this release reads up to {_VERSION}: upgrade")


def _opened(path: str) -> sqlite3.Connection:
    """Open or create a file; refuse one of another kind."""
    try:
        databases.remove_leftovers(path)
        if not os.path.exists(path) or _is_blank(path):
            databases.create(path, _create_tables)
        file = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=30)
        file.execute("PRAGMA trusted_schema = OFF")
        _check(file, path)
        file.execute("PRAGMA journal_mode = WAL")
        file.execute("PRAGMA synchronous = FULL")  # a record that was acknowledged survives a power failure
        file.execute("PRAGMA secure_delete = ON")  # deleted records must not remain in free pages
        if file.execute("PRAGMA user_version").fetchone()[0] < _VERSION:
            file.executescript(f"BEGIN; {_UPGRADE} PRAGMA user_version = {_VERSION}; COMMIT")
        return file
    except (OSError, sqlite3.DatabaseError) as problem:
        raise BadInput(f"{path} cannot be used as a history: {problem}") from problem


def _is_blank(path: str) -> bool:
    """Return whether a file was never filled, because an older version that created it was killed."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as file:
        return databases.is_blank(file)


def _create_tables(file: sqlite3.Connection) -> None:
    """Make an empty database a history without records."""
    file.execute("PRAGMA page_size = 8192")
    marks = f"PRAGMA application_id = {_APPLICATION}; PRAGMA user_version = {_VERSION};"
    file.executescript(f"BEGIN; {_SCHEMA} {marks} COMMIT")
