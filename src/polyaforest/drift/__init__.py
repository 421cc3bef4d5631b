"""Change: whether data have another distribution than before, how far apart they are, where, and since when.

`compare` answers it for two samples, `DriftMonitor` for streams.
"""

from polyaforest.drift._change import Change
from polyaforest.drift._monitor import DriftMonitor, Trace
from polyaforest.drift._runs import RunLengths
from polyaforest.drift.comparison import Bound, Comparison, Condition, Region, Share, compare

__all__ = [
    "Bound", "Change", "Comparison", "Condition", "DriftMonitor", "Region", "RunLengths", "Share", "Trace", "compare",
]  # fmt: skip
