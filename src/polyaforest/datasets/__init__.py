"""Load, download or generate the data sets of the paper's experiments.

`load` returns a table, `load_series` a series of the Numenta Anomaly Benchmark (NAB). Both search a data directory (see
`data_directory`), then the user's cache directory. If neither holds the data set, they download a public copy of the
original, verify its checksum, and cache it. Mulcross and the two-dimensional toy sets are generated.

A data directory holds `<name>.npz` with the arrays X and y, alternative versions in `alt/`, and series with the arrays
t, value and label, either as `nab/<name>.npz` or all in `nab_all.npz` with keys `<series name>/<array>`.

The paper's table Speech is missing: no public copy was found.
"""

from __future__ import annotations

import numpy as np

from ._files import DownloadError, StoredAt, StrPath, data_directory, fetch, read_stored
from ._generators import TOYS, make_mulcross, make_toy
from ._registry import ALTERNATIVES, NAB, SERIES, SHORT_NAMES, TABLES, check_name, original
from ._tables import Dataset, Series, shingle, shingled

__all__ = [
    "ALTERNATIVES",
    "NAB",
    "SERIES",
    "TABLES",
    "TOYS",
    "Dataset",
    "DownloadError",
    "Series",
    "data_directory",
    "load",
    "load_series",
    "make_mulcross",
    "make_toy",
    "shingle",
    "shingled",
]


def load(name: str, data_dir: StrPath | None = None, *, download: bool = True) -> Dataset:
    """Load a table of `TABLES` or `ALTERNATIVES`, or generate one of `TOYS`.

    Parameters
    ----------
    name : str
        Name of the data set. "mulcross" is generated if it is not on disk.
    data_dir : path-like, optional
        Directory to search and to store downloads in, instead of the data directory and the cache.
    download : bool
        Whether to download a data set that is not on disk.

    Raises
    ------
    ValueError
        If the name is unknown.
    FileNotFoundError
        If the data set is not on disk and `download` is False.
    ImportError
        If a package required for the download is not installed.
    DownloadError
        If the download fails, or its checksum does not match.
    """
    check_name(name, (*TABLES, *ALTERNATIVES, *TOYS))
    if name in TOYS:
        return make_toy(name)
    place = StoredAt(f"alt/{name}.npz" if name in ALTERNATIVES else f"{name}.npz")
    arrays = read_stored([place], ("X", "y"), data_dir)
    if arrays is None and name == "mulcross":
        return make_mulcross()
    X, y = arrays or fetch(name, original(name), place, ("X", "y"), data_dir, download)
    return Dataset(name, np.ascontiguousarray(X, np.float64), y.astype(np.int8))


def load_series(name: str, data_dir: StrPath | None = None, *, download: bool = True) -> Series:
    """Load a series of NAB by its short name in `SERIES` or its full name in `NAB`.

    A full name is the path of a file in NAB's data without `.csv`, such as "realKnownCause/nyc_taxi". Parameters and
    errors are those of `load`.
    """
    check_name(name, (*SERIES, *NAB))
    full = SHORT_NAMES.get(name, name)
    alone = StoredAt(f"nab/{full}.npz")
    keys = ("t", "value", "label")
    arrays = read_stored([StoredAt(f"nab/{name}.npz"), StoredAt("nab_all.npz", f"{full}/"), alone], keys, data_dir)
    time, value, label = arrays or fetch(name, original(full), alone, keys, data_dir, download)
    return Series(name, time.astype(np.int64), value.astype(np.float64), label.astype(np.int8))
