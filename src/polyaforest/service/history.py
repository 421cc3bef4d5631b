"""Judged records by key and time: kept in blocks, read at the resolution of a screen, deleted by a stated rule.

Records wait in memory until the models are saved; then they are written, and after a crash those that were not are
judged again. A block that is small is merged with the one before it once both are of a size, so that a key has few.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from polyaforest.core.arrays import Array
from polyaforest.forest.point_store import keys_named
from polyaforest.service.blocks import FLAGGED, Block, Buckets, Sample, Summary
from polyaforest.service.database import Database

__all__ = ["History", "Lane", "Range"]

_BLOCK = 512  # records at most
_PART = 64  # records of a block that are summed up together
_RETENTION_EVERY = 20  # flushes


class Range(NamedTuple):
    """Part of the history of a key."""

    parts: Summary | None  # None if there is nothing
    is_raw: bool  # whether each part is a record
    n: int  # records


class Lane(NamedTuple):
    """The history of a key in buckets of time: the lowest p-value and the flagged records of each."""

    key: str
    p_values: list[float]
    flagged: list[int]
    n: list[int]
    latest: float


class History:
    """The judged records of a stream.

    Parameters
    ----------
    database : Database
    most_records, longest : int, float
        What came before the last so many records, or is so many seconds older than the newest, is deleted.
    """

    def __init__(self, database: Database, most_records: int, longest: float) -> None:
        self._database, self._most, self._longest = database, most_records, longest
        self._lock = threading.RLock()
        self._pending: dict[str, list[Sample]] = {}
        self._latest: dict[str, Sample] = {}
        self._flushes = 0
        with database.read() as file:
            self._ids: dict[str, int] = {key: number for number, key in file.execute("SELECT id, key FROM keys")}
            found = file.execute("SELECT max(position) FROM blocks").fetchone()
        self.position: int = found[0] or 0  # records so far

    def keep(self, most_records: int, longest: float) -> None:
        """Keep so much from now on."""
        self._most, self._longest = most_records, longest

    # ---- writing -----------------------------------------------------------------------------------------------------

    def id_of(self, key: str, file: sqlite3.Connection) -> int:
        """Return the number of a key, which is new if the key is."""
        with self._lock:
            if key not in self._ids:
                file.execute("INSERT OR IGNORE INTO keys (key) VALUES (?)", (key,))
                found = file.execute("SELECT id FROM keys WHERE key = ?", (key,)).fetchone()
                self._ids[key] = found[0]
            return self._ids[key]

    def append(self, samples: Mapping[str, list[Sample]], position: int) -> None:
        """Add records by key, up to a position of the stream."""
        with self._lock:
            for key, new in samples.items():
                self._pending.setdefault(key, []).extend(new)
                self._latest[key] = new[-1]
            self.position = position

    def flush(self) -> None:
        """Write all records, and delete what is too old."""
        with self._lock:  # beyond the transaction, or a reader would find records in both places
            with self._database.write() as file:
                for key, samples in self._pending.items():
                    self._write(file, self.id_of(key, file), Block.of(samples))
                self._flushes += 1
                if self._flushes % _RETENTION_EVERY == 1:
                    self._expire(file)
            self._pending = {}

    def rewind(self, position: int) -> None:
        """Delete all records after a position of the stream."""
        with self._lock, self._database.write() as file:
            found = file.execute("SELECT key, first, data FROM blocks WHERE position > ?", (position,)).fetchall()
            for key, first, data in found:
                file.execute("DELETE FROM blocks WHERE key = ? AND first = ?", (key, first))
                block = Block.of_bytes(data)
                kept = block.where(block.positions <= position)
                if len(kept):
                    _insert(file, key, kept)
            self._pending, self.position = {}, position

    def forget_named(self, key: str, name: str) -> int:
        """Delete the records of a key that have a name; return how many there were."""

        def without(block: Block) -> Block:
            named = [point is not None and bool(keys_named(name, [point])) for point in block.names]
            return block.where(~np.array(named, np.bool_)) if any(named) else block

        return self._rewrite(key, without)

    def shift_points(self, key: str, position: int, by: int) -> None:
        """Renumber the points of records after a position, in a model that has learned fewer or more before them."""

        def shifted(block: Block) -> Block:
            is_later = (block.positions > position) & (block.points >= 0)
            return replace(block, points=np.where(is_later, block.points + by, block.points))

        self._rewrite(key, shifted)

    def _rewrite(self, key: str, change: Callable[[Block], Block]) -> int:
        """Replace the blocks of a key by changed ones; return how many records there are less."""
        self.flush()
        n_less = 0
        with self._lock, self._database.write() as file:
            number = self._ids.get(key, -1)
            for first, data in file.execute("SELECT first, data FROM blocks WHERE key = ?", (number,)).fetchall():
                block = Block.of_bytes(data)
                changed = change(block)
                if changed is block:
                    continue
                n_less += len(block) - len(changed)
                file.execute("DELETE FROM blocks WHERE key = ? AND first = ?", (number, first))
                if len(changed):
                    _insert(file, number, changed)
            if n_less:
                self._latest.pop(key, None)
        return n_less

    def _write(self, file: sqlite3.Connection, key: int, block: Block) -> None:
        """Write records of a key, in blocks of a fixed size at most."""
        for start in range(0, len(block), _BLOCK):
            place = np.arange(len(block))
            part = block.where((place >= start) & (place < start + _BLOCK)) if len(block) > _BLOCK else block
            query = "SELECT first, n FROM blocks WHERE key = ? ORDER BY first DESC LIMIT 1"
            while (last := file.execute(query, (key,)).fetchone()) is not None:
                first, n = last
                if n > 2 * len(part) or n + len(part) > _BLOCK:
                    break
                place_of = (key, first)
                data = file.execute("SELECT data FROM blocks WHERE key = ? AND first = ?", place_of).fetchone()[0]
                before = Block.of_bytes(data)
                if before.values.shape[1] != part.values.shape[1]:
                    break
                file.execute("DELETE FROM blocks WHERE key = ? AND first = ?", place_of)
                part = Block.joined([before, part])
            _insert(file, key, part)

    def _expire(self, file: sqlite3.Connection) -> None:
        """Delete blocks that are beyond the bounds."""
        file.execute("DELETE FROM blocks WHERE position <= ?", (self.position - self._most,))
        oldest = self.oldest_kept(file)
        if oldest is not None:
            file.execute("DELETE FROM blocks WHERE end < ?", (oldest,))
        file.execute("DELETE FROM keys WHERE id NOT IN (SELECT key FROM blocks UNION SELECT key FROM events)")
        self._ids = {key: number for number, key in file.execute("SELECT id, key FROM keys")}
        self._latest = {key: sample for key, sample in self._latest.items() if key in self._ids}

    def oldest_kept(self, file: sqlite3.Connection) -> float | None:
        """Return the time before which nothing is kept, by the newest record; None while there are none."""
        newest = file.execute("SELECT max(end) FROM blocks").fetchone()[0]
        return None if newest is None else float(newest) - self._longest

    # ---- reading -----------------------------------------------------------------------------------------------------

    @property
    def keys(self) -> list[str]:
        """The keys that have come, sorted."""
        with self._lock:
            return sorted(self._ids.keys() | self._pending.keys())

    @property
    def n_waiting(self) -> dict[str, int]:
        """Records that are not in the file yet, by key."""
        with self._lock:
            return {key: len(samples) for key, samples in self._pending.items()}

    def latest(self, key: str) -> Sample | None:
        """Return the newest record of a key in this run of the process."""
        with self._lock:
            return self._latest.get(key)

    def range(self, key: str, start: float, end: float, most: int) -> Range:
        """Return the records of a key between two times: each, or if there are more than `most`, so many buckets."""
        width = (end - start) / most
        with self._lock, self._database.read() as file:
            waiting = list(self._pending.get(key, ()))
            where = "FROM blocks WHERE key = ? AND end >= ? AND start <= ?"
            place = (self._ids.get(key, -1), start, end)
            n = (file.execute(f"SELECT sum(n) {where}", place).fetchone()[0] or 0) + len(waiting)
            coarse = f"(end - start) * {_PART} <= {width if n > most else -1} * n"
            chosen = f"SELECT {coarse}, n, CASE WHEN {coarse} THEN summary ELSE data END {where} ORDER BY first"
            found = file.execute(chosen, place).fetchall()
        parts = [
            Summary.of_bytes(text, -(-n_of // _PART)) if is_coarse else Summary.of_records(Block.of_bytes(text))
            for is_coarse, n_of, text in found
        ]
        if waiting:
            parts.append(Summary.of_records(Block.of(waiting)))
        if not parts:
            return Range(None, True, 0)
        n_fields = parts[-1].wide.shape[2]
        whole = Summary.joined([part for part in parts if part.wide.shape[2] == n_fields])
        is_raw = n <= most
        kept = whole.inside(start, end) if is_raw else Buckets(start, end, most).reduce(whole)
        return Range(kept if len(kept.times) else None, is_raw, int(kept.counts.sum()))

    def records(self, key: str, *, first: int = 0, last: int | None = None, most: int | None = None) -> Block | None:
        """Return records of a key by number, the newest `most` of them; None if there are none."""
        with self._lock, self._database.read() as file:
            waiting = list(self._pending.get(key, ()))
            query = "SELECT data FROM blocks WHERE key = ? ORDER BY first DESC"
            blocks = [Block.of(waiting)] if waiting else []
            n = len(waiting)
            for (data,) in file.execute(query, (self._ids.get(key, -1),)):
                blocks.insert(0, Block.of_bytes(data))
                n += len(blocks[0])
                if blocks[0].numbers[0] <= first or (most is not None and n >= most):
                    break
        if not blocks:
            return None
        blocks = [block for block in blocks if block.values.shape[1] == blocks[-1].values.shape[1]]
        whole = Block.joined(blocks)
        is_kept = (whole.numbers >= first) & (whole.numbers <= (2**62 if last is None else last))
        eras = np.flatnonzero(np.diff(whole.numbers) <= 0)  # before models started over
        is_kept[: eras[-1] + 1 if len(eras) else 0] = False
        if most is not None:
            is_kept &= np.arange(len(whole)) >= len(whole) - most
        return whole.where(is_kept) if is_kept.any() else None

    def since(self, key: str, position: int) -> Block | None:
        """Return the records of a key after a position of the stream; None if there are none."""
        with self._lock, self._database.read() as file:
            waiting = self._pending.get(key, ())
            query = "SELECT data FROM blocks WHERE key = ? AND position > ? ORDER BY first"
            blocks = [Block.of_bytes(data) for (data,) in file.execute(query, (self._ids.get(key, -1), position))]
            if waiting:
                blocks.append(Block.of(waiting))
        whole = Block.joined(blocks) if blocks else None
        return None if whole is None else whole.where(whole.positions > position)

    def span(self) -> tuple[float, float] | None:
        """Return the times of the first and last record, None if there are none."""
        with self._lock, self._database.read() as file:
            ends = "SELECT (SELECT min(start) FROM blocks), (SELECT max(end) FROM blocks)"  # each by its index
            start, end = file.execute(ends).fetchone()
            waiting = [sample.time for samples in self._pending.values() for sample in samples]
        times = [*waiting, *([] if start is None else [start, end])]
        return (min(times), max(times)) if times else None

    def lanes(self, buckets: Buckets, most: int) -> list[Lane]:
        """Return the keys with the most surprising records in a span, the worst first, at most so many."""
        with self._lock, self._database.read() as file:
            names = {number: key for key, number in self._ids.items()}
            is_coarse = f"(end - start) * {_PART} <= ? * n"  # or a lane would have holes between the parts
            strip_of = f"CASE WHEN {is_coarse} THEN strip ELSE fine END"
            query = f"SELECT key, {strip_of} FROM blocks WHERE end >= ? AND start <= ?"
            strips: dict[str, list[Array]] = {}
            for number, strip in file.execute(query, (buckets.width, buckets.start, buckets.end)):
                strips.setdefault(names[number], []).append(np.frombuffer(strip, np.float64).reshape(-1, 4))
            for key, samples in self._pending.items():
                rows = [(sample.time, 1.0, sample.flags & FLAGGED, sample.p_value) for sample in samples]
                strips.setdefault(key, []).append(np.array(rows, np.float64))
        lanes = [lane for key, parts in strips.items() if (lane := _lane(key, np.concatenate(parts), buckets))]
        lanes.sort(key=lambda lane: (-sum(lane.flagged), min(lane.p_values), lane.key))
        return lanes[:most]


def _lane(key: str, strip: Array, buckets: Buckets) -> Lane | None:
    """Return times, counts, flags and p-values, (n, 4), in buckets; None if there are none."""
    strip = strip[(strip[:, 0] >= buckets.start) & (strip[:, 0] <= buckets.end)]
    if not len(strip):
        return None
    places = buckets.places(strip[:, 0])
    p_values = np.ones(buckets.n)
    np.fmin.at(p_values, places, strip[:, 3])
    counts, flagged = (np.bincount(places, strip[:, k], buckets.n).astype(np.int64).tolist() for k in (1, 2))
    return Lane(key, p_values.tolist(), flagged, counts, float(strip[:, 0].max()))


def _insert(file: sqlite3.Connection, key: int, block: Block) -> None:
    """Write a block."""
    records = Summary.of_records(block)
    parts = records.reduced(np.arange(len(block)) // _PART)
    times = float(block.times.min()), float(block.times.max())
    row = (key, int(block.positions[0]), len(block), *times, int(block.positions[-1]))
    file.execute(
        "INSERT OR REPLACE INTO blocks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (*row, parts.strip(), records.strip(), parts.to_bytes(), block.to_bytes()),
    )
