"""Streams from a real Prometheus server that scrapes metrics of this test."""

import shutil
import signal
import socket
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from servers import free_port
from services import Service
from waiting import until

from polyaforest.io.errors import BadInput
from polyaforest.io.sources.prometheus import PrometheusServer

pytestmark = pytest.mark.end_to_end

SETTINGS = """
global:
  scrape_interval: 1s
scrape_configs:
  - job_name: demo
    static_configs:
      - targets: ["127.0.0.1:{port}"]
"""


class Exporter:
    """Metrics to scrape."""

    def __init__(self):
        self.values = {"a": 10.0, "b": 20.0}
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                lines = [f'demo_load{{host="{host}"}} {value}' for host, value in exporter.values.items()]
                body = "\n".join([*lines, ""]).encode()
                self.send_response(200)
                self.send_header("content-type", "text/plain; version=0.0.4")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory):
    """A server that scrapes an exporter every second."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not installed: apt-get install prometheus")
    folder, exporter, port = tmp_path_factory.mktemp("prometheus"), Exporter(), free_port()
    (folder / "prometheus.yml").write_text(SETTINGS.format(port=exporter.port))
    command = [
        program, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=error",
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        until(lambda: process.poll() is not None or _listens(port))
        assert process.poll() is None, (folder / "log").read_text()
        source = PrometheusServer(f"http://127.0.0.1:{port}", {"load": "demo_load"}, by="host", step=1, past=60)
        until(lambda: len(source.read(1000, 0.1)) > 0)
        yield exporter, f"http://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
        exporter.close()


def _listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def read_until(source, n, seconds=60):
    found, end = [], time.monotonic() + seconds
    while len(found) < n and time.monotonic() < end:
        found += source.read(1000, 0.2)
    return found


def test_prometheus_source_reads_the_past_by_range_and_then_step_by_step(prometheus):
    _, url = prometheus
    source = PrometheusServer(url, {"load": "demo_load", "double": "2 * demo_load"}, by="host", step=1, past=30)
    found = read_until(source, 12)
    places = [record.position for record in found]
    assert len(set(places)) == len(places)
    assert places == sorted(places)
    for record in found:
        assert record.data["double"] == 2 * record.data["load"]
    assert {record.data["host"] for record in found} == {"a", "b"}


def test_prometheus_source_continues_after_any_record(prometheus):
    _, url = prometheus
    make = lambda: PrometheusServer(url, {"load": "demo_load"}, by="host", step=1, past=20)  # noqa: E731
    source = make()
    whole = read_until(source, 10)[:10]
    again = make()
    first = []
    while len(first) < 5:
        first += again.read(5 - len(first), 0.2)
    resumed = make()
    resumed.seek(again.position)
    rest = []
    while len(rest) < 5:
        rest += resumed.read(1, 0.2)
    joined = [record.position for record in [*first, *rest]]
    start = [record.position for record in whole].index(joined[0]) if joined[0] in [r.position for r in whole] else 0
    assert len(set(joined)) == 10
    assert joined == sorted(joined)
    assert joined[: 10 - start] == [record.position for record in whole][start:]


def test_explains_queries_that_return_no_records(prometheus):
    _, url = prometheus
    for queries, by, words in (
        ({"x": "demo_load"}, None, "set `by`"),
        ({"x": "sum(demo_load)"}, "host", "without the label"),
        ({"x": "rate("}, None, "status 400"),
    ):
        source = PrometheusServer(url, queries, by=by, step=1, past=10)
        assert source.read(10, 0.1) == []
        assert words in source.notices[0]
    silent = PrometheusServer(f"http://127.0.0.1:{free_port()}", {"x": "up"}, step=1, past=10)
    assert silent.read(10, 0.1) == []
    assert "cannot be read" in silent.notices[0]
    with pytest.raises(BadInput, match="is reserved for the time of a record"):
        PrometheusServer(url, {"time": "up"})


def test_scores_a_prometheus_server_across_a_kill(prometheus, programs, tmp_path):
    exporter, url = prometheus
    config = f"""
[streams.demo]
source = "prometheus"
trees = 10
save_every = "1s"
[streams.demo.prometheus]
url = "{url}"
queries = {{load = "demo_load"}}
by = "host"
step = "1s"
past = "30s"
"""
    service = Service(programs, tmp_path, config)
    service.start()
    try:
        until(lambda: service.get("/streams/demo")["n_records"] >= 10)
        assert service.get("/streams/demo/keys")["keys"] == ["a", "b"]
        service.stop(signal.SIGKILL)
        exporter.values["a"] = 11.0
        service.start()
        n = service.get("/streams/demo")["n_records"]
        until(lambda: service.get("/streams/demo")["n_records"] >= n + 8)
        shown = service.get("/streams/demo/series", key="a", points=5000)
        steps = [b - a for a, b in zip(shown["time"], shown["time"][1:], strict=False)]
        assert min(steps) > 0.9  # none twice
        assert max(steps) < 2.5  # none lost, except for a late scrape
        until(lambda: 11.0 in service.get("/streams/demo/series", key="a", points=5000)["fields"]["load"]["max"])
        assert service.client.post("/api/v1/streams/demo/records", json={"load": 1}).status_code == 409
    finally:
        exporter.values["a"] = 10.0
        service.close()
