"""Routes of streams, settings and logins."""

from __future__ import annotations

import asyncio
import time as clock
from math import ceil
from typing import Annotated, Any

from fastapi import APIRouter, Body, HTTPException, Query, Request, Response
from pydantic import BaseModel, Field

from polyaforest import __version__
from polyaforest.io.errors import BadInput
from polyaforest.service.config import StreamConfig, public, to_toml
from polyaforest.service.routes.answers import Named, answer, as_json, service_of, who_asks
from polyaforest.service.security import COOKIE
from polyaforest.service.stream import ServedStream
from polyaforest.settings.values import settings_of

__all__ = ["routes"]

_LATE = "not in the first record"

routes = APIRouter()


@routes.get("/status")
def status(request: Request) -> Response:
    """Return the state of the service and the role of the caller."""
    service = service_of(request)
    return answer(
        {
            "version": __version__,
            "now": clock.time(),
            "started": service.started,
            "role": request.scope.get("role"),
            "needs_token": service.tokens.are_needed,
            "is_demo": service.is_demo,
            "streams": [_about(stream) for stream in service.streams.values()],
        }
    )


@routes.get("/streams")
def streams(request: Request) -> Response:
    """List all streams."""
    return answer({"streams": [_about(stream) for stream in service_of(request).streams.values()]})


@routes.get("/streams/{stream}")
def stream(request: Request, stream: Named) -> Response:
    """Return one stream with its settings."""
    settings = {name: one.plain(getattr(stream.config, name)) for name, one in settings_of(StreamConfig).items()}
    settings["retention"] = stream.config.retention.model_dump()
    settings["metrics"] = None if stream.config.metrics is None else stream.config.metrics.model_dump()
    metrics = service_of(request).gateways.about(stream)
    return answer({**_about(stream), "settings": settings, "damaged": stream.history.damaged(), "metrics": metrics})


@routes.get("/streams/{stream}/keys")
def keys(
    stream: Named,
    search: Annotated[str, Query(max_length=256, description="Part of the key.")] = "",
    offset: Annotated[int, Query(ge=0, le=10**9)] = 0,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> Response:
    """List the keys of a stream, sorted."""
    found = [key for key in stream.history.keys if search.casefold() in key.casefold()]
    return answer({"keys": found[offset : offset + limit], "total": len(found)})


def _about(stream: ServedStream) -> dict[str, Any]:
    span = stream.history.span()
    return {
        "name": stream.name,
        "source": stream.source_name,
        "accepts_records": stream.inbox is not None and stream.config.source == "http",
        "is_ready": stream.is_ready,
        "error": stream.error,
        "fields": stream.fields,
        "ignored_fields": {**stream.reader.skipped, **dict.fromkeys(dict(stream.reader.late), _LATE)},
        "by": stream.config.by or ("/".join(stream.config.metrics.by) or None if stream.config.metrics else None),
        "is_series": stream.is_series,
        "n_keys": stream.n_keys,
        "n_records": stream.n_records,
        "n_open_events": stream.events.n_open(),
        "start": None if span is None else span[0],
        "end": None if span is None else span[1],
        "lag_seconds": stream.lag,
        "n_damaged": stream.history.n_damaged,
        "model_bytes": stream.model_bytes,
        "relearning": _progress(stream),
        "notice": stream.notice,
    }


def _progress(stream: ServedStream) -> dict[str, Any] | None:
    """Return the progress of relearning, or None if it is not running."""
    relearning = stream.relearning
    if relearning is None:
        return None
    n_learned = min(relearning.n_learned, relearning.n_records)
    return {"settings": stream.relearned, "n_records": relearning.n_records, "n_learned": n_learned}


@routes.get("/settings")
def settings(request: Request) -> Response:
    """Return the settings that differ from the defaults, without secrets, as JSON and as TOML."""
    shown = public(service_of(request).config)
    return answer({**{"server": {}, "alerts": [], **as_json(shown)}, "toml": to_toml(shown)})


@routes.post("/settings/reload")
def reload(request: Request) -> Response:
    """Reload the configuration file without a restart; return what changed.

    If the file is invalid or a stream cannot apply its settings, returns 422 and changes nothing.
    """
    try:
        return answer(service_of(request).reload(who_asks(request)))
    except (BadInput, OSError) as problem:
        raise HTTPException(422, f"the settings are unchanged: {problem}") from None


class Login(BaseModel):
    """The token to log in with."""

    token: str = Field(max_length=4096)


@routes.post("/login")
def login(request: Request, given: Annotated[Login, Body()]) -> Response:
    """Start a session for a valid token and set its cookie."""
    service = service_of(request)
    role = service.tokens.role(given.token)
    if role is None:
        raise HTTPException(401, "this token is invalid")
    reply = answer({"role": role})
    if service.tokens.are_needed:
        age, is_secure = ceil(service.config.server.session_age), request.scope["scheme"] == "https"
        session = service.sessions.start(given.token)
        reply.set_cookie(COOKIE, session, max_age=age, httponly=True, samesite="strict", secure=is_secure)
    return reply


@routes.post("/logout")
async def logout(request: Request) -> Response:
    """End the session of the cookie, and its live feeds."""
    service, session = service_of(request), request.cookies.get(COOKIE)
    if session is not None:
        await asyncio.to_thread(service.sessions.end, session)
        service.feed.end_session(session)
    reply = answer({"role": None})
    reply.delete_cookie(COOKIE)
    return reply
