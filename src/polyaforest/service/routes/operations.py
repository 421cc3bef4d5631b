"""Routes for the work with events: acknowledge, close, reopen; mute; annotate; causes."""

from __future__ import annotations

import asyncio
import time as clock
from typing import Annotated, Any, Self

from fastapi import APIRouter, Body, HTTPException, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from polyaforest.io.records import LONGEST_KEY
from polyaforest.service.annotations import (
    Annotation,
    add_annotation,
    annotations_of,
    delete_annotation,
    new_annotation,
)
from polyaforest.service.audit import log
from polyaforest.service.incidents import cause_of
from polyaforest.service.operations import acknowledge, close, reopen, withdraw_acknowledgement
from polyaforest.service.routes.answers import (
    CONFLICT,
    DAY,
    AnyKey,
    MinSeverity,
    Moment,
    Named,
    answer,
    ask,
    brief,
    service_of,
    stream_of,
    who_asks,
)
from polyaforest.service.stream import ServedStream
from polyaforest.util.patterns import check_pattern

__all__ = ["routes"]

_LONGEST_MUTE = 366 * DAY
_MOST_OF_CAUSE = 20  # keys and events named

routes = APIRouter()

Name = Annotated[str, Field(default="", max_length=100, description="Who does this, for the audit log.")]
Note = Annotated[str, Field(default="", max_length=2000)]


class _Given(BaseModel):
    model_config = ConfigDict(extra="forbid")


class EventNote(_Given):
    """A note, and the name of its author."""

    note: Note = ""
    by: Name = ""


def _who(request: Request, by: str) -> str:
    """Return the author of a change: the name they gave, and how they are authenticated."""
    asks = who_asks(request)
    return f"{by} ({asks})" if by else asks


# ---- the life of an event --------------------------------------------------------------------------------------------


@routes.post("/streams/{stream}/events/{id}/acknowledge", responses=CONFLICT)
async def post_acknowledgement(
    request: Request, stream: Named, id: str, given: Annotated[EventNote, Body()]
) -> Response:
    """Mark an open event as being worked on. It sends no further alerts until it ends."""
    who = _who(request, given.by)
    return answer(await ask(stream, lambda _: acknowledge(stream, id, who=who, note=given.note)))


@routes.delete("/streams/{stream}/events/{id}/acknowledge", responses=CONFLICT)
async def delete_acknowledgement(request: Request, stream: Named, id: str) -> Response:
    """Remove the mark that an event is being worked on."""
    who = who_asks(request)
    return answer(await ask(stream, lambda _: withdraw_acknowledgement(stream, id, who=who)))


@routes.post("/streams/{stream}/events/{id}/close", responses=CONFLICT)
async def post_close(request: Request, stream: Named, id: str, given: Annotated[EventNote, Body()]) -> Response:
    """Close an open event. Later flagged records begin another event."""
    who = _who(request, given.by)
    return answer(await ask(stream, lambda worker: close(stream, worker, id, who=who, note=given.note)))


@routes.post("/streams/{stream}/events/{id}/reopen", responses=CONFLICT)
async def post_reopen(request: Request, stream: Named, id: str, given: Annotated[EventNote, Body()]) -> Response:
    """Open a closed event again, until it is closed by a request."""
    who = _who(request, given.by)
    return answer(await ask(stream, lambda _: reopen(stream, id, who=who, note=given.note)))


# ---- mutes -----------------------------------------------------------------------------------------------------------


class NewMute(_Given):
    """A rule to mute flagged records for a while."""

    key: Annotated[str | None, Field(max_length=LONGEST_KEY, description="Only this key.")] = None
    pattern: Annotated[str | None, Field(description="Only keys that match this regular expression as a whole.")] = None
    field: Annotated[str | None, Field(max_length=LONGEST_KEY, description="Only records with this main cause.")] = None
    seconds: Annotated[float, Field(gt=0, le=_LONGEST_MUTE, description="How long the rule is in force.")]
    reason: Annotated[str, Field(max_length=2000)] = ""
    by: Name = ""

    @field_validator("pattern")
    @classmethod
    def _check_pattern(cls, pattern: str | None) -> str | None:
        return pattern if pattern is None else check_pattern(pattern)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.key is not None and self.pattern is not None:
            raise ValueError("give `key` or `pattern`, not both")
        if self.key is None and self.pattern is None and self.field is None:
            raise ValueError("give `key`, `pattern` or `field`")
        return self


@routes.get("/streams/{stream}/mutes")
def mutes(stream: Named) -> Response:
    """List the rules in force that mute flagged records, latest first."""
    return answer({"mutes": [rule.facts() for rule in stream.mutes.in_force()]})


@routes.post("/streams/{stream}/mutes", responses=CONFLICT)
async def post_mute(request: Request, stream: Named, given: Annotated[NewMute, Body()]) -> Response:
    """Mute flagged records that arrive from now on, until the rule ends or is removed."""
    who = _who(request, given.by)
    facts = {name: getattr(given, name) for name in ("key", "pattern", "field", "reason")}

    def add(_: Any) -> dict[str, Any]:
        with stream.database.write() as file:
            rule = stream.mutes.add(file, {**facts, "who": who, "until": clock.time() + given.seconds})
            log(file, who, "mute", rule.facts())
        stream.mutes.reload()
        return rule.facts()

    try:
        return answer(await ask(stream, add))
    except ValueError as problem:
        raise HTTPException(409, str(problem)) from None


@routes.delete("/streams/{stream}/mutes/{number}")
async def delete_mute(
    request: Request, stream: Named, number: Annotated[int, Path(ge=1, le=2**62, description="`id` of the rule.")]
) -> Response:
    """Remove a rule."""
    who = who_asks(request)

    def end(_: Any) -> bool:
        try:
            with stream.database.write() as file:
                stream.mutes.end(file, number)
                log(file, who, "unmute", {"mute": number})
        except KeyError:
            return False
        stream.mutes.reload()
        return True

    if not await ask(stream, end):
        raise HTTPException(404, f"the stream {stream.name!r} has no rule {number} in force")
    return answer({"removed": number})


# ---- annotations -----------------------------------------------------------------------------------------------------


class NewAnnotation(_Given):
    """A moment or span to mark on charts."""

    text: Annotated[str, Field(min_length=1, max_length=500)]
    kind: Annotated[str, Field(max_length=50, description='Such as "deployment".')] = "deployment"
    start: Annotated[float | None, Field(ge=-1e12, le=1e12, description="Seconds since 1970; now by default.")] = None
    end: Annotated[float | None, Field(ge=-1e12, le=1e12, description="The end of a span; `start` by default.")] = None
    stream: Annotated[str | None, Field(max_length=64, description="Only this stream; all by default.")] = None
    key: Annotated[str | None, Field(max_length=LONGEST_KEY, description="Only this key; all by default.")] = None
    by: Name = ""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.end is not None and self.start is not None and self.end < self.start:
            raise ValueError("`end` must not be before `start`")
        if self.key is not None and self.stream is None:
            raise ValueError("a key needs its `stream`")
        return self


def _chosen(request: Request, stream: str | None) -> list[ServedStream]:
    return [stream_of(request, stream)] if stream is not None else list(service_of(request).streams.values())


@routes.get("/annotations")
def list_annotations(
    request: Request,
    stream: Annotated[str | None, Query(max_length=64)] = None,
    key: AnyKey = None,
    start: Moment = None,
    end: Moment = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> Response:
    """List the annotations that overlap a span of time, latest first. With a key, those of all keys are included."""
    span = (-1e300 if start is None else start, 1e300 if end is None else end)
    found: dict[str, dict[str, Any]] = {}
    for one in _chosen(request, stream):
        with one.database.read() as file:
            for annotation in annotations_of(file, *span, key=key, most=limit):
                facts = found.setdefault(annotation.id, {**annotation._asdict(), "streams": []})
                facts["streams"].append(one.name)
    latest = sorted(found.values(), key=lambda facts: -facts["start"])
    return answer({"annotations": latest[:limit]})


@routes.post("/annotations")
async def post_annotation(request: Request, given: Annotated[NewAnnotation, Body()]) -> Response:
    """Mark a moment or a span, such as a deployment, on the charts of one stream or of all."""
    who, now = _who(request, given.by), clock.time()
    start = now if given.start is None else given.start
    facts = {"start": start, "end": max(start, given.end or start), "key": given.key, "text": given.text}
    annotation = new_annotation({**facts, "kind": given.kind, "who": who, "at": now})
    chosen = _chosen(request, given.stream)
    for stream in chosen:
        await asyncio.to_thread(_annotate, stream, annotation)
    return answer({**annotation._asdict(), "streams": [stream.name for stream in chosen]})


def _annotate(stream: ServedStream, annotation: Annotation) -> None:
    with stream.database.write() as file:
        add_annotation(file, annotation)
        log(file, annotation.who, "annotate", annotation._asdict())


@routes.delete("/annotations/{id}")
async def remove_annotation(request: Request, id: Annotated[str, Path(max_length=64)]) -> Response:
    """Delete an annotation from all streams."""
    who = who_asks(request)
    found = [await asyncio.to_thread(_unannotate, stream, id, who) for stream in _chosen(request, None)]
    if not any(found):
        raise HTTPException(404, f"there is no annotation {id!r}")
    return answer({"removed": id})


def _unannotate(stream: ServedStream, id: str, who: str) -> bool:
    with stream.database.write() as file:
        is_known = delete_annotation(file, id)
        if is_known:
            log(file, who, "remove annotation", {"annotation": id})
    return is_known


# ---- causes ----------------------------------------------------------------------------------------------------------


@routes.get("/causes")
def causes(
    request: Request,
    stream: Annotated[str | None, Query(max_length=64)] = None,
    start: Moment = None,
    end: Moment = None,
    min_severity: MinSeverity = 1,
) -> Response:
    """Group the events that overlap a span of time by cause: stream, kind, and main field and its side; most first."""
    first, last = (-1e300 if start is None else start), (1e300 if end is None else end)
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for one in _chosen(request, stream):
        for event in one.events.find(most=1000, min_severity=min_severity, start=first, end=last):
            groups.setdefault((one.name, event["kind"], *cause_of(event)), []).append(event)
    found = [_cause(place, events) for place, events in groups.items()]
    return answer({"causes": sorted(found, key=lambda cause: (-cause["n_events"], -cause["end"]))})


def _cause(place: tuple[Any, ...], events: list[dict[str, Any]]) -> dict[str, Any]:
    stream, kind, field, side = place
    keys = list(dict.fromkeys(event["key"] for event in events))
    return {
        "stream": stream,
        "kind": kind,
        "field": field,
        "side": side,
        "n_events": len(events),
        "n_open": sum(event["is_open"] for event in events),
        "n_keys": len(keys),
        "keys": keys[:_MOST_OF_CAUSE],
        "severity": max((event["severity"] for event in events if event.get("severity")), default=None),
        "start": min(event["start"] for event in events),
        "end": max(event["end"] for event in events),
        "events": [brief(event) for event in events[:_MOST_OF_CAUSE]],
    }
