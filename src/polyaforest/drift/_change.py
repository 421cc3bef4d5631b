"""A change of a stream: its kind by stated rules, its date, and its words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np

from polyaforest.core import schema
from polyaforest.core.arrays import Array
from polyaforest.core.validation import NamedRows
from polyaforest.drift.comparison import MIN_ROWS, compare, percent

LEAST = 128  # points of a reference
KINDS = ("burst", "drift", "gradual drift", "scale change", "return to normal")
STATES = ("begun", "ended", "settled")
SURE = math.log(1e9)  # odds from which on more points do not make it surer
GRADUAL = math.log(100.0)  # evidence that the two halves of what came since a change differ
_TOLD = 3.0  # standard errors by which the share of a tail must have changed
_TO_THE_SECOND = 60.0  # seconds until a change is noticed up to which its date is told to the second
_TREES, _REGIONS = 32, 3  # that say where a change is
_TELLING = 20.0  # odds from which on they are told
_LARGEST_PLAIN = 1e4  # odds that are told in full


class Change(NamedTuple):
    """A change of a stream.

    Printed, it is a sentence. Points are named by the numbers of their arrivals, from 0.
    """

    kind: str  # "burst", "drift", "gradual drift", "scale change" or "return to normal"
    state: str  # "begun", "ended", or "settled" once what came since is the new reference
    start: int  # the first point after the change, at its most probable
    earliest: int  # the range of `start` that holds it with a probability of 90 %
    latest: int
    noticed: int  # the point with which it was noticed
    start_time: float | None  # the times of `start` and `noticed`, if points have times
    noticed_time: float | None
    window: int  # the length of the window that noticed it
    log_odds: float  # natural logarithm of the odds that there is a change, if it is as likely as not beforehand
    regions: tuple[str, ...] = ()  # where shares changed, in words: the clearest first
    action: str = ""  # what is done about it, in words

    @property
    def n_points(self) -> int:
        """Points from the start up to the one with which it was noticed."""
        return self.noticed - self.start + 1

    @property
    def odds(self) -> str:
        """The odds in words: "odds 10^9 : 1"; while they are low, an alarm says more than they do."""
        if self.log_odds > math.log(_LARGEST_PLAIN):
            return f"odds 10^{math.floor(self.log_odds / math.log(10.0) + 1e-9)} : 1"
        if self.log_odds < math.log(_TELLING):
            return "beyond chance"
        return f"odds {math.exp(self.log_odds):,.0f} : 1"

    @property
    def since(self) -> str:
        """When it began, in words: a time of day, a date, or the number of a point."""
        return _when(self.start, self.start_time, self.noticed_time)

    @property
    def summary(self) -> str:
        """What has changed, in one sentence."""
        return f"{self._what()}{f'; {self.action}' if self.action else ''}"

    def _what(self) -> str:
        if self.kind == "return to normal":
            return f"Since {self.since} the stream is back to normal"
        if self.state == "settled":
            return f"What came since {self.since} is the new normal"
        where = self.regions[0] if self.regions else ""
        if self.kind == "burst":
            ended = f"{'a burst, over by now' if self.state == 'ended' else 'a burst so far'} ({self.odds})"
            return f"From {self.since} on {where or 'the stream has differed'}: {ended}"
        words = {
            "drift": "a change",
            "gradual drift": "a gradual change, which goes on",
            "scale change": "a change of scale",
        }
        return (
            f"Since {self.since} {where or 'the stream has another distribution'}; this is {words[self.kind]} "
            f"({self.odds}), not a burst"
        )

    def __str__(self) -> str:
        return f"{self.summary}."

    def state_dict(self) -> dict[str, Any]:
        """Return everything as JSON can hold it."""
        return {**self._asdict(), "regions": list(self.regions)}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Change:
        """Return the change that `state_dict` describes; raise ValueError if it describes none."""
        _STATE(state, "change")
        return cls(**{**state, "regions": tuple(state["regions"])})


_TIME = schema.either(schema.nothing, schema.number)
_STATE = schema.record(
    {
        "kind": schema.one_of(*KINDS),
        "state": schema.one_of(*STATES),
        **dict.fromkeys(("start", "earliest", "latest", "noticed", "window"), schema.whole()),
        "start_time": _TIME,
        "noticed_time": _TIME,
        "log_odds": schema.number,
        "regions": schema.many(schema.text),
        "action": schema.text,
    }
)


def _when(number: int, time: float | None, noticed: float | None) -> str:
    """Return when a point came: without the date, if that is the day on which the change was noticed."""
    if time is None:
        return f"point {number:,}"
    try:
        date, now = (datetime.fromtimestamp(stamp, UTC) for stamp in (time, time if noticed is None else noticed))
    except (OverflowError, ValueError, OSError):
        return f"time {time:g}"
    form = "%H:%M" if date.date() == now.date() else "%Y-%m-%d %H:%M"
    is_to_the_second = date.second and (now - date).total_seconds() < _TO_THE_SECOND
    return date.strftime(f"{form}:%S" if is_to_the_second else form)


def where(before: NamedRows, after: NamedRows, seed: int) -> tuple[str, ...]:
    """Return where the share of records changed, in words, the clearest first; nothing if there are too few."""
    if min(len(before), len(after)) < MIN_ROWS:
        return ()
    # that there is a change is known already
    found = compare(
        before, after, n_estimators=_TREES, n_permutations=1, alpha=0.99, max_regions=_REGIONS, random_state=seed
    )
    shares = [[float(one.holds(rows).mean()) for rows in (before, after)] for one in found.regions]
    return tuple(
        f"the share of records with {one.place} has {'risen' if new > old else 'fallen'} from "
        f"{percent(old)} to {percent(new)}"
        for one, (old, new) in zip(found.regions, shares, strict=True)
    )


def is_scale_change(before: Array, after: Array) -> bool:
    """Return whether it is the spread of values that changed: both tails of a feature became heavier, or both lighter.

    The feature is the one whose quarters changed the most. Tails are what lies below its lower and above its upper
    quartile before; the share of each must have changed by three standard errors, in the same direction.
    """
    best, is_scale = 0.0, False
    for columns in zip(before.T, after.T, strict=True):
        old, new = (column[~np.isnan(column)] for column in columns)
        if not len(old) or not len(new):
            continue
        low, high = np.quantile(old, [0.25, 0.75])
        moves = []
        for in_old, in_new in ((old < low, new < low), (old > high, new > high)):
            share = (in_old.sum() + in_new.sum()) / (len(old) + len(new))
            error = math.sqrt(share * (1 - share) * (1 / len(old) + 1 / len(new)))
            moves.append((in_new.mean() - in_old.mean()) / error if error > 0 else 0.0)
        size = moves[0] ** 2 + moves[1] ** 2
        if size > best:
            best, is_scale = size, min(moves) > _TOLD or max(moves) < -_TOLD
    return is_scale
