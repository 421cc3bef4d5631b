"""How well scores tell anomalies from normal rows: ROC and precision-recall curves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from sklearn.metrics import average_precision_score, precision_recall_curve, roc_auc_score, roc_curve

from polyaforest.core.arrays import Array
from polyaforest.plots._canvas import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    canvas,
    drawable,
    plain,
    read_direction,
    read_vector,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.legend import Legend
    from matplotlib.lines import Line2D

_COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)
_DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.5)))  # told apart where colours come round again


class Curves(NamedTuple):
    """What `roc` or `precision_recall` drew."""

    ax: Axes
    lines: list[Line2D]  # in the order of the scores given
    areas: dict[str, float]  # under each curve: AUC or average precision
    chance: Line2D
    legend: Legend


class Curve(NamedTuple):
    """One method."""

    name: str
    x: Array
    y: Array
    area: float


def roc(y: Any, scores: Any, *, higher: str = "normal", ax: Axes | None = None) -> Curves:
    """ROC curves: of the anomalies, the share found; of the normal rows, the share flagged with them.

    Parameters
    ----------
    y : array-like of shape (n_rows,)
        The truth: True or 1 for anomalies and False or 0 for normal rows; or -1 and 1, as `predict` has them.
    scores : array-like of shape (n_rows,), or a mapping of names to such
        As `score_samples` gives them; a mapping draws a curve for each.
    higher : {"normal", "anomalous"}, default="normal"
        What rows with higher scores are: normal here and in scikit-learn, anomalous in PyOD and river.
    ax : Axes, optional
        Where to draw; a new figure if None.

    Returns
    -------
    drawn : Curves
        ``ax``, ``lines``, ``areas`` (of every name the AUC), ``chance``, ``legend``.
    """
    truth = _read_truth(y)

    def curve(name: str, strangeness: Array) -> Curve:
        flagged, found, _ = roc_curve(truth, strangeness)
        return Curve(name, flagged, found, float(roc_auc_score(truth, strangeness)))

    curves = _read_scores(scores, len(truth), read_direction(higher), curve)
    ax = canvas(ax, 5.4, 5.0)
    chance = ax.plot([0, 1], [0, 1], color=GREY, linewidth=0.8, linestyle=":", zorder=1)[0]
    lines = _draw(ax, curves)
    ax.set(xlabel="share of the normal rows flagged", ylabel="share of the anomalies found")
    return Curves(ax, lines, {curve.name: curve.area for curve in curves}, chance, _name(ax, curves, lines, "AUC"))


def precision_recall(y: Any, scores: Any, *, higher: str = "normal", ax: Axes | None = None) -> Curves:
    """Precision-recall curves: of the anomalies, the share found; of what is flagged, the share that are anomalies.

    Parameters
    ----------
    y, scores, higher, ax
        As in `roc`.

    Returns
    -------
    drawn : Curves
        ``ax``, ``lines``, ``areas`` (of every name the average precision), ``chance``, ``legend``.
    """
    truth = _read_truth(y)

    def curve(name: str, strangeness: Array) -> Curve:
        precision, recall, _ = precision_recall_curve(truth, strangeness)
        found = recall > 0  # before the first anomaly is found there is no precision to speak of
        precision, recall = np.append(precision[found], precision[found][-1]), np.append(recall[found], 0.0)
        return Curve(name, recall, precision, float(average_precision_score(truth, strangeness)))

    curves = _read_scores(scores, len(truth), read_direction(higher), curve)
    ax = canvas(ax, 5.4, 5.0)
    chance = ax.plot([0, 1], [truth.mean()] * 2, color=GREY, linewidth=0.8, linestyle=":", zorder=1)[0]
    lines = _draw(ax, curves, drawstyle="steps-post")
    ax.set(xlabel="share of the anomalies found (recall)", ylabel="share of anomalies in what is flagged (precision)")
    return Curves(ax, lines, {curve.name: curve.area for curve in curves}, chance, _name(ax, curves, lines, "AP"))


def _read_truth(y: Any) -> Array:
    """Which rows are anomalies, bool (n,)."""
    labels = read_vector("y", y)
    kinds = set(np.unique(labels).tolist())
    if kinds in ({0.0, 1.0}, {-1.0, 1.0}):
        is_anomaly: Array = labels == (1.0 if 0.0 in kinds else -1.0)
        return is_anomaly
    if len(kinds) == 1 and kinds <= {-1.0, 0.0, 1.0}:
        raise ValueError("y holds rows of one kind only: a curve needs anomalies and normal rows")
    shown = ", ".join(f"{kind:g}" for kind in sorted(kinds)[:5])
    raise ValueError(f"y must be 1 for anomalies and 0 for normal rows, or -1 for anomalies and 1; it holds {shown}")


def _read_scores(scores: Any, n: int, sign: int, curve: Callable[[str, Array], Curve]) -> list[Curve]:
    """The curve of each method. Only the order of scores counts: as ranks, those of mass 0 are finite too."""
    named = scores if isinstance(scores, Mapping) else {"": scores}
    if not named:
        raise ValueError("there are no scores to draw")
    curves = []
    for name, values in named.items():
        heights = read_vector(f"scores of {name!r}" if name else "scores", values, n)
        curves.append(curve(str(name), np.unique(-sign * heights, return_inverse=True)[1]))
    return curves


def _draw(ax: Axes, curves: list[Curve], **style: Any) -> list[Line2D]:
    """The curves, no two of them in the same colour and dashes."""
    return [
        ax.plot(curve.x, curve.y, color=_COLOURS[k % 6], linestyle=_DASHES[k // 6 % 3], linewidth=1.8, **style)[0]
        for k, curve in enumerate(curves)
    ]


def _name(ax: Axes, curves: list[Curve], lines: list[Line2D], measure: str) -> Legend:
    """A legend, the best first, and the frame of the unit square."""
    ranked = sorted(zip(curves, lines, strict=True), key=lambda pair: -pair[0].area)
    labels = [f"{drawable(curve.name)}  {measure} {curve.area:.3f}".strip() for curve, _ in ranked]
    ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal")
    place = "lower right" if measure == "AUC" else "best"
    legend = ax.legend([line for _, line in ranked], ["?"] * len(labels), frameon=False, loc=place)
    for text, words in zip(legend.get_texts(), labels, strict=True):  # a legend leaves out words that begin with "_"
        text.set_text(words)
    plain(*legend.get_texts())
    return legend
