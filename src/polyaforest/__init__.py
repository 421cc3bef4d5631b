"""Anomaly detection with Mondrian Pólya forests: scores that are probabilities.

`StreamingMPF` grows Mondrian trees on the data, `BatchMPF` counts it in Mondrian processes over a domain.
"""

from polyaforest._arrays import LeafKind
from polyaforest._files import ModelFileError
from polyaforest.estimators import BatchMPF, Leaves, StreamingMPF, load
from polyaforest.retention import Reservoir, Window

__all__ = ["BatchMPF", "LeafKind", "Leaves", "ModelFileError", "Reservoir", "StreamingMPF", "Window", "load"]
__version__ = "0.1.0"
