"""Names, sources and checksums of the data sets, read from `registry.json`."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Collection
from functools import partial
from importlib.resources import files
from typing import NamedTuple

from ._parsers import Arrays, read_mat, read_nab, read_tsv, read_uci

__all__ = ["ALTERNATIVES", "NAB", "SERIES", "SHA256", "SHORT_NAMES", "TABLES", "Original", "check_name", "original"]

_REGISTRY = json.loads(files(__package__).joinpath("registry.json").read_text("ascii"))
_SOURCES = _REGISTRY["tables"] | _REGISTRY["alternatives"]
_PARSERS: dict[str, Callable[..., Arrays]] = {"mat": read_mat, "uci": read_uci, "tsv": read_tsv}

TABLES: tuple[str, ...] = tuple(_REGISTRY["tables"])  # names of the paper's tables, in its order
ALTERNATIVES: tuple[str, ...] = tuple(_REGISTRY["alternatives"])  # names of other versions of its tables
# The paper does not name the files of ad_exchange and aws_cloud_cpu: these match its figures best.
SHORT_NAMES: dict[str, str] = _REGISTRY["series"]
SERIES: tuple[str, ...] = tuple(SHORT_NAMES)  # short names of the paper's series
NAB: tuple[str, ...] = tuple(_REGISTRY["nab_sha256"])  # full names of all series of NAB
# By `digest`: of X and y of tables; of times, values and labels of series.
SHA256: dict[str, str] = {name: source["sha256"] for name, source in _SOURCES.items() if "sha256" in source}
SHA256 |= _REGISTRY["nab_sha256"]


class Original(NamedTuple):
    """The published files of a data set."""

    paths: tuple[str, ...]  # owner/repository/commit/file
    parse: Callable[..., Arrays]  # takes one file per path
    sha256: str  # of the parsed arrays, independent of the file format


def original(name: str) -> Original:
    """Return the published files of a table, or of a series given by its full name."""
    if name in NAB:
        root = _REGISTRY["nab_root"]
        paths = f"{root}/data/{name}.csv", f"{root}/labels/combined_windows.json"
        return Original(paths, partial(read_nab, name=name), SHA256[name])
    source = _SOURCES[name]
    parse = partial(_PARSERS[source["format"]], **source.get("options", {}))
    return Original((source["path"],), parse, SHA256[name])


def check_name(name: str, known: Collection[str]) -> None:
    """Raise ValueError with the closest names unless `name` is known."""
    if name in known:
        return
    near = difflib.get_close_matches(str(name).lower(), known, n=3)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"choose from {', '.join(known)}"
    raise ValueError(f"unknown data set {name!r}; {hint}")
