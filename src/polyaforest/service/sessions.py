"""Browser sessions: a login starts one, logout or age ends it; they survive restarts."""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import threading
import time as clock
from pathlib import Path

import orjson

from polyaforest.io.json_values import to_json
from polyaforest.service.security import Token, Tokens
from polyaforest.storage.modelfile import replacing

__all__ = ["Sessions"]

_LOG = logging.getLogger("polyaforest.service")
_MOST = 1000  # open sessions; the oldest end first


class Sessions:
    """The open sessions, stored in a file without tokens or cookie values.

    A session is identified by a digest of its value, keyed by the token that started it: replacing the token ends its
    sessions.

    Parameters
    ----------
    tokens : Tokens
    path : str
        The file.
    seconds : float
        How long a session lasts.
    """

    def __init__(self, tokens: Tokens, path: str, seconds: float) -> None:
        self._tokens, self._path, self._seconds = tokens, path, seconds
        self._lock = threading.Lock()
        self._ends = _read(Path(path)) if tokens.are_needed else {}  # in seconds since 1970, by digest

    def start(self, token: str) -> str:
        """Start a session for a valid token; return its value."""
        value = secrets.token_urlsafe(32)
        with self._lock:
            self._ends[_digest(token, value)] = clock.time() + self._seconds
            self._write()
        return value

    def find(self, value: str) -> Token | None:
        """Return the token that started a session; None if it is not open."""
        now = clock.time()
        for token in self._tokens.all:
            if self._ends.get(_digest(token.text, value), 0.0) > now:
                return token
        return None

    def end(self, value: str) -> None:
        """End a session."""
        with self._lock:
            known = [_digest(token.text, value) for token in self._tokens.all]
            ended = [digest for digest in known if self._ends.pop(digest, None) is not None]
            if ended:
                self._write()

    def _write(self) -> None:
        """Write the open sessions, at most `_MOST`."""
        now = clock.time()
        latest = sorted(self._ends.items(), key=lambda session: session[1])[-_MOST:]
        self._ends = {digest: end for digest, end in latest if end > now}
        with replacing(self._path) as file:
            file.write(to_json({"sessions": self._ends}))


def _digest(token: str, value: str) -> str:
    return hmac.new(token.encode(), value.encode(), hashlib.sha256).hexdigest()


def _read(path: Path) -> dict[str, float]:
    """Read the sessions from a file; a missing or damaged file has none, and users log in again."""
    try:
        found = orjson.loads(path.read_bytes())["sessions"].items()
        return {str(digest): float(end) for digest, end in found}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as problem:
        _LOG.warning("%s cannot be read, all users must log in again: %s", path, problem)
        return {}
