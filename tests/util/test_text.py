"""Text from names and values never acts on a terminal, and ordinary text is unchanged."""

import json
import re
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyaforest import StreamingMPF
from polyaforest.cli import _reports as report
from polyaforest.io.errors import BadInput
from polyaforest.io.json_values import to_json
from polyaforest.tables.validation import NamedRows
from polyaforest.util.text import json_shown, label, printable, width

pytestmark = pytest.mark.property

ANYTHING = st.text(st.characters())  # surrogates, too
HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
OURS = re.compile(r"\x1b\[(0|1|31)m")
JOINER = "\u200d"


def acting(text: str) -> set[str]:
    """Return the invisible characters of a text."""
    return {char for char in text if unicodedata.category(char) in HIDDEN}


@given(ANYTHING)
def test_printable_text_is_one_line_without_control_characters(text):
    assert acting(printable(text)) <= {JOINER}
    assert len(printable(text)) >= len(text)
    assert printable(printable(text)) == printable(text)
    assert acting(label(text, 20)) <= {JOINER}
    assert len(label(text, 20)) <= 20


@pytest.mark.parametrize(
    "text",
    ["", "Pólya", "σ² ≤ 3", "日本語", "עברית", "हिन्दी", "a b\u00a0c", "👩‍💻", "👩🏽‍🚀", "❤️‍🔥", "$a^$", "\\x1b", "é"],
)
def test_ordinary_text_is_unchanged(text):
    assert printable(text) == label(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[31m\x07", r"a\x1b[31m\x07"),
        ("a\nb\tc\r", r"a\nb\tc\r"),
        ("\x7f\x9b31m", r"\x7f\x9b31m"),
        ("\u202eabc\u2066", r"\u202eabc\u2066"),
        ("a\u200db\u200cc\ufeff", r"a\u200db\u200cc\ufeff"),
        ("\u2028\u2029\udcff", r"\u2028\u2029\udcff"),
        ("\ue000\U000e0041\U0010ffff", r"\ue000\U000e0041\U0010ffff"),
    ],
)
def test_control_characters_are_escaped(text, shown):
    assert printable(text) == shown


def test_long_names_keep_both_ends():
    assert label("a" * 100 + "z" * 100, 9) == "aaaaa…zzz"
    assert len(label("\x1b" * 10_000_000)) == 80  # and quickly


def test_width_matches_terminal():
    assert [width(text) for text in ("abc", "日本", "e\u0301", "👩", "Pólya")] == [3, 4, 1, 2, 5]


@given(st.recursive(ANYTHING, lambda inner: st.lists(inner) | st.dictionaries(ANYTHING, inner)))
def test_escaped_json_is_equivalent_and_safe(value):
    shown = json_shown(json.dumps(value, ensure_ascii=False))
    assert acting(shown) == set()
    assert json.loads(shown) == json.loads(json.dumps(value))


@given(st.dictionaries(st.text(), st.text()))
def test_json_lines_are_exact(fields):
    line = to_json(fields)
    assert json.loads(line) == fields
    assert acting(line.decode()) == set()


# ---- reports ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def explained():
    rows = np.random.default_rng(0).normal(size=(200, 2))
    forest = StreamingMPF(n_estimators=5, random_state=0, window=200).fit(rows)

    def explain(*names):
        named = NamedRows(np.array([[9.0, 0.0]]), names)
        forest.feature_names_in_ = named.names
        return forest.explain(named)[0]

    return explain


@given(ANYTHING, ANYTHING, ANYTHING)
def test_reports_and_explanations_have_expected_lines(explained, name, key, other):
    hostile = explained(name, other)
    finding = report.Finding(1, -9.0, 0.1, None, key, name, explanation=hostile, missing=(other,))
    summary = report.RunSummary(9, 1, 1, False, None, by=name or "k", n_partitions=1)
    harmless = explained("a", "b")
    plain = report.report(summary._replace(by="k"), [finding._replace(partition="k", id="i", explanation=harmless)])
    text = report.report(summary, [finding])
    assert acting(OURS.sub("", text)) <= {"\n", JOINER}
    assert text.count("\n") == plain.count("\n")
    assert acting(str(hostile)) <= {"\n", JOINER}
    assert acting(hostile.to_json()) == set()
    assert hostile.names[0] == name
    assert acting(str(BadInput(f"no column {name}"))) <= {JOINER}
