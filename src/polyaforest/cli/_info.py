"""`polyaforest info`: what a model file holds."""

from __future__ import annotations

import textwrap
from typing import Any

import click

from polyaforest.core.text import label, printable

_WIDTH = 100  # characters of a line
_UNTOLD = {"columns", "line", "reader", "out", "quarantine"}  # notes that are told elsewhere, or mean nothing to people


_HELP = """Show what the file MODEL holds: the detector, its columns and points, its settings and notes.

\b
Examples:
  polyaforest info model.mpf
  polyaforest info model.mpf --json | jq .n_points
  polyaforest info hosts.stock --key web-1
"""


@click.command(help=_HELP)
@click.argument("model", type=click.Path())
@click.option("--key", help="Of a file that `watch --key` wrote: show the model of this key.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of words.")
def command(model: str, key: str | None, as_json: bool) -> None:
    """Run `polyaforest info`."""
    import orjson

    from polyaforest.io._json import to_json

    facts = facts_of_file(model, key)
    if as_json:
        click.echo(to_json(_as_text(facts), orjson.OPT_INDENT_2).decode())
    else:
        click.echo("\n".join(in_words(facts)))


def facts_of_file(path: str, key: str | None = None) -> dict[str, Any]:
    """What there is to know of a file, as JSON can hold it: of one model, or of many that are held by key."""
    import os

    from polyaforest.cli._models import read_detector
    from polyaforest.live.model_store import is_stock, read_damaged, read_notes

    about: dict[str, Any] = {"file": path, "bytes": os.path.getsize(path)}
    if not is_stock(path):
        facts = facts_of(read_detector(path, key))
        return {**about, "format_version": format_version(path), **facts}
    notes, keys = read_notes(path)
    if key is None and keys != [""]:  # a stream without keys has the empty one
        return {**about, "kind": "streams", "keys": keys, "damaged": read_damaged(path), "notes": notes}
    facts = facts_of(read_detector(path, key))
    return {**about, "format_version": None, **facts, "notes": {**notes, **facts["notes"]}}


def facts_of(model: Any) -> dict[str, Any]:
    """What there is to know of a model."""
    names = getattr(model, "feature_names_in_", None)
    return {
        "detector": type(model).__name__,
        "kind": kind_of(model),
        "columns": [f"x{i}" for i in range(model.n_features_in_)] if names is None else list(map(str, names)),
        "n_trees": int(model.forest_.n_estimators if kind_of(model) == "series" else model.n_estimators),
        "n_points": int(model.n_points_),
        "n_seen": n_seen(model),
        "line": line_of(model),
        "settings": changed_settings(model),
        "notes": model.notes,
    }


def format_version(path: str) -> int:
    """The version of the file's format."""
    import json

    import numpy as np

    with np.load(path) as file:
        version: int = json.loads(file["header.json"].tobytes())["version"]
    return version


def line_of(model: Any) -> float | None:
    """The score below which rows are anomalies; None for streams, where it follows what they hold."""
    if kind_of(model) not in ("table", "counts"):
        return None
    return float(model.notes.get("line", model.offset_))


def kind_of(model: Any) -> str:
    """Which kind of model it is, in a word: "series", "counts", "table", "stream" or "summary"."""
    if type(model).__name__ != "StreamingMPF":
        return {"BatchMPF": "counts", "SeriesMPF": "series"}[type(model).__name__]
    if model._stream is None:
        return "table"
    return "stream" if model._stream.keeps_points else "summary"


def n_seen(model: Any) -> int | None:
    """Rows that have come so far, None for what was learned at once."""
    return int(model.n_seen_) if kind_of(model) in ("series", "stream", "summary") else None


def changed_settings(model: Any) -> dict[str, Any]:
    """The parameters that are not the defaults, as JSON or Python would write them."""
    defaults = type(model)().get_params(deep=False)
    settings = {}
    for name, value in model.get_params(deep=False).items():
        if repr(value) != repr(defaults[name]):
            settings[name] = _as_json(value)
    return settings


def _as_json(value: Any) -> Any:
    """A parameter as JSON: numbers and texts as they are, arrays as lists, anything else as Python writes it."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return value.tolist() if hasattr(value, "tolist") else repr(value)


def _as_text(fact: Any) -> Any:
    """Facts as JSON can hold them: the bytes of a path need not be text."""
    if isinstance(fact, dict):
        return {name: _as_text(part) for name, part in fact.items()}
    if isinstance(fact, list):
        return [_as_text(part) for part in fact]
    return fact.encode("utf-8", "backslashreplace").decode() if isinstance(fact, str) else fact


# ---- in words --------------------------------------------------------------------------------------------------------

_WORDS = {
    "table": "a StreamingMPF grown on a table: it scores and explains rows, and learns no more",
    "stream": "a StreamingMPF on a stream: it holds points by key, learns on and forgets exactly",
    "summary": "a StreamingMPF on a stream of which it keeps counts, and no points",
    "counts": "a BatchMPF, which counts rows in fixed cells: it can be added to and merged",
    "series": "a SeriesMPF on a time series: it judges each reading together with those before it",
}


def in_words(facts: dict[str, Any]) -> list[str]:
    """The same facts for people, a line for each."""
    return _streams_in_words(facts) if facts["kind"] == "streams" else _model_in_words(facts)


def _streams_in_words(facts: dict[str, Any]) -> list[str]:
    """What there is to say of a file with many models."""
    return [
        f"{printable(facts['file'])}: models of streams by key, as `watch --key` keeps them.",
        _line("keys", f"{len(facts['keys']):,}: {_listed(facts['keys'])}"),
        *(_line("damaged", f"{key!r}, set aside: {reason}") for key, reason in facts["damaged"].items()),
        *_notes(facts),
        _line("file", _size(facts["bytes"])),
    ]


def _model_in_words(facts: dict[str, Any]) -> list[str]:
    """What there is to say of a model."""
    columns, kind = facts["columns"], facts["kind"]
    lines = [f"{printable(facts['file'])}: {_WORDS[kind]}."]
    lines += [
        _line("columns", f"{len(columns):,}: {_listed(columns)}"),
        _line("rows" if kind == "counts" else "points", _points(facts)),
        _line("trees", f"{facts['n_trees']:,}"),
    ]
    if facts["line"] is not None:
        lines.append(_line("line", f"rows that score below {facts['line']:.4g} are anomalies"))
    settings = [f"{name}={_shortened(repr(value))}" for name, value in facts["settings"].items()]
    lines.append(
        _line("settings", f"{', '.join(settings)}; the rest as by default" if settings else "all as by default")
    )
    lines += _notes(facts)
    version = facts["format_version"]
    lines.append(_line("file", _size(facts["bytes"]) + (f", format version {version}" if version else "")))
    return lines


def _notes(facts: dict[str, Any]) -> list[str]:
    """What else was noted in the file, such as how far into its stream a model has come."""
    return [_line("note", f"{name}: {_note(note)}") for name, note in facts["notes"].items() if name not in _UNTOLD]


def _note(note: Any) -> str:
    """A note in words: of many settings, those that are set."""
    if isinstance(note, dict):
        return ", ".join(f"{name}={_shortened(str(value))}" for name, value in note.items() if value not in (None, []))
    return _shortened(str(note), 1000)


def _points(facts: dict[str, Any]) -> str:
    """How many points there are, out of how many."""
    n_points, n_seen = facts["n_points"], facts["n_seen"]
    if facts["kind"] == "counts":
        return f"{n_points:,} counted"
    if n_seen is None:
        return f"up to {n_points:,} in a tree"
    return f"{n_points:,} counted" if facts["kind"] == "summary" else f"{n_points:,} held of {n_seen:,} seen"


def _line(name: str, text: str) -> str:
    """One fact, on as many lines as it takes."""
    return textwrap.fill(
        printable(text), _WIDTH, initial_indent=f"  {name:<10}", subsequent_indent=" " * 12, break_on_hyphens=False
    )


def _listed(names: list[str], most: int = 20) -> str:
    """The first so many names."""
    return ", ".join(map(label, names[:most])) + (f" and {len(names) - most:,} others" if len(names) > most else "")


def _shortened(text: str, most: int = 60) -> str:
    """A text, cut where it would fill the screen: all of it is in --json."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _size(n_bytes: int) -> str:
    """A number of bytes, as people read it."""
    for unit, power in (("GB", 9), ("MB", 6), ("kB", 3)):
        if n_bytes >= 10**power:
            return f"{n_bytes / 10**power:.3g} {unit}"
    return f"{n_bytes} bytes"
