"""`polyaforest info`: show what a model file holds."""

from __future__ import annotations

import textwrap
from math import isfinite
from typing import Any

import click

from polyaforest.cli import _options as options
from polyaforest.util.text import label, printable

_WIDTH = 100  # characters per line
_HIDDEN = {"columns", "domain", "line", "reader", "out", "quarantine"}  # notes shown elsewhere, or internal


_HELP = """Show the contents of the file MODEL: the detector, its columns, points, settings and notes.

\b
Examples:
  polyaforest info model.mpf
  polyaforest info model.mpf --json | jq .n_points
  polyaforest info hosts.models --by web-1
"""


@click.command(help=_HELP)
@click.argument("model", type=click.Path())
@options.partition
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object instead of text.")
def command(model: str, by: str | None, as_json: bool) -> None:
    """Run `polyaforest info`."""
    import orjson

    from polyaforest.io.json_values import to_json

    facts = facts_of_file(model, by)
    if as_json:
        click.echo(to_json(_as_text(facts), orjson.OPT_INDENT_2).decode())
    else:
        click.echo("\n".join((_describe_streams if facts["kind"] == "streams" else _describe_model)(facts)))


def facts_of_file(path: str, by: str | None = None) -> dict[str, Any]:
    """Return the facts of a file, JSON-compatible: of its model, or of its models by partition."""
    import os

    from polyaforest.judge.saved import read_detector
    from polyaforest.storage.model_store import is_model_store, read_damaged, read_notes

    about: dict[str, Any] = {"file": path, "bytes": os.path.getsize(path)}
    if not is_model_store(path):
        facts = facts_of(read_detector(path, by))
        return {**about, "format_version": format_version(path), **facts}
    notes, keys = read_notes(path)
    if by is None and keys != [""]:  # the key of a stream without partitions
        return {**about, "kind": "streams", "keys": keys, "damaged": read_damaged(path), "notes": notes}
    facts = facts_of(read_detector(path, by))
    return {**about, "format_version": None, **facts, "notes": {**notes, **facts["notes"]}}


def facts_of(model: Any) -> dict[str, Any]:
    """Return the facts of a model."""
    from polyaforest.tables.validation import feature_names

    return {
        "detector": type(model).__name__,
        "kind": kind_of(model),
        "columns": feature_names(forests_of(model)[0] if kind_of(model) == "groups" else model),
        **_categories(model),
        "n_trees": sum(forest.n_estimators for forest in forests_of(model)),
        "n_points": int(model.n_points_),
        "n_seen": n_seen(model),
        "privacy_epsilon": getattr(model, "privacy_epsilon_", None),
        "threshold": threshold_of(model),
        "settings": changed_settings(model),
        "notes": model.notes,
    }


def _categories(model: Any) -> dict[str, list[str]]:
    """Return the columns that are categories, if any."""
    from polyaforest.tables.validation import feature_names

    encoding = getattr(model, "encoding_", None)
    return {} if encoding is None else {"categories": [feature_names(model)[k] for k in encoding.columns]}


def forests_of(model: Any) -> list[Any]:
    """Return the forests of a model: of all views of a series, of groups, or the model itself."""
    if kind_of(model) == "groups":
        return [model.estimator_]
    return list(model.estimators_.values()) if kind_of(model) == "series" else [model]


def format_version(path: str) -> int:
    """Return the version of the file's format."""
    import json

    import numpy as np

    with np.load(path) as file:
        version: int = json.loads(file["header.json"].tobytes())["version"]
    return version


def threshold_of(model: Any) -> float | None:
    """Return the score below which rows are flagged; None if the model has learned too few rows."""
    try:
        return model.offset_ if isfinite(model.offset_) else None
    except ValueError:  # too few rows for its false alarm rate
        return None


def kind_of(model: Any) -> str:
    """Return the kind of a model: "series", "counts", "groups", "table", "stream" or "summary"."""
    if type(model).__name__ != "StreamingMPF":
        return {"BatchMPF": "counts", "SeriesMPF": "series", "GroupedMPF": "groups"}[type(model).__name__]
    if model.is_frozen_:
        return "table"
    return "stream" if model.keeps_points_ else "summary"


def n_seen(model: Any) -> int | None:
    """Return the number of rows learned so far, None if unknown."""
    return int(model.n_seen_) if kind_of(model) in ("series", "stream", "summary") else None


def changed_settings(model: Any) -> dict[str, Any]:
    """Return the parameters that differ from the defaults."""
    defaults = type(model)().get_params(deep=False)
    settings: dict[str, Any] = {}
    for name, value in model.get_params(deep=False).items():
        if hasattr(value, "get_params"):
            settings |= {f"{name}__{inner}": setting for inner, setting in changed_settings(value).items()}
        elif repr(value) != repr(defaults[name]):
            settings[name] = _as_json(value)
    return settings


def _as_json(value: Any) -> Any:
    """Return a parameter as JSON: numbers and strings unchanged, arrays as lists, anything else as its repr."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return value.tolist() if hasattr(value, "tolist") else repr(value)


def _as_text(fact: Any) -> Any:
    """Replace bytes of paths that are not text, so that facts fit into JSON."""
    if isinstance(fact, dict):
        return {name: _as_text(part) for name, part in fact.items()}
    if isinstance(fact, list):
        return [_as_text(part) for part in fact]
    return fact.encode("utf-8", "backslashreplace").decode() if isinstance(fact, str) else fact


# ---- in words --------------------------------------------------------------------------------------------------------

_WORDS = {
    "table": "a StreamingMPF fitted on a table by an earlier version: it can score and explain rows, but not learn",
    "stream": "a StreamingMPF: it holds points by key, can learn more rows and delete points exactly",
    "summary": "a StreamingMPF without a window: it keeps counts but no points",
    "counts": "a BatchMPF: it counts rows in fixed cells, can learn more rows and be merged with other models",
    "groups": "a GroupedMPF: a forest with thresholds and p-values calibrated within groups",
    "series": "a SeriesMPF for time series: it scores each reading together with those leading up to it",
}


def _describe_streams(facts: dict[str, Any]) -> list[str]:
    """Describe a file with a model per partition, as lines."""
    return [
        f"{printable(facts['file'])}: one model per partition, written by `watch --by`.",
        _line("models", f"{len(facts['keys']):,}: {_listed(facts['keys'])}"),
        *(_line("damaged", f"{key!r}, set aside: {reason}") for key, reason in facts["damaged"].items()),
        *_notes(facts),
        _line("file", _size(facts["bytes"])),
    ]


def _describe_model(facts: dict[str, Any]) -> list[str]:
    """Describe a model, as lines."""
    columns, kind = facts["columns"], facts["kind"]
    lines = [f"{printable(facts['file'])}: {_WORDS[kind]}."]
    lines += [
        _line("columns", f"{len(columns):,}: {_listed(columns)}"),
        *([_line("category", _listed(facts["categories"]))] if "categories" in facts else []),
        _line("rows" if kind == "counts" else "points", _points(facts)),
        _line("trees", f"{facts['n_trees']:,}"),
    ]
    if facts["privacy_epsilon"] is not None:
        words = f"a private release, epsilon = {facts['privacy_epsilon']:g}: counts are noisy, and rows cannot be added"
        lines.append(_line("privacy", words))
    if facts["threshold"] is not None:
        lines.append(_line("threshold", f"rows that score below {facts['threshold']:.4g} are flagged"))
    settings = [f"{name}={_shortened(repr(value))}" for name, value in facts["settings"].items()]
    lines.append(_line("settings", f"{', '.join(settings)}; defaults otherwise" if settings else "all defaults"))
    lines += _notes(facts)
    version = facts["format_version"]
    lines.append(_line("file", _size(facts["bytes"]) + (f", format version {version}" if version else "")))
    return lines


def _notes(facts: dict[str, Any]) -> list[str]:
    """Format the notes of the file, such as the position in the source."""
    return [_line("note", f"{name}: {_note(note)}") for name, note in facts["notes"].items() if name not in _HIDDEN]


def _note(note: Any) -> str:
    """Format a note; of settings, only those that are set."""
    if isinstance(note, dict):
        return ", ".join(f"{name}={_shortened(str(value))}" for name, value in note.items() if value not in (None, []))
    return _shortened(str(note), 1000)


def _points(facts: dict[str, Any]) -> str:
    """Format the number of points held and seen."""
    n_points, n_seen = facts["n_points"], facts["n_seen"]
    if facts["kind"] == "counts":
        return f"{n_points:,} counted"
    if n_seen is None:
        return f"up to {n_points:,} in a tree"
    return f"{n_points:,} counted" if facts["kind"] == "summary" else f"{n_points:,} held of {n_seen:,} seen"


def _line(name: str, text: str) -> str:
    """Format one fact, wrapped."""
    return textwrap.fill(
        printable(text), _WIDTH, initial_indent=f"  {name:<10}", subsequent_indent=" " * 12, break_on_hyphens=False
    )


def _listed(names: list[str], most: int = 20) -> str:
    """Format the first few names."""
    return ", ".join(map(label, names[:most])) + (f" and {len(names) - most:,} others" if len(names) > most else "")


def _shortened(text: str, most: int = 60) -> str:
    """Shorten a text; --json prints all of it."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _size(n_bytes: int) -> str:
    """Format a number of bytes with its unit."""
    for unit, power in (("GB", 9), ("MB", 6), ("kB", 3)):
        if n_bytes >= 10**power:
            return f"{n_bytes / 10**power:.3g} {unit}"
    return f"{n_bytes} bytes"
