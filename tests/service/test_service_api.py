"""The API as its clients see it: schemas, errors, cursors, compression, roles, exports and backups."""

import gzip
import io
import json
import os
import re
import subprocess
import sys
import tarfile

import orjson
import polars as pl
import pytest
from services import START, WEB, Service, odd, rows

from polyaforest.service.schemas import ANSWERS, Problem

pytestmark = pytest.mark.end_to_end

CONFIG = (
    WEB
    + """
[server]
requests_per_second = 100000
"""
)
TOKENS = """
[server]
tokens = [
    {name = "ops", role = "admin", file = "ops"},
    {name = "grafana", role = "read", file = "grafana"},
    {name = "agent", role = "write", env = "AGENT_TOKEN"},
]
"""


@pytest.fixture(scope="module")
def service(programs, tmp_path_factory):
    started = Service(programs, tmp_path_factory.mktemp("api"), CONFIG).start()
    started.post("web", [*rows(300), odd(300), *rows(20, 301), *rows(50, host="=cmd")])
    yield started
    started.close()


def pages_of(service, path, name, **parameters):
    """Return all items of a listing, page by page."""
    found, cursor = [], None
    while True:
        page = service.get(path, cursor=cursor, **parameters)
        found += page[name]
        cursor = page["next"]
        if cursor is None:
            return found


# ---- schema ----------------------------------------------------------------------------------------------------------


def test_answers_are_as_the_schema_describes_them(service):
    schema = service.get("/openapi.json")
    operations = [one for path in schema["paths"].values() for one in path.values()]
    names = [one["operationId"] for one in operations]
    assert len(set(names)) == len(names)
    assert set(ANSWERS) <= set(names)
    (event,) = service.get("/events")["events"][:1]
    known = {"stream": "web", "id": event["id"]}
    for path, of_path in schema["paths"].items():
        operation = of_path.get("get")
        model = None if operation is None else ANSWERS.get(operation["operationId"])
        if model is None:
            continue
        answer = service.client.get(path.format(**known))
        assert answer.status_code == 200, path
        model.model_validate(answer.json())
        content = operation["responses"]["200"]["content"]["application/json"]["schema"]
        assert content["$ref"].endswith(f"/{model.__name__}")
    assert {"token", "session"} == set(schema["components"]["securitySchemes"])


def test_a_generated_client_works(service, tmp_path):
    (tmp_path / "openapi.json").write_text(json.dumps(service.get("/openapi.json")))
    program = os.path.join(os.path.dirname(sys.executable), "openapi-python-client")
    command = [program, "generate", "--path", "openapi.json", "--meta", "none", "--output-path", "generated"]
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"  # with ruff
    made = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, env=os.environ | {"PATH": path}
    )
    assert made.returncode == 0, made.stdout + made.stderr
    problems = re.findall(r"^WARNING parsing.*\n\n(.*)", made.stdout + made.stderr, re.M)
    others = ("Unsupported content type application/x-", "Unsupported content_type")  # protobuf, lines, event streams
    assert all(problem.startswith(others) for problem in problems), problems
    script = f"""
from generated import Client
from generated.api.default import events, post_records, records, status
client = Client(base_url={service.url!r})
assert status.sync(client=client).streams[0].name == "web"
assert events.sync(client=client, limit=5).events[0].is_open is False
assert records.sync("web", client=client, key="web-1", limit=3).records[2].values["cpu"] > 0
"""
    ran = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    ("method", "path", "status", "words"),
    [
        ("GET", "/api/v1/nothing", 404, "does not exist"),
        ("GET", "/api/v1/streams/other", 404, "no stream 'other'"),
        ("GET", "/api/v1/events?fron=1", 422, "unknown parameter 'fron'; the parameters here are: cursor"),
        ("GET", "/api/v1/events?limit=x", 422, "limit"),
        ("GET", "/api/v1/events?cursor=x", 422, "the cursor is invalid"),
        ("GET", "/api/v1/events?cursor=W10", 422, "the cursor is invalid"),
        ("GET", "/api/v1/streams/web/records?cursor=WzEsMWU0MDBd", 422, "the cursor is invalid"),
        ("GET", "/api/v1/events?start=2026-01-01T00:00:00", 422, "needs an offset"),
        ("GET", "/api/v1/events?start=2026-99-01T00:00:00Z", 422, "not a time in RFC 3339"),
        ("POST", "/api/v1/status", 405, "Method Not Allowed"),
        ("GET", "http://evil/api/v1/status", 421, "not allowed"),
    ],
)
def test_errors_are_problem_details(service, method, path, status, words):
    headers = {"host": "evil"} if "evil" in path else {}
    answer = service.client.request(method, path.removeprefix("http://evil"), headers=headers)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = Problem.model_validate(answer.json())
    assert problem.status == status
    assert words in problem.detail


def test_an_unusable_record_is_a_problem_with_the_facts(service):
    answer = service.post("web", [{"time": "never"}])
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["n_rejected"] == 1


# ---- listings --------------------------------------------------------------------------------------------------------


def test_cursors_list_each_record_and_event_once(service):
    found = pages_of(service, "/streams/web/records", "records", limit=37)
    assert len(found) == service.get("/streams/web")["n_records"]
    assert len({(row["key"], row["position"]) for row in found}) == len(found)
    first = next(row for row in found if row["key"] == "web-1")
    assert first["time"] == "2023-11-14T22:13:20Z"
    assert set(first["values"]) == {"cpu", "load", "requests"}
    events = pages_of(service, "/events", "events", limit=1)
    assert [event["id"] for event in events] == [event["id"] for event in service.get("/events")["events"]]
    assert events


def test_times_may_be_given_in_rfc_3339(service):
    of_text = service.get("/streams/web/records", key="web-1", start="2023-11-14T22:15:20Z", end=START + 240)["records"]
    assert [row["time"][11:19] for row in of_text] == ["22:15:20", "22:16:20", "22:17:20"]


def test_head_answers_like_get_without_a_body(service):
    for path in ("/api/v1/status", "/health", "/", "/api/v1/streams/web/export", "/api/v1/feed", "/api/v1/backup"):
        answer = service.client.head(path)
        assert answer.status_code == 200, path
        assert answer.content == b""


def test_bodies_and_answers_may_be_compressed(service):
    text = gzip.compress(b"".join(orjson.dumps(row) + b"\n" for row in rows(5, host="zipped")))
    headers = {"content-type": "application/x-ndjson", "content-encoding": "gzip"}
    answer = service.client.post("/api/v1/streams/web/records", content=text, headers=headers)
    assert answer.json()["judged"] == 5
    answer = service.client.get("/api/v1/streams/web/records")
    assert answer.headers["content-encoding"] == "gzip"
    bomb = gzip.compress(bytes(2**25))
    answer = service.client.post("/api/v1/streams/web/records", content=bomb, headers=headers)
    assert answer.status_code == 413


# ---- export ----------------------------------------------------------------------------------------------------------


def test_history_is_exported_as_csv_and_parquet(service):
    answer = service.client.get("/api/v1/streams/web/export", params={"key": "web-1"})
    table = pl.read_csv(answer.content, try_parse_dates=True)
    answer = service.client.get("/api/v1/streams/web/export", params={"key": "web-1", "format": "parquet"})
    columns = pl.read_parquet(io.BytesIO(answer.content))
    assert table.columns == columns.columns
    assert len(table) == len(columns) == 321
    assert table["cpu"].to_list() == pytest.approx(columns["cpu"].to_list())
    assert columns["cpu"][300] == 99.0
    assert columns["is_anomaly"][300]
    assert columns["time"][0].timestamp() == START


def test_a_key_that_looks_like_a_formula_is_exported_as_text(service):
    text = service.client.get("/api/v1/streams/web/export", params={"key": "=cmd"}).text
    assert ",'=cmd," in text
    assert ",=cmd," not in text


# ---- backup ----------------------------------------------------------------------------------------------------------


def test_a_backup_of_a_running_service_restores_it(service, programs, tmp_path, cli):
    path = tmp_path / "backup.tar"
    code, _, said = cli("backup", str(path), "--url", service.url)
    assert code == 0, said
    code, _, said = cli("restore", str(path), "--data", str(tmp_path / "polyaforest-data"))
    assert code == 0, said
    code, _, said = cli("restore", str(path), "--data", str(tmp_path / "polyaforest-data"))
    assert code == 3
    assert "exists: restore into an empty folder" in said
    other = Service(programs, tmp_path, CONFIG).start()
    try:
        for key in ("web-1", "=cmd"):
            parameters = {"key": key, "limit": 10_000}
            before = service.get("/streams/web/records", **parameters)
            assert other.get("/streams/web/records", **parameters) == before
        verdict = other.post("web", rows(1, 400)).json()["verdicts"][0]  # by the same models
        assert verdict["score"] == service.post("web", rows(1, 400)).json()["verdicts"][0]["score"]
    finally:
        other.close()


@pytest.mark.parametrize("name", ["../web.history", "web.history", "lock", "manifest.json"])
def test_hostile_backups_restore_nothing(name, tmp_path, cli):
    path, folder = tmp_path / "backup.tar", tmp_path / "data"
    with tarfile.open(path, "w") as tar:
        for member in (name, "manifest.json"):
            one = tarfile.TarInfo(member)
            text = b'{"format": 1, "streams": ["web"]}'
            one.size = len(text)
            tar.addfile(one, io.BytesIO(text))
    code, _, said = cli("restore", str(path), "--data", str(folder))
    assert code == 3, said
    assert not folder.exists() or set(os.listdir(folder)) <= {"lock"}


# ---- import ----------------------------------------------------------------------------------------------------------


def test_files_are_imported_before_the_service_starts(programs, tmp_path, cli):
    lines = ["time,host,cpu,load", *(f"{row['time']},web-1,{row['cpu']},{row['load']}" for row in rows(200))]
    (tmp_path / "old.csv").write_text("\n".join([*lines, "never,web-1,1,1"]))
    (tmp_path / "polyaforest.toml").write_text(WEB.replace('id = "id"\n', ""))
    files = ("stdin", "out", "err")
    (tmp_path / "stdin").touch()
    process = programs.start("serve", "--import", "old.csv", "--stream", "web", cwd=tmp_path, files=files)
    assert programs.wait(process) == 0, (tmp_path / "err").read_text()
    said = (tmp_path / "err").read_text()
    assert "200 records" in said
    assert "1 rejected" in said
    service = Service(programs, tmp_path, WEB.replace('id = "id"\n', "")).start()
    try:
        assert service.get("/streams/web")["n_records"] == 200
        assert service.get("/streams/web")["fields"] == ["cpu", "load"]
    finally:
        service.close()


# ---- tokens ----------------------------------------------------------------------------------------------------------


def test_tokens_have_roles_and_can_be_revoked(programs, tmp_path):
    names = {name: f"a-token-of-{name}-characters" for name in ("ops", "grafana", "agent")}
    for name, text in names.items():
        (tmp_path / name).write_text(text)
    service = Service(programs, tmp_path, WEB + TOKENS, AGENT_TOKEN=names["agent"]).start()
    try:
        of = {name: {"authorization": f"Bearer {text}"} for name, text in names.items()}
        record = {"json": rows(1)[0]}
        asked = [
            ("GET", "/api/v1/status", {}, {"ops": 200, "grafana": 200, "agent": 403}),
            ("POST", "/api/v1/streams/web/records", record, {"ops": 200, "grafana": 403, "agent": 200}),
            ("POST", "/api/v1/settings/reload", {}, {"ops": 200, "grafana": 403, "agent": 403}),
            ("GET", "/api/v1/backup", {}, {"ops": 200, "grafana": 403, "agent": 403}),
            ("HEAD", "/api/v1/backup", {}, {"ops": 200, "grafana": 403, "agent": 403}),
            ("GET", "/metrics", {}, {"ops": 200, "grafana": 200, "agent": 403}),
        ]
        for method, path, more, wanted in asked:
            for name, status in wanted.items():
                answer = service.client.request(method, path, headers=of[name], **more)
                assert answer.status_code == status, (method, path, name, answer.text)
        cookie = service.client.post("/api/v1/login", json={"token": names["grafana"]}).cookies
        session = {"cookie": f"polyaforest={cookie['polyaforest']}"}
        assert service.client.get("/api/v1/status", headers=session).json()["role"] == "read"
        config = (tmp_path / "polyaforest.toml").read_text()
        (tmp_path / "polyaforest.toml").write_text(config.replace('    {name = "grafana"', '    # {name = "grafana"'))
        answer = service.client.post("/api/v1/settings/reload", headers=of["ops"])
        assert answer.json()["tokens"] is True, answer.text
        service.client.cookies.clear()
        for headers in (of["grafana"], session):
            assert service.client.get("/api/v1/status", headers=headers).status_code == 401
        assert service.client.get("/api/v1/status", headers=of["ops"]).status_code == 200
    finally:
        service.close()
