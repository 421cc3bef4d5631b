"""The docs say what is so: code runs and prints what is printed, links lead somewhere, names exist."""

import ast
import contextlib
import io
import re
from pathlib import Path
from typing import NamedTuple

import pytest

import polyaforest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEXTS = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]

PYTHON_BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```$(?:\n+^```text\n(?P<output>.*?)^```$)?", re.M | re.S)
FENCED = re.compile(r"^```.*?^```$", re.M | re.S)
LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
REFERENCE = re.compile(r"`(?P<path>[\w/]+\.py)::(?P<name>[\w.]+)`")
PATH = re.compile(r"`(?P<path>(?:[\w-]+/)*[\w-]+\.py)`")
MAKE = re.compile(r"\bmake ([a-z][a-z-]*)\b(?=[`\n]|  )")


class Block(NamedTuple):
    code: str
    output: str | None  # None where the page prints none
    line: int


def blocks_of(page: str) -> list[Block]:
    return [
        Block(found["code"], found["output"], page.count("\n", 0, found.start("code")) + 1)
        for found in PYTHON_BLOCK.finditer(page)
    ]


def run(block: Block, name: str, namespace: dict) -> str:
    """What the block prints; tracebacks point at the page's own lines."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile("\n" * (block.line - 1) + block.code, name, "exec"), namespace)
    return printed.getvalue()


def broken_links(page: Path) -> list[str]:
    targets = [found["target"] for found in LINK.finditer(FENCED.sub("", page.read_text("utf-8")))]
    local = [target for target in targets if "://" not in target]
    return [target for target in local if not leads_somewhere(page, *target.partition("#")[::2])]


def leads_somewhere(page: Path, path: str, anchor: str) -> bool:
    target = page.parent / path if path else page
    return target.exists() and (not anchor or anchor in anchors_of(target.read_text("utf-8")))


def anchors_of(page: str) -> set[str]:
    """The anchors a forge makes of headings: lower case, spaces to hyphens, other signs dropped."""
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", page), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def names_in(source: str) -> set[str]:
    """Functions and classes of a module, and the methods and fields of its classes as Class.name."""
    names = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
    return names


def find_module(path: str) -> Path | None:
    """The file a page calls `path`: from the top of the repository, or from the package."""
    places = [ROOT / path, ROOT / "src" / "polyaforest" / path]
    return next((place for place in places if place.is_file()), None)


def missing_references(page: str) -> list[str]:
    missing = []
    for found in REFERENCE.finditer(page):
        module = find_module(found["path"])
        name = found["name"]
        if module is None:
            missing.append(found[0])
            continue
        names = names_in(module.read_text("utf-8"))
        inherited = name.rpartition(".")[2] in {known.rpartition(".")[2] for known in names if "." in known}
        if name not in names and not ("." in name and name.partition(".")[0] in names and inherited):
            missing.append(found[0])
    return missing + [found[0] for found in PATH.finditer(page) if find_module(found["path"]) is None]


def public_names() -> list[str]:
    """Everything in `__all__`, and every public method or property that the package's estimators define or inherit."""
    names = {*polyaforest.__all__, "fit_predict"}
    for estimator in (polyaforest.BatchMPF, polyaforest.StreamingMPF):
        for ancestor in estimator.__mro__:
            if ancestor.__module__.startswith("polyaforest"):
                names |= {
                    name
                    for name, value in vars(ancestor).items()
                    if not name.startswith("_") and (callable(value) or isinstance(value, property))
                }
    return sorted(names)


def mentions(text: str, name: str) -> bool:
    return re.search(rf"[.`]{name}\b", text) is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_runs_and_prints_what_the_page_says(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__docs__"}
    for block in blocks_of(page.read_text("utf-8")):
        printed = run(block, str(page), namespace)
        if block.output is not None:
            assert printed == block.output, f"{page.name}, line {block.line}"


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.name)
def test_links_and_images_lead_somewhere(page):
    assert broken_links(page) == []


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.name)
def test_make_targets_exist(page):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    assert set(MAKE.findall(page.read_text("utf-8"))) <= targets


@pytest.mark.parametrize("name", public_names())
def test_public_names_are_documented(name):
    assert mentions("\n".join(page.read_text("utf-8") for page in PAGES), name)


def test_every_function_of_the_paper_map_exists():
    page = (ROOT / "docs" / "paper-map.md").read_text("utf-8")
    assert len(REFERENCE.findall(page)) > 20
    assert missing_references(page) == []


def test_readme_shows_code_and_its_output():
    outputs = [block.output for block in blocks_of((ROOT / "README.md").read_text("utf-8"))]
    assert len(outputs) >= 2
    assert None not in outputs


@pytest.mark.parametrize("folder", [ROOT / "docs", ROOT / "docs" / "benchmarks"], ids=lambda folder: folder.name)
def test_index_links_to_every_page(folder):
    linked = {found["target"] for found in LINK.finditer((folder / "index.md").read_text("utf-8"))}
    assert {page.name for page in PAGES[1:] if page.parent == folder and page.name != "index.md"} <= linked


# ---- the checks themselves can fail ---------------------------------------------------------------------------------


def test_blocks_keep_order_lines_and_only_the_output_that_follows_directly():
    page = "# a\n```python\nx = 1\n```\n\ntext\n\n```text\nno\n```\n\n```python\nprint(x)\n```\n\n```text\n1\n```\n"
    first, second = blocks_of(page)
    assert (first.code, first.output, first.line) == ("x = 1\n", None, 3)
    assert (second.code, second.output) == ("print(x)\n", "1\n")
    assert run(second, "page", {"x": 2}) == "2\n"


def test_a_broken_link_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# Here and there\n[a](page.md#here-and-there) [b](page.md#nowhere) ![c](none.png) [d](#x)\n", "utf-8"
    )
    assert broken_links(page) == ["page.md#nowhere", "none.png", "#x"]


def test_a_missing_function_is_found():
    page = "`kernels/polya.py::set_posterior` `kernels/polya.py::nothing` `kernels/none.py::f` `nowhere.py` `_load.py`"
    assert missing_references(page) == ["`kernels/polya.py::nothing`", "`kernels/none.py::f`", "`nowhere.py`"]


def test_an_undocumented_name_is_found():
    assert mentions("call `mass(X)` or forest.leaves(X)", "mass")
    assert not mentions("the mass of a leaf; `masses`", "mass")
