"""Redis streams."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from polyaforest.core import schema
from polyaforest.io._errors import BadInput, in_words
from polyaforest.io.records import Record
from polyaforest.io.sources._source import Position

__all__ = ["RedisStreams"]

_BLOCK = 1.0  # seconds that the server is asked to wait for entries at most
_PATIENCE = 10.0  # seconds after which a server that says nothing is given up
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # seconds between two attempts to reach the server
_START = re.compile(r"\d+(-\d+)?|\$")
_BEGINNING = "0-0"
_END = "$"
_OURS = {"stream", "start", "protocol", "decode_responses"}  # not for the library to set from the address


@dataclass
class _Place:
    """Where a stream is: the last entry read, and how many had been added to it by then, None if that is not known."""

    id: str
    added: int | None = None


_PLACE = schema.record({"id": schema.text, "added": schema.either(schema.nothing, schema.whole())}, optional=["added"])
_PASSING = ("UNBLOCKED", "BUSY", "TRYAGAIN", "LOADING", "OOM")  # what a server says in a failover, or under pressure


class RedisStreams:
    """The entries of one or more Redis streams, from the first that is still there.

    Goes on by itself when the server was away. The position is, for each stream, the last entry read and how many had
    been added to it by then; so entries that were removed before they were read are noticed.

    Parameters
    ----------
    where : str
        ``redis://[user:password@]host:port/db?stream=name``; ``rediss`` for TLS; more streams as ``&stream=other``;
        ``&start=$`` for new entries only, or the identifier after which to start.
    """

    can_replay = True

    def __init__(self, where: str) -> None:
        self.notices: list[str] = []
        self._redis = _library()
        address, self._server, streams, start = _parts(where)
        self._places = {stream: _Place(start) for stream in streams}
        self._client = self._client_of(address)
        self._pause = 0.0  # how long the last one was; none if the server answers
        self._next_attempt = 0.0
        self._turn = 0
        self._is_closed = False

    def _client_of(self, address: str) -> Any:
        """A client for an address; it connects when it is first used."""
        retry = self._redis.retry.Retry(self._redis.backoff.NoBackoff(), 0)  # we try again ourselves, and say so
        try:
            return self._redis.Redis.from_url(
                address, protocol=2, socket_timeout=_PATIENCE, socket_connect_timeout=_PATIENCE / 2, retry=retry
            )
        except (TypeError, ValueError) as problem:
            raise BadInput(f"the Redis address cannot be used: {problem}") from problem

    # Reading

    def read(self, most: int, wait: float) -> list[Record] | None:
        """At most `most` entries: [] if none came within `wait` seconds, None once closed."""
        deadline = time.monotonic() + wait
        while not self._is_closed:
            now = time.monotonic()
            if now < self._next_attempt:
                time.sleep(max(0.0, min(self._next_attempt, deadline) - now))
            else:
                records = self._attempt(most, min(max(deadline - now, 0.0), _BLOCK))
                if records:
                    return records
            if time.monotonic() >= deadline:
                return []
        return None

    def _attempt(self, most: int, wait: float) -> list[Record]:
        """Entries that are there or come within `wait` seconds; none if the server is away."""
        errors = self._redis.exceptions
        try:
            records = self._entries(most, wait)
        except (errors.AuthenticationError, errors.AuthorizationError) as problem:  # kinds of ConnectionError
            raise BadInput(
                f"the Redis server at {self._server} refused the user name or password: {problem}"
            ) from problem
        except (
            errors.ConnectionError,
            errors.TimeoutError,
            errors.ClusterDownError,
            errors.MasterDownError,
        ) as problem:
            self._put_off(problem)
            return []
        except errors.ResponseError as problem:
            if str(problem).startswith(_PASSING):
                self._put_off(problem)
                return []
            raise BadInput(f"{in_words(self._places)} at {self._server} cannot be read: {problem}") from problem
        if self._pause:
            self.notices.append(f"the Redis server at {self._server} is back")
            self._pause = 0.0
        return records

    def _put_off(self, problem: Exception) -> None:
        """Wait before the next attempt, longer each time; tell about the first."""
        if not self._pause:
            self.notices.append(f"the Redis server at {self._server} is away ({problem}): waiting until it is back")
        self._pause = min(2.0 * self._pause, _LONGEST_PAUSE) or _FIRST_PAUSE
        self._next_attempt = time.monotonic() + self._pause

    def _entries(self, most: int, wait: float) -> list[Record]:
        """Entries that are there, or else come within `wait` seconds."""
        count = -(-most // len(self._places))
        with self._client.pipeline(transaction=True) as together:  # nothing can be removed between asking and reading
            for stream in self._places:
                together.xinfo_stream(stream)
            together.xread(self._last_ids(), count=count)
            *infos, answer = together.execute(raise_on_error=False)
        for stream, info in zip(self._places, infos, strict=True):
            self._compare(stream, info)
        if isinstance(answer, Exception):
            raise answer
        records = self._records(answer, most)
        if records or not wait:
            return records
        return self._records(self._client.xread(self._last_ids(), count=count, block=int(1000 * wait) or 1), most)

    def _last_ids(self) -> dict[str, str]:
        """The last entry read, by stream."""
        return {stream: place.id for stream, place in self._places.items()}

    def _records(self, answer: list[Any], most: int) -> list[Record]:
        """The entries in an answer; what is too many is left to be read again. Streams take turns to be first."""
        self._turn += 1
        first = self._turn % len(answer) if answer else 0
        records: list[Record] = []
        for name, entries in [*answer[first:], *answer[:first]]:
            stream = name.decode()
            taken = [(entry.decode(), fields) for entry, fields in entries[: most - len(records)]]
            records += [Record(f"{stream} {entry}", _named(fields)) for entry, fields in taken]
            if taken:
                place = self._places[stream]
                place.id = taken[-1][0]
                place.added = None if place.added is None else place.added + len(taken)
        return records

    # What happened to a stream

    def _compare(self, stream: str, info: Any) -> None:
        """Find out from what the server says about a stream whether entries were lost before they were read."""
        if isinstance(info, self._redis.exceptions.ResponseError) and "no such key" in str(info):
            self._start_over(stream)
            return
        if isinstance(info, Exception):
            raise info
        last, added = info["last-generated-id"].decode(), info.get("entries-added")  # the latter since Redis 7
        place = self._places[stream]
        if place.id == _END:
            place.id = last
        if _order(last) < _order(place.id):
            self.notices.append(f"stream '{stream}' was set back from {place.id} to {last}: going on after that")
            self._places[stream] = _Place(last, added)
        elif added is not None:
            self._count(stream, added, added - info["length"], at_end=last == place.id)

    def _start_over(self, stream: str) -> None:
        """A stream is not there: whatever it has when it comes is new."""
        place = self._places[stream]
        if place.id not in (_BEGINNING, _END):
            self.notices.append(f"stream '{stream}' was deleted: waiting for it to come back")
        elif place.added is None:
            self.notices.append(f"waiting for stream '{stream}' to appear")
        self._places[stream] = _Place(_BEGINNING, 0)

    def _count(self, stream: str, added: int, removed: int, at_end: bool) -> None:
        """Tell how many entries of a stream are gone that were never read, if any."""
        place = self._places[stream]
        if place.added is not None and removed > place.added <= added:
            self.notices.append(
                f"{removed - place.added} entries of stream '{stream}' were removed before they were read"
            )
            place.added = removed
        elif at_end:
            place.added = added
        elif place.id == _BEGINNING and place.added is None:
            place.added = removed  # before our time
        elif place.added is not None and place.added > added:
            place.added = None  # another stream by the same name

    # Positions

    @property
    def position(self) -> Position:
        """By stream: the last entry read, and how many had been added by then."""
        return {stream: asdict(place) for stream, place in self._places.items()}

    def seek(self, position: Position) -> None:
        """Go on after the entries whose `position` this was; streams that are not in it start as they would."""
        for stream in self._places:
            if stream in position:
                _PLACE(position[stream], stream)
                self._places[stream] = _Place(**position[stream])

    def close(self) -> None:
        """Let go of the connection; a second time does nothing."""
        self._is_closed = True
        self._client.close()


def _library() -> Any:
    """The client library, or an error that says how to get it."""
    try:
        import redis  # noqa: PLC0415
        import redis.backoff  # noqa: PLC0415
        import redis.exceptions  # noqa: PLC0415
        import redis.retry  # noqa: PLC0415
    except ModuleNotFoundError as problem:
        if problem.name != "redis":
            raise
        raise BadInput('reading from Redis needs an extra: pip install "polyaforest[redis]"') from problem
    return redis


def _parts(where: str) -> tuple[str, str, list[str], str]:
    """The address of the server, its name for messages without a password, the streams, and where they start."""
    address = urlsplit(where)
    query = parse_qsl(address.query, keep_blank_values=True)
    streams = [value for name, value in query if name == "stream" and value]
    start = dict(query).get("start", _BEGINNING)
    if not streams:
        raise BadInput("the Redis address names no stream: write redis://host:port/0?stream=name")
    if not _START.fullmatch(start):
        raise BadInput(f"start={start} is no place in a stream: give $ for new entries only, or an entry's identifier")
    others = urlencode([(name, value) for name, value in query if name not in _OURS])
    server = address.netloc.rpartition("@")[2] or "localhost"
    return urlunsplit(address._replace(query=others)), server, list(dict.fromkeys(streams)), start


def _order(entry: str) -> tuple[int, int]:
    """What an entry's identifier sorts by."""
    milliseconds, _, number = entry.partition("-")
    return int(milliseconds), int(number or 0)


def _named(fields: Mapping[bytes, bytes]) -> dict[str, Any]:
    """Fields with names that are text; what is in them is left to the reader."""
    return {name.decode("utf-8", "backslashreplace"): value for name, value in fields.items()}
