"""The parameters of a tree."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval, StrOptions

from polyaforest.tables.validation import LARGEST, SMALLEST


class Tree(BaseEstimator):
    """Parameters of the trees: the cuts, the domain and the prior.

    Parameters
    ----------
    max_depth : "auto", int or None, default="auto"
        Maximum depth; "auto" is 10 for `BatchMPF` and None (no limit) for `StreamingMPF`.
    lifetime : float, default=inf
        Time at which cutting stops: cells are no finer than about 1 / lifetime, in weighted feature units.
    feature_weights : "auto", None or array-like of shape (n_features,), default="auto"
        Weight of each feature in the choice of cuts. "auto" draws Exp(1) / spread for every tree, so that data need no
        scaling; the spread is sqrt(range * mean absolute deviation) of the data (`StreamingMPF`) or the length of the
        domain (`BatchMPF`). None uses no weights, as in the paper.
    max_features : "auto", int or None, default="auto"
        Number of features that each tree cuts, chosen at random when the tree is born; the distance between rows along
        other features does not count in that tree. None cuts all features. "auto" is all for `BatchMPF` and with
        categories; for `StreamingMPF` of more than 256 features, it is 64 and one more for each 16 features. Ignored if
        `feature_weights` are given.
    prior_strength : float, default=0.001
        Number of pseudo-points of the prior (the paper's gamma). The weight of the prior grows with the square of the
        depth, so use small values.
    domain : None, "data" or array-like of shape (2, n_features), default=None
        The box to cut. None: the bounding box of the rows; rows may lie outside. Array of lower and upper bounds: that
        box; rows may lie outside. "data": the bounding box of the rows, with mass 0 outside, as in the paper.

    Examples
    --------
    >>> from polyaforest import StreamingMPF, Tree
    >>> StreamingMPF(tree=Tree(max_depth=10)).get_params()["tree__max_depth"]
    10
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "max_depth": [StrOptions({"auto"}), Interval(Integral, 0, None, closed="left"), None],
        "lifetime": [Interval(Real, 0, None, closed="right")],
        "feature_weights": [StrOptions({"auto"}), "array-like", None],
        "max_features": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left"), None],
        "prior_strength": [Interval(Real, SMALLEST, LARGEST, closed="both")],
        "domain": [StrOptions({"data"}), "array-like", None],
    }

    def __init__(
        self,
        *,
        max_depth: int | str | None = "auto",
        lifetime: float = np.inf,
        feature_weights: Any = "auto",
        max_features: int | str | None = "auto",
        prior_strength: float = 0.001,
        domain: Any = None,
    ) -> None:
        self.max_depth = max_depth
        self.lifetime = lifetime
        self.feature_weights = feature_weights
        self.max_features = max_features
        self.prior_strength = prior_strength
        self.domain = domain
