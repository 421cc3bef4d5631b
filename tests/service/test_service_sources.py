"""Streams from files and Redis, across kills; other streams continue when one fails."""

import json
import signal

import pytest
from servers import redis_server
from services import START, Service, odd, rows
from waiting import until

pytestmark = pytest.mark.end_to_end

WEB = """
[streams.web]
source = {source}
time = "time"
by = "host"
trees = 10
save_every = "0.5s"
"""


def lines(records):
    return "".join(json.dumps(record) + "\n" for record in records)


def shown(service, key="web-1"):
    return service.get("/streams/web/series", key=key, start=START, end=START + 1e7, points=5000)


def test_follows_a_file_across_kills_and_rotation(programs, tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text(lines(rows(200)))
    service = Service(programs, tmp_path, WEB.format(source='"log.jsonl"')).start()
    try:
        until(lambda: shown(service)["n_records"] == 200)
        for number in range(3):
            with path.open("a") as file:
                file.write(lines(rows(100, 200 + 100 * number)))
            service.stop(signal.SIGKILL)
            service.start()
        until(lambda: shown(service)["n_records"] == 500)
        path.rename(tmp_path / "log.jsonl.1")
        path.write_text(lines([odd(500), *rows(50, 501)]))
        until(lambda: shown(service)["n_records"] == 551)
        found = shown(service)
        assert found["is_raw"]
        assert found["time"] == [START + 60.0 * i for i in range(551)]
        odd_at = START + 60 * 500
        until(lambda: odd_at in [event["peak"] for event in service.get("/events", start=odd_at)["events"]])
        assert service.client.post("/api/v1/streams/web/records", json={"cpu": 1}).status_code == 409
    finally:
        service.close()


def test_reads_a_redis_stream_across_a_kill(programs, tmp_path):
    redis = pytest.importorskip("redis")
    with redis_server(tmp_path) as server:
        client = redis.Redis(port=server.port)

        def add(records):
            for record in records:
                client.xadd("metrics", record)

        add(rows(150))
        service = Service(programs, tmp_path, WEB.format(source=f'"{server.address}?stream=metrics"')).start()
        try:
            until(lambda: shown(service)["n_records"] == 150)
            add(rows(50, 150))
            service.stop(signal.SIGKILL)
            add(rows(50, 200))
            service.start()
            until(lambda: shown(service)["n_records"] == 250)
            assert shown(service)["time"] == [START + 60.0 * i for i in range(250)]
        finally:
            service.close()
            client.close()


def test_failed_stream_reports_why_and_does_not_affect_others(programs, tmp_path):
    (tmp_path / "polyaforest-data").mkdir()
    (tmp_path / "polyaforest-data" / "bad.models").write_text("not a store, but a text")
    service = Service(programs, tmp_path, "[streams.good]\n[streams.bad]\n").start(wait=False)
    try:
        until(lambda: service.client.get("/ready").status_code == 503 and service.get("/streams/bad")["error"])
        assert "bad.models" in service.get("/streams/bad")["error"]
        assert service.post("good", [{"a": 1.0}]).status_code == 200
        assert 'polyaforest_stream_up{stream="bad"} 0.0' in service.client.get("/metrics").text
    finally:
        service.close()


def test_rejects_an_incomplete_source_at_the_start(programs, tmp_path):
    (tmp_path / "polyaforest.toml").write_text('[streams.web]\nsource = "redis://localhost:6379/0"\n')
    for options in (["--check"], ["--port", "0"]):
        ended = programs.run("serve", *options, cwd=tmp_path)
        assert ended.returncode == 3
        assert b"polyaforest.toml, line 2: streams.web.source: the Redis address has no stream" in ended.stderr


def test_stream_without_its_models_starts_over_and_keeps_its_history(programs, tmp_path):
    service = Service(programs, tmp_path, "[streams.web]\n").start()
    try:
        service.post("web", [{"a": 1.0, "b": 2.0}])
        assert service.stop() == 0
        (tmp_path / "polyaforest-data" / "web.models").rename(tmp_path / "old.models")
        service.start()
        service.post("web", [{"a": 3.0, "b": 2.0}])
        assert service.get("/streams/web")["n_records"] == 2  # the history continues
        assert service.get("/streams/web/series", start=0, end=9e9)["n_records"] == 2
    finally:
        service.close()
