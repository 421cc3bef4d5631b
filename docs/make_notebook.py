"""Write the notebooks in examples/: the cells below, run in order, with what they show."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
CODE = re.compile(r"^```python\n(.*?)\n```$", re.M | re.S)

# Markdown, in which each block of Python is a cell of code
WALKTHROUGH = """\
# From a table to findings

This notebook finds planted errors in a table of payments, explains them, follows a series, and compares two months.
It needs `polyaforest` and polars only.

```python
import numpy as np
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
payments.describe()
```

## Detect

`fit` learns the table, without scaling or encoding. `detect` scores its rows: the flagged ones are shown, the most
anomalous first.

```python
forest = StreamingMPF(categorical_features=["country", "currency"], random_state=0).fit(payments)
found = forest.detect(payments)
found
```

`to_frame` returns a frame of the library of the rows, to join with them:

```python
findings = pl.concat([payments.with_row_index("row"), found.to_frame()], how="horizontal")
findings.filter("is_anomaly").sort("score").head(4)
```

## Explain

Each explanation says how unlikely a row is, which columns make it so, in bits that add up, and what would have been
normal.

```python
worst = findings.filter("is_anomaly").sort("score")["row"].head(3)
forest.explain(payments[worst])
```

## Follow a series

`detect_then_learn` scores each reading against earlier ones, then learns it. Readings go up and down with the hour of
the day; one of day 20 would be usual at another hour. Context windows, the readings that lead up to each one, notice
it; the short memory of a `SeriesMPF` looks for louder ones, and is off here.

```python
hours = np.arange(24 * 28)
load = 50 + 30 * np.sin(2 * np.pi * hours / 24) + rng.normal(0, 2, len(hours))
load[24 * 20 + 6] = 45.0
series = SeriesMPF(random_state=0, short_memory=False)
seen = series.detect_then_learn(pl.DataFrame({"load": load}), times=1.7e9 + 3600 * hours, explain=True)
seen
```

## Compare

`compare` says whether two samples have one distribution, and where they differ.

```python
from polyaforest.drift import compare

january, february = payments[: n // 2], payments[n // 2 :].with_columns(amount=pl.col("amount") * 1.3)
compare(january.select("items", "amount"), february.select("items", "amount"), random_state=0)
```

## Without Python

The command line does the same with files, and writes a page to send to colleagues:

```sh
polyaforest detect payments.csv --html report.html
polyaforest compare january.csv february.csv --html change.html
```
"""

SERVER_METRICS = """\
# Server metrics

A week of metrics of two web servers, with five planted incidents: find them in the table, then as they arrive, and
forecast the next hour.

```python
import polars as pl

from polyaforest import SeriesMPF, StreamingMPF
from polyaforest.datasets.demo import INCIDENTS, server_metrics
from polyaforest.series import find_events

week = pl.DataFrame(server_metrics()).with_columns(pl.col("timestamp").str.to_datetime(time_zone="UTC"))
for incident in INCIDENTS:
    print(incident.host, incident.start, incident.what)
week.head(3)
```

## In the table

Rows are compared with all others, whatever their time. The host is a category.

```python
metrics = week.drop("timestamp")
forest = StreamingMPF(categorical_features=["host"], random_state=0)
found = forest.fit(metrics).detect(metrics)
flagged = week.with_row_index("row").with_columns(found.to_frame()).filter("is_anomaly").sort("score")
flagged.head(8)
```

The reasons add up, in bits. A usual value may count too, if it is unusual beside the others.

```python
forest.explain(metrics[flagged["row"].head(3)])
```

## As they arrive

A `SeriesMPF` scores each reading of one host before it learns it. It needs no training: it scores from about the 24th
reading on, and finds the daily rhythm by itself. Two of the three incidents of this host touch these two metrics. An
alarm may last until the incident has left the last 96 readings.

```python
one = week.filter(host="web-1").select("timestamp", "requests", "latency_ms")
series = SeriesMPF(random_state=0)
seen = series.detect_then_learn(one.drop("timestamp"), times=one["timestamp"].dt.epoch("ms") / 1000, explain=True)
for event in find_events(seen.is_anomaly, seen.scores, merge=24):
    print(one["timestamp"][event.first], seen.explanations[event.first].summary)
```

## The next hour

```python
ahead = series.forecast(12)
pl.DataFrame({"expected requests": ahead.mean[:, 0], "from": ahead.low[:, 0], "to": ahead.high[:, 0]}).head(3)
```
"""

PAYMENTS = """\
# Payments with categories

Find wrong payments among 4,000: an amount that is too large, and common values that never occur together. Then score
new payments in a database, without Python.

```python
import numpy as np
import polars as pl

from polyaforest import GroupedMPF, StreamingMPF

rng = np.random.default_rng(8)
n = 4000
homes = {"Grocer": ("DE", "EUR", 13), "Bistro": ("FR", "EUR", 11), "Pub": ("GB", "GBP", 9), "Skis": ("CH", "CHF", 180)}
merchants = rng.choice(list(homes), n, p=[0.4, 0.3, 0.2, 0.1])
payments = pl.DataFrame(
    {
        "merchant": merchants,
        "country": [homes[name][0] for name in merchants],
        "currency": [homes[name][1] for name in merchants],
        "amount": [round(homes[name][2] * float(np.exp(rng.normal(0, 0.3))), 2) for name in merchants],
    }
)
payments[1000, "amount"] = 1_350.0  # two decimal places too far
payments[2000, "currency"] = "CHF"  # in Germany: each is common, the pair is not
payments[3000, "amount"] = None  # missing values need no care
payments.describe()
```

## Find and explain

```python
texts = ["merchant", "country", "currency"]
forest = StreamingMPF(categorical_features=texts, false_alarm_rate=0.001, random_state=0).fit(payments)
found = forest.detect(payments)
found
```

```python
forest.explain(payments[[1000, 2000]])
```

## The same rate of alarms everywhere

Rare merchants are unusual by themselves. `GroupedMPF` calibrates within groups, here at 1 % each:

```python
alone = StreamingMPF(categorical_features=["merchant", "currency"], false_alarm_rate=0.01, random_state=0)
grouped = GroupedMPF(alone, calibrate_by="country").fit(payments)
payments.with_columns(flagged=grouped.detect(payments).is_anomaly).group_by("country").agg(
    pl.len(), pl.col("flagged").mean().round(3)
).sort("country")
```

## In a database

`export` writes the model as SQL, with a view that scores the rows of a table.

```python
import sqlite3

database = sqlite3.connect(":memory:")
columns = "id INTEGER PRIMARY KEY, merchant TEXT, country TEXT, currency TEXT, amount REAL"
database.execute(f"CREATE TABLE payments ({columns})")
new = [("Grocer", "DE", "EUR", 14.2), ("Grocer", "DE", "EUR", 1420.0), ("Skis", "CH", "EUR", 190.0)]
database.executemany("INSERT INTO payments (merchant, country, currency, amount) VALUES (?, ?, ?, ?)", new)
database.executescript(forest.export("sql", dialect="sqlite", table="payments"))
verdicts = database.execute("SELECT is_anomaly FROM polyaforest_scores ORDER BY id").fetchall()
database.close()
is_anomaly = pl.Series([bool(verdict) for (verdict,) in verdicts])
pl.DataFrame(new, orient="row", schema=payments.schema).with_columns(is_anomaly=is_anomaly)
```
"""

SENSOR_DRIFT = """\
# Sensor drift

A thermometer of a cooling unit ages: from day 20 on it reads too low, by more each day. No single reading is unusual.
Notice it, say since when, and keep finding what is unusual.

```python
import numpy as np
import polars as pl

from polyaforest import StreamingMPF
from polyaforest.drift import DriftMonitor, compare

rng = np.random.default_rng(4)
n, aging = 40 * 48, 20 * 48  # forty days, a reading every half hour
power = rng.gamma(9, 20, n)
readings = pl.DataFrame(
    {
        "power": power,
        "temperature": 4 + 0.01 * power + rng.normal(0, 0.4, n) - np.clip(np.arange(n) - aging, 0, None) / 480,
    }
)
readings[1500, "power"] = 900.0  # one true incident
times = 1_759_276_800 + 1800 * np.arange(n)  # from 1 October 2025 on
readings.describe()
```

## When

`DriftMonitor` compares the last readings with the first 512, and reports a change once it is certain enough: here, one
false alarm a year is expected. It adopts a lasting change as the new normal, and then notices that the drift continues.

```python
monitor = DriftMonitor(reference=512, false_alarms_every="365 days", random_state=0)
changes = monitor.update(readings, times=times)
for change in changes:
    print(change)
```

## Where

`compare` says how much two weeks differ, and in which features.

```python
first, last = readings[: 7 * 48], readings[-7 * 48 :]
compare(first, last, random_state=0)
```

## Live on

A window forgets: a detector of the last five days adapts to a slow drift without being asked, and still finds the
incident.

```python
forest = StreamingMPF(window=240, false_alarm_rate=0.001, random_state=0)
found = forest.detect_then_learn(readings, explain=True)
found
```
"""

NOTEBOOKS = {
    "walkthrough": WALKTHROUGH,
    "server-metrics": SERVER_METRICS,
    "payments": PAYMENTS,
    "sensor-drift": SENSOR_DRIFT,
}


def cells_of(text: str) -> list[tuple[str, str]]:
    """Split a notebook into cells of text and of code."""
    parts = [part.strip("\n") for part in CODE.split(text)]
    return [(kind, part) for part, kind in zip(parts, ["text", "code"] * len(parts), strict=False) if part]


def path_of(name: str) -> Path:
    """Return the file of a notebook."""
    return EXAMPLES / f"{name}.ipynb"


def notebook(text: str) -> dict[str, Any]:
    """Run the cells and return the notebook."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells, n_run = [], 0
    for k, (kind, source) in enumerate(cells_of(text)):
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
    """Write the notebooks, or those that are named."""
    for name in sys.argv[1:] or NOTEBOOKS:
        path_of(name).write_text(json.dumps(notebook(NOTEBOOKS[name]), indent=1, ensure_ascii=False) + "\n", "utf-8")
        print(path_of(name))


if __name__ == "__main__":
    main()
