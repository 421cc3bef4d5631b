"""`polyaforest mcp`, asked by the client of the official SDK."""

import json
import os
import subprocess
import sys

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from servers import free_port
from services import WEB, Service, odd, rows
from waiting import until

from polyaforest.cli._mcp_tools import new_server
from polyaforest.client import Client as PolyaClient

pytestmark = pytest.mark.end_to_end

FILES = {"detect_anomalies", "explain_row", "compare_two_files"}
EVENTS = {"list_streams", "list_events", "explain_event", "read_history"}
FEEDBACK = {"give_feedback", "undo_feedback"}


@pytest.fixture(scope="module")
def service(programs, tmp_path_factory):
    started = Service(programs, tmp_path_factory.mktemp("agents"), WEB).start()
    started.post("web", [*rows(300), odd(300), *rows(20, 301)])
    yield started
    started.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two tables; the first has an anomaly in row 51."""
    made = tmp_path_factory.mktemp("tables")
    for name, shift in (("before", 0.0), ("after", 30.0)):
        table = rows(200, seed=int(shift))
        table[50]["cpu"] = 400.0
        lines = [f"{row['cpu'] + shift},{row['load']}" for row in table]
        (made / f"{name}.csv").write_text("\n".join(["cpu,load", *lines]))
    return made


def asked(server, *calls):
    """Return the names of the tools, and the answers to calls."""

    async def ask():
        async with Client(server) as client:
            names = {tool.name for tool in (await client.list_tools()).tools}
            return names, [await client.call_tool(name, given) for name, given in calls]

    return anyio.run(ask)


def over_stdio(folder):
    """Return the parameters to start a server."""
    command = ["-m", "polyaforest", "mcp", "--root", str(folder)]
    return StdioServerParameters(command=sys.executable, args=command, env=dict(os.environ))


def facts_of(answer):
    """Return the structured answer of a tool; it says why in sentences."""
    assert not answer.is_error, answer.content
    facts = answer.structured_content
    assert facts == json.loads(answer.content[0].text)
    assert facts["sentences"]
    assert all(isinstance(sentence, str) and sentence for sentence in facts["sentences"])
    return facts


def test_files_are_explained_over_stdio(folder):
    calls = [
        ("detect_anomalies", {"file": "before.csv", "top": 3}),
        ("explain_row", {"file": "before.csv", "row": 51}),
        ("compare_two_files", {"before": "before.csv", "after": "after.csv"}),
        ("detect_anomalies", {"file": "../../etc/passwd"}),
        ("detect_anomalies", {"file": "postgresql://localhost/x"}),
        ("detect_anomalies", {"file": "missing.csv"}),
        ("explain_row", {"file": "before.csv", "row": 1000}),
    ]
    names, answers = asked(stdio_client(over_stdio(folder)), *calls)
    assert names == FILES
    detected, explained, compared = map(facts_of, answers[:3])
    assert detected["findings"][0]["row"] == 51
    assert "cpu" in detected["findings"][0]["sentences"][1]
    assert explained["is_anomaly"]
    assert explained["features"][0]["name"] == "cpu"
    assert compared["sentences"][0].startswith("Changed")
    words = ("is not below", "is not below", "does not exist", "no row 1,000")
    for answer, text in zip(answers[3:], words, strict=True):
        assert answer.is_error
        assert text in answer.content[0].text


@pytest.mark.slow
def test_events_are_explained_and_labelled_over_http(service, folder):
    port = free_port()
    command = [sys.executable, "-m", "polyaforest", "mcp", "--http", str(port), "--url", service.url]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([*command, "--allow-feedback"], cwd=folder, stdin=subprocess.DEVNULL, stderr=log)
    try:
        until(lambda: process.poll() is not None or _listens(port))
        url = f"http://127.0.0.1:{port}/mcp"
        names, (listed,) = asked(url, ("list_events", {"stream": "web"}))
        assert names == FILES | EVENTS | FEEDBACK
        (event,) = facts_of(listed)["events"]
        known = {"stream": "web", "id": event["id"]}
        calls = [
            ("list_streams", {}),
            ("explain_event", known),
            ("read_history", {"stream": "web", "key": "web-1", "points": 50}),
            ("give_feedback", {**known, "verdict": "incident", "note": "seen by an agent"}),
            ("undo_feedback", known),
            ("explain_event", {"stream": "web", "id": "none"}),
        ]
        _, answers = asked(url, *calls)
        streams, explained, history, given, undone = map(facts_of, answers[:5])
        assert streams["streams"][0]["name"] == "web"
        assert "cpu" in explained["sentences"][0]
        assert history["n_records"] == 321
        assert given["label"] == "incident"
        assert undone["label"] is None
        assert answers[5].is_error
        assert "has no event 'none'" in answers[5].content[0].text
    finally:
        process.kill()
        process.wait()


def _listens(port):
    import socket

    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_without_permission_agents_cannot_label(service, folder):
    with PolyaClient(service.url) as client:
        server = new_server(str(folder), client, has_feedback=False)
        names, (listed,) = asked(server, ("list_events", {"stream": "web"}))
    assert names == FILES | EVENTS
    assert "cpu" in facts_of(listed)["sentences"][0]


def test_feedback_needs_a_service(cli):
    code, _, said = cli("mcp", "--allow-feedback")
    assert code == 2
    assert "add --url" in said
