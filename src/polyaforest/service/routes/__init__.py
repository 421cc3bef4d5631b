"""The routes of the API, the probes and the page."""

from __future__ import annotations

from fastapi import APIRouter, Depends

from polyaforest.service.routes import backup, events, export, history, operations, records, settings_form, streams
from polyaforest.service.routes.answers import ERRORS
from polyaforest.service.routes.machines import pages, probes
from polyaforest.service.routes.metrics import routes as _metric_routes
from polyaforest.service.routes.parameters import only_known

__all__ = ["metric_routes", "pages", "probes", "routes"]

routes = APIRouter(responses=ERRORS, dependencies=[Depends(only_known)])
for _part in (streams, records, export, history, events, backup, operations, settings_form):
    routes.include_router(_part.routes)
metric_routes = APIRouter(responses=ERRORS, dependencies=[Depends(only_known)])
metric_routes.include_router(_metric_routes)
