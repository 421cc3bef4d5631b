"""The direction of dependencies is enforced, and the enforcement works."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_the_layers_hold(copy):
    assert lint(copy).returncode == 0


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("kernels/polya.py", "from polyaforest.kernels import mondrian_tree"),
        ("kernels/mondrian_tree.py", "from polyaforest.kernels import polya"),
        ("kernels/geometry.py", "from polyaforest.kernels import traversal"),
        ("kernels/traversal.py", "from polyaforest.forest import engine"),
        ("forest/engine.py", "from polyaforest import estimators"),
        ("core/arrays.py", "from polyaforest import retention"),
    ],
)
def test_an_import_against_the_direction_fails(copy, module, line):
    path = copy / "src" / "polyaforest" / module
    path.write_text(path.read_text() + f"\n{line}\n")
    assert lint(copy).returncode != 0


def test_a_module_outside_the_layers_fails(copy):
    (copy / "src" / "polyaforest" / "stray.py").write_text('"""Belongs nowhere."""\n')
    assert lint(copy).returncode != 0
