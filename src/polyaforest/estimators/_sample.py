"""The sample of the rows that a `BatchMPF` has counted, by which it calibrates itself when that is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from polyaforest import forest as forests
from polyaforest.core.arrays import Array, is_ascending
from polyaforest.core.boxes import is_code
from polyaforest.core.validation import LARGEST
from polyaforest.decision.calibration import as_beyond, boxes_without
from polyaforest.forest.integrity import Layout, check_layout
from polyaforest.persistence.modelfile import Arrays

if TYPE_CHECKING:
    from polyaforest.forest.draws import Draw
    from polyaforest.forest.survey import Survey

_LAYOUT: Layout = {  # N rows of W features: as given, then as counted
    "rows": (np.float64, "NW"),
    "ids": (np.int64, "N"),
    "priorities": (np.uint64, "N"),
    "most": (np.int64, ""),
    "bar": (np.uint64, ""),
    "lowest": (np.float64, "2D"),
    "highest": (np.float64, "2D"),
}


class CalibrationSample(NamedTuple):
    """Rows of lowest priority, of those that were counted."""

    drawn: Draw  # the rows as given, and beside each the row as counted, without gaps
    edges: tuple[Array, Array] | None  # the two lowest and highest values of all rows, if the domain follows them

    @classmethod
    def of(cls, survey: Survey, *, follows_rows: bool) -> CalibrationSample:
        """Return the rows drawn from a table."""
        drawn, facts = survey.drawn, survey.facts
        pairs = np.hstack([drawn.rows, survey.filled(drawn.rows, drawn.ids)])
        return cls(drawn.with_rows(pairs), (facts.lowest, facts.highest) if follows_rows else None)

    @property
    def rows(self) -> Array:
        """The rows as given, by id."""
        return self._side(0)

    @property
    def whole(self) -> Array:
        """The rows as counted, by id."""
        return self._side(1)

    def _side(self, which: int) -> Array:
        by_id = np.argsort(self.drawn.ids, kind="stable")
        return np.ascontiguousarray(np.split(self.drawn.rows[by_id], 2, axis=1)[which])

    @property
    def in_order_of_priority(self) -> Array:
        """The rows as given, the first of which are a smaller sample."""
        return np.split(self.drawn.rows, 2, axis=1)[0]

    @property
    def donors(self) -> Array:
        """The rows of lowest priority as counted, from which others take their missing values."""
        return np.split(self.drawn.rows[: forests.imputation.MOST], 2, axis=1)[1]

    def beyond(self, domain: Array, n_categories: int = 0) -> Array:
        """Return the rows as scored when counted out.

        Where the domain follows the rows, one that lies beyond all others is scored as beyond the domain.
        """
        whole = self.whole
        if self.edges is None:
            return whole
        return as_beyond(whole, boxes_without(whole, *self.edges, n_categories), domain, n_categories)

    def joined(self, other: CalibrationSample, n_categories: int = 0) -> CalibrationSample:
        """Return the sample of all rows that the two are samples of."""
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
        return {**own, "most": np.array(drawn.most, np.int64), "bar": np.array(drawn.bar, np.uint64)}

    @classmethod
    def of_state(cls, arrays: Arrays, n_features: int, n_categories: int = 0) -> CalibrationSample:
        """Return the sample in a file; raise unless it can be one."""
        if not set(_LAYOUT) - {"lowest", "highest"} <= set(arrays) or ("lowest" in arrays) != ("highest" in arrays):
            raise ValueError("its sample lacks arrays")
        check_layout(arrays, _LAYOUT, {"W": 2 * n_features, "D": n_features})
        rows, own, most = arrays["rows"], arrays["priorities"], int(arrays["most"])
        if not 2 <= len(rows) <= most or not is_ascending(own, strictly=False) or (own > arrays["bar"]).any():
            raise ValueError("its sample is not that of lowest priority")
        edges = (arrays["lowest"], arrays["highest"]) if "lowest" in arrays else None
        is_known = (np.abs(rows) <= LARGEST) | (np.isnan(rows) & (np.arange(2 * n_features) < n_features))
        given, counted, *bounds = (
            part[:, part.shape[1] - n_categories :] for part in (*np.split(rows, 2, axis=1), *(edges or ()))
        )
        is_known &= (is_code(given) | np.isnan(given)).all() & all(is_code(part).all() for part in (counted, *bounds))
        if not is_known.all() or (edges is not None and np.isnan(edges).any()):
            raise ValueError("its sample holds values that cannot have been counted")
        return cls(forests.draws.Draw(most, own, arrays["ids"], rows, int(arrays["bar"])), edges)
