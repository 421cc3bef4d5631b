"""Anomaly detection with Mondrian Pólya forests: scores that are probabilities.

`StreamingMPF` grows Mondrian trees on the data, `BatchMPF` counts it in Mondrian processes over a domain.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyaforest.detectors import (
        BatchMPF,
        Detections,
        EpsilonPhi,
        GroupedMPF,
        Leaves,
        SeriesMPF,
        StreamingMPF,
        Tree,
        load,
    )
    from polyaforest.forest.retention import Reservoir, Window
    from polyaforest.kernels.arrays import LeafKind
    from polyaforest.storage.modelfile import ModelFileError

__all__ = [
    "BatchMPF",
    "Detections",
    "EpsilonPhi",
    "GroupedMPF",
    "LeafKind",
    "Leaves",
    "ModelFileError",
    "Reservoir",
    "SeriesMPF",
    "StreamingMPF",
    "Tree",
    "Window",
    "load",
]
__version__ = "0.1.0"

# The module of each name. Names are imported on first use, so that the command line starts fast.
_HOMES = {
    "BatchMPF": "detectors",
    "Detections": "detectors",
    "EpsilonPhi": "detectors",
    "GroupedMPF": "detectors",
    "LeafKind": "kernels.arrays",
    "Leaves": "detectors",
    "ModelFileError": "storage.modelfile",
    "Reservoir": "forest.retention",
    "SeriesMPF": "detectors",
    "StreamingMPF": "detectors",
    "Tree": "detectors",
    "Window": "forest.retention",
    "load": "detectors",
}
_MODULES = {"datasets", "detectors", "distributed", "drift", "explain", "plots", "series"}


def __getattr__(name: str) -> Any:
    """Import `name` on first use and return it."""
    if name in _HOMES:
        globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        return globals()[name]
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, imported or not."""
    return sorted([*__all__, *_MODULES, "__version__"])
