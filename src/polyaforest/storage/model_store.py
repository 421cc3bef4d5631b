"""Models by key in one SQLite file, with the most recently used models in memory.

The file has a table of models, as bytes from `to_bytes` of a detector, and a table of notes. All changes between two
commits are one transaction. A killed process leaves the file as of its last commit, models and notes together, so the
notes of a commit, such as the position in a stream, match all models. The only writer locks a file beside it; other
processes may read the last commit at any time.

A damaged model affects its own key only: its bytes move to a table of damaged models, where they stay until the key is
deleted, and the key starts over with a new model.

The file is absent or complete: it is built under another name and renamed. A process killed within a transaction leaves
a log or a journal beside the file, which the next process applies or rolls back.

The file may come from an untrusted source. So it is first opened read-only, or as a copy if a journal must be rolled
back, and rejected unless its schema is exactly the one below: no view, trigger or generated column is ever evaluated.
Nothing is written to the file before this check.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Generic, Protocol, Self, TypeVar
from urllib.parse import quote

from polyaforest.storage import databases
from polyaforest.storage.modelfile import ModelFileError, check_location, check_regular_file
from polyaforest.storage.state import MALFORMED
from polyaforest.util.system import lock_alone

__all__ = [
    "Entry", "ModelStore", "NotAStoreError", "is_model_store", "read_damaged", "read_model", "read_notes",
    "reporting_invalid_notes",
]  # fmt: skip

_MAGIC = b"SQLite format 3\0"
_APPLICATION = 0x504D5046  # "PMPF": the application id of the database
_VERSION = 2  # up to 1, models are blocks of version 1 or archives
_MODELS = "CREATE TABLE models (key TEXT PRIMARY KEY, model BLOB NOT NULL)"
_NOTES = "CREATE TABLE notes (one INTEGER PRIMARY KEY CHECK (one = 1), text BLOB NOT NULL)"
_DAMAGED = "CREATE TABLE damaged (key, model, reason TEXT NOT NULL)"  # created with the first damaged model
_SCHEMA = {
    ("table", "models", _MODELS),
    ("index", "sqlite_autoindex_models_1", None),
    ("table", "notes", _NOTES),
}
_TABLES = f"""
{_MODELS};
{_NOTES};
PRAGMA application_id = {_APPLICATION};
PRAGMA user_version = {_VERSION};
"""
_LIMITS = {  # more than any statement of this module needs
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 4096,
    sqlite3.SQLITE_LIMIT_COLUMN: 16,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 16,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 2,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
}
_MAX_STEPS = 1_000_000  # of SQLite's virtual machine, plus one per byte: more means an endless loop
_OVERHEAD = 12_000  # bytes of a model besides its arrays
_IN_USE = "{name!r} is in use: another process is writing to it. Stop that process first"
_IN_THE_WAY = "{name!r} is damaged and must be rewritten, but another process reads it. Stop that process first"
_UNFINISHED = (
    "{name!r} has a journal of a killed process, which must be rolled back: read the file once with permission to "
    "write to it and to its directory"
)
_MAX_EVICTED = 256 * 2**20  # bytes that may be evicted before a commit is due


class NotAStoreError(ModelFileError):
    """A file is not a database, or no longer one."""


class _Model(Protocol):
    """The interface of a detector that the store uses."""

    @property
    def notes(self) -> dict[str, Any]: ...

    @property
    def is_fitted(self) -> bool: ...

    @property
    def nbytes(self) -> int: ...

    def to_bytes(self, notes: dict[str, Any]) -> bytes: ...


Model = TypeVar("Model", bound=_Model)


@dataclass
class Entry(Generic[Model]):
    """The model of a key, and notes to save with it."""

    detector: Model
    notes: dict[str, Any] = field(default_factory=dict)  # JSON-serialisable


class ModelStore(Generic[Model]):
    """Models by key: read from the file or created on access, evicting the least recently used to the file.

    Parameters
    ----------
    path : str, path-like or None
        The file; None for a temporary one.
    make : callable
        Returns a new model, for a key without one.
    loads : callable
        Restores a model from the bytes of its `to_bytes`; raises ValueError if they are invalid.
    max_bytes : int
        Maximum bytes of models in memory, not counting the model in use.
    notify : callable
        Receives messages about damaged models and a deleted file.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        make: Callable[[], Model],
        loads: Callable[[bytes], Model],
        *,
        max_bytes: int = 2**30,
        notify: Callable[[str], None] = lambda message: None,
    ) -> None:
        self._make, self._loads, self._max_bytes, self._notify = make, loads, max_bytes, notify
        self._entries: OrderedDict[str, Entry[Model]] = OrderedDict()  # the most recently used last
        self._sizes: dict[str, int] = {}  # bytes of the entries in memory, as of their last use
        self._in_memory = 0  # their sum
        self._changed: set[str] = set()
        self._evicted = 0  # bytes since the last commit
        self._path = "" if path is None else _resolved(path)
        with ExitStack() as stack:
            if self._path:
                stack.enter_context(_sole_writer(self._path))
            self._file = stack.enter_context(closing(_open_to_write(self._path)))
            with _reporting(self._path), _bounded(self._file, self._path):
                self.notes: dict[str, Any] = _notes_in(self._file, self._path)
                keys, invalid = _keys_in(self._file)
            self._stored = set(keys)
            for number in invalid:
                self._set_aside("rowid = ?", number, "its key is not text")
            self._identity = _identity_of(self._path)
            self._resources = stack.pop_all()

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, key: str) -> Entry[Model]:
        """Return the entry of a key; the caller may change it."""
        if self._entries and (latest := next(reversed(self._entries))) != key:  # no longer in use
            size = _OVERHEAD + self._entries[latest].detector.nbytes
            self._in_memory += size - self._sizes.get(latest, 0)
            self._sizes[latest] = size
        if key in self._entries:
            self._entries.move_to_end(key)
        else:
            self._entries[key] = self._read(key) if key in self._stored else Entry(self._make())
        self._changed.add(key)
        while self._in_memory > self._max_bytes and len(self._entries) > 1:
            oldest, entry = self._entries.popitem(last=False)
            self._in_memory -= self._sizes.pop(oldest, 0)
            if oldest in self._changed:
                self._write(oldest, entry)
                self._changed.discard(oldest)
        return self._entries[key]

    @property
    def keys(self) -> list[str]:
        """The keys that have models, sorted."""
        return sorted(self._stored | self._entries.keys())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def name(self) -> str:
        """The path of the file; empty for a temporary one."""
        return self._path

    @property
    def n_in_memory(self) -> int:
        """Number of models in memory."""
        return len(self._entries)

    @property
    def bytes_in_memory(self) -> int:
        """Bytes of the models in memory, not counting the model in use."""
        return self._in_memory

    @property
    def is_due(self) -> bool:
        """Whether enough was evicted since the last commit that the next one is due."""
        return self._evicted > _MAX_EVICTED

    def delete(self, key: str) -> None:
        """Delete the model of a key, damaged or not."""
        damaged = _damaged_in(self._file)
        if key not in self._stored and key not in self._entries and key not in damaged:
            raise KeyError(f"no model of {key!r}. Nothing was deleted")
        self.revert(key)
        self._stored.discard(key)
        self._file.execute("DELETE FROM models WHERE key = ?", (key,))
        if damaged:
            self._file.execute("DELETE FROM damaged WHERE key = ?", (key,))

    def revert(self, key: str) -> None:
        """Discard changes to the model of a key since it was last written to the file."""
        self._entries.pop(key, None)
        self._in_memory -= self._sizes.pop(key, 0)
        self._changed.discard(key)

    def commit(self, notes: dict[str, Any], *, purge: bool = False) -> None:
        """Write every model that may have changed, and the notes, in one transaction.

        With `purge`, also remove deleted data from the log beside the file, unless a process is reading.
        """
        self.notes, self._evicted = notes, 0
        if not self._path:  # a temporary file is never read again
            return
        for key in sorted(self._changed & self._entries.keys()):
            if not self._write(key, self._entries[key]):
                self.revert(key)
        with _reporting(self._path):
            self._file.execute("INSERT OR REPLACE INTO notes VALUES (1, ?)", (json.dumps(notes).encode(),))
            self._file.execute("COMMIT")
            if purge:
                self._file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            if _identity_of(self._path) != self._identity:
                self._rewrite()
            self._file.execute("BEGIN IMMEDIATE")
        self._changed.clear()

    def close(self) -> None:
        """Close the file, as of the last commit."""
        self._resources.close()

    def _rewrite(self) -> None:
        """Rewrite the file, which was deleted, from the open connection.

        If another file has taken its place, leave that unchanged, save the store beside it, and raise OSError.
        """
        main, now = self._identity[0], _identity_of(self._path)[0]
        if now not in (None, main):
            rescued = _unused(f"{self._path}.rescued")
            databases.publish(databases.build(self._path, self._file.backup), rescued)
            remedy = f"the store was saved to {rescued!r}. Move the file that you want to {self._path!r}"
            raise OSError(f"{self._path!r} was replaced by another file while in use: {remedy}, and start again")
        fresh = databases.build(self._path, self._file.backup)
        self._file.close()  # it would write to the deleted file
        self._switch_to(fresh)
        self._file.execute("COMMIT")
        self._notify(f"{self._path!r} was deleted while in use: it was rewritten completely")

    def _switch_to(self, fresh: str) -> None:
        """Replace the closed file by a new one, and open that with a transaction."""
        databases.replace(fresh, self._path)
        self._file = self._resources.enter_context(closing(_open_to_write(self._path)))
        self._identity = _identity_of(self._path)

    def _read(self, key: str) -> Entry[Model]:
        """Return the entry of a key in the file; if it is damaged, set it aside and return a new one."""
        try:
            return _read(self._file, key, self._path, self._loads)
        except ModelFileError as problem:
            try:
                self._set_aside("key = ?", key, str(problem))
            except ModelFileError:  # its pages are damaged, so it cannot be moved or deleted
                if not self._path:
                    raise
                self._salvage(key)
            self._stored.discard(key)
            return Entry(self._make())

    def _set_aside(self, where: str, value: str | int, reason: str) -> None:
        """Move a damaged model to the table `damaged`."""
        with _reporting(self._path):
            if not _has_damaged(self._file):
                self._file.execute(_DAMAGED)
            move = f"INSERT INTO damaged SELECT key, model, ? FROM models WHERE {where}"
            self._file.execute(move, (reason, value))
            self._file.execute(f"DELETE FROM models WHERE {where}", (value,))
        self._notify(f"{reason}. It was moved to the table `damaged` of {self._path!r}; its stream starts over")

    def _salvage(self, key: str) -> None:
        """Copy all readable models of the last commit to a new file, and keep the old one beside it.

        Models evicted since that commit return to it; models in memory are unchanged.
        """
        kept, lost = _unused(f"{self._path}.damaged"), list[str]()
        with suppress(sqlite3.Error):
            self._file.execute("ROLLBACK")
        self._empty_log()
        fresh = databases.build(self._path, lambda copy: lost.extend(_copy_readable(self._file, copy)))
        self._file.close()
        databases.keep(self._path, kept)
        self._switch_to(fresh)
        self._stored = set(_keys_in(self._file)[0])
        names = ", ".join(repr(one) for one in sorted({key, *lost}))
        self._notify(
            f"{self._path!r} is damaged: the models of {names} cannot be read, and their streams start over. The other "
            f"models were copied to a new file; the damaged file was kept as {kept!r}"
        )

    def _empty_log(self) -> None:
        """Move all commits from the log to the file, so that the file is complete without the log."""
        with _reporting(self._path):
            is_busy = self._file.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        if is_busy:
            raise BlockingIOError(_IN_THE_WAY.format(name=self._path))

    def _write(self, key: str, entry: Entry[Model]) -> bool:
        """Write an entry to the file; return False if its model cannot be saved, so that other models still are."""
        if not entry.detector.is_fitted:  # nothing to save
            return True
        try:
            block = entry.detector.to_bytes(entry.notes)
        except (OSError, MemoryError):
            raise
        except Exception as problem:
            self._notify(f"the model of {key!r} cannot be saved ({problem}): reverting to its last saved state")
            return False
        self._evicted += len(block)
        with _reporting(self._path):
            self._file.execute("INSERT OR REPLACE INTO models VALUES (?, ?)", (key, block))
        self._stored.add(key)
        return True


# ---- reading the last commit -----------------------------------------------------------------------------------------


def is_model_store(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is an SQLite database, as every model store is."""
    check_regular_file(path)
    with open(path, "rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def read_notes(path: str | os.PathLike[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the notes of the last commit, and the keys that have models."""
    with _reading(path) as file, _bounded(file, path):
        return _notes_in(file, os.fspath(path)), sorted(_keys_in(file)[0])


def read_damaged(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the keys of the damaged models that were set aside, with the reasons."""
    with _reading(path) as file, _bounded(file, path):
        return _damaged_in(file)


def read_model(path: str | os.PathLike[str], key: str, loads: Callable[[bytes], Model]) -> Model:
    """Return the model of a key as of the last commit."""
    with _reading(path) as file:
        return _read(file, key, os.fspath(path), loads).detector


def _read(file: sqlite3.Connection, key: str, name: str, loads: Callable[[bytes], Model]) -> Entry[Model]:
    """Return the entry of a key; raise a ModelFileError that names key and file if it is invalid."""
    with _reporting(name):
        found = file.execute("SELECT typeof(model), model FROM models WHERE key = ?", (key,)).fetchone()
    if found is None:
        raise KeyError(f"no model of {key!r}")
    kind, block = found
    try:
        if kind != "blob":
            raise ValueError(f"it is of type {kind}, not a blob")
        model = loads(block)
    except ValueError as problem:  # includes ModelFileError
        raise ModelFileError(f"the model of {key!r} in {name!r} cannot be used: {problem}") from problem
    return Entry(model, model.notes)


def _copy_readable(file: sqlite3.Connection, copy: sqlite3.Connection) -> list[str]:
    """Write the readable models and the notes to an empty database; return the keys of the others."""
    lost = []
    _create_tables(copy)
    copy.execute("BEGIN")
    for key in _keys_in(file)[0]:
        try:
            found = file.execute("SELECT CAST(model AS BLOB) FROM models WHERE key = ?", (key,)).fetchone()
        except sqlite3.DatabaseError:
            lost.append(key)
        else:
            copy.execute("INSERT INTO models VALUES (?, ?)", (key, found[0]))
    copy.executemany("INSERT INTO notes VALUES (1, ?)", file.execute("SELECT text FROM notes LIMIT 1"))
    copy.execute("COMMIT")
    return lost


def _unused(name: str) -> str:
    """Return an unused path that starts with a name."""
    return next(path for n in count(1) if not os.path.exists(path := f"{name}-{n}"))


def _keys_in(file: sqlite3.Connection) -> tuple[list[str], list[int]]:
    """Return the keys that have models, and the numbers of rows whose key is not Unicode text."""
    keys, invalid = [], []
    for number, kind, key in file.execute("SELECT rowid, typeof(key), CAST(key AS BLOB) FROM models"):
        try:
            if kind != "text":
                raise ValueError(kind)
            keys.append(key.decode())
        except ValueError:
            invalid.append(number)
    return keys, invalid


def _has_damaged(file: sqlite3.Connection) -> bool:
    """Return whether any model was ever set aside."""
    return bool(file.execute("SELECT count(*) FROM sqlite_master WHERE name = 'damaged'").fetchone()[0])


def _damaged_in(file: sqlite3.Connection) -> dict[str, str]:
    if not _has_damaged(file):
        return {}
    rows = file.execute("SELECT CAST(key AS BLOB), CAST(reason AS BLOB) FROM damaged")
    return {(key or b"").decode(errors="replace"): (reason or b"").decode(errors="replace") for key, reason in rows}


def _notes_in(file: sqlite3.Connection, name: str) -> dict[str, Any]:
    found = file.execute("SELECT CAST(text AS BLOB) FROM notes LIMIT 1").fetchone()
    with reporting_invalid_notes(name):
        notes = {} if found is None else json.loads(found[0])
        if not isinstance(notes, dict):
            raise ValueError("not a JSON object")
    return notes


@contextmanager
def reporting_invalid_notes(name: str) -> Iterator[None]:
    """Raise errors about the contents of notes as `ModelFileError` that names the file."""
    try:
        yield
    except MALFORMED as problem:
        raise ModelFileError(
            f"the notes in {name!r} are damaged ({problem}), and the position in the stream is lost: restore a copy of "
            "the file, or start a new one"
        ) from problem


@contextmanager
def _reading(path: str | os.PathLike[str]) -> Iterator[sqlite3.Connection]:
    name = _resolved(path)
    check_regular_file(name)
    is_writable = os.access(name, os.W_OK) and os.access(os.path.dirname(os.path.abspath(name)), os.W_OK)
    with _reporting(name):
        if not _is_store(name):
            raise ModelFileError(f"{name!r} is an empty database: `polyaforest watch` has saved nothing to it yet")
        # a connection that may write removes the files that reading creates beside the database
        with closing(_connect(name, "rw" if is_writable else "ro")) as file:
            file.execute("PRAGMA query_only = ON")
            yield file


def _resolved(path: str | os.PathLike[str]) -> str:
    """Resolve a symbolic link: SQLite keeps its logs beside the target, and the lock must be there too."""
    name = os.fspath(path)
    return os.path.realpath(name) if os.path.islink(name) else name


def _is_store(name: str) -> bool:
    """Return whether a file is a model store, False for an empty database; raise for other files. Write nothing."""
    with open(name, "rb"):  # raises a clearer error than SQLite
        pass
    with _first_look(name) as file:
        with _bounded(file, name):
            if databases.is_blank(file):
                return False
        _check(file, name)
        return True


@contextmanager
def _first_look(name: str) -> Iterator[sqlite3.Connection]:
    """Yield a connection that does not write to the file: to a copy, if a transaction must be rolled back."""
    with closing(_connect(name, "ro")) as file:
        is_hot = databases.has_hot_journal(file)
        if not is_hot:
            yield file
    if is_hot:
        with databases.copied(name) as copy, closing(_connect(copy, "rw")) as file:
            yield file


def _connect(name: str, mode: str) -> sqlite3.Connection:
    """Connect to a file without trusting its contents; `mode` is "ro" or "rw"."""
    place = f"file:{quote(os.fsencode(os.path.abspath(name)))}?mode={mode}" if name else ""
    file = sqlite3.connect(place, isolation_level=None, timeout=0.5, uri=bool(name))
    for limit, value in _LIMITS.items():
        file.setlimit(limit, value)
    file.execute("PRAGMA trusted_schema = OFF")
    file.execute("PRAGMA cell_size_check = ON")
    if mode == "ro":
        file.execute("PRAGMA query_only = ON")
    return file


@contextmanager
def _bounded(file: sqlite3.Connection, name: str | os.PathLike[str]) -> Iterator[None]:
    """Interrupt statements that take many more steps than the file has bytes, as only a damaged file does."""
    n_bytes = sum(os.path.getsize(part) for part in (os.fspath(name), f"{os.fspath(name)}-wal") if os.path.exists(part))
    turns = iter(range((_MAX_STEPS + n_bytes) // 1000))
    file.set_progress_handler(lambda: next(turns, None) is None, 1000)
    try:
        yield
    finally:
        file.set_progress_handler(None, 0)


@contextmanager
def _sole_writer(name: str) -> Iterator[None]:
    """Lock out other writers, also between two transactions, when SQLite itself would not."""
    check_location(name)
    for path in (name, f"{name}-lock"):
        check_regular_file(path)
    with open(f"{name}-lock", "ab") as guard:
        try:
            lock_alone(guard.fileno())
        except BlockingIOError:
            raise BlockingIOError(_IN_USE.format(name=name)) from None
        yield


def _open_to_write(name: str) -> sqlite3.Connection:
    """Open a database, created if it does not exist, and begin a transaction."""
    with _reporting(name):
        if name:
            _create_if_missing(name)
        file = _connect(name, "rw")
        try:
            if name:
                _check(file, name)
            else:
                _create_tables(file)
            file.execute("PRAGMA journal_mode = WAL")  # readers do not wait
            file.execute("PRAGMA synchronous = FULL")  # the source may delete records once they are committed
            file.execute("PRAGMA secure_delete = ON")  # deleted points must not remain in free pages
            file.execute("BEGIN IMMEDIATE")
            if file.execute("PRAGMA user_version").fetchone()[0] < _VERSION:  # older releases must not write to it
                file.execute(f"PRAGMA user_version = {_VERSION}")
        except BaseException:
            file.close()
            raise
        return file


def _create_if_missing(name: str) -> None:
    """Create a store unless it exists; an empty file or database, as a killed process may leave, becomes a store."""
    databases.remove_leftovers(name)
    if not (os.path.exists(name) and os.path.getsize(name) and _is_store(name)):
        databases.create(name, _create_tables)


def _create_tables(file: sqlite3.Connection) -> None:
    """Create the tables of a store in an empty database."""
    file.execute("PRAGMA page_size = 16384")  # models are large
    file.executescript(f"BEGIN; {_TABLES} COMMIT")


def _identity_of(name: str) -> list[tuple[int, int] | None]:
    """Return device and inode of a database and of its log; None for a missing file."""
    found: list[tuple[int, int] | None] = []
    for part in (name, f"{name}-wal") if name else ():
        try:
            facts = os.stat(part)
        except FileNotFoundError:
            found.append(None)
        else:
            found.append((facts.st_dev, facts.st_ino))
    return found


def _check(file: sqlite3.Connection, name: str) -> None:
    """Raise ModelFileError unless the database is a model store."""
    if file.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION:
        raise ModelFileError(f"{name!r} is a database, but not a model store of polyaforest")
    version = file.execute("PRAGMA user_version").fetchone()[0]
    if version > _VERSION:
        raise ModelFileError(
            f"{name!r} has format version {version}, but this release reads up to {_VERSION}: upgrade polyaforest"
        )
    if file.execute("PRAGMA encoding").fetchone()[0] != "UTF-8":
        raise ModelFileError(f"{name!r} has an unsupported text encoding: polyaforest writes UTF-8")
    with _bounded(file, name):
        found = file.execute("SELECT type, name, substr(sql, 1, 1000) FROM sqlite_master LIMIT 10").fetchall()
    if set(found) - {("table", "damaged", _DAMAGED)} != _SCHEMA or len(found) > len(_SCHEMA) + 1:
        unknown = sorted(f"{kind} {of!r}" for kind, of, sql in found if (kind, of, sql) not in _SCHEMA)
        raise ModelFileError(f"{name!r} has another schema than a model store: {', '.join(unknown) or 'no tables'}")


@contextmanager
def _reporting(name: str) -> Iterator[None]:
    """Raise SQLite errors as `ModelFileError` or OSError that names the file."""
    try:
        yield
    except sqlite3.OperationalError as problem:
        if "interrupted" in str(problem):
            raise ModelFileError(f"{name!r} is damaged: reading it takes longer than any valid file would") from None
        if "locked" in str(problem):
            raise BlockingIOError(_IN_USE.format(name=name)) from None
        if getattr(problem, "sqlite_errorname", "") == "SQLITE_READONLY_ROLLBACK":
            raise PermissionError(_UNFINISHED.format(name=name)) from None
        raise OSError(f"{name!r} cannot be read or written: {problem}") from None
    except sqlite3.DataError as problem:
        raise OSError(f"a model is too large for {name!r} ({problem}): set a smaller window or fewer trees") from None
    except sqlite3.DatabaseError as problem:
        if "malformed" in str(problem):
            raise ModelFileError(f"{name!r} is damaged ({problem}): restore a copy of it") from None
        remedy = "restore a copy of it, or move it away to start over"
        raise NotAStoreError(f"{name!r} is not a model store ({problem}): {remedy}") from None
