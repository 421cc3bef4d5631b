"""Routes that read the history, or preview other settings on it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from math import isfinite, log2
from typing import Annotated, Any

from fastapi import APIRouter, Body, HTTPException, Query, Request, Response

from polyaforest.kernels.arrays import Array
from polyaforest.service.blocks import Buckets
from polyaforest.service.preview import Cancelled, Trial, Turn, preview
from polyaforest.service.routes.answers import (
    DAY,
    Key,
    Moment,
    Named,
    Search,
    answer,
    service_of,
    span_of,
    stream_of,
)
from polyaforest.service.stream import ServedStream

__all__ = ["routes"]

_MOST_POINTS = 5000
_MOST_OPEN = 10_000  # events

routes = APIRouter()


@routes.get("/streams/{stream}/series")
def series(
    stream: Named,
    key: Key = "",
    start: Moment = None,
    end: Moment = None,
    points: Annotated[int, Query(ge=10, le=_MOST_POINTS, description="Largest number of points to return.")] = 1000,
) -> Response:
    """Return the values, expected ranges, scores and flags of a key over time.

    If there are more records than `points`, each point covers an equal span of time, with the minimum and maximum of
    its records. Categories are left out. The default range is the last day with records.
    """
    first, last = span_of(start, end, stream.history.span(), DAY)
    found = stream.history.range(key, first, last, points)
    about = {
        "stream": stream.name,
        "key": key,
        "start": first,
        "end": last,
        "n_records": found.n,
        "is_raw": found.is_raw,
    }
    parts, names = found.parts, stream.fields
    if parts is None or parts.wide.shape[2] != len(names):
        nothing: dict[str, Any] = {
            "time": [],
            "n": [],
            "flagged": [],
            "score": [],
            "p_value": [],
            "threshold": [],
            "fields": {},
        }
        return answer({**about, **nothing})
    shown = ("min", "max", "mean", "low", "middle", "high")
    return answer(
        {
            **about,
            "time": _numbers(parts.times),
            "n": parts.counts.tolist(),
            "flagged": parts.flagged.tolist(),
            "score": _numbers(parts.scores),
            "p_value": _numbers(parts.p_values),
            "threshold": _numbers(parts.thresholds),
            "fields": {
                name: {part: _numbers(parts.wide[:, i, k]) for i, part in enumerate(shown)}
                for k, name in enumerate(names)
                if name not in stream.reader.categories
            },
        }
    )


def _numbers(column: Array) -> list[float | None]:
    return [number if isfinite(number) else None for number in column.tolist()]


@routes.get("/overview")
def overview(
    request: Request,
    start: Moment = None,
    end: Moment = None,
    buckets: Annotated[int, Query(ge=10, le=500)] = 120,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    stream: Annotated[str | None, Query(max_length=64)] = None,
    search: Search = "",
) -> Response:
    """Return one lane per key, with the surprise in buckets of time, worst first.

    `surprise` is -log2 of the lowest p-value in the bucket, null without records. Keys with an open event always have a
    lane; `open_since` is when the earliest began. The default range is the last day.
    """
    chosen = [stream_of(request, stream)] if stream is not None else list(service_of(request).streams.values())
    spans = [span for one in chosen if (span := one.history.span()) is not None]
    known = (min(span[0] for span in spans), max(span[1] for span in spans)) if spans else None
    first, last = span_of(start, end, known, DAY)
    found = [_lanes(one, Buckets(first, last, buckets), limit, search) for one in chosen]
    lanes = [lane for of_stream, _ in found for lane in of_stream]
    lanes.sort(key=lambda lane: (-len(lane["open_events"]), -lane["n_flagged"], -lane["worst"]))
    shown = max(limit, sum(bool(lane["open_events"]) for lane in lanes))
    total = sum(n for _, n in found)
    return answer({"start": first, "end": last, "buckets": buckets, "lanes": lanes[:shown], "total": total})


def _lanes(stream: ServedStream, buckets: Buckets, limit: int, search: str) -> tuple[list[dict[str, Any]], int]:
    """Return the lanes of a stream, and how many keys it has in this span."""
    open_events: dict[str, list[dict[str, Any]]] = {}
    for event in stream.events.find(is_open=True, most=_MOST_OPEN):
        if event.get("what") != "stream" and event["kind"] != "failure":
            open_events.setdefault(event["key"], []).append(event)
    lanes = []
    found, n = stream.history.lanes(buckets, limit, always=open_events.keys(), search=search)
    for lane in found:
        surprise = [_bits(p) if n else None for p, n in zip(lane.p_values, lane.n, strict=True)]
        of_key = open_events.get(lane.key, [])
        lanes.append(
            {
                "stream": stream.name,
                "key": lane.key,
                "surprise": surprise,
                "flagged": lane.flagged,
                "n": lane.n,
                "n_flagged": sum(lane.flagged),
                "worst": max((bits for bits in surprise if bits is not None), default=0.0),
                "latest": lane.latest,
                "open_events": [event["id"] for event in of_key],
                "open_since": min((event["start"] for event in of_key), default=None),
            }
        )
    return lanes, n


def _bits(p_value: float) -> float:
    """Return the surprise of a p-value."""
    return round(-log2(p_value), 3) if p_value > 0 else 64.0


@routes.post("/streams/{stream}/preview")
async def post_preview(request: Request, stream: Named, trial: Annotated[Trial, Body()]) -> Response:
    """Score the latest records with other settings; return what they would flag.

    One preview runs at a time. It is cancelled when its client disconnects.
    """
    previews = service_of(request).previews
    turn = previews.begin()
    if turn is None:
        raise HTTPException(503, "another preview is running: try again later", {"retry-after": "2"})

    def run() -> Response:
        try:
            return answer(preview(stream, trial, turn.check))
        finally:
            previews.end()

    try:
        return await _until_left(request, asyncio.to_thread(run), turn)
    except Cancelled:
        raise HTTPException(503, "the preview was cancelled: the service is stopping or its client left") from None
    except ValueError as problem:
        raise HTTPException(422, str(problem)) from None


async def _until_left(request: Request, work: Coroutine[Any, Any, Response], turn: Turn) -> Response:
    """Return the result of work in a thread; cancel its turn when the client disconnects."""
    working = asyncio.create_task(work)
    leaving = asyncio.ensure_future(request.receive())  # the body is read: the next message is a disconnect
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        turn.is_cancelled = True  # no effect if the work is done
        return await working
    finally:
        turn.is_cancelled = True
        leaving.cancel()
