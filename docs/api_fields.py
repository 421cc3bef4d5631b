"""Extension of the API reference: document fields by their comments, and show lists of types as written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import griffe

COMMENT = re.compile(r"  # (?:noqa: [A-Z0-9, ]+  )?(?P<text>[^#]+)$")


class Fields(griffe.Extension):
    """Show the fields of named tuples and enumerations as a table, and constants with their comments."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Complete the docstrings of a package."""
        for thing in _things(pkg):
            if thing.is_attribute and thing.parent.is_module and thing.docstring is None:
                thing.docstring = griffe.Docstring(_comment(thing), parent=thing) if _comment(thing) else None
            elif (
                thing.docstring is not None
                and thing.is_class
                and {"NamedTuple", "IntEnum"} & set(map(str, thing.bases))
            ):
                _add_fields(thing)
            elif thing.docstring is not None and (thing.is_function or "__init__" in thing.members):
                _untuple(thing.docstring)


def _things(thing: griffe.Object) -> Iterator[griffe.Object]:
    """Yield an object and all objects it defines."""
    yield thing
    for member in thing.members.values():
        if not member.is_alias:
            yield from _things(member)


def _comment(attribute: griffe.Object) -> str:
    """Return the comment behind an attribute as a sentence, or an empty string."""
    lines = attribute.lines
    found = COMMENT.search(lines[0]) if len(lines) == 1 else None
    return f"{found['text'][0].upper()}{found['text'][1:].strip()}." if found else ""


def _add_fields(kind: griffe.Class) -> None:
    """Add a table of the fields to the docstring of a class, unless it has one."""
    sections = kind.docstring.parsed
    fields = [member for name, member in kind.members.items() if member.is_attribute and not name.startswith("_")]
    rows = [
        griffe.DocstringAttribute(field.name, annotation=field.annotation, description=_comment(field))
        for field in fields
    ]
    if not any(section.kind is griffe.DocstringSectionKind.attributes for section in sections):
        sections.append(griffe.DocstringSectionAttributes(rows))


def _untuple(docstring: griffe.Docstring) -> None:
    """Show types such as "int, str or None" without parentheses: they are not tuples."""
    for section in docstring.parsed:
        for item in section.value if isinstance(section.value, list) else []:
            if isinstance(getattr(item, "annotation", None), griffe.ExprTuple):
                item.annotation.implicit = True
