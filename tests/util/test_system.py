"""What differs between systems has one home, and a path for Windows too."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from polyaforest.util import system

SOURCES = Path(system.__file__).parents[1]
POSIX_ONLY = ("fcntl", "select.poll", "os.pread", "os.pwrite", "signal.SIGHUP", "os.geteuid", "os.sysconf(")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    descriptor = os.open(path, os.O_RDWR)
    yield descriptor
    os.close(descriptor)


@pytest.fixture(params=["this system", "win32"])
def platform(request, monkeypatch):
    """Run as on this system, and as on Windows, where a file is locked byte by byte."""
    if request.param == "win32":
        locked = set()

        def lock(descriptor, mode, n):
            place = (os.fstat(descriptor).st_ino, os.lseek(descriptor, 0, os.SEEK_CUR))
            if place in locked:
                raise PermissionError(13, "Permission denied")
            locked.add(place)

        monkeypatch.setattr(system.sys, "platform", "win32")
        monkeypatch.setattr(system, "msvcrt", SimpleNamespace(locking=lock, LK_NBLCK=2), raising=False)
    return request.param


def test_reads_do_not_move_the_position(file, platform):
    os.lseek(file, 3, os.SEEK_SET)
    assert system.read_at(file, 4, 5) == b"5678"
    assert system.read_at(file, 4, 8) == b"89"
    assert os.read(file, 1) == b"3"


def test_a_lock_excludes_others(file, platform, tmp_path):
    system.lock_alone(file)
    other = os.open(tmp_path / "file", os.O_RDWR)
    with pytest.raises(BlockingIOError):
        system.lock_alone(other)
    assert system.read_at(other, 2, 0) == b"01"
    os.close(other)


def test_waiting_for_input(platform):
    reading, writing = os.pipe()
    if platform != "win32":
        assert not system.wait_for_input(reading, 0.0)
    os.write(writing, b"x")
    assert system.wait_for_input(reading, 10.0)
    os.close(writing)
    os.close(reading)


def test_memory_is_unknown_or_positive(platform):
    size = system.physical_memory()
    assert (size is None) if platform == "win32" else size > 1e6


def test_only_one_module_uses_calls_that_windows_lacks():
    found = [
        f"{path.relative_to(SOURCES)}: {call}"
        for path in sorted(SOURCES.rglob("*.py"))
        for call in POSIX_ONLY
        if call in path.read_text("utf-8") and path.name != "system.py"
    ]
    assert not found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["win32", "darwin"])
def test_types_hold_on_other_systems(name, tmp_path):
    command = [sys.executable, "-m", "mypy", "--platform", name, "--cache-dir", tmp_path]
    ended = subprocess.run(command, cwd=SOURCES.parents[1], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout
