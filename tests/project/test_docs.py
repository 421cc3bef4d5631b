"""Documentation is correct: code prints the output shown, links resolve, names exist."""

import ast
import contextlib
import importlib
import inspect
import io
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from effort import mostly_slow
from spark_streams import skip_without_java

pytestmark = pytest.mark.end_to_end

ROOT = Path(__file__).parents[2]
REFERENCE_PAGES = ROOT / "docs" / "reference"
PUBLIC = [
    "",
    ".adapters.pyod",
    ".adapters.river",
    ".client",
    ".datasets",
    ".distributed.dask",
    ".distributed.spark.ml",
    ".distributed.spark.stream",
    ".drift",
    ".detectors",
    ".explain",
    ".judge",
    ".plots",
    ".series",
]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
QUICK = [
    i for i, page in enumerate(PAGES) if page.name not in ("gallery.md", "spark-streams.md", "uncertainty.md")
]  # to run
TEXTS = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]

PYTHON_BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```$(?:\n+^```text\n(?P<output>.*?)^```$)?", re.M | re.S)
FENCED = re.compile(r"^```.*?^```$", re.M | re.S)
LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
REFERENCE = re.compile(r"`(?P<path>[\w/]+\.py)::(?P<name>[\w.]+)`")
PATH = re.compile(r"`(?P<path>(?:[\w-]+/)*[\w-]+\.py)`")
ENTRY = re.compile(r"^::: (?P<name>[\w.]+)$", re.M)
MAKE = re.compile(r"\bmake ([a-z][a-z-]*)\b(?=[`\n]|  )")


class Block(NamedTuple):
    code: str
    output: str | None  # None where the page prints none
    line: int


def short(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks_of(page: str) -> list[Block]:
    return [
        Block(found["code"], found["output"], page.count("\n", 0, found.start("code")) + 1)
        for found in PYTHON_BLOCK.finditer(page)
    ]


def run(block: Block, name: str, namespace: dict) -> str:
    """Output of a block; tracebacks show line numbers of the page."""
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
    """Anchors of headings as on GitHub: lower case, hyphens for spaces, other signs dropped."""
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", page), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@cache
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
    """Resolve a path from the root of the repository or of the package."""
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


def public_modules() -> dict[str, ModuleType]:
    return {f"polyaforest{name}": importlib.import_module(f"polyaforest{name}") for name in PUBLIC}


def found_at(name: str) -> Any:
    """Object of a dotted name."""
    parts = name.split(".")
    for n in range(len(parts), 0, -1):
        with contextlib.suppress(ImportError):
            found: Any = importlib.import_module(".".join(parts[:n]))
            for part in parts[n:]:
                found = getattr(found, part)
            return found
    raise ImportError(name)


def unlisted(modules: dict[str, ModuleType], pages: str) -> list[str]:
    """Public names missing in the reference, by themselves and by their module."""
    entries = {entry: found_at(entry) for entry in ENTRY.findall(pages)}
    shown = {id(thing) for thing in entries.values()}
    names = ((module, name) for module in modules if module not in entries for name in modules[module].__all__)
    return [f"{module}.{name}" for module, name in names if id(getattr(modules[module], name)) not in shown]


def undescribed(modules: dict[str, ModuleType]) -> list[str]:
    """Public classes, functions and class members without docstrings."""
    things = {
        f"{module}.{name}": getattr(modules[module], name) for module in modules for name in modules[module].__all__
    }
    things |= {
        f"{name}.{member}": value
        for name, thing in things.items()
        if inspect.isclass(thing)
        for member, value in own(thing)
    }
    described = (inspect.isroutine, inspect.isclass, lambda thing: isinstance(thing, property))
    return [name for name, thing in things.items() if any(is_one(thing) for is_one in described) and not words(thing)]


def own(thing: type) -> Iterator[tuple[str, Any]]:
    """Public members of a class that are defined in this package."""
    for ancestor in thing.__mro__:
        if ancestor.__module__.startswith("polyaforest"):
            yield from ((name, value) for name, value in vars(ancestor).items() if not name.startswith("_"))


def words(thing: Any) -> str:
    return (inspect.unwrap(thing) if inspect.isfunction(thing) else thing).__doc__ or ""


@pytest.mark.parametrize("page", mostly_slow(PAGES, *QUICK), ids=short)
def test_code_prints_output_of_page(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    namespace, text = {"__name__": "__docs__"}, page.read_text("utf-8")
    if "import pyspark" in text or "from pyspark" in text:
        skip_without_java()
    for block in blocks_of(text):
        printed = run(block, str(page), namespace)
        if block.output is not None:
            assert printed == block.output, f"{page.name}, line {block.line}"


@pytest.mark.parametrize("page", TEXTS, ids=short)
def test_links_and_images_resolve(page):
    assert broken_links(page) == []


@pytest.mark.parametrize("page", TEXTS, ids=short)
def test_make_targets_exist(page):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    assert set(MAKE.findall(page.read_text("utf-8"))) <= targets


def test_reference_lists_all_public_names():
    assert unlisted(public_modules(), "\n".join(page.read_text("utf-8") for page in REFERENCE_PAGES.glob("*.md"))) == []


def test_all_public_names_have_docstrings():
    assert undescribed(public_modules()) == []


def test_functions_of_paper_map_exist():
    page = (ROOT / "docs" / "explanation" / "paper-map.md").read_text("utf-8")
    assert len(REFERENCE.findall(page)) > 20
    assert missing_references(page) == []


def test_readme_is_short_and_shows_code_with_its_output():
    readme = (ROOT / "README.md").read_text("utf-8")
    outputs = [block.output for block in blocks_of(readme)]
    assert len(outputs) >= 2
    assert None not in outputs
    assert readme.count("\n") < 150


def test_readme_commands_print_shown_output(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    readme = (ROOT / "README.md").read_text("utf-8")
    ((commands, shown),) = re.findall(
        r"^```bash\n((?:polyaforest .*\n)+)```\n\n```text\n(.*?)^\.\.\.\n```$", readme, re.M | re.S
    )
    for command in commands.splitlines():
        code, out, err = cli(*command.split()[1:])
        assert code == 0
    assert len(commands.splitlines()) == 3
    assert (err + out).startswith(shown)


def test_readme_figures_match_benchmarks():
    lines = [line for line in (ROOT / "README.md").read_text("utf-8").splitlines() if line.startswith("| [")]
    assert len(lines) == 4
    for line in lines:
        pages = re.findall(r"\((docs/benchmarks/[\w-]+\.md)", line)
        text = re.sub(r"[*]", "", "".join((ROOT / page).read_text("utf-8") for page in pages))
        figures = re.findall(r"\d[\d,.]*", " ".join(line.split(" | ")[1:]))
        assert [figure for figure in figures if f"| {figure}" not in text] == []


@pytest.mark.parametrize("index", sorted((ROOT / "docs").rglob("index.md")), ids=short)
def test_index_links_to_all_sibling_pages(index):
    linked = {found["target"] for found in LINK.finditer(index.read_text("utf-8"))}
    assert {page.name for page in index.parent.glob("*.md")} - {"index.md"} <= linked
    assert {f"{page.parent.name}/index.md" for page in index.parent.glob("*/index.md")} <= linked


# ---- the checks themselves can fail ---------------------------------------------------------------------------------


def test_blocks_keep_order_lines_and_direct_output():
    page = "# a\n```python\nx = 1\n```\n\ntext\n\n```text\nno\n```\n\n```python\nprint(x)\n```\n\n```text\n1\n```\n"
    first, second = blocks_of(page)
    assert (first.code, first.output, first.line) == ("x = 1\n", None, 3)
    assert (second.code, second.output) == ("print(x)\n", "1\n")
    assert run(second, "page", {"x": 2}) == "2\n"


def test_broken_link_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# Here and there\n[a](page.md#here-and-there) [b](page.md#nowhere) ![c](none.png) [d](#x)\n", "utf-8"
    )
    assert broken_links(page) == ["page.md#nowhere", "none.png", "#x"]


def test_missing_function_is_found():
    found = "`kernels/polya.py::set_posteriors` `forest/retention.py`"
    page = f"{found} `kernels/polya.py::nothing` `kernels/none.py::f` `nowhere.py`"
    assert missing_references(page) == ["`kernels/polya.py::nothing`", "`kernels/none.py::f`", "`nowhere.py`"]


def test_name_missing_in_reference_is_found():
    modules = {"polyaforest": found_at("polyaforest"), "polyaforest.detectors": found_at("polyaforest.detectors")}
    entries = [f"::: polyaforest.{name}" for name in modules["polyaforest"].__all__ if name != "Tree"]
    lacking = ["polyaforest.Tree", "polyaforest.detectors.Tree", "polyaforest.detectors.loads"]
    assert unlisted(modules, "\n".join(entries)) == lacking
    assert unlisted(modules, "\n".join([*entries, "::: polyaforest.detectors"])) == lacking[:1]


def test_missing_docstring_is_found():
    class Silent:
        """Said."""

        def method(self):
            pass

        @property
        def said(self):
            """Said too."""

    Silent.__module__ = "polyaforest.silent"
    module = ModuleType("silent")
    module.__all__, module.Silent, module.f, module.LIMIT = ["Silent", "f", "LIMIT"], Silent, lambda: None, 3
    assert undescribed({"silent": module}) == ["silent.f", "silent.Silent.method"]
