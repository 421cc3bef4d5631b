"""Previews: which records of the history other settings would flag."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field

from polyaforest.io.records import LONGEST_KEY
from polyaforest.judge.describe import bits_by_feature
from polyaforest.judge.models import new_detector
from polyaforest.series import EventTracker
from polyaforest.service.blocks import FLAGGED, Block
from polyaforest.service.changes import KINDS
from polyaforest.service.config import SettingsTable, StreamConfig, to_toml
from polyaforest.service.gates import departure, why_muted, why_outside
from polyaforest.service.relearn import records_to_learn
from polyaforest.service.replay import Replayed, replay
from polyaforest.service.stream import ServedStream
from polyaforest.settings.stream import Effect, Gates
from polyaforest.settings.values import settings_of

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
    is_timed = config.time is not None or stream.is_timed
    if is_timed and (np.diff(block.times) < 0).any():
        block = replace(block, times=np.maximum.accumulate(block.times))
    unnamed = replace(block, names=())
    pieces = replay(
        new_detector(config),
        unnamed,
        stream.fields,
        is_timed=is_timed,
        finds_series=config.finds_series,
        explain=True,
        at_once=max(1, _WORK_AT_ONCE // config.trees),
    )
    tracker, found, n_flagged, row = EventTracker(config.merge or _MERGE), [], 0, 0
    for piece in pieces:
        check()
        for i in range(len(piece.block)):
            verdict = _verdict(stream, config, key, piece, i)
            n_flagged += verdict.is_flagged
            score, p_value = float(piece.detected.scores[i]), float(piece.detected.p_values[i])
            when = float(piece.block.times[i])
            found.append(
                tracker.update(
                    row, verdict.is_flagged, score, time=when, p_value=p_value, attributions=verdict.attributions
                )
            )
            row += 1
    found.append(tracker.close())
    return [{"key": key, **event._asdict()} for event in found if event is not None], n_flagged


class _Verdict(NamedTuple):
    is_flagged: bool
    attributions: dict[str, float] | None


def _verdict(stream: ServedStream, config: StreamConfig, key: str, piece: Replayed, i: int) -> _Verdict:
    """Return whether a record is flagged after gates, and its attributions."""
    values, names, why = piece.block.values[i].tolist(), stream.fields, piece.detected.explanations.get(i)
    is_outside = why_outside(config.gates, names, values) is not None
    if why is None:
        return _Verdict(bool(piece.detected.is_anomaly[i]) or is_outside, None)
    attributions = bits_by_feature(piece.judge, why)
    departed = departure(why, attributions, names, values, None)
    muted = why_muted(config.gates, config.mute, key, float(piece.block.times[i]), departed)
    return _Verdict(muted is None or is_outside, attributions)


def _overlap(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return bool(one["start"] <= other["end"] and other["start"] <= one["end"])
