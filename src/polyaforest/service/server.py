"""The process: an HTTP server on a socket, and what it says at its start."""

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

__all__ = ["serve"]

_LOG = logging.getLogger("polyaforest.service")
_MOST_CONNECTIONS = 2000
_UNREAD_SECONDS = 60  # after which a client that reads nothing is disconnected
_GRACE_SECONDS = 10
_SWITCH_SECONDS = 0.0005  # threads hand over often: judging a record leaves and retakes the interpreter several times


def _protocol(header_seconds: float) -> type[H11Protocol]:
    """Return the HTTP protocol, with a time limit on the headers of every request of a connection."""

    class Protocol(H11Protocol):
        """Close the connection of a client that does not send the headers of its next request in time."""

        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            """Expect the first request."""
            super().connection_made(transport)
            self._update_deadline()

        def data_received(self, data: bytes) -> None:
            """Expect the rest of the headers, if these are not all; between requests the keep-alive timeout counts."""
            super().data_received(data)
            self._update_deadline()

        def connection_lost(self, exc: Exception | None) -> None:
            """Expect nothing more."""
            super().connection_lost(exc)
            self._cancel_deadline()

        def _update_deadline(self) -> None:
            """Start the deadline, which further bytes do not defer; cancel it once a request is being handled."""
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
    """A server that saves everything when it is told to stop, and then ends regularly."""

    def __init__(
        self, config: uvicorn.Config, close_soon: Callable[[], None], reload: Callable[[], None] | None
    ) -> None:
        super().__init__(config)
        self._close_soon, self._reload, self._has_terminal = close_soon, reload, _has_terminal()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop, and end what would otherwise run for long or for ever."""
        super().handle_exit(sig, frame)
        self._close_soon()

    def handle_hangup(self, sig: int, frame: FrameType | None) -> None:
        """Read the configuration again; stop if there is none, or if the terminal was closed."""
        is_terminal_closed = self._has_terminal and not _has_terminal()
        if self._reload is None or is_terminal_closed:
            self.handle_exit(sig, frame)
        else:
            threading.Thread(target=self._reload, name="reload", daemon=True).start()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop at the first signal, and do not wait for clients at a second; SIGHUP reads the configuration again."""
        handlers = {signal.SIGINT: self.handle_exit, signal.SIGTERM: self.handle_exit}
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
            handlers[signal.SIGHUP] = self.handle_hangup
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _has_terminal() -> bool:
    """Return whether the process belongs to a terminal that is open."""
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
) -> None:
    """Serve until a signal comes; then save everything.

    Parameters
    ----------
    config : Config
    say : callable
        Takes what is to be said at the start.
    feeder : Feeder, optional
        Feeds streams with generated records.
    read : callable, optional
        Reads the configuration again.
    """
    check_config(config)
    listener = _listener(config.server.host, config.server.port)
    port = listener.getsockname()[1]
    service = Service(config.at(port=port), None if read is None else lambda: read().at(port=port))
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    server = _Server(
        uvicorn.Config(
            make_app(service, feeder),
            http=_protocol(config.server.header_timeout),
            ws="none",
            log_config=None,
            log_level=logging.ERROR,  # malformed requests are not worth a line: anyone could fill the log
            proxy_headers=bool(config.server.trusted_proxies),
            forwarded_allow_ips=config.server.trusted_proxies,
            access_log=False,
            server_header=False,
            h11_max_incomplete_event_size=HEAD_BYTES,  # if it comes in pieces
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=_GRACE_SECONDS,
        ),
        service.close_soon,
        None if read is None else lambda: _reload(service),
    )
    sys.setswitchinterval(_SWITCH_SECONDS)
    host = f"[{config.server.host}]" if ":" in config.server.host else config.server.host
    access = "a token is needed" if service.tokens.are_needed else "only from this machine"
    n = len(service.streams)
    say(f"Serving {n} stream{'' if n == 1 else 's'} at http://{host}:{port} ({access}). Stop with Ctrl-C.")
    asyncio.run(server.serve([listener]))


def _reload(service: Service) -> None:
    """Read the configuration again, and say why if that fails."""
    try:
        service.reload("SIGHUP")
    except Exception as problem:  # the settings before are in force
        is_expected = isinstance(problem, (BadInput, OSError))
        _LOG.error("the settings are unchanged: %s", problem, exc_info=None if is_expected else problem)


def _listener(host: str, port: int) -> socket.socket:
    """Return a socket that listens, before anything else is opened."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # or asyncio would not set TCP_NODELAY
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
