"""Access control and limits of the service."""

import json
import random
import socket

import httpx
import pytest
from services import PATIENCE, START, WEB, Service, raw, rows
from waiting import until

pytestmark = pytest.mark.end_to_end

ADMIN, READ = "a" * 20 + "-admin", "r" * 20 + "-read"


@pytest.fixture(scope="module")
def service(programs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("service")
    config = WEB + "\n[server]\nmax_body_mb = 1\nrequests_per_second = 100000\n"
    started = Service(programs, folder, config).start()
    started.post("web", rows(150))
    yield started
    started.close()


@pytest.fixture(scope="module")
def guarded(programs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "read").write_text(READ + "\n")
    config = WEB + '\n[server]\nread_token_file = "read"\ncors = ["https://ops.example"]\n'
    started = Service(programs, folder, config, POLYAFOREST_ADMIN_TOKEN=ADMIN)
    started.start(wait=False)
    until(lambda: started.is_ready)
    yield started
    started.close()


def bearer(token):
    return {"authorization": f"Bearer {token}"}


def is_alive(service):
    return service.client.get("/health").status_code == 200


# ---- tokens ----------------------------------------------------------------------------------------------------------


def test_without_a_token_only_the_page_and_probes_respond(guarded):
    for path in ("/api/v1/status", "/api/v1/streams", "/api/v1/feed", "/metrics", "/api/v1/openapi.json"):
        answer = guarded.client.get(path)
        assert answer.status_code == 401, path
        assert answer.headers["www-authenticate"] == "Bearer"
    for path in ("/", "/health", "/ready"):
        assert guarded.client.get(path).status_code == 200
    assert guarded.client.get("/api/v1/status", headers=bearer("wrong")).status_code == 401
    assert guarded.client.get("/api/v1/status", headers={"authorization": "Basic abc"}).status_code == 401


def test_read_token_cannot_write(guarded):
    url = "/api/v1/streams/web/records"
    assert guarded.client.get("/api/v1/status", headers=bearer(READ)).json()["role"] == "read"
    for method, path in (
        ("POST", url),
        ("DELETE", f"{url}?id=a"),
        ("POST", "/api/v1/streams/web/events/x/feedback"),
        ("DELETE", "/api/v1/streams/web/events/x/feedback"),
        ("POST", "/api/v1/streams/web/preview"),
    ):
        assert guarded.client.request(method, path, headers=bearer(READ), json={}).status_code == 403
    record = {"time": START, "host": "a", "cpu": 1, "id": "x"}
    assert guarded.client.post(url, headers=bearer(ADMIN), json=record).status_code == 200


def test_session_cookie_grants_access_and_does_not_contain_the_token(guarded):
    with httpx.Client(base_url=guarded.url, timeout=PATIENCE) as browser:
        assert browser.post("/api/v1/login", json={"token": "wrong"}).status_code == 401
        answer = browser.post("/api/v1/login", json={"token": READ})
        assert answer.json() == {"role": "read"}
        cookie = answer.headers["set-cookie"]
        assert READ not in cookie
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert browser.get("/api/v1/status").json()["role"] == "read"
        browser.post("/api/v1/logout")
        assert browser.get("/api/v1/status").status_code == 401


def test_responses_and_logs_contain_no_secrets(guarded):
    seen = guarded.client.get("/api/v1/settings", headers=bearer(ADMIN)).text + guarded.log
    assert ADMIN not in seen
    assert READ not in seen


def test_listening_on_other_addresses_requires_a_token(programs, tmp_path):
    (tmp_path / "polyaforest.toml").write_text(WEB)
    refused = programs.run("serve", "--host", "0.0.0.0", "--check", cwd=tmp_path)
    assert refused.returncode == 3
    assert b"set a token" in refused.stderr
    allowed = programs.run(
        "serve", "--host", "0.0.0.0", "--check", cwd=tmp_path, env={"POLYAFOREST_ADMIN_TOKEN": ADMIN}
    )
    assert allowed.returncode == 0
    short = programs.run("serve", "--check", cwd=tmp_path, env={"POLYAFOREST_ADMIN_TOKEN": "short"})
    assert short.returncode == 3
    assert b"at least 16" in short.stderr
    assert b"short" not in short.stderr


# ---- pages of others -------------------------------------------------------------------------------------------------


def test_other_origins_cannot_change_anything(service, guarded):
    body = {"time": START, "host": "a", "cpu": 1}
    url = "/api/v1/streams/web/records"
    for origin in ("https://evil.example", "null", "http://127.0.0.1:1"):
        answer = service.client.post(url, json=body, headers={"origin": origin})
        assert answer.status_code == 403
        assert "access-control-allow-origin" not in answer.headers
    assert service.client.post(url, json={}, headers={"origin": service.url}).status_code == 422
    listed = {"origin": "https://ops.example"}
    answer = guarded.client.get("/api/v1/status", headers={**bearer(READ), **listed})
    assert answer.headers["access-control-allow-origin"] == "https://ops.example"
    assert guarded.client.options("/api/v1/status", headers=listed).status_code == 204


def test_rejects_unknown_host_names(service):
    answer = service.client.get("/api/v1/status", headers={"host": "evil.example"})
    assert answer.status_code == 421
    assert service.client.get("/api/v1/status", headers={"host": "localhost:1"}).status_code == 200


# ---- limits ----------------------------------------------------------------------------------------------------------


def test_rejects_a_gigabyte_body_before_it_is_sent(service):
    head = b"POST /api/v1/streams/web/records HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\n"
    answer = raw(service, head + b"x" * 1000)
    assert answer.startswith(b"HTTP/1.1 413")
    assert is_alive(service)


def test_cuts_off_a_body_without_a_length(service):
    def endless():
        for _ in range(64):
            yield b'{"a": 1}\n' * 10_000

    try:
        answer = service.client.post("/api/v1/streams/web/records", content=endless())
    except httpx.TransportError:
        pass  # it closed the connection while we were still sending
    else:
        assert answer.status_code == 413
    assert is_alive(service)


def test_too_many_requests_return_429(programs, tmp_path):
    service = Service(programs, tmp_path, WEB + "\n[server]\nrequests_per_second = 5\n")
    service.start(wait=False)
    try:
        assert service.client.get("/health").status_code == 200
        until(lambda: service.client.get("/health").status_code == 429)
        until(lambda: service.client.get("/health").status_code == 200)
    finally:
        service.close()


def test_rejects_large_headers(service):
    start = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX: "
    assert raw(service, start + b"x" * 1_000 + b"\r\n\r\n").startswith(b"HTTP/1.1 200")
    for n in (40_000, 2_000_000):  # at once, and in pieces
        assert raw(service, start + b"x" * n + b"\r\n\r\n").startswith(b"HTTP/1.1 4")
    assert is_alive(service)


def test_feed_reader_that_does_not_read_does_not_block_others(service):
    host, port = service.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as idle:
        idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        idle.sendall(b"GET /api/v1/feed?stream=web&key=web-1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        until(lambda: "polyaforest_feed_readers 1.0" in service.client.get("/metrics").text)
        for number in range(20):
            assert service.post("web", rows(200, 1000 + 200 * number)).status_code == 200
        assert is_alive(service)


# ---- bodies ----------------------------------------------------------------------------------------------------------

ODD_BODIES = {
    "nothing": b"",
    "blank lines": b"\n\n \n",
    "not UTF-8": b'{"time": "\xff\xfe"}',
    "UTF-16": '{"time": 1}'.encode("utf-16"),
    "deep": b"[" * 100_000,
    "deep objects": b'{"a":' * 100_000,
    "a number": b"17",
    "a list of numbers": b"[1, 2, 3]",
    "half": b'{"time": 1, "cpu":',
    "a null": b"null",
    "NaN": b'{"time": NaN, "host": "a", "cpu": NaN}',
    "surrogates": b'{"time": 1, "host": "\\ud800", "cpu": 1}',
    "zeros": b"\0" * 1000,
}


@pytest.mark.parametrize("kind", ["application/json", "application/x-ndjson", "text/html", ""])
@pytest.mark.parametrize("name", ODD_BODIES)
def test_malformed_bodies_return_a_clear_4xx(service, name, kind):
    answer = service.client.post(
        "/api/v1/streams/web/records", content=ODD_BODIES[name], headers={"content-type": kind}
    )
    assert 400 <= answer.status_code < 500, answer.text
    assert answer.json()["detail"]


def test_fuzzed_bodies_never_stop_the_service(service):
    rng = random.Random(0)
    good = json.dumps(rows(2)[0]).encode()
    for _ in range(150):
        body = bytearray(good * rng.randrange(1, 4))
        for _ in range(rng.randrange(1, 8)):
            body[rng.randrange(len(body))] = rng.randrange(256)
        kind = rng.choice(["application/json", "application/x-ndjson"])
        answer = service.client.post("/api/v1/streams/web/records", content=bytes(body), headers={"content-type": kind})
        assert answer.status_code < 500, (bytes(body), answer.text)
    assert service.get("/streams/web")["is_ready"]
    assert service.post("web", rows(5, 9000)).json()["judged"] == 5


def test_every_response_has_strict_headers(service):
    for path in ("/", "/health", "/api/v1/status", "/nothing", "/api/v1/streams/unknown"):
        headers = service.client.get(path).headers
        assert "script-src 'self'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert "server" not in headers
