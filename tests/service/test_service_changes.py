"""Changed settings of streams with data: a start does what `--check` prints."""

import json
import re
import shutil
import sqlite3
import time
from contextlib import closing, contextmanager

import pytest
from services import START, odd, rows
from waiting import until

from polyaforest.io.errors import BadInput
from polyaforest.judge import read_notes
from polyaforest.service.app import Service
from polyaforest.service.changes import KINDS, plan_stream, stored_plan
from polyaforest.service.config import TABLES, ServerConfig, StreamConfig, parse_config, to_toml
from polyaforest.service.feedback import Conflict, give, undo
from polyaforest.service.numbering import Numbering
from polyaforest.service.relearn import replay
from polyaforest.settings.stream import Effect
from polyaforest.settings.values import settings_of

N = 300
WEB = {"time": "time", "by": "host", "id": "id", "trees": 4, "window": 64, "seed": 1, "false_alarm_rate": 0.2}
ALERT = {"name": "ops", "url": "http://127.0.0.1:9/hook", "min_bits": 1e9}
PROMETHEUS = {"url": "http://127.0.0.1:9", "queries": {"cpu": "a", "load": "b", "requests": "c"}, "by": "host"}
METRICS = {
    **{key: value for key, value in WEB.items() if key not in ("time", "by", "id")},
    "source": "otlp",
    "metrics": {"fields": {"cpu": "a", "load": "b", "requests": "c"}, "by": ["host"]},
}
LINES = ["time,host,id,cpu,load,requests"]
CSV = [f"{START + 60 * (N + i)},web-1,x-{i},50.5,10,200" for i in range(3)]

# A changed value for each setting; a test fails if a setting is missing.
CHANGES = {
    "source": "FOLDER/records.jsonl",
    "format": "csv",
    "columns": ["cpu", "load"],
    "categories": ["load"],
    "time": "moment",
    "by": "shop",
    "id": None,
    "weight": "load",
    "series": True,
    "shingle": 2,
    "difference": True,
    "calendar": ["time of day"],
    "timezone": "Europe/Berlin",
    "window": "2h",
    "trees": 6,
    "false_alarm_rate": 0.001,
    "seed": 2,
    "drift": "report",
    "drift_alarms_every": 5000,
    "drift_reference": 256,
    "merge": 5,
    "band": False,
    "silence": "5m",
    "close_after": "10m",
    "max_ahead": "5m",
    "max_wait": "1m",
    "memory_mb": 2,
    "save_records": 50,
    "save_every": "1s",
    "retention.records": 100_000,
    "retention.age": "10d",
    "gates.direction": "high",
    "gates.smallest_absolute": 1.0,
    "gates.smallest_relative": 0.5,
    "gates.valid": {"cpu": [0, 100]},
    "mute": [{"key": "web-1"}],
    "maintenance": [{"name": "nights", "mode": "judge-only", "days": ["mon"]}],
    "prometheus.url": "http://127.0.0.1:10",
    "prometheus.queries": {"cpu": "a", "load": "b", "requests": "d"},
    "prometheus.by": "instance",
    "prometheus.step": "30s",
    "prometheus.past": "1h",
    "prometheus.timeout": "1s",
    "prometheus.token_file": "FOLDER/token",
    "metrics.fields": {"cpu": "a", "load": "b", "requests": "d"},
    "metrics.by": ["instance"],
    "metrics.within": "2s",
    "metrics.wait": "1s",
    "alerts": [{**ALERT, "min_bits": 3.0}],
    "streams": {"other": {}},
    "server.host": "localhost",
    "server.port": 1,
    "server.data": "FOLDER/other",
    "server.read_token_file": "FOLDER/token",
    "server.admin_token_file": "FOLDER/token",
    "server.allowed_hosts": ["web"],
    "server.cors": ["http://web"],
    "server.max_body_mb": 3.0,
    "server.requests_per_second": 7.0,
    "server.header_timeout": "5s",
    "server.body_timeout": "5s",
    "server.session_age": "1d",
    "server.feeds_per_address": 3,
    "server.trusted_proxies": ["10.0.0.0/8"],
    "server.key_labels": True,
    "server.public_url": "http://web/",
    "server.otlp_url": "http://127.0.0.1:9/v1/metrics",
    "server.otlp_every": "1m",
    "server.otlp_token_file": "FOLDER/token",
    "server.tokens": [{"name": "ops", "role": "admin", "file": "FOLDER/token"}],
}


def config_of(folder, stream, **others):
    """Return the configuration of a service with one stream."""
    server = {"data": str(folder / "data"), **others.pop("server", {})}
    return {"server": server, "streams": {"web": stream, **others.pop("streams", {})}, "alerts": [ALERT], **others}


def changed(folder, name, stream):
    """Return the configuration with a changed setting."""
    value = json.loads(json.dumps(CHANGES[name]).replace("FOLDER", str(folder)))
    if name.startswith("server."):
        server = {name.partition(".")[2]: value}
        if name == "server.read_token_file":
            server["admin_token_file"] = value
        return config_of(folder, stream, server=server)
    if name in ("alerts", "streams"):
        return config_of(folder, stream, **{name: value})
    table, _, inner = name.partition(".")
    if inner:
        return config_of(folder, {**stream, table: {**stream.get(table, {}), inner: value}})
    return config_of(folder, {part: one for part, one in {**stream, name: value}.items() if one is not None})


def write(folder, config):
    path = folder / "polyaforest.toml"
    path.write_text(to_toml(config))
    return path


@contextmanager
def running(folder, config):
    """Run a service in this process."""
    path = write(folder, config)
    service = Service(parse_config(path.read_text()), lambda: parse_config(path.read_text(), str(path)))
    service.start()
    try:
        until(lambda: all(one.is_ready or one.error for one in service.streams.values()))
        yield service
    finally:
        service.stop()


def post(service, records, stream="web"):
    """Post records; return the results."""
    lines = [record.encode() if isinstance(record, str) else json.dumps(record).encode() for record in records]
    return service.streams[stream].inbox.put(lines).result(300).results


def keyed(records):
    """Return records as those of metrics: with their key under its own name."""
    return [{**record, "key": record["host"]} for record in records]


def relearned(service, stream="web"):
    """Wait until relearning is complete; return the stream."""
    one = service.streams[stream]
    until(lambda: one.relearning is None or one.error)
    return one


@pytest.fixture(scope="module")
def past(tmp_path_factory):
    """Data folder of a stream with records of two hosts."""
    folder = tmp_path_factory.mktemp("past")
    (folder / "token").write_text("a-token-of-twenty-chars")
    with running(folder, config_of(folder, WEB)) as service:
        post(service, [*rows(N), *rows(N, host="web-2")])
    shutil.copytree(folder / "data", folder / "plain")
    return folder


def names_in(schema):
    """Return the names of all settings of a table."""
    if not hasattr(schema, "model_fields"):
        return set(settings_of(schema))
    names = {field.alias or name for name, field in schema.model_fields.items()}
    for table in names & set(TABLES):
        inner = schema.model_fields[table].annotation
        inner = next((part for part in getattr(inner, "__args__", ()) if hasattr(part, "model_fields")), inner)
        names = names - {table} | {f"{table}.{name}" for name in names_in(inner)}
    return names


def test_kinds_cover_every_setting():
    server = {f"server.{name}" for name in names_in(ServerConfig)}
    assert set(KINDS) == server | names_in(StreamConfig) | {"alerts", "streams"}
    assert set(CHANGES) == set(KINDS)


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_start_does_what_check_prints(name, past, tmp_path, cli):
    shutil.copytree(past, tmp_path, dirs_exist_ok=True)
    stream = WEB
    if name.startswith("prometheus."):  # the files of a stream do not depend on its source
        stream = {**{key: WEB[key] for key in WEB if key not in ("time", "by", "id")}, "source": "prometheus"}
        stream["prometheus"] = PROMETHEUS
        with running(tmp_path, config_of(tmp_path, stream)) as service:
            assert service.is_ready
    if name.startswith("metrics."):  # the key of their records has a name of its own
        shutil.rmtree(tmp_path / "data")
        stream = METRICS
        with running(tmp_path, config_of(tmp_path, stream)) as service:
            post(service, keyed(rows(20)))
    config = changed(tmp_path, name, stream)
    code, _, said = cli("serve", "--check", str(write(tmp_path, config)))
    kind = KINDS[name]
    assert (code != 0) == (kind is Effect.NEW_STREAM), said
    is_of_stream = name not in ("alerts", "streams", "server.tokens")
    wanted = {
        Effect.NEW_STREAM: rf"line \d+: streams\.web\.{name}: .*untouched.*another name",
        Effect.RELEARNED: rf"web: a start relearns its models from its history \({2 * N} records\)"
        rf" because of {name} = ",
        Effect.APPLIED: rf"web: a start applies {name} = " if is_of_stream else "is valid",
        Effect.AT_START: "is valid",
    }[kind]
    assert re.search(wanted, said), said
    if name != "server.port":  # nothing listens here
        check_start(tmp_path, config, kind, cli)


def check_start(folder, config, kind, cli):
    """Check that the stream starts, unless it must be a new one, and that the next start changes nothing."""
    with running(folder, config) as service:
        one = relearned(service)
        assert one.is_ready == (kind is not Effect.NEW_STREAM), one.error
        if kind is Effect.NEW_STREAM:
            assert "untouched" in one.error
            return
        if one.inbox is not None:
            new = LINES + CSV if one.config.format == "csv" else [*rows(3, N), *rows(3, N + 3, host="web-2")]
            new = new if one.config.metrics is None else keyed(new)
            judged = post(service, new)
            assert all(hasattr(result, "judgement") for result in judged), judged
        known = one.history.position
    with running(folder, config) as service:
        assert service.streams["web"].relearning is None
        assert service.streams["web"].history.position == known
    code, _, said = cli("serve", "--check", str(write(folder, config)))
    assert (code, ": a start" in said) == (0, False), said


QUICK = ("by", "columns", "false_alarm_rate", "gates.direction", "source", "streams", "alerts", "trees", "server.port")
RELOADED = [
    name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
    for name in sorted(CHANGES)
    if not name.startswith("prometheus.")  # nothing can be posted to it
]


@pytest.mark.parametrize("name", RELOADED)
def test_reload_does_what_a_start_does(name, past, tmp_path):
    shutil.copytree(past, tmp_path, dirs_exist_ok=True)
    is_of_metrics = name.startswith("metrics.")
    if is_of_metrics:  # the key of their records has a name of its own
        shutil.rmtree(tmp_path / "data")
    stream = METRICS if is_of_metrics else WEB
    with running(tmp_path, config_of(tmp_path, stream)) as service:
        if is_of_metrics:
            post(service, keyed(rows(20)))
        before = service.config
        write(tmp_path, changed(tmp_path, name, stream))
        if KINDS[name] is Effect.NEW_STREAM:
            with pytest.raises(BadInput, match=rf"line \d+: streams\.web\.{name}: "):
                service.reload("tester")
            assert service.config == before
        else:
            answer = service.reload("tester")
            places = {Effect.APPLIED: "applied", Effect.RELEARNED: "relearned", Effect.AT_START: "at_next_start"}
            place = places[KINDS[name]]
            assert name in str(answer[place]) or answer.get(name.rpartition(".")[2]) or answer["started"] == ["other"]
        one = relearned(service)
        if one.inbox is not None:
            new = LINES + CSV if one.config.format == "csv" else rows(3, N)
            new = keyed(new) if is_of_metrics else new
            assert all(hasattr(result, "judgement") for result in post(service, new))
        logged = audit(one)
        if KINDS[name] in (Effect.APPLIED, Effect.RELEARNED) and name not in ("streams", "server.tokens"):
            assert ("tester", "alerts" if name == "alerts" else "settings") in logged
        assert (("the service", "relearned") in logged) == (KINDS[name] is Effect.RELEARNED)


def audit(stream):
    with stream.database.read() as file:
        return file.execute("SELECT who, action FROM audit ORDER BY id").fetchall()


# ---- single settings -------------------------------------------------------------------------------------------------


def test_naming_detected_columns_changes_nothing(tmp_path):
    plain = {"by": "host", "trees": 4}
    with running(tmp_path, config_of(tmp_path, plain)) as service:
        post(service, [{name: record[name] for name in record if name != "id"} for record in rows(50)])
    named = {**plain, "time": "time", "columns": ["cpu", "load", "requests"], "format": "jsonl", "id": "id"}
    with running(tmp_path, config_of(tmp_path, named)) as service:
        (result,) = post(service, rows(1, 50))
        assert (result.sample.point, result.sample.number) == ("web-1-50", 50)
    with running(tmp_path, config_of(tmp_path, plain)) as service:
        (result,) = post(service, rows(1, 51))
        assert (result.sample.point, result.sample.number) == (51, 51)
    with running(tmp_path, config_of(tmp_path, {**plain, "id": "cpu"})) as service:
        assert "the field 'cpu' is a column" in service.streams["web"].error


def test_reads_settings_saved_by_an_earlier_version(past, tmp_path):
    """They lack most settings; `calendar`, `maintenance` and `prometheus.queries` had other names."""
    shutil.copytree(past, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "data" / "web.models"
    with closing(sqlite3.connect(path)) as file, file:
        notes = json.loads(file.execute("SELECT text FROM notes").fetchone()[0])
        names = ("format", "columns", "time", "by", "id", "series", "shingle", "difference", "trees", "seed")
        former = {"seasons": notes["settings"]["calendar"], "calendars": notes["settings"]["maintenance"]}
        notes["settings"] = {name: notes["settings"][name] for name in (*names, "window", "false_alarm_rate")} | former
        file.execute("UPDATE notes SET text = ?", (json.dumps(notes).encode(),))
    plan, _ = stored_plan(str(tmp_path / "data"), "web", StreamConfig(**WEB))
    assert (plan.applied, plan.relearned, plan.refused) == ({}, {}, {})
    by_day = StreamConfig(**WEB, calendar=["time of day"], maintenance=CHANGES["maintenance"])
    plan, _ = stored_plan(str(tmp_path / "data"), "web", by_day)
    assert (list(plan.applied), plan.relearned) == (["maintenance"], {"calendar": ([], ["time of day"])})
    with running(tmp_path, changed(tmp_path, "trees", WEB)) as service:
        assert relearned(service).is_ready
        assert audit(service.streams["web"]) == [("start", "settings"), ("the service", "relearned")]
    notes["settings"]["queries"] = {"cpu": "a", "load": "b", "requests": "c"}
    prometheus = StreamConfig(
        source="prometheus", prometheus={**PROMETHEUS, "queries": {**PROMETHEUS["queries"], "cpu": "z"}}
    )
    assert list(plan_stream("web", prometheus, notes).refused) == ["prometheus.queries"]


def test_reads_long_windows_saved_by_an_earlier_version(past):
    notes = read_notes(str(past / "data" / "web.models"))[0]
    for window, saved in (("1234567s", "1.23457e+06s"), ("30d", "2.592e+06s")):
        notes["settings"]["window"] = saved
        plan = plan_stream("web", StreamConfig(**{**WEB, "window": window}), notes)
        assert (plan.applied, plan.relearned, plan.refused) == ({}, {}, {})
    plan = plan_stream("web", StreamConfig(**{**WEB, "window": "20d"}), notes)
    assert plan.relearned == {"window": ("2.592e+06s", "1728000s")}
    assert plan.running == StreamConfig(**{**WEB, "window": "30d"})


def test_stream_without_records_accepts_any_settings(tmp_path):
    with running(tmp_path, config_of(tmp_path, {"by": "host", "columns": ["a"]})):
        pass
    with running(tmp_path, config_of(tmp_path, {**WEB, "columns": ["cpu"]})) as service:
        (result,) = post(service, rows(1))
        assert result.judgement.row.key == "web-1"
        assert len(result.sample.values) == 1


def test_false_alarm_rate_of_a_preview_is_applied_to_models(past, tmp_path):
    """The rate changes the threshold of existing models, at once and after a restart."""
    shutil.copytree(past, tmp_path, dirs_exist_ok=True)
    with running(tmp_path, config_of(tmp_path, WEB)) as service:
        before = post(service, rows(1, N))[0].judgement
        write(tmp_path, changed(tmp_path, "false_alarm_rate", WEB))
        assert service.reload("tester")["applied"] == {"web": {"false_alarm_rate": (0.2, 0.001)}}
        after = post(service, rows(1, N + 1))[0].judgement
        assert after.threshold < before.threshold
        assert after.point == "web-1-301"
    with running(tmp_path, changed(tmp_path, "false_alarm_rate", WEB)) as service:
        assert post(service, rows(1, N + 2))[0].judgement.threshold <= before.threshold
        assert audit(service.streams["web"]) == [("tester", "settings")]


def test_invalid_file_leaves_the_settings_unchanged(past, tmp_path):
    shutil.copytree(past, tmp_path, dirs_exist_ok=True)
    with running(tmp_path, config_of(tmp_path, WEB)) as service:
        before = service.config
        for text, words in [
            ("[streams.web]\ntrees = 0\n", "line 2: streams.web.trees"),
            ("[streams", "polyaforest.toml"),
            (
                to_toml(config_of(tmp_path, {**WEB, "source": "redis://localhost"})),
                "line .*: streams.web.source: .*stream",
            ),
            (to_toml(config_of(tmp_path, WEB, alerts=[{**ALERT, "url": "nothing://x"}])), "line .*: alerts.0.url"),
        ]:
            (tmp_path / "polyaforest.toml").write_text(text)
            with pytest.raises(BadInput, match=words):
                service.reload("tester")
        assert service.config == before
        assert len(post(service, rows(1, N))) == 1
        assert audit(service.streams["web"]) == []


def test_reload_without_silence_closes_silence_events(past, tmp_path):
    shutil.copytree(past, tmp_path, dirs_exist_ok=True)
    with running(tmp_path, config_of(tmp_path, {**WEB, "silence": "0.05s"})) as service:
        one = service.streams["web"]
        until(lambda: any(event["kind"] == "silence" for event in one.events.find(is_open=True)))
        write(tmp_path, config_of(tmp_path, WEB))
        service.reload("tester")
        assert not any(event["kind"] == "silence" for event in one.events.find(is_open=True))


def test_records_accepted_before_the_source_changes_are_scored(past, tmp_path):
    shutil.copytree(past, tmp_path, dirs_exist_ok=True)
    with running(tmp_path, config_of(tmp_path, WEB)) as service:
        one = service.streams["web"]
        accepted = [
            one.inbox.put([json.dumps(record).encode() for record in rows(300, N + 300 * turn)], waits=False)
            for turn in range(3)
        ]
        for answer in accepted:
            answer.result(60)
        write(tmp_path, changed(tmp_path, "source", WEB))
        service.reload("tester")
        assert one.inbox is None
        assert one.history.position == 2 * N + 900
        (tmp_path / "records.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(7, N + 900)))
        until(lambda: one.history.position == 2 * N + 907)


# ---- relearned models ------------------------------------------------------------------------------------------------


def test_relearned_model_equals_one_with_these_settings_from_the_start(past, tmp_path):
    """The history has all records, so the former settings leave no trace."""
    shutil.copytree(past, tmp_path, dirs_exist_ok=True)
    other = {**WEB, "trees": 6, "window": 100}
    with running(tmp_path, config_of(tmp_path, other)) as service:
        relearned(service)
        found = post(service, [*rows(50, N), odd(N + 50)])
    (tmp_path / "new").mkdir()
    with running(tmp_path / "new", config_of(tmp_path / "new", other)) as service:
        post(service, [*rows(N), *rows(N, host="web-2")])
        wanted = post(service, [*rows(50, N), odd(N + 50)])
    assert [one.judgement.score for one in found] == [one.judgement.score for one in wanted]
    assert [one.sample.number for one in found] == [one.sample.number for one in wanted]


def learn_slowly(*given, **settings):
    """Relearn with pauses, so that a test can act meanwhile."""
    for piece in replay(*given, **settings):
        time.sleep(0.02)
        yield piece


def test_current_models_score_records_until_relearning_is_complete(past, tmp_path, monkeypatch):
    monkeypatch.setattr("polyaforest.service.relearn.PIECE", 40)  # it also learns while no batch waits
    monkeypatch.setattr("polyaforest.service.stream._RELEARN_SECONDS", 0.0)  # one piece after each batch
    monkeypatch.setattr("polyaforest.service.relearn.replay", learn_slowly)
    shutil.copytree(past, tmp_path, dirs_exist_ok=True)
    with running(tmp_path, config_of(tmp_path, WEB)) as service:
        one, n = service.streams["web"], N
        write(tmp_path, changed(tmp_path, "trees", WEB))
        service.reload("tester")
        while one.relearning is not None:
            assert one.is_ready
            assert len(post(service, rows(10, n))) == 10
            n += 10
        assert n > N
        assert (one.relearning, one.history.position) == (None, N + n)
        assert "relearned" in one.notice
        assert one.call(lambda worker: worker.store["web-1"].detector.n_seen_).result(60) == n


def test_stop_during_relearning_keeps_the_current_models(past, tmp_path, monkeypatch):
    monkeypatch.setattr("polyaforest.service.stream._RELEARN_SECONDS", 0.0)
    monkeypatch.setattr("polyaforest.service.relearn.PIECE", 1)
    monkeypatch.setattr("polyaforest.service.relearn.replay", learn_slowly)
    shutil.copytree(past, tmp_path, dirs_exist_ok=True)
    with running(tmp_path, changed(tmp_path, "trees", WEB)) as service:
        until(lambda: service.streams["web"].relearning.n_learned > 3)
    monkeypatch.undo()
    plan, n_records = stored_plan(str(tmp_path / "data"), "web", StreamConfig(**{**WEB, "trees": 6}))
    assert (plan.relearned, n_records) == ({"trees": (4, 6)}, 2 * N)
    with running(tmp_path, config_of(tmp_path, WEB)) as service:
        assert service.streams["web"].relearning is None
        assert audit(service.streams["web"]) == [("start", "settings")]  # of the start that relearned
        assert post(service, rows(1, N))[0].sample.number == N


def test_failed_relearning_keeps_the_current_models(past, tmp_path, monkeypatch):
    shutil.copytree(past, tmp_path, dirs_exist_ok=True)

    def fail(*_, **__):
        raise RuntimeError("no")

    monkeypatch.setattr("polyaforest.service.relearn.replay", fail)
    with running(tmp_path, changed(tmp_path, "trees", WEB)) as service:
        one = service.streams["web"]
        until(lambda: one.relearning is None)
        assert "could not relearn" in one.notice
        assert len(post(service, rows(1, N))) == 1
        assert one.is_ready


def test_relearned_models_include_feedback(tmp_path):
    """A model that has learned only part of the history numbers points differently."""
    unnamed = {name: value for name, value in WEB.items() if name not in ("id", "false_alarm_rate")} | {"trees": 20}
    with running(tmp_path, config_of(tmp_path, unnamed)) as service:
        one = service.streams["web"]
        post(service, rows(200))
        post(service, [odd(200)])
        post(service, rows(20, 201))
        first = event_at(one, 200)
        label(one, first, "incident")
        post(service, [odd(221, cpu=150.0)])
        post(service, rows(20, 222))
        second = event_at(one, 221)
        one.history._rewrite("web-1", lambda block: block.where(block.numbers >= 100))  # as retention does
        kept = one.history.records("web-1")
        write(tmp_path, config_of(tmp_path, {**unnamed, "window": 200}))
        service.reload("tester")
        relearned(service)
        (result,) = post(service, [odd(242, cpu=-500.0)])
        assert result.sample.point == 242  # as if the model were the one before
        values = points_of(one)
        assert (99.0 in values, 150.0 in values, -500.0 in values) == (False, True, True)
        assert len(values) == len(kept)
        label(one, second, "incident")
        assert 150.0 not in points_of(one)
        post(service, rows(20, 243))
        label(one, event_at(one, 242), "incident")
        assert -500.0 not in points_of(one)
        with pytest.raises(Conflict, match="too late"):
            one.call(lambda worker: undo(one, worker, first, who="tester")).result(60)


def event_at(stream, number):
    when = START + 60.0 * number
    (event,) = [event for event in stream.events.find() if event["start"] <= when <= event["end"]]
    return event["id"]


def label(stream, event, verdict):
    stream.call(lambda worker: give(stream, worker, event, verdict, who="tester")).result(60)


def points_of(stream):
    """Return the values of the first field in the model."""
    return stream.call(lambda worker: worker.store["web-1"].detector.points_[:, 0].tolist()).result(60)


def test_numbering_maps_records_to_points():
    numbering = Numbering()
    assert (numbering.in_history(7), numbering.in_model(7), numbering.in_model("a")) == (7, 7, "a")
    for in_history, in_model in [(10, 0), (11, 1), (15, 2)]:
        numbering.add(in_history, in_model)
    numbering.since, numbering.ahead = 16, 13
    notes = {}
    numbering.to_notes(notes)
    again = Numbering.of_notes(json.loads(json.dumps(notes)))
    assert [again.in_model(point) for point in (9, 10, 11, 12, 15, 16)] == [None, 0, 1, None, 2, 3]
    assert again.in_history(3) == 16
    with pytest.raises(ValueError, match="numbering"):
        Numbering.of_notes({"numbering": {"since": "x", "ahead": 0, "runs": []}})
