"""Gathering samples of metrics into records: rules of completeness, order, rates and limits."""

import math
import random

import orjson
import pytest

from polyaforest.service import gather
from polyaforest.service.config import MetricsConfig
from polyaforest.service.gather import Gatherer
from polyaforest.service.samples import Kind, MetricSample

START = 1_700_000_000.0
RULE = MetricsConfig(fields={"load": "load", "requests": "requests"}, by=["host"], wait=60.0)


class Clock:
    """A clock that the test sets."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def gatherer(rule=RULE, latest=None, clock=None):
    return Gatherer(rule, lambda time: None, latest or {}, clock or Clock())


def sample(name, number, value, *, host="a", kind=Kind.GAUGE, **more):
    return MetricSample(name, {"host": host, **more.pop("labels", {})}, START + 60 * number, kind, value, **more)


def both(number, *, host="a"):
    """Return the samples of one moment."""
    return [sample("load", number, float(number), host=host), sample("requests", number, 60.0 * number, host=host,
                                                                     kind=Kind.COUNTER)]  # fmt: skip


def taken(one):
    """Take the complete records."""
    found, one.ready = [orjson.loads(line) for line in one.ready], []
    return found


@pytest.mark.parametrize("seed", range(5))
def test_records_do_not_depend_on_how_samples_are_split_into_requests(seed):
    random.seed(seed)
    clock = Clock()
    whole, split = gatherer(clock=clock), gatherer(clock=clock)
    samples = [one for number in range(40) for host in "ab" for one in both(number, host=host)]
    whole.add(samples)
    for one in (whole, split):  # the first record of a key waits, as nothing is known about its series
        one.add(samples[:4])
        clock.now += 100
        one.check()
    rest = samples[4:]
    while rest:
        n = random.randint(1, 7)
        split.add(rest[:n])
        rest = rest[n:]
    clock.now += 100
    for one in (whole, split):
        one.check()
    order = [sorted(taken(one), key=lambda record: (record["key"], record["time"])) for one in (whole, split)]
    assert order[0] == order[1]
    assert len(order[0]) == 80
    assert all(record["requests"] == 1.0 for record in order[0] if record["time"] > START)


def test_a_repeated_request_changes_nothing():
    clock = Clock()
    one = gatherer(clock=clock)
    for number in range(5):
        for _ in range(3):
            one.add(both(number))
        clock.now += 100
        one.check()
        one.add(both(number))
    assert [record["load"] for record in taken(one)] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert one.n_late == 2 + 4 * 6


def test_an_incomplete_record_waits_and_then_has_missing_fields():
    clock = Clock()
    one = gatherer(clock=clock)
    one.add([*both(0), *both(1)])
    clock.now = 61.0
    one.check()
    assert len(taken(one)) == 2
    one.add([sample("load", 2, 2.0)])
    clock.now += 59.0
    one.check()
    assert not taken(one)
    clock.now += 2.0
    one.check()
    assert taken(one) == [{"time": START + 120, "key": "a", "load": 2.0}]


def test_a_series_that_ended_is_not_waited_for():
    clock = Clock()
    one = gatherer(clock=clock)
    one.add([*both(0), *both(1)])
    for number in range(2, 8):  # only the load continues
        one.add([sample("load", number, 1.0)])
        clock.now += 61.0
        one.check()
    taken(one)
    one.add([sample("load", 8, 1.0)])
    assert len(taken(one)) == 1


def test_a_rare_counter_has_rates():
    clock = Clock()
    one = gatherer(clock=clock)
    for number in range(40):
        one.add(both(number) if number % 20 == 0 else [sample("load", number, 1.0)])
        clock.now += 61.0
        one.check()
    rates = [record["requests"] for record in taken(one) if "requests" in record]
    assert rates == [1.0]


@pytest.mark.parametrize(
    ("kind", "values", "rate"),
    [
        (Kind.COUNTER, [(10.0, 0), (70.0, 0)], 1.0),
        (Kind.COUNTER, [(500.0, 0), (120.0, 0)], 2.0),  # it began again
        (Kind.DELTA, [(1.0, 0), (180.0, 0)], 3.0),
        (Kind.MEAN, [(10.0, 2.0), (40.0, 5.0)], 10.0),
        (Kind.MEAN, [(10.0, 2.0), (10.0, 2.0)], None),  # nothing was observed
        (Kind.MEAN_DELTA, [(10.0, 2.0), (9.0, 3.0)], 3.0),
    ],
)
def test_counters_become_rates_and_histograms_means(kind, values, rate):
    clock = Clock()
    one = gatherer(clock=clock)
    for number, (value, weight) in enumerate(values):
        one.add([sample("requests", number, value, kind=kind, weight=weight), sample("load", number, 1.0)])
    clock.now = 61.0
    one.check()
    assert taken(one)[1].get("requests") == rate


def test_series_of_one_field_are_added_or_averaged():
    rule = MetricsConfig(fields={"load": "load", "requests": 'requests{code!="500"}'}, by=[], wait=60.0)
    clock = Clock()
    one = gatherer(rule, clock=clock)
    for number in range(2):
        for cpu, code in (("0", "200"), ("1", "200"), ("2", "500")):
            labels = {"cpu": cpu, "code": code}
            one.add([sample("load", number, float(cpu), labels=labels)])
            one.add([sample("requests", number, 60.0 * number, kind=Kind.COUNTER, labels=labels)])
    clock.now = 61.0
    one.check()
    assert taken(one)[1] == {"time": START + 60, "load": 1.0, "requests": 2.0}


def test_state_survives_a_restart():
    clock = Clock()
    one = gatherer(clock=clock)
    one.add([*both(0), *both(1)])
    clock.now = 61.0
    one.check()
    ready = list(one.ready)
    one.add([sample("load", 2, 2.0)])
    other = gatherer(latest={"a": START + 60})
    other.restore(one.state(), one.totals())
    assert other.ready == ready
    taken(other)
    other.add([sample("requests", 2, 120.0, kind=Kind.COUNTER)])
    other.add([*both(3)])
    other._steady.now = 61.0
    other.check()
    assert [(record["load"], record["requests"]) for record in taken(other)] == [(2.0, 1.0), (3.0, 1.0)]


def test_floods_of_series_are_rejected(monkeypatch):
    monkeypatch.setattr(gather, "_MOST_SERIES", 10)
    monkeypatch.setattr(gather, "_MOST_PENDING", 20)
    one = gatherer()
    found = one.add([sample("load", 0, 1.0, labels={"id": str(i)}) for i in range(100)])
    assert found.n_used == 10
    assert "more than 10 series" in found.words
    monkeypatch.setattr(gather, "_MOST_SERIES", 1000)
    found = one.add([sample("load", 0, 1.0, host=f"host-{i}") for i in range(100)])
    assert found.n_used == 19
    assert "are incomplete" in found.words


def test_false_numbers_are_rejected():
    one = gatherer()
    found = one.add([sample("load", 0, value) for value in (math.nan, math.inf, -math.inf)])
    assert found.rejected == {"its value is not finite": 3}


@pytest.mark.parametrize(
    "text", ["", "a b", "a{", 'a{b="c}', "a{b~c}", "max(a)", "rate(a", "a" * 2000, "1a", 'a{="b"}']
)
def test_false_selectors_are_errors(text):
    with pytest.raises(ValueError, match="is not a metric"):
        MetricsConfig(fields={"x": text})
