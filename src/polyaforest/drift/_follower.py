"""Follow a stream: learn a reference, slide windows, raise alarms, and tell what becomes of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import log
from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp

from polyaforest.core import schema
from polyaforest.core.arrays import Array
from polyaforest.core.categories import Categories, Codes
from polyaforest.core.validation import NamedRows
from polyaforest.drift._bars import Bars, find_bars
from polyaforest.drift._change import GRADUAL, LEAST, SURE, Change, is_scale_change, where
from polyaforest.drift._recent import Points
from polyaforest.drift._runs import RunLengths
from polyaforest.drift._shared import Shared, Windows
from polyaforest.estimators import StreamingMPF
from polyaforest.forest.point_store import Key
from polyaforest.persistence.modelfile import Arrays, Header

_PIECE = 256  # points that are followed together
_SHORTEST = 8  # points of a window; longer ones have twice as many each, up to those of the reference
_LASTING, _LASTING_SHARE = 64, 16  # points that no burst has, at least, and how many times more the reference has
_VERSION = 2  # of what evidence means: bars of another version are found anew


class Settings(NamedTuple):
    """What the user asked for."""

    n_reference: int
    lengths: tuple[int, ...] | None  # of windows; None for shares of the reference
    every: float  # points between false alarms, or seconds
    is_duration: bool
    keeps: bool  # whether the reference stays what it is
    n_trees: int
    entropy: int  # of all that is random

    def lengths_for(self, n: int) -> list[int]:
        """Return the lengths of windows beside a reference of `n` points, ascending."""
        if self.lengths is not None:
            return list(self.lengths)
        return sorted({max(n >> i, _SHORTEST) for i in range(n.bit_length())})


class Step(NamedTuple):
    """What became of points, one after another; the last of them may have brought a change."""

    evidence: Array  # float64 (n, K)
    status: list[str]
    change: Change | None


class Open(NamedTuple):
    """A change that goes on."""

    change: Change
    learned: int  # the number of the last point from which its distribution is known
    balance: float = 0.0  # log-likelihood of the points since `turned`, under the change rather than the reference
    turned: int = -1  # the number of the first point of those that speak against the change


class Follower:
    """A stream beside its reference.

    Parameters
    ----------
    settings : Settings
    n_features : int
    names : list of str
        The features.
    encoding : Categories, optional
        Which of them are categories: the last columns of points.
    """

    def __init__(
        self, settings: Settings, n_features: int, names: Sequence[str], encoding: Categories | None = None
    ) -> None:
        self.settings, self.n_features, self.names, self.encoding = settings, n_features, list(names), encoding
        self.generation = 0  # references learned so far
        self.reference = Points(settings.n_reference, n_features, 0)
        self.points = Points(1, n_features, 0)
        self.n_seen = 0
        self.since = 0  # the number of the first point that windows may hold
        self.open: Open | None = None
        self.shared: Shared | None = None
        self._contrast: tuple[tuple[int, int], Array] | None = None  # of the change that goes on, and what it is of

    # ---- results -----------------------------------------------------------------------------------------------------

    @property
    def is_learning(self) -> bool:
        """Whether the reference is not complete yet."""
        return self.shared is None

    @property
    def status(self) -> str:
        """What the stream is like now."""
        if self.is_learning:
            return "learning"
        return "normal" if self.open is None else self.open.change.kind

    @property
    def lasting(self) -> int:
        """The points from which on a change is no burst."""
        return max(len(self.reference) // _LASTING_SHARE, _LASTING)

    def run_lengths(self) -> RunLengths:
        """Return how many of the last points may have come since a change."""
        leaves = self.points.leaves[self._place(self.since) :]
        lengths = np.arange(1, len(leaves) + 1)
        usual = np.interp(np.log(lengths), np.log(self.windows.lengths), self.bars.usual)  # evidence without a change
        return RunLengths.of_evidence(self.windows.of_runs(leaves) - usual, 1.0 / self.every)

    def _place(self, number: int) -> int:
        """Return the place of the first point from this arrival on; more than `most` points back there is none.

        The arrays may hold more, depending on how many points came at a time.
        """
        return max(self.points.place(number), len(self.points) - self.points.most)

    # ---- points that come --------------------------------------------------------------------------------------------

    def advance(self, values: Array, times: Array, keys: Sequence[Key | None]) -> Step:
        """Take in points, up to the first with which there is a change, or the end of a piece."""
        named = [self.n_seen + i if key is None else key for i, key in enumerate(keys)]
        return (self._learn if self.is_learning else self._follow)(values[:_PIECE], times[:_PIECE], named[:_PIECE])

    def _learn(self, values: Array, times: Array, keys: Sequence[Key]) -> Step:
        n = min(len(values), self.settings.n_reference - len(self.reference))
        numbers = np.arange(self.n_seen, self.n_seen + n)
        self.reference.append(values[:n], np.empty((n, 0), np.int32), numbers, times[:n], keys[:n])
        self.n_seen += n
        if len(self.reference) == self.settings.n_reference:
            self.since = self.n_seen
            self._compare_with_reference()
        return Step(np.full((n, 0), np.nan), ["learning"] * n, None)

    def _compare_with_reference(self, known: Bars | None = None) -> None:
        """Grow trees on the reference, and find the bars unless they are known."""
        held, settings = self.reference, self.settings
        of_trees, of_bars = np.random.SeedSequence(settings.entropy, spawn_key=(self.generation,)).spawn(2)
        self.shared = Shared(held.values, held.numbers, of_trees, settings.n_trees, self.n_categories)
        lengths = settings.lengths_for(len(held))
        self.every = self._points_between_alarms()
        self.bars = find_bars(self.shared, lengths, self.every, of_bars) if known is None else known
        before, most = self.points, self._most_held
        self.windows = Windows(self.shared, lengths, self.bars.dispersions.tolist(), most)
        self._forest: StreamingMPF | None = None
        self.points = Points(most, self.n_features, settings.n_trees)
        if len(before):
            kept = slice(max(len(before) - self.points.most, 0), None)
            values, keys = before.values[kept], before.keys[kept]
            self.points.append(values, self.shared.find(values), before.numbers[kept], before.times[kept], keys)
            self._fill_windows()

    @property
    def n_categories(self) -> int:
        """How many features, the last ones, are categories."""
        return 0 if self.encoding is None else len(self.encoding.columns)

    @property
    def rows(self) -> Array:
        """All points that are held, (n, D)."""
        return np.concatenate([self.reference.values, self.points.values[-self.points.most :]])

    @property
    def _most_held(self) -> int:
        """The recent points to hold: enough for every window, and for the next reference, after many deletions."""
        return 2 * max(*self.settings.lengths_for(len(self.reference)), len(self.reference))

    def _points_between_alarms(self) -> float:
        """Return the points between false alarms, at the rate at which those of the reference came."""
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

    def _follow(self, values: Array, times: Array, keys: Sequence[Key]) -> Step:
        assert self.shared is not None
        n = len(values) if self.open is None else 1  # what goes on is looked at after every point
        leaves, numbers = self.shared.find(values[:n]), np.arange(self.n_seen, self.n_seen + n)
        self.points.append(values[:n], leaves, numbers, times[:n], keys[:n])
        before = len(self.points) - n
        bars = self.bars.bars if self.open is None else None
        taken, evidence = self.windows.slide(self.points.leaves, self.points.place(self.since), before, bars)
        self.points.cut(before + taken)
        self.n_seen += taken
        if self.open is not None:
            change = self._go_on(self.open, leaves[0])
            return Step(evidence, [self.status], change)
        exceeding = self._exceeding(evidence[-1])
        change = self._begin(int(exceeding[0])) if len(exceeding) else None
        return Step(evidence, [*["normal"] * (taken - 1), self.status], change)

    def is_outlier(self, rows: Array) -> Array:
        """Return which rows a forest of the reference flags, bool (n,)."""
        assert self.shared is not None
        if self._forest is None:
            seed, codes = self.settings.entropy % 2**32, Codes(self.n_categories) if self.n_categories else None
            forest = StreamingMPF(n_estimators=self.settings.n_trees, categorical_features=codes, random_state=seed)
            self._forest = forest.fit(self.shared.fill(self.reference.values))
        return self._forest.detect(self.shared.fill(rows)).is_anomaly

    def _exceeding(self, evidence: Array) -> Array:
        """Return the full windows whose evidence exceeds its bar."""
        n = len(self.points) - self.points.place(self.since)
        return np.flatnonzero((evidence > self.bars.bars) & (self.windows.lengths <= n))

    # ---- changes -----------------------------------------------------------------------------------------------------

    def _begin(self, k: int) -> Change:
        """Open the change that window `k` has noticed."""
        change = self._dated(int(self.windows.lengths[k]))
        self.open = Open(change, self.n_seen - 1)
        return change

    def _dated(self, window: int) -> Change:
        """Return the change that goes on, by what is known of it now."""
        runs, numbers, times = self.run_lengths(), self.points.numbers, self.points.times
        place, (shortest, longest) = len(numbers) - runs.mode, runs.range
        start, noticed = int(numbers[place]), int(numbers[-1])
        since, now = (None if np.isnan(stamp) else float(stamp) for stamp in (times[place], times[-1]))
        kind = self._kind(place) if runs.mode >= self.lasting else "burst"
        earliest, latest = int(numbers[len(numbers) - longest]), int(numbers[len(numbers) - shortest])
        known = self._log_odds(place), self._where(place)
        return Change(kind, "begun", start, earliest, latest, noticed, since, now, window, *known)

    def _where(self, place: int) -> tuple[str, ...]:
        """Return where the shares of the points from a place on differ from those of the reference, in words."""
        before, after = map(self._named, (self.reference.values, self.points.values[place:]))
        return where(before, after, self.settings.entropy % 2**32)

    def _named(self, rows: Array) -> NamedRows:
        """Return points as a table has them."""
        return NamedRows(rows if self.encoding is None else rows[:, self.encoding.places], self.names, self.encoding)

    def _log_odds(self, place: int) -> float:
        """Return the log odds that points from a place on differ from the reference: the trees' mean Bayes factor."""
        assert self.shared is not None
        logs = self.shared.evidence(self.shared.leaves, self.points.leaves[place:], self.bars.dispersions[-1])
        return float(logsumexp(logs) - log(len(logs)))

    def _kind(self, place: int) -> str:
        """Return the kind of a change that lasts since the point at a place."""
        assert self.shared is not None
        leaves, rows = self.points.leaves[place:], self.points.values[place:]
        first, second = np.array_split(leaves, 2)
        if self.shared.evidence(first, second, self.bars.dispersions[-1]).mean() > GRADUAL:
            return "gradual drift"
        n = self.n_features - self.n_categories
        return "scale change" if is_scale_change(self.reference.values[:, :n], rows[:, :n]) else "drift"

    def _go_on(self, known: Open, leaves: Array) -> Change | None:
        """Look at a change that goes on after one more point; return it if there is news."""
        number, change = self.n_seen - 1, known.change
        gain = float(self._contrast_of(known)[np.arange(len(leaves)), leaves].mean()) / self.bars.dispersions[-1]
        balance = min(known.balance + gain, 0.0)
        turned = number if known.balance == 0.0 else known.turned
        self.open = known._replace(balance=balance, turned=turned)
        if balance < -log(self.every):
            return self._end(self.open)
        n = number - change.start + 1
        if (n >= self.lasting and n.bit_count() == 1) or n == self.lasting:
            return self._look_again(self.open)
        if n >= self.settings.n_reference and not self.settings.keeps:
            return self._settle(change)
        return None

    def _contrast_of(self, known: Open) -> Array:
        """Return how much denser, in logarithms, points since the change are in nodes than the reference, (T, C)."""
        assert self.shared is not None
        span = known.change.start, known.learned + 1
        if self._contrast is None or self._contrast[0] != span:
            first, last = map(self._place, span)
            found = self.shared.contrasts(self.points.leaves[first:last], self.bars.dispersions[-1])
            self._contrast = span, found
        return self._contrast[1]

    def _look_again(self, known: Open) -> Change | None:
        """Date a change anew and tell its kind, place and odds by more points; return it if that is news."""
        now = self._dated(known.change.window)
        if known.change.kind != "burst":  # the date was found when it had just begun: that is when it is known best
            dated = known.change
            place = self._place(dated.start)
            now = dated._replace(noticed=now.noticed, noticed_time=now.noticed_time, log_odds=self._log_odds(place))
            now = now._replace(kind=self._kind(place), regions=self._where(place))
        now = now._replace(action=known.change.action)
        is_sure = now.log_odds > SURE >= known.change.log_odds
        is_located = bool(now.regions and not known.change.regions)
        self.open = known._replace(change=now, learned=self.n_seen - 1)
        return now if now.kind != known.change.kind or is_located or is_sure else None

    def _end(self, known: Open) -> Change:
        """Close a change that is over; windows begin anew after it."""
        is_burst, place = known.change.kind == "burst", self._place(known.turned)
        times = self.points.times
        since, now = (None if np.isnan(stamp) else float(stamp) for stamp in (times[place], times[-1]))
        noticed = int(self.points.numbers[-1])
        if is_burst:
            over = known.change._replace(state="ended", noticed=noticed, noticed_time=now)
        else:
            turned = known.turned
            over = Change(
                "return to normal", "ended", turned, turned, turned, noticed, since, now, known.change.window,
                -known.balance,
            )  # fmt: skip
        self.open, self.since = None, known.turned
        self._fill_windows()
        return over

    def _settle(self, change: Change) -> Change:
        """Take what came since a change for the new reference."""
        place = max(self._place(change.start), len(self.points) - self.settings.n_reference)
        new = Points(self.settings.n_reference, self.n_features, 0)
        rows, n = self.points, len(self.points) - place
        new.append(rows.values[place:], np.empty((n, 0), np.int32), rows.numbers[place:], rows.times[place:],
                   rows.keys[place:])  # fmt: skip
        noticed, now = int(rows.numbers[-1]), rows.times[-1]
        self.reference, self.points = new, Points(1, self.n_features, 0)
        self.generation, self.since, self.open = self.generation + 1, self.n_seen, None
        self._compare_with_reference()
        return change._replace(state="settled", noticed=noticed, noticed_time=None if np.isnan(now) else float(now))

    def note(self, action: str) -> Change:
        """Note what is done about the change that goes on."""
        assert self.open is not None
        self.open = self.open._replace(change=self.open.change._replace(action=action))
        return self.open.change

    def mark(self) -> Mapping[str, Any]:
        """Return where the follower is, for `go_back`."""
        return dict(vars(self))

    def go_back(self, mark: Mapping[str, Any]) -> None:
        """Return to a mark: points that came since have never come."""
        vars(self).update(mark)
        self.reference.cut(self.reference.place(self.n_seen))
        if not self.is_learning:
            self.points.cut(self.points.place(self.n_seen))
            self._fill_windows()

    # ---- points that go ----------------------------------------------------------------------------------------------

    def delete(self, keys: Collection[Key]) -> None:
        """Delete the points of these keys that are held: afterwards all counts are as if they had never come."""
        unwanted, self._contrast = set(keys), None
        for place in reversed([i for i, key in enumerate(self.points.keys) if key in unwanted]):
            self._take_out(place)
        of_reference = [i for i, key in enumerate(self.reference.keys) if key in unwanted]
        for place in reversed(of_reference):
            self.reference.drop(place)
        if of_reference and not self.is_learning:
            if len(self.reference) < LEAST // 2:
                self._start_over()
            else:
                self._compare_with_reference()

    def _take_out(self, place: int) -> None:
        """Remove a recent point; windows that it was in reach one point further back."""
        leaves, first, n = self.points.leaves, self.points.place(self.since), len(self.points)
        for k, length in enumerate(self.windows.lengths.tolist()):
            if place >= max(n - length, first):
                next_one = n - length - 1
                self.windows.replace(k, leaves[place], leaves[next_one] if next_one >= first else None)
        self.points.drop(place)

    def _start_over(self) -> None:
        """Learn a reference again, beginning with what is left of the one before."""
        self.shared, self.open = None, None
        self.points, self.since = Points(1, self.n_features, 0), self.n_seen
        self.generation += 1

    # ---- to stop and go on -------------------------------------------------------------------------------------------

    def state(self) -> tuple[Header, Arrays]:
        """Return all that cannot be derived."""
        known = self.open
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
            arrays |= {f"bars/{name}": part for name, part in self.bars._asdict().items()}
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
        """Return the follower with a state; raise ValueError if it is not one."""
        _STATE(header, "monitor")
        given = header["settings"]
        settings = Settings(**{**given, "lengths": tuple(given["lengths"]) or None})
        follower = cls(settings, n_features, names, encoding)
        for name in ("generation", "n_seen", "since"):
            setattr(follower, name, header[name])
        follower.reference.restore(arrays, "reference", follower.n_seen, follower.n_categories)
        is_complete, is_known = not header["is_learning"], header.get("version", 1) == _VERSION
        wanted = {f"reference/{name}" for name in Points.FIELDS}
        if is_complete:
            of_bars = Bars._fields[: 4 if is_known else 3]
            wanted |= {f"points/{name}" for name in Points.FIELDS} | {f"bars/{name}" for name in of_bars}
        if arrays.keys() != wanted:
            raise ValueError(f"array {sorted(arrays.keys() ^ wanted)[0]}: is missing, or is not part of this format")
        if is_complete:
            follower._restore(arrays, is_known=is_known)
        if header["open"] is not None:
            follower._reopen(header["open"])
        return follower

    def _restore(self, arrays: Arrays, *, is_known: bool) -> None:
        """Take in points and bars; the latter are found anew unless it `is_known` what they mean."""
        if not LEAST // 2 <= len(self.reference) <= self.settings.n_reference:
            raise ValueError(f"its reference has {len(self.reference)} points, of {self.settings.n_reference}")
        bars = self._read_bars(arrays) if is_known else None
        self.points = Points(self._most_held, self.n_features, 0)
        self.points.restore(arrays, "points", self.n_seen, self.n_categories)
        self._compare_with_reference(bars)

    def _read_bars(self, arrays: Arrays) -> Bars:
        n_windows = len(self.settings.lengths_for(len(self.reference)))
        bars = Bars(*(arrays[f"bars/{name}"] for name in Bars._fields))
        for name, part in bars._asdict().items():
            if part.dtype != np.float64 or part.shape != (n_windows,) or not np.isfinite(part).all():
                raise ValueError(f"bars/{name} must be a finite number for each of {n_windows} windows")
        if (bars.dispersions < 1).any():
            raise ValueError("bars/dispersions must be at least 1")
        return bars

    def _reopen(self, state: Header) -> None:
        known = Open(**{**state, "change": Change.of_state(state["change"])})
        if self.is_learning or not known.change.start <= known.learned < self.n_seen:
            raise ValueError("its change does not fit into its stream")
        self.open = known


_STATE = schema.record(
    {
        "version": schema.whole(1, _VERSION),
        "settings": schema.record(
            {
                "n_reference": schema.whole(LEAST),
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
    },
    optional=["version"],
)
