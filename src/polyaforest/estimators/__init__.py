"""The two detectors: `StreamingMPF`, a forest of Mondrian trees, and `BatchMPF`, a forest of Mondrian processes."""

from polyaforest.decision.thresholds import Judgements
from polyaforest.estimators._base import Leaves
from polyaforest.estimators._batch import BatchMPF
from polyaforest.estimators._streaming import StreamingMPF

__all__ = ["BatchMPF", "Judgements", "Leaves", "StreamingMPF"]
