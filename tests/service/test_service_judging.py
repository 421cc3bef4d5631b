"""The service scores categories, reports drift, and scores records as rows or as a series, as `watch` does."""

import json
import struct
from contextlib import nullcontext

import numpy as np
import orjson
import pytest
from services import WEB, rows
from streams_served import post, running
from waiting import until

from polyaforest.drift import DriftMonitor
from polyaforest.judge import read_model
from polyaforest.judge.describe import describe_changes
from polyaforest.judge.judgement import score
from polyaforest.judge.models import Entry, new_detector
from polyaforest.service.blocks import KEPT_OUT, NOT_LEARNED, Block, ScoredRecord
from polyaforest.service.config import to_toml
from polyaforest.service.drift_events import open_drift
from polyaforest.service.feedback import Conflict, forget, give, undo
from polyaforest.service.preview import Trial, preview
from polyaforest.settings.stream import StreamSettings
from polyaforest.tables.categories import code_of
from polyaforest.tables.rows import RowLayout, StreamRow

START = 1.7e9
PAYMENTS = {"categories": ["country"], "id": "id", "series": False, "false_alarm_rate": 0.01}
DRIFT = {"series": False, "drift": "report", "drift_reference": 128, "drift_alarms_every": 10_000}
HOOK = {"name": "ops", "url": "http://127.0.0.1:9/hook"}


def config_of(stream, **others):
    return to_toml({"streams": {"web": {"time": "time", "trees": 10, "seed": 1, **stream}}, **others})


def payments(n, start=0):
    rng = np.random.default_rng([1, start])
    rows = zip(rng.normal(50, 5, n), rng.choice(["DE", "FR"], n), strict=True)
    return [payment(start + i, amount, str(country)) for i, (amount, country) in enumerate(rows)]


def payment(i, amount=50.0, country="XX"):
    return {"time": START + 60 * i, "id": f"p-{i}", "amount": amount, "country": country}


def loads(n, start=0, by=0.0):
    values = np.random.default_rng([2, start]).normal(size=n) + by
    return [{"time": START + 60 * (start + i), "load": value} for i, value in enumerate(values.tolist())]


def events_of(stream, kind):
    return [event for event in stream.events.find(most=1000) if event["kind"] == kind]


def label(stream, event, verdict):
    stream.call(lambda worker: give(stream, worker, event["id"], verdict, who="me")).result(60)


def take_back(stream, event):
    stream.call(lambda worker: undo(stream, worker, event["id"], who="me")).result(60)


# ---- categories ------------------------------------------------------------------------------------------------------


def test_scores_categories_and_relearns_them(tmp_path):
    with running(tmp_path, config_of(PAYMENTS)) as stream:
        line = post(stream, [*payments(400), payment(400)])[-1].line()
        assert line["is_anomaly"]
        assert (line["reasons"][0]["feature"], line["reasons"][0]["value"]) == ("country", "XX")
        (event,) = [one for one in stream.events.find(most=10) if one["start"] == payment(400)["time"]]
        assert event["values"] == {"amount": 50.0, "country": "XX"}
        assert {one["values"]["country"] for one in event["similar"]} <= {"DE", "FR"}
        assert event["expected"] is None or event["expected"]["country"]["middle"] is None
        latest = stream.history.latest("")
        assert [latest.texts.get(k, value) for k, value in enumerate(latest.values)] == [50.0, "XX"]
    with running(tmp_path, config_of({**PAYMENTS, "trees": 12})) as stream:
        model = relearned(stream)
        assert model.points_[-1].tolist() == [50.0, "XX"]
        assert set(model.categories_["country"]) == {"DE", "FR", "XX"}
    assert read_model(tmp_path / "web.models", "").n_estimators == 12


def relearned(stream):
    until(lambda: stream.relearning is None)
    return stream.call(lambda worker: worker.store[""].detector).result(60)


def test_teaches_categories_and_undoes_it(tmp_path):
    with running(tmp_path, config_of(PAYMENTS)) as stream:
        post(stream, [*payments(400), payment(400)])
        before = stream.call(lambda worker: worker.store[""].detector.to_bytes({})).result(60)
        event = events_of(stream, "anomaly")[0]
        label(stream, event, "normal")
        assert stream.call(lambda worker: worker.store[""].detector.n_seen_).result(60) > 401
        (again,) = post(stream, [payment(401)])
        assert not again.judgement.is_anomaly
        take_back(stream, event)
        assert post(stream, [payment(402)])[0].judgement.point == "p-402"
        held = stream.call(lambda worker: worker.store[""].detector.n_seen_).result(60)
        assert held == 403
    assert before


def test_deletes_texts_of_deleted_records(tmp_path):
    with running(tmp_path, config_of(PAYMENTS)) as stream:
        post(stream, [*payments(100), payment(100, country="Atlantis")])
        block = stream.history.records("")
        assert block.texts[1, code_of("Atlantis")] == "Atlantis"
        stream.call(lambda worker: forget(stream, worker, "p-100", None, who="me")).result(60)
        assert "Atlantis" not in stream.history.records("").texts.values()
    for path in tmp_path.iterdir():
        assert b"Atlantis" not in path.read_bytes(), path


def test_preview_scores_categories(tmp_path):
    with running(tmp_path, config_of(PAYMENTS)) as stream:
        post(stream, [*payments(400), payment(400)])
        found = preview(stream, Trial(trees=12))
        assert found["then"]["n_flagged"] > 0
        worst = max(found["events"], key=lambda event: event["attributions"].get("country", 0.0))
        assert worst["end"] == payment(400)["time"]


def test_history_keeps_texts_by_column():
    code = code_of("DE")
    records = [
        ScoredRecord(i + 1, i, float(i), 0.0, 1.0, 0.0, 0, i, [code if i else 1.0, code_of(text)], None, {1: text})
        for i, text in enumerate(["DE", "FR", "XX"])
    ]
    block = Block.of_bytes(Block.of(records).to_bytes())
    assert block.texts == {(1, code_of(text)): text for text in ("DE", "FR", "XX")}
    kept = block.where(block.numbers == 1)  # its number equals the code of DE
    assert kept.texts == {(1, code_of("FR")): "FR"}
    rows = kept.named_rows(["amount", "country"], ["country"])
    assert rows.categories.texts == {code_of("FR"): "FR"}
    assert Block.joined([kept, block.where(block.numbers == 2)]).texts_by_code == {
        code_of("FR"): "FR",
        code_of("XX"): "XX",
    }


def test_reads_blocks_without_texts():
    """As written by earlier versions."""
    record = ScoredRecord(1, 0, 5.0, 0.0, 1.0, 0.0, 0, 0, [1.0, 2.0], None)
    written = Block.of([record]).to_bytes()
    (size,) = struct.unpack("<I", written[:4])
    assert orjson.loads(written[4 : 4 + size]).keys() == {"n", "fields", "names"}
    block = Block.of_bytes(written)
    assert block.texts == {}
    assert block.named_rows(["a", "b"], []).categories is None


# ---- drift -----------------------------------------------------------------------------------------------------------


def test_drift_opens_and_closes_an_event(tmp_path):
    config = config_of(DRIFT, alerts=[HOOK])
    with running(tmp_path, config) as stream:
        post(stream, loads(300))
        assert not events_of(stream, "drift")
        post(stream, loads(60, 300, by=4.0))
        (event,) = events_of(stream, "drift")
        assert event["is_open"]
        assert abs(event["start"] - (START + 60 * 300)) < 60 * 20
        assert event["drift"]["state"] == "begun"
        (alert,) = stream.outbox.about(event["id"])
        assert alert["message"]["title"].startswith("Drift: web: From ")
        assert event["summary"] in alert["message"]["text"]
    with running(tmp_path, config) as stream:  # a restart does not change it
        (event,) = events_of(stream, "drift")
        assert event["is_open"]
        post(stream, loads(100, 360))
        (closed,) = events_of(stream, "drift")
        assert (closed["is_open"], closed["closed_by"]) == (False, "records")
        assert "normal" in closed["outcome"] or "over" in closed["outcome"]
        assert (closed["id"], closed["start"]) == (event["id"], event["start"])
        assert closed["summary"].startswith("Since")  # what has changed, not that it is over
        opened, closing = stream.outbox.about(event["id"])
        assert (opened["kind"], closing["kind"]) == ("open", "closing")
        assert closed["outcome"] in closing["message"]["text"]
        assert stream.events.n_open() == len([one for one in events_of(stream, "anomaly") if one["is_open"]])


def test_new_normal_closes_the_event(tmp_path):
    with running(tmp_path, config_of(DRIFT)) as stream:
        post(stream, [*loads(300), *loads(300, 300, by=4.0)])
        (event,) = events_of(stream, "drift")
        assert (event["is_open"], event["closed_by"]) == (False, "records")
        assert "new normal" in event["outcome"]


@pytest.mark.parametrize(
    ("changed", "closed_by"),
    [({"drift": None}, "settings"), ({"drift_reference": 256}, "model"), ({"trees": 12}, "model")],
)
def test_event_closes_if_its_monitor_is_removed_or_restarts(changed, closed_by, tmp_path):
    with running(tmp_path, config_of(DRIFT)) as stream:
        post(stream, [*loads(300), *loads(60, 300, by=4.0)])
        (event,) = events_of(stream, "drift")
        assert event["is_open"]
    after = {name: value for name, value in {**DRIFT, **changed}.items() if value is not None}
    with running(tmp_path, config_of(after)) as stream:
        relearned(stream)
        post(stream, loads(1, 360, by=4.0))
        now = stream.events.get(event["id"])
        assert (now["is_open"], now["closed_by"]) == (False, closed_by)
        post(stream, loads(20, 361))
        assert [one["id"] for one in events_of(stream, "drift")] == [event["id"]]  # no event that only closes


def test_drift_of_a_silent_key_closes(tmp_path):
    with running(tmp_path, config_of({**DRIFT, "close_after": "0.5s"})) as stream:
        post(stream, [*loads(300), *loads(80, 300, by=4.0)])
        (event,) = events_of(stream, "drift")
        until(lambda: not stream.events.get(event["id"])["is_open"])
        assert stream.events.get(event["id"])["closed_by"] == "silence"
        post(stream, loads(40, 380))
        assert [one["id"] for one in events_of(stream, "drift")] == [event["id"]]


def test_feedback_closes_a_drift_event_and_undo_reopens_it(tmp_path):
    with running(tmp_path, config_of(DRIFT)) as stream:
        post(stream, [*loads(300), *loads(60, 300, by=4.0)])
        (event,) = events_of(stream, "drift")
        label(stream, event, "normal")
        assert stream.events.get(event["id"])["closed_by"] == "feedback"
        take_back(stream, event)
        assert stream.events.get(event["id"])["is_open"]
        post(stream, loads(100, 360))
        assert stream.events.get(event["id"])["closed_by"] == "records"
        (event,) = events_of(stream, "drift")
        label(stream, event, "normal")
        take_back(stream, event)
        assert not stream.events.get(event["id"])["is_open"]


def test_undo_restores_the_monitor(tmp_path):
    """The monitor follows the records since the feedback again, with the result that it would have had without it."""
    with running(tmp_path / "a", config_of(DRIFT)) as stream, running(tmp_path / "b", config_of(DRIFT)) as other:
        for one in (stream, other):
            post(one, [*loads(300), {"time": START + 60 * 300, "load": 50.0}])
        (odd,) = [event for event in events_of(stream, "anomaly") if event["end"] == START + 60 * 300]
        label(stream, odd, "incident")
        for one in (stream, other):
            post(one, loads(60, 301, by=4.0))
        take_back(stream, odd)
        models = [one.call(lambda worker: worker.store[""].detector.to_bytes({})).result(60) for one in (stream, other)]
        assert models[0] == models[1]
        assert [one["is_open"] for one in events_of(stream, "drift")] == [True]
        for one in (stream, other):
            post(one, loads(100, 361))
        ends = [[(event["closed_by"], event["end"]) for event in events_of(one, "drift")] for one in (stream, other)]
        assert ends[0] == ends[1]
        assert ends[0][0][0] == "records"


def test_failed_feedback_keeps_the_monitor(tmp_path):
    with running(tmp_path, config_of(DRIFT)) as stream:
        post(stream, [*loads(300), {"time": START + 60 * 300, "load": 50.0}])
        odd = events_of(stream, "anomaly")[0]

        def fail(worker):
            commit, worker.commit = worker.commit, lambda **_: 1 / 0
            try:
                give(stream, worker, odd["id"], "incident", who="me")
            finally:
                worker.commit = commit

        with pytest.raises(ZeroDivisionError):
            stream.call(fail).result(60)
        monitor = stream.call(lambda worker: worker.store[""].detector.companion).result(60)
        assert isinstance(monitor, DriftMonitor)
        assert monitor.n_seen_ == 301
        post(stream, loads(60, 301, by=4.0))
        assert [event["is_open"] for event in events_of(stream, "drift")] == [True]


def test_records_that_the_monitor_keeps_out_are_not_learned(tmp_path):
    with running(tmp_path, config_of({**DRIFT, "drift": "keep"})) as stream:
        results = post(stream, [*loads(300), *loads(60, 300, by=4.0), *loads(100, 360)])
        points = [result.judgement.point for result in results]
        learned = [point for point in points if point is not None]
        assert learned == list(range(len(learned)))  # without gaps
        assert learned == list(range(stream.call(lambda worker: worker.store[""].detector.n_seen_).result(60)))
        (noticed,) = [i for i, result in enumerate(results) if result.judgement.changes[:1] and i < 360][:1]
        assert points[noticed] is not None
        assert points[noticed + 1 : 360] == [None] * (359 - noticed)
        assert points[-1] is not None
        flags = stream.history.records("").flags[noticed + 1 : 360]
        assert (flags & NOT_LEARNED).all()
        assert (flags & KEPT_OUT).all()


@pytest.mark.parametrize("n_between", [0, 200])
def test_undo_with_a_monitor_that_keeps_records_out(n_between, tmp_path):
    """It fails if the monitor would have kept out other records, as soon after the anomaly."""
    with running(tmp_path, config_of({**DRIFT, "drift": "keep"})) as stream:
        post(stream, [*loads(300), {"time": START + 60 * 300, "load": 50.0}])
        (odd,) = [event for event in events_of(stream, "anomaly") if event["end"] == START + 60 * 300]
        label(stream, odd, "incident")
        start = 301 + n_between
        post(stream, [*loads(n_between, 301), *loads(60, start, by=4.0), *loads(100, start + 60)])
        n = stream.call(lambda worker: worker.store[""].detector.n_seen_).result(60)
        with nullcontext() if n_between else pytest.raises(Conflict, match="drift monitor"):
            take_back(stream, odd)
        assert stream.call(lambda worker: worker.store[""].detector.n_seen_).result(60) == n


def test_damaged_note_of_a_drift_event_counts_as_none():
    entry = Entry(new_detector(StreamSettings()), {"drift": {"id": 3}})
    assert open_drift(entry) is None


def test_changes_in_one_batch_belong_to_their_rows():
    detector = new_detector(StreamSettings(trees=10, seed=1))
    monitor = DriftMonitor.beside(detector, reference=128, false_alarms_every=10_000, random_state=1)
    records = [*loads(300), *loads(60, 300, by=4.0), *loads(100, 360)]
    rows = [StreamRow([one["load"]], place=i) for i, one in enumerate(records)]
    judgements = score(detector, rows, RowLayout(["load"]), monitor=monitor)
    noticed = [(i, change) for i, judgement in enumerate(judgements) for change in judgement.changes]
    assert len(noticed) >= 2
    assert all(i == change.noticed for i, change in noticed)
    assert json.dumps([describe_changes(judgement) for judgement in judgements])


# ---- rows or series --------------------------------------------------------------------------------------------------


def test_scores_rows_or_a_series_as_set(tmp_path):
    records = [{"time": START + 60 * i, "load": float(np.sin(i / 9))} for i in range(600)]
    found = {}
    for series in (True, False, None):
        folder = tmp_path / str(series)
        folder.mkdir()
        with running(folder, config_of({} if series is None else {"series": series})) as stream:
            post(stream, records)
        found[series] = type(read_model(folder / "web.models", "")).__name__
    assert found == {True: "SeriesMPF", False: "StreamingMPF", None: "SeriesMPF"}


def test_stream_by_several_fields_reports_late_ones(tmp_path):
    config = WEB.replace('by = "host"', 'by = ["region", "host"]')
    with running(tmp_path, config) as stream:
        records = [{**record, "region": region} for region in ("eu", "us/2") for record in rows(20)]
        post(stream, records)
        assert stream.history.keys == ["eu/web-1", "us\\/2/web-1"]
        assert stream.reader.late == {}
        post(stream, [{**records[0], "time": START + 60 * 30, "id": "x", "memory": 5.0}])
        assert stream.reader.late == {"memory": 1}
    with running(tmp_path, config) as stream:  # models and settings fit
        post(stream, [{**records[0], "time": START + 60 * 40, "id": "y"}])
        assert stream.n_keys == 2
