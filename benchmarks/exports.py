"""Size of exported models, and how fast they score: JSON in Python and JavaScript, SQL, ONNX, beside the library.

Writes results/exports.csv. Files of isotree, if it is installed, are for comparison.
"""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
import subprocess
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.registry import Benchmark
from benchmarks.shared.results import write
from benchmarks.shared.timing import seconds
from polyaforest import BatchMPF, StreamingMPF
from polyaforest.export.scorer import Scorer

JAVASCRIPT = """
import {{ readFileSync }} from "node:fs";
import {{ Scorer }} from {script};
const [model, rows] = JSON.parse(readFileSync(0, "utf8"));
const scorer = new Scorer(model);
const began = performance.now();
rows.forEach((row) => scorer.scoreRow(row));
console.log((performance.now() - began) / 1000);
"""


def in_javascript(model: str, rows: list[list[float]]) -> float:
    """Return the seconds that Node takes to score rows."""
    program = JAVASCRIPT.format(script=json.dumps(str(files("polyaforest.export") / "scorer.js")))
    command = [shutil.which("node") or "node", "--input-type=module", "--eval", program]
    given = json.dumps([json.loads(model), rows])
    return float(subprocess.run(command, input=given, capture_output=True, text=True, check=True).stdout)


def in_sqlite(script: str, rows: list[list[float]]) -> float:
    """Return the seconds that SQLite takes to score rows."""
    with closing(sqlite3.connect(":memory:")) as database:
        return _in_database(database, database.executescript, script, rows)


def in_duckdb(script: str, rows: list[list[float]]) -> float:
    """Return the seconds that DuckDB takes to score rows."""
    import duckdb  # noqa: PLC0415

    with closing(duckdb.connect()) as database:
        return _in_database(database, database.execute, script, rows)


def _in_database(database: Any, run: Callable[[str], Any], script: str, rows: list[list[float]]) -> float:
    names = [f"x{k}" for k in range(len(rows[0]))]
    database.execute(f"CREATE TABLE rows (id INTEGER, {', '.join(f'{name} DOUBLE' for name in names)})")
    database.executemany(
        f"INSERT INTO rows VALUES ({', '.join('?' * (len(names) + 1))})", [[i, *row] for i, row in enumerate(rows)]
    )
    run(script)
    return seconds(lambda: database.execute("SELECT SUM(score) FROM polyaforest_scores").fetchall())


def exports(detector: Any, rows: np.ndarray) -> Iterator[tuple[str, bytes, float, int]]:
    """Yield name, file, seconds and number of rows of each way to score."""
    few, fewest = rows[:200].tolist(), rows[:50].tolist()
    own = detector.to_bytes()
    yield "library", own, seconds(lambda: detector.score_samples(rows)), len(rows)
    model = detector.export("json")
    scorer = Scorer(json.loads(model))
    yield "JSON, Python", model.encode(), seconds(lambda: [scorer.score_row(row) for row in few]), len(few)
    if shutil.which("node"):
        yield "JSON, JavaScript", model.encode(), in_javascript(model, few), len(few)
    script = detector.export("sql", dialect="sqlite")
    yield "SQL, SQLite", script.encode(), in_sqlite(script, fewest), len(fewest)
    if find_spec("duckdb"):
        script = detector.export("sql", dialect="duckdb")
        yield "SQL, DuckDB", script.encode(), in_duckdb(script, fewest), len(fewest)
    if find_spec("onnx") and find_spec("onnxruntime"):
        import onnxruntime  # noqa: PLC0415

        graph = detector.export("onnx")
        session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
        yield "ONNX", graph, seconds(lambda: session.run(["score"], {"X": rows})), len(rows)


def of_isotree(fitted: np.ndarray, rows: np.ndarray) -> Iterator[tuple[str, bytes, float, int]]:
    """Yield the exports of an isolation forest of isotree."""
    from isotree import IsolationForest  # noqa: PLC0415

    forest = IsolationForest(ntrees=100, random_seed=0, nthreads=1).fit(fitted)
    yield (
        "library",
        forest.to_bytes() if hasattr(forest, "to_bytes") else b"",
        seconds(lambda: forest.predict(rows)),
        len(rows),
    )
    yield "JSON", "".join(forest.to_json()).encode(), np.nan, 0
    yield "SQL", "".join(forest.generate_sql()).encode(), np.nan, 0


def measure_all(options: Namespace, directory: Path) -> None:
    """Measure all exports."""
    rng = np.random.default_rng(0)
    fitted, rows = rng.normal(size=(500 if options.quick else 20_000, 8)), rng.normal(size=(1000, 8))
    found = []
    n_trees = 5 if options.quick else 100
    detectors = StreamingMPF(n_estimators=n_trees, random_state=0), BatchMPF(n_estimators=n_trees, random_state=0)
    sources = {type(detector).__name__: exports(detector.fit(fitted), rows) for detector in detectors}
    if find_spec("isotree"):
        sources["isotree"] = of_isotree(fitted, rows)
    for name, ways in sources.items():
        for way, data, taken, n in ways:
            speed = n / taken if n else np.nan
            row = {
                "model": name,
                "export": way,
                "kB": len(data) / 1e3,
                "gzip_kB": len(gzip.compress(data)) / 1e3,
                "rows_per_s": speed,
            }
            found.append(row)
            print(
                f"{name:>14} {way:<18} {row['kB']:10.0f} kB {row['gzip_kB']:10.0f} kB {speed:12.0f} rows/s", flush=True
            )
    write("exports", found, directory)


BENCHMARK = Benchmark(measure_all, quick="small models")
