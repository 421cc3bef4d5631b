"""Changes of a stream: kinds by stated rules, dates and texts; run lengths; the trace of a monitor."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp

from polyaforest.drift.comparison import MIN_ROWS, compare, percent
from polyaforest.kernels.arrays import Array
from polyaforest.tables.validation import NamedRows
from polyaforest.util import schema

MIN_REFERENCE = 128  # points of a reference
KINDS = ("burst", "drift", "gradual drift", "scale change", "return to normal")
SURE = math.log(1e9)  # a change is reported again once its odds exceed this
GRADUAL = math.log(100.0)  # evidence that the two halves of the points since a change differ
_TAIL_ERRORS = 3.0  # standard errors by which the share of a tail must have changed
_MAX_SECONDS_SHOWN = 60.0  # dates show seconds for changes noticed within this time
_TREES, _REGIONS = 32, 3  # of the comparison that locates a change
_MIN_ODDS_SHOWN, _MAX_PLAIN_ODDS = 20.0, 1e4  # of higher odds only the power of ten is shown
_COVERAGE = 0.9  # probability of the range of run lengths


class Change(NamedTuple):
    """A change of a stream.

    Printed, it is a sentence. Points are given by their arrival numbers, from 0.
    """

    kind: str  # "burst", "drift", "gradual drift", "scale change" or "return to normal"
    state: str  # "begun", "ended", or "adopted" once the points since the change are the new reference
    start: int  # the most probable first point after the change
    earliest: int  # `start` lies between `earliest` and `latest` with a probability of 90 %
    latest: int
    noticed: int  # the point at which it was noticed
    start_time: float | None  # the times of `start` and `noticed`, if points have times
    noticed_time: float | None
    window: int  # the length of the window that noticed it
    log_odds: float  # natural logarithm of the odds of a change, if it is as likely as not beforehand
    regions: tuple[str, ...] = ()  # where shares changed, in words, the clearest first
    action: str = ""  # what is done about it, in words

    @property
    def n_points(self) -> int:
        """Number of points from `start` to `noticed`."""
        return self.noticed - self.start + 1

    @property
    def odds(self) -> str:
        """The odds in words: "odds 10^9 : 1", or "beyond chance" while they are low."""
        if self.log_odds > math.log(_MAX_PLAIN_ODDS):
            return f"odds 10^{math.floor(self.log_odds / math.log(10.0) + 1e-9)} : 1"
        if self.log_odds < math.log(_MIN_ODDS_SHOWN):
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
        if self.state == "adopted":
            return f"The stream since {self.since} is the new normal"
        where = self.regions[0] if self.regions else ""
        if self.kind == "burst":
            burst = "a burst, now over" if self.state == "ended" else "a burst so far"
            return f"From {self.since} on {where or 'the stream has differed'}: {burst} ({self.odds})"
        words = {"drift": "a change", "gradual drift": "a gradual, ongoing change", "scale change": "a change of scale"}
        what = where or "the stream has a different distribution"
        return f"Since {self.since} {what}; this is {words[self.kind]} ({self.odds}), not a burst"

    def __str__(self) -> str:
        return f"{self.summary}."

    def state_dict(self) -> dict[str, Any]:
        """Return all fields as JSON-compatible values."""
        return {**self._asdict(), "regions": list(self.regions)}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Change:
        """Return the change that `state_dict` describes; raise ValueError if it is invalid."""
        _STATE(state, "change")
        return cls(**{**state, "regions": tuple(state["regions"])})


_TIME = schema.either(schema.nothing, schema.number)
_STATE = schema.record(
    {
        "kind": schema.one_of(*KINDS),
        "state": schema.one_of("begun", "ended", "adopted"),
        **dict.fromkeys(("start", "earliest", "latest", "noticed", "window"), schema.whole()),
        "start_time": _TIME,
        "noticed_time": _TIME,
        "log_odds": schema.number,
        "regions": schema.many(schema.text),
        "action": schema.text,
    }
)


def _when(number: int, time: float | None, noticed: float | None) -> str:
    """Return when a point arrived, without the date if the change was noticed on the same day."""
    if time is None:
        return f"point {number:,}"
    try:
        date, now = (datetime.fromtimestamp(stamp, UTC) for stamp in (time, time if noticed is None else noticed))
    except (OverflowError, ValueError, OSError):
        return f"time {time:g}"
    form = "%H:%M" if date.date() == now.date() else "%Y-%m-%d %H:%M"
    has_seconds = date.second and (now - date).total_seconds() < _MAX_SECONDS_SHOWN
    return date.strftime(f"{form}:%S" if has_seconds else form)


def locate(before: NamedRows, after: NamedRows, seed: int) -> tuple[str, ...]:
    """Return where the share of records changed, in words, the clearest first; empty if there are too few rows."""
    if min(len(before), len(after)) < MIN_ROWS:
        return ()
    # the change itself is known, so the test of `compare` is all but skipped
    found = compare(
        before, after, n_estimators=_TREES, n_permutations=1, alpha=0.99, max_regions=_REGIONS, random_state=seed
    )
    shares = [[float(one.holds(rows).mean()) for rows in (before, after)] for one in found.regions]
    return tuple(
        f"the share of records with {one.place} has {'risen' if new > old else 'fallen'} from {percent(old)} to "
        f"{percent(new)}"
        for one, (old, new) in zip(found.regions, shares, strict=True)
    )


def is_scale_change(before: Array, after: Array) -> bool:
    """Return whether the spread of values changed: both tails of a feature became heavier, or both lighter.

    The feature is the one whose tails, the values beyond the quartiles of `before`, changed the most. The share of each
    tail must have changed by three standard errors, in the same direction.
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
            best, is_scale = size, min(moves) > _TAIL_ERRORS or max(moves) < -_TAIL_ERRORS
    return is_scale


class RunLengths(NamedTuple):
    """The run-length posterior: how many points ago the distribution changed.

    It is the posterior of Bayesian online change-point detection (Adams and MacKay, 2007), with the masses of the
    forest as predictive probabilities: points follow the reference before the change and an unknown distribution
    after it, and the prior probability of a change is the same at every point. The mean evidence without a change is
    subtracted.
    """

    none: float  # the probability that there was no change
    probabilities: Array  # float64 (n,): that the last 1, 2, ..., n points came after the change

    @classmethod
    def of_evidence(cls, evidence: Array, hazard: float) -> RunLengths:
        """Return the posterior, given the evidence for runs of 1, 2, ..., n points."""
        weights = np.log(hazard) + evidence
        total = logsumexp(np.append(weights, 0.0))
        return cls(float(np.exp(-total)), np.exp(weights - total))

    @property
    def mode(self) -> int:
        """The most probable number of points since the change, if there was one."""
        return int(np.argmax(self.probabilities)) + 1

    @property
    def range(self) -> tuple[int, int]:
        """Bounds of the number of points since the change, with a probability of 90 %, if there was one."""
        order = np.argsort(-self.probabilities, kind="stable")
        within = self.probabilities[order].cumsum() < _COVERAGE * self.probabilities.sum()
        chosen = order[: int(within.sum()) + 1]  # the most probable first
        return int(chosen.min()) + 1, int(chosen.max()) + 1


class Trace(NamedTuple):
    """The results of a monitor for consecutive rows."""

    evidence: Array  # float64 (n, K): evidence of a change in each window; NaN while the monitor learns
    thresholds: Array  # float64 (n, K): an alarm is raised when the evidence exceeds them
    status: Array  # of str, (n,): "learning", "normal", "outlier", or the kind of the ongoing change
    changes: list[Change]
    first: int  # the arrival number of the first row

    @classmethod
    def without_windows(cls, status: Array, first: int) -> Trace:
        """Return the trace of rows before there are windows."""
        nothing = np.empty((len(status), 0))
        return cls(nothing, nothing, status, [], first)

    @classmethod
    def joined(cls, parts: Sequence[Trace]) -> Trace:
        """Return the trace of rows that were followed in several parts; windows that a part lacks are NaN."""
        shape = sum(len(part.status) for part in parts), max(part.thresholds.shape[1] for part in parts)
        evidence, thresholds = np.full((2, *shape), np.nan)
        start = 0
        for part in parts:
            rows = slice(start, start + len(part.status))
            evidence[rows, : part.evidence.shape[1]] = part.evidence
            thresholds[rows, : part.thresholds.shape[1]] = part.thresholds
            start = rows.stop
        status = np.concatenate([part.status for part in parts])
        return cls(evidence, thresholds, status, [change for part in parts for change in part.changes], parts[0].first)
