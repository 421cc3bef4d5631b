"""The life of an event: how it opens, closes and reopens."""

import shutil
from pathlib import Path

import pytest
from services import START, WEB, odd, rows
from streams_served import post, running
from waiting import until

from polyaforest.service.feedback import give, undo
from polyaforest.service.lifecycle import OpenEvents

SILENT = WEB + 'silence = "1s"\n'
CLOSED_SOON = WEB + 'close_after = "0.3s"\n'
N = 300  # normal records at first


def label(stream, event, verdict):
    stream.call(lambda worker: give(stream, worker, event["id"], verdict, who="me")).result(60)


def take_back(stream, event):
    stream.call(lambda worker: undo(stream, worker, event["id"], who="me")).result(60)


def odder(number, host="web-1"):
    """Return an anomaly in another field, so that feedback on one does not make the next one normal."""
    record = odd(number, host=host, cpu=500.0 if number % 2 == 0 else 50.0)
    return {**record, "load": 10.0 if number % 2 == 0 else -1e6}


def open_one(stream, number=N, host="web-1"):
    """Open an event; return it."""
    if number == N:
        post(stream, rows(N, host=host))
    post(stream, [odder(number, host=host)])
    event = last_event(stream, host)
    assert (event["is_open"], event["closed_by"]) in ((True, None), (False, "silence"))
    return event


def last_event(stream, host="web-1"):
    return stream.events.find(key=host, start=START + 60 * N)[0]


def now(stream, event):
    return stream.events.get(event["id"])


# ---- records ---------------------------------------------------------------------------------------------------------


def test_records_keep_an_event_open_and_close_it(tmp_path):
    with running(tmp_path) as stream:
        event = open_one(stream)
        post(stream, rows(9, N + 1))
        assert now(stream, event)["is_open"]
        post(stream, rows(1, N + 10))
        assert not now(stream, event)["is_open"]
        assert now(stream, event)["closed_by"] == "records"
        assert now(stream, event)["end"] == event["end"]


def test_flagged_record_after_a_gap_opens_another_event(tmp_path):
    with running(tmp_path) as stream:
        event = open_one(stream)
        post(stream, [*rows(10, N + 1), odd(N + 11, cpu=999.0)])
        assert not now(stream, event)["is_open"]
        assert last_event(stream)["id"] != event["id"]
        assert last_event(stream)["is_open"]


# ---- feedback --------------------------------------------------------------------------------------------------------


def test_normal_event_closes(tmp_path):
    with running(tmp_path) as stream:
        event = open_one(stream)
        label(stream, event, "normal")
        closed = now(stream, event)
        assert (closed["is_open"], closed["closed_by"], closed["label"]) == (False, "feedback", "normal")
        assert stream.events.n_open() == 0
        other = open_one(stream, N + 1)  # does not continue it
        assert other["id"] != event["id"]
        assert not now(stream, event)["is_open"]
        post(stream, rows(10, N + 2))
        assert now(stream, event)["label"] == "normal"


def test_incident_stays_open_until_records_close_it(tmp_path):
    with running(tmp_path) as stream:
        event = open_one(stream)
        label(stream, event, "incident")
        assert now(stream, event)["is_open"]
        post(stream, rows(10, N + 1))
        assert now(stream, event)["closed_by"] == "records"
        take_back(stream, event)
        assert not now(stream, event)["is_open"]


def test_undo_reopens_the_event_if_records_would_not_have_closed_it(tmp_path):
    with running(tmp_path) as stream:
        event = open_one(stream)
        label(stream, event, "normal")
        post(stream, rows(5, N + 1))
        take_back(stream, event)
        again = now(stream, event)
        assert (again["is_open"], again["closed_by"], again["label"]) == (True, None, None)
        post(stream, [odd(N + 6, cpu=900.0)])
        assert now(stream, event)["end"] == START + 60 * (N + 6)  # records continue it
        post(stream, rows(10, N + 7))
        assert now(stream, event)["closed_by"] == "records"


def test_undo_leaves_the_event_closed_if_records_would_have_closed_it(tmp_path):
    with running(tmp_path) as stream:
        event = open_one(stream)
        label(stream, event, "normal")
        post(stream, rows(10, N + 1))
        take_back(stream, event)
        assert (now(stream, event)["is_open"], now(stream, event)["label"]) == (False, None)


def test_undo_leaves_the_event_closed_if_another_is_open(tmp_path):
    with running(tmp_path) as stream:
        event = open_one(stream)
        label(stream, event, "normal")
        other = open_one(stream, N + 1)
        take_back(stream, event)
        assert not now(stream, event)["is_open"]
        assert now(stream, other)["is_open"]


# ---- silence of its key ----------------------------------------------------------------------------------------------


def test_event_of_a_silent_key_closes(tmp_path):
    with running(tmp_path, CLOSED_SOON) as stream:
        event = open_one(stream)
        until(lambda: not now(stream, event)["is_open"])
        assert now(stream, event)["closed_by"] == "silence"
        assert now(stream, event)["end"] == event["end"]
        other = open_one(stream, N + 1)
        assert other["id"] != event["id"]
    with running(tmp_path, WEB) as stream:  # it stays closed
        assert not now(stream, event)["is_open"]
        post(stream, [odd(N + 2, cpu=999.0)])
        assert not now(stream, event)["is_open"]


def test_silence_of_a_key_closes_its_anomaly_and_is_closed_by_records(tmp_path):
    with running(tmp_path, SILENT) as stream:
        event = open_one(stream)
        until(lambda: stream.events.n_open() == 1 and not now(stream, event)["is_open"])
        (silence,) = stream.events.find(is_open=True)
        assert silence["kind"] == "silence"
        post(stream, rows(1, N + 1))
        assert (now(stream, silence)["is_open"], now(stream, silence)["closed_by"]) == (False, "records")


def test_silence_labelled_as_normal_stays_closed_until_the_next_record(tmp_path):
    with running(tmp_path, SILENT) as stream:
        post(stream, rows(5))
        until(lambda: stream.events.n_open() == 1)
        (silence,) = stream.events.find(is_open=True)
        label(stream, silence, "normal")
        assert now(stream, silence)["closed_by"] == "feedback"
        take_back(stream, silence)
        assert now(stream, silence)["is_open"]
        label(stream, silence, "normal")
    with running(tmp_path, SILENT) as stream:
        assert stream.is_silent(silence["id"])  # so it does not reopen
        assert stream.events.n_open() == 0
        post(stream, rows(1, 5))
        assert now(stream, silence)["closed_by"] == "records"
        until(lambda: stream.events.n_open() == 1)
        take_back(stream, silence)
        assert not now(stream, silence)["is_open"]


def test_silence_of_known_keys_is_measured_from_the_start():
    clock = [0.0]
    event = {"kind": "anomaly", "key": "a", "id": "e", "is_open": True}
    open_events = OpenEvents(100.0, [event, {**event, "key": "b", "id": "f"}], steady=lambda: clock[0])
    clock[0] = 99.0
    assert open_events.of_silent_keys() == []
    assert open_events.hear({"a": {"e"}, "c": set()}) == []
    clock[0] = 110.0
    assert open_events.of_silent_keys() == ["f"]
    open_events.note([{**event, "key": "b", "id": "f", "is_open": False}])
    clock[0] = 210.0
    assert open_events.of_silent_keys() == ["e"]
    assert open_events.hear({"a": set()}) == ["e"]


# ---- restarts, lost models, other settings, earlier releases ---------------------------------------------------------


@pytest.mark.parametrize("is_normal", [False, True])
def test_restart_does_not_change_events(tmp_path, is_normal):
    with running(tmp_path) as stream:
        event = open_one(stream)
        if is_normal:
            label(stream, event, "normal")
    with running(tmp_path) as stream:
        assert now(stream, event)["is_open"] != is_normal
        post(stream, [odder(N + 1)])
        assert (last_event(stream)["id"] == event["id"]) != is_normal
        post(stream, rows(10, N + 2))
        assert stream.events.n_open() == 0


def test_event_unknown_to_its_model_closes_with_the_next_record(tmp_path):
    with running(tmp_path) as stream:
        event = open_one(stream)
        other = open_one(stream, host="web-2")
        stream.call(lambda worker: worker.store.delete("web-1")).result(60)
        post(stream, [*rows(1, N + 1), *rows(1, N + 1, host="web-2")])
        assert (now(stream, event)["is_open"], now(stream, event)["closed_by"]) == (False, "model")
        assert now(stream, other)["is_open"]


def test_events_of_missing_models_close(tmp_path):
    with running(tmp_path) as stream:
        event = open_one(stream)
        other = open_one(stream, host="web-2")
    (tmp_path / "web.models").unlink()
    with running(tmp_path) as stream:
        post(stream, rows(1, N + 1))
        assert now(stream, event)["closed_by"] == "model"
        assert now(stream, other)["is_open"]
    with running(tmp_path, CLOSED_SOON) as stream:
        until(lambda: now(stream, other)["closed_by"] == "silence")


def test_start_without_silence_closes_silence_events(tmp_path):
    with running(tmp_path, SILENT) as stream:
        post(stream, rows(5))
        until(lambda: stream.events.n_open() == 1)
        (silence,) = stream.events.find(is_open=True)
    with running(tmp_path) as stream:
        assert (now(stream, silence)["is_open"], now(stream, silence)["closed_by"]) == (False, "settings")


def test_changed_merge_applies_to_the_next_event(tmp_path):
    with running(tmp_path) as stream:
        event = open_one(stream)
    with running(tmp_path, WEB + "merge = 2\n") as stream:
        post(stream, rows(9, N + 1))
        assert now(stream, event)["is_open"]
        post(stream, rows(1, N + 10))
        assert not now(stream, event)["is_open"]
        other = open_one(stream, N + 11)
        post(stream, rows(2, N + 12))
        assert not now(stream, other)["is_open"]


def test_events_left_open_by_an_earlier_release_close(tmp_path):
    shutil.copy(Path(__file__).parents[1] / "golden" / "history-1.history", tmp_path / "web.history")
    with running(tmp_path) as stream:
        closed = stream.events.get("bbbb")
        assert (closed["label"], closed["is_open"], closed["closed_by"]) == ("normal", False, "feedback")


@pytest.mark.parametrize("is_saved", [False, True])
def test_kill_between_saving_model_and_history_leaves_no_event_open(tmp_path, is_saved):
    """The model is saved first: killed before, the event stays open; killed after, the next record closes it."""
    with running(tmp_path) as stream:
        event = open_one(stream)

        def die(worker):
            if is_saved:
                worker.take_event("web-1", event["id"])
                worker.commit()

        stream.call(die).result(60)
    with running(tmp_path) as stream:
        assert now(stream, event)["is_open"]
        post(stream, rows(1, N + 1))
        assert now(stream, event)["is_open"] != is_saved
        post(stream, rows(9, N + 2))
        assert not now(stream, event)["is_open"]
