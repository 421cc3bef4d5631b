"""Lines of JSON for verdicts, events, drift and invalid records."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from math import inf, isfinite, nan
from typing import Any, NamedTuple

import orjson

from polyaforest.detectors import SeriesMPF
from polyaforest.drift import Change
from polyaforest.explain import Explanation
from polyaforest.forest.point_store import Key
from polyaforest.io.json_values import to_json
from polyaforest.io.records import ParsedRow, Record
from polyaforest.live import Detector, Entry
from polyaforest.series import Event, EventTracker

__all__ = [
    "Arrival", "Bad", "Tracked", "Verdict", "as_lines", "bits_by_feature", "close_event", "describe_bad",
    "describe_changes", "describe_verdict", "track", "track_event",
]  # fmt: skip


_APART = 10  # largest distance of flagged records in one event, if records are independent


class Arrival(NamedTuple):
    """A valid record."""

    place: int  # in its batch
    record: Record
    row: ParsedRow


class Bad(NamedTuple):
    """An invalid record."""

    place: int
    record: Record
    reason: str


class Verdict(NamedTuple):
    """The results for one record."""

    score: float
    p_value: float
    is_anomaly: bool
    explanation: Explanation | None  # of a flagged record
    threshold: float = nan  # of the score
    point: Key | None = None  # its key in the model; None if it was not learned
    changes: tuple[Change, ...] = ()  # of the distribution, noticed with this record
    novelty: float = nan  # of a reading of a series


class Tracked(NamedTuple):
    """The events of a key after one of its records."""

    number: int  # of the record in its key
    ended: Event | None  # the event that it ends
    event: Event | None  # the event that is open after it


def as_lines(facts: Iterable[dict[str, Any]]) -> bytes:
    """Encode objects as lines of JSON."""
    return b"".join(to_json(fact, orjson.OPT_APPEND_NEWLINE) for fact in facts)


def describe_bad(bad: Bad) -> dict[str, Any]:
    """Describe an invalid record."""
    return {"position": bad.record.position, "reason": bad.reason, "record": bad.record.text}


def describe_verdict(arrival: Arrival, verdict: Verdict) -> dict[str, Any]:
    """Describe the verdict on a record, with reasons if it is flagged."""
    row, why = arrival.row, verdict.explanation
    labels = {"time": _as_text(row.time), "key": row.key, "id": row.id}
    line: dict[str, Any] = {"position": arrival.record.position}
    line |= {name: value for name, value in labels.items() if value is not None}
    line |= {"score": _finite(verdict.score), "p_value": _finite(verdict.p_value), "is_anomaly": verdict.is_anomaly}
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
    if verdict.novelty > 0:  # not NaN
        line["novelty"] = verdict.novelty
    return line


def describe_changes(arrival: Arrival, verdict: Verdict) -> list[dict[str, Any]]:
    """Describe each change of the distribution that was noticed with a record."""
    return [_describe_change(arrival.row.key, change) for change in verdict.changes]


def _describe_change(key: str | None, change: Change) -> dict[str, Any]:
    times = {"start_time": _as_text(change.start_time), "noticed_time": _as_text(change.noticed_time)}
    facts = {
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
    return {"drift": facts} if key is None else {"key": key, "drift": facts}


def track_event(entry: Entry, arrival: Arrival, verdict: Verdict) -> list[dict[str, Any]]:
    """Describe the events that end or begin with a record."""
    tracked = track(entry, verdict, _as_text(arrival.row.time))
    lines = [] if tracked.ended is None else [_describe_event(arrival.row.key, tracked.ended, "ended")]
    if tracked.event is not None and tracked.event.first == tracked.number:
        lines.append(_describe_event(arrival.row.key, tracked.event, "begun"))
    return lines


def track(entry: Entry, verdict: Verdict, time: str | float | None, merge: int | None = None) -> Tracked:
    """Count a record of a key, and add it to the event of the key if it is flagged.

    Flagged records at most `merge` records apart form one event, by default the reach of the detector. An open event is
    saved with the model.
    """
    known = entry.notes.get("events")
    number = entry.notes["rows"] = entry.notes.get("rows", -1) + 1
    if known is not None and known["event"] is not None:
        tracker = EventTracker.of_state(known)
    elif verdict.is_anomaly:
        tracker = EventTracker(_reach_of(entry.detector) if merge is None else merge)
    else:
        return Tracked(number, None, None)
    why = verdict.explanation
    ended = tracker.update(
        number,
        verdict.is_anomaly,
        verdict.score if isfinite(verdict.score) else -inf,
        time=time,
        p_value=_finite(verdict.p_value),
        attributions=None if why is None else bits_by_feature(entry.detector, why),
        summary="" if why is None else why.summary,
    )
    entry.notes["events"] = tracker.state()
    return Tracked(number, ended, tracker.open_event)


def _reach_of(detector: Detector) -> int:
    """Return the largest distance of flagged records in one event."""
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
