"""Records of runs, next to the results: date, versions of code and peers, and machine."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.shared.pages import ROOT
from benchmarks.shared.results import ADDED

ALWAYS = ("polyaforest", "numba", "numpy", "scikit-learn", "scipy")


@contextmanager
def recorded(name: str, peers: Iterable[str], directory: Path) -> Iterator[None]:
    """Append a record to ``NAME.json`` for a run that adds results, even if it is interrupted.

    A file of results can hold rows of several runs; each record says how many rows of each file it added.
    """
    before = ADDED.copy()
    record = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "code": {folder: digest(ROOT / folder) for folder in ("src", "benchmarks")},
        "versions": versions((*ALWAYS, *peers)),
        "machine": machine(),
    }
    try:
        yield
    finally:
        added = ADDED - before
        if added:
            path = directory / f"{name}.json"
            records = json.loads(path.read_text("utf-8")) if path.exists() else []
            records.append({**record, "added_rows": {file.name: n for file, n in added.items()}})
            path.write_text(json.dumps(records, indent=1) + "\n", "utf-8")


def digest(folder: Path) -> str:
    """Return a hash of all Python sources below a folder."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        found.update(f"{path.relative_to(folder).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


def versions(distributions: Iterable[str]) -> dict[str, str]:
    """Return the versions of those distributions that are installed."""
    found = {}
    for name in distributions:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """Return what decides how fast this machine is; nothing that identifies it."""
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }


def _processor() -> str:
    """Return the model of the processor, as far as the system says it."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
