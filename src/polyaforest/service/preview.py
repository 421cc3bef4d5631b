"""Previews: which records of the history other settings would flag."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field

from polyaforest.io.records import LONGEST_KEY
from polyaforest.judge import open_store
from polyaforest.judge.describe import bits_by_feature
from polyaforest.judge.judge import Judge, Piece
from polyaforest.judge.judgement import Judgement
from polyaforest.judge.models import Entry, Store, new_detector
from polyaforest.series import EventTracker
from polyaforest.service.blocks import FLAGGED, Block
from polyaforest.service.changes import KINDS
from polyaforest.service.config import SettingsTable, StreamConfig, to_toml
from polyaforest.service.gates import departure, why_muted, why_outside
from polyaforest.service.relearn import records_to_learn
from polyaforest.service.stream import ServedStream
from polyaforest.settings.stream import Effect, Gates
from polyaforest.settings.values import settings_of
from polyaforest.tables.rows import RowLayout, StreamRow

__all__ = ["Cancelled", "Previews", "Trial", "Turn", "preview"]

_MOST_KEYS = 20
_WORK_AT_ONCE = 6400  # records times trees between two checks for cancellation; each record may need an explanation
_KNOWN = settings_of(StreamConfig)
_MERGE = 10  # records between flagged records of one event


class Trial(SettingsTable):
    """Settings to try; omitted settings keep their values."""

    key: str | None = Field(default=None, max_length=LONGEST_KEY)
    records: int = Field(default=5000, ge=100, le=50_000)
    false_alarm_rate: Annotated[float | None, _KNOWN["false_alarm_rate"]] = None
    window: Annotated[int | timedelta | None, _KNOWN["window"]] = None
    trees: int | None = Field(default=None, ge=1, le=1000)
    gates: Annotated[Gates | None, _KNOWN["gates"]] = None

    def changes(self) -> dict[str, Any]:
        """Return the given settings."""
        names = ("false_alarm_rate", "window", "trees", "gates")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


class Cancelled(Exception):  # noqa: N818 - reads better where it is caught
    """Raised in a preview that was cancelled."""


class Turn:
    """Permission to run a preview, until it is cancelled."""

    is_cancelled = False

    def check(self) -> None:
        """Raise `Cancelled` if the preview was cancelled."""
        if self.is_cancelled:
            raise Cancelled


class Previews:
    """Runs one preview at a time, and can cancel it."""

    def __init__(self) -> None:
        self._busy = threading.Lock()
        self._turn = Turn()
        self._is_closed = False

    @property
    def is_busy(self) -> bool:
        """Whether a preview is running."""
        return self._busy.locked()

    def begin(self) -> Turn | None:
        """Return a turn, released by `end`; None if another preview is running or the service is stopping."""
        if self._is_closed or not self._busy.acquire(blocking=False):
            return None
        self._turn = Turn()
        return self._turn

    def end(self) -> None:
        """Release the turn."""
        self._busy.release()

    def close(self) -> None:
        """Cancel the running preview and allow no other; safe in a signal handler."""
        self._is_closed = self._turn.is_cancelled = True


def preview(stream: ServedStream, trial: Trial, check: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Score the latest records of the history with a new model and other settings; compare the flags.

    `check` is called now and then and may raise.
    """
    changes = trial.changes()
    config = stream.config.model_copy(update=changes)
    keys = [trial.key] if trial.key is not None else stream.history.keys[:_MOST_KEYS]
    most = max(100, trial.records // max(len(keys), 1))
    events: list[dict[str, Any]] = []
    now, then = {"n_flagged": 0, "n_events": 0}, {"n_flagged": 0, "n_events": 0}
    n_records, gone, new = 0, [], []
    for key in keys:
        block = stream.history.records(key, most=most)
        if block is None:
            continue
        n_records += len(block)
        found, n_flagged = _score(stream, config, key, block, check)
        first, last = float(block.times.min()), float(block.times.max())
        before = [
            event
            for event in stream.events.find(key=key, start=first, end=last, most=1000)
            if event["kind"] == "anomaly"
        ]
        now = {
            "n_flagged": now["n_flagged"] + int((block.flags & FLAGGED).sum()),
            "n_events": now["n_events"] + len(before),
        }
        then = {"n_flagged": then["n_flagged"] + n_flagged, "n_events": then["n_events"] + len(found)}
        gone += [event["id"] for event in before if not any(_overlap(event, other) for other in found)]
        new += [len(events) + i for i, event in enumerate(found) if not any(_overlap(event, one) for one in before)]
        events += found
    return {
        "n_records": n_records,
        "keys": keys,
        "is_truncated": trial.key is None and len(stream.history.keys) > _MOST_KEYS,
        "now": now,
        "then": then,
        "events": events,
        "gone": gone,
        "new": new,
        "toml": to_toml({"streams": {stream.name: changes}}),
        "effect": _effect(stream, config),
    }


def _effect(stream: ServedStream, config: StreamConfig) -> dict[str, Any]:
    """Return which settings would be applied at once, and which would cause relearning."""
    before = stream.config.settings
    different = [name for name, value in config.settings.items() if value != before.get(name)]
    waiting = stream.history.n_waiting  # its lock comes before that of the file
    with stream.database.read() as file:
        n_records = sum(records_to_learn(file, config, waiting).values())
    return {
        "applied": [name for name in different if KINDS[name] is Effect.APPLIED],
        "relearned": [name for name in different if KINDS[name] is Effect.RELEARNED],
        "n_records": n_records,
    }


def _score(
    stream: ServedStream, config: StreamConfig, key: str, block: Block, check: Callable[[], None]
) -> tuple[list[dict[str, Any]], int]:
    """Score records of a key; return their events and the number of flagged records."""
    coded = tuple(place for place, name in enumerate(stream.fields) if name in stream.reader.categories)
    layout = RowLayout(stream.fields, coded, has_times=config.time is not None or stream.is_timed)
    times = np.maximum.accumulate(block.times) if layout.has_times else block.times  # they may be out of order
    texts = block.texts_by_code
    parts = enumerate(zip(block.values.tolist(), times.tolist(), block.weights.tolist(), strict=True))
    rows = [
        StreamRow(values, time, key, texts=texts, place=place, weight=weight) for place, (values, time, weight) in parts
    ]
    with open_store(None, lambda: new_detector(config)) as store:
        judged = _TrialJudge(store, config, layout.names, check).judge(rows, layout)
    if judged.rejected and not judged.results:
        raise ValueError(judged.rejected[0])
    tracker, found, n_flagged = EventTracker(config.merge or _MERGE), [], 0
    for place, (judgement, attributions) in sorted(judged.results.items()):
        is_flagged, score, p_value = judgement.is_anomaly, judgement.score, judgement.p_value
        n_flagged += is_flagged
        when = judgement.row.time
        found.append(tracker.update(place, is_flagged, score, time=when, p_value=p_value, attributions=attributions))
    found.append(tracker.close())
    return [{"key": key, **event._asdict()} for event in found if event is not None], n_flagged


class _Gated(NamedTuple):
    """A judgement after gates, and the attributions of a flagged record."""

    judgement: Judgement
    attributions: dict[str, float] | None


class _TrialJudge(Judge[_Gated]):
    """Judges stored records with the settings of a trial."""

    def __init__(self, store: Store, config: StreamConfig, names: Sequence[str], check: Callable[[], None]) -> None:
        super().__init__(store, finds_series=config.finds_series)
        self._config, self._names, self._check = config, names, check

    def plan(self, entry: Entry, rows: Sequence[StreamRow]) -> Piece:
        """Return few records, so that a preview can be cancelled."""
        self._check()
        return Piece(min(len(rows), max(1, _WORK_AT_ONCE // self._config.trees)))

    def describe(self, entry: Entry, judgements: list[Judgement]) -> list[_Gated]:
        """Apply gates to judgements."""
        return [self._gated(entry, judgement) for judgement in judgements]

    def _gated(self, entry: Entry, judgement: Judgement) -> _Gated:
        gates, row, why = self._config.gates, judgement.row, judgement.explanation
        is_outside = why_outside(gates, self._names, row.values) is not None
        if why is None:
            return _Gated(judgement._replace(is_anomaly=judgement.is_anomaly or is_outside), None)
        attributions = bits_by_feature(entry.detector, why)
        departed = departure(why, self._names)
        muted = why_muted(gates, self._config.mute, row.key or "", row.time or 0.0, departed)
        return _Gated(judgement._replace(is_anomaly=muted is None or is_outside), attributions)


def _overlap(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return bool(one["start"] <= other["end"] and other["start"] <= one["end"])
