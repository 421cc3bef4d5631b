"""The command line: throughput of `watch` and of other detectors in a pipe, reading files, start-up, many keys.

Each measurement runs in its own process on one core. Methods take turns, and the median round counts. Speed is measured
by the processor time of the process, so that other load on the machine does not matter; runs with few records measure
the start-up, which is subtracted. Writes results/cli.csv, a row per process, and fills docs/benchmarks/command-line.md.
Times are comparable only within a run, so a part is always measured completely.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from benchmarks.registry import Benchmark, of_rows, only
from benchmarks.shared.pages import PAGES, fill_parts, table
from benchmarks.shared.results import Results, picked

Rows = Sequence[Mapping[str, str]]

PAGE = "command-line"
KEYS = ("part", "case", "method", "records", "round")
PARTS = ("watch", "first", "help", "read", "keys", "detect")
OURS = [sys.executable, "-m", "polyaforest"]
PIPE = [sys.executable, str(Path(__file__).parent / "baselines" / "pipe.py")]
FEATURES, SHINGLE = 10, 10
BLOCK = 20_000  # rows drawn at a time: this process stays small, as its memory counts in that of its children
NOTHING = "1e9"  # a score that peers never reach, so that they write nothing

WATCH = [*OURS, "watch", "--quiet", "--only-anomalies", "--quarantine", os.devnull]
DEFAULT, SMALL = "polyaforest watch", "polyaforest watch, window 256"
RIVER, RIVER_MANY = "river HalfSpaceTrees, 10 trees", "river HalfSpaceTrees, 100 trees"
METHODS: dict[str, list[str]] = {
    DEFAULT: WATCH,
    SMALL: [*WATCH, "--window", "256"],
    RIVER: [*PIPE, "river", "--trees", "10", "--window", "250", "--above", NOTHING],
    RIVER_MANY: [*PIPE, "river", "--above", NOTHING],
    "krcf": [*PIPE, "krcf", "--above", NOTHING],
    "rrcf": [*PIPE, "rrcf", "--above", NOTHING],
}
CASES = {"fields": tuple(METHODS), "shingle": (DEFAULT, RIVER, "krcf")}
IN_MEMORY, ON_DISK = "all in memory", "most on disk"
BUDGETS = {IN_MEMORY: "8192", ON_DISK: "20"}  # megabytes for models

READERS = {
    "open_table(...).chunks()": """
from polyaforest.io.tables import open_table
def read(path): return sum(len(chunk.rows) for chunk in open_table([path]).chunks())
""",
    "polars.read_csv": """
import polars
def read(path): return len(polars.read_csv(path))
""",
}
READING = """
import json, sys, time
start, worked = time.perf_counter(), time.process_time()
n_rows = read(sys.argv[1])
print(json.dumps({"rows": n_rows, "seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - worked}))
"""
STARTS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "polyaforest --help": [*OURS, "--help"],
    "polyaforest detect --help": [*OURS, "detect", "--help"],
}


@dataclass(frozen=True)
class Size:
    """How much to measure: where there are two numbers, what the first takes is taken off the second."""

    rounds: int = 3
    records: tuple[int, ...] = (2_000, 32_000)
    of_slow: tuple[int, ...] = (2_000, 10_000)
    of_rrcf: tuple[int, ...] = (260, 290)  # its window is full before the first number
    keys: int = 1_000
    of_keys: tuple[int, ...] = (1_500, 4_000)
    read: int = 1_000_000
    detect: tuple[int, ...] = (100_000, 300_000, 1_000_000)
    starts: int = 9

    def of(self, method: str) -> tuple[int, ...]:
        """Return the number of records for a method, fewer for slow ones."""
        return {RIVER_MANY: self.of_slow, "krcf": self.of_slow, "rrcf": self.of_rrcf}.get(method, self.records)


QUICK = Size(1, (500, 6_000), (500, 2_000), (100, 130), 50, (100, 300), 100_000, (5_000, 10_000), 3)


# ---- data ------------------------------------------------------------------------------------------------------------


def blocks(n_rows: int, n_features: int) -> Iterator[np.ndarray]:
    """Yield Gaussian rows, one in a thousand four times as far out; a longer stream begins with the same rows."""
    rng = np.random.default_rng(0)
    for start in range(0, n_rows, BLOCK):
        rows = rng.normal(size=(BLOCK, n_features)).round(5)
        rows[500::1000] *= 4.0
        yield rows[: n_rows - start]


def write_records(path: Path, n_rows: int, n_features: int = FEATURES, n_keys: int = 0) -> Path:
    """Write lines of JSON, with alternating keys if there are any."""
    with path.open("w") as file:
        number = 0
        for rows in blocks(n_rows, n_features):
            for row in rows.tolist():
                key = {"host": f"host-{number % n_keys}"} if n_keys else {}
                file.write(json.dumps(key | {f"f{i}": value for i, value in enumerate(row)}) + "\n")
                number += 1
    return path


def write_csv(path: Path, n_rows: int) -> Path:
    """Return a table with a header."""
    with path.open("w") as file:
        file.write(",".join(f"f{i}" for i in range(FEATURES)) + "\n")
        for rows in blocks(n_rows, FEATURES):
            np.savetxt(file, rows, fmt="%.5f", delimiter=",")
    return path


# ---- measuring -------------------------------------------------------------------------------------------------------


class Spent(NamedTuple):
    """What a process took."""

    seconds: float
    cpu_seconds: float
    peak_mb: float


class Task(NamedTuple):
    """A process to run: its key in the file, and the function that runs it."""

    part: str
    case: str
    method: str
    records: int
    measure: Callable[[], Spent]


@contextmanager
def one_core() -> Iterator[None]:
    """Keep this process and its children on one core, where the system can."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def ended(process: subprocess.Popen[Any], start: float, errors: Any) -> Spent:
    """Return what a process took, once it has ended well."""
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        errors.seek(0)
        raise RuntimeError(f"{process.args} ended with {process.returncode}: {errors.read().decode()}")
    return Spent(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1000)


def run(command: Sequence[str], source: Path | None = None) -> Spent:
    """Run a command to its end, with a file poured into its standard input."""
    with tempfile.TemporaryFile() as errors, open(os.devnull, "rb") as nothing:
        feeder = subprocess.Popen(["cat", source], stdout=subprocess.PIPE) if source else None
        start = time.perf_counter()
        stdin = feeder.stdout if feeder else nothing
        process = subprocess.Popen(command, stdin=stdin, stdout=subprocess.DEVNULL, stderr=errors)
        if feeder and feeder.stdout:
            feeder.stdout.close()  # or it would not notice that its reader is gone
        spent = ended(process, start, errors)
        if feeder:
            feeder.wait()
        return spent


def first_line(command: Sequence[str], line: bytes) -> Spent:
    """Run a command, give it one record, and take the time until it answers; the pipe stays open."""
    with tempfile.TemporaryFile() as errors:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
        assert process.stdin
        assert process.stdout
        process.stdin.write(line)
        process.stdin.flush()
        answer = process.stdout.readline()
        seconds = time.perf_counter() - start
        process.stdin.close()
        process.stdout.close()
        spent = ended(process, start, errors)
    if not answer:
        raise RuntimeError(f"{command} said nothing to a record")
    return spent._replace(seconds=seconds)


def read_file(program: str, path: Path, n_rows: int) -> Spent:
    """Read a file in a new process; its imports do not count."""
    command = [sys.executable, "-c", program + READING, str(path)]
    found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    if found["rows"] != n_rows:
        raise RuntimeError(f"{found['rows']} of {n_rows} rows were read")
    return Spent(found["seconds"], found["cpu_seconds"], float("nan"))


# ---- what there is to measure ----------------------------------------------------------------------------------------


def usable() -> list[str]:
    """Return the methods whose libraries are installed."""
    return [name for name, command in METHODS.items() if command[:2] != PIPE or find_spec(command[2])]


def watch_tasks(size: Size, place: Path) -> list[Task]:
    """Return tasks for the throughput, with few and with many records."""
    tasks = []
    for case, names in CASES.items():
        more = ["--shingle", str(SHINGLE)] if case == "shingle" else []
        for method in [name for name in names if name in usable()]:
            for records in size.of(method):
                path = place / f"{case}-{records}.jsonl"
                if not path.exists():
                    write_records(path, records, 1 if more else FEATURES)
                command = [*METHODS[method], *more]
                tasks.append(Task("watch", case, method, records, partial(run, command, path)))
    return tasks


def first_tasks(size: Size, place: Path) -> list[Task]:
    """Time to the first line out, of commands that are to write all lines."""
    line = write_records(place / "first.jsonl", 1).read_bytes()
    tasks = []
    for method in [name for name in usable() if name not in (SMALL, RIVER)]:
        command = [word for word in METHODS[method] if word not in ("--only-anomalies", "--above", NOTHING)]
        tasks.append(Task("first", "fields", method, 1, partial(first_line, command, line)))
    return tasks


def key_tasks(size: Size, place: Path) -> list[Task]:
    """Return tasks with many streams, with memory for all models and for few."""
    tasks = []
    for records in size.of_keys:
        path = write_records(place / f"keys-{records}.jsonl", records, n_keys=size.keys)
        for method, megabytes in BUDGETS.items():
            command = [*WATCH, "--by", "host", "--memory-mb", megabytes]
            tasks.append(Task("keys", f"{size.keys} keys", method, records, partial(run, command, path)))
    return tasks


def read_tasks(size: Size, place: Path) -> list[Task]:
    """Return a CSV file, read by us and by polars alone."""
    path = write_csv(place / f"read-{size.read}.csv", size.read)
    return [
        Task("read", "csv", method, size.read, partial(read_file, program, path, size.read))
        for method, program in READERS.items()
    ]


def detect_tasks(size: Size, place: Path) -> list[Task]:
    """Return tasks of `detect --stream` on files of growing length."""
    tasks = []
    for n_rows in size.detect:
        path = write_csv(place / f"detect-{n_rows}.csv", n_rows)
        command = [*OURS, "detect", "--stream", "--quiet", str(path)]
        tasks.append(Task("detect", "csv", "polyaforest detect --stream", n_rows, partial(run, command)))
    return tasks


def help_tasks(size: Size, place: Path) -> list[Task]:
    """Return commands that only start and exit."""
    return [Task("help", "start", method, 0, partial(run, command)) for method, command in STARTS.items()]


TASKS = {
    "watch": watch_tasks,
    "first": first_tasks,
    "keys": key_tasks,
    "read": read_tasks,
    "detect": detect_tasks,
    "help": help_tasks,
}


def measure(results: Results, part: str, size: Size) -> None:
    """Measure a part again; all of its processes take turns."""
    rounds = {"help": size.starts, "detect": 1, "keys": 1}.get(part, size.rounds)
    results.forget(part=part)
    with tempfile.TemporaryDirectory() as place, one_core():
        tasks = TASKS[part](size, Path(place))
        for turn in tqdm(range(rounds), desc=part, disable=None):
            for task in tasks:
                spent = task.measure()
                key = dict(zip(KEYS, (*task[:-1], turn), strict=True))
                results.add(key | {name: round(value, 4) for name, value in spent._asdict().items()})


def compile_all(size: Size) -> None:
    """Let our code be compiled, and written to the disk, before it is measured."""
    few = replace(size, records=(1_500,), of_slow=(), of_rrcf=(), of_keys=(300,), keys=3, detect=(5_000,))
    with tempfile.TemporaryDirectory() as place:
        for part in ("watch", "keys", "detect"):
            for task in TASKS[part](few, Path(place)):
                if METHODS.get(task.method, OURS)[: len(OURS)] == OURS:
                    task.measure()


# ---- the page --------------------------------------------------------------------------------------------------------


def rate(rows: Rows, **wanted: Any) -> float:
    """Return records per second of processor time beyond the shorter run; by the median round."""
    few, many = sorted({int(value) for value in picked(rows, "records", **wanted)})
    short, long = (picked(rows, "cpu_seconds", records=records, **wanted) for records in (few, many))
    spent = median(b - a for a, b in zip(short, long, strict=True))
    return (many - few) / spent if spent > 0 else float("nan")  # a quick run can be too short


def measured(rows: Rows, **wanted: Any) -> list[str]:
    """Return the methods that the file has, in its order."""
    return list(dict.fromkeys(row["method"] for row in rows if all(row[key] == wanted[key] for key in wanted)))


def times(ratio: float) -> str:
    """Format a ratio of speeds to two figures."""
    return f"{ratio:.0f}" if ratio >= 9.95 else f"{ratio:.1f}" if ratio >= 0.95 else f"{ratio:.2f}"


def watch_table(rows: Rows) -> str:
    """Return records per second, with our ratio to each in brackets."""
    rates = {
        (case, method): rate(rows, part="watch", case=case, method=method)
        for case in CASES
        for method in measured(rows, part="watch", case=case)
    }
    lines = []
    for method in measured(rows, part="watch"):
        line = [f"`{method}`" if method == DEFAULT else method]
        for case in CASES:
            found, ours = rates.get((case, method)), rates[case, DEFAULT]
            line.append(
                "" if found is None else f"{found:,.0f}" + ("" if method == DEFAULT else f" ({times(ours / found)})")
            )
        lines.append(line)
    return table(["", "10 fields", f"one metric, shingles of {SHINGLE}"], lines)


def first_table(rows: Rows) -> str:
    """Return seconds to the first line of output."""
    found = {m: median(picked(rows, "seconds", part="first", method=m)) for m in measured(rows, part="first")}
    cpu = {m: median(picked(rows, "cpu_seconds", part="first", method=m)) for m in found}
    return table(
        ["", "first line out, s", "processor time of a run with one record, s"],
        [[method, f"{seconds:.2f}", f"{cpu[method]:.2f}"] for method, seconds in found.items()],
    )


def keys_table(rows: Rows) -> str:
    """Return records per second and memory with many keys."""
    lines = []
    for method in measured(rows, part="keys"):
        peak = max(picked(rows, "peak_mb", part="keys", method=method))
        lines.append([method, BUDGETS[method], f"{rate(rows, part='keys', method=method):,.0f}", f"{peak:,.0f}"])
    return table(["models are", "`--memory-mb`", "records a second", "peak memory, MB"], lines)


def read_table(rows: Rows) -> str:
    """Return rows per second, and relative to polars alone."""
    found = {
        method: median(picked(rows, "cpu_seconds", part="read", method=method))
        for method in measured(rows, part="read")
    }
    n_rows = picked(rows, "records", part="read")[0]
    alone = found["polars.read_csv"]
    lines = [[f"`{m}`", f"{n_rows / spent:,.0f}", f"{alone / spent:.2f}"] for m, spent in found.items()]
    return table(["", "rows a second", "times the speed of polars"], lines)


def detect_table(rows: Rows) -> str:
    """Return rows per second and peak memory by length of the file."""
    lines = []
    for n_rows in picked(rows, "records", part="detect"):
        cpu, peak = (picked(rows, c, part="detect", records=int(n_rows))[0] for c in ("cpu_seconds", "peak_mb"))
        lines.append([f"{n_rows:,.0f}", f"{n_rows / cpu:,.0f}", f"{peak:,.0f}"])
    return table(["rows of the file", "rows a second, start included", "peak memory, MB"], lines)


def help_table(rows: Rows) -> str:
    """Return milliseconds to start and exit."""
    lines = []
    for method in measured(rows, part="help"):
        wall, cpu = (1000 * median(picked(rows, c, part="help", method=method)) for c in ("seconds", "cpu_seconds"))
        lines.append([f"`{method}`", f"{wall:.0f}", f"{cpu:.0f}"])
    return table(["", "ms", "ms of processor time"], lines)


BLOCKS = {
    "watch": watch_table,
    "first": first_table,
    "keys": keys_table,
    "read": read_table,
    "detect": detect_table,
    "help": help_table,
}


def render(rows: Rows, directory: Path = PAGES) -> None:
    """Fill the tables of the page from the rows of the file."""
    fill_parts(PAGE, BLOCKS, rows, directory)


def measure_all(options: Namespace, directory: Path) -> None:
    """Measure some parts again."""
    size = QUICK if options.quick else Size()
    results = Results("cli", KEYS, directory)
    if not options.quick:
        compile_all(size)
    for part in options.part:
        measure(results, part, size)


BENCHMARK = Benchmark(
    measure_all,
    of_rows(render, "cli"),
    quick="few records and one round",
    options={"--part": only(PARTS)},
    peers=("krcf", "polars", "river", "rrcf"),
)
