"""The readings that each shingle held depends on, and their keys."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import pairwise

from polyaforest.forest.point_store import Key, check_new_keys


class Provenance:
    """The shingles held, the readings that each depends on, and their keys.

    A reading is known while a shingle held depends on it, or while a later result may.
    """

    def __init__(self, recent: int = 0) -> None:
        self.spans: dict[Key, tuple[int, int]] = {}  # oldest and newest reading of each shingle held, by its key
        self.names: dict[int, Key] = {}  # given keys of readings, by number
        self._numbers: dict[Key, int] = {}  # the inverse
        self._uses: dict[int, int] = {}  # number of shingles held that depend on each reading
        self._has_numbered = False  # whether an integer was ever given as a key: it may equal an arrival number
        self._recent = recent  # the oldest reading that later results may depend on

    def key_of(self, number: int) -> Key:
        """Return the key of a reading: the one given, or its number."""
        return self.names.get(number, number)

    def number_of(self, key: Key, n_seen: int) -> int | None:
        """Return the number of the reading with a key; None if it is unknown."""
        if key in self._numbers:
            return self._numbers[key]
        is_number = isinstance(key, int) and key not in self.names and self._is_known(key, n_seen)
        return key if is_number else None  # type: ignore[return-value]

    def known(self, n_seen: int) -> list[int]:
        """Return the numbers of all known readings, ascending."""
        return sorted({*self._uses, *range(self._recent, n_seen)})

    def check_keys(self, keys: Sequence[Key | None], n_seen: int) -> None:
        """Raise ValueError if a new key is already in use or occurs twice."""
        if self._has_numbered or any(key is not None for key in keys):
            check_new_keys(keys, n_seen, lambda key: self.number_of(key, n_seen) is not None)

    def enter_names(self, keys: Sequence[Key | None], first: int) -> None:
        """Add the keys of new readings."""
        for number, key in enumerate(keys, first):
            if key is not None:
                self._has_numbered |= isinstance(key, int)
                self.names[number], self._numbers[key] = key, number

    def enter(self, oldest: Iterable[int], newest: Iterable[int], held: Container[Key]) -> None:
        """Add the readings of shingles that are held."""
        uses, turns = self._uses, dict[int, int]()  # by reading: shingles that start there minus those that end
        for first, last in zip(oldest, newest, strict=True):
            key = self.names.get(last, last)
            if key in held:
                self.spans[key] = first, last
                turns[first] = turns.get(first, 0) + 1
                turns[last + 1] = turns.get(last + 1, 0) - 1
        n, places = 0, sorted(turns)
        for begin, end in pairwise(places):
            n += turns[begin]
            for number in range(begin, end) if n else ():
                uses[number] = uses.get(number, 0) + n

    def prune(self, held: Mapping[Key, object], recent: int) -> None:
        """Remove shingles that are no longer held, and readings that only they depend on."""
        n_left, left = len(self.spans) - len(held), list[Key]()
        for key in self.spans:
            if len(left) == n_left:
                break
            if key not in held:
                left.append(key)
        before, self._recent = self._recent, recent
        for number in range(before, recent):
            if number not in self._uses:
                self._forget_name(number)
        for key in left:
            first, last = self.spans.pop(key)
            for number in range(first, last + 1):
                self._uses[number] -= 1
                if not self._uses[number]:
                    del self._uses[number]
                    if number < self._recent:
                        self._forget_name(number)

    def with_any(self, numbers: Iterable[int]) -> list[Key]:
        """Return the keys of the shingles that depend on any of these readings."""
        ascending = sorted(numbers)
        found = []
        for key, (first, last) in self.spans.items():
            place = bisect_left(ascending, first)
            if place < len(ascending) and ascending[place] <= last:
                found.append(key)
        return found

    def check(self, n_seen: int) -> None:
        """Raise ValueError if the state is inconsistent."""
        lasts = [last for _, last in self.spans.values()]
        if any(not 0 <= first <= last < n_seen for first, last in self.spans.values()) or lasts != sorted(set(lasts)):
            raise ValueError("its shingles refer to unseen readings")
        if len(self._numbers) != len(self.names) or not all(self._is_known(number, n_seen) for number in self.names):
            raise ValueError("its keys belong to unknown readings")
        if any(isinstance(key, int) and key not in self.names and self._is_known(key, n_seen) for key in self._numbers):
            raise ValueError("two of its readings have the same key")

    def _is_known(self, number: int, n_seen: int) -> bool:
        return number in self._uses or self._recent <= number < n_seen

    def _forget_name(self, number: int) -> None:
        if number in self.names:
            del self._numbers[self.names.pop(number)]
