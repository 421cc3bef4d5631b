"""The two detectors: `StreamingMPF`, a forest of Mondrian trees, and `BatchMPF`, a forest of Mondrian processes."""

from polyaforest.estimators._base import Leaves
from polyaforest.estimators._batch import BatchMPF
from polyaforest.estimators._streaming import StreamingMPF
from polyaforest.thresholds import Judgements

__all__ = ["BatchMPF", "Judgements", "Leaves", "StreamingMPF"]
