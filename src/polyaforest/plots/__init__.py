"""Pictures: partitions and densities, score traces, blame, trees, credible intervals, ROC and precision-recall.

Every function draws on the `ax` it is given, or on a new figure of its own, and returns a named tuple: the Axes first
(``ax``), then the artists, by name, to be changed further. None shows, saves or closes a figure, or changes a setting
of matplotlib. Colours are those of Okabe and Ito, and viridis, which the colour-blind can tell apart.

matplotlib is needed for drawing only, not for importing this package: ``pip install "polyaforest[plots]"``.
"""

from polyaforest.plots._bands import Bands, credible_bands
from polyaforest.plots._blame import Bars, BlameMap, blame_bars, blame_map
from polyaforest.plots._curves import Curves, precision_recall, roc
from polyaforest.plots._plane import Density, Partition, density, partition
from polyaforest.plots._trace import Trace, trace
from polyaforest.plots._tree import Diagram, tree

__all__ = [
    "Bands",
    "Bars",
    "BlameMap",
    "Curves",
    "Density",
    "Diagram",
    "Partition",
    "Trace",
    "blame_bars",
    "blame_map",
    "credible_bands",
    "density",
    "partition",
    "precision_recall",
    "roc",
    "trace",
    "tree",
]
