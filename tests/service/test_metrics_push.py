"""Metrics that come by OTLP and Prometheus remote write, sent by the real OpenTelemetry SDK and a real Prometheus."""

import gzip
import shutil
import signal
import subprocess

import cramjam
import orjson
import pytest
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from servers import free_port
from services import PATIENCE, Service
from waiting import until

from polyaforest.service.remote_write import message_class

pytestmark = pytest.mark.end_to_end

CONFIG = """
[server]
requests_per_second = 100000
max_body_mb = 1

[streams.shop]
source = "otlp"
trees = 10
save_every = "1s"
[streams.shop.metrics]
fields = {queue = "queue.length", orders = "orders", latency = "order.duration", rate = "order.duration.count"}
by = ["service.name"]
wait = "0.3s"

[streams.nodes]
source = "remote-write"
trees = 10
[streams.nodes.metrics]
fields = {load = "node_load1", idle = 'node_cpu_seconds_total{mode="idle"}', up = "up"}
by = ["instance"]
wait = "4s"

[streams.web]
"""
START = 1_700_000_000
OTLP = {"content-type": "application/x-protobuf"}
GZIP = OTLP | {"content-encoding": "gzip"}
WRITE = {"content-encoding": "snappy", "content-type": "application/x-protobuf"}


@pytest.fixture(scope="module")
def service(programs, tmp_path_factory):
    started = Service(programs, tmp_path_factory.mktemp("metrics"), CONFIG).start()
    yield started
    started.close()


def otlp_point(number, value=7.0, name="queue.length", service="shop", **more):
    """Return a request of one gauge in the JSON of OTLP."""
    point = {"timeUnixNano": str((START + number) * 10**9), "asDouble": value, **more}
    metric = {"name": name, "gauge": {"dataPoints": [point]}}
    attributes = [{"key": "service.name", "value": {"stringValue": service}}]
    return {"resourceMetrics": [{"resource": {"attributes": attributes}, "scopeMetrics": [{"metrics": [metric]}]}]}


def write_request(series):
    """Return a write request: names and labels, with pairs of time and value."""
    request = message_class()()
    for labels, samples in series:
        one = request.timeseries.add()
        for name, value in labels.items():
            one.labels.add(name=name, value=value)
        for at, value in samples:
            one.samples.add(value=value, timestamp=int(1000 * at))
    return bytes(cramjam.snappy.compress_raw(request.SerializeToString()))


def values(service, stream, key, *names):
    """Return the values of fields of a key, in the order of time."""
    found = service.get(f"/streams/{stream}/series", key=key, start=0, end=1e11)
    return [list(row) for row in zip(*(found["fields"].get(name, {}).get("mean", ()) for name in names), strict=True)]


def test_the_sdk_of_opentelemetry_exports_into_a_stream(service):
    exporter = OTLPMetricExporter(f"{service.url}/v1/metrics", timeout=PATIENCE)
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=1e9)
    provider = MeterProvider([reader], Resource.create({"service.name": "checkout"}), shutdown_on_exit=False)
    meter, length = provider.get_meter("shop"), [0.0]
    meter.create_observable_gauge("queue.length", [lambda _: [Observation(length[0])]])
    orders, duration = meter.create_counter("orders"), meter.create_histogram("order.duration")
    for number in range(5):
        length[0] = 10.0 + number
        orders.add(4)
        duration.record(1.0)
        duration.record(3.0)
        assert provider.force_flush()
    until(lambda: len(values(service, "shop", "checkout", "queue")) == 5)
    rows = values(service, "shop", "checkout", "queue", "orders", "latency", "rate")
    assert [row[0] for row in rows] == [10.0, 11.0, 12.0, 13.0, 14.0]
    assert rows[0][1] is None  # a rate needs two samples
    assert all(orders > 0 and latency == pytest.approx(2.0) for _, orders, latency, _ in rows[1:])
    assert all(row[1] == pytest.approx(2 * row[3]) for row in rows[1:])  # four orders, two durations
    provider.shutdown()


def test_json_and_gzip_are_read_and_a_repeated_request_changes_nothing(service):
    kept = {"content-type": "application/json", "content-encoding": "gzip"}
    for number in (0, 60, 60, 120, 60):
        text = gzip.compress(orjson.dumps(otlp_point(number, number, service="json")))
        answer = service.client.post("/v1/metrics", content=text, headers=kept)
        assert answer.status_code == 200, answer.text
    until(lambda: len(values(service, "shop", "json", "queue")) == 3)
    assert values(service, "shop", "json", "queue") == [[0.0], [60.0], [120.0]]


def test_a_key_made_of_missing_labels_and_a_false_time_are_rejected_with_the_reason(service):
    asked = otlp_point(0, service="")
    asked["resourceMetrics"] += otlp_point(10**10, service="x")["resourceMetrics"]
    asked["resourceMetrics"] += otlp_point(0, "NaN", service="x")["resourceMetrics"]
    answer = service.client.post("/v1/metrics", json=asked).json()["partialSuccess"]
    assert answer["rejectedDataPoints"] == "3"
    for reason in ("none of the labels", "ahead of the system clock", "not finite"):
        assert reason in answer["errorMessage"]


def test_metrics_without_a_field_are_named(service):
    service.client.post("/v1/metrics", json=otlp_point(0, name="unknown.metric")).raise_for_status()
    about = service.get("/streams/shop")["metrics"]
    assert {"name": "unknown.metric", "samples": 1} in about["without_field"]


def test_remote_write_gathers_the_requests_of_one_scrape(service):
    base = {"instance": "web-1", "job": "node"}
    for number in range(6):
        at = START + 15 * number
        cpus = [({"__name__": "node_cpu_seconds_total", "mode": "idle", "cpu": str(cpu), **base}) for cpu in range(2)]
        parts = [[({"__name__": "node_load1", **base}, [(at, 1.0 + number)])]]
        parts += [[(cpu, [(at + 0.1, 10.0 * number)]) for cpu in cpus]]
        for part in parts if number % 2 else reversed(parts):
            answer = service.client.post("/api/v1/write", content=write_request(part), headers=WRITE)
            assert answer.status_code == 204, answer.text
    until(lambda: len(values(service, "nodes", "web-1", "load")) == 6)
    for part in parts:  # again: they are late, and Prometheus must not take that for an error
        assert service.client.post("/api/v1/write", content=write_request(part), headers=WRITE).status_code == 204
    rows = values(service, "nodes", "web-1", "load", "idle")
    assert [row[0] for row in rows] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert [row[1] for row in rows[1:]] == pytest.approx([20 / 15] * 5)  # added over both processors


@pytest.mark.parametrize(
    ("path", "body", "headers", "status", "words"),
    [
        ("/v1/metrics", b"\xff\xff\xff", OTLP, 400, "not an export request"),
        ("/v1/metrics", b"{", {"content-type": "application/json"}, 400, "not an export request"),
        ("/v1/metrics", b"[" * 10_000, {"content-type": "application/json"}, 400, "not an export request"),
        ("/v1/metrics", b"", {"content-type": "text/html"}, 415, "send Content-Type"),
        ("/v1/metrics", gzip.compress(bytes(2**25), mtime=0), GZIP, 413, "larger than 1 MB"),
        ("/v1/metrics", b"not gzip", GZIP, 400, "not gzip"),
        ("/v1/metrics", gzip.compress(b"abc", mtime=0)[:-4], GZIP, 400, "too early"),
        ("/v1/metrics", b"", OTLP | {"content-encoding": "br"}, 415, "not supported"),
        ("/api/v1/write", bytes(cramjam.snappy.compress_raw(bytes(2**25))), WRITE, 413, "larger than 1 MB"),
        ("/api/v1/write", b"\xff\xff\xff\xff\xff\xff", WRITE, 400, "not a block of snappy"),
        ("/api/v1/write", b"\x05\x10abc", WRITE, 400, "not a block of snappy"),
        ("/api/v1/write", bytes(cramjam.snappy.compress_raw(b"\xff\xff")), WRITE, 400, "not a write request"),
        ("/api/v1/write", b"", {"content-encoding": "gzip"}, 415, "snappy"),
        ("/api/v1/write", write_request([({"a": "b"}, [(START, 1.0)])]), WRITE, 400, "__name__"),
        ("/api/v1/write", write_request([({"__name__": "up"} | {f"l{i}": "" for i in range(300)}, [])]), WRITE, 400,
         "301 labels"),
        ("/api/v1/write", write_request([({"__name__": "up", "instance": "x" * 5000}, [(START, 1.0)])]), WRITE, 400,
         "longer than 4,096"),
        ("/api/v1/write", write_request([({"__name__": "up", "instance": "y"}, [(-5.0, 1.0)])]), WRITE, 400, "1970"),
        ("/api/v1/write", write_request([({"__name__": "up", "instance": "y"}, [(START, float("inf"))])]), WRITE, 400,
         "not finite"),
    ],
)  # fmt: skip
def test_hostile_bodies_are_errors_of_the_client(service, path, body, headers, status, words):
    before = service.get("/streams/nodes")["n_records"]
    answer = service.client.post(path, content=body, headers=headers)
    assert answer.status_code == status, answer.text
    assert words in answer.content.decode("utf-8", "replace")
    assert service.get("/streams/nodes")["n_records"] == before


def test_a_stream_for_metrics_takes_no_posted_records(service):
    answer = service.post("shop", [{"time": START, "key": "x", "queue": 1}])
    assert answer.status_code == 409
    assert "reads from otlp" in answer.json()["detail"]


def test_samples_survive_a_kill_and_rates_a_restart(programs, tmp_path):
    service = Service(programs, tmp_path, CONFIG.replace('wait = "0.3s"', 'wait = "1h"', 1)).start()
    try:
        for number in (0, 60):  # incomplete: a new key waits
            service.client.post("/v1/metrics", json=otlp_point(number, number)).raise_for_status()
        service.stop(signal.SIGKILL)
        (tmp_path / "polyaforest.toml").write_text(CONFIG)
        service.start()
        until(lambda: values(service, "shop", "shop", "queue") == [[0.0], [60.0]])
        service.client.post("/v1/metrics", json=otlp_point(60, 5.0)).raise_for_status()  # late
        service.client.post("/v1/metrics", json=otlp_point(120, 1.0)).raise_for_status()
        until(lambda: values(service, "shop", "shop", "queue") == [[0.0], [60.0], [1.0]])
    finally:
        service.close()


@pytest.mark.slow
def test_a_real_prometheus_writes_into_a_stream(programs, tmp_path):
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not installed: apt-get install prometheus")
    port = free_port()
    fields = 'fields = {up = "up", scraped = "scrape_samples_scraped", requests = "prometheus_http_requests_total"}'
    config = (
        CONFIG.split("[streams.nodes]", maxsplit=1)[0]
        + f"""
[streams.nodes]
source = "remote-write"
trees = 10
[streams.nodes.metrics]
{fields}
by = ["job", "instance"]
wait = "2s"
"""
    )
    service = Service(programs, tmp_path, config).start()
    (tmp_path / "prometheus.yml").write_text(f"""
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: self
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
remote_write:
  - url: {service.url}/api/v1/write
    queue_config: {{max_samples_per_send: 100, batch_send_deadline: 500ms}}
""")
    with (tmp_path / "prometheus.log").open("wb") as log:
        command = [
            program, f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/tsdb",
            f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
        ]  # fmt: skip
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        key = f"self/127.0.0.1:{port}"
        until(lambda: len(values(service, "nodes", key, "up")) >= 4)
        rows = values(service, "nodes", key, "up", "scraped", "requests")
        assert all(up == 1.0 for up, _, _ in rows)
        assert all(scraped > 100 for _, scraped, _ in rows)  # every record is complete
        assert any(requests and requests > 0 for _, _, requests in rows)
    finally:
        process.kill()
        process.wait()
        service.close()


def test_exporters_read_the_reason_of_an_error(service):
    answer = service.client.post("/v1/metrics", content=b"\xff", headers=OTLP)
    assert answer.headers["content-type"] == "application/x-protobuf"
    assert answer.content[:2] == b"\x08\x03"  # code: invalid argument


@pytest.mark.slow
def test_scores_are_sent_back_as_metrics(service, programs, tmp_path):
    """The collector is the other service, whose streams take metrics."""
    settings = f'[server]\notlp_url = "{service.url}/v1/metrics"\notlp_every = "0.2s"\n[streams.web]\ntrees = 10\n'
    sender = Service(programs, tmp_path, settings).start()
    try:
        sender.post("web", [{"time": START + i, "cpu": i % 7} for i in range(20)]).raise_for_status()
        names = {"polyaforest.score", "polyaforest.p_value", "polyaforest.records", "polyaforest.anomalies"}
        until(lambda: names <= {one["name"] for one in service.get("/streams/shop")["metrics"]["without_field"]})
        assert sender.stop() == 0
        assert "cannot be sent" not in sender.log
    finally:
        sender.close()
