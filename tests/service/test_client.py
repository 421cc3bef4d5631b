"""The Python client, against a real server."""

import os
import re
import threading
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from services import START, Service, odd, rows

from polyaforest.client import ApiError, Client

pytestmark = pytest.mark.end_to_end

TOKEN = "an-admin-token-of-32-characters!"
CONFIG = """
[streams.web]
time = "time"
by = "host"
trees = 20
"""


@pytest.fixture(scope="module")
def service(programs, tmp_path_factory):
    started = Service(programs, tmp_path_factory.mktemp("client"), CONFIG, POLYAFOREST_ADMIN_TOKEN=TOKEN).start()
    yield started
    started.close()


@pytest.fixture
def client(service):
    with Client(service.url, TOKEN) as made:
        yield made


def test_a_day_with_the_client(client, service, tmp_path):
    messages, is_open = [], threading.Event()

    def follow():
        with Client(service.url, TOKEN) as other:
            for message in other.feed(stream="web"):
                is_open.set()
                messages.append(message)
                if message.kind == "event":
                    return

    records = [{**row, "time": datetime.fromtimestamp(row["time"], UTC)} for row in rows(300)]
    records[0]["cpu"] = np.float64(records[0]["cpu"])
    posted = client.post("web", records, name="first")
    assert (posted.n_judged, posted.n_rejected, posted.is_repeated) == (300, 0, False)
    assert client.post("web", records, name="first").is_repeated
    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    number = 300
    while thread.is_alive():  # until an event arrives
        client.post("web", [odd(number)] if number % 20 == 0 else rows(1, number))
        number += 1
    assert "event" in [message.kind for message in messages]

    (stream,) = client.streams()
    assert (stream.name, stream.is_ready, stream.n_records) == ("web", True, number)
    assert stream.start == datetime.fromtimestamp(START, UTC)
    assert client.stream("web").raw["settings"]["by"] == "host"
    assert list(client.keys("web")) == ["web-1"]
    found = list(client.records("web", key="web-1", end=datetime.fromtimestamp(START + 120, UTC)))
    assert [record.position for record in found] == [1, 2, 3]
    assert found[0].values["cpu"] == records[0]["cpu"]
    event = next(client.events(stream="web", start=START))
    assert "cpu" in event.summary
    assert client.event("web", event.id).raw["similar_events"] is not None
    assert client.give_feedback("web", event.id, "incident", "disk full").label == "incident"
    assert client.undo_feedback("web", event.id).label is None
    assert client.series("web", "web-1", points=10)["n_records"] == number
    assert client.status()["role"] == "admin"
    assert isinstance(client.incidents(), list)

    client.export("web", str(tmp_path / "web.parquet"), format="parquet")
    assert len(pl.read_parquet(tmp_path / "web.parquet")) == number
    client.backup(str(tmp_path / "all.tar"))
    assert (tmp_path / "all.tar").stat().st_mode & 0o077 == 0
    assert sorted(os.listdir(tmp_path)) == ["all.tar", "web.parquet"]


def test_errors_say_what_is_wrong(client, service, tmp_path):
    with pytest.raises(ApiError, match="no stream 'other'") as caught:
        client.stream("other")
    assert caught.value.status == 404
    client.post("web", rows(1), name="twice")
    with pytest.raises(ApiError, match="already used for other records") as caught:
        client.post("web", rows(2), name="twice")
    assert caught.value.facts["title"]
    with pytest.raises(ApiError, match="no record can be used"):
        client.post("web", [{"time": "never"}])
    with pytest.raises(ApiError, match="a token is required"), Client(service.url, "") as anonymous:
        anonymous.status()
    with pytest.raises(ApiError):
        client.export("other", str(tmp_path / "other.csv"))
    assert not os.listdir(tmp_path)
    with pytest.raises(ValueError, match="has no time zone"):
        next(client.events(start=datetime(2026, 1, 1)))
    with pytest.raises(ValueError, match="is not an address"):
        Client("localhost:8420")
    with pytest.raises(TypeError, match="cannot be a value"):
        client.post("web", [{"time": START, "cpu": {1}}])


def test_the_client_comes_back_after_a_restart(service):
    with Client(service.url, TOKEN) as client:
        before = client.stream("web").n_records
        service.stop()
        with pytest.raises(OSError), Client(service.url, TOKEN, tries=1) as impatient:  # noqa: PT011 - of any kind
            impatient.status()
        port = service.url.rpartition(":")[2]
        service.start("--port", port)
        assert client.stream("web").n_records == before


def test_the_example_in_the_guide_runs(service, monkeypatch, capsys):
    text = (Path(__file__).parents[2] / "docs" / "how-to" / "api.md").read_text("utf-8")
    (example,) = re.findall(r"^```py\n(.*?)^```", text, re.M | re.S)
    monkeypatch.setenv("POLYAFOREST_TOKEN", TOKEN)
    exec(example.replace("http://127.0.0.1:8420", service.url), {})
    assert capsys.readouterr().out.startswith("1 ")
