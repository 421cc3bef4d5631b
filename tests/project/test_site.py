"""The site builds without warnings, lists all public names in its search index, and loads nothing from other sites."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import polyaforest
from polyaforest import datasets, explain, plots, series

ROOT = Path(__file__).parents[2]

pytest.importorskip("mkdocstrings", reason="needs the extra docs")
pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]


@pytest.fixture
def sources(tmp_path):
    """A copy of the sources of the site."""
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    (tmp_path / "src").symlink_to(ROOT / "src")
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    return tmp_path


def build(sources: Path) -> tuple[int, str]:
    """Exit code and messages of a strict build."""
    program = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    done = subprocess.run(program, cwd=sources, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def test_site_shows_all_public_names_and_loads_nothing(sources):
    code, messages = build(sources)
    assert code == 0, messages
    found = {entry["location"] for entry in json.loads((sources / "site/search/search_index.json").read_text())["docs"]}
    anchors = {location.partition("#")[2] for location in found if location.startswith("reference/")}
    public = {f"polyaforest.{name}" for name in polyaforest.__all__}
    for module in (datasets, explain, plots, series):
        public |= {f"{module.__name__}.{name}" for name in module.__all__}
    assert public - anchors == set()
    for page in (sources / "site").rglob("*.html"):
        fetched = re.findall(
            r"<(?:script|link|img|iframe)[^>]+(?:src|href)=\"?(?:https?:)?//[^>]+", page.read_text("utf-8")
        )
        assert fetched == [], page.name


@pytest.mark.parametrize(
    "text",
    [
        "[nowhere](nowhere.md)",
        "[no such heading](how-to/watch.md#nowhere)",
        "![no such picture](images/none.png)",
        "::: polyaforest.Nothing",
    ],
)
def test_build_fails_on_broken_reference(sources, text):
    with (sources / "docs" / "index.md").open("a", encoding="utf-8") as page:
        page.write(f"\n{text}\n")
    assert build(sources)[0] != 0


def test_build_fails_on_page_missing_in_nav(sources):
    (sources / "docs" / "how-to" / "lost.md").write_text("# Lost\n", "utf-8")
    assert build(sources)[0] != 0
