"""Cost of portable kernels: the same calls with kernels compiled for this processor and for any of its kind.

Writes results/portable.csv. Seconds of one thread, best of several rounds that alternate between the two.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

from benchmarks.registry import Benchmark
from benchmarks.shared.results import write

CALLS = {
    "StreamingMPF: fit": "StreamingMPF(**settings).fit(X)",
    "StreamingMPF: score": "forest.score_samples(X)",
    "BatchMPF: fit": "BatchMPF(**settings).fit(X)",
    "BatchMPF: score": "batch.score_samples(X)",
    "StreamingMPF: learn and detect, chunks of 500": "stream(X[:5000], 500)",
    "StreamingMPF: learn and detect, a row a call": "stream(X[:1000], 1)",
    "StreamingMPF: explain 20 rows": "forest.explain(X[:20]).to_dicts()",
}
SCRIPT = """
import json, sys, time
import numpy as np
from polyaforest import BatchMPF, StreamingMPF
X = np.random.default_rng(0).normal(size=(20000, 20))
settings = dict(random_state=0, n_jobs=1)
forest, batch = StreamingMPF(**settings).fit(X), BatchMPF(**settings).fit(X)

def stream(rows, size):
    detector = StreamingMPF(**settings, window=2048)
    for start in range(0, len(rows), size):
        detector.detect_then_learn(rows[start : start + size])

seconds = {}
for name, call in json.load(sys.stdin).items():
    eval(call)
    began = time.process_time()
    eval(call)
    seconds[name] = time.process_time() - began
print(json.dumps(seconds))
"""


def measure(cpu: str) -> dict[str, float]:
    """Return the seconds of every call in a new process."""
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps(CALLS),
        env={**os.environ, "POLYAFOREST_CPU": cpu},
        capture_output=True,
        text=True,
        check=True,
    )
    return {name: float(seconds) for name, seconds in json.loads(ended.stdout).items()}


def measure_all(options: Namespace, directory: Path) -> None:
    """Measure both in turn."""
    rounds: dict[str, list[dict[str, float]]] = {"native": [], "portable": []}
    for _ in range(1 if options.quick else 7):
        for cpu, found in rounds.items():
            found.append(measure(cpu))
    rows = []
    for name in CALLS:
        native, portable = (min(found[name] for found in rounds[cpu]) for cpu in ("native", "portable"))
        rows.append({"call": name, "native_s": native, "portable_s": portable, "ratio": portable / native})
        print(f"{name:>50} {native:8.3f} {portable:8.3f} {portable / native:6.2f}", flush=True)
    write("portable", rows, directory)


BENCHMARK = Benchmark(measure_all, quick="one round")
