"""Shared code of the routes: responses, parameters, streams and time spans."""

from __future__ import annotations

import asyncio
import time as clock
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any

from fastapi import Depends, HTTPException, Query, Request, Response
from pydantic import BeforeValidator, WithJsonSchema

from polyaforest.io.json_values import to_json
from polyaforest.io.records import LONGEST_KEY
from polyaforest.service.cursors import LONGEST
from polyaforest.service.feedback import Conflict
from polyaforest.service.stream import ServedStream
from polyaforest.service.worker import Worker

__all__ = [
    "CONFLICT", "DAY", "ERRORS", "AnyKey", "Cursor", "Key", "MinSeverity", "Moment", "Named", "Search", "address_of",
    "answer", "as_json", "ask", "brief", "service_of", "span_of", "stream_of", "who_asks",
]  # fmt: skip

DAY = 86400.0
ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"description": "The request is malformed."},
    401: {"description": "A token is required."},
    403: {"description": "The token or the origin of the request does not allow this."},
    404: {"description": "The stream, key or event does not exist."},
    422: {"description": "A parameter is invalid, or no record can be used; see `detail`."},
    429: {"description": "Too many requests."},
    503: {"description": "Too many records are waiting, or the stream is not running; try again."},
}
CONFLICT: dict[int | str, dict[str, Any]] = {409: {"description": "Not possible in the current state; see `detail`."}}
_BRIEF = (
    "id", "stream", "key", "kind", "label", "start", "end", "peak", "is_open", "bits", "severity", "tail_bits",
    "p_value", "score", "n_flagged", "summary", "attributions", "what", "field", "first", "last", "closed_by",
    "acknowledged", "held", "incident",
)  # fmt: skip


def answer(facts: Any, status: int = 200) -> Response:
    """Return a JSON response; NaN and infinity become null."""
    return Response(to_json(facts), status, media_type="application/json")


def service_of(request: Request) -> Any:
    return request.app.state.service


def stream_of(request: Request, stream: str) -> ServedStream:
    found: ServedStream | None = service_of(request).streams.get(stream)
    if found is None:
        raise HTTPException(404, f"there is no stream {stream!r}")
    return found


Named = Annotated[ServedStream, Depends(stream_of)]
Key = Annotated[str, Query(description="The key; empty if the stream is not partitioned.", max_length=LONGEST_KEY)]
MinSeverity = Annotated[
    int, Query(description="Only events of at least this severity, or without one, such as silence.", ge=1, le=5)
]
Search = Annotated[str, Query(description="Part of the key or, for events, of the summary.", max_length=256)]
AnyKey = Annotated[str | None, Query(description="Only this key.", max_length=LONGEST_KEY)]
Cursor = Annotated[str | None, Query(max_length=LONGEST, description="Where to continue: `next` of the answer before.")]
_MOMENT = {"anyOf": [{"type": "number"}, {"type": "string", "format": "date-time"}, {"type": "null"}]}


def _seconds(value: Any) -> Any:
    """Return a time in RFC 3339 as seconds since 1970; other values unchanged."""
    if not isinstance(value, str) or "T" not in value.upper():
        return value
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError("not a time in RFC 3339, such as 2026-01-31T12:00:00Z") from None
    if moment.tzinfo is None:
        raise ValueError("a time needs an offset: write 2026-01-31T12:00:00Z")
    return moment.timestamp()


Moment = Annotated[
    float | None,
    BeforeValidator(_seconds),
    WithJsonSchema(_MOMENT),
    Query(description="A time in RFC 3339, or seconds since 1970.", allow_inf_nan=False, ge=-1e12, le=1e12),
]


def span_of(
    start: float | None, end: float | None, known: tuple[float, float] | None, default: float
) -> tuple[float, float]:
    """Return a span of time; by default, the last `default` seconds with records."""
    last = end if end is not None else max(known[1], start or known[1]) if known else clock.time()
    first = start if start is not None else last - default
    if first >= last:
        if end is None:
            last = first + 1.0
        else:
            raise HTTPException(422, "start must be before end")
    return first, last


async def ask(stream: ServedStream, task: Callable[[Worker], Any]) -> Any:
    """Run a task on the thread of a stream; return its result."""
    try:
        return await asyncio.wrap_future(stream.call(task))
    except KeyError as problem:
        raise HTTPException(404, f"the stream {stream.name!r} has no event {problem.args[0]!r}") from None
    except Conflict as problem:
        raise HTTPException(409, str(problem)) from None


def address_of(request: Request) -> str:
    """Return the address of the client, as seen by the server or reported by a trusted proxy."""
    return request.client.host if request.client is not None else "unknown"


def who_asks(request: Request) -> str:
    """Return the role, the name of the token and the address of the client, for the audit log."""
    role, name = request.scope.get("role"), request.scope.get("caller")
    return f"{role if name in (None, role) else f'{name} ({role})'} at {address_of(request)}"


def brief(event: dict[str, Any]) -> dict[str, Any]:
    return {name: event.get(name) for name in _BRIEF}


def as_json(value: Any) -> Any:
    """Convert settings to JSON values."""
    if isinstance(value, dict):
        return {name: as_json(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(part) for part in value]
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)
