"""`polyaforest forget`: rows out of a model, as if they had never come."""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, NoReturn

import click

from polyaforest.cli import _options as options

_HELP = """Forget rows by their keys: afterwards the model is what it would be had they never come.

Keys are those of the column that fit was given by --key, or watch by --id, or else the numbers of the rows as they
came, from 0. All rows of a key go, in all streams; of a time series, everything that was learned with the reading
in it. The file is changed as a whole or, if a key is not held, not at all.

\b
Examples:
  polyaforest forget -m model.mpf --key customer-17
  polyaforest forget -m model.mpf --keys-from requests.txt --missing-ok
  polyaforest forget -m hosts.stock --whole-stream web-1
"""


@click.command(help=_HELP)
@click.option("-m", "--model", required=True, type=click.Path(), help="The model that is to forget.")
@click.option("--key", "names", multiple=True, metavar="KEY", help="The key of rows to forget; may be repeated.")
@click.option("--keys-from", type=click.Path(allow_dash=True), help="A file with one key on each line; - for stdin.")
@click.option(
    "--whole-stream",
    "streams",
    multiple=True,
    metavar="KEY",
    help="Of a file that `watch --key` wrote: forget all of this stream; may be repeated.",
)
@click.option("--missing-ok", is_flag=True, help="Go on if a key is not held, and say so.")
@click.option("--out", type=click.Path(dir_okay=False), help="Where to write the model instead of back to its file.")
def command(
    model: str,
    names: tuple[str, ...],
    keys_from: str | None,
    streams: tuple[str, ...],
    missing_ok: bool,
    out: str | None,
) -> None:
    """Run `polyaforest forget`."""
    from polyaforest.live.model_store import is_stock

    wanted = _wanted(names, keys_from)
    if not wanted and not streams:
        raise click.UsageError("Say what to forget: --key KEY, or --keys-from FILE with a key on each line.")
    if is_stock(model):
        if out is not None:
            raise click.UsageError(f"{model} is what `watch` goes on from, and stays in its place: omit --out.")
        _forget_in_stock(model, wanted, list(dict.fromkeys(streams)), missing_ok)
    elif streams:
        raise click.UsageError(f"{model} is of one stream only: --whole-stream is for files that `watch --key` wrote.")
    else:
        _forget_rows(model, out or model, wanted, missing_ok)


def _forget_rows(path: str, out: str, wanted: Sequence[str], missing_ok: bool) -> None:
    """Take rows out of a model."""
    forest = _loaded(path)
    held, missing = _found(wanted, forest.keys_)
    _refuse(path, "row", missing, missing_ok)
    if held or out != path:
        forest.delete(held)
        forest.save(out)
    options.say(f"Forgot {_many(len(held), 'row')}; {out} holds {_many(int(forest.n_points_), 'point')}.")
    _tell_of_missing(missing)


def _forget_in_stock(path: str, wanted: Sequence[str], streams: Sequence[str], missing_ok: bool) -> None:
    """Take rows and whole streams out of a file that holds many models; all of it or, on any error, nothing."""
    from polyaforest.live.model_store import Stock, read_damaged

    with Stock(path, _make_nothing, tell=options.say) as stock:
        aside = read_damaged(path)
        unknown = [key for key in streams if key not in stock.keys and key not in aside]
        _refuse(path, "stream", unknown, missing_ok)
        held, missing, damaged = _found_in_streams(path, wanted, [key for key in stock.keys if key not in streams])
        _tell_of_damaged(path, {**{key: aside[key] for key in aside if key not in streams}, **damaged}, wanted)
        _refuse(path, "row", missing, missing_ok)
        for key, rows in held.items():
            stock[key].detector.delete(rows)
        for key in set(streams) - set(unknown):
            stock.forget(key)
        stock.commit(stock.notes)
        n_streams = len(stock)
    gone = [_many(sum(map(len, held.values())), "row")] if wanted else []
    gone += [_many(len(streams) - len(unknown), "whole stream")] if streams else []
    options.say(f"Forgot {' and '.join(gone)}; {path} holds {_many(n_streams, 'stream')}.")
    _tell_of_missing([*unknown, *missing])


def _found_in_streams(
    path: str, wanted: Sequence[str], streams: Sequence[str]
) -> tuple[dict[str, list[int | str]], list[str], dict[str, str]]:
    """The keys of the rows that go by the names wanted, by stream; names that no row goes by; and damaged models."""
    from polyaforest import ModelFileError
    from polyaforest.live.model_store import read_model

    held: dict[str, list[int | str]] = {}
    damaged: dict[str, str] = {}
    missing = set(wanted)
    for key in streams if wanted else ():
        try:
            keys = read_model(path, key).keys_
        except ModelFileError as problem:
            damaged[key] = str(problem)
            continue
        rows, unknown = _found(wanted, keys)
        missing &= set(unknown)
        if rows:
            held[key] = rows
    return held, [name for name in wanted if name in missing], damaged


def _tell_of_damaged(path: str, damaged: dict[str, str], wanted: Sequence[str]) -> None:
    """Say which streams cannot be searched for rows."""
    for key, reason in damaged.items() if wanted else ():
        options.say(
            f"{reason}. Its rows are unknown. To forget all of it: polyaforest forget -m {path} --whole-stream {key!r}"
        )


def _make_nothing() -> NoReturn:
    """Stands where a new model would be made, which forgetting never asks for."""
    raise AssertionError("forgetting asked for a new model")


def _refuse(path: str, what: str, missing: Sequence[str], missing_ok: bool) -> None:
    """Raise if there are keys that are not held, unless that is fine."""
    if missing and not missing_ok:
        raise ValueError(
            f"{path} holds no {what} with the key {_some(missing)}: nothing was changed. To forget those that are "
            "held all the same: --missing-ok"
        )


def _tell_of_missing(missing: Sequence[str]) -> None:
    """Say which keys were not held."""
    if missing:
        options.say(f"Not held: {_some(missing)}.")


def _wanted(names: Sequence[str], path: str | None) -> list[str]:
    """The keys that were named, and those in a file, each once."""
    listed: list[str] = []
    if path is not None:
        listed = [key.decode() for key in _lines(path)]
    return list(dict.fromkeys([*names, *filter(None, listed)]))


def _lines(path: str) -> Iterator[bytes]:
    """The lines of a file or pipe, of which none may be endless."""
    from polyaforest.io._blocks import after_last_line, blocks, open_bytes

    with closing(open_bytes(path)) as opened:
        for block in blocks(opened, after_last_line):
            yield from block.splitlines()


def _loaded(path: str) -> Any:
    """The model at a path, if it knows its points by key."""
    from polyaforest import load
    from polyaforest.cli._info import kind_of

    model = load(path)
    if kind_of(model) not in ("stream", "series"):
        raise ValueError(
            f"{path} does not hold its rows by key ({type(model).__name__}, {kind_of(model)}), so it cannot forget "
            "them. A model that can is made by: polyaforest fit --key COLUMN FILE -m MODEL"
        )
    return model


def _found(wanted: Sequence[str], keys: Sequence[int | str]) -> tuple[list[int | str], list[str]]:
    """The keys of all points that go by the names wanted, and those names that no point goes by."""
    from polyaforest.io.keys import keys_named

    ordered = sorted(keys, key=str)  # a key begins with its name, so that those of a name lie together
    texts = [str(key) for key in ordered]
    held: dict[int | str, None] = {}
    missing = []
    for name in wanted:
        near = ordered[bisect_left(texts, name) : bisect_right(texts, name + chr(sys.maxunicode))]
        found = keys_named(name, near)
        held.update(dict.fromkeys(found))
        if not found:
            missing.append(name)
    return list(held), missing


def _some(names: Sequence[str], most: int = 5) -> str:
    """The first few names."""
    return ", ".join(map(repr, names[:most])) + (f" and {len(names) - most:,} others" if len(names) > most else "")


def _many(n: int, what: str) -> str:
    """So many of something, in words."""
    return f"1 {what}" if n == 1 else f"{n:,} {what}s"
