"""Changed settings of streams that have data: each is applied, causes relearning, or is refused.

`KINDS` lists what a change of each setting does. Models are saved with their settings, so a start, `--check` and a
reload compare the file with the same settings and reach the same plan.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any
from urllib.parse import quote

from polyaforest.io.errors import in_words
from polyaforest.io.records import RecordReader
from polyaforest.io.sources.prometheus import TIME
from polyaforest.judge import read_notes
from polyaforest.live.loop import check_notes
from polyaforest.service.config import ServerConfig, StreamConfig
from polyaforest.service.database import check_history
from polyaforest.service.relearn import records_to_learn

__all__ = ["KINDS", "Kind", "StreamPlan", "new_reader", "plan_stream", "server_changes", "stored_plan"]


class Kind(StrEnum):
    """What a change of a setting does."""

    APPLIED = "applied"  # takes effect at once; models are kept
    RELEARNED = "relearned"  # models are learned again from the history
    NEW_STREAM = "new stream"  # existing models and history would not fit
    AT_START = "at the next start"  # of the service


KINDS: dict[str, Kind] = {
    "server.host": Kind.AT_START,
    "server.port": Kind.AT_START,
    "server.data": Kind.AT_START,
    "server.read_token_file": Kind.AT_START,
    "server.admin_token_file": Kind.AT_START,
    "server.allowed_hosts": Kind.AT_START,
    "server.cors": Kind.AT_START,
    "server.max_body_mb": Kind.AT_START,
    "server.requests_per_second": Kind.AT_START,
    "server.header_timeout": Kind.AT_START,
    "server.body_timeout": Kind.AT_START,
    "server.session_age": Kind.AT_START,
    "server.feeds_per_address": Kind.AT_START,
    "server.trusted_proxies": Kind.AT_START,
    "server.key_labels": Kind.AT_START,
    "server.public_url": Kind.AT_START,
    "alerts": Kind.APPLIED,
    "streams": Kind.APPLIED,  # new streams start, removed ones stop; their files are kept
    # per stream
    "source": Kind.APPLIED,  # another source is read from its beginning
    "prometheus.url": Kind.APPLIED,
    "prometheus.queries": Kind.NEW_STREAM,
    "prometheus.by": Kind.NEW_STREAM,
    "prometheus.step": Kind.APPLIED,
    "prometheus.past": Kind.APPLIED,
    "prometheus.timeout": Kind.APPLIED,
    "prometheus.token_file": Kind.APPLIED,
    "format": Kind.APPLIED,
    "columns": Kind.NEW_STREAM,  # unless they name what was detected, as for `time` and `by`
    "time": Kind.NEW_STREAM,
    "by": Kind.NEW_STREAM,
    "id": Kind.APPLIED,  # applies to later records
    "series": Kind.RELEARNED,
    "shingle": Kind.RELEARNED,
    "difference": Kind.RELEARNED,
    "calendar": Kind.RELEARNED,
    "window": Kind.RELEARNED,
    "trees": Kind.RELEARNED,
    "seed": Kind.RELEARNED,
    "false_alarm_rate": Kind.APPLIED,
    "merge": Kind.APPLIED,
    "band": Kind.APPLIED,
    "silence": Kind.APPLIED,
    "close_after": Kind.APPLIED,
    "max_ahead": Kind.APPLIED,
    "memory_mb": Kind.APPLIED,
    "save_records": Kind.APPLIED,
    "save_every": Kind.APPLIED,
    "retention.records": Kind.APPLIED,
    "retention.age": Kind.APPLIED,
    "gates.direction": Kind.APPLIED,
    "gates.smallest_absolute": Kind.APPLIED,
    "gates.smallest_relative": Kind.APPLIED,
    "gates.valid": Kind.APPLIED,
    "mute": Kind.APPLIED,
    "maintenance": Kind.APPLIED,
}
# names under which earlier versions saved settings
_OLD_NAMES = {"queries": "prometheus.queries", "seasons": "calendar", "calendars": "maintenance"}

Changed = dict[str, tuple[Any, Any]]  # settings before and after, by name


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
    return RecordReader(config.format, columns=config.columns, time=config.time, key=config.by, id=config.id)


def plan_stream(name: str, config: StreamConfig, notes: Mapping[str, Any]) -> StreamPlan:
    """Plan the start of a stream, given the notes saved with its models ({} if there are none)."""
    plan = StreamPlan(name, config, config, is_new=not notes)
    if not notes:
        return plan
    check_notes(notes, f"{name}.models")
    stored = {_OLD_NAMES.get(name, name): value for name, value in notes["settings"].items()}
    state, now = notes["reader"], config.settings
    if isinstance(config.window, timedelta) and stored.get("window") == f"{config.window.total_seconds():g}s":
        stored["window"] = now["window"]  # earlier versions rounded to six digits
    if state["settled"]:
        plan.refused = dict(_refusals(config, state, stored))
        plan.reader = _continued_reader(config, state)
    else:  # no record was learned
        plan.reader = new_reader(config).state()
    for setting, value in now.items():
        if setting not in stored or stored[setting] == value or setting in plan.refused:
            continue
        is_learned_again = KINDS[setting] is Kind.RELEARNED and state["settled"]
        (plan.relearned if is_learned_again else plan.applied)[setting] = (stored[setting], value)
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


# ---- the reader ------------------------------------------------------------------------------------------------------


def _refusals(config: StreamConfig, state: Mapping[str, Any], stored: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the settings that do not fit the stored records, with the reasons."""
    wanted, table = new_reader(config), "" if config.prometheus is None else "prometheus."
    queries = stored.get("prometheus.queries"), config.settings.get("prometheus.queries")
    if wanted.names and wanted.names != state["names"]:
        setting = "columns" if config.prometheus is None else "prometheus.queries"
        yield setting, f"models and history have the columns {in_words(state['names'])}, not {in_words(wanted.names)}"
    elif None not in queries and queries[0] != queries[1]:
        yield "prometheus.queries", "the columns in the history came from different queries"
    if wanted.time is not None and wanted.time != state["time"]:
        former = f"have their times in {state['time']!r}" if state["time"] is not None else "have no times"
        yield "time", f"stored records {former}, but time is now {wanted.time!r}"
    if wanted.key != state["key"]:
        before = f"each {state['key']!r} has a model" if state["key"] is not None else "all records share one model"
        after = "none" if wanted.key is None else repr(wanted.key)
        yield f"{table}by", f"{before} and history, but by is now {after}"
    if wanted.id is not None and wanted.id in state["names"]:
        yield "id", f"the field {wanted.id!r} is a column of the models"


def _continued_reader(config: StreamConfig, state: dict[str, Any]) -> dict[str, Any]:
    """Return the reader state of an existing stream; it keeps the detected columns."""
    wanted = new_reader(config)
    if wanted.format not in ("auto", state["format"]):
        known = {"columns": state["names"], "time": state["time"], "key": state["key"]}
        return RecordReader(wanted.format, **known, id=wanted.id).state()
    return {**state, "id": wanted.id}


# ---- words -----------------------------------------------------------------------------------------------------------


def _in_words(changed: Changed) -> str:
    return ", ".join(f"{name} = {after!r} (was {before!r})" for name, (before, after) in changed.items())
