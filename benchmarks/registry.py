"""All benchmarks by name, and the command line that runs them.

Every other module of this package is a benchmark. Its name is the name of the module, its summary is the first line of
the docstring, and its `BENCHMARK` says how to run it. Only modules that run are imported, because some benchmarks
measure the memory of this process.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import Any

from benchmarks.shared.pages import PAGES, ROOT, scratch
from benchmarks.shared.provenance import recorded
from benchmarks.shared.results import RESULTS, read

PROGRAM = "python -m benchmarks"
NAMES = tuple(sorted({path.stem for path in Path(__file__).parent.glob("*.py")} - {"__init__", "__main__", "registry"}))


@dataclass(frozen=True)
class Benchmark:
    """How to run a benchmark."""

    run: Callable[[Namespace, Path], None]  # of options and a directory: writes CSV files there, reuses what they hold
    render: Callable[[Path, Path], None] | None = None  # of the directory and that of the pages: fills their tables
    draw: Callable[[Path, Path], None] | None = None  # likewise: draws their pictures
    quick: str | None = None  # what `--quick` measures; None if there is no quick run
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by flag, arguments of `add_argument`
    peers: tuple[str, ...] = ()  # distributions whose versions matter to the results


def of_rows(function: Callable[..., None], *files: str) -> Callable[[Path, Path], None]:
    """Return a function of two directories: `function` of the rows of CSV files in the first, and the second."""
    return lambda results, pages: function(*(read(results / f"{name}.csv") for name in files), pages)


def only(names: Iterable[str]) -> dict[str, Any]:
    """Return the arguments of an option that selects some of these names, by default all."""
    return {
        "nargs": "+",
        "choices": tuple(names),
        "default": tuple(names),
        "metavar": "NAME",
        "help": f"only some of: {_one_of(names)}",
    }


def again(methods: Iterable[str]) -> dict[str, Any]:
    """Return the arguments of an option that names methods to measure again."""
    words = f"measure methods again (without a name, those of polyaforest): {_one_of(methods)}"
    return {"nargs": "*", "choices": tuple(methods), "metavar": "METHOD", "help": words}


def _one_of(names: Iterable[str]) -> str:
    return "; ".join(names).replace("%", "%%")


def load(name: str) -> Benchmark:
    """Import a benchmark."""
    benchmark: Benchmark = import_module(f"benchmarks.{name}").BENCHMARK
    return benchmark


def summary(name: str) -> str:
    """Return what a benchmark measures, without importing it."""
    tree = ast.parse((Path(__file__).parent / f"{name}.py").read_text("utf-8"))
    return (ast.get_docstring(tree) or "").partition("\n")[0]


def run(name: str, options: Namespace, results: Path = RESULTS, pages: Path = PAGES) -> None:
    """Measure what the results lack, then fill the pages; a quick run leaves the project's own files alone."""
    benchmark = load(name)
    if options.quick and results == RESULTS:
        results = pages = scratch(name)
    with recorded(name, benchmark.peers, results):
        benchmark.run(options, results)
    render(name, results, pages)


def render(name: str, results: Path = RESULTS, pages: Path = PAGES) -> bool:
    """Fill the tables and draw the pictures of a benchmark; return whether it has any."""
    benchmark = load(name)
    steps = [step for step in (benchmark.render, benchmark.draw) if step]
    for step in steps:
        step(results, pages)
    return bool(steps)


def main(arguments: Sequence[str] | None = None, results: Path = RESULTS, pages: Path = PAGES) -> None:
    """Run the command line."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    first = list(takewhile(lambda word: not word.startswith("-"), words[1:]))
    parser = _parser(first[0] if len(first) == 1 and first[0] in NAMES else None)
    options = parser.parse_args(words)
    if options.command == "list":
        width = max(map(len, NAMES))
        print("\n".join(f"{name:{width}}  {summary(name)}" for name in NAMES))
        return
    if bool(options.names) == options.all:
        parser.error("name benchmarks, or use --all")
    if options.command == "render":
        _render(parser, options, results, pages)
    elif len(options.names) == 1:
        (name,) = options.names
        if options.quick and load(name).quick is None:
            parser.error(f"{name} has no quick run")
        run(name, options, results, pages)
    else:
        _run_each(options)


def _parser(name: str | None) -> ArgumentParser:
    """Return the parser, with the options of one benchmark if there is one."""
    parser = ArgumentParser(prog=PROGRAM, description="Measure accuracy and speed, and fill the pages of the docs.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="list all benchmarks")
    more = f"Options of one benchmark: {PROGRAM} run NAME --help"
    runs = commands.add_parser("run", help="measure what the results lack, then fill the pages", epilog=more)
    renders = commands.add_parser("render", help="fill the pages from the results, without measuring")
    for command in (runs, renders):
        command.add_argument("names", nargs="*", type=_known, metavar="NAME", help=f"see {PROGRAM} list")
        command.add_argument("--all", action="store_true", help="all benchmarks")
    benchmark = load(name) if name else None
    words = (benchmark and benchmark.quick) or "a small part of each, in minutes"
    runs.add_argument("--quick", action="store_true", help=f"{words}; results and pages stay unchanged")
    if benchmark and benchmark.options:
        group = runs.add_argument_group(f"options of {name}")
        for flag, settings in benchmark.options.items():
            group.add_argument(flag, **settings)
    return parser


def _known(name: str) -> str:
    """Return the name of a benchmark."""
    if name not in NAMES:
        near = get_close_matches(name, NAMES, cutoff=0.5)
        hint = f"did you mean {' or '.join(near[:2])}?" if near else f"see {PROGRAM} list"
        raise ArgumentTypeError(f"unknown benchmark {name!r}: {hint}")
    return name


def _render(parser: ArgumentParser, options: Namespace, results: Path, pages: Path) -> None:
    """Fill the pages of all benchmarks, or of those named."""
    for name in options.names or NAMES:
        if not render(name, results, pages) and options.names:
            parser.error(f"{name} fills no page")


def _run_each(options: Namespace) -> None:
    """Run benchmarks one after another, each in its own process, so that none affects the next; report failures."""
    flags = ["--quick"] if options.quick else []
    failed = []
    for name in options.names or NAMES:
        if options.quick and load(name).quick is None:
            print(f"{name}: no quick run", flush=True)
            continue
        print(f"{name}: {summary(name)}", flush=True)
        command = [sys.executable, "-m", "benchmarks", "run", name, *flags]
        if subprocess.run(command, check=False, cwd=ROOT).returncode:
            failed.append(name)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")
