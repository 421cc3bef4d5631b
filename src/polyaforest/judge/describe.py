"""Describe judgements, events and drift as JSON-compatible facts; track the events of a key."""

from __future__ import annotations

from datetime import UTC, datetime
from math import inf, isfinite
from typing import Any, NamedTuple

from polyaforest.detectors import SeriesMPF
from polyaforest.drift import Change
from polyaforest.explain import Explanation
from polyaforest.judge.judgement import Judgement
from polyaforest.judge.models import Detector, Entry
from polyaforest.series import Event, EventTracker

__all__ = [
    "Tracked", "bits_by_feature", "close_event", "describe_change", "describe_changes", "describe_judgement",
    "track", "track_event",
]  # fmt: skip


_APART = 10  # largest distance of flagged rows in one event, if rows are independent


class Tracked(NamedTuple):
    """The events of a key after one of its rows."""

    number: int  # of the row in its key
    ended: Event | None  # the event that it ends
    event: Event | None  # the event that is open after it


def describe_judgement(judgement: Judgement) -> dict[str, Any]:
    """Describe the judgement on a row, with reasons if it is flagged."""
    row, why = judgement.row, judgement.explanation
    labels = {"time": _as_text(row.time), "key": row.key, "id": row.id}
    line: dict[str, Any] = {"position": row.position}
    line |= {name: value for name, value in labels.items() if value is not None}
    numbers = {"score": _finite(judgement.score), "p_value": _finite(judgement.p_value)}
    line |= {**numbers, "is_anomaly": judgement.is_anomaly}
    if why is not None:
        line["bits"] = _finite(why.surprise - why.typical)
        if why.summary:
            line["summary"] = why.summary
        line["reasons"] = [
            {
                "feature": attribution.name,
                "value": attribution.value if attribution.is_category else _finite(attribution.value),
                "bits": _finite(attribution.bits),
                "side": attribution.side,
                "usual": attribution.usual,
                "expected": attribution.expected,
                **({"seen": attribution.seen} if attribution.is_category else {}),
            }
            for attribution in why.attributions
        ]
        line["region"] = why.region
    if judgement.novelty > 0:  # not NaN
        line["novelty"] = judgement.novelty
    return line


def describe_changes(judgement: Judgement) -> list[dict[str, Any]]:
    """Describe each change of the distribution that was noticed with a row."""
    key = {} if judgement.row.key is None else {"key": judgement.row.key}
    return [{**key, "drift": describe_change(change)} for change in judgement.changes]


def describe_change(change: Change) -> dict[str, Any]:
    """Describe a change of the distribution."""
    times = {"start_time": _as_text(change.start_time), "noticed_time": _as_text(change.noticed_time)}
    return {
        "state": change.state,
        "kind": change.kind,
        "start": change.start,
        "earliest": change.earliest,
        "latest": change.latest,
        "noticed": change.noticed,
        **{name: text for name, text in times.items() if text is not None},
        "log_odds": _finite(change.log_odds),
        "regions": list(change.regions),
        "summary": str(change),
    }


def track_event(entry: Entry, judgement: Judgement, merge: int | None = None) -> list[dict[str, Any]]:
    """Describe the events that end or begin with a row."""
    key, tracked = judgement.row.key, track(entry, judgement, _as_text(judgement.row.time), merge)
    lines = [] if tracked.ended is None else [_describe_event(key, tracked.ended, "ended")]
    if tracked.event is not None and tracked.event.first == tracked.number:
        lines.append(_describe_event(key, tracked.event, "begun"))
    return lines


def track(entry: Entry, judgement: Judgement, time: str | float | None, merge: int | None = None) -> Tracked:
    """Count a row of a key, and add it to the event of the key if it is flagged.

    Flagged rows at most `merge` rows apart form one event, by default the reach of the detector. An open event is
    saved with the model.
    """
    known = entry.notes.get("events")
    number = entry.notes["rows"] = entry.notes.get("rows", -1) + 1
    if known is not None and known["event"] is not None:
        tracker = EventTracker.of_state(known)
    elif judgement.is_anomaly:
        tracker = EventTracker(_reach_of(entry.detector) if merge is None else merge)
    else:
        return Tracked(number, None, None)
    why = judgement.explanation
    ended = tracker.update(
        number,
        judgement.is_anomaly,
        judgement.score if isfinite(judgement.score) else -inf,
        time=time,
        p_value=_finite(judgement.p_value),
        attributions=None if why is None else bits_by_feature(entry.detector, why),
        summary="" if why is None else why.summary,
    )
    entry.notes["events"] = tracker.state()
    return Tracked(number, ended, tracker.open_event)


def _reach_of(detector: Detector) -> int:
    """Return the largest distance of flagged rows in one event."""
    return detector.reach if isinstance(detector, SeriesMPF) else _APART


def close_event(key: str, entry: Entry) -> list[dict[str, Any]]:
    """Describe the open event of a stream that ends, if any."""
    known = entry.notes.get("events")
    event = None if known is None else EventTracker.of_state(known).close()
    if event is None:
        return []
    entry.notes["events"] = None
    return [_describe_event(key or None, event, "ended")]


def _describe_event(key: str | None, event: Event, state: str) -> dict[str, Any]:
    facts = {"state": state, **event._asdict(), "score": _finite(event.score)}
    if not event.summary:
        del facts["summary"]
    return {"event": facts} if key is None else {"key": key, "event": facts}


def bits_by_feature(detector: Detector, why: Explanation) -> dict[str, float]:
    """Return bits by channel or feature."""
    if isinstance(detector, SeriesMPF):
        return detector.bits_by_channel(why)
    return dict(zip(why.names, why.parts.tolist(), strict=True))


def _as_text(time: float | None) -> str | None:
    """Format a time in ISO 8601, or as a number if it is not a date."""
    if time is None:
        return None
    try:
        return datetime.fromtimestamp(time, UTC).isoformat().replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return str(time)


def _finite(value: float) -> float | None:
    return float(value) if isfinite(value) else None
