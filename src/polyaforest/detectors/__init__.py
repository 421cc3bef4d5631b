"""The detectors: `StreamingMPF`, `BatchMPF`, `SeriesMPF` for time series, `GroupedMPF` for groups of rows."""

from io import BytesIO
from typing import TypeAlias

from polyaforest.detectors.batch import BatchMPF
from polyaforest.detectors.grouped import GroupedMPF
from polyaforest.detectors.probabilities import Leaves
from polyaforest.detectors.series import SeriesMPF
from polyaforest.detectors.streaming import StreamingMPF
from polyaforest.detectors.tree import Tree
from polyaforest.forest.score_types import EpsilonPhi
from polyaforest.forest.thresholds import Detections
from polyaforest.storage.codec import is_packed, unpack
from polyaforest.storage.modelfile import Arrays, Header, Place, read_model
from polyaforest.storage.state import reporting_invalid_model

__all__ = [
    "BatchMPF",
    "Detections",
    "EpsilonPhi",
    "GroupedMPF",
    "Leaves",
    "SeriesMPF",
    "StreamingMPF",
    "Tree",
    "load",
    "loads",
]

Kind: TypeAlias = BatchMPF | StreamingMPF | SeriesMPF | GroupedMPF


def load(path: Place) -> Kind:
    """Load a detector of any class from a file written by `save`.

    Parameters
    ----------
    path : str, path-like or binary file
        An open file must be seekable.

    Raises
    ------
    ModelFileError
        If the file is damaged, is not a model, or was written by a newer release.
    """
    return _restored(path, *read_model(path))


def loads(block: bytes) -> Kind:
    """Load a detector of any class from the bytes that `to_bytes` returns, or that an earlier release stored."""
    file = BytesIO(block)
    return _restored(file, *(unpack(block) if is_packed(block) else read_model(file)))


def _restored(place: Place, header: Header, arrays: Arrays) -> Kind:
    kinds: dict[str, type[Kind]] = {kind.__name__: kind for kind in (BatchMPF, StreamingMPF, SeriesMPF, GroupedMPF)}
    with reporting_invalid_model(place):
        return kinds[header["detector"]].restored(header, arrays)
