"""The page of `detect --html`: complete, self-contained, safe with hostile names, on screens, phones and paper."""

import base64
import csv
import hashlib
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from polyaforest.cli import run
from tests.browsers import browser

HOSTILE = '<img src=x onerror=alert(1)>"\x1b[31m\u202eevil_and_long_without_any_place_to_break_it_at_all'
LEVEL = 'evil"><script>alert(2)</script>'

pytestmark = pytest.mark.end_to_end


class Page(HTMLParser):
    """The tags, resources, handlers and text of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.sources, self.handlers, self.words = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.sources += [value for name, value in attrs if name in ("src", "href", "xlink:href")]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return re.sub(r"\s+", " ", " ".join(self.words))


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A table with hostile names, levels and ids, an extreme number and a rare level."""
    rng = np.random.default_rng(3)
    path = tmp_path_factory.mktemp("page") / "orders <b>.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["when", "id", HOSTILE, "kind", "price"])
        for i in range(600):
            kind = LEVEL if i == 300 else ("a", "b" * 70)[int(rng.integers(2))]
            price = 900 if i == 77 else round(rng.normal(20, 2), 2)
            other = 80 if i == 500 else rng.normal()
            writer.writerow([f"2024-05-{1 + i // 24:02d}T{i % 24:02d}:00", f"<i>{i}", other, kind, price])
    return path


@pytest.fixture(scope="module")
def report(table):
    """The report about the table."""
    path = table.parent / "report.html"
    options = ["--html", str(path), "--rows", "--id", "id", "--top", "1", "-q"]
    with pytest.raises(SystemExit) as left:
        run(["detect", str(table), *options])
    assert left.value.code == 0
    return path


def test_says_what_was_read_and_found(report):
    page = Page(report.read_text("utf-8"))
    for words in (
        "Anomalies in orders <b>.csv",
        "of 600 rows stand out",
        "Read 600 rows of orders <b>.csv",
        "Times from when. Row ids from id.",
        "Interpreted: kind as categories. Override with --categories, --numbers-only.",
        "too high",
        "seen in 1 of 600 rows",
        "nine in ten",
        "3 levels: ",
        "How to read this page",
        "orders <b>.csv' --id id --rows --top 1 --html ",
    ):
        assert words in page.text, words
    assert page.tags.count("svg") >= 3  # where, a distribution, levels


def test_runs_only_the_script_that_sorts_and_loads_nothing(report):
    text = report.read_text("utf-8")
    page = Page(text)
    assert (page.sources, page.handlers) == ([], [])
    assert {"img", "iframe", "link", "object", "i"}.isdisjoint(page.tags)
    assert page.tags.count("script") == 1
    script = text.partition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in text
    assert "\u202e" not in text
    assert "\x1b" not in text


def test_page_of_a_table_without_findings_has_no_script(tmp_path, cli):
    rows = "\n".join(f"{i % 7},{i % 5}" for i in range(100))
    (tmp_path / "a.csv").write_text(f"x,y\n{rows}\n")
    assert cli("detect", tmp_path / "a.csv", "--html", tmp_path / "a.html", "-q")[0] == 0
    text = (tmp_path / "a.html").read_text("utf-8")
    assert "Nothing stands out" in text
    assert "<script" not in text


def test_streams_and_partitions_have_pages(tmp_path, table, cli):
    path = tmp_path / "page.html"
    assert cli("detect", table, "--html", path, "--stream", "--by", "kind", "-q")[0] == 0
    assert "Partitions by kind" in Page(path.read_text("utf-8")).text


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--html", "{table}"], 3, "is also the input"),
        (["--html", "nowhere/report.html"], 3, "the directory to write to does not exist"),
        (["--html", "-"], 2, "--html needs a file name"),
    ],
)
def test_rejects_places_before_reading(table, cli, options, code, words):
    found, _, err = cli("detect", table, *[option.format(table=table) for option in options])
    assert found == code
    assert words in re.sub(r"\s+", " ", err)


def test_command_masks_passwords():
    from polyaforest.cli._page import _masked

    assert (
        _masked("postgresql://me:pa:ss@host/db?sslpassword=x&a=1") == "postgresql://me:***@host/db?sslpassword=***&a=1"
    )
    assert _masked("postgresql://me@host/db") == "postgresql://me@host/db"


def test_sorts_and_fits_a_phone(report):
    with browser() as started:
        for width, height in ((1280, 900), (390, 844)):
            tab = started.new_page(viewport={"width": width, "height": height})
            problems = []
            tab.on("console", lambda said, seen=problems: seen.append(said.text))
            tab.on("dialog", lambda dialog, seen=problems: (seen.append(dialog.message), dialog.dismiss()))
            tab.goto(report.as_uri())
            assert tab.evaluate("document.documentElement.scrollWidth") <= width
            rows = (
                "[...document.querySelectorAll('.findings > tbody')].map(b => Number(b.rows[0].cells[1].dataset.key))"
            )
            worst_first = tab.evaluate(rows)
            tab.click("th:nth-child(2) button")
            assert tab.evaluate(rows) == sorted(worst_first)
            tab.click("th:nth-child(2) button")
            assert tab.evaluate(rows) == sorted(worst_first, reverse=True)
            tab.click("th:nth-child(1) button")
            assert tab.evaluate(rows) == worst_first
            assert problems == []
            tab.close()
