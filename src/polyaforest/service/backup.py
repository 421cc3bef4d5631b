"""Backups: the models and histories of all streams in one tar file, written while the service runs.

The two files of a stream are copied on its thread, between two batches and right after a save, so that they match.
"""

from __future__ import annotations

import os
import re
import sqlite3
import tarfile
import tempfile
import time as clock
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import IO
from urllib.parse import quote

import orjson

from polyaforest import __version__
from polyaforest.io.errors import BadInput
from polyaforest.service.database import check_history
from polyaforest.service.folder import Folder
from polyaforest.service.rows import time_text
from polyaforest.service.stream import ServedStream
from polyaforest.service.worker import Worker
from polyaforest.storage.model_store import read_notes

__all__ = ["restore", "write_backup"]

_MANIFEST = "manifest.json"
_MEMBER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\.(models|history)")
_STREAM_SECONDS = 600.0  # for a stream to finish its batch and copy its files
_MOST_MANIFEST = 1 << 20  # bytes
_MOST_MEMBERS = 10_000
_PIECE = 1 << 20


@contextmanager
def write_backup(streams: Iterable[ServedStream], folder: str) -> Iterator[Path]:
    """Write a backup into a temporary file in a folder; yield its path, and delete it in the end."""
    chosen = list(streams)
    with tempfile.TemporaryDirectory(prefix="backup-", dir=folder) as place:
        for stream in chosen:
            stream.call(_copier(stream, place)).result(_STREAM_SECONDS)
        facts = {
            "format": 1,
            "version": __version__,
            "created": time_text(clock.time()),
            "streams": [stream.name for stream in chosen],
        }
        Path(place, _MANIFEST).write_bytes(orjson.dumps(facts))
        whole = Path(place, "all.tar")
        with tarfile.open(whole, "w") as tar:
            for path in sorted(Path(place).iterdir()):
                if path != whole:
                    tar.add(path, path.name)
                    path.unlink()
        yield whole


def _copier(stream: ServedStream, place: str) -> Callable[[Worker], None]:
    def copy(worker: Worker) -> None:
        worker.commit()
        for path in (stream.store_path, stream.database.path):
            _copy(path, os.path.join(place, os.path.basename(path)))

    return copy


def _copy(path: str, to: str) -> None:
    """Copy a database with what its log holds."""
    with (
        closing(sqlite3.connect(f"file:{quote(os.path.abspath(path))}?mode=ro", uri=True, timeout=30)) as source,
        closing(sqlite3.connect(to)) as copy,
    ):
        source.backup(copy)
        copy.execute("PRAGMA journal_mode = DELETE")  # one file, without a log beside it


def restore(backup: str, folder: str) -> list[str]:
    """Restore a backup into a data folder that has none of its streams; return their names.

    Raises `BadInput`, and changes nothing, if the backup is damaged or a file of a stream exists.
    """
    with ExitStack() as stack:
        try:
            tar = stack.enter_context(tarfile.open(backup))
            members = _members(tar, backup)
        except (tarfile.TarError, EOFError) as problem:
            raise BadInput(f"{backup} is not a backup: {problem}") from None
        stack.callback(Folder(folder).close)
        there = [name for name in members if os.path.lexists(os.path.join(folder, name))]
        if there:
            raise BadInput(f"{os.path.join(folder, there[0])} exists: restore into an empty folder, or move it away")
        place = stack.enter_context(tempfile.TemporaryDirectory(prefix="restore-", dir=folder))
        for name, member in members.items():
            try:
                _extract(tar.extractfile(member), os.path.join(place, name))
            except (tarfile.TarError, EOFError) as problem:
                raise BadInput(f"{backup} is damaged: {problem}") from None
        for name in members:
            _check(os.path.join(place, name))
        for name in members:
            os.rename(os.path.join(place, name), os.path.join(folder, name))
    return sorted({name.rpartition(".")[0] for name in members})


def _members(tar: tarfile.TarFile, backup: str) -> dict[str, tarfile.TarInfo]:
    """Return the files of the streams in a backup; raise `BadInput` unless it is one."""
    found: dict[str, tarfile.TarInfo] = {}
    for number, member in enumerate(tar):
        is_known = _MEMBER.fullmatch(member.name) is not None or member.name == _MANIFEST
        if not is_known or not member.isreg() or member.name in found or number > _MOST_MEMBERS:
            raise BadInput(f"{backup} is not a backup: it has the unexpected member {member.name[:80]!r}")
        found[member.name] = member
    manifest = found.pop(_MANIFEST, None)
    if manifest is None or manifest.size > _MOST_MANIFEST:
        raise BadInput(f"{backup} is not a backup: it has no {_MANIFEST}")
    try:
        file = tar.extractfile(manifest)
        facts = orjson.loads(b"" if file is None else file.read())
        names = {f"{name}.{kind}" for name in facts["streams"] for kind in ("models", "history")}
        format = facts["format"]
    except (ValueError, TypeError, KeyError) as problem:
        raise BadInput(f"{backup} is not a backup: {_MANIFEST}: {problem}") from None
    if format != 1:
        raise BadInput(f"{backup} has format {format!r}, this release reads 1: upgrade polyaforest")
    if names != found.keys():
        raise BadInput(f"{backup} is damaged: it should contain {', '.join(sorted(names))}")
    return found


def _extract(source: IO[bytes] | None, to: str) -> None:
    assert source is not None  # a regular file
    descriptor = os.open(to, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as target:
        while piece := source.read(_PIECE):
            target.write(piece)
        target.flush()
        os.fsync(target.fileno())


def _check(path: str) -> None:
    """Raise `BadInput` unless a restored file can be read."""
    if path.endswith(".history"):
        check_history(path)
    else:
        read_notes(path)
