"""Hostile clients: malformed requests, slow senders, forged headers, stolen cookies, exhausted limits."""

import json
import re
import socket
import sqlite3
from contextlib import ExitStack
from itertools import count

import pytest
from services import START, WEB, Service, connect, get, post, raw, received, rows
from waiting import until

pytestmark = pytest.mark.end_to_end

ADMIN, READ = "a" * 20 + "-admin", "r" * 20 + "-read"
JSON = "Content-Type: application/json\r\n"
RECORDS, PREVIEW, LOGIN = "/api/v1/streams/web/records", "/api/v1/streams/web/preview", "/api/v1/login"
RECORD = {"time": START, "host": "a", "id": "x", "cpu": 1, "load": 1, "requests": 1}
SHORT = 'header_timeout = "1s"\nbody_timeout = "1s"\nrequests_per_second = 100000\nfeeds_per_address = 3\n'


@pytest.fixture(scope="module")
def begin(programs, tmp_path_factory):
    """Start a service with tokens and given settings."""
    made = []

    def start(settings="", config=WEB, folder=None):
        folder = folder or tmp_path_factory.mktemp("service")
        (folder / "read").write_text(READ)
        config = f'{config}\n[server]\nread_token_file = "read"\n{settings}'
        made.append(Service(programs, folder, config, POLYAFOREST_ADMIN_TOKEN=ADMIN))
        made[-1].start()
        made[-1].client.headers["authorization"] = f"Bearer {ADMIN}"
        return made[-1]

    yield start
    for service in made:
        service.close()


@pytest.fixture(scope="module")
def service(begin):
    started = begin(SHORT)
    assert started.post("web", rows(150)).status_code == 200
    return started


def request(method, target, headers="", body=b"", *, host="localhost", token=ADMIN):
    """Return the bytes of a request with `Connection: close`."""
    body = body.encode() if isinstance(body, str) else body
    length = f"Content-Length: {len(body)}\r\n" if body and "Content-Length" not in headers else ""
    authorization = f"Authorization: Bearer {token}\r\n" if token else ""
    head = f"{method} {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{authorization}{headers}{length}\r\n"
    return head.encode("latin-1") + body


def status(service, *parts, **options):
    return int(raw(service, request(*parts, **options)).split()[1])


# ---- malformed text --------------------------------------------------------------------------------------------------

BAD_HOSTS = ["[", "]", "[::1", "[zz]", "\xff[", "http://[", "a]b", "localhost/", "x@localhost", "localhost?x"]


@pytest.mark.parametrize("host", BAD_HOSTS)
@pytest.mark.parametrize("token", [ADMIN, None])
def test_malformed_host_returns_400(service, host, token):
    assert status(service, "GET", "/api/v1/status", host=host, token=token) == 400
    assert status(service, "POST", LOGIN, JSON, '{"token": "x"}', host=host, token=token) == 400


@pytest.mark.parametrize("origin", ["http://[", "[", "http://[::1", "//[", "http://localhost:[", "\xff", ""])
def test_malformed_origin_cannot_change_anything(service, origin):
    headers = f"Origin: {origin}\r\n"
    assert status(service, "POST", LOGIN, JSON + headers, '{"token": "x"}', token=None) == 403
    assert status(service, "GET", "/api/v1/status", headers) == 200
    assert status(service, "GET", "/api/v1/status", headers, token=None) == 401


HOSTILE = {
    "cookies": [
        ("GET", "/api/v1/status", f"Cookie: {cookie}\r\n", "", None)
        for cookie in ("polyaforest=", 'polyaforest="', "=;=;", 'polyaforest="\\377\\9', "\xff=\xff", "a b=c", "[]=1")
    ],
    "authorization": [
        ("GET", "/api/v1/status", f"Authorization: {text}\r\n", "", None)
        for text in ("", "Bearer", "Bearer \xff\xfe", "bearer x y", "Basic \xff", "Bearer " + "x" * 30_000)
    ],
    "lengths": [
        ("POST", RECORDS, f"Content-Length: {text}\r\n", "{}", ADMIN)
        for text in ("9" * 5000, "-1", "1e3", "", "1, 1", "1,2", "\xb2", "9" * 21, "+5")
    ],
    "types": [
        ("POST", target, f"Content-Type: {text}\r\n", '{"token": "x"}', ADMIN)
        for text in ("", "/", ";;;", "application/json; charset=\xff", "multipart/form-data; boundary=", "a" * 5000)
        for target in (RECORDS, LOGIN, PREVIEW)
    ],
    "targets": [
        (method, target, "", "", ADMIN)
        for method in ("GET", "POST", "DELETE", "HEAD", "OPTIONS", "TRACE", "get", "X" * 500)
        for target in ("*", "/%", "/%zz", "/%00", "/%ff%fe", "/api/v1/streams/%00", "/api/v1/streams/%ed%a0%80", "//[",
                       "/api/v1/streams/web/events/%ff", "http://evil/api/v1/status", "//evil/", "/api/v1/status/", "[",
                       "/api/v1/streams/" + "a" * 20_000)
    ],
    "queries": [
        ("GET", f"/api/v1{path}?{query}", "", "", ADMIN)
        for path in ("/streams/web/series", "/events", "/overview", "/incidents", "/streams/web/keys", "/feed/x")
        for query in ("key=%00", "key=%ed%a0%80", "start=nan", "start=1e400", "start=-1e12&end=1e12", "start=%D9%A1",
                      "start=1e12&end=-1e12", "points=" + "9" * 5000, "start=0&end=5e-324", "within=5e-324", "&&=&",
                      "start=1e11&end=100000000000.00001", "search=%00%ff", "stream=%00", "&".join(["a=1"] * 5000))
    ],
    "bodies": [
        ("POST", target, JSON, body, ADMIN)
        for target in (LOGIN, PREVIEW, "/api/v1/streams/web/events/x/feedback", RECORDS)
        for body in (
            "[" * 100_000, '{"a":' * 100_000, '{"gates":{"valid":' + '{"a":' * 500 + "1" + "}" * 502, b"\xff\xfe",
            '{"token":"\\ud800"}', '{"\\ud800":1}', '{"token":' + "9" * 5000 + "}", '{"token":NaN}', "null", '""',
            '{"verdict":"normal","note":"\\ud800"}', '{"verdict":"\\ud800"}', '{"records":' + "9" * 400 + "}",
            '{"window":"' + "9" * 400 + 's"}', '{"window":"9999999999999999d"}', '{"window":"\\ud800"}',
            '{"window":99999999999999999999}', '{"trees":1e999}', '{"gates":{"valid":{"\\ud800":[0,1]}}}',
            '{"gates":{"valid":{"cpu":[NaN,2]}}}', '{"gates":{"valid":{"cpu":[1' + "0" * 400 + ",2]}}}",
            '{"gates":{"valid":{"cpu":[2,1' + "0" * 400 + "]}}}", '{"gates":{"\\ud800":1}}', '{"key":"\\ud800"}',
            '{"key":"\\u0000"}', '{"false_alarm_rate":5e-324}', '{"window":"0.000001s"}',
        )
    ],
    "names of requests": [
        ("POST", RECORDS, f"{JSON}Idempotency-Key: {name}\r\n", json.dumps(RECORD), ADMIN)
        for name in ("", "", " ", "\xff", "a" * 256, "a" * 257)
    ],
    "odd headers": [
        ("POST", LOGIN, JSON + "Expect: nonsense\r\n", '{"token":"x"}', None),
        ("POST", LOGIN, JSON + "Transfer-Encoding: gzip\r\n", "zz", None),
        ("GET", "/", "Range: bytes=5-1\r\nIf-None-Match: \xff\r\nIf-Modified-Since: x\r\n", "", None),
        ("GET", "/api/v1/status", "Upgrade: websocket\r\nSec-WebSocket-Key: x\r\n", "", ADMIN),
        ("GET", "/api/v1/feed?stream=nope", "Last-Event-ID: \xff\r\n", "", ADMIN),
    ],
}  # fmt: skip


def without_late_fields(log):
    """Return a log without the reports of fields that are not in the first record, of which there are few."""
    return [line for line in log.splitlines() if "not in the first record" not in line]


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_requests_cause_no_server_error_and_no_log_line(service, kind):
    before = without_late_fields(service.log)
    for method, target, headers, body, token in HOSTILE[kind]:
        code = status(service, method, target, headers, body, token=token)
        assert code < 500, (method, target[:80], headers[:80], body[:80])
    assert without_late_fields(service.log) == before
    assert service.is_ready


def test_client_that_disconnects_within_its_body_causes_no_error(service):
    before, n_before = service.log, n_failed(service)
    for target in (RECORDS, LOGIN, PREVIEW):
        with connect(service) as connection:
            connection.sendall(request("POST", target, f"{JSON}Content-Length: 100\r\n", "{"))
    until(lambda: n_failed(service) == n_before + 3)
    assert service.log == before


FAILED = re.compile(r'_request_seconds_count{method="POST",route="[^"]*/(?:records|login|preview)",status="4xx"} (.*)')


def n_failed(service):
    """Return the number of failed requests with a body."""
    return sum(map(float, FAILED.findall(service.client.get("/metrics").text)))


# ---- metrics ---------------------------------------------------------------------------------------------------------


def lines_of_metrics(service):
    return len(service.client.get("/metrics").text.splitlines())


def test_unknown_methods_and_paths_do_not_inflate_metrics(service):
    for method in ("INVENTED", "GET", "PATCH"):
        assert status(service, method, "/invented", token=None) in (404, 405)
        assert status(service, method, "/api/v1/invented", token=None) == 401
    before = lines_of_metrics(service)
    for i in range(50):
        status(service, f"INVENTED{i}", f"/invented{i}", token=None)
        status(service, f"INVENTED{i}", f"/api/v1/invented{i}", token=None)
        status(service, "GET", f"/api/v1/streams/invented{i}")
    assert lines_of_metrics(service) <= before + 15  # of the route of an unknown stream
    assert "INVENTED" not in service.client.get("/metrics").text.upper().replace("INVENTED_", "")


# ---- slow clients ----------------------------------------------------------------------------------------------------


def await_health(connection):
    """Read the response to a request for /health, which may arrive in pieces."""
    answer = b""
    while not answer.endswith(b'{"status":"alive"}'):
        piece = connection.recv(65536)
        assert piece, answer
        answer += piece


def test_headers_of_every_request_have_a_timeout(service):
    with connect(service) as slow:
        whole = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        for _ in range(2):
            slow.sendall(whole)
            await_health(slow)
        slow.sendall(whole[:20])
        assert received(slow) == b""  # closed by the server, not by our timeout


def test_trickling_bytes_do_not_extend_the_timeout(service):
    with connect(service) as slow:
        slow.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await_health(slow)
        slow.sendall(b"GET /health HTTP/1.1\r\nX: ")
        until(lambda: not trickle(slow))


def trickle(connection):
    """Send a byte; return whether the connection is open."""
    try:
        connection.sendall(b"x")
    except OSError:
        return False
    return True


@pytest.mark.parametrize("target", [RECORDS, LOGIN, PREVIEW])
def test_body_has_a_timeout(service, target):
    answer = raw(service, request("POST", target, f"{JSON}Content-Length: 100\r\n", "{"))
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"did not arrive within 1 seconds" in answer


def test_unread_rest_of_a_body_has_a_timeout(service):
    with connect(service) as slow:
        slow.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n")
        await_health(slow)
        slow.sendall(b"x")
        assert received(slow) == b""


@pytest.mark.slow
def test_client_that_does_not_read_is_disconnected_without_a_traceback(service):
    before = service.log
    with connect(service) as unread:
        unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        unread.sendall(b"GET /vendor/uPlot.iife.min.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * 200)
        until(lambda: service.log != before, 120)
    assert "Traceback" not in service.log.removeprefix(before)


# ---- addresses -------------------------------------------------------------------------------------------------------


def forget(service, *forwarded):
    """Delete a record; return the address in the audit log."""
    headers = [("x-forwarded-for", address) for address in forwarded]
    assert service.client.delete(RECORDS, params={"id": "x"}, headers=headers).status_code == 200
    return service.get("/streams/web/audit", limit=1)["entries"][0]["who"]


def test_forwarded_address_is_trusted_only_from_trusted_proxies(service, begin):
    assert forget(service, "203.0.113.9") == "admin at 127.0.0.1"
    behind = begin('trusted_proxies = ["127.0.0.0/8", "10.1.2.3"]\n')
    assert behind.post("web", rows(5)).status_code == 200
    assert forget(behind) == "admin at 127.0.0.1"
    assert forget(behind, "203.0.113.9") == "admin at 203.0.113.9"
    assert forget(behind, "1.1.1.1, 203.0.113.9") == "admin at 203.0.113.9"  # the client's claim is on the left
    assert forget(behind, "1.1.1.1, 203.0.113.9, 10.1.2.3") == "admin at 203.0.113.9"
    answer = behind.client.post(LOGIN, json={"token": READ}, headers={"x-forwarded-proto": "https"})
    assert "Secure" in answer.headers["set-cookie"]


def test_forged_headers_do_not_evade_the_rate_limit_or_secure_a_cookie(begin):
    service = begin("requests_per_second = 5\n")
    forged = ({"x-forwarded-for": f"1.2.3.{number}"} for number in count())
    until(lambda: service.client.get("/health", headers=next(forged)).status_code == 429)
    answers = []

    def is_in():
        answers.append(service.client.post(LOGIN, json={"token": READ}, headers={"x-forwarded-proto": "https"}))
        return answers[-1].status_code == 200

    until(is_in)  # once the limit allows it
    assert "Secure" not in answers[-1].headers["set-cookie"]


def test_rejects_proxies_that_are_not_addresses(programs, tmp_path):
    (tmp_path / "polyaforest.toml").write_text(WEB + '\n[server]\ntrusted_proxies = ["*"]\n')
    refused = programs.run("serve", "--check", cwd=tmp_path)
    assert refused.returncode == 3
    assert b"server.trusted_proxies" in refused.stderr
    assert b"not an address or network" in refused.stderr


# ---- sessions --------------------------------------------------------------------------------------------------------


def login(service, token=READ):
    """Log in; return the value of the cookie."""
    answer = post(service.url + LOGIN, json={"token": token})
    assert answer.status_code == 200
    return answer.cookies["polyaforest"]


def role(service, session):
    """Return the role of a cookie, None without access."""
    answer = get(f"{service.url}/api/v1/status", headers={"cookie": f"polyaforest={session}"})
    return answer.json()["role"] if answer.status_code == 200 else None


def logout(service, session):
    headers = {"cookie": f"polyaforest={session}"}
    assert post(f"{service.url}/api/v1/logout", headers=headers).status_code == 200


def test_logout_ends_only_its_own_session(service):
    one, other = login(service), login(service)
    assert one != other
    assert role(service, one) == role(service, other) == "read"
    logout(service, one)
    assert role(service, one) is None
    assert role(service, other) == "read"


def test_cookies_and_tokens_are_not_interchangeable(service):
    session = login(service, ADMIN)
    assert role(service, session) == "admin"
    bearer = {"authorization": f"Bearer {session}"}
    assert get(f"{service.url}/api/v1/status", headers=bearer).status_code == 401
    assert post(service.url + LOGIN, json={"token": session}).status_code == 401
    assert role(service, ADMIN) is None


def test_logout_ends_the_feeds_of_its_session(service):
    session = login(service)
    with connect(service) as feed:
        feed.sendall(request("GET", "/api/v1/feed", f"Cookie: polyaforest={session}\r\n", token=None))
        assert feed.recv(65536).startswith(b"HTTP/1.1 200")
        logout(service, session)
        received(feed)  # which returns once the server has closed it


def test_sessions_survive_a_restart_but_not_logout_age_or_a_new_token(begin, tmp_path):
    service = begin(folder=tmp_path)
    ended, kept = login(service), login(service, ADMIN)
    logout(service, ended)
    file = tmp_path / "polyaforest-data" / "sessions.json"
    assert not any(secret in file.read_text() for secret in (ADMIN, READ, ended, kept))
    restart(service)
    assert role(service, ended) is None
    assert role(service, kept) == "admin"
    service.env["POLYAFOREST_ADMIN_TOKEN"] = "b" * 20
    restart(service)
    assert role(service, kept) is None
    file.write_text("damaged")
    with (tmp_path / "polyaforest.toml").open("a") as config:
        config.write('session_age = "0.5s"\n')
    restart(service)
    assert "log in again" in service.log
    session = login(service)
    until(lambda: role(service, session) is None)


def restart(service):
    assert service.stop() == 0
    service.start()
    service.client.headers["authorization"] = f"Bearer {ADMIN}"


# ---- what is scarce --------------------------------------------------------------------------------------------------


def test_feeds_per_address_are_limited(service):
    follow = request("GET", "/api/v1/feed")
    with ExitStack() as open_ones:
        for _ in range(3):
            feed = open_ones.enter_context(connect(service))
            feed.sendall(follow)
            assert feed.recv(65536).startswith(b"HTTP/1.1 200")
        answer = raw(service, follow)
        assert answer.startswith(b"HTTP/1.1 429")
        assert b"3 feeds from your address are already open" in answer
    until(lambda: "polyaforest_feed_readers 0.0" in service.client.get("/metrics").text)
    with connect(service) as feed:
        feed.sendall(follow)
        assert feed.recv(65536).startswith(b"HTTP/1.1 200")


LONG_PREVIEW = {"records": 4000, "trees": 1000, "window": 10_000, "false_alarm_rate": 0.9}  # takes minutes


def test_preview_is_cancelled_when_its_client_disconnects_or_the_service_stops(begin):
    service = begin()
    for start in range(0, 4000, 1000):
        assert service.post("web", rows(1000, start), verdicts="none").status_code == 200
    long = request("POST", PREVIEW, JSON, json.dumps(LONG_PREVIEW))
    with connect(service) as client:
        client.sendall(long)
        until(lambda: n_previews(service) == 1)
        short = service.client.post(PREVIEW, json={"records": 100, "trees": 2})
        assert short.status_code == 503
    until(lambda: n_previews(service) == 0)
    assert service.client.post(PREVIEW, json={"records": 100, "trees": 2}).status_code == 200
    with connect(service) as client:
        client.sendall(long)
        until(lambda: n_previews(service) == 1)
        assert service.stop() == 0
        assert received(client).startswith(b"HTTP/1.1 50")


def n_previews(service):
    return int("polyaforest_previews 1.0" in service.client.get("/metrics").text)


# ---- records ---------------------------------------------------------------------------------------------------------


def test_reused_idempotency_key_with_other_records_is_an_error(service):
    first = service.post("web", rows(3, host="named"), name="batch")
    assert first.status_code == 200
    other = service.post("web", rows(3, 3, host="named"), name="batch")
    assert other.status_code == 422
    assert "used for other records" in other.json()["detail"]
    same = service.post("web", rows(3, host="named"), name="batch")
    assert (same.status_code, same.json()["first"]) == (202, first.json()["first"])
    assert service.get("/streams/web/series", key="named")["n_records"] == 3
    other = service.post("web", rows(3, 3, host="named"), name="batch", wait="false")
    assert other.status_code == 422


def test_request_stored_without_a_digest_is_recognised_by_its_name(begin, tmp_path):
    service = begin(folder=tmp_path)
    assert service.post("web", rows(3), name="old").status_code == 200
    assert service.stop() == 0
    file = sqlite3.connect(tmp_path / "polyaforest-data" / "web.history")
    with file:
        file.execute("UPDATE inbox SET digest = NULL")  # as after an upgrade from version 1
    file.close()
    service.start()
    service.client.headers["authorization"] = f"Bearer {ADMIN}"
    assert service.post("web", rows(3), name="old").status_code == 202
    assert service.post("web", rows(3, 3), name="new").status_code == 200
    assert service.post("web", rows(3, 6), name="new").status_code == 422
    assert service.get("/streams/web")["n_records"] == 6


@pytest.mark.parametrize("field", ["host", "id"])
def test_rejects_keys_and_ids_longer_than_the_api_accepts(service, field):
    longest = "\N{GRINNING FACE}" * 4096  # the longest in a URL
    answer = service.client.post(RECORDS, json=[{**RECORD, field: longest}, {**RECORD, field: longest + "x"}])
    assert answer.status_code == 200
    (rejected,) = answer.json()["rejected"]
    assert f"'{field}' is longer than 4,096 characters" in rejected["error"]
    if field == "host":
        assert service.get("/streams/web/series", key=longest)["n_records"] == 1
    else:
        assert service.client.delete(RECORDS, params={"id": longest}).status_code == 200
