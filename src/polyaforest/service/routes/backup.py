"""The route that downloads a backup."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack

from fastapi import APIRouter, HTTPException, Request, Response
from starlette.background import BackgroundTask
from starlette.responses import StreamingResponse

from polyaforest.service.backup import write_backup
from polyaforest.service.routes.answers import service_of

__all__ = ["routes"]

_PIECE = 1 << 20
_NAME = {"content-disposition": 'attachment; filename="polyaforest-backup.tar"'}

routes = APIRouter()


@routes.get(
    "/backup",
    response_class=StreamingResponse,
)
async def backup(request: Request) -> Response:
    """Download the models and histories of all streams as a tar file, for `polyaforest restore`; only for admins."""
    service = service_of(request)
    if request.scope.get("is_head"):
        return Response(None, 200, _NAME, "application/octet-stream")
    if not service.is_ready:
        raise HTTPException(503, "a stream is not running: see /ready")
    stack = ExitStack()
    folder, streams = service.config.server.data, list(service.streams.values())
    path = await asyncio.to_thread(stack.enter_context, write_backup(streams, folder))
    file = await asyncio.to_thread(path.open, "rb")
    stack.callback(file.close)

    def pieces() -> Iterator[bytes]:
        with stack:
            while piece := file.read(_PIECE):
                yield piece

    headers = {**_NAME, "content-length": str(path.stat().st_size)}
    return StreamingResponse(pieces(), 200, headers, "application/octet-stream", BackgroundTask(stack.close))
