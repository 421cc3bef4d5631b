"""Pipes, files and growing files return every line once, across restarts and all kinds of log rotation."""

import json
import os
import random
import select
import shutil
import subprocess
import sys
import threading
import time
from contextlib import closing
from itertools import count

import pytest

from polyaforest.io.errors import BadInput
from polyaforest.io.records import LONGEST_LINE, RecordReader
from polyaforest.io.sources import FollowedFile, Pipe, open_source

LONG = 20.0  # seconds after which something is stuck
SECONDS = count()


def read_all(source, most=1000):
    """Return all lines until the end."""
    lines = []
    while (records := source.read(most, LONG)) is not None:
        assert 0 < len(records) <= most
        lines += [record.data for record in records]
    return lines


def read_some(source, n, most=7):
    """Return the next `n` lines of an endless source."""
    lines = []
    deadline = time.monotonic() + LONG
    while len(lines) < n and time.monotonic() < deadline:
        lines += [record.data for record in source.read(min(most, n - len(lines)), 0.2)]
    return lines


def append(path, *lines):
    with open(path, "ab") as file:
        file.writelines(line + b"\n" for line in lines)


def numbered(start, stop):
    return [b"line %d" % number for number in range(start, stop)]


# Pipes


@pytest.fixture
def fifo(tmp_path):
    path = str(tmp_path / "fifo")
    os.mkfifo(path)
    return path


def test_pipe_returns_complete_lines(fifo):
    source = open_source(fifo)
    assert not source.can_replay
    assert source.read(5, 0.0) == []  # no writer yet
    with open(fifo, "wb", buffering=0) as writer:
        assert source.read(5, 0.0) == []
        writer.write(b"one\ntwo\nthr")
        assert [(record.position, record.data) for record in source.read(5, LONG)] == [("1", b"one"), ("2", b"two")]
        assert source.read(5, 0.01) == []
        writer.write(b"ee\n\nlast")
        assert [record.data for record in source.read(1, LONG)] == [b"three"]
        assert source.position == {"line": 3}
    assert read_all(source) == [b"", b"last"]
    assert source.read(5, 0.0) is None
    source.close()
    source.close()
    assert source.read(5, 0.0) is None


def test_pipe_skips_lines_read_before(fifo):
    source = open_source(fifo)
    source.seek({"line": 3})
    with open(fifo, "wb", buffering=0) as writer:
        writer.write(b"1\n2\n")
        assert source.read(5, 0.05) == []
        writer.write(b"3\n4\n5")
    assert read_all(source) == [b"4", b"5"]
    assert source.position == {"line": 5}


def test_overlong_line_does_not_stop_stream(fifo):
    def write():
        with open(fifo, "wb") as writer:
            writer.write(b'{"a": 1}\n' + b"x" * (3 * LONGEST_LINE) + b'\n{"a": 2}\n')

    thread = threading.Thread(target=write)
    thread.start()
    source, reader = open_source(fifo), RecordReader()
    rows = []
    while (records := source.read(10, LONG)) is not None:
        rows += [reader.parse(record) for record in records]
    thread.join()
    assert [rows[0].values, rows[2].values] == [[1.0], [2.0]]
    assert "longer than" in rows[1]


def test_slow_reader_blocks_writer():
    script = "import sys\nfor number in range(40_000): print(number, 'x' * 50)\nprint('written', file=sys.stderr)"
    command = [sys.executable, "-c", script]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as writer,
        closing(open_source(f"/dev/fd/{writer.stdout.fileno()}")) as source,
    ):
        first = source.read(10, LONG)
        assert not select.select([writer.stderr], [], [], 0.2)[0]  # two megabytes do not fit into a pipe and a chunk
        assert 0 < len(first) <= 10
        assert len(read_all(source)) == 40_000 - len(first)
        assert writer.stderr.read() == b"written\n"


def test_standard_input_stays_open():
    script = """
import sys
from polyaforest.io.sources import open_source
source = open_source("-")
lines = []
while (records := source.read(2, 20.0)) is not None:
    lines += [record.data.decode() for record in records]
source.close()
print(source.can_replay, lines, sys.stdin.closed, "polars" in sys.modules, "redis" in sys.modules)
"""
    command = [sys.executable, "-c", script]
    result = subprocess.run(command, input=b"a\nb\r\n\nc", capture_output=True, check=True)
    assert result.stdout.decode().strip() == r"False ['a', 'b\r', '', 'c'] False False False"


# Files


def test_file_resumes_from_any_position(tmp_path):
    path = tmp_path / "data"
    lines = [b"a", b"", b"long" * 500, b"b\xff", b"last"]
    path.write_bytes(b"\n".join(lines))
    for stop in range(len(lines) + 1):
        source = open_source(str(path))
        assert source.can_replay
        first = [record.data for record in source.read(stop, 0.0)] if stop else []
        position = json.loads(json.dumps(source.position))
        source.close()
        again = open_source(str(path))
        again.seek(position)
        assert again.position == position
        assert first + read_all(again, most=2) == lines
        assert again.notices == []
        assert again.position["line"] == len(lines)
        again.close()


def test_reports_replaced_file(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(b"a\nb\nc\n")
    source = open_source(str(path))
    source.read(2, 0.0)
    path.write_bytes(b"d\ne\nf\ng\n")
    again = open_source(str(path))
    source_position = {**source.position, "mark": "0" * 16}
    again.seek(source_position)
    assert "not the file read before" in again.notices[0]
    assert read_all(again) == [b"d", b"e", b"f", b"g"]


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("nothing/here", "'nothing/here' does not exist"),
        (".", "is a directory"),
        ("http://host/x", "'http://' is not supported"),
        ("redis://host/0", "has no stream"),
        ("redis://host/0?stream=a&start=now", "invalid start=now"),
        ("kafka://host:1", "must be kafka://host:port/topic"),
        ("kafka://host:1/topic?no.such.setting=1", "no.such.setting"),
    ],
)
def test_rejects_unreadable_sources(where, words):
    with pytest.raises(BadInput, match=words):
        open_source(where)


def test_rejects_following_a_directory(tmp_path):
    with pytest.raises(BadInput, match="is a directory"):
        open_source(str(tmp_path), follow=True)


@pytest.mark.parametrize(("absent", "where"), [("redis", "redis://h/0?stream=a"), ("confluent_kafka", "kafka://h:1/t")])
def test_missing_extra_names_the_install_command(monkeypatch, absent, where):
    monkeypatch.setitem(sys.modules, absent, None)
    with pytest.raises(BadInput, match=r"requires an extra: pip install \"polyaforest\[(redis|kafka)\]\""):
        open_source(where)


# Growing files


@pytest.fixture
def log(tmp_path):
    return str(tmp_path / "app.log")


def followed(path, position=None):
    source = open_source(path, follow=True)
    assert isinstance(source, FollowedFile)
    if position is not None:
        source.seek(json.loads(json.dumps(position)))
    return source


def test_follow_waits_for_file_and_complete_lines(log):
    source = followed(log)
    assert source.notices == [f"waiting for '{log}' to appear"]
    assert source.read(5, 0.0) == []
    append(log, b"one")
    with open(log, "ab", buffering=0) as file:
        file.write(b"tw")
        assert read_some(source, 1) == [b"one"]
        assert source.read(5, 0.0) == []
        file.write(b"o\nthree\n")
        assert read_some(source, 2) == [b"two", b"three"]
    source.close()
    source.close()
    assert source.read(5, 0.0) is None


def test_follow_reads_named_pipe(fifo):
    assert isinstance(open_source(fifo, follow=True), Pipe)


def test_follow_reads_renamed_file_to_its_end(log):
    append(log, *numbered(0, 3))
    source = followed(log)
    assert read_some(source, 2) == numbered(0, 2)
    os.rename(log, f"{log}.1")
    append(f"{log}.1", *numbered(3, 5))
    assert read_some(source, 3) == numbered(2, 5)
    open(log, "wb").close()  # the new file exists, but the writer has not switched to it yet
    assert source.read(5, 0.1) == []
    with open(f"{log}.1", "ab") as file:
        file.write(b"line 5")
    append(log, *numbered(6, 8))
    assert read_some(source, 3) == numbered(5, 8)
    assert source.notices == []


def test_follow_reads_rest_of_truncated_file_from_copy(log):
    append(log, *numbered(0, 6))
    source = followed(log)
    assert read_some(source, 3) == numbered(0, 3)
    append(log, *numbered(6, 9))
    shutil.copyfile(log, f"{log}.1")
    os.truncate(log, 0)
    append(log, *numbered(9, 30))  # longer than before the truncation
    assert read_some(source, 27) == numbered(3, 30)
    assert source.notices == []


def test_follow_restarts_truncated_file_without_copy(log):
    append(log, *numbered(0, 6))
    source = followed(log)
    assert read_some(source, 6) == numbered(0, 6)
    os.truncate(log, 0)
    append(log, b"new")
    assert read_some(source, 1) == [b"new"]
    assert "was truncated" in source.notices[0]


def test_follow_waits_for_deleted_file(log):
    append(log, b"one")
    source = followed(log)
    assert read_some(source, 1) == [b"one"]
    os.remove(log)
    assert source.read(5, 0.1) == []
    append(log, b"two")
    assert read_some(source, 1) == [b"two"]


def test_follow_reads_files_rotated_during_downtime_in_order(log):
    append(log, *numbered(0, 3))
    source = followed(log)
    assert read_some(source, 2) == numbered(0, 2)
    position = source.position
    source.close()
    for first in (3, 6, 9):
        rotate_by_name(log)
        append(log, *numbered(first, first + 3))
    append(f"{log}.quarantine", b"not a log")
    shutil.copyfile(log, f"{log}.1.gz")
    assert read_some(followed(log, position), 10) == numbered(2, 12)


def test_reports_position_whose_file_is_gone(log):
    append(log, *numbered(0, 3))
    source = followed(log)
    read_some(source, 2)
    os.remove(log)
    append(log, *numbered(7, 12))
    again = followed(log, source.position)
    assert "lines may be lost" in again.notices[0]
    assert read_some(again, 5) == numbered(7, 12)
    assert again.position["line"] == 7


def rotate_by_name(log, keep=50):
    for number in range(keep, 0, -1):
        if os.path.exists(f"{log}.{number}"):
            os.rename(f"{log}.{number}", f"{log}.{number + 1}")
    os.rename(log, f"{log}.1")


def rotate_by_date(log):
    os.rename(log, f"{log}-20240501-{next(SECONDS):06d}")


def rotate_by_copy(log, keep=50):
    for number in range(keep, 0, -1):
        if os.path.exists(f"{log}.{number}"):
            os.rename(f"{log}.{number}", f"{log}.{number + 1}")
    shutil.copyfile(log, f"{log}.1")
    os.truncate(log, 0)


def write_and_rotate(log, rotate, seed, n_lines):
    """Write lines in pieces of random size, and rotate the file at random."""
    rng = random.Random(seed)
    number = 0
    while number < n_lines:
        with open(log, "ab", buffering=0) as file:  # as a program that reopens its log after each rotation
            for _ in range(rng.randrange(1, 5)):
                count = min(rng.randrange(1, 40), n_lines - number)
                text = b"".join(line + b"\n" for line in numbered(number, number + count))
                cut = rng.randrange(len(text) + 1)
                file.write(text[:cut])
                time.sleep(rng.choice([0.0, 0.0, 0.001, 0.004]))
                file.write(text[cut:])
                number += count
        if rng.random() < 0.7:
            rotate(log)
            time.sleep(rng.choice([0.0, 0.002]))


@pytest.mark.parametrize("rotate", [rotate_by_name, rotate_by_date, rotate_by_copy])
@pytest.mark.parametrize("seed", range(4))
def test_no_line_is_lost_or_duplicated_under_writes_and_rotation(log, rotate, seed):
    n_lines = 1500
    rng = random.Random(seed)
    append(log, b"first")  # files rotated before the start are not read
    writer = threading.Thread(target=write_and_rotate, args=(log, rotate, seed, n_lines))
    source = followed(log)
    assert read_some(source, 1) == [b"first"]
    writer.start()
    lines = []
    deadline = time.monotonic() + LONG
    while len(lines) < n_lines and time.monotonic() < deadline:
        lines += [record.data for record in source.read(rng.randrange(1, 100), 0.01)]
        if rng.random() < 0.3:  # restart and discard the read-ahead
            position = source.position
            source.close()
            time.sleep(rng.choice([0.0, 0.01]))
            source = followed(log, position)
    writer.join()
    assert source.read(10, 0.1) == []
    assert lines == numbered(0, n_lines)
    assert [words for words in source.notices if "may be lost" in words] == []
