"""The series of the benchmark `alarms`: production metrics, the families of `series`, and clean generated ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from benchmarks.series import Case, load_all
from polyaforest.datasets import data_directory

Array = NDArray[Any]

CLOUD, CLEAN = "cloud", "clean"
FAMILIES = (CLOUD, "NAB", "SKAB", "MSL", "SMAP", "UCR")
CLEAN_READINGS, CLEAN_SEEDS = 20_000, (0, 1, 2)
BURN_IN = 1000  # readings of an autocorrelated series before those that count


def cloud_cases() -> list[Case]:
    """Return the production metrics, by name."""
    directory = data_directory()
    if directory is None or not (directory / "cloud").is_dir():
        raise FileNotFoundError("no metrics found: set POLYAFOREST_DATA to a directory with cloud/*.npz")
    return [cloud_case(file) for file in sorted((directory / "cloud").glob("*.npz"))]


def cloud_case(file: Path) -> Case:
    """Return a series of `test` and `y`; every reading counts."""
    with np.load(file) as arrays:
        return Case(CLOUD, file.stem, "", arrays["test"].astype(float), (arrays["y"] != 0).astype(np.int8), 0)


def cases_of(family: str) -> list[Case]:
    """Return the series of a family."""
    if family == CLOUD:
        return cloud_cases()
    if family == CLEAN:
        return [clean_case(name, seed) for name in GENERATORS for seed in CLEAN_SEEDS]
    return [case for case in load_all() if case.family == family]


def clean_case(name: str, seed: int, size: int = CLEAN_READINGS) -> Case:
    """Return a generated series without events."""
    values = GENERATORS[name](np.random.default_rng([seed, *name.encode()]), size)
    return Case(CLEAN, f"{name}, seed {seed}", "", values[:, None].astype(float), np.zeros(size, np.int8), 0)


def _autoregressive(rng: np.random.Generator, size: int, coefficient: float) -> Array:
    """Draw an AR(1) process."""
    values: Array = lfilter([1.0], [1.0, -coefficient], rng.normal(size=BURN_IN + size))
    return values[BURN_IN:]


def _sine(rng: np.random.Generator, size: int) -> Array:
    """Draw a daily cycle of five-minute readings with noise of a tenth of its amplitude."""
    return 3 * np.sin(2 * np.pi * np.arange(size) / 288) + rng.normal(0, 0.3, size)


GENERATORS: dict[str, Callable[[np.random.Generator, int], Array]] = {
    "white noise": lambda rng, size: rng.normal(size=size),
    "AR(1), 0.9": lambda rng, size: _autoregressive(rng, size, 0.9),
    "AR(1), 0.98": lambda rng, size: _autoregressive(rng, size, 0.98),
    "Student t, 3": lambda rng, size: rng.standard_t(3, size),
    "lognormal": lambda rng, size: rng.lognormal(size=size),
    "Poisson, 0.05": lambda rng, size: rng.poisson(0.05, size),
    "Poisson, 7": lambda rng, size: rng.poisson(7, size),
    "sine + noise": _sine,
}
