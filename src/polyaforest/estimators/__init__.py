"""The detectors: `StreamingMPF`, `BatchMPF`, `SeriesMPF` for time series, `GroupedMPF` for verdicts within groups."""

from io import BytesIO
from typing import TypeAlias

from polyaforest.core.score import EpsilonPhi
from polyaforest.decision.thresholds import Detections
from polyaforest.estimators._batch import BatchMPF
from polyaforest.estimators._grouped import GroupedMPF
from polyaforest.estimators._masses import Leaves
from polyaforest.estimators._series import SeriesMPF
from polyaforest.estimators._streaming import StreamingMPF
from polyaforest.estimators._tree import Tree
from polyaforest.persistence.codec import is_packed, unpack
from polyaforest.persistence.modelfile import Arrays, Header, Place, read_model
from polyaforest.persistence.state import refusing

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
    """Return the detector saved in a file, of any class.

    Parameters
    ----------
    path : str, path-like or binary file
        An open file must be one that can seek.

    Raises
    ------
    ModelFileError
        If the file is damaged, not a model, or of a newer version than this release reads.
    """
    return _restored(path, *read_model(path))


def loads(block: bytes) -> Kind:
    """Return the detector in bytes that `to_bytes` made, or that `save` of an earlier release wrote to a store."""
    file = BytesIO(block)
    return _restored(file, *(unpack(block) if is_packed(block) else read_model(file)))


def _restored(place: Place, header: Header, arrays: Arrays) -> Kind:
    kinds: dict[str, type[Kind]] = {kind.__name__: kind for kind in (BatchMPF, StreamingMPF, SeriesMPF, GroupedMPF)}
    with refusing(place):
        return kinds[header["detector"]].restored(header, arrays)
