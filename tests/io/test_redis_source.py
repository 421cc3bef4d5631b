"""Redis streams from a real server: every entry once, though servers die, streams are trimmed and readers restart."""

import json
import random
import threading
import time

import pytest
from servers import redis_server

from polyaforest.io.errors import BadInput
from polyaforest.io.records import RecordReader
from polyaforest.io.sources import open_source

pytestmark = pytest.mark.end_to_end

redis = pytest.importorskip("redis", reason="the extra redis is not installed")

LONG = 30.0  # seconds after which something is stuck


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def client(server):
    with redis.Redis(port=server.port) as client:
        client.flushall()
        yield client


def add(client, stream, start, stop, **options):
    with client.pipeline(transaction=False) as together:
        for number in range(start, stop):
            together.xadd(stream, {"n": number, "host": "a"}, **options)
        together.execute()


def read(source, n, most=100):
    """The numbers in the next `n` entries, or what there is of them."""
    numbers = []
    deadline = time.monotonic() + LONG
    while len(numbers) < n and time.monotonic() < deadline:
        records = source.read(min(most, n - len(numbers)), 0.2)
        assert len(records) <= most
        numbers += [int(record.data["n"]) for record in records]
    return numbers


def opened(server, *streams, position=None, more=""):
    source = open_source(f"{server.address}?{'&'.join(f'stream={stream}' for stream in streams)}{more}")
    if position is not None:
        source.seek(json.loads(json.dumps(position)))
    return source


def test_reads_entries_in_order_with_fields(server, client):
    client.xadd("s", {"ts": "1700000000000", "host": "b", "a": "1.5", "note": "x"}, id="5-1")
    source = opened(server, "s")
    assert source.can_replay
    [record] = source.read(10, LONG)
    assert record.position == "s 5-1"
    row = RecordReader(key="host").parse(record)
    assert (row.values, row.time, row.key) == ([1.5], 1.7e9, "b")
    assert source.position == {"s": {"id": "5-1", "added": 1}}
    assert source.read(10, 0.0) == []
    source.close()
    source.close()
    assert source.read(10, 0.0) is None


@pytest.mark.parametrize("most", [1, 7, 1000])
def test_small_batches_equal_one_large_batch(server, client, most):
    add(client, "s", 0, 40)
    add(client, "t", 100, 125)
    source = opened(server, "s", "t")
    numbers = read(source, 65, most)
    assert [number for number in numbers if number < 100] == list(range(40))
    assert [number for number in numbers if number >= 100] == list(range(100, 125))
    assert source.notices == []


def test_resumes_from_any_position(server, client):
    add(client, "s", 0, 12)
    add(client, "t", 100, 112)
    for stop in range(25):
        source = opened(server, "s", "t")
        numbers = read(source, stop, most=3) if stop else []
        again = opened(server, "s", "t", position=source.position)
        assert sorted(numbers + read(again, 24 - stop)) == [*range(12), *range(100, 112)]
        assert again.read(10, 0.0) == []
        source.close()
        again.close()


def test_waits_for_entries(server, client):
    source = opened(server, "s")
    assert source.read(10, 0.0) == []
    assert source.notices == ["waiting for stream 's' to appear"]
    timer = threading.Timer(0.2, add, (client, "s", 0, 1))
    timer.start()
    assert read(source, 1) == [0]
    timer.join()


def test_start_option_reads_new_entries_only(server, client):
    add(client, "s", 0, 5)
    source = opened(server, "s", more="&start=$")
    assert source.read(10, 0.0) == []
    add(client, "s", 5, 8)
    assert read(source, 3) == [5, 6, 7]


def test_reports_only_entries_removed_unread(server, client):
    add(client, "s", 0, 10)
    client.xtrim("s", minid=None, maxlen=6, approximate=False)  # before our time
    source = opened(server, "s")
    assert read(source, 2) == [4, 5]
    client.xtrim("s", maxlen=4, approximate=False)  # read already
    assert read(source, 1) == [6]
    assert source.notices == []
    client.xtrim("s", maxlen=1, approximate=False)
    assert read(source, 1) == [9]
    assert source.notices == ["2 entries of stream 's' were removed before they were read"]
    again = opened(server, "s", position=source.position)
    add(client, "s", 10, 30, maxlen=5, approximate=False)
    assert read(again, 5) == list(range(25, 30))
    assert again.notices == ["15 entries of stream 's' were removed before they were read"]


def test_waits_for_deleted_stream_and_continues_after_reset(server, client):
    client.xadd("s", {"n": 1}, id="100-0")
    source = opened(server, "s")
    assert read(source, 1) == [1]
    client.delete("s")
    assert source.read(10, 0.0) == []
    client.xadd("s", {"n": 2}, id="50-0")
    assert read(source, 1) == [2]
    client.delete("s")
    client.xadd("s", {"n": 3}, id="10-0")
    assert source.read(10, 0.0) == []
    client.xadd("s", {"n": 4}, id="11-0")
    assert read(source, 1) == [4]
    assert [notice.partition(":")[0] for notice in source.notices] == [
        "stream 's' was deleted", "stream 's' was reset from 50-0 to 10-0",
    ]  # fmt: skip


def test_rejects_key_that_is_not_a_stream(server, client):
    client.set("s", "text")
    with pytest.raises(BadInput, match=r"'s' at .* cannot be read: WRONGTYPE"):
        opened(server, "s").read(1, 0.0)


def test_rejects_wrong_password(server, client):
    client.config_set("requirepass", "secret")
    try:
        for address in (server.address, server.address.replace("//", "//:wrong@")):
            with pytest.raises(BadInput, match="authentication failed") as refusal:
                open_source(f"{address}?stream=s").read(1, 0.0)
            assert "wrong@" not in str(refusal.value)
        assert open_source(f"{server.address.replace('//', '//:secret@')}?stream=s").read(1, 0.0) == []
    finally:
        client.config_set("requirepass", "")


def test_nothing_is_lost_or_duplicated_over_server_kill_and_restart(tmp_path):
    n_entries, rng = 3000, random.Random(0)

    def write(port):
        with redis.Redis(port=port, retry=None) as client:
            number = 0
            while number < n_entries:
                try:  # entries are named by number, so that lost ones can be found
                    client.xadd("s", {"n": number}, id=f"{number + 1}-0")
                except redis.ConnectionError:
                    time.sleep(0.01)
                    continue
                except redis.ResponseError as problem:
                    if "equal or smaller" not in str(problem):  # otherwise it had got through
                        time.sleep(0.01)
                        continue
                number += 1

    # By default Redis may answer before it writes while the disk is busy: then the server itself loses entries.
    with redis_server(tmp_path, "--appendfsync", "always") as server:
        writer = threading.Thread(target=write, args=(server.port,))
        writer.start()
        source, numbers, notices, deaths = opened(server, "s"), [], [], 0
        deadline = time.monotonic() + LONG
        while len(numbers) < n_entries and time.monotonic() < deadline:
            numbers += [int(record.data["n"]) for record in source.read(rng.randrange(1, 50), 0.05)]
            if rng.random() < 0.05:
                position = source.position
                notices += source.notices
                source.close()
                source = opened(server, "s", position=position)
            if deaths < 3 and len(numbers) > 700 * (deaths + 1):
                deaths += 1
                server.kill()
                assert source.read(10, 0.1) == []
                server.start()
        writer.join()
        notices += source.notices
        source.close()
    assert numbers == list(range(n_entries))
    assert deaths == 3
    assert any("is unavailable" in notice for notice in notices)
    assert any("is available again" in notice for notice in notices)
    assert not any("removed" in notice or "was reset" in notice or "deleted" in notice for notice in notices)
