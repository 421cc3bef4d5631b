"""The report of `compare` as one self-contained HTML page."""

from __future__ import annotations

import html
from base64 import b64encode
from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING

from polyaforest.cli._page import escaped, page
from polyaforest.util.text import label

if TYPE_CHECKING:
    from polyaforest.drift import Comparison

__all__ = ["comparison_page"]

_DOTS_PER_INCH = 140
_WORDS = {
    "rows that moved": "The smallest share of the rows of one file that would have to change to get the distribution "
    "of the other, with an interval that contains it nine times in ten.",
    "p": "The probability of such a difference if both files came from the same distribution.",
    "where": "Ranges and categories whose share of the rows differs most between both files.",
    "bits of evidence": "How much each column contributes to the evidence for a change.",
}


def comparison_page(result: Comparison, lines: Sequence[str] = (), command: str = "") -> str:
    """Return the page; `lines` say what was read and how."""
    settings = [f"p-values up to {result.alpha:g}", f"effects of at least {result.least_effect:g} of the rows"]
    settings += [f"{result.n_permutations} permutations"]
    settings += [f"blocks of {result.block_size} rows"] if result.block_size else []
    read = "".join(f"<p>{escaped(line)}</p>" for line in lines)
    words = "".join(f"<dt>{escaped(word)}</dt><dd>{escaped(text)}</dd>" for word, text in _WORDS.items())
    body = f"{result.to_html()}{_picture(result)}"
    body += f"<h2>What was read, and how</h2>{read}" if lines else ""
    body += f"<h2>How to read this page</h2><dl>{words}</dl>"
    body += f"<h2>Repeat it</h2><pre>{escaped(command)}</pre>" if command else ""
    return page(f"{' and '.join(map(label, result.samples))} compared", body, f"{', '.join(settings)}.")


def _picture(result: Comparison) -> str:
    """Return the chart of the regions as an inline image; empty without regions."""
    if not result.regions:
        return ""
    from matplotlib.figure import Figure

    from polyaforest.plots import shares

    figure = Figure(figsize=(8.4, 1.5 + 0.62 * len(result.regions)), layout="constrained")
    shares(result, ax=figure.subplots())
    file = BytesIO()
    figure.savefig(file, format="png", dpi=_DOTS_PER_INCH)
    words = html.escape("; ".join(map(str, result.regions)))
    return f'<p><img alt="{words}" src="data:image/png;base64,{b64encode(file.getvalue()).decode()}"></p>'
