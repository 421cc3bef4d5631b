"""Where live records come from: standard input and pipes, files, growing files, Redis streams and Kafka topics.

All of them are pulled: nothing is read ahead beyond a fixed amount, so that whoever writes waits for whoever reads.
"""

from __future__ import annotations

import os
import stat
from urllib.parse import urlsplit

from polyaforest.io._errors import BadInput
from polyaforest.io.sources._follow import FollowedFile
from polyaforest.io.sources._pipe import Pipe
from polyaforest.io.sources._source import Position, Source

__all__ = ["FollowedFile", "Pipe", "Position", "Source", "open_source"]


def open_source(where: str, *, follow: bool = False) -> Source:
    """The source of live records at a place.

    Parameters
    ----------
    where : str
        "-" for standard input, the path of a file or named pipe, ``redis://host:port/db?stream=name`` (again
        ``&stream=…`` for more streams, ``rediss`` for TLS, ``&start=$`` for new records only), or
        ``kafka://host:port,host:port/topic`` (settings of librdkafka after a question mark).
    follow : bool, default=False
        Go on when the end of the file is reached, and wait for what is appended; also across log rotation.

    Raises
    ------
    BadInput
        If there is nothing to read there, or an extra is missing.
    """
    scheme = urlsplit(where).scheme if "://" in where else ""
    if scheme in {"redis", "rediss"}:
        from polyaforest.io.sources._redis import RedisStreams  # noqa: PLC0415  (an extra, imported when it is used)

        return RedisStreams(where)
    if scheme == "kafka":
        from polyaforest.io.sources._kafka import KafkaTopic  # noqa: PLC0415  (an extra, imported when it is used)

        return KafkaTopic(where)
    if scheme:
        raise BadInput(f"'{scheme}://' is not read here: give '-', a path, or a redis:// or kafka:// address")
    if follow and where != "-" and not _is_pipe(where):
        return FollowedFile(where)
    return Pipe(where)


def _is_pipe(path: str) -> bool:
    """Whether a path is something that follows by itself: a named pipe, or a terminal."""
    try:
        kind = os.stat(path).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(kind) or stat.S_ISCHR(kind)
