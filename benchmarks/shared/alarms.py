"""Alarms and labelled events: how many events are found, how many alarms are right, when alarms begin and end.

Flagged readings at most three apart are one alarm. Consecutive labelled readings are one event. An alarm hits an event
if the two overlap, or lie at most three readings apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.shared.metrics import average_precision

Array = NDArray[Any]

NEAR = 3  # readings between the flags of one alarm, between an alarm and its event, and around an event to ignore
FINER = 1.1  # factor between the numbers of flagged readings that are tried first


def events_of(y: Array) -> Array:
    """Return the first and last reading of each event, as rows."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], y != 0, [0]]).astype(np.int8)))
    return edges.reshape(-1, 2) - [0, 1]


def alarms_of(flags: Array, near: int = NEAR) -> Array:
    """Return the first and last reading of each alarm, as rows."""
    flagged = np.flatnonzero(flags)
    is_first = np.diff(flagged, prepend=-near - 1) > near
    is_last = np.append(is_first[1:], True)[: len(flagged)]
    return np.stack([flagged[is_first], flagged[is_last]], axis=1)


@dataclass(frozen=True)
class Tally:
    """Alarms and events of one or more series."""

    n_readings: int = 0
    n_events: int = 0
    n_found: int = 0  # events hit by an alarm
    n_alarms: int = 0
    n_hits: int = 0  # alarms that hit an event
    delays: tuple[int, ...] = ()  # of each event found: readings from its first to that of its first alarm
    ratios: tuple[float, ...] = ()  # of each event found: readings in its alarms, over its own

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))

    @property
    def recall(self) -> float:
        """Share of events found; NaN without events."""
        return self.n_found / self.n_events if self.n_events else np.nan

    @property
    def precision(self) -> float:
        """Share of alarms that hit an event; NaN without alarms."""
        return self.n_hits / self.n_alarms if self.n_alarms else np.nan

    @property
    def per_thousand(self) -> float:
        """Alarms per 1,000 readings."""
        return 1000 * self.n_alarms / self.n_readings if self.n_readings else np.nan

    @property
    def delay(self) -> float:
        """Median delay; NaN if no event is found."""
        return float(median(self.delays)) if self.delays else np.nan

    @property
    def length_ratio(self) -> float:
        """Median ratio of lengths; NaN if no event is found."""
        return float(median(self.ratios)) if self.ratios else np.nan


def tally(flags: Array, y: Array, near: int = NEAR) -> Tally:
    """Compare the alarms of a series with its events.

    An alarm that begins before its event has a delay of 0. If several alarms hit an event, their lengths add up.
    """
    alarms, events = alarms_of(flags, near), events_of(y)
    is_hit = (alarms[:, None, 0] <= events[:, 1] + near) & (alarms[:, None, 1] >= events[:, 0] - near)
    found = np.flatnonzero(is_hit.any(axis=0))
    lengths = alarms[:, 1] - alarms[:, 0] + 1
    delays = [max(0, int(alarms[is_hit[:, event], 0].min() - events[event, 0])) for event in found]
    ratios = [float(lengths[is_hit[:, event]].sum() / (np.ptp(events[event]) + 1)) for event in found]
    n_hits = int(is_hit.any(axis=1).sum())
    return Tally(len(y), len(events), len(found), len(alarms), n_hits, tuple(delays), tuple(ratios))


def soft_average_precision(y: Array, scores: Array, near: int = NEAR) -> float:
    """Return the average precision without unlabelled readings near an event; NaN if there is no event.

    A reading without a score ranks last.
    """
    if not np.any(y):
        return np.nan
    is_near = np.convolve(y != 0, np.ones(2 * near + 1), "same") > 0
    counts = (y != 0) | ~is_near
    _, ranks = np.unique(np.where(np.isnan(scores), -np.inf, scores), return_inverse=True)
    return average_precision((y[counts] != 0).astype(int), ranks[counts])


def limit_for(scores: Sequence[Array], n_alarms: int) -> float:
    """Return the highest limit, one for all series, at which scores of at least this much raise `n_alarms` alarms.

    Where equal scores raise too many at once, or the number is out of reach, there are fewer alarms. The limit is NaN,
    which no score reaches, if there can be none. A lower limit may also join alarms, so their number is no monotone
    function of the limit: flag more and more readings until there are enough alarms, then bisect.
    """
    ranked = -np.sort(-np.concatenate([one[~np.isnan(one)] for one in scores]))
    counts = {0: 0}
    for size in _growing(len(ranked)):
        counts[size] = _n_alarms(scores, ranked[size - 1])
        if counts[size] >= n_alarms:
            break
    enough = max(counts)
    if counts[enough] < n_alarms:
        most = max(counts.values())
        enough = min(size for size, count in counts.items() if count == most)
        return float(ranked[enough - 1]) if enough else np.nan
    few = max((size for size in counts if size < enough), default=0)
    while enough - few > 1:
        middle = (enough + few) // 2
        counts[middle] = _n_alarms(scores, ranked[middle - 1])
        few, enough = (few, middle) if counts[middle] >= n_alarms else (middle, enough)
    size = enough if counts[enough] == n_alarms else few
    return float(ranked[size - 1]) if size else np.nan


def _growing(largest: int) -> list[int]:
    """Return growing numbers of flagged readings, up to all of them."""
    sizes = [1]
    while sizes[-1] < largest:
        sizes.append(min(max(sizes[-1] + 1, int(sizes[-1] * FINER)), largest))
    return sizes[:largest]


def _n_alarms(scores: Iterable[Array], limit: float) -> int:
    """Return the number of alarms at a limit."""
    return sum(len(alarms_of(one >= limit)) for one in scores)
