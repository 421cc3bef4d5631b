"""Access control: tokens, limits, and the security headers of every response."""

from __future__ import annotations

import asyncio
import hmac
import os
import re
import time as clock
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import cookie_parser

from polyaforest.io.errors import BadInput
from polyaforest.service.config import LOOPBACK, ServerConfig, TokenConfig
from polyaforest.service.problems import PROBLEM, problem_text

__all__ = ["ADMIN", "COOKIE", "HEAD_BYTES", "READ", "WRITE", "Caller", "Guard", "Token", "Tokens", "read_token"]

ADMIN, READ, WRITE = "admin", "read", "write"  # "write" may only send data
COOKIE = "polyaforest"
READ_TOKEN, ADMIN_TOKEN = "POLYAFOREST_READ_TOKEN", "POLYAFOREST_ADMIN_TOKEN"  # in the environment
HEADER_BYTES = 32 * 1024
HEAD_BYTES = 96 * 1024  # headers and URL: a key of 4,096 characters may need 48 KiB in a URL
_SHORTEST = 16  # characters of a token
_SEND_SECONDS = 30.0  # to send a piece of a response
_MOST_CLIENTS = 10_000  # with a tracked request rate
_MOST_DIGITS = 20  # of a content length; Python converts only so many
_SAFE = ("GET", "HEAD", "OPTIONS")
_CLOSE = {"connection": "close"}  # so that the rest of a body is not read
_DATA = ("/v1/metrics", "/api/v1/write")  # where senders post
_RECORDS = re.compile(r"/api/v1/streams/[^/]+/records")
_ADMIN_ONLY = ("/api/v1/backup",)  # among the routes that change nothing
_OPEN = ("/health", "/ready", "/api/v1/login")  # without a token
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "font-src 'self'; connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Token(NamedTuple):
    """A token: its role, its name for the audit log, and its text."""

    role: str
    name: str
    text: str


class Tokens:
    """The tokens of the service, compared in constant time; without tokens, every local client is an admin.

    Parameters
    ----------
    config : ServerConfig
    """

    def __init__(self, config: ServerConfig) -> None:
        self.all: list[Token] = []
        self.use(config)

    def use(self, config: ServerConfig) -> bool:
        """Use the tokens of a configuration from now on; return whether they changed."""
        single = ((ADMIN, config.admin_token_file, ADMIN_TOKEN), (READ, config.read_token_file, READ_TOKEN))
        found = [
            Token(role, role, text)
            for role, path, variable in single
            if (text := read_token(path, variable)) is not None
        ]
        for one in config.tokens:
            token = _named_token(one)
            if any(token.text == other.text for other in found):
                raise BadInput(f"the token {one.name!r} equals another one: each needs a text of its own")
            found.append(token)
        if found and all(token.role != ADMIN for token in found):
            raise BadInput(
                f"tokens are set but none for an admin: set {ADMIN_TOKEN}, server.admin_token_file or a token with "
                'role = "admin"'
            )
        if not config.is_loopback and not found:
            raise BadInput(
                f"server.host is {config.host}, which other machines can reach: set a token with {ADMIN_TOKEN} or "
                "server.admin_token_file, or listen on 127.0.0.1"
            )
        before, self.all = self.all, found
        return before != found

    @property
    def are_needed(self) -> bool:
        """Whether any token is set."""
        return bool(self.all)

    def role(self, given: str) -> str | None:
        """Return the role of a token; None if it is invalid."""
        found = self.find(given)
        return None if found is None else found.role

    def find(self, given: str) -> Token | None:
        """Return the token with a text; None if there is none."""
        if not self.are_needed:
            return Token(ADMIN, ADMIN, "")
        found: Token | None = None
        for token in self.all:  # compare all: the time taken must not depend on the token
            if hmac.compare_digest(token.text.encode(), given.encode()):
                found = found or token
        return found


class SessionRoles(Protocol):
    """The open sessions, as `Guard` uses them."""

    def find(self, value: str) -> Token | None:
        """Return the token that started a session; None if it is not open."""
        ...


class Caller(NamedTuple):
    """The role and session of the sender of a request, and the name of the token."""

    role: str | None = None
    session: str | None = None
    name: str | None = None


class Guard:
    """The outermost layer: rejects invalid and unauthorised requests, and adds headers to every response.

    Parameters
    ----------
    app : ASGI application
    config : ServerConfig
    tokens : Tokens
    sessions : Sessions
    observe : callable
        Takes the method, the route template (None if no route matched), the status and the seconds of each response.
    """

    def __init__(
        self,
        app: Any,
        config: ServerConfig,
        tokens: Tokens,
        sessions: SessionRoles,
        observe: Callable[[str, str | None, int, float], None],
    ) -> None:
        self._app, self._config, self._tokens, self._sessions, self._observe = app, config, tokens, sessions, observe
        self._max_body = int(config.max_body_mb * 2**20)
        self._clients: OrderedDict[str, tuple[float, float]] = OrderedDict()  # requests left, and when counted
        public = urlsplit(config.public_url or "").hostname or config.host
        self._hosts = {name.lower() for name in (*LOOPBACK, "[::1]", config.host, public, *config.allowed_hosts)}

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        answer = self._with_headers(self._observed(scope, _with_send_timeout(scope, send)), headers.get("origin"))
        caller = self._caller(headers)
        problem = self._problem(scope, headers, caller)
        if problem is not None:
            await _respond(answer, *problem)
            return
        is_cross = headers.get("origin") in self._config.cors
        if scope["method"] == "OPTIONS" and is_cross:
            await _respond(answer, 204, "")
            return
        scope["role"], scope["session"], scope["caller"] = caller
        if scope["method"] == "HEAD":  # as GET, without the body
            scope["method"], scope["is_head"] = "GET", True
            answer = _without_body(answer)
        body = _Body(receive, self._max_body, self._config.body_timeout)
        try:
            await self._app(scope, body.receive, answer)
        except Exception:
            if not scope.get("is_unread"):  # otherwise the client did not read, and is disconnected
                raise

    def _excess(self, headers: dict[str, str]) -> tuple[int, str] | None:
        """Return a status and reason if a request is too large, else None."""
        if sum(len(name) + len(value) for name, value in headers.items()) > HEADER_BYTES:
            return 431, f"the headers are larger than {HEADER_BYTES // 1024} KiB"
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > _MOST_DIGITS:
            return 400, "the Content-Length header is not a number"
        return (413, _too_large(self._max_body)) if int(length) > self._max_body else None

    def _problem(self, scope: Message, headers: dict[str, str], caller: Caller) -> tuple[int, str] | None:
        """Return a status and reason to reject a request before its body is read, else None."""
        host = _host_name(headers.get("host", ""))
        if host is None:
            return 400, "the Host header is not a valid name or address"
        if self._config.is_loopback and host not in self._hosts:  # a web page may resolve its own name to this machine
            return 421, "this host name is not allowed: list it in server.allowed_hosts"
        if self._is_too_fast(scope):
            return 429, "too many requests: try again later"
        too_large = self._excess(headers)
        if too_large is not None:
            return too_large
        if self._is_foreign(headers) and scope["method"] not in _SAFE:
            return 403, "requests from this origin are not allowed: list it in server.cors"
        return _authorisation_problem(scope, caller.role)

    def _is_foreign(self, headers: dict[str, str]) -> bool:
        """Return whether a request comes from a page of another origin that is not listed."""
        origin, host = headers.get("origin"), headers.get("host", "")
        return origin is not None and origin not in self._config.cors and origin not in _origins(host)

    def _caller(self, headers: dict[str, str]) -> Caller:
        """Identify the sender of a request by the token in its header or the session in its cookie."""
        kind, _, token = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" or not self._tokens.are_needed:
            found = self._tokens.find(token.strip())
            return Caller() if found is None else Caller(found.role, None, found.name)
        session = cookie_parser(headers.get("cookie", "")).get(COOKIE)
        known = None if session is None else self._sessions.find(session)
        return Caller() if known is None else Caller(known.role, session, known.name)

    def _is_too_fast(self, scope: Message) -> bool:
        """Return whether a client exceeds its request rate (token bucket)."""
        who, now, rate = (scope.get("client") or ("", 0))[0], clock.monotonic(), self._config.requests_per_second
        left, at = self._clients.pop(who, (2 * rate, now))
        left = min(2 * rate, left + (now - at) * rate)
        is_too_fast = left < 1
        self._clients[who] = (left if is_too_fast else left - 1, now)
        while len(self._clients) > _MOST_CLIENTS:
            self._clients.popitem(last=False)
        return is_too_fast

    def _observed(self, scope: Message, send: Send) -> Send:
        """Return `send` that reports the time to the start of the response."""
        start = clock.perf_counter()

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", None)
                self._observe(scope["method"], route, message["status"], clock.perf_counter() - start)
            await send(message)

        return answer

    def _with_headers(self, send: Send, origin: str | None) -> Send:
        """Return `send` that adds the security headers."""
        extra = dict(_HEADERS)
        if origin in self._config.cors:
            extra |= {
                "access-control-allow-origin": str(origin),
                "access-control-allow-headers": "authorization, content-type, idempotency-key",
                "access-control-allow-methods": "GET, POST, DELETE",
                "vary": "origin",
            }
        added = [(name.encode(), value.encode()) for name, value in extra.items()]

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *added]}
            await send(message)

        return answer


def _with_send_timeout(scope: Message, send: Send) -> Send:
    """Return `send` with a timeout; a client that does not read is marked in the scope."""

    async def answer(message: Message) -> None:
        try:
            await asyncio.wait_for(send(message), _SEND_SECONDS)
        except TimeoutError:
            scope["is_unread"] = True
            raise

    return answer


def _without_body(send: Send) -> Send:
    """Return `send` that leaves out the body, for HEAD."""

    async def answer(message: Message) -> None:
        if message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await send(message)

    return answer


class _Body:
    """The body of a request, rejected if it is too large or too slow."""

    def __init__(self, receive: Receive, most: int, seconds: float) -> None:
        self._receive, self._most, self._seconds, self._n = receive, most, seconds, 0
        self._deadline = clock.monotonic() + seconds
        self._is_whole = False

    async def receive(self) -> Message:
        """Return the next piece."""
        if self._is_whole:  # the next message is a disconnect
            return await self._receive()
        try:
            message = await asyncio.wait_for(self._receive(), max(0.0, self._deadline - clock.monotonic()))
        except TimeoutError:
            raise HTTPException(408, f"the body did not arrive within {self._seconds:g} seconds", _CLOSE) from None
        self._n += len(message.get("body", b""))
        if self._n > self._most:
            raise HTTPException(413, _too_large(self._most), _CLOSE)
        self._is_whole = not message.get("more_body", False)
        return message


def _host_name(header: str) -> str | None:
    """Return the name or address in a Host header, without brackets and port; None if the header is malformed."""
    try:
        parts = urlsplit(f"//{header}")
    except ValueError:  # "[", for example
        return None
    return None if parts.netloc != header or "@" in header else parts.hostname or ""


def _origins(host: str) -> tuple[str, str]:
    """Return the origins of this server under the name the client uses."""
    return f"http://{host}", f"https://{host}"


def _authorisation_problem(scope: Message, role: str | None) -> tuple[int, str] | None:
    path = scope["path"]
    if not path.startswith(("/api/", "/metrics", "/v1/")) or path in _OPEN or scope["method"] == "OPTIONS":
        return None  # the page has no secrets, and asks for the token
    if role is None:
        return 401, "a token is required: send it as `Authorization: Bearer TOKEN`"
    if path == "/api/v1/logout" or role == ADMIN:
        return None
    is_data = scope["method"] == "POST" and (path in _DATA or _RECORDS.fullmatch(path))
    if role == WRITE:
        return None if is_data else (403, "this token may only send records and metrics: use another one")
    if scope["method"] not in _SAFE or path in _ADMIN_ONLY:
        return 403, "this token is read-only: use an admin token"
    return None


def _too_large(most: int) -> str:
    return f"the body is larger than {most / 2**20:g} MB: send smaller batches"


async def _respond(send: Send, status: int, reason: str) -> None:
    """Send a response without calling the application; errors close the connection, so that the body is not read."""
    body = problem_text(status, reason) if reason else b""
    headers = [(b"content-type", PROBLEM.encode()), (b"content-length", str(len(body)).encode())]
    if status >= 400:
        headers.append((b"connection", b"close"))
    if status == 429:
        headers.append((b"retry-after", b"1"))
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _named_token(config: TokenConfig) -> Token:
    """Read a token of the list in the configuration."""
    text = read_token(config.file, config.env or "")
    if text is None:
        raise BadInput(f"the token {config.name!r} is empty: set the environment variable {config.env}")
    return Token(config.role, config.name, text)


def read_token(path: str | None, variable: str) -> str | None:
    """Read a token from a file or the environment."""
    token = os.environ.get(variable, "") if path is None else Path(path).read_text("utf-8")
    token = token.strip()
    if not token and path is None:
        return None
    if len(token) < _SHORTEST or not token.isascii() or not token.isprintable():
        where = variable if path is None else path
        raise BadInput(f"the token in {where} must have at least {_SHORTEST} printable ASCII characters")
    return token
