"""Lines of JSON: verdicts on records, events, and records that cannot be used."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from math import inf, isfinite
from typing import Any, NamedTuple

import orjson

from polyaforest.estimators import SeriesMPF
from polyaforest.explain import Explanation
from polyaforest.io._json import to_json
from polyaforest.io.records import Record, Row
from polyaforest.live import Detector, Entry
from polyaforest.timeseries import Event, EventTracker

__all__ = ["Arrival", "Bad", "Verdict", "as_lines", "close_event", "describe_bad", "describe_verdict", "track_event"]


class Arrival(NamedTuple):
    """A record that can be judged."""

    place: int  # in its batch
    record: Record
    row: Row


class Bad(NamedTuple):
    """A record that cannot be judged."""

    place: int
    record: Record
    reason: str


class Verdict(NamedTuple):
    """The results for one record."""

    score: float
    p_value: float
    is_anomaly: bool
    explanation: Explanation | None  # of a flagged record


def as_lines(facts: Iterable[dict[str, Any]]) -> bytes:
    """Return objects as lines of JSON."""
    return b"".join(to_json(fact, orjson.OPT_APPEND_NEWLINE) for fact in facts)


def describe_bad(bad: Bad) -> dict[str, Any]:
    """Return the line for a record that cannot be used."""
    return {"position": bad.record.position, "reason": bad.reason, "record": bad.record.text}


def describe_verdict(arrival: Arrival, verdict: Verdict) -> dict[str, Any]:
    """Return the line for a record, with reasons if it is flagged."""
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
                "feature": blame.name,
                "value": _finite(blame.value),
                "bits": _finite(blame.bits),
                "side": blame.side,
                "usual": blame.usual,
                "expected": blame.expected,
            }
            for blame in why.blamed
        ]
        line["region"] = why.region
    return line


def track_event(entry: Entry, arrival: Arrival, verdict: Verdict, merge: int) -> list[dict[str, Any]]:
    """Return the line for the event that ends with a record, if any; an open event is saved with the model."""
    known = entry.notes.get("events")
    number = entry.notes["rows"] = entry.notes.get("rows", -1) + 1
    if not verdict.is_anomaly and (known is None or known["event"] is None):
        return []
    tracker = EventTracker(merge) if known is None else EventTracker.of_state(known)
    ended = tracker.update(
        number,
        verdict.is_anomaly,
        verdict.score if isfinite(verdict.score) else -inf,
        time=_as_text(arrival.row.time),
        p_value=_finite(verdict.p_value),
        blame=None if verdict.explanation is None else _attribution(entry.detector, verdict.explanation),
    )
    entry.notes["events"] = tracker.state()
    return [] if ended is None else [_describe_event(arrival.row.key, ended)]


def close_event(key: str, entry: Entry) -> list[dict[str, Any]]:
    """Return the line for the open event of a stream that ends, if any."""
    known = entry.notes.get("events")
    event = None if known is None else EventTracker.of_state(known).close()
    if event is None:
        return []
    entry.notes["events"] = None
    return [_describe_event(key or None, event)]


def _describe_event(key: str | None, event: Event) -> dict[str, Any]:
    facts = {**event._asdict(), "score": _finite(event.score)}
    return {"event": facts} if key is None else {"key": key, "event": facts}


def _attribution(detector: Detector, why: Explanation) -> dict[str, float]:
    """Return bits by channel or feature."""
    if isinstance(detector, SeriesMPF):
        return detector.blame_by_channel(why)
    return dict(zip(why.names, why.parts.tolist(), strict=True))


def _as_text(time: float | None) -> str | None:
    """Return a time in ISO 8601, or as a number if it is no date."""
    if time is None:
        return None
    try:
        return datetime.fromtimestamp(time, UTC).isoformat().replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return str(time)


def _finite(value: float) -> float | None:
    return float(value) if isfinite(value) else None
