"""From import to the first score in a new process: with an empty cache of compiled code, and with a warm one.

Writes results/startup.csv.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from typing import Any

from _results import write

PROGRAM = """
import time
start = time.perf_counter()
import numpy as np
import polyaforest
imported = time.perf_counter()
X = np.random.default_rng(0).normal(size=(1000, 5))
getattr(polyaforest, "{name}")(random_state=0).fit(X).score_samples(X)
print(imported - start, time.perf_counter() - start)
"""


def first_score(name: str, cache: str) -> tuple[float, float]:
    """Seconds to import the package, and to the first score, in a new process."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
    command = [sys.executable, "-c", PROGRAM.format(name=name)]
    done = subprocess.run(command, env=environment, capture_output=True, check=True, text=True)
    imported, scored = map(float, done.stdout.split())
    return imported, scored


def main() -> None:
    """Cold and warm starts of both detectors."""
    rows: list[dict[str, Any]] = []
    for name in ("StreamingMPF", "BatchMPF"):
        with tempfile.TemporaryDirectory() as cache:
            runs = [("cold", *first_score(name, cache))]
            runs += [("warm", *min((first_score(name, cache) for _ in range(5)), key=lambda run: run[1]))]
        for state, imported, scored in runs:
            rows.append(
                {"detector": name, "cache": state, "import_s": round(imported, 2), "first_score_s": round(scored, 2)}
            )
            print("  ".join(f"{value!s:>14}" for value in rows[-1].values()))
    write("startup", rows)


if __name__ == "__main__":
    main()
