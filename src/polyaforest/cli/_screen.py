"""Escape control characters in everything that is printed, except for our own colours.

Reports escape names themselves, since only they can tell a newline in a name from one of their own. This covers the
rest: errors of libraries, warnings and tracebacks.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from polyaforest.core.text import printable_lines

__all__ = ["CLEAR_LINE", "guarded"]

CLEAR_LINE = "\r\x1b[K"  # return to the start of the line and clear it
_OURS = re.compile(r"(\x1b\[(?:0|1|31)m|\r\x1b\[K)")  # plain, bold, red


class _Screen:
    """A text stream that escapes control characters; otherwise the stream that it wraps."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write text, escaped."""
        parts = _OURS.split(text)  # every second part is ours
        parts[::2] = map(printable_lines, parts[::2])
        self._stream.write("".join(parts))
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def guarded() -> Iterator[None]:
    """Wrap stdout and stderr, for text; None where the shell has closed them."""
    before = sys.stdout, sys.stderr
    for stream in filter(None, before):
        _take_every_character(stream)
    sys.stdout, sys.stderr = (cast(Any, stream and _Screen(stream)) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _take_every_character(stream: Any) -> None:
    """Have a stream escape what it cannot encode; ASCII usually means that no locale is set, so use UTF-8."""
    is_ascii = (stream.encoding or "").lower() in ("ascii", "us-ascii", "ansi_x3.4-1968", "646")
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(encoding="utf-8" if is_ascii else None, errors="backslashreplace")
