"""Routes of events, incidents, feedback and the live feed."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Body, HTTPException, Query, Request, Response
from pydantic import BaseModel, Field
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from polyaforest.service.cursors import cursor_of, place_of
from polyaforest.service.feed import Feed, FeedReader, TooManyReaders
from polyaforest.service.feedback import feedback_on, give, undo
from polyaforest.service.incidents import cause_of, find_incidents
from polyaforest.service.routes.answers import (
    CONFLICT,
    AnyKey,
    Cursor,
    MinSeverity,
    Moment,
    Named,
    Search,
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
    min_severity: MinSeverity = 1,
    search: Search = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Cursor = None,
) -> Response:
    """List the events that overlap a span of time, latest first, without details.

    `next` is the cursor of the next page, null at the end.
    """
    chosen = [stream_of(request, stream)] if stream is not None else list(service_of(request).streams.values())
    wanted: dict[str, Any] = {"start": -1e300 if start is None else start, "end": 1e300 if end is None else end}
    wanted |= {"key": key, "is_open": open, "label": label, "min_severity": min_severity, "search": search}
    place = place_of(cursor, float, str)
    wanted["after"] = None if place is None else (place[0], place[1])
    found = [event for one in chosen for event in one.events.find(most=limit + 1, **wanted)]
    found.sort(key=lambda event: (-event["start"], event["id"]))
    last = found[limit - 1] if len(found) > limit else None
    following = None if last is None else cursor_of(last["start"], last["id"])
    return answer({"events": [brief(event) for event in found[:limit]], "next": following})


@routes.get("/streams/{stream}/events/{id}")
def event(stream: Named, id: str) -> Response:
    """Return one event with its explanation, expected ranges, alerts, feedback and similar events."""
    return answer(_in_full(stream, id))


def _in_full(stream: ServedStream, id: str) -> dict[str, Any]:
    found = stream.events.get(id)
    if found is None:
        raise HTTPException(404, f"the stream {stream.name!r} has no event {id!r}")
    field, side = cause_of(found)
    return {
        **found,
        "alerts": stream.outbox.about(id),
        "feedback": feedback_on(stream, id),
        "similar_events": [brief(one) for one in stream.events.similar(found)],
        "cause": {"field": field, "side": side},
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
    min_severity: MinSeverity = 1,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> Response:
    """Return groups of alike events on several keys that overlap in time, latest first, with the key that was first."""
    wanted = {"start": -1e300 if start is None else start, "end": 1e300 if end is None else end}
    streams = service_of(request).streams.values()
    shown = [one.events.find(most=1000, min_severity=min_severity, **wanted) for one in streams]
    found = find_incidents(event for of_stream in shown for event in of_stream)[:limit]
    return answer({"incidents": [{**one, "events": [brief(event) for event in one["events"]]} for one in found]})


@routes.get("/feed", response_class=StreamingResponse, responses={200: {"content": {"text/event-stream": {}}}})
async def feed(
    request: Request,
    stream: Annotated[str | None, Query(max_length=64)] = None,
    key: AnyKey = None,
) -> Response:
    """Stream live updates as server-sent events: `event`, `records`, and `tail` if a key is given."""
    if stream is not None:
        stream_of(request, stream)
    if request.scope.get("is_head"):
        return Response(None, media_type="text/event-stream")
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
