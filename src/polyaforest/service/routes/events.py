"""Routes of events, incidents, feedback and the live feed."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Body, HTTPException, Query, Request, Response
from pydantic import BaseModel, Field
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from polyaforest.service.feed import Feed, FeedReader, TooManyReaders
from polyaforest.service.feedback import feedback_on, give, undo
from polyaforest.service.incidents import find_incidents
from polyaforest.service.routes.answers import (
    CONFLICT,
    AnyKey,
    Moment,
    Named,
    address_of,
    answer,
    ask,
    brief,
    service_of,
    stream_of,
    who_asks,
)
from polyaforest.service.stream import ServedStream

__all__ = ["routes"]

routes = APIRouter()


@routes.get("/events")
def events(
    request: Request,
    stream: Annotated[str | None, Query(max_length=64)] = None,
    key: AnyKey = None,
    start: Moment = None,
    end: Moment = None,
    open: Annotated[bool | None, Query(description="Only open events, or only closed ones.")] = None,
    label: Annotated[Literal["incident", "normal"] | None, Query()] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """List the events that overlap a span of time, latest first, without details."""
    chosen = [stream_of(request, stream)] if stream is not None else list(service_of(request).streams.values())
    wanted = {"start": -1e300 if start is None else start, "end": 1e300 if end is None else end}
    found = [
        event for one in chosen for event in one.events.find(key=key, is_open=open, label=label, most=limit, **wanted)
    ]
    found.sort(key=lambda event: -event["start"])
    return answer({"events": [brief(event) for event in found[:limit]]})


@routes.get("/streams/{stream}/events/{id}")
def event(stream: Named, id: str) -> Response:
    """Return one event with its explanation, expected ranges, alerts, feedback and similar events."""
    return answer(_in_full(stream, id))


def _in_full(stream: ServedStream, id: str) -> dict[str, Any]:
    found = stream.events.get(id)
    if found is None:
        raise HTTPException(404, f"the stream {stream.name!r} has no event {id!r}")
    near = {"start": found["start"] - 86400, "end": found["end"] + 86400}
    incidents = find_incidents(stream.events.find(most=500, **near))
    incident = next((one["id"] for one in incidents if any(part["id"] == id for part in one["events"])), None)
    return {
        **found,
        "alerts": stream.outbox.about(id),
        "feedback": feedback_on(stream, id),
        "similar_events": [brief(one) for one in stream.events.similar(found)],
        "incident": incident,
    }


class Feedback(BaseModel):
    """The feedback of an operator on an event."""

    verdict: Literal["incident", "normal"]
    note: str = Field(default="", max_length=2000)


@routes.post("/streams/{stream}/events/{id}/feedback", responses=CONFLICT)
async def post_feedback(request: Request, stream: Named, id: str, given: Annotated[Feedback, Body()]) -> Response:
    """Label an event as an incident, which the model unlearns exactly, or as normal, which it learns."""
    who = who_asks(request)
    await ask(stream, lambda worker: give(stream, worker, id, given.verdict, who=who, note=given.note))
    return answer(await asyncio.to_thread(_in_full, stream, id))


@routes.delete("/streams/{stream}/events/{id}/feedback", responses=CONFLICT)
async def delete_feedback(request: Request, stream: Named, id: str) -> Response:
    """Undo feedback; the model is then as if it had not been given."""
    who = who_asks(request)
    await ask(stream, lambda worker: undo(stream, worker, id, who=who))
    return answer(await asyncio.to_thread(_in_full, stream, id))


@routes.get("/streams/{stream}/audit")
def audit(stream: Named, limit: Annotated[int, Query(ge=1, le=10_000)] = 100) -> Response:
    """Return the audit log: feedback, deletions and changed settings, latest first."""
    query = "SELECT id, at, who, action, facts FROM audit ORDER BY id DESC LIMIT ?"
    with stream.database.read() as file:
        rows = file.execute(query, (limit,)).fetchall()
    names = ("id", "at", "who", "action", "facts")
    return answer({"entries": [{**dict(zip(names, row, strict=True)), "facts": orjson.loads(row[4])} for row in rows]})


@routes.get("/incidents")
def incidents(
    request: Request,
    start: Moment = None,
    end: Moment = None,
    within: Annotated[float, Query(ge=0, le=86400, description="Most seconds between events of one incident.")] = 60.0,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> Response:
    """Return groups of events on several keys that overlap in time, latest first, with the key that was first."""
    wanted = {"start": -1e300 if start is None else start, "end": 1e300 if end is None else end}
    streams = service_of(request).streams.values()
    found = [brief(event) for one in streams for event in one.events.find(most=1000, **wanted)]
    return answer({"incidents": find_incidents(found, within)[:limit]})


@routes.get("/feed", response_class=StreamingResponse, responses={200: {"content": {"text/event-stream": {}}}})
async def feed(
    request: Request,
    stream: Annotated[str | None, Query(max_length=64)] = None,
    key: AnyKey = None,
) -> Response:
    """Stream live updates as server-sent events: `event`, `records`, and `tail` if a key is given."""
    if stream is not None:
        stream_of(request, stream)
    reader = FeedReader(stream, key, address_of(request), request.scope.get("session"))
    live = service_of(request).feed
    try:
        live.add(reader)
    except TooManyReaders as problem:
        raise HTTPException(429 if problem.is_own_fault else 503, str(problem), {"retry-after": "10"}) from None
    return _FeedResponse(live, reader)


class _FeedResponse(StreamingResponse):
    """The messages for a reader; removes the reader when the response ends."""

    def __init__(self, live: Feed, reader: FeedReader) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(live.listen(reader), media_type="text/event-stream", headers=headers)
        self._live, self._reader = live, reader

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the messages."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._live.remove(self._reader)
