"""Routes of the form that explains and changes the settings of a stream."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, HTTPException, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from polyaforest.io.errors import BadInput
from polyaforest.service.routes.answers import Named, answer, service_of, who_asks
from polyaforest.service.settings_file import describe_settings

__all__ = ["routes"]

_MOST = 100  # settings in a request

routes = APIRouter()


@routes.get("/streams/{stream}/settings")
def stream_settings(request: Request, stream: Named) -> Response:
    """List the settings of a stream: value, default, what it does, and what a change does."""
    return answer({"settings": describe_settings(stream.config), "can_change": service_of(request).file is not None})


class NewSettings(BaseModel):
    """Settings to change; null restores a default."""

    model_config = ConfigDict(extra="forbid")

    values: Annotated[dict[str, Any], Field(max_length=_MOST)]
    check_only: Annotated[bool, Field(description="Return what would change, and change nothing.")] = False


@routes.post("/streams/{stream}/settings")
def post_settings(request: Request, stream: Named, given: Annotated[NewSettings, Body()]) -> Response:
    """Change settings in the configuration file, and apply them; return what changed.

    Returns 422 and changes nothing if a value is invalid or the stream cannot apply it.
    """
    try:
        change = service_of(request).change_settings
        return answer(change(stream.name, given.values, who_asks(request), is_trial=given.check_only))
    except (BadInput, OSError) as problem:
        raise HTTPException(422, f"the settings are unchanged: {problem}") from None
