"""`polyaforest datasets`: list the public data sets, or export one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import click

from polyaforest.cli import _options as options


class DatasetSize(NamedTuple):
    """Size of a data set, known without loading it."""

    n_rows: int
    n_columns: int
    n_anomalies: int


# fmt: off
SIZES = {name: DatasetSize(*size) for name, size in {
    "thyroid": (3772, 6, 93), "mammography": (11183, 6, 260), "seismic": (2584, 11, 170),
    "satimage-2": (5803, 36, 71), "vowels": (1456, 12, 50), "musk": (3062, 166, 97), "http": (567498, 3, 2211),
    "smtp": (95156, 3, 30), "annthyroid": (7200, 6, 534), "arrhythmia": (452, 274, 66), "breastw": (683, 9, 239),
    "cardio": (1831, 21, 176), "ecoli": (336, 7, 9), "cover": (286048, 10, 2747), "glass": (214, 9, 9),
    "heart": (349, 44, 95), "ionosphere": (351, 33, 126), "letter": (1600, 32, 100), "lympho": (148, 18, 6),
    "mnist": (7603, 100, 700), "mulcross": (262144, 4, 26214), "optdigits": (5216, 64, 150),
    "pendigits": (6870, 16, 156), "pima": (768, 8, 268), "satellite": (6435, 36, 2036), "shuttle": (49097, 9, 3511),
    "vertebral": (240, 6, 30), "wbc": (378, 30, 21), "wine": (129, 13, 10), "yeast": (1363, 8, 64),
    "seismic15": (2584, 15, 170), "yeast_erl": (1484, 8, 5), "yeast_exc_vac": (1364, 8, 65),
    "at": (7267, 1, 726), "cpu": (18050, 1, 1499), "mt": (22695, 1, 2268), "nyc": (10320, 1, 1035),
    "ad_exchange": (1643, 1, 165), "aws_cloud_cpu": (4032, 1, 402), "google_tweets": (15842, 1, 1432),
    "rogue_hold": (1882, 1, 190), "rogue_updown": (5315, 1, 530), "speed": (2495, 1, 250),
    "single blob": (500, 2, 75), "two blobs tight": (500, 2, 75), "two blobs spread": (500, 2, 75),
    "moons": (500, 2, 75), "moon and blob": (500, 2, 75),
}.items()}
# fmt: on


_HELP = """List the public data sets, or export the one called NAME.

These are the tables and series of the paper's experiments. Files are downloaded if needed, and verified.

\b
Examples:
  polyaforest datasets
  polyaforest datasets thyroid --labels --out thyroid.csv
  polyaforest datasets speed | polyaforest detect --time timestamp --shingle 10 -
"""


@click.command(help=_HELP)
@click.argument("name", required=False)
@click.option("--out", metavar="FILE", default="-", help="File to write: .csv, .tsv, .parquet or .jsonl; - for stdout.")
@click.option(
    "--format", "format_", metavar="FORMAT", help="csv, tsv, parquet or jsonl.  [default: from the extension of --out]"
)
@click.option("--labels", is_flag=True, help="Add a column `label`: 1 for anomalies, 0 for others.")
@click.option("--data-dir", type=click.Path(file_okay=False), help="Directory with the data files.")
@click.option("--no-download", is_flag=True, help="Use local files only.")
def command(
    name: str | None, out: str, format_: str | None, labels: bool, data_dir: str | None, no_download: bool
) -> None:
    """Run `polyaforest datasets`."""
    if name is None:
        click.echo("\n".join(_listing()))
        return
    from polyaforest.io.results import Results

    columns = _columns(name, labels, data_dir, not no_download)
    with Results(out, format_) as results:
        results.write(columns)
    if out != "-":
        options.echo(f"Wrote {name} to {out}: {len(next(iter(columns.values()))):,} rows.")


def _listing() -> Iterator[str]:
    """Yield the lines of the list of data sets."""
    from polyaforest import datasets

    yield f"{'name':<18}{'rows':>9}{'columns':>9}{'anomalies':>11}"
    kinds = {
        "Tables": (*datasets.TABLES, *datasets.ALTERNATIVES),
        "Time series of the Numenta Anomaly Benchmark": datasets.SERIES,
        "Toy data in the plane": datasets.TOYS,
    }
    for kind, names in kinds.items():
        yield f"\n{kind}"
        for name in names:
            rows, columns, anomalies = SIZES[name]
            yield f"{name:<18}{rows:>9,}{columns:>9,}{anomalies:>11,}"
    yield f"\nAll {len(datasets.NAB)} series of the benchmark are available by full name, such as {datasets.NAB[-1]}."


def _columns(name: str, labels: bool, data_dir: str | None, download: bool) -> dict[str, Any]:
    """Return the columns of a data set, by name."""
    import numpy as np

    from polyaforest import datasets

    if name in (*datasets.SERIES, *datasets.NAB):
        series = datasets.load_series(name, data_dir, download=download)
        stamps = np.char.add(np.datetime_as_string(series.time.astype("datetime64[s]")), "Z").tolist()
        columns, label = {"timestamp": stamps, "value": series.value}, series.label
    else:
        table = datasets.load(name, data_dir, download=download)
        columns, label = {f"x{i}": column for i, column in enumerate(table.X.T, 1)}, table.y
    return {**columns, "label": label} if labels else columns
