"""The tools of `polyaforest mcp`. Each answers with `sentences` that say why, and with numbers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import wraps
from http.client import HTTPException
from itertools import islice
from typing import Any, Literal, TypeVar

import click
import orjson

from polyaforest import __version__
from polyaforest.cli._compare import CompareOptions, compare_files
from polyaforest.cli._findings import Findings
from polyaforest.cli._reports import Finding, report
from polyaforest.cli._warmup import compile_first
from polyaforest.client import ApiError, Client, Event
from polyaforest.io.errors import BadInput
from polyaforest.io.json_values import to_json
from polyaforest.io.reading import Reading
from polyaforest.io.tables import Table, TableChunk, gather, open_table
from polyaforest.judge.table import DetectorSettings, TableDetector
from polyaforest.util.dates import stamp
from polyaforest.util.extras import extra

__all__ = ["new_server"]

Answer = dict[str, Any]
Tool = TypeVar("Tool", bound=Callable[..., Answer])

_MOST_FINDINGS = 50
_MOST_EVENTS = 200
_MOST_POINTS = 500
_MOST_LINES = 12  # of a comparison
_ABOUT = """Tools that find anomalies in files and in the streams of a running service, and that say why. Quote
`sentences` when you explain a finding. A finding has a `severity` from 1 to 5 and a `p_value`: the share of normal rows
that are at least as unusual. Rows are numbered from 1, without the header."""


def new_server(root: str, client: Client | None, *, has_feedback: bool) -> Any:
    """Return the server.

    Parameters
    ----------
    root : str
        Folder below which files may be read.
    client : Client or None
        Of a running service.
    has_feedback : bool
        Whether agents may label events.
    """
    with extra("polyaforest mcp", "mcp"):
        from mcp.server import MCPServer
        from mcp.types import ToolAnnotations
    server = MCPServer("polyaforest", instructions=_ABOUT, version=__version__, log_level="ERROR")
    reading = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    for tool in _file_tools(os.path.realpath(root)):
        server.tool(annotations=reading)(_reporting(tool))
    if client is not None:
        for tool in _service_tools(client):
            server.tool(annotations=reading)(_reporting(tool))
        for tool in _feedback_tools(client) if has_feedback else ():
            changing = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=True)
            server.tool(annotations=changing)(_reporting(tool))
    return server


def _reporting(tool: Tool) -> Tool:
    """Return a tool whose errors tell the agent what is wrong, and whose answer is plain JSON."""
    from mcp.server.mcpserver.exceptions import ToolError

    @wraps(tool)
    def reported(*values: Any, **given: Any) -> Answer:
        try:
            answer: Answer = orjson.loads(to_json(tool(*values, **given), orjson.OPT_SERIALIZE_NUMPY))
            return answer
        except click.ClickException as problem:
            raise ToolError(problem.format_message()) from None
        except (ApiError, ValueError) as problem:
            raise ToolError(str(problem)) from None
        except (OSError, HTTPException) as problem:
            raise ToolError(f"{type(problem).__name__}: {problem}. Is the service running?") from None

    return reported  # type: ignore[return-value]


# ---- files -----------------------------------------------------------------------------------------------------------


def _file_tools(root: str) -> list[Callable[..., Answer]]:
    """Return the tools that read files below a folder."""

    def place_of(file: str) -> str:
        path = os.path.realpath(os.path.join(root, file))
        if "://" in file or os.path.commonpath([path, root]) != root:
            raise BadInput(f"{file} is not below {root}: only files there may be read")
        return path

    def detect_anomalies(
        file: str, by: str | None = None, columns: list[str] | None = None, time: str | None = None, top: int = 10
    ) -> Answer:
        """Find the anomalous rows of a table (CSV, JSON lines, Parquet, Excel), the most severe first, with reasons.

        `by` names a column that partitions the rows, such as a host. Times and number formats are detected.
        """
        with _scored(place_of(file), by, columns, time) as (detector, whole, table):
            detected = detector.detect()
            found = Findings(table.columns, detector.settings, top=max(1, min(top, _MOST_FINDINGS)))
            found.too_small = detector.too_small
            found.add(detected)
            found.close()
            found.explain(detector.explain, whole.numbers)
            findings, summary = found.findings(), found.summary()
        text = click.unstyle(report(summary, findings))
        return {
            "sentences": [part for part in text.split("\n\n")[:1] if part],
            "report": text,
            "n_rows": summary.n_rows,
            "n_flagged": summary.n_flagged,
            "n_findings": summary.n_findings,
            "columns": table.columns.used,
            "is_series": bool(detector.settings.is_series),
            "findings": [_finding(one) for one in findings],
        }

    def explain_row(
        file: str, row: int, by: str | None = None, columns: list[str] | None = None, time: str | None = None
    ) -> Answer:
        """Explain why a row of a table is anomalous or normal, compared with all other rows of the table."""
        with _scored(place_of(file), by, columns, time) as (detector, whole, table):
            places = [place for place, number in enumerate(whole.numbers.tolist()) if number == row]
            if not places:
                raise BadInput(f"there is no row {row:,} that can be read: the table has {table.n_rows:,} rows")
            detector.detect()
            explanations = detector.explain(places)
        if not explanations:
            raise BadInput(f"row {row:,} cannot be scored: its partition has too few rows")
        why = explanations[places[0]]
        return {"sentences": _sentences(why), "row": row, **_numbers(why)}

    def compare_two_files(before: str, after: str, columns: list[str] | None = None) -> Answer:
        """Test whether two tables have the same distribution; say how far apart they are, and where."""
        places = (place_of(before), place_of(after))
        result = compare_files(
            CompareOptions(
                before=places[0],
                after=places[1],
                columns=columns,
                categories=None,
                time=None,
                format=None,
                ignore=None,
                reading=Reading(),
                strict=False,
                alpha=0.01,
                least_effect=0.01,
                block_size=None,
                permutations=199,
                seed=0,
                as_json=True,
                html=None,
                quiet=True,
            )
        )
        lines = [line.strip() for line in str(result).splitlines()[1:_MOST_LINES]]
        return {"sentences": [result.verdict, *filter(None, lines)], **orjson.loads(result.to_json())}

    return [detect_anomalies, explain_row, compare_two_files]


@contextmanager
def _scored(
    path: str, by: str | None, columns: Sequence[str] | None, time: str | None
) -> Iterator[tuple[TableDetector, TableChunk, Table]]:
    """Yield a detector of a table, the table's rows, and the table."""
    with closing(open_table([path], columns=columns, time=time, key=by, categories=None)) as table:
        compile_first("table", True)
        whole = gather(table.chunks())
        yield TableDetector(whole, table.columns, DetectorSettings()), whole, table


def _finding(one: Finding) -> Answer:
    """Return a finding of a file."""
    why = one.explanation
    facts = {
        "row": one.number,
        "time": None if one.time is None else stamp(one.time),
        "partition": one.partition,
        "first_row": one.first,
        "last_row": one.last,
        "n_flagged": one.n_flagged,
        "severity": one.severity,
        "p_value": one.p_value,
    }
    return facts if why is None else {"sentences": _sentences(why), **facts, **_numbers(why)}


def _sentences(why: Any) -> list[str]:
    """Return what an explanation says."""
    return [text for text in (why.verdict, why.summary, why.region) if text]


def _numbers(why: Any) -> Answer:
    """Return the numbers of an explanation."""
    facts = why.to_dict()
    names = ("surprise", "typical", "is_anomaly", "p_value", "readings")
    return {
        **{name: facts[name] for name in names if name in facts},
        "features": sorted(facts["features"], key=lambda one: -(one["bits"] or 0.0))[:10],
    }


# ---- the service -----------------------------------------------------------------------------------------------------


def _service_tools(client: Client) -> list[Callable[..., Answer]]:
    """Return the tools that read from a service."""

    def list_streams() -> Answer:
        """List the streams of the service: their fields, records, keys, open events and times."""
        streams = [one.raw for one in client.streams()]
        words = [
            f"{one['name']} has {one['n_records']:,} records of {one['n_keys']:,} keys and {one['n_open_events']} open "
            f"events; it is {'running' if one['is_ready'] else 'not running: ' + str(one['error'])}."
            for one in streams
        ]
        return {"sentences": words, "streams": streams}

    def list_events(
        stream: str | None = None,
        key: str | None = None,
        start: str | None = None,
        end: str | None = None,
        open: bool | None = None,
        min_severity: int = 1,
        limit: int = 20,
    ) -> Answer:
        """List events of the service, latest first. Times are in RFC 3339, such as 2026-01-31T12:00:00Z."""
        found = client.events(stream=stream, key=key, start=start, end=end, open=open, min_severity=min_severity)
        events = list(islice(found, max(1, min(limit, _MOST_EVENTS))))
        return {"sentences": [_event_words(one) for one in events], "events": [_with_times(one) for one in events]}

    def explain_event(stream: str, id: str) -> Answer:
        """Explain an event: what was read and expected, which fields it is about, and similar earlier events."""
        event = client.event(stream, id)
        facts = _with_times(event)
        words = [_event_words(event), facts.get("verdict"), facts.get("region")]
        similar = facts.get("similar_events") or []
        if similar:
            words.append(f"{len(similar)} earlier events are similar; the latest: {similar[0].get('summary')}.")
        return {"sentences": [text for text in words if text], **facts}

    def read_history(
        stream: str, key: str = "", start: str | None = None, end: str | None = None, points: int = 100
    ) -> Answer:
        """Read the values, expected ranges and scores of a key; by default, of the last day with records."""
        found = client.series(stream, key, start=start, end=end, points=max(10, min(points, _MOST_POINTS)))
        n_flagged = sum(found["flagged"])
        span = f"from {stamp(found['start'])} to {stamp(found['end'])}"
        words = f"{stream}, key {key!r}, {span}: {found['n_records']:,} records, {n_flagged} of them flagged."
        times = [None if time is None else stamp(time) for time in found["time"]]
        return {"sentences": [words], **found, "time": times}

    return [list_streams, list_events, explain_event, read_history]


def _feedback_tools(client: Client) -> list[Callable[..., Answer]]:
    """Return the tools that change models."""

    def give_feedback(stream: str, id: str, verdict: Literal["incident", "normal"], note: str = "") -> Answer:
        """Label an event. The model unlearns an incident, and learns what is normal. Ask the user first."""
        event = client.give_feedback(stream, id, verdict, note)
        return {"sentences": [f"{_event_words(event)} It is labelled as {event.label}."], **_with_times(event)}

    def undo_feedback(stream: str, id: str) -> Answer:
        """Undo the feedback on an event; the model is then as if it had not been given."""
        event = client.undo_feedback(stream, id)
        return {"sentences": [f"{_event_words(event)} Its feedback is undone."], **_with_times(event)}

    return [give_feedback, undo_feedback]


def _event_words(event: Event) -> str:
    """Say what an event is, when and where it happened, and how severe it is."""
    where = event.stream if not event.key else f"{event.stream} / {event.key}"
    grade = "" if event.severity is None else f" Severity {event.severity} of 5."
    state = "open" if event.is_open else "closed"
    begin = event.start.strftime("%Y-%m-%d %H:%M:%S")
    return f"{event.kind.capitalize()} in {where} at {begin} UTC ({state}): {event.summary}.{grade}"


def _with_times(event: Event) -> Answer:
    """Return the facts of an event, with times in RFC 3339."""
    times = {name: event.raw.get(name) for name in ("start", "end", "peak")}
    return {**event.raw, **{name: None if time is None else stamp(time) for name, time in times.items()}}
