"""The data folder of the service in real processes: locking, kills, damage and records with wrong times."""

import re
import signal
import time

import pytest
from services import WEB, Service, odd, receiver, rows
from waiting import until

pytestmark = pytest.mark.fault

YEAR = 365 * 86400.0


@pytest.fixture
def service(programs, tmp_path):
    made = Service(programs, tmp_path, WEB)
    yield made
    made.close()


def start_second(programs, folder):
    return programs.run("serve", "--port", "0", cwd=folder)


def test_second_process_on_the_same_folder_exits_with_an_error(service, programs, tmp_path):
    with receiver() as hook:
        (tmp_path / "polyaforest.toml").write_text(f'{WEB}\n[[alerts]]\nname = "ops"\nurl = "{hook.url}"\n')
        service.start()
        service.post("web", rows(300), verdicts="none")
        second = start_second(programs, tmp_path)
        assert second.returncode == 3
        assert f"process {service.process}" in second.stderr.decode()
        assert "polyaforest-data is in use" in second.stderr.decode()
        (tmp_path / "other").symlink_to(tmp_path / "polyaforest-data")
        linked = programs.run("serve", "--port", "0", "--data", "other", cwd=tmp_path)
        assert linked.returncode == 3
        service.post("web", [odd(300)])
        until(lambda: any(one["event"]["bits"] > 10 for one in hook.messages))
        assert len({one["id"] for one in hook.messages}) == len(hook.messages)
        assert service.is_ready


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_folder_lock_is_released_however_the_process_ends(service, programs, tmp_path, how):
    for _ in range(3):
        service.start()
        assert start_second(programs, tmp_path).returncode == 3
        service.stop(how)
    service.start()
    assert service.post("web", rows(5)).status_code == 200


def test_future_record_deletes_nothing_and_moves_no_range(service):
    service.start()
    service.post("web", rows(500), verdicts="none")
    service.post("web", [odd(500)])
    service.post("web", rows(30, 501), verdicts="none")
    n_events = len(service.get("/events")["events"])
    for moment in (time.time() + 2 * YEAR, "9999-12-31T00:00:00Z", 1e300):
        answer = service.post("web", [{**odd(600), "time": moment}])
        assert answer.status_code == 422, moment
    assert "ahead of the clock" in answer.json()["detail"] or "not a time" in answer.json()["detail"]
    found = service.get("/streams/web/quarantine")["records"]
    assert sum("ahead of the system clock" in one["reason"] for one in found) >= 2
    service.post("web", [{**rows(1)[0], "time": time.time() + 1800}])
    assert service.get("/streams/web")["end"] <= time.time()
    assert service.get("/streams/web/series", key="web-1")["end"] <= time.time()
    service.stop(signal.SIGKILL)
    service.start()
    assert len(service.get("/events")["events"]) >= n_events
    assert service.get("/streams/web")["n_records"] == 532
    assert service.get("/streams/web/series", key="web-1", start=0, end=3e9, points=5000)["n_records"] == 532


def test_event_closed_by_feedback_stays_closed_after_a_kill(service):
    service.start()
    service.post("web", rows(300), verdicts="none")
    service.post("web", [odd(300)])
    (event,) = service.get("/events", open=True)["events"]
    path = f"/api/v1/streams/web/events/{event['id']}/feedback"
    closed = service.client.post(path, json={"verdict": "normal"}).json()
    assert (closed["is_open"], closed["closed_by"]) == (False, "feedback")
    assert "event" not in closed["feedback"][0]["facts"]
    service.stop(signal.SIGKILL)
    service.start()
    assert service.get("/events", open=True)["events"] == []
    opened = service.client.delete(path).json()
    assert (opened["is_open"], opened["label"]) == (True, None)
    service.stop(signal.SIGKILL)
    service.start()
    assert [one["id"] for one in service.get("/events", open=True)["events"]] == [event["id"]]
    service.post("web", rows(10, 301), verdicts="none")
    assert service.get("/events", open=True)["events"] == []


def test_log_and_api_report_damage(service, tmp_path):
    service.start()
    for start in range(0, 4000, 1000):
        service.post("web", rows(1000, start), verdicts="none")
    service.stop()
    path = tmp_path / "polyaforest-data" / "web.history"
    places = [found.start() for found in re.finditer(b"POLYA\x02\xff\xff", path.read_bytes())]
    with path.open("r+b") as file:
        file.seek(places[len(places) // 2])
        file.write(b"?" * 20_000)
    service.start()
    shown = service.get("/streams/web/series", key="web-1", start=0, end=3e9, points=5000)
    assert 2000 < shown["n_records"] < 4000
    until(lambda: service.get("/streams/web")["n_damaged"])
    about = service.get("/streams/web")
    assert sum(part["n"] for part in about["damaged"]) == 4000 - shown["n_records"]
    assert {part["key"] for part in about["damaged"]} == {"web-1"}
    assert "web.history is damaged" in service.log
    assert "of key 'web-1' from 2023-11-" in service.log
    assert service.post("web", rows(10, 4000)).status_code == 200


def test_advice_about_damaged_models_works(service, programs, tmp_path):
    folder = tmp_path / "polyaforest-data"
    folder.mkdir()
    (folder / "web.models").write_bytes(b"no database at all" * 100)
    service.start(wait=False)
    until(lambda: service.client.get("/ready").json()["streams"]["web"] not in ("starting", "running"))
    words = service.client.get("/ready").json()["streams"]["web"]
    assert "move it away to start over" in words
    assert "--" not in words
    (folder / "web.models").unlink()
    until(lambda: service.is_ready)
