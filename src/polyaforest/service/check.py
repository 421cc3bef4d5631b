"""Checks of a configuration before a start: files, addresses and folders."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

from polyaforest.io.errors import BadInput
from polyaforest.io.sources import check_source
from polyaforest.series.calendar import read_calendar
from polyaforest.service import otlp, remote_write
from polyaforest.service.alerts import Destination
from polyaforest.service.config import AlertConfig, Config, Place, ServerConfig, StreamConfig
from polyaforest.service.otlp_export import VerdictExporter
from polyaforest.service.security import ADMIN_TOKEN, READ_TOKEN, Tokens, read_token

__all__ = ["check_config"]


def check_config(config: Config) -> None:
    """Raise `BadInput` if a start or the first record would fail; name the line and key of each setting."""
    errors = [*_server_errors(config.server)]
    for name, stream in config.streams.items():
        errors += [(("streams", name, *place), words) for place, words in _stream_errors(stream)]
    for number, alert in enumerate(config.alerts):
        errors += [(("alerts", number, *place), words) for place, words in _alert_errors(alert)]
    if errors:
        raise BadInput("; ".join(config.words_at(place, words) for place, words in errors))


def _server_errors(server: ServerConfig) -> Iterator[tuple[Place, str]]:
    files = {"admin_token_file": ADMIN_TOKEN, "read_token_file": READ_TOKEN}
    errors: list[tuple[Place, str]] = [
        ((name,), words)
        for name, variable in files.items()
        if (words := _problem(read_token, getattr(server, name), variable)) is not None
    ]
    for number, token in enumerate(server.tokens):
        if (words := _problem(read_token, token.file, token.env or "")) is not None:
            errors.append((("tokens", number), words))
    if not errors and (words := _problem(Tokens, server)) is not None:
        errors.append((("host",), words))
    if server.otlp_url is not None and (words := _problem(VerdictExporter, server)) is not None:
        errors.append((("otlp_url" if server.otlp_token_file is None else "otlp_token_file",), words))
    if (words := _problem(_check_address, server.host)) is not None:
        errors.append((("host",), words))
    if (words := _problem(_check_folder, server.data)) is not None:
        errors.append((("data",), words))
    yield from ((("server", *place), words) for place, words in errors)


def _stream_errors(stream: StreamConfig) -> Iterator[tuple[Place, str]]:
    extras: dict[str, Callable[[], Any]] = {"otlp": otlp.check_extra, "remote-write": remote_write.message_class}
    needed = extras.get(stream.source)
    if needed is not None and (words := _problem(needed)) is not None:
        yield ("source",), words
    if (words := _problem(read_calendar, stream.calendar)) is not None:
        yield ("calendar",), words
    if stream.prometheus is not None:
        words = _problem(stream.prometheus.open)
        if words is not None:
            yield ("prometheus", "token_file"), words
    elif not stream.has_inbox:
        words = _problem(check_source, stream.source)
        if words is not None:
            yield ("source",), words


def _alert_errors(alert: AlertConfig) -> Iterator[tuple[Place, str]]:
    words = _problem(Destination, alert)
    if words is not None:
        yield (next(name for name in ("url", "url_file", "url_env") if getattr(alert, name) is not None),), words


def _check_address(host: str) -> None:
    """Raise if this machine cannot listen on an address; the port is not checked, as it may be in use now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with closing(socket.socket(family, socket.SOCK_STREAM)) as listener:
        listener.bind((host, 0))


def _check_folder(folder: str) -> None:
    """Raise unless a folder is writable or can be created."""
    place = os.path.abspath(folder)
    while not os.path.lexists(place):
        place = os.path.dirname(place)
    if not os.path.isdir(place):
        raise BadInput(f"{place} is not a folder")
    if not os.access(place, os.W_OK | os.X_OK):
        raise BadInput(f"{place} is not writable")


def _problem(check: Callable[..., Any], *values: Any) -> str | None:
    """Return why a check fails, or None if it passes."""
    try:
        check(*values)
    except (OSError, ValueError, ModuleNotFoundError) as problem:  # BadInput is a ValueError
        if isinstance(problem, OSError) and problem.filename is not None:
            return f"{problem.filename}: {problem.strerror}"
        return str(problem)
    return None
