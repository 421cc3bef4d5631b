"""Routes that accept metrics: OpenTelemetry (OTLP over HTTP) and Prometheus remote write.

Each request goes to all streams with that source; each takes the metrics that its fields name.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

from fastapi import APIRouter, HTTPException, Request, Response
from starlette.exceptions import HTTPException as StarletteHTTPException

from polyaforest.service.bodies import body_of, most_bytes, unsnapped
from polyaforest.service.gather import Gathered
from polyaforest.service.inbox import Busy
from polyaforest.service.otlp import JSON, PROTOBUF, answer_text, error_text, read_metrics
from polyaforest.service.remote_write import read_write_request
from polyaforest.service.routes.answers import service_of
from polyaforest.service.samples import MetricSample
from polyaforest.service.stream import ServedStream

__all__ = ["routes"]

_MOST_SAMPLES = 500_000  # in a request
_OTLP, _REMOTE_WRITE = "otlp", "remote-write"  # sources

routes = APIRouter()


def _binary(kind: str, schema: str = "string") -> dict[str, object]:
    return {"schema": {"type": schema} | ({"format": "binary"} if schema == "string" else {})}


_OTLP_BODY = {
    "requestBody": {
        "required": True,
        "content": {PROTOBUF: _binary(PROTOBUF), JSON: _binary(JSON, "object")},
    }
}
_WRITE_BODY = {"requestBody": {"required": True, "content": {PROTOBUF: _binary(PROTOBUF)}}}


@routes.post(
    "/v1/metrics",
    openapi_extra=_OTLP_BODY,
    operation_id="post_otlp_metrics",
    responses={200: {"description": "Accepted; the answer says how many samples were rejected, and why."}},
)
async def post_otlp(request: Request) -> Response:
    """Accept metrics of OpenTelemetry: an `ExportMetricsServiceRequest` in protobuf or JSON.

    Errors are answered in the form that OpenTelemetry prescribes: a `google.rpc.Status`.
    """
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    kind = JSON if given == JSON else PROTOBUF
    try:
        if given not in (JSON, PROTOBUF):
            raise HTTPException(415, f"send Content-Type: {PROTOBUF} or {JSON}")
        streams = _streams(request, _OTLP)
        body = await body_of(request)
        samples = await asyncio.to_thread(_listed, read_metrics(body, kind))
        all_gathered = await _take(request, streams, samples)
    except (StarletteHTTPException, Busy) as problem:
        if kind == JSON:
            raise
        status = problem.status_code if isinstance(problem, StarletteHTTPException) else 503
        words = str(problem.detail if isinstance(problem, StarletteHTTPException) else problem)
        headers = {"retry-after": "1"} if status in (429, 503) else None
        return Response(error_text(status, words), status, headers, PROTOBUF)
    rejected = sum((one.rejected for one in all_gathered), Counter[str]())
    words = Gathered(0, 0, rejected).words
    return Response(answer_text(rejected.total(), words, kind), 200, media_type=kind)


@routes.post(
    "/api/v1/write",
    openapi_extra=_WRITE_BODY,
    operation_id="post_remote_write",
    status_code=204,
    responses={204: {"description": "The samples are on disk."}},
)
async def post_remote_write(request: Request) -> Response:
    """Accept samples of Prometheus: remote write, version 1."""
    if request.headers.get("content-encoding", "").strip().lower() != "snappy":
        raise HTTPException(415, "send Content-Encoding: snappy, as remote write 1.0 prescribes")
    if "v2" in request.headers.get("content-type", ""):
        raise HTTPException(415, "only remote write 1.0 is supported: set protobuf_message: prometheus.WriteRequest")
    streams = _streams(request, _REMOTE_WRITE)
    text = await asyncio.to_thread(unsnapped, await request.body(), most_bytes(request))
    samples = await asyncio.to_thread(_listed, read_write_request(text))
    all_gathered = await _take(request, streams, samples)
    used, reasons = sum(one.n_used for one in all_gathered), [one.words for one in all_gathered if one.n_invalid]
    if reasons and not used:  # Prometheus drops a batch with status 400, and logs the reason
        raise HTTPException(400, f"no sample can be used: {'; '.join(reasons)}")
    return Response(status_code=204)


def _streams(request: Request, source: str) -> list[ServedStream]:
    """Return the streams with a source; raise if there are none."""
    found = [one for one in service_of(request).streams.values() if one.config.source == source]
    if not found:
        hint = f'set source = "{source}" and the table `metrics` of a stream'
        raise HTTPException(404, f"no stream takes these metrics: {hint}")
    return found


def _listed(samples: Iterator[MetricSample]) -> list[MetricSample]:
    """Read the samples of a request; raise if it has too many or cannot be read."""
    found: list[MetricSample] = []
    try:
        for sample in samples:
            found.append(sample)
            if len(found) > _MOST_SAMPLES:
                raise HTTPException(413, f"the body has more than {_MOST_SAMPLES:,} samples: send smaller batches")
    except ValueError as problem:
        raise HTTPException(400, str(problem)) from None
    return found


async def _take(request: Request, streams: list[ServedStream], samples: list[MetricSample]) -> list[Gathered]:
    """Give samples to all streams."""
    gateways = [service_of(request).gateways.of(stream) for stream in streams]
    return [await gateway.take(samples) for gateway in gateways]
