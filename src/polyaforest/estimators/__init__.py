"""The two detectors: `StreamingMPF`, a forest of Mondrian trees, and `BatchMPF`, a forest of Mondrian processes."""

from __future__ import annotations

import os

from polyaforest._files import read_model
from polyaforest._state import refusing
from polyaforest.estimators._base import Leaves
from polyaforest.estimators._batch import BatchMPF
from polyaforest.estimators._streaming import StreamingMPF

__all__ = ["BatchMPF", "Leaves", "StreamingMPF", "load"]

_DETECTORS = {detector.__name__: detector for detector in (BatchMPF, StreamingMPF)}


def load(path: str | os.PathLike[str]) -> BatchMPF | StreamingMPF:
    """The forest that was saved to a file, of whichever kind it is.

    Raises
    ------
    ModelFileError
        If the file is damaged, not a model, or of a newer version than this release reads.
    """
    header, arrays = read_model(path)
    with refusing(path):
        return _DETECTORS[header["detector"]]._of_state(header, arrays)
