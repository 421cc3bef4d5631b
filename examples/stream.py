"""Score a stream that can be stopped at any time and resumed.

Run ``python examples/stream.py`` and press Ctrl-C to stop. The state is saved every midnight, to stream.mpf or to the
file named on the command line. The next run resumes from there: alarms after midnight are reported twice, none is
missed. Delete the file to start from scratch.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from polyaforest import Detections, StreamingMPF

HOUR = 60  # readings, one per minute; also the number scored at once
DAY = 24 * HOUR
WARM_UP = DAY  # readings without alarms
PAUSE = 0.05  # seconds between hours, so that you can follow the output


def readings(position: int) -> Iterator[np.ndarray]:
    """Yield load and latency of a simulated service, one hour at a time, starting at any hour."""
    while True:
        rng = np.random.default_rng([7, position])
        minutes = position + np.arange(HOUR)
        load = 280 + 110 * np.sin(2 * np.pi * minutes / DAY) + rng.normal(0, 14, HOUR)
        latency = 35 + 0.16 * load + rng.gamma(9, 1.5, HOUR)
        if rng.uniform() < 0.05:  # a fault of one minute
            load[HOUR // 2], latency[HOUR // 2] = load[HOUR // 2] + 300, latency[HOUR // 2] + rng.uniform(80, 400)
        yield np.column_stack([load, latency])
        position += HOUR


def open_forest(state: Path) -> StreamingMPF:
    """Load the forest of the last run, or create one."""
    if state.exists():
        return StreamingMPF.load(state)
    return StreamingMPF(window=DAY, n_estimators=50, random_state=0)


def report(position: int, rows: np.ndarray, detections: Detections) -> None:
    """Print the flagged readings."""
    for i in np.flatnonzero(detections.is_anomaly):
        day, minute = divmod(position + i, DAY)
        when = f"day {day:3}, {minute // 60:02}:{minute % 60:02}"
        print(
            f"{when}   {rows[i, 0]:4.0f} requests/s   {rows[i, 1]:4.0f} ms   score {detections.scores[i]:6.2f}",
            flush=True,
        )


def main() -> None:
    """Resume where the last run stopped."""
    state = Path(sys.argv[1] if len(sys.argv) > 1 else "stream.mpf")
    forest = open_forest(state)
    position = forest.n_seen_ if state.exists() else 0
    print(f"starting at reading {position:,}; press Ctrl-C to stop", file=sys.stderr)
    try:
        for rows in readings(position):
            detections = forest.detect_then_learn(rows)
            if position >= WARM_UP:
                report(position, rows, detections)
            position += len(rows)
            if position % DAY == 0:
                forest.save(state)
            time.sleep(PAUSE)
    except KeyboardInterrupt:
        print("stopped; the next run resumes at the last midnight", file=sys.stderr)


if __name__ == "__main__":
    main()
