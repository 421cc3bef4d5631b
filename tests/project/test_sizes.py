"""Modules and classes of the package are short enough to read."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "polyaforest"
LONGEST_MODULE, LONGEST_CLASS = 700, 500  # lines
PAGE = (".js", ".css", ".html")


def too_long(name, text):
    """Yield the module and its classes that are too long."""
    n_lines = text.count("\n")
    if n_lines > LONGEST_MODULE:
        yield f"{name}: {n_lines} lines"
    if not name.endswith(PAGE):
        for node in ast.walk(ast.parse(text)):
            n_lines = node.end_lineno - node.lineno + 1 if isinstance(node, ast.ClassDef) else 0
            if n_lines > LONGEST_CLASS:
                yield f"{name}: class {node.name} has {n_lines} lines"


def test_modules_and_classes_are_short():
    files = [path for path in PACKAGE.rglob("*") if path.suffix in (".py", *PAGE) and "vendor" not in path.parts]
    assert len(files) > 300
    found = [line for path in files for line in too_long(str(path.relative_to(PACKAGE)), path.read_text("utf-8"))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", "x = 1\n" * 701),
        ("a.js", "let x;\n" * 701),
        ("a.py", "class A:\n" + "    x = 1\n" * 500),
        ("a.py", "class A:\n    class B:\n" + "        x = 1\n" * 500),
    ],
)
def test_long_module_or_class_is_found(name, text):
    assert list(too_long(name, text))


def test_module_and_class_of_the_longest_size_are_allowed():
    assert not list(too_long("a.py", "class A:\n" + "    x = 1\n" * 499 + "y = 1\n" * 200))
