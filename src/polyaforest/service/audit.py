"""The audit log of a stream: who gave feedback, deleted records or changed settings."""

from __future__ import annotations

import sqlite3
import time as clock
from typing import Any

from polyaforest.io.json_values import to_json

__all__ = ["log"]


def log(file: sqlite3.Connection, who: str, action: str, facts: dict[str, Any]) -> None:
    """Add an entry to the audit log, in the transaction of the action."""
    row = (clock.time(), who, action, to_json(facts))
    file.execute("INSERT INTO audit (at, who, action, facts) VALUES (?, ?, ?, ?)", row)
