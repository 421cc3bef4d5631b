"""Sessions of Spark on this machine."""

from __future__ import annotations

import os
import sys
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.shared.pages import ROOT

SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}


def new_session(n_workers: int | str, **settings: str) -> Any:
    """Return a session with some workers, "*" for all cores; a setting has its dots written as underscores."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    builder = SparkSession.builder.master(f"local[{n_workers}]")
    for name, value in {**SETTINGS, **settings}.items():
        builder = builder.config(name.replace("_", "."), value)
    return builder.getOrCreate()
