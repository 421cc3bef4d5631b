"""Grow, score, update and check forests stored as arrays.

Modules are imported on first use: compiled code takes long to import.
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polyaforest.forest import (
        attribute,
        copies,
        draws,
        grow,
        imputation,
        learn,
        margins,
        pairs,
        posterior,
        privacy,
        score,
        stream,
        stream_checks,
        stream_rows,
        stream_state,
        survey,
    )

__all__ = [
    "attribute",
    "copies",
    "draws",
    "grow",
    "imputation",
    "learn",
    "margins",
    "pairs",
    "posterior",
    "privacy",
    "score",
    "single_row",
    "stream",
    "stream_checks",
    "stream_rows",
    "stream_state",
    "survey",
]


def __getattr__(name: str) -> ModuleType:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
