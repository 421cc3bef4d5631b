"""Routes of probes and metrics, and the files of the page."""

from __future__ import annotations

import mimetypes
from pathlib import Path

from fastapi import APIRouter, HTTPException, Request, Response

from polyaforest.service.routes.answers import answer, service_of

__all__ = ["pages", "probes"]

probes = APIRouter()


@probes.get("/health")
async def health() -> Response:
    """Return 200 while the process is alive."""
    return answer({"status": "alive"})


@probes.get("/ready")
async def ready(request: Request) -> Response:
    """Return 200 once all streams are running, else 503."""
    service = service_of(request)
    states = {
        name: stream.error or ("running" if stream.is_ready else "starting") for name, stream in service.streams.items()
    }
    return answer({"ready": service.is_ready, "streams": states}, 200 if service.is_ready else 503)


@probes.get("/metrics")
def metrics(request: Request) -> Response:
    """Return metrics in the format of Prometheus."""
    return Response(service_of(request).metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def pages(folder: Path) -> APIRouter:
    """Return the routes of the page, which serve the files of a folder unchanged."""
    router = APIRouter(include_in_schema=False)
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}

    @router.get("/{name:path}")
    def page(name: str) -> Response:
        path = files.get(name or "index.html")  # a lookup by name: no path is built from client input
        if path is None:
            raise HTTPException(404, "this page does not exist")
        kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        return Response(path.read_bytes(), media_type=kind, headers={"cache-control": "no-cache"})

    return router
