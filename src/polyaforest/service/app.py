"""The application: streams, alerts and the feed of one process, and its HTTP interface."""

from __future__ import annotations

import asyncio
import threading
import time as clock
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from polyaforest import __version__
from polyaforest.io._json import to_json
from polyaforest.service.alerts import Destination, Sender
from polyaforest.service.config import Config
from polyaforest.service.database import Damaged
from polyaforest.service.feed import Feed
from polyaforest.service.feedback import settle
from polyaforest.service.folder import Folder
from polyaforest.service.inbox import Busy
from polyaforest.service.metrics import Metrics
from polyaforest.service.routes import pages, probes, routes
from polyaforest.service.security import Guard, Tokens
from polyaforest.service.stream import Shared, Stream

__all__ = ["Feeder", "Service", "make_app"]

_ABOUT = """Anomalies in streams, with reasons. Times are seconds since 1970 (UTC); a key is the value by which a stream
is partitioned, and empty for streams that are not."""


class Service:
    """The streams of a process, and what they share.

    Parameters
    ----------
    config : Config
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.tokens = Tokens(config.server)
        self.metrics = Metrics(key_labels=config.server.key_labels)
        self.feed = Feed(self.metrics.dropped.inc)
        self.metrics.watch(self._gauges)
        self.started = clock.time()
        self.is_demo = False
        self.previewing = threading.Lock()
        self._folder = Folder(config.server.data)  # before any file in it is opened
        destinations = [Destination(alert) for alert in config.alerts]
        self._sender = Sender(
            lambda: [stream.outbox for stream in self.streams.values()],
            lambda outcome, n: self.metrics.alerts.labels(outcome).inc(n),
        )
        link = config.server.public_url or f"http://{config.server.host}:{config.server.port}"
        shared = Shared(config.server.data, self.feed, self.metrics, destinations, link.rstrip("/"), self._sender.wake)
        self.streams = {name: Stream(name, stream, shared) for name, stream in config.streams.items()}
        for stream in self.streams.values():
            stream.settlers.append(settle)

    @property
    def is_ready(self) -> bool:
        """Whether all streams run."""
        return all(stream.is_ready for stream in self.streams.values())

    def start(self) -> None:
        """Start all threads."""
        for stream in self.streams.values():
            stream.start()
        self._sender.start()

    def stop(self) -> None:
        """Save everything and stop all threads."""
        self._sender.stop()
        for stream in self.streams.values():
            stream.stop()
        self._folder.close()

    def _gauges(self) -> Iterable[tuple[str, str, dict[str, str], float]]:
        for name, stream in self.streams.items():
            labels = {"stream": name}
            yield "polyaforest_lag_seconds", "Seconds since the latest record, by its own time.", labels, stream.lag
            yield "polyaforest_damaged", "Damaged parts of the history.", labels, float(stream.history.n_damaged)
            yield "polyaforest_model_bytes", "Memory of the models.", labels, float(stream.model_bytes)
            yield "polyaforest_keys", "Keys that have models.", labels, float(stream.n_keys)
            yield "polyaforest_open_events", "Events that are open.", labels, float(stream.events.n_open())
            yield "polyaforest_alerts_waiting", "Alerts that wait.", labels, float(stream.outbox.n_waiting())
            yield "polyaforest_stream_up", "Whether the stream is judged.", labels, float(stream.is_ready)
        yield "polyaforest_feed_readers", "Readers of the live feed.", {}, float(len(self.feed))


class Feeder(Protocol):
    """Something that feeds the streams of a service with generated records."""

    def start(self, streams: Mapping[str, Stream]) -> None:
        """Begin to feed."""
        ...

    def stop(self) -> None:
        """Feed no more."""
        ...


def make_app(service: Service, feeder: Feeder | None = None) -> Any:
    """Return the ASGI application of a service, which starts and stops with it."""

    @asynccontextmanager
    async def running(app: FastAPI) -> AsyncIterator[None]:
        pulse = asyncio.create_task(service.feed.run())
        service.start()
        if feeder is not None:
            service.is_demo = True
            feeder.start(service.streams)
        try:
            yield
        finally:
            if feeder is not None:
                feeder.stop()
            service.feed.close()
            pulse.cancel()
            with suppress(asyncio.CancelledError):
                await pulse
            await asyncio.to_thread(service.stop)

    app = FastAPI(
        title="polyaforest",
        version=__version__,
        description=_ABOUT,
        lifespan=running,
        docs_url=None,  # pages that load scripts from elsewhere
        redoc_url=None,
        openapi_url="/api/v1/openapi.json",
    )
    app.state.service = service
    app.include_router(routes, prefix="/api/v1")
    app.include_router(probes)
    app.include_router(pages(Path(__file__).with_name("page")))

    @app.exception_handler(RequestValidationError)
    async def refuse(_: Request, problem: RequestValidationError) -> Response:
        """Say which part of a request is wrong."""
        errors = [{"where": ".".join(map(str, error["loc"])), "what": error["msg"]} for error in problem.errors()]
        words = "; ".join(f"{error['where']}: {error['what']}" for error in errors)
        return _json(422, {"detail": words, "errors": errors})

    @app.exception_handler(HTTPException)
    async def explain(_: Request, problem: HTTPException) -> Response:
        """Return an error as JSON."""
        return _json(problem.status_code, {"detail": problem.detail}, dict(problem.headers or {}))

    @app.exception_handler(Busy)
    async def put_off(_: Request, problem: Busy) -> Response:
        """Ask to come back later."""
        return _json(503, {"detail": str(problem)}, {"retry-after": "1"})

    @app.exception_handler(Damaged)
    async def report_damage(_: Request, problem: Damaged) -> Response:
        """Ask to come back when the file is rebuilt."""
        return _json(503, {"detail": str(problem)}, {"retry-after": "5"})

    def observe(method: str, route: str, status: int, seconds: float) -> None:
        service.metrics.requests.labels(method, route, str(status)).observe(seconds)

    return Guard(app, service.config.server, service.tokens, observe)


def _json(status: int, facts: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    return Response(to_json(facts), status, headers, "application/json")
