"""What a series remembers beside its forest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isinf
from typing import Any, Self

import numpy as np

from polyaforest._arrays import NONE, Array
from polyaforest._files import Arrays, Header
from polyaforest._holdings import Key
from polyaforest._state import pack_keys, unpack_keys
from polyaforest._validation import LARGEST
from polyaforest.timeseries._ledger import Ledger
from polyaforest.timeseries._shingles import Pattern, Track, checked_pattern


@dataclass
class Memory:
    """The last steps of a series, who had a part in what is held, and the scale by which features were weighed."""

    pattern: Pattern  # by which the series began, whatever parameters say by now
    track: Track
    ledger: Ledger = field(default_factory=Ledger)
    n_seen: int = 0  # readings that have come so far
    is_timed: bool | None = None  # whether they have times; None while nothing has come
    spread: Array | None = None  # of the features when they were last weighed, if anybody wants to know
    weighed_at: int = 0  # readings that had come then

    @property
    def n_features(self) -> int:
        """Features of a shingle."""
        return self.pattern.n_features(self.track.values.shape[1])

    @property
    def recent(self) -> int:
        """The oldest reading that shingles to come may be made of; the next one, if there is none."""
        oldest = self.track.oldest
        return self.n_seen if oldest is None else oldest

    # ---- files ------------------------------------------------------------------------------------------------------

    def state(self) -> tuple[Header, Arrays]:
        """All of it, for a file."""
        header = {
            "pattern": {**self.pattern._asdict(), "calendar": list(self.pattern.calendar)},
            "n_seen": self.n_seen,
            "is_timed": self.is_timed,
            "weighed_at": self.weighed_at,
        }
        names = self.ledger.names
        arrays = {
            **{name: np.asarray(part) for name, part in self.track._asdict().items()},
            "spans": np.array(list(self.ledger.spans.values()), np.int64).reshape(-1, 2),
            "named": np.array(list(names), np.int64),
            "names": pack_keys(list(names.values())),
        }
        return header, arrays if self.spread is None else {**arrays, "spread": self.spread}

    @classmethod
    def of_state(cls, header: Header, arrays: Arrays, n_channels: Any, held: Sequence[Key]) -> Self:
        """What `state` told of, beside a forest that holds shingles with the keys `held`."""
        values, numbers, since, times, every = (arrays[name] for name in Track._fields)
        track = Track(values, numbers, since, times, float(every))
        pattern = checked_pattern(**header["pattern"])
        counts = {name: header[name] for name in ("n_seen", "is_timed", "weighed_at")}
        memory = cls(pattern, track, spread=arrays.get("spread"), **counts)
        memory._check(n_channels)
        memory._restore(arrays["spans"], arrays["named"], unpack_keys(arrays["names"]), held)
        return memory

    def _restore(self, spans: Array, named: Array, names: Sequence[Key], held: Sequence[Key]) -> None:
        """Make the ledger anew."""
        self.ledger = Ledger(self.recent)
        if named.shape != (len(names),) or named.dtype != np.int64:
            raise ValueError("its keys are not those of so many readings")
        for number, name in zip(named.tolist(), names, strict=True):
            self.ledger.enter_names([name], number)
        if spans.shape != (len(held), 2) or spans.dtype != np.int64:
            raise ValueError(f"it does not tell the readings of its {len(held)} shingles")
        oldest, newest = spans.T.tolist()
        if list(held) != [self.ledger.key_of(last) for last in newest]:
            raise ValueError("the keys of its shingles are not those of their newest readings")
        fewest, most = self.pattern.readings_before_the_newest
        n_before = spans[:, 1] - spans[:, 0]
        if (n_before < fewest).any() or (n_before > most).any():
            raise ValueError("its shingles are made of readings that cannot be theirs")
        self.ledger.enter(oldest, newest, set(held))
        self.ledger.check(self.n_seen)

    def _check(self, n_channels: Any) -> None:
        """Raise unless steps and scale can be those of a series."""
        if any(type(count) is not int or count < 0 for count in (n_channels, self.n_seen, self.weighed_at)):
            raise ValueError("it does not say how many channels and readings it has")
        n = len(self.track.values)
        kinds = {"values": np.float64, "numbers": np.int64, "since": np.int64, "times": np.float64}
        for name, kind in kinds.items():
            part, shape = getattr(self.track, name), (n, n_channels) if name == "values" else (n,)
            if part.shape != shape or part.dtype != kind:
                raise ValueError(f"the {name} of its last steps are of shape {part.shape} and dtype {part.dtype}")
        self._check_steps(n)
        self._check_times(self.track.times[self.track.numbers != NONE])
        spread = self.spread
        if spread is not None and (
            spread.shape != (self.n_features,) or spread.dtype != np.float64 or not (spread > 0).all()
        ):
            raise ValueError("the spread of its features is not positive")

    def _check_steps(self, n: int) -> None:
        track, readings = self.track, self.track.numbers[self.track.numbers != NONE]
        is_newest = np.array_equal(readings, np.arange(self.n_seen - len(readings), self.n_seen))
        is_told = (track.since >= 0) & (track.since < self.n_seen)
        most = max(self.pattern.room, self.pattern.shingle)
        if not is_newest or not is_told.all() or n > most or (n and track.numbers[-1] == NONE):
            raise ValueError("its last steps are not those of the readings that came last")
        if (np.abs(track.values) > LARGEST).any():  # which NaN is not
            raise ValueError("its last readings are too large")

    def _check_times(self, times: Array) -> None:
        if self.is_timed not in (True, False, None) or (np.isfinite(times) != bool(self.is_timed)).any():
            raise ValueError("its last readings have times, or have none, against what it says")
        if (np.diff(times) < 0).any() or self.track.every < 0 or isinf(self.track.every):
            raise ValueError("the times of its last readings go back, or do not go on")
