"""`compare` from end to end: two files go in, a verdict, an exit code and a report come out."""

import base64
import contextlib
import io
import json
import re
import struct
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import polars as pl
import pytest

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


def test_files_that_are_alike_exit_with_0(cli, folder):
    code, out, err = cli("compare", folder / "before.csv", folder / "same.csv")
    assert code == 0
    assert out.startswith("No change found (p = ")
    assert err.count("Read 400 rows of ") == 2


def test_files_that_have_changed_exit_with_1_and_say_where(cli, folder):
    code, out, _ = cli("compare", folder / "before.csv", folder / "after.csv")
    assert code == 1
    assert re.match(r"Changed: at least \d\d % \[\d\d–\d\d %\] of the rows moved \(p ≤ 0.005; odds of 10\^\d+ : 1", out)
    assert re.search(r"^  u (>|≤) -?[\d.]+: from \d", out, re.M)
    assert re.search(r"^  u +\+\d", out, re.M)


def test_a_change_that_does_not_matter_exits_with_0(cli, folder):
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
    """What a page would load or run."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.sources, self.handlers = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.sources += [value for name, value in attrs if name in ("src", "href")]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]


def test_the_report_is_one_page_with_a_picture_that_runs_nothing(cli, tmp_path):
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


def test_columns_are_matched_by_name_and_constants_can_change(cli, tmp_path):
    rng = np.random.default_rng(0)
    before = pl.DataFrame({"u": rng.standard_normal(300), "w": np.zeros(300)})
    after = pl.DataFrame({"w": rng.integers(0, 2, 300), "u": rng.standard_normal(300)})
    before.write_csv(tmp_path / "a.csv")
    after.write_parquet(tmp_path / "b.parquet")
    code, out, _ = cli("compare", tmp_path / "a.csv", tmp_path / "b.parquet", "-q")
    assert code == 1
    assert "w = 1: from 0 % to " in out


def test_gaps_count(cli, tmp_path):
    gap = [None] * 60 + [1.0, 2.0] * 170
    write(tmp_path / "a.csv", w=[1.0, 2.0] * 200)
    write(tmp_path / "b.csv", seed=1, w=gap)
    code, out, _ = cli("compare", tmp_path / "a.csv", tmp_path / "b.csv", "-q")
    assert code == 1
    assert "w is missing: from 0 % to 1" in out


def test_times_and_text_are_left_out_and_said(cli, tmp_path):
    times = [f"2026-01-{1 + i // 24:02}T{i % 24:02}:00:00Z" for i in range(400)]
    later = [time.replace("2026", "2027") for time in times]
    write(tmp_path / "a.csv", timestamp=times, host=["web"] * 400)
    write(tmp_path / "b.csv", seed=1, timestamp=later, host=["db"] * 400)
    code, _, err = cli("compare", tmp_path / "a.csv", tmp_path / "b.csv")
    assert code == 0
    assert err.count("Times from timestamp. Skipped: host (text") == 2


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["before.csv", "missing.csv"], 3, "missing.csv"),
        (["before.csv", "other.csv"], 3, "has no column 'v'"),
        (["before.csv", "words.csv", "--columns", "u,v"], 3, "not numbers"),
        (["before.csv", "few.csv"], 3, "has 5 rows: at least 10"),
        (["-", "-"], 2, "Only one of the files can be standard input"),
        (["before.csv", "after.csv", "--alpha", "0.001"], 2, "needs at least --permutations 999"),
        (["before.csv", "after.csv", "--block-size", "300"], 3, "fewer than four blocks"),
        (["before.csv", "after.csv", "--html", "before.csv"], 3, "is also the input"),
        (["before.csv", "after.csv", "--html", "nowhere/report.html"], 3, "no such directory"),
        (["before.csv"], 2, "AFTER"),
    ],
)
def test_what_cannot_be_compared(cli, folder, monkeypatch, options, code, message):
    monkeypatch.chdir(folder)
    write(folder / "few.csv", n=5)
    pl.DataFrame({"u": np.arange(50.0) ** 2}).write_csv(folder / "other.csv")
    pl.DataFrame({"u": ["x", "y"] * 20, "v": list(range(40))}).write_csv(folder / "words.csv")
    found, out, err = cli("compare", *options)
    assert (found, out) == (code, "")
    assert message in err


def test_the_page_shows_what_is_printed(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = PAGE.read_text("utf-8")
    with contextlib.redirect_stdout(io.StringIO()):
        exec(PYTHON.search(page)["code"], {})
    blocks = list(CONSOLE.finditer(page))
    assert len(blocks) == page.count("```console") >= 1
    for block in blocks:
        code, out, err = cli(*block["args"].split())
        assert (code, err + out) == (int("Changed" in out), block["shown"])
