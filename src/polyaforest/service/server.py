"""The server process: socket, HTTP protocol and signals."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from polyaforest.io.errors import BadInput
from polyaforest.service.app import Feeder, Service, make_app
from polyaforest.service.check import check_config
from polyaforest.service.config import Config
from polyaforest.service.security import HEAD_BYTES
from polyaforest.util.system import HANGUP

__all__ = ["serve"]

_LOG = logging.getLogger("polyaforest.service")
_MOST_CONNECTIONS = 2000
_UNREAD_SECONDS = 60  # before a client that does not read is disconnected
_GRACE_SECONDS = 10
_SWITCH_SECONDS = 0.0005  # short: scoring a record releases and retakes the interpreter lock several times


def _protocol(header_seconds: float) -> type[H11Protocol]:
    """Return an HTTP protocol with a timeout on the headers of each request."""

    class Protocol(H11Protocol):
        """Closes the connection of a client that does not send the headers of its next request in time."""

        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            """Start the timeout of the first request."""
            super().connection_made(transport)
            self._update_deadline()

        def data_received(self, data: bytes) -> None:
            """Update the timeout; between requests, the keep-alive timeout applies."""
            super().data_received(data)
            self._update_deadline()

        def connection_lost(self, exc: Exception | None) -> None:
            """Cancel the timeout."""
            super().connection_lost(exc)
            self._cancel_deadline()

        def _update_deadline(self) -> None:
            """Start the timeout, which further bytes do not extend; cancel it while a request is handled."""
            if self.cycle is not None and not self.cycle.response_complete:
                self._cancel_deadline()
            elif self._deadline is None:
                self._deadline = self.loop.call_later(header_seconds, self.transport.close)

        def _cancel_deadline(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

    return Protocol


class _Server(uvicorn.Server):
    """A server that saves everything on a signal before it exits."""

    def __init__(
        self, config: uvicorn.Config, close_soon: Callable[[], None], reload: Callable[[], None] | None
    ) -> None:
        super().__init__(config)
        self._close_soon, self._reload, self._has_terminal = close_soon, reload, _has_terminal()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop, and end feeds and previews."""
        super().handle_exit(sig, frame)
        self._close_soon()

    def handle_hangup(self, sig: int, frame: FrameType | None) -> None:
        """Reload the configuration; stop if there is none or the terminal was closed."""
        is_terminal_closed = self._has_terminal and not _has_terminal()
        if self._reload is None or is_terminal_closed:
            self.handle_exit(sig, frame)
        else:
            threading.Thread(target=self._reload, name="reload", daemon=True).start()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop at the first signal, without waiting for clients at a second; SIGHUP reloads the configuration."""
        handlers = {signal.SIGINT: self.handle_exit, signal.SIGTERM: self.handle_exit}
        if HANGUP is not None and signal.getsignal(HANGUP) is not signal.SIG_IGN:  # as under nohup
            handlers[HANGUP] = self.handle_hangup
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _has_terminal() -> bool:
    """Return whether the process has an open terminal."""
    try:
        with open("/dev/tty", "rb", buffering=0):
            return True
    except OSError:
        return False


def serve(
    config: Config,
    say: Callable[[str], None],
    feeder: Feeder | None = None,
    read: Callable[[], Config] | None = None,
    file: str | None = None,
) -> None:
    """Serve until a signal arrives; then save everything.

    Parameters
    ----------
    config : Config
    say : callable
        Prints a message.
    feeder : Feeder, optional
        Posts generated records to the streams.
    read : callable, optional
        Reads the configuration again.
    file : str, optional
        The configuration file, for changes from the page.
    """
    check_config(config)
    listener = _listener(config.server.host, config.server.port)
    port = listener.getsockname()[1]
    service = Service(config.at(port=port), None if read is None else lambda: read().at(port=port), file)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    server = _Server(
        uvicorn.Config(
            make_app(service, feeder),
            http=_protocol(config.server.header_timeout),
            ws="none",
            log_config=None,
            log_level=logging.ERROR,  # clients must not fill the log with malformed requests
            proxy_headers=bool(config.server.trusted_proxies),
            forwarded_allow_ips=config.server.trusted_proxies,
            access_log=False,
            server_header=False,
            h11_max_incomplete_event_size=HEAD_BYTES,  # of a request that arrives in pieces
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=_GRACE_SECONDS,
        ),
        service.close_soon,
        None if read is None else lambda: _reload(service),
    )
    sys.setswitchinterval(_SWITCH_SECONDS)
    host = f"[{config.server.host}]" if ":" in config.server.host else config.server.host
    access = "a token is required" if service.tokens.are_needed else "only from this machine"
    n = len(service.streams)
    say(f"Serving {n} stream{'' if n == 1 else 's'} at http://{host}:{port} ({access}). Stop with Ctrl-C.")
    asyncio.run(server.serve([listener]))


def _reload(service: Service) -> None:
    """Reload the configuration; log the reason if that fails."""
    try:
        service.reload("SIGHUP")
    except Exception as problem:  # the former settings stay in use
        is_expected = isinstance(problem, (BadInput, OSError))
        _LOG.error("the settings are unchanged: %s", problem, exc_info=None if is_expected else problem)


def _listener(host: str, port: int) -> socket.socket:
    """Return a listening socket."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # for asyncio to set TCP_NODELAY
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux: connections inherit it
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _UNREAD_SECONDS)
    try:
        listener.bind((host, port))
    except OSError as problem:
        listener.close()
        raise BadInput(f"cannot listen on {host}, port {port}: {problem.strerror}") from problem
    listener.listen(1024)
    return listener
