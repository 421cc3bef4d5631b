"""Models by key in one file, of which those used last are in memory and the others are not.

The file is an SQLite database: a table of models, each as `save` writes it, and one of notes. Everything between two
commits is one transaction. A process that is killed leaves the file as the last commit did, models and notes together;
so what is noted at a commit, how far into a stream the models have come, is true of all of them. The writer holds a
lock on a file beside it, so that no second one can begin; others may read what was last committed at any time.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, Self

from polyaforest._files import ModelFileError, refuse_irregular
from polyaforest._load import load
from polyaforest.live.judging import Detector
from polyaforest.live.outputs import refuse_place
from polyaforest.timeseries import SeriesMPF

__all__ = ["Stock", "is_stock", "read_model", "read_notes"]

_MAGIC = b"SQLite format 3\0"
_APPLICATION = 0x504D5046  # "PMPF": whose database it is
_VERSION = 1
_TABLES = f"""
CREATE TABLE models (key TEXT PRIMARY KEY, model BLOB NOT NULL);
CREATE TABLE notes (one INTEGER PRIMARY KEY CHECK (one = 1), text BLOB NOT NULL);
PRAGMA application_id = {_APPLICATION};
PRAGMA user_version = {_VERSION};
"""
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
    """

    def __init__(self, path: str | os.PathLike[str] | None, make: Callable[[], Detector], most: int = 2**30) -> None:
        self._make, self._most = make, most
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
            self.notes: dict[str, Any] = _notes_in(self._file)
            self._known = {key for (key,) in self._file.execute("SELECT key FROM models")}
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
            self._models[key] = _read(self._file, key) if key in self._known else Entry(self._make())
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
    def n_in_memory(self) -> int:
        """Models that are in memory."""
        return len(self._models)

    @property
    def is_due(self) -> bool:
        """Whether so much was put back that it should be committed."""
        return self._spilled > _SPILLED

    def forget(self, key: str) -> None:
        """Take a model out, with all that it has learned."""
        if key not in self._known and key not in self._models:
            raise KeyError(f"there is no stream {key!r}. Nothing was forgotten")
        self._models.pop(key, None)
        self._in_use -= self._sizes.pop(key, 0)
        self._known.discard(key)
        self._is_changed.discard(key)
        self._file.execute("DELETE FROM models WHERE key = ?", (key,))

    def commit(self, notes: dict[str, Any]) -> None:
        """Write every model that may have changed, and the notes, all of it or nothing."""
        self.notes, self._spilled = notes, 0
        if not self._path:  # nobody will ever read it
            return
        for key in sorted(self._is_changed & self._models.keys()):
            self._write(key, self._models[key])
        with _telling(self._path):
            self._file.execute("INSERT OR REPLACE INTO notes VALUES (1, ?)", (json.dumps(notes).encode(),))
            self._file.execute("COMMIT")
            self._file.execute("BEGIN IMMEDIATE")
        self._is_changed.clear()

    def close(self) -> None:
        """Leave what was last committed."""
        self._kept.close()

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

    def _write(self, key: str, entry: Entry) -> None:
        if not hasattr(entry.detector, "forest_"):  # nothing has been learned that could be lost
            return
        memory = BytesIO()
        entry.detector.save(memory, notes=entry.notes)
        self._spilled += memory.tell()
        with _telling(self._path):
            self._file.execute("INSERT OR REPLACE INTO models VALUES (?, ?)", (key, memory.getbuffer()))
        self._known.add(key)


def _size(detector: Detector) -> int:
    """Bytes of the arrays that make up most of a detector."""
    forest = detector.forest_ if isinstance(detector, SeriesMPF) and hasattr(detector, "forest_") else detector
    if not hasattr(forest, "forest_"):
        return 0
    return int(sum(part.nbytes for part in forest.forest_) + 8 * forest.n_points_ * forest.n_features_in_)


# ---- reading what was committed --------------------------------------------------------------------------------------


def is_stock(path: str | os.PathLike[str]) -> bool:
    """Whether a file is one of models by key."""
    refuse_irregular(path)
    with open(path, "rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def read_notes(path: str | os.PathLike[str]) -> tuple[dict[str, Any], list[str]]:
    """What was noted at the last commit, and the keys that have models."""
    with _reading(path) as file:
        return _notes_in(file), [key for (key,) in file.execute("SELECT key FROM models ORDER BY key")]


def read_model(path: str | os.PathLike[str], key: str) -> Detector:
    """The model of a key as it was last committed."""
    with _reading(path) as file:
        return _read(file, key).detector


def _read(file: sqlite3.Connection, key: str) -> Entry:
    found = file.execute("SELECT model FROM models WHERE key = ?", (key,)).fetchone()
    if found is None:
        raise KeyError(f"there is no stream {key!r}")
    model = load(BytesIO(found[0]))
    if not hasattr(model, "judge_then_learn"):
        raise ModelFileError(f"the model of {key!r} does not follow a stream")
    return Entry(model, model.notes)


def _notes_in(file: sqlite3.Connection) -> dict[str, Any]:
    found = file.execute("SELECT text FROM notes").fetchone()
    notes: dict[str, Any] = {} if found is None else json.loads(found[0])
    return notes


@contextmanager
def _reading(path: str | os.PathLike[str]) -> Iterator[sqlite3.Connection]:
    name = os.fspath(path)
    refuse_irregular(name)
    with open(name, "rb"):  # or SQLite would make a new one
        pass
    with _telling(name), closing(sqlite3.connect(name, isolation_level=None)) as file:
        _check(file, name)
        yield file


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
    with _telling(name):
        file = sqlite3.connect(name, isolation_level=None, timeout=0.5)
        try:
            is_new = not file.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
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


def _check(file: sqlite3.Connection, name: str) -> None:
    """Raise unless the database is one of models."""
    if file.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION:
        raise ModelFileError(f"{name!r} is a database, but not one of polyaforest's models")
    version = file.execute("PRAGMA user_version").fetchone()[0]
    if version > _VERSION:
        raise ModelFileError(
            f"{name!r} is of version {version}, and this release reads up to {_VERSION}: upgrade polyaforest"
        )


@contextmanager
def _telling(name: str) -> Iterator[None]:
    """Say in words what SQLite says of a file."""
    try:
        yield
    except sqlite3.OperationalError as problem:
        if "locked" in str(problem):
            raise BlockingIOError(_IN_USE.format(name=name)) from None
        raise OSError(f"{name!r} cannot be read or written: {problem}") from None
    except sqlite3.DataError as problem:
        raise OSError(
            f"a model is too large for {name!r} ({problem}): take a smaller --window, or fewer --trees"
        ) from None
    except sqlite3.DatabaseError as problem:
        remedy = "to begin with a model that `polyaforest fit` made, give it to --start-from"
        raise ModelFileError(f"{name!r} is not a file of models by key ({problem}): {remedy}") from None
