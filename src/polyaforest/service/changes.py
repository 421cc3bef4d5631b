"""Changed settings of streams that have data: each is applied, causes relearning, or is refused.

`KINDS` lists what a change of each setting does. Models are saved with their settings, so a start, `--check` and a
reload compare the file with the same settings and reach the same plan.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from polyaforest.io.records import RecordReader
from polyaforest.io.sources.prometheus import TIME
from polyaforest.judge import read_notes
from polyaforest.judge.changes import Changed, find_changes
from polyaforest.judge.loop import check_notes
from polyaforest.service.config import PrometheusConfig, RetentionConfig, ServerConfig, StreamConfig
from polyaforest.service.database import check_history
from polyaforest.service.relearn import records_to_learn
from polyaforest.settings.stream import Effect, flat_settings

__all__ = ["KINDS", "StreamPlan", "new_reader", "plan_stream", "server_changes", "stored_plan"]


KINDS: dict[str, Effect] = {
    **{f"server.{name}": Effect.AT_START for name in ServerConfig.model_fields},
    "server.tokens": Effect.APPLIED,
    "alerts": Effect.APPLIED,
    "streams": Effect.APPLIED,  # new streams start, removed ones stop; their files are kept
    # per stream
    **{name: Effect(setting.effect) for name, setting in flat_settings(StreamConfig).items()},
    "source": Effect.APPLIED,  # another source is read from its beginning
    **{f"prometheus.{name}": Effect.APPLIED for name in PrometheusConfig.model_fields},
    "prometheus.queries": Effect.NEW_STREAM,
    "prometheus.by": Effect.NEW_STREAM,
    "metrics.fields": Effect.NEW_STREAM,
    "metrics.by": Effect.NEW_STREAM,
    "metrics.within": Effect.APPLIED,
    "metrics.wait": Effect.APPLIED,
    **{f"retention.{name}": Effect.APPLIED for name in RetentionConfig.model_fields},
}

# settings that name the columns and the key of the records of a source, by its table
_IN_TABLE = {
    "prometheus": {"columns": "prometheus.queries", "by": "prometheus.by"},
    "metrics": {"columns": "metrics.fields", "by": "metrics.by"},
}


@dataclass
class StreamPlan:
    """What starting with a configuration does to a stream."""

    name: str
    config: StreamConfig
    running: StreamConfig  # settings of the current models, some of them former until relearning ends
    is_new: bool = False
    applied: Changed = field(default_factory=dict)
    relearned: Changed = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)  # reasons, by setting
    reader: dict[str, Any] | None = None  # the state of the reader of records, if any were read

    def words(self, n_records: int | None = None) -> list[str]:
        """Describe the plan in sentences."""
        sentences = []
        if self.applied:
            sentences.append(f"applies {_in_words(self.applied)}")
        if self.relearned:
            stored = "" if n_records is None else f" ({n_records:,} record{'' if n_records == 1 else 's'})"
            sentences.append(
                f"relearns its models from its history{stored} because of {_in_words(self.relearned)}; the current "
                "models stay in use until then"
            )
        return sentences

    def problems(self) -> list[str]:
        """Return why the stream cannot use these settings, and what to do instead."""
        remedy = (
            f"its data in {self.name}.models and {self.name}.history is untouched: restore the former setting, or "
            f"start a new stream under another name, such as [streams.{self.name}-2]"
        )
        return [f"{reason}; {remedy}" for reason in self.refused.values()]


def new_reader(config: StreamConfig) -> RecordReader:
    """Return the record reader of a new stream."""
    if config.prometheus is not None:
        return RecordReader(columns=list(config.prometheus.queries), time=TIME, key=config.prometheus.by)
    if config.metrics is not None:
        return RecordReader("jsonl", columns=list(config.metrics.fields), time=TIME, key=config.metrics.key)
    return RecordReader(
        config.format,
        columns=config.columns,
        time=config.time,
        key=config.by,
        id=config.id,
        categories=config.categories or (),
        weight=config.weight,
    )


def plan_stream(name: str, config: StreamConfig, notes: Mapping[str, Any]) -> StreamPlan:
    """Plan the start of a stream, given the notes saved with its models ({} if there are none)."""
    plan = StreamPlan(name, config, config, is_new=not notes)
    if not notes:
        return plan
    check_notes(notes, f"{name}.models")
    found = find_changes(notes, config.settings, new_reader(config), KINDS, "models and history")
    plan.applied, plan.relearned, plan.reader = found.applied, found.relearned, found.reader
    plan.refused = found.refused
    for table, names in _IN_TABLE.items():
        if getattr(config, table) is None:
            continue
        plan.refused = {names.get(name, name): reason for name, reason in found.refused.items()}
        for one in names.values():
            if one in plan.applied and notes["reader"]["settled"]:
                plan.applied.pop(one)
                what = one.rpartition(".")[2]
                plan.refused.setdefault(one, f"the records in the history came from different {what}")
    plan.applied = {name: values for name, values in plan.applied.items() if name not in plan.refused}
    plan.running = config.with_settings({setting: before for setting, (before, _) in plan.relearned.items()})
    return plan


def stored_plan(folder: str, name: str, config: StreamConfig) -> tuple[StreamPlan, int]:
    """Plan the start of a stream from its files; return the plan and the number of records to relearn."""
    base = os.path.join(folder, name)
    history = f"{base}.history"
    if os.path.exists(history):
        check_history(history)
    notes = read_notes(f"{base}.models")[0] if os.path.exists(f"{base}.models") else {}
    plan = plan_stream(name, config, notes)
    if not plan.relearned or not os.path.exists(history):
        return plan, 0
    with closing(sqlite3.connect(f"file:{quote(os.path.abspath(history))}?mode=ro", uri=True)) as file:
        return plan, sum(records_to_learn(file, config).values())


def server_changes(before: ServerConfig, after: ServerConfig) -> list[str]:
    """Return the names of changed server settings."""
    return [name for name in ServerConfig.model_fields if getattr(before, name) != getattr(after, name)]


# ---- words -----------------------------------------------------------------------------------------------------------


def _in_words(changed: Changed) -> str:
    return ", ".join(f"{name} = {after!r} (was {before!r})" for name, (before, after) in changed.items())
