"""Escape control characters in everything that is printed, except polyaforest's own colours.

Reports escape names themselves, since only they can distinguish a newline in a name from their own. This module covers
the rest: errors of libraries, warnings and tracebacks.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from polyaforest.util.text import printable_lines

__all__ = ["CLEAR_LINE", "escaped_output"]

CLEAR_LINE = "\r\x1b[K"  # return to the start of the line and clear it
_OURS = re.compile(r"(\x1b\[(?:0|1|31)m|\r\x1b\[K)")  # plain, bold, red


class _EscapingStream:
    """Wrap a text stream to escape control characters."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Escape and write text."""
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
def escaped_output() -> Iterator[None]:
    """Escape control characters in stdout and stderr; either is None if the shell closed it."""
    before = sys.stdout, sys.stderr
    for stream in filter(None, before):
        _accept_all_characters(stream)
    sys.stdout, sys.stderr = (cast(Any, stream and _EscapingStream(stream)) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _accept_all_characters(stream: Any) -> None:
    """Escape characters that the stream cannot encode; replace ASCII, which usually means no locale, by UTF-8."""
    is_ascii = (stream.encoding or "").lower() in ("ascii", "us-ascii", "ansi_x3.4-1968", "646")
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(encoding="utf-8" if is_ascii else None, errors="backslashreplace")
