"""Words and severity of events: what was read, when, what was expected, and how severe it is."""

import re

import numpy as np
import pytest
from services import START, WEB, odd, receiver, rows
from streams_served import post, running
from waiting import until

from polyaforest.detectors import SeriesMPF, StreamingMPF
from polyaforest.judge.describe import describe_judgement
from polyaforest.service.alerts import Destination, Outbox
from polyaforest.service.config import AlertConfig, parse_config
from polyaforest.service.events import is_severe
from polyaforest.service.gates import Departure, departure, why_muted
from polyaforest.settings.stream import Gates, Mute

N = 300
TITLE = r"Anomaly: web / web-1: cpu 99 at 03:13:20, expected about ([\d.]+) \(([\d.]+)–([\d.]+)\): too high"


def counts(rng, n):
    return np.column_stack([rng.poisson(40, n), rng.poisson(0.4, n)]).astype(float)


def check(departed, values, *, is_count):
    """Check that the parts of a departure are consistent."""
    assert departed.low <= departed.expected <= departed.high
    assert departed.value == values[departed.field]
    if departed.value > departed.high:
        assert departed.side == "high"
    if departed.value < departed.low:
        assert departed.side == "low"
    if is_count:
        assert departed.low >= 0
        assert departed.expected == round(departed.expected)


@pytest.mark.parametrize("is_count", [False, True])
def test_departures_of_rows_are_consistent(is_count):
    rng = np.random.default_rng(0)
    known = counts(rng, 600) if is_count else rng.normal(size=(600, 2)) * (1, 5) + (3, -20)
    forest = StreamingMPF(n_estimators=10, random_state=0).partial_fit(known)
    odd = np.vstack([known[:40] + rng.integers(-1, 60, (40, 2)), np.zeros((1, 2)), known[:20] * 3])
    odd = np.maximum(odd, 0) if is_count else odd
    n_found = 0
    for row, why in zip(odd, forest.explain(odd), strict=True):
        departed = departure(why, why.names)
        if departed is not None:
            n_found += 1
            check(departed, dict(zip(why.names, row.tolist(), strict=True)), is_count=is_count)
    assert n_found > 20


def test_departures_of_readings_are_consistent():
    rng = np.random.default_rng(1)
    readings = counts(rng, 1500)
    series = SeriesMPF(StreamingMPF(n_estimators=10, random_state=0)).partial_fit(readings)
    odd = readings[:60].copy()
    odd[::6, 0] += 200
    odd[3::6, 0] = 0
    n_found = 0
    for i, why in enumerate(series.explain(odd)):
        departed = departure(why, why.context.channels)
        if departed is not None:
            n_found += 1
            assert departed.value < departed.low or departed.value > departed.high
            check(departed, dict(zip(why.context.channels, odd[i].tolist(), strict=True)), is_count=True)
    assert n_found >= 10


def test_gates_for_numbers_do_not_apply_to_categories():
    new = Departure("country", "XX", "new")
    gates = Gates(direction="high", smallest_absolute=1.0, smallest_relative=0.5)
    assert why_muted(gates, [], "", START, new) is None
    assert why_muted(gates, [Mute(field="country")], "", START, new) is not None


def test_expected_range_contains_its_median(tmp_path):
    with running(tmp_path, WEB) as stream:
        for start in range(0, N, 50):
            post(stream, rows(50, start))
        low, middle, high = (stream.history.latest("web-1").band[k] for k in range(3))
        assert all(a <= b <= c for a, b, c in zip(low, middle, high, strict=True))


def test_titles_and_events_say_what_was_read_and_expected(tmp_path):
    config = f'{WEB}\n[[alerts]]\nname = "ops"\nurl = "http://127.0.0.1:9/hook"\n'
    with running(tmp_path, config) as stream:
        (*_, result) = post(stream, [*rows(N), odd(N)])
        (event,) = stream.events.find(key="web-1", start=START + 60 * N)
        (alert,) = stream.outbox.about(event["id"])
        found = re.fullmatch(TITLE, alert["message"]["title"])
        assert found, alert["message"]["title"]
        expected, low, high = map(float, found.groups())
        assert 40 < low < expected < high < 60
        assert event["summary"] in alert["message"]["title"]
        departed = event["departure"]
        assert departed["low"] < departed["expected"] < departed["high"] < departed["value"] == 99.0
        assert event["severity"] == result.line()["severity"] == alert["message"]["event"]["severity"]
        assert f"Severity {event['severity']} of 5" in alert["message"]["text"]
        assert "severity" not in post(stream, rows(1, N + 1))[0].line()


def test_title_of_a_new_category_names_it(tmp_path):
    config = '[streams.web]\ntime = "time"\ncategories = ["country"]\nseries = false\nfalse_alarm_rate = 0.01\n'
    records = [{"time": START + 60 * i, "amount": i % 7, "country": "DE" if i % 3 else "FR"} for i in range(400)]
    with running(tmp_path, config) as stream:
        post(stream, [*records, {"time": START + 60 * 400, "amount": 3, "country": "X\x1b"}])
        (event,) = stream.events.find(start=START + 60 * 400)
        assert re.fullmatch(r"country .*X.* at 04:53:20: never seen in 400 rows", event["summary"]), event["summary"]
        assert "\x1b" not in event["summary"]
        assert event["departure"] == {
            "field": "country", "value": "X\x1b", "side": "new", "expected": None, "low": None, "high": None
        }  # fmt: skip


def test_long_summaries_are_cut_in_titles(tmp_path):
    with running(tmp_path, WEB) as stream:
        outbox = Outbox("web", stream.database, [Destination(AlertConfig(name="a", url="http://127.0.0.1:9/x"))], "")
        event = {"id": "e", "key": "", "kind": "anomaly", "start": 1.0, "end": 1.0, "is_open": True, "bits": None}
        with stream.database.write() as file:
            outbox.add(file, {**event, "summary": "s" * 1000})
        (alert,) = outbox.about("e")
        assert len(alert["message"]["title"]) < 200
        assert alert["message"]["title"].endswith("…")
        assert "s" * 1000 in alert["message"]["text"]


# ---- severity --------------------------------------------------------------------------------------------------------


def test_events_without_a_severity_are_always_severe():
    assert is_severe({}, 5)
    assert is_severe({"severity": None}, 5)
    assert is_severe({"severity": 3}, 3)
    assert not is_severe({"severity": 2}, 3)


def test_finds_events_by_severity(tmp_path):
    with running(tmp_path, WEB + 'false_alarm_rate = 0.05\nsilence = "1s"\n') as stream:
        post(stream, [*rows(N), odd(N, cpu=1e6), *rows(N, N + 1)])
        until(lambda: any(event["kind"] == "silence" for event in stream.events.find()))
        events = stream.events.find(most=1000)
        grades = {event.get("severity") for event in events}
        assert None in grades
        assert len(grades - {None}) > 1
        for least in range(1, 6):
            found = stream.events.find(most=1000, min_severity=least)
            assert [one["id"] for one in found] == [one["id"] for one in events if is_severe(one, least)]
            assert stream.events.find(most=1, min_severity=least) == found[:1]


def test_alerts_are_sent_from_a_severity_on(tmp_path):
    with receiver() as hook:
        alert = '\n[[alerts]]\nname = "ops"\nurl = "{}"\nmin_severity = {}\nclosing = false\ngroup = false\n'
        with running(tmp_path, WEB + "false_alarm_rate = 0.05\n" + alert.format(hook.url, 2)) as stream:
            post(stream, [*rows(N), odd(N, cpu=1e6)])
            severe = [event for event in stream.events.find(most=1000) if event["severity"] >= 2]
            assert 0 < len(severe) < len(stream.events.find(most=1000))
            until(lambda: stream.outbox.n_waiting() == 0)
            assert {one["event"]["id"] for one in hook.messages} == {event["id"] for event in severe}


@pytest.mark.parametrize("grade", ["0", "6", "2.5", '"high"'])
def test_severity_of_alerts_is_from_1_to_5(grade):
    with pytest.raises(ValueError, match=r"alerts.*min_severity"):
        parse_config(f'[streams.web]\n[[alerts]]\nname = "a"\nurl = "http://x.y"\nmin_severity = {grade}\n')


def test_judgements_have_tail_bits_only_if_flagged(tmp_path):
    with running(tmp_path, WEB) as stream:
        results = post(stream, [*rows(N), odd(N)])
        for result in results:
            assert np.isnan(result.judgement.tail_bits) != result.judgement.is_anomaly
            assert describe_judgement(result.judgement)["is_anomaly"] == result.judgement.is_anomaly
