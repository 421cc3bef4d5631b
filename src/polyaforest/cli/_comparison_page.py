"""The report of `compare` as one self-contained HTML page.

Everything from files is escaped, and the content security policy forbids scripts and external resources.
"""

from __future__ import annotations

import html
from base64 import b64encode
from io import BytesIO
from os.path import realpath
from typing import TYPE_CHECKING

from polyaforest import __version__
from polyaforest.util.text import label

if TYPE_CHECKING:
    from polyaforest.drift import Comparison

_DOTS_PER_INCH = 140
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; color: #222; }
h1 { font-size: 1.4em; } table { border-collapse: collapse; margin-bottom: 1.5em; }
th, td { padding: 0.25em 1.2em 0.25em 0; text-align: left; vertical-align: top; }
th { border-bottom: 1px solid #bbb; } img { max-width: 100%; }
footer { margin-top: 3em; color: #666; font-size: 0.9em; }
"""


def write_page(path: str, result: Comparison) -> None:
    """Write the report to a file, completely or not at all."""
    from polyaforest.storage.modelfile import replacing

    with replacing(realpath(path)) as file:
        file.write(page(result).encode("utf-8", "backslashreplace"))


def page(result: Comparison) -> str:
    """Return the page."""
    names = html.escape(" and ".join(map(label, result.samples)))
    settings = [f"p-values up to {result.alpha:g}", f"effects of at least {result.least_effect:g} of the rows"]
    settings += [f"{result.n_permutations} permutations"]
    settings += [f"blocks of {result.block_size} rows"] if result.block_size else []
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{names} compared</title><style>{_STYLE}</style></head>"
        f"<body><h1>{names} compared</h1>{_picture(result)}{result.to_html()}"
        f"<footer>polyaforest {__version__}: {', '.join(settings)}.</footer></body></html>\n"
    )


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
