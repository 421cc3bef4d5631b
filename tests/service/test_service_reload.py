"""Reloads of a real process: by SIGHUP, by an admin request, with kills in between."""

import os
import pty
import random
import re
import signal
import sys
import time

import httpx
import pytest
from effort import mostly_slow
from services import WEB, Service, get, post, rows
from waiting import until

pytestmark = pytest.mark.end_to_end

TOKEN = "a-token-for-admins-only"
N = 300


@pytest.fixture
def make(programs, tmp_path):
    made = []

    def begin(config=WEB, *options, **env):
        made.append(Service(programs, tmp_path, config, **env))
        return made[-1]

    yield begin
    for service in made:
        service.close()


def change(service, config):
    """Write a changed configuration."""
    (service.folder / "polyaforest.toml").write_text(config)


def test_sighup_reloads_the_file(make):
    service = make().start()
    service.post("web", rows(N), verdicts="none")
    change(service, WEB + "false_alarm_rate = 0.001\n[streams.more]\n")
    os.kill(service.process, signal.SIGHUP)
    until(lambda: service.get("/streams/web")["settings"]["false_alarm_rate"] == 0.001)
    until(lambda: "more" in service.client.get("/ready").json()["streams"] and service.is_ready)
    assert service.post("more", [{"a": 1.0}]).status_code == 200
    until(lambda: service.get("/streams/web/audit")["entries"])
    (entry,) = service.get("/streams/web/audit")["entries"]
    assert (entry["who"], entry["action"]) == ("SIGHUP", "settings")
    assert entry["facts"]["applied"] == {"false_alarm_rate": [None, 0.001]}
    change(service, WEB.replace("trees = 20", "trees = 0"))
    os.kill(service.process, signal.SIGHUP)
    until(lambda: "the settings are unchanged: polyaforest.toml, line 6: streams.web.trees: " in service.log)
    assert service.post("web", rows(1, N)).status_code == 200
    change(service, WEB + "false_alarm_rate = 0.001\n[streams.more]\n")
    assert service.stop() == 0
    service.start()
    assert service.post("web", rows(1, N + 1)).status_code == 200


def test_reload_requires_an_admin_and_the_own_origin(make):
    service = make(WEB, POLYAFOREST_ADMIN_TOKEN=TOKEN, POLYAFOREST_READ_TOKEN="a-token-for-readers-only").start()
    place = f"{service.url}/api/v1/settings/reload"
    admin, reader = ({"authorization": f"Bearer {token}"} for token in (TOKEN, "a-token-for-readers-only"))
    assert post(place).status_code == 401
    assert post(place, headers=reader).status_code == 403
    assert post(place, headers={**admin, "origin": "http://elsewhere.example"}).status_code == 403
    assert post(place, headers=admin).json()["applied"] == {}
    change(service, WEB.replace('"1s"', '"2s"') + "merge = 3\n[server]\nport = 1\n")
    answer = post(place, headers=admin).json()
    assert answer["applied"]["web"] == {"save_every": [1.0, 2.0], "merge": [None, 3]}
    service.client.headers.update(admin)
    (entry,) = service.get("/streams/web/audit")["entries"]
    assert entry["who"] == "admin at 127.0.0.1"
    (service.folder / "polyaforest.toml").unlink()
    refused = post(place, headers=admin)
    assert refused.status_code == 422
    assert "does not exist" in refused.json()["detail"]


def test_demo_stops_at_sighup(make):
    service = make().start("--demo")
    assert post(f"{service.url}/api/v1/settings/reload").status_code == 422
    assert service.stop(signal.SIGHUP) == 0


def is_ready(url):
    try:
        return get(f"{url}/ready").status_code == 200
    except httpx.TransportError:
        return False


def test_closing_the_terminal_stops_the_service(tmp_path):
    """As for `watch`, although the signal is that of a reload."""
    (tmp_path / "polyaforest.toml").write_text(WEB)
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(tmp_path)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which nohup ignores
        os.execv(sys.executable, [sys.executable, "-m", "polyaforest", "serve", "--port", "0"])
    said = b""
    while b"Stop with Ctrl-C" not in said:
        said += os.read(terminal, 4096)
    url = re.search(rb"http://[^ ]+", said)[0].decode()
    until(lambda: is_ready(url))
    (tmp_path / "polyaforest.toml").write_text(WEB + "merge = 3\n")
    os.kill(process, signal.SIGHUP)  # the terminal is open: this is a reload
    until(lambda: get(f"{url}/api/v1/streams/web").json()["settings"]["merge"] == 3)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0


@pytest.mark.parametrize("n_kills", mostly_slow([3, 30]))
def test_kill_while_settings_are_applied_leaves_the_old_or_the_new(make, n_kills):
    service = make().start()
    service.post("web", rows(N), verdicts="none")
    rng, n = random.Random(n_kills), N
    for turn in range(n_kills):
        change(
            service, WEB.replace("trees = 20", f"trees = {10 + turn % 2}") + f"false_alarm_rate = 0.{turn % 9 + 1}\n"
        )
        os.kill(service.process, signal.SIGHUP)
        time.sleep(rng.uniform(0, 0.4))
        service.stop(signal.SIGKILL)
        service.start()
        until(lambda: service.get("/streams/web")["relearning"] is None)
        answer = service.post("web", rows(5, n))
        n += 5
        assert answer.status_code == 200, answer.text
        about = service.get("/streams/web")
        assert (about["n_records"], about["settings"]["trees"], about["error"]) == (n, 10 + turn % 2, None)
