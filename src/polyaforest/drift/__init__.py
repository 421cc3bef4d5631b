"""Changes of distribution: whether, how far, where and since when.

`compare` compares two samples, `DriftMonitor` follows a stream.
"""

from polyaforest.drift.changes import Change, RunLengths, Trace
from polyaforest.drift.comparison import Bound, Comparison, Condition, Region, Share, compare
from polyaforest.drift.monitor import DriftMonitor

__all__ = [
    "Bound", "Change", "Comparison", "Condition", "DriftMonitor", "Region", "RunLengths", "Share", "Trace", "compare",
]  # fmt: skip
