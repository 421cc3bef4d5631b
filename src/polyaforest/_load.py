"""From a model file to the detector that wrote it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from polyaforest.persistence.modelfile import Place, read_model
from polyaforest.persistence.state import refusing

if TYPE_CHECKING:
    from polyaforest.estimators import BatchMPF, StreamingMPF
    from polyaforest.timeseries import SeriesMPF

# Where each detector lives, so that only the one that is needed is imported.
_HOMES = {
    "BatchMPF": "polyaforest.estimators",
    "StreamingMPF": "polyaforest.estimators",
    "SeriesMPF": "polyaforest.timeseries",
}


def load(path: Place) -> BatchMPF | StreamingMPF | SeriesMPF:
    """The detector that was saved to a file, of whichever kind it is.

    Parameters
    ----------
    path : str, path-like or binary file
        An open file must be one that can seek.

    Raises
    ------
    ModelFileError
        If the file is damaged, not a model, or of a newer version than this release reads.
    """
    header, arrays = read_model(path)
    with refusing(path):
        name = header["detector"]
        detector: BatchMPF | StreamingMPF | SeriesMPF
        detector = getattr(import_module(_HOMES[name]), name)._of_state(header, arrays)
        return detector
