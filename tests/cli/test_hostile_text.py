"""Hostile column names, ids and files cannot control the terminal, the browser or a spreadsheet."""

import csv
import html
import json
import os
import re
import shutil
import subprocess
import sys
import unicodedata

import numpy as np
import polars as pl
import pytest

from polyaforest import StreamingMPF
from polyaforest.io.results import Results
from polyaforest.io.tables import BadInput

pytestmark = pytest.mark.end_to_end

OURS = re.compile(r"\x1b\[(0|1|31)m|\r\x1b\[K")
EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\u202e"
NAMES = [f"load{EVIL}", "forged\nrow 1: all is well", "$a^$"]
N_ROWS = 120
ODD = 8  # the number of the odd row


@pytest.fixture(scope="module")
def run(programs):
    return programs.run


def acting(text: str) -> set[str]:
    """The characters of a text, without our own colours, that have no shape of their own."""
    return {char for char in OURS.sub("", text) if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Cn")}


def assert_harmless(done, code=0):
    """What a process printed acts on no terminal, and is no defect."""
    assert done.returncode == code, done.stderr
    for said in (done.stdout.decode(), done.stderr.decode()):
        assert acting(said) <= {"\n"}


@pytest.fixture(scope="module")
def rows():
    values = np.random.default_rng(0).normal(size=(N_ROWS, 3))
    values[ODD - 1] = 50.0
    return values


@pytest.fixture(scope="module")
def place(run, rows, tmp_path_factory):
    """A folder with a hostile name, a hostile table, the same as lines of JSON, and models made of them."""
    folder = tmp_path_factory.mktemp("hostile")
    ids = [f"=cmd{EVIL}\nrow 2{i}" for i in range(N_ROWS)]
    frame = pl.DataFrame({**dict(zip(NAMES, rows.T, strict=True)), f"id{EVIL}": ids, "host": [f"web{EVIL}"] * N_ROWS})
    table = folder / f"table{EVIL}.csv"
    frame.write_csv(table)
    (folder / "live.jsonl").write_text("\n".join(json.dumps(row) for row in frame.to_dicts()))
    assert_harmless(run("fit", table, "-m", folder / f"model{EVIL}.mpf"))
    assert_harmless(run("fit", table, "-m", folder / "keyed.mpf", "--id", "host"))
    assert_harmless(run("fit", "--batch", table, "-m", folder / f"a{EVIL}.mpf"))
    assert_harmless(run("fit", "--batch", "--like", folder / f"a{EVIL}.mpf", table, "-m", folder / "b.mpf"))
    return folder


@pytest.fixture(scope="module")
def table(place):
    return place / f"table{EVIL}.csv"


@pytest.fixture(scope="module")
def model(place):
    return place / f"model{EVIL}.mpf"


# ---- the terminal ----------------------------------------------------------------------------------------------------


def test_detect_escapes_names(run, table, tmp_path):
    done = run("detect", table, "--id", f"id{EVIL}", "--by", "host", "--plot", tmp_path / "odd.svg")
    assert_harmless(done)
    said = done.stdout.decode()
    assert r"load\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\u202e" in said
    assert r"forged\nrow 1: all is well" in said
    assert not re.search(r"^row [12]", said, re.M)
    columns = [line.index("too high") for line in said.splitlines() if "too high" in line]
    assert len(columns) == 3
    assert len(set(columns)) == 1  # widths are those of what is shown
    assert (tmp_path / "odd.svg").stat().st_size


@pytest.mark.slow
def test_models_with_hostile_names_are_shown_and_used(run, place, table, model, tmp_path):
    assert_harmless(run("info", model))
    assert_harmless(run("explain", "-m", model, table, "--row", str(ODD)))
    assert_harmless(run("merge", place / f"a{EVIL}.mpf", place / "b.mpf", "-o", tmp_path / f"{EVIL}.mpf"))
    keyed = shutil.copy(place / "keyed.mpf", tmp_path / f"keyed{EVIL}.mpf")
    assert_harmless(run("forget", "-m", keyed, "--id", f"absent{EVIL}", "--missing-ok"))
    assert_harmless(run("forget", "-m", keyed, "--id", f"web{EVIL}"))


def test_json_is_exact_and_safe(run, table, model):
    for args in (["info", model, "--json"], ["explain", "-m", model, table, "--row", str(ODD), "--json"]):
        done = run(*args)
        assert_harmless(done)
        facts = json.loads(done.stdout)
        assert (facts.get("columns") or [feature["name"] for feature in facts["features"]]) == NAMES


def test_watch_writes_safe_lines_with_same_values(run, place, tmp_path):
    store = tmp_path / f"{EVIL}.models"
    names = ["--by", "host", "--id", f"id{EVIL}"]
    outputs = ["--model", store, "--quarantine", tmp_path / "bad.jsonl"]
    done = run("watch", place / "live.jsonl", *names, *outputs, "--trees", "5")
    assert_harmless(done)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["key"] for line in lines] == [f"web{EVIL}"] * N_ROWS
    assert_harmless(run("info", store))
    assert_harmless(run("info", store, "--by", f"web{EVIL}"))


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["detect", f"nothing{EVIL}\nhere"], 3),
        (["detect", b"\xff\x1b"], 3),
        (["info", f"nothing{EVIL}\nhere"], 3),
        ([f"no-command{EVIL}"], 2),
        (["detect", f"--no-option{EVIL}"], 2),
        (["watch", "--window", EVIL], 2),
        (["watch", "--from", f"x{EVIL}://"], 3),
    ],
)
def test_errors_escape_arguments(run, args, code, tmp_path):
    done = run(*args, cwd=tmp_path)
    assert_harmless(done, code)
    *_, last = done.stderr.decode().splitlines()
    assert last.startswith("Error: ")


def test_errors_escape_column_names(run, table, model, tmp_path):
    assert_harmless(run("detect", table, "--columns", f"other{EVIL}"), 3)
    (tmp_path / "other.csv").write_text(f"q{EVIL}\n1\n2\n")
    assert_harmless(run("score", "-m", model, tmp_path / "other.csv"), 3)
    (tmp_path / f"torn{EVIL}.mpf").write_bytes(model.read_bytes()[:-5])
    assert_harmless(run("info", tmp_path / f"torn{EVIL}.mpf"), 3)
    traced = run("detect", table, "--columns", EVIL, env={"POLYAFOREST_TRACEBACK": "1"})
    assert b"Traceback" in traced.stderr
    assert_harmless(traced, 3)


@pytest.mark.slow
def test_limited_encoding_is_not_an_error(table):
    for encoding in ("ascii", "latin-1"):
        command = [sys.executable, "-m", "polyaforest", "detect", table, "--id", f"id{EVIL}"]
        environment = {**os.environ, "PYTHONIOENCODING": encoding}
        done = subprocess.run(command, env=environment, capture_output=True, check=False)
        assert done.returncode == 0
        assert acting(done.stdout.decode("utf-8" if encoding == "ascii" else encoding)) <= {"\n"}


@pytest.mark.slow
def test_uses_and_resumes_paths_that_are_not_text(run, place, tmp_path):
    lines = (place / "live.jsonl").read_bytes()
    store = os.fsencode(tmp_path) + b"/\xff.models"
    source, out = os.fsencode(tmp_path) + b"/\xff.jsonl", os.fsencode(tmp_path) + b"/\xfe.jsonl"
    with open(source, "wb") as file:
        file.write(lines)
    args = [source, "--model", store, "--out", out, "--quarantine", tmp_path / "bad", "--trees", "3"]
    for _ in range(2):  # the second run resumes and finds nothing new
        assert_harmless(run("watch", *args))
        with open(out, "rb") as file:
            assert len(file.readlines()) == N_ROWS
    assert r"\udcff" in json.loads(run("info", "--json", store).stdout)["file"]


def test_scores_are_exact_in_pipe_and_safe_on_terminal(programs, table, model):
    args = ["score", "-m", model, table, "--id", f"id{EVIL}", "--only-anomalies"]
    piped = programs.run(*args)
    assert pl.read_csv(piped.stdout)[f"id{EVIL}"].to_list() == [f"=cmd{EVIL}\nrow 2{ODD - 1}"]
    code, said = programs.run_on_terminal(*args)
    assert code == 0
    assert acting(said) <= {"\n"}
    assert rf"=cmd\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\u202e\nrow 2{ODD - 1}" in said


def test_input_cannot_set_colours(programs, table):
    code, said = programs.run_on_terminal("detect", table, "--id", f"id{EVIL}")
    assert code == 0
    assert "\x1b[31m" in said
    assert acting(said) <= {"\n"}


# ---- spreadsheets ----------------------------------------------------------------------------------------------------

CELLS = {
    "=1+1": "'=1+1",
    "+41 44": "'+41 44",
    "-a": "'-a",
    "@SUM(A1)": "'@SUM(A1)",
    "\tx": "'\tx",
    "\rx": "'\rx",
    "＝1": "'＝1",
    "a;=1+1;": "a;'=1+1;",
    "a\n=1": "a\n'=1",
    "a=1, -2": "a=1, -2",
    "web-1": "web-1",
    "-1.5e3": "-1.5e3",
    "": "",
}


@pytest.mark.parametrize("form", ["csv", "tsv"])
def test_escapes_formulas_and_keeps_numbers(tmp_path, form):
    written = {"=name": list(CELLS), "score": np.full(len(CELLS), -1.5), "attributions": [["=a", "b"]] * len(CELLS)}
    for is_safe in (False, True):
        path = str(tmp_path / f"found.{form}")
        with Results(path, spreadsheet_safe=is_safe) as results:
            results.write(written)
        with open(path, encoding="utf-8", newline="") as file:
            names, *cells = csv.reader(file, delimiter="\t" if form == "tsv" else ",")
        texts, scores, attributions = zip(*cells, strict=True)
        assert names == ["'=name" if is_safe else "=name", "score", "attributions"]
        assert list(texts) == list(CELLS.values() if is_safe else CELLS)
        assert set(scores) == {"-1.5"}
        assert set(attributions) == {"'=a, b" if is_safe else "=a, b"}


def test_spreadsheet_safe_applies_to_csv_and_tsv_only(tmp_path):
    for form in ("jsonl", "parquet"):
        with pytest.raises(BadInput, match="applies to CSV and TSV only"):
            Results(str(tmp_path / f"found.{form}"), spreadsheet_safe=True)


@pytest.mark.slow
def test_commands_write_safe_spreadsheets(run, table, model):
    assert run("detect", table, "--spreadsheet-safe").returncode == 2
    for args in (["detect", table], ["score", "-m", model, table]):
        options = ["--id", f"id{EVIL}", "--only-anomalies", "--out", "-"]
        for is_safe in (False, True):
            done = run(*args, *options, *(["--spreadsheet-safe"] if is_safe else []))
            cells = pl.read_csv(done.stdout)[f"id{EVIL}"]
            assert cells[0].startswith("'=cmd" if is_safe else "=cmd")


# ---- the browser -----------------------------------------------------------------------------------------------------

MARKUP = [
    "</td></table><script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "'\"><svg/onload=document.title='owned'>&lt;b&gt;",
]


def test_browser_shows_hostile_names_as_text(rows, tmp_path):
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    keys = [f"<script>document.title='owned'</script>{i}" for i in range(N_ROWS)]
    forest = StreamingMPF(n_estimators=10, window=N_ROWS, random_state=0)
    frame = pl.DataFrame(dict(zip(MARKUP, rows.T, strict=True)))
    explanations = forest.fit(frame, keys=keys).explain(frame[ODD - 1 : ODD])
    page = tmp_path / "page.html"
    page.write_text(f"<!doctype html><meta charset=utf-8><title>fine</title>{explanations._repr_html_()}")
    options = [
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
        "--disable-background-networking", "--disable-component-update", f"--user-data-dir={tmp_path / 'profile'}",
    ]  # fmt: skip
    command = [browser, *options, "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, check=True, timeout=300)
    seen = done.stdout.decode()
    assert "<title>fine</title>" in seen
    assert re.findall(r"<(script|img|svg)\b", seen) == []
    cells = [html.unescape(cell) for cell in re.findall(r"<td[^>]*>([^<]*)</td>", seen)]
    assert set(MARKUP) <= set(cells)
    assert "Most similar normal points" in seen
