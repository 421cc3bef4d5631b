"""Pages under docs/benchmarks: text by hand, tables by program between a pair of marks, from the CSV files alone."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "benchmarks"
SCRATCH = ROOT / ".cache" / "benchmarks"


def scratch(name: str) -> Path:
    """Return a directory with fresh copies of the pages, for the results, pages and pictures of a quick run."""
    place = SCRATCH / name
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(PAGES, place)
    print(f"quick run: results and pages go to {place}", flush=True)
    return place


def fill(page: str, block: str, text: str, directory: Path = PAGES) -> None:
    """Put `text` between ``<!-- begin block -->`` and ``<!-- end block -->`` of a page, which must have both."""
    path = directory / f"{page}.md"
    begin, end = f"<!-- begin {block} -->", f"<!-- end {block} -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.S)
    filled, n_found = pattern.subn(lambda _: f"{begin}\n{text.strip()}\n{end}", path.read_text("utf-8"))
    if n_found != 1:
        raise ValueError(f"{path} has {n_found} blocks named {block}, not one")
    path.write_text(filled, "utf-8")


def fill_parts(
    page: str,
    parts: Mapping[str, Callable[[Sequence[Mapping[str, str]]], str]],
    rows: Iterable[Mapping[str, str]],
    directory: Path = PAGES,
) -> None:
    """Fill the blocks of a page by functions of the rows, those of parts without rows excepted."""
    rows = list(rows)
    for part, tabulate in parts.items():
        if any(row["part"] == part for row in rows):
            fill(page, part, tabulate(rows), directory)


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)
