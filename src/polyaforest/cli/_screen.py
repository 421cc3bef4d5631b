"""The last step before a terminal: whatever a command prints, nothing but our own colours moves or paints there.

Reports make names printable where they are put into words, as only there a newline of a name can be told from one of
the report. This is for all the rest: every text that Python writes to stdout and stderr passes here, be it an error of
a library, a warning or a traceback.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from polyaforest.core.text import printable_lines

__all__ = ["CLEAR_LINE", "guarded"]

CLEAR_LINE = "\r\x1b[K"  # back to an empty line
_OURS = re.compile(r"(\x1b\[(?:0|1|31)m|\r\x1b\[K)")  # plain, bold, red


class _Screen:
    """A text stream that spells out control characters; in all else the stream that it was given."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write text for people."""
        parts = _OURS.split(text)  # every second one is ours
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
    """Guard stdout and stderr, which stay what they are for bytes; None where the shell has closed them."""
    before = sys.stdout, sys.stderr
    for stream in filter(None, before):
        _take_every_character(stream)
    sys.stdout, sys.stderr = (cast(Any, stream and _Screen(stream)) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _take_every_character(stream: Any) -> None:
    """Let a stream spell out what its encoding lacks; ASCII is as a rule a locale that nobody has set: it is UTF-8."""
    is_ascii = (stream.encoding or "").lower() in ("ascii", "us-ascii", "ansi_x3.4-1968", "646")
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(encoding="utf-8" if is_ascii else None, errors="backslashreplace")
