"""The service end to end: real processes over HTTP."""

import json
import signal
import threading

import httpx
import numpy as np
import pytest
from services import PATIENCE, START, WEB, Service, odd, receiver, rows
from waiting import until

pytestmark = pytest.mark.end_to_end


@pytest.fixture
def service(start):
    return start()


def events(service, **wanted):
    return service.get("/events", **wanted)["events"]


def test_anomaly_becomes_an_event_with_the_right_reason(service):
    answer = service.post("web", rows(300)).json()
    assert answer["records"] == answer["judged"] == 300
    assert len(answer["verdicts"]) == 300
    before = {event["id"] for event in events(service)}
    answer = service.post("web", [odd(300)]).json()
    (verdict,) = answer["verdicts"]
    assert verdict["is_anomaly"]
    assert verdict["reasons"][0]["feature"] == "cpu"
    (event,) = [event for event in events(service) if event["id"] not in before]
    assert event["is_open"]
    assert event["key"] == "web-1"
    full = service.get(f"/streams/web/events/{event['id']}")
    assert full["reasons"][0]["feature"] == "cpu"
    assert full["reasons"][0]["side"] == "high"
    assert full["values"] == {"cpu": 99.0, "load": 10.0, "requests": 200.0}
    assert full["expected"]["cpu"]["low"] < 50 < full["expected"]["cpu"]["high"] < 99
    assert full["departure"]["field"] == "cpu"
    assert "cpu" in full["summary"]
    service.post("web", rows(20, 301))
    assert not service.get(f"/streams/web/events/{event['id']}")["is_open"]


def test_verdicts_equal_those_of_watch(service, programs, tmp_path):
    records = [*rows(400), odd(400), *rows(50, 401)]
    posted = service.post("web", records).json()["verdicts"]
    text = "".join(json.dumps(record) + "\n" for record in records)
    watched = programs.run(
        "watch",
        "--time",
        "time",
        "--by",
        "host",
        "--id",
        "id",
        "--rows",
        "--trees",
        "20",
        "--window",
        "1024",
        text=text,
        cwd=tmp_path,
    )
    lines = [json.loads(line) for line in watched.stdout.splitlines()]
    assert [(line["score"], line["p_value"], line["is_anomaly"]) for line in lines] == [
        (verdict["score"], verdict["p_value"], verdict["is_anomaly"]) for verdict in posted
    ]


def test_history_survives_a_stop_and_a_kill(service):
    service.post("web", rows(500), verdicts="none")
    before = service.get("/streams/web/series", key="web-1", points=1000, start=0, end=2e9)
    assert before["n_records"] == 500
    assert before["is_raw"]
    assert service.stop() == 0
    service.start()
    assert service.get("/streams/web/series", key="web-1", points=1000, start=0, end=2e9) == before
    answer = service.post("web", rows(100, 500))
    assert answer.status_code == 200
    service.stop(signal.SIGKILL)
    service.start()
    until(lambda: service.get("/streams/web")["n_records"] == 600)
    after = service.get("/streams/web/series", key="web-1", points=1000, start=0, end=2e9)
    assert after["time"][:500] == before["time"]
    assert after["score"][:500] == before["score"]
    scores = [verdict["score"] for verdict in answer.json()["verdicts"]]
    assert after["score"][500:] == scores  # the replay reproduces the scores


def test_repeated_request_is_processed_once(service):
    first = service.post("web", rows(10), name="batch-1")
    again = service.post("web", rows(10), name="batch-1")
    assert first.status_code == 200
    assert again.status_code == 202
    assert again.json()["repeated"]
    assert again.json()["first"] == first.json()["first"]
    assert service.get("/streams/web")["n_records"] == 10


def test_post_without_waiting_returns_positions(service):
    answer = service.post("web", rows(10), wait="false")
    assert answer.status_code == 202
    assert answer.json() == {"first": 1, "last": 10, "records": 10, "repeated": False}
    until(lambda: service.get("/streams/web")["n_records"] == 10)


def test_reduced_series_keeps_spikes(service):
    records = rows(5000)
    records[3210]["cpu"] = 99.5
    for start in range(0, 5000, 1000):
        service.post("web", records[start : start + 1000], verdicts="none")
    few = service.get("/streams/web/series", key="web-1", points=50, start=0, end=START + 60 * 5000)
    assert not few["is_raw"]
    few = service.get("/streams/web/series", key="web-1", points=50, start=START, end=START + 60 * 5000)
    assert len(few["time"]) == 50
    assert sum(few["n"]) == 5000
    assert max(few["fields"]["cpu"]["max"]) == 99.5
    values = np.array([record["cpu"] for record in records])
    assert min(few["fields"]["cpu"]["min"]) == values.min()
    assert few["fields"]["cpu"]["mean"][10] == pytest.approx(values[1000:1100].mean(), abs=0.3)


def test_overview_lists_the_worst_key_first(service):
    for host in ("web-1", "web-2", "web-3"):
        service.post("web", rows(200, host=host, seed=int(host[-1])), verdicts="none")
    service.post("web", [odd(200 + i, host="web-2") for i in range(3)])
    found = service.get("/overview", buckets=50)
    assert found["lanes"][0]["key"] == "web-2"
    lane = found["lanes"][0]
    assert lane["n_flagged"] >= 1
    assert lane["open_events"]
    assert len(lane["surprise"]) == 50


def test_feed_sends_records_and_events_at_once(service):
    service.post("web", rows(300), verdicts="none")
    messages = []

    def listen():
        with (
            httpx.Client(base_url=service.url, timeout=PATIENCE) as client,
            client.stream("GET", "/api/v1/feed") as answer,
        ):
            kind = None
            for line in answer.iter_lines():
                if line.startswith("event: "):
                    kind = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    messages.append((kind, json.loads(line.removeprefix("data: "))))
                if {"event", "records"} <= {kind for kind, _ in messages}:
                    return

    listener = threading.Thread(target=listen)
    listener.start()
    until(lambda: service.client.get("/metrics").text.find("polyaforest_feed_readers 1.0") >= 0)
    service.post("web", [odd(300)])
    listener.join(PATIENCE)
    assert not listener.is_alive()
    event = next(facts for kind, facts in messages if kind == "event")
    assert event["key"] == "web-1"
    assert event["reasons"][0]["feature"] == "cpu"
    (key,) = next(facts for kind, facts in messages if kind == "records")["keys"]
    assert key["values"] == [99.0, 10.0, 200.0]


def test_live_feeds_end_with_the_service(service):
    heard = []

    def listen():
        with (
            httpx.Client(base_url=service.url, timeout=PATIENCE) as client,
            client.stream("GET", "/api/v1/feed") as answer,
        ):
            heard.extend(answer.iter_lines())

    listener = threading.Thread(target=listen)
    listener.start()
    until(lambda: service.client.get("/metrics").text.find("polyaforest_feed_readers 1.0") >= 0)
    assert service.stop() == 0
    listener.join(PATIENCE)
    assert not listener.is_alive()
    assert heard[0] == "retry: 2000"


def test_metrics_count_records_without_naming_keys(service):
    service.post("web", rows(120))
    service.client.post("/api/v1/streams/web/records", content=b"{}\n", headers={"content-type": "text/plain"})
    text = service.client.get("/metrics").text
    assert 'polyaforest_records_total{stream="web"} 120.0' in text
    assert 'polyaforest_quarantined_total{stream="web"} 1.0' in text
    assert "polyaforest_batch_seconds_bucket" in text
    assert "web-1" not in text


def test_rejects_bad_records_and_keeps_good_ones(service):
    service.post("web", rows(10))
    answer = service.post("web", [*rows(2, 10), {"time": "never", "host": "a"}, *rows(2, 12)])
    assert answer.status_code == 200
    facts = answer.json()
    assert (facts["judged"], facts["n_rejected"]) == (4, 1)
    assert "time" in facts["rejected"][0]["error"]
    assert service.post("web", [{"x": 1}]).status_code == 422
    found = service.get("/streams/web/quarantine")["records"]
    assert len(found) == 2


AT_ONCE = "group_wait = 0\ngroup_interval = 0\n"


def alert_states(service, event):
    return [alert["state"] for alert in service.get(f"/streams/web/events/{event}")["alerts"]]


def test_alerts_are_sent_when_an_event_begins_worsens_and_ends(start):
    with receiver(n_refused=2) as hook:
        service = start(f'{WEB}\n[[alerts]]\nname = "ops"\nurl = "{hook.url}"\nmin_bits = 15\nworse_by = 10\n{AT_ONCE}')
        service.post("web", rows(300))
        service.post("web", [odd(300, cpu=75.0)])
        until(lambda: len(hook.messages) >= 1)  # though the first two attempts failed
        service.post("web", [odd(301, cpu=500.0)])
        service.post("web", [odd(302, cpu=500.0)])
        until(lambda: len(hook.messages) >= 2)
        service.post("web", rows(30, 303))
        until(lambda: len(hook.messages) >= 3)
        (event,) = [event for event in events(service) if event["bits"] > 15]
        assert [message["type"] for message in hook.messages] == ["open", "worse", "closing"]
        assert {message["event"]["id"] for message in hook.messages} == {event["id"]}
        assert "cpu" in hook.messages[0]["text"]
        until(lambda: alert_states(service, event["id"]) == ["sent", "sent", "sent"])  # recorded after the response
        assert service.stop() == 0
        service.start()
        assert len(hook.messages) == 3
        assert hook.url not in service.log


def test_incident_is_unlearned_and_can_be_undone(service):
    service.post("web", rows(400))
    odd_ones = [odd(400 + i, cpu=99 + 0.1 * i) for i in range(5)]
    flags = [verdict["is_anomaly"] for verdict in service.post("web", odd_ones).json()["verdicts"]]
    assert flags[0]
    service.post("web", rows(30, 405))
    (event,) = events(service, start=START + 60 * 400)
    base = f"/api/v1/streams/web/events/{event['id']}/feedback"
    answer = service.client.post(base, json={"verdict": "incident", "note": "the fan broke"})
    assert answer.status_code == 200
    assert answer.json()["label"] == "incident"
    assert answer.json()["feedback"][0]["facts"]["n_deleted"] == event["last"] - event["first"] + 1
    assert service.client.post(base, json={"verdict": "normal"}).status_code == 409
    service.stop(signal.SIGKILL)
    service.start()
    assert events(service, label="incident")
    entries = service.get("/streams/web/audit")["entries"]
    assert [entry["action"] for entry in entries] == ["incident"]
    assert entries[0]["facts"]["note"] == "the fan broke"
    again = service.client.delete(base)
    assert again.status_code == 200
    assert again.json()["label"] is None
    assert [entry["action"] for entry in service.get("/streams/web/audit")["entries"]] == ["undo", "incident"]
    assert service.client.delete(base).status_code == 409


def test_event_labelled_as_normal_is_not_flagged_again(service):
    service.post("web", rows(400))
    service.post("web", [odd(400)])
    service.post("web", rows(20, 401))
    (event,) = events(service, start=START + 60 * 400)
    answer = service.client.post(f"/api/v1/streams/web/events/{event['id']}/feedback", json={"verdict": "normal"})
    assert answer.json()["feedback"][0]["facts"]["n_taught"] > 0
    assert not service.post("web", [odd(421)]).json()["verdicts"][0]["is_anomaly"]


def test_deleted_record_is_nowhere_in_the_files(service, tmp_path):
    service.post("web", rows(300))
    service.post("web", [{**odd(300), "id": "customer-4711"}])
    service.post("web", rows(20, 301))
    answer = service.client.delete("/api/v1/streams/web/records", params={"id": "customer-4711"})
    assert answer.json() == {"deleted": 1, "keys": ["web-1"]}
    for path in (tmp_path / "polyaforest-data").iterdir():
        assert b"customer-4711" not in path.read_bytes(), path
    assert "customer-4711" not in json.dumps(service.get("/streams/web/audit"))
    assert service.client.delete("/api/v1/streams/web/records", params={"id": "customer-4711"}).json()["deleted"] == 0


def test_preview_returns_what_other_settings_would_flag(service):
    service.post("web", [*rows(1000), odd(1000), *rows(20, 1001)], verdicts="none")
    answer = service.client.post(
        "/api/v1/streams/web/preview", json={"key": "web-1", "false_alarm_rate": 0.05, "records": 5000}
    )
    assert answer.status_code == 200, answer.text
    facts = answer.json()
    assert facts["n_records"] == 1021
    assert facts["then"]["n_flagged"] > facts["now"]["n_flagged"] >= 1
    assert facts["toml"] == "[streams.web]\nfalse_alarm_rate = 0.05\n"
    quiet = service.client.post(
        "/api/v1/streams/web/preview", json={"key": "web-1", "gates": {"direction": "low"}, "records": 5000}
    ).json()
    spike = [event for event in events(service, start=START + 60 * 1000) if event["bits"] > 20]
    assert spike[0]["id"] in quiet["gone"]


def test_simultaneous_events_form_an_incident_with_the_first_key(service):
    for host in ("a", "b", "c"):
        service.post("web", rows(200, host=host), verdicts="none")
    service.post("web", [odd(200 + i, host="b") for i in range(3)])
    service.post("web", [odd(201 + i, host="a") for i in range(3)])
    found = service.get("/incidents", start=START + 60 * 200)["incidents"]
    assert found[0]["first"]["key"] == "b"
    assert {event["key"] for event in found[0]["events"]} == {"a", "b"}
    full = service.get(f"/streams/web/events/{found[0]['events'][1]['id']}")
    assert full["incident"]["id"] == found[0]["id"]


def test_gates_mutes_and_maintenance_windows(start):
    service = start(
        WEB
        + """
[streams.web.gates]
direction = "high"
smallest_absolute = 5
valid = {cpu = [0, 1000]}
[[streams.web.mute]]
key = "noisy"
reason = "being replaced"
[[streams.web.maintenance]]
name = "migration"
mode = "judge-only"
start = 2023-11-15T00:00:00Z
end = 2023-11-16T00:00:00Z
[[streams.web.maintenance]]
name = "holiday"
mode = "learn-only"
dates = [2023-11-17]
"""
    )
    for host in ("web-1", "noisy"):
        service.post("web", rows(60, host=host), verdicts="none")  # until 23:13 of the 14th

    def verdict(record):
        return service.post("web", [record]).json()["verdicts"][0]

    step = 60.0

    def at(hour, **other):  # hours after the first record; 22:13 of the 14th
        return {**odd(hour * 60, step=step), "id": f"at-{hour}-{other}", **other}

    service.post("web", rows(200, 60, step=1.0), verdicts="none")
    service.post("web", rows(200, 60, step=1.0, host="noisy"), verdicts="none")
    assert verdict(at(1, cpu=99.0))["is_anomaly"]
    low = verdict(at(1.1, cpu=1.0))
    assert not low["is_anomaly"]
    assert "only high" in low["muted"]
    muted = verdict(at(1.2, host="noisy"))
    assert not muted["is_anomaly"]
    assert muted["muted"] == "muted: being replaced"
    outside = verdict(at(1.3, cpu=1001.0))
    assert outside["is_anomaly"]
    n_points = service.get("/streams/web/series", key="web-1", start=0, end=2e9, points=5000)["n_records"]
    assert verdict(at(3, cpu=99.0))["is_anomaly"]  # the 15th: flagged, not learned
    assert not verdict(at(52, cpu=300.0))["is_anomaly"]  # the 17th: learned, not flagged
    assert service.get("/streams/web/series", key="web-1", start=0, end=2e9, points=5000)["n_records"] == n_points + 2


def test_silent_keys_and_streams_are_events(start):
    service = start(WEB.replace("save_every", 'silence = "1s"\nsave_every'))
    service.post("web", [*rows(5, host="a"), *rows(5, host="b")])
    rounds = iter(range(5, 100_000))

    def is_reported(key):
        number = next(rounds)
        service.post("web", rows(1, number, host="a"))
        return [one for one in events(service, open=True) if (one["kind"], one["key"]) == ("silence", key)]

    until(lambda: is_reported("b"))
    (silent,) = is_reported("b")
    service.post("web", rows(1, 5, host="b"))
    closed = service.get(f"/streams/web/events/{silent['id']}")
    assert (closed["is_open"], closed["closed_by"]) == (False, "records")
    until(lambda: [one for one in events(service, open=True) if one["what"] == "stream"])


def test_settings_are_returned_without_secrets_as_valid_toml(start, tmp_path, programs):
    config = WEB + '\n[[alerts]]\nname = "ops"\nurl_env = "HOOK"\n[streams.other]\nwindow = "6h"\ntime = "t"\n'
    service = start(config, HOOK="json://user:geheim@127.0.0.1:9/")
    shown = service.get("/settings")
    assert "geheim" not in json.dumps(shown)
    (tmp_path / "again.toml").write_text(shown["toml"])
    checked = programs.run("serve", "--check", "again.toml", cwd=tmp_path, env={"HOOK": "json://127.0.0.1:9/"})
    assert checked.returncode == 0, checked.stderr
    assert b"web, other" in checked.stderr


def test_serves_only_the_files_of_the_page(service):
    page = service.client.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for path in ("/../pyproject.toml", "/..%2f..%2fapp.py", "/page", "/%00"):
        assert service.client.get(path).status_code == 404


def test_demo_posts_records_with_incidents(programs, tmp_path):
    service = Service(programs, tmp_path, WEB)
    try:
        service.start("--demo")
        until(lambda: {one["stream"] for one in events(service)} == {"servers", "payments"})
        n_before = service.get("/status")["streams"][0]["n_records"]
        until(lambda: service.get("/status")["streams"][0]["n_records"] > n_before)
        until(lambda: service.get("/incidents")["incidents"])
        assert service.stop() == 0
    finally:
        service.close()
