"""Code, docs, messages and tests use the words of the field (CONTRIBUTING.md, section Style)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("src", "tests", "docs", "benchmarks", "examples", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")
SUFFIXES = {".py", ".md", ".js", ".css", ".html", ".yml", ".yaml", ".toml"}
SKIPPED = {"axe", "golden", "results", "vendor"}  # data, and files of other projects
INSTEAD = {  # of words and phrases, as patterns; ~ is a gap
    "anew": "again; from scratch",
    "as~it~is|as~they~are": "unchanged; raw",
    "blame[ds]?|charge[ds]?": "attribute; attribution",
    "coins?|tossed": "random draw",
    "courses?": "context window",
    "deals?|dealt|dealing": "permute; permuted",
    "go(?:es)?~on": "continue",
    "has~it~that": "say it directly",
    "lays?|laid": "align; aligned",
    "lives?~here": "fall in this region",
    "nobody|whoever|none~of~them": "no process; the caller; no row",
    "overrule[ds]?": "override",
    "refuse_[a-z]+": "check_...",
    "rougher|roughness": "more volatile; volatility",
    "settle[ds]?": "finish; materialise; commit",
    "spells?": "run; run length",
    "strangers": "background points",
    "those~that~it~holds|what~it~is~made~of": "the points it holds; its parts",
    "told": "reported; distinguished",
    "understood": "interpreted as",
    "witness(?:es)?": "snapshot",
}
OF_DRIFT = {**INSTEAD, "bars": "alarm thresholds"}
GAP = r"(?:_|\s+(?:(?:#|//|\*)\s+)?)"  # within an identifier, or across the lines of a comment
KEPT = (  # patterns of allowed uses
    r'"(?:bars|blame|coins|settled|spell|forest\.spell)"|\bbars/(?:bars)?',  # names stored in files
    r"-courses\.mpf",  # files of earlier formats
    "of course",
    "lay[ _]out",  # of tables in memory and of pictures
    "its roughness is 1/4",  # of a kernel, in statistics
    "as (?:far|long|soon|well) as (?:it is|they are)",
    "as (?:it is|they are) [a-z]+",  # such as "as they are read"
)
FORMER = r"`[^`]*`"  # names in the changelog, old ones among them


def hits(text: str, *kept: str, instead_of: dict[str, str] = INSTEAD) -> Iterator[tuple[int, str, str]]:
    """Yield line number, word and replacement of each word to avoid, also within identifiers."""
    for pattern in (*KEPT, *kept):
        text = re.sub(pattern, lambda found: re.sub(r"\S", " ", found[0]), text, flags=re.I)
    text = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", text)  # parts of CamelCase are words too
    for words, instead in instead_of.items():
        pattern = rf"(?<![A-Za-z])(?:{words.replace('~', GAP)})(?![A-Za-z])"
        for found in re.finditer(pattern, text, re.I):
            yield text.count("\n", 0, found.start()) + 1, found[0], instead


def files() -> Iterator[Path]:
    """Yield the files to check."""
    for place in PLACES:
        path = ROOT / place
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            if file.suffix in SUFFIXES and not SKIPPED & set(file.relative_to(ROOT).parts) and file != Path(__file__):
                yield file


def test_words_to_avoid_do_not_occur():
    found = []
    for file in files():
        kept = [FORMER] if file.stem == "CHANGELOG" else []
        words = OF_DRIFT if "drift" in str(file.relative_to(ROOT)) else INSTEAD
        for line, word, instead in hits(file.read_text("utf-8"), *kept, instead_of=words):
            found.append(f"{file.relative_to(ROOT)}:{line}: {word!r}, use {instead!r}")
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "it is told",
        "def is_told_apart",
        "class CourseView",
        "left as it is.",
        "# the stream goes\n    # on",
        "refuse_x()",
        "none of\n  them",
        "Understood: a date",
    ],
)
def test_word_to_avoid_is_found(text):
    assert [line for line, _, _ in hits(text)] == [1]


@pytest.mark.parametrize("text", ["of course", 'header["spell"]', "as soon as it is ready", "rows as they are read"])
def test_ordinary_word_is_allowed(text):
    assert not list(hits(text))
