"""Wall-clock time of tasks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def seconds(task: Callable[[], Any]) -> float:
    """Return the wall-clock time of one run."""
    start = time.perf_counter()
    task()
    return time.perf_counter() - start
