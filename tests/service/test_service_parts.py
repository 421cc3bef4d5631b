"""Parts of the service, without HTTP: history, gates, maintenance windows, feedback, silence, alerts."""

import json
import re
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from services import START, WEB, odd, receiver, rows
from streams_served import post, running, service_of

from polyaforest.service import silence
from polyaforest.service.alerts import Destination, Outbox
from polyaforest.service.blocks import FLAGGED, Band, Block, Buckets, ScoredRecord
from polyaforest.service.config import AlertConfig
from polyaforest.service.database import Database
from polyaforest.service.delivery import Delivery
from polyaforest.service.events import EventChange, EventLog
from polyaforest.service.feedback import Conflict, feedback_on, give, undo
from polyaforest.service.gates import Departure, KnownNormal, MaintenanceWindows, why_muted, why_outside
from polyaforest.service.history import RecordHistory
from polyaforest.service.incidents import IncidentBook
from polyaforest.service.metrics import Metrics
from polyaforest.service.worker import Worker
from polyaforest.settings.stream import Gates, Maintenance, Mute
from polyaforest.settings.values import Table


def sample(position, number, *, value=1.0, flags=0, point=None, p_value=0.5):
    when = START + 10.0 * number
    values = [value, -value]
    band = Band([value - 1] * 2, [value] * 2, [value + 1] * 2) if number % 2 else None
    return ScoredRecord(
        position, number, when, -1.0 - number, p_value, -9.0, flags, number if point is None else point, values, band
    )


@pytest.fixture
def database(tmp_path):
    made = Database(str(tmp_path / "x.history"))
    yield made
    made.close()


# ---- history ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 700), min_size=1, max_size=6), st.integers(0, 4000), st.integers(10, 400))
def test_range_equals_its_records(tmp_path_factory, sizes, cut, points):
    database = Database(str(tmp_path_factory.mktemp("h") / "x.history"))
    history, n = RecordHistory(database, 10**9, 1e12), 0
    rng = np.random.default_rng(cut)
    values = rng.normal(size=sum(sizes))
    for turn, size in enumerate(sizes):
        new = [sample(n + i + 1, n + i, value=values[n + i], flags=int(i % 50 == 0)) for i in range(size)]
        n += size
        history.append({"a": new}, n)
        if turn % 2 == 0:
            history.flush()
    cut = min(cut, n)
    if cut < n and len(sizes) % 2:
        history.flush()
        history.rewind(cut)
        n = cut
    found = history.range("a", START, START + 10.0 * max(n - 1, 1), points)
    if n == 0:
        assert found.parts is None
        return
    assert found.n == n
    assert found.is_raw == (n <= points)
    assert found.parts.wide[:, 0, 0].min() == values[:n].min()
    assert found.parts.wide[:, 1, 0].max() == values[:n].max()
    assert len(found.parts.times) <= points
    assert (np.diff(found.parts.times) > 0).all()
    np.testing.assert_allclose((found.parts.wide[:, 2, 0] * found.parts.counts).sum(), values[:n].sum(), atol=1e-9)
    whole = history.records("a")
    assert whole.numbers.tolist() == list(range(n))
    assert whole.values[:, 0].tolist() == values[:n].tolist()
    ((lane,), _) = history.lanes(Buckets(START, START + 10.0 * n, 20), 5)
    assert sum(lane.n) == n
    assert sum(lane.flagged) == int((whole.flags & FLAGGED).sum())
    database.close()


def test_history_merges_small_blocks_and_is_bounded(database):
    history = RecordHistory(database, 1000, 1e12)
    for n in range(3000):
        history.append({"a": [sample(n + 1, n)]}, n + 1)
        history.flush()
    with database.read() as file:
        n_blocks, n_records = file.execute("SELECT count(*), sum(n) FROM blocks").fetchone()
    assert n_blocks < 30
    assert 1000 <= n_records < 1000 + 512 + 20
    assert history.records("a").numbers[-1] == 2999


def test_block_round_trips_with_names_and_bands():
    block = Block.of([sample(i + 1, i, point=f"id-{i}" if i % 3 else i) for i in range(7)])
    again = Block.of_bytes(block.to_bytes())
    assert again.point_keys() == block.point_keys() == [0, "id-1", "id-2", 3, "id-4", "id-5", 6]
    np.testing.assert_array_equal(again.bands, block.bands)
    half = again.where(again.numbers % 2 == 0)
    assert half.point_keys() == [0, "id-2", "id-4", 6]
    assert Block.joined([half, again]).point_keys() == [0, "id-2", "id-4", 6, *block.point_keys()]


def test_rejects_a_file_of_another_kind(tmp_path):
    import sqlite3

    path = tmp_path / "other"
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE t (x)")
    file.close()
    with pytest.raises(ValueError, match="not a history"):
        Database(str(path))
    path.write_bytes(b"no database at all" * 100)
    with pytest.raises(ValueError, match="cannot be used"):
        Database(str(path))


# ---- metrics ---------------------------------------------------------------------------------------------------------


def test_metric_labels_are_bounded():
    metrics = Metrics(key_labels=True)
    for i in range(3000):
        metrics.count("web", f"key-{i}", 1, 0)
        metrics.observe_request(f"METHOD{i}", None, 404, 0.1)
        metrics.observe_request("GET", "/status", 200 + i % 300, 0.1)
    text = metrics.text().decode()
    assert text.count("polyaforest_records_total{") == 1001
    assert 'polyaforest_records_total{key="(other)",stream="web"} 2000.0' in text
    assert text.count("polyaforest_http_request_seconds_count{") == 4
    assert "METHOD" not in text


# ---- gates and maintenance windows -----------------------------------------------------------------------------------

HIGH = Departure("cpu", 60.0, "high", 50.0, 45.0, 55.0)


@pytest.mark.parametrize(
    ("gates", "is_muted"),
    [
        ({}, False),
        ({"direction": "high"}, False),
        ({"direction": "low"}, True),
        ({"smallest_absolute": 10.0}, False),
        ({"smallest_absolute": 10.1}, True),
        ({"smallest_relative": 0.2}, False),
        ({"smallest_relative": 0.21}, True),
    ],
)
def test_gates_mute_small_or_one_sided_deviations(gates, is_muted):
    assert (why_muted(Gates(**gates), [], "web-1", START, HIGH) is not None) == is_muted


@pytest.mark.parametrize(
    ("mute", "is_muted"),
    [
        ({"key": "web-1"}, True),
        ({"key": "web-2"}, False),
        ({"field": "cpu"}, True),
        ({"field": "load"}, False),
        ({"key": "web-1", "field": "load"}, False),
        ({"key": "web-1", "until": datetime.fromtimestamp(START + 1, UTC)}, True),
        ({"key": "web-1", "until": datetime.fromtimestamp(START, UTC)}, False),
    ],
)
def test_mute_rules_apply_by_key_field_and_time(mute, is_muted):
    assert (why_muted(Gates(), [Mute(**mute)], "web-1", START, HIGH) is not None) == is_muted


def test_values_outside_their_valid_range_are_reported():
    gates = Gates(valid={"cpu": (0.0, 100.0)})
    assert why_outside(gates, ["load", "cpu"], [500.0, 50.0]) is None
    assert "cpu is 101" in why_outside(gates, ["load", "cpu"], [500.0, 101.0])
    assert why_outside(gates, ["load", "cpu"], [500.0, float("nan")]) is None


def moment(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("window", "inside", "outside"),
    [
        ({"days": ["sat", "sun"]}, "2026-03-07T12:00", "2026-03-06T12:00"),
        ({"dates": ["2026-12-25"]}, "2026-12-25T23:59", "2026-12-26T00:00"),
        ({"from": "22:00", "to": "02:00"}, "2026-03-07T01:59", "2026-03-07T02:00"),
        ({"from": "02:00", "to": "04:00"}, "2026-03-07T02:00", "2026-03-07T04:00"),
        ({"start": "2026-03-07T00:00:00Z", "end": "2026-03-08T00:00:00Z"}, "2026-03-07T00:00", "2026-03-08T00:00"),
        ({"from": "02:00", "to": "04:00", "timezone": "Europe/Berlin"}, "2026-07-01T00:30", "2026-07-01T02:30"),
    ],
)
def test_maintenance_window_contains_its_times(window, inside, outside):
    made = MaintenanceWindows([Table(Maintenance).check({"name": "c", "mode": "judge-only", **window})])
    assert not made.mode(moment(inside)).is_learned
    assert made.mode(moment(inside)).is_checked
    assert made.mode(moment(outside)) == (True, True)
    assert made.mode(1e300) == (True, True)


def test_known_normal_covers_smaller_deviations():
    known = KnownNormal("a", "cpu", "high", 20.0)
    assert known.covers("a", HIGH, 20.0)
    assert not known.covers("a", HIGH, 20.1)
    assert not known.covers("b", HIGH, 1.0)
    assert not known.covers("a", HIGH._replace(side="low"), 1.0)


# ---- silence and alerts ----------------------------------------------------------------------------------------------


def test_silence_of_a_field_ends_with_its_next_value():
    now = [1000.0]
    watch = silence.Silence("s", 10.0, [], [], steady=lambda: now[0])
    whole, half = [sample(1, 0)], [sample(1, 0)._replace(values=[1.0, float("nan")])]
    assert watch.hear({"a": whole, "b": whole}, ["x", "y"]) == []
    now[0] += 8
    assert watch.hear({"a": half, "b": whole}, ["x", "y"]) == []
    now[0] += 8
    watch.hear({"a": half, "b": whole}, ["x", "y"])
    (begun,) = watch.check(5)
    assert (begun.key, begun.facts["what"], begun.facts["field"], begun.is_open) == ("a", "field", "y", True)
    (ended,) = watch.hear({"a": whole}, ["x", "y"])
    assert (ended.id, ended.is_open) == (begun.id, False)
    now[0] += 30
    (begun,) = watch.check(5)
    assert begun.facts["what"] == "stream"
    again = silence.Silence(
        "s", 10.0, ["a"], [{"key": "", "field": None, "what": "stream", "start": 1.0, "id": begun.id}]
    )
    (ended,) = again.hear({"a": whole}, ["x", "y"])
    assert ended.id == begun.id


def test_alerts_are_due_once_per_level(database):
    destination = Destination(AlertConfig(name="ops", url="http://127.0.0.1:9/x", worse_by=5.0, group_wait=0.0))
    outbox = Outbox("s", database, [destination], "http://here")
    log = EventLog("s", database, RecordHistory(database, 10**9, 1e12))

    def change(bits, is_open=True):
        one = EventChange(
            "e1", "a", "anomaly", START, START + 1, is_open, 1, {"bits": bits, "summary": "x\x1b[31m", "p_value": 0.1}
        )
        with database.write() as file:
            for event in log.write([one], file):
                outbox.add(file, event)
        return [(alert["kind"], alert["level"]) for alert in outbox.about("e1")]

    assert change(10.0) == [("open", 0)]
    assert change(10.0) == [("open", 0)]
    assert change(14.9) == [("open", 0)]
    assert change(21.0) == [("open", 0), ("worse", 2)]
    assert change(15.0) == [("open", 0), ("worse", 2)]
    assert change(21.0, is_open=False) == [("open", 0), ("worse", 2), ("closing", 0)]
    assert change(21.0, is_open=False)[3:] == []
    assert all("\x1b" not in alert["message"]["text"] for alert in outbox.about("e1"))
    delivery = Delivery(lambda: [outbox], IncidentBook())
    assert delivery.send_due() == {"sent": 0, "retried": 3, "failed": 0}  # no server listens there
    assert delivery.send_due() == {"sent": 0, "retried": 0, "failed": 0}  # later
    assert "127.0.0.1" not in json.dumps([alert["error"] for alert in outbox.about("e1")])


def test_event_that_ends_at_once_has_both_alerts(database):
    outbox = Outbox("s", database, [Destination(AlertConfig(name="ops", url="http://127.0.0.1:9/"))], "")
    log = EventLog("s", database, RecordHistory(database, 10**9, 1e12))
    with database.write() as file:
        (event,) = log.write([EventChange("e", "", "anomaly", START, START, False, 1, {"bits": None})], file)
        outbox.add(file, event)
    assert [alert["kind"] for alert in outbox.about("e")] == ["open", "closing"]


def test_apprise_delivers_alerts():
    with receiver() as hook:
        url = hook.url.replace("http://", "json://")
        destination = Destination(AlertConfig(name="ops", url=url))
        assert destination.send({"title": "Anomaly: web", "text": "cpu is high"}) is None
        assert hook.messages[0]["title"] == "Anomaly: web"
    with pytest.raises(ValueError, match="does not support"):
        Destination(AlertConfig(name="ops", url="nonsense://x"))


def test_dashboard_and_rules_use_existing_metrics(tmp_path):
    with running(tmp_path) as stream:
        post(stream, rows(5))
        text = service_of[stream].metrics.text().decode()
    known = set(re.findall(r"^# TYPE (polyaforest_\w+)", text, re.M))
    known |= {f"{name}{end}" for name in known for end in ("_total", "_bucket", "_count", "_sum")}
    folder = Path(__file__).parents[2] / "examples" / "monitoring"
    dashboard = (folder / "dashboard.json").read_text("utf-8")
    rules = (folder / "alerts.yml").read_text("utf-8")
    assert len(json.loads(dashboard)["panels"]) > 10
    used = {text: set(re.findall(r"polyaforest_\w+", text)) for text in (dashboard, rules)}
    for names in used.values():
        assert len(names) > 5
        assert names <= known
    exported = set(re.findall(r"^# TYPE (polyaforest_\w+)", text, re.M))
    assert {name for name in exported if not any(shown.startswith(name) for shown in used[dashboard])} <= {
        "polyaforest_previews", "polyaforest_stream_errors_total", "polyaforest_stream_up",
    }  # fmt: skip


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed: apt-get install prometheus")
def test_prometheus_accepts_the_rules():
    rules = Path(__file__).parents[2] / "examples" / "monitoring" / "alerts.yml"
    checked = subprocess.run(["promtool", "check", "rules", str(rules)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


# ---- feedback is exact -----------------------------------------------------------------------------------------------


def model(stream, key="web-1"):
    """Return the state that determines how the model continues."""

    def read(worker):
        detector = worker.store[key].detector
        return detector.to_bytes({}), list(detector.keys_)

    return stream.call(read).result(60)


@pytest.mark.parametrize("verdict", ["incident", "normal"])
def test_undo_restores_the_model_without_feedback(tmp_path, verdict):
    parts = [rows(300), [odd(300 + i, cpu=90.0 + i) for i in range(4)], rows(40, 304), rows(500, 400)]
    with running(tmp_path / "plain") as stream:
        for part in parts:
            post(stream, part)
        expected = model(stream)
    with running(tmp_path / "given") as stream:
        for part in parts[:3]:
            post(stream, part)
        event = next(event for event in stream.events.find(start=START + 60 * 300) if event["first"] >= 300)
        stream.call(lambda worker: give(stream, worker, event["id"], verdict, who="me")).result(60)
        changed = model(stream)
        if verdict == "incident":
            held = {f"web-1-{event['first'] + i}" for i in range(event["last"] - event["first"] + 1)}
            assert not held & set(changed[1])
        post(stream, parts[3])
        assert model(stream) != expected
        stream.call(lambda worker: undo(stream, worker, event["id"], who="me")).result(60)
        assert model(stream)[1] == expected[1]
        assert model(stream)[0] == expected[0]
        with pytest.raises(Conflict, match="no feedback"):
            stream.call(lambda worker: undo(stream, worker, event["id"], who="me")).result(60)


@pytest.mark.parametrize("verdict", ["incident", "normal"])
@pytest.mark.parametrize("is_saved", [True, False])
def test_killed_undo_is_complete_or_void(tmp_path, monkeypatch, verdict, is_saved):
    """Copies of the files before and after the save are what a killed process leaves."""
    parts = [rows(300), [odd(300 + i, cpu=90.0 + i) for i in range(4)], rows(40, 304)]
    with running(tmp_path / "plain") as stream:
        for part in parts:
            post(stream, part)
        plain = model(stream)

    def commit(worker, *args, **options):
        result = None
        if is_saved:
            result = save(worker, *args, **options)
        if not (tmp_path / "killed").exists():
            shutil.copytree(tmp_path / "given", tmp_path / "killed")
        return result if is_saved else save(worker, *args, **options)

    with running(tmp_path / "given") as stream:
        for part in parts:
            post(stream, part)
        event = next(event for event in stream.events.find(start=START + 60 * 300) if event["first"] >= 300)
        stream.call(lambda worker: give(stream, worker, event["id"], verdict, who="me")).result(60)
        before, save = model(stream), Worker.commit
        monkeypatch.setattr(Worker, "commit", commit)
        stream.call(lambda worker: undo(stream, worker, event["id"], who="me")).result(60)
        monkeypatch.undo()
        assert model(stream) == plain
    with running(tmp_path / "killed") as stream:
        assert model(stream) == (plain if is_saved else before)
        assert stream.events.get(event["id"])["label"] == (None if is_saved else verdict)
        (feedback,) = feedback_on(stream, event["id"])
        assert feedback["state"] == ("undone" if is_saved else "applied")
        if not is_saved:
            stream.call(lambda worker: undo(stream, worker, event["id"], who="me")).result(60)
        assert model(stream) == plain


def test_undo_that_cannot_be_saved_keeps_the_feedback(tmp_path, monkeypatch):
    with running(tmp_path) as stream:
        post(stream, rows(300))
        post(stream, [odd(300, cpu=500.0)])
        (event,) = stream.events.find(start=START + 60 * 300)
        stream.call(lambda worker: give(stream, worker, event["id"], "incident", who="me")).result(60)
        before = model(stream)

        def commit(worker, *args, **options):
            raise OSError("the disk is full")

        monkeypatch.setattr(Worker, "commit", commit)
        with pytest.raises(OSError, match="the disk is full"):
            stream.call(lambda worker: undo(stream, worker, event["id"], who="me")).result(60)
        monkeypatch.undo()
        assert model(stream) == before
        assert feedback_on(stream, event["id"])[0]["state"] == "applied"
        stream.call(lambda worker: undo(stream, worker, event["id"], who="me")).result(60)
        assert "web-1-300" in model(stream)[1]


def test_incident_removes_its_points(tmp_path):
    """Other tests check the law of the forest; this one checks that the right points are gone."""
    with running(tmp_path) as stream:
        post(stream, rows(300))
        post(stream, [odd(300, cpu=500.0)])
        post(stream, rows(20, 301))
        (event,) = stream.events.find(start=START + 60 * 300)
        stream.call(lambda worker: give(stream, worker, event["id"], "incident", who="me")).result(60)
        assert "web-1-300" not in model(stream)[1]
        again = post(stream, [odd(321, cpu=500.0)])
        assert again[0].judgement.is_anomaly  # it did not become normal


def test_undoing_the_first_feedback_keeps_the_second(tmp_path):
    with running(tmp_path) as stream:
        post(stream, rows(300))
        for number in (300, 340):
            post(stream, [odd(number, cpu=100.0 + number)])
            post(stream, rows(30, number + 1))
        first, second = sorted(stream.events.find(start=START + 60 * 300), key=lambda event: event["start"])[:2]
        for event in (first, second):
            stream.call(lambda worker, id=event["id"]: give(stream, worker, id, "incident", who="me")).result(60)
        stream.call(lambda worker: undo(stream, worker, first["id"], who="me")).result(60)
        held = set(model(stream)[1])
        assert "web-1-300" in held
        assert "web-1-340" not in held
        stream.call(lambda worker: undo(stream, worker, second["id"], who="me")).result(60)
        assert {"web-1-300", "web-1-340"} <= set(model(stream)[1])


def test_series_has_bands_and_does_not_flag_known_normals(tmp_path):
    config = WEB.replace('id = "id"\n', "series = true\n")
    wave = [
        {"time": START + 60.0 * i, "host": "web-1", "cpu": 50 + 10 * np.sin(i / 8) + 0.1 * ((i * 7919) % 13)}
        for i in range(900)
    ]
    for i in (700, 701, 702, 850, 851, 852):
        wave[i]["cpu"] = 120.0
    with running(tmp_path, config) as stream:
        post(stream, wave[:800])
        shown = stream.history.range("web-1", START, START + 60.0 * 800, 1000)
        low, high = shown.parts.wide[640:690, 3, 0], shown.parts.wide[640:690, 5, 0]
        values = shown.parts.wide[640:690, 2, 0]
        assert np.mean((low <= values) & (values <= high)) > 0.6
        found = [event for event in stream.events.find() if event["first"] <= 702 and event["last"] >= 700]
        assert found
        stream.call(lambda worker: give(stream, worker, found[0]["id"], "normal", who="me")).result(60)
        (known,) = stream.call(lambda worker: worker.known).result(60)
        assert (known.key, known.field, known.side) == ("web-1", "cpu", "high")
        assert not any(result.judgement.is_anomaly for result in post(stream, wave[800:]))
        stream.call(lambda worker: worker.known.append(known._replace(bits=1e9))).result(60)
        odder = [{**wave[-1], "time": START + 60.0 * (900 + i), "cpu": 5000.0} for i in range(3)]
        assert "known as normal" in [result.muted for result in post(stream, odder)]
