"""The history: scored records by key and time, stored in blocks and read at the resolution of a screen.

Records stay in memory until the models are saved, and are then written; after a crash, unwritten records are scored
again. Small blocks are merged with their predecessor, so that a key has few.

All data of a block has checksums, verified on each read. Reads skip damaged blocks; the writing thread moves them to a
table of their own.
"""

from __future__ import annotations

import sqlite3
import struct
import threading
import time as clock
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from polyaforest.forest.point_store import keys_named
from polyaforest.kernels.arrays import Array
from polyaforest.service.blocks import FLAGGED, Block, Buckets, BucketSummary, ScoredRecord, seal, unseal
from polyaforest.service.clocks import Clocks
from polyaforest.service.database import Database

__all__ = ["Lane", "Range", "RecordHistory"]

_BLOCK = 512  # records at most
_PART = 64  # records of a block per part of its summary
_RETENTION_EVERY = 20  # flushes
_PLACE = "key, first, n, start, end, position"  # columns covered by the checksums of a block
_UNREADABLE = (ValueError, TypeError, KeyError, OverflowError)  # raised when parsing damaged data
_MOST_DAMAGED = 1000  # damaged parts to keep
_AT_ONCE = 256  # blocks to upgrade in one transaction

Text = TypeVar("Text")
Place = Sequence[Any]  # values of the columns above


class Range(NamedTuple):
    """A range of the history of a key."""

    parts: BucketSummary | None  # None if empty
    is_raw: bool  # whether each part is a record
    n: int  # records


class Lane(NamedTuple):
    """The history of a key in time buckets, each with its lowest p-value and number of flagged records."""

    key: str
    p_values: list[float]
    flagged: list[int]
    n: list[int]
    latest: float | None  # None without records


class RecordHistory:
    """The scored records of a stream.

    Parameters
    ----------
    database : Database
    most_records, longest : int, float
        Number of records, and age in seconds, beyond which blocks are deleted.
    clocks : Clocks, optional
    """

    def __init__(self, database: Database, most_records: int, longest: float, clocks: Clocks | None = None) -> None:
        self._database, self._most, self._longest = database, most_records, longest
        self.clocks = clocks or Clocks(database)
        self._lock = threading.RLock()
        self._pending: dict[str, list[ScoredRecord]] = {}
        self._latest: dict[str, ScoredRecord] = {}
        self._flushes = 0
        self._damage: dict[tuple[int, int], str] = {}  # why blocks cannot be read, by key and first record
        self.reload()
        self._upgrade()
        with database.read() as file:
            self.position: int = file.execute("SELECT max(position) FROM blocks").fetchone()[0] or 0  # last record

    def reload(self) -> None:
        """Read the keys again, after a repair of the file."""
        with self._lock, self._database.read() as file:
            self._ids: dict[str, int] = {key: number for number, key in file.execute("SELECT id, key FROM keys")}

    def _upgrade(self) -> None:
        """Add checksums and ages to blocks of an earlier release."""
        newest = self.newest()
        query = f"SELECT {_PLACE}, strip, fine, summary, data FROM blocks WHERE stored IS NULL LIMIT {_AT_ONCE}"
        while True:
            with self._database.write() as file:
                found = file.execute(query).fetchall()
                for *place, strip, fine, summary, data in found:
                    stored = self.clocks.age - (newest - min(place[4], newest))
                    texts = (seal(text, _stamp(place)) for text in (strip, fine, summary, data))
                    is_readable = self._read(place, _block_of(place), data) is not None
                    update = "UPDATE blocks SET strip = ?, fine = ?, summary = ?, data = ?, stored = ?"
                    values = texts if is_readable else (strip, fine, summary, data)
                    file.execute(f"{update} WHERE key = ? AND first = ?", (*values, stored, place[0], place[1]))
            if not found:
                return

    def newest(self) -> float:
        """Return the latest end of a block, ignoring blocks in the future."""
        now = self.clocks.now or float("inf")
        with self._database.read() as file:
            found = file.execute("SELECT max(end) FROM blocks WHERE end <= ?", (now,)).fetchone()[0]
        return float(found or 0.0)

    def keep(self, most_records: int, longest: float) -> None:
        """Change the limits of retention."""
        self._most, self._longest = most_records, longest

    # ---- writing -----------------------------------------------------------------------------------------------------

    def id_of(self, key: str, file: sqlite3.Connection) -> int:
        """Return the number of a key; assign one to a new key."""
        with self._lock:
            if key not in self._ids:
                file.execute("INSERT OR IGNORE INTO keys (key) VALUES (?)", (key,))
                found = file.execute("SELECT id FROM keys WHERE key = ?", (key,)).fetchone()
                self._ids[key] = found[0]
            return self._ids[key]

    def append(self, samples: Mapping[str, list[ScoredRecord]], position: int) -> None:
        """Add records by key, up to a position of the stream."""
        with self._lock:
            for key, new in samples.items():
                self._pending.setdefault(key, []).extend(new)
                self._latest[key] = new[-1]
            self.position = position

    def flush(self) -> None:
        """Write pending records, and delete expired ones now and then."""
        with self._lock:  # until after the commit, or readers would find records twice
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
            query = f"SELECT {_PLACE}, stored, data FROM blocks WHERE position > ?"
            for *place, stored, data in file.execute(query, (position,)).fetchall():
                block = self._read(place, _block_of(place), data)
                if block is None:
                    continue
                file.execute("DELETE FROM blocks WHERE key = ? AND first = ?", place[:2])
                kept = block.where(block.positions <= position)
                if len(kept):
                    _insert(file, place[0], kept, stored)
            self._pending, self.position = {}, position

    def forget_named(self, key: str, name: str) -> int:
        """Delete the records of a key with a given id; return how many."""

        def without(block: Block) -> Block:
            named = [point is not None and bool(keys_named(name, [point])) for point in block.names]
            return block.where(~np.array(named, np.bool_)) if any(named) else block

        return self._rewrite(key, without)

    def shift_points(self, key: str, position: int, by: int) -> None:
        """Shift the point numbers of records after a position, because the model has learned fewer or more rows."""

        def shifted(block: Block) -> Block:
            is_later = (block.positions > position) & (block.points >= 0)
            return replace(block, points=np.where(is_later, block.points + by, block.points))

        self._rewrite(key, shifted)

    def _rewrite(self, key: str, change: Callable[[Block], Block]) -> int:
        """Apply a change to all blocks of a key; return how many records it removed."""
        self.flush()
        n_less = 0
        with self._lock, self._database.write() as file:
            number = self._ids.get(key, -1)
            query = f"SELECT {_PLACE}, stored, data FROM blocks WHERE key = ?"
            for *place, stored, data in file.execute(query, (number,)).fetchall():
                block = self._read(place, _block_of(place), data)
                changed = None if block is None else change(block)
                if block is None or changed is None or changed is block:
                    continue
                n_less += len(block) - len(changed)
                file.execute("DELETE FROM blocks WHERE key = ? AND first = ?", place[:2])
                if len(changed):
                    _insert(file, number, changed, stored)
            if n_less:
                self._latest.pop(key, None)
        return n_less

    def _write(self, file: sqlite3.Connection, key: int, block: Block) -> None:
        """Write records of a key in blocks of limited size."""
        for start in range(0, len(block), _BLOCK):
            number = np.arange(len(block))
            part = block.where((number >= start) & (number < start + _BLOCK)) if len(block) > _BLOCK else block
            query = f"SELECT {_PLACE} FROM blocks WHERE key = ? ORDER BY first DESC LIMIT 1"
            while (place := file.execute(query, (key,)).fetchone()) is not None:
                n = place[2]
                if n > 2 * len(part) or n + len(part) > _BLOCK:
                    break
                data = file.execute("SELECT data FROM blocks WHERE key = ? AND first = ?", place[:2]).fetchone()[0]
                before = self._read(place, _block_of(place), data)
                if before is None or before.values.shape[1] != part.values.shape[1]:
                    break
                file.execute("DELETE FROM blocks WHERE key = ? AND first = ?", place[:2])
                part = Block.joined([before, part])
            _insert(file, key, part, self.clocks.age)

    def expire(self) -> None:
        """Delete expired blocks, and save the clocks."""
        with self._lock, self._database.write() as file:
            self._expire(file)

    def _expire(self, file: sqlite3.Connection) -> None:
        self.clocks.save(file)
        file.execute("DELETE FROM blocks WHERE position <= ? OR stored < ?", (self.position - self._most, self.oldest))
        oldest = "DELETE FROM damaged WHERE id NOT IN (SELECT id FROM damaged ORDER BY id DESC LIMIT ?) OR stored < ?"
        file.execute(oldest, (_MOST_DAMAGED, self.oldest))
        file.execute("DELETE FROM keys WHERE id NOT IN (SELECT key FROM blocks UNION SELECT key FROM events)")
        self._ids = {key: number for number, key in file.execute("SELECT id, key FROM keys")}
        self._latest = {key: sample for key, sample in self._latest.items() if key in self._ids}

    @property
    def oldest(self) -> float:
        """Time, by the clock of ages, before which stored data is deleted."""
        return self.clocks.age - self._longest

    # ---- damage ------------------------------------------------------------------------------------------------------

    def _read(self, place: Place, parse: Callable[[bytes], Text], text: bytes) -> Text | None:
        """Verify and parse data of a block; return None, and remember the reason, if it is damaged."""
        try:
            return parse(unseal(text, _stamp(place)))
        except _UNREADABLE as problem:
            self._damage[place[0], place[1]] = str(problem)
            return None

    @property
    def has_damage(self) -> bool:
        """Whether unreadable blocks were found that are not set aside yet."""
        return bool(self._damage)

    def set_aside(self) -> None:
        """Move damaged blocks to the table of damaged parts."""
        with self._lock, self._database.write() as file:
            found, self._damage = self._damage, {}
            for (key, first), reason in found.items():
                columns = "at, what, key, n, start, end, reason, body, stored"
                name = "coalesce((SELECT key FROM keys WHERE id = blocks.key), '')"
                facts = f"?, 'block', {name}, n, start, end, ?, data, stored"
                query = f"SELECT {facts} FROM blocks WHERE key = ? AND first = ?"
                values = (clock.time(), f"block {first} of its key: {reason}", key, first)
                file.execute(f"INSERT INTO damaged ({columns}) {query}", values)
                file.execute("DELETE FROM blocks WHERE key = ? AND first = ?", (key, first))

    def damaged(self, most: int = 100) -> list[dict[str, Any]]:
        """Return the damaged parts of the history, latest found first."""
        names = ("id", "at", "what", "key", "n", "start", "end", "reason")
        query = f"SELECT {', '.join(names)} FROM damaged ORDER BY id DESC LIMIT ?"
        with self._database.read() as file:
            return [dict(zip(names, row, strict=True)) for row in file.execute(query, (most,))]

    @property
    def n_damaged(self) -> int:
        """Number of damaged parts set aside."""
        with self._database.read() as file:
            return int(file.execute("SELECT count(*) FROM damaged").fetchone()[0])

    @property
    def last_damaged(self) -> int:
        """Number of the last damaged part set aside, 0 if there is none."""
        with self._database.read() as file:
            return int(file.execute("SELECT max(id) FROM damaged").fetchone()[0] or 0)

    # ---- reading -----------------------------------------------------------------------------------------------------

    @property
    def keys(self) -> list[str]:
        """All keys, sorted."""
        with self._lock:
            return sorted(self._ids.keys() | self._pending.keys())

    @property
    def n_waiting(self) -> dict[str, int]:
        """Number of records not yet in the file, by key."""
        with self._lock:
            return {key: len(samples) for key, samples in self._pending.items()}

    def latest(self, key: str) -> ScoredRecord | None:
        """Return the newest record of a key since the process started."""
        with self._lock:
            return self._latest.get(key)

    def read_after(self, key: str, position: int, span: tuple[float, float], most: int) -> Block | None:
        """Return at most `most` records of a key after a position, between two times; None if there are none."""
        with self._lock, self._database.read() as file:
            waiting = list(self._pending.get(key, ()))
            query = (
                f"SELECT {_PLACE}, data FROM blocks WHERE key = ? AND position > ? AND end >= ? AND start <= ? "
                "ORDER BY first"
            )
            n = 0
            parts: list[Block] = []
            for *place, data in file.execute(query, (self._ids.get(key, -1), position, *span)):
                block = self._read(place, _block_of(place), data)
                part = None if block is None else _within(block, position, span)
                if part is not None and (not parts or part.values.shape[1] == parts[0].values.shape[1]):
                    parts.append(part)
                    n += len(part)
                if n >= most:
                    break
        if n < most and waiting:
            part = _within(Block.of(waiting), position, span)
            if part is not None:
                parts.append(part)
        if not parts:
            return None
        whole = Block.joined(parts)
        return whole.where(np.arange(len(whole)) < most) if len(whole) > most else whole

    def latest_times(self) -> dict[str, float]:
        """Return the time of the latest record of each key."""
        with self._lock, self._database.read() as file:
            query = "SELECT keys.key, max(blocks.end) FROM blocks JOIN keys ON keys.id = blocks.key GROUP BY blocks.key"
            found = dict(file.execute(query).fetchall())
            for key, samples in self._pending.items():
                found[key] = max(found.get(key, float("-inf")), *(sample.time for sample in samples))
            return found

    def range(self, key: str, start: float, end: float, most: int) -> Range:
        """Return the records of a key between two times; more than `most` records are reduced to `most` buckets."""
        width = (end - start) / most
        with self._lock, self._database.read() as file:
            waiting = list(self._pending.get(key, ()))
            where = "FROM blocks WHERE key = ? AND end >= ? AND start <= ?"
            place = (self._ids.get(key, -1), start, end)
            n = (file.execute(f"SELECT sum(n) {where}", place).fetchone()[0] or 0) + len(waiting)
            coarse = f"(end - start) * {_PART} <= {width if n > most else -1} * n"
            text_of = f"CASE WHEN {coarse} THEN summary ELSE data END"
            found = file.execute(f"SELECT {_PLACE}, {coarse}, {text_of} {where} ORDER BY first", place).fetchall()
        read = [
            self._read(at, _summary_of(at) if is_coarse else _records_of(at), text) for *at, is_coarse, text in found
        ]
        parts = [part for part in read if part is not None]
        if waiting:
            parts.append(BucketSummary.of_records(Block.of(waiting)))
        if not parts:
            return Range(None, True, 0)
        n_fields = parts[-1].wide.shape[2]
        whole = BucketSummary.joined([part for part in parts if part.wide.shape[2] == n_fields])
        is_raw = n <= most
        kept = whole.inside(start, end) if is_raw else Buckets(start, end, most).reduce(whole)
        return Range(kept if len(kept.times) else None, is_raw, int(kept.counts.sum()))

    def records(self, key: str, *, first: int = 0, last: int | None = None, most: int | None = None) -> Block | None:
        """Return records of a key by number, the newest `most`; None if there are none."""
        with self._lock, self._database.read() as file:
            waiting = list(self._pending.get(key, ()))
            query = f"SELECT {_PLACE}, data FROM blocks WHERE key = ? ORDER BY first DESC"
            blocks = [Block.of(waiting)] if waiting else []
            n = len(waiting)
            for *place, data in file.execute(query, (self._ids.get(key, -1),)):
                block = self._read(place, _block_of(place), data)
                if block is None:
                    continue
                blocks.insert(0, block)
                n += len(block)
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
            query = f"SELECT {_PLACE}, data FROM blocks WHERE key = ? AND position > ? ORDER BY first"
            found = file.execute(query, (self._ids.get(key, -1), position)).fetchall()
            read = [self._read(place, _block_of(place), data) for *place, data in found]
            blocks = [block for block in read if block is not None]
            if waiting:
                blocks.append(Block.of(waiting))
        whole = Block.joined(blocks) if blocks else None
        return None if whole is None else whole.where(whole.positions > position)

    def span(self) -> tuple[float, float] | None:
        """Return the times of the first and last record, ignoring the future; None if there are none."""
        now = self.clocks.now or float("inf")
        with self._lock, self._database.read() as file:
            ends = "SELECT (SELECT min(start) FROM blocks), (SELECT max(end) FROM blocks WHERE end <= ?)"  # by indexes
            start, end = file.execute(ends, (now + self.clocks.max_ahead,)).fetchone()
            waiting = [sample.time for samples in self._pending.values() for sample in samples]
        times = [min(time, now) for time in (*waiting, start, end) if time is not None]
        return (min(times), max(times)) if times else None

    def lanes(
        self, buckets: Buckets, most: int, *, always: Collection[str] = (), search: str = ""
    ) -> tuple[list[Lane], int]:
        """Return lanes of keys, worst first, and how many keys there are.

        Parameters
        ----------
        buckets : Buckets
        most : int
            Largest number of lanes, besides those of `always`.
        always : collection of str
            Keys that have a lane in any case, also without records.
        search : str
            Part of the keys, in upper or lower case.
        """
        with self._lock, self._database.read() as file:
            names = {number: key for key, number in self._ids.items()}
            is_coarse = f"(end - start) * {_PART} <= ? * n"  # otherwise, a lane would have gaps
            strip_of = f"CASE WHEN {is_coarse} THEN strip ELSE fine END"
            query = f"SELECT {_PLACE}, {strip_of} FROM blocks WHERE end >= ? AND start <= ?"
            strips: dict[str, list[Array]] = {}
            for *place, text in file.execute(query, (buckets.width, buckets.start, buckets.end)):
                strip = self._read(place, _strip_of, text)
                if strip is not None and place[0] in names:
                    strips.setdefault(names[place[0]], []).append(strip)
            for key, samples in self._pending.items():
                rows = [(sample.time, 1.0, sample.flags & FLAGGED, sample.p_value) for sample in samples]
                strips.setdefault(key, []).append(np.array(rows, np.float64))
        nothing = np.empty((0, 4))
        strips |= {key: [nothing] for key in always if key not in strips}
        lanes = [
            lane
            for key, parts in strips.items()
            if search.casefold() in key.casefold()
            and (lane := _lane(key, np.concatenate(parts), buckets, is_wanted=key in always))
        ]
        lanes.sort(key=lambda lane: (lane.key not in always, -sum(lane.flagged), min(lane.p_values), lane.key))
        return lanes[: most + len(always)], len(lanes)


def _lane(key: str, strip: Array, buckets: Buckets, *, is_wanted: bool) -> Lane | None:
    """Reduce times, counts, flags and p-values, (n, 4), to buckets; None without any, unless the lane is wanted."""
    strip = strip[(strip[:, 0] >= buckets.start) & (strip[:, 0] <= buckets.end)]
    if not len(strip) and not is_wanted:
        return None
    places = buckets.places(strip[:, 0])
    p_values = np.ones(buckets.n)
    np.fmin.at(p_values, places, strip[:, 3])
    counts, flagged = (np.bincount(places, strip[:, k], buckets.n).astype(np.int64).tolist() for k in (1, 2))
    latest = float(strip[:, 0].max()) if len(strip) else None
    return Lane(key, p_values.tolist(), flagged, counts, latest)


def _within(block: Block, position: int, span: tuple[float, float]) -> Block | None:
    """Return the records of a block after a position, between two times; None if there are none."""
    is_wanted = (block.positions > position) & (block.times >= span[0]) & (block.times <= span[1])
    part = block if is_wanted.all() else block.where(is_wanted)
    return part if len(part) else None


def _insert(file: sqlite3.Connection, key: int, block: Block, stored: float) -> None:
    """Write a block."""
    records = BucketSummary.of_records(block)
    parts = records.reduced(np.arange(len(block)) // _PART)
    times = float(block.times.min()), float(block.times.max())
    place = (key, int(block.positions[0]), len(block), *times, int(block.positions[-1]))
    texts = (parts.strip(), records.strip(), parts.to_bytes(), block.to_bytes())
    sealed = (seal(text, _stamp(place)) for text in texts)
    file.execute("INSERT OR REPLACE INTO blocks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (*place, *sealed, stored))


# ---- data of blocks --------------------------------------------------------------------------------------------------


def _stamp(place: Place) -> bytes:
    """Return the columns of a block that its checksums cover, as bytes."""
    try:
        return struct.pack("<qqqddq", *place)
    except struct.error as problem:  # a damaged row
        raise ValueError(str(problem)) from None


def _block_of(place: Place) -> Callable[[bytes], Block]:
    def parse(text: bytes) -> Block:
        block = Block.of_bytes(text)
        if len(block) != place[2]:
            raise ValueError(f"it has {len(block)} records instead of {place[2]}")
        return block

    return parse


def _records_of(place: Place) -> Callable[[bytes], BucketSummary]:
    return lambda text: BucketSummary.of_records(_block_of(place)(text))


def _summary_of(place: Place) -> Callable[[bytes], BucketSummary]:
    return lambda text: BucketSummary.of_bytes(text, -(-place[2] // _PART))


def _strip_of(text: bytes) -> Array:
    return np.frombuffer(text, np.float64).reshape(-1, 4)
