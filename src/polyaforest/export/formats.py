"""The formats of exports by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from polyaforest.export.document import Document, Exported, document
from polyaforest.export.onnx import as_onnx
from polyaforest.export.sql import as_sql


def as_json(model: Document) -> str:
    """Return a document as JSON; infinite values become null."""
    return orjson.dumps(model, default=_as_list, option=orjson.OPT_SERIALIZE_NUMPY).decode()


def _as_list(value: Any) -> Any:
    """Return an array as lists, where orjson cannot read its memory, and a NumPy number as one of Python."""
    return value.tolist()


FORMATS: dict[str, Callable[..., str | bytes]] = {"json": as_json, "sql": as_sql, "onnx": as_onnx}


def write(given: Exported, format: str, written_by: str, options: Mapping[str, Any]) -> str | bytes:
    """Return a model in a format; raise ValueError if the format is unknown or cannot express the model."""
    if format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(map(repr, FORMATS))}; got {format!r}")
    return FORMATS[format](document(given, written_by), **options)
