"""Other streaming detectors at the end of a pipe: lines of JSON come in, each is scored and learned in a plain loop.

`python benchmarks/baselines/pipe.py river --trees 10 < records.jsonl`. Records that score above `--above` are written
as lines of JSON, with nothing but their number and score. Libraries are imported when they are chosen.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

Step = Callable[[list[float]], float]  # scores a row and learns it

LIMIT = 4.0  # half-space trees need the range of the data


def river(n_features: int, trees: int, window: int) -> Step:
    """Return half-space trees of river, which take a row as a dictionary."""
    from river.anomaly import HalfSpaceTrees  # noqa: PLC0415 - one library only

    limits = dict.fromkeys(range(n_features), (-LIMIT, LIMIT))
    forest = HalfSpaceTrees(n_trees=trees, window_size=window, limits=limits, seed=0)

    def step(row: list[float]) -> float:
        named = dict(enumerate(row))
        score = forest.score_one(named)
        forest.learn_one(named)
        return float(score)

    return step


def krcf(n_features: int, trees: int, window: int) -> Step:
    """Return the random cut forest in Rust as it comes, in which one point in ten enters a tree."""
    from krcf import RandomCutForest  # noqa: PLC0415

    forest = RandomCutForest(
        {
            "dimensions": n_features,
            "shingle_size": 1,
            "internal_shingling": False,
            "num_trees": trees,
            "sample_size": window,
            "random_seed": 0,
            "parallel_execution_enabled": False,
        }
    )

    def step(row: list[float]) -> float:
        score = forest.score(row)
        forest.update(row)
        return float(score)

    return step


def rrcf(n_features: int, trees: int, window: int) -> Step:
    """Return the random cut forest in Python. Only a point that is in a tree has a score there, so it learns first."""
    from rrcf import RCTree  # noqa: PLC0415

    forest = [RCTree(random_state=seed) for seed in range(trees)]
    arrivals = 0

    def step(row: list[float]) -> float:
        nonlocal arrivals
        total = 0.0
        for tree in forest:
            if arrivals >= window:
                tree.forget_point(arrivals - window)
            tree.insert_point(row, index=arrivals)
            total += tree.codisp(arrivals)
        arrivals += 1
        return total / trees

    return step


DETECTORS = {"river": river, "krcf": krcf, "rrcf": rrcf}


def main() -> None:
    """Read standard input to its end."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("detector", choices=DETECTORS)
    parser.add_argument("--trees", type=int, default=100)
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--shingle", type=int, default=1, help="number of consecutive records to score together")
    parser.add_argument("--above", type=float, default=float("-inf"), help="write the records that score above this")
    options = parser.parse_args()
    step, rows = None, deque[list[float]](maxlen=options.shingle)
    for number, line in enumerate(sys.stdin, 1):
        record: dict[str, Any] = json.loads(line)
        rows.append(list(record.values()))
        if len(rows) < options.shingle:
            continue
        row = [value for values in rows for value in values]
        step = step or DETECTORS[options.detector](len(row), options.trees, options.window)
        score = step(row)
        if score > options.above:
            print(json.dumps({"position": number, "score": score}), flush=True)


if __name__ == "__main__":
    main()
