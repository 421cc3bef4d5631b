"""The sample of counted rows that a `BatchMPF` keeps for lazy calibration."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from polyaforest import forest as forests
from polyaforest.forest.calibration import as_beyond, boxes_without
from polyaforest.forest.integrity import Layout, check_layout
from polyaforest.kernels.arrays import Array, is_ascending
from polyaforest.kernels.boxes import is_code
from polyaforest.storage.modelfile import Arrays
from polyaforest.tables.validation import LARGEST

if TYPE_CHECKING:
    from polyaforest.forest.draws import Draw
    from polyaforest.forest.survey import Survey

_LAYOUT: Layout = {  # N rows of W features: raw, then imputed
    "rows": (np.float64, "NW"),
    "ids": (np.int64, "N"),
    "priorities": (np.uint64, "N"),
    "most": (np.int64, ""),
    "bar": (np.uint64, ""),
    "lowest": (np.float64, "2D"),
    "highest": (np.float64, "2D"),
}


class CalibrationSample(NamedTuple):
    """The counted rows of lowest priority."""

    drawn: Draw  # the raw rows, each beside its imputed version
    edges: tuple[Array, Array] | None  # the two lowest and highest values of all rows, if the domain is their box

    @classmethod
    def of(cls, survey: Survey, *, follows_rows: bool) -> CalibrationSample:
        """Return the sample of a surveyed table."""
        drawn, facts = survey.drawn, survey.facts
        pairs = np.hstack([drawn.rows, survey.filled(drawn.rows, drawn.ids)])
        return cls(drawn.with_rows(pairs), (facts.lowest, facts.highest) if follows_rows else None)

    @property
    def rows(self) -> Array:
        """The raw rows, by id."""
        return self._side(0)

    @property
    def whole(self) -> Array:
        """The imputed rows, by id."""
        return self._side(1)

    def _side(self, which: int) -> Array:
        by_id = np.argsort(self.drawn.ids, kind="stable")
        return np.ascontiguousarray(np.split(self.drawn.rows[by_id], 2, axis=1)[which])

    @property
    def in_order_of_priority(self) -> Array:
        """The raw rows by priority: the first n are a sample of size n."""
        return np.split(self.drawn.rows, 2, axis=1)[0]

    @property
    def donors(self) -> Array:
        """Imputed rows of lowest priority, to impute other rows from."""
        return np.split(self.drawn.rows[: forests.imputation.MOST], 2, axis=1)[1]

    def beyond(self, domain: Array, n_categories: int = 0, *, is_rescaled: bool = False) -> Array:
        """Return the rows as scored when left out: if the domain is the box of the rows, extreme rows lie outside.

        With `is_rescaled`, feature weights depend on the domain.
        """
        whole = self.whole
        if self.edges is None:
            return whole
        known = boxes_without(whole, *self.edges, n_categories)
        return as_beyond(whole, known, domain, n_categories, is_rescaled=is_rescaled)

    def joined(self, other: CalibrationSample, n_categories: int = 0) -> CalibrationSample:
        """Combine the samples of two tables."""
        edges, most = None, min(self.drawn.most, other.drawn.most)
        if self.edges is not None and other.edges is not None:
            edges = forests.survey.edges_of_both(self.edges, other.edges, n_categories)
        return CalibrationSample(self.drawn.first(most) + other.drawn.first(most), edges)

    # ---- files ------------------------------------------------------------------------------------------------------

    def state(self) -> Arrays:
        """Return the arrays from which `of_state` restores the sample."""
        drawn, edges = (
            self.drawn,
            {} if self.edges is None else dict(zip(("lowest", "highest"), self.edges, strict=True)),
        )
        own = {"rows": drawn.rows, "ids": drawn.ids, "priorities": drawn.priorities, **edges}
        return {**own, "most": np.array(drawn.most, np.int64), "bar": np.array(drawn.cutoff, np.uint64)}

    @classmethod
    def of_state(cls, arrays: Arrays, n_features: int, n_categories: int = 0) -> CalibrationSample:
        """Return the sample in a file; raise ValueError if it is invalid."""
        if not set(_LAYOUT) - {"lowest", "highest"} <= set(arrays) or ("lowest" in arrays) != ("highest" in arrays):
            raise ValueError("arrays of its sample are missing")
        check_layout(arrays, _LAYOUT, {"W": 2 * n_features, "D": n_features})
        rows, own, most = arrays["rows"], arrays["priorities"], int(arrays["most"])
        if not 2 <= len(rows) <= most or not is_ascending(own, strictly=False) or (own > arrays["bar"]).any():
            raise ValueError("its sample does not consist of the rows of lowest priority")
        edges = (arrays["lowest"], arrays["highest"]) if "lowest" in arrays else None
        is_known = (np.abs(rows) <= LARGEST) | (np.isnan(rows) & (np.arange(2 * n_features) < n_features))
        given, counted, *bounds = (
            part[:, part.shape[1] - n_categories :] for part in (*np.split(rows, 2, axis=1), *(edges or ()))
        )
        is_known &= (is_code(given) | np.isnan(given)).all() & all(is_code(part).all() for part in (counted, *bounds))
        if not is_known.all() or (edges is not None and np.isnan(edges).any()):
            raise ValueError("its sample contains invalid values")
        return cls(forests.draws.Draw(most, own, arrays["ids"], rows, int(arrays["bar"])), edges)
