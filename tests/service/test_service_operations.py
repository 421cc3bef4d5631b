"""The work with events: acknowledge, close, reopen, mute, annotate; incidents, and the alerts about them."""

import base64
import hashlib
import hmac
import json
import sqlite3
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from services import START, WEB, Receiver, Service, odd, receiver, rows
from streams_served import post, running
from waiting import until

from polyaforest.service.alerts import Destination, Outbox
from polyaforest.service.config import AlertConfig, parse_config
from polyaforest.service.database import Database
from polyaforest.service.delivery import Delivery
from polyaforest.service.failures import Failures
from polyaforest.service.gates import Departure, why_muted
from polyaforest.service.incidents import IncidentBook, find_incidents
from polyaforest.settings.stream import Gates, Mute
from polyaforest.util.patterns import check_pattern, matches

pytestmark = pytest.mark.end_to_end

N = 200
ROWS = WEB + "series = false\n"
ALERT = '\n[[alerts]]\nname = "ops"\nurl = "{}"\n{}\n'


@pytest.fixture
def database(tmp_path):
    made = Database(str(tmp_path / "h"))
    yield made
    made.close()


def flagged(service, *hosts):
    """Post normal records of hosts and then an anomaly of each; return the events by host."""
    for host in hosts:
        service.post("web", rows(N, host=host), verdicts="none").raise_for_status()
    service.post("web", [odd(N, host=host) for host in hosts], verdicts="none").raise_for_status()
    return {event["key"]: event for event in service.get("/events", open=True)["events"]}


def act(service, event, action, **body):
    return service.client.post(f"/api/v1/streams/web/events/{event['id']}/{action}", json=body)


# ---- the life of an event --------------------------------------------------------------------------------------------


def test_event_is_acknowledged_closed_and_reopened(start):
    service = start(ROWS)
    event = flagged(service, "web-1")["web-1"]
    answer = act(service, event, "acknowledge", by="Ada", note="looking")
    assert answer.status_code == 200, answer.text
    assert answer.json()["acknowledged"]["by"].startswith("Ada (admin at ")
    assert service.get("/events", open=True)["events"][0]["acknowledged"]["note"] == "looking"
    assert service.client.delete(f"/api/v1/streams/web/events/{event['id']}/acknowledge").json()["acknowledged"] is None
    closed = act(service, event, "close", by="Ada", note="done").json()
    assert (closed["is_open"], closed["closed_by"]) == (False, "operator")
    assert act(service, event, "close").status_code == 409
    assert act(service, event, "acknowledge").status_code == 409
    assert act(service, event, "reopen", note="it is back").json()["is_open"]
    service.post("web", rows(50, N + 1), verdicts="none")  # would close an event that records keep open
    service.stop()
    service.start()
    assert [one["id"] for one in service.get("/events", open=True)["events"]] == [event["id"]]
    assert not act(service, event, "close").json()["is_open"]
    actions = [entry["action"] for entry in service.get("/streams/web/audit")["entries"]]
    assert actions[:5] == ["close", "reopen", "close", "withdraw acknowledgement", "acknowledge"]
    assert act(service, {"id": "none"}, "close").status_code == 404
    service.post("web", [odd(N + 60)], verdicts="none")  # another event begins
    assert {one["id"] for one in service.get("/events", open=True)["events"]}.isdisjoint({event["id"]})


@pytest.mark.slow
def test_acknowledged_event_sends_only_its_end(start):
    with receiver() as hook:
        service = start(ROWS + ALERT.format(hook.url, "worse_by = 1\ngroup_wait = 0\ngroup_interval = 0"))
        event = flagged(service, "web-1")["web-1"]
        until(lambda: len(hook.messages) == 1)
        act(service, event, "acknowledge")
        service.post("web", [odd(N + 1, cpu=1e6)], verdicts="none")
        assert service.get(f"/streams/web/events/{event['id']}")["bits"] > event["bits"] + 1
        act(service, event, "close")
        until(lambda: len(hook.messages) == 2)
        assert [message["type"] for message in hook.messages] == ["open", "closing"]


# ---- mutes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rule",
    [
        {"pattern": "web-[0-9]+"},
        pytest.param({"key": "web-1"}, marks=pytest.mark.slow),
        pytest.param({"field": "cpu"}, marks=pytest.mark.slow),
    ],
)
def test_rule_mutes_until_it_is_removed(start, rule):
    service = start(ROWS)
    service.post("web", rows(N), verdicts="none").raise_for_status()
    answer = service.client.post("/api/v1/streams/web/mutes", json={**rule, "seconds": 3600, "reason": "deploy"})
    assert answer.status_code == 200, answer.text
    (verdict,) = service.post("web", [odd(N)]).json()["verdicts"]
    assert not verdict["is_anomaly"]
    assert verdict["muted"].endswith(": deploy")
    assert service.get("/events", open=True)["events"] == []
    (known,) = service.get("/streams/web/mutes")["mutes"]
    service.stop()
    service.start()  # rules are part of the history
    assert service.get("/streams/web/mutes")["mutes"] == [known]
    assert service.client.delete(f"/api/v1/streams/web/mutes/{known['id']}").status_code == 200
    assert service.client.delete(f"/api/v1/streams/web/mutes/{known['id']}").status_code == 404
    (verdict,) = service.post("web", [odd(N + 20, cpu=500.0)]).json()["verdicts"]
    assert verdict["is_anomaly"]


def test_rule_ends_by_itself(tmp_path):
    with running(tmp_path, ROWS) as stream:
        post(stream, rows(N))
        with stream.database.write() as file:
            facts = {"key": "web-1", "pattern": None, "field": None, "reason": "", "who": "x"}
            stream.mutes.add(file, {**facts, "until": time.time() + 3600})
        stream.mutes.reload()
        assert post(stream, [odd(N)])[0].muted == "muted by x"
        with stream.database.write() as file:  # as if the hour were over
            file.execute("UPDATE mutes SET until = ?", (time.time(),))
        stream.mutes.reload()
        assert stream.mutes.in_force() == []
        assert post(stream, [odd(N + 20, cpu=500.0)])[0].muted is None


@pytest.mark.parametrize(
    "body",
    [
        {"seconds": 60},
        {"key": "a", "pattern": "a", "seconds": 60},
        {"pattern": "(", "seconds": 60},
        {"pattern": "a" * 300, "seconds": 60},
        {"key": "a", "seconds": 0},
        {"key": "a"},
    ],
)
def test_invalid_rules_are_rejected(service, body):
    assert service.client.post("/api/v1/streams/web/mutes", json=body).status_code == 422


@pytest.fixture(scope="module")
def service(programs, tmp_path_factory):
    made = Service(programs, tmp_path_factory.mktemp("service"), ROWS + '\n[streams.db]\ntime = "time"\n').start()
    yield made
    made.close()


def test_patterns_match_whole_keys_in_linear_time():
    assert matches("web-.*", "web-1")
    assert not matches("web", "web-1")
    assert not matches("(a+)+$", "a" * 4000 + "b")  # engines that backtrack would never finish
    with pytest.raises(ValueError, match="regular expression"):
        check_pattern("(")


def test_configured_rules_can_have_patterns():
    departed = Departure("cpu", 9.0, "high", 1.0, 0.0, 2.0)
    rules = [Mute(pattern="web-[12]")]
    assert why_muted(Gates(), rules, "web-1", START, departed) == "muted"
    assert why_muted(Gates(), rules, "web-10", START, departed) is None
    with pytest.raises(ValueError, match="pattern"):
        parse_config('[streams.web]\n[[streams.web.mute]]\npattern = "("\n')


# ---- annotations -----------------------------------------------------------------------------------------------------


def test_annotations_of_one_stream_or_all(service):
    client = service.client
    everywhere = client.post("/api/v1/annotations", json={"text": "v1.2 <b>", "start": START, "by": "CI"}).json()
    assert set(everywhere["streams"]) == {"web", "db"}
    of_key = {"text": "disk", "start": START + 60, "end": START + 120, "stream": "web", "key": "web-1"}
    client.post("/api/v1/annotations", json=of_key).raise_for_status()
    found = service.get("/annotations", start=START - 1, end=START + 300)["annotations"]
    assert [one["text"] for one in found] == ["disk", "v1.2 <b>"]
    assert service.get("/annotations", stream="web", key="web-2")["annotations"] == [{**found[1], "streams": ["web"]}]
    assert service.get("/annotations", start=START + 90)["annotations"] == found[:1]
    assert client.post("/api/v1/annotations", json={"text": "x", "key": "a"}).status_code == 422
    assert client.post("/api/v1/annotations", json={"text": "x", "start": 2, "end": 1}).status_code == 422
    for one in found:
        assert client.delete(f"/api/v1/annotations/{one['id']}").status_code == 200
    assert client.delete(f"/api/v1/annotations/{found[0]['id']}").status_code == 404
    assert service.get("/annotations")["annotations"] == []


def test_history_without_the_new_tables_is_opened(tmp_path):
    Database(str(tmp_path / "old")).close()
    with sqlite3.connect(tmp_path / "old") as file:
        file.executescript("DROP TABLE mutes; DROP TABLE annotations;")
    file.close()
    database = Database(str(tmp_path / "old"))
    with database.read() as reader:
        assert reader.execute("SELECT count(*) FROM mutes").fetchone() == (0,)
    database.close()


# ---- causes and incidents --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_causes_group_events(start):
    service = start(ROWS)
    flagged(service, "web-1", "web-2")
    (cause,) = [cause for cause in service.get("/causes", start=START + 60 * N)["causes"] if cause["n_open"]]
    facts = {"stream": "web", "kind": "anomaly", "field": "cpu", "side": "high", "n_events": 2, "n_keys": 2}
    assert facts.items() <= cause.items()


def event(id, key="a", start=0.0, end=None, *, stream="s", kind="anomaly", is_open=False, side="high", **bits):
    field = max(bits, key=bits.get) if bits else None
    return {
        "id": id,
        "stream": stream,
        "key": key,
        "kind": kind,
        "start": start,
        "end": start if end is None else end,
        "is_open": is_open,
        "bits": 9.0,
        "severity": 3,
        "tail_bits": 14.0,
        "attributions": bits,
        "departure": {"field": field, "side": side} if field else None,
        "summary": f"{field} is too {side}",
    }


def groups(*events):
    return [sorted(one["id"] for one in incident["events"]) for incident in find_incidents(events)]


def test_long_event_does_not_absorb_others():
    disk = event("long", "db", 0, 1e6, disk=9)
    others = [event(f"e{i}", f"web-{i}", 1000.0 * i, **{f"field-{i}": 9.0}) for i in range(1, 5)]
    assert groups(disk, *others) == []
    assert groups(disk, *others, event("again", "db-2", 5000.0, disk=7, cpu=1)) == [["again", "long"]]


def test_events_that_overlap_and_are_alike_join():
    cpu = event("a", "web-1", 0, 10, cpu=9)
    assert groups(cpu, event("b", "web-2", 5, cpu=8, disk=1)) == [["a", "b"]]
    assert groups(cpu, event("b", "web-2", 500, cpu=8)) == []  # later
    assert groups(cpu, event("b", "web-2", 5, side="low", cpu=8)) == []  # the opposite
    assert groups(cpu, event("b", "web-2", 5, disk=8)) == []
    assert groups(cpu, event("b", "web-1", 5, stream="t", disk=8)) == [["a", "b"]]  # the same host in another stream
    quiet = {"kind": "silence", "is_open": True}
    assert groups(event("a", "x", 0, **quiet), event("b", "y", 5000, **quiet)) == [["a", "b"]]


def test_event_stays_in_the_incident_it_joined():
    book = IncidentBook()
    first = {**event("a", "web-1", 0, cpu=9)}
    first["incident"] = book.join(first)
    second = event("b", "web-2", 5, cpu=9)
    second["incident"] = book.join(second)
    changed = {**second, "attributions": {"disk": 50.0}, "departure": {"field": "disk", "side": "high"}, "end": 900.0}
    assert book.join(changed) == {"id": "a", "stream": "s"}
    assert [one["id"] for one in book.members("a")] == ["a", "b"]


# ---- alerts ----------------------------------------------------------------------------------------------------------


def outbox_of(database, url, **settings):
    return Outbox("s", database, [Destination(AlertConfig(name="ops", url=url, **settings))], "http://here")


def queue(outbox, book, database, one):
    one["incident"] = book.join(one)
    with database.write() as file:
        outbox.add(file, one)
    return one


def test_incident_on_many_keys_is_one_message(start):
    with receiver() as hook:
        service = start(ROWS + ALERT.format(hook.url, "min_bits = 20\ngroup_wait = 1"))
        hosts = [f"web-{i}" for i in range(5)]
        events = flagged(service, *hosts)
        until(lambda: len(hook.messages) == 1)
        (message,) = hook.messages
        assert message["type"] == "open"
        assert {one["key"] for one in message["incident"]["keys"]} == set(hosts)
        assert "5 keys are affected: web / web-0" in message["text"]
        assert "(and 4 more keys)" in message["title"]
        for host in hosts:
            service.post("web", rows(30, N + 1, host=host), verdicts="none")
        until(lambda: len(hook.messages) == 2)
        assert hook.messages[1]["title"].startswith("Over: 5 keys")
        for one in events.values():
            alerts = service.get(f"/streams/web/events/{one['id']}")["alerts"]
            assert [alert["kind"] for alert in alerts] == ["open", "closing"]
        assert len(hook.messages) == 2


def test_growing_incident_is_reported_once_per_interval(database):
    with receiver() as hook:
        book = IncidentBook()
        outbox = outbox_of(database, hook.url, group_wait=0.0, group_interval=3600.0)
        delivery = Delivery(lambda: [outbox], book)
        queue(outbox, book, database, event("a", "k0", 0, is_open=True, cpu=9))
        assert delivery.send_due()["sent"] == 1
        for i in range(1, 4):
            queue(outbox, book, database, event(f"e{i}", f"k{i}", i, is_open=True, cpu=9))
            assert delivery.send_due() == {"sent": 0, "retried": 0, "failed": 0}  # not yet
        assert outbox.n_waiting() == 3
        outbox.use([Destination(AlertConfig(name="ops", url=hook.url, group_interval=0.0))])
        with database.write() as file:
            file.execute("UPDATE outbox SET due = 0")
        assert delivery.send_due()["sent"] == 3
        assert [message["type"] for message in hook.messages] == ["open", "worse"]
        assert len(hook.messages[1]["incident"]["keys"]) == 4


def test_end_is_reported_although_an_event_without_alerts_is_open(database):
    with receiver() as hook:
        book = IncidentBook()
        outbox = outbox_of(database, hook.url, group_wait=0.0, min_severity=3)
        delivery = Delivery(lambda: [outbox], book)
        queue(outbox, book, database, event("a", "k0", 0, is_open=True, cpu=9))
        assert delivery.send_due()["sent"] == 1
        queue(outbox, book, database, {**event("b", "k1", 1, is_open=True, cpu=9), "severity": 1})
        queue(outbox, book, database, {**event("a", "k0", 0, 2.0, cpu=9), "incident": {"id": "a", "stream": "s"}})
        delivery.send_due()
        assert [message["type"] for message in hook.messages] == ["open", "closing"]


def test_messages_per_hour_are_limited(database):
    with receiver() as hook:
        book = IncidentBook()
        outbox = outbox_of(database, hook.url, group_wait=0.0, most_per_hour=2)
        delivery = Delivery(lambda: [outbox], book)
        queue(outbox, book, database, event("first", "k", 0, cpu=9, is_open=True))
        assert delivery.send_due()["sent"] == 1
        for i in range(4):
            queue(outbox, book, database, event(f"e{i}", f"k{i}", 10_000.0 * (i + 1), is_open=True, **{f"f{i}": 9.0}))
        assert delivery.send_due()["sent"] == 4
        assert hook.messages[1]["type"] == "digest"
        assert hook.messages[1]["title"].startswith("4 incidents")
        queue(outbox, book, database, event("last", "z", 1e6, is_open=True, other=9.0))
        assert delivery.send_due() == {"sent": 0, "retried": 0, "failed": 0}
        assert outbox.n_waiting() == 1  # it will be sent
        assert len(hook.messages) == 2


SECRET = "whsec_" + base64.b64encode(b"a secret of 24 bytes or so").decode()


class SignedReceiver(Receiver):
    """A webhook that verifies signatures as the Standard Webhooks specification says."""

    def __init__(self, secret):
        super().__init__()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                signed = f"{self.headers['webhook-id']}.{self.headers['webhook-timestamp']}.".encode() + body
                digest = hmac.new(secret, signed, hashlib.sha256).digest()
                is_valid = self.headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"
                if is_valid:
                    outer.messages.append(json.loads(body))
                self.send_response(200 if is_valid else 401)
                self.end_headers()

            def log_message(self, *_):
                pass

        self.signed = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.signed.server_port}/"
        threading.Thread(target=self.signed.serve_forever, daemon=True).start()

    def close(self):
        super().close()
        self.signed.shutdown()
        self.signed.server_close()


def test_webhooks_are_signed(tmp_path):
    hook = SignedReceiver(b"a secret of 24 bytes or so")
    try:
        (tmp_path / "secret").write_text(SECRET + "\n")
        signed = Destination(AlertConfig(name="ops", url=hook.url, secret_file=str(tmp_path / "secret")))
        message = {"id": "m1", "title": "t", "text": "x"}
        assert signed.send(message) is None
        assert hook.messages == [message]
        assert Destination(AlertConfig(name="ops", url=hook.url)).send(message) == "HTTP status 401"
    finally:
        hook.close()


@pytest.mark.parametrize("secret", ["short", "whsec_%%%", "whsec_YQ=="])
def test_weak_or_malformed_secrets_are_rejected(tmp_path, secret):
    (tmp_path / "secret").write_text(secret)
    with pytest.raises(ValueError, match="secret"):
        Destination(AlertConfig(name="ops", url="http://127.0.0.1:9/", secret_file=str(tmp_path / "secret")))


def test_command_sends_a_test_alert(programs, tmp_path):
    with receiver() as hook:
        config = WEB + ALERT.format(hook.url, "") + ALERT.format("http://127.0.0.1:9/x", "").replace("ops", "broken")
        (tmp_path / "polyaforest.toml").write_text(config)
        done = programs.run("serve", "--test-alert", cwd=tmp_path)
        assert done.returncode == 1
        assert b"ops: sent" in done.stderr
        assert b"broken: ConnectionError" in done.stderr
        assert [message["type"] for message in hook.messages] == ["test"]


# ---- failures of the stream ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_failing_stream_is_an_event_with_an_alert(start, tmp_path):
    with receiver() as hook:
        source = tmp_path / "missing" / "log.jsonl"
        source.parent.mkdir()
        source.write_text(json.dumps({"time": START, "cpu": 1.0}) + "\n")
        config = f'[streams.file]\nsource = "{source}"\ntime = "time"\n'
        service = start(config + ALERT.format(hook.url, "group_wait = 0"))
        service.stop()
        models = next(tmp_path.glob("polyaforest-data/file.models"))
        good = models.read_bytes()
        models.write_bytes(b"not a database" * 100)
        service.start(wait=False)
        until(lambda: hook.messages)
        assert hook.messages[0]["title"].startswith("Stream failed: file: this stream is not running")
        models.write_bytes(good)
        until(lambda: len(hook.messages) == 2)
        assert hook.messages[1]["type"] == "closing"
        assert service.get("/events", open=True)["events"] == []


def test_waiting_records_are_an_event():
    failures = Failures("web")
    assert failures.waits(1.0, 10.0) == []
    (begun,) = failures.waits(11.0, 10.0)
    assert begun.is_open
    assert begun.facts["what"] == "lag"
    assert failures.waits(20.0, 10.0) == []
    assert failures.waits(6.0, 10.0) == []
    (ended,) = failures.waits(1.0, 10.0)
    assert (ended.id, ended.is_open) == (begun.id, False)


def test_inbox_knows_how_long_records_wait(tmp_path):
    with running(tmp_path, ROWS) as stream:
        assert stream.inbox.longest_wait == 0.0
        is_free = threading.Event()
        stream.call(lambda _: is_free.wait(120))
        stream.inbox.put([json.dumps(row).encode() for row in rows(3)], waits=False)
        until(lambda: stream.inbox.longest_wait > 0)
        is_free.set()
        until(lambda: stream.inbox.longest_wait == 0)
