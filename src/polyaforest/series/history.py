"""The state of a series, apart from its forests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Self

import numpy as np

from polyaforest.forest.integrity import Layout, check_layout
from polyaforest.forest.point_store import Key
from polyaforest.kernels.arrays import NONE, Array, is_ascending
from polyaforest.series.contexts import LONGEST_PERIOD, MOST_PERIODS
from polyaforest.series.novelty import KNOWN, KnownReadings
from polyaforest.series.provenance import Provenance
from polyaforest.series.shingles import Alignment, Pattern, Track, align, checked_pattern
from polyaforest.storage.modelfile import Arrays, Header
from polyaforest.storage.state import pack_keys, unpack_keys
from polyaforest.util import schema

_STATE = schema.record(
    {
        "pattern": schema.record(
            {
                "shingle": schema.either(schema.nothing, schema.whole(1)),
                "max_gap": schema.whole(0),
                "difference": schema.flag,
                "calendar": schema.names,
                "timezone": schema.text,
            }
        ),
        "n_seen": schema.whole(),
        "is_timed": schema.either(schema.nothing, schema.flag),
        "weighed_at": schema.whole(),
    }
)
_LAYOUT: Layout = {  # S steps, C channels, L known readings, N shingles held, M keyed readings, D features, K bytes
    "values": (np.float64, "SC"),
    "numbers": (np.int64, "S"),
    "since": (np.int64, "S"),
    "times": (np.float64, "S"),
    "every": (np.float64, ""),
    "periods": (np.int64, "R"),
    "spans": (np.int64, "N2"),
    "named": (np.int64, "M"),
    "names": (np.uint8, "K"),
    "spread": (np.float64, "D"),
    "readings": (np.float64, "LC"),
    "deviations": (np.float64, "LC"),
    "novelties": (np.float64, "H"),
}


_MOST_UNREAD = 2**16  # channels of a series that keeps no readings


def pattern_of_state(header: Header) -> Pattern:
    """Return the pattern of a series with a state from `SeriesHistory.state`."""
    _STATE(header, "series")
    return checked_pattern(**header["pattern"])


def check_channels(values: Array, n_channels: int) -> None:
    """Raise ValueError if readings in a state do not have so many channels, before each of them takes memory."""
    shape = values.shape
    if len(shape) != 2 or shape[1] != n_channels or n_channels > max(values.size, _MOST_UNREAD):
        raise ValueError(f"array values: has shape {shape}, not {n_channels} channels")


@dataclass
class SeriesHistory:
    """The last steps of a series, the readings of each shingle, and the scale of the feature weights."""

    pattern: Pattern  # that the series started with; parameters may have changed
    track: Track
    provenance: Provenance = field(default_factory=Provenance)
    n_seen: int = 0  # number of readings so far
    is_timed: bool | None = None  # whether readings have times; None before the first
    spread: Array | None = None  # of the features at the last change of weights; None if weights never change
    weighed_at: int = 0  # number of readings at that time
    known: KnownReadings = field(init=False)  # to compare new readings with; empty with shingles

    def __post_init__(self) -> None:
        self.known = KnownReadings(self.track.values.shape[1])

    def begin_at(self, number: int) -> None:
        """Count readings from `number`, as if the earlier ones were forgotten."""
        self.n_seen, self.provenance = number, Provenance(number)

    @property
    def n_features(self) -> int:
        """Number of features of a shingle."""
        return self.pattern.n_features(self.track.values.shape[1])

    @property
    def recent(self) -> int:
        """The oldest reading that later results may depend on; the next one if there is none."""
        oldest, of_known = self.track.oldest, self.n_seen - len(self.known)
        return of_known if oldest is None else min(oldest, of_known)

    def judge(self, aligned: Alignment, known: KnownReadings) -> Array:
        """Return the novelty of aligned rows, and add them to the known readings; NaN with shingles."""
        if self.pattern.shingle is not None:
            return np.full(len(aligned.rows), np.nan)
        return known.judge_then_learn(aligned.rows, aligned.deviations())

    def follow_rhythm(self, periods: tuple[int, ...]) -> None:
        """Change the periods."""
        self.track = self.track._replace(periods=periods)
        self.known.begin_rhythm()

    def forget(self, numbers: Iterable[int]) -> None:
        """Forget readings, with all steps and known readings before them, and all deviations from the rhythm."""
        for number in numbers:
            self.track = self.track.without(number)
            self.known.keep_last(self.n_seen - 1 - number)
        self.known.begin_rhythm()

    def align(self, rows: Array, stamps: Array) -> Alignment:
        """Align rows as the next readings."""
        return align(self.track, rows, stamps, self.n_seen, self.pattern)

    # ---- files ------------------------------------------------------------------------------------------------------

    def state(self) -> tuple[Header, Arrays]:
        """Return the state for a file."""
        header = {
            "pattern": {**self.pattern._asdict(), "calendar": list(self.pattern.calendar)},
            "n_seen": self.n_seen,
            "is_timed": self.is_timed,
            "weighed_at": self.weighed_at,
        }
        names = self.provenance.names
        arrays = {
            **{name: np.asarray(part) for name, part in self.track._asdict().items() if name != "periods"},
            "spans": np.array(list(self.provenance.spans.values()), np.int64).reshape(-1, 2),
            "named": np.array(list(names), np.int64),
            "names": pack_keys(list(names.values())),
        }
        if self.track.periods:
            arrays["periods"] = np.array(self.track.periods, np.int64)
        if self.pattern.shingle is None:
            arrays |= {"readings": self.known.readings, "novelties": self.known.novelties}
            if (deviations := self.known.deviations) is not None:
                arrays["deviations"] = deviations
        return header, arrays if self.spread is None else {**arrays, "spread": self.spread}

    @classmethod
    def of_state(cls, header: Header, arrays: Arrays, n_channels: int, held: Sequence[Key]) -> Self:
        """Return the history with a state from `state`, for forests that hold shingles with the keys `held`."""
        pattern = pattern_of_state(header)
        check_layout(arrays, _LAYOUT, {"C": n_channels, "N": len(held), "D": pattern.n_features(n_channels)})
        values, numbers, since, times = (arrays[name] for name in ("values", "numbers", "since", "times"))
        periods = tuple(arrays.get("periods", np.empty(0, np.int64)).tolist())
        track = Track(values, numbers, since, times, float(arrays["every"]), periods)
        counts = {name: header[name] for name in ("n_seen", "is_timed", "weighed_at")}
        memory = cls(pattern, track, spread=arrays.get("spread"), **counts)
        if pattern.shingle is None:
            readings = arrays["readings"]
            if len(readings) > KNOWN:
                raise ValueError(f"it has {len(readings)} known readings, more than {KNOWN}")
            memory.known = KnownReadings.of_state(readings, arrays.get("deviations"), arrays["novelties"])
        memory._check()
        memory._restore(arrays["spans"], arrays["named"], unpack_keys(arrays["names"]), held)
        return memory

    def _restore(self, spans: Array, named: Array, names: Sequence[Key], held: Sequence[Key]) -> None:
        """Rebuild the provenance."""
        self.provenance = Provenance(self.recent)
        for number, name in zip(named.tolist(), names, strict=True):
            self.provenance.enter_names([name], number)
        oldest, newest = spans.T.tolist()
        if list(held) != [self.provenance.key_of(last) for last in newest]:
            raise ValueError("the keys of its shingles differ from those of their newest readings")
        fewest, most = self.pattern.readings_before_the_newest
        n_before = spans[:, 1] - spans[:, 0]
        if (spans < 0).any() or (n_before < fewest).any() or (n_before > most).any():
            raise ValueError("its shingles refer to the wrong readings")
        self.provenance.enter(oldest, newest, set(held))
        self.provenance.check(self.n_seen)

    def _check(self) -> None:
        """Raise ValueError if the state is inconsistent."""
        if self.weighed_at > self.n_seen:
            raise ValueError(f"weighed_at is {self.weighed_at}, more than the {self.n_seen} readings seen")
        self._check_steps(len(self.track.values))
        self._check_times(self.track.times[self.track.numbers != NONE])
        self.known.check(self.n_seen, self.pattern.largest)
        if self.spread is not None and not ((self.spread > 0) & (self.spread < inf)).all():
            raise ValueError("array spread: the scale of a feature must be positive and finite")

    def _check_steps(self, n: int) -> None:
        track, readings = self.track, self.track.numbers[self.track.numbers != NONE]
        is_newest = np.array_equal(readings, np.arange(self.n_seen - len(readings), self.n_seen))
        own = self.n_seen - np.cumsum((track.numbers != NONE)[::-1])[::-1]  # the reading of each step, or the next one
        is_derived = (track.since >= np.maximum(own - self.pattern.max_gap, 0)) & (track.since <= own)  # from so near
        is_derived &= np.diff(track.since, prepend=0) >= 0
        most = max(self.pattern.room, self.pattern.n_to_measure)
        if not is_newest or not is_derived.all() or n > most or (n and track.numbers[-1] == NONE):
            raise ValueError("its last steps do not match its last readings")
        largest = self.pattern.largest
        if (np.abs(track.values) > largest).any():  # NaN is valid
            raise ValueError("its last readings are too large")

    def _check_times(self, times: Array) -> None:
        if np.isinf(times).any() or (np.isnan(times) == bool(self.is_timed)).any():
            raise ValueError(f"is_timed is {self.is_timed}, which contradicts its last readings")
        if self.is_timed and not is_ascending(times, strictly=False):
            raise ValueError("the times of its last readings decrease")
        if self.track.every < 0 or self.track.every == inf:
            raise ValueError(f"the time between its readings is {self.track.every}, out of range")
        if len(self.track.periods) > MOST_PERIODS or any(
            not 1 < period <= LONGEST_PERIOD for period in self.track.periods
        ):
            raise ValueError(f"its periods are {self.track.periods}, out of range")
