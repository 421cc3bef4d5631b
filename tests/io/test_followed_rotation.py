"""Rotation at awkward moments: before the first line is read, several times between two checks, during downtime."""

import json
import os
import shutil

import pytest
from waiting import until

from polyaforest.io.sources import FollowedFile

pytestmark = pytest.mark.fault

HEADER = b"cpu,disk"


@pytest.fixture
def log(tmp_path):
    return str(tmp_path / "app.log")


def append(path, *lines):
    with open(path, "ab") as file:
        file.writelines(line + b"\n" for line in lines)


def numbered(start, stop):
    return [b"line %d" % number for number in range(start, stop)]


def rotate(log, keep=9):
    """Rotate a file by renaming, and delete the oldest beyond `keep`."""
    for number in range(keep, 0, -1):
        if os.path.exists(f"{log}.{number}"):
            os.replace(f"{log}.{number}", f"{log}.{number + 1}")
    os.rename(log, f"{log}.1")
    if os.path.exists(f"{log}.{keep + 1}"):
        os.remove(f"{log}.{keep + 1}")


def copy_and_truncate(log):
    shutil.copyfile(log, f"{log}.1")
    os.truncate(log, 0)


def everything(source):
    """Return all available lines."""
    lines = []
    while records := source.read(7, 0.15):
        lines += [record.data for record in records]
    return lines


class Reading:
    """A followed file, read by one source or by a new source after each step."""

    def __init__(self, log, is_stopped):
        self._log, self._is_stopped = log, is_stopped
        self.source = FollowedFile(log)

    def pause(self):
        """Close the source, if each step uses a new one."""
        if self._is_stopped:
            self._position = json.dumps(self.source.position)
            self.source.close()

    def resume(self):
        """Return the available lines and the notices."""
        if self._is_stopped:
            self.source = FollowedFile(self._log)
            self.source.seek(json.loads(self._position))
        lines = everything(self.source)
        self.source.close()
        return lines, [words for words in self.source.notices if "waiting" not in words]


@pytest.fixture(params=["running", "stopped"])
def reading(request, log):
    return lambda: Reading(log, request.param == "stopped")


def test_reads_file_copied_and_truncated_before_first_line(log, reading):
    append(log, *numbered(0, 100))
    turn = reading()
    turn.pause()
    copy_and_truncate(log)
    append(log, *numbered(100, 150))
    assert turn.resume() == (numbered(0, 150), [])


def test_reads_file_copied_and_truncated_after_it_was_empty(log, reading):
    append(log)
    turn = reading()
    turn.pause()
    append(log, *numbered(0, 100))
    copy_and_truncate(log)
    append(log, *numbered(100, 150))
    assert turn.resume() == (numbered(0, 150), [])


@pytest.mark.parametrize("n_before", [0, 5])
def test_reads_file_copied_and_truncated_after_header(log, reading, n_before):
    append(log, HEADER, *numbered(0, n_before))
    turn = reading()
    assert [record.data for record in turn.source.read(1, 1.0)] == [HEADER]
    turn.pause()
    append(log, *numbered(n_before, 100))
    copy_and_truncate(log)
    append(log, HEADER, *numbered(100, 150))
    assert turn.resume() == ([*numbered(0, 100), HEADER, *numbered(100, 150)], [])


def test_does_not_read_unrelated_copy(log, reading):
    append(log, *numbered(0, 10))
    turn = reading()
    turn.pause()
    shutil.copyfile(log, f"{log}.bak")
    append(log, *numbered(10, 20))
    assert turn.resume() == (numbered(0, 20), [])


@pytest.mark.parametrize("first", [0, 20])
def test_reads_files_renamed_several_times_before_first_line(log, reading, first):
    if first:
        append(log, *numbered(0, first))
    turn = reading()  # otherwise it waits for the file to appear
    turn.pause()
    for start in range(first, 100, 20):
        if os.path.exists(log):
            rotate(log)
        append(log, *numbered(start, start + 20))
    assert turn.resume() == (numbered(0, 100), [])


def test_reports_and_skips_files_rotated_before_start(log, reading):
    append(log, *numbered(0, 10))
    rotate(log)
    append(log, *numbered(10, 20))
    turn = reading()
    assert turn.source.notices == [f"reading '{log}' from its first line, but not rotated files such as '{log}.1'"]
    turn.source.notices.clear()
    turn.pause()
    rotate(log)
    append(log, *numbered(20, 30))
    assert turn.resume() == (numbered(10, 30), [])


def test_reads_lines_appended_to_rotated_file(log, reading):
    append(log, b"old")
    rotate(log)
    turn = reading()
    turn.source.notices.clear()
    turn.pause()
    append(f"{log}.1", b"late")
    append(log, b"new")
    assert turn.resume() == ([b"late", b"new"], [])


def test_reports_deleted_files_and_reads_the_others(log, reading):
    append(log, *numbered(0, 20))
    turn = reading()
    assert len(turn.source.read(20, 1.0)) == 20
    turn.pause()
    for start in range(20, 100, 20):
        rotate(log, keep=2)
        append(log, *numbered(start, start + 20))
        after_a_tick(log)
    lines, notices = turn.resume()
    assert lines == numbered(40, 100)
    assert len(notices) == 1
    assert "may be lost" in notices[0]


def after_a_tick(path):
    """Wait until a change now gets a later modification time than that of another file."""
    clock = f"{path}-clock"

    def has_ticked():
        append(clock, b"")
        return os.stat(clock).st_mtime_ns > os.stat(path).st_mtime_ns

    until(has_ticked)
    os.remove(clock)


def test_reports_unread_deleted_file_after_restart(log):
    append(log, *numbered(0, 20))
    turn = Reading(log, is_stopped=True)
    turn.pause()
    os.remove(log)
    append(log, *numbered(20, 40))
    lines, notices = turn.resume()
    assert lines == numbered(20, 40)
    assert "may be lost" in notices[0]


def test_reports_new_file_with_reused_inode(log):
    append(log)
    turn = Reading(log, is_stopped=True)
    turn.pause()
    position = json.loads(turn._position)
    if position["born"] is None:
        pytest.skip("the file system does not say when files were made")
    turn._position = json.dumps(position | {"born": position["born"] - 1})  # as of an earlier file
    append(log, *numbered(0, 5))
    lines, notices = turn.resume()
    assert lines == numbered(0, 5)
    assert "may be lost" in notices[0]


def test_notice_names_compressed_files(log):
    append(log, *numbered(0, 20))
    turn = Reading(log, is_stopped=True)
    turn.source.read(10, 1.0)
    turn.pause()
    os.rename(log, f"{log}.1.gz")  # has the name of a compressed file
    append(log, *numbered(20, 40))
    lines, notices = turn.resume()
    assert lines == numbered(20, 40)
    assert f"compressed files such as '{log}.1.gz' are not read" in notices[0]


@pytest.mark.parametrize("is_copied", [False, True])
def test_reads_last_line_without_newline_once(log, reading, is_copied):
    append(log, *numbered(0, 3))
    with open(log, "ab") as file:
        file.write(b"line 3")
    turn = reading()
    assert len(turn.source.read(3, 1.0)) == 3
    turn.pause()
    (copy_and_truncate if is_copied else rotate)(log)
    append(log, *numbered(4, 6))
    assert turn.resume() == (numbered(0, 6)[3:], [])


@pytest.mark.parametrize("offset", [0, 21])
def test_accepts_positions_of_earlier_releases(log, offset):
    append(log, *numbered(0, 5))
    turn = Reading(log, is_stopped=True)
    if offset:
        turn.source.read(3, 1.0)
    turn.pause()
    position = json.loads(turn._position)
    kept = ("line", "device", "inode", "offset", "copied", "last", "mark")
    turn._position = json.dumps({name: position[name] for name in kept})
    assert position["offset"] == offset
    rotate(log)
    append(log, *numbered(5, 8))
    assert turn.resume() == (numbered(3 if offset else 0, 8), [])
