"""SQLite files that are absent or complete, at whatever moment a process is killed.

A database is built under a name of its own, flushed to disk, and only then published under the name that others know.
A killed process leaves at most a scratch file, which the next one removes. Publishing never overwrites a file that
another process published first. The functions that remove or replace files expect the caller to hold the lock of the
database, if it has one.

A database may also have a hot journal: the undo log of a transaction that was killed. SQLite rolls it back as soon as
the file is opened to write, even if another application made it. A database from an untrusted source is therefore
rolled back in a copy first.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import TypeAlias

from polyaforest.persistence.modelfile import ModelFileError, sync_folder

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
            file.execute("PRAGMA journal_mode = OFF")  # it is built from the beginning or not at all
            file.execute("PRAGMA synchronous = OFF")
            fill(file)
            file.execute("PRAGMA journal_mode = WAL")  # here, where no journal of the change can be left behind
        _sync(scratch)
    except BaseException:
        _remove(scratch)
        raise
    return scratch


def publish(scratch: str, target: str) -> None:
    """Give a scratch file its final name; raise FileExistsError if that is taken. The scratch file is gone then."""
    try:
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, "another process created it", target)
        _remove_companions(target)  # of a database that was deleted: SQLite would apply them to this one
        _link(scratch, target)
    finally:
        _remove(scratch)
    sync_folder(os.path.dirname(scratch))


def replace(scratch: str, target: str) -> None:
    """Put a scratch file in the place of a database that is closed and has nothing in its log."""
    try:
        _remove_companions(target)
        os.replace(scratch, target)
    finally:
        _remove(scratch)  # if it is still there
    sync_folder(os.path.dirname(scratch))


def keep(target: str, name: str) -> None:
    """Give a database that is about to be replaced a second name."""
    try:
        os.link(target, name)
    except OSError as problem:
        if problem.errno not in _NO_LINKS:
            raise
        shutil.copy2(target, name)
        _sync(name)
    sync_folder(os.path.dirname(os.path.abspath(name)))


def remove_leftovers(target: str) -> None:
    """Remove scratch files of processes that were killed."""
    folder, name = os.path.split(os.path.realpath(target))
    pattern = re.compile(f"({re.escape(name)}{_SCRATCH}[0-9a-f]{{8}})({'|'.join(_COMPANIONS)})?")
    with suppress(PermissionError):  # a folder that may not be listed: leftovers do no harm
        for found in filter(None, map(pattern.fullmatch, os.listdir(folder))):
            _remove(os.path.join(folder, found[1]))


def is_blank(file: sqlite3.Connection) -> bool:
    """Return whether a database never had contents: one page, without any table or mark of an application."""
    marks = ("application_id", "user_version")
    has_marks = any(file.execute(f"PRAGMA {mark}").fetchone()[0] for mark in marks)
    is_small = file.execute("PRAGMA page_count").fetchone()[0] <= 1
    return is_small and not has_marks and not file.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]


def has_hot_journal(file: sqlite3.Connection) -> bool:
    """Return whether a connection that may not write finds a transaction that has to be rolled back first."""
    try:
        file.execute("PRAGMA schema_version").fetchone()
    except sqlite3.OperationalError as problem:
        if problem.sqlite_errorname != "SQLITE_READONLY_ROLLBACK":
            raise
        return True
    return False


@contextmanager
def copied(target: str) -> Iterator[str]:
    """Yield the path of a private copy of a database and its journal, to be rolled back there."""
    with tempfile.TemporaryDirectory(prefix="polyaforest-") as folder:
        copy = os.path.join(folder, "copy")
        for part in ("-journal", "-wal", ""):  # in this order: another process may roll the file back meanwhile
            with suppress(FileNotFoundError):
                shutil.copyfile(f"{target}{part}", f"{copy}{part}")
        if _names_another_file(f"{copy}-journal"):
            raise ModelFileError(
                f"'{target}-journal' belongs to a transaction over several databases, which polyaforest never makes: "
                "restore a copy of both files"
            )
        yield copy


def _names_another_file(journal: str) -> bool:
    """Return whether a journal names a super-journal: SQLite would delete that file, whatever it is."""
    if not os.path.exists(journal):
        return False
    with open(journal, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - len(_JOURNAL_MAGIC)))
        return file.read() == _JOURNAL_MAGIC


def _create_empty(scratch: str, target: str) -> None:
    """Create an empty file with the permissions, and for root the owner, of `target` if that exists."""
    try:
        like = os.stat(target)
    except FileNotFoundError:
        os.close(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
        return
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        if os.geteuid() == 0:
            os.fchown(descriptor, like.st_uid, like.st_gid)
        os.fchmod(descriptor, stat.S_IMODE(like.st_mode))
    finally:
        os.close(descriptor)


def _link(scratch: str, target: str) -> None:
    """Add a name to a file unless it is taken; where files have one name only, rename it."""
    try:
        os.link(scratch, target)
    except OSError as problem:
        if problem.errno not in _NO_LINKS:
            raise
        os.rename(scratch, target)


def _remove(scratch: str) -> None:
    for name in (scratch, *(f"{scratch}{ending}" for ending in _COMPANIONS)):
        with suppress(FileNotFoundError):
            os.remove(name)


def _remove_companions(target: str) -> None:
    """Remove the journal, the log and its index of a database that is replaced or was deleted."""
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
