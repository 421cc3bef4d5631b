"""Models by key in one file, of which those used last are in memory and the others are not.

The file is an SQLite database: a table of models, each as `save` writes it, and one of notes. Everything between two
commits is one transaction. A process that is killed leaves the file as the last commit did, models and notes together;
so what is noted at a commit, how far into a stream the models have come, is true of all of them. The writer holds a
lock on a file beside it, so that no second one can begin; others may read what was last committed at any time.

A model that cannot be read costs its own stream only: it is moved to a table of damaged ones, whose bytes stay there
for whoever wants to look at them until the stream is forgotten, and the stream begins anew.

Anybody may have made the file. So it is opened to be read first, with nothing that its schema could run, and goes no
further unless that schema is, word for word, the one below: no view, trigger or generated column is ever evaluated.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from io import BytesIO
from itertools import count
from typing import Any, Self
from urllib.parse import quote

from polyaforest._load import load
from polyaforest.core import schema
from polyaforest.live.judging import Detector
from polyaforest.live.outputs import refuse_place
from polyaforest.persistence.modelfile import ModelFileError, refuse_irregular
from polyaforest.persistence.state import MALFORMED
from polyaforest.timeseries import EventTracker, SeriesMPF

__all__ = ["Stock", "is_stock", "read_damaged", "read_model", "read_notes", "refusing_notes"]

_MAGIC = b"SQLite format 3\0"
_APPLICATION = 0x504D5046  # "PMPF": whose database it is
_VERSION = 1
_MODELS = "CREATE TABLE models (key TEXT PRIMARY KEY, model BLOB NOT NULL)"
_NOTES = "CREATE TABLE notes (one INTEGER PRIMARY KEY CHECK (one = 1), text BLOB NOT NULL)"
_DAMAGED = "CREATE TABLE damaged (key, model, reason TEXT NOT NULL)"  # made when the first one is found
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
_STEPS = 1_000_000  # of SQLite's machine, beyond which a look at a small file is taken to be endless
_BYTES_OF_A_MODEL = 12_000  # but for its arrays
_IN_USE = "{name!r} is in use: another watch is writing to it. Stop that one first"
_SPILLED = 256 * 2**20  # bytes that may be written between commits before the next one is due


@dataclass
class Entry:
    """A stream of its own."""

    detector: Detector
    notes: dict[str, Any] = field(default_factory=dict)  # what else to remember of it, as JSON holds it


class Stock:
    """Models by key: what is asked for is read from the file, or made; what was not for long is put back.

    Parameters
    ----------
    path : str, path-like or None
        The file; None for one that is gone in the end.
    make : callable
        Gives a new detector, for a key that has none yet.
    most : int
        Bytes of models in memory, but for the one in use.
    tell : callable
        Takes words for people, about models that cannot be read and a file that is gone.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        make: Callable[[], Detector],
        most: int = 2**30,
        tell: Callable[[str], None] = lambda words: None,
    ) -> None:
        self._make, self._most, self._tell = make, most, tell
        self._models: OrderedDict[str, Entry] = OrderedDict()  # the one used last at the end
        self._sizes: dict[str, int] = {}  # of the models in memory, when they were last asked for
        self._in_use = 0  # their sum
        self._is_changed: set[str] = set()
        self._spilled = 0  # bytes since the last commit
        self._path = "" if path is None else os.fspath(path)
        with ExitStack() as stack:
            if self._path:
                stack.enter_context(_sole_writer(self._path))
            self._file = stack.enter_context(closing(_open_to_write(self._path)))
            with _telling(self._path), _bounded(self._file, self._path):
                self.notes: dict[str, Any] = _notes_in(self._file, self._path)
                keys, nameless = _keys_in(self._file)
            self._known = set(keys)
            for number in nameless:
                self._set_aside("rowid = ?", number, "its key is not a text")
            self._on_disk = _on_disk(self._path)
            self._kept = stack.pop_all()

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, key: str) -> Entry:
        """The model of a key, to be changed."""
        if self._models and (latest := next(reversed(self._models))) != key:
            self._measure(latest)  # it has had its turn
        if key in self._models:
            self._models.move_to_end(key)
        else:
            self._models[key] = self._read(key) if key in self._known else Entry(self._make())
        self._is_changed.add(key)
        while self._in_use > self._most and len(self._models) > 1:
            self._put_back(*self._models.popitem(last=False))
        return self._models[key]

    @property
    def keys(self) -> list[str]:
        """The keys that have models."""
        return sorted(self._known | self._models.keys())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def name(self) -> str:
        """The path of the file; empty for one that is gone in the end."""
        return self._path

    @property
    def n_in_memory(self) -> int:
        """Models that are in memory."""
        return len(self._models)

    @property
    def is_due(self) -> bool:
        """Whether so much was put back that it should be committed."""
        return self._spilled > _SPILLED

    def forget(self, key: str) -> None:
        """Take a model out, with all that it has learned."""
        damaged = _damaged_in(self._file)
        if key not in self._known and key not in self._models and key not in damaged:
            raise KeyError(f"there is no stream {key!r}. Nothing was forgotten")
        self._models.pop(key, None)
        self._in_use -= self._sizes.pop(key, 0)
        self._known.discard(key)
        self._is_changed.discard(key)
        self._file.execute("DELETE FROM models WHERE key = ?", (key,))
        if damaged:
            self._file.execute("DELETE FROM damaged WHERE key = ?", (key,))

    def revert(self, key: str) -> None:
        """Go back to the model of a key that was last written to the file; if there is none, to a new one."""
        self._models.pop(key, None)
        self._in_use -= self._sizes.pop(key, 0)
        self._is_changed.discard(key)

    def commit(self, notes: dict[str, Any]) -> None:
        """Write every model that may have changed, and the notes, all of it or nothing."""
        self.notes, self._spilled = notes, 0
        if not self._path:  # nobody will ever read it
            return
        for key in sorted(self._is_changed & self._models.keys()):
            if not self._write(key, self._models[key]):
                self.revert(key)
        with _telling(self._path):
            self._file.execute("INSERT OR REPLACE INTO notes VALUES (1, ?)", (json.dumps(notes).encode(),))
            self._file.execute("COMMIT")
            if _on_disk(self._path) != self._on_disk:
                self._write_anew()
            self._file.execute("BEGIN IMMEDIATE")
        self._is_changed.clear()

    def close(self) -> None:
        """Leave what was last committed."""
        self._kept.close()

    def _write_anew(self) -> None:
        """Write the whole file again if it was deleted: all of it is still there, without a name.

        If another file stands in its place, that one is left alone, and there is nothing to go on with.
        """
        main, now = self._on_disk[0], _on_disk(self._path)[0]
        if now not in (None, main):
            rescued = _unused(f"{self._path}.rescued")
            self._copy_to(rescued)
            remedy = f"everything was saved to {rescued!r} instead. Move the one that you want to {self._path!r}"
            raise OSError(f"{self._path!r} was replaced by another file while in use: {remedy}, and start again")
        fresh = f"{self._path}-fresh"
        self._copy_to(fresh)
        self._file.close()  # which would write to the files that have lost their names
        self._go_on_with(fresh)
        self._file.execute("COMMIT")
        self._tell(f"{self._path!r} was deleted while in use: it was written again, with everything in it")

    def _go_on_with(self, fresh: str) -> None:
        """Put a new file in the place of the old one, which is closed, and open it with a transaction."""
        for name in (f"{self._path}-wal", f"{self._path}-shm"):  # they would be taken for those of the new file
            with suppress(FileNotFoundError):
                os.remove(name)
        os.replace(fresh, self._path)
        self._file = self._kept.enter_context(closing(_open_to_write(self._path)))
        self._on_disk = _on_disk(self._path)

    def _copy_to(self, name: str) -> None:
        """Write all that was committed to a file of that name."""
        with suppress(FileNotFoundError):
            os.remove(name)  # of a process that was killed
        with closing(sqlite3.connect(name)) as copy:
            self._file.backup(copy)

    def _read(self, key: str) -> Entry:
        """The model of a key in the file; a new one, and the old one set aside, if that cannot be read."""
        try:
            return _read(self._file, key, self._path)
        except ModelFileError as problem:
            try:
                self._set_aside("key = ?", key, str(problem))
            except ModelFileError:  # the pages that it lies on are damaged, so that it can be neither moved nor removed
                if not self._path:
                    raise
                self._salvage(key)
            self._known.discard(key)
            return Entry(self._make())

    def _set_aside(self, where: str, value: str | int, reason: str) -> None:
        """Move a model that cannot be read to those that are damaged, with the reason, and say so."""
        with _telling(self._path):
            if not _has_damaged(self._file):
                self._file.execute(_DAMAGED)
            move = f"INSERT INTO damaged SELECT key, model, ? FROM models WHERE {where}"
            self._file.execute(move, (reason, value))
            self._file.execute(f"DELETE FROM models WHERE {where}", (value,))
        self._tell(f"{reason}. It was set aside in the table `damaged` of {self._path!r}, and its stream begins anew")

    def _salvage(self, key: str) -> None:
        """Begin a new file with all models of the last commit that can be read, and keep the old one beside it.

        What was put back since that commit goes back to it; models in memory stay as they are.
        """
        fresh, kept = f"{self._path}-fresh", _unused(f"{self._path}.damaged")
        with suppress(sqlite3.Error):
            self._file.execute("ROLLBACK")
        with suppress(FileNotFoundError):
            os.remove(fresh)  # of a process that was killed
        lost = _copy_readable(self._file, fresh)
        self._file.close()
        os.replace(self._path, kept)
        self._go_on_with(fresh)
        self._known = set(_keys_in(self._file)[0])
        names = ", ".join(repr(one) for one in sorted({key, *lost}))
        self._tell(
            f"{self._path!r} is damaged, and the models of {names} in it cannot be read: their streams begin anew, the "
            f"others were copied to a new file, and the old one was kept as {kept!r}"
        )

    def _measure(self, key: str) -> None:
        """Note how large a model in memory is now."""
        size = _size(self._models[key].detector)
        self._in_use += size - self._sizes.get(key, 0)
        self._sizes[key] = size

    def _put_back(self, key: str, entry: Entry) -> None:
        self._in_use -= self._sizes.pop(key, 0)
        if key in self._is_changed:
            self._write(key, entry)
            self._is_changed.discard(key)

    def _write(self, key: str, entry: Entry) -> bool:
        """Write a model to the file; return whether it could be saved, which others must not depend on."""
        if not hasattr(entry.detector, "forest_"):  # nothing has been learned that could be lost
            return True
        memory = BytesIO()
        try:
            entry.detector.save(memory, notes=entry.notes)
        except (OSError, MemoryError):
            raise
        except Exception as problem:
            self._tell(f"the model of {key!r} cannot be saved ({problem}): it goes back to what was saved last")
            return False
        self._spilled += memory.tell()
        with _telling(self._path):
            self._file.execute("INSERT OR REPLACE INTO models VALUES (?, ?)", (key, memory.getbuffer()))
        self._known.add(key)
        return True


def _size(detector: Detector) -> int:
    """Bytes of a detector: of its arrays, and of everything else, which counts for those that have learned little."""
    forest = detector.forest_ if isinstance(detector, SeriesMPF) and hasattr(detector, "forest_") else detector
    if not hasattr(forest, "forest_"):
        return _BYTES_OF_A_MODEL
    points = 8 * forest.n_points_ * forest.n_features_in_
    return int(_BYTES_OF_A_MODEL + points + sum(part.nbytes for part in forest.forest_))


# ---- reading what was committed --------------------------------------------------------------------------------------


def is_stock(path: str | os.PathLike[str]) -> bool:
    """Whether a file is one of models by key."""
    refuse_irregular(path)
    with open(path, "rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def read_notes(path: str | os.PathLike[str]) -> tuple[dict[str, Any], list[str]]:
    """What was noted at the last commit, and the keys that have models."""
    with _reading(path) as file, _bounded(file, path):
        return _notes_in(file, os.fspath(path)), sorted(_keys_in(file)[0])


def read_damaged(path: str | os.PathLike[str]) -> dict[str, str]:
    """The keys of the models that were set aside because they cannot be read, and the reasons."""
    with _reading(path) as file, _bounded(file, path):
        return _damaged_in(file)


def read_model(path: str | os.PathLike[str], key: str) -> Detector:
    """The model of a key as it was last committed."""
    with _reading(path) as file:
        return _read(file, key, os.fspath(path)).detector


def _read(file: sqlite3.Connection, key: str, name: str) -> Entry:
    """The model of a key; a ModelFileError that names both if it cannot be used."""
    with _telling(name):
        found = file.execute("SELECT typeof(model), model FROM models WHERE key = ?", (key,)).fetchone()
    if found is None:
        raise KeyError(f"there is no stream {key!r}")
    kind, blob = found
    try:
        if kind != "blob":
            raise ValueError(f"it is of type {kind}, not a blob")
        model = load(BytesIO(blob))
        if not isinstance(model, SeriesMPF) and getattr(model, "_stream", None) is None:
            raise ValueError("it does not follow a stream")
        _check_notes_of_stream(model.notes)
    except ValueError as problem:  # of which ModelFileError is one
        raise ModelFileError(f"the model of {key!r} in {name!r} cannot be used: {problem}") from problem
    return Entry(model, model.notes)


def _check_notes_of_stream(notes: dict[str, Any]) -> None:
    """Raise unless notes are such as a stream is continued by."""
    schema.whole(-1)(notes.get("rows", 0), "rows")
    if notes.get("events") is not None:
        EventTracker.of_state(notes["events"])


def _copy_readable(file: sqlite3.Connection, name: str) -> list[str]:
    """Write the models that can be read, and the notes, to a new file; return the keys of those that cannot."""
    lost = []
    with closing(_open_to_write(name)) as copy:
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
    """Return a path that begins with a name and is not in use."""
    return next(path for n in count(1) if not os.path.exists(path := f"{name}-{n}"))


def _keys_in(file: sqlite3.Connection) -> tuple[list[str], list[int]]:
    """The keys that have models, and the rows whose key is not a text in Unicode."""
    keys, nameless = [], []
    for number, kind, key in file.execute("SELECT rowid, typeof(key), CAST(key AS BLOB) FROM models"):
        try:
            if kind != "text":
                raise ValueError(kind)
            keys.append(key.decode())
        except ValueError:
            nameless.append(number)
    return keys, nameless


def _has_damaged(file: sqlite3.Connection) -> bool:
    """Whether any model was ever set aside."""
    return bool(file.execute("SELECT count(*) FROM sqlite_master WHERE name = 'damaged'").fetchone()[0])


def _damaged_in(file: sqlite3.Connection) -> dict[str, str]:
    if not _has_damaged(file):
        return {}
    rows = file.execute("SELECT CAST(key AS BLOB), CAST(reason AS BLOB) FROM damaged")
    return {(key or b"").decode(errors="replace"): (reason or b"").decode(errors="replace") for key, reason in rows}


def _notes_in(file: sqlite3.Connection, name: str) -> dict[str, Any]:
    found = file.execute("SELECT CAST(text AS BLOB) FROM notes LIMIT 1").fetchone()
    with refusing_notes(name):
        notes = {} if found is None else json.loads(found[0])
        if not isinstance(notes, dict):
            raise ValueError("they are no JSON object")
    return notes


@contextmanager
def refusing_notes(name: str) -> Iterator[None]:
    """Say of what is wrong with the notes in a file that it is the file."""
    try:
        yield
    except MALFORMED as problem:
        raise ModelFileError(
            f"the notes in {name!r} are damaged ({problem}), and with them the place in the stream: go back to a copy "
            "of the file, or begin a new one"
        ) from problem


@contextmanager
def _reading(path: str | os.PathLike[str]) -> Iterator[sqlite3.Connection]:
    name = os.fspath(path)
    refuse_irregular(name)
    with open(name, "rb"):  # or SQLite would not say what is wrong with it
        pass
    is_writable = os.access(name, os.W_OK) and os.access(os.path.dirname(os.path.abspath(name)), os.W_OK)
    with _telling(name):
        with closing(_connect(name, "ro")) as file:
            _check(file, name)
        # one that may write takes the files beside the database away again that reading it makes
        with closing(_connect(name, "rw" if is_writable else "ro")) as file:
            file.execute("PRAGMA query_only = ON")
            yield file


def _connect(name: str, mode: str) -> sqlite3.Connection:
    """A connection that trusts nothing in the file; of mode "ro", "rw" or "rwc", which makes a new one."""
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
    """Break statements off that take more steps than the file has bytes, as no look at an honest one does."""
    n_bytes = sum(os.path.getsize(part) for part in (os.fspath(name), f"{os.fspath(name)}-wal") if os.path.exists(part))
    turns = iter(range((_STEPS + n_bytes) // 1000))
    file.set_progress_handler(lambda: next(turns, None) is None, 1000)
    try:
        yield
    finally:
        file.set_progress_handler(None, 0)


@contextmanager
def _sole_writer(name: str) -> Iterator[None]:
    """Keep others from writing, also between two transactions, when the database itself would let them in."""
    refuse_place(name)
    for path in (name, f"{name}-lock"):
        refuse_irregular(path)
    with open(f"{name}-lock", "ab") as guard:
        try:
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BlockingIOError(_IN_USE.format(name=name)) from None
        yield


def _open_to_write(name: str) -> sqlite3.Connection:
    """The database, made if it is not there, with a transaction open."""
    is_new = not name or not os.path.exists(name) or not os.path.getsize(name)
    if not is_new:
        with _reading(name):  # a file of others is not touched
            pass
    with _telling(name):
        file = _connect(name, "rwc" if is_new else "rw")
        try:
            if is_new:
                file.execute("PRAGMA page_size = 16384")  # models are large
            else:
                _check(file, name)
            file.execute("PRAGMA journal_mode = WAL")  # others may read meanwhile
            file.execute("PRAGMA synchronous = NORMAL")
            file.execute("PRAGMA secure_delete = ON")  # what a model has forgotten is not left in the file either
            if is_new:
                file.executescript(f"BEGIN; {_TABLES} COMMIT")
            file.execute("BEGIN IMMEDIATE")
        except BaseException:
            file.close()
            raise
        return file


def _on_disk(name: str) -> list[tuple[int, int] | None]:
    """Which files a database and what was committed to it last are, under their names; None for one that is gone."""
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
    """Raise unless the database is one of models."""
    if file.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION:
        raise ModelFileError(f"{name!r} is a database, but not one of polyaforest's models")
    version = file.execute("PRAGMA user_version").fetchone()[0]
    if version > _VERSION:
        raise ModelFileError(
            f"{name!r} is of version {version}, and this release reads up to {_VERSION}: upgrade polyaforest"
        )
    if file.execute("PRAGMA encoding").fetchone()[0] != "UTF-8":
        raise ModelFileError(f"{name!r} has texts in another encoding than polyaforest writes")
    with _bounded(file, name):
        found = file.execute("SELECT type, name, substr(sql, 1, 1000) FROM sqlite_master LIMIT 10").fetchall()
    if set(found) - {("table", "damaged", _DAMAGED)} != _SCHEMA or len(found) > len(_SCHEMA) + 1:
        strange = sorted(f"{kind} {of!r}" for kind, of, sql in found if (kind, of, sql) not in _SCHEMA)
        raise ModelFileError(f"{name!r} has another schema than polyaforest makes: {', '.join(strange) or 'no tables'}")


@contextmanager
def _telling(name: str) -> Iterator[None]:
    """Say in words what SQLite says of a file."""
    try:
        yield
    except sqlite3.OperationalError as problem:
        if "interrupted" in str(problem):
            raise ModelFileError(f"{name!r} is damaged: reading it would take longer than any honest file") from None
        if "locked" in str(problem):
            raise BlockingIOError(_IN_USE.format(name=name)) from None
        raise OSError(f"{name!r} cannot be read or written: {problem}") from None
    except sqlite3.DataError as problem:
        raise OSError(
            f"a model is too large for {name!r} ({problem}): take a smaller --window, or fewer --trees"
        ) from None
    except sqlite3.DatabaseError as problem:
        if "malformed" in str(problem):
            raise ModelFileError(f"{name!r} is damaged ({problem}): go back to a copy of it") from None
        remedy = "to begin with a model that `polyaforest fit` made, give it to --start-from"
        raise ModelFileError(f"{name!r} is not a file of models by key ({problem}): {remedy}") from None
