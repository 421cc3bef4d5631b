"""Every benchmark declares itself; one command line runs them all."""

import json
import re
import shutil
from pathlib import Path

import pytest

from benchmarks.registry import NAMES, PROGRAM, Benchmark, load, main, summary
from benchmarks.shared import pages, provenance
from benchmarks.shared.results import RESULTS, Results, read

ROOT = Path(__file__).parents[2]
TEXTS = [
    *(ROOT / "docs").rglob("*.md"),
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(ROOT / "benchmarks").rglob("*.py"),
]


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_declares_itself(name):
    benchmark = load(name)
    assert isinstance(benchmark, Benchmark)
    assert summary(name).endswith(".")
    assert callable(benchmark.run)
    if re.search(r"docs/benchmarks/[\w-]+\.md", (ROOT / "benchmarks" / f"{name}.py").read_text("utf-8")):
        assert callable(benchmark.render)


def test_every_filled_page_has_a_benchmark(tmp_path):
    renders = [load(name).render for name in NAMES if name != "ranks"]  # needs pingouin; fills paper-tables too
    copies = shutil.copytree(pages.PAGES, tmp_path / "pages")
    blocks = re.compile(r"(<!-- begin [\w -]+ -->\n).*?(<!-- end)", re.S)
    filled = [page for page in copies.glob("*.md") if blocks.search(page.read_text("utf-8"))]
    for page in filled:
        page.write_text(blocks.sub(r"\1EMPTY\n\2", page.read_text("utf-8")), "utf-8")
    for render in filter(None, renders):
        render(RESULTS, copies)
    left = [page.name for page in filled if "EMPTY" in page.read_text("utf-8")]
    assert left in ([], ["paper-tables.md"])


def test_list_prints_every_benchmark(capsys):
    main(["list"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(NAMES)
    assert all(line.endswith(summary(name)) for line, name in zip(lines, NAMES, strict=True))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "serie"], "unknown benchmark 'serie': did you mean series"),
        (["run", "series-alarms"], "did you mean series_alarms"),
        (["run", "xyzzy"], f"unknown benchmark 'xyzzy': see {PROGRAM} list"),
        (["run"], "name benchmarks, or use --all"),
        (["run", "toy", "--all"], "name benchmarks, or use --all"),
        (["run", "startup", "--quick"], "startup has no quick run"),
        (["run", "toy", "density", "--again"], "unrecognized arguments: --again"),
        (["run", "streaming", "--part", "gap"], "invalid choice: 'gap'"),
        (["render", "speed"], "speed fills no page"),
    ],
)
def test_a_wrong_command_is_explained(words, message, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_help_shows_the_options_of_a_benchmark(capsys):
    with pytest.raises(SystemExit):
        main(["run", "streaming", "--help"])
    text = capsys.readouterr().out
    assert "--part" in text
    assert "options of streaming" in text


def test_a_quick_run_leaves_the_files_of_the_project_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "SCRATCH", tmp_path)
    before = {path: path.read_bytes() for folder in (RESULTS, pages.PAGES) for path in folder.glob("*.*")}
    main(["run", "streaming", "--quick", "--part", "gaps"])
    rows = read(tmp_path / "streaming" / "streaming-gaps.csv")
    assert {row["missing"] for row in rows} == {"impute", "marginalise"}
    assert {path: path.read_bytes() for folder in (RESULTS, pages.PAGES) for path in folder.glob("*.*")} == before
    (record,) = json.loads((tmp_path / "streaming" / "streaming.json").read_text("utf-8"))
    assert record["added_rows"] == {"streaming-gaps.csv": len(rows)}
    assert record["code"]["src"] == provenance.digest(ROOT / "src")
    assert {"numpy", "polyaforest"} <= set(record["versions"])


def test_several_benchmarks_run_in_processes_of_their_own_and_failures_are_named(monkeypatch, capsys):
    commands = []

    def run(command, **_):
        commands.append(command[1:])
        return type("Done", (), {"returncode": int("toy" in command)})

    monkeypatch.setattr("benchmarks.registry.subprocess.run", run)
    with pytest.raises(SystemExit, match="failed: toy"):
        main(["run", "--all", "--quick"])
    quick = [name for name in NAMES if load(name).quick is not None]
    assert commands == [["-m", "benchmarks", "run", name, "--quick"] for name in quick]


def test_a_run_that_measures_nothing_leaves_no_record(tmp_path):
    shutil.copy(RESULTS / "toy.csv", tmp_path)
    with provenance.recorded("toy", (), tmp_path):
        Results("toy", ("data", "method", "seed"), tmp_path).forget(seed=4)
    assert not (tmp_path / "toy.json").exists()


def test_interrupted_runs_are_recorded(tmp_path):
    results = Results("toy", ("a",), tmp_path)
    for n_rows in (1, 2):
        with pytest.raises(KeyboardInterrupt), provenance.recorded("toy", (), tmp_path):  # noqa: PT012 -- as a run does
            for row in range(n_rows):
                results.add({"a": row})
            raise KeyboardInterrupt
    records = json.loads((tmp_path / "toy.json").read_text("utf-8"))
    assert [record["added_rows"] for record in records] == [{"toy.csv": 1}, {"toy.csv": 2}]


def test_the_makefile_names_no_benchmark():
    text = (ROOT / "Makefile").read_text("utf-8")
    assert text.count("-m benchmarks") == 3
    assert not re.findall(r"benchmarks (?:run|render) (?!--)\w+|(?<!tests/)benchmarks/\w+\.py", text)


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_printed_commands_exist(path):
    text = path.read_text("utf-8")
    for command, name in re.findall(r"python -m benchmarks (run|render)\s+([a-z_]+)", text):
        assert name in NAMES, f"{command} {name}"
    for name in re.findall(r"benchmarks/(\w+)\.py", text):
        assert name in (*NAMES, "registry")
    assert not re.search(r"python\s+benchmarks/(?!baselines)", text)
