"""Shared code of the routes: responses, parameters, streams and time spans."""

from __future__ import annotations

import asyncio
import time as clock
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Depends, HTTPException, Query, Request, Response

from polyaforest.io.json_values import to_json
from polyaforest.io.records import LONGEST_KEY
from polyaforest.service.feedback import Conflict
from polyaforest.service.stream import ServedStream
from polyaforest.service.worker import Worker

__all__ = [
    "CONFLICT", "DAY", "ERRORS", "AnyKey", "Key", "Moment", "Named", "address_of", "answer", "as_json", "ask", "brief",
    "service_of", "span_of", "stream_of", "who_asks",
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
    "id", "stream", "key", "kind", "label", "start", "end", "peak", "is_open", "bits", "p_value", "score", "n_flagged",
    "summary", "attributions", "what", "field", "first", "last", "closed_by",
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
AnyKey = Annotated[str | None, Query(description="Only this key.", max_length=LONGEST_KEY)]
Moment = Annotated[float | None, Query(description="Seconds since 1970.", allow_inf_nan=False, ge=-1e12, le=1e12)]


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
    """Return the role and address of the client, for the audit log."""
    return f"{request.scope.get('role')} at {address_of(request)}"


def brief(event: dict[str, Any]) -> dict[str, Any]:
    return {name: event.get(name) for name in _BRIEF}


def as_json(value: Any) -> Any:
    """Convert settings to JSON values."""
    if isinstance(value, dict):
        return {name: as_json(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(part) for part in value]
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)
