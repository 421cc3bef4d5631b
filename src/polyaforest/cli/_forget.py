"""`polyaforest forget`: delete rows from a model as if it had never learned them."""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, NoReturn

import click

from polyaforest.cli import _options as options

_HELP = """Delete rows from a model, as if it had never learned them.

A row is identified by the column given as --id to `fit` or `watch`, otherwise by its number, from 0. All rows with an
id are deleted, in all partitions or in those chosen by --by. In a time series, everything learned together with the
reading is deleted too. If the model does not hold one of the ids, nothing is changed.

\b
Examples:
  polyaforest forget -m model.mpf --id customer-17
  polyaforest forget -m model.mpf --ids-from requests.txt --missing-ok
  polyaforest forget -m hosts.models --by web-1 --all
"""


@click.command(help=_HELP)
@click.option("-m", "--model", metavar="MODEL", required=True, type=click.Path(), help="Model file to change.")
@click.option("--id", "ids", multiple=True, metavar="ID", help="Id of the rows to delete; may be repeated.")
@click.option(
    "--ids-from", metavar="FILE", type=click.Path(allow_dash=True), help="File with one id per line; - for stdin."
)
@click.option(
    "--by",
    "partitions",
    multiple=True,
    metavar="VALUE",
    help="Partition to change, if `watch --by` wrote the model file; may be repeated.",
)
@click.option("--all", "is_all", is_flag=True, help="Delete the models of the partitions given with --by.")
@click.option("--missing-ok", is_flag=True, help="Report ids that the model does not hold instead of failing.")
@click.option(
    "--out", metavar="FILE", type=click.Path(dir_okay=False), help="Write the model to FILE instead of MODEL."
)
def command(
    model: str,
    ids: tuple[str, ...],
    ids_from: str | None,
    partitions: tuple[str, ...],
    is_all: bool,
    missing_ok: bool,
    out: str | None,
) -> None:
    """Run `polyaforest forget`."""
    from polyaforest.storage.model_store import is_model_store

    listed = [] if ids_from is None else [name.decode() for name in _lines(ids_from)]
    wanted, chosen = list(dict.fromkeys([*ids, *filter(None, listed)])), list(dict.fromkeys(partitions))
    if is_all and (wanted or not chosen):
        raise click.UsageError("--all deletes the models of whole partitions: give --by VALUE, and no --id.")
    if not wanted and not is_all:
        raise click.UsageError("Give the rows to delete: --id ID, or --ids-from FILE with one id per line.")
    if is_model_store(model):
        if out is not None:
            raise click.UsageError(f"{model} is a model store that `watch` resumes from: omit --out.")
        _forget_in_store(model, wanted, chosen, missing_ok)
    elif chosen:
        raise click.UsageError(f"{model} holds a single model: --by is for model files written by `watch --by`.")
    else:
        _forget_rows(model, out or model, wanted, missing_ok)


def _forget_rows(path: str, out: str, wanted: Sequence[str], missing_ok: bool) -> None:
    """Delete rows from a model."""
    from polyaforest.util.text import count

    forest = _loaded(path)
    held, missing = _find(wanted, forest.keys_)
    _check_missing(path, "row", missing, missing_ok)
    if held or out != path:
        forest.delete(held)
        forest.save(out)
    options.echo(f"Deleted {count(len(held), 'row')}; {out} holds {count(int(forest.n_points_), 'point')}.")
    _report_missing(missing)


def _forget_in_store(path: str, wanted: Sequence[str], partitions: Sequence[str], missing_ok: bool) -> None:
    """Delete rows, or the models of partitions if `wanted` is empty, from a model store in one transaction."""
    from polyaforest.judge import open_store, read_damaged
    from polyaforest.util.text import count

    with open_store(path, _no_new_model, notify=options.echo) as store:
        aside = read_damaged(path)
        unknown = [key for key in partitions if key not in store.keys and key not in aside]
        _check_missing(path, "partition", unknown, missing_ok)
        chosen = [key for key in partitions or sorted({*store.keys, *aside}) if key not in unknown]
        missing: list[str] = []
        if wanted:
            held, missing, damaged = _find_in_store(path, wanted, [key for key in chosen if key in store.keys])
            for key, reason in {**{key: aside[key] for key in aside if key in chosen}, **damaged}.items():
                remedy = f"To delete its model: polyaforest forget -m {path} --by {key!r} --all"
                options.echo(f"{reason}. Its rows are unknown. {remedy}")
            _check_missing(path, "row", missing, missing_ok)
            for key, rows in held.items():
                store[key].detector.delete(rows)
            deleted = count(sum(map(len, held.values())), "row")
        else:
            for key in chosen:
                store.delete(key)
            deleted = count(len(chosen), "partition")
        store.commit(store.notes)
        n_left = len(store)
    options.echo(f"Deleted {deleted}; {path} holds {count(n_left, 'partition')}.")
    _report_missing([*unknown, *missing])


def _find_in_store(
    path: str, wanted: Sequence[str], partitions: Sequence[str]
) -> tuple[dict[str, list[int | str]], list[str], dict[str, str]]:
    """Return the keys of the wanted rows by partition, ids without rows, and damaged models."""
    from polyaforest import ModelFileError
    from polyaforest.judge import read_model

    held: dict[str, list[int | str]] = {}
    damaged: dict[str, str] = {}
    missing = set(wanted)
    for key in partitions:
        try:
            keys = read_model(path, key).keys_
        except ModelFileError as problem:
            damaged[key] = str(problem)
            continue
        rows, unknown = _find(wanted, keys)
        missing &= set(unknown)
        if rows:
            held[key] = rows
    return held, [name for name in wanted if name in missing], damaged


def _no_new_model() -> NoReturn:
    """Raise: deletion never makes a new model."""
    raise AssertionError("forget asked for a new model")


def _check_missing(path: str, what: str, missing: Sequence[str], missing_ok: bool) -> None:
    """Raise if the model lacks rows or partitions, unless that is allowed."""
    if missing and not missing_ok:
        raise ValueError(
            f"{path} holds no {what} named {_some(missing)}: nothing was changed. Use --missing-ok to delete the others"
        )


def _report_missing(missing: Sequence[str]) -> None:
    """Report the ids that were not held."""
    if missing:
        options.echo(f"Not held: {_some(missing)}.")


def _lines(path: str) -> Iterator[bytes]:
    """Yield the lines of a file or pipe; raise if one is too long."""
    from polyaforest.io.blocks import after_last_line, blocks, open_bytes

    with closing(open_bytes(path)) as opened:
        for block in blocks(opened, after_last_line):
            yield from block.splitlines()


def _loaded(path: str) -> Any:
    """Load a model that holds points by key."""
    from polyaforest import load
    from polyaforest.cli._info import kind_of

    model = load(path)
    if kind_of(model) not in ("stream", "series"):
        raise ValueError(
            f"{path} does not hold rows by id ({type(model).__name__}, {kind_of(model)}), so they cannot be deleted. "
            "Fit a model that does: polyaforest fit --id COLUMN FILE -m MODEL"
        )
    return model


def _find(wanted: Sequence[str], keys: Sequence[int | str]) -> tuple[list[int | str], list[str]]:
    """Return the keys of the points with the wanted ids, and the ids without points."""
    from polyaforest.forest.point_store import keys_named

    ordered = sorted(keys, key=str)  # a key starts with its id, so keys with the same id are adjacent
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
    """Format the first few names."""
    return ", ".join(map(repr, names[:most])) + (f" and {len(names) - most:,} others" if len(names) > most else "")
