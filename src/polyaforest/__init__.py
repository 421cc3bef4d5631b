"""Anomaly detection with Mondrian Pólya forests: scores that are probabilities.

`StreamingMPF` grows Mondrian trees on the data, `BatchMPF` counts it in Mondrian processes over a domain.
"""

from polyaforest._arrays import LeafKind
from polyaforest.estimators import BatchMPF, Leaves, StreamingMPF

__all__ = ["BatchMPF", "LeafKind", "Leaves", "StreamingMPF"]
__version__ = "0.1.0"
