"""Quicker imports: scikit-learn without the libraries that it loads at once and the program does not use.

``sklearn.utils.fixes`` imports pandas and `scipy.stats`, which takes twice as long as the rest of scikit-learn, for
functions that nothing here calls.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_EAGER = "sklearn.utils.fixes"


def quicken() -> None:
    """Let scikit-learn, when it is imported, load neither pandas nor `scipy.stats` until something needs them."""
    if _EAGER not in sys.modules:
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the usual spec of the one module, with a loader that defers what it imports."""
        if fullname != _EAGER:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    def __init__(self, usual: Loader) -> None:
        self._usual = usual

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Return what the usual loader does."""
        return self._usual.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module while pandas, which it can do without, is out of reach, and `scipy.stats` deferred."""
        hidden = "pandas" not in sys.modules
        if hidden:
            sys.modules["pandas"] = None  # type: ignore[assignment]
        sys.modules.setdefault("scipy.stats", _Deferred("scipy.stats"))
        try:
            self._usual.exec_module(module)
        finally:
            if hidden:
                del sys.modules["pandas"]


class _Deferred(ModuleType):
    """Stand for a module until the first of its names is needed."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)
