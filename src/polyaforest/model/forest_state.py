"""The part of a model file that all forests share: header and arrays beside those of streams and counts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from polyaforest.forest.integrity import Layout, check_layout
from polyaforest.forest.thresholds import ThresholdPolicy
from polyaforest.kernels.arrays import Forest, Prior
from polyaforest.model.base import ForestModel, Offset
from polyaforest.storage.modelfile import Arrays, Header
from polyaforest.storage.state import packed, unpacked
from polyaforest.util import schema

RULES: dict[str, schema.Rule] = {  # the header of every forest
    "detector": schema.text,
    "parameters": schema.mapping,
    "n_features": schema.n_features,
    "feature_names": schema.either(schema.nothing, schema.names),
    "is_open": schema.flag,
    "notes": schema.mapping,  # absent from models of early versions
    "categories": schema.many(schema.whole(0, 2**31 - 1)),  # categorical columns; absent if there are none
}
_LAYOUT: Layout = {  # arrays beside those of the trees; L lifetimes, N scores, Q quantiles, D features, B bytes
    "prior_strength": (np.float64, ""),
    "offset": (np.float64, ""),
    "lifetimes": (np.float64, "L"),
    "quantiles": (np.float64, "QD"),
    "calibration": (np.float64, "N"),
    "coins": (np.int64, ""),
    "texts": (np.uint8, "B"),
    "epsilon": (np.float64, ""),
    "filled": (np.int64, ""),
}


def header_of(
    model: ForestModel, parameters: Header, n_features: int, names: Sequence[str] | None, detector: str
) -> Header:
    """Return the header of a forest."""
    return {
        "detector": detector,
        "parameters": parameters,
        "n_features": n_features,
        "feature_names": None if names is None else [str(name) for name in names],
        "is_open": model.prior.is_open,
    }


def arrays_of(model: ForestModel, texts: Arrays, *, is_compact: bool) -> Arrays:
    """Return the arrays of a forest, with the `texts` of its categories; a compact state omits the trees."""
    offset = np.nan if model.offset is None else model.offset.value
    arrays = {"prior_strength": np.array(model.prior.strength), "offset": np.array(offset)}
    if model.quantiles is not None:
        arrays["quantiles"] = model.quantiles
    if model.n_random_draws:
        arrays["coins"] = np.array(model.n_random_draws, np.int64)
    trees = {} if is_compact else packed("forest", model.forest)
    trees.pop("forest/n_categories", None)  # the header lists the columns
    return {**arrays, **texts, "lifetimes": model.lifetimes, **trees}


def check_state(header: Header, arrays: Arrays, rules: dict[str, schema.Rule], groups: Collection[str]) -> None:
    """Raise ValueError if a header or an array is malformed, except arrays in `groups`, which others check."""
    schema.record({**RULES, **rules}, optional=["notes", "categories"])(header, "")
    own = {name: part for name, part in arrays.items() if name.partition("/")[0] not in groups}
    check_layout(own, _LAYOUT, {"D": header["n_features"]})
    if ("texts" in arrays) != ("categories" in header):
        raise ValueError("it must have both categorical columns and texts of categories, or neither")


def prior_of(header: Header, arrays: Arrays) -> Prior:
    """Return the prior in a state."""
    return Prior(float(arrays["prior_strength"]), header["is_open"])


def trees_of(arrays: Arrays, n_categories: int) -> Forest:
    """Return the trees in a state."""
    counts: dict[str, Any] = {"forest/n_categories": np.array([n_categories])}
    return unpacked("forest", {**arrays, **counts}, Forest)


def restore(model: ForestModel, arrays: Arrays, policy: ThresholdPolicy) -> None:
    """Restore what all models have, for a threshold with this policy."""
    offset = float(arrays["offset"])
    model.n_random_draws, model.quantiles = int(arrays.get("coins", 0)), arrays.get("quantiles")
    model.offset = None if np.isnan(offset) else Offset(policy, offset)
