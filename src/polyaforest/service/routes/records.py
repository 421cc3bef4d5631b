"""Routes that accept and delete records."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

import orjson
from fastapi import APIRouter, HTTPException, Query, Request, Response

from polyaforest.io.records import LONGEST_KEY
from polyaforest.service.bodies import body_of
from polyaforest.service.feedback import forget
from polyaforest.service.inbox import Accepted, NameReused
from polyaforest.service.problems import PROBLEM, problem_text
from polyaforest.service.routes.answers import CONFLICT, AnyKey, Named, answer, ask, who_asks
from polyaforest.service.worker import RecordResult

__all__ = ["routes"]

_MOST_RECORDS = 100_000  # in a request
_LONGEST_NAME = 256  # characters of an Idempotency-Key
_NDJSON = ("application/x-ndjson", "application/jsonl", "application/jsonlines", "text/plain")

routes = APIRouter()

_RECORDS = {
    "requestBody": {
        "required": True,
        "content": {
            "application/x-ndjson": {
                "schema": {"type": "string"},
                "example": '{"time": 1700000000, "cpu": 41.5}\n{"time": 1700000010, "cpu": 97}\n',
            },
            "application/json": {
                "schema": {"anyOf": [{"type": "object"}, {"type": "array", "items": {"type": "object"}}]},
                "example": [{"time": 1700000000, "host": "web-1", "cpu": 41.5}],
            },
        },
    }
}


@routes.post(
    "/streams/{stream}/records",
    openapi_extra=_RECORDS,
    responses={413: {"description": "The body is too large."}, 202: {"description": "On disk, not scored yet."}},
)
async def post_records(
    request: Request,
    stream: Named,
    wait: Annotated[bool, Query(description="Whether to wait until the records are scored.")] = True,
    verdicts: Annotated[Literal["all", "flagged", "none"], Query(description="Which verdicts to return.")] = "all",
) -> Response:
    """Score and learn records: lines of JSON, a JSON object, or an array of objects.

    Returns 200 with verdicts, or 202 with positions if `wait=false`. Either way, the records are on disk and survive a
    crash. A request repeated with the same `Idempotency-Key` header is processed once; reusing the key with other
    records is an error.
    """
    inbox = stream.inbox
    if inbox is None or stream.config.source != "http":
        raise HTTPException(409, f"the stream {stream.name!r} reads from {stream.source_name} and cannot be posted to")
    if not stream.is_ready:
        raise HTTPException(503, f"the stream {stream.name!r} is not running: {stream.error or 'it is starting'}")
    name = request.headers.get("idempotency-key")
    if name is not None and not 0 < len(name) <= _LONGEST_NAME:
        raise HTTPException(400, f"the Idempotency-Key must have 1 to {_LONGEST_NAME} characters")
    lines = _lines(await body_of(request), request.headers.get("content-type", ""))
    try:
        accepted = await asyncio.wrap_future(inbox.put(lines, name=name, waits=wait))
    except NameReused:
        reason = "this Idempotency-Key was already used for other records: send these records with a new key"
        raise HTTPException(422, reason) from None
    positions = {"first": accepted.first, "last": accepted.first + accepted.n - 1, "records": accepted.n}
    if not wait or accepted.is_repeated:
        return answer({**positions, "repeated": accepted.is_repeated}, 202)
    return _judged(accepted, positions, verdicts)


def _judged(accepted: Accepted, positions: dict[str, int], wanted: str) -> Response:
    """Return the verdicts on the records of a request."""
    good = [result for result in accepted.results if isinstance(result, RecordResult)]
    bad = [result for result in accepted.results if not isinstance(result, RecordResult)]
    flagged = [one for one in good if one.judgement.is_anomaly]
    shown = {"all": good, "flagged": flagged, "none": []}[wanted]
    facts = {
        **positions,
        "judged": len(good),
        "flagged": len(flagged),
        "rejected": bad[:100],
        "n_rejected": len(bad),
        "verdicts": [one.line() for one in shown],
    }
    if bad and not good:
        words = f"no record can be used; the first error: {bad[0]['error']}"
        return Response(problem_text(422, words, facts), 422, media_type=PROBLEM)
    return answer(facts)


def _lines(body: bytes, kind: str) -> list[bytes]:
    """Split a body into records as lines of JSON; raise if there are none."""
    try:
        body.decode()
    except UnicodeDecodeError as problem:
        raise HTTPException(400, f"byte {problem.start + 1} of the body is not UTF-8") from None
    if kind.partition(";")[0].strip().lower() in _NDJSON:
        lines = [line for line in body.split(b"\n") if line and not line.isspace()]
    else:
        try:
            parsed = orjson.loads(body)
        except orjson.JSONDecodeError as problem:
            hint = "; for lines of JSON send Content-Type: application/x-ndjson"
            raise HTTPException(400, f"the body is not JSON: {problem}{hint}") from None
        records = parsed if isinstance(parsed, list) else [parsed]
        if not all(isinstance(record, dict) for record in records):
            raise HTTPException(422, "each record must be a JSON object: send one object or an array of objects")
        try:
            lines = [orjson.dumps(record) for record in records]
        except orjson.JSONEncodeError as problem:  # orjson reads deeper nesting than it writes
            raise HTTPException(422, f"a record cannot be used: {problem}") from None
    if not lines:
        raise HTTPException(422, "the body has no records")
    if len(lines) > _MOST_RECORDS:
        raise HTTPException(413, f"the body has more than {_MOST_RECORDS:,} records: send smaller batches")
    return lines


@routes.get("/streams/{stream}/quarantine")
def quarantine(stream: Named, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> Response:
    """Return the latest rejected records, with the reasons."""
    query = "SELECT position, at, reason, record FROM quarantine ORDER BY rowid DESC LIMIT ?"
    with stream.database.read() as file:
        rows = file.execute(query, (limit,)).fetchall()
    return answer({"records": [dict(zip(("position", "at", "reason", "record"), row, strict=True)) for row in rows]})


@routes.delete("/streams/{stream}/records", responses=CONFLICT)
async def delete_records(
    request: Request,
    stream: Named,
    id: Annotated[str, Query(min_length=1, max_length=LONGEST_KEY, description="The id of the records.")],
    key: AnyKey = None,
) -> Response:
    """Delete all records with an id from models, history and events (the right to be forgotten)."""
    if stream.config.id is None:
        raise HTTPException(409, f"records of the stream {stream.name!r} have no ids: set `id` in its configuration")
    who = who_asks(request)
    return answer(await ask(stream, lambda worker: forget(stream, worker, id, key, who=who)))
