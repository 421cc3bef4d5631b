"""Read files as people have them, and find and name the errors planted in them.

Twelve generated files, each written as a public table is: with its delimiters, dates, placeholders for missing values,
identifiers and labels, and with errors of the kind that the public table is known for. Writes results/files.csv, a row
per file, method and seed, and fills docs/benchmarks/files.md. A run resumes where it was interrupted; `--again`
measures methods again.
"""

from __future__ import annotations

import json
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import numpy as np
from sklearn.ensemble import IsolationForest
from tqdm import tqdm

from benchmarks.registry import Benchmark, again, of_rows
from benchmarks.shared.pages import PAGES, fill
from benchmarks.shared.pages import table as markdown
from benchmarks.shared.results import Results
from polyaforest.io.tables import Table, TableChunk, gather, open_table
from polyaforest.judge.table import DetectorSettings, TableDetector
from polyaforest.series.contexts import REACH

PAGE = "files"
KEYS = ("data", "method", "seed")
N_SEEDS = 3
N = 3000
START = datetime(2013, 1, 1)
Random = np.random.Generator
Columns = dict[str, list[Any]]


class File(NamedTuple):
    """A generated file.

    Attributes
    ----------
    content : str
    used : tuple of str
        The columns that an analyst would use, besides times.
    errors : dict
        The changed column of each row with a planted error, from 0.
    time : str or None
        The column of times, or the two of dates and times of day with a comma between.
    ignored : tuple of str
        Columns that a user leaves out, such as labels.
    is_series : bool
        Whether rows are readings of a time series.
    """

    content: str
    used: tuple[str, ...]
    errors: dict[int, str]
    time: str | None = None
    ignored: tuple[str, ...] = ()
    is_series: bool = False


# ---- files -----------------------------------------------------------------------------------------------------------


def csv_of(columns: Columns, delimiter: str = ",") -> str:
    """Return columns as CSV, with quotes where a cell has a delimiter."""
    rows = zip(*columns.values(), strict=True)
    lines = [list(columns), *([f'"{cell}"' if delimiter in str(cell) else str(cell) for cell in row] for row in rows)]
    return "\n".join(delimiter.join(line) for line in lines) + "\n"


def rounded(values: Any, digits: int = 2) -> list[Any]:
    """Return rounded numbers, whole ones as integers."""
    return [round(float(value), digits) if digits else round(float(value)) for value in values]


def of(rng: Random, levels: str, shares: Sequence[float], n: int = N) -> list[str]:
    """Return levels, given as words, in random order."""
    return rng.choice(levels.split(), n, p=shares).tolist()


def sometimes(rng: Random, cells: list[Any], value: Any, share: float) -> list[Any]:
    """Return cells, a share of them replaced."""
    return [value if hit else cell for cell, hit in zip(cells, rng.random(len(cells)) < share, strict=True)]


def places(rng: Random, n: int, most: int = N) -> list[int]:
    """Return rows for errors, further from each other than an error reaches in a series."""
    rows = rng.choice(np.arange(200, most - 100, 150), n, replace=False) + rng.integers(0, 50, n)
    return [int(row) for row in rows]


def planted(columns: Columns, where: Iterable[int], changes: Sequence[tuple[str, Any]]) -> dict[int, str]:
    """Write errors into columns, the changes in turn; a function changes the cell."""
    errors = {}
    for k, row in enumerate(where):
        name, value = changes[k % len(changes)]
        columns[name][row] = value(columns[name][row]) if callable(value) else value
        errors[row] = name
    return errors


def diamonds(rng: Random) -> File:
    """Stones whose sizes follow from their weight; some sizes are 0 or have a slip of the decimal point."""
    carat = np.exp(rng.normal(-0.4, 0.5, N))
    width = 6.4 * np.cbrt(carat) * rng.normal(1, 0.01, N)
    columns: Columns = {
        "": list(range(1, N + 1)),
        "carat": rounded(carat),
        "cut": of(rng, "Ideal Premium Good Fair", [0.45, 0.3, 0.2, 0.05]),
        "color": of(rng, "D E F G H", [0.2] * 5),
        "depth": rounded(rng.normal(61.7, 1.3, N), 1),
        "price": rounded(np.exp(7.9 + 1.7 * np.log(carat) + rng.normal(0, 0.2, N)), 0),
        "x": rounded(width),
        "y": rounded(width * rng.normal(1, 0.005, N)),
        "z": rounded(width * rng.normal(0.617, 0.01, N)),
    }
    slip = lambda size: round(10 * size, 1)  # noqa: E731
    errors = planted(columns, places(rng, 12), [("z", 0.0), ("y", slip), ("z", slip), ("x", 0.0)])
    return File(csv_of(columns), ("carat", "cut", "color", "depth", "price", "x", "y", "z"), errors)


def housing(rng: Random) -> File:
    """Districts with a category that begins like a number, and gaps; some incomes or ages are impossible."""
    rooms = rng.gamma(3, 700, N)
    columns: Columns = {
        "longitude": rounded(rng.normal(-119.5, 2, N)),
        "housing_median_age": rounded(rng.integers(1, 52, N), 0),
        "total_rooms": rounded(rooms, 0),
        "total_bedrooms": sometimes(rng, rounded(rooms * rng.normal(0.2, 0.02, N), 0), "", 0.01),
        "median_income": rounded(np.exp(rng.normal(1.2, 0.4, N)), 4),
        "ocean_proximity": sometimes(rng, of(rng, "INLAND COAST BAY", [0.6, 0.2, 0.2]), "<1H OCEAN", 0.4),
    }
    used = tuple(columns)
    changes = [("median_income", 90.0), ("housing_median_age", 199), ("total_bedrooms", 39_000)]
    return _written(columns, used, planted(columns, places(rng, 9), changes))


def _written(columns: Columns, used: tuple[str, ...], errors: dict[int, str], **roles: Any) -> File:
    """Return a file of columns that hold their errors."""
    return File(csv_of(columns, roles.pop("delimiter", ",")), used, errors, **roles)


def air_quality(rng: Random) -> File:
    """Hourly sensors: a date and a time of day, decimal commas, -200 for no value; some readings are far off."""
    hours = np.arange(N)
    day = np.sin(2 * np.pi * hours / 24)
    moments = [START + timedelta(hours=int(hour)) for hour in hours]
    readings = {
        "CO(GT)": rounded(2 + 0.8 * day + rng.normal(0, 0.2, N), 1),
        "PT08.S1(CO)": rounded(1100 + 200 * day + rng.normal(0, 40, N), 0),
        "T": rounded(18 + 6 * day + rng.normal(0, 0.8, N), 1),
        "RH": rounded(50 - 12 * day + rng.normal(0, 2, N), 1),
    }
    errors = planted(readings, places(rng, 9), [("T", 95.0), ("CO(GT)", 31.0), ("RH", 3.0)])
    columns: Columns = {"Date": [f"{one:%d/%m/%Y}" for one in moments], "Time": [f"{one:%H.%M.%S}" for one in moments]}
    for name, cells in readings.items():
        gaps = sometimes(rng, cells, -200, 0.02)
        kept = [cell if row in errors else gap for row, (cell, gap) in enumerate(zip(cells, gaps, strict=True))]
        columns[name] = [str(cell).replace(".", ",") for cell in kept]
    text = csv_of(columns, ";").replace("\n", ";;\n") + ";" * 7 + "\n"
    return File(text, tuple(readings), errors, "Date,Time", is_series=True)


def weather(rng: Random) -> File:
    """Observations of airports; a wind of 1,048 miles an hour, a pressure of 0, a humidity beyond 100."""
    moments = [START + timedelta(hours=i // 3) for i in range(N)]
    temperature = 50 + 25 * np.sin(2 * np.pi * np.arange(N) / N) + rng.normal(0, 6, N)
    columns: Columns = {
        "origin": ["EWR", "JFK", "LGA"] * (N // 3),
        "temp": rounded(temperature, 1),
        "humid": rounded(rng.normal(60, 12, N).clip(10, 100), 1),
        "wind_speed": rounded(rng.gamma(4, 2.5, N), 1),
        "pressure": sometimes(rng, rounded(rng.normal(1017, 7, N), 1), "NA", 0.1),
        "time_hour": [f"{one:%Y-%m-%dT%H:%M:%SZ}" for one in moments],
    }
    changes = [("wind_speed", 1048.4), ("pressure", 0.0), ("humid", 160.0)]
    used = ("origin", "temp", "humid", "wind_speed", "pressure")
    return _written(columns, used, planted(columns, places(rng, 6), changes), time="time_hour")


def rentals(rng: Random) -> File:
    """Hourly rentals with epochs in milliseconds and booleans; some counts are tenfold, a humidity is 0."""
    hours = np.arange(N)
    day = np.sin(2 * np.pi * hours / 24)
    columns: Columns = {
        "timestamp_ms": [1_357_000_000_000 + 3_600_000 * int(hour) for hour in hours],
        "casual": rounded((40 + 25 * day + rng.normal(0, 5, N)).clip(0), 0),
        "registered": rounded((200 + 120 * day + rng.normal(0, 15, N)).clip(0), 0),
        "humidity": rounded(60 - 10 * day + rng.normal(0, 3, N), 1),
    }
    changes = [("registered", lambda n: 10 * n + 900), ("humidity", 0.0), ("casual", 600)]
    used = ("casual", "registered", "humidity")
    return _written(columns, used, planted(columns, places(rng, 9), changes), time="timestamp_ms", is_series=True)


def months(rng: Random) -> File:
    """Return a monthly series from 1749 on, with months as dates; some values are exchanged or tenfold."""
    t = np.arange(N)
    values = rounded((70 + 55 * np.sin(2 * np.pi * t / 132) + rng.normal(0, 4, N)).clip(0), 1)
    columns: Columns = {"Month": [f"{1749 + i // 12}-{i % 12 + 1:02d}" for i in range(N)], "Sunspots": values}
    errors = planted(columns, places(rng, 6), [("Sunspots", lambda value: round(10 * value + 300, 1))])
    return _written(columns, ("Sunspots",), errors, time="Month", is_series=True)


def counties(rng: Random) -> File:
    """Count by county and day: numeric codes of counties, columns that begin late; negative and tenfold counts."""
    size = rng.gamma(2, 60, 30)
    own = np.arange(N) % 30
    cases = rng.poisson(size[own])
    columns: Columns = {
        "fips": [1001 + 2 * int(k) * 37 for k in rng.permutation(N)],
        "state": [f"S{k % 5}" for k in own.tolist()],
        "cases": cases.tolist(),
        "tests": rounded(12 * cases * rng.normal(1, 0.05, N) + 20, 0),
        "vaccinated": ["" if i < N // 2 else round(float(rng.normal(55, 6)), 1) for i in range(N)],
    }
    changes = [("cases", -750), ("tests", 90_000), ("cases", 9_999_999)]
    return _written(columns, ("state", "cases", "tests", "vaccinated"), planted(columns, places(rng, 6), changes))


def requests(rng: Random) -> File:
    """Return a log in the combined format; some answers are huge, and methods or codes that no other request has."""
    columns: Columns = {
        "method": of(rng, "GET POST", [0.9, 0.1]),
        "path": of(rng, "/ /cart /search /api/items", [0.4, 0.2, 0.3, 0.1]),
        "status": of(rng, "200 304 404", [0.9, 0.07, 0.03]),
        "bytes": rounded(np.exp(rng.normal(8, 0.5, N)), 0),
    }
    changes = [("bytes", 98_000_000), ("status", "507"), ("method", "TRACE")]
    errors = planted(columns, places(rng, 6), changes)
    lines = [
        f"10.{i % 251}.{i % 241}.{i % 239} - - [{START + timedelta(seconds=37 * i):%d/%b/%Y:%H:%M:%S} +0000] "
        f'"{method} {path}?q={i} HTTP/1.1" {status} {size} "-" "Mozilla/5.0"'
        for i, (method, path, status, size) in enumerate(zip(*columns.values(), strict=True))
    ]
    return File("\n".join(lines) + "\n", tuple(columns), errors, "time")


def census(rng: Random) -> File:
    """People with question marks for gaps and a label; weeks of 990 hours, an age of 320, a sector of its own."""
    columns: Columns = {
        "age": rounded(rng.gamma(9, 4.3, N).clip(17, 90), 0),
        "workclass": sometimes(rng, of(rng, "Private Government Self-employed", [0.7, 0.2, 0.1]), "?", 0.05),
        "education": of(rng, "HS-grad Bachelors Masters 9th-10th", [0.5, 0.3, 0.1, 0.1]),
        "capital_gain": [int(value) if value > 2000 else 0 for value in np.exp(rng.normal(5, 1.6, N))],
        "hours_per_week": rounded(rng.normal(40, 8, N).clip(4, 90), 0),
        "income": of(rng, "<=50K >50K", [0.75, 0.25]),
    }
    changes = [("hours_per_week", 990), ("age", 320), ("workclass", "Never-worked")]
    used = ("age", "workclass", "education", "capital_gain", "hours_per_week")
    return _written(columns, used, planted(columns, places(rng, 6), changes), ignored=("income",))


def passengers(rng: Random) -> File:
    """List passengers as a JSON array, with ids and names; an age of 280, a fare of 51,000."""
    columns: Columns = {
        "PassengerId": rng.permutation(N).tolist(),
        "Name": [f"Passenger, Mx. {i}" for i in range(N)],
        "Sex": of(rng, "male female", [0.6, 0.4]),
        "Age": rounded(rng.normal(32, 11, N).clip(1, 80), 0),
        "Fare": rounded(np.exp(rng.normal(3, 0.6, N)), 2),
        "Alone": [bool(one) for one in rng.random(N) < 0.6],
        "Embarked": of(rng, "S C Q", [0.7, 0.2, 0.1]),
    }
    errors = planted(columns, places(rng, 6), [("Age", 280), ("Fare", 51_000.0), ("Embarked", "X")])
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return File(json.dumps(rows, indent=1), ("Sex", "Age", "Fare", "Alone", "Embarked"), errors)


def penguins(rng: Random) -> File:
    """Measurements with units; some masses are in kilograms without saying so, some lengths in centimetres."""
    species = rng.integers(0, 3, N)
    columns: Columns = {
        "species": np.array(["Adelie", "Chinstrap", "Gentoo"])[species].tolist(),
        "bill": [f"{value:.1f} mm" for value in np.array([38.8, 48.8, 47.5])[species] + rng.normal(0, 2.5, N)],
        "flipper": [f"{value:.0f} mm" for value in np.array([190, 196, 217])[species] + rng.normal(0, 6, N)],
        "mass": [f"{value:.0f} g" for value in np.array([3700, 3730, 5080])[species] + rng.normal(0, 400, N)],
    }
    changes = [("mass", "4 g"), ("flipper", "2010 mm"), ("bill", "4 mm")]
    return _written(columns, tuple(columns), planted(columns, places(rng, 9), changes))


def retail(rng: Random) -> File:
    """Lines of invoices with numbers of invoices and customers; an order of 80,995 pieces, a price of 0.001."""
    columns: Columns = {
        "InvoiceNo": [536_365 + i // 8 for i in range(N)],
        "Quantity": rounded(np.exp(rng.normal(1.5, 0.8, N)).clip(1), 0),
        "InvoiceDate": [f"{START + timedelta(minutes=7 * i):%m/%d/%Y %H:%M}" for i in range(N)],
        "UnitPrice": rounded(np.exp(rng.normal(1, 0.4, N))),
        "CustomerID": sometimes(rng, rng.integers(12_346, 18_287, N).tolist(), "", 0.2),
        "Country": of(rng, "UK Germany France EIRE", [0.85, 0.06, 0.05, 0.04]),
    }
    changes = [("Quantity", 80_995), ("UnitPrice", 38_970.0), ("Country", "Unspecified")]
    errors = planted(columns, places(rng, 6), changes)
    return _written(columns, ("Quantity", "UnitPrice", "Country"), errors, time="InvoiceDate")


FILES: dict[str, Callable[[Random], File]] = {
    "diamonds": diamonds,
    "housing": housing,
    "air quality": air_quality,
    "weather": weather,
    "rentals": rentals,
    "months": months,
    "counties": counties,
    "requests": requests,
    "census": census,
    "passengers": passengers,
    "penguins": penguins,
    "retail": retail,
}
QUICK_DATA = ("diamonds", "census")


# ---- methods ---------------------------------------------------------------------------------------------------------


class Answer(NamedTuple):
    """What a method says.

    Attributes
    ----------
    scores : float array of shape (n,)
        Lower is more anomalous, NaN for rows without a verdict.
    named : dict
        The column that is named first for each row with an error; empty if the method names none.
    is_flagged : bool array of shape (n,) or None
        None if the method has no threshold.
    """

    scores: np.ndarray
    named: dict[int, str]
    is_flagged: np.ndarray | None = None


def by_detect(file: File, table: Table, rows: TableChunk, seed: int) -> Answer:
    """Return what `polyaforest detect` finds."""
    detector = TableDetector(rows, table.columns, DetectorSettings(seed=seed, n_jobs=1))
    found = detector.detect()
    why = detector.explain(sorted(file.errors))
    named = {row: one.readings[0].name for row, one in why.items() if one.readings}
    return Answer(found.scores, named, found.is_anomaly)


def by_isolation_forest(file: File, table: Table, rows: TableChunk, seed: int) -> Answer:
    """Return scores of an isolation forest on the columns as read, gaps filled by medians, categories one-hot."""
    parts = []
    for k, name in enumerate(table.columns.used):
        column = rows.rows[:, k]
        if name in table.columns.categories:
            parts.append((column[:, None] == np.unique(column[~np.isnan(column)])).astype(float))
        else:
            parts.append(np.where(np.isnan(column), np.nanmedian(column), column)[:, None])
    matrix = np.hstack(parts)
    return Answer(IsolationForest(random_state=seed).fit(matrix).score_samples(matrix), {})


METHODS = {"polyaforest": by_detect, "IsolationForest": by_isolation_forest}


# ---- measuring -------------------------------------------------------------------------------------------------------


def measure(data: str, method: str, seed: int) -> dict[str, float]:
    """Return whether a file is read as meant, the share of errors at the top, and the share whose column is named."""
    file = FILES[data](np.random.default_rng(seed))
    table, rows, is_read = opened(file, data)
    answer = METHODS[method](file, table, rows, seed)
    ranks = ranks_of(answer.scores, sorted(file.errors), REACH if file.is_series else 0)
    named = [answer.named.get(row) == column for row, column in file.errors.items()]
    return {
        "errors": len(file.errors),
        "read": float(is_read),
        "found": mean(float(rank <= 2 * len(file.errors)) for rank in ranks),
        "worst_rank": max(ranks),
        "named": mean(map(float, named)) if answer.named else float("nan"),
        "others_flagged": others(answer.is_flagged, sorted(file.errors), REACH if file.is_series else 0),
    }


def opened(file: File, name: str) -> tuple[Table, TableChunk, bool]:
    """Return a file as read, and whether it is read as intended."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_text(file.content, "utf-8")
        table = open_table([str(path)], categories=None, ignore=file.ignored)
        rows = gather(table.chunks())
    is_read = set(table.columns.used) == set(file.used) and table.columns.times == file.time
    return table, rows, is_read and len(rows.rows) == N and table.n_rejected == 0


def ranks_of(scores: np.ndarray, errors: Sequence[int], reach: int) -> list[int]:
    """Return the rank of each error among the findings: rows within `reach` of one belong to it."""
    ranks: dict[int, int] = {}
    taken = np.zeros(len(scores), bool)
    rank = 0
    for row in np.argsort(np.nan_to_num(scores, nan=np.inf), kind="stable").tolist():
        if taken[row]:
            continue
        rank += 1
        taken[max(row - reach, 0) : row + reach + 1] = True
        for error in errors:
            if abs(error - row) <= reach:
                ranks.setdefault(error, rank)
    return [ranks[error] for error in errors]


def others(is_flagged: np.ndarray | None, errors: Sequence[int], reach: int) -> float:
    """Return the number of flagged rows, or in a series of events, that no error is near; NaN without verdicts."""
    if is_flagged is None:
        return float("nan")
    scores = np.where(is_flagged, 0.0, 1.0)
    for error in errors:
        scores[max(error - reach, 0) : error + reach + 1] = 1.0
    rows = np.flatnonzero(scores == 0)
    return float(1 + (np.diff(rows) > reach).sum()) if len(rows) else 0.0


def run(results: Results, sets: Iterable[str], n_seeds: int) -> None:
    """Measure what the file of results lacks."""
    tasks = [(data, method, seed) for seed in range(n_seeds) for data in sets for method in METHODS]
    for data, method, seed in tqdm([task for task in tasks if task not in results], disable=None):
        results.add({"data": data, "method": method, "seed": seed, **measure(data, method, seed)})


# ---- the page --------------------------------------------------------------------------------------------------------


def mean_of(rows: Iterable[Mapping[str, str]], value: str, data: str, method: str) -> float:
    """Return the mean of a value over seeds."""
    return mean(float(row[value]) for row in rows if row["data"] == data and row["method"] == method)


def table_of(rows: Sequence[Mapping[str, str]]) -> str:
    """Return the table: means over seeds, by file."""
    lines = []
    for data in FILES:
        if not any(row["data"] == data for row in rows):
            continue
        ours, theirs = METHODS
        lines.append(
            [
                data,
                f"{mean_of(rows, 'errors', data, ours):.0f}",
                f"{mean_of(rows, 'read', data, ours):.0%}",
                f"{mean_of(rows, 'found', data, ours):.0%}",
                f"{mean_of(rows, 'found', data, theirs):.0%}",
                f"{mean_of(rows, 'worst_rank', data, ours):,.0f}",
                f"{mean_of(rows, 'worst_rank', data, theirs):,.0f}",
                f"{mean_of(rows, 'named', data, ours):.0%}",
                f"{mean_of(rows, 'others_flagged', data, ours):.1f}",
            ]
        )
    heads = ["file", "errors", "read as meant", "found", "found by iF", "worst rank", "worst rank of iF", "named"]
    return markdown([*heads, "others flagged"], lines)


def render(rows: Sequence[Mapping[str, str]], directory: Path = PAGES) -> None:
    """Fill the table of the page from the rows of the file."""
    fill(PAGE, "files", table_of(rows), directory)


def measure_all(options: Namespace, directory: Path) -> None:
    """Measure what the file lacks."""
    results = Results("files", KEYS, directory)
    results.forget_methods(options.again, ("polyaforest",))
    run(results, QUICK_DATA if options.quick else FILES, 1 if options.quick else N_SEEDS)


BENCHMARK = Benchmark(
    measure_all,
    of_rows(render, "files"),
    quick="two files and one seed",
    options={"--again": again(METHODS)},
)
