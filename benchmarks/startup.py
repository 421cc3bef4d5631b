"""Start-up: time of commands and first calls in new processes, without compiled kernels and with them.

Writes results/startup.csv. Wall-clock time; cold runs once each, warm runs the best of five.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.registry import Benchmark
from benchmarks.shared.results import write

LIBRARY = """
import numpy as np
import polyaforest
X = np.random.default_rng(0).normal(size=(1000, 5))
polyaforest.{call}
"""
CALLS = {
    "StreamingMPF: fit and score": "StreamingMPF(random_state=0).fit(X).score_samples(X)",
    "BatchMPF: fit and score": "BatchMPF(random_state=0).fit(X).score_samples(X)",
    "StreamingMPF: a stream": "StreamingMPF(random_state=0).detect_then_learn(X)",
}
PROGRAM = [sys.executable, "-m", "polyaforest"]


def examples(folder: Path) -> tuple[Path, Path]:
    """Write a table of 4,032 rows and a stream of records, and return their places."""
    X = np.random.default_rng(0).normal(size=(4032, 3))
    X[100] = 9
    table, records = folder / "metrics.csv", folder / "metrics.jsonl"
    np.savetxt(table, X, delimiter=",", header="a,b,c", comments="")
    records.write_text("".join(json.dumps(dict(zip("abc", row, strict=True))) + "\n" for row in X[:500].tolist()))
    return table, records


def wait(command: list[str], cache: str, *, for_line: bool = False) -> float:
    """Return seconds until a command exits, or prints its first line."""
    began = time.perf_counter()
    environment = {**os.environ, "POLYAFOREST_CACHE_DIR": cache}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        if for_line:
            process.stdout.readline()
            seconds = time.perf_counter() - began
        process.stdout.read()
    if process.returncode:
        raise RuntimeError(f"{command} failed with {process.returncode}")
    return seconds if for_line else time.perf_counter() - began


def measure_all(options: Namespace, directory: Path) -> None:
    """Run everything cold, then warm."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        table, records = examples(Path(folder))
        tasks: dict[str, Callable[[str], float]] = {
            "detect, 4,032 rows": lambda cache: wait([*PROGRAM, "detect", str(table)], cache),
            "detect --stream": lambda cache: wait([*PROGRAM, "detect", "--stream", str(table)], cache),
            "watch, to the first line": lambda cache: wait([*PROGRAM, "watch", str(records)], cache, for_line=True),
            "warmup": lambda cache: wait([*PROGRAM, "warmup"], cache),
            **{
                name: lambda cache, call=call: wait([sys.executable, "-c", LIBRARY.format(call=call)], cache)
                for name, call in CALLS.items()
            },
        }
        for name, task in tasks.items():
            with tempfile.TemporaryDirectory() as cache:
                cold = task(cache)
                warm = min(task(cache) for _ in range(5))
            rows.append({"what": name, "cold_s": round(cold, 1), "warm_s": round(warm, 2)})
            print("  ".join(f"{value!s:>28}" for value in rows[-1].values()), flush=True)
    write("startup", rows, directory)


BENCHMARK = Benchmark(measure_all)
