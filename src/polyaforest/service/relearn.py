"""Relearning: models with other settings, learned from the history while the current models stay in use.

It runs piece by piece between the batches of a stream, in a separate store. When all records are learned, one
transaction replaces the models and settings of the stream. A process killed before that has changed nothing, and starts
over.
"""

from __future__ import annotations

import sqlite3
import time as clock
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta

import numpy as np

from polyaforest.drift import DriftMonitor
from polyaforest.forest.calibration import n_to_calibrate
from polyaforest.forest.point_store import distinct_keys
from polyaforest.io.records import RecordReader
from polyaforest.judge.models import Detector, Entry, Store, open_store
from polyaforest.judge.series import decide, n_until_decision
from polyaforest.service.blocks import NOT_LEARNED, Block
from polyaforest.service.config import StreamConfig
from polyaforest.service.database import Database
from polyaforest.service.history import RecordHistory
from polyaforest.service.numbering import Numbering

__all__ = ["Relearning", "n_seen", "records_to_learn", "replay"]

PIECE = 1024  # records at a time
_LEAST = 20_000  # records of a key, if it has as many
_WINDOWS = 4  # windows of records in addition
_PASSES = 3  # over the keys; each learns what arrived during the one before
_SHARE = 4  # one part in so many of the memory for models


def records_to_learn(
    file: sqlite3.Connection, config: StreamConfig, waiting: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Return how many of the newest records of each key to relearn.

    `waiting` is the number of records of each key that are not in the file yet.
    """
    waiting = waiting or {}
    query = "SELECT keys.key, keys.id, sum(n), max(end) FROM blocks JOIN keys ON keys.id = blocks.key GROUP BY keys.id"
    wanted = dict(waiting)
    for key, number, n, end in file.execute(query).fetchall():
        most = max(_LEAST, n_to_calibrate(config.false_alarm_rate))
        if isinstance(config.window, timedelta):
            first = end - _WINDOWS * config.window.total_seconds()
            within = "SELECT sum(n) FROM blocks WHERE key = ? AND end >= ?"
            most += file.execute(within, (number, first)).fetchone()[0]
        else:
            most += _WINDOWS * config.window
        wanted[key] = min(n + waiting.get(key, 0), most)
    return wanted


class Relearning:
    """New models for the keys of a stream.

    Parameters
    ----------
    config : StreamConfig
        The new settings.
    make : callable
        Returns a new model.
    history : History
    database : Database
        Of the history.
    reader : RecordReader
        Of the stream.
    """

    def __init__(
        self,
        config: StreamConfig,
        make: Callable[[], Detector],
        history: RecordHistory,
        database: Database,
        reader: RecordReader,
    ) -> None:
        self.config, self._make, self._reader = config, make, reader
        self._history, self._database = history, database
        self._resources = ExitStack()
        self.n_records = self.n_learned = 0
        self.restart()

    def restart(self) -> None:
        """Start over, because the history has changed."""
        self.close()
        most = self.config.memory_mb * 2**20 // _SHARE
        self._store = self._resources.enter_context(open_store(None, self._make, max_bytes=most))
        waiting = self._history.n_waiting  # its lock comes before that of the file
        with self._database.read() as file:
            self._most = records_to_learn(file, self.config, waiting)
        self.n_records, self.n_learned = sum(self._most.values()), 0
        self._learned_to: dict[str, int] = {}  # position in the stream, by key
        self._numbering: dict[str, Numbering] = {}
        self._steps = self._passes()

    def close(self) -> None:
        """Discard the new models."""
        self._resources.close()

    def advance(self, seconds: float) -> bool:
        """Learn for some seconds; return whether only the latest records are left."""
        until = clock.monotonic() + seconds
        return all(clock.monotonic() < until for _ in self._steps)

    def finished(self) -> Iterator[tuple[str, Entry, Numbering]]:
        """Learn the remaining records; yield each key with its new model, if that has learned any record."""
        for _ in self._one_pass():
            pass
        for key, numbering in self._numbering.items():
            entry = self._store[key]
            if entry.detector.is_fitted:
                yield key, entry, numbering

    def install(self, store: Store, teach: Callable[[str, Entry], None]) -> None:
        """Replace models by the new ones, after `teach` has applied the feedback of their keys to them."""
        for key, fresh, numbering in self.finished():
            entry = store[key]
            n_before = Numbering.of_notes(entry.notes).ahead + n_seen(entry.detector)
            numbering.since = n_before
            numbering.to_notes(fresh.notes)
            teach(key, fresh)
            numbering.ahead = n_before - n_seen(fresh.detector)
            numbering.to_notes(entry.notes)
            entry.notes.pop("outlook", None)
            entry.detector = fresh.detector

    # ---- learning ----------------------------------------------------------------------------------------------------

    def _passes(self) -> Iterator[None]:
        for _ in range(_PASSES):
            yield from self._one_pass()

    def _one_pass(self) -> Iterator[None]:
        for key in self._history.keys:
            block = self._new_records(key)
            if block is not None:
                self._learned_to[key] = int(block.positions[-1])
                yield from self._learn(key, block.where((block.flags & NOT_LEARNED) == 0))

    def _new_records(self, key: str) -> Block | None:
        """Return the records of a key since the last pass."""
        if key in self._learned_to:
            block = self._history.since(key, self._learned_to[key])
        else:
            block = self._history.records(key, most=max(self._most.get(key, 0), _LEAST))
        return block if block is not None and len(block) else None

    def _learn(self, key: str, block: Block) -> Iterator[None]:
        """Learn records of a key piece by piece."""
        numbering = self._numbering.setdefault(key, Numbering())
        if self._reader.time is not None:  # records may have arrived out of order
            block = replace(block, times=np.maximum.accumulate(block.times))
        turns = (np.cumsum(block.weights) - block.weights) // PIECE  # a heavy record takes as long as its copies
        for turn in np.unique(turns):
            self._learn_piece(self._store[key], numbering, block.where(turns == turn))
            yield

    def _learn_piece(self, entry: Entry, numbering: Numbering, block: Block) -> None:
        """Learn records together; if the model rejects one, learn them one by one and skip it."""
        before = n_seen(entry.detector)
        try:
            for detector, learned in replay(
                entry.detector,
                replace(block, names=distinct_keys(block.names, entry.detector.holds, n_before=before)),
                self._reader,
                finds_series=self.config.finds_series,
            ):
                entry.detector = detector
                self._take_note(numbering, learned, n_seen(detector))
        except ValueError:
            n_done = int((np.cumsum(block.weights) <= n_seen(entry.detector) - before).sum())
            if len(block) > 1:
                for place in range(n_done, len(block)):
                    self._learn_piece(entry, numbering, block.where(np.arange(len(block)) == place))

    def _take_note(self, numbering: Numbering, block: Block, n_after: int) -> None:
        """Add learned records to the numbering."""
        self.n_learned += len(block)
        firsts = n_after - np.cumsum(block.weights[::-1])[::-1]  # of the copies of each record
        for in_history, in_model, n in zip(
            *(part.tolist() for part in (block.points, firsts, block.weights)), strict=True
        ):
            if in_history >= 0:
                numbering.add(in_history, in_model, n)


def replay(
    detector: Detector, block: Block, reader: RecordReader, *, finds_series: bool
) -> Iterator[tuple[Detector, Block]]:
    """Learn records piece by piece, with the drift monitor of the detector if it has one.

    Yield the detector to continue with, and the records of the piece.
    """
    place, start, is_timed = np.arange(len(block)), 0, reader.time is not None
    while start < len(block):
        n = min(PIECE, n_until_decision(detector)) if finds_series else PIECE
        piece = block.where((place >= start) & (place < start + n))
        learner = detector if detector.companion is None else DriftMonitor.beside(detector)
        learner.detect_then_learn(
            piece.named_rows(reader.names, reader.categories),
            keys=list(piece.names) if piece.names else None,
            times=piece.times if is_timed else None,
            **piece.sample_weight,
        )
        detector = decide(detector) if finds_series and is_timed else detector
        yield detector, piece
        start += n


def n_seen(detector: Detector) -> int:
    """Return the number of records a model has learned."""
    return detector.n_seen_ if detector.is_fitted else 0
