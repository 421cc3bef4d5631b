"""The routes of the API, the probes and the page."""

from __future__ import annotations

from fastapi import APIRouter

from polyaforest.service.routes import events, history, records, streams
from polyaforest.service.routes.answers import ERRORS
from polyaforest.service.routes.machines import pages, probes

__all__ = ["pages", "probes", "routes"]

routes = APIRouter(responses=ERRORS)
for _part in (streams, records, history, events):
    routes.include_router(_part.routes)
