"""Plots: partitions, densities, score traces, attributions, trees, intervals, shares, drift, ROC and precision-recall.

Each function draws on `ax`, or on a new figure, and returns a named tuple of the Axes (``ax``) and the artists, which
you can modify further. No function shows, saves or closes a figure or changes a matplotlib setting. Colours are safe
for the colour-blind: the palette of Okabe and Ito, and viridis.

matplotlib is imported on first use, not with this package: ``pip install "polyaforest[plots]"``.
"""

from polyaforest.plots._attribution import AttributionMap, Bars, attribution_bars, attribution_map
from polyaforest.plots._bands import Bands, credible_bands
from polyaforest.plots._curves import Curves, precision_recall, roc
from polyaforest.plots._drift import Drift, drift
from polyaforest.plots._plane import Density, Partition, density, partition
from polyaforest.plots._shares import Shares, shares
from polyaforest.plots._trace import ContextPlot, TracePlot, context_window, trace
from polyaforest.plots._tree import Diagram, tree

__all__ = [
    "AttributionMap",
    "Bands",
    "Bars",
    "ContextPlot",
    "Curves",
    "Density",
    "Diagram",
    "Drift",
    "Partition",
    "Shares",
    "TracePlot",
    "attribution_bars",
    "attribution_map",
    "context_window",
    "credible_bands",
    "density",
    "drift",
    "partition",
    "precision_recall",
    "roc",
    "shares",
    "trace",
    "tree",
]
