"""The parameters that say how a single tree is drawn."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval, StrOptions

from polyaforest.core.validation import LARGEST, SMALLEST


class Tree(BaseEstimator):
    """How each tree cuts space, and what it assumes before it has counted anything.

    Parameters
    ----------
    max_depth : "auto", int or None, default="auto"
        Depth at which cutting stops; "auto" is 10 for `BatchMPF` and None, no limit, for `StreamingMPF`.
    lifetime : float, default=inf
        Time at which cutting stops: cells are no finer than about 1 / lifetime, in weighted feature units.
    feature_weights : "auto", None or array-like of shape (n_features,), default="auto"
        Weight of each feature's length in the choice of cuts. "auto" draws Exp(1) / spread for every tree, where the
        spread is that of the data (`StreamingMPF`: sqrt(range * mean absolute deviation)) or the length of the domain
        (`BatchMPF`), so no scaling of the data is needed. None cuts plain lengths, as in the paper.
    prior_strength : float, default=0.001
        Pseudo-points behind the prior (the paper's gamma). The prior's weight grows with the square of the depth, so
        small values are right.
    domain : None, "data" or array-like of shape (2, n_features), default=None
        The box that is cut. None: the box of the rows, with room for rows beyond it. An array of lower and upper
        bounds: that box, with room beyond. "data": the box of the rows and nothing outside it (mass 0), as in the
        paper.

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
        "prior_strength": [Interval(Real, SMALLEST, LARGEST, closed="both")],
        "domain": [StrOptions({"data"}), "array-like", None],
    }

    def __init__(
        self,
        *,
        max_depth: int | str | None = "auto",
        lifetime: float = np.inf,
        feature_weights: Any = "auto",
        prior_strength: float = 0.001,
        domain: Any = None,
    ) -> None:
        self.max_depth = max_depth
        self.lifetime = lifetime
        self.feature_weights = feature_weights
        self.prior_strength = prior_strength
        self.domain = domain
