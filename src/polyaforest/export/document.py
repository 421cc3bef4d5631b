"""A fitted model as a plain document of numbers and texts: everything that scoring needs, and nothing more.

`docs/reference/export.md` describes the document. `scorer.py` and `scorer.js` beside this module score rows with it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from polyaforest.forest.columns import LateColumns
from polyaforest.forest.imputation import N_COMPLETIONS, spread_out
from polyaforest.forest.margins import Margins
from polyaforest.forest.pairs import Pairs, PairTables
from polyaforest.forest.posterior import is_empty
from polyaforest.forest.spec import weighting_of_rows
from polyaforest.kernels.arrays import NONE, Array, Forest, Posterior
from polyaforest.kernels.boxes import APART
from polyaforest.model.fitted import FittedForest, Query
from polyaforest.tables.categories import Categories

FORMAT, VERSION = "polyaforest", 1
Document = dict[str, Any]


class Exported(NamedTuple):
    """The parts of a fitted detector that its exports contain."""

    detector: str  # the name of its class
    fitted: FittedForest
    query: Query
    names: list[str]  # of the columns of tables
    encoding: Categories | None
    threshold: float
    calibration: Array  # log-scores


def document(given: Exported, written_by: str) -> Document:
    """Return the document of a model; raise ValueError if it cannot be exported.

    Infinite values are written as null by JSON; the schema says which fields may be.
    """
    fitted, query = given.fitted, given.query
    if is_empty(fitted.forest):
        raise ValueError("the model holds no points: learn some rows before the export")
    late = fitted.late_columns
    if late is not None and late.is_young.any() and query.is_marginal:
        name = given.names[int(_order(given)[np.flatnonzero(late.is_young)[0]])]
        raise ValueError(
            f"column {name!r} had its first value recently, so its values do not count yet: learn more rows before "
            'the export, or set missing="impute"'
        )
    known, n_numbers = fitted.posterior(query.n_jobs), len(given.names) - fitted.n_categories
    shared, corners = _corners(fitted.forest)
    uses_cells = query.epsilon_phi is None and query.score.uses_cells
    until = fitted.lifetimes[-1] if uses_cells else np.inf
    categorical = () if given.encoding is None else given.encoding.columns
    margins, pairs = (fitted.margins, fitted.pairs) if query.epsilon_phi is None else (None, None)
    return {
        "format": FORMAT,
        "version": VERSION,
        "detector": given.detector,
        "written_by": written_by,
        "columns": [
            {"name": name, "kind": "category" if k in categorical else "number"} for k, name in enumerate(given.names)
        ],
        "order": _order(given),
        "texts": [] if given.encoding is None else sorted(given.encoding.kept(fitted.rows).texts.values()),
        "n_numbers": n_numbers,
        "score": _score(query, len(fitted.forest.left), fitted.lifetimes if uses_cells else None),
        "threshold": given.threshold,
        "calibration": np.sort(given.calibration),
        "missing": query.missing,
        "donors": _donors(fitted) if query.missing == "impute" else None,
        "replaced": [] if late is None else _replaced(late),
        "margins": None if margins is None else _margins(margins),
        "pairs": None if pairs is None else _pairs(pairs),
        "corners": shared,
        "trees": [_tree(fitted.forest, known, t, corners, until) for t in range(len(fitted.forest.left))],
    }


def _order(given: Exported) -> Array:
    """Return the column of the table that each feature of the trees is: numbers first, then categories."""
    return np.arange(len(given.names)) if given.encoding is None else given.encoding.order


def _score(query: Query, n_trees: int, lifetimes: Array | None) -> Document:
    if query.epsilon_phi is None:
        return {"type": str(query.score), "lifetimes": lifetimes, "rank": None}
    rank = int(np.searchsorted(np.arange(n_trees + 1) / n_trees, query.epsilon_phi.phi))
    return {"type": "epsilon", "lifetimes": None, "rank": rank}


def _donors(fitted: FittedForest) -> Document | None:
    """Return the rows that complete incomplete ones; None if the model keeps none."""
    donors = fitted.donors
    if donors is None or not len(donors):
        return None
    spread = weighting_of_rows(donors, fitted.n_categories).spread
    default = spread_out(len(donors), min(N_COMPLETIONS, len(donors)))  # for rows without any value
    return {"rows": donors, "spread": spread, "default": default}


def _replaced(late: LateColumns) -> list[list[Any]]:
    """Return the features whose values do not count, with what takes their place: a constant, or null for missing."""
    fixed = [[int(k), float(late.placeholder[k])] for k in np.flatnonzero(late.is_unknown)]
    return fixed + [[int(k), None] for k in np.flatnonzero(late.is_young)]


def _margins(margins: Margins) -> Document:
    return {"bits": margins.bits, "low": -margins.limit[0], "high": margins.limit[1]}


def _pairs(pairs: Pairs) -> Document | None:
    """Return the rare pairs: bins of columns, and the cells of pairs of bins that cost bits."""
    if not len(pairs.cells):
        return None
    bins, layout = pairs.bins, PairTables.of(pairs.bins)
    table = np.searchsorted(layout.starts, pairs.cells, side="right") - 1
    left, right = np.divmod(pairs.cells - layout.starts[table], layout.widths[table])
    bits = (pairs.steps * pairs.bits_per_step).tolist()
    places = [*layout.pairs[:, table].tolist(), left.tolist(), right.tolist(), bits]
    values = np.split(bins.values, np.cumsum(bins.sizes)[:-1])
    return {
        "bins": [{"feature": k, "values": part} for k, part in zip(bins.columns.tolist(), values, strict=True)],
        "cells": [list(cell) for cell in zip(*places, strict=True)],
    }


def _corners(forest: Forest) -> tuple[list[Array], Array | None]:
    """Return the distinct coordinates of the corners of all boxes by feature, and the corners as places in these.

    Corners lie at points, so the places are far shorter than the coordinates. A process has no boxes.
    """
    if not forest.lower.shape[2]:
        return [], None
    both = np.stack([forest.lower, forest.upper])
    is_used = np.arange(forest.left.shape[1]) < forest.size[:, None]
    places, shared = np.zeros(both.shape, np.int64), []
    for k in range(both.shape[3]):
        values, found = np.unique(both[:, is_used, k], return_inverse=True)
        places[:, is_used, k] = found.reshape(2, -1)
        shared.append(values)
    return shared, places


def _tree(forest: Forest, known: Posterior, t: int, corners: Array | None, until: float) -> Document:
    """Return a tree with its nodes in preorder, without those born after the last lifetime."""
    nodes, left, right = _preorder(forest, t, until)
    is_leaf = left == NONE
    lower, upper = known.world[:, t]
    return {
        "weights": forest.weights[t],
        "world": [lower, upper],
        "size": _size(lower, upper, forest.weights[t], int(forest.n_categories[0])),
        "log_outside": known.outside[t],
        "left": left,
        "right": right,
        "feature": np.where(is_leaf, NONE, forest.feature[t, nodes]),
        "cut": np.where(is_leaf, np.nan, forest.cut[t, nodes]),
        "time": forest.time[t, nodes],
        "log_mass": known.inside[t, nodes],
        "log_complement": known.complement[t, nodes],
        "lower": None if corners is None else np.ascontiguousarray(corners[0, t, nodes]),
        "upper": None if corners is None else np.ascontiguousarray(corners[1, t, nodes]),
    }


def _preorder(forest: Forest, t: int, until: float) -> tuple[Array, Array, Array]:
    """Return the nodes reached up to a time, parents first, and the new numbers of their children."""
    left, right, time = forest.left[t], forest.right[t], forest.time[t]
    nodes, waiting = list[int](), [int(forest.root[t])]
    while waiting:
        j = waiting.pop()
        nodes.append(j)
        if left[j] != NONE and time[j] <= until:
            waiting += [int(right[j]), int(left[j])]
    number = {j: place for place, j in enumerate(nodes)}
    children = [
        [number[int(side[j])] if side[j] != NONE and time[j] <= until else NONE for j in nodes]
        for side in (left, right)
    ]
    return np.array(nodes), np.array(children[0]), np.array(children[1])


def _size(lower: Array, upper: Array, weights: Array, n_categories: int) -> float:
    """Return the weighted size of the known world, or 1 if it has none."""
    n = len(lower) - n_categories
    sides = upper - lower
    live = lower[n:].astype(np.int64) ^ upper[n:].astype(np.int64)
    sides[n:] = np.array([int(word).bit_count() for word in live]) / APART
    size = float(weights @ sides)
    return size if size > 0 else 1.0
