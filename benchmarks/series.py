"""Accuracy of detectors on time series."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrics import auc, average_precision, vus_pr
from nab_scoring import probation
from polyaforest.datasets import NAB, data_directory, load_series

Array = NDArray[Any]

HALVES = ("choose", "report")


# ---- series ----------------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """A series and what is known of it."""

    family: str
    name: str
    half: str
    values: Array  # (n, channels)
    y: Array  # (n,), 1 where something is wrong; 0 before `start`
    start: int  # the first step that is scored


def load_all() -> list[Case]:
    """Return all series, by family and name."""
    found = [*map(nab_case, NAB), *map(stored_case, sorted(series_directory().glob("*.npz")))]
    found.sort(key=lambda case: case[:2])
    families = groupby(found, key=lambda case: case.family)
    return [case._replace(half=HALVES[place % 2]) for _, cases in families for place, case in enumerate(cases)]


def series_directory() -> Path:
    """Return where the series are that the package itself cannot load."""
    directory = data_directory()
    if directory is None or not (directory / "series").is_dir():
        raise FileNotFoundError("no series found: set POLYAFOREST_DATA to a directory with series/*.npz")
    return directory / "series"


def nab_case(name: str) -> Case:
    """Return a series of NAB; its probation is not scored."""
    series = load_series(name)
    start = probation(len(series.value))
    return Case("NAB", name, "", series.value[:, None].astype(float), (series.label != 0).astype(np.int8), start)


def stored_case(file: Path) -> Case:
    """Return a series of `train`, `test` and `y`; what comes before `test` is fed, but not scored."""
    family, _, name = file.stem.partition("_")
    with np.load(file) as arrays:
        train, test, y = (arrays[key] for key in ("train", "test", "y"))
    before = train[:0] if np.array_equal(train, test[: len(train)]) else train
    values = np.ascontiguousarray(np.concatenate([before, test]), dtype=float)
    labels = np.concatenate([np.zeros(len(before)), y != 0]).astype(np.int8)
    return Case(family, name, "", values, labels, len(before))


# ---- measures --------------------------------------------------------------------------------------------------------


def evaluate(scores: Array, y: Array) -> dict[str, float]:
    """Return how well scores, higher for anomalies, rank the labelled steps first; NaN counts as most normal."""
    ranked = filled(scores)
    return {"vus_pr": vus_pr(y, ranked), "auc_pr": average_precision(y, ranked), "auc_roc": auc(y, ranked)}


def filled(scores: Array) -> Array:
    """Return the scores with the lowest in the place of NaN."""
    scores = np.asarray(scores, dtype=float)
    is_missing = np.isnan(scores)
    return np.where(is_missing, 0.0 if is_missing.all() else np.nanmin(scores), scores)
