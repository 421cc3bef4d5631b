"""The points that a stream holds: their slots and keys, and which points leave when new ones arrive."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from typing import NamedTuple, TypeAlias

import numpy as np

from polyaforest.forest.retention import Policy
from polyaforest.kernels.arrays import NONE, Array

Key: TypeAlias = int | str
_COPY = "\x1e"  # ASCII record separator, in the key of a further copy of a row: key, separator, number of the copy
_SEPARATOR = "\x1f"  # ASCII unit separator, in the key of a row whose name another row has: name, separator, row number


class Schedule(NamedTuple):
    """The slots of new rows, and of the points that leave."""

    slots: Array  # int32 (n,): the slot of each row, NONE if it is not kept
    until: Array  # int32 (n,): how many of `leaving` have left once the row is learned
    leaving: Array  # int32 (m,): slots of the points that leave, in this order


class Labels(NamedTuple):
    """Keys and times of the points with which a stream starts."""

    keys: Sequence[Key | None]  # None means the arrival number
    times: Array  # NaN if not given
    clock: float  # the latest time of all rows of the table

    @classmethod
    def of(cls, keys: Sequence[Key | None], times: Array, places: Array) -> Labels:
        """Return the labels of the rows at these places of a table."""
        return cls([keys[place] for place in places.tolist()], np.asarray(times[places]), _latest(times))

    @classmethod
    def of_copies(cls, keys: Sequence[Key | None], times: Array, copies: Array, numbers: Array) -> Labels:
        """Return the labels of copies of the rows of a table; `numbers` count all copies from 0."""
        ends = np.cumsum(copies)
        places = np.searchsorted(ends, numbers, side="right")
        turns = numbers - (ends - copies)[places]
        own = copied_keys([keys[place] for place in places.tolist()], turns=turns)
        return cls(own, np.asarray(times[places]), _latest(times[copies > 0]))


class PointStore:
    """The arrival, rank, time and key of the points held, by slot; `Points` has their values.

    Slots of points that leave are reused only after `release`: until then their values are still needed.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.arrivals = np.empty(0, np.int64)  # NONE in a free slot
        self.ranks = np.empty(0)
        self.times = np.empty(0)  # NaN if not given
        self.keys: list[Key | None] = []
        self.slot_of: dict[Key, int] = {}
        self.n_seen = 0  # rows seen so far, held or not
        self.clock = -math.inf  # the latest time seen
        self.floor = -math.inf  # the highest rank ever rejected
        self._newest = NONE  # the slot of the latest arrival, if it is held
        self._has_numbered = False  # whether an integer was given as a key, which may collide with an arrival
        self._has_copies = False  # whether a row with a key has further copies
        self._queue: list[tuple[float, int, int]] = []  # a heap of (rank, arrival, slot) of the points held
        self._free: list[int] = []  # a heap, so that the next slot depends only on which are free

    def __len__(self) -> int:
        return len(self.slot_of)

    def copy(self) -> PointStore:
        """Return a store with the same points."""
        twin = copy(self)
        for name, part in vars(self).items():
            if isinstance(part, np.ndarray | list | dict):
                setattr(twin, name, part.copy())
        return twin

    @property
    def capacity(self) -> int:
        """The number of slots, in use or free."""
        return len(self.arrivals)

    @property
    def _most(self) -> float:
        """The maximum number of points."""
        return self.policy.n or math.inf

    @property
    def takes_all(self) -> bool:
        """Whether every point is kept, and the oldest leave."""
        return not (self.policy.needs_times or self.policy.is_random)

    @property
    def held(self) -> Array:
        """The slots in use, by order of arrival."""
        slots = np.flatnonzero(self.arrivals != NONE)
        return slots[np.argsort(self.arrivals[slots])]

    @property
    def held_keys(self) -> list[Key]:
        """The keys of the points held, by order of arrival."""
        return [self.keys[slot] for slot in self.held.tolist()]

    @property
    def newest_key(self) -> Key | None:
        """The key of the latest arrival, if it is held."""
        slot = self._newest
        return None if slot == NONE else self.keys[slot]

    def reserve(self, capacity: int) -> None:
        """Allocate at least `capacity` slots."""
        more = capacity - self.capacity
        if more <= 0:
            return
        free, keys = self._free + list(range(self.capacity, capacity)), self.keys + [None] * more
        heapq.heapify(free)
        arrivals = np.append(self.arrivals, np.full(more, NONE))
        ranks, times = np.append(self.ranks, np.zeros(more)), np.append(self.times, np.zeros(more))
        self.arrivals, self.ranks, self.times, self.keys, self._free = arrivals, ranks, times, keys, free

    def check_keys(self, keys: Sequence[Key | None]) -> None:
        """Raise if a new key is already in use or occurs twice."""
        if self._has_numbered or any(key is not None for key in keys):
            check_new_keys(keys, self.n_seen, self.slot_of.__contains__)

    def slots_of(self, keys: Sequence[Key], limits: Array | None = None) -> list[int]:
        """Return the slots of points to delete: all copies of rows with these keys, or `limits` of each."""
        copies: dict[Key, list[Key]] = {}
        for key in self.held_keys if self._has_copies else []:
            row = key_of_row(key)
            if row != key:
                copies.setdefault(row, []).append(key)
        slots: list[int] = []
        for i, key in enumerate(keys):
            held = [*([key] if key in self.slot_of else []), *copies.get(key, [])]
            n = len(held) if limits is None else int(limits[i])
            if not held:
                raise KeyError(f"no point with key {key!r} is held. Nothing was deleted")
            if n > len(held):
                raise ValueError(f"only {len(held)} of {n} copies with key {key!r} are held. Nothing was deleted")
            slots += [self.slot_of[one] for one in held[:n]]
        if len(set(keys)) < len(keys):
            raise ValueError("a key occurs more than once: list each key once. Nothing was deleted")
        return list(dict.fromkeys(slots))  # a row and one of its copies may both be listed

    def begin_with(self, keys: Sequence[Key | None], times: Array, draws: Array) -> Array:
        """Hold the rows of a table that the policy keeps; return their places, ascending.

        They are the same points that `admit` would hold, in slots by order of arrival.
        """
        n, clock = len(keys), _latest(times)
        ranks = self.policy.ranks(np.arange(n), times, draws)
        alive = np.flatnonzero(ranks > self.policy.floor(clock))
        n_kept = int(min(len(alive), self._most))
        order = alive[np.argsort(ranks[alive], kind="stable")]  # of equal ranks the first to arrive leaves first
        kept, gone = np.sort(order[len(order) - n_kept :]), order[: len(order) - n_kept]
        floor = float(ranks[gone[-1]]) if len(gone) else -math.inf
        self.hold(kept, ranks[kept], Labels.of(keys, times, kept), n, floor)
        return kept

    def hold(self, arrivals: Array, ranks: Array, labels: Labels, n_seen: int, floor: float) -> None:
        """Hold these of `n_seen` rows, in order of arrival; `floor` is the highest rank of the others."""
        self.n_seen, self.clock, self.floor = n_seen, labels.clock, floor
        names = [place if key is None else key for place, key in zip(arrivals.tolist(), labels.keys, strict=True)]
        self.restore(arrivals, ranks, labels.times, names)
        self._newest = len(arrivals) - 1 if len(arrivals) and arrivals[-1] == n_seen - 1 else NONE

    def hold_draw(self, arrivals: Array, labels: Labels, draws: Array, least: Array, n_seen: int) -> None:
        """Hold a draw from `n_seen` rows, in order of arrival, given the draws from Exp(1) of the rows.

        `least` holds the smallest of the rows that are left out, and is empty if there are none.
        """
        floors = self.policy.ranks(least, least, least)
        ranks = self.policy.ranks(arrivals, labels.times, draws)
        self.hold(arrivals, ranks, labels, n_seen, float(floors.max(initial=-np.inf)))

    def admit(self, keys: Sequence[Key | None], times: Array, draws: Array) -> Schedule:
        """Add points one after another, and remove others by the policy."""
        if self.takes_all:
            return self._pass_through(keys, times)
        n, most = len(keys), self._most
        slots, until = np.full(n, NONE, np.int32), np.empty(n, np.int32)
        leaving: list[int] = []
        ranks = self.policy.ranks(np.arange(self.n_seen, self.n_seen + n), times, draws).tolist()
        for i, (rank, time) in enumerate(zip(ranks, times.tolist(), strict=True)):
            self.clock = max(self.clock, time)
            expired = self.policy.floor(self.clock)
            while len(self) and self._lowest() <= expired:
                self._leave(leaving)
            if rank > expired and rank >= self.floor:
                if len(self) < most or rank >= self._lowest():
                    slots[i] = self._take_in(rank, time, keys[i])
                else:
                    self.floor = rank
            self.n_seen += 1
            if len(self) > most:  # of equal ranks the first to arrive leaves first
                self.floor = self._lowest()
                self._leave(leaving)
            until[i] = len(leaving)
        self._newest = int(slots[-1]) if n and slots[-1] not in leaving else NONE
        return Schedule(slots, until, np.array(leaving, np.int32))

    def _pass_through(self, keys: Sequence[Key | None], times: Array) -> Schedule:
        """Admit all points to a window by order of arrival; the oldest leave first.

        The queue of such a window is fully sorted, not only a heap.
        """
        assert self.policy.n is not None
        n, n_free = len(keys), self.policy.n - len(self)
        slots = []
        for key, time in zip(keys, times.tolist(), strict=True):
            slots.append(self._take_in(float(self.n_seen), time, key))
            self.clock = max(self.clock, time)
            self.n_seen += 1
        n_leaving = max(n - n_free, 0)
        leaving = [slot for _, _, slot in self._queue[:n_leaving]]
        if leaving:
            self.floor = self._queue[n_leaving - 1][0]
            del self._queue[:n_leaving]
            self._forget(leaving)
        self._newest = slots[-1] if n and slots[-1] not in leaving else NONE
        until = [max(i - n_free, 0) for i in range(1, n + 1)]
        return Schedule(np.array(slots, np.int32), np.array(until, np.int32), np.array(leaving, np.int32))

    @property
    def is_full(self) -> bool:
        """Whether the next point to be kept takes the place of another."""
        return len(self.slot_of) == self.policy.n

    def replace_oldest(self, key: Key | None, time: float) -> Schedule:
        """Admit one point to a full window by order of arrival, as `admit` does; the oldest leaves."""
        self._newest = slot = self._take_in(float(self.n_seen), time, key)
        self.clock = max(self.clock, time)
        self.n_seen += 1
        self.floor, _, gone = self._queue.pop(0)
        self._forget([gone])
        return Schedule(np.array([slot], np.int32), np.ones(1, np.int32), np.array([gone], np.int32))

    def remove(self, slots: Iterable[int]) -> None:
        """Remove points on request."""
        self._forget(list(slots))
        self._line_up()  # removes their ranks too

    def release(self, slots: Iterable[int]) -> None:
        """Free the slots of points that left."""
        for slot in slots:
            heapq.heappush(self._free, int(slot))

    def restore(self, arrivals: Array, ranks: Array, times: Array, keys: Sequence[Key]) -> None:
        """Restore the points of a saved stream: all slots, and the keys of points held by order of arrival."""
        self.arrivals, self.ranks, self.times = arrivals, ranks, times
        self.keys = [None] * len(arrivals)
        for slot, key in zip(self.held.tolist(), keys, strict=True):
            self.keys[slot] = key
            self.slot_of[key] = slot
            self._has_numbered |= isinstance(key, int) and key != arrivals[slot]
            self._has_copies |= _is_copy(key)
        self._free = np.flatnonzero(arrivals == NONE).tolist()
        self._line_up()

    def check(self) -> None:
        """Raise ValueError if the restored state is inconsistent."""
        if len(self) != len(self.held):
            raise ValueError("keys of points must be unique")
        arrivals = self.arrivals[self.held]
        if len(set(arrivals.tolist())) < len(arrivals) or (arrivals < 0).any() or (arrivals >= self.n_seen).any():
            raise ValueError("arrivals of points must be distinct and below the number of rows seen")
        ranks, times = self.ranks[self.held], self.times[self.held]
        is_free = self.arrivals == NONE
        if (self.ranks[is_free] != 0).any() or (self.times[is_free] != 0).any():
            raise ValueError("unused slots must be empty")
        if not self.clock < math.inf or (times > self.clock).any():  # False for NaN
            raise ValueError("the clock must be finite and not earlier than the times of points")
        highest = math.inf if self.policy.is_random else self.clock if self.policy.needs_times else self.n_seen
        if not self.floor <= highest:
            raise ValueError(f"the highest rejected rank must be at most {highest}; got {self.floor}")
        if np.isinf(times).any() or np.isnan(ranks).any() or (self.policy.needs_times and np.isnan(times).any()):
            raise ValueError("ranks and times of points must be numbers")
        if not self.policy.is_random and (ranks != self.policy.ranks(arrivals, times, np.empty(0))).any():
            raise ValueError("ranks of points must be those of the window")
        is_due = (ranks > self.policy.floor(self.clock)) & (ranks >= self.floor)
        if len(self) > self._most or not is_due.all():
            raise ValueError("the points held must be those that the window keeps")

    def _leave(self, leaving: list[int]) -> None:
        """Remove the point of lowest rank."""
        leaving.append(heapq.heappop(self._queue)[2])
        self._forget(leaving[-1:])

    def _take_in(self, rank: float, time: float, key: Key | None) -> int:
        slot, arrival = heapq.heappop(self._free), self.n_seen
        self._has_numbered |= isinstance(key, int)
        self._has_copies |= _is_copy(key)
        key = arrival if key is None else key
        self.arrivals[slot], self.ranks[slot], self.times[slot] = arrival, rank, time
        self.keys[slot], self.slot_of[key] = key, slot
        heapq.heappush(self._queue, (rank, arrival, slot))
        return slot

    def _forget(self, slots: list[int]) -> None:
        """Remove the points in `slots` from all but the queue."""
        for slot in slots:
            key = self.keys[slot]
            assert key is not None
            del self.slot_of[key]
            self.keys[slot] = None
            self.arrivals[slot], self.ranks[slot], self.times[slot] = NONE, 0.0, 0.0

    def _lowest(self) -> float:
        """Return the lowest rank held; there must be one."""
        return self._queue[0][0]

    def _line_up(self) -> None:
        held = self.held
        self._queue = list(zip(self.ranks[held].tolist(), self.arrivals[held].tolist(), held.tolist(), strict=True))
        heapq.heapify(self._queue)


def _latest(times: Array) -> float:
    """Return the latest of the times, ignoring NaN."""
    return float(np.fmax.reduce(times, initial=-math.inf))


def check_new_keys(keys: Sequence[Key | None], first: int, is_taken: Callable[[Key], bool]) -> None:
    """Raise if a key of new rows, starting with arrival `first`, is taken or occurs twice."""
    coming = set()
    for arrival, given in enumerate(keys, first):
        key = arrival if given is None else given
        if key in coming or is_taken(key):
            raise ValueError(
                f"key {key!r} is already in use: every row needs a unique key. A row without a key gets its arrival "
                "number as key, so pass integer keys for all rows or for none"
            )
        coming.add(key)


def places_of(rows: Array, points: Array, numbers: Array | None = None) -> Array:
    """Return a different place in `points` for each of the rows, the first places if several points are equal.

    Errors name rows by their `numbers`, by default their places.
    """
    by_value: dict[bytes, list[int]] = {}
    for place in range(len(points) - 1, -1, -1):
        by_value.setdefault((points[place] + 0.0).tobytes(), []).append(place)
    places = np.empty(len(rows), np.int64)
    for i, row in enumerate(rows + 0.0):  # -0.0 equals 0.0, but not byte for byte
        equal = by_value.get(row.tobytes())
        if not equal:
            number = i if numbers is None else numbers[i]
            raise ValueError(f"row {number} is not held, or fewer times than given. Nothing was deleted")
        places[i] = equal.pop()
    return places


def copied_keys(
    keys: Sequence[Key | None], copies: Array | None = None, *, turns: Array | None = None
) -> list[Key | None]:
    r"""Return a key for each copy of rows: the first copy has the key of the row, the others are numbered.

    Parameters
    ----------
    keys : sequence of int, str or None
        Keys of the rows; copies of a row without a key have none either.
    copies : array of int
        Number of copies of each row.
    turns : array of int
        The number of each copy within its row, from 0; instead of `copies`, if `keys` are already repeated.

    Examples
    --------
    >>> copied_keys(["ann", None, 7], np.array([2, 2, 2]))
    ['ann', 'ann\x1e1', None, None, 7, '\x1e7\x1e1']
    >>> [key_of_row(key) for key in ("ann\x1e1", 7, "\x1e7\x1e1")]
    ['ann', 7, 7]
    """
    if copies is not None:
        keys = [key for key, n in zip(keys, copies.tolist(), strict=True) for _ in range(n)]
        turns = np.arange(len(keys)) - np.repeat(np.cumsum(copies) - copies, copies)
    assert turns is not None
    return [
        key if key is None or not turn else f"{_marked(key)}{_COPY}{turn}"
        for key, turn in zip(keys, turns.tolist(), strict=True)
    ]


def _marked(key: Key) -> str:
    """Return a key as text, with integers marked."""
    if isinstance(key, int):
        return f"{_COPY}{key}"
    if _COPY in key:
        raise ValueError(f"the key {key!r} contains the control character {_COPY!r}: remove it")
    return key


def _is_copy(key: Key | None) -> bool:
    """Return whether a key belongs to a further copy of a row."""
    return isinstance(key, str) and _COPY in key


def key_of_row(key: Key) -> Key:
    """Return the key of the row of which a point is a copy."""
    if isinstance(key, int) or not _is_copy(key):
        return key
    row = key.rpartition(_COPY)[0]
    is_number = row.startswith(_COPY) and row[1:].removeprefix("-").isdecimal()
    return int(row[1:]) if is_number else row


def point_keys(
    names: Iterable[str], is_taken: Callable[[str], bool] = lambda key: False, *, n_before: int = 0
) -> list[str]:
    r"""Return a key for each row: its name, with the row number appended if the name is taken.

    Parameters
    ----------
    names : iterable of str
    is_taken : callable
        Whether the forest already holds a key.
    n_before : int
        Number of earlier rows.

    Examples
    --------
    >>> point_keys(["ann", "bob", "ann"], is_taken={"bob"}.__contains__, n_before=7)
    ['ann', 'bob\x1f9', 'ann\x1f10']
    """
    keys: dict[str, None] = {}  # in order
    for number, name in enumerate(names, n_before + 1):
        if _SEPARATOR in name:
            raise ValueError(f"the name {name!r} contains the control character {_SEPARATOR!r}: remove it")
        keys[f"{name}{_SEPARATOR}{number}" if name in keys or is_taken(name) else name] = None
    return list(keys)


def distinct_keys(
    keys: Iterable[str | None], is_taken: Callable[[Key], bool], *, n_before: int = 0
) -> tuple[str | None, ...]:
    r"""Return the keys of rows that are learned again: unchanged, or with the row number appended if taken.

    Examples
    --------
    >>> distinct_keys(["ann", None, "ann", "bob\x1f3"], {"bob\x1f3"}.__contains__, n_before=7)
    ('ann', None, 'ann\x1f10', 'bob\x1f11')
    """
    distinct: dict[str, None] = {}
    found: list[str | None] = []
    for number, key in enumerate(keys, n_before + 1):
        is_known = key is not None and (key in distinct or is_taken(key))
        found.append(f"{key.partition(_SEPARATOR)[0]}{_SEPARATOR}{number}" if key and is_known else key)
        distinct |= dict.fromkeys(name for name in found[-1:] if name is not None)
    return tuple(found)


def keys_named(name: str, keys: Iterable[Key]) -> list[Key]:
    r"""Return the `keys` of rows with this name; the name of an unnamed row is its number.

    Examples
    --------
    >>> keys_named("ann", ["ann", "anna", 3, "ann\x1f2"])
    ['ann', 'ann\x1f2']
    >>> keys_named("3", ["ann", 3])
    [3]
    """
    return [key for key in keys if str(key_of_row(key)).partition(_SEPARATOR)[0] == name]
