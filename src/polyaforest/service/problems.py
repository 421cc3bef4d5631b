"""Errors of the API, as problem details (RFC 9457)."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from polyaforest.io.json_values import to_json

__all__ = ["PROBLEM", "problem_text"]

PROBLEM = "application/problem+json"


def problem_text(status: int, detail: str, more: Mapping[str, Any] | None = None) -> bytes:
    """Return an error as JSON: its status and title, what is wrong, and further facts."""
    try:
        title = HTTPStatus(status).phrase
    except ValueError:
        title = "Error"
    return to_json({**(more or {}), "type": "about:blank", "title": title, "status": status, "detail": detail})
