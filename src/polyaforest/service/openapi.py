"""The OpenAPI schema of the API, with the schemas of answers and errors, and the ways to authenticate."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from polyaforest.service.problems import PROBLEM
from polyaforest.service.schemas import ANSWERS, Problem

__all__ = ["described"]

_REFERENCE = "#/components/schemas/{model}"
_SECURITY = {
    "token": {"type": "http", "scheme": "bearer", "description": "A token of the service."},
    "session": {"type": "apiKey", "in": "cookie", "name": "polyaforest", "description": "Of the page, after a login."},
}
_OPEN = ("health", "ready", "login")  # operations without a token
_TEXT, _FILE = {"type": "string"}, {"type": "string", "format": "binary"}
_TEXTS: dict[str, dict[str, dict[str, str]]] = {  # answers that are not JSON
    "metrics": {"text/plain": _TEXT},
    "feed": {"text/event-stream": _TEXT},
    "export": {"text/csv": _TEXT, "application/vnd.apache.parquet": _FILE},
    "backup": {"application/octet-stream": _FILE},
    "post_otlp_metrics": {"application/x-protobuf": _FILE, "application/json": {"type": "object"}},
}
_METHODS = ("get", "post", "put", "delete")


def described(app: FastAPI) -> dict[str, Any]:
    """Return the schema, built once."""
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        models: set[type[BaseModel]] = {*ANSWERS.values(), Problem}
        _, definitions = models_json_schema(
            [(model, "serialization") for model in sorted(models, key=lambda one: one.__name__)],
            ref_template=_REFERENCE,
        )
        parts = schema.setdefault("components", {})
        parts.setdefault("schemas", {}).update(definitions["$defs"])
        parts["securitySchemes"] = _SECURITY
        schema["security"] = [{name: []} for name in _SECURITY]
        for path in schema["paths"].values():
            for method in _METHODS:
                if method in path:
                    _describe(path[method])
        app.openapi_schema = schema
    return app.openapi_schema


def _describe(operation: dict[str, Any]) -> None:
    """Add the schemas of the answers to an operation."""
    name, answers = operation["operationId"], operation["responses"]
    if name in _OPEN:
        operation["security"] = []
    model = ANSWERS.get(name)
    for status, answer in answers.items():
        if status.startswith(("4", "5")):
            answer["content"] = {PROBLEM: {"schema": {"$ref": _REFERENCE.format(model=Problem.__name__)}}}
        elif model is not None and status in ("200", "202"):
            answer["content"] = {"application/json": {"schema": {"$ref": _REFERENCE.format(model=model.__name__)}}}
        elif name in _TEXTS and status == "200":
            answer["content"] = {kind: {"schema": schema} for kind, schema in _TEXTS[name].items()}
