"""The application: the streams, alerts and live feed of one process, and its HTTP API."""

from __future__ import annotations

import asyncio
import os
import threading
import time as clock
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import wait
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect

from polyaforest import __version__
from polyaforest.io.errors import BadInput
from polyaforest.service.alerts import Destination
from polyaforest.service.audit import log
from polyaforest.service.changes import StreamPlan, server_changes, stored_plan
from polyaforest.service.check import check_config
from polyaforest.service.config import Config, StreamConfig, parse_config
from polyaforest.service.database import Damaged
from polyaforest.service.delivery import Delivery, Sender
from polyaforest.service.feed import Feed
from polyaforest.service.feedback import complete_pending, reapply_feedback
from polyaforest.service.folder import Folder
from polyaforest.service.gateway import Gateways
from polyaforest.service.inbox import Busy
from polyaforest.service.incidents import IncidentBook
from polyaforest.service.metrics import Metrics
from polyaforest.service.openapi import described
from polyaforest.service.otlp_export import VerdictExporter
from polyaforest.service.preview import Previews
from polyaforest.service.problems import PROBLEM, problem_text
from polyaforest.service.routes import metric_routes, pages, probes, routes
from polyaforest.service.security import Guard, Tokens
from polyaforest.service.sessions import Sessions
from polyaforest.service.settings_file import edited, write_settings
from polyaforest.service.stream import ServedStream, StreamContext
from polyaforest.service.worker import Worker

__all__ = ["Feeder", "Service", "make_app"]

_RELOAD_SECONDS = 60.0  # for a stream to finish its batch and restart
_LEAST_ZIPPED = 2048  # bytes of a response
_ZIP_LEVEL = 1  # speed matters more: it runs on the thread of all requests
_ABOUT = """Anomalies in streams, with explanations. Times are seconds since 1970 (UTC). A key is the value by which a
stream is partitioned; it is empty if the stream is not partitioned."""


class Service:
    """The streams of a process and their shared resources.

    Parameters
    ----------
    config : Config
    read : callable, optional
        Reads the configuration again; raises `BadInput` if it is invalid.
    file : str, optional
        The configuration file, for changes from the page.
    """

    def __init__(self, config: Config, read: Callable[[], Config] | None = None, file: str | None = None) -> None:
        self.config, self._read, self.file = config, read, file
        self._reloading = threading.RLock()
        self.tokens = Tokens(config.server)
        self._folder = Folder(config.server.data)  # before any file in it is opened
        path = os.path.join(config.server.data, "sessions.json")
        self.sessions = Sessions(self.tokens, path, config.server.session_age)
        self.metrics = Metrics(key_labels=config.server.key_labels)
        self.feed = Feed(self.metrics.dropped.inc, config.server.feeds_per_address)
        self.metrics.watch(self._gauges)
        self.started = clock.time()
        self.is_demo = False
        self.previews = Previews()
        self.gateways = Gateways()
        self._exporter = None if config.server.otlp_url is None else VerdictExporter(config.server)
        destinations = [Destination(alert) for alert in config.alerts]
        self.book = IncidentBook()
        self._sender = Sender(
            Delivery(lambda: [stream.outbox for stream in self.streams.values()], self.book),
            lambda outcome, n: self.metrics.alerts.labels(outcome).inc(n),
        )
        link = config.server.public_url or f"http://{config.server.host}:{config.server.port}"
        self._shared = StreamContext(
            config.server.data, self.feed, self.metrics, destinations, link.rstrip("/"), self._sender.wake, self.book
        )
        self.streams = {name: self._new_stream(name, stream) for name, stream in config.streams.items()}

    def _new_stream(self, name: str, config: StreamConfig) -> ServedStream:
        stream = ServedStream(name, config, self._shared)
        stream.on_open.append(complete_pending)
        if self._exporter is not None:
            stream.on_scored.append(self._exporter.note)
        stream.reapply_feedback = reapply_feedback
        return stream

    @property
    def is_ready(self) -> bool:
        """Whether all streams run."""
        return all(stream.is_ready for stream in self.streams.values())

    def start(self) -> None:
        """Start all threads."""
        for stream in self.streams.values():
            stream.start()
        self._sender.start()
        if self._exporter is not None:
            self._exporter.start()

    def close_soon(self) -> None:
        """End feeds and previews; safe in any thread or signal handler."""
        self.previews.close()
        self.feed.close_soon()

    def stop(self) -> None:
        """Save everything and stop all threads."""
        self._sender.stop()
        for stream in self.streams.values():
            stream.stop()
        if self._exporter is not None:
            self._exporter.stop()
        self._folder.close()

    # ---- settings ----------------------------------------------------------------------------------------------------

    def reload(self, who: str) -> dict[str, Any]:
        """Read the configuration again and apply it; return what changed.

        Raises `BadInput`, and changes nothing, if the file is invalid or a stream cannot apply its settings.
        """
        if self._read is None:
            raise BadInput("this service has no configuration file to reload")
        with self._reloading:
            config = self._read()
            check_config(config)
            plans = self._plans(config)
            waiting = [name for name in server_changes(self.config.server, config.server) if name != "tokens"]
            server = self.config.server.model_copy(update={"tokens": config.server.tokens})
            has_other_tokens = self.tokens.use(server)
            if has_other_tokens:
                self.feed.end_sessions()
            changed = {**self._apply(config.model_copy(update={"server": server}), who), "tokens": has_other_tokens}
            return {
                "applied": {name: plan.applied for name, plan in plans.items() if plan.applied},
                "relearned": {name: plan.relearned for name, plan in plans.items() if plan.relearned},
                **changed,
                "at_next_start": [f"server.{name}" for name in waiting],
            }

    def change_settings(self, stream: str, values: dict[str, Any], who: str, *, is_trial: bool) -> dict[str, Any]:
        """Change settings of a stream in the file and apply them; with `is_trial`, only return what would change.

        Raises `BadInput` or OSError, and changes nothing, if that is impossible.
        """
        if self.file is None or self._read is None:
            raise BadInput("this service has no configuration file to change")
        with self._reloading:
            before = Path(self.file).read_text("utf-8")
            after = edited(before, stream, values)
            config = parse_config(after, self.file)
            check_config(config.model_copy(update={"server": self.config.server}))
            plan = self._plans(config)[stream]
            if is_trial:
                return {"applied": plan.applied, "relearned": plan.relearned}
            write_settings(self.file, after)
            try:
                return self.reload(who)
            except BaseException:
                write_settings(self.file, before)
                raise

    def _plans(self, config: Config) -> dict[str, StreamPlan]:
        """Return the plan of each stream; raise `BadInput` if one cannot apply its settings."""
        different = [
            stream for name, stream in self.streams.items() if config.streams.get(name, stream.config) != stream.config
        ]
        wait([stream.call(Worker.commit) for stream in different if stream.is_ready], _RELOAD_SECONDS)
        plans = {name: stored_plan(self.config.server.data, name, one)[0] for name, one in config.streams.items()}
        problems = [
            config.words_at(("streams", name, *setting.split(".")), words)
            for name, plan in plans.items()
            for setting, words in zip(plan.refused, plan.problems(), strict=True)
        ]
        if problems:
            raise BadInput("; ".join(problems))
        return plans

    def _apply(self, config: Config, who: str) -> dict[str, Any]:
        """Apply a configuration; return the streams that started or stopped, and whether alerts changed."""
        has_other_alerts = config.alerts != self.config.alerts
        self._shared = replace(self._shared, destinations=[Destination(alert) for alert in config.alerts])
        new = {name: self._new_stream(name, config.streams[name]) for name in config.streams.keys() - self.streams}
        gone = [stream for name, stream in self.streams.items() if name not in config.streams]
        kept = [stream for name, stream in self.streams.items() if name in config.streams]
        self.config = config
        known = {**self.streams, **new}
        self.streams = {name: known[name] for name in config.streams}  # in one step: other threads read it
        for stream in kept if has_other_alerts else ():
            with stream.database.write() as file:
                log(file, who, "alerts", {"names": [alert.name for alert in config.alerts]})
            stream.outbox.use(self._shared.destinations)
        for stream in new.values():
            stream.start()
        for stream in gone:
            stream.stop()
        different = [stream for stream in kept if stream.config != config.streams[stream.name]]
        self._change(different, config, who)
        return {"started": sorted(new), "stopped": sorted(one.name for one in gone), "alerts": has_other_alerts}

    def _change(self, streams: Sequence[ServedStream], config: Config, who: str) -> None:
        """Apply changed settings to streams, each from its next batch on; raise if one fails."""
        answers = {stream.name: stream.change(config.streams[stream.name], who) for stream in streams}
        done, _ = wait(answers.values(), _RELOAD_SECONDS)
        failed = [name for name, answer in answers.items() if answer in done and answer.exception() is not None]
        if failed:
            former = {name: self.streams[name].config for name in failed}
            self.config = config.model_copy(update={"streams": {**config.streams, **former}})
            raise BadInput(f"stream {failed[0]} keeps its former settings: {answers[failed[0]].exception()}")

    def _gauges(self) -> Iterable[tuple[str, str, dict[str, str], float]]:
        for name, stream in self.streams.items():
            labels = {"stream": name}
            yield "polyaforest_lag_seconds", "Seconds since the time of the latest record.", labels, stream.lag
            yield "polyaforest_damaged", "Damaged parts of the history.", labels, float(stream.history.n_damaged)
            yield "polyaforest_model_bytes", "Memory of the models.", labels, float(stream.model_bytes)
            yield "polyaforest_keys", "Keys with a model.", labels, float(stream.n_keys)
            yield "polyaforest_open_events", "Open events.", labels, float(stream.events.n_open())
            yield "polyaforest_alerts_waiting", "Alerts waiting to be sent.", labels, float(stream.outbox.n_waiting())
            yield "polyaforest_stream_up", "1 if the stream is running, 0 if not.", labels, float(stream.is_ready)
        yield "polyaforest_feed_readers", "Readers of the live feed.", {}, float(len(self.feed))
        yield "polyaforest_previews", "Previews that are running.", {}, float(self.previews.is_busy)


class Feeder(Protocol):
    """A generator of records for the streams of a service."""

    def start(self, streams: Mapping[str, ServedStream]) -> None:
        """Start posting records."""
        ...

    def stop(self) -> None:
        """Stop posting records."""
        ...


def make_app(service: Service, feeder: Feeder | None = None) -> Any:
    """Return the ASGI application of a service; its lifespan starts and stops the service."""

    @asynccontextmanager
    async def running(app: FastAPI) -> AsyncIterator[None]:
        passing = service.gateways.run(lambda: list(service.streams.values()))  # a reload replaces the mapping
        tasks = [asyncio.create_task(service.feed.run()), asyncio.create_task(passing)]
        service.start()
        if feeder is not None:
            service.is_demo = True
            feeder.start(service.streams)
        try:
            yield
        finally:
            if feeder is not None:
                feeder.stop()
            service.previews.close()
            service.feed.close()
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            await asyncio.to_thread(service.gateways.save)
            await asyncio.to_thread(service.stop)

    app = FastAPI(
        title="polyaforest",
        version=__version__,
        description=_ABOUT,
        lifespan=running,
        docs_url=None,  # pages that load scripts from elsewhere
        redoc_url=None,
        openapi_url="/api/v1/openapi.json",
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.service = service
    app.include_router(routes, prefix="/api/v1")
    app.include_router(probes)
    app.include_router(metric_routes)
    app.include_router(pages(Path(__file__).with_name("page")))

    @app.exception_handler(RequestValidationError)
    async def invalid_request(_: Request, problem: RequestValidationError) -> Response:
        """Report which part of a request is invalid."""
        errors = [{"where": ".".join(map(str, error["loc"])), "what": error["msg"]} for error in problem.errors()]
        words = "; ".join(f"{error['where']}: {error['what']}" for error in errors)
        return _problem(422, words, {"errors": errors})

    @app.exception_handler(HTTPException)
    async def http_error(_: Request, problem: HTTPException) -> Response:
        """Return an error with its reason."""
        return _problem(problem.status_code, problem.detail, headers=dict(problem.headers or {}))

    @app.exception_handler(Busy)
    async def busy(_: Request, problem: Busy) -> Response:
        """Ask the client to retry later."""
        return _problem(503, str(problem), headers={"retry-after": "1"})

    @app.exception_handler(ClientDisconnect)
    async def client_disconnected(_: Request, __: ClientDisconnect) -> Response:
        """Return a response that is never sent: the client has disconnected."""
        return _problem(400, "the client disconnected before the whole request arrived")

    @app.exception_handler(Damaged)
    async def history_damaged(_: Request, problem: Damaged) -> Response:
        """Ask the client to retry once the file is rebuilt."""
        return _problem(503, str(problem), headers={"retry-after": "5"})

    @app.exception_handler(ModuleNotFoundError)
    async def library_missing(_: Request, problem: ModuleNotFoundError) -> Response:
        """Say which extra to install on the server."""
        return _problem(501, str(problem))

    app.openapi = partial(described, app)  # type: ignore[method-assign]
    app.add_middleware(_Zip, minimum_size=_LEAST_ZIPPED, compresslevel=_ZIP_LEVEL)
    return Guard(app, service.config.server, service.tokens, service.sessions, service.metrics.observe_request)


class _Zip(GZipMiddleware):
    """Compresses answers, except live messages, which must not wait, and backups, which hardly shrink."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle a request."""
        is_plain = str(scope.get("path", "")).endswith(("/feed", "/backup"))
        await (self.app if is_plain else super().__call__)(scope, receive, send)


def _problem(
    status: int, detail: str, more: dict[str, Any] | None = None, headers: dict[str, str] | None = None
) -> Response:
    return Response(problem_text(status, detail, more), status, headers, PROBLEM)
