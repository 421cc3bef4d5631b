"""The answers of the API, for its OpenAPI schema: each operation with the model of its answer.

Answers may have more members than described here; clients must ignore those that they do not know.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["ANSWERS", "Problem"]

Seconds = float  # since 1970, UTC
Bits = float | None


class Answer(BaseModel):
    """Base class; unknown members are kept."""

    model_config = ConfigDict(extra="allow")


class Problem(Answer):
    """An error, as problem details (RFC 9457)."""

    type: str = Field(examples=["about:blank"])
    title: str = Field(examples=["Unprocessable Content"])
    status: int = Field(examples=[422])
    detail: str = Field(description="What is wrong and what to do.", examples=["unknown parameter 'fron'"])
    errors: list[dict[str, str]] = Field(default=[], description="Invalid parts of the request: `where` and `what`.")


class Stream(Answer):
    """A stream."""

    name: str
    source: str
    accepts_records: bool
    is_ready: bool
    error: str | None
    fields: list[str]
    by: str | None = None
    is_series: bool | None
    n_keys: int
    n_records: int
    n_open_events: int
    start: Seconds | None
    end: Seconds | None
    lag_seconds: float
    n_damaged: int
    model_bytes: int
    relearning: dict[str, Any] | None
    notice: str | None


class StreamInFull(Stream):
    """A stream with its settings."""

    settings: dict[str, Any]
    damaged: list[dict[str, Any]]
    metrics: dict[str, Any] | None = Field(default=None, description="What arrived by OTLP or remote write.")


class Streams(Answer):
    """All streams."""

    streams: list[Stream]


class Status(Streams):
    """The state of the service."""

    version: str
    now: Seconds
    started: Seconds
    role: Literal["read", "write", "admin"] | None
    needs_token: bool
    is_demo: bool


class Keys(Answer):
    """Keys of a stream."""

    keys: list[str]
    total: int


class Settings(Answer):
    """Settings that differ from their defaults."""

    server: dict[str, Any]
    streams: dict[str, Any]
    alerts: list[dict[str, Any]]
    toml: str


class Reloaded(Answer):
    """What a reload changed."""

    applied: dict[str, Any]
    relearned: dict[str, Any]
    started: list[str]
    stopped: list[str]
    alerts: bool
    tokens: bool
    at_next_start: list[str]


class Role(Answer):
    """The role of the caller."""

    role: Literal["read", "write", "admin"] | None


class Verdict(Answer):
    """The verdict on a posted record."""

    position: str
    time: str | None = Field(default=None, description="RFC 3339.")
    key: str | None = None
    id: str | None = None
    score: float | None = None
    p_value: float | None = None
    is_anomaly: bool
    severity: int | None = None
    summary: str | None = None


class Posted(Answer):
    """What became of posted records; verdicts only if the caller waited."""

    first: int
    last: int
    records: int
    repeated: bool | None = None
    judged: int | None = None
    flagged: int | None = None
    rejected: list[dict[str, Any]] | None = None
    n_rejected: int | None = None
    verdicts: list[Verdict] | None = None


class Quarantined(Answer):
    """A rejected record."""

    position: str
    at: Seconds
    reason: str
    record: str


class Quarantine(Answer):
    """The latest rejected records."""

    records: list[Quarantined]


class Range(Answer):
    """An expected range."""

    low: float | None
    middle: float | None
    high: float | None


class ScoredRecord(Answer):
    """A record of the history."""

    position: int
    time: str | None = Field(description="RFC 3339.")
    key: str
    score: float | None
    p_value: float | None
    threshold: float | None
    is_anomaly: bool
    is_muted: bool
    is_learned: bool
    weight: int = Field(description="How many times the model has learned it.")
    values: dict[str, float | str | None]
    expected: dict[str, Range]


class Records(Answer):
    """A page of records."""

    records: list[ScoredRecord]
    next: str | None = Field(description="The cursor of the next page.")


class Series(Answer):
    """A key over time."""

    stream: str
    key: str
    start: Seconds
    end: Seconds
    n_records: int
    is_raw: bool
    time: list[Seconds | None]
    n: list[int]
    flagged: list[int]
    score: list[float | None]
    p_value: list[float | None]
    threshold: list[float | None]
    fields: dict[str, dict[str, list[float | None]]]


class Lane(Answer):
    """A key of the overview."""

    stream: str
    key: str
    surprise: list[float | None]
    flagged: list[int]
    n: list[int]
    n_flagged: int
    worst: float
    latest: Seconds
    open_events: list[Any]


class Overview(Answer):
    """All keys, worst first."""

    start: Seconds
    end: Seconds
    buckets: int
    lanes: list[Lane]
    total: int


class Event(Answer):
    """An event, without details."""

    id: str
    stream: str
    key: str
    kind: str
    label: str | None
    start: Seconds
    end: Seconds
    peak: Seconds | None = None
    is_open: bool
    bits: Bits = None
    severity: int | None = None
    p_value: float | None = None
    score: float | None = None
    n_flagged: int | None = None
    summary: str | None = None


class IncidentOfEvent(Answer):
    """The incident that an event belongs to."""

    id: str
    stream: str


class EventInFull(Event):
    """An event with its explanation."""

    alerts: list[dict[str, Any]]
    feedback: list[dict[str, Any]]
    similar_events: list[Event]
    incident: IncidentOfEvent | None = None
    reasons: list[Any] | None = None
    values: dict[str, Any] | None = None
    expected: dict[str, Range] | None = None


class Events(Answer):
    """A page of events, latest first."""

    events: list[Event]
    next: str | None = Field(description="The cursor of the next page.")


class AuditEntry(Answer):
    """An entry of the audit log."""

    id: int
    at: Seconds
    who: str
    action: str
    facts: dict[str, Any]


class Audit(Answer):
    """The audit log, latest first."""

    entries: list[AuditEntry]


class Incidents(Answer):
    """Groups of events."""

    incidents: list[dict[str, Any]]


class Health(Answer):
    """Whether the process is alive."""

    status: str


class Ready(Answer):
    """Whether all streams run."""

    ready: bool
    streams: dict[str, str]


class Facts(Answer):
    """Facts about what was done."""


ANSWERS: dict[str, type[Answer]] = {
    "status": Status,
    "streams": Streams,
    "stream": StreamInFull,
    "keys": Keys,
    "settings": Settings,
    "reload": Reloaded,
    "login": Role,
    "logout": Role,
    "post_records": Posted,
    "quarantine": Quarantine,
    "delete_records": Facts,
    "records": Records,
    "series": Series,
    "overview": Overview,
    "post_preview": Facts,
    "events": Events,
    "event": EventInFull,
    "post_feedback": EventInFull,
    "delete_feedback": EventInFull,
    "audit": Audit,
    "incidents": Incidents,
    "health": Health,
    "ready": Ready,
}
