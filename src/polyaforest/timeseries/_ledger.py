"""Which readings have a part in which of the shingles held, and by what names they go."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable, Mapping, Sequence

from polyaforest.forest.point_store import Key


class Ledger:
    """The shingles held, the readings that each is made of, and the keys of those readings.

    A reading is known for as long as a shingle held is made of it, or one to come may be.
    """

    def __init__(self, recent: int = 0) -> None:
        self.spans: dict[Key, tuple[int, int]] = {}  # of each shingle held, by its key: its oldest and newest reading
        self.names: dict[int, Key] = {}  # keys that were given to readings, by their number
        self._numbers: dict[Key, int] = {}  # the other way round
        self._uses: dict[int, int] = {}  # in how many of the shingles held each reading has a part
        self._has_numbered = False  # whether a whole number was ever given as a key, which an arrival may have as well
        self._recent = recent  # the oldest reading that shingles to come may be made of

    def key_of(self, number: int) -> Key:
        """The key of a reading: the one that was given, or else its number."""
        return self.names.get(number, number)

    def number_of(self, key: Key, n_seen: int) -> int | None:
        """The number of a reading that is known by this key."""
        if key in self._numbers:
            return self._numbers[key]
        is_number = isinstance(key, int) and key not in self.names and self._is_known(key, n_seen)
        return key if is_number else None  # type: ignore[return-value]

    def known(self, n_seen: int) -> list[int]:
        """The numbers of all readings that are known, ascending."""
        return sorted({*self._uses, *range(self._recent, n_seen)})

    def refuse_keys(self, keys: Sequence[Key | None], n_seen: int) -> None:
        """Raise if a key that is to come is known already, or comes twice."""
        if not self._has_numbered and all(key is None for key in keys):
            return
        coming = set()
        for number, given in enumerate(keys, n_seen):
            key = number if given is None else given
            if key in coming or self.number_of(key, n_seen) is not None:
                raise ValueError(
                    f"key {key!r} is held already: every reading needs a key of its own. A row without one goes by the "
                    "number of its arrival, so give numbers to all rows or to none"
                )
            coming.add(key)

    def enter_names(self, keys: Sequence[Key | None], first: int) -> None:
        """Note the keys of readings that come."""
        for number, key in enumerate(keys, first):
            if key is not None:
                self._has_numbered |= isinstance(key, int)
                self.names[number], self._numbers[key] = key, number

    def enter(self, oldest: Iterable[int], newest: Iterable[int], held: Container[Key]) -> None:
        """Note which readings shingles are made of, if they are held."""
        uses = self._uses
        for first, last in zip(oldest, newest, strict=True):
            key = self.names.get(last, last)
            if key in held:
                self.spans[key] = first, last
                for number in range(first, last + 1):
                    uses[number] = uses.get(number, 0) + 1

    def settle(self, held: Mapping[Key, object], recent: int) -> None:
        """Strike out what is no longer held, the oldest shingles usually, and the readings that were only in those."""
        n_left, left = len(self.spans) - len(held), list[Key]()
        for key in self.spans:
            if len(left) == n_left:
                break
            if key not in held:
                left.append(key)
        before, self._recent = self._recent, recent
        for number in range(before, recent):
            self._forget_unless_known(number)
        for key in left:
            self._strike_out(key)

    def with_any(self, numbers: Iterable[int]) -> list[Key]:
        """The keys of the shingles that any of these readings has a part in."""
        ascending = sorted(numbers)
        found = []
        for key, (first, last) in self.spans.items():
            place = bisect_left(ascending, first)
            if place < len(ascending) and ascending[place] <= last:
                found.append(key)
        return found

    def check(self, n_seen: int) -> None:
        """Raise unless what was read from a file can be what it says."""
        lasts = [last for _, last in self.spans.values()]
        if any(not 0 <= first <= last < n_seen for first, last in self.spans.values()) or lasts != sorted(set(lasts)):
            raise ValueError("its shingles are not made of readings that have come")
        if len(self._numbers) != len(self.names) or not all(self._is_known(number, n_seen) for number in self.names):
            raise ValueError("its keys are not those of readings that it knows")
        if any(isinstance(key, int) and key not in self.names and self._is_known(key, n_seen) for key in self._numbers):
            raise ValueError("two of its readings have the same key")

    def _is_known(self, number: int, n_seen: int) -> bool:
        return number in self._uses or self._recent <= number < n_seen

    def _strike_out(self, key: Key) -> None:
        """Forget a shingle, and the readings that have no part in any other."""
        first, last = self.spans.pop(key)
        for number in range(first, last + 1):
            self._uses[number] -= 1
            if not self._uses[number]:
                del self._uses[number]
                if number < self._recent:
                    self._forget_name(number)

    def _forget_unless_known(self, number: int) -> None:
        if number not in self._uses:
            self._forget_name(number)

    def _forget_name(self, number: int) -> None:
        if number in self.names:
            del self._numbers[self.names.pop(number)]
