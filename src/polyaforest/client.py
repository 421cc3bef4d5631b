"""A client of the service, `polyaforest serve`, with types; it needs no other package.

Times of answers are `datetime` in UTC; parameters take `datetime`, text in RFC 3339, or seconds since 1970.
"""

from __future__ import annotations

import gzip
import json
import os
import ssl
import threading
import time as clock
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, Literal
from urllib.parse import quote, urlencode, urlsplit
from uuid import uuid4

__all__ = ["ApiError", "Client", "Event", "FeedMessage", "Posted", "ScoredRecord", "Stream"]

Time = datetime | str | float
Facts = dict[str, Any]

_PIECE = 1 << 20
_LEAST_ZIPPED = 4096  # bytes of a body
_BUSY = (429, 503)
_LONGEST_PAUSE = 10.0  # seconds between two tries


class ApiError(Exception):
    """An error that the service reports: `status`, and `detail`, which says what is wrong and what to do."""

    def __init__(self, status: int, detail: str, facts: Mapping[str, Any]) -> None:
        super().__init__(f"{detail} (status {status})")
        self.status, self.detail, self.facts = status, detail, dict(facts)


@dataclass(frozen=True)
class Stream:
    """A stream; `raw` has all facts."""

    name: str
    source: str
    is_ready: bool
    fields: list[str]
    n_keys: int
    n_records: int
    n_open_events: int
    error: str | None
    start: datetime | None
    end: datetime | None
    raw: Facts = field(repr=False)


@dataclass(frozen=True)
class Event:
    """An event; `raw` has all facts, with the explanation if the event was asked for alone."""

    id: str
    stream: str
    key: str
    kind: str
    start: datetime
    end: datetime
    is_open: bool
    label: str | None
    severity: int | None
    bits: float | None
    summary: str
    reasons: list[Any]
    raw: Facts = field(repr=False)


@dataclass(frozen=True)
class ScoredRecord:
    """A record of the history, with its score and expected ranges."""

    position: int
    time: datetime | None
    key: str
    score: float | None
    p_value: float | None
    is_anomaly: bool
    values: dict[str, float | str | None]
    expected: dict[str, dict[str, float | None]]
    raw: Facts = field(repr=False)
    weight: int = 1


@dataclass(frozen=True)
class Posted:
    """What became of posted records: their positions, and verdicts if they were asked for."""

    first: int
    last: int
    n_judged: int
    n_flagged: int
    n_rejected: int
    verdicts: list[Facts]
    rejected: list[Facts]
    is_repeated: bool


@dataclass(frozen=True)
class FeedMessage:
    """A message of the live feed: its kind ("event", "records" or "tail") and its facts."""

    kind: str
    facts: Facts


class Client:
    """A client of a service, for any number of threads.

    Parameters
    ----------
    url : str
        Address of the service, such as "http://127.0.0.1:8420".
    token : str, optional
        By default, that of the environment variable POLYAFOREST_TOKEN, if it is set.
    timeout : float
        Seconds to wait for an answer.
    tries : int
        How often a request is sent if the service is busy or the connection breaks. Each set of posted records has a
        name, so a repeated request is processed once.

    Examples
    --------
    Requires a running service::

        with Client("http://127.0.0.1:8420") as client:
            client.post("web", [{"time": "2026-01-31T12:00:00Z", "host": "web-1", "cpu": 41.5}])
            for event in client.events(open=True):
                print(event.start, event.key, event.summary)
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8420",
        token: str | None = None,
        *,
        timeout: float = 60.0,
        tries: int = 5,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not an address such as http://127.0.0.1:8420")
        if tries < 1:
            raise ValueError(f"tries must be at least 1; got {tries}")
        self._parts, self._timeout, self._tries = parts, timeout, tries
        token = os.environ.get("POLYAFOREST_TOKEN") if token is None else token
        self._headers = {"Accept-Encoding": "gzip"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._lock = threading.Lock()
        self._idle: list[HTTPConnection] = []  # open connections that no thread uses

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; later requests open others."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    # ---- reading -----------------------------------------------------------------------------------------------------

    def status(self) -> Facts:
        """Return the state of the service."""
        return self._json("GET", "status")

    def streams(self) -> list[Stream]:
        """Return all streams."""
        return [_stream(one) for one in self._json("GET", "streams")["streams"]]

    def stream(self, stream: str) -> Stream:
        """Return a stream, with its settings in `raw`."""
        return _stream(self._json("GET", _path("streams", stream)))

    def keys(self, stream: str, search: str = "") -> Iterator[str]:
        """Yield the keys of a stream, sorted."""
        n = 0
        while True:
            found = self._json("GET", _path("streams", stream, "keys"), {"search": search, "offset": n})
            yield from found["keys"]
            n += len(found["keys"])
            if not found["keys"] or n >= found["total"]:
                return

    def records(
        self, stream: str, *, key: str | None = None, start: Time | None = None, end: Time | None = None
    ) -> Iterator[ScoredRecord]:
        """Yield the records of the history, by key and position."""
        parameters = {"key": key, "start": _text(start), "end": _text(end)}
        for one in self._pages(_path("streams", stream, "records"), "records", parameters):
            yield _record(one)

    def events(
        self,
        *,
        stream: str | None = None,
        key: str | None = None,
        start: Time | None = None,
        end: Time | None = None,
        open: bool | None = None,
        label: Literal["incident", "normal"] | None = None,
        min_severity: int = 1,
    ) -> Iterator[Event]:
        """Yield events, latest first."""
        parameters = {
            "stream": stream,
            "key": key,
            "start": _text(start),
            "end": _text(end),
            "open": None if open is None else str(open).lower(),
            "label": label,
            "min_severity": min_severity,
        }
        for one in self._pages("events", "events", parameters):
            yield _event(one)

    def event(self, stream: str, id: str) -> Event:
        """Return an event with its explanation."""
        return _event(self._json("GET", _path("streams", stream, "events", id)))

    def incidents(self, *, start: Time | None = None, end: Time | None = None) -> list[Facts]:
        """Return groups of events."""
        found: list[Facts] = self._json("GET", "incidents", {"start": _text(start), "end": _text(end)})["incidents"]
        return found

    def series(
        self,
        stream: str,
        key: str = "",
        *,
        start: Time | None = None,
        end: Time | None = None,
        points: int = 1000,
    ) -> Facts:
        """Return values, expected ranges and scores of a key at the resolution of a screen."""
        parameters = {"key": key, "start": _text(start), "end": _text(end), "points": points}
        return self._json("GET", _path("streams", stream, "series"), parameters)

    def feed(self, *, stream: str | None = None, key: str | None = None) -> Iterator[FeedMessage]:
        """Yield live messages until the service ends the feed; close the generator to stop."""
        connection = self._connect()
        with closing(connection):
            response = self._send(connection, "GET", _target("feed", {"stream": stream, "key": key}), None, {})
            if response.status >= 400:
                raise _error(response.status, _read(response))
            kind = ""
            for line in response:
                name, _, value = line.decode().rstrip("\n").partition(": ")
                if name == "event":
                    kind = value
                elif name == "data":
                    yield FeedMessage(kind, json.loads(value))

    # ---- writing -----------------------------------------------------------------------------------------------------

    def post(
        self,
        stream: str,
        records: Sequence[Mapping[str, Any]],
        *,
        wait: bool = True,
        verdicts: Literal["all", "flagged", "none"] = "flagged",
        name: str | None = None,
    ) -> Posted:
        """Score and learn records; each is a mapping of fields, whose times may be `datetime`.

        Parameters
        ----------
        stream : str
        records : sequence of mapping
        wait : bool
            Whether to wait for the verdicts; otherwise the records are on disk when this returns.
        verdicts : {"all", "flagged", "none"}
            Which verdicts to return.
        name : str, optional
            Name of the request, by default a new one. A second request with this name is processed once.
        """
        body = b"".join(json.dumps(dict(record), default=_plain).encode() + b"\n" for record in records)
        headers = {"Content-Type": "application/x-ndjson", "Idempotency-Key": name or uuid4().hex}
        parameters = {"wait": str(wait).lower(), "verdicts": verdicts}
        facts = self._json("POST", _path("streams", stream, "records"), parameters, body, headers)
        return Posted(
            facts["first"],
            facts["last"],
            facts.get("judged", 0),
            facts.get("flagged", 0),
            facts.get("n_rejected", 0),
            facts.get("verdicts", []),
            facts.get("rejected", []),
            bool(facts.get("repeated")),
        )

    def give_feedback(self, stream: str, id: str, verdict: Literal["incident", "normal"], note: str = "") -> Event:
        """Label an event; the model unlearns an incident and learns what is normal."""
        body = json.dumps({"verdict": verdict, "note": note}).encode()
        path = _path("streams", stream, "events", id, "feedback")
        return _event(self._json("POST", path, {}, body, {"Content-Type": "application/json"}))

    def undo_feedback(self, stream: str, id: str) -> Event:
        """Undo the feedback on an event."""
        return _event(self._json("DELETE", _path("streams", stream, "events", id, "feedback")))

    # ---- files -------------------------------------------------------------------------------------------------------

    def export(
        self,
        stream: str,
        path: str,
        *,
        format: Literal["csv", "parquet"] = "csv",
        key: str | None = None,
        start: Time | None = None,
        end: Time | None = None,
    ) -> None:
        """Write the history to a file, as CSV or Parquet."""
        parameters = {"format": format, "key": key, "start": _text(start), "end": _text(end)}
        self._download(_target(_path("streams", stream, "export"), parameters), path)

    def backup(self, path: str) -> None:
        """Write a backup of all streams to a file, for `polyaforest restore`."""
        self._download("/api/v1/backup", path)

    def _download(self, target: str, path: str) -> None:
        """Write a response to a file that is absent or complete."""
        scratch = f"{path}.part"
        connection = self._connect()
        try:
            with closing(connection):
                response = self._send(connection, "GET", target, None, {"Accept-Encoding": "identity"})
                if response.status >= 400:
                    raise _error(response.status, _read(response))
                with open(scratch, "wb", opener=_private) as file:
                    while piece := response.read(_PIECE):
                        file.write(piece)
                    if response.length:  # bytes that did not arrive
                        raise ConnectionError(f"{path}: the answer ended {response.length:,} bytes early")
            os.replace(scratch, path)
        except BaseException:
            with suppress(FileNotFoundError):
                os.remove(scratch)
            raise

    # ---- requests ----------------------------------------------------------------------------------------------------

    def _pages(self, path: str, name: str, parameters: Mapping[str, Any]) -> Iterator[Facts]:
        cursor = None
        while True:
            page = self._json("GET", path, {**parameters, "cursor": cursor, "limit": 1000})
            yield from page[name]
            cursor = page["next"]
            if cursor is None:
                return

    def _json(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, Any] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Facts:
        """Send a request, again if the service is busy or the connection breaks; return the answer."""
        target = _target(path, parameters or {})
        sent = dict(headers or {})
        if body is not None and len(body) >= _LEAST_ZIPPED and "Idempotency-Key" in sent:
            body, sent["Content-Encoding"] = gzip.compress(body, 1), "gzip"
        is_repeatable = method == "GET" or "Idempotency-Key" in sent
        for number in range(self._tries):
            is_last = number == self._tries - 1 or not is_repeatable
            connection = self._connection() if is_repeatable else self._connect()  # an idle one may be stale
            try:
                response = self._send(connection, method, target, body, sent)
                text = _read(response)
            except BaseException as problem:
                connection.close()
                if is_last or not isinstance(problem, (OSError, HTTPException)):
                    raise
                clock.sleep(min(_LONGEST_PAUSE, 0.1 * 2**number))
                continue
            with self._lock:
                self._idle.append(connection)  # if the service closed it, it connects again
            if response.status in _BUSY and not is_last:
                given = response.headers.get("retry-after", "")
                clock.sleep(min(_LONGEST_PAUSE, float(given) if given.isdecimal() else 1.0))
                continue
            if response.status >= 400:
                raise _error(response.status, text)
            facts: Facts = json.loads(text)
            return facts
        raise AssertionError("unreachable: the last try returns or raises")

    def _connection(self) -> HTTPConnection:
        """Return an open connection, for one thread at a time."""
        with self._lock:
            return self._idle.pop() if self._idle else self._connect()

    def _connect(self) -> HTTPConnection:
        host, port = self._parts.hostname or "", self._parts.port
        if self._parts.scheme == "https":
            return HTTPSConnection(host, port, timeout=self._timeout, context=ssl.create_default_context())
        return HTTPConnection(host, port, timeout=self._timeout)

    def _send(
        self, connection: HTTPConnection, method: str, target: str, body: bytes | None, headers: Mapping[str, str]
    ) -> HTTPResponse:
        connection.request(method, self._parts.path.rstrip("/") + target, body, {**self._headers, **headers})
        return connection.getresponse()


# ---- values ----------------------------------------------------------------------------------------------------------


def _path(*parts: str) -> str:
    return "/".join(quote(part, safe="") for part in parts)


def _target(path: str, parameters: Mapping[str, Any]) -> str:
    given = {name: value for name, value in parameters.items() if value is not None}
    return f"/api/v1/{path.removeprefix('/')}" + (f"?{urlencode(given)}" if given else "")


def _text(time: Time | None) -> str | float | None:
    """Return a time as parameter."""
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise ValueError(f"the time {time.isoformat()} has no time zone: add one, such as datetime.UTC")
        return time.isoformat()
    return time


def _plain(value: Any) -> Any:
    """Return a value of a record as JSON value."""
    if isinstance(value, datetime):
        return _text(value)
    if hasattr(value, "item"):  # a number of NumPy
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot be a value of a record")


def _moment(seconds: float | str | None) -> datetime | None:
    """Return a time of an answer; None if it is missing or out of the range of `datetime`."""
    try:
        if isinstance(seconds, str):
            return datetime.fromisoformat(seconds)
        return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return None


def _read(response: HTTPResponse) -> bytes:
    text = response.read()
    return gzip.decompress(text) if response.headers.get("content-encoding") == "gzip" else text


def _error(status: int, text: bytes) -> ApiError:
    try:
        facts = json.loads(text)
        return ApiError(status, str(facts["detail"]), facts)
    except (ValueError, TypeError, KeyError):
        return ApiError(status, text[:200].decode("utf-8", "replace") or "no reason was given", {})


def _private(path: str, flags: int) -> int:
    """Open a file that only its owner may read."""
    return os.open(path, flags, 0o600)


def _stream(facts: Facts) -> Stream:
    return Stream(
        facts["name"],
        facts["source"],
        facts["is_ready"],
        facts["fields"],
        facts["n_keys"],
        facts["n_records"],
        facts["n_open_events"],
        facts["error"],
        _moment(facts["start"]),
        _moment(facts["end"]),
        facts,
    )


def _event(facts: Facts) -> Event:
    start, end = _moment(facts["start"]), _moment(facts["end"])
    return Event(
        facts["id"],
        facts["stream"],
        facts["key"],
        facts["kind"],
        start or datetime.fromtimestamp(0, UTC),
        end or datetime.fromtimestamp(0, UTC),
        bool(facts["is_open"]),
        facts["label"],
        facts.get("severity"),
        facts.get("bits"),
        facts.get("summary") or "",
        list(facts.get("reasons") or ()),
        facts,
    )


def _record(facts: Facts) -> ScoredRecord:
    return ScoredRecord(
        facts["position"],
        _moment(facts["time"]),
        facts["key"],
        facts["score"],
        facts["p_value"],
        facts["is_anomaly"],
        facts["values"],
        facts["expected"],
        facts,
        facts.get("weight", 1),
    )
