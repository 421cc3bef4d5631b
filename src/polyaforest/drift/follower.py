"""Follow a stream: learn a reference, slide windows, raise alarms, and track changes until they end."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import log
from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp

from polyaforest.detectors import StreamingMPF
from polyaforest.drift.changes import (
    GRADUAL,
    MIN_REFERENCE,
    SURE,
    Change,
    RunLengths,
    Trace,
    is_scale_change,
    locate,
)
from polyaforest.drift.windows import MonitoredPoints, SharedTrees, Thresholds, Windows, find_thresholds
from polyaforest.forest.point_store import Key
from polyaforest.kernels.arrays import Array
from polyaforest.storage.modelfile import Arrays, Header
from polyaforest.tables.categories import Categories, Codes
from polyaforest.tables.validation import NamedRows
from polyaforest.util import schema

_PIECE = 256  # points that are followed together
_SHORTEST = 8  # points of a window; each longer one has twice as many, up to those of the reference
_MIN_LASTING, _LASTING_SHARE = 64, 16  # a change is no burst after so many points, or this part of the reference
_VERSION = 2  # of the definition of evidence, on which thresholds depend
_STORED = ("dispersions", "usual", "bars", "slopes")  # names of the fields of `Thresholds` in files, after "bars/"


class FollowerSettings(NamedTuple):
    """The parameters of a follower."""

    n_reference: int
    lengths: tuple[int, ...] | None  # of windows; None for the default
    every: float  # points between false alarms, or seconds
    is_duration: bool
    keeps: bool  # whether the reference is never replaced
    n_trees: int
    entropy: int  # of all random draws

    def lengths_for(self, n: int) -> list[int]:
        """Return the lengths of windows beside a reference of `n` points, ascending."""
        if self.lengths is not None:
            return list(self.lengths)
        return sorted({max(n >> i, _SHORTEST) for i in range(n.bit_length())})


class Ongoing(NamedTuple):
    """An ongoing change."""

    change: Change
    learned: int  # number of the last point that its distribution is estimated from
    balance: float = 0.0  # log-likelihood ratio of the points since `turned`, change against reference
    turned: int = -1  # number of the first point of the current evidence against the change


class Follower:
    """A stream beside its reference.

    Parameters
    ----------
    settings : FollowerSettings
    n_features : int
    names : list of str
        Names of the features.
    encoding : Categories, optional
        The categories among them: the last columns of points.
    """

    trees: SharedTrees  # these four are set once the reference is complete
    thresholds: Thresholds
    windows: Windows
    every: float  # points between false alarms

    def __init__(
        self, settings: FollowerSettings, n_features: int, names: Sequence[str], encoding: Categories | None = None
    ) -> None:
        self.settings, self.n_features, self.names, self.encoding = settings, n_features, list(names), encoding
        self.generation = 0  # references learned so far
        self.reference = MonitoredPoints(settings.n_reference, n_features, 0)
        self.points = MonitoredPoints(1, n_features, 0)
        self.n_seen = 0
        self.since = 0  # the number of the first point that windows may hold
        self.is_learning = True  # whether the reference is incomplete
        self.ongoing: Ongoing | None = None
        self._contrast: tuple[tuple[int, int], Array] | None = None  # of the points of this range
        self._forest: StreamingMPF | None = None  # of the reference, to flag outliers

    # ---- results -----------------------------------------------------------------------------------------------------

    @property
    def status(self) -> str:
        """The status of the stream after the last point."""
        if self.is_learning:
            return "learning"
        return "normal" if self.ongoing is None else self.ongoing.change.kind

    @property
    def lasting(self) -> int:
        """Number of points after which a change is no burst."""
        return max(len(self.reference) // _LASTING_SHARE, _MIN_LASTING)

    @property
    def n_categories(self) -> int:
        """Number of features, the last ones, that are categories."""
        return 0 if self.encoding is None else len(self.encoding.columns)

    @property
    def rows(self) -> Array:
        """All points held, (n, D)."""
        return np.concatenate([self.reference.values, self.points.values[-self.points.most :]])

    def run_lengths(self) -> RunLengths:
        """Return the posterior of the number of points since a change."""
        leaves = self.points.leaves[self._place(self.since) :]
        lengths = np.arange(1, len(leaves) + 1)
        baseline = np.interp(np.log(lengths), np.log(self.windows.lengths), self.thresholds.baseline)
        return RunLengths.of_evidence(self.windows.of_runs(leaves) - baseline, 1.0 / self.every)

    def is_outlier(self, rows: Array) -> Array:
        """Return which rows a forest of the reference flags, bool (n,)."""
        if self._forest is None:
            seed, codes = self.settings.entropy % 2**32, Codes(self.n_categories) if self.n_categories else None
            forest = StreamingMPF(n_estimators=self.settings.n_trees, categorical_features=codes, random_state=seed)
            self._forest = forest.fit(self.trees.fill(self.reference.values))
        return self._forest.detect(self.trees.fill(rows)).is_anomaly

    def _place(self, number: int) -> int:
        """Return the position of the first point from this arrival number on, among the last `most` points.

        How many more the arrays hold depends on the size of chunks.
        """
        return max(self.points.place(number), len(self.points) - self.points.most)

    # ---- new points --------------------------------------------------------------------------------------------------

    def follow(
        self, values: Array, times: Array, keys: Sequence[Key | None], *, flag_outliers: bool = False
    ) -> list[Trace]:
        """Follow the stream over points; return the traces of consecutive parts."""
        parts, start = [], 0
        while start < len(values):
            part = self.advance(values[start:], times[start:], keys[start:])
            stop = start + len(part.status)
            is_normal = part.status == "normal"
            if flag_outliers and is_normal.any():
                part.status[is_normal & self.is_outlier(values[start:stop])] = "outlier"
            parts.append(part)
            start = stop
        return parts

    def advance(self, values: Array, times: Array, keys: Sequence[Key | None]) -> Trace:
        """Follow points up to the first with news of a change, or up to the end of a piece."""
        named = [self.n_seen + i if key is None else key for i, key in enumerate(keys[:_PIECE])]
        return (self._learn if self.is_learning else self._follow)(values[:_PIECE], times[:_PIECE], named)

    def _learn(self, values: Array, times: Array, keys: Sequence[Key]) -> Trace:
        n, first = min(len(values), self.settings.n_reference - len(self.reference)), self.n_seen
        self.reference.append(values[:n], np.arange(first, first + n), times[:n], keys[:n])
        self.n_seen += n
        if len(self.reference) == self.settings.n_reference:
            self.since = self.n_seen
            self._use_reference()
        return Trace.without_windows(np.full(n, "learning", dtype=object), first)

    def _use_reference(self, thresholds: Thresholds | None = None) -> None:
        """Grow trees on the reference, and compute the thresholds unless given."""
        held, settings = self.reference, self.settings
        tree_seed, seed = np.random.SeedSequence(settings.entropy, spawn_key=(self.generation,)).spawn(2)
        self.trees = SharedTrees(held.values, held.numbers, tree_seed, settings.n_trees, self.n_categories)
        lengths = settings.lengths_for(len(held))
        self.every = self._points_between_alarms()
        self.thresholds = find_thresholds(self.trees, lengths, self.every, seed) if thresholds is None else thresholds
        before, most = self.points, self._most_held
        self.windows = Windows(self.trees, lengths, self.thresholds.dispersions.tolist(), most)
        self.is_learning, self._forest = False, None
        self.points = MonitoredPoints(most, self.n_features, settings.n_trees)
        if len(before):
            kept = before.part(max(len(before) - most, 0))
            self.points.append(*kept, self.trees.find(kept[0]))
            self._fill_windows()

    @property
    def _most_held(self) -> int:
        """The number of recent points to hold: enough for all windows and the next reference after many deletions."""
        return 2 * max(*self.settings.lengths_for(len(self.reference)), len(self.reference))

    def _points_between_alarms(self) -> float:
        """Return the number of points between false alarms, at the rate of points in the reference."""
        if not self.settings.is_duration:
            return self.settings.every
        times = self.reference.times
        span = float(times.max() - times.min())
        if not span > 0:
            raise ValueError(
                "false_alarms_every is a duration, but all points of the reference have the same time: give a number "
                "of points instead"
            )
        return max(self.settings.every * (len(times) - 1) / span, 1.0)

    def _fill_windows(self) -> None:
        self.windows.fill(self.points.leaves[self._place(self.since) :])

    def _follow(self, values: Array, times: Array, keys: Sequence[Key]) -> Trace:
        n, first = len(values) if self.ongoing is None else 1, self.n_seen  # track an ongoing change point by point
        leaves = self.trees.find(values[:n])
        self.points.append(values[:n], np.arange(first, first + n), times[:n], keys[:n], leaves)
        before = len(self.points) - n
        levels = self.thresholds.levels if self.ongoing is None else None
        taken, evidence = self.windows.slide(self.points.leaves, self.points.place(self.since), before, levels)
        self.points.cut(before + taken)
        self.n_seen += taken
        if self.ongoing is not None:
            change = self._track(self.ongoing, leaves[0])
        else:
            exceeding = self._exceeding(evidence[-1])
            change = self._open(int(exceeding[0])) if len(exceeding) else None
        status = np.full(taken, "normal", dtype=object)
        status[-1] = self.status
        thresholds = np.tile(self.thresholds.levels, (taken, 1))
        return Trace(evidence, thresholds, status, [] if change is None else [change], first)

    def _exceeding(self, evidence: Array) -> Array:
        """Return the full windows whose evidence exceeds its threshold."""
        n = len(self.points) - self.points.place(self.since)
        return np.flatnonzero((evidence > self.thresholds.levels) & (self.windows.lengths <= n))

    # ---- changes -----------------------------------------------------------------------------------------------------

    def _open(self, k: int) -> Change:
        """Open the change that window `k` has noticed."""
        change = self._describe(int(self.windows.lengths[k]))
        self.ongoing = Ongoing(change, self.n_seen - 1)
        return change

    def _describe(self, window: int) -> Change:
        """Return the ongoing change as estimated from all points so far."""
        runs, numbers, times = self.run_lengths(), self.points.numbers, self.points.times
        place, (shortest, longest) = len(numbers) - runs.mode, runs.range
        return Change(
            kind=self._kind(place) if runs.mode >= self.lasting else "burst",
            state="begun",
            start=int(numbers[place]),
            earliest=int(numbers[len(numbers) - longest]),
            latest=int(numbers[len(numbers) - shortest]),
            noticed=int(numbers[-1]),
            start_time=_known(times[place]),
            noticed_time=_known(times[-1]),
            window=window,
            log_odds=self._log_odds(place),
            regions=self._regions(place),
        )

    def _regions(self, place: int) -> tuple[str, ...]:
        """Return where the shares of the points from a position on differ from the reference, in words."""
        before, after = (
            NamedRows(rows if self.encoding is None else rows[:, self.encoding.places], self.names, self.encoding)
            for rows in (self.reference.values, self.points.values[place:])
        )
        return locate(before, after, self.settings.entropy % 2**32)

    def _log_odds(self, place: int) -> float:
        """Return the log odds that points from a position on differ from the reference: the mean Bayes factor."""
        logs = self.trees.evidence(self.trees.leaves, self.points.leaves[place:], self.thresholds.dispersions[-1])
        return float(logsumexp(logs) - log(len(logs)))

    def _kind(self, place: int) -> str:
        """Return the kind of a lasting change that began with the point at a position."""
        leaves, rows = self.points.leaves[place:], self.points.values[place:]
        first, second = np.array_split(leaves, 2)
        if self.trees.evidence(first, second, self.thresholds.dispersions[-1]).mean() > GRADUAL:
            return "gradual drift"
        n = self.n_features - self.n_categories
        return "scale change" if is_scale_change(self.reference.values[:, :n], rows[:, :n]) else "drift"

    def _track(self, known: Ongoing, leaves: Array) -> Change | None:
        """Update an ongoing change by one more point, given by its leaves; return the change if there is news."""
        number, change = self.n_seen - 1, known.change
        gain = float(self._contrast_of(known)[np.arange(len(leaves)), leaves].mean()) / self.thresholds.dispersions[-1]
        balance = min(known.balance + gain, 0.0)
        turned = number if known.balance == 0.0 else known.turned
        self.ongoing = known._replace(balance=balance, turned=turned)
        if balance < -log(self.every):
            return self._close(self.ongoing)
        n = number - change.start + 1
        if (n >= self.lasting and n.bit_count() == 1) or n == self.lasting:
            return self._reassess(self.ongoing)
        if n >= self.settings.n_reference and not self.settings.keeps:
            return self._adopt(change)
        return None

    def _contrast_of(self, known: Ongoing) -> Array:
        """Return the log density ratio of points since the change to the reference, by node, (T, C)."""
        span = known.change.start, known.learned + 1
        if self._contrast is None or self._contrast[0] != span:
            first, last = map(self._place, span)
            found = self.trees.contrasts(self.points.leaves[first:last], self.thresholds.dispersions[-1])
            self._contrast = span, found
        return self._contrast[1]

    def _reassess(self, known: Ongoing) -> Change | None:
        """Estimate the kind, regions and odds of a change again from more points; return it if that is news."""
        before, now = known.change, self._describe(known.change.window)
        if before.kind != "burst":  # the start was known best when the change had just begun
            place = self._place(before.start)
            now = before._replace(
                noticed=now.noticed,
                noticed_time=now.noticed_time,
                log_odds=self._log_odds(place),
                kind=self._kind(place),
                regions=self._regions(place),
            )
        now = now._replace(action=before.action)
        self.ongoing = known._replace(change=now, learned=self.n_seen - 1)
        is_sure = now.log_odds > SURE >= before.log_odds
        is_located = bool(now.regions and not before.regions)
        return now if now.kind != before.kind or is_located or is_sure else None

    def _close(self, known: Ongoing) -> Change:
        """Close a change that is over; windows restart after it."""
        turned, times = known.turned, self.points.times
        over = known.change._replace(
            state="ended", noticed=int(self.points.numbers[-1]), noticed_time=_known(times[-1])
        )
        if over.kind != "burst":
            over = over._replace(
                kind="return to normal",
                start=turned,
                earliest=turned,
                latest=turned,
                start_time=_known(times[self._place(turned)]),
                log_odds=-known.balance,
                regions=(),
                action="",
            )
        self.ongoing, self.since = None, turned
        self._fill_windows()
        return over

    def _adopt(self, change: Change) -> Change:
        """Adopt the points since a change as the new reference."""
        n_reference = self.settings.n_reference
        place = max(self._place(change.start), len(self.points) - n_reference)
        noticed, time = int(self.points.numbers[-1]), _known(self.points.times[-1])
        self.reference = MonitoredPoints(n_reference, self.n_features, 0)
        self.reference.append(*self.points.part(place))
        self.points = MonitoredPoints(1, self.n_features, 0)
        self.generation, self.since, self.ongoing = self.generation + 1, self.n_seen, None
        self._use_reference()
        return change._replace(state="adopted", noticed=noticed, noticed_time=time)

    def note_action(self, action: str) -> Change:
        """Add what is done about the ongoing change, and return it."""
        assert self.ongoing is not None
        self.ongoing = self.ongoing._replace(change=self.ongoing.change._replace(action=action))
        return self.ongoing.change

    def checkpoint(self) -> Mapping[str, Any]:
        """Return a checkpoint for `roll_back`."""
        return dict(vars(self))

    def roll_back(self, checkpoint: Mapping[str, Any]) -> None:
        """Return to a checkpoint, without the points that were followed since."""
        vars(self).update(checkpoint)
        self.reference.cut(self.reference.place(self.n_seen))
        if not self.is_learning:
            self.points.cut(self.points.place(self.n_seen))
            self._fill_windows()

    # ---- deletion ----------------------------------------------------------------------------------------------------

    def delete(self, keys: Collection[Key]) -> None:
        """Delete the points of these keys that are held: all counts become those without them."""
        unwanted, self._contrast = set(keys), None
        for place in reversed([i for i, key in enumerate(self.points.keys) if key in unwanted]):
            self._delete_recent(place)
        of_reference = [i for i, key in enumerate(self.reference.keys) if key in unwanted]
        for place in reversed(of_reference):
            self.reference.drop(place)
        if of_reference and not self.is_learning:
            if len(self.reference) < MIN_REFERENCE // 2:
                self._restart()
            else:
                self._use_reference()

    def _delete_recent(self, place: int) -> None:
        """Remove a recent point; windows that held it extend one point further back."""
        leaves, first, n = self.points.leaves, self.points.place(self.since), len(self.points)
        for k, length in enumerate(self.windows.lengths.tolist()):
            if place >= max(n - length, first):
                older = n - length - 1
                self.windows.replace(k, leaves[place], leaves[older] if older >= first else None)
        self.points.drop(place)

    def _restart(self) -> None:
        """Learn a reference again, starting with the remaining points of the old one."""
        self.is_learning, self.ongoing = True, None
        self.points, self.since = MonitoredPoints(1, self.n_features, 0), self.n_seen
        self.generation += 1

    # ---- state -------------------------------------------------------------------------------------------------------

    def state(self) -> tuple[Header, Arrays]:
        """Return everything that cannot be derived."""
        known = self.ongoing
        header = {
            "version": _VERSION,
            "settings": {**self.settings._asdict(), "lengths": list(self.settings.lengths or ())},
            "generation": self.generation,
            "n_seen": self.n_seen,
            "since": self.since,
            "is_learning": self.is_learning,
            "open": None if known is None else {**known._asdict(), "change": known.change.state_dict()},
        }
        arrays = {f"reference/{name}": part for name, part in self.reference.state().items()}
        if not self.is_learning:
            arrays |= {f"points/{name}": part for name, part in self.points.state().items()}
            arrays |= {f"bars/{name}": part for name, part in zip(_STORED, self.thresholds, strict=True)}
        return header, arrays

    @classmethod
    def of_state(
        cls,
        header: Header,
        arrays: Arrays,
        n_features: int,
        names: Sequence[str],
        encoding: Categories | None = None,
    ) -> Follower:
        """Return the follower with a state; raise ValueError if it is invalid."""
        _STATE(header, "monitor")
        given = header["settings"]
        settings = FollowerSettings(**{**given, "lengths": tuple(given["lengths"]) or None})
        follower = cls(settings, n_features, names, encoding)
        for name in ("generation", "n_seen", "since"):
            setattr(follower, name, header[name])
        follower.reference.restore(arrays, "reference", follower.n_seen, follower.n_categories)
        is_complete, has_thresholds = not header["is_learning"], any(name.startswith("bars/") for name in arrays)
        wanted = {f"reference/{name}" for name in MonitoredPoints.FIELDS}
        if is_complete:
            wanted |= {f"points/{name}" for name in MonitoredPoints.FIELDS}
            wanted |= {f"bars/{name}" for name in _STORED} if has_thresholds else set()
        if arrays.keys() != wanted:
            raise ValueError(f"array {sorted(arrays.keys() ^ wanted)[0]}: is missing, or is not part of this format")
        if is_complete:
            follower._restore(arrays, has_thresholds=has_thresholds)
        if header["open"] is not None:
            follower._reopen(header["open"])
        return follower

    def _restore(self, arrays: Arrays, *, has_thresholds: bool) -> None:
        """Restore points and thresholds; compute absent thresholds."""
        if not MIN_REFERENCE // 2 <= len(self.reference) <= self.settings.n_reference:
            raise ValueError(f"its reference has {len(self.reference)} points, of {self.settings.n_reference}")
        thresholds = self._read_thresholds(arrays) if has_thresholds else None
        self.points = MonitoredPoints(self._most_held, self.n_features, 0)
        self.points.restore(arrays, "points", self.n_seen, self.n_categories)
        self._use_reference(thresholds)

    def _read_thresholds(self, arrays: Arrays) -> Thresholds:
        n_windows = len(self.settings.lengths_for(len(self.reference)))
        thresholds = Thresholds(*(arrays[f"bars/{name}"] for name in _STORED))
        for name, part in zip(_STORED, thresholds, strict=True):
            if part.dtype != np.float64 or part.shape != (n_windows,) or not np.isfinite(part).all():
                raise ValueError(f"bars/{name} must be a finite number for each of {n_windows} windows")
        if (thresholds.dispersions < 1).any():
            raise ValueError("bars/dispersions must be at least 1")
        return thresholds

    def _reopen(self, state: Header) -> None:
        known = Ongoing(**{**state, "change": Change.of_state(state["change"])})
        if self.is_learning or not known.change.start <= known.learned < self.n_seen:
            raise ValueError("its change does not fit into its stream")
        self.ongoing = known


def _known(time: float) -> float | None:
    """Return a time, None if it is NaN."""
    return None if np.isnan(time) else float(time)


_STATE = schema.record(
    {
        "version": schema.whole(_VERSION, _VERSION),
        "settings": schema.record(
            {
                "n_reference": schema.whole(MIN_REFERENCE),
                "lengths": schema.many(schema.whole(2)),
                "every": schema.number,
                "is_duration": schema.flag,
                "keeps": schema.flag,
                "n_trees": schema.whole(1, 2**16),
                "entropy": schema.whole(0, None),
            }
        ),
        **dict.fromkeys(("generation", "n_seen", "since"), schema.whole()),
        "is_learning": schema.flag,
        "open": schema.either(
            schema.nothing,
            schema.record(
                {
                    "change": schema.mapping,
                    "learned": schema.whole(),
                    "balance": schema.number,
                    "turned": schema.whole(-1),
                }
            ),
        ),
    }
)
