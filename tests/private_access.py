"""Find accesses to private attributes of another package's classes, and imports of its private modules.

python tests/private_access.py [directory of the package]
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "polyaforest"
_OF_NAMED_TUPLES = {"_asdict", "_field_defaults", "_fields", "_make", "_replace"}


def violations(package: Path = PACKAGE) -> list[str]:
    """Return a line for each access to an attribute ``_name`` of a class that another first-level package defines.

    Accesses through ``self``, ``cls`` or ``super()`` are allowed, whichever base class defines the attribute.
    """
    trees = {path.relative_to(package): ast.parse(path.read_text("utf-8")) for path in sorted(package.rglob("*.py"))}
    owners = owners_of(trees)
    return [line for path, tree in trees.items() for line in violations_in(path, tree, owners)]


def owners_of(trees: dict[Path, ast.Module]) -> dict[str, set[str]]:
    """Return the first-level packages whose classes define each private attribute."""
    owners: dict[str, set[str]] = defaultdict(set)
    for path, tree in trees.items():
        for name in _private_names(tree):
            owners[name].add(_home(path))
    return owners


def violations_in(path: Path, tree: ast.Module, owners: dict[str, set[str]]) -> Iterator[str]:
    """Yield a line for each access or import in one module."""
    for node in ast.walk(tree):
        for name in _private_modules(node):
            if name.split(".")[1] != _home(path):
                yield f"{path}:{node.lineno}: {name} is a private module of {name.split('.')[1]}"
        if _is_foreign(node) and owners.get(node.attr) and _home(path) not in owners[node.attr]:
            names = ", ".join(sorted(owners[node.attr]))
            yield f"{path}:{node.lineno}: {ast.unparse(node)} is private to {names}"


def _private_modules(node: ast.AST) -> Iterator[str]:
    """Yield the private modules of the package that an import names in full."""
    if isinstance(node, ast.ImportFrom) and node.level == 0:
        names = [f"{node.module}.{alias.name}" for alias in node.names]
    elif isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    else:
        return
    for name in names:
        root, *parts = name.split(".")
        if root == PACKAGE.name and any(map(_is_private, parts[1:])):
            yield name


def _home(path: Path) -> str:
    """Return the first-level package or module of a file."""
    return path.parts[0].removesuffix(".py")


def _is_foreign(node: ast.AST) -> bool:
    """Return whether a node is an access to a private attribute of anything but the object itself."""
    if not isinstance(node, ast.Attribute) or not _is_private(node.attr):
        return False
    holder = node.value
    is_self = isinstance(holder, ast.Name) and holder.id in ("self", "cls")
    is_super = isinstance(holder, ast.Call) and isinstance(holder.func, ast.Name) and holder.func.id == "super"
    return not is_self and not is_super


def _private_names(tree: ast.Module) -> Iterator[str]:
    """Yield the private attributes that the classes of a module define, in their bodies or on ``self``."""
    for kind in ast.walk(tree):
        if not isinstance(kind, ast.ClassDef):
            continue
        for node in kind.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from filter(_is_private, [node.name])
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = (name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name))
                yield from filter(_is_private, names)
        for node in ast.walk(kind):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and not _is_foreign(node):
                yield from filter(_is_private, [node.attr])


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__") and name not in _OF_NAMED_TUPLES


if __name__ == "__main__":
    found = violations(*map(Path, sys.argv[1:]))
    print("\n".join(found))
    sys.exit(bool(found))
