"""Create SQLite files atomically: if a process is killed at any moment, a file is either absent or complete.

A database is built in a scratch file, flushed to disk, and then published under its final name. A killed process leaves
at most a scratch file, which the next process removes. Publishing never overwrites a file that another process
published first. Functions that remove or replace files require the caller to hold the lock of the database, if any.

A database may also have a hot journal: the undo log of a killed transaction. SQLite rolls it back as soon as the file
is opened for writing, even if another application wrote it. A database from an untrusted source is therefore rolled
back in a copy first.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import TypeAlias

from polyaforest.storage.modelfile import ModelFileError, sync_folder
from polyaforest.util.system import copy_owner

__all__ = [
    "Fill",
    "build",
    "copied",
    "create",
    "has_hot_journal",
    "is_blank",
    "keep",
    "publish",
    "remove_leftovers",
    "replace",
]

Fill: TypeAlias = Callable[[sqlite3.Connection], object]

_COMPANIONS = ("-journal", "-wal", "-shm")  # of a database, by SQLite's convention
_SCRATCH = "-new-"  # between the name of a database and the token of a scratch file
_JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")  # SQLite's file format, section 3
_NO_LINKS = {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK}  # of file systems without them


def create(target: str, fill: Fill) -> None:
    """Create a database, or replace an empty one; do nothing if another process publishes one first."""
    target = os.path.realpath(target)
    is_replaced = os.path.exists(target)
    scratch = build(target, fill)
    if is_replaced:
        replace(scratch, target)
        return
    with suppress(FileExistsError):
        publish(scratch, target)


def build(target: str, fill: Fill) -> str:
    """Build a database in a scratch file beside `target`; return the path of the file once it is on disk."""
    scratch = os.path.abspath(f"{target}{_SCRATCH}{secrets.token_hex(4)}")
    try:
        _create_empty(scratch, target)
    except OSError as problem:
        problem.filename = target  # the name the caller knows
        raise
    try:
        with closing(sqlite3.connect(scratch, isolation_level=None)) as file:
            file.execute("PRAGMA journal_mode = OFF")  # an incomplete file is discarded
            file.execute("PRAGMA synchronous = OFF")
            fill(file)
            file.execute("PRAGMA journal_mode = WAL")  # changed here, where it leaves no journal behind
        _sync(scratch)
    except BaseException:
        _remove(scratch)
        raise
    return scratch


def publish(scratch: str, target: str) -> None:
    """Move a scratch file to its final name; if that exists, remove the scratch file and raise FileExistsError."""
    try:
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, "another process created it", target)
        _remove_companions(target)  # of a deleted database: SQLite would apply them to this one
        _link(scratch, target)
    finally:
        _remove(scratch)
    sync_folder(os.path.dirname(scratch))


def replace(scratch: str, target: str) -> None:
    """Replace a database, which must be closed and have an empty log, by a scratch file."""
    try:
        _remove_companions(target)
        os.replace(scratch, target)
    finally:
        _remove(scratch)  # if it is still there
    sync_folder(os.path.dirname(scratch))


def keep(target: str, name: str) -> None:
    """Keep a database under a second name before it is replaced."""
    if not _is_linked(target, name):
        shutil.copy2(target, name)
        _sync(name)
    sync_folder(os.path.dirname(os.path.abspath(name)))


def remove_leftovers(target: str) -> None:
    """Remove scratch files of killed processes."""
    folder, name = os.path.split(os.path.realpath(target))
    pattern = re.compile(f"({re.escape(name)}{_SCRATCH}[0-9a-f]{{8}})({'|'.join(_COMPANIONS)})?")
    with suppress(PermissionError):  # the folder cannot be listed; leftovers are harmless
        for found in filter(None, map(pattern.fullmatch, os.listdir(folder))):
            _remove(os.path.join(folder, found[1]))


def is_blank(file: sqlite3.Connection) -> bool:
    """Return whether a database is new: one page, no tables, no application id, no user version."""
    marks = ("application_id", "user_version")
    has_marks = any(file.execute(f"PRAGMA {mark}").fetchone()[0] for mark in marks)
    is_small = file.execute("PRAGMA page_count").fetchone()[0] <= 1
    return is_small and not has_marks and not file.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]


def has_hot_journal(file: sqlite3.Connection) -> bool:
    """Return whether a read-only connection finds a transaction that must be rolled back first."""
    try:
        file.execute("PRAGMA schema_version").fetchone()
    except sqlite3.OperationalError as problem:
        if problem.sqlite_errorname != "SQLITE_READONLY_ROLLBACK":
            raise
        return True
    return False


@contextmanager
def copied(target: str) -> Iterator[str]:
    """Copy a database and its journal to a temporary folder, to roll it back there, and yield the path of the copy."""
    with tempfile.TemporaryDirectory(prefix="polyaforest-") as folder:
        copy = os.path.join(folder, "copy")
        for part in ("-journal", "-wal", ""):  # in this order: another process may roll the file back meanwhile
            with suppress(FileNotFoundError):
                shutil.copyfile(f"{target}{part}", f"{copy}{part}")
        if _names_another_file(f"{copy}-journal"):
            raise ModelFileError(
                f"'{target}-journal' belongs to a transaction over several databases, which polyaforest never uses: "
                "restore a copy of both files"
            )
        yield copy


def _names_another_file(journal: str) -> bool:
    """Return whether a journal names a super-journal: SQLite would delete that file, which may be any file."""
    if not os.path.exists(journal):
        return False
    with open(journal, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - len(_JOURNAL_MAGIC)))
        return file.read() == _JOURNAL_MAGIC


def _create_empty(scratch: str, target: str) -> None:
    """Create an empty file with the permissions (and for root, the owner) of `target`, if that exists."""
    try:
        like = os.stat(target)
    except FileNotFoundError:
        os.close(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
        return
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        copy_owner(descriptor, like)
    finally:
        os.close(descriptor)


def _link(scratch: str, target: str) -> None:
    """Link a file to a new name, failing if it exists; rename it on file systems without hard links."""
    if not _is_linked(scratch, target):
        os.rename(scratch, target)


def _is_linked(source: str, target: str) -> bool:
    """Link a file to a new name; return False on file systems without hard links."""
    try:
        os.link(source, target)
    except OSError as problem:
        if problem.errno not in _NO_LINKS:
            raise
        return False
    return True


def _remove(scratch: str) -> None:
    for name in (scratch, *(f"{scratch}{ending}" for ending in _COMPANIONS)):
        with suppress(FileNotFoundError):
            os.remove(name)


def _remove_companions(target: str) -> None:
    """Remove the journal, the log and the log index of a replaced or deleted database."""
    for ending in _COMPANIONS:
        with suppress(FileNotFoundError):
            os.remove(f"{target}{ending}")


def _sync(name: str) -> None:
    """Flush a file to disk."""
    descriptor = os.open(name, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
