"""Sources of live records: standard input, pipes, files, growing files, Redis streams and Kafka topics.

The caller pulls records, and read-ahead is bounded, so writers experience back-pressure.
"""

from __future__ import annotations

import os
import stat
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from polyaforest.io.errors import BadInput
from polyaforest.io.sources._follow import FollowedFile
from polyaforest.io.sources._lines import Position, Source
from polyaforest.io.sources._pipe import Pipe

__all__ = ["FollowedFile", "Pipe", "Position", "Source", "canonical_name", "check_source", "open_source", "scheme_of"]


def open_source(where: str, *, follow: bool = False) -> Source:
    """Open a source of live records.

    Parameters
    ----------
    where : str
        "-" for standard input, the path of a file or named pipe, ``redis://host:port/db?stream=name`` (repeat
        ``&stream=…`` for more streams, ``rediss`` for TLS, ``&start=$`` for new records only), or
        ``kafka://host:port,host:port/topic`` (librdkafka settings after a question mark).
    follow : bool, default=False
        At the end of a file, wait for more lines, also across log rotation.

    Raises
    ------
    BadInput
        If the source cannot be read, or an extra is not installed.
    """
    scheme = scheme_of(where)
    if scheme in {"redis", "rediss"}:
        from polyaforest.io.sources._redis import RedisStreams  # noqa: PLC0415  (an extra, imported when it is used)

        return RedisStreams(where)
    if scheme == "kafka":
        from polyaforest.io.sources._kafka import KafkaTopic  # noqa: PLC0415  (an extra, imported when it is used)

        return KafkaTopic(where)
    if follow and where != "-" and not _is_pipe(where):
        return FollowedFile(where)
    return Pipe(where)


def check_source(where: str) -> None:
    """Raise `BadInput` if a source of live records is invalid, as far as can be checked without connecting."""
    if scheme_of(where):
        open_source(where).close()
    elif os.path.isdir(where):
        raise BadInput(f"'{where}' is a directory; pass a file in it")


def scheme_of(where: str) -> str:
    """Return the scheme of an address, "" for a path; raise `BadInput` if it is malformed or not supported."""
    if not where or "\0" in where:
        raise BadInput("a source must be '-', a path, or a redis:// or kafka:// address")
    try:
        scheme = urlsplit(where).scheme if "://" in where else ""
    except ValueError as problem:  # unbalanced brackets
        raise BadInput(f"invalid address: {problem}") from None
    if scheme not in ("", "redis", "rediss", "kafka"):
        raise BadInput(f"'{scheme}://' is not supported: use '-', a path, or a redis:// or kafka:// address")
    return scheme


def canonical_name(where: str) -> str:
    """Return the name of a source for a model store: independent of spelling, and without passwords."""
    if "://" not in where:
        return where if where == "-" else os.path.realpath(where)
    parts = urlsplit(where)
    settings = [pair for pair in parse_qsl(parts.query) if "password" not in pair[0] and "secret" not in pair[0]]
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=host, query=urlencode(settings)))


def _is_pipe(path: str) -> bool:
    """Return whether reading a path waits for more data, as for a named pipe or a terminal."""
    try:
        kind = os.stat(path).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(kind) or stat.S_ISCHR(kind)
