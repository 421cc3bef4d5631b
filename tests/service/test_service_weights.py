"""Records with weights: the service and `watch` count a record as often as its weight says."""

import io
import json
import re

import numpy as np
import polars as pl
import pytest
from streams_served import post, running
from waiting import until

from polyaforest.judge import read_model
from polyaforest.judge.models import new_detector
from polyaforest.service.blocks import Block, ScoredRecord
from polyaforest.service.config import parse_config, to_toml
from polyaforest.service.feedback import forget, give, undo
from polyaforest.service.importing import import_tables
from polyaforest.service.numbering import Numbering
from polyaforest.service.preview import Trial, preview
from polyaforest.service.rows import csv_parts, pages, rows_of

START = 1.7e9
SETTINGS = {"time": "time", "weight": "hits", "trees": 10, "seed": 1, "window": 300, "false_alarm_rate": 0.01}
N = 250


def config_of(**others):
    return to_toml({"streams": {"web": {**SETTINGS, **others}}})


def records(n, start=0):
    rng = np.random.default_rng([3, start])
    values, weights = rng.normal(size=n).tolist(), rng.choice([0, 1, 1, 2, 5], n).tolist()
    return [
        {
            "time": START + 60 * (start + i),
            "id": f"r-{start + i}",
            "load": value,
            "hits": weight,
        }
        for i, (value, weight) in enumerate(zip(values, weights, strict=True))
    ]


def odd(number, hits=3, load=40.0):
    return {"time": START + 60 * number, "id": f"r-{number}", "load": load, "hits": hits}


def model(stream):
    until(lambda: stream.relearning is None)
    return stream.call(lambda worker: worker.store[""].detector).result(60)


def state(stream):
    detector = model(stream)
    return stream.call(lambda _: (list(detector.keys_), detector.points_.tolist(), detector.to_bytes({}))).result(60)


def names_of(keys):
    return [re.sub("\x1f[0-9]+", "", key) for key in keys]


def call(stream, action, *args, **options):
    return stream.call(lambda worker: action(stream, worker, *args, **options)).result(60)


def learned(config, given, **settings):
    """Return a detector that has learned records with `sample_weight`, and its results."""
    detector = new_detector(parse_config(config).streams["web"])
    weights = [record["hits"] for record in given]
    found = detector.detect_then_learn(
        np.array([[record["load"]] for record in given]),
        times=[record["time"] for record in given],
        sample_weight=weights,
        **settings,
    )
    return detector, found


def test_counts_a_record_as_often_as_its_weight(tmp_path):
    given = [odd(0, hits=0), *records(N, 1), odd(N + 1), *records(50, N + 2)]
    with running(tmp_path, config_of()) as stream:
        for start in range(0, len(given), 97):
            post(stream, given[start : start + 97])
        found, served = stream.history.records(""), model(stream)
        expected, scored = learned(config_of(), given)
        assert served.n_seen_ == expected.n_seen_ == sum(record["hits"] for record in given)
        assert served.points_.tolist() == expected.points_.tolist()
        np.testing.assert_array_equal(found.weights, [record["hits"] for record in given])
        has_model = np.cumsum(found.weights) > found.weights  # nothing to compare the first with
        is_learned = has_model & (found.weights > 0)
        np.testing.assert_array_equal(found.scores[is_learned], scored.scores[is_learned])
        np.testing.assert_allclose(found.scores[has_model], scored.scores[has_model], rtol=1e-12)
        np.testing.assert_allclose(found.p_values[has_model], scored.p_values[has_model], rtol=1e-6)
        np.testing.assert_array_equal(found.flags & 1, scored.is_anomaly)
        row = list(rows_of("", found, stream.fields))[N + 1]
        assert (row["weight"], row["is_learned"], row["is_anomaly"]) == (3, True, True)
        assert preview(stream, Trial())["then"]["n_flagged"] == scored.is_anomaly.sum()


@pytest.mark.parametrize("id", [{}, {"id": "id"}], ids=["unnamed", "named"])
@pytest.mark.parametrize("verdict", ["incident", "normal"])
def test_feedback_is_about_all_copies_and_undo_restores_them(tmp_path, id, verdict):
    parts = [records(N), [odd(N), odd(N + 1, hits=2, load=-90.0)], records(20, N + 2), records(100, N + 50)]
    with running(tmp_path / "plain", config_of(**id)) as stream:
        for part in parts:
            post(stream, part)
        expected = state(stream)
    with running(tmp_path / "given", config_of(**id)) as stream:
        for part in parts[:3]:
            post(stream, part)
        (event,) = [one for one in stream.events.find() if one["start"] == START + 60 * N]
        values = model(stream).points_[:, 0].tolist()
        assert (values.count(40.0), values.count(-90.0)) == (3, 2)
        call(stream, give, event["id"], verdict, who="me")
        values = model(stream).points_[:, 0].tolist()
        assert (values.count(40.0), values.count(-90.0)) == (0, 0) if verdict == "incident" else len(values) > 5
        post(stream, parts[3])
        call(stream, undo, event["id"], who="me")
        keys, points, _ = found = state(stream)
        if id and verdict == "normal":  # the keys of later records contain the number of rows learned before
            assert (names_of(keys), points) == (names_of(expected[0]), expected[1])
        else:
            assert found == expected


def test_relearned_model_keeps_weights_and_feedback(tmp_path):
    given = [records(N), [odd(N), odd(N + 1, hits=2, load=-90.0)], records(20, N + 2)]
    with running(tmp_path / "new", config_of(trees=12)) as stream:
        for part in given:
            post(stream, part)
        expected = state(stream)
    with running(tmp_path / "old", config_of()) as stream:
        for part in given:
            post(stream, part)
    with running(tmp_path / "old", config_of(trees=12)) as stream:
        assert state(stream) == expected
        (event,) = [one for one in stream.events.find() if one["start"] == START + 60 * N]
        call(stream, give, event["id"], "incident", who="me")
        assert not {40.0, -90.0} & set(model(stream).points_[:, 0].tolist())
        post(stream, [odd(N + 30)])
        assert model(stream).points_[:, 0].tolist().count(40.0) == 3


def test_forgets_all_copies_of_a_record(tmp_path):
    with running(tmp_path, config_of(id="id")) as stream:
        post(stream, [*records(50), odd(50), odd(50)])
        assert call(stream, forget, "r-50", None, who="me")["deleted"] > 0
        assert 40.0 not in model(stream).points_


@pytest.mark.parametrize(
    ("weight", "reason"),
    [
        (None, "weight 'hits' is missing"),
        (-1, "weight 'hits' is -1: it must be a whole number from 0 to 10,000"),
        (2.5, "weight 'hits' is 2.5: it must be a whole number"),
        (10_001, "weight 'hits' is 10001: it must be"),
        ("many", "'hits' is text: many"),
    ],
)
def test_records_without_a_valid_weight_are_rejected(tmp_path, weight, reason):
    with running(tmp_path, config_of()) as stream:
        good, bad, last = post(stream, [odd(0), {**odd(1), "hits": weight}, {**odd(2), "hits": 2.0}])
        assert reason in bad["error"]
        assert (good.sample.weight, last.sample.weight, model(stream).n_seen_) == (3, 2, 5)


def test_exported_weights_can_be_imported(tmp_path):
    with running(tmp_path / "from", config_of()) as stream:
        post(stream, records(60))
        table = b"".join(csv_parts(pages(stream.history, [""], (-1e300, 1e300)), ["load"], (), "hits"))
        expected = state(stream)
    frame = pl.read_csv(io.BytesIO(table))
    assert frame["hits"].to_list() == [record["hits"] for record in records(60)]
    frame.select("time", "load", "hits").write_csv(tmp_path / "table.csv")
    with running(tmp_path / "to", config_of()) as stream:
        assert import_tables(stream, [str(tmp_path / "table.csv")], lambda n: None).n_rejected == 0
        assert state(stream) == expected


def test_watch_counts_a_record_as_often_as_its_weight(cli, tmp_path):
    lines = tmp_path / "log.jsonl"
    lines.write_text("".join(json.dumps(record) + "\n" for record in records(80)))
    store = tmp_path / "m"
    options = ["--time", "time", "--weight", "hits", "--trees", "10", "--seed", "1", "--window", "300", "--quiet"]
    code, out, _ = cli("watch", str(lines), *options, "--false-alarm-rate", "0.01", "--model", str(store))
    expected, _ = learned(config_of(), records(80))
    assert (code, len(out.splitlines())) == (0, 80)
    assert read_model(store, "").points_.tolist() == expected.points_.tolist()
    named = [*options, "--id", "id", "--model", str(tmp_path / "named")]
    assert cli("watch", str(lines), *named)[0] == 0
    code, _, error = cli("watch", str(lines), *named, "--trees", "12")
    assert (code, error) == (0, "")
    assert read_model(tmp_path / "named", "").n_estimators == 12
    code, _, error = cli("watch", str(lines), *options[:2], *options[4:], "--model", str(store))
    assert code != 0
    assert "weight" in error


def test_history_stores_weights():
    samples = [ScoredRecord(i, i, 0.0, 0.0, 1.0, 0.0, 0, i, [1.0], None, {}, weight) for i, weight in enumerate([2, 0])]
    for chosen, n_bytes in ((samples, 16), (samples[:1], 8)):
        block = Block.of(chosen)
        assert Block.of_bytes(block.to_bytes()).weights.tolist() == [one.weight for one in chosen]
        plain = Block.of([one._replace(weight=1) for one in chosen])
        assert Block.of_bytes(plain.to_bytes()).weights.tolist() == [1] * len(chosen)
        assert len(block.to_bytes()) == len(plain.to_bytes()) + n_bytes + len(',"weighted":true')


def test_numbering_counts_copies():
    numbering = Numbering(since=30)
    for place in ((10, 0, 3), (13, 3, 1), (20, 4, 2)):
        numbering.add(*place)
    assert [numbering.in_model(point) for point in (10, 12, 13, 14, 20, 21)] == [0, 2, 3, None, 4, 5]
