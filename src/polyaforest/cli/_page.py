"""The frame of HTML reports: one self-contained page for screens, phones and paper.

Everything from files is escaped, and the content security policy forbids external resources and all scripts but the
one that sorts, which it names by its hash.
"""

from __future__ import annotations

import html
import os
import re
import shlex
from base64 import b64encode
from collections.abc import Iterable, Sequence
from hashlib import sha256
from importlib.resources import files
from os.path import realpath
from typing import Any

import click
from click.core import ParameterSource

from polyaforest import __version__
from polyaforest.util.text import printable

__all__ = ["check_page_place", "command_line", "escaped", "page", "table", "write_page"]

_SECRETS = re.compile(
    r"(?<=://)([^/@\s:]*):[^/\s]*@|((?:password|passwd|pass|secret|token|key)=)[^&\s]+", re.IGNORECASE
)


def page(title: str, body: str, footer: str = "") -> str:
    """Return a page; `title` is text, `body` and `footer` are HTML."""
    style, sorting = (
        files("polyaforest.cli").joinpath(name).read_text("utf-8") for name in ("report.css", "report.js")
    )
    digest = b64encode(sha256(sorting.encode()).digest()).decode()
    runs = '<table class="findings">' in body
    script = f"<script>{sorting}</script>" if runs else ""
    allowed = f"; script-src 'sha256-{digest}'" if runs else ""
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'{allowed}"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escaped(title)}</title><style>{style}</style></head>"
        f"<body><main><h1>{escaped(title)}</h1>{body}</main>"
        f"<footer>polyaforest {__version__}{f': {footer}' if footer else ''}</footer>{script}</body></html>\n"
    )


def escaped(text: str) -> str:
    """Return text as HTML, with invisible characters shown."""
    return html.escape(printable(text), quote=True)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """Return a table; the heads are text, the cells are HTML."""
    head = "".join(f"<th>{escaped(text)}</th>" for text in heads)
    body = "".join(
        "<tr>"
        + "".join(f'<td data-name="{escaped(text)}">{cell}</td>' for text, cell in zip(heads, row, strict=True))
        + "</tr>"
        for row in rows
    )
    return f'<table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def check_page_place(path: str, inputs: Iterable[str]) -> None:
    """Check that a page can be written, before reading anything."""
    from polyaforest.storage.modelfile import check_location, check_regular_file

    if realpath(path) in map(os.path.realpath, inputs):
        raise ValueError(f"{path} is also the input: write to another file")
    check_location(path)
    check_regular_file(path)


def write_page(path: str, text: str) -> None:
    """Write a page to a file, completely or not at all."""
    from polyaforest.storage.modelfile import replacing

    with replacing(realpath(path)) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def command_line(ctx: click.Context) -> str:
    """Return the command that was given, for a shell, with the passwords of addresses masked."""
    words: list[str] = []
    inputs: list[str] = []
    for param in ctx.command.params:
        if param.name is None or ctx.get_parameter_source(param.name) is not ParameterSource.COMMANDLINE:
            continue
        value = ctx.params[param.name]
        if isinstance(param, click.Option):
            words += _option(param, value)
        else:
            inputs += map(str, value if isinstance(value, tuple | list) else [value])
    return shlex.join(_masked(word) for word in ["polyaforest", ctx.info_name or "", *inputs, *words])


def _option(option: click.Option, value: Any) -> list[str]:
    """Return an option as words of a command; none for another value of the same flag."""
    if option.is_flag:
        if option.is_bool_flag:
            return [option.opts[0] if value else option.secondary_opts[0]] if value or option.secondary_opts else []
        return [option.opts[0]] if value == option.flag_value else []
    name = max(option.opts, key=len)
    if isinstance(value, list | tuple):
        return [name, ",".join(map(str, value)) or "none"]
    return [name, str(value)]


def _masked(word: str) -> str:
    """Return a word without passwords."""
    return _SECRETS.sub(lambda found: f"{found[2]}***" if found[2] else f"{found[1]}:***@", word)
