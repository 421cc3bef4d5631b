r"""Make untrusted text safe to display.

Names, keys and values may contain anything. Unescaped, an escape sequence in a column name could rewrite the screen, a
newline could forge a line of a report, and a bidi control could reorder letters. So invisible characters are escaped as
in Python: ``\x1b``, ``\n``, ``\u202e``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from unicodedata import category, east_asian_width

__all__ = ["count", "json_shown", "label", "listed", "printable", "printable_lines", "spelled", "width"]

# Control, format (bidi controls, zero-width characters), surrogate, private use, unassigned; line and paragraph ends.
_HIDDEN = frozenset(["Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"])
_SHORT = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}
_JOINER = "\u200d"  # makes one emoji of several
_OF_EMOJI = frozenset(["So", "Sk", "Mn"])  # pictures, skin tones, and variation selectors
_LONGEST = 80  # characters of a name in a report
_MOST_NAMED = 8  # names to list


def printable(text: str) -> str:
    r"""Return text on one line, with invisible characters escaped.

    Letters, marks, digits, symbols and spaces of all scripts are kept. The only format character kept is the joiner
    within an emoji. Backslashes are not escaped, so this cannot be undone: write JSON or CSV for machines.

    Examples
    --------
    >>> print(printable("Pólya \x1b[31m 日本\n\u202e"))
    Pólya \x1b[31m 日本\n\u202e
    """
    if text.isprintable():
        return text
    return "".join(spelled(char) if _is_hidden(text, i) else char for i, char in enumerate(text))


def printable_lines(text: str) -> str:
    """Return text of several lines with invisible characters escaped."""
    return "\n".join(map(printable, text.split("\n")))


def label(text: str, most: int = _LONGEST) -> str:
    """Return a name for reports and plots: printable, with its middle cut if it exceeds `most` characters."""
    shown = printable(text if len(text) <= most else f"{text[:most]}{text[-most:]}")  # names may be megabytes long
    if len(shown) <= most:
        return shown
    return f"{shown[: most - most // 3 - 1]}…{shown[-(most // 3) :]}"


def listed(names: Iterable[str]) -> str:
    """Join names with commas; of many, the first ones and the number of others."""
    names = list(map(label, names))
    more = f" and {len(names) - _MOST_NAMED:,} others" if len(names) > _MOST_NAMED + 1 else ""
    return ", ".join(names[:_MOST_NAMED] if more else names) + more


def count(n: int, what: str) -> str:
    """Format a number with its noun."""
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"


def width(text: str) -> int:
    """Return the width of a printable text in terminal columns: two for wide characters, zero for combining marks."""
    if text.isascii():
        return len(text)
    return sum(
        0 if category(char) in ("Mn", "Me", "Cf") else 2 if east_asian_width(char) in "WF" else 1 for char in text
    )


def json_shown(text: str) -> str:
    r"""Return JSON with invisible characters written as JSON escapes, ``\\u202e``.

    Such characters occur only in strings, except newlines between values, which are kept.
    """
    if text.isprintable():
        return text
    return _BEYOND_SPACE.sub(lambda found: _json_spelled(found[0]), text)


_BEYOND_SPACE = re.compile(r"[^\n -~]")


def _is_hidden(text: str, i: int) -> bool:
    """Return whether character `i` must be escaped."""
    if category(text[i]) not in _HIDDEN:
        return False
    is_joint = text[i] == _JOINER and 0 < i < len(text) - 1
    return not (is_joint and category(text[i - 1]) in _OF_EMOJI and category(text[i + 1]) == "So")


def spelled(char: str) -> str:
    """Return a character as a Python escape."""
    code = ord(char)
    if char in _SHORT:
        return _SHORT[char]
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _json_spelled(char: str) -> str:
    """Return a character, or its JSON escape if it is invisible: one or two UTF-16 units."""
    if category(char) not in _HIDDEN:
        return char
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[k : k + 2].hex()}" for k in range(0, len(units), 2))
