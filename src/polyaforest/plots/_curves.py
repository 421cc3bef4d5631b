"""ROC and precision-recall curves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from sklearn.metrics import average_precision_score, precision_recall_curve, roc_auc_score, roc_curve

from polyaforest.kernels.arrays import Array
from polyaforest.plots.canvas import (
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
_DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.5)))  # for more curves than colours


class Curves(NamedTuple):
    """Artists of `roc` and `precision_recall`."""

    ax: Axes
    lines: list[Line2D]  # in the order of `scores`
    areas: dict[str, float]  # under each curve: AUC or average precision
    chance: Line2D
    legend: Legend


class Curve(NamedTuple):
    """The curve of one method."""

    name: str
    x: Array
    y: Array
    area: float


def roc(y: Any, scores: Any, *, higher: str = "normal", ax: Axes | None = None) -> Curves:
    """Draw ROC curves: the share of anomalies found against the share of normal rows flagged.

    Parameters
    ----------
    y : array-like of shape (n_rows,)
        True labels: True or 1 for anomalies and False or 0 for normal rows; or -1 and 1, as returned by `predict`.
    scores : array-like of shape (n_rows,), or a mapping from names to such arrays
        As returned by `score_samples`; a mapping draws one curve per name.
    higher : {"normal", "anomalous"}, default="normal"
        Which rows have higher scores: normal rows here and in scikit-learn, anomalies in PyOD and river.
    ax : Axes, optional
        Axes to draw on; a new figure if None.

    Returns
    -------
    drawn : Curves
        ``ax``, ``lines``, ``areas`` (AUC by name), ``chance``, ``legend``.
    """
    truth = _read_truth(y)

    def curve(name: str, anomaly_scores: Array) -> Curve:
        flagged, found, _ = roc_curve(truth, anomaly_scores)
        return Curve(name, flagged, found, float(roc_auc_score(truth, anomaly_scores)))

    curves = _read_scores(scores, len(truth), read_direction(higher), curve)
    drawn = _draw(canvas(ax, 5.4, 5.0), curves, [0, 1], "AUC")
    drawn.ax.set(xlabel="share of normal rows flagged", ylabel="share of anomalies found")
    return drawn


def precision_recall(y: Any, scores: Any, *, higher: str = "normal", ax: Axes | None = None) -> Curves:
    """Draw precision-recall curves: the share of flagged rows that are anomalies against the share of anomalies found.

    Parameters
    ----------
    y, scores, higher, ax
        As in `roc`.

    Returns
    -------
    drawn : Curves
        ``ax``, ``lines``, ``areas`` (average precision by name), ``chance``, ``legend``.
    """
    truth = _read_truth(y)

    def curve(name: str, anomaly_scores: Array) -> Curve:
        precision, recall, _ = precision_recall_curve(truth, anomaly_scores)
        found = recall > 0  # precision is undefined before the first anomaly is found
        precision, recall = np.append(precision[found], precision[found][-1]), np.append(recall[found], 0.0)
        return Curve(name, recall, precision, float(average_precision_score(truth, anomaly_scores)))

    curves = _read_scores(scores, len(truth), read_direction(higher), curve)
    drawn = _draw(canvas(ax, 5.4, 5.0), curves, [truth.mean()] * 2, "AP", drawstyle="steps-post")
    drawn.ax.set(xlabel="share of anomalies found (recall)")
    drawn.ax.set(ylabel="share of flagged rows that are anomalies (precision)")
    return drawn


def _read_truth(y: Any) -> Array:
    """Return which rows are anomalies, bool (n,)."""
    labels = read_vector("y", y)
    kinds = set(np.unique(labels).tolist())
    if kinds in ({0.0, 1.0}, {-1.0, 1.0}):
        is_anomaly: Array = labels == (1.0 if 0.0 in kinds else -1.0)
        return is_anomaly
    if len(kinds) == 1 and kinds <= {-1.0, 0.0, 1.0}:
        raise ValueError("y has only one class: a curve needs anomalies and normal rows")
    shown = ", ".join(f"{kind:g}" for kind in sorted(kinds)[:5])
    raise ValueError(f"y must be 1 for anomalies and 0 for normal rows, or -1 for anomalies and 1; got {shown}")


def _read_scores(scores: Any, n: int, sign: int, curve: Callable[[str, Array], Curve]) -> list[Curve]:
    """Compute the curve of each method from ranks, which are finite even if scores are not."""
    named = scores if isinstance(scores, Mapping) else {"": scores}
    if not named:
        raise ValueError("scores is empty: nothing to draw")
    curves = []
    for name, values in named.items():
        heights = read_vector(f"scores of {name!r}" if name else "scores", values, n)
        curves.append(curve(str(name), np.unique(-sign * heights, return_inverse=True)[1]))
    return curves


def _draw(ax: Axes, curves: list[Curve], by_chance: list[float], measure: str, **style: Any) -> Curves:
    """Draw the curves, each in its own combination of colour and dashes, and a legend, the best curve first."""
    chance = ax.plot([0, 1], by_chance, color=GREY, linewidth=0.8, linestyle=":", zorder=1)[0]
    lines = [
        ax.plot(curve.x, curve.y, color=_COLOURS[k % 6], linestyle=_DASHES[k // 6 % 3], linewidth=1.8, **style)[0]
        for k, curve in enumerate(curves)
    ]
    ranked = sorted(zip(curves, lines, strict=True), key=lambda pair: -pair[0].area)
    labels = [f"{drawable(curve.name)}  {measure} {curve.area:.3f}".strip() for curve, _ in ranked]
    ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal")
    place = "lower right" if measure == "AUC" else "best"
    legend = ax.legend([line for _, line in ranked], ["?"] * len(labels), frameon=False, loc=place)
    for text, words in zip(legend.get_texts(), labels, strict=True):  # a legend drops labels that begin with "_"
        text.set_text(words)
    plain(*legend.get_texts())
    return Curves(ax, lines, {curve.name: curve.area for curve in curves}, chance, legend)
