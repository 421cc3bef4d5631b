"""The rule that unknown parameters are errors."""

from __future__ import annotations

from fastapi import HTTPException, Request
from fastapi.routing import APIRoute

__all__ = ["only_known"]


def _names(route: APIRoute) -> frozenset[str]:
    """Return the names of the query parameters of a route."""
    names: set[str] = set()
    waiting = [route.dependant]
    while waiting:
        one = waiting.pop()
        names |= {field.alias for field in one.query_params}
        waiting += one.dependencies
    return frozenset(names)


def only_known(request: Request) -> None:
    """Raise if a query parameter is unknown to the route, since a misspelt one would change the answer silently."""
    route = request.scope.get("route")
    if not isinstance(route, APIRoute) or not request.query_params:
        return
    known = _names(route)
    unknown = sorted(set(request.query_params) - known)
    if unknown:
        names = ", ".join(sorted(known)) or "none"
        raise HTTPException(422, f"unknown parameter {unknown[0][:80]!r}; the parameters here are: {names}")
