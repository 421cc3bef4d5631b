"""Regular expressions of users, matched in linear time by RE2: no pattern can stop the process."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

__all__ = ["check_pattern", "matches"]

_LONGEST = 256  # characters
_MEMORY = 1 << 20  # bytes of a compiled pattern


def check_pattern(pattern: str) -> str:
    """Return a pattern unchanged; raise ValueError if it is not a regular expression of RE2."""
    if len(pattern) > _LONGEST:
        raise ValueError(f"a regular expression has at most {_LONGEST} characters, this one has {len(pattern)}")
    _compiled(pattern)
    return pattern


def matches(pattern: str, text: str) -> bool:
    """Return whether a pattern matches all of a text."""
    return _compiled(pattern).fullmatch(text) is not None


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> Any:
    try:
        import re2  # noqa: PLC0415 - comes with the service
    except ImportError:
        raise ValueError('regular expressions of keys need google-re2: pip install "polyaforest[service]"') from None
    options = re2.Options()
    options.max_mem, options.log_errors = _MEMORY, False
    try:
        return re2.compile(pattern, options)
    except re2.error as problem:
        words = problem.args[0] if problem.args else "invalid"
        text = words.decode("utf-8", "replace") if isinstance(words, bytes) else str(words)
        raise ValueError(f"is not a regular expression: {text}") from None
