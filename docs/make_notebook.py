"""Write examples/walkthrough.ipynb: the cells below, run in order, with what they show."""

from __future__ import annotations

import ast
import contextlib
import io
import json
from pathlib import Path
from typing import Any

PATH = Path(__file__).resolve().parent.parent / "examples" / "walkthrough.ipynb"

# texts in Markdown, and code
CELLS = [
    (
        "text",
        """# From a table to findings

This notebook finds planted errors in a table of payments, explains them, follows a series, and compares two months.
It needs `polyaforest` and polars only.""",
    ),
    (
        "code",
        """import numpy as np
import polars as pl

from polyaforest import SeriesMPF, StreamingMPF

rng = np.random.default_rng(29)
n = 2000
country = rng.choice(["DE", "FR", "US"], n, p=[0.5, 0.3, 0.2])
payments = pl.DataFrame(
    {
        "country": country,
        "currency": np.where(country == "US", "USD", "EUR"),
        "items": rng.poisson(3, n) + 1,
    }
)
payments = payments.with_columns(amount=(pl.col("items") * pl.Series(rng.gamma(8, 3, n))).round(2))
payments[1200, "amount"] = 9_800.0  # a slip of the decimal point
payments[1700, "currency"] = "GBP"  # a currency that no other payment has
payments.describe()""",
    ),
    (
        "text",
        """## Detect

`fit` learns the table, without scaling or encoding. `detect` scores its rows: the flagged ones are shown, the most
anomalous first.""",
    ),
    (
        "code",
        """forest = StreamingMPF(categorical_features=["country", "currency"], random_state=0).fit(payments)
found = forest.detect(payments)
found""",
    ),
    ("text", """`to_frame` returns a frame of the library of the rows, to join with them:"""),
    (
        "code",
        """findings = pl.concat([payments.with_row_index("row"), found.to_frame()], how="horizontal")
findings.filter("is_anomaly").sort("score").head(4)""",
    ),
    (
        "text",
        """## Explain

Each explanation says how unlikely a row is, which columns make it so, in bits that add up, and what would have been
normal.""",
    ),
    (
        "code",
        """worst = findings.filter("is_anomaly").sort("score")["row"].head(3)
forest.explain(payments[worst])""",
    ),
    (
        "text",
        """## Follow a series

`detect_then_learn` scores each reading against earlier ones, then learns it. Readings go up and down with the hour of
the day; the one at noon of day 25 would be usual at any other hour.""",
    ),
    (
        "code",
        """hours = np.arange(24 * 28)
load = 50 + 30 * np.sin(2 * np.pi * hours / 24) + rng.normal(0, 2, len(hours))
load[24 * 25 + 6] = 45.0
series = SeriesMPF(StreamingMPF(random_state=0))
seen = series.detect_then_learn(pl.DataFrame({"load": load}), times=1.7e9 + 3600 * hours, explain=True)
seen""",
    ),
    (
        "text",
        """## Compare

`compare` says whether two samples have one distribution, and where they differ.""",
    ),
    (
        "code",
        """from polyaforest.drift import compare

january, february = payments[: n // 2], payments[n // 2 :].with_columns(amount=pl.col("amount") * 1.3)
compare(january.select("items", "amount"), february.select("items", "amount"), random_state=0)""",
    ),
    (
        "text",
        """## Without Python

The command line does the same with files, and writes a page to send to colleagues:

```sh
polyaforest detect payments.csv --html report.html
polyaforest compare january.csv february.csv --html change.html
```""",
    ),
]


def notebook() -> dict[str, Any]:
    """Run the cells and return the notebook."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells, n_run = [], 0
    for k, (kind, source) in enumerate(CELLS):
        cell: dict[str, Any] = {"id": f"cell-{k}", "metadata": {}, "source": source.splitlines(keepends=True)}
        if kind == "text":
            cells.append({"cell_type": "markdown", **cell})
            continue
        n_run += 1
        cells.append({"cell_type": "code", "execution_count": n_run, **cell, "outputs": run(source, names, n_run)})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def run(source: str, names: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """Run the code of a cell; return its outputs: what it prints, and the value of its last expression."""
    body = ast.parse(source).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(body, []), "<cell>", "exec"), names)
        value = None if last is None else eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append(
            {"output_type": "stream", "name": "stdout", "text": printed.getvalue().splitlines(keepends=True)}
        )
    if value is not None:
        shown = {"text/plain": repr(value).splitlines(keepends=True)}
        if hasattr(value, "_repr_html_"):
            shown["text/html"] = value._repr_html_().splitlines(keepends=True)
        outputs.append({"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": shown})
    return outputs


def main() -> None:
    """Write the notebook."""
    PATH.write_text(json.dumps(notebook(), indent=1, ensure_ascii=False) + "\n", "utf-8")
    print(PATH)


if __name__ == "__main__":
    main()
