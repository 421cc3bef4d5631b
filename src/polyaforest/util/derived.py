"""Attributes that are computed on first use.

They share one dict, ``_derived``: scikit-learn requires that methods which only read do not change the attributes of an
estimator, and a change of the estimator invalidates all of them by replacing the dict.
"""

from __future__ import annotations

from typing import Any, Generic, Self, TypeVar, overload

T = TypeVar("T")
_LASTING: set[str] = set()


class Derived(Generic[T]):
    """An attribute that is None until it is computed.

    Parameters
    ----------
    is_lasting : bool
        Whether copies and pickles include it; otherwise it is computed again.
    """

    def __init__(self, *, is_lasting: bool = False) -> None:
        self._is_lasting = is_lasting

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name
        if self._is_lasting:
            _LASTING.add(name)

    @overload
    def __get__(self, thing: None, owner: type) -> Self: ...
    @overload
    def __get__(self, thing: object, owner: type) -> T | None: ...
    def __get__(self, thing: object, owner: type) -> Self | T | None:
        return self if thing is None else vars(thing).get("_derived", {}).get(self._name)

    def __set__(self, thing: object, value: T | None) -> None:
        vars(thing).setdefault("_derived", {})[self._name] = value


def lasting(derived: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes that survive a change or a copy."""
    return {name: derived[name] for name in _LASTING if name in derived}
