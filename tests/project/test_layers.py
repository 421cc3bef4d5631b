"""The checks of import layers and private access in `make lint` find each kind of violation."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from effort import mostly_slow
from private_access import PACKAGE, owners_of, violations_in

PROJECT = Path(__file__).parents[2]
LINTER = Path(sys.executable).with_name("lint-imports")


def lint(project):
    environment = {**os.environ, "PYTHONPATH": str(project / "src")}
    command = [LINTER, "--config", project / "pyproject.toml", "--no-cache"]
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, check=False)


@pytest.fixture
def copy(tmp_path):
    shutil.copytree(PROJECT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PROJECT / "pyproject.toml", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("module", "line"),
    mostly_slow(
        [
            ("kernels/polya.py", "from polyaforest.kernels import mondrian_tree"),
            ("kernels/mondrian_tree.py", "from polyaforest.kernels import polya"),
            ("kernels/geometry.py", "from polyaforest.kernels import traversal"),
            ("kernels/traversal.py", "from polyaforest.forest import score"),
            ("forest/grow.py", "from polyaforest import detectors"),
            ("kernels/arrays.py", "from polyaforest import util"),
        ]
    ),
)
def test_upward_import_is_found(copy, module, line):
    path = copy / "src" / "polyaforest" / module
    path.write_text(path.read_text() + f"\n{line}\n")
    assert lint(copy).returncode != 0


@pytest.mark.slow
def test_module_outside_layers_is_found(copy):
    (copy / "src" / "polyaforest" / "stray.py").write_text('"""Belongs nowhere."""\n')
    assert lint(copy).returncode != 0


@pytest.fixture(scope="module")
def found():
    """Return a function that finds violations in the source of a module."""
    owners = owners_of(
        {path.relative_to(PACKAGE): ast.parse(path.read_text("utf-8")) for path in PACKAGE.rglob("*.py")}
    )

    def find(package, lines):
        path, tree = Path(package, "planted.py"), ast.parse(lines)
        own = owners_of({path: tree})
        return list(violations_in(path, tree, {name: owners[name] | own[name] for name in {*owners, *own}}))

    return find


@pytest.mark.parametrize(
    ("package", "line"),
    [
        ("plots", "def f(forest): return forest._stream"),
        ("adapters", "def f(self): self.forest._advance(None)"),
        ("cli", "def f(forest): forest._model = 0.0"),
        ("judge", "def f(explanations): return [explanation._words for explanation in explanations]"),
        ("io", "def f(): return StreamingMPF()._left_out"),
        ("io", "from polyaforest.detectors._detector import Detector"),
        ("io", "from polyaforest.detectors import _detector"),
        ("io", "import polyaforest.detectors._detector"),
        ("retention.py", "class A:\n    def f(self, other): return other._lock"),
    ],
)
def test_private_access_across_packages_is_found(found, package, line):
    (one,) = found(package, line)
    assert one.startswith(f"{package}/planted.py:{len(line.splitlines())}: ")


@pytest.mark.parametrize(
    "line",
    [
        "class A:\n    def f(self): return self._stream, super()._advance",
        "class A:\n    @classmethod\n    def f(cls): return cls._model",
        "def f(bars): return bars._replace(ax=None), bars._fields",
        "class A:\n    _stream = 1\ndef f(a): return a._stream",
        "from polyaforest.plots._nodes import node_labels",
        "from polyaforest.detectors import StreamingMPF",
        "def f(thing): return thing.__dict__, thing._defined_nowhere_in_polyaforest",
    ],
)
def test_private_access_within_package_is_allowed(found, line):
    assert found("plots", line) == []
