"""`polyaforest compare` from end to end: output, exit codes and the report."""

import base64
import json
import re
import struct
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import polars as pl
import pytest

pytestmark = pytest.mark.end_to_end

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "compare.md"
PYTHON = re.compile(r"^```python\n(?P<code>.*?)^```$", re.M | re.S)
CONSOLE = re.compile(r"^```console\n\$ polyaforest (?P<args>.*?)\n(?P<shown>.*?)^```$", re.M | re.S)
HOSTILE = "<img src=x onerror=alert(1)>\x1b[31m\u202e\"'&"


def write(path, n=400, shift=0.0, seed=0, **more):
    rng = np.random.default_rng(seed)
    frame = pl.DataFrame({"u": rng.standard_normal(n) + shift, "v": rng.integers(0, 5, n), **more})
    frame.write_csv(path)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("files")
    write(place / "before.csv", seed=1)
    write(place / "same.csv", seed=2)
    write(place / "after.csv", seed=3, shift=2.0)
    return place


def test_compare_exits_with_0_when_files_are_alike(cli, folder):
    code, out, err = cli("compare", folder / "before.csv", folder / "same.csv")
    assert code == 0
    assert out.startswith("No change found (p = ")
    assert err.count("Read 400 rows of ") == 2


def test_compare_exits_with_1_and_says_where_when_files_differ(cli, folder):
    code, out, _ = cli("compare", folder / "before.csv", folder / "after.csv")
    assert code == 1
    assert re.match(r"Changed: at least \d\d % \[\d\d–\d\d %\] of the rows moved \(p ≤ 0.005; odds of 10\^\d+ : 1", out)
    assert re.search(r"^  u (>|≤) -?[\d.]+: from \d", out, re.M)
    assert re.search(r"^  u +\+\d", out, re.M)


def test_compare_exits_with_0_when_the_change_is_below_least_effect(cli, folder):
    code, out, _ = cli("compare", folder / "before.csv", folder / "after.csv", "--least-effect", 0.99, "-q")
    assert (code, out[:19]) == (0, "Too small to matter")


def test_json_has_everything(cli, folder):
    code, out, err = cli("compare", folder / "before.csv", folder / "after.csv", "--json", "-q")
    facts = json.loads(out)
    assert (code, err) == (1, "")
    assert facts["changed"]
    assert facts["regions"][0]["conditions"][0]["feature"] == "u"
    assert [sample["name"].endswith(".csv") for sample in facts["samples"]] == [True, True]
    assert facts["total_variation"]["low"] > 0.4


class Page(HTMLParser):
    """The resources and handlers of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.sources, self.handlers = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.sources += [value for name, value in attrs if name in ("src", "href")]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]


def test_html_report_is_self_contained_and_runs_nothing(cli, tmp_path):
    names = {HOSTILE: np.random.default_rng(5).standard_normal(400)}
    moved = {HOSTILE: np.random.default_rng(6).standard_normal(400) + 3}
    before, after = write(tmp_path / "a.csv", **names), write(tmp_path / "b<i>.csv", seed=1, **moved)
    code, out, _ = cli("compare", before, after, "--html", tmp_path / "report.html")
    assert code == 1
    assert "\x1b[31m" not in out
    text = (tmp_path / "report.html").read_text("utf-8")
    page = Page(text)
    assert page.handlers == []
    assert {"script", "iframe", "link", "i"}.isdisjoint(page.tags)
    assert "default-src 'none'" in text
    (source,) = page.sources
    head, _, data = source.partition(",")
    assert head == "data:image/png;base64"
    picture = base64.b64decode(data)
    width, height = struct.unpack(">II", picture[16:24])
    assert width > 500
    assert height > 100
    assert "Changed: at least" in text
    assert "\u202e" not in text


def test_compare_matches_columns_by_name_and_detects_changed_constants(cli, tmp_path):
    rng = np.random.default_rng(0)
    before = pl.DataFrame({"u": rng.standard_normal(300), "w": np.zeros(300)})
    after = pl.DataFrame({"w": rng.integers(0, 2, 300), "u": rng.standard_normal(300)})
    before.write_csv(tmp_path / "a.csv")
    after.write_parquet(tmp_path / "b.parquet")
    code, out, _ = cli("compare", tmp_path / "a.csv", tmp_path / "b.parquet", "-q")
    assert code == 1
    assert "w = 1: from 0 % to " in out


def test_compare_detects_missing_values(cli, tmp_path):
    gap = [None] * 60 + [1.0, 2.0] * 170
    write(tmp_path / "a.csv", w=[1.0, 2.0] * 200)
    write(tmp_path / "b.csv", seed=1, w=gap)
    code, out, _ = cli("compare", tmp_path / "a.csv", tmp_path / "b.csv", "-q")
    assert code == 1
    assert "w is missing: from 0 % to 1" in out


def test_compare_skips_times_ids_and_free_text_and_says_so(cli, tmp_path):
    times = [f"2026-01-{1 + i // 24:02}T{i % 24:02}:00:00Z" for i in range(400)]
    later = [time.replace("2026", "2027") for time in times]
    for name, seed, when in (("a", 1, times), ("b", 2, later)):
        ids = [f"{name}{i}" for i in range(400)]
        notes = [f"what somebody wrote about what they saw on that day, at some length, {i % 50}" for i in range(400)]
        write(tmp_path / f"{name}.csv", seed=seed, timestamp=when, id=ids, note=notes, host=["web"] * 400)
    code, _, err = cli("compare", tmp_path / "a.csv", tmp_path / "b.csv")
    assert code == 0
    left_out = "Times from timestamp. Skipped: id (text, all different); note (free text); host (constant 'web')."
    assert err.count(left_out) == 2


def of_countries(xk, seed=0, n=600):
    return np.random.default_rng(seed).choice(["DE", "FR", "XK"], n, p=[0.6, 0.4 - xk, xk])


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """Files in which the share of a country differs, and a column that is constant in one of them."""
    place = tmp_path_factory.mktemp("mixed")
    write(place / "a.csv", n=600, seed=1, country=of_countries(0.005, 1), plan=["free"] * 600)
    write(place / "b.csv", n=600, seed=2, country=of_countries(0.08, 2), plan=["free", "free", "paid"] * 200)
    return place


def test_compare_treats_text_of_few_different_values_as_categories(cli, mixed):
    code, out, err = cli("compare", mixed / "a.csv", mixed / "b.csv")
    assert code == 1
    assert err.count("using u, v, country, plan (4 of 4 columns).") == 2
    assert err.count("Interpreted: country, plan as categories. Override with --categories, --numbers-only.") == 2
    assert re.search(r"^  country = XK: from 0[.\d]* % to \d", out, re.M)
    assert re.search(r"^  plan = paid: from 0 % to 3\d %", out, re.M)
    assert re.search(r"^  country +\+\d", out, re.M)


def test_options_select_and_exclude_categories(cli, mixed, tmp_path):
    files = (mixed / "a.csv", mixed / "b.csv")
    code, out, err = cli("compare", *files, "--numbers-only")
    assert (code, out[:15]) == (0, "No change found")
    assert err.count("Skipped: country, plan (text).") == 2
    code, out, _ = cli("compare", *files, "--categories", "country,v", "--json", "-q")
    facts = json.loads(out)
    assert code == 1
    assert [one["name"] for one in facts["features"]] == ["u", "v", "country"]
    assert facts["regions"][0]["conditions"][0]["categories"] == ["XK"]
    code, out, _ = cli("compare", *files, "--columns", "country", "-q")
    assert (code, "country = XK: from " in out) == (1, True)
    code, _, err = cli("compare", *files, "--numbers-only", "--categories", "plan")
    assert (code, "mutually exclusive" in err) == (2, True)
    code, _, err = cli("compare", *files, "--categories", "contry")
    assert (code, "contry" in err) == (3, True)


def test_compare_detects_different_constants(cli, tmp_path):
    write(tmp_path / "a.csv", host=["web"] * 400, w=[5] * 400)
    write(tmp_path / "b.csv", seed=1, host=["db"] * 400, w=[5] * 400)
    code, out, err = cli("compare", tmp_path / "a.csv", tmp_path / "b.csv")
    assert code == 1
    assert err.count("Skipped: w (constant 5).") == 2
    assert re.search(r"^  host = (db: from 0 % to 100 %|web: from 100 % to 0 %)", out, re.M)


def test_compare_rejects_text_against_numbers_and_suggests_categories(cli, tmp_path):
    write(tmp_path / "a.csv", state=[200, 404] * 200)
    write(tmp_path / "b.csv", seed=1, state=["fine", "lost"] * 200)
    code, _, err = cli("compare", tmp_path / "a.csv", tmp_path / "b.csv")
    assert code == 3
    assert "Column 'state' holds text in b.csv, and numbers in a.csv." in err.replace(f"{tmp_path}/", "")
    code, out, _ = cli("compare", tmp_path / "a.csv", tmp_path / "b.csv", "--categories", "state", "-q")
    assert code == 1
    assert "state" in out


def test_compare_escapes_hostile_categories(cli, tmp_path):
    for name, share in (("a", 0.0), ("b", 0.3)):
        values = np.where(np.random.default_rng(1).random(400) < share, HOSTILE, "fine")
        values[0] = "other"
        write(tmp_path / f"{name}.csv", c=values)
    code, out, _ = cli("compare", tmp_path / "a.csv", tmp_path / "b.csv", "--html", tmp_path / "report.html")
    assert code == 1
    assert "\\u202e" in out
    assert "\x1b[31m" not in out.replace("\x1b[1m", "")
    text = (tmp_path / "report.html").read_text("utf-8")
    page = Page(text)
    assert page.handlers == []
    assert page.tags.count("img") == 1  # the picture
    assert "\u202e" not in text


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["before.csv", "missing.csv"], 3, "missing.csv"),
        (["before.csv", "other.csv"], 3, "has no column 'v'"),
        (["before.csv", "words.csv", "--columns", "u,v"], 3, "holds text in words.csv, and numbers in before.csv"),
        (["before.csv", "few.csv"], 3, "has 5 rows: at least 10"),
        (["-", "-"], 2, "Only one of the files can be standard input"),
        (["before.csv", "after.csv", "--alpha", "0.001"], 2, "needs at least --permutations 999"),
        (["before.csv", "after.csv", "--block-size", "300"], 3, "fewer than four blocks"),
        (["before.csv", "after.csv", "--html", "before.csv"], 3, "is also the input"),
        (["before.csv", "after.csv", "--html", "nowhere/report.html"], 3, "the directory to write to does not exist"),
        (["before.csv"], 2, "AFTER"),
    ],
)
def test_compare_rejects_unusable_input(cli, folder, monkeypatch, options, code, message):
    monkeypatch.chdir(folder)
    write(folder / "few.csv", n=5)
    pl.DataFrame({"u": np.arange(50.0) ** 2}).write_csv(folder / "other.csv")
    pl.DataFrame({"u": ["x", "y"] * 20, "v": list(range(40))}).write_csv(folder / "words.csv")
    found, out, err = cli("compare", *options)
    assert (found, out) == (code, "")
    assert message in err


def test_docs_page_shows_the_actual_output(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = PAGE.read_text("utf-8")
    names = {}
    for block in PYTHON.finditer(page):
        if "write_csv" in block["code"]:
            exec(block["code"], names)
    blocks = list(CONSOLE.finditer(page))
    assert len(blocks) == page.count("```console") >= 1
    for block in blocks:
        code, out, err = cli(*block["args"].split())
        assert (code, err + out) == (int("Changed" in out), block["shown"])
