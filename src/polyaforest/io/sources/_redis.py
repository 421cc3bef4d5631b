"""Redis streams."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from polyaforest.io.errors import BadInput, in_words
from polyaforest.io.records import Record
from polyaforest.io.sources._lines import Position, import_extra
from polyaforest.util import schema

__all__ = ["RedisStreams"]

_BLOCK = 1.0  # seconds of a blocking read
_PATIENCE = 10.0  # seconds until a request times out
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # seconds between connection attempts
_START = re.compile(r"\d+(-\d+)?|\$")
_BEGINNING = "0-0"
_END = "$"
_OURS = {"stream", "start", "protocol", "decode_responses"}  # not passed to the library


@dataclass
class _StreamPosition:
    """Position in a stream: the last entry read, and the number of entries added by then (None if unknown)."""

    id: str
    added: int | None = None


_PLACE = schema.record({"id": schema.text, "added": schema.either(schema.nothing, schema.whole())}, optional=["added"])
_PASSING = ("UNBLOCKED", "BUSY", "TRYAGAIN", "LOADING", "OOM")  # transient errors, in a failover or under load


class RedisStreams:
    """Entries of one or more Redis streams, from the earliest available.

    Reconnects automatically. The position is, for each stream, the last entry read and the number of entries added by
    then, so that entries removed before they were read are detected.

    Parameters
    ----------
    where : str
        ``redis://[user:password@]host:port/db?stream=name``; ``rediss`` for TLS; more streams as ``&stream=other``;
        ``&start=$`` for new entries only, or the identifier after which to start.
    """

    can_replay = True

    def __init__(self, where: str) -> None:
        self.notices: list[str] = []
        self._redis = import_extra("redis", "redis", "redis.backoff", "redis.exceptions", "redis.retry")
        address, self._server, streams, start = _parts(where)
        self._places = {stream: _StreamPosition(start) for stream in streams}
        retry = self._redis.retry.Retry(self._redis.backoff.NoBackoff(), 0)  # retries are handled and reported here
        patience = {"socket_timeout": _PATIENCE, "socket_connect_timeout": _PATIENCE / 2}
        try:
            self._client = self._redis.Redis.from_url(address, protocol=2, retry=retry, **patience)
            pool = self._client.connection_pool
            pool.connection_class(**pool.connection_kwargs)  # checks all settings without connecting
        except (TypeError, ValueError) as problem:
            raise BadInput(f"invalid Redis address: {problem}") from problem
        self._pause = 0.0  # duration of the last pause, 0 if the server responds
        self._next_attempt = 0.0
        self._turn = 0
        self._is_closed = False

    # Reading

    def read(self, most: int, wait: float) -> list[Record] | None:
        """Return at most `most` entries: [] if none arrived within `wait` seconds, None once closed."""
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
        """Return entries available within `wait` seconds; [] if the server is unavailable."""
        errors = self._redis.exceptions
        try:
            records = self._entries(most, wait)
        except (errors.AuthenticationError, errors.AuthorizationError) as problem:  # kinds of ConnectionError
            raise BadInput(f"authentication failed at the Redis server {self._server}: {problem}") from problem
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
            self.notices.append(f"the Redis server at {self._server} is available again")
            self._pause = 0.0
        return records

    def _put_off(self, problem: Exception) -> None:
        """Back off before the next attempt; report the first failure."""
        if not self._pause:
            self.notices.append(f"the Redis server at {self._server} is unavailable ({problem}): waiting")
        self._pause = min(2.0 * self._pause, _LONGEST_PAUSE) or _FIRST_PAUSE
        self._next_attempt = time.monotonic() + self._pause

    def _entries(self, most: int, wait: float) -> list[Record]:
        """Return available entries, or else entries that arrive within `wait` seconds."""
        count = -(-most // len(self._places))
        with self._client.pipeline(transaction=True) as together:  # atomic, so that nothing is removed in between
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
        """Return the last entry read, by stream."""
        return {stream: place.id for stream, place in self._places.items()}

    def _records(self, answer: list[Any], most: int) -> list[Record]:
        """Return the entries of a response up to the limit; streams take turns to be first."""
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

    # Lost entries

    def _compare(self, stream: str, info: Any) -> None:
        """Report entries that were removed from a stream before they were read, and resets of the stream."""
        if isinstance(info, self._redis.exceptions.ResponseError) and "no such key" in str(info):
            place = self._places[stream]
            if place.id not in (_BEGINNING, _END):
                self.notices.append(f"stream '{stream}' was deleted: waiting for it to reappear")
            elif place.added is None:
                self.notices.append(f"waiting for stream '{stream}' to appear")
            self._places[stream] = _StreamPosition(_BEGINNING, 0)
            return
        if isinstance(info, Exception):
            raise info
        last, added = info["last-generated-id"].decode(), info.get("entries-added")  # the latter since Redis 7
        place = self._places[stream]
        if place.id == _END:
            place.id = last
        if _order(last) < _order(place.id):
            self.notices.append(f"stream '{stream}' was reset from {place.id} to {last}: continuing after {last}")
            self._places[stream] = _StreamPosition(last, added)
        elif added is not None:
            self._count(stream, added, added - info["length"], at_end=last == place.id)

    def _count(self, stream: str, added: int, removed: int, at_end: bool) -> None:
        """Report how many entries were removed before they were read, if any."""
        place = self._places[stream]
        if place.added is not None and removed > place.added <= added:
            self.notices.append(
                f"{removed - place.added} entries of stream '{stream}' were removed before they were read"
            )
            place.added = removed
        elif at_end:
            place.added = added
        elif place.id == _BEGINNING and place.added is None:
            place.added = removed  # removed before the first read
        elif place.added is not None and place.added > added:
            place.added = None  # another stream of the same name

    # Positions

    @property
    def position(self) -> Position:
        """Last entry read and number of entries added by then, by stream."""
        return {stream: asdict(place) for stream, place in self._places.items()}

    def seek(self, position: Position) -> None:
        """Continue after a `position`; streams not in it start as usual."""
        for stream in self._places:
            if stream in position:
                _PLACE(position[stream], stream)
                self._places[stream] = _StreamPosition(**position[stream])

    def close(self) -> None:
        """Close the connection; idempotent."""
        self._is_closed = True
        self._client.close()


def _parts(where: str) -> tuple[str, str, list[str], str]:
    """Return the address of the server, its name without password, the streams, and where to start."""
    address = urlsplit(where)
    query = parse_qsl(address.query, keep_blank_values=True)
    streams = [value for name, value in query if name == "stream" and value]
    start = dict(query).get("start", _BEGINNING)
    if not streams:
        raise BadInput("the Redis address has no stream: use redis://host:port/0?stream=name")
    if not re.fullmatch(r"/?\d*", address.path, re.ASCII):
        raise BadInput(
            f"invalid database {address.path[1:]!r} in the Redis address: use redis://host:port/0?stream=name"
        )
    if not _START.fullmatch(start):
        raise BadInput(f"invalid start={start}: use $ for new entries only, or an entry ID")
    others = urlencode([(name, value) for name, value in query if name not in _OURS])
    server = address.netloc.rpartition("@")[2] or "localhost"
    return urlunsplit(address._replace(query=others)), server, list(dict.fromkeys(streams)), start


def _order(entry: str) -> tuple[int, int]:
    """Return the sort key of an entry ID."""
    milliseconds, _, number = entry.partition("-")
    return int(milliseconds), int(number or 0)


def _named(fields: Mapping[bytes, bytes]) -> dict[str, Any]:
    """Decode field names; values are left to the reader."""
    return {name.decode("utf-8", "backslashreplace"): value for name, value in fields.items()}
