"""Tests and packages are where a reader looks for them."""

import re
from pathlib import Path

import pytest
from conftest import KINDS

ROOT = Path(__file__).parents[2]
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
PACKAGES = {path.parent.name for path in (ROOT / "src" / "polyaforest").glob("*/__init__.py")}
OTHERS = {"benchmarks", "fuzz", "project"}  # tests of what is not in src


def test_every_test_is_in_the_directory_of_a_package():
    misplaced = [
        str(path.relative_to(ROOT))
        for path in TESTS
        if path.parents[1] != ROOT / "tests" or path.parent.name not in PACKAGES | OTHERS
    ]
    assert not misplaced, f"move them to a directory of {sorted(PACKAGES | OTHERS)}: {misplaced}"


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/explanation/how-it-works.md"])
def test_map_lists_every_package_once(page):
    text = (ROOT / page).read_text("utf-8")
    (block,) = [found for found in re.findall(r"```text\n(.*?)```", text, re.S) if re.search(r"^kernels", found, re.M)]
    heads = [re.split(r" {3,}", line)[0] for line in block.splitlines()]
    names = [name.removesuffix("/").removesuffix(".py") for head in heads for name in head.split()]
    assert sorted(names) == sorted(PACKAGES | {"client"})


def test_names_of_test_modules_differ():
    """Test directories are not packages, so two modules of one name could not both be imported."""
    names = [path.name for path in TESTS]
    assert not {name for name in names if names.count(name) > 1}


def test_kinds_are_registered_markers(pytestconfig):
    assert {line.partition(":")[0] for line in pytestconfig.getini("markers")} >= KINDS


def test_every_test_has_one_kind(request):
    for item in request.session.items:
        assert len(KINDS.intersection(marker.name for marker in item.iter_markers())) == 1, item.nodeid


@pytest.mark.parametrize("kind", sorted(KINDS - {"unit"}))
def test_every_kind_is_in_use(kind):
    assert any(f"pytest.mark.{kind}" in path.read_text("utf-8") for path in TESTS if path != Path(__file__))
