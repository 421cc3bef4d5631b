"""Import scikit-learn without pandas and `scipy.stats`.

``sklearn.utils.fixes`` imports both, which takes twice as long as the rest of scikit-learn, for functions that
polyaforest does not call.
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


def defer_slow_imports() -> None:
    """Make scikit-learn import pandas and `scipy.stats` only when they are used."""
    if _EAGER not in sys.modules:
        sys.meta_path.insert(0, _DeferringFinder())


class _DeferringFinder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the usual spec of `_EAGER`, with a loader that defers its imports."""
        if fullname != _EAGER:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _DeferringLoader(spec.loader)
        return spec


class _DeferringLoader(Loader):
    def __init__(self, usual: Loader) -> None:
        self._usual = usual

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Delegate to the usual loader."""
        return self._usual.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module with pandas, which is optional, hidden and `scipy.stats` deferred."""
        hidden = "pandas" not in sys.modules
        if hidden:
            sys.modules["pandas"] = None  # type: ignore[assignment]
        sys.modules.setdefault("scipy.stats", _DeferredModule("scipy.stats"))
        try:
            self._usual.exec_module(module)
        finally:
            if hidden:
                del sys.modules["pandas"]


class _DeferredModule(ModuleType):
    """A placeholder that imports the module when an attribute is first read."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)
