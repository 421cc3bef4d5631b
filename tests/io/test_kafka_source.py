"""Kafka topics from the broker that librdkafka brings along, which speaks the real protocol over the network."""

import json
import signal
import subprocess
import sys
import time

import pytest

from polyaforest.io.records import RecordReader
from polyaforest.io.sources import open_source

pytestmark = pytest.mark.end_to_end

kafka = pytest.importorskip("confluent_kafka", reason="the extra kafka is not installed")

LONG = 30.0  # seconds after which something is stuck


class Cluster:
    """A broker that lives as long as its producer."""

    def __init__(self):
        settings = {"bootstrap.servers": "mock", "test.mock.num.brokers": 1, "linger.ms": 1, "log_level": 0}
        self.producer = kafka.Producer(settings)
        [broker] = self.producer.list_topics(timeout=LONG).brokers.values()
        self.address = f"{broker.host}:{broker.port}"

    def send(self, topic, numbers, n_partitions=4):
        for number in numbers:
            self.producer.produce(topic, b'{"n": %d}' % number, partition=number % n_partitions)
        assert self.producer.flush(LONG) == 0

    def open(self, topic, position=None):
        source = open_source(f"kafka://{self.address}/{topic}")
        if position is not None:
            source.seek(json.loads(json.dumps(position)))
        return source


@pytest.fixture(scope="module")
def cluster():
    return Cluster()


def read(source, n, most=100):
    """The numbers in the next `n` messages, or what there is of them."""
    numbers = []
    deadline = time.monotonic() + LONG
    while len(numbers) < n and time.monotonic() < deadline:
        records = source.read(min(most, n - len(numbers)), 0.2)
        assert len(records) <= most
        numbers += [json.loads(record.data)["n"] for record in records]
    return numbers


def test_reads_each_partition_in_order(cluster):
    cluster.send("all", range(50))
    source = cluster.open("all")
    assert source.can_replay
    numbers = read(source, 50, most=7)
    assert [[n for n in numbers if n % 4 == part] for part in range(4)] == [
        list(range(part, 50, 4)) for part in range(4)
    ]
    assert source.position == {"0": 13, "1": 13, "2": 12, "3": 12}
    assert source.read(10, 0.0) == []
    cluster.send("all", [99])
    [record] = source.read(10, LONG)
    assert record.position == "3:12"
    assert RecordReader().parse(record).values == [99.0]
    assert source.notices == []
    source.close()
    source.close()
    assert source.read(10, 0.0) is None


def test_resumes_from_any_position(cluster):
    cluster.send("resumed", range(12))
    for stop in range(0, 13, 2):
        source = cluster.open("resumed")
        numbers = read(source, stop, most=3) if stop else []
        again = cluster.open("resumed", source.position)
        assert sorted(numbers + read(again, 12 - stop)) == list(range(12))
        source.close()
        again.close()


def test_reports_missing_position(cluster):
    cluster.send("set-back", range(8))
    source = cluster.open("set-back", {"0": 1, "1": 500, "2": 2, "3": 2})
    assert sorted(read(source, 3)) == [1, 4, 5]
    [notice] = source.notices
    assert notice.startswith("topic 'set-back', partition 1: reset, ends at 2, expected offset 500")
    source.close()


def test_waits_for_unavailable_brokers():
    source = open_source("kafka://127.0.0.1:1/topic")
    deadline = time.monotonic() + LONG
    while not source.notices and time.monotonic() < deadline:
        assert source.read(10, 0.1) == []
    assert source.notices == ["the Kafka brokers at 127.0.0.1:1 are unavailable: waiting"]
    source.close()


def test_reports_messages_removed_unread(cluster):
    pad = " " * 500_000  # the broker keeps five megabytes of a partition
    for number in range(20):
        cluster.producer.produce("trimmed", f'{{"n": {number}}}{pad}', partition=0)
        assert cluster.producer.flush(LONG) == 0
    source = cluster.open("trimmed", {"0": 1})
    numbers = read(source, 5)
    assert numbers[0] > 1
    assert numbers == list(range(numbers[0], numbers[0] + 5))
    words = f"{numbers[0] - 1} messages were removed before they were read"
    assert source.notices == [f"topic 'trimmed', partition 0: {words}"]
    source.close()


def test_discovers_new_partition(cluster):
    cluster.send("grown", range(9), n_partitions=3)
    source = cluster.open("grown")
    source._assigned = {0, 1, 2}  # as if the topic had no more yet
    source._assign()
    source._next_look = time.monotonic() + 0.5
    assert sorted(read(source, 9)) == list(range(9))
    cluster.send("grown", [3, 7, 8], n_partitions=4)
    assert sorted(read(source, 3)) == [3, 7, 8]
    assert source.position == {"0": 4, "1": 3, "2": 3, "3": 2}
    source.close()


def test_ctrl_c_interrupts_waiting(cluster):
    script = f"""
from polyaforest.io.sources import open_source
source = open_source("kafka://{cluster.address}/quiet")
try:
    print(len(source.read(10, 30.0)), flush=True)
    source.read(10, 30.0)
except KeyboardInterrupt:
    source.close()
    print("interrupted")
"""
    cluster.send("quiet", [0])
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as reader:
        assert reader.stdout.readline() == b"1\n"
        reader.send_signal(signal.SIGINT)
        assert reader.stdout.read() == b"interrupted\n"
